/* Purpose: the device "host": images in ordinary memory, copies and checks by threads.
 * Owns: its lanes (a thread, a SHA-256 stream and a bounded queue each); regions from alloc are
 * the caller's until release.
 * Threads: one thread drives an open device; each lane has a thread of its own.
 * Errors: open: K3_ENOMEM, K3_EIO (no thread), K3_EUNSUPPORTED (no SHA-256); K3_EUSAGE for what
 * the caller asked wrongly, told when the operation is begun.  On a host an operation that was
 * begun cannot fail.
 * Invariants: what is begun on a lane runs in that order; a full queue makes the caller wait, it
 * never grows; close runs all that was begun, then ends the threads. */
#include "dev.h"
#include "mem.h"
#include "thread.h"
#include "tree.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* At 4 MiB an operation this is 256 MiB of work ahead of a lane: no lane runs dry while the
 * caller waits for another. */
#define QUEUE_COUNT 64u

enum op_kind { OP_COPY, OP_CHECK };

struct op {
    enum op_kind kind;
    bool is_last; /* with it an operation of the table ends: one may be several checks */
    union {
        struct k3_dev_copy copy;
        struct k3_dev_check check;
    } as;
};

struct lane {
    pthread_mutex_t lock;
    pthread_cond_t has_work; /* an operation waits, or the lane closes */
    pthread_cond_t has_room; /* an operation ended */
    pthread_t thread;
    struct k3_sha256 *sha;
    struct op queue[QUEUE_COUNT];     /* ring; its first operation stays in it while it runs */
    uint64_t begun_count, done_count; /* operations of the table, since open */
    uint32_t begin, count;
    bool closing, started;
};

struct k3_dev {
    struct lane *lanes;
    uint32_t lane_count;
};

static void run_check(struct k3_sha256 *sha, const struct k3_dev_check *check)
{
    for (uint32_t i = 0; i < check->unit_count; i++) {
        uint8_t digest[K3_DIGEST_BYTES];
        const uint8_t *unit = (const uint8_t *)check->data + (size_t)i * K3_UNIT_BYTES;
        k3_unit_digest(sha, unit, K3_UNIT_BYTES, digest);
        const uint8_t *wanted = check->wanted + (size_t)i * K3_DIGEST_BYTES;
        bool right = memcmp(digest, wanted, sizeof digest) == 0;
        /* A trace looks at answers before they were waited for. */
        __atomic_store_n(&check->result[i], right ? K3_UNIT_RIGHT : K3_UNIT_WRONG,
                         __ATOMIC_RELEASE);
    }
}

static void *serve(void *context)
{
    struct lane *lane = context;
    pthread_mutex_lock(&lane->lock);
    for (;;) {
        while (!lane->closing && lane->count == 0)
            pthread_cond_wait(&lane->has_work, &lane->lock);
        if (lane->count == 0)
            break;
        struct op op = lane->queue[lane->begin];
        pthread_mutex_unlock(&lane->lock);
        if (op.kind == OP_COPY)
            memcpy(op.as.copy.target, op.as.copy.source, op.as.copy.bytes);
        else
            run_check(lane->sha, &op.as.check);
        pthread_mutex_lock(&lane->lock);
        lane->begin = (lane->begin + 1) % QUEUE_COUNT;
        lane->count--;
        lane->done_count += op.is_last;
        pthread_cond_signal(&lane->has_room);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

static int lane_push(struct k3_dev *dev, uint32_t index, const struct op *op, struct k3_err *err)
{
    if (index >= dev->lane_count)
        return k3_fail(err, K3_EUSAGE, "device host: lane %u of %u", index, dev->lane_count);
    struct lane *lane = &dev->lanes[index];
    pthread_mutex_lock(&lane->lock);
    while (lane->count == QUEUE_COUNT)
        pthread_cond_wait(&lane->has_room, &lane->lock);
    lane->queue[(lane->begin + lane->count) % QUEUE_COUNT] = *op;
    lane->count++;
    lane->begun_count += op->is_last;
    pthread_cond_signal(&lane->has_work);
    pthread_mutex_unlock(&lane->lock);
    return 0;
}

static int host_probe(uint32_t index, struct k3_err *err)
{
    if (index)
        return k3_fail(err, K3_EUNSUPPORTED, "device host: no number %u, there is one host", index);
    return 0;
}

static void host_close(struct k3_dev *dev)
{
    if (!dev)
        return;
    for (uint32_t i = 0; i < dev->lane_count; i++) {
        struct lane *lane = &dev->lanes[i];
        if (lane->started) {
            pthread_mutex_lock(&lane->lock);
            lane->closing = true;
            pthread_cond_signal(&lane->has_work);
            pthread_mutex_unlock(&lane->lock);
            pthread_join(lane->thread, NULL);
        }
        k3_sha256_close(lane->sha);
        pthread_cond_destroy(&lane->has_room);
        pthread_cond_destroy(&lane->has_work);
        pthread_mutex_destroy(&lane->lock);
    }
    free(dev->lanes);
    free(dev);
}

static int lane_start(struct lane *lane, struct k3_err *err)
{
    int rc = k3_sha256_open(&lane->sha, err);
    if (rc)
        return rc;
    int sys_errno = k3_thread_start(&lane->thread, serve, lane);
    if (sys_errno)
        return k3_fail_sys(err, sys_errno, "device host: cannot make a thread");
    lane->started = true;
    return 0;
}

static int host_open(const struct k3_dev_options *options, struct k3_dev **out, struct k3_err *err)
{
    *out = NULL;
    uint32_t count = options->lane_count;
    if (count == 0 || count > K3_LANE_COUNT_MAX)
        return k3_fail(err, K3_EUSAGE, "device host: %u lanes are not in 1..%u", count,
                       K3_LANE_COUNT_MAX);
    int rc = host_probe(options->index, err);
    if (rc)
        return rc;
    struct k3_dev *dev = calloc(1, sizeof *dev);
    if (dev)
        dev->lanes = calloc(count, sizeof *dev->lanes);
    if (!dev || !dev->lanes) {
        free(dev);
        return k3_fail_sys(err, ENOMEM, "device host: cannot open %u lanes", count);
    }
    while (!rc && dev->lane_count < count) {
        struct lane *lane = &dev->lanes[dev->lane_count++];
        pthread_mutex_init(&lane->lock, NULL);
        pthread_cond_init(&lane->has_work, NULL);
        pthread_cond_init(&lane->has_room, NULL);
        rc = lane_start(lane, err);
    }
    if (rc)
        host_close(dev);
    else
        *out = dev;
    return rc;
}

static int host_alloc(struct k3_dev *dev, uint64_t bytes, void **out, struct k3_err *err)
{
    (void)dev;
    return k3_mem_alloc((size_t)bytes, out, err);
}

static void host_release(struct k3_dev *dev, void *data, uint64_t bytes)
{
    (void)dev;
    k3_mem_free(data, (size_t)bytes);
}

/* Every address of a host is fit for its copies. */
static int host_pin(struct k3_dev *dev, void *data, size_t bytes, struct k3_err *err)
{
    (void)dev;
    (void)data;
    (void)bytes;
    (void)err;
    return 0;
}

static void host_unpin(struct k3_dev *dev, void *data, size_t bytes)
{
    (void)dev;
    (void)data;
    (void)bytes;
}

static int host_copy_begin(struct k3_dev *dev, uint32_t lane, const struct k3_dev_copy *copy,
                           struct k3_err *err)
{
    struct op op = {.kind = OP_COPY, .is_last = true, .as.copy = *copy};
    return lane_push(dev, lane, &op, err);
}

static int host_copy_wait(struct k3_dev *dev, uint32_t index, uint64_t op_count, struct k3_err *err)
{
    if (index >= dev->lane_count)
        return k3_fail(err, K3_EUSAGE, "device host: lane %u of %u", index, dev->lane_count);
    struct lane *lane = &dev->lanes[index];
    pthread_mutex_lock(&lane->lock);
    while (lane->done_count < op_count && lane->done_count < lane->begun_count)
        pthread_cond_wait(&lane->has_room, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
    return 0;
}

static int host_copy_done(struct k3_dev *dev, uint32_t index, uint64_t op_count, bool *is_done,
                          struct k3_err *err)
{
    *is_done = false;
    if (index >= dev->lane_count)
        return k3_fail(err, K3_EUSAGE, "device host: lane %u of %u", index, dev->lane_count);
    struct lane *lane = &dev->lanes[index];
    pthread_mutex_lock(&lane->lock);
    *is_done = lane->done_count >= op_count || lane->done_count == lane->begun_count;
    pthread_mutex_unlock(&lane->lock);
    return 0;
}

static int host_verify_units(struct k3_dev *dev, uint32_t lane, const struct k3_dev_check *checks,
                             uint32_t check_count, struct k3_err *err)
{
    static const struct k3_dev_check nothing;
    uint64_t unit_count = 0;
    for (uint32_t i = 0; i < check_count; i++)
        unit_count += checks[i].unit_count;
    if (unit_count > K3_DEV_CHECK_UNITS_MAX)
        return k3_fail(err, K3_EUSAGE, "device host: %llu units in one check, %u at most",
                       (unsigned long long)unit_count, K3_DEV_CHECK_UNITS_MAX);
    if (check_count == 0)
        checks = &nothing, check_count = 1;
    int rc = 0;
    for (uint32_t i = 0; i < check_count && !rc; i++) {
        struct op op = {.kind = OP_CHECK, .is_last = i + 1 == check_count, .as.check = checks[i]};
        rc = lane_push(dev, lane, &op, err);
    }
    return rc;
}

const struct k3_dev_ops k3_dev_host = {
    .name = "host",
    .is_host_memory = true,
    .probe = host_probe,
    .open = host_open,
    .alloc = host_alloc,
    .release = host_release,
    .pin = host_pin,
    .unpin = host_unpin,
    .copy_begin = host_copy_begin,
    .copy_wait = host_copy_wait,
    .copy_done = host_copy_done,
    .verify_units = host_verify_units,
    .close = host_close,
};
