/* Purpose: a timed sample of a route: some chunks by the open engine of a leg, to the device.
 * Owns: nothing; what lies in images and slots afterwards means nothing.
 * Threads: the thread that opens the load.
 * Errors: those of engine and device.
 * Invariant: after success no read is in flight and the lanes are empty; after a failure the engine
 * is to be closed. */
#include "load_internal.h"

/* 64 MiB: one read for each thread of an engine, and a few hundred milliseconds on a slow drive. */
#define SAMPLE_COUNT 16u

struct sample {
    struct k3_load_leg *leg;
    uint64_t chunks[SAMPLE_COUNT]; /* numbers in the leg */
    uint32_t count, in_flight;
    uint64_t bytes; /* that arrived */
    bool has_failed;
};

static void choose(struct sample *sample, bool is_odd)
{
    const struct k3_load_leg *leg = sample->leg;
    uint64_t count = leg->chunk_count / 2;
    if (count > SAMPLE_COUNT)
        count = SAMPLE_COUNT;
    if (count > leg->depth)
        count = leg->depth;
    const uint32_t places = leg->slots.count * leg->slots.each;
    if (places && count > places)
        count = places;
    sample->count = (uint32_t)count;
    /* Spread over the leg, so that every directory has its share. */
    for (uint32_t i = 0; i < sample->count; i++)
        sample->chunks[i] = i * (leg->chunk_count / 2) / sample->count * 2 + is_odd;
}

static uint8_t *target_of(const struct sample *sample, uint32_t i)
{
    const struct k3_load_leg *leg = sample->leg;
    const struct k3_load_chunk *chunk = &leg->chunks[sample->chunks[i]];
    if (leg->slots.count && !leg->load->reaches_device)
        return leg->slots.data + (size_t)i * leg->chunk_units * K3_UNIT_BYTES;
    return leg->load->parts[chunk->part].target + (uint64_t)chunk->unit_begin * K3_UNIT_BYTES;
}

static int begin(struct sample *sample, struct k3_err *err)
{
    struct k3_load_leg *leg = sample->leg;
    struct k3_io_read reads[SAMPLE_COUNT];
    for (uint32_t i = 0; i < sample->count; i++) {
        const struct k3_load_chunk *chunk = &leg->chunks[sample->chunks[i]];
        const struct k3_load_part *part = &leg->load->parts[chunk->part];
        reads[i] = (struct k3_io_read){
            .target = target_of(sample, i),
            .offset = k3_load_file_offset(part, chunk->unit_begin),
            .bytes = (size_t)chunk->unit_count * K3_UNIT_BYTES,
            .tag = i,
            .file = part->io_file,
        };
    }
    int rc = leg->io_ops->submit(leg->io, reads, sample->count, err);
    if (!rc)
        sample->in_flight = sample->count;
    return rc;
}

/* One completion, and its copy where it lies in a slot. */
static int take(struct sample *sample, const struct k3_io_done *done, struct k3_err *err)
{
    struct k3_load_leg *leg = sample->leg;
    const struct k3_load_chunk *chunk = &leg->chunks[sample->chunks[done->tag]];
    const size_t bytes = (size_t)chunk->unit_count * K3_UNIT_BYTES;
    const struct k3_load_units units = {&leg->load->parts[chunk->part], chunk->unit_begin,
                                        chunk->unit_count};
    const uint32_t i = (uint32_t)done->tag;
    sample->in_flight--;
    sample->bytes += bytes;
    if (done->sys_errno || done->bytes != bytes)
        sample->has_failed = true;
    if (leg->load->reaches_device || sample->has_failed)
        return 0;
    return k3_load_copy_units(leg, i % leg->copy_lane_count, &units, target_of(sample, i), err);
}

int k3_load_sample(struct k3_load_leg *leg, bool is_odd, double *rate, struct k3_err *err)
{
    struct sample sample = {.leg = leg};
    struct k3_io_done done[SAMPLE_COUNT];
    *rate = 0;
    choose(&sample, is_odd);
    if (sample.count == 0)
        return 0;
    double begin_seconds = k3_load_now();
    int rc = begin(&sample, err);
    while (sample.in_flight) {
        uint32_t count;
        int reap_rc = leg->io_ops->reap(leg->io, done, SAMPLE_COUNT, &count, rc ? NULL : err);
        if (reap_rc || count == 0 || count > sample.in_flight)
            return reap_rc ? reap_rc : k3_fail(err, K3_EIO, "the engine lost reads");
        for (uint32_t i = 0; i < count; i++) {
            if (done[i].tag >= sample.count)
                return k3_fail(err, K3_EIO, "the engine gave back a read that was not asked for");
            int take_rc = take(&sample, &done[i], rc ? NULL : err);
            rc = rc ? rc : take_rc;
        }
    }
    for (uint32_t i = 0; i < leg->lane_count; i++) {
        int lane_rc = leg->dev_ops->copy_wait(leg->dev, i, K3_DEV_WAIT_ALL, rc ? NULL : err);
        rc = rc ? rc : lane_rc;
    }
    double seconds = k3_load_now() - begin_seconds;
    if (!rc && !sample.has_failed && seconds > 0)
        *rate = (double)sample.bytes / seconds;
    return rc;
}
