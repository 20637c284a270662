/* Purpose: the plan command: what a layout costs, before anything is written.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: as k3_ckpt_open; K3_EUNSUPPORTED when it does not divide or does not fit.
 * Invariant: every number comes from the plan that convert obeys. */
#include "advice.h"
#include "ckpt.h"
#include "cmds.h"
#include "convert.h"
#include "doc.h"
#include "part.h"
#include "sizes.h"
#include "splits.h"
#include "talk.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of GPUs that serve K3, as their makers state it. */
static const struct {
    const char *name;
    uint64_t bytes;
} gpus[] = {
    {"H100 80 GiB", 80ull << 30},  {"H200 141 GB", 141000000000},
    {"B200 180 GB", 180000000000}, {"MI300X 192 GiB", 192ull << 30},
    {"B300 288 GB", 288000000000}, {"MI355X 288 GiB", 288ull << 30},
};

struct plan_view {
    const struct k3_plan *plan;
    struct k3_rank_sizes *ranks; /* owned by the caller */
    uint64_t file_bytes;         /* of the sources */
    uint64_t image_bytes;        /* of all ranks */
    uint64_t disk_bytes;         /* of all part files */
    uint64_t budget_bytes;
    uint32_t world;
    bool fits;
    struct k3_splits splits;
};

static bool add_rank(struct k3_doc *list, uint32_t rank, const struct k3_rank_sizes *sizes)
{
    struct k3_doc *row = k3_doc_add_object(list, NULL);
    return row && k3_doc_add_integer(row, "rank", rank) &&
           k3_doc_add_integer(row, "image_bytes", sizes->image_bytes) &&
           k3_doc_add_integer(row, "read_bytes", sizes->read_bytes) &&
           k3_doc_add_integer(row, "replicated_bytes", sizes->replicated_bytes) &&
           k3_doc_add_integer(row, "pad_bytes", sizes->image_bytes - sizes->read_bytes) &&
           k3_doc_add_integer(row, "parts", sizes->part_count);
}

static bool same_sizes(const struct k3_rank_sizes *a, const struct k3_rank_sizes *b)
{
    return a->image_bytes == b->image_bytes && a->read_bytes == b->read_bytes &&
           a->replicated_bytes == b->replicated_bytes && a->part_count == b->part_count;
}

static void print_ranks(const struct plan_view *view)
{
    printf("\n%-12s %6s %15s %15s %15s %13s\n", "ranks", "parts", "image bytes", "of tensors",
           "replicated", "pads");
    for (uint32_t r = 0, end; r < view->world; r = end) {
        const struct k3_rank_sizes *sizes = &view->ranks[r];
        for (end = r + 1; end < view->world && same_sizes(sizes, &view->ranks[end]);)
            end++;
        char name[32];
        snprintf(name, sizeof name, end == r + 1 ? "%u" : "%u-%u", r, end - 1);
        printf("%-12s %6u %15s %15s %15s %13s\n", name, sizes->part_count,
               k3_count_text(sizes->image_bytes).s, k3_count_text(sizes->read_bytes).s,
               k3_count_text(sizes->replicated_bytes).s,
               k3_count_text(sizes->image_bytes - sizes->read_bytes).s);
    }
}

static void print_roles(const struct plan_view *view)
{
    uint64_t sum[K3_ROLE_COUNT] = {0};
    for (uint32_t r = 0; r < view->world; r++)
        for (unsigned role = 0; role < K3_ROLE_COUNT; role++)
            sum[role] += view->ranks[r].role_bytes[role];
    printf("\nby role, all ranks");
    const char *separator = ": ";
    for (unsigned role = 0; role < K3_ROLE_COUNT; role++)
        if (sum[role]) {
            printf("%s%s %s", separator, k3_role_name(role), k3_size_short(sum[role]).s);
            separator = ", ";
        }
    printf("\n");
}

/* Which tp sizes divide with the other options as they are. */
static void print_sizes(const struct plan_view *view)
{
    const struct k3_plan *plan = view->plan;
    struct k3_layout trial = plan->layout;
    struct k3_err ignored;
    k3_err_init(&ignored);
    printf("tp sizes that divide:");
    for (trial.tp = 1; trial.tp <= 1024; trial.tp++) /* as k3_layout_resolve says */
        if (k3_layout_divides(&trial, &plan->config) &&
            !k3_policy_check(&plan->policy, &plan->config, &trial, &ignored))
            printf(" %u", trial.tp);
    printf("\n");
}

/* What engines add: vLLM without EP gives a rank at least 256 columns of every expert. */
static void print_engines(const struct plan_view *view)
{
    const uint64_t *v = view->plan->config.value;
    const struct k3_layout *layout = &view->plan->layout;
    uint32_t group = layout->tp * layout->dp;
    uint64_t columns = v[K3_V_MOE_WIDTH] / group;
    if (layout->experts_ep || columns >= 256 || v[K3_V_FIRST_DENSE] >= v[K3_V_LAYERS])
        return;
    uint64_t experts = view->ranks[0].role_bytes[K3_ROLE_EXPERTS];
    printf("engines: vLLM pads experts to 256 columns a rank without EP: %s instead of %s of "
           "experts on rank 0\n",
           k3_size_short(experts / columns * 256).s, k3_size_short(experts).s);
}

static void print_gpus(uint64_t largest)
{
    bool any = false;
    printf("GPUs whose memory holds it (before what the engine itself needs): ");
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        if (gpus[i].bytes < largest)
            continue;
        printf("%s%s", any ? ", " : "", gpus[i].name);
        any = true;
    }
    printf("%s\n", any ? "" : "none known here");
}

/* What each policy with a name would make of the largest image in this layout; false where it
 * cannot be carried out. */
static bool price(const struct plan_view *view, uint32_t i, uint64_t *image_bytes)
{
    const struct k3_plan *plan = view->plan;
    struct k3_policy policy;
    struct k3_err ignored;
    uint32_t rank;
    k3_err_init(&ignored);
    k3_policy_init(&policy);
    if (k3_policy_parse(k3_policy_name(i, NULL), &policy, &ignored) ||
        k3_policy_check(&policy, &plan->config, &plan->layout, &ignored))
        return false;
    *image_bytes = k3_largest_image(&plan->config, &plan->layout, &policy, &rank);
    return true;
}

static void print_prices(const struct plan_view *view)
{
    printf("\n%-12s %15s  %s\n", "--quant", "largest image", "in the budget");
    for (uint32_t i = 0; k3_policy_name(i, NULL); i++) {
        uint64_t bytes;
        if (!price(view, i, &bytes))
            printf("%-12s %15s  does not divide: plan --quant %s says what does\n",
                   k3_policy_name(i, NULL), "-", k3_policy_name(i, NULL));
        else
            printf("%-12s %15s  %s\n", k3_policy_name(i, NULL), k3_count_text(bytes).s,
                   bytes <= view->budget_bytes ? "fits" : "does not fit");
    }
    printf("\n");
}

static bool add_prices(struct k3_doc *list, const struct plan_view *view)
{
    bool good = true;
    for (uint32_t i = 0; k3_policy_name(i, NULL) && good; i++) {
        struct k3_doc *row = k3_doc_add_object(list, NULL);
        uint64_t bytes;
        good = row && k3_doc_add_string(row, "policy", k3_policy_name(i, NULL));
        bool divides = price(view, i, &bytes);
        good = good && k3_doc_add_bool(row, "divides", divides);
        if (divides)
            good = good && k3_doc_add_integer(row, "largest_image_bytes", bytes) &&
                   k3_doc_add_bool(row, "fits", bytes <= view->budget_bytes);
    }
    return good;
}

static int print_json(const struct plan_view *view, struct k3_err *err)
{
    struct k3_doc *root = k3_doc_new_object();
    char policy[K3_POLICY_TEXT_BYTES], digest[K3_HEX_BYTES];
    bool good = root && k3_doc_add_integer(root, "tensor_count", view->plan->tensor_count) &&
                k3_doc_add_integer(root, "checkpoint_bytes", view->plan->tensor_bytes) &&
                k3_doc_add_integer(root, "file_bytes", view->file_bytes) &&
                k3_doc_add_bool(root, "fits", view->fits) &&
                k3_doc_add_integer(root, "items", view->plan->item_count) &&
                k3_doc_add_integer(root, "disk_bytes", view->disk_bytes);
    k3_hex_encode(view->plan->digest, K3_DIGEST_BYTES, digest);
    k3_policy_text(&view->plan->policy, policy);
    good = good && k3_doc_add_string(root, "plan_sha256", digest) &&
           k3_doc_add_string(root, "policy", policy);
    struct k3_doc *list = good ? k3_doc_add_array(root, "ranks") : NULL;
    good = good && list;
    for (uint32_t r = 0; r < view->world && good; r++)
        good = add_rank(list, r, &view->ranks[r]);
    list = good ? k3_doc_add_array(root, "policies") : NULL;
    good = list && add_prices(list, view);
    good = good && k3_splits_add(root, &view->splits);
    int rc = good ? k3_result_print(root, err)
                  : k3_fail(err, K3_ENOMEM, "no memory for the plan's report");
    k3_doc_free(root);
    return rc;
}

/* The command that does what was planned. */
static int print_next(const struct k3_plan *plan, const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_text line;
    k3_text_init(&line);
    k3_text_puts(&line, "next: k3-shard convert ");
    k3_text_put_quoted(&line, opts->args.item[0]);
    k3_text_puts(&line, " --out DIR");
    k3_layout_put_options(&plan->layout, &line);
    /* What casts nothing is left out: the notice said that it has no use. */
    if (k3_policy_casts(&plan->policy, &plan->config)) {
        if (k3_opt_is_set(opts, K3_ID_QUANT)) {
            k3_text_puts(&line, " --quant ");
            k3_text_put_in_quotes(&line, opts->quant);
        }
        if (k3_opt_is_set(opts, K3_ID_OOW))
            k3_text_putf(&line, " --oow %s", k3_opt_choice_name(K3_ID_OOW, opts->oow));
        if (k3_opt_is_set(opts, K3_ID_CONFIG))
            k3_text_putf(&line, " --config %s", k3_opt_choice_name(K3_ID_CONFIG, opts->config));
    }
    k3_budget_put_option(opts->budget_bytes, &line);
    int rc = k3_text_check(&line, err);
    if (!rc)
        puts(line.data);
    k3_text_fini(&line);
    return rc;
}

static int print_text(const struct plan_view *view, const struct k3_opts *opts, struct k3_err *err)
{
    const struct k3_plan *plan = view->plan;
    char layout[512], digest[K3_HEX_BYTES];
    uint32_t rank;
    uint64_t largest = k3_largest_image(&plan->config, &plan->layout, &plan->policy, &rank);
    char policy[K3_POLICY_TEXT_BYTES];
    k3_layout_describe(&plan->layout, layout, sizeof layout);
    k3_policy_short_text(&plan->policy, policy);
    k3_hex_encode(plan->digest, K3_DIGEST_BYTES, digest);
    printf("checkpoint  %s: %s tensors, %s in %u files of %s\n", plan->config.model->architecture,
           k3_count_text(plan->tensor_count).s, k3_size_text(plan->tensor_bytes).s,
           plan->source_count, k3_size_short(view->file_bytes).s);
    printf("layout      %s\n", layout);
    if (!k3_policy_is_verbatim(&plan->policy))
        printf("policy      %s\n", policy);
    printf("plan        %s, %u items\n", digest, plan->item_count);
    print_ranks(view);
    print_roles(view);
    printf("largest image: rank %u, %s; budget %s: %s\n", rank, k3_size_text(largest).s,
           k3_size_text(opts->budget_bytes).s, view->fits ? "fits" : "does not fit");
    print_gpus(largest);
    print_prices(view);
    print_engines(view);
    k3_splits_print(&view->splits);
    print_sizes(view);
    uint64_t part_count = 0, pad_bytes = 0;
    for (uint32_t r = 0; r < view->world; r++) {
        part_count += view->ranks[r].part_count;
        pad_bytes += view->ranks[r].image_bytes - view->ranks[r].read_bytes;
    }
    printf(
        "disk: %s in %s part files, at the peak too, %s of it pads that are not written; memory: "
        "up to %s of buffers; locked memory: none\n",
        k3_size_text(view->disk_bytes).s, k3_count_text(part_count).s, k3_size_short(pad_bytes).s,
        k3_size_text(K3_CONVERT_MEMORY_BYTES).s);
    int rc = view->fits ? print_next(plan, opts, err) : 0;
    if (!rc && opts->rate_bytes_per_second) {
        uint64_t moved = view->file_bytes + 2 * view->disk_bytes; /* read, write, read back */
        printf(
            "time: %s at %s for reads and writes together\n",
            k3_time_text((uint64_t)((double)moved / (double)opts->rate_bytes_per_second * 1e9)).s,
            k3_rate_text(opts->rate_bytes_per_second, 1000000000).s);
    }
    return rc;
}

/* Exact sizes of part files: headers of the first rank of each stage are laid out; others of the
 * stage differ only in digits of expert numbers, which the padding to 512 KiB absorbs. */
static int count_disk(struct plan_view *view, struct k3_err *err)
{
    const struct k3_plan *plan = view->plan;
    int rc = 0;
    for (uint32_t stage = 0; stage < plan->layout.pp && !rc; stage++)
        for (uint32_t p = 0; p < k3_config_part_count(&plan->config) && !rc; p++) {
            struct k3_part part;
            struct k3_text header;
            k3_text_init(&header);
            rc = k3_part_build(plan, stage * plan->layout.tp, p, &part, err);
            if (!rc && part.data_bytes)
                rc = k3_part_header(plan, &part, &header, err);
            view->disk_bytes += (uint64_t)header.bytes * plan->layout.tp * plan->layout.dp;
            k3_part_fini(&part);
            k3_text_fini(&header);
        }
    view->disk_bytes += view->image_bytes;
    return rc;
}

static int report(const struct k3_opts *opts, struct plan_view *view, struct k3_err *err)
{
    const struct k3_plan *plan = view->plan;
    view->ranks = calloc(view->world, sizeof *view->ranks);
    if (!view->ranks)
        return k3_fail(err, K3_ENOMEM, "no memory for %u ranks", view->world);
    for (uint32_t i = 0; i < plan->source_count; i++)
        view->file_bytes += plan->sources[i].bytes;
    for (uint32_t r = 0; r < view->world; r++) {
        k3_rank_sizes(&plan->config, &plan->layout, &plan->policy, r, &view->ranks[r]);
        view->image_bytes += view->ranks[r].image_bytes;
    }
    uint32_t rank;
    view->fits = k3_largest_image(&plan->config, &plan->layout, &plan->policy, &rank) <=
                 opts->budget_bytes;
    k3_splits_find(plan, &view->splits);
    int rc = count_disk(view, err);
    if (rc)
        return rc;
    if (opts->json)
        rc = print_json(view, err);
    else
        rc = print_text(view, opts, err);
    if (!rc)
        rc = k3_check_budget(plan, opts->budget_bytes, err);
    return rc;
}

int k3_cmd_plan(const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_ckpt *ckpt = NULL;
    struct k3_problems problems;
    struct k3_layout layout;
    struct plan_view view = {0};
    k3_problems_init(&problems);
    struct k3_policy policy;
    int rc = k3_layout_from_opts(opts, &layout, err);
    if (!rc)
        rc = k3_policy_from_opts(opts, &policy, err);
    struct k3_ckpt_options options = {
        .path = opts->args.item[0], .layout = &layout, .policy = &policy};
    if (!rc)
        rc = k3_ckpt_open(&options, &ckpt, &problems, err);
    if (rc) {
        k3_say_problems(&problems);
        goto out;
    }
    k3_say_policy(opts, ckpt->plan);
    view.plan = ckpt->plan;
    view.budget_bytes = opts->budget_bytes;
    view.world = k3_layout_world(&ckpt->plan->layout);
    rc = report(opts, &view, err);
out:
    free(view.ranks);
    k3_ckpt_close(ckpt);
    k3_problems_fini(&problems);
    return rc;
}
