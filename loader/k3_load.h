/* libk3load: bring the images of a shard set into memory, every byte proved there.
 *
 * Open -> run -> look up tensors and views -> close.  A load is one opaque struct, used by one
 * thread at a time; several loads may live side by side.  Nothing is handed out before all units of
 * all ranks of the load passed; after a failure or a cancel the memory's content is undefined.
 * Functions return 0 or a negative enum k3_rc (k3_err.h) and fill *err anew; err may be NULL. */
#ifndef K3_LOAD_H
#define K3_LOAD_H

#include "k3_err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define K3_LOAD_ABI 0 /* soname libk3load.so.0 */

/* Stack that a thread needs that calls the library; what a driver of a GPU takes comes on top. */
#define K3_LOAD_STACK_BYTES (64u << 10)

struct k3_load;

/* Progress, called from the thread that runs the load; non-zero cancels it (K3_ECANCELED). */
typedef int (*k3_load_progress_fn)(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* Memory of the caller for a view, in place of an image of ours: on the device of its rank, at a
 * multiple of 4096, exactly as many bytes as the view has.  The caller owns it; it is borrowed
 * until close.  After a failure or a cancel its content is undefined. */
struct k3_load_bind {
    uint32_t rank;
    const char *view; /* borrowed during open */
    void *data;
    uint64_t bytes;
};

/* Zero it, set struct_bytes, then what you want; zero means the default. */
struct k3_load_options {
    size_t struct_bytes;     /* sizeof(struct k3_load_options) of the caller */
    const char *const *dirs; /* the directories of the set, in any order; borrowed during open */
    uint32_t dir_count;
    const uint32_t *ranks; /* ranks to load; NULL: all of the set; borrowed during open */
    uint32_t rank_count;
    /* "host" (default), "cuda:0", "cuda:0-7", "hip:0,2": one for all ranks, or one for each in
     * order.
     */
    const char *device;
    const char *io;         /* "auto" (default), "uring", "pread", "cufile", "hipfile" */
    uint64_t staging_bytes; /* bytes in flight at most; of a GPU: its pinned pool; 0: 64 MiB */
    int no_verify;          /* 1: units are not checked.  Said in the report. */
    k3_load_progress_fn progress;
    void *progress_context;
    /* All views of all ranks of the load, or none.  A missing view, one that is not there, a wrong
     * size or address: K3_EUSAGE at open, before any data are read. */
    const struct k3_load_bind *binds; /* borrowed during open */
    uint32_t bind_count;
    uint64_t bytes_per_second; /* reads are paced to it, all devices together; 0: no limit */
    /* Each run writes every read, copy and check there, for chrome://tracing and ui.perfetto.dev;
     * NULL: none.  Borrowed during open, which fails where it cannot be made (K3_EIO) and where it
     * is a file of a set or lies in a directory of a set or checkpoint (K3_EUSAGE).  The file
     * appears whole at the end of a run, in place of an older one; a FIFO or device is written to
     * as it is, and a FIFO needs a reader at open. */
    const char *trace_path;
    /* A CUevent or hipEvent_t that the copies of every lane wait for: memory that an allocator gave
     * out while older work on it was still queued.  NULL: none. */
    void *after_event;
};

/* One tensor or view in memory. */
struct k3_load_tensor {
    const char *name;  /* borrowed from the load */
    const char *dtype; /* as in safetensors: "BF16" */
    const void *data;  /* device pointer; borrowed from the load until close */
    uint64_t bytes;
    uint64_t shape[4];
    uint32_t dim_count;
    uint32_t rank;
};

struct k3_load_report {
    uint64_t bytes;          /* image bytes brought up */
    uint64_t verified_bytes; /* of those and of the headers, checked */
    uint64_t reread_units;   /* units that came wrong once and right by another read */
    uint64_t pinned_bytes;
    double seconds;          /* run: first submit to last check */
    double open_seconds;     /* manifest, headers, memory */
    const char *io, *device; /* what ran; borrowed */
    const char *fallbacks;   /* sentences, one a line; "" when there was none; borrowed */
    int direct;              /* 1: read past the page cache */
    /* What the thread of a device waited for in `seconds`, added up over devices: drives, the bus,
     * the last checks, and second reads of what came wrong. */
    double read_wait_seconds, copy_wait_seconds, check_wait_seconds, reread_seconds;
};

/* Ranks on one device share its reads: each has the time of all of them. */
struct k3_load_rank_report {
    uint32_t rank;
    uint64_t bytes; /* 0 before a run that succeeded */
    double seconds;
    const char *io, *device; /* "cuda:0"; borrowed */
};

/* Manifest, units files, part headers (all checked), memory, route.
 * io "auto": parts that sample reads find in memory come by pread through the page cache;
 * others past it by io_uring, else by threads, else through it; what was refused is a line of the
 * report.  "pread": threads, past the cache or through it by the same sample.  "uring": io_uring
 * past the cache, or K3_EUNSUPPORTED.  "cufile" (cuda), "hipfile" (hip): into the memory of the
 * GPU, without a pool of ours, or K3_EUNSUPPORTED; where the library goes through host memory, the
 * report says so.  "auto" takes these two only where they go direct and a sample of both ways is
 * faster. Fails: K3_EIO, K3_ECORRUPT (exit 3), K3_EUNSUPPORTED (a route that is not there; exit 4),
 * K3_ENOMEM, K3_EUSAGE.  On failure *out is NULL.  The caller owns *out. */
int k3_load_open(const struct k3_load_options *options, struct k3_load **out, struct k3_err *err);

/* Read and check everything.  Blocking.  Fails: K3_EIO, K3_ECORRUPT naming file, unit and offset,
 * K3_ECANCELED. */
int k3_load_run(struct k3_load *load, struct k3_err *err);

/* The same in steps, for a caller with a loop of its own.  The first call begins a run; each waits
 * up to `milliseconds` and calls progress.  *finished 0: not over yet, call again; 1: it ended as
 * the return value says. */
int k3_load_step(struct k3_load *load, uint32_t milliseconds, int *finished, struct k3_err *err);

/* Any thread: the run that is under way ends soon, with K3_ECANCELED. */
void k3_load_cancel(struct k3_load *load);

/* The image of a rank: one region, parts one behind the other.  K3_EUSAGE before a run that
 * succeeded. */
int k3_load_image(const struct k3_load *load, uint32_t rank, const void **data, uint64_t *bytes,
                  struct k3_err *err);

/* By index, in image order; counts first.  K3_EUSAGE before a run that succeeded or for an index
 * beyond the count. */
int k3_load_tensor_count(const struct k3_load *load, uint32_t rank, uint32_t *tensors,
                         uint32_t *views, struct k3_err *err);
int k3_load_tensor(const struct k3_load *load, uint32_t rank, uint32_t index,
                   struct k3_load_tensor *out, struct k3_err *err);
int k3_load_view(const struct k3_load *load, uint32_t rank, uint32_t index,
                 struct k3_load_tensor *out, struct k3_err *err);

/* By name; K3_EUSAGE when there is none. */
int k3_load_find_tensor(const struct k3_load *load, uint32_t rank, const char *name,
                        struct k3_load_tensor *out, struct k3_err *err);
int k3_load_find_view(const struct k3_load *load, uint32_t rank, const char *name,
                      struct k3_load_tensor *out, struct k3_err *err);

void k3_load_get_report(const struct k3_load *load, struct k3_load_report *report);
/* K3_EUSAGE for a rank that is not in this load. */
int k3_load_get_rank_report(const struct k3_load *load, uint32_t rank,
                            struct k3_load_rank_report *report, struct k3_err *err);

/* Release everything, memory included.  NULL is fine. */
void k3_load_close(struct k3_load *load);

#ifdef __cplusplus
}
#endif

#endif
