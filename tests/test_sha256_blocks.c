/* Purpose: every form of k3_sha256_blocks gives the digests of libcrypto, reads only its blocks and
 * writes only its digests.
 * Owns: a mapping with a page before and after it that nobody may touch.
 * Threads: one.
 * Errors: a failed assertion; a form that does not run here is a skipped test.
 * Invariants: what is wanted comes from k3_sha256_of alone. */
#include "sha256_blocks.h"
#include "sha256_constants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define BLOCK_COUNT_MAX 40 /* two groups of sixteen and a tail */
#define PAGE_BYTES      4096u
#define AREA_BYTES      ((BLOCK_COUNT_MAX + 1) * K3_BLOCK_BYTES)
#define CANARY_BYTES    64
#define CANARY          0xa5

static uint8_t *area; /* AREA_BYTES of random content, ends at a page without access */
static struct k3_sha256 *sha;

static int set_up(void **state)
{
    (void)state;
    struct k3_err err;
    k3_err_init(&err);
    uint8_t *map = mmap(NULL, AREA_BYTES + (size_t)2 * PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || k3_sha256_open(&sha, &err))
        return -1;
    area = map + PAGE_BYTES;
    uint32_t x = 2463534242u;
    for (size_t i = 0; i < AREA_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        area[i] = (uint8_t)(x >> 24);
    }
    return mprotect(map, PAGE_BYTES, PROT_NONE) ||
           mprotect(area + AREA_BYTES, PAGE_BYTES, PROT_NONE);
}

static int tear_down(void **state)
{
    (void)state;
    k3_sha256_close(sha);
    return munmap(area - PAGE_BYTES, AREA_BYTES + (size_t)2 * PAGE_BYTES);
}

static int unforce(void **state)
{
    (void)state;
    k3_sha256_force(K3_SHA256_FORM_COUNT);
    return 0;
}

/* Takes the form of this test, or ends the test as skipped. */
static void use_form(void **state)
{
    enum k3_sha256_form form = *(const enum k3_sha256_form *)*state;
    if (!k3_sha256_form_runs(form)) {
        print_message("%s does not run on this CPU\n", k3_sha256_form_name(form));
        skip();
    }
    k3_sha256_force(form);
    assert_int_equal(k3_sha256_form(), form);
}

/* The digests go to an odd address, with canaries before and behind. */
static void check(const uint8_t *blocks, size_t count)
{
    static uint8_t found[CANARY_BYTES + BLOCK_COUNT_MAX * K3_DIGEST_BYTES + CANARY_BYTES];
    size_t first = CANARY_BYTES - 1 - count % 3, end = first + count * K3_DIGEST_BYTES;
    memset(found, CANARY, sizeof found);
    k3_sha256_blocks(sha, blocks, count, found + first);
    for (size_t i = 0; i < count; i++) {
        uint8_t wanted[K3_DIGEST_BYTES];
        k3_sha256_of(sha, blocks + i * K3_BLOCK_BYTES, K3_BLOCK_BYTES, wanted);
        assert_memory_equal(found + first + i * K3_DIGEST_BYTES, wanted, sizeof wanted);
    }
    for (size_t i = 0; i < sizeof found; i++)
        if (i < first || i >= end)
            assert_int_equal(found[i], CANARY);
}

static void test_counts(void **state)
{
    use_form(state);
    for (size_t count = 0; count <= BLOCK_COUNT_MAX; count++)
        check(area, count);
}

static void test_offsets(void **state)
{
    use_form(state);
    for (size_t offset = 0; offset <= 64; offset++)
        check(area + offset, offset % 2 ? 19 : 33);
}

/* From the first byte of the mapping, and to its last. */
static void test_no_overread(void **state)
{
    use_form(state);
    for (size_t count = 1; count <= BLOCK_COUNT_MAX; count++) {
        check(area, count);
        check(area + AREA_BYTES - count * K3_BLOCK_BYTES, count);
    }
}

/* Words that carry everywhere, and words that carry nowhere. */
static void test_extremes(void **state)
{
    use_form(state);
    static uint8_t blocks[17 * K3_BLOCK_BYTES];
    static const uint8_t fill[] = {0x00, 0xff, 0x80, 0x7f};
    for (size_t i = 0; i < sizeof fill; i++) {
        memset(blocks, fill[i], sizeof blocks);
        check(blocks, 17);
    }
}

static void test_choice(void **state)
{
    (void)state;
    assert_true(k3_sha256_form_runs(K3_SHA256_LIBCRYPTO));
    assert_false(k3_sha256_form_runs(K3_SHA256_FORM_COUNT));
    for (int f = 0; f < K3_SHA256_FORM_COUNT; f++) {
        enum k3_sha256_form form = (enum k3_sha256_form)f;
        assert_true(k3_sha256_form_name(form)[0] != 0);
        if (!k3_sha256_form_runs(form))
            continue;
        k3_sha256_force(form);
        assert_int_equal(k3_sha256_form(), form);
    }
    k3_sha256_force(K3_SHA256_FORM_COUNT);
    enum k3_sha256_form chosen = k3_sha256_form();
    assert_true(k3_sha256_form_runs(chosen));
    for (int f = K3_SHA256_AVX512; f < (int)chosen;
         f++) /* the one before it is for some CPUs only */
        assert_false(k3_sha256_form_runs((enum k3_sha256_form)f));
    print_message("this CPU takes %s\n", k3_sha256_form_name(chosen));
}

static uint32_t ror(uint32_t x, int count)
{
    return x >> count | x << (32 - count);
}

/* The padding constants are the schedule of FIPS 180-4, 6.2.2 for the padding of 4096 bytes. */
static void test_padding(void **state)
{
    (void)state;
    uint32_t w[K3_SHA256_ROUND_COUNT] = {0x80000000};
    w[15] = K3_BLOCK_BYTES * 8;
    for (int t = 16; t < K3_SHA256_ROUND_COUNT; t++) {
        uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + w[t - 7] + (ror(x, 7) ^ ror(x, 18) ^ x >> 3) +
               (ror(y, 17) ^ ror(y, 19) ^ y >> 10);
    }
    for (int t = 0; t < K3_SHA256_ROUND_COUNT; t++)
        assert_int_equal(k3_sha256_constants.padding[t],
                         (uint32_t)(w[t] + k3_sha256_constants.round[t]));
}

#define FORM_TESTS(form)                                                                           \
    {#form " counts", test_counts, NULL, unforce, &form},                                          \
        {#form " offsets", test_offsets, NULL, unforce, &form},                                    \
        {#form " no overread", test_no_overread, NULL, unforce, &form},                            \
    {                                                                                              \
#form " extremes", test_extremes, NULL, unforce, &form                                     \
    }

int main(void)
{
    static enum k3_sha256_form avx512_sha = K3_SHA256_AVX512_SHA, avx512 = K3_SHA256_AVX512,
                               shani = K3_SHA256_SHANI, armv8 = K3_SHA256_ARMV8,
                               libcrypto = K3_SHA256_LIBCRYPTO;
    const struct CMUnitTest tests[] = {
        FORM_TESTS(avx512_sha),
        FORM_TESTS(avx512),
        FORM_TESTS(shani),
        FORM_TESTS(armv8),
        FORM_TESTS(libcrypto),
        cmocka_unit_test_teardown(test_choice, unforce),
        cmocka_unit_test(test_padding),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
