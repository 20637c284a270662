/* Purpose: the form of the inner loops of casts that this CPU runs.
 * Owns: the choice of a form.
 * Threads: any; what the CPU runs is found once and kept in an atomic, as is a forced form.
 * Errors: none.
 * Invariants: a form is chosen only where it was built and CPU and operating system have what it
 * needs. */
#include "quant_ops.h"

#include "quant_x86.h"

#include <assert.h>
#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* A form that was not built has no row. */
static const struct k3_quant_ops *const table[K3_QUANT_FORM_COUNT] = {
    [K3_QUANT_SCALAR] = &k3_quant_ops_scalar,
#if defined(__x86_64__)
    [K3_QUANT_AVX2] = &k3_quant_ops_avx2,
    [K3_QUANT_AVX512] = &k3_quant_ops_avx512,
#endif
};

#define FORM_BIT(form) (1u << (form))
#define KNOWN          FORM_BIT(K3_QUANT_FORM_COUNT) /* set once the CPU was asked; never 0 then */

static atomic_uint runs; /* FORM_BIT of each form that runs here, KNOWN */

static atomic_int forced = K3_QUANT_FORM_COUNT; /* a form, or none */

#if defined(__x86_64__)

/* CPUID and XCR0 bits by their place in the manuals of Intel and AMD. */
#define ECX1_OSXSAVE (1u << 27)
#define ECX1_AVX     (1u << 28)
#define EBX7_AVX2    (1u << 5)
#define EBX7_AVX512  (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define XCR0_AVX     0x6u  /* the system keeps XMM and YMM registers */
#define XCR0_AVX512  0xe6u /* and mask and all ZMM registers */

static uint32_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    (void)high;
    return low;
}

static bool has(uint32_t flags, uint32_t wanted)
{
    return (flags & wanted) == wanted;
}

static unsigned cpu_forms(void)
{
    uint32_t eax, ebx, ecx, edx, ebx7, ecx7;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) ||
        !__get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx) || !has(ecx, ECX1_OSXSAVE | ECX1_AVX))
        return 0;
    uint32_t kept = xcr0();
    unsigned forms = 0;
    if (has(ebx7, EBX7_AVX2) && has(kept, XCR0_AVX))
        forms |= FORM_BIT(K3_QUANT_AVX2);
    if (has(ebx7, EBX7_AVX512) && has(kept, XCR0_AVX512))
        forms |= FORM_BIT(K3_QUANT_AVX512);
    return forms;
}

#else

static unsigned cpu_forms(void)
{
    return 0;
}

#endif

bool k3_quant_form_runs(enum k3_quant_form form)
{
    unsigned forms = atomic_load_explicit(&runs, memory_order_relaxed);
    if (forms == 0) {
        forms = cpu_forms() | FORM_BIT(K3_QUANT_SCALAR) | KNOWN;
        atomic_store_explicit(&runs, forms, memory_order_relaxed);
    }
    return form >= 0 && form < K3_QUANT_FORM_COUNT && (forms & FORM_BIT(form)) != 0;
}

const char *k3_quant_form_name(enum k3_quant_form form)
{
    static const char *const name[K3_QUANT_FORM_COUNT] = {
        [K3_QUANT_AVX512] = "AVX-512",
        [K3_QUANT_AVX2] = "AVX2",
        [K3_QUANT_SCALAR] = "scalar",
    };
    assert(form >= 0 && form < K3_QUANT_FORM_COUNT);
    return name[form];
}

void k3_quant_force(enum k3_quant_form form)
{
    assert(form == K3_QUANT_FORM_COUNT || k3_quant_form_runs(form));
    atomic_store_explicit(&forced, (int)form, memory_order_relaxed);
}

enum k3_quant_form k3_quant_form(void)
{
    int form = atomic_load_explicit(&forced, memory_order_relaxed);
    if (form == K3_QUANT_FORM_COUNT)
        for (form = K3_QUANT_AVX512; !k3_quant_form_runs((enum k3_quant_form)form);)
            form++; /* scalar, the last, always runs */
    return (enum k3_quant_form)form;
}

const struct k3_quant_ops *k3_quant_ops(void)
{
    return table[k3_quant_form()];
}
