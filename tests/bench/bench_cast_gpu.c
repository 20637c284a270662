/* Purpose: casts on a GPU: are all equal to the CPU's on real hardware, and how fast is each
 * kernel. Owns: one GPU's context, a stream, buffers on both sides. Threads: one. Use:
 * bench_cast_gpu [cuda|hip [all|check|rates [NAME]...]]; check leaves the rates out, rates the
 * comparison; NAME is the beginning of a cast's name, "bf16 -> nvfp4". Errors: printed, exit 1, a
 * difference too; exit 0 with a line where there is no GPU. Invariants: rates are bytes read and
 * written, each counted once, over wall time of launches that follow each other; data lie in the
 * GPU's memory before. */
#include "cast_call.h"
#include "cast_mxfp4.h"
#include "gpu_kernels.h"
#include "num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLS 7168u /* of K3's experts */
/* 9344 stripes: 17 GB of BF16, or 4.3 of MXFP4; so much that the last groups of threads, which
 * leave some processors idle, do not count: with 660 at once, a quarter of this took 8 turns for
 * the work of 7.1, here it is 29 for 28.3.  36 GB of the GPU's memory. */
#define RATE_ROWS      1196032u
#define SMALL_ROWS     146u /* 2 MiB: what a lane of a conversion casts at once */
#define PLAIN_ROWS     300u
#define CHECK_ROWS     2051u
#define CHECK_COLS     7200u /* the last span of a row is short */
#define LAUNCH_COUNT   4
#define SMALL_LAUNCHES 200
#define ROUND_COUNT    5
#define PATTERN_BYTES  ((size_t)64 << 20)
#define IN_BYTES       ((size_t)RATE_ROWS * COLS * 2)
#define OUT_BYTES      ((size_t)RATE_ROWS * COLS * 2)
#define SCALE_BYTES    ((size_t)RATE_ROWS * COLS / 16)
#define PEAK           4800.0 /* GB/s of an H200's memory, by its data sheet */

struct bench {
    struct k3_gpu gpu;
    struct k3_gpu_code code;
    struct k3_gpu_stream *stream;
    uint8_t *in, *in_scale, *out, *out_scale; /* on the device */
    struct k3_cast_result *result;            /* there too */
    uint8_t *host;                            /* pattern, then what came back */
    double copy_rate;
    unsigned different_count;
    bool is_check; /* compare only, what is small */
    bool is_rates; /* compare nothing */
    char **names;  /* beginnings of the names that are wanted, up to a NULL */
    struct k3_err err;
};

/* One cast that is looked at. */
struct job {
    const char *name;
    enum k3_qfmt from, to;
    enum k3_scale_rule rule;
    enum k3_qconv conv;
    enum k3_oow oow;
    bool is_pow2;
};

#define CT    K3_QCONV_COMPRESSED_TENSORS
#define MO    K3_QCONV_MODELOPT
#define EVEN  K3_SCALE_EVEN
#define RCEIL K3_SCALE_RCEIL

/* Those that are timed come first. */
static const struct job jobs[] = {
    {"bf16 -> mxfp4", K3_Q_BF16, K3_Q_MXFP4, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> mxfp8", K3_Q_BF16, K3_Q_MXFP8, RCEIL, CT, K3_OOW_FAIL, false},
    {"bf16 -> nvfp4", K3_Q_BF16, K3_Q_NVFP4, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> nvfp4, modelopt", K3_Q_BF16, K3_Q_NVFP4, EVEN, MO, K3_OOW_FAIL, false},
    {"bf16 -> fp8-tensor", K3_Q_BF16, K3_Q_FP8_TENSOR, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> fp8-channel", K3_Q_BF16, K3_Q_FP8_CHANNEL, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> fp8-block", K3_Q_BF16, K3_Q_FP8_BLOCK, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> fp8-block, modelopt", K3_Q_BF16, K3_Q_FP8_BLOCK, EVEN, MO, K3_OOW_FAIL, false},
    {"bf16 -> int4-g32", K3_Q_BF16, K3_Q_INT4_G32, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> int4-g128", K3_Q_BF16, K3_Q_INT4_G128, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> int8-g32", K3_Q_BF16, K3_Q_INT8_G32, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> mxfp4, mse", K3_Q_BF16, K3_Q_MXFP4, K3_SCALE_MSE, CT, K3_OOW_FAIL, false},
    {"mxfp4 -> bf16", K3_Q_MXFP4, K3_Q_BF16, EVEN, CT, K3_OOW_FAIL, false},
    {"mxfp4 -> mxfp8", K3_Q_MXFP4, K3_Q_MXFP8, EVEN, CT, K3_OOW_FAIL, false},
    {"mxfp4 -> nvfp4", K3_Q_MXFP4, K3_Q_NVFP4, EVEN, CT, K3_OOW_FAIL, false},
    {"mxfp4 -> fp8-block", K3_Q_MXFP4, K3_Q_FP8_BLOCK, EVEN, CT, K3_OOW_FAIL, false},
    {"mxfp4 -> int8-g32", K3_Q_MXFP4, K3_Q_INT8_G32, EVEN, CT, K3_OOW_FAIL, false},
#define TIMED_COUNT 17
    {"bf16 -> mxfp4, floor", K3_Q_BF16, K3_Q_MXFP4, K3_SCALE_FLOOR, CT, K3_OOW_FAIL, false},
    {"bf16 -> mxfp4, rceil", K3_Q_BF16, K3_Q_MXFP4, RCEIL, CT, K3_OOW_FAIL, false},
    {"bf16 -> mxfp4, ceil", K3_Q_BF16, K3_Q_MXFP4, K3_SCALE_CEIL, CT, K3_OOW_FAIL, false},
    {"bf16 -> mxfp8, floor", K3_Q_BF16, K3_Q_MXFP8, K3_SCALE_FLOOR, CT, K3_OOW_FAIL, false},
    {"bf16 -> mxfp8, even", K3_Q_BF16, K3_Q_MXFP8, EVEN, CT, K3_OOW_FAIL, false},
    {"bf16 -> mxfp8, mse", K3_Q_BF16, K3_Q_MXFP8, K3_SCALE_MSE, CT, K3_OOW_FAIL, false},
    {"bf16 -> fp8-tensor, modelopt", K3_Q_BF16, K3_Q_FP8_TENSOR, EVEN, MO, K3_OOW_FAIL, false},
    {"bf16 -> fp8-channel, modelopt", K3_Q_BF16, K3_Q_FP8_CHANNEL, EVEN, MO, K3_OOW_FAIL, false},
    {"bf16 -> fp8-block, 2^n", K3_Q_BF16, K3_Q_FP8_BLOCK, EVEN, CT, K3_OOW_FAIL, true},
    {"mxfp4 -> bf16, requant", K3_Q_MXFP4, K3_Q_BF16, EVEN, CT, K3_OOW_REQUANT, false},
    {"mxfp4 -> nvfp4, requant", K3_Q_MXFP4, K3_Q_NVFP4, EVEN, CT, K3_OOW_REQUANT, false},
    {"mxfp4 -> nvfp4, snap", K3_Q_MXFP4, K3_Q_NVFP4, EVEN, MO, K3_OOW_SNAP, false},
    {"mxfp4 -> fp8-block, requant", K3_Q_MXFP4, K3_Q_FP8_BLOCK, EVEN, CT, K3_OOW_REQUANT, false},
    {"mxfp4 -> fp8-block, snap", K3_Q_MXFP4, K3_Q_FP8_BLOCK, EVEN, CT, K3_OOW_SNAP, false},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static uint64_t seed = 88172645463325252u;

static uint32_t next_random(void)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

/* ---- the device ---- */

static int judge(struct bench *b, int code, const char *what)
{
    return k3_gpu_judge(&b->gpu, code, what, &b->err);
}

static int settle(struct bench *b)
{
    return judge(b, b->gpu.api->stream_synchronize(b->stream), "synchronize");
}

static int upload(struct bench *b, void *to, const void *from, size_t bytes)
{
    int rc = judge(b, b->gpu.api->copy_to_device(to, from, bytes, b->stream), "copy to device");
    return rc ? rc : settle(b);
}

static int download(struct bench *b, void *to, const void *from, size_t bytes)
{
    int rc = judge(b, b->gpu.api->copy_to_host(to, from, bytes, b->stream), "copy to host");
    return rc ? rc : settle(b);
}

static int device_copy(struct bench *b, void *to, const void *from, size_t bytes)
{
    return judge(b, b->gpu.api->copy_on_device(to, from, bytes, b->stream), "copy on device");
}

/* The first `bytes` of an area, again and again, to its end. */
static int repeat(struct bench *b, uint8_t *area, size_t bytes, size_t total)
{
    int rc = 0;
    for (size_t at = bytes; at < total && !rc; at += bytes)
        rc = device_copy(b, area + at, area, total - at < bytes ? total - at : bytes);
    return rc ? rc : settle(b);
}

static int alloc(struct bench *b, void *out, size_t bytes)
{
    void *data = NULL;
    int rc = judge(b, b->gpu.api->mem_alloc(&data, bytes), "memory");
    memcpy(out, &data, sizeof data);
    return rc;
}

static int launch(struct bench *b, const struct k3_cast_call *call)
{
    size_t n = 0;
    struct k3_cast_ask ask = call->ask;
    void *arguments[] = {&ask};
    while (strcmp(k3_cast_kernels[n], call->kernel) != 0)
        n++;
    return judge(b,
                 b->gpu.api->launch(b->code.functions[n], call->grid, 1, 1, call->block, 1, 1, 0,
                                    b->stream, arguments, NULL),
                 "launch");
}

static int clear_result(struct bench *b)
{
    static const struct k3_cast_result zero;
    return upload(b, b->result, &zero, sizeof zero);
}

/* ---- equal to the CPU? ---- */

static uint16_t weight_like(int shift)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(next_random() >> 8) * 0x1p-24f - 0.5f;
    return k3_bf16_code(sum * k3_f32_pow2(shift));
}

/* Weights, with groups of zeros and, if wanted, rows of all binades among them: beside these what
 * has one scale for the whole matrix sees all others as nothing, and takes the slow way. */
static void fill_values(uint16_t *x, uint64_t rows, uint64_t cols, bool has_odd_rows)
{
    for (uint64_t i = 0; i < rows * cols; i++) {
        uint64_t row = i / cols;
        bool is_odd = has_odd_rows && row % 8 == 7;
        x[i] = weight_like(is_odd ? (int)(row % 251) - 125 : -5);
        if (i / 32 % 61 == 0)
            x[i] &= 0x8000;
    }
}

static void fill_codes(uint8_t *codes, uint8_t *scales, uint64_t group_count, unsigned spread)
{
    for (uint64_t i = 0; i < group_count * K3_MX_GROUP_BYTES; i++)
        codes[i] = (uint8_t)next_random();
    for (uint64_t g = 0; g < group_count; g++)
        scales[g] = (uint8_t)(123 - next_random() % (spread + 1));
}

struct sides {
    uint8_t *x, *x_scale, *weight, *scale; /* the CPU's */
    struct k3_qstats wanted, found;
};

static int by_cpu(const struct job *job, const struct k3_quant *quant, struct sides *s,
                  uint64_t row_count, struct k3_err *err)
{
    struct k3_qrows rows = {.x = s->x,
                            .x_scale = s->x_scale,
                            .row_count = row_count,
                            .weight = s->weight,
                            .scale = s->scale};
    k3_qstats_init(&s->wanted);
    return job->from == K3_Q_MXFP4 ? k3_mx_rows(quant, &rows, &s->wanted, err)
                                   : k3_quant_rows(quant, &rows, &s->wanted, err);
}

static struct k3_qrows device_rows(const struct bench *b, uint64_t row_count)
{
    return (struct k3_qrows){.x = b->in,
                             .x_scale = b->in_scale,
                             .row_count = row_count,
                             .weight = b->out,
                             .scale = b->out_scale};
}

/* The same rows by the kernel; what is not equal is printed. */
static int by_gpu(struct bench *b, const struct job *job, const struct k3_quant *quant,
                  struct sides *s, uint64_t row_count, const struct k3_qgeom *geom)
{
    struct k3_qrows rows = device_rows(b, row_count);
    struct k3_cast_result result;
    struct k3_cast_call call;
    uint8_t *scale = b->host + geom->weight_bytes;
    size_t values = (size_t)row_count * quant->cols;
    bool is_mx = job->from == K3_Q_MXFP4;
    int rc = upload(b, b->in, s->x, is_mx ? values / 2 : values * 2);
    rc = rc || !is_mx ? rc : upload(b, b->in_scale, s->x_scale, values / K3_MX_GROUP);
    rc = rc ? rc : clear_result(b);
    k3_cast_call_make(job->from, quant, &rows, (uintptr_t)b->result, &call);
    rc = rc ? rc : launch(b, &call);
    rc = rc ? rc : download(b, &result, b->result, sizeof result);
    rc = rc ? rc : download(b, b->host, b->out, geom->weight_bytes);
    rc = rc || !geom->scale_bytes ? rc : download(b, scale, b->out_scale, geom->scale_bytes);
    if (rc)
        return rc;
    k3_qstats_init(&s->found);
    bool is_done = k3_cast_call_take(job->from, quant, &rows, &result, &s->found);
    bool is_weight = memcmp(b->host, s->weight, geom->weight_bytes) == 0;
    bool is_scale = memcmp(scale, s->scale, geom->scale_bytes) == 0;
    bool is_sums = is_done && k3_qstats_equal(&s->wanted, &s->found);
    bool is_equal = is_weight && is_scale && is_sums;
    b->different_count += !is_equal;
    printf("%-10s %-30s [%llu, %llu]%s%s%s%s\n", is_equal ? "equal" : "DIFFERENT", job->name,
           (unsigned long long)row_count, (unsigned long long)quant->cols,
           is_weight ? "" : " weight", is_scale ? "" : " scale", is_sums ? "" : " statistics",
           is_done ? "" : " refused");
    return 0;
}

static struct k3_quant quant_of(const struct job *job, uint64_t cols)
{
    return (struct k3_quant){.name = "w",
                             .params = {.to = job->to,
                                        .rule = job->rule,
                                        .conv = job->conv,
                                        .oow = job->oow,
                                        .pow2_scales = job->is_pow2},
                             .cols = cols};
}

/* NVFP4 and FP8 by tensor: the global of these rows. */
static int set_global(const struct job *job, struct k3_quant *quant, const struct k3_qrows *rows,
                      struct k3_err *err)
{
    uint16_t amax = 0;
    struct k3_mx_window window;
    if (job->from == K3_Q_BF16 && k3_quant_needs_amax(job->to)) {
        int rc = k3_quant_amax(quant, rows, &amax, err);
        if (rc)
            return rc;
        quant->global = k3_quant_global(&quant->params, amax);
    }
    if (job->from != K3_Q_MXFP4 || job->to != K3_Q_NVFP4)
        return 0;
    k3_mx_window_init(&window, true);
    int rc = k3_mx_scan(quant, rows, &window, err);
    if (!rc)
        quant->global = k3_mx_global(&quant->params, &window);
    return rc;
}

static int compare_one(struct bench *b, const struct job *job, struct sides *s, uint64_t row_count,
                       uint64_t cols)
{
    struct k3_quant quant = quant_of(job, cols);
    struct k3_qrows rows = {.x = s->x, .x_scale = s->x_scale, .row_count = row_count};
    struct k3_qgeom geom;
    if (job->from == K3_Q_BF16)
        fill_values((uint16_t *)s->x, row_count, cols, row_count != PLAIN_ROWS);
    else
        fill_codes(s->x, s->x_scale, row_count * cols / K3_MX_GROUP,
                   job->oow == K3_OOW_FAIL ? 12 : 40);
    int rc = k3_qfmt_geometry(job->to, row_count, cols, &geom, &b->err);
    rc = rc ? rc : set_global(job, &quant, &rows, &b->err);
    rc = rc ? rc : by_cpu(job, &quant, s, row_count, &b->err);
    return rc ? rc : by_gpu(b, job, &quant, s, row_count, &geom);
}

static bool is_wanted(const struct bench *b, const struct job *job)
{
    bool is_found = !b->names[0];
    for (char **name = b->names; *name && !is_found; name++)
        is_found = strncmp(job->name, *name, strlen(*name)) == 0;
    return is_found;
}

static int compare_all(struct bench *b)
{
    const size_t values = (size_t)CHECK_ROWS * CHECK_COLS;
    struct sides s = {.x = malloc(2 * values),
                      .x_scale = malloc(values / K3_MX_GROUP),
                      .weight = malloc(2 * values),
                      .scale = malloc(values)};
    int rc = 0;
    if (!s.x || !s.x_scale || !s.weight || !s.scale)
        rc = k3_fail(&b->err, K3_ENOMEM, "no memory");
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs && !rc; i++) {
        const enum k3_qfmt to = jobs[i].to;
        if (!is_wanted(b, &jobs[i]))
            continue;
        bool is_any = to == K3_Q_FP8_TENSOR || to == K3_Q_FP8_CHANNEL || to == K3_Q_FP8_BLOCK;
        rc = compare_one(b, &jobs[i], &s, PLAIN_ROWS, COLS);
        if (!rc && to != K3_Q_INT4_G128)
            rc = compare_one(b, &jobs[i], &s, CHECK_ROWS, 96);
        if (!rc && jobs[i].from == K3_Q_BF16 && is_any)
            rc = compare_one(b, &jobs[i], &s, 517, 1027);
        if (!rc && !b->is_check)
            rc = compare_one(b, &jobs[i], &s, CHECK_ROWS, to == K3_Q_INT4_G128 ? COLS : CHECK_COLS);
    }
    free(s.x);
    free(s.x_scale);
    free(s.weight);
    free(s.scale);
    return rc;
}

/* ---- how fast ---- */

static int measure(struct bench *b, const struct k3_cast_call *call, int launches, double *seconds)
{
    double times[ROUND_COUNT];
    int rc = 0;
    for (int r = -1; r < ROUND_COUNT && !rc; r++) {
        rc = settle(b);
        double begin = now();
        for (int i = 0; i < launches && !rc; i++)
            rc = launch(b, call);
        rc = rc ? rc : settle(b);
        if (r >= 0)
            times[r] = (now() - begin) / launches;
    }
    *seconds = rc ? 1 : median(times, ROUND_COUNT);
    return rc;
}

static uint64_t bytes_of(const struct job *job, uint64_t row_count, struct k3_err *err)
{
    struct k3_qgeom in, out;
    if (k3_qfmt_geometry(job->from, row_count, COLS, &in, err) ||
        k3_qfmt_geometry(job->to, row_count, COLS, &out, err))
        return 0;
    return in.weight_bytes + in.scale_bytes + out.weight_bytes + out.scale_bytes;
}

static int rate(struct bench *b, const struct job *job)
{
    struct k3_quant quant = quant_of(job, COLS);
    struct k3_cast_result result;
    struct k3_cast_call call;
    uint64_t row_count = RATE_ROWS;
    double large, small;
    quant.global = job->to == K3_Q_FP8_TENSOR ? 0.25f / K3_E4M3_MAX
                   : job->from == K3_Q_MXFP4  ? 0x1p12f
                   : job->conv == MO          ? 0.25f / 2688
                                              : 2688 / 0.25f;
    struct k3_qrows rows = device_rows(b, row_count);
    k3_cast_call_make(job->from, &quant, &rows, (uintptr_t)b->result, &call);
    int rc = clear_result(b);
    rc = rc ? rc : measure(b, &call, LAUNCH_COUNT, &large);
    rc = rc ? rc : download(b, &result, b->result, sizeof result);
    if (!rc && result.refused)
        rc = k3_fail(&b->err, K3_EDEVICE, "%s: refused", job->name);
    rows.row_count = SMALL_ROWS;
    k3_cast_call_make(job->from, &quant, &rows, (uintptr_t)b->result, &call);
    rc = rc ? rc : measure(b, &call, SMALL_LAUNCHES, &small);
    if (rc)
        return rc;
    double gbs = (double)bytes_of(job, row_count, &b->err) / large / 1e9;
    printf("%-30s %8.1f GB/s  %5.1f %% of copy  %5.1f %% of peak   %u rows: %7.1f us\n", job->name,
           gbs, 100 * gbs / b->copy_rate, 100 * gbs / PEAK, SMALL_ROWS, small * 1e6);
    return 0;
}

static int copy_rate(struct bench *b)
{
    double times[ROUND_COUNT];
    int rc = 0;
    for (int r = -1; r < ROUND_COUNT && !rc; r++) {
        rc = settle(b);
        double begin = now();
        for (int i = 0; i < LAUNCH_COUNT && !rc; i++)
            rc = device_copy(b, b->out, b->in, IN_BYTES);
        rc = rc ? rc : settle(b);
        if (r >= 0)
            times[r] = (now() - begin) / LAUNCH_COUNT;
    }
    if (rc)
        return rc;
    b->copy_rate = 2.0 * (double)IN_BYTES / median(times, ROUND_COUNT) / 1e9;
    printf("%-30s %8.1f GB/s                  %5.1f %% of peak\n", "copy on the device",
           b->copy_rate, 100 * b->copy_rate / PEAK);
    return 0;
}

/* Weights for what is cast out of BF16, codes and scales for the rest. */
static int fill_device(struct bench *b, bool is_mx)
{
    uint16_t *x = (uint16_t *)b->host;
    const size_t scales = (size_t)RATE_ROWS * COLS / K3_MX_GROUP;
    if (is_mx)
        fill_codes(b->host, b->host + PATTERN_BYTES / 2, PATTERN_BYTES / 2 / K3_MX_GROUP_BYTES, 4);
    for (size_t i = 0; !is_mx && i < PATTERN_BYTES / 2; i++)
        x[i] = weight_like(-5);
    if (!is_mx) {
        int rc = upload(b, b->in, x, PATTERN_BYTES);
        return rc ? rc : repeat(b, b->in, PATTERN_BYTES, IN_BYTES);
    }
    const size_t some = PATTERN_BYTES / 2 / K3_MX_GROUP_BYTES;
    int rc = upload(b, b->in, b->host, PATTERN_BYTES / 2);
    rc = rc ? rc : repeat(b, b->in, PATTERN_BYTES / 2, IN_BYTES / 4);
    rc = rc ? rc : upload(b, b->in_scale, b->host + PATTERN_BYTES / 2, some);
    return rc ? rc : repeat(b, b->in_scale, some, scales);
}

static int rates(struct bench *b)
{
    int rc = fill_device(b, false);
    rc = rc ? rc : copy_rate(b);
    for (int i = 0; i < TIMED_COUNT && !rc; i++)
        if (jobs[i].from == K3_Q_BF16 && is_wanted(b, &jobs[i]))
            rc = rate(b, &jobs[i]);
    rc = rc ? rc : fill_device(b, true);
    for (int i = 0; i < TIMED_COUNT && !rc; i++)
        if (jobs[i].from == K3_Q_MXFP4 && is_wanted(b, &jobs[i]))
            rc = rate(b, &jobs[i]);
    return rc;
}

static int run(struct bench *b)
{
    int rc = k3_gpu_kernels_load(&b->gpu, &k3_cast_program, &b->code, &b->err);
    rc = rc ? rc
            : judge(b, b->gpu.api->stream_create(&b->stream, K3_GPU_STREAM_PARALLEL), "stream");
    const size_t part = b->is_check ? 16 : 1;
    rc = rc ? rc : alloc(b, &b->in, IN_BYTES / part);
    rc = rc ? rc : alloc(b, &b->in_scale, SCALE_BYTES / part);
    rc = rc ? rc : alloc(b, &b->out, OUT_BYTES / part);
    rc = rc ? rc : alloc(b, &b->out_scale, SCALE_BYTES / part);
    rc = rc ? rc : alloc(b, &b->result, sizeof *b->result);
    b->host = malloc(PATTERN_BYTES);
    if (!rc && !b->host)
        rc = k3_fail(&b->err, K3_ENOMEM, "no memory");
    if (rc)
        return rc;
    double begin = now();
    rc = b->is_rates ? 0 : compare_all(b);
    if (!b->is_rates)
        printf("compared in %.1f s\n", now() - begin);
    rc = rc || b->is_check ? rc : rates(b);
    if (!rc && b->different_count)
        rc = k3_fail(&b->err, K3_EDEVICE, "%u casts differ from the CPU's", b->different_count);
    free(b->host);
    return rc; /* what is on the device goes with the process */
}

int main(int argc, char **argv)
{
    struct bench b = {.copy_rate = 1,
                      .is_check = argc > 2 && !strcmp(argv[2], "check"),
                      .is_rates = argc > 2 && !strcmp(argv[2], "rates"),
                      .names = argv + (argc < 3 ? argc : 3)};
    enum k3_gpu_kind kind = argc > 1 && !strcmp(argv[1], "hip") ? K3_GPU_HIP : K3_GPU_CUDA;
    int saved;
    k3_err_init(&b.err);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (k3_gpu_kernels_probe(kind, &b.err) || k3_gpu_find(kind, 0, &b.gpu, &b.err)) {
        printf("SKIP %s\n", b.err.text);
        return 0;
    }
    if (kind == K3_GPU_CUDA &&
        judge(&b, b.gpu.api->cuda_context_retain(&b.gpu.context, b.gpu.device), "context") != 0) {
        fprintf(stderr, "bench_cast_gpu: %s\n", b.err.text);
        return 1;
    }
    if (k3_gpu_enter(&b.gpu, &saved, &b.err) == 0 && run(&b) == 0)
        return 0;
    fprintf(stderr, "bench_cast_gpu: %s\n", b.err.text);
    return 1;
}
