/* The rows of an image: the model rules of one part as a policy stores them (FORMAT.md 4.4, 4.7).
 * A rule that is kept is one row; a matrix that is cast becomes rows for its codes, its scales, its
 * global scale, its shape.  Everything here is pure. */
#ifndef K3_IMAGE_ROWS_H
#define K3_IMAGE_ROWS_H

#include "policy.h"

enum k3_row_what {
    K3_ROW_KEPT,   /* as it is in the checkpoint */
    K3_ROW_WEIGHT, /* codes of a cast matrix */
    K3_ROW_SCALE,  /* its scales, a group behind the codes */
    K3_ROW_GLOBAL, /* F32 [1], in small */
    K3_ROW_SHAPE   /* I64 [2], in small */
};

#define K3_ROW_COUNT_MAX (3u * K3_RULE_COUNT_MAX) /* no format has more than three tensors */

struct k3_row {
    uint16_t
        rule; /* of the tensor, or of the matrix that is cast (its codes, where it is packed) */
    uint16_t group; /* rows of one group are neighbours; another number is another group */
    uint16_t run;   /* rows of one run are repeated as a whole for each expert or block */
    uint8_t what;   /* enum k3_row_what */
    uint8_t fmt;    /* enum k3_qfmt */
    bool is_own;    /* each tensor begins a group */
    bool is_small;  /* begins at a multiple of SMALL_ALIGN: each tensor, or, of GLOBAL and SHAPE,
                       each view */
};

/* Rows of part `part`, in the order of the image, into rows[K3_ROW_COUNT_MAX]; their number. */
uint32_t k3_rows_build(const struct k3_config *config, const struct k3_policy *policy,
                       uint32_t part, struct k3_row *rows);

/* True where the rule stands in that part. */
bool k3_rule_in_part(const struct k3_config *config, const struct k3_rule *rule, uint32_t part);

/* What a rank holds of one tensor of a row, from its slice of the tensor in the checkpoint. */
struct k3_row_dims {
    uint64_t shape[4];
    uint64_t bytes;
    uint64_t row_bytes; /* of one index of dimension 0 */
    uint8_t dim_count, dtype;
};
void k3_row_dims(const struct k3_config *config, const struct k3_row *row,
                 const struct k3_slice *slice, struct k3_row_dims *dims);

/* Columns of a slice of a matrix, as values. */
uint64_t k3_slice_columns(const struct k3_rule *rule, const struct k3_slice *slice);

/* Rows of zeros behind the last member of a fused matrix (K3_RULE_PAD_ROWS), given the rows that
 * the codes of all members and of this one have; in rows of this row's own tensor. */
uint64_t k3_row_pad(const struct k3_config *config, const struct k3_row *row,
                    const struct k3_slice *slice, uint64_t fused_rows);

/* Pattern of the tensor's name, and of its view, with {i} {e} {b}. */
#define K3_ROW_NAME_BYTES 128u
void k3_row_name(const struct k3_config *config, const struct k3_row *row,
                 char name[K3_ROW_NAME_BYTES]);
void k3_row_view(const struct k3_config *config, const struct k3_row *row,
                 char view[K3_ROW_NAME_BYTES]);
/* Do two rows of one part belong to one view? */
bool k3_row_same_view(const struct k3_config *config, const struct k3_row *a,
                      const struct k3_row *b);

#endif
