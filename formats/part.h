/* One part as the plan lays it out: entries, pads, views, and its header bytes (FORMAT.md 4.4, 5).
 */
#ifndef K3_PART_H
#define K3_PART_H

#include "image_rows.h"
#include "plan.h"

#define K3_VIEW_NAME_BYTES 64u /* longest view name with its layer number is below 40 */

/* A tensor slice or a pad, in data order; entries tile the data section. */
struct k3_entry {
    uint64_t begin_offset, bytes; /* in the data section */
    struct k3_slice slice;        /* of the tensor in the checkpoint; undefined for pads */
    uint32_t slot;                /* of that tensor, or of the matrix cast; K3_SLOT_NONE: a pad */
    uint32_t index;               /* expert or block; of a pad: its number N */
    struct k3_row row;            /* undefined for pads */
};

struct k3_view {
    char name[K3_VIEW_NAME_BYTES];
    uint64_t shape[4];
    uint64_t begin_offset, end_offset;
    uint8_t dtype, dim_count;
};

struct k3_part {
    struct k3_entry *entries; /* owned */
    struct k3_view *views;    /* owned, in data order */
    uint64_t data_bytes;      /* multiple of UNIT; 0: the part is not written */
    uint32_t entry_count, view_count;
    uint32_t rank, part;
    uint32_t entry_cap, view_cap;
};

/* Lay out part `part` of `rank`.  A part the rank does not hold has data_bytes 0.  Any thread.
 * Fails: K3_ENOMEM. */
int k3_part_build(const struct k3_plan *plan, uint32_t rank, uint32_t part, struct k3_part *out,
                  struct k3_err *err);
void k3_part_fini(struct k3_part *part); /* safe on a zeroed struct */

/* True when a rank holds this part (whatever the roles dropped: every part has text tensors). */
bool k3_layout_has_part(const struct k3_config *config, const struct k3_layout *layout,
                        uint32_t rank, uint32_t part);

/* Name of an entry of a part, as its header has it. */
void k3_entry_name(const struct k3_plan *plan, const struct k3_part *part,
                   const struct k3_entry *entry, char *name, size_t bytes);

/* Append the header: 8 + N bytes, a multiple of UNIT.  Fails: K3_ENOMEM, K3_ELIMIT. */
int k3_part_header(const struct k3_plan *plan, const struct k3_part *part, struct k3_text *out,
                   struct k3_err *err);

/* Decode one k3.view.* value "DTYPE;d0,d1;begin;end" with its key.  Fails: K3_EFORMAT. */
int k3_view_decode(const char *key, const char *value, struct k3_view *view, struct k3_err *err);

#endif
