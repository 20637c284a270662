/* Threads of ours: a stack of a known size, and no signals. */
#ifndef K3_THREAD_H
#define K3_THREAD_H

#include <pthread.h>

/* The stack of each thread.  8 MiB is what Linux gives when nobody sets a limit, so drivers and
 * compilers of the GPU that run on our threads have been tried with it; only touched pages cost. */
#define K3_THREAD_STACK_BYTES ((size_t)8 << 20)

/* As pthread_create: 0, or an errno and *thread is not set.  The stack does not follow ulimit -s,
 * and the thread takes no signals: those stay with the caller's. */
int k3_thread_start(pthread_t *thread, void *(*serve)(void *), void *context);

#endif
