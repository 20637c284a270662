/* Purpose: the write sum is linear at every alignment, and its keys have the property that wsum.c
 * claims for them.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: the slow form below is written from the formula alone. */
#include "wsum.h"

#include "bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORD_COUNT (K3_UNIT_BYTES / 4)

static uint64_t random_next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static void fill(uint8_t *data, size_t bytes, uint64_t seed)
{
    uint64_t x = seed;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(random_next(&x) >> 32);
}

static uint64_t mix(uint64_t n)
{
    uint64_t x = n * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    return (x ^ x >> 27) * 0x94D049BB133111EBu;
}

static uint64_t slow_key(uint64_t unit_offset)
{
    uint64_t word = mix(1 + unit_offset % 4096 / 4) >> 32 | 1;
    return word * (mix(1378 + unit_offset / 4096) | 1);
}

static uint64_t slow_sum(const uint8_t *data, size_t bytes, uint64_t file_offset)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t at = (file_offset + i) % K3_UNIT_BYTES;
        sum += ((uint64_t)data[i] << 8 * (at % 4)) * slow_key(at);
    }
    return sum;
}

static void test_formula(void **state)
{
    (void)state;
    uint8_t data[9000];
    fill(data, sizeof data, 1);
    for (uint64_t offset = 0; offset < 70; offset++)
        for (size_t bytes = 0; bytes < 70; bytes++)
            assert_int_equal(k3_wsum(data + bytes % 16, bytes, offset),
                             slow_sum(data + bytes % 16, bytes, offset));
    static const uint64_t offsets[] = {
        4000, 4095, 4096, 8191, 500000, 515288, (uint64_t)K3_UNIT_BYTES * 1000000 + 7};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        assert_int_equal(k3_wsum(data, sizeof data, offsets[i]),
                         slow_sum(data, sizeof data, offsets[i]));
    assert_int_equal(k3_wsum(data, 0, K3_UNIT_BYTES - 1), 0);
}

/* Every cut of a piece in two, the halves moved to any alignment in memory. */
static void test_every_split(void **state)
{
    (void)state;
    uint8_t data[160], moved[200];
    fill(data, sizeof data, 2);
    for (uint64_t base = 4096 - 80; base < 4096 - 80 + 9; base++) {
        uint64_t whole = k3_wsum(data, sizeof data, base);
        for (size_t cut = 0; cut <= sizeof data; cut++)
            for (size_t shift = 0; shift < 17; shift++) {
                memset(moved, 0xa5, sizeof moved);
                memcpy(moved + shift, data + cut, sizeof data - cut);
                uint64_t sum = k3_wsum(moved + shift, sizeof data - cut, base + cut);
                assert_int_equal(sum + k3_wsum(data, cut, base), whole);
            }
    }
}

/* A file of several units written in random pieces in random order. */
static void test_order(void **state)
{
    (void)state;
    enum { UNIT_COUNT = 3, PIECE_COUNT = 400 };
    const size_t bytes = (size_t)UNIT_COUNT * K3_UNIT_BYTES - 1234;
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    fill(data, bytes, 3);
    uint64_t wanted[UNIT_COUNT] = {0}, x = 4;
    k3_wsum_add(wanted, data, bytes, 0);
    for (int round = 0; round < 20; round++) {
        size_t cut[PIECE_COUNT + 1];
        for (size_t i = 1; i < PIECE_COUNT; i++)
            cut[i] = (size_t)(random_next(&x) % bytes);
        cut[0] = 0;
        cut[PIECE_COUNT] = bytes;
        for (size_t i = 1; i < PIECE_COUNT; i++) /* insertion sort */
            for (size_t j = i; j > 0 && cut[j - 1] > cut[j]; j--) {
                size_t t = cut[j];
                cut[j] = cut[j - 1];
                cut[j - 1] = t;
            }
        uint64_t found[UNIT_COUNT] = {0};
        size_t step = 7 +
                      2 * (size_t)round; /* odd and not a multiple of 5 or so: visits every piece */
        while (step % 2 == 0 || step % 5 == 0)
            step++;
        for (size_t n = 0, i = 0; n < PIECE_COUNT; n++, i = (i + step) % PIECE_COUNT)
            k3_wsum_add(found, data + cut[i], cut[i + 1] - cut[i], cut[i]);
        assert_memory_equal(found, wanted, sizeof wanted);
    }
    free(data);
}

static void test_bit_flips(void **state)
{
    (void)state;
    uint8_t *data = malloc(K3_UNIT_BYTES);
    assert_non_null(data);
    fill(data, K3_UNIT_BYTES, 5);
    uint64_t wanted = k3_wsum(data, K3_UNIT_BYTES, 0), x = 6;
    for (size_t i = 0; i < K3_UNIT_BYTES * 8; i++) {
        /* The sum is linear: only the word needs to be summed again, not the unit. */
        size_t at = i / 32 * 4;
        uint64_t others = wanted - k3_wsum(data + at, 4, at);
        data[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_int_not_equal(others + k3_wsum(data + at, 4, at), wanted);
        data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    for (int i = 0; i < 200; i++) { /* the same without that shortcut */
        size_t at = (size_t)(random_next(&x) % K3_UNIT_BYTES);
        uint8_t bit = (uint8_t)(1 << random_next(&x) % 8);
        data[at] ^= bit;
        assert_int_not_equal(k3_wsum(data, K3_UNIT_BYTES, 0), wanted);
        data[at] ^= bit;
    }
    free(data);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

/* All keys are odd and differ modulo 2^33, also from one another's negatives; so no exchange of two
 * words and no two flipped bits can go unseen.  The keys are read through k3_wsum itself. */
static void test_keys(void **state)
{
    (void)state;
    const uint64_t modulus = (uint64_t)1 << 33;
    uint64_t *keys = malloc(WORD_COUNT * sizeof *keys);
    assert_non_null(keys);
    for (size_t i = 0; i < WORD_COUNT; i++) {
        const uint8_t one[4] = {1, 0, 0, 0};
        uint64_t key = k3_wsum(one, sizeof one, 4 * i);
        assert_int_equal(key & 1, 1);
        key %= modulus;
        keys[i] = key < modulus - key ? key : modulus - key;
    }
    qsort(keys, WORD_COUNT, sizeof *keys, compare_u64);
    for (size_t i = 1; i < WORD_COUNT; i++)
        assert_true(keys[i - 1] != keys[i]);
    free(keys);
}

static void test_swaps(void **state)
{
    (void)state;
    uint8_t *data = calloc(1, K3_UNIT_BYTES);
    assert_non_null(data);
    uint64_t x = 7;
    for (int i = 0; i < 2000; i++) { /* words that differ in one bit only, the top one included */
        size_t a = (size_t)(random_next(&x) % WORD_COUNT),
               b = (size_t)(random_next(&x) % WORD_COUNT);
        if (a == b)
            continue;
        uint8_t bit = (uint8_t)(1 << random_next(&x) % 8);
        data[4 * a + 3] = bit;
        uint64_t before = k3_wsum(data, K3_UNIT_BYTES, 0);
        data[4 * b + 3] = bit;
        assert_int_not_equal(k3_wsum(data, K3_UNIT_BYTES, 0), 0); /* two flipped bits */
        data[4 * a + 3] = 0;
        assert_int_not_equal(k3_wsum(data, K3_UNIT_BYTES, 0), before);
        data[4 * b + 3] = 0;
    }
    /* Blocks that change places, as a misplaced write leaves them; and a lost one. */
    for (int i = 0; i < 500; i++) {
        uint8_t block[2][K3_BLOCK_BYTES];
        fill(block[0], K3_BLOCK_BYTES, random_next(&x) | 1);
        memset(block[1], i % 2 ? 0x80 : 0, K3_BLOCK_BYTES);
        uint64_t at[2] = {random_next(&x) % 64 * K3_BLOCK_BYTES,
                          (64 + random_next(&x) % 64) * K3_BLOCK_BYTES};
        uint64_t right = k3_wsum(block[0], K3_BLOCK_BYTES, at[0]) +
                         k3_wsum(block[1], K3_BLOCK_BYTES, at[1]);
        uint64_t swapped = k3_wsum(block[1], K3_BLOCK_BYTES, at[0]) +
                           k3_wsum(block[0], K3_BLOCK_BYTES, at[1]);
        assert_int_not_equal(right, swapped);
        assert_int_not_equal(right, k3_wsum(block[1], K3_BLOCK_BYTES, at[1]));
    }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula), cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_order),   cmocka_unit_test(test_bit_flips),
        cmocka_unit_test(test_keys),    cmocka_unit_test(test_swaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
