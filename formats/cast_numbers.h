/* The numbers that stand beside cast matrices at the end of `small` (FORMAT.md 4.7): global scales
 * and shapes.  The plan fixes shapes; of global scales it fixes which are one number.  Pure. */
#ifndef K3_CAST_NUMBERS_H
#define K3_CAST_NUMBERS_H

#include "part.h"

/* Where the numbers of a part lie in its data section: one range, pads between them included.
 * False: the part has none. */
bool k3_cast_numbers_range(const struct k3_part *part, uint64_t *begin_offset,
                           uint64_t *end_offset);

/* Parts of one set, judged one after the other. */
struct k3_cast_numbers {
    const struct k3_plan *plan;     /* borrowed */
    struct k3_cast_global *globals; /* by slot, as the first part had it; owned */
    uint64_t global_count;          /* judged */
    uint64_t shape_count;           /* the same */
};

/* Fails: K3_ENOMEM. */
int k3_cast_numbers_open(const struct k3_plan *plan, struct k3_cast_numbers *numbers,
                         struct k3_err *err);
void k3_cast_numbers_close(struct k3_cast_numbers *numbers); /* safe on a zeroed struct */

/* Judge the numbers of a part: data are the bytes of its range, file is its name for messages.
 * Shapes are those of the slice; global scales are finite and above 0, one number for all matrices
 * of a view (of experts: of one expert) and for all ranks.  What is wrong is added to problems. */
void k3_cast_numbers_judge(struct k3_cast_numbers *numbers, const struct k3_part *part,
                           const uint8_t *data, const char *file, struct k3_problems *problems);

#endif
