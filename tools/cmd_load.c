/* Purpose: the command load: bring ranks into memory through libk3load and report how it went.
 * Owns: the load while it runs.
 * Threads: the main thread.
 * Errors: those of k3_load_open and k3_load_run; K3_EUNSUPPORTED when the images do not fit into
 * free memory.
 * Invariant: memory is judged before any of it is taken; a result is printed only for a load whose
 * every unit passed (or that was told not to look, and says so). */
#include "bytes.h"
#include "cmds.h"
#include "doc.h"
#include "fdlimit.h"
#include "k3_load.h"
#include "mem_room.h"
#include "progress.h"
#include "set.h"
#include "set_casts.h"
#include "sizes.h"
#include "stop.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Headers, digests, page tables and other programs need some memory beside the images. */
#define SPARE_BYTES (64ull << 20)

struct load_run {
    const struct k3_opts *opts;
    uint32_t *ranks;                          /* owned */
    uint64_t *image_bytes;                    /* by index in ranks; owned */
    struct k3_load_rank_report *rank_reports; /* the same; owned */
    uint32_t rank_count;
    uint64_t total_bytes;
    struct k3_cast_sums casts;
    char policy[K3_POLICY_TEXT_BYTES], short_policy[K3_POLICY_TEXT_BYTES];
    uint64_t told_bytes; /* progress so far */
    uint64_t peak_bytes;
    struct k3_progress progress;
};

/* ---- memory ---- */

/* The ranks that fit one after the other in the order asked for, as "0, 1, 2". */
static void fitting_ranks(const struct load_run *run, uint64_t bytes, struct k3_text *out)
{
    for (uint32_t i = 0; i < run->rank_count && run->image_bytes[i] <= bytes; i++) {
        bytes -= run->image_bytes[i];
        k3_text_putf(out, "%s%u", i ? "," : "", run->ranks[i]);
    }
}

static int check_memory(const struct load_run *run, struct k3_err *err)
{
    struct k3_mem_room free_memory;
    struct k3_text fit;
    if (!k3_mem_room("", &free_memory))
        return 0; /* a system that does not say: the allocation will */
    uint64_t beside = SPARE_BYTES + run->opts->staging_bytes;
    uint64_t room = free_memory.bytes > beside ? free_memory.bytes - beside : 0;
    if (run->total_bytes <= room)
        return 0;
    k3_text_init(&fit);
    fitting_ranks(run, room, &fit);
    int rc = k3_fail(err, K3_EUNSUPPORTED,
                     "the images need %s and %s beside them, %s of memory are free%s: %s%s",
                     k3_size_text(run->total_bytes).s, k3_size_short(beside).s,
                     k3_size_text(free_memory.bytes).s,
                     free_memory.bytes == free_memory.left_bytes
                         ? " below the limit of this process's memory cgroup"
                         : "",
                     fit.bytes ? "these ranks would fit: --ranks "
                               : "not even the first rank asked for fits",
                     fit.bytes ? fit.data : "");
    k3_text_fini(&fit);
    return rc;
}

/* ---- which ranks ---- */

static int list_ranks(struct load_run *run, const struct k3_set *set, struct k3_err *err)
{
    const struct k3_opts *opts = run->opts;
    uint32_t count = opts->ranks.count ? opts->ranks.count : set->manifest.rank_count;
    run->ranks = calloc((size_t)count + 1, sizeof *run->ranks);
    run->image_bytes = calloc((size_t)count + 1, sizeof *run->image_bytes);
    run->rank_reports = calloc((size_t)count + 1, sizeof *run->rank_reports);
    if (!run->ranks || !run->image_bytes || !run->rank_reports)
        return k3_fail(err, K3_ENOMEM, "no memory for a list of %u ranks", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = opts->ranks.count ? opts->ranks.item[i] : set->manifest.ranks[i].rank;
        const struct k3_manifest_rank *rank = k3_set_rank(set, number);
        if (!rank)
            return k3_set_fail_rank(set, number, err);
        run->ranks[i] = number;
        run->image_bytes[i] = rank->image_bytes;
        run->total_bytes += rank->image_bytes;
        run->rank_count++;
    }
    return 0;
}

/* Sizes come from the manifest alone: nothing is taken before it is known to fit. */
static int judge(struct load_run *run, struct k3_err *err)
{
    struct k3_set *set = NULL;
    int rc = k3_set_open(run->opts->args.item, run->opts->args.count, &set, err);
    if (!rc)
        rc = list_ranks(run, set, err);
    if (!rc && !k3_policy_is_verbatim(&set->plan->policy))
        rc = k3_set_cast_sums(set, &run->casts, err);
    if (!rc) {
        k3_policy_text(&set->plan->policy, run->policy);
        k3_policy_short_text(&set->plan->policy, run->short_policy);
    }
    if (!rc && !strcmp(run->opts->device, "host")) /* a GPU tells when its memory is asked for */
        rc = check_memory(run, err);
    k3_set_close(set);
    return rc;
}

/* ---- the report ---- */

static bool add_ranks(struct k3_doc *root, const struct load_run *run)
{
    struct k3_doc *array = k3_doc_add_array(root, "ranks");
    bool added = array != NULL;
    for (uint32_t i = 0; i < run->rank_count && added; i++) {
        /* Ranks on one device share its reads: each has the time of all of them. */
        const struct k3_load_rank_report *rank = &run->rank_reports[i];
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        double rate = rank->seconds > 0 ? (double)rank->bytes / rank->seconds / 1e9 : 0;
        added = row && k3_doc_add_integer(row, "rank", rank->rank) &&
                k3_doc_add_integer(row, "bytes", rank->bytes) &&
                k3_doc_add_double(row, "seconds", rank->seconds) &&
                k3_doc_add_double(row, "gb_per_s", rate) &&
                k3_doc_add_string(row, "io", rank->io) &&
                k3_doc_add_string(row, "device", rank->device);
    }
    return added;
}

static bool add_phases(struct k3_doc *root, const struct k3_load_report *report)
{
    struct k3_doc *phases = k3_doc_add_object(root, "phases");
    return phases && k3_doc_add_double(phases, "open", report->open_seconds) &&
           k3_doc_add_double(phases, "run", report->seconds) &&
           k3_doc_add_double(phases, "read_wait", report->read_wait_seconds) &&
           k3_doc_add_double(phases, "copy_wait", report->copy_wait_seconds) &&
           k3_doc_add_double(phases, "check_wait", report->check_wait_seconds) &&
           k3_doc_add_double(phases, "reread", report->reread_seconds);
}

static int print_json(const struct load_run *run, const struct k3_load_report *report,
                      struct k3_err *err)
{
    double rate = report->seconds > 0 ? (double)report->bytes / report->seconds / 1e9 : 0;
    struct k3_doc *root = k3_doc_new_object();
    bool added = root && k3_doc_add_integer(root, "bytes", report->bytes) &&
                 k3_doc_add_integer(root, "verified_bytes", report->verified_bytes) &&
                 k3_doc_add_bool(root, "verify", !run->opts->no_verify) &&
                 k3_doc_add_double(root, "seconds", report->seconds) &&
                 k3_doc_add_double(root, "gb_per_s", rate) &&
                 k3_doc_add_string(root, "io", report->io) &&
                 k3_doc_add_bool(root, "direct", report->direct) &&
                 k3_doc_add_string(root, "device", report->device) &&
                 k3_doc_add_integer(root, "pinned_bytes", report->pinned_bytes) &&
                 k3_doc_add_integer(root, "peak_memory_bytes", run->peak_bytes) &&
                 k3_doc_add_integer(root, "reread_units", report->reread_units) &&
                 k3_doc_add_string(root, "policy", run->policy) &&
                 (!run->casts.cast_count || k3_cast_sums_add(root, &run->casts)) &&
                 k3_result_add_lines(root, "fallbacks", report->fallbacks) &&
                 add_ranks(root, run) && add_phases(root, report);
    int rc = added ? k3_result_print(root, err)
                   : k3_fail(err, K3_ENOMEM, "no memory for the report");
    k3_doc_free(root);
    return rc;
}

static uint64_t to_ns(double seconds)
{
    return seconds > 0 && seconds < 1e9 ? (uint64_t)(seconds * 1e9) : 0;
}

/* What stands where the published values do not. */
static void print_policy(const struct load_run *run)
{
    struct k3_text casts;
    k3_text_init(&casts);
    if (run->casts.cast_count)
        k3_cast_sums_put(&run->casts, &casts);
    printf("policy    %s%s%s\n", run->short_policy, casts.bytes ? ": " : "",
           casts.bytes ? casts.data : "");
    k3_text_fini(&casts);
}

static void print_report(const struct load_run *run, const struct k3_load_report *report)
{
    printf("loaded    %s of %u rank%s in %s, %s\n", k3_size_text(report->bytes).s, run->rank_count,
           run->rank_count == 1 ? "" : "s", k3_time_text(to_ns(report->seconds)).s,
           k3_rate_text(report->bytes, to_ns(report->seconds)).s);
    printf("route     %s, %s, to %s\n", report->io,
           report->direct ? "past the page cache" : "through the page cache", report->device);
    print_policy(run);
    if (run->opts->no_verify)
        printf("verified  NOTHING: --no-verify was given\n");
    else
        printf("verified  %s: images and part headers, every unit where it is served from\n",
               k3_size_text(report->verified_bytes).s);
    if (report->reread_units)
        printf("reread    %" PRIu64 " units came wrong once and right by another read\n",
               report->reread_units);
    /* On one device the first line says it all. */
    const char *first = run->rank_reports[0].device;
    bool is_one = !strcmp(first, run->rank_reports[run->rank_count - 1].device);
    for (uint32_t i = 0; i < run->rank_count && !is_one; i++) {
        const struct k3_load_rank_report *rank = &run->rank_reports[i];
        printf("rank %-4u %s to %s, %s\n", rank->rank, k3_size_text(rank->bytes).s, rank->device,
               k3_rate_text(rank->bytes, to_ns(rank->seconds)).s);
    }
    printf("phases    open %s, run %s: waiting for reads %s, for copies %s, for checks %s\n",
           k3_time_text(to_ns(report->open_seconds)).s, k3_time_text(to_ns(report->seconds)).s,
           k3_time_text(to_ns(report->read_wait_seconds)).s,
           k3_time_text(to_ns(report->copy_wait_seconds)).s,
           k3_time_text(to_ns(report->check_wait_seconds)).s);
    printf("memory    peak %s, pinned %s\n", k3_size_text(run->peak_bytes).s,
           k3_size_text(report->pinned_bytes).s);
    for (const char *line = report->fallbacks; *line;) {
        size_t n = strcspn(line, "\n");
        printf("fallback  %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

/* ---- the command ---- */

/* Two documents in one stream are none.  What /dev/null takes is nobody's. */
static int check_trace(const struct k3_opts *opts, struct k3_err *err)
{
    struct stat trace, out;
    if (!opts->json || !opts->trace || stat(opts->trace, &trace) || fstat(STDOUT_FILENO, &out) ||
        trace.st_dev != out.st_dev || trace.st_ino != out.st_ino ||
        (S_ISCHR(out.st_mode) && !isatty(STDOUT_FILENO)))
        return 0;
    return k3_fail(err, K3_EUSAGE,
                   "--trace %s is the standard output, which --json writes to: name a file for the "
                   "trace, or leave --json away",
                   opts->trace);
}

static int on_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct load_run *run = context;
    (void)total_bytes;
    if (done_bytes > run->told_bytes) {
        k3_progress_add(&run->progress, done_bytes - run->told_bytes);
        run->told_bytes = done_bytes;
    }
    return k3_stop_requested();
}

static int load(struct load_run *run, struct k3_err *err)
{
    const struct k3_opts *opts = run->opts;
    struct k3_load *load = NULL;
    struct k3_load_report report;
    struct k3_load_options options = {
        .struct_bytes = sizeof options,
        .dirs = opts->args.item,
        .dir_count = opts->args.count,
        .ranks = run->ranks,
        .rank_count = run->rank_count,
        .device = opts->device,
        .io = k3_opt_choice_name(K3_ID_IO, opts->io),
        .staging_bytes = opts->staging_bytes,
        .no_verify = opts->no_verify,
        .bytes_per_second = opts->max_bytes_per_second,
        .trace_path = opts->trace,
        .progress = on_progress,
        .progress_context = run,
    };
    int rc = k3_load_open(&options, &load, err);
    if (rc)
        return rc;
    k3_progress_begin(&run->progress, "load", run->total_bytes, opts->quiet);
    rc = k3_load_run(load, err);
    k3_progress_end(&run->progress);
    if (rc)
        goto out;
    k3_load_get_report(load, &report);
    for (uint32_t i = 0; i < run->rank_count && !rc; i++)
        rc = k3_load_get_rank_report(load, run->ranks[i], &run->rank_reports[i], err);
    (void)k3_mem_field("/proc/self/status", "VmHWM", 1024, &run->peak_bytes);
    if (opts->json)
        rc = print_json(run, &report, err);
    else
        print_report(run, &report);
out:
    k3_load_close(load);
    return rc;
}

int k3_cmd_load(const struct k3_opts *opts, struct k3_err *err)
{
    struct load_run *run = calloc(1, sizeof *run);
    if (!run)
        return k3_fail(err, K3_ENOMEM, "no memory to load");
    run->opts = opts;
    k3_raise_file_limit(); /* a file stays open for each part: 760 of K3 at TP8, twice if direct */
    int rc = check_trace(opts, err);
    if (!rc)
        rc = judge(run, err);
    if (!rc)
        rc = load(run, err);
    free(run->ranks);
    free(run->image_bytes);
    free(run->rank_reports);
    free(run);
    return rc;
}
