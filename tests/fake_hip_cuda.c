/* Purpose: the calls of libamdhip64 that gpu_api.c looks for, done by NVIDIA's driver, so that the
 * device "hip" runs whole on an NVIDIA GPU.
 * Owns: the primary context of each device that was used, until the program ends; a thread's place
 * on the stack of its contexts.
 * Threads: any.
 * Errors: the numbers of CUDA, which are those of HIP wherever gpu_api.h looks at them; 100 where
 * there is no CUDA.
 * Invariant: a thread that has chosen no device uses device 0, as HIP says. */
#include "gpu_api.h"

#include <pthread.h>

#define DEVICES_MAX    64
#define NO_DEVICE      100
#define INVALID_DEVICE 101
#define NONE           (-1)

#define CALL(hip, ...)                                                                             \
    int hip(__VA_ARGS__);                                                                          \
    int hip(__VA_ARGS__)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *contexts[DEVICES_MAX];
static _Thread_local int chosen_device;
static _Thread_local int pushed_device = NONE;

static const struct k3_gpu_api *cuda(void)
{
    const struct k3_gpu_api *api;
    return k3_gpu_api_open(K3_GPU_CUDA, &api, NULL) ? NULL : api;
}

static int context_of(const struct k3_gpu_api *api, int device, void **context)
{
    int code = 0;
    if (device < 0 || device >= DEVICES_MAX)
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (!contexts[device])
        code = api->cuda_context_retain(&contexts[device], device);
    *context = contexts[device];
    pthread_mutex_unlock(&lock);
    return code;
}

/* HIP sets a device where CUDA has a stack: ours is always one place on it. */
static int use(const struct k3_gpu_api *api)
{
    void *context;
    if (!api)
        return NO_DEVICE;
    if (pushed_device == chosen_device)
        return 0;
    int code = context_of(api, chosen_device, &context);
    if (!code && pushed_device != NONE) {
        void *popped;
        code = api->cuda_context_pop(&popped);
        pushed_device = NONE;
    }
    if (!code)
        code = api->cuda_context_push(context);
    if (!code)
        pushed_device = chosen_device;
    return code;
}

/* Calls that need no device, and those that do. */
#define PASS(call)                                                                                 \
    const struct k3_gpu_api *api = cuda();                                                         \
    return api ? api->call : NO_DEVICE
#define PASS_ON(call)                                                                              \
    const struct k3_gpu_api *api = cuda();                                                         \
    int code = use(api);                                                                           \
    return code ? code : api->call

CALL(hipInit, unsigned flags)
{
    PASS(init(flags));
}

CALL(hipDriverGetVersion, int *version)
{
    PASS(driver_version(version));
}

CALL(hipGetDeviceCount, int *count)
{
    PASS(device_count(count));
}

CALL(hipDeviceGet, int *device, int ordinal)
{
    PASS(device_get(device, ordinal));
}

CALL(hipDeviceGetName, char *name, int bytes, int device)
{
    PASS(device_name(name, bytes, device));
}

CALL(hipDeviceGetPCIBusId, char *id, int bytes, int device)
{
    PASS(device_bus_id(id, bytes, device));
}

CALL(hipDeviceTotalMem, size_t *bytes, int device)
{
    PASS(device_memory(bytes, device));
}

CALL(hipDeviceComputeCapability, int *major, int *minor, int device)
{
    PASS(device_capability(major, minor, device));
}

CALL(hipGetDevice, int *device)
{
    *device = chosen_device;
    return 0;
}

CALL(hipSetDevice, int device)
{
    const struct k3_gpu_api *api = cuda();
    const int before = chosen_device;
    chosen_device = device;
    int code = use(api);
    if (code)
        chosen_device = before;
    return code;
}

const char *hipGetErrorName(int code);
const char *hipGetErrorName(int code)
{
    const struct k3_gpu_api *api = cuda();
    return api ? k3_gpu_error_name(api, code) : "hipErrorNoDevice";
}

CALL(hipMemGetInfo, size_t *free_bytes, size_t *total_bytes)
{
    PASS_ON(memory_info(free_bytes, total_bytes));
}

CALL(hipMalloc, void **data, size_t bytes)
{
    PASS_ON(mem_alloc(data, bytes));
}

CALL(hipFree, void *data)
{
    PASS_ON(mem_free(data));
}

CALL(hipHostMalloc, void **data, size_t bytes, unsigned flags)
{
    PASS_ON(host_alloc(data, bytes, flags));
}

CALL(hipHostFree, void *data)
{
    PASS_ON(host_free(data));
}

CALL(hipHostRegister, void *data, size_t bytes, unsigned flags)
{
    PASS_ON(host_register(data, bytes, flags));
}

CALL(hipHostUnregister, void *data)
{
    PASS_ON(host_unregister(data));
}

CALL(hipHostGetDevicePointer, void **device_data, void *data, unsigned flags)
{
    PASS_ON(host_device_pointer(device_data, data, flags));
}

CALL(hipStreamCreateWithFlags, struct k3_gpu_stream **stream, unsigned flags)
{
    PASS_ON(stream_create(stream, flags));
}

CALL(hipStreamDestroy, struct k3_gpu_stream *stream)
{
    PASS_ON(stream_destroy(stream));
}

CALL(hipStreamSynchronize, struct k3_gpu_stream *stream)
{
    PASS_ON(stream_synchronize(stream));
}

CALL(hipStreamWaitEvent, struct k3_gpu_stream *stream, struct k3_gpu_event *event, unsigned flags)
{
    PASS_ON(stream_wait_event(stream, event, flags));
}

CALL(hipEventCreateWithFlags, struct k3_gpu_event **event, unsigned flags)
{
    PASS_ON(event_create(event, flags));
}

CALL(hipEventDestroy, struct k3_gpu_event *event)
{
    PASS_ON(event_destroy(event));
}

CALL(hipEventRecord, struct k3_gpu_event *event, struct k3_gpu_stream *stream)
{
    PASS_ON(event_record(event, stream));
}

CALL(hipEventQuery, struct k3_gpu_event *event)
{
    PASS_ON(event_query(event));
}

CALL(hipEventSynchronize, struct k3_gpu_event *event)
{
    PASS_ON(event_synchronize(event));
}

CALL(hipMemcpyHtoDAsync, void *target, const void *source, size_t bytes,
     struct k3_gpu_stream *stream)
{
    PASS_ON(copy_to_device(target, source, bytes, stream));
}

CALL(hipMemcpyDtoHAsync, void *target, const void *source, size_t bytes,
     struct k3_gpu_stream *stream)
{
    PASS_ON(copy_to_host(target, source, bytes, stream));
}

CALL(hipMemcpyDtoDAsync, void *target, const void *source, size_t bytes,
     struct k3_gpu_stream *stream)
{
    PASS_ON(copy_on_device(target, source, bytes, stream));
}

CALL(hipModuleLoadData, struct k3_gpu_module **module, const void *image)
{
    PASS_ON(module_load(module, image));
}

CALL(hipModuleUnload, struct k3_gpu_module *module)
{
    PASS_ON(module_unload(module));
}

CALL(hipModuleGetFunction, struct k3_gpu_function **function, struct k3_gpu_module *module,
     const char *name)
{
    PASS_ON(module_function(function, module, name));
}

#define SHAPE                                                                                      \
    unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,         \
        unsigned block_z, unsigned shared_bytes

CALL(hipModuleLaunchKernel, struct k3_gpu_function *function, SHAPE, struct k3_gpu_stream *stream,
     void **arguments, void **extra)
{
    PASS_ON(launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                   stream, arguments, extra));
}
