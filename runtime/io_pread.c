/* Purpose: the io engine that runs everywhere: threads that pread(2) in the order of submission,
 * through the page cache or past it.
 * Owns: a pool of threads, the file descriptors of direct reads; those that were added are
 * borrowed.
 * Threads: one thread drives an open engine; the pool's read.
 * Errors: open: those of the pool; add_file: K3_EUNSUPPORTED.  A failed read is a completion with
 * sys_errno, never a failed call.
 * Invariants: those of the pool. */
#include "io_pool.h"
#include "workers.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* Of reads through the page cache: what is in memory is copied by all threads at once. */
#define PIECE_BYTES ((size_t)256 << 10)

struct k3_io {
    struct k3_io_pool pool;
    struct k3_io_files files; /* only the driving thread looks: a waiting read carries its own */
    bool is_direct;
};

static ssize_t read_some(void *context, const struct k3_io_job *job, const struct k3_io_step *step)
{
    (void)context;
    (void)job;
    ssize_t n = pread(step->fd, step->target, step->bytes, (off_t)step->offset);
    return n < 0 ? -(ssize_t)errno : n;
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
    k3_io_pool_close(&io->pool);
    k3_io_files_fini(&io->files);
    free(io);
}

static int pread_open(const struct k3_io_options *options, struct k3_io **out, struct k3_err *err)
{
    *out = NULL;
    const bool is_shared = options->is_shared && !options->is_direct;
    /* Direct reads sleep in the drive: only as many are under way as there are threads. */
    const struct k3_io_pool_options pool = {.engine = "pread",
                                            .depth = options->depth,
                                            .thread_count = options->thread_count
                                                                ? options->thread_count
                                                            : options->is_direct ? options->depth
                                                                                 : k3_cpu_count(),
                                            .piece_bytes = is_shared ? PIECE_BYTES : 0,
                                            .read = read_some};
    struct k3_io *io = calloc(1, sizeof *io);
    if (!io)
        return k3_fail_sys(err, ENOMEM, "io pread: cannot open");
    io->is_direct = options->is_direct;
    int rc = k3_io_pool_open(&io->pool, &pool, err);
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
    int rc = k3_io_dones_admit(&io->pool.dones, &io->files, reads, count, err);
    if (rc)
        return rc;
    k3_io_pool_begin(&io->pool);
    for (uint32_t i = 0; i < count; i++)
        (void)k3_io_pool_add(&io->pool, &reads[i], &io->files.file[reads[i].file]);
    k3_io_pool_end(&io->pool);
    return 0;
}

static int pread_reap(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                      struct k3_err *err)
{
    (void)err;
    k3_io_dones_take(&io->pool.dones, done, max, count);
    return 0;
}

static int pread_poll(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                      struct k3_err *err)
{
    (void)err;
    k3_io_dones_poll(&io->pool.dones, done, max, count);
    return 0;
}

const struct k3_io_ops k3_io_pread = {
    .name = "pread",
    .probe = pread_probe,
    .open = pread_open,
    .add_file = pread_add_file,
    .submit = pread_submit,
    .reap = pread_reap,
    .poll = pread_poll,
    .close = pread_close,
};
