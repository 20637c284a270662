/* Purpose: formats/ranks.c: lists of ranks and their one text form.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariant: what decodes is what is made again. */
#include "ranks.h"

#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *text;
    uint32_t count;
} good[] = {{"0", 1},        {"7", 1},    {"0-1", 2},       {"0,2", 2},
            {"0-3,8", 5},    {"4095", 1}, {"0-4095", 4096}, {"1-2,4-5,7,9-4000", 3997},
            {"4094-4095", 2}};

static void test_round_trip(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct k3_ranks ranks;
        struct k3_text text;
        memset(&ranks, 0xa5, sizeof ranks);
        k3_text_init(&text);
        assert_true(k3_ranks_decode(good[i].text, strlen(good[i].text), &ranks));
        assert_int_equal(ranks.count, good[i].count);
        k3_ranks_put(&ranks, &text);
        assert_string_equal(text.data, good[i].text);
        k3_text_fini(&text);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",    ",",   "0,",  ",0",   "00",    "01",    "0-",          "-1",    "1-0",
        "1-1", "0,0", "1,0", "0,1",  "0-1,2", "0-2,1", "0-2,3-4",     "4096",  "0-4096",
        "0 ",  " 0",  "0;1", "0--1", "a",     "0-1-2", "99999999999", "0,2\n", "+1"};
    struct k3_ranks ranks;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (k3_ranks_decode(bad[i], strlen(bad[i]), &ranks))
            fail_msg("\"%s\" was taken for a list", bad[i]);
    assert_false(k3_ranks_decode("0\0,2", 4, &ranks));
}

static void test_members(void **state)
{
    (void)state;
    struct k3_ranks all, some;
    k3_ranks_fill(&all, 8);
    k3_ranks_clear(&some);
    assert_int_equal(all.count, 8);
    assert_false(k3_ranks_has(&all, 8));
    assert_false(k3_ranks_has(&all, K3_RANK_COUNT_MAX));
    assert_false(k3_ranks_has(&all, UINT32_MAX));
    for (uint32_t rank = 8; rank-- > 0;) {
        assert_false(k3_ranks_equal(&all, &some));
        k3_ranks_add(&some, rank);
        k3_ranks_add(&some, rank);
    }
    assert_true(k3_ranks_equal(&all, &some));
    assert_int_equal(some.count, 8);
}

static void test_shown(void **state)
{
    (void)state;
    struct k3_ranks ranks;
    char shown[K3_RANKS_SHOWN_BYTES];
    k3_ranks_clear(&ranks);
    assert_string_equal(k3_ranks_shown(&ranks, shown), "");
    k3_ranks_add(&ranks, 4);
    k3_ranks_add(&ranks, 3);
    k3_ranks_add(&ranks, 9);
    assert_string_equal(k3_ranks_shown(&ranks, shown), "3-4,9");
    for (uint32_t rank = 0; rank < K3_RANK_COUNT_MAX; rank += 2)
        k3_ranks_add(&ranks, rank);
    memset(shown, 'x', sizeof shown);
    k3_ranks_shown(&ranks, shown);
    size_t bytes = strnlen(shown, sizeof shown);
    assert_true(bytes < sizeof shown && bytes > sizeof shown - 12);
    assert_memory_equal(shown, "0,2-4,6,8-10,", 13);
    assert_string_equal(shown + bytes - 4, ",...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
