/* What the kernel says about this machine: limits of processors, file systems, drives (of memory:
 * mem_room.h).  Reads /proc and /sys only; nothing here is needed to run, so what is not there is
 * said to be not known. */
#ifndef K3_MACHINE_H
#define K3_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A small file as one line of text, white space at its end removed; false where it cannot be read
 * or is empty. */
bool k3_machine_text(const char *path, char *text, size_t cap);
/* The value of a "Name:  value" line. */
bool k3_machine_field(const char *path, const char *name, char *value, size_t cap);

/* Processor time that the control group allows, in hundredths of a core; 0: no limit. */
uint64_t k3_machine_cpu_percent_max(void);

struct k3_machine_mount {
    char type[32];    /* "ext4"; "0x..." for one without a name */
    char source[160]; /* the device or server */
    char place[160];  /* where it is mounted */
    uint64_t free_bytes, total_bytes;
    dev_t device; /* 0: no block device is known */
    bool is_read_only;
    bool is_network;   /* bytes come from another machine, or may */
    bool is_in_memory; /* tmpfs, ramfs */
};
/* The file system of an open file or directory; false (errno) where the kernel does not tell. */
bool k3_machine_mount(int fd, struct k3_machine_mount *mount);
/* Does the file lie in a file system that is memory (tmpfs, ramfs)?  One call, no parsing. */
bool k3_machine_is_in_memory(int fd);

struct k3_machine_drive {
    char name[64];      /* "nvme0n1" */
    char scheduler[32]; /* the one in use; "": not known */
    char stack[96];     /* "RAID raid0", "multipath", "LVM", "encrypted", "loop over FILE"; "" */
    uint64_t request_count, read_ahead_bytes, logical_bytes, physical_bytes; /* 0: not known */
    uint32_t member_count; /* drives below it, of a stack */
    bool is_rotational;
};
/* The block device with this number, or the whole one for a partition; false: there is none. */
bool k3_machine_drive(dev_t device, struct k3_machine_drive *drive);
/* Drives under a block device, through all its layers (RAID, LVM, encryption): 1 for a drive or its
 * partition; 0: not known. */
uint32_t k3_machine_drive_count(dev_t device);

#endif
