/* Purpose: start a thread.
 * Owns: nothing.
 * Threads: called from any.
 * Errors: errno values of pthread_create.
 * Invariant: the caller's signal mask is as it was. */
#include "thread.h"

#include <signal.h>

int k3_thread_start(pthread_t *thread, void *(*serve)(void *), void *context)
{
    pthread_attr_t attributes;
    int sys_errno = pthread_attr_init(&attributes);
    if (sys_errno)
        return sys_errno;
    sys_errno = pthread_attr_setstacksize(&attributes, K3_THREAD_STACK_BYTES);
    if (!sys_errno) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        sys_errno = pthread_create(thread, &attributes, serve, context);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attributes);
    return sys_errno;
}
