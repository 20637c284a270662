/* Purpose: prove that sizes, rates, counts and times are parsed and printed exactly.
 * Owns: nothing.
 * Threads: one.
 * Errors: none.
 * Invariant: expected values are written out, not computed by the code under test. */
#include "sizes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define POISON UINT64_C(0xa5a5a5a5a5a5a5a5)

static void size_is(const char *text, uint64_t want)
{
    struct k3_err err;
    k3_err_init(&err);
    uint64_t bytes = POISON;
    if (k3_size_parse(text, &bytes, &err))
        fail_msg("%s: %s", text, err.text);
    assert_int_equal(bytes, want);
}

static void size_is_refused(const char *text)
{
    struct k3_err err;
    k3_err_init(&err);
    uint64_t bytes = POISON;
    if (k3_size_parse(text, &bytes, &err) != K3_EUSAGE)
        fail_msg("'%s' was taken for %llu", text, (unsigned long long)bytes);
    assert_true(err.text[0]);
}

static void parses_units(void **state)
{
    (void)state;
    size_is("0", 0);
    size_is("4096", 4096);
    size_is("4096B", 4096);
    size_is("1KB", 1000);
    size_is("1KiB", 1024);
    size_is("3MB", 3000000);
    size_is("3MiB", 3145728);
    size_is("195GB", UINT64_C(195000000000));
    size_is("195GiB", UINT64_C(209379655680));
    size_is("2TB", UINT64_C(2000000000000));
    size_is("2TiB", UINT64_C(2199023255552));
    size_is("195 GiB", UINT64_C(209379655680));
    size_is("195gib", UINT64_C(209379655680));
}

static void parses_exact_fractions(void **state)
{
    (void)state;
    size_is("1.5GiB", UINT64_C(1610612736));
    size_is("0.5KiB", 512);
    size_is("1.000000000001TB", UINT64_C(1000000000001));
    size_is("206.001TB", UINT64_C(206001000000000));
    size_is("7.0", 7);
    size_is_refused("0.1KiB");
    size_is_refused("0.5");
    size_is_refused("0.0000000000001TB");
}

static void parses_up_to_the_limit(void **state)
{
    (void)state;
    size_is("18446744073709551615", UINT64_MAX);
    size_is("16777215TiB", UINT64_C(16777215) << 40);
    size_is("16777215.5TiB", (UINT64_C(16777215) << 40) + (UINT64_C(1) << 39));
    size_is_refused("18446744073709551616");
    size_is_refused("16777216TiB");
    size_is_refused("99999999999999999999999");
}

static void refuses_what_is_no_size(void **state)
{
    (void)state;
    static const char *const text[] = {
        "",     " ",     "GiB",   "1G",    "1g",    "1 k",  "-1", "+1",  "0x1", "1e3",        "1,5",
        "1..5", "1.GiB", ".5GiB", "1GiBB", "1GiB ", "1  B", " 1", "1\n", "1Gi", "1\xc2\xa0GB"};
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
        size_is_refused(text[i]);
}

static void parses_rates(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t want; /* 0: refused */
    } row[] = {
        {"12", UINT64_C(12000000000)},
        {"12.5", UINT64_C(12500000000)},
        {"900MB/s", 900000000},
        {"1GiB/s", UINT64_C(1073741824)},
        {"900MB", 900000000},
        {"0.001", 1000000},
        {"0", 0},
        {"fast", 0},
        {"1/s", 0},
        {"", 0},
        {"1Gbit/s", 0},
        {"1GB/h", 0},
        {"18446744074", 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct k3_err err;
        k3_err_init(&err);
        uint64_t rate = POISON;
        int rc = k3_rate_parse(row[i].text, &rate, &err);
        assert_int_equal(rc, row[i].want ? 0 : K3_EUSAGE);
        if (row[i].want)
            assert_int_equal(rate, row[i].want);
    }
}

static void prints_sizes(void **state)
{
    (void)state;
    assert_string_equal(k3_size_text(0).s, "0 B");
    assert_string_equal(k3_size_text(999).s, "999 B");
    assert_string_equal(k3_size_text(1000).s, "1.00 KB (1000 B)");
    assert_string_equal(k3_size_text(1024).s, "1.02 KB (1.00 KiB)");
    assert_string_equal(k3_size_text(524288).s, "524.29 KB (512.00 KiB)");
    assert_string_equal(k3_size_text(UINT64_C(206000000000)).s, "206.00 GB (191.85 GiB)");
    assert_string_equal(k3_size_text(UINT64_C(1560860324864)).s, "1.56 TB (1.42 TiB)");
    assert_string_equal(k3_size_text(UINT64_MAX).s, "18446744.07 TB (16777216.00 TiB)");
    assert_string_equal(k3_size_short(UINT64_C(206000000000)).s, "206.00 GB");
    static const char *const given[] = {"0",      "1",     "1023",   "1KB", "4KiB", "1MB",
                                        "1025KB", "200GB", "195GiB", "1TB", "1TiB", "16777215TiB"};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        uint64_t bytes = 0;
        struct k3_err err;
        k3_err_init(&err);
        assert_int_equal(k3_size_parse(given[i], &bytes, &err), 0);
        assert_string_equal(k3_size_given(bytes).s, given[i]);
    }
}

/* 999,995 bytes round to 1000.00 KB, which is written as 1.00 MB. */
static void rounds_into_the_next_unit(void **state)
{
    (void)state;
    assert_string_equal(k3_size_short(999994).s, "999.99 KB");
    assert_string_equal(k3_size_short(999995).s, "1.00 MB");
    assert_string_equal(k3_size_short(1005).s, "1.01 KB");
    assert_string_equal(k3_size_short(1004).s, "1.00 KB");
}

static void prints_rates_counts_times(void **state)
{
    (void)state;
    assert_string_equal(k3_rate_text(UINT64_C(16700000000), 1000000000).s, "16.70 GB/s");
    assert_string_equal(k3_rate_text(1, 0).s, "- GB/s");
    assert_string_equal(k3_rate_text(UINT64_MAX, 1).s, "18446744.07 TB/s");
    assert_string_equal(k3_count_text(0).s, "0");
    assert_string_equal(k3_count_text(999).s, "999");
    assert_string_equal(k3_count_text(497220).s, "497,220");
    assert_string_equal(k3_count_text(UINT64_MAX).s, "18,446,744,073,709,551,615");
    assert_string_equal(k3_time_text(0).s, "0.0 s");
    assert_string_equal(k3_time_text(UINT64_C(12340000000)).s, "12.3 s");
    assert_string_equal(k3_time_text(UINT64_C(125000000000)).s, "2 min 05 s");
    assert_string_equal(k3_time_text(UINT64_C(3725000000000)).s, "1 h 02 min");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_units),
        cmocka_unit_test(parses_exact_fractions),
        cmocka_unit_test(parses_up_to_the_limit),
        cmocka_unit_test(refuses_what_is_no_size),
        cmocka_unit_test(parses_rates),
        cmocka_unit_test(prints_sizes),
        cmocka_unit_test(rounds_into_the_next_unit),
        cmocka_unit_test(prints_rates_counts_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
