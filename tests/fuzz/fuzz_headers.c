/* Purpose: fuzz target: the content of source-headers.zst, and the plan that is made of it: config,
 * index and headers of a checkpoint as a whole.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: entries lie in the content, and written again they are the content; every
 * problem of a checkpoint is a problem, never a crash; a plan that is finished reads as the same
 * plan. */
#include "fuzz.h"

#include "bytes.h"
#include "doc.h"
#include "plan.h"
#include "source_headers.h"

#include <string.h>

/* A config may describe millions of tensors by a few digits; a plan then takes their time. */
#define TENSORS_MAX 4000u

static void check_emit(const struct k3_source_headers *headers, const char *content, size_t bytes)
{
    struct k3_text again;
    k3_text_init(&again);
    k3_source_headers_begin(&again);
    for (uint32_t i = 0; i < headers->count; i++) {
        const struct k3_header_entry *entry = &headers->entries[i];
        FUZZ_CHECK(entry->data > content && entry->data + entry->bytes < content + bytes);
        k3_source_headers_line(entry->name, entry->bytes, &again);
        k3_text_put(&again, entry->data, entry->bytes);
        k3_text_puts(&again, "\n");
    }
    FUZZ_CHECK(again.bytes == bytes && !memcmp(again.data, content, bytes));
    k3_text_fini(&again);
}

/* The configuration of the checkpoint; false where it has none that is small enough. */
static bool read_config(const struct k3_header_entry *entry, struct k3_config *config)
{
    struct k3_problems problems;
    struct k3_doc *root;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_doc_decode(entry->name, entry->data, entry->bytes, &root, &err);
    fuzz_check_err(rc, &err, entry->bytes);
    if (rc)
        return false;
    k3_problems_init(&problems);
    rc = k3_config_decode(root, config, &problems, &err);
    fuzz_check_err(rc, &err, entry->bytes);
    k3_problems_fini(&problems);
    k3_doc_free(root);
    if (rc)
        return false;
    uint64_t tensors = (uint64_t)config->layer_count * config->value[K3_V_EXPERTS];
    return tensors <= TENSORS_MAX && config->value[K3_V_VT_LAYERS] <= TENSORS_MAX &&
           config->layer_count <= 64;
}

static void add_file(struct k3_plan *plan, const struct k3_header_entry *entry,
                     struct k3_problems *problems)
{
    struct k3_source source = {.name = entry->name, .header_bytes = entry->bytes};
    struct k3_st *st = NULL;
    struct k3_err err;
    k3_err_init(&err);
    /* As large as the header says: find out by asking for more than there can be. */
    uint64_t data_bytes = 0;
    for (int round = 0; round < 2; round++) {
        k3_err_init(&err);
        source.bytes = entry->bytes + data_bytes;
        int rc = k3_st_decode(entry->name, entry->data, entry->bytes, source.bytes, &st, &err);
        fuzz_check_err(rc, &err, INT64_MAX); /* a hole is where the header says */
        const char *at = rc == K3_ECORRUPT ? strstr(err.text, "the header describes ") : NULL;
        for (at = at ? at + 21 : ""; *at >= '0' && *at <= '9'; at++)
            data_bytes = data_bytes * 10 + (uint64_t)(*at - '0');
        if (rc != K3_ECORRUPT || data_bytes >= UINT64_C(1) << 60)
            break;
    }
    k3_err_init(&err);
    int rc = k3_plan_add_file(plan, &source, st, problems, &err);
    fuzz_check_err(rc, &err, 0);
    k3_st_free(st);
}

static void check_finished(struct k3_plan *plan)
{
    struct k3_plan *again;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_plan_finish(plan, &err);
    fuzz_check_err(rc, &err, 0);
    FUZZ_CHECK(rc == 0);
    uint64_t parts = 0, files = 0;
    for (uint32_t i = 0; i < plan->item_count; i++) {
        parts += plan->items[i].part_count;
        files += plan->items[i].file_count;
    }
    FUZZ_CHECK(parts == k3_config_part_count(&plan->config) && files == plan->source_count);
    rc = k3_plan_decode(plan->text, plan->text_bytes, &again, &err);
    fuzz_check_err(rc, &err, plan->text_bytes);
    FUZZ_CHECK(rc == 0 && !memcmp(plan->digest, again->digest, sizeof plan->digest));
    k3_plan_close(again);
}

static void make_plan(const struct k3_source_headers *headers)
{
    const struct k3_header_entry *index = &headers->entries[1];
    struct k3_config config;
    struct k3_layout layout;
    struct k3_problems problems;
    struct k3_plan *plan = NULL;
    struct k3_err err;
    k3_err_init(&err);
    k3_layout_init(&layout);
    layout.tp = 1;
    if (!read_config(&headers->entries[0], &config) || k3_layout_resolve(&layout, &config, &err))
        return;
    k3_problems_init(&problems);
    int rc = k3_plan_open(&config, &layout, NULL, &plan, &err);
    fuzz_check_err(rc, &err, 0);
    FUZZ_CHECK(rc == 0);
    for (uint32_t i = 2; i < headers->count; i++)
        add_file(plan, &headers->entries[i], &problems);
    rc = k3_plan_add_index(plan, index->name, index->data, index->bytes, &problems, &err);
    fuzz_check_err(rc, &err, index->bytes);
    k3_plan_check(plan, &problems);
    for (uint32_t slot = 0; slot < plan->slot_count; slot++) {
        char name[K3_ST_NAME_BYTES_MAX + 1];
        uint32_t rule, layer, number;
        if (!k3_plan_slot(plan, slot, &rule, &layer, &number))
            continue;
        k3_plan_slot_name(plan, slot, name, sizeof name);
        FUZZ_CHECK(k3_plan_find(plan, name, strlen(name)) == slot);
    }
    check_finished(plan);
    k3_plan_close(plan);
    k3_problems_fini(&problems);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *content = (const char *)data;
    struct k3_source_headers headers;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_source_headers_decode("fuzz", content, bytes, &headers, &err);
    fuzz_check_err(rc, &err, bytes);
    if (!rc) {
        FUZZ_CHECK(headers.count >= 3);
        check_emit(&headers, content, bytes);
        make_plan(&headers);
    }
    k3_source_headers_fini(&headers);
    return 0;
}
