/* Purpose: what a cast did to its values, in sums that do not depend on the order of work.
 * Owns: nothing.
 * Threads: any, each its own struct.
 * Errors: none.
 * Invariants: a sum is an integer of 640 bits in units of 2^-320, so adding is exact, and merging
 * commutes. */
#include "quant.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LIMB_BITS     64
#define UNIT_EXPONENT (-320) /* of bit 0 of limb 0 */
#define DOUBLE_BIAS   1075   /* of the integer that is a double's fraction */

/* Add value * 2^bit in units; the sum stays below 2^640, see quant.h. */
static void add_at(struct k3_qsum *sum, uint64_t value, int bit)
{
    size_t i = (size_t)(bit / LIMB_BITS);
    int shift = bit % LIMB_BITS;
    uint64_t part[2] = {value << shift, shift ? value >> (LIMB_BITS - shift) : 0};
    uint64_t carry = 0;
    for (size_t k = 0; i < K3_QSUM_LIMB_COUNT && (k < 2 || carry); i++, k++) {
        uint64_t add = k < 2 ? part[k] : 0, with_carry;
        uint64_t over = __builtin_add_overflow(add, carry, &with_carry);
        carry = over + __builtin_add_overflow(sum->limb[i], with_carry, &sum->limb[i]);
    }
    assert(carry == 0);
}

void k3_qsum_add(struct k3_qsum *sum, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52);
    uint64_t frac = bits & (((uint64_t)1 << 52) - 1);
    if (exponent == 0)
        return;               /* 0: subnormals are no multiples of 2^-320 */
    assert(exponent < 0x7ff); /* finite, not negative */
    frac |= (uint64_t)1 << 52;
    int bit = exponent - DOUBLE_BIAS - UNIT_EXPONENT;
    if (bit < 0) { /* what is shifted out is zero, since value is a multiple of the unit */
        frac = bit > -LIMB_BITS ? frac >> -bit : 0;
        bit = 0;
    }
    add_at(sum, frac, bit);
}

void k3_qsum_add_scaled(struct k3_qsum *sum, uint64_t count, int exponent)
{
    assert(exponent >= UNIT_EXPONENT);
    if (count > 0)
        add_at(sum, count, exponent - UNIT_EXPONENT);
}

double k3_qsum_value(const struct k3_qsum *sum)
{
    double value = 0;
    for (size_t i = K3_QSUM_LIMB_COUNT; i-- > 0;)
        value = value * 0x1p64 + (double)sum->limb[i];
    return value * 0x1p-320;
}

void k3_qstats_init(struct k3_qstats *stats)
{
    memset(stats, 0, sizeof *stats);
}

static void merge_sum(struct k3_qsum *into, const struct k3_qsum *other)
{
    for (size_t i = 0; i < K3_QSUM_LIMB_COUNT; i++)
        if (other->limb[i])
            add_at(into, other->limb[i], (int)i * LIMB_BITS);
}

void k3_qstats_merge(struct k3_qstats *into, const struct k3_qstats *other)
{
    merge_sum(&into->x2, &other->x2);
    merge_sum(&into->err2, &other->err2);
    if (other->max_abs_error > into->max_abs_error)
        into->max_abs_error = other->max_abs_error;
    into->value_count += other->value_count;
    into->group_count += other->group_count;
    into->saturated_groups += other->saturated_groups;
    into->zero_groups += other->zero_groups;
    into->breach_groups += other->breach_groups;
}

bool k3_qstats_equal(const struct k3_qstats *a, const struct k3_qstats *b)
{
    return !memcmp(a->x2.limb, b->x2.limb, sizeof a->x2.limb) &&
           !memcmp(a->err2.limb, b->err2.limb, sizeof a->err2.limb) &&
           a->max_abs_error == b->max_abs_error && a->value_count == b->value_count &&
           a->group_count == b->group_count && a->saturated_groups == b->saturated_groups &&
           a->zero_groups == b->zero_groups && a->breach_groups == b->breach_groups;
}

bool k3_qstats_lossless(const struct k3_qstats *stats)
{
    for (size_t i = 0; i < K3_QSUM_LIMB_COUNT; i++)
        if (stats->err2.limb[i])
            return false;
    return true;
}

double k3_qstats_sqnr_db(const struct k3_qstats *stats)
{
    if (k3_qstats_lossless(stats))
        return (double)INFINITY;
    return 10 * log10(k3_qsum_value(&stats->x2) / k3_qsum_value(&stats->err2));
}

double k3_qstats_rel_rmse(const struct k3_qstats *stats)
{
    if (k3_qstats_lossless(stats))
        return 0;
    return sqrt(k3_qsum_value(&stats->err2) / k3_qsum_value(&stats->x2));
}
