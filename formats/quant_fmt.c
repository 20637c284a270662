/* Purpose: what the formats of casts are called, how large they are, what becomes what.
 * Owns: nothing.
 * Threads: any; constant tables.
 * Errors: columns that do not divide, sizes beyond K3_QUANT_DIM_MAX.
 * Invariants: the table has one row for each enum k3_qfmt. */
#include "quant.h"

#include "bytes.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define BLOCK 128u /* rows and columns of an FP8 block */

/* One row: bits of a value, the dtype that holds it and how many values one such element holds; the
 * scale's dtype (row_scale: 0 none, else values of a row that share one; ALL: the whole row). */
#define ALL UINT32_MAX
struct row {
    const char *name, *weight, *scale, *global;
    uint8_t dtype, per_element, bits, scale_dtype;
    uint32_t group_rows, group_cols;
    bool has_shape;
};

static const struct row row[K3_QFMT_COUNT] = {
    [K3_Q_VERBATIM] = {.name = "verbatim"},
    [K3_Q_BF16] = {"bf16", "weight", NULL, NULL, K3_BF16, 1, 16, 0, 1, 1, false},
    [K3_Q_MXFP4] = {"mxfp4", "weight_packed", "weight_scale", NULL, K3_U8, 2, 4, K3_U8, 1, 32,
                    false},
    [K3_Q_MXFP8] = {"mxfp8", "weight", "weight_scale", NULL, K3_F8_E4M3, 1, 8, K3_U8, 1, 32, false},
    [K3_Q_NVFP4] = {"nvfp4", "weight_packed", "weight_scale", "weight_global_scale", K3_U8, 2, 4,
                    K3_F8_E4M3, 1, 16, false},
    [K3_Q_FP8_TENSOR] = {"fp8-tensor", "weight", NULL, "weight_scale", K3_F8_E4M3, 1, 8, 0, ALL,
                         ALL, false},
    [K3_Q_FP8_CHANNEL] = {"fp8-channel", "weight", "weight_scale", NULL, K3_F8_E4M3, 1, 8, K3_F32,
                          1, ALL, false},
    [K3_Q_FP8_BLOCK] = {"fp8-block", "weight", "weight_scale", NULL, K3_F8_E4M3, 1, 8, K3_F32,
                        BLOCK, BLOCK, false},
    [K3_Q_INT4_G32] = {"int4-g32", "weight_packed", "weight_scale", NULL, K3_I32, 8, 4, K3_BF16, 1,
                       32, true},
    [K3_Q_INT4_G128] = {"int4-g128", "weight_packed", "weight_scale", NULL, K3_I32, 8, 4, K3_BF16,
                        1, 128, true},
    [K3_Q_INT8_G32] = {"int8-g32", "weight", "weight_scale", NULL, K3_I8, 1, 8, K3_BF16, 1, 32,
                       false},
};

const char *k3_qfmt_name(enum k3_qfmt fmt)
{
    assert((unsigned)fmt < K3_QFMT_COUNT);
    return row[fmt].name;
}

bool k3_qfmt_find(const char *name, size_t bytes, enum k3_qfmt *fmt)
{
    for (unsigned i = 0; i < K3_QFMT_COUNT; i++) {
        if (strlen(row[i].name) == bytes && !memcmp(row[i].name, name, bytes)) {
            *fmt = (enum k3_qfmt)i;
            return true;
        }
    }
    return false;
}

/* Scales of a matrix: its dimensions, and of one of its rows the bytes. */
static void scale_geometry(const struct row *r, uint64_t rows, uint64_t cols, struct k3_qgeom *out)
{
    out->scale_dtype = (enum k3_dtype)r->scale_dtype;
    out->scale_dim[0] = k3_div_up(rows, r->group_rows);
    out->scale_dim[1] = r->group_cols == ALL ? 1 : k3_div_up(cols, r->group_cols);
    out->scale_row_bytes = out->scale_dim[1] * (k3_dtype_bits(out->scale_dtype) / 8);
    out->scale_bytes = out->scale_dim[0] * out->scale_row_bytes;
}

int k3_qfmt_geometry(enum k3_qfmt fmt, uint64_t rows, uint64_t cols, struct k3_qgeom *out,
                     struct k3_err *err)
{
    assert((unsigned)fmt < K3_QFMT_COUNT && fmt != K3_Q_VERBATIM);
    const struct row *r = &row[fmt];
    if (rows == 0 || cols == 0 || rows > K3_QUANT_DIM_MAX || cols > K3_QUANT_DIM_MAX)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s of a matrix [%" PRIu64 ", %" PRIu64
                       "]: rows and columns must be 1 to 2^31",
                       r->name, rows, cols);
    /* Blocks may have an edge; groups of one row are stored whole. */
    bool has_edge = r->group_cols == ALL || r->group_rows == BLOCK;
    if (!has_edge && cols % r->group_cols)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s of a matrix [%" PRIu64 ", %" PRIu64 "]: %" PRIu64
                       " columns do not divide into groups of %" PRIu32
                       "; choose fp8-channel or fp8-block, or a layout with %" PRIu64 " or %" PRIu64
                       " columns",
                       r->name, rows, cols, cols, r->group_cols, cols - cols % r->group_cols,
                       cols - cols % r->group_cols + r->group_cols);
    *out = (struct k3_qgeom){
        .weight_suffix = r->weight,
        .scale_suffix = r->scale,
        .global_suffix = r->global,
        .weight_dtype = (enum k3_dtype)r->dtype,
        .weight_dim = {rows, cols / r->per_element},
        .weight_row_bytes = cols * r->bits / 8,
        .group_rows = r->group_rows == ALL ? 0 : r->group_rows,
        .group_cols = r->group_cols == ALL ? 0 : r->group_cols,
        .row_align = r->group_rows == ALL ? 1 : r->group_rows,
        .col_align = r->group_cols == ALL ? 1 : r->group_cols,
        .has_shape = r->has_shape,
    };
    out->weight_bytes = rows * out->weight_row_bytes;
    if (r->scale)
        scale_geometry(r, rows, cols, out);
    return 0;
}

struct k3_qparams k3_qparams_default(enum k3_qfmt to)
{
    return (struct k3_qparams){
        .to = to,
        .rule = to == K3_Q_MXFP8 ? K3_SCALE_RCEIL : K3_SCALE_EVEN,
        .conv = K3_QCONV_COMPRESSED_TENSORS,
        .oow = K3_OOW_FAIL,
    };
}

enum k3_qroute k3_quant_route(enum k3_qfmt from, enum k3_qfmt to)
{
    if (from == to || to == K3_Q_VERBATIM)
        return K3_QROUTE_COPY;
    if (from == K3_Q_BF16)
        return K3_QROUTE_QUANT;
    if (from != K3_Q_MXFP4)
        return K3_QROUTE_NONE;
    switch (to) {
    case K3_Q_BF16:
    case K3_Q_MXFP8:
    case K3_Q_NVFP4:
    case K3_Q_FP8_BLOCK:
    case K3_Q_INT8_G32:
        return K3_QROUTE_MX;
    default:
        return K3_QROUTE_VIA_BF16;
    }
}

bool k3_quant_has_window(enum k3_qfmt from, enum k3_qfmt to)
{
    return from == K3_Q_MXFP4 && (to == K3_Q_BF16 || to == K3_Q_NVFP4 || to == K3_Q_FP8_BLOCK);
}

bool k3_quant_needs_amax(enum k3_qfmt to)
{
    return to == K3_Q_NVFP4 || to == K3_Q_FP8_TENSOR;
}
