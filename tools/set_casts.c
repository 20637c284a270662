/* Purpose: what a set says of its casts: counts of its policy, and its report, held against each
 * other.
 * Owns: nothing between calls.
 * Threads: any, on a constant set.
 * Errors: K3_ECORRUPT for a report that is not that of the set; K3_EIO, K3_ENOMEM.
 * Invariant: whether a report belongs there follows from the plan and the manifest's list, never
 * from what lies in the directory. */
#include "set_casts.h"

#include "cast_held.h"
#include "sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All parts of all ranks of the set, in one list. */
static int list_parts(const struct k3_set *set, struct k3_part_entry **list,
                      struct k3_cast_parts *parts, struct k3_err *err)
{
    const struct k3_manifest *manifest = &set->manifest;
    size_t count = 0;
    for (uint32_t r = 0; r < manifest->rank_count; r++)
        count += manifest->ranks[r].part_count;
    *list = malloc((count + 1) * sizeof **list);
    *parts = (struct k3_cast_parts){.plan = set->plan, .parts = *list};
    if (!*list)
        return k3_fail(err, K3_ENOMEM, "no memory for a list of %zu parts", count);
    for (uint32_t r = 0; r < manifest->rank_count; r++)
        for (uint32_t p = 0; p < manifest->ranks[r].part_count; p++)
            (*list)[parts->part_count++] = manifest->ranks[r].parts[p];
    return 0;
}

/* ---- counts ---- */

struct counting {
    const struct k3_plan *plan;
    struct k3_cast_sum by[K3_ROLE_COUNT][K3_QFMT_COUNT];
};

static bool count_matrix(void *context, const struct k3_cast_held *held)
{
    struct counting *counting = context;
    uint32_t rule, layer, index;
    k3_plan_slot(counting->plan, held->slot, &rule, &layer, &index);
    const enum k3_role role = (enum k3_role)counting->plan->config.model->rules[rule].role;
    struct k3_cast_sum *sum = &counting->by[role][held->to];
    sum->role = role;
    sum->from = held->from;
    sum->to = held->to;
    sum->tensor_count++;
    sum->value_count += held->value_count;
    return true;
}

int k3_set_cast_sums(const struct k3_set *set, struct k3_cast_sums *sums, struct k3_err *err)
{
    struct counting counting = {.plan = set->plan};
    struct k3_part_entry *list = NULL;
    struct k3_cast_parts parts;
    memset(sums, 0, sizeof *sums);
    int rc = list_parts(set, &list, &parts, err);
    if (!rc)
        k3_cast_walk(&parts, count_matrix, &counting);
    for (unsigned r = 0; r < K3_ROLE_COUNT; r++)
        for (unsigned f = 0; f < K3_QFMT_COUNT; f++) {
            const struct k3_cast_sum *sum = &counting.by[r][f];
            if (sum->tensor_count)
                sums->sums[sums->count++] = *sum;
            *(f == K3_Q_VERBATIM ? &sums->kept_count : &sums->cast_count) += sum->tensor_count;
        }
    free(list);
    return rc;
}

void k3_cast_sums_put(const struct k3_cast_sums *sums, struct k3_text *out)
{
    uint64_t by_format[K3_QFMT_COUNT] = {0};
    const char *separator = ": ";
    for (uint32_t i = 0; i < sums->count; i++)
        by_format[sums->sums[i].to] += sums->sums[i].tensor_count;
    k3_text_puts(out, k3_count_text(sums->cast_count).s);
    k3_text_putf(out, " of %s matrices are cast",
                 k3_count_text(sums->cast_count + sums->kept_count).s);
    for (unsigned f = K3_Q_VERBATIM + 1; f < K3_QFMT_COUNT; f++) {
        if (!by_format[f])
            continue;
        k3_text_putf(out, "%s%s to %s", separator, k3_count_text(by_format[f]).s,
                     k3_qfmt_name((enum k3_qfmt)f));
        separator = ", ";
    }
}

bool k3_cast_sums_add(struct k3_doc *root, const struct k3_cast_sums *sums)
{
    struct k3_doc *array = k3_doc_add_array(root, "formats");
    bool added = array != NULL;
    for (uint32_t i = 0; i < sums->count && added; i++) {
        const struct k3_cast_sum *sum = &sums->sums[i];
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "role", k3_role_name(sum->role)) &&
                k3_doc_add_string(row, "from", k3_qfmt_name(sum->from)) &&
                k3_doc_add_string(row, "to", k3_qfmt_name(sum->to)) &&
                k3_doc_add_integer(row, "tensors", sum->tensor_count) &&
                k3_doc_add_integer(row, "values", sum->value_count);
    }
    return added;
}

/* ---- the report ---- */

int k3_set_report_load(const struct k3_set *set, struct k3_cast_report *report, char **text,
                       char path[K3_ERR_TEXT_BYTES / 2], struct k3_err *err)
{
    const struct k3_manifest *manifest = &set->manifest;
    const struct k3_dir *dir = &set->dirs[set->manifest_dir];
    bool is_listed = false;
    *text = NULL;
    snprintf(path, K3_ERR_TEXT_BYTES / 2, "%s/" K3_CAST_REPORT_NAME, dir->path);
    *report = (struct k3_cast_report){.plan = set->plan, .ranks = &set->ranks, .file = path};
    for (uint32_t i = 0; i < manifest->file_count && !is_listed; i++)
        is_listed = !strcmp(manifest->files[i].name, K3_CAST_REPORT_NAME);
    if (!is_listed || k3_policy_is_verbatim(&set->plan->policy)) /* else the checkpoint's own */
        return 0;
    if (!k3_file_exists(dir, K3_CAST_REPORT_NAME))
        return k3_fail_at(err, K3_ECORRUPT, path, -1,
                          "%s: missing, though the manifest lists it: restore it from a copy of "
                          "the set, or convert again with --force",
                          path);
    int rc = k3_file_load(dir, K3_CAST_REPORT_NAME, K3_CAST_REPORT_BYTES_MAX, text, &report->bytes,
                          err);
    report->text = *text;
    return rc;
}

int k3_set_check_report(const struct k3_set *set, const struct k3_plan *plan, bool *found,
                        struct k3_cast_summary *casts, struct k3_err *err)
{
    char path[K3_ERR_TEXT_BYTES / 2];
    struct k3_cast_report report;
    struct k3_cast_row *rows = NULL;
    struct k3_part_entry *list = NULL;
    struct k3_cast_parts parts;
    uint32_t *items = NULL;
    uint32_t count = 0;
    char *text = NULL;
    k3_cast_summary_init(casts);
    int rc = k3_set_report_load(set, &report, &text, path, err);
    *found = text != NULL;
    if (rc || !text)
        return rc;
    rc = k3_plan_part_items(plan, &items, err);
    report.items = items;
    if (!rc)
        rc = k3_cast_report_decode(&report, casts, &rows, &count, err);
    if (!rc)
        rc = list_parts(set, &list, &parts, err);
    if (!rc) {
        const struct k3_cast_list found_casts = {
            .rows = rows,
            .count = count,
            .file = path,
            .next = "restore it from a copy of the set, or convert again with --force"};
        rc = k3_cast_check(&parts, &found_casts, err);
    }
    free(items);
    free(list);
    free(rows);
    free(text);
    return rc;
}
