/* Scales of cast matrices (FORMAT.md 4.7): which bytes can be none.  Pure. */
#ifndef K3_CAST_SCALES_H
#define K3_CAST_SCALES_H

#include "dtype.h"
#include "part.h"

/* Scales of one dtype that lie one behind the other in a part. */
struct k3_scale_range {
    uint64_t begin_offset, end_offset; /* in the data section, multiples of a scale */
    uint8_t dtype;                     /* enum k3_dtype: U8 is E8M0 */
};

/* Those of a part, ascending.  *ranges: malloc, caller owns; NULL where there are none.
 * Fails: K3_ENOMEM. */
int k3_cast_scales_find(const struct k3_plan *plan, const struct k3_part *part,
                        struct k3_scale_range **ranges, uint32_t *count, struct k3_err *err);

/* Can all of them be scales?  E8M0: not NaN; else finite and above 0.  bytes: a multiple of one.
 * Made for every byte of a set: eight at once. */
bool k3_scales_are_possible(enum k3_dtype dtype, const uint8_t *data, size_t bytes);

/* Some bytes of a data section. */
struct k3_scale_piece {
    const uint8_t *data;
    uint64_t offset; /* in the data section: a multiple of UNIT */
    size_t bytes;
};
/* Add to problems each scale of the piece that can be none: tensor, row and column.  file: name of
 * the part for messages. */
void k3_cast_scales_judge(const struct k3_plan *plan, const struct k3_part *part,
                          const struct k3_scale_piece *piece, const char *file,
                          struct k3_problems *problems);

#endif
