/* Purpose: casts out of MXFP4 give every value back, for all codes and all scales; what is out of a
 * window is refused, counted or rounded, never lost in silence.
 * Owns: buffers of one small matrix.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: values are compared in FP64, where those of all scales are exact; outputs begin as
 * poison, with a guard behind them. */
#include "cast_mxfp4.h"
#include "num.h"
#include "quant_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX   256u
#define COLS_MAX   288u /* two blocks and one group */
#define GROUPS_MAX (ROWS_MAX * COLS_MAX / K3_MX_GROUP)
#define GUARD      64u
#define POISON     0xa5

static uint8_t packed[GROUPS_MAX * 16], scale[GROUPS_MAX];
static uint8_t out[ROWS_MAX * COLS_MAX * 2 + GUARD], out_scale[ROWS_MAX * COLS_MAX / 4 + GUARD];
static struct k3_qstats stats;
static struct k3_err err;

static uint32_t seed = 1;

static uint32_t next_random(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static void random_codes(void)
{
    for (size_t i = 0; i < sizeof packed; i++)
        packed[i] = (uint8_t)next_random();
}

static double source_value(uint64_t cols, uint64_t row, uint64_t col)
{
    uint64_t i = row * cols + col;
    return ldexp((double)k3_e2m1_values[packed[i / 2] >> (i % 2 * 4) & 15], scale[i / 32] - 127);
}

/* The value that the output stands for. */
static double cast_value(const struct k3_quant *quant, uint64_t row, uint64_t col)
{
    uint64_t i = row * quant->cols + col, blocks = (quant->cols + 127) / 128;
    float block;
    switch (quant->params.to) {
    case K3_Q_BF16:
        return (double)k3_bf16_value(k3_bf16_at(out, i));
    case K3_Q_MXFP8:
        return ldexp((double)k3_e4m3_value(out[i]), out_scale[i / 32] - 127);
    case K3_Q_INT8_G32:
        return (double)(int8_t)out[i] * (double)k3_bf16_value(k3_bf16_at(out_scale, i / 32));
    case K3_Q_NVFP4: {
        double global = (double)quant->global;
        double own = (double)k3_e4m3_value(out_scale[i / 16]);
        own = quant->params.conv == K3_QCONV_MODELOPT ? own * global : own / global;
        return (double)k3_e2m1_values[out[i / 2] >> (i % 2 * 4) & 15] * own;
    }
    default:
        memcpy(&block, out_scale + 4 * (row / 128 * blocks + col / 128), 4);
        return (double)k3_e4m3_value(out[i]) * (double)block;
    }
}

static struct k3_quant quant_to(enum k3_qfmt to, uint64_t cols)
{
    return (struct k3_quant){.name = "w", .params = k3_qparams_default(to), .cols = cols};
}

static struct k3_qrows rows_of(uint64_t row_count)
{
    return (struct k3_qrows){
        .x = packed, .x_scale = scale, .row_count = row_count, .weight = out, .scale = out_scale};
}

/* Cast, check that exactly the output was written. */
static int cast(const struct k3_quant *quant, uint64_t row_count)
{
    struct k3_qrows rows = rows_of(row_count);
    struct k3_qgeom geom;
    memset(out, POISON, sizeof out);
    memset(out_scale, POISON, sizeof out_scale);
    k3_qstats_init(&stats);
    k3_err_init(&err);
    int rc = k3_mx_rows(quant, &rows, &stats, &err);
    assert_int_equal(k3_qfmt_geometry(quant->params.to, row_count, quant->cols, &geom, NULL), 0);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(out[geom.weight_bytes + i], POISON);
        assert_int_equal(out_scale[geom.scale_bytes + i], POISON);
    }
    return rc;
}

/* All values equal, signs of zeros too; the statistics agree. */
static void assert_exact(const struct k3_quant *quant, uint64_t row_count)
{
    double x2 = 0;
    for (uint64_t row = 0; row < row_count; row++) {
        for (uint64_t col = 0; col < quant->cols; col++) {
            double x = source_value(quant->cols, row, col), y = cast_value(quant, row, col);
            bool has_sign = quant->params.to != K3_Q_INT8_G32;
            if (x != y || (has_sign && signbit(x) != signbit(y)))
                fail_msg("%s: [%u, %u] is %a, was %a", k3_qfmt_name(quant->params.to),
                         (unsigned)row, (unsigned)col, y, x);
            x2 += x * x;
        }
    }
    assert_true(k3_qstats_lossless(&stats));
    assert_true(isinf(k3_qstats_sqnr_db(&stats)));
    assert_int_equal(stats.value_count, row_count * quant->cols);
    assert_int_equal(stats.group_count, row_count * quant->cols / 32);
    assert_int_equal(stats.breach_groups, 0);
    assert_true(fabs(k3_qsum_value(&stats.x2) - x2) <= x2 * 1e-12);
}

/* Every code at every scale: row 0..254 has that scale, its first group all codes. */
static void all_codes(void)
{
    random_codes();
    for (uint64_t row = 0; row < 255; row++) {
        memset(scale + row * 2, (int)row, 2);
        for (int i = 0; i < 8; i++)
            packed[row * 32 + (uint64_t)i] = (uint8_t)(2 * i | (2 * i + 1) << 4);
    }
}

static void all_codes_at_all_scales(void **state)
{
    (void)state;
    static const enum k3_qfmt to[] = {K3_Q_MXFP8, K3_Q_INT8_G32, K3_Q_BF16};
    for (size_t n = 0; n < 3; n++) {
        struct k3_quant quant = quant_to(to[n], 64);
        all_codes();
        uint64_t row_count = to[n] == K3_Q_BF16 ? 253 : 255;
        assert_int_equal(cast(&quant, row_count), 0);
        assert_exact(&quant, row_count);
    }
}

/* BF16 ends at 2^128: 4 and 6 at byte 253, 2 to 6 at byte 254. */
static void bf16_ends_at_its_edge(void **state)
{
    (void)state;
    for (int byte = 252; byte < 255; byte++) {
        for (unsigned code = 0; code < 16; code++) {
            struct k3_quant quant = quant_to(K3_Q_BF16, 32);
            bool is_over = fabs(ldexp((double)k3_e2m1_values[code], byte - 127)) >= 0x1p128;
            memset(packed, 0, 16);
            packed[7] = (uint8_t)(code << 4);
            scale[0] = (uint8_t)byte;
            int rc = cast(&quant, 1);
            assert_int_equal(rc, is_over ? K3_EUNSUPPORTED : 0);
            if (!is_over) {
                assert_exact(&quant, 1);
                continue;
            }
            quant.params.oow = K3_OOW_REQUANT;
            assert_int_equal(cast(&quant, 1), 0);
            assert_int_equal(stats.breach_groups, 1);
            assert_int_equal(k3_bf16_at(out, 15), 0x7f7f | (code & 8) << 12);
            quant.params.oow = K3_OOW_SNAP;
            assert_int_equal(cast(&quant, 1), 0);
            assert_true((double)k3_bf16_value(k3_bf16_at(out, 15)) ==
                        ldexp((double)k3_e2m1_values[code], 252 - 127));
            assert_false(k3_qstats_lossless(&stats));
        }
    }
}

/* Pass 1 as a caller does it. */
static enum k3_mx_fit scan(struct k3_quant *quant, uint64_t row_count, bool is_of_nonzero)
{
    struct k3_mx_window window;
    struct k3_qrows rows = rows_of(row_count);
    k3_mx_window_init(&window, is_of_nonzero);
    assert_int_equal(k3_mx_scan(quant, &rows, &window, NULL), 0);
    if (quant->params.to == K3_Q_NVFP4)
        quant->global = k3_mx_global(&quant->params, &window);
    return k3_mx_fit(quant->params.to, &window);
}

static uint64_t breaches(const struct k3_quant *quant, uint64_t row_count, bool has_codes)
{
    struct k3_qrows rows = rows_of(row_count);
    uint64_t count = 0;
    rows.x = has_codes ? packed : NULL;
    assert_int_equal(k3_mx_breaches(quant, &rows, &count, NULL), 0);
    return count;
}

/* A top scale and scales `spread` below, at both ends of E8M0 and between: exact up to the window,
 * refused one beyond. */
static void windows_end_where_they_must(void **state)
{
    (void)state;
    static const struct {
        enum k3_qfmt to;
        enum k3_qconv conv;
        int spread;
    } row[] = {{K3_Q_NVFP4, K3_QCONV_COMPRESSED_TENSORS, 17},
               {K3_Q_NVFP4, K3_QCONV_MODELOPT, 17},
               {K3_Q_FP8_BLOCK, K3_QCONV_COMPRESSED_TENSORS, 14}};
    for (size_t n = 0; n < 3; n++) {
        for (int top = row[n].spread + 1; top < 255; top++) {
            for (int beyond = -1; beyond <= 1; beyond++) {
                struct k3_quant quant = quant_to(row[n].to, 64);
                quant.params.conv = row[n].conv;
                random_codes();
                for (int i = 0; i < 20; i++) /* all spreads up to the last one */
                    scale[i] = (uint8_t)(top - (i < row[n].spread + beyond ? i : 0));
                scale[13] = (uint8_t)(top - row[n].spread - beyond);
                for (int i = 0; i < 8; i++)
                    packed[13 * 16 + i] = (uint8_t)(2 * i | (2 * i + 1) << 4);
                enum k3_mx_fit fit = scan(&quant, 10, false);
                assert_int_equal(fit, beyond > 0 ? K3_MX_UNKNOWN : K3_MX_FITS);
                assert_int_equal(scan(&quant, 10, true), beyond <= 0 ? K3_MX_FITS
                                                         : n < 2     ? K3_MX_BREACH
                                                                     : K3_MX_UNKNOWN);
                assert_int_equal(breaches(&quant, 10, true), beyond > 0);
                assert_int_equal(breaches(&quant, 10, false), beyond > 0);
                int rc = cast(&quant, 10);
                assert_int_equal(rc, beyond > 0 ? K3_EUNSUPPORTED : 0);
                if (rc == 0)
                    assert_exact(&quant, 10);
                else
                    assert_non_null(strstr(err.text, "scale index 13 (row 6, group 1)"));
            }
        }
    }
}

/* Small scales, where the divisor would leave FP32: still exact. */
static void nvfp4_at_the_low_end(void **state)
{
    (void)state;
    for (int top = 0; top < 18; top++) {
        struct k3_quant quant = quant_to(K3_Q_NVFP4, 64);
        random_codes();
        for (int i = 0; i < 20; i++)
            scale[i] = (uint8_t)(i < top ? i : top);
        assert_int_equal(scan(&quant, 10, false), K3_MX_FITS);
        assert_true(isfinite(quant.global) && quant.global > 0);
        assert_int_equal(cast(&quant, 10), 0);
        assert_exact(&quant, 10);
    }
}

/* A group of zeros may have any scale: scales alone do not know, codes do. */
static void zero_groups_are_never_out(void **state)
{
    (void)state;
    static const enum k3_qfmt to[] = {K3_Q_NVFP4, K3_Q_FP8_BLOCK};
    static const int other[] = {0, 254};
    for (size_t n = 0; n < 4; n++) {
        struct k3_quant quant = quant_to(to[n / 2], 64);
        random_codes();
        memset(scale, 127, 20);
        scale[9] = (uint8_t)other[n % 2];
        memset(packed + 9 * 16, 0x80, 16); /* 0 and -0 */
        assert_int_equal(scan(&quant, 10, false), K3_MX_UNKNOWN);
        assert_int_not_equal(scan(&quant, 10, true), K3_MX_BREACH);
        assert_true(breaches(&quant, 10, false) > 0 || n % 2);
        assert_int_equal(breaches(&quant, 10, true), 0);
        assert_int_equal(cast(&quant, 10), 0);
        assert_exact(&quant, 10);
        assert_int_equal(stats.zero_groups, 1);
    }
    memset(packed, 0x08, sizeof packed); /* nothing but zeros */
    for (size_t n = 0; n < 2; n++) {
        struct k3_quant quant = quant_to(to[n], 64);
        assert_int_equal(scan(&quant, 10, true), K3_MX_FITS);
        assert_int_equal(cast(&quant, 10), 0);
        assert_exact(&quant, 10);
        assert_int_equal(stats.zero_groups, 20);
    }
}

/* What requant makes is the nearest that the target has; snap keeps codes; both are counted and
 * their errors are those of the output. */
static void breaches_are_rounded_and_counted(void **state)
{
    (void)state;
    static const enum k3_qfmt to[] = {K3_Q_NVFP4, K3_Q_FP8_BLOCK};
    for (int spread = 15; spread < 24; spread++) {
        for (size_t n = 0; n < 4; n++) {
            struct k3_quant quant = quant_to(to[n / 2], 64);
            bool is_snap = n % 2;
            int window = quant.params.to == K3_Q_NVFP4 ? 17 : 14, beyond = spread - window;
            if (beyond <= 0)
                continue;
            random_codes();
            memset(scale, 130, 20);
            scale[5] = (uint8_t)(130 - spread);
            packed[5 * 16] = 0x75; /* at least one value that is lost */
            quant.params.oow = is_snap ? K3_OOW_SNAP : K3_OOW_REQUANT;
            scan(&quant, 10, true);
            assert_int_equal(cast(&quant, 10), 0);
            assert_int_equal(stats.breach_groups, 1);
            double step = ldexp(0.5, 130 - window - 127), err2 = 0, most = 0; /* of the edge */
            for (uint64_t col = 0; col < 64; col++) {
                double x = source_value(64, 2, col), y = cast_value(&quant, 2, col);
                err2 += (x - y) * (x - y);
                most = fabs(x - y) > most ? fabs(x - y) : most;
                if (col < 32)
                    assert_true(x == y);
                else if (is_snap)
                    assert_true(y == ldexp(x, beyond));
                else
                    assert_true(fabs(x - y) <= step / 2 || fabs(x - y) <= fabs(x) / 5);
            }
            assert_true(err2 > 0 || !is_snap);
            assert_true(k3_qsum_value(&stats.err2) == err2);
            assert_true(stats.max_abs_error == most);
        }
    }
}

static void nan_scales_are_refused(void **state)
{
    (void)state;
    static const enum k3_qfmt to[] = {K3_Q_MXFP8, K3_Q_INT8_G32, K3_Q_BF16, K3_Q_NVFP4,
                                      K3_Q_FP8_BLOCK};
    for (size_t n = 0; n < 5; n++) {
        struct k3_quant quant = quant_to(to[n], COLS_MAX);
        struct k3_qrows rows = rows_of(128);
        struct k3_mx_window window;
        uint64_t count = 0;
        quant.global = 1;
        memset(scale, 127, sizeof scale);
        scale[1000] = 0xff; /* row 111, group 1 */
        for (int call = 0; call < 3; call++) {
            int rc;
            k3_err_init(&err);
            k3_qstats_init(&stats);
            k3_mx_window_init(&window, false);
            rc = call == 0   ? k3_mx_scan(&quant, &rows, &window, &err)
                 : call == 1 ? k3_mx_breaches(&quant, &rows, &count, &err)
                             : k3_mx_rows(&quant, &rows, &stats, &err);
            assert_int_equal(rc, K3_EFORMAT);
            assert_non_null(
                strstr(err.text, "tensor w: the scale at index 1000 (row 111, group 1)"));
        }
        rows.row_first = 1280;
        k3_err_init(&err);
        assert_int_equal(k3_mx_scan(&quant, &rows, &window, &err), K3_EFORMAT);
        assert_non_null(strstr(err.text, "index 12520 (row 1391, group 1)"));
        quant.cut = (struct k3_qcut){.row = 7, .col = 64, .tensor_cols = 384};
        k3_err_init(&err);
        assert_int_equal(k3_mx_scan(&quant, &rows, &window, &err), K3_EFORMAT);
        assert_non_null(strstr(err.text, "index 16779 (row 1398, group 3)"));
    }
}

/* A group out of the window is named before anything is cast, at its place in the tensor. */
static void breaches_are_named(void **state)
{
    (void)state;
    static const enum k3_qfmt to[] = {K3_Q_NVFP4, K3_Q_FP8_BLOCK};
    for (size_t n = 0; n < 2; n++) {
        struct k3_quant quant = quant_to(to[n], COLS_MAX);
        struct k3_qrows rows = rows_of(128);
        quant.cut = (struct k3_qcut){.row = 256, .col = COLS_MAX, .tensor_cols = 2 * COLS_MAX};
        memset(packed, 0x11, sizeof packed);
        memset(scale, 127, sizeof scale);
        assert_int_equal(scan(&quant, 128, false), K3_MX_FITS);
        assert_int_equal(k3_mx_breaches(&quant, &rows, NULL, NULL), 0);
        scale[1000] = 127 - 18; /* row 111, group 1 */
        scale[1100] = 0;
        k3_err_init(&err);
        assert_int_equal(k3_mx_breaches(&quant, &rows, NULL, &err), K3_EUNSUPPORTED);
        assert_non_null(
            strstr(err.text, "w: the group at scale index 6616 (row 367, group 10) has scale"));
        assert_non_null(strstr(err.text, "--oow"));
        assert_int_equal(breaches(&quant, 128, true), 2);
    }
}

/* Blocks with edges: 200 rows, 288 columns, each block its own scales; w1 and w3 share a window. */
static void edges_and_shared_windows(void **state)
{
    (void)state;
    struct k3_quant quant = quant_to(K3_Q_FP8_BLOCK, COLS_MAX);
    random_codes();
    for (uint64_t row = 0; row < 200; row++)
        for (uint64_t g = 0; g < 9; g++)
            scale[row * 9 + g] = (uint8_t)(20 + 70 * (row / 128) + 25 * (g / 4) +
                                           next_random() % 15);
    assert_int_equal(scan(&quant, 200, false), K3_MX_UNKNOWN); /* the matrix, not each block */
    assert_int_equal(breaches(&quant, 200, false), 0);
    assert_int_equal(cast(&quant, 200), 0);
    assert_exact(&quant, 200);

    struct k3_mx_window one, both;
    struct k3_qrows rows = rows_of(1);
    quant = quant_to(K3_Q_NVFP4, 64);
    k3_mx_window_init(&both, false);
    for (int k = 0; k < 2; k++) {
        memset(scale, 120 + 10 * k, 2);
        k3_mx_window_init(&one, false);
        assert_int_equal(k3_mx_scan(&quant, &rows, &one, NULL), 0);
        k3_mx_window_merge(&both, &one);
    }
    assert_int_equal(both.min, 120);
    assert_int_equal(both.max, 130);
    quant.global = k3_mx_global(&quant.params, &both);
    assert_true(quant.global == 0x1p5f); /* 1 / 2^(130 - 127 - 8) */
    memset(scale, 120, 2);
    assert_int_equal(cast(&quant, 1), 0);
    assert_exact(&quant, 1);
    assert_int_equal(out_scale[0], (8 - 10 + 7) << 3);
}

/* Parts of a matrix one after another are the whole, in bytes and statistics. */
static void parts_make_the_whole(void **state)
{
    (void)state;
    static uint8_t whole[sizeof out], whole_scale[sizeof out_scale];
    static const enum k3_qfmt to[] = {K3_Q_MXFP8, K3_Q_INT8_G32, K3_Q_BF16, K3_Q_NVFP4,
                                      K3_Q_FP8_BLOCK};
    for (size_t n = 0; n < 5; n++) {
        struct k3_quant quant = quant_to(to[n], COLS_MAX);
        struct k3_qgeom geom, part;
        random_codes();
        for (size_t g = 0; g < GROUPS_MAX; g++)
            scale[g] = (uint8_t)(120 + next_random() % 10);
        scan(&quant, 250, false);
        assert_int_equal(cast(&quant, 250), 0);
        struct k3_qstats all = stats, sum;
        memcpy(whole, out, sizeof out);
        memcpy(whole_scale, out_scale, sizeof out_scale);
        k3_qfmt_geometry(to[n], 250, COLS_MAX, &geom, NULL);
        k3_qstats_init(&sum);
        for (int k = 1; k >= 0; k--) { /* the last part first */
            struct k3_qrows rows = rows_of(k ? 122 : 128);
            rows.x = packed + k * 128 * (int)COLS_MAX / 2;
            rows.x_scale = scale + k * 128 * (int)COLS_MAX / 32;
            rows.row_first = k ? 128 : 0;
            k3_qstats_init(&stats);
            assert_int_equal(k3_mx_rows(&quant, &rows, &stats, NULL), 0);
            k3_qstats_merge(&sum, &stats);
            k3_qfmt_geometry(to[n], rows.row_count, COLS_MAX, &part, NULL);
            assert_memory_equal(out, whole + rows.row_first * geom.weight_row_bytes,
                                part.weight_bytes);
            if (part.scale_bytes)
                assert_memory_equal(out_scale,
                                    whole_scale + (k ? geom.scale_bytes - part.scale_bytes : 0),
                                    part.scale_bytes);
        }
        assert_memory_equal(&sum, &all, sizeof sum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_codes_at_all_scales),
        cmocka_unit_test(bf16_ends_at_its_edge),
        cmocka_unit_test(windows_end_where_they_must),
        cmocka_unit_test(nvfp4_at_the_low_end),
        cmocka_unit_test(zero_groups_are_never_out),
        cmocka_unit_test(breaches_are_rounded_and_counted),
        cmocka_unit_test(nan_scales_are_refused),
        cmocka_unit_test(breaches_are_named),
        cmocka_unit_test(edges_and_shared_windows),
        cmocka_unit_test(parts_make_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
