/* Purpose: scale rules at their thresholds, sizes of formats, sums, and casts out of BF16: parts
 * are the whole, edges, zeros, statistics, refusals. Owns: one matrix and its cast. Threads: one.
 * Errors: a failed assertion.
 * Invariants: outputs begin as poison, with a guard behind them. */
#include "num.h"
#include "quant.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX  300u
#define COLS_MAX  384u
#define WIDE_COLS 12416u /* more than two pieces of a row; 97 * 128 */
#define GUARD     64u
#define POISON    0xa5

static uint8_t x[2 * ROWS_MAX * COLS_MAX];
static uint8_t weight[ROWS_MAX * COLS_MAX + GUARD], scale[ROWS_MAX * COLS_MAX / 8 + GUARD];
static uint8_t other[sizeof weight], other_scale[sizeof scale];
static float decoded[ROWS_MAX * COLS_MAX];
static struct k3_qstats stats;
static struct k3_err err;

static const enum k3_qfmt formats[] = {K3_Q_MXFP4,      K3_Q_MXFP8,       K3_Q_NVFP4,
                                       K3_Q_FP8_TENSOR, K3_Q_FP8_CHANNEL, K3_Q_FP8_BLOCK,
                                       K3_Q_INT4_G32,   K3_Q_INT4_G128,   K3_Q_INT8_G32};
#define FORMAT_COUNT (sizeof formats / sizeof *formats)

static uint32_t seed = 7;

static uint32_t next_random(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* Values of both signs over some binades. */
static void random_values(void)
{
    for (size_t i = 0; i < sizeof x / 2; i++)
        k3_bf16_put(x, i, (uint16_t)(0x3c00 + next_random() % 0x300 + (next_random() % 2 << 15)));
}

/* ---- scale rules ---- */

/* The rule as its definition has it, in FP64: exact for every FP32. */
static int defined_byte(enum k3_scale_rule rule, enum k3_scale_element element, double amax)
{
    int e, top = element == K3_SCALE_E2M1 ? 2 : 8;
    double max = element == K3_SCALE_E2M1 ? 6 : 448,
           even = element == K3_SCALE_E2M1 ? 1.75 : 1.9375;
    double m = 2 * frexp(amax, &e);
    int k = --e - top;
    if (rule == K3_SCALE_RCEIL)
        for (k = -200; amax > ldexp(max, k);)
            k++;
    else if (rule == K3_SCALE_EVEN)
        k += m >= even;
    else if (rule == K3_SCALE_CEIL)
        k += m > 1;
    return k < -127 ? 0 : k + 127;
}

static void rules_are_exact_at_their_thresholds(void **state)
{
    (void)state;
    static const uint32_t at[] = {0, 0x400000, 0x600000, 0x780000, 0x7fffff, 0x200000};
    for (enum k3_scale_rule rule = 0; rule <= K3_SCALE_CEIL; rule++) {
        for (int element = 0; element < 2; element++) {
            enum k3_scale_element to = (enum k3_scale_element)element;
            assert_int_equal(k3_scale_byte(rule, to, 0), 0);
            assert_int_equal(k3_scale_byte(rule, to, 0x80000000u), 0);
            for (uint32_t exponent = 0; exponent < 255; exponent++) {
                for (size_t n = 0; n < 18; n++) {
                    uint32_t bits = (exponent << 23 | at[n / 3]) + (uint32_t)(n % 3) - 1;
                    if (bits == 0 || bits >= 0x7f800000u)
                        continue;
                    double amax = (double)k3_f32_of(bits);
                    assert_int_equal(k3_scale_byte(rule, to, bits), defined_byte(rule, to, amax));
                    assert_int_equal(k3_scale_byte(rule, to, bits | 0x80000000u),
                                     defined_byte(rule, to, amax));
                }
            }
            for (uint32_t bits = 1; bits < 0x800000; bits = bits * 2 + 1) /* subnormal */
                assert_int_equal(k3_scale_byte(rule, to, bits),
                                 defined_byte(rule, to, (double)k3_f32_of(bits)));
        }
    }
    for (enum k3_scale_rule rule = 0; rule < K3_SCALE_RULE_COUNT; rule++) {
        enum k3_scale_rule found;
        const char *name = k3_scale_rule_name(rule);
        assert_true(k3_scale_rule_find(name, strlen(name), &found) && found == rule);
        assert_false(k3_scale_rule_find(name, strlen(name) - 1, &found));
    }
}

/* ---- formats ---- */

static void formats_have_their_sizes(void **state)
{
    (void)state;
    /* weight and scale bytes of [3072, 3584], as section 2.1 of the facts has them. */
    static const struct {
        enum k3_qfmt fmt;
        uint64_t weight_cols, weight_bytes, scale_rows, scale_cols, scale_bytes;
    } want[] = {
        {K3_Q_BF16, 3584, 22020096, 0, 0, 0},
        {K3_Q_MXFP4, 1792, 5505024, 3072, 112, 344064},
        {K3_Q_MXFP8, 3584, 11010048, 3072, 112, 344064},
        {K3_Q_NVFP4, 1792, 5505024, 3072, 224, 688128},
        {K3_Q_FP8_TENSOR, 3584, 11010048, 0, 0, 0},
        {K3_Q_FP8_CHANNEL, 3584, 11010048, 3072, 1, 12288},
        {K3_Q_FP8_BLOCK, 3584, 11010048, 24, 28, 2688},
        {K3_Q_INT4_G32, 448, 5505024, 3072, 112, 688128},
        {K3_Q_INT4_G128, 448, 5505024, 3072, 28, 172032},
        {K3_Q_INT8_G32, 3584, 11010048, 3072, 112, 688128},
    };
    struct k3_qgeom geom;
    for (size_t n = 0; n < sizeof want / sizeof *want; n++) {
        enum k3_qfmt found;
        const char *name = k3_qfmt_name(want[n].fmt);
        assert_true(k3_qfmt_find(name, strlen(name), &found) && found == want[n].fmt);
        assert_int_equal(k3_qfmt_geometry(want[n].fmt, 3072, 3584, &geom, NULL), 0);
        assert_int_equal(geom.weight_dim[0], 3072);
        assert_int_equal(geom.weight_dim[1], want[n].weight_cols);
        assert_int_equal(geom.weight_bytes, want[n].weight_bytes);
        assert_int_equal(geom.scale_dim[0], want[n].scale_rows);
        assert_int_equal(geom.scale_dim[1], want[n].scale_cols);
        assert_int_equal(geom.scale_bytes, want[n].scale_bytes);
        assert_int_equal(geom.weight_bytes,
                         want[n].weight_cols * 3072 * k3_dtype_bits(geom.weight_dtype) / 8);
    }
    assert_int_equal(k3_qfmt_geometry(K3_Q_FP8_BLOCK, 130, 200, &geom, NULL), 0);
    assert_int_equal(geom.scale_bytes, 2 * 2 * 4);
    assert_int_equal(geom.row_align, 128);
    assert_int_equal(geom.col_align, 128);
}

static void columns_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    struct k3_qgeom geom;
    k3_err_init(&err);
    assert_int_equal(k3_qfmt_geometry(K3_Q_INT4_G128, 4, 576, &geom, &err), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "576 columns do not divide into groups of 128"));
    assert_non_null(strstr(err.text, "512 or 640 columns"));
    assert_int_equal(k3_qfmt_geometry(K3_Q_NVFP4, 4, 24, &geom, NULL), K3_EUNSUPPORTED);
    assert_int_equal(k3_qfmt_geometry(K3_Q_MXFP4, 0, 32, &geom, NULL), K3_EUNSUPPORTED);
    assert_int_equal(k3_qfmt_geometry(K3_Q_MXFP4, 1, (uint64_t)1 << 32, &geom, NULL),
                     K3_EUNSUPPORTED);
}

/* ---- sums ---- */

static void sums_are_exact_in_any_order(void **state)
{
    (void)state;
    static double value[200];
    struct k3_qsum up = {0}, down = {0};
    for (size_t i = 0; i < 200; i++)
        value[i] = ldexp((double)(next_random() | 1), (int)(next_random() % 500) - 290);
    for (size_t i = 0; i < 200; i++) {
        k3_qsum_add(&up, value[i]);
        k3_qsum_add(&down, value[199 - i]);
    }
    assert_memory_equal(&up, &down, sizeof up);

    struct k3_qsum sum = {0}, scaled = {0};
    k3_qsum_add(&sum, 0x1p200);
    k3_qsum_add(&sum, 0x1p-298); /* far below the last bit of a double */
    k3_qsum_add_scaled(&scaled, 1, 200);
    k3_qsum_add_scaled(&scaled, 1, -298);
    assert_memory_equal(&sum, &scaled, sizeof sum);
    assert_true(k3_qsum_value(&sum) == 0x1p200);
    memset(&sum, 0, sizeof sum);
    for (int i = 0; i < 1000; i++) /* carries through a full limb */
        k3_qsum_add_scaled(&sum, UINT64_MAX, -320);
    assert_true(fabs(k3_qsum_value(&sum) / (1000 * 0x1p-256) - 1) < 1e-15);
    k3_qsum_add(&sum, 0);
    k3_qsum_add(&sum, (double)FLT_MAX * (double)FLT_MAX);
    assert_true(k3_qsum_value(&sum) == (double)FLT_MAX * (double)FLT_MAX);
}

/* ---- casts ---- */

static struct k3_quant quant_to(enum k3_qfmt to, uint64_t cols, uint64_t row_count)
{
    struct k3_quant quant = {.name = "w", .params = k3_qparams_default(to), .cols = cols};
    struct k3_qrows rows = {.x = x, .row_count = row_count};
    uint16_t amax = 0;
    if (k3_quant_needs_amax(to)) {
        assert_int_equal(k3_quant_amax(&quant, &rows, &amax, NULL), 0);
        quant.global = k3_quant_global(&quant.params, amax);
    }
    return quant;
}

static int cast_rows(const struct k3_quant *quant, uint64_t first, uint64_t count)
{
    struct k3_qgeom geom;
    k3_qfmt_geometry(quant->params.to, ROWS_MAX, quant->cols, &geom, NULL);
    struct k3_qrows rows = {.x = x + first * 2 * quant->cols,
                            .row_first = first,
                            .row_count = count,
                            .weight = weight + first * geom.weight_row_bytes};
    if (geom.scale_suffix)
        rows.scale = scale + first / geom.group_rows * geom.scale_row_bytes;
    k3_err_init(&err);
    return k3_quant_rows(quant, &rows, &stats, &err);
}

static int cast(const struct k3_quant *quant, uint64_t row_count)
{
    struct k3_qgeom geom;
    memset(weight, POISON, sizeof weight);
    memset(scale, POISON, sizeof scale);
    k3_qstats_init(&stats);
    int rc = cast_rows(quant, 0, row_count);
    assert_int_equal(k3_qfmt_geometry(quant->params.to, row_count, quant->cols, &geom, NULL), 0);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(weight[geom.weight_bytes + i], POISON);
        assert_int_equal(scale[geom.scale_bytes + i], POISON);
    }
    return rc;
}

static void decode(const struct k3_quant *quant, uint64_t row_count)
{
    struct k3_qrows rows = {.x = weight, .x_scale = scale, .row_count = row_count};
    assert_int_equal(k3_quant_decode(quant, &rows, decoded, NULL), 0);
}

/* Parts in another order, of any rows (FP8 blocks: of whole blocks), are the whole; statistics too.
 */
static void parts_make_the_whole(void **state)
{
    (void)state;
    static const uint64_t cut[] = {256, 300, 0, 128, 128, 256};
    static const uint64_t fine[] = {299, 300, 1, 2, 2, 299, 0, 1};
    random_values();
    for (size_t n = 0; n < FORMAT_COUNT; n++) {
        struct k3_quant quant = quant_to(formats[n], COLS_MAX, ROWS_MAX);
        bool is_block = formats[n] == K3_Q_FP8_BLOCK;
        const uint64_t *part = is_block ? cut : fine;
        assert_int_equal(cast(&quant, ROWS_MAX), 0);
        struct k3_qstats all = stats;
        memcpy(other, weight, sizeof weight);
        memcpy(other_scale, scale, sizeof scale);
        memset(weight, POISON, sizeof weight);
        memset(scale, POISON, sizeof scale);
        struct k3_qstats sum;
        k3_qstats_init(&sum);
        for (size_t k = 0; k < (is_block ? 3 : 4); k++) {
            k3_qstats_init(&stats);
            assert_int_equal(cast_rows(&quant, part[2 * k], part[2 * k + 1] - part[2 * k]), 0);
            k3_qstats_merge(&sum, &stats);
        }
        assert_memory_equal(weight, other, sizeof weight);
        assert_memory_equal(scale, other_scale, sizeof scale);
        assert_memory_equal(&sum, &all, sizeof sum);
    }
}

/* What the statistics say is what decoding shows. */
static void statistics_are_those_of_the_output(void **state)
{
    (void)state;
    random_values();
    for (size_t n = 0; n < 2 * FORMAT_COUNT; n++) {
        struct k3_quant quant = quant_to(formats[n / 2], 256, 200);
        if (n % 2 && !quant.global)
            quant.params.conv = K3_QCONV_MODELOPT;
        assert_int_equal(cast(&quant, 200), 0);
        decode(&quant, 200);
        double x2 = 0, err2 = 0, most = 0;
        for (size_t i = 0; i < 200 * 256; i++) {
            double value = (double)k3_bf16_value(k3_bf16_at(x, i)), d = value - (double)decoded[i];
            x2 += value * value;
            err2 += d * d;
            most = fabs(d) > most ? fabs(d) : most;
        }
        assert_true(fabs(k3_qsum_value(&stats.x2) / x2 - 1) < 1e-12);
        assert_true(fabs(k3_qsum_value(&stats.err2) / err2 - 1) < 1e-12);
        assert_true(stats.max_abs_error == most);
        assert_int_equal(stats.value_count, 200 * 256);
        assert_false(k3_qstats_lossless(&stats));
        assert_true(fabs(k3_qstats_rel_rmse(&stats) - pow(10, -k3_qstats_sqnr_db(&stats) / 20)) <
                    1e-12);
    }
}

/* Values that a format has come back; the cast says so. */
static void values_of_a_format_are_lossless(void **state)
{
    (void)state;
    static const float value[] = {0.5f, 1, 1.5f, 2, 3, 4, 6, 0};
    for (size_t i = 0; i < sizeof x / 2; i++) {
        float v = i % 16 == 5 ? 6 : value[next_random() % 8];
        k3_bf16_put(x, i, k3_bf16_code(next_random() % 2 ? v : -v));
    }
    static const enum k3_qfmt exact[] = {K3_Q_MXFP4, K3_Q_MXFP8, K3_Q_FP8_BLOCK};
    for (size_t n = 0; n < 3; n++) {
        struct k3_quant quant = quant_to(exact[n], 160, 30);
        quant.params.pow2_scales = true;
        assert_int_equal(cast(&quant, 30), 0);
        assert_true(k3_qstats_lossless(&stats));
        assert_true(isinf(k3_qstats_sqnr_db(&stats)));
        assert_int_equal(stats.saturated_groups, 0);
        decode(&quant, 30);
        for (size_t i = 0; i < 30 * 160; i++)
            assert_int_equal(k3_f32_bits(decoded[i]), k3_f32_bits(k3_bf16_value(k3_bf16_at(x, i))));
    }
}

/* FP8 blocks with edges: each block has the scale of its own values, and no more. */
static void blocks_may_have_edges(void **state)
{
    (void)state;
    random_values();
    struct k3_quant quant = quant_to(K3_Q_FP8_BLOCK, 200, 130);
    assert_int_equal(cast(&quant, 130), 0);
    for (uint64_t b = 0; b < 4; b++) {
        float amax = 0, got;
        for (uint64_t r = b / 2 * 128; r < 130 && r < b / 2 * 128 + 128; r++) {
            for (uint64_t c = b % 2 * 128; c < 200 && c < b % 2 * 128 + 128; c++)
                amax = fmaxf(amax, fabsf(k3_bf16_value(k3_bf16_at(x, r * 200 + c))));
        }
        memcpy(&got, scale + 4 * b, 4);
        assert_true(got == amax / 448);
    }
    assert_int_equal(stats.group_count, 4);
}

/* Rows longer than a piece: lanes and scales go on where they were. */
static void wide_rows(void **state)
{
    (void)state;
    random_values();
    for (size_t n = 0; n < FORMAT_COUNT; n++) {
        struct k3_quant quant = quant_to(formats[n], WIDE_COLS, 4);
        assert_int_equal(cast(&quant, 4), 0);
        decode(&quant, 4);
        double err2 = 0;
        for (size_t i = 0; i < (size_t)4 * WIDE_COLS; i++) {
            double d = (double)k3_bf16_value(k3_bf16_at(x, i)) - (double)decoded[i];
            err2 += d * d;
        }
        assert_true(fabs(k3_qsum_value(&stats.err2) / err2 - 1) < 1e-12);
        assert_int_equal(stats.value_count, 4 * WIDE_COLS);
    }
}

static void zeros_stay_zeros(void **state)
{
    (void)state;
    /* The first scale of a matrix of zeros, little-endian: docs/QUANTIZATION.md 4. */
    static const uint8_t zero_scale[K3_QFMT_COUNT][4] = {
        [K3_Q_NVFP4] = {0x20},
        [K3_Q_FP8_CHANNEL] = {0, 0, 0, 0x34},
        [K3_Q_FP8_BLOCK] = {0, 0, 0, 0x34},
        [K3_Q_INT4_G32] = {0, 0x3c},
        [K3_Q_INT4_G128] = {0, 0x3c},
        [K3_Q_INT8_G32] = {0, 0x3c},
    };
    memset(x, 0, sizeof x);
    k3_bf16_put(x, 1, 0x8000);
    for (size_t n = 0; n < FORMAT_COUNT; n++) {
        struct k3_quant quant = quant_to(formats[n], 128, 3);
        struct k3_qgeom geom;
        k3_qfmt_geometry(formats[n], 3, 128, &geom, NULL);
        assert_int_equal(cast(&quant, 3), 0);
        if (geom.scale_suffix) {
            assert_memory_equal(scale, zero_scale[formats[n]], k3_dtype_bits(geom.scale_dtype) / 8);
            assert_int_equal(stats.zero_groups, stats.group_count);
        }
        decode(&quant, 3);
        for (size_t i = 0; i < 3 * 128; i++)
            assert_true(decoded[i] == 0);
        bool has_sign = geom.weight_dtype != K3_I32 && geom.weight_dtype != K3_I8;
        assert_int_equal(signbit(decoded[1]) != 0, has_sign);
        assert_true(k3_qstats_lossless(&stats));
    }
}

/* The largest and the smallest values that BF16 has: finite scales, finite sums. */
static void ends_of_bf16(void **state)
{
    (void)state;
    static const uint16_t code[] = {0x7f7f, 0xff7f, 0x7f00, 0x0001, 0x8001, 0x0040, 0x0080};
    for (size_t n = 0; n < 4 * FORMAT_COUNT; n++) {
        for (size_t i = 0; i < sizeof x / 2; i++)
            k3_bf16_put(x, i, code[n % 2 ? next_random() % 7 : 3 + next_random() % 4]);
        struct k3_quant quant = quant_to(formats[n / 4], 256, 4);
        quant.params.conv = n / 2 % 2 ? K3_QCONV_MODELOPT : K3_QCONV_COMPRESSED_TENSORS;
        if (k3_quant_needs_amax(quant.params.to))
            quant.global = k3_quant_global(&quant.params, n % 2 ? 0x7f7f : 0x0080);
        assert_true(isfinite(quant.global));
        assert_int_equal(cast(&quant, 4), 0);
        assert_true(isfinite(k3_qsum_value(&stats.err2)) && isfinite(stats.max_abs_error));
        decode(&quant, 4);
        for (size_t i = 0; i < 4 * 256; i++)
            assert_int_equal(isnan(decoded[i]) != 0, 0);
    }
}

static void what_is_not_finite_is_refused(void **state)
{
    (void)state;
    static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc1};
    for (size_t n = 0; n < FORMAT_COUNT; n++) {
        for (size_t k = 0; k < 3; k++) {
            random_values();
            struct k3_quant quant = quant_to(formats[n], 384, 4);
            struct k3_qrows rows = {.x = x, .row_count = 4, .row_first = 128};
            uint16_t amax = 0;
            k3_bf16_put(x, 3 * 384 + 200, bad[k]);
            assert_int_equal(cast(&quant, 4), K3_EFORMAT);
            assert_non_null(strstr(err.text, "tensor w holds a value that is not finite"));
            assert_non_null(strstr(err.text, "index 1352 (row 3, column 200)"));
            k3_err_init(&err);
            assert_int_equal(k3_quant_amax(&quant, &rows, &amax, &err), K3_EFORMAT);
            assert_non_null(strstr(err.text, "index 50504 (row 131, column 200)"));
            quant.cut = (struct k3_qcut){.row = 10, .col = 384, .tensor_cols = 1000};
            k3_err_init(&err);
            assert_int_equal(k3_quant_amax(&quant, &rows, &amax, &err), K3_EFORMAT);
            assert_non_null(strstr(err.text, "index 141584 (row 141, column 584)"));
        }
    }
}

/* The mse rule is never worse than any fixed rule, group by group. */
static void mse_is_the_least(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        random_values();
        for (int fp8 = 0; fp8 < 2; fp8++) {
            double error[K3_SCALE_RULE_COUNT];
            for (enum k3_scale_rule rule = 0; rule < K3_SCALE_RULE_COUNT; rule++) {
                struct k3_quant quant = quant_to(fp8 ? K3_Q_MXFP8 : K3_Q_MXFP4, 32, 1);
                quant.params.rule = rule;
                assert_int_equal(cast(&quant, 1), 0);
                error[rule] = k3_qsum_value(&stats.err2);
            }
            for (enum k3_scale_rule rule = 0; rule < K3_SCALE_MSE; rule++)
                assert_true(error[K3_SCALE_MSE] <= error[rule]);
        }
    }
}

static void routes(void **state)
{
    (void)state;
    assert_int_equal(k3_quant_route(K3_Q_BF16, K3_Q_BF16), K3_QROUTE_COPY);
    assert_int_equal(k3_quant_route(K3_Q_MXFP4, K3_Q_VERBATIM), K3_QROUTE_COPY);
    assert_int_equal(k3_quant_route(K3_Q_BF16, K3_Q_NVFP4), K3_QROUTE_QUANT);
    assert_int_equal(k3_quant_route(K3_Q_MXFP4, K3_Q_NVFP4), K3_QROUTE_MX);
    assert_int_equal(k3_quant_route(K3_Q_MXFP4, K3_Q_INT4_G32), K3_QROUTE_VIA_BF16);
    assert_int_equal(k3_quant_route(K3_Q_MXFP8, K3_Q_BF16), K3_QROUTE_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_are_exact_at_their_thresholds),
        cmocka_unit_test(formats_have_their_sizes),
        cmocka_unit_test(columns_that_do_not_divide_are_refused),
        cmocka_unit_test(sums_are_exact_in_any_order),
        cmocka_unit_test(parts_make_the_whole),
        cmocka_unit_test(statistics_are_those_of_the_output),
        cmocka_unit_test(values_of_a_format_are_lossless),
        cmocka_unit_test(blocks_may_have_edges),
        cmocka_unit_test(wide_rows),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(ends_of_bf16),
        cmocka_unit_test(what_is_not_finite_is_refused),
        cmocka_unit_test(mse_is_the_least),
        cmocka_unit_test(routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
