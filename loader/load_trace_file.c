/* Purpose: the file of a trace: proved to be writable when the load opens, there whole or not at
 * all, and never in the place of a file that somebody needs.
 * Owns: the open file, and the temporary one beside its place until it is renamed.
 * Threads: the caller's.
 * Errors: K3_EUSAGE for a path that belongs to a set or a checkpoint; K3_EIO naming the path.
 * Invariants: an existing file is replaced by a whole trace or stays as it was; what is no regular
 * file, and what the caller's shell opened already, is written to and never replaced. */
#include "load_internal.h"

#include "fs.h"
#include "set.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANDOM_DIGITS 16u
#define MAKE          "make the trace"

/* ---- whose file it is ---- */

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static int fail_needed(const char *path, const char *why, const char *name, struct k3_err *err)
{
    return k3_fail(err, K3_EUSAGE,
                   "%s: cannot " MAKE ": it %s %s: name a file in another directory", path, why,
                   name);
}

/* By another name, or a link: is it a file of the set? */
static int refuse_set_file(const struct k3_dir *dir, const struct stat *file, const char *path,
                           struct k3_err *err)
{
    char **names = NULL;
    uint32_t count = 0;
    struct stat own;
    int rc = k3_dir_list(dir, &names, &count, err);
    for (uint32_t i = 0; i < count && !rc; i++)
        if (!fstatat(dir->fd, names[i], &own, AT_SYMLINK_NOFOLLOW) && is_same(&own, file))
            rc = fail_needed(path, "is a file of the set:", names[i], err);
    k3_names_free(names, count);
    return rc;
}

/* The directory that a path leads into, "." for a bare name; NULL: no memory. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* No file is put into, or replaced in, a directory of this set, of another or of a checkpoint. */
static int refuse_dir(const struct k3_set *set, const struct k3_dir *dir, const char *path,
                      struct k3_err *err)
{
    struct stat parent, own;
    if (fstat(dir->fd, &parent))
        return k3_fail_path(err, errno, path, MAKE);
    for (uint32_t i = 0; i < set->dir_count; i++)
        if (!fstat(set->dirs[i].fd, &own) && is_same(&own, &parent))
            return fail_needed(path, "lies in a directory of the set:", set->dirs[i].path, err);
    if (k3_file_exists(dir, K3_MANIFEST_NAME))
        return fail_needed(path, "lies in a directory of another set:", dir->path, err);
    if (k3_dir_is_checkpoint(dir))
        return fail_needed(path, "lies in the directory of a checkpoint:", dir->path, err);
    return 0;
}

static int open_parent(const char *path, struct k3_dir *dir, struct k3_err *err)
{
    struct k3_err why;
    char *parent = parent_of(path);
    if (!parent)
        return k3_fail(err, K3_ENOMEM, "no memory for the path of the trace");
    k3_err_init(&why);
    int rc = k3_dir_open(parent, false, dir, &why);
    free(parent);
    return rc && why.sys_errno ? k3_fail_path(err, why.sys_errno, path, MAKE)
                               : k3_fail_as(err, &why);
}

static int refuse_parent(const struct k3_set *set, const char *path, struct k3_err *err)
{
    struct k3_dir dir;
    int rc = open_parent(path, &dir, err);
    if (!rc)
        rc = refuse_dir(set, &dir, path, err);
    k3_dir_close(&dir);
    return rc;
}

/* ---- what is written to as it is ---- */

/* A file that stands open already: /dev/fd/N, or where stdout or stderr goes.  Its place in the
 * file is shared with who else writes there.  -1: none. */
static int shared_fd(const char *path, const struct stat *file)
{
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    struct stat own;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const size_t bytes = strlen(folders[i]);
        const char *digits = path + bytes;
        if (!strncmp(path, folders[i], bytes) && *digits && strlen(digits) < 9 &&
            strspn(digits, "0123456789") == strlen(digits))
            return (int)strtol(digits, NULL, 10);
    }
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (!fstat(fd, &own) && is_same(&own, file))
            return fd;
    return -1;
}

static int share(struct k3_trace_file *file, int fd, struct k3_err *err)
{
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY)
        return k3_fail_path(err, EBADF, file->path, MAKE);
    file->fd = flags < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return file->fd < 0 ? k3_fail_path(err, errno, file->path, MAKE) : 0;
}

/* Of a FIFO that nobody reads the open must fail, not wait: signals would go unheard. */
static int open_as_it_is(struct k3_trace_file *file, struct k3_err *err)
{
    int fd;
    do
        fd = open(file->path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    struct stat stat_;
    if (fd < 0 && errno == ENXIO && !stat(file->path, &stat_) && S_ISFIFO(stat_.st_mode))
        return k3_fail(err, K3_EIO,
                       "%s: cannot " MAKE ": a FIFO that nobody reads: start its reader first, or "
                       "name a file",
                       file->path);
    if (fd < 0)
        return k3_fail_path(err, errno, file->path, MAKE);
    file->fd = fd;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK))
        return k3_fail_path(err, errno, file->path, MAKE);
    return 0;
}

/* ---- what appears whole ---- */

static int make_temporary(struct k3_trace_file *file, struct k3_err *err)
{
    char hex[RANDOM_DIGITS + 1];
    struct k3_err why;
    k3_err_init(&why);
    int rc = k3_random_hex(hex, RANDOM_DIGITS, err);
    if (rc)
        return rc;
    snprintf(file->temporary, sizeof file->temporary, ".k3-trace-%s", hex);
    rc = k3_file_create(&file->dir, file->temporary, &file->fd, &why);
    return rc ? k3_fail_path(err, why.sys_errno, file->path, MAKE) : 0;
}

/* A link stays, what it leads to is replaced. */
static int find_place(struct k3_trace_file *file, const struct k3_set *set, bool exists,
                      struct k3_err *err)
{
    char *real = exists ? realpath(file->path, NULL) : strdup(file->path);
    if (!real)
        return k3_fail_path(err, errno, file->path, MAKE);
    const char *slash = strrchr(real, '/');
    file->name = strdup(slash ? slash + 1 : real);
    int rc = file->name ? open_parent(real, &file->dir, err)
                        : k3_fail(err, K3_ENOMEM, "no memory for the path of the trace");
    if (!rc && !*file->name)
        rc = k3_fail_path(err, *real ? EISDIR : ENOENT, file->path, MAKE);
    if (!rc)
        rc = refuse_dir(set, &file->dir, file->path, err);
    /* One that may not be written is not replaced either. */
    if (!rc && exists && access(real, W_OK))
        rc = k3_fail_path(err, errno, file->path, MAKE);
    free(real);
    return rc ? rc : make_temporary(file, err);
}

/* ---- open, end, close ---- */

int k3_load_trace_file_open(struct k3_trace_file *file, const struct k3_set *set, const char *path,
                            struct k3_err *err)
{
    struct stat stat_;
    int rc = 0;
    file->fd = file->dir.fd = -1;
    file->path = strdup(path);
    if (!file->path)
        return k3_fail(err, K3_ENOMEM, "no memory for the path of the trace");
    const bool exists = stat(path, &stat_) == 0;
    if (!exists && errno != ENOENT)
        return k3_fail_path(err, errno, path, MAKE);
    /* A rename would take its place: /dev/stdout of who closed it. */
    if (!exists && !lstat(path, &stat_))
        return k3_fail(err, K3_EIO,
                       "%s: cannot " MAKE ": a link that leads nowhere: make what it leads to, or "
                       "name another file",
                       path);
    for (uint32_t i = 0; i < set->dir_count && exists && !rc; i++)
        rc = refuse_set_file(&set->dirs[i], &stat_, path, err);
    if (rc)
        return rc;
    const int shared = exists ? shared_fd(path, &stat_) : -1;
    if (shared >= 0)
        return share(file, shared, err);
    if (exists && S_ISDIR(stat_.st_mode))
        return k3_fail_path(err, EISDIR, path, MAKE);
    if (exists && !S_ISREG(stat_.st_mode))
        return open_as_it_is(file, err);
    /* As given, for a link that leads out of a checkpoint: a snapshot of the hub's cache. */
    rc = refuse_parent(set, path, err);
    return rc ? rc : find_place(file, set, exists, err);
}

int k3_load_trace_file_begin(struct k3_trace_file *file, struct k3_err *err)
{
    return file->fd < 0 ? make_temporary(file, err) : 0;
}

int k3_load_trace_file_end(struct k3_trace_file *file, int rc, struct k3_err *err)
{
    struct k3_err why;
    if (!file->name) /* written as it is; a later run goes on there */
        return rc;
    k3_err_init(&why);
    int close_rc = k3_file_close(file->fd, file->path, &why);
    file->fd = -1;
    if (!rc && !close_rc)
        close_rc = k3_file_rename(&file->dir, file->temporary, &file->dir, file->name, &why);
    if (!rc && close_rc)
        rc = k3_fail_path(err, why.sys_errno, file->path, "write the trace");
    if (rc)
        (void)k3_file_remove(&file->dir, file->temporary, NULL);
    return rc;
}

void k3_load_trace_file_close(struct k3_trace_file *file)
{
    if (!file->path) /* never opened: its fds are none */
        return;
    if (file->fd >= 0) {
        close(file->fd);
        if (file->name)
            (void)k3_file_remove(&file->dir, file->temporary, NULL);
    }
    k3_dir_close(&file->dir);
    free(file->name);
    free(file->path);
}
