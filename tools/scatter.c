/* Purpose: the cut of one item: which source bytes go where.
 * Owns: the parts of the item and the table slot x target -> entry.
 * Threads: constant after open; any.
 * Errors: K3_ENOMEM, K3_ELIMIT.
 * Invariant: for any run of a tensor, the places in the targets that hold the tensor's slices tile
 * the run, as often as there are copies; column slices of consecutive rows are consecutive in the
 * target. */
#include "scatter.h"

#include <stdlib.h>
#include <string.h>

#define NO_ENTRY UINT32_MAX

static int add_target(struct k3_scatter *scatter, uint32_t rank, uint32_t part, struct k3_err *err)
{
    struct k3_target target = {0};
    struct k3_text header;
    int rc = k3_part_build(scatter->ckpt->plan, rank, part, &target.part, err);
    if (rc || target.part.data_bytes == 0) {
        k3_part_fini(&target.part);
        return rc;
    }
    k3_text_init(&header);
    rc = k3_part_header(scatter->ckpt->plan, &target.part, &header, err);
    uint32_t n = scatter->target_count;
    struct k3_target *targets = rc ? NULL : realloc(scatter->targets, (n + 1) * sizeof *targets);
    if (targets)
        scatter->targets = targets;
    struct k3_text *headers = targets ? realloc(scatter->headers, (n + 1) * sizeof *headers) : NULL;
    if (headers)
        scatter->headers = headers;
    if (!headers) {
        if (!rc)
            rc = k3_fail(err, K3_ENOMEM, "no memory for the parts of item %u", scatter->item);
        k3_part_fini(&target.part);
        k3_text_fini(&header);
        return rc;
    }
    target.header_bytes = header.bytes;
    target.file_bytes = header.bytes + target.part.data_bytes;
    targets[n] = target;
    headers[n] = header;
    scatter->target_count++;
    return 0;
}

/* The entries of one target into the tables. */
static void fill_target(struct k3_scatter *scatter, uint32_t t)
{
    const struct k3_part *part = &scatter->targets[t].part;
    for (uint32_t e = 0; e < part->entry_count; e++) {
        const struct k3_entry *entry = &part->entries[e];
        if (entry->slot == K3_SLOT_NONE)
            continue;
        uint64_t cell = (uint64_t)scatter->local[entry->slot] * scatter->target_count + t;
        if (entry->row.what == K3_ROW_KEPT)
            scatter->entries[cell] = e;
        else
            scatter->casts[cell].entry[entry->row.what - K3_ROW_WEIGHT] = e;
    }
}

/* Number the item's tensors and fill the tables. */
static int fill_table(struct k3_scatter *scatter, struct k3_err *err)
{
    const struct k3_ckpt *ckpt = scatter->ckpt;
    const struct k3_item *item = &ckpt->plan->items[scatter->item];
    uint64_t count = 0;
    scatter->local = malloc(ckpt->plan->slot_count * sizeof *scatter->local);
    if (!scatter->local)
        return k3_fail(err, K3_ENOMEM, "no memory for the table of item %u", scatter->item);
    for (uint32_t f = 0; f < item->file_count; f++) {
        const uint32_t *begin = &ckpt->file_slot_begin[item->files[f]];
        for (uint32_t s = begin[0]; s < begin[1]; s++)
            scatter->local[ckpt->slots[s]] = (uint32_t)count++;
    }
    uint64_t cells = count * scatter->target_count;
    scatter->entries = malloc((cells ? cells : 1) * sizeof *scatter->entries);
    if (!scatter->entries)
        return k3_fail(err, K3_ENOMEM, "no memory for the table of item %u", scatter->item);
    memset(scatter->entries, 0xff, (cells ? cells : 1) * sizeof *scatter->entries); /* NO_ENTRY */
    bool has_casts = !k3_policy_is_verbatim(&ckpt->plan->policy);
    if (has_casts) {
        scatter->casts = malloc((cells ? cells : 1) * sizeof *scatter->casts);
        if (!scatter->casts)
            return k3_fail(err, K3_ENOMEM, "no memory for the table of item %u", scatter->item);
        memset(scatter->casts, 0xff, (cells ? cells : 1) * sizeof *scatter->casts);
    }
    for (uint32_t t = 0; t < scatter->target_count; t++)
        fill_target(scatter, t);
    return 0;
}

int k3_scatter_open(const struct k3_ckpt *ckpt, uint32_t item, struct k3_scatter **out,
                    struct k3_err *err)
{
    struct k3_scatter *scatter = calloc(1, sizeof *scatter);
    if (!scatter)
        return k3_fail(err, K3_ENOMEM, "no memory for item %u", item);
    scatter->ckpt = ckpt;
    scatter->item = item;
    const struct k3_item *it = &ckpt->plan->items[item];
    int rc = 0;
    for (uint32_t rank = 0; rank < k3_layout_world(&ckpt->plan->layout) && !rc; rank++)
        for (uint32_t p = 0; p < it->part_count && !rc; p++)
            if (k3_ranks_has(&ckpt->ranks, rank))
                rc = add_target(scatter, rank, it->parts[p], err);
    if (!rc)
        rc = fill_table(scatter, err);
    if (rc)
        k3_scatter_close(scatter);
    else
        *out = scatter;
    return rc;
}

void k3_scatter_close(struct k3_scatter *scatter)
{
    if (!scatter)
        return;
    for (uint32_t t = 0; t < scatter->target_count; t++) {
        k3_part_fini(&scatter->targets[t].part);
        k3_text_fini(&scatter->headers[t]);
    }
    free(scatter->targets);
    free(scatter->headers);
    free(scatter->local);
    free(scatter->entries);
    free(scatter->casts);
    free(scatter);
}

bool k3_scatter_next(const struct k3_scatter *scatter, struct k3_range *range, struct k3_run *run,
                     uint64_t *data_at)
{
    const struct k3_ckpt *ckpt = scatter->ckpt;
    const uint64_t data_begin = ckpt->plan->sources[range->file].header_bytes;
    const uint64_t end = range->offset + range->bytes;
    const uint32_t *begin = &ckpt->file_slot_begin[range->file];
    if (range->goes_on) {
        range->goes_on = false; /* the cursor stays on that tensor for the next range */
        return false;
    }
    for (; range->cursor < begin[1] - begin[0]; range->cursor++) {
        uint32_t slot = ckpt->slots[begin[0] + range->cursor];
        const struct k3_tensor_place *place = &ckpt->plan->places[slot];
        uint64_t first = data_begin + place->begin_offset, last = first + place->bytes;
        if (last <= range->offset || place->bytes == 0)
            continue;
        if (first >= end)
            return false;
        run->slot = slot;
        run->tensor_bytes = place->bytes;
        run->begin = first < range->offset ? range->offset - first : 0;
        run->end = last > end ? end - first : place->bytes;
        *data_at = first + run->begin - range->offset;
        range->goes_on = last > end;
        range->cursor += !range->goes_on;
        return true;
    }
    return false;
}

const struct k3_cast_cell *k3_scatter_cast(const struct k3_scatter *scatter, uint32_t slot,
                                           uint32_t target)
{
    return &scatter->casts[(uint64_t)scatter->local[slot] * scatter->target_count + target];
}

/* Bytes of a slice that lie before byte x of the tensor: the target offset where byte x, if in the
 * slice, lies. */
static uint64_t bytes_before(const struct k3_slice *slice, uint64_t x)
{
    uint64_t row = x / slice->row_bytes, column = x % slice->row_bytes;
    if (row < slice->row_begin)
        return 0;
    if (row >= slice->row_begin + slice->row_count)
        return slice->row_count * slice->column_bytes;
    uint64_t in_row = column < slice->column_begin ? 0 : column - slice->column_begin;
    if (in_row > slice->column_bytes)
        in_row = slice->column_bytes;
    return (row - slice->row_begin) * slice->column_bytes + in_row;
}

void k3_scatter_place(const struct k3_scatter *scatter, const struct k3_run *run, uint32_t target,
                      struct k3_place_run *place)
{
    const struct k3_target *t = &scatter->targets[target];
    uint32_t e =
        scatter->entries[(uint64_t)scatter->local[run->slot] * scatter->target_count + target];
    memset(place, 0, sizeof *place);
    if (e == NO_ENTRY)
        return;
    const struct k3_entry *entry = &t->part.entries[e];
    const struct k3_slice *slice = &entry->slice;
    uint64_t begin = bytes_before(slice, run->begin), end = bytes_before(slice, run->end);
    place->slice = slice;
    place->bytes = end - begin;
    place->file_offset = t->header_bytes + entry->begin_offset + begin;
    place->is_straight = slice->column_bytes == slice->row_bytes;
    uint64_t slice_begin = slice->row_begin * slice->row_bytes;
    place->first = run->begin < slice_begin ? slice_begin - run->begin : 0;
}

/* Walk the rows of a column slice that a run touches; copy between run data and packed bytes. */
static void move_columns(const struct k3_run *run, const struct k3_slice *slice, uint8_t *run_data,
                         uint8_t *packed, bool to_packed)
{
    uint64_t row = run->begin / slice->row_bytes, last_row = (run->end - 1) / slice->row_bytes;
    if (row < slice->row_begin)
        row = slice->row_begin;
    if (last_row >= slice->row_begin + slice->row_count)
        last_row = slice->row_begin + slice->row_count - 1;
    for (; row <= last_row; row++) {
        uint64_t from = row * slice->row_bytes + slice->column_begin,
                 to = from + slice->column_bytes;
        if (from < run->begin)
            from = run->begin;
        if (to > run->end)
            to = run->end;
        if (from >= to)
            continue;
        if (to_packed)
            memcpy(packed, run_data + (from - run->begin), to - from);
        else
            memcpy(run_data + (from - run->begin), packed, to - from);
        packed += to - from;
    }
}

void k3_gather_columns(const struct k3_run *run, const struct k3_slice *slice,
                       const uint8_t *run_data, uint8_t *packed)
{
    move_columns(run, slice, (uint8_t *)(uintptr_t)run_data, packed, true);
}

void k3_spread_columns(const struct k3_run *run, const struct k3_slice *slice,
                       const uint8_t *packed, uint8_t *run_data)
{
    move_columns(run, slice, run_data, (uint8_t *)(uintptr_t)packed, false);
}

bool k3_scatter_is_first(const struct k3_scatter *scatter, uint32_t slot, uint32_t target)
{
    const uint32_t *row = &scatter->entries[(uint64_t)scatter->local[slot] * scatter->target_count];
    if (row[target] == NO_ENTRY)
        return false;
    const struct k3_slice *mine = &scatter->targets[target].part.entries[row[target]].slice;
    for (uint32_t t = 0; t < target; t++) {
        if (row[t] == NO_ENTRY)
            continue;
        const struct k3_slice *other = &scatter->targets[t].part.entries[row[t]].slice;
        if (other->row_begin == mine->row_begin && other->column_begin == mine->column_begin)
            return false;
    }
    return true;
}

uint64_t k3_scatter_tail(const struct k3_scatter *scatter, uint32_t slot)
{
    const struct k3_plan *plan = scatter->ckpt->plan;
    uint32_t rule, layer, index;
    k3_plan_slot(plan, slot, &rule, &layer, &index);
    const struct k3_rule *r = &plan->config.model->rules[rule];
    if (!(r->flags & K3_RULE_STORED_LONGER))
        return plan->places[slot].bytes;
    return plan->config.value[r->dim[0]] * k3_dtype_bits(r->dtype) / 8;
}

/* Bytes of a tensor that the targets hold, each counted once. */
static uint64_t held_bytes(const struct k3_scatter *scatter, uint32_t slot)
{
    const uint64_t bytes = scatter->ckpt->plan->places[slot].bytes;
    const struct k3_run whole = {.slot = slot, .end = bytes, .tensor_bytes = bytes};
    uint64_t held = 0;
    for (uint32_t t = 0; t < scatter->target_count; t++) {
        struct k3_place_run place;
        if (!k3_scatter_is_first(scatter, slot, t))
            continue;
        k3_scatter_place(scatter, &whole, t, &place);
        held += place.bytes;
    }
    return held;
}

bool k3_scatter_is_whole(const struct k3_scatter *scatter)
{
    const struct k3_ckpt *ckpt = scatter->ckpt;
    const struct k3_item *item = &ckpt->plan->items[scatter->item];
    for (uint32_t f = 0; f < item->file_count; f++) {
        const uint32_t *begin = &ckpt->file_slot_begin[item->files[f]];
        for (uint32_t s = begin[0]; s < begin[1]; s++)
            if (held_bytes(scatter, ckpt->slots[s]) != k3_scatter_tail(scatter, ckpt->slots[s]))
                return false;
    }
    return true;
}
