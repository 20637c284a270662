/* Purpose: say what was cast: sums by role, and the matrices that came out worse than their format
 * should.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: none; false without memory.
 * Invariant: text and JSON are of one summary. */
#include "cast_print.h"

#include "sizes.h"
#include "text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FORMATS_BYTES 160 /* all names of formats */
#define PATH_BYTES    4096

static bool add_role(struct k3_doc *casts, const char *name, const struct k3_cast_role *role)
{
    const struct k3_qstats *stats = &role->stats;
    const bool lossless = k3_qstats_lossless(stats);
    struct k3_doc *cast = k3_doc_add_object(casts, NULL);
    struct k3_doc *formats = NULL;
    bool good = cast && k3_doc_add_string(cast, "role", name) &&
                (formats = k3_doc_add_array(cast, "formats"));
    for (unsigned fmt = 0; fmt < K3_QFMT_COUNT && good; fmt++)
        if (role->formats >> fmt & 1)
            good = k3_doc_add_string(formats, NULL, k3_qfmt_name((enum k3_qfmt)fmt));
    good = good && k3_doc_add_integer(cast, "tensors", role->tensor_count) &&
           k3_doc_add_integer(cast, "values", stats->value_count) &&
           k3_doc_add_bool(cast, "lossless", lossless) &&
           k3_doc_add_integer(cast, "all_zero_tensors", role->zero_count);
    if (good && !lossless)
        good = k3_doc_add_double(cast, "sqnr_db", k3_qstats_sqnr_db(stats)) &&
               k3_doc_add_double(cast, "rel_rmse", k3_qstats_rel_rmse(stats));
    good = good && k3_doc_add_double(cast, "max_abs_error", stats->max_abs_error) &&
           k3_doc_add_integer(cast, "groups", stats->group_count) &&
           k3_doc_add_integer(cast, "zero_groups", stats->zero_groups) &&
           k3_doc_add_integer(cast, "saturated_groups", stats->saturated_groups) &&
           k3_doc_add_integer(cast, "out_of_window_groups", stats->breach_groups) &&
           k3_doc_add_integer(cast, "lossless_tensors", role->lossless_count) &&
           k3_doc_add_integer(cast, "low_tensors", role->low_count);
    if (good && role->worst.name[0])
        good = k3_doc_add_string(cast, "worst", role->worst.name) &&
               k3_doc_add_double(cast, "worst_sqnr_db", k3_cast_row_sqnr_db(&role->worst.row));
    return good;
}

static enum k3_qfmt from_of(const struct k3_cast_named *named)
{
    return (enum k3_qfmt)named->row.from;
}

static enum k3_qfmt to_of(const struct k3_cast_named *named)
{
    return (enum k3_qfmt)named->row.to;
}

static uint64_t shown_count(const struct k3_cast_summary *casts)
{
    return casts->low_count < K3_CAST_LOW_SHOWN_MAX ? casts->low_count : K3_CAST_LOW_SHOWN_MAX;
}

/* "set/k3-cast-report.json" */
static const char *report_path(const char *dir, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/" K3_CAST_REPORT_NAME, dir);
    return path;
}

bool k3_casts_add(struct k3_doc *root, const struct k3_cast_summary *casts, const char *dir)
{
    char path[PATH_BYTES];
    struct k3_doc *roles = k3_doc_add_array(root, "casts");
    bool good = roles != NULL;
    for (unsigned r = 0; r < K3_ROLE_COUNT && good; r++)
        if (casts->roles[r].tensor_count)
            good = add_role(roles, k3_role_name((enum k3_role)r), &casts->roles[r]);
    if (!good || !casts->tensor_count)
        return good;
    struct k3_doc *low = NULL;
    good = k3_doc_add_integer(root, "low_tensors", casts->low_count) &&
           (low = k3_doc_add_array(root, "low"));
    for (uint64_t i = 0; i < shown_count(casts) && good; i++) {
        const struct k3_cast_named *named = &casts->low[i];
        const double expected = k3_cast_expected_db(from_of(named), to_of(named));
        struct k3_doc *row = k3_doc_add_object(low, NULL);
        good = row && k3_doc_add_string(row, "tensor", named->name) &&
               k3_doc_add_string(row, "to", k3_qfmt_name(to_of(named))) &&
               k3_doc_add_double(row, "sqnr_db", k3_cast_row_sqnr_db(&named->row)) &&
               (!isfinite(expected) || k3_doc_add_double(row, "expected_db", expected));
    }
    return good && (!dir || k3_doc_add_string(root, "cast_report", report_path(dir, path)));
}

/* The cells of one line of the table. */
#define COLUMN_COUNT 12u
#define CELL_BYTES   FORMATS_BYTES
struct cells {
    char cell[COLUMN_COUNT][CELL_BYTES];
};

static const struct cells heading = {{"role", "to", "tensors", "values", "SQNR", "RMSE",
                                      "largest error", "groups", "of zeros", "saturated",
                                      "out of window", "low"}};

static void fill_cells(const char *name, const struct k3_cast_role *role, struct cells *line)
{
    const struct k3_qstats *stats = &role->stats;
    const uint64_t behind[] = {stats->group_count, stats->zero_groups, stats->saturated_groups,
                               stats->breach_groups, role->low_count};
    snprintf(line->cell[0], CELL_BYTES, "%s", name);
    k3_cast_formats(role->formats, line->cell[1], CELL_BYTES);
    snprintf(line->cell[2], CELL_BYTES, "%s", k3_count_text(role->tensor_count).s);
    snprintf(line->cell[3], CELL_BYTES, "%s", k3_count_text(stats->value_count).s);
    if (k3_qstats_lossless(stats)) {
        snprintf(line->cell[4], CELL_BYTES, "%s",
                 role->zero_count == role->tensor_count ? "all zero" : "exact");
        snprintf(line->cell[5], CELL_BYTES, "0");
        snprintf(line->cell[6], CELL_BYTES, "0");
    } else {
        snprintf(line->cell[4], CELL_BYTES, "%.2f dB", k3_qstats_sqnr_db(stats));
        snprintf(line->cell[5], CELL_BYTES, "%.3f %%", 100 * k3_qstats_rel_rmse(stats));
        snprintf(line->cell[6], CELL_BYTES, "%.3g", stats->max_abs_error);
    }
    for (unsigned c = 0; c < sizeof behind / sizeof *behind; c++)
        snprintf(line->cell[7 + c], CELL_BYTES, "%s", k3_count_text(behind[c]).s);
}

static void print_line(const struct cells *line, const int widths[COLUMN_COUNT])
{
    for (unsigned c = 0; c < COLUMN_COUNT; c++) /* names to the left, numbers to the right */
        printf("  %*s", c < 2 ? -widths[c] : widths[c], line->cell[c]);
    putchar('\n');
}

static void widen(const struct cells *line, int widths[COLUMN_COUNT])
{
    for (unsigned c = 0; c < COLUMN_COUNT; c++)
        if ((int)strlen(line->cell[c]) > widths[c])
            widths[c] = (int)strlen(line->cell[c]);
}

/* One line for each role, and the worst matrix of those that are not exact. */
static void print_roles(const struct k3_cast_summary *casts)
{
    int widths[COLUMN_COUNT] = {0};
    struct cells line = {0};
    widen(&heading, widths);
    for (int pass = 0; pass < 2; pass++) {
        if (pass)
            print_line(&heading, widths);
        for (unsigned r = 0; r < K3_ROLE_COUNT; r++) {
            if (!casts->roles[r].tensor_count)
                continue;
            fill_cells(k3_role_name((enum k3_role)r), &casts->roles[r], &line);
            if (pass)
                print_line(&line, widths);
            else
                widen(&line, widths);
        }
    }
    for (unsigned r = 0; r < K3_ROLE_COUNT; r++)
        if (casts->roles[r].worst.name[0])
            printf("  worst of %s: %.2f dB, %s\n", k3_role_name((enum k3_role)r),
                   k3_cast_row_sqnr_db(&casts->roles[r].worst.row), casts->roles[r].worst.name);
}

/* What would be misread: saturated groups that are no fault, zeros that are no success. */
static void print_notes(const struct k3_cast_summary *casts)
{
    char text[K3_CAST_SATURATED_BYTES];
    uint32_t saturated = 0;
    for (unsigned r = 0; r < K3_ROLE_COUNT; r++) {
        const struct k3_cast_role *role = &casts->roles[r];
        saturated |= role->saturated_formats;
        if (role->zero_count && role->zero_count < role->tensor_count)
            printf("  all zero: %s of the %s tensors of %s\n", k3_count_text(role->zero_count).s,
                   k3_count_text(role->tensor_count).s, k3_role_name((enum k3_role)r));
    }
    if (k3_cast_saturated_text(saturated, text))
        printf("  saturated: %s\n", text);
}

void k3_casts_print(const struct k3_cast_summary *casts, const char *dir)
{
    char path[PATH_BYTES];
    if (!casts->tensor_count)
        return;
    puts("cast:");
    print_roles(casts);
    print_notes(casts);
    if (casts->low_count)
        printf("%s tensor%s more than %.1f dB below what the format does to normally distributed "
               "values:\n",
               k3_count_text(casts->low_count).s, casts->low_count == 1 ? " is" : "s are",
               K3_CAST_LOW_DB);
    for (uint64_t i = 0; i < shown_count(casts); i++) {
        const struct k3_cast_named *named = &casts->low[i];
        const double expected = k3_cast_expected_db(from_of(named), to_of(named));
        printf("  %5.1f dB, ", k3_cast_row_sqnr_db(&named->row));
        if (isfinite(expected))
            printf("expected %.1f", expected);
        else
            printf("expected none off");
        printf(", %s: %s\n", k3_qfmt_name(to_of(named)), named->name);
    }
    if (casts->low_count > shown_count(casts))
        printf("  ... and %s more%s%s\n", k3_count_text(casts->low_count - shown_count(casts)).s,
               dir ? ": see " : "", dir ? k3_printable(report_path(dir, path)).s : "");
    if (dir)
        printf("tensor by tensor: %s\n", k3_printable(report_path(dir, path)).s);
}
