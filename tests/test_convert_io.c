/* Purpose: how convert reads and writes: files in order by any number of slots, pieces in any
 * order. Owns: a file for each test, in TMPDIR. Threads: those of the reader and the writer.
 * Errors: a failed assertion ends the test.
 * Invariant: slots are poisoned before they are used, and each file is compared as a whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "convert_write.h"
#include "io_direct.h"
#include "mem.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOT_BYTES ((size_t)128 << 10)
#define SLOTS_MAX  8u
#define POISON     0xA5
#define FILE_BYTES (3u * 1024 * 1024 + 777) /* ends inside a block */

static struct k3_read_route route;
static uint8_t *memory, *content, *found;

static void no_error(int rc, const struct k3_err *err)
{
    if (rc)
        fail_msg("%s", err->text);
}

static int open_file(void)
{
    char path[256];
    const char *place = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/k3-test-XXXXXX", place ? place : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    return fd;
}

static void write_all(int fd, const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t n = pwrite(fd, data + at, bytes - at, (off_t)at);
        assert_true(n > 0);
        at += (size_t)n;
    }
}

static uint32_t next_random(uint32_t *state)
{
    return (*state = *state * 1664525u + 1013904223u) >> 8;
}

static int set_up(void **state)
{
    (void)state;
    struct k3_err err;
    void *data = NULL;
    uint32_t random = 1;
    k3_err_init(&err);
    no_error(k3_mem_alloc(SLOTS_MAX * SLOT_BYTES, &data, &err), &err);
    memory = data;
    content = malloc(FILE_BYTES);
    found = malloc(FILE_BYTES + 1);
    for (size_t i = 0; content && i < FILE_BYTES; i++)
        content[i] = (uint8_t)next_random(&random);
    k3_read_route_init(&route);
    return content && found ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    free(k3_read_route_fini(&route));
    k3_mem_free(memory, SLOTS_MAX * SLOT_BYTES);
    free(content);
    free(found);
    return 0;
}

/* ---- reading ---- */

static struct k3_reader reader_of(uint32_t slot_count)
{
    memset(memory, POISON, SLOTS_MAX * SLOT_BYTES);
    return (struct k3_reader){
        .route = &route, .slots = memory, .slot_bytes = SLOT_BYTES, .slot_count = slot_count};
}

/* Reads up to `bytes`, as the file was said to have; returns the first failure. */
static int read_file(struct k3_reader *reader, int fd, uint64_t bytes, struct k3_err *err)
{
    int rc = k3_reader_begin(reader, fd, "file", bytes, "files", err);
    size_t n = 0;
    for (uint64_t at = 0; at < bytes && !rc; at += n) {
        const uint8_t *data;
        rc = k3_reader_next(reader, &data, &n, err);
        if (!rc)
            assert_memory_equal(data, content + at, n);
    }
    k3_reader_end(reader);
    return rc;
}

static void reads_in_order(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, SLOT_BYTES, SLOT_BYTES + 1, 3 * SLOT_BYTES, FILE_BYTES};
    const bool has_ring = route.has_ring;
    for (int without = 0; without < 2; without++) {
        route.has_ring = has_ring && !without;
        for (uint32_t slots = 1; slots <= SLOTS_MAX; slots += slots < 3 ? 1 : 5) {
            struct k3_reader reader = reader_of(slots);
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                struct k3_err err;
                k3_err_init(&err);
                int fd = open_file();
                write_all(fd, content, sizes[i]);
                no_error(read_file(&reader, fd, sizes[i], &err), &err);
                close(fd);
            }
        }
    }
    route.has_ring = has_ring;
}

static void says_that_a_file_shrank(void **state)
{
    (void)state;
    struct k3_reader reader = reader_of(3);
    struct k3_err err;
    k3_err_init(&err);
    int fd = open_file();
    write_all(fd, content, FILE_BYTES - SLOT_BYTES);
    assert_int_equal(read_file(&reader, fd, FILE_BYTES, &err), K3_ECORRUPT);
    assert_non_null(strstr(err.text, "shrank"));
    assert_string_equal(err.file, "file");
    assert_int_equal(err.offset, FILE_BYTES - SLOT_BYTES);
    /* The next file begins anew. */
    k3_err_init(&err);
    no_error(read_file(&reader, fd, FILE_BYTES - SLOT_BYTES, &err), &err);
    close(fd);
}

/* ---- writing ---- */

static struct k3_writer writer_of(uint32_t slot_count)
{
    memset(memory, POISON, SLOTS_MAX * SLOT_BYTES);
    return (struct k3_writer){
        .route = &route, .slots = memory, .slot_bytes = SLOT_BYTES, .slot_count = slot_count};
}

static void same_file(int fd)
{
    size_t at = 0;
    for (ssize_t n = 1; n > 0; at += (size_t)n) {
        n = pread(fd, found + at, FILE_BYTES + 1 - at, (off_t)at);
        assert_true(n >= 0);
    }
    assert_int_equal(at, FILE_BYTES);
    assert_memory_equal(found, content, FILE_BYTES);
}

struct piece {
    uint32_t begin, end;
};

/* Cut the file into pieces, some long, some of a few bytes, and mix the order of runs of them. */
static uint32_t cut(struct piece *pieces, uint32_t max, uint32_t seed)
{
    static const uint32_t spans[] = {9, 5000, 70000, 400000};
    uint32_t count = 0;
    for (uint32_t at = 0; at < FILE_BYTES; count++) {
        uint32_t left = FILE_BYTES - at;
        uint32_t n = 1 + next_random(&seed) % spans[next_random(&seed) % 4];
        n = next_random(&seed) % 3 ? n : (n + 4095) & ~4095u;
        n = n > left || count + 1 == max ? left : n;
        pieces[count] = (struct piece){at, at + n};
        at += n;
    }
    for (uint32_t i = 0; i < count; i++)
        if (next_random(&seed) % 2) {
            uint32_t other = next_random(&seed) % count;
            struct piece kept = pieces[i];
            pieces[i] = pieces[other];
            pieces[other] = kept;
        }
    return count;
}

static void put_pieces(struct k3_writer *writer, uint32_t seed, uint32_t align)
{
    static struct piece pieces[4096];
    struct k3_write_file file;
    struct k3_err err;
    k3_err_init(&err);
    int fd = open_file();
    no_error(ftruncate(fd, FILE_BYTES), &err);
    no_error(k3_writer_begin(writer, &file, fd, "file", &err), &err);
    if (align && file.direct_fd >= 0)
        file.align = align;
    uint32_t count = cut(pieces, 4096, seed);
    for (uint32_t i = 0; i < count; i++)
        no_error(k3_writer_put(writer, &file, content + pieces[i].begin,
                               pieces[i].end - pieces[i].begin, pieces[i].begin, &err),
                 &err);
    no_error(k3_writer_end(writer, &file, &err), &err);
    no_error(k3_writer_wait(writer, &err), &err);
    same_file(fd);
    k3_writer_forget(&file);
    close(fd);
}

static void writes_pieces_in_any_order(void **state)
{
    (void)state;
    for (uint32_t slots = 0; slots <= K3_WRITER_SLOT_COUNT_MAX; slots += 2) {
        struct k3_writer writer = writer_of(slots);
        struct k3_err err;
        k3_err_init(&err);
        no_error(k3_writer_open(&writer, &err), &err);
        for (uint32_t seed = 1; seed <= 6; seed++)
            put_pieces(&writer, seed * 100 + slots, 0);
        k3_writer_close(&writer);
    }
}

/* Blocks of 16 bytes are refused by every disk: the page cache takes what was refused. */
static void goes_on_where_direct_writes_are_refused(void **state)
{
    (void)state;
    struct k3_writer writer = writer_of(4);
    struct k3_err err;
    k3_err_init(&err);
    no_error(k3_writer_open(&writer, &err), &err);
    put_pieces(&writer, 7, 16);
    struct k3_write_file file;
    int fd = open_file();
    no_error(k3_writer_begin(&writer, &file, fd, "file", &err), &err);
    if (file.direct_fd >= 0)
        assert_non_null(strstr(route.fallbacks.data, "written through the page cache"));
    k3_writer_forget(&file);
    close(fd);
    k3_writer_close(&writer);
}

static void tells_of_a_failure_and_begins_anew(void **state)
{
    (void)state;
    struct k3_writer writer = writer_of(3);
    struct k3_write_file file;
    struct k3_err err;
    k3_err_init(&err);
    no_error(k3_writer_open(&writer, &err), &err);
    int fd = open_file(), ends[2];
    no_error(pipe(ends), &err);
    no_error(k3_writer_begin(&writer, &file, fd, "file", &err), &err);
    if (file.direct_fd >= 0) {
        close(file.direct_fd);
        file.direct_fd = dup(ends[1]); /* no place in a pipe: ESPIPE */
        int rc = 0;
        for (uint32_t i = 0; i < 16 && !rc; i++)
            rc = k3_writer_put(&writer, &file, content, SLOT_BYTES / 2, i * SLOT_BYTES / 2, &err);
        rc = rc ? rc : k3_writer_wait(&writer, &err);
        assert_int_equal(rc, K3_EIO);
        assert_int_equal(err.sys_errno, 0);
        assert_non_null(strstr(err.text, "file: cannot write"));
        assert_string_equal(err.file, "file");
    }
    k3_writer_drop(&writer);
    k3_writer_forget(&file);
    put_pieces(&writer, 3, 0);
    k3_writer_close(&writer);
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_in_order),
        cmocka_unit_test(says_that_a_file_shrank),
        cmocka_unit_test(writes_pieces_in_any_order),
        cmocka_unit_test(goes_on_where_direct_writes_are_refused),
        cmocka_unit_test(tells_of_a_failure_and_begins_anew),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
