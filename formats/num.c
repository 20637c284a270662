/* Purpose: codes of small floating-point formats to FP32 and back.
 * Owns: nothing.
 * Threads: any; constant tables.
 * Errors: none; saturates, see num.h.
 * Invariants: round to nearest even, by the bits or by one FP32 addition whose unit in the last
 * place is that of the code (the rounding mode is the default one); subnormals are exact. */
#include "num.h"

#define ABS_MASK 0x7fffffffu
#define F32_INF  0x7f800000u

const float k3_e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                  -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* A small format by its numbers. */
struct layout {
    uint32_t sign_shift;  /* of the code's sign, out of FP32 bit 31 */
    uint32_t frac_shift;  /* FP32 fraction bits that the code lacks */
    uint32_t rebias;      /* difference of exponent biases, in place of the code's exponent */
    uint32_t normal_bits; /* FP32 bits of the smallest normal value */
    uint32_t over_bits;   /* and of the first value that rounds beyond the largest */
    uint32_t over_code;   /* what such a value becomes */
    uint32_t nan_code;
    float step_adder; /* FP32 whose unit in the last place is the code's smallest step */
};

static uint32_t encode(const struct layout *to, float x)
{
    uint32_t bits = k3_f32_bits(x), a = bits & ABS_MASK, code;
    if (a > F32_INF)
        code = to->nan_code;
    else if (a >= to->over_bits)
        code = to->over_code;
    else if (a >= to->normal_bits)
        code = ((a + ((1u << (to->frac_shift - 1)) - 1) + (a >> to->frac_shift & 1)) >>
                to->frac_shift) -
               to->rebias;
    else
        code = k3_f32_bits(k3_f32_of(a) + to->step_adder) - k3_f32_bits(to->step_adder);
    return code | (bits & ~ABS_MASK) >> to->sign_shift;
}

/* 464 and 61440 are ties between the largest value and a code that is no number: they saturate too.
 */
static const struct layout e4m3 = {24,          20,   120u << 3, 0x3c800000u,
                                   0x43e80000u, 0x7e, 0x7f,      0x1p14f};
static const struct layout e5m2 = {24, 21, 112u << 2, 0x38800000u, 0x47700000u, 0x7b, 0x7f, 0x1p7f};
static const struct layout fp16 = {16,          13,     112u << 10, 0x38800000u,
                                   0x477ff000u, 0x7c00, 0x7e00,     0x1p-1f};

uint8_t k3_e4m3_code(float x)
{
    return (uint8_t)encode(&e4m3, x);
}

uint8_t k3_e5m2_code(float x)
{
    return (uint8_t)encode(&e5m2, x);
}

uint16_t k3_fp16_code(float x)
{
    return (uint16_t)encode(&fp16, x);
}

uint8_t k3_e2m1_code(float x)
{
    uint32_t bits = k3_f32_bits(x), a = bits & ABS_MASK;
    /* FP32 bits of 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5; at a tie the even code wins. */
    uint32_t code = (uint32_t)(a > 0x3e800000u) + (a >= 0x3f400000u) + (a > 0x3fa00000u) +
                    (a >= 0x3fe00000u) + (a > 0x40200000u) + (a >= 0x40600000u) + (a > 0x40a00000u);
    return (uint8_t)(code | bits >> 31 << 3);
}

/* Sign, exponent and fraction of a code to FP32; the caller deals with infinities and NaN. */
static float decode(uint32_t code, unsigned frac_bits, unsigned exp_bits, float step)
{
    uint32_t frac_mask = (1u << frac_bits) - 1, exp_mask = (1u << exp_bits) - 1;
    uint32_t exponent = code >> frac_bits & exp_mask;
    float sign = code >> (frac_bits + exp_bits) & 1 ? -1.0f : 1.0f;
    if (exponent == 0)
        return sign * (float)(code & frac_mask) * step;
    uint32_t bias = exp_mask >> 1;
    return sign * k3_f32_of((exponent + K3_F32_EXP_BIAS - bias) << K3_F32_FRAC_BITS |
                            (code & frac_mask) << (K3_F32_FRAC_BITS - frac_bits));
}

/* Infinity and NaN as IEEE 754 has them, of a code whose exponent is all ones. */
static float special(uint32_t sign, uint32_t frac)
{
    return k3_f32_of(sign << 31 | (frac ? 0x7fc00000u : F32_INF));
}

float k3_e4m3_value(uint8_t code)
{
    if ((code & 0x7f) == 0x7f)
        return special(code >> 7, 1);
    return decode(code, 3, 4, 0x1p-9f);
}

float k3_e5m2_value(uint8_t code)
{
    if ((code & 0x7c) == 0x7c)
        return special(code >> 7, code & 3u);
    return decode(code, 2, 5, 0x1p-16f);
}

float k3_fp16_value(uint16_t code)
{
    if ((code & 0x7c00) == 0x7c00)
        return special(code >> 15, code & 0x3ffu);
    return decode(code, 10, 5, 0x1p-24f);
}

int k3_int_code(float x, int low, int high)
{
    if (!(x > (float)low))
        return low;
    if (x >= (float)high)
        return high;
    return (int)((x + 0x1.8p23f) - 0x1.8p23f); /* the unit in the last place is 1 there */
}
