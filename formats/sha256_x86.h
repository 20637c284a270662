/* Private to the forms of k3_sha256_blocks for x86: what more than one of them does in registers.
 * All pure, any thread; the caller asks the CPU first. */
#ifndef K3_SHA256_X86_H
#define K3_SHA256_X86_H

#include "sha256_constants.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define K3_INLINE static inline __attribute__((always_inline))

/* So that the compiler does not know what a pointer points to: constants are then read where they
 * are added, and not loaded beforehand into a stack of 64-byte slots. */
#define K3_HIDE(pointer) __asm__("" : "+r"(pointer))

/* ---- SHA instructions ---- */

#define K3_SHANI __attribute__((target("sha,ssse3,sse4.1")))

#define K3_LOAD(p)     _mm_loadu_si128((const __m128i *)(const void *)(p))
#define K3_STORE(p, v) _mm_storeu_si128((__m128i *)(void *)(p), v)

/* The state as the instructions want it: words a b e f and c d g h, the first one highest. */
struct k3_shani_state {
    __m128i abef, cdgh;
};

/* From words in their order. */
K3_INLINE K3_SHANI struct k3_shani_state k3_shani_pack(const uint32_t *words)
{
    __m128i badc = _mm_shuffle_epi32(K3_LOAD(words), 0xb1);
    __m128i hgfe = _mm_shuffle_epi32(K3_LOAD(words + 4), 0x1b);
    return (struct k3_shani_state){_mm_alignr_epi8(badc, hgfe, 8),
                                   _mm_blend_epi16(hgfe, badc, 0xf0)};
}

/* To words in their order: a b c d and e f g h. */
K3_INLINE K3_SHANI void k3_shani_unpack(struct k3_shani_state s, __m128i words[2])
{
    __m128i feba = _mm_shuffle_epi32(s.abef, 0x1b), dchg = _mm_shuffle_epi32(s.cdgh, 0xb1);
    words[0] = _mm_blend_epi16(feba, dchg, 0xf0);
    words[1] = _mm_alignr_epi8(dchg, feba, 8);
}

/* Byte order of the words of a message and of a digest. */
K3_INLINE K3_SHANI __m128i k3_shani_swap(__m128i v)
{
    return _mm_shuffle_epi8(v, _mm_set_epi32(0x0c0d0e0f, 0x08090a0b, 0x04050607, 0x00010203));
}

K3_INLINE K3_SHANI void k3_shani_store_digest(struct k3_shani_state s, uint8_t *digest)
{
    __m128i words[2];
    k3_shani_unpack(s, words);
    K3_STORE(digest, k3_shani_swap(words[0]));
    K3_STORE(digest + 16, k3_shani_swap(words[1]));
}

K3_INLINE K3_SHANI void k3_shani_add(struct k3_shani_state *s, struct k3_shani_state added)
{
    s->abef = _mm_add_epi32(s->abef, added.abef);
    s->cdgh = _mm_add_epi32(s->cdgh, added.cdgh);
}

/* ---- AVX-512, block i of sixteen in lane i ---- */

#define K3_AVX512 __attribute__((target("avx512f,avx512bw")))

#define K3_ADD(a, b)     _mm512_add_epi32(a, b)
#define K3_ROR(a, count) _mm512_ror_epi32(a, count)
#define K3_SHR(a, count) _mm512_srli_epi32(a, count)
/* Truth table of vpternlogd: row a << 2 | b << 1 | c. */
#define K3_XOR3(a, b, c)   _mm512_ternarylogic_epi32(a, b, c, 0x96)
#define K3_BROADCAST(word) _mm512_set1_epi32((int)(word))

/* w[i] becomes the word sixteen rounds later; the words before it have been moved on already. */
K3_INLINE K3_AVX512 void k3_avx512_next_word(__m512i w[16], int i)
{
    __m512i x = w[(i + 1) & 15], y = w[(i + 14) & 15];
    __m512i s0 = K3_XOR3(K3_ROR(x, 7), K3_ROR(x, 18), K3_SHR(x, 3));
    __m512i s1 = K3_XOR3(K3_ROR(y, 17), K3_ROR(y, 19), K3_SHR(y, 10));
    w[i] = K3_ADD(K3_ADD(w[i], w[(i + 9) & 15]), K3_ADD(s0, s1));
}

K3_INLINE K3_AVX512 __m512i k3_avx512_swap(__m512i v)
{
    return _mm512_shuffle_epi8(v,
                               _mm512_set4_epi32(0x0c0d0e0f, 0x08090a0b, 0x04050607, 0x00010203));
}

/* Words of sixteen blocks come in two steps.  First, for g = 0..3: 64 bytes of each of the blocks
 * g, g + 4, g + 8, g + 12; chunks[c][g] becomes their words 4c..4c+3, those of block g + 4i in
 * quarter i of the register.  `ahead` is where bytes will be wanted later. */
K3_INLINE K3_AVX512 void k3_avx512_take_chunks(const uint8_t *at, const uint8_t *ahead,
                                               __m512i chunks[4][4], int g)
{
    __m512i r[4];
    K3_UNROLL
    for (int i = 0; i < 4; i++) {
        size_t offset = (size_t)(g + 4 * i) * K3_BLOCK_BYTES;
        r[i] = k3_avx512_swap(_mm512_loadu_si512(at + offset));
        __builtin_prefetch(ahead + offset, 0, 2);
    }
    __m512i low01 = _mm512_shuffle_i32x4(r[0], r[1], 0x44);
    __m512i high01 = _mm512_shuffle_i32x4(r[0], r[1], 0xee);
    __m512i low23 = _mm512_shuffle_i32x4(r[2], r[3], 0x44);
    __m512i high23 = _mm512_shuffle_i32x4(r[2], r[3], 0xee);
    chunks[0][g] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    chunks[1][g] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    chunks[2][g] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    chunks[3][g] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
}

/* Then each quarter of four registers is turned: word j of register i becomes word i of register j.
 * Of chunks it makes words, block i in lane i; of such words it makes chunks again. */
K3_INLINE K3_AVX512 void k3_avx512_turn(const __m512i r[4], __m512i w[4])
{
    __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    w[0] = _mm512_unpacklo_epi64(a, c);
    w[1] = _mm512_unpackhi_epi64(a, c);
    w[2] = _mm512_unpacklo_epi64(b, d);
    w[3] = _mm512_unpackhi_epi64(b, d);
}

#endif

#endif
