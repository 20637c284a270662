/* Purpose: the control plane of a load: options, set, units files, part headers, the legs; close.
 * Owns: everything a struct k3_load points to.
 * Threads: one thread at a time uses a load; opening reads part headers on several, while others
 * open the devices.
 * Errors: those of the set; K3_EUSAGE, K3_EUNSUPPORTED for options; K3_EIO, K3_ENOMEM.
 * Invariants: after open nothing is allocated until close; chunks tile the data sections of all
 * parts exactly once; a load that failed to open holds nothing. */
#include "load_internal.h"
#include "thread.h"
#include "workers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Files beside the parts: standard streams, directories, sockets of the caller. */
#define OTHER_FILE_COUNT 64u

double k3_load_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- options ---- */

/* The caller's struct may be older (shorter) or newer (longer, then zero in what is unknown
 * here). */
static int take_options(const struct k3_load_options *given, struct k3_load_options *own,
                        struct k3_err *err)
{
    memset(own, 0, sizeof *own);
    size_t bytes = given->struct_bytes;
    if (bytes < offsetof(struct k3_load_options, device))
        return k3_fail(err, K3_EUSAGE,
                       "k3_load_options.struct_bytes is %zu: set it to the size of the struct",
                       bytes);
    for (size_t i = sizeof *own; i < bytes; i++)
        if (((const unsigned char *)given)[i])
            return k3_fail(err, K3_EUSAGE,
                           "k3_load_options has members that this libk3load does not know");
    memcpy(own, given, bytes < sizeof *own ? bytes : sizeof *own);
    if (own->bind_count && !own->binds)
        return k3_fail(err, K3_EUSAGE, "k3_load_options: bind_count without binds");
    if (!own->dirs || (own->ranks && own->rank_count == 0))
        return k3_fail(err, K3_EUSAGE,
                       "k3_load_options: no directories, or an empty list of ranks");
    return 0;
}

/* ---- ranks ---- */

static int add_rank(struct k3_load *load, uint32_t rank, struct k3_err *err)
{
    const struct k3_manifest_rank *row = k3_set_rank(load->set, rank);
    if (!row)
        return k3_set_fail_rank(load->set, rank, err);
    for (uint32_t i = 0; i < load->rank_count; i++)
        if (load->ranks[i].row == row)
            return k3_fail(err, K3_EUSAGE, "rank %u is listed twice", rank);
    struct k3_load_rank *own = &load->ranks[load->rank_count++];
    own->row = row;
    own->part_begin = load->part_count;
    load->part_count += row->part_count;
    load->image_bytes += row->image_bytes;
    uint64_t count;
    return k3_set_units(load->set, row, &own->digests, &count, err);
}

static int add_ranks(struct k3_load *load, const struct k3_load_options *options,
                     struct k3_err *err)
{
    const struct k3_manifest *manifest = &load->set->manifest;
    uint32_t count = options->ranks ? options->rank_count : manifest->rank_count;
    if (count == 0 || count > manifest->rank_count)
        return k3_fail(err, K3_EUSAGE, "%u ranks of a set of %u", count, manifest->rank_count);
    load->ranks = calloc(count, sizeof *load->ranks);
    if (!load->ranks)
        return k3_fail(err, K3_ENOMEM, "no memory for %u ranks", count);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < count; i++)
        rc = add_rank(load, options->ranks ? options->ranks[i] : manifest->ranks[i].rank, err);
    return rc;
}

/* ---- parts ---- */

/* Each part stays open while its load lives: the limit is told before it is met half way. */
static int check_file_limit(const struct k3_load *load, struct k3_err *err)
{
    struct rlimit limit;
    uint64_t wanted = (uint64_t)load->part_count + OTHER_FILE_COUNT;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= wanted)
        return 0;
    return k3_fail(err, K3_EIO,
                   "%u parts must be open at once, the limit is %llu files: raise it to %llu "
                   "(ulimit -n) or load fewer ranks",
                   load->part_count, (unsigned long long)limit.rlim_cur,
                   (unsigned long long)wanted);
}

/* Rows, digests and sizes of all parts, before any file is opened. */
static int lay_out_parts(struct k3_load *load, struct k3_err *err)
{
    load->parts = calloc(load->part_count, sizeof *load->parts);
    if (!load->parts)
        return k3_fail(err, K3_ENOMEM, "no memory for %u parts", load->part_count);
    for (uint32_t i = 0; i < load->part_count; i++)
        load->parts[i].fd = -1;
    for (uint32_t r = 0; r < load->rank_count; r++) {
        const struct k3_load_rank *rank = &load->ranks[r];
        const uint8_t *digests = rank->digests;
        for (uint32_t i = 0; i < rank->row->part_count; i++) {
            struct k3_load_part *part = &load->parts[rank->part_begin + i];
            part->entry = &rank->row->parts[i];
            uint64_t header_units = part->entry->data_offset / K3_UNIT_BYTES;
            uint64_t units = part->entry->bytes / K3_UNIT_BYTES - header_units;
            if (units > UINT32_MAX)
                return k3_fail(err, K3_ELIMIT, "part %u of rank %u: %llu units are too many",
                               part->entry->part, part->entry->rank, (unsigned long long)units);
            part->digests = digests + header_units * K3_DIGEST_BYTES;
            part->unit_count = (uint32_t)units;
            digests += (header_units + units) * K3_DIGEST_BYTES;
            load->header_bytes += part->entry->data_offset;
            load->unit_count += units;
        }
    }
    return 0;
}

/* Open one part and decode its header: a task of the workers. */
static int open_part(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    (void)worker;
    struct k3_load *load = context;
    struct k3_load_part *part = &load->parts[task];
    const uint64_t header_units = part->entry->data_offset / K3_UNIT_BYTES;
    struct k3_part_header header;
    int rc = k3_set_part_open(load->set, part->entry, &part->fd, err);
    /* The header alone: what is read ahead of it would look as if the data were hot. */
    if (!rc)
        (void)posix_fadvise(part->fd, 0, 0, POSIX_FADV_RANDOM);
    if (!rc)
        rc = k3_set_part_header(load->set, part->entry, part->fd,
                                part->digests - header_units * K3_DIGEST_BYTES, &header, err);
    if (rc)
        return rc;
    rc = k3_set_check_header(load->set, part->entry, part->fd, err);
    if (rc) {
        k3_part_header_fini(&header);
        return rc;
    }
    part->st = header.st;
    part->views = header.views;
    part->view_count = header.view_count;
    part->tensors = calloc(part->st->tensor_count, sizeof *part->tensors);
    if (!part->tensors)
        return k3_fail(err, K3_ENOMEM, "no memory for %u tensors", part->st->tensor_count);
    for (uint32_t i = 0; i < part->st->tensor_count; i++)
        if (!k3_load_is_pad(&part->st->tensors[i]))
            part->tensors[part->tensor_count++] = i;
    return 0;
}

static int open_parts(struct k3_load *load, struct k3_err *err)
{
    int rc = check_file_limit(load, err);
    if (!rc)
        rc = lay_out_parts(load, err);
    if (rc)
        return rc;
    struct k3_workers_options options = {.worker_count = k3_cpu_count(),
                                         .task_count = load->part_count,
                                         .task = open_part,
                                         .context = load};
    rc = k3_workers_run(&options, err);
    for (uint32_t r = 0; !rc && r < load->rank_count; r++) {
        struct k3_load_rank *rank = &load->ranks[r];
        for (uint32_t i = 0; i < rank->row->part_count; i++) {
            struct k3_load_part *part = &load->parts[rank->part_begin + i];
            part->tensor_begin = rank->tensor_count;
            part->view_begin = rank->view_count;
            rank->tensor_count += part->tensor_count;
            rank->view_count += part->view_count;
        }
    }
    return rc;
}

/* ---- legs ---- */

/* Ranks and devices are paired in order: one device takes all ranks, or each takes one. */
static int add_legs(struct k3_load *load, const struct k3_load_devices *devices, struct k3_err *err)
{
    if (devices->count != 1 && devices->count != load->rank_count)
        return k3_fail(err, K3_EUSAGE,
                       "%u devices for %u ranks: name one device for all ranks, or one for each",
                       devices->count, load->rank_count);
    load->legs = calloc(devices->count, sizeof *load->legs);
    if (!load->legs)
        return k3_fail(err, K3_ENOMEM, "no memory for %u devices", devices->count);
    load->leg_count = devices->count;
    for (uint32_t i = 0; i < devices->count; i++) {
        struct k3_load_leg *leg = &load->legs[i];
        leg->load = load;
        leg->dev_ops = devices->ops;
        leg->device_index = devices->indices[i];
        leg->rank_begin = devices->count == 1 ? 0 : i;
        leg->rank_count = devices->count == 1 ? load->rank_count : 1;
        for (uint32_t r = 0; r < leg->rank_count; r++)
            leg->image_bytes += load->ranks[leg->rank_begin + r].row->image_bytes;
    }
    return 0;
}

static void *open_leg(void *context)
{
    struct k3_load_leg *leg = context;
    leg->rc = k3_load_leg_open(leg, &leg->err);
    return NULL;
}

/* A context takes as long to start as many headers take to read: both at once. */
static int open_legs_and_parts(struct k3_load *load, struct k3_err *err)
{
    uint32_t started = 0;
    int sys_errno = 0, rc = 0;
    for (; started < load->leg_count && !sys_errno; started += !sys_errno) {
        k3_err_init(&load->legs[started].err);
        sys_errno = k3_thread_start(&load->legs[started].thread, open_leg, &load->legs[started]);
    }
    if (sys_errno)
        rc = k3_fail_sys(err, sys_errno, "cannot make a thread for device %u of %u", started + 1,
                         load->leg_count);
    else
        rc = open_parts(load, err);
    for (uint32_t i = 0; i < started; i++) {
        struct k3_load_leg *leg = &load->legs[i];
        pthread_join(leg->thread, NULL);
        if (!rc && leg->rc)
            rc = k3_fail_as(err, &leg->err);
    }
    return rc;
}

/* Where each part's data go, now that the images are there, and its table of results. */
static int place_parts(struct k3_load *load, struct k3_err *err)
{
    for (uint32_t i = 0; i < load->leg_count; i++) {
        k3_load_leg_shape(&load->legs[i]);
        load->chunk_count += k3_load_leg_chunk_count(&load->legs[i]);
    }
    load->results = calloc(load->unit_count + 1, 1);
    load->chunks = calloc(load->chunk_count + 1, sizeof *load->chunks);
    if (!load->results || !load->chunks)
        return k3_fail(err, K3_ENOMEM, "no memory for %llu units",
                       (unsigned long long)load->unit_count);
    uint8_t *results = load->results;
    int rc = 0;
    for (uint32_t r = 0; r < load->rank_count; r++) {
        struct k3_load_rank *rank = &load->ranks[r];
        uint8_t *target = rank->image;
        for (uint32_t i = 0; i < rank->row->part_count && !rc; i++) {
            struct k3_load_part *part = &load->parts[rank->part_begin + i];
            rc = k3_load_part_place(load, part, target, err);
            part->results = results;
            if (target)
                target += (uint64_t)part->unit_count * K3_UNIT_BYTES;
            results += part->unit_count;
        }
    }
    struct k3_load_chunk *chunks = load->chunks;
    for (uint32_t i = 0; i < load->leg_count && !rc; i++) {
        load->legs[i].chunks = chunks;
        k3_load_leg_chunks(&load->legs[i]);
        chunks += load->legs[i].chunk_count;
    }
    return rc ? rc : k3_load_bounds_check(load, err);
}

/* ---- open and close ---- */

/* Everything behind the options, into a load that is empty. */
static int fill_load(struct k3_load *load, const struct k3_load_options *options,
                     const struct k3_load_devices *devices, const struct k3_io_ops *io_ops,
                     struct k3_err *err)
{
    int rc = k3_set_open(options->dirs, options->dir_count, &load->set, err);
    if (!rc && options->trace_path)
        rc = k3_load_trace_file_open(&load->trace.file, load->set, options->trace_path, err);
    if (!rc)
        rc = add_ranks(load, options, err);
    if (!rc)
        rc = k3_load_bounds_take(load, options->binds, options->bind_count, err);
    if (!rc)
        rc = add_legs(load, devices, err);
    if (!rc)
        rc = open_legs_and_parts(load, err);
    if (!rc) {
        load->is_hot = k3_load_route_is_hot(load, options->io, io_ops != NULL);
        load->drive_count = load->is_hot ? 0 : k3_load_route_drives(load);
    }
    if (!rc)
        rc = place_parts(load, err);
    if (!rc)
        rc = io_ops ? k3_load_route_take(load, io_ops, options->io, err)
                    : k3_load_route_open(load, options->io, err);
    return rc ? rc : k3_load_trace_open(load, err);
}

int k3_load_open_with(const struct k3_load_options *given, const struct k3_io_ops *io_ops,
                      const struct k3_dev_ops *dev_ops, struct k3_load **out, struct k3_err *err)
{
    struct k3_load_options options;
    struct k3_load_devices devices = {.ops = dev_ops, .count = 1};
    double begin_seconds = k3_load_now();
    *out = NULL;
    k3_load_begin(err);
    int rc = take_options(given, &options, err);
    if (!rc && !dev_ops)
        rc = k3_load_devices_parse(options.device, &devices, err);
    if (!rc && !io_ops)
        rc = k3_load_route_check(&options, devices.ops, err);
    if (rc)
        return rc;
    struct k3_load *load = calloc(1, sizeof *load);
    if (!load)
        return k3_fail(err, K3_ENOMEM, "no memory for a load");
    k3_text_init(&load->fallbacks);
    load->progress = options.progress;
    load->progress_context = options.progress_context;
    load->verify = !options.no_verify;
    load->reaches_device = k3_load_route_reaches(options.io);
    load->staging_bytes = options.staging_bytes;
    load->bytes_per_second = options.bytes_per_second;
    load->after_event = options.after_event;
    rc = fill_load(load, &options, &devices, io_ops, err);
    if (rc) {
        k3_load_close(load);
        return rc;
    }
    load->open_seconds = k3_load_now() - begin_seconds;
    *out = load;
    return 0;
}

int k3_load_open(const struct k3_load_options *options, struct k3_load **out, struct k3_err *err)
{
    return k3_load_open_with(options, NULL, NULL, out, err);
}

void k3_load_close(struct k3_load *load)
{
    if (!load)
        return;
    if (load->is_stepping)
        atomic_store(&load->stop, true);
    k3_load_join_steps(load);
    k3_load_trace_close(load);
    for (uint32_t i = 0; i < load->leg_count; i++)
        k3_load_leg_close_engine(&load->legs[i]);
    for (uint32_t i = 0; i < load->leg_count; i++)
        k3_load_leg_close(&load->legs[i]);
    for (uint32_t i = 0; i < load->rank_count; i++)
        free(load->ranks[i].digests);
    for (uint32_t i = 0; load->parts && i < load->part_count; i++) {
        if (load->parts[i].fd >= 0)
            close(load->parts[i].fd);
        k3_st_free(load->parts[i].st);
        free(load->parts[i].views);
        free(load->parts[i].tensors);
        free(load->parts[i].pieces);
    }
    k3_text_fini(&load->fallbacks);
    free(load->results);
    free(load->bounds);
    free(load->chunks);
    free(load->parts);
    free(load->ranks);
    free(load->legs);
    k3_set_close(load->set);
    free(load);
}
