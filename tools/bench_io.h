/* Timed reads into a small pool of slots that is used again and again: what storage gives, apart
 * from what a load does with it.  bench and doctor share it. */
#ifndef K3_BENCH_IO_H
#define K3_BENCH_IO_H

#include "io.h"

#define K3_BENCH_CHUNK_BYTES (4u << 20) /* as fio is run, and as a load reads */

struct k3_bench_chunk {
    uint64_t offset;
    uint32_t bytes; /* at most K3_BENCH_CHUNK_BYTES */
    uint32_t file;  /* index in fds */
};

struct k3_bench_reads {
    const struct k3_io_ops *io;
    const int *fds; /* borrowed */
    const struct k3_bench_chunk *chunks;
    uint64_t chunk_count;
    uint64_t limit_ns; /* begin no read after this time; 0: read all */
    uint32_t fd_count;
    uint32_t depth; /* reads in flight */
    bool is_direct;
};

struct k3_bench_rate {
    uint64_t bytes;
    double seconds; /* from the first submission to the last completion */
};

/* Fails: K3_EUNSUPPORTED (the engine or direct reads are refused), K3_EIO, K3_ENOMEM, K3_ECANCELED
 * (stopped by a signal), K3_ECORRUPT (a file is shorter than its chunks). */
int k3_bench_read(const struct k3_bench_reads *reads, struct k3_bench_rate *rate,
                  struct k3_err *err);

double k3_bench_gb_per_s(const struct k3_bench_rate *rate);

#endif
