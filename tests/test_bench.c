/* What bench says of its figures, and what is read from /proc and /sys: pure parts, with figures
 * that are made up.  The commands themselves are tested by tests/python/test_bench.py. */
#include "bench.h"
#include "fault_dev.h"
#include "machine.h"
#include "mem.h"
#include "progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct k3_bench_result results[K3_ROW_COUNT];

static void set_row(enum k3_bench_row_id id, double first, double second, double third)
{
    results[id].gb_per_s[0] = first;
    results[id].gb_per_s[1] = second;
    results[id].gb_per_s[2] = third;
    results[id].count = 3;
}

static int begin(void **state)
{
    (void)state;
    memset(results, 0, sizeof results);
    return 0;
}

static void near(double found, double wanted)
{
    if (found < wanted - 1e-9 || found > wanted + 1e-9)
        fail_msg("wanted %.12g, found %.12g", wanted, found);
}

static void test_median(void **state)
{
    (void)state;
    const double values[] = {9, 1, 4, 2, 7};
    near(k3_bench_median(values, 1), 9);
    near(k3_bench_median(values, 2), 5);
    near(k3_bench_median(values, 3), 4);
    near(k3_bench_median(values, 4), 3);
    near(k3_bench_median(values, 5), 4);
    near(values[0], 9); /* not sorted in place */
}

static void test_best(void **state)
{
    (void)state;
    assert_int_equal(k3_bench_best(results, K3_LIMIT_STORAGE), K3_ROW_COUNT);
    set_row(K3_ROW_DIRECT_4, 3, 3, 3);
    set_row(K3_ROW_DIRECT_16, 9, 2, 1); /* the fastest round, not the best median */
    set_row(K3_ROW_DIRECT_THREADS, 2, 2.5, 9);
    set_row(K3_ROW_HASH_ALL, 50, 50, 50); /* of another limit */
    assert_int_equal(k3_bench_best(results, K3_LIMIT_STORAGE), K3_ROW_DIRECT_4);
    assert_int_equal(k3_bench_best(results, K3_LIMIT_HASH), K3_ROW_HASH_ALL);
    assert_int_equal(k3_bench_best(results, K3_LIMIT_MEMORY), K3_ROW_COUNT);
}

static void test_storage_is_the_limit(void **state)
{
    (void)state;
    struct k3_bench_verdict verdict;
    set_row(K3_ROW_DIRECT_16, 2, 4, 3);
    set_row(K3_ROW_HASH_ALL, 5, 5, 5);
    set_row(K3_ROW_LOAD_COLD, 1, 3, 3);
    results[K3_ROW_LOAD_COLD].is_direct = true;
    k3_bench_judge(results, K3_ROW_LOAD_COLD, &verdict);
    assert_string_equal(verdict.limit, "storage");
    assert_int_equal(verdict.count, 3);
    near(verdict.gb_per_s, 3);
    near(verdict.limit_gb_per_s, 3);
    near(verdict.percent_rounds[0], 50);
    near(verdict.percent_rounds[1], 75);
    near(verdict.percent_rounds[2], 100);
    near(verdict.percent_of_limit, 75); /* of the pairs, not of the medians */
}

static void test_hash_is_the_limit(void **state)
{
    (void)state;
    struct k3_bench_verdict verdict;
    set_row(K3_ROW_DIRECT_16, 20, 20, 20);
    set_row(K3_ROW_HASH_ALL, 5, 5, 10);
    set_row(K3_ROW_LOAD_COLD, 4, 5, 5);
    set_row(K3_ROW_LOAD_COLD_UNVERIFIED, 10, 10, 10);
    results[K3_ROW_LOAD_COLD].is_direct = true;
    results[K3_ROW_LOAD_COLD_UNVERIFIED].is_direct = true;
    k3_bench_judge(results, K3_ROW_LOAD_COLD, &verdict);
    assert_string_equal(verdict.limit, "hash");
    near(verdict.percent_of_limit, 80);
    k3_bench_judge(results, K3_ROW_LOAD_COLD_UNVERIFIED, &verdict);
    assert_string_equal(verdict.limit, "storage"); /* nothing is hashed */
    near(verdict.percent_of_limit, 50);
}

/* Reading from the page cache and hashing take turns on the same cores. */
static void test_hot(void **state)
{
    (void)state;
    struct k3_bench_verdict verdict;
    set_row(K3_ROW_PAGE_CACHE, 12, 12, 12);
    set_row(K3_ROW_HASH_ALL, 6, 6, 6);
    set_row(K3_ROW_LOAD_HOT, 2, 2, 2);
    set_row(K3_ROW_LOAD_HOT_UNVERIFIED, 6, 6, 6);
    k3_bench_judge(results, K3_ROW_LOAD_HOT, &verdict);
    assert_string_equal(verdict.limit, "memory and hash");
    near(verdict.limit_gb_per_s, 4);
    near(verdict.percent_of_limit, 50);
    k3_bench_judge(results, K3_ROW_LOAD_HOT_UNVERIFIED, &verdict);
    assert_string_equal(verdict.limit, "memory");
    near(verdict.percent_of_limit, 50);
}

/* A load to a device: the lower of what brings the bytes and of the bus; hashing is the device's.
 */
static void test_device(void **state)
{
    (void)state;
    struct k3_bench_verdict verdict;
    set_row(K3_ROW_DEVICE_HOT, 9, 9, 9);
    set_row(K3_ROW_PAGE_CACHE, 12, 12, 12);
    set_row(K3_ROW_HASH_ALL, 1, 1, 1);
    k3_bench_judge(results, K3_ROW_DEVICE_HOT, &verdict);
    assert_null(verdict.limit); /* the bus may be lower */
    set_row(K3_ROW_BUS, 10, 18, 10);
    k3_bench_judge(results, K3_ROW_DEVICE_HOT, &verdict);
    assert_string_equal(verdict.limit, "bus");
    near(verdict.percent_rounds[0], 90);
    near(verdict.percent_rounds[1], 50);
    near(verdict.percent_of_limit, 90);
    set_row(K3_ROW_BUS, 50, 50, 50);
    k3_bench_judge(results, K3_ROW_DEVICE_HOT, &verdict);
    assert_string_equal(verdict.limit, "memory");
    near(verdict.percent_of_limit, 75);
    set_row(K3_ROW_DIRECT_16, 20, 20, 20);
    set_row(K3_ROW_DEVICE_COLD, 10, 10, 10);
    results[K3_ROW_DEVICE_COLD].is_direct = true;
    k3_bench_judge(results, K3_ROW_DEVICE_COLD, &verdict);
    assert_string_equal(verdict.limit, "storage");
    near(verdict.percent_of_limit, 50);
    set_row(K3_ROW_BUS, 16, 16, 16);
    k3_bench_judge(results, K3_ROW_DEVICE_COLD, &verdict);
    assert_string_equal(verdict.limit, "bus");
    results[K3_ROW_DEVICE_COLD].is_direct = false; /* it came from the page cache */
    k3_bench_judge(results, K3_ROW_DEVICE_COLD, &verdict);
    assert_string_equal(verdict.limit, "memory");
}

/* A cold load that was not direct did not wait for the storage. */
static void test_cold_through_the_cache(void **state)
{
    (void)state;
    struct k3_bench_verdict verdict;
    set_row(K3_ROW_DIRECT_16, 1, 1, 1);
    set_row(K3_ROW_PAGE_CACHE, 8, 8, 8);
    set_row(K3_ROW_HASH_ALL, 8, 8, 8);
    set_row(K3_ROW_LOAD_COLD, 2, 2, 2);
    k3_bench_judge(results, K3_ROW_LOAD_COLD, &verdict);
    assert_string_equal(verdict.limit, "memory and hash");
    near(verdict.percent_of_limit, 50);
}

static void test_unknown_limit(void **state)
{
    (void)state;
    struct k3_bench_verdict verdict;
    k3_bench_judge(results, K3_ROW_LOAD_COLD, &verdict);
    assert_null(verdict.limit);
    near(verdict.gb_per_s, 0);
    set_row(K3_ROW_HASH_ALL, 5, 5, 5);
    set_row(K3_ROW_LOAD_COLD, 4, 4, 4);
    results[K3_ROW_LOAD_COLD].is_direct = true;
    k3_bench_judge(results, K3_ROW_LOAD_COLD, &verdict);
    assert_null(verdict.limit); /* the storage may be lower: nothing is said */
    near(verdict.gb_per_s, 4);
}

/* Rows are found by name in --json, and each is a ceiling or a job. */
static void test_table(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < K3_ROW_COUNT; i++) {
        assert_non_null(k3_bench_rows[i].measure);
        assert_true(k3_bench_rows[i].is_ceiling_of == K3_LIMIT_NONE || !k3_bench_rows[i].limits);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(k3_bench_rows[i].name, k3_bench_rows[j].name);
    }
}

/* ---- reads ---- */

#define FILE_BYTES (K3_BENCH_CHUNK_BYTES + 4096)

static void test_reads(void **state)
{
    (void)state;
    char path[] = "/tmp/k3-test-bench-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, FILE_BYTES), 0);
    struct k3_bench_chunk chunks[] = {
        {0, K3_BENCH_CHUNK_BYTES, 0}, {K3_BENCH_CHUNK_BYTES, 4096, 0}, {4096, 4096, 0}};
    struct k3_bench_reads reads = {.io = &k3_io_pread,
                                   .fds = &fd,
                                   .chunks = chunks,
                                   .chunk_count = 3,
                                   .fd_count = 1,
                                   .depth = 2};
    struct k3_bench_rate rate;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_bench_read(&reads, &rate, &err), 0);
    assert_int_equal(rate.bytes, K3_BENCH_CHUNK_BYTES + 8192);
    assert_true(rate.seconds > 0);
    assert_true(k3_bench_gb_per_s(&rate) > 0);
    reads.depth = 4096; /* more than there is to read: no more slots than that */
    assert_int_equal(k3_bench_read(&reads, &rate, &err), 0);
    assert_int_equal(rate.bytes, K3_BENCH_CHUNK_BYTES + 8192);
    chunks[1].offset = FILE_BYTES - 100; /* the file ends before the chunk */
    assert_int_equal(k3_bench_read(&reads, &rate, &err), K3_ECORRUPT);
    assert_non_null(strstr(err.text, "shrank"));
    close(fd);
    unlink(path);
}

/* ---- a device ---- */

#define POOL_BYTES ((uint64_t)16 << 20)

/* The rates of memory; and no rate of a device that is wrong, or fails. */
static void test_device_rates(void **state)
{
    (void)state;
    static const struct fault_dev_rule rules[] = {{FAULT_DEV_SKIP_COPY, 2, 1},
                                                  {FAULT_DEV_FLIP, 2, 1},
                                                  {FAULT_DEV_WAIT, 1, 1},
                                                  {FAULT_DEV_CHECK, 4, 1},
                                                  {FAULT_DEV_ALLOC, 1, 1}};
    static const struct fault_dev_rule every = {FAULT_DEV_FLIP, 1, 1000};
    struct k3_bench_dev dev;
    struct k3_err err;
    double gb_per_s = 0;
    k3_err_init(&err);
    const struct k3_dev_ops *ops = fault_dev(&k3_dev_host, NULL);
    assert_int_equal(k3_bench_dev_open(ops, 0, POOL_BYTES, 2 * POOL_BYTES, &dev, &err), 0);
    assert_int_equal(k3_bench_dev_copy(&dev, 0, &gb_per_s, &err), 0);
    assert_true(gb_per_s > 0);
    assert_int_equal(k3_bench_dev_check(&dev, 1, &gb_per_s, &err), 0);
    assert_true(gb_per_s > 0);
    fault_dev(&k3_dev_host, &every);
    assert_int_equal(k3_bench_dev_check(&dev, 0, &gb_per_s, &err), K3_EDEVICE);
    assert_non_null(strstr(err.text, "not right"));
    k3_bench_dev_close(&dev);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        fault_dev(&k3_dev_host, &rules[i]);
        k3_err_init(&err);
        assert_int_not_equal(k3_bench_dev_open(ops, 0, POOL_BYTES, POOL_BYTES, &dev, &err), 0);
        assert_true(fault_dev_hit_count() > 0);
        assert_null(dev.dev);
    }
}

/* ---- /proc and /sys ---- */

static void write_file(char *path, const char *text)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void test_machine_text(void **state)
{
    (void)state;
    char path[] = "/tmp/k3-test-machine-XXXXXX", text[16];
    write_file(path, "Name: 1\nNameLonger:\t 22 kB\nEmpty:\nold_style 7\n");
    assert_true(k3_machine_field(path, "Name", text, sizeof text));
    assert_string_equal(text, "1");
    assert_true(k3_machine_field(path, "NameLonger", text, sizeof text));
    assert_string_equal(text, "22 kB");
    assert_true(k3_machine_field(path, "old_style", text, sizeof text));
    assert_string_equal(text, "7");
    assert_true(k3_machine_field(path, "Empty", text, sizeof text));
    assert_string_equal(text, "");
    assert_false(k3_machine_field(path, "Nam", text, sizeof text));
    assert_true(k3_machine_text(path, text, sizeof text));
    assert_int_equal(strlen(text), sizeof text - 1); /* cut, with its NUL */
    unlink(path);
    assert_false(k3_machine_text(path, text, sizeof text));
    assert_false(k3_machine_field(path, "Name", text, sizeof text));
}

static void test_mount(void **state)
{
    (void)state;
    struct k3_machine_mount mount;
    char path[] = "/tmp/k3-test-machine-XXXXXX";
    int fd = mkstemp(path);
    assert_true(k3_machine_mount(fd, &mount));
    assert_true(mount.type[0] != 0);
    assert_true(mount.total_bytes >= mount.free_bytes);
    assert_false(mount.is_read_only);
    close(fd);
    unlink(path);
    FILE *file = fopen("/proc/self/status", "re");
    assert_non_null(file);
    assert_true(k3_machine_mount(fileno(file), &mount));
    assert_string_equal(mount.type, "proc");
    assert_int_equal(mount.device, 0);
    fclose(file);
    assert_false(k3_machine_mount(-1, &mount));
    struct k3_machine_drive drive;
    assert_false(k3_machine_drive(0, &drive));
    assert_int_equal(k3_machine_drive_count(0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_median, begin),
        cmocka_unit_test_setup(test_best, begin),
        cmocka_unit_test_setup(test_storage_is_the_limit, begin),
        cmocka_unit_test_setup(test_hash_is_the_limit, begin),
        cmocka_unit_test_setup(test_hot, begin),
        cmocka_unit_test_setup(test_cold_through_the_cache, begin),
        cmocka_unit_test_setup(test_unknown_limit, begin),
        cmocka_unit_test_setup(test_device, begin),
        cmocka_unit_test(test_device_rates),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_machine_text),
        cmocka_unit_test(test_mount),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
