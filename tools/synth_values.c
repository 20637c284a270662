/* Purpose: numbers that look like weights, from counters: Gaussian BF16 and F32, MXFP4 made by
 * quantizing a Gaussian.
 * Owns: the tables of an open k3_synth_values.
 * Threads: any; tables are constant once open.
 * Errors: K3_ENOMEM.
 * Invariants: a byte depends on seed, tensor name and its offset and on nothing else, so any slice
 * can be made anywhere; no NaN, no Inf; integers and single IEEE operations only, so every machine
 * makes the same bytes.  Counter n of a tensor gives 64 bits, mix(key + n * GOLDEN): the n-th
 * output of the splitmix64 generator that begins at key.  A Gaussian takes 16 of them (BF16: a
 * sign, 15 bits of rank in a table of quantiles), 12 (MXFP4: a sign, 11 bits of rank) or all 64
 * (F32: the rank, and a fraction between two ranks). */
#include "synth.h"

#include "bytes.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio, the step of splitmix64 */

#define RANK_COUNT        32768u /* ranks of a magnitude: 15 bits */
#define UNIT_LOG2         16     /* magnitudes count sigma / 2^16: finer than BF16 can show */
#define MX_RANK_COUNT     2048u /* ranks in MXFP4: 11 bits reach 3.7 sigma, 4 lanes fit a counter */
#define MX_GROUP          32u   /* elements that share a scale, FORMAT.md 1 */
#define MX_STEP_COUNT     7     /* E2M1 has 8 magnitudes */
#define MX_WIDTH_MAX      20u   /* bits of a magnitude: the largest, 4.4 sigma, has 19 */
#define MX_SIGMA_LOG2     (-6)  /* expert weights, 0.0156: a power of two keeps scales exact */
#define BF16_SIGMA        0.02f /* initializer_range of config.json */
#define E8M0_BIAS         127
#define E2M1_EXPONENT_MAX 2 /* the largest E2M1 is 1.5 * 2^2 */

/* Vectors as both compilers have them on every target: eight lanes of 16 bits are one register of
 * the plainest x86-64. */
typedef int16_t v8i16 __attribute__((vector_size(16)));
typedef uint32_t v4u32 __attribute__((vector_size(16)));
typedef uint64_t v2u64 __attribute__((vector_size(16)));

enum kind {
    KIND_BF16,
    KIND_BF16_AROUND,
    KIND_F32_AROUND,
    KIND_F32_UNIFORM,
    KIND_PACKED,
    KIND_SCALE
};

struct k3_synth_values {
    /* By bits of the group's largest magnitude: the least rank of each E2M1 code, eight times. */
    v8i16 mx_step[MX_WIDTH_MAX][MX_STEP_COUNT];
    /* Of a half normal, by rank; the last one closes the last interval. */
    uint32_t magnitude[RANK_COUNT + 1];
    uint16_t bf16[RANK_COUNT];       /* BF16_SIGMA times it, rounded to nearest even */
    uint8_t mx_width[MX_RANK_COUNT]; /* bits of the magnitude: 1 + floor(log2) */
};

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t draw(uint64_t key, uint64_t counter)
{
    return mix(key + counter * GOLDEN);
}

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* ---- tables ---- */

/* Quantiles of |N(0,1)| by adding up its density in steps h of one unit.  Both the density and the
 * ratio of neighbours come from a recurrence of products: no call of libm, whose last bit differs
 * between systems. */
static void fill_magnitudes(uint32_t *magnitude)
{
    const double h = 1.0 / (1 << UNIT_LOG2);
    const double h_squared = h * h;
    const double shrink = 1.0 - h_squared; /* exp(-h^2); the next term is 2^-65 */
    double mass = h * 0.79788456080286536; /* sqrt(2 / pi) h exp(-(h / 2)^2 / 2) */
    double ratio = shrink;
    double sum = 0;
    uint32_t step = 0;
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        const double wanted = (rank + 0.5) / RANK_COUNT;
        while (sum + mass < wanted) {
            sum += mass;
            mass *= ratio;
            ratio *= shrink;
            step++;
        }
        magnitude[rank] = step;
    }
    magnitude[RANK_COUNT] = step +
                            (1u << UNIT_LOG2) /
                                8; /* the tail ends an eighth of a sigma behind the last rank */
    assert(magnitude[RANK_COUNT] < 1u << (MX_WIDTH_MAX - 1));
}

static uint32_t mx_magnitude(const struct k3_synth_values *values, uint32_t rank)
{
    /* The middle of the 16 fine ranks that the coarse one stands for. */
    return values->magnitude[rank * (RANK_COUNT / MX_RANK_COUNT) + RANK_COUNT / MX_RANK_COUNT / 2];
}

/* Least rank whose magnitude reaches E2M1 code `code` (1..7) by rounding to nearest even, when the
 * group's largest magnitude has `width` bits and so a scale of 2^(width - 1 - E2M1_EXPONENT_MAX)
 * units. */
static int16_t mx_least_rank(const struct k3_synth_values *values, uint32_t width, uint32_t code)
{
    /* Middles between neighbouring magnitudes 0 .5 1 1.5 2 3 4 6, times 4.  On a middle the even
     * code wins. */
    static const uint32_t middle[MX_STEP_COUNT] = {1, 3, 5, 7, 10, 14, 20};
    const uint64_t limit = (uint64_t)middle[code - 1] << (width - 1 - E2M1_EXPONENT_MAX);
    uint32_t rank = 0;
    while (rank < MX_RANK_COUNT) {
        uint64_t quadruple = 4 * (uint64_t)mx_magnitude(values, rank);
        if (quadruple > limit || (quadruple == limit && code % 2 == 0))
            break;
        rank++;
    }
    return (int16_t)rank;
}

int k3_synth_values_open(struct k3_synth_values **out, struct k3_err *err)
{
    struct k3_synth_values *values = calloc(1, sizeof *values);
    *out = NULL;
    if (!values)
        return k3_fail_sys(err, ENOMEM, "cannot get %zu bytes for tables", sizeof *values);
    fill_magnitudes(values->magnitude);
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++)
        values->bf16[rank] = bf16_of((float)values->magnitude[rank] *
                                     (BF16_SIGMA / (1 << UNIT_LOG2)));
    for (uint32_t rank = 0; rank < MX_RANK_COUNT; rank++)
        values->mx_width[rank] = (uint8_t)(32 - __builtin_clz(mx_magnitude(values, rank)));
    for (uint32_t width = values->mx_width[0]; width < MX_WIDTH_MAX; width++)
        for (uint32_t code = 1; code <= MX_STEP_COUNT; code++)
            values->mx_step[width][code - 1] = (v8i16){0} + mx_least_rank(values, width, code);
    *out = values;
    return 0;
}

void k3_synth_values_close(struct k3_synth_values *values)
{
    free(values);
}

/* ---- sources ---- */

/* What the numbers of a tensor are like, by the end of its rule's name; the first that fits. */
struct likeness {
    const char *ending;
    uint8_t dtype;
    uint8_t kind;
    uint8_t halvings;
    float center, spread;
};

static const struct likeness likenesses[] = {
    {"w2.weight_packed", K3_U8, KIND_PACKED, 1, 0,
     0}, /* projections back into a stream are smaller */
    {"w2.weight_scale", K3_U8, KIND_SCALE, 1, 0, 0},
    {"_packed", K3_U8, KIND_PACKED, 0, 0, 0},
    {"_scale", K3_U8, KIND_SCALE, 0, 0, 0},
    {"A_log", K3_F32, KIND_F32_UNIFORM, 0, 0.0f, 2.7725887f}, /* A log-uniform in 1..16 */
    {"dt_bias", K3_F32, KIND_F32_UNIFORM, 0, -6.9072552f,
     4.655f}, /* softplus gives 0.001..0.1, log-uniform */
    {"conv1d.weight", K3_F32, KIND_F32_AROUND, 0, 0.0f, 0.25f}, /* a kernel of 4: 1 / fan-in */
    {"_correction_bias", K3_F32, KIND_F32_AROUND, 0, 0.0f, 0.01f},
    {"norm.weight", K3_F32, KIND_F32_AROUND, 0, 1.0f, 0.05f},
    {"norm.weight", K3_BF16, KIND_BF16_AROUND, 0, 1.0f, 0.05f},
    {"norm0.weight", K3_BF16, KIND_BF16_AROUND, 0, 1.0f, 0.05f},
    {"norm1.weight", K3_BF16, KIND_BF16_AROUND, 0, 1.0f, 0.05f},
    {"o_proj.weight", K3_BF16, KIND_BF16, 1, 0, 0},
    {"down_proj.weight", K3_BF16, KIND_BF16, 1, 0, 0},
    {"wo.weight", K3_BF16, KIND_BF16, 1, 0, 0},
    {"fc1.weight", K3_BF16, KIND_BF16, 1, 0, 0},
    {"", K3_F32, KIND_F32_AROUND, 0, 0.0f, BF16_SIGMA},
    {"", K3_BF16, KIND_BF16, 0, 0, 0},
    {"", K3_U8, KIND_PACKED, 0, 0, 0},
};

static bool ends_with(const char *name, const char *ending)
{
    size_t name_bytes = strlen(name);
    size_t ending_bytes = strlen(ending);
    return name_bytes >= ending_bytes &&
           !memcmp(name + name_bytes - ending_bytes, ending, ending_bytes);
}

/* FNV-1a, 64 bits. */
static uint64_t hash_name(const char *name, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3);
    return hash;
}

void k3_synth_source_init(struct k3_synth_source *source, const struct k3_rule *rule,
                          const char *name, uint64_t seed, uint64_t live_bytes)
{
    memset(source, 0, sizeof *source);
    const struct likeness *like = likenesses;
    const struct likeness *last = likenesses + sizeof likenesses / sizeof likenesses[0] - 1;
    while (like < last && (like->dtype != rule->dtype || !ends_with(rule->name, like->ending)))
        like++;
    size_t bytes = strlen(name);
    if (like->kind == KIND_PACKED && ends_with(name, "_packed"))
        bytes -= strlen("_packed");
    else if (like->kind == KIND_SCALE)
        bytes -= strlen("_scale");
    source->key = mix(mix(seed + GOLDEN) ^ hash_name(name, bytes));
    source->live_bytes = live_bytes;
    source->kind = like->kind;
    source->halvings = like->halvings;
    source->center = like->center;
    source->spread = like->spread;
}

/* ---- elements ---- */

static void fill_bf16(const struct k3_synth_values *values, const struct k3_synth_source *source,
                      uint64_t word, uint8_t *out, size_t word_count)
{
    /* Every exponent is far from 0, so halving is one less in the exponent of each lane and never
     * borrows. */
    const uint64_t less = UINT64_C(0x0080008000800080) * source->halvings;
    for (size_t i = 0; i < word_count; i++) {
        uint64_t r = draw(source->key, word + i);
        uint64_t four = (uint64_t)values->bf16[r & 0x7fff] |
                        (uint64_t)values->bf16[r >> 16 & 0x7fff] << 16 |
                        (uint64_t)values->bf16[r >> 32 & 0x7fff] << 32 |
                        (uint64_t)values->bf16[r >> 48 & 0x7fff] << 48;
        k3_store_le64(out + 8 * i, (four - less) | (r & UINT64_C(0x8000800080008000)));
    }
}

/* One Gaussian around center: the two operations must stay two, so that no compiler fuses them. */
static float around(const struct k3_synth_values *values, const struct k3_synth_source *source,
                    uint64_t counter)
{
    uint64_t r = draw(source->key, counter);
    uint32_t rank = (uint32_t)(r & 0x7fff);
    int64_t low = values->magnitude[rank];
    int64_t between = (int64_t)values->magnitude[rank + 1] - low;
    int64_t fraction = (int64_t)(r >> 16 & 0xffff);
    int64_t fine = low * 65536 + between * fraction; /* sigma / 2^32 */
    volatile float deviation = (float)(r >> 63 ? -fine : fine) * (1.0f / 4294967296.0f) *
                               source->spread;
    return source->center + deviation;
}

static float uniform(const struct k3_synth_source *source, uint64_t counter)
{
    float fraction = (float)(draw(source->key, counter) >> 40) *
                     (1.0f / 16777216.0f); /* 24 bits are exact */
    volatile float part = fraction * source->spread;
    return source->center + part;
}

static void fill_f32(const struct k3_synth_values *values, const struct k3_synth_source *source,
                     uint64_t element, uint8_t *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float x = source->kind == KIND_F32_UNIFORM ? uniform(source, element + i)
                                                   : around(values, source, element + i);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        k3_store_le32(out + 4 * i, bits);
    }
}

static void fill_bf16_around(const struct k3_synth_values *values,
                             const struct k3_synth_source *source, uint64_t element, uint8_t *out,
                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t x = bf16_of(around(values, source, element + i));
        out[2 * i] = (uint8_t)x;
        out[2 * i + 1] = (uint8_t)(x >> 8);
    }
}

/* ---- MXFP4 ---- */

#define MX_VECTOR_COUNT 4 /* of 8 elements */

/* The 32 lanes of a group: bit 11 is the sign, bits 0..10 are the rank.  Lanes 2k and 2k + 1 of
 * vector v are columns 2 (4k + v) and the one behind it: so the bytes of the four vectors come
 * together by shifts alone. */
static inline void mx_lanes(uint64_t key, uint64_t group, v8i16 lane[MX_VECTOR_COUNT])
{
    const uint64_t counter = group * (2 * MX_VECTOR_COUNT);
    for (uint32_t v = 0; v < MX_VECTOR_COUNT; v++) {
        v2u64 r = {draw(key, counter + 2 * v), draw(key, counter + 2 * v + 1)};
        lane[v] = (v8i16)r;
    }
}

static inline v8i16 larger(v8i16 a, v8i16 b)
{
    v8i16 more = a > b;
    return (a & more) | (b & ~more);
}

/* Bits of the group's largest magnitude. */
static inline uint32_t mx_width(const struct k3_synth_values *values,
                                const v8i16 lane[MX_VECTOR_COUNT])
{
    const int16_t rank = MX_RANK_COUNT - 1;
    v8i16 largest = larger(larger(lane[0] & rank, lane[1] & rank),
                           larger(lane[2] & rank, lane[3] & rank));
    largest = larger(largest, (v8i16)((v2u64)largest >> 32));
    largest = larger(largest, (v8i16)((v2u64)largest >> 16));
    return values->mx_width[largest[0] > largest[4] ? largest[0] : largest[4]];
}

/* E2M1 codes of eight lanes: the number of steps that a rank has reached, and the sign. */
static inline v8i16 mx_codes(v8i16 lane, const v8i16 step[MX_STEP_COUNT])
{
    const v8i16 rank = lane & (MX_RANK_COUNT - 1);
    v8i16 missed = step[0] > rank; /* true is -1 */
    missed += step[1] > rank;
    missed += step[2] > rank;
    missed += step[3] > rank;
    missed += step[4] > rank;
    missed += step[5] > rank;
    missed += step[6] > rank;
    return (missed + MX_STEP_COUNT) | (lane >> 8 & 8);
}

static void fill_packed(const struct k3_synth_values *values, const struct k3_synth_source *source,
                        uint64_t group, uint8_t *out, size_t group_count)
{
    for (size_t g = 0; g < group_count; g++) {
        v8i16 lane[MX_VECTOR_COUNT];
        v4u32 packed = {0};
        mx_lanes(source->key, group + g, lane);
        const v8i16 *step = values->mx_step[mx_width(values, lane)];
        for (uint32_t v = 0; v < MX_VECTOR_COUNT; v++) {
            v4u32 pair = (v4u32)mx_codes(lane[v], step); /* the low nibble is the even column */
            packed |= ((pair | pair >> 12) & 0xff) << (8 * v);
        }
        memcpy(out + g * sizeof packed, &packed, sizeof packed);
    }
}

static void fill_scale(const struct k3_synth_values *values, const struct k3_synth_source *source,
                       uint64_t group, uint8_t *out, size_t group_count)
{
    /* floor(log2(amax)) - 2 + 127, OCP MX 6.3; amax has `width` bits of units. */
    const int base = E8M0_BIAS - E2M1_EXPONENT_MAX - 1 - UNIT_LOG2 + MX_SIGMA_LOG2 -
                     source->halvings;
    for (size_t g = 0; g < group_count; g++) {
        v8i16 lane[MX_VECTOR_COUNT];
        mx_lanes(source->key, group + g, lane);
        out[g] = (uint8_t)(base + (int)mx_width(values, lane));
    }
}

/* ---- slices ---- */

/* Bytes that one step of a kind makes. */
static size_t grain_bytes(uint8_t kind)
{
    static const uint8_t bytes[] = {8, 2, 4, 4, MX_GROUP / 2, 1};
    return bytes[kind];
}

static void fill_grains(const struct k3_synth_values *values, const struct k3_synth_source *source,
                        uint64_t grain, uint8_t *out, size_t count)
{
    switch ((enum kind)source->kind) {
    case KIND_BF16:
        fill_bf16(values, source, grain, out, count);
        break;
    case KIND_BF16_AROUND:
        fill_bf16_around(values, source, grain, out, count);
        break;
    case KIND_F32_AROUND:
    case KIND_F32_UNIFORM:
        fill_f32(values, source, grain, out, count);
        break;
    case KIND_PACKED:
        fill_packed(values, source, grain, out, count);
        break;
    case KIND_SCALE:
        fill_scale(values, source, grain, out, count);
        break;
    }
}

void k3_synth_fill(const struct k3_synth_values *values, const struct k3_synth_source *source,
                   uint64_t offset, void *out, size_t bytes)
{
    uint8_t *at = out;
    uint64_t live_bytes = source->live_bytes > offset ? source->live_bytes - offset : 0;
    if (bytes > live_bytes) {
        memset(at + live_bytes, 0, bytes - (size_t)live_bytes);
        bytes = (size_t)live_bytes;
    }
    const size_t grain = grain_bytes(source->kind);
    while (bytes) {
        size_t skip = (size_t)(offset % grain);
        size_t done = bytes - bytes % grain;
        if (skip || bytes < grain) {
            uint8_t one[MX_GROUP / 2];
            done = grain - skip < bytes ? grain - skip : bytes;
            fill_grains(values, source, offset / grain, one, 1);
            memcpy(at, one + skip, done);
        } else {
            fill_grains(values, source, offset / grain, at, done / grain);
        }
        at += done;
        offset += done;
        bytes -= done;
    }
}
