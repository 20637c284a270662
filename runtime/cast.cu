/* Casts of rows (docs/QUANTIZATION.md) for nvcc, hipcc and hipRTC alike: no headers but cast_ask.h,
 * which stands in front of it where there are no files.  C with what GPUs add to it and no C++, so
 * that tests run this very file on a CPU (tests/gpu_on_cpu.h).
 *
 * Every byte and every sum is that of formats/quant_bf16.c and cast_mxfp4.c.  No multiplication and
 * addition may be fused but where __fmaf_rn or __fma_rn says so.
 *
 * Out of BF16 two threads work on a row.  One has the first eight of every sixteen values, the other
 * the last eight: so each keeps eight of the sixteen sums, adds to them in the order of columns, and
 * reads 16 bytes at a time.  A span of 128 columns is 8 such reads, all begun before the first is
 * needed.  Threads of rows that do not exist work on the last row and write nothing, since all
 * threads must meet where they exchange values. */
#ifndef K3_CAST_ASK_H
#include "cast_ask.h"
#endif

/* Products that something is added to: nvcc fuses the two unless they are written so. */
#ifdef __clang__
#pragma clang fp contract(off)
#endif
#ifdef __CUDA_ARCH__
#define PRODUCT(a, b)        __fmul_rn(a, b)
#define PRODUCT_DOUBLE(a, b) __dmul_rn(a, b)
#else
#define PRODUCT(a, b)        ((a) * (b))
#define PRODUCT_DOUBLE(a, b) ((a) * (b))
#endif

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

#ifdef __cplusplus
#define KERNEL extern "C" __global__ void
#else
#define KERNEL __global__ void
#endif

#define INLINE static __device__ __forceinline__
#define APART  static __device__ __noinline__ /* what is rarely done stays out of the way */

/* The value that the thread whose number differs by the bits of `mask` gives; all threads meet. */
#if defined(__HIP__) || defined(__HIPCC_RTC__) || defined(__HIP_PLATFORM_AMD__)
#define EXCHANGE(value, mask) __shfl_xor(value, mask)
#else
#define EXCHANGE(value, mask) __shfl_xor_sync(0xffffffffu, value, mask)
#endif

/* As in formats/quant.h and scale_rule.h. */
#define RULE_FLOOR  0u
#define RULE_RCEIL  1u
#define RULE_EVEN   2u
#define RULE_CEIL   3u
#define RULE_MSE    4u
#define OOW_FAIL    0u
#define OOW_REQUANT 1u
#define OOW_SNAP    2u

#define EIGHT       8   /* values that a thread reads at once */
#define CHUNKS      8   /* of those in a span */
#define SPAN        128 /* columns */
#define PAIR_BLOCK  128 /* threads of a group of threads, two for each row */
#define STRIPE      128 /* rows and columns of an FP8 block */
#define STRIPE_BLOCK (2 * STRIPE)

#define MAGNITUDE   0x7fffffffu
#define BF16_INF    0x7f80u
#define FLOAT_MOST  3.402823466e+38f
#define E4M3_MOST   448.0f
#define E2M1_MOST   6.0f
#define RESULT_WORDS 48

/* Codes of elements; a constant wherever it is used, so that each loop is compiled for it. */
#define E2M1      0
#define E4M3      1
#define E4M3_BF16 2 /* the quotient is rounded to BF16 before */
#define INT8      3
#define INT4      4
#define IS_INT(kind)    ((kind) >= INT8)
#define IS_NIBBLE(kind) ((kind) == E2M1 || (kind) == INT4)

/* What the largest quotient should be; above it values are clipped. */
INLINE float most_of(const int kind)
{
    return kind == E2M1 ? E2M1_MOST : kind == INT8 ? 127.5f : kind == INT4 ? 7.5f : E4M3_MOST;
}

/* ---- numbers, as formats/num.c has them ---- */

INLINE u32 bits_of(float x)
{
    return __float_as_uint(x);
}

INLINE float float_of(u32 bits)
{
    return __uint_as_float(bits);
}

INLINE u32 most_u32(u32 a, u32 b)
{
    return a > b ? a : b;
}

INLINE u32 bf16_code(float x)
{
    u32 bits = bits_of(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

INLINE float e8m0_value(u32 byte)
{
    return float_of(byte ? byte << 23 : 0x00400000u);
}

/* 2^exponent; -1022 <= exponent. */
INLINE double double_pow2(int exponent)
{
    return __longlong_as_double((long long)(exponent + 1023) << 52);
}

/* A magnitude to E2M1 or E4M3 and back.  One addition rounds it: of a number whose unit in the last
 * place is the code's step in the magnitude's binade; below the smallest normal value the step
 * stays.  The sum less the adder is the number of steps, and each binade has 2 or 8 codes more. */
INLINE u32 round_float(const int kind, float magnitude, float *value)
{
    const u32 least = (kind == E2M1 ? 127u : 121u) << 23, raise = (kind == E2M1 ? 22u : 20u) << 23;
    float a = fminf(magnitude, kind == E2M1 ? E2M1_MOST : E4M3_MOST);
    u32 binade = most_u32(bits_of(a) & 0x7f800000u, least);
    float adder = float_of(binade + raise), sum = a + adder;
    *value = sum - adder;
    return bits_of(sum) - bits_of(adder) + ((binade - least) >> (kind == E2M1 ? 22 : 20));
}

INLINE float e4m3_value(u32 code)
{
    u32 exponent = code >> 3 & 15, frac = code & 7;
    float value = exponent ? float_of((exponent + 120) << 23 | frac << 20) : (float)frac * 0x1p-9f;
    return code & 0x80 ? -value : value;
}

INLINE u32 e4m3_code(float x)
{
    float value;
    return round_float(E4M3, float_of(bits_of(x) & MAGNITUDE), &value) | (bits_of(x) >> 24 & 0x80);
}

INLINE float e2m1_value(u32 code)
{
    /* As FP32 bits the code is a value times 2^-126, subnormal ones too. */
    float value = float_of((code & 7) << 22) * 0x1p126f;
    return code & 8 ? -value : value;
}

INLINE u32 e2m1_code(float x)
{
    float value;
    return round_float(E2M1, float_of(bits_of(x) & MAGNITUDE), &value) | (bits_of(x) >> 28 & 8);
}

/* To the nearest integer within [low, high]: one addition, whose low bits are the integer. */
INLINE u32 round_int(const int kind, float x, float *value)
{
    const float low = kind == INT8 ? -128.0f : -8.0f, high = kind == INT8 ? 127.0f : 7.0f;
    float sum = fminf(fmaxf(x, low), high) + 0x1.8p23f;
    *value = sum - 0x1.8p23f;
    return kind == INT8 ? bits_of(sum) & 0xff : (bits_of(sum) + 8) & 15;
}

/* The scale byte of a rule: carry is what takes the fraction of amax over the top. */
INLINE u32 rule_carry(const int kind, u32 rule)
{
    const u32 rceil = kind == E2M1 ? 0x400001u : 0x600001u;
    const u32 even = kind == E2M1 ? 0x600000u : 0x780000u;
    return rule == RULE_RCEIL ? 0x800000u - rceil
           : rule == RULE_EVEN ? 0x800000u - even
           : rule == RULE_CEIL ? 0x800000u - 1
                               : 0;
}

INLINE u32 scale_byte(const int kind, u32 carry, u32 amax_bits)
{
    int byte = (int)((amax_bits + carry) >> 23) - (kind == E2M1 ? 2 : 8);
    return byte < 0 ? 0 : (u32)byte;
}

/* ---- quotients ---- */

/* A scale and its inverse, rounded; 0: too large or too small for what is done the quick way. */
struct by {
    float scale, inverse;
};

#define QUICK_LEAST 0x1p-60f
#define QUICK_MOST  0x1p60f

INLINE struct by by_scale(float scale)
{
    struct by by;
    by.scale = scale;
    by.inverse = scale >= QUICK_LEAST && scale <= QUICK_MOST ? 1.0f / scale : 0.0f;
    return by;
}

/* Powers of two. */
INLINE struct by by_byte(u32 byte)
{
    struct by by;
    by.scale = e8m0_value(byte);
    by.inverse = byte <= 244 ? float_of((254 - byte) << 23) : 0.0f; /* 448 * 2^117 is an FP32 */
    return by;
}

/* x / scale, rounded as division rounds it wherever a code depends on it: the remainder is exact,
 * and no BF16 number over any scale comes so near to where a code changes that the rounded inverse
 * would matter (tests/test_cast_kernels.c looks for the nearest). */
INLINE float quotient(const int is_pow2, float x, struct by by)
{
    float q = x * by.inverse;
    return is_pow2 ? q : __fmaf_rn(__fmaf_rn(-q, by.scale, x), by.inverse, q);
}

/* The same where x may be anything. */
INLINE float ratio(float x, struct by by)
{
    if (by.inverse > 0.0f && x >= QUICK_LEAST && x <= QUICK_MOST)
        return quotient(0, x, by);
    return x / by.scale;
}

/* ---- eight values ---- */

/* Of one thread. */
struct sums {
    double x2[EIGHT], err2[EIGHT];
    float most;    /* largest error */
    double most_slow; /* and of what was done the slow way */
};

INLINE void begin_sums(struct sums *sums)
{
#pragma unroll
    for (int i = 0; i < EIGHT; i++)
        sums->x2[i] = sums->err2[i] = 0.0;
    sums->most = 0.0f;
    sums->most_slow = 0.0;
}

/* FP32 bits of value i of four words of BF16. */
INLINE u32 bits_at(const u32 *x, int i)
{
    return i & 1 ? x[i / 2] & 0xffff0000u : x[i / 2] << 16;
}

INLINE u32 bf16_rounded(u32 bits)
{
    return (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
}

/* One value in the arithmetic of quant_scalar.c: its code, and what that stands for. */
INLINE float slow_value(int kind, float x, float scale, u32 *code)
{
    float q = x / scale, value;
    if (kind == E4M3_BF16)
        q = float_of(bf16_rounded(bits_of(q)));
    if (IS_INT(kind)) {
        *code = kind == INT8 ? round_int(INT8, q, &value) : round_int(INT4, q, &value);
    } else if (kind == E2M1) {
        *code = e2m1_code(q);
        value = e2m1_value(*code);
    } else {
        *code = e4m3_code(q);
        value = e4m3_value(*code);
    }
    return fmaxf(fminf(value * scale, FLOAT_MOST), -FLOAT_MOST);
}

/* Eight values by any scale: FP64 differences, products that are rounded. */
APART void eight_slowly(int kind, const u32 *x, float scale, struct sums *sums, u32 *out)
{
    out[0] = out[1] = 0;
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        u32 code;
        float value = float_of(bits_at(x, i));
        double d = (double)value - (double)slow_value(kind, value, scale, &code);
        double square = PRODUCT_DOUBLE(d, d);
        sums->x2[i] += (double)value * (double)value;
        sums->err2[i] += square;
        sums->most_slow = fmax(sums->most_slow, fabs(d));
        if (IS_NIBBLE(kind))
            out[0] |= code << (4 * i);
        else
            out[i / 4] |= code << (8 * (i % 4));
    }
}

/* Eight values by a scale that has an inverse, none above 1.7 times what the format holds.  Then x
 * and what its code stands for are within a factor of two, or the code is 0: so their difference is
 * an FP32 number, and its square, as that of x, an FP64 number: fused sums are the same.  Signs are
 * put back at the end. */
INLINE void eight_quickly(const int kind, const int is_pow2, const u32 *x, struct by by,
                          struct sums *sums, u32 *out)
{
    out[0] = out[1] = 0;
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float a = float_of(IS_INT(kind) ? bits_at(x, i) : bits_at(x, i) & MAGNITUDE), value;
        float q = quotient(is_pow2, a, by);
        u32 code;
        if (kind == E4M3_BF16)
            q = float_of(bf16_rounded(bits_of(q)));
        code = IS_INT(kind) ? round_int(kind, q, &value) : round_float(kind, q, &value);
        float d = a - PRODUCT(value, by.scale);
        sums->x2[i] = __fma_rn((double)a, (double)a, sums->x2[i]);
        sums->err2[i] = __fma_rn((double)d, (double)d, sums->err2[i]);
        sums->most = fmaxf(sums->most, fabsf(d));
        if (IS_NIBBLE(kind))
            out[0] += code << (4 * i);
        else
            out[i / 4] += code << (8 * (i % 4));
    }
    if (kind == E2M1) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            out[0] |= (x[k] >> 12 & 8 | x[k] >> 24 & 0x80) << (8 * k);
    } else if (!IS_INT(kind)) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            out[k / 2] |= (x[k] >> 8 & 0x80 | x[k] >> 16 & 0x8000) << (16 * (k % 2));
    }
}

/* q_most: the largest quotient of the group. */
INLINE void eight(const int kind, const int is_pow2, const u32 *x, struct by by, float q_most,
                  struct sums *sums, u32 *out)
{
    if (by.inverse > 0.0f && q_most <= 1.7f * most_of(kind)) {
        eight_quickly(kind, is_pow2, x, by, sums, out);
    } else {
        struct sums copy = *sums; /* so that the sums themselves stay in registers */
        u32 four[4] = {x[0], x[1], x[2], x[3]}, codes[2];
        eight_slowly(kind, four, by.scale, &copy, codes);
        *sums = copy;
        out[0] = codes[0];
        out[1] = codes[1];
    }
}

/* BF16 bits of the largest magnitude of eight values: as FP32 bits, whose lower half is noise. */
INLINE u32 magnitude_of(const u32 *x)
{
    u32 high = 0, low = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        high = most_u32(high, x[k] & MAGNITUDE);
        low = most_u32(low, x[k] << 17);
    }
    return most_u32(high >> 16, low >> 17);
}

/* ---- rows ---- */

/* A thread's place: its row, and which half of every sixteen columns. */
struct place {
    u64 row;
    u32 half;
    int is_row; /* there is such a row */
};

INLINE struct place place_of(const struct k3_cast_ask *ask, u64 row)
{
    struct place place;
    place.is_row = row < ask->row_count;
    place.row = place.is_row ? row : ask->row_count - 1;
    place.half = threadIdx.x & 1;
    return place;
}

/* Eight values from column `col` on; those behind the last are 0. */
INLINE void read_eight(const struct k3_cast_ask *ask, u64 row, u64 col, u32 *x)
{
    const u16 *from = (const u16 *)ask->x + row * ask->cols + col;
    x[0] = x[1] = x[2] = x[3] = 0;
    if (ask->cols % EIGHT == 0) {
        if (col < ask->cols) {
            uint4 v = *(const uint4 *)from;
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < EIGHT; i++)
        if (col + (u32)i < ask->cols)
            x[i / 2] |= (u32)from[i] << (16 * (i & 1));
}

INLINE void read_span(const struct k3_cast_ask *ask, struct place place, u64 col, u32 x[CHUNKS][4])
{
    if (ask->cols % SPAN == 0) {
        const uint4 *from =
            (const uint4 *)((const u16 *)ask->x + place.row * ask->cols + col) + place.half;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            uint4 v = from[2 * c];
            x[c][0] = v.x, x[c][1] = v.y, x[c][2] = v.z, x[c][3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        read_eight(ask, place.row, col + (u32)c * 16 + place.half * EIGHT, x[c]);
}

/* Codes of a whole span: the two threads of a row have every other piece of it; each takes one half
 * of the span off the other, so that it writes 16 bytes at a time. */
INLINE void write_span(const int words, u8 *to, struct place place, u32 out[CHUNKS][2])
{
    u32 mine[CHUNKS][2]; /* pieces in their order */
#pragma unroll
    for (int c = 0; c < CHUNKS / 2; c++) {
#pragma unroll
        for (int k = 0; k < words; k++) {
            u32 keep = place.half ? out[c + CHUNKS / 2][k] : out[c][k];
            u32 give = place.half ? out[c][k] : out[c + CHUNKS / 2][k];
            u32 got = EXCHANGE(give, 1);
            mine[2 * c][k] = place.half ? got : keep;
            mine[2 * c + 1][k] = place.half ? keep : got;
        }
    }
    if (!place.is_row)
        return;
    uint4 *at = (uint4 *)to + place.half * 2 * (u32)words;
#pragma unroll
    for (int q = 0; q < 2 * words; q++) {
        uint4 v;
        if (words == 1)
            v.x = mine[4 * q][0], v.y = mine[4 * q + 1][0], v.z = mine[4 * q + 2][0],
            v.w = mine[4 * q + 3][0];
        else
            v.x = mine[2 * q][0], v.y = mine[2 * q][1], v.z = mine[2 * q + 1][0],
            v.w = mine[2 * q + 1][1];
        at[q] = v;
    }
}

/* Codes of eight values. */
INLINE void write_eight(const struct k3_cast_ask *ask, const int words, u64 row, u64 col,
                        const u32 *out)
{
    u64 at = row * ask->cols + col;
    if (col >= ask->cols)
        return;
    if (words == 1) { /* columns of nibbles are multiples of 16 */
        *(u32 *)((u8 *)ask->weight + at / 2) = out[0];
        return;
    }
    for (u32 i = 0; i < EIGHT && col + i < ask->cols; i++)
        ((u8 *)ask->weight)[at + i] = (u8)(out[i / 4] >> (8 * (i % 4)));
}

INLINE void write_codes(const struct k3_cast_ask *ask, const int kind, struct place place, u64 col,
                        u32 out[CHUNKS][2])
{
    if (ask->cols % SPAN == 0) {
        u64 at = place.row * ask->cols + col;
        if (IS_NIBBLE(kind))
            write_span(1, (u8 *)ask->weight + at / 2, place, out);
        else
            write_span(2, (u8 *)ask->weight + at, place, out);
        return;
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        if (place.is_row)
            write_eight(ask, IS_NIBBLE(kind) ? 1 : 2, place.row,
                        col + (u32)c * 16 + place.half * EIGHT, out[c]);
}

/* ---- what a group of threads found ---- */

INLINE void begin_result(struct k3_cast_result *shared)
{
    for (u32 i = threadIdx.x; i < RESULT_WORDS; i += blockDim.x)
        ((u64 *)shared)[i] = 0;
    __syncthreads();
}

#define MAX_WORD (2 * K3_CAST_LIMB_COUNT)

INLINE void end_result(const struct k3_cast_ask *ask, struct k3_cast_result *shared)
{
    u64 *to = (u64 *)ask->result;
    if (threadIdx.x == 0)
        shared->done_groups = 1;
    __syncthreads();
    for (u32 i = threadIdx.x; i < RESULT_WORDS; i += blockDim.x) {
        u64 found = ((const u64 *)shared)[i];
        if (found && i == MAX_WORD)
            atomicMax(&to[i], found);
        else if (found)
            atomicAdd(&to[i], found);
    }
}

/* fraction * 2^bit into limbs. */
INLINE void add_at(u64 *limb, u64 fraction, int bit)
{
    int i = bit / K3_CAST_LIMB_BITS, shift = bit % K3_CAST_LIMB_BITS;
    u64 low = fraction << shift, high = shift ? fraction >> (64 - shift) : 0;
    if (i + 2 >= K3_CAST_LIMB_COUNT)
        return; /* not a sum of finite values: these are refused elsewhere */
    atomicAdd(&limb[i], low & 0xffffffffull);
    atomicAdd(&limb[i + 1], low >> 32);
    if (high)
        atomicAdd(&limb[i + 2], high);
}

/* As k3_qsum_add. */
APART void add_square(u64 *limb, double value)
{
    u64 bits = (u64)__double_as_longlong(value);
    int exponent = (int)(bits >> 52 & 0x7ff), bit = exponent - 1075 - K3_CAST_UNIT;
    u64 fraction = (bits & ((1ull << 52) - 1)) | 1ull << 52;
    if (exponent == 0)
        return;
    if (bit < 0) {
        fraction = bit > -64 ? fraction >> -bit : 0;
        bit = 0;
    }
    add_at(limb, fraction, bit);
}

INLINE double exchange_double(double value)
{
    u64 bits = (u64)__double_as_longlong(value);
    u32 low = EXCHANGE((u32)bits, 1), high = EXCHANGE((u32)(bits >> 32), 1);
    return __longlong_as_double((long long)((u64)high << 32 | low));
}

/* Lanes 0 to 15 added in order; right in the second thread of a row. */
INLINE double add_lanes(const double *lane, u32 half)
{
    double sum = 0.0;
    for (u32 turn = 0; turn < 2; turn++) {
        if (turn == half) {
#pragma unroll
            for (int i = 0; i < EIGHT; i++)
                sum += lane[i];
        }
        double other = exchange_double(sum);
        if (turn == 0 && half == 1)
            sum = other;
    }
    return sum;
}

INLINE void end_row(struct place place, const struct sums *sums, struct k3_cast_result *shared)
{
    double x2 = add_lanes(sums->x2, place.half), err2 = add_lanes(sums->err2, place.half);
    double most = fmax((double)sums->most, sums->most_slow);
    if (!place.is_row)
        return;
    if (place.half) {
        add_square(shared->x2, x2);
        add_square(shared->err2, err2);
    }
    if (most > 0.0)
        atomicMax(&shared->max_abs_error, (u64)__double_as_longlong(most));
}

/* What a thread counted; its partner counted the same. */
struct counts {
    u32 saturated, zero, refused;
};

INLINE void end_counts(struct place place, struct counts counts, struct k3_cast_result *shared)
{
    if (!place.is_row || place.half)
        return;
    if (counts.saturated)
        atomicAdd(&shared->saturated_groups, (u64)counts.saturated);
    if (counts.zero)
        atomicAdd(&shared->zero_groups, (u64)counts.zero);
    if (counts.refused)
        atomicAdd(&shared->refused, (u64)counts.refused);
}

/* ---- groups of 16, 32 or 128 columns ---- */

#define MXFP4  0
#define MXFP8  1
#define NVFP4  2
#define INT4_G 3
#define INT8_G 4
#define IS_MX(format)   ((format) <= MXFP8)
#define KIND_OF(format) \
    ((format) == MXFP8 ? E4M3 : (format) == INT4_G ? INT4 : (format) == INT8_G ? INT8 : E2M1)
#define GROUPS_OF(format) ((format) == NVFP4 ? 8 : 4) /* in a span; of 128 columns as four alike */
#define GROUPS_MOST 8

#define NVFP4_ZERO_BYTE 0x20u
#define NVFP4_ONE_BYTE  0x38u
#define NVFP4_LEAST     0x1p-9f
#define NVFP4_BYTES     127 /* scale bytes 0 ... 126 */

/* What is the same for all groups. */
struct rule {
    u32 carry;                   /* MX */
    struct by amax_by;           /* by what amax is divided */
    float global;                /* NVFP4 */
    u32 is_modelopt;             /* NVFP4 */
    const struct by *nvfp4;      /* by scale byte */
};

INLINE struct rule rule_of(const struct k3_cast_ask *ask, const int format, const struct by *nvfp4)
{
    struct rule rule;
    rule.carry = rule_carry(KIND_OF(format), ask->rule);
    rule.global = ask->global;
    rule.is_modelopt = ask->is_modelopt;
    rule.nvfp4 = nvfp4;
    rule.amax_by = by_scale(format == INT8_G   ? 127.5f
                            : format == INT4_G ? 7.5f
                            : rule.is_modelopt ? E2M1_MOST * rule.global
                                               : E2M1_MOST);
    return rule;
}

/* Scales of NVFP4 are few: each is made once for a group of threads. */
INLINE void make_nvfp4(const struct k3_cast_ask *ask, struct by *nvfp4)
{
    for (u32 byte = threadIdx.x; byte < NVFP4_BYTES; byte += blockDim.x) {
        float value = e4m3_value(byte);
        float scale = ask->is_modelopt ? value * ask->global : value / ask->global;
        nvfp4[byte] = by_scale(scale > 0.0f ? scale : 0x1p-149f);
    }
}

INLINE u32 nvfp4_byte(float amax, const struct rule *rule)
{
    float want = ratio(amax, rule->amax_by);
    if (rule->is_modelopt) {
        if (!(want > 0.0f))
            return NVFP4_ONE_BYTE;
        return e4m3_code(fmaxf(want, NVFP4_LEAST));
    }
    u32 byte = e4m3_code(rule->global * want);
    return byte ? byte : NVFP4_ZERO_BYTE;
}

/* The scale of a group as it is stored, and by what its values are divided. */
INLINE u32 group_scale(const int format, u32 amax, const struct rule *rule, struct by *by)
{
    u32 stored;
    if (IS_MX(format)) {
        stored = scale_byte(KIND_OF(format), rule->carry, amax << 16);
        *by = by_byte(stored);
    } else if (format == NVFP4) {
        stored = nvfp4_byte(float_of(amax << 16), rule) & 127;
        *by = rule->nvfp4[stored < NVFP4_BYTES ? stored : 0];
    } else {
        stored = bf16_code(ratio(float_of(amax << 16), rule->amax_by));
        stored = stored ? stored : 0x3c00u; /* 2^-7 */
        *by = by_scale(float_of(stored << 16));
    }
    return stored;
}

/* Largest quotient of a group, as the CPU compares it. */
INLINE float largest_quotient(const int format, u32 amax, struct by by)
{
    float a = float_of(amax << 16);
    if (IS_MX(format) && by.inverse > 0.0f)
        return a * by.inverse;
    return ratio(a, by);
}

/* Scales of a span: together where they lie on their own. */
INLINE void write_scales(const struct k3_cast_ask *ask, const int format, struct place place,
                         u64 col, const u32 *stored)
{
    const int is_wide = format == INT4_G || format == INT8_G, groups = GROUPS_OF(format);
    const u32 group_cols = format == INT4_G ? ask->group_cols : (u32)(SPAN / groups);
    u64 at = (place.row * ask->cols + col) / group_cols;
    if (!place.is_row || place.half)
        return;
    if (group_cols == SPAN) {
        ((u16 *)ask->scale)[at] = (u16)stored[0];
    } else if (ask->cols % SPAN == 0) {
        u32 word[2] = {0, 0};
#pragma unroll
        for (int g = 0; g < groups; g++)
            word[is_wide ? g / 2 : g / 4] |= is_wide ? stored[g] << (16 * (g % 2))
                                                     : stored[g] << (8 * (g % 4));
        u32 *to = (u32 *)((u8 *)ask->scale + (is_wide ? 2 * at : at));
        to[0] = word[0];
        if (is_wide || groups == 8)
            to[1] = word[1];
    } else {
#pragma unroll
        for (int g = 0; g < groups; g++) {
            if (col + (u32)g * group_cols >= ask->cols)
                continue;
            if (is_wide)
                ((u16 *)ask->scale)[at + (u32)g] = (u16)stored[g];
            else
                ((u8 *)ask->scale)[at + (u32)g] = (u8)stored[g];
        }
    }
}

/* Sum of squared errors of a group of 32 by one scale byte, as mx_try in quant_bf16.c adds it. */
INLINE double mx_try(const int kind, u32 x[][4], u32 half, u32 byte)
{
    double lane[EIGHT];
    const float scale = e8m0_value(byte);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        u32 code;
        lane[i] = 0.0;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float value = float_of(bits_at(x[c], i));
            double d = (double)value - (double)slow_value(kind, value, scale, &code);
            double square = PRODUCT_DOUBLE(d, d);
            lane[i] += square;
        }
    }
    double sum = add_lanes(lane, half), other = exchange_double(sum);
    return half ? sum : other;
}

/* The mse rule: of five bytes the one with the least error; of equals the smallest. */
INLINE u32 mse_byte(const int kind, u32 x[][4], u32 half, u32 floor_byte, u32 amax)
{
    int first = (int)floor_byte < 2 ? 0 : (int)floor_byte - 2, last = (int)floor_byte + 2;
    u32 best = (u32)first;
    double least = 0.0;
    for (int k = 0; k < 5; k++) { /* all threads five times, since they meet there */
        int byte = first + k;
        double error = mx_try(kind, x, half, byte < 255 ? (u32)byte : 254u);
        if (byte <= last && byte < 255 && (k == 0 || error < least)) {
            least = error;
            best = (u32)byte;
        }
    }
    return amax ? best : floor_byte;
}

INLINE void grouped(const struct k3_cast_ask *ask, const int format, const int is_mse,
                    const struct by *nvfp4, struct k3_cast_result *shared)
{
    const int kind = KIND_OF(format), groups = GROUPS_OF(format), each = CHUNKS / groups;
    const struct rule rule = rule_of(ask, format, nvfp4);
    const struct place place =
        place_of(ask, (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2);
    const int is_one = format == INT4_G && ask->group_cols == SPAN; /* the span is one group */
    struct counts counts = {0, 0, 0};
    struct sums sums;
    begin_sums(&sums);
    for (u64 col = 0; col < ask->cols; col += SPAN) {
        u32 x[CHUNKS][4], out[CHUNKS][2], amax[GROUPS_MOST], stored[GROUPS_MOST], all = 0;
        read_span(ask, place, col, x);
#pragma unroll
        for (int g = 0; g < groups; g++) {
            u32 own = magnitude_of(x[g * each]);
            if (each == 2)
                own = most_u32(own, magnitude_of(x[g * each + 1]));
            amax[g] = most_u32(own, EXCHANGE(own, 1));
            all = most_u32(all, amax[g]);
        }
        counts.refused += all >= BF16_INF;
#pragma unroll
        for (int g = 0; g < groups; g++) {
            struct by by;
            if (is_one)
                amax[g] = all;
            stored[g] = group_scale(format, amax[g], &rule, &by);
            if (is_mse) {
                stored[g] = mse_byte(kind, &x[g * each], place.half, stored[g], amax[g]);
                by = by_byte(stored[g]);
            }
            float q_most = largest_quotient(format, amax[g], by);
            if (is_one ? g == 0 : col + (u32)(g * (SPAN / groups)) < ask->cols) {
                counts.saturated += q_most > most_of(kind);
                counts.zero += amax[g] == 0;
            }
#pragma unroll
            for (int c = g * each; c < (g + 1) * each; c++)
                eight(kind, IS_MX(format), x[c], by, q_most, &sums, out[c]);
        }
        write_scales(ask, format, place, col, stored);
        write_codes(ask, kind, place, col, out);
    }
    end_row(place, &sums, shared);
    end_counts(place, counts, shared);
}

#define GROUPED_KERNEL(name, format, is_mse)                                                       \
    KERNEL __launch_bounds__(PAIR_BLOCK) name(const struct k3_cast_ask ask)                        \
    {                                                                                              \
        __shared__ struct k3_cast_result shared;                                                   \
        begin_result(&shared);                                                                     \
        grouped(&ask, format, is_mse, 0, &shared);                                                 \
        end_result(&ask, &shared);                                                                 \
    }

GROUPED_KERNEL(k3_cast_mxfp4, MXFP4, 0)
GROUPED_KERNEL(k3_cast_mxfp8, MXFP8, 0)
GROUPED_KERNEL(k3_cast_mxfp4_mse, MXFP4, 1)
GROUPED_KERNEL(k3_cast_mxfp8_mse, MXFP8, 1)
GROUPED_KERNEL(k3_cast_int4, INT4_G, 0)
GROUPED_KERNEL(k3_cast_int8, INT8_G, 0)

KERNEL __launch_bounds__(PAIR_BLOCK) k3_cast_nvfp4(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result shared;
    __shared__ struct by nvfp4[NVFP4_BYTES];
    make_nvfp4(&ask, nvfp4);
    begin_result(&shared);
    grouped(&ask, NVFP4, 0, nvfp4, &shared);
    end_result(&ask, &shared);
}

/* ---- FP8 with FP32 scales ---- */

INLINE float fp8_scale(const struct k3_cast_ask *ask, u32 amax)
{
    if (ask->is_pow2)
        return amax ? e8m0_value(scale_byte(E4M3, rule_carry(E4M3, RULE_RCEIL), amax << 16))
                    : 0x1p-23f;
    float scale = float_of(amax << 16) / E4M3_MOST;
    if (ask->is_modelopt)
        scale = float_of(bf16_rounded(bits_of(scale)));
    return scale > 0.0f ? scale : ask->is_modelopt ? 0x1p-7f : 0x1p-23f;
}

/* A span by one scale. */
INLINE void fp8_span(const struct k3_cast_ask *ask, struct place place, u64 col, u32 x[CHUNKS][4],
                     struct by by, float q_most, struct sums *sums)
{
    u32 out[CHUNKS][2];
    if (ask->is_modelopt) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            eight(E4M3_BF16, 0, x[c], by, q_most, sums, out[c]);
    } else {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            eight(E4M3, 0, x[c], by, q_most, sums, out[c]);
    }
    write_codes(ask, E4M3, place, col, out);
}

/* Largest magnitude of a thread's part of a span. */
INLINE u32 span_magnitude(u32 x[CHUNKS][4])
{
    u32 most = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        most = most_u32(most, magnitude_of(x[c]));
    return most;
}

INLINE void fp8_rows(const struct k3_cast_ask *ask, const int is_channel,
                     struct k3_cast_result *shared)
{
    const struct place place =
        place_of(ask, (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2);
    struct counts counts = {0, 0, 0};
    struct sums sums;
    u32 x[CHUNKS][4], amax = 0;
    float scale = ask->global;
    begin_sums(&sums);
    if (is_channel) {
        for (u64 col = 0; col < ask->cols; col += SPAN) {
            read_span(ask, place, col, x);
            amax = most_u32(amax, span_magnitude(x));
        }
        amax = most_u32(amax, EXCHANGE(amax, 1));
        counts.zero = amax == 0;
        scale = fp8_scale(ask, amax);
        if (place.is_row && !place.half)
            ((float *)ask->scale)[place.row] = scale;
    }
    const struct by by = by_scale(scale);
    for (u64 col = 0; col < ask->cols; col += SPAN) {
        read_span(ask, place, col, x);
        u32 own = span_magnitude(x);
        amax = most_u32(amax, own);
        fp8_span(ask, place, col, x, by, ratio(float_of(own << 16), by), &sums);
    }
    amax = most_u32(amax, EXCHANGE(amax, 1));
    counts.refused = amax >= BF16_INF;
    end_row(place, &sums, shared);
    end_counts(place, counts, shared);
}

KERNEL __launch_bounds__(PAIR_BLOCK) k3_cast_fp8_rows(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result shared;
    begin_result(&shared);
    fp8_rows(&ask, 0, &shared);
    end_result(&ask, &shared);
}

/* Rows are read twice: nothing near is large enough for the rows that are being worked on. */
KERNEL __launch_bounds__(PAIR_BLOCK) k3_cast_fp8_channel(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result shared;
    begin_result(&shared);
    fp8_rows(&ask, 1, &shared);
    end_result(&ask, &shared);
}

/* The largest of what all threads have, in *slot, which was 0. */
INLINE void raise_slot(u32 *slot, u32 own)
{
#pragma unroll
    for (u32 mask = 1; mask < 32; mask *= 2)
        own = most_u32(own, EXCHANGE(own, mask));
    if (threadIdx.x % 32 == 0)
        atomicMax(slot, own);
    __syncthreads();
}

/* A stripe of 128 rows, block after block.  A block is read once: it waits in registers while the
 * threads find its amax.  Of three slots for that one is in use, one may still be read by who is
 * late, and one is made 0 for the next block. */
KERNEL __launch_bounds__(STRIPE_BLOCK, 2) k3_cast_fp8_block(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result shared;
    __shared__ u32 slot[3];
    const struct place place = place_of(&ask, (u64)blockIdx.x * STRIPE + threadIdx.x / 2);
    const u64 blocks = (ask.cols + STRIPE - 1) / STRIPE;
    struct counts counts = {0, 0, 0};
    struct sums sums;
    begin_sums(&sums);
    if (threadIdx.x < 3)
        slot[threadIdx.x] = 0;
    begin_result(&shared);
    for (u64 block = 0; block < blocks; block++) {
        u32 x[CHUNKS][4], *now = &slot[block % 3];
        read_span(&ask, place, block * STRIPE, x);
        raise_slot(now, span_magnitude(x));
        u32 amax = *now;
        const struct by by = by_scale(fp8_scale(&ask, amax));
        if (threadIdx.x == 0) {
            slot[(block + 2) % 3] = 0;
            ((float *)ask.scale)[blockIdx.x * blocks + block] = by.scale;
            counts.zero += amax == 0;
            counts.refused += amax >= BF16_INF;
        }
        fp8_span(&ask, place, block * STRIPE, x, by, ratio(float_of(amax << 16), by), &sums);
    }
    end_row(place, &sums, &shared);
    end_counts(place, counts, &shared);
    end_result(&ask, &shared);
}

/* ---- out of MXFP4 ---- */

/* A thread takes eight codes, four bytes: four threads a group of 32, whose sums they exchange. */
#define MX_BLOCK     256
#define MX_READS     8 /* of one thread, all begun before the first is needed */
#define MX_PASS      (MX_BLOCK * MX_READS)
#define MX_WORDS     4 /* of eight codes, in a group */
#define TILE_WORDS   (STRIPE / EIGHT)
#define E8M0_NAN     0xffu
#define BF16_MAX     252 /* as in cast_mxfp4.c, also below */
#define BF16_MOST    0x7f7fu
#define BLOCK_SPREAD 14
#define BLOCK_TOP    6
#define BLOCK_ROWS   32 /* of the table of shifts */
#define NVFP4_TOP    8
#define NVFP4_SPREAD 17

/* What a group of threads shares. */
struct mx_shared {
    struct k3_cast_result result;
    u32 by_scale[256];     /* sums of (2 * value)^2; cast_call.c sees to it that they fit */
    u32 table[BLOCK_ROWS][2]; /* FP8 blocks: E4M3 bytes of magnitudes 0 ... 7 by shift */
    u32 slot[3];
};

INLINE void begin_mx(struct mx_shared *shared)
{
    for (u32 i = threadIdx.x; i < 256; i += MX_BLOCK)
        shared->by_scale[i] = 0;
    begin_result(&shared->result);
}

INLINE void end_mx(const struct k3_cast_ask *ask, struct mx_shared *shared)
{
    __syncthreads();
    for (u32 byte = threadIdx.x; byte < E8M0_NAN; byte += MX_BLOCK)
        if (shared->by_scale[byte]) /* in units of 2^(2 (byte - 127) - 2) */
            add_at(shared->result.x2, shared->by_scale[byte], 2 * (int)byte - 256 - K3_CAST_UNIT);
    end_result(ask, &shared->result);
}

/* Four bytes, each the one of eight (low: 0 to 3) that a nibble names; its bit 3 does not count. */
INLINE u32 pick(u32 low, u32 high, u32 nibbles)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, nibbles & 0x7777);
#else
    u64 table = (u64)high << 32 | low;
    u32 bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= ((u32)(table >> (nibbles >> (4 * i) & 7) * 8) & 0xff) << (8 * i);
    return bytes;
#endif
}

/* Bit 3 of each of four nibbles as the highest bit of a byte. */
INLINE u32 signs(u32 nibbles)
{
    return (nibbles & 0x8) << 4 | (nibbles & 0x80) << 8 | (nibbles & 0x800) << 12 |
           (nibbles & 0x8000) << 16;
}

/* Sum of the squares of four bytes. */
INLINE u32 squares(u32 bytes)
{
#ifdef __CUDA_ARCH__
    return __dp4a(bytes, bytes, 0u);
#else
    u32 sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum += (bytes >> (8 * i) & 0xff) * (bytes >> (8 * i) & 0xff);
    return sum;
#endif
}

/* Twice the magnitudes of E2M1. */
#define TWICE_LOW  0x03020100u
#define TWICE_HIGH 0x0c080604u
#define LESS_LOW   0xfdfeff00u /* and less than 0, as bytes */
#define LESS_HIGH  0xf4f8fafcu
#define E4M3_LOW   0x3c383000u
#define E4M3_HIGH  0x4c484440u

/* Sum of (2 * value)^2 of a whole group: the same in its four threads. */
INLINE u32 group_squares(u32 codes)
{
    u32 sum = squares(pick(TWICE_LOW, TWICE_HIGH, codes)) +
              squares(pick(TWICE_LOW, TWICE_HIGH, codes >> 16));
    sum += EXCHANGE(sum, 1);
    return sum + EXCHANGE(sum, 2);
}

/* Eight codes as bytes of a table of magnitudes, with the sign in front. */
INLINE uint2 signed_bytes(u32 low, u32 high, u32 codes)
{
    uint2 bytes;
    bytes.x = pick(low, high, codes) | signs(codes);
    bytes.y = pick(low, high, codes >> 16) | signs(codes >> 16);
    return bytes;
}

INLINE u32 int8_bytes(u32 codes)
{
    u32 less = (signs(codes) >> 7) * 0xff;
    return (pick(TWICE_LOW, TWICE_HIGH, codes) & ~less) | (pick(LESS_LOW, LESS_HIGH, codes) & less);
}

/* One of eight codes, four bytes of them at `word`. */
struct mx_word {
    u64 word;   /* of the matrix */
    u32 codes;
    u32 scale;  /* its byte */
    u32 sum;    /* of the group's squares */
    int is_first; /* of its group */
};

/* What is counted once for each group. */
INLINE void count_group(struct mx_shared *shared, const struct mx_word *w, struct counts *counts)
{
    counts->refused += w->scale == E8M0_NAN;
    if (!w->is_first)
        return;
    counts->zero += w->sum == 0;
    if (w->sum)
        atomicAdd(&shared->by_scale[w->scale], w->sum);
}

INLINE double e2m1_double(u32 code, int scale)
{
    return (double)e2m1_value(code) * double_pow2(scale - 127);
}

/* A value of a group out of the window became y; one that is 0 and stays it adds nothing. */
INLINE void add_breach(struct mx_shared *shared, double x, double y)
{
    double d = fabs(x - y), square = d * d;
    if (square > 0.0) {
        add_square(shared->result.err2, square);
        atomicMax(&shared->result.max_abs_error, (u64)__double_as_longlong(d));
    }
}

/* A group that is out of the window: counted, or refused. */
INLINE void meet_breach(const struct k3_cast_ask *ask, struct mx_shared *shared,
                        const struct mx_word *w)
{
    if (!w->is_first)
        return;
    atomicAdd(&shared->result.breach_groups, 1ull);
    if (ask->oow == OOW_FAIL)
        atomicAdd(&shared->result.refused, 1ull);
}

/* -- BF16 -- */

/* Is a code of the group too large for BF16?  Its codes are read again, since this is rare. */
INLINE int is_bf16_breach(const struct k3_cast_ask *ask, const struct mx_word *w)
{
    const u32 *codes = (const u32 *)ask->x + w->word / MX_WORDS * MX_WORDS;
    u32 least = w->scale == 253 ? 6 : 4, found = 0;
    for (int i = 0; i < 4 * EIGHT; i++)
        found |= (codes[i / EIGHT] >> (4 * (i % EIGHT)) & 7) >= least;
    return found != 0;
}

/* As bf16_table in cast_mxfp4.c. */
INLINE u32 bf16_of_code(u32 code, u32 scale, u32 oow)
{
    u32 used = oow == OOW_SNAP && scale > BF16_MAX ? BF16_MAX : scale, magnitude = code & 7;
    u32 bits = bits_of(e2m1_value(magnitude) * e8m0_value(used)) >> 16;
    if ((used == 253 && magnitude >= 6) || (used == 254 && magnitude >= 4))
        bits = BF16_MOST;
    return bits | (code & 8) << 12;
}

/* Where the scale is above 252. */
APART void bf16_slowly(const struct k3_cast_ask *ask, struct mx_shared *shared,
                       const struct mx_word *w, u32 *out)
{
    int is_breach = is_bf16_breach(ask, w);
    if (is_breach)
        meet_breach(ask, shared, w);
    out[0] = out[1] = out[2] = out[3] = 0;
    for (int i = 0; i < EIGHT; i++) {
        u32 code = w->codes >> (4 * i) & 15;
        u32 bf16 = bf16_of_code(code, w->scale, is_breach ? ask->oow : OOW_REQUANT);
        out[i / 2] |= bf16 << (16 * (i % 2));
        if (is_breach)
            add_breach(shared, e2m1_double(code, (int)w->scale), (double)float_of(bf16 << 16));
    }
}

INLINE void to_bf16(const struct k3_cast_ask *ask, struct mx_shared *shared,
                    const struct mx_word *w)
{
    u32 out[4];
    if (w->scale > BF16_MAX) {
        bf16_slowly(ask, shared, w, out);
    } else {
        /* 2^126, which makes a code's FP32 bits its value, and the scale; exact, one by one. */
        const float scale = e8m0_value(w->scale);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 low = w->codes >> (8 * k), high = w->codes >> (8 * k + 4);
            u32 a = bits_of(float_of((low & 7) << 22) * 0x1p126f * scale) >> 16;
            u32 b = bits_of(float_of((high & 7) << 22) * 0x1p126f * scale);
            out[k] = a | (low & 8) << 12 | b | (high & 8) << 28;
        }
    }
    uint4 v;
    v.x = out[0], v.y = out[1], v.z = out[2], v.w = out[3];
    ((uint4 *)ask->weight)[w->word] = v;
}

/* -- MXFP8 and INT8: always exact -- */

INLINE void to_mxfp8(const struct k3_cast_ask *ask, const struct mx_word *w)
{
    ((uint2 *)ask->weight)[w->word] = signed_bytes(E4M3_LOW, E4M3_HIGH, w->codes);
    if (w->is_first)
        ((u8 *)ask->scale)[w->word / MX_WORDS] = (u8)w->scale;
}

INLINE void to_int8(const struct k3_cast_ask *ask, const struct mx_word *w)
{
    uint2 bytes;
    bytes.x = int8_bytes(w->codes);
    bytes.y = int8_bytes(w->codes >> 16);
    ((uint2 *)ask->weight)[w->word] = bytes;
    if (w->is_first) /* 2^(byte - 128) */
        ((u16 *)ask->scale)[w->word / MX_WORDS] =
            (u16)(w->scale > 1 ? (w->scale - 1) << 7 : 0x20u << w->scale);
}

/* -- NVFP4 -- */

/* The scale byte that the top of the window stands for, out of the global: a power of two. */
INLINE int nvfp4_max(const struct k3_cast_ask *ask)
{
    int exponent = (int)(bits_of(ask->global) >> 23);
    return ask->is_modelopt ? exponent + NVFP4_TOP : 254 - exponent + NVFP4_TOP;
}

INLINE u32 nvfp4_scale(int k, int max)
{
    int j = k - max + NVFP4_TOP;
    if (j >= -6)
        return (u32)((j > NVFP4_TOP ? NVFP4_TOP : j) + 7) << 3;
    return j < -8 ? 1u : 1u << (j + 9); /* subnormal: multiples of 2^-9 */
}

/* Codes of a group that is out of the window. */
APART u32 nvfp4_slowly(const struct k3_cast_ask *ask, struct mx_shared *shared,
                       const struct mx_word *w, int max)
{
    int scale = (int)w->scale, used = scale > max ? max : max - NVFP4_SPREAD;
    u32 out = 0;
    meet_breach(ask, shared, w);
    for (int i = 0; i < EIGHT; i++) {
        u32 code = w->codes >> (4 * i) & 15;
        double x = e2m1_double(code, scale);
        if (ask->oow == OOW_REQUANT)
            code = e2m1_code((float)(x * double_pow2(127 - used)));
        out |= code << (4 * i);
        add_breach(shared, x, e2m1_double(code, used));
    }
    return out;
}

INLINE void to_nvfp4(const struct k3_cast_ask *ask, struct mx_shared *shared,
                     const struct mx_word *w, int max)
{
    int scale = (int)w->scale;
    u32 codes = w->codes;
    if (w->sum && (scale > max || max - scale > NVFP4_SPREAD))
        codes = nvfp4_slowly(ask, shared, w, max);
    ((u32 *)ask->weight)[w->word] = codes;
    if (w->is_first)
        ((u16 *)ask->scale)[w->word / MX_WORDS] = (u16)(nvfp4_scale(scale, max) * 0x101);
}

/* -- group by group, whatever the rows -- */

#define TO_BF16  0
#define TO_MXFP8 1
#define TO_INT8  2
#define TO_NVFP4 3

INLINE void mx_groups(const struct k3_cast_ask *ask, const int to, struct mx_shared *shared)
{
    const u64 words = ask->row_count * (ask->cols / EIGHT);
    const int max = to == TO_NVFP4 ? nvfp4_max(ask) : 0;
    struct counts counts = {0, 0, 0};
    for (u64 first = (u64)blockIdx.x * MX_PASS; first < words; first += (u64)gridDim.x * MX_PASS) {
        u32 codes[MX_READS], scale[MX_READS];
#pragma unroll
        for (int k = 0; k < MX_READS; k++) {
            u64 word = first + (u32)k * MX_BLOCK + threadIdx.x;
            codes[k] = word < words ? ((const u32 *)ask->x)[word] : 0;
            scale[k] = word < words ? ((const u8 *)ask->x_scale)[word / MX_WORDS] : 0;
        }
#pragma unroll
        for (int k = 0; k < MX_READS; k++) {
            struct mx_word w;
            w.word = first + (u32)k * MX_BLOCK + threadIdx.x;
            w.codes = codes[k];
            w.scale = scale[k];
            w.sum = group_squares(codes[k]);
            w.is_first = threadIdx.x % MX_WORDS == 0;
            if (w.word >= words)
                continue; /* all four of a group */
            count_group(shared, &w, &counts);
            if (to == TO_BF16)
                to_bf16(ask, shared, &w);
            else if (to == TO_MXFP8)
                to_mxfp8(ask, &w);
            else if (to == TO_INT8)
                to_int8(ask, &w);
            else
                to_nvfp4(ask, shared, &w, max);
        }
    }
    if (counts.zero)
        atomicAdd(&shared->result.zero_groups, (u64)counts.zero);
    if (counts.refused)
        atomicAdd(&shared->result.refused, (u64)counts.refused);
}

#define MX_KERNEL(name, to)                                                                        \
    KERNEL __launch_bounds__(MX_BLOCK) name(const struct k3_cast_ask ask)                          \
    {                                                                                              \
        __shared__ struct mx_shared shared;                                                        \
        begin_mx(&shared);                                                                         \
        mx_groups(&ask, to, &shared);                                                              \
        end_mx(&ask, &shared);                                                                     \
    }

MX_KERNEL(k3_cast_mx_bf16, TO_BF16)
MX_KERNEL(k3_cast_mx_mxfp8, TO_MXFP8)
MX_KERNEL(k3_cast_mx_int8, TO_INT8)
MX_KERNEL(k3_cast_mx_nvfp4, TO_NVFP4)

/* -- FP8 blocks -- */

/* E4M3 of value * 2^(6 - shift): exact up to shift 14, nearest even beyond. */
INLINE void make_shifts(struct mx_shared *shared)
{
    u32 shift = threadIdx.x / 8, magnitude = threadIdx.x % 8;
    if (threadIdx.x < BLOCK_ROWS * 8)
        ((u8 *)shared->table)[threadIdx.x] =
            (u8)e4m3_code(e2m1_value(magnitude) * e8m0_value(127 + BLOCK_TOP - shift));
}

INLINE void block_breach(const struct k3_cast_ask *ask, struct mx_shared *shared,
                         const struct mx_word *w, int max, uint2 bytes)
{
    meet_breach(ask, shared, w);
    for (int i = 0; i < EIGHT; i++) {
        u32 byte = (i < 4 ? bytes.x : bytes.y) >> (8 * (i % 4)) & 0xff;
        add_breach(shared, e2m1_double(w->codes >> (4 * i) & 15, (int)w->scale),
                   (double)e4m3_value(byte) * double_pow2(max - 127 - BLOCK_TOP));
    }
}

INLINE void to_block(const struct k3_cast_ask *ask, struct mx_shared *shared,
                     const struct mx_word *w, int max)
{
    const int last = ask->oow == OOW_SNAP ? BLOCK_SPREAD : BLOCK_ROWS - 1;
    int shift = max - (int)w->scale, row = shift < 0 ? 0 : shift > last ? last : shift;
    uint2 bytes = signed_bytes(shared->table[row][0], shared->table[row][1], w->codes);
    if (w->sum && shift > BLOCK_SPREAD)
        block_breach(ask, shared, w, max, bytes);
    ((uint2 *)ask->weight)[w->word] = bytes;
}

/* Of a block of 128 rows: 16 threads for each of 16 rows, eight times. */
INLINE void mx_block(const struct k3_cast_ask *ask, struct mx_shared *shared, u64 block, u32 *now,
                     struct counts *counts)
{
    const u64 row_words = ask->cols / EIGHT, row_blocks = (ask->cols + STRIPE - 1) / STRIPE;
    const u64 column = block % row_blocks * TILE_WORDS + threadIdx.x % TILE_WORDS;
    const u64 row = block / row_blocks * STRIPE + threadIdx.x / TILE_WORDS;
    struct mx_word w[MX_READS];
    int is_there[MX_READS];
    u32 most = 0; /* one more than the largest scale of groups that are not 0 */
#pragma unroll
    for (int k = 0; k < MX_READS; k++) {
        u64 at = row + (u32)k * (MX_BLOCK / TILE_WORDS);
        is_there[k] = column < row_words && at < ask->row_count;
        w[k].word = at * row_words + column;
        w[k].is_first = threadIdx.x % MX_WORDS == 0;
        w[k].codes = is_there[k] ? ((const u32 *)ask->x)[w[k].word] : 0;
        w[k].scale = is_there[k] ? ((const u8 *)ask->x_scale)[w[k].word / MX_WORDS] : 0;
    }
#pragma unroll
    for (int k = 0; k < MX_READS; k++) {
        w[k].sum = group_squares(w[k].codes);
        if (is_there[k])
            count_group(shared, &w[k], counts);
        if (w[k].sum)
            most = most_u32(most, w[k].scale + 1);
    }
    raise_slot(now, most);
    int max = (int)*now - 1; /* -1: nothing but zeros */
    if (threadIdx.x == 0)
        ((float *)ask->scale)[block] =
            max < 0 ? 0x1p-23f
                    : (float)double_pow2(max - 127 - BLOCK_TOP);
#pragma unroll
    for (int k = 0; k < MX_READS; k++)
        if (is_there[k])
            to_block(ask, shared, &w[k], max);
}

KERNEL __launch_bounds__(MX_BLOCK) k3_cast_mx_fp8_block(const struct k3_cast_ask ask)
{
    __shared__ struct mx_shared shared;
    const u64 blocks = (ask.row_count + STRIPE - 1) / STRIPE * ((ask.cols + STRIPE - 1) / STRIPE);
    struct counts counts = {0, 0, 0};
    u32 turn = 0;
    make_shifts(&shared);
    if (threadIdx.x < 3)
        shared.slot[threadIdx.x] = 0;
    begin_mx(&shared);
    for (u64 block = blockIdx.x; block < blocks; block += gridDim.x, turn++) {
        mx_block(&ask, &shared, block, &shared.slot[turn % 3], &counts);
        if (threadIdx.x == 0)
            shared.slot[(turn + 2) % 3] = 0;
    }
    if (counts.zero)
        atomicAdd(&shared.result.zero_groups, (u64)counts.zero);
    if (counts.refused)
        atomicAdd(&shared.result.refused, (u64)counts.refused);
    end_mx(&ask, &shared);
}
