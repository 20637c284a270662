/* Purpose: the driver libraries of GPUs, opened at run time, as one table of functions.
 * Owns: one table for each kind, static; the libraries stay open for the life of the process.
 * Threads: any; the tables are filled under a lock and constant afterwards.
 * Errors: K3_EUNSUPPORTED where a library, a call or a driver is missing; K3_EDEVICE.
 * Invariants: a table that was handed out has every call of its kind; a failed opening may be tried
 * again. */
#include "gpu_api.h"
#include "dl_calls.h"

#include <dlfcn.h> /* dlclose */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

/* Where a call is found, and under which names: NULL where one kind does not have it. */
struct symbol {
    size_t offset;
    const char *cuda, *hip;
};

#define CALL(member, cuda, hip)                                                                    \
    {                                                                                              \
        offsetof(struct k3_gpu_api, member), cuda, hip                                             \
    }

/* _v2 names are the ones that the driver's own header maps to: 64-bit sizes. */
static const struct symbol symbols[] = {
    CALL(init, "cuInit", "hipInit"),
    CALL(driver_version, "cuDriverGetVersion", "hipDriverGetVersion"),
    CALL(device_count, "cuDeviceGetCount", "hipGetDeviceCount"),
    CALL(device_get, "cuDeviceGet", "hipDeviceGet"),
    CALL(device_name, "cuDeviceGetName", "hipDeviceGetName"),
    CALL(device_bus_id, "cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId"),
    CALL(device_memory, "cuDeviceTotalMem_v2", "hipDeviceTotalMem"),
    CALL(device_capability, "cuDeviceComputeCapability", "hipDeviceComputeCapability"),
    CALL(memory_info, "cuMemGetInfo_v2", "hipMemGetInfo"),
    CALL(mem_alloc, "cuMemAlloc_v2", "hipMalloc"),
    CALL(mem_free, "cuMemFree_v2", "hipFree"),
    CALL(host_alloc, "cuMemHostAlloc", "hipHostMalloc"),
    CALL(host_free, "cuMemFreeHost", "hipHostFree"),
    CALL(host_register, "cuMemHostRegister_v2", "hipHostRegister"),
    CALL(host_unregister, "cuMemHostUnregister", "hipHostUnregister"),
    CALL(host_device_pointer, "cuMemHostGetDevicePointer_v2", "hipHostGetDevicePointer"),
    CALL(stream_create, "cuStreamCreate", "hipStreamCreateWithFlags"),
    CALL(stream_destroy, "cuStreamDestroy_v2", "hipStreamDestroy"),
    CALL(stream_synchronize, "cuStreamSynchronize", "hipStreamSynchronize"),
    CALL(stream_wait_event, "cuStreamWaitEvent", "hipStreamWaitEvent"),
    CALL(event_create, "cuEventCreate", "hipEventCreateWithFlags"),
    CALL(event_destroy, "cuEventDestroy_v2", "hipEventDestroy"),
    CALL(event_record, "cuEventRecord", "hipEventRecord"),
    CALL(event_query, "cuEventQuery", "hipEventQuery"),
    CALL(event_synchronize, "cuEventSynchronize", "hipEventSynchronize"),
    CALL(copy_to_device, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"),
    CALL(copy_to_host, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"),
    CALL(copy_on_device, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync"),
    CALL(module_load, "cuModuleLoadData", "hipModuleLoadData"),
    CALL(module_unload, "cuModuleUnload", "hipModuleUnload"),
    CALL(module_function, "cuModuleGetFunction", "hipModuleGetFunction"),
    CALL(launch, "cuLaunchKernel", "hipModuleLaunchKernel"),
    CALL(cuda_context_retain, "cuDevicePrimaryCtxRetain", NULL),
    CALL(cuda_context_release, "cuDevicePrimaryCtxRelease_v2", NULL),
    CALL(cuda_context_push, "cuCtxPushCurrent_v2", NULL),
    CALL(cuda_context_pop, "cuCtxPopCurrent_v2", NULL),
    CALL(cuda_error_name, "cuGetErrorName", NULL),
    CALL(hip_device_get_current, NULL, "hipGetDevice"),
    CALL(hip_device_set, NULL, "hipSetDevice"),
    CALL(hip_error_name, NULL, "hipGetErrorName"),
};

/* The names under which drivers install themselves, newest first. */
static const char *const cuda_libraries[] = {"libcuda.so.1", NULL};
static const char *const hip_libraries[] = {"libamdhip64.so.7", "libamdhip64.so.6",
                                            "libamdhip64.so.5", NULL};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct k3_gpu_api tables[2];
static bool is_open[2];

const char *k3_gpu_error_name(const struct k3_gpu_api *api, int code)
{
    const char *name = NULL;
    if (api->kind == K3_GPU_HIP)
        name = api->hip_error_name(code);
    else if (api->cuda_error_name(code, &name) != K3_GPU_SUCCESS)
        name = NULL;
    return name ? name : "an unknown error";
}

static int open_library(struct k3_gpu_api *api, struct k3_err *err)
{
    const char *const *names = api->kind == K3_GPU_CUDA ? cuda_libraries : hip_libraries;
    api->handle = k3_dl_open(names, &api->library);
    if (api->handle)
        return 0;
    return k3_fail(err, K3_EUNSUPPORTED,
                   "device %s: no %s on this machine: install the driver of its GPU, or give a "
                   "container access to it",
                   api->name, names[0]);
}

static int find_calls(struct k3_gpu_api *api, struct k3_err *err)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        const char *name = api->kind == K3_GPU_CUDA ? symbols[i].cuda : symbols[i].hip;
        if (name && !k3_dl_find(api->handle, name, api, symbols[i].offset))
            return k3_fail(err, K3_EUNSUPPORTED,
                           "device %s: %s has no %s: a newer driver is needed", api->name,
                           api->library, name);
    }
    return 0;
}

static int start_driver(const struct k3_gpu_api *api, struct k3_err *err)
{
    int count = 0;
    int code = api->init(0);
    if (code == K3_GPU_SUCCESS)
        code = api->device_count(&count);
    if (code != K3_GPU_SUCCESS)
        return k3_fail(
            err, K3_EUNSUPPORTED,
            "device %s: %s does not start: %s: is the kernel driver loaded, and may this "
            "user open its devices?",
            api->name, api->library, k3_gpu_error_name(api, code));
    if (count == 0)
        return k3_fail(err, K3_EUNSUPPORTED, "device %s: no GPU is visible to this process",
                       api->name);
    return 0;
}

int k3_gpu_api_open(enum k3_gpu_kind kind, const struct k3_gpu_api **out, struct k3_err *err)
{
    int rc = 0;
    *out = NULL;
    pthread_mutex_lock(&lock);
    if (!is_open[kind]) {
        struct k3_gpu_api api = {.kind = kind, .name = kind == K3_GPU_CUDA ? "cuda" : "hip"};
        rc = open_library(&api, err);
        if (!rc)
            rc = find_calls(&api, err);
        if (rc && api.handle)
            dlclose(api.handle);
        if (!rc) /* a driver that was started, even in vain, may have threads: it stays */
            rc = start_driver(&api, err);
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

int k3_gpu_judge(const struct k3_gpu *gpu, int code, const char *what, struct k3_err *err)
{
    if (code == K3_GPU_SUCCESS)
        return 0;
    return k3_fail(err, K3_EDEVICE, "device %s:%u: %s: %s", gpu->api->name, gpu->index, what,
                   k3_gpu_error_name(gpu->api, code));
}

int k3_gpu_enter(const struct k3_gpu *gpu, int *saved, struct k3_err *err)
{
    const struct k3_gpu_api *api = gpu->api;
    int code;
    *saved = gpu->device;
    if (api->kind == K3_GPU_CUDA) {
        code = api->cuda_context_push(gpu->context);
    } else {
        code = api->hip_device_get_current(saved);
        if (code == K3_GPU_SUCCESS)
            code = api->hip_device_set(gpu->device);
    }
    return k3_gpu_judge(gpu, code, "cannot be used by this thread", err);
}

void k3_gpu_leave(const struct k3_gpu *gpu, int saved)
{
    void *context;
    if (gpu->api->kind == K3_GPU_CUDA)
        (void)gpu->api->cuda_context_pop(&context);
    else
        (void)gpu->api->hip_device_set(saved);
}

/* ---- one GPU ---- */

int k3_gpu_find(enum k3_gpu_kind kind, uint32_t index, struct k3_gpu *gpu, struct k3_err *err)
{
    int count = 0;
    memset(gpu, 0, sizeof *gpu);
    int rc = k3_gpu_api_open(kind, &gpu->api, err);
    if (rc)
        return rc;
    gpu->index = index;
    rc = k3_gpu_judge(gpu, gpu->api->device_count(&count), "counting devices", err);
    if (!rc && index >= (uint32_t)count)
        rc = k3_fail(err, K3_EUNSUPPORTED, "device %s:%u: there are %d here: %s:0 to %s:%d",
                     gpu->api->name, index, count, gpu->api->name, gpu->api->name, count - 1);
    if (!rc)
        rc = k3_gpu_judge(gpu, gpu->api->device_get(&gpu->device, (int)index), "opening it", err);
    return rc;
}

int k3_gpu_count(enum k3_gpu_kind kind, uint32_t *count, struct k3_err *err)
{
    struct k3_gpu gpu = {.api = NULL};
    int found = 0;
    *count = 0;
    int rc = k3_gpu_api_open(kind, &gpu.api, err);
    if (!rc)
        rc = k3_gpu_judge(&gpu, gpu.api->device_count(&found), "counting devices", err);
    *count = rc || found < 0 ? 0 : (uint32_t)found;
    return rc;
}

static int take_bus_id(const struct k3_gpu *gpu, char id[K3_GPU_BUS_ID_BYTES], struct k3_err *err)
{
    memset(id, 0, K3_GPU_BUS_ID_BYTES);
    int code = gpu->api->device_bus_id(id, K3_GPU_BUS_ID_BYTES - 1, gpu->device);
    return k3_gpu_judge(gpu, code, "its PCI bus id", err);
}

int k3_gpu_bus_id(enum k3_gpu_kind kind, uint32_t index, char id[K3_GPU_BUS_ID_BYTES],
                  struct k3_err *err)
{
    struct k3_gpu gpu;
    int rc = k3_gpu_find(kind, index, &gpu, err);
    return rc ? rc : take_bus_id(&gpu, id, err);
}

static int ask_memory(const struct k3_gpu *gpu, struct k3_gpu_about *about, struct k3_err *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    int saved;
    int rc = k3_gpu_enter(gpu, &saved, err);
    if (rc)
        return rc;
    rc = k3_gpu_judge(gpu, gpu->api->memory_info(&free_bytes, &total_bytes), "its memory", err);
    k3_gpu_leave(gpu, saved);
    about->free_bytes = free_bytes;
    about->total_bytes = total_bytes;
    return rc;
}

int k3_gpu_ask(enum k3_gpu_kind kind, uint32_t index, struct k3_gpu_about *about,
               struct k3_err *err)
{
    struct k3_gpu gpu;
    memset(about, 0, sizeof *about);
    int rc = k3_gpu_find(kind, index, &gpu, err);
    if (rc)
        return rc;
    const struct k3_gpu_api *api = gpu.api;
    rc = take_bus_id(&gpu, about->bus_id, err);
    if (!rc)
        rc = k3_gpu_judge(&gpu, api->device_name(about->name, sizeof about->name - 1, gpu.device),
                          "its name", err);
    if (!rc)
        rc = k3_gpu_judge(&gpu, api->driver_version(&about->driver_version), "its version", err);
    if (!rc)
        rc = k3_gpu_judge(&gpu, api->device_capability(&about->major, &about->minor, gpu.device),
                          "its capability", err);
    if (rc || kind == K3_GPU_HIP)
        return rc ? rc : ask_memory(&gpu, about, err);
    rc = k3_gpu_judge(&gpu, api->cuda_context_retain(&gpu.context, gpu.device), "its context", err);
    if (rc)
        return rc;
    rc = ask_memory(&gpu, about, err);
    (void)api->cuda_context_release(gpu.device);
    return rc;
}
