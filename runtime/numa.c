/* Purpose: memory nodes of devices, and placing memory and threads on them.
 * Owns: nothing.
 * Threads: any; entering and leaving concern the calling thread.
 * Errors: none that ends anything: an errno, or a place that places nothing.
 * Invariants: a thread gets no processor that it was not allowed before; where nothing is placed no
 * system call is made that changes anything. */
#include "numa.h"

#include "machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATH_BYTES 512
/* A list of all processors that cpu_set_t has, each by itself. */
#define LIST_BYTES       8192
#define MPOL_PREFERRED   1 /* linux/mempolicy.h: this node first, others when it is full */
#define LONG_BITS        (8 * sizeof(unsigned long))
#define PCI_DOMAIN_MAX   0xffffffffu
#define PCI_BUS_MAX      0xffu
#define PCI_DEVICE_MAX   0x1fu
#define PCI_FUNCTION_MAX 7u

/* ---- lists ---- */

static bool take_number(const char **at, uint32_t *number)
{
    const char *begin = *at;
    uint64_t value = 0;
    while (**at >= '0' && **at <= '9' && value <= UINT32_MAX)
        value = value * 10 + (uint64_t)(*(*at)++ - '0');
    *number = (uint32_t)value;
    return *at != begin && value <= UINT32_MAX;
}

bool k3_numa_list(const char *text, uint32_t limit, void (*add)(void *context, uint32_t number),
                  void *context)
{
    for (const char *at = text; *at; at++) {
        uint32_t first, last;
        if (!take_number(&at, &first))
            return false;
        last = first;
        if (*at == '-' && (at++, !take_number(&at, &last) || last < first))
            return false;
        for (uint32_t n = first; n < limit && n <= last; n++)
            add(context, n);
        if (*at == 0)
            return true;
        if (*at != ',')
            return false;
    }
    return *text == 0; /* a node without processors has an empty list; a comma ends none */
}

static void add_cpu(void *context, uint32_t number)
{
    CPU_SET(number, (cpu_set_t *)context);
}

static void count_one(void *context, uint32_t number)
{
    (void)number;
    ++*(uint32_t *)context;
}

/* ---- what the kernel says ---- */

static bool read_text(const char *root, const char *path, char *text, size_t cap)
{
    char whole[PATH_BYTES];
    int n = snprintf(whole, sizeof whole, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof whole && k3_machine_text(whole, text, cap);
}

/* Hexadecimal digits and what ends them. */
static bool take_hex(const char **at, char stop, unsigned long max, unsigned long *value)
{
    char *end;
    size_t digits = strspn(*at, "0123456789abcdefABCDEF");
    if (digits == 0 || digits > 8)
        return false;
    *value = strtoul(*at, &end, 16);
    if (*value > max || *end != stop)
        return false;
    *at = stop ? end + 1 : end;
    return true;
}

int k3_numa_node_of_pci(const char *root, const char *bus_id)
{
    unsigned long domain, bus, device, function;
    char path[PATH_BYTES], text[32], *end;
    const char *at = bus_id;
    if (!take_hex(&at, ':', PCI_DOMAIN_MAX, &domain) || !take_hex(&at, ':', PCI_BUS_MAX, &bus) ||
        !take_hex(&at, '.', PCI_DEVICE_MAX, &device) ||
        !take_hex(&at, 0, PCI_FUNCTION_MAX, &function))
        return K3_NUMA_NONE;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%04lx:%02lx:%02lx.%lx/numa_node", domain, bus,
             device, function);
    if (!read_text(root, path, text, sizeof text))
        return K3_NUMA_NONE;
    long node = strtol(text, &end, 10);
    if (end == text || *end || node < 0 || node >= K3_NUMA_NODE_COUNT_MAX)
        return K3_NUMA_NONE; /* -1: the firmware does not tell */
    return (int)node;
}

uint32_t k3_numa_node_count(const char *root)
{
    char text[LIST_BYTES];
    uint32_t count = 0;
    if (!read_text(root, "/sys/devices/system/node/online", text, sizeof text) ||
        !k3_numa_list(text, K3_NUMA_NODE_COUNT_MAX, count_one, &count))
        return 0;
    return count;
}

void k3_numa_find(const char *root, const char *bus_id, struct k3_numa_place *out)
{
    char path[PATH_BYTES], text[LIST_BYTES];
    cpu_set_t allowed, near;
    *out = (struct k3_numa_place){.node = K3_NUMA_NONE};
    CPU_ZERO(&out->cpus);
    if (k3_numa_node_count(root) < 2)
        return;
    out->node = k3_numa_node_of_pci(root, bus_id);
    if (out->node == K3_NUMA_NONE)
        return;
    CPU_ZERO(&near);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", out->node);
    /* A machine with more processors than a cpu_set_t has: its threads are not placed. */
    if (!read_text(root, path, text, sizeof text) ||
        !k3_numa_list(text, CPU_SETSIZE, add_cpu, &near) ||
        sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    CPU_AND(&out->cpus, &near, &allowed);
    out->cpu_count = (uint32_t)CPU_COUNT(&out->cpus);
}

/* ---- placing ---- */

int k3_numa_prefer(const struct k3_numa_place *place, void *data, size_t bytes)
{
    unsigned long nodes[K3_NUMA_NODE_COUNT_MAX / LONG_BITS + 1] = {0};
    if (place->node == K3_NUMA_NONE)
        return 0;
    nodes[(size_t)place->node / LONG_BITS] |= 1ul << (size_t)place->node % LONG_BITS;
    /* One more than there are: the kernel takes one off. */
    return syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, nodes,
                   (unsigned long)K3_NUMA_NODE_COUNT_MAX + 1, 0) == 0
               ? 0
               : errno;
}

int k3_numa_enter(const struct k3_numa_place *place, cpu_set_t *saved)
{
    CPU_ZERO(saved);
    if (place->cpu_count == 0)
        return 0;
    if (sched_getaffinity(0, sizeof *saved, saved) == 0 &&
        sched_setaffinity(0, sizeof place->cpus, &place->cpus) == 0)
        return 0;
    int sys_errno = errno;
    CPU_ZERO(saved);
    return sys_errno;
}

void k3_numa_leave(const cpu_set_t *saved)
{
    if (CPU_COUNT(saved))
        (void)sched_setaffinity(0, sizeof *saved, saved);
}
