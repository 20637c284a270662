/* Purpose: the conformance suite that every io engine passes: pread through and past the page
 * cache, uring, each also behind the fault decorators. Owns: three temporary files for the whole
 * run. Threads: one drives each engine. Errors: a failed assertion ends the test; an engine that
 * cannot run here is skipped, and says why. Invariant: target memory is poisoned before each read,
 * so a skipped write is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fault_io.h"
#include "io_direct.h"
#include "io_files.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILE_COUNT 3u
#define FILE_BYTES (3u * 1024 * 1024 + 777) /* ends inside a block */
#define DEPTH      8u
#define POISON     0xA5

#define ALIGN 4096u

static struct io_files files;
static const struct k3_io_ops *ops;    /* the engine under test */
static bool is_direct;                 /* it was asked to read past the page cache */
static bool is_past;                   /* it does */
static bool is_shared;                 /* several threads bring one read */
static struct k3_io_region registered; /* memory to be registered; bytes 0: none */

/* Stands before the pread of libc in this program: when asked, reads come in small pieces and are
 * interrupted again and again.  Direct reads are whole blocks, but less may be said of them. */
static atomic_bool short_reads;
static atomic_uint short_count;

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    size_t said = bytes;
    if (atomic_load(&short_reads)) {
        if (atomic_fetch_add(&short_count, 1) % 3 == 0) {
            errno = EINTR;
            return -1;
        }
        said = bytes < 30011 ? bytes : 30011;
        size_t most = fcntl(fd, F_GETFL) & O_DIRECT ? 32768 : 30011;
        bytes = bytes < most ? bytes : most;
    }
    struct iovec piece = {data, bytes};
    ssize_t n = preadv(fd, &piece, 1, offset);
    return n > (ssize_t)said ? (ssize_t)said : n;
}

/* The same for the completions of a ring, with "try again" besides; the wake-up is no read. */
unsigned io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes, unsigned max)
{
    static unsigned (*real)(struct io_uring *, struct io_uring_cqe **, unsigned);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "io_uring_peek_batch_cqe");
    unsigned count = real(ring, cqes, max);
    for (unsigned i = 0; atomic_load(&short_reads) && i < count; i++) {
        if (io_uring_cqe_get_data64(cqes[i]) == UINT64_MAX)
            continue;
        unsigned n = atomic_fetch_add(&short_count, 1);
        if (n % 4 < 2)
            cqes[i]->res = n % 4 ? -EINTR : -EAGAIN;
        else if (cqes[i]->res > 30011)
            cqes[i]->res = 30011;
    }
    return count;
}

static struct k3_io *open_engine(uint32_t depth, uint32_t threads)
{
    struct k3_io *io;
    struct k3_err err;
    struct k3_io_options options = {.depth = depth,
                                    .thread_count = threads,
                                    .is_direct = is_direct,
                                    .is_shared = is_shared,
                                    .regions = &registered,
                                    .region_count = registered.bytes != 0};
    k3_err_init(&err);
    assert_int_equal(ops->probe(NULL, &err), 0);
    assert_int_equal(ops->open(&options, &io, &err), 0);
    for (uint32_t f = 0; f < FILE_COUNT; f++) {
        uint32_t file;
        assert_int_equal(ops->add_file(io, files.fds[f], &file, &err), 0);
        assert_int_equal(file, f);
    }
    return io;
}

/* All bytes that arrived are those of the file, and not one behind the target was touched. */
static void check_read(const struct k3_io_read *read, const struct k3_io_done *done)
{
    const uint8_t *data = read->target;
    size_t bytes = io_files_expect(&files, read);
    assert_int_equal(done->sys_errno, 0);
    assert_int_equal(done->bytes, bytes);
    io_files_compare(read, data, bytes);
    /* A direct read of the last block brings zeros behind the end, within what was asked for. */
    for (size_t i = bytes; i < read->bytes + 64; i++)
        if (data[i] != POISON && !(is_past && i < read->bytes && data[i] == 0))
            fail_msg("byte %zu behind the %zu that arrived was touched", i, bytes);
}

/* Every other one is of whole blocks, as direct reads are. */
static void random_read(struct k3_io_read *read, uint64_t tag)
{
    size_t align = tag % 2 ? ALIGN : 1;
    read->file = random_below(FILE_COUNT);
    read->offset = random_below(FILE_BYTES + 100000) / align * align;
    /* Of those that are shared some have several pieces. */
    const uint32_t most = is_shared ? 1200000 : 200000;
    read->bytes = random_below(8) ? random_below(most) / align * align : random_below(5);
    read->tag = tag;
    read->target = aligned_alloc(ALIGN, (read->bytes + 64 + ALIGN - 1) / ALIGN * ALIGN);
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
    const uint32_t read_count = is_past ? READ_COUNT / 5 : READ_COUNT; /* a drive takes its time */
    for (uint32_t d = 0; d < 3; d++) {
        struct k3_io *io = open_engine(depths[d], 0);
        uint32_t next = 0, done_count = 0;
        static bool seen[READ_COUNT];
        memset(seen, 0, sizeof seen);
        random_state = 1 + d;
        while (done_count < read_count) {
            struct k3_io_done done[5];
            uint32_t count = read_count - next;
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
    atomic_store(&short_count, 0);
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
    count = 77;
    assert_int_equal(ops->poll(io, done, 2, &count, NULL), 0);
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

/* Polling alone brings every read once, up to `max` at a time. */
static void test_poll(void **state)
{
    (void)state;
    struct k3_io *io = open_engine(DEPTH, 2);
    struct k3_io_read reads[DEPTH];
    struct k3_io_done done[3];
    bool seen[DEPTH] = {false};
    uint32_t count, total = 0;
    random_state = 5;
    for (uint32_t i = 0; i < DEPTH; i++)
        random_read(&reads[i], i);
    assert_int_equal(ops->submit(io, reads, DEPTH, NULL), 0);
    while (total < DEPTH) {
        assert_int_equal(ops->poll(io, done, 3, &count, NULL), 0);
        assert_true(count <= 3);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(done[i].tag < DEPTH && !seen[done[i].tag]);
            seen[done[i].tag] = true;
            check_read(&reads[done[i].tag], &done[i]);
        }
        total += count;
    }
    assert_int_equal(ops->poll(io, done, 3, &count, NULL), 0);
    assert_int_equal(count, 0);
    ops->close(io);
    for (uint32_t i = 0; i < DEPTH; i++)
        free(reads[i].target);
}

/* Of a read with many pieces, what arrived ends before the first one that came short, whatever came
 * behind it. */
static void test_pieces(void **state)
{
    (void)state;
    enum { BYTES = 2 << 20, HOLE = 700 * 1024 / ALIGN * ALIGN };
    if (!is_shared)
        return;
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(mprotect(memory + HOLE, ALIGN, PROT_NONE), 0);
    for (uint32_t turn = 0; turn < 50; turn++) {
        struct k3_io *io = open_engine(DEPTH, 4);
        const struct k3_io_read read = {.target = memory, .bytes = BYTES, .tag = 7};
        struct k3_io_done done[2];
        uint32_t count;
        assert_int_equal(ops->submit(io, &read, 1, NULL), 0);
        assert_int_equal(ops->reap(io, done, 2, &count, NULL), 0);
        assert_int_equal(count, 1);
        assert_int_equal(done[0].tag, 7);
        assert_int_equal(done[0].sys_errno, EFAULT);
        assert_true(done[0].bytes <= HOLE && done[0].bytes >= HOLE / 262144 * 262144);
        for (size_t i = 0; i < done[0].bytes; i++)
            assert_int_equal(memory[i], io_content(0, i));
        ops->close(io);
    }
    munmap(memory, BYTES);
}

/* Close with reads in flight: when it returns, nothing more is written to any target. */
static void test_close_drains(void **state)
{
    (void)state;
    enum { COUNT = 64, BYTES = 262144 };
    uint8_t *memory = malloc((size_t)COUNT * BYTES);
    assert_non_null(memory);
    for (int turn = 0; turn < 12; turn++) {
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
        /* Each byte equals the one before. */
        if (memory[0] != POISON || memcmp(memory, memory + 1, (size_t)COUNT * BYTES - 1) != 0)
            fail_msg("turn %d: memory was written after close", turn);
    }
    free(memory);
}

/* A read that the system refuses is a completion with its errno, and the others are whole. */
static void test_bad_read(void **state)
{
    (void)state;
    struct k3_io *io = open_engine(DEPTH, 0);
    struct k3_io_read reads[2];
    struct k3_io_done done[2];
    struct k3_err err;
    uint32_t count, total = 0;
    void *page = mmap(NULL, ALIGN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    random_state = 3;
    random_read(&reads[1], 1);
    reads[0] = (struct k3_io_read){.target = page, .bytes = ALIGN};
    assert_int_equal(ops->submit(io, reads, 2, NULL), 0);
    while (total < 2) {
        assert_int_equal(ops->reap(io, done, 2, &count, NULL), 0);
        for (uint32_t i = 0; i < count; i++) {
            if (done[i].tag == 1) {
                check_read(&reads[1], &done[i]);
            } else {
                assert_int_equal(done[i].sys_errno, EFAULT);
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
    munmap(page, ALIGN);
    free(reads[1].target);
}

/* A file that cannot be read: a direct engine finds out at once, another one with the first read.
 */
static void test_bad_file(void **state)
{
    (void)state;
    struct k3_io *io = open_engine(DEPTH, 0);
    struct k3_io_done done;
    struct k3_err err;
    char byte;
    uint32_t bad, count;
    int fd = open("/dev/null", O_WRONLY);
    k3_err_init(&err);
    int rc = ops->add_file(io, fd, &bad, &err);
    if (is_past) {
        assert_int_equal(rc, K3_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "O_DIRECT"));
        assert_int_equal(ops->add_file(io, files.fds[1], &bad, NULL), 0);
        assert_int_equal(bad, FILE_COUNT);
    } else {
        assert_int_equal(rc, 0);
        struct k3_io_read read = {.target = &byte, .bytes = 1, .file = bad};
        assert_int_equal(ops->submit(io, &read, 1, NULL), 0);
        assert_int_equal(ops->reap(io, &done, 1, &count, NULL), 0);
        assert_int_equal(count, 1);
        assert_int_equal(done.sys_errno, EBADF);
    }
    ops->close(io);
    close(fd);
}

static size_t cached_pages(int fd)
{
    unsigned char in_core[FILE_BYTES / ALIGN + 1];
    size_t count = 0;
    void *map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mincore(map, FILE_BYTES, in_core), 0);
    munmap(map, FILE_BYTES);
    for (size_t i = 0; i < sizeof in_core; i++)
        count += in_core[i] & 1;
    return count;
}

/* A direct engine leaves no page of whole blocks behind, registered memory or not. */
static void test_past_the_cache(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    if (!is_past)
        return;
    uint8_t *memory = aligned_alloc(ALIGN, 2 * BYTES);
    assert_non_null(memory);
    (void)posix_fadvise(files.fds[0], 0, 0, POSIX_FADV_DONTNEED);
    if (cached_pages(files.fds[0])) { /* a file system that lives in memory */
        free(memory);
        skip();
    }
    for (int turn = 0; turn < 2; turn++) {
        registered = (struct k3_io_region){memory, turn ? BYTES + BYTES / 2 : 0};
        memset(memory, POISON, 2 * BYTES);
        struct k3_io *io = open_engine(DEPTH, 0);
        registered.bytes = 0;
        /* In the second turn the last block of the second one lies outside the region. */
        size_t bytes = BYTES / 2 + (turn ? ALIGN : 0);
        struct k3_io_read reads[2] = {
            {.target = memory, .bytes = BYTES},
            {.target = memory + BYTES, .bytes = bytes, .offset = BYTES, .tag = 1}};
        uint32_t count, total = 0;
        assert_int_equal(ops->submit(io, reads, 2, NULL), 0);
        for (struct k3_io_done done[2]; total < 2; total += count) {
            assert_int_equal(ops->reap(io, done, 2, &count, NULL), 0);
            for (uint32_t i = 0; i < count; i++) {
                assert_int_equal(done[i].sys_errno, 0);
                assert_int_equal(done[i].bytes, reads[done[i].tag].bytes);
            }
        }
        ops->close(io);
        for (size_t i = 0; i < BYTES + bytes; i++)
            if (memory[i] != io_content(0, i))
                fail_msg("byte %zu", i);
        assert_int_equal(memory[BYTES + bytes], POISON);
        assert_int_equal(cached_pages(files.fds[0]), 0);
    }
    free(memory);
}

static void test_bad_options(void **state)
{
    (void)state;
    struct k3_io *io;
    struct k3_io_options options = {.depth = 0};
    assert_int_equal(ops->open(&options, &io, NULL), K3_EUSAGE);
    assert_null(io);
}

/* ---- engines ---- */

static int use(const struct k3_io_ops *engine, bool direct, const struct fault_io_rule *rule)
{
    ops = rule ? fault_io(engine, rule) : engine;
    is_direct = direct;
    is_shared = false;
    is_past = direct || engine == &k3_io_uring;
    return 0;
}

static const struct fault_io_rule none = {FAULT_IO_NONE, 0, 0};
/* Reads that end late are reads all the same: the whole suite must not notice. */
static const struct fault_io_rule late = {FAULT_IO_LATE, 1, UINT64_MAX};

#define ENGINE(name, engine, direct, rule)                                                         \
    static int use_##name(void **state)                                                            \
    {                                                                                              \
        (void)state;                                                                               \
        return use(&engine, direct, rule);                                                         \
    }

ENGINE(pread, k3_io_pread, false, NULL)

static int use_shared(void **state)
{
    (void)state;
    use(&k3_io_pread, false, NULL);
    is_shared = true;
    return 0;
}

ENGINE(pread_fault, k3_io_pread, false, &none)
ENGINE(pread_late, k3_io_pread, false, &late)
ENGINE(direct, k3_io_pread, true, NULL)
ENGINE(direct_late, k3_io_pread, true, &late)
ENGINE(uring, k3_io_uring, false, NULL)
ENGINE(uring_fault, k3_io_uring, false, &none)
ENGINE(uring_late, k3_io_uring, false, &late)

#define SUITE(engine)                                                                              \
    cmocka_unit_test_setup(test_random, engine), cmocka_unit_test_setup(test_short_reads, engine), \
        cmocka_unit_test_setup(test_idle_reap, engine),                                            \
        cmocka_unit_test_setup(test_depth, engine), cmocka_unit_test_setup(test_poll, engine),     \
        cmocka_unit_test_setup(test_pieces, engine),                                               \
        cmocka_unit_test_setup(test_close_drains, engine),                                         \
        cmocka_unit_test_setup(test_bad_read, engine),                                             \
        cmocka_unit_test_setup(test_bad_file, engine),                                             \
        cmocka_unit_test_setup(test_past_the_cache, engine),                                       \
        cmocka_unit_test_setup(test_bad_options, engine)

/* Can the engine run here?  If not, its reason is printed. */
static bool runs(const char *name, const struct k3_io_ops *engine, bool direct)
{
    struct k3_err err;
    struct k3_io_file file;
    k3_err_init(&err);
    int rc = engine->probe(NULL, &err);
    if (!rc && direct)
        rc = k3_io_file_open(files.fds[0], true, &file, &err);
    if (rc) {
        printf("[ RUN      ] %s\n[  SKIPPED ] %s: %s\n", name, name, err.text);
        return false;
    }
    if (direct)
        k3_io_file_close(&file);
    return true;
}

int main(void)
{
    const struct CMUnitTest through[] = {SUITE(use_pread), SUITE(use_shared),
                                         SUITE(use_pread_fault), SUITE(use_pread_late)};
    const struct CMUnitTest direct[] = {SUITE(use_direct), SUITE(use_direct_late)};
    const struct CMUnitTest uring[] = {SUITE(use_uring), SUITE(use_uring_fault),
                                       SUITE(use_uring_late)};
    if (!io_files_make(&files, FILE_COUNT, FILE_BYTES))
        return 1;
    int failed = cmocka_run_group_tests(through, NULL, NULL);
    if (runs("pread past the page cache", &k3_io_pread, true))
        failed += cmocka_run_group_tests(direct, NULL, NULL);
    if (runs("uring", &k3_io_uring, true))
        failed += cmocka_run_group_tests(uring, NULL, NULL);
    io_files_remove(&files);
    return failed;
}
