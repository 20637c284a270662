/* Purpose: the write sum, a position-keyed 64-bit sum of the bytes of a unit.
 * Owns: nothing; the key tables are constants.
 * Threads: any; pure.
 * Errors: none.
 * Invariants: the sum is that of w * word_key(i) * block_key(b) modulo 2^64 over the 4-byte
 * little-endian words w of a unit, w being word i < 1024 of block b < 128, a missing byte counting
 * as zero, so disjoint pieces add up.  word_key is odd and below 2^32, block_key is odd, and the
 * 131072 products are different modulo 2^33, also from one another's negatives.  What this gives:
 * a word that changes by d, 0 < |d| < 2^32, changes the sum by d * odd, never 0. Two unequal words
 * that change places change it by d * (key - key'), not 0 since 2^33 does not divide the
 * difference of the keys.  The same holds for any two bits that flip.  (8-byte words would be no
 * faster here, and with them the difference of two odd keys is even, so two flipped sign bits
 * would cancel always.)  Other changes cancel by chance only, about once in 2^64.
 * tests/test_wsum.c proves the property of the keys.  Speed: the keys of a block are 4 KiB and
 * stay in the first-level cache, and one multiplication a block applies its own key.  SSE2, which
 * every x86-64 has, multiplies two words at once; no compiler finds that form by itself from
 * 64-bit arithmetic. */
#include "wsum.h"

#include "bytes.h"

#include <assert.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define WORD_BYTES       4u
#define BLOCK_WORD_COUNT (K3_BLOCK_BYTES / WORD_BYTES)

/* The key formula: n steps of the golden ratio (2^64 / phi, odd), two rounds of xor-shift and
 * multiplication (the multipliers are those of splitmix64), and the lowest bit set.  Word keys take
 * n = 1 + i and the high half; block keys take n = KEY_BLOCK_START + b.  KEY_BLOCK_START is the
 * first number from 1024 on with which all products are different as said above. */
#define KEY_STEP(n)     ((uint64_t)(n)*0x9E3779B97F4A7C15u)
#define KEY_ROUND_1(x)  (((x) ^ (x) >> 30) * 0xBF58476D1CE4E5B9u)
#define KEY_ROUND_2(x)  (((x) ^ (x) >> 27) * 0x94D049BB133111EBu)
#define KEY_MIX(n)      KEY_ROUND_2(KEY_ROUND_1(KEY_STEP(n)))
#define KEY_BLOCK_START 1378

#define WORD_KEY(i)  ((uint32_t)(KEY_MIX(1 + (i)) >> 32) | 1u)
#define BLOCK_KEY(b) (KEY_MIX(KEY_BLOCK_START + (b)) | 1u)

#define X4(F, i)   F(i), F((i) + 1), F((i) + 2), F((i) + 3)
#define X16(F, i)  X4(F, i), X4(F, (i) + 4), X4(F, (i) + 8), X4(F, (i) + 12)
#define X64(F, i)  X16(F, i), X16(F, (i) + 16), X16(F, (i) + 32), X16(F, (i) + 48)
#define X128(F, i) X64(F, i), X64(F, (i) + 64)
#define X256(F, i) X128(F, i), X128(F, (i) + 128)

static const uint32_t word_key[] = {X256(WORD_KEY, 0), X256(WORD_KEY, 256), X256(WORD_KEY, 512),
                                    X256(WORD_KEY, 768)};
static const uint64_t block_key[] = {X128(BLOCK_KEY, 0)};

_Static_assert(sizeof word_key / sizeof *word_key == BLOCK_WORD_COUNT,
               "one key for each word of a block");
_Static_assert(sizeof block_key / sizeof *block_key == K3_UNIT_BLOCK_COUNT,
               "one key for each block");

/* Sum of `count` whole words that begin at word `first` of a block, without the block's key. */
static uint64_t sum_words(const uint8_t *data, size_t count, size_t first)
{
    const uint32_t *key = word_key + first;
    uint64_t sum = 0;
    size_t i = 0;
#if defined(__SSE2__)
    __m128i even = _mm_setzero_si128(), odd = even;
    for (; i + 4 <= count; i += 4) {
        __m128i w = _mm_loadu_si128((const __m128i *)(const void *)(data + i * WORD_BYTES));
        __m128i k = _mm_loadu_si128((const __m128i *)(const void *)(key + i));
        even = _mm_add_epi64(even, _mm_mul_epu32(w, k));
        odd = _mm_add_epi64(odd, _mm_mul_epu32(_mm_srli_epi64(w, 32), _mm_srli_epi64(k, 32)));
    }
    uint64_t lane[2];
    _mm_storeu_si128((__m128i *)(void *)lane, _mm_add_epi64(even, odd));
    sum = lane[0] + lane[1];
#endif
    for (; i < count; i++)
        sum += (uint64_t)k3_load_le32(data + i * WORD_BYTES) * key[i];
    return sum;
}

/* Sum of a few bytes of one word, as they lie in it. */
static uint64_t sum_bytes(const uint8_t *data, size_t bytes, size_t block_offset)
{
    uint32_t word = 0;
    for (size_t i = 0; i < bytes; i++)
        word |= (uint32_t)data[i] << (8 * ((block_offset + i) % WORD_BYTES));
    return (uint64_t)word * word_key[block_offset / WORD_BYTES];
}

/* Sum of a piece that lies in one block, without the block's key. */
static uint64_t sum_in_block(const uint8_t *data, size_t bytes, size_t block_offset)
{
    uint64_t sum = 0;
    size_t head_bytes = (WORD_BYTES - block_offset % WORD_BYTES) % WORD_BYTES;
    if (head_bytes > bytes)
        head_bytes = bytes;
    if (head_bytes > 0)
        sum += sum_bytes(data, head_bytes, block_offset);
    data += head_bytes;
    bytes -= head_bytes;
    block_offset += head_bytes;
    sum += sum_words(data, bytes / WORD_BYTES, block_offset / WORD_BYTES);
    size_t tail_bytes = bytes % WORD_BYTES;
    if (tail_bytes > 0)
        sum += sum_bytes(data + bytes - tail_bytes, tail_bytes, block_offset + bytes - tail_bytes);
    return sum;
}

uint64_t k3_wsum(const void *data, size_t bytes, uint64_t file_offset)
{
    size_t unit_offset = (size_t)(file_offset % K3_UNIT_BYTES);
    assert(bytes <= K3_UNIT_BYTES - unit_offset);
    const uint8_t *at = data;
    uint64_t sum = 0;
    while (bytes > 0) {
        size_t block_offset = unit_offset % K3_BLOCK_BYTES;
        size_t piece_bytes = K3_BLOCK_BYTES - block_offset;
        if (piece_bytes > bytes)
            piece_bytes = bytes;
        sum += sum_in_block(at, piece_bytes, block_offset) *
               block_key[unit_offset / K3_BLOCK_BYTES];
        at += piece_bytes;
        bytes -= piece_bytes;
        unit_offset += piece_bytes;
    }
    return sum;
}

void k3_wsum_add(uint64_t *sums, const void *data, size_t bytes, uint64_t file_offset)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        size_t piece_bytes = (size_t)(K3_UNIT_BYTES - file_offset % K3_UNIT_BYTES);
        if (piece_bytes > bytes)
            piece_bytes = bytes;
        sums[file_offset / K3_UNIT_BYTES] += k3_wsum(at, piece_bytes, file_offset);
        at += piece_bytes;
        bytes -= piece_bytes;
        file_offset += piece_bytes;
    }
}
