/* Purpose: the data plane of a leg: reads in flight, copies behind them where reads cannot land in
 * the image, checks behind those.
 * Owns: nothing; fills images, chunk states and unit results.
 * Threads: the thread of the leg controls; engine and device have their own.
 * Errors: K3_EIO; K3_EDEVICE; K3_ECANCELED.  A read that failed is none: it is read once more.
 * Invariants: no allocation, no names until an error needs one; a slot is read into only when its
 * last copy is done; on every way out no read is in flight and every lane is empty. */
#include "load_internal.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* Reads handed over or taken back in one call: enough to save calls, small on the stack. */
#define BATCH_COUNT 16u
#define NAP_NS      2000000 /* of a paced run: short against the time of a chunk at any sane rate */

struct run {
    struct k3_load_leg *leg;
    uint64_t next;       /* chunk to submit */
    uint64_t done_count; /* chunks that came back */
    uint32_t in_flight;
    uint32_t copy_lane, check_lane; /* of the next copy; of the batch that is being gathered */
    bool tells;
};

uint64_t k3_load_file_offset(const struct k3_load_part *part, uint32_t unit)
{
    return part->entry->data_offset + (uint64_t)unit * K3_UNIT_BYTES;
}

static size_t chunk_bytes(const struct k3_load_chunk *chunk)
{
    return (size_t)chunk->unit_count * K3_UNIT_BYTES;
}

int k3_load_leg_copy(struct k3_load_leg *leg, uint32_t lane, const struct k3_dev_copy *copy,
                     struct k3_err *err)
{
    int rc = leg->dev_ops->copy_begin(leg->dev, lane, copy, err);
    leg->lane_ops[lane] += !rc;
    return rc;
}

int k3_load_leg_check(struct k3_load_leg *leg, uint32_t lane, const struct k3_dev_check *checks,
                      uint32_t check_count, struct k3_err *err)
{
    int rc = leg->dev_ops->verify_units(leg->dev, lane, checks, check_count, err);
    leg->lane_ops[lane] += !rc;
    return rc;
}

/* ---- reads ---- */

/* Where a chunk's read may land; NULL: no slot is free. */
static void *take_target(struct k3_load_leg *leg, uint64_t number)
{
    const struct k3_load_chunk *chunk = &leg->chunks[number];
    if (leg->slots.count)
        return k3_load_slot_take(leg, number);
    return leg->load->parts[chunk->part].target + (uint64_t)chunk->unit_begin * K3_UNIT_BYTES;
}

/* When a chunk's read was handed over: kept for a trace only. */
static double submit_seconds(const struct k3_load_leg *leg, uint64_t number)
{
    const struct k3_load *load = leg->load;
    const uint64_t first = (uint64_t)(leg->chunks - load->chunks);
    return load->trace.events ? load->trace.submit_seconds[first + number] : 0;
}

static void mark_submitted(struct k3_load_leg *leg, uint64_t number)
{
    struct k3_load *load = leg->load;
    const uint64_t first = (uint64_t)(leg->chunks - load->chunks);
    leg->chunks[number].state = K3_CHUNK_IN_FLIGHT;
    if (load->trace.events)
        load->trace.submit_seconds[first + number] = k3_load_now();
}

static int submit_more(struct run *run, struct k3_err *err)
{
    struct k3_load_leg *leg = run->leg;
    struct k3_io_read reads[BATCH_COUNT];
    for (;;) {
        uint32_t count = 0;
        while (count < BATCH_COUNT && run->in_flight + count < leg->depth &&
               run->next + count < leg->chunk_count) {
            const struct k3_load_chunk *chunk = &leg->chunks[run->next + count];
            const struct k3_load_part *part = &leg->load->parts[chunk->part];
            if (!k3_load_pace_takes(leg->load, chunk_bytes(chunk)))
                break;
            void *target = take_target(leg, run->next + count);
            if (!target) {
                k3_load_pace_gives(leg->load, chunk_bytes(chunk));
                break;
            }
            reads[count] = (struct k3_io_read){
                .target = target,
                .offset = k3_load_file_offset(part, chunk->unit_begin),
                .bytes = chunk_bytes(chunk),
                .tag = run->next + count,
                .file = part->io_file,
            };
            count++;
        }
        if (count == 0)
            return 0;
        int rc = leg->io_ops->submit(leg->io, reads, count, err);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < count; i++)
            mark_submitted(leg, run->next + i);
        run->next += count;
        run->in_flight += count;
    }
}

/* The engine broke its contract or failed: only its close still promises that no read is in
 * flight. */
static void drop_engine(struct run *run)
{
    struct k3_load_leg *leg = run->leg;
    leg->io_ops->close(leg->io);
    leg->io = NULL;
    leg->broken = true;
    run->in_flight = 0;
}

/* ---- what arrived ---- */

static struct k3_load_units units_of(const struct k3_load_leg *leg,
                                     const struct k3_load_chunk *chunk)
{
    return (struct k3_load_units){&leg->load->parts[chunk->part], chunk->unit_begin,
                                  chunk->unit_count};
}

/* Units that lie in their place: so many as make a launch worth while are checked by one, and the
 * lanes take turns. */
static int check(struct run *run, const struct k3_load_units *units, struct k3_err *err)
{
    struct k3_load_leg *leg = run->leg;
    int rc = leg->load->verify ? k3_load_check_units(leg, run->check_lane, units, err) : 0;
    if (rc || leg->batches[run->check_lane].unit_count < leg->batch_units)
        return rc;
    rc = k3_load_checks_flush(leg, run->check_lane, err);
    if (++run->check_lane == leg->lane_count)
        run->check_lane = leg->check_lane_begin;
    return rc;
}

/* Chunks of one slot that arrived, from the first on; the copy is of all of them. */
static int copy_some(struct run *run, const struct k3_load_chunk *first, uint32_t count,
                     bool is_last, struct k3_err *err)
{
    struct k3_load_leg *leg = run->leg;
    struct k3_load_units units = units_of(leg, first);
    for (uint32_t i = 1; i < count; i++)
        units.unit_count += first[i].unit_count;
    int rc = k3_load_copy_units(leg, run->copy_lane, &units, k3_load_slot_data(leg, first), err);
    const struct k3_load_copying copying = {
        .units = units,
        .op_count = leg->lane_ops[run->copy_lane],
        .begin_seconds = leg->load->trace.events ? k3_load_now() : 0,
        .lane = run->copy_lane,
        .slot = is_last ? first->slot : K3_LOAD_SLOT_NONE,
    };
    k3_load_slots_push(leg, &copying);
    return rc;
}

/* All reads of a slot came back: what arrived goes on, in as few copies as there are gaps. */
static int empty_slot(struct run *run, const struct k3_load_chunk *chunk, struct k3_err *err)
{
    struct k3_load_leg *leg = run->leg;
    const struct k3_load_chunk *first = chunk - chunk->slot_at, *end = first + chunk->slot_chunks;
    int rc = 0;
    while (end > first && end[-1].state != K3_CHUNK_ARRIVED)
        end--;
    if (first == end)
        k3_load_slot_free(leg, chunk->slot);
    while (first < end && !rc) {
        uint32_t count = 0;
        while (first + count < end && first[count].state == K3_CHUNK_ARRIVED)
            count++;
        if (count)
            rc = copy_some(run, first, count, first + count == end, err);
        first += count ? count : 1;
    }
    run->copy_lane = (run->copy_lane + 1) % leg->copy_lane_count;
    return rc;
}

/* One completion: copy it on, begin its check, or leave the chunk to a second read. */
static int arrive(struct run *run, const struct k3_io_done *done, struct k3_err *err)
{
    struct k3_load_leg *leg = run->leg;
    if (done->tag >= leg->chunk_count || leg->chunks[done->tag].state != K3_CHUNK_IN_FLIGHT) {
        drop_engine(run);
        return k3_fail(err, K3_EIO, "io %s gave back a read that was not in flight",
                       leg->io_ops->name);
    }
    struct k3_load_chunk *chunk = &leg->chunks[done->tag];
    run->in_flight--;
    run->done_count++;
    atomic_fetch_add_explicit(&leg->load->done_bytes, chunk_bytes(chunk), memory_order_relaxed);
    const struct k3_load_units units = units_of(leg, chunk);
    if (done->sys_errno || done->bytes != chunk_bytes(chunk)) {
        chunk->state = K3_CHUNK_FAILED;
    } else {
        chunk->state = K3_CHUNK_ARRIVED;
        k3_load_trace_units(leg, K3_TRACE_READ, &units, 0, submit_seconds(leg, done->tag));
    }
    if (leg->slots.count)
        return k3_load_slot_came(leg, done->tag) ? empty_slot(run, chunk, err) : 0;
    return chunk->state == K3_CHUNK_ARRIVED ? check(run, &units, err) : 0;
}

/* Completions of the engine: those that are there, or the next. */
static int take_reads(struct run *run, bool waits, uint32_t *count, struct k3_err *err)
{
    struct k3_load_leg *leg = run->leg;
    struct k3_io_done done[BATCH_COUNT];
    const struct k3_io_ops *ops = leg->io_ops;
    int rc = (waits ? ops->reap : ops->poll)(leg->io, done, BATCH_COUNT, count, err);
    if (!rc && waits && *count == 0)
        rc = k3_fail(err, K3_EIO, "io %s gave nothing back with %u reads in flight", ops->name,
                     run->in_flight);
    if (rc) {
        drop_engine(run);
        return rc;
    }
    /* All of them are taken, whatever fails: each is a read that is no longer in flight. */
    for (uint32_t i = 0; i < *count && leg->io; i++) {
        int arrive_rc = arrive(run, &done[i], err);
        if (!rc)
            rc = arrive_rc;
    }
    return rc;
}

/* ---- what was copied ---- */

/* The oldest copy is done: its slot is free, and its units are due for a check. */
static int end_copy(struct run *run, struct k3_err *err)
{
    struct k3_load_copying copying;
    int rc = k3_load_slots_pop(run->leg, &copying, err);
    return rc ? rc : check(run, &copying.units, err);
}

/* Those copies that are done; never waits. */
static int end_copies(struct run *run, uint32_t *count, struct k3_err *err)
{
    struct k3_load_leg *leg = run->leg;
    bool is_done = true;
    int rc = 0;
    for (*count = 0; !rc && leg->slots.copying_count; ++*count) {
        rc = k3_load_slots_ask(leg, &is_done, err);
        if (rc || !is_done)
            break;
        rc = end_copy(run, err);
    }
    return rc;
}

/* Wait until no read is in flight, whatever it brings. */
static void drain(struct run *run)
{
    struct k3_load_leg *leg = run->leg;
    struct k3_io_done done[BATCH_COUNT];
    while (run->in_flight) {
        uint32_t count;
        if (leg->io_ops->reap(leg->io, done, BATCH_COUNT, &count, NULL) || count == 0 ||
            count > run->in_flight) {
            drop_engine(run);
            return;
        }
        run->in_flight -= count;
    }
}

static void nap(void)
{
    struct timespec time = {0, NAP_NS};
    nanosleep(&time, NULL);
}

static int flush_lanes(struct k3_load_leg *leg, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t lane = 0; lane < leg->lane_count && !rc; lane++)
        rc = k3_load_checks_flush(leg, lane, err);
    return rc;
}

/* Are slots short, so that fewer reads can be in flight than should?  Then the bus is the slower
 * side. */
static bool waits_for_copy(const struct run *run)
{
    const struct k3_load_leg *leg = run->leg;
    const bool lacks = run->in_flight + k3_load_slots_room(leg, run->next) < leg->depth;
    return leg->slots.copying_count && (run->in_flight == 0 || lacks);
}

/* Time since the last look, if it brought nothing: by what was lacking. */
static void count_wait(struct run *run, bool has_moved, double *begin_seconds)
{
    struct k3_load_waits *waits = &run->leg->waits;
    const double now = k3_load_now();
    if (!has_moved)
        *(waits_for_copy(run) ? &waits->copy : &waits->read) += now - *begin_seconds;
    *begin_seconds = now;
}

/* Nothing is there to be done: wait for a copy or for a read. */
static int wait_some(struct run *run, struct k3_err *err)
{
    uint32_t count;
    if (waits_for_copy(run))
        return end_copy(run, err);
    if (run->in_flight)
        return take_reads(run, true, &count, err);
    nap(); /* the pace lets nothing more be asked for yet */
    return 0;
}

/* Where both sides are memory, what is next comes within microseconds, from the one or the other:
 * to sleep for either would leave the other idle. */
static bool spins(struct run *run, double *until_seconds)
{
    const double now = k3_load_now();
    if (*until_seconds == 0)
        *until_seconds = now + run->leg->spin_seconds;
    return now < *until_seconds;
}

static int transfer(struct run *run, struct k3_err *err)
{
    struct k3_load_leg *leg = run->leg;
    double until_seconds = 0, begin_seconds = k3_load_now();
    int rc = 0;
    while (!rc && (run->done_count < leg->chunk_count || leg->slots.copying_count)) {
        uint32_t copied_count = 0, read_count = 0;
        const uint64_t next = run->next;
        rc = end_copies(run, &copied_count, err);
        if (!rc)
            rc = submit_more(run, err);
        if (!rc && run->in_flight)
            rc = take_reads(run, false, &read_count, err);
        if (copied_count || read_count || run->next != next)
            until_seconds = 0;
        else if (!rc && !spins(run, &until_seconds))
            rc = wait_some(run, err);
        count_wait(run, copied_count + read_count, &begin_seconds);
        k3_load_trace_checks_done(leg);
        if (!rc)
            rc = run->tells ? k3_load_tell(leg->load, false, err) : k3_load_stopped(leg->load, err);
    }
    drain(run);
    return rc ? rc : flush_lanes(run->leg, err);
}

/* Copies and checks borrow memory until their lane was waited for: all lanes, also behind a
 * failure. */
int k3_load_leg_wait(struct k3_load_leg *leg, struct k3_err *err)
{
    double begin_seconds = k3_load_now();
    int rc = 0;
    for (uint32_t i = 0; i < leg->lane_count; i++) {
        int lane_rc = leg->dev_ops->copy_wait(leg->dev, i, K3_DEV_WAIT_ALL, err);
        if (!rc)
            rc = lane_rc;
    }
    leg->waits.check += k3_load_now() - begin_seconds;
    if (!rc)
        k3_load_slots_trace(leg);
    k3_load_trace_checks_done(leg);
    leg->open_check_count = 0; /* of a failed lane no answer comes */
    return rc;
}

int k3_load_leg_run(struct k3_load_leg *leg, bool tells, struct k3_err *err)
{
    if (leg->broken)
        return k3_fail(err, K3_EUSAGE, "this load cannot run again: io %s failed; open a new one",
                       leg->io_ops->name);
    for (uint64_t i = 0; i < leg->chunk_count; i++)
        leg->chunks[i].state = K3_CHUNK_WAITING;
    leg->reread_units = 0;
    memset(&leg->waits, 0, sizeof leg->waits);
    memset(leg->batches, 0, leg->lane_count * sizeof *leg->batches);
    k3_load_slots_reset(&leg->slots);
    double begin_seconds = k3_load_now();
    struct run run = {.leg = leg, .tells = tells, .check_lane = leg->check_lane_begin};
    int rc = transfer(&run, err);
    int wait_rc = k3_load_leg_wait(leg, err);
    if (!rc)
        rc = wait_rc;
    double settle_seconds = k3_load_now();
    if (!rc)
        rc = k3_load_leg_settle(leg, err);
    leg->waits.settle = k3_load_now() - settle_seconds;
    leg->run_seconds = k3_load_now() - begin_seconds;
    return rc;
}
