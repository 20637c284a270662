/* Purpose: documents as trees: decode, look, canonical form, building.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: none beyond the tests. */
#include "doc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct k3_doc *decode(const char *text)
{
    struct k3_doc *root;
    struct k3_err err;
    k3_err_init(&err);
    if (k3_doc_decode("f.json", text, strlen(text), &root, &err))
        fail_msg("%s: %s", text, err.text);
    return root;
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rc;
        const char *part;
    } row[] = {
        {"", K3_EFORMAT, "the end of the text"},
        {"[]", K3_EFORMAT, "the document: wanted an object, found an array"},
        {"1", K3_EFORMAT, "wanted an object"},
        {"{\"a\":1,\"a\":2}", K3_EFORMAT, "second time"},
        {"{\"a\":[1,2}", K3_EFORMAT, "',' or ']'"},
        {"{\"a\":\"\\u0000\"}", K3_EFORMAT, "NUL"},
        {"{} {}", K3_EFORMAT, "the end of the text"},
        {"\xef\xbb\xbf{}", K3_EFORMAT, "byte order mark"},
        {"{\"a\":{\"b\":[{\"c\":tru}]}}", K3_EFORMAT, "wanted a value"},
        {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}", K3_ELIMIT,
         "nested deeper than 32"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_doc *root;
        struct k3_err err;
        k3_err_init(&err);
        int rc = k3_doc_decode("f.json", row[i].text, strlen(row[i].text), &root, &err);
        if (rc != row[i].rc || !strstr(err.text, row[i].part))
            fail_msg("%s: %d %s", row[i].text, rc, err.text);
        assert_null(root);
        assert_string_equal(err.file, "f.json");
    }
}

static void too_many_values(void **state)
{
    (void)state;
    enum { COUNT = 4194304 };
    struct k3_text text;
    k3_text_init(&text);
    k3_text_puts(&text, "{\"a\":[");
    for (unsigned i = 0; i < COUNT; i++)
        k3_text_put(&text, "0,", 2);
    k3_text_puts(&text, "0]}");
    struct k3_doc *root;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_doc_decode("f", text.data, text.bytes, &root, &err), K3_ELIMIT);
    assert_null(root);
    k3_text_fini(&text);
}

static void integers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_integer;
        uint64_t value;
    } row[] = {
        {"{\"a\":0}", true, 0},
        {"{\"a\":1}", true, 1},
        {"{\"a\":4294967296}", true, UINT64_C(1) << 32},
        {"{\"a\":9007199254740991}", true, (UINT64_C(1) << 53) - 1},
        {"{\"a\":9007199254740992}", false, 0},
        {"{\"a\":9007199254740993}", false, 0},
        {"{\"a\":18446744073709551616}", false, 0},
        {"{\"a\":1.0}", false, 0},
        {"{\"a\":1e3}", false, 0},
        {"{\"a\":-0}", false, 0},
        {"{\"a\":-1}", false, 0},
        {"{\"a\":0.5}", false, 0},
        {"{\"a\":1e999}", false, 0},
        {"{\"a\":\"1\"}", false, 0},
        {"{\"a\":true}", false, 0},
        {"{\"a\":null}", false, 0},
        {"{\"a\":[1]}", false, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_doc *root = decode(row[i].text);
        uint64_t value = 77;
        if (k3_doc_integer(k3_doc_find(root, "a"), &value) != row[i].is_integer)
            fail_msg("%s", row[i].text);
        assert_true(value == (row[i].is_integer ? row[i].value : 77));
        k3_doc_free(root);
    }
    uint64_t value;
    assert_false(k3_doc_integer(NULL, &value));
}

static void looking(void **state)
{
    (void)state;
    struct k3_doc *root = decode("{\"text_config\":{\"layers\":[1,27,93],\"empty\":{},\"e\":[]},"
                                 "\"name\":\"K3 \\u00e4\\n\",\"\":\"\",\"no\":false,\"yes\":true,"
                                 "\"text\":{\"config\":1},\"dotted.name\":2,\"nil\":null}");
    assert_string_equal(k3_doc_string(k3_doc_find(root, "name")), "K3 \xc3\xa4\n");
    assert_string_equal(k3_doc_string(k3_doc_find(root, "")), "");
    assert_null(k3_doc_string(k3_doc_find(root, "yes")));
    assert_null(k3_doc_string(NULL));
    bool value = false;
    assert_true(k3_doc_bool(k3_doc_find(root, "yes"), &value) && value);
    assert_true(k3_doc_bool(k3_doc_find(root, "no"), &value) && !value);
    assert_false(k3_doc_bool(k3_doc_find(root, "nil"), &value));
    assert_false(k3_doc_bool(k3_doc_find(root, "name"), &value));
    assert_null(k3_doc_find(root, "missing"));
    assert_null(k3_doc_find(root, "text_confi"));
    assert_null(k3_doc_find(root, "text_config.missing"));
    assert_null(k3_doc_find(root, "name.x"));
    assert_null(k3_doc_find(root, "NAME"));
    assert_null(k3_doc_find(root, "dotted.name")); /* a dot always descends */
    assert_non_null(k3_doc_find(root, "text.config"));
    assert_null(k3_doc_find(NULL, "a"));

    const struct k3_doc *layers = k3_doc_find(root, "text_config.layers");
    assert_true(k3_doc_is_array(layers) && !k3_doc_is_object(layers));
    assert_int_equal(k3_doc_count(layers), 3);
    static const uint64_t want[] = {1, 27, 93};
    unsigned i = 0;
    for (const struct k3_doc *at = k3_doc_first(layers); at && i < 3; at = k3_doc_next(at)) {
        uint64_t number = 0;
        assert_true(k3_doc_integer(at, &number));
        assert_int_equal(number, want[i++]);
    }
    assert_int_equal(i, 3);
    const struct k3_doc *config = k3_doc_find(root, "text_config");
    assert_true(k3_doc_is_object(config) && k3_doc_is_object(root));
    assert_string_equal(k3_doc_name(k3_doc_first(config)), "layers");
    assert_string_equal(k3_doc_name(k3_doc_next(k3_doc_first(config))), "empty");
    assert_null(k3_doc_first(k3_doc_find(config, "empty")));
    assert_int_equal(k3_doc_count(k3_doc_find(config, "e")), 0);
    assert_int_equal(k3_doc_count(NULL), 0);
    assert_false(k3_doc_is_object(NULL));
    k3_doc_free(root);
    k3_doc_free(NULL);
}

/* ---- emit ---- */

static void canonical(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } row[] = {
        {"{}", "{}"},
        {" { \"b\" : 1 , \"a\" : [ ] , \"~\" : \"\" , \"B\" : {} } ",
         "{\"B\":{},\"a\":[],\"b\":1,\"~\":\"\"}"},
        {"{\"a\":{\"z\":{\"y\":0,\"x\":[3,{\"q\":1,\"p\":2},[]]},\"b\":9007199254740991}}",
         "{\"a\":{\"b\":9007199254740991,\"z\":{\"x\":[3,{\"p\":2,\"q\":1},[]],\"y\":0}}}"},
        {"{\"a.b\":1,\"a\":2,\"ab\":3,\"\":4,\"a-b\":5}",
         "{\"\":4,\"a\":2,\"a-b\":5,\"a.b\":1,\"ab\":3}"},
        {"{\"\\u0061\":\"\\/\\\"\\\\\"}", "{\"a\":\"/\\\"\\\\\"}"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_doc *root = decode(row[i].in);
        struct k3_text text;
        struct k3_err err;
        k3_text_init(&text);
        k3_err_init(&err);
        assert_int_equal(k3_doc_encode_canonical(root, &text, &err), 0);
        assert_string_equal(text.data, row[i].out);
        k3_doc_free(root);
        root = decode(text.data); /* the form is a fixed point */
        k3_text_fini(&text);
        assert_int_equal(k3_doc_encode_canonical(root, &text, &err), 0);
        assert_string_equal(text.data, row[i].out);
        k3_doc_free(root);
        k3_text_fini(&text);
    }
}

static void not_canonical(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } row[] = {
        {"{\"a\":null}", "the member a (true, false or null)"},
        {"{\"a\":true}", "the member a"},
        {"{\"a\":[false]}", "true, false or null"},
        {"{\"a\":1.5}", "the member a (a number of another kind)"},
        {"{\"a\":-1}", "another kind"},
        {"{\"a\":9007199254740992}", "another kind"},
        {"{\"x\":{\"y\":[{\"a\":\"\\n\"}]}}", "\"\\x0a\""},
        {"{\"a\":\"\xc3\xa4\"}", "\"\\xc3\\xa4\""},
        {"{\"\\u007f\":1}", "\"\\x7f\""},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_doc *root = decode(row[i].text);
        struct k3_text text;
        struct k3_err err;
        k3_text_init(&text);
        k3_err_init(&err);
        assert_int_equal(k3_doc_encode_canonical(root, &text, &err), K3_EFORMAT);
        if (!strstr(err.text, row[i].part))
            fail_msg("%s: %s", row[i].text, err.text);
        k3_text_fini(&text);
        k3_doc_free(root);
    }
}

static void building(void **state)
{
    (void)state;
    struct k3_doc *root = k3_doc_new_object();
    assert_non_null(root);
    assert_true(
        k3_doc_add_string(root, "z", "quote \" back \\ line \n bell \x07 \xc3\xa4 bad \xff"));
    assert_true(k3_doc_add_integer(root, "small", 0));
    assert_true(k3_doc_add_integer(root, "exact", (UINT64_C(1) << 53) - 1));
    assert_true(k3_doc_add_integer(root, "large", UINT64_MAX));
    assert_true(k3_doc_add_double(root, "third", 1.0 / 3.0));
    assert_true(k3_doc_add_double(root, "huge", 1e300));
    assert_true(k3_doc_add_double(root, "whole", 2.0));
    assert_true(k3_doc_add_bool(root, "yes", true));
    assert_true(k3_doc_add_bool(root, "no", false));
    struct k3_doc *array = k3_doc_add_array(root, "list");
    assert_non_null(array);
    assert_true(k3_doc_add_integer(array, NULL, 7));
    assert_true(k3_doc_add_string(array, NULL, ""));
    struct k3_doc *object = k3_doc_add_object(array, NULL);
    assert_non_null(object);
    assert_non_null(k3_doc_add_array(object, "empty"));
    assert_non_null(k3_doc_add_object(object, "a"));
    struct k3_text text;
    struct k3_err err;
    k3_text_init(&text);
    k3_err_init(&err);
    assert_int_equal(k3_doc_encode(root, &text, &err), 0);
    static const char want[] =
        "{\"z\":\"quote \\\" back \\\\ line \\u000a bell \\u0007 \xc3\xa4 bad "
        "\\ufffd\",\"small\":0,"
        "\"exact\":9007199254740991,\"large\":18446744073709551615,\"third\":0.333333,"
        "\"huge\":1e+300,\"whole\":2,\"yes\":true,\"no\":false,"
        "\"list\":[7,\"\",{\"empty\":[],\"a\":{}}]}";
    assert_string_equal(text.data, want);
    uint64_t value;
    assert_true(k3_doc_integer(k3_doc_find(root, "exact"), &value));
    assert_false(k3_doc_integer(k3_doc_find(root, "large"), &value));
    assert_false(k3_doc_integer(k3_doc_find(root, "whole"), &value));
    k3_doc_free(root);
    root = decode(text.data); /* what is emitted passes the strict reader */
    k3_doc_free(root);
    k3_text_fini(&text);
}

/* Numbers of any kind survive decode and encode as they were written. */
static void round_trip(void **state)
{
    (void)state;
    static const char text[] =
        "{\"b\":[1.0,1e3,-0,-1,0.10,9007199254740993,null,true,{\"x\":[[]]}],"
        "\"a\":\"\xf0\x9f\x98\x80\"}";
    struct k3_doc *root = decode(text);
    struct k3_text out;
    struct k3_err err;
    k3_text_init(&out);
    k3_err_init(&err);
    assert_int_equal(k3_doc_encode(root, &out, &err), 0);
    assert_string_equal(out.data, text);
    k3_text_fini(&out);
    k3_doc_free(root);
}

static void built_too_deep(void **state)
{
    (void)state;
    struct k3_doc *root = k3_doc_new_object();
    struct k3_doc *at = root;
    for (unsigned i = 1; i < 33; i++) {
        at = k3_doc_add_object(at, "a");
        assert_non_null(at);
    }
    struct k3_text text;
    struct k3_err err;
    k3_text_init(&text);
    k3_err_init(&err);
    assert_int_equal(k3_doc_encode(root, &text, &err), K3_ELIMIT);
    k3_err_init(&err);
    assert_int_equal(k3_doc_encode_canonical(root, &text, &err), K3_ELIMIT);
    k3_text_fini(&text);
    k3_doc_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused),        cmocka_unit_test(too_many_values),
        cmocka_unit_test(integers),       cmocka_unit_test(looking),
        cmocka_unit_test(canonical),      cmocka_unit_test(not_canonical),
        cmocka_unit_test(building),       cmocka_unit_test(round_trip),
        cmocka_unit_test(built_too_deep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
