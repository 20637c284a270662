/* What a cast did to one matrix: a row of an item's record (FORMAT.md 9), a line of the report
 * (FORMAT.md 4.9).  Pure; any thread. */
#ifndef K3_CAST_ROW_H
#define K3_CAST_ROW_H

#include "bytes.h"
#include "quant.h"

struct k3_cast_row {
    uint32_t slot;        /* of the matrix in the plan */
    uint8_t from, to;     /* enum k3_qfmt */
    double x2, err2;      /* sums of squares: of the values, of the errors */
    double max_abs_error; /* 0 where err2 is */
    uint64_t value_count; /* of the slices of all ranks of the set, each once */
    uint64_t group_count, zero_groups, saturated_groups, breach_groups; /* as struct k3_qstats */
};

struct k3_disk_cast_row {
    uint8_t slot_le[4];
    uint8_t from; /* number of a format: its place in the list of FORMAT.md 9 */
    uint8_t to;
    uint8_t reserved[2];
    uint8_t x2_le[8], err2_le[8], max_abs_error_le[8]; /* IEEE 754 */
    uint8_t value_count_le[8], group_count_le[8];
    uint8_t zero_groups_le[8], saturated_groups_le[8], breach_groups_le[8];
};
_Static_assert(sizeof(struct k3_disk_cast_row) == 72, "FORMAT.md 9: a cast has 72 bytes");

/* The statistics of a whole matrix as a row. */
void k3_cast_row_make(uint32_t slot, enum k3_qfmt from, enum k3_qfmt to,
                      const struct k3_qstats *stats, struct k3_cast_row *row);

void k3_cast_row_encode(const struct k3_cast_row *row, struct k3_disk_cast_row *disk);

/* Strict: what it accepts, encode writes back byte for byte.  NULL, or what is wrong with it. */
const char *k3_cast_row_decode(const struct k3_disk_cast_row *disk, struct k3_cast_row *row);
/* What no row may be, as decode: NULL, or what is wrong. */
const char *k3_cast_row_check(const struct k3_cast_row *row);

bool k3_cast_row_lossless(const struct k3_cast_row *row);  /* every value came back equal */
bool k3_cast_row_is_zero(const struct k3_cast_row *row);   /* so no SQNR means anything */
double k3_cast_row_sqnr_db(const struct k3_cast_row *row); /* infinite where lossless */

/* SQNR that values of a normal distribution have in this cast (docs/QUANTIZATION.md 7); infinite
 * where the cast must be exact. */
double k3_cast_expected_db(enum k3_qfmt from, enum k3_qfmt to);
/* The share of groups that saturate by design, out of BF16: a scale is rounded, so the largest
 * value may lie beyond what it reaches (docs/QUANTIZATION.md 6); 0: none should. */
double k3_cast_expected_saturated(enum k3_qfmt to);

#define K3_CAST_LOW_DB                                                                             \
    1.5 /* heavy tails cost up to 1.4 dB in most formats; more is worth a look                     \
         */
/* Its SQNR is more than that below the expected. */
bool k3_cast_row_is_low(const struct k3_cast_row *row);

#endif
