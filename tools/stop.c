/* Purpose: turn SIGINT and SIGTERM into a flag.
 * Owns: the disposition of both signals.
 * Threads: the flag may be read by any; k3_stop_install() before they start.
 * Errors: none.
 * Invariant: a second signal always ends the process, whatever the work is stuck in. */
#include "stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

/* Lock-free, so the handler may store it (C11 7.14.1.1). */
static atomic_bool stop_flag;
_Static_assert(ATOMIC_BOOL_LOCK_FREE == 2, "the signal handler stores an atomic_bool");

static void on_signal(int number)
{
    (void)number;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    atomic_store_explicit(&stop_flag, true, memory_order_relaxed);
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
        action.sa_flags = SA_RESTART; /* work polls the flag; system calls need not end early */
        sigaction(number[i], &action, NULL);
    }
}

bool k3_stop_requested(void)
{
    return atomic_load_explicit(&stop_flag, memory_order_relaxed);
}
