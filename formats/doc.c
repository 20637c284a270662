/* Purpose: documents as a tree, and the two forms in which trees are emitted.
 * Owns: the tree, a cJSON tree.  The only file that touches cJSON; cJSON never sees bytes from
 * outside: its nodes are made from the tokens of the strict reader.
 * Threads: a tree belongs to one thread at a time; looking is pure: finished trees may be shared.
 * Errors: K3_EFORMAT, K3_ELIMIT, K3_ENOMEM.
 * Invariants: a cJSON number is an exact integer 0 <= x < 2^53; every other number is a cJSON raw
 * value that holds its characters, so 1.0, 1e3 and -0 can never pass for integers. */
#include "doc.h"

#include "json_read.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INTEGER_END     (UINT64_C(1) << 53) /* a double holds every integer below it */
#define PLACE_BYTES     sizeof(void *)      /* an element of a sorted list */
#define VALUE_COUNT_MAX 4194304u /* twice what a manifest of 64 MiB can hold; 400 MB of tree */

static const cJSON *node(const struct k3_doc *value)
{
    return (const cJSON *)value;
}

static struct k3_doc *doc(cJSON *value)
{
    return (struct k3_doc *)value;
}

/* ---- decode ---- */

struct builder {
    const char *file;
    struct k3_text name;   /* of the member whose value comes next, NUL-terminated */
    struct k3_text string; /* a token's text with a NUL */
    cJSON *root;
    cJSON *open[K3_JSON_DEPTH_MAX]; /* the containers that are open, outermost first */
    unsigned depth;
    uint32_t value_count;
};

static int fail_memory(const struct builder *builder, struct k3_err *err)
{
    return k3_fail(err, K3_ENOMEM,
                   "%s: no memory for a tree of %" PRIu32 " values; free some memory and run again",
                   builder->file, builder->value_count);
}

static const char *terminated(struct k3_text *text, const struct k3_json_token *token)
{
    text->bytes = 0;
    k3_text_put(text, token->text, token->bytes);
    return text->failed ? NULL : text->data;
}

/* The node of a token that begins a value; NULL without memory. */
static cJSON *make(struct builder *builder, const struct k3_json_token *token)
{
    const char *string;
    switch (token->type) {
    case K3_JSON_OBJECT_BEGIN:
        return cJSON_CreateObject();
    case K3_JSON_ARRAY_BEGIN:
        return cJSON_CreateArray();
    case K3_JSON_STRING:
        string = terminated(&builder->string, token);
        return string ? cJSON_CreateString(string) : NULL;
    case K3_JSON_TRUE:
        return cJSON_CreateTrue();
    case K3_JSON_FALSE:
        return cJSON_CreateFalse();
    case K3_JSON_NULL:
        return cJSON_CreateNull();
    case K3_JSON_INTEGER:
        if (token->integer < INTEGER_END)
            return cJSON_CreateNumber((double)token->integer);
        break;
    default:
        break;
    }
    string = terminated(&builder->string, token);
    return string ? cJSON_CreateRaw(string) : NULL;
}

static int add(struct builder *builder, const struct k3_json_token *token, struct k3_err *err)
{
    if (builder->value_count == VALUE_COUNT_MAX)
        return k3_fail_at(
            err, K3_ELIMIT, builder->file, (int64_t)token->offset,
            "%s: byte %zu: more than %u values; no such document is expected here, get "
            "the file again from where it came from",
            builder->file, token->offset, VALUE_COUNT_MAX);
    builder->value_count++;
    cJSON *value = make(builder, token);
    if (!value)
        return fail_memory(builder, err);
    cJSON *parent = builder->depth ? builder->open[builder->depth - 1] : NULL;
    bool added = true;
    if (!parent)
        builder->root = value;
    else if (cJSON_IsArray(parent))
        added = cJSON_AddItemToArray(parent, value);
    else
        added = cJSON_AddItemToObject(parent, builder->name.data, value);
    if (!added) {
        cJSON_Delete(value);
        return fail_memory(builder, err);
    }
    if (token->type == K3_JSON_OBJECT_BEGIN || token->type == K3_JSON_ARRAY_BEGIN)
        builder->open[builder->depth++] = value;
    return 0;
}

static int build(struct builder *builder, struct k3_json *json, struct k3_err *err)
{
    struct k3_json_token token;
    int rc = k3_json_expect(json, K3_JSON_OBJECT_BEGIN, "the document", &token, err);
    while (!rc && token.type != K3_JSON_END) {
        if (token.type == K3_JSON_OBJECT_END || token.type == K3_JSON_ARRAY_END)
            builder->depth--;
        else if (token.type != K3_JSON_KEY)
            rc = add(builder, &token, err);
        else if (!terminated(&builder->name, &token))
            rc = fail_memory(builder, err);
        if (!rc)
            rc = k3_json_next(json, &token, err);
    }
    return rc;
}

int k3_doc_decode(const char *file, const char *text, size_t bytes, struct k3_doc **root,
                  struct k3_err *err)
{
    *root = NULL;
    struct builder builder = {.file = file};
    struct k3_json *json;
    int rc = k3_json_open(file, text, bytes, K3_JSON_DEPTH_MAX, &json, err);
    if (rc)
        return rc;
    rc = build(&builder, json, err);
    if (rc)
        cJSON_Delete(builder.root);
    else
        *root = doc(builder.root);
    k3_json_close(json);
    k3_text_fini(&builder.name);
    k3_text_fini(&builder.string);
    return rc;
}

void k3_doc_free(struct k3_doc *root)
{
    cJSON_Delete((cJSON *)root); /* recursive inside cJSON, at most K3_JSON_DEPTH_MAX deep */
}

/* ---- looking ---- */

/* The member whose name is the `bytes` characters at name. */
static const cJSON *member(const cJSON *object, const char *name, size_t bytes)
{
    if (!cJSON_IsObject(object))
        return NULL;
    for (const cJSON *at = object->child; at; at = at->next)
        if (!strncmp(at->string, name, bytes) && !at->string[bytes])
            return at;
    return NULL;
}

const struct k3_doc *k3_doc_find(const struct k3_doc *object, const char *path)
{
    const cJSON *at = node(object);
    for (;;) {
        size_t bytes = strcspn(path, ".");
        at = member(at, path, bytes);
        if (!at || !path[bytes])
            return (const struct k3_doc *)at;
        path += bytes + 1;
    }
}

bool k3_doc_is_object(const struct k3_doc *value)
{
    return cJSON_IsObject(node(value));
}

bool k3_doc_is_array(const struct k3_doc *value)
{
    return cJSON_IsArray(node(value));
}

uint32_t k3_doc_count(const struct k3_doc *value)
{
    uint32_t count = 0;
    for (const struct k3_doc *at = k3_doc_first(value); at; at = k3_doc_next(at))
        count++;
    return count;
}

const struct k3_doc *k3_doc_first(const struct k3_doc *value)
{
    return value ? (const struct k3_doc *)node(value)->child : NULL;
}

const struct k3_doc *k3_doc_next(const struct k3_doc *value)
{
    return (const struct k3_doc *)node(value)->next;
}

const char *k3_doc_name(const struct k3_doc *value)
{
    return node(value)->string;
}

bool k3_doc_integer(const struct k3_doc *value, uint64_t *out)
{
    if (!cJSON_IsNumber(node(value)))
        return false;
    *out = (uint64_t)node(value)->valuedouble;
    return true;
}

bool k3_doc_bool(const struct k3_doc *value, bool *out)
{
    if (!cJSON_IsBool(node(value)))
        return false;
    *out = cJSON_IsTrue(node(value));
    return true;
}

bool k3_doc_double(const struct k3_doc *value, double *out)
{
    if (cJSON_IsRaw(node(value))) /* a legal number: the strict reader saw it */
        *out = strtod(node(value)->valuestring, NULL);
    else if (cJSON_IsNumber(node(value)))
        *out = node(value)->valuedouble;
    else
        return false;
    return true;
}

const char *k3_doc_string(const struct k3_doc *value)
{
    return cJSON_IsString(node(value)) ? node(value)->valuestring : NULL;
}

/* ---- emit ---- */

struct level {
    const cJSON *container;
    const cJSON *at;      /* next child to emit, where not sorted */
    const cJSON **sorted; /* children of an object in canonical order; owned */
    uint32_t count;       /* of sorted */
    uint32_t done;        /* children emitted */
};

struct emitter {
    struct k3_text *out;
    struct level level[K3_JSON_DEPTH_MAX];
    unsigned depth;
    bool canonical;
};

static int compare_names(const void *a, const void *b)
{
    const cJSON *const *left = a, *const *right = b;
    return strcmp((*left)->string, (*right)->string); /* as unsigned bytes: C11 7.24.4 */
}

static int open_level(struct emitter *emitter, const cJSON *container, struct k3_err *err)
{
    if (emitter->depth == K3_JSON_DEPTH_MAX)
        return k3_fail(err, K3_ELIMIT,
                       "a document to be written is nested deeper than %d; please report this",
                       K3_JSON_DEPTH_MAX);
    struct level *level = &emitter->level[emitter->depth];
    *level = (struct level){.container = container, .at = container->child};
    if (emitter->canonical && cJSON_IsObject(container)) {
        level->count = k3_doc_count((const struct k3_doc *)container);
        level->sorted = malloc(((size_t)level->count + 1) * PLACE_BYTES);
        if (!level->sorted)
            return k3_fail(err, K3_ENOMEM,
                           "no memory to sort %" PRIu32 " members; free some memory and run again",
                           level->count);
        uint32_t i = 0;
        for (const cJSON *at = container->child; at; at = at->next)
            level->sorted[i++] = at;
        qsort(level->sorted, level->count, PLACE_BYTES, compare_names);
    }
    k3_text_puts(emitter->out, cJSON_IsObject(container) ? "{" : "[");
    emitter->depth++;
    return 0;
}

/* The next child to emit of the innermost level; NULL at its end. */
static const cJSON *next_child(struct level *level)
{
    if (level->sorted)
        return level->done < level->count ? level->sorted[level->done] : NULL;
    const cJSON *at = level->at;
    level->at = at ? at->next : NULL;
    return at;
}

static int emit_string(const struct emitter *emitter, const char *string, struct k3_err *err)
{
    for (const char *at = string; emitter->canonical && *at; at++) {
        char shown[K3_SHOWN_BYTES];
        if (*at < 0x20 || *at > 0x7e)
            return k3_fail(
                err, K3_EFORMAT,
                "canonical JSON cannot hold the string \"%s\": only the characters 0x20 to "
                "0x7e are allowed in it",
                k3_shown(string, strlen(string), shown));
    }
    k3_text_put_json(emitter->out, string);
    return 0;
}

static int emit_value(struct emitter *emitter, const cJSON *value, struct k3_err *err)
{
    if (cJSON_IsObject(value) || cJSON_IsArray(value))
        return open_level(emitter, value, err);
    if (cJSON_IsString(value))
        return emit_string(emitter, value->valuestring, err);
    if (cJSON_IsNumber(value)) {
        k3_text_putu(emitter->out, (uint64_t)value->valuedouble);
        return 0;
    }
    const char *text = cJSON_IsRaw(value)     ? value->valuestring
                       : cJSON_IsTrue(value)  ? "true"
                       : cJSON_IsFalse(value) ? "false"
                                              : "null";
    if (emitter->canonical) {
        char shown[K3_SHOWN_BYTES];
        return k3_fail(err, K3_EFORMAT,
                       "canonical JSON cannot hold %s%s%s: wanted an integer from 0 to 2^53-1, a "
                       "string, an array or an object",
                       value->string ? "the member " : "",
                       value->string ? k3_shown(value->string, strlen(value->string), shown) : "",
                       cJSON_IsRaw(value) ? " (a number of another kind)"
                                          : " (true, false or null)");
    }
    k3_text_puts(emitter->out, text);
    return 0;
}

/* Emit the next child of the innermost level with what stands in front of it, or close the level.
 */
static int emit_next(struct emitter *emitter, struct k3_err *err)
{
    struct level *level = &emitter->level[emitter->depth - 1];
    const cJSON *child = next_child(level);
    bool is_object = cJSON_IsObject(level->container);
    if (!child) {
        k3_text_puts(emitter->out, is_object ? "}" : "]");
        free(level->sorted);
        level->sorted = NULL;
        emitter->depth--;
        return 0;
    }
    if (level->done++)
        k3_text_puts(emitter->out, ",");
    if (is_object) {
        int rc = emit_string(emitter, child->string, err);
        if (rc)
            return rc;
        k3_text_puts(emitter->out, ":");
    }
    return emit_value(emitter, child, err);
}

static int emit(const struct k3_doc *root, bool canonical, struct k3_text *out, struct k3_err *err)
{
    struct emitter emitter = {.out = out, .canonical = canonical};
    int rc = emit_value(&emitter, node(root), err);
    while (!rc && emitter.depth)
        rc = emit_next(&emitter, err);
    for (unsigned i = 0; i < K3_JSON_DEPTH_MAX; i++)
        free(emitter.level[i].sorted);
    return rc ? rc : k3_text_check(out, err);
}

int k3_doc_encode_canonical(const struct k3_doc *root, struct k3_text *out, struct k3_err *err)
{
    return emit(root, true, out, err);
}

int k3_doc_encode(const struct k3_doc *root, struct k3_text *out, struct k3_err *err)
{
    return emit(root, false, out, err);
}

/* ---- build ---- */

/* Append value to an array (name NULL) or an object; frees it where that fails.  value may be NULL.
 */
static cJSON *append(struct k3_doc *parent, const char *name, cJSON *value)
{
    cJSON *to = (cJSON *)parent;
    bool added = value && to;
    if (added)
        added = name ? cJSON_AddItemToObject(to, name, value) : cJSON_AddItemToArray(to, value);
    if (added)
        return value;
    cJSON_Delete(value);
    return NULL;
}

struct k3_doc *k3_doc_new_object(void)
{
    return doc(cJSON_CreateObject());
}

struct k3_doc *k3_doc_add_object(struct k3_doc *object, const char *name)
{
    return doc(append(object, name, cJSON_CreateObject()));
}

struct k3_doc *k3_doc_add_array(struct k3_doc *object, const char *name)
{
    return doc(append(object, name, cJSON_CreateArray()));
}

bool k3_doc_add_string(struct k3_doc *object, const char *name, const char *string)
{
    return append(object, name, cJSON_CreateString(string)) != NULL;
}

bool k3_doc_add_integer(struct k3_doc *object, const char *name, uint64_t value)
{
    if (value < INTEGER_END)
        return append(object, name, cJSON_CreateNumber((double)value)) != NULL;
    char digits[21]; /* 2^64 - 1 has 20 */
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return append(object, name, cJSON_CreateRaw(digits)) != NULL;
}

bool k3_doc_add_double(struct k3_doc *object, const char *name, double value)
{
    assert(isfinite(value));
    char text[32]; /* %.6g has at most 13 characters */
    snprintf(text, sizeof text, "%.6g", value);
    char *comma = strchr(text, ','); /* a host program may have set such a locale */
    if (comma)
        *comma = '.';
    return append(object, name, cJSON_CreateRaw(text)) != NULL;
}

bool k3_doc_add_bool(struct k3_doc *object, const char *name, bool value)
{
    return append(object, name, cJSON_CreateBool(value)) != NULL;
}
