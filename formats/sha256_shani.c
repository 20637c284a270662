/* Purpose: SHA-256 of 4096-byte blocks with the SHA instructions of x86, several interleaved.
 * Owns: nothing.
 * Threads: pure, any thread.
 * Errors: none; the caller asks the CPU first.
 * Invariants: only bytes of the blocks are read. */
#include "sha256_constants.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdbool.h>

/* Blocks at once.  Measured on a Zen 4: one block waits for the latency of its rounds (1.6 GB/s),
 * two reach what the units of these instructions can do (3.5 GB/s); three and four spill registers
 * (3.5 and 2.6 GB/s with clang 14, 2.1 and 2.4 with gcc 12). */
#define STREAMS 2
#define FORM    __attribute__((target("sha,ssse3,sse4.1")))
#define INLINE  static inline __attribute__((always_inline)) FORM

#define LOAD(p)     _mm_loadu_si128((const __m128i *)(const void *)(p))
#define STORE(p, v) _mm_storeu_si128((__m128i *)(void *)(p), v)

/* The state as the instructions want it: words a b e f and c d g h, the first one highest. */
struct state {
    __m128i abef, cdgh;
};

/* From and to words a b c d, e f g h in memory order. */
INLINE struct state pack(__m128i abcd, __m128i efgh)
{
    __m128i badc = _mm_shuffle_epi32(abcd, 0xb1), hgfe = _mm_shuffle_epi32(efgh, 0x1b);
    return (struct state){_mm_alignr_epi8(badc, hgfe, 8), _mm_blend_epi16(hgfe, badc, 0xf0)};
}

INLINE __m128i swap_bytes(__m128i v)
{
    return _mm_shuffle_epi8(v, _mm_set_epi32(0x0c0d0e0f, 0x08090a0b, 0x04050607, 0x00010203));
}

/* The words of a state in their order. */
INLINE void store_words(struct state s, uint32_t *words)
{
    __m128i feba = _mm_shuffle_epi32(s.abef, 0x1b), dchg = _mm_shuffle_epi32(s.cdgh, 0xb1);
    STORE(words, _mm_blend_epi16(feba, dchg, 0xf0));
    STORE(words + 4, _mm_alignr_epi8(dchg, feba, 8));
}

INLINE void store_digest(struct state s, uint8_t *digest)
{
    __m128i feba = _mm_shuffle_epi32(s.abef, 0x1b), dchg = _mm_shuffle_epi32(s.cdgh, 0xb1);
    STORE(digest, swap_bytes(_mm_blend_epi16(feba, dchg, 0xf0)));
    STORE(digest + 16, swap_bytes(_mm_alignr_epi8(dchg, feba, 8)));
}

/* Four rounds; `added` is schedule words + round constants. */
INLINE void four_rounds(struct state *s, __m128i added)
{
    s->cdgh = _mm_sha256rnds2_epu32(s->cdgh, s->abef, added);
    s->abef = _mm_sha256rnds2_epu32(s->abef, s->cdgh, _mm_shuffle_epi32(added, 0x0e));
}

/* w[i] becomes the four words sixteen rounds later. */
INLINE void next_words(__m128i w[4], int i)
{
    __m128i last = w[(i + 3) & 3], before = w[(i + 2) & 3];
    __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i], w[(i + 1) & 3]),
                                _mm_alignr_epi8(last, before, 4));
    w[i] = _mm_sha256msg2_epu32(sum, last);
}

/* What the streams of a step take in: the same bytes, or each its own block. */
enum take { SAME, OWN };

/* Sixteen rounds of all streams with the words they have, and the words of the next sixteen. */
INLINE void quarter(struct state *s, __m128i w[][4], int count, enum take take, const uint32_t *k,
                    bool more)
{
#define PART(i)                                                                                    \
    do {                                                                                           \
        __m128i constant = LOAD(k + 4 * (i));                                                      \
        K3_UNROLL                                                                                  \
        for (int n = 0; n < count; n++)                                                            \
            four_rounds(&s[n], _mm_add_epi32(w[take == OWN ? n : 0][i], constant));                \
        if (more)                                                                                  \
            for (int n = 0; n < (take == OWN ? count : 1); n++)                                    \
                next_words(w[n], i);                                                               \
    } while (0)
    PART(0);
    PART(1);
    PART(2);
    PART(3);
}

INLINE void add_states(struct state *s, const struct state *before, int count)
{
    K3_UNROLL
    for (int n = 0; n < count; n++) {
        s[n].abef = _mm_add_epi32(s[n].abef, before[n].abef);
        s[n].cdgh = _mm_add_epi32(s[n].cdgh, before[n].cdgh);
    }
}

/* The next 64 bytes of each stream. */
INLINE void step(struct state *s, const uint8_t *at, int count, enum take take)
{
    const uint32_t *k = k3_sha256_constants.round;
    struct state before[STREAMS];
    __m128i w[STREAMS][4];
    K3_UNROLL
    for (int n = 0; n < count; n++)
        before[n] = s[n];
    const int word_sets = take == OWN ? count : 1;
    K3_UNROLL
    for (int n = 0; n < word_sets; n++) {
        K3_UNROLL
        for (int i = 0; i < 4; i++)
            w[n][i] = swap_bytes(LOAD(at + (size_t)n * K3_BLOCK_BYTES + (size_t)i * 16));
    }
    quarter(s, w, count, take, k, true);
    quarter(s, w, count, take, k + 16, true);
    quarter(s, w, count, take, k + 32, true);
    quarter(s, w, count, take, k + 48, false);
    add_states(s, before, count);
}

INLINE void padding_step(struct state *s, int count)
{
    struct state before[STREAMS];
    K3_UNROLL
    for (int n = 0; n < count; n++)
        before[n] = s[n];
    for (int i = 0; i < K3_SHA256_ROUND_COUNT; i += 4) {
        __m128i added = LOAD(k3_sha256_constants.padding + i);
        K3_UNROLL
        for (int n = 0; n < count; n++)
            four_rounds(&s[n], added);
    }
    add_states(s, before, count);
}

/* count, 1 or STREAMS, is known to the compiler. */
INLINE void hash(const uint8_t *blocks, uint8_t *digests, int count)
{
    struct state s[STREAMS];
    K3_UNROLL
    for (int n = 0; n < count; n++)
        s[n] = pack(LOAD(k3_sha256_constants.initial), LOAD(k3_sha256_constants.initial + 4));
    for (size_t at = 0; at < K3_BLOCK_BYTES; at += K3_SHA256_STEP_BYTES)
        step(s, blocks + at, count, OWN);
    padding_step(s, count);
    K3_UNROLL
    for (int n = 0; n < count; n++)
        store_digest(s[n], digests + (size_t)n * K3_DIGEST_BYTES);
}

FORM void k3_sha256_blocks_shani(const uint8_t *blocks, size_t block_count, uint8_t *digests)
{
    for (; block_count >= STREAMS; block_count -= STREAMS) {
        hash(blocks, digests, STREAMS);
        blocks += (size_t)STREAMS * K3_BLOCK_BYTES;
        digests += (size_t)STREAMS * K3_DIGEST_BYTES;
    }
    for (; block_count > 0; block_count--) {
        hash(blocks, digests, 1);
        blocks += K3_BLOCK_BYTES;
        digests += K3_DIGEST_BYTES;
    }
}

/* A stream waits for the latency of its rounds, so a second one, of each block alone, costs little;
 * both take the same bytes, so one schedule serves both. */
FORM void k3_sha256_pair_shani(uint32_t *words, const uint8_t *blocks, size_t block_count,
                               uint8_t *digests)
{
    struct state s[2];
    s[0] = pack(LOAD(words), LOAD(words + 4));
    for (; block_count > 0; block_count--) {
        s[1] = pack(LOAD(k3_sha256_constants.initial), LOAD(k3_sha256_constants.initial + 4));
        for (size_t at = 0; at < K3_BLOCK_BYTES; at += K3_SHA256_STEP_BYTES)
            step(s, blocks + at, 2, SAME);
        padding_step(s + 1, 1);
        store_digest(s[1], digests);
        blocks += K3_BLOCK_BYTES;
        digests += K3_DIGEST_BYTES;
    }
    store_words(s[0], words);
}

#endif
