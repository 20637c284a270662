/* Purpose: the io engines "cufile" and "hipfile": one body over the calls of either library, opened
 * at run time; threads that each have one synchronous read under way.
 * Owns: a pool of threads, handles of files and registered memory of the library, the descriptors
 * of direct reads.  Libraries stay open for the life of the process, their drivers as long as an
 * engine is open.
 * Threads: one thread drives an open engine; the pool's read.
 * Errors: K3_EUNSUPPORTED where library, driver or file refuse; K3_ENOMEM; K3_EIO; K3_EUSAGE. A
 * failed read is a completion with sys_errno.
 * Invariants: those of the pool; every call of a library is made in the context of the GPU; close
 * waits for what runs before it gives anything back; the driver of the library is closed while the
 * context of the last engine is there. */
#include "io_gpufile.h"
#include "dl_calls.h"
#include "io_pool.h"
#include "machine.h"

#include <dlfcn.h> /* dlclose, and one call that may be there */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads of 4 MiB fill a drive's and a GPU's link with 16 to 32 threads; more gained nothing in
 * published figures. */
#define THREAD_COUNT 16u

/* ---- what the libraries look like ----
 * Sources: cuFile API reference (GPUDirect Storage documentation, 1.20) and hipFile API reference
 * (ROCm documentation, 0.2); checked against cufile.h 1.20.0 and hipfile.h 0.2.0. */

/* By value: the library's code, and that of the GPU's driver behind it.  0 is success. */
struct result {
    int code, driver_code;
};

struct descr {
    int type; /* DESCR_FD */
    union {
        int fd;
        void *handle;
    } handle;
    const void *operations; /* of file systems in user space */
};
#define DESCR_FD 1

/* Of cuFile; hipFile has its own and does not fill it. */
struct properties {
    unsigned major_version, minor_version; /* of nvidia-fs; 0.0: it is not loaded */
    size_t poll_bytes, direct_kib;
    unsigned status_flags, control_flags;
    unsigned feature_flags;
    unsigned cache_kib, buffer_cache_kib, pinned_kib, batch_count, batch_milliseconds;
};

_Static_assert(sizeof(struct result) == 8, "CUfileError_t, hipFileError_t");
_Static_assert(sizeof(struct descr) == 24 && offsetof(struct descr, handle) == 8,
               "CUfileDescr_t, hipFileDescr_t");
_Static_assert(sizeof(struct properties) == 56 && offsetof(struct properties, feature_flags) == 32,
               "CUfileDrvProps_t");

#define CODE_BASE             5000
#define CODE_ALREADY_OPEN     5026
#define PARAMETER_FORCED      2         /* CUFILE_PARAM_FORCE_COMPAT_MODE */
#define FEATURE_P2P           (1u << 4) /* of feature_flags: PCI P2PDMA */
#define FILE_SYSTEM_NVME      4         /* of status_flags, and to ask p2p flags for */
#define P2P_PCI               (1u << 0)
#define P2P_NVFS              (1u << 1)
#define P2P_CHIP              (1u << 3) /* Grace */
#define NVFS_PATH             "/proc/driver/nvidia-fs/version"
#define DRIVER_PARAMETER_PATH "/proc/driver/nvidia/params"
#define HIP_FAST_CALL         "hipAmdFileRead" /* of libamdhip64: what hipFile's direct way needs */

struct api {
    enum k3_gpu_kind kind;
    const char *name, *library;
    const struct k3_gpu_api *gpu;
    void *handle;
    unsigned engine_count; /* that have the driver open */
    bool is_owner;         /* it was opened here, not by others in the process */

    struct result (*driver_open)(void);
    struct result (*driver_close)(void); /* NULL: an old library has it for the end only */
    struct result (*file_register)(void **file, struct descr *descr);
    void (*file_deregister)(void *file);
    struct result (*memory_register)(const void *base, size_t bytes, int flags);
    struct result (*memory_deregister)(const void *base);
    ssize_t (*read)(void *file, void *base, size_t bytes, off_t file_offset, off_t base_offset);

    /* cuFile's, and only in newer ones; NULL where they are not there. */
    struct result (*properties_get)(struct properties *properties);
    struct result (*bool_get)(int parameter, bool *value);
    struct result (*p2p_flags_get)(int file_system, unsigned *flags);
};

struct symbol {
    size_t offset;
    const char *cufile, *hipfile;
    bool is_optional;
};

static const struct symbol symbols[] = {
    {offsetof(struct api, driver_open), "cuFileDriverOpen", "hipFileDriverOpen", false},
    {offsetof(struct api, driver_close), "cuFileDriverClose_v2", "hipFileDriverClose", true},
    {offsetof(struct api, file_register), "cuFileHandleRegister", "hipFileHandleRegister", false},
    {offsetof(struct api, file_deregister), "cuFileHandleDeregister", "hipFileHandleDeregister",
     false},
    {offsetof(struct api, memory_register), "cuFileBufRegister", "hipFileBufRegister", false},
    {offsetof(struct api, memory_deregister), "cuFileBufDeregister", "hipFileBufDeregister", false},
    {offsetof(struct api, read), "cuFileRead", "hipFileRead", false},
    {offsetof(struct api, properties_get), "cuFileDriverGetProperties", NULL, true},
    {offsetof(struct api, bool_get), "cuFileGetParameterBool", NULL, true},
    {offsetof(struct api, p2p_flags_get), "cuFileDriverGetP2PFlags", NULL, true},
};

static const char *const library_names[2][3] = {
    [K3_GPU_CUDA] = {"libcufile.so.0", NULL},
    [K3_GPU_HIP] = {"libhipfile.so.0", "libhipfile.so", NULL},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct api tables[2];
static bool is_open[2];

/* What a code of either library means; both have the same numbers. */
static const char *meaning(const struct api *api, struct result result)
{
    static const struct {
        int code;
        const char *text;
    } rows[] = {
        {5001, "its kernel driver is not loaded, and its configuration allows no other way"},
        {5003, "a limit of its configuration is out of range"},
        {5004, "library and kernel driver are of different versions"},
        {5007, "this machine is not supported"},
        {5008, "the file system or drive of this file is not supported"},
        {5009, "this GPU is not supported"},
        {5010, "its kernel driver failed"},
        {5014, "the memory is not one allocation"},
        {5016, "more memory than its configuration lets it pin"},
        {5018, "not a regular file"},
        {5019, "the file is not open as it wants it"},
        {5020, "the file is not open for direct reads"},
        {5022, "it does not take these arguments"},
        {5023, "the memory is registered already"},
        {5025, "no permission for its devices or the file"},
        {5027,
         "it knows nothing of the file's drive, as where libudev.so or the database of udev is "
         "missing; cufile.log says more"},
        {5028, "the file is registered already"},
        {5030, "an error inside of it"},
        {5033, "its kernel driver cannot be set up"},
        {5034, "its configuration excludes this file"},
        {5036, "memory of the GPU cannot be pinned"},
    };
    if (result.code == 5011 && result.driver_code)
        return k3_gpu_error_name(api->gpu, result.driver_code);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].code == result.code)
            return rows[i].text;
    return "an error that is not known here";
}

static int judge(const struct api *api, struct result result, const char *what, struct k3_err *err)
{
    if (result.code == 0)
        return 0;
    return k3_fail(err, K3_EUNSUPPORTED, "%s: %s: %s (%d)", api->library, what,
                   meaning(api, result), result.code);
}

/* ---- opening a library ---- */

static int open_library(struct api *api, struct k3_err *err)
{
    const char *const *names = library_names[api->kind];
    api->handle = k3_dl_open(names, &api->library);
    if (api->handle)
        return 0;
    return k3_fail(err, K3_EUNSUPPORTED, "no %s on this machine: it comes with %s", names[0],
                   api->kind == K3_GPU_CUDA ? "CUDA (GPUDirect Storage)" : "ROCm (hipFile)");
}

static int find_calls(struct api *api, struct k3_err *err)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        const char *name = api->kind == K3_GPU_CUDA ? symbols[i].cufile : symbols[i].hipfile;
        bool is_there = name && k3_dl_find(api->handle, name, api, symbols[i].offset);
        if (!is_there && !symbols[i].is_optional)
            return k3_fail(err, K3_EUNSUPPORTED, "%s has no %s: a newer one is needed",
                           api->library, name);
    }
    return 0;
}

/* The table is made once and lives as long as the process. */
static int open_api(enum k3_gpu_kind kind, struct api **out, struct k3_err *err)
{
    int rc = 0;
    *out = NULL;
    pthread_mutex_lock(&lock);
    if (!is_open[kind]) {
        struct api api = {.kind = kind, .name = kind == K3_GPU_CUDA ? "cufile" : "hipfile"};
        rc = open_library(&api, err);
        if (!rc)
            rc = find_calls(&api, err);
        if (!rc)
            rc = k3_gpu_api_open(kind, &api.gpu, err);
        if (rc && api.handle)
            dlclose(api.handle);
        if (!rc) {
            tables[kind] = api;
            is_open[kind] = true;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!rc)
        *out = &tables[kind];
    return rc;
}

/* Once for all engines: others in the process may use the library too.  A failure may be tried
 * again. */
static int start_driver(struct api *api, struct k3_err *err)
{
    int rc = 0;
    pthread_mutex_lock(&lock);
    if (api->engine_count == 0) {
        struct result result = api->driver_open();
        api->is_owner = result.code == 0;
        if (result.code == CODE_ALREADY_OPEN)
            result.code = 0;
        rc = judge(api, result, "does not start", err);
    }
    if (!rc)
        api->engine_count++;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Left open, the driver would keep buffers and streams in a context that goes away with the device,
 * and touch them at the end of the process. */
static void stop_driver(struct api *api)
{
    pthread_mutex_lock(&lock);
    if (--api->engine_count == 0 && api->is_owner && api->driver_close)
        (void)api->driver_close();
    pthread_mutex_unlock(&lock);
}

/* ---- the engine ---- */

struct region {
    char *base;
    size_t bytes;
    bool is_registered;
};

struct k3_io {
    struct k3_io_pool pool;
    struct api *api;
    struct k3_gpu gpu;
    struct k3_io_files files;
    void **handles; /* of the library, one for each file; owned */
    struct region regions[K3_IO_REGION_COUNT_MAX];
    uint32_t region_count, handle_cap;
    bool is_started; /* it is one of those that have the driver open */
};

/* 5012 to 5017 are about the memory that was given. */
static int errno_of(ssize_t result)
{
    ssize_t code = -result;
    return code >= CODE_BASE + 12 && code <= CODE_BASE + 17 ? EFAULT : EIO;
}

/* base: of the allocation, where it is known. */
static ssize_t read_some(void *context, const struct k3_io_job *job, const struct k3_io_step *step)
{
    const struct k3_io *io = context;
    int saved;
    if (k3_gpu_enter(&io->gpu, &saved, NULL))
        return -EIO;
    errno = 0;
    ssize_t n = io->api->read(job->file, job->base, step->bytes, (off_t)step->offset,
                              (char *)step->target - (char *)job->base);
    int sys_errno = errno;
    k3_gpu_leave(&io->gpu, saved);
    if (n == -1)
        return sys_errno ? -sys_errno : -EIO;
    if (n < 0)
        return -errno_of(n);
    return n > (ssize_t)step->bytes ? -EIO : n;
}

/* In the context of the GPU.  Files and memory first: they are the driver's. */
static void give_back(struct k3_io *io)
{
    for (uint32_t i = 0; i < io->files.count; i++)
        io->api->file_deregister(io->handles[i]);
    for (uint32_t i = 0; i < io->region_count; i++)
        if (io->regions[i].is_registered)
            (void)io->api->memory_deregister(io->regions[i].base);
    if (io->is_started)
        stop_driver(io->api);
}

static void gpufile_close(struct k3_io *io)
{
    int saved;
    if (!io)
        return;
    k3_io_pool_close(&io->pool);
    if (k3_gpu_enter(&io->gpu, &saved, NULL) == 0) {
        give_back(io);
        k3_gpu_leave(&io->gpu, saved);
    }
    k3_io_files_fini(&io->files);
    free(io->handles);
    free(io);
}

/* Registering is what lets a drive write to the GPU's memory; reads go without it, but slower. */
static int start_entered(struct k3_io *io, const struct k3_io_options *options, struct k3_err *err)
{
    int rc = start_driver(io->api, err);
    if (rc)
        return rc;
    io->is_started = true;
    for (uint32_t i = 0; i < options->region_count; i++) {
        struct region *region = &io->regions[io->region_count++];
        region->base = options->regions[i].data;
        region->bytes = options->regions[i].bytes;
        struct result result = io->api->memory_register(region->base, region->bytes, 0);
        region->is_registered = result.code == 0;
        if (!region->is_registered)
            (void)judge(io->api, result,
                        "memory of the GPU is not registered, reads pass a buffer of the library",
                        options->note);
    }
    return 0;
}

static int start(struct k3_io *io, const struct k3_io_options *options, struct k3_err *err)
{
    int saved;
    int rc = k3_gpu_enter(&io->gpu, &saved, err);
    if (rc)
        return rc;
    rc = start_entered(io, options, err);
    k3_gpu_leave(&io->gpu, saved);
    return rc;
}

static int open_kind(enum k3_gpu_kind kind, const struct k3_io_options *options, struct k3_io **out,
                     struct k3_err *err)
{
    const char *name = kind == K3_GPU_CUDA ? "cufile" : "hipfile";
    struct api *api;
    *out = NULL;
    if (options->region_count > K3_IO_REGION_COUNT_MAX)
        return k3_fail(err, K3_EUSAGE, "io %s: %u regions, %u at most", name, options->region_count,
                       K3_IO_REGION_COUNT_MAX);
    if (!options->gpu || options->gpu->api->kind != kind)
        return k3_fail(err, K3_EUNSUPPORTED, "io %s reads into the memory of a %s device only",
                       name, kind == K3_GPU_CUDA ? "cuda" : "hip");
    int rc = open_api(kind, &api, err);
    if (rc)
        return rc;
    struct k3_io *io = calloc(1, sizeof *io);
    if (!io)
        return k3_fail_sys(err, ENOMEM, "io %s: cannot open", name);
    io->api = api;
    io->gpu = *options->gpu;
    const struct k3_io_pool_options pool = {
        .engine = api->name,
        .depth = options->depth,
        .thread_count = options->thread_count ? options->thread_count : THREAD_COUNT,
        .read = read_some,
        .context = io};
    rc = k3_io_pool_open(&io->pool, &pool, err);
    if (!rc)
        rc = start(io, options, err);
    if (rc)
        gpufile_close(io);
    else
        *out = io;
    return rc;
}

/* ---- files and reads ---- */

static int register_file(struct k3_io *io, int fd, void **handle, struct k3_err *err)
{
    int saved;
    struct descr descr = {.type = DESCR_FD, .handle = {.fd = fd}};
    int rc = k3_gpu_enter(&io->gpu, &saved, err);
    if (rc)
        return rc;
    rc = judge(io->api, io->api->file_register(handle, &descr), "it does not take the file", err);
    k3_gpu_leave(&io->gpu, saved);
    return rc;
}

static int grow_handles(struct k3_io *io, struct k3_err *err)
{
    if (io->files.count < io->handle_cap)
        return 0;
    uint32_t cap = io->handle_cap ? io->handle_cap * 2 : 64;
    void **grown = realloc(io->handles, cap * sizeof *grown);
    if (!grown)
        return k3_fail_sys(err, ENOMEM, "io %s: cannot add file %u", io->api->name,
                           io->files.count);
    io->handles = grown;
    io->handle_cap = cap;
    return 0;
}

static int gpufile_add_file(struct k3_io *io, int fd, uint32_t *file, struct k3_err *err)
{
    struct k3_io_file own;
    void *handle = NULL;
    int saved;
    int rc = grow_handles(io, err);
    if (!rc)
        rc = k3_io_file_open(fd, true, &own, err);
    if (rc)
        return rc;
    rc = register_file(io, own.direct_fd, &handle, err);
    *file = io->files.count;
    if (!rc)
        rc = k3_io_files_add(&io->files, &own, io->api->name, err);
    if (!rc) {
        io->handles[*file] = handle;
        return 0;
    }
    if (handle && k3_gpu_enter(&io->gpu, &saved, NULL) == 0) {
        io->api->file_deregister(handle);
        k3_gpu_leave(&io->gpu, saved);
    }
    k3_io_file_close(&own);
    return rc;
}

/* Where the allocation of a target begins, as the libraries want to hear it. */
static char *base_of(const struct k3_io *io, const struct k3_io_read *read)
{
    const uintptr_t target = (uintptr_t)read->target;
    for (uint32_t i = 0; i < io->region_count; i++) {
        const uintptr_t base = (uintptr_t)io->regions[i].base;
        if (target >= base && target - base <= io->regions[i].bytes &&
            read->bytes <= io->regions[i].bytes - (target - base))
            return io->regions[i].base;
    }
    return read->target;
}

static int gpufile_submit(struct k3_io *io, const struct k3_io_read *reads, uint32_t count,
                          struct k3_err *err)
{
    /* The whole read at once: what is not aligned is the library's to bring. */
    static const struct k3_io_file whole = {.fd = -1, .direct_fd = -1, .align = 1};
    int rc = k3_io_dones_admit(&io->pool.dones, &io->files, reads, count, err);
    if (rc)
        return rc;
    k3_io_pool_begin(&io->pool);
    for (uint32_t i = 0; i < count; i++) {
        struct k3_io_job *job = k3_io_pool_add(&io->pool, &reads[i], &whole);
        job->file = io->handles[reads[i].file];
        job->base = base_of(io, &reads[i]);
    }
    k3_io_pool_end(&io->pool);
    return 0;
}

static int gpufile_reap(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                        struct k3_err *err)
{
    (void)err;
    k3_io_dones_take(&io->pool.dones, done, max, count);
    return 0;
}

static int gpufile_poll(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                        struct k3_err *err)
{
    (void)err;
    k3_io_dones_poll(&io->pool.dones, done, max, count);
    return 0;
}

/* ---- direct or not ---- */

/* nvidia-fs, P2PDMA or the chip's own link: what the library says it uses. */
static bool says_direct(const struct api *api)
{
    struct properties properties;
    unsigned flags = 0;
    memset(&properties, 0, sizeof properties);
    if (api->p2p_flags_get && api->p2p_flags_get(FILE_SYSTEM_NVME, &flags).code == 0 &&
        flags & (P2P_PCI | P2P_NVFS | P2P_CHIP))
        return true;
    if (!api->properties_get || api->properties_get(&properties).code)
        return false;
    if (properties.major_version || properties.minor_version)
        return true;
    return !api->p2p_flags_get && properties.feature_flags & FEATURE_P2P;
}

enum k3_gpufile_way k3_gpufile_way(const struct k3_io *io, struct k3_err *why)
{
    const struct api *api = io->api;
    bool is_forced = false;
    if (api->kind == K3_GPU_HIP) {
        bool has_call = dlsym(api->gpu->handle, HIP_FAST_CALL);
        k3_fail(why, K3_EUNSUPPORTED,
                has_call ? "%s does not tell whether bytes come direct or through host memory"
                         : "%s brings the bytes through host memory: this ROCm driver has no "
                           "reads into a GPU",
                api->library);
        return has_call ? K3_GPUFILE_UNTOLD : K3_GPUFILE_BOUNCE;
    }
    if (api->bool_get && api->bool_get(PARAMETER_FORCED, &is_forced).code == 0 && is_forced)
        k3_fail(why, K3_EUNSUPPORTED,
                "%s brings the bytes through host memory: its configuration forces that",
                api->library);
    else if (!says_direct(api))
        k3_fail(why, K3_EUNSUPPORTED,
                "%s brings the bytes through host memory (compatibility mode): neither nvidia-fs "
                "nor PCI P2PDMA is in use",
                api->library);
    else
        return K3_GPUFILE_DIRECT;
    return K3_GPUFILE_BOUNCE;
}

bool k3_gpufile_is_promising(enum k3_gpu_kind kind, struct k3_err *why)
{
    char words[512];
    struct api *api;
    if (open_api(kind, &api, why))
        return false;
    if (kind == K3_GPU_HIP && !dlsym(api->gpu->handle, HIP_FAST_CALL)) {
        k3_fail(why, K3_EUNSUPPORTED, "this ROCm driver has no reads into a GPU");
        return false;
    }
    /* P2PDMA works only where the driver was told to keep the GPU's memory on the bus for good. */
    if (kind == K3_GPU_HIP || access(NVFS_PATH, F_OK) == 0 ||
        (k3_machine_field(DRIVER_PARAMETER_PATH, "RegistryDwords", words, sizeof words) &&
         strstr(words, "RMForceStaticBar1=1")))
        return true;
    k3_fail(why, K3_EUNSUPPORTED,
            "neither nvidia-fs nor PCI P2PDMA is set up here, so %s would bring the bytes through "
            "host memory (compatibility mode): measured on an H200, 1.2 times as long as io_uring, "
            "and half a second more to open",
            api->library);
    return false;
}

/* ---- tables ---- */

static int probe_kind(enum k3_gpu_kind kind, struct k3_err *err)
{
    struct api *api;
    return open_api(kind, &api, err);
}

static int cufile_probe(const char *dir, struct k3_err *err)
{
    (void)dir;
    return probe_kind(K3_GPU_CUDA, err);
}

static int hipfile_probe(const char *dir, struct k3_err *err)
{
    (void)dir;
    return probe_kind(K3_GPU_HIP, err);
}

static int cufile_open(const struct k3_io_options *options, struct k3_io **out, struct k3_err *err)
{
    return open_kind(K3_GPU_CUDA, options, out, err);
}

static int hipfile_open(const struct k3_io_options *options, struct k3_io **out, struct k3_err *err)
{
    return open_kind(K3_GPU_HIP, options, out, err);
}

const struct k3_io_ops k3_io_cufile = {
    .name = "cufile",
    .probe = cufile_probe,
    .open = cufile_open,
    .add_file = gpufile_add_file,
    .submit = gpufile_submit,
    .reap = gpufile_reap,
    .poll = gpufile_poll,
    .close = gpufile_close,
};

const struct k3_io_ops k3_io_hipfile = {
    .name = "hipfile",
    .probe = hipfile_probe,
    .open = hipfile_open,
    .add_file = gpufile_add_file,
    .submit = gpufile_submit,
    .reap = gpufile_reap,
    .poll = gpufile_poll,
    .close = gpufile_close,
};
