/* The bounded pool of a leg: pinned slots that reads land in where they cannot land in the image,
 * and the queue of copies out of them.  Not installed.
 *
 * A slot is copied as a whole.  Pages that are in memory come by one read for each slot, which the
 * threads of the engine cut among themselves.  A drive or two are read unit by unit, each into a
 * slot of its own; more drives by reads of 1 MiB, file systems whose drives are not known by reads
 * of 4 MiB, and of these what lies one behind the other in a part shares a slot.
 */
#ifndef K3_LOAD_SLOTS_H
#define K3_LOAD_SLOTS_H

#include "dev.h"
#include "k3_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct k3_load_chunk;
struct k3_load_leg;
struct k3_load_part;

/* Units of one read of a drive: 4 MiB fill the pipe of every drive and bus measured (design section
 * 9). */
#define K3_LOAD_CHUNK_UNITS 8u
#define K3_LOAD_CHUNK_BYTES ((uint64_t)K3_LOAD_CHUNK_UNITS * K3_UNIT_BYTES)
/* Of drives that are known: 16 reads in flight on each.  Where that is few, a read brings one unit:
 * what is in flight then stays in the caches, and of a virtual disk, whose host copies, 8 MiB in
 * flight came faster than 16 MiB (docs/BENCHMARKS.md).  Where it is many, copies as small would
 * keep the bus waiting. */
#define K3_LOAD_DRIVE_READS 16u
#define K3_LOAD_FEW_READS   (2 * K3_LOAD_DRIVE_READS)
#define K3_LOAD_FEW_UNITS   1u
#define K3_LOAD_MANY_UNITS  2u
/* Of a slot at most: copies of 8 MiB take what the bus gives (H200: 54.3 of 55.3 GB/s). */
#define K3_LOAD_SLOT_UNITS     16u
#define K3_LOAD_SLOT_COUNT_MAX 512u /* 4 GiB of pinned memory: more never helped */

/* Some units of a part. */
struct k3_load_units {
    const struct k3_load_part *part;
    uint32_t unit_begin, unit_count; /* from the start of the data section */
};

/* Chunks that are being copied from their slot: done when the lane has done so many operations. */
struct k3_load_copying {
    struct k3_load_units units;
    uint64_t op_count;
    double begin_seconds;
    uint32_t lane;
    uint32_t slot; /* free again then; K3_LOAD_SLOT_NONE: another copy of it is behind this one */
};
#define K3_LOAD_SLOT_NONE UINT32_MAX

struct k3_load_slots {
    uint8_t *data;                   /* pinned; owned */
    uint32_t *free;                  /* a stack: what was used last is in the caches still; owned */
    uint8_t *awaited;                /* of each slot: chunks that did not come back yet; owned */
    struct k3_load_copying *copying; /* a ring of copying_max, oldest first; owned */
    uint32_t count;                  /* 0: reads land in the image */
    uint32_t units;                  /* of a slot: units_max or less */
    uint32_t each;                   /* chunks in a slot */
    uint32_t chunk_units;            /* of a chunk at most */
    uint32_t pool_units, units_max;  /* of the memory; of a slot in any shape */
    uint32_t free_count, copying_begin, copying_count, copying_max;
    bool is_pinned;
};

/* Slots for a pool of so many bytes: two at least. */
void k3_load_slots_choose(struct k3_load_slots *slots, uint64_t bytes);
/* Before a run: the same memory in slots of up to so many units, filled by reads of up to so many.
 */
void k3_load_slots_shape(struct k3_load_slots *slots, uint32_t slot_units, uint32_t read_units);
size_t k3_load_slots_bytes(const struct k3_load_slots *slots);
/* Memory, touched, so that registering it finds huge pages; another thread may start the device
 * meanwhile.  Pinned once both are there.  K3_ENOMEM, K3_EDEVICE. */
int k3_load_slots_open(struct k3_load_leg *leg, struct k3_err *err);
int k3_load_slots_pin(struct k3_load_leg *leg, struct k3_err *err);
/* No read and no copy under way. */
void k3_load_slots_drop(struct k3_load_leg *leg);
/* All are free: when all lanes are empty. */
void k3_load_slots_reset(struct k3_load_slots *slots);

/* Chunks from `next` on that could be asked for now. */
uint32_t k3_load_slots_room(const struct k3_load_leg *leg, uint64_t next);
/* Where the read of a chunk may land; NULL: no slot is free.  Chunks take turns in their order. */
uint8_t *k3_load_slot_take(struct k3_load_leg *leg, uint64_t number);
uint8_t *k3_load_slot_data(const struct k3_load_leg *leg, const struct k3_load_chunk *chunk);
/* A chunk came back, whatever it brought.  True: it was the last of its slot, which is to be copied
 * from or freed. */
bool k3_load_slot_came(struct k3_load_leg *leg, uint64_t number);
void k3_load_slot_free(struct k3_load_leg *leg, uint32_t slot);
/* A copy was begun.  ask: is the oldest done?  pop waits for it. */
void k3_load_slots_push(struct k3_load_leg *leg, const struct k3_load_copying *copying);
int k3_load_slots_ask(struct k3_load_leg *leg, bool *is_done, struct k3_err *err);
int k3_load_slots_pop(struct k3_load_leg *leg, struct k3_load_copying *copying, struct k3_err *err);
/* What of them is in the trace when all lanes were waited for. */
void k3_load_slots_trace(struct k3_load_leg *leg);

#endif
