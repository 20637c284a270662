/* Purpose: how much stack the library takes of the thread that calls it, on the host and over the
 * fake drivers, for a load that is right and for one that is not.
 *   test_load_stack            all of it; runs itself again with the folder of the fake drivers
 *   test_load_stack fake KIND  over what LD_LIBRARY_PATH names
 * Owns: a set; the stack of the calling thread, painted before and looked at after.
 * Threads: one that calls the library.
 * Errors: a failed assertion ends the test.
 * Invariants: K3_LOAD_STACK_BYTES is enough for every call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu_use.h"
#include "k3_load.h"
#include "mini_set.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROOM_BYTES  ((size_t)1 << 20) /* what a call may take here before it crashes */
#define PAINT       0xa5
#define COUNT_OF(a) (sizeof(a) / sizeof *(a))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define FRAMES_ARE_OURS 0 /* a sanitizer, or no optimization, makes them several times as large */
#else
#define FRAMES_ARE_OURS 1
#endif

static struct mini_set mini;

struct job {
    struct k3_load_options options;
    int rc;
};

static void *load_all(void *context)
{
    struct job *job = context;
    struct k3_load *load = NULL;
    struct k3_load_report report;
    struct k3_load_tensor tensor;
    struct k3_err err;
    job->rc = k3_load_open(&job->options, &load, &err);
    if (!job->rc)
        job->rc = k3_load_run(load, &err);
    if (!job->rc)
        job->rc = k3_load_find_view(load, 0, "layers.1.experts.w13", &tensor, &err);
    if (!job->rc)
        k3_load_get_report(load, &report);
    k3_load_close(load);
    return NULL;
}

/* Bytes from the end of the stack to the deepest one that was written. */
static size_t measure(struct job *job)
{
    pthread_attr_t attributes;
    pthread_t thread;
    size_t untouched = 0;
    uint8_t *stack = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    assert_true(stack != MAP_FAILED);
    memset(stack, PAINT, ROOM_BYTES);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstack(&attributes, stack, ROOM_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attributes, load_all, job), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    while (untouched < ROOM_BYTES && stack[untouched] == PAINT)
        untouched++;
    munmap(stack, ROOM_BYTES);
    return ROOM_BYTES - untouched;
}

static void check(const char *device, const char *io, int wanted_rc)
{
    struct job job = {.options = {.struct_bytes = sizeof job.options,
                                  .dirs = mini.dir_list,
                                  .dir_count = mini.dir_count,
                                  .staging_bytes = 16u << 20,
                                  .device = device,
                                  .io = io}};
    size_t bytes = measure(&job);
    printf("%s, %s, rc %d: %zu bytes of stack\n", device, io, job.rc, bytes);
    assert_int_equal(job.rc, wanted_rc);
    if (FRAMES_ARE_OURS)
        assert_true(bytes <= K3_LOAD_STACK_BYTES);
}

static void on_device(void **state)
{
    static const char *const ios[] = {"auto", "pread"};
    char device[16], path[256];
    (void)state;
    snprintf(device, sizeof device, "%s", ops ? ops->name : "host");
    snprintf(device + strlen(device), sizeof device - strlen(device), "%s", ops ? ":0" : "");
    for (size_t i = 0; i < COUNT_OF(ios); i++)
        check(device, ios[i], 0);
    mini_set_part_path(&mini, 1, 2, path);
    const struct k3_part_entry *part = mini_set_part(&mini, 1, 2);
    mini_set_flip(path, part->data_offset + 7); /* a second read, and the names of tensors */
    check(device, "auto", K3_ECORRUPT);
    mini_set_flip(path, part->data_offset + 7);
    mini_set_flip(path, 4000); /* a header unit */
    check(device, "auto", K3_ECORRUPT);
    mini_set_flip(path, 4000);
}

static int run_group(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_device)};
    return cmocka_run_group_tests_name("stack of a load", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    int failed = 1;
    if (argc == 3 && choose(argv[2]))
        return 1;
    mini_set_make(&mini, 2);
    if (argc == 3) {
        snprintf(report_path, sizeof report_path, "%s",
                 getenv("FAKE_GPU_REPORT") ? getenv("FAKE_GPU_REPORT") : "");
        int open = open_fake();
        failed = open > 0 ? run_group() : open < 0;
    } else if (!again_begin()) {
        failed = run_group();
        failed += run_again("fake", NULL, (const char *[]){"fake", "cuda", NULL}) != 0;
        failed += run_again("fake", NULL, (const char *[]){"fake", "hip", NULL}) != 0;
        unlink(report_path);
    }
    mini_set_remove(&mini);
    return failed != 0;
}
