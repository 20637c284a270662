/* Purpose: safetensors headers: every named bad file, the odd good ones, round trip, random
 * damage.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion names the file of the table.
 * Invariants: the random numbers are the same in every run. */
#include "bytes.h"
#include "st.h"
#include "st_bad.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PROBE_BYTES 512u /* what a reader has of a file before it knows the header's length */

/* As a reader does it: the first bytes, then the whole header.  The header is a copy of its exact
 * size, so that a sanitizer sees a read beyond it. */
static int decode(const char *file, const char *data, size_t bytes, struct k3_st **st,
                  struct k3_err *err)
{
    size_t probe_bytes = bytes < PROBE_BYTES ? bytes : PROBE_BYTES;
    char *probe = malloc(probe_bytes + 1);
    assert_non_null(probe);
    memcpy(probe, data, probe_bytes);
    probe = realloc(probe, probe_bytes ? probe_bytes : 1);
    uint64_t header_bytes;
    *st = NULL;
    int rc = k3_st_header_bytes(file, probe, probe_bytes, bytes, &header_bytes, err);
    free(probe);
    if (rc)
        return rc;
    assert_true(header_bytes <= bytes);
    char *header = malloc((size_t)header_bytes);
    assert_non_null(header);
    memcpy(header, data, (size_t)header_bytes);
    rc = k3_st_decode(file, header, (size_t)header_bytes, bytes, st, err);
    memset(header, 0xee, (size_t)header_bytes); /* the result must not lean on it */
    free(header);
    return rc;
}

/* All wrong rows are printed before the test fails. */
static bool check_row(const struct k3_bad_st *row)
{
    char file[128];
    snprintf(file, sizeof file, "dir/%s.safetensors", row->name);
    struct k3_text text;
    k3_text_init(&text);
    row->build(row, &text);
    assert_false(text.failed);
    struct k3_err err;
    k3_err_init(&err);
    struct k3_st *st;
    int rc = decode(file, text.data, text.bytes, &st, &err);
    bool is_right = rc == row->rc && strstr(err.text, row->text) &&
                    (row->offset == K3_BAD_ANY_OFFSET || row->offset == err.offset);
    if (!is_right)
        print_error("%s: rc %d wanted %d, offset %lld wanted %lld, text \"%s\" wanted \"%s\"\n",
                    row->name, rc, row->rc, (long long)err.offset, (long long)row->offset, err.text,
                    row->text);
    assert_int_equal(err.rc, rc);
    if (rc) {
        assert_null(st);
        assert_string_equal(err.file, strrchr(file, '/') + 1);
        assert_memory_equal(err.text, file, strlen(file));
        for (const char *at = err.text; *at; at++)
            assert_true(*at >= 0x20 && *at < 0x7f);
        if (row->offset == K3_BAD_ANY_OFFSET && row->rc != K3_ECORRUPT)
            assert_true(err.offset >= 8);
        assert_int_equal(decode(file, text.data, text.bytes, &st, NULL),
                         rc); /* no err: same code */
    }
    k3_st_free(st);
    k3_text_fini(&text);
    return is_right;
}

static void bad_files(void **state)
{
    (void)state;
    unsigned wrong_count = 0;
    assert_true(k3_bad_st_count > 100);
    for (size_t i = 0; i < k3_bad_st_count; i++) {
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(k3_bad_st_table[i].name, k3_bad_st_table[j].name);
        assert_int_not_equal(k3_bad_st_table[i].rc, K3_OK);
        wrong_count += !check_row(&k3_bad_st_table[i]);
    }
    assert_int_equal(wrong_count, 0);
}

static void good_files(void **state)
{
    (void)state;
    unsigned wrong_count = 0;
    for (size_t i = 0; i < k3_good_st_count; i++)
        wrong_count += !check_row(&k3_good_st_table[i]);
    assert_int_equal(wrong_count, 0);
}

static struct k3_st *must_decode(const struct k3_text *text, uint64_t file_bytes)
{
    struct k3_err err;
    struct k3_st *st;
    k3_err_init(&err);
    if (k3_st_decode("f", text->data, text->bytes, file_bytes, &st, &err))
        fail_msg("%s", err.text);
    return st;
}

static void good_row_named(const char *name, struct k3_text *text)
{
    for (size_t i = 0; i < k3_good_st_count; i++)
        if (!strcmp(k3_good_st_table[i].name, name))
            k3_good_st_table[i].build(&k3_good_st_table[i], text);
    assert_true(text->bytes > 8);
}

static struct k3_st *decode_good(const char *name)
{
    struct k3_text text;
    struct k3_st *st;
    struct k3_err err;
    k3_err_init(&err);
    k3_text_init(&text);
    good_row_named(name, &text);
    assert_int_equal(decode("f", text.data, text.bytes, &st, &err), 0);
    k3_text_fini(&text);
    return st;
}

static void what_is_decoded(void **state)
{
    (void)state;
    struct k3_st *st = decode_good("B19-surrogate-pair");
    assert_string_equal(k3_st_meta_find(st, "k"), "\xf0\x9f\x98\x80");
    assert_null(k3_st_meta_find(st, "K"));
    k3_st_free(st);

    st = decode_good("B18-escaped-name");
    assert_non_null(k3_st_find(st, "a/b"));
    assert_int_equal(k3_st_find(st, "a/b")->name_bytes, 3);
    k3_st_free(st);

    st = decode_good("C14-scalar");
    assert_int_equal(st->tensors[0].dim_count, 0);
    assert_int_equal(st->tensors[0].dtype, K3_F32);
    k3_st_free(st);

    st = decode_good("D8-f32-at-1"); /* sorted by place, found by name */
    assert_string_equal(st->tensors[0].name, "b");
    assert_string_equal(st->tensors[1].name, "a");
    assert_ptr_equal(k3_st_find(st, "a"), &st->tensors[1]);
    assert_ptr_equal(k3_st_find(st, "b"), &st->tensors[0]);
    assert_null(k3_st_find(st, "aa"));
    assert_null(k3_st_find(st, ""));
    assert_int_equal(st->data_bytes, 5);
    k3_st_free(st);

    st = decode_good("C15-zero-size");
    assert_int_equal(st->tensor_count, 2);
    assert_string_equal(st->tensors[0].name, "a");
    k3_st_free(st);
    k3_st_free(NULL);
}

static void header_of_other_length(void **state)
{
    (void)state;
    struct k3_text text;
    struct k3_st *st;
    struct k3_err err;
    k3_text_init(&text);
    good_row_named("A0-one-tensor", &text);
    k3_err_init(&err);
    assert_int_equal(k3_st_decode("f", text.data, text.bytes - 5, text.bytes, &st, &err),
                     K3_EFORMAT);
    assert_null(st);
    assert_non_null(strstr(err.text, "changed meanwhile"));
    k3_text_fini(&text);
}

/* Exactly eight bytes are enough to judge the length. */
static void eight_bytes(void **state)
{
    (void)state;
    uint64_t bytes;
    struct k3_err err;
    k3_err_init(&err);
    char prefix[8];
    k3_store_le64(prefix, 100);
    assert_int_equal(k3_st_header_bytes("f", prefix, 8, 108, &bytes, &err), 0);
    assert_int_equal(bytes, 108);
    assert_int_equal(k3_st_header_bytes("f", prefix, 8, 107, &bytes, &err), K3_EFORMAT);
    assert_int_equal(bytes, 0);
    k3_store_le64(prefix, K3_ST_HEADER_BYTES_MAX);
    k3_err_init(&err);
    assert_int_equal(k3_st_header_bytes("f", prefix, 8, UINT64_C(1) << 40, &bytes, &err), 0);
    assert_int_equal(bytes, K3_ST_HEADER_BYTES_MAX + 8u);
}

/* ---- writing ---- */

static const struct k3_st_tensor sample[] = {
    {.name = "k3.pad.0",
     .name_bytes = 8,
     .dtype = K3_U8,
     .dim_count = 1,
     .shape = {16},
     .begin_offset = 0,
     .end_offset = 16},
    {.name = "model.layers.0.a",
     .name_bytes = 16,
     .dtype = K3_BF16,
     .dim_count = 2,
     .shape = {3, 5},
     .begin_offset = 16,
     .end_offset = 46},
    {.name = "s",
     .name_bytes = 1,
     .dtype = K3_F32,
     .dim_count = 0,
     .begin_offset = 46,
     .end_offset = 50},
};
#define SAMPLE_COUNT (sizeof sample / sizeof *sample)
#define SAMPLE_BYTES 50u

static void write_sample(struct k3_text *text, bool with_meta, uint32_t align)
{
    struct k3_st_out out;
    struct k3_err err;
    k3_err_init(&err);
    k3_text_init(text);
    k3_st_out_begin(&out, text);
    if (with_meta) {
        k3_st_out_meta(&out, "k3.format", "0");
        k3_st_out_meta(&out, "quote\"back\\slash", "line\nand \xc3\xa4");
    }
    for (size_t i = 0; i < SAMPLE_COUNT; i++)
        k3_st_out_tensor(&out, &sample[i]);
    assert_int_equal(k3_st_out_end(&out, align, &err), 0);
}

static void round_trip(void **state)
{
    (void)state;
    static const uint32_t align[] = {1, 8, 4096, K3_UNIT_BYTES};
    for (unsigned i = 0; i < 8; i++) {
        struct k3_text text;
        bool with_meta = i % 2;
        write_sample(&text, with_meta, align[i / 2]);
        assert_int_equal(text.bytes % align[i / 2], 0);
        struct k3_st *st = must_decode(&text, text.bytes + SAMPLE_BYTES);
        assert_int_equal(st->data_offset, text.bytes);
        assert_int_equal(st->data_bytes, SAMPLE_BYTES);
        assert_int_equal(st->tensor_count, SAMPLE_COUNT);
        assert_int_equal(st->meta_count, with_meta ? 2 : 0);
        if (with_meta) {
            assert_string_equal(k3_st_meta_find(st, "k3.format"), "0");
            assert_string_equal(k3_st_meta_find(st, "quote\"back\\slash"), "line\nand \xc3\xa4");
        }
        for (size_t j = 0; j < SAMPLE_COUNT; j++) {
            const struct k3_st_tensor *got = &st->tensors[j];
            assert_string_equal(got->name, sample[j].name);
            assert_int_equal(got->name_bytes, sample[j].name_bytes);
            assert_int_equal(got->dtype, sample[j].dtype);
            assert_int_equal(got->dim_count, sample[j].dim_count);
            assert_memory_equal(got->shape, sample[j].shape, sizeof got->shape);
            assert_int_equal(got->begin_offset, sample[j].begin_offset);
            assert_int_equal(got->end_offset, sample[j].end_offset);
        }
        k3_st_free(st);
        k3_text_fini(&text);
    }
}

static void exact_bytes(void **state)
{
    (void)state;
    struct k3_text text;
    write_sample(&text, true, 8);
    static const char json[] =
        "{\"__metadata__\":{\"k3.format\":\"0\",\"quote\\\"back\\\\slash\":"
        "\"line\\u000aand \xc3\xa4\"},"
        "\"k3.pad.0\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]},"
        "\"model.layers.0.a\":{\"dtype\":\"BF16\",\"shape\":[3,5],\"data_offsets\":[16,46]},"
        "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[46,50]}}";
    size_t bytes = sizeof json - 1;
    assert_int_equal(k3_load_le64(text.data), k3_align_up(8 + bytes, 8) - 8);
    assert_memory_equal(text.data + 8, json, bytes);
    for (size_t i = 8 + bytes; i < text.bytes; i++)
        assert_int_equal(text.data[i], ' ');
    k3_text_fini(&text);

    struct k3_st_out out;
    struct k3_err err;
    k3_err_init(&err);
    k3_st_out_begin(&out, &text);
    k3_st_out_meta(&out, "a", "b");
    assert_int_equal(k3_st_out_end(&out, 1, &err), 0);
    assert_string_equal(text.data + 8, "{\"__metadata__\":{\"a\":\"b\"}}");
    k3_text_fini(&text);
    k3_st_out_begin(&out, &text);
    assert_int_equal(k3_st_out_end(&out, 1, &err), 0);
    assert_string_equal(text.data + 8, "{}");
    k3_text_fini(&text);
}

static void dtypes(void **state)
{
    (void)state;
    for (unsigned i = 0; i < K3_DTYPE_COUNT; i++) {
        enum k3_dtype dtype = (enum k3_dtype)i;
        const char *name = k3_dtype_name(dtype);
        enum k3_dtype found;
        assert_true(k3_dtype_find(name, strlen(name), &found));
        assert_int_equal(found, dtype);
        assert_false(k3_dtype_find(name, strlen(name) - 1, &found) && found == dtype);
        unsigned bits = k3_dtype_bits(dtype);
        assert_true(bits == 4 || bits == 6 || bits == 8 || bits == 16 || bits == 32 || bits == 64);
    }
    assert_string_equal(k3_dtype_name(K3_F8_E4M3), "F8_E4M3");
    assert_int_equal(k3_dtype_bits(K3_F6_E2M3), 6);
    assert_int_equal(k3_dtype_bits(K3_C64), 64);
}

/* ---- many tensors, damaged headers ---- */

static uint64_t random_next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void many_found(void **state)
{
    (void)state;
    enum { COUNT = 5404 }; /* as in K3's largest file */
    struct k3_st_out out;
    struct k3_text text;
    struct k3_err err;
    char name[64];
    k3_text_init(&text);
    k3_err_init(&err);
    k3_st_out_begin(&out, &text);
    for (unsigned i = 0; i < COUNT; i++) {
        struct k3_st_tensor tensor = {.name = name, .dtype = K3_U8, .dim_count = 1, .shape = {2}};
        snprintf(name, sizeof name, "model.layers.7.experts.%u.w", i * 7919 % COUNT);
        tensor.name_bytes = (uint32_t)strlen(name);
        tensor.begin_offset = 2 * (uint64_t)i;
        tensor.end_offset = tensor.begin_offset + 2;
        k3_st_out_tensor(&out, &tensor);
    }
    assert_int_equal(k3_st_out_end(&out, 8, &err), 0);
    struct k3_st *st = must_decode(&text, text.bytes + 2 * COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "model.layers.7.experts.%u.w", i * 7919 % COUNT);
        assert_ptr_equal(k3_st_find(st, name), &st->tensors[i]);
    }
    assert_null(k3_st_find(st, "model.layers.7.experts.5404.w"));
    k3_st_free(st);
    k3_text_fini(&text);
}

static void random_damage(void **state)
{
    (void)state;
    uint64_t seed = 20260727;
    unsigned refused = 0;
    struct k3_text text;
    write_sample(&text, true, 8);
    uint64_t file_bytes = text.bytes + SAMPLE_BYTES;
    for (unsigned i = 0; i < 20000; i++) {
        size_t at = (size_t)(random_next(&seed) % text.bytes);
        char kept = text.data[at];
        text.data[at] = (char)random_next(&seed);
        char *copy = malloc((size_t)file_bytes);
        assert_non_null(copy);
        memset(copy, 0xa5, (size_t)file_bytes);
        memcpy(copy, text.data, text.bytes);
        struct k3_err err;
        struct k3_st *st;
        k3_err_init(&err);
        int rc = decode("f", copy, (size_t)file_bytes, &st, &err);
        assert_true(rc == 0 || rc == K3_EFORMAT || rc == K3_ELIMIT || rc == K3_ECORRUPT);
        assert_int_equal(rc == 0, st != NULL);
        assert_int_equal(err.rc, rc);
        refused += rc != 0;
        k3_st_free(st);
        free(copy);
        text.data[at] = kept;
    }
    assert_true(refused > 10000);
    k3_text_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files),       cmocka_unit_test(good_files),
        cmocka_unit_test(what_is_decoded), cmocka_unit_test(header_of_other_length),
        cmocka_unit_test(eight_bytes),     cmocka_unit_test(round_trip),
        cmocka_unit_test(exact_bytes),     cmocka_unit_test(dtypes),
        cmocka_unit_test(many_found),      cmocka_unit_test(random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
