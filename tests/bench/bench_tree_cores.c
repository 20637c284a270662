/* Purpose: the tree-hash rate of all cores at once: what verification could do here if bytes came
 * for nothing.  load_vs_fio.py puts it beside the loads.
 *   bench_tree_cores [THREADS]          prints gb_per_s=N
 * Owns: a buffer for each thread.
 * Threads: as many as cores, or as told; each hashes its own buffer.
 * Errors: exit 1 with a line on stderr.
 * Invariants: the clock starts when every thread has its memory and stops when the last is done;
 * digests are folded into the exit path, so no work can be dropped. */
#include "tree.h"
#include "workers.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Beyond the private caches, as bytes of a load are. */
#define BUFFER_BYTES ((size_t)32 << 20)
#define ROUND_COUNT  60 /* 1.9 GB a thread: most of a second */
#define THREAD_MAX   1024

struct hasher {
    pthread_t thread;
    pthread_barrier_t *barrier;
    uint8_t *data;
    struct k3_sha256 *sha;
    uint64_t check;
};

static void *hash(void *context)
{
    struct hasher *hasher = context;
    memset(hasher->data, 0x5a, BUFFER_BYTES);
    pthread_barrier_wait(hasher->barrier);
    for (int round = 0; round < ROUND_COUNT; round++)
        for (size_t at = 0; at < BUFFER_BYTES; at += K3_UNIT_BYTES) {
            uint8_t digest[K3_DIGEST_BYTES];
            k3_unit_digest(hasher->sha, hasher->data + at, K3_UNIT_BYTES, digest);
            hasher->check += k3_load_le64(digest);
        }
    pthread_barrier_wait(hasher->barrier);
    return NULL;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int fail(const char *what)
{
    fprintf(stderr, "bench_tree_cores: %s\n", what);
    return 1;
}

int main(int argc, char **argv)
{
    unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : k3_cpu_count();
    if (count == 0 || count > THREAD_MAX)
        return fail("THREADS is not in 1..1024");
    struct hasher *hashers = calloc(count, sizeof *hashers);
    pthread_barrier_t barrier;
    if (!hashers || pthread_barrier_init(&barrier, NULL, (unsigned)count + 1))
        return fail("no memory");
    for (unsigned long i = 0; i < count; i++) {
        struct hasher *hasher = &hashers[i];
        hasher->barrier = &barrier;
        hasher->data = aligned_alloc(K3_UNIT_BYTES, BUFFER_BYTES);
        if (!hasher->data || k3_sha256_open(&hasher->sha, NULL))
            return fail("no memory");
        if (pthread_create(&hasher->thread, NULL, hash, hasher))
            return fail("cannot make a thread");
    }
    pthread_barrier_wait(&barrier);
    double begin_seconds = now_seconds();
    pthread_barrier_wait(&barrier);
    double seconds = now_seconds() - begin_seconds;
    uint64_t check = 0;
    for (unsigned long i = 0; i < count; i++) {
        pthread_join(hashers[i].thread, NULL);
        check += hashers[i].check;
        k3_sha256_close(hashers[i].sha);
        free(hashers[i].data);
    }
    pthread_barrier_destroy(&barrier);
    free(hashers);
    printf("gb_per_s=%.3f threads=%lu check=%016llx\n",
           (double)count * ROUND_COUNT * (double)BUFFER_BYTES / seconds / 1e9, count,
           (unsigned long long)check);
    return 0;
}
