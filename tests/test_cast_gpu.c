/* Purpose: casts on GPUs over fake drivers (fake_gpu.h), which run the kernels' source: bytes,
 * statistics and errors of the CPU, each call of the driver failing, faults of the hardware.
 *   test_cast_gpu            all of it; runs itself again with the folder of each fake driver
 *   test_cast_gpu real [KIND...]   comparisons over the drivers of this machine, or of
 *                            LD_LIBRARY_PATH, with larger matrices; one line where there is none,
 *                            which is a failure for a KIND that is named
 *   test_cast_gpu fake KIND  over what LD_LIBRARY_PATH names
 *   test_cast_gpu refused KIND TEXT   opening fails, and says TEXT
 * Owns: one matrix, and what becomes of it on the CPU and on the GPU.
 * Threads: one, but for the test that has several.
 * Errors: a failed assertion ends the test.
 * Invariants: outputs begin as poison with a guard behind them; nothing is left in a driver after a
 * close, whatever failed before; a cast that failed never says 0. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cast_call.h"
#include "cast_gpu.h"
#include "gpu_use.h"
#include "num.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPORT_BYTES 16384
#define TURNS_MAX    8 /* a call with more turns is failed at its first and last ones only */
#define FAIL_CODE    999
#define THREADS      3
#define GUARD        64u
#define POISON       0xa5
#define COUNT_OF(a)  (sizeof(a) / sizeof *(a))

/* ---- a matrix and its casts ---- */

struct matrix {
    enum k3_qfmt from;
    struct k3_quant quant;
    uint64_t rows, row_first;
    uint8_t *x, *x_scale;
};

struct output {
    uint8_t *weight, *scale;
    size_t weight_bytes, scale_bytes;
    struct k3_qstats stats;
    int rc;
    struct k3_err err;
};

static uint64_t seed = 1;

static uint32_t draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

/* Values of some twenty binades; now and then a zero, a subnormal, a group of zeros. */
static void fill_bf16(struct matrix *m)
{
    const uint64_t count = m->rows * m->quant.cols;
    m->x = malloc(count * 2);
    assert_non_null(m->x);
    uint32_t exponent = 120;
    for (uint64_t i = 0; i < count; i++) {
        if (i % 32 == 0)
            exponent = draw() % 16 ? 110 + draw() % 16 : 0;
        const uint32_t random = draw();
        uint16_t value = (uint16_t)((random & 0x807f) |
                                    (exponent - exponent * (random >> 20 & 1) / 40) << 7);
        if (exponent == 0 && random >> 24 & 3)
            value &= 0x8000;
        k3_bf16_put(m->x, i, value);
    }
}

/* Codes of all kinds, groups of zeros among them; scales `spread` apart. */
static void fill_mxfp4(struct matrix *m, uint32_t spread)
{
    const uint64_t groups = m->rows * (m->quant.cols / K3_MX_GROUP);
    m->x = malloc(groups * K3_MX_GROUP_BYTES);
    m->x_scale = malloc(groups);
    assert_non_null(m->x);
    assert_non_null(m->x_scale);
    for (uint64_t g = 0; g < groups; g++) {
        const bool is_zero = draw() % 8 == 0;
        m->x_scale[g] = (uint8_t)(127 - draw() % (spread + 1));
        for (uint32_t k = 0; k < K3_MX_GROUP_BYTES; k++)
            m->x[g * K3_MX_GROUP_BYTES + k] = (uint8_t)(draw() & (is_zero ? 0x88 : 0xff));
    }
}

static struct k3_qrows rows_of(const struct matrix *m, const struct output *out)
{
    return (struct k3_qrows){.x = m->x,
                             .x_scale = m->x_scale,
                             .row_first = m->row_first,
                             .row_count = m->rows,
                             .weight = out->weight,
                             .scale = out->scale_bytes ? out->scale : NULL};
}

static void set_global(struct matrix *m)
{
    const struct output none = {.weight = NULL};
    struct k3_qrows rows = rows_of(m, &none);
    struct k3_mx_window window;
    uint16_t amax = 0;
    if (!k3_quant_needs_amax(m->quant.params.to))
        return;
    if (m->from == K3_Q_BF16) {
        assert_int_equal(k3_quant_amax(&m->quant, &rows, &amax, NULL), 0);
        m->quant.global = k3_quant_global(&m->quant.params, amax);
    } else if (k3_quant_route(m->from, m->quant.params.to) == K3_QROUTE_MX) {
        k3_mx_window_init(&window, true);
        assert_int_equal(k3_mx_scan(&m->quant, &rows, &window, NULL), 0);
        m->quant.global = k3_mx_global(&m->quant.params, &window);
    } else {
        m->quant.global = k3_quant_global(&m->quant.params, 0x4040); /* of amax 3: some clip */
    }
}

static void make_matrix(struct matrix *m, enum k3_qfmt from, const struct k3_qparams *params,
                        uint64_t rows, uint64_t cols)
{
    *m = (struct matrix){
        .from = from, .quant = {.name = "a.matrix", .params = *params, .cols = cols}, .rows = rows};
    if (from == K3_Q_BF16)
        fill_bf16(m);
    else
        fill_mxfp4(m, params->oow == K3_OOW_FAIL ? 13 : 40);
    set_global(m);
}

static void drop_matrix(struct matrix *m)
{
    free(m->x);
    free(m->x_scale);
    memset(m, 0, sizeof *m);
}

static void make_output(const struct matrix *m, struct output *out)
{
    struct k3_qgeom geom;
    memset(out, 0, sizeof *out);
    k3_err_init(&out->err);
    k3_qstats_init(&out->stats);
    assert_int_equal(k3_qfmt_geometry(m->quant.params.to, m->rows, m->quant.cols, &geom, NULL), 0);
    out->weight_bytes = (size_t)geom.weight_bytes;
    out->scale_bytes = (size_t)geom.scale_bytes;
    out->weight = malloc(out->weight_bytes + GUARD);
    out->scale = malloc(out->scale_bytes + GUARD);
    assert_non_null(out->weight);
    assert_non_null(out->scale);
    memset(out->weight, POISON, out->weight_bytes + GUARD);
    memset(out->scale, POISON, out->scale_bytes + GUARD);
}

static void drop_output(struct output *out)
{
    free(out->weight);
    free(out->scale);
    memset(out, 0, sizeof *out);
}

static void cast_on_cpu(const struct matrix *m, struct output *out)
{
    struct k3_qrows rows;
    make_output(m, out);
    rows = rows_of(m, out);
    enum k3_qroute route = k3_quant_route(m->from, m->quant.params.to);
    if (route != K3_QROUTE_VIA_BF16) {
        out->rc = route == K3_QROUTE_MX ? k3_mx_rows(&m->quant, &rows, &out->stats, &out->err)
                                        : k3_quant_rows(&m->quant, &rows, &out->stats, &out->err);
        return;
    }
    struct k3_quant first = m->quant;
    struct k3_qrows to_bf16 = rows;
    struct k3_qstats ignored;
    k3_qstats_init(&ignored);
    first.params.to = K3_Q_BF16;
    to_bf16.weight = malloc(m->rows * m->quant.cols * 2);
    assert_non_null(to_bf16.weight);
    out->rc = k3_mx_rows(&first, &to_bf16, &ignored, &out->err);
    rows.x = to_bf16.weight;
    rows.x_scale = NULL;
    if (!out->rc)
        out->rc = k3_quant_rows(&m->quant, &rows, &out->stats, &out->err);
    free(to_bf16.weight);
}

static void cast_on_gpu(struct k3_cast_lane *lane, const struct matrix *m, struct output *out)
{
    make_output(m, out);
    const struct k3_qrows rows = rows_of(m, out);
    out->rc = k3_cast_gpu_rows(lane, &m->quant, m->from, &rows, &out->stats, &out->err);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(out->weight[out->weight_bytes + i], POISON);
        assert_int_equal(out->scale[out->scale_bytes + i], POISON);
    }
}

static bool is_same(const struct output *a, const struct output *b)
{
    if (a->rc || b->rc)
        return a->rc == b->rc && !strcmp(a->err.text, b->err.text);
    return !memcmp(a->weight, b->weight, a->weight_bytes) &&
           !memcmp(a->scale, b->scale, a->scale_bytes) && k3_qstats_equal(&a->stats, &b->stats);
}

/* The GPU gives what the CPU gives, errors included. */
static void compare(struct k3_cast_lane *lane, const struct matrix *m)
{
    struct output cpu, gpu;
    cast_on_cpu(m, &cpu);
    cast_on_gpu(lane, m, &gpu);
    if (!is_same(&cpu, &gpu))
        fail_msg("%s to %s, [%lu, %lu], rule %d, convention %d, oow %d, pow2 %d: CPU %d %s, GPU %d "
                 "%s; weights %s, scales %s, statistics %s",
                 k3_qfmt_name(m->from), k3_qfmt_name(m->quant.params.to), (unsigned long)m->rows,
                 (unsigned long)m->quant.cols, (int)m->quant.params.rule, (int)m->quant.params.conv,
                 (int)m->quant.params.oow, m->quant.params.pow2_scales, cpu.rc, cpu.err.text,
                 gpu.rc, gpu.err.text,
                 memcmp(cpu.weight, gpu.weight, cpu.weight_bytes) ? "differ" : "equal",
                 memcmp(cpu.scale, gpu.scale, cpu.scale_bytes) ? "differ" : "equal",
                 k3_qstats_equal(&cpu.stats, &gpu.stats) ? "equal" : "differ");
    drop_output(&cpu);
    drop_output(&gpu);
}

static void compare_new(struct k3_cast_lane *lane, enum k3_qfmt from,
                        const struct k3_qparams *params, uint64_t rows, uint64_t cols)
{
    struct matrix m;
    make_matrix(&m, from, params, rows, cols);
    compare(lane, &m);
    drop_matrix(&m);
}

/* ---- one GPU ---- */

static int open_lane(struct k3_cast_gpu **gpu, struct k3_cast_lane **lane, struct k3_err *err)
{
    const struct k3_cast_place place = {kind, 0};
    *lane = NULL;
    int rc = k3_cast_gpu_open(&place, gpu, err);
    return rc ? rc : k3_cast_lane_open(*gpu, lane, err);
}

static void close_lane(struct k3_cast_gpu *gpu, struct k3_cast_lane *lane)
{
    k3_cast_lane_close(lane);
    k3_cast_gpu_close(gpu);
}

static void must_open(struct k3_cast_gpu **gpu, struct k3_cast_lane **lane)
{
    struct k3_err err;
    k3_err_init(&err);
    if (open_lane(gpu, lane, &err))
        fail_msg("%s", err.text);
}

static bool is_big;   /* real hardware: matrices that an emulator has no time for */
static bool is_brief; /* its source was run in full under the other kind of driver */

/* Every way from every format to every other, all options that its arithmetic has. */
static void test_formats(void **state)
{
    (void)state;
    static const enum k3_qfmt sources[] = {K3_Q_BF16, K3_Q_MXFP4};
    struct k3_cast_gpu *gpu;
    struct k3_cast_lane *lane;
    must_open(&gpu, &lane);
    for (int n = 0; n < 2 * K3_QFMT_COUNT; n++) {
        const enum k3_qfmt from = sources[n / K3_QFMT_COUNT],
                           to = (enum k3_qfmt)(n % K3_QFMT_COUNT);
        if (k3_quant_route(from, to) <= K3_QROUTE_COPY)
            continue;
        struct k3_qparams params = k3_qparams_default(to);
        compare_new(lane, from, &params, 1, 128);
        compare_new(lane, from, &params, 130, 384);
        compare_new(lane, from, &params, is_big ? 1000 : 5, is_big ? 7168 : 4224);
        for (int variant = 0; variant < (is_brief ? 1 : 12); variant++) {
            params.rule = (enum k3_scale_rule)(variant % K3_SCALE_RULE_COUNT);
            params.conv = variant % 2 ? K3_QCONV_MODELOPT : K3_QCONV_COMPRESSED_TENSORS;
            params.oow = (enum k3_oow)(variant % 3);
            params.pow2_scales = variant / 2 % 2;
            compare_new(lane, from, &params, is_big ? 257 : 3, is_big ? 2048 : 256);
        }
    }
    close_lane(gpu, lane);
}

/* Rows that one launch does not take come in several; the place in the matrix counts once. */
static void test_batches(void **state)
{
    (void)state;
    static const enum k3_qfmt targets[] = {K3_Q_FP8_BLOCK, K3_Q_FP8_TENSOR, K3_Q_NVFP4,
                                           K3_Q_INT4_G32};
    struct k3_cast_gpu *gpu;
    struct k3_cast_lane *lane;
    must_open(&gpu, &lane);
    k3_cast_lane_limit(lane, 128 * 2 * 160);
    for (size_t t = 0; t < COUNT_OF(targets); t++)
        for (int mx = 0; mx < 2; mx++) {
            struct matrix m;
            const struct k3_qparams params = k3_qparams_default(targets[t]);
            make_matrix(&m, mx ? K3_Q_MXFP4 : K3_Q_BF16, &params, mx ? 600 : 300, 160);
            compare(lane, &m);
            m.row_first = 1280;
            compare(lane, &m);
            drop_matrix(&m);
        }
    close_lane(gpu, lane);
}

/* Bytes that need all pinned pieces, several times over. */
static void test_large(void **state)
{
    (void)state;
    struct k3_cast_gpu *gpu;
    struct k3_cast_lane *lane;
    const struct k3_qparams params = k3_qparams_default(K3_Q_BF16);
    must_open(&gpu, &lane);
    compare_new(lane, K3_Q_MXFP4, &params, is_big ? 20000 : 128, is_big ? 3072 : 8224);
    close_lane(gpu, lane);
}

/* Values that no cast takes: the CPU's words, and the lane goes on. */
static void test_bad_values(void **state)
{
    (void)state;
    struct k3_cast_gpu *gpu;
    struct k3_cast_lane *lane;
    must_open(&gpu, &lane);
    for (int to = K3_Q_BF16; to < K3_QFMT_COUNT; to++) {
        const struct k3_qparams params = k3_qparams_default((enum k3_qfmt)to);
        struct matrix m;
        if (k3_quant_route(K3_Q_BF16, (enum k3_qfmt)to) > K3_QROUTE_COPY) {
            make_matrix(&m, K3_Q_BF16, &params, 5, 256);
            k3_bf16_put(m.x, 3 * 256 + 77, 0xff80); /* minus infinity */
            compare(lane, &m);
            k3_bf16_put(m.x, 1 * 256 + 255, 0x7fc1); /* NaN, which comes first */
            compare(lane, &m);
            drop_matrix(&m);
        }
        if (k3_quant_route(K3_Q_MXFP4, (enum k3_qfmt)to) <= K3_QROUTE_COPY)
            continue;
        make_matrix(&m, K3_Q_MXFP4, &params, 5, 256);
        m.x[2 * 128 + 16] |= 7; /* no group of zeros */
        m.x_scale[2 * 8 + 1] = 1;
        compare(lane, &m); /* out of the window where there is one */
        m.x_scale[4 * 8 + 7] = 0xff;
        compare(lane, &m);
        drop_matrix(&m);
    }
    compare_new(lane, K3_Q_BF16, &(struct k3_qparams){.to = K3_Q_NVFP4}, 4, 256);
    close_lane(gpu, lane);
}

/* Shapes that a format does not have. */
static void test_bad_shapes(void **state)
{
    (void)state;
    static uint8_t data[4096];
    struct k3_cast_gpu *gpu;
    struct k3_cast_lane *lane;
    must_open(&gpu, &lane);
    const struct k3_qrows rows = {
        .x = data, .x_scale = data, .row_count = 2, .weight = data, .scale = data};
    for (int mx = 0; mx < 2; mx++) {
        struct k3_qstats stats;
        struct k3_err errors[2];
        const struct k3_quant quant = {
            .name = "a", .params = k3_qparams_default(K3_Q_MXFP8), .cols = 48};
        k3_qstats_init(&stats);
        k3_err_init(&errors[0]);
        k3_err_init(&errors[1]);
        int rc = mx ? k3_mx_rows(&quant, &rows, &stats, &errors[0])
                    : k3_quant_rows(&quant, &rows, &stats, &errors[0]);
        assert_int_equal(rc, K3_EUNSUPPORTED);
        assert_int_equal(
            k3_cast_gpu_rows(lane, &quant, mx ? K3_Q_MXFP4 : K3_Q_BF16, &rows, &stats, &errors[1]),
            rc);
        assert_string_equal(errors[0].text, errors[1].text);
    }
    compare_new(lane, K3_Q_BF16, &(struct k3_qparams){.to = K3_Q_INT8_G32}, 1, 64);
    close_lane(gpu, lane);
}

static void test_index(void **state)
{
    (void)state;
    const struct k3_cast_place place = {kind, 1000};
    struct k3_cast_gpu *gpu;
    struct k3_err err;
    char text[64];
    k3_err_init(&err);
    assert_int_equal(k3_cast_gpu_open(&place, &gpu, &err), K3_EUNSUPPORTED);
    snprintf(text, sizeof text, "device %s:1000: there are ", ops->name);
    assert_non_null(strstr(err.text, text));
    assert_null(gpu);
}

struct work {
    struct k3_cast_gpu *gpu;
    pthread_t thread;
    uint32_t number;
    bool is_good;
};

static void *work_in_thread(void *argument)
{
    struct work *work = argument;
    struct k3_cast_lane *lane;
    struct output cpu, gpu;
    struct matrix m = {
        .from = K3_Q_MXFP4,
        .quant = {.name = "a", .params = k3_qparams_default(K3_Q_INT4_G32), .cols = 512},
        .rows = 40};
    m.x = calloc(40, 256);
    m.x_scale = malloc(40 * 16);
    memset(m.x_scale, 120, 40 * 16);
    for (uint32_t i = 0; i < 40 * 256; i++)
        m.x[i] = (uint8_t)(i * (work->number + 3));
    cast_on_cpu(&m, &cpu);
    work->is_good = k3_cast_lane_open(work->gpu, &lane, NULL) == 0;
    for (int turn = 0; turn < 3 && work->is_good; turn++) {
        cast_on_gpu(lane, &m, &gpu);
        work->is_good = is_same(&cpu, &gpu);
        drop_output(&gpu);
    }
    k3_cast_lane_close(lane);
    drop_output(&cpu);
    drop_matrix(&m);
    return NULL;
}

/* Lanes of one GPU, each in a thread of its own. */
static void test_threads(void **state)
{
    (void)state;
    const struct k3_cast_place place = {kind, 0};
    struct work works[THREADS] = {{.number = 0}};
    struct k3_cast_gpu *gpu;
    assert_int_equal(k3_cast_gpu_open(&place, &gpu, NULL), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        works[i] = (struct work){.gpu = gpu, .number = i};
        assert_int_equal(pthread_create(&works[i].thread, NULL, work_in_thread, &works[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(works[i].thread, NULL), 0);
        assert_true(works[i].is_good);
    }
    k3_cast_gpu_close(gpu);
}

/* ---- fake drivers: what fails ---- */

/* A whole use, with a matrix of few bytes by both kinds of kernels. */
static int use_casts(struct k3_err *err, bool *is_right)
{
    struct k3_cast_gpu *gpu;
    struct k3_cast_lane *lane;
    struct output want, got;
    struct matrix m;
    const struct k3_qparams params = k3_qparams_default(K3_Q_INT4_G32);
    seed = 7;
    make_matrix(&m, K3_Q_MXFP4, &params, 3, 96);
    cast_on_cpu(&m, &want);
    int rc = open_lane(&gpu, &lane, err);
    *is_right = true;
    if (!rc) {
        cast_on_gpu(lane, &m, &got);
        rc = got.rc;
        *is_right = rc || is_same(&want, &got);
        if (rc)
            *err = got.err;
        drop_output(&got);
    }
    close_lane(gpu, lane);
    drop_output(&want);
    drop_matrix(&m);
    return rc;
}

/* Calls whose failure nobody can answer: they give something back, which is then left in the
 * driver, or they clean up, or there is another way. */
static const struct ignored {
    const char *name;
    bool leaves;
} ignored_calls[] = {
    {"cuMemFree_v2", true},          {"cuMemFreeHost", true},
    {"cuStreamDestroy_v2", true},    {"cuEventDestroy_v2", true},
    {"cuModuleUnload", true},        {"cuDevicePrimaryCtxRelease_v2", true},
    {"cuCtxPushCurrent_v2", true},   {"cuCtxPopCurrent_v2", false},
    {"cuStreamSynchronize", false},  {"hipFree", true},
    {"hipHostFree", true},           {"hipStreamDestroy", true},
    {"hipEventDestroy", true},       {"hipModuleUnload", true},
    {"hipGetDevice", true},          {"hipSetDevice", true},
    {"hipStreamSynchronize", false}, {"hipModuleLoadData", false}, /* code made ahead as well */
    {"hipModuleGetFunction", false},
};

static const struct ignored *find_ignored(const char *call)
{
    for (size_t i = 0; i < COUNT_OF(ignored_calls); i++)
        if (!strcmp(call, ignored_calls[i].name))
            return &ignored_calls[i];
    return NULL;
}

static void leave_contexts(void)
{
    void *context;
    while (kind == K3_GPU_CUDA && api->cuda_context_pop(&context) == 0)
        ;
    if (kind == K3_GPU_HIP)
        assert_int_equal(api->hip_device_set(0), 0);
}

static void fail_at(const char *call, long turn)
{
    char fault[128];
    bool is_right;
    struct k3_err err;
    const struct ignored *ignored = find_ignored(call);
    k3_err_init(&err);
    snprintf(fault, sizeof fault, "fail=%s=%d:%ld", call, FAIL_CODE, turn);
    const long before = left(control(fault));
    const int rc = use_casts(&err, &is_right);
    const char *report = control(NULL);
    bool is_good = is_right && reported(report, "faults") == 1 &&
                   reported(report, "changed") == 0 &&
                   (left(report) == before || (ignored && ignored->leaves)) &&
                   (rc ? strstr(err.text, "device ") || strstr(err.text, "hipRTC") : !!ignored);
    if (!is_good)
        print_message("%s: %d %s\nbefore %ld\n%s", fault, rc, err.text, before, report);
    assert_true(is_good);
    leave_contexts();
}

static void test_each_call(void **state)
{
    (void)state;
    static char calls[REPORT_BYTES];
    bool is_right;
    control(NULL);
    assert_int_equal(use_casts(NULL, &is_right), 0);
    assert_true(is_right);
    snprintf(calls, sizeof calls, "%s", control(NULL));
    assert_int_equal(left(calls), 0);
    int call_count = 0;
    for (char *at = strstr(calls, "calls "); at; at = strstr(at, "calls ")) {
        char call[64];
        at += strlen("calls ");
        const int name_bytes = (int)strcspn(at, " ");
        snprintf(call, sizeof call, "%.*s", name_bytes, at);
        const long count = strtol(at + name_bytes, NULL, 10);
        assert_true(count > 0);
        call_count++;
        for (long turn = 1; turn <= count; turn++)
            if (count <= TURNS_MAX || turn <= 2 || turn > count - 4)
                fail_at(call, turn);
    }
    assert_true(call_count >= 20);
}

static void open_refused(const char *fault, const char *says)
{
    struct k3_cast_gpu *gpu;
    struct k3_cast_lane *lane;
    struct k3_err err;
    k3_err_init(&err);
    control(fault);
    assert_int_equal(open_lane(&gpu, &lane, &err), K3_EDEVICE);
    if (!strstr(err.text, says))
        fail_msg("%s: %s", fault, err.text);
    assert_null(gpu);
    const char *report = control(NULL);
    assert_int_equal(reported(report, "faults"), 1);
    assert_int_equal(left(report), 0);
}

/* A GPU that computes wrongly is not opened. */
static void test_self_test(void **state)
{
    (void)state;
    static const char wrong[] = "its cast of known values from ";
    open_refused("flip:1", wrong);
    open_refused("skip:1", "");
    open_refused("other:1", wrong);
    open_refused("other:9", wrong);
    open_refused("idle:3", "");
    open_refused("no:2", "GPU and CPU disagree");
}

/* It computes wrongly later: it calls bad what the CPU does not, or its kernel does not run. */
static void test_later(void **state)
{
    (void)state;
    static const char *const faults[][2] = {
        {"no:1", "GPU and CPU disagree"}, {"idle:1", "device "}, {"break:1", "device "}};
    const struct k3_qparams params = k3_qparams_default(K3_Q_NVFP4);
    struct matrix m;
    make_matrix(&m, K3_Q_BF16, &params, 2, 64);
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        struct k3_cast_gpu *gpu;
        struct k3_cast_lane *lane;
        struct output out;
        must_open(&gpu, &lane);
        control(faults[i][0]);
        cast_on_gpu(lane, &m, &out);
        assert_int_equal(out.rc, K3_EDEVICE);
        assert_non_null(strstr(out.err.text, faults[i][1]));
        drop_output(&out);
        cast_on_gpu(lane, &m, &out); /* of no more use */
        assert_int_equal(out.rc, K3_EDEVICE);
        assert_non_null(strstr(out.err.text, "has failed before"));
        drop_output(&out);
        close_lane(gpu, lane);
        assert_nothing_left();
    }
    drop_matrix(&m);
}

/* Copies and events that come late change nothing. */
static void test_late(void **state)
{
    (void)state;
    static const char *const faults[] = {"late:1", "late:2", "late:4"};
    const struct k3_qparams params = k3_qparams_default(K3_Q_MXFP8);
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        struct k3_cast_gpu *gpu;
        struct k3_cast_lane *lane;
        must_open(&gpu, &lane);
        control(faults[i]);
        compare_new(lane, K3_Q_BF16, &params, 4, 64);
        close_lane(gpu, lane);
        assert_int_equal(reported(control(NULL), "faults"), 1);
    }
    assert_nothing_left();
}

/* What does not fit is said with sizes; all comes back. */
static void test_no_memory(void **state)
{
    (void)state;
    const struct k3_qparams params = k3_qparams_default(K3_Q_BF16);
    struct k3_cast_gpu *gpu;
    struct k3_cast_lane *lane;
    struct output out;
    struct matrix m;
    char text[128];
    setenv("FAKE_GPU_MEMORY_BYTES", "65536", 1);
    control(NULL);
    make_matrix(&m, K3_Q_MXFP4, &params, 16, 4096);
    must_open(&gpu, &lane);
    cast_on_gpu(lane, &m, &out);
    assert_int_equal(out.rc, K3_EUNSUPPORTED);
    snprintf(
        text, sizeof text,
        "device %s:0: 131072 bytes of its memory are needed for a cast, 30720 of 65536 are free",
        ops->name);
    if (!strstr(out.err.text, text))
        fail_msg("%s", out.err.text);
    drop_output(&out);
    drop_matrix(&m);
    close_lane(gpu, lane);
    unsetenv("FAKE_GPU_MEMORY_BYTES");
    assert_nothing_left();
}

/* ---- running ---- */

static int run_refused(const char *text)
{
    const struct k3_cast_place place = {kind, 0};
    struct k3_cast_gpu *gpu;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_cast_gpu_open(&place, &gpu, &err);
    if (rc == K3_EUNSUPPORTED && strstr(err.text, text))
        return 0;
    printf("%d %s\n", rc, err.text);
    return 1;
}

/* The tests that any driver must pass. */
static int run_any(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),    cmocka_unit_test(test_batches),
        cmocka_unit_test(test_large),      cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_bad_shapes), cmocka_unit_test(test_index),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("casts on any driver", tests, NULL, NULL);
}

static int run_fake(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self_test), cmocka_unit_test(test_later),
        cmocka_unit_test(test_late),      cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_each_call),
    };
    const int opened = open_fake();
    if (opened <= 0)
        return opened < 0;
    is_brief = kind == K3_GPU_HIP && !k3_gpu_kernels_probe(K3_GPU_CUDA, NULL);
    int failed = run_any();
    const char *report = control(NULL);
    if (left(report) || reported(report, "changed")) {
        printf("after the comparisons:\n%s", report);
        failed++;
    }
    return failed + cmocka_run_group_tests_name("casts on a fake driver", tests, NULL, NULL);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *drivers, *setting, *kind, *text;
    } rows[] = {
        {"fake_bad", NULL, "cuda", "device cuda: no libcuda.so.1 on this machine"},
        {"fake_old", NULL, "hip", " has no hipModuleLaunchKernel: a newer driver is needed"},
        {"fake", "FAKE_GPU_COUNT=0", "cuda", "does not start: CUDA_ERROR_NO_DEVICE"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(run_again(rows[i].drivers, rows[i].setting,
                                   (const char *[]){"refused", rows[i].kind, rows[i].text}),
                         0);
}

/* What a broken GPU may answer is no statistics, and ends nothing by itself. */
static void test_answers(void **state)
{
    (void)state;
    const struct k3_quant quant = {.params = k3_qparams_default(K3_Q_MXFP8), .cols = 64};
    const struct k3_qrows rows = {.row_count = 2};
    struct k3_cast_result good = {.done_groups = 1, .x2 = {1}}, bad[5];
    struct k3_qstats stats;
    k3_qstats_init(&stats);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        bad[i] = good;
    bad[0].done_groups = 0;
    bad[1].refused = 1;
    bad[2].x2[K3_CAST_LIMB_COUNT - 1] = UINT64_MAX;
    bad[3].err2[K3_CAST_LIMB_COUNT - 1] = UINT64_MAX;
    bad[4].max_abs_error = UINT64_MAX;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_false(k3_cast_call_take(K3_Q_BF16, &quant, &rows, &bad[i], &stats));
    assert_int_equal(stats.value_count, 0);
    assert_true(k3_cast_call_take(K3_Q_BF16, &quant, &rows, &good, &stats));
    assert_int_equal(stats.value_count, 128);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers),
                                       cmocka_unit_test(test_refused)};
    if (again_begin())
        return 1;
    int failed = cmocka_run_group_tests_name("no driver", tests, NULL, NULL);
    failed += run_again("fake", NULL, (const char *[]){"fake", "cuda", NULL}) != 0;
    failed += run_again("fake", NULL, (const char *[]){"fake", "hip", NULL}) != 0;
    unlink(report_path);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 1;
    if (argc == 1) {
        failed = run_all();
    } else if (!strcmp(argv[1], "real")) {
        is_big = true;
        failed = run_real(run_any, argc - 2, argv + 2);
    } else if (argc >= 3 && !choose(argv[2])) {
        snprintf(report_path, sizeof report_path, "%s",
                 getenv("FAKE_GPU_REPORT") ? getenv("FAKE_GPU_REPORT") : "");
        failed = !strcmp(argv[1], "refused") && argc == 4 ? run_refused(argv[3]) : run_fake();
    }
    return failed != 0;
}
