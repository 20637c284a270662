/* Purpose: rates of the CPU hashing leaves on one core: each form of k3_sha256_blocks that runs
 * here, the tree, flat SHA-256, the write sum, and memcpy as a yardstick; with --tools also
 * `fsverity digest` and `sha256sum` on the same bytes in a file on tmpfs.
 * Owns: two buffers; with --tools a file of 1 GiB in /dev/shm, which it removes.
 * Threads: one.
 * Errors: exit 1 without memory; a program that fails or does not exist is left out.
 * Invariants: the rounds are interleaved, so a slow moment of the machine meets all of them; the
 * median is printed; results are printed too, so no work can be dropped by the compiler.  Rates are
 * by the CPU time of the thread, so that a busy machine takes little from them; those of programs
 * are by the clock. */
#include "sha256_blocks.h"
#include "tree.h"
#include "wsum.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUND_COUNT  11                  /* odd: the median is one of them */
#define BUFFER_BYTES ((size_t)128 << 20) /* far beyond the caches */
#define UNIT_COUNT   (BUFFER_BYTES / K3_UNIT_BYTES)

/* The first ones are the forms, from memory and then one unit in cache. */
enum job {
    JOB_MEMORY = 0,
    JOB_HOT = K3_SHA256_FORM_COUNT,
    JOB_TREE = 2 * K3_SHA256_FORM_COUNT,
    JOB_UNIT,
    JOB_FLAT,
    JOB_BOTH,       /* k3_tree_update_sha */
    JOB_BOTH_CALLS, /* k3_tree_update, then k3_sha256_update */
    JOB_WSUM,
    JOB_WSUM_HOT,
    JOB_MEMCPY,
    JOB_COUNT
};

static const char *const job_name[JOB_COUNT] = {
    [JOB_TREE] = "tree of the file (k3_tree_update)",
    [JOB_UNIT] = "tree of each unit (k3_unit_digest)",
    [JOB_FLAT] = "sha256 flat",
    [JOB_BOTH] = "tree and flat in one pass",
    [JOB_BOTH_CALLS] = "tree and flat by two calls",
    [JOB_WSUM] = "wsum from memory",
    [JOB_WSUM_HOT] = "wsum of one unit in cache",
    [JOB_MEMCPY] = "memcpy",
};

struct bench {
    struct k3_sha256 *sha;
    struct k3_tree *tree;
    uint8_t *data, *other;
    uint64_t check; /* folds every result */
};

extern char **environ;

static double now_seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The form of a job, or K3_SHA256_FORM_COUNT. */
static enum k3_sha256_form job_form(int job)
{
    return (enum k3_sha256_form)(job < JOB_TREE ? job % K3_SHA256_FORM_COUNT
                                                : K3_SHA256_FORM_COUNT);
}

static bool job_runs(int job)
{
    return job >= JOB_TREE || k3_sha256_form_runs(job_form(job));
}

static void run_units(struct bench *b, int job)
{
    uint8_t digests[K3_BLOCK_BYTES] = {0};
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        const uint8_t *unit = b->data + i * K3_UNIT_BYTES;
        if (job < JOB_TREE)
            k3_sha256_blocks(b->sha, job < JOB_HOT ? unit : b->data, K3_UNIT_BLOCK_COUNT, digests);
        else if (job == JOB_UNIT)
            k3_unit_digest(b->sha, unit, K3_UNIT_BYTES, digests);
        else if (job == JOB_WSUM)
            b->check += k3_wsum(unit, K3_UNIT_BYTES, 0);
        else if (job == JOB_WSUM_HOT)
            b->check += k3_wsum(b->data, K3_UNIT_BYTES, i * K3_UNIT_BYTES);
        b->check += k3_load_le64(digests);
    }
}

/* In pieces of a chunk of convert: what the first call of two reads is not in cache for the next.
 */
static void run_both(struct bench *b, int job, uint8_t digest[K3_DIGEST_BYTES], struct k3_err *err)
{
    const size_t chunk_bytes = (size_t)8 << 20;
    k3_tree_begin(b->tree);
    k3_sha256_begin(b->sha);
    for (size_t at = 0; at < BUFFER_BYTES; at += chunk_bytes) {
        if (job == JOB_BOTH) {
            if (k3_tree_update_sha(b->tree, b->sha, b->data + at, chunk_bytes, err))
                return;
        } else {
            if (k3_tree_update(b->tree, b->data + at, chunk_bytes, err))
                return;
            k3_sha256_update(b->sha, b->data + at, chunk_bytes);
        }
    }
    k3_sha256_final(b->sha, digest);
    b->check += k3_load_le64(digest);
    k3_tree_final(b->tree, digest);
}

static void run_job(struct bench *b, int job, struct k3_err *err)
{
    uint8_t digest[K3_DIGEST_BYTES] = {0};
    k3_sha256_force(job_form(job));
    if (job == JOB_FLAT) {
        k3_sha256_of(b->sha, b->data, BUFFER_BYTES, digest);
    } else if (job == JOB_MEMCPY) {
        memcpy(b->other, b->data, BUFFER_BYTES);
        b->check += b->other[b->check % BUFFER_BYTES];
    } else if (job == JOB_TREE) {
        k3_tree_begin(b->tree);
        if (!k3_tree_update(b->tree, b->data, BUFFER_BYTES, err))
            k3_tree_final(b->tree, digest);
    } else if (job == JOB_BOTH || job == JOB_BOTH_CALLS) {
        run_both(b, job, digest, err);
    } else {
        run_units(b, job);
    }
    k3_sha256_force(K3_SHA256_FORM_COUNT);
    b->check += k3_load_le64(digest);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values)
{
    qsort(values, ROUND_COUNT, sizeof *values, compare_doubles);
    return values[ROUND_COUNT / 2];
}

/* seconds[job][round]; the ratio is the median of the ratios of the rounds. */
static void print_job(double (*seconds)[ROUND_COUNT], int job)
{
    char name[64];
    double ratios[ROUND_COUNT], sorted[ROUND_COUNT];
    int base = job >= JOB_HOT && job < JOB_TREE ? JOB_HOT : JOB_MEMORY;
    for (int r = 0; r < ROUND_COUNT; r++) {
        sorted[r] = seconds[job][r];
        ratios[r] = seconds[base + K3_SHA256_LIBCRYPTO][r] / seconds[job][r];
    }
    if (job < JOB_TREE)
        snprintf(name, sizeof name, "4 KiB blocks, %s, %s", k3_sha256_form_name(job_form(job)),
                 job < JOB_HOT ? "memory" : "cache");
    printf("%-38s %7.2f GB/s", job < JOB_TREE ? name : job_name[job],
           (double)BUFFER_BYTES / median(sorted) * 1e-9);
    if (job <= JOB_BOTH_CALLS)
        printf("  %5.2f x libcrypto's blocks", median(ratios));
    putchar('\n');
}

/* Seconds of one run with its output dropped; negative when it fails. */
static double run_tool(char *const argv[])
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = 1;
    if (posix_spawn_file_actions_init(&actions))
        return -1;
    int rc = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    double begin = now_seconds(CLOCK_MONOTONIC);
    if (!rc)
        rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    if (!rc && waitpid(pid, &status, 0) != pid)
        rc = 1;
    double seconds = now_seconds(CLOCK_MONOTONIC) - begin;
    posix_spawn_file_actions_destroy(&actions);
    return rc || status ? -1 : seconds;
}

static void bench_tools(const struct bench *b)
{
    char path[] = "/dev/shm/bench_hash_XXXXXX";
    char *fsverity[] = {(char[]){"fsverity"}, (char[]){"digest"}, path, NULL};
    char *sha256sum[] = {(char[]){"sha256sum"}, path, NULL};
    const size_t copy_count = ((size_t)1 << 30) / BUFFER_BYTES;
    char *const *const tools[] = {fsverity, sha256sum};
    double seconds[2][ROUND_COUNT];
    int fd = mkstemp(path);
    if (fd < 0)
        return;
    bool ok = true;
    for (size_t i = 0; i < copy_count; i++)
        ok = ok && write(fd, b->data, BUFFER_BYTES) == (ssize_t)BUFFER_BYTES;
    close(fd);
    for (int r = 0; ok && r < ROUND_COUNT; r++)
        for (int t = 0; t < 2; t++)
            seconds[t][r] = run_tool(tools[t]);
    for (int t = 0; ok && t < 2; t++) {
        double s = median(seconds[t]);
        if (s > 0)
            printf("%-38s %7.2f GB/s\n", tools[t][0],
                   (double)(copy_count * BUFFER_BYTES) / s * 1e-9);
        else
            printf("%-38s does not run here\n", tools[t][0]);
    }
    unlink(path);
}

static void bench_jobs(struct bench *b, struct k3_err *err)
{
    double seconds[JOB_COUNT][ROUND_COUNT] = {0};
    for (int round = 0; round < ROUND_COUNT; round++)
        for (int job = 0; job < JOB_COUNT; job++) {
            double begin = now_seconds(CLOCK_THREAD_CPUTIME_ID);
            if (job_runs(job))
                run_job(b, job, err);
            seconds[job][round] = now_seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
        }
    for (int job = 0; job < JOB_COUNT; job++)
        if (job_runs(job))
            print_job(seconds, job);
    printf("check %016llx\n", (unsigned long long)b->check);
}

int main(int argc, char **argv)
{
    struct bench b = {NULL, NULL, aligned_alloc(K3_BLOCK_BYTES, BUFFER_BYTES),
                      aligned_alloc(K3_BLOCK_BYTES, BUFFER_BYTES), 0};
    struct k3_err err;
    k3_err_init(&err);
    int rc = 0;
    if (!b.data || !b.other) {
        rc = k3_fail(&err, K3_ENOMEM, "no memory for two buffers of %zu bytes", BUFFER_BYTES);
        goto out;
    }
    rc = k3_sha256_open(&b.sha, &err);
    if (!rc)
        rc = k3_tree_open(&b.tree, &err);
    if (rc)
        goto out;
    for (size_t i = 0; i < BUFFER_BYTES; i++)
        b.data[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(b.other, 0, BUFFER_BYTES);
    bench_jobs(&b, &err);
    if (argc > 1 && !strcmp(argv[1], "--tools"))
        bench_tools(&b);
out:
    if (rc)
        fprintf(stderr, "bench_hash: %s\n", err.text);
    k3_tree_close(b.tree);
    k3_sha256_close(b.sha);
    free(b.data);
    free(b.other);
    return rc ? 1 : 0;
}
