/* Purpose: an io engine that spoils chosen reads of another one.
 * Owns: the rule (static), the inner engine, one slot for each read in flight.
 * Threads: one drives it, as any engine.
 * Errors: those of the inner engine, and those of the rule.
 * Invariant: what no rule hits passes through unchanged; at most `depth` reads are in flight. */
#include "fault_io.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

static const struct k3_io_ops *inner_ops;
static struct fault_io_rule rule;
static uint64_t hit_count;

struct slot {
    struct k3_io_read read;
    struct k3_io_done done; /* where the read never reached the inner engine, or was held back */
    bool used, spoiled, held;
};

struct k3_io {
    struct k3_io *inner;
    struct slot *slots;
    uint32_t depth;
    uint32_t inner_count; /* in flight in the inner engine */
    uint32_t held_count;  /* complete, kept here */
    uint64_t read_count, submit_count, reap_count;
};

/* Is number n (from 1) of a kind one that the rule spoils? */
#define INNER_COUNT 16u

static bool hits(enum fault_io_kind kind, uint64_t n)
{
    if (rule.kind != kind || n < rule.nth || n - rule.nth >= rule.count)
        return false;
    hit_count++;
    return true;
}

static int fault_probe(const char *dir, struct k3_err *err)
{
    return inner_ops->probe(dir, err);
}

static void fault_close(struct k3_io *io)
{
    if (!io)
        return;
    inner_ops->close(io->inner);
    free(io->slots);
    free(io);
}

static int fault_open(const struct k3_io_options *options, struct k3_io **out, struct k3_err *err)
{
    *out = NULL;
    struct k3_io *io = calloc(1, sizeof *io);
    if (!io)
        return k3_fail(err, K3_ENOMEM, "fault io");
    int rc = inner_ops->open(options, &io->inner, err);
    if (!rc) {
        io->depth = options->depth;
        io->slots = calloc(io->depth, sizeof *io->slots);
        if (!io->slots)
            rc = k3_fail(err, K3_ENOMEM, "fault io");
    }
    if (rc)
        fault_close(io);
    else
        *out = io;
    return rc;
}

static int fault_add_file(struct k3_io *io, int fd, uint32_t *file, struct k3_err *err)
{
    return inner_ops->add_file(io->inner, fd, file, err);
}

static void hold(struct k3_io *io, struct slot *slot, int sys_errno, size_t bytes)
{
    slot->done = (struct k3_io_done){slot->read.tag, sys_errno, bytes};
    slot->held = true;
    io->held_count++;
}

static int submit_one(struct k3_io *io, const struct k3_io_read *read, struct k3_err *err)
{
    uint64_t n = io->read_count + 1;
    uint32_t at = 0;
    while (io->slots[at].used)
        at++;
    struct slot *slot = &io->slots[at];
    struct k3_io_read own = *read;
    own.tag = at;
    *slot = (struct slot){.read = *read, .used = true};
    if (hits(FAULT_IO_STALE, n)) {
        hold(io, slot, 0, read->bytes);
    } else if (hits(FAULT_IO_FAILING, n)) {
        hold(io, slot, EIO, 0);
    } else {
        slot->spoiled = hits(FAULT_IO_LATE, n) || hits(FAULT_IO_PARTIAL, n) ||
                        hits(FAULT_IO_WRONG, n) || hits(FAULT_IO_FORGED, n);
        if (slot->spoiled && rule.kind == FAULT_IO_PARTIAL)
            own.bytes /= 2;
        int rc = inner_ops->submit(io->inner, &own, 1, err);
        if (rc) {
            slot->used = false;
            return rc;
        }
        io->inner_count++;
    }
    io->read_count = n;
    return 0;
}

static int fault_submit(struct k3_io *io, const struct k3_io_read *reads, uint32_t count,
                        struct k3_err *err)
{
    if (hits(FAULT_IO_SUBMIT, ++io->submit_count))
        return k3_fail(err, K3_EIO, "fault io: submit fails");
    if (count > io->depth - io->inner_count - io->held_count)
        return k3_fail(err, K3_EUSAGE, "fault io: more than depth");
    int rc = 0;
    for (uint32_t i = 0; !rc && i < count; i++)
        rc = submit_one(io, &reads[i], err);
    return rc;
}

/* A completion of the inner engine: spoil it, pass it on, or keep it. */
static void take(struct k3_io *io, const struct k3_io_done *inner, struct k3_io_done *done,
                 uint32_t *count)
{
    struct slot *slot = &io->slots[inner->tag];
    io->inner_count--;
    if (slot->spoiled && rule.kind == FAULT_IO_LATE) {
        hold(io, slot, inner->sys_errno, inner->bytes);
        return;
    }
    if (slot->spoiled && rule.kind == FAULT_IO_WRONG && inner->bytes)
        ((unsigned char *)slot->read.target)[inner->bytes / 3] ^= 0x10;
    done[*count] = *inner;
    done[*count].tag = slot->read.tag;
    if (slot->spoiled && rule.kind == FAULT_IO_FORGED)
        done[*count].tag = UINT64_MAX;
    slot->used = false;
    ++*count;
}

/* What was held back comes when the inner engine is idle. */
static void let_go(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count)
{
    for (uint32_t i = 0; i < io->depth && io->inner_count == 0 && *count < max; i++) {
        if (!io->slots[i].used || !io->slots[i].held)
            continue;
        done[(*count)++] = io->slots[i].done;
        io->slots[i].used = false;
        io->held_count--;
    }
}

static int fault_reap(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                      struct k3_err *err)
{
    struct k3_io_done inner[INNER_COUNT];
    *count = 0;
    uint64_t n = ++io->reap_count;
    if (hits(FAULT_IO_REAP, n))
        return k3_fail(err, K3_EIO, "fault io: reap fails");
    if (hits(FAULT_IO_SLOW, n))
        nanosleep(&(struct timespec){0, 120000000}, NULL);
    while (max && *count == 0 && io->inner_count) {
        uint32_t inner_count;
        int rc = inner_ops->reap(io->inner, inner, max < INNER_COUNT ? max : INNER_COUNT,
                                 &inner_count, err);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < inner_count; i++)
            take(io, &inner[i], done, count);
    }
    let_go(io, done, max, count);
    return 0;
}

/* Only calls that bring something count: how often one polls is no part of a rule. */
static int fault_poll(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                      struct k3_err *err)
{
    struct k3_io_done inner[INNER_COUNT];
    uint32_t inner_count;
    *count = 0;
    int rc = inner_ops->poll(io->inner, inner, max < INNER_COUNT ? max : INNER_COUNT, &inner_count,
                             err);
    for (uint32_t i = 0; !rc && i < inner_count; i++)
        take(io, &inner[i], done, count);
    if (!rc)
        let_go(io, done, max, count);
    if (rc || *count == 0)
        return rc;
    uint64_t n = ++io->reap_count;
    if (hits(FAULT_IO_SLOW, n))
        nanosleep(&(struct timespec){0, 120000000}, NULL);
    return hits(FAULT_IO_REAP, n) ? k3_fail(err, K3_EIO, "fault io: reap fails") : 0;
}

static const struct k3_io_ops ops = {
    .name = "fault",
    .probe = fault_probe,
    .open = fault_open,
    .add_file = fault_add_file,
    .submit = fault_submit,
    .reap = fault_reap,
    .poll = fault_poll,
    .close = fault_close,
};

const struct k3_io_ops *fault_io(const struct k3_io_ops *inner, const struct fault_io_rule *wanted)
{
    static const struct fault_io_rule none = {FAULT_IO_NONE, 0, 0};
    inner_ops = inner;
    rule = wanted ? *wanted : none;
    hit_count = 0;
    return &ops;
}

uint64_t fault_io_hit_count(void)
{
    return hit_count;
}
