/* Purpose: kernels of casts on a CPU, thread by thread.
 * Owns: the fibers of one run.
 * Threads: any; what a run needs is the calling thread's.
 * Errors: none; a kernel whose threads do not meet, or no memory, ends the program with a message.
 * Invariants: fibers take turns in the order of their numbers, each until it comes to a meeting;
 * who waits there goes on once all that meet have come: all of the group, or all of a warp. */
#include "gpu_on_cpu.h"

#include "cast_call.h"

#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ON_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define ON_TSAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ON_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define ON_TSAN 1
#endif

/* Both have to be told where stacks change. */
#ifdef ON_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ON_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#define BLOCK_MAX 256u
#define STACK_BYTES                                                                                \
    ((size_t)256 << 10) /* a kernel's frame has some KiB, with sanitizers ten times that */

#define WARP 32u

enum meeting { MEET_NONE, MEET_BARRIER, MEET_WARP_BARRIER, MEET_EXCHANGE };

/* Meetings that a fiber has come to, of one kind of company, and what the last two were: a fiber is
 * never two ahead of who it meets. */
struct meetings {
    unsigned count;
    enum meeting at[2];
};

struct index {
    unsigned x;
};

struct fiber {
    ucontext_t context;
    jmp_buf place; /* where it was left */
    bool has_begun;
    void *stack;
    struct index thread;
    bool has_ended;
    struct meetings of_group, of_warp;
    unsigned value[2]; /* given at even and at odd meetings of its warp */
#ifdef ON_TSAN
    void *tsan;
#endif
};

/* One group of threads at work. */
struct group {
    struct fiber fiber[BLOCK_MAX], home;
    gpu_kernel *kernel;
    const struct k3_cast_ask *ask;
    struct index block, block_size, grid_size;
    unsigned current;
    unsigned turn_count;    /* in which nobody came to a meeting */
    const void *home_stack; /* as the sanitizer says */
    size_t home_bytes;
};

static _Thread_local struct group *group;

static void die(const char *what)
{
    fprintf(stderr, "gpu_on_cpu: group %u, thread %u: %s\n", group->block.x, group->current, what);
    abort();
}

/* `save` of the sanitizer: NULL where the fiber that is left never comes back. */
static void change(struct fiber *from, struct fiber *to)
{
#ifdef ON_ASAN
    void *save = NULL;
    const void *stack = to == &group->home ? group->home_stack : to->stack;
    size_t bytes = to == &group->home ? group->home_bytes : STACK_BYTES;
    __sanitizer_start_switch_fiber(from->has_ended ? NULL : &save, stack, bytes);
#endif
#ifdef ON_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    /* A jump costs no system call, as swapcontext does. */
    if (_setjmp(from->place) == 0) {
        if (to->has_begun)
            _longjmp(to->place, 1);
        to->has_begun = true;
        setcontext(&to->context);
        die("setcontext fails");
    }
#ifdef ON_ASAN
    __sanitizer_finish_switch_fiber(save, NULL, NULL);
#endif
}

/* The next fiber that has not ended takes its turn; home where there is none. */
static void go_on(struct fiber *from)
{
    const unsigned count = group->block_size.x;
    for (unsigned i = 1; i <= count; i++) {
        unsigned next = (group->current + i) % count;
        if (group->fiber[next].has_ended)
            continue;
        group->current = next;
        if (&group->fiber[next] != from)
            change(from, &group->fiber[next]);
        return;
    }
    change(from, &group->home);
}

static struct meetings *meetings_of(struct fiber *fiber, bool is_warp)
{
    return is_warp ? &fiber->of_warp : &fiber->of_group;
}

/* Have all that meet come to meeting number `count`? */
static bool is_complete(unsigned number, bool is_warp, unsigned count, enum meeting at)
{
    const unsigned first = is_warp ? number / WARP * WARP : 0;
    const unsigned most = is_warp ? WARP : group->block_size.x;
    for (unsigned i = first; i < first + most && i < group->block_size.x; i++) {
        const struct meetings *other = meetings_of(&group->fiber[i], is_warp);
        if (other->count < count)
            return false;
        if (other->at[count % 2] != at)
            die("threads that meet here are at different meetings");
    }
    return true;
}

/* Wait until all are here; what number this meeting has. */
static unsigned meet(enum meeting at)
{
    const unsigned number = group->current;
    const bool is_warp = at != MEET_BARRIER;
    struct fiber *self = &group->fiber[number];
    struct meetings *own = meetings_of(self, is_warp);
    const unsigned count = ++own->count;
    own->at[count % 2] = at;
    group->turn_count = 0; /* somebody has come on */
    while (!is_complete(number, is_warp, count, at)) {
        if (++group->turn_count > 2 * group->block_size.x)
            die("not all threads meet here");
        go_on(self);
        if (group->current != number)
            die("the wrong fiber");
    }
    return count;
}

static unsigned exchange(unsigned value, unsigned mask)
{
    struct fiber *self = &group->fiber[group->current];
    unsigned other = self->thread.x ^ mask;
    self->value[(self->of_warp.count + 1) % 2] = value;
    unsigned turn = meet(MEET_EXCHANGE) % 2;
    if (mask >= WARP || other >= group->block_size.x)
        die("an exchange with a thread that is not there");
    return group->fiber[other].value[turn];
}

static int all_of_warp(int is)
{
    unsigned all = is != 0;
    for (unsigned mask = 1; mask < WARP; mask *= 2)
        all &= exchange(all, mask);
    return (int)all;
}

static void begin_fiber(void)
{
#ifdef ON_ASAN
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &stack, &bytes);
    if (group->current == 0) {
        group->home_stack = stack;
        group->home_bytes = bytes;
    }
#endif
    struct fiber *self = &group->fiber[group->current];
    group->kernel(*group->ask);
    self->has_ended = true;
    group->turn_count = 0;
    go_on(self);
    die("a fiber that has ended goes on");
}

static void make_fiber(struct fiber *fiber, unsigned number)
{
    fiber->thread.x = number;
    fiber->of_group = fiber->of_warp = (struct meetings){.count = 0};
    fiber->has_begun = fiber->has_ended = false;
    if (getcontext(&fiber->context))
        die("getcontext fails");
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, begin_fiber, 0);
#ifdef ON_TSAN
    fiber->tsan = __tsan_create_fiber(0);
#endif
}

static void run_group(void)
{
    group->current = 0;
    group->home.has_begun = true;
    for (unsigned i = 0; i < group->block_size.x; i++)
        make_fiber(&group->fiber[i], i);
#ifdef ON_TSAN
    group->home.tsan = __tsan_get_current_fiber();
#endif
    change(&group->home, &group->fiber[0]);
    for (unsigned i = 0; i < group->block_size.x; i++) {
        if (!group->fiber[i].has_ended)
            die("not all threads of the group end here");
#ifdef ON_TSAN
        __tsan_destroy_fiber(group->fiber[i].tsan);
#endif
    }
}

void gpu_on_cpu_run(gpu_kernel *kernel, unsigned grid, unsigned block,
                    const struct k3_cast_ask *ask)
{
    struct group *made = calloc(1, sizeof *made);
    char *stacks = mmap(NULL, block * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!made || stacks == MAP_FAILED || block == 0 || block > BLOCK_MAX) {
        fprintf(stderr, "gpu_on_cpu: no memory for %u threads\n", block);
        abort();
    }
    madvise(stacks, block * STACK_BYTES, MADV_NOHUGEPAGE); /* a page or two of each is used */
    group = made;
    *made = (struct group){
        .kernel = kernel, .ask = ask, .block_size = {block}, .grid_size = {grid}};
    for (unsigned i = 0; i < block; i++)
        made->fiber[i].stack = stacks + i * STACK_BYTES;
    for (made->block.x = 0; made->block.x < grid; made->block.x++)
        run_group();
    munmap(stacks, block * STACK_BYTES);
    free(made);
    group = NULL;
}

/* ---- the dialect of GPUs, as far as cast.cu uses it ---- */

typedef struct {
    _Alignas(16) unsigned x;
    unsigned y, z, w;
} uint4;
typedef struct {
    _Alignas(8) unsigned x;
    unsigned y;
} uint2;

static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline long long __double_as_longlong(double x)
{
    long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double __longlong_as_double(long long bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline void raise32(unsigned *at, unsigned value)
{
    *at = value > *at ? value : *at;
}

static inline void raise64(unsigned long long *at, unsigned long long value)
{
    *at = value > *at ? value : *at;
}

#define __global__ static
#define __device__
#define __shared__      static _Thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __noinline__                      __attribute__((noinline))
#define threadIdx                         (group->fiber[group->current].thread)
#define blockIdx                          (group->block)
#define blockDim                          (group->block_size)
#define gridDim                           (group->grid_size)
#define __syncthreads()                   meet(MEET_BARRIER)
#define __syncwarp()                      meet(MEET_WARP_BARRIER)
#define __shfl_xor_sync(all, value, bits) exchange(value, bits)
#define __all_sync(all, is)               all_of_warp(is)
#define __fmaf_rn(a, b, c)                fmaf(a, b, c)
#define __fma_rn(a, b, c)                 fma(a, b, c)
#define atomicAdd(at, value)              ((void)(*(at) += (value)))
#define atomicMax(at, value)                                                                       \
    _Generic((at), unsigned * : raise32, unsigned long long * : raise64)(at, value)

bool gpu_on_cpu_has_pairs;
#define HAS_PAIRS gpu_on_cpu_has_pairs

/* Warnings of our C that the dialect's compilers do not have. */
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "cast.cu"

unsigned gpu_on_cpu_pairs_differ(unsigned scale_byte)
{
    const struct by by = by_byte(scale_byte);
    unsigned count = 0;
    for (u32 a = 0; a < BF16_INF; a++) {
        float x = float_of(a << 16), q = quotient(1, x, by);
        for (int kind = E2M1; kind <= E2M1_CLIP; kind += E2M1_CLIP - E2M1) {
            if (!is_quick(kind, by, q))
                continue;
            u32 error, code = e2m1_pair(kind, a | a << 16, by, &error);
            float value = nearest_float(E2M1, kind == E2M1_CLIP, q);
            float d = __fmaf_rn(-value, by.scale, x);
            count += code != (raised_code(E2M1, value) >> 16) * 0x10001u;
            count += (error & MAGNITUDES) != (bits_of(fabsf(d)) >> 16) * 0x10001u;
        }
    }
    return count;
}

gpu_kernel *gpu_on_cpu_find(const char *name)
{
#define ENTRY(kernel)                                                                              \
    {                                                                                              \
#kernel, kernel                                                                            \
    }
    static const struct {
        const char *name;
        gpu_kernel *kernel;
    } all[] = {ENTRY(k3_cast_mxfp4),       ENTRY(k3_cast_mxfp8),       ENTRY(k3_cast_mxfp4_floor),
               ENTRY(k3_cast_mxfp4_mse),   ENTRY(k3_cast_mxfp8_mse),   ENTRY(k3_cast_nvfp4),
               ENTRY(k3_cast_int4),        ENTRY(k3_cast_int4_g128),   ENTRY(k3_cast_int8),
               ENTRY(k3_cast_fp8_rows),    ENTRY(k3_cast_fp8_block),   ENTRY(k3_cast_mx_bf16),
               ENTRY(k3_cast_fp8_channel), ENTRY(k3_cast_mx_mxfp8),    ENTRY(k3_cast_mx_nvfp4),
               ENTRY(k3_cast_mx_int8),     ENTRY(k3_cast_mx_fp8_block)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name))
            return all[i].kernel;
    return NULL;
}

void gpu_on_cpu_cast(unsigned kernel, unsigned grid, unsigned block, const struct k3_cast_ask *ask)
{
    gpu_on_cpu_run(gpu_on_cpu_find(k3_cast_kernels[kernel]), grid, block, ask);
}
