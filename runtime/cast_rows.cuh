/* Kernels of casts out of BF16: formats/quant_bf16.c.  Part of cast.cu, see there.
 *
 * Two threads work on a row.  One has the first eight of every sixteen values, the other the last
 * eight: so each keeps eight of the sixteen sums, adds to them in the order of columns, and reads 16
 * bytes at a time.  A span of 128 columns is 8 such reads, all begun before the first is needed.
 * Threads of rows that do not exist work on the last row and write nothing, since all threads must
 * meet where they exchange values. */
#ifndef K3_CAST_ROWS_CUH
#define K3_CAST_ROWS_CUH

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
    /* Signs are such that -0 stays -0. */
    return is_pow2 ? q : __fmaf_rn(__fmaf_rn(q, by.scale, -x), -by.inverse, q);
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
    if (kind == INT8) {
        *code = (raised_int(INT8, q, &value) ^ 0x80) & 0xff;
    } else if (kind == INT4) {
        *code = raised_int(INT4, q, &value) & 15;
    } else if (IS_E2M1(kind)) {
        *code = e2m1_code(q);
        value = e2m1_value(*code);
    } else {
        *code = e4m3_code(q);
        value = e4m3_value(*code);
    }
    return fmaxf(fminf(PRODUCT(value, scale), FLOAT_MOST), -FLOAT_MOST);
}

/* Eight values by any scale: FP64 differences, products that are rounded. */
INLINE void eight_slowly(int kind, const u32 *x, float scale, struct sums *sums, u32 *out)
{
    out[0] = out[1] = 0;
#pragma unroll 1
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

/* A span of which at least one group has to be done the slow way, in memory. */
struct slow_span {
    u32 x[CHUNKS][4], out[CHUNKS][2];
    float scale[CHUNKS];
    struct sums sums;
};

APART void span_slowly(int kind, int chunks, struct slow_span *span)
{
#pragma unroll 1
    for (int c = 0; c < chunks; c++)
        eight_slowly(kind, span->x[c], span->scale[c], &span->sums, span->out[c]);
}

/* Two quotients to codes, and what these stand for; codes of nibbles have no signs yet. */
INLINE u32 round_pair(const int kind, float q0, float q1, float *value)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if (kind == E4M3 || kind == E4M3_BF16) {
        unsigned short codes;
        u32 halves; /* FP16, which has all of E4M3 */
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(q1), "f"(q0));
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
        asm("{.reg .f16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n"
            " cvt.f32.f16 %1, high;}"
            : "=f"(value[0]), "=f"(value[1])
            : "r"(halves));
        return codes;
    }
#endif
    if (IS_INT(kind)) {
        u32 a = raised_int(kind, q0, &value[0]), b = raised_int(kind, q1, &value[1]);
        return a + (b << (kind == INT8 ? 8 : 4));
    }
    const int as = IS_E2M1(kind) ? E2M1 : E4M3, clips = kind != E2M1;
    value[0] = nearest_float(as, clips, fabsf(q0));
    value[1] = nearest_float(as, clips, fabsf(q1));
    u32 a = raised_code(as, value[0]), b = raised_code(as, value[1]);
    if (as == E2M1)
        return (a + (b << 4)) >> CODE_BIT(E2M1);
    value[0] = q0 < 0.0f ? -value[0] : value[0];
    value[1] = q1 < 0.0f ? -value[1] : value[1];
    return a >> 20 | b >> 12 | (bits_of(q0) >> 24 & 0x80) | (bits_of(q1) >> 16 & 0x8000);
}

/* Signs of eight values, each in the highest bit of its nibble. */
INLINE u32 nibble_signs(const u32 *x)
{
    u32 a = bytes_of(x[0], x[1], 0x7351), b = bytes_of(x[2], x[3], 0x7351);
    return (bytes_of(a, b, 0x5410) >> 4 & 0x08080808u) | (bytes_of(a, b, 0x7632) & 0x80808080u);
}

#define MAGNITUDES 0x7fff7fffu /* of two BF16 numbers */

/* Eight values by a scale that has an inverse, none above 1.7 times what the format holds.  Then x
 * and what its code stands for are within a factor of two, or the code is 0: so their difference is
 * an FP32 number, and its square, as that of x, an FP64 number: fused sums are the same.  By a power
 * of two also the product of code and scale is exact. */
INLINE void eight_quickly(const int kind, const int is_pow2, const u32 *x, struct by by,
                          struct sums *sums, u32 *out)
{
    u32 from[4];
    out[0] = out[1] = 0;
#pragma unroll
    for (int k = 0; k < EIGHT / 2; k++)
        from[k] = IS_E2M1(kind) ? x[k] & MAGNITUDES : x[k];
#pragma unroll
    for (int k = 0; k < EIGHT / 2; k++) {
        float a[2], q[2], value[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[i] = float_of(bits_at(from, 2 * k + i));
            q[i] = quotient(is_pow2, a[i], by);
            if (kind == E4M3_BF16)
                q[i] = float_of(bf16_rounded(bits_of(q[i])));
        }
        u32 codes = round_pair(kind, q[0], q[1], value);
        if (IS_NIBBLE(kind))
            out[0] += codes << (8 * k);
        else
            out[k / 2] += codes << (16 * (k % 2));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float d = is_pow2 ? __fmaf_rn(-value[i], by.scale, a[i])
                              : a[i] - PRODUCT(value[i], by.scale);
            double wide = (double)d, x_wide = (double)a[i];
            sums->x2[2 * k + i] = __fma_rn(x_wide, x_wide, sums->x2[2 * k + i]);
            sums->err2[2 * k + i] = __fma_rn(wide, wide, sums->err2[2 * k + i]);
            sums->most = fmaxf(sums->most, fabsf(d));
        }
    }
    if (IS_E2M1(kind))
        out[0] |= nibble_signs(x);
    if (kind == INT4)
        out[0] -= INT_BASE * 0x11111111u;
    if (kind == INT8) {
        out[0] = (out[0] - INT_BASE * 0x01010101u) ^ 0x80808080u;
        out[1] = (out[1] - INT_BASE * 0x01010101u) ^ 0x80808080u;
    }
}

INLINE int is_quick(const int kind, struct by by, float q_most)
{
    return by.inverse > 0.0f && (kind == E2M1 ? q_most < 7.0f : q_most <= 1.7f * most_of(kind));
}

/* A span by the scales of its chunks. */
INLINE void encode_span(const int kind, const int is_pow2, const int chunks, int all_quick,
                        u32 x[CHUNKS][4], const struct by *by, struct sums *sums,
                        u32 out[CHUNKS][2])
{
    if (all_quick) {
#pragma unroll
        for (int c = 0; c < chunks; c++)
            eight_quickly(kind, is_pow2, x[c], by[c], sums, out[c]);
        return;
    }
    struct slow_span slow; /* a copy, so that all else stays in registers */
    slow.sums = *sums;
#pragma unroll
    for (int c = 0; c < chunks; c++) {
        slow.x[c][0] = x[c][0], slow.x[c][1] = x[c][1];
        slow.x[c][2] = x[c][2], slow.x[c][3] = x[c][3];
        slow.scale[c] = by[c].scale;
    }
    span_slowly(kind, chunks, &slow);
    *sums = slow.sums;
#pragma unroll
    for (int c = 0; c < chunks; c++) {
        out[c][0] = slow.out[c][0];
        out[c][1] = slow.out[c][1];
    }
}

/* BF16 bits of the largest magnitude of eight values. */
INLINE u32 magnitude_of(const u32 *x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    u32 most = __vmaxu2(__vmaxu2(x[0] & MAGNITUDES, x[1] & MAGNITUDES),
                        __vmaxu2(x[2] & MAGNITUDES, x[3] & MAGNITUDES));
    return most_u32(most >> 16, most & 0xffff);
#else
    u32 high = 0, low = 0; /* as FP32 bits, whose lower half is noise */
#pragma unroll
    for (int k = 0; k < 4; k++) {
        high = most_u32(high, x[k] & MAGNITUDE);
        low = most_u32(low, x[k] << 17);
    }
    return most_u32(high >> 16, low >> 17);
#endif
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

INLINE void read_span(const struct k3_cast_ask *ask, const int chunks, struct place place, u64 col,
                      u32 x[CHUNKS][4])
{
    if (ask->cols % SPAN_OF(chunks) == 0) {
        const uint4 *from =
            (const uint4 *)((const u16 *)ask->x + place.row * ask->cols + col) + place.half;
#pragma unroll
        for (int c = 0; c < chunks; c++) {
            uint4 v = from[2 * c];
            x[c][0] = v.x, x[c][1] = v.y, x[c][2] = v.z, x[c][3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int c = 0; c < chunks; c++)
        read_eight(ask, place.row, col + (u32)c * 16 + place.half * EIGHT, x[c]);
}

/* Codes of a whole span: the two threads of a row have every other piece of it; each takes one half
 * of the span off the other, so that it writes 16 bytes at a time. */
INLINE void write_span(const int words, const int chunks, u8 *to, struct place place,
                       u32 out[CHUNKS][2])
{
    u32 mine[2 * CHUNKS]; /* words in their order */
#pragma unroll
    for (int c = 0; c < chunks / 2; c++) {
#pragma unroll
        for (int k = 0; k < words; k++) {
            u32 keep = place.half ? out[c + chunks / 2][k] : out[c][k];
            u32 give = place.half ? out[c][k] : out[c + chunks / 2][k];
            u32 got = EXCHANGE(give, 1);
            mine[2 * c * words + k] = place.half ? got : keep;
            mine[(2 * c + 1) * words + k] = place.half ? keep : got;
        }
    }
    if (!place.is_row)
        return;
    uint4 *at = (uint4 *)to + place.half * (u32)(chunks * words / 4);
#pragma unroll
    for (int q = 0; q < chunks * words / 4; q++) {
        uint4 v;
        v.x = mine[4 * q], v.y = mine[4 * q + 1], v.z = mine[4 * q + 2], v.w = mine[4 * q + 3];
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

INLINE void write_codes(const struct k3_cast_ask *ask, const int kind, const int chunks,
                        struct place place, u64 col, u32 out[CHUNKS][2])
{
    if (ask->cols % SPAN_OF(chunks) == 0) {
        u64 at = place.row * ask->cols + col;
        if (IS_NIBBLE(kind))
            write_span(1, chunks, (u8 *)ask->weight + at / 2, place, out);
        else
            write_span(2, chunks, (u8 *)ask->weight + at, place, out);
        return;
    }
#pragma unroll
    for (int c = 0; c < chunks; c++)
        if (place.is_row)
            write_eight(ask, IS_NIBBLE(kind) ? 1 : 2, place.row,
                        col + (u32)c * 16 + place.half * EIGHT, out[c]);
}

/* ---- what a row adds to that ---- */

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

INLINE void end_counts(struct place place, struct counts counts, struct k3_cast_result *shared)
{
    if (!place.is_row)
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
#define INT4_G 4
#define INT8_G 3
#define INT4_G128 5
#define MXFP4_CLIP 6 /* rules that clip: floor, mse */
#define IS_MX(format)   ((format) <= MXFP8 || (format) == MXFP4_CLIP)
#define IS_INT4(format) ((format) == INT4_G || (format) == INT4_G128)
#define KIND_OF(format) \
    ((format) == MXFP8    ? E4M3                                                                   \
     : (format) == INT8_G ? INT8                                                                   \
     : IS_INT4(format)    ? INT4                                                                   \
     : (format) == MXFP4_CLIP                                                                      \
         ? E2M1_CLIP                                                                               \
         : E2M1)
#define CHUNKS_OF(format) ((format) == INT4_G128 ? 8 : 4) /* in a span */
#define EACH_OF(format)   ((format) == NVFP4 ? 1 : (format) == INT4_G128 ? 8 : 2) /* in a group */
#define GROUPS_MOST       4 /* in a span */
#define IS_WIDE(format)   (IS_INT4(format) || (format) == INT8_G) /* scales of 16 bits */

#define NVFP4_ZERO_BYTE 0x20u
#define NVFP4_ONE_BYTE  0x38u
#define NVFP4_LEAST     0x1p-9f
#define NVFP4_BYTES     128 /* scale bytes; the last is NaN and never used for finite values */

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
                            : IS_INT4(format) ? 7.5f
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
        *by = rule->nvfp4[stored];
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

/* Scales of a span: together where a row of them has no rest. */
INLINE void write_scales(const struct k3_cast_ask *ask, const int format, struct place place,
                         u64 col, const u32 *stored)
{
    const int chunks = CHUNKS_OF(format), each = EACH_OF(format), groups = chunks / each;
    const int bits = IS_WIDE(format) ? 16 : 8;
    const u64 at = (place.row * ask->cols + col) / (u32)(each * 2 * EIGHT);
    if (!place.is_row || place.half)
        return;
    if (groups > 1 && ask->cols % SPAN_OF(chunks) == 0) {
        u32 word = 0;
#pragma unroll
        for (int g = 0; g < groups; g++)
            word |= stored[g] << (bits * g);
        if (groups * bits == 32)
            *(u32 *)((u8 *)ask->scale + at * (u32)bits / 8) = word;
        else
            *(u16 *)((u8 *)ask->scale + at * (u32)bits / 8) = (u16)word;
        return;
    }
#pragma unroll
    for (int g = 0; g < groups; g++) {
        if (col + (u32)(g * each * 2 * EIGHT) >= ask->cols)
            continue;
        if (bits == 16)
            ((u16 *)ask->scale)[at + (u32)g] = (u16)stored[g];
        else
            ((u8 *)ask->scale)[at + (u32)g] = (u8)stored[g];
    }
}

/* Sum of squared errors of a group of 32 by one scale byte, as mx_try in quant_bf16.c adds it.  A
 * quotient by a power of two is a product. */
INLINE double mx_try(const int kind, u32 x[][4], u32 half, u32 byte)
{
    const float scale = e8m0_value(byte);
    const float inverse = float_of(byte < 254 ? (254 - byte) << 23 : 0x00400000u);
    double lane[EIGHT];
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        lane[i] = 0.0;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float a = float_of(bits_at(x[c], i) & MAGNITUDE);
            float value = nearest_float(IS_E2M1(kind) ? E2M1 : E4M3, 1, a * inverse);
            double d = (double)a - (double)fminf(PRODUCT(value, scale), FLOAT_MOST);
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
#pragma unroll 1
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

/* What a thread finds out about the groups of a span. */
struct found {
    u32 stored[GROUPS_MOST];
    struct by by[CHUNKS]; /* of each chunk */
    int all_quick;
};

INLINE void count(const int kind, u32 amax, float q_most, int is_there, struct counts *counts)
{
    counts->refused += amax >= BF16_INF;
    counts->saturated += q_most > most_of(kind);
    counts->zero += amax == 0 && is_there;
}

/* Scales of groups of 32 and 128 columns: both threads of a row do the same, one of them counts. */
INLINE void find_scales(const struct k3_cast_ask *ask, const int format, const int is_mse,
                        const struct rule *rule, struct place place, u64 col, u32 x[CHUNKS][4],
                        struct found *found, struct counts *counts)
{
    const int kind = KIND_OF(format), each = EACH_OF(format);
    found->all_quick = 1;
#pragma unroll
    for (int g = 0; g < CHUNKS_OF(format) / each; g++) {
        u32 own = 0, amax;
        struct by by;
#pragma unroll
        for (int c = g * each; c < (g + 1) * each; c++)
            own = most_u32(own, magnitude_of(x[c]));
        amax = most_u32(own, EXCHANGE(own, 1));
        found->stored[g] = group_scale(format, amax, rule, &by);
        if (is_mse) {
            found->stored[g] = mse_byte(kind, &x[g * each], place.half, found->stored[g], amax);
            by = by_byte(found->stored[g]);
        }
        float q_most = largest_quotient(format, amax, by);
        found->all_quick &= is_quick(kind, by, q_most);
        if (place.half == 0)
            count(kind, amax, q_most, col + (u32)(g * each * 2 * EIGHT) < ask->cols, counts);
#pragma unroll
        for (int c = g * each; c < (g + 1) * each; c++)
            found->by[c] = by;
    }
}

#define QUICK_BIT 0x80u /* beside a scale byte */

/* Scales of NVFP4, four groups of a chunk in each thread: the first thread of a row does the first
 * two, the second the others. */
INLINE void find_nvfp4(const struct k3_cast_ask *ask, const struct rule *rule, struct place place,
                       u64 col, u32 x[CHUNKS][4], struct found *found, struct counts *counts)
{
    u32 own[4], mine = 0, other;
#pragma unroll
    for (int g = 0; g < 4; g++)
        own[g] = magnitude_of(x[g]);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        u32 got = EXCHANGE(place.half ? own[g] : own[g + 2], 1);
        u32 amax = most_u32(place.half ? own[g + 2] : own[g], got);
        struct by by;
        u32 byte = group_scale(NVFP4, amax, rule, &by);
        float q_most = largest_quotient(NVFP4, amax, by);
        mine |= (byte | (is_quick(E2M1, by, q_most) ? QUICK_BIT : 0)) << (8 * g);
        count(E2M1, amax, q_most, col + place.half * 32 + (u32)g * 16 < ask->cols, counts);
    }
    other = EXCHANGE(mine, 1);
    u32 all = place.half ? other | mine << 16 : mine | other << 16;
    found->all_quick = (all & 0x80808080u) == 0x80808080u;
#pragma unroll
    for (int g = 0; g < 4; g++) {
        found->stored[g] = all >> (8 * g) & 127;
        found->by[g] = rule->nvfp4[found->stored[g]];
    }
}

INLINE void grouped(const struct k3_cast_ask *ask, const int format, const int is_mse,
                    const struct by *nvfp4, struct k3_cast_result *shared)
{
    const int kind = KIND_OF(format), chunks = CHUNKS_OF(format);
    const struct rule rule = rule_of(ask, format, nvfp4);
    const struct place place =
        place_of(ask, (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2);
    struct counts counts = {0, 0, 0};
    struct sums sums;
    begin_sums(&sums);
    for (u64 col = 0; col < ask->cols; col += SPAN_OF(chunks)) {
        u32 x[CHUNKS][4], out[CHUNKS][2];
        struct found found;
        read_span(ask, chunks, place, col, x);
        if (format == NVFP4)
            find_nvfp4(ask, &rule, place, col, x, &found, &counts);
        else
            find_scales(ask, format, is_mse, &rule, place, col, x, &found, &counts);
        encode_span(kind, IS_MX(format), chunks, found.all_quick, x, found.by, &sums, out);
        write_scales(ask, format, place, col, found.stored);
        write_codes(ask, kind, chunks, place, col, out);
    }
    end_row(place, &sums, shared);
    end_counts(place, counts, shared);
}

/* `groups` of threads on a processor of an H200: what registers allow, see ptxas -v. */
#define GROUPED_KERNEL(name, format, is_mse, groups)                                               \
    KERNEL __launch_bounds__(PAIR_BLOCK, groups) name(const struct k3_cast_ask ask)                        \
    {                                                                                              \
        __shared__ struct k3_cast_result shared;                                                   \
        begin_result(&shared);                                                                     \
        grouped(&ask, format, is_mse, 0, &shared);                                                 \
        end_result(&ask, &shared);                                                                 \
    }

GROUPED_KERNEL(k3_cast_mxfp4, MXFP4, 0, 5)
GROUPED_KERNEL(k3_cast_mxfp8, MXFP8, 0, 6)
GROUPED_KERNEL(k3_cast_mxfp4_floor, MXFP4_CLIP, 0, 5)
GROUPED_KERNEL(k3_cast_mxfp4_mse, MXFP4_CLIP, 1, 3)
GROUPED_KERNEL(k3_cast_mxfp8_mse, MXFP8, 1, 3)
GROUPED_KERNEL(k3_cast_int4, INT4_G, 0, 5)
GROUPED_KERNEL(k3_cast_int4_g128, INT4_G128, 0, 4)
GROUPED_KERNEL(k3_cast_int8, INT8_G, 0, 5)

KERNEL __launch_bounds__(PAIR_BLOCK, 5) k3_cast_nvfp4(const struct k3_cast_ask ask)
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
INLINE void fp8_span(const struct k3_cast_ask *ask, const int chunks, struct place place, u64 col,
                     u32 x[CHUNKS][4], struct by by, float q_most, struct sums *sums)
{
    u32 out[CHUNKS][2];
    struct by all[CHUNKS];
    int all_quick = is_quick(E4M3, by, q_most);
#pragma unroll
    for (int c = 0; c < chunks; c++)
        all[c] = by;
    if (ask->is_modelopt)
        encode_span(E4M3_BF16, 0, chunks, all_quick, x, all, sums, out);
    else
        encode_span(E4M3, 0, chunks, all_quick, x, all, sums, out);
    write_codes(ask, E4M3, chunks, place, col, out);
}

/* Largest magnitude of a thread's part of a span. */
INLINE u32 span_magnitude(const int chunks, u32 x[CHUNKS][4])
{
    u32 most = 0;
#pragma unroll
    for (int c = 0; c < chunks; c++)
        most = most_u32(most, magnitude_of(x[c]));
    return most;
}

/* FP8 by tensor or by channel.  By channel rows are read twice: nothing near is large enough for all
 * the rows that are being worked on. */
INLINE void fp8_rows(const struct k3_cast_ask *ask, struct k3_cast_result *shared)
{
    const struct place place =
        place_of(ask, (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2);
    struct counts counts = {0, 0, 0};
    struct sums sums;
    u32 x[CHUNKS][4], amax = 0;
    float scale = ask->global;
    begin_sums(&sums);
    if (ask->is_channel) {
        for (u64 col = 0; col < ask->cols; col += SPAN_OF(CHUNKS)) {
            read_span(ask, CHUNKS, place, col, x);
            amax = most_u32(amax, span_magnitude(CHUNKS, x));
        }
        amax = most_u32(amax, EXCHANGE(amax, 1));
        counts.zero = amax == 0 && place.half == 0;
        scale = fp8_scale(ask, amax);
        if (place.is_row && !place.half)
            ((float *)ask->scale)[place.row] = scale;
    }
    const struct by by = by_scale(scale);
    for (u64 col = 0; col < ask->cols; col += SPAN_OF(4)) {
        read_span(ask, 4, place, col, x);
        u32 own = span_magnitude(4, x);
        amax = most_u32(amax, own);
        fp8_span(ask, 4, place, col, x, by, ratio(float_of(own << 16), by), &sums);
    }
    counts.refused = amax >= BF16_INF;
    end_row(place, &sums, shared);
    end_counts(place, counts, shared);
}

KERNEL __launch_bounds__(PAIR_BLOCK) k3_cast_fp8_rows(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result shared;
    begin_result(&shared);
    fp8_rows(&ask, &shared);
    end_result(&ask, &shared);
}

/* A whole block whose scale is quick.  The next block's values take the place of those that are
 * done: they are on their way while the rest is encoded and the threads meet. */
INLINE void fp8_whole(const struct k3_cast_ask *ask, const int kind, struct place place, u64 col,
                      u32 x[CHUNKS][4], struct by by, struct sums *sums)
{
    const u64 at = place.row * ask->cols + col;
    /* Behind the last block comes the last once more. */
    const u64 step = col + STRIPE < ask->cols ? STRIPE : 0;
    const uint4 *next = (const uint4 *)((const u16 *)ask->x + at + step) + place.half;
    uint2 *to = (uint2 *)((u8 *)ask->weight + at) + place.half;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        u32 out[2];
        eight_quickly(kind, 0, x[c], by, sums, out);
        uint4 v = next[2 * c];
        x[c][0] = v.x, x[c][1] = v.y, x[c][2] = v.z, x[c][3] = v.w;
        uint2 codes;
        codes.x = out[0], codes.y = out[1];
        if (place.is_row)
            to[2 * c] = codes;
    }
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
    u32 x[CHUNKS][4];
    begin_sums(&sums);
    if (threadIdx.x < 3)
        slot[threadIdx.x] = 0;
    begin_result(&shared);
    read_span(&ask, CHUNKS, place, 0, x);
    for (u64 block = 0; block < blocks; block++) {
        u32 *now = &slot[block % 3];
        raise_slot(now, span_magnitude(CHUNKS, x));
        u32 amax = *now;
        const struct by by = by_scale(fp8_scale(&ask, amax));
        const float q_most = ratio(float_of(amax << 16), by);
        if (threadIdx.x == 0) {
            slot[(block + 2) % 3] = 0;
            ((float *)ask.scale)[blockIdx.x * blocks + block] = by.scale;
            counts.zero += amax == 0;
            counts.refused += amax >= BF16_INF;
        }
        if (ask.cols % STRIPE == 0 && is_quick(E4M3, by, q_most)) { /* the same for all threads */
            if (ask.is_modelopt)
                fp8_whole(&ask, E4M3_BF16, place, block * STRIPE, x, by, &sums);
            else
                fp8_whole(&ask, E4M3, place, block * STRIPE, x, by, &sums);
        } else {
            fp8_span(&ask, CHUNKS, place, block * STRIPE, x, by, q_most, &sums);
            if (block + 1 < blocks)
                read_span(&ask, CHUNKS, place, (block + 1) * STRIPE, x);
        }
    }
    end_row(place, &sums, &shared);
    end_counts(place, counts, &shared);
    end_result(&ask, &shared);
}

#endif
