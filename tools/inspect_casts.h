/* Inspect: what a set, its report, and one of its tensors say of casts. */
#ifndef K3_INSPECT_CASTS_H
#define K3_INSPECT_CASTS_H

#include "doc.h"
#include "set.h"

/* Add "policy" and, where something is cast, "casts" and "formats".  Fails: K3_ENOMEM. */
int k3_inspect_policy(const struct k3_set *set, struct k3_doc *root, struct k3_err *err);

/* The report of a set's casts as a file: what it is, its totals, what is flagged.  Fails:
 * K3_EFORMAT for something else, K3_EIO, K3_ENOMEM. */
int k3_inspect_report(const struct k3_dir *dir, const char *name, struct k3_doc *root,
                      struct k3_err *err);

/* Where a tensor or view was found. */
struct k3_inspect_place {
    char file[K3_NAME_BYTES_MAX + 1];
    char plan[K3_HEX_BYTES];           /* of the part, from its metadata; "" for other files */
    uint64_t begin_offset, end_offset; /* in the data section */
};
/* Where dir holds a set and the file is a part of it: the format at that place, what it was cast
 * from, and what the report says of it.  A set or report that is not sound is a "note".  Fails:
 * K3_EIO, K3_ENOMEM. */
int k3_inspect_cast(const char *dir, const struct k3_inspect_place *place, struct k3_doc *root,
                    struct k3_err *err);

#endif
