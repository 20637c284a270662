/* One leg of a load: a device with the ranks it takes, its parts, chunks, slots and checks.  Not
 * installed.
 *
 * Legs run beside each other, each on one thread, and share nothing but the atomic counters of the
 * load. */
#ifndef K3_LOAD_LEG_H
#define K3_LOAD_LEG_H

#include "dev.h"
#include "io.h"
#include "k3_load.h"
#include "load_slots.h"
#include "numa.h"
#include "set.h"

#include <pthread.h>
#include <stdbool.h>

#define K3_LOAD_STAGING_BYTES (64u << 20) /* default: 16 chunks keep one NVMe drive busy */
#define K3_LOAD_POOL_BYTES    (64u << 20) /* default of a GPU: eight slots of 8 MiB */
/* Copies of two lanes would share the bus, and each slot be free later; checks of two do not wait
 * for each other's launch. */
#define K3_LOAD_COPY_LANE_COUNT 1u
#define K3_LOAD_GPU_LANE_COUNT  3u
/* Where nothing is copied, or where a lane is a thread of the host that does both. */
#define K3_LOAD_LIKE_LANE_COUNT 4u
/* 64 MiB: a launch takes about 150 us however few units it has, and the bus brings these in 1.2 ms.
 */
#define K3_LOAD_BATCH_UNITS   128u
#define K3_LOAD_LEG_COUNT_MAX 64u
#define K3_LOAD_STREAM_COUNT  16u
/* Units of a lane that are being gathered: those that cross views are few. */
#define K3_LOAD_SCRATCH_UNITS    16u
#define K3_LOAD_DEPTH_MAX        1024u /* 4 GiB in flight: more only moves the queue elsewhere */
#define K3_LOAD_DIM_COUNT_MAX    4u    /* shape[] of the public structs */
#define K3_LOAD_NAMED_COUNT      3u    /* tensors an error names */
#define K3_LOAD_NAME_SHOWN_BYTES 100   /* of each: the longest of K3 has 79 */

enum k3_chunk_state { K3_CHUNK_WAITING, K3_CHUNK_IN_FLIGHT, K3_CHUNK_ARRIVED, K3_CHUNK_FAILED };

/* One read: units [unit_begin, +unit_count) of the data section of a part.  Those that share a slot
 * follow each other in the table and in the part. */
struct k3_load_chunk {
    uint32_t part;       /* index in parts */
    uint32_t unit_begin; /* from the start of the data section */
    uint16_t slot;       /* while in flight, where reads land in slots */
    uint8_t unit_count;  /* 1..chunk_units of the leg */
    uint8_t state;       /* enum k3_chunk_state */
    uint8_t slot_at;     /* its place in the slot, in chunks */
    uint8_t slot_chunks; /* that the slot gets: 1..each of the slots */
};

/* A stretch of a data section and where it lies on the device. */
struct k3_load_piece {
    uint64_t begin_offset, end_offset;
    uint8_t
        *data; /* NULL: a pad that is in no view, and that the caller's memory has no place for */
};

/* A view that the caller gave memory for. */
struct k3_load_bound {
    const char *name; /* borrowed during open */
    uint8_t *data;
    uint64_t bytes;
    uint32_t rank;
    bool is_used;
};

struct k3_load_part {
    const struct k3_part_entry *entry; /* borrowed from the set */
    struct k3_load_piece *pieces;      /* in order; owned */
    struct k3_st *st;                  /* owned */
    struct k3_view *views;             /* owned */
    uint32_t *tensors;                 /* indices in st of those that are no pads; owned */
    uint8_t *target;                   /* where its data section goes in the image; bound: NULL */
    const uint8_t *digests;            /* of the units of its data section; of the rank */
    uint8_t *results;                  /* enum k3_unit_result of the same units; of the load */
    uint32_t unit_count, piece_count;
    uint32_t tensor_count, view_count;
    uint32_t tensor_begin, view_begin; /* numbers of its first ones in the rank */
    uint32_t io_file;
    int fd; /* -1: closed */
};

struct k3_load_rank {
    const struct k3_manifest_rank *row; /* borrowed from the set */
    void *image;                        /* device memory, owned */
    uint8_t *digests;                   /* of all units of its parts; owned */
    uint32_t part_begin;                /* index in parts; row->part_count of them */
    uint32_t tensor_count, view_count;
};

/* Arrived chunks of a lane that will be checked by one operation. */
struct k3_load_batch {
    struct k3_dev_check checks[K3_LOAD_BATCH_UNITS + K3_LOAD_SLOT_UNITS];
    uint32_t check_count, unit_count, scratch_count;
};

/* Seconds the thread of a leg spent waiting, by what for. */
struct k3_load_waits {
    double read, copy, check, settle;
};

enum k3_load_event_kind { K3_TRACE_READ, K3_TRACE_COPY, K3_TRACE_CHECK };

/* One span of a trace. */
struct k3_load_event {
    double begin_seconds, end_seconds;
    uint32_t leg, lane, part, unit_begin, unit_count;
    enum k3_load_event_kind kind;
};

/* A check that is not known to be done: its last answer is not there yet. */
struct k3_load_open_check {
    struct k3_load_event event;
    const uint8_t *last_result; /* borrowed */
};

/* Of wrong units, second reads and a check of all: what still changes then is no accident. */
#define K3_LOAD_ROUND_COUNT 3u

struct k3_load_leg {
    struct k3_load *load;
    const struct k3_io_ops *io_ops;
    const struct k3_dev_ops *dev_ops;
    struct k3_io *io;
    struct k3_dev *dev;
    struct k3_load_chunk *chunks; /* of the load's table */
    struct k3_load_slots slots;
    struct k3_load_batch *batches; /* one for each lane; owned */
    struct k3_load_waits waits;
    struct k3_load_open_check *open_checks; /* a ring, of a trace; owned */
    uint64_t open_check_begin, open_check_count, open_check_cap;
    uint64_t lane_ops[K3_LANE_COUNT_MAX]; /* operations begun on each lane */
    void *bounce;                         /* one unit, for second reads */
    uint8_t *scratch, *zeros;             /* on the device, where views are bound; owned */
    struct k3_sha256 *sha;
    uint64_t chunk_count;
    uint64_t image_bytes;
    uint64_t reread_units;
    uint64_t pinned_bytes; /* slots, or images registered with the engine */
    double run_seconds;
    pthread_t thread;
    struct k3_numa_place place; /* of a GPU: its slots and threads are on its memory node */
    int place_errno;            /* the kernel refused; 0 once that was told */
    struct k3_err err;          /* of a leg on a thread of its own */
    int rc;
    uint32_t device_index;
    uint32_t rank_begin, rank_count; /* of the load's ranks */
    uint32_t depth;                  /* reads in flight at most */
    uint32_t chunk_units;            /* of one read at most */
    uint32_t stream_count;           /* places of a directory that are read side by side */
    uint32_t lane_count, batch_units;
    /* Copies take turns on lanes [0, copy_lane_count), checks on [check_lane_begin, lane_count). */
    uint32_t copy_lane_count, check_lane_begin;
    double spin_seconds; /* looked for reads and copies before the thread sleeps for one */
    char name[32];       /* "host", "cuda:0" */
    bool is_direct;      /* the engine reads past the page cache */
    bool broken;         /* the engine lost count of its reads: no further run */
};
/* Open device, memory and slots of a leg whose ranks are known; any thread. */
int k3_load_leg_open(struct k3_load_leg *leg, struct k3_err *err);
/* How its parts are read, once it is known whether they are in memory. */
void k3_load_leg_shape(struct k3_load_leg *leg);
/* load_chunks.c: chunks of its parts, into `chunks`, which has room for so many. */
uint64_t k3_load_leg_chunk_count(const struct k3_load_leg *leg);
void k3_load_leg_chunks(struct k3_load_leg *leg);
/* Before any leg is closed: what engines share may be in the context of any GPU. */
void k3_load_leg_close_engine(struct k3_load_leg *leg);
void k3_load_leg_close(struct k3_load_leg *leg);
/* Threads of an engine that copies out of the page cache, so that those of all legs on one memory
 * node are no more than its processors; 0: as the engine thinks best. */
uint32_t k3_load_leg_threads(const struct k3_load_leg *leg, bool is_direct);
/* The data plane: read, copy, check; then second reads of what came wrong.  `tells`: it calls
 * progress. */
int k3_load_leg_run(struct k3_load_leg *leg, bool tells, struct k3_err *err);
int k3_load_leg_settle(struct k3_load_leg *leg, struct k3_err *err);
/* Until all lanes are empty, also behind a failure. */
int k3_load_leg_wait(struct k3_load_leg *leg, struct k3_err *err);
/* load_place.c: bound views, taken and then each used by a part; the places of parts. */
int k3_load_bounds_take(struct k3_load *load, const struct k3_load_bind *binds, uint32_t count,
                        struct k3_err *err);
int k3_load_part_place(struct k3_load *load, struct k3_load_part *part, uint8_t *target,
                       struct k3_err *err);
int k3_load_bounds_check(const struct k3_load *load, struct k3_err *err);
/* Device address of an offset of the data section; NULL in a pad of bound views. */
void *k3_load_address(const struct k3_load_part *part, uint64_t offset);
int k3_load_scratch_open(struct k3_load_leg *leg, struct k3_err *err);
void k3_load_scratch_close(struct k3_load_leg *leg);
/* Begin copies of whole units from host memory to their places. */
int k3_load_copy_units(struct k3_load_leg *leg, uint32_t lane, const struct k3_load_units *units,
                       const uint8_t *source, struct k3_err *err);
/* Add units to the batch of checks, on the lane of their copies; flush begins them. */
int k3_load_check_units(struct k3_load_leg *leg, uint32_t lane, const struct k3_load_units *units,
                        struct k3_err *err);
int k3_load_checks_flush(struct k3_load_leg *leg, uint32_t lane, struct k3_err *err);
/* Begin a copy or a check on a lane, and count it. */
int k3_load_leg_copy(struct k3_load_leg *leg, uint32_t lane, const struct k3_dev_copy *copy,
                     struct k3_err *err);
int k3_load_leg_check(struct k3_load_leg *leg, uint32_t lane, const struct k3_dev_check *checks,
                      uint32_t check_count, struct k3_err *err);
uint64_t k3_load_file_offset(const struct k3_load_part *part, uint32_t unit);
void k3_load_trace_add(struct k3_load *load, const struct k3_load_event *event);
/* Units of a lane were read or copied from then until now. */
void k3_load_trace_units(struct k3_load_leg *leg, enum k3_load_event_kind kind,
                         const struct k3_load_units *units, uint32_t lane, double begin_seconds);
/* A batch of checks was begun; those whose answers came are done. */
void k3_load_trace_checks(struct k3_load_leg *leg, uint32_t lane);
void k3_load_trace_checks_done(struct k3_load_leg *leg);

#endif
