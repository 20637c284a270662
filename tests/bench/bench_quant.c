/* Purpose: rates of all casts of matrices on one core, by each form of k3_quant_ops that runs here.
 * `bench_quant FILE ROWS COLS`: one round of the form in use over a matrix of BF16 in a file, a
 * line "format<TAB>seconds of CPU time" for each format: what tests/bench/quant_peers.py calls.
 * Owns: a matrix of BF16, one of MXFP4, the output of one call.
 * Threads: one.
 * Errors: exit 1 without memory, when FILE cannot be read, or when a cast fails.
 * Invariants: input is far larger than the caches and is read once a round; output goes to the same
 * rows again and again, as it does in a conversion, which hands them on; statistics are made, as
 * they are always.  The rounds are interleaved, so a slow moment of the machine meets all; medians
 * are printed, of the CPU time of the thread. */
#include "cast_mxfp4.h"
#include "num.h"
#include "quant.h"
#include "quant_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUND_COUNT 7     /* odd: the median is one of them */
#define COLS        7168  /* K3's hidden size */
#define BF16_ROWS   4608  /* 63 MiB */
#define MX_ROWS     17408 /* 63 MiB with their scales */
#define CALL_ROWS   128u  /* what FP8 blocks need */
#define SLOW        8     /* the scalar form gets one row in eight: it takes seconds otherwise */

struct job {
    const char *name;
    bool is_mx;
    enum k3_qfmt to;
    enum k3_qconv conv;
    bool is_first_pass;
};

static const struct job jobs[] = {
    {"bf16 -> fp8-block", false, K3_Q_FP8_BLOCK, K3_QCONV_COMPRESSED_TENSORS, false},
    {"bf16 -> mxfp8", false, K3_Q_MXFP8, K3_QCONV_COMPRESSED_TENSORS, false},
    {"bf16 -> nvfp4", false, K3_Q_NVFP4, K3_QCONV_COMPRESSED_TENSORS, false},
    {"bf16 -> nvfp4, modelopt", false, K3_Q_NVFP4, K3_QCONV_MODELOPT, false},
    {"bf16 -> nvfp4, pass 1", false, K3_Q_NVFP4, K3_QCONV_COMPRESSED_TENSORS, true},
    {"bf16 -> mxfp4", false, K3_Q_MXFP4, K3_QCONV_COMPRESSED_TENSORS, false},
    {"bf16 -> fp8-tensor", false, K3_Q_FP8_TENSOR, K3_QCONV_COMPRESSED_TENSORS, false},
    {"bf16 -> fp8-channel", false, K3_Q_FP8_CHANNEL, K3_QCONV_COMPRESSED_TENSORS, false},
    {"bf16 -> fp8-channel, modelopt", false, K3_Q_FP8_CHANNEL, K3_QCONV_MODELOPT, false},
    {"bf16 -> int4-g32", false, K3_Q_INT4_G32, K3_QCONV_COMPRESSED_TENSORS, false},
    {"bf16 -> int4-g128", false, K3_Q_INT4_G128, K3_QCONV_COMPRESSED_TENSORS, false},
    {"bf16 -> int8-g32", false, K3_Q_INT8_G32, K3_QCONV_COMPRESSED_TENSORS, false},
    {"mxfp4 -> bf16", true, K3_Q_BF16, K3_QCONV_COMPRESSED_TENSORS, false},
    {"mxfp4 -> mxfp8", true, K3_Q_MXFP8, K3_QCONV_COMPRESSED_TENSORS, false},
    {"mxfp4 -> nvfp4", true, K3_Q_NVFP4, K3_QCONV_COMPRESSED_TENSORS, false},
    {"mxfp4 -> nvfp4, pass 1", true, K3_Q_NVFP4, K3_QCONV_COMPRESSED_TENSORS, true},
    {"mxfp4 -> fp8-block", true, K3_Q_FP8_BLOCK, K3_QCONV_COMPRESSED_TENSORS, false},
    {"mxfp4 -> int8-g32", true, K3_Q_INT8_G32, K3_QCONV_COMPRESSED_TENSORS, false},
};
#define JOB_COUNT (sizeof jobs / sizeof jobs[0])

struct bench {
    uint8_t *bf16, *codes, *scales; /* sources */
    uint8_t *out, *out_scale;       /* of one call */
    uint64_t cols, bf16_rows;
    uint16_t amax;
    struct k3_mx_window window;
    double check; /* folds every result */
};

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double source_bytes(const struct bench *b, const struct job *job, uint64_t rows)
{
    uint64_t bytes = rows * b->cols * 2;
    if (job->is_mx)
        bytes = rows * (b->cols / 2 + b->cols / 32);
    return (double)bytes;
}

/* One call, of at most CALL_ROWS rows. */
static int cast_rows(struct bench *b, const struct job *job, const struct k3_quant *quant,
                     struct k3_qrows *rows, struct k3_qstats *stats, struct k3_err *err)
{
    rows->weight = b->out;
    rows->scale = b->out_scale;
    if (!job->is_mx) {
        rows->x = b->bf16 + rows->row_first * b->cols * 2;
        return job->is_first_pass ? k3_quant_amax(quant, rows, &b->amax, err)
                                  : k3_quant_rows(quant, rows, stats, err);
    }
    rows->x = b->codes + rows->row_first * b->cols / 2;
    rows->x_scale = b->scales + rows->row_first * b->cols / 32;
    return job->is_first_pass ? k3_mx_scan(quant, rows, &b->window, err)
                              : k3_mx_rows(quant, rows, stats, err);
}

/* One round of a job over row_count rows; seconds of it. */
static int run_job(struct bench *b, const struct job *job, uint64_t row_count, double *seconds,
                   struct k3_err *err)
{
    struct k3_quant quant = {.name = "w", .params = k3_qparams_default(job->to), .cols = b->cols};
    struct k3_qstats stats;
    int rc = 0;
    quant.params.conv = job->conv;
    if (job->is_mx && job->to == K3_Q_NVFP4)
        quant.global = k3_mx_global(&quant.params, &b->window);
    else if (k3_quant_needs_amax(job->to))
        quant.global = k3_quant_global(&quant.params, b->amax);
    k3_qstats_init(&stats);
    double begin = now_seconds();
    for (uint64_t row = 0; !rc && row < row_count; row += CALL_ROWS) {
        uint64_t left = row_count - row;
        struct k3_qrows rows = {.row_first = row, .row_count = left < CALL_ROWS ? left : CALL_ROWS};
        rc = cast_rows(b, job, &quant, &rows, &stats, err);
        b->check += b->out[0] + b->out_scale[0];
    }
    *seconds = now_seconds() - begin;
    b->check += k3_qsum_value(&stats.x2) + k3_qsum_value(&stats.err2);
    return rc;
}

/* ---- sources ---- */

static uint32_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (uint32_t)(*seed >> 32);
}

/* Near to Gaussian, as weights are, with a deviation of 0.02. */
static void fill(struct bench *b)
{
    uint64_t seed = 88172645463325252u;
    for (uint64_t i = 0; i < b->bf16_rows * b->cols; i++) {
        uint32_t r = next_random(&seed), s = next_random(&seed);
        int sum = (int)((r & 0xffff) + (r >> 16) + (s & 0xffff) + (s >> 16)) - 2 * 65535;
        k3_bf16_put(b->bf16, i, k3_bf16_code((float)sum * (0.02f / 37837.0f)));
    }
    for (uint64_t i = 0; i < (uint64_t)MX_ROWS * b->cols / 2; i++)
        b->codes[i] = (uint8_t)next_random(&seed);
    for (uint64_t i = 0; i < (uint64_t)MX_ROWS * b->cols / 32; i++)
        b->scales[i] = (uint8_t)(116 + next_random(&seed) % 6);
}

static int read_matrix(struct bench *b, const char *path, struct k3_err *err)
{
    size_t count = b->bf16_rows * b->cols, found = 0;
    FILE *f = fopen(path, "rb");
    if (f) {
        found = fread(b->bf16, 2, count, f);
        fclose(f);
    }
    return found == count
               ? 0
               : k3_fail(err, K3_EIO, "%s: found %zu values, wanted %zu", path, found, count);
}

static int open_bench(struct bench *b, bool has_mx, struct k3_err *err)
{
    uint64_t mx_rows = has_mx ? MX_ROWS : 0;
    b->bf16 = malloc(b->bf16_rows * b->cols * 2);
    b->codes = malloc(mx_rows * b->cols / 2 + 1);
    b->scales = malloc(mx_rows * b->cols / 32 + 1);
    b->out = malloc(CALL_ROWS * b->cols * 2);
    b->out_scale = malloc(CALL_ROWS * b->cols / 4);
    if (!b->bf16 || !b->codes || !b->scales || !b->out || !b->out_scale)
        return k3_fail(err, K3_ENOMEM, "no memory for the matrices");
    memset(b->out, 1, CALL_ROWS * b->cols * 2);
    memset(b->out_scale, 1, CALL_ROWS * b->cols / 4);
    k3_mx_window_init(&b->window, false);
    return 0;
}

static void close_bench(struct bench *b)
{
    free(b->bf16);
    free(b->codes);
    free(b->scales);
    free(b->out);
    free(b->out_scale);
}

/* ---- the two uses ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double values[ROUND_COUNT])
{
    qsort(values, ROUND_COUNT, sizeof *values, compare_doubles);
    return values[ROUND_COUNT / 2];
}

/* rate[form][job][round], GB/s of input. */
typedef double rates[K3_QUANT_FORM_COUNT][JOB_COUNT][ROUND_COUNT];

static void print_rates(rates *all)
{
    for (size_t j = 0; j < JOB_COUNT; j++) {
        printf("%-30s", jobs[j].name);
        for (int form = 0; form < K3_QUANT_FORM_COUNT; form++) {
            double ratios[ROUND_COUNT], own[ROUND_COUNT];
            if (!k3_quant_form_runs((enum k3_quant_form)form))
                continue;
            for (int r = 0; r < ROUND_COUNT; r++) {
                own[r] = (*all)[form][j][r];
                ratios[r] = own[r] / (*all)[K3_QUANT_SCALAR][j][r];
            }
            printf("  %s %6.2f GB/s", k3_quant_form_name((enum k3_quant_form)form), median(own));
            if (form != K3_QUANT_SCALAR)
                printf(" (%5.1f x)", median(ratios));
        }
        putchar('\n');
    }
}

static int bench_forms(struct bench *b, struct k3_err *err)
{
    static rates all;
    int rc = 0;
    fill(b);
    for (int r = -1; !rc && r < ROUND_COUNT; r++) { /* one before the first, of the fastest form */
        int last = r < 0 ? 1 : K3_QUANT_FORM_COUNT;
        for (size_t j = 0; !rc && j < JOB_COUNT; j++) {
            for (int form = 0; !rc && form < last; form++) {
                double seconds;
                uint64_t rows = jobs[j].is_mx ? MX_ROWS : b->bf16_rows;
                if (r >= 0 && !k3_quant_form_runs((enum k3_quant_form)form))
                    continue;
                k3_quant_force(r < 0 ? K3_QUANT_FORM_COUNT : (enum k3_quant_form)form);
                if (r >= 0 && form == K3_QUANT_SCALAR)
                    rows /= SLOW;
                rc = run_job(b, &jobs[j], rows, &seconds, err);
                if (r >= 0)
                    all[form][j][r] = source_bytes(b, &jobs[j], rows) / seconds * 1e-9;
            }
            if (r < 0 && j + 1 == JOB_COUNT && b->check < 0) /* never: sums are positive */
                puts("");
        }
    }
    if (!rc)
        print_rates(&all);
    return rc;
}

static int bench_file(struct bench *b, const char *path, struct k3_err *err)
{
    int rc = read_matrix(b, path, err);
    for (size_t j = 0; !rc && j < JOB_COUNT; j++) {
        double seconds, first = 0;
        if (jobs[j].is_mx || jobs[j].is_first_pass)
            continue;
        if (k3_quant_needs_amax(jobs[j].to)) { /* counts: a peer looks for it too */
            struct job pass = jobs[j];
            pass.is_first_pass = true;
            b->amax = 0;
            rc = run_job(b, &pass, b->bf16_rows, &first, err);
        }
        if (!rc)
            rc = run_job(b, &jobs[j], b->bf16_rows, &seconds, err);
        if (!rc)
            printf("%s\t%.6f\n", jobs[j].name + strlen("bf16 -> "), first + seconds);
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct bench b = {.cols = COLS, .bf16_rows = BF16_ROWS, .amax = 0x3e00};
    struct k3_err err;
    k3_err_init(&err);
    if (argc != 1 && argc != 4) {
        fprintf(stderr, "usage: bench_quant [FILE ROWS COLS]\n");
        return 2;
    }
    if (argc == 4) {
        b.bf16_rows = strtoull(argv[2], NULL, 10);
        b.cols = strtoull(argv[3], NULL, 10);
    }
    int rc = open_bench(&b, argc == 1, &err);
    if (!rc)
        rc = argc == 4 ? bench_file(&b, argv[1], &err) : bench_forms(&b, &err);
    close_bench(&b);
    if (rc)
        fprintf(stderr, "bench_quant: %s\n", err.text);
    return rc ? 1 : 0;
}
