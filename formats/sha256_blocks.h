/* SHA-256 of many 4096-byte blocks: the leaves and hash blocks of the tree digest (FORMAT.md 6). */
#ifndef K3_SHA256_BLOCKS_H
#define K3_SHA256_BLOCKS_H

#include "sha256.h"

/* The digest of block i goes to digests + i * K3_DIGEST_BYTES; neither need be aligned.  sha is the
 * stream of the libcrypto form; whatever it was in the middle of is lost.  Cannot fail. */
void k3_sha256_blocks(struct k3_sha256 *sha, const void *blocks, size_t block_count,
                      uint8_t *digests);

/* The same, and the blocks as the next bytes of the stream flat, which is another one than sha:
 * exactly what k3_sha256_update makes of them.  With SHA-NI both cost together about what the
 * stream costs alone. */
void k3_sha256_blocks_and_stream(struct k3_sha256 *sha, struct k3_sha256 *flat, const void *blocks,
                                 size_t block_count, uint8_t *digests);

/* In the order of choice: the first that this CPU runs.  The AVX-512 forms take sixteen blocks at
 * once; fewer go to SHA-NI, which takes two, or to libcrypto, which always runs.  There is no AVX2
 * form: CPUs that have it and neither of the above are old, and libcrypto serves them. */
enum k3_sha256_form {
    K3_SHA256_AVX512_SHA, /* chosen on CPUs of AMD only, see sha256_blocks.c */
    K3_SHA256_AVX512,
    K3_SHA256_SHANI,
    K3_SHA256_ARMV8, /* SHA instructions of ARMv8, two blocks at once */
    K3_SHA256_LIBCRYPTO,
    K3_SHA256_FORM_COUNT
};

bool k3_sha256_form_runs(enum k3_sha256_form form);
const char *k3_sha256_form_name(enum k3_sha256_form form);
enum k3_sha256_form k3_sha256_form(void); /* the one in use */

/* For tests and benchmarks only: use this form, which must run here, from now on in all threads;
 * K3_SHA256_FORM_COUNT: back to the choice by CPU. */
void k3_sha256_force(enum k3_sha256_form form);

#endif
