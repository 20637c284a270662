/* Purpose: tell engines which module has which format, in the words of compressed-tensors and of
 * ModelOpt.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: K3_EFORMAT, K3_ENOMEM.
 * Invariant: every matrix of the language model is named under every name that an engine asks for:
 * with its format, or among those that have none. */
#include "quant_config.h"

#include "json_read.h"

#include <stdio.h>
#include <string.h>

/* How a format is described. */
static const struct described {
    const char *format;      /* of compressed-tensors */
    const char *weights;     /* members of its `weights` that differ */
    const char *activations; /* JSON */
    const char *algorithm;   /* of ModelOpt; NULL: it has none */
    uint32_t group_size;     /* there; 0: none */
} described[K3_QFMT_COUNT] = {
    [K3_Q_MXFP4] = {"mxfp4-pack-quantized",
                    "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32,"
                    "\"scale_dtype\":\"torch.uint8\"",
                    "null", "MXFP4", 32},
    [K3_Q_MXFP8] = {"mxfp8-quantized",
                    "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32,"
                    "\"scale_dtype\":\"torch.uint8\"",
                    "null", "MXFP8", 32},
    [K3_Q_NVFP4] = {"nvfp4-pack-quantized",
                    "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\","
                    "\"group_size\":16,\"scale_dtype\":\"torch.float8_e4m3fn\"",
                    "null", "NVFP4", 16},
    [K3_Q_FP8_TENSOR] = {"float-quantized",
                         "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\"",
                         "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"token\","
                         "\"symmetric\":true,\"dynamic\":true}",
                         "FP8", 0},
    [K3_Q_FP8_CHANNEL] = {"float-quantized",
                          "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"",
                          "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"token\","
                          "\"symmetric\":true,\"dynamic\":true}",
                          "FP8_PER_CHANNEL_PER_TOKEN", 0},
    [K3_Q_FP8_BLOCK] = {"float-quantized",
                        "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\","
                        "\"block_structure\":[128,128]",
                        "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\","
                        "\"group_size\":128,\"symmetric\":true,\"dynamic\":true}",
                        "FP8_PB_WO", 128},
    [K3_Q_INT4_G32] = {"pack-quantized",
                       "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32",
                       "null", NULL, 0},
    [K3_Q_INT4_G128] = {"pack-quantized",
                        "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\","
                        "\"group_size\":128",
                        "null", NULL, 0},
    [K3_Q_INT8_G32] = {"int-quantized",
                       "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32",
                       "null", NULL, 0},
};

#define NONE K3_Q_BF16 /* the format of what is not quantized, here */

/* Fused modules of engines, by the view that holds them. */
static const struct {
    const char *view, *module;
} fused[] = {
    {"layers.{i}.attn.qkvgfab", "self_attn.in_proj_qkvgfab"},
    {"layers.{i}.attn.qkvgfab", "self_attn.fused_qkvg_proj"},
    {"layers.{i}.attn.qkv_a", "self_attn.fused_qkv_a_proj"},
    {"layers.{i}.attn.qkv_a", "self_attn.fused_qkv_a_proj_with_mqa"},
    {"layers.{i}.mlp.gate_up", "mlp.gate_up_proj"},
    {"layers.{i}.shared.gate_up", "block_sparse_moe.shared_experts.gate_up_proj"},
};

#define FUSED_COUNT (sizeof fused / sizeof fused[0])

static const char layer_prefix[] = "language_model.model.layers.{i}.";
static const char moe_word[] = "block_sparse_moe.";

static bool is_in_layer(const struct k3_rule *rule)
{
    return rule->scope != K3_SCOPE_FIRST && rule->scope != K3_SCOPE_LAST;
}

/* Format of a rule in a layer as engines see it: NONE where there is none. */
static enum k3_qfmt fmt_of(const struct k3_plan *plan, uint32_t rule, uint32_t layer)
{
    enum k3_qfmt fmt = k3_policy_fmt(&plan->policy, &plan->config, rule, layer);
    return fmt == K3_Q_VERBATIM ? k3_rule_source_fmt(&plan->config.model->rules[rule]) : fmt;
}

/* Path number `which` of a rule behind "layers.{i}." (or the whole name): its own, or that of a
 * fused module it is part of; false behind the last. */
static bool path_of(const struct k3_rule *rule, uint32_t which, char path[K3_ALIAS_BYTES])
{
    if (which) {
        for (size_t i = 0; i < FUSED_COUNT; i++)
            if (!strcmp(fused[i].view, rule->view) && --which == 0) {
                snprintf(path, K3_ALIAS_BYTES, "%s", fused[i].module);
                return true;
            }
        return false;
    }
    char name[K3_ALIAS_BYTES];
    k3_rule_module(rule, 0, name, sizeof name);
    char *experts = strstr(name, ".{e}");
    if (experts)
        *experts = 0; /* engines ask for the container */
    const char *from = name;
    if (is_in_layer(rule))
        from += sizeof layer_prefix - 1 - 2; /* "{i}" became "0" */
    snprintf(path, K3_ALIAS_BYTES, "%s", from);
    return true;
}

/* Name number `which` of a path in a layer; false behind the last. */
static bool alias_of(const char *path, bool in_layer, uint32_t layer, uint32_t which,
                     char name[K3_ALIAS_BYTES])
{
    static const char text_prefix[] = "language_model.";
    static const char *const prefixes[] = {"language_model.model.layers.%u.%s%s",
                                           "model.layers.%u.%s%s", "layers.%u.%s%s"};
    bool is_moe = !strncmp(path, moe_word, sizeof moe_word - 1);
    if (!in_layer) {
        bool is_text = !strncmp(path, text_prefix, sizeof text_prefix - 1);
        snprintf(name, K3_ALIAS_BYTES, "%s", path + (which ? sizeof text_prefix - 1 : 0));
        return which < (is_text ? 2 : 1);
    }
    if (which >= (is_moe ? 6 : 3))
        return false;
    const char *word = which >= 3 ? "mlp." : "";
    snprintf(name, K3_ALIAS_BYTES, prefixes[which % 3], layer, word,
             path + (which >= 3 ? sizeof moe_word - 1 : 0));
    return true;
}

uint32_t k3_module_alias(const struct k3_plan *plan, uint32_t rule, uint32_t layer, uint32_t which,
                         char name[K3_ALIAS_BYTES])
{
    const struct k3_rule *r = &plan->config.model->rules[rule];
    char path[K3_ALIAS_BYTES], found[K3_ALIAS_BYTES];
    uint32_t count = 0;
    for (uint32_t p = 0; path_of(r, p, path); p++)
        for (uint32_t a = 0; alias_of(path, is_in_layer(r), layer, a, found); a++) {
            if (name && count == which)
                memcpy(name, found, sizeof found);
            count++;
        }
    return count;
}

/* ---- compressed-tensors ---- */

struct writer {
    const struct k3_plan *plan;
    struct k3_text *out;
    uint32_t item_count; /* of the list being written */
};

/* The characters of a path as a regular expression in JSON. */
static void put_escaped(struct k3_text *out, const char *path)
{
    for (; *path; path++)
        if (!strncmp(path, "{b}", 3)) {
            k3_text_puts(out, "\\\\d+");
            path += 2;
        } else if (*path == '.') {
            k3_text_puts(out, "\\\\.");
        } else {
            k3_text_put(out, path, 1);
        }
}

/* A regular expression for a path, in all layers or in those that are marked. */
static void put_regex(struct writer *w, const char *path, const uint8_t *layers, bool in_layer)
{
    k3_text_puts(w->out, w->item_count++ ? ",\"re:.*" : "\"re:.*");
    if (in_layer && layers) {
        const char *separator = "";
        k3_text_puts(w->out, "layers\\\\.(");
        for (uint32_t i = 0; i < w->plan->config.layer_count; i++)
            if (layers[i]) {
                k3_text_putf(w->out, "%s%u", separator, i);
                separator = "|";
            }
        k3_text_puts(w->out, ")\\\\.");
    } else if (in_layer) {
        k3_text_puts(w->out, "layers\\\\.\\\\d+\\\\.");
    } else if (!strncmp(path, "language_model.", 15)) {
        path += 15; /* engines leave it away */
    }
    if (!strncmp(path, moe_word, sizeof moe_word - 1)) {
        k3_text_puts(w->out, "(block_sparse_moe|mlp)\\\\.");
        path += sizeof moe_word - 1;
    }
    put_escaped(w->out, path);
    /* Under the container of experts lie their projections, whatever an engine calls them. */
    k3_text_puts(w->out, strcmp(path, "experts") ? "$\"" : "(\\\\..*)?$\"");
}

/* Rule r has this path too: then the one that comes first in the table speaks for both. */
static bool is_first_of_path(const struct k3_model *model, uint32_t r, const char *path)
{
    char other[K3_ALIAS_BYTES];
    for (uint32_t q = 0; q < r; q++)
        for (uint32_t p = 0;
             k3_rule_is_matrix(&model->rules[q]) && path_of(&model->rules[q], p, other); p++)
            if (!strcmp(other, path))
                return false;
    return true;
}

/* Layers in which a path has the format; false where none has.  *is_all: no layer has another. */
static bool layers_of(const struct k3_plan *plan, const char *path, enum k3_qfmt fmt,
                      uint8_t *layers, bool *is_all)
{
    const struct k3_model *model = plan->config.model;
    char other[K3_ALIAS_BYTES];
    bool any = false;
    memset(layers, 0, plan->config.layer_count);
    *is_all = true;
    for (uint32_t r = 0; r < model->rule_count; r++) {
        bool is_same = false;
        for (uint32_t p = 0;
             k3_rule_is_matrix(&model->rules[r]) && !is_same && path_of(&model->rules[r], p, other);
             p++)
            is_same = !strcmp(other, path);
        uint32_t count = is_in_layer(&model->rules[r]) ? plan->config.layer_count : 1;
        for (uint32_t i = 0; i < count && is_same; i++) {
            if (!k3_rule_applies(&plan->config, &model->rules[r], i))
                continue;
            layers[i] = fmt_of(plan, r, i) == fmt;
            any = any || layers[i];
            *is_all = *is_all && layers[i];
        }
    }
    return any;
}

/* Regular expressions of all modules that have a format. */
static void put_names(struct writer *w, enum k3_qfmt fmt)
{
    const struct k3_model *model = w->plan->config.model;
    uint8_t layers[K3_CONFIG_LAYER_COUNT_MAX];
    char path[K3_ALIAS_BYTES];
    bool is_all;
    w->item_count = 0;
    for (uint32_t r = 0; r < model->rule_count; r++) {
        const struct k3_rule *rule = &model->rules[r];
        for (uint32_t p = 0; k3_rule_is_matrix(rule) && path_of(rule, p, path); p++)
            if (is_first_of_path(model, r, path) && layers_of(w->plan, path, fmt, layers, &is_all))
                put_regex(w, path, is_all ? NULL : layers, is_in_layer(rule));
    }
}

static bool is_used(const struct k3_plan *plan, enum k3_qfmt fmt)
{
    const struct k3_model *model = plan->config.model;
    for (uint32_t r = 0; r < model->rule_count; r++) {
        uint32_t count = is_in_layer(&model->rules[r]) ? plan->config.layer_count : 1;
        for (uint32_t i = 0; i < count && k3_rule_is_matrix(&model->rules[r]); i++)
            if (k3_rule_applies(&plan->config, &model->rules[r], i) && fmt_of(plan, r, i) == fmt)
                return true;
    }
    return false;
}

static void put_block(const struct k3_plan *plan, struct k3_text *out)
{
    struct writer w = {.plan = plan, .out = out};
    uint32_t groups = 0, used = 0;
    const char *only = "";
    for (int f = 0; f < K3_QFMT_COUNT; f++)
        if (described[f].format && is_used(plan, (enum k3_qfmt)f)) {
            used++;
            only = described[f].format;
        }
    k3_text_putf(out,
                 "{\"quant_method\":\"compressed-tensors\",\"format\":\"%s\","
                 "\"quantization_status\":\"compressed\",\"config_groups\":{",
                 used == 0   ? "dense"
                 : used == 1 ? only
                             : "mixed-precision");
    for (int f = 0; f < K3_QFMT_COUNT; f++) {
        if (!described[f].format || !is_used(plan, (enum k3_qfmt)f))
            continue;
        k3_text_putf(out, "%s\"group_%u\":{\"format\":\"%s\",\"targets\":[", groups ? "," : "",
                     groups, described[f].format);
        put_names(&w, (enum k3_qfmt)f);
        k3_text_putf(out,
                     "],\"input_activations\":%s,\"output_activations\":null,\"weights\":{%s,"
                     "\"symmetric\":true,\"dynamic\":false,\"observer\":\"minmax\"}}",
                     described[f].activations, described[f].weights);
        groups++;
    }
    k3_text_puts(out, "},\"ignore\":[");
    put_names(&w, NONE);
    k3_text_puts(out, "],\"kv_cache_scheme\":null}");
}

/* ---- ModelOpt ---- */

/* An earlier rule of the layer has the path too and speaks for both. */
static bool is_told(const struct k3_plan *plan, uint32_t r, uint32_t layer, const char *path)
{
    const struct k3_rule *rules = plan->config.model->rules;
    char other[K3_ALIAS_BYTES];
    for (uint32_t q = 0; q < r; q++)
        for (uint32_t p = 0;
             k3_rule_is_matrix(&rules[q]) && k3_rule_applies(&plan->config, &rules[q], layer) &&
             is_in_layer(&rules[q]) == is_in_layer(&rules[r]) && path_of(&rules[q], p, other);
             p++)
            if (!strcmp(other, path))
                return true;
    return false;
}

/* One path in one layer: a member of quantized_layers, or an element of exclude_modules. */
static void put_aliases(struct writer *w, const struct k3_rule *rule, uint32_t layer,
                        const char *path, const struct described *d)
{
    char name[K3_ALIAS_BYTES];
    for (uint32_t a = 0; alias_of(path, is_in_layer(rule), layer, a, name); a++) {
        char *block = strstr(name, "{b}");
        if (block) { /* one entry for all blocks: names here may have a `*` */
            *block = '*';
            memmove(block + 1, block + 3, strlen(block + 3) + 1);
        }
        k3_text_puts(w->out, w->item_count++ ? "," : "");
        k3_text_put_json(w->out, name);
        if (!d->algorithm)
            continue;
        k3_text_putf(w->out, ":{\"quant_algo\":\"%s\"", d->algorithm);
        if (d->group_size)
            k3_text_putf(w->out, ",\"group_size\":%u", d->group_size);
        k3_text_puts(w->out, "}");
    }
}

static void put_modules(struct writer *w, bool is_quantized)
{
    const struct k3_plan *plan = w->plan;
    char path[K3_ALIAS_BYTES];
    w->item_count = 0;
    for (uint32_t r = 0; r < plan->config.model->rule_count; r++) {
        const struct k3_rule *rule = &plan->config.model->rules[r];
        uint32_t count = is_in_layer(rule) ? plan->config.layer_count : 1;
        for (uint32_t i = 0; i < count && k3_rule_is_matrix(rule); i++) {
            const struct described *d = &described[fmt_of(plan, r, i)];
            if (!k3_rule_applies(&plan->config, rule, i) || (d->algorithm != NULL) != is_quantized)
                continue;
            for (uint32_t p = 0; path_of(rule, p, path); p++)
                if (!is_told(plan, r, i, path))
                    put_aliases(w, rule, i, path, d);
        }
    }
}

static void put_quantization(const struct k3_plan *plan, struct k3_text *out)
{
    struct writer w = {.plan = plan, .out = out};
    k3_text_puts(out, "\"quant_algo\":\"MIXED_PRECISION\",\"kv_cache_quant_algo\":null,"
                      "\"exclude_modules\":[");
    put_modules(&w, false);
    k3_text_puts(out, "],\"quantized_layers\":{");
    put_modules(&w, true);
    k3_text_puts(out, "}");
}

void k3_quant_config_modelopt(const struct k3_plan *plan, struct k3_text *out)
{
    k3_text_puts(out, "{\"producer\":{\"name\":\"k3-shard\"},\"quantization\":{");
    put_quantization(plan, out);
    k3_text_puts(out, "}}\n");
}

/* ---- config.json ---- */

/* Where a member stands in the text. */
struct span {
    size_t key, value, end; /* offsets; end is behind the value */
    size_t object_begin;    /* behind the brace that opens the document */
};

/* Walk to member `name` of the object that has begun; what is inside other members is passed over.
 */
static int find_member(struct k3_json *json, const char *name, struct k3_json_token *token,
                       struct k3_err *err)
{
    int rc = k3_json_next(json, token, err);
    while (!rc && token->type == K3_JSON_KEY &&
           (token->bytes != strlen(name) || memcmp(token->text, name, token->bytes) != 0)) {
        rc = k3_json_next(json, token, err);
        if (!rc)
            rc = k3_json_skip(json, token, err);
        if (!rc)
            rc = k3_json_next(json, token, err);
    }
    if (!rc && token->type != K3_JSON_KEY)
        rc = k3_fail(err, K3_EFORMAT, "config.json: no %s to write the casts into", name);
    return rc;
}

/* The block text_config.quantization_config, which the rules demand to be an object. */
static int find_block(const char *text, size_t bytes, struct span *span, struct k3_err *err)
{
    struct k3_json *json = NULL;
    struct k3_json_token token = {0};
    unsigned depth = 1;
    int rc = k3_json_open("config.json", text, bytes, K3_JSON_DEPTH_MAX, &json, err);
    if (!rc)
        rc = k3_json_expect(json, K3_JSON_OBJECT_BEGIN, "a configuration", &token, err);
    span->object_begin = token.offset + 1;
    if (!rc)
        rc = find_member(json, "text_config", &token, err);
    if (!rc)
        rc = k3_json_expect(json, K3_JSON_OBJECT_BEGIN, "text_config", &token, err);
    if (!rc)
        rc = find_member(json, "quantization_config", &token, err);
    span->key = token.offset;
    if (!rc)
        rc = k3_json_expect(json, K3_JSON_OBJECT_BEGIN, "quantization_config", &token, err);
    span->value = token.offset;
    while (!rc && depth) {
        rc = k3_json_next(json, &token, err);
        if (token.type == K3_JSON_OBJECT_BEGIN || token.type == K3_JSON_ARRAY_BEGIN)
            depth++;
        if (token.type == K3_JSON_OBJECT_END || token.type == K3_JSON_ARRAY_END)
            depth--;
    }
    span->end = token.offset + 1;
    k3_json_close(json);
    return rc;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The member leaves with one comma: that behind it, or, of the last member, that in front. */
static void take_away(const char *text, size_t bytes, struct span *span)
{
    size_t end = span->end, key = span->key;
    while (end < bytes && is_space(text[end]))
        end++;
    if (end < bytes && text[end] == ',') {
        span->end = end + 1;
        return;
    }
    while (key > 0 && is_space(text[key - 1]))
        key--;
    if (key > 0 && text[key - 1] == ',')
        span->key = key - 1;
}

int k3_quant_config_rewrite(const struct k3_plan *plan, const char *text, size_t bytes,
                            struct k3_text *out, struct k3_err *err)
{
    struct span span = {0};
    int rc = find_block(text, bytes, &span, err);
    if (rc)
        return rc;
    if (!plan->policy.is_modelopt) {
        k3_text_put(out, text, span.value);
        put_block(plan, out);
        k3_text_put(out, text + span.end, bytes - span.end);
        return k3_text_check(out, err);
    }
    take_away(text, bytes, &span);
    k3_text_put(out, text, span.object_begin);
    k3_text_puts(out, "\n  \"quantization_config\": {\"quant_method\":\"modelopt_mixed\",");
    put_quantization(plan, out);
    k3_text_puts(out, "},");
    k3_text_put(out, text + span.object_begin, span.key - span.object_begin);
    k3_text_put(out, text + span.end, bytes - span.end);
    return k3_text_check(out, err);
}
