/* Purpose: BF16 rows to every format: scales here, inner loops by k3_quant_ops.
 * Owns: nothing; some KiB of stack for the scales of a piece of a row.
 * Threads: any.
 * Errors: a value that is not finite, with its place.
 * Invariants: a row is worked on in pieces that begin at multiples of PIECE_COLS, so that lanes of
 * sums do not depend on how rows come; scales follow from amax alone (mse: from the group). */
#include "quant.h"

#include "num.h"
#include "quant_ops.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define PIECE_COLS      4096u /* a multiple of 128; its BF16 values stay in the first cache */
#define GROUP_COLS_MIN  16u
#define PIECE_GROUPS    (PIECE_COLS / GROUP_COLS_MIN)
#define BLOCK           128u
#define MX_GROUP        32u
#define FP8_ZERO_SCALE  0x1p-23f /* epsilon of FP32, the same for an FP8 scale */
#define BF16_ZERO_SCALE 0x1p-7f  /* epsilon of BF16, for scales stored or computed in BF16 */

/* One piece of a row, and what its groups get. */
struct piece {
    const uint8_t *x;
    size_t count, group_cols, group_count;
    uint16_t amax[PIECE_GROUPS];
    float scale[PIECE_GROUPS];
};

static float value_of(uint16_t amax)
{
    return k3_bf16_value(amax);
}

/* The values at x hold one that is not finite: say which. */
static int fail_not_finite(const struct k3_quant *quant, const uint8_t *x, uint64_t row,
                           uint64_t col, struct k3_err *err)
{
    uint64_t cols = quant->cut.tensor_cols ? quant->cut.tensor_cols : quant->cols;
    while ((k3_bf16_at(x, 0) & 0x7fffu) < K3_BF16_INF) {
        x += 2;
        col++;
    }
    row += quant->cut.row;
    col += quant->cut.col;
    return k3_fail(err, K3_EFORMAT,
                   "tensor %s holds a value that is not finite (BF16 0x%04x) at index %" PRIu64
                   " (row %" PRIu64 ", column %" PRIu64 "); a cast to %s needs finite values: "
                   "check the download, or leave this tensor verbatim",
                   quant->name, k3_bf16_at(x, 0), row * cols + col, row, col,
                   k3_qfmt_name(quant->params.to));
}

/* amax of each group of columns [col, ...) of a row, all finite. */
static int read_piece(const struct k3_quant *quant, const struct k3_qrows *rows, uint64_t i,
                      uint64_t col, struct piece *piece, struct k3_err *err)
{
    uint64_t left = quant->cols - col;
    piece->count = left < PIECE_COLS ? (size_t)left : PIECE_COLS;
    piece->x = (const uint8_t *)rows->x + 2 * (i * quant->cols + col);
    piece->group_count = (piece->count + piece->group_cols - 1) / piece->group_cols;
    k3_quant_ops()->amax(piece->x, piece->count, piece->group_cols, piece->amax);
    for (size_t g = 0; g < piece->group_count; g++)
        if (piece->amax[g] >= K3_BF16_INF)
            return fail_not_finite(quant, piece->x + 2 * g * piece->group_cols, rows->row_first + i,
                                   col + g * piece->group_cols, err);
    return 0;
}

/* ---- scales ---- */

static float fp8_scale(const struct k3_qparams *params, uint16_t amax)
{
    bool is_bf16 = params->conv == K3_QCONV_MODELOPT;
    if (params->pow2_scales)
        return amax ? k3_e8m0_value(
                          k3_scale_byte(K3_SCALE_RCEIL, K3_SCALE_E4M3, (uint32_t)amax << 16))
                    : FP8_ZERO_SCALE;
    float scale = value_of(amax) / K3_E4M3_MAX;
    if (is_bf16)
        scale = k3_bf16_value(k3_bf16_code(scale));
    return scale > 0 ? scale : is_bf16 ? BF16_ZERO_SCALE : FP8_ZERO_SCALE;
}

float k3_quant_global(const struct k3_qparams *params, uint16_t amax_bits)
{
    const float top = K3_E2M1_MAX * K3_E4M3_MAX;
    float amax = value_of(amax_bits);
    if (params->to == K3_Q_FP8_TENSOR)
        return fp8_scale(params, amax_bits);
    assert(params->to == K3_Q_NVFP4);
    if (amax_bits == 0)
        return 1;
    if (params->conv == K3_QCONV_MODELOPT)
        return amax / top;
    /* An amax below the smallest normal number counts as that, and what overflows becomes 1, as
     * compressed-tensors has it. */
    float global = top / (amax > 0x1p-126f ? amax : 0x1p-126f);
    return (k3_f32_bits(global) & 0x7fffffffu) < 0x7f800000u ? global : 1;
}

/* Codes and sums of one MX group by one scale byte. */
static void mx_try(const struct k3_quant *quant, const uint8_t *x, uint8_t byte, double *error)
{
    uint8_t out[MX_GROUP];
    float scale = k3_e8m0_value(byte);
    struct k3_qlanes lanes = {0};
    struct k3_qrun run = {x, MX_GROUP, MX_GROUP, &scale, false, out};
    if (quant->params.to == K3_Q_MXFP4)
        k3_quant_ops()->e2m1(&run, &lanes);
    else
        k3_quant_ops()->e4m3(&run, &lanes);
    *error = 0;
    for (size_t k = 0; k < K3_QUANT_LANES; k++)
        *error += lanes.err2[k];
}

/* The byte around that of the floor rule with the least squared error; of equals the smallest. */
static uint8_t mse_byte(const struct k3_quant *quant, const uint8_t *x, uint8_t floor_byte)
{
    int first = floor_byte < K3_SCALE_MSE_BELOW ? 0 : floor_byte - K3_SCALE_MSE_BELOW;
    int last = floor_byte + K3_SCALE_MSE_ABOVE, best = first;
    double least = 0, error;
    for (int byte = first; byte <= last && byte < (int)K3_E8M0_NAN; byte++) {
        mx_try(quant, x, (uint8_t)byte, &error);
        if (byte == first || error < least) {
            least = error;
            best = byte;
        }
    }
    return (uint8_t)best;
}

static uint8_t mx_byte(const struct k3_quant *quant, const uint8_t *x, uint16_t amax)
{
    const struct k3_qparams *params = &quant->params;
    enum k3_scale_element element = params->to == K3_Q_MXFP4 ? K3_SCALE_E2M1 : K3_SCALE_E4M3;
    uint8_t byte = k3_scale_byte(params->rule, element, (uint32_t)amax << 16);
    return params->rule == K3_SCALE_MSE && amax ? mse_byte(quant, x, byte) : byte;
}

static float int_scale(uint16_t amax, float half_range, uint16_t *code)
{
    *code = k3_bf16_code(value_of(amax) / half_range);
    if (*code == 0)
        *code = k3_bf16_code(BF16_ZERO_SCALE);
    return k3_bf16_value(*code);
}

/* Scales of the groups of a piece; stored ones from group `first` of the row at `scale`. */
static void piece_scales(const struct k3_quant *quant, struct piece *piece, uint8_t *scale,
                         size_t first)
{
    enum k3_qfmt to = quant->params.to;
    if (to == K3_Q_NVFP4) {
        k3_quant_ops()->nvfp4_scales(
            &(struct k3_nvfp4_groups){.amax = piece->amax,
                                      .count = piece->group_count,
                                      .global = quant->global,
                                      .is_multiplier = quant->params.conv == K3_QCONV_MODELOPT,
                                      .byte = scale + first,
                                      .scale = piece->scale});
        return;
    }
    for (size_t g = 0; g < piece->group_count; g++) {
        uint16_t code;
        switch (to) {
        case K3_Q_MXFP4:
        case K3_Q_MXFP8:
            scale[first + g] = mx_byte(quant, piece->x + 2 * g * MX_GROUP, piece->amax[g]);
            piece->scale[g] = k3_e8m0_value(scale[first + g]);
            break;
        default:
            piece->scale[g] = int_scale(piece->amax[g], to == K3_Q_INT8_G32 ? 127.5f : 7.5f, &code);
            k3_bf16_put(scale, first + g, code);
        }
    }
}

/* ---- rows ---- */

/* A group is saturated where its largest value lies beyond the largest of the format. */
static void count_groups(const struct k3_quant *quant, const struct piece *piece,
                         struct k3_qstats *stats)
{
    static const float most[K3_QFMT_COUNT] = {
        [K3_Q_MXFP4] = K3_E2M1_MAX, [K3_Q_NVFP4] = K3_E2M1_MAX, [K3_Q_MXFP8] = K3_E4M3_MAX,
        [K3_Q_INT4_G32] = 7.5f,     [K3_Q_INT4_G128] = 7.5f,    [K3_Q_INT8_G32] = 127.5f};
    size_t zero_count = 0;
    for (size_t g = 0; g < piece->group_count; g++)
        zero_count += piece->amax[g] == 0;
    stats->group_count += piece->group_count;
    stats->zero_groups += zero_count;
    stats->saturated_groups += k3_quant_ops()->saturated(
        piece->amax, piece->scale, piece->group_count, most[quant->params.to]);
}

static void encode(enum k3_qfmt to, const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    const struct k3_quant_ops *ops = k3_quant_ops();
    switch (to) {
    case K3_Q_MXFP4:
    case K3_Q_NVFP4:
        ops->e2m1(run, lanes);
        break;
    case K3_Q_INT4_G32:
    case K3_Q_INT4_G128:
        ops->int4(run, lanes);
        break;
    case K3_Q_INT8_G32:
        ops->int8(run, lanes);
        break;
    default:
        ops->e4m3(run, lanes);
    }
}

static void encode_piece(const struct k3_quant *quant, const struct piece *piece, uint8_t *out,
                         struct k3_qlanes *lanes)
{
    struct k3_qrun run = {.x = piece->x,
                          .count = piece->count,
                          .group_cols = piece->group_cols,
                          .scale = piece->scale,
                          .is_bf16 = quant->params.conv == K3_QCONV_MODELOPT &&
                                     quant->params.to != K3_Q_MXFP8,
                          .out = out};
    encode(quant->params.to, &run, lanes);
}

static void end_row(const struct k3_quant *quant, const struct k3_qlanes *lanes,
                    struct k3_qstats *stats)
{
    double x2 = 0, err2 = 0;
    for (size_t k = 0; k < K3_QUANT_LANES; k++) {
        x2 += lanes->x2[k];
        err2 += lanes->err2[k];
    }
    k3_qsum_add(&stats->x2, x2);
    k3_qsum_add(&stats->err2, err2);
    if (lanes->max_abs_error > stats->max_abs_error)
        stats->max_abs_error = lanes->max_abs_error;
    stats->value_count += quant->cols;
}

/* Groups within one row: MXFP4, MXFP8, NVFP4, INT4, INT8. */
static int grouped_rows(const struct k3_quant *quant, const struct k3_qrows *rows,
                        const struct k3_qgeom *geom, struct k3_qstats *stats, struct k3_err *err)
{
    struct piece piece = {.group_cols = geom->group_cols};
    for (uint64_t i = 0; i < rows->row_count; i++) {
        struct k3_qlanes lanes = {0};
        uint8_t *out = (uint8_t *)rows->weight + i * geom->weight_row_bytes;
        uint8_t *scale = (uint8_t *)rows->scale + i * geom->scale_row_bytes;
        for (uint64_t col = 0; col < quant->cols; col += PIECE_COLS) {
            int rc = read_piece(quant, rows, i, col, &piece, err);
            if (rc)
                return rc;
            piece_scales(quant, &piece, scale, (size_t)col / geom->group_cols);
            count_groups(quant, &piece, stats);
            encode_piece(quant, &piece, out + col * geom->weight_row_bytes / quant->cols, &lanes);
        }
        end_row(quant, &lanes, stats);
    }
    return 0;
}

/* FP8 with one scale for all of a row. */
static int fp8_row(const struct k3_quant *quant, const struct k3_qrows *rows, uint64_t i,
                   float scale, struct k3_qstats *stats)
{
    struct k3_qlanes lanes = {0};
    struct piece piece = {.group_cols = PIECE_COLS, .scale = {scale}};
    uint8_t *out = (uint8_t *)rows->weight + i * quant->cols;
    for (uint64_t col = 0; col < quant->cols; col += PIECE_COLS) {
        uint64_t left = quant->cols - col;
        piece.x = (const uint8_t *)rows->x + 2 * (i * quant->cols + col);
        piece.count = left < PIECE_COLS ? (size_t)left : PIECE_COLS;
        encode_piece(quant, &piece, out + col, &lanes);
    }
    end_row(quant, &lanes, stats);
    return 0;
}

static int row_amax(const struct k3_quant *quant, const struct k3_qrows *rows, uint64_t i,
                    uint16_t *amax, struct k3_err *err)
{
    struct piece piece = {.group_cols = PIECE_COLS};
    for (uint64_t col = 0; col < quant->cols; col += PIECE_COLS) {
        int rc = read_piece(quant, rows, i, col, &piece, err);
        if (rc)
            return rc;
        *amax = piece.amax[0] > *amax ? piece.amax[0] : *amax;
    }
    return 0;
}

int k3_quant_amax(const struct k3_quant *quant, const struct k3_qrows *rows, uint16_t *amax_bits,
                  struct k3_err *err)
{
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < rows->row_count; i++)
        rc = row_amax(quant, rows, i, amax_bits, err);
    return rc;
}

/* FP8 per tensor or per channel. */
static int fp8_rows(const struct k3_quant *quant, const struct k3_qrows *rows,
                    struct k3_qstats *stats, struct k3_err *err)
{
    bool is_channel = quant->params.to == K3_Q_FP8_CHANNEL;
    if (!is_channel && rows->row_first == 0)
        stats->group_count++;
    for (uint64_t i = 0; i < rows->row_count; i++) {
        uint16_t amax = 0;
        int rc = row_amax(quant, rows, i, &amax, err);
        if (rc)
            return rc;
        float scale = is_channel ? fp8_scale(&quant->params, amax) : quant->global;
        if (is_channel) {
            memcpy((uint8_t *)rows->scale + i * sizeof scale, &scale, sizeof scale);
            stats->group_count++;
            stats->zero_groups += amax == 0;
        }
        fp8_row(quant, rows, i, scale, stats);
    }
    return 0;
}

/* Scales of the blocks of up to 128 rows from row i on. */
static int stripe_scales(const struct k3_quant *quant, const struct k3_qrows *rows, uint64_t i,
                         uint8_t *scale, struct k3_qstats *stats, struct k3_err *err)
{
    struct piece piece = {.group_cols = BLOCK};
    uint64_t end = rows->row_count - i < BLOCK ? rows->row_count : i + BLOCK;
    for (uint64_t col = 0; col < quant->cols; col += PIECE_COLS) {
        uint16_t amax[PIECE_COLS / BLOCK] = {0};
        for (uint64_t k = i; k < end; k++) {
            int rc = read_piece(quant, rows, k, col, &piece, err);
            if (rc)
                return rc;
            for (size_t g = 0; g < piece.group_count; g++)
                amax[g] = piece.amax[g] > amax[g] ? piece.amax[g] : amax[g];
        }
        for (size_t g = 0; g < piece.group_count; g++) {
            float value = fp8_scale(&quant->params, amax[g]);
            memcpy(scale + (col / BLOCK + g) * sizeof value, &value, sizeof value);
            stats->zero_groups += amax[g] == 0;
        }
        stats->group_count += piece.group_count;
    }
    return 0;
}

/* FP8 in blocks of 128 rows and 128 columns; the last of each may be short. */
static int block_rows(const struct k3_quant *quant, const struct k3_qrows *rows,
                      const struct k3_qgeom *geom, struct k3_qstats *stats, struct k3_err *err)
{
    struct piece piece = {.group_cols = BLOCK};
    assert(rows->row_first % BLOCK == 0);
    for (uint64_t i = 0; i < rows->row_count; i++) {
        uint8_t *scale = (uint8_t *)rows->scale + i / BLOCK * geom->scale_row_bytes;
        struct k3_qlanes lanes = {0};
        int rc = i % BLOCK ? 0 : stripe_scales(quant, rows, i, scale, stats, err);
        if (rc)
            return rc;
        for (uint64_t col = 0; col < quant->cols; col += PIECE_COLS) {
            uint64_t left = quant->cols - col;
            piece.x = (const uint8_t *)rows->x + 2 * (i * quant->cols + col);
            piece.count = left < PIECE_COLS ? (size_t)left : PIECE_COLS;
            size_t group_count = (piece.count + BLOCK - 1) / BLOCK;
            memcpy(piece.scale, scale + col / BLOCK * sizeof(float), group_count * sizeof(float));
            encode_piece(quant, &piece, (uint8_t *)rows->weight + i * quant->cols + col, &lanes);
        }
        end_row(quant, &lanes, stats);
    }
    return 0;
}

int k3_quant_rows(const struct k3_quant *quant, const struct k3_qrows *rows,
                  struct k3_qstats *stats, struct k3_err *err)
{
    struct k3_qgeom geom;
    if (rows->row_count == 0)
        return 0;
    int rc = k3_qfmt_geometry(quant->params.to, rows->row_count, quant->cols, &geom, err);
    if (rc)
        return rc;
    switch (quant->params.to) {
    case K3_Q_FP8_TENSOR:
    case K3_Q_FP8_CHANNEL:
        return fp8_rows(quant, rows, stats, err);
    case K3_Q_FP8_BLOCK:
        return block_rows(quant, rows, &geom, stats, err);
    default:
        assert(k3_quant_route(K3_Q_BF16, quant->params.to) == K3_QROUTE_QUANT);
        return grouped_rows(quant, rows, &geom, stats, err);
    }
}
