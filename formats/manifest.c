/* Purpose: the manifest k3-shards.json, encode and strict decode (FORMAT.md 8), and the names of
 * the files of a set.
 * Owns: the arrays and strings of a k3_manifest, freed by k3_manifest_fini.
 * Threads: any; a struct belongs to one thread while it is filled.
 * Errors: K3_ECORRUPT, K3_EFORMAT, K3_EVERSION, K3_ELIMIT, K3_ENOMEM.
 * Invariants: encode and decode judge by the same rules, so nothing is written that would be
 * refused; a text that decode accepts is the one text that encode makes of its struct; on failure
 * the struct is left empty. */
#include "manifest.h"

#include "doc.h"
#include "manifest_parts.h"
#include "units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_NAME "k3-shards"
#define NEXT_STEP   "restore it or convert again"

struct totals {
    uint64_t image_bytes, part_bytes, part_count, rank_count;
};

/* ---- names ---- */

void k3_part_name(uint32_t rank, uint32_t part, char *name)
{
    snprintf(name, K3_NAME_BYTES_MAX + 1, "model-rank-%" PRIu32 "-part-%" PRIu32 ".safetensors",
             rank, part);
}

void k3_units_name(uint32_t rank, char *name)
{
    snprintf(name, K3_NAME_BYTES_MAX + 1, "model-rank-%" PRIu32 ".units", rank);
}

/* Take a fixed text off the front of *at. */
static bool take_text(const char **at, const char *text)
{
    size_t bytes = strlen(text);
    if (strncmp(*at, text, bytes) != 0)
        return false;
    *at += bytes;
    return true;
}

/* Take a decimal number below `limit` (at most 4096) without zeros in front. */
static bool take_number(const char **at, uint32_t limit, uint32_t *value)
{
    const char *p = *at;
    uint32_t v = 0;
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        v = v * 10 + (uint32_t)(*p - '0');
        if (v >= limit)
            return false;
    }
    *at = p;
    *value = v;
    return true;
}

int k3_part_name_decode(const char *name, uint32_t *rank, uint32_t *part)
{
    return take_text(&name, "model-rank-") && take_number(&name, K3_RANK_COUNT_MAX, rank) &&
           take_text(&name, "-part-") && take_number(&name, K3_PART_COUNT_MAX, part) &&
           strcmp(name, ".safetensors") == 0;
}

int k3_units_name_decode(const char *name, uint32_t *rank)
{
    return take_text(&name, "model-rank-") && take_number(&name, K3_RANK_COUNT_MAX, rank) &&
           strcmp(name, ".units") == 0;
}

/* ---- rules ---- */

/* The plan text is canonical JSON; its meaning is judged by who rebuilds the plan. */
static int check_plan_text(const struct k3_canon *c, const struct k3_manifest *m)
{
    struct k3_doc *root = NULL;
    struct k3_text again;
    k3_text_init(&again);
    int rc = 0;
    if (!m->plan_text) {
        rc = k3_canon_fail(c, K3_EFORMAT, -1, "wanted a plan, found none");
        goto out;
    }
    rc = k3_doc_decode(c->file, m->plan_text, m->plan_bytes, &root, c->err);
    if (rc)
        goto out;
    struct k3_err plan_err; /* its message knows no file */
    k3_err_init(&plan_err);
    rc = k3_doc_encode_canonical(root, &again, &plan_err);
    if (rc)
        rc = k3_canon_fail(c, rc, -1, "\"plan\": %s", plan_err.text);
    else if (again.bytes != m->plan_bytes || memcmp(again.data, m->plan_text, again.bytes) != 0)
        rc = k3_canon_fail(c, K3_EFORMAT, -1,
                           "wanted canonical JSON as \"plan\", found another spelling");
out:
    k3_text_fini(&again);
    k3_doc_free(root);
    return rc;
}

static int check_units_entry(const struct k3_canon *c, const struct k3_manifest_rank *rank,
                             uint64_t part_bytes)
{
    char name[K3_NAME_BYTES_MAX + 1];
    k3_units_name(rank->rank, name);
    if (!rank->units.name || strcmp(rank->units.name, name) != 0) {
        char shown[K3_SHOWN_BYTES];
        const char *found = rank->units.name ? rank->units.name : "";
        return k3_canon_fail(c, K3_EFORMAT, -1,
                             "wanted \"%s\" as units file of rank %" PRIu32 ", found \"%s\"", name,
                             rank->rank, k3_shown(found, strlen(found), shown));
    }
    uint64_t wanted_bytes = sizeof(struct k3_disk_units) +
                            part_bytes / K3_UNIT_BYTES * K3_DIGEST_BYTES;
    if (rank->units.bytes != wanted_bytes)
        return k3_canon_fail(c, K3_EFORMAT, -1,
                             "%s: wanted %" PRIu64
                             " bytes (128, and 32 for each unit of the parts), "
                             "found %" PRIu64,
                             name, wanted_bytes, rank->units.bytes);
    return 0;
}

/* Parts of a rank, their sums and its units file; adds to the totals. */
static int check_rank(const struct k3_canon *c, const struct k3_manifest_rank *rank,
                      struct totals *totals)
{
    if (rank->rank >= K3_RANK_COUNT_MAX)
        return k3_canon_fail(c, K3_ELIMIT, -1, "wanted ranks below %u, found rank %" PRIu32,
                             K3_RANK_COUNT_MAX, rank->rank);
    if (rank->part_count == 0 || rank->part_count > K3_PART_COUNT_MAX)
        return k3_canon_fail(c, K3_ELIMIT, -1,
                             "rank %" PRIu32 ": wanted 1 to %u parts, found %" PRIu32, rank->rank,
                             K3_PART_COUNT_MAX, rank->part_count);
    uint64_t part_bytes = 0, image_bytes = 0;
    for (uint32_t i = 0; i < rank->part_count; i++) {
        const struct k3_part_entry *part = &rank->parts[i];
        int rc = k3_canon_check_part(c, part);
        if (rc)
            return rc;
        if (part->rank != rank->rank)
            return k3_canon_fail(c, K3_EFORMAT, -1,
                                 "wanted parts of rank %" PRIu32
                                 " only in its list, found one of rank %" PRIu32,
                                 rank->rank, part->rank);
        if (i > 0 && part[-1].part >= part->part)
            return k3_canon_fail(c, K3_EFORMAT, -1,
                                 "rank %" PRIu32
                                 ": wanted ascending parts, each once, found part %" PRIu32
                                 " behind part %" PRIu32,
                                 rank->rank, part->part, part[-1].part);
        part_bytes += part->bytes; /* 4096 parts below 2^53: no overflow */
        image_bytes += part->bytes - part->data_offset;
    }
    if (rank->image_bytes != image_bytes)
        return k3_canon_fail(c, K3_EFORMAT, -1,
                             "rank %" PRIu32 ": wanted \"image_bytes\" %" PRIu64
                             " (sum of the data sections), found %" PRIu64,
                             rank->rank, image_bytes, rank->image_bytes);
    totals->image_bytes += image_bytes;
    totals->part_bytes += part_bytes;
    totals->part_count += rank->part_count;
    totals->rank_count++;
    if (totals->part_bytes > K3_CANON_INTEGER_MAX)
        return k3_canon_fail(c, K3_ELIMIT, -1,
                             "wanted parts of less than 2^53 bytes in all, found more");
    return check_units_entry(c, rank, part_bytes);
}

static int check_ranks(const struct k3_canon *c, const struct k3_manifest *m, struct totals *totals)
{
    memset(totals, 0, sizeof *totals);
    if (m->rank_count == 0 || m->rank_count > K3_RANK_COUNT_MAX)
        return k3_canon_fail(c, K3_ELIMIT, -1, "wanted 1 to %u ranks, found %" PRIu32,
                             K3_RANK_COUNT_MAX, m->rank_count);
    for (uint32_t i = 0; i < m->rank_count; i++) {
        if (i > 0 && m->ranks[i - 1].rank >= m->ranks[i].rank)
            return k3_canon_fail(c, K3_EFORMAT, -1,
                                 "wanted ascending ranks, each once, found rank %" PRIu32
                                 " behind rank %" PRIu32,
                                 m->ranks[i].rank, m->ranks[i - 1].rank);
        int rc = check_rank(c, &m->ranks[i], totals);
        if (rc)
            return rc;
    }
    return 0;
}

/* Every rule that does not need another file.  Computes the totals. */
static int check_manifest(const struct k3_canon *c, const struct k3_manifest *m,
                          struct totals *totals)
{
    int rc = k3_canon_check_files(c, "files", m->files, m->file_count, K3_COPIED_BYTES_MAX);
    for (uint32_t i = 0; !rc && i < m->file_count; i++)
        rc = k3_canon_check_copied(c, &m->files[i]);
    if (!rc)
        rc = k3_canon_check_files(c, "headers", &m->headers, 1, K3_CANON_INTEGER_MAX);
    if (!rc && strcmp(m->headers.name, K3_HEADERS_NAME) != 0)
        rc = k3_canon_fail(c, K3_EFORMAT, -1, "wanted \"%s\" in \"headers\", found \"%s\"",
                           K3_HEADERS_NAME, m->headers.name);
    if (!rc)
        rc = check_plan_text(c, m);
    if (!rc)
        rc = check_ranks(c, m, totals);
    if (!rc && m->source_count == 0)
        rc = k3_canon_fail(c, K3_EFORMAT, -1,
                           "wanted at least one entry in \"sources\", found none");
    if (!rc)
        rc = k3_canon_check_files(c, "sources", m->sources, m->source_count, K3_CANON_INTEGER_MAX);
    if (!rc)
        rc = k3_canon_check_tool(c, m->tool);
    return rc;
}

static int plan_digest_of(const struct k3_manifest *m, uint8_t digest[K3_DIGEST_BYTES],
                          struct k3_err *err)
{
    struct k3_sha256 *sha;
    int rc = k3_sha256_open(&sha, err);
    if (rc)
        return rc;
    k3_sha256_of(sha, m->plan_text, m->plan_bytes, digest);
    k3_sha256_close(sha);
    return 0;
}

/* ---- writing ---- */

static void put_rank(struct k3_text *out, const struct k3_manifest_rank *rank)
{
    k3_text_puts(out, "{\"image_bytes\":");
    k3_text_putu(out, rank->image_bytes);
    k3_text_puts(out, ",\"parts\":");
    k3_canon_put_parts(out, rank->parts, rank->part_count);
    k3_text_puts(out, ",\"rank\":");
    k3_text_putu(out, rank->rank);
    k3_text_puts(out, ",\"units\":");
    k3_canon_put_file(out, &rank->units);
    k3_text_puts(out, "}");
}

static void put_totals(struct k3_text *out, const struct totals *totals)
{
    k3_text_puts(out, "{\"image_bytes\":");
    k3_text_putu(out, totals->image_bytes);
    k3_text_puts(out, ",\"part_bytes\":");
    k3_text_putu(out, totals->part_bytes);
    k3_text_puts(out, ",\"parts\":");
    k3_text_putu(out, totals->part_count);
    k3_text_puts(out, ",\"ranks\":");
    k3_text_putu(out, totals->rank_count);
    k3_text_puts(out, "}");
}

/* Append a manifest that was judged before. */
static int put_manifest(const struct k3_canon *c, const struct k3_manifest *m,
                        const struct totals *totals, struct k3_text *out)
{
    uint8_t plan_digest[K3_DIGEST_BYTES];
    int rc = plan_digest_of(m, plan_digest, c->err);
    if (rc)
        return rc;
    size_t start = out->bytes;
    k3_text_puts(out, "{\"files\":");
    k3_canon_put_files(out, m->files, m->file_count);
    k3_text_puts(out, ",\"format\":\"" FORMAT_NAME "\",\"headers\":");
    k3_canon_put_file(out, &m->headers);
    k3_text_puts(out, ",\"plan\":");
    k3_text_put(out, m->plan_text, m->plan_bytes);
    k3_text_puts(out, ",\"plan_sha256\":");
    k3_canon_put_digest(out, plan_digest);
    k3_text_puts(out, ",\"ranks\":[");
    for (uint32_t i = 0; i < m->rank_count; i++) {
        if (i > 0)
            k3_text_puts(out, ",");
        put_rank(out, &m->ranks[i]);
    }
    k3_text_puts(out, "],\"sources\":");
    k3_canon_put_files(out, m->sources, m->source_count);
    k3_text_puts(out, ",\"tool\":");
    k3_text_put_json(out, m->tool);
    k3_text_puts(out, ",\"totals\":");
    put_totals(out, totals);
    rc = k3_canon_seal(c, out, start);
    if (!rc && out->bytes - start > K3_MANIFEST_BYTES_MAX)
        rc = k3_canon_fail(c, K3_ELIMIT, -1, "wanted a manifest of at most %u bytes, found %zu",
                           K3_MANIFEST_BYTES_MAX, out->bytes - start);
    return rc;
}

int k3_manifest_encode(const struct k3_manifest *manifest, struct k3_text *out, struct k3_err *err)
{
    struct k3_canon c = {K3_MANIFEST_NAME, "nothing was written, convert again", err, NULL};
    struct totals totals;
    int rc = check_manifest(&c, manifest, &totals);
    return rc ? rc : put_manifest(&c, manifest, &totals, out);
}

/* ---- reading ---- */

/* The member "plan": its text as it stands in the document, which is what its digest covers. */
static int read_plan(struct k3_canon *c, const char *text, struct k3_manifest *m)
{
    struct k3_json_token token;
    int rc = k3_canon_member(c, "plan", K3_JSON_OBJECT_BEGIN, &token);
    if (rc)
        return rc;
    size_t begin = token.offset;
    for (unsigned depth = 1; depth > 0;) {
        rc = k3_json_next(c->json, &token, c->err);
        if (rc)
            return rc;
        if (token.type == K3_JSON_OBJECT_BEGIN || token.type == K3_JSON_ARRAY_BEGIN)
            depth++;
        else if (token.type == K3_JSON_OBJECT_END || token.type == K3_JSON_ARRAY_END)
            depth--;
    }
    m->plan_bytes = token.offset + 1 - begin;
    m->plan_text = malloc(m->plan_bytes + 1);
    if (!m->plan_text)
        return k3_fail(c->err, K3_ENOMEM, "%s: no memory for the plan", c->file);
    memcpy(m->plan_text, text + begin, m->plan_bytes);
    m->plan_text[m->plan_bytes] = 0;
    return 0;
}

static int read_ranks(struct k3_canon *c, struct k3_manifest *m)
{
    struct k3_json_token token;
    int rc = k3_canon_member(c, "ranks", K3_JSON_ARRAY_BEGIN, &token);
    while (!rc) {
        bool more;
        rc = k3_canon_element(c, "ranks", &more);
        if (rc || !more)
            return rc;
        if (m->rank_count == K3_RANK_COUNT_MAX)
            return k3_canon_fail(c, K3_ELIMIT, -1, "wanted at most %u ranks, found more",
                                 K3_RANK_COUNT_MAX);
        struct k3_manifest_rank *larger = k3_canon_grow(c, m->ranks, m->rank_count,
                                                        sizeof *m->ranks);
        if (!larger)
            return K3_ENOMEM;
        m->ranks = larger;
        struct k3_manifest_rank *rank = &larger[m->rank_count++];
        memset(rank, 0, sizeof *rank);
        rc = k3_canon_integer(c, "image_bytes", K3_CANON_INTEGER_MAX, &rank->image_bytes);
        if (!rc)
            rc = k3_canon_parts(c, "parts", &rank->parts, &rank->part_count);
        if (!rc)
            rc = k3_canon_u32(c, "rank", K3_RANK_COUNT_MAX - 1, &rank->rank);
        if (!rc)
            rc = k3_canon_file(c, "units", &rank->units);
        if (!rc)
            rc = k3_canon_object_end(c);
    }
    return rc;
}

static int read_totals(struct k3_canon *c, struct totals *totals)
{
    struct k3_json_token token;
    int rc = k3_canon_member(c, "totals", K3_JSON_OBJECT_BEGIN, &token);
    if (!rc)
        rc = k3_canon_integer(c, "image_bytes", K3_CANON_INTEGER_MAX, &totals->image_bytes);
    if (!rc)
        rc = k3_canon_integer(c, "part_bytes", K3_CANON_INTEGER_MAX, &totals->part_bytes);
    if (!rc)
        rc = k3_canon_integer(c, "parts", K3_CANON_INTEGER_MAX, &totals->part_count);
    if (!rc)
        rc = k3_canon_integer(c, "ranks", K3_CANON_INTEGER_MAX, &totals->rank_count);
    return rc ? rc : k3_canon_object_end(c);
}

static int read_manifest(struct k3_canon *c, const char *text, struct k3_manifest *m,
                         struct totals *totals)
{
    struct k3_json_token token;
    int rc = k3_json_expect(c->json, K3_JSON_OBJECT_BEGIN, "the manifest", &token, c->err);
    if (!rc)
        rc = k3_canon_files(c, "files", &m->files, &m->file_count);
    if (!rc)
        rc = k3_canon_skip(c, "format");
    if (!rc)
        rc = k3_canon_file(c, "headers", &m->headers);
    if (!rc)
        rc = read_plan(c, text, m);
    if (!rc)
        rc = k3_canon_digest(c, "plan_sha256", m->plan_digest);
    if (!rc)
        rc = read_ranks(c, m);
    if (!rc)
        rc = k3_canon_files(c, "sources", &m->sources, &m->source_count);
    if (!rc)
        rc = k3_canon_string(c, "tool", &m->tool);
    if (!rc)
        rc = read_totals(c, totals);
    if (!rc)
        rc = k3_canon_skip(c, "version");
    if (!rc)
        rc = k3_canon_skip(c, "~sha256");
    if (!rc)
        rc = k3_canon_object_end(c);
    return rc ? rc
              : k3_json_expect(c->json, K3_JSON_END, "the end of the manifest", &token, c->err);
}

/* What the manifest says of itself twice: the plan digest and the totals. */
static int check_sums(const struct k3_canon *c, const struct k3_manifest *m,
                      const struct totals *found, const struct totals *wanted)
{
    uint8_t digest[K3_DIGEST_BYTES];
    int rc = plan_digest_of(m, digest, c->err);
    if (rc)
        return rc;
    if (memcmp(digest, m->plan_digest, sizeof digest) != 0) {
        char wanted_hex[K3_HEX_BYTES], found_hex[K3_HEX_BYTES];
        k3_hex_encode(digest, sizeof digest, wanted_hex);
        k3_hex_encode(m->plan_digest, sizeof digest, found_hex);
        return k3_canon_fail(c, K3_EFORMAT, -1,
                             "wanted \"plan_sha256\" %s (of its \"plan\"), found %s", wanted_hex,
                             found_hex);
    }
    if (memcmp(found, wanted, sizeof *found) != 0)
        return k3_canon_fail(
            c, K3_EFORMAT, -1,
            "wanted \"totals\" of %" PRIu64 " image bytes, %" PRIu64 " part bytes, %" PRIu64
            " parts, %" PRIu64 " ranks, found %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64,
            wanted->image_bytes, wanted->part_bytes, wanted->part_count, wanted->rank_count,
            found->image_bytes, found->part_bytes, found->part_count, found->rank_count);
    return 0;
}

/* Form and rules, then the comparison with what encode makes of it. */
static int decode_sealed(struct k3_canon *c, const char *text, size_t bytes, struct k3_manifest *m)
{
    struct totals found = {0}, wanted = {0};
    struct k3_text again;
    k3_text_init(&again);
    int rc = k3_json_open(c->file, text, bytes, K3_JSON_DEPTH_MAX, &c->json, c->err);
    if (!rc)
        rc = read_manifest(c, text, m, &found);
    if (!rc)
        rc = check_manifest(c, m, &wanted);
    if (!rc)
        rc = check_sums(c, m, &found, &wanted);
    if (!rc)
        rc = put_manifest(c, m, &wanted, &again);
    if (!rc)
        rc = k3_canon_compare(c, text, bytes, &again);
    k3_json_close(c->json);
    c->json = NULL;
    k3_text_fini(&again);
    return rc;
}

int k3_manifest_decode(const char *file, const char *text, size_t bytes, struct k3_manifest *out,
                       struct k3_err *err)
{
    struct k3_canon c = {file, NEXT_STEP, err, NULL};
    memset(out, 0, sizeof *out);
    if (bytes > K3_MANIFEST_BYTES_MAX)
        return k3_canon_fail(&c, K3_ELIMIT, -1, "wanted a manifest of at most %u bytes, found %zu",
                             K3_MANIFEST_BYTES_MAX, bytes);
    int rc = k3_canon_check_seal(&c, text, bytes);
    if (!rc)
        rc = k3_canon_check_version(&c, text, bytes, FORMAT_NAME);
    if (!rc)
        rc = decode_sealed(&c, text, bytes, out);
    if (rc)
        k3_manifest_fini(out);
    return rc;
}

void k3_manifest_fini(struct k3_manifest *manifest)
{
    k3_canon_free_files(manifest->files, manifest->file_count);
    k3_canon_free_files(manifest->sources, manifest->source_count);
    free(manifest->headers.name);
    for (uint32_t i = 0; i < manifest->rank_count; i++) {
        free(manifest->ranks[i].parts);
        free(manifest->ranks[i].units.name);
    }
    free(manifest->ranks);
    free(manifest->plan_text);
    free(manifest->tool);
    memset(manifest, 0, sizeof *manifest);
}
