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

/* Slots of several chunks are so many at least: fewer would wait for each other. */
#define WIDE_COUNT_MIN 8u

void k3_load_slots_choose(struct k3_load_slots *slots, uint64_t bytes)
{
    uint64_t chunks = bytes / K3_LOAD_CHUNK_BYTES;
    if (chunks > K3_LOAD_SLOT_COUNT_MAX)
        chunks = K3_LOAD_SLOT_COUNT_MAX;
    slots->each = K3_LOAD_SLOT_CHUNKS;
    while (slots->each > 1 && chunks / slots->each < WIDE_COUNT_MIN)
        slots->each /= 2;
    slots->count = chunks < 2 ? 2 : (uint32_t)chunks / slots->each;
}

size_t k3_load_slots_bytes(const struct k3_load_slots *slots)
{
    return (size_t)slots->count * slots->each * K3_LOAD_CHUNK_BYTES;
}

int k3_load_slots_open(struct k3_load_leg *leg, struct k3_err *err)
{
    struct k3_load_slots *slots = &leg->slots;
    const size_t bytes = k3_load_slots_bytes(slots);
    void *data = NULL;
    slots->free = calloc(slots->count, sizeof *slots->free);
    slots->awaited = calloc(slots->count, sizeof *slots->awaited);
    slots->copying = calloc((size_t)slots->count * slots->each, sizeof *slots->copying);
    if (!slots->free || !slots->awaited || !slots->copying)
        return k3_fail(err, K3_ENOMEM, "no memory for %u slots", slots->count);
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
    uint64_t at = (uint64_t)chunk->slot * slots->each + chunk->slot_at;
    return slots->data + at * K3_LOAD_CHUNK_BYTES;
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
    return &slots->copying[(slots->copying_begin + i) % (slots->count * slots->each)];
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

int k3_load_slots_pop(struct k3_load_leg *leg, struct k3_err *err)
{
    struct k3_load_slots *slots = &leg->slots;
    const struct k3_load_copying copying = *copying_at(slots, 0);
    double begin_seconds = k3_load_now();
    int rc = leg->dev_ops->copy_wait(leg->dev, copying.lane, copying.op_count, err);
    leg->waits.copy += k3_load_now() - begin_seconds;
    if (rc)
        return rc;
    trace(leg, &copying);
    slots->copying_begin = (slots->copying_begin + 1) % (slots->count * slots->each);
    slots->copying_count--;
    if (copying.slot != K3_LOAD_SLOT_NONE)
        k3_load_slot_free(leg, copying.slot);
    return 0;
}

void k3_load_slots_trace(struct k3_load_leg *leg)
{
    for (uint32_t i = 0; i < leg->slots.copying_count; i++)
        trace(leg, copying_at(&leg->slots, i));
}
