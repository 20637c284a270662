/* Purpose: the strict JSON reader, a pull parser.
 * Owns: its stack of open containers, the names seen in open objects, the last unescaped string.
 * Threads: a parse belongs to one thread at a time.
 * Errors: K3_EFORMAT, K3_ELIMIT, K3_ENOMEM with file and byte; each further call fails as well.
 * Invariants: pos <= bytes; memory grows with the text read, never with a number written in it;
 * names of closed objects are gone, so a name costs what its own object costs; work is linear. */
#include "json_read.h"

#include "bytes.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#define LINEAR_KEYS 8u   /* so many names are compared one by one: a tensor has 3 */
#define FIRST_KEYS  64u  /* first room for names: one step serves all small documents */
#define FIRST_SLOTS 256u /* first table, a power of two: 2 KiB, for objects of > LINEAR_KEYS */
#define KEYS_MAX    0x7fffffffu /* names at a time: stored as number + 1 in 32 bits */

#define ADVICE "get the file again from where it came from"

enum state {
    STATE_VALUE,       /* a value must follow */
    STATE_FIRST_VALUE, /* a value or ']' */
    STATE_FIRST_KEY,   /* a name or '}' */
    STATE_AFTER_VALUE, /* ',' or the end of the container, or of the text */
    STATE_DONE
};

struct frame {
    size_t arena_bytes; /* of json->arena when the object began */
    uint32_t first_key; /* its names are keys[first_key ...] while it is the innermost */
    bool is_object;
};

struct key {
    uint64_t hash;  /* 0: not in the table */
    uint64_t place; /* in the document, or in the arena where it had escapes */
    uint32_t bytes;
    bool in_arena;
};

struct slot {
    uint32_t tag;    /* low half of the hash: spares most looks at the name itself */
    uint32_t number; /* of the key, + 1; 0: empty */
};

struct k3_json {
    const char *file;
    const char *text;
    size_t bytes;
    size_t pos;
    size_t base_offset; /* of text in its file */
    struct key *keys;   /* a stack: names of all open objects, outermost first */
    struct slot *slots; /* open addressing, linear probing, at most half full */
    uint64_t slot_mask;
    struct k3_text arena;   /* unescaped names of open objects */
    struct k3_text scratch; /* the last unescaped string */
    uint64_t seed[2];
    uint32_t key_count;
    uint32_t key_cap;
    uint32_t slots_used;
    unsigned depth;
    unsigned depth_max;
    int rc; /* first failure, sticky */
    enum state state;
    struct frame frames[K3_JSON_DEPTH_MAX];
};

/* ---- failures ---- */

static int fail_at(const struct k3_json *json, size_t pos, const char *what, struct k3_err *err)
{
    int64_t offset = (int64_t)(json->base_offset + pos);
    return k3_fail_at(err, K3_EFORMAT, json->file, offset, "%s: byte %" PRId64 ": %s; " ADVICE,
                      json->file, offset, what);
}

/* "wanted X, found Y" at pos. */
static int fail_wanted(const struct k3_json *json, size_t pos, const char *wanted,
                       struct k3_err *err)
{
    int64_t offset = (int64_t)(json->base_offset + pos);
    char shown[K3_SHOWN_BYTES];
    if (pos >= json->bytes)
        return k3_fail_at(err, K3_EFORMAT, json->file, offset,
                          "%s: byte %" PRId64 ": wanted %s, found the end of the text; " ADVICE,
                          json->file, offset, wanted);
    return k3_fail_at(err, K3_EFORMAT, json->file, offset,
                      "%s: byte %" PRId64 ": wanted %s, found '%s'; " ADVICE, json->file, offset,
                      wanted, k3_shown(json->text + pos, 1, shown));
}

static int fail_memory(const struct k3_json *json, struct k3_err *err)
{
    return k3_fail_at(
        err, K3_ENOMEM, json->file, (int64_t)(json->base_offset + json->pos),
        "%s: no memory to read a document of %zu bytes; free some memory and run again", json->file,
        json->bytes);
}

/* ---- names of the open objects ----
 * Objects close innermost first, so entries leave the table in the reverse order of their coming.
 * With linear probing that restores each earlier state exactly: no tombstones, nothing left behind
 * by closed objects. */

__extension__ typedef unsigned __int128 wide;

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A keyed hash: whoever writes the document must not be able to choose names that all meet in one
 * slot.  Two names with equal hashes are still compared, so the key changes speed only, never a
 * result. */
static uint64_t hash_key(const struct k3_json *json, const char *p, size_t bytes)
{
    uint64_t hash = json->seed[0] ^ ((uint64_t)bytes << 8) ^ json->depth;
    size_t left = bytes;
    for (; left > 16; left -= 16, p += 16)
        hash = mix(k3_load_le64(p) ^ json->seed[1], k3_load_le64(p + 8) ^ hash);
    char tail[16] = {0};
    if (bytes >= 16) /* the last 16 bytes, some of them for the second time: cheaper than a copy */
        p -= 16 - left;
    else
        p = memcpy(tail, p, left);
    hash = mix(k3_load_le64(p) ^ json->seed[1], k3_load_le64(p + 8) ^ hash);
    return mix(hash ^ json->seed[0], json->seed[1] | 1) | 1;
}

static const char *key_text(const struct k3_json *json, const struct key *key)
{
    return (key->in_arena ? json->arena.data : json->text) + key->place;
}

static bool key_equal(const struct k3_json *json, const struct key *a, const char *text,
                      size_t bytes)
{
    return a->bytes == bytes && !memcmp(key_text(json, a), text, bytes);
}

static void table_put(struct k3_json *json, uint32_t number)
{
    uint64_t hash = json->keys[number].hash;
    uint64_t at = hash >> 32;
    while (json->slots[at & json->slot_mask].number)
        at++;
    json->slots[at & json->slot_mask] = (struct slot){(uint32_t)hash, number + 1};
    json->slots_used++;
}

static void table_take(struct k3_json *json, uint32_t number)
{
    uint64_t at = json->keys[number].hash >> 32;
    while (json->slots[at & json->slot_mask].number != number + 1)
        at++;
    json->slots[at & json->slot_mask].number = 0;
    json->slots_used--;
}

/* Room for one more entry.  All entries are put anew in the order of their coming. */
static bool table_grow(struct k3_json *json)
{
    uint64_t count = json->slots ? json->slot_mask + 1 : 0;
    if (((uint64_t)json->slots_used + 1) * 2 <= count)
        return true;
    count = count ? count * 2 : FIRST_SLOTS;
    struct slot *slots = calloc(count, sizeof *slots);
    if (!slots)
        return false;
    free(json->slots);
    json->slots = slots;
    json->slot_mask = count - 1;
    json->slots_used = 0;
    for (uint32_t i = 0; i < json->key_count; i++)
        if (json->keys[i].hash)
            table_put(json, i);
    return true;
}

/* True where keys[first ...] hold this name; for the innermost object only. */
static bool table_has(const struct k3_json *json, uint64_t hash, const char *text, size_t bytes)
{
    uint32_t first = json->frames[json->depth - 1].first_key;
    for (uint64_t at = hash >> 32;; at++) {
        struct slot slot = json->slots[at & json->slot_mask];
        if (!slot.number)
            return false;
        if (slot.tag == (uint32_t)hash && slot.number > first &&
            key_equal(json, &json->keys[slot.number - 1], text, bytes))
            return true;
    }
}

/* Is the name new in the innermost object?  *hash is 0 while the object is small enough for no
 * table. */
static int key_look(struct k3_json *json, const struct k3_json_token *token, uint64_t *hash,
                    struct k3_err *err)
{
    uint32_t first = json->frames[json->depth - 1].first_key;
    bool twice = false;
    *hash = 0;
    if (json->key_count - first < LINEAR_KEYS) {
        for (uint32_t i = first; i < json->key_count && !twice; i++)
            twice = key_equal(json, &json->keys[i], token->text, token->bytes);
    } else {
        for (uint32_t i = first; i < json->key_count && !json->keys[i].hash; i++) {
            struct key *key = &json->keys[i];
            if (!table_grow(json))
                return fail_memory(json, err);
            key->hash = hash_key(json, key_text(json, key), key->bytes);
            table_put(json, i);
        }
        if (!table_grow(json))
            return fail_memory(json, err);
        *hash = hash_key(json, token->text, token->bytes);
        twice = table_has(json, *hash, token->text, token->bytes);
    }
    if (!twice)
        return 0;
    char shown[K3_SHOWN_BYTES];
    return k3_fail_at(
        err, K3_EFORMAT, json->file, (int64_t)token->offset,
        "%s: byte %zu: the member \"%s\" comes for the second time in one object; " ADVICE,
        json->file, token->offset, k3_shown(token->text, token->bytes, shown));
}

static int key_add(struct k3_json *json, const struct k3_json_token *token, struct k3_err *err)
{
    if (json->key_count >= KEYS_MAX || token->bytes > UINT32_MAX)
        return k3_fail_at(
            err, K3_ELIMIT, json->file, (int64_t)token->offset,
            "%s: byte %zu: more than %u members are open at once, or a name is longer than "
            "4 GiB; " ADVICE,
            json->file, token->offset, KEYS_MAX);
    uint64_t hash;
    int rc = key_look(json, token, &hash, err);
    if (rc)
        return rc;
    if (json->key_count == json->key_cap) {
        uint32_t cap = json->key_cap ? json->key_cap * 2 : FIRST_KEYS;
        struct key *keys = realloc(json->keys, cap * sizeof *keys);
        if (!keys)
            return fail_memory(json, err);
        json->keys = keys;
        json->key_cap = cap;
    }
    struct key *key = &json->keys[json->key_count];
    key->hash = hash;
    key->bytes = (uint32_t)token->bytes;
    key->in_arena = !token->in_document;
    if (token->in_document) {
        key->place = (uint64_t)(token->text - json->text);
    } else {
        key->place = json->arena.bytes;
        k3_text_put(&json->arena, token->text, token->bytes);
        if (json->arena.failed)
            return fail_memory(json, err);
    }
    json->key_count++;
    if (hash)
        table_put(json, json->key_count - 1);
    return 0;
}

/* Forget the names of the object that closes.  The outermost one ends the parse: nothing is looked
 * up again. */
static void keys_drop(struct k3_json *json, const struct frame *frame)
{
    for (uint32_t i = json->key_count; i > frame->first_key && json->depth > 1; i--)
        if (json->keys[i - 1].hash)
            table_take(json, i - 1);
    json->key_count = frame->first_key;
    json->arena.bytes = frame->arena_bytes;
}

/* ---- strings ---- */

/* First place at or behind pos whose byte is '"', '\\', a control byte or not ASCII; bytes where
 * there is none. */
static size_t plain_end(const char *text, size_t pos, size_t bytes)
{
    const uint64_t ones = 0x0101010101010101u;
    for (; bytes - pos >= 8; pos += 8) {
        uint64_t x = k3_load_le64(text + pos);
        /* A borrow can only come out of a byte that is itself marked, so the lowest mark is always
         * true. */
        uint64_t marks = (x | (x - ones * 0x20) | ((x ^ (ones * '"')) - ones) |
                          ((x ^ (ones * '\\')) - ones)) &
                         (ones * 0x80);
        if (marks)
            return pos + (size_t)__builtin_ctzll(marks) / 8;
    }
    for (; pos < bytes; pos++) {
        unsigned char c = (unsigned char)text[pos];
        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\')
            break;
    }
    return pos;
}

/* Four hex digits at pos, either case; -1 where they are not. */
static int32_t hex4(const struct k3_json *json, size_t pos)
{
    if (json->bytes - pos < 4)
        return -1;
    int32_t value = 0;
    for (size_t i = 0; i < 4; i++) {
        char c = json->text[pos + i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

static void put_utf8(struct k3_text *text, uint32_t c)
{
    char b[4];
    size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = bytes - 1; i > 0; i--, c >>= 6)
        b[i] = (char)(0x80 | (c & 0x3f));
    b[0] = (char)(lead[bytes] | c);
    k3_text_put(text, b, bytes);
}

/* \uXXXX, or a pair of them, at *pos. */
static int read_unicode(struct k3_json *json, size_t *pos, struct k3_err *err)
{
    int32_t unit = hex4(json, *pos + 2);
    if (unit < 0)
        return fail_at(json, *pos, "\\u is not followed by four hex digits", err);
    uint32_t c = (uint32_t)unit;
    size_t length = 6;
    if (c >= 0xd800 && c <= 0xdbff) {
        size_t next = *pos + 6;
        bool is_pair = json->bytes - next >= 2 && json->text[next] == '\\' &&
                       json->text[next + 1] == 'u';
        int32_t low = is_pair ? hex4(json, next + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return fail_at(json, *pos, "half of a surrogate pair stands alone", err);
        c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
        length = 12;
    } else if (c >= 0xdc00 && c <= 0xdfff) {
        return fail_at(json, *pos, "half of a surrogate pair stands alone", err);
    }
    if (!c)
        return fail_at(json, *pos, "a string holds the character NUL (\\u0000)", err);
    put_utf8(&json->scratch, c);
    *pos += length;
    return 0;
}

static int read_escape(struct k3_json *json, size_t *pos, struct k3_err *err)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    if (*pos + 1 == json->bytes)
        return fail_wanted(json, *pos + 1, "the rest of an escape", err);
    char c = json->text[*pos + 1];
    if (c == 'u')
        return read_unicode(json, pos, err);
    const char *at = memchr(from, c, sizeof from - 1);
    if (!at)
        return fail_wanted(json, *pos + 1, "one of \"\\/bfnrtu behind a backslash", err);
    k3_text_put(&json->scratch, &to[at - from], 1);
    *pos += 2;
    return 0;
}

/* The string whose quote is at pos. */
static int read_string(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    const char *text = json->text;
    size_t begin = json->pos + 1; /* of the run that is not yet in the scratch */
    size_t pos = begin;
    bool escaped = false;
    json->scratch.bytes = 0;
    for (;;) {
        pos = plain_end(text, pos, json->bytes);
        if (pos == json->bytes)
            return fail_at(json, json->pos, "a string begins here and has no closing quote", err);
        unsigned char c = (unsigned char)text[pos];
        if (c == '"')
            break;
        if (c >= 0x80) {
            size_t length = k3_utf8_bytes(text + pos, json->bytes - pos);
            if (!length)
                return fail_at(json, pos, "bytes that are not UTF-8", err);
            pos += length;
        } else if (c == '\\') {
            escaped = true;
            k3_text_put(&json->scratch, text + begin, pos - begin);
            int rc = read_escape(json, &pos, err);
            if (rc)
                return rc;
            begin = pos;
        } else {
            return fail_at(json, pos, "a control byte inside a string", err);
        }
    }
    token->in_document = !escaped;
    token->text = text + begin;
    token->bytes = pos - begin;
    if (escaped) {
        k3_text_put(&json->scratch, text + begin, pos - begin);
        if (json->scratch.failed)
            return fail_memory(json, err);
        token->text = json->scratch.data;
        token->bytes = json->scratch.bytes;
    }
    json->pos = pos + 1;
    return 0;
}

/* ---- numbers and words ---- */

static bool is_digit(const struct k3_json *json, size_t pos)
{
    return pos < json->bytes && json->text[pos] >= '0' && json->text[pos] <= '9';
}

static size_t digits_end(const struct k3_json *json, size_t pos)
{
    while (is_digit(json, pos))
        pos++;
    return pos;
}

static void set_integer(const struct k3_json *json, size_t end, struct k3_json_token *token)
{
    uint64_t value = 0;
    for (size_t i = json->pos; i < end; i++)
        if (!k3_mul_fits(value, 10, &value) ||
            !k3_add_fits(value, (uint64_t)(json->text[i] - '0'), &value))
            return; /* stays a K3_JSON_NUMBER */
    token->type = K3_JSON_INTEGER;
    token->integer = value;
}

static int read_number(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    const char *text = json->text;
    bool is_plain = text[json->pos] != '-';
    size_t pos = json->pos + !is_plain;
    if (!is_digit(json, pos))
        return fail_wanted(json, pos, "a digit", err);
    bool is_zero = text[pos] == '0';
    pos = is_zero ? pos + 1 : digits_end(json, pos);
    if (is_zero && is_digit(json, pos))
        return fail_at(json, json->pos, "a number begins with a superfluous 0", err);
    size_t integer_end = pos;
    if (pos < json->bytes && text[pos] == '.') {
        if (!is_digit(json, pos + 1))
            return fail_wanted(json, pos + 1, "a digit", err);
        pos = digits_end(json, pos + 1);
    }
    if (pos < json->bytes && (text[pos] == 'e' || text[pos] == 'E')) {
        pos++;
        if (pos < json->bytes && (text[pos] == '+' || text[pos] == '-'))
            pos++;
        if (!is_digit(json, pos))
            return fail_wanted(json, pos, "a digit", err);
        pos = digits_end(json, pos);
    }
    token->type = K3_JSON_NUMBER;
    token->text = text + json->pos;
    token->bytes = pos - json->pos;
    token->in_document = true;
    if (is_plain && pos == integer_end)
        set_integer(json, pos, token);
    json->pos = pos;
    return 0;
}

static int read_word(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    static const struct {
        const char *text;
        size_t bytes;
        enum k3_json_type type;
    } word[] = {{"true", 4, K3_JSON_TRUE}, {"false", 5, K3_JSON_FALSE}, {"null", 4, K3_JSON_NULL}};
    for (size_t i = 0; i < sizeof word / sizeof *word; i++) {
        if (json->bytes - json->pos >= word[i].bytes &&
            !memcmp(json->text + json->pos, word[i].text, word[i].bytes)) {
            token->type = word[i].type;
            json->pos += word[i].bytes;
            return 0;
        }
    }
    return fail_wanted(json, json->pos, "a value", err);
}

/* ---- structure ---- */

static void skip_space(struct k3_json *json)
{
    while (json->pos < json->bytes) {
        char c = json->text[json->pos];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return;
        json->pos++;
    }
}

static bool is_next(const struct k3_json *json, char c)
{
    return json->pos < json->bytes && json->text[json->pos] == c;
}

static int open_container(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    if (json->depth == json->depth_max)
        return k3_fail_at(
            err, K3_ELIMIT, json->file, (int64_t)token->offset,
            "%s: byte %zu: objects and arrays are nested deeper than %u; no such document is "
            "expected here, " ADVICE,
            json->file, token->offset, json->depth_max);
    struct frame *frame = &json->frames[json->depth++];
    frame->is_object = json->text[json->pos++] == '{';
    frame->first_key = json->key_count;
    frame->arena_bytes = json->arena.bytes;
    token->type = frame->is_object ? K3_JSON_OBJECT_BEGIN : K3_JSON_ARRAY_BEGIN;
    json->state = frame->is_object ? STATE_FIRST_KEY : STATE_FIRST_VALUE;
    return 0;
}

static int close_container(struct k3_json *json, struct k3_json_token *token)
{
    const struct frame *frame = &json->frames[json->depth - 1];
    keys_drop(json, frame);
    token->type = frame->is_object ? K3_JSON_OBJECT_END : K3_JSON_ARRAY_END;
    json->depth--;
    json->pos++;
    json->state = STATE_AFTER_VALUE;
    return 0;
}

static int read_value(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    char c = json->pos < json->bytes ? json->text[json->pos] : 0; /* NUL begins no value either */
    json->state = STATE_AFTER_VALUE;
    if (c == '"') {
        token->type = K3_JSON_STRING;
        return read_string(json, token, err);
    }
    if (c == '{' || c == '[')
        return open_container(json, token, err);
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(json, token, err);
    return read_word(json, token, err);
}

static int read_key(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    if (!is_next(json, '"'))
        return fail_wanted(json, json->pos, "the name of a member in double quotes", err);
    token->type = K3_JSON_KEY;
    int rc = read_string(json, token, err);
    if (!rc)
        rc = key_add(json, token, err);
    if (rc)
        return rc;
    skip_space(json);
    if (!is_next(json, ':'))
        return fail_wanted(json, json->pos, "':'", err);
    json->pos++;
    json->state = STATE_VALUE;
    return 0;
}

static int read_after_value(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    if (!json->depth) {
        if (json->pos < json->bytes)
            return fail_wanted(json, json->pos, "the end of the text", err);
        token->type = K3_JSON_END;
        json->state = STATE_DONE;
        return 0;
    }
    bool is_object = json->frames[json->depth - 1].is_object;
    if (is_next(json, is_object ? '}' : ']'))
        return close_container(json, token);
    if (!is_next(json, ','))
        return fail_wanted(json, json->pos, is_object ? "',' or '}'" : "',' or ']'", err);
    json->pos++;
    skip_space(json);
    token->offset = json->base_offset + json->pos;
    return is_object ? read_key(json, token, err) : read_value(json, token, err);
}

static int next(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    skip_space(json);
    *token = (struct k3_json_token){.type = K3_JSON_END, .offset = json->base_offset + json->pos};
    switch (json->state) {
    case STATE_VALUE:
        return read_value(json, token, err);
    case STATE_FIRST_VALUE:
        return is_next(json, ']') ? close_container(json, token) : read_value(json, token, err);
    case STATE_FIRST_KEY:
        return is_next(json, '}') ? close_container(json, token) : read_key(json, token, err);
    case STATE_AFTER_VALUE:
        return read_after_value(json, token, err);
    case STATE_DONE:
    default:
        return 0;
    }
}

/* ---- the interface ---- */

int k3_json_open(const char *file, const char *text, size_t bytes, unsigned depth_max,
                 struct k3_json **out, struct k3_err *err)
{
    *out = NULL;
    if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        return k3_fail_at(
            err, K3_EFORMAT, file, 0,
            "%s: begins with a byte order mark, JSON begins with the document; " ADVICE, file);
    struct k3_json *json = calloc(1, sizeof *json);
    if (!json)
        return k3_fail(err, K3_ENOMEM, "%s: no memory to read JSON; free some memory and run again",
                       file);
    json->file = file;
    json->text = text;
    json->bytes = bytes;
    json->depth_max = depth_max < K3_JSON_DEPTH_MAX ? depth_max : K3_JSON_DEPTH_MAX;
    k3_text_init(&json->arena);
    k3_text_init(&json->scratch);
    /* Sixteen random bytes that the kernel gives to every program: no system call, nothing that can
     * fail. */
    const void *random = (const void *)(uintptr_t)getauxval(AT_RANDOM);
    if (random)
        memcpy(json->seed, random, sizeof json->seed);
    json->seed[1] ^=
        0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: not zero where there is no AT_RANDOM */
    *out = json;
    return 0;
}

void k3_json_set_base(struct k3_json *json, size_t base_offset)
{
    json->base_offset = base_offset;
}

int k3_json_next(struct k3_json *json, struct k3_json_token *token, struct k3_err *err)
{
    if (json->rc)
        return k3_fail_at(err, json->rc, json->file, (int64_t)(json->base_offset + json->pos),
                          "%s: byte %zu: reading ended here with an error before", json->file,
                          json->base_offset + json->pos);
    json->rc = next(json, token, err);
    return json->rc;
}

int k3_json_skip(struct k3_json *json, const struct k3_json_token *token, struct k3_err *err)
{
    if (token->type != K3_JSON_OBJECT_BEGIN && token->type != K3_JSON_ARRAY_BEGIN)
        return 0;
    unsigned depth = json->depth - 1;
    while (json->depth > depth) {
        struct k3_json_token dropped;
        int rc = k3_json_next(json, &dropped, err);
        if (rc)
            return rc;
    }
    return 0;
}

const char *k3_json_type_name(enum k3_json_type type)
{
    static const char *const name[] = {
        [K3_JSON_OBJECT_BEGIN] = "an object",
        [K3_JSON_OBJECT_END] = "the end of the object",
        [K3_JSON_ARRAY_BEGIN] = "an array",
        [K3_JSON_ARRAY_END] = "the end of the array",
        [K3_JSON_KEY] = "the name of a member",
        [K3_JSON_STRING] = "a string",
        [K3_JSON_INTEGER] = "an integer from 0 to 2^64-1",
        [K3_JSON_NUMBER] = "a negative, fractional or too large number",
        [K3_JSON_TRUE] = "true",
        [K3_JSON_FALSE] = "false",
        [K3_JSON_NULL] = "null",
        [K3_JSON_END] = "the end of the text",
    };
    return name[type];
}

int k3_json_expect(struct k3_json *json, enum k3_json_type type, const char *what,
                   struct k3_json_token *token, struct k3_err *err)
{
    int rc = k3_json_next(json, token, err);
    if (rc || token->type == type)
        return rc;
    json->rc = K3_EFORMAT;
    return k3_fail_at(err, K3_EFORMAT, json->file, (int64_t)token->offset,
                      "%s: byte %zu: %s: wanted %s, found %s; " ADVICE, json->file, token->offset,
                      what, k3_json_type_name(type), k3_json_type_name(token->type));
}

void k3_json_close(struct k3_json *json)
{
    if (!json)
        return;
    free(json->keys);
    free(json->slots);
    k3_text_fini(&json->arena);
    k3_text_fini(&json->scratch);
    free(json);
}

int k3_json_check(const char *file, const char *text, size_t bytes, unsigned depth_max,
                  struct k3_err *err)
{
    struct k3_json *json;
    struct k3_json_token token = {.type = K3_JSON_NULL};
    int rc = k3_json_open(file, text, bytes, depth_max, &json, err);
    if (!json)
        return rc;
    while (!rc && token.type != K3_JSON_END)
        rc = k3_json_next(json, &token, err);
    k3_json_close(json);
    return rc;
}
