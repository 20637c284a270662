/* Purpose: where the bytes of a part lie on the device: in the image, or in memory that the caller
 * bound view by view; copies to there, and the checks of what lies there.
 * Owns: the pieces of parts, the scratch units of a leg.
 * Threads: the thread of the leg; pieces are made at open.
 * Errors: K3_EUSAGE for what was bound wrongly, naming view and rank; K3_EDEVICE; K3_ENOMEM.
 * Invariants: pieces tile a data section in order; a unit in one piece is checked where it lies,
 * one in several is gathered from them, so what is checked is always the final memory. */
#include "load_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BIND_ALIGN 4096u

/* ---- binding ---- */

static int compare_names(const void *a, const void *b)
{
    const struct k3_load_bound *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return strcmp(x->name, y->name);
}

int k3_load_bounds_take(struct k3_load *load, const struct k3_load_bind *binds, uint32_t count,
                        struct k3_err *err)
{
    if (count == 0)
        return 0;
    load->bounds = calloc(count, sizeof *load->bounds);
    if (!load->bounds)
        return k3_fail(err, K3_ENOMEM, "no memory for %u bound views", count);
    for (uint32_t i = 0; i < count; i++) {
        const struct k3_load_bind *bind = &binds[i];
        if (!bind->view || !bind->data || (uintptr_t)bind->data % BIND_ALIGN)
            return k3_fail(err, K3_EUSAGE,
                           "bound view %.200s of rank %u: its address must be a multiple of %u",
                           bind->view ? bind->view : "(no name)", bind->rank, BIND_ALIGN);
        load->bounds[load->bound_count++] = (struct k3_load_bound){bind->view, bind->data,
                                                                   bind->bytes, bind->rank, false};
    }
    qsort(load->bounds, count, sizeof *load->bounds, compare_names);
    for (uint32_t i = 1; i < count; i++)
        if (compare_names(&load->bounds[i - 1], &load->bounds[i]) == 0)
            return k3_fail(err, K3_EUSAGE, "view %.200s of rank %u is bound twice",
                           load->bounds[i].name, load->bounds[i].rank);
    return 0;
}

static int find_bound(struct k3_load *load, uint32_t rank, const struct k3_view *view,
                      uint8_t **data, struct k3_err *err)
{
    const struct k3_load_bound wanted = {.name = view->name, .rank = rank};
    const uint64_t bytes = view->end_offset - view->begin_offset;
    struct k3_load_bound *bound = bsearch(&wanted, load->bounds, load->bound_count,
                                          sizeof *load->bounds, compare_names);
    if (!bound)
        return k3_fail(err, K3_EUSAGE,
                       "view %.200s of rank %u (%" PRIu64
                       " bytes) is not bound: bind every view of "
                       "the ranks, or none",
                       view->name, rank, bytes);
    if (bound->bytes != bytes)
        return k3_fail(err, K3_EUSAGE,
                       "view %.200s of rank %u has %" PRIu64 " bytes, %" PRIu64 " are bound to it",
                       view->name, rank, bytes, bound->bytes);
    bound->is_used = true;
    *data = bound->data;
    return 0;
}

int k3_load_bounds_check(const struct k3_load *load, struct k3_err *err)
{
    for (uint32_t i = 0; i < load->bound_count; i++)
        if (!load->bounds[i].is_used)
            return k3_fail(err, K3_EUSAGE,
                           "view %.200s of rank %u is bound, but it is not in this load",
                           load->bounds[i].name, load->bounds[i].rank);
    return 0;
}

/* ---- pieces ---- */

static int compare_pieces(const void *a, const void *b)
{
    const struct k3_load_piece *x = a, *y = b;
    return (x->begin_offset > y->begin_offset) - (x->begin_offset < y->begin_offset);
}

static void add_piece(struct k3_load_part *part, uint64_t begin, uint64_t end, uint8_t *data)
{
    if (begin < end)
        part->pieces[part->piece_count++] = (struct k3_load_piece){begin, end, data};
}

/* Views in order, pads between them. */
static int bind_part(struct k3_load *load, struct k3_load_part *part, struct k3_err *err)
{
    const uint64_t end = (uint64_t)part->unit_count * K3_UNIT_BYTES;
    struct k3_load_piece *views = calloc((size_t)part->view_count + 1, sizeof *views);
    part->pieces = calloc(2 * (size_t)part->view_count + 1, sizeof *part->pieces);
    int rc = views && part->pieces ? 0 : k3_fail(err, K3_ENOMEM, "no memory for bound views");
    for (uint32_t v = 0; v < part->view_count && !rc; v++) {
        const struct k3_view *view = &part->views[v];
        views[v].begin_offset = view->begin_offset;
        views[v].end_offset = view->end_offset;
        rc = find_bound(load, part->entry->rank, view, &views[v].data, err);
    }
    if (!rc)
        qsort(views, part->view_count, sizeof *views, compare_pieces);
    uint64_t at = 0;
    for (uint32_t v = 0; v < part->view_count && !rc; v++) {
        add_piece(part, at, views[v].begin_offset, NULL);
        add_piece(part, views[v].begin_offset, views[v].end_offset, views[v].data);
        at = views[v].end_offset;
    }
    if (!rc)
        add_piece(part, at, end, NULL);
    free(views);
    return rc;
}

int k3_load_part_place(struct k3_load *load, struct k3_load_part *part, uint8_t *target,
                       struct k3_err *err)
{
    part->target = target;
    if (load->bound_count)
        return bind_part(load, part, err);
    part->pieces = calloc(1, sizeof *part->pieces);
    if (!part->pieces)
        return k3_fail(err, K3_ENOMEM, "no memory for the place of a part");
    add_piece(part, 0, (uint64_t)part->unit_count * K3_UNIT_BYTES, target);
    return 0;
}

/* The piece in which an offset of the data section lies. */
static const struct k3_load_piece *piece_at(const struct k3_load_part *part, uint64_t offset)
{
    uint32_t low = 0, high = part->piece_count;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (part->pieces[mid].begin_offset <= offset)
            low = mid;
        else
            high = mid;
    }
    return &part->pieces[low];
}

void *k3_load_address(const struct k3_load_part *part, uint64_t offset)
{
    const struct k3_load_piece *piece = piece_at(part, offset);
    return piece->data ? piece->data + (offset - piece->begin_offset) : NULL;
}

/* ---- copies ---- */

int k3_load_copy_units(struct k3_load_leg *leg, uint32_t lane, const struct k3_load_units *units,
                       const uint8_t *source, struct k3_err *err)
{
    const uint64_t begin = (uint64_t)units->unit_begin * K3_UNIT_BYTES;
    const uint64_t end = begin + (uint64_t)units->unit_count * K3_UNIT_BYTES;
    int rc = 0;
    for (uint64_t at = begin; at < end && !rc;) {
        const struct k3_load_piece *piece = piece_at(units->part, at);
        uint64_t stop = piece->end_offset < end ? piece->end_offset : end;
        if (piece->data) {
            struct k3_dev_copy copy = {
                .target = piece->data + (at - piece->begin_offset),
                .source = source + (at - begin),
                .bytes = (size_t)(stop - at),
                .kind = K3_COPY_HOST_TO_DEV,
            };
            rc = k3_load_leg_copy(leg, lane, &copy, err);
        }
        at = stop;
    }
    return rc;
}

/* ---- checks ---- */

static int gather(struct k3_load_leg *leg, uint32_t lane, const struct k3_load_part *part,
                  uint32_t unit, uint8_t *scratch, struct k3_err *err)
{
    const uint64_t begin = (uint64_t)unit * K3_UNIT_BYTES, end = begin + K3_UNIT_BYTES;
    int rc = 0;
    for (uint64_t at = begin; at < end && !rc;) {
        const struct k3_load_piece *piece = piece_at(part, at);
        uint64_t stop = piece->end_offset < end ? piece->end_offset : end;
        struct k3_dev_copy copy = {
            .target = scratch + (at - begin),
            .source = piece->data ? piece->data + (at - piece->begin_offset) : leg->zeros,
            .bytes = (size_t)(stop - at),
            .kind = K3_COPY_DEV_TO_DEV,
        };
        rc = k3_load_leg_copy(leg, lane, &copy, err);
        at = stop;
    }
    return rc;
}

/* Operations of a lane run in order, so its scratch is free again behind each flush. */
static uint8_t *take_scratch(struct k3_load_leg *leg, uint32_t lane)
{
    uint64_t number = (uint64_t)lane * K3_LOAD_SCRATCH_UNITS + leg->batches[lane].scratch_count++;
    return leg->scratch + number * K3_UNIT_BYTES;
}

int k3_load_checks_flush(struct k3_load_leg *leg, uint32_t lane, struct k3_err *err)
{
    struct k3_load_batch *batch = &leg->batches[lane];
    int rc = 0;
    if (batch->check_count) {
        k3_load_trace_checks(leg, lane);
        rc = k3_load_leg_check(leg, lane, batch->checks, batch->check_count, err);
    }
    batch->check_count = 0;
    batch->unit_count = 0;
    batch->scratch_count = 0;
    return rc;
}

/* Does b lie right behind a in all three tables?  (Digests of two parts do not, though their data
 * may.) */
static bool goes_on(const struct k3_dev_check *a, const struct k3_dev_check *b)
{
    const size_t n = a->unit_count;
    return a->result + n == b->result && a->wanted + n * K3_DIGEST_BYTES == b->wanted &&
           (const uint8_t *)a->data + n * K3_UNIT_BYTES == b->data;
}

/* One unit: where it lies, joined to the check before where that goes on, or gathered. */
static int add_check(struct k3_load_leg *leg, uint32_t lane, const struct k3_load_part *part,
                     uint32_t unit, struct k3_err *err)
{
    struct k3_load_batch *batch = &leg->batches[lane];
    const uint64_t offset = (uint64_t)unit * K3_UNIT_BYTES;
    const struct k3_load_piece *piece = piece_at(part, offset);
    struct k3_dev_check check = {
        .wanted = part->digests + (uint64_t)unit * K3_DIGEST_BYTES,
        .result = part->results + unit,
        .unit_count = 1,
    };
    int rc = 0;
    if (piece->data && piece->end_offset - offset >= K3_UNIT_BYTES) {
        check.data = piece->data + (offset - piece->begin_offset);
    } else {
        if (batch->scratch_count == K3_LOAD_SCRATCH_UNITS)
            rc = k3_load_checks_flush(leg, lane, err);
        uint8_t *scratch = take_scratch(leg, lane);
        check.data = scratch;
        if (!rc)
            rc = gather(leg, lane, part, unit, scratch, err);
    }
    struct k3_dev_check *last = batch->check_count ? &batch->checks[batch->check_count - 1] : NULL;
    batch->unit_count++;
    if (last && goes_on(last, &check))
        last->unit_count++;
    else
        batch->checks[batch->check_count++] = check;
    return rc;
}

int k3_load_check_units(struct k3_load_leg *leg, uint32_t lane, const struct k3_load_units *units,
                        struct k3_err *err)
{
    int rc = 0;
    for (uint32_t u = 0; u < units->unit_count && !rc; u++)
        rc = add_check(leg, lane, units->part, units->unit_begin + u, err);
    return rc;
}

int k3_load_scratch_open(struct k3_load_leg *leg, struct k3_err *err)
{
    const uint64_t bytes = (uint64_t)leg->lane_count * K3_LOAD_SCRATCH_UNITS * K3_UNIT_BYTES;
    void *scratch = NULL, *zeros = NULL;
    if (!leg->load->bound_count)
        return 0;
    int rc = leg->dev_ops->alloc(leg->dev, bytes, &scratch, err);
    leg->scratch = scratch;
    if (!rc)
        rc = leg->dev_ops->alloc(leg->dev, K3_UNIT_BYTES, &zeros, err);
    leg->zeros = zeros;
    memset(leg->bounce, 0, K3_UNIT_BYTES);
    struct k3_dev_copy copy = {zeros, leg->bounce, K3_UNIT_BYTES, K3_COPY_HOST_TO_DEV};
    if (!rc)
        rc = k3_load_leg_copy(leg, 0, &copy, err);
    return rc ? rc : leg->dev_ops->copy_wait(leg->dev, 0, K3_DEV_WAIT_ALL, err);
}

void k3_load_scratch_close(struct k3_load_leg *leg)
{
    const uint64_t bytes = (uint64_t)leg->lane_count * K3_LOAD_SCRATCH_UNITS * K3_UNIT_BYTES;
    if (leg->scratch)
        leg->dev_ops->release(leg->dev, leg->scratch, bytes);
    if (leg->zeros)
        leg->dev_ops->release(leg->dev, leg->zeros, K3_UNIT_BYTES);
}
