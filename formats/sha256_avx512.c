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
#include "sha256_constants.h"

#if defined(__x86_64__)

#include <assert.h>
#include <immintrin.h>

#define LANES       K3_AVX512_LANE_COUNT
#define GROUP_BYTES ((size_t)LANES * K3_BLOCK_BYTES)
/* Steps from a prefetch to its use: sixteen streams in as many pages are more than the prefetchers
 * of the CPU follow well, and each ends after 64 lines.  A step takes about 0.3 us. */
#define AHEAD_STEP_COUNT 4

#define FORM   __attribute__((target("avx512f,avx512bw")))
#define INLINE static inline __attribute__((always_inline)) FORM

/* So that the compiler does not load all constants before the loop, where they take up a stack of
 * 64-byte slots: it does not know where they are. */
#define HIDE(pointer) __asm__("" : "+r"(pointer))

#define ADD(a, b)     _mm512_add_epi32(a, b)
#define ROR(a, count) _mm512_ror_epi32(a, count)
#define SHR(a, count) _mm512_srli_epi32(a, count)
/* Truth tables of vpternlogd: row a << 2 | b << 1 | c. */
#define XOR3(a, b, c)     _mm512_ternarylogic_epi32(a, b, c, 0x96)
#define CHOOSE(e, f, g)   _mm512_ternarylogic_epi32(e, f, g, 0xca)
#define MAJORITY(a, b, c) _mm512_ternarylogic_epi32(a, b, c, 0xe8)
#define BROADCAST(word)   _mm512_set1_epi32((int)(word))

/* One round; `added` is schedule word + round constant. The new a is left in h, the new e in d. */
#define ROUND(a, b, c, d, e, f, g, h, added)                                                       \
    do {                                                                                           \
        (h) = ADD(ADD(h, added), CHOOSE(e, f, g));                                                 \
        (h) = ADD(h, XOR3(ROR(e, 6), ROR(e, 11), ROR(e, 25)));                                     \
        (d) = ADD(d, h);                                                                           \
        (h) = ADD(h, ADD(XOR3(ROR(a, 2), ROR(a, 13), ROR(a, 22)), MAJORITY(a, b, c)));             \
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

/* w[i] becomes the word sixteen rounds later; the words before it have been moved on already. */
INLINE void next_word(__m512i w[16], int i)
{
    __m512i x = w[(i + 1) & 15], y = w[(i + 14) & 15];
    __m512i s0 = XOR3(ROR(x, 7), ROR(x, 18), SHR(x, 3));
    __m512i s1 = XOR3(ROR(y, 17), ROR(y, 19), SHR(y, 10));
    w[i] = ADD(ADD(w[i], w[(i + 9) & 15]), ADD(s0, s1));
}

INLINE __m512i add_and_next(__m512i w[16], int i, const uint32_t *k)
{
    __m512i added = ADD(w[i], BROADCAST(k[i]));
    next_word(w, i);
    return added;
}

/* Rows become columns: r[i] holds 16 words of lane i, afterwards word i of all lanes. */
INLINE void transpose(__m512i r[16])
{
    __m512i t[16];
    K3_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    K3_UNROLL
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    K3_UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    K3_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Byte order of the words of a message and of a digest. */
INLINE __m512i swap_bytes(__m512i v)
{
    return _mm512_shuffle_epi8(v,
                               _mm512_set4_epi32(0x0c0d0e0f, 0x08090a0b, 0x04050607, 0x00010203));
}

/* The next 64 bytes of all lanes; `ahead` is where bytes will be wanted later. */
INLINE void load_words(const uint8_t *at, const uint8_t *ahead, __m512i w[16])
{
    K3_UNROLL
    for (int lane = 0; lane < LANES; lane++) {
        w[lane] = swap_bytes(_mm512_loadu_si512(at + (size_t)lane * K3_BLOCK_BYTES));
        __builtin_prefetch(ahead + (size_t)lane * K3_BLOCK_BYTES, 0, 2);
    }
    transpose(w);
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
    HIDE(k);
    LOAD_STATE;
#define ADD_AND_NEXT(i) add_and_next(w, i, k)
#define ADD_ONLY(i)     ADD(w[i], BROADCAST(k[i]))
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
    HIDE(k);
    LOAD_STATE;
#define CONSTANT(i) BROADCAST(k[i])
    for (int group = 0; group < K3_SHA256_ROUND_COUNT / 8; group++, k += 8)
        EIGHT_ROUNDS(CONSTANT, 0);
    add_state(state, (const __m512i[8]){a, b, c, d, e, f, g, h});
}

INLINE void store_digests(const __m512i state[8], uint8_t *digests)
{
    __m512i r[16];
    K3_UNROLL
    for (int i = 0; i < 16; i++)
        r[i] = i < 8 ? swap_bytes(state[i]) : _mm512_setzero_si512();
    transpose(r);
    for (size_t lane = 0; lane < LANES; lane++)
        _mm256_storeu_si256((__m256i *)(void *)(digests + lane * K3_DIGEST_BYTES),
                            _mm512_castsi512_si256(r[lane]));
}

FORM void k3_sha256_blocks_avx512(const uint8_t *blocks, size_t block_count, uint8_t *digests)
{
    assert(block_count % LANES == 0);
    for (; block_count > 0; block_count -= LANES) {
        /* The last steps look ahead to the first bytes of the next group, if there is one. */
        const uint8_t *next = block_count > LANES ? blocks + GROUP_BYTES : blocks;
        __m512i state[8], w[16];
        K3_UNROLL
        for (int i = 0; i < 8; i++)
            state[i] = BROADCAST(k3_sha256_constants.initial[i]);
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
