/* Kernels of casts: what all have in common.  Parts of cast.cu, see there. */
#ifndef K3_CAST_NUM_CUH
#define K3_CAST_NUM_CUH

/* Products that something is added to: nvcc fuses the two unless they are written so. */
#ifdef __clang__
#pragma clang fp contract(off)
#endif
#ifdef __CUDA_ARCH__
#define PRODUCT(a, b)        __fmul_rn(a, b)
#define PRODUCT_DOUBLE(a, b) __dmul_rn(a, b)
#else
#define PRODUCT(a, b)        ((a) * (b))
#define PRODUCT_DOUBLE(a, b) ((a) * (b))
#endif

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

#ifdef __cplusplus
#define KERNEL extern "C" __global__ void
#else
#define KERNEL __global__ void
#endif

#define INLINE static __device__ __forceinline__
#define APART  static __device__ __noinline__ /* what is rarely done stays out of the way */

/* Nothing is done; but what is in such a register is not computed anew where it is used. */
#ifdef __CUDA_ARCH__
#define KEEP_WORD(value) asm volatile("" : "+r"(value))
#define KEEP_LONG(value) asm volatile("" : "+l"(value))
#else
#define KEEP_WORD(value) (void)(value)
#define KEEP_LONG(value) (void)(value)
#endif

/* The value that the thread whose number differs by the bits of `mask` gives; all threads meet. */
#if defined(__HIP__) || defined(__HIPCC_RTC__) || defined(__HIP_PLATFORM_AMD__)
#define EXCHANGE(value, mask) __shfl_xor(value, mask)
#define ALL_OF_WARP(is)       __all(is)
#define MEET_WARP()           (void)0 /* not needed there */
#else
#define MEET_WARP()           __syncwarp()
#define EXCHANGE(value, mask) __shfl_xor_sync(0xffffffffu, value, mask)
#define ALL_OF_WARP(is)       __all_sync(0xffffffffu, is)
#endif

/* As in formats/quant.h and scale_rule.h. */
#define RULE_FLOOR  0u
#define RULE_RCEIL  1u
#define RULE_EVEN   2u
#define RULE_CEIL   3u
#define RULE_MSE    4u
#define OOW_FAIL    0u
#define OOW_REQUANT 1u
#define OOW_SNAP    2u

#define EIGHT       8   /* values that a thread reads at once */
#define CHUNKS      8   /* of those in a span, at most */
/* Columns; 64 where groups allow, which takes fewer registers. */
#define SPAN_OF(chunks) ((u32)(chunks) * 2 * EIGHT)

#define PAIR_BLOCK  128 /* threads of a group of threads, two for each row */
#define STRIPE      128 /* rows and columns of an FP8 block */
#define STRIPE_BLOCK (2 * STRIPE)

#define MAGNITUDE   0x7fffffffu
#define BF16_INF    0x7f80u
#define FLOAT_MOST  3.402823466e+38f
#define E4M3_MOST   448.0f
#define E2M1_MOST   6.0f
#define RESULT_WORDS 48

/* Codes of elements; a constant wherever it is used, so that each loop is compiled for it. */
#define E2M1      0
#define E4M3      1
#define E4M3_BF16 2 /* the quotient is rounded to BF16 before */
#define INT8      3
#define INT4      4
#define E2M1_CLIP 5 /* E2M1 by a rule that clips: quotients of 7 and more are usual */
#define IS_INT(kind)    ((kind) == INT8 || (kind) == INT4)
#define IS_E2M1(kind)   ((kind) == E2M1 || (kind) == E2M1_CLIP)
#define IS_NIBBLE(kind) (IS_E2M1(kind) || (kind) == INT4)

/* What the largest quotient should be; above it values are clipped. */
INLINE float most_of(const int kind)
{
    return IS_E2M1(kind) ? E2M1_MOST : kind == INT8 ? 127.5f : kind == INT4 ? 7.5f : E4M3_MOST;
}

/* ---- numbers, as formats/num.c has them ---- */

INLINE u32 bits_of(float x)
{
    return __float_as_uint(x);
}

INLINE float float_of(u32 bits)
{
    return __uint_as_float(bits);
}

INLINE u32 most_u32(u32 a, u32 b)
{
    return a > b ? a : b;
}

/* Four of the bytes of two words; each digit of `which` names one: 0 to 3 of a, 4 to 7 of b. */
INLINE u32 bytes_of(u32 a, u32 b, const u32 which)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(a, b, which);
#else
    u64 both = (u64)b << 32 | a;
    u32 bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= ((u32)(both >> (which >> (4 * i) & 7) * 8) & 0xff) << (8 * i);
    return bytes;
#endif
}

INLINE u32 bf16_code(float x)
{
    u32 bits = bits_of(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

INLINE float e8m0_value(u32 byte)
{
    return float_of(byte ? byte << 23 : 0x00400000u);
}

/* 2^exponent; -1022 <= exponent. */
INLINE double double_pow2(int exponent)
{
    return __longlong_as_double((long long)(exponent + 1023) << 52);
}

/* A magnitude to the nearest number of E2M1 or E4M3, by one addition: of a number whose unit in the
 * last place is the step of codes in the magnitude's binade; below the smallest normal value the
 * step stays.  Of E2M1, whose magnitudes below 7 become 6 at most, it clips where that is asked. */
INLINE float nearest_float(const int kind, const int clips, float magnitude)
{
    const float least = kind == E2M1 ? 1.0f : 0x1p-6f;
    float a = kind == E2M1 && !clips ? magnitude
                                     : fminf(magnitude, kind == E2M1 ? E2M1_MOST : E4M3_MOST);
    /* A power of two times a power of two: exact, so the sum is rounded once. */
    const float raise = kind == E2M1 ? 0x1p22f : 0x1p20f;
    float binade = float_of(bits_of(fmaxf(a, least)) & 0x7f800000u);
    return __fmaf_rn(binade, -raise, __fmaf_rn(binade, raise, a));
}

/* Such a number as its code, in front of 22 (E2M1) or 20 bits of zeros: where FP32 has its own
 * subnormal numbers, the code is in the bits. */
INLINE u32 raised_code(const int kind, float value)
{
    return bits_of(value * (kind == E2M1 ? 0x1p-126f : 0x1p-120f));
}
#define CODE_BIT(kind) ((kind) == E2M1 ? 22 : 20)

INLINE float e4m3_value(u32 code)
{
    u32 exponent = code >> 3 & 15, frac = code & 7;
    float value = exponent ? float_of((exponent + 120) << 23 | frac << 20) : (float)frac * 0x1p-9f;
    return code & 0x80 ? -value : value;
}

INLINE u32 e4m3_code(float x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
    return codes;
#else
    return raised_code(E4M3, nearest_float(E4M3, 1, fabsf(x))) >> 20 | (bits_of(x) >> 24 & 0x80);
#endif
}

INLINE float e2m1_value(u32 code)
{
    /* As FP32 bits the code is a value times 2^-126, subnormal ones too. */
    float value = float_of((code & 7) << 22) * 0x1p126f;
    return code & 8 ? -value : value;
}

INLINE u32 e2m1_code(float x)
{
    return raised_code(E2M1, nearest_float(E2M1, 1, fabsf(x))) >> 22 | (bits_of(x) >> 28 & 8);
}

/* To the nearest integer of a format: one addition, whose low bits are the integer and half of what
 * there are; INT_BASE is what stands above them.  Without clipping x is above low - 1/2. */
INLINE u32 raised_int(const int kind, const int clips, float x, float *value)
{
    const float low = kind == INT8 ? -128.0f : -8.0f, adder = 0x1.8p23f - low;
    float sum = fminf(clips ? fmaxf(x, low) : x, -1.0f - low) + adder;
    *value = sum - adder;
    return bits_of(sum);
}
#define INT_BASE 0x4b400000u

/* The scale byte of a rule: carry is what takes the fraction of amax over the top. */
INLINE u32 rule_carry(const int kind, u32 rule)
{
    const u32 rceil = IS_E2M1(kind) ? 0x400001u : 0x600001u;
    const u32 even = IS_E2M1(kind) ? 0x600000u : 0x780000u;
    return rule == RULE_RCEIL ? 0x800000u - rceil
           : rule == RULE_EVEN ? 0x800000u - even
           : rule == RULE_CEIL ? 0x800000u - 1
                               : 0;
}

INLINE u32 scale_byte(const int kind, u32 carry, u32 amax_bits)
{
    int byte = (int)((amax_bits + carry) >> 23) - (IS_E2M1(kind) ? 2 : 8);
    return byte < 0 ? 0 : (u32)byte;
}

/* ---- what a group of threads found ---- */

INLINE void begin_result(struct k3_cast_result *shared)
{
    for (u32 i = threadIdx.x; i < RESULT_WORDS; i += blockDim.x)
        ((u64 *)shared)[i] = 0;
    __syncthreads();
}

#define MAX_WORD (2 * K3_CAST_LIMB_COUNT)

INLINE void end_result(const struct k3_cast_ask *ask, struct k3_cast_result *shared)
{
    u64 *to = (u64 *)ask->result;
    if (threadIdx.x == 0)
        shared->done_groups = 1;
    __syncthreads();
    for (u32 i = threadIdx.x; i < RESULT_WORDS; i += blockDim.x) {
        u64 found = ((const u64 *)shared)[i];
        if (found && i == MAX_WORD)
            atomicMax(&to[i], found);
        else if (found)
            atomicAdd(&to[i], found);
    }
}

/* fraction * 2^bit into limbs. */
INLINE void add_at(u64 *limb, u64 fraction, int bit)
{
    int i = bit / K3_CAST_LIMB_BITS, shift = bit % K3_CAST_LIMB_BITS;
    u64 low = fraction << shift, high = shift ? fraction >> (64 - shift) : 0;
    if (i + 2 >= K3_CAST_LIMB_COUNT)
        return; /* not a sum of finite values: these are refused elsewhere */
    atomicAdd(&limb[i], low & 0xffffffffull);
    atomicAdd(&limb[i + 1], low >> 32);
    if (high)
        atomicAdd(&limb[i + 2], high);
}

/* As k3_qsum_add. */
APART void add_square(u64 *limb, double value)
{
    u64 bits = (u64)__double_as_longlong(value);
    int exponent = (int)(bits >> 52 & 0x7ff), bit = exponent - 1075 - K3_CAST_UNIT;
    u64 fraction = (bits & ((1ull << 52) - 1)) | 1ull << 52;
    if (exponent == 0)
        return;
    if (bit < 0) {
        fraction = bit > -64 ? fraction >> -bit : 0;
        bit = 0;
    }
    add_at(limb, fraction, bit);
}

/* What a thread counted; its partner counted the same. */
struct counts {
    u32 saturated, zero, refused;
};

/* The largest of what all threads have, in *slot, which was 0. */
INLINE void raise_slot(u32 *slot, u32 own)
{
#pragma unroll
    for (u32 mask = 1; mask < 32; mask *= 2)
        own = most_u32(own, EXCHANGE(own, mask));
    if (threadIdx.x % 32 == 0)
        atomicMax(slot, own);
    __syncthreads();
}

#endif
