/* Purpose: fuzz target: the record of an item.  Each input is read as it is and with one
 * digest after the other put right, so that what lies behind them is reached.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: an accepted record, encoded, is the text; it has a digest for each unit of
 * its parts; its casts are such that a report can be made of them. */
#include "fuzz.h"

#include "cast_row.h"
#include "manifest.h"
#include "tree.h"

#include <stdlib.h>
#include <string.h>

static void decode(const char *text, size_t bytes)
{
    struct k3_record record;
    struct k3_text again;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_record_decode("fuzz", text, bytes, &record, &err);
    fuzz_check_err(rc, &err, bytes);
    if (rc) {
        FUZZ_CHECK(k3_is_zero(&record, sizeof record)); /* left empty */
        return;
    }
    k3_text_init(&again);
    FUZZ_CHECK(k3_record_encode(&record, &again, &err) == 0);
    FUZZ_CHECK(again.bytes == bytes && !memcmp(again.data, text, bytes));
    k3_text_fini(&again);
    uint64_t unit_count = 0;
    for (uint32_t i = 0; i < record.part_count; i++)
        unit_count += record.parts[i].bytes / K3_UNIT_BYTES;
    FUZZ_CHECK(unit_count == record.unit_count);
    FUZZ_CHECK(strlen(record.token) == K3_TOKEN_BYTES);
    for (uint32_t i = 0; i < record.cast_count; i++) {
        const struct k3_cast_row *row = &record.casts[i];
        FUZZ_CHECK(k3_cast_row_lossless(row) || !(k3_cast_row_sqnr_db(row) > 1e9));
        FUZZ_CHECK(!k3_cast_row_is_low(row) || !k3_cast_row_lossless(row));
        FUZZ_CHECK(!i || row[-1].slot < row->slot);
    }
    k3_record_fini(&record);
}

static uint64_t number_at(const char *p)
{
    uint64_t value = 0;
    for (int i = 0; i < 15 && p[i] >= '0' && p[i] <= '9'; i++)
        value = value * 10 + (uint64_t)(p[i] - '0');
    return value;
}

/* Each part {"bytes":N,...,"tree":"..."} gets the tree digest of its unit digests. */
static void fix_trees(struct fuzz_span head, struct fuzz_span raw)
{
    static const char begin[] = "{\"bytes\":";
    struct k3_sha256 *sha;
    size_t used = 0;
    FUZZ_CHECK(k3_sha256_open(&sha, NULL) == 0);
    for (char *at = fuzz_find(head, begin); at; at = fuzz_find(head, begin)) {
        at += sizeof begin - 1;
        head.bytes -= (size_t)(at - head.data);
        head.data = at;
        const char *end = memchr(at, '}', head.bytes);
        struct fuzz_span object = {at, end ? (size_t)(end - at) : 0};
        char *tree = fuzz_find(object, "\"tree\":\"");
        uint64_t bytes = number_at(at), unit_count = bytes / K3_UNIT_BYTES;
        uint8_t digest[K3_DIGEST_BYTES];
        char hex[K3_HEX_BYTES];
        if (!tree || !unit_count || bytes % K3_UNIT_BYTES ||
            unit_count > (raw.bytes - used) / K3_DIGEST_BYTES ||
            end - tree < (ptrdiff_t)(8 + 2 * K3_DIGEST_BYTES))
            continue;
        k3_tree_of_units(sha, (const uint8_t *)raw.data + used, unit_count, bytes, digest);
        k3_hex_encode(digest, sizeof digest, hex);
        memcpy(tree + 8, hex, 2 * sizeof digest);
        used += (size_t)unit_count * K3_DIGEST_BYTES;
    }
    k3_sha256_close(sha);
}

/* What follows the head, as the head divides it: unit digests, then casts. */
static void divide(struct fuzz_span head, struct fuzz_span *units, struct fuzz_span *casts)
{
    static const char begin[] = "\"cast_count\":";
    const char *at = fuzz_find(head, begin);
    uint64_t bytes = 0;
    if (at)
        bytes = number_at(at + sizeof begin - 1) * sizeof(struct k3_disk_cast_row);
    if (bytes > units->bytes)
        bytes = 0;
    *casts = (struct fuzz_span){units->data + (units->bytes - bytes), (size_t)bytes};
    units->bytes -= (size_t)bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    decode((const char *)data, bytes);
    char *text = fuzz_string(data, bytes);
    char *line_feed = memchr(text, '\n', bytes);
    if (line_feed) {
        struct fuzz_span head = {text, (size_t)(line_feed - text) + 1};
        struct fuzz_span raw = {line_feed + 1, bytes - head.bytes}, casts;
        divide(head, &raw, &casts);
        fuzz_fix_seal(head);
        decode(text, bytes);
        fuzz_fix_digest(head, "casts_sha256", casts);
        fuzz_fix_digest(head, "units_sha256", raw);
        fuzz_fix_seal(head);
        decode(text, bytes);
        fix_trees(head, raw);
        fuzz_fix_seal(head);
        decode(text, bytes);
    }
    free(text);
    return 0;
}
