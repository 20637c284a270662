/* Kernels of casts out of MXFP4: formats/cast_mxfp4.c.  Part of cast.cu, see there. */
#ifndef K3_CAST_MX_CUH
#define K3_CAST_MX_CUH

/* ---- out of MXFP4 ---- */

/* A thread takes eight codes, four bytes: four threads a group of 32, whose sums they exchange. */
#define MX_BLOCK     256
#define MX_READS     8 /* of one thread, all begun before the first is needed */
#define MX_PASS      (MX_BLOCK * MX_READS)
#define MX_WORDS     4 /* of eight codes, in a group */
#define TILE_BLOCKS  2
#define TILE_GROUPS  (TILE_BLOCKS * STRIPE / 32) /* in a row of a tile */
#define TILE_READS   (STRIPE * TILE_GROUPS / MX_BLOCK)
#define E8M0_NAN     0xffu
#define BF16_MAX     252 /* as in cast_mxfp4.c, also below */
#define BF16_MOST    0x7f7fu
#define BLOCK_SPREAD 14
#define BLOCK_TOP    6
#define BLOCK_ROWS   32 /* of the table of shifts */
#define NVFP4_TOP    8
#define NVFP4_SPREAD 17

/* Neighbours often have the same scale and would wait for each other: so they add to different
 * copies, which lie in different banks. */
#define COPIES     4
#define COPY_WORDS (256 + 8)

/* What a group of threads shares. */
struct mx_shared {
    struct k3_cast_result result;
    u32 by_scale[COPIES][COPY_WORDS]; /* sums of (2 * value)^2; cast_call.c sees that they fit */
    u32 table[BLOCK_ROWS][2]; /* FP8 blocks: E4M3 bytes of magnitudes 0 ... 7 by shift */
    u32 slot[3][TILE_BLOCKS];
};

INLINE void begin_mx(struct mx_shared *shared)
{
    for (u32 i = threadIdx.x; i < COPIES * COPY_WORDS; i += MX_BLOCK)
        ((u32 *)shared->by_scale)[i] = 0;
    begin_result(&shared->result);
}

INLINE void end_mx(const struct k3_cast_ask *ask, struct mx_shared *shared)
{
    __syncthreads();
    for (u32 byte = threadIdx.x; byte < E8M0_NAN; byte += MX_BLOCK) {
        u64 sum = 0;
        for (u32 copy = 0; copy < COPIES; copy++)
            sum += shared->by_scale[copy][byte];
        if (sum) /* in units of 2^(2 (byte - 127) - 2) */
            add_at(shared->result.x2, sum, 2 * (int)byte - 256 - K3_CAST_UNIT);
    }
    end_result(ask, &shared->result);
}

/* Four bytes, each the one of eight (low: 0 to 3) that a nibble names; bits 3 are 0. */
INLINE u32 pick(u32 low, u32 high, u32 nibbles)
{
#ifdef __CUDA_ARCH__
    u32 bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(nibbles));
    return bytes;
#else
    u64 table = (u64)high << 32 | low;
    u32 bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= ((u32)(table >> (nibbles >> (4 * i) & 7) * 8) & 0xff) << (8 * i);
    return bytes;
#endif
}

#define PLAIN_CODES 0x77777777u
#define BYTE_SIGNS  0x80808080u

/* Eight codes' signs, each the highest bit of a byte; the other bits are noise. */
INLINE uint2 sign_bytes(u32 codes)
{
    uint2 bytes;
    bytes.x = bytes_of(codes << 4, codes, 0x5140);
    bytes.y = bytes_of(codes << 4, codes, 0x7362);
    return bytes;
}

/* Bytes of nothing but their highest bit. */
INLINE u32 spread_signs(u32 bytes)
{
#ifdef __CUDA_ARCH__
    u32 all;
    asm("prmt.b32 %0, %1, %1, 0xba98;" : "=r"(all) : "r"(bytes));
    return all;
#else
    return (bytes >> 7 & 0x01010101u) * 0xff;
#endif
}

/* The squares of four bytes, added to `sum`. */
INLINE u32 add_squares(u32 sum, u32 bytes)
{
#ifdef __CUDA_ARCH__
    return __dp4a(bytes, bytes, sum);
#else
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

/* Sums of (2 * value)^2 of eight codes, added to `sum`. */
INLINE u32 add_word(u32 sum, u32 codes)
{
    const u32 plain = codes & PLAIN_CODES;
    return add_squares(add_squares(sum, pick(TWICE_LOW, TWICE_HIGH, plain)),
                       pick(TWICE_LOW, TWICE_HIGH, plain >> 16));
}

INLINE u32 add_words(uint4 codes)
{
    return add_word(add_word(add_word(add_word(0, codes.x), codes.y), codes.z), codes.w);
}

/* Of a whole group: the same in its four threads. */
INLINE u32 group_squares(u32 codes)
{
    u32 sum = add_word(0, codes);
    sum += EXCHANGE(sum, 1);
    return sum + EXCHANGE(sum, 2);
}

/* Eight codes as bytes of a table of magnitudes, with the sign in front. */
INLINE uint2 signed_bytes(u32 low, u32 high, u32 codes)
{
    const u32 plain = codes & PLAIN_CODES;
    uint2 bytes = sign_bytes(codes);
    bytes.x = pick(low, high, plain) | (bytes.x & BYTE_SIGNS);
    bytes.y = pick(low, high, plain >> 16) | (bytes.y & BYTE_SIGNS);
    return bytes;
}

/* Eight codes as twice their values, in bytes. */
INLINE uint2 int8_bytes(u32 codes)
{
    const u32 plain = codes & PLAIN_CODES, rest = plain >> 16;
    uint2 bytes = sign_bytes(codes);
    const u32 less_x = spread_signs(bytes.x), less_y = spread_signs(bytes.y);
    bytes.x = (pick(TWICE_LOW, TWICE_HIGH, plain) & ~less_x) |
              (pick(LESS_LOW, LESS_HIGH, plain) & less_x);
    bytes.y = (pick(TWICE_LOW, TWICE_HIGH, rest) & ~less_y) |
              (pick(LESS_LOW, LESS_HIGH, rest) & less_y);
    return bytes;
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
        atomicAdd(&shared->by_scale[w->word / MX_WORDS % COPIES][w->scale], w->sum);
}

INLINE void end_mx_counts(struct mx_shared *shared, struct counts counts)
{
    if (counts.zero)
        atomicAdd(&shared->result.zero_groups, (u64)counts.zero);
    if (counts.refused)
        atomicAdd(&shared->result.refused, (u64)counts.refused);
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
#pragma unroll 1
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
        struct mx_word copy = *w;
        u32 slow[4];
        bf16_slowly(ask, shared, &copy, slow);
#pragma unroll
        for (int k = 0; k < 4; k++)
            out[k] = slow[k];
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
    ((uint2 *)ask->weight)[w->word] = int8_bytes(w->codes);
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
APART uint4 nvfp4_slowly(const struct k3_cast_ask *ask, struct mx_shared *shared,
                         const struct mx_word *w, int max, uint4 codes)
{
    const u32 words[MX_WORDS] = {codes.x, codes.y, codes.z, codes.w};
    int scale = (int)w->scale, used = scale > max ? max : max - NVFP4_SPREAD;
    u32 out[MX_WORDS] = {0, 0, 0, 0};
    meet_breach(ask, shared, w);
#pragma unroll 1
    for (int i = 0; i < MX_WORDS * EIGHT; i++) {
        u32 code = words[i / EIGHT] >> (4 * (i % EIGHT)) & 15;
        double x = e2m1_double(code, scale);
        if (ask->oow == OOW_REQUANT)
            code = e2m1_code((float)(x * double_pow2(127 - used)));
        out[i / EIGHT] |= code << (4 * (i % EIGHT));
        add_breach(shared, x, e2m1_double(code, used));
    }
    uint4 all;
    all.x = out[0], all.y = out[1], all.z = out[2], all.w = out[3];
    return all;
}

/* A thread takes a group here: no more than its scale is made anew, so memory is all. */
INLINE void mx_nvfp4(const struct k3_cast_ask *ask, struct mx_shared *shared)
{
    const u64 groups = ask->row_count * (ask->cols / (MX_WORDS * EIGHT));
    const int max = nvfp4_max(ask);
    struct counts counts = {0, 0, 0};
    for (u64 first = (u64)blockIdx.x * MX_PASS; first < groups; first += (u64)gridDim.x * MX_PASS) {
        uint4 codes[MX_READS];
        u32 scale[MX_READS];
#pragma unroll
        for (int k = 0; k < MX_READS; k++) {
            u64 g = first + (u32)k * MX_BLOCK + threadIdx.x;
            g = g < groups ? g : groups - 1;
            codes[k] = ((const uint4 *)ask->x)[g];
            scale[k] = ((const u8 *)ask->x_scale)[g];
        }
#pragma unroll
        for (int k = 0; k < MX_READS; k++) {
            const u64 g = first + (u32)k * MX_BLOCK + threadIdx.x;
            uint4 out = codes[k];
            struct mx_word w = {g * MX_WORDS, 0, scale[k], 0, 1};
            w.sum = add_words(out);
            if (g >= groups)
                continue;
            count_group(shared, &w, &counts);
            if (w.sum && ((int)w.scale > max || max - (int)w.scale > NVFP4_SPREAD)) {
                struct mx_word copy = w; /* so that the word itself stays in registers */
                out = nvfp4_slowly(ask, shared, &copy, max, out);
            }
            ((uint4 *)ask->weight)[g] = out;
            ((u16 *)ask->scale)[g] = (u16)(nvfp4_scale((int)w.scale, max) * 0x101);
        }
    }
    end_mx_counts(shared, counts);
}

/* -- group by group, whatever the rows -- */

#define TO_BF16  0
#define TO_MXFP8 1
#define TO_INT8  2

INLINE void mx_groups(const struct k3_cast_ask *ask, const int to, struct mx_shared *shared)
{
    const u64 words = ask->row_count * (ask->cols / EIGHT);
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
            else
                to_int8(ask, &w);
        }
    }
    end_mx_counts(shared, counts);
}

#define MX_KERNEL(name, work)                                                                      \
    KERNEL __launch_bounds__(MX_BLOCK) name(const struct k3_cast_ask ask)                          \
    {                                                                                              \
        __shared__ struct mx_shared shared;                                                        \
        begin_mx(&shared);                                                                         \
        work;                                                                                      \
        end_mx(&ask, &shared);                                                                     \
    }

MX_KERNEL(k3_cast_mx_bf16, mx_groups(&ask, TO_BF16, &shared))
MX_KERNEL(k3_cast_mx_mxfp8, mx_groups(&ask, TO_MXFP8, &shared))
MX_KERNEL(k3_cast_mx_int8, mx_groups(&ask, TO_INT8, &shared))
MX_KERNEL(k3_cast_mx_nvfp4, mx_nvfp4(&ask, &shared))

/* -- FP8 blocks -- */

/* E4M3 of value * 2^(6 - shift): exact up to shift 14, nearest even beyond. */
INLINE void make_shifts(struct mx_shared *shared)
{
    u32 shift = threadIdx.x / 8, magnitude = threadIdx.x % 8;
    if (threadIdx.x < BLOCK_ROWS * 8)
        ((u8 *)shared->table)[threadIdx.x] =
            (u8)e4m3_code(e2m1_value(magnitude) * e8m0_value(127 + BLOCK_TOP - shift));
}

/* Two blocks that are neighbours in a row are done together, so that what is read of a row is a
 * line of 128 bytes.  What a thread has of them: eight groups of 32 are a row, so 32 rows at once,
 * four times.  Codes wait in shared memory, the thread's own. */
struct tile {
    uint4 *codes;
    u32 scale[TILE_READS];
};

/* A group whose scale is too far below its block's, and is not nothing but zeros. */
APART void block_breach(const struct k3_cast_ask *ask, struct mx_shared *shared, const u32 *words,
                        int scale, int max)
{
    const int last = ask->oow == OOW_SNAP ? BLOCK_SPREAD : BLOCK_ROWS - 1;
    const int row = max - scale > last ? last : max - scale;
    struct mx_word w = {0, 0, (u32)scale, 1, 1};
    meet_breach(ask, shared, &w);
#pragma unroll 1
    for (int i = 0; i < MX_WORDS * EIGHT; i++) {
        u32 code = words[i / EIGHT] >> (4 * (i % EIGHT)) & 15;
        u32 byte = ((const u8 *)shared->table[row])[code & 7] | (code & 8) << 4;
        add_breach(shared, e2m1_double(code, scale),
                   (double)e4m3_value(byte) * double_pow2(max - 127 - BLOCK_TOP));
    }
}

/* A group's bytes: two halves of 16. */
INLINE void to_block(const struct k3_cast_ask *ask, struct mx_shared *shared, uint4 codes,
                     u32 scale, int max, uint4 *half)
{
    const int last = ask->oow == OOW_SNAP ? BLOCK_SPREAD : BLOCK_ROWS - 1;
    const int shift = max - (int)scale, row = shift < 0 ? 0 : shift > last ? last : shift;
    const u32 low = shared->table[row][0], high = shared->table[row][1];
    uint2 a = signed_bytes(low, high, codes.x), b = signed_bytes(low, high, codes.y);
    half[0].x = a.x, half[0].y = a.y, half[0].z = b.x, half[0].w = b.y;
    a = signed_bytes(low, high, codes.z), b = signed_bytes(low, high, codes.w);
    half[1].x = a.x, half[1].y = a.y, half[1].z = b.x, half[1].w = b.y;
    if (shift > BLOCK_SPREAD && ((codes.x | codes.y | codes.z | codes.w) & PLAIN_CODES)) {
        const u32 words[MX_WORDS] = {codes.x, codes.y, codes.z, codes.w}; /* in memory, a copy */
        block_breach(ask, shared, words, (int)scale, max);
    }
}

/* Where a group of threads is.  A division of 64 bits is long, so places follow each other by
 * additions. */
struct tile_place {
    u64 row_tiles, step_row, step_column; /* to the group's next tile */
    u64 row, column;                      /* of tiles */
};

INLINE struct tile_place first_tile(const struct k3_cast_ask *ask)
{
    struct tile_place place;
    place.row_tiles = (ask->cols + TILE_BLOCKS * STRIPE - 1) / (TILE_BLOCKS * STRIPE);
    place.row = blockIdx.x / place.row_tiles;
    place.column = blockIdx.x % place.row_tiles;
    place.step_row = gridDim.x / place.row_tiles;
    place.step_column = gridDim.x % place.row_tiles;
    return place;
}

INLINE void next_tile(struct tile_place *place)
{
    place->row += place->step_row;
    place->column += place->step_column;
    if (place->column >= place->row_tiles) {
        place->column -= place->row_tiles;
        place->row++;
    }
}

/* Group k of this thread; 0: it is behind the last row or column. */
INLINE int tile_group(const struct k3_cast_ask *ask, const struct tile_place *place, int k,
                      u64 *at)
{
    const u64 row_groups = ask->cols / (MX_WORDS * EIGHT);
    const u64 column = place->column * TILE_GROUPS + threadIdx.x % TILE_GROUPS;
    const u64 row =
        place->row * STRIPE + (u32)k * (MX_BLOCK / TILE_GROUPS) + threadIdx.x / TILE_GROUPS;
    *at = row * row_groups + column;
    return column < row_groups && row < ask->row_count;
}

INLINE void read_tile(const struct k3_cast_ask *ask, const struct tile_place *place,
                      struct tile *tile)
{
#pragma unroll
    for (int k = 0; k < TILE_READS; k++) {
        const uint4 none = {0, 0, 0, 0};
        u64 at;
        tile->scale[k] = 0;
        if (tile_group(ask, place, k, &at)) {
            copy_ahead(&tile->codes[k * MX_BLOCK], (const uint4 *)ask->x + at);
            tile->scale[k] = ((const u8 *)ask->x_scale)[at];
        } else {
            tile->codes[k * MX_BLOCK] = none;
        }
    }
    end_batch();
}

/* One more than the largest scale of groups that are not 0. */
INLINE u32 count_tile(const struct k3_cast_ask *ask, struct mx_shared *shared,
                      const struct tile_place *place, const struct tile *tile,
                      struct counts *counts)
{
    u32 most = 0;
#pragma unroll
    for (int k = 0; k < TILE_READS; k++) {
        struct mx_word w = {0, 0, tile->scale[k], add_words(tile->codes[k * MX_BLOCK]), 1};
        if (tile_group(ask, place, k, &w.word))
            count_group(shared, &w, counts);
        if (w.sum)
            most = most_u32(most, w.scale + 1);
    }
    return most;
}

/* Two neighbours write a group together, then the other's, so that no piece of 32 bytes is written
 * twice. */
INLINE void write_halves(const struct k3_cast_ask *ask, u64 at, int is_there, const uint4 *half)
{
    const u32 odd = threadIdx.x & 1;
    const int other_there = (int)EXCHANGE((u32)is_there, 1);
    const uint4 keep = odd ? half[1] : half[0], give = odd ? half[0] : half[1];
    uint4 got;
    got.x = EXCHANGE(give.x, 1), got.y = EXCHANGE(give.y, 1);
    got.z = EXCHANGE(give.z, 1), got.w = EXCHANGE(give.w, 1);
    /* The even thread has first halves of both groups, the odd one the second ones. */
    uint4 *to = (uint4 *)ask->weight + 2 * at;
    if (odd ? other_there : is_there)
        to[odd ? -1 : 0] = odd ? got : keep;
    if (odd ? is_there : other_there)
        to[odd ? 1 : 2] = odd ? keep : got;
}

/* The larger of a thread's own and of what others of its warp have of the same block into a slot of
 * that block; all threads meet. */
INLINE void raise_tile(u32 *slot, u32 own)
{
    own = most_u32(own, EXCHANGE(own, 1));
    own = most_u32(own, EXCHANGE(own, 2)); /* 4 is the other block */
    own = most_u32(own, EXCHANGE(own, 8));
    own = most_u32(own, EXCHANGE(own, 16));
    if (threadIdx.x % 32 % TILE_GROUPS % 4 == 0 && threadIdx.x % 32 < TILE_GROUPS)
        atomicMax(&slot[threadIdx.x % TILE_GROUPS / 4], own);
    __syncthreads();
}

INLINE void write_tile(const struct k3_cast_ask *ask, struct mx_shared *shared,
                       const struct tile_place *place, const struct tile *tile, int max)
{
    const u64 row_blocks = (ask->cols + STRIPE - 1) / STRIPE;
    const u64 column = place->column * TILE_BLOCKS + threadIdx.x / 4;
    if (threadIdx.x < TILE_GROUPS && threadIdx.x % 4 == 0 && column < row_blocks)
        ((float *)ask->scale)[place->row * row_blocks + column] =
            max < 0 ? 0x1p-23f : (float)double_pow2(max - 127 - BLOCK_TOP);
#pragma unroll
    for (int k = 0; k < TILE_READS; k++) {
        u64 at;
        uint4 half[2];
        int is_there = tile_group(ask, place, k, &at);
        to_block(ask, shared, tile->codes[k * MX_BLOCK], tile->scale[k], max, half);
        write_halves(ask, at, is_there, half);
    }
}

/* The next tile is on its way while the threads meet and this one is written.  Of three pairs of
 * slots one is in use, one may still be read by who is late, and one is made 0. */
KERNEL __launch_bounds__(MX_BLOCK, 3) k3_cast_mx_fp8_block(const struct k3_cast_ask ask)
{
    __shared__ struct mx_shared shared;
    __shared__ uint4 codes[2 * TILE_READS * MX_BLOCK];
    const u64 rows = (ask.row_count + STRIPE - 1) / STRIPE;
    struct tile_place place = first_tile(&ask);
    struct counts counts = {0, 0, 0};
    struct tile now = {codes + threadIdx.x, {0}};
    make_shifts(&shared);
    if (threadIdx.x < 3 * TILE_BLOCKS)
        shared.slot[threadIdx.x / TILE_BLOCKS][threadIdx.x % TILE_BLOCKS] = 0;
    begin_mx(&shared);
    read_tile(&ask, &place, &now);
    for (u32 turn = 0; place.row < rows; turn++) {
        struct tile_place behind = place;
        struct tile next = {codes + threadIdx.x + (turn % 2 ? 0 : TILE_READS * MX_BLOCK), {0}};
        u32 *slot = shared.slot[turn % 3];
        next_tile(&behind);
        read_tile(&ask, &behind, &next); /* nothing where there is none */
        await_batches(1);
        raise_tile(slot, count_tile(&ask, &shared, &place, &now, &counts));
        int max = (int)slot[threadIdx.x % TILE_GROUPS / 4] - 1; /* -1: nothing but zeros */
        write_tile(&ask, &shared, &place, &now, max);
        if (threadIdx.x < TILE_BLOCKS)
            shared.slot[(turn + 2) % 3][threadIdx.x] = 0;
        now = next;
        place = behind;
    }
    await_batches(0);
    end_mx_counts(&shared, counts);
    end_mx(&ask, &shared);
}

#endif
