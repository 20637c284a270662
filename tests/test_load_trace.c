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
#include "trace_use.h"

#include <stdio.h>
#include <string.h>
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
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), K3_EIO);
    assert_non_null(strstr(err.text, path));
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
