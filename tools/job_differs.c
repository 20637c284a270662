/* Purpose: say in what an earlier conversion differs from the one that is asked for.
 * Owns: nothing between calls.
 * Threads: any.
 * Errors: none: an earlier plan that cannot be read differs as a whole.
 * Invariant: an option is named with its value then and its value now; what is no option is named
 * by its file. */
#include "advice.h"
#include "job.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_option(struct k3_text *out, const char *name, const char *then, const char *now)
{
    if (strcmp(then, now) != 0)
        k3_text_putf(out, "%s--%s %s (now %s)", out->bytes ? ", " : "", name, k3_quoted(then).s,
                     k3_quoted(now).s);
}

static void put_number(struct k3_text *out, const char *name, uint32_t then, uint32_t now)
{
    if (then != now)
        k3_text_putf(out, "%s--%s %u (now %u)", out->bytes ? ", " : "", name, then, now);
}

static void put_stages(const struct k3_layout *layout, struct k3_text *out)
{
    for (uint32_t s = 0; s < layout->pp; s++)
        k3_text_putf(out, "%s%u", s ? "," : "", layout->stage_layers[s]);
}

static void put_layout(struct k3_text *out, const struct k3_layout *then,
                       const struct k3_layout *now)
{
    static const char *const split[] = {"tp", "ep"}, *const shared[] = {"tp", "replicate"},
                             *const vision[] = {"replicate", "first", "drop"};
    put_number(out, "tp", then->tp, now->tp);
    put_number(out, "dp", then->dp, now->dp);
    put_number(out, "pp", then->pp, now->pp);
    if (then->pp == now->pp &&
        memcmp(then->stage_layers, now->stage_layers, then->pp * sizeof then->stage_layers[0])) {
        k3_text_putf(out, "%s--pp-layers ", out->bytes ? ", " : "");
        put_stages(then, out);
        k3_text_puts(out, " (now ");
        put_stages(now, out);
        k3_text_puts(out, ")");
    }
    put_option(out, "experts", split[then->experts_ep], split[now->experts_ep]);
    put_option(out, "shared", shared[then->shared_replicate], shared[now->shared_replicate]);
    put_option(out, "vision", vision[then->vision], vision[now->vision]);
}

/* Canonical texts, options of casts in them; without memory for these nothing is said. */
static void put_policy(struct k3_text *out, const struct k3_policy *then,
                       const struct k3_policy *now)
{
    char *text = malloc(2 * K3_POLICY_TEXT_BYTES);
    if (!text)
        return;
    k3_policy_text(then, text);
    k3_policy_text(now, text + K3_POLICY_TEXT_BYTES);
    put_option(out, "quant", text, text + K3_POLICY_TEXT_BYTES);
    free(text);
}

static bool is_same_source(const struct k3_source *a, const struct k3_source *b)
{
    return strcmp(a->name, b->name) == 0 && a->bytes == b->bytes &&
           a->header_bytes == b->header_bytes &&
           memcmp(a->header_sha256, b->header_sha256, K3_DIGEST_BYTES) == 0;
}

/* What the plans know of the checkpoint itself: one file is enough to tell it is another. */
static void put_checkpoint(struct k3_text *out, const struct k3_plan *then,
                           const struct k3_plan *now)
{
    const char *file = NULL;
    if (memcmp(then->config_sha256, now->config_sha256, K3_DIGEST_BYTES))
        file = K3_CONFIG_NAME;
    for (uint32_t i = 0; !file && i < then->source_count && i < now->source_count; i++)
        if (!is_same_source(&then->sources[i], &now->sources[i]))
            file = now->sources[i].name;
    if (!file && (then->source_count != now->source_count ||
                  memcmp(then->index_sha256, now->index_sha256, K3_DIGEST_BYTES)))
        file = K3_INDEX_NAME;
    if (file)
        k3_text_putf(out, "%sanother checkpoint (its %s differs)", out->bytes ? ", " : "", file);
    else if (strcmp(then->repository, now->repository) != 0)
        k3_text_putf(out, "%sthe repository %s (now %s)", out->bytes ? ", " : "",
                     then->repository[0] ? then->repository : "''",
                     now->repository[0] ? now->repository : "''");
}

void k3_job_differs(const char *plan_text, size_t bytes, const struct k3_plan *now,
                    char found[K3_JOB_FOUND_BYTES])
{
    struct k3_plan *then = NULL;
    struct k3_text text;
    k3_text_init(&text);
    if (k3_plan_decode(plan_text, bytes, &then, NULL) == 0) {
        put_layout(&text, &then->layout, &now->layout);
        put_policy(&text, &then->policy, &now->policy);
        put_option(&text, "revision", then->revision, now->revision);
        put_checkpoint(&text, then, now);
    }
    snprintf(found, K3_JOB_FOUND_BYTES, "%.*s", (int)K3_JOB_FOUND_BYTES - 1,
             text.bytes && !text.failed ? text.data
                                        : "another checkpoint, layout, revision or --quant");
    k3_text_fini(&text);
    k3_plan_close(then);
}
