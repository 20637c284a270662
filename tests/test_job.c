/* Purpose: a run whose .k3-partial was put away does not begin: its lock keeps nobody out; a set
 * that another run replaces is not judged.
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

/* ---- a finished set that another run replaces while it is judged ---- */

static void write_manifest(const char *name, const char *text)
{
    assert_int_equal(
        k3_file_publish(&job.outs[0], name, K3_MANIFEST_NAME, text, strlen(text), &err), 0);
}

static int remove_manifest(void **state)
{
    if (k3_file_remove(&job.outs[0], K3_MANIFEST_NAME, NULL))
        return -1;
    return close_job(state);
}

/* What the judges say of a set whose files are being removed. */
static struct k3_err missing_part(void)
{
    struct k3_err judged;
    k3_err_init(&judged);
    k3_fail(&judged, K3_ECORRUPT, "a part is missing");
    return judged;
}

static struct stat see_set(void)
{
    struct stat seen;
    bool found = false;
    write_manifest("first", "a set");
    assert_int_equal(k3_job_find_set(&job, &found, &seen, &err), 0);
    assert_true(found);
    return seen;
}

static void what_the_judges_find_counts_where_the_manifest_stays(void **state)
{
    (void)state;
    const struct stat seen = see_set();
    struct k3_err judged = missing_part();
    assert_int_equal(k3_job_end_judging(&job, &seen, &judged, &err), K3_ECORRUPT);
    assert_string_equal(err.text, "a part is missing");
    k3_err_init(&err);
    k3_err_init(&judged);
    assert_int_equal(k3_job_end_judging(&job, &seen, &judged, &err), 0);
}

static void is_replaced(const struct stat *seen, const struct k3_err *judged)
{
    assert_int_equal(k3_job_end_judging(&job, seen, judged, &err), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "another run has begun to replace this set"));
    assert_non_null(strstr(err.text, folder));
    k3_err_init(&err);
}

static void a_manifest_that_went_is_another_run(void **state)
{
    (void)state;
    const struct stat seen = see_set();
    struct k3_err judged = missing_part();
    assert_int_equal(k3_file_remove(&job.outs[0], K3_MANIFEST_NAME, &err), 0);
    is_replaced(&seen, &judged);
    k3_err_init(&judged);
    k3_fail(&judged, K3_ENOMEM, "no memory");
    assert_int_equal(k3_job_end_judging(&job, &seen, &judged, &err), K3_ENOMEM);
}

static void another_manifest_is_another_run(void **state)
{
    (void)state;
    const struct stat seen = see_set();
    struct k3_err judged;
    k3_err_init(&judged); /* of the set that is there now nothing was judged */
    write_manifest("second", "another set");
    is_replaced(&seen, &judged);
}

static void a_manifest_that_went_before_it_was_seen_is_another_run(void **state)
{
    (void)state;
    const struct stat seen = {0};
    const struct k3_err judged = missing_part();
    is_replaced(&seen, &judged);
    write_manifest("first", "a set");
    is_replaced(&seen, &judged);
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
        cmocka_unit_test_setup_teardown(what_the_judges_find_counts_where_the_manifest_stays,
                                        open_job, remove_manifest),
        cmocka_unit_test_setup_teardown(a_manifest_that_went_is_another_run, open_job,
                                        remove_manifest),
        cmocka_unit_test_setup_teardown(another_manifest_is_another_run, open_job, remove_manifest),
        cmocka_unit_test_setup_teardown(a_manifest_that_went_before_it_was_seen_is_another_run,
                                        open_job, remove_manifest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
