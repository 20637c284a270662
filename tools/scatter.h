/* The cut of one item, both ways: source bytes to places in part files (convert, verify --against),
 * and places in part files to source bytes (export).  Pure bookkeeping; the caller moves the bytes.
 */
#ifndef K3_SCATTER_H
#define K3_SCATTER_H

#include "ckpt.h"
#include "part.h"

/* One part file of the item. */
struct k3_target {
    struct k3_part part;
    uint64_t header_bytes; /* data_offset of the file */
    uint64_t file_bytes;
};

/* Entries that one target has of a matrix that is cast, by enum k3_row_what - K3_ROW_WEIGHT;
 * UINT32_MAX: none. */
#define K3_CAST_ENTRY_COUNT 4u
struct k3_cast_cell {
    uint32_t entry[K3_CAST_ENTRY_COUNT];
};

struct k3_scatter {
    const struct k3_ckpt *ckpt;
    struct k3_target
        *targets; /* all parts of the item of all ranks wanted, by (rank, part); owned */
    struct k3_text
        *headers;      /* header text of each target; owned; a text may be fini'ed when written */
    uint32_t *local;   /* slot -> local number, valid for slots of the item */
    uint32_t *entries; /* [local * target_count + target]: entry index, UINT32_MAX: none */
    struct k3_cast_cell *casts; /* the same of what is cast; NULL: the policy casts nothing */
    uint32_t target_count;
    uint32_t item;
};

/* A run of one tensor's bytes in the source: [begin, end) of the tensor, at `data`. */
struct k3_run {
    uint32_t slot;
    uint64_t begin, end;
    uint64_t tensor_bytes;
};

/* Where such a run lies in one part: whole rows copy straight, columns are gathered row by row. */
struct k3_place_run {
    uint64_t file_offset; /* in the part file */
    uint64_t bytes;       /* 0: nothing of the run lies in this target */
    uint64_t first;       /* straight: offset in the run of the first byte */
    bool is_straight;
    const struct k3_slice *slice;
};

/* Lay out the item for the ranks of the checkpoint (ckpt->ranks).  Fails: K3_ENOMEM, K3_ELIMIT. */
int k3_scatter_open(const struct k3_ckpt *ckpt, uint32_t item, struct k3_scatter **out,
                    struct k3_err *err);
void k3_scatter_close(struct k3_scatter *scatter); /* NULL is fine */

/* A range of a source file whose tensor runs are visited.  Zero it with the file number for each
 * file; then set offset and bytes (from the start of the file) range by range, in file order. */
struct k3_range {
    uint64_t offset, bytes;
    uint32_t file;
    uint32_t cursor; /* next tensor of the file; kept between ranges */
    bool goes_on;    /* the last tensor continues in the next range */
};

/* Next run in the range; the header is skipped.  run->begin..end is relative to the tensor,
 * *data_at is the run's offset in the range.  False when there is no more. */
bool k3_scatter_next(const struct k3_scatter *scatter, struct k3_range *range, struct k3_run *run,
                     uint64_t *data_at);

/* What the targets hold of a matrix that is cast. */
const struct k3_cast_cell *k3_scatter_cast(const struct k3_scatter *scatter, uint32_t slot,
                                           uint32_t target);

/* Place of a run in a target; nothing of what is cast. */
void k3_scatter_place(const struct k3_scatter *scatter, const struct k3_run *run, uint32_t target,
                      struct k3_place_run *place);

/* Move column bytes: run data (of the source) -> packed bytes of the target, and back. */
void k3_gather_columns(const struct k3_run *run, const struct k3_slice *slice,
                       const uint8_t *run_data, uint8_t *packed);
void k3_spread_columns(const struct k3_run *run, const struct k3_slice *slice,
                       const uint8_t *packed, uint8_t *run_data);

/* True when no earlier target holds the same slice of this slot: each source byte then has exactly
 * one such target. */
bool k3_scatter_is_first(const struct k3_scatter *scatter, uint32_t slot, uint32_t target);

/* Do the targets together hold every byte of the item's source tensors (but the tails)? */
bool k3_scatter_is_whole(const struct k3_scatter *scatter);

/* Bytes behind the last row the model uses (A_log): offset in the tensor where they begin; they
 * must be zero. */
uint64_t k3_scatter_tail(const struct k3_scatter *scatter, uint32_t slot);

#endif
