/* Purpose: fuzz target: config.json, and layouts over what it says.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: a refusal lists a problem or names one; a configuration survives the way into
 * a plan text and back; every layout that resolves has stages that sum to the layers, survives the
 * same way, and its image is at least what is read. */
#include "fuzz.h"

#include "bytes.h"
#include "doc.h"
#include "layout.h"
#include "plan.h"

#include <string.h>

/* Encode by `encode`, decode the tree of it. */
static struct k3_doc *tree_of(struct k3_text *text)
{
    struct k3_doc *root;
    struct k3_err err;
    k3_err_init(&err);
    FUZZ_CHECK(!text->failed);
    FUZZ_CHECK(k3_doc_decode("again", text->data, text->bytes, &root, &err) == 0);
    return root;
}

static void check_config(const struct k3_config *config)
{
    struct k3_config again;
    struct k3_text text;
    struct k3_err err;
    k3_text_init(&text);
    k3_err_init(&err);
    k3_config_encode_plan(config, &text);
    struct k3_doc *root = tree_of(&text);
    FUZZ_CHECK(k3_config_decode_plan(root, config->model, &again, &err) == 0);
    FUZZ_CHECK(!memcmp(again.value, config->value, sizeof again.value));
    FUZZ_CHECK(again.layer_count == config->layer_count);
    FUZZ_CHECK(!memcmp(again.is_mla, config->is_mla, sizeof again.is_mla));
    k3_doc_free(root);
    k3_text_fini(&text);
}

static void check_layout(const struct k3_config *config, struct k3_layout layout)
{
    struct k3_layout again;
    struct k3_rank_sizes sizes;
    struct k3_place place;
    struct k3_text text, text_again;
    struct k3_err err;
    char words[4096];
    k3_err_init(&err);
    bool divides = k3_layout_divides(&layout, config);
    int rc = k3_layout_resolve(&layout, config, &err);
    fuzz_check_err(rc, &err, 0);
    if (rc)
        return;
    FUZZ_CHECK(divides);
    uint64_t sum = 0;
    for (uint32_t s = 0; s < layout.pp; s++)
        sum += layout.stage_layers[s];
    FUZZ_CHECK(sum == config->layer_count);
    k3_text_init(&text);
    k3_layout_encode_plan(&layout, &text);
    struct k3_doc *root = tree_of(&text);
    FUZZ_CHECK(k3_layout_decode_plan(root, config, &again, &err) == 0);
    k3_text_init(&text_again);
    k3_layout_encode_plan(&again, &text_again);
    FUZZ_CHECK(!strcmp(text_again.data, text.data));
    k3_doc_free(root);
    k3_text_fini(&text);
    k3_text_fini(&text_again);
    k3_layout_describe(&layout, words, sizeof words);
    uint32_t world = k3_layout_world(&layout);
    FUZZ_CHECK(world > 0 && world <= K3_RANK_COUNT_MAX);
    k3_layout_place(&layout, world - 1, &place);
    FUZZ_CHECK(place.layer_end == config->layer_count);
    k3_rank_sizes(config, &layout, NULL, world - 1, &sizes);
    FUZZ_CHECK(sizes.read_bytes <= sizes.image_bytes && sizes.image_bytes % K3_UNIT_BYTES == 0);
    FUZZ_CHECK(sizes.replicated_bytes <= sizes.read_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint32_t size[] = {1, 2, 3, 8};
    struct k3_config config;
    struct k3_problems problems;
    struct k3_doc *root;
    struct k3_err err;
    k3_err_init(&err);
    if (k3_doc_decode("config.json", (const char *)data, bytes, &root, &err))
        return 0; /* fuzz_doc looks at these */
    k3_problems_init(&problems);
    int rc = k3_config_decode(root, &config, &problems, &err);
    fuzz_check_err(rc, &err, bytes);
    FUZZ_CHECK(rc || problems.count == 0);
    FUZZ_CHECK(problems.kept_count <= K3_PROBLEMS_KEPT_MAX);
    k3_doc_free(root);
    k3_problems_fini(&problems);
    if (rc)
        return 0;
    check_config(&config);
    for (unsigned i = 0; i < 256; i++) {
        struct k3_layout layout;
        k3_layout_init(&layout);
        layout.tp = size[i & 3];
        layout.pp = size[i >> 2 & 3];
        layout.dp = size[i >> 4 & 1];
        layout.experts_ep = i >> 5 & 1;
        layout.shared_replicate = i >> 6 & 1;
        layout.vision = (uint8_t)(i >> 7 ? K3_VISION_FIRST : K3_VISION_DROP);
        check_layout(&config, layout);
    }
    return 0;
}
