/* Purpose: the published K3 configuration, made from a config.json text by the real decoder.
 * Owns: nothing.
 * Threads: any.
 * Errors: a test fails.
 * Invariant: values are those of the published config.json, the decoder is the one under test. */
#include "k3_numbers.h"

#include "doc.h"
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char head[] =
    "{\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"text_config\":{"
    "\"vocab_size\":163840,\"hidden_size\":7168,\"num_hidden_layers\":93,\"intermediate_size\":"
    "33792,"
    "\"num_attention_heads\":96,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,"
    "\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"first_k_dense_replace\":1,\"moe_layer_freq\":1,"
    "\"num_experts\":896,\"num_shared_experts\":2,\"moe_intermediate_size\":3072,"
    "\"routed_expert_hidden_size\":3584,\"quantization_config\":{\"format\":\"mxfp4-pack-"
    "quantized\","
    "\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":4,\"group_size\":32}}}},"
    "\"linear_attn_config\":{\"head_dim\":128,\"num_heads\":96,\"short_conv_kernel_size\":4,"
    "\"full_attn_layers\":[";
static const char tail[] =
    "]}},\"vision_config\":{\"patch_size\":14,\"init_pos_emb_height\":64,\"init_pos_emb_width\":64,"
    "\"vt_hidden_size\":1024,\"vt_intermediate_size\":4096,\"qkv_hidden_size\":1536,"
    "\"vt_num_hidden_layers\":27,\"merge_kernel_size\":[2,2],\"mm_hidden_size\":1024,"
    "\"text_hidden_size\":7168}}";

void k3_test_config(struct k3_config *config)
{
    struct k3_text text;
    struct k3_doc *root = NULL;
    struct k3_problems problems;
    struct k3_err err;
    k3_text_init(&text);
    k3_problems_init(&problems);
    k3_err_init(&err);
    k3_text_puts(&text, head);
    for (unsigned i = 4; i <= 92; i += 4) /* every fourth layer is MLA, and the last */
        k3_text_putf(&text, "%u,", i);
    k3_text_puts(&text, "93],\"kda_layers\":[1");
    for (unsigned i = 2; i <= 92; i++)
        if (i % 4)
            k3_text_putf(&text, ",%u", i);
    k3_text_puts(&text, tail);
    assert_int_equal(k3_doc_decode("config.json", text.data, text.bytes, &root, &err), 0);
    if (k3_config_decode(root, config, &problems, &err))
        fail_msg("%s %s", err.text, problems.kept_count ? problems.text[0] : "");
    k3_doc_free(root);
    k3_problems_fini(&problems);
    k3_text_fini(&text);
}
