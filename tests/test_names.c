/* Purpose: names to slots and back, for every tensor of the published K3; names that are not K3's
 * are unknown.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariant: 497,220 names, each of its own slot. */
#include "k3_numbers.h"
#include "plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct k3_plan *plan;

static void test_every_name(void **state)
{
    (void)state;
    uint64_t count = 0;
    for (uint32_t slot = 0; slot < plan->slot_count; slot++) {
        uint32_t rule, layer, index;
        char name[K3_ST_NAME_BYTES_MAX + 1];
        if (!k3_plan_slot(plan, slot, &rule, &layer, &index))
            continue;
        k3_plan_slot_name(plan, slot, name, sizeof name);
        assert_int_equal(k3_plan_find(plan, name, strlen(name)), slot);
        count++;
    }
    assert_int_equal(count, 497220);
}

static void test_unknown_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",
        "x",
        "language_model.lm_head",
        "language_model.lm_head.weight.",
        "language_model.model.lm_head.weight",
        "lm_head.weight",
        "language_model.model.layers.93.input_layernorm.weight",
        "language_model.model.layers.00.input_layernorm.weight",
        "language_model.model.layers.-1.input_layernorm.weight",
        "language_model.model.layers.4294967297.input_layernorm.weight",
        "language_model.model.layers.input_layernorm.weight",
        "language_model.model.layers.0.block_sparse_moe.gate.weight", /* layer 0 is dense */
        "language_model.model.layers.1.mlp.gate_proj.weight",         /* layer 1 is not */
        "language_model.model.layers.3.self_attn.q_proj.weight",      /* layer 3 is MLA */
        "language_model.model.layers.92.self_attn.A_log",             /* so is 92 */
        "language_model.model.layers.2.self_attn.q_a_proj.weight",    /* layer 2 is KDA */
        "language_model.model.layers.1.block_sparse_moe.experts.896.w1.weight_packed",
        "language_model.model.layers.1.block_sparse_moe.experts.07.w1.weight_packed",
        "language_model.model.layers.1.block_sparse_moe.experts.7.w1.weight",
        "language_model.model.layers.1.block_sparse_moe.experts.7.w4.weight_packed",
        "vision_tower.encoder.blocks.27.norm0.weight",
        "mm_projector.proj.1.weight",
        "mm_projector.proj.00.weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (k3_plan_find(plan, names[i], strlen(names[i])) != K3_SLOT_NONE)
            fail_msg("%s has a slot", names[i]);
}

static void test_both_attentions(void **state)
{
    (void)state;
    static const char kda[] = "language_model.model.layers.0.self_attn.g_proj.weight",
                      mla[] = "language_model.model.layers.3.self_attn.g_proj.weight";
    uint32_t rule_kda, rule_mla, layer, index;
    assert_true(
        k3_plan_slot(plan, k3_plan_find(plan, kda, strlen(kda)), &rule_kda, &layer, &index));
    assert_true(
        k3_plan_slot(plan, k3_plan_find(plan, mla, strlen(mla)), &rule_mla, &layer, &index));
    assert_int_equal(layer, 3);
    assert_int_not_equal(rule_kda, rule_mla);
}

static int setup(void **state)
{
    (void)state;
    struct k3_config config;
    struct k3_layout layout;
    struct k3_err err;
    k3_err_init(&err);
    k3_test_config(&config);
    k3_layout_init(&layout);
    return k3_layout_resolve(&layout, &config, &err) ||
           k3_plan_open(&config, &layout, NULL, &plan, &err);
}

static int teardown(void **state)
{
    (void)state;
    k3_plan_close(plan);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_name),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_both_attentions),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
