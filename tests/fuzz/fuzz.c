/* Purpose: checks and repairs that the fuzz targets share.
 * Owns: nothing.
 * Threads: one.
 * Errors: none are returned; a broken promise aborts.
 * Invariant: a repair changes digests only, never the length or the form of a document. */
#include "fuzz.h"

#include "bytes.h"
#include "sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEX_DIGIT_COUNT (2u * K3_DIGEST_BYTES)

void fuzz_broken(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken: %s\n", file, line, condition);
    abort();
}

void fuzz_check_err(int rc, const struct k3_err *err, uint64_t offset_max)
{
    FUZZ_CHECK(rc == err->rc);
    FUZZ_CHECK(rc <= 0 && rc >= K3_ECANCELED);
    FUZZ_CHECK(rc != K3_ENOMEM);
    FUZZ_CHECK(err->offset >= -1 && (err->offset < 0 || (uint64_t)err->offset <= offset_max));
    if (rc == 0)
        return;
    size_t bytes = strnlen(err->text, sizeof err->text);
    FUZZ_CHECK(bytes > 0 && bytes < sizeof err->text);
    for (size_t i = 0; i < bytes; i++)
        FUZZ_CHECK((unsigned char)err->text[i] >= 0x20 && err->text[i] != 0x7f);
}

char *fuzz_string(const uint8_t *data, size_t bytes)
{
    char *string = malloc(bytes + 1);
    FUZZ_CHECK(string != NULL);
    if (bytes)
        memcpy(string, data, bytes);
    string[bytes] = 0;
    return string;
}

static void digest_of(struct fuzz_span span, uint8_t digest[K3_DIGEST_BYTES])
{
    struct k3_sha256 *sha;
    FUZZ_CHECK(k3_sha256_open(&sha, NULL) == 0);
    k3_sha256_of(sha, span.data, span.bytes, digest);
    k3_sha256_close(sha);
}

char *fuzz_find(struct fuzz_span span, const char *word)
{
    return span.bytes ? memmem(span.data, span.bytes, word, strlen(word)) : NULL;
}

void fuzz_fix_digest(struct fuzz_span document, const char *name, struct fuzz_span covered)
{
    char head[64];
    int head_bytes = snprintf(head, sizeof head, "\"%s\":\"", name);
    char *value = NULL;
    struct fuzz_span rest = document;
    for (char *at = fuzz_find(rest, head); at; at = fuzz_find(rest, head)) {
        value = at + head_bytes;
        rest.bytes -= (size_t)(value - rest.data);
        rest.data = value;
    }
    if (!value || rest.bytes < HEX_DIGIT_COUNT)
        return;
    uint8_t digest[K3_DIGEST_BYTES];
    char hex[K3_HEX_BYTES];
    digest_of(covered, digest);
    k3_hex_encode(digest, sizeof digest, hex);
    memcpy(value, hex, HEX_DIGIT_COUNT);
}

void fuzz_fix_seal(struct fuzz_span document)
{
    static const char tail[] = "\"}\n";
    const size_t tail_bytes = HEX_DIGIT_COUNT + sizeof tail - 1;
    if (document.bytes < tail_bytes)
        return;
    memset(document.data + document.bytes - tail_bytes, '0', HEX_DIGIT_COUNT);
    fuzz_fix_digest(document, "~sha256", document);
}
