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
        encode_span(work, E4M3_BF16, 0, chunks);
    else
        encode_span(work, E4M3, 0, chunks);
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

/* FP8 by tensor or by channel.  By channel rows are read twice: nothing near is large enough for
 * all the rows that are being worked on. */
INLINE void fp8_rows(const struct k3_cast_ask *ask, struct k3_cast_result *shared)
{
    struct work work;
    u32 amax = 0;
    float scale = ask->global;
    begin_work(ask, (u64)blockIdx.x * (PAIR_BLOCK / 2) + threadIdx.x / 2, &work);
    if (ask->is_channel) {
        for (work.col = 0; work.col < ask->cols; work.col += SPAN_OF(CHUNKS)) {
            read_span(&work, CHUNKS);
            amax = most_u32(amax, span_magnitude(&work, CHUNKS));
        }
        amax = most_u32(amax, EXCHANGE(amax, 1));
        work.counts.zero = amax == 0 && work.place.half == 0;
        scale = fp8_scale(ask, amax);
        if (work.place.is_row && !work.place.half)
            ((float *)ask->scale)[work.place.row] = scale;
    }
    const struct by by = by_scale(scale);
    for (work.col = 0; work.col < ask->cols; work.col += SPAN_OF(4)) {
        read_span(&work, 4);
        u32 own = span_magnitude(&work, 4);
        amax = most_u32(amax, own);
        fp8_span(&work, 4, by, ratio(float_of(own << 16), by));
    }
    work.counts.refused = amax >= BF16_INF;
    end_work(&work, shared);
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
INLINE void fp8_whole(struct work *work, const int kind, struct by by)
{
    const struct k3_cast_ask *ask = work->ask;
    const u64 at = work->place.row * ask->cols + work->col;
    /* Behind the last block comes the last once more. */
    const u64 step = work->col + STRIPE < ask->cols ? STRIPE : 0;
    const uint4 *next = (const uint4 *)((const u16 *)ask->x + at + step) + work->place.half;
    uint2 *to = (uint2 *)((u8 *)ask->weight + at) + work->place.half;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        u32 *x = work->x[c], out[2];
        eight_quickly(kind, 0, x, by, &work->sums, out);
        uint4 v = next[2 * c];
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        uint2 codes;
        codes.x = out[0], codes.y = out[1];
        if (work->place.is_row)
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
    const u64 blocks = (ask.cols + STRIPE - 1) / STRIPE;
    struct work work;
    begin_work(&ask, (u64)blockIdx.x * STRIPE + threadIdx.x / 2, &work);
    if (threadIdx.x < 3)
        slot[threadIdx.x] = 0;
    begin_result(&shared);
    work.col = 0;
    read_span(&work, CHUNKS);
    for (u64 block = 0; block < blocks; block++) {
        u32 *now = &slot[block % 3];
        raise_slot(now, span_magnitude(&work, CHUNKS));
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
                fp8_whole(&work, E4M3_BF16, by);
            else
                fp8_whole(&work, E4M3, by);
        } else {
            fp8_span(&work, CHUNKS, by, q_most);
            work.col += STRIPE;
            if (block + 1 < blocks)
                read_span(&work, CHUNKS);
        }
    }
    end_work(&work, &shared);
    end_result(&ask, &shared);
}

#endif
