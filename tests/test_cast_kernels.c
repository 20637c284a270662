/* Purpose: kernels of casts, run on the CPU, give the bytes and the statistics of k3_quant_rows and
 * k3_mx_rows, and refuse what these refuse.
 * Owns: buffers of one small matrix, twice.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: what is wanted comes from formats/ alone; outputs begin as poison, with a guard
 * behind them; sums are compared by their bits. */
#include "cast_call.h"
#include "cast_mxfp4.h"
#include "gpu_on_cpu.h"
#include "num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VALUES_MAX   ((size_t)1 << 18)
#define GUARD        64u
#define POISON       0xa5
#define FINITE_COUNT (2u * K3_BF16_INF) /* BF16 codes */
#define MX_SCALES    255u

/* One side's output. */
struct side {
    _Alignas(K3_CAST_ALIGN) uint8_t weight[2 * VALUES_MAX + GUARD];
    _Alignas(K3_CAST_ALIGN) uint8_t scale[VALUES_MAX / 8 + GUARD];
    struct k3_qstats stats;
};

static _Alignas(K3_CAST_ALIGN) uint16_t values[VALUES_MAX];
static _Alignas(K3_CAST_ALIGN) uint8_t codes[VALUES_MAX / 2], code_scales[VALUES_MAX / 32];
static struct side wanted, found;
static struct k3_err err;
static uint64_t seed = 88172645463325252u;

static uint32_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

/* ---- comparing ---- */

/* A cast of one matrix, as one call of rows from `row_first` on. */
struct job {
    enum k3_qfmt from;
    struct k3_quant quant;
    uint64_t row_count, row_first;
};

static struct k3_qrows rows_of(const struct job *job, struct side *side)
{
    bool is_mx = job->from == K3_Q_MXFP4;
    memset(side->weight, POISON, sizeof side->weight);
    memset(side->scale, POISON, sizeof side->scale);
    k3_qstats_init(&side->stats);
    return (struct k3_qrows){.x = is_mx ? (void *)codes : (void *)values,
                             .x_scale = is_mx ? code_scales : NULL,
                             .row_first = job->row_first,
                             .row_count = job->row_count,
                             .weight = side->weight,
                             .scale = side->scale};
}

static int on_cpu(const struct job *job)
{
    struct k3_qrows rows = rows_of(job, &wanted);
    k3_err_init(&err);
    return job->from == K3_Q_MXFP4 ? k3_mx_rows(&job->quant, &rows, &wanted.stats, &err)
                                   : k3_quant_rows(&job->quant, &rows, &wanted.stats, &err);
}

/* Where it is not 0: kernels that go on until all is done run with so few groups of threads. */
static unsigned few_groups;

/* False: refused. */
static bool by_kernel(const struct job *job)
{
    struct k3_qrows rows = rows_of(job, &found);
    struct k3_cast_result result = {.refused = 0};
    struct k3_cast_call call;
    k3_cast_call_make(job->from, &job->quant, &rows, (uintptr_t)&result, &call);
    gpu_kernel *kernel = gpu_on_cpu_find(call.kernel);
    assert_non_null(kernel);
    assert_false(k3_cast_call_take(job->from, &job->quant, &rows, &result, &found.stats));
    unsigned grid = few_groups && few_groups < call.grid ? few_groups : call.grid;
    gpu_on_cpu_run(kernel, grid, call.block, &call.ask);
    assert_int_equal(result.done_groups, grid);
    result.done_groups = call.grid;
    return k3_cast_call_take(job->from, &job->quant, &rows, &result, &found.stats);
}

static void say(const struct job *job, const char *what, size_t at)
{
    const struct k3_qparams *p = &job->quant.params;
    fail_msg("%s of %s [%u, %u], rule %s, convention %d, oow %d, pow2 %d, global %a: %s %zu",
             k3_qfmt_name(p->to), k3_qfmt_name(job->from), (unsigned)job->row_count,
             (unsigned)job->quant.cols, k3_scale_rule_name(p->rule), (int)p->conv, (int)p->oow,
             (int)p->pow2_scales, (double)job->quant.global, what, at);
}

static void compare_bytes(const struct job *job, const char *what, const uint8_t *a,
                          const uint8_t *b, size_t bytes)
{
    for (size_t i = 0; memcmp(a, b, bytes) != 0 && i < bytes; i++)
        if (a[i] != b[i])
            say(job, what, i);
}

static void compare(const struct job *job)
{
    const struct k3_qstats *a = &wanted.stats, *b = &found.stats;
    compare_bytes(job, "scale byte", wanted.scale, found.scale, sizeof found.scale);
    compare_bytes(job, "weight byte", wanted.weight, found.weight, sizeof found.weight);
    for (size_t i = 0; i < K3_QSUM_LIMB_COUNT; i++) {
        if (a->x2.limb[i] != b->x2.limb[i])
            say(job, "limb of x2", i);
        if (a->err2.limb[i] != b->err2.limb[i])
            say(job, "limb of err2", i);
    }
    if (a->max_abs_error < b->max_abs_error || a->max_abs_error > b->max_abs_error)
        say(job, "largest error", 0);
    assert_int_equal(a->value_count, b->value_count);
    if (a->group_count != b->group_count)
        say(job, "groups", b->group_count);
    if (a->saturated_groups != b->saturated_groups)
        say(job, "saturated groups", b->saturated_groups);
    if (a->zero_groups != b->zero_groups)
        say(job, "zero groups", b->zero_groups);
    if (a->breach_groups != b->breach_groups)
        say(job, "breaches", b->breach_groups);
}

/* Both do it and agree, or both refuse; kernels with pairs of BF16, too, where these count. */
static void check(const struct job *job)
{
    const enum k3_qfmt to = job->quant.params.to;
    bool is_pairs = job->from == K3_Q_BF16 && (to == K3_Q_MXFP4 || to == K3_Q_NVFP4);
    int rc = on_cpu(job);
    for (int turn = 0; turn <= is_pairs; turn++) {
        gpu_on_cpu_has_pairs = turn;
        if (by_kernel(job) != (rc == 0))
            say(job, rc ? "refused by the CPU alone" : "refused by the kernel alone", (size_t)turn);
        if (rc == 0)
            compare(job);
    }
    gpu_on_cpu_has_pairs = false;
}

/* ---- values ---- */

static uint16_t finite_code(uint32_t i)
{
    return (uint16_t)(i < K3_BF16_INF ? i : i - K3_BF16_INF + 0x8000u);
}

/* About normal, in 2^-12 * 2^shift. */
static uint16_t weight_like(int shift)
{
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (float)(next_random() >> 8) * 0x1p-24f - 0.5f;
    return k3_bf16_code(sum * k3_f32_pow2(shift));
}

enum fill {
    FILL_WEIGHTS, /* as a layer has them */
    FILL_ROWS,    /* each row in a binade of its own, of all that there are */
    FILL_ANY,     /* any finite codes */
    FILL_TIES,    /* few bits, so that quotients are often half-way between codes */
    FILL_ZEROS,   /* almost nothing but zeros of both signs */
    FILL_COUNT
};

static void fill(enum fill how, uint64_t rows, uint64_t cols)
{
    assert_true(rows * cols <= VALUES_MAX);
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t col = 0; col < cols; col++) {
            uint16_t *to = &values[row * cols + col];
            uint32_t any = next_random();
            int shift = (int)(row * 7 % 250) - 125;
            switch (how) {
            case FILL_WEIGHTS:
                *to = weight_like(any % 512 == 0 ? -2 : -6);
                break;
            case FILL_ROWS:
                *to = weight_like(shift);
                break;
            case FILL_ANY:
                *to = finite_code(any % FINITE_COUNT);
                break;
            case FILL_TIES:
                *to = k3_bf16_code((float)((int)(any % 97) - 48) * 0.125f *
                                   (any >> 24 & 1 ? 1.0f : 0x1p-6f));
                break;
            default:
                *to = (uint16_t)(any % 300 ? any & 0x8000u : any % FINITE_COUNT % K3_BF16_INF);
            }
        }
}

/* ---- out of BF16 ---- */

static uint16_t amax_of(uint64_t count)
{
    uint16_t amax = 0;
    for (uint64_t i = 0; i < count; i++)
        amax = (values[i] & 0x7fffu) > amax ? values[i] & 0x7fffu : amax;
    return amax;
}

/* All variants of one format over the values there are. */
static void all_variants(enum k3_qfmt to, uint64_t row_count, uint64_t cols)
{
    static const struct {
        enum k3_qfmt to;
        unsigned rules, convs, pow2s;
    } variants[] = {{K3_Q_MXFP4, K3_SCALE_RULE_COUNT, 1, 1},
                    {K3_Q_MXFP8, K3_SCALE_RULE_COUNT, 1, 1},
                    {K3_Q_NVFP4, 1, 2, 1},
                    {K3_Q_FP8_TENSOR, 1, 2, 2},
                    {K3_Q_FP8_CHANNEL, 1, 2, 2},
                    {K3_Q_FP8_BLOCK, 1, 2, 2},
                    {K3_Q_INT4_G32, 1, 1, 1},
                    {K3_Q_INT4_G128, 1, 1, 1},
                    {K3_Q_INT8_G32, 1, 1, 1}};
    size_t v = 0;
    while (variants[v].to != to)
        v++;
    for (unsigned n = 0; n < variants[v].rules * variants[v].convs * variants[v].pow2s; n++) {
        struct job job = {.from = K3_Q_BF16,
                          .row_count = row_count,
                          .quant = {.name = "w", .params = k3_qparams_default(to), .cols = cols}};
        if (variants[v].rules > 1)
            job.quant.params.rule = (enum k3_scale_rule)n;
        job.quant.params.conv = n % variants[v].convs ? K3_QCONV_MODELOPT
                                                      : K3_QCONV_COMPRESSED_TENSORS;
        job.quant.params.pow2_scales = n / variants[v].convs % variants[v].pow2s;
        if (k3_quant_needs_amax(to))
            job.quant.global = k3_quant_global(&job.quant.params, amax_of(row_count * cols));
        check(&job);
    }
}

static const struct {
    enum k3_qfmt to;
    uint64_t cols_unit;
} formats[] = {{K3_Q_MXFP4, 32},     {K3_Q_MXFP8, 32},      {K3_Q_NVFP4, 16},
               {K3_Q_FP8_TENSOR, 1}, {K3_Q_FP8_CHANNEL, 1}, {K3_Q_FP8_BLOCK, 1},
               {K3_Q_INT4_G32, 32},  {K3_Q_INT4_G128, 128}, {K3_Q_INT8_G32, 32}};
#define FORMAT_COUNT (sizeof formats / sizeof *formats)

static void all_fills(void **state)
{
    (void)state;
    for (size_t f = 0; f < FORMAT_COUNT; f++)
        for (int how = 0; how < FILL_COUNT; how++) {
            fill((enum fill)how, 130, 384);
            all_variants(formats[f].to, 130, 384);
        }
}

/* Rows and columns that end in the middle of everything. */
static void all_shapes(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1},    {1, 2},   {3, 3},   {2, 8},   {5, 20},
                                         {7, 17},   {129, 9}, {1, 33},  {64, 40}, {65, 136},
                                         {300, 11}, {1, 300}, {257, 3}, {31, 257}};
    (void)state;
    for (size_t f = 0; f < FORMAT_COUNT; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            uint64_t cols = (shapes[i][1] + formats[f].cols_unit - 1) / formats[f].cols_unit *
                            formats[f].cols_unit;
            uint64_t rows = shapes[i][0] * cols > 40000 ? 40000 / cols : shapes[i][0];
            fill(i % 3 ? FILL_WEIGHTS : FILL_ANY, rows, cols);
            all_variants(formats[f].to, rows, cols);
        }
}

/* Rows so long that their scales are written 16 bytes at a time, and some so short; with rows of
 * warps and of groups of threads missing at the end. */
static void long_rows(void **state)
{
    (void)state;
    for (size_t f = 0; f < FORMAT_COUNT; f++) {
        fill(FILL_WEIGHTS, 83, 2048);
        all_variants(formats[f].to, 83, 2048);
        fill(FILL_WEIGHTS, 64, 1664);
        all_variants(formats[f].to, 64, 1664);
    }
}

/* Rows of which a group of threads holds two or four, some missing in the last, of all kinds of
 * values; and one that is a batch too long for that. */
static void held_rows(void **state)
{
    static const uint64_t shapes[][2] = {{5, 7168}, {4, 6912}, {7, 3584}, {9, 1024}, {3, 7424}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < FILL_COUNT; how++) {
            fill((enum fill)how, shapes[i][0], shapes[i][1]);
            all_variants(K3_Q_FP8_CHANNEL, shapes[i][0], shapes[i][1]);
        }
}

/* Blocks whose largest values fall from left to right, so that what one leaves behind would be seen
 * in the next. */
static void falling_blocks(void **state)
{
    static const uint64_t cols[] = {1024, 1000};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        for (uint64_t k = 0; k < 130 * cols[i]; k++)
            values[k] = weight_like(-4 - 2 * (int)(k % cols[i] / 128));
        all_variants(K3_Q_FP8_BLOCK, 130, cols[i]);
    }
}

/* Each finite code in a group with its neighbours, so that amax takes all values. */
static void all_codes(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < FINITE_COUNT; i++)
        values[i] = finite_code(i);
    for (size_t f = 0; f < FORMAT_COUNT; f++)
        all_variants(formats[f].to, FINITE_COUNT / 128 / 2, 256); /* 255 * 256 */
    for (uint32_t i = 0; i < FINITE_COUNT; i++)
        values[i] = finite_code((uint32_t)((uint64_t)i * 40503u % FINITE_COUNT));
    for (size_t f = 0; f < FORMAT_COUNT; f++)
        all_variants(formats[f].to, FINITE_COUNT / 256, 256);
}

/* A global that does not fit its matrix: values are clipped far away from what they become. */
static void wrong_globals(void **state)
{
    static const float globals[] = {1,         0x1p-100f, 0x1p100f,  3e-39f,
                                    0x1p-125f, 3.7e-12f,  1234.567f, 3e38f};
    static const enum k3_qfmt to[] = {K3_Q_NVFP4, K3_Q_FP8_TENSOR};
    (void)state;
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        for (int n = 0; n < 8; n++) {
            struct job job = {.from = K3_Q_BF16, .row_count = 40, .quant = {.name = "w"}};
            job.quant.params = k3_qparams_default(to[n % 2]);
            job.quant.params.conv = n & 2 ? K3_QCONV_MODELOPT : K3_QCONV_COMPRESSED_TENSORS;
            job.quant.cols = 160;
            job.quant.global = globals[i];
            fill(n & 4 ? FILL_ROWS : FILL_WEIGHTS, 40, 160);
            check(&job);
        }
}

/* One value that is not finite, anywhere, is seen. */
static void not_finite(void **state)
{
    static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0xffff};
    (void)state;
    for (size_t f = 0; f < FORMAT_COUNT; f++)
        for (size_t i = 0; i < 12; i++) {
            struct job job = {.from = K3_Q_BF16,
                              .row_count = 131,
                              .quant = {.name = "w",
                                        .params = k3_qparams_default(formats[f].to),
                                        .cols = 256,
                                        .global = 1}};
            fill(FILL_WEIGHTS, 131, 256);
            values[i == 0 ? 0 : i == 1 ? 131 * 256 - 1 : next_random() % (131 * 256)] = bad[i % 4];
            assert_int_equal(on_cpu(&job), K3_EFORMAT);
            assert_false(by_kernel(&job));
        }
}

/* ---- out of MXFP4 ---- */

static const enum k3_qfmt mx_to[] = {K3_Q_BF16, K3_Q_MXFP8, K3_Q_NVFP4, K3_Q_FP8_BLOCK,
                                     K3_Q_INT8_G32};

/* Scales within `spread` below `top`; every tenth group is zeros of any scale. */
static void fill_mx(uint64_t rows, uint64_t cols, unsigned top, unsigned spread)
{
    for (uint64_t g = 0; g < rows * cols / K3_MX_GROUP; g++) {
        bool is_zero = next_random() % 10 == 0;
        code_scales[g] = (uint8_t)(is_zero ? next_random() % MX_SCALES
                                           : top - next_random() % (spread + 1));
        for (size_t i = 0; i < K3_MX_GROUP_BYTES; i++)
            codes[g * K3_MX_GROUP_BYTES + i] = (uint8_t)(next_random() & (is_zero ? 0x88u : 0xffu));
    }
}

static void mx_all(uint64_t rows, uint64_t cols, bool is_fail)
{
    for (size_t i = 0; i < sizeof mx_to / sizeof *mx_to; i++)
        for (int n = 0; n < 6; n++) {
            struct job job = {
                .from = K3_Q_MXFP4,
                .row_count = rows,
                .quant = {.name = "w", .params = k3_qparams_default(mx_to[i]), .cols = cols}};
            struct k3_qrows all = rows_of(&job, &wanted);
            struct k3_mx_window window;
            job.quant.params.oow = (enum k3_oow)(n % 3);
            job.quant.params.conv = n / 3 ? K3_QCONV_MODELOPT : K3_QCONV_COMPRESSED_TENSORS;
            if ((n / 3 && mx_to[i] != K3_Q_NVFP4) ||
                (job.quant.params.oow == K3_OOW_FAIL) != is_fail)
                continue;
            k3_mx_window_init(&window, true);
            assert_int_equal(k3_mx_scan(&job.quant, &all, &window, &err), 0);
            if (mx_to[i] == K3_Q_NVFP4)
                job.quant.global = k3_mx_global(&job.quant.params, &window);
            check(&job);
        }
}

static void mx_windows(void **state)
{
    static const unsigned scales[][2] = {{120, 3},  {120, 14},  {121, 15}, {127, 18}, {130, 17},
                                         {140, 40}, {254, 3},   {254, 20}, {252, 6},  {9, 9},
                                         {20, 20},  {254, 254}, {0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        fill_mx(130, 192, scales[i][0], scales[i][1]);
        mx_all(130, 192, true);
        mx_all(130, 192, false);
    }
}

static void mx_shapes(void **state)
{
    static const uint64_t shapes[][2] = {{1, 32},   {3, 96},    {129, 160},
                                         {300, 32}, {64, 1024}, {2, 7168}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        fill_mx(shapes[i][0], shapes[i][1], 119, 6);
        mx_all(shapes[i][0], shapes[i][1], true);
        fill_mx(shapes[i][0], shapes[i][1], 119, 30);
        mx_all(shapes[i][0], shapes[i][1], false);
    }
}

/* A group of threads that takes several pieces, as in large matrices; scales that fall. */
static void mx_several_pieces(void **state)
{
    (void)state;
    for (few_groups = 1; few_groups < 4; few_groups += 2) {
        fill_mx(260, 992, 119, 6);
        for (uint64_t g = 0; g < 260 * 31; g++)
            code_scales[g] = (uint8_t)(code_scales[g] > 30 ? code_scales[g] - g % 31 / 4 : 30);
        mx_all(260, 992, true);
        mx_all(260, 992, false);
    }
    few_groups = 0;
}

/* Every code at every scale. */
static void mx_all_codes(void **state)
{
    (void)state;
    for (size_t row = 0; row < MX_SCALES; row++) {
        memset(code_scales + row * 4, (int)row, 4);
        for (size_t i = 0; i < 64; i++)
            codes[row * 64 + i] = (uint8_t)(i < 8 ? 2 * i | (2 * i + 1) << 4 : next_random());
    }
    mx_all(MX_SCALES, 128, true);
    mx_all(MX_SCALES, 128, false);
}

static void mx_nan_scale(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mx_to / sizeof *mx_to; i++)
        for (int n = 0; n < 3; n++) {
            struct job job = {
                .from = K3_Q_MXFP4,
                .row_count = 70,
                .quant = {
                    .name = "w", .params = k3_qparams_default(mx_to[i]), .cols = 96, .global = 1}};
            job.quant.params.oow = K3_OOW_REQUANT;
            fill_mx(70, 96, 120, 2);
            code_scales[n == 0 ? 0 : n == 1 ? 70 * 3 - 1 : 100] = K3_E8M0_NAN;
            assert_int_equal(on_cpu(&job), K3_EFORMAT);
            assert_false(by_kernel(&job));
        }
}

/* ---- what kernels count on ---- */

/* As `quotient` of cast.cu has it. */
static float quick_quotient(float x, float scale)
{
    float nearest = 1 / scale, inverse = nearest;
    if (fmaf(nearest, scale, -1) > 0)
        inverse = k3_f32_of(k3_f32_bits(nearest) - 1);
    return fmaf(x, inverse, x * (fmaf(inverse, -scale, 1) * nearest));
}

/* x over the scales that come nearest to giving m / 2^24, m an odd number of 25 bits. */
static uint64_t look_near(uint64_t m, uint64_t x)
{
    uint64_t tried = 0;
    for (unsigned shift = 40; shift < 43; shift++) {
        uint64_t scale = (x << shift) / m;
        for (uint64_t s = scale; s <= scale + 1; s++) {
            if (s < 1u << 23 || s >= 1u << 24)
                continue;
            float a = (float)x, b = (float)s;
            if (k3_f32_bits(a / b) != k3_f32_bits(quick_quotient(a, b)))
                fail_msg("%a over %a", (double)a, (double)b);
            tried++;
        }
    }
    return tried;
}

/* The quick quotient is the rounded one but for a relative error below 2^-44 before it is rounded
 * (the rest of its inverse is good to 2^-22, and below 2^-22 of it).  Codes depend on the last bit
 * only beside the numbers of at most 9 bits where they change: so it can be wrong only where the
 * true quotient is next to one of the two half-way numbers around these.  For each x one or two
 * scales come so near: all of them are tried. */
static void quick_quotients(void **state)
{
    uint64_t tried = 0;
    (void)state;
    for (uint64_t x = 128; x < 256; x++) {
        for (uint64_t bits = 256; bits < 512; bits++) {
            tried += look_near((bits << 16) + 1, x);
            tried += look_near((bits << 16) - 1, x);
        }
        /* A sixth is used as it is. */
        assert_true((float)x / 6 == quick_quotient((float)x, 6));
    }
    assert_true(tried > 128 * 256 * 2);
}

/* All between a value and its code or its error has 8 bits: pairs of BF16 give what FP32 does. */
static void pairs(void **state)
{
    (void)state;
    for (unsigned byte = 0; byte <= MX_SCALES; byte++)
        assert_int_equal(gpu_on_cpu_pairs_differ(byte), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fills),
        cmocka_unit_test(all_shapes),
        cmocka_unit_test(all_codes),
        cmocka_unit_test(wrong_globals),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(mx_windows),
        cmocka_unit_test(mx_shapes),
        cmocka_unit_test(mx_all_codes),
        cmocka_unit_test(mx_several_pieces),
        cmocka_unit_test(falling_blocks),
        cmocka_unit_test(mx_nan_scale),
        cmocka_unit_test(quick_quotients),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(held_rows),
        cmocka_unit_test(pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
