/* A cast of rows as one launch of a kernel of cast.cu: which kernel, how many threads, what it is
 * asked, and what its answer means.  Pure, any thread; launching is not done here. */
#ifndef K3_CAST_CALL_H
#define K3_CAST_CALL_H

#include "cast_ask.h"
#include "quant.h"

struct k3_cast_call {
    const char *kernel;   /* its name in the module; static */
    unsigned grid, block; /* groups of threads, and threads in each; one dimension */
    struct k3_cast_ask ask;
};

/* Names of all kernels, NULL behind the last: for who looks them up once. */
extern const char *const k3_cast_kernels[];
#define K3_CAST_KERNEL_MAX 17

/* Rows out of `from` (K3_Q_BF16 or K3_Q_MXFP4; the route to quant->params.to is K3_QROUTE_QUANT or
 * _MX, and cols divide as k3_qfmt_geometry wants it).  Pointers of `rows` and `result` (struct
 * k3_cast_result, zero) are device addresses, multiples of K3_CAST_ALIGN; row_count > 0. */
void k3_cast_call_make(enum k3_qfmt from, const struct k3_quant *quant, const struct k3_qrows *rows,
                       uint64_t result, struct k3_cast_call *out);

/* Add what the launch of these rows said to *stats.  False, and nothing is added: the cast does not
 * take them, and k3_quant_rows or k3_mx_rows of the same rows says why; or, where these find
 * nothing wrong, the launch did not do all that was asked. */
bool k3_cast_call_take(enum k3_qfmt from, const struct k3_quant *quant, const struct k3_qrows *rows,
                       const struct k3_cast_result *result, struct k3_qstats *stats);

#endif
