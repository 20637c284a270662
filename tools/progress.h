/* Progress on stderr: a bar on a terminal, else a line every few seconds. */
#ifndef K3_PROGRESS_H
#define K3_PROGRESS_H

#include "k3_err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct k3_progress {
    _Atomic uint64_t done_bytes;
    uint64_t total_bytes; /* 0: not known */
    uint64_t begin_ns;
    const char *verb; /* borrowed until the end */
    bool quiet;
    bool terminal;
    bool color;
    bool ticking; /* the thread runs */
    bool ended;
    bool bar_shown;
    pthread_t thread;
    pthread_mutex_t lock; /* guards ended, bar_shown and writing */
    pthread_cond_t wake;
};

/* Start; memory is the caller's and must stay in place until k3_progress_end().  quiet: show
 * nothing. Never fails: without a thread only the last line is shown. */
void k3_progress_begin(struct k3_progress *progress, const char *verb, uint64_t total_bytes,
                       bool quiet);

/* Count bytes done.  Any thread, no lock. */
void k3_progress_add(struct k3_progress *progress, uint64_t bytes);

/* Print one line of talk without tearing the bar; nothing when quiet.  Any thread. */
void k3_progress_say(struct k3_progress *progress, const char *format, ...) K3_PRINTF(2, 3);

/* Stop the thread, remove the bar and print "VERB: bytes in time, rate".  Returns the time taken.
 */
uint64_t k3_progress_end(struct k3_progress *progress);

/* Monotonic clock. */
uint64_t k3_now_ns(void);

#endif
