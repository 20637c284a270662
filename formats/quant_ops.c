/* Purpose: the form of the inner loops of casts that this CPU runs.
 * Owns: the choice of a form.
 * Threads: any; a forced form is kept in an atomic.
 * Errors: none.
 * Invariants: a form is chosen only where it was built and CPU and operating system have what it
 * needs. */
#include "quant_ops.h"

#include <assert.h>
#include <stdatomic.h>

/* A form that was not built has no row. */
static const struct k3_quant_ops *const table[K3_QUANT_FORM_COUNT] = {
    [K3_QUANT_SCALAR] = &k3_quant_ops_scalar,
};

static atomic_int forced = K3_QUANT_FORM_COUNT; /* a form, or none */

bool k3_quant_form_runs(enum k3_quant_form form)
{
    return form >= 0 && form < K3_QUANT_FORM_COUNT && table[form];
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
