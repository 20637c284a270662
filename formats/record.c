/* Purpose: the record of a finished item, encode and strict decode (FORMAT.md 9).
 * Owns: the arrays and strings of a k3_record, freed by k3_record_fini.
 * Threads: any; a struct belongs to one thread while it is filled.
 * Errors: K3_ECORRUPT, K3_EFORMAT, K3_EVERSION, K3_ELIMIT, K3_ENOMEM.
 * Invariants: as for the manifest; and the tree digest of every part is that of its unit digests,
 * so sealing needs no look at the part itself; on failure the struct is left empty. */
#include "cast_row.h"
#include "manifest_parts.h"
#include "tree.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_NAME    "k3-record"
#define NEXT_STEP      "remove it and run convert again, which repeats the item"
#define ITEM_COUNT_MAX K3_PART_COUNT_MAX /* an item has a part number of its own: its lowest */
#define CAST_COUNT_MAX (4u << 20)        /* of all items: a plan has no more tensors */

/* Digests of what follows the head. */
struct raw_digests {
    uint8_t casts[K3_DIGEST_BYTES], units[K3_DIGEST_BYTES];
};

static int check_token(const struct k3_canon *c, const char *token)
{
    uint8_t bytes[K3_TOKEN_BYTES / 2];
    size_t digit_count = strnlen(token, K3_TOKEN_BYTES + 1);
    if (digit_count == K3_TOKEN_BYTES && k3_hex_decode(token, sizeof bytes, bytes))
        return 0;
    char shown[K3_SHOWN_BYTES];
    return k3_canon_fail(c, K3_EFORMAT, -1,
                         "wanted 16 lowercase hexadecimal digits as \"token\", found \"%s\"",
                         k3_shown(token, digit_count, shown));
}

/* Order and form of the parts; the count of their units. */
static int check_parts(const struct k3_canon *c, const struct k3_record *r, uint64_t *unit_count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->part_count; i++) {
        const struct k3_part_entry *part = &r->parts[i];
        int rc = k3_canon_check_part(c, part);
        if (rc)
            return rc;
        if (i > 0 && (part[-1].rank > part->rank ||
                      (part[-1].rank == part->rank && part[-1].part >= part->part)))
            return k3_canon_fail(c, K3_EFORMAT, -1,
                                 "wanted parts by rank and part, each once, found rank %" PRIu32
                                 " part %" PRIu32 " behind rank %" PRIu32 " part %" PRIu32,
                                 part->rank, part->part, part[-1].rank, part[-1].part);
        bytes += part->bytes; /* both below 2^53 */
        if (bytes > K3_CANON_INTEGER_MAX)
            return k3_canon_fail(c, K3_ELIMIT, -1,
                                 "wanted parts of less than 2^53 bytes, found more");
    }
    *unit_count = bytes / K3_UNIT_BYTES;
    return 0;
}

/* Order and form of the casts. */
static int check_casts(const struct k3_canon *c, const struct k3_record *r)
{
    for (uint32_t i = 0; i < r->cast_count; i++) {
        const char *wanted = i > 0 && r->casts[i - 1].slot >= r->casts[i].slot
                                 ? "casts by slot, each once"
                                 : k3_cast_row_check(&r->casts[i]);
        if (wanted)
            return k3_canon_fail(c, K3_EFORMAT, -1,
                                 "cast %" PRIu32 " (slot %" PRIu32 "): wanted %s, found others", i,
                                 r->casts[i].slot, wanted);
    }
    return 0;
}

/* Every rule of the head.  Computes how many unit digests follow it. */
static int check_record(const struct k3_canon *c, const struct k3_record *r, uint64_t *unit_count)
{
    if (r->item >= ITEM_COUNT_MAX)
        return k3_canon_fail(c, K3_ELIMIT, -1, "wanted an item below %u, found %" PRIu32,
                             ITEM_COUNT_MAX, r->item);
    if (r->item > 0 && r->file_count > 0)
        return k3_canon_fail(c, K3_EFORMAT, -1,
                             "wanted no \"files\" outside item 0, found %" PRIu32
                             " in item %" PRIu32,
                             r->file_count, r->item);
    int rc = k3_canon_check_files(c, "files", r->files, r->file_count, K3_CANON_INTEGER_MAX);
    for (uint32_t i = 0; !rc && i < r->file_count; i++) {
        if (strcmp(r->files[i].name, K3_HEADERS_NAME) == 0)
            continue;
        rc = k3_canon_check_copied(c, &r->files[i]);
        if (!rc)
            rc = k3_canon_check_files(c, "files", &r->files[i], 1, K3_COPIED_BYTES_MAX);
    }
    if (!rc)
        rc = check_parts(c, r, unit_count);
    if (!rc)
        rc = k3_canon_check_files(c, "sources", r->sources, r->source_count, K3_CANON_INTEGER_MAX);
    if (!rc)
        rc = check_token(c, r->token);
    if (!rc)
        rc = k3_canon_check_tool(c, r->tool);
    return rc;
}

/* Each part's tree digest is that of its unit digests. */
static int check_trees(const struct k3_canon *c, struct k3_sha256 *sha, const struct k3_record *r)
{
    const uint8_t *units = r->unit_digests;
    for (uint32_t i = 0; i < r->part_count; i++) {
        const struct k3_part_entry *part = &r->parts[i];
        uint64_t unit_count = part->bytes / K3_UNIT_BYTES;
        uint8_t tree[K3_DIGEST_BYTES];
        k3_tree_of_units(sha, units, unit_count, part->bytes, tree);
        if (memcmp(tree, part->tree, sizeof tree) != 0) {
            char name[K3_NAME_BYTES_MAX + 1], wanted[K3_HEX_BYTES], found[K3_HEX_BYTES];
            k3_part_name(part->rank, part->part, name);
            k3_hex_encode(tree, sizeof tree, wanted);
            k3_hex_encode(part->tree, sizeof tree, found);
            return k3_canon_fail(c, K3_ECORRUPT, -1,
                                 "%s: wanted tree digest %s (of its unit digests), found %s", name,
                                 wanted, found);
        }
        units += unit_count * K3_DIGEST_BYTES;
    }
    return 0;
}

/* Append a record that was judged before. */
static int put_record(const struct k3_canon *c, const struct k3_record *r,
                      const struct raw_digests *digests, struct k3_text *out)
{
    size_t start = out->bytes;
    k3_text_puts(out, "{\"cast_count\":");
    k3_text_putu(out, r->cast_count);
    k3_text_puts(out, ",\"casts_sha256\":");
    k3_canon_put_digest(out, digests->casts);
    k3_text_puts(out, ",\"files\":");
    k3_canon_put_files(out, r->files, r->file_count);
    k3_text_puts(out, ",\"format\":\"" FORMAT_NAME "\",\"item\":");
    k3_text_putu(out, r->item);
    k3_text_puts(out, ",\"parts\":");
    k3_canon_put_parts(out, r->parts, r->part_count);
    k3_text_puts(out, ",\"plan_sha256\":");
    k3_canon_put_digest(out, r->plan_digest);
    k3_text_puts(out, ",\"sources\":");
    k3_canon_put_files(out, r->sources, r->source_count);
    k3_text_puts(out, ",\"token\":");
    k3_text_put_json(out, r->token);
    k3_text_puts(out, ",\"tool\":");
    k3_text_put_json(out, r->tool);
    k3_text_puts(out, ",\"units_sha256\":");
    k3_canon_put_digest(out, digests->units);
    int rc = k3_canon_seal(c, out, start);
    if (rc)
        return rc;
    if (out->bytes - start > K3_MANIFEST_BYTES_MAX)
        return k3_canon_fail(c, K3_ELIMIT, -1, "wanted a head of at most %u bytes, found %zu",
                             K3_MANIFEST_BYTES_MAX, out->bytes - start);
    if (r->unit_count > 0)
        k3_text_put(out, (const char *)r->unit_digests, (size_t)r->unit_count * K3_DIGEST_BYTES);
    for (uint32_t i = 0; i < r->cast_count; i++) {
        struct k3_disk_cast_row disk;
        k3_cast_row_encode(&r->casts[i], &disk);
        k3_text_put(out, (const char *)&disk, sizeof disk);
    }
    return k3_text_check(out, c->err);
}

static void digest_casts(struct k3_sha256 *sha, const struct k3_record *r,
                         uint8_t digest[K3_DIGEST_BYTES])
{
    k3_sha256_begin(sha);
    for (uint32_t i = 0; i < r->cast_count; i++) {
        struct k3_disk_cast_row disk;
        k3_cast_row_encode(&r->casts[i], &disk);
        k3_sha256_update(sha, &disk, sizeof disk);
    }
    k3_sha256_final(sha, digest);
}

int k3_record_encode(const struct k3_record *record, struct k3_text *out, struct k3_err *err)
{
    struct k3_canon c = {"item record", "this is a bug of the program, report it", err, NULL};
    uint64_t unit_count = 0;
    int rc = check_record(&c, record, &unit_count);
    if (rc)
        return rc;
    if (unit_count != record->unit_count)
        return k3_canon_fail(&c, K3_EFORMAT, -1,
                             "wanted %" PRIu64 " unit digests for its parts, found %" PRIu64,
                             unit_count, record->unit_count);
    struct k3_sha256 *sha;
    rc = check_casts(&c, record);
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (rc)
        return rc;
    struct raw_digests digests;
    k3_sha256_of(sha, record->unit_digests, (size_t)unit_count * K3_DIGEST_BYTES, digests.units);
    digest_casts(sha, record, digests.casts);
    rc = check_trees(&c, sha, record);
    k3_sha256_close(sha);
    return rc ? rc : put_record(&c, record, &digests, out);
}

static int read_token(struct k3_canon *c, struct k3_record *r)
{
    char *token = NULL;
    int rc = k3_canon_string(c, "token", &token);
    if (!rc)
        rc = check_token(c, token);
    if (!rc)
        memcpy(r->token, token, sizeof r->token);
    free(token);
    return rc;
}

static int read_head(struct k3_canon *c, struct k3_record *r, struct raw_digests *digests)
{
    struct k3_json_token token;
    int rc = k3_json_expect(c->json, K3_JSON_OBJECT_BEGIN, "the record", &token, c->err);
    if (!rc)
        rc = k3_canon_u32(c, "cast_count", CAST_COUNT_MAX, &r->cast_count);
    if (!rc)
        rc = k3_canon_digest(c, "casts_sha256", digests->casts);
    if (!rc)
        rc = k3_canon_files(c, "files", &r->files, &r->file_count);
    if (!rc)
        rc = k3_canon_skip(c, "format");
    if (!rc)
        rc = k3_canon_u32(c, "item", ITEM_COUNT_MAX - 1, &r->item);
    if (!rc)
        rc = k3_canon_parts(c, "parts", &r->parts, &r->part_count);
    if (!rc)
        rc = k3_canon_digest(c, "plan_sha256", r->plan_digest);
    if (!rc)
        rc = k3_canon_files(c, "sources", &r->sources, &r->source_count);
    if (!rc)
        rc = read_token(c, r);
    if (!rc)
        rc = k3_canon_string(c, "tool", &r->tool);
    if (!rc)
        rc = k3_canon_digest(c, "units_sha256", digests->units);
    if (!rc)
        rc = k3_canon_skip(c, "version");
    if (!rc)
        rc = k3_canon_skip(c, "~sha256");
    if (!rc)
        rc = k3_canon_object_end(c);
    return rc ? rc : k3_json_expect(c->json, K3_JSON_END, "the end of the record", &token, c->err);
}

/* What follows the head has the digest that was recorded. */
static int check_raw(const struct k3_canon *c, struct k3_sha256 *sha, const char *what,
                     const char *raw, size_t bytes, const uint8_t wanted_digest[K3_DIGEST_BYTES])
{
    uint8_t digest[K3_DIGEST_BYTES];
    char wanted[K3_HEX_BYTES], found[K3_HEX_BYTES];
    k3_sha256_of(sha, raw, bytes, digest);
    if (memcmp(digest, wanted_digest, sizeof digest) == 0)
        return 0;
    k3_hex_encode(wanted_digest, sizeof digest, wanted);
    k3_hex_encode(digest, sizeof digest, found);
    return k3_canon_fail(c, K3_ECORRUPT, -1,
                         "the digest of its %s does not match: wanted %s, found %s", what, wanted,
                         found);
}

static int read_casts(const struct k3_canon *c, const char *raw, struct k3_record *r)
{
    if (!r->cast_count)
        return 0;
    r->casts = malloc(r->cast_count * sizeof *r->casts);
    if (!r->casts)
        return k3_fail(c->err, K3_ENOMEM, "%s: no memory for %" PRIu32 " casts", c->file,
                       r->cast_count);
    for (uint32_t i = 0; i < r->cast_count; i++) {
        struct k3_disk_cast_row disk;
        memcpy(&disk, raw + i * sizeof disk, sizeof disk);
        const char *wanted = k3_cast_row_decode(&disk, &r->casts[i]);
        if (wanted)
            return k3_canon_fail(c, K3_EFORMAT, -1, "cast %" PRIu32 ": wanted %s, found others", i,
                                 wanted);
    }
    return check_casts(c, r);
}

/* What is behind the head: as many digests as the parts have units, then the casts; and the ones
 * that were recorded. */
static int read_raw(const struct k3_canon *c, const char *raw, size_t raw_bytes,
                    struct k3_record *r, const struct raw_digests *digests)
{
    const uint64_t casts_bytes = (uint64_t)r->cast_count * sizeof(struct k3_disk_cast_row);
    if (raw_bytes < casts_bytes || (raw_bytes - casts_bytes) % K3_DIGEST_BYTES != 0 ||
        (raw_bytes - casts_bytes) / K3_DIGEST_BYTES != r->unit_count)
        return k3_canon_fail(c, K3_ECORRUPT, -1,
                             "wanted %" PRIu64 " unit digests of 32 bytes and %" PRIu32
                             " casts of 72 behind the head, found %zu bytes",
                             r->unit_count, r->cast_count, raw_bytes);
    const size_t units_bytes = raw_bytes - (size_t)casts_bytes;
    struct k3_sha256 *sha;
    int rc = k3_sha256_open(&sha, c->err);
    if (rc)
        return rc;
    rc = check_raw(c, sha, "unit digests", raw, units_bytes, digests->units);
    if (!rc)
        rc = check_raw(c, sha, "casts", raw + units_bytes, (size_t)casts_bytes, digests->casts);
    if (rc)
        goto out;
    r->unit_digests = malloc(units_bytes + 1); /* + 1: never 0 bytes, whose malloc may be NULL */
    if (!r->unit_digests) {
        rc = k3_fail(c->err, K3_ENOMEM, "%s: no memory for %zu bytes of unit digests", c->file,
                     units_bytes);
        goto out;
    }
    memcpy(r->unit_digests, raw, units_bytes);
    rc = check_trees(c, sha, r);
    if (!rc)
        rc = read_casts(c, raw + units_bytes, r);
out:
    k3_sha256_close(sha);
    return rc;
}

/* Form and rules of head and digests, then the comparison with what encode makes of them. */
static int decode_sealed(struct k3_canon *c, const char *text, size_t bytes, size_t head_bytes,
                         struct k3_record *r)
{
    struct raw_digests digests = {0};
    struct k3_text again;
    k3_text_init(&again);
    int rc = k3_json_open(c->file, text, head_bytes, K3_JSON_DEPTH_MAX, &c->json, c->err);
    if (!rc)
        rc = read_head(c, r, &digests);
    if (!rc)
        rc = check_record(c, r, &r->unit_count);
    if (!rc)
        rc = read_raw(c, text + head_bytes, bytes - head_bytes, r, &digests);
    if (!rc)
        rc = put_record(c, r, &digests, &again);
    if (!rc)
        rc = k3_canon_compare(c, text, bytes, &again);
    k3_json_close(c->json);
    c->json = NULL;
    k3_text_fini(&again);
    return rc;
}

int k3_record_decode(const char *file, const char *text, size_t bytes, struct k3_record *out,
                     struct k3_err *err)
{
    struct k3_canon c = {file, NEXT_STEP, err, NULL};
    memset(out, 0, sizeof *out);
    /* Canonical JSON holds no LF, so the first one ends the head, whatever the digests are. */
    size_t search_bytes = bytes < K3_MANIFEST_BYTES_MAX ? bytes : K3_MANIFEST_BYTES_MAX;
    const char *line_feed = search_bytes > 0 ? memchr(text, '\n', search_bytes) : NULL;
    if (!line_feed && bytes > K3_MANIFEST_BYTES_MAX)
        return k3_canon_fail(&c, K3_ELIMIT, -1,
                             "wanted a head of at most %u bytes, found none that ends",
                             K3_MANIFEST_BYTES_MAX);
    size_t head_bytes = line_feed ? (size_t)(line_feed - text) + 1 : bytes;
    int rc = k3_canon_check_seal(&c, text, head_bytes);
    if (!rc)
        rc = k3_canon_check_version(&c, text, head_bytes, FORMAT_NAME);
    if (!rc)
        rc = decode_sealed(&c, text, bytes, head_bytes, out);
    if (rc)
        k3_record_fini(out);
    return rc;
}

void k3_record_fini(struct k3_record *record)
{
    k3_canon_free_files(record->files, record->file_count);
    k3_canon_free_files(record->sources, record->source_count);
    free(record->parts);
    free(record->casts);
    free(record->unit_digests);
    free(record->tool);
    memset(record, 0, sizeof *record);
}
