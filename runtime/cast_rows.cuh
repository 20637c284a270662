/* Kernels of casts out of BF16 (formats/quant_bf16.c): what they do with a row.  Part of cast.cu,
 * see there.
 *
 * Two threads work on a row.  One has the first eight of every sixteen values, the other the last
 * eight: so each keeps eight of the sixteen sums, adds to them in the order of columns, and reads
 * 16 bytes at a time.  A span of 64 or 128 columns is 4 or 8 such reads; where GPUs copy into
 * shared memory by themselves, a warp begins the next span of its 16 rows while it encodes one.
 * Threads of rows that do not exist work on the last row and write nothing, since all threads must
 * meet where they exchange values.
 * So a launch has two threads for each row, and takes as long as one row does: casts of few rows
 * want other launches beside them. */
#ifndef K3_CAST_ROWS_CUH
#define K3_CAST_ROWS_CUH

/* ---- quotients ---- */

/* A scale and its inverse in two parts, the first rounded down, so that neither is below 0; 0: too
 * large or too small for what is done the quick way. */
struct by {
    float scale, inverse, low;
};

#define QUICK_LEAST 0x1p-60f
#define QUICK_MOST  0x1p60f

INLINE struct by by_scale(float scale)
{
    struct by by;
    by.scale = scale;
    by.inverse = by.low = 0.0f;
    if (scale >= QUICK_LEAST && scale <= QUICK_MOST) {
        const float nearest = 1.0f / scale;
        const u32 is_above = __fmaf_rn(nearest, scale, -1.0f) > 0.0f;
        by.inverse = float_of(bits_of(nearest) - is_above);
        by.low = __fmaf_rn(by.inverse, -scale, 1.0f) * nearest;
    }
    return by;
}

/* Powers of two. */
INLINE struct by by_byte(u32 byte)
{
    struct by by;
    by.scale = e8m0_value(byte);
    by.inverse = byte <= 244 ? float_of((254 - byte) << 23) : 0.0f; /* 448 * 2^117 is an FP32 */
    by.low = 0.0f;
    return by;
}

/* x / scale, rounded as division rounds it wherever a code depends on it: the sum is rounded once,
 * and no BF16 number over any scale comes so near to where a code changes that the rest of the
 * inverse would matter (tests/test_cast_kernels.c looks for the nearest). */
INLINE float quotient(const int is_pow2, float x, struct by by)
{
    /* -0 stays -0, since `low` has no sign. */
    return is_pow2 ? x * by.inverse : __fmaf_rn(x, by.inverse, PRODUCT(x, by.low));
}

/* The same where x may be anything. */
INLINE float ratio(float x, struct by by)
{
    if (by.inverse > 0.0f && x >= QUICK_LEAST && x <= QUICK_MOST)
        return quotient(0, x, by);
    return x / by.scale;
}

/* ---- eight values ---- */

/* What scales are known to be, a constant wherever it is used. */
#define BY_ANY  0
#define BY_POW2 1
#define BY_BF16 2

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
        *code = (raised_int(INT8, 1, q, &value) ^ 0x80) & 0xff;
    } else if (kind == INT4) {
        *code = raised_int(INT4, 1, q, &value) & 15;
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
        u32 a = raised_int(kind, 0, q0, &value[0]), b = raised_int(kind, 0, q1, &value[1]);
        return a + (b << (kind == INT8 ? 8 : 4));
    }
    const int as = IS_E2M1(kind) ? E2M1 : E4M3, clips = kind != E2M1;
    value[0] = nearest_float(as, clips, fabsf(q0));
    value[1] = nearest_float(as, clips, fabsf(q1));
    u32 a = raised_code(as, value[0]), b = raised_code(as, value[1]);
    /* Not (a + (b << 4)) >> CODE_BIT(E2M1): ptxas of CUDA 13.0 takes b for 0 there, as its code for
     * sm_90 shows, and codes that an H200 made. */
    if (as == E2M1)
        return a >> CODE_BIT(E2M1) | b >> (CODE_BIT(E2M1) - 4);
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

/* Two numbers to BF16. */
INLINE void round_to_bf16(float *q)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(q[1]), "f"(q[0]));
    q[0] = float_of(pair << 16);
    q[1] = float_of(pair & 0xffff0000u);
#else
    q[0] = float_of(bf16_rounded(bits_of(q[0])));
    q[1] = float_of(bf16_rounded(bits_of(q[1])));
#endif
}

/* Four pairs of codes, each in front of 6 bits of zeros in its half, as nibbles: two pairs go
 * together, then into one half. */
INLINE u32 join_pairs(const u32 *code)
{
    u32 low = (code[0] >> 6) + (code[1] << 2), high = (code[2] >> 6) + (code[3] << 2);
    return bytes_of(low | low >> 12, high | high >> 12, 0x5410);
}


/* Two codes and their two errors; as nearest_float and raised_code.  Each code is in front of 6
 * bits of zeros in its half. */
INLINE u32 e2m1_pair(const int kind, u32 x, struct by by, u32 *error)
{
    const u32 inverse = bits_of(by.inverse) >> 16, less = (bits_of(by.scale) >> 16) + 0x8000;
    u32 q = pair_product(x, inverse * 0x10001u);
    if (kind == E2M1_CLIP)
        q = pair_least(q, 0x40c040c0u);                          /* 6 */
    u32 binade = pair_most(q, 0x3f803f80u) & 0x7f807f80u;        /* of at least 1 */
    u32 sum = pair_fused(binade, 0x42804280u, q);                /* 2^6 */
    u32 v = pair_fused(binade, 0xc280c280u, sum);
    *error = pair_fused(v, less * 0x10001u, x);
    return pair_product(v, 0x00800080u); /* 2^-126 */
}

/* As eight_quickly: what lies between a value and its code or its error has 8 bits, so nothing is
 * rounded but what has to be. */
INLINE void eight_in_pairs(const int kind, const u32 *x, struct by by, struct sums *sums, u32 *out)
{
    u32 code[4], error[4];
#pragma unroll
    for (int k = 0; k < EIGHT / 2; k++) {
        u32 a = x[k] & MAGNITUDES;
        code[k] = e2m1_pair(kind, a, by, &error[k]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            double wide = (double)float_of(i ? error[k] & 0xffff0000u : error[k] << 16);
            double x_wide = (double)float_of(i ? a & 0xffff0000u : a << 16);
            sums->x2[2 * k + i] = __fma_rn(x_wide, x_wide, sums->x2[2 * k + i]);
            sums->err2[2 * k + i] = __fma_rn(wide, wide, sums->err2[2 * k + i]);
        }
    }
    u32 most = pair_largest(pair_largest(error[0], error[1]), pair_largest(error[2], error[3]));
    sums->most = fmaxf(sums->most, fmaxf(fabsf(float_of(most & 0xffff0000u)),
                                         fabsf(float_of(most << 16))));
    out[0] = join_pairs(code) | nibble_signs(x);
    out[1] = 0;
}

/* Eight values by a scale that has an inverse, none above 1.7 times what the format holds (E2M1
 * without clipping: below 7; integers: at most 1 more than it holds, so that none is below the
 * lowest).  Then x and what its code stands for are within a factor of two, or the code is 0: so
 * their difference is an FP32 number, and its square, as that of x, an FP64 number: fused sums are
 * the same.  By a power of two or a BF16 number also the product of code and scale is exact. */
INLINE void eight_quickly(const int kind, const int by_what, const u32 *x, struct by by,
                          struct sums *sums, u32 *out)
{
    const int is_pow2 = by_what == BY_POW2;
    u32 from[4];
    if (HAS_PAIRS && IS_E2M1(kind) && is_pow2) {
        eight_in_pairs(kind, x, by, sums, out);
        return;
    }
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
        }
        if (kind == E4M3_BF16)
            round_to_bf16(q);
        u32 codes = round_pair(kind, q[0], q[1], value);
        if (IS_NIBBLE(kind))
            out[0] += codes << (8 * k);
        else
            out[k / 2] += codes << (16 * (k % 2));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float d = by_what == BY_ANY ? a[i] - PRODUCT(value[i], by.scale)
                                        : __fmaf_rn(-value[i], by.scale, a[i]);
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
    return by.inverse > 0.0f && (kind == E2M1   ? q_most < 7.0f
                                 : IS_INT(kind) ? q_most <= most_of(kind) + 1.0f
                                                : q_most <= 1.7f * most_of(kind));
}

/* The larger of the upper and of the lower halves of two words. */
INLINE u32 most_halves(u32 a, u32 b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return __vmaxu2(a, b);
#else
    return most_u32(a & 0xffff0000u, b & 0xffff0000u) | most_u32(a & 0xffff, b & 0xffff);
#endif
}

INLINE u32 most_of_halves(u32 a)
{
    return most_u32(a >> 16, a & 0xffff);
}

/* BF16 bits of the largest magnitude of eight values. */
INLINE u32 magnitude_of(const u32 *x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return most_of_halves(most_halves(most_halves(x[0] & MAGNITUDES, x[1] & MAGNITUDES),
                                      most_halves(x[2] & MAGNITUDES, x[3] & MAGNITUDES)));
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

/* What a thread has at hand of whole spans, so that nothing of it is computed for each. */
struct stream {
    u64 from;     /* what it copies of the span that is begun next; see ask_ahead */
    u64 codes;    /* bytes in front of those of its row, 16 more in the second thread */
    u32 step;     /* bytes of the rows that a warp copies at once */
    u32 to, mine; /* places in a span's: where it copies to, and what it reads */
};

/* A thread at work on its row. */
struct work {
    const struct k3_cast_ask *ask;
    struct place place;
    struct stream stream;
    struct sums sums;
    struct counts counts;
    u32 amax; /* BF16 code of the largest of groups' magnitudes, where groups have scales */
    u64 col;  /* where the span begins */
    /* Spans are whole (has_spans), scales are written together (keep_scales): constants where a
     * kernel has code for that alone. */
    int is_whole, is_kept;
    u32 x[CHUNKS][4], out[CHUNKS][2];
    struct by by[CHUNKS]; /* of the group that a chunk is in */
    int all_quick;        /* as is_quick, of all of them */
};

INLINE void begin_work(const struct k3_cast_ask *ask, u64 row, struct work *work)
{
    work->ask = ask;
    work->place.is_row = row < ask->row_count;
    work->place.row = work->place.is_row ? row : ask->row_count - 1;
    work->place.half = threadIdx.x & 1;
    work->counts.saturated = work->counts.zero = work->counts.refused = 0;
    work->amax = 0;
    begin_sums(&work->sums);
}

INLINE void read_span(struct work *work, const int chunks)
{
    const struct k3_cast_ask *ask = work->ask;
    const u64 row = work->place.row;
    if (ask->cols % SPAN_OF(chunks) == 0) {
        const uint4 *from =
            (const uint4 *)((const u16 *)ask->x + row * ask->cols + work->col) + work->place.half;
#pragma unroll
        for (int c = 0; c < chunks; c++) {
            uint4 v = from[2 * c];
            work->x[c][0] = v.x, work->x[c][1] = v.y, work->x[c][2] = v.z, work->x[c][3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int c = 0; c < chunks; c++)
        read_eight(ask, row, work->col + (u32)c * 16 + work->place.half * EIGHT, work->x[c]);
}

/* ---- spans that are on their way while others are encoded ---- */

/* Copies into shared memory that the thread does not wait for, where the GPU has them.  Elsewhere
 * what is `ahead` is a plain copy. */
INLINE void copy_ahead(uint4 *to, const uint4 *from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((u32)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#else
    *to = *from;
#endif
}

/* What was begun since the last such end is one batch. */
INLINE void end_batch(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

/* All batches are there, or all but the last. */
INLINE void await_batches(const int but_last)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (but_last)
        asm volatile("cp.async.wait_group 1;" : : : "memory");
    else
        asm volatile("cp.async.wait_group 0;" : : : "memory");
#else
    (void)but_last;
#endif
}

INLINE void put_words(u32 *x, uint4 v)
{
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

#if defined(__HIP__) || defined(__HIPCC_RTC__) || defined(__HIP_PLATFORM_AMD__)
#define HAS_AHEAD 0
#else
#define HAS_AHEAD 1
#endif
/* A row of a span in shared memory, and a span of a group of threads: bytes.  32 more behind each
 * row, so that eight threads, which read 32 bytes of four rows, meet all banks. */
#define AHEAD_ROW(chunks)  ((u32)(chunks) * 32 + 32)
#define AHEAD_SPAN(chunks) (PAIR_BLOCK / 2 * AHEAD_ROW(chunks))
#define AHEAD_OF(chunks)   (2 * AHEAD_SPAN(chunks) / 16)

/* Are whole spans all that rows have, and 16 rows there for each warp? */
INLINE int has_spans(const struct k3_cast_ask *ask, const int chunks)
{
    return HAS_AHEAD && ask->cols % SPAN_OF(chunks) == 0 && ask->cols >> 28 == 0 &&
           (blockIdx.x + 1) * (u64)(PAIR_BLOCK / 2) <= ask->row_count;
}

/* Bytes in front of a piece of 16 bytes.  A warp's 16 rows of a span lie one behind the other. */
INLINE u32 piece_at(const int chunks, u32 row, u32 piece)
{
    return (threadIdx.x / 32 * 16 + row) * AHEAD_ROW(chunks) + piece * 16;
}

#define WARP_ROWS(chunks) (16 / (u32)(chunks)) /* that a warp copies at once */

/* Spans from `col` on are what is asked for next. */
INLINE void begin_stream(struct work *work, const int kind, const int chunks, u64 col)
{
    const struct k3_cast_ask *ask = work->ask;
    const u32 pieces = 2 * (u32)chunks, piece = threadIdx.x % pieces;
    const u32 row = threadIdx.x % 32 / pieces;
    const u64 first = (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 32 * 16 + row;
    struct stream *stream = &work->stream;
    stream->from = ask->x + (first * ask->cols + col + piece * EIGHT) * 2;
    stream->codes =
        work->place.row * ask->cols / (IS_NIBBLE(kind) ? 2 : 1) + work->place.half * 16;
    stream->step = (u32)ask->cols * 2 * WARP_ROWS(chunks);
    stream->to = piece_at(chunks, row, piece);
    stream->mine = piece_at(chunks, threadIdx.x / 2 % 16, work->place.half);
    KEEP_LONG(stream->from);
    KEEP_LONG(stream->codes);
    KEEP_WORD(stream->step);
    KEEP_WORD(stream->to);
    KEEP_WORD(stream->mine);
}

/* A span into one of two places.  Threads copy what lies together, not what they will read: so each
 * line of 128 bytes is asked for once. */
INLINE void ask_ahead(const struct stream *stream, const int chunks, uint4 *ahead, u32 turn)
{
    u8 *to = (u8 *)ahead + turn * AHEAD_SPAN(chunks) + stream->to;
    u64 from = stream->from;
#pragma unroll
    for (u32 c = 0; c < (u32)chunks; c++, from += stream->step)
        copy_ahead((uint4 *)(to + c * WARP_ROWS(chunks) * AHEAD_ROW(chunks)), (const uint4 *)from);
}

/* A span that is there. */
INLINE void take_span(struct work *work, const int chunks, const uint4 *ahead, u32 turn)
{
    const u8 *from = (const u8 *)ahead + turn * AHEAD_SPAN(chunks) + work->stream.mine;
    if (!work->is_whole) {
        read_span(work, chunks);
        return;
    }
#pragma unroll
    for (int c = 0; c < chunks; c++)
        put_words(work->x[c], *(const uint4 *)(from + 32 * c));
}

/* The span at work->col; and that at `stream.from` is begun, if `is_asked`.  `ahead` has two
 * places, `turn` says which is this one's.  Other rows are read as they are needed. */
INLINE void next_span(struct work *work, const int chunks, uint4 *ahead, u32 turn, int is_asked)
{
    if (work->is_whole) {
        MEET_WARP(); /* what is filled now may still be read by who is late */
        if (is_asked)
            ask_ahead(&work->stream, chunks, ahead, turn ^ 1);
        end_batch();
        await_batches(1);
        MEET_WARP();
    }
    take_span(work, chunks, ahead, turn);
}

/* The span at `col` is begun. */
INLINE void begin_ahead(struct work *work, const int kind, const int chunks, uint4 *ahead, u64 col)
{
    begin_stream(work, kind, chunks, col);
    if (work->is_whole)
        ask_ahead(&work->stream, chunks, ahead, 0);
    end_batch();
}

/* A span by the scales of its chunks, of which at least one is not quick. */
INLINE void encode_slowly(struct work *work, const int kind, const int chunks)
{
    struct slow_span slow; /* a copy, so that all else stays in registers */
    slow.sums = work->sums;
#pragma unroll
    for (int c = 0; c < chunks; c++) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            slow.x[c][k] = work->x[c][k];
        slow.scale[c] = work->by[c].scale;
    }
    span_slowly(kind, chunks, &slow);
    work->sums = slow.sums;
#pragma unroll
    for (int c = 0; c < chunks; c++) {
        work->out[c][0] = slow.out[c][0];
        work->out[c][1] = slow.out[c][1];
    }
}

/* A span by the scales of its chunks. */
INLINE void encode_span(struct work *work, const int kind, const int by_what, const int chunks)
{
    if (!work->all_quick) {
        encode_slowly(work, kind, chunks);
        return;
    }
#pragma unroll
    for (int c = 0; c < chunks; c++)
        eight_quickly(kind, by_what, work->x[c], work->by[c], &work->sums, work->out[c]);
}

/* Codes of a whole span, of four bits: the two threads of a row have every other piece of it; each
 * takes one half of the span off the other, so that it writes 16 bytes at a time, `to` its half. */
INLINE void write_span(const int chunks, u8 *to, struct place place, u32 out[CHUNKS][2])
{
    u32 mine[CHUNKS]; /* words in their order */
#pragma unroll
    for (int c = 0; c < chunks / 2; c++) {
        u32 keep = place.half ? out[c + chunks / 2][0] : out[c][0];
        u32 give = place.half ? out[c][0] : out[c + chunks / 2][0];
        u32 got = EXCHANGE(give, 1);
        mine[2 * c] = place.half ? got : keep;
        mine[2 * c + 1] = place.half ? keep : got;
    }
    if (!place.is_row)
        return;
    uint4 *at = (uint4 *)to;
#pragma unroll
    for (int q = 0; q < chunks / 4; q++) {
        uint4 v;
        v.x = mine[4 * q], v.y = mine[4 * q + 1], v.z = mine[4 * q + 2], v.w = mine[4 * q + 3];
        at[q] = v;
    }
}

/* Two chunks of codes to 16 bytes of each of the two threads: the first writes the first chunk, the
 * second the other, so that no piece of 32 bytes is written twice.  `to`: its 16 bytes. */
INLINE void write_chunks(u8 *to, struct place place, const u32 *a, const u32 *b)
{
    u32 got[2];
#pragma unroll
    for (int k = 0; k < 2; k++)
        got[k] = EXCHANGE(place.half ? a[k] : b[k], 1);
    uint4 v;
    v.x = place.half ? got[0] : a[0], v.y = place.half ? got[1] : a[1];
    v.z = place.half ? b[0] : got[0], v.w = place.half ? b[1] : got[1];
    if (place.is_row)
        *(uint4 *)to = v;
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

INLINE void write_codes(struct work *work, const int kind, const int chunks)
{
    const struct k3_cast_ask *ask = work->ask;
    const struct place place = work->place;
    if (work->is_whole || ask->cols % SPAN_OF(chunks) == 0) {
        u8 *to = (u8 *)ask->weight + work->stream.codes;
        if (IS_NIBBLE(kind)) {
            write_span(chunks, to + work->col / 2 + place.half * (u32)(chunks / 4 - 1) * 16, place,
                       work->out);
            return;
        }
#pragma unroll
        for (int c = 0; c < chunks; c += 2)
            write_chunks(to + work->col + c * 2 * EIGHT, place, work->out[c], work->out[c + 1]);
        return;
    }
#pragma unroll
    for (int c = 0; c < chunks; c++)
        if (place.is_row)
            write_eight(ask, IS_NIBBLE(kind) ? 1 : 2, place.row,
                        work->col + (u32)c * 16 + place.half * EIGHT, work->out[c]);
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

/* What was found in the row. */
INLINE void end_work(const struct work *work, struct k3_cast_result *shared)
{
    const struct sums *sums = &work->sums;
    const struct counts counts = work->counts;
    double x2 = add_lanes(sums->x2, work->place.half);
    double err2 = add_lanes(sums->err2, work->place.half);
    double most = fmax((double)sums->most, sums->most_slow);
    if (!work->place.is_row)
        return;
    if (work->place.half) {
        add_square(shared->x2, x2);
        add_square(shared->err2, err2);
    }
    if (most > 0.0)
        atomicMax(&shared->max_abs_error, (u64)__double_as_longlong(most));
    if (counts.saturated)
        atomicAdd(&shared->saturated_groups, (u64)counts.saturated);
    if (counts.zero)
        atomicAdd(&shared->zero_groups, (u64)counts.zero);
    if (counts.refused)
        atomicAdd(&shared->refused, (u64)counts.refused);
}

#endif
