/* Memory nodes: where a device hangs, and which processors and memory are near it.  Placing makes
 * things faster, never right or wrong: what the kernel refuses is said and left as it was. */
#ifndef K3_NUMA_H
#define K3_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define K3_NUMA_NONE           (-1)
#define K3_NUMA_NODE_COUNT_MAX 1024 /* of Linux on any machine (NODES_SHIFT 10) */

struct k3_numa_place {
    int node;           /* K3_NUMA_NONE: a machine of one node, or not known: nothing is placed */
    uint32_t cpu_count; /* of the node, that this thread may use; 0: threads are not placed */
    cpu_set_t cpus;
};

/* The numbers of a list like "0-3,8", those below `limit`, as calls of `add`; false for what is no
 * such list. */
bool k3_numa_list(const char *text, uint32_t limit, void (*add)(void *context, uint32_t number),
                  void *context);
/* Node of a PCI device, "0000:1A:00.0" as drivers write it; K3_NUMA_NONE: not known.  root: in
 * front of /sys, "" but in tests. */
int k3_numa_node_of_pci(const char *root, const char *bus_id);
/* Memory nodes that are online; 0: not known. */
uint32_t k3_numa_node_count(const char *root);
/* The place near a PCI device, for the calling thread and those it starts. */
void k3_numa_find(const char *root, const char *bus_id, struct k3_numa_place *out);

/* Memory that is touched first after this comes from the node while it has any; whole pages.  0 or
 * an errno. */
int k3_numa_prefer(const struct k3_numa_place *place, void *data, size_t bytes);
/* The calling thread, and those it starts, run on the node until leave.  0 or an errno; then
 * nothing changed, and leave does nothing. */
int k3_numa_enter(const struct k3_numa_place *place, cpu_set_t *saved);
void k3_numa_leave(const cpu_set_t *saved);

#endif
