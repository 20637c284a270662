/* How much memory this process may still take. */
#ifndef K3_MEM_ROOM_H
#define K3_MEM_ROOM_H

#include <stdbool.h>
#include <stdint.h>

struct k3_mem_room {
    uint64_t bytes;  /* that can be taken without swapping; page cache gives way */
    bool by_cgroup;  /* the limit of a memory cgroup, not the machine, is what is lower */
    bool is_machine; /* the machine said what it has (else only the cgroup did) */
};

/* The lower of what the machine has and what each memory cgroup (v1 or v2) around this process
 * leaves.  root: where /proc and /sys are looked for, "" except in tests.  False: nothing here
 * says. */
bool k3_mem_room(const char *root, struct k3_mem_room *room);

/* A "Name:   123 kB" or "name 123" line of a small file; false where there is none.  unit_bytes:
 * what its number counts. */
bool k3_mem_field(const char *path, const char *field, uint64_t unit_bytes, uint64_t *bytes);

#endif
