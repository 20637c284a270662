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

/* FP8 by tensor or by channel.  By channel rows are read twice: nothing near is large enough for
 * all the rows that are being worked on. */
INLINE void fp8_rows(const struct k3_cast_ask *ask, struct k3_cast_result *shared, uint4 *ahead)
{
    const u32 step = SPAN_OF(ROWS_CHUNKS);
    struct work work;
    u32 amax = 0, turn = 0;
    float scale = ask->global;
    begin_work(ask, (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2, &work);
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
