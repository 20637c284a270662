/* Casts on a GPU: what k3_quant_rows and k3_mx_rows do, by the kernels of cast.cu.  Rows lie in
 * memory of the host and come back there; bytes, statistics and errors are those of the CPU. */
#ifndef K3_CAST_GPU_H
#define K3_CAST_GPU_H

#include "cast_mxfp4.h"
#include "gpu_api.h"

/* Which GPU. */
struct k3_cast_place {
    enum k3_gpu_kind kind;
    uint32_t index;
};

struct k3_cast_gpu;  /* one GPU with the code of casts; any thread, several lanes */
struct k3_cast_lane; /* what one thread at a time casts with: a stream and its buffers */

/* Pinned memory of a lane; its memory on the device grows with what is cast. */
#define K3_CAST_LANE_BYTES ((size_t)2 << 20)

/* Open it and cast a small matrix to every format, which must come out as the CPU has it.  Fails:
 * K3_EUNSUPPORTED (no driver, no such GPU, no code for it), K3_EDEVICE (it fails, or differs). */
int k3_cast_gpu_open(const struct k3_cast_place *place, struct k3_cast_gpu **out,
                     struct k3_err *err);
void k3_cast_gpu_close(struct k3_cast_gpu *gpu); /* after its lanes; NULL is fine */

int k3_cast_lane_open(struct k3_cast_gpu *gpu, struct k3_cast_lane **out, struct k3_err *err);
void k3_cast_lane_close(struct k3_cast_lane *lane); /* NULL is fine */

/* Cast rows in `from` (K3_Q_BF16 or K3_Q_MXFP4) as k3_quant_route says; rows, statistics and errors
 * as of k3_quant_rows and k3_mx_rows, of which VIA_BF16 is both, the statistics being those of the
 * second.  K3_EDEVICE: the GPU failed, or calls a value bad that the CPU does not; the lane is then
 * of no more use.  K3_EUNSUPPORTED also where its memory does not hold the rows. */
int k3_cast_gpu_rows(struct k3_cast_lane *lane, const struct k3_quant *quant, enum k3_qfmt from,
                     const struct k3_qrows *rows, struct k3_qstats *stats, struct k3_err *err);

/* For tests: so many bytes of rows go into one launch, at least 128 rows. */
void k3_cast_lane_limit(struct k3_cast_lane *lane, uint64_t bytes);

#endif
