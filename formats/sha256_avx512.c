/* Purpose: SHA-256 of 4096-byte blocks, sixteen at once, one in each 32-bit lane (AVX-512).
 * Owns: nothing.
 * Threads: pure, any thread.
 * Errors: none; the caller asks the CPU first.
 * Invariants: only bytes of the blocks are read (a prefetch never faults and stays inside them);
 * the 8 state words, the 16 message words and all temporaries fit the 32 registers, where every
 * loop over them is unrolled.  The cost is that of the vector ALUs: 17 operations a round and 11
 * for a word of the schedule, so a round constant is added from memory with an embedded broadcast,
 * three-way logic is one instruction, and the last step of a block, the same for all, has no
 * schedule. */
#include "sha256_x86.h"

#if defined(__x86_64__)

#include <assert.h>

#define LANES       K3_AVX512_LANE_COUNT
#define GROUP_BYTES ((size_t)LANES * K3_BLOCK_BYTES)
/* Steps from a prefetch to its use: sixteen streams in as many pages are more than the prefetchers
 * of the CPU follow well, and each ends after 64 lines.  A step takes about 0.3 us. */
#define AHEAD_STEP_COUNT 4

#define INLINE K3_INLINE K3_AVX512

#define ADD K3_ADD
#define ROR K3_ROR
/* Truth tables of vpternlogd: row a << 2 | b << 1 | c. */
#define CHOOSE(e, f, g)   _mm512_ternarylogic_epi32(e, f, g, 0xca)
#define MAJORITY(a, b, c) _mm512_ternarylogic_epi32(a, b, c, 0xe8)

/* One round; `added` is schedule word + round constant. The new a is left in h, the new e in d. */
#define ROUND(a, b, c, d, e, f, g, h, added)                                                       \
    do {                                                                                           \
        (h) = ADD(ADD(h, added), CHOOSE(e, f, g));                                                 \
        (h) = ADD(h, K3_XOR3(ROR(e, 6), ROR(e, 11), ROR(e, 25)));                                  \
        (d) = ADD(d, h);                                                                           \
        (h) = ADD(h, ADD(K3_XOR3(ROR(a, 2), ROR(a, 13), ROR(a, 22)), MAJORITY(a, b, c)));          \
    } while (0)

#define EIGHT_ROUNDS(ADDED, i)                                                                     \
    do {                                                                                           \
        ROUND(a, b, c, d, e, f, g, h, ADDED((i) + 0));                                             \
        ROUND(h, a, b, c, d, e, f, g, ADDED((i) + 1));                                             \
        ROUND(g, h, a, b, c, d, e, f, ADDED((i) + 2));                                             \
        ROUND(f, g, h, a, b, c, d, e, ADDED((i) + 3));                                             \
        ROUND(e, f, g, h, a, b, c, d, ADDED((i) + 4));                                             \
        ROUND(d, e, f, g, h, a, b, c, ADDED((i) + 5));                                             \
        ROUND(c, d, e, f, g, h, a, b, ADDED((i) + 6));                                             \
        ROUND(b, c, d, e, f, g, h, a, ADDED((i) + 7));                                             \
    } while (0)

INLINE __m512i add_and_next(__m512i w[16], int i, const uint32_t *k)
{
    __m512i added = ADD(w[i], K3_BROADCAST(k[i]));
    k3_avx512_next_word(w, i);
    return added;
}

/* The next 64 bytes of all lanes; `ahead` is where bytes will be wanted later. */
INLINE void load_words(const uint8_t *at, const uint8_t *ahead, __m512i w[16])
{
    __m512i chunks[4][4];
    K3_UNROLL
    for (int g = 0; g < 4; g++)
        k3_avx512_take_chunks(at, ahead, chunks, g);
    K3_UNROLL
    for (int c = 0; c < 4; c++)
        k3_avx512_turn(chunks[c], w + (size_t)4 * (size_t)c);
}

#define LOAD_STATE                                                                                 \
    __m512i a = state[0], b = state[1], c = state[2], d = state[3];                                \
    __m512i e = state[4], f = state[5], g = state[6], h = state[7]

INLINE void add_state(__m512i state[8], const __m512i added[8])
{
    K3_UNROLL
    for (int i = 0; i < 8; i++)
        state[i] = ADD(state[i], added[i]);
}

INLINE void step(__m512i state[8], __m512i w[16])
{
    const uint32_t *k = k3_sha256_constants.round;
    K3_HIDE(k);
    LOAD_STATE;
#define ADD_AND_NEXT(i) add_and_next(w, i, k)
#define ADD_ONLY(i)     ADD(w[i], K3_BROADCAST(k[i]))
    for (int group = 0; group < 3; group++, k += 16) {
        EIGHT_ROUNDS(ADD_AND_NEXT, 0);
        EIGHT_ROUNDS(ADD_AND_NEXT, 8);
    }
    EIGHT_ROUNDS(ADD_ONLY, 0);
    EIGHT_ROUNDS(ADD_ONLY, 8);
    add_state(state, (const __m512i[8]){a, b, c, d, e, f, g, h});
}

INLINE void padding_step(__m512i state[8])
{
    const uint32_t *k = k3_sha256_constants.padding;
    K3_HIDE(k);
    LOAD_STATE;
#define CONSTANT(i) K3_BROADCAST(k[i])
    for (int group = 0; group < K3_SHA256_ROUND_COUNT / 8; group++, k += 8)
        EIGHT_ROUNDS(CONSTANT, 0);
    add_state(state, (const __m512i[8]){a, b, c, d, e, f, g, h});
}

INLINE void store_digests(const __m512i state[8], uint8_t *digests)
{
    K3_UNROLL
    for (int half = 0; half < 2; half++) {
        __m512i chunks[4];
        k3_avx512_turn(state + (size_t)4 * (size_t)half, chunks);
        uint8_t *at = digests + (size_t)16 * (size_t)half;
        K3_UNROLL
        for (int g = 0; g < 4; g++) { /* quarter i is of block g + 4i */
            __m512i v = k3_avx512_swap(chunks[g]);
            K3_STORE(at, _mm512_castsi512_si128(v));
            K3_STORE(at + 4 * K3_DIGEST_BYTES, _mm512_extracti32x4_epi32(v, 1));
            K3_STORE(at + 8 * K3_DIGEST_BYTES, _mm512_extracti32x4_epi32(v, 2));
            K3_STORE(at + 12 * K3_DIGEST_BYTES, _mm512_extracti32x4_epi32(v, 3));
            at += K3_DIGEST_BYTES;
        }
    }
}

K3_AVX512 void k3_sha256_blocks_avx512(const uint8_t *blocks, size_t block_count, uint8_t *digests)
{
    assert(block_count % LANES == 0);
    for (; block_count > 0; block_count -= LANES) {
        /* The last steps look ahead to the first bytes of the next group, if there is one. */
        const uint8_t *next = block_count > LANES ? blocks + GROUP_BYTES : blocks;
        __m512i state[8], w[16];
        K3_UNROLL
        for (int i = 0; i < 8; i++)
            state[i] = K3_BROADCAST(k3_sha256_constants.initial[i]);
        for (size_t at = 0; at < K3_BLOCK_BYTES; at += K3_SHA256_STEP_BYTES) {
            size_t later = at + (size_t)AHEAD_STEP_COUNT * K3_SHA256_STEP_BYTES;
            load_words(blocks + at,
                       later < K3_BLOCK_BYTES ? blocks + later : next + (later - K3_BLOCK_BYTES),
                       w);
            step(state, w);
        }
        padding_step(state);
        store_digests(state, digests);
        blocks += GROUP_BYTES;
        digests += (size_t)LANES * K3_DIGEST_BYTES;
    }
}

#endif
