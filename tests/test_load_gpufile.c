/* Purpose: loads by the engines cufile and hipfile: by name, left to themselves, and with reads
 * that go wrong.
 *   test_load_gpufile              over fake libraries
 *   test_load_gpufile real KIND    one load over the libraries of this machine (cuda or hip)
 *   test_load_gpufile fake KIND    over what LD_LIBRARY_PATH names
 * Owns: a set, a device to look at images with.
 * Threads: one drives each load.
 * Errors: a failed assertion ends the test.
 * Invariant: whatever a read brings, what is handed out is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpufile_use.h"
#include "k3_load.h"
#include "mini_set.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static struct mini_set one;
static struct k3_load *load;
static struct k3_err err;

/* Stands before the access of libc in this program: when asked, nvidia-fs is there. */
static bool has_nvfs;

int access(const char *path, int mode)
{
    if (has_nvfs && strcmp(path, "/proc/driver/nvidia-fs/version") == 0)
        return 0;
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

/* Stands before the reads by which a load finds out what is in the page cache: nothing is. */
ssize_t preadv2(int fd, const struct iovec *pieces, int count, off_t offset, int flags)
{
    if (flags & RWF_NOWAIT) {
        errno = EAGAIN;
        return -1;
    }
    return preadv(fd, pieces, count, offset);
}

/* Stands before the clock of libc: when asked, each look at it is a second later than the one
 * before, or a nanosecond; from the first read of the fake library on, the other of the two. */
static enum { CLOCK_REAL, CLOCK_SLOW_FIRST, CLOCK_FAST_FIRST } clock_kind;
static _Atomic int64_t clock_ns;

int clock_gettime(clockid_t id, struct timespec *time)
{
    if (clock_kind == CLOCK_REAL)
        return (int)syscall(SYS_clock_gettime, id, time);
    bool is_slow = (clock_kind == CLOCK_SLOW_FIRST) == (atomic_load(&fake->read_count) == 0);
    int64_t step_ns = is_slow ? 1000000000 : 1;
    int64_t ns = atomic_fetch_add(&clock_ns, step_ns) + step_ns;
    *time = (struct timespec){ns / 1000000000, ns % 1000000000};
    return 0;
}

static int open_all(void **state)
{
    (void)state;
    struct k3_dev_options options = {.lane_count = 1};
    k3_err_init(&err);
    if (ops->open(&options, &dev, &err)) {
        print_message("%s\n", err.text);
        return -1;
    }
    mini_set_make(&one, 1);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    ops->close(dev);
    mini_set_remove(&one);
    return 0;
}

static int begin_test(void **state)
{
    (void)state;
    k3_err_init(&err);
    has_nvfs = false;
    clock_kind = CLOCK_REAL;
    begin_faultless();
    return 0;
}

/* All that was registered is given back, whatever happened. */
static int end_test(void **state)
{
    (void)state;
    k3_load_close(load);
    load = NULL;
    assert_files_closed();
    return 0;
}

/* ---- loads ---- */

static struct k3_load_options options_for(const char *io, const char *device)
{
    static char name[32];
    snprintf(name, sizeof name, "%s:%s", ops->name, device);
    return (struct k3_load_options){.struct_bytes = sizeof(struct k3_load_options),
                                    .dirs = one.dir_list,
                                    .dir_count = one.dir_count,
                                    .device = name,
                                    .io = io};
}

static struct k3_load_report run_right(void)
{
    struct k3_load_report report;
    assert_int_equal(k3_load_run(load, &err), 0);
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        const void *data;
        uint64_t bytes;
        assert_int_equal(k3_load_image(load, rank, &data, &bytes, &err), 0);
        assert_int_equal(bytes, one.image_bytes[rank]);
        uint8_t *back = calloc(1, bytes);
        assert_non_null(back);
        copy_all(back, data, bytes, K3_COPY_DEV_TO_HOST);
        assert_memory_equal(back, one.images[rank], bytes);
        free(back);
    }
    k3_load_get_report(load, &report);
    assert_int_equal(report.verified_bytes >= report.bytes, 1);
    return report;
}

static void test_load(void **state)
{
    (void)state;
    static const char *const devices[] = {"0", "0,1"};
    for (size_t i = 0; i < (fake ? COUNT_OF(devices) : 1); i++) {
        struct k3_load_options options = options_for(io_ops->name, devices[i]);
        assert_int_equal(k3_load_open(&options, &load, &err), 0);
        for (int turn = 0; turn < 2; turn++) {
            struct k3_load_report report = run_right();
            assert_string_equal(report.io, io_ops->name);
            assert_int_equal(report.direct, 1);
            assert_int_equal(report.pinned_bytes, 0);
            assert_int_equal(report.reread_units, 0);
            if (fake)
                assert_non_null(strstr(report.fallbacks, "through host memory"));
            else
                print_message("fallbacks: %s\n", report.fallbacks);
        }
        k3_load_close(load);
        load = NULL;
    }
}

/* Whatever one read brings, what is handed out is right; what cannot be is not handed out. */
static void test_load_faults(void **state)
{
    (void)state;
    static const struct {
        enum fake_cufile_fault fault;
        uint64_t count;
        int code;
        bool is_reread;
    } rows[] = {
        {FAKE_CUFILE_FLIP, 1, 0, true},        {FAKE_CUFILE_EMPTY, 1, 0, true},
        {FAKE_CUFILE_ERRNO, 1, EIO, true},     {FAKE_CUFILE_CODE, 1, 5030, true},
        {FAKE_CUFILE_LONG, 1, 0, true},        {FAKE_CUFILE_SHORT, UINT64_MAX, 65536 + 9, false},
        {FAKE_CUFILE_ERRNO, 3, EAGAIN, false},
    };
    struct k3_load_options options = options_for(io_ops->name, "0");
    fake->mode = FAKE_CUFILE_NVFS;
    assert_int_equal(k3_load_open(&options, &load, &err), 0);
    uint8_t *zeros = calloc(1, one.image_bytes[0]);
    assert_non_null(zeros);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const void *data;
        uint64_t bytes;
        if (i && k3_load_image(load, 0, &data, &bytes, NULL) == 0)
            copy_all((void *)(uintptr_t)data, zeros, bytes, K3_COPY_HOST_TO_DEV);
        set_fault(rows[i].fault, 1, rows[i].count, rows[i].code);
        struct k3_load_report report = run_right();
        assert_true(atomic_load(&fake->hit_count) > 0);
        assert_int_equal(report.reread_units != 0, rows[i].is_reread);
    }
    free(zeros);
    /* A bit that is wrong on the drive stays wrong. */
    char path[256];
    set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    mini_set_part_path(&one, 1, 1, path);
    mini_set_flip(path, mini_set_part(&one, 1, 1)->data_offset + 99);
    assert_int_equal(k3_load_run(load, &err), K3_ECORRUPT);
    mini_set_flip(path, mini_set_part(&one, 1, 1)->data_offset + 99);
    (void)run_right();
}

static void refuse(struct k3_load_options options, const char *text)
{
    k3_err_init(&err);
    assert_int_equal(k3_load_open(&options, &load, &err), K3_EUNSUPPORTED);
    assert_null(load);
    if (!strstr(err.text, text))
        fail_msg("'%s' is not in: %s", text, err.text);
}

static void test_load_refused(void **state)
{
    (void)state;
    static const struct k3_load_bind bind = {0, "view", (void *)4096, 1};
    struct k3_load_options good = options_for(io_ops->name, "0"), bad = good;
    bad.device = "host";
    refuse(bad, "not of host");
    bad.device = kind == K3_GPU_CUDA ? "hip:0" : "cuda:0";
    refuse(bad, kind == K3_GPU_CUDA ? "not of hip" : "not of cuda");
    bad = good;
    bad.binds = &bind;
    bad.bind_count = 1;
    refuse(bad, "not bound views");
    set_fault(FAKE_CUFILE_FILE, 0, 0, 5008);
    refuse(good, "it does not take the file: the file system or drive");
    assert_non_null(strstr(err.text, "; or use io uring, pread or auto"));
    set_fault(FAKE_CUFILE_MEMORY, 0, 0, 5036);
    assert_int_equal(k3_load_open(&good, &load, &err), 0);
    struct k3_load_report report = run_right();
    assert_non_null(strstr(report.fallbacks, "memory of the GPU is not registered"));
}

static int cancel_at_once(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)context;
    (void)done_bytes;
    (void)total_bytes;
    return 1;
}

/* Stopped while all its reads are under way: nothing is handed out, nothing is written once it is
 * over, and the next load is right. */
static void test_load_cancel(void **state)
{
    (void)state;
    const void *data;
    uint64_t bytes;
    struct k3_load_options options = options_for(io_ops->name, "0");
    options.progress = cancel_at_once;
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(k3_load_open(&options, &load, &err), 0);
        set_fault(FAKE_CUFILE_SLOW, 0, UINT64_MAX, 10);
        assert_int_equal(k3_load_run(load, &err), K3_ECANCELED);
        assert_true(atomic_load(&fake->hit_count) > 0);
        assert_int_not_equal(k3_load_image(load, 0, &data, &bytes, NULL), 0);
        k3_load_close(load);
        load = NULL;
        assert_files_closed();
        k3_err_init(&err);
    }
    set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    options.progress = NULL;
    assert_int_equal(k3_load_open(&options, &load, &err), 0);
    (void)run_right();
}

/* Left to itself, a load takes the engine only where it may go direct and a sample of it is faster;
 * and says which. */
static void test_auto(void **state)
{
    (void)state;
    static const struct {
        bool has_nvfs;
        enum fake_cufile_mode mode;
        enum fake_cufile_fault fault;
        int clock_kind;
        bool is_taken;
        const char *text;
    } rows[] = {
        {false, FAKE_CUFILE_NVFS, FAKE_CUFILE_NONE, CLOCK_SLOW_FIRST, false,
         "neither nvidia-fs nor PCI P2PDMA is set up here"},
        {true, FAKE_CUFILE_COMPAT, FAKE_CUFILE_NONE, CLOCK_SLOW_FIRST, false,
         "nor PCI P2PDMA is in use; a sample came at "},
        {true, FAKE_CUFILE_NVFS, FAKE_CUFILE_ERRNO, CLOCK_SLOW_FIRST, false,
         "a sample of its reads failed"},
        {true, FAKE_CUFILE_NVFS, FAKE_CUFILE_FILE, CLOCK_SLOW_FIRST, false,
         "it does not take the file"},
        {true, FAKE_CUFILE_NVFS, FAKE_CUFILE_NONE, CLOCK_FAST_FIRST, false, "a sample came at "},
        {true, FAKE_CUFILE_NVFS, FAKE_CUFILE_NONE, CLOCK_SLOW_FIRST, true, "a sample came at "},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct k3_load_options options = options_for("auto", i % 2 ? "0,1" : "0");
        const bool is_taken = rows[i].is_taken && kind == K3_GPU_CUDA;
        char line[64];
        has_nvfs = rows[i].has_nvfs;
        fake->mode = rows[i].mode;
        set_fault(rows[i].fault, 0, UINT64_MAX, rows[i].fault == FAKE_CUFILE_FILE ? 5008 : EIO);
        clock_kind = rows[i].clock_kind;
        assert_int_equal(k3_load_open(&options, &load, &err), 0);
        clock_kind = CLOCK_REAL;
        set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
        struct k3_load_report report = run_right();
        if (!report.direct) {
            print_message("skipped: %s\n", report.fallbacks);
            skip(); /* direct reads are refused here */
        }
        snprintf(line, sizeof line, "io %s is %s: ", io_ops->name, is_taken ? "used" : "not used");
        assert_non_null(strstr(report.fallbacks, line));
        /* The fake ROCm driver has no reads into a GPU. */
        if (!strstr(report.fallbacks, kind == K3_GPU_CUDA ? rows[i].text : "this ROCm driver has"))
            fail_msg("row %zu: %s", i, report.fallbacks);
        assert_int_equal(strcmp(report.io, io_ops->name) == 0, is_taken);
        assert_int_equal(report.pinned_bytes == 0, is_taken);
        assert_int_equal(atomic_load(&fake->read_count) != 0, is_taken);
        k3_load_close(load);
        load = NULL;
    }
}

/* ---- runs ---- */

#define LOAD_TEST(f) cmocka_unit_test_setup_teardown(f, begin_test, end_test)

static int run_library(void)
{
    const struct CMUnitTest tests[] = {LOAD_TEST(test_load)};
    return !has_engine() || cmocka_run_group_tests_name(io_ops->name, tests, open_all, close_all);
}

static int run_fake(void)
{
    const struct CMUnitTest tests[] = {LOAD_TEST(test_load), LOAD_TEST(test_load_faults),
                                       LOAD_TEST(test_load_refused), LOAD_TEST(test_load_cancel),
                                       LOAD_TEST(test_auto)};
    if (k3_gpu_kernels_probe(kind, NULL))
        return 0; /* test_dev_gpu says that this build has no code for it */
    return !find_fake() || cmocka_run_group_tests_name(io_ops->name, tests, open_all, close_all);
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        choose_engine(argv[2]);
        return strcmp(argv[1], "real") == 0 ? run_library() : run_fake();
    }
    if (again_begin())
        return 1;
    int failed = run_fakes();
    unlink(report_path);
    return failed;
}
