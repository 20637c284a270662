/* The kernel of unit_check.cu as this build carries it: machine code where a compiler was there,
 * and its source for compilers that come with a driver. */
#ifndef K3_GPU_KERNELS_H
#define K3_GPU_KERNELS_H

#include "gpu_api.h"

#define K3_UNIT_CHECK_NAME "k3_check_units"
#ifndef K3_GROUP_UNITS
#define K3_GROUP_UNITS 2u /* units of a group of threads; shared with unit_check.cu */
#endif
#define K3_UNIT_CHECK_THREADS (128u * K3_GROUP_UNITS)

/* What is asked about one unit; layout shared with unit_check.cu. */
struct k3_unit_ask {
    uint64_t data;   /* device address of the unit */
    uint64_t result; /* device address of the answer: one uint32_t, K3_UNIT_RIGHT or _WRONG */
    uint8_t wanted[32];
    uint64_t reserved[2];
};

_Static_assert(sizeof(struct k3_unit_ask) == 64, "layout shared with unit_check.cu");

/* Does this build have code for GPUs of this kind, and which?  K3_EUNSUPPORTED says what to do. */
int k3_gpu_kernels_probe(enum k3_gpu_kind kind, struct k3_err *err);

/* Load the kernel on a GPU that the thread has entered.  *how: where the code came from, static.
 * Fails: K3_EUNSUPPORTED (no code for this GPU), K3_EDEVICE, K3_ENOMEM.  Unload the module. */
int k3_gpu_kernels_load(const struct k3_gpu *gpu, struct k3_gpu_module **module,
                        struct k3_gpu_function **function, const char **how, struct k3_err *err);

/* hipRTC: compile for the GPU that the thread uses; code is malloc'ed.  Fails: K3_EUNSUPPORTED with
 * what it said, K3_ENOMEM. */
int k3_hiprtc_compile(const char *source, char **code, struct k3_err *err);

#endif
