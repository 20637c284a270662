/* Purpose: show casts: the policy of a set, its report, and what was done to one tensor.
 * Owns: nothing between calls.
 * Threads: the caller's.
 * Errors: K3_EIO, K3_ENOMEM, K3_EFORMAT.
 * Invariant: a figure of a tensor is shown only out of a report that is this set's. */
#include "inspect_casts.h"

#include "set_casts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_BYTES_MAX (1ull << 30) /* FORMAT.md 1: a copied file */
#define SQNR_BYTES       48u

static int no_memory(struct k3_err *err)
{
    return k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
}

/* ---- a set ---- */

int k3_inspect_policy(const struct k3_set *set, struct k3_doc *root, struct k3_err *err)
{
    char policy[K3_POLICY_TEXT_BYTES];
    struct k3_cast_sums sums;
    struct k3_text text;
    k3_policy_text(&set->plan->policy, policy);
    if (!k3_doc_add_string(root, "policy", policy))
        return no_memory(err);
    if (k3_policy_is_verbatim(&set->plan->policy))
        return 0;
    k3_text_init(&text);
    int rc = k3_set_cast_sums(set, &sums, err);
    if (!rc) {
        k3_cast_sums_put(&sums, &text);
        rc = k3_text_check(&text, err);
    }
    if (!rc && (!k3_doc_add_string(root, "casts", text.data) || !k3_cast_sums_add(root, &sums)))
        rc = no_memory(err);
    k3_text_fini(&text);
    return rc;
}

/* ---- the report as a file ---- */

struct report {
    const char *name;
    char *text; /* owned */
    size_t bytes, head_bytes, tail_at;
};

static int no_report(const struct report *report, struct k3_err *err)
{
    static const char begin[] = "{\"format\":\"k3-cast-report\"";
    if (strncmp(report->text, begin,
                report->bytes < sizeof begin - 1 ? report->bytes : sizeof begin - 1))
        return k3_fail_at(err, K3_EFORMAT, report->name, -1,
                          "%s: no report of casts: it does not begin as one, so it is another "
                          "program's file of that name; read it with any JSON reader",
                          report->name);
    return k3_fail_at(err, K3_EFORMAT, report->name, -1,
                      "%s: no report of casts as FORMAT.md 4.9 says, or cut or damaged: restore it "
                      "from a copy of the set, or convert again with --force",
                      report->name);
}

/* Some of the text, with what it lacks to be a document. */
struct piece {
    const char *before, *behind;
    size_t at, bytes;
};

static int decode_piece(const struct report *report, const struct piece *piece, struct k3_doc **doc,
                        struct k3_err *err)
{
    struct k3_text text;
    k3_text_init(&text);
    k3_text_puts(&text, piece->before);
    k3_text_put(&text, report->text + piece->at, piece->bytes);
    k3_text_puts(&text, piece->behind);
    int rc = k3_text_check(&text, err);
    if (!rc && k3_doc_decode(report->name, text.data, text.bytes, doc, NULL))
        rc = no_report(report, err);
    k3_text_fini(&text);
    return rc;
}

static uint64_t count_of(const struct k3_doc *line, const char *name)
{
    const struct k3_doc *member = k3_doc_find(line, name);
    uint64_t count = 0;
    return member && k3_doc_integer(member, &count) ? count : 0;
}

static const char *string_of(const struct k3_doc *line, const char *name)
{
    const struct k3_doc *member = k3_doc_find(line, name);
    const char *string = member ? k3_doc_string(member) : NULL;
    return string ? string : "";
}

/* "31.54 dB"; "exact"; "all zero", of which decibels say nothing. */
static const char *sqnr_of(const struct k3_doc *line, char text[SQNR_BYTES])
{
    const struct k3_doc *member = k3_doc_find(line, "sqnr_db"), *sum = k3_doc_find(line, "sum_x2");
    double db, x2;
    if (member && k3_doc_double(member, &db))
        snprintf(text, SQNR_BYTES, "%.2f dB", db);
    else
        snprintf(text, SQNR_BYTES, "%s",
                 sum && k3_doc_double(sum, &x2) && x2 == 0 ? "all zero" : "exact");
    return text;
}

/* The formats of "nvfp4,fp8-block" as bits. */
static uint32_t formats_of(const char *names)
{
    enum k3_qfmt fmt;
    uint32_t formats = 0;
    for (size_t n; *names; names += n + (names[n] == ',')) {
        n = strcspn(names, ",");
        if (k3_qfmt_find(names, n, &fmt))
            formats |= UINT32_C(1) << fmt;
    }
    return formats;
}

static bool add_total(struct k3_doc *array, const struct k3_doc *line)
{
    static const char *const counts[] = {
        "tensors", "lossless_tensors", "low_tensors",      "values",
        "groups",  "zero_groups",      "saturated_groups", "out_of_window_groups"};
    char sqnr[SQNR_BYTES];
    struct k3_doc *row = k3_doc_add_object(array, NULL);
    bool added = row && k3_doc_add_string(row, "role", string_of(line, "role")) &&
                 k3_doc_add_string(row, "to", string_of(line, "to")) &&
                 k3_doc_add_string(row, "sqnr", sqnr_of(line, sqnr));
    for (unsigned i = 0; i < sizeof counts / sizeof *counts && added; i++)
        added = k3_doc_add_integer(row, counts[i], count_of(line, counts[i]));
    return added;
}

/* Matrices that came out worse than their format should. */
static int add_low(const struct report *report, struct k3_doc *root, struct k3_err *err)
{
    static const char key[] = ",\"low\":true";
    struct k3_doc *array = NULL;
    size_t at = report->head_bytes;
    const char *hit;
    int rc = 0;
    while (!rc && (hit = memmem(report->text + at, report->tail_at - at, key, sizeof key - 1))) {
        char sqnr[SQNR_BYTES];
        struct k3_doc *line = NULL;
        const char *begin = memrchr(report->text, '\n', (size_t)(hit - report->text));
        const char *end = memchr(hit, '\n', report->bytes - (size_t)(hit - report->text));
        if (!begin || !end)
            return no_report(report, err);
        at = (size_t)(end - report->text);
        size_t bytes = (size_t)(end - begin) - 1;
        bytes -= begin[bytes] == ',';
        const struct piece piece = {"", "", (size_t)(begin + 1 - report->text), bytes};
        rc = decode_piece(report, &piece, &line, err);
        if (rc)
            return rc;
        array = array ? array : k3_doc_add_array(root, "low_list");
        struct k3_doc *row = array ? k3_doc_add_object(array, NULL) : NULL;
        bool added = row && k3_doc_add_string(row, "to", string_of(line, "to")) &&
                     k3_doc_add_string(row, "sqnr", sqnr_of(line, sqnr)) &&
                     k3_doc_add_string(row, "tensor", string_of(line, "tensor"));
        k3_doc_free(line);
        rc = added ? 0 : no_memory(err);
    }
    return rc;
}

static int show_report(const struct report *report, const struct k3_doc *head,
                       const struct k3_doc *tail, struct k3_doc *root, struct k3_err *err)
{
    const struct k3_doc *totals = k3_doc_find(tail, "totals");
    char note[K3_CAST_SATURATED_BYTES];
    uint64_t tensors = 0, low = 0;
    uint32_t saturated = 0;
    if (strcmp(string_of(head, "format"), "k3-cast-report") || !k3_doc_is_array(totals))
        return no_report(report, err);
    for (const struct k3_doc *line = k3_doc_first(totals); line; line = k3_doc_next(line)) {
        tensors += count_of(line, "tensors");
        low += count_of(line, "low_tensors");
        saturated |= count_of(line, "saturated_groups") ? formats_of(string_of(line, "to")) : 0;
    }
    bool added = k3_doc_add_string(root, "kind", "report of a set's casts") &&
                 k3_doc_add_string(root, "plan_sha256", string_of(head, "plan_sha256")) &&
                 k3_doc_add_string(root, "policy", string_of(head, "policy")) &&
                 k3_doc_add_string(root, "ranks", string_of(head, "ranks")) &&
                 k3_doc_add_integer(root, "tensors", tensors) &&
                 k3_doc_add_integer(root, "low_tensors", low) &&
                 k3_doc_add_string(root, "read_it_with",
                                   "any JSON reader; it has a line for each tensor, so grep finds "
                                   "one; `k3-shard inspect SET --tensor NAME` shows one") &&
                 (!k3_cast_saturated_text(saturated, note) ||
                  k3_doc_add_string(root, "saturated_groups", note));
    struct k3_doc *array = added ? k3_doc_add_array(root, "totals") : NULL;
    added = array != NULL;
    for (const struct k3_doc *line = k3_doc_first(totals); line && added; line = k3_doc_next(line))
        added = add_total(array, line);
    return added ? add_low(report, root, err) : no_memory(err);
}

int k3_inspect_report(const struct k3_dir *dir, const char *name, struct k3_doc *root,
                      struct k3_err *err)
{
    static const char totals[] = "\n],\"totals\":[";
    struct report report = {.name = name};
    struct k3_doc *head = NULL, *tail = NULL;
    int rc = k3_file_load_linked(dir, name, REPORT_BYTES_MAX, &report.text, &report.bytes, err);
    if (rc)
        return rc;
    const char *lf = memchr(report.text, '\n', report.bytes);
    const char *end = lf ? memmem(lf, report.bytes - (size_t)(lf - report.text), totals,
                                  sizeof totals - 1)
                         : NULL;
    if (end) {
        report.head_bytes = (size_t)(lf - report.text);
        report.tail_at = (size_t)(end - report.text);
        const struct piece piece = {"", "]}", 0, report.head_bytes};
        rc = decode_piece(&report, &piece, &head, err);
    } else {
        rc = no_report(&report, err);
    }
    if (!rc) {
        const size_t at = report.tail_at + 3; /* behind the line feed, the bracket, the comma */
        const struct piece piece = {"{", "", at, report.bytes - at};
        rc = decode_piece(&report, &piece, &tail, err);
    }
    if (!rc)
        rc = show_report(&report, head, tail, root, err);
    k3_doc_free(head);
    k3_doc_free(tail);
    free(report.text);
    return rc;
}

/* ---- one tensor ---- */

static const char *what_of(enum k3_row_what what)
{
    static const char *const words[] = {[K3_ROW_KEPT] = "as in the checkpoint",
                                        [K3_ROW_WEIGHT] = "codes",
                                        [K3_ROW_SCALE] = "scales",
                                        [K3_ROW_GLOBAL] = "a global scale",
                                        [K3_ROW_SHAPE] = "a shape"};
    return words[what];
}

static int add_row(const struct k3_cast_row *row, struct k3_doc *root, struct k3_err *err)
{
    const double db = k3_cast_row_sqnr_db(row);
    const double expected = k3_cast_expected_db((enum k3_qfmt)row->from, (enum k3_qfmt)row->to);
    char sqnr[SQNR_BYTES], note[K3_CAST_SATURATED_BYTES];
    if (k3_cast_row_lossless(row))
        snprintf(sqnr, sizeof sqnr, "%s", k3_cast_row_is_zero(row) ? "all zero" : "exact");
    else if (!k3_cast_row_is_low(row))
        snprintf(sqnr, sizeof sqnr, "%.2f dB", db);
    else if (isfinite(expected))
        snprintf(sqnr, sizeof sqnr, "%.2f dB, low: expected %.1f", db, expected);
    else
        snprintf(sqnr, sizeof sqnr, "%.2f dB, low: expected exact", db);
    bool added = k3_doc_add_bool(root, "lossless", k3_cast_row_lossless(row)) &&
                 k3_doc_add_string(root, "sqnr", sqnr) &&
                 (!isfinite(db) || k3_doc_add_double(root, "sqnr_db", db)) &&
                 k3_doc_add_double(root, "max_abs_error", row->max_abs_error) &&
                 k3_doc_add_integer(root, "values", row->value_count) &&
                 k3_doc_add_integer(root, "groups", row->group_count) &&
                 k3_doc_add_integer(root, "zero_groups", row->zero_groups) &&
                 k3_doc_add_integer(root, "saturated_groups", row->saturated_groups) &&
                 k3_doc_add_integer(root, "out_of_window_groups", row->breach_groups);
    if (added && row->saturated_groups && k3_cast_saturated_text(UINT32_C(1) << row->to, note))
        added = k3_doc_add_string(root, "note", note);
    return added ? 0 : no_memory(err);
}

/* What the report says of the matrix of a slot; not being sound is a note. */
static int add_report(const struct k3_set *set, uint32_t slot, struct k3_doc *root,
                      struct k3_err *err)
{
    char path[K3_ERR_TEXT_BYTES / 2], tensor[K3_ST_NAME_BYTES_MAX + 1], *text = NULL;
    struct k3_cast_report report;
    struct k3_cast_row row;
    struct k3_err inner;
    bool found = false;
    k3_err_init(&inner);
    k3_plan_slot_name(set->plan, slot, tensor, sizeof tensor);
    if (!k3_doc_add_string(root, "cast_tensor", tensor))
        return no_memory(err);
    int rc = k3_set_report_load(set, &report, &text, path, &inner);
    if (!rc && text)
        rc = k3_cast_report_find(&report, tensor, &row, &found, &inner);
    free(text);
    if (rc && k3_exit_code(rc) != 3)
        return k3_fail_as(err, &inner);
    if (found)
        return add_row(&row, root, err);
    return k3_doc_add_string(root, "note",
                             rc ? inner.text : "no report tells how well its values were kept")
               ? 0
               : no_memory(err);
}

/* The entries of a part that lie in a place: what they are, and of how many matrices. */
static int add_entries(const struct k3_set *set, const struct k3_part *part,
                       const struct k3_inspect_place *place, struct k3_doc *root,
                       struct k3_err *err)
{
    const struct k3_entry *first = NULL;
    uint64_t count = 0;
    for (uint32_t e = 0; e < part->entry_count; e++) {
        const struct k3_entry *entry = &part->entries[e];
        if (entry->slot == K3_SLOT_NONE || entry->begin_offset < place->begin_offset ||
            entry->begin_offset >= place->end_offset)
            continue;
        first = first ? first : entry;
        count++;
    }
    if (!first)
        return 0;
    const struct k3_rule *rule = &set->config.model->rules[first->row.rule];
    const bool is_cast = first->row.what != K3_ROW_KEPT;
    bool added = k3_doc_add_string(
                     root, "format",
                     k3_qfmt_name(is_cast ? (enum k3_qfmt)first->row.fmt : K3_Q_VERBATIM)) &&
                 k3_doc_add_string(root, "holds", what_of((enum k3_row_what)first->row.what));
    if (added && is_cast)
        added = k3_doc_add_string(root, "cast_from", k3_qfmt_name(k3_rule_source_fmt(rule)));
    if (added && count > 1)
        added = k3_doc_add_integer(root, "of_tensors", count);
    if (!added)
        return no_memory(err);
    return is_cast && count == 1 ? add_report(set, first->slot, root, err) : 0;
}

int k3_inspect_cast(const char *dir, const struct k3_inspect_place *place, struct k3_doc *root,
                    struct k3_err *err)
{
    struct k3_set *set = NULL;
    struct k3_part part = {0};
    struct k3_err inner;
    struct k3_dir at;
    uint32_t rank, number;
    if (!k3_part_name_decode(place->file, &rank, &number) || k3_dir_open(dir, false, &at, NULL))
        return 0;
    const bool is_set = k3_file_exists(&at, K3_MANIFEST_NAME);
    k3_dir_close(&at);
    if (!is_set) /* another directory of the set holds its manifest */
        return 0;
    k3_err_init(&inner);
    int rc = k3_set_open(&dir, 1, &set, &inner);
    if (rc && k3_exit_code(rc) == 3)
        return k3_doc_add_string(root, "note", inner.text) ? 0 : no_memory(err);
    if (rc)
        return k3_fail_as(err, &inner);
    char plan[K3_HEX_BYTES];
    k3_hex_encode(set->manifest.plan_digest, K3_DIGEST_BYTES, plan);
    if (strcmp(plan, place->plan)) {
        k3_set_close(set);
        return k3_doc_add_string(root, "note",
                                 "the part and " K3_MANIFEST_NAME
                                 " are of two plans: its format is "
                                 "not known: verify the set")
                   ? 0
                   : no_memory(err);
    }
    if (k3_layout_has_part(&set->config, &set->layout, rank, number))
        rc = k3_part_build(set->plan, rank, number, &part, err);
    if (!rc)
        rc = add_entries(set, &part, place, root, err);
    k3_part_fini(&part);
    k3_set_close(set);
    return rc;
}
