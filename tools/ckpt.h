/* A checkpoint, opened and judged: config, headers, index, and the plan made from them.  Also the
 * same plan rebuilt from the source-headers.zst of a set. */
#ifndef K3_CKPT_H
#define K3_CKPT_H

#include "fs.h"
#include "plan.h"
#include "ranks.h"
#include "set.h"
#include "source_headers.h"

struct k3_ckpt_file {
    uint64_t bytes;
    int64_t mtime_ns, ctime_ns; /* to see that a source changed under the run */
    uint64_t inode;
};

struct k3_ckpt {
    struct k3_dir dir;          /* fd -1 where the plan came from a set */
    struct k3_plan *plan;       /* NULL where problems kept it from being finished */
    struct k3_ckpt_file *files; /* by source index; NULL from a set */
    char **copied;              /* names of the files that are copied, sorted */
    uint32_t copied_count;
    uint32_t *slots;           /* all tensors by (file, offset): slot numbers */
    uint32_t *file_slot_begin; /* source_count + 1 indices into slots */
    struct k3_ranks ranks;     /* the ranks that this run is about */
    uint8_t *is_needed;        /* by source: these ranks hold bytes of it; NULL: all sources */
    struct k3_text content;    /* from a set: the decompressed source headers */
    struct k3_source_headers headers;
};

struct k3_ckpt_options {
    const char *path;
    const struct k3_layout *layout; /* unresolved; NULL: tp 1, for judging the checkpoint alone */
    const struct k3_policy *policy; /* NULL: verbatim */
    const char *revision;           /* NULL: from the path of a Hugging Face snapshot, else "" */
    const struct k3_set *of_set;    /* it must have this set's sizes (K3_ECORRUPT), repository and
                                       revision are this set's; NULL: see above */
    const struct k3_ranks *ranks;   /* NULL: all of the layout */
};

/* What to give instead of a directory that holds no checkpoint, as the end of a sentence. */
const char *k3_ckpt_where(const struct k3_dir *dir);

/* Open and judge.  Everything wrong with the checkpoint goes to problems, and the result is
 * K3_EFORMAT.  A layout that does not divide, a rank that it does not have: K3_EUNSUPPORTED.
 * Fails: K3_EIO, K3_ENOMEM as well.  On failure *out is NULL. */
int k3_ckpt_open(const struct k3_ckpt_options *options, struct k3_ckpt **out,
                 struct k3_problems *problems, struct k3_err *err);

/* The plan of a set, from its source-headers.zst (SHA-256 checked against the manifest first); its
 * digest must be that of the manifest, and the manifest's sources the files that its ranks need.
 * Fails: K3_ECORRUPT, K3_EFORMAT, K3_EIO, K3_ENOMEM. */
int k3_ckpt_open_set(const struct k3_set *set, struct k3_ckpt **out, struct k3_err *err);

void k3_ckpt_close(struct k3_ckpt *ckpt); /* NULL is fine */

/* Ask for these ranks alone (NULL: all), once: what a scatter lays out and which files are needed.
 * Fails: K3_EUNSUPPORTED (a rank that the layout does not have), K3_ENOMEM. */
int k3_ckpt_keep_ranks(struct k3_ckpt *ckpt, const struct k3_ranks *ranks, struct k3_err *err);
/* Do the ranks hold bytes of this source file; does the item make a file of their set? */
bool k3_ckpt_needs_file(const struct k3_ckpt *ckpt, uint32_t file);
bool k3_ckpt_needs_item(const struct k3_ckpt *ckpt, uint32_t item);
/* How many items make files of their set. */
uint32_t k3_ckpt_item_count(const struct k3_ckpt *ckpt);

/* Open a source file for reading (links followed) and check that it is still the one that was
 * judged. */
int k3_ckpt_file_open(const struct k3_ckpt *ckpt, uint32_t file, int *fd, struct k3_err *err);
/* After reading: has it stayed the same?  K3_ECORRUPT where it changed. */
int k3_ckpt_file_check(const struct k3_ckpt *ckpt, uint32_t file, int fd, struct k3_err *err);

/* Name ends in `suffix`. */
bool k3_name_ends(const char *name, const char *suffix);

#endif
