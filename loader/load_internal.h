/* What the files of the loader share, and the door for tests.  Not installed.
 *
 * A load has a control plane (load.c: options, set, parts; load_leg.c: one device, its memory, its
 * chunks; load_route.c: the engine), a data plane (load_run.c: submit, reap, copy, check;
 * load_settle.c: second reads), a start and an end (load_start.c) and look-ups (load_look.c).
 * All tables are made at open and constant afterwards, but for `chunks[].state`, `.slot` and
 * `results`, which a run fills. */
#ifndef K3_LOAD_INTERNAL_H
#define K3_LOAD_INTERNAL_H

#include "fs.h"
#include "load_leg.h"
#include "text.h"

#include <stdatomic.h>

/* Where a trace goes. */
struct k3_trace_file {
    char *path;         /* as given; NULL: there is no trace; owned */
    char *name;         /* of a regular file, in dir; NULL: written as it is; owned */
    struct k3_dir dir;  /* where it appears; owned */
    char temporary[32]; /* its name until it is whole */
    int fd;             /* -1: none is open */
};

struct k3_load_trace {
    struct k3_trace_file file;
    struct k3_load_event *events; /* owned */
    double *submit_seconds;       /* of each chunk of the load; owned */
    uint64_t cap;
    _Atomic uint64_t count;
    double begin_seconds;
};

struct k3_load {
    struct k3_set *set;
    struct k3_load_leg *legs;
    struct k3_load_rank *ranks;
    struct k3_load_part *parts; /* rank by rank, in part order */
    struct k3_load_chunk *chunks;
    struct k3_load_bound *bounds; /* by rank and name; owned */
    uint8_t *results;             /* one for each unit of all images */
    k3_load_progress_fn progress;
    void *progress_context;
    uint64_t image_bytes, header_bytes; /* of all ranks */
    uint64_t chunk_count, unit_count;
    double run_seconds, open_seconds;
    uint32_t rank_count, part_count, leg_count, bound_count;
    uint64_t staging_bytes;   /* as given */
    void *after_event;        /* the same */
    struct k3_text fallbacks; /* lines of the report */
    struct k3_load_trace trace;
    uint64_t bytes_per_second; /* reads are paced to it; 0: as fast as they come */
    bool reaches_device;       /* the engine reads into the memory of GPUs: no slots */
    uint32_t drive_count;      /* below the parts; 0: not known, or of no matter */
    bool is_hot;               /* reads find most of the parts in memory */
    bool verify;
    bool is_stepping; /* k3_load_step began a run that is not over */
    bool ready;       /* a run succeeded: memory may be handed out */

    /* Of a run, shared by its legs. */
    atomic_bool stop;            /* one of them failed, or the caller cancelled */
    atomic_uint running_count;   /* legs on threads of their own */
    uint32_t started_count;      /* of them, by k3_load_step */
    _Atomic uint64_t done_bytes; /* arrived */
    _Atomic uint64_t paced_bytes;
    double begin_seconds;
    uint64_t told_bytes; /* to progress, by the caller's thread */
    double told_seconds;
};

/* What one device list names: "host", "cuda:0-3,6", "hip". */
struct k3_load_devices {
    const struct k3_dev_ops *ops;
    uint32_t indices[K3_LOAD_LEG_COUNT_MAX];
    uint32_t count;
};
/* NULL: host.  K3_EUSAGE for what is no such text. */
int k3_load_devices_parse(const char *text, struct k3_load_devices *out, struct k3_err *err);

/* End what k3_load_step began: waits for its threads. */
void k3_load_join_steps(struct k3_load *load);
/* load_trace_file.c.  Before anything of the set but its manifest is read: refuse a path that
 * belongs to a set or a checkpoint (K3_EUSAGE), and prove that the file can be made (K3_EIO). */
int k3_load_trace_file_open(struct k3_trace_file *file, const struct k3_set *set, const char *path,
                            struct k3_err *err);
/* Of each run: something to write to; then let it appear, or with rc drop it and return rc. */
int k3_load_trace_file_begin(struct k3_trace_file *file, struct k3_err *err);
int k3_load_trace_file_end(struct k3_trace_file *file, int rc, struct k3_err *err);
void k3_load_trace_file_close(struct k3_trace_file *file); /* zeroed is fine */
/* load_trace.c.  Without a file: no trace. */
int k3_load_trace_open(struct k3_load *load, struct k3_err *err);
void k3_load_trace_close(struct k3_load *load);
void k3_load_trace_begin(struct k3_load *load);
int k3_load_trace_write(struct k3_load *load, struct k3_err *err);
/* May so many bytes more be asked for by now? */
bool k3_load_pace_takes(struct k3_load *load, uint64_t bytes);
void k3_load_pace_gives(struct k3_load *load,
                        uint64_t bytes); /* they are not asked for after all */
/* K3_ECANCELED once the caller's progress said so, or another leg failed. */
int k3_load_stopped(struct k3_load *load, struct k3_err *err);
/* The same behind a call of progress, if it is time again (due: whether or not). */
int k3_load_tell(struct k3_load *load, bool due, struct k3_err *err);

/* Is options->io the name of an engine (NULL: auto) that can run here and bring bytes to this
 * device?  K3_EUSAGE, K3_EUNSUPPORTED. */
int k3_load_route_check(const struct k3_load_options *options, const struct k3_dev_ops *dev_ops,
                        struct k3_err *err);
/* Does the engine of this name read into the memory of GPUs? */
bool k3_load_route_reaches(const char *name);
/* load_sample.c: bytes per second of the open engine of a leg over some chunks, odd or even ones,
 * up to where they lie on the device.  0: there are too few, or a read failed. */
int k3_load_sample(struct k3_load_leg *leg, bool is_odd, double *rate, struct k3_err *err);
/* Will reads of this route find most of the parts in memory?  Parts and legs are open.  is_given:
 * the engine is one of the caller; then the name says it. */
bool k3_load_route_is_hot(const struct k3_load *load, const char *name, bool is_given);
/* Drives that the parts lie on; 0: not all are known. */
uint32_t k3_load_route_drives(const struct k3_load *load);
/* Open the engine of that name, or choose one, for each leg with its parts added.  Fills io,
 * io_ops, is_direct and fallbacks.  Fails: K3_EUNSUPPORTED (named, and refused here), K3_EIO,
 * K3_ENOMEM. */
int k3_load_route_open(struct k3_load *load, const char *name, struct k3_err *err);
/* The same with an engine of the caller; with the name "uring" it reads direct, and with "pread" as
 * if all were in memory. */
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
