/* Purpose: the index of a checkpoint: what is streamed, what is refused (rules F1 and F8).
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion names the row.
 * Invariants: none beyond the tests. */
#include "hf_index.h"
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct seen {
    struct k3_text text; /* "tensor=file;" for each entry */
    unsigned count;
    unsigned stop_at; /* entry whose callback fails; 0: none */
};

static int entry(void *context, const char *tensor, size_t tensor_bytes, const char *file,
                 struct k3_err *err)
{
    struct seen *seen = context;
    assert_int_equal(strlen(tensor), tensor_bytes);
    k3_text_putf(&seen->text, "%s=%s;", tensor, file);
    if (++seen->count == seen->stop_at)
        return k3_fail(err, K3_ECANCELED, "stopped by the test");
    return 0;
}

static int decode(const char *text, size_t bytes, struct seen *seen, uint64_t *total_size,
                  struct k3_err *err)
{
    char *copy = malloc(bytes ? bytes : 1); /* of the exact size, for sanitizers */
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    k3_err_init(err);
    struct k3_index_sink sink = {.entry = entry, .context = seen};
    int rc = k3_index_decode("dir/model.safetensors.index.json", copy, bytes, &sink, err);
    *total_size = sink.total_size;
    assert_int_equal(err->rc, rc);
    free(copy);
    return rc;
}

static void good(void **state)
{
    (void)state;
    static const struct {
        const char *text, *entries;
        uint64_t total_size;
    } row[] = {
        {"{\"metadata\":{\"total_size\":1562374},\"weight_map\":{\"b\":\"m-1.safetensors\",\"a\":"
         "\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}}",
         "b=m-1.safetensors;a=m-1.safetensors;c=m-2.safetensors;", 1562374},
        {" {\n \"weight_map\" : { \"x\" : \"f\" } }\n", "x=f;", UINT64_MAX},
        {"{\"metadata\":{},\"weight_map\":{\"x\":\"f\"}}", "x=f;", UINT64_MAX},
        {"{\"metadata\":{\"format\":\"pt\",\"x\":{\"total_size\":5},\"total_size\":0},"
         "\"weight_map\":{\"x\":\"f\"},\"other\":[1,{\"weight_map\":{}}]}",
         "x=f;", 0},
        {"{\"weight_map\":{\"\\u0061/b\":\"\\u0066\"}}", "a/b=f;", UINT64_MAX},
        {"{\"weight_map\":{\"../../etc/passwd\":\"f..g\"}}", "../../etc/passwd=f..g;", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct seen seen = {.count = 0};
        struct k3_err err;
        uint64_t total_size = 1;
        if (decode(row[i].text, strlen(row[i].text), &seen, &total_size, &err))
            fail_msg("%s: %s", row[i].text, err.text);
        assert_string_equal(seen.text.data, row[i].entries);
        assert_true(total_size == row[i].total_size);
        k3_text_fini(&seen.text);
    }
}

#define MAP(value) "{\"weight_map\":{\"t\":" value "}}"
#define PLAIN      "is not a plain file name"

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
        int rc;
        const char *part;
    } row[] = {
        {"F1-parent", MAP("\"../x\""), K3_EFORMAT, "\"../x\" " PLAIN},
        {"F1-absolute", MAP("\"/abs\""), K3_EFORMAT, PLAIN},
        {"F1-inner-parent", MAP("\"a/../../x\""), K3_EFORMAT, PLAIN},
        {"F1-folder", MAP("\"a/b\""), K3_EFORMAT, PLAIN},
        {"F1-escaped-slash", MAP("\"..\\u002fx\""), K3_EFORMAT, "\"../x\" " PLAIN},
        {"F1-backslash", MAP("\"C:\\\\x\""), K3_EFORMAT, PLAIN},
        {"F1-nul", MAP("\"a\\u0000b\""), K3_EFORMAT, "NUL"},
        {"F1-hidden", MAP("\".x\""), K3_EFORMAT, PLAIN},
        {"F1-dot", MAP("\".\""), K3_EFORMAT, PLAIN},
        {"F1-dots", MAP("\"..\""), K3_EFORMAT, PLAIN},
        {"F1-empty", MAP("\"\""), K3_EFORMAT, "\"\" " PLAIN},
        {"F1-empty-behind-plain", "{\"weight_map\":{\"s\":\"f\",\"t\":\"\"}}", K3_EFORMAT, PLAIN},
        {"F1-empty-twice", "{\"weight_map\":{\"s\":\"\",\"t\":\"\"}}", K3_EFORMAT, PLAIN},
        {"F1-space", MAP("\"a b\""), K3_EFORMAT, PLAIN},
        {"F1-control", MAP("\"a\\u001b[31m\""), K3_EFORMAT, "\"a\\x1b[31m\" " PLAIN},
        {"F1-not-ascii", MAP("\"\xc3\xa4\""), K3_EFORMAT, PLAIN},
        {"F1-quote", MAP("\"a\\\"b\""), K3_EFORMAT, PLAIN},
        {"F8-duplicate", "{\"weight_map\":{\"t\":\"f\",\"t\":\"g\"}}", K3_EFORMAT,
         "\"t\" comes for"},
        {"F8-duplicate-same", "{\"weight_map\":{\"t\":\"f\",\"\\u0074\":\"f\"}}", K3_EFORMAT,
         "\"t\""},
        {"F8-two-maps", "{\"weight_map\":{\"t\":\"f\"},\"weight_map\":{\"u\":\"f\"}}", K3_EFORMAT,
         "\"weight_map\" comes for the second time"},
        {"F8-two-sizes", "{\"metadata\":{\"total_size\":1,\"total_size\":1}}", K3_EFORMAT,
         "second"},
        {"F8-nested", "{\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
         K3_ELIMIT, "nested deeper"},
        {"empty-text", "", K3_EFORMAT, "the end of the text"},
        {"array", "[]", K3_EFORMAT, "the index: wanted an object, found an array"},
        {"no-map", "{\"metadata\":{\"total_size\":1}}", K3_EFORMAT, "there is no weight_map"},
        {"map-empty", "{\"weight_map\":{}}", K3_EFORMAT, "weight_map is empty"},
        {"map-null", "{\"weight_map\":null}", K3_EFORMAT,
         "weight_map: wanted an object, found null"},
        {"map-array", "{\"weight_map\":[\"f\"]}", K3_EFORMAT, "weight_map: wanted an object"},
        {"value-number", MAP("1"), K3_EFORMAT, "an entry of weight_map: wanted a string"},
        {"value-array", MAP("[\"f\"]"), K3_EFORMAT, "wanted a string, found an array"},
        {"metadata-null", "{\"metadata\":null}", K3_EFORMAT, "metadata: wanted an object"},
        {"size-fraction", "{\"metadata\":{\"total_size\":1.5}}", K3_EFORMAT, "metadata.total_size"},
        {"size-exponent", "{\"metadata\":{\"total_size\":1e9}}", K3_EFORMAT, "wanted an integer"},
        {"size-negative", "{\"metadata\":{\"total_size\":-1}}", K3_EFORMAT, "wanted an integer"},
        {"size-string", "{\"metadata\":{\"total_size\":\"1\"}}", K3_EFORMAT, "wanted an integer"},
        {"size-2-64", "{\"metadata\":{\"total_size\":18446744073709551616}}", K3_EFORMAT,
         "integer"},
        {"trailing", MAP("\"f\"") "x", K3_EFORMAT, "wanted the end of the text, found 'x'"},
        {"cut", "{\"weight_map\":{\"t\":\"f\"", K3_EFORMAT, "found the end of the text"},
        {"bom", "\xef\xbb\xbf" MAP("\"f\""), K3_EFORMAT, "byte order mark"},
        {"tensor-empty", "{\"weight_map\":{\"\":\"f\"}}", K3_EFORMAT, "not the name of a tensor"},
        {"tensor-newline", "{\"weight_map\":{\"a\\nb\":\"f\"}}", K3_EFORMAT, "\"a\\x0ab\" is not"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct seen seen = {.count = 0};
        struct k3_err err;
        uint64_t total_size;
        int rc = decode(row[i].text, strlen(row[i].text), &seen, &total_size, &err);
        if (rc != row[i].rc || !strstr(err.text, row[i].part))
            fail_msg("%s: rc %d, %s", row[i].name, rc, err.text);
        assert_string_equal(err.file, "model.safetensors.index.json");
        for (const char *at = err.text; *at; at++)
            assert_true(*at >= 0x20 && *at < 0x7f);
        k3_text_fini(&seen.text);
    }
}

static void callback_stops(void **state)
{
    (void)state;
    static const char text[] = "{\"weight_map\":{\"a\":\"f\",\"b\":\"f\",\"c\":\"f\"}}";
    struct seen seen = {.stop_at = 2};
    struct k3_err err;
    uint64_t total_size;
    assert_int_equal(decode(text, sizeof text - 1, &seen, &total_size, &err), K3_ECANCELED);
    assert_string_equal(seen.text.data, "a=f;b=f;");
    assert_string_equal(err.text, "stopped by the test");
    k3_text_fini(&seen.text);
}

static void lengths(void **state)
{
    (void)state;
    static const struct {
        unsigned tensor_bytes, file_bytes;
        int rc;
    } row[] = {
        {512, 255, 0},           {513, 255, K3_EFORMAT},  {512, 256, K3_EFORMAT},
        {100000, 1, K3_EFORMAT}, {1, 100000, K3_EFORMAT},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_text text;
        struct seen seen = {.count = 0};
        struct k3_err err;
        uint64_t total_size;
        k3_text_init(&text);
        k3_text_puts(&text, "{\"weight_map\":{\"");
        for (unsigned j = 0; j < row[i].tensor_bytes; j++)
            k3_text_puts(&text, "t");
        k3_text_puts(&text, "\":\"");
        for (unsigned j = 0; j < row[i].file_bytes; j++)
            k3_text_puts(&text, "f");
        k3_text_puts(&text, "\"}}");
        assert_int_equal(decode(text.data, text.bytes, &seen, &total_size, &err), row[i].rc);
        assert_int_equal(seen.count, row[i].rc ? 0 : 1);
        k3_text_fini(&seen.text);
        k3_text_fini(&text);
    }
    struct k3_err err;
    k3_err_init(&err); /* refused by its length alone: no byte is read */
    struct k3_index_sink sink = {.entry = entry};
    assert_int_equal(k3_index_decode("f", "", ((size_t)1 << 30) + 1, &sink, &err), K3_ELIMIT);
}

static void plain_names(void **state)
{
    (void)state;
    char name[257];
    memset(name, 'n', 256);
    name[256] = 0;
    assert_false(k3_is_plain_name(name));
    name[255] = 0;
    assert_true(k3_is_plain_name(name));
    assert_true(k3_is_plain_name("model-00001-of-000096.safetensors"));
    assert_true(k3_is_plain_name("a"));
    assert_true(k3_is_plain_name("!~'$&;"));
    assert_true(k3_is_plain_name("a..b"));
    static const char *const bad[] = {"",     ".",   "..",  ".a",   "a/b",   "/",       "a\\b",
                                      "a\"b", "a b", "a\n", "\x7f", "a\x80", "\xc3\xa4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(k3_is_plain_name(bad[i]));
}

static void random_damage(void **state)
{
    (void)state;
    static const char text[] =
        "{\"metadata\":{\"total_size\":15},\"weight_map\":{\"a.b\":\"m1.st\","
        "\"a.c\":\"m1.st\",\"a.\\u0064\":\"m2.st\"},\"x\":[1.5,null]}";
    uint64_t seed = 20260727;
    for (unsigned i = 0; i < 20000; i++) {
        char copy[sizeof text];
        memcpy(copy, text, sizeof text);
        for (unsigned j = 0; j < 2; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            copy[(seed >> 33) % (sizeof text - 1)] = (char)(seed >> 24);
        }
        struct seen seen = {.count = 0};
        struct k3_err err;
        uint64_t total_size;
        int rc = decode(copy, sizeof text - 1, &seen, &total_size, &err);
        assert_true(rc == 0 || rc == K3_EFORMAT || rc == K3_ELIMIT);
        k3_text_fini(&seen.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good),    cmocka_unit_test(refused),     cmocka_unit_test(callback_stops),
        cmocka_unit_test(lengths), cmocka_unit_test(plain_names), cmocka_unit_test(random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
