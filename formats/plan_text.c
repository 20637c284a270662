/* Purpose: finish a plan: items, plan text, plan digest (FORMAT.md 4.5, 4.6).
 * Owns: nothing; fills the plan.
 * Threads: one.
 * Errors: K3_ENOMEM, K3_EFORMAT (a name the text cannot carry).
 * Invariant: items are the connected sets of files and parts, whatever the layout and whatever is
 * dropped. */
#include "doc.h"
#include "hf_index.h"
#include "plan.h"
#include "sha256.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Root of a node, halving the path on the way. */
static uint32_t find_root(uint32_t *parent, uint32_t node)
{
    while (parent[node] != node) {
        parent[node] = parent[parent[node]];
        node = parent[node];
    }
    return node;
}

/* Nodes 0..parts-1 are parts, behind them the files; the smaller root wins, so a root is the lowest
 * part. */
static void join(uint32_t *parent, uint32_t a, uint32_t b)
{
    a = find_root(parent, a);
    b = find_root(parent, b);
    if (a < b)
        parent[b] = a;
    else
        parent[a] = b;
}

static int push(uint32_t **list, uint32_t *count, uint32_t value, struct k3_err *err)
{
    uint32_t *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (!grown)
        return k3_fail(err, K3_ENOMEM, "no memory for the items of the plan");
    *list = grown;
    grown[(*count)++] = value;
    return 0;
}

static int make_items(struct k3_plan *plan, struct k3_err *err)
{
    int rc = 0;
    uint32_t parts = k3_config_part_count(&plan->config), nodes = parts + plan->source_count;
    uint32_t *parent = calloc(nodes, sizeof *parent), *number = calloc(nodes, sizeof *number);
    plan->items = calloc(nodes, sizeof *plan->items);
    if (!parent || !number || !plan->items) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for the items of the plan");
        goto out;
    }
    for (uint32_t n = 0; n < nodes; n++)
        parent[n] = n;
    for (uint32_t slot = 0; slot < plan->slot_count; slot++) {
        uint32_t rule, layer, index;
        if (plan->places[slot].file == K3_FILE_NONE ||
            !k3_plan_slot(plan, slot, &rule, &layer, &index))
            continue;
        join(parent, k3_rule_part(&plan->config, &plan->config.model->rules[rule], layer),
             parts + plan->places[slot].file);
    }
    for (uint32_t n = 0; n < nodes; n++) {
        uint32_t root = find_root(parent, n);
        if (root == n)
            number[n] = plan->item_count++;
        struct k3_item *item = &plan->items[number[root]];
        rc = n < parts ? push(&item->parts, &item->part_count, n, err)
                       : push(&item->files, &item->file_count, n - parts, err);
        if (rc)
            goto out;
    }
out:
    free(parent);
    free(number);
    return rc;
}

static void put_digest(struct k3_text *text, const char *name, const uint8_t *digest)
{
    char hex[K3_HEX_BYTES];
    k3_hex_encode(digest, K3_DIGEST_BYTES, hex);
    k3_text_putf(text, "\"%s\":\"%s\"", name, hex);
}

static int check_printable(const char *what, const char *value, struct k3_err *err)
{
    for (const char *p = value; *p; p++)
        if (*p < 0x20 || *p > 0x7e)
            return k3_fail(err, K3_EFORMAT, "%s has a character beyond printable ASCII: %.64s",
                           what, value);
    return 0;
}

static void emit(const struct k3_plan *plan, struct k3_text *text)
{
    k3_text_puts(text, "{\"architecture\":");
    k3_text_put_json(text, plan->config.model->architecture);
    k3_text_puts(text, ",\"config\":");
    k3_config_encode_plan(&plan->config, text);
    k3_text_puts(text, ",");
    put_digest(text, "config_sha256", plan->config_sha256);
    k3_text_puts(text, ",\"format\":\"k3-plan\",\"headers\":[");
    for (uint32_t i = 0; i < plan->source_count; i++) {
        const struct k3_source *source = &plan->sources[i];
        k3_text_putf(text, "%s{\"bytes\":%llu,\"header_bytes\":%llu,\"name\":", i ? "," : "",
                     (unsigned long long)source->bytes, (unsigned long long)source->header_bytes);
        k3_text_put_json(text, source->name);
        k3_text_puts(text, ",");
        put_digest(text, "sha256", source->header_sha256);
        k3_text_puts(text, "}");
    }
    k3_text_puts(text, "],");
    put_digest(text, "index_sha256", plan->index_sha256);
    k3_text_puts(text, ",\"layout\":");
    k3_layout_encode_plan(&plan->layout, text);
    char policy[K3_POLICY_TEXT_BYTES];
    k3_policy_text(&plan->policy, policy);
    k3_text_puts(text, ",\"policy\":");
    k3_text_put_json(text, policy);
    k3_text_puts(text, ",\"repository\":");
    k3_text_put_json(text, plan->repository);
    k3_text_puts(text, ",\"revision\":");
    k3_text_put_json(text, plan->revision);
    k3_text_puts(text, ",\"version\":0}");
}

/* Emit the text and take its digest. */
static int make_text(struct k3_plan *plan, struct k3_err *err)
{
    struct k3_text text;
    struct k3_sha256 *sha = NULL;
    k3_text_init(&text);
    emit(plan, &text);
    int rc = k3_text_check(&text, err);
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (!rc) {
        k3_sha256_of(sha, text.data, text.bytes, plan->digest);
        free(plan->text);
        plan->text = text.data;
        plan->text_bytes = text.bytes;
        k3_text_init(&text);
    }
    k3_sha256_close(sha);
    k3_text_fini(&text);
    return rc;
}

int k3_plan_finish(struct k3_plan *plan, struct k3_err *err)
{
    int rc = make_items(plan, err);
    if (!rc)
        rc = check_printable("--revision", plan->revision, err);
    if (!rc)
        rc = check_printable("the repository name", plan->repository, err);
    return rc ? rc : make_text(plan, err);
}

int k3_plan_part_items(const struct k3_plan *plan, uint32_t **items, struct k3_err *err)
{
    const uint32_t parts = k3_config_part_count(&plan->config);
    *items = calloc(parts, sizeof **items);
    if (!*items)
        return k3_fail(err, K3_ENOMEM, "no memory for the items of %" PRIu32 " parts", parts);
    for (uint32_t item = 0; item < plan->item_count; item++)
        for (uint32_t p = 0; p < plan->items[item].part_count; p++)
            (*items)[plan->items[item].parts[p]] = item;
    return 0;
}

/* ---- the other way round ---- */

static int malformed(const char *what, struct k3_err *err)
{
    return k3_fail(err, K3_EFORMAT, "plan: %s is not of the form this version writes", what);
}

static bool read_digest(const struct k3_doc *object, const char *name, uint8_t *digest)
{
    const struct k3_doc *value = k3_doc_find(object, name);
    const char *hex = value ? k3_doc_string(value) : NULL;
    return hex && strlen(hex) == 2 * K3_DIGEST_BYTES && k3_hex_decode(hex, K3_DIGEST_BYTES, digest);
}

/* One source file; *before is the name of the one in front of it. */
static int read_header_row(struct k3_plan *plan, const struct k3_doc *row, const char **before,
                           struct k3_err *err)
{
    struct k3_source source = {0};
    const struct k3_doc *name = k3_doc_find(row, "name"), *bytes = k3_doc_find(row, "bytes"),
                        *header_bytes = k3_doc_find(row, "header_bytes");
    const char *text = name ? k3_doc_string(name) : NULL;
    if (!text || !k3_is_plain_name(text) || !bytes || !k3_doc_integer(bytes, &source.bytes) ||
        !header_bytes || !k3_doc_integer(header_bytes, &source.header_bytes) ||
        source.header_bytes > source.bytes || !read_digest(row, "sha256", source.header_sha256) ||
        strcmp(*before, text) >= 0)
        return malformed("an entry of headers", err);
    source.name = strdup(text);
    if (!source.name)
        return k3_fail(err, K3_ENOMEM, "no memory for the plan");
    plan->sources[plan->source_count++] = source;
    *before = source.name;
    return 0;
}

static int read_rest(struct k3_plan *plan, const struct k3_doc *root, struct k3_err *err)
{
    const struct k3_doc *headers = k3_doc_find(root, "headers"),
                        *repository = k3_doc_find(root, "repository"),
                        *revision = k3_doc_find(root, "revision");
    const char *from = repository ? k3_doc_string(repository) : NULL;
    const char *at = revision ? k3_doc_string(revision) : NULL;
    uint32_t count = headers && k3_doc_is_array(headers) ? k3_doc_count(headers) : 0;
    if (!count || count > K3_FILE_COUNT_MAX || !from || !at)
        return malformed("headers, repository or revision", err);
    if (!read_digest(root, "config_sha256", plan->config_sha256) ||
        !read_digest(root, "index_sha256", plan->index_sha256))
        return malformed("config_sha256 or index_sha256", err);
    free(plan->repository);
    free(plan->revision);
    plan->repository = strdup(from);
    plan->revision = strdup(at);
    plan->sources = calloc(count, sizeof *plan->sources);
    if (!plan->repository || !plan->revision || !plan->sources)
        return k3_fail(err, K3_ENOMEM, "no memory for the plan");
    const char *before = "";
    int rc = 0;
    for (const struct k3_doc *row = k3_doc_first(headers); row && !rc; row = k3_doc_next(row))
        rc = read_header_row(plan, row, &before, err);
    return rc;
}

/* What does not parse, or cannot be done, was not written by this program. */
static int read_policy(const struct k3_doc *root, struct k3_policy *policy, struct k3_err *err)
{
    const struct k3_doc *value = k3_doc_find(root, "policy");
    const char *text = value ? k3_doc_string(value) : NULL;
    struct k3_err ignored;
    k3_err_init(&ignored);
    k3_policy_init(policy);
    if (!text || (strcmp(text, "verbatim") && !strchr(text, '=')) ||
        k3_policy_parse(text, policy, &ignored))
        return malformed("policy", err);
    policy->asked_roles = 0; /* whoever asked was answered: a name may have stood for these */
    return 0;
}

/* Policy and layout on the configuration: what is refused here, no plan has. */
static int open_decoded(const struct k3_doc *root, const struct k3_config *config,
                        const struct k3_layout *layout, struct k3_plan **plan, struct k3_err *err)
{
    struct k3_policy policy;
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = read_policy(root, &policy, err);
    if (rc)
        return rc;
    rc = k3_plan_open(config, layout, &policy, plan, &inner);
    if (rc == K3_EUSAGE || rc == K3_EUNSUPPORTED)
        return k3_fail(err, K3_EFORMAT, "plan: its policy does not fit its model: %s", inner.text);
    return rc ? k3_fail_as(err, &inner) : 0;
}

int k3_plan_decode(const char *text, size_t bytes, struct k3_plan **out, struct k3_err *err)
{
    struct k3_doc *root = NULL;
    struct k3_config config;
    struct k3_layout layout;
    struct k3_plan *plan = NULL;
    *out = NULL;
    int rc = k3_doc_decode("plan", text, bytes, &root, err);
    if (rc)
        return rc;
    const struct k3_doc *name = k3_doc_find(root, "architecture"),
                        *config_doc = k3_doc_find(root, "config"),
                        *layout_doc = k3_doc_find(root, "layout");
    const char *architecture = name ? k3_doc_string(name) : NULL;
    const struct k3_model *model = architecture ? k3_model_find(architecture) : NULL;
    if (!architecture || !config_doc || !layout_doc)
        rc = malformed("architecture, config or layout", err);
    else if (!model)
        rc = k3_fail(err, K3_EUNSUPPORTED, "plan: no rules for architecture %.64s in this build",
                     architecture);
    if (!rc)
        rc = k3_config_decode_plan(config_doc, model, &config, err);
    if (!rc)
        rc = k3_layout_decode_plan(layout_doc, &config, &layout, err);
    if (!rc)
        rc = open_decoded(root, &config, &layout, &plan, err);
    if (!rc)
        rc = read_rest(plan, root, err);
    if (!rc)
        rc = make_text(plan, err);
    if (!rc && (plan->text_bytes != bytes || memcmp(plan->text, text, bytes)))
        rc = malformed("some member", err); /* what was understood is not all that is there */
    k3_doc_free(root);
    if (rc)
        k3_plan_close(plan);
    else
        *out = plan;
    return rc;
}
