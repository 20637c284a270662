/* Purpose: run a conversion: open, judge, resume, spread items over workers, seal.
 * Owns: the workers' buffers.
 * Threads: starts and joins the workers.
 * Errors: all of its steps; K3_EUNSUPPORTED for a directory that holds something else or has no
 * room, K3_ECANCELED.
 * Invariant: nothing is written before checkpoint, layout, budget, directory and free space were
 * judged; --force removes nothing before all of that but the space, and the survey, was. */
#include "convert.h"

#include "advice.h"
#include "cast_again.h"
#include "fdlimit.h"
#include "io_direct.h"
#include "mem.h"
#include "part.h"
#include "scatter.h"
#include "sha256.h"
#include "sizes.h"
#include "stop.h"
#include "text.h"
#include "tree.h"
#include "workers.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES_MAX (4u << 20) /* larger reads gain nothing, and this stays near the cache */
#define CHUNK_BYTES_MIN K3_UNIT_BYTES
#define CHUNK_COUNT     8u /* of a worker: one to gather, two to write, five to read */
#define WRITE_SHARE     3u /* one of three is to write: the rest is to read, twice as much */
#define SPARE_BYTES     (64ull << 20) /* records and the file system's own needs */

/* ---- before anything is written ---- */

/* Real path of a directory that may not be there yet (its parent is); malloc, NULL with errno. */
static char *real_path(const char *path)
{
    char *real = realpath(path, NULL);
    if (real || errno != ENOENT)
        return real;
    char *copy = strdup(path), *joined = NULL;
    size_t n = copy ? strlen(copy) : 0;
    while (n > 1 && copy[n - 1] == '/')
        copy[--n] = 0;
    char *slash = copy ? strrchr(copy, '/') : NULL;
    const char *name = slash ? slash + 1 : copy;
    char *parent = copy ? realpath(slash == copy ? "/"
                                   : slash       ? (*slash = 0, copy)
                                                 : ".",
                                   NULL)
                        : NULL;
    if (parent && asprintf(&joined, "%s/%s", parent, name) < 0)
        joined = NULL;
    free(parent);
    free(copy);
    return joined;
}

/* Output in the checkpoint's own folder, or below it, would mix the two for ever. */
static int check_apart(const struct k3_ckpt *ckpt, const struct k3_convert_options *options,
                       struct k3_err *err)
{
    int rc = 0;
    char *in = realpath(ckpt->dir.path, NULL);
    size_t n = in ? strlen(in) : 0;
    if (!in)
        return k3_fail_sys(err, errno, "%s: cannot be reached", ckpt->dir.path);
    for (uint32_t d = 0; d < options->out_count && !rc; d++) {
        char *out = real_path(options->outs[d]);
        if (!out && errno != ENOENT) /* that one, opening it says */
            rc = k3_fail_path(err, errno, options->outs[d], "be reached");
        else if (out && !strncmp(in, out, n) && (out[n] == '/' || !out[n]))
            rc = k3_fail(err, K3_EUNSUPPORTED,
                         "--out %s is the checkpoint's own folder or lies in it: nothing is ever "
                         "written there; give another directory",
                         options->outs[d]);
        free(out);
    }
    free(in);
    return rc;
}

static uint64_t memory_of(const struct k3_convert_options *options)
{
    return options->memory_bytes ? options->memory_bytes : K3_CONVERT_MEMORY_BYTES;
}

/* Of one worker. */
static uint64_t least_memory(const struct k3_convert_options *options)
{
    return 2 * CHUNK_BYTES_MIN + (options->gpu ? K3_CAST_LANE_BYTES : 0);
}

static int check_memory(const struct k3_convert_options *options, struct k3_err *err)
{
    const uint64_t least = least_memory(options);
    if (memory_of(options) >= least)
        return 0;
    return k3_fail(err, K3_EUNSUPPORTED,
                   "--memory %s: a worker needs two buffers of 512 KiB%s: give %uMiB or more",
                   k3_size_text(memory_of(options)).s, options->gpu ? " and 2 MiB for a GPU" : "",
                   (unsigned)(least >> 20));
}

/* A policy that changes nothing leaves a GPU nothing to do. */
static int check_idle(const struct k3_convert_options *options, const struct k3_plan *plan,
                      struct k3_err *err)
{
    if (options->gpu && !k3_policy_casts(&plan->policy, &plan->config))
        return k3_fail(err, K3_EUSAGE,
                       "--device: nothing is cast, so a GPU has nothing to do: leave it out, or "
                       "give a --quant that casts");
    if (options->opts)
        k3_say_policy(options->opts, plan);
    return 0;
}

static void say_removal(const struct k3_job *job, const struct k3_job_removal *removal)
{
    if (removal->part_count == 0 && removal->item_count == 0)
        return;
    fprintf(stderr, "notice: --force removes what is in %s%s: ", k3_printable(job->outs[0].path).s,
            job->dir_count > 1 ? " and the other --out directories" : "");
    if (removal->item_count)
        fprintf(stderr, "an unfinished conversion with %u finished item%s%s", removal->item_count,
                removal->item_count == 1 ? "" : "s", removal->part_count ? ", " : "");
    if (removal->part_count)
        fprintf(stderr, "%u part%s", removal->part_count, removal->part_count == 1 ? "" : "s");
    if (removal->unlisted_count)
        fprintf(stderr, "; its manifest does not list %u file%s (%s is the first)",
                removal->unlisted_count, removal->unlisted_count == 1 ? "" : "s",
                removal->unlisted);
    fputc('\n', stderr);
}

/* Items of this run, finished or not. */
static int list_wanted(struct k3_convert *convert, const struct k3_convert_options *options,
                       struct k3_err *err)
{
    const uint32_t count = convert->ckpt->plan->item_count;
    if (!convert->items)
        convert->items = calloc(count, sizeof *convert->items);
    if (!convert->items)
        return k3_fail(err, K3_ENOMEM, "no memory for %u items", count);
    convert->item_count = 0;
    for (uint32_t item = 0; item < count; item++)
        if ((!options->workers || item % options->workers == options->worker) &&
            k3_ckpt_needs_item(convert->ckpt, item))
            convert->items[convert->item_count++] = item;
    return 0;
}

/* Which folder a file lies in that a worker failed on: one of several --out, or the checkpoint. */
static int fail_in_folder(const struct k3_convert *convert, int rc, struct k3_err *err)
{
    uint32_t rank, part;
    if (rc && k3_part_name_decode(err->file, &rank, &part))
        return k3_fail_in(&convert->job->outs[k3_job_dir_of(convert->job, rank, part)], rc, err);
    return k3_fail_in(
        strcmp(err->file, K3_HEADERS_NAME) ? &convert->ckpt->dir : &convert->job->outs[0], rc, err);
}

static int survey_task(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct k3_convert *convert = context;
    (void)worker;
    return fail_in_folder(convert, k3_survey_item(&convert->survey, convert->items[task], err),
                          err);
}

/* Whole matrices are looked at before the first byte is written, and of --force before the first is
 * removed. */
static int survey(struct k3_convert *convert, const struct k3_convert_options *options,
                  struct k3_err *err)
{
    struct k3_workers_options work = {.worker_count = options->jobs ? options->jobs
                                                                    : k3_cpu_count(),
                                      .task_count = convert->item_count,
                                      .task = survey_task,
                                      .context = convert,
                                      .stop = k3_stop_requested};
    if (convert->survey.globals || !k3_survey_is_needed(convert->ckpt->plan))
        return 0;
    int rc = k3_survey_open(convert->ckpt, &convert->survey, err);
    return rc ? rc : k3_workers_run(&work, err);
}

static void count_file(struct k3_convert *convert, uint64_t bytes, uint64_t *work_bytes)
{
    *work_bytes += bytes;
    if (bytes > convert->file_bytes_max)
        convert->file_bytes_max = bytes;
}

/* Room for what goes to the file system of directory d, all directories on it together, beside what
 * --force will free (NULL: nothing, or it has). */
static int check_room(struct k3_job *job, const uint64_t *need, const uint64_t *freed, uint32_t d,
                      struct k3_err *err)
{
    struct stat own, other;
    uint64_t free_bytes = 0, bytes = 0, freed_bytes = 0;
    int rc = k3_dir_free_bytes(&job->outs[d], &free_bytes, err);
    if (rc)
        return rc;
    if (fstat(job->outs[d].fd, &own))
        return k3_fail_sys(err, errno, "%s", job->outs[d].path);
    for (uint32_t i = 0; i < job->dir_count; i++)
        if (i == d || (!fstat(job->outs[i].fd, &other) && other.st_dev == own.st_dev)) {
            bytes += need[i];
            freed_bytes += freed ? freed[i] : 0;
        }
    bytes += bytes / 100 < SPARE_BYTES ? bytes / 100 : SPARE_BYTES;
    if (free_bytes + freed_bytes >= bytes)
        return 0;
    if (freed)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s: %s are needed, %s are free and what --force removes gives %s: make "
                       "room or give another --out; nothing was removed",
                       job->outs[d].path, k3_size_text(bytes).s, k3_size_text(free_bytes).s,
                       k3_size_text(freed_bytes).s);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "%s: %s are needed, %s are free: make room or give another --out",
                   job->outs[d].path, k3_size_text(bytes).s, k3_size_text(free_bytes).s);
}

/* Bytes the remaining items will write, counted for each directory; enough room, or exit 4 now and
 * not in hours. */
static int check_space(struct k3_convert *convert, const uint64_t *freed, uint64_t *work_bytes,
                       struct k3_err *err)
{
    struct k3_job *job = convert->job;
    assert(job->dir_count > 0);
    uint64_t *need = calloc(job->dir_count, sizeof *need);
    int rc = need ? 0 : k3_fail(err, K3_ENOMEM, "no memory for the space check");
    *work_bytes = 0;
    for (uint32_t i = 0; i < convert->item_count && !rc; i++) {
        const struct k3_item *item = &convert->ckpt->plan->items[convert->items[i]];
        for (uint32_t f = 0; f < item->file_count; f++)
            if (k3_ckpt_needs_file(convert->ckpt, item->files[f]))
                count_file(convert, convert->ckpt->plan->sources[item->files[f]].bytes, work_bytes);
        struct k3_scatter *scatter = NULL;
        rc = k3_scatter_open(convert->ckpt, convert->items[i], &scatter, err);
        for (uint32_t t = 0; !rc && t < scatter->target_count; t++) {
            const struct k3_target *target = &scatter->targets[t];
            need[k3_job_dir_of(job, target->part.rank, target->part.part)] += target->file_bytes;
            count_file(convert, target->file_bytes, work_bytes);
        }
        k3_scatter_close(scatter);
    }
    if (!rc) /* the records' and the report's */
        need[0] += k3_cast_count(convert->ckpt->plan) *
                   (sizeof(struct k3_disk_cast_row) + K3_CAST_LINE_BYTES);
    for (uint32_t d = 0; d < job->dir_count && !rc && convert->item_count; d++)
        rc = check_room(job, need, freed, d, err);
    free(need);
    return rc;
}

/* Of --force: nothing that is there goes before room and survey have shown that it can be replaced.
 */
static int replace(struct k3_convert *convert, const struct k3_convert_options *options,
                   struct k3_convert_report *report, struct k3_err *err)
{
    const struct k3_plan *plan = convert->ckpt->plan;
    struct k3_job *job = convert->job;
    struct k3_job_removal removal;
    uint64_t work_bytes;
    int rc = k3_job_check_foreign(job, &plan->config, &plan->layout, K3_FOREIGN_FORCE, err);
    if (!rc)
        rc = k3_job_survey_removal(job, &removal, err);
    if (!rc)
        rc = list_wanted(convert, options, err);
    if (!rc)
        rc = check_space(convert, removal.freed_bytes, &work_bytes, err);
    if (!rc)
        rc = survey(convert, options, err);
    if (rc)
        return rc;
    k3_job_find_strays(job, &report->strays);
    if (!options->quiet) /* hours before the report, and after a failure too */
        say_removal(job, &removal);
    rc = k3_job_clear_partial(job, err); /* before the set: it refuses where another run is */
    return rc ? rc : k3_job_clear_set(job, err);
}

/* The set is there already: judge it as it is, unless another run replaces it meanwhile. */
static int take_finished(struct k3_job *job, const struct k3_plan *plan,
                         struct k3_convert_report *report, struct k3_err *err)
{
    struct k3_err judged;
    struct stat seen;
    bool found;
    int rc = k3_job_find_set(job, &found, &seen, err);
    if (rc)
        return rc;
    k3_err_init(&judged);
    rc = k3_job_check_finished(job, &judged);
    if (!rc)
        (void)k3_casts_of_set(job, plan, &report->casts, &judged);
    rc = k3_job_end_judging(job, &seen, &judged, err);
    return rc ? rc : k3_job_clear_partial(job, err);
}

/* Settle what the directories hold: was_finished when there is nothing to do. */
static int settle(struct k3_convert *convert, const struct k3_convert_options *options,
                  struct k3_convert_report *report, struct k3_err *err)
{
    struct k3_job *job = convert->job;
    const struct k3_ckpt *ckpt = convert->ckpt;
    const struct k3_plan *plan = ckpt->plan;
    enum k3_job_state state;
    char found[K3_JOB_FOUND_BYTES];
    struct k3_err damaged;
    k3_err_init(&damaged);
    int rc = options->force ? 0 : k3_job_check_order(job, err);
    if (!rc)
        rc = k3_job_state(job, plan, &state, found, options->force ? &damaged : err);
    if (rc && !options->force)
        return rc;
    if (rc)
        state = K3_JOB_OTHER; /* a damaged manifest is no reason to refuse --force */
    report->was_finished = state == K3_JOB_FINISHED && !options->force;
    if (report->was_finished)
        return take_finished(job, plan, report, err);
    if (state == K3_JOB_OTHER && !options->force) {
        rc = k3_job_drop_idle(job, plan, &state, found, err);
        if (rc)
            return rc;
        if (state == K3_JOB_NEW && !options->quiet)
            fprintf(stderr, "notice: %s held %s, of which no item was finished: begun anew\n",
                    k3_printable(job->outs[0].path).s, found);
    }
    if (state == K3_JOB_OTHER && !options->force)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s holds %s: repeat the command that made it, give another --out, or "
                       "replace it with --force",
                       job->outs[0].path, found);
    if (options->force)
        return replace(convert, options, report, err);
    rc = k3_job_check_foreign(job, &plan->config, &plan->layout,
                              state == K3_JOB_NEW ? K3_FOREIGN_NEW : K3_FOREIGN_RESUME, err);
    if (!rc && state == K3_JOB_NEW)
        rc = k3_job_check_copied(job, ckpt, err);
    report->plan_was_lost = job->plan_is_lost;
    return rc;
}

/* Items that have no usable record yet. */
static int list_items(struct k3_convert *convert, const struct k3_convert_options *options,
                      struct k3_convert_report *report, struct k3_err *err)
{
    int rc = list_wanted(convert, options, err);
    const uint32_t wanted_count = convert->item_count;
    convert->item_count = 0;
    for (uint32_t i = 0; i < wanted_count && !rc; i++) {
        const uint32_t item = convert->items[i];
        struct k3_record record;
        bool found;
        rc = k3_job_done(convert->job, convert->ckpt->plan, item, &record, &found, err);
        if (!rc && found) {
            report->resumed_count++;
            k3_record_fini(&record);
        } else if (!rc) {
            convert->items[convert->item_count++] = item;
        }
    }
    report->done_count = convert->item_count;
    return rc;
}

/* Staged files that no record names are left-overs of attempts that were killed. */
static int clear_leftovers(struct k3_convert *convert, struct k3_err *err)
{
    struct k3_job *job = convert->job;
    char(*tokens)[K3_TOKEN_BYTES + 1] = calloc(convert->ckpt->plan->item_count + 1, sizeof *tokens);
    uint32_t token_count = 0;
    int rc = 0;
    if (!tokens)
        return k3_fail(err, K3_ENOMEM, "no memory for the list of attempts");
    for (uint32_t item = 0; item < convert->ckpt->plan->item_count && !rc; item++) {
        struct k3_record record;
        bool found;
        rc = k3_job_record(job, item, &record, &found, err);
        if (rc || !found)
            continue;
        memcpy(tokens[token_count++], record.token, sizeof tokens[0]);
        k3_record_fini(&record);
    }
    for (uint32_t d = 0; d < job->dir_count && !rc; d++) {
        char **names = NULL;
        uint32_t count = 0;
        rc = k3_dir_list(&job->partials[d], &names, &count, err);
        for (uint32_t n = 0; n < count && !rc; n++) {
            bool keep = !strcmp(names[n], K3_PLAN_NAME) || !strcmp(names[n], K3_SOURCES_NAME) ||
                        !strcmp(names[n], K3_RANKS_NAME) || !strcmp(names[n], K3_PLACE_NAME);
            char name[K3_STAGED_NAME_BYTES];
            for (uint32_t t = 0; t < token_count && !keep; t++)
                keep = k3_name_ends(names[n], tokens[t]);
            for (uint32_t i = 0; i < convert->ckpt->plan->item_count && !keep; i++) {
                k3_record_name(i, name);
                keep = !strcmp(names[n], name);
            }
            if (!keep)
                rc = k3_file_remove(&job->partials[d], names[n], err);
        }
        k3_names_free(names, count);
    }
    free(tokens);
    return rc;
}

/* ---- the run ---- */

/* Slots and their size: what memory allows, and no more than the largest file fills. */
static void set_slots(struct k3_convert *convert, uint64_t worker_bytes)
{
    uint64_t whole = (convert->file_bytes_max + K3_UNIT_BYTES - 1) / K3_UNIT_BYTES * K3_UNIT_BYTES;
    whole = whole ? whole : K3_UNIT_BYTES; /* nothing is left to do: only the seal */
    uint64_t chunk = worker_bytes / CHUNK_COUNT / K3_UNIT_BYTES * K3_UNIT_BYTES;
    chunk = chunk > CHUNK_BYTES_MAX ? CHUNK_BYTES_MAX : chunk;
    chunk = chunk > whole ? whole : chunk;
    chunk = chunk < CHUNK_BYTES_MIN ? CHUNK_BYTES_MIN : chunk;
    uint64_t useful = (whole + chunk - 1) / chunk;
    uint64_t rest = worker_bytes - chunk; /* one is the gather buffer */
    uint64_t writes = rest / chunk / WRITE_SHARE;
    writes = writes > useful ? useful : writes;
    writes = writes > K3_WRITER_SLOT_COUNT_MAX ? K3_WRITER_SLOT_COUNT_MAX : writes;
    rest -= writes * (chunk + K3_DIRECT_ALIGN_MAX);
    uint64_t reads = rest / chunk;
    reads = reads > useful ? useful : reads;
    reads = reads > K3_READER_SLOT_COUNT_MAX ? K3_READER_SLOT_COUNT_MAX : reads;
    assert(reads > 0);
    convert->chunk_bytes = (size_t)chunk;
    convert->slot_count = (uint32_t)reads;
    convert->write_count = (uint32_t)writes;
}

static int open_worker(struct k3_convert *convert, struct k3_convert_worker *worker,
                       struct k3_err *err)
{
    const size_t write_bytes = convert->chunk_bytes + K3_DIRECT_ALIGN_MAX;
    void *source = NULL, *packed = NULL, *writes = NULL;
    int rc = k3_mem_alloc(convert->slot_count * convert->chunk_bytes, &source, err);
    if (!rc)
        rc = k3_mem_alloc(convert->chunk_bytes, &packed, err);
    if (!rc && convert->write_count)
        rc = k3_mem_alloc(convert->write_count * write_bytes, &writes, err);
    worker->source = source;
    worker->packed = packed;
    worker->writes = writes;
    worker->writer = (struct k3_writer){.route = &convert->route,
                                        .slots = writes,
                                        .slot_bytes = write_bytes,
                                        .slot_count = convert->write_count};
    worker->reader = (struct k3_reader){.route = &convert->route,
                                        .slots = source,
                                        .slot_bytes = convert->chunk_bytes,
                                        .slot_count = convert->slot_count};
    if (!rc)
        rc = k3_sha256_open(&worker->sha, err);
    if (!rc)
        rc = k3_tree_open(&worker->tree, err);
    if (!rc && convert->gpu)
        rc = k3_cast_lane_open(convert->gpu, &worker->lane, err);
    return rc ? rc : k3_writer_open(&worker->writer, err);
}

static int open_workers(struct k3_convert *convert, const struct k3_convert_options *options,
                        struct k3_err *err)
{
    uint32_t jobs = options->jobs ? options->jobs : k3_cpu_count();
    const uint64_t memory = memory_of(options), least = least_memory(options);
    if (jobs > convert->item_count)
        jobs = convert->item_count ? convert->item_count : 1;
    if (jobs > memory / least)
        jobs = (uint32_t)(memory / least);
    assert(jobs > 0); /* memory holds two buffers, and there is a core */
    set_slots(convert, memory / jobs - (convert->gpu ? K3_CAST_LANE_BYTES : 0));
    convert->workers = calloc(jobs, sizeof *convert->workers);
    if (!convert->workers)
        return k3_fail(err, K3_ENOMEM, "no memory for %u workers", jobs);
    convert->worker_count = jobs;
    int rc = 0;
    for (uint32_t w = 0; w < jobs && !rc; w++)
        rc = open_worker(convert, &convert->workers[w], err);
    return rc;
}

static void close_workers(struct k3_convert *convert)
{
    const size_t write_bytes = convert->chunk_bytes + K3_DIRECT_ALIGN_MAX;
    for (uint32_t w = 0; w < convert->worker_count; w++) {
        k3_writer_close(&convert->workers[w].writer);
        k3_mem_free(convert->workers[w].writes, convert->write_count * write_bytes);
        k3_mem_free(convert->workers[w].source, convert->slot_count * convert->chunk_bytes);
        k3_mem_free(convert->workers[w].packed, convert->chunk_bytes);
        k3_sha256_close(convert->workers[w].sha);
        k3_tree_close(convert->workers[w].tree);
        k3_cast_lane_close(convert->workers[w].lane);
    }
    k3_cast_gpu_close(convert->gpu);
    k3_survey_close(&convert->survey);
    free(convert->workers);
    free(convert->items);
}

static int run_task(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct k3_convert *convert = context;
    int rc = k3_convert_item(convert, worker, convert->items[task], err);
    if (!rc)
        atomic_fetch_add(&convert->finished_count, 1);
    return fail_in_folder(convert, rc, err);
}

static int run_items(struct k3_convert *convert, const struct k3_convert_options *options,
                     struct k3_convert_report *report, struct k3_err *err)
{
    uint64_t work_bytes = 0;
    int rc = list_items(convert, options, report, err);
    if (!rc && !options->workers) /* of others' files a worker cannot say which are left over */
        rc = clear_leftovers(convert, err);
    if (!rc) {
        rc = check_space(convert, NULL, &work_bytes, err);
        if (!rc)
            rc = survey(convert, options, err);
        if (rc && !report->resumed_count && !options->workers)
            k3_job_clear_partial(convert->job, NULL); /* nothing in it that is worth keeping */
    }
    if (!rc)
        rc = open_workers(convert, options, err);
    if (rc)
        return rc;
    k3_raise_file_limit();
    k3_progress_begin(&convert->progress, "convert", work_bytes, options->quiet);
    struct k3_workers_options work = {.worker_count = convert->worker_count,
                                      .task_count = convert->item_count,
                                      .task = run_task,
                                      .context = convert,
                                      .stop = k3_stop_requested};
    struct k3_err inner;
    k3_err_init(&inner);
    rc = k3_workers_run(&work, &inner);
    report->seconds_ns = k3_progress_end(&convert->progress);
    if (rc == K3_ECANCELED)
        return k3_fail(err, rc,
                       "stopped on request; %u of %u items are finished and kept: run the same "
                       "command %s to resume",
                       report->resumed_count + atomic_load(&convert->finished_count),
                       report->resumed_count + convert->item_count,
                       options->force ? "without --force" : "again");
    if (rc)
        *err = inner;
    return rc;
}

static void fill_report(const struct k3_ckpt *ckpt, const struct k3_convert_options *options,
                        struct k3_convert_report *report)
{
    const struct k3_plan *plan = ckpt->plan;
    k3_splits_find(plan, &report->splits);
    report->rank_count = ckpt->ranks.count;
    for (uint32_t rank = 0; rank < k3_layout_world(&plan->layout); rank++) {
        struct k3_rank_sizes sizes;
        if (!k3_ranks_has(&ckpt->ranks, rank))
            continue;
        k3_rank_sizes(&plan->config, &plan->layout, &plan->policy, rank, &sizes);
        report->image_bytes += sizes.image_bytes;
        report->part_count += sizes.part_count;
    }
    report->item_count = k3_ckpt_item_count(ckpt);
    if (!options->workers)
        return;
    report->item_count = 0;
    for (uint32_t item = options->worker; item < plan->item_count; item += options->workers)
        report->item_count += k3_ckpt_needs_item(ckpt, item);
}

static int begin_job(struct k3_convert *convert, bool shared, struct k3_err *err)
{
    int rc = k3_job_turn_begin(convert->job, err);
    if (rc)
        return rc;
    rc = k3_job_begin(convert->job, convert->ckpt->plan, shared, err);
    if (!rc)
        rc = k3_job_check_sources(convert->job, convert->ckpt, shared, err);
    k3_job_turn_end(convert->job);
    return rc;
}

/* What is left once the directories are settled: items, then the seal. */
static int run_job(struct k3_convert *convert, const struct k3_convert_options *options,
                   struct k3_convert_report *report, struct k3_err *err)
{
    const struct k3_plan *plan = convert->ckpt->plan;
    int rc = begin_job(convert, options->workers > 0, err);
    if (!rc)
        rc = run_items(convert, options, report, err);
    if (!rc && options->workers)
        rc = k3_casts_of_worker(convert->job, plan, options->worker, options->workers,
                                &report->casts, err);
    else if (!rc)
        rc = k3_seal(convert->job, plan->text, plan->text_bytes, &report->casts, err);
    report->read_bytes = atomic_load(&convert->read_bytes);
    report->survey_bytes = atomic_load(&convert->survey.read_bytes);
    report->written_bytes = atomic_load(&convert->written_bytes);
    report->hub_same_count = atomic_load(&convert->hf.same_count);
    report->hub_outdated_count = atomic_load(&convert->hf.outdated_count);
    memcpy(report->hub_outdated, convert->hf.outdated, sizeof report->hub_outdated);
    return rc;
}

int k3_convert(const struct k3_convert_options *options, struct k3_convert_report *report,
               struct k3_problems *problems, struct k3_err *err)
{
    struct k3_ckpt_options ckpt_options = {.path = options->ckpt_path,
                                           .layout = options->layout,
                                           .policy = options->policy,
                                           .revision = options->revision,
                                           .ranks = options->ranks};
    struct k3_convert convert;
    struct k3_ckpt *ckpt = NULL;
    struct k3_job job;
    memset(report, 0, sizeof *report);
    k3_cast_summary_init(&report->casts);
    memset(&convert, 0, sizeof convert);
    memset(&job, 0, sizeof job);
    int rc = k3_ckpt_open(&ckpt_options, &ckpt, problems, err);
    if (!rc)
        rc = k3_check_budget(ckpt->plan, options->budget_bytes, err);
    if (!rc)
        rc = check_apart(ckpt, options, err);
    if (!rc)
        rc = check_memory(options, err);
    if (!rc)
        rc = check_idle(options, ckpt->plan, err);
    if (!rc && options->gpu)
        rc = k3_cast_gpu_open(options->gpu, &convert.gpu, err);
    if (!rc)
        rc = k3_job_open(options->outs, options->out_count, true, &job, err);
    convert.ckpt = ckpt;
    convert.job = &job;
    if (!rc)
        job.ranks = ckpt->ranks;
    if (!rc)
        rc = settle(&convert, options, report, err);
    if (!rc)
        fill_report(ckpt, options, report);
    const char *newer = !rc && report->was_finished ? k3_job_newer_source(&job, ckpt) : NULL;
    if (newer)
        snprintf(report->newer_source, sizeof report->newer_source, "%s", newer);
    if (!rc && !report->was_finished) {
        k3_read_route_init(&convert.route);
        rc = run_job(&convert, options, report, err);
        report->fallbacks = k3_read_route_fini(&convert.route);
    }
    close_workers(&convert);
    k3_job_close(&job);
    k3_ckpt_close(ckpt);
    return rc;
}
