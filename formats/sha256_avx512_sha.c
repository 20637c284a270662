/* Purpose: SHA-256 of 4096-byte blocks, sixteen at once: the message schedules by AVX-512, one
 * block in each 32-bit lane, the rounds by the SHA instructions, four blocks interleaved. Owns:
 * nothing; 8 KiB of stack. Threads: pure, any thread. Errors: none; the caller asks the CPU first.
 * Invariants: only bytes of the blocks are read (a prefetch never faults and stays inside them).
 * Why: measured on a Zen 4 in cycles for 64 bytes, two rounds of the SHA instructions take one
 * cycle of a unit that four blocks fill, 32 in all; its schedule instructions take 36 more of the
 * same unit, while AVX-512 makes the schedule in other units.  SHA-NI alone takes 68, AVX-512 alone
 * 62 to 70, this form 53 to 55.  It runs the rounds of one step beside the schedule of the next
 * one, in turns that are short against what the CPU looks ahead. */
#include "sha256_x86.h"

#if defined(__x86_64__)

#include <assert.h>
#include <stdbool.h>

#define LANES       K3_AVX512_LANE_COUNT
#define GROUP_BYTES ((size_t)LANES * K3_BLOCK_BYTES)
#define STREAMS     4 /* rounds take four cycles and one may begin in each */

/* Steps from a prefetch to its use, see sha256_avx512.c; one step is the schedule's lead. */
#define AHEAD_STEP_COUNT 4

#define FORM   __attribute__((target("avx512f,avx512bw,avx512vl,sha,ssse3,sse4.1")))
#define INLINE K3_INLINE FORM

/* Schedule words + round constants of a step: for four rounds in a register, of block q + 4n in
 * of[i][q][n]. */
struct added {
    __m128i of[K3_SHA256_ROUND_COUNT / 4][LANES / STREAMS][STREAMS];
} __attribute__((aligned(64)));

/* What a step works on besides states and words. */
struct step {
    const struct added *from;    /* of this step */
    struct added *to;            /* of the next one */
    const uint8_t *next, *ahead; /* bytes of the one after that, and later ones */
};

INLINE void four_rounds(struct k3_shani_state s[STREAMS], const __m128i *added)
{
    K3_UNROLL
    for (int n = 0; n < STREAMS; n++)
        s[n].cdgh = _mm_sha256rnds2_epu32(s[n].cdgh, s[n].abef, added[n]);
    /* The high halves are loaded again: a shuffle would need a unit that is busy. */
    K3_HIDE(added);
    K3_UNROLL
    for (int n = 0; n < STREAMS; n++)
        s[n].abef = _mm_sha256rnds2_epu32(
            s[n].abef, s[n].cdgh,
            _mm_loadl_epi64((const __m128i *)(const void *)((const char *)(added + n) + 8)));
}

INLINE void store_added(const __m512i sums[4], __m128i (*of)[STREAMS])
{
    __m512i chunks[4];
    k3_avx512_turn(sums, chunks);
    K3_UNROLL
    for (int q = 0; q < 4; q++)
        _mm512_store_si512((void *)of[q], chunks[q]);
}

/* The last quarter moves on to the words of the step after the next: a part of it in turn i. */
INLINE void new_words(const struct step *step, __m512i chunks[4][4], __m512i w[16], int i)
{
    if (i < 12 && i % 3 == 0)
        k3_avx512_take_chunks(step->next, step->ahead, chunks, i / 3);
    /* The words that it takes the place of have been added by then. */
    if (i == 10)
        k3_avx512_turn(chunks[0], w);
    if (i == 12)
        k3_avx512_turn(chunks[1], w + 4);
    if (i == 14)
        k3_avx512_turn(chunks[2], w + 8);
    if (i == 15)
        k3_avx512_turn(chunks[3], w + 12);
}

/* All rounds of blocks q + 4n, and words 16q..16q+15 of the schedule of all blocks. */
INLINE void quarter(struct k3_shani_state all[LANES], __m512i w[16], const struct step *step, int q,
                    bool last)
{
    const uint32_t *k = k3_sha256_constants.round + (size_t)16 * (size_t)q;
    K3_HIDE(k);
    struct k3_shani_state *before = all + (size_t)STREAMS * (size_t)q, s[STREAMS];
    __m512i sums[4], chunks[4][4];
    K3_UNROLL
    for (int n = 0; n < STREAMS; n++)
        s[n] = before[n];
#define TURN(i)                                                                                    \
    do {                                                                                           \
        sums[(i) % 4] = K3_ADD(w[i], K3_BROADCAST(k[i]));                                          \
        if (!last)                                                                                 \
            k3_avx512_next_word(w, i);                                                             \
        if ((i) % 4 == 3)                                                                          \
            store_added(sums, step->to->of[4 * q + (i) / 4]);                                      \
        four_rounds(s, step->from->of[i][q]);                                                      \
        if (last)                                                                                  \
            new_words(step, chunks, w, i);                                                         \
    } while (0)
#define FOUR_TURNS(i)                                                                              \
    TURN(i);                                                                                       \
    TURN((i) + 1);                                                                                 \
    TURN((i) + 2);                                                                                 \
    TURN((i) + 3)
    FOUR_TURNS(0);
    FOUR_TURNS(4);
    FOUR_TURNS(8);
    FOUR_TURNS(12);
    K3_UNROLL
    for (int n = 0; n < STREAMS; n++)
        k3_shani_add(&before[n], s[n]);
}

INLINE void run_step(struct k3_shani_state all[LANES], __m512i w[16], const struct step *step)
{
    for (int q = 0; q < 3; q++)
        quarter(all, w, step, q, false);
    quarter(all, w, step, 3, true);
}

INLINE void padding_step(struct k3_shani_state s[STREAMS])
{
    struct k3_shani_state before[STREAMS];
    K3_UNROLL
    for (int n = 0; n < STREAMS; n++)
        before[n] = s[n];
    for (int i = 0; i < K3_SHA256_ROUND_COUNT; i += 4) {
        __m128i low = K3_LOAD(k3_sha256_constants.padding + i);
        __m128i added[STREAMS] = {low, low, low, low};
        four_rounds(s, added);
    }
    K3_UNROLL
    for (int n = 0; n < STREAMS; n++)
        k3_shani_add(&s[n], before[n]);
}

INLINE void finish(struct k3_shani_state all[LANES], uint8_t *digests)
{
    for (size_t q = 0; q < LANES / STREAMS; q++) {
        struct k3_shani_state *s = all + STREAMS * q;
        padding_step(s);
        for (size_t n = 0; n < STREAMS; n++)
            k3_shani_store_digest(s[n], digests + (q + 4 * n) * K3_DIGEST_BYTES);
    }
}

/* The bytes of a step, counted over all groups; after the last one, those of the last one. */
INLINE const uint8_t *step_bytes(const uint8_t *blocks, size_t step, size_t step_count)
{
    if (step >= step_count)
        step = step_count - 1;
    return blocks + step / K3_SHA256_STEP_COUNT * GROUP_BYTES +
           step % K3_SHA256_STEP_COUNT * K3_SHA256_STEP_BYTES;
}

FORM void k3_sha256_blocks_avx512_sha(const uint8_t *blocks, size_t block_count, uint8_t *digests)
{
    assert(block_count % LANES == 0);
    size_t step_count = block_count / LANES * K3_SHA256_STEP_COUNT;
    if (step_count == 0)
        return;
    struct added added[2] = {0};
    struct k3_shani_state all[LANES] = {0}, initial = k3_shani_pack(k3_sha256_constants.initial);
    __m512i w[16], chunks[4][4];
    for (int g = 0; g < 4; g++)
        k3_avx512_take_chunks(blocks, blocks, chunks, g);
    for (int c = 0; c < 4; c++)
        k3_avx512_turn(chunks[c], w + (size_t)4 * (size_t)c);
    /* Only the schedule of step 0; the rounds of this one are dropped. */
    const uint8_t *next = step_bytes(blocks, 1, step_count);
    run_step(all, w, &(struct step){&added[1], &added[0], next, next});
    for (size_t i = 0; i < step_count; i++) {
        if (i % K3_SHA256_STEP_COUNT == 0)
            for (int n = 0; n < LANES; n++)
                all[n] = initial;
        struct step step = {&added[i % 2], &added[1 - i % 2], step_bytes(blocks, i + 2, step_count),
                            step_bytes(blocks, i + 2 + AHEAD_STEP_COUNT, step_count)};
        run_step(all, w, &step);
        if (i % K3_SHA256_STEP_COUNT == K3_SHA256_STEP_COUNT - 1) {
            finish(all, digests);
            digests += (size_t)LANES * K3_DIGEST_BYTES;
        }
    }
}

#endif
