/* Purpose: statistics of every element type are those of its definition.
 * Owns: one temporary file at a time.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: expected values are written down by hand from the definitions of the formats. */
#include "inspect.h"

#include "dtype.h"
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Statistics of some bytes as one line of JSON. */
static const char *stats_of(enum k3_dtype dtype, const void *data, size_t bytes)
{
    static char shown[512];
    struct k3_text text;
    struct k3_err err;
    struct k3_doc *row = k3_doc_new_object();
    FILE *file = tmpfile();
    assert_non_null(row);
    assert_non_null(file);
    fputs("head", file); /* data begin at an offset */
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fflush(file), 0);
    struct k3_stats_range range = {
        .name = "t", .offset = 4, .bytes = bytes, .fd = fileno(file), .dtype = (uint8_t)dtype};
    k3_err_init(&err);
    assert_int_equal(k3_inspect_stats(&range, NULL, row, &err), 0);
    k3_text_init(&text);
    assert_int_equal(k3_doc_encode(row, &text, &err), 0);
    snprintf(shown, sizeof shown, "%s", text.data);
    k3_text_fini(&text);
    k3_doc_free(row);
    fclose(file);
    return shown;
}

#define STATS(dtype, ...)                                                                          \
    stats_of(dtype, (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

static void test_two_byte_floats(void **state)
{
    (void)state;
    /* 1, -2, 0, NaN, +Inf */
    assert_string_equal(
        STATS(K3_BF16, 0x80, 0x3f, 0x00, 0xc0, 0, 0, 0xc0, 0x7f, 0x80, 0x7f),
        "{\"count\":5,\"zeros\":1,\"nan\":1,\"inf\":1,\"min\":-2,\"max\":1,\"mean\":-0.333333,"
        "\"std\":1.24722}");
    /* 1, 65504 (largest), 2^-24 (smallest), -Inf */
    assert_string_equal(
        STATS(K3_F16, 0, 0x3c, 0xff, 0x7b, 1, 0, 0, 0xfc),
        "{\"count\":4,\"zeros\":0,\"nan\":0,\"inf\":1,\"min\":5.96046e-08,\"max\":65504,"
        "\"mean\":21835,\"std\":30878.6}");
}

static void test_one_byte_floats(void **state)
{
    (void)state;
    /* E4M3: 448 (largest), -2^-9 (smallest), both NaN */
    assert_string_equal(
        STATS(K3_F8_E4M3, 0x7e, 0x81, 0x7f, 0xff),
        "{\"count\":4,\"zeros\":0,\"nan\":2,\"inf\":0,\"min\":-0.00195312,\"max\":448,"
        "\"mean\":223.999,\"std\":224.001,\"distinct_values\":4}");
    /* E5M2: 57344 (largest), 2^-16 (smallest), Inf, NaN */
    assert_string_equal(
        STATS(K3_F8_E5M2, 0x7b, 0x01, 0x7c, 0x7d),
        "{\"count\":4,\"zeros\":0,\"nan\":1,\"inf\":1,\"min\":1.52588e-05,\"max\":57344,"
        "\"mean\":28672,\"std\":28672,\"distinct_values\":4}");
    /* E8M0: 2^-127, 1, 2, NaN */
    assert_string_equal(
        STATS(K3_F8_E8M0, 0, 127, 128, 255),
        "{\"count\":4,\"zeros\":0,\"nan\":1,\"inf\":0,\"min\":5.87747e-39,\"max\":2,\"mean\":1,"
        "\"std\":0.816497,\"distinct_values\":4}");
    /* FNUZ: 0x80 is the one NaN; 240 and 57344 are the largest */
    assert_string_equal(
        STATS(K3_F8_E4M3FNUZ, 0x80, 0x7f),
        "{\"count\":2,\"zeros\":0,\"nan\":1,\"inf\":0,\"min\":240,\"max\":240,\"mean\":240,"
        "\"std\":0,\"distinct_values\":2}");
    assert_string_equal(
        STATS(K3_F8_E5M2FNUZ, 0x80, 0x7f),
        "{\"count\":2,\"zeros\":0,\"nan\":1,\"inf\":0,\"min\":57344,\"max\":57344,\"mean\":57344,"
        "\"std\":0,\"distinct_values\":2}");
}

static void test_integers(void **state)
{
    (void)state;
    assert_string_equal(STATS(K3_I8, 0x80, 0x7f, 0, 0),
                        "{\"count\":4,\"zeros\":2,\"nan\":0,\"inf\":0,\"min\":-128,\"max\":127,"
                        "\"mean\":-0.25,\"std\":90.1565,\"distinct_values\":3}");
    assert_string_equal(STATS(K3_U8, 255, 1),
                        "{\"count\":2,\"zeros\":0,\"nan\":0,\"inf\":0,\"min\":1,\"max\":255,"
                        "\"mean\":128,\"std\":127,\"distinct_values\":2}");
    assert_string_equal(STATS(K3_F4, 0x21, 0x43),
                        "{\"packed_count\":2,\"zeros\":0,\"nan\":0,\"inf\":0,\"min\":33,\"max\":67,"
                        "\"mean\":50,\"std\":17,\"distinct_values\":2}");
    assert_string_equal(STATS(K3_I16, 0xff, 0xff, 1, 0),
                        "{\"count\":2,\"zeros\":0,\"nan\":0,\"inf\":0,\"min\":-1,\"max\":1,"
                        "\"mean\":0,\"std\":1}");
    assert_string_equal(STATS(K3_I64, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
                        "{\"count\":1,\"zeros\":0,\"nan\":0,\"inf\":0,\"min\":-2,\"max\":-2,"
                        "\"mean\":-2,\"std\":0}");
}

/* More than one chunk, with a mean far from zero: the deviation must not drown in it. */
static void test_many(void **state)
{
    (void)state;
    size_t count = 200001;
    double *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = 1e9 + (double)(i % 3) - 1;
    const char *shown = stats_of(K3_F64, values, count * sizeof *values);
    assert_non_null(strstr(shown, "\"count\":200001"));
    assert_non_null(strstr(shown, "\"mean\":1e+09"));
    assert_non_null(strstr(shown, "\"std\":0.816497"));
    free(values);
}

static void test_empty_and_refused(void **state)
{
    (void)state;
    struct k3_err err;
    struct k3_stats_range range = {.name = "t", .fd = -1, .dtype = K3_C64};
    assert_string_equal(stats_of(K3_F32, "", 0), "{\"count\":0,\"zeros\":0,\"nan\":0,\"inf\":0}");
    k3_err_init(&err);
    assert_int_equal(k3_inspect_stats(&range, NULL, NULL, &err), K3_EUNSUPPORTED);
    /* a tensor behind the end of the file */
    struct k3_doc *row = k3_doc_new_object();
    FILE *file = tmpfile();
    assert_non_null(file);
    range = (struct k3_stats_range){.name = "t", .bytes = 8, .fd = fileno(file), .dtype = K3_F32};
    k3_err_init(&err);
    assert_int_equal(k3_inspect_stats(&range, NULL, row, &err), K3_ECORRUPT);
    k3_doc_free(row);
    fclose(file);
}

/* The bins of some bytes as one line of JSON; they come in two pieces, as reads do. */
static const char *bins_of(enum k3_hist_kind kind, enum k3_dtype dtype, const uint8_t *data,
                           size_t bytes)
{
    static char shown[1024];
    struct k3_hists hists = {0};
    struct k3_hist *hist, *again;
    struct k3_text text;
    struct k3_err err;
    struct k3_doc *root = k3_doc_new_object();
    const size_t first = bytes / 16 * 8;
    assert_non_null(root);
    k3_err_init(&err);
    k3_text_init(&text);
    assert_int_equal(k3_hists_open(&hists, kind, dtype, &hist, &err), 0);
    k3_hist_add(hist, data, first);
    assert_int_equal(k3_hists_open(&hists, kind, dtype, &again, &err), 0);
    assert_ptr_equal(hist, again); /* of the same kind: one histogram */
    k3_hist_add(hist, data + first, bytes - first);
    assert_true(k3_hists_show(&hists, root));
    assert_int_equal(k3_doc_encode(root, &text, &err), 0);
    snprintf(shown, sizeof shown, "%s", text.data);
    k3_hists_close(&hists);
    k3_text_fini(&text);
    k3_doc_free(root);
    return shown;
}

#define BINS(kind, dtype, ...)                                                                     \
    bins_of(kind, dtype, (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))
#define HIST(of, count, bins)                                                                      \
    "{\"histograms\":[{\"of\":\"" of "\",\"tensors\":2,\"count\":" count ",\"bins\":[" bins "]}]}"
#define BIN(bin, negative, positive)                                                               \
    "{\"bin\":\"" bin "\",\"negative\":" negative ",\"positive\":" positive "}"

static void test_bins_of_codes(void **state)
{
    (void)state;
    /* each of the 16 codes once, and 0.5 and -6 once more; the low nibble comes first or not */
    assert_string_equal(
        BINS(K3_HIST_E2M1, K3_U8, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0xf1),
        HIST("E2M1 codes", "18",
             BIN("0", "1", "1") "," BIN("0.5", "1", "2") "," BIN("1", "1", "1") "," BIN(
                 "1.5", "1", "1") "," BIN("2", "1", "1") "," BIN("3", "1",
                                                                 "1") "," BIN("4", "1",
                                                                              "1") "," BIN("6", "2",
                                                                                           "1")));
    /* q + 8: 0 is -8, 8 is 0, 15 is 7 */
    assert_string_equal(BINS(K3_HIST_INT4, K3_I32, 0x80, 0xf8, 0x97, 0x88),
                        HIST("INT4 codes", "8",
                             BIN("0", "0", "4") "," BIN("1", "1", "1") "," BIN(
                                 "7", "0", "1") "," BIN("8", "1", "0")));
}

static void test_bins_of_scales(void **state)
{
    (void)state;
    assert_string_equal(BINS(K3_HIST_E8M0, K3_U8, 0, 127, 127, 254, 255),
                        HIST("E8M0 scales", "5",
                             BIN("2^-127", "0", "1") "," BIN("2^0", "0", "2") "," BIN(
                                 "2^127", "0", "1") "," BIN("nan", "0", "1")));
    /* 448, 256, 0.015625 (least normal), 0.001953125, 0, -0, NaN */
    assert_string_equal(
        BINS(K3_HIST_SCALES, K3_F8_E4M3, 0x7e, 0x78, 0x08, 0x01, 0x00, 0x80, 0x7f),
        HIST("F8_E4M3 scales", "7",
             BIN("0", "1", "1") "," BIN("subnormal", "0", "1") "," BIN("2^-6", "0", "1") "," BIN(
                 "2^8", "0", "2") "," BIN("nan", "0", "1")));
}

static void test_bins_of_values(void **state)
{
    (void)state;
    /* BF16: 1, 1.99, -2, 2^-133, -0, Inf, -NaN, 0.75 */
    assert_string_equal(
        BINS(K3_HIST_VALUES, K3_BF16, 0x80, 0x3f, 0xff, 0x3f, 0x00, 0xc0, 0x01, 0x00, 0x00, 0x80,
             0x80, 0x7f, 0xff, 0xff, 0x40, 0x3f),
        HIST("BF16 values", "8",
             BIN("0", "1", "0") "," BIN("subnormal", "0", "1") "," BIN("2^-1", "0", "1") "," BIN(
                 "2^0", "0", "2") "," BIN("2^1", "1", "0") "," BIN("inf", "0",
                                                                   "1") "," BIN("nan", "1", "0")));
    /* F32: 2^-149, which a look at its upper half takes for 0, and -2^-126; a NaN of its last bit
     */
    assert_string_equal(
        BINS(K3_HIST_GLOBALS, K3_F32, 1, 0, 0, 0, 0, 0, 0x80, 0x80, 1, 0, 0x80, 0x7f),
        HIST("F32 global scales", "3",
             BIN("subnormal", "0", "1") "," BIN("2^-126", "1", "0") "," BIN("nan", "0", "1")));
    /* FNUZ: 0x80 is NaN and no zero; integers by their highest bit, -128 and -2^63 too */
    assert_string_equal(
        BINS(K3_HIST_VALUES, K3_F8_E4M3FNUZ, 0x80, 0x00, 0x08),
        HIST("F8_E4M3FNUZ values", "3",
             BIN("0", "0", "1") "," BIN("2^-7", "0", "1") "," BIN("nan", "1", "0")));
    assert_string_equal(
        BINS(K3_HIST_VALUES, K3_I8, 0x80, 0x7f, 0xff, 0, 3),
        HIST("I8 values", "5",
             BIN("0", "0", "1") "," BIN("2^0", "1", "0") "," BIN("2^1", "0", "1") "," BIN(
                 "2^6", "0", "1") "," BIN("2^7", "1", "0")));
    assert_string_equal(BINS(K3_HIST_VALUES, K3_I64, 0, 0, 0, 0, 0, 0, 0, 0x80),
                        HIST("I64 values", "1", BIN("2^63", "1", "0")));
    assert_string_equal(
        BINS(K3_HIST_VALUES, K3_F64, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe0, 0x7f, 0, 0, 0,
             0, 0, 0, 0x10, 0),
        HIST("F64 values", "3",
             BIN("subnormal", "0", "1") "," BIN("2^-1022", "0", "1") "," BIN("2^1023", "0", "1")));
}

/* What a tensor holds follows from its name and dtype, as FORMAT.md 4.7 has them. */
static void test_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_view;
        enum k3_dtype dtype;
        enum k3_hist_kind kind;
    } row[] = {
        {"a.weight", false, K3_BF16, K3_HIST_VALUES},
        {"a.weight", false, K3_F8_E4M3, K3_HIST_VALUES},
        {"a.weight", false, K3_I8, K3_HIST_VALUES},
        {"a.weight_packed", false, K3_U8, K3_HIST_E2M1},
        {"a.weight_packed", false, K3_I32, K3_HIST_INT4},
        {"a.weight_scale", false, K3_U8, K3_HIST_E8M0},
        {"a.weight_scale", false, K3_F8_E4M3, K3_HIST_SCALES},
        {"a.weight_scale", false, K3_F32, K3_HIST_SCALES},
        {"a.weight_scale_inv", false, K3_F32, K3_HIST_SCALES},
        {"a.weight_global_scale", false, K3_F32, K3_HIST_GLOBALS},
        {"a.weight_shape", false, K3_I64, K3_HIST_NONE},
        {"a.zeros", false, K3_U8, K3_HIST_VALUES},
        {"layers.1.experts.w13", true, K3_U8, K3_HIST_E2M1},
        {"layers.1.experts.w13", true, K3_I32, K3_HIST_INT4},
        {"layers.1.experts.w13", true, K3_I8, K3_HIST_VALUES},
        {"layers.1.experts.w13_scale", true, K3_U8, K3_HIST_E8M0},
        {"layers.1.experts.w13_global", true, K3_F32, K3_HIST_GLOBALS},
        {"layers.1.experts.w13_shape", true, K3_I64, K3_HIST_NONE},
        {"a", false, K3_F4, K3_HIST_E2M1},
        {"a", false, K3_F6_E2M3, K3_HIST_NONE},
        {"a", false, K3_C64, K3_HIST_NONE},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (k3_hist_kind_of(row[i].name, row[i].is_view, row[i].dtype) != row[i].kind)
            fail_msg("%s %s", row[i].name, k3_dtype_name(row[i].dtype));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_byte_floats),
        cmocka_unit_test(test_one_byte_floats),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_empty_and_refused),
        cmocka_unit_test(test_bins_of_codes),
        cmocka_unit_test(test_bins_of_scales),
        cmocka_unit_test(test_bins_of_values),
        cmocka_unit_test(test_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
