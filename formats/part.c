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

#define GROUP_ALIGN 4096u /* FORMAT.md 1 */
#define SMALL_ALIGN 256u

/* A part being laid out. */
struct builder {
    const struct k3_plan *plan;
    struct k3_part *part;
    struct k3_err *err;
    struct k3_place place;
    uint64_t cursor; /* end of what is laid out */
    uint32_t layer;
    uint32_t pad_count;
    bool is_begun;       /* a tensor is laid out */
    bool has_view;       /* the last view is open for what joins it */
    struct k3_row last;  /* row of the last tensor */
    uint32_t view_index; /* block of the open view */
    uint64_t fused_rows; /* rows of the codes of the open view, whatever is laid out of it */
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

/* Does this tensor join the view of the one before it? */
static bool joins(const struct builder *b, const struct k3_row *row, uint32_t index)
{
    const struct k3_config *config = &b->plan->config;
    return b->has_view && k3_row_same_view(config, &b->last, row) &&
           (config->model->rules[row->rule].repeat != K3_REPEAT_BLOCK || b->view_index == index);
}

/* Open a view for the tensor about to be laid out, or let it join the open one. */
static struct k3_view *view_for(struct builder *b, const struct k3_row *row, uint32_t index,
                                uint8_t dtype)
{
    struct k3_part *part = b->part;
    if (joins(b, row, index))
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
    char pattern[K3_ROW_NAME_BYTES];
    memset(view, 0, sizeof *view);
    k3_row_view(&b->plan->config, row, pattern);
    k3_rule_name(pattern, b->layer, index, view->name, sizeof view->name);
    view->dtype = dtype;
    view->begin_offset = b->cursor;
    b->has_view = true;
    b->view_index = index;
    b->fused_rows = 0;
    return view;
}

/* Let a tensor join its view's shape: experts count in dimension 0, rows of fused tensors add up.
 */
static void grow_view(struct k3_view *view, const struct k3_rule *rule,
                      const struct k3_entry *entry, const struct k3_row_dims *dims)
{
    uint64_t shape[4];
    unsigned dim_count = dims->dim_count;
    memcpy(shape, dims->shape, sizeof shape);
    if (entry->row.what == K3_ROW_SHAPE) { /* numbers [2] of one matrix: a row of the view */
        shape[1] = shape[0];
        shape[0] = 1;
        dim_count = 2;
    }
    bool fresh = view->dim_count == 0;
    if (rule->repeat == K3_REPEAT_EXPERT) {
        if (fresh ||
            entry->index != view->shape[3]) { /* shape[3] is free here: the last expert seen */
            view->shape[0]++;
            view->shape[3] = entry->index;
            view->shape[1] = 0; /* rows are summed anew for each expert, with the same result */
        }
        view->shape[1] += shape[0];
        view->shape[2] = dim_count > 1 ? shape[1] : 0;
        view->dim_count = (uint8_t)(dim_count + 1);
    } else {
        view->dim_count = (uint8_t)dim_count;
        uint64_t rows = fresh ? 0 : view->shape[0];
        memcpy(view->shape, shape, dim_count * sizeof shape[0]);
        view->shape[0] += rows;
    }
    view->end_offset = entry->begin_offset + entry->bytes;
}

/* Where the tensor begins. */
static uint64_t start_of(const struct builder *b, const struct k3_row *row, uint32_t index,
                         bool new_group)
{
    if (new_group)
        return k3_align_up(b->cursor, GROUP_ALIGN);
    bool is_dense = row->what >= K3_ROW_GLOBAL && joins(b, row, index);
    return row->is_small && !is_dense ? k3_align_up(b->cursor, SMALL_ALIGN) : b->cursor;
}

static int place_tensor(struct builder *b, const struct k3_row *row, uint32_t index,
                        const struct k3_slice *slice)
{
    const struct k3_config *config = &b->plan->config;
    const struct k3_rule *rule = &config->model->rules[row->rule];
    bool new_group = !b->is_begun || b->last.group != row->group || row->is_own;
    struct k3_row_dims dims;
    int rc = pad_to(b, start_of(b, row, index, new_group));
    if (rc)
        return rc;
    if (new_group)
        b->has_view = false; /* no view leaves its group */
    k3_row_dims(config, row, slice, &dims);
    struct k3_view *view = view_for(b, row, index, dims.dtype);
    struct k3_entry *entry = view ? new_entry(b) : NULL;
    if (!entry)
        return no_memory(b);
    entry->begin_offset = b->cursor;
    entry->bytes = dims.bytes;
    entry->slice = *slice;
    entry->slot = b->plan->rule_slot[row->rule] + b->layer * k3_rule_repeat_count(config, rule) +
                  index;
    entry->row = *row;
    entry->index = index;
    b->is_begun = true;
    b->last = *row;
    b->cursor += entry->bytes;
    b->fused_rows += slice->row_count;
    grow_view(view, rule, entry, &dims);
    uint64_t rows = k3_row_pad(config, row, slice, b->fused_rows);
    view->shape[0] += rows;
    view->end_offset += rows * dims.row_bytes;
    return pad_to(b, b->cursor + rows * dims.row_bytes);
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

/* End of the rows that are repeated together with row r. */
static uint32_t run_end(const struct k3_row *rows, uint32_t count, uint32_t r)
{
    uint32_t end = r + 1;
    while (end < count && rows[end].run == rows[r].run)
        end++;
    return end;
}

/* The rows [r, end) of one run, for each expert or block. */
static int place_run(struct builder *b, const struct k3_row *rows, uint32_t r, uint32_t end)
{
    const struct k3_plan *plan = b->plan;
    const struct k3_rule *rules = plan->config.model->rules;
    uint32_t repeats = k3_rule_repeat_count(&plan->config, &rules[rows[r].rule]);
    int rc = 0;
    for (uint32_t index = 0; index < repeats && !rc; index++)
        for (uint32_t k = r; k < end && !rc; k++) {
            struct k3_slice slice;
            if (k3_layout_slice(&plan->layout, &plan->config, &rules[rows[k].rule], index,
                                &b->place, &slice))
                rc = place_tensor(b, &rows[k], index, &slice);
        }
    return rc;
}

int k3_part_build(const struct k3_plan *plan, uint32_t rank, uint32_t part, struct k3_part *out,
                  struct k3_err *err)
{
    struct builder b = {.plan = plan, .part = out, .err = err, .layer = part ? part - 1 : 0};
    struct k3_row rows[K3_ROW_COUNT_MAX];
    int rc = 0;
    memset(out, 0, sizeof *out);
    out->rank = rank;
    out->part = part;
    k3_layout_place(&plan->layout, rank, &b.place);
    if (!stage_has(&plan->config, &plan->layout, &b.place, part))
        return 0;
    if (part == 0 || part == plan->config.layer_count + 1)
        b.layer = 0;
    uint32_t count = k3_rows_build(&plan->config, &plan->policy, part, rows);
    for (uint32_t r = 0, end; r < count && !rc; r = end) {
        end = run_end(rows, count, r);
        rc = place_run(&b, rows, r, end);
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

void k3_entry_name(const struct k3_plan *plan, const struct k3_part *part,
                   const struct k3_entry *entry, char *name, size_t bytes)
{
    char pattern[K3_ROW_NAME_BYTES];
    if (entry->slot == K3_SLOT_NONE) {
        snprintf(name, bytes, "k3.pad.%u", entry->index);
        return;
    }
    k3_row_name(&plan->config, &entry->row, pattern);
    k3_rule_name(pattern, part->part ? part->part - 1 : 0, entry->index, name, bytes);
}

static void put_entry(const struct k3_plan *plan, const struct k3_part *part,
                      const struct k3_entry *entry, struct k3_st_out *out)
{
    char name[K3_ST_NAME_BYTES_MAX + 1];
    struct k3_st_tensor tensor = {.name = name,
                                  .begin_offset = entry->begin_offset,
                                  .end_offset = entry->begin_offset + entry->bytes};
    k3_entry_name(plan, part, entry, name, sizeof name);
    if (entry->slot == K3_SLOT_NONE) {
        tensor.dtype = K3_U8;
        tensor.dim_count = 1;
        tensor.shape[0] = entry->bytes;
    } else {
        struct k3_row_dims dims;
        k3_row_dims(&plan->config, &entry->row, &entry->slice, &dims);
        tensor.dtype = dims.dtype;
        tensor.dim_count = dims.dim_count;
        memcpy(tensor.shape, dims.shape, dims.dim_count * sizeof dims.shape[0]);
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

struct sizer {
    const struct k3_config *config;
    const struct k3_layout *layout;
    const struct k3_policy *policy;
    struct k3_place place;
    struct k3_rank_sizes *sizes;
    uint64_t cursor;
    uint64_t fused_rows; /* as in struct builder */
};

/* One row, all its experts or blocks at once; before: the row in front of it, NULL: none. */
static void add_row(struct sizer *s, const struct k3_row *row, const struct k3_row *before)
{
    const struct k3_config *config = s->config;
    const struct k3_rule *rule = &config->model->rules[row->rule];
    struct k3_rank_sizes *sizes = s->sizes;
    struct k3_slice slice;
    struct k3_row_dims dims;
    uint32_t first = 0, count = k3_rule_repeat_count(config, rule);
    if (rule->role == K3_ROLE_EXPERTS && s->layout->experts_ep) {
        count /= s->place.g_count;
        first = count * s->place.g;
    }
    if (!k3_layout_slice(s->layout, config, rule, first, &s->place, &slice))
        return;
    k3_row_dims(config, row, &slice, &dims);
    bool new_group = !before || before->group != row->group || row->is_own;
    bool is_joined = before && !new_group && k3_row_same_view(config, before, row);
    bool is_dense = row->what >= K3_ROW_GLOBAL && rule->repeat != K3_REPEAT_BLOCK;
    uint64_t align = row->is_own ? GROUP_ALIGN : row->is_small && !is_dense ? SMALL_ALIGN : 1;
    if (new_group)
        s->cursor = k3_align_up(s->cursor, GROUP_ALIGN);
    else if (row->is_small && !(is_dense && is_joined))
        s->cursor = k3_align_up(s->cursor, SMALL_ALIGN);
    s->cursor += k3_align_up(dims.bytes, align) * count;
    s->fused_rows = (is_joined ? s->fused_rows : 0) + slice.row_count;
    s->cursor += k3_row_pad(config, row, &slice, s->fused_rows) * dims.row_bytes;
    sizes->read_bytes += dims.bytes * count;
    sizes->role_bytes[rule->role] += dims.bytes * count;
    /* A global scale and a shape are those of the whole matrix, or of equal cuts of it. */
    bool is_whole = row->what >= K3_ROW_GLOBAL && rule->split != K3_SPLIT_REPLICATE &&
                    !(rule->role == K3_ROLE_EXPERTS && s->layout->experts_ep);
    if (slice.copy_count > 1 || (is_whole && (slice.row_count < config->value[rule->dim[0]] ||
                                              slice.column_bytes < slice.row_bytes)))
        sizes->replicated_bytes += dims.bytes * count;
}

/* Add one part to the sums; the same walk as k3_part_build with multiplication in place of the
 * loops. */
static uint64_t part_sizes(struct sizer *s, uint32_t part)
{
    struct k3_row rows[K3_ROW_COUNT_MAX];
    uint32_t count = k3_rows_build(s->config, s->policy, part, rows);
    const struct k3_row *before = NULL;
    s->cursor = 0;
    for (uint32_t r = 0; r < count; r++) {
        uint64_t read = s->sizes->read_bytes;
        add_row(s, &rows[r], before);
        if (s->sizes->read_bytes != read)
            before = &rows[r]; /* else the rank holds nothing of it */
    }
    return k3_align_up(s->cursor, K3_UNIT_BYTES);
}

void k3_rank_sizes(const struct k3_config *config, const struct k3_layout *layout,
                   const struct k3_policy *policy, uint32_t rank, struct k3_rank_sizes *sizes)
{
    struct sizer s = {.config = config, .layout = layout, .policy = policy, .sizes = sizes};
    memset(sizes, 0, sizeof *sizes);
    k3_layout_place(layout, rank, &s.place);
    for (uint32_t part = 0; part < k3_config_part_count(config); part++) {
        if (!stage_has(config, layout, &s.place, part))
            continue;
        uint64_t bytes = part_sizes(&s, part);
        sizes->image_bytes += bytes;
        sizes->part_count += bytes != 0;
    }
}
