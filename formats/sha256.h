/* SHA-256.  The only user of libcrypto. */
#ifndef K3_SHA256_H
#define K3_SHA256_H

#include "bytes.h"
#include "k3_err.h"

struct k3_sha256; /* one stream at a time; one thread at a time */

/* Fails: K3_ENOMEM, K3_EUNSUPPORTED (no provider has SHA-256). */
int k3_sha256_open(struct k3_sha256 **out, struct k3_err *err);
void k3_sha256_close(struct k3_sha256 *sha); /* NULL is fine */

/* Start anew / add / finish.  They cannot fail on an open stream (asserted: only our bug or a
 * broken library could make them, never the data). */
void k3_sha256_begin(struct k3_sha256 *sha);
void k3_sha256_update(struct k3_sha256 *sha, const void *data, size_t bytes);
void k3_sha256_final(struct k3_sha256 *sha, uint8_t digest[K3_DIGEST_BYTES]);

/* For the forms that hash whole steps of 64 bytes themselves: borrow gives the 8 words of the state
 * of a stream, or false when bytes are pending that do not fill a step; give takes them back after
 * `bytes` more, a multiple of 64. */
#define K3_SHA256_WORD_COUNT 8
#define K3_SHA256_STEP_BYTES 64
bool k3_sha256_borrow(const struct k3_sha256 *sha, uint32_t words[K3_SHA256_WORD_COUNT]);
void k3_sha256_give(struct k3_sha256 *sha, const uint32_t words[K3_SHA256_WORD_COUNT],
                    size_t bytes);

/* begin, update, final. */
void k3_sha256_of(struct k3_sha256 *sha, const void *data, size_t bytes,
                  uint8_t digest[K3_DIGEST_BYTES]);

#endif
