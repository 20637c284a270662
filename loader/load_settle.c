/* Purpose: second reads: what came wrong or not at all, once more, by another route.
 * Owns: nothing; uses the leg's bounce unit and its lanes.
 * Threads: the thread of the leg, when no read is in flight and all lanes are empty.
 * Errors: K3_ECORRUPT naming file, unit, offset and tensors; K3_EDEVICE; K3_EIO; K3_ECANCELED.
 * Invariants: a unit that stays wrong fails the load; what is right in the file and wrong on the
 * device is told apart; where a unit that had arrived was wrong, all are checked once more, since
 * its bytes may have gone to a place that was checked before. */
#include "io_direct.h"
#include "load_internal.h"
#include "tree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A unit is wrong after its second read, which lies in `bounce`: say which, and what is in it. */
static int fail_unit(struct k3_load_leg *leg, const struct k3_load_part *part, uint32_t unit,
                     const char *path, struct k3_err *err)
{
    char holds[K3_ERR_TEXT_BYTES / 2];
    uint64_t begin_offset = (uint64_t)unit * K3_UNIT_BYTES;
    k3_load_name_tensors(part->st, begin_offset, begin_offset + K3_UNIT_BYTES, holds, sizeof holds);
    struct k3_load_bad_unit bad = {
        .path = path,
        .holds = holds,
        .wanted = part->digests + (uint64_t)unit * K3_DIGEST_BYTES,
        .unit = k3_load_file_offset(part, unit) / K3_UNIT_BYTES,
    };
    k3_unit_digest(leg->sha, leg->bounce, K3_UNIT_BYTES, bad.found);
    if (memcmp(bad.found, bad.wanted, K3_DIGEST_BYTES) != 0)
        return k3_load_fail_unit(&bad, err);
    return k3_fail_at(err, K3_EDEVICE, path, (int64_t)k3_load_file_offset(part, unit),
                      "%s: unit %" PRIu64 " is right in the file but wrong in the memory of device "
                      "%s: memory or bus is faulty; test the machine",
                      path, bad.unit, leg->name);
}

/* One unit past the page cache; false where that is refused or brings less. */
static bool read_direct(const struct k3_load_leg *leg, int fd, uint64_t offset)
{
    struct k3_io_file file;
    if (k3_io_file_open(fd, true, &file, NULL))
        return false;
    struct k3_io_read read = {.target = leg->bounce, .offset = offset, .bytes = K3_UNIT_BYTES};
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
static int read_again(struct k3_load_leg *leg, const struct k3_load_part *part, uint32_t unit,
                      const char *path, struct k3_err *err)
{
    int fd;
    int rc = k3_set_part_open(leg->load->set, part->entry, &fd, err);
    if (rc)
        return rc;
    if (leg->is_direct || !read_direct(leg, fd, k3_load_file_offset(part, unit))) {
        k3_file_drop(fd, k3_load_file_offset(part, unit), K3_UNIT_BYTES);
        rc = k3_file_read(fd, path, leg->bounce, K3_UNIT_BYTES, k3_load_file_offset(part, unit),
                          err);
        if (leg->is_direct)
            k3_file_drop(fd, k3_load_file_offset(part, unit), K3_UNIT_BYTES);
    }
    close(fd);
    return rc;
}

/* Read, copy, check one unit by itself. */
static int second_read(struct k3_load_leg *leg, struct k3_load_part *part, uint32_t unit,
                       struct k3_err *err)
{
    const struct k3_load *load = leg->load;
    char name[K3_NAME_BYTES_MAX + 1];
    char path[K3_ERR_TEXT_BYTES / 2];
    k3_part_name(part->entry->rank, part->entry->part, name);
    snprintf(path, sizeof path, "%s/%s",
             k3_set_part_dir(load->set, part->entry->rank, part->entry->part)->path, name);
    int rc = read_again(leg, part, unit, path, err);
    if (rc)
        return rc;
    const struct k3_load_units units = {part, unit, 1};
    part->results[unit] = K3_UNIT_UNKNOWN;
    rc = k3_load_copy_units(leg, 0, &units, leg->bounce, err);
    if (!rc && load->verify)
        rc = k3_load_check_units(leg, 0, &units, err);
    if (!rc)
        rc = k3_load_checks_flush(leg, 0, err);
    int wait_rc = leg->dev_ops->copy_wait(leg->dev, 0, K3_DEV_WAIT_ALL, err);
    k3_load_trace_checks_done(leg);
    if (!rc)
        rc = wait_rc;
    if (!rc && load->verify && part->results[unit] != K3_UNIT_RIGHT)
        rc = fail_unit(leg, part, unit, path, err);
    if (!rc)
        leg->reread_units++;
    return rc;
}

/* Every unit that is not known to be right once more; *wrong_count: those of them whose read had
 * come in full. */
static int settle_round(struct k3_load_leg *leg, uint64_t *wrong_count, struct k3_err *err)
{
    struct k3_load *load = leg->load;
    for (uint64_t i = 0; i < leg->chunk_count; i++) {
        struct k3_load_chunk *chunk = &leg->chunks[i];
        struct k3_load_part *part = &load->parts[chunk->part];
        for (uint32_t j = 0; j < chunk->unit_count; j++) {
            uint32_t unit = chunk->unit_begin + j;
            bool good = load->verify ? part->results[unit] == K3_UNIT_RIGHT
                                     : chunk->state == K3_CHUNK_ARRIVED;
            if (good)
                continue;
            *wrong_count += chunk->state == K3_CHUNK_ARRIVED;
            int rc = k3_load_stopped(load, err);
            if (!rc)
                rc = second_read(leg, part, unit, err);
            if (rc)
                return rc;
        }
        chunk->state = K3_CHUNK_ARRIVED;
    }
    return 0;
}

/* What was right before counts for nothing. */
static int check_all(struct k3_load_leg *leg, struct k3_err *err)
{
    uint32_t lane = 0;
    int rc = 0;
    for (uint64_t i = 0; i < leg->chunk_count && !rc; i++) {
        const struct k3_load_chunk *chunk = &leg->chunks[i];
        const struct k3_load_part *part = &leg->load->parts[chunk->part];
        const struct k3_load_units units = {part, chunk->unit_begin, chunk->unit_count};
        memset(part->results + chunk->unit_begin, K3_UNIT_UNKNOWN, chunk->unit_count);
        rc = k3_load_stopped(leg->load, err);
        if (!rc)
            rc = k3_load_check_units(leg, lane, &units, err);
        if (!rc && leg->batches[lane].unit_count >= leg->batch_units) {
            rc = k3_load_checks_flush(leg, lane, err);
            lane = (lane + 1) % leg->lane_count;
        }
    }
    if (!rc)
        rc = k3_load_checks_flush(leg, lane, err);
    int wait_rc = k3_load_leg_wait(leg, err);
    return rc ? rc : wait_rc;
}

int k3_load_leg_settle(struct k3_load_leg *leg, struct k3_err *err)
{
    for (uint32_t round = 0; round < K3_LOAD_ROUND_COUNT; round++) {
        uint64_t wrong_count = 0;
        int rc = settle_round(leg, &wrong_count, err);
        if (!rc && wrong_count)
            rc = check_all(leg, err);
        if (rc || !wrong_count)
            return rc;
    }
    return k3_fail(err, K3_EDEVICE,
                   "device %s: units that were right are wrong again, %u times in a row: memory or "
                   "bus is faulty; test the machine",
                   leg->name, K3_LOAD_ROUND_COUNT);
}
