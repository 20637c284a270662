/* A growing text for emitters.  Failure is sticky: append freely, ask once at the end. */
#ifndef K3_TEXT_H
#define K3_TEXT_H

#include "k3_err.h"

#include <stdbool.h>
#include <stddef.h>

struct k3_text {
    char *data;   /* NUL-terminated where bytes > 0; owned */
    size_t bytes; /* without the NUL */
    size_t cap;
    bool failed; /* an append found no memory */
};

void k3_text_init(struct k3_text *text);
void k3_text_fini(struct k3_text *text);
void k3_text_put(struct k3_text *text, const char *data, size_t bytes);
void k3_text_puts(struct k3_text *text, const char *string);
void k3_text_putf(struct k3_text *text, const char *format, ...) K3_PRINTF(2, 3);
/* A decimal integer, fast path of the header writer. */
void k3_text_putu(struct k3_text *text, uint64_t value);
/* A JSON string with its quotes; escapes '"', '\\' and control bytes; bytes that are not UTF-8
 * become U+FFFD. */
void k3_text_put_json(struct k3_text *text, const char *string);
/* Bytes of the UTF-8 character that begins at p (1..4), 0 where none does: overlong forms,
 * surrogates, values beyond U+10FFFF and cut-off sequences are none.  Pure. */
size_t k3_utf8_bytes(const char *p, size_t bytes);

#define K3_SHOWN_BYTES 260 /* at most 64 bytes, each at most as \xNN, then "..." and the NUL */

/* A string from outside, made fit for a message: bytes outside 0x20..0x7e as \xNN, a long one cut
 * in its middle (the tail of a tensor name says more than the head).  Returns shown. */
const char *k3_shown(const char *string, size_t bytes, char shown[K3_SHOWN_BYTES]);

/* A word of a command that is printed to be pasted into a shell: bare where every shell takes it as
 * it is, else in single quotes.  What a terminal would act on (control bytes, bytes that are not
 * UTF-8) is printed as \NNN in the $'...' form of bash, ksh and zsh: such a word holds no quote, so
 * that a shell without this form takes it for another word, and for nothing else. */
void k3_text_put_quoted(struct k3_text *text, const char *word);
/* The same for what is always shown in quotes: policies. */
void k3_text_put_in_quotes(struct k3_text *text, const char *word);

#define K3_QUOTED_BYTES K3_ERR_TEXT_BYTES /* as much as a message has */
struct k3_quoted {
    char s[K3_QUOTED_BYTES];
};
/* The same within a printf; "..." where it is longer: half a word would be another command. */
struct k3_quoted k3_quoted(const char *word);
/* A name beside commands: what a terminal would act on as '?', a long one cut. */
struct k3_quoted k3_printable(const char *name);

/* 0, or K3_ENOMEM when any append failed. */
int k3_text_check(const struct k3_text *text, struct k3_err *err);

#endif
