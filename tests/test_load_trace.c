/* Purpose: traces of loads: every read, copy and check of a run is in the file, also where units
 * come wrong and where the run fails. Owns: a set and memory for its views, for the whole run.
 * Threads: one drives each load.
 * Errors: a failed assertion ends the test.
 * Invariant: what must be there is counted from the load's own tables, not from the trace's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bind_use.h"
#include "doc.h"
#include "fault_dev.h"
#include "fault_io.h"
#include "load_internal.h"
#include "set.h"
#include "source_headers.h"
#include "trace_use.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct mini_set one;
static struct bind_room room_one;
static struct k3_err err;
static struct k3_load *load;

static int begin_test(void **state)
{
    (void)state;
    k3_err_init(&err);
    bind_room_poison(&room_one);
    return 0;
}

static int end_test(void **state)
{
    (void)state;
    k3_load_close(load);
    load = NULL;
    return 0;
}

/* All views, or plain images. */
static struct k3_load_options options_for(bool bound)
{
    return (struct k3_load_options){.struct_bytes = sizeof(struct k3_load_options),
                                    .dirs = one.dir_list,
                                    .dir_count = one.dir_count,
                                    .staging_bytes = 16u << 20,
                                    .binds = bound ? room_one.binds : NULL,
                                    .bind_count = bound ? room_one.count : 0};
}

static int open_load(const struct k3_load_options *options, const struct fault_io_rule *io_rule,
                     const struct fault_dev_rule *dev_rule)
{
    k3_err_init(&err);
    return k3_load_open_with(options, fault_io(&k3_io_pread, io_rule),
                             fault_dev(&k3_dev_host, dev_rule), &load, &err);
}

static void test_trace(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/trace.json", one.root);
    for (int bound = 0; bound < 2; bound++) {
        struct k3_load_options options = options_for(bound);
        options.trace_path = path;
        /* Slots for all chunks: no copy is waited for before the end. */
        options.staging_bytes = bound ? 8 << 20 : 0;
        assert_int_equal(open_load(&options, NULL, NULL), 0);
        assert_int_not_equal(access(path, F_OK), 0);
        for (int turn = 0; turn < 2; turn++) {
            assert_int_equal(k3_load_run(load, &err), 0);
            trace_check(load, path, bound, 1);
            assert_int_equal(unlink(path), 0);
        }
        end_test(NULL);
    }
    struct k3_load_options options = options_for(false);
    snprintf(path, sizeof path, "%s/no/trace.json", one.root);
    options.trace_path = path;
    assert_int_equal(open_load(&options, NULL, NULL), K3_EIO);
    assert_null(load);
    assert_non_null(strstr(err.text, path));
}

/* Open must refuse the path as a wrong use, and what is there must stay as it is. */
static void check_refused(const char *path, const char *word)
{
    struct stat before, after;
    struct k3_load_options options = options_for(false);
    const int exists = !stat(path, &before);
    options.trace_path = path;
    assert_int_equal(open_load(&options, NULL, NULL), K3_EUSAGE);
    assert_null(load);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, word));
    assert_int_equal(!stat(path, &after), exists);
    if (exists) {
        assert_int_equal(before.st_ino, after.st_ino);
        assert_int_equal(before.st_size, after.st_size);
        assert_int_equal(k3_time_ns(&before.st_mtim), k3_time_ns(&after.st_mtim));
    }
}

static uint32_t name_count(const char *path)
{
    struct k3_dir dir;
    char **names;
    uint32_t count;
    assert_int_equal(k3_dir_open(path, false, &dir, &err), 0);
    assert_int_equal(k3_dir_list(&dir, &names, &count, &err), 0);
    k3_names_free(names, count);
    k3_dir_close(&dir);
    return count;
}

static void test_refused(void **state)
{
    (void)state;
    char path[256], other[256], link_path[128];
    const uint32_t count = name_count(one.dirs[0]);
    mini_set_part_path(&one, 0, 0, path);
    check_refused(path, "model-rank-0-part-0");
    snprintf(link_path, sizeof link_path, "%s/link", one.root);
    assert_int_equal(symlink(path, link_path), 0);
    check_refused(link_path, "model-rank-0-part-0");
    assert_int_equal(unlink(link_path), 0);
    assert_int_equal(link(path, link_path), 0);
    check_refused(link_path, "model-rank-0-part-0");
    assert_int_equal(unlink(link_path), 0);
    mini_set_file_path(&one, K3_MANIFEST_NAME, path);
    check_refused(path, K3_MANIFEST_NAME);
    mini_set_file_path(&one, "trace.json", path);
    check_refused(path, "directory of the set");
    assert_int_equal(name_count(one.dirs[0]), count);
    /* Of another set, and of a checkpoint, also through a link out of it. */
    snprintf(other, sizeof other, "%s/other", one.root);
    assert_int_equal(mkdir(other, 0777), 0);
    snprintf(path, sizeof path, "%s/other/model.safetensors", one.root);
    assert_int_equal(symlink("../blob", path), 0);
    snprintf(link_path, sizeof link_path, "%s/blob", one.root);
    assert_int_equal(close(open(link_path, O_CREAT | O_WRONLY, 0666)), 0);
    static const char *const marks[] = {K3_MANIFEST_NAME, K3_INDEX_NAME};
    for (size_t i = 0; i < 2; i++) {
        snprintf(other, sizeof other, "%s/other/%s", one.root, marks[i]);
        assert_int_equal(close(open(other, O_CREAT | O_WRONLY, 0666)), 0);
        check_refused(path, i ? "checkpoint" : "another set");
        assert_int_equal(unlink(other), 0);
    }
    assert_int_equal(unlink(path) | unlink(link_path), 0);
    snprintf(other, sizeof other, "%s/other", one.root);
    assert_int_equal(rmdir(other), 0);
}

/* An ordinary file is replaced by a whole trace, a link to it stays, and a load that never ran
 * leaves what was there and nothing beside it. */
static void test_replaced(void **state)
{
    (void)state;
    char path[128], link_path[128];
    struct stat before, after;
    const uint32_t count = name_count(one.root);
    struct k3_load_options options = options_for(false);
    snprintf(path, sizeof path, "%s/trace.json", one.root);
    snprintf(link_path, sizeof link_path, "%s/link", one.root);
    assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0666)), 0);
    assert_int_equal(symlink(path, link_path), 0);
    assert_int_equal(stat(path, &before), 0);
    options.trace_path = link_path;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(name_count(one.root), count + 3);
    end_test(NULL);
    assert_int_equal(name_count(one.root), count + 2);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    trace_check(load, path, false, 1);
    assert_int_equal(lstat(link_path, &after), 0);
    assert_true(S_ISLNK(after.st_mode));
    assert_int_equal(name_count(one.root), count + 2);
    assert_int_equal(unlink(link_path) | unlink(path), 0);
}

/* What is no regular file is written to as it is; a FIFO without a reader is told at open. */
static void test_as_it_is(void **state)
{
    (void)state;
    char path[128], text[1 << 16];
    struct k3_load_options options = options_for(false);
    options.trace_path = "/dev/full";
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), K3_EIO);
    assert_non_null(strstr(err.text, "/dev/full: cannot write the trace"));
    end_test(NULL);
    snprintf(path, sizeof path, "%s/fifo", one.root);
    assert_int_equal(mkfifo(path, 0666), 0);
    options.trace_path = path;
    assert_int_equal(open_load(&options, NULL, NULL), K3_EIO);
    assert_non_null(strstr(err.text, "a FIFO that nobody reads"));
    int fd = open(path, O_RDWR); /* room for the trace of a small set */
    assert_true(fd >= 0 && fcntl(fd, F_SETPIPE_SZ, 1 << 20) > 0);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    assert_true(read(fd, text, sizeof text) > 20);
    assert_int_equal(memcmp(text, "{\"displayTimeUnit\"", 18), 0);
    assert_int_equal(close(fd) | unlink(path), 0);
}

/* A run that failed leaves its trace as well. */
static void test_trace_of_failure(void **state)
{
    (void)state;
    static const struct fault_dev_rule always = {FAULT_DEV_FLIP, 1, UINT64_MAX};
    char path[128];
    struct k3_load_options options = options_for(false);
    snprintf(path, sizeof path, "%s/trace.json", one.root);
    options.trace_path = path;
    assert_int_equal(open_load(&options, NULL, &always), 0);
    assert_int_equal(k3_load_run(load, &err), K3_EDEVICE);
    struct k3_doc *root = trace_read(path);
    assert_true(k3_doc_count(k3_doc_find(root, "traceEvents")) > load->chunk_count);
    k3_doc_free(root);
    assert_int_equal(unlink(path), 0);
}

/* Every unit comes wrong: its first check, that of its second read and the one of all are in the
 * trace, which has no room to spare for them. */
static void test_trace_of_second_reads(void **state)
{
    (void)state;
    static const struct fault_io_rule stale = {FAULT_IO_STALE, 1, UINT64_MAX};
    char path[128];
    struct k3_load_options options = options_for(false);
    snprintf(path, sizeof path, "%s/trace.json", one.root);
    options.trace_path = path;
    assert_int_equal(open_load(&options, &stale, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    struct k3_load_report report;
    k3_load_get_report(load, &report);
    assert_int_equal(report.reread_units, load->unit_count);
    trace_check(load, path, false, 3);
    assert_int_equal(unlink(path), 0);
    end_test(NULL);
    /* The most there may be of one chunk whose units are all checked alone, in every round. */
    options = options_for(true);
    options.trace_path = path;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_true(load->trace.cap >= 2 * load->chunk_count + 7 * load->unit_count);
    assert_true(load->legs[0].open_check_cap >= load->unit_count);
}

int main(void)
{
    static const uint32_t devices[MINI_RANK_COUNT] = {0, 0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_trace, begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_refused, begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_replaced, begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_as_it_is, begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_trace_of_failure, begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_trace_of_second_reads, begin_test, end_test),
    };
    mini_set_make(&one, 1);
    bind_room_make(&room_one, &one, &k3_dev_host, devices);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bind_room_remove(&room_one);
    mini_set_remove(&one);
    return failed;
}
