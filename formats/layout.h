/* Layout: how many ranks, which split, which layers on which stage (FORMAT.md 4.2, 4.3). */
#ifndef K3_LAYOUT_H
#define K3_LAYOUT_H

#include "model.h"

enum k3_vision { K3_VISION_REPLICATE, K3_VISION_FIRST, K3_VISION_DROP };

#define K3_STAGE_COUNT_MAX 256u /* stages of a pipeline; nobody runs more than 16 */

struct k3_layout {
    uint32_t tp, dp, pp;
    bool experts_ep;       /* whole experts over tp*dp; else every expert is cut over tp*dp */
    bool shared_replicate; /* shared expert on every rank; else cut over tp */
    uint8_t vision;        /* enum k3_vision */
    uint32_t stage_layers[K3_STAGE_COUNT_MAX]; /* pp of them; all 0: vLLM's rule fills them */
};

/* Where a rank stands. */
struct k3_place {
    uint32_t t, p, d;                /* tensor, stage, data index */
    uint32_t g, g_count;             /* place in, and size of, the tp*dp group of its stage */
    uint32_t layer_begin, layer_end; /* layers of its stage */
};

/* Set the defaults: 8, 1, 1, tp, tp, replicate. */
void k3_layout_init(struct k3_layout *layout);

/* Check it against a configuration and fill stage_layers.  K3_EUNSUPPORTED with one sentence that
 * says what does not divide and which tp sizes would work; K3_ELIMIT beyond K3_RANK_COUNT_MAX
 * ranks.  Pure. */
int k3_layout_resolve(struct k3_layout *layout, const struct k3_config *config, struct k3_err *err);

/* Same check, only the answer (stage_layers untouched, stages not judged). */
bool k3_layout_divides(const struct k3_layout *layout, const struct k3_config *config);

uint32_t k3_layout_world(const struct k3_layout *layout);
/* Place of rank = (d*pp + p)*tp + t of a resolved layout. */
void k3_layout_place(const struct k3_layout *layout, uint32_t rank, struct k3_place *place);

/* Append the `layout` object of a plan text; decode it from there (resolved and checked again). */
struct k3_text;
void k3_layout_encode_plan(const struct k3_layout *layout, struct k3_text *out);
int k3_layout_decode_plan(const struct k3_doc *object, const struct k3_config *config,
                          struct k3_layout *out, struct k3_err *err);

/* "tp 8, dp 1, pp 2 (47/46), experts tp, shared tp, vision replicate" into text[bytes]. */
void k3_layout_describe(const struct k3_layout *layout, char *text, size_t bytes);

/* The slice of one stored tensor that a rank holds: rows [row_begin, +row_count) of dimension 0
 * and, of each row of row_bytes, bytes [column_begin, +column_bytes). */
struct k3_slice {
    uint64_t row_begin, row_count;
    uint64_t row_bytes;
    uint64_t column_begin, column_bytes;
    uint32_t copy_count; /* ranks that hold this very slice */
};

/* Slice of expert or block `index` of a rule at a place; false where the rank holds nothing of it.
 */
bool k3_layout_slice(const struct k3_layout *layout, const struct k3_config *config,
                     const struct k3_rule *rule, uint32_t index, const struct k3_place *place,
                     struct k3_slice *slice);

#endif
