/* Purpose: the data plane of a load: reads in flight, checks behind them, second reads of what
 * came wrong, the gate at the end.
 * Owns: nothing; fills the images, chunk states and unit results of the load.
 * Threads: the calling thread controls; engine and device have their own.
 * Errors: K3_ECORRUPT naming file, unit and offset; K3_EIO; K3_EDEVICE; K3_ECANCELED.
 * Invariants: no allocation, no names until an error needs one; on every way out no read is in
 * flight and every lane is empty; a load is ready only when every single unit was found right
 * (without verification: when every read came in full). */
#include "io_direct.h"
#include "load_internal.h"
#include "tree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Reads handed over or taken back in one call: enough to save calls, small on the stack. */
#define BATCH_COUNT 16u
/* Progress at least this often. */
#define TELL_BYTES   ((uint64_t)64 << 20)
#define TELL_SECONDS 0.1

struct run {
    struct k3_load *load;
    uint64_t next;       /* chunk to submit */
    uint64_t done_count; /* chunks that came back */
    uint64_t done_bytes, told_bytes;
    double told_seconds;
    uint32_t in_flight;
    uint32_t lane; /* the next chunk is checked on it */
};

static uint64_t file_offset(const struct k3_load_part *part, uint32_t unit)
{
    return part->entry->data_offset + (uint64_t)unit * K3_UNIT_BYTES;
}

static size_t chunk_bytes(const struct k3_load_chunk *chunk)
{
    return (size_t)chunk->unit_count * K3_UNIT_BYTES;
}

/* due: whether or not it is time again. */
static int tell(struct run *run, bool due, struct k3_err *err)
{
    struct k3_load *load = run->load;
    if (!load->progress)
        return 0;
    double now = k3_load_now();
    if (!due && run->done_bytes - run->told_bytes < TELL_BYTES &&
        now - run->told_seconds < TELL_SECONDS)
        return 0;
    run->told_bytes = run->done_bytes;
    run->told_seconds = now;
    if (load->progress(load->progress_context, run->done_bytes, load->image_bytes) == 0)
        return 0;
    return k3_fail(err, K3_ECANCELED,
                   "load stopped on request after %" PRIu64 " of %" PRIu64 " bytes",
                   run->done_bytes, load->image_bytes);
}

/* ---- reads ---- */

static int submit_more(struct run *run, struct k3_err *err)
{
    struct k3_load *load = run->load;
    struct k3_io_read reads[BATCH_COUNT];
    for (;;) {
        uint32_t count = 0;
        while (count < BATCH_COUNT && run->in_flight + count < load->depth &&
               run->next + count < load->chunk_count) {
            struct k3_load_chunk *chunk = &load->chunks[run->next + count];
            const struct k3_load_part *part = &load->parts[chunk->part];
            reads[count] = (struct k3_io_read){
                .target = part->target + (uint64_t)chunk->unit_begin * K3_UNIT_BYTES,
                .offset = file_offset(part, chunk->unit_begin),
                .bytes = chunk_bytes(chunk),
                .tag = run->next + count,
                .file = part->io_file,
            };
            count++;
        }
        if (count == 0)
            return 0;
        int rc = load->io_ops->submit(load->io, reads, count, err);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < count; i++)
            load->chunks[run->next + i].state = K3_CHUNK_IN_FLIGHT;
        run->next += count;
        run->in_flight += count;
    }
}

/* The engine broke its contract or failed: only its close still promises that no read is in
 * flight. */
static void drop_engine(struct run *run)
{
    struct k3_load *load = run->load;
    load->io_ops->close(load->io);
    load->io = NULL;
    load->broken = true;
    run->in_flight = 0;
}

/* One completion: begin the check, or leave the chunk to a second read. */
static int arrive(struct run *run, const struct k3_io_done *done, struct k3_err *err)
{
    struct k3_load *load = run->load;
    if (done->tag >= load->chunk_count || load->chunks[done->tag].state != K3_CHUNK_IN_FLIGHT) {
        drop_engine(run);
        return k3_fail(err, K3_EIO, "io %s gave back a read that was not in flight",
                       load->io_ops->name);
    }
    struct k3_load_chunk *chunk = &load->chunks[done->tag];
    struct k3_load_part *part = &load->parts[chunk->part];
    run->in_flight--;
    run->done_count++;
    run->done_bytes += chunk_bytes(chunk);
    if (done->sys_errno || done->bytes != chunk_bytes(chunk)) {
        chunk->state = K3_CHUNK_FAILED;
        return 0;
    }
    chunk->state = K3_CHUNK_ARRIVED;
    if (!load->verify)
        return 0;
    struct k3_dev_check check = {
        .data = part->target + (uint64_t)chunk->unit_begin * K3_UNIT_BYTES,
        .wanted = part->digests + (uint64_t)chunk->unit_begin * K3_DIGEST_BYTES,
        .result = part->results + chunk->unit_begin,
        .unit_count = chunk->unit_count,
    };
    uint32_t lane = run->lane;
    run->lane = (lane + 1) % load->lane_count;
    return load->dev_ops->verify_units(load->dev, lane, &check, 1, err);
}

static int reap_some(struct run *run, struct k3_err *err)
{
    struct k3_load *load = run->load;
    struct k3_io_done done[BATCH_COUNT];
    uint32_t count;
    int rc = load->io_ops->reap(load->io, done, BATCH_COUNT, &count, err);
    if (!rc && count == 0)
        rc = k3_fail(err, K3_EIO, "io %s gave nothing back with %u reads in flight",
                     load->io_ops->name, run->in_flight);
    if (rc) {
        drop_engine(run);
        return rc;
    }
    /* All of them are taken, whatever fails: each is a read that is no longer in flight. */
    for (uint32_t i = 0; i < count && load->io; i++) {
        int arrive_rc = arrive(run, &done[i], err);
        if (!rc)
            rc = arrive_rc;
    }
    return rc;
}

/* Wait until no read is in flight, whatever it brings. */
static void drain(struct run *run)
{
    struct k3_load *load = run->load;
    struct k3_io_done done[BATCH_COUNT];
    while (run->in_flight) {
        uint32_t count;
        if (load->io_ops->reap(load->io, done, BATCH_COUNT, &count, NULL) || count == 0 ||
            count > run->in_flight) {
            drop_engine(run);
            return;
        }
        run->in_flight -= count;
    }
}

static int transfer(struct run *run, struct k3_err *err)
{
    int rc = 0;
    while (!rc && run->done_count < run->load->chunk_count) {
        rc = submit_more(run, err);
        if (!rc)
            rc = reap_some(run, err);
        if (!rc)
            rc = tell(run, false, err);
    }
    drain(run);
    return rc;
}

/* Checks borrow memory until their lane was waited for: all lanes, also behind a failure. */
static int wait_lanes(struct k3_load *load, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < load->lane_count; i++) {
        int lane_rc = load->dev_ops->copy_wait(load->dev, i, K3_DEV_WAIT_ALL, err);
        if (!rc)
            rc = lane_rc;
    }
    return rc;
}

/* ---- second reads ---- */

/* A unit is wrong after its second read, which lies in `bounce`: say which, and what is in it. */
static int fail_unit(struct k3_load *load, const struct k3_load_part *part, uint32_t unit,
                     const char *path, struct k3_err *err)
{
    char holds[K3_ERR_TEXT_BYTES / 2];
    uint64_t begin_offset = (uint64_t)unit * K3_UNIT_BYTES;
    k3_load_name_tensors(part->st, begin_offset, begin_offset + K3_UNIT_BYTES, holds, sizeof holds);
    struct k3_load_bad_unit bad = {
        .path = path,
        .holds = holds,
        .wanted = part->digests + (uint64_t)unit * K3_DIGEST_BYTES,
        .unit = file_offset(part, unit) / K3_UNIT_BYTES,
    };
    k3_unit_digest(load->sha, load->bounce, K3_UNIT_BYTES, bad.found);
    if (memcmp(bad.found, bad.wanted, K3_DIGEST_BYTES) != 0)
        return k3_load_fail_unit(&bad, err);
    return k3_fail_at(err, K3_EDEVICE, path, (int64_t)file_offset(part, unit),
                      "%s: unit %" PRIu64 " is right in the file but wrong in the memory of device "
                      "%s: memory or bus is faulty; test the machine",
                      path, bad.unit, load->dev_ops->name);
}

/* One unit past the page cache; false where that is refused or brings less. */
static bool read_direct(const struct k3_load *load, int fd, uint64_t offset)
{
    struct k3_io_file file;
    if (k3_io_file_open(fd, true, &file, NULL))
        return false;
    struct k3_io_read read = {.target = load->bounce, .offset = offset, .bytes = K3_UNIT_BYTES};
    struct k3_io_way way;
    k3_io_way_begin(&way, &read, &file);
    for (bool is_done = false; !is_done;) {
        struct k3_io_step step = k3_io_way_next(&way);
        ssize_t n = pread(step.fd, step.target, step.bytes, (off_t)step.offset);
        is_done = k3_io_way_take(&way, &step, n < 0 ? -(ssize_t)errno : n);
    }
    k3_io_file_close(&file);
    return way.sys_errno == 0 && way.done_bytes == K3_UNIT_BYTES;
}

/* By a new file description and the other way, into `bounce`: past the page cache where the first
 * read went through it; else through it, without what it holds. */
static int read_again(struct k3_load *load, const struct k3_load_part *part, uint32_t unit,
                      const char *path, struct k3_err *err)
{
    int fd;
    int rc = k3_set_part_open(load->set, part->entry, &fd, err);
    if (rc)
        return rc;
    if (load->is_direct || !read_direct(load, fd, file_offset(part, unit))) {
        k3_file_drop(fd, file_offset(part, unit), K3_UNIT_BYTES);
        rc = k3_file_read(fd, path, load->bounce, K3_UNIT_BYTES, file_offset(part, unit), err);
        if (load->is_direct)
            k3_file_drop(fd, file_offset(part, unit), K3_UNIT_BYTES);
    }
    close(fd);
    return rc;
}

static int second_read(struct k3_load *load, struct k3_load_part *part, uint32_t unit,
                       struct k3_err *err)
{
    char name[K3_NAME_BYTES_MAX + 1];
    char path[K3_ERR_TEXT_BYTES / 2];
    k3_part_name(part->entry->rank, part->entry->part, name);
    snprintf(path, sizeof path, "%s/%s",
             k3_set_part_dir(load->set, part->entry->rank, part->entry->part)->path, name);
    int rc = read_again(load, part, unit, path, err);
    if (rc)
        return rc;
    struct k3_dev_copy copy = {
        .target = part->target + (uint64_t)unit * K3_UNIT_BYTES,
        .source = load->bounce,
        .bytes = K3_UNIT_BYTES,
        .kind = K3_COPY_HOST_TO_DEV,
    };
    struct k3_dev_check check = {
        .data = copy.target,
        .wanted = part->digests + (uint64_t)unit * K3_DIGEST_BYTES,
        .result = part->results + unit,
        .unit_count = 1,
    };
    part->results[unit] = K3_UNIT_UNKNOWN;
    rc = load->dev_ops->copy_begin(load->dev, 0, &copy, err);
    if (!rc && load->verify)
        rc = load->dev_ops->verify_units(load->dev, 0, &check, 1, err);
    int wait_rc = load->dev_ops->copy_wait(load->dev, 0, K3_DEV_WAIT_ALL, err);
    if (!rc)
        rc = wait_rc;
    if (!rc && load->verify && part->results[unit] != K3_UNIT_RIGHT)
        rc = fail_unit(load, part, unit, path, err);
    if (!rc)
        load->reread_units++;
    return rc;
}

/* Read once more, by another route, what came wrong or not at all. */
static int settle(struct run *run, struct k3_err *err)
{
    struct k3_load *load = run->load;
    for (uint64_t i = 0; i < load->chunk_count; i++) {
        struct k3_load_chunk *chunk = &load->chunks[i];
        struct k3_load_part *part = &load->parts[chunk->part];
        for (uint32_t j = 0; j < chunk->unit_count; j++) {
            uint32_t unit = chunk->unit_begin + j;
            bool good = load->verify ? part->results[unit] == K3_UNIT_RIGHT
                                     : chunk->state == K3_CHUNK_ARRIVED;
            if (good)
                continue;
            int rc = second_read(load, part, unit, err);
            if (!rc)
                rc = tell(run, false, err);
            if (rc)
                return rc;
        }
        chunk->state = K3_CHUNK_ARRIVED;
    }
    return 0;
}

/* ---- the gate ---- */

/* Looks at every unit once more, in the order of the images and not by the table of chunks: a fault
 * in that table must not hand out a byte. */
static int pass_gate(const struct k3_load *load, struct k3_err *err)
{
    uint64_t right_count = 0;
    for (uint64_t i = 0; i < load->unit_count; i++)
        right_count += load->results[i] == K3_UNIT_RIGHT;
    if (!load->verify || right_count == load->unit_count)
        return 0;
    return k3_fail(err, K3_ECORRUPT, "%" PRIu64 " of %" PRIu64 " units were not checked",
                   load->unit_count - right_count, load->unit_count);
}

int k3_load_run(struct k3_load *load, struct k3_err *err)
{
    k3_load_begin(err);
    if (!load)
        return k3_fail(err, K3_EUSAGE, "there is no load to run: did k3_load_open fail?");
    load->ready = false;
    if (load->broken)
        return k3_fail(err, K3_EUSAGE, "this load cannot run again: io %s failed; open a new one",
                       load->io_ops->name);
    memset(load->results, K3_UNIT_UNKNOWN, (size_t)load->unit_count);
    for (uint64_t i = 0; i < load->chunk_count; i++)
        load->chunks[i].state = K3_CHUNK_WAITING;
    load->reread_units = 0;
    double begin_seconds = k3_load_now();
    struct run run = {.load = load, .told_seconds = begin_seconds};
    int rc = transfer(&run, err);
    int wait_rc = wait_lanes(load, err);
    if (!rc)
        rc = wait_rc;
    if (!rc)
        rc = settle(&run, err);
    if (!rc)
        rc = pass_gate(load, err);
    if (!rc)
        rc = tell(&run, true, err);
    load->run_seconds = k3_load_now() - begin_seconds;
    load->ready = rc == 0;
    return rc;
}
