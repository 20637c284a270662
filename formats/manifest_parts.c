/* Purpose: what manifest and record share: the strict walk through a sealed canonical document,
 * their entries and the rules of these.
 * Owns: nothing; strings and arrays it makes belong to the struct that is being filled.
 * Threads: any; a k3_canon belongs to one thread.
 * Errors: K3_EFORMAT, K3_ECORRUPT, K3_EVERSION, K3_ELIMIT, K3_ENOMEM; each names the file, the
 * place, what was wanted and found, and the next step.
 * Invariants: members are taken in their sorted order only, so none can be missing, unknown or out
 * of place; a count is raised only after its item is zeroed, so a half-filled struct can always be
 * freed. */
#include "manifest_parts.h"

#include "hf_index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEAL_HEAD       "\"~sha256\":\""
#define SEAL_TAIL       "\"}\n"
#define SEAL_HEAD_BYTES (sizeof SEAL_HEAD - 1)
#define SEAL_TAIL_BYTES (sizeof SEAL_TAIL - 1)
#define HEX_DIGIT_COUNT (2u * K3_DIGEST_BYTES)
#define TOOL_HEAD       "k3-shard "

int k3_canon_fail(const struct k3_canon *c, int rc, int64_t offset, const char *format, ...)
{
    char what[K3_ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return k3_fail_at(c->err, rc, c->file, offset, "%s: %s; %s", c->file, what, c->next_step);
}

/* Digest of a sealed text, its own 64 digits at `digits` counting as zeros, as hex. */
static int seal_hex(const struct k3_canon *c, const char *text, size_t bytes, size_t digits,
                    char *hex)
{
    struct k3_sha256 *sha;
    int rc = k3_sha256_open(&sha, c->err);
    if (rc)
        return rc;
    char zeros[HEX_DIGIT_COUNT];
    memset(zeros, '0', sizeof zeros);
    uint8_t digest[K3_DIGEST_BYTES];
    size_t behind = digits + HEX_DIGIT_COUNT;
    k3_sha256_update(sha, text, digits);
    k3_sha256_update(sha, zeros, sizeof zeros);
    k3_sha256_update(sha, text + behind, bytes - behind);
    k3_sha256_final(sha, digest);
    k3_hex_encode(digest, sizeof digest, hex);
    k3_sha256_close(sha);
    return 0;
}

int k3_canon_check_seal(const struct k3_canon *c, const char *text, size_t bytes)
{
    const size_t tail_bytes = HEX_DIGIT_COUNT + SEAL_TAIL_BYTES;
    if (bytes < SEAL_HEAD_BYTES + tail_bytes ||
        memcmp(text + bytes - SEAL_TAIL_BYTES, SEAL_TAIL, SEAL_TAIL_BYTES) != 0 ||
        memcmp(text + bytes - tail_bytes - SEAL_HEAD_BYTES, SEAL_HEAD, SEAL_HEAD_BYTES) != 0)
        return k3_canon_fail(
            c, K3_ECORRUPT, (int64_t)bytes,
            "wanted a text that ends with its own digest (\"~sha256\") and a line feed, "
            "found %zu bytes that do not: the file was cut short, changed or is another",
            bytes);
    size_t digits = bytes - tail_bytes;
    char wanted[K3_HEX_BYTES];
    int rc = seal_hex(c, text, bytes, digits, wanted);
    if (rc)
        return rc;
    if (memcmp(wanted, text + digits, HEX_DIGIT_COUNT) == 0)
        return 0;
    char shown[K3_SHOWN_BYTES];
    return k3_canon_fail(
        c, K3_ECORRUPT, (int64_t)digits,
        "its own digest does not match: the file was changed or damaged; wanted %s, found %s",
        wanted, k3_shown(text + digits, HEX_DIGIT_COUNT, shown));
}

/* Judge the values of "format" and "version" where they appear at the top level. */
static int check_version_member(struct k3_canon *c, const char *format, bool *has_format,
                                bool *has_version)
{
    struct k3_json_token token;
    for (;;) {
        int rc = k3_json_next(c->json, &token, c->err);
        if (rc || token.type == K3_JSON_OBJECT_END)
            return rc;
        bool is_format = token.bytes == 6 && memcmp(token.text, "format", 6) == 0;
        bool is_version = token.bytes == 7 && memcmp(token.text, "version", 7) == 0;
        rc = k3_json_next(c->json, &token, c->err);
        if (rc)
            return rc;
        if (is_format) {
            char shown[K3_SHOWN_BYTES];
            if (token.type != K3_JSON_STRING || token.bytes != strlen(format) ||
                memcmp(token.text, format, token.bytes) != 0)
                return k3_canon_fail(
                    c, K3_EFORMAT, (int64_t)token.offset,
                    "wanted a document of format \"%s\", found %s %s", format,
                    k3_json_type_name(token.type),
                    token.type == K3_JSON_STRING ? k3_shown(token.text, token.bytes, shown) : "");
            *has_format = true;
        }
        if (is_version) {
            if (token.type != K3_JSON_INTEGER)
                return k3_canon_fail(c, K3_EFORMAT, (int64_t)token.offset,
                                     "wanted an integer as \"version\", found %s",
                                     k3_json_type_name(token.type));
            if (token.integer != K3_CANON_VERSION)
                return k3_fail_at(c->err, K3_EVERSION, c->file, (int64_t)token.offset,
                                  "%s: this program reads version %u, found version %" PRIu64
                                  "; use a newer k3-shard",
                                  c->file, K3_CANON_VERSION, token.integer);
            *has_version = true;
        }
        rc = k3_json_skip(c->json, &token, c->err);
        if (rc)
            return rc;
    }
}

int k3_canon_check_version(const struct k3_canon *c, const char *text, size_t bytes,
                           const char *format)
{
    struct k3_canon walk = *c;
    bool has_format = false, has_version = false;
    struct k3_json_token token;
    int rc = k3_json_open(c->file, text, bytes, K3_JSON_DEPTH_MAX, &walk.json, c->err);
    if (rc)
        return rc;
    rc = k3_json_expect(walk.json, K3_JSON_OBJECT_BEGIN, "the document", &token, c->err);
    if (!rc)
        rc = check_version_member(&walk, format, &has_format, &has_version);
    if (!rc)
        rc = k3_json_expect(walk.json, K3_JSON_END, "the end of the document", &token, c->err);
    if (!rc && !has_format)
        rc = k3_canon_fail(c, K3_EFORMAT, 0, "wanted a member \"format\", found none");
    if (!rc && !has_version)
        rc = k3_canon_fail(c, K3_EFORMAT, 0, "wanted a member \"version\", found none");
    k3_json_close(walk.json);
    return rc;
}

int k3_canon_compare(const struct k3_canon *c, const char *text, size_t bytes,
                     const struct k3_text *again)
{
    size_t same = 0;
    size_t shorter = bytes < again->bytes ? bytes : again->bytes;
    while (same < shorter && text[same] == again->data[same])
        same++;
    if (same == bytes && same == again->bytes)
        return 0;
    return k3_canon_fail(c, K3_EFORMAT, (int64_t)same,
                         "wanted canonical JSON, found another spelling from byte %zu on", same);
}

int k3_canon_seal(const struct k3_canon *c, struct k3_text *out, size_t start)
{
    char hex[K3_HEX_BYTES];
    memset(hex, '0', HEX_DIGIT_COUNT);
    hex[HEX_DIGIT_COUNT] = 0;
    k3_text_puts(out, ",\"version\":");
    k3_text_putu(out, K3_CANON_VERSION);
    k3_text_puts(out, "," SEAL_HEAD);
    k3_text_puts(out, hex);
    k3_text_puts(out, SEAL_TAIL);
    int rc = k3_text_check(out, c->err);
    if (rc)
        return rc;
    size_t digits = out->bytes - SEAL_TAIL_BYTES - HEX_DIGIT_COUNT;
    rc = seal_hex(c, out->data + start, out->bytes - start, digits - start, hex);
    if (rc)
        return rc;
    memcpy(out->data + digits, hex, HEX_DIGIT_COUNT);
    return 0;
}

/* ---- reading ---- */

int k3_canon_member(struct k3_canon *c, const char *name, enum k3_json_type type,
                    struct k3_json_token *token)
{
    int rc = k3_json_next(c->json, token, c->err);
    if (rc)
        return rc;
    if (token->type != K3_JSON_KEY)
        return k3_canon_fail(c, K3_EFORMAT, (int64_t)token->offset,
                             "byte %zu: wanted member \"%s\", found %s", token->offset, name,
                             k3_json_type_name(token->type));
    if (token->bytes != strlen(name) || memcmp(token->text, name, token->bytes) != 0) {
        char shown[K3_SHOWN_BYTES];
        return k3_canon_fail(c, K3_EFORMAT, (int64_t)token->offset,
                             "byte %zu: wanted member \"%s\", found member \"%s\"", token->offset,
                             name, k3_shown(token->text, token->bytes, shown));
    }
    return k3_json_expect(c->json, type, name, token, c->err);
}

int k3_canon_object_end(struct k3_canon *c)
{
    struct k3_json_token token;
    int rc = k3_json_next(c->json, &token, c->err);
    if (rc || token.type == K3_JSON_OBJECT_END)
        return rc;
    char shown[K3_SHOWN_BYTES];
    return k3_canon_fail(c, K3_EFORMAT, (int64_t)token.offset,
                         "byte %zu: wanted the end of the object, found member \"%s\"",
                         token.offset, k3_shown(token.text, token.bytes, shown));
}

int k3_canon_element(struct k3_canon *c, const char *array, bool *more)
{
    struct k3_json_token token;
    *more = false;
    int rc = k3_json_next(c->json, &token, c->err);
    if (rc || token.type == K3_JSON_ARRAY_END)
        return rc;
    if (token.type != K3_JSON_OBJECT_BEGIN)
        return k3_canon_fail(c, K3_EFORMAT, (int64_t)token.offset,
                             "byte %zu: wanted an object in \"%s\", found %s", token.offset, array,
                             k3_json_type_name(token.type));
    *more = true;
    return 0;
}

int k3_canon_integer(struct k3_canon *c, const char *name, uint64_t max, uint64_t *value)
{
    struct k3_json_token token;
    int rc = k3_canon_member(c, name, K3_JSON_INTEGER, &token);
    if (rc)
        return rc;
    if (token.integer > max)
        return k3_canon_fail(c, K3_ELIMIT, (int64_t)token.offset,
                             "byte %zu: wanted \"%s\" of at most %" PRIu64 ", found %" PRIu64,
                             token.offset, name, max, token.integer);
    *value = token.integer;
    return 0;
}

int k3_canon_u32(struct k3_canon *c, const char *name, uint32_t max, uint32_t *value)
{
    uint64_t wide = 0;
    int rc = k3_canon_integer(c, name, max, &wide);
    *value = (uint32_t)wide;
    return rc;
}

int k3_canon_string(struct k3_canon *c, const char *name, char **value)
{
    struct k3_json_token token;
    *value = NULL;
    int rc = k3_canon_member(c, name, K3_JSON_STRING, &token);
    if (rc)
        return rc;
    if (token.bytes > K3_NAME_BYTES_MAX)
        return k3_canon_fail(c, K3_ELIMIT, (int64_t)token.offset,
                             "byte %zu: wanted \"%s\" of at most %u characters, found %zu",
                             token.offset, name, K3_NAME_BYTES_MAX, token.bytes);
    for (size_t i = 0; i < token.bytes; i++)
        if (token.text[i] < 0x20 || token.text[i] > 0x7e)
            return k3_canon_fail(c, K3_EFORMAT, (int64_t)token.offset,
                                 "byte %zu: wanted printable ASCII in \"%s\", found byte 0x%02x",
                                 token.offset, name, (unsigned)(unsigned char)token.text[i]);
    char *copy = malloc(token.bytes + 1);
    if (!copy)
        return k3_fail(c->err, K3_ENOMEM, "%s: no memory for a name", c->file);
    memcpy(copy, token.text, token.bytes);
    copy[token.bytes] = 0;
    *value = copy;
    return 0;
}

int k3_canon_digest(struct k3_canon *c, const char *name, uint8_t digest[K3_DIGEST_BYTES])
{
    struct k3_json_token token;
    int rc = k3_canon_member(c, name, K3_JSON_STRING, &token);
    if (rc)
        return rc;
    if (token.bytes == HEX_DIGIT_COUNT && k3_hex_decode(token.text, K3_DIGEST_BYTES, digest))
        return 0;
    char shown[K3_SHOWN_BYTES];
    return k3_canon_fail(c, K3_EFORMAT, (int64_t)token.offset,
                         "byte %zu: wanted 64 lowercase hexadecimal digits as \"%s\", found \"%s\"",
                         token.offset, name, k3_shown(token.text, token.bytes, shown));
}

int k3_canon_skip(struct k3_canon *c, const char *name)
{
    struct k3_json_token token;
    bool is_version = strcmp(name, "version") == 0;
    return k3_canon_member(c, name, is_version ? K3_JSON_INTEGER : K3_JSON_STRING, &token);
}

/* Members of an entry whose object has begun. */
static int file_members(struct k3_canon *c, struct k3_file_entry *entry)
{
    int rc = k3_canon_integer(c, "bytes", K3_CANON_INTEGER_MAX, &entry->bytes);
    if (!rc)
        rc = k3_canon_string(c, "name", &entry->name);
    if (!rc)
        rc = k3_canon_digest(c, "sha256", entry->sha256);
    return rc ? rc : k3_canon_object_end(c);
}

int k3_canon_file(struct k3_canon *c, const char *name, struct k3_file_entry *entry)
{
    struct k3_json_token token;
    int rc = k3_canon_member(c, name, K3_JSON_OBJECT_BEGIN, &token);
    return rc ? rc : file_members(c, entry);
}

void *k3_canon_grow(struct k3_canon *c, void *array, uint32_t count, size_t item_bytes)
{
    /* The capacity is the power of two from count on, so an array is full when count is one itself.
     */
    if (count & (count - 1))
        return array;
    void *larger = NULL;
    size_t cap = count ? (size_t)count * 2 : 1;
    if (cap <= SIZE_MAX / item_bytes)
        larger = realloc(array, cap * item_bytes);
    if (!larger)
        k3_fail(c->err, K3_ENOMEM, "%s: no memory for %zu entries", c->file, cap);
    return larger;
}

int k3_canon_files(struct k3_canon *c, const char *name, struct k3_file_entry **entries,
                   uint32_t *count)
{
    struct k3_json_token token;
    int rc = k3_canon_member(c, name, K3_JSON_ARRAY_BEGIN, &token);
    while (!rc) {
        bool more;
        rc = k3_canon_element(c, name, &more);
        if (rc || !more)
            return rc;
        if (*count == K3_FILE_COUNT_MAX)
            return k3_canon_fail(c, K3_ELIMIT, -1,
                                 "wanted at most %u entries in \"%s\", found more",
                                 K3_FILE_COUNT_MAX, name);
        struct k3_file_entry *larger = k3_canon_grow(c, *entries, *count, sizeof **entries);
        if (!larger)
            return K3_ENOMEM;
        *entries = larger;
        struct k3_file_entry *entry = &larger[(*count)++];
        memset(entry, 0, sizeof *entry);
        rc = file_members(c, entry);
    }
    return rc;
}

/* Members of a part whose object has begun; rank and part number come from its name. */
static int part_members(struct k3_canon *c, struct k3_part_entry *part)
{
    char *name = NULL;
    int rc = k3_canon_integer(c, "bytes", K3_CANON_INTEGER_MAX, &part->bytes);
    if (!rc)
        rc = k3_canon_integer(c, "data_offset", K3_CANON_INTEGER_MAX, &part->data_offset);
    if (!rc)
        rc = k3_canon_string(c, "name", &name);
    if (!rc && !k3_part_name_decode(name, &part->rank, &part->part))
        rc = k3_canon_fail(
            c, K3_EFORMAT, -1,
            "wanted a name of the form model-rank-R-part-P.safetensors in \"parts\", "
            "found \"%s\"",
            name);
    free(name);
    if (!rc)
        rc = k3_canon_digest(c, "sha256", part->sha256);
    if (!rc)
        rc = k3_canon_digest(c, "tree", part->tree);
    return rc ? rc : k3_canon_object_end(c);
}

int k3_canon_parts(struct k3_canon *c, const char *name, struct k3_part_entry **parts,
                   uint32_t *count)
{
    struct k3_json_token token;
    int rc = k3_canon_member(c, name, K3_JSON_ARRAY_BEGIN, &token);
    while (!rc) {
        bool more;
        rc = k3_canon_element(c, name, &more);
        if (rc || !more)
            return rc;
        if (*count == K3_RANK_COUNT_MAX * K3_PART_COUNT_MAX)
            return k3_canon_fail(c, K3_ELIMIT, -1, "wanted at most %u parts, found more",
                                 K3_RANK_COUNT_MAX * K3_PART_COUNT_MAX);
        struct k3_part_entry *larger = k3_canon_grow(c, *parts, *count, sizeof **parts);
        if (!larger)
            return K3_ENOMEM;
        *parts = larger;
        struct k3_part_entry *part = &larger[(*count)++];
        memset(part, 0, sizeof *part);
        rc = part_members(c, part);
    }
    return rc;
}

/* ---- rules ---- */

int k3_canon_check_files(const struct k3_canon *c, const char *name,
                         const struct k3_file_entry *entries, uint32_t count, uint64_t bytes_max)
{
    if (count > K3_FILE_COUNT_MAX)
        return k3_canon_fail(c, K3_ELIMIT, -1,
                             "wanted at most %u entries in \"%s\", found %" PRIu32,
                             K3_FILE_COUNT_MAX, name, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct k3_file_entry *entry = &entries[i];
        if (!entry->name || !k3_is_plain_name(entry->name)) {
            char shown[K3_SHOWN_BYTES];
            const char *found = entry->name ? entry->name : "";
            return k3_canon_fail(c, K3_EFORMAT, -1,
                                 "wanted a plain file name in \"%s\", found \"%s\"", name,
                                 k3_shown(found, strlen(found), shown));
        }
        if (i > 0 && strcmp(entries[i - 1].name, entry->name) >= 0)
            return k3_canon_fail(
                c, K3_EFORMAT, -1,
                "wanted sorted names in \"%s\", each once, found \"%s\" behind \"%s\"", name,
                entry->name, entries[i - 1].name);
        if (entry->bytes > bytes_max)
            return k3_canon_fail(c, K3_ELIMIT, -1,
                                 "%s in \"%s\": wanted at most %" PRIu64 " bytes, found %" PRIu64,
                                 entry->name, name, bytes_max, entry->bytes);
    }
    return 0;
}

static bool ends_with(const char *name, const char *end)
{
    size_t name_bytes = strlen(name), end_bytes = strlen(end);
    return name_bytes >= end_bytes && strcmp(name + name_bytes - end_bytes, end) == 0;
}

int k3_canon_check_copied(const struct k3_canon *c, const struct k3_file_entry *entry)
{
    uint32_t rank;
    if (strcmp(entry->name, K3_MANIFEST_NAME) != 0 && strcmp(entry->name, K3_HEADERS_NAME) != 0 &&
        !ends_with(entry->name, ".safetensors") && !ends_with(entry->name, ".index.json") &&
        !k3_units_name_decode(entry->name, &rank))
        return 0;
    return k3_canon_fail(
        c, K3_EFORMAT, -1,
        "wanted copied files in \"files\", found \"%s\", a name that is not copied", entry->name);
}

int k3_canon_check_part(const struct k3_canon *c, const struct k3_part_entry *part)
{
    char name[K3_NAME_BYTES_MAX + 1];
    if (part->rank >= K3_RANK_COUNT_MAX || part->part >= K3_PART_COUNT_MAX)
        return k3_canon_fail(c, K3_ELIMIT, -1,
                             "wanted ranks and parts below %u and %u, found rank %" PRIu32
                             " part %" PRIu32,
                             K3_RANK_COUNT_MAX, K3_PART_COUNT_MAX, part->rank, part->part);
    k3_part_name(part->rank, part->part, name);
    if (part->bytes % K3_UNIT_BYTES != 0 || part->bytes > K3_CANON_INTEGER_MAX)
        return k3_canon_fail(c, K3_EFORMAT, -1,
                             "%s: wanted a multiple of %u below 2^53 as \"bytes\", found %" PRIu64,
                             name, K3_UNIT_BYTES, part->bytes);
    if (part->data_offset % K3_UNIT_BYTES != 0 || part->data_offset == 0 ||
        part->data_offset >= part->bytes)
        return k3_canon_fail(c, K3_EFORMAT, -1,
                             "%s: wanted a multiple of %u above 0 and below \"bytes\" (%" PRIu64
                             ") as \"data_offset\", found %" PRIu64,
                             name, K3_UNIT_BYTES, part->bytes, part->data_offset);
    return 0;
}

int k3_canon_check_tool(const struct k3_canon *c, const char *tool)
{
    const char *found = tool ? tool : "";
    const size_t head_bytes = sizeof TOOL_HEAD - 1;
    size_t bytes = strlen(found);
    bool good = bytes > head_bytes && bytes <= K3_NAME_BYTES_MAX &&
                memcmp(found, TOOL_HEAD, head_bytes) == 0;
    for (size_t i = head_bytes; good && i < bytes; i++)
        good = found[i] > 0x20 && found[i] <= 0x7e;
    if (good)
        return 0;
    char shown[K3_SHOWN_BYTES];
    return k3_canon_fail(c, K3_EFORMAT, -1, "wanted \"k3-shard VERSION\" as \"tool\", found \"%s\"",
                         k3_shown(found, bytes, shown));
}

/* ---- writing ---- */

void k3_canon_put_digest(struct k3_text *out, const uint8_t digest[K3_DIGEST_BYTES])
{
    char hex[K3_HEX_BYTES];
    k3_hex_encode(digest, K3_DIGEST_BYTES, hex);
    k3_text_puts(out, "\"");
    k3_text_puts(out, hex);
    k3_text_puts(out, "\"");
}

void k3_canon_put_file(struct k3_text *out, const struct k3_file_entry *entry)
{
    k3_text_puts(out, "{\"bytes\":");
    k3_text_putu(out, entry->bytes);
    k3_text_puts(out, ",\"name\":");
    k3_text_put_json(out, entry->name);
    k3_text_puts(out, ",\"sha256\":");
    k3_canon_put_digest(out, entry->sha256);
    k3_text_puts(out, "}");
}

void k3_canon_put_files(struct k3_text *out, const struct k3_file_entry *entries, uint32_t count)
{
    k3_text_puts(out, "[");
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0)
            k3_text_puts(out, ",");
        k3_canon_put_file(out, &entries[i]);
    }
    k3_text_puts(out, "]");
}

void k3_canon_put_parts(struct k3_text *out, const struct k3_part_entry *parts, uint32_t count)
{
    char name[K3_NAME_BYTES_MAX + 1];
    k3_text_puts(out, "[");
    for (uint32_t i = 0; i < count; i++) {
        k3_part_name(parts[i].rank, parts[i].part, name);
        k3_text_puts(out, i > 0 ? ",{\"bytes\":" : "{\"bytes\":");
        k3_text_putu(out, parts[i].bytes);
        k3_text_puts(out, ",\"data_offset\":");
        k3_text_putu(out, parts[i].data_offset);
        k3_text_puts(out, ",\"name\":");
        k3_text_put_json(out, name);
        k3_text_puts(out, ",\"sha256\":");
        k3_canon_put_digest(out, parts[i].sha256);
        k3_text_puts(out, ",\"tree\":");
        k3_canon_put_digest(out, parts[i].tree);
        k3_text_puts(out, "}");
    }
    k3_text_puts(out, "]");
}

void k3_canon_free_files(struct k3_file_entry *entries, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(entries[i].name);
    free(entries);
}
