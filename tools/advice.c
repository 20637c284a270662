/* Purpose: judge a layout against the memory of a GPU and name layouts that would fit.
 * Owns: nothing.
 * Threads: any.
 * Errors: K3_EUSAGE (pp-layers count), K3_EUNSUPPORTED (does not fit).
 * Invariant: advice is computed by the same function as the plan, never guessed. */
#include "advice.h"

#include "fs.h"
#include "sizes.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define POLICY_BYTES_MAX (1u << 20) /* 64 patterns take 10 KB */
#define ADVICE_COUNT     4u         /* enough to choose from, short enough for one sentence */

int k3_layout_from_opts(const struct k3_opts *opts, struct k3_layout *layout, struct k3_err *err)
{
    static const uint8_t vision[] = {K3_VISION_REPLICATE, K3_VISION_FIRST, K3_VISION_DROP};
    k3_layout_init(layout);
    layout->tp = opts->tp;
    layout->dp = opts->dp;
    layout->pp = opts->pp;
    layout->experts_ep = opts->experts == K3_OPT_EXPERTS_EP;
    layout->shared_replicate = opts->shared == K3_OPT_SHARED_REPLICATE;
    layout->vision = vision[opts->vision];
    if (!opts->pp_layers.count)
        return 0;
    if (opts->pp_layers.count != opts->pp || opts->pp > K3_STAGE_COUNT_MAX)
        return k3_fail(err, K3_EUSAGE,
                       "--pp-layers has %u numbers, --pp is %u: give one for each stage",
                       opts->pp_layers.count, opts->pp);
    memcpy(layout->stage_layers, opts->pp_layers.item, opts->pp * sizeof layout->stage_layers[0]);
    return 0;
}

/* The file may lie anywhere: split its path into folder and name. */
static int load_policy(const char *path, char **text, size_t *bytes, struct k3_err *err)
{
    struct k3_dir dir = {.fd = -1};
    const char *slash = strrchr(path, '/');
    size_t folder_bytes = slash ? (size_t)(slash - path) : 0;
    while (folder_bytes > 1 && path[folder_bytes - 1] == '/')
        folder_bytes--;
    struct stat stat_;
    if (!stat(path, &stat_) && !S_ISREG(stat_.st_mode)) /* a pipe would be waited for */
        return k3_fail(err, K3_EUSAGE,
                       "--quant %s: not a regular file; wanted one that holds a policy, like "
                       "{\"experts\": \"nvfp4\"}",
                       path);
    if (!stat(path, &stat_) && (uint64_t)stat_.st_size > POLICY_BYTES_MAX)
        return k3_fail(err, K3_EUSAGE,
                       "--quant %s: %llu bytes, a policy has at most %u; wanted one like "
                       "{\"experts\": \"nvfp4\"}",
                       path, (unsigned long long)stat_.st_size, POLICY_BYTES_MAX);
    char *folder = !slash ? strdup(".") : strndup(path, folder_bytes ? folder_bytes : 1);
    if (!folder)
        return k3_fail(err, K3_ENOMEM, "no memory for the policy of %s", path);
    int rc = k3_dir_open(folder, false, &dir, err);
    if (!rc) {
        rc = k3_file_load_linked(&dir, slash ? slash + 1 : path, POLICY_BYTES_MAX, text, bytes,
                                 err);
        k3_dir_close(&dir);
    }
    free(folder);
    return rc;
}

/* A policy is what a user wrote: what is wrong with it is wrong with the command. */
static int parse_file(const char *path, const char *text, size_t bytes, struct k3_policy *policy,
                      struct k3_err *err)
{
    struct k3_err why;
    k3_err_init(&why);
    int rc = k3_policy_parse_json(path, text, bytes, policy, &why);
    if (rc != K3_EFORMAT && rc != K3_ECORRUPT)
        return rc ? k3_fail_as(err, &why) : 0;
    const char *advice = strrchr(why.text, ';');
    return k3_fail(err, K3_EUSAGE,
                   "%.*s; a policy is one object of roles or patterns and their formats, like "
                   "{\"experts\": \"nvfp4\"}",
                   (int)(advice ? advice - why.text : (ptrdiff_t)strlen(why.text)), why.text);
}

/* --oow and --config beside what --quant says of them already. */
static int add_options(const struct k3_opts *opts, struct k3_policy *policy, struct k3_err *err)
{
    static const uint8_t oow[] = {K3_OOW_FAIL, K3_OOW_REQUANT, K3_OOW_SNAP};
    const bool is_modelopt = opts->config == K3_OPT_CONFIG_MODELOPT;
    if (k3_opt_is_set(opts, K3_ID_OOW)) {
        if (policy->oow != K3_OOW_FAIL && policy->oow != oow[opts->oow])
            return k3_fail(err, K3_EUSAGE, "--oow %s, but --quant says oow=%s: give one of them",
                           k3_opt_choice_name(K3_ID_OOW, opts->oow),
                           policy->oow == K3_OOW_SNAP ? "snap" : "requant");
        policy->oow = oow[opts->oow];
    }
    if (k3_opt_is_set(opts, K3_ID_CONFIG)) {
        if (policy->is_modelopt && !is_modelopt)
            return k3_fail(err, K3_EUSAGE,
                           "--config %s, but --quant says config=modelopt: give one of them",
                           k3_opt_choice_name(K3_ID_CONFIG, opts->config));
        policy->is_modelopt = is_modelopt;
    }
    return 0;
}

int k3_policy_from_opts(const struct k3_opts *opts, struct k3_policy *policy, struct k3_err *err)
{
    size_t length = strlen(opts->quant);
    char *text = NULL;
    size_t bytes = 0;
    int rc;
    k3_policy_init(policy);
    if (length > 5 && !strcmp(opts->quant + length - 5, ".json")) {
        rc = load_policy(opts->quant, &text, &bytes, err);
        if (!rc)
            rc = parse_file(opts->quant, text, bytes, policy, err);
        free(text);
    } else {
        rc = k3_policy_parse(opts->quant, policy, err);
    }
    return rc ? rc : add_options(opts, policy, err);
}

void k3_layout_put_options(const struct k3_layout *layout, struct k3_text *out)
{
    k3_text_putf(out, " --tp %u", layout->tp);
    if (layout->dp != 1)
        k3_text_putf(out, " --dp %u", layout->dp);
    if (layout->pp != 1)
        k3_text_putf(out, " --pp %u", layout->pp);
    for (uint32_t s = 0; layout->pp != 1 && s < layout->pp; s++)
        k3_text_putf(out, "%s%u", s ? "," : " --pp-layers ", layout->stage_layers[s]);
    if (layout->experts_ep)
        k3_text_puts(out, " --experts ep");
    if (layout->shared_replicate)
        k3_text_puts(out, " --shared replicate");
    if (layout->vision != K3_VISION_REPLICATE)
        k3_text_putf(out, " --vision %s", layout->vision == K3_VISION_DROP ? "drop" : "first");
}

void k3_say_idle_policy(const struct k3_opts *opts, const struct k3_plan *plan)
{
    if (!opts->quiet && strcmp(opts->quant, "verbatim") != 0 &&
        !k3_policy_casts(&plan->policy, &plan->config))
        fprintf(stderr,
                "notice: --quant %s casts nothing: the checkpoint has these formats already, or "
                "all is left verbatim\n",
                opts->quant);
}

void k3_budget_put_option(uint64_t budget_bytes, struct k3_text *out)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB"};
    uint64_t usual = 0;
    unsigned unit = 0;
    struct k3_err ignored;
    k3_err_init(&ignored);
    if (k3_size_parse(k3_opt_table[K3_ID_BUDGET].default_text, &usual, &ignored) ||
        budget_bytes == usual)
        return;
    for (; unit < 3 && budget_bytes && budget_bytes % 1024 == 0; unit++)
        budget_bytes /= 1024;
    k3_text_putf(out, " --budget %" PRIu64 "%s", budget_bytes, units[unit]);
}

uint64_t k3_largest_image(const struct k3_config *config, const struct k3_layout *layout,
                          const struct k3_policy *policy, uint32_t *rank)
{
    uint64_t largest = 0;
    *rank = 0;
    for (uint32_t r = 0; r < k3_layout_world(layout); r++) {
        struct k3_rank_sizes sizes;
        k3_rank_sizes(config, layout, policy, r, &sizes);
        if (sizes.image_bytes > largest) {
            largest = sizes.image_bytes;
            *rank = r;
        }
    }
    return largest;
}

/* Try one candidate; append it when it divides and fits. */
static bool try_layout(const struct k3_plan *plan, struct k3_layout *candidate,
                       uint64_t budget_bytes, char *text, size_t bytes)
{
    const struct k3_config *config = &plan->config;
    struct k3_err ignored;
    uint32_t rank;
    k3_err_init(&ignored);
    memset(candidate->stage_layers, 0, sizeof candidate->stage_layers);
    if (k3_layout_resolve(candidate, config, &ignored) ||
        k3_policy_check(&plan->policy, config, candidate, &ignored))
        return false;
    uint64_t image = k3_largest_image(config, candidate, &plan->policy, &rank);
    if (image > budget_bytes)
        return false;
    size_t used = strlen(text);
    snprintf(text + used, bytes - used,
             "%s--tp %u --dp %u --pp %u --experts %s --shared %s%s (%s a rank)", used ? "; " : "",
             candidate->tp, candidate->dp, candidate->pp, candidate->experts_ep ? "ep" : "tp",
             candidate->shared_replicate ? "replicate" : "tp",
             candidate->vision == K3_VISION_DROP ? " --vision drop" : "", k3_size_short(image).s);
    return true;
}

/* Layouts of the same number of ranks first, then of twice as many. */
static void advise(const struct k3_plan *plan, uint64_t budget_bytes, char *text, size_t bytes)
{
    const struct k3_layout *layout = &plan->layout;
    uint32_t world = k3_layout_world(layout), found = 0;
    text[0] = 0;
    for (uint32_t size = world; size <= 8 * world && size <= 256 && found < ADVICE_COUNT; size *= 2)
        for (uint32_t tp = size; tp >= 1 && found < ADVICE_COUNT; tp--) {
            if (size % tp)
                continue;
            struct k3_layout candidate = *layout;
            candidate.tp = tp;
            candidate.pp = size / tp % layout->pp ? 1 : layout->pp;
            candidate.dp = size / tp / candidate.pp;
            found += try_layout(plan, &candidate, budget_bytes, text, bytes);
            if (candidate.shared_replicate && found < ADVICE_COUNT) {
                candidate.shared_replicate = false;
                found += try_layout(plan, &candidate, budget_bytes, text, bytes);
            }
        }
    if (!found)
        snprintf(text, bytes, "none of up to %u ranks", 8 * world);
}

int k3_check_budget(const struct k3_plan *plan, uint64_t budget_bytes, struct k3_err *err)
{
    uint32_t rank;
    uint64_t image = k3_largest_image(&plan->config, &plan->layout, &plan->policy, &rank);
    if (image <= budget_bytes)
        return 0;
    char text[640];
    struct k3_text also; /* options that the layouts below were tried with */
    k3_text_init(&also);
    if (!k3_policy_is_verbatim(&plan->policy)) {
        char policy[K3_POLICY_TEXT_BYTES];
        k3_policy_text(&plan->policy, policy);
        k3_text_putf(&also, " --quant '%s'", policy);
    }
    k3_budget_put_option(budget_bytes, &also);
    advise(plan, budget_bytes, text, sizeof text);
    int rc = k3_fail(
        err, K3_EUNSUPPORTED,
        "rank %u needs %s, the budget is %s (--budget); layouts that would fit%s%s: %s", rank,
        k3_size_text(image).s, k3_size_text(budget_bytes).s, also.bytes ? ", with" : "",
        also.bytes ? also.data : "", text);
    k3_text_fini(&also);
    return rc;
}
