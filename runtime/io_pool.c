/* Purpose: threads that each have one synchronous read of an io engine under way.
 * Owns: its threads, the queue of reads that wait, the completions.
 * Threads: one drives; its own touch the queues under the lock, and the targets of reads that are
 * in flight. Errors: K3_EUSAGE, K3_ENOMEM, K3_EIO.  A failed read is a completion with sys_errno.
 * Invariants: waiting + running + done = in flight <= depth, so both queues fit without growing; a
 * read is continued until all bytes came, the file ended or the system refused. */
#include "io_pool.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>

/* A queue of 4096 reads is past what any disk or network gains from. */
#define DEPTH_MAX 4096u
/* Each thread holds one read; more than this many compete for locks in the kernel. */
#define THREAD_COUNT_MAX 256u

static void *serve(void *context)
{
    struct k3_io_pool *pool = context;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->closing && pool->job_count == 0)
            pthread_cond_wait(&pool->has_work, &pool->lock);
        if (pool->closing)
            break;
        struct k3_io_job job = pool->jobs[pool->job_begin];
        pool->job_begin = (pool->job_begin + 1) % pool->options.depth;
        pool->job_count--;
        pthread_mutex_unlock(&pool->lock);
        for (bool is_done = job.way.read.bytes == 0; !is_done;) {
            struct k3_io_step step = k3_io_way_next(&job.way);
            ssize_t n = pool->options.read(pool->options.context, &job, &step);
            is_done = k3_io_way_take(&job.way, &step, n);
        }
        k3_io_dones_put(&pool->dones, &job.way);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int start_threads(struct k3_io_pool *pool, uint32_t count, struct k3_err *err)
{
    int sys_errno = 0;
    while (!sys_errno && pool->thread_count < count) {
        sys_errno = k3_thread_start(&pool->threads[pool->thread_count], serve, pool);
        pool->thread_count += !sys_errno;
    }
    if (sys_errno)
        return k3_fail_sys(err, sys_errno, "io %s: cannot make thread %u of %u",
                           pool->options.engine, pool->thread_count + 1, count);
    return 0;
}

int k3_io_pool_open(struct k3_io_pool *pool, const struct k3_io_pool_options *options,
                    struct k3_err *err)
{
    const uint32_t depth = options->depth;
    uint32_t count = options->thread_count < depth ? options->thread_count : depth;
    *pool = (struct k3_io_pool){.closing = false};
    if (depth == 0 || depth > DEPTH_MAX)
        return k3_fail(err, K3_EUSAGE, "io %s: depth %u is not in 1..%u", options->engine, depth,
                       DEPTH_MAX);
    if (count > THREAD_COUNT_MAX)
        count = THREAD_COUNT_MAX;
    pool->options = *options;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->has_work, NULL);
    pool->jobs = calloc(depth, sizeof *pool->jobs);
    pool->threads = calloc(count, sizeof *pool->threads);
    int rc = k3_io_dones_init(&pool->dones, options->engine, depth, err);
    if (!rc)
        rc = pool->jobs && pool->threads
                 ? start_threads(pool, count, err)
                 : k3_fail_sys(err, ENOMEM, "io %s: cannot open with depth %u", options->engine,
                               depth);
    if (rc)
        k3_io_pool_close(pool);
    return rc;
}

void k3_io_pool_close(struct k3_io_pool *pool)
{
    if (pool->options.depth == 0) /* not open */
        return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->has_work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->has_work);
    pthread_mutex_destroy(&pool->lock);
    k3_io_dones_fini(&pool->dones);
    free(pool->threads);
    free(pool->jobs);
    *pool = (struct k3_io_pool){.closing = true};
}

void k3_io_pool_begin(struct k3_io_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
}

struct k3_io_job *k3_io_pool_next(struct k3_io_pool *pool)
{
    uint32_t at = (pool->job_begin + pool->job_count++) % pool->options.depth;
    pthread_cond_signal(&pool->has_work);
    return &pool->jobs[at];
}

void k3_io_pool_end(struct k3_io_pool *pool)
{
    pthread_mutex_unlock(&pool->lock);
}
