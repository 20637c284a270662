/* Purpose: the calls of libcufile or (FAKE_HIP) of libhipfile that io_gpufile.c looks for.
 * Owns: what is registered, until it is given back.
 * Threads: any.
 * Errors: codes of the libraries, which are the same numbers in both.
 * Invariant: bytes get to the GPU by its driver's own copy in the calling thread's context, so a
 * thread that has none fails as with the real library. */
#include "fake_cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_BYTES 4096u
#define JUNK        0xa5 /* in host memory that no read reached */
#define LIST_MAX    256

#ifdef FAKE_HIP
#define NAME(cufile, hipfile) hipfile
#define DRIVERS                                                                                    \
    {                                                                                              \
        "libamdhip64.so.7", "libamdhip64.so.6"                                                     \
    }
#else
#define NAME(cufile, hipfile) cufile
#define DRIVERS                                                                                    \
    {                                                                                              \
        "libcuda.so.1", "libcuda.so.1"                                                             \
    }
#endif

struct result {
    int code, driver_code;
};

struct descr {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *operations;
};

struct memory {
    const char *base;
    size_t bytes;
};

static struct fake_cufile state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file_fds[LIST_MAX]; /* a handle is the address of its place; fd + 1 */
static struct memory memories[LIST_MAX];

#define driver_open      NAME(cuFileDriverOpen, hipFileDriverOpen)
#define driver_close     NAME(cuFileDriverClose_v2, hipFileDriverClose)
#define file_register    NAME(cuFileHandleRegister, hipFileHandleRegister)
#define file_deregister  NAME(cuFileHandleDeregister, hipFileHandleDeregister)
#define memory_register  NAME(cuFileBufRegister, hipFileBufRegister)
#define memory_take_back NAME(cuFileBufDeregister, hipFileBufDeregister)
#define read_call        NAME(cuFileRead, hipFileRead)

struct result driver_open(void);
struct result driver_close(void);
struct result file_register(void **file, struct descr *descr);
void file_deregister(void *file);
struct result memory_register(const void *base, size_t bytes, int flags);
struct result memory_take_back(const void *base);
ssize_t read_call(void *file, void *base, size_t bytes, off_t file_offset, off_t base_offset);

struct fake_cufile *fake_cufile_state(void)
{
    return &state;
}

static struct result give(int code)
{
    return (struct result){code, 0};
}

static struct result faulty(enum fake_cufile_fault fault)
{
    if (state.fault != fault)
        return give(0);
    atomic_fetch_add(&state.hit_count, 1);
    return give(state.code);
}

struct result driver_open(void)
{
    struct result result = faulty(FAKE_CUFILE_OPEN);
    if (!result.code)
        atomic_fetch_add(&state.drivers, 1);
    return result;
}

/* The driver of the GPU that the program has loaded; NULL: none.  The caller closes it. */
static void *open_gpu_driver(void)
{
    static const char *const names[] = DRIVERS;
    void *driver = NULL;
    for (int i = 0; i < 2 && !driver; i++)
        driver = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    return driver;
}

static bool has_context(void)
{
    int (*memory_info)(size_t *, size_t *) = NULL;
    size_t free_bytes, total_bytes;
    void *driver = open_gpu_driver();
    if (!driver)
        return false;
    *(void **)&memory_info = dlsym(driver, NAME("cuMemGetInfo_v2", "hipMemGetInfo"));
    int code = memory_info ? memory_info(&free_bytes, &total_bytes) : -1;
    dlclose(driver);
    return code == 0;
}

/* Its buffers are in a context, which must be there still. */
struct result driver_close(void)
{
    atomic_fetch_sub(&state.drivers, 1);
    if (atomic_load(&state.files) || atomic_load(&state.memories) || !has_context())
        atomic_fetch_add(&state.bad_closes, 1);
    return give(0);
}

/* ---- registering ---- */

static int add_file(int fd, void **file)
{
    int at = LIST_MAX;
    for (int i = 0; i < LIST_MAX; i++) {
        if (file_fds[i] == fd + 1)
            return 5028;
        if (!file_fds[i] && at == LIST_MAX)
            at = i;
    }
    if (at == LIST_MAX)
        return 5030;
    file_fds[at] = fd + 1;
    *file = &file_fds[at];
    atomic_fetch_add(&state.files, 1);
    return 0;
}

struct result file_register(void **file, struct descr *descr)
{
    struct result result = faulty(FAKE_CUFILE_FILE);
    if (result.code)
        return result;
    if (descr->type != 1 || descr->operations)
        return give(5022);
    if (!(fcntl(descr->handle.fd, F_GETFL) & O_DIRECT))
        return give(5020);
    pthread_mutex_lock(&lock);
    result.code = add_file(descr->handle.fd, file);
    pthread_mutex_unlock(&lock);
    return result;
}

/* The descriptor must still be open: a file that was closed first would be another by now. */
void file_deregister(void *file)
{
    int *own = file;
    pthread_mutex_lock(&lock);
    if (*own && fcntl(*own - 1, F_GETFL) >= 0)
        atomic_fetch_sub(&state.files, 1);
    *own = 0;
    pthread_mutex_unlock(&lock);
}

static int add_memory(const char *base, size_t bytes)
{
    int at = LIST_MAX;
    for (int i = 0; i < LIST_MAX; i++) {
        if (memories[i].base && base < memories[i].base + memories[i].bytes &&
            memories[i].base < base + bytes)
            return 5023;
        if (!memories[i].base && at == LIST_MAX)
            at = i;
    }
    if (at == LIST_MAX)
        return 5030;
    memories[at] = (struct memory){base, bytes};
    atomic_fetch_add(&state.memories, 1);
    return 0;
}

struct result memory_register(const void *base, size_t bytes, int flags)
{
    struct result result = faulty(FAKE_CUFILE_MEMORY);
    if (result.code)
        return result;
    if (!base || !bytes || flags)
        return give(5022);
    pthread_mutex_lock(&lock);
    result.code = add_memory(base, bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

static int find_memory(const char *base)
{
    for (int i = 0; i < LIST_MAX; i++)
        if (memories[i].base == base)
            return i;
    return LIST_MAX;
}

struct result memory_take_back(const void *base)
{
    pthread_mutex_lock(&lock);
    int at = find_memory(base);
    if (at < LIST_MAX) {
        memories[at].base = NULL;
        atomic_fetch_sub(&state.memories, 1);
    }
    pthread_mutex_unlock(&lock);
    return give(at < LIST_MAX ? 0 : 5024);
}

/* ---- reading ---- */

/* Codes of the driver. */
static int copy_to_gpu(void *target, const void *source, size_t bytes)
{
    int (*copy)(void *, const void *, size_t, void *) = NULL;
    int (*synchronize)(void *) = NULL;
    void *driver = open_gpu_driver();
    if (!driver)
        return -1;
    *(void **)&copy = dlsym(driver, NAME("cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"));
    *(void **)&synchronize = dlsym(driver, NAME("cuStreamSynchronize", "hipStreamSynchronize"));
    int code = copy && synchronize ? copy(target, source, bytes, NULL) : -1;
    if (!code)
        code = synchronize(NULL);
    dlclose(driver);
    return code;
}

/* Whole blocks around what was asked for, since the file is open for direct reads. */
static ssize_t read_file(int fd, char **data, size_t bytes, off_t offset, char **out)
{
    const off_t begin = offset / BLOCK_BYTES * BLOCK_BYTES;
    const size_t skip = (size_t)(offset - begin);
    const size_t span = (skip + bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    *data = aligned_alloc(BLOCK_BYTES, span);
    if (!*data) {
        errno = ENOMEM;
        return -1;
    }
    memset(*data, JUNK, span);
    ssize_t n = pread(fd, *data, span, begin);
    *out = *data + skip;
    if (n < 0)
        return -1;
    if ((size_t)n <= skip)
        return 0;
    return n - (ssize_t)skip < (ssize_t)bytes ? n - (ssize_t)skip : (ssize_t)bytes;
}

/* Does the fault hit this read? */
static bool hits(void)
{
    uint64_t n = atomic_fetch_add(&state.read_count, 1);
    if (state.fault < FAKE_CUFILE_ERRNO || n < state.first || n - state.first >= state.count)
        return false;
    atomic_fetch_add(&state.hit_count, 1);
    return true;
}

static ssize_t bring(int fd, char *target, size_t bytes, off_t offset, bool is_flipped)
{
    char *data = NULL, *out;
    ssize_t n = read_file(fd, &data, bytes, offset, &out);
    if (n > 0 && is_flipped)
        out[n / 2] ^= 4;
    /* NVIDIA's library 1.15 too brings what its buffer held behind the end of a file. */
    int code = n > 0 ? copy_to_gpu(target, out, bytes) : 0;
    int sys_errno = errno;
    free(data);
    errno = sys_errno;
    if (code)
        return code == 1 ? -5012 : -5011;
    return n;
}

ssize_t read_call(void *file, void *base, size_t bytes, off_t file_offset, off_t base_offset)
{
    const enum fake_cufile_fault fault = hits() ? state.fault : FAKE_CUFILE_NONE;
    const int fd = *(int *)file - 1;
    char *target = (char *)base + base_offset;
    if (fd < 0)
        return -5027;
    pthread_mutex_lock(&lock);
    if (find_memory(base) < LIST_MAX)
        atomic_fetch_add(&state.registered_count, 1);
    pthread_mutex_unlock(&lock);
    if (fault == FAKE_CUFILE_ERRNO) {
        errno = state.code;
        return -1;
    }
    if (fault == FAKE_CUFILE_CODE)
        return -state.code;
    if (fault == FAKE_CUFILE_EMPTY)
        return (ssize_t)bytes;
    if (fault == FAKE_CUFILE_SLOW)
        nanosleep(&(struct timespec){0, state.code * 1000000L}, NULL);
    if (fault == FAKE_CUFILE_SHORT && bytes > (size_t)state.code)
        bytes = (size_t)state.code;
    ssize_t n = bring(fd, target, bytes, file_offset, fault == FAKE_CUFILE_FLIP);
    return fault == FAKE_CUFILE_LONG && n >= 0 ? (ssize_t)bytes + 1 : n;
}

/* ---- what it says of itself ---- */

#ifndef FAKE_HIP
struct properties {
    unsigned major_version, minor_version;
    size_t poll_bytes, direct_kib;
    unsigned status_flags, control_flags, feature_flags;
    unsigned cache_kib, buffer_cache_kib, pinned_kib, batch_count, batch_milliseconds;
};

struct result cuFileDriverGetProperties(struct properties *properties);
struct result cuFileGetParameterBool(int parameter, bool *value);
struct result cuFileDriverGetP2PFlags(int file_system, unsigned *flags);

struct result cuFileDriverGetProperties(struct properties *properties)
{
    memset(properties, 0, sizeof *properties);
    if (state.mode == FAKE_CUFILE_NVFS || state.mode == FAKE_CUFILE_FORCED) {
        properties->major_version = 2;
        properties->minor_version = 30;
    }
    return give(0);
}

struct result cuFileGetParameterBool(int parameter, bool *value)
{
    if (parameter != 2)
        return give(5022);
    *value = state.mode == FAKE_CUFILE_FORCED;
    return give(0);
}

struct result cuFileDriverGetP2PFlags(int file_system, unsigned *flags)
{
    *flags = state.mode == FAKE_CUFILE_P2P && file_system == 4;
    return give(0);
}
#endif
