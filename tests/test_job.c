/* Purpose: a run whose .k3-partial was put away does not begin: its lock keeps nobody out.
 * Owns: a folder for each test, in TMPDIR.
 * Threads: one.
 * Errors: a failed assertion ends the test.
 * Invariant: the moment between opening and locking is made here, not waited for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "job.h"
#include "part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[256], partial[300], elsewhere[300];
static struct k3_job job;
static struct k3_err err;

/* A job that has its .k3-partial open, and no lock yet. */
static int open_job(void **state)
{
    (void)state;
    const char *place = getenv("TMPDIR");
    const char *paths[] = {folder};
    snprintf(folder, sizeof folder, "%s/k3-test-XXXXXX", place ? place : "/tmp");
    assert_non_null(mkdtemp(folder));
    snprintf(partial, sizeof partial, "%s/" K3_PARTIAL_NAME, folder);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
    k3_err_init(&err);
    if (k3_job_open(paths, 1, true, &job, &err) ||
        k3_dir_open_at(&job.outs[0], K3_PARTIAL_NAME, true, &job.partials[0], &err))
        fail_msg("%s", err.text);
    return 0;
}

static int close_job(void **state)
{
    (void)state;
    k3_job_close(&job);
    rmdir(partial);
    rmdir(elsewhere);
    return rmdir(folder);
}

static void is_refused(int rc)
{
    assert_int_equal(rc, K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, partial));
    assert_non_null(strstr(err.text, "removed or replaced"));
}

static void one_that_is_there_is_held(void **state)
{
    (void)state;
    assert_int_equal(k3_job_check_held(&job, &err), 0);
}

static void a_run_does_not_begin_in_one_that_was_removed(void **state)
{
    (void)state;
    struct k3_plan plan;
    memset(&plan, 0, sizeof plan);
    assert_int_equal(rmdir(partial), 0);
    is_refused(k3_job_begin(&job, &plan, false, &err));
    assert_int_not_equal(access(partial, F_OK), 0); /* and makes none */
}

static void a_run_does_not_begin_beside_another_one_of_that_name(void **state)
{
    (void)state;
    struct k3_plan plan;
    memset(&plan, 0, sizeof plan);
    assert_int_equal(rename(partial, elsewhere), 0);
    assert_int_equal(mkdir(partial, 0777), 0);
    is_refused(k3_job_begin(&job, &plan, false, &err));
}

static void force_clears_only_what_it_holds(void **state)
{
    (void)state;
    assert_int_equal(rename(partial, elsewhere), 0);
    assert_int_equal(mkdir(partial, 0777), 0);
    is_refused(k3_job_clear_partial(&job, &err));
    assert_int_equal(access(partial, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_that_is_there_is_held, open_job, close_job),
        cmocka_unit_test_setup_teardown(a_run_does_not_begin_in_one_that_was_removed, open_job,
                                        close_job),
        cmocka_unit_test_setup_teardown(a_run_does_not_begin_beside_another_one_of_that_name,
                                        open_job, close_job),
        cmocka_unit_test_setup_teardown(force_clears_only_what_it_holds, open_job, close_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
