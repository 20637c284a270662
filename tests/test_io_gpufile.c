/* Purpose: the engines cufile and hipfile: what every io engine promises, with targets on a GPU,
 * and loads that take them; over fake libraries, or over those of this machine. test_io_gpufile
 * over the fakes: cufile, hipfile, and what is refused test_io_gpufile real KIND    over the
 * libraries of this machine (cuda or hip), no faults Owns: two files, a device with one region, a
 * set for the whole run. Threads: one drives each engine. Errors: a failed assertion ends the test.
 * Invariant: the region is poisoned before each read, so a skipped write is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dev.h"
#include "fake_cufile.h"
#include "gpu_kernels.h"
#include "io_gpufile.h"
#include "k3_load.h"
#include "mini_set.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILE_COUNT   2u
#define FILE_BYTES   (1024u * 1024 + 777) /* ends inside a block */
#define SLOT_BYTES   262144u
#define DEPTH        8u
#define REGION_BYTES ((size_t)DEPTH * SLOT_BYTES)
#define POISON       0xA5
#define PATH_BYTES   4096
#define COUNT_OF(a)  (sizeof(a) / sizeof *(a))

static enum k3_gpu_kind kind;
static const struct k3_io_ops *io_ops;
static const struct k3_dev_ops *dev_ops;
static struct fake_cufile *fake; /* NULL: a real library */
static struct k3_dev *dev;
static void *region;    /* REGION_BYTES on the device */
static uint8_t *mirror; /* the same on the host */
static int fds[FILE_COUNT];
static char paths[FILE_COUNT][256];
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

static void choose(const char *name)
{
    kind = strcmp(name, "hip") == 0 ? K3_GPU_HIP : K3_GPU_CUDA;
    io_ops = kind == K3_GPU_HIP ? &k3_io_hipfile : &k3_io_cufile;
    dev_ops = kind == K3_GPU_HIP ? &k3_dev_hip : &k3_dev_cuda;
}

/* ---- files and memory ---- */

static uint8_t content(uint32_t file, uint64_t offset)
{
    uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15u + file;
    return (uint8_t)(x >> (8 * (offset % 8)));
}

static void make_files(void)
{
    const char *place = getenv("TMPDIR");
    for (uint32_t f = 0; f < FILE_COUNT; f++) {
        uint8_t *data = malloc(FILE_BYTES);
        assert_non_null(data);
        for (uint64_t i = 0; i < FILE_BYTES; i++)
            data[i] = content(f, i);
        snprintf(paths[f], sizeof paths[f], "%s/k3-io-XXXXXX", place ? place : "/tmp");
        fds[f] = mkstemp(paths[f]);
        assert_true(fds[f] >= 0);
        assert_int_equal(write(fds[f], data, FILE_BYTES), FILE_BYTES);
        assert_int_equal(fsync(fds[f]), 0);
        free(data);
    }
}

static void copy_all(void *target, const void *source, size_t bytes, enum k3_copy_kind copy_kind)
{
    struct k3_dev_copy copy = {target, source, bytes, copy_kind};
    assert_int_equal(dev_ops->copy_begin(dev, 0, &copy, NULL), 0);
    assert_int_equal(dev_ops->copy_wait(dev, 0, K3_DEV_WAIT_ALL, NULL), 0);
}

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
    if (dev_ops->open(&options, &dev, &err)) {
        print_message("%s\n", err.text);
        return -1;
    }
    assert_int_equal(dev_ops->alloc(dev, REGION_BYTES, &region, NULL), 0);
    mirror = malloc(REGION_BYTES);
    assert_non_null(mirror);
    make_files();
    mini_set_make(&one, 1);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    dev_ops->release(dev, region, REGION_BYTES);
    dev_ops->close(dev);
    free(mirror);
    for (uint32_t f = 0; f < FILE_COUNT; f++) {
        close(fds[f]);
        unlink(paths[f]);
    }
    mini_set_remove(&one);
    return 0;
}

static void set_fault(enum fake_cufile_fault fault, uint64_t first, uint64_t count, int code)
{
    if (!fake)
        return;
    fake->fault = fault;
    fake->first = first;
    fake->count = count;
    fake->code = code;
    atomic_store(&fake->read_count, 0);
    atomic_store(&fake->hit_count, 0);
    atomic_store(&fake->registered_count, 0);
}

static int begin_test(void **state)
{
    (void)state;
    k3_err_init(&err);
    has_nvfs = false;
    clock_kind = CLOCK_REAL;
    set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    if (fake)
        fake->mode = FAKE_CUFILE_COMPAT;
    return 0;
}

/* All that was registered is given back, whatever happened. */
static int end_test(void **state)
{
    (void)state;
    k3_load_close(load);
    load = NULL;
    if (fake)
        assert_int_equal(atomic_load(&fake->files) + atomic_load(&fake->memories), 0);
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
        assert_int_equal(io_ops->add_file(io, fds[f], &file, &err), 0);
        assert_int_equal(file, f);
    }
    return io;
}

static size_t expect_bytes(const struct k3_io_read *read)
{
    if (read->offset >= FILE_BYTES)
        return 0;
    uint64_t left = FILE_BYTES - read->offset;
    return left < read->bytes ? (size_t)left : read->bytes;
}

/* All bytes that arrived are those of the file, and not one behind the target was touched. */
static void check_read(const struct k3_io_read *read, const struct k3_io_done *done)
{
    const uint8_t *data = mirror + ((char *)read->target - (char *)region);
    size_t bytes = expect_bytes(read);
    assert_int_equal(done->sys_errno, 0);
    assert_int_equal(done->bytes, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != content(read->file, read->offset + i))
            fail_msg("file %u, byte %zu of the read at %llu", read->file, i,
                     (unsigned long long)read->offset);
    for (size_t i = bytes; i < SLOT_BYTES; i++)
        if (data[i] != POISON && (i >= read->bytes || data[i] != 0))
            fail_msg("byte %zu behind the %zu that arrived was touched", i, bytes);
}

static uint32_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)random_state * limit) >> 32);
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
static void reap_all(struct k3_io *io, struct k3_io_done *by_tag, uint32_t wanted)
{
    uint32_t total = 0;
    bool seen[DEPTH] = {false};
    while (total < wanted) {
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
        assert_int_equal(io_ops->add_file(io, fds[1], &file, &err), K3_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "file system or drive of this file is not supported"));
        set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    }
    assert_int_equal(io_ops->add_file(io, fds[1], &file, NULL), 0);
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

/* The driver of the library refuses once, and is asked again by the next engine. */
static void test_driver_refused(void **state)
{
    (void)state;
    struct k3_io *io;
    set_fault(FAKE_CUFILE_OPEN, 0, 0, 5001);
    assert_int_equal(open_engine(1, &io, NULL), K3_EUNSUPPORTED);
    assert_null(io);
    assert_non_null(strstr(err.text, "does not start: its kernel driver is not loaded"));
    set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    io_ops->close(engine(1));
    io_ops->close(engine(1));
    assert_int_equal(atomic_load(&fake->drivers), 1);
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
        assert_int_equal(io_ops->add_file(io, fds[f], &file, NULL), 0);
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

/* ---- loads ---- */

static struct k3_load_options options_for(const char *io, const char *device)
{
    static char name[32];
    snprintf(name, sizeof name, "%s:%s", dev_ops->name, device);
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
    } rows[] = {
        {false, FAKE_CUFILE_NVFS, FAKE_CUFILE_NONE, CLOCK_SLOW_FIRST, false},
        {true, FAKE_CUFILE_COMPAT, FAKE_CUFILE_NONE, CLOCK_SLOW_FIRST, false},
        {true, FAKE_CUFILE_NVFS, FAKE_CUFILE_ERRNO, CLOCK_SLOW_FIRST, false},
        {true, FAKE_CUFILE_NVFS, FAKE_CUFILE_FILE, CLOCK_SLOW_FIRST, false},
        {true, FAKE_CUFILE_NVFS, FAKE_CUFILE_NONE, CLOCK_FAST_FIRST, false},
        {true, FAKE_CUFILE_NVFS, FAKE_CUFILE_NONE, CLOCK_SLOW_FIRST, true},
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
        /* The fake ROCm driver has no reads into a GPU, which is nothing to talk of. */
        snprintf(line, sizeof line, "io %s is %s: ", io_ops->name, is_taken ? "used" : "not used");
        assert_int_equal(strstr(report.fallbacks, line) != NULL, i > 0 && kind == K3_GPU_CUDA);
        assert_int_equal(strcmp(report.io, io_ops->name) == 0, is_taken);
        assert_int_equal(report.pinned_bytes == 0, is_taken);
        assert_int_equal(atomic_load(&fake->read_count) != 0, is_taken);
        k3_load_close(load);
        load = NULL;
    }
}

/* ---- runs ---- */

#define FILE_TEST(f) cmocka_unit_test_setup_teardown(f, begin_test, end_test)

static int run_real(bool is_required)
{
    const struct CMUnitTest tests[] = {FILE_TEST(test_random),      FILE_TEST(test_idle_reap),
                                       FILE_TEST(test_depth),       FILE_TEST(test_close_drains),
                                       FILE_TEST(test_bad_target),  FILE_TEST(test_bad_file),
                                       FILE_TEST(test_bad_options), FILE_TEST(test_load)};
    k3_err_init(&err);
    if (dev_ops->probe(0, &err) || io_ops->probe(NULL, &err)) {
        printf("SKIP %s: %s\n", io_ops->name, err.text);
        return is_required;
    }
    return cmocka_run_group_tests_name(io_ops->name, tests, open_all, close_all);
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
        FILE_TEST(test_load),           FILE_TEST(test_load_faults),
        FILE_TEST(test_load_refused),   FILE_TEST(test_auto),
    };
    k3_err_init(&err);
    if (k3_gpu_kernels_probe(kind, &err)) {
        printf("[  SKIPPED ] %s: %s\n", io_ops->name, err.text);
        return 0;
    }
    void *library = dlopen(kind == K3_GPU_CUDA ? "libcufile.so.0" : "libhipfile.so.0", RTLD_NOW);
    struct fake_cufile *(*find)(void) = NULL;
    if (library)
        *(void **)&find = dlsym(library, "fake_cufile_state");
    if (!find)
        return 1;
    fake = find();
    return cmocka_run_group_tests_name(io_ops->name, tests, open_all, close_all);
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
                                            .device = dev_ops->name,
                                            .io = io_ops->name};
    rc = k3_load_open(&options, &load, &err);
    return rc != K3_EUNSUPPORTED || !strstr(err.text, text);
}

/* This program again, with other libraries. */
static int run_again(const char *libraries, const char *const arguments[3])
{
    char program[PATH_BYTES] = "", folder[PATH_BYTES] = "";
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(bytes > 0);
    memcpy(folder, program, sizeof folder);
    for (int up = 0; up < 2; up++) /* OUT/tests/test_io_gpufile */
        *strrchr(folder, '/') = 0;
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char path[3 * PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s:%s/fake", folder, libraries, folder);
        setenv("LD_LIBRARY_PATH", path, 1);
        char *argv[] = {program, NULL, NULL, NULL, NULL};
        for (int i = 0; i < 3; i++)
            argv[i + 1] = (char *)(uintptr_t)arguments[i];
        execv(program, argv);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
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
        assert_int_equal(
            run_again(rows[i].libraries, (const char *[]){"refused", rows[i].kind, rows[i].text}),
            0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused)};
    if (argc >= 3) {
        choose(argv[2]);
        if (strcmp(argv[1], "real") == 0)
            return run_real(true);
        return argc == 4 ? run_refused(argv[3]) : run_fake();
    }
    int failed = cmocka_run_group_tests_name("no library", tests, NULL, NULL);
    failed += run_again("fake_file", (const char *[]){"fake", "cuda", NULL}) != 0;
    failed += run_again("fake_file", (const char *[]){"fake", "hip", NULL}) != 0;
    return failed;
}
