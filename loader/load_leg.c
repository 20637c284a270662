/* Purpose: a leg of a load: one device, the images of its ranks, the slots.
 * Owns: device, images, slots, engine of the leg.
 * Threads: legs are opened beside each other; a leg belongs to one thread at a time.
 * Errors: those of the device; K3_EUNSUPPORTED (does not fit), K3_ENOMEM.
 * Invariants: what is closed was drained first: engine, then device, then memory. */
#include "gpu_api.h"
#include "load_internal.h"
#include "mem.h"
#include "sha256.h"
#include "thread.h"
#include "workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory that reads cannot land in is filled through slots; bound memory too, since a read brings
 * what goes to several places. */
static bool needs_slots(const struct k3_load_leg *leg)
{
    return (!leg->dev_ops->is_host_memory && !leg->load->reaches_device) || leg->load->bound_count;
}

/* Lanes of a device that is filled through slots. */
static void choose_lanes(struct k3_load_leg *leg)
{
    leg->batch_units = K3_LOAD_BATCH_UNITS;
    if (leg->dev_ops->is_host_memory) {
        leg->lane_count = leg->copy_lane_count = K3_LOAD_LIKE_LANE_COUNT;
        return;
    }
    leg->lane_count = K3_LOAD_GPU_LANE_COUNT;
    leg->copy_lane_count = leg->check_lane_begin = K3_LOAD_COPY_LANE_COUNT;
}

static void choose_sizes(struct k3_load_leg *leg)
{
    const struct k3_load *load = leg->load;
    bool has_slots = needs_slots(leg);
    bool is_gpu = has_slots || !leg->dev_ops->is_host_memory;
    uint32_t cpus = k3_cpu_count();
    uint64_t bytes = load->staging_bytes ? load->staging_bytes
                     : is_gpu            ? K3_LOAD_POOL_BYTES
                                         : K3_LOAD_STAGING_BYTES;
    uint64_t count = bytes / K3_LOAD_CHUNK_BYTES;
    if (has_slots) {
        k3_load_slots_choose(&leg->slots, bytes);
        choose_lanes(leg);
        return;
    }
    /* Two at least: one arrives while the other is being checked. */
    leg->depth = (uint32_t)(count < 2 ? 2 : count > K3_LOAD_DEPTH_MAX ? K3_LOAD_DEPTH_MAX : count);
    leg->chunk_units = K3_LOAD_CHUNK_UNITS;
    leg->stream_count = 1;
    if (is_gpu) {
        leg->lane_count = K3_LOAD_LIKE_LANE_COUNT;
        leg->batch_units = K3_LOAD_BATCH_UNITS;
        return;
    }
    leg->lane_count = !load->verify ? 1 : cpus < K3_LANE_COUNT_MAX ? cpus : K3_LANE_COUNT_MAX;
    leg->batch_units = 1;
}

/* Looked for what comes next before the thread sleeps for it: long against a copy of a slot. */
#define SPIN_SECONDS 200e-6
#define SPIN_CPUS    4u /* with fewer a thread that spins would take the time of one that reads */

void k3_load_leg_shape(struct k3_load_leg *leg)
{
    struct k3_load_slots *slots = &leg->slots;
    const bool is_hot = leg->load->is_hot;
    if (slots->count == 0)
        return;
    /* Legs share the drives. */
    const uint32_t share = (uint32_t)k3_div_up(leg->load->drive_count * K3_LOAD_DRIVE_READS,
                                               leg->load->leg_count);
    const bool is_few = !is_hot && share && share <= K3_LOAD_FEW_READS;
    k3_load_slots_shape(slots, is_few ? K3_LOAD_FEW_UNITS : K3_LOAD_SLOT_UNITS,
                        is_hot   ? K3_LOAD_SLOT_UNITS
                        : is_few ? K3_LOAD_FEW_UNITS
                        : share  ? K3_LOAD_MANY_UNITS
                                 : K3_LOAD_CHUNK_UNITS);
    leg->chunk_units = slots->chunk_units;
    leg->stream_count = is_few ? K3_LOAD_STREAM_COUNT : 1;
    /* Half of the slots are being copied from.  Where drives are the slower side, two will do: one
     * on the bus, one behind it. */
    const uint32_t copied = is_hot || slots->count <= 4 ? slots->count / 2 : 2;
    leg->depth = (slots->count - copied) * slots->each;
    if (!is_hot && share && leg->depth > share)
        leg->depth = share < 2 ? 2 : share;
    if (is_hot && !leg->dev_ops->is_host_memory && k3_cpu_count() >= SPIN_CPUS)
        leg->spin_seconds = SPIN_SECONDS;
}

/* ---- memory nodes ---- */

/* Fewer do not fill the bus of one device, however many devices share the processors. */
#define IO_THREADS_MIN 4u

static void find_place(struct k3_load_leg *leg)
{
    char bus_id[K3_GPU_BUS_ID_BYTES];
    leg->place = (struct k3_numa_place){.node = K3_NUMA_NONE};
    if (leg->dev_ops != &k3_dev_cuda && leg->dev_ops != &k3_dev_hip)
        return;
    enum k3_gpu_kind kind = leg->dev_ops == &k3_dev_cuda ? K3_GPU_CUDA : K3_GPU_HIP;
    if (k3_gpu_bus_id(kind, leg->device_index, bus_id, NULL) == 0)
        k3_numa_find("", bus_id, &leg->place);
}

uint32_t k3_load_leg_threads(const struct k3_load_leg *leg, bool is_direct)
{
    const struct k3_load *load = leg->load;
    uint32_t sharers = 1;
    for (uint32_t i = 0; i < load->leg_count; i++)
        sharers += &load->legs[i] != leg && load->legs[i].place.node == leg->place.node;
    /* Threads of direct reads wait for drives, and take no processor meanwhile. */
    if (is_direct || (leg->slots.count == 0 && leg->place.cpu_count == 0 && sharers < 2))
        return 0;
    uint32_t cpus = leg->place.cpu_count ? leg->place.cpu_count : k3_cpu_count();
    /* The thread of the leg has a processor to itself: it spins where it waits for a copy, and a
     * reader beside it would hold up all (H200, 16 processors: 50.6 GB/s with 15, 47.7 with 16). */
    uint32_t count = cpus / sharers - (leg->slots.count && cpus / sharers > 1);
    return count < IO_THREADS_MIN ? IO_THREADS_MIN : count;
}

/* ---- open and close ---- */

struct filling {
    struct k3_load_leg *leg;
    int rc;
    struct k3_err err;
};

static void *fill_slots_beside(void *context)
{
    struct filling *filling = context;
    filling->rc = k3_load_slots_open(filling->leg, &filling->err);
    return NULL;
}

/* Fresh pages take the kernel, or the host of a virtual machine, as long as a context takes to
 * start: both at once. */
static int open_device_and_slots(struct k3_load_leg *leg, struct k3_err *err)
{
    const struct k3_dev_options options = {.index = leg->device_index,
                                           .lane_count = leg->lane_count,
                                           .after_event = leg->load->after_event};
    struct filling filling = {.leg = leg};
    pthread_t thread;
    if (leg->slots.count == 0)
        return leg->dev_ops->open(&options, &leg->dev, err);
    k3_err_init(&filling.err);
    int sys_errno = k3_thread_start(&thread, fill_slots_beside, &filling);
    if (sys_errno)
        return k3_fail_sys(err, sys_errno, "cannot make a thread for the slots of %s", leg->name);
    int rc = leg->dev_ops->open(&options, &leg->dev, err);
    pthread_join(thread, NULL);
    return rc ? rc : filling.rc ? k3_fail_as(err, &filling.err) : 0;
}

static int open_images(struct k3_load_leg *leg, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t r = 0; r < leg->rank_count && !rc && !leg->load->bound_count; r++) {
        struct k3_load_rank *rank = &leg->load->ranks[leg->rank_begin + r];
        rc = leg->dev_ops->alloc(leg->dev, rank->row->image_bytes, &rank->image, err);
    }
    return rc;
}

int k3_load_leg_open(struct k3_load_leg *leg, struct k3_err *err)
{
    if (leg->dev_ops == &k3_dev_host)
        snprintf(leg->name, sizeof leg->name, "%s", leg->dev_ops->name);
    else
        snprintf(leg->name, sizeof leg->name, "%s:%u", leg->dev_ops->name, leg->device_index);
    choose_sizes(leg);
    int rc = leg->dev_ops->probe(leg->device_index, err);
    if (!rc) {
        find_place(leg);
        rc = open_device_and_slots(leg, err);
    }
    leg->batches = calloc(leg->lane_count, sizeof *leg->batches);
    if (!rc && !leg->batches)
        rc = k3_fail(err, K3_ENOMEM, "no memory for the checks of %u lanes", leg->lane_count);
    if (!rc)
        rc = k3_sha256_open(&leg->sha, err);
    if (!rc)
        rc = k3_mem_alloc(K3_UNIT_BYTES, &leg->bounce, err);
    if (!rc)
        rc = open_images(leg, err);
    if (!rc)
        rc = k3_load_scratch_open(leg, err);
    return rc ? rc : k3_load_slots_pin(leg, err);
}

void k3_load_leg_close_engine(struct k3_load_leg *leg)
{
    if (leg->io)
        leg->io_ops->close(leg->io);
    leg->io = NULL;
}

void k3_load_leg_close(struct k3_load_leg *leg)
{
    /* The engine first: it drains, so nothing writes into memory that goes away below. */
    k3_load_leg_close_engine(leg);
    for (uint32_t i = 0; leg->dev && i < leg->lane_count; i++)
        (void)leg->dev_ops->copy_wait(leg->dev, i, K3_DEV_WAIT_ALL, NULL);
    for (uint32_t r = 0; r < leg->rank_count; r++) {
        struct k3_load_rank *rank = &leg->load->ranks[leg->rank_begin + r];
        if (rank->image)
            leg->dev_ops->release(leg->dev, rank->image, rank->row->image_bytes);
        rank->image = NULL;
    }
    k3_load_scratch_close(leg);
    k3_load_slots_drop(leg);
    if (leg->dev)
        leg->dev_ops->close(leg->dev);
    free(leg->batches);
    k3_sha256_close(leg->sha);
    k3_mem_free(leg->bounce, K3_UNIT_BYTES);
}
