/* Purpose: what a finished load holds: images, tensors, views, the report.
 * Owns: nothing; all that is given out is borrowed from the load.
 * Threads: any number at once on a load that no thread runs or closes.
 * Errors: K3_EUSAGE: before a run that succeeded, or for what is not there.
 * Invariant: no address is given out unless all units of all ranks of the load passed. */
#include "load_internal.h"

#include <string.h>

/* The rank, once the load may be looked at. */
static int find_rank(const struct k3_load *load, uint32_t rank, const struct k3_load_rank **out,
                     struct k3_err *err)
{
    k3_load_begin(err);
    if (!load || !load->ready)
        return k3_fail(err, K3_EUSAGE,
                       "rank %u: nothing is handed out before a run of this load succeeded", rank);
    for (uint32_t i = 0; i < load->rank_count; i++) {
        if (load->ranks[i].row->rank == rank) {
            *out = &load->ranks[i];
            return 0;
        }
    }
    return k3_fail(err, K3_EUSAGE, "rank %u is not in this load", rank);
}

int k3_load_image(const struct k3_load *load, uint32_t rank, const void **data, uint64_t *bytes,
                  struct k3_err *err)
{
    const struct k3_load_rank *own;
    *data = NULL;
    *bytes = 0;
    int rc = find_rank(load, rank, &own, err);
    if (rc)
        return rc;
    if (load->bound_count)
        return k3_fail(err, K3_EUSAGE, "rank %u lies in bound views: there is no image", rank);
    *data = own->image;
    *bytes = own->row->image_bytes;
    return 0;
}

int k3_load_tensor_count(const struct k3_load *load, uint32_t rank, uint32_t *tensors,
                         uint32_t *views, struct k3_err *err)
{
    const struct k3_load_rank *own;
    *tensors = 0;
    *views = 0;
    int rc = find_rank(load, rank, &own, err);
    if (rc)
        return rc;
    *tensors = own->tensor_count;
    *views = own->view_count;
    return 0;
}

static void fill_tensor(const struct k3_load_part *part, const struct k3_st_tensor *tensor,
                        struct k3_load_tensor *out)
{
    *out = (struct k3_load_tensor){
        .name = tensor->name,
        .dtype = k3_dtype_name(tensor->dtype),
        .data = k3_load_address(part, tensor->begin_offset),
        .bytes = tensor->end_offset - tensor->begin_offset,
        .dim_count = tensor->dim_count,
        .rank = part->entry->rank,
    };
    memcpy(out->shape, tensor->shape, sizeof out->shape);
}

static void fill_view(const struct k3_load_part *part, const struct k3_view *view,
                      struct k3_load_tensor *out)
{
    *out = (struct k3_load_tensor){
        .name = view->name,
        .dtype = k3_dtype_name(view->dtype),
        .data = k3_load_address(part, view->begin_offset),
        .bytes = view->end_offset - view->begin_offset,
        .dim_count = view->dim_count,
        .rank = part->entry->rank,
    };
    memcpy(out->shape, view->shape, sizeof out->shape);
}

/* The part of a rank in which tensor (or view) number `index` of the rank lies. */
static const struct k3_load_part *
part_of(const struct k3_load *load, const struct k3_load_rank *rank, uint32_t index, bool views)
{
    const struct k3_load_part *parts = &load->parts[rank->part_begin];
    uint32_t low = 0;
    uint32_t high = rank->row->part_count;
    /* parts[low] begins at or before index, parts[high] behind it. */
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if ((views ? parts[mid].view_begin : parts[mid].tensor_begin) <= index)
            low = mid;
        else
            high = mid;
    }
    return &parts[low];
}

int k3_load_tensor(const struct k3_load *load, uint32_t rank, uint32_t index,
                   struct k3_load_tensor *out, struct k3_err *err)
{
    const struct k3_load_rank *own;
    int rc = find_rank(load, rank, &own, err);
    if (rc)
        return rc;
    if (index >= own->tensor_count)
        return k3_fail(err, K3_EUSAGE, "tensor %u of %u of rank %u", index, own->tensor_count,
                       rank);
    const struct k3_load_part *part = part_of(load, own, index, false);
    fill_tensor(part, &part->st->tensors[part->tensors[index - part->tensor_begin]], out);
    return 0;
}

int k3_load_view(const struct k3_load *load, uint32_t rank, uint32_t index,
                 struct k3_load_tensor *out, struct k3_err *err)
{
    const struct k3_load_rank *own;
    int rc = find_rank(load, rank, &own, err);
    if (rc)
        return rc;
    if (index >= own->view_count)
        return k3_fail(err, K3_EUSAGE, "view %u of %u of rank %u", index, own->view_count, rank);
    const struct k3_load_part *part = part_of(load, own, index, true);
    fill_view(part, &part->views[index - part->view_begin], out);
    return 0;
}

int k3_load_find_tensor(const struct k3_load *load, uint32_t rank, const char *name,
                        struct k3_load_tensor *out, struct k3_err *err)
{
    const struct k3_load_rank *own;
    int rc = find_rank(load, rank, &own, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < own->row->part_count; i++) {
        const struct k3_load_part *part = &load->parts[own->part_begin + i];
        const struct k3_st_tensor *tensor = k3_st_find(part->st, name);
        if (!tensor || k3_load_is_pad(tensor))
            continue;
        fill_tensor(part, tensor, out);
        return 0;
    }
    return k3_fail(err, K3_EUSAGE, "tensor %.200s is not in rank %u", name, rank);
}

int k3_load_find_view(const struct k3_load *load, uint32_t rank, const char *name,
                      struct k3_load_tensor *out, struct k3_err *err)
{
    const struct k3_load_rank *own;
    int rc = find_rank(load, rank, &own, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < own->row->part_count; i++) {
        const struct k3_load_part *part = &load->parts[own->part_begin + i];
        for (uint32_t j = 0; j < part->view_count; j++) {
            if (strcmp(part->views[j].name, name) != 0)
                continue;
            fill_view(part, &part->views[j], out);
            return 0;
        }
    }
    return k3_fail(err, K3_EUSAGE, "view %.200s is not in rank %u", name, rank);
}

void k3_load_get_report(const struct k3_load *load, struct k3_load_report *report)
{
    const struct k3_load_leg *first = &load->legs[0];
    bool checked = load->ready && load->verify;
    *report = (struct k3_load_report){
        .bytes = load->ready ? load->image_bytes : 0,
        .verified_bytes = load->header_bytes + (checked ? load->image_bytes : 0),
        .seconds = load->run_seconds,
        .open_seconds = load->open_seconds,
        .io = first->io_ops->name,
        .device = first->dev_ops->name,
        .direct = first->is_direct,
        .fallbacks = load->fallbacks.bytes ? load->fallbacks.data : "",
    };
    for (uint32_t i = 0; i < load->leg_count; i++) {
        const struct k3_load_leg *leg = &load->legs[i];
        report->reread_units += leg->reread_units;
        report->pinned_bytes += leg->pinned_bytes;
        report->read_wait_seconds += leg->waits.read;
        report->copy_wait_seconds += leg->waits.copy;
        report->check_wait_seconds += leg->waits.check;
        report->reread_seconds += leg->waits.settle;
    }
}

int k3_load_get_rank_report(const struct k3_load *load, uint32_t rank,
                            struct k3_load_rank_report *report, struct k3_err *err)
{
    k3_load_begin(err);
    memset(report, 0, sizeof *report);
    for (uint32_t i = 0; i < load->leg_count; i++) {
        const struct k3_load_leg *leg = &load->legs[i];
        for (uint32_t r = leg->rank_begin; r < leg->rank_begin + leg->rank_count; r++) {
            if (load->ranks[r].row->rank != rank)
                continue;
            *report = (struct k3_load_rank_report){
                .rank = rank,
                .bytes = load->ready ? load->ranks[r].row->image_bytes : 0,
                .seconds = leg->run_seconds,
                .io = leg->io_ops->name,
                .device = leg->name,
            };
            return 0;
        }
    }
    return k3_fail(err, K3_EUSAGE, "rank %u is not in this load", rank);
}
