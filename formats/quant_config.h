/* What engines read of casts: the quantization_config of config.json, and ModelOpt's
 * hf_quant_config.json (FORMAT.md 4.8).  Pure. */
#ifndef K3_QUANT_CONFIG_H
#define K3_QUANT_CONFIG_H

#include "plan.h"

#define K3_HF_QUANT_NAME "hf_quant_config.json"

/* config.json of a set with casts, from that of the checkpoint: all bytes stay but the block
 * text_config.quantization_config, which is replaced; for ModelOpt readers it is taken away and one
 * put at the root.  Fails: K3_EFORMAT (no such block), K3_ENOMEM. */
int k3_quant_config_rewrite(const struct k3_plan *plan, const char *text, size_t bytes,
                            struct k3_text *out, struct k3_err *err);

/* Emit hf_quant_config.json. */
void k3_quant_config_modelopt(const struct k3_plan *plan, struct k3_text *out);

/* Names under which engines know the module of a matrix: its own, with other prefixes, with `mlp`
 * for `block_sparse_moe`, and as a member of a fused module; each goes to `name`.  Experts by their
 * container: "...experts".  Returns how many there are; name NULL counts only. */
#define K3_ALIAS_BYTES 160u
uint32_t k3_module_alias(const struct k3_plan *plan, uint32_t rule, uint32_t layer, uint32_t which,
                         char name[K3_ALIAS_BYTES]);

#endif
