/* Purpose: MXFP4 codes and scales to BF16, MXFP8, INT8, NVFP4 and FP8 blocks by tables of bytes.
 * Owns: nothing; tables of up to 8 KiB on the stack, made for each call from element codes.
 * Threads: any.
 * Errors: a NaN scale, a group out of the window (K3_OOW_FAIL), each with its index.
 * Invariants: where no group is out of the window, every value is exact, -0 included; a group of
 * zeros is never out of it, whatever its scale. */
#include "cast_mxfp4.h"

#include "bytes.h"
#include "num.h"
#include "quant_ops.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define PIECE_GROUPS    256u
#define BLOCK           128u /* rows and columns of an FP8 block */
#define BLOCK_GROUPS    (BLOCK / K3_MX_GROUP)
#define BLOCK_SPREAD    14    /* 2^(kmax - 6 - 14) * 0.5 is the smallest E4M3, 2^-9 of the scale */
#define BLOCK_TOP       6     /* 6 * 2^6 = 384 fits E4M3, 6 * 2^7 does not */
#define BLOCK_ROWS      32    /* tables of shifts 0..31; from 17 on all codes give 0 */
#define ZERO_SCALE      (-23) /* of a block of zeros: as k3_quant_rows has it */
#define NVFP4_TOP       8     /* block scales are 2^-9 ... 2^8 in E4M3 */
#define NVFP4_SPREAD    17    /* 8 + 9 */
#define NVFP4_MAX_LEAST 8     /* a divisor of 2^(135 - max) must be FP32; smaller max: as this */
#define BF16_MAX        252   /* 6 * 2^125 is the largest that fits */
#define BF16_MOST       0x7f7fu

/* ---- pass 1 ---- */

void k3_mx_window_init(struct k3_mx_window *window, bool is_of_nonzero)
{
    *window = (struct k3_mx_window){.min = 0xff, .max = 0, .is_of_nonzero = is_of_nonzero};
}

void k3_mx_window_merge(struct k3_mx_window *into, const struct k3_mx_window *other)
{
    assert(into->is_of_nonzero == other->is_of_nonzero);
    into->min = other->min < into->min ? other->min : into->min;
    into->max = other->max > into->max ? other->max : into->max;
}

static uint64_t group_total(const struct k3_quant *quant, const struct k3_qrows *rows)
{
    return rows->row_count * (quant->cols / K3_MX_GROUP);
}

static int check_cols(const struct k3_quant *quant, struct k3_err *err)
{
    struct k3_qgeom geom;
    return k3_qfmt_geometry(K3_Q_MXFP4, 1, quant->cols, &geom, err);
}

/* Where group g of these rows stands in its tensor, for a message. */
struct place {
    uint64_t index, row, col;
};

static struct place place_of(const struct k3_quant *quant, const struct k3_qrows *rows, uint64_t g)
{
    uint64_t row_groups = quant->cols / K3_MX_GROUP;
    uint64_t all_cols = quant->cut.tensor_cols ? quant->cut.tensor_cols : quant->cols;
    struct place at = {.row = quant->cut.row + rows->row_first + g / row_groups,
                       .col = quant->cut.col / K3_MX_GROUP + g % row_groups};
    at.index = at.row * (all_cols / K3_MX_GROUP) + at.col;
    return at;
}

/* No scale of these groups is NaN; range: the smallest, the largest. */
static int check_scales(const struct k3_quant *quant, const struct k3_qrows *rows, uint64_t first,
                        size_t count, uint8_t range[2], struct k3_err *err)
{
    const uint8_t *scale = (const uint8_t *)rows->x_scale + first;
    k3_quant_ops()->range(scale, count, &range[0], &range[1]);
    if (range[1] != K3_E8M0_NAN)
        return 0;
    const uint8_t *bad = memchr(scale, K3_E8M0_NAN, count);
    assert(bad);
    struct place at = place_of(quant, rows, first + (uint64_t)(bad - scale));
    return k3_fail(
        err, K3_EFORMAT,
        "tensor %s: the scale at index %" PRIu64 " (row %" PRIu64 ", group %" PRIu64
        ") is 0xff, which is NaN; its 32 values are lost: check the download, or leave this "
        "tensor verbatim",
        quant->name, at.index, at.row, at.col);
}

static size_t piece_count(uint64_t total, uint64_t first)
{
    return total - first < PIECE_GROUPS ? (size_t)(total - first) : PIECE_GROUPS;
}

int k3_mx_scan(const struct k3_quant *quant, const struct k3_qrows *rows,
               struct k3_mx_window *window, struct k3_err *err)
{
    uint64_t total = group_total(quant, rows);
    int rc = check_cols(quant, err);
    for (uint64_t first = 0; rc == 0 && first < total; first += PIECE_GROUPS) {
        struct k3_mx_window piece;
        size_t count = piece_count(total, first);
        uint8_t range[2];
        rc = check_scales(quant, rows, first, count, range, err);
        k3_mx_window_init(&piece, window->is_of_nonzero);
        if (!window->is_of_nonzero) {
            piece.min = range[0];
            piece.max = range[1];
        } else if (range[0] < window->min || range[1] > window->max) {
            uint16_t squares[PIECE_GROUPS];
            const uint8_t *scale = (const uint8_t *)rows->x_scale + first;
            k3_quant_ops()->mx_squares((const uint8_t *)rows->x + first * K3_MX_GROUP_BYTES, count,
                                       squares);
            for (size_t g = 0; g < count; g++) {
                if (squares[g] == 0)
                    continue;
                piece.min = scale[g] < piece.min ? scale[g] : piece.min;
                piece.max = scale[g] > piece.max ? scale[g] : piece.max;
            }
        }
        k3_mx_window_merge(window, &piece);
    }
    return rc;
}

/* The scale that NVFP4's top stands for. */
static int nvfp4_max(const struct k3_mx_window *window)
{
    if (window->min > window->max)
        return K3_F32_EXP_BIAS; /* nothing but zeros: a global of 2^-8 does */
    return window->max > NVFP4_MAX_LEAST ? window->max : NVFP4_MAX_LEAST;
}

enum k3_mx_fit k3_mx_fit(enum k3_qfmt to, const struct k3_mx_window *window)
{
    assert(k3_quant_route(K3_Q_MXFP4, to) == K3_QROUTE_MX);
    if (window->min > window->max)
        return K3_MX_FITS;
    if (to == K3_Q_BF16)
        return window->max <= BF16_MAX ? K3_MX_FITS : K3_MX_UNKNOWN;
    if (to == K3_Q_FP8_BLOCK)
        return window->max - window->min <= BLOCK_SPREAD ? K3_MX_FITS : K3_MX_UNKNOWN;
    if (to != K3_Q_NVFP4 || nvfp4_max(window) - window->min <= NVFP4_SPREAD)
        return K3_MX_FITS;
    return window->is_of_nonzero ? K3_MX_BREACH : K3_MX_UNKNOWN;
}

float k3_mx_global(const struct k3_qparams *params, const struct k3_mx_window *window)
{
    int exponent = nvfp4_max(window) - K3_F32_EXP_BIAS - NVFP4_TOP;
    return k3_f32_pow2(params->conv == K3_QCONV_MODELOPT ? exponent : -exponent);
}

/* ---- one cast ---- */

/* What is the same for all groups of one call. */
struct cast {
    const struct k3_quant *quant;
    const struct k3_qrows *rows;
    struct k3_qstats *stats; /* NULL: nothing is cast, breaches are counted */
    bool must_fit;           /* the first breach is an error */
    uint64_t breach_count;
    uint64_t by_scale[256]; /* sums of (2 * value)^2 */
    int nvfp4_max;
};

/* The largest scale byte of NVFP4 groups, out of the global. */
static int max_of_global(const struct k3_quant *quant)
{
    float multiplier = quant->params.conv == K3_QCONV_MODELOPT ? quant->global : 1 / quant->global;
    int max = 0; /* the exponent by halves: subnormal multipliers too */
    while (max < 255 && k3_f32_pow2(max - K3_F32_EXP_BIAS - NVFP4_TOP) < multiplier)
        max++;
    assert(k3_f32_pow2(max - K3_F32_EXP_BIAS - NVFP4_TOP) == multiplier); /* k3_mx_global's */
    return max;
}

static void begin(struct cast *cast, const struct k3_quant *quant, const struct k3_qrows *rows,
                  struct k3_qstats *stats)
{
    memset(cast, 0, sizeof *cast);
    cast->quant = quant;
    cast->rows = rows;
    cast->stats = stats;
    cast->must_fit = stats && quant->params.oow == K3_OOW_FAIL;
    if (quant->params.to == K3_Q_NVFP4)
        cast->nvfp4_max = max_of_global(quant);
}

static const uint8_t *codes_of(const struct cast *cast, uint64_t g)
{
    return (const uint8_t *)cast->rows->x + g * K3_MX_GROUP_BYTES;
}

static uint8_t scale_of(const struct cast *cast, uint64_t g)
{
    return ((const uint8_t *)cast->rows->x_scale)[g];
}

static unsigned code_at(const uint8_t *packed, unsigned i)
{
    return (unsigned)packed[i / 2] >> (i % 2 * 4) & 15u;
}

/* The largest magnitude code of a group; 7 where codes are not known. */
static unsigned most_code(const struct cast *cast, uint64_t g)
{
    unsigned most = 0;
    if (!cast->rows->x)
        return 7;
    for (unsigned i = 0; i < K3_MX_GROUP; i++) {
        unsigned magnitude = code_at(codes_of(cast, g), i) & 7u;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* Is group g out of the window whose top is scale byte `max`?  The caller has seen that its scale
 * is near enough to an edge to ask. */
static bool is_breach(const struct cast *cast, uint64_t g, int max)
{
    int k = scale_of(cast, g);
    unsigned most = most_code(cast, g);
    switch (cast->quant->params.to) {
    case K3_Q_BF16: /* 4 * 2^126 and 2 * 2^127 are too large, 3 * 2^126 is not */
        return (k == 253 && most >= 6) || (k == 254 && most >= 4);
    case K3_Q_NVFP4:
        return most > 0 && (k > max || max - k > NVFP4_SPREAD);
    default:
        return most > 0 && max - k > BLOCK_SPREAD;
    }
}

static int fail_breach(const struct cast *cast, uint64_t g, int max, struct k3_err *err)
{
    struct place at = place_of(cast->quant, cast->rows, g);
    const bool is_bf16 = cast->quant->params.to == K3_Q_BF16; /* perhaps on the way to another */
    return k3_fail(err, K3_EUNSUPPORTED,
                   "tensor %s: the group at scale index %" PRIu64 " (row %" PRIu64
                   ", group %" PRIu64 ") has scale byte %u, out of the window in which %s is exact "
                   "(largest %d): give --oow requant or --oow snap%s, or keep it with a pattern in "
                   "--quant",
                   cast->quant->name, at.index, at.row, at.col, scale_of(cast, g),
                   k3_qfmt_name(cast->quant->params.to), max,
                   is_bf16 ? " (no help where bf16 is only the way to the format)" : "");
}

/* What values of group g became: an error that is not 0.  `half` are twice the values as they
 * should be read with the source's scale. */
static void add_error(struct cast *cast, double x, double y)
{
    double d = x < y ? y - x : x - y;
    k3_qsum_add(&cast->stats->err2, d * d);
    if (d > cast->stats->max_abs_error)
        cast->stats->max_abs_error = d;
}

/* 2^(byte - 127) in FP64, where no scale is subnormal. */
static double pow2_of_byte(int byte)
{
    uint64_t bits = (uint64_t)(byte - K3_F32_EXP_BIAS + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double value_at(const struct cast *cast, uint64_t g, unsigned i)
{
    return (double)k3_e2m1_values[code_at(codes_of(cast, g), i)] * pow2_of_byte(scale_of(cast, g));
}

/* Codes, squares and zeros of a piece into the statistics. */
static void count_piece(struct cast *cast, uint64_t first, size_t count)
{
    uint16_t squares[PIECE_GROUPS];
    const uint8_t *scale = (const uint8_t *)cast->rows->x_scale + first;
    k3_quant_ops()->mx_squares(codes_of(cast, first), count, squares);
    cast->stats->zero_groups += k3_quant_ops()->mx_sums(squares, scale, count, cast->by_scale);
    cast->stats->group_count += count;
    cast->stats->value_count += count * K3_MX_GROUP;
}

static void end(struct cast *cast)
{
    for (int byte = 0; byte < 255; byte++)
        k3_qsum_add_scaled(&cast->stats->x2, cast->by_scale[byte],
                           2 * (byte - K3_F32_EXP_BIAS) - 2);
    cast->stats->breach_groups += cast->breach_count;
}

/* Count group g, which is out of the window; fail where that is the policy. */
static int meet_breach(struct cast *cast, uint64_t g, int max, struct k3_err *err)
{
    if (cast->must_fit)
        return fail_breach(cast, g, max, err);
    cast->breach_count++;
    return 0;
}

/* ---- MXFP8, INT8: always exact ---- */

static const uint8_t e4m3_of_code[1][16] = {{0x00, 0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c, 0x80,
                                             0xb0, 0xb8, 0xbc, 0xc0, 0xc4, 0xc8, 0xcc}};
static const uint8_t int8_of_code[1][16] = {
    {0, 1, 2, 3, 4, 6, 8, 12, 0, 0xff, 0xfe, 0xfd, 0xfc, 0xfa, 0xf8, 0xf4}};

/* BF16 of 2^(byte - 128), the scale of twice the values. */
static uint16_t half_scale(uint8_t byte)
{
    return (uint16_t)(byte > 1 ? (byte - 1) << 7 : 0x20 << byte);
}

static void to_bytes(const struct cast *cast, uint64_t first, size_t count)
{
    bool is_int8 = cast->quant->params.to == K3_Q_INT8_G32;
    const uint8_t *scale = (const uint8_t *)cast->rows->x_scale + first;
    uint8_t *out = cast->rows->scale;
    k3_quant_ops()->mx_bytes(codes_of(cast, first), count, is_int8 ? int8_of_code : e4m3_of_code,
                             NULL, (uint8_t *)cast->rows->weight + first * K3_MX_GROUP);
    if (is_int8)
        for (size_t g = 0; g < count; g++)
            k3_bf16_put(out, first + g, half_scale(scale[g]));
    else
        memcpy(out + first, scale, count);
}

/* ---- BF16 ---- */

/* BF16 of each code at this scale; beyond the largest it is that, or the scale is the window's
 * edge.
 */
static void bf16_table(int byte, enum k3_oow oow, uint16_t table[16])
{
    int used = oow == K3_OOW_SNAP && byte > BF16_MAX ? BF16_MAX : byte;
    for (unsigned code = 0; code < 16; code++) {
        bool is_over = (used == 253 && (code & 7) >= 6) || (used == 254 && (code & 7) >= 4);
        float value = k3_e2m1_values[code & 7] * k3_e8m0_value((uint8_t)used);
        uint32_t bits = is_over ? BF16_MOST : k3_f32_bits(value) >> 16;
        table[code] = (uint16_t)(bits | (code & 8) << 12);
    }
}

static int bf16_breach(struct cast *cast, uint64_t g, uint8_t *out, struct k3_err *err)
{
    uint16_t table[16];
    int rc = meet_breach(cast, g, BF16_MAX, err);
    if (rc)
        return rc;
    bf16_table(scale_of(cast, g), cast->quant->params.oow, table);
    for (unsigned i = 0; i < K3_MX_GROUP; i++) {
        uint16_t code = table[code_at(codes_of(cast, g), i)];
        k3_bf16_put(out, i, code);
        add_error(cast, value_at(cast, g, i), (double)k3_bf16_value(code));
    }
    return 0;
}

static int to_bf16(struct cast *cast, struct k3_err *err)
{
    uint16_t table[256][16];
    const struct k3_qrows *rows = cast->rows;
    uint64_t total = group_total(cast->quant, rows);
    uint8_t *out = rows->weight, all[2] = {0xff, 0}, range[2];
    int rc = 0;
    for (uint64_t first = 0; rc == 0 && first < total; first += PIECE_GROUPS) {
        size_t count = piece_count(total, first);
        rc = check_scales(cast->quant, rows, first, count, range, err);
        all[0] = range[0] < all[0] ? range[0] : all[0];
        all[1] = range[1] > all[1] ? range[1] : all[1];
    }
    for (int byte = all[0]; rc == 0 && byte <= all[1]; byte++)
        bf16_table(byte, K3_OOW_REQUANT, table[byte]);
    for (uint64_t first = 0; rc == 0 && first < total; first += PIECE_GROUPS) {
        size_t count = piece_count(total, first);
        k3_quant_ops()->mx_words(codes_of(cast, first), count, (const uint16_t(*)[16])table,
                                 (const uint8_t *)rows->x_scale + first,
                                 out + first * 2 * K3_MX_GROUP);
        count_piece(cast, first, count);
        for (uint64_t g = first; rc == 0 && all[1] > BF16_MAX && g < first + count; g++)
            if (scale_of(cast, g) > BF16_MAX && is_breach(cast, g, BF16_MAX))
                rc = bf16_breach(cast, g, out + g * 2 * K3_MX_GROUP, err);
    }
    return rc;
}

/* ---- NVFP4 ---- */

/* The E4M3 byte of 2^(k - max + 8), clamped to the window. */
static uint8_t nvfp4_scale(int k, int max)
{
    int j = k - max + NVFP4_TOP;
    if (j >= -6)
        return (uint8_t)(((j > NVFP4_TOP ? NVFP4_TOP : j) + 7) << 3);
    return (uint8_t)(j < -8 ? 1 : 1 << (j + 9)); /* subnormal: multiples of 2^-9 */
}

/* Codes of a group that is out of the window, and their errors. */
static int nvfp4_breach(struct cast *cast, uint64_t g, uint8_t *out, struct k3_err *err)
{
    int k = scale_of(cast, g), max = cast->nvfp4_max;
    int used = k > max ? max : max - NVFP4_SPREAD; /* the scale as the target reads it */
    int rc = meet_breach(cast, g, max, err);
    if (rc)
        return rc;
    bool is_requant = cast->quant->params.oow == K3_OOW_REQUANT;
    for (unsigned i = 0; i < K3_MX_GROUP; i++) {
        unsigned code = code_at(codes_of(cast, g), i);
        double value = value_at(cast, g, i);
        if (is_requant) /* a quotient by a power of two: exact, or far below half of a step */
            code = k3_e2m1_code((float)(value / pow2_of_byte(used)));
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | code << 4 : code);
        add_error(cast, value, (double)k3_e2m1_values[code] * pow2_of_byte(used));
    }
    return 0;
}

static int to_nvfp4(struct cast *cast, uint64_t first, size_t count, const uint8_t range[2],
                    struct k3_err *err)
{
    uint8_t byte_of[256] = {0};
    int max = cast->nvfp4_max, rc = 0;
    bool may_breach = range[1] > max || max - range[0] > NVFP4_SPREAD;
    uint8_t *out = (uint8_t *)cast->rows->weight + first * K3_MX_GROUP_BYTES;
    uint8_t *scale = (uint8_t *)cast->rows->scale + 2 * first;
    memcpy(out, codes_of(cast, first), count * K3_MX_GROUP_BYTES);
    for (int k = range[0]; k <= range[1]; k++)
        byte_of[k] = nvfp4_scale(k, max);
    for (size_t g = 0; g < count; g++)
        scale[2 * g] = scale[2 * g + 1] = byte_of[scale_of(cast, first + g)];
    for (size_t g = 0; rc == 0 && may_breach && g < count; g++)
        if (is_breach(cast, first + g, max))
            rc = nvfp4_breach(cast, first + g, out + g * K3_MX_GROUP_BYTES, err);
    return rc;
}

/* MXFP8, INT8, NVFP4: group by group, whatever the rows. */
static int to_groups(struct cast *cast, struct k3_err *err)
{
    uint64_t total = group_total(cast->quant, cast->rows);
    int rc = 0;
    for (uint64_t first = 0; rc == 0 && first < total; first += PIECE_GROUPS) {
        size_t count = piece_count(total, first);
        uint8_t range[2];
        rc = check_scales(cast->quant, cast->rows, first, count, range, err);
        if (rc)
            break;
        count_piece(cast, first, count);
        if (cast->quant->params.to == K3_Q_NVFP4)
            rc = to_nvfp4(cast, first, count, range, err);
        else
            to_bytes(cast, first, count);
    }
    return rc;
}

/* ---- FP8 blocks ---- */

/* Rows [row, row_end) of at most 128, and groups [group, group + count) of each of them. */
struct stripe {
    uint64_t row, row_end, group;
    size_t count;
    int16_t max[PIECE_GROUPS / BLOCK_GROUPS]; /* of each block; -1: zeros only */
};

/* The groups of one row of a block; most rows have none above those before. */
static inline void raise_max(const struct cast *cast, uint64_t g, size_t count, int16_t *max)
{
    const uint8_t *scale = (const uint8_t *)cast->rows->x_scale + g;
    uint8_t most = scale[0];
    for (size_t k = 1; k < count; k++)
        most = scale[k] > most ? scale[k] : most;
    for (size_t k = 0; most > *max && k < count; k++)
        if (scale[k] > *max && most_code(cast, g + k) > 0)
            *max = scale[k];
}

/* The largest scale of the non-zero groups of each block: so a group of zeros is looked at only
 * where its scale would be the largest. */
static void stripe_max(const struct cast *cast, struct stripe *stripe)
{
    uint64_t row_groups = cast->quant->cols / K3_MX_GROUP;
    memset(stripe->max, 0xff, sizeof stripe->max);
    for (uint64_t i = stripe->row; i < stripe->row_end; i++) {
        uint64_t at = i * row_groups + stripe->group;
        for (size_t k = 0; k < stripe->count; k += BLOCK_GROUPS) {
            size_t left = stripe->count - k;
            raise_max(cast, at + k, left < BLOCK_GROUPS ? left : BLOCK_GROUPS,
                      &stripe->max[k / BLOCK_GROUPS]);
        }
    }
}

static int block_breach(struct cast *cast, uint64_t g, int max, const uint8_t table[16],
                        struct k3_err *err)
{
    int rc = meet_breach(cast, g, max, err);
    if (rc || !cast->stats)
        return rc;
    for (unsigned i = 0; i < K3_MX_GROUP; i++) {
        uint8_t code = table[code_at(codes_of(cast, g), i)];
        add_error(cast, value_at(cast, g, i),
                  (double)k3_e4m3_value(code) * pow2_of_byte(max) / (1 << BLOCK_TOP));
    }
    return 0;
}

/* Shifts of a row where some scale is above its block's (a group of zeros) or far below. */
static int edge_picks(struct cast *cast, const struct stripe *stripe, uint64_t g,
                      const uint8_t (*table)[16], uint8_t *pick, struct k3_err *err)
{
    int last = cast->quant->params.oow == K3_OOW_SNAP ? BLOCK_SPREAD : BLOCK_ROWS - 1, rc = 0;
    for (size_t k = 0; rc == 0 && k < stripe->count; k++) {
        int max = stripe->max[k / BLOCK_GROUPS], shift = max - scale_of(cast, g + k);
        pick[k] = (uint8_t)(shift < 0 ? 0 : shift > last ? last : shift);
        if (shift > BLOCK_SPREAD && is_breach(cast, g + k, max))
            rc = block_breach(cast, g + k, max, table[pick[k]], err);
    }
    return rc;
}

/* One row of a stripe, from group g of the call on. */
static int stripe_row(struct cast *cast, const struct stripe *stripe, uint64_t g,
                      const uint8_t (*table)[16], struct k3_err *err)
{
    uint8_t pick[PIECE_GROUPS];
    const uint8_t *scale = (const uint8_t *)cast->rows->x_scale + g;
    unsigned is_edge = 0;
    int rc = 0;
    for (size_t k = 0; k < stripe->count; k++) {
        unsigned shift = (unsigned)(stripe->max[k / BLOCK_GROUPS] - scale[k]);
        is_edge |= shift > BLOCK_SPREAD;
        pick[k] = (uint8_t)shift;
    }
    if (is_edge)
        rc = edge_picks(cast, stripe, g, table, pick, err);
    if (rc == 0 && cast->stats)
        k3_quant_ops()->mx_bytes(codes_of(cast, g), stripe->count, table, pick,
                                 (uint8_t *)cast->rows->weight + g * K3_MX_GROUP);
    return rc;
}

/* E4M3 of value * 2^(6 - shift): exact up to shift 14, nearest even beyond. */
static void block_table(uint8_t table[BLOCK_ROWS][16])
{
    for (int shift = 0; shift < BLOCK_ROWS; shift++)
        for (unsigned code = 0; code < 16; code++)
            table[shift][code] = k3_e4m3_code(k3_e2m1_values[code] *
                                              k3_f32_pow2(BLOCK_TOP - shift));
}

static void store_scales(const struct cast *cast, const struct stripe *stripe)
{
    uint64_t row_blocks = k3_div_up(cast->quant->cols, BLOCK);
    uint64_t first = stripe->row / BLOCK * row_blocks + stripe->group / BLOCK_GROUPS;
    for (size_t b = 0; b * BLOCK_GROUPS < stripe->count; b++) {
        int max = stripe->max[b];
        float value = k3_f32_pow2(max < 0 ? ZERO_SCALE : max - K3_F32_EXP_BIAS - BLOCK_TOP);
        memcpy((uint8_t *)cast->rows->scale + (first + b) * sizeof value, &value, sizeof value);
    }
}

/* Blocks of the rows [row, row_end), at most 128. */
static int to_stripe(struct cast *cast, uint64_t row, uint64_t row_end, const uint8_t (*table)[16],
                     struct k3_err *err)
{
    uint64_t row_groups = cast->quant->cols / K3_MX_GROUP;
    int rc = 0;
    for (uint64_t group = 0; rc == 0 && group < row_groups; group += PIECE_GROUPS) {
        struct stripe stripe = {.row = row, .row_end = row_end, .group = group};
        stripe.count = piece_count(row_groups, group);
        stripe_max(cast, &stripe);
        if (cast->stats)
            store_scales(cast, &stripe);
        for (uint64_t i = row; rc == 0 && i < row_end; i++)
            rc = stripe_row(cast, &stripe, i * row_groups + group, table, err);
    }
    return rc;
}

static int to_blocks(struct cast *cast, struct k3_err *err)
{
    uint8_t table[BLOCK_ROWS][16];
    uint64_t total = group_total(cast->quant, cast->rows), row_count = cast->rows->row_count;
    uint8_t range[2];
    int rc = 0;
    assert(cast->rows->row_first % BLOCK == 0);
    block_table(table);
    for (uint64_t first = 0; rc == 0 && first < total; first += PIECE_GROUPS) {
        size_t count = piece_count(total, first);
        rc = check_scales(cast->quant, cast->rows, first, count, range, err);
        if (rc == 0 && cast->stats)
            count_piece(cast, first, count);
    }
    for (uint64_t row = 0; rc == 0 && row < row_count; row += BLOCK)
        rc = to_stripe(cast, row, row_count - row < BLOCK ? row_count : row + BLOCK,
                       (const uint8_t(*)[16])table, err);
    return rc;
}

/* ---- the calls ---- */

int k3_mx_breaches(const struct k3_quant *quant, const struct k3_qrows *rows, uint64_t *count,
                   struct k3_err *err)
{
    struct cast cast;
    enum k3_qfmt to = quant->params.to;
    uint64_t total = group_total(quant, rows);
    int rc = check_cols(quant, err);
    begin(&cast, quant, rows, NULL);
    int max = to == K3_Q_BF16 ? BF16_MAX : cast.nvfp4_max;
    cast.must_fit = !count;
    if (rc == 0 && to == K3_Q_FP8_BLOCK)
        rc = to_blocks(&cast, err);
    for (uint64_t g = 0; rc == 0 && to != K3_Q_FP8_BLOCK && g < total; g += PIECE_GROUPS) {
        uint8_t range[2];
        rc = check_scales(quant, rows, g, piece_count(total, g), range, err);
        if (to != K3_Q_BF16 && to != K3_Q_NVFP4)
            continue; /* always exact */
        for (uint64_t k = g; rc == 0 && k < g + piece_count(total, g); k++)
            if (is_breach(&cast, k, max))
                rc = meet_breach(&cast, k, max, err);
    }
    if (count)
        *count += cast.breach_count;
    return rc;
}

int k3_mx_rows(const struct k3_quant *quant, const struct k3_qrows *rows, struct k3_qstats *stats,
               struct k3_err *err)
{
    struct cast cast;
    enum k3_qfmt to = quant->params.to;
    assert(k3_quant_route(K3_Q_MXFP4, to) == K3_QROUTE_MX);
    int rc = check_cols(quant, err);
    if (rc || rows->row_count == 0)
        return rc;
    begin(&cast, quant, rows, stats);
    rc = to == K3_Q_BF16        ? to_bf16(&cast, err)
         : to == K3_Q_FP8_BLOCK ? to_blocks(&cast, err)
                                : to_groups(&cast, err);
    if (rc == 0)
        end(&cast);
    return rc;
}
