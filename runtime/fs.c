/* Purpose: files opened below a directory; reads, writes and publishing that are whole or an
 * error.
 * Owns: nothing between calls; an fd it gives is the caller's.
 * Threads: any; the calls share no state.
 * Errors: K3_EIO and K3_ENOMEM of the system, K3_EFORMAT for what is not a regular file,
 * K3_ECORRUPT for a file that ends early, K3_ELIMIT; each names the path.
 * Invariants: EINTR and short results never reach a caller; no fd leaks into a child. */
#include "fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One read(2) or write(2) moves at most 0x7ffff000 bytes; a round number below it. */
#define CALL_BYTES_MAX ((size_t)1 << 30)

/* A failed system call on a file, with its place for machines. */
static int fail_file(struct k3_err *err, int sys_errno, const char *name, int64_t offset,
                     const char *what)
{
    if (err && err->rc)
        return sys_errno == ENOMEM ? K3_ENOMEM : K3_EIO;
    int rc = k3_fail_sys(err, sys_errno, "%s: cannot %s", name, what);
    if (err) {
        const char *slash = strrchr(name, '/');
        snprintf(err->file, sizeof err->file, "%s", slash ? slash + 1 : name);
        err->offset = offset;
    }
    return rc;
}

static int fail_below(struct k3_err *err, int sys_errno, const struct k3_dir *dir, const char *name,
                      const char *what)
{
    char path[K3_ERR_TEXT_BYTES / 2];
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    return fail_file(err, sys_errno, path, -1, what);
}

int k3_file_open(const struct k3_dir *dir, const char *name, bool follow, int *fd,
                 struct stat *stat, struct k3_err *err)
{
    struct stat own;
    /* O_NONBLOCK: opening a FIFO must be refused below, not wait for its writer. */
    int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow ? 0 : O_NOFOLLOW);
    *fd = -1;
    int opened;
    do
        opened = openat(dir->fd, name, flags);
    while (opened < 0 && errno == EINTR);
    if (opened < 0 && errno == ELOOP && !follow)
        return k3_fail_at(err, K3_EFORMAT, name, -1,
                          "%s/%s: a symbolic link where a regular file must be", dir->path, name);
    if (opened < 0 && (errno == ENXIO || errno == ENODEV))
        return k3_fail_at(err, K3_EFORMAT, name, -1, "%s/%s: not a regular file", dir->path, name);
    if (opened < 0)
        return fail_below(err, errno, dir, name, "open");
    if (fstat(opened, &own)) {
        int sys_errno = errno;
        close(opened);
        return fail_below(err, sys_errno, dir, name, "stat");
    }
    if (!S_ISREG(own.st_mode)) {
        close(opened);
        return k3_fail_at(err, K3_EFORMAT, name, -1, "%s/%s: not a regular file", dir->path, name);
    }
    if (stat)
        *stat = own;
    *fd = opened;
    return 0;
}

/* Does this errno of a look say that the name is not there? */
static bool is_absence(int sys_errno)
{
    return sys_errno == ENOENT || sys_errno == ENOTDIR || sys_errno == ENAMETOOLONG;
}

bool k3_file_exists(const struct k3_dir *dir, const char *name)
{
    struct stat stat;
    return fstatat(dir->fd, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 || !is_absence(errno);
}

int k3_file_find(const struct k3_dir *dir, const char *name, bool *found, struct k3_err *err)
{
    struct stat stat;
    *found = fstatat(dir->fd, name, &stat, AT_SYMLINK_NOFOLLOW) == 0;
    if (*found || is_absence(errno))
        return 0;
    return fail_below(err, errno, dir, name, "look for");
}

int k3_file_create(const struct k3_dir *dir, const char *name, int *fd, struct k3_err *err)
{
    /* Readable too: what was written is read back through the same fd. */
    do
        *fd = openat(dir->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (*fd < 0 && errno == EINTR);
    return *fd < 0 ? fail_below(err, errno, dir, name, "create") : 0;
}

int k3_file_reserve(int fd, const char *name, uint64_t bytes, struct k3_err *err)
{
    if (bytes == 0)
        return 0;
    if (bytes > INT64_MAX)
        return fail_file(err, EFBIG, name, -1, "reserve space");
    int rc;
    do
        rc = fallocate(fd, 0, 0, (off_t)bytes);
    while (rc && errno == EINTR);
    if (rc == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
        return 0;
    return fail_file(err, errno, name, -1, "reserve space");
}

int k3_file_read(int fd, const char *name, void *data, size_t bytes, uint64_t offset,
                 struct k3_err *err)
{
    size_t got_bytes = 0;
    while (got_bytes < bytes) {
        size_t ask = bytes - got_bytes;
        ssize_t n = pread(fd, (char *)data + got_bytes, ask < CALL_BYTES_MAX ? ask : CALL_BYTES_MAX,
                          (off_t)(offset + got_bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_file(err, errno, name, (int64_t)(offset + got_bytes), "read");
        if (n == 0)
            return k3_fail_at(err, K3_ECORRUPT, name, (int64_t)(offset + got_bytes),
                              "%s: ends at byte %llu where %llu bytes at %llu were expected: it "
                              "shrank or was cut off",
                              name, (unsigned long long)(offset + got_bytes),
                              (unsigned long long)bytes, (unsigned long long)offset);
        got_bytes += (size_t)n;
    }
    return 0;
}

int k3_file_write(int fd, const char *name, const void *data, size_t bytes, uint64_t offset,
                  struct k3_err *err)
{
    size_t put_bytes = 0;
    while (put_bytes < bytes) {
        size_t ask = bytes - put_bytes;
        ssize_t n = pwrite(fd, (const char *)data + put_bytes,
                           ask < CALL_BYTES_MAX ? ask : CALL_BYTES_MAX,
                           (off_t)(offset + put_bytes));
        if (n < 0 && errno == EINTR)
            continue;
        /* A write of nothing without an error would loop for ever: no space is the only sense of
         * it. */
        if (n <= 0)
            return fail_file(err, n < 0 ? errno : ENOSPC, name, (int64_t)(offset + put_bytes),
                             "write");
        put_bytes += (size_t)n;
    }
    return 0;
}

int k3_file_sync(int fd, const char *name, struct k3_err *err)
{
    int rc;
    do
        rc = fsync(fd);
    while (rc && errno == EINTR);
    return rc ? fail_file(err, errno, name, -1, "sync") : 0;
}

int k3_file_close(int fd, const char *name, struct k3_err *err)
{
    /* After EINTR Linux has closed the fd; closing again could hit another thread's file. */
    if (close(fd) && errno != EINTR)
        return fail_file(err, errno, name, -1, "close");
    return 0;
}

void k3_file_drop(int fd, uint64_t offset, uint64_t bytes)
{
    /* A hint: a file system that refuses it leaves the cache fuller, nothing else. */
    (void)posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
}

/* What to load, and where to. */
struct loading {
    const struct k3_dir *dir;
    const char *name;
    uint64_t bytes_max;
    char **data;
    size_t *bytes;
};

static int load(const struct loading *loading, bool follow, struct k3_err *err)
{
    struct stat stat = {0};
    char *memory = NULL;
    int fd = -1;
    *loading->data = NULL;
    *loading->bytes = 0;
    int rc = k3_file_open(loading->dir, loading->name, follow, &fd, &stat, err);
    if (rc)
        return rc;
    uint64_t size = (uint64_t)stat.st_size;
    if (size > loading->bytes_max) {
        rc = k3_fail_at(err, K3_ELIMIT, loading->name, -1,
                        "%s/%s: %llu bytes, at most %llu are allowed", loading->dir->path,
                        loading->name, (unsigned long long)size,
                        (unsigned long long)loading->bytes_max);
        goto out;
    }
    memory = malloc((size_t)size + 1);
    if (!memory) {
        rc = fail_below(err, ENOMEM, loading->dir, loading->name, "load");
        goto out;
    }
    rc = k3_fail_in(loading->dir, k3_file_read(fd, loading->name, memory, (size_t)size, 0, err),
                    err);
    if (rc)
        goto out;
    memory[size] = 0;
    *loading->data = memory;
    *loading->bytes = (size_t)size;
    memory = NULL;
out:
    free(memory);
    close(fd);
    return rc;
}

int k3_file_load(const struct k3_dir *dir, const char *name, uint64_t bytes_max, char **data,
                 size_t *bytes, struct k3_err *err)
{
    struct loading loading = {dir, name, bytes_max, data, bytes};
    return load(&loading, false, err);
}

int k3_file_load_linked(const struct k3_dir *dir, const char *name, uint64_t bytes_max, char **data,
                        size_t *bytes, struct k3_err *err)
{
    struct loading loading = {dir, name, bytes_max, data, bytes};
    return load(&loading, true, err);
}

int k3_file_publish(const struct k3_dir *dir, const char *temporary, const char *name,
                    const void *data, size_t bytes, struct k3_err *err)
{
    int fd;
    /* A run that was killed may have left this name; its content is of no use. */
    int rc = k3_file_remove(dir, temporary, err);
    if (rc)
        return rc;
    rc = k3_file_create(dir, temporary, &fd, err);
    if (rc)
        return rc;
    rc = k3_file_write(fd, temporary, data, bytes, 0, err);
    if (!rc)
        rc = k3_file_sync(fd, temporary, err);
    int close_rc = k3_file_close(fd, temporary, err);
    if (!rc)
        rc = close_rc;
    if (!rc)
        rc = k3_file_rename(dir, temporary, dir, name, err);
    if (rc) {
        k3_fail_in(dir, rc, err);
        k3_file_remove(dir, temporary, NULL);
        return rc;
    }
    return k3_dir_sync(dir, err);
}

int k3_file_rename(const struct k3_dir *from, const char *from_name, const struct k3_dir *to,
                   const char *to_name, struct k3_err *err)
{
    if (renameat(from->fd, from_name, to->fd, to_name) == 0)
        return 0;
    int sys_errno = errno;
    char what[300];
    snprintf(what, sizeof what, "rename to %.255s", to_name);
    return fail_below(err, sys_errno, from, from_name, what);
}

int k3_file_remove(const struct k3_dir *dir, const char *name, struct k3_err *err)
{
    if (unlinkat(dir->fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    /* An empty directory is a name as well. */
    if (errno == EISDIR && unlinkat(dir->fd, name, AT_REMOVEDIR) == 0)
        return 0;
    return fail_below(err, errno, dir, name, "remove");
}
