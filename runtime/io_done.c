/* Purpose: the completions of an io engine on their way to the thread that drives it.
 * Owns: the ring of completions.
 * Threads: any puts; the driving thread admits and takes.
 * Errors: K3_ENOMEM; K3_EUSAGE for reads that cannot be asked for.
 * Invariant: what is admitted and not taken is <= depth, so the ring never overflows. */
#include "io_done.h"

#include <errno.h>
#include <stdlib.h>

int k3_io_dones_init(struct k3_io_dones *dones, const char *engine, uint32_t depth,
                     struct k3_err *err)
{
    *dones = (struct k3_io_dones){.engine = engine, .depth = depth};
    pthread_mutex_init(&dones->lock, NULL);
    pthread_cond_init(&dones->has_done, NULL);
    dones->ring = calloc(depth, sizeof *dones->ring);
    if (!dones->ring)
        return k3_fail_sys(err, ENOMEM, "io %s: cannot open with depth %u", engine, depth);
    return 0;
}

void k3_io_dones_fini(struct k3_io_dones *dones)
{
    pthread_cond_destroy(&dones->has_done);
    pthread_mutex_destroy(&dones->lock);
    free(dones->ring);
}

int k3_io_dones_admit(struct k3_io_dones *dones, const struct k3_io_files *files,
                      const struct k3_io_read *reads, uint32_t count, struct k3_err *err)
{
    if (count > dones->depth - dones->in_flight)
        return k3_fail(err, K3_EUSAGE, "io %s: %u reads on top of %u in flight, depth is %u",
                       dones->engine, count, dones->in_flight, dones->depth);
    for (uint32_t i = 0; i < count; i++) {
        int rc = k3_io_files_check(files, &reads[i], dones->engine, err);
        if (rc)
            return rc;
    }
    dones->in_flight += count;
    return 0;
}

void k3_io_dones_put(struct k3_io_dones *dones, const struct k3_io_way *way)
{
    pthread_mutex_lock(&dones->lock);
    dones->ring[(dones->begin + dones->count) % dones->depth] = (struct k3_io_done){
        way->read.tag, way->sys_errno, way->done_bytes};
    dones->count++;
    atomic_store_explicit(&dones->has_any, true, memory_order_relaxed);
    pthread_cond_signal(&dones->has_done);
    pthread_mutex_unlock(&dones->lock);
}

/* Under the lock. */
static void take_some(struct k3_io_dones *dones, struct k3_io_done *done, uint32_t max,
                      uint32_t *count)
{
    while (*count < max && dones->count) {
        done[(*count)++] = dones->ring[dones->begin];
        dones->begin = (dones->begin + 1) % dones->depth;
        dones->count--;
    }
    atomic_store_explicit(&dones->has_any, dones->count > 0, memory_order_relaxed);
    dones->in_flight -= *count;
}

void k3_io_dones_take(struct k3_io_dones *dones, struct k3_io_done *done, uint32_t max,
                      uint32_t *count)
{
    *count = 0;
    if (max == 0 || dones->in_flight == 0)
        return;
    pthread_mutex_lock(&dones->lock);
    while (dones->count == 0)
        pthread_cond_wait(&dones->has_done, &dones->lock);
    take_some(dones, done, max, count);
    pthread_mutex_unlock(&dones->lock);
}

void k3_io_dones_poll(struct k3_io_dones *dones, struct k3_io_done *done, uint32_t max,
                      uint32_t *count)
{
    *count = 0;
    if (max == 0 || !atomic_load_explicit(&dones->has_any, memory_order_relaxed))
        return;
    pthread_mutex_lock(&dones->lock);
    take_some(dones, done, max, count);
    pthread_mutex_unlock(&dones->lock);
}
