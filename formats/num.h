/* Element codes: E2M1, E4M3, E5M2, E8M0, BF16, FP16 to FP32 and back, by their bits alone (no libm,
 * no rounding mode but nearest even).  Small pure leaves, any thread, cannot fail. */
#ifndef K3_NUM_H
#define K3_NUM_H

#include <stdint.h>
#include <string.h>

#define K3_E8M0_NAN      0xffu   /* the one E8M0 byte that is no power of two */
#define K3_BF16_INF      0x7f80u /* magnitudes from here on are not finite */
#define K3_E2M1_MAX      6.0f
#define K3_E4M3_MAX      448.0f
#define K3_E5M2_MAX      57344.0f
#define K3_E2M1_MAX_EXP  2 /* floor(log2(max)): what the scale rules subtract */
#define K3_E4M3_MAX_EXP  8
#define K3_F32_EXP_BIAS  127
#define K3_F32_FRAC_BITS 23

static inline uint32_t k3_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float k3_f32_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float k3_bf16_value(uint16_t code)
{
    return k3_f32_of((uint32_t)code << 16);
}

/* BF16 number i of an array that need not be aligned. */
static inline uint16_t k3_bf16_at(const void *array, uint64_t i)
{
    const uint8_t *b = (const uint8_t *)array + 2 * i;
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline void k3_bf16_put(void *array, uint64_t i, uint16_t code)
{
    uint8_t *b = (uint8_t *)array + 2 * i;
    b[0] = (uint8_t)code;
    b[1] = (uint8_t)(code >> 8);
}

/* To BF16, nearest even; what is too large becomes infinite, NaN stays a quiet NaN. */
static inline uint16_t k3_bf16_code(float x)
{
    uint32_t bits = k3_f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* 2^(code - 127); byte 0 is a subnormal FP32; 0xFF is NaN. */
static inline float k3_e8m0_value(uint8_t code)
{
    if (code == K3_E8M0_NAN)
        return k3_f32_of(0x7fc00000u);
    return k3_f32_of(code == 0 ? 0x00400000u : (uint32_t)code << K3_F32_FRAC_BITS);
}

/* 2^exponent as FP32, exponent in [-149, 127]. */
static inline float k3_f32_pow2(int exponent)
{
    int field = exponent + K3_F32_EXP_BIAS;
    return k3_f32_of(field > 0 ? (uint32_t)field << K3_F32_FRAC_BITS : 1u << (exponent + 149));
}

/* Codes of E2M1 are the low four bits: sign, two of exponent, one of fraction. */
extern const float k3_e2m1_values[16];

float k3_e4m3_value(uint8_t code); /* 0x7F and 0xFF are NaN */
float k3_e5m2_value(uint8_t code);
float k3_fp16_value(uint16_t code);

/* Nearest even, saturating: beyond the largest value, infinities included, comes the largest value.
 * The sign of zero stays.  NaN: 0x7F with its sign (E4M3, E5M2), the largest value (E2M1). */
uint8_t k3_e2m1_code(float x);
uint8_t k3_e4m3_code(float x);
uint8_t k3_e5m2_code(float x);

/* Nearest even as IEEE 754 has it: too large becomes infinite. */
uint16_t k3_fp16_code(float x);

/* x to the nearest integer, ties to even, clamped to [low, high]; NaN gives low. */
int k3_int_code(float x, int low, int high);

#endif
