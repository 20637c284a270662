/* Casts out of MXFP4 on bytes, never through floats (docs/QUANTIZATION.md 5).  Pure, as quant.h. */
#ifndef K3_CAST_MXFP4_H
#define K3_CAST_MXFP4_H

#include "quant.h"

#define K3_MX_GROUP       32u /* values of one scale */
#define K3_MX_GROUP_BYTES 16u /* their codes */

/* ---- Pass 1: before anything is written ----
 * Scales alone cannot tell a group of zeros, whose scale does not matter: if they keep within the
 * window the cast is exact; if they do not, only the codes can say.  So for each matrix (w1 and w3
 * together, whose NVFP4 global is one):
 *   scan the scales; k3_mx_fit says FITS, or UNKNOWN, then
 *   NVFP4: scan scales and codes into a window of non-zero groups, ask k3_mx_fit again;
 *   others: k3_mx_breaches, for FP8_BLOCK first without codes: 0 proves that it fits.
 * The window that fitted, or the one of non-zero groups, gives the global. */
struct k3_mx_window {
    uint8_t min, max;   /* scale bytes; min > max: no group was seen */
    bool is_of_nonzero; /* groups of zeros were left out */
};

void k3_mx_window_init(struct k3_mx_window *window, bool is_of_nonzero);
void k3_mx_window_merge(struct k3_mx_window *into, const struct k3_mx_window *other);

/* Widen *window by the scales of these rows; rows->x is read where window->is_of_nonzero, weight
 * and scale are ignored.  K3_EFORMAT with the index of a scale that is NaN (0xFF). */
int k3_mx_scan(const struct k3_quant *quant, const struct k3_qrows *rows,
               struct k3_mx_window *window, struct k3_err *err);

enum k3_mx_fit {
    K3_MX_FITS,    /* the cast is exact */
    K3_MX_UNKNOWN, /* look closer, see above */
    K3_MX_BREACH   /* a group is out of the window */
};
enum k3_mx_fit k3_mx_fit(enum k3_qfmt to, const struct k3_mx_window *window);

/* NVFP4: the global, a power of two, that puts the largest scale at the top of the window; as it is
 * stored (params->conv), and as it goes into struct k3_quant. */
float k3_mx_global(const struct k3_qparams *params, const struct k3_mx_window *window);

/* Add to *count the groups of these rows that the cast cannot give exactly.  rows->x may be NULL:
 * then every group counts as if it held all values, and *count is an upper bound.  count NULL: the
 * first such group is K3_EUNSUPPORTED with its index. */
int k3_mx_breaches(const struct k3_quant *quant, const struct k3_qrows *rows, uint64_t *count,
                   struct k3_err *err);

/* ---- Pass 2 ----
 * To BF16, MXFP8, NVFP4, FP8_BLOCK or INT8_G32 (K3_QROUTE_MX).  FP8_BLOCK: rows as for
 * k3_quant_rows.  Each call looks at codes: with K3_OOW_FAIL a group out of the window is
 * K3_EUNSUPPORTED with its index, whatever pass 1 said; otherwise it is counted. */
int k3_mx_rows(const struct k3_quant *quant, const struct k3_qrows *rows, struct k3_qstats *stats,
               struct k3_err *err);

#endif
