/* Purpose: runtime/mem_room.c on made-up machines.
 * Owns: a directory that stands for the root of a machine; removed.
 * Threads: one.
 * Errors: a failed assertion ends the test.
 * Invariant: nothing of the real machine is looked at, but for the last test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "mem_room.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MIB ((uint64_t)1 << 20)

static char root[PATH_MAX];
static struct k3_mem_room room;

/* A file below the root, with the folders it needs. */
static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", root, name);
    assert_true(n > 0 && (size_t)n < sizeof path);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        (void)mkdir(path, 0755);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void machine_of_1_gib(void)
{
    put("proc/meminfo", "MemTotal:        2097152 kB\nMemFree:          262144 kB\n"
                        "MemAvailable:    1048576 kB\nBuffers: 1 kB\n");
}

static void expect(uint64_t bytes, bool by_cgroup)
{
    memset(&room, 0x5a, sizeof room);
    assert_true(k3_mem_room(root, &room));
    assert_int_equal(room.bytes, bytes);
    assert_int_equal(room.bytes == room.left_bytes, by_cgroup);
}

static void test_machine_alone(void **state)
{
    (void)state;
    assert_false(k3_mem_room(root, &room)); /* nothing says anything */
    machine_of_1_gib();
    expect(1024 * MIB, false);
    assert_int_equal(room.available_bytes, 1024 * MIB);
    assert_int_equal(room.total_bytes, 2048 * MIB);
    assert_int_equal(room.limit_bytes, K3_MEM_NO_LIMIT);
    put("proc/self/cgroup", "0::/user.slice\n");
    expect(1024 * MIB, false); /* groups without files */
}

static void test_unified(void **state)
{
    (void)state;
    machine_of_1_gib();
    put("proc/self/cgroup", "0::/a.slice/b.scope\n");
    put("sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
    put("sys/fs/cgroup/a.slice/b.scope/memory.current", "104857600\n");
    expect(1024 * MIB, false);
    /* 600 MiB, of which 100 are used, 30 of them page cache. */
    put("sys/fs/cgroup/a.slice/b.scope/memory.max", "629145600\n");
    expect(500 * MIB, true);
    put("sys/fs/cgroup/a.slice/b.scope/memory.stat",
        "anon 73400320\nfile 31457280\nactive_file_x 9\ninactive_file 20971520\n"
        "active_file 10485760\n");
    expect(530 * MIB, true);
    /* The group above leaves less; a limit that is only pressed against counts too. */
    put("sys/fs/cgroup/a.slice/memory.max", "524288000\n");
    put("sys/fs/cgroup/a.slice/memory.current", "419430400\n");
    expect(100 * MIB, true);
    put("sys/fs/cgroup/a.slice/memory.high", "471859200\n");
    expect(50 * MIB, true);
    /* More in use than allowed. */
    put("sys/fs/cgroup/a.slice/memory.current", "1048576000\n");
    expect(0, true);
    /* A limit above the machine's memory says nothing. */
    put("sys/fs/cgroup/a.slice/memory.max", "107374182400\n");
    put("sys/fs/cgroup/a.slice/memory.high", "max\n");
    expect(530 * MIB, true);
    put("proc/self/cgroup", "0::/a.slice\n");
    expect(1024 * MIB, false);
}

/* In a container the mount's root is the own group, whatever the path says. */
static void test_container(void **state)
{
    (void)state;
    static const char *const lines[] = {"0::/\n", "0::/../x\n", "0::/docker/0123/unseen\n",
                                        "12:pids:/x\n0::/\n"};
    machine_of_1_gib();
    put("sys/fs/cgroup/memory.max", "209715200\n");
    put("sys/fs/cgroup/memory.current", "4096\n");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        put("proc/self/cgroup", lines[i]);
        expect(200 * MIB - 4096, true);
    }
}

static void test_legacy(void **state)
{
    (void)state;
    machine_of_1_gib();
    put("proc/self/cgroup", "11:cpu,cpuacct:/x\n10:memory_like:/y\n9:hugetlb,memory:/job/7\n"
                            "0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "52428800\n");
    expect(1024 * MIB, false);
    put("sys/fs/cgroup/memory/job/7/memory.limit_in_bytes", "314572800\n");
    put("sys/fs/cgroup/memory/job/7/memory.usage_in_bytes", "209715200\n");
    put("sys/fs/cgroup/memory/job/7/memory.stat",
        "cache 104857600\ninactive_file 1\ntotal_inactive_file 52428800\n"
        "total_active_file 10485760\n");
    expect(160 * MIB, true);
    assert_int_equal(room.limit_bytes, 300 * MIB);
    put("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "1\n");
    put("sys/fs/cgroup/memory/y/memory.usage_in_bytes", "0\n");
    expect(160 * MIB, true); /* a group of another controller */
}

/* Files that kernels do not write limit nothing, and break nothing. */
static void test_nonsense(void **state)
{
    (void)state;
    static const char *const numbers[] = {"", "-1\n", "12kB\n", "99999999999999999999\n", "\n"};
    machine_of_1_gib();
    put("proc/self/cgroup", "\n:\n0\n0:\n0::\nmemory\n0::/g\n");
    put("sys/fs/cgroup/g/memory.current", "0\n");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        put("sys/fs/cgroup/g/memory.max", numbers[i]);
        expect(1024 * MIB, false);
    }
    put("sys/fs/cgroup/g/memory.max", "1048576\n");
    put("proc/meminfo", "MemAvailable:  99999999999999999999 kB\n");
    expect(MIB, true);
    assert_int_equal(room.available_bytes, 0);
}

static void test_this_machine(void **state)
{
    (void)state;
    assert_true(k3_mem_room("", &room));
    assert_true(room.bytes > 0 && room.bytes <= room.available_bytes);
    assert_true(room.total_bytes > 0 && room.total_bytes >= room.available_bytes);
    assert_true(room.left_bytes <= room.limit_bytes);
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int make_root(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/k3-mem-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#define ROOT_TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {ROOT_TEST(test_machine_alone), ROOT_TEST(test_unified),
                                       ROOT_TEST(test_container),     ROOT_TEST(test_legacy),
                                       ROOT_TEST(test_nonsense),      ROOT_TEST(test_this_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
