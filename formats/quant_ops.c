/* Purpose: the form of the inner loops of casts that this CPU runs.
 * Owns: the choice of a form.
 * Threads: any; what the CPU runs is found once and kept in an atomic, as is a forced form.
 * Errors: none.
 * Invariants: a form is chosen only where it was built and CPU and operating system have what it
 * needs. */
#include "quant_ops.h"

#include "cpu_x86.h"
#include "quant_x86.h"

#include <assert.h>
#include <stdatomic.h>

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

#define EBX7_AVX512 (K3_EBX7_AVX512F | K3_EBX7_AVX512DQ | K3_EBX7_AVX512BW | K3_EBX7_AVX512VL)

static unsigned cpu_forms(void)
{
    const struct k3_cpu_x86 cpu = k3_cpu_x86();
    unsigned forms = 0;
    if (!k3_cpu_has(cpu.ecx1, K3_ECX1_AVX))
        return 0;
    if (k3_cpu_has(cpu.ebx7, K3_EBX7_AVX2) && k3_cpu_has(cpu.xcr0, K3_XCR0_AVX))
        forms |= FORM_BIT(K3_QUANT_AVX2);
    if (k3_cpu_has(cpu.ebx7, EBX7_AVX512) && k3_cpu_has(cpu.xcr0, K3_XCR0_AVX512))
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
