/* The report of the casts of a set: k3-cast-report.json (FORMAT.md 4.9), and its sums by role.
 * Pure; any thread. */
#ifndef K3_CAST_REPORT_H
#define K3_CAST_REPORT_H

#include "cast_row.h"
#include "plan.h"
#include "ranks.h"

#define K3_CAST_REPORT_NAME      "k3-cast-report.json"
#define K3_CAST_REPORT_BYTES_MAX (1ull << 30) /* FORMAT.md 1: a copied file */
#define K3_CAST_LINE_BYTES       512u /* no line of a name of below 100 characters is longer */
#define K3_CAST_LOW_SHOWN_MAX    20u  /* a screen; the file has all */

/* One matrix that is named in a summary. */
struct k3_cast_named {
    char name[K3_ST_NAME_BYTES_MAX + 1]; /* "": none */
    struct k3_cast_row row;
};

struct k3_cast_role {
    struct k3_qstats stats;     /* of its matrices together */
    struct k3_cast_named worst; /* the least SQNR; of equals the first; none where all are exact */
    uint64_t tensor_count, lossless_count, zero_count, low_count; /* zero: of zeros alone */
    uint32_t formats;           /* bit of each enum k3_qfmt that its matrices became */
    uint32_t saturated_formats; /* of those that have saturated groups */
};

struct k3_cast_summary {
    struct k3_cast_role roles[K3_ROLE_COUNT];
    struct k3_cast_named low[K3_CAST_LOW_SHOWN_MAX]; /* the first of them, in the order of rows */
    uint64_t tensor_count, low_count;
};

void k3_cast_summary_init(struct k3_cast_summary *summary);

/* Does the row fit the plan: a matrix that the policy casts, in the formats it says, with no more
 * values than it has?  NULL, or what it should have. */
const char *k3_cast_row_misfit(const struct k3_plan *plan, const struct k3_cast_row *row);

/* Add a row that fits.  Sums do not depend on the order; worst and low do: items ascending, rows of
 * an item by slot. */
void k3_cast_summary_add(struct k3_cast_summary *summary, const struct k3_plan *plan,
                         const struct k3_cast_row *row);

/* Names of a bit set of formats, joined by commas, into text[bytes]; returns text. */
const char *k3_cast_formats(uint32_t formats, char *text, size_t bytes);

/* Why so many groups of these formats are saturated, into text[K3_CAST_SATURATED_BYTES]; returns
 * text, NULL where none of the formats saturates by design. */
#define K3_CAST_SATURATED_BYTES 320u
const char *k3_cast_saturated_text(uint32_t formats, char *text);

/* The file in pieces: its beginning, a line for each matrix, its end with the totals. */
void k3_cast_report_begin(const struct k3_plan *plan, const struct k3_ranks *ranks,
                          struct k3_text *out);
void k3_cast_report_row(const struct k3_plan *plan, const struct k3_cast_row *row, bool is_first,
                        struct k3_text *out);
void k3_cast_report_end(const struct k3_cast_summary *summary, struct k3_text *out);

/* Matrices of the plan that are cast, on whatever ranks. */
uint64_t k3_cast_count(const struct k3_plan *plan);

#endif
