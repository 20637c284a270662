/* An opened shard set: manifest, directories, units files, part headers, each checked before it is
 * believed. */
#ifndef K3_SET_H
#define K3_SET_H

#include "fs.h"
#include "manifest.h"
#include "part.h"
#include "ranks.h"
#include "st.h"

#define K3_SET_DIR_COUNT_MAX 64u /* --out directories; more drives than any server has */

struct k3_set {
    struct k3_dir *dirs; /* as given; owned */
    struct k3_manifest manifest;
    struct k3_plan
        *plan; /* from the manifest: of no tensor where it lies in the checkpoint; owned */
    struct k3_config config; /* of the plan */
    struct k3_layout layout; /* of the plan */
    struct k3_ranks ranks;   /* those that the manifest lists: all of the layout, or some */
    uint32_t dir_count;
    uint32_t manifest_dir;  /* index in dirs of the one that holds the manifest: the first --out */
    uint32_t *dir_of_place; /* dirs index for (P + R) mod count; owned */
};

/* Does a directory hold a checkpoint (its index), which people give where a set is wanted? */
bool k3_dir_is_checkpoint(const struct k3_dir *dir);

/* Open: find and decode the manifest, decode its plan.  Reads nothing else.  A missing manifest,
 * two of them, or a .k3-partial without one: K3_ECORRUPT that says what is there and what to do.
 * Fails: K3_EIO, K3_ENOMEM as well. */
int k3_set_open(const char *const *paths, uint32_t path_count, struct k3_set **out,
                struct k3_err *err);
void k3_set_close(struct k3_set *set);

/* Manifest row of a rank; NULL where the set has none. */
const struct k3_manifest_rank *k3_set_rank(const struct k3_set *set, uint32_t rank);

/* Is it a set of some ranks of its layout only? */
bool k3_set_is_partial(const struct k3_set *set);
/* K3_EUNSUPPORTED: rank is not one that the set lists; says which are. */
int k3_set_fail_rank(const struct k3_set *set, uint32_t rank, struct k3_err *err);

/* Manifest entry of a source file; NULL where none is listed. */
const struct k3_file_entry *k3_set_source(const struct k3_set *set, const char *name);

/* Directory a part lies in. */
const struct k3_dir *k3_set_part_dir(const struct k3_set *set, uint32_t rank, uint32_t part);

/* Open a part file and check its size.  K3_ECORRUPT when it is missing or of another size. */
int k3_set_part_open(const struct k3_set *set, const struct k3_part_entry *part, int *fd,
                     struct k3_err *err);

/* Unit digests of a rank (all parts in part order), proved: header, SHA-256 of the file, and the
 * tree digest of every part recomputed from them.  *digests is malloc, caller owns. */
int k3_set_units(const struct k3_set *set, const struct k3_manifest_rank *rank, uint8_t **digests,
                 uint64_t *count, struct k3_err *err);

/* A part's header, decoded. */
struct k3_part_header {
    struct k3_st *st;
    struct k3_view *views;
    uint32_t view_count;
};

/* Read and decode a part's header; its units are checked against unit_digests first.  Then:
 * metadata (format, plan, rank, part), views inside their bounds, pads named as FORMAT.md 5 says.
 * On failure *out is empty. */
int k3_set_part_header(const struct k3_set *set, const struct k3_part_entry *part, int fd,
                       const uint8_t *unit_digests, struct k3_part_header *out, struct k3_err *err);
/* Is the header, byte for byte, the one that the plan makes for this part?  K3_ECORRUPT with the
 * offset of the first difference; K3_EIO, K3_ENOMEM. */
int k3_set_check_header(const struct k3_set *set, const struct k3_part_entry *part, int fd,
                        struct k3_err *err);
void k3_part_header_fini(struct k3_part_header *header); /* safe on a zeroed struct */

/* Parse "0,3,8-15" into sorted unique ranks that the set has.  *ranks is malloc, caller owns.
 * Fails: K3_EUSAGE for the form; K3_EUNSUPPORTED for a rank the set does not have. */
int k3_set_ranks(const struct k3_set *set, const char *list, uint32_t **ranks, uint32_t *count,
                 struct k3_err *err);

/* Problems of the directories as such: unlisted *.safetensors and *.units (errors, into problems);
 * other names are counted in *notice_count. */
int k3_set_check_names(const struct k3_set *set, struct k3_problems *problems,
                       uint32_t *notice_count, struct k3_err *err);

#endif
