/* Purpose: cast one matrix to every format through the library, for a program that reads the result
 * by itself (tests/python/test_cast_published.py).
 *   make_cast DIR ROWS COLS
 * DIR/x is the matrix in BF16.  DIR/FORMAT.weight and FORMAT.scale come out of it, then out of its
 * MXFP4 mxfp4-FORMAT.weight and .scale; a line of JSON for each says its global and statistics.
 * Owns: the files it makes.  Threads: one.
 * Errors: those of the casts on stderr, with the exit codes of k3-shard; 2: usage.
 * Invariant: lines for all formats, or an exit code that is not 0. */
#include "bytes.h"
#include "cast_mxfp4.h"
#include "fs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The source of one cast: BF16, or MXFP4 with its scales. */
struct source {
    const struct k3_dir *dir;
    const char *prefix;
    enum k3_qfmt fmt;
    uint64_t rows, cols;
    const void *x, *x_scale;
};

static int write_file(const struct k3_dir *dir, const char *name, const void *data, uint64_t bytes,
                      struct k3_err *err)
{
    int fd = -1;
    int rc = k3_file_create(dir, name, &fd, err);
    if (rc)
        return rc;
    rc = k3_file_write(fd, name, data, (size_t)bytes, 0, err);
    return k3_file_close(fd, name, rc ? NULL : err) && !rc ? K3_EIO : rc;
}

/* The global scale, as a conversion finds it. */
static int find_global(const struct source *from, struct k3_quant *quant, struct k3_err *err)
{
    struct k3_qrows rows = {.x = from->x, .x_scale = from->x_scale, .row_count = from->rows};
    struct k3_mx_window window;
    uint16_t amax = 0;
    int rc = 0;
    if (!k3_quant_needs_amax(quant->params.to))
        return 0;
    if (from->fmt == K3_Q_BF16) {
        rc = k3_quant_amax(quant, &rows, &amax, err);
        quant->global = k3_quant_global(&quant->params, amax);
        return rc;
    }
    k3_mx_window_init(&window, false);
    rc = k3_mx_scan(quant, &rows, &window, err);
    if (!rc && k3_mx_fit(K3_Q_NVFP4, &window) != K3_MX_FITS) {
        k3_mx_window_init(&window, true);
        rc = k3_mx_scan(quant, &rows, &window, err);
    }
    quant->global = k3_mx_global(&quant->params, &window);
    return rc;
}

static void print_line(const struct source *from, const struct k3_quant *quant,
                       const struct k3_qstats *stats)
{
    bool lossless = k3_qstats_lossless(stats);
    printf("{\"name\":\"%s%s\",\"global\":%.9g,\"lossless\":%s,\"sqnr_db\":%.17g,"
           "\"max_abs_error\":%.17g,\"values\":%" PRIu64 ",\"groups\":%" PRIu64
           ",\"zero_groups\":%" PRIu64 ",\"saturated_groups\":%" PRIu64
           ",\"out_of_window_groups\":%" PRIu64 "}\n",
           from->prefix, k3_qfmt_name(quant->params.to), (double)quant->global,
           lossless ? "true" : "false", lossless ? 0.0 : k3_qstats_sqnr_db(stats),
           stats->max_abs_error, stats->value_count, stats->group_count, stats->zero_groups,
           stats->saturated_groups, stats->breach_groups);
}

static int cast_rows(const struct source *from, struct k3_quant *quant, const struct k3_qgeom *geom,
                     void *weight, void *scale, struct k3_err *err)
{
    char name[64];
    struct k3_qstats stats;
    struct k3_qrows rows = {.x = from->x,
                            .x_scale = from->x_scale,
                            .row_count = from->rows,
                            .weight = weight,
                            .scale = geom->scale_suffix ? scale : NULL};
    int rc = find_global(from, quant, err);
    k3_qstats_init(&stats);
    if (!rc)
        rc = from->fmt == K3_Q_BF16 ? k3_quant_rows(quant, &rows, &stats, err)
                                    : k3_mx_rows(quant, &rows, &stats, err);
    if (rc)
        return rc;
    print_line(from, quant, &stats);
    snprintf(name, sizeof name, "%s%s.weight", from->prefix, k3_qfmt_name(quant->params.to));
    rc = write_file(from->dir, name, weight, geom->weight_bytes, err);
    snprintf(name, sizeof name, "%s%s.scale", from->prefix, k3_qfmt_name(quant->params.to));
    return rc || !geom->scale_suffix ? rc
                                     : write_file(from->dir, name, scale, geom->scale_bytes, err);
}

static int cast_to(const struct source *from, enum k3_qfmt to, struct k3_err *err)
{
    struct k3_quant quant = {.name = "x", .params = k3_qparams_default(to), .cols = from->cols};
    struct k3_qgeom geom;
    int rc = k3_qfmt_geometry(to, from->rows, from->cols, &geom, err);
    if (rc)
        return rc;
    uint8_t *made = malloc((size_t)(geom.weight_bytes + geom.scale_bytes));
    if (!made)
        return k3_fail(err, K3_ENOMEM, "no memory for a cast to %s", k3_qfmt_name(to));
    rc = cast_rows(from, &quant, &geom, made, made + geom.weight_bytes, err);
    free(made);
    return rc;
}

/* All formats that are made of this source directly. */
static int cast_all(const struct source *from, struct k3_err *err)
{
    enum k3_qroute wanted = from->fmt == K3_Q_BF16 ? K3_QROUTE_QUANT : K3_QROUTE_MX;
    int rc = 0;
    for (int to = 0; to < K3_QFMT_COUNT && !rc; to++)
        if (k3_quant_route(from->fmt, (enum k3_qfmt)to) == wanted)
            rc = cast_to(from, (enum k3_qfmt)to, err);
    return rc;
}

static int load(const struct k3_dir *dir, const char *name, uint64_t wanted_bytes, char **data,
                struct k3_err *err)
{
    size_t bytes = 0;
    int rc = k3_file_load(dir, name, wanted_bytes, data, &bytes, err);
    if (!rc && bytes != wanted_bytes)
        rc = k3_fail(err, K3_EFORMAT, "%s: %zu bytes, wanted %" PRIu64, name, bytes, wanted_bytes);
    return rc;
}

static int run(const char *path, uint64_t rows, uint64_t cols, struct k3_err *err)
{
    char *x = NULL, *codes = NULL, *scale = NULL;
    struct k3_dir dir;
    int rc = k3_dir_open(path, false, &dir, err);
    if (rc)
        return rc;
    rc = load(&dir, "x", rows * cols * 2, &x, err);
    if (!rc) {
        const struct source bf16 = {&dir, "", K3_Q_BF16, rows, cols, x, NULL};
        rc = cast_all(&bf16, err);
    }
    if (!rc)
        rc = load(&dir, "mxfp4.weight", rows * cols / 2, &codes, err);
    if (!rc)
        rc = load(&dir, "mxfp4.scale", rows * cols / K3_MX_GROUP, &scale, err);
    if (!rc) {
        const struct source mx = {&dir, "mxfp4-", K3_Q_MXFP4, rows, cols, codes, scale};
        rc = cast_all(&mx, err);
    }
    free(x);
    free(codes);
    free(scale);
    k3_dir_close(&dir);
    return rc;
}

int main(int argc, char **argv)
{
    struct k3_err err;
    char *end[2] = {NULL, NULL};
    if (argc != 4)
        return 2;
    uint64_t rows = strtoull(argv[2], &end[0], 10), cols = strtoull(argv[3], &end[1], 10);
    if (*end[0] || *end[1] || !rows || !cols || rows > K3_QUANT_DIM_MAX || cols > K3_QUANT_DIM_MAX)
        return 2;
    k3_err_init(&err);
    int rc = run(argv[1], rows, cols, &err);
    if (rc)
        fprintf(stderr, "make_cast: %s\n", err.text);
    return k3_exit_code(rc);
}
