/* Purpose: the measurements of a bench: direct and cached reads, load, memcpy, hashing.
 * Owns: what a measurement opens, until it returns.
 * Threads: the main thread, and workers inside a measurement.
 * Errors: K3_EUNSUPPORTED where something cannot be measured here; all others end the bench.
 * Invariants: reads and loads take the same bytes of the same files in the same order; nothing is
 * prepared (page faults, opening, warming) while the clock of a ceiling runs. */
#include "bench.h"
#include "fs.h"
#include "k3_load.h"
#include "progress.h"
#include "sha256_blocks.h"
#include "stop.h"
#include "tree.h"
#include "workers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPT_COUNT 5u
/* Reads that wait for a core: two for each, in slots that stay in its cache. */
#define CACHE_DEPTH_MIN 4u
#define CACHE_DEPTH_MAX 64u
#define CORE_BYTES      (UINT64_C(1) << 30) /* of one core: 0.1 to 1 s */
#define POOL_PARTS      8u                  /* of free memory: images and buffers need the rest */
#define PIECE_BYTES     ((size_t)K3_BENCH_CHUNK_BYTES)
#define UNITS_PER_PIECE (PIECE_BYTES / K3_UNIT_BYTES)

static double to_seconds(uint64_t begin_ns)
{
    return (double)(k3_now_ns() - begin_ns) / 1e9;
}

/* ---- reads ---- */

static int read_chunks(struct k3_bench *bench, const struct k3_io_ops *io, bool is_direct,
                       uint32_t depth, double *gb_per_s, struct k3_err *err)
{
    struct k3_bench_reads reads = {.io = io,
                                   .fds = bench->fds,
                                   .chunks = bench->chunks,
                                   .chunk_count = bench->chunk_count,
                                   .fd_count = bench->fd_count,
                                   .depth = depth,
                                   .is_direct = is_direct};
    struct k3_bench_rate rate;
    int rc = k3_bench_read(&reads, &rate, err);
    *gb_per_s = k3_bench_gb_per_s(&rate);
    return rc;
}

int k3_bench_direct(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                    struct k3_err *err)
{
    bool threads = row == &k3_bench_rows[K3_ROW_DIRECT_THREADS];
    uint64_t slot_count = row->parameter < bench->chunk_count ? row->parameter : bench->chunk_count;
    uint64_t pool_bytes = slot_count * K3_BENCH_CHUNK_BYTES;
    if (pool_bytes > bench->memory_bytes / POOL_PARTS)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%" PRIu64 " bytes of slots are too many for %" PRIu64
                       " bytes of free memory",
                       pool_bytes, bench->memory_bytes);
    if (!threads) {
        int rc = k3_io_uring.probe(NULL, err);
        if (rc)
            return rc;
    }
    return read_chunks(bench, threads ? &k3_io_pread : &k3_io_uring, true, row->parameter, gb_per_s,
                       err);
}

static uint32_t cache_depth(const struct k3_bench *bench)
{
    uint32_t depth = bench->core_count < CACHE_DEPTH_MAX ? 2 * bench->core_count : CACHE_DEPTH_MAX;
    return depth < CACHE_DEPTH_MIN   ? CACHE_DEPTH_MIN
           : depth > CACHE_DEPTH_MAX ? CACHE_DEPTH_MAX
                                     : depth;
}

static int warm(struct k3_bench *bench, struct k3_err *err)
{
    double gb_per_s;
    return read_chunks(bench, &k3_io_pread, false, cache_depth(bench), &gb_per_s, err);
}

/* Direct reads do not look into the page cache, but `load` takes what is there. */
static void cool(const struct k3_bench *bench)
{
    for (uint64_t i = 0; i < bench->chunk_count; i++)
        k3_file_drop(bench->fds[bench->chunks[i].file], bench->chunks[i].offset,
                     bench->chunks[i].bytes);
}

int k3_bench_page_cache(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                        struct k3_err *err)
{
    (void)row;
    int rc = warm(bench, err);
    return rc ? rc : read_chunks(bench, &k3_io_pread, false, cache_depth(bench), gb_per_s, err);
}

/* ---- load ---- */

struct load_watch {
    uint64_t wanted_bytes;
    uint64_t done_bytes; /* when it was told to stop; 0: it was not */
};

static int on_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct load_watch *watch = context;
    if (done_bytes >= watch->wanted_bytes && done_bytes < total_bytes)
        watch->done_bytes = done_bytes;
    return watch->done_bytes || k3_stop_requested();
}

static int run_load(struct k3_bench *bench, struct k3_load *load, struct load_watch *watch,
                    double *gb_per_s, struct k3_err *err)
{
    struct k3_err own;
    k3_err_init(&own);
    uint64_t begin_ns = k3_now_ns();
    int rc = k3_load_run(load, &own);
    double seconds = to_seconds(begin_ns);
    uint64_t bytes = bench->image_bytes;
    if (rc == K3_ECANCELED && watch->done_bytes) {
        bytes = watch->done_bytes;
        rc = 0;
    }
    *gb_per_s = seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
    if (rc && err && !err->rc)
        *err = own;
    return rc;
}

/* One load, from open to close; says by which route it ran. */
static int load_once(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                     struct k3_bench_result *ran, struct k3_err *err)
{
    struct load_watch watch = {.wanted_bytes = bench->round_bytes};
    struct k3_load_options options = {
        .struct_bytes = sizeof options,
        .dirs = bench->opts->args.item,
        .dir_count = bench->opts->args.count,
        .ranks = bench->ranks,
        .rank_count = bench->rank_count,
        .device = row->is_device ? bench->opts->device : NULL,
        .io = k3_opt_choice_name(K3_ID_IO, bench->opts->io),
        .staging_bytes = bench->opts->staging_bytes,
        .no_verify = !row->is_verified,
        .progress = on_progress,
        .progress_context = &watch,
    };
    struct k3_load *load = NULL;
    struct k3_load_report report;
    int rc = 0;
    if (row->is_hot)
        rc = warm(bench, err);
    else
        cool(bench);
    if (!rc)
        rc = k3_load_open(&options, &load, err);
    if (rc)
        return rc;
    k3_load_get_report(load, &report);
    snprintf(ran->io, sizeof ran->io, "%s", report.io);
    ran->is_direct = report.direct != 0;
    rc = run_load(bench, load, &watch, gb_per_s, err);
    ran->is_partial = watch.done_bytes != 0;
    k3_load_close(load);
    return rc;
}

/* The route is chosen by timed samples, which a busy machine can mislead: a load that took another
 * one than it should is done again, and is no figure of this row. */
int k3_bench_load(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                  struct k3_err *err)
{
    struct k3_bench_result *result = &bench->results[row - k3_bench_rows];
    struct k3_bench_result *ran = calloc(1, sizeof *ran);
    if (!ran)
        return k3_fail(err, K3_ENOMEM, "no memory for a figure");
    bool is_right = false;
    int rc = row->is_device ? k3_bench_device_named(bench, err) : 0;
    if (rc) {
        free(ran);
        return rc;
    }
    if (row->is_hot && bench->opts->io != K3_OPT_IO_AUTO && bench->opts->io != K3_OPT_IO_PREAD)
        rc = k3_fail(err, K3_EUNSUPPORTED, "--io %s always reads past the page cache",
                     k3_opt_choice_name(K3_ID_IO, bench->opts->io));
    else if (row->is_hot && bench->round_bytes < bench->image_bytes)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "not all of the images is read at a time, so they cannot be hot: fewer "
                     "--ranks, a larger --size, or more memory");
    for (uint32_t i = 0; !rc && !is_right && i < ATTEMPT_COUNT; i++) {
        rc = load_once(bench, row, gb_per_s, ran, err);
        /* What the first cold load does, all must do: so where it found pages that should have left
         * memory, a second one is asked. */
        is_right = row->is_hot          ? !ran->is_direct
                   : result->count == 0 ? ran->is_direct || i > 0
                                        : ran->is_direct == result->is_direct;
    }
    if (!rc && !is_right)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "load went %s the page cache, time and again: other work disturbs it, or the "
                     "pages do not stay",
                     ran->is_direct ? "past" : "through");
    if (!rc) {
        memcpy(result->io, ran->io, sizeof result->io);
        result->is_direct = ran->is_direct;
        result->is_partial = ran->is_partial;
    }
    free(ran);
    return rc;
}

/* ---- memory and hashing: pieces of one buffer, round and round ---- */

struct work {
    struct k3_bench *bench;
    k3_task_fn task;
    uint32_t core_count;
    uint32_t piece_count; /* of the buffer */
};

static int run_work(struct work *work, double *gb_per_s, struct k3_err *err)
{
    work->piece_count = (uint32_t)(work->bench->buffer_bytes / PIECE_BYTES);
    uint64_t bytes = CORE_BYTES < 4 * work->bench->buffer_bytes ? CORE_BYTES
                                                                : 4 * work->bench->buffer_bytes;
    struct k3_workers_options options = {.worker_count = work->core_count,
                                         .task_count = bytes / PIECE_BYTES * work->core_count,
                                         .task = work->task,
                                         .context = work,
                                         .stop = k3_stop_requested};
    uint64_t begin_ns = k3_now_ns();
    int rc = k3_workers_run(&options, err);
    double seconds = to_seconds(begin_ns);
    *gb_per_s = seconds > 0 ? (double)(options.task_count * PIECE_BYTES) / seconds / 1e9 : 0;
    return rc;
}

static int copy_piece(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    const struct work *work = context;
    size_t at = (size_t)(task % work->piece_count) * PIECE_BYTES;
    (void)worker;
    (void)err;
    memcpy(work->bench->other + at, work->bench->data + at, PIECE_BYTES);
    return 0;
}

static int hash_piece(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    const struct work *work = context;
    const uint8_t *piece = work->bench->data + (size_t)(task % work->piece_count) * PIECE_BYTES;
    uint8_t digest[K3_DIGEST_BYTES];
    (void)err;
    for (size_t i = 0; i < UNITS_PER_PIECE; i++)
        k3_unit_digest(work->bench->shas[worker], piece + i * K3_UNIT_BYTES, K3_UNIT_BYTES, digest);
    return 0;
}

static int stream_piece(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    const struct work *work = context;
    (void)err;
    k3_sha256_update(work->bench->shas[worker],
                     work->bench->data + (size_t)(task % work->piece_count) * PIECE_BYTES,
                     PIECE_BYTES);
    return 0;
}

int k3_bench_memcpy(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                    struct k3_err *err)
{
    struct work work = {.bench = bench,
                        .task = copy_piece,
                        .core_count = row->parameter ? row->parameter : bench->core_count};
    return run_work(&work, gb_per_s, err);
}

int k3_bench_hash(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                  struct k3_err *err)
{
    bool all = row == &k3_bench_rows[K3_ROW_HASH_ALL];
    struct work work = {
        .bench = bench, .task = hash_piece, .core_count = all ? bench->core_count : 1};
    k3_sha256_force((enum k3_sha256_form)row->parameter);
    int rc = run_work(&work, gb_per_s, err);
    k3_sha256_force(K3_SHA256_FORM_COUNT);
    return rc;
}

int k3_bench_stream(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                    struct k3_err *err)
{
    uint8_t digest[K3_DIGEST_BYTES];
    struct work work = {.bench = bench, .task = stream_piece, .core_count = 1};
    (void)row;
    k3_sha256_begin(bench->shas[0]);
    int rc = run_work(&work, gb_per_s, err);
    k3_sha256_final(bench->shas[0], digest);
    return rc;
}
