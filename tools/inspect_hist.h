/* Histograms of what tensors hold: values and scales by the power of two of their magnitude, packed
 * codes by what they stand for. */
#ifndef K3_INSPECT_HIST_H
#define K3_INSPECT_HIST_H

#include "doc.h"
#include "dtype.h"
#include "k3_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the elements of a tensor or view are, by its name and dtype. */
enum k3_hist_kind {
    K3_HIST_NONE,   /* no histogram: a shape, a type that is not decoded */
    K3_HIST_VALUES, /* numbers of the dtype */
    K3_HIST_SCALES, /* numbers of the dtype that scale others */
    K3_HIST_GLOBALS,
    K3_HIST_E8M0, /* scales: exponents in bytes */
    K3_HIST_E2M1, /* codes of four bits, the first in the low ones */
    K3_HIST_INT4, /* codes q + 8, the same order */
    K3_HIST_KIND_COUNT
};
enum k3_hist_kind k3_hist_kind_of(const char *name, bool is_view, enum k3_dtype dtype);

/* Bins: 0, subnormal numbers, each power of two, infinite, NaN; of codes 0 and each magnitude. */
#define K3_HIST_BIN_COUNT                                                                          \
    2104u /* powers of FP64 and of integers of 64 bits, and the other four                         \
           */

struct k3_hist {
    uint64_t bin[K3_HIST_BIN_COUNT][2]; /* positive, negative */
    uint64_t *patterns; /* of types of up to 16 bits: how often each stands there; owned */
    uint64_t element_count, tensor_count;
    uint8_t kind, dtype;
};

/* One for each kind and dtype that occurs; zeroed to begin with. */
struct k3_hists {
    struct k3_hist *list; /* owned */
    uint32_t count;
};

/* The histogram to add a tensor of this kind and dtype to (not K3_HIST_NONE); it stays in place
 * until the next one is opened.  Counts the tensor.  Fails: K3_ENOMEM. */
int k3_hists_open(struct k3_hists *hists, enum k3_hist_kind kind, enum k3_dtype dtype,
                  struct k3_hist **out, struct k3_err *err);

/* Add elements; `bytes` is a multiple of the size of one (of codes: any). */
void k3_hist_add(struct k3_hist *hist, const uint8_t *data, size_t bytes);

/* Add the array "histograms"; false without memory. */
bool k3_hists_show(struct k3_hists *hists, struct k3_doc *root);
void k3_hists_close(struct k3_hists *hists); /* safe on a zeroed struct */

#endif
