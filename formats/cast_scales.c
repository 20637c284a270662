/* Purpose: scales of casts that no cast writes: NaN, infinite, 0, negative; by their bytes alone.
 * Owns: nothing.
 * Threads: pure, any thread.
 * Errors: K3_ENOMEM; a scale that can be none is a problem that names tensor, row and column.
 * Invariant: what k3_scales_are_possible passes, k3_cast_scales_judge has nothing to say of, and
 * the other way round. */
#include "cast_scales.h"

#include "num.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WORD_BYTES 8u

/* A word of eight bytes as scales of one width: the lowest and the highest bit of each, and what
 * makes the highest bit of the first pattern that is not finite. */
struct lanes {
    uint64_t low, high, beyond;
    unsigned bytes; /* of a scale */
};

static struct lanes lanes_of(enum k3_dtype dtype)
{
    static const struct lanes one = {UINT64_C(0x0101010101010101), UINT64_C(0x8080808080808080),
                                     UINT64_C(0x0101010101010101), 1};
    static const struct lanes two = {UINT64_C(0x0001000100010001), UINT64_C(0x8000800080008000),
                                     UINT64_C(0x0080008000800080), 2};
    static const struct lanes four = {UINT64_C(0x0000000100000001), UINT64_C(0x8000000080000000),
                                      UINT64_C(0x0080000000800000), 4};
    assert(dtype == K3_U8 || dtype == K3_F8_E4M3 || dtype == K3_BF16 || dtype == K3_F32);
    return dtype == K3_F32 ? four : dtype == K3_BF16 ? two : one;
}

static uint32_t load(const uint8_t *data, unsigned bytes)
{
    uint32_t bits = 0;
    for (unsigned i = 0; i < bytes; i++)
        bits |= (uint32_t)data[i] << 8 * i;
    return bits;
}

static float value_of(enum k3_dtype dtype, uint32_t bits)
{
    switch (dtype) {
    case K3_U8:
        return k3_e8m0_value((uint8_t)bits);
    case K3_F8_E4M3:
        return k3_e4m3_value((uint8_t)bits);
    case K3_BF16:
        return k3_bf16_value((uint16_t)bits);
    default:
        return k3_f32_of(bits);
    }
}

static bool is_possible(float value)
{
    return isfinite(value) && value > 0;
}

bool k3_scales_are_possible(enum k3_dtype dtype, const uint8_t *data, size_t bytes)
{
    const struct lanes lanes = lanes_of(dtype);
    uint64_t bad = 0;
    size_t at = 0;
    if (dtype == K3_U8)
        for (; at + WORD_BYTES <= bytes; at += WORD_BYTES) {
            const uint64_t word = ~k3_load_le64(data + at); /* 0xFF: a byte of zero */
            bad |= (word - lanes.low) & ~word;
        }
    else
        for (; at + WORD_BYTES <= bytes; at += WORD_BYTES) {
            const uint64_t word = k3_load_le64(data + at);
            bad |= word | ((word & ~lanes.high) + lanes.beyond) | ((word - lanes.low) & ~word);
        }
    bool possible = !(bad & lanes.high);
    for (; at < bytes && possible; at += lanes.bytes)
        possible = is_possible(value_of(dtype, load(data + at, lanes.bytes)));
    return possible;
}

/* ---- in a part ---- */

static bool is_scale(const struct k3_entry *entry)
{
    return entry->slot != K3_SLOT_NONE && entry->row.what == K3_ROW_SCALE && entry->bytes > 0;
}

int k3_cast_scales_find(const struct k3_plan *plan, const struct k3_part *part,
                        struct k3_scale_range **ranges, uint32_t *count, struct k3_err *err)
{
    struct k3_row_dims dims;
    uint32_t scale_count = 0;
    *ranges = NULL;
    *count = 0;
    for (uint32_t e = 0; e < part->entry_count; e++)
        scale_count += is_scale(&part->entries[e]);
    if (scale_count == 0)
        return 0;
    *ranges = malloc(scale_count * sizeof **ranges);
    if (!*ranges)
        return k3_fail(err, K3_ENOMEM, "no memory for the places of %" PRIu32 " scales",
                       scale_count);
    for (uint32_t e = 0; e < part->entry_count; e++) {
        const struct k3_entry *entry = &part->entries[e];
        struct k3_scale_range *last = *count ? &(*ranges)[*count - 1] : NULL;
        if (!is_scale(entry))
            continue;
        k3_row_dims(&plan->config, &entry->row, &entry->slice, &dims);
        assert(entry->begin_offset % lanes_of(dims.dtype).bytes == 0);
        if (last && last->end_offset == entry->begin_offset && last->dtype == dims.dtype)
            last->end_offset += entry->bytes;
        else
            (*ranges)[(*count)++] = (struct k3_scale_range){
                entry->begin_offset, entry->begin_offset + entry->bytes, dims.dtype};
    }
    return 0;
}

static void judge_entry(const struct k3_plan *plan, const struct k3_part *part,
                        const struct k3_entry *entry, const struct k3_scale_piece *piece,
                        const char *file, struct k3_problems *problems)
{
    char name[K3_ST_NAME_BYTES_MAX + 1];
    struct k3_row_dims dims;
    k3_row_dims(&plan->config, &entry->row, &entry->slice, &dims);
    const unsigned one = lanes_of(dims.dtype).bytes;
    if (k3_scales_are_possible(dims.dtype, piece->data, piece->bytes))
        return;
    k3_entry_name(plan, part, entry, name, sizeof name);
    for (size_t at = 0; at < piece->bytes; at += one) {
        const uint32_t bits = load(piece->data + at, one);
        const float value = value_of(dims.dtype, bits);
        const uint64_t index = (piece->offset - entry->begin_offset + at) / one;
        char text[32]; /* a FP32 number in decimal */
        if (is_possible(value))
            continue;
        snprintf(text, sizeof text, "%.9g", (double)value);
        k3_problems_add(problems,
                        "%s: tensor %s[%" PRIu64 ", %" PRIu64 "] is %s (0x%0*" PRIX32
                        "), wanted %s: all values of its group are scaled by it",
                        file, name, index / dims.shape[1], index % dims.shape[1],
                        isnan(value) ? "NaN" : text, (int)one * 2, bits,
                        dims.dtype == K3_U8 ? "a power of two" : "a finite number above 0");
    }
}

void k3_cast_scales_judge(const struct k3_plan *plan, const struct k3_part *part,
                          const struct k3_scale_piece *piece, const char *file,
                          struct k3_problems *problems)
{
    for (uint32_t e = 0; e < part->entry_count; e++) {
        const struct k3_entry *entry = &part->entries[e];
        const uint64_t end = entry->begin_offset + entry->bytes,
                       stop = piece->offset + piece->bytes;
        const uint64_t from = entry->begin_offset < piece->offset ? piece->offset
                                                                  : entry->begin_offset;
        const uint64_t to = end > stop ? stop : end;
        if (!is_scale(entry) || from >= to)
            continue;
        const struct k3_scale_piece own = {piece->data + (from - piece->offset), from,
                                           (size_t)(to - from)};
        judge_entry(plan, part, entry, &own, file, problems);
    }
}
