/* Purpose: the growing text of every emitter; the looks at foreign bytes: UTF-8, messages, words of
 * a shell.
 * Owns: the bytes of a text.
 * Threads: a text belongs to one thread at a time; k3_utf8_bytes, k3_shown and
 * k3_quoted are pure.
 * Errors: sticky: an append that finds no memory sets failed, k3_text_check reports it.
 * Invariants: bytes < cap and data[bytes] is NUL wherever cap > 0; a failed text never changes. */
#include "text.h"

#include "bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAP_BYTES 64u /* most texts are one line */
#define SHOWN_MAX       64u /* bytes of a foreign string in a message; fixes K3_SHOWN_BYTES */
#define SHOWN_HEAD      24u /* enough to tell "language_model.model." from "vision_tower." */
#define SHOWN_TAIL      40u /* SHOWN_MAX - SHOWN_HEAD */
_Static_assert(SHOWN_HEAD + SHOWN_TAIL == SHOWN_MAX, "the two ends fill what is shown");
_Static_assert(SHOWN_MAX * 4 + 3 + 1 == K3_SHOWN_BYTES, "text.h: the longest shown string fits");

void k3_text_init(struct k3_text *text)
{
    memset(text, 0, sizeof *text);
}

void k3_text_fini(struct k3_text *text)
{
    free(text->data);
    memset(text, 0, sizeof *text);
}

/* Room for `more` bytes and a NUL behind the present ones. */
static bool reserve(struct k3_text *text, size_t more)
{
    if (text->failed)
        return false;
    size_t wanted;
    if (__builtin_add_overflow(text->bytes, more, &wanted) || wanted >= SIZE_MAX / 2) {
        text->failed = true;
        return false;
    }
    if (wanted < text->cap)
        return true;
    size_t cap = text->cap ? text->cap : FIRST_CAP_BYTES;
    while (cap <= wanted)
        cap *= 2;
    char *data = realloc(text->data, cap);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->cap = cap;
    return true;
}

void k3_text_put(struct k3_text *text, const char *data, size_t bytes)
{
    if (!reserve(text, bytes))
        return;
    if (bytes)
        memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
    text->data[text->bytes] = 0;
}

void k3_text_puts(struct k3_text *text, const char *string)
{
    k3_text_put(text, string, strlen(string));
}

void k3_text_putf(struct k3_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        text->failed = true;
        return;
    }
    if (!reserve(text, (size_t)length))
        return;
    va_start(args, format);
    vsnprintf(text->data + text->bytes, (size_t)length + 1, format, args);
    va_end(args);
    text->bytes += (size_t)length;
}

void k3_text_putu(struct k3_text *text, uint64_t value)
{
    char digit[20]; /* 2^64 - 1 has 20 digits */
    size_t at = sizeof digit;
    do {
        digit[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    k3_text_put(text, digit + at, sizeof digit - at);
}

/* Length of the run at p that a JSON string holds as it is. */
static size_t json_run(const char *p, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        unsigned char c = (unsigned char)p[at];
        if (c < 0x20 || c == '"' || c == '\\')
            break;
        size_t step = c < 0x80 ? 1 : k3_utf8_bytes(p + at, bytes - at);
        if (!step)
            break;
        at += step;
    }
    return at;
}

void k3_text_put_json(struct k3_text *text, const char *string)
{
    size_t bytes = strlen(string);
    k3_text_put(text, "\"", 1);
    for (size_t at = 0; at < bytes;) {
        size_t run = json_run(string + at, bytes - at);
        k3_text_put(text, string + at, run);
        at += run;
        if (at == bytes)
            break;
        unsigned char c = (unsigned char)string[at++];
        if (c == '"' || c == '\\')
            k3_text_putf(text, "\\%c", c);
        else
            k3_text_putf(text, "\\u%04x", c < 0x20 ? c : 0xfffdu);
    }
    k3_text_put(text, "\"", 1);
}

size_t k3_utf8_bytes(const char *p, size_t bytes)
{
    if (!bytes)
        return 0;
    const unsigned char *b = (const unsigned char *)p;
    if (b[0] < 0x80)
        return 1;
    /* The second byte carries all that can go wrong beyond its form: RFC 3629, section 4. */
    unsigned low = 0x80, high = 0xbf;
    size_t length;
    if (b[0] >= 0xc2 && b[0] <= 0xdf) {
        length = 2;
    } else if (b[0] >= 0xe0 && b[0] <= 0xef) {
        length = 3;
        low = b[0] == 0xe0 ? 0xa0 : 0x80;  /* below: overlong */
        high = b[0] == 0xed ? 0x9f : 0xbf; /* above: surrogates */
    } else if (b[0] >= 0xf0 && b[0] <= 0xf4) {
        length = 4;
        low = b[0] == 0xf0 ? 0x90 : 0x80;  /* below: overlong */
        high = b[0] == 0xf4 ? 0x8f : 0xbf; /* above: beyond U+10FFFF */
    } else {
        return 0;
    }
    if (length > bytes || b[1] < low || b[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if (b[i] < 0x80 || b[i] > 0xbf)
            return 0;
    return length;
}

/* ---- words of a shell ---- */

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* No shell sees more in it than its characters; a leading '=' is a path to zsh. */
static bool is_bare(const char *word)
{
    if (!*word || *word == '-' || *word == '=')
        return false;
    for (const char *c = word; *c; c++)
        if (!is_alnum(*c) && !strchr("_@%+=:,./-", *c))
            return false;
    return true;
}

/* Bytes of the character at p that a terminal shows as it is; 0: it is a control, of one byte or
 * of two (U+0080 to U+009F), or no character. */
static size_t shown_bytes(const char *p, size_t bytes)
{
    const unsigned char c = (unsigned char)*p;
    if (c < 0x20 || c == 0x7f || (c == 0xc2 && bytes > 1 && (unsigned char)p[1] < 0xa0))
        return 0;
    return k3_utf8_bytes(p, bytes);
}

static bool is_shown(const char *word, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t n = shown_bytes(word + at, bytes - at);
        if (!n)
            return false;
        at += n;
    }
    return true;
}

/* Octal has three digits whatever follows; of \x and more digits each shell takes as many as it
 * likes.  Quotes and backslashes go the same way: k3_text_put_quoted says why. */
static void put_escaped(struct k3_text *text, const char *word, size_t bytes)
{
    k3_text_puts(text, "$'");
    for (size_t at = 0; at < bytes;) {
        size_t n = shown_bytes(word + at, bytes - at);
        if (n && !strchr("'\\!", word[at]))
            k3_text_put(text, word + at, n);
        else
            k3_text_putf(text, "\\%03o", (unsigned char)word[at]);
        at += n ? n : 1;
    }
    k3_text_puts(text, "'");
}

void k3_text_put_in_quotes(struct k3_text *text, const char *word)
{
    const size_t bytes = strlen(word);
    if (!is_shown(word, bytes)) {
        put_escaped(text, word, bytes);
        return;
    }
    k3_text_puts(text, "'");
    for (const char *c = word; *c; c++)
        if (*c == '\'')
            k3_text_puts(text, "'\\''");
        else
            k3_text_put(text, c, 1);
    k3_text_puts(text, "'");
}

void k3_text_put_quoted(struct k3_text *text, const char *word)
{
    if (is_bare(word))
        k3_text_puts(text, word);
    else
        k3_text_put_in_quotes(text, word);
}

struct k3_quoted k3_quoted(const char *word)
{
    struct k3_quoted quoted = {.s = "..."};
    struct k3_text text;
    k3_text_init(&text);
    k3_text_put_quoted(&text, word);
    if (!text.failed && text.bytes < sizeof quoted.s)
        memcpy(quoted.s, text.data, text.bytes + 1);
    k3_text_fini(&text);
    return quoted;
}

/* ---- messages ---- */

struct k3_quoted k3_printable(const char *name)
{
    struct k3_quoted printable;
    snprintf(printable.s, sizeof printable.s, "%s", name);
    k3_make_printable(printable.s);
    return printable;
}

static size_t show_bytes(const char *p, size_t bytes, char *out)
{
    size_t at = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint8_t c = (uint8_t)p[i];
        if (c >= 0x20 && c <= 0x7e) {
            out[at++] = (char)c;
            continue;
        }
        char hex[3];
        k3_hex_encode(&c, 1, hex);
        out[at++] = '\\';
        out[at++] = 'x';
        out[at++] = hex[0];
        out[at++] = hex[1];
    }
    return at;
}

const char *k3_shown(const char *string, size_t bytes, char shown[K3_SHOWN_BYTES])
{
    size_t at;
    if (bytes <= SHOWN_MAX) {
        at = show_bytes(string, bytes, shown);
    } else {
        at = show_bytes(string, SHOWN_HEAD, shown);
        memcpy(shown + at, "...", 3);
        at += 3;
        at += show_bytes(string + bytes - SHOWN_TAIL, SHOWN_TAIL, shown + at);
    }
    shown[at] = 0;
    return shown;
}

int k3_text_check(const struct k3_text *text, struct k3_err *err)
{
    if (!text->failed)
        return 0;
    return k3_fail(err, K3_ENOMEM,
                   "no memory for a text of more than %zu bytes; free some memory and "
                   "run again",
                   text->bytes);
}
