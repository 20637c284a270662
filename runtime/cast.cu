/* Casts of rows (docs/QUANTIZATION.md) for nvcc, hipcc and hipRTC alike: no headers but our own.
 * These stand in front of this file where there are no files to include.  C with what GPUs add to
 * it and no C++, so that tests run this very source on a CPU (tests/gpu_on_cpu.h).
 *
 * Every byte and every sum is that of formats/quant_bf16.c and cast_mxfp4.c.  No multiplication and
 * addition may be fused but where __fmaf_rn or __fma_rn says so. */
#ifndef K3_CAST_ASK_H
#include "cast_ask.h"
#endif
#ifndef K3_CAST_NUM_CUH
#include "cast_num.cuh"
#endif
#ifndef K3_CAST_PAIRS_CUH
#include "cast_pairs.cuh"
#endif
#ifndef K3_CAST_ROWS_CUH
#include "cast_rows.cuh"
#endif
#ifndef K3_CAST_GROUPS_CUH
#include "cast_groups.cuh"
#endif
#ifndef K3_CAST_FP8_CUH
#include "cast_fp8.cuh"
#endif
#ifndef K3_CAST_MX_CUH
#include "cast_mx.cuh"
#endif
