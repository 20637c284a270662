/* Purpose: E8M0 scales by the rules that tools use.
 * Owns: nothing.
 * Threads: any.
 * Errors: none.
 * Invariants: thresholds are tests of FP32 fraction bits, exact at every value. */
#include "scale_rule.h"

#include "num.h"

#include <assert.h>
#include <string.h>

#define FRAC_MASK 0x7fffffu

/* The fraction of amax from which on the exponent is one more; above FRAC_MASK: never.  "m > t" is
 * "fraction >= t + 1 ulp". */
static const uint32_t bump_from[K3_SCALE_RULE_COUNT][2] = {
    [K3_SCALE_FLOOR] = {FRAC_MASK + 1, FRAC_MASK + 1},
    [K3_SCALE_RCEIL] = {0x400001, 0x600001}, /* m > 6 / 4, m > 448 / 256 */
    [K3_SCALE_EVEN] = {0x600000, 0x780000},  /* m >= 1.75 rounds to 2 with one fraction bit, m >=
                                                1.9375 with three */
    [K3_SCALE_CEIL] = {1, 1},
    [K3_SCALE_MSE] = {FRAC_MASK + 1, FRAC_MASK + 1},
};

uint8_t k3_scale_byte(enum k3_scale_rule rule, enum k3_scale_element element, uint32_t amax_bits)
{
    assert((unsigned)rule < K3_SCALE_RULE_COUNT);
    uint32_t a = amax_bits & 0x7fffffffu, frac;
    int exponent;
    if (a == 0)
        return 0;
    if (a > FRAC_MASK) {
        exponent = (int)(a >> K3_F32_FRAC_BITS) - K3_F32_EXP_BIAS;
        frac = a & FRAC_MASK;
    } else { /* subnormal: its highest bit is the one that is implied elsewhere */
        int top = 31 - __builtin_clz(a);
        exponent = top - 149;
        frac = a << (K3_F32_FRAC_BITS - top) & FRAC_MASK;
    }
    int byte = exponent - (element == K3_SCALE_E2M1 ? K3_E2M1_MAX_EXP : K3_E4M3_MAX_EXP) +
               (frac >= bump_from[rule][element]) + K3_F32_EXP_BIAS;
    return (uint8_t)(byte < 0 ? 0 : byte);
}

static const char *const rule_name[K3_SCALE_RULE_COUNT] = {
    [K3_SCALE_FLOOR] = "floor", [K3_SCALE_RCEIL] = "rceil", [K3_SCALE_EVEN] = "even",
    [K3_SCALE_CEIL] = "ceil",   [K3_SCALE_MSE] = "mse",
};

const char *k3_scale_rule_name(enum k3_scale_rule rule)
{
    assert((unsigned)rule < K3_SCALE_RULE_COUNT);
    return rule_name[rule];
}

bool k3_scale_rule_find(const char *name, size_t bytes, enum k3_scale_rule *rule)
{
    for (unsigned i = 0; i < K3_SCALE_RULE_COUNT; i++) {
        if (strlen(rule_name[i]) == bytes && !memcmp(rule_name[i], name, bytes)) {
            *rule = (enum k3_scale_rule)i;
            return true;
        }
    }
    return false;
}
