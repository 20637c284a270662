/* Purpose: the io engine that runs everywhere: threads that pread(2) in the order of submission,
 * through the page cache or past it.
 * Owns: its threads, the queues of reads and of completions, the file descriptors of direct reads;
 * those that were added are borrowed.
 * Threads: one thread drives an open engine; its own threads touch only the queues (under the
 * lock) and the targets of reads that are in flight.
 * Errors: open: K3_ENOMEM, K3_EIO (no thread); add_file: K3_EUNSUPPORTED.  A failed read is a
 * completion with sys_errno, never a failed call. Invariants: waiting + running + done = in flight
 * <= depth, so both queues fit without growing; a read is continued until all bytes came, the file
 * ended or the system refused; close drops what waits and waits for what runs, so nothing is
 * written to a target afterwards. */
#include "io_done.h"
#include "thread.h"
#include "workers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

/* A queue of 4096 reads is past what any disk or network gains from. */
#define DEPTH_MAX 4096u
/* Each thread holds one read; more than this many compete for locks in the kernel. */
#define THREAD_COUNT_MAX 256u

struct k3_io {
    pthread_mutex_t lock;
    pthread_cond_t has_work; /* a read waits, or the engine closes */
    struct k3_io_way *jobs;  /* ring of `depth` reads that wait */
    struct k3_io_dones dones;
    struct k3_io_files files; /* only the driving thread looks: a waiting read carries its own */
    pthread_t *threads;
    uint32_t depth;
    uint32_t job_begin, job_count;
    uint32_t thread_count;
    bool is_direct;
    bool closing;
};

static void read_all(struct k3_io_way *way)
{
    bool is_done = way->read.bytes == 0;
    while (!is_done) {
        struct k3_io_step step = k3_io_way_next(way);
        ssize_t n = pread(step.fd, step.target, step.bytes, (off_t)step.offset);
        is_done = k3_io_way_take(way, &step, n < 0 ? -(ssize_t)errno : n);
    }
}

static void *serve(void *context)
{
    struct k3_io *io = context;
    pthread_mutex_lock(&io->lock);
    for (;;) {
        while (!io->closing && io->job_count == 0)
            pthread_cond_wait(&io->has_work, &io->lock);
        if (io->closing)
            break;
        struct k3_io_way way = io->jobs[io->job_begin];
        io->job_begin = (io->job_begin + 1) % io->depth;
        io->job_count--;
        pthread_mutex_unlock(&io->lock);
        read_all(&way);
        k3_io_dones_put(&io->dones, &way);
        pthread_mutex_lock(&io->lock);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

static int pread_probe(const char *dir, struct k3_err *err)
{
    (void)dir;
    (void)err;
    return 0;
}

static void pread_close(struct k3_io *io)
{
    if (!io)
        return;
    pthread_mutex_lock(&io->lock);
    io->closing = true;
    pthread_cond_broadcast(&io->has_work);
    pthread_mutex_unlock(&io->lock);
    for (uint32_t i = 0; i < io->thread_count; i++)
        pthread_join(io->threads[i], NULL);
    pthread_cond_destroy(&io->has_work);
    pthread_mutex_destroy(&io->lock);
    k3_io_dones_fini(&io->dones);
    k3_io_files_fini(&io->files);
    free(io->threads);
    free(io->jobs);
    free(io);
}

static int start_threads(struct k3_io *io, uint32_t count, struct k3_err *err)
{
    int sys_errno = 0;
    while (!sys_errno && io->thread_count < count) {
        sys_errno = k3_thread_start(&io->threads[io->thread_count], serve, io);
        if (!sys_errno)
            io->thread_count++;
    }
    if (sys_errno)
        return k3_fail_sys(err, sys_errno, "io pread: cannot make thread %u of %u",
                           io->thread_count + 1, count);
    return 0;
}

static int pread_open(const struct k3_io_options *options, struct k3_io **out, struct k3_err *err)
{
    *out = NULL;
    uint32_t depth = options->depth;
    if (depth == 0 || depth > DEPTH_MAX)
        return k3_fail(err, K3_EUSAGE, "io pread: depth %u is not in 1..%u", depth, DEPTH_MAX);
    /* Direct reads sleep in the drive: only as many are under way as there are threads. */
    uint32_t count = options->thread_count ? options->thread_count
                     : options->is_direct  ? depth
                                           : k3_cpu_count();
    if (count > depth)
        count = depth;
    if (count > THREAD_COUNT_MAX)
        count = THREAD_COUNT_MAX;
    struct k3_io *io = calloc(1, sizeof *io);
    if (!io)
        return k3_fail_sys(err, ENOMEM, "io pread: cannot open");
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->has_work, NULL);
    io->depth = depth;
    io->is_direct = options->is_direct;
    io->jobs = calloc(depth, sizeof *io->jobs);
    io->threads = calloc(count, sizeof *io->threads);
    int rc = k3_io_dones_init(&io->dones, "pread", depth, err);
    if (!rc)
        rc = io->jobs && io->threads
                 ? start_threads(io, count, err)
                 : k3_fail_sys(err, ENOMEM, "io pread: cannot open with depth %u", depth);
    if (rc)
        pread_close(io);
    else
        *out = io;
    return rc;
}

static int pread_add_file(struct k3_io *io, int fd, uint32_t *file, struct k3_err *err)
{
    struct k3_io_file own;
    int rc = k3_io_file_open(fd, io->is_direct, &own, err);
    if (rc)
        return rc;
    *file = io->files.count;
    rc = k3_io_files_add(&io->files, &own, "pread", err);
    if (rc)
        k3_io_file_close(&own);
    return rc;
}

static int pread_submit(struct k3_io *io, const struct k3_io_read *reads, uint32_t count,
                        struct k3_err *err)
{
    int rc = k3_io_dones_admit(&io->dones, &io->files, reads, count, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&io->lock);
    for (uint32_t i = 0; i < count; i++) {
        k3_io_way_begin(&io->jobs[(io->job_begin + io->job_count) % io->depth], &reads[i],
                        &io->files.file[reads[i].file]);
        io->job_count++;
        pthread_cond_signal(&io->has_work);
    }
    pthread_mutex_unlock(&io->lock);
    return 0;
}

static int pread_reap(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                      struct k3_err *err)
{
    (void)err;
    k3_io_dones_take(&io->dones, done, max, count);
    return 0;
}

const struct k3_io_ops k3_io_pread = {
    .name = "pread",
    .probe = pread_probe,
    .open = pread_open,
    .add_file = pread_add_file,
    .submit = pread_submit,
    .reap = pread_reap,
    .close = pread_close,
};
