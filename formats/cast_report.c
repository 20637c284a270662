/* Purpose: the report of a set's casts, line by line, and its sums by role (FORMAT.md 4.9).
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: none of its own; a text that found no memory says so when it is checked.
 * Invariants: the bytes are a function of plan, ranks and rows; the totals are sums of what the
 * lines say, so whoever adds the lines up finds them. */
#include "cast_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void k3_cast_summary_init(struct k3_cast_summary *summary)
{
    memset(summary, 0, sizeof *summary);
    for (unsigned role = 0; role < K3_ROLE_COUNT; role++)
        k3_qstats_init(&summary->roles[role].stats);
}

static const struct k3_rule *rule_of(const struct k3_plan *plan, uint32_t slot)
{
    uint32_t rule, layer, index;
    k3_plan_slot(plan, slot, &rule, &layer, &index);
    return &plan->config.model->rules[rule];
}

/* Format that a matrix is cast to; verbatim for all else. */
static enum k3_qfmt cast_of(const struct k3_plan *plan, uint32_t slot, enum k3_qfmt *from)
{
    uint32_t rule, layer, index;
    if (slot >= plan->slot_count || !k3_plan_slot(plan, slot, &rule, &layer, &index) ||
        !k3_rule_is_matrix(&plan->config.model->rules[rule]))
        return K3_Q_VERBATIM;
    *from = k3_rule_source_fmt(&plan->config.model->rules[rule]);
    return k3_policy_fmt(&plan->policy, &plan->config, rule, layer);
}

uint64_t k3_cast_count(const struct k3_plan *plan)
{
    uint64_t count = 0;
    enum k3_qfmt from;
    for (uint32_t slot = 0; slot < plan->slot_count; slot++)
        count += cast_of(plan, slot, &from) != K3_Q_VERBATIM;
    return count;
}

const char *k3_cast_row_misfit(const struct k3_plan *plan, const struct k3_cast_row *row)
{
    enum k3_qfmt from = K3_Q_VERBATIM, to = cast_of(plan, row->slot, &from);
    if (to == K3_Q_VERBATIM)
        return "a matrix that the policy casts";
    if (row->from != from || row->to != to)
        return "the formats of the policy";
    const struct k3_rule *rule = rule_of(plan, row->slot);
    const uint64_t per = from == K3_Q_MXFP4 ? 2 : 1; /* values in an element of the source */
    if (row->value_count >
        plan->config.value[rule->dim[0]] * plan->config.value[rule->dim[1]] * per)
        return "no more values than the matrix has";
    if (row->breach_groups && plan->policy.oow == K3_OOW_FAIL)
        return "no group out of a window where the policy refuses them";
    return NULL;
}

static void set_named(struct k3_cast_named *named, const struct k3_plan *plan,
                      const struct k3_cast_row *row)
{
    named->row = *row;
    k3_plan_slot_name(plan, row->slot, named->name, sizeof named->name);
}

void k3_cast_summary_add(struct k3_cast_summary *summary, const struct k3_plan *plan,
                         const struct k3_cast_row *row)
{
    struct k3_cast_role *role = &summary->roles[rule_of(plan, row->slot)->role];
    struct k3_qstats stats;
    k3_qstats_init(&stats);
    k3_qsum_add(&stats.x2, row->x2);
    k3_qsum_add(&stats.err2, row->err2);
    stats.max_abs_error = row->max_abs_error;
    stats.value_count = row->value_count;
    stats.group_count = row->group_count;
    stats.zero_groups = row->zero_groups;
    stats.saturated_groups = row->saturated_groups;
    stats.breach_groups = row->breach_groups;
    k3_qstats_merge(&role->stats, &stats);
    role->formats |= UINT32_C(1) << row->to;
    role->saturated_formats |= (uint32_t)(row->saturated_groups > 0) << row->to;
    role->zero_count += k3_cast_row_is_zero(row);
    role->tensor_count++;
    summary->tensor_count++;
    if (k3_cast_row_lossless(row))
        role->lossless_count++;
    else if (!role->worst.name[0] ||
             k3_cast_row_sqnr_db(row) < k3_cast_row_sqnr_db(&role->worst.row))
        set_named(&role->worst, plan, row);
    if (!k3_cast_row_is_low(row))
        return;
    role->low_count++;
    if (summary->low_count < K3_CAST_LOW_SHOWN_MAX)
        set_named(&summary->low[summary->low_count], plan, row);
    summary->low_count++;
}

const char *k3_cast_formats(uint32_t formats, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (unsigned fmt = 0; fmt < K3_QFMT_COUNT && used < bytes; fmt++) {
        if (!(formats >> fmt & 1))
            continue;
        int n = snprintf(text + used, bytes - used, "%s%s", used ? "," : "",
                         k3_qfmt_name((enum k3_qfmt)fmt));
        used += n > 0 ? (size_t)n : 0;
    }
    return text;
}

const char *k3_cast_saturated_text(uint32_t formats, char *text)
{
    size_t used = 0;
    for (unsigned fmt = 0; fmt < K3_QFMT_COUNT && used < K3_CAST_SATURATED_BYTES; fmt++) {
        const double share = k3_cast_expected_saturated((enum k3_qfmt)fmt);
        if (!(formats >> fmt & 1) || share == 0)
            continue;
        int n = snprintf(text + used, K3_CAST_SATURATED_BYTES - used, "%s %.0f %% %sin %s",
                         used ? ","
                              : "scales are rounded, and where one came out too small the "
                                "largest value of its group saturates; expected of about",
                         100 * share, used ? "" : "of groups ", k3_qfmt_name((enum k3_qfmt)fmt));
        used += n > 0 ? (size_t)n : 0;
    }
    return used ? text : NULL;
}

void k3_cast_report_begin(const struct k3_plan *plan, const struct k3_ranks *ranks,
                          struct k3_text *out)
{
    char hex[K3_HEX_BYTES], policy[K3_POLICY_TEXT_BYTES];
    k3_hex_encode(plan->digest, K3_DIGEST_BYTES, hex);
    k3_policy_text(&plan->policy, policy);
    k3_text_putf(out, "{\"format\":\"k3-cast-report\",\"plan_sha256\":\"%s\",\"policy\":", hex);
    k3_text_put_json(out, policy);
    k3_text_puts(out, ",\"ranks\":\"");
    k3_ranks_put(ranks, out);
    k3_text_puts(out, "\",\"tensors\":[");
}

/* Groups of each kind; what does not occur is left out. */
static void put_groups(uint64_t groups, const uint64_t kind[3], struct k3_text *out)
{
    static const char *const name[3] = {"zero", "saturated", "out_of_window"};
    k3_text_putf(out, ",\"groups\":%" PRIu64, groups);
    for (unsigned i = 0; i < 3; i++)
        if (kind[i])
            k3_text_putf(out, ",\"%s_groups\":%" PRIu64, name[i], kind[i]);
}

/* How far off: ten digits behind the point are more than libraries that read them agree on. */
static void put_errors(double x2, double err2, double max_abs_error, struct k3_text *out)
{
    if (err2 == 0)
        k3_text_puts(out, ",\"lossless\":true,\"sqnr_db\":null");
    else
        k3_text_putf(out,
                     ",\"lossless\":false,\"sqnr_db\":%.10f,\"rel_rmse\":%.12g,\"max_abs_error\":"
                     "%.17g,\"sum_error2\":%.17g",
                     k3_sqnr_db(x2, err2), x2 > 0 ? sqrt(err2 / x2) : 0, max_abs_error, err2);
    k3_text_putf(out, ",\"sum_x2\":%.17g", x2);
}

void k3_cast_report_row(const struct k3_plan *plan, const struct k3_cast_row *row, bool is_first,
                        struct k3_text *out)
{
    char name[K3_ST_NAME_BYTES_MAX + 1];
    const enum k3_qfmt from = (enum k3_qfmt)row->from, to = (enum k3_qfmt)row->to;
    k3_plan_slot_name(plan, row->slot, name, sizeof name);
    k3_text_puts(out, is_first ? "\n{\"tensor\":" : ",\n{\"tensor\":");
    k3_text_put_json(out, name);
    k3_text_putf(out, ",\"role\":\"%s\",\"from\":\"%s\",\"to\":\"%s\",\"values\":%" PRIu64,
                 k3_role_name((enum k3_role)rule_of(plan, row->slot)->role), k3_qfmt_name(from),
                 k3_qfmt_name(to), row->value_count);
    put_groups(row->group_count,
               (const uint64_t[3]){row->zero_groups, row->saturated_groups, row->breach_groups},
               out);
    put_errors(row->x2, row->err2, row->max_abs_error, out);
    if (k3_cast_row_is_low(row) && isfinite(k3_cast_expected_db(from, to)))
        k3_text_putf(out, ",\"low\":true,\"expected_db\":%.2f", k3_cast_expected_db(from, to));
    else if (k3_cast_row_is_low(row))
        k3_text_puts(out, ",\"low\":true,\"expected_db\":null");
    k3_text_puts(out, "}");
}

static void put_total(const struct k3_cast_role *role, const char *name, struct k3_text *out)
{
    char formats[160];
    const struct k3_qstats *stats = &role->stats;
    k3_text_putf(out,
                 "\n{\"role\":\"%s\",\"to\":\"%s\",\"tensors\":%" PRIu64 ",\"values\":%" PRIu64,
                 name, k3_cast_formats(role->formats, formats, sizeof formats), role->tensor_count,
                 stats->value_count);
    put_groups(
        stats->group_count,
        (const uint64_t[3]){stats->zero_groups, stats->saturated_groups, stats->breach_groups},
        out);
    put_errors(k3_qsum_value(&stats->x2), k3_qsum_value(&stats->err2), stats->max_abs_error, out);
    k3_text_putf(out, ",\"lossless_tensors\":%" PRIu64 ",\"low_tensors\":%" PRIu64 ",\"worst\":",
                 role->lossless_count, role->low_count);
    if (role->worst.name[0])
        k3_text_put_json(out, role->worst.name);
    else
        k3_text_puts(out, "null");
    k3_text_puts(out, "}");
}

void k3_cast_report_end(const struct k3_cast_summary *summary, struct k3_text *out)
{
    const char *separator = "";
    k3_text_puts(out, "\n],\"totals\":[");
    for (unsigned r = 0; r < K3_ROLE_COUNT; r++) {
        if (!summary->roles[r].tensor_count)
            continue;
        k3_text_puts(out, separator);
        put_total(&summary->roles[r], k3_role_name((enum k3_role)r), out);
        separator = ",";
    }
    k3_text_puts(out, "\n],\"version\":0}\n");
}
