/* Purpose: read the values a model's rules need from config.json or from a plan text, and derive
 * the others.
 * Owns: nothing beyond the caller's struct.
 * Threads: any; pure.
 * Errors: K3_EFORMAT (values missing or impossible), K3_EUNSUPPORTED (architecture without rules),
 * K3_ELIMIT.
 * Invariant: a value that was not read and checked is never used; the lists of layers are 1-based
 * in the file and cover each layer exactly once. */
#include "bytes.h"
#include "doc.h"
#include "model.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

#define TOTAL_BYTES_MAX (1ull << 53) /* integers of canonical JSON; 5,000 times K3 */
#define VALUE_MAX                                                                                  \
    (1ull << 24) /* 100 times K3's largest value; products of two and a rank count fit 64 bits */

static const char full_path[] = "text_config.linear_attn_config.full_attn_layers";
static const char kda_path[] = "text_config.linear_attn_config.kda_layers";

static void derive(uint64_t *v)
{
    v[K3_V_SHARED_WIDTH] = v[K3_V_SHARED_EXPERTS] * v[K3_V_MOE_WIDTH];
    v[K3_V_KDA_ROWS] = v[K3_V_KDA_HEADS] * v[K3_V_KDA_DIM];
    v[K3_V_Q_ROWS] = v[K3_V_HEADS] * (v[K3_V_NOPE] + v[K3_V_ROPE]);
    v[K3_V_KV_A_ROWS] = v[K3_V_KV_LORA] + v[K3_V_ROPE];
    v[K3_V_KV_B_ROWS] = v[K3_V_HEADS] * (v[K3_V_NOPE] + v[K3_V_V_DIM]);
    v[K3_V_V_ROWS] = v[K3_V_HEADS] * v[K3_V_V_DIM];
    v[K3_V_LATENT_PACKED] = v[K3_V_LATENT] / 2;  /* two 4-bit elements a byte */
    v[K3_V_LATENT_SCALES] = v[K3_V_LATENT] / 32; /* SCALE_GROUP, FORMAT.md 1 */
    v[K3_V_MOE_PACKED] = v[K3_V_MOE_WIDTH] / 2;
    v[K3_V_MOE_SCALES] = v[K3_V_MOE_WIDTH] / 32;
    v[K3_V_VT_QKV_ROWS] = 3 * v[K3_V_VT_QKV];
    uint64_t merged = v[K3_V_MERGE_HEIGHT] * v[K3_V_MERGE_WIDTH];
    if (!k3_mul_fits(v[K3_V_MM_HIDDEN], merged, &v[K3_V_MM_WIDTH]))
        v[K3_V_MM_WIDTH] = 0; /* refused by check_sizes */
    v[K3_V_ONE] = 1;
    v[K3_V_THREE] = 3;
}

/* Where a member named by a dotted path is: descended into (config.json) or flat (plan text). */
typedef const struct k3_doc *(*find_fn)(const struct k3_doc *object, const char *path);

static const struct k3_doc *find_flat(const struct k3_doc *object, const char *path)
{
    for (const struct k3_doc *m = k3_doc_first(object); m; m = k3_doc_next(m))
        if (!strcmp(k3_doc_name(m), path))
            return m;
    return NULL;
}

static void read_fields(const struct k3_doc *object, find_fn find, struct k3_config *config,
                        struct k3_problems *problems)
{
    const struct k3_model *model = config->model;
    for (uint32_t i = 0; i < model->field_count; i++) {
        const struct k3_config_field *field = &model->fields[i];
        const struct k3_doc *value = find(object, field->path);
        if (value && field->element) {
            const struct k3_doc *item = k3_doc_is_array(value) ? k3_doc_first(value) : NULL;
            for (unsigned e = 1; item && e < field->element; e++)
                item = k3_doc_next(item);
            value = item;
        }
        uint64_t number = 0;
        if (!value)
            k3_problems_add(problems, "config.json: %s is missing", field->path);
        else if (!k3_doc_integer(value, &number) || number > VALUE_MAX)
            k3_problems_add(problems, "config.json: %s must be an integer up to %llu", field->path,
                            (unsigned long long)VALUE_MAX);
        else if (number == 0 && field->value != K3_V_FIRST_DENSE)
            k3_problems_add(problems, "config.json: %s must not be 0", field->path);
        config->value[field->value] = number;
    }
}

/* Mark the 1-based layers of one list; seen[] finds layers named twice. */
static void read_list(const struct k3_doc *list, const char *path, struct k3_config *config,
                      uint8_t *seen, struct k3_problems *problems)
{
    if (!list || !k3_doc_is_array(list)) {
        k3_problems_add(problems, "config.json: %s must be a list of 1-based layer numbers", path);
        return;
    }
    for (const struct k3_doc *item = k3_doc_first(list); item; item = k3_doc_next(item)) {
        uint64_t layer;
        if (!k3_doc_integer(item, &layer) || layer < 1 || layer > config->layer_count) {
            k3_problems_add(problems, "config.json: %s holds something that is no layer of 1..%u",
                            path, config->layer_count);
            continue;
        }
        if (seen[layer - 1]++)
            k3_problems_add(problems,
                            "config.json: layer %llu (1-based) is named twice in the layer lists",
                            (unsigned long long)layer);
        config->is_mla[layer - 1] = path == full_path;
    }
}

static void read_layers(const struct k3_doc *object, find_fn find, struct k3_config *config,
                        struct k3_problems *problems)
{
    uint8_t seen[K3_CONFIG_LAYER_COUNT_MAX] = {0};
    uint64_t count = config->value[K3_V_LAYERS];
    if (count > K3_CONFIG_LAYER_COUNT_MAX) {
        k3_problems_add(problems, "config.json: %llu layers, at most %u are supported",
                        (unsigned long long)count, K3_CONFIG_LAYER_COUNT_MAX);
        return;
    }
    config->layer_count = (uint32_t)count;
    read_list(find(object, full_path), full_path, config, seen, problems);
    read_list(find(object, kda_path), kda_path, config, seen, problems);
    for (uint32_t i = 0; i < config->layer_count; i++)
        if (!seen[i])
            k3_problems_add(problems, "config.json: layer %u (1-based) is neither in %s nor in %s",
                            i + 1, full_path, kda_path);
}

static void check_demands(const struct k3_doc *root, const struct k3_model *model,
                          struct k3_problems *problems)
{
    if (k3_doc_find(root, "quantization_config") &&
        !k3_doc_find(root, "text_config.quantization_config"))
        k3_problems_add(problems,
                        "config.json: quantization_config stands at the root; K3 has it inside "
                        "text_config: this is another model");
    for (uint32_t i = 0; i < model->demand_count; i++) {
        const struct k3_config_demand *demand = &model->demands[i];
        const struct k3_doc *value = k3_doc_find(root, demand->path);
        char found[64] = "nothing";
        uint64_t number;
        bool flag;
        if (value && k3_doc_integer(value, &number))
            snprintf(found, sizeof found, "%llu", (unsigned long long)number);
        else if (value && k3_doc_bool(value, &flag))
            snprintf(found, sizeof found, "%s", flag ? "true" : "false");
        else if (value && k3_doc_string(value))
            snprintf(found, sizeof found, "%s", k3_doc_string(value));
        else if (value)
            snprintf(found, sizeof found, "something else");
        if (!value && demand->is_optional)
            continue;
        if (strcmp(found, demand->wanted))
            k3_problems_add(problems, "config.json: %s must be %s, found %s", demand->path,
                            demand->wanted, found);
    }
}

static void check_values(const struct k3_config *config, struct k3_problems *problems)
{
    const uint64_t *v = config->value;
    if (v[K3_V_LATENT] % 32)
        k3_problems_add(problems,
                        "config.json: routed_expert_hidden_size %llu is no multiple of 32",
                        (unsigned long long)v[K3_V_LATENT]);
    if (v[K3_V_MOE_WIDTH] % 32)
        k3_problems_add(problems, "config.json: moe_intermediate_size %llu is no multiple of 32",
                        (unsigned long long)v[K3_V_MOE_WIDTH]);
    if (v[K3_V_FIRST_DENSE] > v[K3_V_LAYERS])
        k3_problems_add(problems, "config.json: first_k_dense_replace is beyond the last layer");
}

/* The bytes of every tensor and of all of them together fit: later sums and products cannot wrap.
 */
static void check_sizes(const struct k3_config *config, struct k3_problems *problems)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        uint64_t bits = k3_dtype_bits(rule->dtype), count = k3_rule_repeat_count(config, rule);
        bool fits = k3_mul_fits(count, config->layer_count + 1u, &count);
        for (unsigned d = 0; d < rule->dim_count; d++)
            fits = fits && config->value[rule->dim[d]] &&
                   k3_mul_fits(bits, config->value[rule->dim[d]], &bits);
        fits = fits && k3_mul_fits(bits, count, &bits) && k3_add_fits(total, bits / 8, &total) &&
               total < TOTAL_BYTES_MAX;
        if (!fits) {
            k3_problems_add(problems, "config.json: the shape of %s does not fit any machine",
                            rule->name);
            return;
        }
    }
}

static int decode(const struct k3_doc *object, find_fn find, struct k3_config *out,
                  struct k3_problems *problems, struct k3_err *err)
{
    uint64_t before = problems->count;
    read_fields(object, find, out, problems);
    read_layers(object, find, out, problems);
    if (problems->count == before)
        check_values(out, problems);
    if (problems->count == before) {
        derive(out->value);
        check_sizes(out, problems);
    }
    if (problems->count != before)
        return k3_fail(err, K3_EFORMAT, "config.json does not fit the rules of %s: %llu problem%s",
                       out->model->architecture, (unsigned long long)(problems->count - before),
                       problems->count - before == 1 ? "" : "s");
    return 0;
}

int k3_config_decode(const struct k3_doc *root, struct k3_config *out, struct k3_problems *problems,
                     struct k3_err *err)
{
    memset(out, 0, sizeof *out);
    const struct k3_doc *list = k3_doc_find(root, "architectures");
    const struct k3_doc *first = list && k3_doc_is_array(list) ? k3_doc_first(list) : NULL;
    const char *name = first ? k3_doc_string(first) : NULL;
    if (!name)
        return k3_fail_at(err, K3_EFORMAT, "config.json", -1,
                          "config.json: architectures[0] is missing: not a model's configuration");
    out->model = k3_model_find(name);
    if (!out->model)
        return k3_fail(
            err, K3_EUNSUPPORTED,
            "config.json: architecture %.64s has no model rules in this build; it knows %s", name,
            k3_model_k3.architecture);
    uint64_t before = problems->count;
    check_demands(root, out->model, problems);
    int rc = decode(root, k3_doc_find, out, problems, err);
    if (!rc && problems->count != before)
        rc = k3_fail(err, K3_EFORMAT, "config.json does not fit the rules of %s: %llu problem%s",
                     name, (unsigned long long)(problems->count - before),
                     problems->count - before == 1 ? "" : "s");
    return rc;
}

int k3_config_decode_plan(const struct k3_doc *config, const struct k3_model *model,
                          struct k3_config *out, struct k3_err *err)
{
    struct k3_problems problems;
    k3_problems_init(&problems);
    memset(out, 0, sizeof *out);
    out->model = model;
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = decode(config, find_flat, out, &problems, &inner);
    /* fields, two of them in one array, and the two lists */
    if (!rc && k3_doc_count(config) != model->field_count - 1 + 2)
        rc = k3_fail(err, K3_EFORMAT, "plan: config has members this version does not know");
    if (rc)
        k3_fail(err, rc, "plan: %s", problems.kept_count ? problems.text[0] : inner.text);
    k3_problems_fini(&problems);
    return rc;
}

static void put_list(const struct k3_config *config, bool mla, struct k3_text *out)
{
    bool any = false;
    k3_text_puts(out, "[");
    for (uint32_t i = 0; i < config->layer_count; i++) {
        if (config->is_mla[i] != mla)
            continue;
        k3_text_putf(out, "%s%u", any ? "," : "", i + 1);
        any = true;
    }
    k3_text_puts(out, "]");
}

void k3_config_encode_plan(const struct k3_config *config, struct k3_text *out)
{
    const struct k3_model *model = config->model;
    bool full_done = false, kda_done = false;
    k3_text_puts(out, "{");
    for (uint32_t i = 0; i < model->field_count; i++) {
        const struct k3_config_field *field = &model->fields[i];
        if (!full_done && strcmp(full_path, field->path) < 0) {
            k3_text_putf(out, ",\"%s\":", full_path);
            put_list(config, true, out);
            full_done = true;
        }
        if (!kda_done && strcmp(kda_path, field->path) < 0) {
            k3_text_putf(out, ",\"%s\":", kda_path);
            put_list(config, false, out);
            kda_done = true;
        }
        unsigned long long value = config->value[field->value];
        if (field->element > 1) {
            k3_text_putf(out, ",%llu]", value); /* last element: the only arrays have two */
            continue;
        }
        k3_text_putf(out, "%s\"%s\":%s%llu", i ? "," : "", field->path, field->element ? "[" : "",
                     value);
    }
    k3_text_puts(out, "}");
}

bool k3_rule_applies(const struct k3_config *config, const struct k3_rule *rule, uint32_t layer)
{
    bool dense = layer < config->value[K3_V_FIRST_DENSE];
    switch (rule->scope) {
    case K3_SCOPE_KDA:
        return !config->is_mla[layer];
    case K3_SCOPE_MLA:
        return config->is_mla[layer];
    case K3_SCOPE_DENSE:
        return dense;
    case K3_SCOPE_MOE:
        return !dense;
    default:
        return true;
    }
}

uint32_t k3_rule_repeat_count(const struct k3_config *config, const struct k3_rule *rule)
{
    if (rule->repeat == K3_REPEAT_EXPERT)
        return (uint32_t)config->value[K3_V_EXPERTS];
    if (rule->repeat == K3_REPEAT_BLOCK)
        return (uint32_t)config->value[K3_V_VT_LAYERS];
    return 1;
}

uint32_t k3_rule_part(const struct k3_config *config, const struct k3_rule *rule, uint32_t layer)
{
    if (rule->scope == K3_SCOPE_FIRST)
        return 0;
    return rule->scope == K3_SCOPE_LAST ? config->layer_count + 1 : layer + 1;
}

uint32_t k3_config_part_count(const struct k3_config *config)
{
    return config->layer_count + 2;
}

void k3_rule_name(const char *pattern, uint32_t layer, uint32_t index, char *name, size_t bytes)
{
    size_t used = 0;
    for (const char *p = pattern; *p && used + 1 < bytes;) {
        if (*p != '{') {
            name[used++] = *p++;
            continue;
        }
        uint32_t number = p[1] == 'i' ? layer : index;
        int n = snprintf(name + used, bytes - used, "%u", number);
        used += n > 0 ? (size_t)n : 0;
        used = used < bytes ? used : bytes - 1;
        p += 3; /* "{i}" */
    }
    name[used] = 0;
}
