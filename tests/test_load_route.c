/* Purpose: the public door of the loader: its options, and the route it takes by itself.
 * Owns: one set for the whole run.
 * Threads: one drives each load.
 * Errors: a failed assertion ends the test.
 * Invariant: what this machine refuses is expected with its reason, never as a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "k3_load.h"
#include "mini_set.h"

#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static struct mini_set one;
static struct k3_err err;
static struct k3_load *load;

static int make_set(void **state)
{
    (void)state;
    mini_set_make(&one, 1);
    return 0;
}

static int remove_set(void **state)
{
    (void)state;
    mini_set_remove(&one);
    return 0;
}

static int begin_test(void **state)
{
    (void)state;
    k3_err_init(&err);
    return 0;
}

static struct k3_load_options options_for(const struct mini_set *mini)
{
    return (struct k3_load_options){.struct_bytes = sizeof(struct k3_load_options),
                                    .dirs = mini->dir_list,
                                    .dir_count = mini->dir_count,
                                    .staging_bytes = 8 << 20};
}

static void check_images(const struct mini_set *mini)
{
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        const void *data;
        uint64_t bytes;
        assert_int_equal(k3_load_image(load, rank, &data, &bytes, &err), 0);
        assert_int_equal(bytes, mini->image_bytes[rank]);
        assert_memory_equal(data, mini->images[rank], bytes);
    }
}

/* The public door, without decorators: whatever route this machine allows. */
static void test_public_open(void **state)
{
    (void)state;
    static const char *const names[] = {NULL, "auto", "pread", "uring"};
    struct k3_load_options options = options_for(&one);
    struct k3_load_report report;
    for (int i = 0; i < 4; i++) {
        options.io = names[i];
        options.device = "host";
        k3_err_init(&err);
        int rc = k3_load_open(&options, &load, &err);
        if (i == 3 && rc) { /* refused here: with a reason and a way out */
            assert_int_equal(rc, K3_EUNSUPPORTED);
            assert_non_null(strstr(err.text, "; or use io pread or auto"));
            continue;
        }
        assert_int_equal(rc, 0);
        assert_int_equal(k3_load_run(load, &err), 0);
        check_images(&one);
        k3_load_get_report(load, &report);
        if (i >= 2)
            assert_string_equal(report.io, names[i]);
        if (i == 3)
            assert_int_equal(report.direct, 1);
        /* It is uring, or a line says why not. */
        if (i < 2 && strcmp(report.io, "uring") != 0)
            assert_non_null(strstr(report.fallbacks, " is used: "));
        assert_string_equal(report.device, "host");
        k3_load_close(load);
        load = NULL;
    }
}

/* Bring all parts into the page cache, or take them out; are they there? */
static bool parts_in_cache(bool wanted)
{
    char path[256];
    char block[4096];
    uint32_t hot_count = 0, count = 0;
    for (uint32_t r = 0; r < one.manifest.rank_count; r++) {
        const struct k3_manifest_rank *rank = &one.manifest.ranks[r];
        for (uint32_t i = 0; i < rank->part_count; i++, count++) {
            mini_set_part_path(&one, rank->rank, rank->parts[i].part, path);
            int fd = open(path, O_RDONLY);
            assert_true(fd >= 0);
            if (wanted)
                while (read(fd, block, sizeof block) > 0)
                    continue;
            else
                assert_true(fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
            struct iovec target = {block, sizeof block};
            off_t offset = (off_t)rank->parts[i].data_offset;
            hot_count += preadv2(fd, &target, 1, offset, RWF_NOWAIT) == (ssize_t)sizeof block;
            close(fd);
        }
    }
    return hot_count == count;
}

/* The samples of a load judge by time, which a busy machine can mislead. */
#define ATTEMPT_COUNT 5

/* Parts in memory come through the page cache, others past it, and the report says which. */
static void test_by_cache(void **state)
{
    (void)state;
    static const char hot[] = "sample reads found the parts in memory";
    static const char refused[] = "direct reads (O_DIRECT)";
    struct k3_load_options options = options_for(&one);
    struct k3_load_report report;
    for (int wanted = 1; wanted >= 0; wanted--) {
        bool is_refused = false, is_right = false;
        for (int i = 0; i < ATTEMPT_COUNT && !is_right; i++) {
            k3_load_close(load);
            load = NULL;
            if (parts_in_cache(wanted) != wanted)
                skip(); /* a file system without such reads, or one that is memory */
            assert_int_equal(k3_load_open(&options, &load, &err), 0);
            k3_load_get_report(load, &report);
            is_refused = strstr(report.fallbacks, refused) != NULL;
            is_right = report.direct == (!wanted && !is_refused);
        }
        assert_true(is_right);
        assert_true(is_refused || !strstr(report.fallbacks, hot) == !wanted);
        assert_int_equal(k3_load_run(load, &err), 0);
        check_images(&one);
        k3_load_close(load);
        load = NULL;
    }
}

/* ---- options ---- */

static void refuse_options(const struct k3_load_options *options, int rc)
{
    k3_err_init(&err);
    load = (struct k3_load *)&err;
    assert_int_equal(k3_load_open(options, &load, &err), rc);
    assert_null(load);
    assert_true(err.text[0] != 0);
}

static void test_options(void **state)
{
    (void)state;
    static const uint32_t absent[] = {2}, twice[] = {1, 1};
    const struct k3_load_options good = options_for(&one);
    struct k3_load_options bad = good;
    static const char *const later_io[] = {"cufile", "hipfile", "cufile"};
    static const char *const no_dev[] = {"tpu",     "cuda:",   "cuda:3-1",
                                         "hip:0,0", "cuda:1x", "cuda:999"};
    for (int i = 0; i < 3; i++) {
        bad = good;
        bad.io = later_io[i];
        refuse_options(&bad, K3_EUNSUPPORTED);
    }
    for (size_t i = 0; i < sizeof no_dev / sizeof *no_dev; i++) {
        bad = good;
        bad.device = no_dev[i];
        refuse_options(&bad, K3_EUSAGE);
    }
    bad = good;
    bad.device = "hip:0-2"; /* of two ranks */
    refuse_options(&bad, K3_EUSAGE);
    bad = good;
    bad.io = "telepathy";
    refuse_options(&bad, K3_EUSAGE);
    bad = good;
    bad.struct_bytes = 0;
    refuse_options(&bad, K3_EUSAGE);
    bad = good;
    bad.dirs = NULL;
    refuse_options(&bad, K3_EUSAGE);
    bad = good;
    bad.ranks = absent;
    bad.rank_count = 1;
    refuse_options(&bad, K3_EUNSUPPORTED);
    bad.ranks = twice;
    bad.rank_count = 2;
    refuse_options(&bad, K3_EUSAGE);
    bad.rank_count = 0;
    refuse_options(&bad, K3_EUSAGE);
    /* A caller of a newer library: fine while it asks for nothing new. */
    struct {
        struct k3_load_options known;
        uint64_t later;
    } newer = {good, 0};
    newer.known.struct_bytes = sizeof newer;
    assert_int_equal(k3_load_open(&newer.known, &load, &err), 0);
    k3_load_close(load);
    newer.later = 1;
    refuse_options(&newer.known, K3_EUSAGE);
    k3_load_close(NULL);
}

/* A wrong bit in the page cache alone cannot be made here; but whichever route is first, a second
 * read of a flipped bit on disk must not heal it. */
static void test_flipped_by_each_route(void **state)
{
    (void)state;
    static const char *const names[] = {"auto", "pread", "uring"};
    struct k3_load_options options = options_for(&one);
    char path[256];
    mini_set_part_path(&one, 1, 1, path);
    for (int i = 0; i < 3; i++) {
        options.io = names[i];
        k3_err_init(&err);
        if (k3_load_open(&options, &load, &err)) {
            assert_string_equal(names[i], "uring");
            continue;
        }
        mini_set_flip(path, mini_set_part(&one, 1, 1)->data_offset + 99);
        assert_int_equal(k3_load_run(load, &err), K3_ECORRUPT);
        mini_set_flip(path, mini_set_part(&one, 1, 1)->data_offset + 99);
        assert_int_equal(k3_load_run(load, NULL), 0);
        check_images(&one);
        k3_load_close(load);
        load = NULL;
    }
}

#define ROUTE_TEST(f) cmocka_unit_test_setup(f, begin_test)

int main(void)
{
    const struct CMUnitTest tests[] = {ROUTE_TEST(test_public_open), ROUTE_TEST(test_by_cache),
                                       ROUTE_TEST(test_options),
                                       ROUTE_TEST(test_flipped_by_each_route)};
    return cmocka_run_group_tests(tests, make_set, remove_set);
}
