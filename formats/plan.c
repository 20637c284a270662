/* Purpose: build a plan: which tensors a checkpoint has, where, and whether that is what the rules
 * derive.
 * Owns: the plan and all its arrays.
 * Threads: one while it is built; constant after k3_plan_finish.
 * Errors: K3_ENOMEM, K3_ELIMIT; what is wrong with the checkpoint goes to the problem list.
 * Invariant: a slot is (rule, layer, expert or block) by arithmetic, so half a million names cost
 * no storage. */
#include "plan.h"

#include "hf_index.h"
#include "names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_COUNT_MAX (4u << 20) /* 8 times K3; an absurd config or plan costs 100 MB at most */
#define FILE_MISSING   (UINT32_MAX - 1) /* the index names a file that is not there */

static uint64_t rule_slot_count(const struct k3_config *config, const struct k3_rule *rule)
{
    bool in_layer = rule->scope != K3_SCOPE_FIRST && rule->scope != K3_SCOPE_LAST;
    return (in_layer ? (uint64_t)config->layer_count : 1) * k3_rule_repeat_count(config, rule);
}

int k3_plan_open(const struct k3_config *config, const struct k3_layout *layout,
                 const struct k3_policy *policy, struct k3_plan **out, struct k3_err *err)
{
    int rc = policy ? k3_policy_check(policy, config, layout, err) : 0;
    if (rc)
        return rc;
    struct k3_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return k3_fail(err, K3_ENOMEM, "no memory for a plan");
    plan->config = *config;
    plan->layout = *layout;
    if (policy)
        plan->policy = *policy;
    plan->total_size = UINT64_MAX;
    uint64_t slots = 0;
    for (uint32_t r = 0; r < config->model->rule_count; r++) {
        plan->rule_slot[r] = (uint32_t)slots;
        slots += rule_slot_count(config, &config->model->rules[r]);
        if (slots > SLOT_COUNT_MAX) {
            rc = k3_fail(err, K3_ELIMIT, "config.json describes more than %u tensors",
                         SLOT_COUNT_MAX);
            goto out;
        }
    }
    plan->slot_count = (uint32_t)slots;
    plan->places = malloc((slots ? slots : 1) * sizeof *plan->places);
    plan->repository = strdup("");
    plan->revision = strdup("");
    if (!plan->places || !plan->repository || !plan->revision) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for a plan of %llu tensors",
                     (unsigned long long)slots);
        goto out;
    }
    for (uint64_t s = 0; s < slots; s++)
        plan->places[s] = (struct k3_tensor_place){0, 0, K3_FILE_NONE, K3_FILE_NONE};
    rc = k3_names_open(config->model, &plan->names, err);
out:
    if (rc)
        k3_plan_close(plan);
    else
        *out = plan;
    return rc;
}

void k3_plan_close(struct k3_plan *plan)
{
    if (!plan)
        return;
    for (uint32_t i = 0; i < plan->source_count; i++)
        free(plan->sources[i].name);
    for (uint32_t i = 0; i < plan->item_count; i++) {
        free(plan->items[i].files);
        free(plan->items[i].parts);
    }
    free(plan->sources);
    free(plan->items);
    free(plan->places);
    free(plan->text);
    free(plan->repository);
    free(plan->revision);
    k3_names_close(plan->names);
    free(plan);
}

uint32_t k3_plan_find(const struct k3_plan *plan, const char *name, size_t name_bytes)
{
    const struct k3_config *config = &plan->config;
    uint32_t layer, index;
    for (uint32_t r = 0; k3_names_find(plan->names, name, name_bytes, &r, &layer, &index); r++) {
        const struct k3_rule *rule = &config->model->rules[r];
        uint32_t repeats = k3_rule_repeat_count(config, rule);
        bool in_layer = rule->scope != K3_SCOPE_FIRST && rule->scope != K3_SCOPE_LAST;
        if (index >= repeats || (in_layer && layer >= config->layer_count) ||
            !k3_rule_applies(config, rule, layer))
            continue;
        return plan->rule_slot[r] + layer * repeats + index;
    }
    return K3_SLOT_NONE;
}

bool k3_plan_slot(const struct k3_plan *plan, uint32_t slot, uint32_t *rule, uint32_t *layer,
                  uint32_t *index)
{
    const struct k3_config *config = &plan->config;
    uint32_t low = 0, high = config->model->rule_count; /* last rule whose first slot is <= slot */
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (plan->rule_slot[middle] <= slot)
            low = middle;
        else
            high = middle;
    }
    const struct k3_rule *found = &config->model->rules[low];
    uint32_t repeats = k3_rule_repeat_count(config, found);
    *rule = low;
    *layer = (slot - plan->rule_slot[low]) / repeats;
    *index = (slot - plan->rule_slot[low]) % repeats;
    return k3_rule_applies(config, found, *layer);
}

void k3_plan_slot_name(const struct k3_plan *plan, uint32_t slot, char *name, size_t bytes)
{
    uint32_t rule, layer, index;
    k3_plan_slot(plan, slot, &rule, &layer, &index);
    k3_rule_name(plan->config.model->rules[rule].name, layer, index, name, bytes);
}

/* ---- source files ---- */

static void shape_text(const uint64_t *shape, unsigned count, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (unsigned d = 0; d < count && used < bytes; d++) {
        int n = snprintf(text + used, bytes - used, "%s%llu", d ? "," : "",
                         (unsigned long long)shape[d]);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* A tensor of a header against its rule; adds at most one problem. */
static void judge(const struct k3_plan *plan, const char *file, uint32_t slot,
                  const struct k3_st_tensor *tensor, struct k3_problems *problems)
{
    uint32_t r, layer, index;
    k3_plan_slot(plan, slot, &r, &layer, &index);
    const struct k3_rule *rule = &plan->config.model->rules[r];
    uint64_t wanted[4] = {0};
    bool same = tensor->dim_count == rule->dim_count;
    for (unsigned d = 0; d < rule->dim_count; d++) {
        wanted[d] = plan->config.value[rule->dim[d]];
        bool longer = d == 0 && (rule->flags & K3_RULE_STORED_LONGER);
        if (same && (longer ? tensor->shape[d] < wanted[d] : tensor->shape[d] != wanted[d]))
            same = false;
    }
    if (tensor->dtype != rule->dtype)
        k3_problems_add(problems, "%s: %s has dtype %s, config.json and the model rules want %s",
                        file, tensor->name, k3_dtype_name(tensor->dtype),
                        k3_dtype_name(rule->dtype));
    if (same)
        return;
    char want[96], have[192];
    shape_text(wanted, rule->dim_count, want, sizeof want);
    shape_text(tensor->shape, tensor->dim_count, have, sizeof have);
    k3_problems_add(problems, "%s: %s has shape [%s], config.json and the model rules want [%s]%s",
                    file, tensor->name, have, want,
                    rule->flags & K3_RULE_STORED_LONGER ? " or a longer first dimension" : "");
}

int k3_plan_add_file(struct k3_plan *plan, const struct k3_source *source, const struct k3_st *st,
                     struct k3_problems *problems, struct k3_err *err)
{
    if (plan->source_count >= K3_FILE_COUNT_MAX)
        return k3_fail(err, K3_ELIMIT, "more than %u source files", K3_FILE_COUNT_MAX);
    struct k3_source *grown = realloc(plan->sources, (plan->source_count + 1) * sizeof *grown);
    if (!grown)
        return k3_fail(err, K3_ENOMEM, "no memory for the list of source files");
    plan->sources = grown;
    uint32_t file = plan->source_count;
    plan->sources[file] = *source;
    plan->sources[file].tensor_count = st ? st->tensor_count : 0;
    plan->sources[file].is_broken = !st;
    plan->sources[file].name = strdup(source->name);
    if (!plan->sources[file].name)
        return k3_fail(err, K3_ENOMEM, "no memory for the list of source files");
    plan->source_count++;
    for (uint32_t i = 0; st && i < st->tensor_count; i++) {
        const struct k3_st_tensor *tensor = &st->tensors[i];
        uint32_t slot = k3_plan_find(plan, tensor->name, tensor->name_bytes);
        if (slot == K3_SLOT_NONE) {
            k3_problems_add(
                problems, "%s: unknown tensor %s: neither the model rules nor config.json have it",
                source->name, tensor->name);
            continue;
        }
        struct k3_tensor_place *place = &plan->places[slot];
        if (place->file != K3_FILE_NONE) {
            k3_problems_add(problems, "%s: %s is here and in %s: a tensor must stand in one file",
                            source->name, tensor->name, plan->sources[place->file].name);
            continue;
        }
        judge(plan, source->name, slot, tensor, problems);
        place->file = file;
        place->begin_offset = tensor->begin_offset;
        place->bytes = tensor->end_offset - tensor->begin_offset;
        plan->tensor_bytes += place->bytes;
        plan->tensor_count++;
    }
    return 0;
}

/* ---- index ---- */

struct index_reader {
    struct k3_plan *plan;
    struct k3_problems *problems;
    const char *file; /* the index, for messages */
    uint32_t last;    /* file of the entry before: entries come in clusters */
    char **missing;   /* names of files that are not there; owned */
    uint32_t missing_count;
};

static uint32_t find_source(const struct k3_plan *plan, const char *name)
{
    uint32_t low = 0, high = plan->source_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int order = strcmp(plan->sources[middle].name, name);
        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return K3_FILE_NONE;
}

/* Say once that a file is not there. */
static int note_missing(struct index_reader *reader, const char *name, struct k3_err *err)
{
    for (uint32_t i = reader->missing_count; i-- > 0;)
        if (!strcmp(reader->missing[i], name))
            return 0;
    if (reader->missing_count >= K3_FILE_COUNT_MAX)
        return k3_fail(err, K3_ELIMIT, "%s: names more than %u files that are not there",
                       reader->file, K3_FILE_COUNT_MAX);
    char **grown = realloc(reader->missing, (reader->missing_count + 1) * sizeof *grown);
    char *copy = strdup(name);
    if (grown)
        reader->missing = grown;
    if (!grown || !copy) {
        free(copy);
        return k3_fail(err, K3_ENOMEM, "no memory for the list of missing files");
    }
    reader->missing[reader->missing_count++] = copy;
    k3_problems_add(reader->problems, "%s: names %s, which is not there: download it again",
                    reader->file, name);
    return 0;
}

static int index_entry(void *context, const char *tensor, size_t tensor_bytes, const char *file,
                       struct k3_err *err)
{
    struct index_reader *reader = context;
    struct k3_plan *plan = reader->plan;
    plan->named_count++;
    uint32_t source = reader->last;
    if (source >= plan->source_count || strcmp(plan->sources[source].name, file))
        source = find_source(plan, file);
    reader->last = source;
    int rc = source == K3_FILE_NONE ? note_missing(reader, file, err) : 0;
    if (rc)
        return rc;
    uint32_t slot = k3_plan_find(plan, tensor, tensor_bytes);
    if (slot == K3_SLOT_NONE)
        k3_problems_add(reader->problems,
                        "%s: names unknown tensor %.512s: the model rules do not have it",
                        reader->file, tensor);
    else
        plan->places[slot].named_in = source == K3_FILE_NONE ? FILE_MISSING : source;
    return 0;
}

int k3_plan_add_index(struct k3_plan *plan, const char *file, const char *text, size_t bytes,
                      struct k3_problems *problems, struct k3_err *err)
{
    struct index_reader reader = {
        .plan = plan, .problems = problems, .file = file, .last = K3_FILE_NONE};
    struct k3_index_sink sink = {.entry = index_entry, .context = &reader};
    int rc = k3_index_decode(file, text, bytes, &sink, err);
    plan->total_size = sink.total_size;
    for (uint32_t i = 0; i < reader.missing_count; i++)
        free(reader.missing[i]);
    free(reader.missing);
    return rc;
}

/* Files of which no tensor is named by the index are reported once; others tensor by tensor. */
static void note_unnamed_files(struct k3_plan *plan, uint32_t *unnamed,
                               struct k3_problems *problems)
{
    for (uint32_t slot = 0; slot < plan->slot_count; slot++)
        if (plan->places[slot].file != K3_FILE_NONE &&
            plan->places[slot].named_in != plan->places[slot].file)
            unnamed[plan->places[slot].file]++;
    for (uint32_t f = 0; f < plan->source_count; f++) {
        if (plan->sources[f].is_broken || unnamed[f] != plan->sources[f].tensor_count)
            continue;
        k3_problems_add(
            problems,
            "%s: the index names none of its %u tensors: a stale or foreign file; move it "
            "away, or download the index again",
            plan->sources[f].name, unnamed[f]);
        unnamed[f] = UINT32_MAX;
    }
}

/* One slot whose file and index disagree. */
static void note_slot(struct k3_plan *plan, uint32_t slot, const uint32_t *unnamed,
                      struct k3_problems *problems)
{
    const struct k3_tensor_place *place = &plan->places[slot];
    char name[K3_ST_NAME_BYTES_MAX + 1];
    uint32_t rule, layer, index;
    if (!k3_plan_slot(plan, slot, &rule, &layer, &index))
        return;
    bool is_named = place->named_in != K3_FILE_NONE && place->named_in != FILE_MISSING;
    if (place->file == K3_FILE_NONE && place->named_in == FILE_MISSING)
        return; /* its file was named already */
    if (place->file == K3_FILE_NONE && is_named && plan->sources[place->named_in].is_broken)
        return; /* so was this one */
    if (place->file != K3_FILE_NONE && unnamed && unnamed[place->file] == UINT32_MAX)
        return;
    k3_plan_slot_name(plan, slot, name, sizeof name);
    if (place->file == K3_FILE_NONE && !is_named)
        k3_problems_add(
            problems,
            "%s is missing: config.json asks for it, no file has it and the index does not "
            "name it",
            name);
    else if (place->file == K3_FILE_NONE)
        k3_problems_add(problems, "%s: %s is missing: the index says it is there",
                        plan->sources[place->named_in].name, name);
    else if (place->named_in == K3_FILE_NONE)
        k3_problems_add(problems,
                        "%s: %s is not named by the index: the file is stale, or the index is",
                        plan->sources[place->file].name, name);
    else
        k3_problems_add(
            problems, "%s: %s is here, the index says it is in %s", plan->sources[place->file].name,
            name, is_named ? plan->sources[place->named_in].name : "a file that is not there");
}

void k3_plan_check(struct k3_plan *plan, struct k3_problems *problems)
{
    uint32_t *unnamed = calloc(plan->source_count ? plan->source_count : 1, sizeof *unnamed);
    if (unnamed)
        note_unnamed_files(plan, unnamed, problems);
    for (uint32_t slot = 0; slot < plan->slot_count; slot++) {
        const struct k3_tensor_place *place = &plan->places[slot];
        if (place->file != place->named_in || place->file == K3_FILE_NONE)
            note_slot(plan, slot, unnamed, problems); /* else: the common case, without a name */
    }
    free(unnamed);
    if (plan->total_size != UINT64_MAX && plan->total_size != plan->tensor_bytes &&
        !problems->count)
        k3_problems_add(
            problems, "the index says metadata.total_size %llu, the tensors have %llu bytes",
            (unsigned long long)plan->total_size, (unsigned long long)plan->tensor_bytes);
}
