/* Purpose: fuzz target: policies of casts, as a text and as a JSON document, over a small model.
 * Owns: the model's configuration, made once.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: a refusal is a usage or a format error; a canonical text parses to the same
 * policy; only matrices get a format, and one that is a cast; a policy that can be carried out
 * gives parts whose entries tile them, whose views lie in them, whose sizes are those that plan
 * prices, and descriptions that the strict reader takes. */
#include "fuzz.h"

#include "doc.h"
#include "part.h"
#include "quant_config.h"
#include "synth.h"

#include <stdlib.h>
#include <string.h>

static struct k3_text config_text;
static struct k3_config config;

static void make_config(void)
{
    const struct k3_synth_options options = {
        .preset = K3_SYNTH_TINY, .layer_count = K3_SYNTH_LAYER_COUNT_MIN, .expert_count = 16};
    struct k3_problems problems;
    struct k3_doc *root;
    struct k3_err err;
    if (config.model)
        return;
    k3_text_init(&config_text);
    k3_err_init(&err);
    k3_problems_init(&problems);
    k3_synth_config_encode(&options, &config_text);
    FUZZ_CHECK(k3_doc_decode("config.json", config_text.data, config_text.bytes, &root, &err) == 0);
    FUZZ_CHECK(k3_config_decode(root, &config, &problems, &err) == 0);
    k3_doc_free(root);
    k3_problems_fini(&problems);
}

/* What a text means does not change on the way through its canonical form, nor through the
 * shortest.
 */
static void check_text(const struct k3_policy *policy, bool is_short)
{
    static char text[K3_POLICY_TEXT_BYTES], again[K3_POLICY_TEXT_BYTES];
    struct k3_policy parsed;
    struct k3_err err;
    k3_err_init(&err);
    k3_policy_text(policy, text);
    k3_policy_short_text(policy, again);
    FUZZ_CHECK(strlen(again) <= strlen(text));
    k3_policy_init(&parsed);
    FUZZ_CHECK(k3_policy_parse(is_short ? again : text, &parsed, &err) == 0);
    FUZZ_CHECK(!memcmp(parsed.role_fmt, policy->role_fmt, sizeof parsed.role_fmt));
    FUZZ_CHECK(parsed.pattern_count == policy->pattern_count);
    FUZZ_CHECK(parsed.oow == policy->oow && parsed.is_modelopt == policy->is_modelopt);
    k3_policy_text(&parsed, again);
    FUZZ_CHECK(!strcmp(text, again));
    FUZZ_CHECK(k3_policy_is_verbatim(policy) == k3_policy_is_verbatim(&parsed));
}

static void check_formats(const struct k3_policy *policy)
{
    for (uint32_t r = 0; r < config.model->rule_count; r++) {
        const struct k3_rule *rule = &config.model->rules[r];
        for (uint32_t layer = 0; layer < config.layer_count; layer++) {
            enum k3_qfmt fmt = k3_policy_fmt(policy, &config, r, layer);
            FUZZ_CHECK((unsigned)fmt < K3_QFMT_COUNT);
            if (k3_rule_is_matrix(rule))
                FUZZ_CHECK(fmt == K3_Q_VERBATIM || fmt != k3_rule_source_fmt(rule));
            else if (!(rule->flags & K3_RULE_SCALE))
                FUZZ_CHECK(fmt == K3_Q_VERBATIM);
        }
    }
}

static void check_part(const struct k3_plan *plan, const struct k3_part *part)
{
    uint64_t at = 0;
    struct k3_text header;
    struct k3_err err;
    k3_err_init(&err);
    for (uint32_t e = 0; e < part->entry_count; e++) {
        FUZZ_CHECK(part->entries[e].begin_offset == at);
        FUZZ_CHECK(part->entries[e].bytes > 0);
        at += part->entries[e].bytes;
    }
    FUZZ_CHECK(at == part->data_bytes && at % K3_UNIT_BYTES == 0);
    at = 0;
    for (uint32_t v = 0; v < part->view_count; v++) {
        FUZZ_CHECK(part->views[v].begin_offset >= at);
        FUZZ_CHECK(part->views[v].end_offset > part->views[v].begin_offset);
        at = part->views[v].end_offset;
    }
    FUZZ_CHECK(at <= part->data_bytes);
    k3_text_init(&header);
    FUZZ_CHECK(k3_part_header(plan, part, &header, &err) == 0);
    k3_text_fini(&header);
}

static void check_document(const struct k3_text *text)
{
    struct k3_doc *root;
    struct k3_err err;
    k3_err_init(&err);
    FUZZ_CHECK(!text->failed);
    FUZZ_CHECK(k3_doc_decode("made", text->data, text->bytes, &root, &err) == 0);
    k3_doc_free(root);
}

static void check_descriptions(const struct k3_plan *plan)
{
    struct k3_text text;
    struct k3_err err;
    k3_err_init(&err);
    k3_text_init(&text);
    FUZZ_CHECK(k3_quant_config_rewrite(plan, config_text.data, config_text.bytes, &text, &err) ==
               0);
    check_document(&text);
    k3_text_fini(&text);
    k3_text_init(&text);
    if (plan->policy.is_modelopt) {
        k3_quant_config_modelopt(plan, &text);
        check_document(&text);
    }
    k3_text_fini(&text);
}

static void check_layout(const struct k3_policy *policy, uint32_t tp, bool experts_ep)
{
    struct k3_plan *plan = NULL;
    struct k3_layout layout;
    struct k3_err err;
    k3_err_init(&err);
    k3_layout_init(&layout);
    layout.tp = tp;
    layout.experts_ep = experts_ep;
    FUZZ_CHECK(k3_layout_resolve(&layout, &config, &err) == 0);
    int rc = k3_plan_open(&config, &layout, policy, &plan, &err);
    fuzz_check_err(rc, &err, 0);
    FUZZ_CHECK(rc == 0 || rc == K3_EUSAGE || rc == K3_EUNSUPPORTED);
    if (rc)
        return;
    struct k3_policy_split split;
    for (uint32_t rule = 0; k3_policy_next_split(policy, &config, &layout, &rule, &split);)
        FUZZ_CHECK(split.fmt != K3_Q_VERBATIM && split.rows && split.cols && split.glob[0] &&
                   rule <= config.model->rule_count);
    struct k3_rank_sizes sizes;
    uint64_t image_bytes = 0;
    k3_rank_sizes(&config, &layout, policy, tp - 1, &sizes);
    for (uint32_t p = 0; p < config.layer_count + 2; p++) {
        struct k3_part part;
        FUZZ_CHECK(k3_part_build(plan, tp - 1, p, &part, &err) == 0);
        check_part(plan, &part);
        image_bytes += part.data_bytes;
        k3_part_fini(&part);
    }
    FUZZ_CHECK(image_bytes == sizes.image_bytes && sizes.read_bytes <= image_bytes);
    if (!k3_policy_is_verbatim(policy))
        check_descriptions(plan);
    k3_plan_close(plan);
}

static void check_policy(int rc, const struct k3_policy *policy, const struct k3_err *err,
                         size_t bytes)
{
    fuzz_check_err(rc, err, bytes);
    if (rc)
        return;
    check_text(policy, false);
    check_text(policy, true);
    check_formats(policy);
    check_layout(policy, 1, false);
    check_layout(policy, 4, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_string(data, bytes);
    struct k3_policy policy;
    struct k3_err err;
    make_config();
    k3_policy_init(&policy);
    k3_err_init(&err);
    int rc = k3_policy_parse(text, &policy, &err);
    FUZZ_CHECK(rc == 0 || rc == K3_EUSAGE);
    check_policy(rc, &policy, &err, bytes);
    k3_policy_init(&policy);
    k3_err_init(&err);
    rc = k3_policy_parse_json("policy.json", text, bytes, &policy, &err);
    FUZZ_CHECK(rc == 0 || rc == K3_EUSAGE || rc == K3_EFORMAT || rc == K3_ELIMIT);
    check_policy(rc, &policy, &err, bytes);
    free(text);
    return 0;
}
