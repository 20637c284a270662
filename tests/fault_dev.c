/* Purpose: a device that poisons memory and spoils chosen operations of another one.
 * Owns: the rule (static) and the inner device.
 * Threads: one drives it, as any device.
 * Errors: those of the inner device, and those of the rule.
 * Invariant: what no rule hits passes through unchanged. */
#include "fault_dev.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define POISON_STEP_BYTES ((uint64_t)1 << 20)
#define FLIP_OFFSET       12345u

static const struct k3_dev_ops *inner_ops;
static struct fault_dev_rule rule;
static uint64_t hit_count;

struct k3_dev {
    struct k3_dev *inner;
    uint64_t alloc_count, copy_count, placed_count, check_count, wait_count;
    struct k3_dev_copy first;              /* to the device, and as large as any before the next */
    uint64_t own_count[K3_LANE_COUNT_MAX]; /* operations of ours on the inner lanes */
};

static bool hits(enum fault_dev_kind kind, uint64_t n)
{
    if (rule.kind != kind || n < rule.nth || n - rule.nth >= rule.count)
        return false;
    hit_count++;
    return true;
}

static int fault_probe(uint32_t index, struct k3_err *err)
{
    return inner_ops->probe(index, err);
}

static int fault_open(const struct k3_dev_options *options, struct k3_dev **out, struct k3_err *err)
{
    *out = NULL;
    struct k3_dev *dev = calloc(1, sizeof *dev);
    if (!dev)
        return k3_fail(err, K3_ENOMEM, "fault device");
    int rc = inner_ops->open(options, &dev->inner, err);
    if (rc)
        free(dev);
    else
        *out = dev;
    return rc;
}

/* By copies, since not every device has memory that the host can write. */
static int own_copy(struct k3_dev *dev, uint32_t lane, const struct k3_dev_copy *copy,
                    struct k3_err *err)
{
    int rc = inner_ops->copy_begin(dev->inner, lane, copy, err);
    dev->own_count[lane] += !rc;
    return rc ? rc : inner_ops->copy_wait(dev->inner, lane, K3_DEV_WAIT_ALL, err);
}

static int fault_alloc(struct k3_dev *dev, uint64_t bytes, void **out, struct k3_err *err)
{
    static uint8_t poison[POISON_STEP_BYTES];
    if (hits(FAULT_DEV_ALLOC, ++dev->alloc_count))
        return k3_fail(err, K3_ENOMEM, "fault device: alloc fails");
    int rc = inner_ops->alloc(dev->inner, bytes, out, err);
    memset(poison, FAULT_DEV_POISON, sizeof poison);
    for (uint64_t at = 0; at < bytes && !rc; at += POISON_STEP_BYTES) {
        struct k3_dev_copy copy = {
            .target = (uint8_t *)*out + at,
            .source = poison,
            .bytes = bytes - at < POISON_STEP_BYTES ? bytes - at : POISON_STEP_BYTES,
            .kind = K3_COPY_HOST_TO_DEV,
        };
        rc = own_copy(dev, 0, &copy, err);
    }
    return rc;
}

static void fault_release(struct k3_dev *dev, void *data, uint64_t bytes)
{
    inner_ops->release(dev->inner, data, bytes);
}

static int fault_pin(struct k3_dev *dev, void *data, size_t bytes, struct k3_err *err)
{
    return inner_ops->pin(dev->inner, data, bytes, err);
}

static void fault_unpin(struct k3_dev *dev, void *data, size_t bytes)
{
    inner_ops->unpin(dev->inner, data, bytes);
}

static int fault_copy_begin(struct k3_dev *dev, uint32_t lane, const struct k3_dev_copy *copy,
                            struct k3_err *err)
{
    struct k3_dev_copy own = *copy;
    if (hits(FAULT_DEV_SKIP_COPY, ++dev->copy_count))
        return 0;
    if (copy->kind == K3_COPY_HOST_TO_DEV) {
        if (dev->first.bytes < copy->bytes)
            dev->first = *copy;
        else if (hits(FAULT_DEV_MISPLACE, ++dev->placed_count))
            own.target = dev->first.target;
    }
    return inner_ops->copy_begin(dev->inner, lane, &own, err);
}

static int fault_copy_wait(struct k3_dev *dev, uint32_t lane, uint64_t op_count, struct k3_err *err)
{
    if (lane < K3_LANE_COUNT_MAX && op_count != K3_DEV_WAIT_ALL)
        op_count += dev->own_count[lane];
    int rc = inner_ops->copy_wait(dev->inner, lane, op_count, err);
    if (!rc && hits(FAULT_DEV_WAIT, ++dev->wait_count))
        rc = k3_fail(err, K3_EDEVICE, "fault device: a lane failed");
    return rc;
}

static int fault_copy_done(struct k3_dev *dev, uint32_t lane, uint64_t op_count, bool *is_done,
                           struct k3_err *err)
{
    if (lane < K3_LANE_COUNT_MAX && op_count != K3_DEV_WAIT_ALL)
        op_count += dev->own_count[lane];
    int rc = inner_ops->copy_done(dev->inner, lane, op_count, is_done, err);
    if (!rc && *is_done && hits(FAULT_DEV_WAIT, ++dev->wait_count))
        rc = k3_fail(err, K3_EDEVICE, "fault device: a lane failed");
    return rc;
}

/* One bit of the first unit of a check, behind the copies that were begun before. */
static int flip(struct k3_dev *dev, uint32_t lane, const struct k3_dev_check *check,
                struct k3_err *err)
{
    uint8_t byte = 0;
    uint8_t *at = (uint8_t *)(uintptr_t)check->data + FLIP_OFFSET;
    struct k3_dev_copy out = {&byte, at, 1, K3_COPY_DEV_TO_HOST};
    struct k3_dev_copy in = {at, &byte, 1, K3_COPY_HOST_TO_DEV};
    int rc = own_copy(dev, lane, &out, err);
    byte ^= 0x40;
    return rc ? rc : own_copy(dev, lane, &in, err);
}

static int fault_verify_units(struct k3_dev *dev, uint32_t lane, const struct k3_dev_check *checks,
                              uint32_t check_count, struct k3_err *err)
{
    uint64_t n = ++dev->check_count;
    if (hits(FAULT_DEV_CHECK, n))
        return k3_fail(err, K3_EDEVICE, "fault device: a check does not begin");
    if (check_count && hits(FAULT_DEV_FLIP, n)) {
        int rc = flip(dev, lane, checks, err);
        if (rc)
            return rc;
    }
    return inner_ops->verify_units(dev->inner, lane, checks, check_count, err);
}

static void fault_close(struct k3_dev *dev)
{
    if (!dev)
        return;
    inner_ops->close(dev->inner);
    free(dev);
}

static struct k3_dev_ops ops = {
    .name = "fault",
    .probe = fault_probe,
    .open = fault_open,
    .alloc = fault_alloc,
    .release = fault_release,
    .pin = fault_pin,
    .unpin = fault_unpin,
    .copy_begin = fault_copy_begin,
    .copy_wait = fault_copy_wait,
    .copy_done = fault_copy_done,
    .verify_units = fault_verify_units,
    .close = fault_close,
};

const struct k3_dev_ops *fault_dev(const struct k3_dev_ops *inner,
                                   const struct fault_dev_rule *wanted)
{
    static const struct fault_dev_rule none = {FAULT_DEV_NONE, 0, 0};
    inner_ops = inner;
    rule = wanted ? *wanted : none;
    hit_count = 0;
    ops.is_host_memory = inner->is_host_memory;
    return &ops;
}

void fault_dev_is_host_memory(bool is_host_memory)
{
    ops.is_host_memory = is_host_memory;
}

uint64_t fault_dev_hit_count(void)
{
    return hit_count;
}
