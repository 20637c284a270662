/* Purpose: SHA-256, over libcrypto; the only file that includes an OpenSSL header.
 * Owns: the stream state.
 * Threads: a stream belongs to one thread at a time; there is no shared state.
 * Errors: K3_ENOMEM.  A failing library call is asserted against: it cannot come from the data.
 * Invariants: begin may be called at any time; final ends a stream, and only begin makes it usable
 * again.  Why the SHA256_* calls, which OpenSSL 3 marks as deprecated: nearly all of our digests
 * are of 4096-byte blocks.  Measured on an EPYC with SHA-NI, OpenSSL 3.0: 2335 ns a block with
 * them, 2400 with EVP on a fetched EVP_MD and a reused context, the same code below both.  They
 * allocate nothing and need no provider, so nothing here can fail on the way. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "sha256.h"

#include <openssl/sha.h>

#include <assert.h>
#include <stdlib.h>

struct k3_sha256 {
    SHA256_CTX ctx;
};

_Static_assert(SHA256_DIGEST_LENGTH == K3_DIGEST_BYTES, "a SHA-256 digest has 32 bytes");
_Static_assert(SHA256_CBLOCK == K3_SHA256_STEP_BYTES, "a step of SHA-256 takes 64 bytes");
_Static_assert(sizeof(SHA_LONG) == sizeof(uint32_t), "words and halves of the length have 32 bits");

/* These calls return 1 in every OpenSSL there is; anything else is a broken library. */
static void must(int ok)
{
    assert(ok == 1);
    (void)ok;
}

int k3_sha256_open(struct k3_sha256 **out, struct k3_err *err)
{
    struct k3_sha256 *sha = malloc(sizeof *sha);
    *out = sha;
    if (!sha)
        return k3_fail(err, K3_ENOMEM, "no memory for a SHA-256 stream");
    k3_sha256_begin(sha);
    return 0;
}

void k3_sha256_close(struct k3_sha256 *sha)
{
    free(sha);
}

void k3_sha256_begin(struct k3_sha256 *sha)
{
    must(SHA256_Init(&sha->ctx));
}

void k3_sha256_update(struct k3_sha256 *sha, const void *data, size_t bytes)
{
    if (bytes > 0)
        must(SHA256_Update(&sha->ctx, data, bytes));
}

void k3_sha256_final(struct k3_sha256 *sha, uint8_t digest[K3_DIGEST_BYTES])
{
    must(SHA256_Final(digest, &sha->ctx));
}

bool k3_sha256_borrow(const struct k3_sha256 *sha, uint32_t words[K3_SHA256_WORD_COUNT])
{
    if (sha->ctx.num != 0)
        return false;
    for (int i = 0; i < K3_SHA256_WORD_COUNT; i++)
        words[i] = sha->ctx.h[i];
    return true;
}

void k3_sha256_give(struct k3_sha256 *sha, const uint32_t words[K3_SHA256_WORD_COUNT], size_t bytes)
{
    assert(sha->ctx.num == 0 && bytes % K3_SHA256_STEP_BYTES == 0);
    for (int i = 0; i < K3_SHA256_WORD_COUNT; i++)
        sha->ctx.h[i] = words[i];
    uint64_t bits = ((uint64_t)sha->ctx.Nh << 32 | sha->ctx.Nl) + (uint64_t)bytes * 8;
    sha->ctx.Nl = (uint32_t)bits;
    sha->ctx.Nh = (uint32_t)(bits >> 32);
}

void k3_sha256_of(struct k3_sha256 *sha, const void *data, size_t bytes,
                  uint8_t digest[K3_DIGEST_BYTES])
{
    k3_sha256_begin(sha);
    k3_sha256_update(sha, data, bytes);
    k3_sha256_final(sha, digest);
}
