/* Purpose: the devices "cuda" and "hip": one body over the table of driver calls.
 * Owns: a stream, events and pinned tables for each lane; memory from alloc is the caller's.
 * Threads: one thread drives an open device, any thread; it keeps the GPU context it had before.
 * Errors: K3_EUNSUPPORTED (no driver, no code, does not fit), K3_EDEVICE (the GPU failed),
 * K3_EUSAGE, K3_ENOMEM.
 * Invariants: an answer counts only after the event behind its launch; answers are unknown until
 * the GPU writes them, so a kernel that did not run proves nothing; open checks one unit on the GPU
 * before anything else is believed. */
#include "dev.h"
#include "gpu_kernels.h"
#include "tree.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Operations of a lane under way before the caller waits: far more than a bus gains from. */
#define EVENT_COUNT 256u
/* Launches of a lane under way: one runs while the next is being filled. */
#define BATCH_COUNT 2u
/* Host memory flags of both drivers: usable by all contexts, seen by the device. */
#define HOST_MAPPED     3u
#define REGISTER_MAPPED 3u
#define ALIGN_BYTES     4096u
#define SELF_TEST_UNITS 2u

/* One launch: what was asked, where the GPU answers, and where the caller wants the answers. */
struct batch {
    struct k3_unit_ask *asks; /* pinned, one each unit */
    uint32_t *answers;        /* pinned */
    void *asks_device, *answers_device;
    uint8_t **results; /* of the caller */
    uint64_t op;       /* number of the operation, from 1; 0: free */
    uint32_t unit_count;
};

struct lane {
    struct k3_gpu_stream *stream;
    struct k3_gpu_event *events[EVENT_COUNT]; /* operation n has events[n % EVENT_COUNT] */
    uint64_t begun_count, done_count;
    struct batch batches[BATCH_COUNT];
    bool has_failed; /* what runs on it may be unknown to us: its answers are worth nothing */
};

/* Memory whose start had to be moved to reach an alignment. */
struct moved {
    void *data, *base;
    struct moved *next;
};

struct k3_dev {
    struct k3_gpu gpu;
    struct k3_gpu_code code;
    struct lane *lanes;
    struct moved *moved;
    uint32_t lane_count;
    bool has_context;
};

static int judge(const struct k3_dev *dev, int code, const char *what, struct k3_err *err)
{
    return k3_gpu_judge(&dev->gpu, code, what, err);
}

static int bad_lane(const struct k3_dev *dev, uint32_t lane, struct k3_err *err)
{
    return k3_fail(err, K3_EUSAGE, "device %s: lane %u of %u", dev->gpu.api->name, lane,
                   dev->lane_count);
}

/* ---- operations of a lane ---- */

/* After a failure a launch may still run whose end nobody has marked: it would answer for what is
 * asked next. */
static int check_lane(const struct k3_dev *dev, const struct lane *lane, struct k3_err *err)
{
    if (!lane->has_failed)
        return 0;
    return k3_fail(err, K3_EDEVICE, "device %s:%u: lane %zu has failed before: close the device",
                   dev->gpu.api->name, dev->gpu.index, (size_t)(lane - dev->lanes));
}

static int end_with(struct lane *lane, int rc)
{
    lane->has_failed = lane->has_failed || rc;
    return rc;
}

/* Give the caller the answers of a batch that is done. */
static void hand_out(struct batch *batch)
{
    for (uint32_t i = 0; i < batch->unit_count; i++) {
        uint32_t answer = ((volatile uint32_t *)batch->answers)[i];
        *batch->results[i] = answer == K3_UNIT_RIGHT   ? K3_UNIT_RIGHT
                             : answer == K3_UNIT_WRONG ? K3_UNIT_WRONG
                                                       : K3_UNIT_UNKNOWN;
    }
    batch->op = 0;
}

/* The first op_count operations are done. */
static void end_ops(struct lane *lane, uint64_t op_count)
{
    lane->done_count = op_count;
    for (uint32_t b = 0; b < BATCH_COUNT; b++)
        if (lane->batches[b].op && lane->batches[b].op <= op_count)
            hand_out(&lane->batches[b]);
}

/* Wait for the first op_count operations. */
static int wait_ops(struct k3_dev *dev, struct lane *lane, uint64_t op_count, struct k3_err *err)
{
    if (op_count > lane->begun_count)
        op_count = lane->begun_count;
    if (op_count <= lane->done_count)
        return 0;
    struct k3_gpu_event *event = lane->events[op_count % EVENT_COUNT];
    int rc = judge(dev, dev->gpu.api->event_synchronize(event), "waiting for its work", err);
    if (!rc)
        end_ops(lane, op_count);
    return rc;
}

static int ask_ops(struct k3_dev *dev, struct lane *lane, uint64_t op_count, bool *is_done,
                   struct k3_err *err)
{
    if (op_count > lane->begun_count)
        op_count = lane->begun_count;
    int code = dev->gpu.api->event_query(lane->events[op_count % EVENT_COUNT]);
    if (code == K3_GPU_NOT_READY)
        return 0;
    int rc = judge(dev, code, "asking for its work", err);
    if (!rc)
        end_ops(lane, op_count);
    *is_done = !rc;
    return rc;
}

/* Mark the end of an operation that was put on the stream. */
static int end_op(struct k3_dev *dev, struct lane *lane, struct k3_err *err)
{
    struct k3_gpu_event *event = lane->events[(lane->begun_count + 1) % EVENT_COUNT];
    int rc = judge(dev, dev->gpu.api->event_record(event, lane->stream), "an event", err);
    if (!rc)
        lane->begun_count++;
    return rc;
}

/* An event is used again only when its operation is done. */
static int make_room(struct k3_dev *dev, struct lane *lane, struct k3_err *err)
{
    if (lane->begun_count - lane->done_count < EVENT_COUNT)
        return 0;
    return wait_ops(dev, lane, lane->done_count + 1, err);
}

/* ---- memory ---- */

static int fail_alloc(const struct k3_dev *dev, uint64_t bytes, struct k3_err *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    (void)dev->gpu.api->memory_info(&free_bytes, &total_bytes);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "device %s:%u: %" PRIu64 " bytes of its memory are needed, %zu of %zu are free: "
                   "end what else uses it, or choose another layout or device",
                   dev->gpu.api->name, dev->gpu.index, bytes, free_bytes, total_bytes);
}

/* Start at a multiple of ALIGN_BYTES inside memory that is that much longer. */
static int alloc_moved(struct k3_dev *dev, uint64_t bytes, void **out, struct k3_err *err)
{
    struct moved *moved = calloc(1, sizeof *moved);
    if (!moved)
        return k3_fail(err, K3_ENOMEM, "no memory for a list");
    int code = dev->gpu.api->mem_alloc(&moved->base, (size_t)bytes + ALIGN_BYTES);
    if (code != K3_GPU_SUCCESS) {
        free(moved);
        return code == K3_GPU_OUT_OF_MEMORY ? fail_alloc(dev, bytes + ALIGN_BYTES, err)
                                            : judge(dev, code, "allocating memory", err);
    }
    uintptr_t skip = (ALIGN_BYTES - (uintptr_t)moved->base % ALIGN_BYTES) % ALIGN_BYTES;
    moved->data = (char *)moved->base + skip;
    moved->next = dev->moved;
    dev->moved = moved;
    *out = moved->data;
    return 0;
}

static int alloc_entered(struct k3_dev *dev, uint64_t bytes, void **out, struct k3_err *err)
{
    const struct k3_gpu_api *api = dev->gpu.api;
    size_t wanted_bytes = bytes ? (size_t)bytes : 1;
    int code = bytes > SIZE_MAX / 2 ? K3_GPU_OUT_OF_MEMORY : api->mem_alloc(out, wanted_bytes);
    if (code == K3_GPU_OUT_OF_MEMORY)
        return fail_alloc(dev, bytes, err);
    if (code != K3_GPU_SUCCESS)
        return judge(dev, code, "allocating memory", err);
    if ((uintptr_t)*out % ALIGN_BYTES == 0)
        return 0;
    (void)api->mem_free(*out);
    *out = NULL;
    return alloc_moved(dev, wanted_bytes, out, err);
}

static int gpu_alloc(struct k3_dev *dev, uint64_t bytes, void **out, struct k3_err *err)
{
    int saved;
    *out = NULL;
    int rc = k3_gpu_enter(&dev->gpu, &saved, err);
    if (rc)
        return rc;
    rc = alloc_entered(dev, bytes, out, err);
    if (rc)
        *out = NULL;
    k3_gpu_leave(&dev->gpu, saved);
    return rc;
}

static void gpu_release(struct k3_dev *dev, void *data, uint64_t bytes)
{
    int saved;
    (void)bytes;
    if (!data || k3_gpu_enter(&dev->gpu, &saved, NULL))
        return;
    for (struct moved **at = &dev->moved; *at; at = &(*at)->next) {
        struct moved *moved = *at;
        if (moved->data != data)
            continue;
        data = moved->base;
        *at = moved->next;
        free(moved);
        break;
    }
    (void)dev->gpu.api->mem_free(data);
    k3_gpu_leave(&dev->gpu, saved);
}

static int gpu_pin(struct k3_dev *dev, void *data, size_t bytes, struct k3_err *err)
{
    int saved;
    int rc = k3_gpu_enter(&dev->gpu, &saved, err);
    if (rc)
        return rc;
    int code = dev->gpu.api->host_register(data, bytes, REGISTER_MAPPED);
    if (code != K3_GPU_SUCCESS)
        rc = k3_fail(err, K3_EDEVICE, "device %s:%u: cannot register %zu bytes of host memory: %s",
                     dev->gpu.api->name, dev->gpu.index, bytes,
                     k3_gpu_error_name(dev->gpu.api, code));
    k3_gpu_leave(&dev->gpu, saved);
    return rc;
}

static void gpu_unpin(struct k3_dev *dev, void *data, size_t bytes)
{
    int saved;
    (void)bytes;
    if (!data || k3_gpu_enter(&dev->gpu, &saved, NULL))
        return;
    (void)dev->gpu.api->host_unregister(data);
    k3_gpu_leave(&dev->gpu, saved);
}

/* ---- copies ---- */

static int copy_entered(struct k3_dev *dev, struct lane *lane, const struct k3_dev_copy *copy,
                        struct k3_err *err)
{
    const struct k3_gpu_api *api = dev->gpu.api;
    int rc = make_room(dev, lane, err);
    int code = K3_GPU_SUCCESS;
    if (rc)
        return rc;
    if (copy->bytes == 0)
        return end_op(dev, lane, err); /* drivers differ in what they say to none */
    if (copy->kind == K3_COPY_HOST_TO_DEV)
        code = api->copy_to_device(copy->target, copy->source, copy->bytes, lane->stream);
    else if (copy->kind == K3_COPY_DEV_TO_HOST)
        code = api->copy_to_host(copy->target, copy->source, copy->bytes, lane->stream);
    else
        code = api->copy_on_device(copy->target, copy->source, copy->bytes, lane->stream);
    rc = judge(dev, code, "a copy", err);
    return rc ? rc : end_op(dev, lane, err);
}

static int gpu_copy_begin(struct k3_dev *dev, uint32_t lane, const struct k3_dev_copy *copy,
                          struct k3_err *err)
{
    int saved;
    if (lane >= dev->lane_count)
        return bad_lane(dev, lane, err);
    int rc = k3_gpu_enter(&dev->gpu, &saved, err);
    if (rc)
        return rc;
    rc = check_lane(dev, &dev->lanes[lane], err);
    if (!rc)
        rc = end_with(&dev->lanes[lane], copy_entered(dev, &dev->lanes[lane], copy, err));
    k3_gpu_leave(&dev->gpu, saved);
    return rc;
}

static int gpu_copy_done(struct k3_dev *dev, uint32_t lane, uint64_t op_count, bool *is_done,
                         struct k3_err *err)
{
    int saved;
    *is_done = false;
    if (lane >= dev->lane_count)
        return bad_lane(dev, lane, err);
    *is_done = op_count <= dev->lanes[lane].done_count ||
               dev->lanes[lane].begun_count == dev->lanes[lane].done_count;
    int rc = check_lane(dev, &dev->lanes[lane], err);
    if (*is_done || rc)
        return rc;
    rc = k3_gpu_enter(&dev->gpu, &saved, err);
    if (rc)
        return rc;
    rc = end_with(&dev->lanes[lane], ask_ops(dev, &dev->lanes[lane], op_count, is_done, err));
    k3_gpu_leave(&dev->gpu, saved);
    return rc;
}

static int gpu_copy_wait(struct k3_dev *dev, uint32_t lane, uint64_t op_count, struct k3_err *err)
{
    int saved;
    if (lane >= dev->lane_count)
        return bad_lane(dev, lane, err);
    if (op_count <= dev->lanes[lane].done_count)
        return 0;
    int rc = k3_gpu_enter(&dev->gpu, &saved, err);
    if (rc)
        return rc;
    if (dev->lanes[lane].has_failed) /* what still runs must not outlive the wait */
        (void)dev->gpu.api->stream_synchronize(dev->lanes[lane].stream);
    rc = check_lane(dev, &dev->lanes[lane], err);
    if (!rc)
        rc = end_with(&dev->lanes[lane], wait_ops(dev, &dev->lanes[lane], op_count, err));
    k3_gpu_leave(&dev->gpu, saved);
    return rc;
}

/* ---- checks ---- */

/* A batch to fill: a free one, or the older of those under way once it is done. */
static int take_batch(struct k3_dev *dev, struct lane *lane, struct batch **out, struct k3_err *err)
{
    struct batch *oldest = &lane->batches[0];
    for (uint32_t b = 1; b < BATCH_COUNT; b++)
        if (lane->batches[b].op < oldest->op)
            oldest = &lane->batches[b];
    *out = oldest;
    return oldest->op ? wait_ops(dev, lane, oldest->op, err) : 0;
}

static void fill_batch(struct batch *batch, const struct k3_dev_check *checks, uint32_t check_count)
{
    batch->unit_count = 0;
    for (uint32_t c = 0; c < check_count; c++)
        for (uint32_t u = 0; u < checks[c].unit_count; u++) {
            uint32_t n = batch->unit_count++;
            struct k3_unit_ask *ask = &batch->asks[n];
            ask->data = (uintptr_t)checks[c].data + (uint64_t)u * K3_UNIT_BYTES;
            ask->result = (uintptr_t)batch->answers_device + n * sizeof *batch->answers;
            memcpy(ask->wanted, checks[c].wanted + (size_t)u * K3_DIGEST_BYTES, K3_DIGEST_BYTES);
            batch->answers[n] = K3_UNIT_UNKNOWN;
            batch->results[n] = checks[c].result + u;
        }
}

static int verify_entered(struct k3_dev *dev, struct lane *lane, const struct k3_dev_check *checks,
                          uint32_t check_count, struct k3_err *err)
{
    struct batch *batch;
    int rc = make_room(dev, lane, err);
    if (!rc)
        rc = take_batch(dev, lane, &batch, err);
    if (rc)
        return rc;
    fill_batch(batch, checks, check_count);
    if (batch->unit_count) {
        void *arguments[] = {&batch->asks_device, &batch->unit_count};
        unsigned group_count = (unsigned)k3_div_up(batch->unit_count, K3_GROUP_UNITS);
        int code = dev->gpu.api->launch(dev->code.functions[0], group_count, 1, 1,
                                        K3_UNIT_CHECK_THREADS, 1, 1, 0, lane->stream, arguments,
                                        NULL);
        rc = judge(dev, code, "a check", err);
    }
    if (!rc)
        rc = end_op(dev, lane, err);
    if (!rc)
        batch->op = lane->begun_count;
    return rc;
}

static int gpu_verify_units(struct k3_dev *dev, uint32_t lane, const struct k3_dev_check *checks,
                            uint32_t check_count, struct k3_err *err)
{
    int saved;
    uint64_t unit_count = 0;
    if (lane >= dev->lane_count)
        return bad_lane(dev, lane, err);
    for (uint32_t i = 0; i < check_count; i++)
        unit_count += checks[i].unit_count;
    if (unit_count > K3_DEV_CHECK_UNITS_MAX)
        return k3_fail(err, K3_EUSAGE, "device %s: %" PRIu64 " units in one check, %u at most",
                       dev->gpu.api->name, unit_count, K3_DEV_CHECK_UNITS_MAX);
    int rc = k3_gpu_enter(&dev->gpu, &saved, err);
    if (rc)
        return rc;
    rc = check_lane(dev, &dev->lanes[lane], err);
    if (!rc)
        rc = end_with(&dev->lanes[lane],
                      verify_entered(dev, &dev->lanes[lane], checks, check_count, err));
    k3_gpu_leave(&dev->gpu, saved);
    return rc;
}

const struct k3_gpu *k3_dev_gpu(const struct k3_dev *dev)
{
    return &dev->gpu;
}

/* ---- close ---- */

/* Answers that nobody has waited for are dropped: their place may be gone. */
static void close_lane(struct k3_dev *dev, struct lane *lane)
{
    const struct k3_gpu_api *api = dev->gpu.api;
    if (lane->stream)
        (void)api->stream_synchronize(lane->stream);
    for (uint32_t b = 0; b < BATCH_COUNT; b++) {
        struct batch *batch = &lane->batches[b];
        if (batch->asks)
            (void)api->host_free(batch->asks);
    }
    for (uint32_t e = 0; e < EVENT_COUNT; e++)
        if (lane->events[e])
            (void)api->event_destroy(lane->events[e]);
    if (lane->stream)
        (void)api->stream_destroy(lane->stream);
}

static void gpu_close(struct k3_dev *dev)
{
    int saved;
    if (!dev)
        return;
    if (dev->has_context && k3_gpu_enter(&dev->gpu, &saved, NULL) == 0) {
        for (uint32_t i = 0; dev->lanes && i < dev->lane_count; i++)
            close_lane(dev, &dev->lanes[i]);
        if (dev->code.module)
            (void)dev->gpu.api->module_unload(dev->code.module);
        k3_gpu_leave(&dev->gpu, saved);
    }
    if (dev->has_context && dev->gpu.api->kind == K3_GPU_CUDA)
        (void)dev->gpu.api->cuda_context_release(dev->gpu.device);
    for (uint32_t i = 0; dev->lanes && i < dev->lane_count; i++)
        for (uint32_t b = 0; b < BATCH_COUNT; b++)
            free(dev->lanes[i].batches[b].results);
    while (dev->moved) {
        struct moved *moved = dev->moved;
        dev->moved = moved->next;
        free(moved);
    }
    free(dev->lanes);
    free(dev);
}

/* ---- open ---- */

/* Asks and answers of a batch lie in one pinned piece. */
static int open_batch(struct k3_dev *dev, struct batch *batch, struct k3_err *err)
{
    const struct k3_gpu_api *api = dev->gpu.api;
    const size_t ask_bytes = K3_DEV_CHECK_UNITS_MAX * sizeof *batch->asks;
    const size_t bytes = ask_bytes + K3_DEV_CHECK_UNITS_MAX * sizeof *batch->answers;
    void *host = NULL, *device = NULL;
    batch->results = calloc(K3_DEV_CHECK_UNITS_MAX, sizeof *batch->results);
    if (!batch->results)
        return k3_fail(err, K3_ENOMEM, "no memory for the answers of a device");
    int rc = judge(dev, api->host_alloc(&host, bytes, HOST_MAPPED), "pinned memory", err);
    if (rc)
        return rc;
    memset(host, 0, bytes);
    batch->asks = host;
    batch->answers = (uint32_t *)(void *)((char *)host + ask_bytes);
    rc = judge(dev, api->host_device_pointer(&device, host, 0), "its view of host memory", err);
    batch->asks_device = device;
    batch->answers_device = device ? (char *)device + ask_bytes : NULL;
    return rc;
}

static int open_lane(struct k3_dev *dev, struct lane *lane, void *after_event, struct k3_err *err)
{
    const struct k3_gpu_api *api = dev->gpu.api;
    int rc = judge(dev, api->stream_create(&lane->stream, K3_GPU_STREAM_PARALLEL), "a stream", err);
    if (!rc && after_event)
        rc = judge(dev, api->stream_wait_event(lane->stream, after_event, 0), "the caller's event",
                   err);
    for (uint32_t e = 0; e < EVENT_COUNT && !rc; e++)
        rc = judge(dev, api->event_create(&lane->events[e], K3_GPU_EVENT_PLAIN), "an event", err);
    for (uint32_t b = 0; b < BATCH_COUNT && !rc; b++)
        rc = open_batch(dev, &lane->batches[b], err);
    return rc;
}

/* Check a unit of known bytes, once with its digest and once with a wrong one. */
static int self_test_with(struct k3_dev *dev, uint8_t *unit, void *data, struct k3_err *err)
{
    uint8_t wanted[SELF_TEST_UNITS * K3_DIGEST_BYTES];
    uint8_t results[SELF_TEST_UNITS] = {K3_UNIT_UNKNOWN, K3_UNIT_UNKNOWN};
    struct k3_sha256 *sha = NULL;
    for (size_t i = 0; i < K3_UNIT_BYTES; i++)
        unit[i] = (uint8_t)(i * 167 + i / 251);
    int rc = k3_sha256_open(&sha, err);
    if (rc)
        return rc;
    k3_unit_digest(sha, unit, K3_UNIT_BYTES, wanted);
    k3_sha256_close(sha);
    memcpy(wanted + K3_DIGEST_BYTES, wanted, K3_DIGEST_BYTES);
    wanted[2 * K3_DIGEST_BYTES - 1] ^= 1;
    struct k3_dev_copy copy = {data, unit, K3_UNIT_BYTES, K3_COPY_HOST_TO_DEV};
    const struct k3_dev_check checks[SELF_TEST_UNITS] = {
        {data, wanted, results, 1}, {data, wanted + K3_DIGEST_BYTES, results + 1, 1}};
    rc = copy_entered(dev, &dev->lanes[0], &copy, err);
    if (!rc)
        rc = verify_entered(dev, &dev->lanes[0], checks, SELF_TEST_UNITS, err);
    if (!rc)
        rc = wait_ops(dev, &dev->lanes[0], K3_DEV_WAIT_ALL, err);
    if (!rc && (results[0] != K3_UNIT_RIGHT || results[1] != K3_UNIT_WRONG))
        rc = k3_fail(
            err, K3_EDEVICE,
            "device %s:%u: its check of known bytes is wrong: nothing can be proved on it; "
            "test this GPU",
            dev->gpu.api->name, dev->gpu.index);
    return rc;
}

static int self_test(struct k3_dev *dev, struct k3_err *err)
{
    void *data = NULL;
    uint8_t *unit = malloc(K3_UNIT_BYTES);
    if (!unit)
        return k3_fail(err, K3_ENOMEM, "no memory for the self-test of a device");
    int rc = alloc_entered(dev, K3_UNIT_BYTES, &data, err);
    if (!rc)
        rc = self_test_with(dev, unit, data, err);
    if (rc && data) /* what was begun reads `unit` */
        (void)dev->gpu.api->stream_synchronize(dev->lanes[0].stream);
    if (data)
        gpu_release(dev, data, K3_UNIT_BYTES);
    free(unit);
    return rc;
}

static int open_entered(struct k3_dev *dev, void *after_event, struct k3_err *err)
{
    int rc = k3_gpu_kernels_load(&dev->gpu, &k3_unit_check_program, &dev->code, err);
    for (uint32_t i = 0; i < dev->lane_count && !rc; i++)
        rc = open_lane(dev, &dev->lanes[i], after_event, err);
    if (!rc)
        rc = self_test(dev, err);
    /* Operations are counted from here: those of the self-test are all done, and not the caller's.
     */
    dev->lanes[0].begun_count = 0;
    dev->lanes[0].done_count = 0;
    return rc;
}

static int gpu_open(enum k3_gpu_kind kind, const struct k3_dev_options *options,
                    struct k3_dev **out, struct k3_err *err)
{
    int saved;
    *out = NULL;
    if (options->lane_count == 0 || options->lane_count > K3_LANE_COUNT_MAX)
        return k3_fail(err, K3_EUSAGE, "a device has 1..%u lanes, not %u", K3_LANE_COUNT_MAX,
                       options->lane_count);
    struct k3_dev *dev = calloc(1, sizeof *dev);
    if (dev)
        dev->lanes = calloc(options->lane_count, sizeof *dev->lanes);
    if (!dev || !dev->lanes) {
        free(dev);
        return k3_fail(err, K3_ENOMEM, "no memory for a device of %u lanes", options->lane_count);
    }
    dev->lane_count = options->lane_count;
    int rc = k3_gpu_find(kind, options->index, &dev->gpu, err);
    if (!rc && kind == K3_GPU_CUDA)
        rc = judge(dev, dev->gpu.api->cuda_context_retain(&dev->gpu.context, dev->gpu.device),
                   "its context", err);
    dev->has_context = !rc;
    if (!rc)
        rc = k3_gpu_enter(&dev->gpu, &saved, err);
    if (!rc) {
        rc = open_entered(dev, options->after_event, err);
        k3_gpu_leave(&dev->gpu, saved);
    }
    if (rc)
        gpu_close(dev);
    else
        *out = dev;
    return rc;
}

static int gpu_probe(enum k3_gpu_kind kind, uint32_t index, struct k3_err *err)
{
    struct k3_gpu gpu = {.api = NULL};
    int rc = k3_gpu_find(kind, index, &gpu, err);
    return rc ? rc : k3_gpu_kernels_probe(kind, err);
}

static int cuda_open(const struct k3_dev_options *options, struct k3_dev **out, struct k3_err *err)
{
    return gpu_open(K3_GPU_CUDA, options, out, err);
}

static int hip_open(const struct k3_dev_options *options, struct k3_dev **out, struct k3_err *err)
{
    return gpu_open(K3_GPU_HIP, options, out, err);
}

static int cuda_probe(uint32_t index, struct k3_err *err)
{
    return gpu_probe(K3_GPU_CUDA, index, err);
}

static int hip_probe(uint32_t index, struct k3_err *err)
{
    return gpu_probe(K3_GPU_HIP, index, err);
}

#define GPU_OPS                                                                                    \
    .alloc = gpu_alloc, .release = gpu_release, .pin = gpu_pin, .unpin = gpu_unpin,                \
    .copy_begin = gpu_copy_begin, .copy_wait = gpu_copy_wait, .copy_done = gpu_copy_done,          \
    .verify_units = gpu_verify_units, .close = gpu_close

const struct k3_dev_ops k3_dev_cuda = {
    .name = "cuda", .probe = cuda_probe, .open = cuda_open, GPU_OPS};

const struct k3_dev_ops k3_dev_hip = {.name = "hip", .probe = hip_probe, .open = hip_open, GPU_OPS};
