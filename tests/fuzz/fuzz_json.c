/* Purpose: fuzz target: the strict JSON reader.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: tokens lie in the text and in order; containers pair up; an integer is what
 * its digits say; skipping, another depth and another base change no verdict; what was read,
 * written without blanks, reads as the same tokens. */
#include "fuzz.h"

#include "json_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One walk through a text. */
struct walk {
    struct k3_text out; /* the tokens as JSON without blanks */
    uint64_t token_count;
    uint64_t depth_seen; /* deepest nesting */
    uint64_t depth;
    bool after_value; /* a comma is due before the next one */
};

static void put_number(struct walk *walk, const struct k3_json_token *token)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, token->integer);
    if (token->type == K3_JSON_INTEGER)
        FUZZ_CHECK(token->bytes == strlen(digits) && !memcmp(token->text, digits, token->bytes));
    k3_text_put(&walk->out, token->text, token->bytes);
}

/* The token as JSON; a string is written by the emitter of the project. */
static void put_token(struct walk *walk, const struct k3_json_token *token)
{
    static const char *const word[] = {
        [K3_JSON_OBJECT_BEGIN] = "{", [K3_JSON_OBJECT_END] = "}", [K3_JSON_ARRAY_BEGIN] = "[",
        [K3_JSON_ARRAY_END] = "]",    [K3_JSON_TRUE] = "true",    [K3_JSON_FALSE] = "false",
        [K3_JSON_NULL] = "null"};
    bool ends = token->type == K3_JSON_OBJECT_END || token->type == K3_JSON_ARRAY_END;
    bool begins = token->type == K3_JSON_OBJECT_BEGIN || token->type == K3_JSON_ARRAY_BEGIN;
    if (token->type == K3_JSON_END)
        return;
    if (walk->after_value && !ends)
        k3_text_puts(&walk->out, ",");
    walk->after_value = !begins && token->type != K3_JSON_KEY;
    if (begins && ++walk->depth > walk->depth_seen)
        walk->depth_seen = walk->depth;
    if (ends)
        FUZZ_CHECK(walk->depth-- > 0);
    if (token->type == K3_JSON_KEY || token->type == K3_JSON_STRING) {
        FUZZ_CHECK(!memchr(token->text ? token->text : "", 0, token->bytes));
        char *string = fuzz_string((const uint8_t *)token->text, token->bytes);
        k3_text_put_json(&walk->out, string);
        free(string);
        if (token->type == K3_JSON_KEY)
            k3_text_puts(&walk->out, ":");
    } else if (token->type == K3_JSON_INTEGER || token->type == K3_JSON_NUMBER) {
        put_number(walk, token);
    } else {
        k3_text_puts(&walk->out, word[token->type]);
    }
}

static int walk_text(struct walk *walk, const char *text, size_t bytes, size_t base)
{
    struct k3_json *json;
    struct k3_json_token token = {.type = K3_JSON_NULL};
    struct k3_err err;
    size_t offset = base;
    k3_err_init(&err);
    memset(walk, 0, sizeof *walk);
    int rc = k3_json_open("fuzz", text, bytes, K3_JSON_DEPTH_MAX, &json, &err);
    if (!rc && base)
        k3_json_set_base(json, base);
    while (!rc && token.type != K3_JSON_END) {
        rc = k3_json_next(json, &token, &err);
        if (rc)
            break;
        FUZZ_CHECK(token.offset >= offset && token.offset <= base + bytes);
        offset = token.offset;
        if (token.in_document)
            FUZZ_CHECK(token.text >= text && token.text + token.bytes <= text + bytes);
        put_token(walk, &token);
        walk->token_count++;
    }
    fuzz_check_err(rc, &err, base + bytes);
    if (rc && json) { /* a failure stays one */
        struct k3_err later;
        k3_err_init(&later);
        FUZZ_CHECK(k3_json_next(json, &token, &later) == rc);
    } else if (!rc) {
        FUZZ_CHECK(walk->depth == 0);
        FUZZ_CHECK(k3_json_next(json, &token, &err) == 0 && token.type == K3_JSON_END);
    }
    k3_json_close(json);
    return rc;
}

/* Read the first token and skip the rest of its value. */
static int skip_text(const char *text, size_t bytes)
{
    struct k3_json *json;
    struct k3_json_token token;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_json_open("fuzz", text, bytes, K3_JSON_DEPTH_MAX, &json, &err);
    if (!rc)
        rc = k3_json_next(json, &token, &err);
    if (!rc)
        rc = k3_json_skip(json, &token, &err);
    if (!rc)
        rc = k3_json_expect(json, K3_JSON_END, "the end", &token, &err);
    fuzz_check_err(rc, &err, bytes);
    k3_json_close(json);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data;
    struct walk first, again;
    struct k3_err err;
    int rc = walk_text(&first, text, bytes, 0);
    FUZZ_CHECK(walk_text(&again, text, bytes, 8) == rc);
    k3_text_fini(&again.out);
    FUZZ_CHECK(skip_text(text, bytes) == rc);
    for (unsigned depth = 0; depth < 4; depth++) {
        k3_err_init(&err);
        int shallow = k3_json_check("fuzz", text, bytes, depth, &err);
        fuzz_check_err(shallow, &err, bytes);
        if (!rc)
            FUZZ_CHECK(shallow == (first.depth_seen > depth ? K3_ELIMIT : 0));
        else
            FUZZ_CHECK(shallow == rc || shallow == K3_ELIMIT);
    }
    if (!rc) {
        FUZZ_CHECK(!first.out.failed && first.out.bytes > 0);
        FUZZ_CHECK(walk_text(&again, first.out.data, first.out.bytes, 0) == 0);
        FUZZ_CHECK(again.token_count == first.token_count && again.out.bytes == first.out.bytes);
        FUZZ_CHECK(!memcmp(again.out.data, first.out.data, first.out.bytes));
        k3_text_fini(&again.out);
    }
    k3_text_fini(&first.out);
    return 0;
}
