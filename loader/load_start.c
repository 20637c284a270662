/* Purpose: run a load: its legs beside each other, progress, cancel, the gate at the end.
 * Owns: the threads of legs but the first, while a run lasts.
 * Threads: the caller's thread runs the first leg and alone calls progress.
 * Errors: that of the first leg that failed; K3_ECANCELED; K3_ECORRUPT from the gate.
 * Invariants: all legs have ended when a run returns; a load is ready only when every single unit
 * was found right (without verification: when every read came in full). */
#include "load_internal.h"

#include "thread.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* Progress at least this often. */
#define TELL_BYTES   ((uint64_t)64 << 20)
#define TELL_SECONDS 0.1
#define STEP_NAP_NS  1000000
#define NAP_NS       20000000 /* while the caller has nothing left to do but tell */

int k3_load_stopped(struct k3_load *load, struct k3_err *err)
{
    if (!atomic_load_explicit(&load->stop, memory_order_relaxed))
        return 0;
    return k3_fail(err, K3_ECANCELED, "stopped on request after %" PRIu64 " of %" PRIu64 " bytes",
                   atomic_load(&load->done_bytes), load->image_bytes);
}

int k3_load_tell(struct k3_load *load, bool due, struct k3_err *err)
{
    int rc = k3_load_stopped(load, err);
    if (rc || !load->progress)
        return rc;
    double now = k3_load_now();
    uint64_t done_bytes = atomic_load_explicit(&load->done_bytes, memory_order_relaxed);
    if (!due && done_bytes - load->told_bytes < TELL_BYTES &&
        now - load->told_seconds < TELL_SECONDS)
        return 0;
    load->told_bytes = done_bytes;
    load->told_seconds = now;
    if (load->progress(load->progress_context, done_bytes, load->image_bytes))
        atomic_store(&load->stop, true);
    return k3_load_stopped(load, err);
}

/* ---- legs ---- */

/* On its memory node; the caller's thread is given back as it was. */
static int run_placed(struct k3_load_leg *leg, bool tells, struct k3_err *err)
{
    cpu_set_t saved;
    (void)k3_numa_enter(&leg->place, &saved); /* refused: the engine has told already */
    int rc = k3_load_leg_run(leg, tells, err);
    k3_numa_leave(&saved);
    return rc;
}

static void *run_leg(void *context)
{
    struct k3_load_leg *leg = context;
    leg->rc = run_placed(leg, false, &leg->err);
    if (leg->rc)
        atomic_store(&leg->load->stop, true); /* the others need not go on */
    atomic_fetch_sub(&leg->load->running_count, 1);
    return NULL;
}

static int start_leg(struct k3_load_leg *leg, struct k3_err *err)
{
    k3_err_init(&leg->err);
    leg->rc = 0;
    atomic_fetch_add(&leg->load->running_count, 1);
    int sys_errno = k3_thread_start(&leg->thread, run_leg, leg);
    if (!sys_errno)
        return 0;
    atomic_fetch_sub(&leg->load->running_count, 1);
    return k3_fail_sys(err, sys_errno, "%s: cannot make a thread", leg->name);
}

/* The first leg is done: tell how the others get on. */
static int wait_legs(struct k3_load *load, struct k3_err *err)
{
    int rc = 0;
    while (atomic_load(&load->running_count)) {
        struct timespec nap = {0, NAP_NS};
        nanosleep(&nap, NULL);
        int tell_rc = rc ? 0 : k3_load_tell(load, false, err);
        if (!rc)
            rc = tell_rc;
    }
    return rc;
}

/* The reason a run failed: the first leg whose failure was not that it was told to stop. */
static int leg_failure(const struct k3_load *load, uint32_t first, uint32_t end, int rc,
                       const struct k3_err *own, struct k3_err *err)
{
    for (uint32_t i = first; i < end; i++)
        if (load->legs[i].rc && load->legs[i].rc != K3_ECANCELED && (!rc || rc == K3_ECANCELED))
            return k3_fail_as(err, &load->legs[i].err);
    return rc ? k3_fail_as(err, own) : 0;
}

static int run_legs(struct k3_load *load, struct k3_err *err)
{
    struct k3_err own;
    uint32_t started = 1;
    k3_err_init(&own);
    int rc = 0;
    while (!rc && started < load->leg_count) {
        rc = start_leg(&load->legs[started], &own);
        started += !rc;
    }
    if (!rc)
        rc = run_placed(&load->legs[0], true, &own);
    if (rc)
        atomic_store(&load->stop, true);
    int wait_rc = wait_legs(load, rc ? NULL : &own);
    if (!rc)
        rc = wait_rc;
    for (uint32_t i = 1; i < started; i++)
        pthread_join(load->legs[i].thread, NULL);
    return leg_failure(load, 1, started, rc, &own, err);
}

/* ---- the gate ---- */

/* Looks at every unit once more, in the order of the images and not by the table of chunks: a fault
 * in that table must not hand out a byte. */
static int pass_gate(const struct k3_load *load, struct k3_err *err)
{
    uint64_t right_count = 0;
    for (uint64_t i = 0; i < load->unit_count; i++)
        right_count += load->results[i] == K3_UNIT_RIGHT;
    if (!load->verify || right_count == load->unit_count)
        return 0;
    return k3_fail(err, K3_ECORRUPT, "%" PRIu64 " of %" PRIu64 " units were not checked",
                   load->unit_count - right_count, load->unit_count);
}

/* ---- a run ---- */

static void begin_run(struct k3_load *load)
{
    load->ready = false;
    memset(load->results, K3_UNIT_UNKNOWN, (size_t)load->unit_count);
    atomic_store(&load->stop, false);
    atomic_store(&load->done_bytes, 0);
    atomic_store(&load->paced_bytes, 0);
    load->told_bytes = 0;
    load->begin_seconds = load->told_seconds = k3_load_now();
    k3_load_trace_begin(load);
}

static int end_run(struct k3_load *load, int rc, struct k3_err *err)
{
    if (!rc)
        rc = pass_gate(load, err);
    if (!rc)
        rc = k3_load_tell(load, true, err);
    load->run_seconds = k3_load_now() - load->begin_seconds;
    /* Of a run that failed too: that is when a trace is wanted most. */
    int trace_rc = k3_load_trace_write(load, rc ? NULL : err);
    if (!rc)
        rc = trace_rc;
    load->ready = rc == 0;
    return rc;
}

static int check_idle(const struct k3_load *load, struct k3_err *err)
{
    if (!load)
        return k3_fail(err, K3_EUSAGE, "there is no load to run: did k3_load_open fail?");
    if (load->is_stepping)
        return k3_fail(err, K3_EUSAGE, "a run of this load is under way: step it to its end first");
    return 0;
}

int k3_load_run(struct k3_load *load, struct k3_err *err)
{
    k3_load_begin(err);
    int rc = check_idle(load, err);
    if (rc)
        return rc;
    begin_run(load);
    rc = run_legs(load, err);
    return end_run(load, rc, err);
}

/* ---- steps ---- */

static int start_steps(struct k3_load *load, struct k3_err *err)
{
    int rc = 0;
    begin_run(load);
    load->started_count = 0;
    while (!rc && load->started_count < load->leg_count) {
        rc = start_leg(&load->legs[load->started_count], err);
        load->started_count += !rc;
    }
    load->is_stepping = true;
    if (rc)
        atomic_store(&load->stop, true);
    return rc;
}

void k3_load_join_steps(struct k3_load *load)
{
    for (uint32_t i = 0; load->is_stepping && i < load->started_count; i++)
        pthread_join(load->legs[i].thread, NULL);
    load->is_stepping = false;
}

int k3_load_step(struct k3_load *load, uint32_t milliseconds, int *finished, struct k3_err *err)
{
    struct k3_err own;
    k3_err_init(&own);
    k3_load_begin(err);
    *finished = 1;
    if (!load)
        return check_idle(load, err);
    int rc = load->is_stepping ? 0 : start_steps(load, &own);
    const double until_seconds = k3_load_now() + milliseconds * 1e-3;
    while (!rc && atomic_load(&load->running_count)) {
        struct timespec time = {0, STEP_NAP_NS};
        if (k3_load_now() >= until_seconds) {
            *finished = 0;
            (void)k3_load_tell(load, false, NULL); /* a cancel shows when the legs have ended */
            return 0;
        }
        nanosleep(&time, NULL);
        (void)k3_load_tell(load, false, NULL);
    }
    const uint32_t started_count = load->started_count;
    k3_load_join_steps(load);
    for (uint32_t i = 0; i < started_count && !rc; i++)
        if (load->legs[i].rc)
            rc = k3_fail_as(&own, &load->legs[i].err);
    rc = leg_failure(load, 0, started_count, rc, &own, err);
    return end_run(load, rc, err);
}

void k3_load_cancel(struct k3_load *load)
{
    atomic_store(&load->stop, true);
}
