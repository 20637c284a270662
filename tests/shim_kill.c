/* Purpose: preloaded into k3-shard; counts the system calls that change files and kills, stops,
 * tears or fails the one with a given number, so that tests reach every moment of a run.
 * Owns: the counter and a trace with one letter for each counted call.
 * Threads: any; the counter is atomic, all else is set before main() and constant from then on.
 * Errors: none of its own; a wrong variable ends the program with code 99 and a line on stderr.
 * Invariants: an uncounted call is passed on as it is; standard streams are never counted, so that
 * what a run prints does not move its numbers.
 *
 * Environment:
 *   K3_SET=change|read               which calls are counted (default change)
 *   K3_COUNT_FILE=PATH               written at exit: the total, then a line with a letter a call
 *   K3_KILL_AT=N                     send the signal at call N (from 1)
 *   K3_KILL_WHEN=before|after|torn   torn: half of the bytes of a write go out, then as after;
 *                                    of other calls as before
 *   K3_KILL_SIGNAL=KILL|TERM|INT|STOP   (default KILL)
 *   K3_FAIL_AT=N                     fail call N
 *   K3_FAIL_FROM=1                   ... and all behind it
 *   K3_FAIL_ERRNO=EIO|ENOSPC|EDQUOT|EINTR|EOPNOTSUPP|SHORT   EINTR: only where Linux may give it;
 *                                    EOPNOTSUPP: only where a size is set; SHORT: half of the
 *                                    bytes of a write go out, which is a success that the
 *                                    program must see
 */
/* clang-format off */
/* Environment:
 *   K3_SET=change|read        which calls are counted (default change)
 *   K3_COUNT_FILE=PATH        written at exit: the total, then a line with a letter for each call
 *   K3_KILL_AT=N              send the signal at call N (from 1)
 *   K3_KILL_WHEN=before|after|torn   torn: half of the bytes of a write go out, then as after;
 *                             of other calls as before
 *   K3_KILL_SIGNAL=KILL|TERM|INT|STOP   (default KILL)
 *   K3_FAIL_AT=N              fail call N
 *   K3_FAIL_FROM=1            ... and all behind it
 *   K3_FAIL_ERRNO=EIO|ENOSPC|EDQUOT|EINTR|EOPNOTSUPP|SHORT   EINTR: only where Linux may give it;
 *                             EOPNOTSUPP: only where space is reserved; SHORT: half of the bytes
 *                             of a write go out, which is a success that the program must see */
/* clang-format on */
#undef _FORTIFY_SOURCE /* its inline open() would stand where ours does */
#include "shim_use.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "offsets travel in one register");

#define EXPORT            __attribute__((visibility("default")))
#define TRACE_BYTES       (1u << 20) /* a tiny conversion makes a few thousand calls */
#define STREAM_COUNT      3          /* standard streams */
#define BAD_VARIABLE_CODE 99         /* no exit code of k3-shard */
#define SHORT_WRITE_ERRNO (-1)       /* K3_FAIL_ERRNO=SHORT */
/* What a call is; the letter goes to the trace. */
enum call {
    CALL_CREATE = 'o',
    CALL_MKDIR = 'm',
    CALL_WRITE = 'w',
    CALL_WRITE_VECTOR = 'v',
    CALL_SIZE = 't',
    CALL_RESERVE = 'a',
    CALL_SYNC = 's',
    CALL_RENAME = 'r',
    CALL_REMOVE = 'u',
    CALL_LINK = 'l',
    CALL_READ = 'R'
};

enum when { WHEN_BEFORE, WHEN_AFTER, WHEN_TORN };

/* A system call as it goes to the kernel. */
struct sys {
    long number;
    long a[5];
};

static struct {
    uint64_t kill_at, fail_at;
    const char *count_path;
    enum when when;
    int kill_signal, fail_errno;
    bool fail_from, reads;
} config;
static _Atomic uint64_t counter;
static char trace[TRACE_BYTES];

/* ---- environment ---- */

struct word {
    const char *name;
    int value;
};

static void refuse(const char *name, const char *value)
{
    dprintf(2, "shim_kill: %s=%s is not known\n", name, value);
    _exit(BAD_VARIABLE_CODE);
}

/* The value of the word that a variable holds; the first one where it is not set. */
static int read_word(const char *name, const struct word *words)
{
    const char *value = getenv(name);
    if (!value)
        return words[0].value;
    for (; words->name; words++)
        if (strcmp(words->name, value) == 0)
            return words->value;
    refuse(name, value);
    return 0;
}

static uint64_t read_number(const char *name)
{
    const char *value = getenv(name);
    char *end = NULL;
    if (!value)
        return 0;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (errno || end == value || *end)
        refuse(name, value);
    return number;
}

__attribute__((constructor)) static void begin(void)
{
    static const struct word sets[] = {{"change", 0}, {"read", 1}, {NULL, 0}};
    static const struct word whens[] = {
        {"before", WHEN_BEFORE}, {"after", WHEN_AFTER}, {"torn", WHEN_TORN}, {NULL, 0}};
    static const struct word signals[] = {
        {"KILL", SIGKILL}, {"TERM", SIGTERM}, {"INT", SIGINT}, {"STOP", SIGSTOP}, {NULL, 0}};
    static const struct word errors[] = {
        {"EIO", EIO},     {"ENOSPC", ENOSPC},         {"EDQUOT", EDQUOT},
        {"EINTR", EINTR}, {"EOPNOTSUPP", EOPNOTSUPP}, {"SHORT", SHORT_WRITE_ERRNO},
        {NULL, 0}};
    config.reads = read_word("K3_SET", sets);
    config.kill_at = read_number("K3_KILL_AT");
    config.when = (enum when)read_word("K3_KILL_WHEN", whens);
    config.kill_signal = read_word("K3_KILL_SIGNAL", signals);
    config.fail_at = read_number("K3_FAIL_AT");
    config.fail_from = read_number("K3_FAIL_FROM") != 0;
    config.fail_errno = read_word("K3_FAIL_ERRNO", errors);
    config.count_path = getenv("K3_COUNT_FILE");
}

__attribute__((destructor)) static void end(void)
{
    char line[32];
    uint64_t total = atomic_load(&counter);
    if (!config.count_path)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, config.count_path, O_WRONLY | O_CREAT | O_TRUNC,
                          0666);
    if (fd < 0)
        return;
    put_all(fd, line, (size_t)snprintf(line, sizeof line, "%llu\n", (unsigned long long)total));
    put_all(fd, trace, total < TRACE_BYTES ? (size_t)total : TRACE_BYTES);
    put_all(fd, "\n", 1);
    close(fd);
}

/* ---- the gate every call goes through ---- */

static long pass_on(const struct sys *s)
{
    return syscall(s->number, s->a[0], s->a[1], s->a[2], s->a[3], s->a[4]);
}

/* Half of a write. */
static long pass_half(enum call call, struct sys s)
{
    if (call == CALL_WRITE_VECTOR) {
        const struct iovec *first = (const struct iovec *)s.a[1]; /* NOLINT: a register */
        long offset = s.a[3];
        bool is_at = s.number != SYS_writev;
        s = (struct sys){is_at ? SYS_pwrite64 : SYS_write,
                         {s.a[0], (long)first->iov_base, (long)first->iov_len, offset}};
    }
    s.a[2] -= s.a[2] / 2; /* never nothing: that would be no progress */
    return pass_on(&s);
}

static void strike(void)
{
    /* Threads that are closing an io_uring get done: stopped in there they would keep all from
     * stopping (see wait_stopped in python/k3test.py). */
    const struct timespec nap = {0, config.kill_signal == SIGSTOP ? 20000000 : 0};
    if (nap.tv_nsec)
        nanosleep(&nap, NULL);
    kill(getpid(), config.kill_signal);
}

static bool is_write(enum call call)
{
    return call == CALL_WRITE || call == CALL_WRITE_VECTOR;
}

/* May Linux interrupt it?  Names are changed without sleeping for a signal. */
static bool can_interrupt(enum call call)
{
    return is_write(call) || call == CALL_CREATE || call == CALL_SIZE || call == CALL_RESERVE ||
           call == CALL_SYNC || call == CALL_READ;
}

static bool must_fail(enum call call, uint64_t number)
{
    if (!config.fail_at || number < config.fail_at ||
        (number > config.fail_at && !config.fail_from))
        return false;
    if (config.fail_errno == EINTR)
        return can_interrupt(call);
    if (config.fail_errno == EOPNOTSUPP)
        return call == CALL_RESERVE;
    return config.fail_errno != SHORT_WRITE_ERRNO || is_write(call);
}

static long gate(enum call call, struct sys s)
{
    if ((call == CALL_READ) != config.reads)
        return pass_on(&s);
    uint64_t number = atomic_fetch_add(&counter, 1) + 1;
    if (number <= TRACE_BYTES)
        trace[number - 1] = (char)call;
    if (must_fail(call, number)) {
        if (config.fail_errno == SHORT_WRITE_ERRNO)
            return pass_half(call, s);
        errno = config.fail_errno;
        return -1;
    }
    if (number != config.kill_at)
        return pass_on(&s);
    bool is_torn = config.when == WHEN_TORN && is_write(call);
    if (config.when != WHEN_AFTER && !is_torn)
        strike();
    long rc = is_torn ? pass_half(call, s) : pass_on(&s);
    int kept = errno;
    if (config.when == WHEN_AFTER || is_torn)
        strike();
    errno = kept;
    return rc;
}

#define GATE(call, number, ...) gate(call, (struct sys){number, {__VA_ARGS__}})

/* ---- the calls ---- */

static int open_below(int dir, const char *path, int flags, mode_t mode)
{
    struct sys s = {SYS_openat, {dir, (long)path, flags, (long)mode}};
    return (int)(flags & (OPEN_MODE_ARGUMENT | O_TRUNC) ? gate(CALL_CREATE, s) : pass_on(&s));
}

EXPORT int open(const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return open_below(AT_FDCWD, path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return open_below(AT_FDCWD, path, flags, mode);
}

EXPORT int openat(int dir, const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return open_below(dir, path, flags, mode);
}

EXPORT int openat64(int dir, const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return open_below(dir, path, flags, mode);
}

EXPORT int creat(const char *path, mode_t mode)
{
    return open_below(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

EXPORT int mkdirat(int dir, const char *path, mode_t mode)
{
    return (int)GATE(CALL_MKDIR, SYS_mkdirat, dir, (long)path, (long)mode);
}

EXPORT int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

EXPORT ssize_t write(int fd, const void *data, size_t bytes)
{
    struct sys s = {SYS_write, {fd, (long)data, (long)bytes}};
    return fd < STREAM_COUNT ? pass_on(&s) : gate(CALL_WRITE, s);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    return GATE(CALL_WRITE, SYS_pwrite64, fd, (long)data, (long)bytes, offset);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
    return pwrite(fd, data, bytes, offset);
}

EXPORT ssize_t writev(int fd, const struct iovec *vector, int count)
{
    struct sys s = {SYS_writev, {fd, (long)vector, count}};
    return fd < STREAM_COUNT ? pass_on(&s) : gate(CALL_WRITE_VECTOR, s);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *vector, int count, off_t offset)
{
    return GATE(CALL_WRITE_VECTOR, SYS_pwritev, fd, (long)vector, count, offset, 0);
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *vector, int count, off64_t offset)
{
    return pwritev(fd, vector, count, offset);
}

EXPORT ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    return GATE(CALL_READ, SYS_pread64, fd, (long)data, (long)bytes, offset);
}

EXPORT ssize_t pread64(int fd, void *data, size_t bytes, off64_t offset)
{
    return pread(fd, data, bytes, offset);
}

EXPORT int ftruncate(int fd, off_t bytes)
{
    return (int)GATE(CALL_SIZE, SYS_ftruncate, fd, bytes);
}

EXPORT int ftruncate64(int fd, off64_t bytes)
{
    return ftruncate(fd, bytes);
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    return (int)GATE(CALL_RESERVE, SYS_fallocate, fd, mode, offset, bytes);
}

EXPORT int fallocate64(int fd, int mode, off64_t offset, off64_t bytes)
{
    return fallocate(fd, mode, offset, bytes);
}

/* It gives its error as a result and leaves errno alone. */
EXPORT int posix_fallocate(int fd, off_t offset, off_t bytes)
{
    int kept = errno;
    int rc = fallocate(fd, 0, offset, bytes) ? errno : 0;
    errno = kept;
    return rc;
}

EXPORT int posix_fallocate64(int fd, off64_t offset, off64_t bytes)
{
    return posix_fallocate(fd, offset, bytes);
}

EXPORT int fsync(int fd)
{
    return (int)GATE(CALL_SYNC, SYS_fsync, fd);
}

EXPORT int fdatasync(int fd)
{
    return (int)GATE(CALL_SYNC, SYS_fdatasync, fd);
}

EXPORT int renameat2(int from, const char *path, int to, const char *name, unsigned flags)
{
    return (int)GATE(CALL_RENAME, SYS_renameat2, from, (long)path, to, (long)name, (long)flags);
}

EXPORT int renameat(int from, const char *path, int to, const char *name)
{
    return renameat2(from, path, to, name, 0);
}

EXPORT int rename(const char *path, const char *name)
{
    return renameat2(AT_FDCWD, path, AT_FDCWD, name, 0);
}

EXPORT int unlinkat(int dir, const char *path, int flags)
{
    return (int)GATE(CALL_REMOVE, SYS_unlinkat, dir, (long)path, flags);
}

EXPORT int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

EXPORT int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

EXPORT int linkat(int from, const char *path, int to, const char *name, int flags)
{
    return (int)GATE(CALL_LINK, SYS_linkat, from, (long)path, to, (long)name, flags);
}

EXPORT int link(const char *path, const char *name)
{
    return linkat(AT_FDCWD, path, AT_FDCWD, name, 0);
}
