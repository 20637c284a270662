/* Purpose: rates of the CPU hashing leaves on one core: the tree (4 KiB blocks), flat SHA-256, the
 * write sum, and memcpy as a yardstick.
 * Owns: two buffers.
 * Threads: one.
 * Errors: exit 1 without memory.
 * Invariants: the rounds are interleaved, so a slow moment of the machine meets all of them; the
 * median is printed; results are printed too, so no work can be dropped by the compiler. */
#include "tree.h"
#include "wsum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUND_COUNT  9                   /* odd: the median is one of them */
#define BUFFER_BYTES ((size_t)128 << 20) /* far beyond the caches */
#define UNIT_COUNT   (BUFFER_BYTES / K3_UNIT_BYTES)

enum job { JOB_TREE, JOB_FLAT, JOB_WSUM, JOB_WSUM_HOT, JOB_MEMCPY, JOB_COUNT };

static const char *const job_name[JOB_COUNT] = {"sha256 of 4 KiB blocks (k3_unit_digest)",
                                                "sha256 flat", "wsum from memory",
                                                "wsum of one unit in cache", "memcpy"};

struct bench {
    struct k3_sha256 *sha;
    uint8_t *data, *other;
    uint64_t check; /* folds every result */
};

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run_job(struct bench *b, enum job job)
{
    uint8_t digest[K3_DIGEST_BYTES] = {0};
    if (job == JOB_FLAT)
        k3_sha256_of(b->sha, b->data, BUFFER_BYTES, digest);
    if (job == JOB_MEMCPY) {
        memcpy(b->other, b->data, BUFFER_BYTES);
        b->check += b->other[b->check % BUFFER_BYTES];
    }
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        const uint8_t *unit = b->data + i * K3_UNIT_BYTES;
        if (job == JOB_TREE)
            k3_unit_digest(b->sha, unit, K3_UNIT_BYTES, digest);
        else if (job == JOB_WSUM)
            b->check += k3_wsum(unit, K3_UNIT_BYTES, 0);
        else if (job == JOB_WSUM_HOT)
            b->check += k3_wsum(b->data, K3_UNIT_BYTES, i * K3_UNIT_BYTES);
    }
    b->check += k3_load_le64(digest);
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(void)
{
    struct bench b = {NULL, malloc(BUFFER_BYTES), malloc(BUFFER_BYTES), 0};
    struct k3_err err;
    k3_err_init(&err);
    int rc = 0;
    if (!b.data || !b.other) {
        rc = k3_fail(&err, K3_ENOMEM, "no memory for two buffers of %zu bytes", BUFFER_BYTES);
        goto out;
    }
    rc = k3_sha256_open(&b.sha, &err);
    if (rc)
        goto out;
    for (size_t i = 0; i < BUFFER_BYTES; i++)
        b.data[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(b.other, 0, BUFFER_BYTES);
    double seconds[JOB_COUNT][ROUND_COUNT];
    for (int round = 0; round < ROUND_COUNT; round++)
        for (int job = 0; job < JOB_COUNT; job++) {
            double begin = now_seconds();
            run_job(&b, (enum job)job);
            seconds[job][round] = now_seconds() - begin;
        }
    for (int job = 0; job < JOB_COUNT; job++) {
        qsort(seconds[job], ROUND_COUNT, sizeof seconds[job][0], compare_seconds);
        printf("%-42s %7.2f GB/s\n", job_name[job],
               (double)BUFFER_BYTES / seconds[job][ROUND_COUNT / 2] * 1e-9);
    }
    printf("check %016llx\n", (unsigned long long)b.check);
out:
    if (rc)
        fprintf(stderr, "bench_hash: %s\n", err.text);
    k3_sha256_close(b.sha);
    free(b.data);
    free(b.other);
    return rc ? 1 : 0;
}
