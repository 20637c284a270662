/* Purpose: scales of casts that can be none, by bytes: the answer for a run of scales is that for
 * each of them, at each place in a word.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion ends the test.
 * Invariant: what is a number is asked of num.h, not of the code under test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cast_scales.h"
#include "num.h"

#include <math.h>
#include <string.h>

#define RUN_SCALES 19u /* two words of the narrowest, and a rest */

static void put(uint8_t *data, uint32_t bits, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        data[i] = (uint8_t)(bits >> 8 * i);
}

/* One scale among others: alone it decides. */
static void check_one(enum k3_dtype dtype, uint32_t bits, uint32_t other, bool wanted)
{
    uint8_t data[RUN_SCALES * 4];
    const unsigned bytes = k3_dtype_bits(dtype) / 8;
    for (unsigned place = 0; place < RUN_SCALES; place++) {
        for (unsigned i = 0; i < RUN_SCALES; i++)
            put(data + (size_t)i * bytes, i == place ? bits : other, bytes);
        if (k3_scales_are_possible(dtype, data, (size_t)RUN_SCALES * bytes) != wanted)
            fail_msg("%s 0x%x at %u beside 0x%x: wanted %d", k3_dtype_name(dtype), bits, place,
                     other, wanted);
    }
}

static bool is_positive(float value)
{
    return isfinite(value) && value > 0;
}

static void test_e8m0(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 256; bits++)
        for (uint32_t other = 0; other < 255; other += 127)
            check_one(K3_U8, bits, other, bits != K3_E8M0_NAN);
}

static void test_e4m3(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 256; bits++)
        for (uint32_t other = 1; other < 127; other += 125)
            check_one(K3_F8_E4M3, bits, other, is_positive(k3_e4m3_value((uint8_t)bits)));
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++)
        check_one(K3_BF16, bits, bits & 1 ? 0x0001 : 0x7F7F,
                  is_positive(k3_bf16_value((uint16_t)bits)));
}

static void test_f32(void **state)
{
    (void)state;
    static const uint32_t edges[] = {0,          1,          0x007fffff, 0x00800000, 0x3f800000,
                                     0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fffffff, 0x80000000,
                                     0x80000001, 0xbf800000, 0xff800000, 0xffffffff};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        check_one(K3_F32, edges[i], 1, is_positive(k3_f32_of(edges[i])));
        check_one(K3_F32, edges[i], 0x7f7fffff, is_positive(k3_f32_of(edges[i])));
    }
}

static void test_none(void **state)
{
    (void)state;
    assert_true(k3_scales_are_possible(K3_F32, (const uint8_t *)"", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e8m0), cmocka_unit_test(test_e4m3), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f32),  cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
