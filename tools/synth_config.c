/* Purpose: config.json and the other small texts of a synthetic checkpoint.
 * Owns: nothing; templates and two columns of values are constant.
 * Threads: any.
 * Errors: those of the text (no memory), found by its owner.
 * Invariants: every member of the published config.json is there, in its order, indent 2; no
 * number stands in two places, so the values of a preset cannot contradict each other. */
#include "synth.h"

#include <assert.h>
#include <string.h>

/* `$name` in a template is replaced by a value of this table or by a list of layers.  Real values:
 * the published ones. */
struct value {
    const char *name;
    uint32_t tiny, real;
};

static const struct value values[] = {
    {"bos", 1020, 163584},
    {"eos", 1021, 163586},
    {"pad", 1023, 163839},
    {"media", 1022, 163605},
    {"vocab", 1024,
     163840}, /* tiny: a multiple of 16, and more than the 256 bytes of tiktoken.model */
    {"hidden", 64, 7168},
    {"dense", 512, 33792},
    {"res_block", 2, 12},
    {"heads", 16, 96}, /* tiny: the least that tp 16 can cut */
    {"q_lora", 32, 1536},
    {"kv_lora", 32, 512},
    {"nope", 8, 128},
    {"rope", 8, 64},
    {"v_dim", 8, 128},
    {"kda_dim", 8, 128},
    {"topk", 4, 16},
    {"moe", 512, 3072}, /* tiny: 16 ranks x one group of 32 columns */
    {"latent", 32, 3584},
    {"patch", 4, 14},
    {"pos", 8, 64},
    {"vt_hidden", 32, 1024},
    {"vt_width", 64, 4096},
    {"vt_qkv", 48, 1536},
    {"vt_heads", 4, 12},
    {"vt_layers", 2, 27},
    {"mm_hidden", 32, 1024},
    {"patch_side", 512, 512},
    {"patch_limit", 65536, 65536},
};

/* The templates are several strings because C promises room for 4095 characters in one. */
static const char root_template[] =
    "{\n"
    "  \"architectures\": [\n"
    "    \"KimiK3ForConditionalGeneration\"\n"
    "  ],\n"
    "  \"auto_map\": {\n"
    "    \"AutoConfig\": \"configuration_kimi_k3.KimiK3Config\",\n"
    "    \"AutoModel\": \"modeling_kimi_k3.KimiK3ForConditionalGeneration\",\n"
    "    \"AutoModelForCausalLM\": \"modeling_kimi_k3.KimiK3ForConditionalGeneration\"\n"
    "  },\n"
    "  \"bos_token_id\": $bos,\n"
    "  \"eos_token_id\": $eos,\n"
    "  \"pad_token_id\": $pad,\n"
    "  \"dtype\": \"bfloat16\",\n"
    "  \"ignore_index\": -100,\n"
    "  \"image_placeholder\": \"<|kimi_image_placeholder|>\",\n"
    "  \"media_placeholder_token_id\": $media,\n"
    "  \"model_type\": \"kimi_k3\",\n"
    "  \"tie_word_embeddings\": false,\n";

static const char text_template[] =
    "  \"text_config\": {\n"
    "    \"architectures\": [\n"
    "      \"KimiLinearForCausalLM\"\n"
    "    ],\n"
    "    \"auto_map\": {\n"
    "      \"AutoConfig\": \"configuration_kimi_k3.KimiLinearConfig\",\n"
    "      \"AutoModel\": \"modeling_kimi_linear.KimiLinearModel\",\n"
    "      \"AutoModelForCausalLM\": \"modeling_kimi_linear.KimiLinearForCausalLM\"\n"
    "    },\n"
    "    \"model_type\": \"kimi_linear\",\n"
    "    \"dtype\": \"bfloat16\",\n"
    "    \"bos_token_id\": $bos,\n"
    "    \"eos_token_id\": $eos,\n"
    "    \"pad_token_id\": $pad,\n"
    "    \"vocab_size\": $vocab,\n"
    "    \"tie_word_embeddings\": false,\n"
    "    \"use_cache\": true,\n"
    "    \"hidden_size\": $hidden,\n"
    "    \"num_hidden_layers\": $layers,\n"
    "    \"intermediate_size\": $dense,\n"
    "    \"initializer_range\": 0.02,\n"
    "    \"rms_norm_eps\": 1e-05,\n"
    "    \"max_position_embeddings\": 1048576,\n"
    "    \"hidden_act\": \"situ\",\n"
    "    \"activation_situ_beta\": 4.0,\n"
    "    \"activation_situ_linear_beta\": 25.0,\n"
    "    \"attn_res_block_size\": $res_block,\n"
    "    \"num_attention_heads\": $heads,\n"
    "    \"num_key_value_heads\": $heads,\n"
    "    \"q_lora_rank\": $q_lora,\n"
    "    \"kv_lora_rank\": $kv_lora,\n"
    "    \"qk_nope_head_dim\": $nope,\n"
    "    \"qk_rope_head_dim\": $rope,\n"
    "    \"v_head_dim\": $v_dim,\n"
    "    \"mla_use_nope\": true,\n"
    "    \"mla_use_output_gate\": true,\n";

static const char linear_template[] = "    \"linear_attn_config\": {\n"
                                      "      \"full_attn_layers\": $full_attn_layers,\n"
                                      "      \"kda_layers\": $kda_layers,\n"
                                      "      \"head_dim\": $kda_dim,\n"
                                      "      \"num_heads\": $heads,\n"
                                      "      \"short_conv_kernel_size\": 4,\n"
                                      "      \"use_full_rank_gate\": true,\n"
                                      "      \"gate_lower_bound\": -5.0\n"
                                      "    },\n"
                                      "    \"first_k_dense_replace\": 1,\n"
                                      "    \"moe_layer_freq\": 1,\n"
                                      "    \"num_experts\": $experts,\n"
                                      "    \"num_experts_per_token\": $topk,\n"
                                      "    \"num_shared_experts\": 2,\n"
                                      "    \"moe_intermediate_size\": $moe,\n"
                                      "    \"routed_expert_hidden_size\": $latent,\n"
                                      "    \"latent_moe_use_norm\": true,\n"
                                      "    \"num_expert_group\": 1,\n"
                                      "    \"topk_group\": 1,\n"
                                      "    \"use_grouped_topk\": true,\n"
                                      "    \"topk_method\": \"noaux_tc\",\n"
                                      "    \"moe_router_activation_func\": \"sigmoid\",\n"
                                      "    \"moe_renormalize\": true,\n"
                                      "    \"routed_scaling_factor\": 1.0,\n"
                                      "    \"num_nextn_predict_layers\": 0,\n";

static const char quantization_template[] =
    "    \"quantization_config\": {\n"
    "      \"quant_method\": \"compressed-tensors\",\n"
    "      \"format\": \"mxfp4-pack-quantized\",\n"
    "      \"quantization_status\": \"compressed\",\n"
    "      \"config_groups\": {\n"
    "        \"group_0\": {\n"
    "          \"format\": \"mxfp4-pack-quantized\",\n"
    "          \"targets\": [\n"
    "            \"Linear\"\n"
    "          ],\n"
    "          \"input_activations\": null,\n"
    "          \"output_activations\": null,\n"
    "          \"weights\": {\n"
    "            \"num_bits\": 4,\n"
    "            \"type\": \"float\",\n"
    "            \"symmetric\": true,\n"
    "            \"strategy\": \"group\",\n"
    "            \"group_size\": 32,\n"
    "            \"dynamic\": false,\n"
    "            \"observer\": \"minmax\",\n"
    "            \"scale_dtype\": \"torch.uint8\"\n"
    "          }\n"
    "        }\n"
    "      },\n"
    "      \"ignore\": [\n"
    "        \"re:.*self_attn.*\",\n"
    "        \"re:.*shared_experts.*\",\n"
    "        \"re:.*mlp\\\\.(gate|up|gate_up|down)_proj.*\",\n"
    "        \"re:.*lm_head.*\",\n"
    "        \"re:.*vision_tower.*\",\n"
    "        \"re:.*mm_projector.*\"\n"
    "      ]\n"
    "    }\n"
    "  },\n";

static const char vision_template[] = "  \"vision_config\": {\n"
                                      "    \"_attn_implementation\": \"flash_attention_2\",\n"
                                      "    \"patch_size\": $patch,\n"
                                      "    \"init_pos_emb_height\": $pos,\n"
                                      "    \"init_pos_emb_width\": $pos,\n"
                                      "    \"init_pos_emb_time\": 4,\n"
                                      "    \"pos_emb_type\": \"divided_fixed\",\n"
                                      "    \"pos_emb_interpolation_mode\": \"bilinear\",\n"
                                      "    \"vt_hidden_size\": $vt_hidden,\n"
                                      "    \"vt_intermediate_size\": $vt_width,\n"
                                      "    \"qkv_hidden_size\": $vt_qkv,\n"
                                      "    \"vt_num_attention_heads\": $vt_heads,\n"
                                      "    \"vt_num_hidden_layers\": $vt_layers,\n"
                                      "    \"merge_kernel_size\": [\n"
                                      "      2,\n"
                                      "      2\n"
                                      "    ],\n"
                                      "    \"merge_type\": \"sd2_tpool\",\n"
                                      "    \"mm_projector_type\": \"patchmergerv2\",\n"
                                      "    \"mm_hidden_size\": $mm_hidden,\n"
                                      "    \"projector_hidden_act\": \"gelu\",\n"
                                      "    \"projector_ln_eps\": 1e-05,\n"
                                      "    \"text_hidden_size\": $hidden,\n"
                                      "    \"norm_type\": \"rmsnorm\",\n"
                                      "    \"mlp_type\": \"mlp2\",\n"
                                      "    \"activation_func\": \"gelu_pytorch_tanh\",\n"
                                      "    \"attn_bias\": false,\n"
                                      "    \"patch_embed_proj_bias\": false,\n"
                                      "    \"linear_bias\": false\n"
                                      "  }\n"
                                      "}\n";

static const char license_template[] = "This checkpoint is synthetic. Its numbers come from a "
                                       "generator and carry no rights of anybody.\n"
                                       "It has the form of a published checkpoint and none of its "
                                       "content. It may be used for any purpose.\n"
                                       "There is no warranty of any kind.\n";

static const char readme_template[] =
    "---\n"
    "tags:\n"
    "- synthetic\n"
    "---\n"
    "\n"
    "# A synthetic checkpoint\n"
    "\n"
    "Names, shapes, dtypes, order of tensors and form of the headers are those of Kimi K3; the "
    "numbers are random.\n"
    "Made by `k3-shard synth`: $layers layers, $experts experts in each, seed $seed.\n"
    "It is made for tests and measurements.\n";

static const char generation_template[] = "{\n"
                                          "  \"eos_token_id\": $eos,\n"
                                          "  \"max_length\": 1048576\n"
                                          "}\n";

static const char preprocessor_template[] = "{\n"
                                            "  \"in_patch_limit\": $patch_limit,\n"
                                            "  \"patch_limit_on_one_side\": $patch_side,\n"
                                            "  \"patch_size\": $patch,\n"
                                            "  \"merge_kernel_size\": [\n"
                                            "    2,\n"
                                            "    2\n"
                                            "  ],\n"
                                            "  \"pos_emb_type\": \"divided_fixed\"\n"
                                            "}\n";

static const char tokenizer_template[] = "{\n"
                                         "  \"added_tokens_decoder\": {\n"
                                         "    \"$bos\": {\n"
                                         "      \"content\": \"[BOS]\",\n"
                                         "      \"special\": true\n"
                                         "    },\n"
                                         "    \"$eos\": {\n"
                                         "      \"content\": \"<|end_of_msg|>\",\n"
                                         "      \"special\": true\n"
                                         "    },\n"
                                         "    \"$media\": {\n"
                                         "      \"content\": \"<|media_pad|>\",\n"
                                         "      \"special\": true\n"
                                         "    },\n"
                                         "    \"$pad\": {\n"
                                         "      \"content\": \"[PAD]\",\n"
                                         "      \"special\": true\n"
                                         "    }\n"
                                         "  },\n"
                                         "  \"bos_token\": \"[BOS]\",\n"
                                         "  \"clean_up_tokenization_spaces\": false,\n"
                                         "  \"eos_token\": \"<|end_of_msg|>\",\n"
                                         "  \"model_max_length\": 1048576,\n"
                                         "  \"pad_token\": \"[PAD]\",\n"
                                         "  \"tokenizer_class\": \"TikTokenTokenizer\",\n"
                                         "  \"unk_token\": null\n"
                                         "}\n";

/* 1-based: every fourth layer and the last one are MLA; 93 layers give the published list. */
static bool is_full_attention(uint32_t layer, uint32_t layer_count)
{
    return layer % 4 == 0 || layer == layer_count;
}

static void put_layers(const struct k3_synth_options *options, bool full, struct k3_text *out)
{
    const char *gap = "[\n        ";
    for (uint32_t layer = 1; layer <= options->layer_count; layer++) {
        if (is_full_attention(layer, options->layer_count) != full)
            continue;
        k3_text_puts(out, gap);
        k3_text_putu(out, layer);
        gap = ",\n        ";
    }
    k3_text_puts(out, "\n      ]");
}

static void put_value(const struct k3_synth_options *options, const char *name, size_t bytes,
                      struct k3_text *out)
{
    char word[32];
    assert(bytes < sizeof word);
    memcpy(word, name, bytes);
    word[bytes] = 0;
    if (!strcmp(word, "full_attn_layers")) {
        put_layers(options, true, out);
    } else if (!strcmp(word, "kda_layers")) {
        put_layers(options, false, out);
    } else if (!strcmp(word, "layers")) {
        k3_text_putu(out, options->layer_count);
    } else if (!strcmp(word, "experts")) {
        k3_text_putu(out, options->expert_count);
    } else if (!strcmp(word, "seed")) {
        k3_text_putu(out, options->seed);
    } else {
        size_t i = 0;
        while (i < sizeof values / sizeof values[0] && strcmp(values[i].name, word) != 0)
            i++;
        assert(i < sizeof values / sizeof values[0]);
        k3_text_putu(out, options->preset == K3_SYNTH_TINY ? values[i].tiny : values[i].real);
    }
}

static void put_template(const struct k3_synth_options *options, const char *template,
                         struct k3_text *out)
{
    for (const char *p = template; *p;) {
        size_t plain = strcspn(p, "$");
        k3_text_put(out, p, plain);
        p += plain;
        if (!*p)
            break;
        size_t bytes = strspn(++p, "abcdefghijklmnopqrstuvwxyz_");
        put_value(options, p, bytes, out);
        p += bytes;
    }
}

void k3_synth_config_encode(const struct k3_synth_options *options, struct k3_text *out)
{
    put_template(options, root_template, out);
    put_template(options, text_template, out);
    put_template(options, linear_template, out);
    put_template(options, quantization_template, out);
    put_template(options, vision_template, out);
}

/* A vocabulary in the form of tiktoken, "base64 rank" lines: the 256 bytes and nothing else. */
static void put_tiktoken(struct k3_text *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (uint32_t byte = 0; byte < 256; byte++)
        k3_text_putf(out, "%c%c== %u\n", digit[byte >> 2], digit[(byte & 3) << 4], byte);
}

const char *k3_synth_extra_encode(const struct k3_synth_options *options, uint32_t index,
                                  struct k3_text *out)
{
    static const struct {
        const char *name;
        const char *text; /* NULL: tiktoken */
    } extra[] = {
        {"LICENSE", license_template},
        {"README.md", readme_template},
        {"generation_config.json", generation_template},
        {"preprocessor_config.json", preprocessor_template},
        {"tiktoken.model", NULL},
        {"tokenizer_config.json", tokenizer_template},
    };
    if (index >= sizeof extra / sizeof extra[0])
        return NULL;
    if (extra[index].text)
        put_template(options, extra[index].text, out);
    else
        put_tiktoken(out);
    return extra[index].name;
}
