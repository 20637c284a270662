/* Purpose: layouts of the published K3: ranks, stages, sizes, slices, what divides and what does
 * not.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariant: numbers are those of the published checkpoint and of the design, not of this code. */
#include "doc.h"
#include "k3_numbers.h"
#include "layout.h"
#include "part.h"
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct k3_config config;

static struct k3_layout layout_of(uint32_t tp, uint32_t dp, uint32_t pp)
{
    struct k3_layout layout;
    k3_layout_init(&layout);
    layout.tp = tp;
    layout.dp = dp;
    layout.pp = pp;
    return layout;
}

static void test_tp8_sizes(void **state)
{
    (void)state;
    struct k3_err err;
    k3_err_init(&err);
    struct k3_layout layout = layout_of(8, 1, 1);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), 0);
    for (uint32_t rank = 0; rank < 8; rank++) {
        struct k3_rank_sizes sizes;
        k3_rank_sizes(&config, &layout, NULL, rank, &sizes);
        assert_int_equal(sizes.read_bytes, 205951299312u);
        assert_int_equal(sizes.image_bytes - sizes.read_bytes, 46698768);
        assert_int_equal(sizes.image_bytes, 205997998080u);
        assert_int_equal(sizes.part_count, 95);
    }
}

static void test_stages(void **state)
{
    (void)state;
    static const uint32_t wanted2[] = {47, 46}, wanted4[] = {23, 23, 24, 23},
                          wanted8[] = {11, 11, 12, 12, 12, 12, 12, 11};
    static const uint32_t *const wanted[] = {wanted2, wanted4, wanted8};
    for (unsigned i = 0; i < 3; i++) {
        struct k3_err err;
        k3_err_init(&err);
        struct k3_layout layout = layout_of(8, 1, 2u << i), whole = layout_of(8, 1, 1);
        assert_int_equal(k3_layout_resolve(&layout, &config, &err), 0);
        assert_int_equal(k3_layout_resolve(&whole, &config, &err), 0);
        assert_memory_equal(layout.stage_layers, wanted[i], (2u << i) * sizeof(uint32_t));
        uint64_t image = 0, all = 0;
        for (uint32_t rank = 0; rank < k3_layout_world(&layout); rank++) {
            struct k3_rank_sizes sizes;
            k3_rank_sizes(&config, &layout, NULL, rank, &sizes);
            image += sizes.image_bytes;
        }
        for (uint32_t rank = 0; rank < 8; rank++) {
            struct k3_rank_sizes sizes;
            k3_rank_sizes(&config, &whole, NULL, rank, &sizes);
            all += sizes.image_bytes;
        }
        assert_int_equal(image, all);
    }
}

static void test_what_divides(void **state)
{
    (void)state;
    struct k3_layout layout = layout_of(1, 1, 1);
    char found[128] = "";
    for (layout.tp = 1; layout.tp <= 128; layout.tp++)
        if (k3_layout_divides(&layout, &config))
            snprintf(found + strlen(found), sizeof found - strlen(found), "%u ", layout.tp);
    assert_string_equal(found, "1 2 4 8 16 32 ");
    layout = layout_of(6, 1, 1);
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "1, 2, 4, 8, 16, 32"));
    layout = layout_of(8, 3, 1); /* 24 ranks: 896 experts do not divide, 96 scale groups do */
    layout.experts_ep = true;
    k3_err_init(&err);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), K3_EUNSUPPORTED);
    layout.experts_ep = false;
    k3_err_init(&err);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), 0);
}

static void test_bad_stages(void **state)
{
    (void)state;
    struct k3_err err;
    struct k3_layout layout = layout_of(8, 1, 2);
    layout.stage_layers[0] = 93;
    k3_err_init(&err);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), K3_EUNSUPPORTED);
    layout.stage_layers[1] = 1;
    k3_err_init(&err);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), K3_EUNSUPPORTED);
    layout = layout_of(8, 1, 94);
    k3_err_init(&err);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), K3_EUNSUPPORTED);
    layout = layout_of(4096, 4096, 4096);
    k3_err_init(&err);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), K3_ELIMIT);
    layout = layout_of(0, 1, 1);
    k3_err_init(&err);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), K3_EUSAGE);
}

/* vLLM's order: tensor index fastest, then stage, then data. */
static void test_rank_order(void **state)
{
    (void)state;
    struct k3_err err;
    k3_err_init(&err);
    struct k3_layout layout = layout_of(2, 2, 2);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), 0);
    struct k3_place place;
    k3_layout_place(&layout, 5, &place);
    assert_int_equal(place.t, 1);
    assert_int_equal(place.p, 0);
    assert_int_equal(place.d, 1);
    assert_int_equal(place.g, 3);
    k3_layout_place(&layout, 2, &place);
    assert_int_equal(place.p, 1);
    assert_int_equal(place.layer_begin, 47);
    assert_int_equal(place.layer_end, 93);
}

/* For every rule: the slices of the ranks of a stage cover each byte exactly copy_count times. */
static void cover(const struct k3_layout *layout)
{
    const struct k3_model *model = config.model;
    for (uint32_t r = 0; r < model->rule_count; r++) {
        const struct k3_rule *rule = &model->rules[r];
        uint32_t index = k3_rule_repeat_count(&config, rule) - 1;
        uint64_t sum = 0, rows = config.value[rule->dim[0]], row_bytes = 0, weighted = 0;
        for (uint32_t rank = 0; rank < layout->tp * layout->dp; rank++) {
            struct k3_place place;
            struct k3_slice slice;
            k3_layout_place(layout, rank, &place);
            if (!k3_layout_slice(layout, &config, rule, index, &place, &slice))
                continue;
            row_bytes = slice.row_bytes;
            sum += slice.row_count * slice.column_bytes;
            weighted += slice.row_count * slice.column_bytes * 5040 / slice.copy_count;
            assert_true(slice.row_begin + slice.row_count <= rows);
            assert_true(slice.column_begin + slice.column_bytes <= slice.row_bytes);
        }
        bool dropped = layout->vision == K3_VISION_DROP &&
                       (rule->role == K3_ROLE_VISION || rule->role == K3_ROLE_PROJECTOR);
        assert_int_equal(sum == 0, dropped);
        if (!dropped)
            assert_int_equal(weighted,
                             rows * row_bytes * 5040); /* 5040: divisible by all counts used */
    }
}

static void test_slices_cover(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2 * 2 * 3; i++) {
        static const uint32_t sizes[][2] = {{8, 1}, {2, 2}, {4, 4}, {1, 8}, {16, 1}};
        for (unsigned s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct k3_layout layout = layout_of(sizes[s][0], sizes[s][1], 1);
            struct k3_err err;
            k3_err_init(&err);
            layout.experts_ep = i & 1;
            layout.shared_replicate = i & 2;
            layout.vision = (uint8_t)(i / 4);
            assert_int_equal(k3_layout_resolve(&layout, &config, &err), 0);
            cover(&layout);
        }
    }
}

static void test_plan_text_round_trip(void **state)
{
    (void)state;
    struct k3_err err;
    k3_err_init(&err);
    struct k3_layout layout = layout_of(2, 2, 4), back;
    layout.experts_ep = true;
    layout.vision = K3_VISION_FIRST;
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), 0);
    struct k3_text text;
    k3_text_init(&text);
    k3_layout_encode_plan(&layout, &text);
    struct k3_doc *root = NULL;
    assert_int_equal(k3_doc_decode("plan", text.data, text.bytes, &root, &err), 0);
    assert_int_equal(k3_layout_decode_plan(root, &config, &back, &err), 0);
    assert_memory_equal(&layout, &back, sizeof layout);
    k3_doc_free(root);
    k3_text_fini(&text);
    k3_text_init(&text);
    k3_config_encode_plan(&config, &text);
    struct k3_config again;
    assert_int_equal(k3_doc_decode("plan", text.data, text.bytes, &root, &err), 0);
    assert_int_equal(k3_config_decode_plan(root, config.model, &again, &err), 0);
    assert_memory_equal(&config, &again, sizeof config);
    struct k3_text canonical;
    k3_text_init(&canonical);
    assert_int_equal(k3_doc_encode_canonical(root, &canonical, &err), 0);
    assert_string_equal(canonical.data, text.data);
    k3_text_fini(&canonical);
    k3_doc_free(root);
    k3_text_fini(&text);
}

/* The entries of every part tile its data section, agree with the sizes computed without them, and
 * views are inside. */
static void test_parts_agree_with_sizes(void **state)
{
    (void)state;
    struct k3_err err;
    k3_err_init(&err);
    struct k3_layout layout = layout_of(16, 1, 2);
    assert_int_equal(k3_layout_resolve(&layout, &config, &err), 0);
    struct k3_plan *plan = NULL;
    assert_int_equal(k3_plan_open(&config, &layout, NULL, &plan, &err), 0);
    for (uint32_t rank = 0; rank < 32; rank += 17) { /* one of each stage */
        struct k3_rank_sizes sizes;
        uint64_t image = 0, read = 0;
        uint32_t parts = 0;
        k3_rank_sizes(&config, &layout, NULL, rank, &sizes);
        for (uint32_t p = 0; p < k3_config_part_count(&config); p++) {
            struct k3_part part;
            assert_int_equal(k3_part_build(plan, rank, p, &part, &err), 0);
            uint64_t cursor = 0, viewed = 0;
            for (uint32_t e = 0; e < part.entry_count; e++) {
                assert_int_equal(part.entries[e].begin_offset, cursor);
                assert_true(part.entries[e].bytes > 0);
                cursor += part.entries[e].bytes;
                read += part.entries[e].slot == K3_SLOT_NONE ? 0 : part.entries[e].bytes;
            }
            for (uint32_t v = 0; v < part.view_count; v++) {
                assert_true(part.views[v].begin_offset >= viewed);
                viewed = part.views[v].end_offset;
            }
            assert_int_equal(cursor, part.data_bytes);
            assert_int_equal(cursor % K3_UNIT_BYTES, 0);
            image += cursor;
            parts += cursor != 0;
            k3_part_fini(&part);
        }
        assert_int_equal(image, sizes.image_bytes);
        assert_int_equal(read, sizes.read_bytes);
        assert_int_equal(parts, sizes.part_count);
    }
    k3_plan_close(plan);
}

static void test_view_text(void **state)
{
    (void)state;
    static const char *const bad[] = {"BF16",
                                      "BF16;",
                                      "BF16;1",
                                      "BF16;1;0",
                                      "BF16;1;0;3",
                                      "BF16;01;0;2",
                                      "BF16;1;2;0",
                                      "XX;1;0;2",
                                      "BF16;1,;0;2",
                                      "BF16;1;0;2;",
                                      "BF16;-1;0;2",
                                      "BF16;1;0;2 ",
                                      "BF16;1,1,1,1,1;0;2",
                                      "U8;18446744073709551615,2;0;2",
                                      "U8;99999999999999999999;0;1"};
    struct k3_view view;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_view_decode("k3.view.a.b", "BF16;2,3;4;16", &view, &err), 0);
    assert_string_equal(view.name, "a.b");
    assert_int_equal(view.dim_count, 2);
    assert_int_equal(view.shape[1], 3);
    assert_int_equal(view.end_offset, 16);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        k3_err_init(&err);
        assert_int_equal(k3_view_decode("k3.view.a", bad[i], &view, &err), K3_EFORMAT);
    }
}

static int setup(void **state)
{
    (void)state;
    k3_test_config(&config);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tp8_sizes),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_what_divides),
        cmocka_unit_test(test_bad_stages),
        cmocka_unit_test(test_rank_order),
        cmocka_unit_test(test_slices_cover),
        cmocka_unit_test(test_plan_text_round_trip),
        cmocka_unit_test(test_parts_agree_with_sizes),
        cmocka_unit_test(test_view_text),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
