/* Programs for GPUs as this build carries them: machine code where a compiler was there, and the
 * source for compilers that come with a driver. */
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

/* What is embedded of one: a module of its own. */
struct k3_gpu_program {
    const char *file;          /* of its source, for messages */
    const char *source;        /* complete: hipRTC has no files */
    const char *cuda;          /* made by nvcc */
    const char *hip, *hip_end; /* made by hipcc; hip == hip_end: it was not there */
    const char *const *names;  /* of functions, NULL behind the last */
};

extern const struct k3_gpu_program k3_unit_check_program;
extern const struct k3_gpu_program k3_cast_program; /* cast_kernels.c; some MB: not in libk3load */

#define K3_GPU_FUNCTION_COUNT_MAX 17u

/* A program on one GPU. */
struct k3_gpu_code {
    struct k3_gpu_module *module;
    struct k3_gpu_function *functions[K3_GPU_FUNCTION_COUNT_MAX]; /* as the names */
    const char *how; /* where the code came from, static */
};

/* Load a program on a GPU that the thread has entered.  Fails: K3_EUNSUPPORTED (no code for this
 * GPU), K3_EDEVICE, K3_ENOMEM.  Unload the module. */
int k3_gpu_kernels_load(const struct k3_gpu *gpu, const struct k3_gpu_program *program,
                        struct k3_gpu_code *code, struct k3_err *err);

/* hipRTC: compile for the GPU that the thread uses; `name` is for what it says, code is malloc'ed.
 * Fails: K3_EUNSUPPORTED with what it said, K3_ENOMEM. */
int k3_hiprtc_compile(const char *source, const char *name, char **code, struct k3_err *err);

#endif
