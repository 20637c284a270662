/* Purpose: how much memory this process may still take: of the machine, and of the cgroups it is
 * in.
 * Owns: nothing between calls.
 * Threads: any.
 * Errors: none: what cannot be read, or is not what kernels write, does not limit.
 * Invariants: all groups from the own one to the root of the mount are asked, since each may have
 * a limit; page cache counts as free, as it does in MemAvailable, for it gives way. */
#include "mem_room.h"

#include "bytes.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer lines of /proc/self/cgroup cannot be paths that open. */
#define LINE_BYTES (PATH_MAX + 256)

/* The old kind writes the largest number of pages where there is no limit. */
#define LIMIT_BYTES_MAX (UINT64_C(1) << 60)

/* Where a version of cgroups has its files, and what they are called. */
struct kind {
    const char *mounts[2]; /* below root; the second: beside cgroups of the other version */
    const char *limits[2];
    const char *used;
    const char *cache[2]; /* of memory.stat */
};

static const struct kind unified = {
    .mounts = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
    .limits = {"memory.max", "memory.high"},
    .used = "memory.current",
    .cache = {"inactive_file", "active_file"},
};

static const struct kind legacy = {
    .mounts = {"/sys/fs/cgroup/memory", NULL},
    .limits = {"memory.limit_in_bytes", NULL},
    .used = "memory.usage_in_bytes",
    .cache = {"total_inactive_file", "total_active_file"},
};

/* A number at the start of text; false for "max" and for what is none. */
static bool read_number(const char *text, uint64_t *number)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno == 0 && (*end == '\n' || *end == ' ' || *end == 0);
}

bool k3_mem_field(const char *path, const char *field, uint64_t unit_bytes, uint64_t *bytes)
{
    char line[256];
    bool found = false;
    size_t field_bytes = strlen(field);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        uint64_t number;
        const char *rest = line + field_bytes;
        if (strncmp(line, field, field_bytes) != 0 || !strchr(": \t", *rest) || *rest == 0)
            continue;
        rest += strspn(rest, ": \t");
        found = read_number(rest, &number) && k3_mul_fits(number, unit_bytes, bytes);
    }
    fclose(file);
    return found;
}

/* A file that is one number. */
static bool number_file(const char *dir, const char *name, uint64_t *number)
{
    char path[LINE_BYTES], line[64];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    bool found = fgets(line, sizeof line, file) && read_number(line, number);
    fclose(file);
    return found;
}

/* What one group leaves. */
static void ask_group(const struct kind *kind, const char *dir, struct k3_mem_room *room)
{
    char path[LINE_BYTES];
    uint64_t limit = UINT64_MAX, used, one;
    for (int i = 0; i < 2; i++)
        if (kind->limits[i] && number_file(dir, kind->limits[i], &one) && one < limit)
            limit = one;
    if (limit > LIMIT_BYTES_MAX)
        return;
    if (limit < room->limit_bytes)
        room->limit_bytes = limit;
    if (!number_file(dir, kind->used, &used))
        return;
    int n = snprintf(path, sizeof path, "%s/memory.stat", dir);
    for (int i = 0; i < 2 && n > 0 && (size_t)n < sizeof path; i++)
        if (k3_mem_field(path, kind->cache[i], 1, &one))
            used -= one < used ? one : used;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < room->left_bytes)
        room->left_bytes = left;
}

/* The group of that path and all above it.  In a container the path may be that of the host while
 * the mount shows the own group as its root: what is not there is passed over. */
static void ask_groups(const struct kind *kind, const char *root, const char *group,
                       struct k3_mem_room *room)
{
    char dir[LINE_BYTES];
    if (strstr(group, "/.."))
        group = "/"; /* outside of what is mounted here */
    for (int i = 0; i < 2 && kind->mounts[i]; i++) {
        int n = snprintf(dir, sizeof dir, "%s%s", root, kind->mounts[i]);
        size_t mount_bytes = n > 0 ? (size_t)n : 0;
        if (mount_bytes + strlen(group) >= sizeof dir)
            continue;
        memcpy(dir + mount_bytes, group, strlen(group) + 1);
        for (;;) {
            ask_group(kind, dir, room);
            char *slash = strrchr(dir + mount_bytes, '/');
            if (!slash)
                break;
            *slash = 0;
        }
    }
}

/* Does the list "cpu,memory,io" of a line name memory? */
static bool names_memory(const char *list)
{
    static const char name[] = "memory";
    for (const char *at = list; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n == sizeof name - 1 && !memcmp(at, name, n))
            return true;
        at += n;
    }
    return false;
}

bool k3_mem_room(const char *root, struct k3_mem_room *room)
{
    char path[LINE_BYTES], line[LINE_BYTES];
    *room = (struct k3_mem_room){.limit_bytes = K3_MEM_NO_LIMIT, .left_bytes = K3_MEM_NO_LIMIT};
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    (void)k3_mem_field(path, "MemTotal", 1024, &room->total_bytes);
    bool is_known = k3_mem_field(path, "MemAvailable", 1024, &room->available_bytes);
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    /* "NUMBER:CONTROLLERS:PATH"; the unified tree has number 0 and no controllers. */
    while (file && fgets(line, sizeof line, file)) {
        char *list = strchr(line, ':');
        char *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (list[1] == 0 && line[0] == '0' && list == line + 1)
            ask_groups(&unified, root, group, room);
        else if (names_memory(list + 1))
            ask_groups(&legacy, root, group, room);
    }
    if (file)
        fclose(file);
    room->bytes = is_known && room->available_bytes < room->left_bytes ? room->available_bytes
                                                                       : room->left_bytes;
    return room->bytes != K3_MEM_NO_LIMIT;
}
