/* Purpose: launches of the kernels of cast.cu on the fake driver: their own source, run on this
 * machine by gpu_on_cpu.
 * Owns: nothing; memory of the device is borrowed for the time of a launch.
 * Threads: those of streams, several at once.
 * Errors: codes of the drivers, with which the device breaks.
 * Invariants: a kernel sees nothing but memory of the device that was allocated; bytes behind the
 * end of what it may write stay as they were. */
#include "fake_gpu.h"

#include "gpu_on_cpu.h"

#include <string.h>

enum { X, X_SCALE, WEIGHT, SCALE, RESULT, ADDRESS_COUNT };

/* The rest of the page behind a region's end: zero, and nobody's. */
static bool is_intact(const struct fake_region *region)
{
    const char *end = region->host + region->bytes, *base = region->base;
    for (const char *at = end; at < base + region->base_bytes; at++)
        if (*at)
            return false;
    return true;
}

/* Addresses of the device become those of this machine. */
static int borrow_all(struct k3_cast_ask *ask, struct fake_region *regions[ADDRESS_COUNT])
{
    k3_u64 *const addresses[ADDRESS_COUNT] = {&ask->x, &ask->x_scale, &ask->weight, &ask->scale,
                                              &ask->result};
    int code = 0;
    for (int i = 0; i < ADDRESS_COUNT && !code; i++) {
        if (*addresses[i] % K3_CAST_ALIGN)
            code = FAKE_MISALIGNED;
        else if (*addresses[i]) {
            char *data = fake_borrow((uintptr_t)*addresses[i], 1, true, &regions[i]);
            code = data ? 0 : FAKE_ILLEGAL_ADDRESS;
            *addresses[i] = (uintptr_t)data;
        }
    }
    return code;
}

int fake_run_cast(const struct fake_cast *cast, enum fake_fault_kind fault)
{
    struct fake_region *regions[ADDRESS_COUNT] = {NULL};
    struct k3_cast_ask ask = cast->ask;
    int code = borrow_all(&ask, regions);
    if (!code && fault != FAULT_IDLE) {
        struct k3_cast_result *result = (struct k3_cast_result *)(uintptr_t)ask.result;
        gpu_on_cpu_run(gpu_on_cpu_find(k3_cast_kernels[cast->kernel]), cast->grid, cast->block,
                       &ask);
        if (fault == FAULT_OTHER)
            *(char *)(uintptr_t)ask.weight ^= 1;
        if (fault == FAULT_NO)
            result->refused++;
        if (fault == FAULT_YES)
            result->refused = 0;
    }
    for (int i = 0; i < ADDRESS_COUNT; i++) {
        if (regions[i] && !is_intact(regions[i]))
            code = FAKE_ILLEGAL_ADDRESS;
        fake_release(regions[i]);
    }
    return code;
}
