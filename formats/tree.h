/* The tree digest: fs-verity SHA-256, 4096-byte blocks, no salt (FORMAT.md 6). */
#ifndef K3_TREE_H
#define K3_TREE_H

#include "bytes.h"
#include "sha256.h"

/* Digest of one unit: `bytes` (1..K3_UNIT_BYTES) at data; a last partial block counts as filled
 * with zeros. */
void k3_unit_digest(struct k3_sha256 *sha, const void *data, size_t bytes,
                    uint8_t digest[K3_DIGEST_BYTES]);

/* File digest from the digests of all its units.  file_bytes > K3_BLOCK_BYTES, count =
 * div_up(file_bytes, UNIT). (A file of one block or less has no unit node in its tree: use
 * k3_tree_*.) */
void k3_tree_of_units(struct k3_sha256 *sha, const uint8_t *unit_digests, uint64_t unit_count,
                      uint64_t file_bytes, uint8_t digest[K3_DIGEST_BYTES]);

/* ---- streaming over a file of any size ---- */
struct k3_tree; /* one file at a time; one thread at a time */

int k3_tree_open(struct k3_tree **out, struct k3_err *err); /* Fails: K3_ENOMEM, K3_EUNSUPPORTED */
void k3_tree_close(struct k3_tree *tree);
/* Add bytes in file order, in pieces of any size.  Fails: K3_ENOMEM. */
int k3_tree_update(struct k3_tree *tree, const void *data, size_t bytes, struct k3_err *err);
/* The same, and the same bytes into a stream of plain SHA-256, in one pass where the CPU has SHA
 * instructions.  When it fails, neither has taken any byte. */
int k3_tree_update_sha(struct k3_tree *tree, struct k3_sha256 *sha, const void *data, size_t bytes,
                       struct k3_err *err);
/* The file digest; the unit digests (borrowed until the next begin or close) and their count. */
void k3_tree_final(struct k3_tree *tree, uint8_t digest[K3_DIGEST_BYTES]);
const uint8_t *k3_tree_units(const struct k3_tree *tree, uint64_t *unit_count);
void k3_tree_begin(struct k3_tree *tree);

#endif
