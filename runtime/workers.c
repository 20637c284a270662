/* Purpose: run numbered tasks on a bounded set of threads.
 * Owns: its threads and their error values, until k3_workers_run returns.
 * Threads: called from any; the tasks run on the calling thread and on worker_count - 1 more.
 * Errors: that of the lowest failed task; K3_ECANCELED; K3_EIO and K3_ENOMEM when a thread cannot
 * be made.
 * Invariants: a task that was taken is run, and tasks are taken in order: so when any task has
 * failed, every lower one was run, and the lowest failure does not depend on timing.  Threads take
 * no signals: those stay with the caller. */
#include "workers.h"

#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

struct crew {
    const struct k3_workers_options *options;
    _Atomic uint64_t next;       /* the task to take */
    _Atomic uint64_t done_count; /* tasks that were run */
    atomic_bool halt;            /* a task failed, or a thread could not be made */
};

struct worker {
    struct crew *crew;
    pthread_t thread;
    uint64_t failed_task;
    struct k3_err err;
    uint32_t index;
};

static void *work(void *context)
{
    struct worker *worker = context;
    struct crew *crew = worker->crew;
    const struct k3_workers_options *options = crew->options;
    while (!atomic_load(&crew->halt) && atomic_load(&crew->next) < options->task_count) {
        if (options->stop && options->stop())
            break;
        uint64_t task = atomic_fetch_add(&crew->next, 1);
        if (task >= options->task_count)
            break;
        int rc = options->task(options->context, worker->index, task, &worker->err);
        if (rc) {
            k3_fail(&worker->err, rc, "task %llu failed", (unsigned long long)task);
            worker->failed_task = task;
            atomic_store(&crew->halt, true);
            break;
        }
        atomic_fetch_add(&crew->done_count, 1);
    }
    return NULL;
}

/* Start the workers behind the first one; *started counts them with it. */
static int start(struct worker *workers, uint32_t count, uint32_t *started, struct k3_err *err)
{
    int sys_errno = 0;
    for (*started = 1; *started < count; ++*started) {
        sys_errno = k3_thread_start(&workers[*started].thread, work, &workers[*started]);
        if (sys_errno)
            break;
    }
    if (sys_errno)
        return k3_fail_sys(err, sys_errno, "cannot make thread %u of %u", *started + 1, count);
    return 0;
}

/* The error of the lowest failed task. */
static int outcome(const struct worker *workers, uint32_t count, struct k3_err *err)
{
    const struct worker *lowest = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (workers[i].err.rc && (!lowest || workers[i].failed_task < lowest->failed_task))
            lowest = &workers[i];
    if (!lowest)
        return 0;
    if (err && !err->rc)
        *err = lowest->err;
    return lowest->err.rc;
}

int k3_workers_run(const struct k3_workers_options *options, struct k3_err *err)
{
    uint32_t count = options->worker_count ? options->worker_count : 1;
    if (options->task_count < count)
        count = options->task_count ? (uint32_t)options->task_count : 1;
    struct crew crew = {.options = options};
    struct worker *workers = calloc(count, sizeof *workers);
    if (!workers)
        return k3_fail_sys(err, ENOMEM, "cannot get memory for %u workers", count);
    for (uint32_t i = 0; i < count; i++) {
        workers[i].crew = &crew;
        workers[i].index = i;
        k3_err_init(&workers[i].err);
    }
    uint32_t started;
    int rc = start(workers, count, &started, err);
    if (rc)
        atomic_store(&crew.halt, true);
    work(&workers[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    if (!rc)
        rc = outcome(workers, started, err);
    if (!rc && atomic_load(&crew.done_count) < options->task_count)
        rc = k3_fail(err, K3_ECANCELED, "stopped on request after %llu of %llu tasks",
                     (unsigned long long)atomic_load(&crew.done_count),
                     (unsigned long long)options->task_count);
    free(workers);
    return rc;
}

uint32_t k3_cpu_count(void)
{
    /* The kernel refuses a mask smaller than its own: grow until it fits (1024 to 65536
     * processors). */
    for (unsigned cpus = 1024; cpus <= 65536; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set)
            break;
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        int count = sched_getaffinity(0, bytes, set) ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (count > 0)
            return (uint32_t)count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}
