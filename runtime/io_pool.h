/* Threads that each have one system call under way, and the queue of reads that wait for them: what
 * the engines share whose reads are calls that block.
 *
 * A read may be cut into pieces that several threads bring: then few bytes are in flight however
 * many threads there are, and each read is done soon. */
#ifndef K3_IO_POOL_H
#define K3_IO_POOL_H

#include "io_done.h"

/* A read that waits or runs. */
struct k3_io_job {
    struct k3_io_way way;
    void *file, *base;    /* the engine's own */
    size_t begun_bytes;   /* handed out to threads, from the start */
    size_t arrived_bytes; /* up to the first piece that came short */
    uint32_t piece_count; /* under way */
    int sys_errno;        /* of that piece */
};

struct k3_io_pool_options {
    const char *engine; /* its name, for messages; borrowed */
    uint32_t depth;
    uint32_t thread_count; /* no more are made than can have work, or than a pool may have */
    size_t piece_bytes;    /* of a read, for one thread; 0: reads are not cut */
    /* On a thread of the pool, one call: bytes, or a negative errno. */
    ssize_t (*read)(void *context, const struct k3_io_job *job, const struct k3_io_step *step);
    void *context;
};

struct k3_io_pool {
    struct k3_io_pool_options options;
    pthread_mutex_t lock;
    pthread_cond_t has_work; /* a read waits, or the pool closes */
    struct k3_io_job *jobs;  /* `depth` of them; owned */
    uint32_t *free, *queue;  /* a stack, and a ring of those that wait; owned */
    struct k3_io_dones dones;
    pthread_t *threads; /* owned */
    uint32_t free_count, queue_begin, queue_count, thread_count;
    uint32_t idle_count; /* threads that wait for work */
    size_t fresh_count;  /* pieces that were added since begin */
    bool closing;
};

/* Fails: K3_EUSAGE (depth), K3_ENOMEM, K3_EIO (no thread); nothing is left open then. */
int k3_io_pool_open(struct k3_io_pool *pool, const struct k3_io_pool_options *options,
                    struct k3_err *err);
/* Drops what waits and waits for what runs, so nothing is written to a target afterwards.  Also of
 * a pool of zeros. */
void k3_io_pool_close(struct k3_io_pool *pool);

/* Driving thread, behind k3_io_dones_admit: begin, add for each read, end. */
void k3_io_pool_begin(struct k3_io_pool *pool);
/* The job may be filled further before end. */
struct k3_io_job *k3_io_pool_add(struct k3_io_pool *pool, const struct k3_io_read *read,
                                 const struct k3_io_file *file);
void k3_io_pool_end(struct k3_io_pool *pool);

#endif
