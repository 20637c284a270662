/* Purpose: the strict JSON reader.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion names the text.
 * Invariants: the random numbers are the same in every run; every text is read from a copy of its
 * exact size, so that a sanitizer sees a read beyond it. */
#include "json_read.h"
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define S(text)                                                                                    \
    {                                                                                              \
        text, sizeof text - 1                                                                      \
    }

struct sample {
    const char *text;
    size_t bytes;
};

static int check(const char *text, size_t bytes, unsigned depth_max, struct k3_err *err)
{
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    k3_err_init(err);
    int rc = k3_json_check("f.json", copy, bytes, depth_max, err);
    assert_int_equal(err->rc, rc);
    free(copy);
    return rc;
}

/* ---- accept, reject: after the classes of JSONTestSuite ---- */

/* Packed: one in a line would be too many lines. */
/* clang-format off */
static const struct sample legal[] = {
    S("[]"), S("{}"), S("[[]   ]"), S("[\"\"]"), S("[\"a\"]"), S("[false]"),
    S("[null, 1, \"1\", {}]"), S("[null]"), S("[true]"), S("[1\n]"), S(" [1]"),
    S("[1,null,null,null,2]"), S("[2] "), S("[123e65]"), S("[0e+1]"), S("[0e1]"), S("[ 4]"),
    S("[-0.0000000000000000000000000000001]\n"), S("[20e1]"), S("[-0]"), S("[-123]"), S("[-1]"),
    S("[-0.5]"), S("[1E22]"), S("[1E-2]"), S("[1E+2]"), S("[123e45]"), S("[123.456e78]"),
    S("[1e-2]"), S("[1e+2]"), S("[123]"), S("[123.456789]"), S("[1e999]"), S("[0]"), S("[0.0]"),
    S("0"), S("-1.5"), S("\"x\""), S("true"), S("false"), S("null"), S("\t\r\n null \t\r\n"),
    S("[18446744073709551616]"),
    S("[100000000000000000000000000000000000000000000000000000000000000000000000000000000]"),
    S("{\"asd\":\"sdf\", \"dfg\":\"fgh\"}"), S("{\"asd\":\"sdf\"}"), S("{\"\":0}"),
    S("{\"foo\\u0001bar\": 42}"), S("{ \"min\": -1.0e+28, \"max\": 1.0e+28 }"), S("{\"a\":[]}"),
    S("{\"x\":[{\"id\": \"xx\"}], \"id\": \"xx\"}"), S("{\n\"a\": \"b\"\n}"),
    S("{\"a\":{\"a\":{}}}"), S("[{\"a\":1},{\"a\":1}]"), S("[\"\\u0060\\u012a\\u12AB\"]"),
    S("[\"\\uD801\\udc37\"]"), S("[\"\\ud83d\\ude39\\ud83d\\udc8d\"]"),
    S("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"), S("[\"\\\\u0000\"]"), S("[\"\\\"\"]"),
    S("[\"a/*b*/c/*d//e\"]"), S("[\"\\\\a\"]"), S("[\"\\u0012\"]"), S("[\"\\uFFFF\"]"),
    S("[\"asd\"]"), S("[\"new\\u00A0line\"]"), S("[\"\xf4\x8f\xbf\xbf\"]"), S("[\"\xef\xbf\xbf\"]"),
    S("[\"\\u002c\"]"), S("[\"\xcf\x80\"]"), S("[\"\xf0\x9b\xbf\xbf\"]"), S("[\"asd \"]"),
    S("[\"\\u0821\"]"), S("[\"\\u0123\"]"), S("[\"\xe2\x80\xa8\"]"), S("[\"\xe2\x80\xa9\"]"),
    S("[\"\\u0061\\u30af\\u30EA\\u30b9\"]"), S("[\"new\\u000Aline\"]"), S("[\"\x7f\"]"),
    S("[\"\\uA66D\"]"), S("[\"\\u0022\\u005C\"]"), S("[\"\xe2\x8d\x82\xe3\x88\xb4\xe2\x8d\x82\"]"),
    S("[\"a\x7f" "a\"]"), S("[\"\xee\x80\x80\"]"), S("[\"\xed\x9f\xbf\"]"), S("[\"\xc2\x80\"]"),
    S("[\"\xe0\xa0\x80\"]"), S("[\"\xf0\x90\x80\x80\"]"), S("[\"12345678\"]"), S("[\"1234567\"]"),
    S("[\"123456789012345678\"]"),
};
/* clang-format on */

/* Packed: one in a line would be too many lines. */
/* clang-format off */
static const struct sample illegal[] = {
    /* structure */
    S(""), S(" "), S("["), S("]"), S("{"), S("}"), S("[1"), S("[1,"), S("[1,]"), S("[,1]"),
    S("[,]"), S("[1,,2]"), S("[1 true]"), S("[\"a\" 1]"), S("[\"\",]"), S("[\"x\"]]"), S("[x"),
    S("[3[4]]"), S("[1:2]"), S("[-]"), S("[*]"), S("[\"\": 1]"), S("[\"a\",\n4\n,1,"), S("[a"),
    S("[\"a"), S("[1}"), S("{\"a\":1]"), S("[}"), S("{]"), S("[][]"), S("{}{}"), S("[1]x"),
    S("{}}"), S("1]"), S("[]]"), S("2@"), S("{\"a\":\"b\"}/**/"), S("{\"a\":\"b\"}//"),
    S("{\"a\":\"b\"}#"), S("123,"), S("<.>"), S("[<null>]"), S("aa"), S("[\n1"), S("{\"a\":"),
    S("{\"a\""), S("{\"a"), S("{\"a\" \"b\"}"), S("[\"asd]"), S("[True]"), S("[TRUE]"), S("[nul]"),
    S("[tru]"), S("[fals]"), S("[nulll]"), S("truefalse"), S("[undefined]"), S("\xef\xbb\xbf{}"),
    S("\xef\xbb\xbf"), S("\xef\xbb{}"), S("\xe5"), S("[\xe2\x81\xa0]"), S("[\x0c]"), S("[\x0b]"),
    S("\xc2\xa0[]"), S("[1]\0"), S("\0[]"), S("[\0]"), S("[\"a\0b\"]"), S("{\"a\0b\":1}"),
    S("\xff\xfe[\0]\0"), S("[\\n]"), S("[\\u000A\"\"]"), S("/**/[]"), S("[] // end"),
    S("[1,/*x*/2]"),
    /* objects */
    S("[{\"x\": true,}]"), S("{\"x\", null}"), S("{\"x\"::\"b\"}"), S("{\"a\":\"a\" 123}"),
    S("{key: 'value'}"), S("{'a':0}"), S("{\"id\":0,}"), S("{\"id\":0,,,,,}"), S("{1:1}"),
    S("{:\"b\"}"), S("{\"a\" b}"), S("{\"a\":\"b\",,\"c\":\"d\"}"), S("{\"a\":true} \"x\""),
    S("{\"a\":\"b\"}#{}"), S("{null:null}"), S("{[:\"x\"}"), S("{\"a\":1 \"b\":2}"),
    S("{,\"a\":1}"), S("{\"a\"}"), S("{\"a\":}"), S("{a:1}"), S("{\"a\":1,}"), S("{{}:1}"),
    S("{\"a\",\"b\"}"),
    /* duplicates */
    S("{\"a\":1,\"a\":1}"), S("{\"a\":1,\"b\":2,\"a\":1}"), S("{\"a\":1,\"\\u0061\":1}"),
    S("{\"\\u0061\":1,\"a\":1}"), S("{\"\\u0061\":1,\"\\u0061\":1}"), S("{\"\":1,\"\":1}"),
    S("{\"x\":{\"a\":1,\"a\":1}}"), S("{\"a\":{\"a\":{}},\"a\":1}"), S("{\"\\/\":1,\"/\":2}"),
    S("{\"\\ud83d\\ude00\":1,\"\xf0\x9f\x98\x80\":2}"), S("[{\"a\":[{}],\"b\":1,\"a\":1}]"),
    /* numbers */
    S("[+1]"), S("[-01]"), S("[-2.]"), S("[-NaN]"), S("[.-1]"), S("[.2e-3]"), S("[0.1.2]"),
    S("[0.3e+]"), S("[0.3e]"), S("[0.e1]"), S("[0E+]"), S("[0E]"), S("[0e+]"), S("[0e]"),
    S("[1.0e+]"), S("[1.0e-]"), S("[1.0e]"), S("[1 000.0]"), S("[1eE2]"), S("[2.e+3]"),
    S("[2.e-3]"), S("[2.e3]"), S("[9.e+]"), S("[Inf]"), S("[NaN]"), S("[\xef\xbc\x91]"), S("[1+2]"),
    S("[0x1]"), S("[0x42]"), S("[Infinity]"), S("[0e+-1]"), S("[-123.123foo]"), S("[-Infinity]"),
    S("[-foo]"), S("[- 1]"), S("[-012]"), S("[-.123]"), S("[-1x]"), S("[1ea]"), S("[1.]"),
    S("[.123]"), S("[1.2a-3]"), S("[1.8011670033376514H]"), S("[012]"), S("[00]"), S("-"), S("1."),
    S("1e"), S("1e-"), S("01"), S("[-00]"), S("[0.]"), S("[1_000]"),
    /* strings */
    S("[\"\\uD800\\u\"]"), S("[\"\\uD800\\u1\"]"), S("[\"\\uD800\\u1x\"]"), S("[\"\\uD800\"]"),
    S("[\"\\uDFAA\"]"), S("[\"\\uD888\\u1234\"]"), S("[\"\\uD800\\uD800\\n\"]"),
    S("[\"\\uD800\\n\"]"), S("[\"\\ud800abc\"]"), S("[\"\\uDd1e\\uD834\"]"), S("[\xc3\xa9]"),
    S("[\"\\\0\"]"), S("[\"\\x00\"]"), S("[\"\\\\\\\"]"), S("[\"\\\t\"]"),
    S("[\"\\\xf0\x9f\x8c\x80\"]"), S("[\"\\\"]"), S("[\"\\u00A\"]"), S("[\"\\uD834\\uDd\"]"),
    S("[\"\\uD800\\uD800\\x\"]"), S("[\"\\a\"]"), S("[\"\\uqqqq\"]"), S("[\""), S("[\"\\u+123\"]"),
    S("[\"\\u 123\"]"), S("[\"\\U0061\"]"), S("['x']"), S("[\"a\nb\"]"), S("[\"\t\"]"),
    S("[\"\x1f\"]"), S("[\"x\""), S("\"\\"), S("\"\\u"), S("\"\\u12"), S("\"\\ud800\\"),
    S("\"\\ud800\\u"), S("\"a"), S("\""), S("\"12345678"), S("[\"\\u0000\"]"), S("{\"\\u0000\":1}"),
    S("[\"12345678\x01\"]"),
    /* UTF-8 */
    S("[\"\xe5\"]"), S("[\"\x81\"]"), S("[\"\xf4\xbf\xbf\xbf\"]"),
    S("[\"\xfc\x83\xbf\xbf\xbf\xbf\"]"), S("[\"\xc0\xaf\"]"), S("[\"\xed\xa0\x80\"]"),
    S("[\"\xed\xbf\xbf\"]"), S("[\"\xe0\xff\"]"), S("[\"\xe0\x80\x80\"]"), S("[\"\xe0\x9f\xbf\"]"),
    S("[\"\xf0\x8f\xbf\xbf\"]"), S("[\"\xf0\x80\x80\x80\"]"), S("[\"\xf4\x90\x80\x80\"]"),
    S("[\"\xf5\x80\x80\x80\"]"), S("[\"\xc1\xbf\"]"), S("[\"\xff\"]"), S("[\"\xe2\x82\"]"),
    S("[\"\xf0\x9f\x98\"]"), S("[\"\xc3\""), S("[\"\xc3"), S("[\"\xe2\x82"), S("[\"\xf0\x9f\x98"),
    S("[\"\xc3\xc3\"]"), S("[\"1234567\xff\"]"), S("[\"\xe2\x28\xa1\"]"),
};
/* clang-format on */

static void accepted(void **state)
{
    (void)state;
    struct k3_err err;
    for (size_t i = 0; i < sizeof legal / sizeof *legal; i++)
        if (check(legal[i].text, legal[i].bytes, 32, &err))
            fail_msg("%s was refused: %s", legal[i].text, err.text);
}

static void rejected(void **state)
{
    (void)state;
    struct k3_err err;
    for (size_t i = 0; i < sizeof illegal / sizeof *illegal; i++) {
        if (check(illegal[i].text, illegal[i].bytes, 32, &err) != K3_EFORMAT)
            fail_msg("%s was accepted", illegal[i].text);
        assert_string_equal(err.file, "f.json");
        assert_true(err.offset >= 0 && err.offset <= (int64_t)illegal[i].bytes);
        for (const char *at = err.text; *at; at++)
            assert_true(*at >= 0x20 && *at < 0x7f);
    }
}

/* Each prefix of a legal document that is an object is illegal. */
static void prefixes(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":[1,-2.5e3,\"\\ud83d\\ude00\xc3\xa4\",true,false,null,{}],\"b\":{\"c\":\"\"}}";
    struct k3_err err;
    for (size_t bytes = 0; bytes + 1 < sizeof text - 1; bytes++)
        assert_int_equal(check(text, bytes, 32, &err), K3_EFORMAT);
    assert_int_equal(check(text, sizeof text - 1, 32, &err), 0);
}

/* ---- places and messages ---- */

static void messages(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t offset;
        const char *part;
    } row[] = {
        {"{\"a\":1,}", 7, "wanted the name of a member in double quotes, found '}'"},
        {"[1 2]", 3, "wanted ',' or ']', found '2'"},
        {"{\"a\" 1}", 5, "wanted ':', found '1'"},
        {"[\"abc", 1, "a string begins here and has no closing quote"},
        {"[01]", 1, "superfluous 0"},
        {"[1.]", 3, "wanted a digit, found ']'"},
        {"[1e", 3, "wanted a digit, found the end of the text"},
        {"[\"\\q\"]", 3, "behind a backslash, found 'q'"},
        {"[\"a\\ud800\"]", 3, "half of a surrogate pair"},
        {"[\"a\xff\"]", 3, "not UTF-8"},
        {"[\"a\x01\"]", 3, "a control byte inside a string"},
        {"[\x1b]", 1, "found '\\x1b'"},
        {"{\"key\":1,\"k\\u0065y\":2}", 9, "\"key\" comes for the second time"},
        {"[] []", 3, "wanted the end of the text, found '['"},
    };
    struct k3_err err;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        assert_int_equal(check(row[i].text, strlen(row[i].text), 32, &err), K3_EFORMAT);
        if (err.offset != row[i].offset || !strstr(err.text, row[i].part))
            fail_msg("%s: offset %lld, %s", row[i].text, (long long)err.offset, err.text);
        char place[32];
        snprintf(place, sizeof place, "f.json: byte %lld: ", (long long)row[i].offset);
        assert_memory_equal(err.text, place, strlen(place));
    }
}

static void long_names_are_cut(void **state)
{
    (void)state;
    char text[400];
    char name[151];
    memset(name, 'n', 150);
    memcpy(name + 145, ".tail", 6);
    int bytes = snprintf(text, sizeof text, "{\"%s\":1,\"%s\":2}", name, name);
    struct k3_err err;
    assert_int_equal(check(text, (size_t)bytes, 32, &err), K3_EFORMAT);
    assert_non_null(strstr(err.text, "nnnn...nnnn"));
    assert_non_null(strstr(err.text, ".tail\" comes"));
    assert_null(strstr(err.text, name));
}

/* ---- tokens ---- */

static struct k3_json *json_open(const char *text)
{
    struct k3_json *json;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_json_open("f.json", text, strlen(text), 32, &json, &err), 0);
    return json;
}

static struct k3_json_token next(struct k3_json *json, enum k3_json_type type)
{
    struct k3_json_token token;
    struct k3_err err;
    k3_err_init(&err);
    if (k3_json_next(json, &token, &err))
        fail_msg("%s", err.text);
    assert_int_equal(token.type, type);
    return token;
}

static void is_text(struct k3_json_token token, const char *text, size_t offset, bool in_document)
{
    assert_int_equal(token.bytes, strlen(text));
    assert_memory_equal(token.text, text, token.bytes);
    assert_int_equal(token.offset, offset);
    assert_int_equal(token.in_document, in_document);
}

static void tokens(void **state)
{
    (void)state;
    static const char text[] = " {\"a\" : [1, \"x\\ty\" ,-5], \"\\u0062\":18446744073709551615}";
    struct k3_json *json = json_open(text);
    assert_int_equal(next(json, K3_JSON_OBJECT_BEGIN).offset, 1);
    is_text(next(json, K3_JSON_KEY), "a", 2, true);
    assert_int_equal(next(json, K3_JSON_ARRAY_BEGIN).offset, 8);
    struct k3_json_token token = next(json, K3_JSON_INTEGER);
    is_text(token, "1", 9, true);
    assert_int_equal(token.integer, 1);
    is_text(next(json, K3_JSON_STRING), "x\ty", 12, false);
    is_text(next(json, K3_JSON_NUMBER), "-5", 20, true);
    next(json, K3_JSON_ARRAY_END);
    is_text(next(json, K3_JSON_KEY), "b", 25, false);
    assert_true(next(json, K3_JSON_INTEGER).integer == UINT64_MAX);
    next(json, K3_JSON_OBJECT_END);
    assert_int_equal(next(json, K3_JSON_END).offset, strlen(text));
    next(json, K3_JSON_END); /* and again */
    k3_json_close(json);
    k3_json_close(NULL);
}

static void number_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum k3_json_type type;
        uint64_t value;
    } row[] = {
        {"0", K3_JSON_INTEGER, 0},
        {"7", K3_JSON_INTEGER, 7},
        {"18446744073709551615", K3_JSON_INTEGER, UINT64_MAX},
        {"18446744073709551616", K3_JSON_NUMBER, 0},
        {"18446744073709551620", K3_JSON_NUMBER, 0},
        {"184467440737095516150", K3_JSON_NUMBER, 0},
        {"99999999999999999999", K3_JSON_NUMBER, 0},
        {"-0", K3_JSON_NUMBER, 0},
        {"-1", K3_JSON_NUMBER, 0},
        {"1.0", K3_JSON_NUMBER, 0},
        {"1e0", K3_JSON_NUMBER, 0},
        {"1E3", K3_JSON_NUMBER, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_json *json = json_open(row[i].text);
        struct k3_json_token token = next(json, row[i].type);
        assert_true(token.integer == row[i].value);
        is_text(token, row[i].text, 0, true);
        next(json, K3_JSON_END);
        k3_json_close(json);
    }
}

static void unescaped(void **state)
{
    (void)state;
    static const struct {
        const char *text, *value;
    } row[] = {
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"\\u0041\\u00e4\\u20ac\\uFFFF\"", "A\xc3\xa4\xe2\x82\xac\xef\xbf\xbf"},
        {"\"\\ud800\\udc00\\uDBFF\\uDFFF\"", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"},
        {"\"head\\u002dmiddle\\ntail \xc3\xa4\"", "head-middle\ntail \xc3\xa4"},
        {"\"\\u0001\\u007f\\u0080\\u07ff\\u0800\"", "\x01\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_json *json = json_open(row[i].text);
        is_text(next(json, K3_JSON_STRING), row[i].value, 0, false);
        next(json, K3_JSON_END);
        k3_json_close(json);
    }
}

static void skipped(void **state)
{
    (void)state;
    struct k3_json *json = json_open(
        "{\"a\":{\"b\":[1,{\"c\":[]}],\"d\":{}},\"e\":[],\"f\":5,\"g\":6}");
    struct k3_err err;
    k3_err_init(&err);
    next(json, K3_JSON_OBJECT_BEGIN);
    next(json, K3_JSON_KEY);
    struct k3_json_token token = next(json, K3_JSON_OBJECT_BEGIN);
    assert_int_equal(k3_json_skip(json, &token, &err), 0);
    is_text(next(json, K3_JSON_KEY), "e", 31, true);
    token = next(json, K3_JSON_ARRAY_BEGIN);
    assert_int_equal(k3_json_skip(json, &token, &err), 0);
    next(json, K3_JSON_KEY);
    token = next(json, K3_JSON_INTEGER);
    assert_int_equal(k3_json_skip(json, &token, &err), 0);
    is_text(next(json, K3_JSON_KEY), "g", 44, true);
    k3_json_close(json);

    json = json_open("[[1,x]]");
    next(json, K3_JSON_ARRAY_BEGIN);
    token = next(json, K3_JSON_ARRAY_BEGIN);
    assert_int_equal(k3_json_skip(json, &token, &err), K3_EFORMAT);
    k3_json_close(json);
}

static void expected(void **state)
{
    (void)state;
    struct k3_json *json = json_open("{\"a\":null}");
    struct k3_json_token token;
    struct k3_err err;
    k3_err_init(&err);
    k3_json_set_base(json, 100);
    assert_int_equal(k3_json_expect(json, K3_JSON_OBJECT_BEGIN, "x", &token, &err), 0);
    assert_int_equal(token.offset, 100);
    assert_int_equal(k3_json_expect(json, K3_JSON_KEY, "x", &token, &err), 0);
    assert_int_equal(k3_json_expect(json, K3_JSON_STRING, "the name", &token, &err), K3_EFORMAT);
    assert_int_equal(err.offset, 105);
    assert_non_null(strstr(err.text, "byte 105: the name: wanted a string, found null"));
    k3_err_init(&err); /* the failure stays */
    assert_int_equal(k3_json_next(json, &token, &err), K3_EFORMAT);
    assert_int_equal(err.rc, K3_EFORMAT);
    k3_json_close(json);
}

/* ---- depth ---- */

static void depth(void **state)
{
    (void)state;
    enum { DEEP = 100000 };
    char *text = malloc(2 * DEEP);
    assert_non_null(text);
    memset(text, '[', DEEP);
    memset(text + DEEP, ']', DEEP);
    struct k3_err err;
    assert_int_equal(check(text, 2 * DEEP, 32, &err), K3_ELIMIT);
    assert_int_equal(err.offset, 32);
    assert_int_equal(check(text, 2 * DEEP, 1000000, &err), K3_ELIMIT); /* 32 is the most */
    assert_int_equal(err.offset, 32);
    assert_int_equal(check(text + DEEP - 32, 64, 32, &err), 0);
    assert_int_equal(check(text + DEEP - 33, 66, 32, &err), K3_ELIMIT);
    assert_int_equal(check(text + DEEP - 4, 8, 4, &err), 0);
    assert_int_equal(check(text + DEEP - 5, 10, 4, &err), K3_ELIMIT);
    assert_int_equal(check("[]", 2, 0, &err), K3_ELIMIT);
    assert_int_equal(check("1", 1, 0, &err), 0);
    free(text);
}

/* ---- duplicates ---- */

static void put_members(struct k3_text *text, unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++)
        k3_text_putf(text, "%s\"member-with-a-name.%u\":%u", i == from ? "" : ",", i, i);
}

/* A duplicate of any earlier member is found, whatever the size of the object. */
static void duplicate_anywhere(void **state)
{
    (void)state;
    struct k3_err err;
    static const unsigned count[] = {1, 2, 7, 8, 9, 10, 100, 127, 128, 129, 1000};
    for (size_t i = 0; i < sizeof count / sizeof *count; i++) {
        for (unsigned at = 0; at < count[i]; at += 1 + count[i] / 20) {
            struct k3_text text;
            k3_text_init(&text);
            k3_text_puts(&text, "{\"o\":{");
            put_members(&text, 0, count[i]);
            k3_text_puts(&text, "},\"p\":{");
            put_members(&text, 0, count[i]);
            size_t end = text.bytes;
            k3_text_puts(&text, "}}");
            assert_int_equal(check(text.data, text.bytes, 32, &err), 0);
            text.bytes = end;
            k3_text_putf(&text, ",\"member-with-a-name.%u\":0}}", at);
            assert_int_equal(check(text.data, text.bytes, 32, &err), K3_EFORMAT);
            assert_int_equal(err.offset, end + 1);
            k3_text_fini(&text);
        }
    }
}

/* As many entries as K3's index; the last one is double or not. */
static void half_a_million(void **state)
{
    (void)state;
    struct k3_err err;
    struct k3_text text;
    k3_text_init(&text);
    k3_text_puts(&text, "{\"weight_map\":{");
    put_members(&text, 0, 500000);
    size_t end = text.bytes;
    k3_text_puts(&text, "},\"x\":[{\"a\":0}]}");
    assert_int_equal(check(text.data, text.bytes, 32, &err), 0);
    text.bytes = end;
    k3_text_puts(&text, ",\"member-with-a-name.250000\":0}}");
    assert_int_equal(check(text.data, text.bytes, 32, &err), K3_EFORMAT);
    assert_int_equal(err.offset, end + 1);
    k3_text_fini(&text);
}

static uint64_t random_next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

#define NAMES 40u
/* A second opinion on duplicates: names of open objects as plain flags. */
struct model {
    bool seen[8][NAMES];
    unsigned depth;
    bool has_twice;
};

/* Random nested objects with few possible names, so that large and small objects lie in each other
 * in every way. */
static void put_random(struct k3_text *text, struct model *model, uint64_t *seed)
{
    memset(model, 0, sizeof *model);
    bool is_first = true;
    k3_text_puts(text, "{");
    for (unsigned i = 0; i < 150; i++) {
        uint64_t r = random_next(seed);
        if (r % 8 == 0 && model->depth > 0) {
            k3_text_puts(text, "}");
            model->depth--;
            is_first = false;
            continue;
        }
        unsigned name = (unsigned)(r >> 8) % NAMES;
        for (unsigned j = 0; j < NAMES - 1 && model->seen[model->depth][name]; j++)
            name = (name + 1) % NAMES; /* mostly a new one, else no text would be legal */
        if (r % 256 == 1)
            name = (unsigned)(r >> 16) % NAMES;
        model->has_twice = model->has_twice || model->seen[model->depth][name];
        model->seen[model->depth][name] = true;
        k3_text_putf(text, "%s\"%s%u\":", is_first ? "" : ",", r & 32 ? "n" : "\\u006e", name);
        is_first = r % 8 == 2 && model->depth < 7;
        if (is_first) {
            model->depth++;
            memset(model->seen[model->depth], 0, sizeof model->seen[model->depth]);
        }
        k3_text_puts(text, is_first ? "{" : "0");
    }
    for (unsigned i = 0; i <= model->depth; i++)
        k3_text_puts(text, "}");
}

static void duplicates_against_model(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252u;
    unsigned count[2] = {0, 0};
    for (unsigned i = 0; i < 3000; i++) {
        struct model model;
        struct k3_text text;
        struct k3_err err;
        k3_text_init(&text);
        put_random(&text, &model, &seed);
        int rc = check(text.data, text.bytes, 32, &err);
        if (rc != (model.has_twice ? K3_EFORMAT : 0))
            fail_msg("rc %d (%s) for %s", rc, err.text, text.data);
        count[model.has_twice]++;
        k3_text_fini(&text);
    }
    assert_true(count[0] > 300 && count[1] > 300);
}

/* Random damage never crashes and is never anything but legal or an error. */
static void random_damage(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":[1,-2.5e3,\"\\ud83d\\ude00\xc3\xa4\\n\",true,false,null],"
        "\"b\":{\"c\":\"\",\"\\u0064\":0.5,\"long-name-of-a-member\":[[],{}]}}";
    uint64_t seed = 20260727;
    for (unsigned i = 0; i < 20000; i++) {
        char copy[sizeof text];
        memcpy(copy, text, sizeof text);
        for (unsigned j = 0; j <= i % 3; j++)
            copy[random_next(&seed) % (sizeof text - 1)] = (char)random_next(&seed);
        struct k3_err err;
        int rc = check(copy, sizeof text - 1, 32, &err);
        assert_true(rc == 0 || rc == K3_EFORMAT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted),
        cmocka_unit_test(rejected),
        cmocka_unit_test(prefixes),
        cmocka_unit_test(messages),
        cmocka_unit_test(long_names_are_cut),
        cmocka_unit_test(tokens),
        cmocka_unit_test(number_kinds),
        cmocka_unit_test(unescaped),
        cmocka_unit_test(skipped),
        cmocka_unit_test(expected),
        cmocka_unit_test(depth),
        cmocka_unit_test(duplicate_anywhere),
        cmocka_unit_test(half_a_million),
        cmocka_unit_test(duplicates_against_model),
        cmocka_unit_test(random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
