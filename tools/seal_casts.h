/* The report of the casts of a set, made from the records of its items (FORMAT.md 4.9). */
#ifndef K3_SEAL_CASTS_H
#define K3_SEAL_CASTS_H

#include "job.h"

/* Where the casts of an item lie in its record. */
struct k3_cast_range {
    uint32_t item, count;
    uint64_t offset;
};

struct k3_casts_seal {
    struct k3_job *job;
    const struct k3_plan *plan;
    struct k3_cast_range *ranges; /* sorted here, by item */
    uint32_t range_count;
    const uint32_t *items; /* of each part, as the records have it */
    const char *token;     /* of the staged name */
    struct k3_cast_summary *summary;
};

/* Write the file, item by item, read it back, publish it, and fill its entry for the manifest
 * (name: malloc).  Memory: the file, and its casts.  Fails: K3_EIO (what was read back too),
 * K3_ECORRUPT (casts that are not of the plan), K3_ENOMEM. */
int k3_casts_publish(const struct k3_casts_seal *seal, struct k3_file_entry *entry,
                     struct k3_err *err);

#endif
