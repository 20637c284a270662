/* Purpose: what the GPU's part of a load can do: the check of units by size, and the pinned copy.
 * Owns: one device, one piece of its memory, one pinned slot pool.
 * Threads: one.
 * Errors: printed, exit 1; exit 0 with a line where there is no GPU.
 * Invariant: a rate is printed only for checks whose every answer was compared with libcrypto's. */
#include "dev.h"
#include "mem.h"
#include "tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define UNIT_COUNT_MAX 2048u /* 1 GiB */
#define ROUND_COUNT    7
#define SLOT_BYTES     ((size_t)4 << 20)
#define SLOT_COUNT     32u
#define LANE_COUNT     4u

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

struct bench {
    const struct k3_dev_ops *ops;
    struct k3_dev *dev;
    uint8_t *host, *wanted, *results;
    void *data;
    struct k3_err err;
};

static int fill(struct bench *b)
{
    const size_t bytes = (size_t)UNIT_COUNT_MAX * K3_UNIT_BYTES;
    struct k3_sha256 *sha;
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < bytes; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(b->host + i, &x, 8);
    }
    int rc = k3_sha256_open(&sha, &b->err);
    for (uint32_t u = 0; u < UNIT_COUNT_MAX && !rc; u++)
        k3_unit_digest(sha, b->host + (size_t)u * K3_UNIT_BYTES, K3_UNIT_BYTES,
                       b->wanted + (size_t)u * K3_DIGEST_BYTES);
    k3_sha256_close(sha);
    struct k3_dev_copy copy = {b->data, b->host, bytes, K3_COPY_HOST_TO_DEV};
    if (!rc)
        rc = b->ops->copy_begin(b->dev, 0, &copy, &b->err);
    return rc ? rc : b->ops->copy_wait(b->dev, 0, K3_DEV_WAIT_ALL, &b->err);
}

static int check_all(struct bench *b, uint32_t units, uint32_t lane_count, uint32_t turns)
{
    int rc = 0;
    for (uint32_t t = 0; t < turns && !rc; t++)
        for (uint32_t at = 0; at < units && !rc; at += K3_DEV_CHECK_UNITS_MAX) {
            uint32_t count = units - at < K3_DEV_CHECK_UNITS_MAX ? units - at
                                                                 : K3_DEV_CHECK_UNITS_MAX;
            struct k3_dev_check check = {(uint8_t *)b->data + (size_t)at * K3_UNIT_BYTES,
                                         b->wanted + (size_t)at * K3_DIGEST_BYTES, b->results + at,
                                         count};
            rc = b->ops->verify_units(b->dev, t % lane_count, &check, 1, &b->err);
        }
    for (uint32_t lane = 0; lane < lane_count && !rc; lane++)
        rc = b->ops->copy_wait(b->dev, lane, K3_DEV_WAIT_ALL, &b->err);
    return rc;
}

static int rates(struct bench *b, uint32_t lane_count)
{
    for (uint32_t units = 8; units <= UNIT_COUNT_MAX; units *= 2) {
        double rate[ROUND_COUNT];
        uint32_t turns = 4096 / units < 8 ? 8 : 4096 / units;
        for (int r = -1; r < ROUND_COUNT; r++) {
            memset(b->results, K3_UNIT_UNKNOWN, UNIT_COUNT_MAX);
            double begin = now();
            if (check_all(b, units, lane_count, turns))
                return -1;
            double seconds = now() - begin;
            for (uint32_t u = 0; u < units; u++)
                if (b->results[u] != K3_UNIT_RIGHT)
                    return k3_fail(&b->err, K3_EDEVICE, "unit %u is said to be wrong", u);
            if (r >= 0)
                rate[r] = (double)units * K3_UNIT_BYTES * turns / seconds / 1e9;
        }
        printf("check  %5u MiB a launch, %u lane%s  %8.1f GB/s\n", units / 2, lane_count,
               lane_count == 1 ? "" : "s", median(rate, ROUND_COUNT));
    }
    return 0;
}

/* Random places, one bit changed at each: exactly those units are wrong. */
static int find_flips(struct bench *b)
{
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t at = ((uint64_t)i * 0x9e3779b97f4a7c15u) >> 34; /* below 1 GiB */
        uint8_t byte = b->host[at] ^ (uint8_t)(1u << (i & 7));
        uint32_t unit = (uint32_t)(at / K3_UNIT_BYTES);
        struct k3_dev_copy in = {(uint8_t *)b->data + at, &byte, 1, K3_COPY_HOST_TO_DEV};
        struct k3_dev_copy back = {(uint8_t *)b->data + at, b->host + at, 1, K3_COPY_HOST_TO_DEV};
        struct k3_dev_check check = {(uint8_t *)b->data + (size_t)unit * K3_UNIT_BYTES,
                                     b->wanted + (size_t)unit * K3_DIGEST_BYTES, b->results, 1};
        uint8_t first;
        int rc = b->ops->copy_begin(b->dev, 0, &in, &b->err);
        rc = rc ? rc : b->ops->verify_units(b->dev, 0, &check, 1, &b->err);
        rc = rc ? rc : b->ops->copy_wait(b->dev, 0, K3_DEV_WAIT_ALL, &b->err);
        first = b->results[0];
        rc = rc ? rc : b->ops->copy_begin(b->dev, 0, &back, &b->err);
        rc = rc ? rc : b->ops->verify_units(b->dev, 0, &check, 1, &b->err);
        rc = rc ? rc : b->ops->copy_wait(b->dev, 0, K3_DEV_WAIT_ALL, &b->err);
        if (rc)
            return rc;
        if (first != K3_UNIT_WRONG || b->results[0] != K3_UNIT_RIGHT)
            return k3_fail(&b->err, K3_EDEVICE, "flip %u of unit %u was not found", i, unit);
    }
    printf("flips  200 of 200 single bits found, and right again without them\n");
    return 0;
}

/* Slots in turn over the lanes. */
static int copy_rate(struct bench *b, void *pool, uint32_t lane_count)
{
    double rate[ROUND_COUNT];
    int rc = 0;
    for (int r = -1; r < ROUND_COUNT && !rc; r++) {
        double begin = now();
        for (uint32_t i = 0; i < 2048 && !rc; i++) {
            struct k3_dev_copy copy = {(uint8_t *)b->data + (i % 256) * SLOT_BYTES,
                                       (uint8_t *)pool + (i % SLOT_COUNT) * SLOT_BYTES, SLOT_BYTES,
                                       K3_COPY_HOST_TO_DEV};
            rc = b->ops->copy_begin(b->dev, i % lane_count, &copy, &b->err);
        }
        for (uint32_t lane = 0; lane < lane_count && !rc; lane++)
            rc = b->ops->copy_wait(b->dev, lane, K3_DEV_WAIT_ALL, &b->err);
        if (r >= 0)
            rate[r] = 2048.0 * SLOT_BYTES / (now() - begin) / 1e9;
    }
    if (!rc)
        printf("copy   pinned slots of 4 MiB, %u lane%s   %8.1f GB/s\n", lane_count,
               lane_count == 1 ? " " : "s", median(rate, ROUND_COUNT));
    return rc;
}

static int copies(struct bench *b)
{
    void *pool = NULL;
    const size_t pool_bytes = SLOT_BYTES * SLOT_COUNT;
    int rc = k3_mem_alloc(pool_bytes, &pool, &b->err);
    if (rc)
        return rc;
    memset(pool, 1, pool_bytes);
    double begin = now();
    rc = b->ops->pin(b->dev, pool, pool_bytes, &b->err);
    if (rc)
        return rc;
    printf("pin    %zu MiB in %.1f ms\n", pool_bytes >> 20, (now() - begin) * 1e3);
    for (uint32_t lane_count = 1; lane_count <= LANE_COUNT && !rc; lane_count *= 2)
        rc = copy_rate(b, pool, lane_count);
    b->ops->unpin(b->dev, pool, pool_bytes);
    k3_mem_free(pool, pool_bytes);
    return rc;
}

static int run(struct bench *b)
{
    struct k3_dev_options options = {.index = 0, .lane_count = LANE_COUNT};
    const size_t bytes = (size_t)UNIT_COUNT_MAX * K3_UNIT_BYTES;
    double begin = now();
    int rc = b->ops->open(&options, &b->dev, &b->err);
    if (rc)
        return rc;
    printf("open   %.0f ms, with context, code and self-test\n", (now() - begin) * 1e3);
    b->host = malloc(bytes);
    b->wanted = malloc((size_t)UNIT_COUNT_MAX * K3_DIGEST_BYTES);
    b->results = malloc(UNIT_COUNT_MAX);
    if (!b->host || !b->wanted || !b->results)
        rc = k3_fail(&b->err, K3_ENOMEM, "no memory");
    if (!rc)
        rc = b->ops->alloc(b->dev, bytes, &b->data, &b->err);
    if (!rc)
        rc = fill(b);
    if (!rc)
        rc = find_flips(b);
    if (!rc)
        rc = rates(b, 1);
    if (!rc)
        rc = rates(b, LANE_COUNT);
    if (!rc)
        rc = copies(b);
    if (b->data)
        b->ops->release(b->dev, b->data, bytes);
    b->ops->close(b->dev);
    free(b->host);
    free(b->wanted);
    free(b->results);
    return rc;
}

int main(int argc, char **argv)
{
    struct bench b = {.ops = argc > 1 && !strcmp(argv[1], "hip") ? &k3_dev_hip : &k3_dev_cuda};
    k3_err_init(&b.err);
    if (b.ops->probe(0, &b.err)) {
        printf("SKIP %s\n", b.err.text);
        return 0;
    }
    if (run(&b) == 0)
        return 0;
    fprintf(stderr, "bench_gpu: %s\n", b.err.text);
    return 1;
}
