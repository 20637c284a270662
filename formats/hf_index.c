/* Purpose: the index of a checkpoint, streamed.
 * Owns: nothing beyond the call.
 * Threads: any; pure.
 * Errors: K3_EFORMAT, K3_ELIMIT, K3_ENOMEM with file and byte; those of the callback pass through.
 * Invariants: the callback sees only names that FORMAT.md 1 allows, each tensor once. */
#include "hf_index.h"

#include "json_read.h"
#include "st.h"
#include "text.h"

#include <stdbool.h>
#include <string.h>

#define INDEX_BYTES_MAX      (1u << 30) /* FORMAT.md 1; K3's has 50 MB */
#define PLAIN_NAME_BYTES_MAX 255u       /* NAME_MAX of the common file systems */

#define ADVICE "get the index again from where it came from"

int k3_is_plain_name(const char *name)
{
    size_t bytes = 0;
    if (name[0] == '.')
        return 0;
    for (; name[bytes]; bytes++) {
        char c = name[bytes];
        if (bytes == PLAIN_NAME_BYTES_MAX || c < 0x21 || c > 0x7e || c == '/' || c == '"' ||
            c == '\\')
            return 0;
    }
    return bytes > 0;
}

struct decode {
    struct k3_json *json;
    const char *file;
    k3_index_entry_fn entry;
    void *context;
    struct k3_err *err;
    char tensor[K3_ST_NAME_BYTES_MAX + 1]; /* copies: a key lives until the next token only */
    char target[PLAIN_NAME_BYTES_MAX + 1];
    size_t target_bytes; /* 0: no plain name is in target */
};

static int fail_string(const struct decode *decode, const struct k3_json_token *token,
                       const char *what)
{
    char shown[K3_SHOWN_BYTES];
    return k3_fail_at(decode->err, K3_EFORMAT, decode->file, (int64_t)token->offset,
                      "%s: byte %zu: \"%s\" is not %s; " ADVICE, decode->file, token->offset,
                      k3_shown(token->text, token->bytes, shown), what);
}

/* Keep the file name of an entry where it is plain. */
static bool set_target(struct decode *decode, const struct k3_json_token *token)
{
    decode->target_bytes = 0;
    if (token->bytes >= sizeof decode->target)
        return false;
    memcpy(decode->target, token->text, token->bytes);
    decode->target[token->bytes] = 0;
    if (!k3_is_plain_name(decode->target))
        return false;
    decode->target_bytes = token->bytes;
    return true;
}

static int read_entry(struct decode *decode, const struct k3_json_token *key)
{
    if (!k3_st_is_name(key->text, key->bytes))
        return fail_string(decode, key,
                           "the name of a tensor (1 to 512 characters of A-Z a-z 0-9 _ . - /)");
    size_t tensor_bytes = key->bytes;
    memcpy(decode->tensor, key->text, tensor_bytes);
    decode->tensor[tensor_bytes] = 0;
    struct k3_json_token token;
    int rc = k3_json_expect(decode->json, K3_JSON_STRING, "an entry of weight_map", &token,
                            decode->err);
    if (rc)
        return rc;
    /* Neighbours mostly lie in one file: its name was checked with the entry before. */
    bool is_same = decode->target_bytes && token.bytes == decode->target_bytes &&
                   !memcmp(token.text, decode->target, token.bytes);
    if (!is_same && !set_target(decode, &token))
        return fail_string(
            decode, &token,
            "a plain file name (1 to 255 visible ASCII characters, no / \\ or \", no "
            "dot in front)");
    return decode->entry(decode->context, decode->tensor, tensor_bytes, decode->target,
                         decode->err);
}

static int read_weight_map(struct decode *decode)
{
    struct k3_json_token token;
    uint64_t count = 0;
    int rc = k3_json_expect(decode->json, K3_JSON_OBJECT_BEGIN, "weight_map", &token, decode->err);
    while (!rc) {
        rc = k3_json_next(decode->json, &token, decode->err);
        if (rc || token.type == K3_JSON_OBJECT_END)
            break;
        rc = read_entry(decode, &token);
        count++;
    }
    if (!rc && !count)
        rc = k3_fail_at(
            decode->err, K3_EFORMAT, decode->file, (int64_t)token.offset,
            "%s: byte %zu: weight_map is empty, it must name at least one tensor; " ADVICE,
            decode->file, token.offset);
    return rc;
}

static bool is_key(const struct k3_json_token *token, const char *name)
{
    return token->bytes == strlen(name) && !memcmp(token->text, name, token->bytes);
}

static int read_metadata(struct decode *decode, uint64_t *total_size)
{
    struct k3_json *json = decode->json;
    struct k3_json_token token;
    int rc = k3_json_expect(json, K3_JSON_OBJECT_BEGIN, "metadata", &token, decode->err);
    while (!rc) {
        rc = k3_json_next(json, &token, decode->err);
        if (rc || token.type == K3_JSON_OBJECT_END)
            return rc;
        if (is_key(&token, "total_size")) {
            rc = k3_json_expect(json, K3_JSON_INTEGER, "metadata.total_size", &token, decode->err);
            *total_size = token.integer;
            continue;
        }
        rc = k3_json_next(json, &token, decode->err);
        if (!rc)
            rc = k3_json_skip(json, &token, decode->err);
    }
    return rc;
}

static int read_root(struct decode *decode, uint64_t *total_size)
{
    struct k3_json *json = decode->json;
    struct k3_json_token token;
    bool has_map = false;
    int rc = k3_json_expect(json, K3_JSON_OBJECT_BEGIN, "the index", &token, decode->err);
    while (!rc) {
        rc = k3_json_next(json, &token, decode->err);
        if (rc || token.type == K3_JSON_OBJECT_END)
            break;
        if (is_key(&token, "weight_map")) {
            has_map = true;
            rc = read_weight_map(decode);
        } else if (is_key(&token, "metadata")) {
            rc = read_metadata(decode, total_size);
        } else {
            rc = k3_json_next(json, &token, decode->err);
            if (!rc)
                rc = k3_json_skip(json, &token, decode->err);
        }
    }
    if (!rc)
        rc = k3_json_expect(json, K3_JSON_END, "the index", &token, decode->err);
    if (!rc && !has_map)
        rc = k3_fail_at(
            decode->err, K3_EFORMAT, decode->file, -1,
            "%s: there is no weight_map, so this is not the index of a checkpoint; " ADVICE,
            decode->file);
    return rc;
}

int k3_index_decode(const char *file, const char *text, size_t bytes, struct k3_index_sink *sink,
                    struct k3_err *err)
{
    struct decode decode = {
        .file = file, .entry = sink->entry, .context = sink->context, .err = err};
    sink->total_size = UINT64_MAX;
    if (bytes > INDEX_BYTES_MAX)
        return k3_fail_at(err, K3_ELIMIT, file, -1,
                          "%s: %zu bytes are too much for an index, the limit is %u; " ADVICE, file,
                          bytes, INDEX_BYTES_MAX);
    int rc = k3_json_open(file, text, bytes, K3_JSON_DEPTH_MAX, &decode.json, err);
    if (!rc)
        rc = read_root(&decode, &sink->total_size);
    k3_json_close(decode.json);
    return rc;
}
