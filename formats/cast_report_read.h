/* The report of a set's casts read back: strict, against plan and ranks (FORMAT.md 4.9).  Pure; any
 * thread. */
#ifndef K3_CAST_REPORT_READ_H
#define K3_CAST_REPORT_READ_H

#include "cast_report.h"

/* A report, and the set it must be of; all borrowed. */
struct k3_cast_report {
    const struct k3_plan *plan;
    const struct k3_ranks *ranks;
    const uint32_t *items; /* of each part; NULL where lines are looked for alone */
    const char *file;      /* for messages */
    const char *text;      /* NUL behind the last of its bytes */
    size_t bytes;
};

/* Its rows by slot into *rows (malloc, caller frees), their sums into summary.  What is accepted is
 * byte for byte what k3_cast_report_begin, _row and _end write of these rows, items ascending, rows
 * of an item by slot.  Whether rows are missing is the business of k3_cast_check.  Fails:
 * K3_ECORRUPT, K3_ENOMEM. */
int k3_cast_report_decode(const struct k3_cast_report *report, struct k3_cast_summary *summary,
                          struct k3_cast_row **rows, uint32_t *count, struct k3_err *err);

/* The row of one tensor alone: *found false where no line is of it.  Fails as decode; of the rest
 * of the report only the beginning is judged. */
int k3_cast_report_find(const struct k3_cast_report *report, const char *tensor,
                        struct k3_cast_row *row, bool *found, struct k3_err *err);

#endif
