/* Inspect: what is in a directory or a file, as one tree that is printed as JSON or as text. */
#ifndef K3_INSPECT_H
#define K3_INSPECT_H

#include "doc.h"
#include "inspect_hist.h"
#include "k3_err.h"
#include "st.h"

#include <stdbool.h>
#include <stdint.h>

/* Each fills the object `root`.  Fails: K3_EIO, K3_ENOMEM, and what the decoders say (K3_EFORMAT,
 * K3_ECORRUPT, K3_EVERSION, K3_ELIMIT). */
int k3_inspect_dir(const char *path, struct k3_doc *root, struct k3_err *err);
int k3_inspect_file(const char *path, struct k3_doc *root, struct k3_err *err);

/* Every place of a tensor or view: in a file, a set or a checkpoint.  stats: its values are read
 * too, and those of its scales.  K3_EUSAGE where there is none of that name. */
int k3_inspect_tensor(const char *path, const char *name, bool stats, struct k3_doc *root,
                      struct k3_err *err);

/* SHA-256 and fs-verity digest of a file in one read. */
struct k3_file_digests {
    uint64_t bytes;
    char sha256[65], verity[65]; /* hex */
};
int k3_inspect_digests(const char *path, struct k3_file_digests *out, struct k3_err *err);

/* Histograms of all tensors of a safetensors file, or of those of a directory; pads are left out.
 * K3_EUSAGE for another file. */
int k3_inspect_histograms(const char *path, bool quiet, struct k3_doc *root, struct k3_err *err);

/* A run of elements in an open file. */
struct k3_stats_range {
    const char *name; /* of the file */
    uint64_t offset, bytes;
    int fd;
    uint8_t dtype; /* enum k3_dtype */
};
/* Statistics of it, added to `row` as members; hist (or NULL): and its histogram. */
int k3_inspect_stats(const struct k3_stats_range *range, struct k3_hist *hist, struct k3_doc *row,
                     struct k3_err *err);
/* Its histogram alone; progress may be NULL.  Fails: K3_EIO, K3_ENOMEM, K3_ECANCELED. */
struct k3_progress;
int k3_inspect_hist(const struct k3_stats_range *range, struct k3_hist *hist,
                    struct k3_progress *progress, struct k3_err *err);

/* The tree as text on stdout: one member a line, rows of an array as a table. */
int k3_inspect_print(const struct k3_doc *root, struct k3_err *err);

/* Add the array "shape"; false without memory. */
bool k3_inspect_add_shape(struct k3_doc *row, const uint64_t *shape, unsigned dim_count);

#endif
