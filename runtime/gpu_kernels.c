/* Purpose: the GPU code of this build: what is embedded, and getting it onto a GPU.
 * Owns: the embedded bytes (constant).
 * Threads: any.
 * Errors: K3_EUNSUPPORTED (nothing fits this GPU), K3_EDEVICE, K3_ENOMEM.
 * Invariants: an empty embedding means that the compiler was not there when this was built. */
#include "gpu_kernels.h"

#include "gpu_embed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EMBED(k3_check_cuda, CUDA_BYTES("unit_check"));
EMBED(k3_check_hip, HIP_BYTES("unit_check"));
/* The byte behind it ends the string. */
EMBED(k3_check_source, SOURCE_BYTES("unit_check.cu"));

static const char *const names[] = {K3_UNIT_CHECK_NAME, NULL};

const struct k3_gpu_program k3_unit_check_program = {
    .file = "unit_check.cu",
    .source = k3_check_source_begin,
    .cuda = k3_check_cuda_begin,
    .hip = k3_check_hip_begin,
    .hip_end = k3_check_hip_end,
    .names = names,
};

int k3_gpu_kernels_probe(enum k3_gpu_kind kind, struct k3_err *err)
{
    if (kind == K3_GPU_HIP || &k3_check_cuda_end[0] != &k3_check_cuda_begin[0])
        return 0;
    return k3_fail(err, K3_EUNSUPPORTED,
                   "device cuda: this build has no CUDA code: nvcc was not there when it was made; "
                   "build it where CUDA 12 or 13 is installed");
}

static int load_module(const struct k3_gpu *gpu, const struct k3_gpu_program *program,
                       const void *image, struct k3_gpu_code *code, struct k3_err *err)
{
    int rc = 0;
    int result = gpu->api->module_load(&code->module, image);
    if (result != K3_GPU_SUCCESS) {
        code->module = NULL;
        return k3_fail(err, K3_EUNSUPPORTED, "device %s:%u: its code does not load: %s",
                       gpu->api->name, gpu->index, k3_gpu_error_name(gpu->api, result));
    }
    for (uint32_t f = 0; program->names[f] && !rc; f++) {
        char what[96];
        snprintf(what, sizeof what, "its code lacks %s", program->names[f]);
        result = gpu->api->module_function(&code->functions[f], code->module, program->names[f]);
        rc = k3_gpu_judge(gpu, result, what, err);
    }
    if (!rc)
        return 0;
    (void)gpu->api->module_unload(code->module);
    code->module = NULL;
    return rc;
}

/* Code made ahead knows only the GPUs that its compiler knew: what is compiled here comes first. */
static int load_hip(const struct k3_gpu *gpu, const struct k3_gpu_program *program,
                    struct k3_gpu_code *code, struct k3_err *err)
{
    char *image = NULL;
    struct k3_err first;
    k3_err_init(&first);
    code->how = "compiled by hipRTC for this GPU";
    int rc = k3_hiprtc_compile(program->source, program->file, &image, &first);
    if (!rc)
        rc = load_module(gpu, program, image, code, &first);
    free(image);
    if (!rc)
        return 0;
    if (program->hip == program->hip_end)
        return k3_fail(err, rc, "%s; and this build has no code made ahead (hipcc was not there)",
                       first.text);
    code->how = "made ahead by hipcc";
    struct k3_err second;
    k3_err_init(&second);
    rc = load_module(gpu, program, program->hip, code, &second);
    return rc ? k3_fail(err, rc, "%.200s; and of the code made ahead: %.200s", first.text,
                        second.text)
              : 0;
}

int k3_gpu_kernels_load(const struct k3_gpu *gpu, const struct k3_gpu_program *program,
                        struct k3_gpu_code *code, struct k3_err *err)
{
    memset(code, 0, sizeof *code);
    int rc = k3_gpu_kernels_probe(gpu->api->kind, err);
    if (rc)
        return rc;
    if (gpu->api->kind == K3_GPU_HIP)
        return load_hip(gpu, program, code, err);
    code->how = "made ahead by nvcc";
    return load_module(gpu, program, program->cuda, code, err);
}
