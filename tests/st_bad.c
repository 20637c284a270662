/* Purpose: the bad and the odd safetensors files.
 * Owns: nothing; constant tables.
 * Threads: any.
 * Errors: sticky in the text.
 * Invariants: names are unique and are file names; building is deterministic; no file is larger
 * than 100 MB. */
#include "st_bad.h"

#include "bytes.h"

#include <inttypes.h>
#include <string.h>

#define HEADER_MAX  100000000u
#define PADDING_MAX 1048576u
#define TENSORS_MAX 1000000u

#define ONE   "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"
#define ONE_A "{\"a\":{" ONE "}}"
#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

/* ---- pieces ---- */

static void put_length(struct k3_text *out, uint64_t length)
{
    char prefix[8];
    k3_store_le64(prefix, length);
    k3_text_put(out, prefix, sizeof prefix);
}

static void put_run(struct k3_text *out, char c, size_t count)
{
    char run[4096];
    memset(run, c, sizeof run);
    for (; count > sizeof run; count -= sizeof run)
        k3_text_put(out, run, sizeof run);
    k3_text_put(out, run, count);
}

static void put_file(struct k3_text *out, const char *json, size_t json_bytes, size_t data_bytes)
{
    put_length(out, json_bytes);
    k3_text_put(out, json, json_bytes);
    put_run(out, (char)0xa5, data_bytes);
}

/* ---- builders ---- */

static void by_json(const struct k3_bad_st *row, struct k3_text *out)
{
    put_file(out, row->json, strlen(row->json), row->data_bytes);
}

/* The row's text is the whole file. */
static void by_text(const struct k3_bad_st *row, struct k3_text *out)
{
    k3_text_puts(out, row->json);
    put_run(out, '\n', row->data_bytes);
}

static void empty(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    k3_text_put(out, "", 0);
}

static void zero_header(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_length(out, 0);
    k3_text_puts(out, ONE_A "abcd");
}

static void zeros(const struct k3_bad_st *row, struct k3_text *out)
{
    put_run(out, 0, row->data_bytes);
}

static void put_with_length(struct k3_text *out, uint64_t length)
{
    put_length(out, length);
    k3_text_puts(out, ONE_A "abcd");
}

static void length_all_ones(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_with_length(out, UINT64_MAX);
}

static void length_2_63(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_with_length(out, UINT64_C(1) << 63);
}

static void length_limit_and_1(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_with_length(out, HEADER_MAX + 1);
}

static void length_beyond_end(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_with_length(out, strlen(ONE_A) + 5);
}

static void length_one_short(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_with_length(out, strlen(ONE_A) - 1);
}

static void length_one(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_with_length(out, 1);
}

static void lfs_pointer(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    k3_text_puts(out, "version https://git-lfs.github.com/spec/v1\noid sha256:"
                      "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
                      "size 12345\n");
}

static void zip_file(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    k3_text_put(out, "PK\x03\x04\x14\0\0\0\x08\0", 10);
    put_run(out, 'z', 100);
}

static void pickle_file(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    k3_text_puts(out, "\x80\x02}q\x01(X\x05");
    put_run(out, 'p', 100);
}

static void gguf_file(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    k3_text_put(out, "GGUF\x03\0\0\0\x01\0\0\0", 12);
    put_run(out, 'g', 100);
}

static void zip_end_record(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_file(out, ONE_A, strlen(ONE_A), 4);
    k3_text_puts(out, "PK\x05\x06");
    put_run(out, 0, 18); /* an end record has 22 bytes */
}

static void spaces_only(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_length(out, 3u << 20);
    put_run(out, ' ', 3u << 20);
}

static void put_padded(struct k3_text *out, size_t padding_bytes)
{
    put_length(out, strlen(ONE_A) + padding_bytes);
    k3_text_puts(out, ONE_A);
    put_run(out, ' ', padding_bytes);
    k3_text_puts(out, "abcd");
}

static void padding_90_mb(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_padded(out, 90000000);
}

static void padding_limit_and_1(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_padded(out, PADDING_MAX + 1);
}

static void padding_limit(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_padded(out, PADDING_MAX);
}

static void trailing_nul(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_file(out, ONE_A "\0\0", strlen(ONE_A) + 2, 4);
}

static void nul_in_name(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    static const char json[] = "{\"a\0b\":{" ONE "}}";
    put_file(out, json, sizeof json - 1, 4);
}

static void put_nested(struct k3_text *out, size_t depth)
{
    static const char head[] = "{\"a\":";
    put_length(out, sizeof head - 1 + 2 * depth + 1);
    k3_text_puts(out, head);
    put_run(out, '[', depth);
    put_run(out, ']', depth);
    k3_text_puts(out, "}");
}

static void nested_200(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_nested(out, 200);
}

static void nested_100000(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_nested(out, 100000);
}

/* Each array is where one may stand: only the limit of nesting or the item's type can stop it. */
static void nested_shape(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    static const char head[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":";
    put_length(out, sizeof head - 1 + 200000 + 2);
    k3_text_puts(out, head);
    put_run(out, '[', 100000);
    put_run(out, ']', 100000);
    k3_text_puts(out, "}}");
}

static void many_tensors(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_length(out, 0);
    for (uint32_t i = 0; i <= TENSORS_MAX; i++) {
        k3_text_puts(out, i ? ",\"" : "{\"");
        k3_text_putu(out, i);
        k3_text_puts(out, "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
    }
    k3_text_puts(out, "}");
    if (!out->failed)
        k3_store_le64(out->data, out->bytes - 8);
}

static void put_long_name(struct k3_text *out, size_t name_bytes)
{
    put_length(out, name_bytes + strlen("{\"\":{" ONE "}}"));
    k3_text_puts(out, "{\"");
    put_run(out, 'n', name_bytes);
    k3_text_puts(out, "\":{" ONE "}}abcd");
}

static void name_513(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_long_name(out, 513);
}

static void name_512(const struct k3_bad_st *row, struct k3_text *out)
{
    (void)row;
    put_long_name(out, 512);
}

/* ---- the bad ones ---- */

#define ANY    K3_BAD_ANY_OFFSET
#define FORMAT K3_EFORMAT
#define LIMIT  K3_ELIMIT
#define DATA   K3_ECORRUPT

#define META(value)      "{\"__metadata__\":" value ",\"a\":{" ONE "}}"
#define FIELDS(fields)   "{\"a\":{" fields "}}"
#define SHAPE(shape)     FIELDS("\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[0,4]")
#define OFFSETS(offsets) FIELDS("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" offsets)
#define DTYPE(dtype)     FIELDS("\"dtype\":" dtype ",\"shape\":[1],\"data_offsets\":[0,4]")
#define NAME(name)       "{\"" name "\":{" ONE "}}"

#define WANTED_ITEM "each item of shape must be an integer"
#define WANTED_PAIR "data_offsets must be two integers"
#define WRONG_SIZE  "size beyond 2^64 bits or no whole number"

const struct k3_bad_st k3_bad_st_table[] = {
    {"A1-empty", empty, NULL, 0, FORMAT, 0, "only 0 bytes"},
    {"A1-seven-bytes", by_text, "1234567", 0, FORMAT, 0, "only 7 bytes"},
    {"A1-one-byte", by_text, "\x02", 0, FORMAT, 0, "only 1 bytes"},
    {"A2-zero-header", zero_header, NULL, 0, FORMAT, 0, "the header length is 0"},
    {"A2-zeros", zeros, NULL, 4096, FORMAT, 0, "begins with zeros: lost writes"},
    {"A2-eight-zeros", zeros, NULL, 8, FORMAT, 0, "begins with zeros"},
    {"A2-length-one", length_one, NULL, 0, FORMAT, 0, "the header length is 1"},
    {"A3-length-all-ones", length_all_ones, NULL, 0, LIMIT, 0, "18446744073709551615"},
    {"A3-length-2-63", length_2_63, NULL, 0, LIMIT, 0, "9223372036854775808"},
    {"A3-length-limit-and-1", length_limit_and_1, NULL, 0, LIMIT, 0, "100000001"},
    {"A4-length-beyond-end", length_beyond_end, NULL, 0, FORMAT, 0, "cut off or damaged"},
    {"A5-length-one-short", length_one_short, NULL, 0, FORMAT, ANY, "found the end of the text"},
    {"A6-lfs-pointer", lfs_pointer, NULL, 0, FORMAT, 0,
     "SHA-256 4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393, size 12345 bytes"},
    {"A6-lfs-pointer-torn", by_text, "version https://git-lfs.github.com/spec/v1\noid sha", 0,
     FORMAT, 0, "SHA-256 unknown, size unknown"},
    {"A7-html", by_text, "\n<!DOCTYPE html><html><body>404</body></html>", 0, FORMAT, 0, "HTML"},
    {"A7-xml", by_text, "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", 0,
     FORMAT, 0, "XML"},
    {"A7-json", by_text, "{\"error\":\"not found\"}", 0, FORMAT, 0, "JSON text"},
    {"A7-pickle", pickle_file, NULL, 0, FORMAT, 0, "pickle"},
    {"A7-zip", zip_file, NULL, 0, FORMAT, 0, "ZIP"},
    {"A7-gguf", gguf_file, NULL, 0, FORMAT, 0, "GGUF"},
    {"A8-data-one-short", by_json, ONE_A, 3, DATA, 65, "1 bytes are missing"},
    {"A8-no-data", by_json, ONE_A, 0, DATA, 62, "4 bytes are missing"},
    {"A9-one-trailing-byte", by_json, ONE_A, 5, DATA, 66, "1 bytes follow the last tensor"},
    {"A9-zip-end-record", zip_end_record, NULL, 0, DATA, 66, "22 bytes follow the last tensor"},
    {"A10-no-tensors", by_json, "{}", 0, FORMAT, 8, "names no tensor"},
    {"A10-only-metadata", by_json, "{\"__metadata__\":{\"a\":\"b\"}}", 0, FORMAT, 8, "no tensor"},
    {"A11-spaces-only", spaces_only, NULL, 0, FORMAT, 8, "must begin with '{'"},
    {"A11-padding-90-mb", padding_90_mb, NULL, 0, LIMIT, ANY, "more than 1048576 spaces"},
    {"A11-padding-limit-and-1", padding_limit_and_1, NULL, 0, LIMIT, ANY, "1048576 spaces"},

    {"B1-array", by_json, "[]", 0, FORMAT, 8, "must begin with '{', found '['"},
    {"B1-null", by_json, "null", 0, FORMAT, 8, "must begin with '{', found 'n'"},
    {"B1-string", by_json, "\"text\"", 0, FORMAT, 8, "must begin with '{'"},
    {"B2-invalid-utf8", by_json, META("{\"a\":\"\xff\"}"), 4, FORMAT, ANY, "not UTF-8"},
    {"B2-overlong", by_json, META("{\"a\":\"\xc0\xaf\"}"), 4, FORMAT, ANY, "not UTF-8"},
    {"B2-surrogate", by_json, META("{\"a\":\"\xed\xa0\x80\"}"), 4, FORMAT, ANY, "not UTF-8"},
    {"B2-cut-sequence", by_json, META("{\"a\":\"\xe2\x82\"}"), 4, FORMAT, ANY, "not UTF-8"},
    {"B2-name", by_json, NAME("\xff"), 4, FORMAT, 10, "not UTF-8"},
    {"B3-bom", by_json, "\xef\xbb\xbf" ONE_A, 4, FORMAT, 8, "must begin with '{', found '\\xef'"},
    {"B4-leading-space", by_json, " " ONE_A, 4, FORMAT, 8, "must begin with '{', found ' '"},
    {"B4-leading-newline", by_json, "\n" ONE_A, 4, FORMAT, 8, "must begin with '{', found '\\x0a'"},
    {"B5-trailing-newline", by_json, ONE_A "\n", 4, FORMAT, ANY, "only spaces may follow"},
    {"B7-trailing-nul", trailing_nul, NULL, 0, FORMAT, 62, "wanted the end of the text"},
    {"B7-trailing-x", by_json, ONE_A "x", 4, FORMAT, 62, "wanted the end of the text, found 'x'"},
    {"B7-second-object", by_json, ONE_A "{}", 4, FORMAT, 62, "wanted the end of the text"},
    {"B8-duplicate-same-offsets", by_json, "{\"a\":{" ONE "},\"a\":" T("I32", "[1]", 0, 4) "}", 4,
     FORMAT, ANY, "\"a\" comes for the second time"},
    {"B8-duplicate-escaped", by_json, "{\"a\":{" ONE "},\"\\u0061\":{" ONE "}}", 4, FORMAT, ANY,
     "\"a\" comes for the second time"},
    {"B9-duplicate-other-offsets", by_json, "{\"a\":{" ONE "},\"a\":" T("F32", "[1]", 4, 8) "}", 8,
     FORMAT, ANY, "\"a\" comes for the second time"},
    {"B10-duplicate-field", by_json, FIELDS(ONE ",\"dtype\":\"F32\""), 4, FORMAT, ANY,
     "\"dtype\" comes for the second time"},
    {"B10-two-metadata", by_json, "{\"__metadata__\":{},\"__metadata__\":{},\"a\":{" ONE "}}", 4,
     FORMAT, ANY, "\"__metadata__\" comes for the second time"},
    {"B11-duplicate-in-metadata", by_json, META("{\"k\":\"1\",\"k\":\"2\"}"), 4, FORMAT, ANY,
     "\"k\" comes for the second time"},
    {"B12-metadata-number", by_json, META("{\"k\":1}"), 4, FORMAT, ANY, "wanted a string"},
    {"B12-metadata-object", by_json, META("{\"k\":{}}"), 4, FORMAT, ANY, "wanted a string"},
    {"B12-metadata-as-tensor", by_json, META("{" ONE "}"), 4, FORMAT, ANY, "wanted a string"},
    {"B12-metadata-array", by_json, META("[]"), 4, FORMAT, ANY, "wanted an object"},
    {"B12-metadata-string", by_json, META("\"x\""), 4, FORMAT, ANY, "wanted an object"},
    {"B13-metadata-null", by_json, META("null"), 4, FORMAT, ANY, "wanted an object, found null"},
    {"B14-nested-200", nested_200, NULL, 0, FORMAT, 13, "wanted an object, found an array"},
    {"B14-nested-100000", nested_100000, NULL, 0, FORMAT, 13, "wanted an object"},
    {"B14-nested-shape", nested_shape, NULL, 0, FORMAT, ANY, WANTED_ITEM},
    {"B15-nan", by_json, SHAPE("[NaN]"), 4, FORMAT, ANY, "wanted a value, found 'N'"},
    {"B15-infinity", by_json, SHAPE("[-Infinity]"), 4, FORMAT, ANY, "wanted a digit"},
    {"B15-trailing-comma", by_json, "{\"a\":{" ONE "},}", 4, FORMAT, ANY, "the name of a member"},
    {"B15-trailing-comma-shape", by_json, SHAPE("[1,]"), 4, FORMAT, ANY, "wanted a value"},
    {"B15-comment", by_json, "{/**/\"a\":{" ONE "}}", 4, FORMAT, 9, "the name of a member"},
    {"B15-single-quotes", by_json, "{'a':{" ONE "}}", 4, FORMAT, 9, "double quotes"},
    {"B15-plus", by_json, SHAPE("[+1]"), 4, FORMAT, ANY, "wanted a value, found '+'"},
    {"B15-leading-zero", by_json, SHAPE("[01]"), 4, FORMAT, ANY, "superfluous 0"},
    {"B15-hex", by_json, SHAPE("[0x1]"), 4, FORMAT, ANY, "',' or ']'"},
    {"B16-minus-zero", by_json, OFFSETS("[-0,4]"), 4, FORMAT, ANY, WANTED_PAIR},
    {"B16-negative", by_json, OFFSETS("[-4,0]"), 4, FORMAT, ANY, WANTED_PAIR},
    {"B16-exponent", by_json, SHAPE("[1e0]"), 4, FORMAT, ANY, WANTED_ITEM},
    {"B16-fraction", by_json, OFFSETS("[0.0,4]"), 4, FORMAT, ANY, WANTED_PAIR},
    {"B16-string", by_json, OFFSETS("[\"0\",4]"), 4, FORMAT, ANY, WANTED_PAIR},
    {"B17-2-64", by_json, OFFSETS("[0,18446744073709551616]"), 4, FORMAT, ANY, WANTED_PAIR},
    {"B17-2-64-shape", by_json, SHAPE("[18446744073709551616]"), 4, FORMAT, ANY, WANTED_ITEM},
    {"B19-lone-surrogate", by_json, META("{\"k\":\"\\ud83d\"}"), 4, FORMAT, ANY, "surrogate"},
    {"B20-control-byte", by_json, META("{\"k\":\"a\x01\"}"), 4, FORMAT, ANY, "control byte"},
    {"B20-newline", by_json, NAME("a\nb"), 4, FORMAT, 11, "control byte"},
    {"B21-many-tensors", many_tensors, NULL, 0, LIMIT, ANY, "more than 1000000 tensors"},

    {"C1-dtype-unknown", by_json, DTYPE("\"F33\""), 4, FORMAT, 22, "\"F33\" is not known"},
    {"C1-dtype-lower-case", by_json, DTYPE("\"f32\""), 4, FORMAT, 22, "\"f32\" is not known"},
    {"C1-dtype-number", by_json, DTYPE("32"), 4, FORMAT, 22, "wanted a string"},
    {"C1-dtype-empty", by_json, DTYPE("\"\""), 4, FORMAT, 22, "\"\" is not known"},
    {"C1-dtype-escapes", by_json, DTYPE("\"\\u001b[31m\""), 4, FORMAT, 22, "\"\\x1b[31m\""},
    {"C2-no-dtype", by_json, FIELDS("\"shape\":[1],\"data_offsets\":[0,4]"), 4, FORMAT, 9,
     "dtype is missing"},
    {"C2-no-shape", by_json, FIELDS("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, FORMAT, 9,
     "shape is missing"},
    {"C2-no-data-offsets", by_json, FIELDS("\"dtype\":\"F32\",\"shape\":[1]"), 4, FORMAT, 9,
     "data_offsets are missing"},
    {"C2-empty-tensor", by_json, FIELDS(""), 4, FORMAT, 9, "dtype is missing"},
    {"C3-extra-field", by_json, FIELDS(ONE ",\"x\":1"), 4, FORMAT, ANY,
     "a member that is not dtype"},
    {"C3-field-case", by_json, FIELDS(ONE ",\"Dtype\":\"F32\""), 4, FORMAT, ANY,
     "a member that is"},
    {"C4-tensor-array", by_json, "{\"a\":[\"F32\",[1],[0,4]]}", 4, FORMAT, 13, "found an array"},
    {"C4-tensor-null", by_json, "{\"a\":null}", 4, FORMAT, 13, "found null"},
    {"C5-one-offset", by_json, OFFSETS("[0]"), 4, FORMAT, ANY, WANTED_PAIR},
    {"C5-no-offset", by_json, OFFSETS("[]"), 4, FORMAT, ANY, WANTED_PAIR},
    {"C5-three-offsets", by_json, OFFSETS("[0,4,8]"), 4, FORMAT, ANY, WANTED_PAIR},
    {"C5-offsets-object", by_json, OFFSETS("{\"0\":0,\"1\":4}"), 4, FORMAT, ANY, "wanted an array"},
    {"C6-shape-negative", by_json, SHAPE("[-1]"), 4, FORMAT, ANY, WANTED_ITEM},
    {"C6-shape-null", by_json, SHAPE("[null]"), 4, FORMAT, ANY, WANTED_ITEM},
    {"C6-shape-string", by_json, SHAPE("[\"1\"]"), 4, FORMAT, ANY, WANTED_ITEM},
    {"C6-shape-is-null", by_json, SHAPE("null"), 4, FORMAT, ANY, "wanted an array, found null"},
    {"C6-shape-is-number", by_json, SHAPE("1"), 4, FORMAT, ANY, "wanted an array"},
    {"C7-product-2-64", by_json, SHAPE("[4294967296,4294967296]"), 4, FORMAT, 9, WRONG_SIZE},
    {"C7-bits-2-66", by_json, SHAPE("[2305843009213693952]"), 4, FORMAT, 9, WRONG_SIZE},
    {"C7-wraps-to-2", by_json, SHAPE("[9223372036854775809,2]"), 4, FORMAT, 9, WRONG_SIZE},
    {"C7-wraps-to-0", by_json,
     FIELDS("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]"), 0,
     FORMAT, 9, WRONG_SIZE},
    {"C8-overflow-before-zero", by_json,
     FIELDS("\"dtype\":\"F32\",\"shape\":[18446744073709551615,2,0],\"data_offsets\":[0,0]"), 0,
     FORMAT, 9, WRONG_SIZE},
    {"C8-overflow-behind-zero", by_json,
     FIELDS("\"dtype\":\"F32\",\"shape\":[0,18446744073709551615,2],\"data_offsets\":[0,0]"), 0,
     FORMAT, 9, WRONG_SIZE},
    {"C10-nine-dimensions", by_json, SHAPE("[1,1,1,1,1,1,1,1,1]"), 4, LIMIT, ANY,
     "more than 8 dimensions"},
    {"C11-f4-odd", by_json, "{\"a\":" T("F4", "[3]", 0, 1) "}", 1, FORMAT, 9, WRONG_SIZE},
    {"C11-f6-three", by_json, "{\"a\":" T("F6_E2M3", "[3]", 0, 2) "}", 2, FORMAT, 9, WRONG_SIZE},
    {"C13-too-short", by_json, "{\"a\":" T("F32", "[2]", 0, 4) "}", 4, FORMAT, 9,
     "shape and dtype give 8 bytes, data_offsets 4"},
    {"C13-too-long", by_json, "{\"a\":" T("F32", "[0]", 0, 4) "}", 4, FORMAT, 9,
     "shape and dtype give 0 bytes, data_offsets 4"},

    {"D1-starts-at-4", by_json, "{\"a\":" T("F32", "[1]", 4, 8) "}", 8, FORMAT, ANY,
     "bytes of no tensor lie between"},
    {"D2-hole", by_json, "{\"a\":{" ONE "},\"b\":" T("F32", "[1]", 8, 12) "}", 12, FORMAT, ANY,
     "begin at 8, the tensors before it end at 4: bytes of no tensor"},
    {"D3-overlap", by_json, "{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[2]", 4, 12) "}",
     12, FORMAT, ANY, "begin at 4, the tensors before it end at 8: the two overlap"},
    {"D3-identical-ranges", by_json, "{\"a\":{" ONE "},\"b\":{" ONE "}}", 4, FORMAT, ANY,
     "overlap"},
    {"D3-zero-size-inside", by_json,
     "{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[0]", 4, 4) "}", 8, FORMAT, ANY,
     "overlap"},
    {"D4-end-before-begin", by_json, OFFSETS("[4,0]"), 4, FORMAT, ANY, "end before they begin"},
    {"D5-end-2-64-less-1", by_json, OFFSETS("[0,18446744073709551615]"), 4, FORMAT, 9,
     "data_offsets 18446744073709551615"},
    {"D5-range-at-the-top", by_json, OFFSETS("[18446744073709551611,18446744073709551615]"), 4,
     FORMAT, ANY, "bytes of no tensor"},
    {"D6-4-tib", by_json, "{\"a\":" T("U8", "[4398046511104]", 0, 4398046511104) "}", 4, DATA, ANY,
     "4398046511100 bytes are missing"},
    {"D7-largest-size", by_json,
     "{\"a\":" T("U8", "[2305843009213693951]", 0, 2305843009213693951) "}", 4, DATA, ANY,
     "2305843009213693947 bytes are missing"},

    {"E1-absolute-escape", by_json, NAME("..\\\\..\\\\x"), 4, FORMAT, 9, "is refused"},
    {"E1-space", by_json, NAME("a b"), 4, FORMAT, 9, "\"a b\" is refused"},
    {"E2-empty-name", by_json, NAME(""), 4, FORMAT, 9, "the tensor name \"\" is refused"},
    {"E2-nul-escape", by_json, NAME("a\\u0000b"), 4, FORMAT, 11, "NUL"},
    {"E2-nul-raw", nul_in_name, NULL, 0, FORMAT, 11, "control byte"},
    {"E2-newline", by_json, NAME("a\\nb"), 4, FORMAT, 9, "\"a\\x0ab\" is refused"},
    {"E2-ansi-escape", by_json, NAME("a\\u001b[31mb"), 4, FORMAT, 9, "\"a\\x1b[31mb\" is refused"},
    {"E2-not-ascii", by_json, NAME("\xc3\xa4"), 4, FORMAT, 9, "\"\\xc3\\xa4\" is refused"},
    {"E2-513-characters", name_513, NULL, 0, FORMAT, 9, "is refused"},
};
const size_t k3_bad_st_count = sizeof k3_bad_st_table / sizeof *k3_bad_st_table;

/* ---- the odd ones ---- */

const struct k3_bad_st k3_good_st_table[] = {
    {"A0-one-tensor", by_json, ONE_A, 4, K3_OK, -1, ""},
    {"A11-padding-limit", padding_limit, NULL, 0, K3_OK, -1, ""},
    {"B5-trailing-spaces", by_json, ONE_A "   ", 4, K3_OK, -1, ""},
    {"B6-inner-space", by_json, "{ \"a\" :\n{" ONE "\t}\r}", 4, K3_OK, -1, ""},
    {"B18-escaped-name", by_json, NAME("\\u0061\\/b"), 4, K3_OK, -1, ""},
    {"B19-surrogate-pair", by_json, META("{\"k\":\"\\ud83d\\ude00\"}"), 4, K3_OK, -1, ""},
    {"B22-metadata-last", by_json, "{\"a\":{" ONE "},\"__metadata__\":{\"k\":\"v\"}}", 4, K3_OK, -1,
     ""},
    {"B22-metadata-empty", by_json, META("{}"), 4, K3_OK, -1, ""},
    {"C12-f4-pair", by_json, "{\"a\":" T("F4", "[2]", 0, 1) "}", 1, K3_OK, -1, ""},
    {"C12-f6-four", by_json, "{\"a\":" T("F6_E3M2", "[4]", 0, 3) "}", 3, K3_OK, -1, ""},
    {"C12-e8m0", by_json, "{\"a\":" T("F8_E8M0", "[3]", 0, 3) "}", 3, K3_OK, -1, ""},
    {"C14-scalar", by_json, "{\"a\":" T("F32", "[]", 0, 4) "}", 4, K3_OK, -1, ""},
    {"C15-zero-size", by_json, "{\"a\":" T("F32", "[0]", 0, 0) ",\"b\":{" ONE "}}", 4, K3_OK, -1,
     ""},
    {"C15-zero-size-only", by_json, "{\"a\":" T("F32", "[4,0]", 0, 0) "}", 0, K3_OK, -1, ""},
    {"C16-bool", by_json, "{\"a\":" T("BOOL", "[2]", 0, 2) "}", 2, K3_OK, -1, ""},
    {"C18-eight-dimensions", by_json, SHAPE("[1,1,1,1,1,1,1,1]"), 4, K3_OK, -1, ""},
    {"D8-f32-at-1", by_json, "{\"a\":" T("F32", "[1]", 1, 5) ",\"b\":" T("U8", "[1]", 0, 1) "}", 5,
     K3_OK, -1, ""},
    {"D9-any-order", by_json, "{\"a\":" T("U8", "[1]", 1, 2) ",\"b\":" T("U8", "[1]", 0, 1) "}", 2,
     K3_OK, -1, ""},
    {"E1-path-name", by_json, NAME("../../etc/passwd"), 4, K3_OK, -1, ""},
    {"E2-512-characters", name_512, NULL, 0, K3_OK, -1, ""},
};
const size_t k3_good_st_count = sizeof k3_good_st_table / sizeof *k3_good_st_table;
