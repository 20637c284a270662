/* Model rules: what the tensors of an architecture are called, how they are shaped, split and
 * placed. A new model is a new table (model_k3.c), not new code.  Everything here is constant and
 * pure. */
#ifndef K3_MODEL_H
#define K3_MODEL_H

#include "dtype.h"
#include "k3_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values of a configuration, FORMAT.md 4.1: first those read from config.json, then those derived
 * from them. */
enum k3_value {
    K3_V_HIDDEN,
    K3_V_VOCAB,
    K3_V_LAYERS,
    K3_V_HEADS,
    K3_V_DENSE_WIDTH,
    K3_V_MOE_WIDTH,
    K3_V_EXPERTS,
    K3_V_SHARED_EXPERTS,
    K3_V_LATENT,
    K3_V_Q_LORA,
    K3_V_KV_LORA,
    K3_V_NOPE,
    K3_V_ROPE,
    K3_V_V_DIM,
    K3_V_FIRST_DENSE,
    K3_V_KDA_HEADS,
    K3_V_KDA_DIM,
    K3_V_CONV_KERNEL,
    K3_V_VT_HIDDEN,
    K3_V_VT_WIDTH,
    K3_V_VT_QKV,
    K3_V_VT_LAYERS,
    K3_V_PATCH,
    K3_V_POS_HEIGHT,
    K3_V_POS_WIDTH,
    K3_V_MM_HIDDEN,
    K3_V_MERGE_HEIGHT,
    K3_V_MERGE_WIDTH,
    K3_V_TEXT_HIDDEN,
    /* derived */
    K3_V_SHARED_WIDTH,
    K3_V_KDA_ROWS,
    K3_V_Q_ROWS,
    K3_V_KV_A_ROWS,
    K3_V_KV_B_ROWS,
    K3_V_V_ROWS,
    K3_V_LATENT_PACKED,
    K3_V_LATENT_SCALES,
    K3_V_MOE_PACKED,
    K3_V_MOE_SCALES,
    K3_V_VT_QKV_ROWS,
    K3_V_MM_WIDTH,
    K3_V_ONE,
    K3_V_THREE,
    K3_VALUE_COUNT
};

enum k3_role {
    K3_ROLE_ATTENTION,
    K3_ROLE_EXPERTS,
    K3_ROLE_SHARED,
    K3_ROLE_LATENT,
    K3_ROLE_ROUTER,
    K3_ROLE_DENSE,
    K3_ROLE_EMBED,
    K3_ROLE_HEAD,
    K3_ROLE_NORM,
    K3_ROLE_ATTNRES,
    K3_ROLE_VISION,
    K3_ROLE_PROJECTOR,
    K3_ROLE_COUNT
};

/* Along which dimension a tensor is cut; over how many ranks follows from its role and the layout.
 */
enum k3_split {
    K3_SPLIT_REPLICATE, /* every rank has all of it */
    K3_SPLIT_ROWS,      /* dimension 0: projections, vocabulary, channels, heads */
    K3_SPLIT_COLUMNS    /* dimension 1 of a matrix */
};

/* Where in the model a rule applies. */
enum k3_scope {
    K3_SCOPE_FIRST, /* part 0 */
    K3_SCOPE_LAYER,
    K3_SCOPE_KDA,
    K3_SCOPE_MLA,
    K3_SCOPE_DENSE,
    K3_SCOPE_MOE, /* part of layer i */
    K3_SCOPE_LAST /* part L + 1 */
};

/* What `{e}` or `{b}` of a name counts. */
enum k3_repeat { K3_REPEAT_NONE, K3_REPEAT_EXPERT, K3_REPEAT_BLOCK };

enum k3_rule_flag {
    K3_RULE_OWN_GROUP = 1, /* each such tensor is a group of its own */
    K3_RULE_SMALL = 2,     /* its group aligns every tensor to SMALL_ALIGN */
    K3_RULE_PAD_ROWS =
        4, /* last rule of a view whose rows are padded with zero rows to KDA_ROW_ALIGN */
    K3_RULE_STORED_LONGER =
        8, /* dimension 0 is stored longer than its value; the tail is zero and dropped */
    K3_RULE_PACKED = 16, /* two 4-bit elements a byte (statistics only) */
    K3_RULE_SCALE = 32   /* E8M0 scales of the packed tensor before it */
};

/* One row.  Rows stand in the order of the image: consecutive rows of one group and one repeat form
 * a run that is repeated as a whole for each expert or block. */
struct k3_rule {
    const char *name; /* checkpoint name with {i} layer, {e} expert, {b} vision block */
    const char *view; /* view name, same marks; consecutive tensors of one view are one view */
    uint8_t dtype, role, split, scope, repeat, group, flags, dim_count;
    uint8_t dim[4]; /* enum k3_value of each dimension as stored */
};

/* One configuration value: where it stands in config.json. */
struct k3_config_field {
    const char *path;
    uint8_t value;   /* enum k3_value */
    uint8_t element; /* index in an array plus one; 0: a plain number */
};

/* A setting the rules rely on: anything else is refused by name. */
struct k3_config_demand {
    const char *path;
    const char *wanted; /* as JSON: true, "mxfp4-pack-quantized", 32 */
    bool is_optional;   /* where it is absent, the tensors themselves decide */
};

#define K3_RULE_COUNT_MAX 96u /* K3 has 62 */

struct k3_model {
    const char *architecture;
    const struct k3_rule *rules;
    const struct k3_config_field *fields;
    const struct k3_config_demand *demands;
    uint32_t rule_count, field_count, demand_count;
};

/* The model of an architecture name, or NULL. */
const struct k3_model *k3_model_find(const char *architecture);
extern const struct k3_model k3_model_k3;

const char *k3_role_name(enum k3_role role);

#define K3_CONFIG_LAYER_COUNT_MAX 4094u /* K3_PART_COUNT_MAX less first and last part */

/* A configuration: the values used and nothing else. */
struct k3_config {
    const struct k3_model *model;
    uint64_t value[K3_VALUE_COUNT];
    uint32_t layer_count;
    uint8_t is_mla[K3_CONFIG_LAYER_COUNT_MAX]; /* by layer: 1 MLA, 0 KDA */
};

struct k3_doc;
struct k3_text;

/* Decode config.json (already a tree).  All that does not fit the model is added to problems and
 * K3_EFORMAT returned; an architecture without rules is K3_EUNSUPPORTED by name.  Pure. */
struct k3_problems;
int k3_config_decode(const struct k3_doc *root, struct k3_config *out, struct k3_problems *problems,
                     struct k3_err *err);

/* The same from the `config` object of a plan text (flat members named by path). */
int k3_config_decode_plan(const struct k3_doc *config, const struct k3_model *model,
                          struct k3_config *out, struct k3_err *err);

/* Append the `config` object of a plan text (canonical JSON). */
void k3_config_encode_plan(const struct k3_config *config, struct k3_text *out);

/* True when `rule` exists in layer `layer` (or in the first / last part; layer is ignored there).
 */
bool k3_rule_applies(const struct k3_config *config, const struct k3_rule *rule, uint32_t layer);

/* How often the rule stands in one part: 1, number of experts, or number of vision blocks. */
uint32_t k3_rule_repeat_count(const struct k3_config *config, const struct k3_rule *rule);

/* Part the rule's tensors belong to. */
uint32_t k3_rule_part(const struct k3_config *config, const struct k3_rule *rule, uint32_t layer);

/* Write the rule's name or view with its numbers into name[bytes]. */
void k3_rule_name(const char *pattern, uint32_t layer, uint32_t index, char *name, size_t bytes);

/* Number of parts of the model: layers + 2. */
uint32_t k3_config_part_count(const struct k3_config *config);

#endif
