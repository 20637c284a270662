/* Plug table 1: how bytes arrive.  All policy stays in the core; an io engine is thin.
 *
 * Contract: reads may complete in any order; a target is untouchable between submit and reap;
 * close() drains, so that no engine writes into memory behind the caller's back; an engine never
 * retries with other bytes: a short read that is not the end of the file is continued, an error is
 * reported in the completion.  One thread drives an open engine.  A direct engine takes reads of
 * any alignment: what cannot go direct goes through the page cache. */
#ifndef K3_IO_H
#define K3_IO_H

#include "k3_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define K3_IO_READ_BYTES_MAX   (64u << 20) /* one read; larger ones gain nothing anywhere */
#define K3_IO_REGION_COUNT_MAX 64u         /* slot pools, or the images of some ranks */

/* Memory that reads will land in: registered with the kernel where the engine can. */
struct k3_io_region {
    void *data;
    size_t bytes;
};

struct k3_gpu;

struct k3_io_options {
    uint32_t depth;        /* reads in flight at most */
    uint32_t thread_count; /* pread: threads; 0: one for each core, direct: as many as depth */
    uint32_t region_count; /* at most K3_IO_REGION_COUNT_MAX */
    bool is_direct; /* pread: past the page cache.  uring always does so and does not look here. */
    bool is_shared; /* pread, not direct: several threads bring one read.  Others do not look here.
                     */
    const struct k3_io_region *regions; /* borrowed until close; reads elsewhere work as well */
    const struct k3_gpu *gpu; /* cufile, hipfile: in whose memory reads land; others ignore it */
    struct k3_err *note;      /* filled where an engine works, but not at its best; may be NULL */
};

struct k3_io_read {
    void *target; /* host or device memory, as the engine can; undefined behind what arrived */
    uint64_t offset;
    size_t bytes;
    uint64_t tag; /* the caller's, comes back */
    uint32_t file;
};

struct k3_io_done {
    uint64_t tag;
    int sys_errno; /* 0: all bytes arrived */
    size_t bytes; /* that arrived; fewer than asked only with sys_errno or at the end of the file */
};

struct k3_io; /* an open engine */

struct k3_io_ops {
    const char *name;
    /* 0: can run here, for files below `dir` (NULL: in general); else negative, *err says why and
     * what would help. */
    int (*probe)(const char *dir, struct k3_err *err);
    int (*open)(const struct k3_io_options *options, struct k3_io **out, struct k3_err *err);
    /* The engine borrows fd until close.  A direct engine opens the file once more, past the page
     * cache, and tries one read there: K3_EUNSUPPORTED and the reason where that is refused, K3_EIO
     * where the file cannot be read at all.  On failure nothing was added. */
    int (*add_file)(struct k3_io *io, int fd, uint32_t *file, struct k3_err *err);
    /* Queue reads, at most depth in flight; takes all or fails having taken none. */
    int (*submit)(struct k3_io *io, const struct k3_io_read *reads, uint32_t count,
                  struct k3_err *err);
    /* Wait for at least one completion (0 in flight: returns 0 of them at once); fills up to max.
     */
    int (*reap)(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                struct k3_err *err);
    /* As reap, without waiting: *count may be 0. */
    int (*poll)(struct k3_io *io, struct k3_io_done *done, uint32_t max, uint32_t *count,
                struct k3_err *err);
    void (*close)(struct k3_io *io);
};

extern const struct k3_io_ops k3_io_pread;
extern const struct k3_io_ops k3_io_uring; /* io_uring, always direct */

#endif
