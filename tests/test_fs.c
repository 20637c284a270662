/* Purpose: runtime/fs.c and fs_dir.c on a real file system.
 * Owns: a temporary directory for each test.
 * Threads: one.
 * Errors: a failed assertion ends the test.
 * Invariant: nothing is left in /tmp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Stand before those of libc in this program: when asked, a call moves three bytes or is
 * interrupted. */
static bool short_calls;
static unsigned short_count;

static bool shorten(size_t *bytes)
{
    if (!short_calls)
        return true;
    *bytes = *bytes < 3 ? *bytes : 3;
    errno = EINTR;
    return short_count++ % 2;
}

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    bool whole = shorten(&bytes);
    return whole ? preadv(fd, &(struct iovec){data, bytes}, 1, offset) : -1;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    bool whole = shorten(&bytes);
    struct iovec piece = {(void *)(uintptr_t)data, bytes};
    return whole ? pwritev(fd, &piece, 1, offset) : -1;
}

static struct k3_dir dir;
static char root[64];

static int make_dir(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/k3-fs-XXXXXX");
    return !mkdtemp(root) || k3_dir_open(root, false, &dir, NULL);
}

static int remove_dir(void **state)
{
    (void)state;
    char **names;
    uint32_t count;
    if (k3_dir_list(&dir, &names, &count, NULL))
        return 1;
    for (uint32_t i = 0; i < count; i++)
        k3_file_remove(&dir, names[i], NULL);
    k3_names_free(names, count);
    k3_dir_close(&dir);
    return rmdir(root);
}

static void put(const char *name, const char *text)
{
    int fd;
    assert_int_equal(k3_file_create(&dir, name, &fd, NULL), 0);
    assert_int_equal(k3_file_write(fd, name, text, strlen(text), 0, NULL), 0);
    assert_int_equal(k3_file_close(fd, name, NULL), 0);
}

static void test_write_read(void **state)
{
    (void)state;
    struct k3_err err;
    int fd;
    struct stat stat;
    char data[16];
    k3_err_init(&err);
    put("a", "0123456789");
    assert_int_equal(k3_file_open(&dir, "a", false, &fd, &stat, &err), 0);
    assert_int_equal(stat.st_size, 10);
    memset(data, 0xA5, sizeof data);
    assert_int_equal(k3_file_read(fd, "a", data, 4, 3, &err), 0);
    assert_memory_equal(data, "3456\xA5", 5);
    assert_int_equal(k3_file_read(fd, "a", data, 0, 100, &err), 0);
    /* Past the end: what is missing is corruption, with the place where the file ended. */
    assert_int_equal(k3_file_read(fd, "x/a", data, 8, 5, &err), K3_ECORRUPT);
    assert_string_equal(err.file, "a");
    assert_int_equal(err.offset, 10);
    k3_file_drop(fd, 0, 10);
    close(fd);
    k3_err_init(&err);
    assert_int_equal(k3_file_read(fd, "a", data, 1, 0, &err), K3_EIO);
    assert_int_equal(err.sys_errno, EBADF);
    assert_int_equal(k3_file_close(fd, "a", NULL), K3_EIO);
    assert_int_equal(k3_file_sync(fd, "a", NULL), K3_EIO);
    assert_int_equal(k3_file_write(fd, "a", data, 1, 0, NULL), K3_EIO);
}

/* Short results and EINTR never reach the caller. */
static void test_short_calls(void **state)
{
    (void)state;
    char *data;
    size_t bytes;
    static const char text[] = "twenty-six letters of text";
    short_calls = true;
    put("a", text);
    assert_int_equal(k3_file_load(&dir, "a", 100, &data, &bytes, NULL), 0);
    short_calls = false;
    assert_int_equal(bytes, sizeof text - 1);
    assert_string_equal(data, text);
    assert_true(short_count > 20);
    free(data);
}

static void test_open_refuses(void **state)
{
    (void)state;
    struct k3_err err;
    int fd = 7;
    put("real", "x");
    assert_int_equal(symlinkat("real", dir.fd, "link"), 0);
    assert_int_equal(mkfifoat(dir.fd, "fifo", 0600), 0);
    k3_err_init(&err);
    assert_int_equal(k3_file_open(&dir, "link", false, &fd, NULL, &err), K3_EFORMAT);
    assert_int_equal(fd, -1);
    assert_int_equal(k3_file_open(&dir, "link", true, &fd, NULL, NULL), 0);
    close(fd);
    assert_int_equal(k3_file_open(&dir, "fifo", false, &fd, NULL, NULL), K3_EFORMAT);
    assert_int_equal(k3_file_open(&dir, ".", false, &fd, NULL, NULL), K3_EFORMAT);
    k3_err_init(&err);
    assert_int_equal(k3_file_open(&dir, "none", true, &fd, NULL, &err), K3_EIO);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_string_equal(err.file, "none");
    assert_true(k3_file_exists(&dir, "link"));
    assert_false(k3_file_exists(&dir, "none"));
    /* Create never opens what is there, through a link neither. */
    assert_int_equal(k3_file_create(&dir, "real", &fd, NULL), K3_EIO);
    assert_int_equal(k3_file_create(&dir, "link", &fd, NULL), K3_EIO);
}

static void test_load(void **state)
{
    (void)state;
    char *data;
    size_t bytes;
    put("a", "hello");
    put("empty", "");
    assert_int_equal(k3_file_load(&dir, "a", 5, &data, &bytes, NULL), 0);
    assert_int_equal(bytes, 5);
    assert_string_equal(data, "hello");
    free(data);
    assert_int_equal(k3_file_load(&dir, "empty", 5, &data, &bytes, NULL), 0);
    assert_int_equal(bytes, 0);
    assert_string_equal(data, "");
    free(data);
    assert_int_equal(k3_file_load(&dir, "a", 4, &data, &bytes, NULL), K3_ELIMIT);
    assert_null(data);
    assert_int_equal(k3_file_load(&dir, "none", 4, &data, &bytes, NULL), K3_EIO);
    assert_null(data);
}

static void test_publish(void **state)
{
    (void)state;
    char *data;
    size_t bytes;
    put("t", "left by a run that was killed");
    put("a", "old");
    assert_int_equal(k3_file_publish(&dir, "t", "a", "new!", 4, NULL), 0);
    assert_false(k3_file_exists(&dir, "t"));
    assert_int_equal(k3_file_load(&dir, "a", 9, &data, &bytes, NULL), 0);
    assert_string_equal(data, "new!");
    free(data);
    /* A target that cannot be replaced: the old content stays, the temporary name goes. */
    assert_int_equal(mkdirat(dir.fd, "d", 0700), 0);
    assert_int_equal(k3_file_publish(&dir, "t", "d", "x", 1, NULL), K3_EIO);
    assert_false(k3_file_exists(&dir, "t"));
}

static void test_rename_remove(void **state)
{
    (void)state;
    struct k3_dir sub;
    struct k3_err err;
    put("a", "x");
    assert_int_equal(k3_dir_open_at(&dir, "sub", true, &sub, NULL), 0);
    assert_int_equal(k3_file_rename(&dir, "a", &sub, "b", NULL), 0);
    assert_true(k3_file_exists(&sub, "b"));
    assert_false(k3_file_exists(&dir, "a"));
    k3_err_init(&err);
    assert_int_equal(k3_file_rename(&dir, "a", &sub, "b", &err), K3_EIO);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_int_equal(k3_file_remove(&dir, "sub", NULL), K3_EIO); /* not empty */
    assert_int_equal(k3_file_remove(&sub, "b", NULL), 0);
    assert_int_equal(k3_file_remove(&sub, "b", NULL), 0);
    assert_int_equal(k3_file_remove(&dir, "sub", NULL), 0);
    assert_false(k3_file_exists(&dir, "sub"));
    k3_dir_close(&sub);
}

static void test_dirs(void **state)
{
    (void)state;
    struct k3_dir sub, again, zeroed;
    struct k3_err err;
    char path[128];
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/sub", root);
    k3_err_init(&err);
    assert_int_equal(k3_dir_open(path, false, &sub, &err), K3_EIO);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_int_equal(sub.fd, -1);
    k3_dir_close(&sub);
    assert_int_equal(k3_dir_open(path, true, &sub, NULL), 0);
    assert_int_equal(k3_dir_open(path, true, &again, NULL), 0);
    assert_int_equal(k3_dir_sync(&sub, NULL), 0);
    assert_int_equal(k3_dir_free_bytes(&sub, &bytes, NULL), 0);
    assert_true(bytes > 0);
    k3_dir_close(&again);
    k3_dir_close(&sub);
    /* Links are not followed below a directory of ours. */
    assert_int_equal(symlinkat("sub", dir.fd, "link"), 0);
    assert_int_equal(k3_dir_open_at(&dir, "link", false, &sub, NULL), K3_EIO);
    assert_int_equal(k3_dir_open_at(&dir, "sub", false, &sub, NULL), 0);
    assert_string_equal(sub.path, path);
    k3_dir_close(&sub);
    /* Closing what was never opened does not close fd 0. */
    memset(&zeroed, 0, sizeof zeroed);
    k3_dir_close(&zeroed);
    assert_true(fcntl(0, F_GETFD) >= 0 || errno == EBADF);
}

static void test_list(void **state)
{
    (void)state;
    char **names;
    uint32_t count;
    assert_int_equal(k3_dir_list(&dir, &names, &count, NULL), 0);
    assert_int_equal(count, 0);
    k3_names_free(names, count);
    for (int i = 0; i < 200; i++) {
        char name[8];
        snprintf(name, sizeof name, "f%d", i);
        put(name, "");
    }
    put(".hidden", "");
    /* Twice: a listing does not move the position of the next. */
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(k3_dir_list(&dir, &names, &count, NULL), 0);
        assert_int_equal(count, 201);
        assert_string_equal(names[0], ".hidden");
        for (uint32_t i = 1; i < count; i++)
            assert_true(strcmp(names[i - 1], names[i]) < 0);
        k3_names_free(names, count);
    }
}

static void test_reserve_random(void **state)
{
    (void)state;
    struct k3_err err;
    int fd;
    char a[17], b[17];
    assert_int_equal(k3_file_create(&dir, "a", &fd, NULL), 0);
    assert_int_equal(k3_file_reserve(fd, "a", 0, NULL), 0);
    assert_int_equal(k3_file_reserve(fd, "a", 1 << 20, NULL), 0);
    k3_err_init(&err);
    assert_int_equal(k3_file_reserve(fd, "a", UINT64_MAX, &err), K3_EIO);
    assert_int_equal(err.sys_errno, EFBIG);
    assert_int_equal(k3_file_sync(fd, "a", NULL), 0);
    close(fd);
    assert_int_equal(k3_random_hex(a, 16, NULL), 0);
    assert_int_equal(k3_random_hex(b, 16, NULL), 0);
    assert_int_equal(strspn(a, "0123456789abcdef"), 16);
    assert_int_equal(strlen(a), 16);
    assert_string_not_equal(a, b);
    assert_int_equal(k3_random_hex(a, 1, NULL), 0);
    assert_int_equal(strlen(a), 1);
}

#define FS_TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FS_TEST(test_write_read), FS_TEST(test_short_calls), FS_TEST(test_open_refuses),
        FS_TEST(test_load),       FS_TEST(test_publish),     FS_TEST(test_rename_remove),
        FS_TEST(test_dirs),       FS_TEST(test_list),        FS_TEST(test_reserve_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
