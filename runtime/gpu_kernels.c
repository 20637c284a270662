/* Purpose: the GPU code of this build: what is embedded, and getting it onto a GPU.
 * Owns: the embedded bytes (constant).
 * Threads: any.
 * Errors: K3_EUNSUPPORTED (nothing fits this GPU), K3_EDEVICE, K3_ENOMEM.
 * Invariants: an empty embedding means that the compiler was not there when this was built. */
#include "gpu_kernels.h"

#include <stdlib.h>

#ifdef K3_CUDA_FATBIN
#define CUDA_BYTES ".incbin \"" K3_CUDA_FATBIN "\"\n"
#else
#define CUDA_BYTES ""
#endif
#ifdef K3_HIP_OBJECT
#define HIP_BYTES ".incbin \"" K3_HIP_OBJECT "\"\n"
#else
#define HIP_BYTES ""
#endif
#ifndef K3_UNIT_CHECK_SOURCE /* the Makefile says where it is; this is for analysers alone */
#define K3_UNIT_CHECK_SOURCE "runtime/unit_check.cu"
#endif

/* 64: an image of code is read in place by the drivers, which want it aligned. */
#define EMBED(name, bytes)                                                                         \
    __asm__(".pushsection .rodata\n"                                                               \
            ".balign 64\n"                                                                         \
            ".global " #name "_begin\n"                                                            \
            ".hidden " #name "_begin\n" #name "_begin:\n" bytes ".global " #name "_end\n"          \
            ".hidden " #name "_end\n" #name "_end:\n"                                              \
            ".byte 0\n"                                                                            \
            ".popsection\n");                                                                      \
    extern const char name##_begin[];                                                              \
    extern const char name##_end[]

EMBED(k3_cuda_fatbin, CUDA_BYTES);
EMBED(k3_hip_object, HIP_BYTES);
/* The byte behind it ends the string. */
EMBED(k3_unit_check_source, ".incbin \"" K3_UNIT_CHECK_SOURCE "\"\n");

int k3_gpu_kernels_probe(enum k3_gpu_kind kind, struct k3_err *err)
{
    if (kind == K3_GPU_HIP || &k3_cuda_fatbin_end[0] != &k3_cuda_fatbin_begin[0])
        return 0;
    return k3_fail(err, K3_EUNSUPPORTED,
                   "device cuda: this build has no CUDA code: nvcc was not there when it was made; "
                   "build it where CUDA 12 or 13 is installed");
}

static int load_module(const struct k3_gpu *gpu, const void *image, struct k3_gpu_module **module,
                       struct k3_gpu_function **function, struct k3_err *err)
{
    int code = gpu->api->module_load(module, image);
    if (code != K3_GPU_SUCCESS) {
        *module = NULL;
        return k3_fail(err, K3_EUNSUPPORTED, "device %s:%u: its code does not load: %s",
                       gpu->api->name, gpu->index, k3_gpu_error_name(gpu->api, code));
    }
    code = gpu->api->module_function(function, *module, K3_UNIT_CHECK_NAME);
    if (code == K3_GPU_SUCCESS)
        return 0;
    (void)gpu->api->module_unload(*module);
    *module = NULL;
    return k3_gpu_judge(gpu, code, "its code lacks " K3_UNIT_CHECK_NAME, err);
}

/* Code made ahead knows only the GPUs that its compiler knew: what is compiled here comes first. */
static int load_hip(const struct k3_gpu *gpu, struct k3_gpu_module **module,
                    struct k3_gpu_function **function, const char **how, struct k3_err *err)
{
    char *code = NULL;
    struct k3_err first;
    k3_err_init(&first);
    *how = "compiled by hipRTC for this GPU";
    int rc = k3_hiprtc_compile(k3_unit_check_source_begin, &code, &first);
    if (!rc)
        rc = load_module(gpu, code, module, function, &first);
    free(code);
    if (!rc)
        return 0;
    if (&k3_hip_object_end[0] == &k3_hip_object_begin[0])
        return k3_fail(err, rc, "%s; and this build has no code made ahead (hipcc was not there)",
                       first.text);
    *how = "made ahead by hipcc";
    struct k3_err second;
    k3_err_init(&second);
    rc = load_module(gpu, k3_hip_object_begin, module, function, &second);
    return rc ? k3_fail(err, rc, "%.200s; and of the code made ahead: %.200s", first.text,
                        second.text)
              : 0;
}

int k3_gpu_kernels_load(const struct k3_gpu *gpu, struct k3_gpu_module **module,
                        struct k3_gpu_function **function, const char **how, struct k3_err *err)
{
    *module = NULL;
    int rc = k3_gpu_kernels_probe(gpu->api->kind, err);
    if (rc)
        return rc;
    if (gpu->api->kind == K3_GPU_HIP)
        return load_hip(gpu, module, function, how, err);
    *how = "made ahead by nvcc";
    return load_module(gpu, k3_cuda_fatbin_begin, module, function, err);
}
