/* Convert: items of a plan into part files, each item by one worker, each source byte read once. */
#ifndef K3_CONVERT_H
#define K3_CONVERT_H

#include "cast_report.h"
#include "convert_cast.h"
#include "convert_write.h"
#include "hf_digest.h"
#include "job.h"
#include "progress.h"
#include "splits.h"

#include <stdatomic.h>

/* What all workers of a conversion share. */
struct k3_convert {
    const struct k3_ckpt *ckpt;
    struct k3_job *job;
    struct k3_progress progress;
    struct k3_convert_worker *workers; /* one each; owned */
    uint32_t *items;                   /* task number -> item; owned */
    struct k3_read_route route;
    size_t chunk_bytes;      /* of a slot, of the gather buffer; multiple of UNIT */
    uint64_t file_bytes_max; /* of the files that are read: more slots than one holds are waste */
    uint32_t slot_count;     /* of each reader */
    uint32_t write_count;    /* of each writer */
    uint32_t worker_count, item_count;
    _Atomic uint64_t read_bytes, written_bytes;
    _Atomic uint32_t finished_count; /* items of this run */
    struct k3_survey survey;         /* of a policy that casts */
    struct k3_cast_gpu *gpu;         /* that casts; NULL: the CPU */
    struct k3_hf_tally hf;           /* files that the hub's records name */
};

/* What one worker owns: its buffers. */
struct k3_convert_worker {
    struct k3_reader reader;
    struct k3_writer writer;
    uint8_t *source; /* slot_count * chunk_bytes: the reader's while it has a file */
    uint8_t *packed; /* chunk_bytes */
    uint8_t *writes; /* write_count * (chunk_bytes + a block): the writer's */
    struct k3_sha256 *sha;
    struct k3_tree *tree;
    struct k3_cast_lane *lane; /* NULL: the CPU casts */
};

struct k3_opts;
struct k3_convert_options {
    const char *ckpt_path;
    const struct k3_layout *layout;  /* unresolved */
    const struct k3_policy *policy;  /* NULL: verbatim */
    const char *revision;            /* NULL: see k3_ckpt_options */
    const struct k3_ranks *ranks;    /* NULL: all of the layout */
    const struct k3_cast_place *gpu; /* that casts; NULL: the CPU */
    const struct k3_opts *opts;      /* what the user wrote, for notices; NULL: none are said */
    const char *const *outs;
    uint64_t budget_bytes;
    uint64_t memory_bytes; /* all buffers together; 0: K3_CONVERT_MEMORY_BYTES */
    uint32_t out_count;
    uint32_t jobs; /* workers; 0: one for each core */
    uint32_t worker,
        workers; /* workers 0: alone; else items k with k mod workers = worker, no seal */
    bool force, quiet;
};

#define K3_CONVERT_MEMORY_BYTES (256u << 20) /* leaves room for plan and records below 512 MiB */

struct k3_convert_report {
    uint64_t read_bytes;    /* of the checkpoint, by this run */
    uint64_t survey_bytes;  /* of it, before that: scales and values of whole matrices */
    uint64_t written_bytes; /* by this run; pads are holes and not counted, nor is the read-back */
    uint64_t seconds_ns;
    uint64_t image_bytes; /* all ranks that are made */
    uint32_t rank_count, part_count;
    uint32_t item_count;                      /* of this job: of a worker its share */
    uint32_t done_count, resumed_count;       /* items of this run: made, and found made */
    bool was_finished;                        /* the set was there already */
    char newer_source[K3_NAME_BYTES_MAX + 1]; /* a source changed since then; "": none */
    struct k3_job_strays strays;              /* of what --force replaced */
    bool plan_was_lost; /* plan.json was damaged; resumed_count items are of this plan, and kept */
    char *fallbacks;    /* sentences, one a line: ways of reading that are refused here; malloc, the
                           caller's, also after a failure; NULL: none */
    struct k3_splits splits;      /* of the plan */
    struct k3_cast_summary casts; /* of the set, made or found; of a worker: of its items */
    uint32_t hub_same_count;      /* files of this run with the SHA-256 of their download record */
    uint32_t hub_outdated_count;  /* with another, but changed after their download */
    char hub_outdated[K3_NAME_BYTES_MAX + 1]; /* one of these */
};

/* The whole command.  What is wrong with the checkpoint goes to problems. */
int k3_convert(const struct k3_convert_options *options, struct k3_convert_report *report,
               struct k3_problems *problems, struct k3_err *err);

/* Do one item: stage its parts, read them back, publish its record.  Leaves nothing staged on
 * failure. Fails: K3_EIO, K3_ECORRUPT (source changed, A_log tail), K3_ECANCELED, K3_ENOMEM. */
int k3_convert_item(struct k3_convert *convert, uint32_t worker, uint32_t item, struct k3_err *err);

/* Stage the copied files and source-headers.zst; entries are appended to the record. */
int k3_convert_files(struct k3_convert *convert, uint32_t worker, struct k3_record *record,
                     struct k3_err *err);

#endif
