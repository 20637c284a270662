/* The inner loops of casts, by the fastest form that this CPU runs.  Every form gives the same
 * bytes and the same sums as the scalar one, which is the reference: FP32 division and FP64 sums as
 * IEEE 754 rounds them, no fused multiply-add, subnormals kept.  Pure; arrays need not be aligned;
 * a form reads and writes exactly what is named here. */
#ifndef K3_QUANT_OPS_H
#define K3_QUANT_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define K3_QUANT_LANES 16u /* value i of a row adds to lane i mod 16 */

/* Sums over one row, over several calls if these begin at multiples of K3_QUANT_LANES. */
struct k3_qlanes {
    double x2[K3_QUANT_LANES], err2[K3_QUANT_LANES];
    double max_abs_error;
};

/* A run of values of one row.  Group j is values [j * group_cols, (j + 1) * group_cols), the last
 * may be short; group_cols is a multiple of 16. */
struct k3_qrun {
    const uint8_t *x; /* BF16, finite */
    size_t count;     /* even, and a multiple of 8 for int4 */
    size_t group_cols;
    const float *scale; /* of each group: finite, above 0, may be subnormal */
    bool is_bf16;       /* e4m3 only: the quotient is rounded to BF16 before it is encoded */
    uint8_t *out;
};

/* What compressed-tensors makes of an NVFP4 scale that rounds to zero, 0.125; what ModelOpt makes
 * of one of zero, 1; and a scale near the smallest subnormal, so that none is zero. */
#define K3_NVFP4_ZERO_BYTE 0x20
#define K3_NVFP4_ONE_BYTE  0x38
#define K3_NVFP4_LEAST     0x1p-9f /* ModelOpt: smallest scale above zero, that of E4M3 */
#define K3_NVFP4_TINY      0x1p-149f

/* Each step rounded to FP32.  Divisor: byte = E4M3(global * (amax / 6)), scale = byte / global;
 * multiplier: byte = E4M3(amax / (6 * global)), scale = byte * global. */
struct k3_nvfp4_groups {
    const uint16_t *amax;
    size_t count;
    float global;
    bool is_multiplier; /* as ModelOpt stores it */
    uint8_t *byte;      /* filled */
    float *scale;       /* filled, above 0 */
};

struct k3_quant_ops {
    /* amax[j]: BF16 bits of the largest magnitude of group j; 0x7F80 or more: not finite. */
    void (*amax)(const uint8_t *x, size_t count, size_t group_cols, uint16_t *amax);

    /* NVFP4: scale byte and FP32 scale of each group, by its amax (finite). */
    void (*nvfp4_scales)(const struct k3_nvfp4_groups *groups);
    /* How many of the groups hold a value / scale, in FP32, above `most`. */
    size_t (*saturated)(const uint16_t *amax, const float *scale, size_t count, float most);

    /* q = x / scale in FP32, to a code by nearest even, saturating; y = value of code * scale in
     * FP32, clamped to what is finite; then x, y and d = x - y in FP64: x2 += x * x, err2 += d * d,
     * max_abs_error = max(|d|). */
    void (*e2m1)(const struct k3_qrun *run,
                 struct k3_qlanes *lanes); /* out: even value low nibble */
    void (*e4m3)(const struct k3_qrun *run, struct k3_qlanes *lanes); /* out: a byte each */
    void (*int8)(const struct k3_qrun *run, struct k3_qlanes *lanes); /* -128..127, a byte each */
    void (*int4)(const struct k3_qrun *run,
                 struct k3_qlanes *lanes); /* -8..7, stored + 8, nibbles */

    /* Groups of 32 E2M1 codes in 16 bytes. */
    /* squares[g]: sum of (2 * value)^2, at most 4608; 0: all zeros. */
    void (*mx_squares)(const uint8_t *packed, size_t group_count, uint16_t *squares);
    /* Add them to the sums of each scale byte; how many are 0. */
    size_t (*mx_sums)(const uint16_t *squares, const uint8_t *scale, size_t group_count,
                      uint64_t *by_scale);
    /* Each code of group g becomes the byte table[pick[g]][code]; pick NULL: table[0]. */
    void (*mx_bytes)(const uint8_t *packed, size_t group_count, const uint8_t (*table)[16],
                     const uint8_t *pick, uint8_t *out);
    /* The same with two bytes, little-endian, and pick[g] < 256. */
    void (*mx_words)(const uint8_t *packed, size_t group_count, const uint16_t (*table)[16],
                     const uint8_t *pick, uint8_t *out);
    /* Smallest and largest of count > 0 bytes. */
    void (*range)(const uint8_t *bytes, size_t count, uint8_t *min, uint8_t *max);
};

/* In the order of choice: the first that this CPU runs. */
enum k3_quant_form { K3_QUANT_AVX512, K3_QUANT_AVX2, K3_QUANT_SCALAR, K3_QUANT_FORM_COUNT };

bool k3_quant_form_runs(enum k3_quant_form form);
const char *k3_quant_form_name(enum k3_quant_form form);
enum k3_quant_form k3_quant_form(void);        /* the one in use */
const struct k3_quant_ops *k3_quant_ops(void); /* its loops */

/* For tests and benchmarks only: use this form, which must run here, from now on in all threads;
 * K3_QUANT_FORM_COUNT: back to the choice by CPU. */
void k3_quant_force(enum k3_quant_form form);

/* Each form in a file of its own; those of x86 are named in quant_x86.h. */
extern const struct k3_quant_ops k3_quant_ops_scalar; /* quant_scalar.c */

/* Loops of the scalar form that AVX2 shares with it. */
size_t k3_mx_sums_scalar(const uint16_t *squares, const uint8_t *scale, size_t group_count,
                         uint64_t *by_scale);
void k3_nvfp4_scales_scalar(const struct k3_nvfp4_groups *groups);
size_t k3_saturated_scalar(const uint16_t *amax, const float *scale, size_t count, float most);

#endif
