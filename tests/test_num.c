/* Purpose: element codes are the nearest, ties to even, for every BF16 value and at every
 * threshold. Owns: nothing. Threads: one. Errors: a failed assertion. Invariants: what is wanted is
 * derived here from the definition of each format, in FP64 where all of its values, midpoints and
 * distances are exact. */
#include "num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A format: its definition, and the functions under test. */
struct format {
    const char *name;
    unsigned exp_bits, frac_bits;
    int bias;
    uint32_t max_code; /* of the largest value; saturates */
    uint32_t over;     /* what lies beyond becomes this */
};

static const struct format e2m1 = {"e2m1", 2, 1, 1, 7, 7};
static const struct format e4m3 = {"e4m3", 4, 3, 7, 0x7e, 0x7e};
static const struct format e5m2 = {"e5m2", 5, 2, 15, 0x7b, 0x7b};
static const struct format fp16 = {"fp16", 5, 10, 15, 0x7bff, 0x7c00};
static const struct format *const formats[] = {&e2m1, &e4m3, &e5m2, &fp16};
#define FORMAT_COUNT (sizeof formats / sizeof *formats)

/* The magnitude of a code by definition; also of the code after the largest. */
static double defined(const struct format *f, uint32_t code)
{
    uint32_t frac = code & ((1u << f->frac_bits) - 1), exponent = code >> f->frac_bits;
    double unit = ldexp(1, -(int)f->frac_bits);
    return exponent ? ldexp(1 + frac * unit, (int)exponent - f->bias)
                    : ldexp(frac * unit, 1 - f->bias);
}

static uint32_t encoded(const struct format *f, float x)
{
    return f == &e2m1   ? k3_e2m1_code(x)
           : f == &e4m3 ? k3_e4m3_code(x)
           : f == &e5m2 ? k3_e5m2_code(x)
                        : k3_fp16_code(x);
}

static float decoded(const struct format *f, uint32_t code)
{
    return f == &e2m1   ? k3_e2m1_values[code]
           : f == &e4m3 ? k3_e4m3_value((uint8_t)code)
           : f == &e5m2 ? k3_e5m2_value((uint8_t)code)
                        : k3_fp16_value((uint16_t)code);
}

static uint32_t sign_bit(const struct format *f)
{
    return 1u << (f->exp_bits + f->frac_bits);
}

/* The code of x by definition. */
static uint32_t wanted(const struct format *f, float x)
{
    double a = fabs((double)x);
    uint32_t low = 0, high = f->max_code + 1;
    uint32_t sign = signbit(x) ? sign_bit(f) : 0;
    if (a >= (defined(f, f->max_code) + defined(f, high)) / 2)
        return f->over | sign;
    while (high - low > 1) { /* defined(low) <= a < defined(high) */
        uint32_t middle = (low + high) / 2;
        if (defined(f, middle) <= a)
            low = middle;
        else
            high = middle;
    }
    double below = a - defined(f, low), above = defined(f, high) - a;
    uint32_t code = below < above || (below == above && low % 2 == 0) ? low : high;
    return (code > f->max_code ? f->over : code) | sign;
}

static void check(const struct format *f, float x)
{
    if (encoded(f, x) != wanted(f, x))
        fail_msg("%s of %a is 0x%x, wanted 0x%x", f->name, (double)x, encoded(f, x), wanted(f, x));
}

static void every_code_has_its_value(void **state)
{
    (void)state;
    for (size_t n = 0; n < FORMAT_COUNT; n++) {
        const struct format *f = formats[n];
        for (uint32_t code = 0; code <= f->max_code; code++) {
            assert_true((double)decoded(f, code) == defined(f, code));
            assert_true((double)decoded(f, code | sign_bit(f)) == -defined(f, code));
            assert_true(signbit(decoded(f, code | sign_bit(f))));
            assert_int_equal(encoded(f, decoded(f, code)), code);
            assert_int_equal(encoded(f, decoded(f, code | sign_bit(f))), code | sign_bit(f));
        }
    }
    assert_true(isnan(k3_e4m3_value(0x7f)) && isnan(k3_e4m3_value(0xff)));
    assert_true(isnan(k3_e5m2_value(0x7d)) && isnan(k3_e5m2_value(0xff)));
    assert_true(isinf(k3_e5m2_value(0x7c)) && k3_e5m2_value(0xfc) < 0);
    assert_true(isinf(k3_fp16_value(0x7c00)) && isnan(k3_fp16_value(0xfe01)));
    for (int byte = 0; byte < 255; byte++) {
        assert_true((double)k3_e8m0_value((uint8_t)byte) == ldexp(1, byte - 127));
        assert_true(k3_f32_pow2(byte - 127) == k3_e8m0_value((uint8_t)byte));
    }
    assert_true(isnan(k3_e8m0_value(255)));
    for (int e = -149; e < -126; e++)
        assert_true((double)k3_f32_pow2(e) == ldexp(1, e));
}

/* Every BF16 value, infinities too. */
static void every_bf16_goes_to_the_nearest(void **state)
{
    (void)state;
    for (size_t n = 0; n < FORMAT_COUNT; n++) {
        for (uint32_t code = 0; code < 0x10000; code++) {
            float x = k3_bf16_value((uint16_t)code);
            if (!isnan(x))
                check(formats[n], x);
        }
    }
    assert_int_equal(k3_e4m3_code(NAN) & 0x7f, 0x7f);
    assert_int_equal(k3_e5m2_code(NAN) & 0x7f, 0x7f);
    assert_int_equal(k3_e2m1_code(NAN) & 7, 7);
    assert_true(isnan(k3_fp16_value(k3_fp16_code(NAN))));
    assert_true(isnan(k3_bf16_value(k3_bf16_code(k3_f32_of(0x7f800001u)))));
}

/* Each value and each midpoint, and the FP32 on either side. */
static void thresholds_are_exact(void **state)
{
    (void)state;
    for (size_t n = 0; n < FORMAT_COUNT; n++) {
        const struct format *f = formats[n];
        for (uint32_t code = 0; code <= f->max_code; code++) {
            double at[2] = {defined(f, code), (defined(f, code) + defined(f, code + 1)) / 2};
            for (int k = 0; k < 2; k++) {
                float x = (float)at[k];
                check(f, x);
                check(f, -x);
                check(f, nextafterf(x, INFINITY));
                check(f, nextafterf(x, -INFINITY));
                check(f, -nextafterf(x, INFINITY));
            }
        }
    }
    /* The ties by name, quantization.md 1.1: 0.25 0.75 1.25 1.75 2.5 3.5 5. */
    static const float tie[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    static const uint8_t code[] = {0, 2, 2, 4, 4, 6, 6};
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(k3_e2m1_code(tie[i]), code[i]);
}

static void bf16_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7f80; code++) {
        uint32_t bits = code << 16;
        assert_int_equal(k3_bf16_code(k3_f32_of(bits)), code);
        assert_int_equal(k3_bf16_code(k3_f32_of(bits | 0x7fff)), code);
        assert_int_equal(k3_bf16_code(k3_f32_of(bits | 0x8000)), code + code % 2);
        assert_int_equal(k3_bf16_code(k3_f32_of(bits | 0x8001)), code + 1);
        assert_int_equal(k3_bf16_code(k3_f32_of(bits | 0x80008001u)), (code + 1) | 0x8000);
    }
    uint8_t odd[5] = {0xee, 0, 0, 0xee, 0xee};
    k3_bf16_put(odd + 1, 0, 0x1234);
    assert_int_equal(k3_bf16_at(odd + 1, 0), 0x1234);
    assert_int_equal(odd[1], 0x34);
    assert_int_equal(odd[3], 0xee);
}

static void integers_round_to_even_and_clamp(void **state)
{
    (void)state;
    for (int n = -140; n <= 140; n++) {
        int want = n < -128 ? -128 : n > 127 ? 127 : n;
        assert_int_equal(k3_int_code((float)n, -128, 127), want);
        assert_int_equal(k3_int_code(nextafterf((float)n + 0.5f, -1000), -128, 127), want);
        int even = n % 2 ? n + 1 : n;
        assert_int_equal(k3_int_code((float)n + 0.5f, -128, 127), even < -128  ? -128
                                                                  : even > 127 ? 127
                                                                               : even);
    }
    assert_int_equal(k3_int_code(INFINITY, -8, 7), 7);
    assert_int_equal(k3_int_code(-INFINITY, -8, 7), -8);
    assert_int_equal(k3_int_code(NAN, -8, 7), -8);
    assert_int_equal(k3_int_code(-0.0f, -8, 7), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(every_bf16_goes_to_the_nearest),
        cmocka_unit_test(thresholds_are_exact),
        cmocka_unit_test(bf16_rounds_to_even),
        cmocka_unit_test(integers_round_to_even_and_clamp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
