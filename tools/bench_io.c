/* Purpose: timed reads into a small pool of slots.
 * Owns: the engine and the slots while a call runs.
 * Threads: the calling thread drives the engine.
 * Errors: those of the engine; a read that failed is K3_EIO.
 * Invariants: the clock runs from the first submission to the last completion, not while engine,
 * files and memory are made ready; each chunk is read once, and all its bytes arrived. */
#include "bench_io.h"

#include "mem.h"
#include "progress.h"
#include "stop.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_COUNT 64u /* completions taken at once */

struct reader {
    const struct k3_bench_reads *reads;
    struct k3_io *io;
    uint8_t *slots;       /* depth of them, owned */
    uint32_t *free_slots; /* stack, owned */
    uint32_t *files;      /* numbers in the engine, owned */
    uint32_t *slot_chunk_bytes;
    uint32_t depth; /* of the slots: no more than there are chunks */
    uint32_t free_count;
    uint64_t next;
    uint64_t begin_ns;
    uint64_t done_bytes;
};

static size_t pool_bytes(const struct reader *reader)
{
    return (size_t)reader->depth * K3_BENCH_CHUNK_BYTES;
}

static int open_reader(struct reader *reader, struct k3_err *err)
{
    const struct k3_bench_reads *reads = reader->reads;
    void *slots;
    int rc = k3_mem_alloc(pool_bytes(reader), &slots, err);
    if (rc)
        return rc;
    reader->slots = slots;
    memset(slots, 0, pool_bytes(reader)); /* page faults come before the clock starts */
    reader->free_slots = calloc(reader->depth, sizeof *reader->free_slots);
    reader->slot_chunk_bytes = calloc(reader->depth, sizeof *reader->slot_chunk_bytes);
    reader->files = calloc((size_t)reads->fd_count + 1, sizeof *reader->files);
    if (!reader->free_slots || !reader->files || !reader->slot_chunk_bytes)
        return k3_fail(err, K3_ENOMEM, "no memory to read at depth %u", reader->depth);
    for (uint32_t i = 0; i < reader->depth; i++)
        reader->free_slots[reader->free_count++] = i;
    struct k3_io_region region = {slots, pool_bytes(reader)};
    struct k3_err note;
    k3_err_init(&note);
    struct k3_io_options options = {.depth = reader->depth,
                                    .is_direct = reads->is_direct,
                                    .region_count = 1,
                                    .regions = &region,
                                    .note = &note};
    rc = reads->io->open(&options, &reader->io, err);
    for (uint32_t i = 0; !rc && i < reads->fd_count; i++)
        rc = reads->io->add_file(reader->io, reads->fds[i], &reader->files[i], err);
    return rc;
}

static void close_reader(struct reader *reader)
{
    if (reader->io)
        reader->reads->io->close(reader->io);
    k3_mem_free(reader->slots, pool_bytes(reader));
    free(reader->slot_chunk_bytes);
    free(reader->free_slots);
    free(reader->files);
}

/* No read begins after the time is over. */
static bool has_next(const struct reader *reader)
{
    const struct k3_bench_reads *reads = reader->reads;
    return reader->next < reads->chunk_count &&
           (reads->limit_ns == 0 || k3_now_ns() - reader->begin_ns < reads->limit_ns);
}

static int submit_more(struct reader *reader, struct k3_err *err)
{
    const struct k3_bench_reads *reads = reader->reads;
    int rc = 0;
    while (!rc && reader->free_count && has_next(reader)) {
        const struct k3_bench_chunk *chunk = &reads->chunks[reader->next];
        assert(chunk->bytes <= K3_BENCH_CHUNK_BYTES && chunk->file < reads->fd_count);
        uint32_t slot = reader->free_slots[reader->free_count - 1];
        struct k3_io_read read = {
            .target = reader->slots + (size_t)slot * K3_BENCH_CHUNK_BYTES,
            .offset = chunk->offset,
            .bytes = chunk->bytes,
            .tag = slot,
            .file = reader->files[chunk->file],
        };
        rc = reads->io->submit(reader->io, &read, 1, err);
        if (rc)
            break;
        reader->slot_chunk_bytes[slot] = chunk->bytes;
        reader->free_count--;
        reader->next++;
    }
    return rc;
}

static int take(struct reader *reader, const struct k3_io_done *done, struct k3_err *err)
{
    if (done->sys_errno)
        return k3_fail_sys(err, done->sys_errno, "a read by io %s failed", reader->reads->io->name);
    if (done->bytes != reader->slot_chunk_bytes[done->tag])
        return k3_fail(err, K3_ECORRUPT,
                       "a read of %u bytes brought %zu: a file shrank; see k3-shard verify",
                       reader->slot_chunk_bytes[done->tag], done->bytes);
    reader->done_bytes += done->bytes;
    reader->free_slots[reader->free_count++] = (uint32_t)done->tag;
    return 0;
}

static int read_all(struct reader *reader, struct k3_err *err)
{
    struct k3_io_done done[BATCH_COUNT];
    int rc = 0;
    while (!rc) {
        rc = submit_more(reader, err);
        if (rc || reader->free_count == reader->depth)
            break;
        uint32_t count;
        rc = reader->reads->io->reap(reader->io, done, BATCH_COUNT, &count, err);
        for (uint32_t i = 0; !rc && i < count; i++)
            rc = take(reader, &done[i], err);
        if (!rc && k3_stop_requested())
            rc = k3_fail(err, K3_ECANCELED, "stopped on request");
    }
    return rc;
}

int k3_bench_read(const struct k3_bench_reads *reads, struct k3_bench_rate *rate,
                  struct k3_err *err)
{
    struct reader reader = {.reads = reads, .depth = reads->depth};
    if (reads->chunk_count < reader.depth)
        reader.depth = reads->chunk_count ? (uint32_t)reads->chunk_count : 1;
    *rate = (struct k3_bench_rate){0, 0};
    int rc = open_reader(&reader, err);
    if (rc)
        goto out;
    reader.begin_ns = k3_now_ns();
    rc = read_all(&reader, err);
    rate->seconds = (double)(k3_now_ns() - reader.begin_ns) / 1e9;
    rate->bytes = reader.done_bytes;
out:
    close_reader(&reader);
    return rc;
}

double k3_bench_gb_per_s(const struct k3_bench_rate *rate)
{
    return rate->seconds > 0 ? (double)rate->bytes / rate->seconds / 1e9 : 0;
}
