/* Purpose: which source files and items some ranks of a layout need.
 * Owns: the marks it leaves in the checkpoint.
 * Threads: one, before the checkpoint is shared.
 * Errors: K3_EUNSUPPORTED (a rank that the layout does not have), K3_ENOMEM.
 * Invariant: a file is needed when a byte of it goes into a part of these ranks; all ranks need all
 * files, also those whose tensors the layout drops, since their digests are recorded. */
#include "ckpt.h"

#include "part.h"

#include <stdlib.h>

/* Does one of the ranks hold a slice of this tensor? */
static bool is_held(const struct k3_ckpt *ckpt, uint32_t slot)
{
    const struct k3_plan *plan = ckpt->plan;
    uint32_t rule, layer, index, world = k3_layout_world(&plan->layout);
    if (!k3_plan_slot(plan, slot, &rule, &layer, &index))
        return false;
    const struct k3_rule *row = &plan->config.model->rules[rule];
    uint32_t part = k3_rule_part(&plan->config, row, layer);
    for (uint32_t rank = 0; rank < world; rank++) {
        struct k3_place place;
        struct k3_slice slice;
        if (!k3_ranks_has(&ckpt->ranks, rank) ||
            !k3_layout_has_part(&plan->config, &plan->layout, rank, part))
            continue;
        k3_layout_place(&plan->layout, rank, &place);
        if (k3_layout_slice(&plan->layout, &plan->config, row, index, &place, &slice))
            return true;
    }
    return false;
}

int k3_ckpt_keep_ranks(struct k3_ckpt *ckpt, const struct k3_ranks *ranks, struct k3_err *err)
{
    const struct k3_plan *plan = ckpt->plan;
    uint32_t world = k3_layout_world(&plan->layout);
    k3_ranks_fill(&ckpt->ranks, world);
    for (uint32_t rank = world; ranks && rank < K3_RANK_COUNT_MAX; rank++)
        if (k3_ranks_has(ranks, rank))
            return k3_fail(err, K3_EUNSUPPORTED,
                           "rank %u is not in this layout: it has %u ranks, 0 to %u", rank, world,
                           world - 1);
    if (!ranks || ranks->count == world)
        return 0;
    ckpt->ranks = *ranks;
    ckpt->is_needed = calloc(plan->source_count + 1u, 1);
    if (!ckpt->is_needed)
        return k3_fail(err, K3_ENOMEM, "no memory for the list of files");
    for (uint32_t f = 0; f < plan->source_count; f++) {
        const uint32_t *begin = &ckpt->file_slot_begin[f];
        for (uint32_t s = begin[0]; s < begin[1] && !ckpt->is_needed[f]; s++)
            ckpt->is_needed[f] = is_held(ckpt, ckpt->slots[s]);
    }
    return 0;
}

bool k3_ckpt_needs_file(const struct k3_ckpt *ckpt, uint32_t file)
{
    return !ckpt->is_needed || ckpt->is_needed[file];
}

bool k3_ckpt_needs_item(const struct k3_ckpt *ckpt, uint32_t item)
{
    const struct k3_item *it = &ckpt->plan->items[item];
    /* The copied files and the source headers belong to the item of part 0, and to every set. */
    bool is_needed = it->part_count > 0 && it->parts[0] == 0;
    for (uint32_t f = 0; f < it->file_count && !is_needed; f++)
        is_needed = k3_ckpt_needs_file(ckpt, it->files[f]);
    return is_needed;
}

uint32_t k3_ckpt_item_count(const struct k3_ckpt *ckpt)
{
    uint32_t count = 0;
    for (uint32_t item = 0; item < ckpt->plan->item_count; item++)
        count += k3_ckpt_needs_item(ckpt, item);
    return count;
}
