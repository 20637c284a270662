/* What the files of the loader share, and the door for tests.  Not installed.
 *
 * A load has a control plane (load.c: open, memory, the table of chunks; load_route.c: the engine),
 * a data plane (load_run.c: submit, reap, check) and look-ups (load_look.c).  All tables are made
 * at open and constant afterwards, but for `chunks[].state` and `results`, which a run fills. */
#ifndef K3_LOAD_INTERNAL_H
#define K3_LOAD_INTERNAL_H

#include "dev.h"
#include "io.h"
#include "k3_load.h"
#include "set.h"
#include "text.h"

#include <stdbool.h>

/* Units of one read: 4 MiB fill the pipe of every drive and bus measured (design section 9). */
#define K3_LOAD_CHUNK_UNITS      8u
#define K3_LOAD_CHUNK_BYTES      ((uint64_t)K3_LOAD_CHUNK_UNITS * K3_UNIT_BYTES)
#define K3_LOAD_STAGING_BYTES    (64u << 20) /* default: 16 chunks keep one NVMe drive busy */
#define K3_LOAD_DEPTH_MAX        1024u /* 4 GiB in flight: more only moves the queue elsewhere */
#define K3_LOAD_DIM_COUNT_MAX    4u    /* shape[] of the public structs */
#define K3_LOAD_NAMED_COUNT      3u    /* tensors an error names */
#define K3_LOAD_NAME_SHOWN_BYTES 100   /* of each: the longest of K3 has 79 */

enum k3_chunk_state { K3_CHUNK_WAITING, K3_CHUNK_IN_FLIGHT, K3_CHUNK_ARRIVED, K3_CHUNK_FAILED };

/* One read: units [unit_begin, +unit_count) of the data section of a part. */
struct k3_load_chunk {
    uint32_t part;       /* index in parts */
    uint32_t unit_begin; /* from the start of the data section */
    uint8_t unit_count;  /* 1..K3_LOAD_CHUNK_UNITS */
    uint8_t state;       /* enum k3_chunk_state */
};

struct k3_load_part {
    const struct k3_part_entry *entry; /* borrowed from the set */
    struct k3_st *st;                  /* owned */
    struct k3_view *views;             /* owned */
    uint32_t *tensors;                 /* indices in st of those that are no pads; owned */
    uint8_t *target;                   /* where its data section goes in the image */
    const uint8_t *digests;            /* of the units of its data section; of the rank */
    uint8_t *results;                  /* enum k3_unit_result of the same units; of the load */
    uint32_t unit_count;
    uint32_t tensor_count, view_count;
    uint32_t tensor_begin, view_begin; /* numbers of its first ones in the rank */
    uint32_t io_file;
    int fd; /* -1: closed */
};

struct k3_load_rank {
    const struct k3_manifest_rank *row; /* borrowed from the set */
    void *image;                        /* device memory, owned */
    uint8_t *digests;                   /* of all units of its parts; owned */
    uint32_t part_begin;                /* index in parts; row->part_count of them */
    uint32_t tensor_count, view_count;
};

struct k3_load {
    const struct k3_io_ops *io_ops;
    const struct k3_dev_ops *dev_ops;
    struct k3_set *set;
    struct k3_io *io;
    struct k3_dev *dev;
    struct k3_load_rank *ranks;
    struct k3_load_part *parts; /* rank by rank, in part order */
    struct k3_load_chunk *chunks;
    uint8_t *results; /* one for each unit of all images */
    void *bounce;     /* one unit, for second reads */
    struct k3_sha256 *sha;
    k3_load_progress_fn progress;
    void *progress_context;
    uint64_t image_bytes, header_bytes; /* of all ranks */
    uint64_t chunk_count, unit_count;
    uint64_t reread_units;
    uint64_t pinned_bytes; /* registered with the engine */
    double run_seconds, open_seconds;
    uint32_t rank_count, part_count;
    uint32_t depth, lane_count;
    struct k3_text fallbacks; /* lines of the report */
    bool is_direct;           /* the engine reads past the page cache */
    bool verify;
    bool ready;  /* a run succeeded: memory may be handed out */
    bool broken; /* the engine failed in a way that leaves reads unaccounted for: no further run */
};

/* Is this the name of an engine (NULL: auto) that can run here?  K3_EUSAGE, K3_EUNSUPPORTED. */
int k3_load_route_check(const char *name, struct k3_err *err);
/* Open the engine of that name, or choose one, with all parts added.  Fills io, io_ops, is_direct
 * and fallbacks.  Fails: K3_EUNSUPPORTED (named, and refused here), K3_EIO, K3_ENOMEM. */
int k3_load_route_open(struct k3_load *load, const char *name, struct k3_err *err);
/* The same with an engine of the caller; with the name "uring" it reads direct. */
int k3_load_route_take(struct k3_load *load, const struct k3_io_ops *ops, const char *name,
                       struct k3_err *err);

/* k3_load_open with tables of the caller (tests wrap them); NULL: by the names in the options. */
int k3_load_open_with(const struct k3_load_options *options, const struct k3_io_ops *io_ops,
                      const struct k3_dev_ops *dev_ops, struct k3_load **out, struct k3_err *err);

double k3_load_now(void); /* monotonic seconds */

/* A unit that is not what was recorded. */
struct k3_load_bad_unit {
    const char *path;
    const char *holds; /* what lies in it, for the message */
    const uint8_t *wanted;
    uint64_t unit; /* from file offset 0 */
    uint8_t found[K3_DIGEST_BYTES];
};
/* The one sentence about it; returns K3_ECORRUPT. */
int k3_load_fail_unit(const struct k3_load_bad_unit *bad, struct k3_err *err);

bool k3_load_is_pad(const struct k3_st_tensor *tensor);

/* Names of the tensors that touch a byte range of a data section: the first three and how many
 * more. */
void k3_load_name_tensors(const struct k3_st *st, uint64_t begin_offset, uint64_t end_offset,
                          char *text, size_t bytes);

/* Every public call fills the caller's err anew; it need not be initialised. */
static inline void k3_load_begin(struct k3_err *err)
{
    if (err)
        k3_err_init(err);
}

#endif
