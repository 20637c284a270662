/* Purpose: what the kernel says about this machine.
 * Owns: nothing; files are closed before each function returns.
 * Threads: any.
 * Errors: none: what cannot be read is false, 0, "" or no limit.
 * Invariant: files of /proc and /sys are text of others: each number is parsed strictly, each text
 * is cut to its field. */
#include "machine.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define GROUP_ROOT "/sys/fs/cgroup"
#define LINE_BYTES 4096 /* a line of mountinfo: two paths and options */

/* ---- small files ---- */

bool k3_machine_text(const char *path, char *text, size_t cap)
{
    *text = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t n = fread(text, 1, cap - 1, file);
    fclose(file);
    while (n && isspace((unsigned char)text[n - 1]))
        n--;
    text[n] = 0;
    return n > 0;
}

bool k3_machine_field(const char *path, const char *name, char *value, size_t cap)
{
    char line[512];
    size_t name_bytes = strlen(name);
    bool found = false;
    *value = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, name_bytes) != 0)
            continue;
        const char *at = line + name_bytes;
        if (*at != ':' && *at != ' ')
            continue;
        at += strspn(at, ": \t");
        snprintf(value, cap, "%.*s", (int)strcspn(at, "\n"), at);
        found = true;
    }
    fclose(file);
    return found;
}

/* A decimal number at the start of a text; what follows it is not looked at. */
static bool number(const char *text, uint64_t *value)
{
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    *value = strtoull(text, NULL, 10);
    return errno == 0;
}

static uint64_t number_in(const char *path)
{
    char text[64];
    uint64_t value = 0;
    return k3_machine_text(path, text, sizeof text) && number(text, &value) ? value : 0;
}

/* ---- control groups ---- */

struct group {
    char path[LINE_BYTES]; /* directory of the process's own group */
    size_t root_bytes;     /* of it: the directory where the walk up ends */
    bool is_first_kind;    /* one tree for each controller */
};

/* Where the limits of a controller are: its own tree where there is one, else the common tree. */
static bool find_group(const char *controller, struct group *group)
{
    char line[LINE_BYTES - 64];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return false;
    while ((!found || !group->is_first_kind) && fgets(line, sizeof line, file)) {
        char *names = strchr(line, ':');
        char *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        names++;
        bool is_common = *names == 0;
        char list[128], wanted[64];
        snprintf(list, sizeof list, ",%s,", names);
        snprintf(wanted, sizeof wanted, ",%s,", controller);
        if (!is_common && !strstr(list, wanted))
            continue;
        int n = snprintf(group->path, sizeof group->path, "%s%s%s", GROUP_ROOT,
                         is_common ? "" : "/", names);
        group->root_bytes = (size_t)n;
        snprintf(group->path + n, sizeof group->path - (size_t)n, "%s", path);
        group->is_first_kind = !is_common;
        found = true;
    }
    fclose(file);
    return found;
}

/* The group above; false at the root.  Groups that a container does not show are passed by. */
static bool go_up(struct group *group)
{
    size_t n = strlen(group->path);
    if (n <= group->root_bytes)
        return false;
    while (n > group->root_bytes && group->path[n - 1] != '/')
        n--;
    group->path[n > group->root_bytes ? n - 1 : n] = 0;
    return true;
}

/* A file of the group as text. */
static bool group_text(const struct group *group, const char *name, char *text, size_t cap)
{
    char path[LINE_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", group->path, name);
    return k3_machine_text(path, text, cap);
}

uint64_t k3_machine_cpu_percent_max(void)
{
    struct group group;
    uint64_t lowest = 0;
    if (!find_group("cpu", &group))
        return 0;
    do {
        char text[128];
        uint64_t quota_us, period_us = 0;
        if (!group_text(&group, group.is_first_kind ? "cpu.cfs_quota_us" : "cpu.max", text,
                        sizeof text) ||
            !number(text, &quota_us))
            continue;
        const char *second = strchr(text, ' ');
        if (second)
            (void)number(second + 1, &period_us);
        else if (group_text(&group, "cpu.cfs_period_us", text, sizeof text))
            (void)number(text, &period_us);
        uint64_t percent = period_us ? quota_us * 100 / period_us : 0;
        if (percent && (!lowest || percent < lowest))
            lowest = percent;
    } while (go_up(&group));
    return lowest;
}

/* ---- file systems ---- */

struct known_type {
    const char *name;
    uint64_t magic; /* of statfs(2): for where mountinfo does not show the mount */
    bool is_network, is_in_memory;
};

static const struct known_type known_types[] = {
    {"ext4", 0xef53, false, false},      {"xfs", 0x58465342, false, false},
    {"btrfs", 0x9123683e, false, false}, {"zfs", 0x2fc12fc1, false, false},
    {"f2fs", 0xf2f52010, false, false},  {"overlay", 0x794c7630, false, false},
    {"tmpfs", 0x01021994, false, true},  {"ramfs", 0x858458f6, false, true},
    {"nfs", 0x6969, true, false},        {"nfs4", 0x6969, true, false},
    {"fuse", 0x65735546, true, false},   {"ceph", 0x00c36400, true, false},
    {"lustre", 0x0bd00bd0, true, false}, {"smb3", 0xfe534d42, true, false},
    {"cifs", 0xff534d42, true, false},   {"9p", 0x01021997, true, false},
    {"gpfs", 0x47504653, true, false},   {"beegfs", 0x19830326, true, false},
};

static void judge_type(struct k3_machine_mount *mount, uint64_t magic)
{
    const struct known_type *known = NULL;
    for (size_t i = 0; i < sizeof known_types / sizeof *known_types && !known; i++)
        if (mount->type[0] ? !strcmp(known_types[i].name, mount->type)
                           : known_types[i].magic == magic)
            known = &known_types[i];
    if (!known && mount->type[0] == 0)
        snprintf(mount->type, sizeof mount->type, "0x%" PRIx64, magic);
    else if (known && mount->type[0] == 0)
        snprintf(mount->type, sizeof mount->type, "%s", known->name);
    /* Any file system in user space may fetch its bytes from elsewhere ("fuse.s3fs"). */
    mount->is_network = known ? known->is_network : strncmp(mount->type, "fuse", 4) == 0;
    mount->is_in_memory = known && known->is_in_memory;
}

/* mountinfo writes blanks and the like as \040. */
static void copy_escaped(char *out, size_t cap, const char *in)
{
    size_t n = 0;
    while (*in && n + 1 < cap) {
        if (in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] >= '0' && in[2] <= '7' &&
            in[3] >= '0' && in[3] <= '7') {
            out[n++] = (char)((in[1] - '0') << 6 | (in[2] - '0') << 3 | (in[3] - '0'));
            in += 4;
        } else {
            out[n++] = *in++;
        }
    }
    out[n] = 0;
}

/* "98:0": the number of a device. */
static bool device_in(const char *text, dev_t *device)
{
    uint64_t major_number, minor_number;
    const char *colon = strchr(text, ':');
    if (!colon || !number(text, &major_number) || !number(colon + 1, &minor_number))
        return false;
    *device = makedev((unsigned)major_number, (unsigned)minor_number);
    return true;
}

/* One line: "36 35 98:0 /root /place rw,noatime shared:1 - ext4 /dev/root rw,errors=continue". */
static bool take_line(char *line, uint64_t mount_id, dev_t device, struct k3_machine_mount *mount)
{
    char *field[6] = {NULL}, *rest = strstr(line, " - ");
    uint64_t id;
    dev_t own;
    if (!rest)
        return false;
    *rest = 0;
    char *place = NULL;
    for (int i = 0; i < 6; i++)
        field[i] = strtok_r(i ? NULL : line, " ", &place);
    char *type = strtok_r(rest + 3, " \n", &place), *source = strtok_r(NULL, " \n", &place);
    if (!field[5] || !type || !number(field[0], &id) || !device_in(field[2], &own))
        return false;
    if (mount_id ? id != mount_id : device != own)
        return false;
    copy_escaped(mount->type, sizeof mount->type, type);
    copy_escaped(mount->source, sizeof mount->source, source ? source : "");
    copy_escaped(mount->place, sizeof mount->place, field[4]);
    return true;
}

static void find_mount(int fd, dev_t device, struct k3_machine_mount *mount)
{
    char line[LINE_BYTES];
    uint64_t mount_id = 0;
#ifdef STATX_MNT_ID
    struct statx about;
    memset(&about, 0, sizeof about);
    if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &about) == 0 && about.stx_mask & STATX_MNT_ID)
        mount_id = about.stx_mnt_id;
#else
    (void)fd;
#endif
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file) && !take_line(line, mount_id, device, mount))
        ;
    fclose(file);
}

bool k3_machine_is_in_memory(int fd)
{
    struct statfs about;
    struct k3_machine_mount mount;
    memset(&mount, 0, sizeof mount);
    if (fstatfs(fd, &about))
        return false;
    judge_type(&mount, (uint64_t)about.f_type & UINT32_MAX);
    return mount.is_in_memory;
}

bool k3_machine_mount(int fd, struct k3_machine_mount *mount)
{
    struct stat stat, source;
    struct statfs about;
    memset(mount, 0, sizeof *mount);
    if (fstat(fd, &stat) || fstatfs(fd, &about))
        return false;
    find_mount(fd, stat.st_dev, mount);
    judge_type(mount, (uint64_t)about.f_type & UINT32_MAX);
    mount->free_bytes = (uint64_t)about.f_bavail * (uint64_t)about.f_bsize;
    mount->total_bytes = (uint64_t)about.f_blocks * (uint64_t)about.f_bsize;
    mount->is_read_only = ((unsigned long)about.f_flags & 1u) != 0; /* ST_RDONLY */
    /* btrfs and others have numbers of their own; their source is the device. */
    if (major(stat.st_dev) != 0)
        mount->device = stat.st_dev;
    else if (mount->source[0] == '/' && lstat(mount->source, &source) == 0 &&
             S_ISBLK(source.st_mode))
        mount->device = source.st_rdev;
    return true;
}

/* ---- drives ---- */

static bool drive_text(const char *dir, const char *name, char *text, size_t cap)
{
    char path[512];
    snprintf(path, sizeof path, "%.255s/%.255s", dir, name);
    return k3_machine_text(path, text, cap);
}

static uint64_t drive_number(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%.255s/%.255s", dir, name);
    return number_in(path);
}

/* "none [mq-deadline] kyber": the one in brackets. */
static void find_scheduler(const char *dir, struct k3_machine_drive *drive)
{
    char text[256];
    const char *begin;
    if (!drive_text(dir, "queue/scheduler", text, sizeof text))
        return;
    begin = strchr(text, '[');
    begin = begin ? begin + 1 : text;
    snprintf(drive->scheduler, sizeof drive->scheduler, "%.*s", (int)strcspn(begin, "] "), begin);
}

static void find_stack(const char *dir, struct k3_machine_drive *drive)
{
    char text[256], path[320];
    if (drive_text(dir, "md/level", text, sizeof text)) {
        snprintf(drive->stack, sizeof drive->stack, "RAID %.64s", text);
    } else if (drive_text(dir, "dm/uuid", text, sizeof text)) {
        const char *what = strncmp(text, "mpath-", 6) == 0   ? "multipath"
                           : strncmp(text, "CRYPT-", 6) == 0 ? "encrypted"
                           : strncmp(text, "LVM-", 4) == 0   ? "LVM"
                                                             : "device mapper";
        snprintf(drive->stack, sizeof drive->stack, "%s", what);
    } else if (drive_text(dir, "loop/backing_file", text, sizeof text)) {
        snprintf(drive->stack, sizeof drive->stack, "loop over %.80s", text);
    }
    snprintf(path, sizeof path, "%s/slaves", dir);
    DIR *members = opendir(path);
    if (!members)
        return;
    for (struct dirent *entry = readdir(members); entry; entry = readdir(members))
        drive->member_count += entry->d_name[0] != '.';
    closedir(members);
}

bool k3_machine_drive(dev_t device, struct k3_machine_drive *drive)
{
    char dir[256], text[16];
    memset(drive, 0, sizeof *drive);
    int n = snprintf(dir, sizeof dir, "/sys/dev/block/%u:%u", major(device), minor(device));
    if (access(dir, F_OK))
        return false;
    /* A partition has no queue of its own. */
    if (drive_text(dir, "partition", text, sizeof text))
        snprintf(dir + n, sizeof dir - (size_t)n, "/..");
    char path[320];
    snprintf(path, sizeof path, "%s/uevent", dir);
    FILE *file = fopen(path, "re");
    char line[128];
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "DEVNAME=", 8) == 0)
            snprintf(drive->name, sizeof drive->name, "%.*s", (int)strcspn(line + 8, "\n"),
                     line + 8);
    if (file)
        fclose(file);
    drive->is_rotational = drive_number(dir, "queue/rotational") == 1;
    drive->request_count = drive_number(dir, "queue/nr_requests");
    drive->read_ahead_bytes = drive_number(dir, "queue/read_ahead_kb") * 1024;
    drive->logical_bytes = drive_number(dir, "queue/logical_block_size");
    drive->physical_bytes = drive_number(dir, "queue/physical_block_size");
    find_scheduler(dir, drive);
    find_stack(dir, drive);
    return true;
}

/* Layers under each other; more than any stack has. */
#define LAYERS_MAX 8u

static uint32_t leaf_count(dev_t device, uint32_t layers)
{
    char dir[64], name[320], text[32];
    uint32_t count = 0;
    snprintf(dir, sizeof dir, "/sys/dev/block/%u:%u/slaves", major(device), minor(device));
    DIR *members = layers ? opendir(dir) : NULL;
    if (!members)
        return 1;
    for (struct dirent *entry = readdir(members); entry; entry = readdir(members)) {
        dev_t member;
        snprintf(name, sizeof name, "%.250s/dev", entry->d_name);
        if (entry->d_name[0] == '.' || !drive_text(dir, name, text, sizeof text))
            continue;
        if (device_in(text, &member))
            count += leaf_count(member, layers - 1);
    }
    closedir(members);
    return count ? count : 1;
}

uint32_t k3_machine_drive_count(dev_t device)
{
    char dir[64];
    snprintf(dir, sizeof dir, "/sys/dev/block/%u:%u", major(device), minor(device));
    return access(dir, F_OK) ? 0 : leaf_count(device, LAYERS_MAX);
}
