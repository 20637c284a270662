/* Purpose: the devices "cuda" and "hip" over fake drivers (fake_gpu.h): the conformance suite, each
 * call failing at each of its turns, faults of the hardware, drivers that are not there.
 *   test_dev_gpu             all of it; runs itself again with the folder of each fake driver
 *   test_dev_gpu real [KIND...]   over the drivers of this machine, or of LD_LIBRARY_PATH; one line
 *                            where there is none, which is a failure for a KIND that is named
 *   test_dev_gpu fake KIND   over what LD_LIBRARY_PATH names
 *   test_dev_gpu refused KIND TEXT   opening fails, and says TEXT
 * Owns: a report in a temporary file.
 * Threads: one drives the devices.
 * Errors: a failed assertion ends the test.
 * Invariants: nothing is left in a driver after a close, whatever failed before; a failed call
 * never lets a unit pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dev_suite.h"
#include "gpu_use.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPORT_BYTES 16384
#define TURNS_MAX    40 /* a call with more turns is failed at its first and last ones only */
#define FAIL_CODE    999
#define THREADS      3
#define COUNT_OF(a)  (sizeof(a) / sizeof *(a))

/* ---- errors of any driver ---- */

static void test_index(void **state)
{
    (void)state;
    struct k3_dev_options options = {.index = 1000, .lane_count = 1};
    struct k3_dev *dev;
    struct k3_err err;
    char text[64];
    k3_err_init(&err);
    assert_int_equal(ops->probe(1000, &err), K3_EUNSUPPORTED);
    snprintf(text, sizeof text, "device %s:1000: there are ", ops->name);
    assert_non_null(strstr(err.text, text));
    k3_err_init(&err);
    assert_int_equal(ops->open(&options, &dev, &err), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, text));
    assert_null(dev);
}

/* More than any device has, and what no size_t counts. */
static void test_no_memory(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {(uint64_t)1 << 50, UINT64_MAX};
    struct use use;
    assert_int_equal(open_use(&use, 0, NULL), 0);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct k3_err err;
        char needed[64];
        void *data = &use;
        k3_err_init(&err);
        assert_int_equal(ops->alloc(use.dev, sizes[i], &data, &err), K3_EUNSUPPORTED);
        assert_null(data);
        snprintf(needed, sizeof needed, "%llu bytes of its memory are needed",
                 (unsigned long long)sizes[i]);
        assert_non_null(strstr(err.text, needed));
        assert_non_null(strstr(err.text, " are free"));
    }
    assert_int_equal(prepare(&use, NULL), 0);
    assert_int_equal(work(&use, NULL), 0);
    assert_right(use.results);
    close_use(&use);
}

/* ---- the thread's own device ---- */

static void *own_context;
static int own_device;

static void have_own(void)
{
    own_device = 1;
    if (kind == K3_GPU_HIP) {
        assert_int_equal(api->hip_device_set(own_device), 0);
        return;
    }
    assert_int_equal(api->cuda_context_retain(&own_context, own_device), 0);
    assert_int_equal(api->cuda_context_push(own_context), 0);
}

/* It is on top, and nothing is below. */
static void assert_own(void)
{
    void *context = NULL, *below;
    int device = -1;
    if (kind == K3_GPU_HIP) {
        assert_int_equal(api->hip_device_get_current(&device), 0);
        assert_int_equal(device, own_device);
        return;
    }
    assert_int_equal(api->cuda_context_pop(&context), 0);
    assert_ptr_equal(context, own_context);
    assert_int_not_equal(api->cuda_context_pop(&below), 0);
    assert_int_equal(api->cuda_context_push(context), 0);
}

static void drop_own(void)
{
    void *context;
    if (kind == K3_GPU_HIP) {
        assert_int_equal(api->hip_device_set(0), 0);
        return;
    }
    assert_int_equal(api->cuda_context_pop(&context), 0);
    assert_int_equal(api->cuda_context_release(own_device), 0);
}

/* An engine that shares the thread finds its device as it was, after what works and what fails. */
static void test_own_device(void **state)
{
    (void)state;
    struct use use;
    struct k3_dev_options options = {.index = 0, .lane_count = 1};
    struct k3_dev *dev;
    void *data;
    have_own();
    assert_int_equal(open_use(&use, 0, NULL), 0);
    assert_own();
    assert_int_equal(prepare(&use, NULL), 0);
    assert_own();
    assert_int_equal(copy_unit(&use, 0, NULL), 0);
    assert_own();
    assert_int_equal(work(&use, NULL), 0);
    assert_right(use.results);
    assert_own();
    assert_int_not_equal(ops->alloc(use.dev, (uint64_t)1 << 50, &data, NULL), 0);
    assert_own();
    assert_int_equal(ops->copy_wait(use.dev, 0, K3_DEV_WAIT_ALL, NULL), 0);
    assert_own();
    close_use(&use);
    assert_own();
    control(named("fail=cuEventCreate=999:7", "fail=hipEventCreateWithFlags=999:7"));
    assert_int_equal(ops->open(&options, &dev, NULL), K3_EDEVICE);
    assert_own();
    drop_own();
    assert_nothing_left();
}

/* ---- each call fails at each of its turns ---- */

/* Calls whose failure nobody can answer: they give something back, which is then left in the
 * driver, or they clean up, or there is another way. */
static const struct ignored {
    const char *name;
    bool leaves;
} ignored_calls[] = {
    {"cuMemFree_v2", true},
    {"cuMemFreeHost", true},
    {"cuMemHostUnregister", true},
    {"cuStreamDestroy_v2", true},
    {"cuEventDestroy_v2", true},
    {"cuModuleUnload", true},
    {"cuDevicePrimaryCtxRelease_v2", true},
    {"cuCtxPushCurrent_v2", true},
    {"cuCtxPopCurrent_v2", false},
    {"cuStreamSynchronize", false},
    {"hipFree", true},
    {"hipHostFree", true},
    {"hipHostUnregister", true},
    {"hipStreamDestroy", true},
    {"hipEventDestroy", true},
    {"hipModuleUnload", true},
    {"hipGetDevice", true},
    {"hipSetDevice", true},
    {"hipStreamSynchronize", false},
    {"hipModuleLoadData", false}, /* there is code made ahead as well */
    {"hipModuleGetFunction", false},
};

static const struct ignored *find_ignored(const char *call)
{
    for (size_t i = 0; i < COUNT_OF(ignored_calls); i++)
        if (!strcmp(call, ignored_calls[i].name))
            return &ignored_calls[i];
    return NULL;
}

/* What a call that failed has left behind must not reach the next turn. */
static void clean_up(void)
{
    void *context;
    while (kind == K3_GPU_CUDA && api->cuda_context_pop(&context) == 0)
        ;
    if (kind == K3_GPU_CUDA) {
        assert_int_equal(api->cuda_context_retain(&context, 0), 0);
        assert_int_equal(api->cuda_context_push(context), 0);
    } else {
        assert_int_equal(api->hip_device_set(0), 0);
    }
    (void)api->host_unregister(source);
    if (kind == K3_GPU_CUDA) {
        assert_int_equal(api->cuda_context_pop(&context), 0);
        assert_int_equal(api->cuda_context_release(0), 0);
    }
}

static void fail_at(const char *call, long turn)
{
    char fault[128];
    uint8_t results[UNITS];
    struct k3_err err;
    const struct ignored *ignored = find_ignored(call);
    k3_err_init(&err);
    snprintf(fault, sizeof fault, "fail=%s=%d:%ld", call, FAIL_CODE, turn);
    const long before = left(control(fault));
    const int rc = use_once(results, &err);
    const char *report = control(NULL);
    bool is_good = reported(report, "faults") == 1 && reported(report, "changed") == 0 &&
                   (left(report) == before || (ignored && ignored->leaves)) &&
                   (rc ? strstr(err.text, "device ") || strstr(err.text, "hipRTC") : !!ignored);
    if (!is_good)
        print_message("%s: %d %s\nbefore %ld\n%s", fault, rc, err.text, before, report);
    assert_true(is_good);
    if (!rc)
        assert_right(results);
    clean_up();
}

static void test_each_call(void **state)
{
    (void)state;
    static char calls[REPORT_BYTES];
    uint8_t results[UNITS];
    control(NULL);
    assert_int_equal(use_once(results, NULL), 0);
    assert_right(results);
    snprintf(calls, sizeof calls, "%s", control(NULL));
    assert_int_equal(left(calls), 0);
    int call_count = 0;
    for (char *at = strstr(calls, "calls "); at; at = strstr(at, "calls ")) {
        char call[64];
        at += strlen("calls ");
        const int name_bytes = (int)strcspn(at, " ");
        snprintf(call, sizeof call, "%.*s", name_bytes, at);
        const long count = strtol(at + name_bytes, NULL, 10);
        assert_true(count > 0);
        call_count++;
        for (long turn = 1; turn <= count; turn++)
            if (count <= TURNS_MAX || turn <= 2 || turn > count - 2)
                fail_at(call, turn);
    }
    assert_true(call_count >= 24); /* all but the few that no device uses yet */
}

/* ---- what hardware does wrong ---- */

static const enum k3_unit_result R = K3_UNIT_RIGHT, W = K3_UNIT_WRONG, U = K3_UNIT_UNKNOWN;

static void use_with(const char *fault, const uint8_t expect[UNITS])
{
    struct use use;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(open_use(&use, 0, &err), 0);
    assert_int_equal(prepare(&use, &err), 0);
    control(fault);
    assert_int_equal(work(&use, &err), 0);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(use.waited[u], expect[u]);
    close_use(&use);
    const char *report = control(NULL);
    assert_int_equal(reported(report, "faults"), 1);
    assert_int_equal(left(report), 0);
}

static void test_faults(void **state)
{
    (void)state;
    use_with("flip:2", (const uint8_t[]){R, W, R});
    use_with("skip:3", (const uint8_t[]){R, R, W});
    use_with("swap:1", (const uint8_t[]){W, W, R});
    use_with("swap:3", (const uint8_t[]){R, R, R}); /* nobody follows: only late */
    use_with("idle:1", (const uint8_t[]){U, U, U});
    use_with("no:1", (const uint8_t[]){W, W, W});
    use_with("late:2", (const uint8_t[]){R, R, R});
    use_with("late:4", (const uint8_t[]){R, R, R});
}

/* A kernel that answers for the neighbour: of two units, the wrong one is called right. */
static void test_fault_other(void **state)
{
    (void)state;
    wanted[0] ^= 1;
    use_with("other:1", (const uint8_t[]){R, R, W});
    wanted[0] ^= 1;
}

/* The device breaks while it works: the wait says so, and all that comes later. */
static void test_break(void **state)
{
    (void)state;
    struct use use;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(open_use(&use, 0, NULL), 0);
    assert_int_equal(prepare(&use, NULL), 0);
    control("break:2");
    assert_int_equal(work(&use, &err), K3_EDEVICE);
    assert_non_null(
        strstr(err.text, named("CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress")));
    assert_int_equal(ops->copy_wait(use.dev, 0, K3_DEV_WAIT_ALL, NULL), K3_EDEVICE);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(use.results[u], K3_UNIT_UNKNOWN);
    close_use(&use);
    assert_nothing_left();
}

/* A source is read late: what is written to it before the wait is what arrives. */
static void test_late_source(void **state)
{
    (void)state;
    struct use use;
    assert_int_equal(open_use(&use, 0, NULL), 0);
    assert_int_equal(prepare(&use, NULL), 0);
    control("swap:1"); /* holds the copy until somebody waits */
    assert_int_equal(copy_unit(&use, 0, NULL), 0);
    source[77] ^= 1;
    struct k3_dev_check check = {use.data, wanted, use.results, 1};
    assert_int_equal(ops->verify_units(use.dev, 0, &check, 1, NULL), 0);
    assert_int_equal(ops->copy_wait(use.dev, 0, K3_DEV_WAIT_ALL, NULL), 0);
    source[77] ^= 1;
    assert_int_equal(use.results[0], K3_UNIT_WRONG);
    close_use(&use);
    assert_nothing_left();
}

/* A device that checks wrongly is not opened. */
static void test_self_test(void **state)
{
    (void)state;
    static const char *const faults[] = {"flip:1", "skip:1", "idle:1", "other:1", "yes:1", "no:1"};
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        struct use use;
        struct k3_err err;
        k3_err_init(&err);
        control(faults[i]);
        assert_int_equal(open_use(&use, 0, &err), K3_EDEVICE);
        assert_non_null(strstr(err.text, "its check of known bytes is wrong"));
        assert_null(use.dev);
        free(use.back);
        assert_nothing_left();
    }
}

/* ---- memory and code ---- */

static void test_pin_twice(void **state)
{
    (void)state;
    struct use use;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(open_use(&use, 0, NULL), 0);
    assert_int_equal(prepare(&use, NULL), 0);
    assert_int_equal(ops->pin(use.dev, source, 4096, &err), K3_EDEVICE);
    assert_non_null(strstr(err.text, "cannot register 4096 bytes"));
    close_use(&use);
    assert_nothing_left();
}

/* The last bytes that are free go; one more does not; all come back. */
static void test_memory_limit(void **state)
{
    (void)state;
    struct use use;
    void *data, *more;
    setenv("FAKE_GPU_MEMORY_BYTES", "8388608", 1);
    control(NULL);
    assert_int_equal(open_use(&use, 1, NULL), 0);
    for (int turn = 0; turn < 2; turn++) {
        struct k3_err err;
        char text[128];
        k3_err_init(&err);
        assert_int_equal(ops->alloc(use.dev, 6u << 20, &data, NULL), 0);
        assert_int_equal(ops->alloc(use.dev, 3u << 20, &more, &err), K3_EUNSUPPORTED);
        snprintf(text, sizeof text,
                 "device %s:1: 3145728 bytes of its memory are needed, 2097152 of 8388608 are free",
                 ops->name);
        assert_non_null(strstr(err.text, text));
        ops->release(use.dev, data, 6u << 20);
    }
    close_use(&use);
    unsetenv("FAKE_GPU_MEMORY_BYTES");
    assert_nothing_left();
}

/* hipRTC comes first; without it what hipcc made, and where both fail the sentence has both. */
static void test_code(void **state)
{
    (void)state;
    struct use use;
    struct k3_err err;
    k3_err_init(&err);
    if (kind == K3_GPU_CUDA) {
        control("fail=cuModuleLoadData=200:1");
        assert_int_equal(open_use(&use, 0, &err), K3_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "its code does not load: CUDA_ERROR_INVALID_IMAGE"));
        close_use(&use);
        assert_nothing_left();
        return;
    }
    setenv("FAKE_HIPRTC_BROKEN", "1", 1);
    int rc = open_use(&use, 0, &err);
    if (rc) { /* hipcc was not there */
        assert_int_equal(rc, K3_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "fake hipRTC: error: no kernel in this source"));
        assert_null(strstr(err.text, "second line"));
        assert_non_null(strstr(err.text, "no code made ahead"));
    }
    close_use(&use);
    k3_err_init(&err);
    control("fail=hipModuleLoadData=200:1:2");
    assert_int_equal(open_use(&use, 0, &err), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "hipRTC does not compile the kernel (code 6): fake hipRTC"));
    assert_non_null(strstr(err.text, "made ahead"));
    close_use(&use);
    unsetenv("FAKE_HIPRTC_BROKEN");
    assert_nothing_left();
}

/* Two devices at once, and two opens of one: what one frees stays with the other. */
static void test_several(void **state)
{
    (void)state;
    struct use uses[3];
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(open_use(&uses[i], i % 2, NULL), 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(ops->alloc(uses[i].dev, DATA_BYTES, &uses[i].data, NULL), 0);
        for (uint32_t u = 0; u < UNITS; u++)
            assert_int_equal(copy_unit(&uses[i], u, NULL), 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(work(&uses[i], NULL), 0);
        assert_right(uses[i].results);
        close_use(&uses[i]);
    }
    assert_nothing_left();
}

static void *use_in_thread(void *argument)
{
    struct use *use = argument;
    int rc = open_use(use, (uint32_t)(use->results[0] % 2), NULL);
    if (!rc)
        rc = ops->alloc(use->dev, DATA_BYTES, &use->data, NULL);
    if (!rc)
        rc = work(use, NULL);
    close_use(use);
    return rc ? use : NULL;
}

/* Each thread drives a device of its own. */
static void test_threads(void **state)
{
    (void)state;
    struct use uses[THREADS];
    pthread_t threads[THREADS];
    for (uint8_t i = 0; i < THREADS; i++) {
        uses[i].results[0] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, use_in_thread, &uses[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
        assert_right(uses[i].results);
    }
    assert_nothing_left();
}

/* A copy whose end was not marked is over all the same when the wait has said that it failed. */
static void test_wait_drains(void **state)
{
    (void)state;
    struct use use, other;
    assert_int_equal(open_use(&use, 0, NULL), 0);
    assert_int_equal(prepare(&use, NULL), 0);
    assert_int_equal(open_use(&other, 0, NULL), 0);
    control(named("fail=cuEventRecord=999:31", "fail=hipEventRecord=999:31"));
    for (uint32_t i = 0; i < 30; i++)
        assert_int_equal(copy_unit(&use, i % UNITS, NULL), 0);
    assert_int_equal(copy_unit(&use, 0, NULL), K3_EDEVICE);
    assert_int_equal(ops->copy_wait(use.dev, 0, K3_DEV_WAIT_ALL, NULL), K3_EDEVICE);
    source[K3_UNIT_BYTES - 1] ^= 0xff;                      /* is read last */
    assert_int_equal(copy_unit(&use, 1, NULL), K3_EDEVICE); /* the lane stays failed */
    ops->close(use.dev);
    use.dev = NULL; /* its memory is read and given back by the other one */
    struct k3_dev_copy back = {other.back, use.data, K3_UNIT_BYTES, K3_COPY_DEV_TO_HOST};
    assert_int_equal(ops->copy_begin(other.dev, 0, &back, NULL), 0);
    assert_int_equal(ops->copy_wait(other.dev, 0, K3_DEV_WAIT_ALL, NULL), 0);
    source[K3_UNIT_BYTES - 1] ^= 0xff;
    assert_memory_equal(other.back, source, K3_UNIT_BYTES);
    ops->unpin(other.dev, source, DATA_BYTES);
    ops->release(other.dev, use.data, DATA_BYTES);
    free(use.back);
    close_use(&other);
    assert_nothing_left();
}

/* ---- running ---- */

static int run_refused(const char *text)
{
    struct k3_dev_options options = {.index = 0, .lane_count = 1};
    for (int turn = 0; turn < 2; turn++) {
        struct k3_dev *dev;
        struct k3_err err;
        k3_err_init(&err);
        int rc = turn ? ops->open(&options, &dev, &err) : ops->probe(0, &err);
        if (rc != K3_EUNSUPPORTED || !strstr(err.text, text)) {
            printf("%d %s\n", rc, err.text);
            return 1;
        }
    }
    return 0;
}

/* The tests that any driver must pass. */
static int run_any(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_index),
                                       cmocka_unit_test(test_no_memory)};
    return dev_suite_run(ops) + cmocka_run_group_tests_name("any driver", tests, NULL, NULL);
}

static int run_fake(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_device), cmocka_unit_test(test_several),
        cmocka_unit_test(test_pin_twice),  cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_code),       cmocka_unit_test(test_self_test),
        cmocka_unit_test(test_faults),     cmocka_unit_test(test_fault_other),
        cmocka_unit_test(test_break),      cmocka_unit_test(test_late_source),
        cmocka_unit_test(test_threads),    cmocka_unit_test(test_wait_drains),
        cmocka_unit_test(test_each_call),
    };
    const int opened = open_fake();
    if (opened <= 0)
        return opened < 0;
    int failed = run_any();
    const char *report = control(NULL);
    if (left(report) || reported(report, "changed")) {
        printf("after the suite:\n%s", report);
        failed++;
    }
    return failed + cmocka_run_group_tests_name("fake driver", tests, NULL, NULL);
}

/* ---- drivers that are not there ---- */

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *drivers, *setting, *kind, *text;
    } rows[] = {
        {"fake_bad", NULL, "cuda", "device cuda: no libcuda.so.1 on this machine"},
        {"fake_bad", NULL, "hip", "device hip: no libamdhip64.so."},
        {"fake_old", NULL, "cuda", "libcuda.so.1 has no cuLaunchKernel: a newer driver is needed"},
        {"fake_old", NULL, "hip", " has no hipModuleLaunchKernel: a newer driver is needed"},
        {"fake", "FAKE_GPU_COUNT=0", "cuda", "does not start: CUDA_ERROR_NO_DEVICE"},
        {"fake", "FAKE_GPU_COUNT=0", "hip", "does not start: hipErrorNoDevice"},
        {"fake", "FAKE_GPU_FAULT=fail=cuInit=999:1:9", "cuda", "does not start: CUDA_ERROR_UNKN"},
        {"fake", "FAKE_GPU_FAULT=fail=hipInit=999:1:9", "hip", "does not start: hipErrorUnknown"},
        {"fake", "FAKE_GPU_FAULT=fail=cuDeviceGetCount=801:1:9", "cuda",
         "does not start: CUDA_ERROR_NOT_SUPPORTED"},
        {"fake", "FAKE_GPU_FAULT=fail=hipGetDeviceCount=4242:1:9", "hip",
         "does not start: hipErrorUnknown"},
        {"fake", "FAKE_GPU_FAULT=fail=cuInit=4242:1:9", "cuda", "an unknown error"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(run_again(rows[i].drivers, rows[i].setting,
                                   (const char *[]){"refused", rows[i].kind, rows[i].text}),
                         0);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused)};
    if (again_begin())
        return 1;
    int failed = cmocka_run_group_tests_name("no driver", tests, NULL, NULL);
    failed += run_again("fake", NULL, (const char *[]){"fake", "cuda", NULL}) != 0;
    failed += run_again("fake", NULL, (const char *[]){"fake", "hip", NULL}) != 0;
    /* Without nvcc there is no CUDA code, and nothing for HIP over CUDA. */
    const char *cuda = k3_gpu_kernels_probe(K3_GPU_CUDA, NULL) ? NULL : "cuda";
    failed += run_again("fake", "FAKE_GPU_SEED=2", (const char *[]){"real", "hip", cuda}) != 0;
    if (cuda)
        failed += run_again("fake_hip_cuda", NULL, (const char *[]){"real", "hip", cuda}) != 0;
    unlink(report_path);
    return failed;
}

int main(int argc, char **argv)
{
    make_source();
    int failed = 1;
    if (argc == 1) {
        failed = run_all();
    } else if (!strcmp(argv[1], "real")) {
        failed = run_real(run_any, argc - 2, argv + 2);
    } else if (argc >= 3 && !choose(argv[2])) {
        snprintf(report_path, sizeof report_path, "%s",
                 getenv("FAKE_GPU_REPORT") ? getenv("FAKE_GPU_REPORT") : "");
        failed = !strcmp(argv[1], "refused") && argc == 4 ? run_refused(argv[3]) : run_fake();
    }
    free(source);
    return failed != 0;
}
