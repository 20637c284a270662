/* Purpose: the values of every format back to FP32.
 * Owns: nothing.
 * Threads: any.
 * Errors: columns that do not divide into groups.
 * Invariants: value of code * scale of group in FP32; NVFP4's scale is the block's by (or times)
 * the global first, as the packages of each convention have it. */
#include "quant.h"

#include "num.h"

#include <assert.h>
#include <string.h>

static float f32_at(const uint8_t *array, uint64_t i)
{
    float value;
    memcpy(&value, array + i * sizeof value, sizeof value);
    return value;
}

/* The scale of column `col`, of the row of scales at `scale`. */
static float scale_of(const struct k3_quant *quant, const struct k3_qgeom *geom,
                      const uint8_t *scale, uint64_t col)
{
    uint64_t g = geom->group_cols ? col / geom->group_cols : 0;
    switch (quant->params.to) {
    case K3_Q_BF16:
        return 1;
    case K3_Q_MXFP4:
    case K3_Q_MXFP8:
        return k3_e8m0_value(scale[g]);
    case K3_Q_NVFP4:
        return quant->params.conv == K3_QCONV_MODELOPT ? k3_e4m3_value(scale[g]) * quant->global
                                                       : k3_e4m3_value(scale[g]) / quant->global;
    case K3_Q_FP8_TENSOR:
        return quant->global;
    case K3_Q_FP8_CHANNEL:
    case K3_Q_FP8_BLOCK:
        return f32_at(scale, g);
    default:
        return k3_bf16_value(k3_bf16_at(scale, g));
    }
}

/* The code of column `col` by itself, as a number. */
static float element(enum k3_qfmt fmt, const uint8_t *row, uint64_t col)
{
    unsigned nibble = (unsigned)row[fmt == K3_Q_BF16 ? 0 : col / 2] >> (col % 2 * 4) & 15u;
    switch (fmt) {
    case K3_Q_BF16:
        return k3_bf16_value(k3_bf16_at(row, col));
    case K3_Q_MXFP4:
    case K3_Q_NVFP4:
        return k3_e2m1_values[nibble];
    case K3_Q_INT4_G32:
    case K3_Q_INT4_G128:
        return (float)((int)nibble - 8);
    case K3_Q_INT8_G32:
        return (float)(int8_t)row[col];
    default:
        return k3_e4m3_value(row[col]);
    }
}

int k3_quant_decode(const struct k3_quant *quant, const struct k3_qrows *rows, float *out,
                    struct k3_err *err)
{
    enum k3_qfmt fmt = quant->params.to;
    struct k3_qgeom geom;
    if (rows->row_count == 0)
        return 0;
    int rc = k3_qfmt_geometry(fmt, rows->row_count, quant->cols, &geom, err);
    if (rc)
        return rc;
    assert(fmt != K3_Q_FP8_BLOCK || rows->row_first % geom.group_rows == 0);
    for (uint64_t i = 0; i < rows->row_count; i++) {
        const uint8_t *row = (const uint8_t *)rows->x + i * geom.weight_row_bytes;
        const uint8_t *scale = rows->x_scale;
        if (geom.scale_suffix)
            scale += i / geom.group_rows * geom.scale_row_bytes;
        for (uint64_t col = 0; col < quant->cols; col++)
            *out++ = element(fmt, row, col) * scale_of(quant, &geom, scale, col);
    }
    return 0;
}
