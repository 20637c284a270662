/* Memory nodes from trees that look like /sys, and placing the calling thread.  What the machine
 * itself has is never judged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "load_internal.h"
#include "mem.h"
#include "numa.h"
#include "workers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 256
#define GPU        "/sys/bus/pci/devices/0000:1a:00.0/numa_node"
#define NODE_CPUS  "/sys/devices/system/node/node1/cpulist"
#define ONLINE     "/sys/devices/system/node/online"

static char root[PATH_BYTES];
static const char *const dirs[] = {"/sys",
                                   "/sys/bus",
                                   "/sys/bus/pci",
                                   "/sys/bus/pci/devices",
                                   "/sys/bus/pci/devices/0000:1a:00.0",
                                   "/sys/devices",
                                   "/sys/devices/system",
                                   "/sys/devices/system/node",
                                   "/sys/devices/system/node/node1"};
static const char *const files[] = {GPU, NODE_CPUS, ONLINE};
#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

static const char *at_root(const char *path)
{
    static char whole[2 * PATH_BYTES];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    return whole;
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(at_root(path), "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int make_tree(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/k3-test-numa-XXXXXX");
    if (!mkdtemp(root))
        return 1;
    for (size_t i = 0; i < COUNT_OF(dirs); i++)
        if (mkdir(at_root(dirs[i]), 0700))
            return 1;
    return 0;
}

static int remove_tree(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(files); i++)
        (void)unlink(at_root(files[i]));
    for (size_t i = COUNT_OF(dirs); i-- > 0;)
        (void)rmdir(at_root(dirs[i]));
    return rmdir(root);
}

/* ---- lists ---- */

static void take(void *context, uint32_t number)
{
    char *text = context;
    snprintf(text + strlen(text), PATH_BYTES - strlen(text), "%u ", number);
}

static const char *list(const char *text, uint32_t limit)
{
    static char taken[PATH_BYTES];
    taken[0] = 0;
    return k3_numa_list(text, limit, take, taken) ? taken : NULL;
}

static void test_list(void **state)
{
    (void)state;
    static const char *const bad[] = {",",   "1,",  "1,,2", "a",  "1-",          "-1",
                                      "3-2", "1 2", "1-2-", "0x", "99999999999", "1-99999999999"};
    assert_string_equal(list("0", 8), "0 ");
    assert_string_equal(list("0-3,8", 16), "0 1 2 3 8 ");
    assert_string_equal(list("6-4294967295", 8), "6 7 "); /* those below the limit */
    assert_string_equal(list("4294967295", UINT32_MAX), "");
    assert_string_equal(list("", 8), "");
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (list(bad[i], 8))
            fail_msg("%s was taken", bad[i]);
}

/* ---- nodes ---- */

static void test_node_of_pci(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "1A:00.0",
                                      "0000:1A:00",
                                      "0000:1A:00.8",
                                      "0000:1A:20.0",
                                      "0000:100:00.0",
                                      "0000:1A:00.0x",
                                      "../1a:00.0",
                                      "0000:1A:00.0/../x"};
    put(GPU, "1\n");
    assert_int_equal(k3_numa_node_of_pci(root, "0000:1A:00.0"), 1); /* as drivers write it */
    assert_int_equal(k3_numa_node_of_pci(root, "00000000:1a:00.0"), 1);
    assert_int_equal(k3_numa_node_of_pci(root, "0000:1B:00.0"), K3_NUMA_NONE);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_equal(k3_numa_node_of_pci(root, bad[i]), K3_NUMA_NONE);
    put(GPU, "-1\n");
    assert_int_equal(k3_numa_node_of_pci(root, "0000:1A:00.0"), K3_NUMA_NONE);
    put(GPU, "1024\n");
    assert_int_equal(k3_numa_node_of_pci(root, "0000:1A:00.0"), K3_NUMA_NONE);
    put(GPU, "x\n");
    assert_int_equal(k3_numa_node_of_pci(root, "0000:1A:00.0"), K3_NUMA_NONE);
}

static void test_node_count(void **state)
{
    (void)state;
    put(ONLINE, "0-1,4\n");
    assert_int_equal(k3_numa_node_count(root), 3);
    put(ONLINE, "0\n");
    assert_int_equal(k3_numa_node_count(root), 1);
    put(ONLINE, "none\n");
    assert_int_equal(k3_numa_node_count(root), 0);
    assert_int_equal(k3_numa_node_count("/nowhere"), 0);
}

/* A processor that this thread may use, and what it may use. */
static uint32_t own_cpu(cpu_set_t *allowed)
{
    assert_int_equal(sched_getaffinity(0, sizeof *allowed, allowed), 0);
    for (uint32_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, allowed))
            return i;
    fail();
    return 0;
}

static void test_find(void **state)
{
    (void)state;
    struct k3_numa_place place;
    cpu_set_t allowed, saved, now;
    char text[64];
    const uint32_t cpu = own_cpu(&allowed);
    put(GPU, "1\n");
    put(ONLINE, "0\n");
    snprintf(text, sizeof text, "%u\n", cpu);
    put(NODE_CPUS, text);
    k3_numa_find(root, "0000:1A:00.0", &place); /* one node: nothing is placed */
    assert_int_equal(place.node, K3_NUMA_NONE);
    assert_int_equal(place.cpu_count, 0);
    put(ONLINE, "0-1\n");
    k3_numa_find(root, "0000:1B:00.0", &place); /* a device of no known node */
    assert_int_equal(place.node, K3_NUMA_NONE);
    k3_numa_find(root, "0000:1A:00.0", &place);
    assert_int_equal(place.node, 1);
    assert_int_equal(place.cpu_count, 1);
    assert_true(CPU_ISSET(cpu, &place.cpus));
    assert_int_equal(k3_numa_enter(&place, &saved), 0);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, &place.cpus));
    k3_numa_leave(&saved);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, &allowed));
    /* Processors that this thread may not use are none of the place. */
    assert_int_equal(sched_setaffinity(0, sizeof place.cpus, &place.cpus), 0);
    put(NODE_CPUS, "0-1023\n");
    k3_numa_find(root, "0000:1A:00.0", &place);
    assert_int_equal(sched_setaffinity(0, sizeof allowed, &allowed), 0);
    assert_int_equal(place.cpu_count, 1);
    put(NODE_CPUS, "\n"); /* a node of memory alone */
    k3_numa_find(root, "0000:1A:00.0", &place);
    assert_int_equal(place.node, 1);
    assert_int_equal(place.cpu_count, 0);
}

/* ---- placing ---- */

static void test_nothing_to_place(void **state)
{
    (void)state;
    struct k3_numa_place none = {.node = K3_NUMA_NONE};
    cpu_set_t before, after, saved;
    (void)own_cpu(&before);
    assert_int_equal(k3_numa_prefer(&none, NULL, 4096), 0); /* no call: NULL would be refused */
    assert_int_equal(k3_numa_enter(&none, &saved), 0);
    assert_int_equal(CPU_COUNT(&saved), 0);
    k3_numa_leave(&saved);
    (void)own_cpu(&after);
    assert_true(CPU_EQUAL(&before, &after));
}

/* Of a node and a processor that no machine has: an errno, and nothing changed. */
static void test_refused(void **state)
{
    (void)state;
    struct k3_numa_place place = {.node = K3_NUMA_NODE_COUNT_MAX - 1, .cpu_count = 1};
    cpu_set_t before, after, saved;
    void *data;
    const uint32_t last = CPU_SETSIZE - 1;
    (void)own_cpu(&before);
    CPU_ZERO(&place.cpus);
    CPU_SET(last, &place.cpus);
    assert_int_equal(k3_mem_alloc(8192, &data, NULL), 0);
    assert_int_not_equal(k3_numa_prefer(&place, data, 8192), 0);
    memset(data, 1, 8192);
    k3_mem_free(data, 8192);
    if (CPU_ISSET(last, &before))
        return;
    assert_int_equal(k3_numa_enter(&place, &saved), EINVAL);
    assert_int_equal(CPU_COUNT(&saved), 0);
    k3_numa_leave(&saved);
    (void)own_cpu(&after);
    assert_true(CPU_EQUAL(&before, &after));
}

/* Node 0 is there on every machine; a kernel or a container may refuse the call all the same. */
static void test_prefer(void **state)
{
    (void)state;
    struct k3_numa_place place = {.node = 0};
    void *data;
    assert_int_equal(k3_mem_alloc((size_t)4 << 20, &data, NULL), 0);
    int sys_errno = k3_numa_prefer(&place, data, (size_t)4 << 20);
    if (sys_errno != 0 && sys_errno != EPERM && sys_errno != ENOSYS)
        fail_msg("mbind: %s", strerror(sys_errno));
    memset(data, 1, (size_t)4 << 20);
    k3_mem_free(data, (size_t)4 << 20);
}

/* ---- threads of legs ---- */

static void test_threads(void **state)
{
    (void)state;
    static struct k3_load_leg legs[8];
    static struct k3_load load = {.legs = legs};
    for (uint32_t i = 0; i < 8; i++) {
        legs[i].load = &load;
        legs[i].place = (struct k3_numa_place){.node = i < 6 ? 0 : 1, .cpu_count = 48};
    }
    load.leg_count = 8;
    assert_int_equal(k3_load_leg_threads(&legs[0], false), 8); /* six share 48 */
    assert_int_equal(k3_load_leg_threads(&legs[7], false), 24);
    assert_int_equal(k3_load_leg_threads(&legs[0], true), 0);
    for (uint32_t i = 0; i < 8; i++)
        legs[i].place.cpu_count = 10;
    assert_int_equal(k3_load_leg_threads(&legs[0], false), 4); /* at least */
    load.leg_count = 1;
    assert_int_equal(k3_load_leg_threads(&legs[0], false), 10);
    for (uint32_t i = 0; i < 8; i++)
        legs[i].place = (struct k3_numa_place){.node = K3_NUMA_NONE};
    assert_int_equal(k3_load_leg_threads(&legs[0], false), 0); /* as the engine thinks best */
    legs[0].slots.count = 32; /* its own thread copies, and spins */
    const uint32_t with_slots = k3_load_leg_threads(&legs[0], false);
    assert_true(with_slots >= 4 && (with_slots == 4 || with_slots + 1 == k3_cpu_count()));
    legs[0].place = (struct k3_numa_place){.node = 0, .cpu_count = 10};
    assert_int_equal(k3_load_leg_threads(&legs[0], false), 9);
    legs[0].slots.count = 0;
    legs[0].place = (struct k3_numa_place){.node = K3_NUMA_NONE};
    load.leg_count = 8;
    assert_true(k3_load_leg_threads(&legs[0], false) >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),       cmocka_unit_test(test_node_of_pci),
        cmocka_unit_test(test_node_count), cmocka_unit_test(test_find),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_nothing_to_place),
        cmocka_unit_test(test_prefer),     cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
