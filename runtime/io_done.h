/* The completions of an io engine on their way to the thread that drives it. */
#ifndef K3_IO_DONE_H
#define K3_IO_DONE_H

#include "io_direct.h"

#include <pthread.h>
#include <stdatomic.h>

struct k3_io_dones {
    pthread_mutex_t lock;
    pthread_cond_t has_done;
    struct k3_io_done *ring; /* of `depth`; owned */
    const char *engine;      /* its name, for messages */
    uint32_t depth;
    uint32_t begin, count; /* under the lock */
    atomic_bool has_any;   /* count > 0, to look at without the lock */
    uint32_t in_flight;    /* the driving thread's: admitted and not yet taken */
};

/* depth: reads in flight at most, so put never finds it full.  Fails: K3_ENOMEM, and even then fini
 * follows. */
int k3_io_dones_init(struct k3_io_dones *dones, const char *engine, uint32_t depth,
                     struct k3_err *err);
void k3_io_dones_fini(struct k3_io_dones *dones);

/* Driving thread: may these reads be asked for on top of what is in flight?  All are counted, or
 * none: K3_EUSAGE. */
int k3_io_dones_admit(struct k3_io_dones *dones, const struct k3_io_files *files,
                      const struct k3_io_read *reads, uint32_t count, struct k3_err *err);
/* Any thread: one read of those ended. */
void k3_io_dones_put(struct k3_io_dones *dones, const struct k3_io_way *way);
/* Driving thread: up to max of them; waits for the first, but not with none in flight. */
void k3_io_dones_take(struct k3_io_dones *dones, struct k3_io_done *done, uint32_t max,
                      uint32_t *count);
/* The same, without waiting. */
void k3_io_dones_poll(struct k3_io_dones *dones, struct k3_io_done *done, uint32_t max,
                      uint32_t *count);

#endif
