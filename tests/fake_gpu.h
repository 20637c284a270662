/* A driver of GPUs made of host memory and threads, with the calls of libcuda or of libamdhip64
 * that gpu_api.c looks for and no others.  What real hardware does late, it does late.
 *
 * Device addresses are not addresses of this machine: a forgotten translation ends the program.
 * Copies run on the stream's thread, in pieces with pauses of a seeded length, and read their
 * source only then.  What is not modelled (e.g. streams that wait for the default one) is refused.
 *
 * Environment, read when the library is loaded and again at each call that asks for the driver's
 * version, which also writes the report and counts from 0 again:
 *   FAKE_GPU_COUNT=N           devices (default 2; 0 is one more thing to say)
 *   FAKE_GPU_MEMORY_BYTES=N    memory of each (default 4 GiB)
 *   FAKE_GPU_SEED=N            of the pauses
 *   FAKE_GPU_REPORT=PATH       written then and at exit: what is still allocated, calls, faults
 *   FAKE_GPU_FAULT=KIND:N[:COUNT]   the Nth (from 1) and COUNT-1 behind it (default 1) are spoilt:
 *      flip, skip, swap   copy to a device: a bit flips behind it; it is not done; it and the next
 *                         one of the same size go to each other's targets
 *      break              copy to a device: it fails, and the device with it
 *      late               event: is done long after its turn
 *      idle, other, yes, no   launch: answers nothing; the answers of its neighbours (casts: one
 * bit is wrong); always right; always wrong (casts: refuses what is right) fail=NAME=CODE     call
 * NAME: does nothing and gives CODE */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include "cast_call.h"
#include "gpu_kernels.h"

#include <pthread.h>
#include <stdbool.h>

/* Both are far from any address that this machine has. */
#define FAKE_DEVICE_SHIFT ((uintptr_t)1 << 62)
#define FAKE_HOST_SHIFT   ((uintptr_t)1 << 61) /* host memory as a device sees it */
#define FAKE_DEVICES_MAX  8
#define FAKE_SYMBOLS_MAX  64
#define FAKE_SYMBOL_BYTES 48
#define FAKE_HIP_MAGIC    "FAKE-HIP-CODE"

/* Results that the fake gives; numbers are those of both drivers. */
enum fake_code {
    FAKE_INVALID_VALUE = 1,
    FAKE_NO_DEVICE = 100,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_IMAGE = 200,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_FOUND = 500,
    FAKE_ILLEGAL_ADDRESS = 700,
    FAKE_ALREADY_REGISTERED = 712,
    FAKE_NOT_REGISTERED = 713,
    FAKE_MISALIGNED = 716,
    FAKE_NOT_SUPPORTED = 801
};

enum fake_fault_kind {
    FAULT_NONE,
    FAULT_FLIP,
    FAULT_SKIP,
    FAULT_SWAP,
    FAULT_BREAK,
    FAULT_LATE,
    FAULT_IDLE,
    FAULT_OTHER,
    FAULT_YES,
    FAULT_NO,
    FAULT_FAIL
};

enum fake_count { COUNT_COPY, COUNT_EVENT, COUNT_LAUNCH, COUNT_FAIL, COUNT_KINDS };

enum fake_memory { MEMORY_DEVICE, MEMORY_PINNED, MEMORY_REGISTERED, MEMORY_KINDS };

struct fake_region {
    struct fake_region *next;
    char *host; /* first usable byte */
    void *base; /* of the mapping; NULL: the caller's memory */
    size_t bytes, base_bytes;
    enum fake_memory kind;
    int device;
    unsigned busy; /* operations that touch it now */
};

struct fake_device {
    uint64_t used_bytes;
    int retained;
    int broken; /* code; 0: sound */
    struct k3_gpu_stream *default_stream;
};

struct k3_gpu_event {
    struct k3_gpu_event *next;
    uint64_t recorded, done; /* records of it: the last begun, the last done */
    unsigned pending;        /* operations that name it */
    int device;
    bool destroyed;
};

/* Kernels: 0 is that of unit_check.cu, then those of cast.cu. */
#define FAKE_KERNELS (1 + (int)K3_GPU_FUNCTION_COUNT_MAX)

struct k3_gpu_function {
    int kernel;
};

/* Any module has all kernels: what an image holds cannot be told from its bytes. */
struct k3_gpu_module {
    struct k3_gpu_module *next;
    struct k3_gpu_function functions[FAKE_KERNELS];
    int device;
};

struct fake_op;

struct k3_gpu_stream {
    struct k3_gpu_stream *next;
    struct fake_op *first, *last;
    uint64_t begun, done;
    uint64_t random;
    pthread_t thread;
    struct k3_sha256 *sha;
    int device;
    bool closing, finished, destroyed;
};

/* A launch of a kernel of cast.cu. */
struct fake_cast {
    int kernel; /* of k3_cast_kernels */
    unsigned grid, block;
    struct k3_cast_ask ask;
};

/* Everything there is; fields are read and written under the lock. */
struct fake_gpu {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int device_count;
    uint64_t memory_bytes, seed;
    struct fake_device devices[FAKE_DEVICES_MAX];
    struct fake_region *regions;
    struct k3_gpu_stream *streams;
    struct k3_gpu_event *events;
    struct k3_gpu_module *modules;
    struct fake_op *held; /* a copy that waits for the one whose target it gets */
    uint64_t counts[COUNT_KINDS], hit_count, changed_count;
    struct {
        enum fake_fault_kind kind;
        uint64_t nth, count;
        int code;
        char symbol[FAKE_SYMBOL_BYTES];
    } fault;
    struct {
        const char *name;
        uint64_t count;
    } calls[FAKE_SYMBOLS_MAX];
};

extern struct fake_gpu fake;

/* ---- fake_gpu_state.c ---- */
/* A call begins: count it; its result when it has to fail.  Takes the lock itself. */
int fake_begin(const char *name);
/* Does the fault hit operation `n` of what it counts?  With the lock. */
bool fake_hits(enum fake_fault_kind kind, uint64_t n);
void fake_control(void); /* report, then read the environment again */
int fake_map(enum fake_memory kind, int device, size_t bytes, struct fake_region **out);
int fake_register(void *data, size_t bytes, int device);
int fake_unmap(enum fake_memory kind, const void *address);
/* The region of this kind that holds all of [address, + bytes), as the device counts addresses (of
 * host regions: host addresses when `as_host`).  NULL: none.  With the lock. */
struct fake_region *fake_find(enum fake_memory kind, uintptr_t address, size_t bytes, bool as_host);
void fake_release(struct fake_region *region); /* no longer busy; takes the lock itself */

/* ---- fake_gpu_stream.c ---- */
int fake_stream_open(int device, struct k3_gpu_stream **out);
int fake_stream_destroy(struct k3_gpu_stream *stream);
int fake_stream_drain(struct k3_gpu_stream *stream, int device);
void fake_streams_end(void); /* at exit: all threads are joined */
int fake_event_open(int device, struct k3_gpu_event **out);
int fake_event_destroy(struct k3_gpu_event *event);
int fake_event_record(struct k3_gpu_event *event, struct k3_gpu_stream *stream, int device);
int fake_event_wait(struct k3_gpu_event *event, bool block);
int fake_stream_wait_event(struct k3_gpu_stream *stream, struct k3_gpu_event *event, int device);
int fake_copy(int device, struct k3_gpu_stream *stream, uintptr_t target, uintptr_t source,
              size_t bytes);
int fake_launch(int device, struct k3_gpu_stream *stream, uintptr_t asks, unsigned unit_count);
int fake_launch_cast(int device, struct k3_gpu_stream *stream, const struct fake_cast *cast);
/* Memory behind an address, kept there until fake_release.  NULL: no such device memory. */
char *fake_borrow(uintptr_t address, size_t bytes, bool in_kernel, struct fake_region **region);

/* ---- fake_gpu_cast.c ---- */
/* Run the kernel, on this machine; 0, or the code with which the device breaks. */
int fake_run_cast(const struct fake_cast *cast, enum fake_fault_kind fault);

#endif
