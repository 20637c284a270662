/* Purpose: a policy on a model: which format each matrix gets, and whether that can be done.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: K3_EUSAGE, K3_EUNSUPPORTED.
 * Invariant: matrices that are one matrix to an engine (one group of the image) have one format. */
#include "policy.h"

#include "manifest.h"

#include <stdio.h>
#include <string.h>

bool k3_rule_is_matrix(const struct k3_rule *rule)
{
    if (rule->flags & K3_RULE_PACKED)
        return true;
    return rule->dtype == K3_BF16 && rule->dim_count == 2 && rule->dim[0] != K3_V_ONE;
}

enum k3_qfmt k3_rule_source_fmt(const struct k3_rule *rule)
{
    return rule->flags & K3_RULE_PACKED ? K3_Q_MXFP4 : K3_Q_BF16;
}

/* Characters of a name in front of its last component. */
static size_t stem_bytes(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

uint32_t k3_rule_scaled(const struct k3_model *model, uint32_t rule)
{
    const char *name = model->rules[rule].name;
    for (uint32_t r = rule; r-- > 0;)
        if ((model->rules[r].flags & K3_RULE_PACKED) &&
            stem_bytes(model->rules[r].name) == stem_bytes(name) &&
            !memcmp(model->rules[r].name, name, stem_bytes(name)))
            return r;
    return rule; /* a table without its codes: treated as no scale */
}

void k3_rule_module(const struct k3_rule *rule, uint32_t layer, char *name, size_t bytes)
{
    const char *end = rule->name + stem_bytes(rule->name);
    size_t used = 0;
    for (const char *p = rule->name; p < end && used + 1 < bytes;) {
        if (!strncmp(p, "{i}", 3)) {
            int n = snprintf(name + used, bytes - used, "%u", layer);
            used += n > 0 ? (size_t)n : 0;
            p += 3;
        } else {
            name[used++] = *p++;
        }
    }
    name[used < bytes ? used : bytes - 1] = 0;
}

/* Does `*` fill in to make glob the name?  Backtracks to the last star only, which is enough. */
static bool glob_fits(const char *glob, const char *name)
{
    const char *star = NULL, *from = NULL;
    while (*name) {
        if (*glob == '*') {
            star = glob++;
            from = name;
        } else if (*glob == *name) {
            glob++;
            name++;
        } else if (star) {
            glob = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    while (*glob == '*')
        glob++;
    return !*glob;
}

/* Casts that lose nothing of MXFP4 within their window. */
static bool is_lossless(enum k3_qfmt fmt)
{
    return fmt == K3_Q_VERBATIM || fmt == K3_Q_MXFP4 ||
           k3_quant_route(K3_Q_MXFP4, fmt) == K3_QROUTE_MX;
}

/* Some matrices are only touched by a pattern that says which it means: its last component is
 * spelled out, or their own word is in it. */
static bool is_named(const char *glob, const struct k3_rule *rule, enum k3_qfmt fmt)
{
    static const struct {
        uint8_t role;
        const char *word;
    } guarded[] = {{K3_ROLE_ROUTER, ".gate"},
                   {K3_ROLE_EMBED, "embed_tokens"},
                   {K3_ROLE_VISION, "vision_tower"},
                   {K3_ROLE_PROJECTOR, "mm_projector"},
                   {K3_ROLE_EXPERTS, "moe.experts."}};
    for (size_t i = 0; i < sizeof guarded / sizeof guarded[0]; i++)
        if (rule->role == guarded[i].role)
            return strstr(glob, guarded[i].word) ||
                   (rule->role == K3_ROLE_EXPERTS && is_lossless(fmt));
    return true;
}

enum k3_qfmt k3_policy_fmt(const struct k3_policy *policy, const struct k3_config *config,
                           uint32_t rule, uint32_t layer)
{
    const struct k3_model *model = config->model;
    if (model->rules[rule].flags & K3_RULE_SCALE)
        rule = k3_rule_scaled(model, rule);
    const struct k3_rule *row = &model->rules[rule];
    if (!k3_rule_is_matrix(row))
        return K3_Q_VERBATIM;
    enum k3_qfmt fmt = (enum k3_qfmt)policy->role_fmt[row->role];
    if (policy->pattern_count) {
        char module[K3_POLICY_PATTERN_BYTES];
        k3_rule_module(row, layer, module, sizeof module);
        for (uint32_t i = 0; i < policy->pattern_count; i++) {
            const struct k3_policy_pattern *pattern = &policy->patterns[i];
            if (!glob_fits(pattern->glob, module) ||
                !is_named(pattern->glob, row, (enum k3_qfmt)pattern->fmt))
                continue;
            fmt = (enum k3_qfmt)pattern->fmt;
            break;
        }
    }
    return fmt == k3_rule_source_fmt(row) ? K3_Q_VERBATIM : fmt;
}

/* ---- can it be done ---- */

static bool in_layer(const struct k3_rule *rule)
{
    return rule->scope != K3_SCOPE_FIRST && rule->scope != K3_SCOPE_LAST;
}

/* In no image of this layout. */
static bool is_dropped(const struct k3_layout *layout, const struct k3_rule *rule)
{
    return layout->vision == K3_VISION_DROP &&
           (rule->role == K3_ROLE_VISION || rule->role == K3_ROLE_PROJECTOR);
}

/* Does the pattern fit a matrix of an image? */
static bool fits_any(const char *glob, enum k3_qfmt fmt, const struct k3_config *config,
                     const struct k3_layout *layout)
{
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        uint32_t layers = in_layer(rule) ? config->layer_count : 1;
        if (!k3_rule_is_matrix(rule) || is_dropped(layout, rule) || !is_named(glob, rule, fmt))
            continue;
        for (uint32_t layer = 0; layer < layers; layer++) {
            char module[K3_POLICY_PATTERN_BYTES];
            k3_rule_module(rule, layer, module, sizeof module);
            if (k3_rule_applies(config, rule, layer) && glob_fits(glob, module))
                return true;
        }
    }
    return false;
}

/* The name of a tensor as a pattern: without `.weight`, with {e} for the number of an expert or {b}
 * for that of a block, and `*.` in front of a name that begins in the middle. */
static void tensor_to_glob(const char *name, char glob[K3_POLICY_PATTERN_BYTES])
{
    static const char *const words[][2] = {{".experts.", "{e}"}, {".blocks.", "{b}"}};
    const char *end = strstr(name, ".weight"), *number = NULL, *placeholder = "";
    for (size_t i = 0; i < sizeof words / sizeof words[0] && !number; i++) {
        const char *word = strstr(name, words[i][0]);
        number = word ? word + strlen(words[i][0]) : NULL;
        placeholder = words[i][1];
    }
    size_t digits = number ? strspn(number, "0123456789") : 0;
    size_t bytes = end ? (size_t)(end - name) : strlen(name);
    size_t head = digits ? (size_t)(number - name) : bytes;
    const bool is_whole = *name == '*' || !strncmp(name, "language_model.", 15) ||
                          !strncmp(name, "vision_tower.", 13) || !strncmp(name, "mm_", 3);
    snprintf(glob, K3_POLICY_PATTERN_BYTES, "%s%.*s%s%.*s", is_whole ? "" : "*.", (int)head, name,
             digits ? placeholder : "", (int)(bytes - head - digits), name + head + digits);
}

/* Every pattern fits a matrix: one that fits none is a slip of the pen. */
static int check_patterns(const struct k3_policy *policy, const struct k3_config *config,
                          const struct k3_layout *layout, struct k3_err *err)
{
    for (uint32_t i = 0; i < policy->pattern_count; i++) {
        const struct k3_policy_pattern *pattern = &policy->patterns[i];
        const enum k3_qfmt fmt = (enum k3_qfmt)pattern->fmt;
        char glob[K3_POLICY_PATTERN_BYTES];
        if (fits_any(pattern->glob, fmt, config, layout))
            continue;
        tensor_to_glob(pattern->glob, glob);
        if (fits_any(glob, fmt, config, layout))
            return k3_fail(err, K3_EUSAGE,
                           "--quant: pattern '%s' fits no matrix; did you mean '%s'?",
                           pattern->glob, glob);
        return k3_fail(err, K3_EUSAGE,
                       "--quant: pattern '%s' fits no matrix that it may touch (router, "
                       "embedding and vision must be spelled out, and experts for a lossy "
                       "format); names are like language_model.model.layers.3.self_attn.o_proj",
                       pattern->glob);
    }
    return 0;
}

/* The cut of one matrix by the layout, as rows and columns of a rank. */
static void local_dims(const struct k3_layout *layout, const struct k3_config *config,
                       const struct k3_rule *rule, uint64_t dim[2])
{
    struct k3_place place;
    struct k3_slice slice;
    k3_layout_place(layout, 0, &place);
    dim[0] = config->value[rule->dim[0]];
    dim[1] = config->value[rule->dim[1]] * (rule->flags & K3_RULE_PACKED ? 2 : 1);
    if (!k3_layout_slice(layout, config, rule, 0, &place, &slice))
        return; /* dropped: as it is */
    dim[0] = slice.row_count;
    dim[1] = slice.column_bytes * dim[1] / slice.row_bytes;
}

static bool rule_divides(const struct k3_layout *layout, const struct k3_config *config,
                         const struct k3_rule *rule, enum k3_qfmt fmt)
{
    struct k3_qgeom geom;
    struct k3_err ignored;
    uint64_t dim[2];
    k3_err_init(&ignored);
    local_dims(layout, config, rule, dim);
    return !k3_qfmt_geometry(fmt, dim[0], dim[1], &geom, &ignored);
}

/* Sizes of tp with which this rule divides, the other options as they are; "": none. */
static void list_sizes(const struct k3_layout *layout, const struct k3_config *config,
                       uint32_t rule, enum k3_qfmt fmt, char text[128])
{
    struct k3_layout trial = *layout;
    size_t used = 0;
    text[0] = 0;
    for (trial.tp = 1; trial.tp <= K3_RANK_COUNT_MAX && used + 8 < 128; trial.tp++)
        if (k3_layout_divides(&trial, config) &&
            rule_divides(&trial, config, &config->model->rules[rule], fmt))
            used += (size_t)snprintf(text + used, 128 - used, "%s%u", used ? " " : "", trial.tp);
}

/* The entry that does not divide: which --tp sizes would, and what to give instead. */
static int fail_width(const struct k3_layout *layout, const struct k3_config *config,
                      const struct k3_policy_misfit *misfit, struct k3_err *err)
{
    const struct k3_rule *rule = &config->model->rules[misfit->rule];
    char module[K3_POLICY_PATTERN_BYTES], sizes[128];
    uint64_t dim[2];
    k3_rule_module(rule, misfit->layer, module, sizeof module);
    local_dims(layout, config, rule, dim);
    list_sizes(layout, config, misfit->rule, misfit->fmt, sizes);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "--quant: %s as %s: the %llu columns of a rank do not divide into its groups of "
                   "scales; %s%s",
                   module, k3_qfmt_name(misfit->fmt), (unsigned long long)dim[1],
                   sizes[0] ? "with the other options as they are these --tp sizes work: "
                            : "no --tp size helps",
                   sizes);
}

bool k3_rule_is_fused(const struct k3_model *model, uint32_t rule)
{
    const struct k3_rule *row = &model->rules[rule];
    return rule > 0 && row[-1].group == row->group && row[-1].scope == row->scope &&
           !(row->flags & K3_RULE_OWN_GROUP);
}

static int fail_fused(const struct k3_config *config, const struct k3_policy_misfit *misfit,
                      struct k3_err *err)
{
    const struct k3_rule *rule = &config->model->rules[misfit->rule];
    char one[K3_POLICY_PATTERN_BYTES], two[K3_POLICY_PATTERN_BYTES];
    if (rule->role == K3_ROLE_EXPERTS) /* engines have one container for all their projections */
        return k3_fail(err, K3_EUNSUPPORTED,
                       "--quant: experts of layer %u: give w1, w2 and w3 one format",
                       misfit->layer);
    k3_rule_module(rule - 1, misfit->layer, one, sizeof one);
    k3_rule_module(rule, misfit->layer, two, sizeof two);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "--quant: %s and %s are one matrix to engines: give both one format", one, two);
}

/* Of two formats of one matrix the one that a pattern says, and not its role. */
static enum k3_qfmt meant(const struct k3_policy *policy, const struct k3_rule *rule,
                          enum k3_qfmt a, enum k3_qfmt b)
{
    const enum k3_qfmt usual = (enum k3_qfmt)policy->role_fmt[rule->role];
    return a == usual ? b : a;
}

/* One rule in one layer: the same format as its neighbour in the group, and a cast that exists. */
static int check_in_layer(const struct k3_policy *policy, const struct k3_config *config,
                          const struct k3_layout *layout, struct k3_policy_misfit *at,
                          struct k3_err *err)
{
    const struct k3_rule *rule = &config->model->rules[at->rule];
    const enum k3_qfmt fmt = k3_policy_fmt(policy, config, at->rule, at->layer);
    uint32_t other = at->rule; /* that must have the same: its neighbour, or the first of experts */
    if (k3_rule_is_fused(config->model, other))
        other--;
    while (rule->role == K3_ROLE_EXPERTS && other > 0 &&
           config->model->rules[other - 1].role == K3_ROLE_EXPERTS)
        other--;
    const enum k3_qfmt others = k3_policy_fmt(policy, config, other, at->layer);
    at->fmt = fmt;
    if (others != fmt) {
        at->kind = K3_MISFIT_FUSED;
        at->fmt = meant(policy, rule, fmt, others);
        return fail_fused(config, at, err);
    }
    at->kind = K3_MISFIT_OTHER;
    if (policy->is_modelopt &&
        (fmt == K3_Q_INT4_G32 || fmt == K3_Q_INT4_G128 || fmt == K3_Q_INT8_G32)) {
        char module[K3_POLICY_PATTERN_BYTES];
        k3_rule_module(rule, at->layer, module, sizeof module);
        return k3_fail(err, K3_EUNSUPPORTED,
                       "config modelopt: ModelOpt's configuration has no word for %s, which %s is "
                       "to have; leave --config modelopt (in --quant: config=modelopt) away",
                       k3_qfmt_name(fmt), module);
    }
    if (fmt == K3_Q_VERBATIM)
        return 0;
    if (k3_quant_route(k3_rule_source_fmt(rule), fmt) == K3_QROUTE_NONE) {
        char module[K3_POLICY_PATTERN_BYTES];
        k3_rule_module(rule, at->layer, module, sizeof module);
        return k3_fail(err, K3_EUNSUPPORTED, "--quant: %s is %s in the checkpoint: no cast to %s",
                       module, k3_qfmt_name(k3_rule_source_fmt(rule)), k3_qfmt_name(fmt));
    }
    at->kind = K3_MISFIT_WIDTH;
    return rule_divides(layout, config, rule, fmt) ? 0 : fail_width(layout, config, at, err);
}

/* Does the cut go through a block of the whole matrix, or through a row that has one scale?  Groups
 * of a row that it would go through are refused (rule_divides). */
static bool is_split(const struct k3_layout *layout, const struct k3_config *config,
                     const struct k3_rule *rule, enum k3_qfmt fmt, struct k3_policy_split *split)
{
    struct k3_qgeom geom;
    struct k3_err ignored;
    uint64_t dim[2];
    k3_err_init(&ignored);
    const uint64_t rows = config->value[rule->dim[0]];
    const uint64_t cols = config->value[rule->dim[1]] *
                          (rule->flags & K3_RULE_PACKED ? UINT64_C(2) : 1);
    local_dims(layout, config, rule, dim);
    if (fmt == K3_Q_VERBATIM || k3_qfmt_geometry(fmt, dim[0], dim[1], &geom, &ignored) ||
        !geom.scale_suffix) /* a global scale is of the whole matrix, whatever the cut */
        return false;
    const bool by_rows = dim[0] != rows && dim[0] % geom.row_align;
    const bool by_cols = dim[1] != cols && (!geom.group_cols || dim[1] % geom.group_cols);
    split->fmt = fmt;
    split->rows = dim[0];
    split->cols = dim[1];
    split->is_small = (!by_rows || rows < geom.row_align) && (!by_cols || cols < geom.group_cols);
    return by_rows || by_cols;
}

/* The first layer in which a rule's matrix is split. */
static bool find_split(const struct k3_policy *policy, const struct k3_config *config,
                       const struct k3_layout *layout, uint32_t r, struct k3_policy_split *split)
{
    const struct k3_rule *row = &config->model->rules[r];
    const uint32_t layers = in_layer(row) ? config->layer_count : 1;
    if (!k3_rule_is_matrix(row) || is_dropped(layout, row))
        return false;
    for (uint32_t layer = 0; layer < layers; layer++) {
        const enum k3_qfmt fmt = k3_policy_fmt(policy, config, r, layer);
        if (!k3_rule_applies(config, row, layer) || !is_split(layout, config, row, fmt, split))
            continue;
        k3_rule_glob(row, in_layer(row) ? K3_LAYER_ALL : 0, split->glob);
        return true;
    }
    return false;
}

bool k3_policy_next_split(const struct k3_policy *policy, const struct k3_config *config,
                          const struct k3_layout *layout, uint32_t *rule,
                          struct k3_policy_split *split)
{
    const struct k3_rule *rules = config->model->rules;
    while (*rule < config->model->rule_count) {
        const uint32_t r = (*rule)++;
        bool is_told = false;
        if (!find_split(policy, config, layout, r, split))
            continue;
        for (uint32_t other = 0; other < r && !is_told; other++) {
            struct k3_policy_split before;
            is_told = !strcmp(rules[other].name, rules[r].name) &&
                      find_split(policy, config, layout, other, &before) &&
                      before.fmt == split->fmt && before.rows == split->rows &&
                      before.cols == split->cols;
        }
        if (!is_told)
            return true;
    }
    return false;
}

bool k3_policy_casts(const struct k3_policy *policy, const struct k3_config *config)
{
    if (k3_policy_is_verbatim(policy))
        return false;
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        uint32_t layers = in_layer(rule) ? config->layer_count : 1;
        for (uint32_t layer = 0; layer < layers; layer++)
            if (k3_rule_applies(config, rule, layer) &&
                k3_policy_fmt(policy, config, r, layer) != K3_Q_VERBATIM)
                return true;
    }
    return false;
}

bool k3_policy_has_window(const struct k3_policy *policy, const struct k3_config *config)
{
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        uint32_t layers = in_layer(rule) ? config->layer_count : 1;
        for (uint32_t layer = 0; layer < layers; layer++)
            if (k3_rule_applies(config, rule, layer) && k3_rule_is_matrix(rule) &&
                k3_quant_has_window(k3_rule_source_fmt(rule),
                                    k3_policy_fmt(policy, config, r, layer)))
                return true;
    }
    return false;
}

uint32_t k3_policy_cast_roles(const struct k3_policy *policy, const struct k3_config *config,
                              const struct k3_layout *layout)
{
    uint32_t roles = 0;
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        uint32_t layers = in_layer(rule) ? config->layer_count : 1;
        for (uint32_t layer = 0; layer < layers && !is_dropped(layout, rule); layer++)
            if (k3_rule_applies(config, rule, layer) &&
                k3_policy_fmt(policy, config, r, layer) != K3_Q_VERBATIM)
                roles |= UINT32_C(1) << rule->role;
    }
    return roles;
}

/* A role that somebody asked for has a matrix in this checkpoint. */
static int check_roles(const struct k3_policy *policy, const struct k3_config *config,
                       const struct k3_layout *layout, struct k3_err *err)
{
    uint32_t found = 0;
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        uint32_t layers = in_layer(rule) ? config->layer_count : 1;
        for (uint32_t layer = 0; k3_rule_is_matrix(rule) && layer < layers; layer++)
            if (k3_rule_applies(config, rule, layer) && !is_dropped(layout, rule))
                found |= UINT32_C(1) << rule->role;
    }
    for (uint32_t role = 0; role < K3_ROLE_COUNT; role++)
        if (policy->asked_roles & ~found & UINT32_C(1) << role)
            return k3_fail(
                err, K3_EUSAGE, "--quant: there is no matrix of role %s%s: leave the entry out",
                k3_role_name((enum k3_role)role),
                layout->vision == K3_VISION_DROP ? " (with --vision drop)" : " in this checkpoint");
    return 0;
}

int k3_policy_find_misfit(const struct k3_policy *policy, const struct k3_config *config,
                          const struct k3_layout *layout, struct k3_policy_misfit *misfit,
                          struct k3_err *err)
{
    misfit->kind = K3_MISFIT_OTHER;
    int rc = check_roles(policy, config, layout, err);
    if (!rc)
        rc = check_patterns(policy, config, layout, err);
    if (!rc && (policy->is_modelopt || policy->oow) && !k3_policy_casts(policy, config))
        rc = k3_fail(err, K3_EUSAGE,
                     "--config and --oow say how to cast, and nothing is cast: give a --quant that "
                     "casts, or leave them out");
    for (uint32_t r = 0; r < config->model->rule_count && !rc; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        uint32_t layers = in_layer(rule) ? config->layer_count : 1;
        if (!k3_rule_is_matrix(rule))
            continue;
        for (uint32_t layer = 0; layer < layers && !rc; layer++) {
            if (!k3_rule_applies(config, rule, layer))
                continue;
            misfit->rule = r;
            misfit->layer = layer;
            rc = check_in_layer(policy, config, layout, misfit, err);
            if (!policy->pattern_count)
                break; /* all layers are alike */
        }
    }
    return rc;
}

int k3_policy_check(const struct k3_policy *policy, const struct k3_config *config,
                    const struct k3_layout *layout, struct k3_err *err)
{
    struct k3_policy_misfit misfit;
    struct k3_policy mended;
    int rc = k3_policy_find_misfit(policy, config, layout, &misfit, err);
    if (rc == K3_EUNSUPPORTED && misfit.kind != K3_MISFIT_OTHER &&
        k3_policy_mend(policy, config, layout, &mended))
        k3_policy_advise(&mended, misfit.kind == K3_MISFIT_WIDTH ? "; or give" : ", like", err);
    return rc;
}
