/* Purpose: runtime/workers.c and mem.c.
 * Owns: nothing.
 * Threads: those of the workers; what tasks share is atomic or by worker.
 * Errors: a failed assertion ends the test.
 * Invariant: assertions run on the main thread only (cmocka knows no other). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bytes.h"
#include "mem.h"
#include "workers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define TASK_COUNT   5000u
#define WORKER_COUNT 8u

struct tally {
    _Atomic uint32_t run[TASK_COUNT];
    uint64_t by_worker[WORKER_COUNT]; /* no lock: one worker, one place */
    uint64_t fail_from, fail_step;    /* tasks that fail */
    atomic_bool wrong_worker, sees_signals;
};

static struct tally tally;
static atomic_uint asked;
static unsigned stop_after;
static atomic_bool others_ran;

static int count_task(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct tally *own = context;
    if (worker >= WORKER_COUNT) {
        atomic_store(&own->wrong_worker, true);
        return 0;
    }
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (worker > 0 && !sigismember(&blocked, SIGINT))
        atomic_store(&own->sees_signals, true);
    own->by_worker[worker]++;
    atomic_fetch_add(&own->run[task], 1);
    if (task % 64 == 0)
        sched_yield();
    /* Slow enough for the word of a failure to get round before all tasks are taken. */
    if (own->fail_step && task > own->fail_from + 2 * WORKER_COUNT)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (own->fail_step && task >= own->fail_from && (task - own->fail_from) % own->fail_step == 0)
        return k3_fail(err, K3_ECORRUPT, "task number %u", (unsigned)task);
    return 0;
}

static bool stop(void)
{
    return atomic_fetch_add(&asked, 1) >= stop_after;
}

static int run(uint32_t workers, uint64_t tasks, k3_stop_fn stop_fn, struct k3_err *err)
{
    struct k3_workers_options options = {.worker_count = workers,
                                         .task_count = tasks,
                                         .task = count_task,
                                         .context = &tally,
                                         .stop = stop_fn};
    k3_err_init(err);
    atomic_store(&asked, 0);
    return k3_workers_run(&options, err);
}

static void test_each_once(void **state)
{
    (void)state;
    struct k3_err err;
    static const uint32_t workers[] = {0, 1, 2, WORKER_COUNT};
    for (size_t w = 0; w < 4; w++) {
        memset(&tally, 0, sizeof tally);
        assert_int_equal(run(workers[w], TASK_COUNT, NULL, &err), 0);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < WORKER_COUNT; i++)
            sum += tally.by_worker[i];
        assert_int_equal(sum, TASK_COUNT);
        for (uint32_t i = 0; i < TASK_COUNT; i++)
            assert_int_equal(tally.run[i], 1);
        assert_false(tally.wrong_worker);
        assert_false(tally.sees_signals);
    }
    memset(&tally, 0, sizeof tally);
    assert_int_equal(run(WORKER_COUNT, 0, NULL, &err), 0);
    assert_int_equal(run(WORKER_COUNT, 1, NULL, &err), 0);
    assert_int_equal(tally.run[0], 1);
}

/* Whatever the timing: the lowest failed task is the one that is told, and all below it ran. */
static void test_lowest_failure(void **state)
{
    (void)state;
    for (int turn = 0; turn < 200; turn++) {
        struct k3_err err;
        memset(&tally, 0, sizeof tally);
        tally.fail_from = 137;
        tally.fail_step = 1;
        assert_int_equal(run(WORKER_COUNT, TASK_COUNT, NULL, &err), K3_ECORRUPT);
        assert_string_equal(err.text, "task number 137");
        for (uint32_t i = 0; i <= 137; i++)
            assert_int_equal(tally.run[i], 1);
        assert_int_equal(tally.run[TASK_COUNT - 1], 0);
    }
}

static int silent_task(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    (void)context;
    (void)worker;
    (void)err;
    return task == 3 ? K3_EIO : 0;
}

/* One failure stops all the others. */
static void test_failure_stops(void **state)
{
    (void)state;
    struct k3_err err;
    memset(&tally, 0, sizeof tally);
    tally.fail_from = 137;
    tally.fail_step = TASK_COUNT;
    assert_int_equal(run(WORKER_COUNT, TASK_COUNT, NULL, &err), K3_ECORRUPT);
    assert_string_equal(err.text, "task number 137");
    assert_int_equal(tally.run[TASK_COUNT - 1], 0);
}

/* A task that fails without a word still fails the run. */
static void test_silent_failure(void **state)
{
    (void)state;
    struct k3_err err;
    struct k3_workers_options options = {.worker_count = 4, .task_count = 9, .task = silent_task};
    k3_err_init(&err);
    assert_int_equal(k3_workers_run(&options, &err), K3_EIO);
    assert_int_equal(err.rc, K3_EIO);
    assert_int_equal(k3_workers_run(&options, NULL), K3_EIO);
}

static void test_stop(void **state)
{
    (void)state;
    struct k3_err err;
    static const uint32_t workers[] = {1, WORKER_COUNT};
    for (size_t w = 0; w < 2; w++) {
        memset(&tally, 0, sizeof tally);
        stop_after = 100;
        assert_int_equal(run(workers[w], TASK_COUNT, stop, &err), K3_ECANCELED);
        uint32_t count = 0;
        for (uint32_t i = 0; i < TASK_COUNT; i++)
            count += tally.run[i];
        assert_int_equal(count, 100);
        /* A failure weighs more than a stop. */
        memset(&tally, 0, sizeof tally);
        tally.fail_from = 50;
        tally.fail_step = TASK_COUNT;
        assert_int_equal(run(workers[w], TASK_COUNT, stop, &err), K3_ECORRUPT);
        /* A stop that comes when all was done is none. */
        memset(&tally, 0, sizeof tally);
        stop_after = 1000000;
        assert_int_equal(run(workers[w], TASK_COUNT, stop, &err), 0);
    }
    assert_true(k3_cpu_count() >= 1);
}

static int take_stack_size(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    (void)task;
    size_t *sizes = context;
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes))
        return k3_fail(err, K3_EIO, "pthread_getattr_np");
    pthread_attr_getstacksize(&attributes, &sizes[worker]);
    pthread_attr_destroy(&attributes);
    while (worker == 0 && !atomic_load(&others_ran))
        sched_yield();
    atomic_store(&others_ran, true);
    return 0;
}

/* ulimit -s sets the default, and a small one is less than what our deepest calls take. */
static void test_stack(void **state)
{
    (void)state;
    pthread_attr_t small;
    pthread_attr_init(&small);
    assert_int_equal(pthread_attr_setstacksize(&small, 64 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&small), 0);
    size_t sizes[2] = {0};
    struct k3_workers_options options = {
        .worker_count = 2, .task_count = 2, .task = take_stack_size, .context = sizes};
    assert_int_equal(k3_workers_run(&options, NULL), 0);
    assert_true(sizes[1] >= 8 << 20);
}

static void test_mem(void **state)
{
    (void)state;
    static const size_t sizes[] = {
        0, 1, 4096, 4097, 524288, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, 9000001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *data;
        assert_int_equal(k3_mem_alloc(sizes[i], &data, NULL), 0);
        uintptr_t align = sizes[i] >= (2u << 20) ? 2u << 20 : 4096;
        assert_int_equal((uintptr_t)data % align, 0);
        assert_true(k3_is_zero(data, sizes[i]));
        memset(data, 0xA5, sizes[i]);
        k3_mem_free(data, sizes[i]);
    }
    void *data = &data;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_mem_alloc((size_t)1 << 62, &data, &err), K3_ENOMEM);
    assert_null(data);
    assert_int_equal(k3_mem_alloc(SIZE_MAX, &data, NULL), K3_ENOMEM);
    k3_mem_free(NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_once),     cmocka_unit_test(test_lowest_failure),
        cmocka_unit_test(test_failure_stops), cmocka_unit_test(test_silent_failure),
        cmocka_unit_test(test_stop),          cmocka_unit_test(test_mem),
        cmocka_unit_test(test_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
