/* Purpose: what casts the parts of a set must have, and whether a list of casts has them.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: K3_ECORRUPT for a list that is not that of the parts.
 * Invariant: counts follow from plan and parts alone; what a cast did to the values cannot be known
 * here. */
#include "cast_held.h"

#include "cast_mxfp4.h"

#include <inttypes.h>
#include <string.h>

/* A walk through the rules; the ranks are those that hold the part at hand. */
struct walk {
    const struct k3_cast_parts *parts;
    uint32_t rank_count;
    uint32_t ranks[K3_RANK_COUNT_MAX];
};

static void find_ranks(struct walk *walk, uint32_t part)
{
    walk->rank_count = 0;
    for (uint32_t p = 0; p < walk->parts->part_count; p++)
        if (walk->parts->parts[p].part == part && walk->rank_count < K3_RANK_COUNT_MAX)
            walk->ranks[walk->rank_count++] = walk->parts->parts[p].rank;
}

/* Groups that a cast of a slice counts: those of the source where its codes were not computed anew
 * (docs/QUANTIZATION.md 6). */
static uint64_t groups_of(const struct k3_cast_held *held, uint64_t rows, uint64_t cols)
{
    struct k3_qgeom geom;
    if (k3_quant_route(held->from, held->to) == K3_QROUTE_MX)
        return rows * cols / K3_MX_GROUP;
    if (held->to == K3_Q_VERBATIM || k3_qfmt_geometry(held->to, rows, cols, &geom, NULL))
        return 0; /* a cut that does not divide: no plan has it */
    return (geom.group_rows ? k3_div_up(rows, geom.group_rows) : 1) *
           (geom.group_cols ? k3_div_up(cols, geom.group_cols) : 1);
}

/* Values and groups of the distinct slices of expert or block `index`. */
static void sum_slices(const struct walk *walk, const struct k3_rule *rule, uint32_t index,
                       struct k3_cast_held *held)
{
    const struct k3_plan *plan = walk->parts->plan;
    uint8_t seen[K3_RANK_COUNT_MAX / 8] = {0}; /* by run: runs of a tensor are of one size */
    held->value_count = held->group_count = 0;
    for (uint32_t i = 0; i < walk->rank_count; i++) {
        struct k3_place place;
        struct k3_slice slice;
        k3_layout_place(&plan->layout, walk->ranks[i], &place);
        if (!k3_layout_slice(&plan->layout, &plan->config, rule, index, &place, &slice))
            continue;
        const uint64_t run = slice.row_begin / slice.row_count +
                             slice.column_begin / slice.column_bytes;
        const uint8_t bit = (uint8_t)(1u << run % 8);
        if (seen[run / 8] & bit)
            continue;
        seen[run / 8] |= bit;
        const uint64_t cols = held->from == K3_Q_MXFP4 ? slice.column_bytes * 2
                                                       : slice.column_bytes / 2;
        held->value_count += slice.row_count * cols;
        held->group_count += groups_of(held, slice.row_count, cols);
    }
}

static bool walk_layer(struct walk *walk, uint32_t r, uint32_t layer, k3_cast_held_fn fn,
                       void *context)
{
    const struct k3_plan *plan = walk->parts->plan;
    const struct k3_rule *rule = &plan->config.model->rules[r];
    const uint32_t repeats = k3_rule_repeat_count(&plan->config, rule);
    const bool is_same = rule->role != K3_ROLE_EXPERTS || !plan->layout.experts_ep;
    struct k3_cast_held held = {.part = k3_rule_part(&plan->config, rule, layer),
                                .from = k3_rule_source_fmt(rule),
                                .to = k3_policy_fmt(&plan->policy, &plan->config, r, layer)};
    find_ranks(walk, held.part);
    for (uint32_t index = 0; index < repeats && walk->rank_count; index++) {
        if (index == 0 || !is_same) /* else all experts of a layer are cut the same way */
            sum_slices(walk, rule, index, &held);
        held.slot = plan->rule_slot[r] + layer * repeats + index;
        if (held.value_count && !fn(context, &held))
            return false;
    }
    return true;
}

void k3_cast_walk(const struct k3_cast_parts *parts, k3_cast_held_fn fn, void *context)
{
    const struct k3_config *config = &parts->plan->config;
    struct walk walk = {.parts = parts};
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        const bool in_layer = rule->scope != K3_SCOPE_FIRST && rule->scope != K3_SCOPE_LAST;
        if (!k3_rule_is_matrix(rule))
            continue;
        for (uint32_t layer = 0; layer < (in_layer ? config->layer_count : 1); layer++)
            if (k3_rule_applies(config, rule, layer) && !walk_layer(&walk, r, layer, fn, context))
                return;
    }
}

/* ---- a list held against it ---- */

struct check {
    const struct k3_plan *plan;
    const struct k3_cast_list *list;
    struct k3_err *err;
    uint32_t at; /* rows that were met */
    int rc;
};

static int fail_row(const struct check *check, const struct k3_cast_held *held)
{
    const struct k3_cast_list *list = check->list;
    const struct k3_cast_row *row = check->at < list->count ? &list->rows[check->at] : NULL;
    char name[K3_ST_NAME_BYTES_MAX + 1];
    k3_plan_slot_name(check->plan, held->slot, name, sizeof name);
    if (!row || row->slot != held->slot)
        return k3_fail_at(check->err, K3_ECORRUPT, list->file, -1,
                          "%s: part %" PRIu32 ": tensor %s is cast to %s, and what the cast did to "
                          "it is missing: %s",
                          list->file, held->part, name, k3_qfmt_name(held->to), list->next);
    if (row->from != held->from || row->to != held->to)
        return k3_fail_at(
            check->err, K3_ECORRUPT, list->file, -1,
            "%s: part %" PRIu32 ": tensor %s: the policy casts %s to %s, found %s to %s: %s",
            list->file, held->part, name, k3_qfmt_name(held->from), k3_qfmt_name(held->to),
            k3_qfmt_name((enum k3_qfmt)row->from), k3_qfmt_name((enum k3_qfmt)row->to), list->next);
    return k3_fail_at(check->err, K3_ECORRUPT, list->file, -1,
                      "%s: part %" PRIu32 ": tensor %s has %" PRIu64 " values in %" PRIu64
                      " groups here, found %" PRIu64 " in %" PRIu64 ": %s",
                      list->file, held->part, name, held->value_count, held->group_count,
                      row->value_count, row->group_count, list->next);
}

static int fail_more(const struct check *check)
{
    const struct k3_cast_list *list = check->list;
    const uint32_t slot = list->rows[check->at].slot;
    uint32_t rule, layer, index;
    char name[K3_ST_NAME_BYTES_MAX + 1] = "of none of its tensors";
    if (slot < check->plan->slot_count && k3_plan_slot(check->plan, slot, &rule, &layer, &index))
        k3_plan_slot_name(check->plan, slot, name, sizeof name);
    return k3_fail_at(check->err, K3_ECORRUPT, list->file, -1,
                      "%s: it has a cast of slot %" PRIu32 " (%s), which is not in these parts or "
                      "not cast by the policy: %s",
                      list->file, slot, name, list->next);
}

static bool meet(void *context, const struct k3_cast_held *held)
{
    struct check *check = context;
    const struct k3_cast_list *list = check->list;
    if (held->to == K3_Q_VERBATIM)
        return true;
    const struct k3_cast_row *row = check->at < list->count ? &list->rows[check->at] : NULL;
    if (row && row->slot < held->slot)
        check->rc = fail_more(check);
    else if (!row || row->slot != held->slot || row->from != held->from || row->to != held->to ||
             row->value_count != held->value_count || row->group_count != held->group_count)
        check->rc = fail_row(check, held);
    check->at++;
    return check->rc == 0;
}

int k3_cast_check(const struct k3_cast_parts *parts, const struct k3_cast_list *list,
                  struct k3_err *err)
{
    struct check check = {.plan = parts->plan, .list = list, .err = err};
    k3_cast_walk(parts, meet, &check);
    if (!check.rc && check.at < list->count)
        check.rc = fail_more(&check);
    return check.rc;
}
