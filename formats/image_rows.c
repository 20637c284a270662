/* Purpose: the rows of a part under a policy: their order, names and dimensions.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: none; the policy was checked against model and layout (k3_policy_check).
 * Invariant: without a cast the rows are the rules, in their order. */
#include "image_rows.h"

#include "bytes.h"

#include <stdio.h>
#include <string.h>

#define PAD_ROW_ALIGN 16u /* FORMAT.md 1: KDA_ROW_ALIGN */
#define MATRIX_BITS   2   /* a packed byte holds two values */

bool k3_rule_in_part(const struct k3_config *config, const struct k3_rule *rule, uint32_t part)
{
    if (part == 0)
        return rule->scope == K3_SCOPE_FIRST;
    if (part == config->layer_count + 1)
        return rule->scope == K3_SCOPE_LAST;
    return rule->scope != K3_SCOPE_FIRST && rule->scope != K3_SCOPE_LAST &&
           k3_rule_applies(config, rule, part - 1);
}

/* ---- order ---- */

struct list {
    struct k3_row *rows;
    uint32_t count;
    uint16_t group, run; /* numbers given last */
};

static void push(struct list *list, uint32_t rule, enum k3_row_what what, enum k3_qfmt fmt)
{
    list->rows[list->count++] = (struct k3_row){.rule = (uint16_t)rule,
                                                .group = list->group,
                                                .run = list->run,
                                                .what = (uint8_t)what,
                                                .fmt = (uint8_t)fmt};
}

/* Which of the tensors beside its codes a format has. */
static bool has(enum k3_qfmt fmt, enum k3_row_what what)
{
    struct k3_qgeom geom;
    struct k3_err ignored;
    k3_err_init(&ignored);
    if (k3_qfmt_geometry(fmt, 128, 128, &geom,
                         &ignored)) /* 128 divides into groups of any format */
        return false;
    return what == K3_ROW_SCALE    ? geom.scale_suffix != NULL
           : what == K3_ROW_GLOBAL ? geom.global_suffix != NULL
                                   : what != K3_ROW_SHAPE || geom.has_shape;
}

/* The rules of a part, in order, and the format of each. */
struct here {
    const struct k3_model *model;
    uint16_t rule[K3_RULE_COUNT_MAX];
    uint8_t fmt[K3_RULE_COUNT_MAX]; /* enum k3_qfmt, by place in rule[] */
    uint32_t count;
};

static const struct k3_rule *rule_at(const struct here *here, uint32_t i)
{
    return &here->model->rules[here->rule[i]];
}

/* End of the rules that are repeated together with rule number i. */
static uint32_t run_end(const struct here *here, uint32_t i)
{
    const struct k3_rule *first = rule_at(here, i);
    uint32_t end = i + 1;
    while (first->repeat != K3_REPEAT_NONE && end < here->count &&
           rule_at(here, end)->group == first->group &&
           rule_at(here, end)->repeat == first->repeat && rule_at(here, end)->scope == first->scope)
        end++;
    return end;
}

/* The row of one kind that rule number i has, if it has one; pass COPY stands for WEIGHT too. */
static void push_kind(struct list *list, const struct here *here, uint32_t i, enum k3_row_what what)
{
    const struct k3_rule *rule = rule_at(here, i);
    enum k3_qfmt fmt = (enum k3_qfmt)here->fmt[i];
    bool is_own = (rule->flags & K3_RULE_OWN_GROUP) != 0, is_cast = fmt != K3_Q_VERBATIM;
    uint32_t r = here->rule[i];
    if (is_cast && (rule->flags & K3_RULE_SCALE)) {
        /* The scales of packed codes have their own group already: they change in place. */
        if (what == K3_ROW_KEPT && has(fmt, K3_ROW_SCALE))
            push(list, k3_rule_scaled(here->model, r), K3_ROW_SCALE, fmt);
        return;
    }
    if (what == K3_ROW_KEPT)
        push(list, r, is_cast ? K3_ROW_WEIGHT : K3_ROW_KEPT, fmt);
    else if (is_cast && has(fmt, what) &&
             !(what == K3_ROW_SCALE && (is_own || rule->flags & K3_RULE_PACKED)))
        push(list, r, what, fmt);
    else
        return;
    struct k3_row *row = &list->rows[list->count - 1];
    row->is_own = what <= K3_ROW_SCALE && is_own;
    row->is_small = what > K3_ROW_SCALE || (rule->flags & K3_RULE_SMALL);
    if (!row->is_own || !is_cast || !has(fmt, K3_ROW_SCALE))
        return;
    push(list, r, K3_ROW_SCALE, fmt); /* a matrix with a group of its own has its scales behind */
    list->rows[list->count - 1].is_own = true;
}

/* Rows of one kind for the rules [begin, end), run by run. */
static void push_runs(struct list *list, const struct here *here, uint32_t begin, uint32_t end,
                      enum k3_row_what what)
{
    list->group++;
    for (uint32_t i = begin, next; i < end; i = next) {
        next = run_end(here, i);
        list->run++;
        for (uint32_t k = i; k < next; k++)
            push_kind(list, here, k, what);
    }
}

uint32_t k3_rows_build(const struct k3_config *config, const struct k3_policy *policy,
                       uint32_t part, struct k3_row *rows)
{
    struct list list = {.rows = rows};
    struct here here = {.model = config->model};
    uint32_t layer = part && part <= config->layer_count ? part - 1 : 0;
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        if (!k3_rule_in_part(config, &config->model->rules[r], part))
            continue;
        here.rule[here.count] = (uint16_t)r;
        here.fmt[here.count++] = (uint8_t)(policy ? k3_policy_fmt(policy, config, r, layer)
                                                  : K3_Q_VERBATIM);
    }
    for (uint32_t i = 0, end; i < here.count; i = end) {
        for (end = i + 1;
             end < here.count && rule_at(&here, end)->group == rule_at(&here, i)->group;)
            end++;
        push_runs(&list, &here, i, end, K3_ROW_KEPT);
        push_runs(&list, &here, i, end, K3_ROW_SCALE);
    }
    list.group -= 2; /* the last group is small: what follows joins it */
    push_runs(&list, &here, 0, here.count, K3_ROW_GLOBAL);
    list.group--;
    push_runs(&list, &here, 0, here.count, K3_ROW_SHAPE);
    return list.count;
}

/* ---- dimensions ---- */

static void copy_dims(const struct k3_config *config, const struct k3_rule *rule,
                      const struct k3_slice *slice, struct k3_row_dims *dims)
{
    for (unsigned d = 0; d < rule->dim_count; d++)
        dims->shape[d] = config->value[rule->dim[d]];
    dims->shape[0] = slice->row_count;
    if (rule->split == K3_SPLIT_COLUMNS)
        dims->shape[1] = dims->shape[1] * slice->column_bytes / slice->row_bytes;
    dims->dim_count = rule->dim_count;
    dims->dtype = rule->dtype;
    dims->bytes = slice->row_count * slice->column_bytes;
    dims->row_bytes = slice->column_bytes;
}

uint64_t k3_slice_columns(const struct k3_rule *rule, const struct k3_slice *slice)
{
    return rule->flags & K3_RULE_PACKED ? slice->column_bytes * MATRIX_BITS
                                        : slice->column_bytes / 2;
}

void k3_row_dims(const struct k3_config *config, const struct k3_row *row,
                 const struct k3_slice *slice, struct k3_row_dims *dims)
{
    const struct k3_rule *rule = &config->model->rules[row->rule];
    struct k3_qgeom geom;
    struct k3_err ignored;
    memset(dims, 0, sizeof *dims);
    if (row->what == K3_ROW_KEPT) {
        copy_dims(config, rule, slice, dims);
        return;
    }
    k3_err_init(&ignored);
    if (k3_qfmt_geometry((enum k3_qfmt)row->fmt, slice->row_count, k3_slice_columns(rule, slice),
                         &geom, &ignored))
        return; /* not reached: k3_policy_check */
    if (row->what == K3_ROW_WEIGHT || row->what == K3_ROW_SCALE) {
        bool is_weight = row->what == K3_ROW_WEIGHT;
        memcpy(dims->shape, is_weight ? geom.weight_dim : geom.scale_dim, sizeof geom.weight_dim);
        dims->dim_count = 2;
        dims->dtype = (uint8_t)(is_weight ? geom.weight_dtype : geom.scale_dtype);
        dims->bytes = is_weight ? geom.weight_bytes : geom.scale_bytes;
        dims->row_bytes = is_weight ? geom.weight_row_bytes : geom.scale_row_bytes;
        return;
    }
    dims->dim_count = 1;
    dims->shape[0] = row->what == K3_ROW_GLOBAL ? 1 : 2;
    dims->dtype = row->what == K3_ROW_GLOBAL ? K3_F32 : K3_I64;
    dims->bytes = row->what == K3_ROW_GLOBAL ? 4 : 16;
    dims->row_bytes = dims->bytes / dims->shape[0];
}

uint64_t k3_row_pad(const struct k3_config *config, const struct k3_row *row,
                    const struct k3_slice *slice, uint64_t fused_rows)
{
    const struct k3_rule *rule = &config->model->rules[row->rule];
    if (!(rule->flags & K3_RULE_PAD_ROWS) || row->what > K3_ROW_SCALE)
        return 0;
    uint64_t rows = k3_align_up(fused_rows, PAD_ROW_ALIGN) - fused_rows;
    if (row->what != K3_ROW_SCALE || !rows)
        return rows;
    struct k3_slice padded = *slice;
    struct k3_row_dims with, without;
    padded.row_count += rows;
    k3_row_dims(config, row, &padded, &with);
    k3_row_dims(config, row, slice, &without);
    return with.shape[0] - without.shape[0];
}

/* ---- names ---- */

static const char *suffix_of(const struct k3_row *row)
{
    struct k3_qgeom geom;
    struct k3_err ignored;
    k3_err_init(&ignored);
    if (k3_qfmt_geometry((enum k3_qfmt)row->fmt, 128, 128, &geom, &ignored))
        return "";
    const char *suffix = row->what == K3_ROW_WEIGHT   ? geom.weight_suffix
                         : row->what == K3_ROW_SCALE  ? geom.scale_suffix
                         : row->what == K3_ROW_GLOBAL ? geom.global_suffix
                                                      : "weight_shape";
    return suffix ? suffix : "";
}

void k3_row_name(const struct k3_config *config, const struct k3_row *row,
                 char name[K3_ROW_NAME_BYTES])
{
    const char *from = config->model->rules[row->rule].name;
    if (row->what == K3_ROW_KEPT) {
        snprintf(name, K3_ROW_NAME_BYTES, "%s", from);
        return;
    }
    const char *dot = strrchr(from, '.');
    snprintf(name, K3_ROW_NAME_BYTES, "%.*s%s", dot ? (int)(dot - from) + 1 : 0, from,
             suffix_of(row));
}

void k3_row_view(const struct k3_config *config, const struct k3_row *row,
                 char view[K3_ROW_NAME_BYTES])
{
    static const char *const suffix[] = {"", "", "_scale", "_global", "_shape"};
    snprintf(view, K3_ROW_NAME_BYTES, "%s%s", config->model->rules[row->rule].view,
             suffix[row->what]);
}

bool k3_row_same_view(const struct k3_config *config, const struct k3_row *a,
                      const struct k3_row *b)
{
    const struct k3_rule *rules = config->model->rules;
    bool is_data = a->what <= K3_ROW_WEIGHT && b->what <= K3_ROW_WEIGHT;
    return (a->what == b->what || is_data) && !strcmp(rules[a->rule].view, rules[b->rule].view);
}
