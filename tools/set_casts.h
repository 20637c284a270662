/* What an opened set says of its casts: its policy as counts, and its report. */
#ifndef K3_SET_CASTS_H
#define K3_SET_CASTS_H

#include "cast_report_read.h"
#include "doc.h"
#include "set.h"

/* Matrices of one role that have one format. */
struct k3_cast_sum {
    enum k3_role role;
    enum k3_qfmt from, to; /* to: K3_Q_VERBATIM where they are kept */
    uint64_t tensor_count, value_count;
};

struct k3_cast_sums {
    struct k3_cast_sum sums[K3_ROLE_COUNT * K3_QFMT_COUNT]; /* by role, then format */
    uint32_t count;
    uint64_t cast_count, kept_count; /* matrices */
};

/* Of the ranks that the set holds.  Fails: K3_ENOMEM. */
int k3_set_cast_sums(const struct k3_set *set, struct k3_cast_sums *sums, struct k3_err *err);

/* Append "228 of 240 matrices are cast: 36 to fp8-block, 192 to nvfp4". */
void k3_cast_sums_put(const struct k3_cast_sums *sums, struct k3_text *out);
/* Add the array "formats"; false without memory. */
bool k3_cast_sums_add(struct k3_doc *root, const struct k3_cast_sums *sums);

/* The report of the casts into memory: *text NULL where the set has none, since nothing is cast or
 * it is of a build before there were reports; free(*text).  report borrows text, path and set. */
int k3_set_report_load(const struct k3_set *set, struct k3_cast_report *report, char **text,
                       char path[K3_ERR_TEXT_BYTES / 2], struct k3_err *err);

/* The report is of this set, and has every matrix that was cast; their sums into casts, *found
 * false where there is none.  plan: that of the set, but made of the source headers, which tell the
 * items that the lines are sorted by.  Fails: K3_ECORRUPT, K3_EIO, K3_ENOMEM. */
int k3_set_check_report(const struct k3_set *set, const struct k3_plan *plan, bool *found,
                        struct k3_cast_summary *casts, struct k3_err *err);

#endif
