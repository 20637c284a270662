/* Purpose: print a tree as text: members as lines, arrays of objects as tables.
 * Owns: the cells of a table while it is printed.
 * Threads: the main thread.
 * Errors: K3_ENOMEM.
 * Invariant: nothing is left out without saying how much. */
#include "inspect.h"
#include "policy.h"
#include "sizes.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_SHOWN_MAX   40u /* a screen; --json has all */
#define COLUMN_COUNT_MAX 20u
#define NAME_CELLS       18
#define CELL_BYTES_MAX   100u
#define BAR_CELLS        40u

static bool ends_with(const char *name, const char *suffix)
{
    size_t n = strlen(name), s = strlen(suffix);
    return n >= s && !strcmp(name + n - s, suffix);
}

/* The name of a member as words. */
static void put_name(const char *name, int cells)
{
    char shown[64];
    snprintf(shown, sizeof shown, "%s", name);
    for (char *c = shown; *c; c++)
        if (*c == '_')
            *c = ' ';
    k3_make_printable(shown);
    printf("%-*s ", cells, shown);
}

/* The tree has the canonical text, which lists every role; people get the one of a command line. */
static void put_policy(const char *canonical, struct k3_text *out)
{
    char text[K3_POLICY_TEXT_BYTES];
    struct k3_policy policy;
    struct k3_err ignored;
    k3_err_init(&ignored);
    k3_policy_init(&policy);
    if (k3_policy_parse(canonical, &policy, &ignored)) {
        k3_text_puts(out, canonical);
        return;
    }
    k3_policy_short_text(&policy, text);
    k3_text_puts(out, text);
}

/* A scalar as text: bytes and counts as people read them, all else as JSON has it. */
static int put_scalar(const char *name, const struct k3_doc *value, bool in_table,
                      struct k3_text *out, struct k3_err *err)
{
    uint64_t number;
    const char *string = k3_doc_string(value);
    if (string && !strcmp(name, "policy")) {
        put_policy(string, out);
    } else if (string) {
        k3_text_puts(out, string);
    } else if (k3_doc_integer(value, &number)) {
        bool is_size = ends_with(name, "bytes");
        bool is_place = ends_with(name, "offset") || ends_with(name, "begin") ||
                        ends_with(name, "end") || !strcmp(name, "rank") || !strcmp(name, "part");
        if (is_size && !in_table)
            k3_text_putf(out, "%s bytes, %s", k3_count_text(number).s, k3_size_text(number).s);
        else if (is_place)
            k3_text_putu(out, number);
        else
            k3_text_puts(out, k3_count_text(number).s);
    } else {
        return k3_doc_encode(value, out, err);
    }
    return k3_text_check(out, err);
}

/* ---- tables ---- */

static int put_row(const struct k3_doc *row, struct k3_text *cells, unsigned *widths, bool print,
                   struct k3_err *err)
{
    unsigned column = 0;
    for (const struct k3_doc *member = k3_doc_first(row); member && column < COLUMN_COUNT_MAX;
         member = k3_doc_next(member), column++) {
        cells->bytes = 0;
        int rc = put_scalar(k3_doc_name(member), member, true, cells, err);
        if (rc)
            return rc;
        if (cells->bytes)
            k3_make_printable(cells->data);
        uint64_t number;
        unsigned n = (unsigned)(cells->bytes < CELL_BYTES_MAX ? cells->bytes : CELL_BYTES_MAX);
        if (!print)
            widths[column] = n > widths[column] ? n : widths[column];
        else if (k3_doc_integer(member, &number))
            printf("  %*s", (int)widths[column], cells->data);
        else
            printf("  %-*s", k3_doc_next(member) ? (int)widths[column] : 0,
                   cells->bytes ? cells->data : "");
    }
    if (print)
        putchar('\n');
    return 0;
}

static void put_heading(const struct k3_doc *row, unsigned *widths, bool print)
{
    unsigned column = 0;
    for (const struct k3_doc *member = k3_doc_first(row); member && column < COLUMN_COUNT_MAX;
         member = k3_doc_next(member), column++) {
        const char *name = k3_doc_name(member);
        unsigned n = (unsigned)strlen(name);
        uint64_t number;
        if (!print)
            widths[column] = n > widths[column] ? n : widths[column];
        else if (k3_doc_integer(member, &number))
            printf("  %*s", (int)widths[column], name);
        else
            printf("  %-*s", k3_doc_next(member) ? (int)widths[column] : 0, name);
    }
    if (print)
        putchar('\n');
}

static int put_table(const char *name, const struct k3_doc *array, struct k3_err *err)
{
    unsigned widths[COLUMN_COUNT_MAX] = {0};
    uint32_t count = k3_doc_count(array), shown = 0;
    struct k3_text cells;
    int rc = 0;
    k3_text_init(&cells);
    putchar('\n');
    put_name(name, 0);
    printf("(%u)\n", count);
    for (int pass = 0; pass < 2 && !rc; pass++) {
        shown = 0;
        put_heading(k3_doc_first(array), widths, pass == 1);
        for (const struct k3_doc *row = k3_doc_first(array); row && shown < ROWS_SHOWN_MAX && !rc;
             row = k3_doc_next(row), shown++)
            rc = put_row(row, &cells, widths, pass == 1, err);
    }
    if (count > shown)
        printf("  ... and %u more (--json lists all)\n", count - shown);
    k3_text_fini(&cells);
    return rc;
}

/* ---- members ---- */

static int put_line(const struct k3_doc *member, struct k3_text *text, struct k3_err *err)
{
    int rc = 0;
    text->bytes = 0;
    if (k3_doc_is_array(member) || k3_doc_is_object(member)) {
        const char *separator = "";
        for (const struct k3_doc *v = k3_doc_first(member); v && !rc; v = k3_doc_next(v)) {
            k3_text_puts(text, separator);
            if (k3_doc_is_object(member))
                k3_text_putf(text, "%s=", k3_doc_name(v));
            rc = put_scalar("", v, true, text, err);
            separator = ", ";
        }
    } else {
        rc = put_scalar(k3_doc_name(member), member, false, text, err);
    }
    if (rc)
        return rc;
    if (text->bytes)
        k3_make_printable(text->data);
    put_name(k3_doc_name(member), NAME_CELLS);
    printf("%s\n", text->bytes ? text->data : "none");
    return 0;
}

/* ---- histograms ---- */

static uint64_t count_of(const struct k3_doc *bin, const char *name)
{
    uint64_t count = 0;
    (void)k3_doc_integer(k3_doc_find(bin, name), &count);
    return count;
}

static void put_bar(uint64_t count, uint64_t most)
{
    static const char full[] = "########################################"; /* BAR_CELLS */
    uint64_t cells = (uint64_t)((double)count / (double)most * BAR_CELLS + 0.5);
    printf("%.*s", (int)(cells > BAR_CELLS ? BAR_CELLS : cells), full);
    if (!cells && count)
        putchar('.'); /* seen, and less than half of a cell */
}

/* A title, then a line for each bin: how many of each sign, and a bar. */
static void put_histogram(const struct k3_doc *hist)
{
    const struct k3_doc *bins = k3_doc_find(hist, "bins");
    uint64_t most = 1;
    for (const struct k3_doc *bin = k3_doc_first(bins); bin; bin = k3_doc_next(bin)) {
        uint64_t count = count_of(bin, "negative") + count_of(bin, "positive");
        most = count > most ? count : most;
    }
    uint64_t tensors = count_of(hist, "tensors");
    printf("\n%s: %s in %s tensor%s\n  %-9s  %17s  %17s\n", k3_doc_string(k3_doc_find(hist, "of")),
           k3_count_text(count_of(hist, "count")).s, k3_count_text(tensors).s,
           tensors == 1 ? "" : "s", "from", "negative", "positive");
    for (const struct k3_doc *bin = k3_doc_first(bins); bin; bin = k3_doc_next(bin)) {
        uint64_t negative = count_of(bin, "negative"), positive = count_of(bin, "positive");
        printf("  %-9s  %17s  %17s  ", k3_doc_string(k3_doc_find(bin, "bin")),
               k3_count_text(negative).s, k3_count_text(positive).s);
        put_bar(negative + positive, most);
        putchar('\n');
    }
}

int k3_inspect_print(const struct k3_doc *root, struct k3_err *err)
{
    struct k3_text text;
    int rc = 0;
    k3_text_init(&text);
    for (const struct k3_doc *m = k3_doc_first(root); m && !rc; m = k3_doc_next(m))
        if (!k3_doc_is_array(m) || !k3_doc_is_object(k3_doc_first(m)))
            rc = put_line(m, &text, err);
    for (const struct k3_doc *m = k3_doc_first(root); m && !rc; m = k3_doc_next(m))
        if (!strcmp(k3_doc_name(m), "histograms"))
            for (const struct k3_doc *h = k3_doc_first(m); h; h = k3_doc_next(h))
                put_histogram(h);
        else if (k3_doc_is_array(m) && k3_doc_is_object(k3_doc_first(m)))
            rc = put_table(k3_doc_name(m), m, err);
    k3_text_fini(&text);
    return rc;
}
