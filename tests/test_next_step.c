/* Purpose: the next step behind what the system refused.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: none beyond the tests. */
#include "fs.h"
#include "next_step.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void each_has_a_step(void **state)
{
    static const struct {
        int sys_errno;
        const char *word;
    } cases[] = {{ENOSPC, "make room"},   {EDQUOT, "quota"},        {EROFS, "another"},
                 {EACCES, "ls -ld"},      {ENOMEM, "ask for less"}, {EMFILE, "ulimit -n"},
                 {ENFILE, "fs.file-max"}, {EFBIG, "ulimit -f"},     {EIO, "dmesg"},
                 {ESTALE, "mount it"},    {EAGAIN, "ulimit -u"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct k3_err err, outer;
        k3_err_init(&err);
        k3_err_init(&outer);
        k3_fail_sys(&err, cases[i].sys_errno, "a/b: cannot write");
        k3_fail(&outer, K3_EIO, "while c was made: %s", err.text); /* its errno is lost */
        k3_add_next_step(&err);
        k3_add_next_step(&outer);
        assert_int_equal(strncmp(err.text, "a/b: cannot write: ", 19), 0);
        assert_non_null(strstr(err.text, cases[i].word));
        assert_non_null(strstr(outer.text, cases[i].word));
    }
}

static void others_are_left_alone(void **state)
{
    struct k3_err err;
    (void)state;
    k3_err_init(&err);
    k3_add_next_step(&err);
    assert_string_equal(err.text, "");
    k3_fail_sys(&err, ENOENT, "a: cannot open");
    k3_add_next_step(&err);
    assert_string_equal(err.text, "a: cannot open: No such file or directory");
    k3_err_init(&err);
    k3_fail(&err, K3_EUNSUPPORTED, "a: No space left on device: give another --out");
    k3_add_next_step(&err);
    assert_string_equal(err.text, "a: No space left on device: give another --out");
}

/* A text that fills its room stays a text. */
static void a_full_text(void **state)
{
    char name[K3_ERR_TEXT_BYTES];
    struct k3_err err;
    (void)state;
    memset(name, 'x', sizeof name);
    name[sizeof name - 40] = 0;
    k3_err_init(&err);
    k3_fail_sys(&err, ENOSPC, "%s", name);
    k3_add_next_step(&err);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_non_null(strstr(err.text, ": No space left on device: make"));
}

/* What a signal stopped says what it was and what is left; commands that say it themselves are left
 * alone, and so is every other failure. */
static void a_stop(void **state)
{
    static const int ids[] = {K3_CMD_VERIFY, K3_CMD_LOAD, K3_CMD_BENCH, K3_CMD_INSPECT};
    struct k3_opts opts;
    struct k3_err err;
    (void)state;
    memset(&opts, 0, sizeof opts);
    const char *path = "some/set";
    opts.args.item = &path;
    opts.args.count = 1;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        opts.command = &k3_command_table[ids[i]];
        k3_err_init(&err);
        k3_fail(&err, K3_ECANCELED, "stopped on request");
        k3_add_command_step(&opts, &err);
        assert_int_equal(strncmp(err.text, "some/set: stopped on request: ", 30), 0);
        assert_non_null(strstr(err.text, "run the same command again"));
        assert_int_equal(err.rc, K3_ECANCELED);
    }
    opts.command = &k3_command_table[K3_CMD_CONVERT];
    k3_err_init(&err);
    k3_fail(&err, K3_ECANCELED, "stopped on request; 3 items are kept");
    k3_add_command_step(&opts, &err);
    assert_string_equal(err.text, "stopped on request; 3 items are kept");
    opts.command = &k3_command_table[K3_CMD_LOAD];
    k3_err_init(&err);
    k3_fail(&err, K3_EIO, "a: cannot open");
    k3_add_command_step(&opts, &err);
    assert_string_equal(err.text, "a: cannot open");
}

static void folders(void **state)
{
    char path[] = "some/folder";
    const struct k3_dir dir = {.fd = -1, .path = path};
    struct k3_err err;
    (void)state;
    k3_err_init(&err);
    assert_int_equal(k3_fail_in(&dir, 0, &err), 0);
    assert_string_equal(err.text, "");
    int rc = k3_fail_at(&err, K3_ECORRUPT, "file", 7, "file: is wrong");
    assert_int_equal(k3_fail_in(&dir, rc, NULL), K3_ECORRUPT);
    assert_int_equal(k3_fail_in(&dir, rc, &err), K3_ECORRUPT);
    assert_string_equal(err.text, "some/folder/file: is wrong");
    assert_string_equal(err.file, "file");
    assert_int_equal(err.offset, 7);
    k3_fail_in(&dir, rc, &err); /* a text with a path is left alone, and so are other sentences */
    assert_string_equal(err.text, "some/folder/file: is wrong");
    k3_err_init(&err);
    rc = k3_fail_at(&err, K3_ECORRUPT, "file", -1, "files: two of them");
    k3_fail_in(&dir, rc, &err);
    assert_string_equal(err.text, "files: two of them");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_has_a_step), cmocka_unit_test(others_are_left_alone),
        cmocka_unit_test(a_full_text),     cmocka_unit_test(a_stop),
        cmocka_unit_test(folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
