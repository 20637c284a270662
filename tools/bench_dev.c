/* Purpose: rates of a device: copies from pinned memory, checks of units.
 * Owns: device, pool and device memory between open and close.
 * Threads: the calling thread.
 * Errors: those of the device; K3_ECANCELED (stopped by a signal).
 * Invariants: nothing is prepared while a clock runs; the clock ends when the last operation has;
 * data were proved right once before they are checked for a rate, and every answer is looked at. */
#include "bench_dev.h"

#include "bench_io.h"
#include "gpu_api.h"
#include "mem.h"
#include "numa.h"
#include "progress.h"
#include "stop.h"
#include "tree.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A load copies whole slots, all on one lane. */
#define SLOT_BYTES (UINT64_C(8) << 20)
#define COPY_LANE  0u
#define DEPTH      4u /* copies under way: half of the pool of a load */

/* ---- open and close ---- */

static uint64_t unit_count(uint64_t bytes)
{
    return bytes / K3_UNIT_BYTES;
}

/* Near the device, as a load has its slots. */
static void place_pool(const struct k3_bench_dev *dev, uint32_t index)
{
    enum k3_gpu_kind kind = dev->ops == &k3_dev_cuda ? K3_GPU_CUDA : K3_GPU_HIP;
    char bus_id[K3_GPU_BUS_ID_BYTES];
    struct k3_numa_place place;
    if (dev->ops->is_host_memory || k3_gpu_bus_id(kind, index, bus_id, NULL))
        return;
    k3_numa_find("", bus_id, &place);
    (void)k3_numa_prefer(&place, dev->pool, (size_t)dev->pool_bytes);
}

static int open_pool(struct k3_bench_dev *dev, uint32_t index, struct k3_err *err)
{
    void *pool = NULL;
    struct k3_sha256 *sha = NULL;
    int rc = k3_mem_alloc((size_t)dev->pool_bytes, &pool, err);
    dev->pool = pool;
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (rc)
        return rc;
    place_pool(dev, index);
    for (uint64_t i = 0; i < dev->pool_bytes / sizeof(uint64_t); i++)
        ((uint64_t *)pool)[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t u = 0; u < unit_count(dev->pool_bytes); u++)
        k3_unit_digest(sha, dev->pool + u * K3_UNIT_BYTES, K3_UNIT_BYTES,
                       dev->digests + u * K3_DIGEST_BYTES);
    k3_sha256_close(sha);
    rc = dev->ops->pin(dev->dev, dev->pool, (size_t)dev->pool_bytes, err);
    dev->is_pinned = !rc;
    return rc;
}

static int open_memory(struct k3_bench_dev *dev, uint32_t index, struct k3_err *err)
{
    const uint64_t count = unit_count(dev->data_bytes);
    dev->digests = calloc(unit_count(dev->pool_bytes), K3_DIGEST_BYTES);
    dev->results[0] = calloc(count, 1);
    dev->results[1] = calloc(count, 1);
    if (!dev->digests || !dev->results[0] || !dev->results[1])
        return k3_fail(err, K3_ENOMEM, "no memory for the digests of a device's data");
    int rc = dev->ops->alloc(dev->dev, dev->data_bytes, &dev->data, err);
    return rc ? rc : open_pool(dev, index, err);
}

static int wait_all(struct k3_bench_dev *dev, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t lane = 0; lane < K3_BENCH_DEV_LANES && !rc; lane++)
        rc = dev->ops->copy_wait(dev->dev, lane, K3_DEV_WAIT_ALL, err);
    return rc;
}

/* Begin the copy of slot `number` to its place; slots and places turn. */
static int copy_slot(struct k3_bench_dev *dev, uint64_t number, struct k3_err *err)
{
    const uint32_t lane = COPY_LANE;
    struct k3_dev_copy copy = {
        .target = (char *)dev->data + number * SLOT_BYTES % dev->data_bytes,
        .source = dev->pool + number * SLOT_BYTES % dev->pool_bytes,
        .bytes = (size_t)SLOT_BYTES,
        .kind = K3_COPY_HOST_TO_DEV,
    };
    int rc = 0;
    if (dev->op_counts[lane] > DEPTH)
        rc = dev->ops->copy_wait(dev->dev, lane, dev->op_counts[lane] - DEPTH, err);
    if (!rc)
        rc = dev->ops->copy_begin(dev->dev, lane, &copy, err);
    dev->op_counts[lane] += !rc;
    return rc;
}

int k3_bench_dev_open(const struct k3_dev_ops *ops, uint32_t index, uint64_t pool_bytes,
                      uint64_t data_bytes, struct k3_bench_dev *out, struct k3_err *err)
{
    struct k3_dev_options options = {.index = index, .lane_count = K3_BENCH_DEV_LANES};
    double gb_per_s;
    assert(pool_bytes && pool_bytes % (2 * SLOT_BYTES) == 0 && data_bytes % pool_bytes == 0);
    assert(data_bytes / K3_BENCH_DEV_LANES <= pool_bytes);
    *out = (struct k3_bench_dev){.ops = ops, .pool_bytes = pool_bytes, .data_bytes = data_bytes};
    int rc = ops->probe(index, err);
    if (!rc)
        rc = ops->open(&options, &out->dev, err);
    if (!rc)
        rc = open_memory(out, index, err);
    for (uint64_t i = 0; i < data_bytes / SLOT_BYTES && !rc; i++)
        rc = copy_slot(out, i, err);
    if (!rc)
        rc = wait_all(out, err);
    if (!rc)
        rc = k3_bench_dev_check(out, 0, &gb_per_s, err);
    if (rc)
        k3_bench_dev_close(out);
    return rc;
}

void k3_bench_dev_close(struct k3_bench_dev *dev)
{
    if (dev->dev) {
        (void)wait_all(dev, NULL);
        if (dev->is_pinned)
            dev->ops->unpin(dev->dev, dev->pool, (size_t)dev->pool_bytes);
        if (dev->data)
            dev->ops->release(dev->dev, dev->data, dev->data_bytes);
        dev->ops->close(dev->dev);
    }
    k3_mem_free(dev->pool, (size_t)dev->pool_bytes);
    free(dev->digests);
    free(dev->results[0]);
    free(dev->results[1]);
    *dev = (struct k3_bench_dev){.ops = NULL};
}

/* ---- rates ---- */

static int stopped(struct k3_err *err)
{
    return k3_stop_requested() ? k3_fail(err, K3_ECANCELED, "stopped on request") : 0;
}

static double rate_of(uint64_t bytes, uint64_t begin_ns)
{
    uint64_t spent_ns = k3_now_ns() - begin_ns;
    return spent_ns ? (double)bytes / (double)spent_ns : 0;
}

int k3_bench_dev_copy(struct k3_bench_dev *dev, uint64_t nanoseconds, double *gb_per_s,
                      struct k3_err *err)
{
    const uint64_t least = dev->pool_bytes / SLOT_BYTES;
    const uint64_t begin_ns = k3_now_ns();
    uint64_t count = 0;
    int rc = 0;
    while (!rc && (count < least || k3_now_ns() - begin_ns < nanoseconds)) {
        rc = copy_slot(dev, count++, err);
        if (!rc)
            rc = stopped(err);
    }
    if (!rc)
        rc = wait_all(dev, err);
    *gb_per_s = rate_of(count * SLOT_BYTES, begin_ns);
    return rc;
}

/* A quarter of the data on each lane: it lies within one of the pools that data consist of. */
static int begin_pass(struct k3_bench_dev *dev, uint8_t *results, struct k3_err *err)
{
    const uint32_t count = (uint32_t)(unit_count(dev->data_bytes) / K3_BENCH_DEV_LANES);
    int rc = 0;
    memset(results, K3_UNIT_UNKNOWN, (size_t)unit_count(dev->data_bytes));
    for (uint32_t lane = 0; lane < K3_BENCH_DEV_LANES && !rc; lane++) {
        const uint64_t first = (uint64_t)lane * count;
        struct k3_dev_check check = {
            .data = (char *)dev->data + first * K3_UNIT_BYTES,
            .wanted = dev->digests + first % unit_count(dev->pool_bytes) * K3_DIGEST_BYTES,
            .result = results + first,
            .unit_count = count,
        };
        rc = dev->ops->verify_units(dev->dev, lane, &check, 1, err);
        dev->op_counts[lane] += !rc;
    }
    return rc;
}

/* Wait for the pass before the last `behind` of them, and look at its answers. */
static int end_pass(struct k3_bench_dev *dev, uint32_t behind, const uint8_t *results,
                    struct k3_err *err)
{
    int rc = 0;
    for (uint32_t lane = 0; lane < K3_BENCH_DEV_LANES && !rc; lane++)
        rc = dev->ops->copy_wait(dev->dev, lane, dev->op_counts[lane] - behind, err);
    for (uint64_t u = 0; u < unit_count(dev->data_bytes) && !rc; u++)
        if (results[u] != K3_UNIT_RIGHT)
            rc = k3_fail(err, K3_EDEVICE,
                         "device %s: unit %llu of known bytes was copied there and is not right: "
                         "test this GPU, its memory and its bus",
                         dev->ops->name, (unsigned long long)u);
    return rc;
}

int k3_bench_dev_check(struct k3_bench_dev *dev, uint64_t nanoseconds, double *gb_per_s,
                       struct k3_err *err)
{
    const uint64_t begin_ns = k3_now_ns();
    uint64_t pass_count = 0;
    int rc = 0;
    do { /* one pass runs while the next is begun */
        rc = begin_pass(dev, dev->results[pass_count % 2], err);
        if (!rc && pass_count)
            rc = end_pass(dev, 1, dev->results[(pass_count - 1) % 2], err);
        pass_count++;
        if (!rc)
            rc = stopped(err);
    } while (!rc && k3_now_ns() - begin_ns < nanoseconds);
    if (!rc)
        rc = end_pass(dev, 0, dev->results[(pass_count - 1) % 2], err);
    *gb_per_s = rate_of(pass_count * dev->data_bytes, begin_ns);
    return rc;
}
