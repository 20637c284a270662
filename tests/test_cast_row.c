/* Purpose: rows of casts come back as they were and bad ones are refused; what is flagged, what the
 * report says, and its sums.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: structs are poisoned before each decode. */
#include "cast_report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct k3_cast_row good = {.slot = 7,
                                        .from = K3_Q_BF16,
                                        .to = K3_Q_INT4_G32,
                                        .x2 = 1000,
                                        .err2 = 0.5,
                                        .max_abs_error = 0.25,
                                        .value_count = 1024,
                                        .group_count = 32,
                                        .zero_groups = 1,
                                        .saturated_groups = 2,
                                        .breach_groups = 0};

static const char *decode(const struct k3_disk_cast_row *disk, struct k3_cast_row *row)
{
    memset(row, 0xa5, sizeof *row);
    return k3_cast_row_decode(disk, row);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct k3_disk_cast_row disk, again;
    struct k3_cast_row row;
    k3_cast_row_encode(&good, &disk);
    assert_null(decode(&disk, &row));
    assert_int_equal(row.slot, 7);
    assert_true(row.x2 == 1000 && row.err2 == 0.5 && row.max_abs_error == 0.25);
    assert_int_equal(row.saturated_groups, 2);
    k3_cast_row_encode(&row, &again);
    assert_memory_equal(&disk, &again, sizeof disk);
}

/* One field at a time becomes one that no cast can have. */
static void test_bad_rows(void **state)
{
    (void)state;
    struct k3_cast_row bad[17];
    struct k3_disk_cast_row disk;
    struct k3_cast_row row;
    for (size_t i = 0; i < 17; i++)
        bad[i] = good;
    bad[0].from = K3_Q_NVFP4;
    bad[1].to = K3_Q_VERBATIM;
    bad[2].to = K3_QFMT_COUNT;
    bad[3].to = K3_Q_BF16;
    bad[4].from = K3_Q_MXFP4, bad[4].to = K3_Q_MXFP4;
    bad[5].x2 = NAN;
    bad[6].err2 = -1;
    bad[7].max_abs_error = INFINITY;
    bad[8].err2 = 0;
    bad[9].max_abs_error = 0;
    bad[10].value_count = 0, bad[10].group_count = 0, bad[10].zero_groups = 0;
    bad[11].group_count = 1025;
    bad[12].zero_groups = 33;
    bad[13].saturated_groups = UINT64_MAX;
    bad[14].breach_groups = 1;
    bad[15].max_abs_error = 0.708;
    bad[16].max_abs_error = 0.022;
    for (size_t i = 0; i < 17; i++) {
        k3_cast_row_encode(&bad[i], &disk);
        if (!decode(&disk, &row))
            fail_msg("row %zu passes", i);
    }
    bad[16].max_abs_error = 0.0221; /* 0.5 is the sum of 1024 squares of sqrt(0.5) / 32 = 0.02209 */
    bad[15].max_abs_error = 0.707;
    for (size_t i = 15; i < 17; i++) {
        k3_cast_row_encode(&bad[i], &disk);
        assert_null(decode(&disk, &row));
    }
    k3_cast_row_encode(&good, &disk);
    disk.reserved[1] = 1;
    assert_non_null(decode(&disk, &row));
}

/* Finite sums that make no finite SQNR, or that no values can have. */
static void test_bad_sums(void **state)
{
    (void)state;
    struct k3_cast_row bad[5];
    for (size_t i = 0; i < 5; i++)
        bad[i] = good;
    bad[0].x2 = 1e308;
    bad[1].x2 = 0;
    bad[2].x2 = 0x1p-321;
    bad[3].x2 = 0x1.1p270; /* 1024 values of 2^130 */
    bad[4].err2 = 1e300, bad[4].max_abs_error = 1e150;
    for (size_t i = 0; i < 5; i++)
        if (!k3_cast_row_check(&bad[i]))
            fail_msg("row %zu passes", i);
    bad[2].x2 = bad[2].err2 = 0x1p-266; /* one least subnormal of BF16 is lost */
    bad[2].max_abs_error = 0x1p-133;
    assert_null(k3_cast_row_check(&bad[2]));
    bad[3].x2 = 0x1.2p269; /* all values as large as can be, 6 * 2^127 */
    assert_null(k3_cast_row_check(&bad[3]));
}

/* Counts of groups, and sums, that no cast makes of any values; beside each what one may. */
static void test_bad_kinds(void **state)
{
    (void)state;
    static const struct {
        uint8_t from, to;
        uint64_t zero, saturated, breach;
        double x2, err2;
        bool is_good;
    } rows[] = {
        {K3_Q_BF16, K3_Q_INT4_G32, 30, 2, 0, 1000, 0.5, true},
        {K3_Q_BF16, K3_Q_INT4_G32, 30, 3, 0, 1000, 0.5, false},
        {K3_Q_BF16, K3_Q_INT4_G32, 32, 0, 0, 0, 0, true},
        {K3_Q_BF16, K3_Q_INT4_G32, 32, 0, 0, 1000, 0, false},
        {K3_Q_BF16, K3_Q_INT4_G32, 31, 0, 0, 0, 0, false},
        {K3_Q_BF16, K3_Q_INT4_G32, 0, 0, 0, 0.5, 0.5, true},
        {K3_Q_BF16, K3_Q_INT4_G32, 0, 0, 0, 0.49, 0.5, false},
        {K3_Q_BF16, K3_Q_INT4_G32, 0, 0, 1, 1000, 0.5, false},
        {K3_Q_BF16, K3_Q_MXFP4, 0, 32, 0, 1000, 0.5, true},
        {K3_Q_BF16, K3_Q_NVFP4, 0, 32, 0, 1000, 0.5, true},
        {K3_Q_BF16, K3_Q_INT8_G32, 0, 32, 0, 1000, 0.5, true},
        {K3_Q_BF16, K3_Q_MXFP8, 0, 1, 0, 1000, 0.5, false},
        {K3_Q_BF16, K3_Q_FP8_TENSOR, 0, 1, 0, 1000, 0.5, false},
        {K3_Q_BF16, K3_Q_FP8_CHANNEL, 0, 1, 0, 1000, 0.5, false},
        {K3_Q_BF16, K3_Q_FP8_BLOCK, 0, 1, 0, 1000, 0.5, false},
        {K3_Q_MXFP4, K3_Q_INT4_G32, 0, 32, 0, 1000, 0.5, true},
        {K3_Q_MXFP4, K3_Q_INT4_G32, 0, 0, 1, 1000, 0.5, false},
        {K3_Q_MXFP4, K3_Q_NVFP4, 2, 0, 30, 1000, 0.5, true},
        {K3_Q_MXFP4, K3_Q_NVFP4, 2, 0, 31, 1000, 0.5, false},
        {K3_Q_MXFP4, K3_Q_NVFP4, 0, 0, 1, 0.4, 0.5, true}, /* snap: values grew */
        {K3_Q_MXFP4, K3_Q_NVFP4, 0, 0, 1, 1000, 0, true},
        {K3_Q_MXFP4, K3_Q_NVFP4, 0, 0, 0, 1000, 0.5, false},
        {K3_Q_MXFP4, K3_Q_NVFP4, 0, 1, 0, 1000, 0, false},
        {K3_Q_MXFP4, K3_Q_BF16, 0, 0, 1, 1000, 0.5, true},
        {K3_Q_MXFP4, K3_Q_FP8_BLOCK, 0, 0, 1, 1000, 0.5, true},
        {K3_Q_MXFP4, K3_Q_MXFP8, 0, 0, 0, 1000, 0, true},
        {K3_Q_MXFP4, K3_Q_MXFP8, 0, 0, 1, 1000, 0, false},
        {K3_Q_MXFP4, K3_Q_INT8_G32, 0, 0, 0, 1000, 0.5, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct k3_cast_row row = good;
        row.from = rows[i].from;
        row.to = rows[i].to;
        row.zero_groups = rows[i].zero;
        row.saturated_groups = rows[i].saturated;
        row.breach_groups = rows[i].breach;
        row.x2 = rows[i].x2;
        row.err2 = rows[i].err2;
        row.max_abs_error = row.err2 > 0 ? good.max_abs_error : 0;
        const char *wanted = k3_cast_row_check(&row);
        if ((wanted == NULL) != rows[i].is_good)
            fail_msg("row %zu: %s", i, wanted ? wanted : "passes");
    }
}

/* No band of rows sees the group of FP8_TENSOR whole: it is zero where all values are. */
static void test_zero_tensor(void **state)
{
    (void)state;
    struct k3_cast_row row;
    struct k3_qstats stats;
    k3_qstats_init(&stats);
    stats.value_count = 64;
    stats.group_count = 2; /* slices */
    k3_cast_row_make(7, K3_Q_BF16, K3_Q_FP8_TENSOR, &stats, &row);
    assert_int_equal(row.zero_groups, 2);
    assert_null(k3_cast_row_check(&row));
    k3_qsum_add(&stats.x2, 0x1p-266); /* the square of the least value */
    k3_cast_row_make(7, K3_Q_BF16, K3_Q_FP8_TENSOR, &stats, &row);
    assert_int_equal(row.zero_groups, 0);
    assert_null(k3_cast_row_check(&row));
}

/* The row of a cast with so many decibels. */
static struct k3_cast_row with_db(enum k3_qfmt from, enum k3_qfmt to, double db)
{
    struct k3_cast_row row = good;
    row.from = (uint8_t)from;
    row.to = (uint8_t)to;
    row.err2 = row.x2 / pow(10, db / 10);
    return row;
}

static void test_low(void **state)
{
    (void)state;
    unsigned exact = 0, lossy = 0;
    for (unsigned f = 0; f < 2; f++)
        for (unsigned to = K3_Q_BF16; to < K3_QFMT_COUNT; to++) {
            const enum k3_qfmt from = f ? K3_Q_MXFP4 : K3_Q_BF16;
            const double expected = k3_cast_expected_db(from, (enum k3_qfmt)to);
            if (k3_quant_route(from, (enum k3_qfmt)to) == K3_QROUTE_COPY)
                continue;
            assert_true(expected > 0);
            exact += isinf(expected) != 0;
            lossy += isfinite(expected) != 0;
            struct k3_cast_row row = with_db(from, (enum k3_qfmt)to,
                                             isinf(expected) ? 200 : expected - 1.49);
            assert_int_equal(k3_cast_row_is_low(&row), isinf(expected) != 0);
            row = with_db(from, (enum k3_qfmt)to, isinf(expected) ? 300 : expected - 1.51);
            assert_true(k3_cast_row_is_low(&row));
            row.err2 = 0;
            assert_false(k3_cast_row_is_low(&row)); /* exact: of zeros too */
            row.x2 = 0;
            assert_false(k3_cast_row_is_low(&row));
            assert_true(isinf(k3_cast_row_sqnr_db(&row)));
        }
    assert_int_equal(exact, 3);
    assert_int_equal(lossy, 15);
}

/* The logarithm of ours against the library's. */
static void test_decibels(void **state)
{
    (void)state;
    for (int e = -300; e <= 300; e++)
        for (int i = 0; i < 40; i++) {
            const double x2 = ldexp(1 + i / 40.0, e), wanted = 10 * log10(x2);
            const double found = k3_sqnr_db(x2, 1);
            if (fabs(found - wanted) > 1e-14 * (1 + fabs(wanted)))
                fail_msg("%a: %.17g, wanted %.17g", x2, found, wanted);
        }
    assert_true(k3_sqnr_db(1, 1) == 0);
    assert_true(isinf(k3_sqnr_db(0, 0)) && k3_sqnr_db(0, 0) > 0);
    assert_true(isinf(k3_sqnr_db(0, 1)) && k3_sqnr_db(0, 1) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_bad_sums),    cmocka_unit_test(test_bad_kinds),
        cmocka_unit_test(test_zero_tensor), cmocka_unit_test(test_low),
        cmocka_unit_test(test_decibels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
