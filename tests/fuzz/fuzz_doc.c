/* Purpose: fuzz target: documents as trees, and both forms of emitting them.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: a tree emits a text that decodes to a tree that emits the same text;
 * canonical JSON is a fixed point; every value answers as exactly one kind; counts are those of the
 * walk. */
#include "fuzz.h"

#include "doc.h"
#include "json_read.h"

#include <string.h>

#define NODES_MAX 4096 /* of one tree that are looked at: looking is linear in each container */

/* Values yet to be looked at; the tree has at most K3_JSON_DEPTH_MAX levels. */
struct stack {
    const struct k3_doc *next[K3_JSON_DEPTH_MAX + 1];
    unsigned depth;
};

static void look(const struct k3_doc *value)
{
    uint64_t integer = 0;
    bool flag;
    bool is_integer = k3_doc_integer(value, &integer);
    int kinds = is_integer + k3_doc_bool(value, &flag) + (k3_doc_string(value) != NULL) +
                k3_doc_is_object(value) + k3_doc_is_array(value);
    FUZZ_CHECK(kinds <= 1); /* 0: null, or a number that is no exact integer */
    FUZZ_CHECK(!is_integer || integer < UINT64_C(1) << 53);
    uint32_t count = 0;
    for (const struct k3_doc *at = k3_doc_first(value); at; at = k3_doc_next(at)) {
        count++;
        FUZZ_CHECK(!k3_doc_is_object(value) || k3_doc_name(at) != NULL);
    }
    FUZZ_CHECK(count == k3_doc_count(value));
    FUZZ_CHECK(count == 0 || k3_doc_is_object(value) || k3_doc_is_array(value));
}

static void look_at_all(const struct k3_doc *root)
{
    struct stack stack = {.next = {root}, .depth = 1};
    for (unsigned seen = 0; stack.depth && seen < NODES_MAX;) {
        const struct k3_doc *at = stack.next[stack.depth - 1];
        if (!at) {
            stack.depth--;
            continue;
        }
        seen++;
        look(at);
        stack.next[stack.depth - 1] = at == root ? NULL : k3_doc_next(at);
        const struct k3_doc *child = k3_doc_first(at);
        FUZZ_CHECK(!child || stack.depth <= K3_JSON_DEPTH_MAX);
        if (child)
            stack.next[stack.depth++] = child;
    }
}

typedef int (*emit_fn)(const struct k3_doc *root, struct k3_text *out, struct k3_err *err);

/* Emit, decode, emit: the same text.  False where the form cannot hold the tree. */
static bool check_form(const struct k3_doc *root, emit_fn emit)
{
    struct k3_text text, again;
    struct k3_doc *copy;
    struct k3_err err;
    k3_text_init(&text);
    k3_text_init(&again);
    k3_err_init(&err);
    int rc = emit(root, &text, &err);
    fuzz_check_err(rc, &err, 0);
    if (!rc) {
        FUZZ_CHECK(k3_doc_decode("fuzz", text.data, text.bytes, &copy, &err) == 0);
        FUZZ_CHECK(emit(copy, &again, &err) == 0);
        FUZZ_CHECK(again.bytes == text.bytes && !memcmp(again.data, text.data, text.bytes));
        k3_doc_free(copy);
    }
    k3_text_fini(&text);
    k3_text_fini(&again);
    return rc == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct k3_doc *root;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_doc_decode("fuzz", (const char *)data, bytes, &root, &err);
    fuzz_check_err(rc, &err, bytes);
    FUZZ_CHECK((rc == 0) == (root != NULL));
    if (rc)
        return 0;
    FUZZ_CHECK(k3_doc_is_object(root));
    look_at_all(root);
    k3_doc_find(root, "text_config.linear_attn_config.kda_layers");
    k3_doc_find(root, "a.b");
    k3_doc_find(root, "");
    FUZZ_CHECK(check_form(root, k3_doc_encode));
    check_form(root, k3_doc_encode_canonical);
    k3_doc_free(root);
    return 0;
}
