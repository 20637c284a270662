/* Kernels of casts: two BF16 numbers in a word.  Part of cast.cu, see there.
 *
 * Instructions where GPUs have them, all rounded to nearest even, with subnormal numbers.  The C
 * below is for the CPU, where tests run both ways; other GPUs do not come here. */
#ifndef K3_CAST_PAIRS_CUH
#define K3_CAST_PAIRS_CUH

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HAS_PAIRS 1
#elif !defined(HAS_PAIRS)
#define HAS_PAIRS 0
#endif

#define MAGNITUDES 0x7fff7fffu /* of two BF16 numbers */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PAIR(name, does)                                                                           \
    INLINE u32 name(u32 a, u32 b)                                                                  \
    {                                                                                              \
        u32 out;                                                                                   \
        asm(does : "=r"(out) : "r"(a), "r"(b));                                                    \
        return out;                                                                                \
    }
PAIR(pair_product, "mul.rn.bf16x2 %0, %1, %2;")
PAIR(pair_most, "max.bf16x2 %0, %1, %2;")
PAIR(pair_least, "min.bf16x2 %0, %1, %2;")
/* The larger of the magnitudes, with a sign that says nothing. */
PAIR(pair_largest, "max.xorsign.abs.bf16x2 %0, %1, %2;")
/* Ones in each half where a is at least b. */
PAIR(pair_at_least, "set.ge.u32.bf16x2 %0, %1, %2;")

INLINE u32 fused_word(u32 a, u32 b, u32 c)
{
    u32 out;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

INLINE u32 pair_fused(u32 a, u32 b, u32 c)
{
    u32 out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}
#else
INLINE u32 fused_word(u32 a, u32 b, u32 c)
{
    return a * b + c;
}

/* Of a sum of a product that FP64 holds: to FP32 first, but so that what is lost stays seen. */
INLINE u32 bf16_of_double(double x)
{
    float near = (float)x;
    u32 bits = bits_of(near);
    double is = (double)near;
    if (is > x || is < x)
        bits = (fabs(is) > fabs(x) ? bits - 1 : bits) | 1;
    return bf16_code(float_of(bits));
}

INLINE u32 half_fused(u32 a, u32 b, u32 c)
{
    double product = (double)float_of(a << 16) * (double)float_of(b << 16);
    return bf16_of_double(product + (double)float_of(c << 16)) & 0xffff;
}

INLINE u32 pair_fused(u32 a, u32 b, u32 c)
{
    return half_fused(a, b, c) | half_fused(a >> 16, b >> 16, c >> 16) << 16;
}

/* -0 keeps the sign of what is 0. */
INLINE u32 pair_product(u32 a, u32 b)
{
    return pair_fused(a, b, 0x80008000u);
}

/* These three of magnitudes alone, whose codes are in their order. */
INLINE u32 pair_most(u32 a, u32 b)
{
    return most_u32(a >> 16, b >> 16) << 16 | most_u32(a & 0xffff, b & 0xffff);
}

INLINE u32 pair_least(u32 a, u32 b)
{
    return (a >> 16 < b >> 16 ? a >> 16 : b >> 16) << 16 |
           ((a & 0xffff) < (b & 0xffff) ? a & 0xffff : b & 0xffff);
}

INLINE u32 pair_largest(u32 a, u32 b)
{
    return pair_most(a & MAGNITUDES, b & MAGNITUDES);
}

INLINE u32 pair_at_least(u32 a, u32 b)
{
    return (a >> 16 >= b >> 16 ? 0xffff0000u : 0) | ((a & 0xffff) >= (b & 0xffff) ? 0xffff : 0);
}
#endif

/* The upper of two magnitudes, as FP32 bits.  By a product: other parts of a GPU are busy. */
INLINE u32 pair_upper(u32 x)
{
    return HAS_PAIRS ? pair_product(x, 0x3f800000u) : x & 0xffff0000u;
}

#endif
