/* Purpose: the inner loops of casts, sixteen values at once (AVX-512 F, BW, DQ, VL).
 * Owns: nothing.
 * Threads: any.
 * Errors: none; the caller asks the CPU first.
 * Invariants: quant_ops.h, as quant_scalar.c has it: magnitudes are worked on instead of signed
 * values, which changes no rounding to nearest; a lane that a short run lacks holds zeros, which
 * add nothing; no multiplication is fused with an addition. */
#include "quant_x86.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#define STEP       16u /* values */
#define FEW_SCALES 12

#define DWORDS(word)     _mm512_set1_epi32((int)(word))
#define ABS_MAX_OF_BOTH  0xb  /* vrangepd: the larger magnitude, its sign cleared */
#define OR_AND           0xa8 /* vpternlogd: (a | b) & c */
#define LOAD_16_BYTES(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define LOAD_32_BYTES(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define FIRST_OF_16(n)   ((__mmask16)((1u << (n)) - 1u))

/* ---- BF16 to codes ---- */

struct sums {
    __m512d x2[2], err2[2], most;
};

INLINE void load_sums(const struct k3_qlanes *lanes, struct sums *s)
{
    for (int h = 0; h < 2; h++) {
        s->x2[h] = _mm512_loadu_pd(lanes->x2 + 8 * h);
        s->err2[h] = _mm512_loadu_pd(lanes->err2 + 8 * h);
    }
    s->most = _mm512_set1_pd(lanes->max_abs_error);
}

INLINE void store_sums(const struct sums *s, struct k3_qlanes *lanes)
{
    for (int h = 0; h < 2; h++) {
        _mm512_storeu_pd(lanes->x2 + 8 * h, s->x2[h]);
        _mm512_storeu_pd(lanes->err2 + 8 * h, s->err2[h]);
    }
    lanes->max_abs_error = _mm512_reduce_max_pd(s->most);
}

INLINE __m512d half_of(__m512 v, int h)
{
    return _mm512_cvtps_pd(h ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v));
}

/* Magnitudes x became y. */
INLINE void account(struct sums *s, __m512 x, __m512 y)
{
    y = _mm512_min_ps(y, _mm512_set1_ps(FLT_MAX));
    for (int h = 0; h < 2; h++) {
        __m512d wide = half_of(x, h), d = _mm512_sub_pd(wide, half_of(y, h));
        s->x2[h] = _mm512_add_pd(s->x2[h], _mm512_mul_pd(wide, wide));
        s->err2[h] = _mm512_add_pd(s->err2[h], _mm512_mul_pd(d, d));
        s->most = _mm512_range_pd(s->most, d, ABS_MAX_OF_BOTH);
    }
}

/* FP32 to BF16 and back, nearest even; not of NaN. */
INLINE __m512 through_bf16(__m512 v)
{
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), DWORDS(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, DWORDS(0x7fff)));
    return _mm512_castsi512_ps(_mm512_and_si512(bits, DWORDS(0xffff0000)));
}

/* The scale of a group; a quotient by a power of two is a product, rounded the same. */
struct by {
    __m512 scale, inverse;
    bool is_pow2;
};

INLINE struct by by_of(float scale, float inverse, bool is_pow2)
{
    return (struct by){_mm512_set1_ps(scale), _mm512_set1_ps(inverse), is_pow2};
}

INLINE __m512 quotient(__m512 x, struct by by)
{
    return by.is_pow2 ? _mm512_mul_ps(x, by.inverse) : _mm512_div_ps(x, by.scale);
}

/* The code of a magnitude; *value becomes its value. */
INLINE __m512i float_code(enum k3_quant_kind kind, __m512 q, __m512 *value)
{
    q = _mm512_min_ps(q, _mm512_set1_ps(K3_QK_MOST(kind)));
    __m512i e = _mm512_and_si512(_mm512_castps_si512(q), DWORDS(K3_QK_EXPONENT));
    __m512i over = _mm512_sub_epi32(_mm512_max_epi32(e, DWORDS(K3_QK_LEAST(kind))),
                                    DWORDS(K3_QK_LEAST(kind)));
    __m512i adder = _mm512_add_epi32(over, DWORDS(K3_QK_LEAST(kind) + K3_QK_RAISE(kind)));
    __m512 sum = _mm512_add_ps(q, _mm512_castsi512_ps(adder));
    *value = _mm512_sub_ps(sum, _mm512_castsi512_ps(adder));
    return _mm512_add_epi32(_mm512_sub_epi32(_mm512_castps_si512(sum), adder),
                            _mm512_srli_epi32(over, K3_QK_CODES(kind)));
}

/* Codes of the values with these FP32 bits, one in the low byte of each dword. */
INLINE __m512i float_step(enum k3_quant_kind kind, __m512i bits, struct by by, struct sums *s)
{
    __m512 x = _mm512_castsi512_ps(_mm512_and_si512(bits, DWORDS(0x7fffffff)));
    __m512 q = quotient(x, by), value;
    if (kind == K3_QK_E4M3_BF16)
        q = through_bf16(q);
    __m512i code = float_code(kind, q, &value);
    account(s, x, _mm512_mul_ps(value, by.scale));
    __m512i sign = _mm512_srli_epi32(bits, K3_QK_SIGNED(kind));
    return _mm512_or_si512(code, _mm512_and_si512(sign, DWORDS(K3_QK_SIGN(kind))));
}

INLINE __m512i int_step(enum k3_quant_kind kind, __m512i bits, struct by by, struct sums *s)
{
    const float low = kind == K3_QK_INT8 ? -128 : -8, high = kind == K3_QK_INT8 ? 127 : 7;
    __m512 q = quotient(_mm512_castsi512_ps(bits), by);
    q = _mm512_min_ps(_mm512_max_ps(q, _mm512_set1_ps(low)), _mm512_set1_ps(high));
    __m512i code = _mm512_cvt_roundps_epi32(q, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(code), by.scale);
    account(s, _mm512_abs_ps(_mm512_castsi512_ps(bits)), _mm512_abs_ps(y));
    return kind == K3_QK_INT4 ? _mm512_add_epi32(code, DWORDS(8)) : code;
}

/* Sixteen values as BF16 to the bytes of their codes, in the low half or all of the result. */
INLINE __m128i step(enum k3_quant_kind kind, __m256i bf16, struct by by, struct sums *s)
{
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16);
    __m512i code = K3_QK_IS_INT(kind) ? int_step(kind, bits, by, s) : float_step(kind, bits, by, s);
    if (K3_QK_IS_NIBBLE(kind))
        return _mm512_cvtepi64_epi8(_mm512_or_si512(code, _mm512_srli_epi64(code, 28)));
    return _mm512_cvtepi32_epi8(code);
}

/* Values [i, end) of a run, one group. */
INLINE void group(enum k3_quant_kind kind, const struct k3_qrun *run, size_t i, size_t end,
                  struct by by, struct sums *s)
{
    for (; i + STEP <= end; i += STEP) {
        __m128i bytes = step(kind, LOAD_32_BYTES(run->x + 2 * i), by, s);
        uint8_t *out = run->out + K3_QK_BYTES(kind, i);
        if (K3_QK_IS_NIBBLE(kind))
            _mm_storel_epi64((__m128i *)(void *)out, bytes);
        else
            _mm_storeu_si128((__m128i *)(void *)out, bytes);
    }
    if (i < end) {
        __m256i bf16 = _mm256_maskz_loadu_epi16(FIRST_OF_16(end - i), run->x + 2 * i);
        __m128i bytes = step(kind, bf16, by, s);
        _mm_mask_storeu_epi8(run->out + K3_QK_BYTES(kind, i),
                             FIRST_OF_16(K3_QK_BYTES(kind, end - i)), bytes);
    }
}

#include "quant_x86_run.h"

/* ---- largest magnitudes ---- */

INLINE uint16_t amax_of(const uint8_t *x, size_t count)
{
    const __m256i magnitude = _mm256_set1_epi16(0x7fff);
    __m512i wide = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + 2 * STEP <= count; i += 2 * STEP)
        wide = _mm512_max_epu16(
            wide, _mm512_and_si512(_mm512_loadu_si512(x + 2 * i), _mm512_set1_epi16(0x7fff)));
    __m256i most = _mm256_max_epu16(_mm512_castsi512_si256(wide),
                                    _mm512_extracti64x4_epi64(wide, 1));
    if (i + STEP <= count) {
        most = _mm256_max_epu16(most, _mm256_and_si256(LOAD_32_BYTES(x + 2 * i), magnitude));
        i += STEP;
    }
    if (i < count) {
        __m256i last = _mm256_maskz_loadu_epi16(FIRST_OF_16(count - i), x + 2 * i);
        most = _mm256_max_epu16(most, _mm256_and_si256(last, magnitude));
    }
    return most_of(most);
}

TARGET static void amax(const uint8_t *x, size_t count, size_t group_cols, uint16_t *out)
{
    size_t begin = 0;
    if (group_cols == STEP) /* NVFP4: one load each */
        for (; begin + STEP <= count; begin += STEP)
            *out++ = most_of(
                _mm256_and_si256(LOAD_32_BYTES(x + 2 * begin), _mm256_set1_epi16(0x7fff)));
    for (; begin < count; begin += group_cols)
        *out++ = amax_of(x + 2 * begin, count - begin < group_cols ? count - begin : group_cols);
}

/* ---- scales ---- */

/* The FP32 values of up to sixteen BF16 codes; the others are 0. */
INLINE __m512 values_of(const uint16_t *codes, __mmask16 mask)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, codes));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* Scale bytes, one in each dword, and *scale by amax. */
INLINE __m512i nvfp4_step(bool is_multiplier, __m512 amax_of, __m512 global, __m512 *scale)
{
    const __m512 zero = _mm512_setzero_ps(), most = _mm512_set1_ps(K3_E2M1_MAX);
    __m512 value;
    __m512i byte;
    if (is_multiplier) {
        const __m512 least = _mm512_set1_ps(K3_NVFP4_LEAST);
        __m512 want = _mm512_div_ps(amax_of, _mm512_mul_ps(most, global));
        __mmask16 is_some = _mm512_cmp_ps_mask(want, zero, _CMP_GT_OQ);
        __mmask16 is_small = _mm512_mask_cmp_ps_mask(is_some, want, least, _CMP_LT_OQ);
        byte = float_code(K3_QK_E4M3, _mm512_mask_mov_ps(want, is_small, least), &value);
        byte = _mm512_mask_mov_epi32(DWORDS(K3_NVFP4_ONE_BYTE), is_some, byte);
        value = _mm512_mask_mov_ps(_mm512_set1_ps(1), is_some, value);
        *scale = _mm512_mul_ps(value, global);
    } else {
        __m512 want = _mm512_mul_ps(global, _mm512_div_ps(amax_of, most));
        byte = float_code(K3_QK_E4M3, want, &value);
        __mmask16 is_some = _mm512_test_epi32_mask(byte, byte);
        byte = _mm512_mask_mov_epi32(DWORDS(K3_NVFP4_ZERO_BYTE), is_some, byte);
        value = _mm512_mask_mov_ps(_mm512_set1_ps(0.125f), is_some, value);
        *scale = _mm512_div_ps(value, global);
    }
    __mmask16 is_above = _mm512_cmp_ps_mask(*scale, zero, _CMP_GT_OQ);
    *scale = _mm512_mask_mov_ps(_mm512_set1_ps(K3_NVFP4_TINY), is_above, *scale);
    return byte;
}

TARGET static void nvfp4_scales(const struct k3_nvfp4_groups *groups)
{
    __m512 global = _mm512_set1_ps(groups->global), scale;
    for (size_t g = 0; g < groups->count; g += STEP) {
        size_t left = groups->count - g;
        __mmask16 mask = FIRST_OF_16(left < STEP ? left : STEP);
        __m512i byte = nvfp4_step(groups->is_multiplier, values_of(groups->amax + g, mask), global,
                                  &scale);
        _mm_mask_storeu_epi8(groups->byte + g, mask, _mm512_cvtepi32_epi8(byte));
        _mm512_mask_storeu_ps(groups->scale + g, mask, scale);
    }
}

TARGET static size_t saturated(const uint16_t *amax_of, const float *scale, size_t count,
                               float most)
{
    size_t found = 0;
    for (size_t g = 0; g < count; g += STEP) {
        __mmask16 mask = FIRST_OF_16(count - g < STEP ? count - g : STEP);
        __m512 q = _mm512_div_ps(values_of(amax_of + g, mask),
                                 _mm512_mask_loadu_ps(_mm512_set1_ps(1), mask, scale + g));
        found += (size_t)__builtin_popcount(
            _mm512_cmp_ps_mask(q, _mm512_set1_ps(most), _CMP_GT_OQ));
    }
    return found;
}

/* ---- MXFP4 ---- */

/* A group adds to two of four sums, 16 bytes are one group. */
TARGET static void mx_squares(const uint8_t *packed, size_t group_count, uint16_t *squares)
{
    const __m512i nibble = _mm512_set1_epi8(15), zero = _mm512_setzero_si512();
    const __m512i square = _mm512_broadcast_i32x4(_mm_setr_epi8(K3_QK_SQUARES));
    for (size_t g = 0; g < group_count; g += 4) {
        size_t left = group_count - g < 4 ? group_count - g : 4;
        __mmask8 mask = (__mmask8)((1u << 2 * left) - 1u);
        __m512i b = _mm512_maskz_loadu_epi64(mask, packed + 16 * g);
        __m512i low = _mm512_shuffle_epi8(square, _mm512_and_si512(b, nibble));
        __m512i high = _mm512_shuffle_epi8(square,
                                           _mm512_and_si512(_mm512_srli_epi16(b, 4), nibble));
        __m512i sum = _mm512_add_epi64(_mm512_sad_epu8(low, zero), _mm512_sad_epu8(high, zero));
        sum = _mm512_add_epi64(sum, _mm512_bsrli_epi128(sum, 8)); /* in the even ones */
        __m128i words = _mm512_cvtepi64_epi16(_mm512_maskz_compress_epi64(0x55, sum));
        _mm_mask_storeu_epi16(squares + g, (__mmask8)((1u << left) - 1u), words);
    }
}

/* 64 groups at once: those that share a scale are added up in registers, as long as few scales do
 * for all; a sum in memory would wait for the one before. */
TARGET static size_t mx_sums(const uint16_t *squares, const uint8_t *scale, size_t group_count,
                             uint64_t *by_scale)
{
    const __m512i one = _mm512_set1_epi16(1);
    size_t zero_count = 0, g = 0;
    for (; g + 64 <= group_count; g += 64) {
        __m512i scales = _mm512_loadu_si512(scale + g);
        __m512i low = _mm512_loadu_si512(squares + g), high = _mm512_loadu_si512(squares + g + 32);
        uint64_t left = UINT64_MAX;
        for (int i = 0; left && i < FEW_SCALES; i++) {
            uint8_t own = scale[g + (unsigned)__builtin_ctzll(left)];
            __mmask64 same = _mm512_cmpeq_epi8_mask(scales, _mm512_set1_epi8((char)own));
            __m512i a = _mm512_maskz_mov_epi16((__mmask32)same, low);
            __m512i b = _mm512_maskz_mov_epi16((__mmask32)(same >> 32), high);
            __m512i sum = _mm512_madd_epi16(_mm512_add_epi16(a, b), one); /* of 9216 at most */
            by_scale[own] += (uint32_t)_mm512_reduce_add_epi32(sum);
            left &= ~same;
        }
        for (; left; left &= left - 1) {
            unsigned k = (unsigned)__builtin_ctzll(left);
            by_scale[scale[g + k]] += squares[g + k];
        }
        zero_count += (size_t)__builtin_popcount(_mm512_testn_epi16_mask(low, low)) +
                      (size_t)__builtin_popcount(_mm512_testn_epi16_mask(high, high));
    }
    return zero_count + k3_mx_sums_scalar(squares + g, scale + g, group_count - g, by_scale);
}

/* The bytes of one group's codes, each in a byte of its own. */
INLINE __m256i codes_of(const uint8_t *packed)
{
    __m256i words = _mm256_cvtepu8_epi16(LOAD_16_BYTES(packed));
    return _mm256_ternarylogic_epi32(words, _mm256_slli_epi16(words, 4), _mm256_set1_epi8(15),
                                     OR_AND);
}

INLINE __m512i two_rows(const uint8_t *first, const uint8_t *second)
{
    return _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_broadcastsi128_si256(LOAD_16_BYTES(first))),
        _mm256_broadcastsi128_si256(LOAD_16_BYTES(second)), 1);
}

TARGET static void mx_bytes(const uint8_t *packed, size_t group_count, const uint8_t (*table)[16],
                            const uint8_t *pick, uint8_t *out)
{
    __m512i row = two_rows(table[0], table[0]);
    size_t g = 0;
    for (; g + 2 <= group_count; g += 2) {
        __m512i words = _mm512_cvtepu8_epi16(LOAD_32_BYTES(packed + 16 * g));
        __m512i codes = _mm512_ternarylogic_epi32(words, _mm512_slli_epi16(words, 4),
                                                  _mm512_set1_epi8(15), OR_AND);
        if (pick)
            row = two_rows(table[pick[g]], table[pick[g + 1]]);
        _mm512_storeu_si512(out + 32 * g, _mm512_shuffle_epi8(row, codes));
    }
    if (g < group_count) {
        __m256i last = _mm256_broadcastsi128_si256(LOAD_16_BYTES(table[pick ? pick[g] : 0]));
        last = _mm256_shuffle_epi8(last, codes_of(packed + 16 * g));
        _mm256_storeu_si256((__m256i *)(void *)(out + 32 * g), last);
    }
}

/* A code in each word picks one of a row's words; the row is there twice, since five bits pick. */
TARGET static void mx_words(const uint8_t *packed, size_t group_count, const uint16_t (*table)[16],
                            const uint8_t *pick, uint8_t *out)
{
    for (size_t g = 0; g < group_count; g++) {
        __m512i b = _mm512_cvtepu8_epi32(LOAD_16_BYTES(packed + 16 * g));
        __m512i codes = _mm512_or_si512(b, _mm512_slli_epi32(b, 12));
        __m512i row = _mm512_broadcast_i64x4(LOAD_32_BYTES(table[pick ? pick[g] : 0]));
        _mm512_storeu_si512(out + 64 * g, _mm512_permutexvar_epi16(codes, row));
    }
}

TARGET static void range(const uint8_t *bytes, size_t count, uint8_t *min, uint8_t *max)
{
    const __m512i most = _mm512_set1_epi8(-1);
    __m512i low = most, high = _mm512_setzero_si512();
    uint8_t ends[64], other;
    size_t i = 0;
    for (; i + sizeof ends <= count; i += sizeof ends) {
        __m512i v = _mm512_loadu_si512(bytes + i);
        low = _mm512_min_epu8(low, v);
        high = _mm512_max_epu8(high, v);
    }
    __mmask64 last = ((uint64_t)1 << (count - i)) - 1;
    low = _mm512_min_epu8(low, _mm512_mask_loadu_epi8(most, last, bytes + i));
    high = _mm512_max_epu8(high, _mm512_maskz_loadu_epi8(last, bytes + i));
    _mm512_storeu_si512(ends, low); /* 0xff in lanes that met no byte, and 0 below */
    k3_quant_range_of(ends, sizeof ends, min, &other);
    _mm512_storeu_si512(ends, high);
    k3_quant_range_of(ends, sizeof ends, &other, max);
}

const struct k3_quant_ops k3_quant_ops_avx512 = {
    .amax = amax,
    .nvfp4_scales = nvfp4_scales,
    .saturated = saturated,
    .e2m1 = e2m1,
    .e4m3 = e4m3,
    .int8 = int8,
    .int4 = int4,
    .mx_squares = mx_squares,
    .mx_sums = mx_sums,
    .mx_bytes = mx_bytes,
    .mx_words = mx_words,
    .range = range,
};

#endif
