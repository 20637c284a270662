/* Files: the few calls the project needs, each looping over short results and EINTR, each error
 * naming the path. Directories are held as an fd and a name; files are opened below them, links are
 * not followed unless said. */
#ifndef K3_FS_H
#define K3_FS_H

#include "k3_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct k3_dir {
    int fd;     /* O_PATH-less directory fd; -1: closed */
    char *path; /* as given; owned */
};

/* A path failed with sys_errno: "PATH: cannot WHAT: " and which of its components is a file or is
 * not there, else the system's words.  As k3_fail_sys. */
int k3_fail_path(struct k3_err *err, int sys_errno, const char *path, const char *what);

/* A failure that names its file alone ("NAME: ...") gets the folder in front, for a user who gave
 * several.  Returns rc; err may be NULL. */
int k3_fail_in(const struct k3_dir *dir, int rc, struct k3_err *err);

/* Fails: K3_EIO, K3_ENOMEM.  create: also make the last component (0777 & umask). */
int k3_dir_open(const char *path, bool create, struct k3_dir *out, struct k3_err *err);
int k3_dir_open_at(const struct k3_dir *parent, const char *name, bool create, struct k3_dir *out,
                   struct k3_err *err);
void k3_dir_close(struct k3_dir *dir);
int k3_dir_sync(const struct k3_dir *dir, struct k3_err *err);
/* Names in a directory (without . and ..), sorted bytewise.  Free with k3_names_free. */
int k3_dir_list(const struct k3_dir *dir, char ***names, uint32_t *count, struct k3_err *err);
void k3_names_free(char **names, uint32_t count);

/* Open for reading.  follow: a symbolic link is followed (sources), else refused (our own files).
 * Only regular files are accepted.  *stat is filled.  Fails: K3_EIO; K3_EFORMAT for what is not a
 * regular file. */
int k3_file_open(const struct k3_dir *dir, const char *name, bool follow, int *fd,
                 struct stat *stat, struct k3_err *err);
/* True when the name exists in dir (link or not), and where the system does not say: what opens it
 * then says why. */
bool k3_file_exists(const struct k3_dir *dir, const char *name);
/* The same where the answer alone decides: K3_EIO, K3_ENOMEM where the system does not say. */
int k3_file_find(const struct k3_dir *dir, const char *name, bool *found, struct k3_err *err);
/* Create for writing, must not exist.  Fails: K3_EIO. */
int k3_file_create(const struct k3_dir *dir, const char *name, int *fd, struct k3_err *err);
/* Reserve space: fallocate, or nothing where the file system cannot.  K3_EIO when there is no
 * space. */
int k3_file_reserve(int fd, const char *name, uint64_t bytes, struct k3_err *err);
/* All bytes or an error; reading past the end is K3_ECORRUPT ("shrank"). */
int k3_file_read(int fd, const char *name, void *data, size_t bytes, uint64_t offset,
                 struct k3_err *err);
int k3_file_write(int fd, const char *name, const void *data, size_t bytes, uint64_t offset,
                  struct k3_err *err);
int k3_file_sync(int fd, const char *name, struct k3_err *err);
/* close(2) whose errors count (NFS reports lost writes there). */
int k3_file_close(int fd, const char *name, struct k3_err *err);
/* Drop clean pages of a range: the page cache is left as it was found. */
void k3_file_drop(int fd, uint64_t offset, uint64_t bytes);
/* Whole file into memory (malloc; caller owns; one NUL behind it), at most bytes_max.  A symbolic
 * link is refused (our own files), or followed (_linked: sources). */
int k3_file_load(const struct k3_dir *dir, const char *name, uint64_t bytes_max, char **data,
                 size_t *bytes, struct k3_err *err);
int k3_file_load_linked(const struct k3_dir *dir, const char *name, uint64_t bytes_max, char **data,
                        size_t *bytes, struct k3_err *err);
/* Write a file so that it appears whole or not at all: temporary name, fsync, rename, fsync of the
 * directory. */
int k3_file_publish(const struct k3_dir *dir, const char *temporary, const char *name,
                    const void *data, size_t bytes, struct k3_err *err);
int k3_file_rename(const struct k3_dir *from, const char *from_name, const struct k3_dir *to,
                   const char *to_name, struct k3_err *err);
/* Remove a name; a name that is not there is fine. */
int k3_file_remove(const struct k3_dir *dir, const char *name, struct k3_err *err);
/* Free bytes for this user below dir. */
int k3_dir_free_bytes(const struct k3_dir *dir, uint64_t *bytes, struct k3_err *err);
/* A file's time in nanoseconds, modulo 2^64: years beyond 2262 must not be undefined. */
static inline int64_t k3_time_ns(const struct timespec *time)
{
    return (int64_t)((uint64_t)time->tv_sec * UINT64_C(1000000000) + (uint64_t)time->tv_nsec);
}
/* n random hex digits and a NUL from the kernel. */
int k3_random_hex(char *hex, size_t digits, struct k3_err *err);

#endif
