/* Purpose: the control plane of a load: options, set, units files, part headers, device, memory,
 * the table of chunks; close.
 * Owns: everything a struct k3_load points to.
 * Threads: one thread at a time uses a load; opening reads part headers on several.
 * Errors: those of the set; K3_EUSAGE, K3_EUNSUPPORTED for options; K3_EIO, K3_ENOMEM.
 * Invariants: after open nothing is allocated until close; chunks tile the data sections of all
 * parts exactly once; a load that failed to open holds nothing. */
#include "load_internal.h"
#include "mem.h"
#include "sha256.h"
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
    if (!own->dirs || (own->ranks && own->rank_count == 0))
        return k3_fail(err, K3_EUSAGE,
                       "k3_load_options: no directories, or an empty list of ranks");
    return 0;
}

static int choose_dev(const char *name, const struct k3_dev_ops **ops, struct k3_err *err)
{
    if (name && strcmp(name, k3_dev_host.name) != 0)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "device %.100s is not in this build: images can be loaded to host only",
                       name);
    *ops = &k3_dev_host;
    return (*ops)->probe(0, err);
}

static uint32_t choose_depth(uint64_t staging_bytes)
{
    uint64_t bytes = staging_bytes ? staging_bytes : K3_LOAD_STAGING_BYTES;
    uint64_t depth = bytes / K3_LOAD_CHUNK_BYTES;
    /* Two at least: one arrives while the other is being checked. */
    if (depth < 2)
        return 2;
    return depth < K3_LOAD_DEPTH_MAX ? (uint32_t)depth : K3_LOAD_DEPTH_MAX;
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
            load->chunk_count += k3_div_up(units, K3_LOAD_CHUNK_UNITS);
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

/* ---- memory ---- */

static int open_memory(struct k3_load *load, struct k3_err *err)
{
    uint32_t cpus = k3_cpu_count();
    load->lane_count = !load->verify ? 1 : cpus < K3_LANE_COUNT_MAX ? cpus : K3_LANE_COUNT_MAX;
    struct k3_dev_options options = {.index = 0, .lane_count = load->lane_count};
    int rc = load->dev_ops->open(&options, &load->dev, err);
    if (!rc)
        rc = k3_sha256_open(&load->sha, err);
    if (!rc)
        rc = k3_mem_alloc(K3_UNIT_BYTES, &load->bounce, err);
    if (rc)
        return rc;
    load->results = calloc(load->unit_count, 1);
    if (!load->results)
        return k3_fail(err, K3_ENOMEM, "no memory for %llu units",
                       (unsigned long long)load->unit_count);
    uint8_t *results = load->results;
    for (uint32_t r = 0; r < load->rank_count; r++) {
        struct k3_load_rank *rank = &load->ranks[r];
        rc = load->dev_ops->alloc(load->dev, rank->row->image_bytes, &rank->image, err);
        if (rc)
            return rc;
        uint8_t *target = rank->image;
        for (uint32_t i = 0; i < rank->row->part_count; i++) {
            struct k3_load_part *part = &load->parts[rank->part_begin + i];
            part->target = target;
            part->results = results;
            target += (uint64_t)part->unit_count * K3_UNIT_BYTES;
            results += part->unit_count;
        }
    }
    return 0;
}

/* ---- chunks ---- */

/* First part from `index` on that lies in a directory; part_count: none. */
static uint32_t part_in_dir(const struct k3_load *load, const struct k3_dir *dir, uint32_t index)
{
    while (index < load->part_count) {
        const struct k3_part_entry *entry = load->parts[index].entry;
        if (k3_set_part_dir(load->set, entry->rank, entry->part) == dir)
            break;
        index++;
    }
    return index;
}

/* One chunk of each directory in turn, so that every drive has its share of the reads in flight. */
static int make_chunks(struct k3_load *load, struct k3_err *err)
{
    const struct k3_set *set = load->set;
    uint32_t part[K3_SET_DIR_COUNT_MAX], unit[K3_SET_DIR_COUNT_MAX];
    load->chunks = calloc(load->chunk_count, sizeof *load->chunks);
    if (!load->chunks)
        return k3_fail(err, K3_ENOMEM, "no memory for %llu chunks",
                       (unsigned long long)load->chunk_count);
    for (uint32_t d = 0; d < set->dir_count; d++) {
        part[d] = part_in_dir(load, &set->dirs[d], 0);
        unit[d] = 0;
    }
    for (uint64_t at = 0; at < load->chunk_count;) {
        for (uint32_t d = 0; d < set->dir_count; d++) {
            if (part[d] == load->part_count)
                continue;
            uint32_t left = load->parts[part[d]].unit_count - unit[d];
            uint32_t count = left < K3_LOAD_CHUNK_UNITS ? left : K3_LOAD_CHUNK_UNITS;
            load->chunks[at++] = (struct k3_load_chunk){
                .part = part[d], .unit_begin = unit[d], .unit_count = (uint8_t)count};
            unit[d] += count;
            if (count == left) {
                part[d] = part_in_dir(load, &set->dirs[d], part[d] + 1);
                unit[d] = 0;
            }
        }
    }
    return 0;
}

/* ---- open and close ---- */

int k3_load_open_with(const struct k3_load_options *given, const struct k3_io_ops *io_ops,
                      const struct k3_dev_ops *dev_ops, struct k3_load **out, struct k3_err *err)
{
    struct k3_load_options options;
    double begin_seconds = k3_load_now();
    *out = NULL;
    k3_load_begin(err);
    int rc = take_options(given, &options, err);
    if (!rc && !io_ops)
        rc = k3_load_route_check(options.io, err);
    if (!rc && !dev_ops)
        rc = choose_dev(options.device, &dev_ops, err);
    if (rc)
        return rc;
    struct k3_load *load = calloc(1, sizeof *load);
    if (!load)
        return k3_fail(err, K3_ENOMEM, "no memory for a load");
    k3_text_init(&load->fallbacks);
    load->dev_ops = dev_ops;
    load->progress = options.progress;
    load->progress_context = options.progress_context;
    load->verify = !options.no_verify;
    load->depth = choose_depth(options.staging_bytes);
    rc = k3_set_open(options.dirs, options.dir_count, &load->set, err);
    if (!rc)
        rc = add_ranks(load, &options, err);
    if (!rc)
        rc = open_parts(load, err);
    if (!rc)
        rc = open_memory(load, err);
    if (!rc)
        rc = make_chunks(load, err);
    if (!rc)
        rc = io_ops ? k3_load_route_take(load, io_ops, options.io, err)
                    : k3_load_route_open(load, options.io, err);
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
    /* The engine first: it drains, so nothing writes into memory that goes away below. */
    if (load->io)
        load->io_ops->close(load->io);
    for (uint32_t i = 0; i < load->rank_count; i++) {
        struct k3_load_rank *rank = &load->ranks[i];
        if (rank->image)
            load->dev_ops->release(load->dev, rank->image, rank->row->image_bytes);
        free(rank->digests);
    }
    if (load->dev)
        load->dev_ops->close(load->dev);
    for (uint32_t i = 0; load->parts && i < load->part_count; i++) {
        if (load->parts[i].fd >= 0)
            close(load->parts[i].fd);
        k3_st_free(load->parts[i].st);
        free(load->parts[i].views);
        free(load->parts[i].tensors);
    }
    k3_text_fini(&load->fallbacks);
    k3_sha256_close(load->sha);
    k3_mem_free(load->bounce, K3_UNIT_BYTES);
    free(load->results);
    free(load->chunks);
    free(load->parts);
    free(load->ranks);
    k3_set_close(load->set);
    free(load);
}
