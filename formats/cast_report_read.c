/* Purpose: read the report of a set's casts back, line by line.
 * Owns: the rows until they are handed over.
 * Threads: any; pure.
 * Errors: K3_ECORRUPT for a report of another set, or one that was changed; K3_ENOMEM.
 * Invariant: a line is believed where its row, written again, gives the same bytes; so a figure
 * that does not follow from the others (decibels, flags, totals) cannot be changed alone. */
#include "cast_report_read.h"

#include "doc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NEXT_STEP "restore it from a copy of the set, or convert again with --force"

static const char plan_prefix[] = "{\"format\":\"k3-cast-report\",\"plan_sha256\":\"";
static const char tensor_prefix[] = "\n{\"tensor\":";

static int fail(const struct k3_cast_report *report, size_t offset, const char *what,
                struct k3_err *err)
{
    return k3_fail_at(err, K3_ECORRUPT, report->file, (int64_t)offset,
                      "%s: byte %zu: %s: " NEXT_STEP, report->file, offset, what);
}

/* Length of what two texts begin with alike. */
static size_t same_bytes(const char *a, size_t a_bytes, const struct k3_text *b)
{
    size_t at = 0;
    while (at < a_bytes && at < b->bytes && a[at] == b->data[at])
        at++;
    return at;
}

/* The first line, up to the LF of the first tensor: of this plan, policy and ranks. */
static int read_begin(const struct k3_cast_report *report, size_t *at, struct k3_err *err)
{
    struct k3_text wanted;
    k3_text_init(&wanted);
    k3_cast_report_begin(report->plan, report->ranks, &wanted);
    int rc = k3_text_check(&wanted, err);
    size_t same = rc ? 0 : same_bytes(report->text, report->bytes, &wanted);
    const size_t digest_at = sizeof plan_prefix - 1;
    if (!rc && same < digest_at)
        rc = fail(report, same, "no report of casts as FORMAT.md 4.9 says", err);
    else if (!rc && same < digest_at + 2 * (size_t)K3_DIGEST_BYTES)
        rc = fail(report, same, "the report of another set: it names another plan", err);
    else if (!rc && same < wanted.bytes)
        rc = fail(report, same, "its policy or its ranks are not those of this set", err);
    *at = wanted.bytes;
    k3_text_fini(&wanted);
    return rc;
}

/* ---- a line ---- */

static bool read_count(const struct k3_doc *line, const char *name, bool is_needed, uint64_t *out)
{
    const struct k3_doc *member = k3_doc_find(line, name);
    *out = 0;
    return member ? k3_doc_integer(member, out) : !is_needed;
}

static bool read_sum(const struct k3_doc *line, const char *name, bool is_needed, double *out)
{
    const struct k3_doc *member = k3_doc_find(line, name);
    *out = 0;
    return member ? k3_doc_double(member, out) : !is_needed;
}

static bool read_format(const struct k3_doc *line, const char *name, uint8_t *out)
{
    enum k3_qfmt fmt = K3_Q_VERBATIM;
    const char *text = k3_doc_string(k3_doc_find(line, name));
    bool good = text && k3_qfmt_find(text, strlen(text), &fmt);
    *out = (uint8_t)fmt;
    return good;
}

/* NULL, or what the line should be. */
static const char *read_row(const struct k3_plan *plan, const struct k3_doc *line,
                            struct k3_cast_row *row)
{
    const char *tensor = k3_doc_string(k3_doc_find(line, "tensor"));
    memset(row, 0, sizeof *row);
    row->slot = tensor ? k3_plan_find(plan, tensor, strlen(tensor)) : K3_SLOT_NONE;
    if (row->slot == K3_SLOT_NONE)
        return "wanted a tensor of the model";
    if (!read_format(line, "from", &row->from) || !read_format(line, "to", &row->to) ||
        !read_count(line, "values", true, &row->value_count) ||
        !read_count(line, "groups", true, &row->group_count) ||
        !read_count(line, "zero_groups", false, &row->zero_groups) ||
        !read_count(line, "saturated_groups", false, &row->saturated_groups) ||
        !read_count(line, "out_of_window_groups", false, &row->breach_groups) ||
        !read_sum(line, "sum_x2", true, &row->x2) ||
        !read_sum(line, "sum_error2", false, &row->err2) ||
        !read_sum(line, "max_abs_error", false, &row->max_abs_error))
        return "wanted the members of FORMAT.md 4.9";
    if (k3_cast_row_check(row))
        return "its figures do not fit together";
    return k3_cast_row_misfit(plan, row) ? "it does not fit the policy" : NULL;
}

/* The line [at, at + bytes), without its comma. */
static int read_line(const struct k3_cast_report *report, size_t at, size_t bytes,
                     struct k3_cast_row *row, struct k3_err *err)
{
    struct k3_doc *line = NULL;
    struct k3_text again;
    k3_text_init(&again);
    int rc = k3_doc_decode(report->file, report->text + at, bytes, &line, NULL);
    if (rc) {
        rc = rc == K3_ENOMEM ? k3_fail(err, rc, "%s: no memory for one of its lines", report->file)
                             : fail(report, at, "no line of one tensor", err);
        goto out;
    }
    const char *wrong = read_row(report->plan, line, row);
    if (wrong) {
        rc = fail(report, at, wrong, err);
        goto out;
    }
    k3_cast_report_row(report->plan, row, true, &again);
    rc = k3_text_check(&again, err);
    if (!rc && (again.bytes != bytes + 1 || memcmp(again.data + 1, report->text + at, bytes)))
        rc = fail(report, at + same_bytes(report->text + at - 1, bytes + 1, &again) - 1,
                  "the line does not follow from its own figures", err);
out:
    k3_doc_free(line);
    k3_text_fini(&again);
    return rc;
}

/* ---- the whole ---- */

/* Where a line ends, and whether another follows; 0 where it has no end. */
static size_t end_of_line(const struct k3_cast_report *report, size_t at, bool *more)
{
    const char *lf = memchr(report->text + at, '\n', report->bytes - at);
    if (!lf)
        return 0;
    const size_t end = (size_t)(lf - report->text);
    *more = report->text[end - 1] == ',';
    return *more ? end - 1 : end;
}

static uint32_t item_of(const struct k3_cast_report *report, const struct k3_cast_row *row)
{
    const struct k3_config *config = &report->plan->config;
    uint32_t rule, layer, index;
    k3_plan_slot(report->plan, row->slot, &rule, &layer, &index); /* of a row that fits the plan */
    return report->items[k3_rule_part(config, &config->model->rules[rule], layer)];
}

static int by_slot(const void *a, const void *b)
{
    const uint32_t x = ((const struct k3_cast_row *)a)->slot;
    const uint32_t y = ((const struct k3_cast_row *)b)->slot;
    return (x > y) - (x < y);
}

static int grow(struct k3_cast_row **rows, uint32_t count, uint32_t *cap, struct k3_err *err)
{
    if (count < *cap)
        return 0;
    *cap = *cap ? 2 * *cap : 256;
    struct k3_cast_row *grown = realloc(*rows, *cap * sizeof *grown);
    if (!grown)
        return k3_fail(err, K3_ENOMEM, "no memory for a report of %" PRIu32 " casts", *cap);
    *rows = grown;
    return 0;
}

/* What follows the last line is the sums of all lines. */
static int check_end(const struct k3_cast_report *report, size_t at,
                     const struct k3_cast_summary *summary, struct k3_err *err)
{
    struct k3_text wanted;
    k3_text_init(&wanted);
    k3_cast_report_end(summary, &wanted);
    int rc = k3_text_check(&wanted, err);
    const size_t bytes = report->bytes - at;
    const size_t same = rc ? 0 : same_bytes(report->text + at, bytes, &wanted);
    if (!rc && (same < wanted.bytes || same < bytes))
        rc = fail(report, at + same, "its totals are not the sums of its lines", err);
    k3_text_fini(&wanted);
    return rc;
}

/* A line stands behind the line of the row before: by item, in an item by slot. */
static int check_order(const struct k3_cast_report *report, size_t at,
                       const struct k3_cast_row *before, const struct k3_cast_row *row,
                       struct k3_err *err)
{
    char name[K3_ST_NAME_BYTES_MAX + 1];
    const uint32_t last = item_of(report, before), item = item_of(report, row);
    if (last < item || (last == item && before->slot < row->slot))
        return 0;
    k3_plan_slot_name(report->plan, row->slot, name, sizeof name);
    return k3_fail_at(err, K3_ECORRUPT, report->file, (int64_t)at,
                      "%s: byte %zu: tensor %s %s: " NEXT_STEP, report->file, at, name,
                      before->slot == row->slot
                          ? "has two lines"
                          : "stands behind one that it should come before (FORMAT.md 4.9)");
}

static int read_lines(const struct k3_cast_report *report, size_t at,
                      struct k3_cast_summary *summary, struct k3_cast_row **rows, uint32_t *count,
                      struct k3_err *err)
{
    bool more = at < report->bytes && report->text[at] == '\n' && report->text[at + 1] == '{';
    uint32_t cap = 0;
    while (more) {
        const size_t line = at + 1, end = end_of_line(report, line, &more);
        int rc = end ? grow(rows, *count, &cap, err)
                     : fail(report, line, "the file ends within a line", err);
        if (!rc && *count == report->plan->slot_count)
            rc = fail(report, line, "more lines than the model has tensors", err);
        if (!rc)
            rc = read_line(report, line, end - line, &(*rows)[*count], err);
        if (!rc && *count)
            rc = check_order(report, line, &(*rows)[*count - 1], &(*rows)[*count], err);
        if (rc)
            return rc;
        k3_cast_summary_add(summary, report->plan, &(*rows)[(*count)++]);
        at = more ? end + 1 : end;
    }
    return check_end(report, at, summary, err);
}

int k3_cast_report_decode(const struct k3_cast_report *report, struct k3_cast_summary *summary,
                          struct k3_cast_row **rows, uint32_t *count, struct k3_err *err)
{
    size_t at = 0;
    *rows = NULL;
    *count = 0;
    k3_cast_summary_init(summary);
    int rc = read_begin(report, &at, err);
    if (!rc)
        rc = read_lines(report, at, summary, rows, count, err);
    if (rc) {
        free(*rows);
        *rows = NULL;
        *count = 0;
    }
    if (*count)
        qsort(*rows, *count, sizeof **rows, by_slot);
    return rc;
}

int k3_cast_report_find(const struct k3_cast_report *report, const char *tensor,
                        struct k3_cast_row *row, bool *found, struct k3_err *err)
{
    struct k3_text key;
    size_t at = 0;
    bool more;
    *found = false;
    k3_text_init(&key);
    k3_text_puts(&key, tensor_prefix);
    k3_text_put_json(&key, tensor);
    k3_text_puts(&key, ",");
    int rc = k3_text_check(&key, err);
    if (!rc)
        rc = read_begin(report, &at, err);
    const char *line = rc ? NULL
                          : memmem(report->text + at, report->bytes - at, key.data, key.bytes);
    k3_text_fini(&key);
    if (!line)
        return rc;
    at = (size_t)(line - report->text) + 1;
    const size_t end = end_of_line(report, at, &more);
    if (!end)
        return fail(report, at, "the file ends within a line", err);
    rc = read_line(report, at, end - at, row, err);
    *found = rc == 0;
    return rc;
}
