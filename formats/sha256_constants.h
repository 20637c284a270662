/* Private to the forms of k3_sha256_blocks: the constants of SHA-256 (FIPS 180-4) and the vector
 * forms.  All constant, any thread. */
#ifndef K3_SHA256_CONSTANTS_H
#define K3_SHA256_CONSTANTS_H

#include "sha256.h"

#define K3_SHA256_ROUND_COUNT 64 /* rounds of a step, one constant each */
#define K3_SHA256_STEP_COUNT  (K3_BLOCK_BYTES / K3_SHA256_STEP_BYTES)

struct k3_sha256_constants {
    uint32_t initial[K3_SHA256_WORD_COUNT];
    uint32_t round[K3_SHA256_ROUND_COUNT];
    /* What the rounds of the last step of a block add: its message is always the padding of 4096
     * bytes, so schedule word + round constant is known beforehand. */
    uint32_t padding[K3_SHA256_ROUND_COUNT];
};

/* Hidden: within a shared library it is read without a way through the offset table. */
extern const struct k3_sha256_constants k3_sha256_constants __attribute__((visibility("hidden")));

/* Unroll the loop that follows: without it -O2 leaves arrays of registers in memory.  clang unrolls
 * to a given count only after it has decided what goes to memory, and all of a loop before. */
#if defined(__clang__)
#define K3_UNROLL _Pragma("unroll")
#else
#define K3_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__x86_64__)

#define K3_AVX512_LANE_COUNT 16 /* blocks at once: one in each 32-bit lane of a register */

/* SHA-256 of block_count blocks; block_count is a multiple of K3_AVX512_LANE_COUNT.  Needs
 * AVX512F, AVX512BW. */
void k3_sha256_blocks_avx512(const uint8_t *blocks, size_t block_count, uint8_t *digests);

/* The same; needs AVX512F, AVX512BW, AVX512VL, SHA, SSSE3, SSE4.1. */
void k3_sha256_blocks_avx512_sha(const uint8_t *blocks, size_t block_count, uint8_t *digests);

/* SHA-256 of any count of blocks.  Needs SHA, SSSE3, SSE4.1. */
void k3_sha256_blocks_shani(const uint8_t *blocks, size_t block_count, uint8_t *digests);

/* The same, and the blocks one after another into a flat stream of which words are the state.
 * Needs the same. */
void k3_sha256_pair_shani(uint32_t *words, const uint8_t *blocks, size_t block_count,
                          uint8_t *digests);

#endif

/* clang has the intrinsics only where the whole file may use them. */
#if defined(__AARCH64EL__) && (!defined(__clang__) || defined(__ARM_FEATURE_SHA2))
#define K3_SHA256_ARMV8_BUILT 1

/* SHA-256 of any count of blocks.  Needs HWCAP_SHA2. */
void k3_sha256_blocks_armv8(const uint8_t *blocks, size_t block_count, uint8_t *digests);

#else
#define K3_SHA256_ARMV8_BUILT 0
#endif

#endif
