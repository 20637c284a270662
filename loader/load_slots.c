/* Purpose: the pool of a leg: its memory, which slots are free, which are being copied from.
 * Owns: memory and tables of the slots.
 * Threads: open beside the start of the device; all else the thread of the leg.
 * Errors: K3_ENOMEM; K3_EDEVICE.
 * Invariants: no allocation after open; a slot is free, or waits for reads, or is being copied
 * from; it is free again when its last copy is done. */
#include "load_internal.h"
#include "mem.h"

#include <stdlib.h>
#include <string.h>

/* So many at least, where the pool has room: fewer would wait for each other. */
#define COUNT_MIN 8u

void k3_load_slots_choose(struct k3_load_slots *slots, uint64_t bytes)
{
    const uint64_t units = bytes / K3_UNIT_BYTES;
    slots->units_max = K3_LOAD_SLOT_UNITS;
    while (slots->units_max > 1 && units / slots->units_max < COUNT_MIN)
        slots->units_max /= 2;
    const uint64_t count = units / slots->units_max;
    slots->pool_units = slots->units_max * (count < 2 ? 2
                                            : count > K3_LOAD_SLOT_COUNT_MAX
                                                ? K3_LOAD_SLOT_COUNT_MAX
                                                : (uint32_t)count);
    k3_load_slots_shape(slots, K3_LOAD_SLOT_UNITS, K3_LOAD_CHUNK_UNITS);
}

void k3_load_slots_shape(struct k3_load_slots *slots, uint32_t slot_units, uint32_t read_units)
{
    slots->units = slots->units_max < slot_units ? slots->units_max : slot_units;
    slots->count = slots->pool_units / slots->units;
    slots->chunk_units = slots->units < read_units ? slots->units : read_units;
    slots->each = slots->units / slots->chunk_units;
}

size_t k3_load_slots_bytes(const struct k3_load_slots *slots)
{
    return (size_t)slots->pool_units * K3_UNIT_BYTES;
}

int k3_load_slots_open(struct k3_load_leg *leg, struct k3_err *err)
{
    struct k3_load_slots *slots = &leg->slots;
    const size_t bytes = k3_load_slots_bytes(slots);
    void *data = NULL;
    /* For the most slots, and the most gaps in them, that any shape has. */
    slots->free = calloc(slots->pool_units, sizeof *slots->free);
    slots->awaited = calloc(slots->pool_units, sizeof *slots->awaited);
    slots->copying_max = slots->pool_units;
    slots->copying = calloc(slots->copying_max, sizeof *slots->copying);
    if (!slots->free || !slots->awaited || !slots->copying)
        return k3_fail(err, K3_ENOMEM, "no memory for %u slots", slots->pool_units);
    k3_load_slots_reset(slots);
    int rc = k3_mem_alloc(bytes, &data, err);
    if (rc)
        return rc;
    slots->data = data;
    leg->place_errno = k3_numa_prefer(&leg->place, data, bytes);
    memset(data, 0, bytes);
    return 0;
}

int k3_load_slots_pin(struct k3_load_leg *leg, struct k3_err *err)
{
    struct k3_load_slots *slots = &leg->slots;
    const size_t bytes = k3_load_slots_bytes(slots);
    if (slots->count == 0)
        return 0;
    int rc = leg->dev_ops->pin(leg->dev, slots->data, bytes, err);
    slots->is_pinned = !rc;
    leg->pinned_bytes = bytes;
    return rc;
}

void k3_load_slots_drop(struct k3_load_leg *leg)
{
    struct k3_load_slots *slots = &leg->slots;
    const size_t bytes = k3_load_slots_bytes(slots);
    if (slots->is_pinned)
        leg->dev_ops->unpin(leg->dev, slots->data, bytes);
    k3_mem_free(slots->data, bytes);
    free(slots->free);
    free(slots->awaited);
    free(slots->copying);
    memset(slots, 0, sizeof *slots);
    leg->pinned_bytes = 0;
}

void k3_load_slots_reset(struct k3_load_slots *slots)
{
    slots->free_count = 0;
    slots->copying_begin = 0;
    slots->copying_count = 0;
    for (uint32_t i = 0; i < slots->count; i++)
        slots->free[slots->free_count++] = slots->count - 1 - i;
}

/* ---- reads ---- */

uint32_t k3_load_slots_room(const struct k3_load_leg *leg, uint64_t next)
{
    uint32_t begun = 0; /* of the slot that the next chunk shares with those before it */
    if (next < leg->chunk_count && leg->chunks[next].slot_at)
        begun = (uint32_t)(leg->chunks[next].slot_chunks - leg->chunks[next].slot_at);
    return begun + leg->slots.free_count * leg->slots.each;
}

uint8_t *k3_load_slot_data(const struct k3_load_leg *leg, const struct k3_load_chunk *chunk)
{
    const struct k3_load_slots *slots = &leg->slots;
    uint64_t units = (uint64_t)chunk->slot * slots->units + chunk->slot_at * slots->chunk_units;
    return slots->data + units * K3_UNIT_BYTES;
}

uint8_t *k3_load_slot_take(struct k3_load_leg *leg, uint64_t number)
{
    struct k3_load_slots *slots = &leg->slots;
    struct k3_load_chunk *chunk = &leg->chunks[number];
    if (chunk->slot_at) {
        chunk->slot = chunk[-1].slot;
        return k3_load_slot_data(leg, chunk);
    }
    if (slots->free_count == 0)
        return NULL;
    chunk->slot = (uint16_t)slots->free[--slots->free_count];
    slots->awaited[chunk->slot] = chunk->slot_chunks;
    return k3_load_slot_data(leg, chunk);
}

bool k3_load_slot_came(struct k3_load_leg *leg, uint64_t number)
{
    return --leg->slots.awaited[leg->chunks[number].slot] == 0;
}

void k3_load_slot_free(struct k3_load_leg *leg, uint32_t slot)
{
    leg->slots.free[leg->slots.free_count++] = slot;
}

/* ---- copies ---- */

static struct k3_load_copying *copying_at(const struct k3_load_slots *slots, uint32_t i)
{
    return &slots->copying[(slots->copying_begin + i) % slots->copying_max];
}

void k3_load_slots_push(struct k3_load_leg *leg, const struct k3_load_copying *copying)
{
    struct k3_load_slots *slots = &leg->slots;
    *copying_at(slots, slots->copying_count++) = *copying;
}

static void trace(struct k3_load_leg *leg, const struct k3_load_copying *copying)
{
    k3_load_trace_units(leg, K3_TRACE_COPY, &copying->units, copying->lane, copying->begin_seconds);
}

int k3_load_slots_ask(struct k3_load_leg *leg, bool *is_done, struct k3_err *err)
{
    const struct k3_load_copying *oldest = copying_at(&leg->slots, 0);
    return leg->dev_ops->copy_done(leg->dev, oldest->lane, oldest->op_count, is_done, err);
}

int k3_load_slots_pop(struct k3_load_leg *leg, struct k3_load_copying *copying, struct k3_err *err)
{
    struct k3_load_slots *slots = &leg->slots;
    *copying = *copying_at(slots, 0);
    int rc = leg->dev_ops->copy_wait(leg->dev, copying->lane, copying->op_count, err);
    if (rc)
        return rc;
    trace(leg, copying);
    slots->copying_begin = (slots->copying_begin + 1) % slots->copying_max;
    slots->copying_count--;
    if (copying->slot != K3_LOAD_SLOT_NONE)
        k3_load_slot_free(leg, copying->slot);
    return 0;
}

void k3_load_slots_trace(struct k3_load_leg *leg)
{
    for (uint32_t i = 0; i < leg->slots.copying_count; i++)
        trace(leg, copying_at(&leg->slots, i));
}
