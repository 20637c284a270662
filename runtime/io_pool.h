/* Threads that each have one synchronous read under way, and the queue of reads that wait for them:
 * what the engines share whose reads are calls that block. */
#ifndef K3_IO_POOL_H
#define K3_IO_POOL_H

#include "io_done.h"

/* A read that waits or runs. */
struct k3_io_job {
    struct k3_io_way way;
    void *file, *base; /* the engine's own */
};

struct k3_io_pool_options {
    const char *engine; /* its name, for messages; borrowed */
    uint32_t depth;
    uint32_t thread_count; /* no more are made than depth, or than a pool may have */
    /* On a thread of the pool, one call: bytes, or a negative errno. */
    ssize_t (*read)(void *context, const struct k3_io_job *job, const struct k3_io_step *step);
    void *context;
};

struct k3_io_pool {
    struct k3_io_pool_options options;
    pthread_mutex_t lock;
    pthread_cond_t has_work; /* a read waits, or the pool closes */
    struct k3_io_job *jobs;  /* ring of `depth` reads that wait; owned */
    struct k3_io_dones dones;
    pthread_t *threads; /* owned */
    uint32_t job_begin, job_count, thread_count;
    bool closing;
};

/* Fails: K3_EUSAGE (depth), K3_ENOMEM, K3_EIO (no thread); nothing is left open then. */
int k3_io_pool_open(struct k3_io_pool *pool, const struct k3_io_pool_options *options,
                    struct k3_err *err);
/* Drops what waits and waits for what runs, so nothing is written to a target afterwards.  Also of
 * a pool of zeros. */
void k3_io_pool_close(struct k3_io_pool *pool);

/* Driving thread, behind k3_io_dones_admit: begin, next for each read, end. */
void k3_io_pool_begin(struct k3_io_pool *pool);
struct k3_io_job *k3_io_pool_next(struct k3_io_pool *pool); /* to be filled before end */
void k3_io_pool_end(struct k3_io_pool *pool);

#endif
