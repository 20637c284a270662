/* Purpose: the calls of the fake driver, under the names of libcuda or (FAKE_HIP) of libamdhip64.
 * Owns: the contexts or the device that each thread has made its own.
 * Threads: any, as with the real ones.
 * Errors: codes of the drivers.
 * Invariants: a call that needs a context gives 201 to a thread that has none; the version script
 * lists each call once, and gpu_api.c looks for each. */
#include "fake_gpu.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_MAX     16
#define CONTEXT_SHIFT ((uintptr_t)0xC0000) /* context of device i: this + i */
#define NONE          (-1)
#define VERSION       13000
#define FATBIN_MAGIC  "\x50\xed\x55\xba"
#define OBJECT_BUNDLE "__CLANG_OFFLOAD_BUNDLE__"
#define MAJOR         9
#define HOST_FLAGS    3u

/* One call under both names; a prototype first, since no header of ours has it. */
#ifdef FAKE_HIP
#define CALL(cuda, hip, ...)                                                                       \
    int hip(__VA_ARGS__);                                                                          \
    int hip(__VA_ARGS__)
#else
#define CALL(cuda, hip, ...)                                                                       \
    int cuda(__VA_ARGS__);                                                                         \
    int cuda(__VA_ARGS__)
#endif

/* What each call does first. */
#define BEGIN()                                                                                    \
    do {                                                                                           \
        const int begun = fake_begin(__func__);                                                    \
        if (begun)                                                                                 \
            return begun;                                                                          \
    } while (0)

/* ... and where it needs a device. */
#define BEGIN_ON(device)                                                                           \
    BEGIN();                                                                                       \
    const int device = current();                                                                  \
    if (device == NONE)                                                                            \
    return FAKE_INVALID_CONTEXT

#ifdef FAKE_HIP
static _Thread_local int current_device;

static int current(void)
{
    return current_device;
}
#else
static _Thread_local int stack[STACK_MAX];
static _Thread_local int stack_count;

static int current(void)
{
    return stack_count ? stack[stack_count - 1] : NONE;
}
#endif

static int device_count(void)
{
    pthread_mutex_lock(&fake.lock);
    int count = fake.device_count;
    pthread_mutex_unlock(&fake.lock);
    return count;
}

static bool is_device(int device)
{
    return device >= 0 && device < device_count();
}

static const char *name_of(int code)
{
    static const struct {
        int code;
        const char *cuda, *hip;
    } names[] = {
        {K3_GPU_SUCCESS, "CUDA_SUCCESS", "hipSuccess"},
        {FAKE_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue"},
        {K3_GPU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"},
        {FAKE_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice"},
        {FAKE_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice"},
        {FAKE_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage"},
        {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext"},
        {FAKE_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle"},
        {FAKE_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound"},
        {K3_GPU_NOT_READY, "CUDA_ERROR_NOT_READY", "hipErrorNotReady"},
        {FAKE_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"},
        {FAKE_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
         "hipErrorHostMemoryAlreadyRegistered"},
        {FAKE_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
         "hipErrorHostMemoryNotRegistered"},
        {FAKE_MISALIGNED, "CUDA_ERROR_MISALIGNED_ADDRESS", "hipErrorMisalignedAddress"},
        {FAKE_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "hipErrorNotSupported"},
        {999, "CUDA_ERROR_UNKNOWN", "hipErrorUnknown"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code)
#ifdef FAKE_HIP
            return names[i].hip;
#else
            return names[i].cuda;
#endif
    return NULL;
}

/* ---- driver and devices ---- */

CALL(cuInit, hipInit, unsigned flags)
{
    BEGIN();
    if (flags)
        return FAKE_INVALID_VALUE;
    return device_count() ? 0 : FAKE_NO_DEVICE;
}

CALL(cuDriverGetVersion, hipDriverGetVersion, int *version)
{
    fake_control();
    *version = VERSION;
    return 0;
}

CALL(cuDeviceGetCount, hipGetDeviceCount, int *count)
{
    BEGIN();
    *count = device_count();
    return 0;
}

CALL(cuDeviceGet, hipDeviceGet, int *device, int ordinal)
{
    BEGIN();
    *device = ordinal;
    return is_device(ordinal) ? 0 : FAKE_INVALID_DEVICE;
}

CALL(cuDeviceGetName, hipDeviceGetName, char *name, int bytes, int device)
{
    BEGIN();
    if (!is_device(device) || bytes <= 0)
        return FAKE_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "Fake GPU %d", device);
    return 0;
}

CALL(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId, char *id, int bytes, int device)
{
    BEGIN();
    if (!is_device(device) || bytes <= 0)
        return FAKE_INVALID_DEVICE;
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", device + 1);
    return 0;
}

CALL(cuDeviceTotalMem_v2, hipDeviceTotalMem, size_t *bytes, int device)
{
    BEGIN();
    if (!is_device(device))
        return FAKE_INVALID_DEVICE;
    pthread_mutex_lock(&fake.lock);
    *bytes = fake.memory_bytes;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

CALL(cuDeviceComputeCapability, hipDeviceComputeCapability, int *major, int *minor, int device)
{
    BEGIN();
    *major = MAJOR;
    *minor = 0;
    return is_device(device) ? 0 : FAKE_INVALID_DEVICE;
}

#ifdef FAKE_HIP
CALL(, hipGetDevice, int *device)
{
    BEGIN();
    *device = current();
    return 0;
}

CALL(, hipSetDevice, int device)
{
    BEGIN();
    if (!is_device(device))
        return FAKE_INVALID_DEVICE;
    current_device = device;
    return 0;
}

const char *hipGetErrorName(int code);
const char *hipGetErrorName(int code)
{
    (void)fake_begin(__func__);
    const char *name = name_of(code);
    return name ? name : "hipErrorUnknown";
}
#else
CALL(cuDevicePrimaryCtxRetain, , void **context, int device)
{
    BEGIN();
    if (!is_device(device))
        return FAKE_INVALID_DEVICE;
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].retained++;
    pthread_mutex_unlock(&fake.lock);
    *context = (void *)(CONTEXT_SHIFT + (uintptr_t)device);
    return 0;
}

CALL(cuDevicePrimaryCtxRelease_v2, , int device)
{
    BEGIN();
    if (!is_device(device))
        return FAKE_INVALID_DEVICE;
    pthread_mutex_lock(&fake.lock);
    bool was_retained = fake.devices[device].retained > 0;
    fake.devices[device].retained -= was_retained;
    pthread_mutex_unlock(&fake.lock);
    return was_retained ? 0 : FAKE_INVALID_CONTEXT;
}

CALL(cuCtxPushCurrent_v2, , void *context)
{
    BEGIN();
    uintptr_t device = (uintptr_t)context - CONTEXT_SHIFT;
    if (device >= FAKE_DEVICES_MAX || stack_count == STACK_MAX)
        return FAKE_INVALID_CONTEXT;
    pthread_mutex_lock(&fake.lock);
    bool is_retained = fake.devices[device].retained > 0;
    pthread_mutex_unlock(&fake.lock);
    if (!is_retained)
        return FAKE_INVALID_CONTEXT;
    stack[stack_count++] = (int)device;
    return 0;
}

CALL(cuCtxPopCurrent_v2, , void **context)
{
    BEGIN();
    if (stack_count == 0)
        return FAKE_INVALID_CONTEXT;
    *context = (void *)(CONTEXT_SHIFT + (uintptr_t)stack[--stack_count]);
    return 0;
}

CALL(cuGetErrorName, , int code, const char **name)
{
    BEGIN();
    *name = name_of(code);
    return *name ? 0 : FAKE_INVALID_VALUE;
}
#endif

/* ---- memory ---- */

CALL(cuMemGetInfo_v2, hipMemGetInfo, size_t *free_bytes, size_t *total_bytes)
{
    BEGIN_ON(device);
    pthread_mutex_lock(&fake.lock);
    *total_bytes = fake.memory_bytes;
    *free_bytes = fake.memory_bytes - fake.devices[device].used_bytes;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

CALL(cuMemAlloc_v2, hipMalloc, void **data, size_t bytes)
{
    struct fake_region *region;
    BEGIN_ON(device);
    int code = fake_map(MEMORY_DEVICE, device, bytes, &region);
    if (!code)
        *data = (void *)((uintptr_t)region->host + FAKE_DEVICE_SHIFT);
    return code;
}

CALL(cuMemFree_v2, hipFree, void *data)
{
    BEGIN_ON(device);
    (void)device; /* one address space: any context may free it */
    return fake_unmap(MEMORY_DEVICE, data);
}

CALL(cuMemHostAlloc, hipHostMalloc, void **data, size_t bytes, unsigned flags)
{
    struct fake_region *region;
    BEGIN_ON(device);
    if (flags & ~HOST_FLAGS)
        return FAKE_NOT_SUPPORTED;
    int code = fake_map(MEMORY_PINNED, device, bytes, &region);
    if (!code)
        *data = region->host;
    return code;
}

CALL(cuMemFreeHost, hipHostFree, void *data)
{
    BEGIN_ON(device);
    (void)device;
    return fake_unmap(MEMORY_PINNED, data);
}

CALL(cuMemHostRegister_v2, hipHostRegister, void *data, size_t bytes, unsigned flags)
{
    BEGIN_ON(device);
    if (flags & ~HOST_FLAGS)
        return FAKE_NOT_SUPPORTED;
    return fake_register(data, bytes, device);
}

CALL(cuMemHostUnregister, hipHostUnregister, void *data)
{
    BEGIN_ON(device);
    (void)device;
    return fake_unmap(MEMORY_REGISTERED, data);
}

CALL(cuMemHostGetDevicePointer_v2, hipHostGetDevicePointer, void **device_data, void *data,
     unsigned flags)
{
    BEGIN_ON(device);
    (void)device;
    pthread_mutex_lock(&fake.lock);
    bool is_known = fake_find(MEMORY_PINNED, (uintptr_t)data, 1, true) ||
                    fake_find(MEMORY_REGISTERED, (uintptr_t)data, 1, true);
    pthread_mutex_unlock(&fake.lock);
    if (!is_known || flags)
        return FAKE_INVALID_VALUE;
    *device_data = (void *)((uintptr_t)data + FAKE_HOST_SHIFT);
    return 0;
}

/* ---- streams and events ---- */

CALL(cuStreamCreate, hipStreamCreateWithFlags, struct k3_gpu_stream **stream, unsigned flags)
{
    BEGIN_ON(device);
    if (flags != K3_GPU_STREAM_PARALLEL)
        return FAKE_NOT_SUPPORTED; /* order with the default stream is not modelled */
    return fake_stream_open(device, stream);
}

CALL(cuStreamDestroy_v2, hipStreamDestroy, struct k3_gpu_stream *stream)
{
    BEGIN_ON(device);
    (void)device;
    return fake_stream_destroy(stream);
}

CALL(cuStreamSynchronize, hipStreamSynchronize, struct k3_gpu_stream *stream)
{
    BEGIN_ON(device);
    return fake_stream_drain(stream, device);
}

CALL(cuStreamWaitEvent, hipStreamWaitEvent, struct k3_gpu_stream *stream,
     struct k3_gpu_event *event, unsigned flags)
{
    BEGIN_ON(device);
    return flags ? FAKE_INVALID_VALUE : fake_stream_wait_event(stream, event, device);
}

CALL(cuEventCreate, hipEventCreateWithFlags, struct k3_gpu_event **event, unsigned flags)
{
    BEGIN_ON(device);
    if (flags & ~K3_GPU_EVENT_PLAIN)
        return FAKE_NOT_SUPPORTED;
    return fake_event_open(device, event);
}

CALL(cuEventDestroy_v2, hipEventDestroy, struct k3_gpu_event *event)
{
    BEGIN_ON(device);
    (void)device;
    return fake_event_destroy(event);
}

CALL(cuEventRecord, hipEventRecord, struct k3_gpu_event *event, struct k3_gpu_stream *stream)
{
    BEGIN_ON(device);
    return fake_event_record(event, stream, device);
}

CALL(cuEventQuery, hipEventQuery, struct k3_gpu_event *event)
{
    BEGIN_ON(device);
    (void)device;
    return fake_event_wait(event, false);
}

CALL(cuEventSynchronize, hipEventSynchronize, struct k3_gpu_event *event)
{
    BEGIN_ON(device);
    (void)device;
    return fake_event_wait(event, true);
}

/* ---- copies ---- */

/* Which ends must be memory of a device. */
static int copy(struct k3_gpu_stream *stream, void *target, const void *source, size_t bytes,
                const bool is_device_end[2])
{
    const int device = current();
    const bool to_device = (uintptr_t)target >= FAKE_DEVICE_SHIFT;
    const bool from_device = (uintptr_t)source >= FAKE_DEVICE_SHIFT;
    if (device == NONE)
        return FAKE_INVALID_CONTEXT;
    if (to_device != is_device_end[0] || from_device != is_device_end[1] || !target || !source)
        return FAKE_INVALID_VALUE;
    return fake_copy(device, stream, (uintptr_t)target, (uintptr_t)source, bytes);
}

CALL(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync, void *target, const void *source, size_t bytes,
     struct k3_gpu_stream *stream)
{
    BEGIN();
    return copy(stream, target, source, bytes, (const bool[]){true, false});
}

CALL(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync, void *target, const void *source, size_t bytes,
     struct k3_gpu_stream *stream)
{
    BEGIN();
    return copy(stream, target, source, bytes, (const bool[]){false, true});
}

CALL(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync, void *target, const void *source, size_t bytes,
     struct k3_gpu_stream *stream)
{
    BEGIN();
    return copy(stream, target, source, bytes, (const bool[]){true, true});
}

/* ---- code ---- */

static bool is_code(const char *image)
{
#ifdef FAKE_HIP
    return !strncmp(image, FAKE_HIP_MAGIC, strlen(FAKE_HIP_MAGIC)) ||
           !strncmp(image, OBJECT_BUNDLE, strlen(OBJECT_BUNDLE)) || !strncmp(image, "\177ELF", 4) ||
           !strncmp(image, "CCOB", 4);
#else
    return !strncmp(image, FATBIN_MAGIC, 4);
#endif
}

CALL(cuModuleLoadData, hipModuleLoadData, struct k3_gpu_module **module, const void *image)
{
    BEGIN_ON(device);
    if (!image || !is_code(image))
        return FAKE_INVALID_IMAGE;
    *module = calloc(1, sizeof **module);
    if (!*module)
        return K3_GPU_OUT_OF_MEMORY;
    (*module)->device = device;
    for (int k = 0; k < FAKE_KERNELS; k++)
        (*module)->functions[k].kernel = k;
    pthread_mutex_lock(&fake.lock);
    (*module)->next = fake.modules;
    fake.modules = *module;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* With the lock. */
static struct k3_gpu_module **find_module(struct k3_gpu_module *wanted)
{
    struct k3_gpu_module **at = &fake.modules;
    while (*at && *at != wanted)
        at = &(*at)->next;
    return at;
}

CALL(cuModuleUnload, hipModuleUnload, struct k3_gpu_module *module)
{
    BEGIN_ON(device);
    (void)device;
    pthread_mutex_lock(&fake.lock);
    struct k3_gpu_module **at = find_module(module);
    bool is_there = module && *at;
    if (is_there)
        *at = module->next;
    pthread_mutex_unlock(&fake.lock);
    if (is_there)
        free(module);
    return is_there ? 0 : FAKE_INVALID_HANDLE;
}

CALL(cuModuleGetFunction, hipModuleGetFunction, struct k3_gpu_function **function,
     struct k3_gpu_module *module, const char *name)
{
    BEGIN_ON(device);
    (void)device;
    pthread_mutex_lock(&fake.lock);
    bool is_there = module && *find_module(module);
    pthread_mutex_unlock(&fake.lock);
    if (!is_there)
        return FAKE_INVALID_HANDLE;
    if (!strcmp(name, K3_UNIT_CHECK_NAME)) {
        *function = &module->functions[0];
        return 0;
    }
    for (int k = 0; k3_cast_kernels[k]; k++)
        if (!strcmp(name, k3_cast_kernels[k])) {
            *function = &module->functions[k + 1];
            return 0;
        }
    return FAKE_NOT_FOUND;
}

/* The kernel of a function whose module is loaded on this device; negative: there is none. */
static int kernel_of(const struct k3_gpu_function *function, int device)
{
    int kernel = -1;
    pthread_mutex_lock(&fake.lock);
    for (struct k3_gpu_module *module = fake.modules; module; module = module->next)
        for (int k = 0; k < FAKE_KERNELS && module->device == device; k++)
            if (function == &module->functions[k])
                kernel = k;
    pthread_mutex_unlock(&fake.lock);
    return kernel;
}

static int launch_check(int device, struct k3_gpu_stream *stream, unsigned grid, unsigned block,
                        void **arguments)
{
    uintptr_t asks; /* arguments are read before the call returns, as drivers do */
    uint32_t ask_count;
    if (!arguments[1] || block != K3_UNIT_CHECK_THREADS)
        return FAKE_INVALID_VALUE;
    memcpy(&asks, arguments[0], sizeof asks);
    memcpy(&ask_count, arguments[1], sizeof ask_count);
    if (ask_count == 0 || grid != (ask_count + K3_GROUP_UNITS - 1) / K3_GROUP_UNITS)
        return FAKE_INVALID_VALUE;
    return fake_launch(device, stream, asks, ask_count);
}

#define SHAPE                                                                                      \
    unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,         \
        unsigned block_z, unsigned shared_bytes
#define VALUES void **arguments, void **extra

CALL(cuLaunchKernel, hipModuleLaunchKernel, struct k3_gpu_function *function, SHAPE,
     struct k3_gpu_stream *stream, VALUES)
{
    BEGIN_ON(device);
    const int kernel = kernel_of(function, device);
    if (kernel < 0)
        return FAKE_INVALID_HANDLE;
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || shared_bytes ||
        extra || !arguments || !arguments[0])
        return FAKE_INVALID_VALUE;
    if (kernel == 0)
        return launch_check(device, stream, grid_x, block_x, arguments);
    struct fake_cast cast = {.kernel = kernel - 1, .grid = grid_x, .block = block_x};
    memcpy(&cast.ask, arguments[0], sizeof cast.ask);
    return fake_launch_cast(device, stream, &cast);
}
