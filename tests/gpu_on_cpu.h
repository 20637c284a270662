/* The kernels of runtime/cast.cu on a CPU: the same source, compiled as C, each GPU thread a fiber
 * of the calling thread.  Fibers change only where GPU threads meet (barriers, exchanges), in the
 * order of their numbers, so a run is deterministic; that all of a group of threads come to the
 * same meetings is checked, and the program ends where they do not.
 * Not modelled: races within a group between two meetings, and between groups (they run one behind
 * the other).  Any thread, several at once. */
#ifndef GPU_ON_CPU_H
#define GPU_ON_CPU_H

#include "cast_ask.h"

#include <stdbool.h>

/* Kernels do as on a GPU that computes with pairs of BF16; set before a run. */
extern bool gpu_on_cpu_has_pairs;

/* Of all BF16 magnitudes that are quick by this scale byte: how many have other E2M1 codes or
 * errors by pairs of BF16 than by FP32. */
unsigned gpu_on_cpu_pairs_differ(unsigned scale_byte);

typedef void gpu_kernel(const struct k3_cast_ask ask);

/* The kernel of this name; NULL: there is none. */
gpu_kernel *gpu_on_cpu_find(const char *name);

/* Run `grid` groups of `block` threads to their end.  Addresses in *ask are addresses here. */
void gpu_on_cpu_run(gpu_kernel *kernel, unsigned grid, unsigned block,
                    const struct k3_cast_ask *ask);

/* The same for number `kernel` of k3_cast_kernels. */
void gpu_on_cpu_cast(unsigned kernel, unsigned grid, unsigned block, const struct k3_cast_ask *ask);

#endif
