/* Purpose: what the io engines share: opening past the page cache, the steps of one read.
 * Owns: the second file descriptor of a file, the tables of files.
 * Threads: a way belongs to one thread at a time; nothing here is shared.
 * Errors: K3_EUNSUPPORTED with the reason where direct reads are refused; K3_EIO; K3_ENOMEM.
 * Invariants: a file counts as direct only after a read of it succeeded; each step of a way either
 * brings it on, turns it to the page cache, or is a bounded retry, so every way ends. */
#include "io_direct.h"
#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Smaller blocks exist, but pages are what memory comes in. */
#define ALIGN_MIN 4096u
/* A device short of requests says EAGAIN for milliseconds; for ever is a fault. */
#define RETRY_COUNT_MAX 1000u

/* What the file system says; 0: it does not say.  UINT32_MAX: it says that there is no direct I/O.
 */
static uint32_t told_align(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx stat;
    memset(&stat, 0, sizeof stat);
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stat) == 0 &&
        stat.stx_mask & STATX_DIOALIGN) {
        uint32_t align = stat.stx_dio_mem_align > stat.stx_dio_offset_align
                             ? stat.stx_dio_mem_align
                             : stat.stx_dio_offset_align;
        if (stat.stx_dio_offset_align == 0)
            return UINT32_MAX;
        return align < ALIGN_MIN ? ALIGN_MIN : align;
    }
#else
    (void)fd;
#endif
    return 0;
}

/* One read of the first block; 0 or an errno. */
static int try_read(int fd, void *memory, uint32_t align)
{
    ssize_t n;
    do
        n = pread(fd, memory, align, 0);
    while (n < 0 && errno == EINTR);
    return n < 0 ? errno : 0;
}

static bool is_refusal(int sys_errno)
{
    return sys_errno == EINVAL || sys_errno == EOPNOTSUPP || sys_errno == EPERM ||
           sys_errno == ENOSYS;
}

static int refused(int sys_errno, const char *what, struct k3_err *err)
{
    char text[128];
    if (!is_refusal(sys_errno))
        return k3_fail_sys(err, sys_errno, "direct reads: %s", what);
    return k3_fail(
        err, K3_EUNSUPPORTED,
        "direct reads (O_DIRECT) are refused here by the file system or a filter: %s: %s", what,
        strerror_r(sys_errno, text, sizeof text));
}

/* Alignment that a read proves: the one told, else the first that works. */
static int find_align(int fd, uint32_t *align, struct k3_err *err)
{
    void *memory;
    uint32_t told = told_align(fd);
    if (told == UINT32_MAX)
        return k3_fail(
            err, K3_EUNSUPPORTED,
            "direct reads (O_DIRECT) are refused here: statx says that this file has none");
    if (told > K3_DIRECT_ALIGN_MAX || (told & (told - 1)))
        return k3_fail(err, K3_EUNSUPPORTED,
                       "direct reads (O_DIRECT) would need an alignment of %u bytes", told);
    int rc = k3_mem_alloc(2 * (size_t)K3_DIRECT_ALIGN_MAX, &memory, err);
    if (rc)
        return rc;
    char *aligned = memory;
    aligned += (K3_DIRECT_ALIGN_MAX - (uintptr_t)aligned % K3_DIRECT_ALIGN_MAX) %
               K3_DIRECT_ALIGN_MAX;
    uint32_t size = told ? told : ALIGN_MIN;
    int sys_errno = try_read(fd, aligned, size);
    while (sys_errno == EINVAL && size < K3_DIRECT_ALIGN_MAX) {
        size *= 2;
        sys_errno = try_read(fd, aligned, size);
    }
    k3_mem_free(memory, 2 * (size_t)K3_DIRECT_ALIGN_MAX);
    if (sys_errno)
        return refused(sys_errno, "read", err);
    *align = size;
    return 0;
}

int k3_io_file_open(int fd, bool is_direct, struct k3_io_file *file, struct k3_err *err)
{
    char path[64];
    *file = (struct k3_io_file){.fd = fd, .direct_fd = -1, .align = 1};
    if (!is_direct)
        return 0;
    /* By way of /proc the same file is opened, whatever happened to its name. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int direct_fd;
    do
        direct_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    while (direct_fd < 0 && errno == EINTR);
    if (direct_fd < 0 && errno == ENOENT)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "direct reads (O_DIRECT) need /proc, not mounted here");
    if (direct_fd < 0)
        return refused(errno, "open", err);
    int rc = find_align(direct_fd, &file->align, err);
    if (rc)
        close(direct_fd);
    else
        file->direct_fd = direct_fd;
    return rc;
}

void k3_io_file_close(struct k3_io_file *file)
{
    if (file->direct_fd >= 0)
        close(file->direct_fd);
    file->direct_fd = -1;
}

int k3_io_files_add(struct k3_io_files *files, const struct k3_io_file *file, const char *engine,
                    struct k3_err *err)
{
    if (files->count == files->cap) {
        uint32_t cap = files->cap ? files->cap * 2 : 64;
        struct k3_io_file *grown = realloc(files->file, cap * sizeof *grown);
        if (!grown)
            return k3_fail_sys(err, ENOMEM, "io %s: cannot add file %u", engine, files->count);
        files->file = grown;
        files->cap = cap;
    }
    files->file[files->count++] = *file;
    return 0;
}

void k3_io_files_fini(struct k3_io_files *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        k3_io_file_close(&files->file[i]);
    free(files->file);
    memset(files, 0, sizeof *files);
}

int k3_io_files_check(const struct k3_io_files *files, const struct k3_io_read *read,
                      const char *engine, struct k3_err *err)
{
    if (read->file < files->count && read->bytes <= K3_IO_READ_BYTES_MAX &&
        read->offset <= INT64_MAX - K3_IO_READ_BYTES_MAX)
        return 0;
    return k3_fail(err, K3_EUSAGE, "io %s: a read of file %u, %zu bytes: not possible", engine,
                   read->file, read->bytes);
}

/* ---- the way of one read ---- */

void k3_io_way_begin(struct k3_io_way *way, const struct k3_io_read *read,
                     const struct k3_io_file *file)
{
    *way = (struct k3_io_way){.read = *read, .file = *file, .is_buffered = file->direct_fd < 0};
}

struct k3_io_step k3_io_way_next(const struct k3_io_way *way)
{
    size_t left = way->read.bytes - way->done_bytes;
    size_t mask = way->file.align - 1;
    struct k3_io_step step = {
        .target = (char *)way->read.target + way->done_bytes,
        .offset = way->read.offset + way->done_bytes,
        .bytes = left,
        .fd = way->file.fd,
    };
    if (way->is_buffered || left <= mask || (step.offset & mask) || ((uintptr_t)step.target & mask))
        return step;
    step.bytes = left & ~mask;
    step.fd = way->file.direct_fd;
    step.is_direct = true;
    return step;
}

bool k3_io_way_take(struct k3_io_way *way, const struct k3_io_step *step, ssize_t result)
{
    if (result == -EINTR || result == -EAGAIN) {
        if (++way->retry_count <= RETRY_COUNT_MAX)
            return false;
        way->sys_errno = (int)-result;
        return true;
    }
    way->retry_count = 0;
    if (result <= 0) {
        way->sys_errno = (int)-result;
        return true;
    }
    size_t bytes = (size_t)result;
    if (step->is_direct) {
        /* A broken block is read again: it is where the file ends, or where a signal came. */
        bytes &= ~((size_t)way->file.align - 1);
        way->is_buffered = bytes == 0;
    }
    way->done_bytes += bytes;
    return way->done_bytes >= way->read.bytes;
}
