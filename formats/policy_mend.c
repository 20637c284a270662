/* Purpose: entries that make a policy work where it was refused, ready to be given again.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: none; false where nothing helps.
 * Invariant: what is offered was checked, on the model and the layout it is offered for. */
#include "policy.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

#define LAYER_WORD ".layers."
#define MENDS_MAX  24u /* kinds of matrices that one policy is mended for */

/* Rules [first, end) that are one matrix to an engine with `rule`, or have one container. */
static void find_members(const struct k3_model *model, uint32_t rule, uint32_t *first,
                         uint32_t *end)
{
    const struct k3_rule *rules = model->rules;
    *first = rule;
    *end = rule + 1;
    while (*first > 0 &&
           (k3_rule_is_fused(model, *first) ||
            (rules[rule].role == K3_ROLE_EXPERTS && rules[*first - 1].role == K3_ROLE_EXPERTS)))
        --*first;
    while (*end < model->rule_count &&
           (k3_rule_is_fused(model, *end) ||
            (rules[rule].role == K3_ROLE_EXPERTS && rules[*end].role == K3_ROLE_EXPERTS)))
        ++*end;
}

void k3_rule_glob(const struct k3_rule *rule, uint32_t layer, char glob[K3_POLICY_PATTERN_BYTES])
{
    char module[K3_POLICY_PATTERN_BYTES];
    k3_rule_module(rule, layer == K3_LAYER_ALL ? 0 : layer, module, sizeof module);
    const char *tail = strstr(module, LAYER_WORD);
    if (tail && layer == K3_LAYER_ALL)
        tail = strchr(tail + sizeof LAYER_WORD - 1, '.');
    if (tail)
        snprintf(glob, K3_POLICY_PATTERN_BYTES, "*%.*s", (int)(K3_POLICY_PATTERN_BYTES - 2), tail);
    else
        snprintf(glob, K3_POLICY_PATTERN_BYTES, "%s", module);
}

/* A pattern in front of all others: the first that fits wins. */
static bool add_in_front(struct k3_policy *policy, uint32_t at, const char *glob, enum k3_qfmt fmt)
{
    struct k3_policy_pattern *patterns = policy->patterns;
    uint32_t count = 0;
    for (uint32_t i = 0; i < policy->pattern_count; i++) /* the same, further behind, goes */
        if (strcmp(patterns[i].glob, glob) != 0)
            patterns[count++] = patterns[i];
    policy->pattern_count = count;
    if (count == K3_POLICY_PATTERN_COUNT_MAX || at > count)
        return false;
    memmove(&patterns[at + 1], &patterns[at], (count - at) * sizeof *patterns);
    snprintf(patterns[at].glob, sizeof patterns[at].glob, "%s", glob);
    patterns[at].fmt = (uint8_t)fmt;
    policy->pattern_count++;
    return true;
}

bool k3_policy_set(struct k3_policy *policy, const struct k3_config *config, uint32_t rule,
                   uint32_t layer, enum k3_qfmt fmt)
{
    const struct k3_model *model = config->model;
    uint32_t first, end, at = 0;
    find_members(model, rule, &first, &end);
    for (uint32_t r = first; r < end; r++) {
        char glob[K3_POLICY_PATTERN_BYTES];
        if (!k3_rule_is_matrix(&model->rules[r]))
            continue;
        k3_rule_glob(&model->rules[r], layer, glob);
        if (!add_in_front(policy, at++, glob, fmt))
            return false;
    }
    return true;
}

/* What to give instead of a format whose groups do not divide the columns. */
static enum k3_qfmt instead_of(enum k3_qfmt fmt)
{
    return fmt == K3_Q_INT4_G128 ? K3_Q_INT4_G32 : K3_Q_VERBATIM;
}

static uint32_t layers_of(const struct k3_config *config, const struct k3_rule *rule)
{
    return rule->scope == K3_SCOPE_FIRST || rule->scope == K3_SCOPE_LAST ? 1 : config->layer_count;
}

/* True where both policies give every matrix the same format. */
static bool mean_the_same(const struct k3_policy *a, const struct k3_policy *b,
                          const struct k3_config *config)
{
    for (uint32_t r = 0; r < config->model->rule_count; r++)
        for (uint32_t layer = 0; layer < layers_of(config, &config->model->rules[r]); layer++)
            if (k3_rule_applies(config, &config->model->rules[r], layer) &&
                k3_policy_fmt(a, config, r, layer) != k3_policy_fmt(b, config, r, layer))
                return false;
    return true;
}

/* Patterns that new ones in front of them have left without a matrix go. */
static void drop_idle(struct k3_policy *policy, const struct k3_config *config)
{
    for (uint32_t i = policy->pattern_count; i-- > 0;) {
        struct k3_policy_pattern *patterns = policy->patterns;
        const struct k3_policy whole = *policy;
        memmove(&patterns[i], &patterns[i + 1], (policy->pattern_count - i - 1) * sizeof *patterns);
        policy->pattern_count--;
        if (!mean_the_same(&whole, policy, config))
            *policy = whole;
    }
}

/* The layer that is wrong, or all where the policy makes no difference between them. */
static uint32_t layer_to_mend(const struct k3_policy *policy, const struct k3_config *config,
                              const struct k3_policy_misfit *misfit)
{
    uint32_t first, end;
    find_members(config->model, misfit->rule, &first, &end);
    for (uint32_t r = first; r < end; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        const enum k3_qfmt fmt = k3_policy_fmt(policy, config, r, misfit->layer);
        for (uint32_t layer = 0; layer < layers_of(config, rule); layer++)
            if (k3_rule_applies(config, rule, layer) &&
                k3_policy_fmt(policy, config, r, layer) != fmt)
                return misfit->layer;
    }
    return K3_LAYER_ALL;
}

bool k3_policy_mend(const struct k3_policy *policy, const struct k3_config *config,
                    const struct k3_layout *layout, struct k3_policy *mended)
{
    struct k3_policy_misfit misfit;
    struct k3_err ignored;
    k3_err_init(&ignored);
    *mended = *policy;
    for (unsigned i = 0; i < MENDS_MAX; i++) {
        if (!k3_policy_find_misfit(mended, config, layout, &misfit, &ignored)) {
            drop_idle(mended, config);
            return true;
        }
        if (misfit.kind == K3_MISFIT_OTHER)
            return false;
        enum k3_qfmt fmt = misfit.kind == K3_MISFIT_WIDTH ? instead_of(misfit.fmt) : misfit.fmt;
        uint32_t layer = layer_to_mend(mended, config, &misfit);
        if (!k3_policy_set(mended, config, misfit.rule, layer, fmt))
            return false;
    }
    return false;
}

void k3_policy_advise(const struct k3_policy *mended, const char *lead, struct k3_err *err)
{
    char policy[K3_POLICY_TEXT_BYTES];
    const size_t used = strlen(err->text);
    struct k3_text text;
    k3_policy_short_text(mended, policy);
    k3_text_init(&text);
    k3_text_putf(&text, "%s --quant ", lead);
    k3_text_put_in_quotes(&text, policy);
    if (!text.failed && used + text.bytes < K3_ERR_TEXT_BYTES) /* half an entry helps nobody */
        memcpy(err->text + used, text.data, text.bytes + 1);
    k3_text_fini(&text);
}
