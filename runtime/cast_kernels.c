/* Purpose: the GPU code of casts as this build carries it.
 * Owns: the embedded bytes (constant).
 * Threads: any.
 * Errors: none.
 * Invariants: an empty embedding means that the compiler was not there when this was built; nothing
 * but cast_gpu.c asks for it, so that programs that never cast do not carry it. */
#include "cast_call.h"
#include "gpu_embed.h"
#include "gpu_kernels.h"

EMBED(k3_cast_cuda, CUDA_BYTES("cast"));
EMBED(k3_cast_hip, HIP_BYTES("cast"));
/* hipRTC has no headers: they come first.  The byte behind it all ends the string. */
EMBED(k3_cast_source,
      SOURCE_BYTES("cast_ask.h") SOURCE_BYTES("cast_num.cuh") SOURCE_BYTES("cast_pairs.cuh")
          SOURCE_BYTES("cast_rows.cuh") SOURCE_BYTES("cast_groups.cuh") SOURCE_BYTES("cast_fp8.cuh")
              SOURCE_BYTES("cast_mx.cuh") SOURCE_BYTES("cast.cu"));

const struct k3_gpu_program k3_cast_program = {
    .file = "cast.cu",
    .source = k3_cast_source_begin,
    .cuda = k3_cast_cuda_begin,
    .hip = k3_cast_hip_begin,
    .hip_end = k3_cast_hip_end,
    .names = k3_cast_kernels,
};
