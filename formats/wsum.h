/* The write sum: a 64-bit sum of the bytes of a unit, keyed by position, that can be made from
 * pieces in any order. convert writes a part in pieces that come in source order and reads it back
 * in file order; equal sums say that what was read back is what was handed to pwrite.  It finds
 * accidents (lost, torn, misplaced writes); the digests that are recorded are SHA-256 of what was
 * read back.
 *
 * S = sum over 4-byte little-endian words w at file offset o of w * key(o), modulo 2^64, keys odd,
 * a missing byte counting as zero.  Linear, so disjoint pieces add up, whatever their alignment; a
 * change of one word, two flipped bits, and two unequal words that change places always change S
 * (wsum.c says why). */
#ifndef K3_WSUM_H
#define K3_WSUM_H

#include <stddef.h>
#include <stdint.h>

/* Sum of `bytes` at data as they lie at file_offset.  The piece must not cross a unit boundary.
 * Pure. */
uint64_t k3_wsum(const void *data, size_t bytes, uint64_t file_offset);

/* Add a piece of any length to the sums of the units it touches: sums[file_offset / UNIT ...].  Not
 * atomic. */
void k3_wsum_add(uint64_t *sums, const void *data, size_t bytes, uint64_t file_offset);

#endif
