/* Purpose: what a cast did to one matrix, and what was to be expected of it.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: none of its own; a wrong row is described by a phrase.
 * Invariants: what decode accepts, encode writes back byte for byte; reserved bytes are zero. */
#include "cast_row.h"

#include <math.h>
#include <string.h>

#define SUM_SLACK 1e-6 /* sums of squares are rounded; far more than that can amount to */
#define COUNT_MAX ((UINT64_C(1) << 53) - 1) /* FORMAT.md 2: exact in every reader of the report */

/* Out of BF16: a simulation of 3.67 million values of a normal distribution, cast by the scale
 * rules of k3_qparams_default (tests/test_quant_sqnr.c has all of it, and makes each figure anew).
 * Out of MXFP4: infinite where the cast must be exact; else the same values, made MXFP4 before.
 * Where a cast is exact within a window, the figure is that of a cast by largest values: what is
 * done to groups out of the window must not be worse.  0: there is no such cast. */
static const struct {
    double of_bf16, of_mxfp4;
} expected[K3_QFMT_COUNT] = {
    [K3_Q_BF16] = {0, INFINITY},       [K3_Q_MXFP4] = {19.00, 0},
    [K3_Q_MXFP8] = {31.51, INFINITY},  [K3_Q_NVFP4] = {20.43, 24.2},
    [K3_Q_FP8_TENSOR] = {31.53, 30.0}, [K3_Q_FP8_CHANNEL] = {31.55, 30.0},
    [K3_Q_FP8_BLOCK] = {31.54, 31.2},  [K3_Q_INT4_G32] = {20.48, 21.1},
    [K3_Q_INT4_G128] = {19.13, 19.7},  [K3_Q_INT8_G32] = {45.3, INFINITY},
};

void k3_cast_row_make(uint32_t slot, enum k3_qfmt from, enum k3_qfmt to,
                      const struct k3_qstats *stats, struct k3_cast_row *row)
{
    *row = (struct k3_cast_row){
        .slot = slot,
        .from = (uint8_t)from,
        .to = (uint8_t)to,
        .x2 = k3_qsum_value(&stats->x2),
        .err2 = k3_qsum_value(&stats->err2),
        .max_abs_error = stats->max_abs_error,
        .value_count = stats->value_count,
        .group_count = stats->group_count,
        .zero_groups = stats->zero_groups,
        .saturated_groups = stats->saturated_groups,
        .breach_groups = stats->breach_groups,
    };
    if (to == K3_Q_FP8_TENSOR && row->x2 == 0) /* squares of values are not rounded to 0 */
        row->zero_groups = row->group_count;
}

static void store_f64(uint8_t *at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    k3_store_le64(at, bits);
}

static double load_f64(const uint8_t *at)
{
    uint64_t bits = k3_load_le64(at);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void k3_cast_row_encode(const struct k3_cast_row *row, struct k3_disk_cast_row *disk)
{
    memset(disk, 0, sizeof *disk);
    k3_store_le32(disk->slot_le, row->slot);
    disk->from = row->from;
    disk->to = row->to;
    store_f64(disk->x2_le, row->x2);
    store_f64(disk->err2_le, row->err2);
    store_f64(disk->max_abs_error_le, row->max_abs_error);
    k3_store_le64(disk->value_count_le, row->value_count);
    k3_store_le64(disk->group_count_le, row->group_count);
    k3_store_le64(disk->zero_groups_le, row->zero_groups);
    k3_store_le64(disk->saturated_groups_le, row->saturated_groups);
    k3_store_le64(disk->breach_groups_le, row->breach_groups);
}

/* Finite and not negative, -0 included: 0 has one form. */
static bool is_sum(double value)
{
    return isfinite(value) && !signbit(value);
}

/* Squares are multiples of the unit, 2^-320; those of BF16 are below 2^256 each, those of MXFP4 up
 * to 36 * 2^254, and values come back no larger: so decibels are finite, and the sums of a role fit
 * into struct k3_qsum. */
static bool is_square_sum(double value, uint64_t count)
{
    return value == 0 || (value >= 0x1p-320 && value <= (double)count * 0x1p260);
}

/* NULL, or what sums of squares should be. */
static const char *check_squares(const struct k3_cast_row *row)
{
    if (!is_square_sum(row->x2, row->value_count) || !is_square_sum(row->err2, row->value_count) ||
        (row->x2 == 0 && row->err2 != 0))
        return "sums of squares that values and their errors can have";
    const double most = row->max_abs_error * row->max_abs_error;
    if (row->err2 < most * (1 - SUM_SLACK) ||
        row->err2 > most * (double)row->value_count * (1 + SUM_SLACK))
        return "a sum of squared errors that its largest error can make";
    return NULL;
}

/* What follows from what the casts do, whatever the values (docs/QUANTIZATION.md 5, 6). */
static const char *check_kinds(const struct k3_cast_row *row)
{
    const enum k3_qfmt from = (enum k3_qfmt)row->from, to = (enum k3_qfmt)row->to;
    const bool is_mx = k3_quant_route(from, to) == K3_QROUTE_MX;
    const bool has_window = is_mx && to != K3_Q_MXFP8 && to != K3_Q_INT8_G32;
    /* FP8 has a scale that no value is beyond, and so has MXFP8, whose scale is rounded up; codes
     * of MXFP4 that are carried over stay below their largest. */
    const bool can_saturate = !is_mx && to != K3_Q_FP8_TENSOR && to != K3_Q_FP8_CHANNEL &&
                              to != K3_Q_FP8_BLOCK && to != K3_Q_MXFP8;
    if (row->zero_groups > row->group_count || row->saturated_groups > row->group_count ||
        row->breach_groups > row->group_count)
        return "no more groups of a kind than groups";
    /* A group that saturates, or is out of the window, has a value that is not 0. */
    if (row->saturated_groups > row->group_count - row->zero_groups ||
        row->breach_groups > row->group_count - row->zero_groups)
        return "groups that are not zero where they saturate or are out of a window";
    if ((row->x2 == 0) != (row->zero_groups == row->group_count))
        return "groups of zeros alone where all values are zero, and nowhere else";
    if (row->saturated_groups > 0 && !can_saturate)
        return "saturated groups only where the cast can saturate";
    if (row->breach_groups > 0 && !has_window)
        return "groups out of a window where the cast has one";
    if (row->err2 > 0 && is_mx && row->breach_groups == 0)
        return "errors where the cast is not exact";
    /* A value goes to the nearest there is, and 0 always is; only --oow snap makes values grow. */
    if (row->breach_groups == 0 && row->err2 > row->x2 * (1 + SUM_SLACK))
        return "errors that are no larger than the values";
    return NULL;
}

const char *k3_cast_row_check(const struct k3_cast_row *row)
{
    if (row->from >= K3_QFMT_COUNT || row->to >= K3_QFMT_COUNT || row->to == K3_Q_VERBATIM ||
        (row->from == K3_Q_MXFP4 ? expected[row->to].of_mxfp4 : expected[row->to].of_bf16) == 0 ||
        (row->from != K3_Q_MXFP4 && row->from != K3_Q_BF16))
        return "formats between which there is a cast";
    if (!is_sum(row->x2) || !is_sum(row->err2) || !is_sum(row->max_abs_error))
        return "sums that are finite and not negative";
    if ((row->err2 == 0) != (row->max_abs_error == 0))
        return "a largest error where there are errors";
    if (row->value_count == 0 || row->value_count > COUNT_MAX ||
        row->group_count > row->value_count || row->group_count == 0)
        return "counts of groups and values that fit together";
    const char *wanted = check_squares(row);
    return wanted ? wanted : check_kinds(row);
}

const char *k3_cast_row_decode(const struct k3_disk_cast_row *disk, struct k3_cast_row *row)
{
    *row = (struct k3_cast_row){
        .slot = k3_load_le32(disk->slot_le),
        .from = disk->from,
        .to = disk->to,
        .x2 = load_f64(disk->x2_le),
        .err2 = load_f64(disk->err2_le),
        .max_abs_error = load_f64(disk->max_abs_error_le),
        .value_count = k3_load_le64(disk->value_count_le),
        .group_count = k3_load_le64(disk->group_count_le),
        .zero_groups = k3_load_le64(disk->zero_groups_le),
        .saturated_groups = k3_load_le64(disk->saturated_groups_le),
        .breach_groups = k3_load_le64(disk->breach_groups_le),
    };
    if (!k3_is_zero(disk->reserved, sizeof disk->reserved))
        return "reserved bytes that are zero";
    return k3_cast_row_check(row);
}

bool k3_cast_row_lossless(const struct k3_cast_row *row)
{
    return row->err2 == 0;
}

bool k3_cast_row_is_zero(const struct k3_cast_row *row)
{
    return row->x2 == 0;
}

double k3_cast_expected_saturated(enum k3_qfmt to)
{
    /* NVFP4: a scale rounded to E4M3 is too small in half of all cases; the rest are the shares
     * that values of a normal distribution have. */
    static const double share[K3_QFMT_COUNT] = {
        [K3_Q_MXFP4] = 0.27, [K3_Q_NVFP4] = 0.50, [K3_Q_INT4_G32] = 0.45, [K3_Q_INT4_G128] = 0.40};
    return share[to];
}

double k3_cast_row_sqnr_db(const struct k3_cast_row *row)
{
    return k3_sqnr_db(row->x2, row->err2);
}

double k3_cast_expected_db(enum k3_qfmt from, enum k3_qfmt to)
{
    return from == K3_Q_MXFP4 ? expected[to].of_mxfp4 : expected[to].of_bf16;
}

bool k3_cast_row_is_low(const struct k3_cast_row *row)
{
    return !k3_cast_row_lossless(row) &&
           k3_cast_row_sqnr_db(row) <
               k3_cast_expected_db((enum k3_qfmt)row->from, (enum k3_qfmt)row->to) - K3_CAST_LOW_DB;
}
