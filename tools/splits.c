/* Purpose: find and tell the matrices whose blocks of scales a cut goes through.
 * Owns: nothing.
 * Threads: finding is pure; printing is the main thread's.
 * Errors: none; false without memory.
 * Invariant: text and JSON are of one list. */
#include "splits.h"

#include <inttypes.h>
#include <stdio.h>

/* Does this layout split a matrix that could be cut between blocks? */
static bool splits_large(const struct k3_plan *plan, const struct k3_layout *layout)
{
    struct k3_policy_split split;
    for (uint32_t rule = 0;
         k3_policy_next_split(&plan->policy, &plan->config, layout, &rule, &split);)
        if (!split.is_small)
            return true;
    return false;
}

void k3_splits_find(const struct k3_plan *plan, struct k3_splits *splits)
{
    struct k3_layout trial = plan->layout;
    struct k3_policy_split split;
    struct k3_err ignored;
    uint32_t rule = 0;
    splits->count = splits->tp_count = 0;
    while (splits->count < K3_RULE_COUNT_MAX && /* a rule is met once */
           k3_policy_next_split(&plan->policy, &plan->config, &plan->layout, &rule, &split))
        splits->list[splits->count++] = split;
    splits->is_large = splits_large(plan, &plan->layout);
    if (!splits->is_large)
        return;
    k3_err_init(&ignored);
    for (trial.tp = 1; trial.tp <= K3_SPLITS_TP_MAX; trial.tp++)
        if (k3_layout_divides(&trial, &plan->config) &&
            !k3_policy_check(&plan->policy, &plan->config, &trial, &ignored) &&
            !splits_large(plan, &trial))
            splits->tp[splits->tp_count++] = (uint16_t)trial.tp;
}

void k3_splits_print(const struct k3_splits *splits)
{
    const char *lead = "split, then quantized (what shares a scale is cut, and begins anew on each "
                       "rank): ";
    if (!splits->count)
        return;
    for (uint32_t i = 0; i < splits->count; i++) {
        const struct k3_policy_split *split = &splits->list[i];
        printf("%s%s %s [%" PRIu64 ", %" PRIu64 "] a rank%s", lead, split->glob,
               k3_qfmt_name(split->fmt), split->rows, split->cols,
               split->is_small ? " (smaller than a block)" : "");
        lead = ", ";
    }
    if (splits->is_large)
        printf("; tp sizes that split no block%s:", splits->count > 1 ? " of the larger ones" : "");
    for (uint32_t i = 0; i < splits->tp_count; i++)
        printf(" %u", splits->tp[i]);
    printf("\n");
}

bool k3_splits_add(struct k3_doc *root, const struct k3_splits *splits)
{
    struct k3_doc *list = k3_doc_add_array(root, "split_then_quantized");
    bool good = list != NULL;
    for (uint32_t i = 0; i < splits->count && good; i++) {
        const struct k3_policy_split *split = &splits->list[i];
        struct k3_doc *row = k3_doc_add_object(list, NULL);
        good = row && k3_doc_add_string(row, "matrices", split->glob) &&
               k3_doc_add_string(row, "format", k3_qfmt_name(split->fmt)) &&
               k3_doc_add_integer(row, "rows", split->rows) &&
               k3_doc_add_integer(row, "columns", split->cols);
    }
    return good;
}
