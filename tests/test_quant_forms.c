/* Purpose: every form of k3_quant_ops gives the bytes and the sums of the scalar one, reads only
 * what it is given and writes only its output; casts of rows do not depend on the form.
 * Owns: two areas that end at a page which nobody may touch.
 * Threads: one.
 * Errors: a failed assertion; a form that does not run here is a skipped test.
 * Invariants: what is wanted comes from quant_scalar.c alone; sums are compared by their bits. */
#include "cast_mxfp4.h"
#include "num.h"
#include "quant.h"
#include "quant_ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define PAGE_BYTES   4096u
#define AREA_BYTES   ((size_t)256 << 10)
#define FINITE_COUNT (2u * K3_BF16_INF) /* BF16 codes */
#define CANARY       0xa5

static uint8_t *area, *out_area; /* each ends at a page without access */
static uint8_t wanted[AREA_BYTES];
static const struct k3_quant_ops *const scalar = &k3_quant_ops_scalar;
static uint64_t seed = 88172645463325252u;

static uint32_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

static uint8_t *map_area(void)
{
    uint8_t *map = mmap(NULL, AREA_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + AREA_BYTES, PAGE_BYTES, PROT_NONE))
        return NULL;
    return map;
}

static int set_up(void **state)
{
    (void)state;
    area = map_area();
    out_area = map_area();
    return area && out_area ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return munmap(area, AREA_BYTES + PAGE_BYTES) || munmap(out_area, AREA_BYTES + PAGE_BYTES);
}

static int unforce(void **state)
{
    (void)state;
    k3_quant_force(K3_QUANT_FORM_COUNT);
    return 0;
}

/* The loops of the form of this test, or the test ends as skipped. */
static const struct k3_quant_ops *use_form(void **state)
{
    enum k3_quant_form form = *(const enum k3_quant_form *)*state;
    if (!k3_quant_form_runs(form)) {
        print_message("%s does not run on this CPU\n", k3_quant_form_name(form));
        skip();
    }
    k3_quant_force(form);
    assert_int_equal(k3_quant_form(), form);
    return k3_quant_ops();
}

/* ---- BF16 to codes ---- */

enum kind { E2M1, E4M3, E4M3_BF16, INT8, INT4, KIND_COUNT };

typedef void encode_fn(const struct k3_qrun *run, struct k3_qlanes *lanes);

static encode_fn *encoder(const struct k3_quant_ops *ops, int kind)
{
    return kind == E2M1   ? ops->e2m1
           : kind == INT8 ? ops->int8
           : kind == INT4 ? ops->int4
                          : ops->e4m3;
}

/* One run by both; the output of the form ends where nobody may write, behind a canary. */
static void check_run(const struct k3_quant_ops *ops, int kind, struct k3_qrun run,
                      struct k3_qlanes *lanes)
{
    size_t bytes = kind == E2M1 || kind == INT4 ? run.count / 2 : run.count;
    uint8_t *out = out_area + AREA_BYTES - bytes;
    struct k3_qlanes other = *lanes;
    run.is_bf16 = kind == E4M3_BF16;
    run.out = wanted;
    encoder(scalar, kind)(&run, lanes);
    memset(out - 64, CANARY, bytes + 64);
    run.out = out;
    encoder(ops, kind)(&run, &other);
    for (size_t i = 0; i < bytes; i++)
        if (out[i] != wanted[i])
            fail_msg("kind %d, byte %zu of %zu is 0x%02x, wanted 0x%02x", kind, i, bytes, out[i],
                     wanted[i]);
    for (size_t i = 1; i <= 64; i++)
        assert_int_equal(out[-(ptrdiff_t)i], CANARY);
    assert_memory_equal(&other, lanes, sizeof other);
}

/* Quotients beside ties come from scales beside 1; the others reach every end of the ranges. */
static const float scales[] = {1.0f,           0x1.000002p0f, 0x1.fffffep-1f, 0x1p-149f,
                               0x1.8p-140f,    0x1p-127f,     0x1p-126f,      0x1.555556p-2f,
                               0x1.249246p-7f, 0x1p20f,       0x1.921fb6p64f, 0x1p127f,
                               0x1.fffffep127f};
#define SCALE_COUNT (sizeof scales / sizeof scales[0])

/* All finite BF16 codes, each of them in every lane, by every scale. */
static void all_values(void **state)
{
    const struct k3_quant_ops *ops = use_form(state);
    for (unsigned shift = 0; shift < K3_QUANT_LANES; shift++) {
        uint8_t *x = area + AREA_BYTES - (size_t)2 * (FINITE_COUNT + 16);
        for (uint32_t i = 0; i < FINITE_COUNT + 16; i++) {
            uint32_t n = (i + shift) % FINITE_COUNT;
            k3_bf16_put(x, i, (uint16_t)(n < K3_BF16_INF ? n : 0x8000u + n - K3_BF16_INF));
        }
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            for (size_t s = shift % 2; s < SCALE_COUNT; s += shift ? 4 : 1) {
                struct k3_qlanes lanes = {0};
                struct k3_qrun run = {
                    .x = x, .count = FINITE_COUNT + 16, .group_cols = 1 << 20, .scale = &scales[s]};
                check_run(ops, kind, run, &lanes);
            }
        }
    }
}

/* BF16 of one of three sorts: any, near 1, an end of the range. */
static uint16_t random_value(void)
{
    static const uint16_t ends[] = {0,      0x8000, 1,      0x8001, 0x7f,   0x80,
                                    0x7f7f, 0xff7f, 0x3f80, 0x4060, 0x43e0, 0xc3e8};
    uint32_t r = next_random();
    if (r % 8 == 0)
        return ends[(r >> 8) % (sizeof ends / sizeof ends[0])];
    if (r % 8 == 1) {
        uint16_t any = (uint16_t)(r >> 16);
        return (any & 0x7fffu) < K3_BF16_INF ? any : 0x4000;
    }
    return (uint16_t)(0x3c00u + (r >> 16) % 0x0800u + (r & 0x8000u));
}

static float random_scale(void)
{
    uint32_t r = next_random();
    if (r % 4 == 0)
        return scales[(r >> 8) % SCALE_COUNT];
    if (r % 4 == 1)
        return k3_f32_pow2((int)((r >> 8) % 277) - 149);
    return k3_f32_of(0x3a000000u + (r >> 4) % 0x06000000u);
}

/* Short runs of all lengths and groups, one behind the other in the same sums. */
static void random_runs(void **state)
{
    static const size_t group[] = {16, 32, 48, 128, 4096};
    const struct k3_quant_ops *ops = use_form(state);
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct k3_qlanes lanes = {0};
        for (int i = 0; i < 2000; i++) {
            size_t align = kind == INT4 ? 8 : 2;
            size_t count = align * (1 + next_random() % (400 / align));
            uint8_t *x = area + AREA_BYTES - 2 * count;
            float scale[400 / 16 + 1];
            for (size_t k = 0; k < count; k++)
                k3_bf16_put(x, k, random_value());
            for (size_t k = 0; k < sizeof scale / sizeof scale[0]; k++)
                scale[k] = random_scale();
            struct k3_qrun run = {
                .x = x, .count = count, .group_cols = group[next_random() % 5], .scale = scale};
            if (i % 2) { /* an odd address */
                memmove(x - 1, x, 2 * count);
                run.x = x - 1;
            }
            check_run(ops, kind, run, &lanes);
            if (i % 100 == 0)
                memset(&lanes, 0, sizeof lanes);
        }
    }
}

/* Values that are not finite too. */
static void largest(void **state)
{
    static const size_t group[] = {16, 32, 48, 128, 4096};
    const struct k3_quant_ops *ops = use_form(state);
    for (size_t count = 1; count < 600; count++) {
        uint8_t *x = area + AREA_BYTES - 2 * count;
        for (size_t k = 0; k < count; k++)
            k3_bf16_put(x, k, (uint16_t)(next_random() % (count % 3 ? 0x10000u : 0x100u)));
        for (size_t g = 0; g < sizeof group / sizeof group[0]; g++) {
            size_t groups = (count + group[g] - 1) / group[g];
            uint16_t one[40], two[40];
            memset(one, CANARY, sizeof one);
            memset(two, CANARY, sizeof two);
            scalar->amax(x, count, group[g], one);
            ops->amax(x, count, group[g], two);
            assert_memory_equal(one, two, sizeof one);
            assert_int_equal(two[groups], CANARY << 8 | CANARY);
        }
    }
    for (uint32_t n = 0; n < 0x10000u; n++) { /* every code in a lane that differs */
        uint8_t x[2 * K3_QUANT_LANES] = {0};
        uint16_t found;
        k3_bf16_put(x, (n + n / 16) % 16, (uint16_t)n);
        ops->amax(x, K3_QUANT_LANES, 16, &found);
        assert_int_equal(found, n & 0x7fff);
    }
}

/* ---- scales ---- */

/* All finite amax at once and in short runs, by globals at every end. */
static void scales_of_groups(void **state)
{
    static const float global[] = {1,           0x1.5p11f,       0x1p-149f, 0x1p-126f,
                                   0x1.8p-130f, 0x1.555556p-12f, 0x1p8f,    0x1.fffffep127f,
                                   0x1p-133f,   0x1.23456p-9f};
    static uint16_t amax[K3_BF16_INF];
    static float scale[2][K3_BF16_INF];
    static uint8_t byte[2][K3_BF16_INF];
    const struct k3_quant_ops *ops = use_form(state);
    for (uint16_t i = 0; i < K3_BF16_INF; i++)
        amax[i] = i;
    for (size_t k = 0; k < 2 * sizeof global / sizeof global[0]; k++) {
        for (size_t count = K3_BF16_INF; count > 0; count = count > 40 ? 40 : count - 1) {
            const uint16_t *first = amax + (count > 40 ? 0 : 997 * k + 31 * count);
            struct k3_nvfp4_groups groups = {first, count, global[k / 2], k % 2, byte[0], scale[0]};
            memset(byte, CANARY, sizeof byte);
            memset(scale, CANARY, sizeof scale);
            scalar->nvfp4_scales(&groups);
            groups.byte = byte[1];
            groups.scale = scale[1];
            ops->nvfp4_scales(&groups);
            assert_memory_equal(byte[0], byte[1], sizeof byte[0]);
            assert_memory_equal(scale[0], scale[1], sizeof scale[0]);
            for (float most = 6; most < 500; most *= 8)
                assert_int_equal(ops->saturated(first, scale[0], count, most),
                                 scalar->saturated(first, scale[0], count, most));
        }
    }
}

/* ---- MXFP4 ---- */

/* All codes by all rows of a table, at every number of groups. */
static void groups_of_codes(void **state)
{
    static uint8_t bytes[256][16], picks[512];
    static uint16_t words[256][16];
    const struct k3_quant_ops *ops = use_form(state);
    for (size_t r = 0; r < 256; r++) {
        for (size_t c = 0; c < 16; c++) {
            bytes[r][c] = (uint8_t)next_random();
            words[r][c] = (uint16_t)next_random();
        }
    }
    for (size_t count = 0; count <= 512; count += count < 20 ? 1 : 41) {
        uint8_t *packed = area + AREA_BYTES - 16 * count;
        uint8_t *out = out_area + AREA_BYTES - 64 * count;
        uint16_t squares[2][520];
        for (size_t i = 0; i < 16 * count; i++) /* so that all bytes meet all rows */
            packed[i] = (uint8_t)(count % 2 ? next_random() : i + i / 16);
        for (size_t g = 0; g < count; g++)
            picks[g] = (uint8_t)(count % 3 ? g : next_random());
        for (int is_picked = 0; is_picked < 2; is_picked++) {
            const uint8_t *pick = is_picked ? picks : NULL;
            scalar->mx_words(packed, count, (const uint16_t(*)[16])words, pick, wanted);
            memset(out - 64, CANARY, 64 * count + 64);
            ops->mx_words(packed, count, (const uint16_t(*)[16])words, pick, out);
            assert_memory_equal(out, wanted, 64 * count);
            scalar->mx_bytes(packed, count, (const uint8_t(*)[16])bytes, pick, wanted);
            ops->mx_bytes(packed, count, (const uint8_t(*)[16])bytes, pick, out + 32 * count);
            assert_memory_equal(out + 32 * count, wanted, 32 * count);
            assert_int_equal(out[-1], CANARY);
        }
        if (count % 4 == 0)
            memset(packed, 0x80, 16 * count / 2); /* groups of zeros, some of them negative */
        memset(squares, CANARY, sizeof squares);
        scalar->mx_squares(packed, count, squares[0]);
        ops->mx_squares(packed, count, squares[1]);
        assert_memory_equal(squares[0], squares[1], sizeof squares[0]);
    }
}

/* Few scales and many, on top of sums that are there. */
static void sums_by_scale(void **state)
{
    const struct k3_quant_ops *ops = use_form(state);
    static uint64_t sums[2][256];
    for (size_t count = 0; count <= 300; count++) {
        uint16_t squares[300];
        uint8_t *scale = area + AREA_BYTES - count;
        uint32_t spread = count % 4 ? 1 + next_random() % 14 : 256;
        for (size_t g = 0; g < count; g++) {
            squares[g] = (uint16_t)(next_random() % 3 ? next_random() % 4609 : count % 2 * 4608);
            scale[g] = (uint8_t)(next_random() % spread);
        }
        assert_int_equal(ops->mx_sums(squares, scale, count, sums[1]),
                         scalar->mx_sums(squares, scale, count, sums[0]));
        assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
    }
}

static void ranges(void **state)
{
    const struct k3_quant_ops *ops = use_form(state);
    for (size_t count = 1; count <= 300; count++) {
        uint8_t *bytes = area + AREA_BYTES - count, found[2], right[2];
        for (int i = 0; i < 20; i++) {
            for (size_t k = 0; k < count; k++)
                bytes[k] = (uint8_t)(100 + next_random() % 32);
            bytes[next_random() % count] = (uint8_t)next_random();
            ops->range(bytes, count, &found[0], &found[1]);
            scalar->range(bytes, count, &right[0], &right[1]);
            assert_memory_equal(found, right, 2);
        }
    }
}

/* ---- whole casts ---- */

#define ROWS 130u  /* a block and two rows */
#define COLS 4384u /* more than one piece of a row; the last block is short, divides by 32 */

static uint8_t x_rows[ROWS * COLS * 2], x_scale[ROWS * COLS / 32];
static uint8_t cast_out[2][ROWS * COLS * 2], cast_scale[2][ROWS * COLS / 4];

/* Cast by the form in use, or by the scalar one. */
static void cast_by(int i, bool is_mx, const struct k3_quant *quant, uint64_t cols,
                    struct k3_qstats *stats)
{
    struct k3_err err;
    struct k3_qrows rows = {.x = x_rows,
                            .x_scale = x_scale,
                            .row_count = ROWS,
                            .weight = cast_out[i],
                            .scale = cast_scale[i]};
    k3_err_init(&err);
    k3_qstats_init(stats);
    memset(cast_out[i], CANARY, sizeof cast_out[i]);
    memset(cast_scale[i], CANARY, sizeof cast_scale[i]);
    struct k3_quant one = *quant;
    one.cols = cols;
    int rc = is_mx ? k3_mx_rows(&one, &rows, stats, &err) : k3_quant_rows(&one, &rows, stats, &err);
    assert_int_equal(rc, 0);
}

static void check_cast(enum k3_quant_form form, bool is_mx, const struct k3_quant *quant,
                       uint64_t cols)
{
    struct k3_qstats stats[2];
    k3_quant_force(K3_QUANT_SCALAR);
    cast_by(0, is_mx, quant, cols, &stats[0]);
    k3_quant_force(form);
    cast_by(1, is_mx, quant, cols, &stats[1]);
    assert_memory_equal(cast_out[0], cast_out[1], sizeof cast_out[0]);
    assert_memory_equal(cast_scale[0], cast_scale[1], sizeof cast_scale[0]);
    assert_memory_equal(&stats[0], &stats[1], sizeof stats[0]);
    assert_int_equal(stats[0].value_count, ROWS * cols);
}

static void rows_of_bf16(void **state)
{
    (void)use_form(state);
    enum k3_quant_form form = k3_quant_form();
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++)
        k3_bf16_put(x_rows, i, i / 64 % 9 ? random_value() : 0); /* groups of zeros too */
    for (int fmt = K3_Q_MXFP4; fmt < K3_QFMT_COUNT; fmt++) {
        for (int more = 0; more < 4; more++) {
            enum k3_qfmt to = (enum k3_qfmt)fmt;
            struct k3_quant quant = {.name = "w", .params = k3_qparams_default(to)};
            quant.params.conv = more & 1 ? K3_QCONV_MODELOPT : K3_QCONV_COMPRESSED_TENSORS;
            quant.params.pow2_scales = more == 2;
            quant.params.rule = more == 3 ? K3_SCALE_MSE : K3_SCALE_RCEIL;
            if (k3_quant_needs_amax(to))
                quant.global = k3_quant_global(&quant.params, 0x4780);
            bool has_edge = to == K3_Q_FP8_BLOCK || to == K3_Q_FP8_CHANNEL;
            check_cast(form, false, &quant, has_edge ? 4226 : to == K3_Q_INT4_G128 ? 4352 : COLS);
        }
    }
}

static void rows_of_mxfp4(void **state)
{
    static const enum k3_qfmt to[] = {K3_Q_BF16, K3_Q_MXFP8, K3_Q_NVFP4, K3_Q_FP8_BLOCK,
                                      K3_Q_INT8_G32};
    (void)use_form(state);
    enum k3_quant_form form = k3_quant_form();
    for (size_t i = 0; i < (size_t)ROWS * COLS / 2; i++)
        x_rows[i] = (uint8_t)next_random();
    for (int oow = K3_OOW_REQUANT; oow <= K3_OOW_SNAP; oow++) {
        for (size_t f = 0; f < sizeof to / sizeof to[0]; f++) {
            struct k3_mx_window window = {.min = 100, .max = 118, .is_of_nonzero = false};
            struct k3_quant quant = {.name = "w", .params = k3_qparams_default(to[f])};
            for (size_t i = 0; i < sizeof x_scale; i++)
                x_scale[i] = (uint8_t)(to[f] == K3_Q_BF16 ? i % 255 : 100 + next_random() % 19);
            quant.params.oow = (enum k3_oow)oow;
            if (to[f] == K3_Q_NVFP4)
                quant.global = k3_mx_global(&quant.params, &window);
            check_cast(form, true, &quant, COLS);
        }
    }
}

#define OF(test, form)                                                                             \
    {                                                                                              \
#test " " #form, test, NULL, unforce, (void *)(uintptr_t)&forms[form]                      \
    }
#define ALL_OF(form)                                                                               \
    OF(all_values, form), OF(random_runs, form), OF(largest, form), OF(scales_of_groups, form),    \
        OF(groups_of_codes, form), OF(ranges, form), OF(sums_by_scale, form),                      \
        OF(rows_of_bf16, form), OF(rows_of_mxfp4, form)

int main(void)
{
    static const enum k3_quant_form forms[] = {K3_QUANT_AVX512, K3_QUANT_AVX2};
    const struct CMUnitTest tests[] = {
        ALL_OF(K3_QUANT_AVX512),
        ALL_OF(K3_QUANT_AVX2),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
