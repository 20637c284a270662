/* Purpose: the names of the files of a set, made and read back strictly.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: a name that k3_part_name does not make is not taken for one. */
#include "manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_names(void **state)
{
    (void)state;
    char name[K3_NAME_BYTES_MAX + 1];
    uint32_t rank = 9, part = 9;
    k3_part_name(4095, 0, name);
    assert_string_equal(name, "model-rank-4095-part-0.safetensors");
    assert_int_equal(k3_part_name_decode(name, &rank, &part), 1);
    assert_int_equal(rank, 4095);
    assert_int_equal(part, 0);
    k3_units_name(10, name);
    assert_string_equal(name, "model-rank-10.units");
    assert_int_equal(k3_units_name_decode(name, &rank), 1);
    assert_int_equal(rank, 10);
    static const char *const bad[] = {"",
                                      "model-rank-0-part-0.safetensors2",
                                      "model-rank-00-part-0.safetensors",
                                      "model-rank-0-part-01.safetensors",
                                      "model-rank--part-0.safetensors",
                                      "model-rank-+1-part-0.safetensors",
                                      "model-rank- 1-part-0.safetensors",
                                      "model-rank-4096-part-0.safetensors",
                                      "model-rank-0-part-4294967296.safetensors",
                                      "Model-rank-0-part-0.safetensors",
                                      "model-rank-0-part-0",
                                      "model-rank-0",
                                      "model-rank-00.units",
                                      "model-rank-0.unitss",
                                      "model-rank-4096.units",
                                      "model-rank-.units"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(k3_part_name_decode(bad[i], &rank, &part), 0);
        assert_int_equal(k3_units_name_decode(bad[i], &rank), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
