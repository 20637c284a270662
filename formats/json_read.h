/* The strict JSON reader: a pull parser over one text in memory, iterative, without a DOM.
 * It accepts RFC 8259 and nothing else, and less than that where readers differ: no BOM, no
 * duplicate member (compared after unescaping), no bad UTF-8 or lone surrogate, no raw control
 * byte, nesting up to depth_max. Every document of the project passes through it before anything
 * else looks at it. */
#ifndef K3_JSON_READ_H
#define K3_JSON_READ_H

#include "k3_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum k3_json_type {
    K3_JSON_OBJECT_BEGIN,
    K3_JSON_OBJECT_END,
    K3_JSON_ARRAY_BEGIN,
    K3_JSON_ARRAY_END,
    K3_JSON_KEY,
    K3_JSON_STRING,
    K3_JSON_INTEGER, /* 0|[1-9][0-9]*, fits 64 bits: value is exact */
    K3_JSON_NUMBER,  /* any other legal number */
    K3_JSON_TRUE,
    K3_JSON_FALSE,
    K3_JSON_NULL,
    K3_JSON_END /* the text ended after one complete value */
};

struct k3_json_token {
    enum k3_json_type type;
    const char *text; /* KEY, STRING: unescaped, valid until the next call; numbers: as written */
    size_t bytes;     /* length of text; it may hold a NUL only through \u0000, which is refused */
    uint64_t integer; /* INTEGER only */
    size_t offset;    /* where the token begins in the document */
    bool in_document; /* text points into the document (no escape) and is valid as long as it */
};

struct k3_json; /* one parse; owned by one thread */

#define K3_JSON_DEPTH_MAX 32 /* FORMAT.md 1; no document of ours needs more than 8 */

/* Begin to read `bytes` of text.  Borrows text and file (a name for messages) until close.
 * Fails: K3_ENOMEM; K3_EFORMAT for a BOM. */
int k3_json_open(const char *file, const char *text, size_t bytes, unsigned depth_max,
                 struct k3_json **out, struct k3_err *err);

/* The next token.  Fails: K3_EFORMAT with file and byte offset; K3_ELIMIT (depth, 64-bit keys);
 * K3_ENOMEM. */
int k3_json_next(struct k3_json *json, struct k3_json_token *token, struct k3_err *err);

/* Read and drop the rest of the value whose first token was `token` (a whole object or array, or
 * nothing). */
int k3_json_skip(struct k3_json *json, const struct k3_json_token *token, struct k3_err *err);

/* Next token must be of `type`; else K3_EFORMAT naming `what` (e.g. "shape"). */
int k3_json_expect(struct k3_json *json, enum k3_json_type type, const char *what,
                   struct k3_json_token *token, struct k3_err *err);

/* Where the text begins in its file: offsets of tokens and of messages count from there.  Before
 * the first token. */
void k3_json_set_base(struct k3_json *json, size_t base_offset);

/* For messages: "an object", "a string", "the end of the text", ... */
const char *k3_json_type_name(enum k3_json_type type);

void k3_json_close(struct k3_json *json); /* NULL is fine */

/* Read the whole text once and drop it: 0 when it is one legal document. */
int k3_json_check(const char *file, const char *text, size_t bytes, unsigned depth_max,
                  struct k3_err *err);

#endif
