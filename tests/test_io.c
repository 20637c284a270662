/* Purpose: the conformance suite that every io engine passes.
 * Owns: three temporary files for the whole run.
 * Threads: one drives each engine.
 * Errors: a failed assertion ends the test.
 * Invariant: target memory is poisoned before each read, so a skipped write is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fault_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILE_COUNT 3u
#define FILE_BYTES (3u * 1024 * 1024 + 777) /* ends inside a block */
#define DEPTH      8u
#define POISON     0xA5

static int fds[FILE_COUNT];
static char paths[FILE_COUNT][64];
static const struct k3_io_ops *ops; /* the engine under test */

/* Stands before the pread of libc in this program: when asked, reads come in small pieces and are
 * interrupted again and again. */
static atomic_bool short_reads;
static atomic_uint short_count;

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    if (atomic_load(&short_reads)) {
        if (atomic_fetch_add(&short_count, 1) % 3 == 0) {
            errno = EINTR;
            return -1;
        }
        bytes = bytes < 30011 ? bytes : 30011;
    }
    struct iovec piece = {data, bytes};
    return preadv(fd, &piece, 1, offset);
}

static uint8_t content(uint32_t file, uint64_t offset)
{
    uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15u + file;
    return (uint8_t)(x >> (8 * (offset % 8)));
}

static int make_files(void **state)
{
    (void)state;
    for (uint32_t f = 0; f < FILE_COUNT; f++) {
        uint8_t *data = malloc(FILE_BYTES);
        if (!data)
            return 1;
        for (uint64_t i = 0; i < FILE_BYTES; i++)
            data[i] = content(f, i);
        snprintf(paths[f], sizeof paths[f], "/tmp/k3-io-XXXXXX");
        fds[f] = mkstemp(paths[f]);
        if (fds[f] < 0 || write(fds[f], data, FILE_BYTES) != (ssize_t)FILE_BYTES)
            return 1;
        free(data);
    }
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    for (uint32_t f = 0; f < FILE_COUNT; f++) {
        close(fds[f]);
        unlink(paths[f]);
    }
    return 0;
}

static struct k3_io *open_engine(uint32_t depth, uint32_t threads)
{
    struct k3_io *io;
    struct k3_err err;
    struct k3_io_options options = {.depth = depth, .thread_count = threads};
    k3_err_init(&err);
    assert_int_equal(ops->probe(NULL, &err), 0);
    assert_int_equal(ops->open(&options, &io, &err), 0);
    for (uint32_t f = 0; f < FILE_COUNT; f++) {
        uint32_t file;
        assert_int_equal(ops->add_file(io, fds[f], &file, &err), 0);
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

/* All bytes that arrived are those of the file, and not one behind them was touched. */
static void check_read(const struct k3_io_read *read, const struct k3_io_done *done)
{
    const uint8_t *data = read->target;
    size_t bytes = expect_bytes(read);
    assert_int_equal(done->sys_errno, 0);
    assert_int_equal(done->bytes, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != content(read->file, read->offset + i))
            fail_msg("file %u, byte %zu of the read at %llu", read->file, i,
                     (unsigned long long)read->offset);
    for (size_t i = bytes; i < read->bytes + 64; i++)
        assert_int_equal(data[i], POISON);
}

static uint32_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)random_state * limit) >> 32);
}

static void random_read(struct k3_io_read *read, uint64_t tag)
{
    read->file = random_below(FILE_COUNT);
    read->offset = random_below(FILE_BYTES + 100000);
    read->bytes = random_below(8) ? random_below(200000) : random_below(5);
    read->tag = tag;
    read->target = malloc(read->bytes + 64);
    assert_non_null(read->target);
    memset(read->target, POISON, read->bytes + 64);
}

/* Many reads of any file, length and offset, past the end as well, always some in flight. */
static void test_random(void **state)
{
    (void)state;
    enum { READ_COUNT = 600 };
    static struct k3_io_read reads[READ_COUNT];
    static const uint32_t depths[] = {1, 2, DEPTH};
    for (uint32_t d = 0; d < 3; d++) {
        struct k3_io *io = open_engine(depths[d], 0);
        uint32_t next = 0, done_count = 0;
        static bool seen[READ_COUNT];
        memset(seen, 0, sizeof seen);
        random_state = 1 + d;
        while (done_count < READ_COUNT) {
            struct k3_io_done done[5];
            uint32_t count = READ_COUNT - next;
            if (count > depths[d] - (next - done_count))
                count = depths[d] - (next - done_count);
            for (uint32_t i = 0; i < count; i++)
                random_read(&reads[next + i], next + i);
            assert_int_equal(ops->submit(io, &reads[next], count, NULL), 0);
            next += count;
            assert_int_equal(ops->reap(io, done, 1 + random_below(5), &count, NULL), 0);
            assert_true(count >= 1 && count <= 5);
            for (uint32_t i = 0; i < count; i++) {
                assert_true(done[i].tag < next && !seen[done[i].tag]);
                seen[done[i].tag] = true;
                check_read(&reads[done[i].tag], &done[i]);
                free(reads[done[i].tag].target);
            }
            done_count += count;
        }
        ops->close(io);
    }
}

/* Short results and EINTR never reach the caller. */
static void test_short_reads(void **state)
{
    atomic_store(&short_reads, true);
    test_random(state);
    atomic_store(&short_reads, false);
    assert_true(atomic_load(&short_count) > 600);
}

static void test_idle_reap(void **state)
{
    (void)state;
    struct k3_io *io = open_engine(DEPTH, 2);
    struct k3_io_done done[2];
    uint32_t count = 77;
    assert_int_equal(ops->reap(io, done, 2, &count, NULL), 0);
    assert_int_equal(count, 0);
    assert_int_equal(ops->submit(io, NULL, 0, NULL), 0);
    ops->close(io);
    ops->close(NULL);
}

/* A batch over the depth is refused as a whole; one that fits goes on. */
static void test_depth(void **state)
{
    (void)state;
    struct k3_io *io = open_engine(DEPTH, 2);
    struct k3_io_read reads[DEPTH + 1];
    struct k3_io_done done[DEPTH + 1];
    struct k3_err err;
    random_state = 9;
    for (uint32_t i = 0; i <= DEPTH; i++)
        random_read(&reads[i], i);
    k3_err_init(&err);
    assert_int_equal(ops->submit(io, reads, DEPTH + 1, &err), K3_EUSAGE);
    uint32_t count, total = 0;
    assert_int_equal(ops->reap(io, done, DEPTH, &count, NULL), 0);
    assert_int_equal(count, 0);
    assert_int_equal(ops->submit(io, reads, DEPTH, NULL), 0);
    assert_int_equal(ops->submit(io, &reads[DEPTH], 1, NULL), K3_EUSAGE);
    while (total < DEPTH) {
        assert_int_equal(ops->reap(io, done, DEPTH, &count, NULL), 0);
        for (uint32_t i = 0; i < count; i++)
            check_read(&reads[done[i].tag], &done[i]);
        total += count;
    }
    assert_int_equal(ops->submit(io, &reads[DEPTH], 1, NULL), 0);
    assert_int_equal(ops->reap(io, done, DEPTH, &count, NULL), 0);
    assert_int_equal(count, 1);
    check_read(&reads[DEPTH], &done[0]);
    ops->close(io);
    for (uint32_t i = 0; i <= DEPTH; i++)
        free(reads[i].target);
}

/* Close with reads in flight: when it returns, nothing more is written to any target. */
static void test_close_drains(void **state)
{
    (void)state;
    enum { COUNT = 64, BYTES = 262144 };
    uint8_t *memory = malloc((size_t)COUNT * BYTES);
    assert_non_null(memory);
    for (int turn = 0; turn < 20; turn++) {
        struct k3_io *io = open_engine(COUNT, 4);
        struct k3_io_read reads[COUNT];
        for (uint32_t i = 0; i < COUNT; i++)
            reads[i] = (struct k3_io_read){.target = memory + (size_t)i * BYTES,
                                           .bytes = BYTES,
                                           .tag = i,
                                           .file = i % FILE_COUNT};
        assert_int_equal(ops->submit(io, reads, COUNT, NULL), 0);
        if (turn % 2) {
            struct k3_io_done done[1];
            uint32_t count;
            assert_int_equal(ops->reap(io, done, 1, &count, NULL), 0);
        }
        ops->close(io);
        memset(memory, POISON, (size_t)COUNT * BYTES);
        for (size_t i = 0; i < (size_t)COUNT * BYTES; i++)
            if (memory[i] != POISON)
                fail_msg("byte %zu was written after close", i);
    }
    free(memory);
}

/* A read that the system refuses is a completion with its errno, and the others are whole. */
static void test_bad_file(void **state)
{
    (void)state;
    struct k3_io *io = open_engine(DEPTH, 0);
    struct k3_io_read reads[2];
    struct k3_io_done done[2];
    struct k3_err err;
    uint32_t bad, count, total = 0;
    int fd = open("/dev/null", O_WRONLY);
    assert_int_equal(ops->add_file(io, fd, &bad, NULL), 0);
    random_state = 3;
    random_read(&reads[0], 0);
    random_read(&reads[1], 1);
    reads[0].bytes = 1000;
    reads[0].offset = 0;
    free(reads[0].target);
    reads[0].target = malloc(1064);
    reads[0].file = bad;
    assert_int_equal(ops->submit(io, reads, 2, NULL), 0);
    while (total < 2) {
        assert_int_equal(ops->reap(io, done, 2, &count, NULL), 0);
        for (uint32_t i = 0; i < count; i++) {
            if (done[i].tag == 1) {
                check_read(&reads[1], &done[i]);
            } else {
                assert_int_equal(done[i].sys_errno, EBADF);
                assert_int_equal(done[i].bytes, 0);
            }
        }
        total += count;
    }
    /* A file that was never added is the caller's mistake: refused before anything is read. */
    k3_err_init(&err);
    reads[0].file = 1000;
    assert_int_equal(ops->submit(io, reads, 1, &err), K3_EUSAGE);
    ops->close(io);
    close(fd);
    free(reads[0].target);
    free(reads[1].target);
}

static void test_bad_options(void **state)
{
    (void)state;
    struct k3_io *io;
    struct k3_io_options options = {.depth = 0};
    assert_int_equal(ops->open(&options, &io, NULL), K3_EUSAGE);
    assert_null(io);
}

static int use_pread(void **state)
{
    (void)state;
    ops = &k3_io_pread;
    return 0;
}

static int use_fault(void **state)
{
    (void)state;
    ops = fault_io(&k3_io_pread, NULL);
    return 0;
}

/* Reads that end late are reads all the same: the whole suite must not notice. */
static int use_late(void **state)
{
    (void)state;
    static const struct fault_io_rule rule = {FAULT_IO_LATE, 1, UINT64_MAX};
    ops = fault_io(&k3_io_pread, &rule);
    return 0;
}

#define SUITE(engine)                                                                              \
    cmocka_unit_test_setup(test_random, engine), cmocka_unit_test_setup(test_short_reads, engine), \
        cmocka_unit_test_setup(test_idle_reap, engine),                                            \
        cmocka_unit_test_setup(test_depth, engine),                                                \
        cmocka_unit_test_setup(test_close_drains, engine),                                         \
        cmocka_unit_test_setup(test_bad_file, engine),                                             \
        cmocka_unit_test_setup(test_bad_options, engine)

int main(void)
{
    const struct CMUnitTest tests[] = {SUITE(use_pread), SUITE(use_fault), SUITE(use_late)};
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
