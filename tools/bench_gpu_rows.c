/* Purpose: the rows of --device: copies from pinned memory, checks on the device.
 * Owns: the device while a measurement runs: a load after it finds all memory free.
 * Threads: the main thread.
 * Errors: K3_EUNSUPPORTED where no device was named, or it is not there; those of the device.
 * Invariant: pool and slots are those of a load. */
#include "bench.h"
#include "gpu_api.h"
#include "load_internal.h"

#define POOL_BYTES ((uint64_t)K3_LOAD_POOL_BYTES)
/* 64 MiB on each lane: a launch of a load. */
#define DATA_BYTES (K3_BENCH_DEV_LANES * K3_LOAD_BATCH_UNITS * (uint64_t)K3_UNIT_BYTES)
#define COPY_NS    500000000u /* 27 GB on the fastest bus so far */
#define CHECK_NS   250000000u

int k3_bench_device_take(struct k3_bench *bench, struct k3_err *err)
{
    struct k3_load_devices devices;
    struct k3_gpu_about about;
    int rc = k3_load_devices_parse(bench->opts->device, &devices, err);
    if (rc)
        return rc;
    if (devices.count != 1)
        return k3_fail(err, K3_EUSAGE, "--device %.100s: bench measures one device at a time",
                       bench->opts->device);
    if (devices.ops == &k3_dev_host)
        return 0;
    bench->device_ops = devices.ops;
    bench->device_index = devices.indices[0];
    enum k3_gpu_kind kind = devices.ops == &k3_dev_cuda ? K3_GPU_CUDA : K3_GPU_HIP;
    /* Where it is not there, its rows will say so. */
    if (k3_gpu_ask(kind, bench->device_index, &about, NULL) == 0)
        bench->device_free_bytes = about.free_bytes;
    return 0;
}

int k3_bench_device_named(const struct k3_bench *bench, struct k3_err *err)
{
    if (bench->device_ops)
        return 0;
    return k3_fail(err, K3_EUNSUPPORTED, "needs --device cuda:N or hip:N");
}

static int open_device(struct k3_bench *bench, struct k3_err *err)
{
    int rc = k3_bench_device_named(bench, err);
    return rc ? rc
              : k3_bench_dev_open(bench->device_ops, bench->device_index, POOL_BYTES, DATA_BYTES,
                                  &bench->device, err);
}

int k3_bench_bus(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                 struct k3_err *err)
{
    (void)row;
    int rc = open_device(bench, err);
    if (rc)
        return rc;
    rc = k3_bench_dev_copy(&bench->device, COPY_NS, gb_per_s, err);
    k3_bench_dev_close(&bench->device);
    return rc;
}

int k3_bench_device_hash(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                         struct k3_err *err)
{
    (void)row;
    int rc = open_device(bench, err);
    if (rc)
        return rc;
    rc = k3_bench_dev_check(&bench->device, CHECK_NS, gb_per_s, err);
    k3_bench_dev_close(&bench->device);
    return rc;
}
