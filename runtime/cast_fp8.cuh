/* Kernels of casts out of BF16 to FP8 with FP32 scales: by tensor, by channel, by block.  Part of
 * cast.cu, see there. */
#ifndef K3_CAST_FP8_CUH
#define K3_CAST_FP8_CUH

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
INLINE void fp8_span(struct work *work, const int chunks, struct by by, float q_most)
{
    work->all_quick = is_quick(E4M3, by, q_most);
#pragma unroll
    for (int c = 0; c < chunks; c++)
        work->by[c] = by;
    if (work->ask->is_modelopt)
        encode_span(work, E4M3_BF16, BY_ANY, chunks);
    else
        encode_span(work, E4M3, BY_ANY, chunks);
    write_codes(work, E4M3, chunks);
}

/* Largest magnitude of a thread's part of a span. */
INLINE u32 span_magnitude(const struct work *work, const int chunks)
{
    u32 most = 0;
#pragma unroll
    for (int c = 0; c < chunks; c++)
        most = most_u32(most, magnitude_of(work->x[c]));
    return most;
}

#define ROWS_CHUNKS 4

/* The largest magnitude of a row.  From its end to its beginning, since that is where it is read
 * once more at once, and may still be near. */
INLINE u32 row_magnitude(struct work *work, uint4 *ahead, u32 *turn)
{
    const u32 step = SPAN_OF(ROWS_CHUNKS);
    u32 amax = 0;
    work->col = (work->ask->cols - 1) / step * step;
    begin_ahead(work, E4M3, ROWS_CHUNKS, ahead, work->col);
    for (;;) {
        if (work->col)
            work->stream.from -= 2 * step;
        next_span(work, ROWS_CHUNKS, ahead, *turn, 1);
        amax = most_u32(amax, span_magnitude(work, ROWS_CHUNKS));
        *turn ^= 1;
        if (work->col == 0)
            return most_u32(amax, EXCHANGE(amax, 1));
        work->col -= step;
    }
}

/* FP8 by tensor, or by channel where rows cannot be held (k3_cast_fp8_channel): these are read
 * twice, nothing near is large enough for all the rows that are being worked on. */
INLINE void fp8_rows(const struct k3_cast_ask *ask, struct k3_cast_result *shared, uint4 *ahead)
{
    const u32 step = SPAN_OF(ROWS_CHUNKS);
    struct work work;
    u32 amax = 0, turn = 0;
    float scale = ask->global;
    begin_work(ask, (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2, &work);
    work.is_whole = has_spans(ask, ROWS_CHUNKS);
    if (ask->is_channel) {
        amax = row_magnitude(&work, ahead, &turn);
        work.counts.zero = amax == 0 && work.place.half == 0;
        scale = fp8_scale(ask, amax);
        if (work.place.is_row && !work.place.half)
            ((float *)ask->scale)[work.place.row] = scale;
    } else {
        begin_ahead(&work, E4M3, ROWS_CHUNKS, ahead, 0);
    }
    const struct by by = by_scale(scale);
    for (work.col = 0; work.col < ask->cols; work.col += step, turn ^= 1) {
        work.stream.from += 2 * step;
        next_span(&work, ROWS_CHUNKS, ahead, turn, work.col + step < ask->cols);
        u32 own = span_magnitude(&work, ROWS_CHUNKS);
        amax = most_u32(amax, own);
        fp8_span(&work, ROWS_CHUNKS, by, ratio(float_of(own << 16), by));
    }
    work.counts.refused = amax >= BF16_INF;
    end_work(&work, shared);
}

KERNEL __launch_bounds__(PAIR_BLOCK, 6) k3_cast_fp8_rows(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result shared;
    __shared__ uint4 ahead[HAS_AHEAD ? AHEAD_OF(ROWS_CHUNKS) : 1];
    begin_result(&shared);
    fp8_rows(&ask, &shared, ahead);
    end_result(&ask, &shared);
}

/* ---- by channel, of rows that are held ---- */

/* By channel a row is needed twice, for its amax and for its codes.  Where it is not too long it
 * waits for the second time in shared memory.  16 threads do all that a row needs, and encode the
 * columns of one of the sixteen sums each; so they meet nobody outside their warp.  Codes take the
 * place of values that are done, and then leave 16 bytes at a time. */
#define HELD_BYTES   K3_CAST_HELD_BYTES /* two rows of 7168: seven groups of threads on an H200 */
#define HELD_APART   32u    /* behind each row, so that two rows meet different banks */
#define HELD_ROWS    K3_CAST_HELD_ROWS
#define LANES        K3_CAST_HELD_LANES /* of a row, and of its sums */
#define BATCH        16     /* values of a thread that are encoded together */
#define BATCH_COLS   (BATCH * LANES)

struct held {
    uint4 row[(HELD_BYTES + HELD_ROWS * HELD_APART) / 16];
    double x2[HELD_ROWS * LANES], err2[HELD_ROWS * LANES];
};

/* Of one lane of a row. */
struct lane {
    double x2, err2;
    float most;
    double most_slow;
};

/* Values and their codes by a quick scale, as eight_quickly with scales of any kind. */
INLINE void lane_quickly(const int kind, const u32 *x, struct by by, struct lane *lane, u32 *code)
{
#pragma unroll
    for (int k = 0; k < BATCH; k += 2) {
        float a[2], q[2], value[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[i] = float_of(x[k + i] << 16);
            q[i] = quotient(0, a[i], by);
        }
        if (kind == E4M3_BF16)
            round_to_bf16(q);
        const u32 codes = round_pair(kind, q[0], q[1], value);
        code[k] = codes;
        code[k + 1] = codes >> 8;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float d = a[i] - PRODUCT(value[i], by.scale);
            double wide = (double)d, x_wide = (double)a[i];
            lane->x2 = __fma_rn(x_wide, x_wide, lane->x2);
            lane->err2 = __fma_rn(wide, wide, lane->err2);
            lane->most = fmaxf(lane->most, fabsf(d));
        }
    }
}

/* As eight_slowly. */
APART void lane_slowly(int kind, const u32 *x, float scale, struct lane *lane, u32 *code)
{
#pragma unroll 1
    for (int k = 0; k < BATCH; k++) {
        float value = float_of(x[k] << 16);
        double d = (double)value - (double)slow_value(kind, value, scale, &code[k]);
        double square = PRODUCT_DOUBLE(d, d);
        lane->x2 += (double)value * (double)value;
        lane->err2 += square;
        lane->most_slow = fmax(lane->most_slow, fabs(d));
    }
}

/* The columns of one lane: a batch is read by all of a row's threads before codes are written where
 * others' values may have been. */
INLINE void encode_lane(const int kind, u8 *row, u32 cols, struct by by, int quick,
                        struct lane *lane)
{
    const u32 number = threadIdx.x % LANES;
    for (u32 col = 0; col < cols; col += BATCH_COLS) {
        const u16 *from = (const u16 *)row + col + number;
        u8 *to = row + col + number;
        u32 x[BATCH], code[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            x[k] = from[(u32)k * LANES];
        MEET_WARP();
        if (quick) {
            lane_quickly(kind, x, by, lane, code);
        } else {
            struct lane slow = *lane; /* a copy, so that the other stays in registers */
            u32 slow_x[BATCH], slow_code[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                slow_x[k] = x[k];
            lane_slowly(kind, slow_x, by.scale, &slow, slow_code);
            *lane = slow;
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                code[k] = slow_code[k];
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            to[(u32)k * LANES] = (u8)code[k];
    }
}

/* A row comes; its largest magnitude. */
INLINE u32 hold_row(const struct k3_cast_ask *ask, u64 row, uint4 *to)
{
    const u32 pieces = (u32)ask->cols / EIGHT;
    const uint4 *from = (const uint4 *)((const u16 *)ask->x + row * ask->cols);
    u32 amax = 0, x[4];
#pragma unroll 8
    for (u32 i = threadIdx.x % LANES; i < pieces; i += LANES)
        copy_ahead(&to[i], &from[i]);
    end_batch();
    await_batches(0);
#pragma unroll 8
    for (u32 i = threadIdx.x % LANES; i < pieces; i += LANES) {
        put_words(x, to[i]);
        amax = most_u32(amax, magnitude_of(x));
    }
#pragma unroll
    for (u32 mask = 1; mask < LANES; mask *= 2)
        amax = most_u32(amax, EXCHANGE(amax, mask));
    return amax;
}

/* What was found in a row: lanes in their order. */
INLINE void end_held(const struct held *held, u32 amax, struct k3_cast_result *shared)
{
    double x2 = 0.0, err2 = 0.0;
#pragma unroll
    for (u32 i = 0; i < LANES; i++) {
        x2 += held->x2[threadIdx.x + i];
        err2 += held->err2[threadIdx.x + i];
    }
    add_square(shared->x2, x2);
    add_square(shared->err2, err2);
    if (amax == 0)
        atomicAdd(&shared->zero_groups, (u64)1);
    if (amax >= BF16_INF)
        atomicAdd(&shared->refused, (u64)1);
}

/* The row's codes leave; what was found in it is added. */
INLINE void write_held(const struct k3_cast_ask *ask, u64 row, const uint4 *from,
                       const struct lane *lane, struct k3_cast_result *shared)
{
    const u32 pieces = (u32)ask->cols / 16;
    const double most = fmax((double)lane->most, lane->most_slow);
    uint4 *to = (uint4 *)((u8 *)ask->weight + row * ask->cols);
#pragma unroll 4
    for (u32 i = threadIdx.x % LANES; i < pieces; i += LANES)
        to[i] = from[i];
    if (most > 0.0)
        atomicMax(&shared->max_abs_error, (u64)__double_as_longlong(most));
}

KERNEL __launch_bounds__(HELD_ROWS * LANES, 7) k3_cast_fp8_channel(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result shared;
    __shared__ struct held held;
    const u32 mine = threadIdx.x / LANES, bytes = (u32)ask.cols * 2 + HELD_APART;
    u8 *place = (u8 *)held.row + mine * bytes;
    u64 row = (u64)blockIdx.x * (blockDim.x / LANES) + mine;
    const int is_row = row < ask.row_count;
    struct lane lane = {0.0, 0.0, 0.0f, 0.0};
    begin_result(&shared);
    row = is_row ? row : ask.row_count - 1;
    const u32 amax = hold_row(&ask, row, (uint4 *)place);
    const struct by by = by_scale(fp8_scale(&ask, amax));
    const int quick = is_quick(E4M3, by, ratio(float_of(amax << 16), by));
    MEET_WARP(); /* all of the row is there */
    if (ask.is_modelopt)
        encode_lane(E4M3_BF16, place, (u32)ask.cols, by, quick, &lane);
    else
        encode_lane(E4M3, place, (u32)ask.cols, by, quick, &lane);
    held.x2[threadIdx.x] = lane.x2;
    held.err2[threadIdx.x] = lane.err2;
    MEET_WARP(); /* all of its codes and sums */
    if (is_row) {
        write_held(&ask, row, (const uint4 *)place, &lane, &shared);
        if (threadIdx.x % LANES == 0) {
            ((float *)ask.scale)[row] = by.scale;
            end_held(&held, amax, &shared);
        }
    }
    end_result(&ask, &shared);
}

/* A whole block whose scale is quick.  The next block's values take the place of those that are
 * done: they are on their way while the rest is encoded and the threads meet. */
INLINE void fp8_whole(struct work *work, const int kind, struct by by, uint4 *mine)
{
    const struct k3_cast_ask *ask = work->ask;
    const int by_what = kind == E4M3_BF16 ? BY_BF16 : BY_ANY; /* as fp8_scale makes them */
    const u64 at = work->place.row * ask->cols + work->col;
    /* Behind the last block comes the last once more. */
    const u64 step = work->col + STRIPE < ask->cols ? STRIPE : 0;
    const uint4 *next = (const uint4 *)((const u16 *)ask->x + at + step) + work->place.half;
#if HAS_AHEAD
#pragma unroll 1
#else
#pragma unroll
#endif
    for (int c = 0; c < CHUNKS; c += 2) {
        u32 out[2][2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
#if HAS_AHEAD
            u32 x[4];
            put_words(x, mine[(c + k) * STRIPE_BLOCK]);
            eight_quickly(kind, by_what, x, by, &work->sums, out[k]);
            copy_ahead(&mine[(c + k) * STRIPE_BLOCK], &next[2 * (c + k)]);
#else
            eight_quickly(kind, by_what, work->x[c + k], by, &work->sums, out[k]);
            put_words(work->x[c + k], next[2 * (c + k)]);
#endif
        }
        write_chunks((u8 *)ask->weight + at + c * 2 * EIGHT + work->place.half * 16, work->place,
                     out[0], out[1]);
    }
    end_batch();
}

/* The largest magnitude in what this thread has of the block; its values are there then. */
INLINE u32 block_magnitude(struct work *work, const uint4 *mine)
{
    if (!HAS_AHEAD || work->ask->cols % STRIPE != 0)
        return span_magnitude(work, CHUNKS);
    u32 most = 0, x[4];
    await_batches(0);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        put_words(x, mine[c * STRIPE_BLOCK]);
        most = most_u32(most, magnitude_of(x));
    }
    return most;
}

/* The block at work->col is read, into `mine` where that holds blocks. */
INLINE void read_block(struct work *work, uint4 *mine)
{
    const struct k3_cast_ask *ask = work->ask;
    if (!HAS_AHEAD || ask->cols % STRIPE != 0) {
        read_span(work, CHUNKS);
        return;
    }
    const u64 at = work->place.row * ask->cols + work->col;
    const uint4 *from = (const uint4 *)((const u16 *)ask->x + at) + work->place.half;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        copy_ahead(&mine[c * STRIPE_BLOCK], &from[2 * c]);
    end_batch();
}

/* A block that is not whole, or has values for the slow way; then the next is read. */
INLINE void fp8_rest(struct work *work, struct by by, float q_most, uint4 *mine)
{
    if (HAS_AHEAD && work->ask->cols % STRIPE == 0) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            put_words(work->x[c], mine[c * STRIPE_BLOCK]);
    }
    fp8_span(work, CHUNKS, by, q_most);
    work->col += STRIPE;
    if (work->col < work->ask->cols)
        read_block(work, mine);
}

/* A stripe of 128 rows, block after block.  A block is read once: it waits in shared memory, or in
 * registers, while the threads find its amax.  Of three slots for that one is in use, one may still
 * be read by who is late, and one is made 0 for the next block. */
/* Two groups of threads on a processor of an H200: 55 % of its bandwidth, three 51 %. */
KERNEL __launch_bounds__(STRIPE_BLOCK, 2) k3_cast_fp8_block(const struct k3_cast_ask ask)
{
    __shared__ struct k3_cast_result shared;
    __shared__ uint4 ahead[HAS_AHEAD ? CHUNKS * STRIPE_BLOCK : 1];
    __shared__ u32 slot[3];
    const u64 blocks = (ask.cols + STRIPE - 1) / STRIPE;
    uint4 *mine = ahead + (HAS_AHEAD ? threadIdx.x : 0);
    struct work work;
    begin_work(&ask, (u64)blockIdx.x * STRIPE + threadIdx.x / 2, &work);
    work.is_whole = 0;
    if (threadIdx.x < 3)
        slot[threadIdx.x] = 0;
    begin_stream(&work, E4M3, CHUNKS, 0);
    begin_result(&shared);
    work.col = 0;
    read_block(&work, mine);
    for (u64 block = 0; block < blocks; block++) {
        u32 *now = &slot[block % 3];
        raise_slot(now, block_magnitude(&work, mine));
        u32 amax = *now;
        const struct by by = by_scale(fp8_scale(&ask, amax));
        const float q_most = ratio(float_of(amax << 16), by);
        if (threadIdx.x == 0) {
            slot[(block + 2) % 3] = 0;
            ((float *)ask.scale)[blockIdx.x * blocks + block] = by.scale;
            work.counts.zero += amax == 0;
            work.counts.refused += amax >= BF16_INF;
        }
        work.col = block * STRIPE;
        if (ask.cols % STRIPE == 0 && is_quick(E4M3, by, q_most)) { /* the same for all threads */
            if (ask.is_modelopt)
                fp8_whole(&work, E4M3_BF16, by, mine);
            else
                fp8_whole(&work, E4M3, by, mine);
        } else {
            fp8_rest(&work, by, q_most, mine);
        }
    }
    end_work(&work, &shared);
    end_result(&ask, &shared);
}

#endif
