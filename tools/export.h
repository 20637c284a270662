/* Export: the published checkpoint, byte for byte, out of a shard set. */
#ifndef K3_EXPORT_H
#define K3_EXPORT_H

#include "k3_err.h"

#include <stdbool.h>
#include <stdint.h>

struct k3_export_options {
    const char *const *dirs; /* of the set; borrowed */
    const char *to;          /* made where it is missing; must be empty, or hold left-overs alone */
    uint32_t dir_count;
    uint32_t job_count; /* threads, at least 1 */
    bool quiet;
};

struct k3_export_report {
    uint64_t bytes;          /* written: source files, copied files, index */
    uint64_t file_count;     /* all of them */
    uint32_t leftover_count; /* unfinished files of an interrupted export that were removed */
    uint64_t spent_ns;
};

/* Rebuild all files; each is compared with the SHA-256 that the manifest records before it gets its
 * name; the index gets its name last.  Fails: K3_EUNSUPPORTED (tensors were dropped, ranks are
 * missing, the directory is not empty or another export writes there, no room), K3_ECORRUPT (a part
 * is missing or not what was recorded), K3_EIO, K3_ENOMEM, K3_ECANCELED. */
int k3_export(const struct k3_export_options *options, struct k3_export_report *report,
              struct k3_err *err);

#endif
