/* Purpose: manifest and record come back as they were; every other text is refused, also one whose
 * own digest is right.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: structs are poisoned before each decode and empty after a refusal. */
#include "manifest.h"

#include "cast_row.h"
#include "sha256.h"
#include "tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNIT           ((uint64_t)K3_UNIT_BYTES)
#define UNIT_COUNT_MAX 16
#define PLAN_TEXT      "{\"config\":{\"a.b\":1},\"format\":\"k3-plan\",\"headers\":[2,3],\"v\":0}"
#define ZEROS          "0000000000000000000000000000000000000000000000000000000000000000"

/* ---- fixtures ---- */

/* All that a manifest and a record need. */
struct set {
    struct k3_file_entry files[3], sources[2];
    struct k3_manifest_rank ranks[2];
    struct k3_part_entry parts[2][2];
    struct k3_manifest manifest;
    struct k3_record record;
    struct k3_part_entry record_parts[3];
    struct k3_cast_row casts[2];
    uint8_t unit_digests[UNIT_COUNT_MAX * K3_DIGEST_BYTES];
    char unit_names[2][K3_NAME_BYTES_MAX + 1];
};

static void fill_digest(uint8_t digest[K3_DIGEST_BYTES], unsigned seed)
{
    for (unsigned i = 0; i < K3_DIGEST_BYTES; i++)
        digest[i] = (uint8_t)(seed * 37 + i * 11);
}

static struct k3_file_entry file_entry(const char *name, uint64_t bytes, unsigned seed)
{
    struct k3_file_entry entry = {(char *)(uintptr_t)name, bytes, {0}};
    fill_digest(entry.sha256, seed);
    return entry;
}

static struct k3_part_entry part_entry(uint32_t rank, uint32_t part, uint64_t units,
                                       uint64_t header)
{
    struct k3_part_entry entry = {rank, part, units * UNIT, header * UNIT, {0}, {0}};
    fill_digest(entry.sha256, rank * 10 + part);
    fill_digest(entry.tree, rank * 10 + part + 100);
    return entry;
}

static void make_manifest(struct set *s)
{
    s->files[0] = file_entry("config.json", 10, 1);
    s->files[1] = file_entry("tokenizer.model", 0, 2);
    s->sources[0] = file_entry("model-00001-of-000096.safetensors", 1234567, 3);
    s->sources[1] = file_entry("model-00002-of-000096.safetensors", 7654321, 4);
    for (uint32_t r = 0; r < 2; r++) {
        s->parts[r][0] = part_entry(2 * r, 0, 3 + r, 1);
        s->parts[r][1] = part_entry(2 * r, 12, 2, 1);
        k3_units_name(2 * r, s->unit_names[r]);
        s->ranks[r] = (struct k3_manifest_rank){
            2 * r, 2, (3 + r) * UNIT, s->parts[r],
            file_entry(s->unit_names[r], 128 + 32 * (5 + r), 5 + r)};
    }
    s->manifest = (struct k3_manifest){.files = s->files,
                                       .headers = file_entry(K3_HEADERS_NAME, 77, 9),
                                       .sources = s->sources,
                                       .ranks = s->ranks,
                                       .plan_text = (char *)(uintptr_t)PLAN_TEXT,
                                       .plan_bytes = sizeof PLAN_TEXT - 1,
                                       .tool = (char *)(uintptr_t) "k3-shard 0.1.0",
                                       .file_count = 2,
                                       .source_count = 2,
                                       .rank_count = 2};
}

static void make_record(struct set *s)
{
    struct k3_sha256 *sha;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_sha256_open(&sha, &err), 0);
    s->files[2] = s->files[1];
    s->files[1] = file_entry(K3_HEADERS_NAME, (uint64_t)5 << 30, 8);
    s->record_parts[0] = part_entry(0, 0, 3, 1);
    s->record_parts[1] = part_entry(0, 12, 2, 1);
    s->record_parts[2] = part_entry(2, 0, 7, 2);
    uint8_t *units = s->unit_digests;
    for (unsigned i = 0; i < sizeof s->unit_digests; i++)
        units[i] = i % 3 ? (uint8_t)(i * i) : '\n';
    for (int i = 0; i < 3; i++) {
        struct k3_part_entry *part = &s->record_parts[i];
        k3_tree_of_units(sha, units, part->bytes / UNIT, part->bytes, part->tree);
        units += part->bytes / UNIT * K3_DIGEST_BYTES;
    }
    s->casts[0] = (struct k3_cast_row){3, K3_Q_MXFP4, K3_Q_NVFP4, 2.5, 0, 0, 64, 4, 1, 0, 0};
    s->casts[1] = (struct k3_cast_row){9, K3_Q_BF16, K3_Q_MXFP4, 8, 0.25, 0.5, 64, 2, 0, 1, 0};
    s->record = (struct k3_record){.casts = s->casts,
                                   .cast_count = 2,
                                   .files = s->files,
                                   .parts = s->record_parts,
                                   .sources = s->sources,
                                   .unit_digests = s->unit_digests,
                                   .unit_count = 12,
                                   .tool = (char *)(uintptr_t) "k3-shard 0.1.0",
                                   .file_count = 3,
                                   .part_count = 3,
                                   .source_count = 2,
                                   .token = "0123456789abcdef"};
    fill_digest(s->record.plan_digest, 42);
    k3_sha256_close(sha);
}

static void encode_manifest(const struct k3_manifest *manifest, struct k3_text *out)
{
    struct k3_err err;
    k3_err_init(&err);
    k3_text_init(out);
    int rc = k3_manifest_encode(manifest, out, &err);
    if (rc)
        fail_msg("%s", err.text);
}

static void encode_record(const struct k3_record *record, struct k3_text *out)
{
    struct k3_err err;
    k3_err_init(&err);
    k3_text_init(out);
    int rc = k3_record_encode(record, out, &err);
    if (rc)
        fail_msg("%s", err.text);
}

static void good_manifest(struct k3_text *out)
{
    struct set s;
    memset(&s, 0, sizeof s);
    make_manifest(&s);
    encode_manifest(&s.manifest, out);
}

static void good_record(struct k3_text *out)
{
    struct set s;
    memset(&s, 0, sizeof s);
    make_manifest(&s);
    make_record(&s);
    encode_record(&s.record, out);
}

/* ---- decode, and the digest made right again ---- */

static void check_err(int rc, const struct k3_err *err, const char *file)
{
    assert_int_equal(err->rc, rc);
    if (!rc)
        return;
    if (!strstr(err->text, file) || strchr(err->text, '\n') || !strchr(err->text, ';'))
        fail_msg("not a message of ours: %s", err->text);
    for (const char *p = err->text; *p; p++)
        assert_true(*p >= 0x20 && *p <= 0x7e);
}

/* The text is copied to memory of its own size, so that ASan sees a read behind it. */
static int decode_manifest(const char *text, size_t bytes, struct k3_err *err)
{
    struct k3_manifest manifest, empty;
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    memset(&manifest, 0xa5, sizeof manifest);
    memset(&empty, 0, sizeof empty);
    k3_err_init(err);
    int rc = k3_manifest_decode("/d/k3-shards.json", copy, bytes, &manifest, err);
    check_err(rc, err, "/d/k3-shards.json");
    if (rc) {
        assert_memory_equal(&manifest, &empty, sizeof empty);
    } else {
        struct k3_text again;
        encode_manifest(&manifest, &again);
        assert_int_equal(again.bytes, bytes);
        assert_memory_equal(again.data, text, bytes);
        k3_text_fini(&again);
    }
    k3_manifest_fini(&manifest);
    free(copy);
    return rc;
}

static int decode_record(const char *text, size_t bytes, struct k3_err *err)
{
    struct k3_record record, empty;
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    memset(&record, 0xa5, sizeof record);
    memset(&empty, 0, sizeof empty);
    k3_err_init(err);
    int rc = k3_record_decode("/d/item-0.record", copy, bytes, &record, err);
    check_err(rc, err, "/d/item-0.record");
    if (rc) {
        assert_memory_equal(&record, &empty, sizeof empty);
    } else {
        struct k3_text again;
        encode_record(&record, &again);
        assert_int_equal(again.bytes, bytes);
        assert_memory_equal(again.data, text, bytes);
        k3_text_fini(&again);
    }
    k3_record_fini(&record);
    free(copy);
    return rc;
}

static void put_hex(const char *data, size_t bytes, char *at)
{
    struct k3_sha256 *sha;
    struct k3_err err;
    uint8_t digest[K3_DIGEST_BYTES];
    char hex[K3_HEX_BYTES];
    k3_err_init(&err);
    assert_int_equal(k3_sha256_open(&sha, &err), 0);
    k3_sha256_of(sha, data, bytes, digest);
    k3_sha256_close(sha);
    k3_hex_encode(digest, sizeof digest, hex);
    memcpy(at, hex, 64);
}

/* Make plan_sha256 (where the text still has both members) and ~sha256 right. */
static void reseal(char *text, size_t bytes, bool with_plan)
{
    char *plan = strstr(text, "\"plan\":"), *digest = strstr(text, ",\"plan_sha256\":\"");
    if (with_plan && plan && digest && plan < digest)
        put_hex(plan + 7, (size_t)(digest - plan - 7), digest + 16);
    assert_true(bytes > 67);
    char *digits = text + bytes - 67;
    memset(digits, '0', 64);
    put_hex(text, bytes, digits);
}

/* In a copy of a head of a manifest or record, `from` becomes `to`. */
static char *edit(const struct k3_text *good, size_t head_bytes, const char *from, const char *to,
                  size_t *bytes)
{
    char *text = malloc(good->bytes + strlen(to) + 1);
    assert_non_null(text);
    const char *at = strstr(good->data, from);
    if (!at)
        fail_msg("the fixture has no %s", from);
    size_t front = (size_t)(at - good->data), behind = front + strlen(from);
    memcpy(text, good->data, front);
    memcpy(text + front, to, strlen(to));
    memcpy(text + front + strlen(to), good->data + behind, good->bytes - behind);
    *bytes = good->bytes - strlen(from) + strlen(to);
    text[*bytes] = 0;
    reseal(text, head_bytes - strlen(from) + strlen(to), strstr(from, "plan_sha256") == NULL);
    return text;
}

struct bad {
    const char *from, *to;
    int rc;
};

/* ---- manifest ---- */

static void test_round_trip(void **state)
{
    (void)state;
    struct k3_text text;
    struct k3_err err;
    struct k3_manifest m;
    good_manifest(&text);
    assert_int_equal(decode_manifest(text.data, text.bytes, &err), 0);
    k3_err_init(&err);
    assert_int_equal(k3_manifest_decode("x", text.data, text.bytes, &m, &err), 0);
    assert_int_equal(m.file_count, 2);
    assert_string_equal(m.files[1].name, "tokenizer.model");
    assert_int_equal(m.source_count, 2);
    assert_string_equal(m.plan_text, PLAN_TEXT);
    assert_int_equal(m.plan_bytes, sizeof PLAN_TEXT - 1);
    assert_string_equal(m.tool, "k3-shard 0.1.0");
    assert_int_equal(m.rank_count, 2);
    assert_int_equal(m.ranks[1].rank, 2);
    assert_int_equal(m.ranks[1].part_count, 2);
    assert_int_equal(m.ranks[1].image_bytes, 4 * UNIT);
    assert_int_equal(m.ranks[1].parts[1].part, 12);
    assert_int_equal(m.ranks[1].parts[1].rank, 2);
    assert_string_equal(m.ranks[1].units.name, "model-rank-2.units");
    uint8_t wanted[K3_DIGEST_BYTES];
    fill_digest(wanted, 2 * 10 + 12 + 100);
    assert_memory_equal(m.ranks[1].parts[1].tree, wanted, sizeof wanted);
    k3_manifest_fini(&m);
    k3_manifest_fini(&m);
    k3_text_fini(&text);
}

/* The order of members and the form, from FORMAT.md 8 alone. */
static void test_bytes(void **state)
{
    (void)state;
    struct k3_text text;
    good_manifest(&text);
    const char *at = text.data;
    static const char *const member[] = {
        "{\"files\":[{\"bytes\":10,\"name\":\"config.json\",\"sha256\":\"",
        "\"}],\"format\":\"k3-shards\",\"headers\":{\"bytes\":77,",
        "\"},\"plan\":" PLAN_TEXT ",\"plan_sha256\":\"",
        "\",\"ranks\":[{\"image_bytes\":1572864,\"parts\":[{\"bytes\":",
        "}],\"rank\":0,\"units\":{",
        "\"}}],\"sources\":[{",
        "\"}],\"tool\":\"k3-shard 0.1.0\",\"totals\":{\"image_bytes\":"
        "3670016,\"part_bytes\":5767168,\"parts\":4,\"ranks\":2},"
        "\"version\":0,\"~sha256\":\""};
    for (size_t i = 0; i < sizeof member / sizeof *member; i++) {
        at = strstr(at, member[i]);
        if (!at) {
            fail_msg("missing or out of order: %s", member[i]);
            return;
        }
        at += strlen(member[i]);
    }
    assert_int_equal(at + 64 + 3 - text.data, text.bytes);
    assert_string_equal(at + 64, "\"}\n");
    k3_text_fini(&text);
}

static void test_every_bit(void **state)
{
    (void)state;
    struct k3_text text;
    struct k3_err err;
    good_manifest(&text);
    for (size_t i = 0; i < text.bytes * 8; i++) {
        text.data[i / 8] = (char)(text.data[i / 8] ^ 1 << i % 8);
        assert_int_equal(decode_manifest(text.data, text.bytes, &err), K3_ECORRUPT);
        text.data[i / 8] = (char)(text.data[i / 8] ^ 1 << i % 8);
    }
    for (size_t bytes = 0; bytes < text.bytes; bytes++)
        assert_int_equal(decode_manifest(text.data, bytes, &err), K3_ECORRUPT);
    k3_text_put(&text, "\n", 1);
    assert_int_equal(decode_manifest(text.data, text.bytes, &err), K3_ECORRUPT);
    k3_text_fini(&text);
}

static void test_damage_message(void **state)
{
    (void)state;
    struct k3_text text;
    struct k3_err err;
    good_manifest(&text);
    text.data[40] = (char)(text.data[40] ^ 1);
    assert_int_equal(decode_manifest(text.data, text.bytes, &err), K3_ECORRUPT);
    assert_non_null(strstr(err.text, "k3-shards.json: its own digest does not match: the file was "
                                     "changed or damaged; wanted "));
    assert_non_null(strstr(err.text, "; restore it or convert again"));
    assert_string_equal(err.file, "k3-shards.json");
    k3_text_fini(&text);
}

/* A changed byte under a right digest: refused, or a manifest that encodes to the same bytes. */
static void test_every_byte_resealed(void **state)
{
    (void)state;
    static const char other[] = {' ', '0', '9',  '"',  '\\',   '{', ']',
                                 ',', 'Z', '\n', 0x7f, '\xc3', 0};
    struct k3_text text;
    struct k3_err err;
    good_manifest(&text);
    char *copy = malloc(text.bytes + 1);
    assert_non_null(copy);
    for (size_t i = 0; i < text.bytes - 67; i++)
        for (size_t k = 0; k < sizeof other; k++) {
            memcpy(copy, text.data, text.bytes + 1);
            copy[i] = other[k];
            reseal(copy, text.bytes, k % 2);
            decode_manifest(copy, text.bytes, &err);
        }
    free(copy);
    k3_text_fini(&text);
}

static const struct bad bad_manifests[] = {
    /* unknown, missing, duplicate and misplaced members, at every level */
    {"{\"files\":", "{\"extra\":1,\"files\":", K3_EFORMAT},
    {"2},\"version\":0", "2},\"version\":0,\"z\":1", K3_EFORMAT},
    {"2},\"version\":0", "2}", K3_EFORMAT},
    {"2},\"version\":0", "2},\"version\":0,\"version\":0", K3_EFORMAT},
    {"\"format\":\"k3-shards\",", "", K3_EFORMAT},
    {"\"format\":\"k3-shards\"", "\"format\":\"k3-record\"", K3_EFORMAT},
    {"\"format\":\"k3-shards\"", "\"format\":7", K3_EFORMAT},
    {",\"tool\":\"k3-shard 0.1.0\"", "", K3_EFORMAT},
    {"{\"bytes\":10,", "{", K3_EFORMAT},
    {"{\"bytes\":10,", "{\"bytes\":10,\"bytes\":10,", K3_EFORMAT},
    {"{\"bytes\":10,", "{\"a\":1,\"bytes\":10,", K3_EFORMAT},
    {"\"bytes\":10,\"name\":\"config.json\"", "\"name\":\"config.json\",\"bytes\":10", K3_EFORMAT},
    {"\"bytes\":77,", "", K3_EFORMAT},
    {"\"data_offset\":524288,", "", K3_EFORMAT},
    {"\"rank\":0,", "\"rank\":0,\"rbnk\":0,", K3_EFORMAT},
    {"\"parts\":4,", "\"parts\":4,\"q\":4,", K3_EFORMAT},
    /* versions */
    {"2},\"version\":0", "2},\"version\":1", K3_EVERSION},
    {"2},\"version\":0", "2},\"version\":1,\"what\":{\"ever\":[]}", K3_EVERSION},
    {"2},\"version\":0", "2},\"version\":\"0\"", K3_EFORMAT},
    {"2},\"version\":0", "2},\"version\":00", K3_EFORMAT},
    /* other spellings of the same */
    {"2},\"version\":0", "2}, \"version\":0", K3_EFORMAT},
    {"\"k3-shard 0.1.0\"", "\"k3-shard 0\\u002e1.0\"", K3_EFORMAT},
    {"\"bytes\":77", "\"bytes\":77.0", K3_EFORMAT},
    {"\"bytes\":77", "\"bytes\":7e1", K3_EFORMAT},
    {"\"bytes\":77", "\"bytes\":-77", K3_EFORMAT},
    {"\"bytes\":77", "\"bytes\":true", K3_EFORMAT},
    {"\"bytes\":77", "\"bytes\":null", K3_EFORMAT},
    {"\"bytes\":77", "\"bytes\":9007199254740992", K3_ELIMIT},
    {"\"bytes\":77", "\"bytes\":18446744073709551616", K3_EFORMAT},
    /* names */
    {"\"config.json\"", "\"../x\"", K3_EFORMAT},
    {"\"config.json\"", "\"a/b\"", K3_EFORMAT},
    {"\"config.json\"", "\".hidden\"", K3_EFORMAT},
    {"\"config.json\"", "\"\"", K3_EFORMAT},
    {"\"config.json\"", "\"c d\"", K3_EFORMAT},
    {"\"config.json\"", "\"\\u00e9\"", K3_EFORMAT},
    {"\"config.json\"", "\"tokenizer.model\"", K3_EFORMAT}, /* twice */
    {"\"config.json\"", "\"zebra\"", K3_EFORMAT},           /* order */
    {"\"config.json\"", "\"k3-shards.json\"", K3_EFORMAT},
    {"\"config.json\"", "\"a.safetensors\"", K3_EFORMAT},
    {"\"config.json\"", "\"a.index.json\"", K3_EFORMAT},
    {"\"config.json\"", "\"model-rank-0.units\"", K3_EFORMAT},
    {"\"tokenizer.model\"", "\"source-headers.zst\"", K3_EFORMAT},
    {"\"source-headers.zst\"", "\"source-headers.zs\"", K3_EFORMAT},
    {"model-00002-of", "model-00001-of", K3_EFORMAT},
    {"model-00002-of", "model-00000-of", K3_EFORMAT},
    {"model-00002-of", "../el-00002-of", K3_EFORMAT},
    {"model-rank-0-part-12", "model-rank-0-part-012", K3_EFORMAT},
    {"model-rank-0-part-12", "model-rank-0-part-4096", K3_EFORMAT},
    {"model-rank-0-part-12", "model-rank-0-part-99999999999", K3_EFORMAT},
    {"model-rank-0-part-12", "model-rank-0-part-0", K3_EFORMAT},
    {"model-rank-0-part-12", "model-rank-1-part-12", K3_EFORMAT},
    {"model-rank-0-part-12.safetensors", "model-rank-0-part-12.safetensor", K3_EFORMAT},
    {"model-rank-0-part-12", "../el-rank-0-part-12", K3_EFORMAT},
    {"model-rank-0.units", "model-rank-1.units", K3_EFORMAT},
    {"model-rank-0.units", "../model-rank-0.units", K3_EFORMAT},
    /* sizes */
    {"\"bytes\":10,", "\"bytes\":1073741825,", K3_ELIMIT},
    {"{\"bytes\":1572864,", "{\"bytes\":1572865,", K3_EFORMAT},
    {"{\"bytes\":1572864,", "{\"bytes\":2097152,", K3_EFORMAT},
    {"{\"bytes\":1572864,", "{\"bytes\":524288,", K3_EFORMAT},
    {"{\"bytes\":1572864,", "{\"bytes\":0,", K3_EFORMAT},
    {"{\"bytes\":1572864,", "{\"bytes\":9007199254216704,", K3_EFORMAT},
    {"\"data_offset\":524288", "\"data_offset\":0", K3_EFORMAT},
    {"\"data_offset\":524288", "\"data_offset\":4096", K3_EFORMAT},
    {"\"data_offset\":524288", "\"data_offset\":1048576", K3_EFORMAT},
    {"\"data_offset\":524288", "\"data_offset\":1572864", K3_EFORMAT},
    {"{\"image_bytes\":1572864,\"parts\":[", "{\"image_bytes\":1572863,\"parts\":[", K3_EFORMAT},
    {"\"units\":{\"bytes\":288", "\"units\":{\"bytes\":256", K3_EFORMAT},
    {"\"units\":{\"bytes\":288", "\"units\":{\"bytes\":320", K3_EFORMAT},
    {"\"image_bytes\":3670016", "\"image_bytes\":3670017", K3_EFORMAT},
    {"\"part_bytes\":5767168", "\"part_bytes\":5767169", K3_EFORMAT},
    {"\"parts\":4", "\"parts\":5", K3_EFORMAT},
    {"\"ranks\":2", "\"ranks\":1", K3_EFORMAT},
    {"\"rank\":0,", "\"rank\":1,", K3_EFORMAT},
    {"\"rank\":0,", "\"rank\":4096,", K3_ELIMIT},
    /* digests, plan, tool, types */
    {",\"sources\":[{\"bytes\":1234567,", ",\"sources\":[{\"bytes\":[],", K3_EFORMAT},
    {",\"plan_sha256\":\"", ",\"plan_sha256\":\"0", K3_EFORMAT},
    {"\"format\":\"k3-plan\"", "\"format\": \"k3-plan\"", K3_EFORMAT},
    {"\"headers\":[2,3]", "\"headers\":[2,3.5]", K3_EFORMAT},
    {"\"headers\":[2,3]", "\"headers\":[2,null]", K3_EFORMAT},
    {"\"headers\":[2,3]",
     "\"headers\":[2,[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[3]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
     K3_ELIMIT},
    {"\"config\":{\"a.b\":1}", "\"zonfig\":{\"a.b\":1}", K3_EFORMAT},
    {"\"plan\":{", "\"plan\":[],\"plam\":{", K3_EFORMAT},
    {"k3-shard 0.1.0", "k3-shard ", K3_EFORMAT},
    {"k3-shard 0.1.0", "other 0.1.0", K3_EFORMAT},
    {"k3-shard 0.1.0", "k3-shard 0 1", K3_EFORMAT},
    {"k3-shard 0.1.0", "k3-shard \\t", K3_EFORMAT},
    {"{\"files\":[", "{\"files\":[1,", K3_EFORMAT},
    {"{\"files\":[", "{\"files\":[[],", K3_EFORMAT},
    {"\"headers\":{\"bytes\"", "\"headers\":[\"bytes\"", K3_EFORMAT},
};

static void test_bad_manifests(void **state)
{
    (void)state;
    struct k3_text good;
    good_manifest(&good);
    for (size_t i = 0; i < sizeof bad_manifests / sizeof *bad_manifests; i++) {
        const struct bad *bad = &bad_manifests[i];
        struct k3_err err;
        size_t bytes;
        char *text = edit(&good, good.bytes, bad->from, bad->to, &bytes);
        int rc = decode_manifest(text, bytes, &err);
        if (rc != bad->rc)
            fail_msg("%s -> %s: wanted %s, found %s: %s", bad->from, bad->to, k3_rc_name(bad->rc),
                     k3_rc_name(rc), err.text);
        free(text);
    }
    k3_text_fini(&good);
}

static void test_plan_digest(void **state)
{
    (void)state;
    struct k3_text good;
    struct k3_err err;
    good_manifest(&good);
    char *digits = strstr(good.data, "\"plan_sha256\":\"") + 15;
    memset(digits, '0', 64);
    reseal(good.data, good.bytes, false);
    assert_int_equal(decode_manifest(good.data, good.bytes, &err), K3_EFORMAT);
    assert_non_null(strstr(err.text, "plan_sha256"));
    digits[0] = 'A'; /* hex, but not lowercase */
    reseal(good.data, good.bytes, false);
    assert_int_equal(decode_manifest(good.data, good.bytes, &err), K3_EFORMAT);
    k3_text_fini(&good);
}

static void test_size_limit(void **state)
{
    (void)state;
    struct k3_err err;
    struct k3_manifest m;
    size_t bytes = (size_t)K3_MANIFEST_BYTES_MAX + 1;
    char *text = calloc(1, bytes);
    assert_non_null(text);
    k3_err_init(&err);
    assert_int_equal(k3_manifest_decode("x", text, bytes, &m, &err), K3_ELIMIT);
    k3_err_init(&err);
    assert_int_equal(k3_manifest_decode("x", text, bytes - 1, &m, &err), K3_ECORRUPT);
    struct k3_record r;
    k3_err_init(&err);
    assert_int_equal(k3_record_decode("x", text, bytes, &r, &err), K3_ELIMIT);
    k3_err_init(&err);
    assert_int_equal(k3_record_decode("x", text, 0, &r, &err), K3_ECORRUPT);
    free(text);
}

/* More entries than their limit, made by encode's own pieces. */
static void test_count_limit(void **state)
{
    (void)state;
    struct set s;
    struct k3_text text;
    struct k3_err err;
    memset(&s, 0, sizeof s);
    make_manifest(&s);
    enum { COUNT = K3_FILE_COUNT_MAX + 1 };
    struct k3_file_entry *files = calloc(COUNT, sizeof *files);
    char(*names)[16] = calloc(COUNT, sizeof *names);
    assert_non_null(files);
    assert_non_null(names);
    for (unsigned i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "f%05u", i);
        files[i] = file_entry(names[i], i, i);
    }
    s.manifest.sources = files;
    s.manifest.source_count = COUNT - 1;
    encode_manifest(&s.manifest, &text);
    assert_int_equal(decode_manifest(text.data, text.bytes, &err), 0);
    size_t bytes;
    char *more = edit(&text, text.bytes, "\"sources\":[",
                      "\"sources\":[{\"bytes\":0,\"name\":\"a\",\"sha256\":\"" ZEROS "\"},",
                      &bytes);
    assert_int_equal(decode_manifest(more, bytes, &err), K3_ELIMIT);
    free(more);
    text.bytes = 0;
    s.manifest.source_count = COUNT;
    k3_err_init(&err);
    assert_int_equal(k3_manifest_encode(&s.manifest, &text, &err), K3_ELIMIT);
    k3_text_fini(&text);
    free(names);
    free(files);
}

/* Encode refuses what decode would refuse. */
static void test_encode_refuses(void **state)
{
    (void)state;
    for (int i = 0; i < 13; i++) {
        struct set s;
        struct k3_text text;
        struct k3_err err;
        memset(&s, 0, sizeof s);
        make_manifest(&s);
        struct k3_manifest *m = &s.manifest;
        switch (i) {
        case 0:
            s.files[0].name = (char *)(uintptr_t) "../x";
            break;
        case 1:
            m->rank_count = 0;
            break;
        case 2:
            s.ranks[1].part_count = 0;
            break;
        case 3:
            s.ranks[1].rank = 0;
            break;
        case 4:
            s.parts[0][1].part = 0;
            break;
        case 5:
            s.parts[0][1].data_offset = 2 * UNIT;
            break;
        case 6:
            s.ranks[0].image_bytes++;
            break;
        case 7:
            s.ranks[0].units.bytes++;
            break;
        case 8:
            m->tool = NULL;
            break;
        case 9:
            m->plan_text = NULL;
            break;
        case 10:
            m->plan_bytes--;
            break;
        case 11:
            m->source_count = 0;
            break;
        default:
            m->headers.bytes = (uint64_t)1 << 53;
            break;
        }
        k3_err_init(&err);
        k3_text_init(&text);
        assert_int_not_equal(k3_manifest_encode(m, &text, &err), 0);
        assert_int_not_equal(err.rc, 0);
        k3_text_fini(&text);
    }
}

/* ---- record ---- */

static size_t head_bytes_of(const struct k3_text *record)
{
    const char *line_feed = memchr(record->data, '\n', record->bytes);
    assert_non_null(line_feed);
    return (size_t)(line_feed - record->data) + 1;
}

static void test_record_round_trip(void **state)
{
    (void)state;
    struct set s;
    struct k3_text text;
    struct k3_err err;
    struct k3_record r;
    memset(&s, 0, sizeof s);
    make_manifest(&s);
    make_record(&s);
    encode_record(&s.record, &text);
    assert_int_equal(text.bytes - head_bytes_of(&text), 12 * 32 + 2 * 72);
    assert_int_equal(decode_record(text.data, text.bytes, &err), 0);
    k3_err_init(&err);
    assert_int_equal(k3_record_decode("x", text.data, text.bytes, &r, &err), 0);
    assert_int_equal(r.file_count, 3);
    assert_int_equal(r.files[1].bytes, (uint64_t)5 << 30);
    assert_int_equal(r.part_count, 3);
    assert_memory_equal(r.parts, s.record_parts, sizeof s.record_parts);
    assert_int_equal(r.unit_count, 12);
    assert_memory_equal(r.unit_digests, s.unit_digests, 12 * 32);
    assert_true(r.cast_count == 2 && r.casts[1].slot == 9 && r.casts[1].err2 == 0.25);
    assert_string_equal(r.token, "0123456789abcdef");
    assert_memory_equal(r.plan_digest, s.record.plan_digest, 32);
    k3_record_fini(&r);
    k3_text_fini(&text);
    /* An item of which this machine's ranks hold no part. */
    s.record.item = 7;
    s.record.file_count = s.record.part_count = s.record.cast_count = 0;
    s.record.unit_count = 0;
    s.record.unit_digests = NULL;
    encode_record(&s.record, &text);
    assert_int_equal(decode_record(text.data, text.bytes, &err), 0);
    k3_text_fini(&text);
}

static void test_record_every_bit(void **state)
{
    (void)state;
    struct k3_text text;
    struct k3_err err;
    good_record(&text);
    for (size_t i = 0; i < text.bytes * 8; i++) {
        text.data[i / 8] = (char)(text.data[i / 8] ^ 1 << i % 8);
        assert_int_equal(decode_record(text.data, text.bytes, &err), K3_ECORRUPT);
        text.data[i / 8] = (char)(text.data[i / 8] ^ 1 << i % 8);
    }
    for (size_t bytes = 0; bytes < text.bytes; bytes++)
        assert_int_equal(decode_record(text.data, bytes, &err), K3_ECORRUPT);
    for (int i = 0; i < 64; i++) {
        k3_text_put(&text, "\0", 1);
        assert_int_equal(decode_record(text.data, text.bytes, &err), K3_ECORRUPT);
    }
    k3_text_fini(&text);
}

static const struct bad bad_records[] = {
    {",\"files\":", ",\"extra\":1,\"files\":", K3_EFORMAT},
    {"\"cast_count\":2,", "", K3_EFORMAT},
    {"\"cast_count\":2", "\"cast_count\":1", K3_ECORRUPT},
    {"\"cast_count\":2", "\"cast_count\":4194305", K3_ELIMIT},
    {"\"casts_sha256\":\"", "\"casts_sha256\":\"0", K3_EFORMAT},
    {",\"version\":0", ",\"version\":0,\"z\":1", K3_EFORMAT},
    {",\"version\":0", ",\"version\":0,\"version\":0", K3_EFORMAT},
    {",\"version\":0", ",\"version\":1", K3_EVERSION},
    {"\"format\":\"k3-record\"", "\"format\":\"k3-shards\"", K3_EFORMAT},
    {"\"item\":0,", "", K3_EFORMAT},
    {"\"item\":0", "\"item\":1", K3_EFORMAT}, /* files outside item 0 */
    {"\"item\":0", "\"item\":4096", K3_ELIMIT},
    {"\"token\":\"0123456789abcdef\"", "\"token\":\"0123456789abcde\"", K3_EFORMAT},
    {"\"token\":\"0123456789abcdef\"", "\"token\":\"0123456789abcdef0\"", K3_EFORMAT},
    {"\"token\":\"0123456789abcdef\"", "\"token\":\"0123456789ABCDEF\"", K3_EFORMAT},
    {"\"token\":\"0123456789abcdef\"", "\"token\":\"../3456789abcdef\"", K3_EFORMAT},
    {"\"config.json\"", "\"../x\"", K3_EFORMAT},
    {"\"config.json\"", "\"z\"", K3_EFORMAT},
    {"\"tokenizer.model\"", "\"t.safetensors\"", K3_EFORMAT},
    {"\"bytes\":10,", "\"bytes\":1073741825,", K3_ELIMIT},
    {"model-00002-of", "model-00001-of", K3_EFORMAT},
    {"model-rank-0-part-12", "model-rank-0-part-0", K3_EFORMAT},
    {"model-rank-0-part-12", "model-rank-3-part-12", K3_EFORMAT},
    {"model-rank-2-part-0", "model-rank-2-part-00", K3_EFORMAT},
    {"{\"bytes\":1572864,", "{\"bytes\":1572865,", K3_EFORMAT},
    {"{\"bytes\":1572864,", "{\"bytes\":2097152,", K3_ECORRUPT}, /* more digests wanted */
    {"\"data_offset\":524288", "\"data_offset\":0", K3_EFORMAT},
    {"\"tree\":\"", "\"tree\":\"0", K3_EFORMAT},
    {"\"units_sha256\":\"", "\"units_sha256\":\"0", K3_EFORMAT},
    {",\"version\":0", ", \"version\":0", K3_EFORMAT},
};

static void test_bad_records(void **state)
{
    (void)state;
    struct k3_text good;
    good_record(&good);
    for (size_t i = 0; i < sizeof bad_records / sizeof *bad_records; i++) {
        const struct bad *bad = &bad_records[i];
        struct k3_err err;
        size_t bytes;
        char *text = edit(&good, head_bytes_of(&good), bad->from, bad->to, &bytes);
        int rc = decode_record(text, bytes, &err);
        if (rc != bad->rc)
            fail_msg("%s -> %s: wanted %s, found %s: %s", bad->from, bad->to, k3_rc_name(bad->rc),
                     k3_rc_name(rc), err.text);
        free(text);
    }
    k3_text_fini(&good);
}

/* Right digests of text and of unit digests, but not of the tree: a child does not vouch for
 * itself. */
static void test_record_tree(void **state)
{
    (void)state;
    struct k3_text text;
    struct k3_err err;
    good_record(&text);
    size_t head_bytes = head_bytes_of(&text);
    text.data[head_bytes + 12 * 32 - 1] = (char)(text.data[head_bytes + 12 * 32 - 1] ^ 1);
    put_hex(text.data + head_bytes, 12 * 32, strstr(text.data, "units_sha256\":\"") + 15);
    reseal(text.data, head_bytes, false);
    assert_int_equal(decode_record(text.data, text.bytes, &err), K3_ECORRUPT);
    assert_non_null(strstr(err.text, "model-rank-2-part-0.safetensors"));
    k3_text_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),          cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_every_bit),           cmocka_unit_test(test_damage_message),
        cmocka_unit_test(test_every_byte_resealed), cmocka_unit_test(test_bad_manifests),
        cmocka_unit_test(test_plan_digest),         cmocka_unit_test(test_size_limit),
        cmocka_unit_test(test_count_limit),         cmocka_unit_test(test_encode_refuses),
        cmocka_unit_test(test_record_round_trip),   cmocka_unit_test(test_record_every_bit),
        cmocka_unit_test(test_bad_records),         cmocka_unit_test(test_record_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
