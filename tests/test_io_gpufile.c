/* Purpose: the engines cufile and hipfile: what every io engine promises, with targets on a GPU.
 *   test_io_gpufile              over fake libraries, and what is refused
 *   test_io_gpufile real KIND    over the libraries of this machine (cuda or hip), no faults
 *   test_io_gpufile fake KIND, refused KIND TEXT   over what LD_LIBRARY_PATH names
 * Owns: two files, a device with one region for the whole run.
 * Threads: one drives each engine.
 * Errors: a failed assertion ends the test.
 * Invariant: the region is poisoned before each read, so a skipped write is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpufile_use.h"
#include "io_files.h"
#include "io_gpufile.h"
#include "k3_load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_COUNT   2u
#define FILE_BYTES   (1024u * 1024 + 777) /* ends inside a block */
#define SLOT_BYTES   262144u
#define DEPTH        8u
#define REGION_BYTES ((size_t)DEPTH * SLOT_BYTES)
#define POISON       0xA5

static void *region;    /* REGION_BYTES on the device */
static uint8_t *mirror; /* the same on the host */
static struct io_files files;
static struct k3_err err;

/* ---- files and memory ---- */

static void poison(void)
{
    memset(mirror, POISON, REGION_BYTES);
    copy_all(region, mirror, REGION_BYTES, K3_COPY_HOST_TO_DEV);
}

static void fetch(void)
{
    copy_all(mirror, region, REGION_BYTES, K3_COPY_DEV_TO_HOST);
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
    assert_int_equal(ops->alloc(dev, REGION_BYTES, &region, NULL), 0);
    mirror = malloc(REGION_BYTES);
    assert_non_null(mirror);
    assert_true(io_files_make(&files, FILE_COUNT, FILE_BYTES));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    ops->release(dev, region, REGION_BYTES);
    ops->close(dev);
    free(mirror);
    io_files_remove(&files);
    return 0;
}

static int begin_test(void **state)
{
    (void)state;
    k3_err_init(&err);
    begin_faultless();
    return 0;
}

/* All that was registered is given back, whatever happened. */
static int end_test(void **state)
{
    (void)state;
    assert_files_closed();
    return 0;
}

/* ---- the engine ---- */

static int open_engine(uint32_t depth, struct k3_io **io, struct k3_err *note)
{
    struct k3_io_region own = {region, REGION_BYTES};
    struct k3_io_options options = {
        .depth = depth, .regions = &own, .region_count = 1, .gpu = k3_dev_gpu(dev), .note = note};
    int rc = io_ops->probe(NULL, &err);
    return rc ? rc : io_ops->open(&options, io, &err);
}

static struct k3_io *engine(uint32_t depth)
{
    struct k3_io *io;
    assert_int_equal(open_engine(depth, &io, NULL), 0);
    for (uint32_t f = 0; f < FILE_COUNT; f++) {
        uint32_t file;
        assert_int_equal(io_ops->add_file(io, files.fds[f], &file, &err), 0);
        assert_int_equal(file, f);
    }
    return io;
}

/* All bytes that arrived are those of the file, and not one behind those asked for was touched;
 * what lies between is undefined, and NVIDIA's library brings there what its own buffer held. */
static void check_read(const struct k3_io_read *read, const struct k3_io_done *done)
{
    const uint8_t *data = mirror + ((char *)read->target - (char *)region);
    size_t bytes = io_files_expect(&files, read);
    assert_int_equal(done->sys_errno, 0);
    assert_int_equal(done->bytes, bytes);
    io_files_compare(read, data, bytes);
    for (size_t i = read->bytes; i < SLOT_BYTES; i++)
        if (data[i] != POISON)
            fail_msg("byte %zu behind the %zu asked for was touched", i, read->bytes);
}

/* Every other one is of whole blocks, as direct reads are. */
static struct k3_io_read random_read(uint32_t slot)
{
    uint32_t align = slot % 2 ? 4096 : 1;
    return (struct k3_io_read){
        .file = random_below(FILE_COUNT),
        .offset = random_below(FILE_BYTES + 50000) / align * align,
        .bytes = random_below(8) ? random_below(200000) / align * align : random_below(5),
        .tag = slot,
        .target = (char *)region + (size_t)slot * SLOT_BYTES,
    };
}

/* Reads in flight until all of them came back. */
static void reap_all(struct k3_io *io, struct k3_io_done *by_tag, uint32_t read_count)
{
    uint32_t total = 0;
    bool seen[DEPTH] = {false};
    while (total < read_count) {
        struct k3_io_done done[3];
        uint32_t count;
        assert_int_equal(io_ops->reap(io, done, 1 + random_below(3), &count, NULL), 0);
        assert_true(count >= 1 && count <= 3);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(done[i].tag < DEPTH && !seen[done[i].tag]);
            seen[done[i].tag] = true;
            by_tag[done[i].tag] = done[i];
        }
        total += count;
    }
}

static void read_random(struct k3_io *io, uint32_t depth)
{
    struct k3_io_read reads[DEPTH];
    struct k3_io_done done[DEPTH];
    poison();
    for (uint32_t i = 0; i < depth; i++)
        reads[i] = random_read(i);
    assert_int_equal(io_ops->submit(io, reads, depth, NULL), 0);
    reap_all(io, done, depth);
    fetch();
    for (uint32_t i = 0; i < depth; i++)
        check_read(&reads[i], &done[i]);
}

static void test_random(void **state)
{
    (void)state;
    static const uint32_t depths[] = {1, 2, DEPTH};
    for (uint32_t d = 0; d < COUNT_OF(depths); d++) {
        struct k3_io *io = engine(depths[d]);
        random_state = 1 + d;
        for (int turn = 0; turn < 6; turn++)
            read_random(io, depths[d]);
        io_ops->close(io);
    }
    if (fake)
        assert_int_equal(atomic_load(&fake->registered_count), atomic_load(&fake->read_count));
}

/* Short results and EINTR never reach the caller. */
static void test_short_reads(void **state)
{
    set_fault(FAKE_CUFILE_SHORT, 0, UINT64_MAX, 30011);
    test_random(state);
    assert_true(atomic_load(&fake->hit_count) > 100);
    set_fault(FAKE_CUFILE_ERRNO, 3, 20, EINTR);
    test_random(state);
    assert_int_equal(atomic_load(&fake->hit_count), 20);
}

static void test_idle_reap(void **state)
{
    (void)state;
    struct k3_io *io = engine(DEPTH);
    struct k3_io_done done[2];
    uint32_t count = 77;
    assert_int_equal(io_ops->reap(io, done, 2, &count, NULL), 0);
    assert_int_equal(count, 0);
    assert_int_equal(io_ops->submit(io, NULL, 0, NULL), 0);
    io_ops->close(io);
    io_ops->close(NULL);
}

/* A batch over the depth is refused as a whole; one that fits goes on. */
static void test_depth(void **state)
{
    (void)state;
    struct k3_io *io = engine(2);
    struct k3_io_read reads[3];
    struct k3_io_done done[DEPTH];
    uint32_t count;
    random_state = 9;
    poison();
    for (uint32_t i = 0; i < 3; i++)
        reads[i] = random_read(i);
    assert_int_equal(io_ops->submit(io, reads, 3, &err), K3_EUSAGE);
    assert_int_equal(io_ops->reap(io, done, 2, &count, NULL), 0);
    assert_int_equal(count, 0);
    assert_int_equal(io_ops->submit(io, reads, 2, NULL), 0);
    assert_int_equal(io_ops->submit(io, &reads[2], 1, NULL), K3_EUSAGE);
    reap_all(io, done, 2);
    reads[2].file = 1000; /* a file that was never added */
    assert_int_equal(io_ops->submit(io, &reads[2], 1, NULL), K3_EUSAGE);
    fetch();
    check_read(&reads[0], &done[0]);
    check_read(&reads[1], &done[1]);
    io_ops->close(io);
}

/* Close with reads in flight: when it returns, nothing more is written to any target. */
static void test_close_drains(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        struct k3_io *io = engine(DEPTH);
        struct k3_io_read reads[DEPTH];
        struct k3_io_done done;
        uint32_t count;
        set_fault(FAKE_CUFILE_SLOW, (uint64_t)turn, 1, 20);
        for (uint32_t i = 0; i < DEPTH; i++)
            reads[i] = (struct k3_io_read){.target = (char *)region + (size_t)i * SLOT_BYTES,
                                           .bytes = SLOT_BYTES,
                                           .tag = i,
                                           .file = i % FILE_COUNT};
        assert_int_equal(io_ops->submit(io, reads, DEPTH, NULL), 0);
        if (turn % 2)
            assert_int_equal(io_ops->reap(io, &done, 1, &count, NULL), 0);
        io_ops->close(io);
        poison();
        fetch();
        /* Each byte equals the one before. */
        if (mirror[0] != POISON || memcmp(mirror, mirror + 1, REGION_BYTES - 1) != 0)
            fail_msg("turn %d: memory was written after close", turn);
    }
}

/* One read with this result, another one beside it that must be whole. */
static int errno_of_read(struct k3_io *io, void *target)
{
    struct k3_io_read reads[2] = {
        {.target = target, .bytes = 4096},
        {.target = (char *)region + SLOT_BYTES, .bytes = 8192, .tag = 1, .file = 1}};
    struct k3_io_done done[DEPTH];
    poison();
    assert_int_equal(io_ops->submit(io, reads, 1, NULL), 0);
    reap_all(io, done, 1);
    set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    assert_int_equal(done[0].bytes, 0);
    assert_int_equal(io_ops->submit(io, &reads[1], 1, NULL), 0);
    reap_all(io, done, 1);
    fetch();
    check_read(&reads[1], &done[1]);
    return done[0].sys_errno;
}

static void test_bad_target(void **state)
{
    (void)state;
    struct k3_io *io = engine(DEPTH);
    int sys_errno = errno_of_read(io, (char *)region + ((size_t)1 << 40));
    if (fake)
        assert_int_equal(sys_errno, EFAULT);
    else
        assert_int_not_equal(sys_errno, 0);
    io_ops->close(io);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        enum fake_cufile_fault fault;
        int code, sys_errno;
    } rows[] = {
        {FAKE_CUFILE_ERRNO, EIO, EIO},     {FAKE_CUFILE_ERRNO, ENODEV, ENODEV},
        {FAKE_CUFILE_ERRNO, 0, EIO},       {FAKE_CUFILE_CODE, 5030, EIO},
        {FAKE_CUFILE_CODE, 5013, EFAULT},  {FAKE_CUFILE_LONG, 0, EIO},
        {FAKE_CUFILE_ERRNO, EINTR, EINTR}, /* for ever */
    };
    struct k3_io *io = engine(DEPTH);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        set_fault(rows[i].fault, 0, UINT64_MAX, rows[i].code);
        assert_int_equal(errno_of_read(io, region), rows[i].sys_errno);
    }
    io_ops->close(io);
}

/* A file that is not read direct, or that the library does not want. */
static void test_bad_file(void **state)
{
    (void)state;
    struct k3_io *io = engine(DEPTH);
    uint32_t file;
    int fd = open("/dev/null", O_WRONLY);
    assert_int_equal(io_ops->add_file(io, fd, &file, &err), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "O_DIRECT"));
    close(fd);
    if (fake) {
        set_fault(FAKE_CUFILE_FILE, 0, 0, 5008);
        k3_err_init(&err);
        assert_int_equal(io_ops->add_file(io, files.fds[1], &file, &err), K3_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "file system or drive of this file is not supported"));
        set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    }
    assert_int_equal(io_ops->add_file(io, files.fds[1], &file, NULL), 0);
    assert_int_equal(file, FILE_COUNT);
    random_state = 4;
    read_random(io, DEPTH);
    io_ops->close(io);
}

static void test_bad_options(void **state)
{
    (void)state;
    struct k3_io *io;
    struct k3_gpu_api other = {.kind = kind == K3_GPU_CUDA ? K3_GPU_HIP : K3_GPU_CUDA};
    struct k3_gpu wrong = {.api = &other};
    struct k3_io_options options = {.depth = 0, .gpu = k3_dev_gpu(dev)};
    assert_int_equal(io_ops->open(&options, &io, NULL), K3_EUSAGE);
    assert_null(io);
    options.depth = 1;
    options.gpu = NULL;
    assert_int_equal(io_ops->open(&options, &io, NULL), K3_EUNSUPPORTED);
    options.gpu = &wrong;
    assert_int_equal(io_ops->open(&options, &io, &err), K3_EUNSUPPORTED);
    assert_null(io);
}

/* The driver of the library refuses once, and is asked again by the next engine.  It is open once
 * however many engines are, and closed with the last; one that others opened is left to them. */
static void test_driver_refused(void **state)
{
    (void)state;
    struct k3_io *io;
    set_fault(FAKE_CUFILE_OPEN, 0, 0, 5001);
    assert_int_equal(open_engine(1, &io, NULL), K3_EUNSUPPORTED);
    assert_null(io);
    assert_non_null(strstr(err.text, "does not start: its kernel driver is not loaded"));
    set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    struct k3_io *first = engine(1), *second = engine(1);
    assert_int_equal(atomic_load(&fake->drivers), 1);
    io_ops->close(first);
    assert_int_equal(atomic_load(&fake->drivers), 1);
    io_ops->close(second);
    assert_int_equal(atomic_load(&fake->drivers), 0);
    set_fault(FAKE_CUFILE_OPEN, 0, 0, 5026);
    io_ops->close(engine(1));
    assert_int_equal(atomic_load(&fake->drivers), 0);
}

/* Memory that is not registered is read into all the same, and that is told. */
static void test_not_registered(void **state)
{
    (void)state;
    struct k3_io *io;
    struct k3_err note;
    uint32_t file;
    k3_err_init(&note);
    set_fault(FAKE_CUFILE_MEMORY, 0, 0, 5036);
    assert_int_equal(open_engine(DEPTH, &io, &note), 0);
    assert_non_null(strstr(note.text, "is not registered"));
    for (uint32_t f = 0; f < FILE_COUNT; f++)
        assert_int_equal(io_ops->add_file(io, files.fds[f], &file, NULL), 0);
    random_state = 5;
    read_random(io, DEPTH);
    assert_int_equal(atomic_load(&fake->registered_count), 0);
    io_ops->close(io);
}

static void test_way(void **state)
{
    (void)state;
    static const enum k3_gpufile_way ways[] = {[FAKE_CUFILE_COMPAT] = K3_GPUFILE_BOUNCE,
                                               [FAKE_CUFILE_NVFS] = K3_GPUFILE_DIRECT,
                                               [FAKE_CUFILE_P2P] = K3_GPUFILE_DIRECT,
                                               [FAKE_CUFILE_FORCED] = K3_GPUFILE_BOUNCE};
    struct k3_io *io = engine(1);
    for (int mode = 0; mode < 4; mode++) {
        fake->mode = (enum fake_cufile_mode)mode;
        k3_err_init(&err);
        enum k3_gpufile_way way = k3_gpufile_way(io, &err);
        /* The fake ROCm driver has no reads into a GPU. */
        assert_int_equal(way, kind == K3_GPU_HIP ? K3_GPUFILE_BOUNCE : ways[mode]);
        assert_int_equal(strstr(err.text, "through host memory") != NULL, way == K3_GPUFILE_BOUNCE);
    }
    io_ops->close(io);
}

/* ---- runs ---- */

#define FILE_TEST(f) cmocka_unit_test_setup_teardown(f, begin_test, end_test)

static int run_library(void)
{
    const struct CMUnitTest tests[] = {FILE_TEST(test_random),     FILE_TEST(test_idle_reap),
                                       FILE_TEST(test_depth),      FILE_TEST(test_close_drains),
                                       FILE_TEST(test_bad_target), FILE_TEST(test_bad_file),
                                       FILE_TEST(test_bad_options)};
    return !has_engine() || cmocka_run_group_tests_name(io_ops->name, tests, open_all, close_all);
}

static int run_fake(void)
{
    const struct CMUnitTest tests[] = {
        FILE_TEST(test_driver_refused), FILE_TEST(test_random),
        FILE_TEST(test_short_reads),    FILE_TEST(test_idle_reap),
        FILE_TEST(test_depth),          FILE_TEST(test_close_drains),
        FILE_TEST(test_bad_target),     FILE_TEST(test_errors),
        FILE_TEST(test_bad_file),       FILE_TEST(test_bad_options),
        FILE_TEST(test_not_registered), FILE_TEST(test_way),
    };
    if (k3_gpu_kernels_probe(kind, NULL))
        return 0; /* test_dev_gpu says that this build has no code for it */
    return !find_fake() || cmocka_run_group_tests_name(io_ops->name, tests, open_all, close_all);
}

/* A library that is not there or lacks a call: the sentence, from the engine and from a load. */
static int run_refused(const char *text)
{
    k3_err_init(&err);
    int rc = io_ops->probe(NULL, &err);
    if (rc != K3_EUNSUPPORTED || !strstr(err.text, text)) {
        printf("%d: %s\n", rc, err.text);
        return 1;
    }
    const char *dirs[] = {"."};
    const struct k3_load_options options = {.struct_bytes = sizeof options,
                                            .dirs = dirs,
                                            .dir_count = 1,
                                            .device = ops->name,
                                            .io = io_ops->name};
    struct k3_load *load = NULL;
    rc = k3_load_open(&options, &load, &err);
    return rc != K3_EUNSUPPORTED || !strstr(err.text, text);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *libraries, *kind, *text;
    } rows[] = {{"fake_file_bad", "cuda", "no libcufile.so.0 on this machine"},
                {"fake_file_bad", "hip", "no libhipfile.so.0 on this machine"},
                {"fake_file_old", "cuda", "has no cuFileRead: a newer one is needed"},
                {"fake_file_old", "hip", "has no hipFileRead: a newer one is needed"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(run_again(rows[i].libraries, NULL,
                                   (const char *[]){"refused", rows[i].kind, rows[i].text}),
                         0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused)};
    if (argc >= 3) {
        choose_engine(argv[2]);
        if (strcmp(argv[1], "real") == 0)
            return run_library();
        return argc == 4 ? run_refused(argv[3]) : run_fake();
    }
    if (again_begin())
        return 1;
    int failed = cmocka_run_group_tests_name("no library", tests, NULL, NULL) + run_fakes();
    unlink(report_path);
    return failed;
}
