/* Purpose: streams and events of the fake driver: work that is done late, in order, by threads.
 * Owns: one thread for each stream; the operations that wait in its queue.
 * Threads: callers queue under the lock; a stream's thread moves bytes without it.
 * Errors: codes of the drivers; what fails late breaks the device, and each later wait says so.
 * Invariants: an operation is in its queue until all that it does is done; a destroyed stream ends
 * what it holds and nobody waits for it, as with real drivers. */
#include "fake_gpu.h"

#include "bytes.h"
#include "dev.h"
#include "tree.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES  65536u /* of a copy between two pauses */
#define PAUSE_MAX_US 60u
#define LATE_US      20000u
#define FLIP_PLACE   2 /* of three thirds of a copy, where a bit flips */
#define STEP         6364136223846793005u
#define ASK_ALIGN    16u /* the kernel reads 16 bytes at once */

enum op_kind { OP_COPY, OP_LAUNCH, OP_CAST, OP_RECORD, OP_WAIT };

struct fake_op {
    struct fake_op *next;
    enum op_kind kind;
    enum fake_fault_kind fault;
    uintptr_t target, source; /* OP_LAUNCH: source is the table of what is asked */
    size_t bytes;
    unsigned unit_count;
    struct fake_cast cast; /* OP_CAST */
    struct k3_gpu_event *event;
    uint64_t turn; /* of the event */
    bool held;
};

static bool is_device(uintptr_t address)
{
    return address >= FAKE_DEVICE_SHIFT;
}

static void pause_some(struct k3_gpu_stream *stream)
{
    stream->random = stream->random * STEP + 1;
    unsigned drawn = (unsigned)(stream->random >> 33);
    if (drawn % 8 == 0)
        usleep(drawn / 8 % PAUSE_MAX_US + 1);
}

static void break_device(int device, int code)
{
    pthread_mutex_lock(&fake.lock);
    if (!fake.devices[device].broken)
        fake.devices[device].broken = code;
    pthread_mutex_unlock(&fake.lock);
}

char *fake_borrow(uintptr_t address, size_t bytes, bool in_kernel, struct fake_region **region)
{
    char *data = NULL;
    pthread_mutex_lock(&fake.lock);
    if (is_device(address)) {
        *region = fake_find(MEMORY_DEVICE, address, bytes, false);
        data = *region ? (char *)(address - FAKE_DEVICE_SHIFT) : NULL;
    } else {
        *region = fake_find(MEMORY_PINNED, address, bytes, !in_kernel);
        if (!*region)
            *region = fake_find(MEMORY_REGISTERED, address, bytes, !in_kernel);
        data = !in_kernel ? (char *)address : *region ? (char *)(address - FAKE_HOST_SHIFT) : NULL;
    }
    if (*region)
        (*region)->busy++;
    pthread_mutex_unlock(&fake.lock);
    return data;
}

/* ---- what operations do ---- */

static void do_copy(struct k3_gpu_stream *stream, const struct fake_op *op)
{
    struct fake_region *from, *to;
    char *source = fake_borrow(op->source, op->bytes, false, &from);
    char *target = fake_borrow(op->target, op->bytes, false, &to);
    if (!source || !target || op->fault == FAULT_BREAK)
        break_device(stream->device, FAKE_ILLEGAL_ADDRESS);
    else if (op->fault != FAULT_SKIP) {
        for (size_t at = 0; at < op->bytes; at += PIECE_BYTES) {
            size_t piece = op->bytes - at < PIECE_BYTES ? op->bytes - at : PIECE_BYTES;
            pause_some(stream);
            memmove(target + at, source + at, piece);
        }
        /* A source that is used again too early is seen here, whatever was copied of it. */
        if (!is_device(op->source) && memcmp(target, source, op->bytes) != 0) {
            pthread_mutex_lock(&fake.lock);
            fake.changed_count++;
            pthread_mutex_unlock(&fake.lock);
        }
        if (op->fault == FAULT_FLIP)
            target[op->bytes / 3 * FLIP_PLACE] ^= 0x10;
    }
    fake_release(from);
    fake_release(to);
}

static uint32_t check_unit(struct k3_gpu_stream *stream, const struct k3_unit_ask *ask)
{
    struct fake_region *region;
    uint8_t digest[K3_DIGEST_BYTES];
    const char *unit = fake_borrow((uintptr_t)ask->data, K3_UNIT_BYTES, true, &region);
    if (!unit || ask->data % ASK_ALIGN) {
        break_device(stream->device, unit ? FAKE_MISALIGNED : FAKE_ILLEGAL_ADDRESS);
        fake_release(region);
        return K3_UNIT_UNKNOWN;
    }
    k3_unit_digest(stream->sha, unit, K3_UNIT_BYTES, digest);
    fake_release(region);
    return memcmp(digest, ask->wanted, sizeof digest) ? K3_UNIT_WRONG : K3_UNIT_RIGHT;
}

static void answer(struct k3_gpu_stream *stream, const struct k3_unit_ask *ask, uint32_t verdict)
{
    struct fake_region *region;
    char *result = fake_borrow((uintptr_t)ask->result, sizeof verdict, true, &region);
    if (result)
        memcpy(result, &verdict, sizeof verdict);
    else
        break_device(stream->device, FAKE_ILLEGAL_ADDRESS);
    fake_release(region);
}

static void do_launch(struct k3_gpu_stream *stream, const struct fake_op *op)
{
    struct fake_region *region;
    const unsigned count = op->unit_count;
    const char *table = fake_borrow(op->source, count * sizeof(struct k3_unit_ask), true, &region);
    if (!table)
        break_device(stream->device, FAKE_ILLEGAL_ADDRESS);
    for (unsigned i = 0; table && op->fault != FAULT_IDLE && i < count; i++) {
        struct k3_unit_ask ask, other;
        memcpy(&ask, table + i * sizeof ask, sizeof ask);
        memcpy(&other, table + (i + 1) % count * sizeof other, sizeof other);
        pause_some(stream);
        uint32_t verdict = op->fault == FAULT_YES ? K3_UNIT_RIGHT
                           : op->fault == FAULT_NO
                               ? K3_UNIT_WRONG
                               : check_unit(stream, op->fault == FAULT_OTHER ? &other : &ask);
        if (verdict != K3_UNIT_UNKNOWN)
            answer(stream, &ask, verdict);
    }
    fake_release(region);
}

/* With the lock. */
static void forget_event(struct k3_gpu_event *event)
{
    struct k3_gpu_event **at = &fake.events;
    if (!event->destroyed || event->pending)
        return;
    while (*at != event)
        at = &(*at)->next;
    *at = event->next;
    free(event);
}

static void run_op(struct k3_gpu_stream *stream, struct fake_op *op)
{
    pthread_mutex_lock(&fake.lock);
    while (op->held)
        pthread_cond_wait(&fake.changed, &fake.lock);
    bool sound = fake.devices[stream->device].broken == 0;
    while (op->kind == OP_WAIT && op->event->done < op->turn)
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
    pause_some(stream);
    if (op->fault == FAULT_LATE)
        usleep(LATE_US);
    if (sound && op->kind == OP_COPY)
        do_copy(stream, op);
    if (sound && op->kind == OP_LAUNCH)
        do_launch(stream, op);
    if (sound && op->kind == OP_CAST) {
        const int code = fake_run_cast(&op->cast, op->fault);
        if (code)
            break_device(stream->device, code);
    }
    pthread_mutex_lock(&fake.lock);
    if (op->kind == OP_RECORD && op->event->done < op->turn)
        op->event->done = op->turn;
    if (op->event) {
        op->event->pending--;
        forget_event(op->event);
    }
    stream->first = op->next;
    stream->done++;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    free(op);
}

static void *run_stream(void *argument)
{
    struct k3_gpu_stream *stream = argument;
    for (;;) {
        pthread_mutex_lock(&fake.lock);
        while (!stream->first && !stream->closing)
            pthread_cond_wait(&fake.changed, &fake.lock);
        struct fake_op *op = stream->first;
        stream->finished = !op;
        pthread_mutex_unlock(&fake.lock);
        if (!op)
            return NULL;
        run_op(stream, op);
    }
}

/* ---- queues; all with the lock ---- */

static struct k3_gpu_stream *live_stream(struct k3_gpu_stream *wanted, int device)
{
    struct k3_gpu_stream *stream = fake.streams;
    while (stream && stream != wanted)
        stream = stream->next;
    return stream && !stream->destroyed && stream->device == device ? stream : NULL;
}

static struct k3_gpu_event *live_event(struct k3_gpu_event *wanted)
{
    struct k3_gpu_event *event = fake.events;
    while (event && event != wanted)
        event = event->next;
    return event && !event->destroyed ? event : NULL;
}

/* Whoever waits must not wait for a copy that nobody follows. */
static void let_go(void)
{
    if (!fake.held)
        return;
    fake.held->held = false;
    fake.held = NULL;
    pthread_cond_broadcast(&fake.changed);
}

static void queue(struct k3_gpu_stream *stream, struct fake_op *op)
{
    if (stream->first)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
    stream->begun++;
    pthread_cond_broadcast(&fake.changed);
}

/* The stream that NULL means is made when it is first used. */
static int open_default(int device)
{
    pthread_mutex_lock(&fake.lock);
    bool is_there = fake.devices[device].default_stream != NULL;
    pthread_mutex_unlock(&fake.lock);
    struct k3_gpu_stream *stream = NULL;
    int code = is_there ? 0 : fake_stream_open(device, &stream);
    if (stream) {
        pthread_mutex_lock(&fake.lock);
        fake.devices[device].default_stream = stream;
        pthread_mutex_unlock(&fake.lock);
    }
    return code;
}

/* Put an operation behind the others; gives back its result and, where that is bad, the memory. */
static int submit(int device, struct k3_gpu_stream *stream, struct fake_op *op)
{
    int code = stream ? 0 : open_default(device);
    pthread_mutex_lock(&fake.lock);
    if (!stream)
        stream = fake.devices[device].default_stream;
    if (!code)
        code = fake.devices[device].broken;
    if (!code && !live_stream(stream, device))
        code = FAKE_INVALID_HANDLE;
    if (!code && op->event && (!live_event(op->event) || op->event->device != device))
        code = FAKE_INVALID_HANDLE;
    if (!code) {
        if (op->kind == OP_RECORD)
            op->turn = ++op->event->recorded;
        else if (op->event)
            op->turn = op->event->recorded;
        if (op->event)
            op->event->pending++;
        queue(stream, op);
    }
    if (code && fake.held == op)
        fake.held = NULL;
    pthread_mutex_unlock(&fake.lock);
    if (code)
        free(op);
    return code;
}

static struct fake_op *new_op(enum op_kind kind)
{
    struct fake_op *op = calloc(1, sizeof *op);
    if (!op)
        abort();
    op->kind = kind;
    return op;
}

/* ---- calls ---- */

int fake_stream_open(int device, struct k3_gpu_stream **out)
{
    struct k3_gpu_stream *stream = calloc(1, sizeof *stream);
    *out = NULL;
    if (!stream || k3_sha256_open(&stream->sha, NULL) != 0)
        abort();
    pthread_mutex_lock(&fake.lock);
    stream->device = device;
    stream->random = fake.seed;
    for (struct k3_gpu_stream *other = fake.streams; other; other = other->next)
        stream->random = stream->random * STEP + 1;
    if (pthread_create(&stream->thread, NULL, run_stream, stream))
        abort();
    stream->next = fake.streams;
    fake.streams = stream;
    pthread_mutex_unlock(&fake.lock);
    *out = stream;
    return 0;
}

/* Join the streams that were destroyed and have come to their end, or all of them. */
static void reap(bool all)
{
    struct k3_gpu_stream *gone = NULL;
    pthread_mutex_lock(&fake.lock);
    for (struct k3_gpu_stream **at = &fake.streams; *at;) {
        struct k3_gpu_stream *stream = *at;
        if (all || (stream->destroyed && stream->finished)) {
            stream->closing = true;
            *at = stream->next;
            stream->next = gone;
            gone = stream;
        } else {
            at = &stream->next;
        }
    }
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    while (gone) {
        struct k3_gpu_stream *stream = gone;
        gone = stream->next;
        pthread_join(stream->thread, NULL);
        k3_sha256_close(stream->sha);
        free(stream);
    }
}

void fake_streams_end(void)
{
    pthread_mutex_lock(&fake.lock);
    let_go();
    pthread_mutex_unlock(&fake.lock);
    reap(true);
}

int fake_stream_destroy(struct k3_gpu_stream *stream)
{
    pthread_mutex_lock(&fake.lock);
    let_go();
    bool is_live = stream && live_stream(stream, stream->device);
    if (is_live) {
        stream->closing = stream->destroyed = true;
        pthread_cond_broadcast(&fake.changed);
    }
    pthread_mutex_unlock(&fake.lock);
    reap(false);
    return is_live ? 0 : FAKE_INVALID_HANDLE;
}

int fake_stream_drain(struct k3_gpu_stream *stream, int device)
{
    int code = stream ? 0 : open_default(device);
    pthread_mutex_lock(&fake.lock);
    let_go();
    if (!stream)
        stream = fake.devices[device].default_stream;
    if (!code && !live_stream(stream, device))
        code = FAKE_INVALID_HANDLE;
    if (!code) {
        uint64_t begun = stream->begun;
        while (stream->done < begun)
            pthread_cond_wait(&fake.changed, &fake.lock);
        code = fake.devices[device].broken;
    }
    pthread_mutex_unlock(&fake.lock);
    return code;
}

int fake_event_open(int device, struct k3_gpu_event **out)
{
    struct k3_gpu_event *event = calloc(1, sizeof *event);
    if (!event)
        abort();
    event->device = device;
    pthread_mutex_lock(&fake.lock);
    event->next = fake.events;
    fake.events = event;
    pthread_mutex_unlock(&fake.lock);
    *out = event;
    return 0;
}

int fake_event_destroy(struct k3_gpu_event *event)
{
    int code = FAKE_INVALID_HANDLE;
    pthread_mutex_lock(&fake.lock);
    if (live_event(event)) {
        event->destroyed = true;
        forget_event(event);
        code = 0;
    }
    pthread_mutex_unlock(&fake.lock);
    return code;
}

int fake_event_record(struct k3_gpu_event *event, struct k3_gpu_stream *stream, int device)
{
    struct fake_op *op = new_op(OP_RECORD);
    op->event = event;
    pthread_mutex_lock(&fake.lock);
    if (fake_hits(FAULT_LATE, ++fake.counts[COUNT_EVENT]))
        op->fault = FAULT_LATE;
    pthread_mutex_unlock(&fake.lock);
    return event ? submit(device, stream, op) : (free(op), FAKE_INVALID_HANDLE);
}

int fake_event_wait(struct k3_gpu_event *event, bool block)
{
    int code = FAKE_INVALID_HANDLE;
    pthread_mutex_lock(&fake.lock);
    let_go();
    if (live_event(event)) {
        uint64_t turn = event->recorded;
        const int device = event->device;
        event->pending++; /* another thread may destroy it */
        while (block && event->done < turn)
            pthread_cond_wait(&fake.changed, &fake.lock);
        code = fake.devices[device].broken ? fake.devices[device].broken
               : event->done < turn        ? K3_GPU_NOT_READY
                                           : 0;
        event->pending--;
        forget_event(event);
    }
    pthread_mutex_unlock(&fake.lock);
    return code;
}

int fake_stream_wait_event(struct k3_gpu_stream *stream, struct k3_gpu_event *event, int device)
{
    struct fake_op *op = new_op(OP_WAIT);
    op->event = event;
    return event ? submit(device, stream, op) : (free(op), FAKE_INVALID_HANDLE);
}

/* Spoil a copy to a device where its turn has come.  With the lock. */
static void spoil_copy(struct fake_op *op)
{
    static const enum fake_fault_kind kinds[] = {FAULT_FLIP, FAULT_SKIP, FAULT_BREAK};
    uint64_t n = ++fake.counts[COUNT_COPY];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (fake_hits(kinds[i], n))
            op->fault = kinds[i];
    if (fake.held && fake.held->bytes == op->bytes) {
        uintptr_t target = op->target;
        op->target = fake.held->target;
        fake.held->target = target;
        let_go();
    } else if (!fake.held && fake_hits(FAULT_SWAP, n)) {
        op->held = true;
        fake.held = op;
    }
}

int fake_copy(int device, struct k3_gpu_stream *stream, uintptr_t target, uintptr_t source,
              size_t bytes)
{
    struct fake_op *op = new_op(OP_COPY);
    op->target = target;
    op->source = source;
    op->bytes = bytes;
    pthread_mutex_lock(&fake.lock);
    bool is_known = (!is_device(target) || fake_find(MEMORY_DEVICE, target, bytes, false)) &&
                    (!is_device(source) || fake_find(MEMORY_DEVICE, source, bytes, false));
    if (is_known && is_device(target) && !is_device(source))
        spoil_copy(op);
    pthread_mutex_unlock(&fake.lock);
    if (is_known)
        return submit(device, stream, op);
    free(op);
    return FAKE_INVALID_VALUE;
}

/* Queue a launch, spoilt where its turn has come. */
static int submit_launch(int device, struct k3_gpu_stream *stream, struct fake_op *op)
{
    static const enum fake_fault_kind kinds[] = {FAULT_IDLE, FAULT_OTHER, FAULT_YES, FAULT_NO};
    pthread_mutex_lock(&fake.lock);
    uint64_t n = ++fake.counts[COUNT_LAUNCH];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (fake_hits(kinds[i], n))
            op->fault = kinds[i];
    pthread_mutex_unlock(&fake.lock);
    return submit(device, stream, op);
}

int fake_launch(int device, struct k3_gpu_stream *stream, uintptr_t asks, unsigned unit_count)
{
    struct fake_op *op = new_op(OP_LAUNCH);
    op->source = asks;
    op->unit_count = unit_count;
    return submit_launch(device, stream, op);
}

int fake_launch_cast(int device, struct k3_gpu_stream *stream, const struct fake_cast *cast)
{
    struct fake_op *op = new_op(OP_CAST);
    op->cast = *cast;
    return submit_launch(device, stream, op);
}
