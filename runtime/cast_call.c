/* Purpose: which kernel does a cast, in what shape, and its answer as statistics.
 * Owns: nothing.
 * Threads: any; constant tables.
 * Errors: none; the caller has checked format, route and sizes.
 * Invariants: shapes are those that cast.cu counts on; what follows from sizes alone is added here,
 * not on the device. */
#include "cast_call.h"

#include "bytes.h"

#include <assert.h>
#include <string.h>

#define PAIR_BLOCK   128u /* threads; two for each row */
#define PAIR_ROWS    (PAIR_BLOCK / 2)
#define STRIPE_BLOCK 256u /* two for each of 128 rows */
#define STRIPE_ROWS  128u
#define MX_BLOCK     256u
#define MX_GROUP     32u
/* Kernels out of MXFP4 go on until all is done, whatever the number of blocks: enough for every
 * processor of a large GPU, few enough that what a block does at its end does not count. */
#define MX_GRID_MAX   2048u
#define MX_TAKE_LEAST 256u /* groups of 32 values for a block */
/* And at most this many: sums by scale, at most 4608 a group, stay below 2^32. */
#define MX_TAKE_MOST ((uint64_t)1 << 19)
/* Rows that k3_cast_fp8_channel holds in shared memory.  Shorter ones are too little for a group of
 * threads. */
#define HELD_COLS_LEAST 1024u
#define HELD_COLS_MOST  7168u /* twice in K3_CAST_HELD_BYTES */
#define HELD_COLS_UNIT  256u
#define TILE_COLS       256u
#define TILE_GROUPS     1024u /* of 128 x 256 values */

_Static_assert(sizeof(struct k3_cast_ask) == 80, "layout shared with cast.cu");
_Static_assert(sizeof(struct k3_cast_result) == 384, "layout shared with cast.cu");

/* Order of k3_cast_kernels. */
enum kernel {
    MXFP4,
    MXFP8,
    MXFP4_FLOOR,
    MXFP4_MSE,
    MXFP8_MSE,
    NVFP4,
    INT4,
    INT4_G128,
    INT8,
    FP8_ROWS,
    FP8_CHANNEL,
    FP8_BLOCK,
    MX_BF16,
    MX_MXFP8,
    MX_NVFP4,
    MX_INT8,
    MX_FP8_BLOCK,
    KERNEL_COUNT
};

const char *const k3_cast_kernels[] = {
    [MXFP4] = "k3_cast_mxfp4",
    [MXFP8] = "k3_cast_mxfp8",
    [MXFP4_FLOOR] = "k3_cast_mxfp4_floor",
    [MXFP4_MSE] = "k3_cast_mxfp4_mse",
    [MXFP8_MSE] = "k3_cast_mxfp8_mse",
    [NVFP4] = "k3_cast_nvfp4",
    [INT4] = "k3_cast_int4",
    [INT4_G128] = "k3_cast_int4_g128",
    [INT8] = "k3_cast_int8",
    [FP8_ROWS] = "k3_cast_fp8_rows",
    [FP8_CHANNEL] = "k3_cast_fp8_channel",
    [FP8_BLOCK] = "k3_cast_fp8_block",
    [MX_BF16] = "k3_cast_mx_bf16",
    [MX_MXFP8] = "k3_cast_mx_mxfp8",
    [MX_NVFP4] = "k3_cast_mx_nvfp4",
    [MX_INT8] = "k3_cast_mx_int8",
    [MX_FP8_BLOCK] = "k3_cast_mx_fp8_block",
    [KERNEL_COUNT] = NULL,
};
_Static_assert(KERNEL_COUNT <= K3_CAST_KERNEL_MAX, "room of who looks them up");

static bool can_hold(uint64_t cols)
{
    return cols >= HELD_COLS_LEAST && cols <= HELD_COLS_MOST && cols % HELD_COLS_UNIT == 0;
}

/* In one group of threads. */
static uint64_t held_rows(uint64_t cols)
{
    return K3_CAST_HELD_BYTES / (cols * 2) >= K3_CAST_HELD_ROWS ? K3_CAST_HELD_ROWS : 2;
}

static enum kernel kernel_of(enum k3_qfmt from, const struct k3_quant *quant)
{
    const struct k3_qparams *params = &quant->params;
    bool is_mse = params->rule == K3_SCALE_MSE;
    if (from == K3_Q_MXFP4) {
        switch (params->to) {
        case K3_Q_BF16:
            return MX_BF16;
        case K3_Q_MXFP8:
            return MX_MXFP8;
        case K3_Q_NVFP4:
            return MX_NVFP4;
        case K3_Q_INT8_G32:
            return MX_INT8;
        default:
            return MX_FP8_BLOCK;
        }
    }
    switch (params->to) {
    case K3_Q_MXFP4:
        return is_mse ? MXFP4_MSE : params->rule == K3_SCALE_FLOOR ? MXFP4_FLOOR : MXFP4;
    case K3_Q_MXFP8:
        return is_mse ? MXFP8_MSE : MXFP8;
    case K3_Q_NVFP4:
        return NVFP4;
    case K3_Q_INT8_G32:
        return INT8;
    case K3_Q_FP8_TENSOR:
        return FP8_ROWS;
    case K3_Q_FP8_CHANNEL:
        return can_hold(quant->cols) ? FP8_CHANNEL : FP8_ROWS;
    case K3_Q_FP8_BLOCK:
        return FP8_BLOCK;
    case K3_Q_INT4_G128:
        return INT4_G128;
    default:
        return INT4;
    }
}

static uint64_t spread(uint64_t piece_count, uint64_t piece_groups)
{
    uint64_t most = k3_div_up(piece_count, MX_TAKE_MOST / piece_groups);
    uint64_t grid = k3_div_up(piece_count * piece_groups, MX_TAKE_LEAST);
    grid = grid < piece_count ? grid : piece_count;
    grid = grid < MX_GRID_MAX ? grid : MX_GRID_MAX;
    return grid > most ? grid : most;
}

static void set_shape(struct k3_cast_call *call, enum kernel kernel, uint64_t rows, uint64_t cols)
{
    uint64_t grid;
    switch (kernel) {
    case FP8_BLOCK:
        grid = k3_div_up(rows, STRIPE_ROWS);
        call->block = STRIPE_BLOCK;
        break;
    case FP8_CHANNEL:
        grid = k3_div_up(rows, held_rows(cols));
        call->block = (unsigned)held_rows(cols) * K3_CAST_HELD_LANES;
        break;
    case MX_FP8_BLOCK:
        grid = spread(k3_div_up(rows, STRIPE_ROWS) * k3_div_up(cols, TILE_COLS), TILE_GROUPS);
        call->block = MX_BLOCK;
        break;
    case MX_BF16:
    case MX_MXFP8:
    case MX_NVFP4:
    case MX_INT8:
        grid = spread(rows * (cols / MX_GROUP), 1);
        call->block = MX_BLOCK;
        break;
    default:
        grid = k3_div_up(rows, PAIR_ROWS);
        call->block = PAIR_BLOCK;
    }
    assert(grid > 0 && grid <= INT32_MAX);
    call->grid = (unsigned)grid;
}

void k3_cast_call_make(enum k3_qfmt from, const struct k3_quant *quant, const struct k3_qrows *rows,
                       uint64_t result, struct k3_cast_call *out)
{
    const struct k3_qparams *params = &quant->params;
    enum kernel kernel = kernel_of(from, quant);
    assert(from == K3_Q_BF16 ? k3_quant_route(from, params->to) == K3_QROUTE_QUANT
                             : k3_quant_route(from, params->to) == K3_QROUTE_MX);
    assert(params->to != K3_Q_FP8_BLOCK || rows->row_first % STRIPE_ROWS == 0);
    memset(out, 0, sizeof *out);
    out->kernel = k3_cast_kernels[kernel];
    out->ask = (struct k3_cast_ask){
        .x = (uintptr_t)rows->x,
        .x_scale = (uintptr_t)rows->x_scale,
        .weight = (uintptr_t)rows->weight,
        .scale = (uintptr_t)rows->scale,
        .result = result,
        .row_count = rows->row_count,
        .cols = quant->cols,
        .is_channel = params->to == K3_Q_FP8_CHANNEL,
        .rule = (k3_u32)params->rule,
        .is_modelopt = params->conv == K3_QCONV_MODELOPT,
        .oow = (k3_u32)params->oow,
        .is_pow2 = params->pow2_scales,
        .global = quant->global,
    };
    set_shape(out, kernel, rows->row_count, quant->cols);
}

/* Groups that the CPU's functions count for these rows. */
static uint64_t group_count(enum k3_qfmt from, const struct k3_quant *quant,
                            const struct k3_qrows *rows)
{
    struct k3_qgeom geom;
    if (from == K3_Q_MXFP4)
        return rows->row_count * (quant->cols / MX_GROUP);
    if (quant->params.to == K3_Q_FP8_TENSOR)
        return rows->row_first == 0;
    int rc = k3_qfmt_geometry(quant->params.to, rows->row_count, quant->cols, &geom, NULL);
    assert(rc == 0);
    (void)rc;
    return geom.scale_dim[0] * geom.scale_dim[1];
}

static void add_sum(struct k3_qsum *sum, const k3_u64 limb[K3_CAST_LIMB_COUNT])
{
    for (int i = 0; i < K3_CAST_LIMB_COUNT; i++)
        k3_qsum_add_scaled(sum, limb[i], K3_CAST_UNIT + i * K3_CAST_LIMB_BITS);
}

/* Could rows have said this?  A broken GPU may say anything, and sums must stay in their range. */
static bool is_plausible(const struct k3_cast_result *result)
{
    const k3_u64 limb_top = result->x2[K3_CAST_LIMB_COUNT - 1] |
                            result->err2[K3_CAST_LIMB_COUNT - 1];
    const k3_u64 infinity = (k3_u64)0x7ff << 52;
    return limb_top >> 30 == 0 && result->max_abs_error < infinity;
}

bool k3_cast_call_take(enum k3_qfmt from, const struct k3_quant *quant, const struct k3_qrows *rows,
                       const struct k3_cast_result *result, struct k3_qstats *stats)
{
    double most;
    struct k3_cast_call call;
    set_shape(&call, kernel_of(from, quant), rows->row_count, quant->cols);
    if (result->refused || result->done_groups != call.grid || !is_plausible(result))
        return false;
    memcpy(&most, &result->max_abs_error, sizeof most);
    add_sum(&stats->x2, result->x2);
    add_sum(&stats->err2, result->err2);
    stats->max_abs_error = most > stats->max_abs_error ? most : stats->max_abs_error;
    stats->value_count += rows->row_count * quant->cols;
    stats->group_count += group_count(from, quant, rows);
    stats->saturated_groups += result->saturated_groups;
    stats->zero_groups += result->zero_groups;
    stats->breach_groups += result->breach_groups;
    return true;
}
