/* Engines that read files straight into the memory of a GPU: NVIDIA's cuFile, AMD's hipFile.
 *
 * Both libraries may bring the bytes through host memory instead, without a word; k3_gpufile_way
 * says what they tell of it. */
#ifndef K3_IO_GPUFILE_H
#define K3_IO_GPUFILE_H

#include "gpu_api.h"
#include "io.h"

#include <stdbool.h>

/* Past the page cache, always; k3_io_options.gpu is the GPU whose memory reads land in, `regions`
 * its allocations.  Reads elsewhere on it work as well. */
extern const struct k3_io_ops k3_io_cufile;
extern const struct k3_io_ops k3_io_hipfile;

enum k3_gpufile_way {
    K3_GPUFILE_BOUNCE, /* through host memory: compatibility mode, fallback */
    K3_GPUFILE_UNTOLD, /* the library does not say */
    K3_GPUFILE_DIRECT  /* by DMA from the drive, where the file's drive and file system allow it */
};

/* Of an open engine of this file; *why has the reason, but for DIRECT. */
enum k3_gpufile_way k3_gpufile_way(const struct k3_io *io, struct k3_err *why);

/* Is it worth opening the engine to see whether it goes direct?  Does not start the library, which
 * would take time and leave a log file behind.  False: *why. */
bool k3_gpufile_is_promising(enum k3_gpu_kind kind, struct k3_err *why);

#endif
