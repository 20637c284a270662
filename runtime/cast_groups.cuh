/* Kernels of casts out of BF16 to formats with groups of 16, 32 or 128 columns: MXFP4, MXFP8,
 * NVFP4, INT4, INT8.  Part of cast.cu, see there. */
#ifndef K3_CAST_GROUPS_CUH
#define K3_CAST_GROUPS_CUH

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

/* A scale of NVFP4 times 2^126, which is what takes a code's bits to what they stand for, and the
 * least BF16 magnitudes that become code 1, 2 ... 7, each twice. */
struct nvfp4_scale {
    float raised;
    u32 least[7];
};
#define NVFP4_QUICK_MOST 2.0f /* that times 2^126 is finite */

/* What is found once for a group of threads. */
struct nvfp4_table {
    struct nvfp4_scale by[NVFP4_BYTES]; /* by scale byte */
    /* By scale byte, BF16 magnitudes: the last of a group that is not saturated, and in the upper
     * half, the first that is not quick. */
    u32 limit[NVFP4_BYTES];
    int byte[128]; /* of amax by its fraction, less 8 for each binade */
};

/* What is the same for all groups. */
struct rule {
    u32 carry;                   /* MX */
    struct by amax_by;           /* by what amax is divided */
    float global;                /* NVFP4 */
    u32 is_modelopt;             /* NVFP4 */
};

INLINE struct rule rule_of(const struct k3_cast_ask *ask, const int format)
{
    struct rule rule;
    rule.carry = rule_carry(KIND_OF(format), ask->rule);
    rule.global = ask->global;
    rule.is_modelopt = ask->is_modelopt;
    rule.amax_by = by_scale(format == INT8_G   ? 127.5f
                            : IS_INT4(format) ? 7.5f
                            : rule.is_modelopt ? E2M1_MOST * rule.global
                                               : E2M1_MOST);
    return rule;
}

/* The least BF16 magnitude, its code, whose quotient is above `limit`, or is it if that counts. */
INLINE u32 least_above(float scale, float limit, int is_limit)
{
    u32 low = 0, high = BF16_INF; /* not above, above */
    if (scale >= QUICK_LEAST && scale <= QUICK_MOST) {
        low = (bits_of(limit * scale) >> 16) - 1;
        high = low + 2;
    }
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        float q = float_of(middle << 16) / scale;
        if (q > limit || (is_limit && q >= limit))
            high = middle;
        else
            low = middle;
    }
    return high;
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

INLINE float nvfp4_divisor(const struct k3_cast_ask *ask, u32 byte)
{
    float value = e4m3_value(byte);
    float scale = ask->is_modelopt ? value * ask->global : value / ask->global;
    return scale > 0.0f ? scale : 0x1p-149f;
}

/* Scales of NVFP4 are few: what follows from each is found once for a group of threads. */
INLINE void make_nvfp4(const struct k3_cast_ask *ask, const struct rule *rule,
                       struct nvfp4_table *table)
{
    for (u32 byte = threadIdx.x; byte < NVFP4_BYTES; byte += blockDim.x) {
        float scale = nvfp4_divisor(ask, byte);
        int is_quick = scale >= QUICK_LEAST && scale < NVFP4_QUICK_MOST;
        table->by[byte].raised = scale * 0x1p126f;
        table->limit[byte] = (least_above(scale, E2M1_MOST, 0) - 1) |
                             (is_quick ? least_above(scale, 1.7f * E2M1_MOST, 0) << 16 : 0);
        for (u32 code = 1; is_quick && code < 8; code++) {
            /* Half-way between two magnitudes, the even of which it becomes. */
            float half = 0.5f * (e2m1_value(code - 1) + e2m1_value(code));
            table->by[byte].least[code - 1] = least_above(scale, half, code % 2 == 0) * 0x10001u;
        }
    }
    /* An amax whose scale is about 16 before it is rounded. */
    const u32 global = bits_of(ask->global) >> 23;
    const u32 binade = (ask->is_modelopt ? global : 254 - global) + 6;
    const int is_usual = global > 67 && global < 187; /* nothing on the way is subnormal */
    for (u32 i = threadIdx.x; i < 128; i += blockDim.x)
        table->byte[i] = is_usual ? (int)nvfp4_byte(float_of(binade << 23 | i << 16), rule) -
                                        8 * (int)binade
                                  : -8 * 256;
}

/* The scale of a group as it is stored, and by what its values are divided. */
INLINE u32 group_scale(const int format, u32 amax, const struct rule *rule, struct by *by)
{
    u32 stored;
    if (IS_MX(format)) {
        stored = scale_byte(KIND_OF(format), rule->carry, amax << 16);
        *by = by_byte(stored);
    } else {
        stored = bf16_code(ratio(float_of(amax << 16), rule->amax_by));
        stored = stored ? stored : 0x3c00u; /* 2^-7 */
        *by = by_scale(float_of(stored << 16));
    }
    return stored;
}

/* Largest quotient of a group, as the CPU compares it; exact for MX, or so small that this does not
 * matter. */
INLINE float largest_quotient(const int format, u32 amax, struct by by, u32 stored)
{
    float a = float_of(amax << 16);
    if (IS_MX(format))
        return a * float_of(stored < 254 ? (254 - stored) << 23 : 0x00400000u);
    return ratio(a, by);
}

/* Bytes of scales in a span, and spans that have 16 of them. */
#define SCALE_BYTES_OF(format)                                                                     \
    (CHUNKS_OF(format) / EACH_OF(format) * (IS_WIDE(format) ? 2 : 1))
#define KEPT_SPANS_OF(format) (16 / SCALE_BYTES_OF(format))

/* Scales of spans that are written together, a row's in its first thread's words. */
struct kept {
    u32 half; /* of a word, in its lower bits */
    u32 *words;
};

/* The scales of a whole span, in `word`: written with those of its neighbours, if rows have such
 * pieces of 16 bytes, so that few pieces of memory are written in part. */
INLINE void keep_scales(const struct work *work, const int format, u32 word, struct kept *kept)
{
    const int bytes = SCALE_BYTES_OF(format), spans = KEPT_SPANS_OF(format);
    const u64 span = work->col / SPAN_OF(CHUNKS_OF(format));
    const u32 k = (u32)span % (u32)spans;
    if (bytes == 2 && k % 2 == 0) {
        kept->half = word;
        return;
    }
    kept->words[k / (4 / (u32)bytes)] = bytes == 2 ? kept->half | word << 16 : word;
    if (k + 1 < (u32)spans)
        return;
    const u64 row_spans = work->ask->cols / SPAN_OF(CHUNKS_OF(format));
    uint4 v;
    v.x = kept->words[0], v.y = kept->words[1], v.z = kept->words[2], v.w = kept->words[3];
    ((uint4 *)work->ask->scale)[(work->place.row * row_spans + span) / (u32)spans] = v;
}

INLINE int keeps_scales(const struct k3_cast_ask *ask, const int format)
{
    return ask->cols % (SPAN_OF(CHUNKS_OF(format)) * (u32)KEPT_SPANS_OF(format)) == 0;
}

/* Scales of a span: together where a row of them has no rest. */
INLINE void write_scales(const struct work *work, const int format, const u32 *stored,
                         struct kept *kept)
{
    const struct k3_cast_ask *ask = work->ask;
    const u64 col = work->col;
    const int chunks = CHUNKS_OF(format), each = EACH_OF(format), groups = chunks / each;
    const int bits = IS_WIDE(format) ? 16 : 8;
    if (!work->place.is_row || work->place.half)
        return;
    if (work->is_kept) {
        u32 word = 0;
#pragma unroll
        for (int g = 0; g < groups; g++)
            word |= stored[g] << (bits * g);
        keep_scales(work, format, word, kept);
        return;
    }
    const u64 at = (work->place.row * ask->cols + col) / (u32)(each * 2 * EIGHT);
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

/* Scales of groups of 32 and 128 columns: both threads of a row do the same. */
INLINE void find_scales(struct work *work, const int format, const int is_mse,
                        const struct rule *rule, u32 *stored)
{
    const int kind = KIND_OF(format), each = EACH_OF(format);
    work->all_quick = 1;
#pragma unroll
    for (int g = 0; g < CHUNKS_OF(format) / each; g++) {
        const int first = g * each;
        u32 own = 0, amax;
        struct by by;
#pragma unroll
        for (int c = first; c < first + each; c++)
            own = most_u32(own, magnitude_of(work->x[c]));
        amax = most_u32(own, EXCHANGE(own, 1));
        stored[g] = group_scale(format, amax, rule, &by);
        if (is_mse) {
            stored[g] = mse_byte(kind, &work->x[first], work->place.half, stored[g], amax);
            by = by_byte(stored[g]);
        }
        float q_most = largest_quotient(format, amax, by, stored[g]);
        work->all_quick &= is_quick(kind, by, q_most);
        work->amax = most_u32(work->amax, amax);
        work->counts.saturated += q_most > most_of(kind);
        work->counts.zero += amax == 0;
#pragma unroll
        for (int c = first; c < first + each; c++)
            work->by[c] = by;
    }
}

/* A row's counts.  Groups behind its end, in its last span, were counted as zeros. */
INLINE void end_counts(struct work *work, const int format)
{
    const u32 half = work->place.half, columns = EACH_OF(format) * 2 * EIGHT;
    const u32 first = format == NVFP4 && half ? 2 : 0;
    const int count = format == NVFP4 ? 2 : CHUNKS_OF(format) / EACH_OF(format);
    work->counts.refused = work->amax >= BF16_INF;
    if (format != NVFP4 && half)
        work->counts.zero = work->counts.saturated = 0; /* the first thread has them */
    else
        for (u32 g = first; g < first + (u32)count; g++)
            work->counts.zero -= work->col - SPAN_OF(CHUNKS_OF(format)) + g * columns >=
                                 work->ask->cols;
}

/* Two of nvfp4_byte. */
APART u32 two_nvfp4_bytes(u32 amax, u32 amax_more, const struct k3_cast_ask *ask)
{
    const struct rule rule = rule_of(ask, NVFP4);
    return (nvfp4_byte(float_of(amax << 16), &rule) & 127) |
           (nvfp4_byte(float_of(amax_more << 16), &rule) & 127) << 8;
}

/* As nvfp4_byte, if it is at least 8.  A binade more is one more of the scale, too, as long as that
 * is normal. */
INLINE int quick_nvfp4_byte(u32 amax, const struct nvfp4_table *table)
{
    int byte = table->byte[amax & 127] + (int)(amax >> 7) * 8;
    return byte < NVFP4_BYTES - 2 ? byte : NVFP4_BYTES - 2;
}

/* Scales of NVFP4, four groups of a chunk in each thread: the first thread of a row does the first
 * two, the second the others, and *counted has these two besides all before.  Then values have lost
 * their signs. */
INLINE void find_nvfp4(struct work *work, const struct nvfp4_table *table, u32 *stored,
                       struct counts *counted)
{
    const u32 half = work->place.half;
    u32 own[4], amax[2]; /* the larger of upper and of lower halves at first */
#pragma unroll
    for (int g = 0; g < 4; g++) {
        u32 *x = work->x[g];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[k] &= MAGNITUDES;
            KEEP_WORD(x[k]); /* or it is done wherever they are used */
        }
        own[g] = most_halves(most_halves(x[0], x[1]), most_halves(x[2], x[3]));
    }
#pragma unroll
    for (int g = 0; g < 2; g++) {
        u32 got = EXCHANGE(half ? own[g] : own[g + 2], 1);
        amax[g] = most_of_halves(most_halves(half ? own[g + 2] : own[g], got));
    }
    int byte = quick_nvfp4_byte(amax[0], table), more = quick_nvfp4_byte(amax[1], table);
    u32 mine = (u32)byte | (u32)more << 8;
    if ((byte < more ? byte : more) < 8)
        mine = two_nvfp4_bytes(amax[0], amax[1], work->ask);
    work->amax = most_u32(work->amax, most_u32(amax[0], amax[1]));
    *counted = work->counts;
    u32 below = 1u << 31; /* the sign of a difference, if it is that of both */
#pragma unroll
    for (int g = 0; g < 2; g++) {
        const u32 limit = table->limit[mine >> (8 * g) & 127];
        counted->saturated += ((limit & 0xffff) - amax[g]) >> 31;
        counted->zero += (amax[g] - 1) >> 31;
        below &= amax[g] - (limit >> 16);
    }
    work->all_quick = ALL_OF_WARP(below != 0);
    const u32 all = bytes_of(mine, EXCHANGE(mine, 1), half ? 0x1054 : 0x5410);
#pragma unroll
    for (int g = 0; g < 4; g++)
        stored[g] = all >> (8 * g) & 127;
}

INLINE u32 select_bits(u32 mask, u32 a, u32 b)
{
    return (mask & a) | (~mask & b);
}

/* Codes of two magnitudes, by three steps between the least that become each; in front of 6 bits of
 * zeros.  Ones in both halves are an integer that this product takes to 1 in each half, whichever
 * of them are there: GPUs have little to do where they multiply, and too much where they select. */
INLINE u32 nvfp4_pair(u32 a, const u32 *least)
{
    const u32 one_each = 0u - (0x10001u << 6);
    const u32 four = pair_at_least(a, least[3]);
    const u32 two = pair_at_least(a, select_bits(four, least[5], least[1]));
    const u32 one = pair_at_least(a, select_bits(two, select_bits(four, least[6], least[2]),
                                                 select_bits(four, least[4], least[0])));
    return fused_word(four, one_each * 4, fused_word(two, one_each * 2, one * one_each));
}

/* As eight_quickly, whose errors are exact here too.  Of magnitudes, to codes without signs. */
INLINE void eight_of_nvfp4(const u32 *x, const struct nvfp4_scale *by, struct sums *sums, u32 *out)
{
    u32 code[4], least[7];
#pragma unroll
    for (int i = 0; i < 7; i++)
        least[i] = by->least[i];
#pragma unroll
    for (int k = 0; k < EIGHT / 2; k++) {
        const u32 pair = x[k];
        code[k] = nvfp4_pair(pair, least);
        /* As FP32 bits a code is what it stands for times 2^-126. */
        const u32 a_bits[2] = {pair << 16, pair_upper(pair)};
        const u32 code_bits[2] = {code[k] << 16, pair_upper(code[k])};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float a = float_of(a_bits[i]);
            float d = a - PRODUCT(float_of(code_bits[i]), by->raised);
            double wide = (double)d, x_wide = (double)a;
            sums->x2[2 * k + i] = __fma_rn(x_wide, x_wide, sums->x2[2 * k + i]);
            sums->err2[2 * k + i] = __fma_rn(wide, wide, sums->err2[2 * k + i]);
            sums->most = fmaxf(sums->most, fabsf(d));
        }
    }
    out[0] = join_pairs(code);
    out[1] = 0;
}

/* What a group of threads shares; the last for NVFP4 alone. */
struct group_shared {
    struct k3_cast_result *result;
    u32 *kept;
    uint4 *ahead;
    struct nvfp4_table *nvfp4;
};

/* `turn` as next_span was given it: values with their signs are taken once more. */
INLINE void encode_nvfp4(struct work *work, const struct group_shared *shared, u32 turn,
                         const u32 *stored)
{
    if (work->all_quick) {
#pragma unroll
        for (int c = 0; c < CHUNKS_OF(NVFP4); c++)
            eight_of_nvfp4(work->x[c], &shared->nvfp4->by[stored[c]], &work->sums, work->out[c]);
    }
    take_span(work, CHUNKS_OF(NVFP4), shared->ahead, turn);
    if (work->all_quick) {
#pragma unroll
        for (int c = 0; c < CHUNKS_OF(NVFP4); c++)
            work->out[c][0] |= nibble_signs(work->x[c]);
        return;
    }
#pragma unroll
    for (int c = 0; c < CHUNKS_OF(NVFP4); c++)
        work->by[c].scale = nvfp4_divisor(work->ask, stored[c]);
    encode_slowly(work, E2M1, CHUNKS_OF(NVFP4));
}

#define PLACES_OF(format) (HAS_AHEAD ? AHEAD_OF(CHUNKS_OF(format)) : 1)

#define KEPT_WORDS        (PAIR_BLOCK / 2 * 4)

/* Does `format` have a loop for whole spans, all of them quick, whose scales are written together?
 * It needs less registers, of which NVFP4 has none to spare. */
#define HAS_FAST(format) ((format) == NVFP4)

/* Spans from work->col on.  Of those that are fast: until one of the warp's is not quick. */
INLINE void grouped_spans(struct work *work, const int format, const int is_mse, const int is_fast,
                          const struct rule *rule, const struct group_shared *shared)
{
    const int kind = KIND_OF(format), chunks = CHUNKS_OF(format);
    const struct k3_cast_ask *ask = work->ask;
    struct kept kept = {0, shared->kept + threadIdx.x / 2 * 4};
    u32 turn = 0;
    begin_ahead(work, kind, chunks, shared->ahead, work->col);
    for (; work->col < ask->cols; work->col += SPAN_OF(chunks), turn ^= 1) {
        u32 stored[GROUPS_MOST];
        work->stream.from += 2 * SPAN_OF(chunks);
        next_span(work, chunks, shared->ahead, turn, work->col + SPAN_OF(chunks) < ask->cols);
        if (format == NVFP4) {
            struct counts counted;
            find_nvfp4(work, shared->nvfp4, stored, &counted);
            if (is_fast && !work->all_quick)
                break;
            work->counts = counted;
            work->all_quick |= is_fast;
            encode_nvfp4(work, shared, turn, stored);
        } else {
            find_scales(work, format, is_mse, rule, stored);
            encode_span(work, kind, IS_MX(format) ? BY_POW2 : BY_BF16, chunks);
        }
        write_scales(work, format, stored, &kept);
        write_codes(work, kind, chunks);
    }
    await_batches(0); /* a place may be filled once more */
    MEET_WARP();
}

INLINE void grouped(const struct k3_cast_ask *ask, const int format, const int is_mse,
                    const struct group_shared *shared)
{
    const struct rule rule = rule_of(ask, format);
    struct work work;
    if (format == NVFP4)
        make_nvfp4(ask, &rule, shared->nvfp4);
    begin_result(shared->result);
    begin_work(ask, (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2, &work);
    work.col = 0;
    work.is_whole = has_spans(ask, CHUNKS_OF(format));
    work.is_kept = keeps_scales(ask, format);
    if (HAS_FAST(format) && work.is_whole && work.is_kept) {
        const struct place place = work.place;
        work.is_whole = work.is_kept = work.place.is_row = 1; /* constants there */
        work.place.row = (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2;
        grouped_spans(&work, format, is_mse, 1, &rule, shared);
        work.place = place;
    }
    if (!HAS_FAST(format) || work.col < ask->cols)
        grouped_spans(&work, format, is_mse, 0, &rule, shared);
    end_counts(&work, format);
    end_work(&work, shared->result);
}

/* `groups` of threads on a processor of an H200: what registers allow, see ptxas -v. */
#define GROUPED_KERNEL(name, format, is_mse, groups)                                               \
    KERNEL __launch_bounds__(PAIR_BLOCK, groups) name(const struct k3_cast_ask ask)                \
    {                                                                                              \
        __shared__ struct k3_cast_result result;                                                   \
        __shared__ u32 kept[KEPT_WORDS];                                                           \
        __shared__ uint4 ahead[PLACES_OF(format)];                                                 \
        const struct group_shared shared = {&result, kept, ahead, 0};                              \
        grouped(&ask, format, is_mse, &shared);                                                    \
        end_result(&ask, &result);                                                                 \
    }

GROUPED_KERNEL(k3_cast_mxfp4, MXFP4, 0, 4)
GROUPED_KERNEL(k3_cast_mxfp8, MXFP8, 0, 6)
GROUPED_KERNEL(k3_cast_mxfp4_floor, MXFP4_CLIP, 0, 4)
GROUPED_KERNEL(k3_cast_mxfp4_mse, MXFP4_CLIP, 1, 3)
GROUPED_KERNEL(k3_cast_mxfp8_mse, MXFP8, 1, 3)
GROUPED_KERNEL(k3_cast_int4, INT4_G, 0, 5)
GROUPED_KERNEL(k3_cast_int4_g128, INT4_G128, 0, 4)
GROUPED_KERNEL(k3_cast_int8, INT8_G, 0, 4)

/* Five groups of threads on a processor of an H200: 52.4 % of its bandwidth, six, which leaves too
 * few registers, 50.4 %. */
KERNEL __launch_bounds__(PAIR_BLOCK, 5) k3_cast_nvfp4(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result result;
    __shared__ u32 kept[KEPT_WORDS];
    __shared__ uint4 ahead[PLACES_OF(NVFP4)];
    __shared__ struct nvfp4_table nvfp4;
    const struct group_shared shared = {&result, kept, ahead, &nvfp4};
    grouped(&ask, NVFP4, 0, &shared);
    end_result(&ask, &result);
}

#endif
