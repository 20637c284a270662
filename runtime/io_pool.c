/* Purpose: threads that each have one read of an io engine, or a piece of one, under way.
 * Owns: its threads, the queue of reads that wait, the completions.
 * Threads: one drives; its own touch the queues under the lock, and the targets of reads that are
 * in flight. Errors: K3_EUSAGE, K3_ENOMEM, K3_EIO.  A failed read is a completion with sys_errno.
 * Invariants: waiting + running + done = in flight <= depth, so all queues fit without growing; a
 * read is continued until all bytes came, the file ended or the system refused; a job keeps its
 * place until its last piece ended. */
#include "io_pool.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>

/* A queue of 4096 reads is past what any disk or network gains from. */
#define DEPTH_MAX 4096u
/* Each thread holds one read; more than this many compete for locks in the kernel. */
#define THREAD_COUNT_MAX 256u

/* ---- pieces: under the lock ---- */

/* The next piece of the oldest read that waits, as a read of its own. */
static struct k3_io_job *take_piece(struct k3_io_pool *pool, struct k3_io_way *piece)
{
    struct k3_io_job *job = &pool->jobs[pool->queue[pool->queue_begin]];
    const size_t left = job->way.read.bytes - job->begun_bytes, most = pool->options.piece_bytes;
    *piece = job->way;
    piece->read.target = (char *)piece->read.target + job->begun_bytes;
    piece->read.offset += job->begun_bytes;
    piece->read.bytes = most && left > most ? most : left;
    job->begun_bytes += piece->read.bytes;
    job->piece_count++;
    if (job->begun_bytes == job->way.read.bytes) {
        pool->queue_begin = (pool->queue_begin + 1) % pool->options.depth;
        pool->queue_count--;
    }
    return job;
}

/* The read is done with its last piece.  What arrived of it ends where a piece came short first. */
static void end_piece(struct k3_io_pool *pool, struct k3_io_job *job, const struct k3_io_way *piece)
{
    const size_t end = (size_t)(piece->read.offset - job->way.read.offset) + piece->done_bytes;
    if (piece->done_bytes < piece->read.bytes && end < job->arrived_bytes) {
        job->arrived_bytes = end;
        job->sys_errno = piece->sys_errno;
    }
    if (--job->piece_count || job->begun_bytes < job->way.read.bytes)
        return;
    job->way.done_bytes = job->arrived_bytes;
    job->way.sys_errno = job->sys_errno;
    k3_io_dones_put(&pool->dones, &job->way);
    pool->free[pool->free_count++] = (uint32_t)(job - pool->jobs);
}

static void *serve(void *context)
{
    struct k3_io_pool *pool = context;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->closing && pool->queue_count == 0) {
            pool->idle_count++;
            pthread_cond_wait(&pool->has_work, &pool->lock);
            pool->idle_count--;
        }
        if (pool->closing)
            break;
        struct k3_io_way piece;
        struct k3_io_job *job = take_piece(pool, &piece);
        pthread_mutex_unlock(&pool->lock);
        for (bool is_done = piece.read.bytes == 0; !is_done;) {
            struct k3_io_step step = k3_io_way_next(&piece);
            ssize_t n = pool->options.read(pool->options.context, job, &step);
            is_done = k3_io_way_take(&piece, &step, n);
        }
        pthread_mutex_lock(&pool->lock);
        end_piece(pool, job, &piece);
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
    uint32_t count = options->thread_count;
    if (!options->piece_bytes && count > depth)
        count = depth;
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
    pool->free = calloc(depth, sizeof *pool->free);
    pool->queue = calloc(depth, sizeof *pool->queue);
    pool->threads = calloc(count, sizeof *pool->threads);
    for (uint32_t i = 0; pool->free && i < depth; i++)
        pool->free[pool->free_count++] = depth - 1 - i;
    int rc = k3_io_dones_init(&pool->dones, options->engine, depth, err);
    if (!rc)
        rc = pool->jobs && pool->free && pool->queue && pool->threads
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
    free(pool->queue);
    free(pool->free);
    free(pool->jobs);
    *pool = (struct k3_io_pool){.closing = true};
}

void k3_io_pool_begin(struct k3_io_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
}

struct k3_io_job *k3_io_pool_add(struct k3_io_pool *pool, const struct k3_io_read *read,
                                 const struct k3_io_file *file)
{
    const uint32_t index = pool->free[--pool->free_count];
    const size_t most = pool->options.piece_bytes;
    struct k3_io_job *job = &pool->jobs[index];
    pool->queue[(pool->queue_begin + pool->queue_count++) % pool->options.depth] = index;
    *job = (struct k3_io_job){.arrived_bytes = read->bytes};
    k3_io_way_begin(&job->way, read, file);
    pool->fresh_count += most && read->bytes > most ? (read->bytes + most - 1) / most : 1;
    return job;
}

/* As many threads are woken as have something to do. */
void k3_io_pool_end(struct k3_io_pool *pool)
{
    for (size_t i = 0; i < pool->fresh_count && i < pool->idle_count; i++)
        pthread_cond_signal(&pool->has_work);
    pool->fresh_count = 0;
    pthread_mutex_unlock(&pool->lock);
}
