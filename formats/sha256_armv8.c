/* Purpose: SHA-256 of 4096-byte blocks with the SHA instructions of ARMv8, two interleaved.
 * Owns: nothing.
 * Threads: pure, any thread.
 * Errors: none; the caller asks the CPU first.
 * Invariants: only bytes of the blocks are read.  Run under an emulator only so far, so the count
 * of two follows from published latencies: the two hash instructions of a block wait four cycles
 * for those before them, and with its two schedule instructions they fill a unit that begins one in
 * each cycle up to four fifths; a second block fills the rest. */
#include "sha256_constants.h"

#if K3_SHA256_ARMV8_BUILT

#include <arm_neon.h>

#define STREAMS 2
#define FORM    __attribute__((target("+crypto")))
#define INLINE  static inline __attribute__((always_inline)) FORM

struct state {
    uint32x4_t abcd, efgh;
};

/* Four rounds; `added` is schedule words + round constants. */
INLINE void four_rounds(struct state *s, uint32x4_t added)
{
    uint32x4_t abcd = s->abcd;
    s->abcd = vsha256hq_u32(abcd, s->efgh, added);
    s->efgh = vsha256h2q_u32(s->efgh, abcd, added);
}

/* w[i] becomes the four words sixteen rounds later. */
INLINE void next_words(uint32x4_t w[4], int i)
{
    w[i] = vsha256su1q_u32(vsha256su0q_u32(w[i], w[(i + 1) & 3]), w[(i + 2) & 3], w[(i + 3) & 3]);
}

INLINE void add_states(struct state *s, const struct state *before, int count)
{
    K3_UNROLL
    for (int n = 0; n < count; n++) {
        s[n].abcd = vaddq_u32(s[n].abcd, before[n].abcd);
        s[n].efgh = vaddq_u32(s[n].efgh, before[n].efgh);
    }
}

/* The next 64 bytes of each block. */
INLINE void step(struct state *s, const uint8_t *at, int count)
{
    struct state before[STREAMS];
    uint32x4_t w[STREAMS][4];
    K3_UNROLL
    for (int n = 0; n < count; n++) {
        before[n] = s[n];
        const uint8_t *bytes = at + (size_t)n * K3_BLOCK_BYTES;
        K3_UNROLL
        for (int i = 0; i < 4; i++)
            w[n][i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(bytes + (size_t)i * 16)));
    }
    K3_UNROLL
    for (int i = 0; i < K3_SHA256_ROUND_COUNT / 4; i++) {
        uint32x4_t constant = vld1q_u32(k3_sha256_constants.round + (size_t)i * 4);
        K3_UNROLL
        for (int n = 0; n < count; n++) {
            four_rounds(&s[n], vaddq_u32(w[n][i % 4], constant));
            if (i < 12) /* the last sixteen words have no successors */
                next_words(w[n], i % 4);
        }
    }
    add_states(s, before, count);
}

INLINE void padding_step(struct state *s, int count)
{
    struct state before[STREAMS];
    K3_UNROLL
    for (int n = 0; n < count; n++)
        before[n] = s[n];
    for (size_t i = 0; i < K3_SHA256_ROUND_COUNT; i += 4) {
        uint32x4_t added = vld1q_u32(k3_sha256_constants.padding + i);
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
        s[n] = (struct state){vld1q_u32(k3_sha256_constants.initial),
                              vld1q_u32(k3_sha256_constants.initial + 4)};
    for (size_t at = 0; at < K3_BLOCK_BYTES; at += K3_SHA256_STEP_BYTES)
        step(s, blocks + at, count);
    padding_step(s, count);
    K3_UNROLL
    for (int n = 0; n < count; n++) {
        uint8_t *digest = digests + (size_t)n * K3_DIGEST_BYTES;
        vst1q_u8(digest, vrev32q_u8(vreinterpretq_u8_u32(s[n].abcd)));
        vst1q_u8(digest + 16, vrev32q_u8(vreinterpretq_u8_u32(s[n].efgh)));
    }
}

FORM void k3_sha256_blocks_armv8(const uint8_t *blocks, size_t block_count, uint8_t *digests)
{
    for (; block_count >= STREAMS; block_count -= STREAMS) {
        hash(blocks, digests, STREAMS);
        blocks += (size_t)STREAMS * K3_BLOCK_BYTES;
        digests += (size_t)STREAMS * K3_DIGEST_BYTES;
    }
    if (block_count > 0)
        hash(blocks, digests, 1);
}

#endif
