/* Purpose: the inner loops of casts, one value at a time: what every other form must equal.
 * Owns: nothing.
 * Threads: any.
 * Errors: none.
 * Invariants: quant_ops.h, word for word. */
#include "num.h"
#include "quant_ops.h"

#include <float.h>

static void amax(const uint8_t *x, size_t count, size_t group_cols, uint16_t *out)
{
    for (size_t begin = 0; begin < count; begin += group_cols) {
        size_t end = count - begin < group_cols ? count : begin + group_cols;
        uint16_t most = 0;
        for (size_t i = begin; i < end; i++) {
            uint16_t a = k3_bf16_at(x, i) & 0x7fff;
            most = a > most ? a : most;
        }
        *out++ = most;
    }
}

void k3_nvfp4_scales_scalar(const struct k3_nvfp4_groups *groups)
{
    float global = groups->global;
    for (size_t g = 0; g < groups->count; g++) {
        float amax = k3_bf16_value(groups->amax[g]), scale;
        uint8_t byte;
        if (groups->is_multiplier) {
            float want = amax / (K3_E2M1_MAX * global);
            want = want < K3_NVFP4_LEAST && want > 0 ? K3_NVFP4_LEAST : want;
            byte = want > 0 ? k3_e4m3_code(want) : K3_NVFP4_ONE_BYTE;
            scale = k3_e4m3_value(byte) * global;
        } else {
            byte = k3_e4m3_code(global * (amax / K3_E2M1_MAX));
            byte = byte ? byte : K3_NVFP4_ZERO_BYTE;
            scale = k3_e4m3_value(byte) / global;
        }
        groups->byte[g] = byte;
        groups->scale[g] = scale > 0 ? scale : K3_NVFP4_TINY;
    }
}

size_t k3_saturated_scalar(const uint16_t *amax_of, const float *scale, size_t count, float most)
{
    size_t found = 0;
    for (size_t g = 0; g < count; g++)
        found += k3_bf16_value(amax_of[g]) / scale[g] > most;
    return found;
}

/* What value i of a run became. */
static inline void account(struct k3_qlanes *lanes, size_t i, float x, float y)
{
    y = y > FLT_MAX ? FLT_MAX : y < -FLT_MAX ? -FLT_MAX : y;
    double d = (double)x - (double)y, magnitude = d < 0 ? -d : d;
    lanes->x2[i % K3_QUANT_LANES] += (double)x * (double)x;
    lanes->err2[i % K3_QUANT_LANES] += d * d;
    lanes->max_abs_error = magnitude > lanes->max_abs_error ? magnitude : lanes->max_abs_error;
}

static void e2m1(const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    for (size_t i = 0; i < run->count; i++) {
        float x = k3_bf16_value(k3_bf16_at(run->x, i)), scale = run->scale[i / run->group_cols];
        uint8_t code = k3_e2m1_code(x / scale);
        run->out[i / 2] = (uint8_t)(i % 2 ? run->out[i / 2] | code << 4 : code);
        account(lanes, i, x, k3_e2m1_values[code] * scale);
    }
}

static void e4m3(const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    for (size_t i = 0; i < run->count; i++) {
        float x = k3_bf16_value(k3_bf16_at(run->x, i)), scale = run->scale[i / run->group_cols];
        float q = x / scale;
        run->out[i] = k3_e4m3_code(run->is_bf16 ? k3_bf16_value(k3_bf16_code(q)) : q);
        account(lanes, i, x, k3_e4m3_value(run->out[i]) * scale);
    }
}

static void int8(const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    for (size_t i = 0; i < run->count; i++) {
        float x = k3_bf16_value(k3_bf16_at(run->x, i)), scale = run->scale[i / run->group_cols];
        int q = k3_int_code(x / scale, -128, 127);
        run->out[i] = (uint8_t)q;
        account(lanes, i, x, (float)q * scale);
    }
}

static void int4(const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    for (size_t i = 0; i < run->count; i++) {
        float x = k3_bf16_value(k3_bf16_at(run->x, i)), scale = run->scale[i / run->group_cols];
        int q = k3_int_code(x / scale, -8, 7);
        run->out[i / 2] = (uint8_t)(i % 2 ? run->out[i / 2] | (q + 8) << 4 : q + 8);
        account(lanes, i, x, (float)q * scale);
    }
}

static void mx_squares(const uint8_t *packed, size_t group_count, uint16_t *squares)
{
    static const uint8_t square[16] = {0, 1, 4, 9, 16, 36, 64, 144, 0, 1, 4, 9, 16, 36, 64, 144};
    for (size_t g = 0; g < group_count; g++, packed += 16) {
        uint16_t sum = 0;
        for (size_t b = 0; b < 16; b++)
            sum = (uint16_t)(sum + square[packed[b] & 15] + square[packed[b] >> 4]);
        squares[g] = sum;
    }
}

size_t k3_mx_sums_scalar(const uint16_t *squares, const uint8_t *scale, size_t group_count,
                         uint64_t *by_scale)
{
    size_t zero_count = 0;
    for (size_t g = 0; g < group_count; g++) {
        by_scale[scale[g]] += squares[g];
        zero_count += squares[g] == 0;
    }
    return zero_count;
}

static void mx_bytes(const uint8_t *packed, size_t group_count, const uint8_t (*table)[16],
                     const uint8_t *pick, uint8_t *out)
{
    for (size_t g = 0; g < group_count; g++, packed += 16) {
        const uint8_t *row = table[pick ? pick[g] : 0];
        for (size_t b = 0; b < 16; b++) {
            *out++ = row[packed[b] & 15];
            *out++ = row[packed[b] >> 4];
        }
    }
}

static void mx_words(const uint8_t *packed, size_t group_count, const uint16_t (*table)[16],
                     const uint8_t *pick, uint8_t *out)
{
    for (size_t g = 0; g < group_count; g++, packed += 16, out += 64) {
        const uint16_t *row = table[pick ? pick[g] : 0];
        for (size_t b = 0; b < 16; b++) {
            k3_bf16_put(out, 2 * b, row[packed[b] & 15]);
            k3_bf16_put(out, 2 * b + 1, row[packed[b] >> 4]);
        }
    }
}

static void range(const uint8_t *bytes, size_t count, uint8_t *min, uint8_t *max)
{
    uint8_t low = 0xff, high = 0;
    for (size_t i = 0; i < count; i++) {
        low = bytes[i] < low ? bytes[i] : low;
        high = bytes[i] > high ? bytes[i] : high;
    }
    *min = low;
    *max = high;
}

const struct k3_quant_ops k3_quant_ops_scalar = {
    .amax = amax,
    .nvfp4_scales = k3_nvfp4_scales_scalar,
    .saturated = k3_saturated_scalar,
    .e2m1 = e2m1,
    .e4m3 = e4m3,
    .int8 = int8,
    .int4 = int4,
    .mx_squares = mx_squares,
    .mx_sums = k3_mx_sums_scalar,
    .mx_bytes = mx_bytes,
    .mx_words = mx_words,
    .range = range,
};
