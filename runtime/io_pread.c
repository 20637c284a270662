/* Purpose: the io engine that runs everywhere: threads that pread(2) in the order of submission.
 * Owns: its threads, the queue of reads and the queue of completions; file descriptors are
 * borrowed.
 * Threads: one thread drives an open engine; its own threads touch only the queues (under the
 * lock) and the targets of reads that are in flight.
 * Errors: open: K3_ENOMEM, K3_EIO (no thread).  A failed read is a completion with sys_errno,
 * never a failed call.
 * Invariants: waiting + running + done = in flight <= depth, so both queues fit without growing; a
 * read is continued until all bytes came, the file ended or the system refused; close drops what
 * waits and waits for what runs, so nothing is written to a target afterwards. */
#include "io.h"
#include "workers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

/* A queue of 4096 reads is past what any disk or network gains from. */
#define DEPTH_MAX 4096u
/* Each thread holds one read; more than this many compete for locks in the kernel. */
#define THREAD_COUNT_MAX 256u

struct job {
    struct k3_io_read read;
    int fd;
};

struct k3_io {
    pthread_mutex_t lock;
    pthread_cond_t has_work; /* a read waits, or the engine closes */
    pthread_cond_t has_done; /* a completion waits */
    struct job *jobs;        /* ring of `depth` reads that wait */
    struct k3_io_done *done; /* ring of `depth` completions */
    int *fds;
    pthread_t *threads;
    uint32_t depth;
    uint32_t job_begin, job_count;
    uint32_t done_begin, done_count;
    uint32_t in_flight;
    uint32_t fd_count, fd_cap;
    uint32_t thread_count;
    bool closing;
};

static void read_all(const struct job *job, struct k3_io_done *done)
{
    done->tag = job->read.tag;
    done->sys_errno = 0;
    done->bytes = 0;
    while (done->bytes < job->read.bytes) {
        ssize_t n = pread(job->fd, (char *)job->read.target + done->bytes,
                          job->read.bytes - done->bytes, (off_t)(job->read.offset + done->bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            done->sys_errno = errno;
        if (n <= 0)
            return;
        done->bytes += (size_t)n;
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
        struct job job = io->jobs[io->job_begin];
        io->job_begin = (io->job_begin + 1) % io->depth;
        io->job_count--;
        pthread_mutex_unlock(&io->lock);
        struct k3_io_done done;
        read_all(&job, &done);
        pthread_mutex_lock(&io->lock);
        io->done[(io->done_begin + io->done_count) % io->depth] = done;
        io->done_count++;
        pthread_cond_signal(&io->has_done);
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
    pthread_cond_destroy(&io->has_done);
    pthread_cond_destroy(&io->has_work);
    pthread_mutex_destroy(&io->lock);
    free(io->threads);
    free(io->fds);
    free(io->done);
    free(io->jobs);
    free(io);
}

/* Threads take no signals: those stay with the caller's. */
static int start_threads(struct k3_io *io, uint32_t count, struct k3_err *err)
{
    sigset_t all, before;
    int sys_errno = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!sys_errno && io->thread_count < count) {
        sys_errno = pthread_create(&io->threads[io->thread_count], NULL, serve, io);
        if (!sys_errno)
            io->thread_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
    uint32_t count = options->thread_count ? options->thread_count : k3_cpu_count();
    if (count > depth)
        count = depth;
    if (count > THREAD_COUNT_MAX)
        count = THREAD_COUNT_MAX;
    struct k3_io *io = calloc(1, sizeof *io);
    if (!io)
        return k3_fail_sys(err, ENOMEM, "io pread: cannot open");
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->has_work, NULL);
    pthread_cond_init(&io->has_done, NULL);
    io->depth = depth;
    io->jobs = calloc(depth, sizeof *io->jobs);
    io->done = calloc(depth, sizeof *io->done);
    io->threads = calloc(count, sizeof *io->threads);
    int rc = io->jobs && io->done && io->threads
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
    /* Only the driving thread reads this table: a waiting read carries its fd. */
    if (io->fd_count == io->fd_cap) {
        uint32_t cap = io->fd_cap ? io->fd_cap * 2 : 64;
        int *fds = realloc(io->fds, cap * sizeof *fds);
        if (!fds)
            return k3_fail_sys(err, ENOMEM, "io pread: cannot add file %u", io->fd_count);
        io->fds = fds;
        io->fd_cap = cap;
    }
    *file = io->fd_count;
    io->fds[io->fd_count++] = fd;
    return 0;
}

static int pread_submit(struct k3_io *io, const struct k3_io_read *reads, uint32_t count,
                        struct k3_err *err)
{
    if (count > io->depth - io->in_flight)
        return k3_fail(err, K3_EUSAGE, "io pread: %u reads on top of %u in flight, depth is %u",
                       count, io->in_flight, io->depth);
    for (uint32_t i = 0; i < count; i++)
        if (reads[i].file >= io->fd_count || reads[i].bytes > K3_IO_READ_BYTES_MAX ||
            reads[i].offset > INT64_MAX - K3_IO_READ_BYTES_MAX)
            return k3_fail(err, K3_EUSAGE, "io pread: read %u of file %u, %zu bytes: not possible",
                           i, reads[i].file, reads[i].bytes);
    pthread_mutex_lock(&io->lock);
    for (uint32_t i = 0; i < count; i++) {
        struct job *job = &io->jobs[(io->job_begin + io->job_count) % io->depth];
        job->read = reads[i];
        job->fd = io->fds[reads[i].file];
        io->job_count++;
        pthread_cond_signal(&io->has_work);
    }
    pthread_mutex_unlock(&io->lock);
    io->in_flight += count;
    return 0;
}

static int pread_reap(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                      struct k3_err *err)
{
    (void)err;
    *count = 0;
    if (max == 0 || io->in_flight == 0)
        return 0;
    pthread_mutex_lock(&io->lock);
    while (io->done_count == 0)
        pthread_cond_wait(&io->has_done, &io->lock);
    while (*count < max && io->done_count) {
        done[(*count)++] = io->done[io->done_begin];
        io->done_begin = (io->done_begin + 1) % io->depth;
        io->done_count--;
    }
    pthread_mutex_unlock(&io->lock);
    io->in_flight -= *count;
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
