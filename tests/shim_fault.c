/* Purpose: preloaded into a program; numbers its calls of each class (files, memory, threads,
 * io_uring) and lets the one with a given number fail, or come short, as the system might do it.
 * Owns: the counters and a trace of where the calls came from.
 * Threads: any; counters are atomic, all else is set before main() and constant from then on.
 * Errors: none of its own; a wrong variable ends the program with code 99 and a line on stderr.
 * Invariants: a call that must not fail goes on as it is; standard streams, and what is no regular
 * file, are never counted; nothing is counted before main() begins. */
/* clang-format off */
/* Environment:
 *   K3_FAULT_COUNT=PATH   written at exit: a line "class module+offset" for each counted call, in
 *                         the order they came; offset is the return address
 *   K3_FAULT_FREE=BYTES   what every file system says it has room for
 *   K3_FAULT_CLASS=NAME   the class that fails (names: see classes[] below)
 *   K3_FAULT_AT=N         its call N fails (from 1)
 *   K3_FAULT_FROM=1       ... and all behind it
 *   K3_FAULT_KIND=NAME    an errno; SHORT: half of the bytes go through, truly; EOF: no byte does;
 *                         FLIP: a bit of a write is another
 *
 * Alone, tests/shim_kill.c numbers what changes files across classes, which a kill needs; here each
 * class counts by itself, so that a call keeps its number when another class gets a call more. */
/* clang-format on */
#undef _FORTIFY_SOURCE /* its inline open() would stand where ours does */
#include "shim_use.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "offsets travel in one register");

#define EXPORT            __attribute__((visibility("default")))
#define TRACE_COUNT_MAX   (1u << 17) /* a tiny conversion makes a few thousand calls */
#define MODULE_COUNT_MAX  32u
#define STREAM_COUNT      3  /* standard streams */
#define BAD_VARIABLE_CODE 99 /* no exit code of k3-shard */
#define KIND_SHORT        (-1)
#define KIND_EOF          (-2)
#define KIND_FLIP         (-3)
#define SECTOR_BYTES      4096u /* a shorter read must not break a direct one */
enum group {
    CLASS_OPEN,
    CLASS_CREATE,
    CLASS_READ,
    CLASS_WRITE,
    CLASS_SYNC,
    CLASS_RESERVE,
    CLASS_SIZE,
    CLASS_MKDIR,
    CLASS_RENAME,
    CLASS_REMOVE,
    CLASS_CLOSE,
    CLASS_STAT,
    CLASS_SPACE,
    CLASS_LIST,
    CLASS_PATH,
    CLASS_LOCK,
    CLASS_ALLOC,
    CLASS_MAP,
    CLASS_THREAD,
    CLASS_RANDOM,
    CLASS_EVENT,
    CLASS_HINT,
    CLASS_RING_SETUP,
    CLASS_RING_REGISTER,
    CLASS_RING_SUBMIT,
    CLASS_RING_WAIT,
    CLASS_RING_READ,
    CLASS_RING_RESULT,
    CLASS_COUNT
};

static const char *const classes[CLASS_COUNT] = {
    [CLASS_OPEN] = "open",       /* of what is there, fopen too */
    [CLASS_CREATE] = "create",   /* open with O_CREAT */
    [CLASS_READ] = "read",       /* read, pread */
    [CLASS_WRITE] = "write",     /* write, pwrite */
    [CLASS_SYNC] = "sync",       /* fsync, fdatasync */
    [CLASS_RESERVE] = "reserve", /* fallocate */
    [CLASS_SIZE] = "size",       /* ftruncate */
    [CLASS_MKDIR] = "mkdir",     /* mkdirat too */
    [CLASS_RENAME] = "rename",   /* renameat, renameat2 too */
    [CLASS_REMOVE] = "remove",   /* unlink, unlinkat, rmdir */
    [CLASS_CLOSE] = "close",     /* of a regular file; it is closed nevertheless */
    [CLASS_STAT] = "stat",       /* stat, fstat, fstatat */
    [CLASS_SPACE] = "space",     /* fstatvfs */
    [CLASS_LIST] = "list",       /* fdopendir, readdir */
    [CLASS_PATH] = "path",       /* access, faccessat, readlinkat, realpath */
    [CLASS_LOCK] = "lock",       /* flock */
    [CLASS_ALLOC] = "alloc",     /* malloc and its family, strdup, what libraries ask for */
    [CLASS_MAP] = "map",         /* mmap */
    [CLASS_THREAD] = "thread",   /* pthread_create */
    [CLASS_RANDOM] = "random",   /* getrandom */
    [CLASS_EVENT] = "event",     /* eventfd */
    [CLASS_HINT] = "hint",       /* fadvise, madvise, statx, limits, affinity: may all fail */
    [CLASS_RING_SETUP] = "ring_setup",
    [CLASS_RING_REGISTER] = "ring_register",
    [CLASS_RING_SUBMIT] = "ring_submit",
    [CLASS_RING_WAIT] = "ring_wait",
    [CLASS_RING_READ] = "ring_read",     /* reads handed to a ring: SHORT makes them shorter */
    [CLASS_RING_RESULT] = "ring_result", /* what comes back of them */
};

struct module {
    uintptr_t begin, end;
    const char *name;
};

struct call {
    enum group group;
    uintptr_t site;
};

static struct {
    const char *count_path, *free_bytes;
    enum group group;
    uint64_t at;
    int kind;
    bool from;
} config;
static struct module modules[MODULE_COUNT_MAX];
static uint32_t module_count;
static _Thread_local bool finds_stack;
static atomic_bool armed;
static _Atomic uint64_t counters[CLASS_COUNT], total;
static struct call trace[TRACE_COUNT_MAX];

/* ---- environment ---- */

static void refuse(const char *name, const char *value)
{
    dprintf(2, "shim_fault: %s=%s is not known\n", name, value ? value : "");
    _exit(BAD_VARIABLE_CODE);
}

static int kind_of(const char *name)
{
    static const struct {
        const char *name;
        int kind;
    } kinds[] = {
        {"SHORT", KIND_SHORT}, {"EOF", KIND_EOF},  {"EIO", EIO},
        {"ENOSPC", ENOSPC},    {"EDQUOT", EDQUOT}, {"EINTR", EINTR},
        {"EAGAIN", EAGAIN},    {"EBUSY", EBUSY},   {"ENOMEM", ENOMEM},
        {"EMFILE", EMFILE},    {"ENFILE", ENFILE}, {"EACCES", EACCES},
        {"EPERM", EPERM},      {"EROFS", EROFS},   {"EINVAL", EINVAL},
        {"ENOSYS", ENOSYS},    {"ENOLCK", ENOLCK}, {"EOPNOTSUPP", EOPNOTSUPP},
        {"EXDEV", EXDEV},      {"ESTALE", ESTALE}, {"ECANCELED", ECANCELED},
        {"EFAULT", EFAULT},    {"ELOOP", ELOOP},   {"EMLINK", EMLINK},
        {"FLIP", KIND_FLIP},
    };
    for (size_t i = 0; name && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return kinds[i].kind;
    refuse("K3_FAULT_KIND", name);
    return 0;
}

static int note_module(struct dl_phdr_info *info, size_t bytes, void *context)
{
    (void)bytes;
    (void)context;
    const char *slash = strrchr(info->dlpi_name, '/');
    struct module module = {UINTPTR_MAX, 0, info->dlpi_name[0] ? slash ? slash + 1 : "?" : "main"};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type != PT_LOAD)
            continue;
        uintptr_t begin = info->dlpi_addr + header->p_vaddr;
        module.begin = begin < module.begin ? begin : module.begin;
        if (begin + header->p_memsz > module.end)
            module.end = begin + header->p_memsz;
    }
    if (module_count < MODULE_COUNT_MAX)
        modules[module_count++] = module;
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("K3_FAULT_CLASS");
    const char *at = getenv("K3_FAULT_AT");
    config.count_path = getenv("K3_FAULT_COUNT");
    config.free_bytes = getenv("K3_FAULT_FREE");
    config.from = getenv("K3_FAULT_FROM") != NULL;
    if (name) {
        char *end = NULL;
        while (config.group < CLASS_COUNT && strcmp(classes[config.group], name) != 0)
            config.group++;
        if (config.group == CLASS_COUNT)
            refuse("K3_FAULT_CLASS", name);
        errno = 0;
        config.at = at ? strtoull(at, &end, 10) : 0;
        if (!at || errno || end == at || *end || config.at == 0)
            refuse("K3_FAULT_AT", at);
        config.kind = kind_of(getenv("K3_FAULT_KIND"));
    }
    dl_iterate_phdr(note_module, NULL);
    atomic_store(&armed, true);
}

static size_t put_call(const struct call *call, char *line, size_t bytes)
{
    const char *name = "?";
    uintptr_t base = 0;
    for (uint32_t i = 0; i < module_count; i++)
        if (call->site >= modules[i].begin && call->site < modules[i].end) {
            name = modules[i].name;
            base = modules[i].begin;
        }
    int n = snprintf(line, bytes, "%s %.60s+%#lx\n", classes[call->group], name,
                     (unsigned long)(call->site - base));
    return n < 0 ? 0 : (size_t)n;
}

__attribute__((destructor)) static void end(void)
{
    char buffer[8192];
    size_t used = 0;
    uint64_t count = atomic_load(&total);
    atomic_store(&armed, false);
    if (!config.count_path)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, config.count_path, O_WRONLY | O_CREAT | O_TRUNC,
                          0666);
    for (uint64_t i = 0; fd >= 0 && i < count && i < TRACE_COUNT_MAX; i++) {
        if (used + 128 > sizeof buffer) {
            put_all(fd, buffer, used);
            used = 0;
        }
        used += put_call(&trace[i], buffer + used, sizeof buffer - used);
    }
    put_all(fd, buffer, used);
    syscall(SYS_close, fd);
}

/* ---- the gate every call goes through ---- */

/* What this call must suffer: 0 nothing, an errno, or KIND_*. */
static int fault(enum group group, const void *site)
{
    if (!atomic_load_explicit(&armed, memory_order_relaxed) || finds_stack)
        return 0;
    uint64_t number = atomic_fetch_add(&counters[group], 1) + 1;
    if (config.count_path) {
        uint64_t i = atomic_fetch_add(&total, 1);
        if (i < TRACE_COUNT_MAX)
            trace[i] = (struct call){group, (uintptr_t)site};
    }
    if (!config.at || group != config.group)
        return 0;
    return number == config.at || (config.from && number > config.at) ? config.kind : 0;
}

/* 0: the call goes on; -1 with errno: it has failed. */
static int gate(enum group group, const void *site)
{
    int kind = fault(group, site);
    if (kind <= 0)
        return 0;
    errno = kind;
    return -1;
}

#define SITE __builtin_return_address(0)

/* The next definition of a function, found once.  By way of an integer: ISO C knows no conversion
 * between pointers to data and to functions. */
#define NEXT(name)                                                                                 \
    static _Atomic uintptr_t found_##name;                                                         \
    uintptr_t at_##name = atomic_load(&found_##name);                                              \
    if (!at_##name) {                                                                              \
        at_##name = (uintptr_t)dlsym(RTLD_NEXT, #name);                                            \
        atomic_store(&found_##name, at_##name);                                                    \
    }                                                                                              \
    __typeof__(&name) next = (__typeof__(&name))at_##name;

static bool is_regular(int fd)
{
    struct stat stat;
    int kept = errno;
    bool is = syscall(SYS_fstat, fd, &stat) == 0 && S_ISREG(stat.st_mode);
    errno = kept;
    return is;
}

/* A sanitizer asks for the bounds of each new thread's stack, and aborts when libc has no memory
 * for the answer.  Nothing of ours asks that, so what libc allocates meanwhile is no call of ours.
 */
EXPORT int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes)
{
    NEXT(pthread_getattr_np)
    finds_stack = true;
    int code = next(thread, attributes);
    finds_stack = false;
    return code;
}

/* ---- files ---- */

struct opening {
    const char *path;
    int dir, flags;
    mode_t mode;
};

static int open_below(struct opening opening, const void *site)
{
    if (gate(opening.flags & OPEN_MODE_ARGUMENT ? CLASS_CREATE : CLASS_OPEN, site))
        return -1;
    return (int)syscall(SYS_openat, opening.dir, opening.path, opening.flags, opening.mode);
}

EXPORT int open(const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return open_below((struct opening){path, AT_FDCWD, flags, mode}, SITE);
}

EXPORT int open64(const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return open_below((struct opening){path, AT_FDCWD, flags, mode}, SITE);
}

EXPORT int openat(int dir, const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return open_below((struct opening){path, dir, flags, mode}, SITE);
}

EXPORT int openat64(int dir, const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return open_below((struct opening){path, dir, flags, mode}, SITE);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
    NEXT(fopen)
    return gate(CLASS_OPEN, SITE) ? NULL : next(path, mode);
}

EXPORT FILE *fopen64(const char *path, const char *mode)
{
    NEXT(fopen64)
    return gate(CLASS_OPEN, SITE) ? NULL : next(path, mode);
}

/* A transfer of bytes: all, half or nothing of it. */
static ssize_t transfer(enum group group, long number, const long a[4], const void *site)
{
    long bytes = a[2];
    int kind = (int)a[0] < STREAM_COUNT || !is_regular((int)a[0]) ? 0 : fault(group, site);
    if (kind == KIND_EOF)
        return 0;
    if (kind == KIND_SHORT)
        bytes -= bytes / 2; /* never nothing: that would be no progress */
    if (kind > 0) {
        errno = kind;
        return -1;
    }
    const long done = syscall(number, a[0], a[1], bytes, a[3]);
    if (kind == KIND_FLIP && number == SYS_pwrite64 && done > 0) {
        const unsigned char byte = ((const unsigned char *)a[1])[done / 2] ^ 1;
        syscall(SYS_pwrite64, a[0], &byte, 1, a[3] + done / 2);
    }
    return done;
}

#define TRANSFER(group, number, fd, data, bytes, offset)                                           \
    transfer(group, number, (const long[4]){fd, (long)(data), (long)(bytes), offset}, SITE)

EXPORT ssize_t read(int fd, void *data, size_t bytes)
{
    return TRANSFER(CLASS_READ, SYS_read, fd, data, bytes, 0);
}

EXPORT ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    return TRANSFER(CLASS_READ, SYS_pread64, fd, data, bytes, offset);
}

EXPORT ssize_t pread64(int fd, void *data, size_t bytes, off64_t offset)
{
    return TRANSFER(CLASS_READ, SYS_pread64, fd, data, bytes, offset);
}

EXPORT ssize_t write(int fd, const void *data, size_t bytes)
{
    return TRANSFER(CLASS_WRITE, SYS_write, fd, data, bytes, 0);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    return TRANSFER(CLASS_WRITE, SYS_pwrite64, fd, data, bytes, offset);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
    return TRANSFER(CLASS_WRITE, SYS_pwrite64, fd, data, bytes, offset);
}

/* A call that goes straight to the kernel, or fails. */
#define PASS(group, ...) (int)(gate(group, SITE) ? -1 : syscall(__VA_ARGS__))

EXPORT int fsync(int fd)
{
    return PASS(CLASS_SYNC, SYS_fsync, fd);
}

EXPORT int fdatasync(int fd)
{
    return PASS(CLASS_SYNC, SYS_fdatasync, fd);
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    return PASS(CLASS_RESERVE, SYS_fallocate, fd, mode, offset, bytes);
}

EXPORT int fallocate64(int fd, int mode, off64_t offset, off64_t bytes)
{
    return PASS(CLASS_RESERVE, SYS_fallocate, fd, mode, offset, bytes);
}

EXPORT int ftruncate(int fd, off_t bytes)
{
    return PASS(CLASS_SIZE, SYS_ftruncate, fd, bytes);
}

EXPORT int ftruncate64(int fd, off64_t bytes)
{
    return PASS(CLASS_SIZE, SYS_ftruncate, fd, bytes);
}

EXPORT int mkdirat(int dir, const char *path, mode_t mode)
{
    return PASS(CLASS_MKDIR, SYS_mkdirat, dir, path, mode);
}

EXPORT int mkdir(const char *path, mode_t mode)
{
    return PASS(CLASS_MKDIR, SYS_mkdirat, AT_FDCWD, path, mode);
}

EXPORT int renameat2(int from, const char *path, int to, const char *name, unsigned flags)
{
    return PASS(CLASS_RENAME, SYS_renameat2, from, path, to, name, flags);
}

EXPORT int renameat(int from, const char *path, int to, const char *name)
{
    return PASS(CLASS_RENAME, SYS_renameat2, from, path, to, name, 0);
}

EXPORT int rename(const char *path, const char *name)
{
    return PASS(CLASS_RENAME, SYS_renameat2, AT_FDCWD, path, AT_FDCWD, name, 0);
}

EXPORT int unlinkat(int dir, const char *path, int flags)
{
    return PASS(CLASS_REMOVE, SYS_unlinkat, dir, path, flags);
}

EXPORT int unlink(const char *path)
{
    return PASS(CLASS_REMOVE, SYS_unlinkat, AT_FDCWD, path, 0);
}

EXPORT int rmdir(const char *path)
{
    return PASS(CLASS_REMOVE, SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

/* Linux has closed the file whatever it answers. */
EXPORT int close(int fd)
{
    bool counts = fd >= STREAM_COUNT && is_regular(fd);
    int rc = (int)syscall(SYS_close, fd);
    return rc || !counts ? rc : gate(CLASS_CLOSE, SITE);
}

EXPORT int fstatat(int dir, const char *path, struct stat *stat, int flags)
{
    return PASS(CLASS_STAT, SYS_newfstatat, dir, path, stat, flags);
}

EXPORT int fstat(int fd, struct stat *stat)
{
    return PASS(CLASS_STAT, SYS_fstat, fd, stat);
}

EXPORT int stat(const char *path, struct stat *stat)
{
    return PASS(CLASS_STAT, SYS_newfstatat, AT_FDCWD, path, stat, 0);
}

EXPORT int lstat(const char *path, struct stat *stat)
{
    return PASS(CLASS_STAT, SYS_newfstatat, AT_FDCWD, path, stat, AT_SYMLINK_NOFOLLOW);
}

EXPORT int fstatvfs(int fd, struct statvfs *stat)
{
    NEXT(fstatvfs)
    int rc = gate(CLASS_SPACE, SITE) ? -1 : next(fd, stat);
    if (!rc && config.free_bytes)
        stat->f_bavail = strtoull(config.free_bytes, NULL, 10) / stat->f_frsize;
    return rc;
}

EXPORT DIR *fdopendir(int fd)
{
    NEXT(fdopendir)
    return gate(CLASS_LIST, SITE) ? NULL : next(fd);
}

EXPORT struct dirent *readdir(DIR *dir)
{
    NEXT(readdir)
    return gate(CLASS_LIST, SITE) ? NULL : next(dir);
}

EXPORT int access(const char *path, int mode)
{
    NEXT(access)
    return gate(CLASS_PATH, SITE) ? -1 : next(path, mode);
}

EXPORT int faccessat(int dir, const char *path, int mode, int flags)
{
    NEXT(faccessat)
    return gate(CLASS_PATH, SITE) ? -1 : next(dir, path, mode, flags);
}

EXPORT ssize_t readlinkat(int dir, const char *path, char *text, size_t bytes)
{
    NEXT(readlinkat)
    return gate(CLASS_PATH, SITE) ? -1 : next(dir, path, text, bytes);
}

EXPORT char *realpath(const char *path, char *resolved)
{
    NEXT(realpath)
    return gate(CLASS_PATH, SITE) ? NULL : next(path, resolved);
}

EXPORT int flock(int fd, int how)
{
    return PASS(CLASS_LOCK, SYS_flock, fd, how);
}

EXPORT ssize_t getrandom(void *data, size_t bytes, unsigned flags)
{
    return gate(CLASS_RANDOM, SITE) ? -1 : syscall(SYS_getrandom, data, bytes, flags);
}

EXPORT int eventfd(unsigned value, int flags)
{
    return PASS(CLASS_EVENT, SYS_eventfd2, value, flags);
}

/* ---- hints ---- */

EXPORT int posix_fadvise(int fd, off_t offset, off_t bytes, int advice)
{
    NEXT(posix_fadvise)
    int kind = fault(CLASS_HINT, SITE);
    return kind > 0 ? kind : next(fd, offset, bytes, advice);
}

EXPORT int madvise(void *data, size_t bytes, int advice)
{
    return PASS(CLASS_HINT, SYS_madvise, data, bytes, advice);
}

EXPORT int statx(int dir, const char *path, int flags, unsigned mask, struct statx *stat)
{
    return PASS(CLASS_HINT, SYS_statx, dir, path, flags, mask, stat);
}

EXPORT int getrlimit(__rlimit_resource_t what, struct rlimit *limit)
{
    NEXT(getrlimit)
    return gate(CLASS_HINT, SITE) ? -1 : next(what, limit);
}

EXPORT int setrlimit(__rlimit_resource_t what, const struct rlimit *limit)
{
    NEXT(setrlimit)
    return gate(CLASS_HINT, SITE) ? -1 : next(what, limit);
}

EXPORT int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    NEXT(sched_getaffinity)
    return gate(CLASS_HINT, SITE) ? -1 : next(pid, bytes, set);
}

/* ---- memory and threads ---- */

EXPORT void *malloc(size_t bytes)
{
    NEXT(malloc)
    return gate(CLASS_ALLOC, SITE) ? NULL : next(bytes);
}

EXPORT void *calloc(size_t count, size_t bytes)
{
    NEXT(calloc)
    return gate(CLASS_ALLOC, SITE) ? NULL : next(count, bytes);
}

EXPORT void *realloc(void *data, size_t bytes)
{
    NEXT(realloc)
    return gate(CLASS_ALLOC, SITE) ? NULL : next(data, bytes);
}

EXPORT int posix_memalign(void **data, size_t align, size_t bytes)
{
    NEXT(posix_memalign)
    int kind = fault(CLASS_ALLOC, SITE);
    return kind > 0 ? kind : next(data, align, bytes);
}

EXPORT void *aligned_alloc(size_t align, size_t bytes)
{
    NEXT(aligned_alloc)
    return gate(CLASS_ALLOC, SITE) ? NULL : next(align, bytes);
}

/* The allocation in it is counted once, as the caller's. */
static char *copy_text(const char *text, size_t bytes, const void *site)
{
    NEXT(malloc)
    char *copy = gate(CLASS_ALLOC, site) ? NULL : next(bytes + 1);
    if (copy) {
        memcpy(copy, text, bytes);
        copy[bytes] = 0;
    }
    return copy;
}

EXPORT char *strdup(const char *text)
{
    return copy_text(text, strlen(text), SITE);
}

EXPORT char *strndup(const char *text, size_t bytes)
{
    return copy_text(text, strnlen(text, bytes), SITE);
}

EXPORT void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    if (gate(CLASS_MAP, SITE))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset); /* NOLINT: a register */
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *context)
{
    NEXT(pthread_create)
    int kind = fault(CLASS_THREAD, SITE);
    return kind > 0 ? kind : next(thread, attr, start, context);
}

/* ---- io_uring, by way of liburing ---- */

/* liburing gives errors as negative results. */
#define PASS_RING(group, call)                                                                     \
    int kind = fault(group, SITE);                                                                 \
    return kind > 0 ? -kind : (call)

EXPORT int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    NEXT(io_uring_queue_init)
    PASS_RING(CLASS_RING_SETUP, next(entries, ring, flags));
}

EXPORT int io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params)
{
    NEXT(io_uring_queue_init_params)
    PASS_RING(CLASS_RING_SETUP, next(entries, ring, params));
}

EXPORT int io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers,
                                     unsigned count)
{
    NEXT(io_uring_register_buffers)
    PASS_RING(CLASS_RING_REGISTER, next(ring, buffers, count));
}

EXPORT int io_uring_register_files(struct io_uring *ring, const int *files, unsigned count)
{
    NEXT(io_uring_register_files)
    PASS_RING(CLASS_RING_REGISTER, next(ring, files, count));
}

EXPORT int io_uring_register_files_sparse(struct io_uring *ring, unsigned count)
{
    NEXT(io_uring_register_files_sparse)
    PASS_RING(CLASS_RING_REGISTER, next(ring, count));
}

EXPORT int io_uring_register_files_update(struct io_uring *ring, unsigned begin, const int *files,
                                          unsigned count)
{
    NEXT(io_uring_register_files_update)
    PASS_RING(CLASS_RING_REGISTER, next(ring, begin, files, count));
}

/* The reads that the next submission takes: one of them is made truly shorter. */
static void shorten(const struct io_uring *ring, const void *site)
{
    const struct io_uring_sq *sq = &ring->sq;
    for (unsigned i = sq->sqe_head; i != sq->sqe_tail; i++) {
        struct io_uring_sqe *sqe = &sq->sqes[i & *sq->kring_mask];
        bool is_read = sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READ_FIXED;
        if (!is_read || sqe->len <= SECTOR_BYTES || fault(CLASS_RING_READ, site) != KIND_SHORT)
            continue;
        unsigned half = sqe->len / 2 & ~(SECTOR_BYTES - 1);
        sqe->len = half ? half : SECTOR_BYTES;
    }
}

EXPORT int io_uring_submit(struct io_uring *ring)
{
    NEXT(io_uring_submit)
    shorten(ring, SITE);
    PASS_RING(CLASS_RING_SUBMIT, next(ring));
}

EXPORT int io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
    NEXT(io_uring_submit_and_wait)
    shorten(ring, SITE);
    PASS_RING(CLASS_RING_SUBMIT, next(ring, count));
}

/* A completion that carries bytes (8 of them are a wake-up by eventfd) gets another result. */
static void spoil(struct io_uring_cqe *cqe, const void *site)
{
    if (cqe->res <= (int)sizeof(uint64_t))
        return;
    int kind = fault(CLASS_RING_RESULT, site);
    if (kind == KIND_EOF)
        cqe->res = 0;
    else if (kind > 0)
        cqe->res = -kind;
}

EXPORT unsigned io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes,
                                        unsigned count)
{
    NEXT(io_uring_peek_batch_cqe)
    unsigned got = next(ring, cqes, count);
    for (unsigned i = 0; i < got; i++)
        spoil(cqes[i], SITE);
    return got;
}

EXPORT int __io_uring_get_cqe(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned submit,
                              unsigned wait, sigset_t *mask)
{
    NEXT(__io_uring_get_cqe)
    int kind = fault(CLASS_RING_WAIT, SITE);
    if (kind > 0)
        return -kind;
    int rc = next(ring, cqe, submit, wait, mask);
    if (rc == 0 && *cqe)
        spoil(*cqe, SITE);
    return rc;
}
