/* Purpose: judge a layout against the memory of a GPU and name layouts that would fit.
 * Owns: nothing.
 * Threads: any.
 * Errors: K3_EUSAGE (pp-layers count), K3_EUNSUPPORTED (does not fit).
 * Invariant: advice is computed by the same function as the plan, never guessed. */
#include "advice.h"

#include "sizes.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

#define ADVICE_COUNT 4u /* enough to choose from, short enough for one sentence */

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

uint64_t k3_largest_image(const struct k3_config *config, const struct k3_layout *layout,
                          uint32_t *rank)
{
    uint64_t largest = 0;
    *rank = 0;
    for (uint32_t r = 0; r < k3_layout_world(layout); r++) {
        struct k3_rank_sizes sizes;
        k3_rank_sizes(config, layout, r, &sizes);
        if (sizes.image_bytes > largest) {
            largest = sizes.image_bytes;
            *rank = r;
        }
    }
    return largest;
}

/* Try one candidate; append it when it divides and fits. */
static bool try_layout(const struct k3_config *config, struct k3_layout *candidate,
                       uint64_t budget_bytes, char *text, size_t bytes)
{
    struct k3_err ignored;
    uint32_t rank;
    k3_err_init(&ignored);
    memset(candidate->stage_layers, 0, sizeof candidate->stage_layers);
    if (k3_layout_resolve(candidate, config, &ignored))
        return false;
    uint64_t image = k3_largest_image(config, candidate, &rank);
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
static void advise(const struct k3_config *config, const struct k3_layout *layout,
                   uint64_t budget_bytes, char *text, size_t bytes)
{
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
            found += try_layout(config, &candidate, budget_bytes, text, bytes);
            if (candidate.shared_replicate && found < ADVICE_COUNT) {
                candidate.shared_replicate = false;
                found += try_layout(config, &candidate, budget_bytes, text, bytes);
            }
        }
    if (!found)
        snprintf(text, bytes, "none of up to %u ranks", 8 * world);
}

int k3_check_budget(const struct k3_config *config, const struct k3_layout *layout,
                    uint64_t budget_bytes, struct k3_err *err)
{
    uint32_t rank;
    uint64_t image = k3_largest_image(config, layout, &rank);
    if (image <= budget_bytes)
        return 0;
    char text[640];
    advise(config, layout, budget_bytes, text, sizeof text);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "rank %u needs %s, the budget is %s (--budget); layouts that would fit: %s",
                   rank, k3_size_text(image).s, k3_size_text(budget_bytes).s, text);
}
