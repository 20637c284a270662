/* Purpose: the io engine over io_uring: direct reads, registered files, registered memory where
 * that is allowed, and a thread of its own that submits and reaps. Owns: the ring, its thread, the
 * queues, the file descriptors of direct reads; those that were added and the regions are borrowed.
 * Threads: one thread drives an open engine; the ring's thread alone submits and reaps, since a
 * submission sleeps in the kernel while the drive has no free request; they meet in two queues
 * under the lock.  Files are registered by the driving thread: a call of its own that the kernel
 * orders. Errors: K3_EUNSUPPORTED with the reason where the system refuses rings or direct reads;
 * K3_EIO, K3_ENOMEM.  A failed read is a completion with sys_errno, never a failed call.
 * Invariants: waiting + busy + done = in flight <= depth, and the ring has room for depth and the
 * wake-up, so neither of its queues overflows; close drops what waits and stays until the kernel
 * gave back every read, so nothing is written to a target afterwards.  No SQPOLL, no IOPOLL: at
 * megabytes a read they only burn a core. */
#include "io_done.h"

#include "thread.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* A queue of 4096 reads is past what any disk or network gains from. */
#define DEPTH_MAX 4096u
/* Files with a number in the ring; later ones are named by fd, which costs nothing measurable. */
#define FIXED_FILE_COUNT_MAX 1024u
/* The kernel's limit of one registered buffer. */
#define BUFFER_BYTES_MAX ((size_t)1 << 30)
/* 1 TiB of memory in such buffers; the kernel takes 16384. */
#define BUFFER_COUNT_MAX 1024u
/* The completion that is no read. */
#define WAKE_TAG UINT64_MAX
/* Between two looks where the kernel is short of memory, or the ring is broken. */
#define NAP_NS 1000000

struct job {
    struct k3_io_way way;
    bool is_fixed; /* its direct file has a number in the ring */
};

/* A read that the ring's thread has taken. */
struct slot {
    struct job job;
    struct k3_io_step step;
    uint64_t sqe_number; /* of its last submission */
    bool used;
};

struct k3_io {
    struct io_uring ring;
    pthread_t thread;
    pthread_mutex_t lock;
    struct k3_io_dones dones;
    /* Under the lock. */
    struct job *jobs; /* ring of `depth` reads that wait */
    uint32_t job_begin, job_count;
    bool closing;
    /* The driving thread's. */
    struct k3_io_files files;
    uint32_t fixed_count, fixed_cap; /* files that have a number in the ring; that can */
    /* The ring thread's. */
    struct slot *slots;   /* `depth` of them */
    uint32_t *free_slots; /* stack of the free ones */
    uint32_t free_count;
    uint64_t sqe_count; /* prepared so far */
    uint64_t wake_value;
    int ring_errno; /* the ring failed: nothing is submitted any more */
    bool wake_armed;
    /* Constant while open. */
    struct iovec *buffers; /* registered; NULL: none */
    uint32_t buffer_count;
    uint32_t depth;
    int wake_fd;
    bool has_ring, has_thread;
};

/* Rings that ended.  Memory of one may become memory of the next, by calls that only the kernel
 * orders: this number makes the order known in C, and to tools that look for races. */
static atomic_uint ended_count;

/* ---- why not ---- */

/* kernel.io_uring_disabled, one digit; -1: this kernel has no such switch. */
static int disabled_switch(void)
{
    FILE *file = fopen("/proc/sys/kernel/io_uring_disabled", "re");
    if (!file)
        return -1;
    int digit = fgetc(file);
    fclose(file);
    return digit >= '0' && digit <= '9' ? digit - '0' : -1;
}

static unsigned long long memlock_bytes(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_MEMLOCK, &limit) ? 0 : (unsigned long long)limit.rlim_cur;
}

/* The system refuses a ring: by what, and what would help. */
static int fail_ring(int sys_errno, const char *call, struct k3_err *err)
{
    int value;
    char text[128];
    switch (sys_errno) {
    case EPERM:
    case EACCES:
        value = disabled_switch();
        if (value == 2)
            return k3_fail(err, K3_EUNSUPPORTED,
                           "kernel.io_uring_disabled is 2: no process may use io_uring: set that "
                           "sysctl to 0");
        if (value == 1)
            return k3_fail(err, K3_EUNSUPPORTED,
                           "kernel.io_uring_disabled is 1: only CAP_SYS_ADMIN and the group "
                           "kernel.io_uring_group may use io_uring: set that sysctl to 0");
        return k3_fail(
            err, K3_EUNSUPPORTED,
            "%s is not permitted, and not by the sysctl kernel.io_uring_disabled: a "
            "seccomp filter refuses it, as those of containers do: allow io_uring_setup, "
            "io_uring_enter and io_uring_register in its profile",
            call);
    case ENOSYS:
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s is not there: a kernel without io_uring, or a seccomp filter", call);
    case ENOMEM:
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s finds no memory: RLIMIT_MEMLOCK is %llu bytes, and kernels before 5.12 "
                       "count rings against it: raise it (ulimit -l)",
                       call, memlock_bytes());
    case EMFILE:
    case ENFILE:
        return k3_fail_sys(err, sys_errno, "io uring: %s", call);
    default:
        return k3_fail(err, K3_EUNSUPPORTED, "%s: %s", call,
                       strerror_r(sys_errno, text, sizeof text));
    }
}

/* ---- probe ---- */

/* One read of 8 bytes that are known, all the way through the ring. */
static int try_ring(struct io_uring *ring, int event_fd, struct k3_err *err)
{
    uint64_t value = 0;
    struct io_uring_cqe *cqe;
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (!sqe)
        return k3_fail(err, K3_EUNSUPPORTED, "the ring has no room for one request");
    io_uring_prep_read(sqe, event_fd, &value, sizeof value, 0);
    int rc;
    do
        rc = io_uring_submit(ring);
    while (rc == -EINTR);
    if (rc < 0)
        return fail_ring(-rc, "io_uring_enter", err);
    do
        rc = io_uring_wait_cqe(ring, &cqe);
    while (rc == -EINTR);
    if (rc < 0)
        return fail_ring(-rc, "io_uring_enter", err);
    int result = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    if (result < 0)
        return fail_ring(-result, "a read through io_uring", err);
    if (result != (int)sizeof value || value != 1)
        return k3_fail(err, K3_EUNSUPPORTED, "a read through io_uring brought other bytes");
    return 0;
}

static int uring_probe(const char *dir, struct k3_err *err)
{
    (void)dir; /* files are tried one by one when they are added */
    struct io_uring ring;
    int rc = io_uring_queue_init(1, &ring, 0);
    if (rc < 0)
        return fail_ring(-rc, "io_uring_setup", err);
    int event_fd = eventfd(1, EFD_CLOEXEC);
    rc = event_fd < 0 ? k3_fail_sys(err, errno, "io uring: eventfd")
                      : try_ring(&ring, event_fd, err);
    io_uring_queue_exit(&ring);
    if (event_fd >= 0)
        close(event_fd);
    return rc;
}

/* ---- the ring's thread ---- */

static void finish(struct k3_io *io, struct slot *slot)
{
    slot->used = false;
    io->free_slots[io->free_count++] = (uint32_t)(slot - io->slots);
    k3_io_dones_put(&io->dones, &slot->job.way);
}

/* The registered buffer that a step lies in as a whole; -1: none. */
static int buffer_of(const struct k3_io *io, const struct k3_io_step *step)
{
    uintptr_t at = (uintptr_t)step->target;
    for (uint32_t i = 0; i < io->buffer_count; i++) {
        uintptr_t begin = (uintptr_t)io->buffers[i].iov_base;
        if (at >= begin && at - begin < io->buffers[i].iov_len)
            return step->bytes <= io->buffers[i].iov_len - (at - begin) ? (int)i : -1;
    }
    return -1;
}

/* There is always room: the ring has an entry for each slot, and one for the wake-up. */
static struct io_uring_sqe *next_sqe(struct k3_io *io)
{
    io->sqe_count++;
    return io_uring_get_sqe(&io->ring);
}

/* Prepare the next step of a read. */
static void go_on(struct k3_io *io, struct slot *slot)
{
    const struct k3_io_way *way = &slot->job.way;
    slot->step = k3_io_way_next(way);
    if (io->ring_errno || slot->step.bytes == 0) {
        slot->job.way.sys_errno = slot->step.bytes ? io->ring_errno : 0;
        finish(io, slot);
        return;
    }
    const struct k3_io_step *step = &slot->step;
    bool is_fixed = step->is_direct && slot->job.is_fixed;
    int fd = is_fixed ? (int)way->read.file : step->fd;
    int buffer = buffer_of(io, step);
    slot->sqe_number = io->sqe_count;
    struct io_uring_sqe *sqe = next_sqe(io);
    if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, fd, step->target, (unsigned)step->bytes, step->offset,
                                 buffer);
    else
        io_uring_prep_read(sqe, fd, step->target, (unsigned)step->bytes, step->offset);
    unsigned flags = is_fixed ? IOSQE_FIXED_FILE : 0;
    /* In a worker of the kernel where a submission would hold up the ones behind it: to fault in
     * and pin memory that is not registered, and after "try again". */
    if (buffer < 0 || way->retry_count)
        flags |= IOSQE_ASYNC;
    io_uring_sqe_set_flags(sqe, flags);
    io_uring_sqe_set_data64(sqe, (uint64_t)(slot - io->slots));
}

/* False: the engine closes, and everything came back. */
static bool take_jobs(struct k3_io *io)
{
    for (;;) {
        struct slot *slot = NULL;
        pthread_mutex_lock(&io->lock);
        bool closing = io->closing;
        if (closing)
            io->job_count = 0;
        if (io->job_count && io->free_count) {
            slot = &io->slots[io->free_slots[--io->free_count]];
            slot->job = io->jobs[io->job_begin];
            slot->used = true;
            io->job_begin = (io->job_begin + 1) % io->depth;
            io->job_count--;
        }
        pthread_mutex_unlock(&io->lock);
        if (slot) {
            go_on(io, slot);
            continue;
        }
        if (closing && io->free_count == io->depth && !io->wake_armed)
            return false;
        if (!closing && !io->wake_armed && !io->ring_errno) {
            struct io_uring_sqe *sqe = next_sqe(io);
            io_uring_prep_read(sqe, io->wake_fd, &io->wake_value, sizeof io->wake_value, 0);
            io_uring_sqe_set_data64(sqe, WAKE_TAG);
            io->wake_armed = true;
        }
        return true;
    }
}

/* The ring takes nothing any more.  What it never took ends here; the rest still comes back. */
static void break_ring(struct k3_io *io, int sys_errno)
{
    uint64_t taken_count = io->sqe_count - io_uring_sq_ready(&io->ring);
    io->ring_errno = sys_errno;
    io->wake_armed = false; /* nobody waits for it: the thread looks by itself from now on */
    for (uint32_t i = 0; i < io->depth; i++) {
        struct slot *slot = &io->slots[i];
        if (!slot->used || slot->sqe_number < taken_count)
            continue;
        slot->job.way.sys_errno = sys_errno;
        finish(io, slot);
    }
}

static uint32_t reap_ring(struct k3_io *io)
{
    struct io_uring_cqe *cqes[64];
    unsigned count = io_uring_peek_batch_cqe(&io->ring, cqes, 64);
    for (unsigned i = 0; i < count; i++) {
        uint64_t tag = io_uring_cqe_get_data64(cqes[i]);
        if (tag == WAKE_TAG) {
            io->wake_armed = false;
            continue;
        }
        struct slot *slot = &io->slots[tag];
        if (k3_io_way_take(&slot->job.way, &slot->step, cqes[i]->res))
            finish(io, slot);
        else
            go_on(io, slot);
    }
    io_uring_cq_advance(&io->ring, count);
    return count;
}

static void *serve(void *context)
{
    struct k3_io *io = context;
    while (take_jobs(io)) {
        int rc = io->ring_errno ? 0 : io_uring_submit_and_wait(&io->ring, 1);
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
            break_ring(io, -rc);
        if (reap_ring(io) == 0 && (io->ring_errno || rc == -EAGAIN || rc == -EBUSY))
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    return NULL;
}

/* ---- open and close ---- */

static void wake(const struct k3_io *io)
{
    int rc;
    do
        rc = eventfd_write(io->wake_fd, 1);
    while (rc && errno == EINTR);
}

static void uring_close(struct k3_io *io)
{
    if (!io)
        return;
    if (io->has_thread) {
        pthread_mutex_lock(&io->lock);
        io->closing = true;
        pthread_mutex_unlock(&io->lock);
        wake(io);
        pthread_join(io->thread, NULL);
    }
    if (io->has_ring) {
        atomic_fetch_add_explicit(&ended_count, 1, memory_order_release);
        io_uring_queue_exit(&io->ring);
    }
    if (io->wake_fd >= 0)
        close(io->wake_fd);
    k3_io_files_fini(&io->files);
    k3_io_dones_fini(&io->dones);
    pthread_mutex_destroy(&io->lock);
    free(io->buffers);
    free(io->free_slots);
    free(io->slots);
    free(io->jobs);
    free(io);
}

/* Regions in pieces that the kernel takes.  The engine works without: a refusal is a note. */
static int register_regions(struct k3_io *io, const struct k3_io_options *options,
                            struct k3_err *err)
{
    uint64_t bytes = 0;
    if (options->region_count == 0)
        return 0;
    io->buffers = calloc(BUFFER_COUNT_MAX, sizeof *io->buffers);
    if (!io->buffers)
        return k3_fail_sys(err, ENOMEM, "io uring: cannot open");
    uint32_t count = 0;
    for (uint32_t i = 0; i < options->region_count; i++) {
        char *data = options->regions[i].data;
        size_t left = options->regions[i].bytes;
        bytes += left;
        while (left && count < BUFFER_COUNT_MAX) {
            size_t size = left < BUFFER_BYTES_MAX ? left : BUFFER_BYTES_MAX;
            io->buffers[count++] = (struct iovec){data, size};
            data += size;
            left -= size;
        }
    }
    int rc = io_uring_register_buffers(&io->ring, io->buffers, count);
    if (rc == 0) {
        io->buffer_count = count;
        return 0;
    }
    if (rc == -ENOMEM || rc == -EPERM)
        k3_fail(options->note, K3_EUNSUPPORTED,
                "target memory of %llu bytes is not registered: RLIMIT_MEMLOCK is %llu bytes and "
                "there is no CAP_IPC_LOCK: raise it (ulimit -l)",
                (unsigned long long)bytes, memlock_bytes());
    else
        k3_fail_sys(options->note, -rc, "target memory is not registered");
    return 0;
}

static void register_files(struct k3_io *io)
{
    struct rlimit limit;
    uint32_t count = FIXED_FILE_COUNT_MAX;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < count)
        count = (uint32_t)limit.rlim_cur;
    /* Kernels before 5.19 have no empty table: files go by fd there. */
    if (io_uring_register_files_sparse(&io->ring, count) == 0)
        io->fixed_cap = count;
}

static int open_ring(struct k3_io *io, const struct k3_io_options *options, struct k3_err *err)
{
    int rc = io_uring_queue_init(io->depth + 1, &io->ring, 0);
    if (rc < 0)
        return fail_ring(-rc, "io_uring_setup", err);
    (void)atomic_load_explicit(&ended_count, memory_order_acquire);
    io->has_ring = true;
    io->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (io->wake_fd < 0)
        return k3_fail_sys(err, errno, "io uring: eventfd");
    register_files(io);
    rc = register_regions(io, options, err);
    if (rc)
        return rc;
    rc = k3_thread_start(&io->thread, serve, io);
    if (rc)
        return k3_fail_sys(err, rc, "io uring: cannot make a thread");
    io->has_thread = true;
    return 0;
}

static int uring_open(const struct k3_io_options *options, struct k3_io **out, struct k3_err *err)
{
    *out = NULL;
    uint32_t depth = options->depth;
    if (depth == 0 || depth > DEPTH_MAX || options->region_count > K3_IO_REGION_COUNT_MAX)
        return k3_fail(err, K3_EUSAGE, "io uring: depth %u is not in 1..%u, or %u regions", depth,
                       DEPTH_MAX, options->region_count);
    struct k3_io *io = calloc(1, sizeof *io);
    if (!io)
        return k3_fail_sys(err, ENOMEM, "io uring: cannot open");
    pthread_mutex_init(&io->lock, NULL);
    io->wake_fd = -1;
    io->depth = depth;
    io->jobs = calloc(depth, sizeof *io->jobs);
    io->slots = calloc(depth, sizeof *io->slots);
    io->free_slots = calloc(depth, sizeof *io->free_slots);
    int rc = k3_io_dones_init(&io->dones, "uring", depth, err);
    if (!rc && !(io->jobs && io->slots && io->free_slots))
        rc = k3_fail_sys(err, ENOMEM, "io uring: cannot open with depth %u", depth);
    for (; !rc && io->free_count < depth; io->free_count++)
        io->free_slots[io->free_count] = depth - 1 - io->free_count;
    if (!rc)
        rc = open_ring(io, options, err);
    if (rc)
        uring_close(io);
    else
        *out = io;
    return rc;
}

/* ---- the driving thread ---- */

static int uring_add_file(struct k3_io *io, int fd, uint32_t *file, struct k3_err *err)
{
    struct k3_io_file own;
    int rc = k3_io_file_open(fd, true, &own, err);
    if (rc)
        return rc;
    uint32_t index = io->files.count;
    rc = k3_io_files_add(&io->files, &own, "uring", err);
    if (rc) {
        k3_io_file_close(&own);
        return rc;
    }
    /* The first file that finds no place in the table ends it. */
    if (index == io->fixed_count && index < io->fixed_cap &&
        io_uring_register_files_update(&io->ring, index, &own.direct_fd, 1) == 1)
        io->fixed_count++;
    *file = index;
    return 0;
}

static int uring_submit(struct k3_io *io, const struct k3_io_read *reads, uint32_t count,
                        struct k3_err *err)
{
    int rc = k3_io_dones_admit(&io->dones, &io->files, reads, count, err);
    if (rc)
        return rc;
    if (count == 0)
        return 0;
    pthread_mutex_lock(&io->lock);
    for (uint32_t i = 0; i < count; i++) {
        struct job *job = &io->jobs[(io->job_begin + io->job_count) % io->depth];
        k3_io_way_begin(&job->way, &reads[i], &io->files.file[reads[i].file]);
        job->is_fixed = reads[i].file < io->fixed_count;
        io->job_count++;
    }
    pthread_mutex_unlock(&io->lock);
    wake(io);
    return 0;
}

static int uring_reap(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                      struct k3_err *err)
{
    (void)err;
    k3_io_dones_take(&io->dones, done, max, count);
    return 0;
}

static int uring_poll(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                      struct k3_err *err)
{
    (void)err;
    k3_io_dones_poll(&io->dones, done, max, count);
    return 0;
}

const struct k3_io_ops k3_io_uring = {
    .name = "uring",
    .probe = uring_probe,
    .open = uring_open,
    .add_file = uring_add_file,
    .submit = uring_submit,
    .reap = uring_reap,
    .poll = uring_poll,
    .close = uring_close,
};
