/* Purpose: judge a layout, place ranks, cut tensors (FORMAT.md 4.2 to 4.4).
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: K3_EUNSUPPORTED (does not divide; says what would), K3_ELIMIT, K3_EUSAGE, K3_EFORMAT
 * (plan text).
 * Invariant: the slices of one tensor over the ranks of a stage tile it exactly copy_count
 * times. */
#include "layout.h"

#include "bytes.h"
#include "doc.h"
#include "manifest.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

void k3_layout_init(struct k3_layout *layout)
{
    memset(layout, 0, sizeof *layout);
    layout->tp = 8;
    layout->dp = 1;
    layout->pp = 1;
}

uint32_t k3_layout_world(const struct k3_layout *layout)
{
    return layout->tp * layout->dp * layout->pp;
}

/* What must be divided, by how much; name NULL: nothing is in the way. */
struct obstacle {
    const char *name;
    uint64_t value, divisor;
};

static bool divides(const struct k3_layout *layout, const struct k3_config *config,
                    struct obstacle *first)
{
    const uint64_t *v = config->value;
    uint64_t tp = layout->tp, group = tp * layout->dp;
    bool has_moe = v[K3_V_FIRST_DENSE] < v[K3_V_LAYERS];
    const struct obstacle all[] = {
        {"the attention heads", v[K3_V_HEADS], tp},
        {"the KDA heads", v[K3_V_KDA_HEADS], tp},
        {"the vocabulary", v[K3_V_VOCAB], tp},
        {"the dense MLP width", v[K3_V_FIRST_DENSE] ? v[K3_V_DENSE_WIDTH] : 0, tp},
        {"the shared expert width", has_moe && !layout->shared_replicate ? v[K3_V_SHARED_WIDTH] : 0,
         tp},
        {"the experts", has_moe && layout->experts_ep ? v[K3_V_EXPERTS] : 0, group},
        {"the expert width in groups of 32",
         has_moe && !layout->experts_ep ? v[K3_V_MOE_SCALES] : 0, group},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].value % all[i].divisor) {
            *first = all[i];
            return false;
        }
    return true;
}

bool k3_layout_divides(const struct k3_layout *layout, const struct k3_config *config)
{
    struct obstacle first;
    return layout->tp && layout->dp && divides(layout, config, &first);
}

/* "1, 2, 4, 8": the tp sizes that divide with everything else as asked. */
static void list_sizes(const struct k3_layout *layout, const struct k3_config *config, char *text,
                       size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    struct k3_layout trial = *layout;
    for (trial.tp = 1; trial.tp <= 1024 && used + 16 < bytes;
         trial.tp++) { /* no node group is larger */
        if (!k3_layout_divides(&trial, config))
            continue;
        int n = snprintf(text + used, bytes - used, "%s%u", used ? ", " : "", trial.tp);
        used += n > 0 ? (size_t)n : 0;
    }
    if (!used)
        snprintf(text, bytes, "none");
}

/* vLLM's rule: equal stages, the remainder one each to the stages before the last (FORMAT.md 4.2).
 */
static void default_stages(struct k3_layout *layout, uint32_t layer_count)
{
    uint32_t base = layer_count / layout->pp, rest = layer_count % layout->pp;
    for (uint32_t s = 0; s < layout->pp; s++) {
        uint32_t from_end = layout->pp - s; /* 1: the last stage */
        layout->stage_layers[s] = base + (from_end >= 2 && from_end <= rest + 1);
    }
}

static int resolve_stages(struct k3_layout *layout, const struct k3_config *config,
                          struct k3_err *err)
{
    uint32_t layers = config->layer_count;
    if (layout->pp > K3_STAGE_COUNT_MAX || layout->pp > layers)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "--pp %u: the model has %u layers, and at most %u stages are "
                       "supported; take fewer stages",
                       layout->pp, layers, K3_STAGE_COUNT_MAX);
    uint64_t sum = 0;
    for (uint32_t s = 0; s < layout->pp; s++)
        sum += layout->stage_layers[s];
    if (sum == 0) {
        default_stages(layout, layers);
        return 0;
    }
    for (uint32_t s = 0; s < layout->pp; s++)
        if (!layout->stage_layers[s])
            return k3_fail(err, K3_EUNSUPPORTED,
                           "--pp-layers: stage %u has no layer; give %u numbers of at "
                           "least 1",
                           s, layout->pp);
    if (sum != layers)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "--pp-layers: the numbers sum to %llu, the model has %u layers",
                       (unsigned long long)sum, layers);
    return 0;
}

int k3_layout_resolve(struct k3_layout *layout, const struct k3_config *config, struct k3_err *err)
{
    if (!layout->tp || !layout->dp || !layout->pp)
        return k3_fail(err, K3_EUSAGE, "--tp, --dp and --pp must be at least 1");
    uint64_t world = (uint64_t)layout->tp * layout->dp;
    if (layout->tp > K3_RANK_COUNT_MAX || layout->dp > K3_RANK_COUNT_MAX ||
        layout->pp > K3_RANK_COUNT_MAX || world * layout->pp > K3_RANK_COUNT_MAX)
        return k3_fail(err, K3_ELIMIT, "tp %u x dp %u x pp %u: at most %u ranks are supported",
                       layout->tp, layout->dp, layout->pp, K3_RANK_COUNT_MAX);
    struct obstacle first;
    if (!divides(layout, config, &first)) {
        char sizes[256];
        list_sizes(layout, config, sizes, sizeof sizes);
        return k3_fail(
            err, K3_EUNSUPPORTED,
            "tp %u, dp %u does not divide the model: %s (%llu) cannot be cut into %llu equal runs; "
            "with the other options as they are these --tp sizes work: %s",
            layout->tp, layout->dp, first.name, (unsigned long long)first.value,
            (unsigned long long)first.divisor, sizes);
    }
    return resolve_stages(layout, config, err);
}

void k3_layout_place(const struct k3_layout *layout, uint32_t rank, struct k3_place *place)
{
    place->t = rank % layout->tp;
    place->p = rank / layout->tp % layout->pp;
    place->d = rank / layout->tp / layout->pp;
    place->g = place->d * layout->tp + place->t;
    place->g_count = layout->dp * layout->tp;
    place->layer_begin = 0;
    for (uint32_t s = 0; s < place->p; s++)
        place->layer_begin += layout->stage_layers[s];
    place->layer_end = place->layer_begin + layout->stage_layers[place->p];
}

/* Into how many runs a tensor is cut, and which of them this place takes. */
static void run_of(const struct k3_layout *layout, const struct k3_rule *rule,
                   const struct k3_place *place, uint32_t *count, uint32_t *index)
{
    *count = 1;
    *index = 0;
    if (rule->split == K3_SPLIT_REPLICATE ||
        (rule->role == K3_ROLE_SHARED && layout->shared_replicate))
        return;
    if (rule->role == K3_ROLE_EXPERTS) {
        if (!layout->experts_ep) {
            *count = place->g_count;
            *index = place->g;
        }
        return;
    }
    *count = layout->tp;
    *index = place->t;
}

bool k3_layout_slice(const struct k3_layout *layout, const struct k3_config *config,
                     const struct k3_rule *rule, uint32_t index, const struct k3_place *place,
                     struct k3_slice *slice)
{
    uint32_t run_count, run;
    run_of(layout, rule, place, &run_count, &run);
    uint32_t distinct = run_count;
    if (rule->role == K3_ROLE_EXPERTS && layout->experts_ep) {
        uint32_t local = (uint32_t)config->value[K3_V_EXPERTS] / place->g_count;
        if (index / local != place->g)
            return false;
        distinct = place->g_count;
    }
    if (rule->role == K3_ROLE_VISION || rule->role == K3_ROLE_PROJECTOR) {
        if (layout->vision == K3_VISION_DROP ||
            (layout->vision == K3_VISION_FIRST && place->t != 0))
            return false;
        distinct = layout->vision == K3_VISION_FIRST ? layout->tp
                                                     : 1; /* tp - 1 of them hold nothing */
    }
    uint64_t rows = config->value[rule->dim[0]];
    uint64_t row_bits = k3_dtype_bits(rule->dtype);
    for (unsigned d = 1; d < rule->dim_count; d++)
        row_bits *= config->value[rule->dim[d]];
    slice->row_bytes = row_bits / 8;
    slice->row_begin = 0;
    slice->row_count = rows;
    slice->column_begin = 0;
    slice->column_bytes = slice->row_bytes;
    if (rule->split == K3_SPLIT_ROWS) {
        slice->row_count = rows / run_count;
        slice->row_begin = slice->row_count * run;
    } else if (rule->split == K3_SPLIT_COLUMNS) {
        slice->column_bytes = slice->row_bytes / run_count;
        slice->column_begin = slice->column_bytes * run;
    }
    slice->copy_count = place->g_count / distinct;
    return true;
}

void k3_layout_encode_plan(const struct k3_layout *layout, struct k3_text *out)
{
    static const char *const vision[] = {"replicate", "first", "drop"};
    k3_text_putf(out, "{\"dp\":%u,\"experts\":\"%s\",\"pp\":%u,\"pp_layers\":[", layout->dp,
                 layout->experts_ep ? "ep" : "tp", layout->pp);
    for (uint32_t s = 0; s < layout->pp; s++)
        k3_text_putf(out, "%s%u", s ? "," : "", layout->stage_layers[s]);
    k3_text_putf(out, "],\"shared\":\"%s\",\"tp\":%u,\"vision\":\"%s\"}",
                 layout->shared_replicate ? "replicate" : "tp", layout->tp, vision[layout->vision]);
}

static bool read_count(const struct k3_doc *object, const char *name, uint32_t *out)
{
    const struct k3_doc *value = k3_doc_find(object, name);
    uint64_t number;
    if (!value || !k3_doc_integer(value, &number) || number == 0 || number > K3_RANK_COUNT_MAX)
        return false;
    *out = (uint32_t)number;
    return true;
}

/* Index of a string member among the choices; -1 where it is none of them. */
static int read_choice(const struct k3_doc *object, const char *name, const char *const *choices)
{
    const struct k3_doc *value = k3_doc_find(object, name);
    const char *string = value ? k3_doc_string(value) : NULL;
    for (int i = 0; string && choices[i]; i++)
        if (!strcmp(string, choices[i]))
            return i;
    return -1;
}

int k3_layout_decode_plan(const struct k3_doc *object, const struct k3_config *config,
                          struct k3_layout *out, struct k3_err *err)
{
    static const char *const experts[] = {"tp", "ep", NULL},
                             *const shared[] = {"tp", "replicate", NULL},
                             *const vision[] = {"replicate", "first", "drop", NULL};
    memset(out, 0, sizeof *out);
    int e = read_choice(object, "experts", experts), s = read_choice(object, "shared", shared),
        v = read_choice(object, "vision", vision);
    const struct k3_doc *stages = k3_doc_find(object, "pp_layers");
    if (e < 0 || s < 0 || v < 0 || !read_count(object, "tp", &out->tp) ||
        !read_count(object, "dp", &out->dp) || !read_count(object, "pp", &out->pp) || !stages ||
        !k3_doc_is_array(stages) || k3_doc_count(stages) != out->pp ||
        out->pp > K3_STAGE_COUNT_MAX || k3_doc_count(object) != 7)
        return k3_fail(err, K3_EFORMAT, "plan: layout is not of the form this version writes");
    out->experts_ep = e == 1;
    out->shared_replicate = s == 1;
    out->vision = (uint8_t)v;
    uint32_t i = 0;
    for (const struct k3_doc *item = k3_doc_first(stages); item; item = k3_doc_next(item)) {
        uint64_t number;
        if (!k3_doc_integer(item, &number) || number == 0 || number > K3_CONFIG_LAYER_COUNT_MAX)
            return k3_fail(err, K3_EFORMAT,
                           "plan: layout.pp_layers holds something that is no layer count");
        out->stage_layers[i++] = (uint32_t)number;
    }
    struct k3_err inner;
    k3_err_init(&inner);
    if (k3_layout_resolve(out, config, &inner))
        return k3_fail(err, K3_EFORMAT, "plan: its layout does not fit its config: %s", inner.text);
    return 0;
}

void k3_layout_describe(const struct k3_layout *layout, char *text, size_t bytes)
{
    static const char *const vision[] = {"replicate", "first", "drop"};
    struct k3_text stages;
    k3_text_init(&stages);
    if (layout->pp > 1) {
        for (uint32_t s = 0; s < layout->pp; s++)
            k3_text_putf(&stages, "%s%u", s ? "/" : " (", layout->stage_layers[s]);
        k3_text_puts(&stages, ")");
    }
    snprintf(text, bytes, "tp %u, dp %u, pp %u%s, experts %s, shared %s, vision %s", layout->tp,
             layout->dp, layout->pp, stages.data && !stages.failed ? stages.data : "",
             layout->experts_ep ? "ep" : "tp", layout->shared_replicate ? "replicate" : "tp",
             vision[layout->vision]);
    k3_text_fini(&stages);
}
