/* Purpose: SHA-256 of 4096-byte blocks with the SHA instructions of x86, several interleaved.
 * Owns: nothing.
 * Threads: pure, any thread.
 * Errors: none; the caller asks the CPU first.
 * Invariants: only bytes of the blocks are read. */
#include "sha256_x86.h"

#if defined(__x86_64__)

#include <stdbool.h>

/* Blocks at once.  Measured on a Zen 4: one block waits for the latency of its rounds (1.6 GB/s),
 * two reach what the units of these instructions can do (3.5 GB/s); three and four spill registers
 * (3.5 and 2.6 GB/s with clang 14, 2.1 and 2.4 with gcc 12). */
#define STREAMS 2
#define INLINE  K3_INLINE K3_SHANI

/* Four rounds; `added` is schedule words + round constants. */
INLINE void four_rounds(struct k3_shani_state *s, __m128i added)
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
INLINE void quarter(struct k3_shani_state *s, __m128i w[][4], int count, enum take take,
                    const uint32_t *k, bool more)
{
#define PART(i)                                                                                    \
    do {                                                                                           \
        __m128i constant = K3_LOAD(k + 4 * (i));                                                   \
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

INLINE void add_states(struct k3_shani_state *s, const struct k3_shani_state *before, int count)
{
    K3_UNROLL
    for (int n = 0; n < count; n++)
        k3_shani_add(&s[n], before[n]);
}

/* The next 64 bytes of each stream. */
INLINE void step(struct k3_shani_state *s, const uint8_t *at, int count, enum take take)
{
    const uint32_t *k = k3_sha256_constants.round;
    struct k3_shani_state before[STREAMS];
    __m128i w[STREAMS][4];
    K3_UNROLL
    for (int n = 0; n < count; n++)
        before[n] = s[n];
    const int word_sets = take == OWN ? count : 1;
    K3_UNROLL
    for (int n = 0; n < word_sets; n++) {
        K3_UNROLL
        for (int i = 0; i < 4; i++)
            w[n][i] = k3_shani_swap(K3_LOAD(at + (size_t)n * K3_BLOCK_BYTES + (size_t)i * 16));
    }
    quarter(s, w, count, take, k, true);
    quarter(s, w, count, take, k + 16, true);
    quarter(s, w, count, take, k + 32, true);
    quarter(s, w, count, take, k + 48, false);
    add_states(s, before, count);
}

INLINE void padding_step(struct k3_shani_state *s, int count)
{
    struct k3_shani_state before[STREAMS];
    K3_UNROLL
    for (int n = 0; n < count; n++)
        before[n] = s[n];
    for (int i = 0; i < K3_SHA256_ROUND_COUNT; i += 4) {
        __m128i added = K3_LOAD(k3_sha256_constants.padding + i);
        K3_UNROLL
        for (int n = 0; n < count; n++)
            four_rounds(&s[n], added);
    }
    add_states(s, before, count);
}

/* count, 1 or STREAMS, is known to the compiler. */
INLINE void hash(const uint8_t *blocks, uint8_t *digests, int count)
{
    struct k3_shani_state s[STREAMS];
    K3_UNROLL
    for (int n = 0; n < count; n++)
        s[n] = k3_shani_pack(k3_sha256_constants.initial);
    for (size_t at = 0; at < K3_BLOCK_BYTES; at += K3_SHA256_STEP_BYTES)
        step(s, blocks + at, count, OWN);
    padding_step(s, count);
    K3_UNROLL
    for (int n = 0; n < count; n++)
        k3_shani_store_digest(s[n], digests + (size_t)n * K3_DIGEST_BYTES);
}

K3_SHANI void k3_sha256_blocks_shani(const uint8_t *blocks, size_t block_count, uint8_t *digests)
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
K3_SHANI void k3_sha256_pair_shani(uint32_t *words, const uint8_t *blocks, size_t block_count,
                                   uint8_t *digests)
{
    struct k3_shani_state s[2];
    s[0] = k3_shani_pack(words);
    for (; block_count > 0; block_count--) {
        s[1] = k3_shani_pack(k3_sha256_constants.initial);
        for (size_t at = 0; at < K3_BLOCK_BYTES; at += K3_SHA256_STEP_BYTES)
            step(s, blocks + at, 2, SAME);
        padding_step(s + 1, 1);
        k3_shani_store_digest(s[1], digests);
        blocks += K3_BLOCK_BYTES;
        digests += K3_DIGEST_BYTES;
    }
    __m128i packed[2];
    k3_shani_unpack(s[0], packed);
    K3_STORE(words, packed[0]);
    K3_STORE(words + 4, packed[1]);
}

#endif
