/* A bounded set of threads that take numbered tasks from one counter; the first failure stops the
 * rest. */
#ifndef K3_WORKERS_H
#define K3_WORKERS_H

#include "k3_err.h"

#include <stdbool.h>
#include <stdint.h>

/* One task; `worker` is 0..worker_count-1, so per-worker memory needs no lock. */
typedef int (*k3_task_fn)(void *context, uint32_t worker, uint64_t task, struct k3_err *err);
/* Asked before each task; true: take no more tasks. */
typedef bool (*k3_stop_fn)(void);

struct k3_workers_options {
    uint32_t worker_count; /* 1: runs on the calling thread */
    uint64_t task_count;
    k3_task_fn task;
    void *context;
    k3_stop_fn stop; /* may be NULL */
};

/* Run all tasks; returns when every thread has ended.  The error of the lowest failed task number
 * wins, so the message does not depend on timing.  Stopped early: K3_ECANCELED.  Fails also:
 * K3_EIO/K3_ENOMEM when no thread can be made. */
int k3_workers_run(const struct k3_workers_options *options, struct k3_err *err);

/* Cores this thread may run on. */
uint32_t k3_cpu_count(void);

#endif
