/* Purpose: directories: open, make, list, sync, free space; random names.
 * Owns: the fd and path of an open struct k3_dir, until k3_dir_close.
 * Threads: any; a struct k3_dir may be shared while nobody closes it.
 * Errors: K3_EIO, K3_ENOMEM, K3_ELIMIT (a directory of too many names); each names the path.
 * Invariant: a struct k3_dir that failed to open has fd -1 and no path, and may be closed. */
#include "fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A full K3 set has below 800 files a directory; millions of names mean a wrong path. */
#define NAME_COUNT_MAX (1u << 22)

/* Bytes of the first part of a path that is a file (ENOTDIR) or not there (ENOENT); 0 where no part
 * is at fault. */
static size_t find_fault(const char *path, int sys_errno)
{
    size_t bytes = strlen(path);
    for (size_t at = 1; at <= bytes; at++) {
        struct stat stat_;
        if ((path[at] && path[at] != '/') || path[at - 1] == '/')
            continue;
        char *part = strndup(path, at);
        if (!part)
            return 0;
        int failed = stat(part, &stat_) ? errno : 0;
        free(part);
        if (failed)
            return failed == ENOENT && sys_errno == ENOENT ? at : 0;
        if (!S_ISDIR(stat_.st_mode))
            return sys_errno == ENOTDIR ? at : 0;
    }
    return 0;
}

int k3_fail_path(struct k3_err *err, int sys_errno, const char *path, const char *what)
{
    bool is_fault = sys_errno == ENOTDIR || sys_errno == ENOENT;
    size_t bytes = is_fault ? find_fault(path, sys_errno) : 0;
    size_t whole = strlen(path);
    while (whole > 1 && path[whole - 1] == '/')
        whole--;
    if (err && err->rc)
        return sys_errno == ENOMEM ? K3_ENOMEM : K3_EIO;
    if (!bytes || (bytes == whole && sys_errno == ENOENT))
        return k3_fail_sys(err, sys_errno, "%s: cannot %s", path, what);
    int rc = k3_fail(err, K3_EIO, "%s: cannot %s: %.*s %s", path, what, (int)bytes, path,
                     sys_errno == ENOENT ? "is not there" : "is a file, not a directory");
    if (err)
        err->sys_errno = sys_errno;
    return rc;
}

int k3_fail_in(const struct k3_dir *dir, int rc, struct k3_err *err)
{
    size_t bytes = err && rc ? strlen(err->file) : 0;
    if (!bytes || !dir->path || !strcmp(dir->path, ".") || strncmp(err->text, err->file, bytes) ||
        err->text[bytes] != ':')
        return rc;
    char text[K3_ERR_TEXT_BYTES];
    memcpy(text, err->text, sizeof text);
    int n = snprintf(err->text, sizeof err->text, "%s/", dir->path);
    if (n > 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, "%.*s",
                 (int)(sizeof err->text - (size_t)n - 1), text);
    return rc;
}

/* Take over `path` (malloc) and open it below at_fd. */
static int dir_open(int at_fd, const char *name, char *path, int flags, struct k3_dir *out,
                    struct k3_err *err)
{
    out->fd = -1;
    out->path = NULL;
    if (!path)
        return k3_fail_sys(err, ENOMEM, "%s: cannot open the directory", name);
    int fd;
    do
        fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        int rc = k3_fail_path(err, errno, path, "open the directory");
        free(path);
        return rc;
    }
    out->fd = fd;
    out->path = path;
    return 0;
}

int k3_dir_open(const char *path, bool create, struct k3_dir *out, struct k3_err *err)
{
    out->fd = -1;
    out->path = NULL;
    if (create && mkdir(path, 0777) && errno != EEXIST)
        return k3_fail_path(err, errno, path, "make the directory");
    return dir_open(AT_FDCWD, path, strdup(path), 0, out, err);
}

int k3_dir_open_at(const struct k3_dir *parent, const char *name, bool create, struct k3_dir *out,
                   struct k3_err *err)
{
    out->fd = -1;
    out->path = NULL;
    if (create && mkdirat(parent->fd, name, 0777) && errno != EEXIST)
        return k3_fail_sys(err, errno, "%s/%s: cannot make the directory", parent->path, name);
    size_t parent_bytes = strlen(parent->path);
    size_t name_bytes = strlen(name);
    char *path = malloc(parent_bytes + name_bytes + 2);
    if (path) {
        memcpy(path, parent->path, parent_bytes);
        path[parent_bytes] = '/';
        memcpy(path + parent_bytes + 1, name, name_bytes + 1);
    }
    return dir_open(parent->fd, name, path, O_NOFOLLOW, out, err);
}

void k3_dir_close(struct k3_dir *dir)
{
    /* A zeroed struct has fd 0, which is not ours: the path tells. */
    if (dir->path && dir->fd >= 0)
        close(dir->fd);
    free(dir->path);
    dir->path = NULL;
    dir->fd = -1;
}

int k3_dir_sync(const struct k3_dir *dir, struct k3_err *err)
{
    int rc;
    do
        rc = fsync(dir->fd);
    while (rc && errno == EINTR);
    /* Some network file systems refuse fsync of a directory: they have nothing to flush there. */
    if (rc && errno != EINVAL && errno != ENOTSUP)
        return k3_fail_sys(err, errno, "%s: cannot sync the directory", dir->path);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct name_list {
    char **names;
    uint32_t count, cap;
};

static int list_add(struct name_list *list, const char *name, const char *path, struct k3_err *err)
{
    if (list->count == NAME_COUNT_MAX)
        return k3_fail(err, K3_ELIMIT, "%s: more than %u names", path, NAME_COUNT_MAX);
    if (list->count == list->cap) {
        uint32_t cap = list->cap ? list->cap * 2 : 64;
        char **names = realloc(list->names, cap * sizeof *names);
        if (!names)
            return k3_fail_sys(err, ENOMEM, "%s: cannot list the directory", path);
        list->names = names;
        list->cap = cap;
    }
    char *copy = strdup(name);
    if (!copy)
        return k3_fail_sys(err, ENOMEM, "%s: cannot list the directory", path);
    list->names[list->count++] = copy;
    return 0;
}

int k3_dir_list(const struct k3_dir *dir, char ***names, uint32_t *count, struct k3_err *err)
{
    struct name_list list = {NULL, 0, 0};
    DIR *stream = NULL;
    int rc = 0;
    *names = NULL;
    *count = 0;
    /* A new open file: a dup would share its position with every other listing of dir. */
    int fd;
    do
        fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd >= 0)
        stream = fdopendir(fd);
    if (!stream) {
        rc = k3_fail_sys(err, errno, "%s: cannot list the directory", dir->path);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    while (!rc) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        if (!entry && errno)
            rc = k3_fail_sys(err, errno, "%s: cannot list the directory", dir->path);
        if (!entry)
            break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = list_add(&list, entry->d_name, dir->path, err);
    }
    closedir(stream);
    if (rc) {
        k3_names_free(list.names, list.count);
        return rc;
    }
    if (list.count)
        qsort(list.names, list.count, sizeof *list.names, compare_names);
    *names = list.names;
    *count = list.count;
    return 0;
}

void k3_names_free(char **names, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

int k3_dir_free_bytes(const struct k3_dir *dir, uint64_t *bytes, struct k3_err *err)
{
    struct statvfs stat;
    int rc;
    do
        rc = fstatvfs(dir->fd, &stat);
    while (rc && errno == EINTR);
    if (rc)
        return k3_fail_sys(err, errno, "%s: cannot ask for free space", dir->path);
    /* f_bavail: what is kept for root is not ours to count on. */
    *bytes = (uint64_t)stat.f_bavail * (uint64_t)stat.f_frsize;
    return 0;
}

int k3_random_hex(char *hex, size_t digits, struct k3_err *err)
{
    static const char digit[] = "0123456789abcdef";
    size_t at = 0;
    while (at < digits) {
        unsigned char random[32];
        ssize_t n = getrandom(random, sizeof random, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return k3_fail_sys(err, errno, "cannot get random bytes");
        for (ssize_t i = 0; i < n && at < digits; i++)
            hex[at++] = digit[random[i] & 15];
    }
    hex[digits] = 0;
    return 0;
}
