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
#define POLICIES_BYTES   256u       /* of advice, beside the layouts in one sentence */
#define POLICY_COUNT     3u
#define SMALLEST         "fp8-rest" /* the policy of the smallest image */
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
    const bool is_there = !stat(path, &stat_); /* if not, opening it says why */
    if (is_there && !S_ISREG(stat_.st_mode))   /* a pipe would be waited for */
        return k3_fail(err, K3_EUSAGE,
                       "--quant %s: not a regular file; wanted one that holds a policy, like "
                       "{\"experts\": \"nvfp4\"}",
                       path);
    if (is_there && (uint64_t)stat_.st_size > POLICY_BYTES_MAX)
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
    for (uint32_t s = 0; layout->pp != 1 && layout->stage_layers[0] && s < layout->pp; s++)
        k3_text_putf(out, "%s%u", s ? "," : " --pp-layers ", layout->stage_layers[s]);
    if (layout->experts_ep)
        k3_text_puts(out, " --experts ep");
    if (layout->shared_replicate)
        k3_text_puts(out, " --shared replicate");
    if (layout->vision != K3_VISION_REPLICATE)
        k3_text_putf(out, " --vision %s", layout->vision == K3_VISION_DROP ? "drop" : "first");
}

void k3_say_policy(const struct k3_opts *opts, const struct k3_plan *plan)
{
    if (opts->quiet)
        return;
    if (strcmp(opts->quant, "verbatim") != 0 && !k3_policy_casts(&plan->policy, &plan->config))
        fprintf(stderr,
                "notice: --quant %s casts nothing: the checkpoint has these formats already, or "
                "all is left verbatim\n",
                k3_printable(opts->quant).s);
    if (plan->policy.oow != K3_OOW_FAIL && !k3_policy_has_window(&plan->policy, &plan->config))
        fprintf(stderr,
                "notice: --oow has no use here: experts have a window as %s, %s and %s "
                "only; leave it out\n",
                k3_qfmt_name(K3_Q_BF16), k3_qfmt_name(K3_Q_NVFP4), k3_qfmt_name(K3_Q_FP8_BLOCK));
    const uint32_t roles = k3_policy_cast_roles(&plan->policy, &plan->config, &plan->layout);
    const char *lead = "warning: --quant casts";
    for (unsigned r = 0; r < K3_ROLE_COUNT; r++)
        if (roles >> r & 1 && k3_role_stays((enum k3_role)r)) {
            fprintf(stderr, "%s %s", lead, k3_role_name((enum k3_role)r));
            lead = ",";
        }
    if (*lead == ',')
        fputs(": engines expect these in BF16 and may refuse the set or read it wrongly\n", stderr);
}

void k3_budget_put_option(uint64_t budget_bytes, struct k3_text *out)
{
    uint64_t usual = 0;
    struct k3_err ignored;
    k3_err_init(&ignored);
    if (k3_size_parse(k3_opt_table[K3_ID_BUDGET].default_text, &usual, &ignored) ||
        budget_bytes == usual)
        return;
    k3_text_putf(out, " --budget %s", k3_size_given(budget_bytes).s);
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
    struct k3_text options;
    size_t used = strlen(text);
    memset(candidate->stage_layers, 0, sizeof candidate->stage_layers); /* as vLLM divides them */
    k3_text_init(&options);
    k3_layout_put_options(candidate, &options);
    if (!k3_text_check(&options, &ignored))
        snprintf(text + used, bytes - used, "%s%s (%s a rank)", used ? "; " : "", options.data + 1,
                 k3_size_short(image).s);
    k3_text_fini(&options);
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

/* The policy that stands behind a name; false where it has none. */
static bool named_policy(const char *name, struct k3_policy *policy)
{
    struct k3_err ignored;
    k3_err_init(&ignored);
    k3_policy_init(policy);
    return name && !k3_policy_parse(name, policy, &ignored);
}

/* What was asked for, and what SMALLEST casts of the roles that it left alone. */
static bool add_smallest(const struct k3_plan *plan, struct k3_policy *policy)
{
    struct k3_policy smallest;
    *policy = plan->policy;
    if (!named_policy(SMALLEST, &smallest))
        return false;
    for (unsigned r = 0; r < K3_ROLE_COUNT; r++)
        if (policy->role_fmt[r] == K3_Q_VERBATIM && !(policy->asked_roles >> r & 1))
            policy->role_fmt[r] = smallest.role_fmt[r];
    return true;
}

/* Try one policy in the layout that there is; append it, as it is to be given, when it divides and
 * fits. */
static bool try_policy(const struct k3_plan *plan, const struct k3_policy *policy,
                       const char *given, uint64_t budget_bytes, struct k3_text *out)
{
    struct k3_err ignored;
    char text[K3_POLICY_TEXT_BYTES];
    uint32_t rank;
    k3_err_init(&ignored);
    if (k3_policy_check(policy, &plan->config, &plan->layout, &ignored))
        return false;
    uint64_t image = k3_largest_image(&plan->config, &plan->layout, policy, &rank);
    k3_policy_short_text(policy, text);
    if (image > budget_bytes || out->bytes + strlen(given ? given : text) > POLICIES_BYTES)
        return false;
    k3_text_puts(out, out->bytes ? ", " : "");
    k3_text_put_in_quotes(out, given ? given : text);
    k3_text_putf(out, " (%s a rank)", k3_size_short(image).s);
    return true;
}

/* Policies that would fit without another layout: first the one that keeps what was asked for. */
static void advise_policies(const struct k3_plan *plan, uint64_t budget_bytes, struct k3_text *out)
{
    char asked[K3_POLICY_TEXT_BYTES], text[K3_POLICY_TEXT_BYTES];
    struct k3_policy policy;
    const char *name;
    const bool is_verbatim = k3_policy_is_verbatim(&plan->policy);
    uint32_t found = 0, wanted = POLICY_COUNT;
    k3_policy_text(&plan->policy, asked);
    if (!is_verbatim && add_smallest(plan, &policy)) {
        k3_policy_text(&policy, text);
        if (strcmp(text, asked) != 0)
            found += try_policy(plan, &policy, NULL, budget_bytes, out);
        wanted -= found; /* it is long, and what most will take */
    }
    for (uint32_t i = 0; (name = k3_policy_name(i, NULL)) != NULL && found < wanted; i++) {
        if (!named_policy(name, &policy))
            continue;
        char other[K3_POLICY_TEXT_BYTES];
        k3_policy_text(&policy, other);
        if (strcmp(other, asked) != 0 && (!found || is_verbatim || strcmp(other, text) != 0))
            found += try_policy(plan, &policy, name, budget_bytes, out);
    }
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
        k3_policy_short_text(&plan->policy, policy);
        k3_text_puts(&also, " --quant ");
        k3_text_put_in_quotes(&also, policy);
    }
    k3_budget_put_option(budget_bytes, &also);
    if (also.bytes > POLICIES_BYTES) { /* the layouts are to find room in the sentence */
        k3_text_fini(&also);
        k3_text_init(&also);
        k3_text_puts(&also, " the same options");
    }
    struct k3_text policies;
    k3_text_init(&policies);
    advise_policies(plan, budget_bytes, &policies);
    advise(plan, budget_bytes, text, sizeof text);
    int rc = k3_text_check(&policies, err);
    if (!rc)
        rc = k3_text_check(&also, err);
    if (!rc)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "rank %u needs %s, the budget is %s (--budget); %s%s%slayouts that would "
                     "fit%s%s: %s",
                     rank, k3_size_text(image).s, k3_size_text(budget_bytes).s,
                     policies.bytes ? "--quant that would fit: " : "",
                     policies.bytes ? policies.data : "", policies.bytes ? "; " : "",
                     also.bytes ? ", with" : "", also.bytes ? also.data : "", text);
    k3_text_fini(&policies);
    k3_text_fini(&also);
    return rc;
}
