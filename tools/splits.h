/* Matrices that are split, then quantized (FORMAT.md 4.7): plan and convert say the same. */
#ifndef K3_SPLITS_H
#define K3_SPLITS_H

#include "doc.h"
#include "plan.h"

#define K3_SPLITS_TP_MAX 1024u /* as k3_layout_resolve says */

struct k3_splits {
    struct k3_policy_split list[K3_RULE_COUNT_MAX]; /* the first `count` */
    uint32_t count;
    bool is_large;                 /* one of them could be cut between its blocks */
    uint16_t tp[K3_SPLITS_TP_MAX]; /* where is_large: the tp sizes that split none such */
    uint32_t tp_count;
};

void k3_splits_find(const struct k3_plan *plan, struct k3_splits *splits);

/* One line on stdout; nothing where nothing is split. */
void k3_splits_print(const struct k3_splits *splits);
/* Add the array "split_then_quantized"; false without memory. */
bool k3_splits_add(struct k3_doc *root, const struct k3_splits *splits);

#endif
