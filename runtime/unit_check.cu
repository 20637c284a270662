/* The check of units in device memory (FORMAT.md 6), for nvcc, hipcc and hipRTC alike: no headers.
 *
 * 128 threads for each unit of 512 KiB, K3_GROUP_UNITS units in a group.  Each thread hashes one
 * block of 4096 bytes; their digests make the hash block, whose SHA-256 is compared with the digest
 * that is wanted.  Neighbouring threads would read 4096 bytes apart, so 64 bytes of each block are
 * staged through shared memory, where reads of device memory are whole lines; the next 64 bytes are
 * on their way while these are hashed.
 * The hash block is one chain of 65 steps: its message schedules do not depend on the chain and are
 * made by many threads before, so that the one thread that follows the chain does rounds only. */

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

#ifndef K3_GROUP_UNITS
/* Measured on an H200, checks of 256 MiB: 2 gave 680 GB/s where 1 gave 628 (the chains of two units
 * share a warp); gpu_kernels.h has this number too. */
#define K3_GROUP_UNITS 2
#endif

#define UNIT_THREADS 128 /* blocks of a unit */
#define THREADS      (UNIT_THREADS * K3_GROUP_UNITS)
#define WARP         32
#define BLOCK_WORDS 1024
#define STEPS       64 /* of 64 bytes in a block */
#define PIECES      4  /* of 16 bytes in a step */
#define ROW         5  /* pieces of a staged step with one of padding, against bank conflicts */

/* What is asked of one group: 64 bytes, in memory of the host that the device reads. */
struct k3_unit_ask {
    u64 data;      /* device address of the unit */
    u64 result;    /* device address of the answer: one u32 */
    u8 wanted[32]; /* digest */
    u64 reserved[2];
};

#define ANSWER_RIGHT 1u
#define ANSWER_WRONG 2u

__constant__ u32 k3_round[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* The same with the schedule of the padding behind 4096 bytes added: its words are known. */
__constant__ u32 k3_padding_round[64] = {
    0xc28a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19c7174,
    0x649b69c1, 0x3fbe47a6, 0x0fe1edc6, 0x240cc3cc, 0x4fe9346f, 0x5fb484b2, 0x61b9bf1e, 0xf6f9e0e2,
    0x904651d2, 0xcf776683, 0xb071aacd, 0x45598de9, 0x6e024795, 0xe1a53a4c, 0x01579c54, 0x7ed2a5d2,
    0x5543dff8, 0x24306163, 0xcbe96064, 0x088b74dd, 0x8cef495f, 0x27644e60, 0xfa4494c7, 0xc85ad905,
    0xae229301, 0x3cc6aca8, 0xced0f30e, 0x0054346d, 0xaa185a78, 0xbf2f214a, 0xc070f8f5, 0x2bfa9c81,
    0x2ee7c2f3, 0x060f5920, 0x19f02ca9, 0xf4d1cc5c, 0x4368bd9b, 0xc154267a, 0xec10f2ef, 0xf0bf5abd,
    0xb1561710, 0xcc85b5a6, 0x55e9155c, 0xeb7ba3e0, 0x0f037e93, 0x2ae3e945, 0xa2affabf, 0x694563d1};

__device__ __forceinline__ u32 ror(u32 x, int n)
{
    return (x >> n) | (x << (32 - n)); /* one instruction with every compiler */
}

__device__ __forceinline__ u32 swap_bytes(u32 x)
{
#if defined(__NVCC__) || defined(__CUDACC_RTC__)
    return __byte_perm(x, 0, 0x0123);
#else
    return __builtin_bswap32(x);
#endif
}

/* Message words sixteen rounds on: w is a ring of sixteen. */
__device__ __forceinline__ u32 next_word(u32 *w, int i)
{
    u32 x = w[(i - 15) & 15], y = w[(i - 2) & 15];
    w[i & 15] += (ror(x, 7) ^ ror(x, 18) ^ (x >> 3)) + w[(i - 7) & 15] +
                 (ror(y, 17) ^ ror(y, 19) ^ (y >> 10));
    return w[i & 15];
}

/* One round; the letters turn instead of the values, so that nothing is moved. */
#define ROUND(a, b, c, d, e, f, g, h, added)                                                       \
    do {                                                                                           \
        u32 t = (h) + (added) + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) +                            \
                (((e) & (f)) ^ (~(e) & (g)));                                                      \
        (d) += t;                                                                                  \
        (h) = t + (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) +                                          \
              (((a) & (b)) ^ ((a) & (c)) ^ ((b) & (c)));                                           \
    } while (0)

#define EIGHT_ROUNDS(a, b, c, d, e, f, g, h, i, ADDED)                                             \
    do {                                                                                           \
        ROUND(a, b, c, d, e, f, g, h, ADDED((i) + 0));                                             \
        ROUND(h, a, b, c, d, e, f, g, ADDED((i) + 1));                                             \
        ROUND(g, h, a, b, c, d, e, f, ADDED((i) + 2));                                             \
        ROUND(f, g, h, a, b, c, d, e, ADDED((i) + 3));                                             \
        ROUND(e, f, g, h, a, b, c, d, ADDED((i) + 4));                                             \
        ROUND(d, e, f, g, h, a, b, c, ADDED((i) + 5));                                             \
        ROUND(c, d, e, f, g, h, a, b, ADDED((i) + 6));                                             \
        ROUND(b, c, d, e, f, g, h, a, ADDED((i) + 7));                                             \
    } while (0)

#define RUN_ROUNDS(s, ADDED)                                                                       \
    do {                                                                                           \
        u32 a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];        \
        _Pragma("unroll") for (int i = 0; i < 64; i += 8)                                          \
            EIGHT_ROUNDS(a, b, c, d, e, f, g, h, i, ADDED);                                        \
        s[0] += a, s[1] += b, s[2] += c, s[3] += d;                                                \
        s[4] += e, s[5] += f, s[6] += g, s[7] += h;                                                \
    } while (0)

__device__ __forceinline__ void begin_state(u32 *s)
{
    s[0] = 0x6a09e667, s[1] = 0xbb67ae85, s[2] = 0x3c6ef372, s[3] = 0xa54ff53a;
    s[4] = 0x510e527f, s[5] = 0x9b05688c, s[6] = 0x1f83d9ab, s[7] = 0x5be0cd19;
}

__device__ __forceinline__ void add_step(u32 *s, u32 *w)
{
#define ADDED(i) (k3_round[i] + ((i) < 16 ? w[(i) & 15] : next_word(w, i)))
    RUN_ROUNDS(s, ADDED);
#undef ADDED
}

__device__ __forceinline__ void add_padding(u32 *s)
{
#define ADDED(i) k3_padding_round[i]
    RUN_ROUNDS(s, ADDED);
#undef ADDED
}

/* Schedules lie word by word, the steps beside each other: 64 threads write them at once. */

/* Rounds of one step whose schedule, constants included, is in memory. */
__device__ __forceinline__ void add_scheduled(u32 *s, const u32 *scheduled)
{
#define ADDED(i) scheduled[(i) * STEPS]
    RUN_ROUNDS(s, ADDED);
#undef ADDED
}

/* One step of a block whose words are in order of significance already. */
__device__ __forceinline__ void make_schedule(const u32 *words, u32 *scheduled)
{
    u32 w[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        w[i] = words[i];
        scheduled[i * STEPS] = w[i] + k3_round[i];
    }
#pragma unroll
    for (int i = 16; i < 64; i++)
        scheduled[i * STEPS] = next_word(w, i) + k3_round[i];
}

/* Threads that stage for each other are one warp; a wave of AMD is two such, and waits for all. */
#if defined(__HIP__) || defined(__HIPCC_RTC__) || defined(__HIP_PLATFORM_AMD__)
#define STAGE_SYNC() __syncthreads()
#else
#define STAGE_SYNC() __syncwarp()
#endif

/* All 64 steps of the thread's own block; `stage` is the warp's. */
__device__ __forceinline__ void hash_block(const uint4 *warp_data, uint4 *stage, u32 *s)
{
    const int lane = (int)threadIdx.x % WARP;
    uint4 ahead[PIECES];
#define FETCH(step)                                                                                \
    _Pragma("unroll") for (int k = 0; k < PIECES; k++)                                             \
    {                                                                                              \
        int index = k * WARP + lane;                                                               \
        ahead[k] = warp_data[(index >> 2) * (BLOCK_WORDS / 4) + (step) * PIECES + (index & 3)];    \
    }
    begin_state(s);
    FETCH(0)
    for (int step = 0; step < STEPS; step++) {
        _Pragma("unroll") for (int k = 0; k < PIECES; k++)
        {
            int index = k * WARP + lane;
            stage[(index >> 2) * ROW + (index & 3)] = ahead[k];
        }
        STAGE_SYNC();
        u32 w[16];
        _Pragma("unroll") for (int q = 0; q < PIECES; q++)
        {
            uint4 v = stage[lane * ROW + q];
            w[q * 4 + 0] = swap_bytes(v.x), w[q * 4 + 1] = swap_bytes(v.y);
            w[q * 4 + 2] = swap_bytes(v.z), w[q * 4 + 3] = swap_bytes(v.w);
        }
        STAGE_SYNC();
        if (step + 1 < STEPS) {
            FETCH(step + 1)
        }
        add_step(s, w);
    }
    add_padding(s);
}

/* Digest of the hash block against the one wanted. */
__device__ __forceinline__ void answer(const struct k3_unit_ask *ask, const u32 *schedules)
{
    u32 s[8];
    begin_state(s);
    for (int step = 0; step < STEPS; step++)
        add_scheduled(s, schedules + step);
    add_padding(s);
    u32 difference = 0;
    const u32 *wanted = (const u32 *)ask->wanted;
    for (int i = 0; i < 8; i++)
        difference |= s[i] ^ swap_bytes(wanted[i]);
    *(volatile u32 *)ask->result = difference ? ANSWER_WRONG : ANSWER_RIGHT;
    __threadfence_system();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    k3_check_units(const struct k3_unit_ask *asks, u32 ask_count)
{
    /* Stage and schedules are never needed at once: 16 KiB for each unit serve both. */
    __shared__ uint4 memory[K3_GROUP_UNITS][STEPS * 64 / 4];
    __shared__ u32 digests[K3_GROUP_UNITS][UNIT_THREADS * 8]; /* hash blocks, as big-endian words */
    const int thread = (int)threadIdx.x;
    const int own = thread / UNIT_THREADS, in_unit = thread % UNIT_THREADS;
    const u32 first = blockIdx.x * K3_GROUP_UNITS;
    u32 s[8];
    /* The threads of a unit that was not asked for hash the last one once more. */
    const u32 number = first + (u32)own < ask_count ? first + (u32)own : ask_count - 1;
    const uint4 *warp_data = (const uint4 *)asks[number].data +
                             (in_unit / WARP) * (WARP * (BLOCK_WORDS / 4));
    hash_block(warp_data, memory[own] + (in_unit / WARP) * (WARP * ROW), s);
    for (int i = 0; i < 8; i++)
        digests[own][in_unit * 8 + i] = s[i];
    __syncthreads();
    if (in_unit < STEPS)
        make_schedule(digests[own] + in_unit * 16, (u32 *)memory[own] + in_unit);
    __syncthreads();
    if (thread < K3_GROUP_UNITS && first + (u32)thread < ask_count)
        answer(asks + first + thread, (const u32 *)memory[thread]);
}
