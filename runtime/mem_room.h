/* How much memory this process may still take. */
#ifndef K3_MEM_ROOM_H
#define K3_MEM_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#define K3_MEM_NO_LIMIT UINT64_MAX

struct k3_mem_room {
    uint64_t bytes; /* that can be taken without swapping, the lower of the two below; page cache
                       gives way */
    uint64_t total_bytes, available_bytes; /* of the machine; 0: not known */
    uint64_t limit_bytes;                  /* the lowest of the memory cgroups, or NO_LIMIT */
    uint64_t left_bytes;                   /* below their limits, or NO_LIMIT */
};

/* The lower of what the machine has and what each memory cgroup (v1 or v2) around this process
 * leaves.  root: where /proc and /sys are looked for, "" except in tests.  False: nothing here
 * says. */
bool k3_mem_room(const char *root, struct k3_mem_room *room);

/* A "Name:   123 kB" or "name 123" line of a small file; false where there is none.  unit_bytes:
 * what its number counts. */
bool k3_mem_field(const char *path, const char *field, uint64_t unit_bytes, uint64_t *bytes);

#endif
