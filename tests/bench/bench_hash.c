/* Purpose: rates of the CPU hashing leaves on one core: each form of k3_sha256_blocks that runs
 * here, libcrypto as a plain user calls it on the same blocks, the tree, flat SHA-256, both in one
 * pass, the write sum, and memcpy as a yardstick.  With `--tools FILE`: the tree digest of a file,
 * alone and with its plain SHA-256, beside `fsverity digest FILE` and `sha256sum FILE`, each a
 * process of its own on one CPU.
 * Owns: two buffers.
 * Threads: one; with --tools one child at a time, all on the CPU that the program began on.
 * Errors: exit 1 without memory or when FILE cannot be read; a program that fails or does not exist
 * is left out.
 * Invariants: the rounds are interleaved, so a slow moment of the machine meets all of them; the
 * median is printed; results are printed too, so no work can be dropped by the compiler.  Rates are
 * by the CPU time of the thread, so that a busy machine takes little from them; those of programs
 * are given by the clock too. */
#include "sha256_blocks.h"
#include "tree.h"
#include "wsum.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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
    JOB_SHA256 = 2 * K3_SHA256_FORM_COUNT, /* libcrypto by its one-shot calls */
    JOB_EVP_DIGEST,
    JOB_EVP_Q_DIGEST,
    JOB_TREE,
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
    [JOB_SHA256] = "4 KiB blocks, SHA256(), memory",
    [JOB_EVP_DIGEST] = "4 KiB blocks, EVP_Digest(), memory",
    [JOB_EVP_Q_DIGEST] = "4 KiB blocks, EVP_Q_digest(), memory",
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

/* What a plain user of libcrypto calls.  Asked for by name: its headers belong to one file alone.
 */
static struct {
    unsigned char *(*sha256)(const unsigned char *data, size_t bytes, unsigned char *digest);
    int (*digest)(const void *data, size_t bytes, unsigned char *digest, unsigned *digest_bytes,
                  const void *type, void *engine);
    const void *(*type)(void);
    int (*q_digest)(void *library, const char *name, const char *properties, const void *data,
                    size_t bytes, unsigned char *digest, size_t *digest_bytes);
} plain;

extern char **environ;

static double now_seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void find_plain_calls(void)
{
    *(void **)&plain.sha256 = dlsym(RTLD_DEFAULT, "SHA256");
    *(void **)&plain.digest = dlsym(RTLD_DEFAULT, "EVP_Digest");
    *(void **)&plain.type = dlsym(RTLD_DEFAULT, "EVP_sha256");
    *(void **)&plain.q_digest = dlsym(RTLD_DEFAULT, "EVP_Q_digest"); /* since OpenSSL 3 */
}

/* The form of a job, or K3_SHA256_FORM_COUNT. */
static enum k3_sha256_form job_form(int job)
{
    return (enum k3_sha256_form)(job < JOB_SHA256 ? job % K3_SHA256_FORM_COUNT
                                                  : K3_SHA256_FORM_COUNT);
}

static bool job_runs(int job)
{
    if (job < JOB_SHA256)
        return k3_sha256_form_runs(job_form(job));
    return !(job == JOB_SHA256 && !plain.sha256) &&
           !(job == JOB_EVP_DIGEST && !(plain.digest && plain.type)) &&
           !(job == JOB_EVP_Q_DIGEST && !plain.q_digest);
}

static void run_plain(struct bench *b, int job)
{
    uint8_t digest[K3_DIGEST_BYTES] = {0};
    for (size_t at = 0; at < BUFFER_BYTES; at += K3_BLOCK_BYTES) {
        const uint8_t *block = b->data + at;
        if (job == JOB_SHA256)
            plain.sha256(block, K3_BLOCK_BYTES, digest);
        else if (job == JOB_EVP_DIGEST)
            plain.digest(block, K3_BLOCK_BYTES, digest, NULL, plain.type(), NULL);
        else
            plain.q_digest(NULL, "SHA256", NULL, block, K3_BLOCK_BYTES, digest, NULL);
        b->check += k3_load_le64(digest);
    }
}

static void run_units(struct bench *b, int job)
{
    uint8_t digests[K3_BLOCK_BYTES] = {0};
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        const uint8_t *unit = b->data + i * K3_UNIT_BYTES;
        if (job < JOB_SHA256)
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
    } else if (job >= JOB_SHA256 && job < JOB_TREE) {
        run_plain(b, job);
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
    int base = job >= JOB_HOT && job < JOB_SHA256 ? JOB_HOT : JOB_MEMORY;
    for (int r = 0; r < ROUND_COUNT; r++) {
        sorted[r] = seconds[job][r];
        ratios[r] = seconds[base + K3_SHA256_LIBCRYPTO][r] / seconds[job][r]; /* our own call */
    }
    if (job < JOB_SHA256)
        snprintf(name, sizeof name, "4 KiB blocks, %s, %s", k3_sha256_form_name(job_form(job)),
                 job < JOB_HOT ? "memory" : "cache");
    printf("%-42s %6.2f GB/s", job < JOB_SHA256 ? name : job_name[job],
           (double)BUFFER_BYTES / median(sorted) * 1e-9);
    if (job <= JOB_BOTH_CALLS)
        printf("  %5.2f x libcrypto's blocks", median(ratios));
    putchar('\n');
}

/* ---- --tools ---- */

enum tool { TOOL_TREE, TOOL_BOTH, TOOL_FSVERITY, TOOL_SHA256SUM, TOOL_COUNT };

struct seconds {
    double clock[ROUND_COUNT], cpu[ROUND_COUNT];
};

/* What the children of --tools do: the tree digest of a file, or that and its SHA-256. */
static int hash_file(const char *path, bool both, struct k3_err *err)
{
    const size_t piece_bytes = K3_UNIT_BYTES; /* stays in cache between the read and the hash */
    struct k3_tree *tree = NULL;
    struct k3_sha256 *sha = NULL;
    uint8_t digest[K3_DIGEST_BYTES], *piece = malloc(piece_bytes);
    char hex[K3_HEX_BYTES];
    ssize_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 ? k3_fail_sys(err, errno, "open %s", path) : 0;
    if (!rc && !piece)
        rc = k3_fail(err, K3_ENOMEM, "no memory for a buffer");
    if (!rc)
        rc = k3_tree_open(&tree, err);
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (!rc)
        k3_tree_begin(tree);
    while (!rc && (n = read(fd, piece, piece_bytes)) > 0)
        rc = both ? k3_tree_update_sha(tree, sha, piece, (size_t)n, err)
                  : k3_tree_update(tree, piece, (size_t)n, err);
    if (!rc && n < 0)
        rc = k3_fail_sys(err, errno, "read %s", path);
    if (!rc) {
        k3_tree_final(tree, digest);
        k3_hex_encode(digest, sizeof digest, hex);
        printf("sha256:%s %s\n", hex, path);
        k3_sha256_final(sha, digest);
        k3_hex_encode(digest, sizeof digest, hex);
        if (both)
            printf("%s  %s\n", hex, path);
    }
    k3_tree_close(tree);
    k3_sha256_close(sha);
    free(piece);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* One run with its output dropped; false when it fails. */
static bool run_tool(char *const argv[], struct seconds *seconds, int round)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = 1;
    struct rusage usage;
    if (posix_spawn_file_actions_init(&actions))
        return false;
    int rc = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    double begin = now_seconds(CLOCK_MONOTONIC);
    if (!rc)
        rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    if (!rc && wait4(pid, &status, 0, &usage) != pid)
        rc = 1;
    seconds->clock[round] = now_seconds(CLOCK_MONOTONIC) - begin;
    posix_spawn_file_actions_destroy(&actions);
    if (rc || status)
        return false;
    seconds->cpu[round] = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                          (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    return true;
}

/* Ratios are of CPU time, the median of the ratios of the rounds. */
static void print_tool(const char *const name[TOOL_COUNT], struct seconds tools[TOOL_COUNT],
                       const bool ok[TOOL_COUNT], int tool, double bytes)
{
    struct seconds own = tools[tool];
    printf("%-27s", name[tool]);
    if (!ok[tool]) {
        puts(" does not run here");
        return;
    }
    printf(" %6.2f GB/s of CPU time, %6.2f by the clock", bytes / median(own.cpu) * 1e-9,
           bytes / median(own.clock) * 1e-9);
    for (int t = TOOL_FSVERITY; t < TOOL_COUNT; t++) {
        double ratios[ROUND_COUNT];
        for (int r = 0; r < ROUND_COUNT; r++)
            ratios[r] = tools[t].cpu[r] / tools[tool].cpu[r];
        if (ok[t])
            printf(", %5.2f x %s", median(ratios), name[t]);
    }
    putchar('\n');
}

static int bench_tools(char *self, char *path, struct k3_err *err)
{
    char *tree[] = {self, (char[]){"--tree"}, path, NULL};
    char *both[] = {self, (char[]){"--both"}, path, NULL};
    char *fsverity[] = {(char[]){"fsverity"}, (char[]){"digest"}, path, NULL};
    char *sha256sum[] = {(char[]){"sha256sum"}, path, NULL};
    char *const *const argv[] = {tree, both, fsverity, sha256sum};
    static const char *const name[] = {"tree of the file", "tree and sha256, one pass",
                                       "fsverity digest", "sha256sum"};
    static struct seconds seconds[TOOL_COUNT];
    bool ok[TOOL_COUNT] = {true, true, true, true};
    cpu_set_t cpus;
    int cpu = sched_getcpu(), fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (fd >= 0)
        close(fd);
    if (bytes < 0)
        return k3_fail_sys(err, errno, "open %s", path);
    CPU_ZERO(&cpus);
    CPU_SET((size_t)(cpu < 0 ? 0 : cpu), &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    (void)run_tool(sha256sum, &seconds[TOOL_SHA256SUM], 0); /* brings the file into the cache */
    for (int r = 0; r < ROUND_COUNT; r++)
        for (int t = 0; t < TOOL_COUNT; t++)
            ok[t] = ok[t] && run_tool(argv[t], &seconds[t], r);
    for (int t = 0; t < TOOL_COUNT; t++)
        print_tool(name, seconds, ok, t, (double)bytes);
    return 0;
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

static int bench_memory(struct k3_err *err)
{
    struct bench b = {NULL, NULL, aligned_alloc(K3_BLOCK_BYTES, BUFFER_BYTES),
                      aligned_alloc(K3_BLOCK_BYTES, BUFFER_BYTES), 0};
    int rc = 0;
    if (!b.data || !b.other) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for two buffers of %zu bytes", BUFFER_BYTES);
        goto out;
    }
    rc = k3_sha256_open(&b.sha, err);
    if (!rc)
        rc = k3_tree_open(&b.tree, err);
    if (rc)
        goto out;
    for (size_t i = 0; i < BUFFER_BYTES; i++)
        b.data[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(b.other, 0, BUFFER_BYTES);
    find_plain_calls();
    bench_jobs(&b, err);
out:
    k3_tree_close(b.tree);
    k3_sha256_close(b.sha);
    free(b.data);
    free(b.other);
    return rc;
}

int main(int argc, char **argv)
{
    struct k3_err err;
    k3_err_init(&err);
    int rc = 0;
    if (argc == 1)
        rc = bench_memory(&err);
    else if (argc == 3 && !strcmp(argv[1], "--tools"))
        rc = bench_tools((char[]){"/proc/self/exe"}, argv[2], &err);
    else if (argc == 3 && (!strcmp(argv[1], "--tree") || !strcmp(argv[1], "--both")))
        rc = hash_file(argv[2], !strcmp(argv[1], "--both"), &err);
    else
        rc = k3_fail(&err, K3_EUSAGE, "bench_hash [--tools FILE | --tree FILE | --both FILE]");
    if (rc)
        fprintf(stderr, "bench_hash: %s\n", err.text);
    return rc ? 1 : 0;
}
