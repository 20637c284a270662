/* Purpose: policies: their texts, which matrices they reach, what they are refused for, and the
 * parts that they give.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariant: numbers are worked out from the published configuration and the formats, not by the
 * code under test. */
#include "doc.h"
#include "k3_numbers.h"
#include "part.h"
#include "st.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct k3_config config;

static struct k3_policy policy_of(const char *text)
{
    struct k3_policy policy;
    struct k3_err err;
    k3_err_init(&err);
    k3_policy_init(&policy);
    int rc = k3_policy_parse(text, &policy, &err);
    if (rc)
        print_message("%s: %s\n", text, err.text);
    assert_int_equal(rc, 0);
    return policy;
}

static struct k3_layout layout_of(uint32_t tp, uint32_t dp)
{
    struct k3_layout layout;
    struct k3_err err;
    k3_err_init(&err);
    k3_layout_init(&layout);
    layout.tp = tp;
    layout.dp = dp;
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), 0);
    return layout;
}

/* A text and its canonical form. */
static void test_texts(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"verbatim", "verbatim"},
        {"nvfp4", "attention=fp8-block,experts=nvfp4"},
        {"fp8-attn", "attention=fp8-block"},
        {"fp8-rest", "attention=fp8-block,shared=fp8-block,latent=fp8-block,dense=fp8-block,"
                     "head=fp8-block"},
        {"bf16", "experts=bf16"},
        {"int4-g32", "experts=int4-g32"},
        {"experts=nvfp4,attention=fp8-block", "attention=fp8-block,experts=nvfp4"},
        {"experts=mxfp4", "verbatim"},
        {"nvfp4,*.layers.0.*=verbatim", "attention=fp8-block,experts=nvfp4,*.layers.0.*=verbatim"},
        {"nvfp4,experts=bf16,oow=snap", "attention=fp8-block,experts=bf16,oow=snap"},
        {"verbatim,head=mxfp8", "head=mxfp8"},
        {"attention=bf16,head=verbatim", "verbatim"},
        {"*.layers.0.*=verbatim,dense=mxfp8", "dense=mxfp8,*.layers.0.*=verbatim"},
        {"oow=snap,config=modelopt,experts=bf16", "experts=bf16,config=modelopt,oow=snap"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char text[K3_POLICY_TEXT_BYTES], again[K3_POLICY_TEXT_BYTES];
        struct k3_policy policy = policy_of(pairs[i][0]);
        k3_policy_text(&policy, text);
        assert_string_equal(text, pairs[i][1]);
        policy = policy_of(text);
        k3_policy_text(&policy, again);
        assert_string_equal(again, text);
    }
}

/* The shortest text of a policy, which means the same. */
static void test_short_texts(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"verbatim", "verbatim"},
        {"attention=fp8-block", "fp8-attn"},
        {"experts=int4-g32,oow=snap", "int4-g32,oow=snap"},
        {"experts=int4-g128", "experts=int4-g128"},
        {"attention=fp8-block,experts=nvfp4,shared=fp8-block,latent=fp8-block,dense=fp8-block,"
         "head=fp8-block",
         "fp8-rest,experts=nvfp4"},
        {"mxfp8,head=verbatim", "mxfp8,head=verbatim"},
        {"mxfp8,head=verbatim,*.layers.0.*=verbatim,config=modelopt",
         "mxfp8,head=verbatim,*.layers.0.*=verbatim,config=modelopt"},
        {"*.layers.2.*=nvfp4", "*.layers.2.*=nvfp4"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char text[K3_POLICY_TEXT_BYTES], canonical[K3_POLICY_TEXT_BYTES];
        struct k3_policy policy = policy_of(pairs[i][0]);
        k3_policy_short_text(&policy, text);
        assert_string_equal(text, pairs[i][1]);
        k3_policy_text(&policy, canonical);
        policy = policy_of(text);
        k3_policy_text(&policy, text);
        assert_string_equal(text, canonical);
    }
}

static void test_bad_texts(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "no policy"},
        {"fp4", "no policy"},
        {"nvpf4", "'nvpf4' is no policy; did you mean 'nvfp4'? policies are: verbatim nvfp4 "},
        {"experts", "no policy"},
        {"NVFP4", "did you mean 'nvfp4'?"},
        {"expert=nvfp4", "'expert' is no role; did you mean 'experts'? roles are: attention "},
        {"dance=nvfp4", " head vision projector; a pattern"}, /* not norm, not attnres */
        {"experts=nvpf4", "'nvpf4' is no format; did you mean 'nvfp4'? formats are: verbatim "},
        {"experts=quarter", "no format; formats are"},
        {"experts=", "not of the form"},
        {"=nvfp4", "not of the form"},
        {"experts=nvfp4,", "no entry follows the last ','"},
        {"experts=nvfp4,,head=mxfp8", "not of the form"},
        {"experts=nvfp4,experts=bf16", "given twice"},
        {"nvfp4,experts=bf16,experts=mxfp8", "given twice"},
        {"attention=fp8", "'fp8' is no format; did you mean 'fp8-block'? "},
        {"attention=INT8", "did you mean 'int8-g32'? "},
        {"fp8", "'fp8' is no policy; did you mean 'fp8-block'? "},
        {"nvfp4,fp8-attn", "no policy"},
        {"fp8-tensor", "'fp8-tensor' is a format and no policy: write ROLE=fp8-tensor, like "},
        {"mxfp4", "write ROLE=mxfp4"},
        {"nvfp4,fp8-attn,head=mxfp8", "not of the form"},
        {"nvfp4,", "no policy"},
        {"experts=mxfp4,experts=bf16", "given twice"},
        {"*.x=bf16,*.x=mxfp8", "given twice"},
        {"norm=fp8-block", "no matrix"},
        {"attnres=fp8-block", "no matrix"},
        {"*.o proj=bf16", "no tensor name has"},
        {"oow=maybe", "oow is requant or snap"},
        {"config=gguf", "config is modelopt"},
        {"oow=snap,oow=requant", "oow is given twice"},
        {"config=modelopt,config=modelopt", "config is given twice"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct k3_policy policy;
        struct k3_err err;
        k3_err_init(&err);
        k3_policy_init(&policy);
        assert_int_equal(k3_policy_parse(bad[i][0], &policy, &err), K3_EUSAGE);
        assert_non_null(strstr(err.text, bad[i][1]));
    }
}

static void test_json(void **state)
{
    (void)state;
    static const char good[] =
        "{\"experts\": \"nvfp4\",\n \"*.self_attn.o_proj\": \"fp8-block\"}\n";
    static const char *const bad[] = {"[]",
                                      "{\"experts\":4}",
                                      "{\"experts\":\"nvfp4\",\"experts\":\"bf16\"}",
                                      "{\"experts\":{\"format\":\"nvfp4\"}}",
                                      "{\"experts\":\"nvfp4\"} x",
                                      "{\"what\":\"nvfp4\"}"};
    char text[K3_POLICY_TEXT_BYTES];
    struct k3_policy policy;
    struct k3_err err;
    k3_err_init(&err);
    k3_policy_init(&policy);
    assert_int_equal(k3_policy_parse_json("p.json", good, sizeof good - 1, &policy, &err), 0);
    k3_policy_text(&policy, text);
    assert_string_equal(text, "experts=nvfp4,*.self_attn.o_proj=fp8-block");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        k3_err_init(&err);
        k3_policy_init(&policy);
        assert_int_not_equal(k3_policy_parse_json("p.json", bad[i], strlen(bad[i]), &policy, &err),
                             0);
        assert_non_null(strstr(err.text, "p.json: "));
        assert_null(strstr(err.text, "--quant"));
    }
}

static uint32_t rule_of(const char *ending)
{
    for (uint32_t r = 0; r < config.model->rule_count; r++) {
        const char *name = config.model->rules[r].name;
        size_t n = strlen(name), e = strlen(ending);
        if (n >= e && !strcmp(name + n - e, ending))
            return r;
    }
    fail_msg("no rule %s", ending);
    return 0;
}

/* What is never touched unless named, and what a pattern reaches. */
static void test_reach(void **state)
{
    (void)state;
    struct k3_policy policy = policy_of("*=fp8-block");
    static const char *const kept[] = {"gate.weight",     "embed_tokens.weight", "A_log",
                                       "dt_bias",         "conv1d.weight",       "layernorm.weight",
                                       "res_proj.weight", "wqkv.weight",         "proj.0.weight"};
    static const char *const cast[] = {"q_proj.weight", "o_proj.weight", "w1.weight_packed",
                                       "w2.weight_scale", "lm_head.weight"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        assert_int_equal(k3_policy_fmt(&policy, &config, rule_of(kept[i]), 5), K3_Q_VERBATIM);
    for (size_t i = 0; i < sizeof cast / sizeof cast[0]; i++)
        assert_int_equal(k3_policy_fmt(&policy, &config, rule_of(cast[i]), 5), K3_Q_FP8_BLOCK);
    policy = policy_of("*=int4-g32"); /* lossy: experts must be spelled out */
    assert_int_equal(k3_policy_fmt(&policy, &config, rule_of("w1.weight_packed"), 5),
                     K3_Q_VERBATIM);
    policy = policy_of("*.block_sparse_moe.experts.*=int4-g32");
    assert_int_equal(k3_policy_fmt(&policy, &config, rule_of("w1.weight_packed"), 5),
                     K3_Q_INT4_G32);
    policy = policy_of("router=fp8-block,*.layers.5.*=verbatim,*.block_sparse_moe.gate=mxfp8");
    assert_int_equal(k3_policy_fmt(&policy, &config, rule_of("moe.gate.weight"), 4), K3_Q_MXFP8);
    policy = policy_of("attention=mxfp8,*.layers.5.*=verbatim");
    assert_int_equal(k3_policy_fmt(&policy, &config, rule_of("q_proj.weight"), 4), K3_Q_MXFP8);
    assert_int_equal(k3_policy_fmt(&policy, &config, rule_of("q_proj.weight"), 5), K3_Q_VERBATIM);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *policy, *says;
        uint32_t tp;
        int rc;
    } bad[] = {
        {"*.q_proj=fp8-block", "one matrix", 8, K3_EUNSUPPORTED},
        {"*.experts.{e}.w1=bf16", "give w1, w2 and w3 one format", 8, K3_EUNSUPPORTED},
        {"*.nothing=fp8-block", "fits no matrix", 8, K3_EUSAGE},
        {"language_model.model.layers.3.block_sparse_moe.experts.7.w1.weight_packed=nvfp4",
         "did you mean 'language_model.model.layers.3.block_sparse_moe.experts.{e}.w1'?", 8,
         K3_EUSAGE},
        {"vision_tower.encoder.blocks.3.wo.weight=mxfp8",
         "did you mean 'vision_tower.encoder.blocks.{b}.wo'?", 8, K3_EUSAGE},
        {"layers.2.self_attn.o_proj=fp8-block", "did you mean '*.layers.2.self_attn.o_proj'?", 8,
         K3_EUSAGE},
        {"*.layers.93.*=fp8-block", "fits no matrix", 8, K3_EUSAGE},
        {"oow=snap", "--quant", 8, K3_EUSAGE},
        /* w2 has 3072 columns: 96 a rank are no whole group of 128 */
        {"experts=int4-g128", "--tp sizes work: 1 2 4 8", 32, K3_EUNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct k3_policy policy = policy_of(bad[i].policy);
        struct k3_layout layout = layout_of(bad[i].tp, 1);
        struct k3_err err;
        k3_err_init(&err);
        assert_int_equal(k3_policy_check(&policy, &config, &layout, &err), bad[i].rc);
        if (!strstr(err.text, bad[i].says))
            print_message("%s: %s\n", bad[i].policy, err.text);
        assert_non_null(strstr(err.text, bad[i].says));
    }
}

/* What is offered for a refused policy, given again, is not refused. */
static void test_offers(void **state)
{
    (void)state;
    static const struct {
        const char *policy, *offer; /* NULL: none */
        uint32_t tp;
    } cases[] = {
        {"experts=int4-g128",
         "experts=int4-g128,*.block_sparse_moe.experts.{e}.w1=int4-g32,"
         "*.block_sparse_moe.experts.{e}.w3=int4-g32,*.block_sparse_moe.experts.{e}.w2=int4-g32",
         32},
        {"nvfp4,*.layers.2.*.w1=verbatim",
         "nvfp4,*.layers.2.block_sparse_moe.experts.{e}.w1=verbatim,"
         "*.layers.2.block_sparse_moe.experts.{e}.w3=verbatim,"
         "*.layers.2.block_sparse_moe.experts.{e}.w2=verbatim",
         8},
        {"*.q_a_proj=fp8-block,head=mxfp8",
         "head=mxfp8,*.self_attn.q_a_proj=fp8-block,*.self_attn.kv_a_proj_with_mqa=fp8-block", 8},
        {"*.layers.9.*.gate_proj=mxfp8",
         "*.layers.9.block_sparse_moe.shared_experts.gate_proj=mxfp8,"
         "*.layers.9.block_sparse_moe.shared_experts.up_proj=mxfp8",
         8},
        {"experts=int4-g32,config=modelopt", NULL, 8},
        {"*.nothing=fp8-block", NULL, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct k3_policy policy = policy_of(cases[i].policy);
        struct k3_layout layout = layout_of(cases[i].tp, 1);
        struct k3_err err;
        k3_err_init(&err);
        assert_int_not_equal(k3_policy_check(&policy, &config, &layout, &err), 0);
        const char *begin = strstr(err.text, " --quant '");
        if (!cases[i].offer) {
            assert_null(begin);
            continue;
        }
        assert_non_null(begin);
        char offer[K3_ERR_TEXT_BYTES];
        begin += strlen(" --quant '");
        snprintf(offer, sizeof offer, "%.*s", (int)strcspn(begin, "'"), begin);
        assert_string_equal(offer, cases[i].offer);
        policy = policy_of(offer);
        assert_int_equal(k3_policy_check(&policy, &config, &layout, &err), 0);
    }
}

/* A role that the checkpoint does not have: a slip where it was asked for, else nothing. */
static void test_absent_role(void **state)
{
    (void)state;
    const struct k3_config whole = config;
    struct k3_layout layout = layout_of(8, 1);
    struct k3_policy policy = policy_of("dense=mxfp8");
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_policy_check(&policy, &config, &layout, &err), 0);
    assert_true(k3_policy_casts(&policy, &config));
    config.value[K3_V_FIRST_DENSE] = 0; /* all layers are MoE */
    assert_int_equal(k3_policy_check(&policy, &config, &layout, &err), K3_EUSAGE);
    assert_non_null(strstr(err.text, "no matrix of role dense in this checkpoint"));
    policy.asked_roles = 0;
    assert_int_equal(k3_policy_check(&policy, &config, &layout, &err), 0);
    assert_false(k3_policy_casts(&policy, &config));
    policy = policy_of("mxfp8");
    assert_int_equal(k3_policy_check(&policy, &config, &layout, &err), 0);
    config = whole;
    layout.vision = K3_VISION_DROP;
    static const char *const dropped[][2] = {
        {"vision=fp8-block", "no matrix of role vision (with --vision drop)"},
        {"head=mxfp8,*vision_tower*=fp8-block", "fits no matrix"}};
    for (size_t i = 0; i < sizeof dropped / sizeof dropped[0]; i++) {
        k3_err_init(&err);
        policy = policy_of(dropped[i][0]);
        assert_int_equal(k3_policy_check(&policy, &config, &layout, &err), K3_EUSAGE);
        assert_non_null(strstr(err.text, dropped[i][1]));
    }
    layout.vision = K3_VISION_REPLICATE;
    static const char *const idle[] = {"verbatim", "experts=mxfp4", "attention=bf16,head=verbatim",
                                       "*.layers.2.*=verbatim"};
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        k3_err_init(&err);
        policy = policy_of(idle[i]);
        assert_false(k3_policy_casts(&policy, &config));
        policy.is_modelopt = true;
        assert_int_equal(k3_policy_check(&policy, &config, &layout, &err), K3_EUSAGE);
        assert_non_null(strstr(err.text, "nothing is cast"));
    }
}

/* Experts of the published K3: 82432 of w1, w3 [3072, 3584] and w2 [3584, 3072], the scales of
 * NVFP4 one byte for 16 values, three globals each; attention in FP8 has its own test below. */
static void test_k3_sizes(void **state)
{
    (void)state;
    struct k3_layout layout = layout_of(8, 1);
    struct k3_rank_sizes sizes;
    const uint64_t values = 82432ull * 3 * 3072 * 3584;
    struct k3_policy policy = policy_of("nvfp4");
    k3_rank_sizes(&config, &layout, &policy, 3, &sizes);
    assert_int_equal(sizes.role_bytes[K3_ROLE_EXPERTS],
                     values / 2 / 8 + values / 16 / 8 + 82432ull * 3 * 4);
    policy = policy_of("mxfp8");
    k3_rank_sizes(&config, &layout, &policy, 3, &sizes);
    assert_int_equal(sizes.role_bytes[K3_ROLE_EXPERTS], values / 8 + values / 32 / 8);
    policy = policy_of("int4-g32");
    k3_rank_sizes(&config, &layout, &policy, 3, &sizes);
    assert_int_equal(sizes.role_bytes[K3_ROLE_EXPERTS],
                     values / 2 / 8 + values / 32 * 2 / 8 + 82432ull * 3 * 16);
    policy = policy_of("bf16");
    k3_rank_sizes(&config, &layout, &policy, 3, &sizes);
    assert_int_equal(sizes.role_bytes[K3_ROLE_EXPERTS], values * 2 / 8);
}

/* One part: tiled, views inside and tiling what is no pad, its header a legal one. */
static void check_part(const struct k3_plan *plan, const struct k3_part *part,
                       struct k3_rank_sizes *sum)
{
    struct k3_err err;
    struct k3_text header;
    struct k3_st *st = NULL;
    uint64_t cursor = 0, viewed = 0;
    k3_err_init(&err);
    for (uint32_t e = 0; e < part->entry_count; e++) {
        const struct k3_entry *entry = &part->entries[e];
        assert_int_equal(entry->begin_offset, cursor);
        cursor += entry->bytes;
        sum->read_bytes += entry->slot == K3_SLOT_NONE ? 0 : entry->bytes;
    }
    for (uint32_t v = 0; v < part->view_count; v++) {
        const struct k3_view *view = &part->views[v];
        uint64_t bytes = k3_dtype_bits(view->dtype) / 8;
        for (unsigned d = 0; d < view->dim_count; d++)
            bytes *= view->shape[d];
        assert_true(view->begin_offset >= viewed);
        assert_int_equal(view->end_offset - view->begin_offset, bytes);
        viewed = view->end_offset;
    }
    assert_int_equal(cursor, part->data_bytes);
    sum->image_bytes += cursor;
    sum->part_count += cursor != 0;
    k3_text_init(&header);
    assert_int_equal(k3_part_header(plan, part, &header, &err), 0);
    assert_int_equal(
        k3_st_decode("part", header.data, header.bytes, header.bytes + cursor, &st, &err), 0);
    assert_int_equal(st->tensor_count, part->entry_count);
    k3_st_free(st);
    k3_text_fini(&header);
}

static void check_rank(const char *text, const struct k3_layout *layout, uint32_t rank)
{
    struct k3_plan *plan = NULL;
    struct k3_rank_sizes sizes, sum = {0};
    struct k3_err err;
    struct k3_policy policy = policy_of(text);
    k3_err_init(&err);
    assert_int_equal(k3_plan_open(&config, layout, &policy, &plan, &err), 0);
    k3_rank_sizes(&config, layout, &policy, rank, &sizes);
    for (uint32_t p = 0; p < k3_config_part_count(&config); p++) {
        struct k3_part part;
        assert_int_equal(k3_part_build(plan, rank, p, &part, &err), 0);
        check_part(plan, &part, &sum);
        k3_part_fini(&part);
    }
    assert_int_equal(sum.image_bytes, sizes.image_bytes);
    assert_int_equal(sum.read_bytes, sizes.read_bytes);
    assert_int_equal(sum.part_count, sizes.part_count);
    k3_plan_close(plan);
}

/* Every format on every role that can have it, in layouts that cut in different ways. */
static void test_parts_agree_with_sizes(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "verbatim",
        "nvfp4",
        "fp8-block",
        "mxfp8",
        "bf16",
        "int4-g32",
        "attention=nvfp4,experts=int8-g32,shared=fp8-channel,latent=fp8-tensor,dense=mxfp4",
        "router=fp8-block,embed=int4-g128,vision=nvfp4,projector=mxfp8,head=int8-g32",
        "attention=int4-g32,vision=fp8-tensor,*.layers.2.*=verbatim"};
    struct k3_config whole = config;
    config.layer_count = 5; /* KDA dense, KDA, KDA, MLA, KDA */
    config.value[K3_V_LAYERS] = 5;
    config.value[K3_V_EXPERTS] = 16;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (uint32_t tp = 1; tp <= 16; tp *= 4) {
            struct k3_layout layout = layout_of(tp, 1);
            check_rank(texts[i], &layout, tp - 1);
            layout = layout_of(tp, 2);
            layout.experts_ep = tp <= 8;
            check_rank(texts[i], &layout, tp);
        }
    config = whole;
}

/* A policy goes into the plan text and comes back from it; what was not written is refused. */
static void test_plan_text(void **state)
{
    (void)state;
    static const char text[] = "attention=fp8-block,experts=nvfp4,*.layers.7.*=verbatim";
    struct k3_layout layout = layout_of(8, 1);
    struct k3_policy policy = policy_of(text);
    struct k3_plan *plan = NULL, *back = NULL;
    struct k3_source source = {.name = (char *)"a.safetensors", .bytes = 10, .header_bytes = 10};
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_plan_open(&config, &layout, &policy, &plan, &err), 0);
    assert_int_equal(k3_plan_add_file(plan, &source, NULL, NULL, &err), 0);
    assert_int_equal(k3_plan_finish(plan, &err), 0);
    const char *at = strstr(plan->text, text);
    assert_non_null(at);
    assert_int_equal(k3_plan_decode(plan->text, plan->text_bytes, &back, &err), 0);
    policy.asked_roles = 0; /* not of the plan: it was answered */
    assert_memory_equal(&back->policy, &policy, sizeof policy);
    k3_plan_close(back);
    static const char *const other[] = {"attention=fp8-block,experts=nvfp4,*.layers.99.*=verbatim",
                                        "attention=fp8-blocks,experts=nvfp4,*.layers.7*=verbatim",
                                        "experts=nvfp4,attention=fp8-block,*.layers.7.*=verbatim",
                                        "nvfp4"};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        struct k3_text forged;
        k3_err_init(&err);
        k3_text_init(&forged);
        k3_text_put(&forged, plan->text, (size_t)(at - plan->text));
        k3_text_puts(&forged, other[i]);
        k3_text_puts(&forged, at + sizeof text - 1);
        assert_int_equal(k3_plan_decode(forged.data, forged.bytes, &back, &err), K3_EFORMAT);
        k3_text_fini(&forged);
    }
    k3_plan_close(plan);
}

/* Which kinds of matrices are cut through their blocks: [rows, columns] of a rank, worked out from
 * the published shapes. */
static void test_splits(void **state)
{
    (void)state;
    static const struct {
        const char *policy, *told;
        uint32_t tp;
    } cases[] = {
        {"fp8-rest", "", 1},
        {"mxfp8", "", 8},
        {"attention=fp8-tensor,head=fp8-tensor", "", 32},
        {"fp8-rest", "*.self_attn.b_proj 12x7168 small;", 8},
        {"fp8-attn", "*.self_attn.b_proj 3x7168 small;*.self_attn.q_b_proj 576x1536;", 32},
        {"dense=fp8-block",
         "*.mlp.gate_proj 2112x7168;*.mlp.up_proj 2112x7168;*.mlp.down_proj 7168x2112;", 16},
        {"experts=fp8-block",
         "*.block_sparse_moe.experts.{e}.w1 192x3584;*.block_sparse_moe.experts.{e}.w3 192x3584;"
         "*.block_sparse_moe.experts.{e}.w2 3584x192;",
         16},
        {"*.layers.3.self_attn.o_proj=fp8-channel", "*.self_attn.o_proj 7168x1536;", 8},
        {"attention=fp8-channel", "*.self_attn.o_proj 7168x1536;", 8}, /* once for both */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct k3_policy policy = policy_of(cases[i].policy);
        struct k3_layout layout = layout_of(cases[i].tp, 1);
        struct k3_policy_split split;
        char told[512] = "";
        for (uint32_t rule = 0; k3_policy_next_split(&policy, &config, &layout, &rule, &split);) {
            size_t used = strlen(told);
            snprintf(told + used, sizeof told - used, "%s %llux%llu%s;", split.glob,
                     (unsigned long long)split.rows, (unsigned long long)split.cols,
                     split.is_small ? " small" : "");
        }
        assert_string_equal(told, cases[i].told);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),     cmocka_unit_test(test_short_texts),
        cmocka_unit_test(test_bad_texts), cmocka_unit_test(test_json),
        cmocka_unit_test(test_reach),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_offers),    cmocka_unit_test(test_absent_role),
        cmocka_unit_test(test_k3_sizes),  cmocka_unit_test(test_parts_agree_with_sizes),
        cmocka_unit_test(test_plan_text), cmocka_unit_test(test_splits)};
    k3_test_config(&config);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
