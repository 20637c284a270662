/* Purpose: fuzz target: the report of a set's casts, over a small model.  The input is what stands
 * behind the beginning, which follows from the set.
 * Owns: the plan, made once.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: rows that are accepted are by slot, each once, each of a matrix that the
 * policy casts; each, written again, is a line of the report, and is found by its name; what is
 * held against all parts is whole or refused. */
#include "fuzz.h"

#include "cast_held.h"
#include "cast_report_read.h"
#include "doc.h"
#include "synth.h"

#include <stdlib.h>
#include <string.h>

#define POLICY   "attention=fp8-block,dense=mxfp8,head=int4-g32"
#define PART_MAX 64u /* the model has far fewer parts */

static struct k3_plan *plan;
static struct k3_ranks ranks;
static struct k3_part_entry parts[PART_MAX];
static uint32_t items[PART_MAX]; /* each part is one */

static void make_plan(void)
{
    static struct k3_config config;
    const struct k3_synth_options options = {
        .preset = K3_SYNTH_TINY, .layer_count = K3_SYNTH_LAYER_COUNT_MIN, .expert_count = 16};
    struct k3_problems problems;
    struct k3_layout layout;
    struct k3_policy policy;
    struct k3_text text;
    struct k3_doc *root;
    struct k3_err err;
    if (plan)
        return;
    k3_text_init(&text);
    k3_err_init(&err);
    k3_problems_init(&problems);
    k3_synth_config_encode(&options, &text);
    FUZZ_CHECK(k3_doc_decode("config.json", text.data, text.bytes, &root, &err) == 0);
    FUZZ_CHECK(k3_config_decode(root, &config, &problems, &err) == 0);
    k3_policy_init(&policy);
    FUZZ_CHECK(k3_policy_parse(POLICY, &policy, &err) == 0);
    k3_layout_init(&layout);
    layout.tp = 1;
    FUZZ_CHECK(k3_layout_resolve(&layout, &config, &err) == 0);
    FUZZ_CHECK(k3_plan_open(&config, &layout, &policy, &plan, &err) == 0);
    FUZZ_CHECK(k3_config_part_count(&config) <= PART_MAX);
    for (uint32_t p = 0; p < k3_config_part_count(&config); p++)
        parts[p].part = items[p] = p;
    k3_ranks_fill(&ranks, 1);
    k3_doc_free(root);
    k3_text_fini(&text);
    k3_problems_fini(&problems);
}

static void check_row(const struct k3_cast_report *report, const struct k3_cast_row *row)
{
    char name[K3_ST_NAME_BYTES_MAX + 1];
    struct k3_cast_row again;
    struct k3_text line;
    struct k3_err err;
    bool found = false;
    k3_err_init(&err);
    k3_text_init(&line);
    FUZZ_CHECK(k3_cast_row_check(row) == NULL && k3_cast_row_misfit(plan, row) == NULL);
    k3_cast_report_row(plan, row, true, &line);
    FUZZ_CHECK(memmem(report->text, report->bytes, line.data, line.bytes) != NULL);
    k3_plan_slot_name(plan, row->slot, name, sizeof name);
    FUZZ_CHECK(k3_cast_report_find(report, name, &again, &found, &err) == 0 && found);
    FUZZ_CHECK(again.slot == row->slot && again.value_count == row->value_count);
    k3_text_fini(&line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct k3_cast_summary summary;
    struct k3_cast_row *rows;
    struct k3_text text;
    struct k3_err err;
    uint32_t count;
    make_plan();
    k3_text_init(&text);
    k3_cast_report_begin(plan, &ranks, &text);
    k3_text_put(&text, (const char *)data, bytes);
    /* A block of its own: what is read behind it is seen. */
    char *copy = fuzz_string((const uint8_t *)text.data, text.bytes);
    const struct k3_cast_report report = {.plan = plan,
                                          .ranks = &ranks,
                                          .items = items,
                                          .file = "report",
                                          .text = copy,
                                          .bytes = text.bytes};
    k3_err_init(&err);
    int rc = k3_cast_report_decode(&report, &summary, &rows, &count, &err);
    fuzz_check_err(rc, &err, text.bytes);
    FUZZ_CHECK(rc == 0 || (rc == K3_ECORRUPT && !rows && !count));
    for (uint32_t i = 0; i < count; i++) {
        FUZZ_CHECK(i == 0 || rows[i - 1].slot < rows[i].slot);
        check_row(&report, &rows[i]);
    }
    if (!rc) {
        const struct k3_cast_parts all = {plan, parts, k3_config_part_count(&plan->config)};
        const struct k3_cast_list list = {rows, count, "report", "next"};
        rc = k3_cast_check(&all, &list, &err);
        fuzz_check_err(rc, &err, 0);
        FUZZ_CHECK(rc == K3_ECORRUPT || (rc == 0 && count == k3_cast_count(plan)));
    }
    free(rows);
    free(copy);
    k3_text_fini(&text);
    return 0;
}
