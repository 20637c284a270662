/* Purpose: turn SIGINT and SIGTERM into a flag.
 * Owns: the disposition of both signals.
 * Threads: the flag may be read by any; k3_stop_install() before they start.
 * Errors: none.
 * Invariant: a second signal ends the process, whatever the work is stuck in; but for one that
 * comes at once with the first, and is the same wish. */
#include "stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* timeout(1) sends its signal to the process and to the group that it is in: two at once. */
#define SAME_WISH_NS                                                                               \
    INT64_C(500000000) /* far above what lies between those, far below a person                    \
                        */

/* Lock-free, so the handler may store them (C11 7.14.1.1). */
static atomic_bool stop_flag;
static _Atomic int64_t stop_ns; /* of the first signal */
_Static_assert(ATOMIC_BOOL_LOCK_FREE == 2, "the signal handler stores an atomic_bool");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the signal handler stores 64 bits");

static void on_signal(int number)
{
    struct timespec now;
    struct sigaction action;
    clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail, and POSIX allows it in a handler */
    int64_t now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (!atomic_exchange_explicit(&stop_flag, true, memory_order_relaxed)) {
        atomic_store_explicit(&stop_ns, now_ns, memory_order_relaxed);
        return;
    }
    if (now_ns - atomic_load_explicit(&stop_ns, memory_order_relaxed) < SAME_WISH_NS)
        return;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, NULL);
    raise(number); /* takes effect when this handler returns */
}

void k3_stop_install(void)
{
    struct sigaction action;
    static const int number[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        /* nohup and background jobs start us with the signal ignored: that wish is kept. */
        if (sigaction(number[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            continue;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_signal;
        sigemptyset(&action.sa_mask);
        sigaddset(&action.sa_mask, SIGINT); /* one at a time: the first stores its time whole */
        sigaddset(&action.sa_mask, SIGTERM);
        action.sa_flags = SA_RESTART; /* work polls the flag; system calls need not end early */
        sigaction(number[i], &action, NULL);
    }
}

bool k3_stop_requested(void)
{
    return atomic_load_explicit(&stop_flag, memory_order_relaxed);
}
