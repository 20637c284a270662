/* How fast a device takes copies from pinned memory, and checks units: the plug table of devices
 * driven as a load drives it, without reads.  bench and doctor share it. */
#ifndef K3_BENCH_DEV_H
#define K3_BENCH_DEV_H

#include "dev.h"

#include <stdbool.h>

#define K3_BENCH_DEV_LANES 4u /* of checks */

struct k3_bench_dev {
    const struct k3_dev_ops *ops;
    struct k3_dev *dev;  /* owned, as is all below */
    uint8_t *pool;       /* host memory, registered: pool_bytes of units that are no zeros */
    uint8_t *digests;    /* of the units of the pool */
    uint8_t *results[2]; /* of the units of data */
    void *data;          /* device memory: the pool, over and over */
    uint64_t pool_bytes, data_bytes;
    uint64_t op_counts[K3_BENCH_DEV_LANES]; /* operations begun */
    bool is_pinned;
};

/* Open device `index`, pin a pool of pool_bytes (a multiple of 16 MiB) near it, fill data_bytes (as
 * many, or two or four times that) of its memory from the pool and check them there.  Fails as the
 * device does: K3_EUNSUPPORTED where there is none or it has not so much memory.  On failure
 * nothing is held. */
int k3_bench_dev_open(const struct k3_dev_ops *ops, uint32_t index, uint64_t pool_bytes,
                      uint64_t data_bytes, struct k3_bench_dev *out, struct k3_err *err);
void k3_bench_dev_close(struct k3_bench_dev *dev);

/* Copies of 8 MiB from the pool to data, for nanoseconds at least, a whole pool at least. */
int k3_bench_dev_copy(struct k3_bench_dev *dev, uint64_t nanoseconds, double *gb_per_s,
                      struct k3_err *err);
/* Checks of all data, each answer looked at.  K3_EDEVICE: an answer is wrong. */
int k3_bench_dev_check(struct k3_bench_dev *dev, uint64_t nanoseconds, double *gb_per_s,
                       struct k3_err *err);

#endif
