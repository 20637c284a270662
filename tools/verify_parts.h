/* One part while a set is verified: opened, its header judged, its findings told. */
#ifndef K3_VERIFY_PARTS_H
#define K3_VERIFY_PARTS_H

#include "cast_numbers.h"
#include "cast_scales.h"
#include "ckpt.h"
#include "sha256.h"
#include "verify.h"

enum k3_unit_state {
    K3_UNIT_NOT_READ = 0,
    K3_UNIT_IS_RIGHT,
    K3_UNIT_IS_WRONG,
    K3_UNIT_UNREADABLE,  /* the system reported an error */
    K3_UNIT_PAD_NOT_ZERO /* the digest is right: its writer was wrong */
};

struct k3_file_range {
    uint64_t begin_offset, end_offset; /* in the file */
};

struct k3_part_check {
    const struct k3_part_entry *entry; /* borrowed from the manifest */
    const struct k3_dir *dir;          /* borrowed from the set */
    const uint8_t *wanted;             /* recorded unit digests; NULL: the units file is bad */
    uint8_t *found;                    /* unit digests, only where wanted is NULL; owned */
    uint8_t *state;                    /* enum k3_unit_state by unit; owned */
    struct k3_file_range *pads;        /* owned */
    uint8_t *numbers;                  /* bytes of numbers_at, as they were proved; owned */
    struct k3_file_range numbers_at;   /* global scales and shapes of casts; empty: none */
    struct k3_scale_range *scales;     /* of casts; owned */
    uint8_t *has_bad_scale;            /* by unit, where there are scales; owned */
    struct k3_problems problems;
    uint64_t unit_count;
    uint64_t present_count; /* whole units that the file has, at most unit_count */
    uint64_t first_task;
    uint32_t pad_count, scale_range_count;
    bool is_missing;
    bool is_header_judged; /* its header was read and held against its digests */
    char name[K3_NAME_BYTES_MAX + 1];
};

struct k3_check_worker {
    uint8_t *buffer;
    struct k3_sha256 *sha;
};

struct k3_set_check {
    struct k3_verify *verify;
    const struct k3_set *set;
    struct k3_ckpt *ckpt;        /* the plan, from source-headers.zst; NULL: not to be had; owned */
    struct k3_part_check *parts; /* owned; by (rank, part) */
    uint8_t **digests;           /* by rank; owned */
    struct k3_check_worker *workers;
    struct k3_cast_numbers numbers; /* while the report is made */
    uint64_t scale_count;           /* judged */
    uint32_t part_count, rank_count, worker_count;
    uint32_t copied_count;  /* copied files whose digests were taken */
    uint32_t headers_count; /* the same of source-headers.zst: 0 or 1 */
    struct k3_progress progress;
};

/* Open a part and judge its size.  *fd -1: it is not there (a finding).  Fails: K3_EIO. */
int k3_part_check_open(struct k3_set_check *check, struct k3_part_check *part, int *fd,
                       struct k3_err *err);

/* The header's units are right: judge what it says, keep its pads. */
int k3_part_check_header(const struct k3_set_check *check, struct k3_part_check *part, int fd,
                         struct k3_err *err);

/* The header is the plan's: find the numbers beside casts, room for them, and the scales.
 * Fails: K3_ENOMEM. */
int k3_part_check_numbers(const struct k3_set_check *check, struct k3_part_check *part,
                          struct k3_err *err);

/* The header's units are wrong or cannot be judged: say which part it is, where it can be read. */
int k3_part_check_stranger(const struct k3_set_check *check, struct k3_part_check *part, int fd,
                           struct k3_err *err);

/* Tell what all parts were found to be.  Fails: K3_EIO, K3_ENOMEM. */
int k3_part_checks_report(struct k3_set_check *check, struct k3_err *err);

void k3_part_check_fini(struct k3_part_check *part);

#endif
