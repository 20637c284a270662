/* Purpose: lay out one part: entries, pads and views in data order; sizes of a rank without
 * walking tensors.
 * Owns: the arrays of a part.
 * Threads: any; pure.
 * Errors: K3_ENOMEM, K3_ELIMIT, K3_EFORMAT (view text).
 * Invariant: entries tile [0, data_bytes) without a gap: every image byte is a tensor byte or a
 * byte of a named pad. */
#include "part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_ALIGN   4096u /* FORMAT.md 1 */
#define SMALL_ALIGN   256u
#define KDA_ROW_ALIGN 16u

/* A part being laid out. */
struct builder {
    const struct k3_plan *plan;
    struct k3_part *part;
    struct k3_err *err;
    struct k3_place place;
    uint64_t cursor; /* end of what is laid out */
    uint32_t layer;
    uint32_t pad_count;
    uint8_t group;       /* of the last tensor; 0: none yet */
    const char *view;    /* pattern of the open view, NULL: none */
    uint32_t view_index; /* block of the open view */
};

static struct k3_entry *new_entry(struct builder *b)
{
    struct k3_part *part = b->part;
    if (part->entry_count == part->entry_cap) {
        uint32_t cap = part->entry_cap ? part->entry_cap * 2 : 64;
        struct k3_entry *grown = realloc(part->entries, cap * sizeof *grown);
        if (!grown)
            return NULL;
        part->entries = grown;
        part->entry_cap = cap;
    }
    struct k3_entry *entry = &part->entries[part->entry_count++];
    memset(entry, 0, sizeof *entry);
    return entry;
}

static int no_memory(struct builder *b)
{
    return k3_fail(b->err, K3_ENOMEM, "no memory to lay out part %u of rank %u", b->part->part,
                   b->part->rank);
}

/* A pad up to `end`; nothing where the cursor is there already. */
static int pad_to(struct builder *b, uint64_t end)
{
    if (end == b->cursor)
        return 0;
    struct k3_entry *entry = new_entry(b);
    if (!entry)
        return no_memory(b);
    entry->begin_offset = b->cursor;
    entry->bytes = end - b->cursor;
    entry->slot = K3_SLOT_NONE;
    entry->index = b->pad_count++;
    b->cursor = end;
    return 0;
}

/* Open a view for the tensor about to be laid out, or let it join the open one. */
static struct k3_view *view_for(struct builder *b, const struct k3_rule *rule, uint32_t index)
{
    struct k3_part *part = b->part;
    bool same = b->view && !strcmp(b->view, rule->view) &&
                (rule->repeat != K3_REPEAT_BLOCK || b->view_index == index);
    if (same)
        return &part->views[part->view_count - 1];
    if (part->view_count == part->view_cap) {
        uint32_t cap = part->view_cap ? part->view_cap * 2 : 32;
        struct k3_view *grown = realloc(part->views, cap * sizeof *grown);
        if (!grown)
            return NULL;
        part->views = grown;
        part->view_cap = cap;
    }
    struct k3_view *view = &part->views[part->view_count++];
    memset(view, 0, sizeof *view);
    k3_rule_name(rule->view, b->layer, index, view->name, sizeof view->name);
    view->dtype = rule->dtype;
    view->begin_offset = b->cursor;
    b->view = rule->view;
    b->view_index = index;
    return view;
}

/* Shape of a slice: dimension 0 counts its rows, dimension 1 shrinks with the columns. */
static void slice_shape(const struct k3_config *config, const struct k3_rule *rule,
                        const struct k3_slice *slice, uint64_t shape[4])
{
    for (unsigned d = 0; d < rule->dim_count; d++)
        shape[d] = config->value[rule->dim[d]];
    shape[0] = slice->row_count;
    if (rule->split == K3_SPLIT_COLUMNS)
        shape[1] = shape[1] * slice->column_bytes / slice->row_bytes;
}

/* Let a tensor join its view's shape: experts count in dimension 0, rows of fused tensors add up.
 */
static void grow_view(struct k3_view *view, const struct k3_config *config,
                      const struct k3_rule *rule, const struct k3_entry *entry)
{
    uint64_t shape[4];
    slice_shape(config, rule, &entry->slice, shape);
    bool fresh = view->dim_count == 0;
    if (rule->repeat == K3_REPEAT_EXPERT) {
        if (fresh ||
            entry->index != view->shape[3]) { /* shape[3] is free here: the last expert seen */
            view->shape[0]++;
            view->shape[3] = entry->index;
            view->shape[1] = 0; /* rows are summed anew for each expert, with the same result */
        }
        view->shape[1] += shape[0];
        view->shape[2] = shape[1];
        view->dim_count = 3;
    } else {
        view->dim_count = rule->dim_count;
        uint64_t rows = fresh ? 0 : view->shape[0];
        memcpy(view->shape, shape, rule->dim_count * sizeof shape[0]);
        view->shape[0] += rows;
    }
    view->end_offset = entry->begin_offset + entry->bytes;
}

static int place_tensor(struct builder *b, uint32_t r, uint32_t index, const struct k3_slice *slice)
{
    const struct k3_config *config = &b->plan->config;
    const struct k3_rule *rule = &config->model->rules[r];
    bool new_group = b->group != rule->group || (rule->flags & K3_RULE_OWN_GROUP);
    uint64_t start = b->cursor;
    if (new_group)
        start = k3_align_up(start, GROUP_ALIGN);
    else if (rule->flags & K3_RULE_SMALL)
        start = k3_align_up(start, SMALL_ALIGN);
    int rc = pad_to(b, start);
    if (rc)
        return rc;
    if (new_group)
        b->view = NULL; /* no view leaves its group */
    b->group = rule->group;
    struct k3_view *view = view_for(b, rule, index);
    struct k3_entry *entry = view ? new_entry(b) : NULL;
    if (!entry)
        return no_memory(b);
    entry->begin_offset = b->cursor;
    entry->bytes = slice->row_count * slice->column_bytes;
    entry->slice = *slice;
    entry->slot = b->plan->rule_slot[r] + b->layer * k3_rule_repeat_count(config, rule) + index;
    entry->rule = (uint16_t)r;
    entry->index = index;
    b->cursor += entry->bytes;
    grow_view(view, config, rule, entry);
    if (!(rule->flags & K3_RULE_PAD_ROWS))
        return 0;
    uint64_t rows = k3_align_up(view->shape[0], KDA_ROW_ALIGN) - view->shape[0];
    view->shape[0] += rows;
    view->end_offset += rows * slice->row_bytes;
    return pad_to(b, b->cursor + rows * slice->row_bytes);
}

static bool in_part(const struct k3_config *config, const struct k3_rule *rule, uint32_t part)
{
    if (part == 0)
        return rule->scope == K3_SCOPE_FIRST;
    if (part == config->layer_count + 1)
        return rule->scope == K3_SCOPE_LAST;
    return rule->scope != K3_SCOPE_FIRST && rule->scope != K3_SCOPE_LAST &&
           k3_rule_applies(config, rule, part - 1);
}

/* True when a stage holds a part at all. */
static bool stage_has(const struct k3_config *config, const struct k3_layout *layout,
                      const struct k3_place *place, uint32_t part)
{
    if (part == 0)
        return place->p == 0;
    if (part == config->layer_count + 1)
        return place->p == layout->pp - 1;
    return part - 1 >= place->layer_begin && part - 1 < place->layer_end;
}

bool k3_layout_has_part(const struct k3_config *config, const struct k3_layout *layout,
                        uint32_t rank, uint32_t part)
{
    struct k3_place place;
    k3_layout_place(layout, rank, &place);
    return stage_has(config, layout, &place, part);
}

/* End of the run that begins at rule r: rows of one group and one repeat. */
static uint32_t run_end(const struct k3_model *model, uint32_t r)
{
    const struct k3_rule *first = &model->rules[r];
    uint32_t end = r + 1;
    while (first->repeat != K3_REPEAT_NONE && end < model->rule_count &&
           model->rules[end].group == first->group && model->rules[end].repeat == first->repeat &&
           model->rules[end].scope == first->scope)
        end++;
    return end;
}

int k3_part_build(const struct k3_plan *plan, uint32_t rank, uint32_t part, struct k3_part *out,
                  struct k3_err *err)
{
    const struct k3_model *model = plan->config.model;
    struct builder b = {.plan = plan, .part = out, .err = err, .layer = part ? part - 1 : 0};
    int rc = 0;
    memset(out, 0, sizeof *out);
    out->rank = rank;
    out->part = part;
    k3_layout_place(&plan->layout, rank, &b.place);
    if (!stage_has(&plan->config, &plan->layout, &b.place, part))
        return 0;
    if (part == 0 || part == plan->config.layer_count + 1)
        b.layer = 0;
    for (uint32_t r = 0, end; r < model->rule_count && !rc; r = end) {
        end = run_end(model, r);
        if (!in_part(&plan->config, &model->rules[r], part))
            continue;
        uint32_t repeats = k3_rule_repeat_count(&plan->config, &model->rules[r]);
        for (uint32_t index = 0; index < repeats && !rc; index++)
            for (uint32_t k = r; k < end && !rc; k++) {
                struct k3_slice slice;
                if (k3_layout_slice(&plan->layout, &plan->config, &model->rules[k], index, &b.place,
                                    &slice))
                    rc = place_tensor(&b, k, index, &slice);
            }
    }
    if (!rc)
        rc = pad_to(&b, k3_align_up(b.cursor, K3_UNIT_BYTES));
    for (uint32_t v = 0; v < out->view_count; v++)
        if (out->views[v].dim_count < 4)
            out->views[v].shape[3] = 0;
    out->data_bytes = b.cursor;
    if (rc)
        k3_part_fini(out);
    return rc;
}

void k3_part_fini(struct k3_part *part)
{
    free(part->entries);
    free(part->views);
    memset(part, 0, sizeof *part);
}

/* ---- header ---- */

static void put_views(const struct k3_part *part, struct k3_st_out *out)
{
    for (uint32_t v = 0; v < part->view_count; v++) {
        const struct k3_view *view = &part->views[v];
        char key[16 + K3_VIEW_NAME_BYTES], value[160];
        int used = snprintf(value, sizeof value, "%s;", k3_dtype_name(view->dtype));
        for (unsigned d = 0; d < view->dim_count; d++)
            used += snprintf(value + used, sizeof value - (size_t)used, "%s%llu", d ? "," : "",
                             (unsigned long long)view->shape[d]);
        snprintf(value + used, sizeof value - (size_t)used, ";%llu;%llu",
                 (unsigned long long)view->begin_offset, (unsigned long long)view->end_offset);
        snprintf(key, sizeof key, "k3.view.%s", view->name);
        k3_st_out_meta(out, key, value);
    }
}

static void put_entry(const struct k3_plan *plan, const struct k3_part *part,
                      const struct k3_entry *entry, struct k3_st_out *out)
{
    char name[K3_ST_NAME_BYTES_MAX + 1];
    struct k3_st_tensor tensor = {.name = name,
                                  .begin_offset = entry->begin_offset,
                                  .end_offset = entry->begin_offset + entry->bytes};
    if (entry->slot == K3_SLOT_NONE) {
        snprintf(name, sizeof name, "k3.pad.%u", entry->index);
        tensor.dtype = K3_U8;
        tensor.dim_count = 1;
        tensor.shape[0] = entry->bytes;
    } else {
        const struct k3_rule *rule = &plan->config.model->rules[entry->rule];
        k3_rule_name(rule->name, part->part ? part->part - 1 : 0, entry->index, name, sizeof name);
        tensor.dtype = rule->dtype;
        tensor.dim_count = rule->dim_count;
        slice_shape(&plan->config, rule, &entry->slice, tensor.shape);
    }
    tensor.name_bytes = (uint32_t)strlen(name);
    k3_st_out_tensor(out, &tensor);
}

int k3_part_header(const struct k3_plan *plan, const struct k3_part *part, struct k3_text *text,
                   struct k3_err *err)
{
    struct k3_st_out out;
    char value[K3_HEX_BYTES];
    k3_st_out_begin(&out, text);
    k3_st_out_meta(&out, "k3.format", "0");
    snprintf(value, sizeof value, "%u", part->part);
    k3_st_out_meta(&out, "k3.part", value);
    k3_hex_encode(plan->digest, K3_DIGEST_BYTES, value);
    k3_st_out_meta(&out, "k3.plan", value);
    snprintf(value, sizeof value, "%u", part->rank);
    k3_st_out_meta(&out, "k3.rank", value);
    put_views(part, &out);
    for (uint32_t e = 0; e < part->entry_count; e++)
        put_entry(plan, part, &part->entries[e], &out);
    return k3_st_out_end(&out, K3_UNIT_BYTES, err);
}

/* Decimal without leading zeros, ended by `stop`; advances behind it. */
static bool view_number(const char **at, char stop, uint64_t *out)
{
    const char *p = *at;
    uint64_t value = 0;
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
        return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (!k3_mul_fits(value, 10, &value) || !k3_add_fits(value, (uint64_t)(*p - '0'), &value))
            return false;
    if (*p != stop)
        return false;
    *at = *p ? p + 1 : p;
    *out = value;
    return true;
}

int k3_view_decode(const char *key, const char *value, struct k3_view *view, struct k3_err *err)
{
    static const char prefix[] = "k3.view.";
    memset(view, 0, sizeof *view);
    enum k3_dtype dtype;
    const char *semicolon = strchr(value, ';');
    if (strncmp(key, prefix, sizeof prefix - 1) ||
        strlen(key) - (sizeof prefix - 1) >= sizeof view->name || !key[sizeof prefix - 1] ||
        !semicolon || !k3_dtype_find(value, (size_t)(semicolon - value), &dtype))
        return k3_fail(err, K3_EFORMAT, "view %.100s: not of the form DTYPE;d0,d1;begin;end", key);
    snprintf(view->name, sizeof view->name, "%s", key + sizeof prefix - 1);
    view->dtype = (uint8_t)dtype;
    const char *at = semicolon + 1;
    uint64_t bits = k3_dtype_bits(dtype);
    bool good = true, last = false;
    while (good && !last && view->dim_count < 4) {
        uint64_t *dim = &view->shape[view->dim_count++];
        last = !view_number(&at, ',', dim);
        good = !last || view_number(&at, ';', dim);
        good = good && k3_mul_fits(bits, *dim, &bits);
    }
    good = good && last && view_number(&at, ';', &view->begin_offset) &&
           view_number(&at, 0, &view->end_offset) && view->begin_offset <= view->end_offset &&
           bits % 8 == 0 && view->end_offset - view->begin_offset == bits / 8;
    if (!good)
        return k3_fail(err, K3_EFORMAT, "view %.100s: %.100s: numbers do not describe its bytes",
                       key, value);
    return 0;
}

/* ---- sizes ---- */

/* Add one part to the sums; the same walk as k3_part_build with multiplication in place of the
 * loops. */
static uint64_t part_sizes(const struct k3_config *config, const struct k3_layout *layout,
                           const struct k3_place *place, uint32_t part, struct k3_rank_sizes *sizes)
{
    uint64_t cursor = 0, group_begin = 0;
    uint8_t group = 0;
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        struct k3_slice slice;
        uint32_t first = 0, count = k3_rule_repeat_count(config, rule);
        if (rule->role == K3_ROLE_EXPERTS && layout->experts_ep) {
            count /= place->g_count;
            first = count * place->g;
        }
        if (!in_part(config, rule, part) ||
            !k3_layout_slice(layout, config, rule, first, place, &slice))
            continue;
        uint64_t bytes = slice.row_count * slice.column_bytes;
        if (rule->group != group || (rule->flags & K3_RULE_OWN_GROUP))
            group_begin = cursor = k3_align_up(cursor, GROUP_ALIGN);
        group = rule->group;
        if (rule->flags & K3_RULE_OWN_GROUP)
            cursor += k3_align_up(bytes, GROUP_ALIGN) * count;
        else if (rule->flags & K3_RULE_SMALL)
            cursor += k3_align_up(bytes, SMALL_ALIGN) * count;
        else
            cursor += bytes * count;
        sizes->read_bytes += bytes * count;
        sizes->role_bytes[rule->role] += bytes * count;
        if (slice.copy_count > 1)
            sizes->replicated_bytes += bytes * count;
        if (rule->flags & K3_RULE_PAD_ROWS)
            cursor = group_begin +
                     k3_align_up((cursor - group_begin) / slice.row_bytes, KDA_ROW_ALIGN) *
                         slice.row_bytes;
    }
    return k3_align_up(cursor, K3_UNIT_BYTES);
}

void k3_rank_sizes(const struct k3_config *config, const struct k3_layout *layout, uint32_t rank,
                   struct k3_rank_sizes *sizes)
{
    struct k3_place place;
    memset(sizes, 0, sizeof *sizes);
    k3_layout_place(layout, rank, &place);
    for (uint32_t part = 0; part < k3_config_part_count(config); part++) {
        if (!stage_has(config, layout, &place, part))
            continue;
        uint64_t bytes = part_sizes(config, layout, &place, part, sizes);
        sizes->image_bytes += bytes;
        sizes->part_count += bytes != 0;
    }
}
