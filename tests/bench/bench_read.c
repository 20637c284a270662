/* Purpose: the yardstick of loads from the page cache: threads that pread files into memory of the
 * same size, each chunk hashed by its thread when asked for; and memory made ready beforehand.
 *   bench_read [--threads N] [--hash] FILE...     prints bytes=N seconds=S
 *   bench_read --touch BYTES                      takes, writes and frees that much memory
 * Owns: the memory and the file descriptors.
 * Threads: those of k3_workers, one for each core unless told.
 * Errors: exit 1 with a line on stderr.
 * Invariants: the memory is fresh, from the allocator that a load uses, so its page faults are in
 * the time as they are in a load's; chunks have the size of a load's and are taken from one
 * counter. */
#include "load_internal.h"
#include "mem.h"
#include "tree.h"
#include "workers.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file {
    const char *path;
    uint64_t bytes, begin; /* begin: of its chunks in memory */
    uint64_t first_chunk;
    int fd;
};

struct bench {
    struct file *files;
    uint32_t file_count, thread_count;
    uint64_t chunk_count, bytes;
    uint8_t *memory;
    struct k3_sha256 **sha; /* one a thread; NULL: no hashing */
    _Atomic uint64_t check;
};

static int read_chunk(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct bench *bench = context;
    const struct file *file = bench->files;
    while (task - file->first_chunk >= k3_div_up(file->bytes, K3_LOAD_CHUNK_BYTES))
        file++;
    uint64_t offset = (task - file->first_chunk) * K3_LOAD_CHUNK_BYTES;
    uint64_t left = file->bytes - offset;
    size_t bytes = left < K3_LOAD_CHUNK_BYTES ? (size_t)left : (size_t)K3_LOAD_CHUNK_BYTES;
    uint8_t *target = bench->memory + file->begin + offset;
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(file->fd, target + done, bytes - done, (off_t)(offset + done));
        if (n <= 0)
            return k3_fail(err, K3_EIO, "%s: cannot be read", file->path);
        done += (size_t)n;
    }
    for (size_t at = 0; bench->sha && at + K3_UNIT_BYTES <= bytes; at += K3_UNIT_BYTES) {
        uint8_t digest[K3_DIGEST_BYTES];
        k3_unit_digest(bench->sha[worker], target + at, K3_UNIT_BYTES, digest);
        bench->check += k3_load_le64(digest);
    }
    return 0;
}

static int touch_piece(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    (void)worker;
    (void)err;
    struct bench *bench = context;
    memset(bench->memory + task * K3_LOAD_CHUNK_BYTES, 1, K3_LOAD_CHUNK_BYTES);
    return 0;
}

static int open_files(struct bench *bench, char **paths, struct k3_err *err)
{
    bench->files = calloc(bench->file_count, sizeof *bench->files);
    if (!bench->files)
        return k3_fail(err, K3_ENOMEM, "no memory");
    for (uint32_t i = 0; i < bench->file_count; i++) {
        struct file *file = &bench->files[i];
        struct stat stat;
        file->path = paths[i];
        file->fd = open(paths[i], O_RDONLY | O_CLOEXEC);
        if (file->fd < 0 || fstat(file->fd, &stat) || stat.st_size <= 0)
            return k3_fail(err, K3_EIO, "%s: cannot be opened, or is empty", paths[i]);
        file->bytes = (uint64_t)stat.st_size;
        file->first_chunk = bench->chunk_count;
        file->begin = bench->chunk_count * K3_LOAD_CHUNK_BYTES;
        bench->chunk_count += k3_div_up(file->bytes, K3_LOAD_CHUNK_BYTES);
        bench->bytes += file->bytes;
    }
    return 0;
}

static int open_hashes(struct bench *bench, struct k3_err *err)
{
    bench->sha = calloc(bench->thread_count, sizeof(struct k3_sha256 *));
    if (!bench->sha)
        return k3_fail(err, K3_ENOMEM, "no memory");
    int rc = 0;
    for (uint32_t i = 0; !rc && i < bench->thread_count; i++)
        rc = k3_sha256_open(&bench->sha[i], err);
    return rc;
}

static int run(struct bench *bench, k3_task_fn task, struct k3_err *err)
{
    void *memory;
    double begin_seconds = k3_load_now();
    int rc = k3_mem_alloc(bench->chunk_count * K3_LOAD_CHUNK_BYTES, &memory, err);
    if (rc)
        return rc;
    bench->memory = memory;
    struct k3_workers_options options = {.worker_count = bench->thread_count,
                                         .task_count = bench->chunk_count,
                                         .task = task,
                                         .context = bench};
    rc = k3_workers_run(&options, err);
    double seconds = k3_load_now() - begin_seconds;
    k3_mem_free(memory, bench->chunk_count * K3_LOAD_CHUNK_BYTES);
    if (!rc)
        printf("bytes=%llu seconds=%.6f threads=%u check=%016llx\n",
               (unsigned long long)bench->bytes, seconds, bench->thread_count,
               (unsigned long long)bench->check);
    return rc;
}

int main(int argc, char **argv)
{
    struct bench bench = {.thread_count = k3_cpu_count()};
    struct k3_err err;
    bool is_hashing = false;
    int at = 1;
    int rc = 0;
    k3_err_init(&err);
    for (; at < argc && !strncmp(argv[at], "--", 2); at++) {
        if (!strcmp(argv[at], "--hash"))
            is_hashing = true;
        else if (!strcmp(argv[at], "--threads") && at + 1 < argc)
            bench.thread_count = (uint32_t)strtoul(argv[++at], NULL, 10);
        else if (!strcmp(argv[at], "--touch") && at + 1 < argc)
            bench.bytes = strtoull(argv[++at], NULL, 10);
        else
            rc = k3_fail(&err, K3_EUSAGE, "%s is not known", argv[at]);
    }
    if (argc == 1) {
        puts("bench_read: needs files of a set; tests/bench/load_vs_fio.py runs it");
        return 0;
    }
    if (!rc && bench.thread_count == 0)
        bench.thread_count = 1;
    bench.file_count = (uint32_t)(argc - at);
    bench.chunk_count = bench.bytes / K3_LOAD_CHUNK_BYTES;
    bool is_touch = bench.bytes > 0;
    if (!rc && !is_touch)
        rc = open_files(&bench, argv + at, &err);
    if (!rc && is_hashing)
        rc = open_hashes(&bench, &err);
    if (!rc)
        rc = run(&bench, is_touch ? touch_piece : read_chunk, &err);
    if (rc)
        fprintf(stderr, "bench_read: %s\n", err.text);
    for (uint32_t i = 0; bench.files && i < bench.file_count; i++)
        close(bench.files[i].fd);
    for (uint32_t i = 0; bench.sha && i < bench.thread_count; i++)
        k3_sha256_close(bench.sha[i]);
    free(bench.sha);
    free(bench.files);
    return rc ? 1 : 0;
}
