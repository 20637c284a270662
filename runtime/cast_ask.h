/* What host and kernels of casts on GPUs agree on (cast.cu).  In front of cast.cu this is also the
 * beginning of the source that hipRTC compiles, which has no headers: so it includes none. */
#ifndef K3_CAST_ASK_H
#define K3_CAST_ASK_H

typedef unsigned long long k3_u64;
typedef unsigned int k3_u32;

/* One launch: the one argument of every kernel, by value.  Addresses are the device's and multiples
 * of K3_CAST_ALIGN; all arrays are dense and as k3_quant_rows and k3_mx_rows have them. */
struct k3_cast_ask {
    k3_u64 x;       /* BF16 values, or MXFP4 codes */
    k3_u64 x_scale; /* MXFP4: its scales */
    k3_u64 weight;  /* filled */
    k3_u64 scale;   /* filled, where the format has scales */
    k3_u64 result;  /* struct k3_cast_result, all zero before the launch; it is added to */
    k3_u64 row_count;
    k3_u64 cols;
    k3_u32 is_channel; /* FP8 */
    k3_u32 rule;       /* enum k3_scale_rule */
    k3_u32 is_modelopt;
    k3_u32 oow; /* enum k3_oow */
    k3_u32 is_pow2;
    float global;
};

#define K3_CAST_ALIGN 16u

/* k3_cast_fp8_channel: bytes of values that a group of threads holds, rows that these are at most,
 * and threads of each.  There are as many rows as fit, K3_CAST_HELD_ROWS or two. */
#define K3_CAST_HELD_BYTES 28672u
#define K3_CAST_HELD_ROWS  4u
#define K3_CAST_HELD_LANES 16u

/* A sum of squares, exact: limb i weighs 2^(32 i - 320) and may hold more than 32 bits, so that
 * threads add to it in any order. */
#define K3_CAST_LIMB_COUNT 20
#define K3_CAST_LIMB_BITS  32
#define K3_CAST_UNIT       (-320) /* exponent of bit 0 of limb 0, as in struct k3_qsum */

/* What a launch did. */
struct k3_cast_result {
    k3_u64 x2[K3_CAST_LIMB_COUNT], err2[K3_CAST_LIMB_COUNT];
    k3_u64 max_abs_error; /* its FP64 bits */
    k3_u64 saturated_groups;
    k3_u64 zero_groups;
    k3_u64 breach_groups;
    k3_u64 refused;     /* values or groups that the cast does not take; output is then undefined */
    k3_u64 done_groups; /* groups of threads that came to their end */
    k3_u64 reserved[2];
};

#endif
