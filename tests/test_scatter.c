/* Purpose: column gather and spread, and source-headers content.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariant: cutting a matrix at any byte into runs gives the same slices as cutting it whole. */
#include "scatter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 5, ROW = 12, BYTES = ROWS * ROW };

static void test_columns_any_cut(void **state)
{
    (void)state;
    uint8_t matrix[BYTES], wanted[ROWS * 4], packed[BYTES], back[BYTES];
    const struct k3_slice slice = {
        .row_count = ROWS, .row_bytes = ROW, .column_begin = 3, .column_bytes = 4};
    for (unsigned i = 0; i < BYTES; i++)
        matrix[i] = (uint8_t)(i + 1);
    for (unsigned r = 0; r < ROWS; r++)
        memcpy(wanted + r * 4, matrix + r * ROW + 3, 4);
    for (uint64_t cut = 1; cut < BYTES; cut++) {
        struct k3_run first = {.begin = 0, .end = cut, .tensor_bytes = BYTES},
                      second = {.begin = cut, .end = BYTES, .tensor_bytes = BYTES};
        uint64_t in_first = cut / ROW * 4 + (cut % ROW < 3       ? 0
                                             : cut % ROW - 3 > 4 ? 4
                                                                 : cut % ROW - 3);
        memset(packed, 0xa5, sizeof packed);
        k3_gather_columns(&first, &slice, matrix, packed);
        k3_gather_columns(&second, &slice, matrix + cut, packed + in_first);
        assert_memory_equal(packed, wanted, sizeof wanted);
        memset(back, 0, sizeof back);
        k3_spread_columns(&first, &slice, packed, back);
        k3_spread_columns(&second, &slice, packed + in_first, back + cut);
        for (unsigned r = 0; r < ROWS; r++)
            assert_memory_equal(back + r * ROW + 3, wanted + r * 4, 4);
    }
}

static void headers_text(struct k3_text *text)
{
    k3_text_init(text);
    k3_source_headers_begin(text);
    k3_source_headers_line("config.json", 2, text);
    k3_text_puts(text, "{}\n");
    k3_source_headers_line("model.safetensors.index.json", 3, text);
    k3_text_puts(text, "{ }\n");
    k3_source_headers_line("a.safetensors", 4, text);
    k3_text_puts(text, "\n\n\n\n\n");
}

static void test_index_max(void **state)
{
    (void)state;
    assert_int_equal(k3_source_headers_index_max(0), 16u << 20);
    assert_int_equal(k3_source_headers_index_max(1000), (16u << 20) + 8000);
    const uint64_t full = (K3_INDEX_BYTES_MAX - (16u << 20)) / 8;
    assert_int_equal(k3_source_headers_index_max(full - 1), K3_INDEX_BYTES_MAX - 8);
    assert_int_equal(k3_source_headers_index_max(full), K3_INDEX_BYTES_MAX);
    assert_int_equal(k3_source_headers_index_max(UINT64_MAX), K3_INDEX_BYTES_MAX);
}

static void test_headers_round_trip(void **state)
{
    (void)state;
    struct k3_text text;
    struct k3_source_headers headers;
    struct k3_err err;
    k3_err_init(&err);
    headers_text(&text);
    assert_int_equal(k3_source_headers_decode("x", text.data, text.bytes, &headers, &err), 0);
    assert_int_equal(headers.count, 3);
    assert_string_equal(headers.entries[2].name, "a.safetensors");
    assert_int_equal(headers.entries[2].bytes, 4);
    assert_memory_equal(headers.entries[1].data, "{ }", 3);
    k3_source_headers_fini(&headers);
    for (size_t bytes = 0; bytes < text.bytes; bytes++) { /* cut anywhere: refused */
        k3_err_init(&err);
        assert_int_not_equal(k3_source_headers_decode("x", text.data, bytes, &headers, &err), 0);
    }
    k3_text_fini(&text);
}

static void test_headers_order(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "k3-source-headers 1\nconfig.json 0\n\nmodel.safetensors.index.json 0\n\na.safetensors "
        "0\n\n",
        "k3-source-headers 0\nmodel.safetensors.index.json 0\n\nconfig.json 0\n\na.safetensors "
        "0\n\n",
        "k3-source-headers 0\nconfig.json 0\n\nmodel.safetensors.index.json 0\n\nb 0\n\na 0\n\n",
        "k3-source-headers 0\nconfig.json 0\n\nmodel.safetensors.index.json 0\n\n../a 0\n\n",
        "k3-source-headers 0\nconfig.json 00\n\nmodel.safetensors.index.json 0\n\na 0\n\n",
        "k3-source-headers 0\nconfig.json 99999999999999999999\n\n",
        "k3-source-headers 0\nconfig.json 0\n\nmodel.safetensors.index.json 0\n\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct k3_source_headers headers;
        struct k3_err err;
        k3_err_init(&err);
        assert_int_equal(k3_source_headers_decode("x", bad[i], strlen(bad[i]), &headers, &err),
                         K3_EFORMAT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns_any_cut),
        cmocka_unit_test(test_index_max),
        cmocka_unit_test(test_headers_round_trip),
        cmocka_unit_test(test_headers_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
