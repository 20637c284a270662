/* Purpose: the inner loops of casts, sixteen values at once in pairs of registers (AVX2).
 * Owns: nothing.
 * Threads: any.
 * Errors: none; the caller asks the CPU first.
 * Invariants: as quant_avx512.c; the end of a short run goes through a copy filled up with zeros.
 */
#include "quant_x86.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#define STEP 16u /* values */

#define DWORDS(word)         _mm256_set1_epi32((int)(word))
#define LOAD_16_BYTES(p)     _mm_loadu_si128((const __m128i *)(const void *)(p))
#define LOAD_32_BYTES(p)     _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define STORE_32_BYTES(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)

/* ---- BF16 to codes ---- */

/* Lanes 4i ... 4i + 3 in x2[i] and err2[i]. */
struct sums {
    __m256d x2[4], err2[4], most;
};

INLINE void load_sums(const struct k3_qlanes *lanes, struct sums *s)
{
    for (int i = 0; i < 4; i++) {
        s->x2[i] = _mm256_loadu_pd(lanes->x2 + 4 * i);
        s->err2[i] = _mm256_loadu_pd(lanes->err2 + 4 * i);
    }
    s->most = _mm256_set1_pd(lanes->max_abs_error);
}

INLINE void store_sums(const struct sums *s, struct k3_qlanes *lanes)
{
    double most[4];
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_pd(lanes->x2 + 4 * i, s->x2[i]);
        _mm256_storeu_pd(lanes->err2 + 4 * i, s->err2[i]);
    }
    _mm256_storeu_pd(most, s->most);
    for (int i = 0; i < 4; i++)
        if (most[i] > lanes->max_abs_error)
            lanes->max_abs_error = most[i];
}

INLINE __m256d half_of(__m256 v, int h)
{
    return _mm256_cvtps_pd(h ? _mm256_extractf128_ps(v, 1) : _mm256_castps256_ps128(v));
}

/* Magnitudes x, of the lanes from 8 * upper on, became y. */
INLINE void account(struct sums *s, int upper, __m256 x, __m256 y)
{
    y = _mm256_min_ps(y, _mm256_set1_ps(FLT_MAX));
    for (int h = 0; h < 2; h++) {
        int i = 2 * upper + h;
        __m256d wide = half_of(x, h), d = _mm256_sub_pd(wide, half_of(y, h));
        s->x2[i] = _mm256_add_pd(s->x2[i], _mm256_mul_pd(wide, wide));
        s->err2[i] = _mm256_add_pd(s->err2[i], _mm256_mul_pd(d, d));
        s->most = _mm256_max_pd(s->most, _mm256_andnot_pd(_mm256_set1_pd(-0.0), d));
    }
}

/* FP32 to BF16 and back, nearest even; not of NaN. */
INLINE __m256 through_bf16(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), DWORDS(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, DWORDS(0x7fff)));
    return _mm256_castsi256_ps(_mm256_and_si256(bits, DWORDS(0xffff0000)));
}

/* The scale of a group; a quotient by a power of two is a product, rounded the same. */
struct by {
    __m256 scale, inverse;
    bool is_pow2;
};

INLINE struct by by_of(float scale, float inverse, bool is_pow2)
{
    return (struct by){_mm256_set1_ps(scale), _mm256_set1_ps(inverse), is_pow2};
}

INLINE __m256 quotient(__m256 x, struct by by)
{
    return by.is_pow2 ? _mm256_mul_ps(x, by.inverse) : _mm256_div_ps(x, by.scale);
}

/* Codes of the values with these FP32 bits, each in a dword. */
INLINE __m256i float_step(enum k3_quant_kind kind, __m256i bits, struct by by, struct sums *s,
                          int upper)
{
    __m256 x = _mm256_castsi256_ps(_mm256_and_si256(bits, DWORDS(0x7fffffff)));
    __m256 q = quotient(x, by);
    if (kind == K3_QK_E4M3_BF16)
        q = through_bf16(q);
    q = _mm256_min_ps(q, _mm256_set1_ps(K3_QK_MOST(kind)));
    __m256i e = _mm256_and_si256(_mm256_castps_si256(q), DWORDS(K3_QK_EXPONENT));
    __m256i over = _mm256_sub_epi32(_mm256_max_epi32(e, DWORDS(K3_QK_LEAST(kind))),
                                    DWORDS(K3_QK_LEAST(kind)));
    __m256i adder = _mm256_add_epi32(over, DWORDS(K3_QK_LEAST(kind) + K3_QK_RAISE(kind)));
    __m256 sum = _mm256_add_ps(q, _mm256_castsi256_ps(adder));
    __m256 y = _mm256_mul_ps(_mm256_sub_ps(sum, _mm256_castsi256_ps(adder)), by.scale);
    account(s, upper, x, y);
    __m256i code = _mm256_add_epi32(_mm256_sub_epi32(_mm256_castps_si256(sum), adder),
                                    _mm256_srli_epi32(over, K3_QK_CODES(kind)));
    __m256i sign = _mm256_srli_epi32(bits, K3_QK_SIGNED(kind));
    return _mm256_or_si256(code, _mm256_and_si256(sign, DWORDS(K3_QK_SIGN(kind))));
}

INLINE __m256i int_step(enum k3_quant_kind kind, __m256i bits, struct by by, struct sums *s,
                        int upper)
{
    const float low = kind == K3_QK_INT8 ? -128 : -8, high = kind == K3_QK_INT8 ? 127 : 7;
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 x = _mm256_castsi256_ps(bits), q = quotient(x, by);
    q = _mm256_min_ps(_mm256_max_ps(q, _mm256_set1_ps(low)), _mm256_set1_ps(high));
    __m256i code = _mm256_cvtps_epi32(q); /* the rounding mode is the default one */
    __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(code), by.scale);
    account(s, upper, _mm256_andnot_ps(sign, x), _mm256_andnot_ps(sign, y));
    return kind == K3_QK_INT4 ? _mm256_add_epi32(code, DWORDS(8))
                              : _mm256_and_si256(code, DWORDS(0xff));
}

INLINE __m256i half_step(enum k3_quant_kind kind, __m128i bf16, struct by by, struct sums *s,
                         int upper)
{
    __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16);
    return K3_QK_IS_INT(kind) ? int_step(kind, bits, by, s, upper)
                              : float_step(kind, bits, by, s, upper);
}

/* Sixteen values to the bytes of their codes. */
INLINE void step(enum k3_quant_kind kind, const uint8_t *x, struct by by, struct sums *s,
                 uint8_t *out)
{
    __m256i low = half_step(kind, LOAD_16_BYTES(x), by, s, 0);
    __m256i high = half_step(kind, LOAD_16_BYTES(x + STEP), by, s, 1);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words),
                                     _mm256_extracti128_si256(words, 1));
    if (K3_QK_IS_NIBBLE(kind)) { /* of two bytes: the first, and 16 times the second */
        bytes = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x1001));
        _mm_storel_epi64((__m128i *)(void *)out, _mm_packus_epi16(bytes, bytes));
    } else {
        _mm_storeu_si128((__m128i *)(void *)out, bytes);
    }
}

/* Values [i, end) of a run, one group. */
INLINE void group(enum k3_quant_kind kind, const struct k3_qrun *run, size_t i, size_t end,
                  struct by by, struct sums *s)
{
    for (; i + STEP <= end; i += STEP)
        step(kind, run->x + 2 * i, by, s, run->out + K3_QK_BYTES(kind, i));
    if (i < end) {
        uint8_t x[2 * STEP] = {0}, out[STEP];
        memcpy(x, run->x + 2 * i, 2 * (end - i));
        step(kind, x, by, s, out);
        memcpy(run->out + K3_QK_BYTES(kind, i), out, K3_QK_BYTES(kind, end - i));
    }
}

#include "quant_x86_run.h"

/* ---- largest magnitudes ---- */

TARGET static void amax(const uint8_t *x, size_t count, size_t group_cols, uint16_t *out)
{
    const __m256i magnitude = _mm256_set1_epi16(0x7fff);
    for (size_t begin = 0; begin < count; begin += group_cols) {
        size_t i = begin, end = count - begin < group_cols ? count : begin + group_cols;
        __m256i most = _mm256_setzero_si256();
        for (; i + STEP <= end; i += STEP)
            most = _mm256_max_epu16(most, _mm256_and_si256(LOAD_32_BYTES(x + 2 * i), magnitude));
        if (i < end) {
            uint8_t last[2 * STEP] = {0};
            memcpy(last, x + 2 * i, 2 * (end - i));
            most = _mm256_max_epu16(most, _mm256_and_si256(LOAD_32_BYTES(last), magnitude));
        }
        *out++ = most_of(most);
    }
}

/* ---- MXFP4 ---- */

TARGET static void mx_squares(const uint8_t *packed, size_t group_count, uint16_t *squares)
{
    const __m128i nibble = _mm_set1_epi8(15), square = _mm_setr_epi8(K3_QK_SQUARES);
    const __m128i zero = _mm_setzero_si128();
    for (size_t g = 0; g < group_count; g++) {
        __m128i b = LOAD_16_BYTES(packed + 16 * g);
        __m128i low = _mm_shuffle_epi8(square, _mm_and_si128(b, nibble));
        __m128i high = _mm_shuffle_epi8(square, _mm_and_si128(_mm_srli_epi16(b, 4), nibble));
        __m128i sum = _mm_add_epi64(_mm_sad_epu8(low, zero), _mm_sad_epu8(high, zero));
        squares[g] = (uint16_t)(_mm_cvtsi128_si32(sum) + _mm_extract_epi16(sum, 4));
    }
}

/* The codes of one group, each in a byte. */
INLINE __m256i codes_of(const uint8_t *packed)
{
    __m256i words = _mm256_cvtepu8_epi16(LOAD_16_BYTES(packed));
    words = _mm256_or_si256(words, _mm256_slli_epi16(words, 4));
    return _mm256_and_si256(words, _mm256_set1_epi8(15));
}

TARGET static void mx_bytes(const uint8_t *packed, size_t group_count, const uint8_t (*table)[16],
                            const uint8_t *pick, uint8_t *out)
{
    for (size_t g = 0; g < group_count; g++) {
        __m256i row = _mm256_broadcastsi128_si256(LOAD_16_BYTES(table[pick ? pick[g] : 0]));
        STORE_32_BYTES(out + 32 * g, _mm256_shuffle_epi8(row, codes_of(packed + 16 * g)));
    }
}

/* Low and high bytes of the words are picked apart, then put together. */
TARGET static void mx_words(const uint8_t *packed, size_t group_count, const uint16_t (*table)[16],
                            const uint8_t *pick, uint8_t *out)
{
    for (size_t g = 0; g < group_count; g++) {
        const uint16_t *row = table[pick ? pick[g] : 0];
        __m128i first = LOAD_16_BYTES(row), second = LOAD_16_BYTES(row + 8);
        __m128i mask = _mm_set1_epi16(0xff);
        __m128i low = _mm_packus_epi16(_mm_and_si128(first, mask), _mm_and_si128(second, mask));
        __m128i high = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
        __m256i codes = codes_of(packed + 16 * g);
        __m256i lows = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(low), codes);
        __m256i highs = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(high), codes);
        __m256i even = _mm256_unpacklo_epi8(lows, highs), odd = _mm256_unpackhi_epi8(lows, highs);
        STORE_32_BYTES(out + 64 * g, _mm256_permute2x128_si256(even, odd, 0x20));
        STORE_32_BYTES(out + 64 * g + 32, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

TARGET static void range(const uint8_t *bytes, size_t count, uint8_t *min, uint8_t *max)
{
    uint8_t ends[3][32];
    __m256i low = _mm256_set1_epi8(-1), high = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + sizeof ends[0] <= count; i += sizeof ends[0]) {
        __m256i v = LOAD_32_BYTES(bytes + i);
        low = _mm256_min_epu8(low, v);
        high = _mm256_max_epu8(high, v);
    }
    if (i == 0) { /* too few for a register */
        k3_quant_range_of(bytes, count, min, max);
        return;
    }
    STORE_32_BYTES(ends[0], low);
    STORE_32_BYTES(ends[1], high);
    memcpy(ends[2], bytes + i, count - i);
    k3_quant_range_of(ends[0], 2 * sizeof ends[0] + (count - i), min, max);
}

const struct k3_quant_ops k3_quant_ops_avx2 = {
    .amax = amax,
    .nvfp4_scales = k3_nvfp4_scales_scalar,
    .saturated = k3_saturated_scalar,
    .e2m1 = e2m1,
    .e4m3 = e4m3,
    .int8 = int8,
    .int4 = int4,
    .mx_squares = mx_squares,
    .mx_sums = k3_mx_sums_scalar,
    .mx_bytes = mx_bytes,
    .mx_words = mx_words,
    .range = range,
};

#endif
