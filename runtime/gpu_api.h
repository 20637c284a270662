/* The driver of a GPU, seen through one table of functions: NVIDIA's libcuda and AMD's libamdhip64
 * have the same calls under other names, and are opened at run time, so that one build starts on a
 * node with either or with none.  Prototypes are ours; they follow the stable C ABI of both.
 * Source: CUDA Driver API 13.0 and HIP Runtime API 5.2 reference manuals. */
#ifndef K3_GPU_API_H
#define K3_GPU_API_H

#include "k3_err.h"

#include <stddef.h>
#include <stdint.h>

enum k3_gpu_kind { K3_GPU_CUDA, K3_GPU_HIP };

/* Streams, events, modules and functions are opaque to us, as they are to callers of a driver. */
struct k3_gpu_stream;
struct k3_gpu_event;
struct k3_gpu_module;
struct k3_gpu_function;

/* Results of the calls: 0 is success in both; the others that are looked at. */
#define K3_GPU_SUCCESS         0
#define K3_GPU_OUT_OF_MEMORY   2   /* both */
#define K3_GPU_NOT_READY       600 /* both */
#define K3_GPU_STREAM_PARALLEL 1u  /* stream flag: not ordered with the default stream; both */
/* Event flag: no timing; both.  Not the flag with which who waits sleeps: waking up late keeps
 * slots from their next read (measured: 45.6 instead of 49.8 GB/s). */
#define K3_GPU_EVENT_PLAIN 2u

struct k3_gpu_api {
    enum k3_gpu_kind kind;
    const char *name;    /* "cuda", "hip" */
    const char *library; /* that was opened */
    void *handle; /* of dlopen; kept open for the life of the process (drivers do not unload) */

    int (*init)(unsigned flags);
    int (*driver_version)(int *version);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_name)(char *name, int bytes, int device);
    int (*device_bus_id)(char *id, int bytes, int device);
    int (*device_memory)(size_t *bytes, int device);
    int (*device_capability)(int *major, int *minor, int device);
    int (*memory_info)(size_t *free_bytes, size_t *total_bytes);
    int (*mem_alloc)(void **data, size_t bytes);
    int (*mem_free)(void *data);
    int (*host_alloc)(void **data, size_t bytes, unsigned flags);
    int (*host_free)(void *data);
    int (*host_register)(void *data, size_t bytes, unsigned flags);
    int (*host_unregister)(void *data);
    int (*host_device_pointer)(void **device_data, void *host_data, unsigned flags);
    int (*stream_create)(struct k3_gpu_stream **stream, unsigned flags);
    int (*stream_destroy)(struct k3_gpu_stream *stream);
    int (*stream_synchronize)(struct k3_gpu_stream *stream);
    int (*stream_wait_event)(struct k3_gpu_stream *stream, struct k3_gpu_event *event,
                             unsigned flags);
    int (*event_create)(struct k3_gpu_event **event, unsigned flags);
    int (*event_destroy)(struct k3_gpu_event *event);
    int (*event_record)(struct k3_gpu_event *event, struct k3_gpu_stream *stream);
    int (*event_query)(struct k3_gpu_event *event);
    int (*event_synchronize)(struct k3_gpu_event *event);
    int (*copy_to_device)(void *target, const void *source, size_t bytes,
                          struct k3_gpu_stream *stream);
    int (*copy_to_host)(void *target, const void *source, size_t bytes,
                        struct k3_gpu_stream *stream);
    int (*copy_on_device)(void *target, const void *source, size_t bytes,
                          struct k3_gpu_stream *stream);
    int (*module_load)(struct k3_gpu_module **module, const void *image);
    int (*module_unload)(struct k3_gpu_module *module);
    int (*module_function)(struct k3_gpu_function **function, struct k3_gpu_module *module,
                           const char *name);
    int (*launch)(struct k3_gpu_function *function, unsigned grid_x, unsigned grid_y,
                  unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                  unsigned shared_bytes, struct k3_gpu_stream *stream, void **arguments,
                  void **extra);

    /* Only one of the two has these. */
    int (*cuda_context_retain)(void **context, int device); /* the primary one: PyTorch's as well */
    int (*cuda_context_release)(int device);
    int (*cuda_context_push)(void *context);
    int (*cuda_context_pop)(void **context);
    int (*cuda_error_name)(int code, const char **name);
    int (*hip_device_get_current)(int *device);
    int (*hip_device_set)(int device);
    const char *(*hip_error_name)(int code);
};

/* Open the driver's library and find every call.  The table is made once for a kind and lives as
 * long as the process; any thread.  Fails: K3_EUNSUPPORTED (no library, too old, no driver behind
 * it: says which and what would help). */
int k3_gpu_api_open(enum k3_gpu_kind kind, const struct k3_gpu_api **out, struct k3_err *err);

/* Name of a result, e.g. "CUDA_ERROR_OUT_OF_MEMORY". */
const char *k3_gpu_error_name(const struct k3_gpu_api *api, int code);

/* A GPU that is in use: what each call of its driver needs. */
struct k3_gpu {
    const struct k3_gpu_api *api;
    void *context; /* cuda: its primary context */
    int device;
    uint32_t index;
};

/* Make it the calling thread's, and give the thread back what it had: an engine in the same thread
 * must not notice us.  *saved is for leave. */
int k3_gpu_enter(const struct k3_gpu *gpu, int *saved, struct k3_err *err);
void k3_gpu_leave(const struct k3_gpu *gpu, int saved);

/* Open the driver and find one of its GPUs, without a context of it.  Fails: K3_EUNSUPPORTED (no
 * driver, no such GPU), K3_EDEVICE. */
int k3_gpu_find(enum k3_gpu_kind kind, uint32_t index, struct k3_gpu *gpu, struct k3_err *err);
int k3_gpu_count(enum k3_gpu_kind kind, uint32_t *count, struct k3_err *err);

#define K3_GPU_BUS_ID_BYTES 32

/* "0000:1A:00.0" */
int k3_gpu_bus_id(enum k3_gpu_kind kind, uint32_t index, char id[K3_GPU_BUS_ID_BYTES],
                  struct k3_err *err);

/* What a driver says about one GPU. */
struct k3_gpu_about {
    char name[128];
    char bus_id[K3_GPU_BUS_ID_BYTES];
    uint64_t free_bytes, total_bytes; /* of its memory */
    int driver_version;               /* of the API that the driver has: 13000 is CUDA 13.0 */
    int major, minor;                 /* compute capability */
};
/* Uses the context of the GPU for a moment.  Fails as k3_gpu_find. */
int k3_gpu_ask(enum k3_gpu_kind kind, uint32_t index, struct k3_gpu_about *about,
               struct k3_err *err);

/* K3_EDEVICE: "device cuda:0: WHAT: NAME"; 0 for success. */
int k3_gpu_judge(const struct k3_gpu *gpu, int code, const char *what, struct k3_err *err);

#endif
