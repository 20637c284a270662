/* Purpose: the model rules of KimiK3ForConditionalGeneration (FORMAT.md 4.1, 4.4).
 * Owns: nothing; constant tables.
 * Threads: any.
 * Errors: none.
 * Invariant: rows stand in the order of the image; a row's group decides where it lies, its size
 * never does. */
#include "model.h"

#include <string.h>

/* Groups of a part in the order of the data section; numbers only need to differ between
 * neighbours. */
enum {
    G_W13 = 1,
    G_W13_SCALE,
    G_W2,
    G_W2_SCALE,
    G_KDA_IN,
    G_KDA_F_B,
    G_KDA_O,
    G_KDA_CONV,
    G_MLA_IN,
    G_MLA_G,
    G_MLA_Q_B,
    G_MLA_KV_B,
    G_MLA_O,
    G_DENSE_IN,
    G_DENSE_DOWN,
    G_SHARED_IN,
    G_ROUTER,
    G_LATENT_DOWN,
    G_SHARED_DOWN,
    G_LATENT_UP,
    G_SMALL,
    G_EMBED,
    G_VISION,
    G_BLOCK,
    G_PROJECTOR,
    G_HEAD
};

#define LAYER  "language_model.model.layers.{i}."
#define ATTN   LAYER "self_attn."
#define MOE    LAYER "block_sparse_moe."
#define EXPERT MOE "experts.{e}."
#define BLOCK  "vision_tower.encoder.blocks.{b}."
#define VIEW   "layers.{i}."

/* Columns: name, view, dtype, role, split, scope, repeat, group, flags, dimensions. */
#define ROW(n, v, t, r, s, c, p, g, f, d, ...)                                                     \
    {                                                                                              \
        n, v, t, K3_ROLE_##r, K3_SPLIT_##s, K3_SCOPE_##c, K3_REPEAT_##p, g, f, d,                  \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define V(x) K3_V_##x

static const struct k3_rule rules[] = {
    /* ---- experts ---- */
    ROW(EXPERT "w1.weight_packed", VIEW "experts.w13", K3_U8, EXPERTS, ROWS, MOE, EXPERT, G_W13,
        K3_RULE_PACKED, 2, V(MOE_WIDTH), V(LATENT_PACKED)),
    ROW(EXPERT "w3.weight_packed", VIEW "experts.w13", K3_U8, EXPERTS, ROWS, MOE, EXPERT, G_W13,
        K3_RULE_PACKED, 2, V(MOE_WIDTH), V(LATENT_PACKED)),
    ROW(EXPERT "w1.weight_scale", VIEW "experts.w13_scale", K3_U8, EXPERTS, ROWS, MOE, EXPERT,
        G_W13_SCALE, K3_RULE_SCALE, 2, V(MOE_WIDTH), V(LATENT_SCALES)),
    ROW(EXPERT "w3.weight_scale", VIEW "experts.w13_scale", K3_U8, EXPERTS, ROWS, MOE, EXPERT,
        G_W13_SCALE, K3_RULE_SCALE, 2, V(MOE_WIDTH), V(LATENT_SCALES)),
    ROW(EXPERT "w2.weight_packed", VIEW "experts.w2", K3_U8, EXPERTS, COLUMNS, MOE, EXPERT, G_W2,
        K3_RULE_PACKED, 2, V(LATENT), V(MOE_PACKED)),
    ROW(EXPERT "w2.weight_scale", VIEW "experts.w2_scale", K3_U8, EXPERTS, COLUMNS, MOE, EXPERT,
        G_W2_SCALE, K3_RULE_SCALE, 2, V(LATENT), V(MOE_SCALES)),
    /* ---- KDA ---- */
    ROW(ATTN "q_proj.weight", VIEW "attn.qkvgfab", K3_BF16, ATTENTION, ROWS, KDA, NONE, G_KDA_IN, 0,
        2, V(KDA_ROWS), V(HIDDEN)),
    ROW(ATTN "k_proj.weight", VIEW "attn.qkvgfab", K3_BF16, ATTENTION, ROWS, KDA, NONE, G_KDA_IN, 0,
        2, V(KDA_ROWS), V(HIDDEN)),
    ROW(ATTN "v_proj.weight", VIEW "attn.qkvgfab", K3_BF16, ATTENTION, ROWS, KDA, NONE, G_KDA_IN, 0,
        2, V(KDA_ROWS), V(HIDDEN)),
    ROW(ATTN "g_proj.weight", VIEW "attn.qkvgfab", K3_BF16, ATTENTION, ROWS, KDA, NONE, G_KDA_IN, 0,
        2, V(KDA_ROWS), V(HIDDEN)),
    ROW(ATTN "f_a_proj.weight", VIEW "attn.qkvgfab", K3_BF16, ATTENTION, REPLICATE, KDA, NONE,
        G_KDA_IN, 0, 2, V(KDA_DIM), V(HIDDEN)),
    ROW(ATTN "b_proj.weight", VIEW "attn.qkvgfab", K3_BF16, ATTENTION, ROWS, KDA, NONE, G_KDA_IN,
        K3_RULE_PAD_ROWS, 2, V(KDA_HEADS), V(HIDDEN)),
    ROW(ATTN "f_b_proj.weight", VIEW "attn.f_b", K3_BF16, ATTENTION, ROWS, KDA, NONE, G_KDA_F_B, 0,
        2, V(KDA_ROWS), V(KDA_DIM)),
    ROW(ATTN "o_proj.weight", VIEW "attn.o", K3_BF16, ATTENTION, COLUMNS, KDA, NONE, G_KDA_O, 0, 2,
        V(HIDDEN), V(KDA_ROWS)),
    ROW(ATTN "q_conv1d.weight", VIEW "attn.conv", K3_F32, ATTENTION, ROWS, KDA, NONE, G_KDA_CONV, 0,
        3, V(KDA_ROWS), V(ONE), V(CONV_KERNEL)),
    ROW(ATTN "k_conv1d.weight", VIEW "attn.conv", K3_F32, ATTENTION, ROWS, KDA, NONE, G_KDA_CONV, 0,
        3, V(KDA_ROWS), V(ONE), V(CONV_KERNEL)),
    ROW(ATTN "v_conv1d.weight", VIEW "attn.conv", K3_F32, ATTENTION, ROWS, KDA, NONE, G_KDA_CONV, 0,
        3, V(KDA_ROWS), V(ONE), V(CONV_KERNEL)),
    /* ---- MLA ---- */
    ROW(ATTN "q_a_proj.weight", VIEW "attn.qkv_a", K3_BF16, ATTENTION, REPLICATE, MLA, NONE,
        G_MLA_IN, 0, 2, V(Q_LORA), V(HIDDEN)),
    ROW(ATTN "kv_a_proj_with_mqa.weight", VIEW "attn.qkv_a", K3_BF16, ATTENTION, REPLICATE, MLA,
        NONE, G_MLA_IN, 0, 2, V(KV_A_ROWS), V(HIDDEN)),
    ROW(ATTN "g_proj.weight", VIEW "attn.g", K3_BF16, ATTENTION, ROWS, MLA, NONE, G_MLA_G, 0, 2,
        V(V_ROWS), V(HIDDEN)),
    ROW(ATTN "q_b_proj.weight", VIEW "attn.q_b", K3_BF16, ATTENTION, ROWS, MLA, NONE, G_MLA_Q_B, 0,
        2, V(Q_ROWS), V(Q_LORA)),
    ROW(ATTN "kv_b_proj.weight", VIEW "attn.kv_b", K3_BF16, ATTENTION, ROWS, MLA, NONE, G_MLA_KV_B,
        0, 2, V(KV_B_ROWS), V(KV_LORA)),
    ROW(ATTN "o_proj.weight", VIEW "attn.o", K3_BF16, ATTENTION, COLUMNS, MLA, NONE, G_MLA_O, 0, 2,
        V(HIDDEN), V(V_ROWS)),
    /* ---- dense MLP ---- */
    ROW(LAYER "mlp.gate_proj.weight", VIEW "mlp.gate_up", K3_BF16, DENSE, ROWS, DENSE, NONE,
        G_DENSE_IN, 0, 2, V(DENSE_WIDTH), V(HIDDEN)),
    ROW(LAYER "mlp.up_proj.weight", VIEW "mlp.gate_up", K3_BF16, DENSE, ROWS, DENSE, NONE,
        G_DENSE_IN, 0, 2, V(DENSE_WIDTH), V(HIDDEN)),
    ROW(LAYER "mlp.down_proj.weight", VIEW "mlp.down", K3_BF16, DENSE, COLUMNS, DENSE, NONE,
        G_DENSE_DOWN, 0, 2, V(HIDDEN), V(DENSE_WIDTH)),
    /* ---- shared expert, router, latent projections ---- */
    ROW(MOE "shared_experts.gate_proj.weight", VIEW "shared.gate_up", K3_BF16, SHARED, ROWS, MOE,
        NONE, G_SHARED_IN, 0, 2, V(SHARED_WIDTH), V(HIDDEN)),
    ROW(MOE "shared_experts.up_proj.weight", VIEW "shared.gate_up", K3_BF16, SHARED, ROWS, MOE,
        NONE, G_SHARED_IN, 0, 2, V(SHARED_WIDTH), V(HIDDEN)),
    ROW(MOE "gate.weight", VIEW "router.gate", K3_BF16, ROUTER, REPLICATE, MOE, NONE, G_ROUTER, 0,
        2, V(EXPERTS), V(HIDDEN)),
    ROW(MOE "routed_expert_down_proj.weight", VIEW "latent.down", K3_BF16, LATENT, REPLICATE, MOE,
        NONE, G_LATENT_DOWN, 0, 2, V(LATENT), V(HIDDEN)),
    ROW(MOE "shared_experts.down_proj.weight", VIEW "shared.down", K3_BF16, SHARED, COLUMNS, MOE,
        NONE, G_SHARED_DOWN, 0, 2, V(HIDDEN), V(SHARED_WIDTH)),
    ROW(MOE "routed_expert_up_proj.weight", VIEW "latent.up", K3_BF16, LATENT, REPLICATE, MOE, NONE,
        G_LATENT_UP, 0, 2, V(HIDDEN), V(LATENT)),
    /* ---- small ---- */
    ROW(LAYER "input_layernorm.weight", VIEW "input_norm", K3_BF16, NORM, REPLICATE, LAYER, NONE,
        G_SMALL, K3_RULE_SMALL, 1, V(HIDDEN)),
    ROW(LAYER "post_attention_layernorm.weight", VIEW "post_attn_norm", K3_BF16, NORM, REPLICATE,
        LAYER, NONE, G_SMALL, K3_RULE_SMALL, 1, V(HIDDEN)),
    ROW(ATTN "q_a_layernorm.weight", VIEW "attn.q_a_norm", K3_BF16, NORM, REPLICATE, MLA, NONE,
        G_SMALL, K3_RULE_SMALL, 1, V(Q_LORA)),
    ROW(ATTN "kv_a_layernorm.weight", VIEW "attn.kv_a_norm", K3_BF16, NORM, REPLICATE, MLA, NONE,
        G_SMALL, K3_RULE_SMALL, 1, V(KV_LORA)),
    ROW(MOE "routed_expert_norm.weight", VIEW "latent.norm", K3_BF16, LATENT, REPLICATE, MOE, NONE,
        G_SMALL, K3_RULE_SMALL, 1, V(LATENT)),
    ROW(MOE "gate.e_score_correction_bias", VIEW "router.bias", K3_F32, ROUTER, REPLICATE, MOE,
        NONE, G_SMALL, K3_RULE_SMALL, 1, V(EXPERTS)),
    ROW(ATTN "A_log", VIEW "attn.A_log", K3_F32, ATTENTION, ROWS, KDA, NONE, G_SMALL,
        K3_RULE_SMALL | K3_RULE_STORED_LONGER, 1, V(KDA_HEADS)),
    ROW(ATTN "dt_bias", VIEW "attn.dt_bias", K3_F32, ATTENTION, ROWS, KDA, NONE, G_SMALL,
        K3_RULE_SMALL, 1, V(KDA_ROWS)),
    ROW(ATTN "o_norm.weight", VIEW "attn.o_norm", K3_F32, NORM, REPLICATE, KDA, NONE, G_SMALL,
        K3_RULE_SMALL, 1, V(KDA_DIM)),
    ROW(LAYER "self_attention_res_norm.weight", VIEW "attn_res.norm", K3_BF16, ATTNRES, REPLICATE,
        LAYER, NONE, G_SMALL, K3_RULE_SMALL, 1, V(HIDDEN)),
    ROW(LAYER "self_attention_res_proj.weight", VIEW "attn_res.proj", K3_BF16, ATTNRES, REPLICATE,
        LAYER, NONE, G_SMALL, K3_RULE_SMALL, 2, V(ONE), V(HIDDEN)),
    ROW(LAYER "mlp_res_norm.weight", VIEW "mlp_res.norm", K3_BF16, ATTNRES, REPLICATE, LAYER, NONE,
        G_SMALL, K3_RULE_SMALL, 1, V(HIDDEN)),
    ROW(LAYER "mlp_res_proj.weight", VIEW "mlp_res.proj", K3_BF16, ATTNRES, REPLICATE, LAYER, NONE,
        G_SMALL, K3_RULE_SMALL, 2, V(ONE), V(HIDDEN)),
    /* ---- first part ---- */
    ROW("language_model.model.embed_tokens.weight", "embed", K3_BF16, EMBED, ROWS, FIRST, NONE,
        G_EMBED, 0, 2, V(VOCAB), V(HIDDEN)),
    ROW("vision_tower.patch_embed.proj.weight", "vision.patch_embed", K3_BF16, VISION, REPLICATE,
        FIRST, NONE, G_VISION, K3_RULE_OWN_GROUP, 4, V(VT_HIDDEN), V(THREE), V(PATCH), V(PATCH)),
    ROW("vision_tower.patch_embed.pos_emb.weight", "vision.pos_emb", K3_BF16, VISION, REPLICATE,
        FIRST, NONE, G_VISION, K3_RULE_OWN_GROUP, 3, V(POS_HEIGHT), V(POS_WIDTH), V(VT_HIDDEN)),
    ROW(BLOCK "wqkv.weight", "vision.blocks.{b}.wqkv", K3_BF16, VISION, REPLICATE, FIRST, BLOCK,
        G_BLOCK, K3_RULE_OWN_GROUP, 2, V(VT_QKV_ROWS), V(VT_HIDDEN)),
    ROW(BLOCK "wo.weight", "vision.blocks.{b}.wo", K3_BF16, VISION, REPLICATE, FIRST, BLOCK,
        G_BLOCK, K3_RULE_OWN_GROUP, 2, V(VT_HIDDEN), V(VT_QKV)),
    ROW(BLOCK "mlp.fc0.weight", "vision.blocks.{b}.fc0", K3_BF16, VISION, REPLICATE, FIRST, BLOCK,
        G_BLOCK, K3_RULE_OWN_GROUP, 2, V(VT_WIDTH), V(VT_HIDDEN)),
    ROW(BLOCK "mlp.fc1.weight", "vision.blocks.{b}.fc1", K3_BF16, VISION, REPLICATE, FIRST, BLOCK,
        G_BLOCK, K3_RULE_OWN_GROUP, 2, V(VT_HIDDEN), V(VT_WIDTH)),
    ROW("mm_projector.proj.0.weight", "projector.0", K3_BF16, PROJECTOR, REPLICATE, FIRST, NONE,
        G_PROJECTOR, K3_RULE_OWN_GROUP, 2, V(MM_WIDTH), V(MM_WIDTH)),
    ROW("mm_projector.proj.2.weight", "projector.2", K3_BF16, PROJECTOR, REPLICATE, FIRST, NONE,
        G_PROJECTOR, K3_RULE_OWN_GROUP, 2, V(TEXT_HIDDEN), V(MM_WIDTH)),
    ROW(BLOCK "norm0.weight", "vision.blocks.{b}.norm0", K3_BF16, VISION, REPLICATE, FIRST, BLOCK,
        G_SMALL, K3_RULE_SMALL, 1, V(VT_HIDDEN)),
    ROW(BLOCK "norm1.weight", "vision.blocks.{b}.norm1", K3_BF16, VISION, REPLICATE, FIRST, BLOCK,
        G_SMALL, K3_RULE_SMALL, 1, V(VT_HIDDEN)),
    ROW("vision_tower.encoder.final_layernorm.weight", "vision.norm", K3_BF16, VISION, REPLICATE,
        FIRST, NONE, G_SMALL, K3_RULE_SMALL, 1, V(VT_HIDDEN)),
    ROW("mm_projector.post_norm.weight", "projector.norm", K3_BF16, PROJECTOR, REPLICATE, FIRST,
        NONE, G_SMALL, K3_RULE_SMALL, 1, V(TEXT_HIDDEN)),
    /* ---- last part ---- */
    ROW("language_model.lm_head.weight", "head", K3_BF16, HEAD, ROWS, LAST, NONE, G_HEAD, 0, 2,
        V(VOCAB), V(HIDDEN)),
    ROW("language_model.model.norm.weight", "norm", K3_BF16, NORM, REPLICATE, LAST, NONE, G_SMALL,
        K3_RULE_SMALL, 1, V(HIDDEN)),
    ROW("language_model.model.output_attn_res_norm.weight", "output_res.norm", K3_BF16, ATTNRES,
        REPLICATE, LAST, NONE, G_SMALL, K3_RULE_SMALL, 1, V(HIDDEN)),
    ROW("language_model.model.output_attn_res_proj.weight", "output_res.proj", K3_BF16, ATTNRES,
        REPLICATE, LAST, NONE, G_SMALL, K3_RULE_SMALL, 2, V(ONE), V(HIDDEN)),
};

#define RULE_COUNT (sizeof rules / sizeof rules[0])
_Static_assert(RULE_COUNT <= K3_RULE_COUNT_MAX, "the rule table outgrew K3_RULE_COUNT_MAX");

/* Sorted by path: the plan text writes them in this order (FORMAT.md 4.5).  The two layer lists
 * stand between them. */
static const struct k3_config_field fields[] = {
    {"text_config.first_k_dense_replace", V(FIRST_DENSE), 0},
    {"text_config.hidden_size", V(HIDDEN), 0},
    {"text_config.intermediate_size", V(DENSE_WIDTH), 0},
    {"text_config.kv_lora_rank", V(KV_LORA), 0},
    {"text_config.linear_attn_config.head_dim", V(KDA_DIM), 0},
    {"text_config.linear_attn_config.num_heads", V(KDA_HEADS), 0},
    {"text_config.linear_attn_config.short_conv_kernel_size", V(CONV_KERNEL), 0},
    {"text_config.moe_intermediate_size", V(MOE_WIDTH), 0},
    {"text_config.num_attention_heads", V(HEADS), 0},
    {"text_config.num_experts", V(EXPERTS), 0},
    {"text_config.num_hidden_layers", V(LAYERS), 0},
    {"text_config.num_shared_experts", V(SHARED_EXPERTS), 0},
    {"text_config.q_lora_rank", V(Q_LORA), 0},
    {"text_config.qk_nope_head_dim", V(NOPE), 0},
    {"text_config.qk_rope_head_dim", V(ROPE), 0},
    {"text_config.routed_expert_hidden_size", V(LATENT), 0},
    {"text_config.v_head_dim", V(V_DIM), 0},
    {"text_config.vocab_size", V(VOCAB), 0},
    {"vision_config.init_pos_emb_height", V(POS_HEIGHT), 0},
    {"vision_config.init_pos_emb_width", V(POS_WIDTH), 0},
    {"vision_config.merge_kernel_size", V(MERGE_HEIGHT), 1},
    {"vision_config.merge_kernel_size", V(MERGE_WIDTH), 2},
    {"vision_config.mm_hidden_size", V(MM_HIDDEN), 0},
    {"vision_config.patch_size", V(PATCH), 0},
    {"vision_config.qkv_hidden_size", V(VT_QKV), 0},
    {"vision_config.text_hidden_size", V(TEXT_HIDDEN), 0},
    {"vision_config.vt_hidden_size", V(VT_HIDDEN), 0},
    {"vision_config.vt_intermediate_size", V(VT_WIDTH), 0},
    {"vision_config.vt_num_hidden_layers", V(VT_LAYERS), 0},
};

static const struct k3_config_demand demands[] = {
    {"text_config.moe_layer_freq", "1", true},
    {"text_config.num_nextn_predict_layers", "0", true},
    {"text_config.tie_word_embeddings", "false", true},
    {"text_config.mla_use_output_gate", "true", true},
    {"text_config.linear_attn_config.use_full_rank_gate", "true", true},
    {"text_config.quantization_config.format", "mxfp4-pack-quantized", false},
    {"text_config.quantization_config.config_groups.group_0.weights.num_bits", "4", false},
    {"text_config.quantization_config.config_groups.group_0.weights.group_size", "32", false},
    {"vision_config.attn_bias", "false", true},
    {"vision_config.patch_embed_proj_bias", "false", true},
    {"vision_config.linear_bias", "false", true},
};

const struct k3_model k3_model_k3 = {
    .architecture = "KimiK3ForConditionalGeneration",
    .rules = rules,
    .fields = fields,
    .demands = demands,
    .rule_count = RULE_COUNT,
    .field_count = sizeof fields / sizeof fields[0],
    .demand_count = sizeof demands / sizeof demands[0],
};

const struct k3_model *k3_model_find(const char *architecture)
{
    static const struct k3_model *const models[] = {&k3_model_k3};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (!strcmp(models[i]->architecture, architecture))
            return models[i];
    return NULL;
}

const char *k3_role_name(enum k3_role role)
{
    static const char *const name[] = {"attention", "experts", "shared", "latent",
                                       "router",    "dense",   "embed",  "head",
                                       "norm",      "attnres", "vision", "projector"};
    return (unsigned)role < K3_ROLE_COUNT ? name[role] : "unknown";
}
