/* Casts of matrices: what formats there are, how large they are, and how rows are cast
 * (docs/QUANTIZATION.md).  Pure: no I/O, no allocation; any thread, where two calls share neither
 * output nor statistics.  Results do not depend on the form of k3_quant_ops, nor on how rows are
 * spread over calls. */
#ifndef K3_QUANT_H
#define K3_QUANT_H

#include "dtype.h"
#include "k3_err.h"
#include "scale_rule.h"

enum k3_qfmt {
    K3_Q_VERBATIM, /* as it stands in the checkpoint */
    K3_Q_BF16,
    K3_Q_MXFP4,
    K3_Q_MXFP8, /* E4M3 */
    K3_Q_NVFP4,
    K3_Q_FP8_TENSOR,
    K3_Q_FP8_CHANNEL,
    K3_Q_FP8_BLOCK, /* 128 x 128 */
    K3_Q_INT4_G32,
    K3_Q_INT4_G128,
    K3_Q_INT8_G32,
    K3_QFMT_COUNT
};

/* "verbatim", "bf16", "mxfp4", "mxfp8", "nvfp4", "fp8-tensor", "fp8-channel", "fp8-block",
 * "int4-g32", "int4-g128", "int8-g32". */
const char *k3_qfmt_name(enum k3_qfmt fmt);
bool k3_qfmt_find(const char *name, size_t bytes, enum k3_qfmt *fmt);

/* How a [rows, cols] matrix is stored in a format.  Suffixes are those of compressed-tensors and
 * replace the last component of the tensor's name. */
struct k3_qgeom {
    const char *weight_suffix; /* "weight" or "weight_packed" */
    const char *scale_suffix;  /* "weight_scale", NULL: none */
    const char *global_suffix; /* one FP32 number: "weight_global_scale" (NVFP4), "weight_scale"
                                  (FP8_TENSOR), NULL: none */
    enum k3_dtype weight_dtype, scale_dtype; /* a global is F32 [1] */
    uint64_t weight_dim[2], scale_dim[2];    /* as stored, packed; scale_dim 0 where none */
    uint64_t weight_bytes, scale_bytes;
    uint64_t weight_row_bytes;
    uint64_t scale_row_bytes;        /* of one row of scale_dim */
    uint32_t group_rows, group_cols; /* values that share a scale; 0: all of that dimension */
    uint32_t row_align, col_align;   /* a cut between ranks keeps to multiples of these */
    bool has_shape;                  /* compressed-tensors wants weight_shape I64 [2] beside it */
};

#define K3_QUANT_DIM_MAX ((uint64_t)1 << 31) /* rows or columns: products fit 64 bits */

/* Fills *out.  K3_EUNSUPPORTED where cols do not divide into groups; not for K3_Q_VERBATIM. */
int k3_qfmt_geometry(enum k3_qfmt fmt, uint64_t rows, uint64_t cols, struct k3_qgeom *out,
                     struct k3_err *err);

/* Whose arithmetic, and whose zero groups, where tools differ: compressed-tensors computes in FP32
 * here and stores NVFP4's global as a divisor; ModelOpt computes FP8 in BF16 and stores NVFP4's
 * global as a multiplier. */
enum k3_qconv { K3_QCONV_COMPRESSED_TENSORS, K3_QCONV_MODELOPT };

/* What becomes of a group out of the window in which a cast out of MXFP4 is exact. */
enum k3_oow {
    K3_OOW_FAIL,    /* refused */
    K3_OOW_REQUANT, /* its values are rounded to the nearest that the target has there */
    K3_OOW_SNAP     /* its scale moves to the window's edge, its codes stay */
};

struct k3_qparams {
    enum k3_qfmt to;
    enum k3_scale_rule rule; /* MXFP4 and MXFP8 */
    enum k3_qconv conv;      /* NVFP4 and FP8 */
    enum k3_oow oow;         /* casts out of MXFP4 */
    bool pow2_scales;        /* FP8 formats: scales are powers of two, rounded up */
};

/* Defaults of a format: even for MXFP4, rceil for MXFP8, compressed-tensors, fail, FP32 scales. */
struct k3_qparams k3_qparams_default(enum k3_qfmt to);

/* ---- Statistics of a cast ---- */

/* A sum of non-negative numbers, exact: so it does not depend on their order.  Limb i weighs
 * 2^(64 i - 320), which holds squares of all finite FP32 numbers and 2^60 of the largest. */
#define K3_QSUM_LIMB_COUNT 10
struct k3_qsum {
    uint64_t limb[K3_QSUM_LIMB_COUNT];
};

void k3_qsum_add(struct k3_qsum *sum, double value); /* 0 <= value, a multiple of 2^-320 */
void k3_qsum_add_scaled(struct k3_qsum *sum, uint64_t count, int exponent); /* count 2^exponent */
double k3_qsum_value(const struct k3_qsum *sum); /* within 2^-52 of it, the same everywhere */

/* Sums of a row are made in FP64 in sixteen lanes (value i of the row in lane i mod 16, lanes then
 * added from 0 to 15), rows are added exactly.  Merging is exact, in any order. */
struct k3_qstats {
    struct k3_qsum x2, err2; /* squares of values, and of errors */
    double max_abs_error;
    uint64_t value_count, group_count;
    uint64_t saturated_groups; /* a value is the largest of its format, and was more */
    uint64_t zero_groups;   /* FP8_TENSOR: 0; no rows see its group whole, k3_cast_row_make does */
    uint64_t breach_groups; /* out of the window of an exact cast */
};

void k3_qstats_init(struct k3_qstats *stats);
void k3_qstats_merge(struct k3_qstats *into, const struct k3_qstats *other);
bool k3_qstats_equal(const struct k3_qstats *a, const struct k3_qstats *b); /* in every bit */
bool k3_qstats_lossless(const struct k3_qstats *stats);  /* every value came back equal */
double k3_qstats_sqnr_db(const struct k3_qstats *stats); /* infinite where lossless */
/* The same of two sums of squares; equal bits on every machine. */
double k3_sqnr_db(double x2, double err2);
double k3_qstats_rel_rmse(const struct k3_qstats *stats);

/* ---- Casts of rows ---- */

/* Where a slice that is cast as a matrix begins in its tensor, so that messages name places of the
 * tensor; all 0: the matrix is the tensor. */
struct k3_qcut {
    uint64_t row, col, tensor_cols; /* in values */
};

/* One matrix being cast. */
struct k3_quant {
    const char *name; /* of the source tensor, for messages; borrowed */
    struct k3_qparams params;
    uint64_t cols;
    float global; /* k3_quant_global's or k3_mx_global's; formats without one ignore it */
    struct k3_qcut cut;
};

/* Rows of one call; all dense, none need be aligned. */
struct k3_qrows {
    const void *x; /* BF16 [row_count, cols], or MXFP4 codes [row_count, cols / 2]; borrowed */
    const void *x_scale; /* MXFP4: its E8M0 scales [row_count, cols / 32]; else NULL; borrowed */
    uint64_t row_first;  /* place of the first row in its matrix */
    uint64_t row_count;
    void *weight; /* filled: row_count * weight_row_bytes */
    void *scale;  /* filled: scale rows of these rows; NULL where the format has none */
};

/* Can `from` (K3_Q_BF16 or K3_Q_MXFP4) become `to`, and how. */
enum k3_qroute {
    K3_QROUTE_NONE,
    K3_QROUTE_COPY,    /* the same format: bytes stay */
    K3_QROUTE_QUANT,   /* k3_quant_rows out of BF16 */
    K3_QROUTE_MX,      /* k3_mx_rows out of MXFP4 */
    K3_QROUTE_VIA_BF16 /* k3_mx_rows to BF16, then k3_quant_rows */
};
enum k3_qroute k3_quant_route(enum k3_qfmt from, enum k3_qfmt to);

/* True where the cast is exact within a window only, and k3_oow says what becomes of the rest. */
bool k3_quant_has_window(enum k3_qfmt from, enum k3_qfmt to);

/* True where k3_quant_rows out of BF16 needs the amax of the whole matrix first (NVFP4, FP8_TENSOR;
 * NVFP4 of a fused pair: of both). */
bool k3_quant_needs_amax(enum k3_qfmt to);

/* Pass 1 out of BF16: raise *amax_bits (BF16 bits of the largest magnitude, 0 to begin with).
 * K3_EFORMAT where a value is not finite. */
int k3_quant_amax(const struct k3_quant *quant, const struct k3_qrows *rows, uint16_t *amax_bits,
                  struct k3_err *err);

/* The global of a matrix with this amax: what is stored, and goes into struct k3_quant. */
float k3_quant_global(const struct k3_qparams *params, uint16_t amax_bits);

/* Pass 2 out of BF16.  FP8_BLOCK: row_first is a multiple of 128 and row_count too, but for the
 * last rows of the matrix.  K3_EFORMAT where a value is not finite; output and statistics of that
 * call are then undefined. */
int k3_quant_rows(const struct k3_quant *quant, const struct k3_qrows *rows,
                  struct k3_qstats *stats, struct k3_err *err);

/* The values of rows in a format as FP32 (K3_Q_BF16 included), in the format's own arithmetic;
 * rows->x and x_scale are its weight and scale rows.  FP8_BLOCK: row_first as above. */
int k3_quant_decode(const struct k3_quant *quant, const struct k3_qrows *rows, float *out,
                    struct k3_err *err);

#endif
