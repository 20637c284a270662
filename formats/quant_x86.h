/* Private to the forms of k3_quant_ops for x86: what their loops over a run have in common.  All
 * pure, any thread; quant_ops.c asks the CPU first. */
#ifndef K3_QUANT_X86_H
#define K3_QUANT_X86_H

#include "num.h"
#include "quant_ops.h"

#if defined(__x86_64__)

#include <float.h>
#include <immintrin.h>
#include <string.h>

/* What a run becomes; a constant wherever it is used, so that each loop is compiled for it. */
enum k3_quant_kind { K3_QK_E2M1, K3_QK_E4M3, K3_QK_E4M3_BF16, K3_QK_INT8, K3_QK_INT4 };

#define K3_QK_IS_NIBBLE(kind) ((kind) == K3_QK_E2M1 || (kind) == K3_QK_INT4)
#define K3_QK_IS_INT(kind)    ((kind) == K3_QK_INT8 || (kind) == K3_QK_INT4)

/* A magnitude below the largest of its format is rounded by one FP32 addition: of 2^(e + 22) (E2M1)
 * or 2^(e + 20) (E4M3), whose unit in the last place is the code's step in the binade 2^e.  Below
 * the smallest normal value, 2^0 or 2^-6, the step stays.  The sum less the adder is the number of
 * steps, 2 (8) to 4 (16) in a normal binade, and each binade above the first has 2 (8) codes more:
 * the difference of the adders' FP32 bits, shifted. */
#define K3_QK_EXPONENT     0x7f800000 /* FP32 bits */
#define K3_QK_LEAST(kind)  ((kind) == K3_QK_E2M1 ? 127 << 23 : 121 << 23)
#define K3_QK_RAISE(kind)  ((kind) == K3_QK_E2M1 ? 22 << 23 : 20 << 23)
#define K3_QK_MOST(kind)   ((kind) == K3_QK_E2M1 ? 6.0f : 448.0f)
#define K3_QK_CODES(kind)  ((kind) == K3_QK_E2M1 ? 22 : 20) /* the shift */
#define K3_QK_SIGN(kind)   ((kind) == K3_QK_E2M1 ? 0x8 : 0x80)
#define K3_QK_SIGNED(kind) ((kind) == K3_QK_E2M1 ? 28 : 24) /* from FP32 bit 31 to there */

/* Bytes that the first `count` values take. */
#define K3_QK_BYTES(kind, count) (K3_QK_IS_NIBBLE(kind) ? (count) / 2 : (count))

/* Squares of twice the values of E2M1. */
#define K3_QK_SQUARES 0, 1, 4, 9, 16, 36, 64, (char)144, 0, 1, 4, 9, 16, 36, 64, (char)144

/* 1 / scale where both are powers of two in [2^-127, 2^127]; else 0. */
static inline float k3_quant_inverse(float scale)
{
    uint32_t bits = k3_f32_bits(scale), exponent = bits >> K3_F32_FRAC_BITS;
    if (bits == 0x00400000u)
        return 0x1p127f;
    if (bits << (32 - K3_F32_FRAC_BITS) || exponent == 0)
        return 0;
    return exponent == 254 ? 0x1p-127f : k3_f32_of((254 - exponent) << K3_F32_FRAC_BITS);
}

/* Smallest and largest of a few bytes. */
static inline void k3_quant_range_of(const uint8_t *bytes, size_t count, uint8_t *min, uint8_t *max)
{
    *min = 0xff;
    *max = 0;
    for (size_t i = 0; i < count; i++) {
        *min = bytes[i] < *min ? bytes[i] : *min;
        *max = bytes[i] > *max ? bytes[i] : *max;
    }
}

extern const struct k3_quant_ops k3_quant_ops_avx2;   /* quant_avx2.c */
extern const struct k3_quant_ops k3_quant_ops_avx512; /* quant_avx512.c */

#endif

#endif
