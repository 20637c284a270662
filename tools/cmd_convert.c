/* Purpose: the convert command.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: as k3_convert.
 * Invariant: results on stdout, talk on stderr. */
#include "advice.h"
#include "cast_print.h"
#include "cmds.h"
#include "convert.h"
#include "doc.h"
#include "load_internal.h"
#include "sizes.h"
#include "stop.h"
#include "talk.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The set's directory where there is a set, and so its report. */
static const char *report_dir(const struct k3_convert_report *report, const struct k3_opts *opts)
{
    return opts->workers && !report->was_finished ? NULL : opts->out.item[0];
}

static int print_json(const struct k3_convert_report *report, const struct k3_opts *opts,
                      struct k3_err *err)
{
    struct k3_doc *root = k3_doc_new_object();
    bool good = root && k3_doc_add_integer(root, "ranks", report->rank_count) &&
                k3_doc_add_double(root, "seconds", (double)report->seconds_ns / 1e9) &&
                k3_doc_add_integer(root, "read_bytes", report->read_bytes) &&
                k3_doc_add_integer(root, "survey_bytes", report->survey_bytes) &&
                k3_doc_add_integer(root, "written_bytes", report->written_bytes) &&
                k3_doc_add_integer(root, "items", report->item_count) &&
                k3_doc_add_integer(root, "resumed_items", report->resumed_count) &&
                k3_doc_add_integer(root, "hub_same_files", report->hub_same_count) &&
                k3_doc_add_integer(root, "hub_outdated_files", report->hub_outdated_count) &&
                k3_doc_add_bool(root, "was_finished", report->was_finished) &&
                k3_casts_add(root, &report->casts, report_dir(report, opts)) &&
                k3_splits_add(root, &report->splits) &&
                k3_result_add_lines(root, "fallbacks", report->fallbacks ? report->fallbacks : "");
    int rc = good ? k3_result_print(root, err)
                  : k3_fail(err, K3_ENOMEM, "no memory for the report");
    k3_doc_free(root);
    return rc;
}

static void print_text(const struct k3_convert_report *report, const struct k3_opts *opts)
{
    const uint32_t worker = opts->worker, workers = opts->workers;
    const char *ranks_s = report->rank_count == 1 ? "" : "s";
    if (report->was_finished) {
        k3_print_outs(opts);
        printf(" is finished already: %u rank%s, %s of images\n", report->rank_count, ranks_s,
               k3_size_short(report->image_bytes).s);
        k3_say_finished(opts);
        k3_splits_print(&report->splits);
        k3_casts_print(&report->casts, report_dir(report, opts));
        return;
    }
    k3_print_outs(opts);
    printf(": %u rank%s, %u parts, %s of images; %u item%s converted, %u resumed\n",
           report->rank_count, ranks_s, report->part_count, k3_size_short(report->image_bytes).s,
           report->done_count, report->done_count == 1 ? "" : "s", report->resumed_count);
    if (report->survey_bytes)
        printf("looked through %s of scales and values before the first cast\n",
               k3_size_short(report->survey_bytes).s);
    printf("read %s, wrote %s (pads are holes), read that back and took its digests, in %s\n",
           k3_size_short(report->read_bytes).s, k3_size_short(report->written_bytes).s,
           k3_time_text(report->seconds_ns).s);
    k3_splits_print(&report->splits);
    k3_casts_print(&report->casts, report_dir(report, opts));
    if (report->hub_same_count)
        printf("proved %u file%s by the SHA-256 of the download\n", report->hub_same_count,
               report->hub_same_count == 1 ? "" : "s");
    if (workers)
        printf("this was worker %u of %u; when all are done: k3-shard seal", worker, workers);
    for (uint32_t i = 0; workers && i < opts->out.count; i++)
        printf(" --out %s%s", k3_quoted(opts->out.item[i]).s, i + 1 == opts->out.count ? "\n" : "");
}

/* What this machine refuses costs time, and nothing else. */
static void say_fallbacks(const char *lines)
{
    while (*lines) {
        size_t n = strcspn(lines, "\n");
        fprintf(stderr, "notice: %.*s\n", (int)n, lines);
        lines += n + (lines[n] == '\n');
    }
}

static int check_worker(const struct k3_opts *opts, struct k3_err *err)
{
    bool one = k3_opt_is_set(opts, K3_ID_WORKER), many = k3_opt_is_set(opts, K3_ID_WORKERS);
    if (one != many)
        return k3_fail(err, K3_EUSAGE, "--worker I and --workers N go together");
    if (many && opts->worker >= opts->workers)
        return k3_fail(err, K3_EUSAGE, "--worker %u: of --workers %u the numbers are 0 to %u",
                       opts->worker, opts->workers, opts->workers - 1);
    if (many && opts->force)
        return k3_fail(err, K3_EUSAGE,
                       "--force would remove what other workers did: remove the directory first");
    return 0;
}

/* Changed on purpose or not: the record cannot tell, so the user must. */
static void say_outdated(const struct k3_convert_report *report, const struct k3_opts *opts)
{
    char more[32] = "";
    if (report->hub_outdated_count > 1)
        snprintf(more, sizeof more, " and %u more", report->hub_outdated_count - 1);
    fprintf(stderr,
            "notice: %s%s: written after the download and not what the download record says: "
            "converted as found; where nobody changed it on purpose, download it again and convert "
            "with --force (`k3-shard verify %s` names each)\n",
            report->hub_outdated, more, k3_quoted(opts->args.item[0]).s);
}

/* --force cannot reach directories that were not given: what they hold stays, and is said. */
static void say_strays(const struct k3_job_strays *strays)
{
    if (strays->part_count)
        fprintf(stderr,
                "notice: %u part%s of the set that --force replaced (%s is the first) %s in none "
                "of the --out directories: where another directory of that set holds them, remove "
                "them there\n",
                strays->part_count, strays->part_count == 1 ? "" : "s", strays->part,
                strays->part_count == 1 ? "was" : "were");
    if (strays->dir_count)
        fprintf(stderr,
                "notice: the conversion that --force replaced had %u more --out director%s: "
                "remove " K3_PARTIAL_NAME " and its parts there\n",
                strays->dir_count, strays->dir_count == 1 ? "y" : "ies");
}

/* The GPU of --device; false: the CPU casts. */
static int find_gpu(const struct k3_opts *opts, struct k3_cast_place *place, bool *is_gpu,
                    struct k3_err *err)
{
    struct k3_load_devices devices;
    int rc = k3_load_devices_parse(opts->cast_device, &devices, err);
    if (rc)
        return rc;
    *is_gpu = devices.ops != &k3_dev_host;
    if (devices.count != 1)
        return k3_fail(err, K3_EUSAGE, "--device %s: casts run on one GPU: write %s:%u",
                       opts->cast_device, devices.ops->name, devices.indices[0]);
    *place = (struct k3_cast_place){.kind = devices.ops == &k3_dev_hip ? K3_GPU_HIP : K3_GPU_CUDA,
                                    .index = devices.indices[0]};
    return 0;
}

static void say_lost_plan(const struct k3_opts *opts, const struct k3_convert_report *report)
{
    fprintf(stderr,
            "notice: %s/" K3_PARTIAL_NAME "/" K3_PLAN_NAME " was cut or damaged and is written "
            "anew: %u finished item%s of this conversion %s kept\n",
            k3_printable(opts->out.item[0]).s, report->resumed_count,
            report->resumed_count == 1 ? "" : "s", report->resumed_count == 1 ? "is" : "are");
}

int k3_cmd_convert(const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_convert_report report;
    struct k3_problems problems;
    struct k3_layout layout;
    struct k3_policy policy;
    struct k3_ranks ranks;
    struct k3_cast_place place;
    bool is_gpu = false;
    int rc = k3_layout_from_opts(opts, &layout, err);
    if (!rc)
        rc = k3_policy_from_opts(opts, &policy, err);
    if (!rc)
        rc = check_worker(opts, err);
    if (!rc)
        rc = find_gpu(opts, &place, &is_gpu, err);
    if (rc)
        return rc;
    k3_problems_init(&problems);
    k3_ranks_clear(&ranks);
    for (uint32_t i = 0; i < opts->ranks.count; i++) /* the table keeps them below the limit */
        k3_ranks_add(&ranks, opts->ranks.item[i]);
    k3_stop_install();
    struct k3_convert_options options = {.ckpt_path = opts->args.item[0],
                                         .layout = &layout,
                                         .policy = &policy,
                                         .revision = opts->revision,
                                         .ranks = ranks.count ? &ranks : NULL,
                                         .gpu = is_gpu ? &place : NULL,
                                         .opts = opts,
                                         .outs = opts->out.item,
                                         .budget_bytes = opts->budget_bytes,
                                         .memory_bytes = opts->memory_bytes,
                                         .out_count = opts->out.count,
                                         .jobs = opts->jobs,
                                         .worker = opts->worker,
                                         .workers = opts->workers,
                                         .force = opts->force,
                                         .quiet = opts->quiet};
    rc = k3_convert(&options, &report, &problems, err);
    if (report.fallbacks && !opts->quiet)
        say_fallbacks(report.fallbacks);
    if (!rc && !opts->quiet && report.newer_source[0])
        fprintf(stderr,
                "notice: %s is newer than the finished set, whose plan knows headers only: "
                "`k3-shard verify %s --against %s` tells whether the bytes are still the same\n",
                report.newer_source, k3_quoted(opts->out.item[0]).s,
                k3_quoted(opts->args.item[0]).s);
    if (!opts->quiet) /* after a failure too: what was replaced is gone */
        say_strays(&report.strays);
    if (!opts->quiet && report.plan_was_lost)
        say_lost_plan(opts, &report);
    if (!rc && !opts->quiet && report.hub_outdated_count)
        say_outdated(&report, opts);
    if (rc)
        k3_say_problems(&problems);
    else if (opts->json)
        rc = print_json(&report, opts, err);
    else
        print_text(&report, opts);
    free(report.fallbacks);
    k3_problems_fini(&problems);
    return rc;
}
