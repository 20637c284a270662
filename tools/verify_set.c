/* Purpose: prove a shard set: every file by its digest, every part unit by unit.
 * Owns: the state of each part and a buffer for each worker, until the run ends.
 * Threads: workers share parts; a unit's state is written by the one task that has the unit, all
 * else of a part by its header task, which has ended before the first unit task begins.
 * Errors: K3_EIO, K3_ENOMEM, K3_ECANCELED, K3_EUNSUPPORTED (a rank the set does not have); what is
 * wrong with the data is a finding.
 * Invariant: every unit of every part asked for ends up right, wrong, unreadable or missing, and
 * all that are not right are listed (the rest of a kind that repeats is counted). */
#include "verify.h"

#include "advice.h"
#include "ckpt.h"
#include "mem.h"
#include "set_casts.h"
#include "sha256.h"
#include "sizes.h"
#include "stop.h"
#include "text.h"
#include "tree.h"
#include "verify_parts.h"
#include "workers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TASK_UNITS     32u /* 16 MiB: 12,000 tasks for a rank of K3, each long beside its open() */
#define DROP_BYTES_MIN (1ull << 30) /* a smaller set crowds nobody out of the page cache */
#define READ_UNITS     4u           /* 2 MiB: stays in L2, one huge page */

/* ---- files that are not parts ---- */

/* *hashed grows where its digest was taken. */
static int check_file(struct k3_verify *verify, const struct k3_dir *dir,
                      const struct k3_file_entry *entry, uint32_t *hashed, struct k3_err *err)
{
    uint8_t digest[K3_DIGEST_BYTES];
    uint64_t bytes = 0;
    struct k3_err inner;
    struct stat stat;
    int fd = -1;
    k3_err_init(&inner);
    if (!k3_file_exists(dir, entry->name)) {
        k3_problems_add(&verify->problems, "%s/%s: missing, though the manifest lists it",
                        dir->path, entry->name);
        return 0;
    }
    int rc = k3_file_open(dir, entry->name, false, &fd, &stat, &inner);
    if (rc)
        return k3_verify_judge(&verify->problems, rc, &inner, err);
    close(fd);
    verify->checked_files++;
    if ((uint64_t)stat.st_size != entry->bytes) {
        k3_problems_add(&verify->problems, "%s/%s: %llu bytes, the manifest records %llu",
                        dir->path, entry->name, (unsigned long long)stat.st_size,
                        (unsigned long long)entry->bytes);
        return 0;
    }
    if (verify->quick)
        return 0;
    rc = k3_verify_sha256(dir, entry->name, false, digest, &bytes, &inner);
    *hashed += !rc;
    if (!rc && memcmp(digest, entry->sha256, sizeof digest)) {
        char found[K3_HEX_BYTES], wanted[K3_HEX_BYTES];
        k3_hex_encode(digest, sizeof digest, found);
        k3_hex_encode(entry->sha256, sizeof digest, wanted);
        k3_problems_add(&verify->problems, "%s/%s: SHA-256 is %s, the manifest records %s",
                        dir->path, entry->name, found, wanted);
    }
    verify->checked_bytes += bytes;
    return k3_verify_judge(&verify->problems, rc, &inner, err);
}

static int check_files(struct k3_set_check *check, struct k3_err *err)
{
    struct k3_verify *verify = check->verify;
    const struct k3_set *set = check->set;
    const struct k3_dir *dir = &set->dirs[set->manifest_dir];
    uint32_t notices = 0;
    int rc = k3_set_check_names(set, &verify->problems, &notices, err);
    if (!rc && notices)
        k3_problems_add(&verify->notices, "%u name%s in the directories not part of the set",
                        notices, notices == 1 ? " is" : "s are");
    for (uint32_t i = 0; i < set->manifest.file_count && !rc; i++)
        rc = check_file(verify, dir, &set->manifest.files[i], &check->copied_count, err);
    if (!rc)
        rc = check_file(verify, dir, &set->manifest.headers, &check->headers_count, err);
    return rc;
}

/* ---- units ---- */

/* What the unit at begin has of the numbers beside casts: they are judged when all are there. */
static void keep_numbers(struct k3_part_check *part, uint64_t begin, const uint8_t *data)
{
    const struct k3_file_range *at = &part->numbers_at;
    const uint64_t end = begin + K3_UNIT_BYTES;
    const uint64_t from = at->begin_offset < begin ? begin : at->begin_offset;
    const uint64_t to = at->end_offset > end ? end : at->end_offset;
    if (part->numbers && from < to)
        memcpy(part->numbers + (from - at->begin_offset), data + (from - begin),
               (size_t)(to - from));
}

/* Scales that can be none are named when all units were read. */
static void look_at_scales(struct k3_part_check *part, uint64_t unit, const uint8_t *data)
{
    const uint64_t begin = unit * K3_UNIT_BYTES - part->entry->data_offset;
    const uint64_t end = begin + K3_UNIT_BYTES;
    uint32_t low = 0, high = part->scale_range_count; /* the first range that ends behind begin */
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (part->scales[middle].end_offset <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < part->scale_range_count && part->scales[low].begin_offset < end; low++) {
        const struct k3_scale_range *range = &part->scales[low];
        const uint64_t from = range->begin_offset < begin ? begin : range->begin_offset;
        const uint64_t to = range->end_offset > end ? end : range->end_offset;
        if (!k3_scales_are_possible(range->dtype, data + (from - begin), (size_t)(to - from)))
            part->has_bad_scale[unit] = 1;
    }
}

/* Judge one unit that lies in memory. */
static void judge_unit(struct k3_part_check *part, uint64_t unit, const uint8_t *data,
                       struct k3_sha256 *sha)
{
    uint8_t own[K3_DIGEST_BYTES];
    uint8_t *digest = part->found ? part->found + unit * K3_DIGEST_BYTES : own;
    k3_unit_digest(sha, data, K3_UNIT_BYTES, digest);
    if (part->wanted && memcmp(digest, part->wanted + unit * K3_DIGEST_BYTES, K3_DIGEST_BYTES)) {
        part->state[unit] = K3_UNIT_IS_WRONG;
        return;
    }
    part->state[unit] = K3_UNIT_IS_RIGHT;
    uint64_t begin = unit * K3_UNIT_BYTES, end = begin + K3_UNIT_BYTES;
    for (uint32_t p = 0; p < part->pad_count; p++) {
        uint64_t from = part->pads[p].begin_offset, to = part->pads[p].end_offset;
        from = from < begin ? begin : from;
        to = to > end ? end : to;
        if (from < to && !k3_is_zero(data + (from - begin), (size_t)(to - from)))
            part->state[unit] = K3_UNIT_PAD_NOT_ZERO;
    }
    keep_numbers(part, begin, data);
    look_at_scales(part, unit, data);
}

/* Read and judge units [first, first + count); one that cannot be read is marked and passed over.
 */
static void judge_range(struct k3_part_check *part, int fd, uint64_t first, uint64_t count,
                        const struct k3_check_worker *worker)
{
    uint64_t offset = first * K3_UNIT_BYTES;
    size_t bytes = (size_t)count * K3_UNIT_BYTES;
    if (k3_file_read(fd, part->name, worker->buffer, bytes, offset, NULL) == 0) {
        for (uint64_t u = 0; u < count; u++)
            judge_unit(part, first + u, worker->buffer + u * K3_UNIT_BYTES, worker->sha);
    } else if (count == 1) {
        part->state[first] = K3_UNIT_UNREADABLE;
    } else {
        for (uint64_t u = 0; u < count; u++)
            judge_range(part, fd, first + u, 1, worker); /* one level: count is 1 there */
    }
}

static int unit_task(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct k3_set_check *check = context;
    uint32_t low = 0, high = check->part_count; /* last part whose first task is <= task */
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (check->parts[middle].first_task <= task)
            low = middle;
        else
            high = middle;
    }
    struct k3_part_check *part = &check->parts[low];
    uint64_t begin = (task - part->first_task) * TASK_UNITS, end = begin + TASK_UNITS;
    uint64_t header_units = part->entry->data_offset / K3_UNIT_BYTES;
    int fd = -1;
    if (end > part->present_count)
        end = part->present_count;
    if (begin < header_units)
        begin = header_units < end ? header_units : end; /* the header task judged those */
    if (begin >= end)
        return 0;
    int rc = k3_file_open(part->dir, part->name, false, &fd, NULL, err);
    if (rc)
        return rc;
    uint64_t offset = begin * K3_UNIT_BYTES, bytes = (end - begin) * K3_UNIT_BYTES;
    (void)posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
    for (uint64_t unit = begin; unit < end; unit += READ_UNITS) {
        uint64_t count = end - unit < READ_UNITS ? end - unit : READ_UNITS;
        judge_range(part, fd, unit, count, &check->workers[worker]);
        k3_progress_add(&check->progress, count * K3_UNIT_BYTES);
    }
    if (check->progress.total_bytes >= DROP_BYTES_MIN)
        k3_file_drop(fd, offset, bytes);
    close(fd);
    return 0;
}

static int header_task(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct k3_set_check *check = context;
    struct k3_part_check *part = &check->parts[task];
    struct k3_err inner;
    int fd = -1;
    k3_err_init(&inner);
    int rc = k3_part_check_open(check, part, &fd, err);
    if (rc || fd < 0)
        return rc;
    uint64_t header_units = part->entry->data_offset / K3_UNIT_BYTES;
    bool good = part->wanted != NULL && part->present_count >= header_units;
    part->is_header_judged = good;
    for (uint64_t u = 0; u < header_units && u < part->present_count; u++) {
        judge_range(part, fd, u, 1, &check->workers[worker]);
        good = good && part->state[u] == K3_UNIT_IS_RIGHT;
        k3_progress_add(&check->progress, K3_UNIT_BYTES);
    }
    rc = good ? k3_part_check_header(check, part, fd, &inner)
              : k3_part_check_stranger(check, part, fd, &inner);
    if (!rc && good)
        rc = k3_set_check_header(check->set, part->entry, fd, &inner);
    if (!rc && good && !check->verify->quick)
        rc = k3_part_check_numbers(check, part, &inner);
    close(fd);
    return k3_verify_judge(&part->problems, rc, &inner, err);
}

static int run_tasks(struct k3_set_check *check, k3_task_fn task, uint64_t count,
                     struct k3_err *err)
{
    struct k3_workers_options options = {.worker_count = check->worker_count,
                                         .task_count = count,
                                         .task = task,
                                         .context = check,
                                         .stop = k3_stop_requested};
    return count ? k3_workers_run(&options, err) : 0;
}

/* ---- the run ---- */

/* Unit digests of a rank, proved; where that fails the parts of the rank are judged as a whole. */
static int read_units(struct k3_set_check *check, const struct k3_manifest_rank *rank,
                      uint8_t **digests, struct k3_err *err)
{
    struct k3_verify *verify = check->verify;
    struct k3_err inner;
    uint64_t count;
    k3_err_init(&inner);
    int rc = k3_set_units(check->set, rank, digests, &count, &inner);
    if (!rc) {
        verify->checked_bytes += rank->units.bytes;
        verify->checked_files++;
    } else {
        k3_ranks_add(&verify->bad_ranks, rank->rank);
    }
    return k3_verify_judge(&verify->problems, rc, &inner, err);
}

static int add_rank(struct k3_set_check *check, const struct k3_manifest_rank *rank,
                    struct k3_err *err)
{
    uint8_t *digests = NULL;
    int rc = read_units(check, rank, &digests, err);
    if (rc)
        return rc;
    check->digests[check->rank_count++] = digests; /* freed with check */
    const uint8_t *wanted = digests;
    for (uint32_t i = 0; i < rank->part_count; i++) {
        struct k3_part_check *part = &check->parts[check->part_count++];
        part->entry = &rank->parts[i];
        part->dir = k3_set_part_dir(check->set, rank->rank, part->entry->part);
        k3_part_name(rank->rank, part->entry->part, part->name);
        k3_problems_init(&part->problems);
        part->unit_count = part->entry->bytes / K3_UNIT_BYTES;
        part->state = calloc((size_t)part->unit_count + 1, 1);
        part->wanted = wanted;
        if (!wanted)
            part->found = calloc((size_t)part->unit_count + 1, K3_DIGEST_BYTES);
        else
            wanted += part->unit_count * K3_DIGEST_BYTES;
        if (!part->state || (!part->wanted && !part->found))
            return k3_fail(err, K3_ENOMEM, "no memory for the state of %s", part->name);
    }
    return 0;
}

static int add_ranks(struct k3_set_check *check, struct k3_err *err)
{
    const struct k3_manifest *manifest = &check->set->manifest;
    const struct k3_verify *verify = check->verify;
    uint32_t wanted = verify->rank_count ? verify->rank_count : manifest->rank_count;
    uint64_t parts = 0;
    for (uint32_t i = 0; i < wanted; i++) {
        const struct k3_manifest_rank *rank = verify->rank_count
                                                  ? k3_set_rank(check->set, verify->ranks[i])
                                                  : &manifest->ranks[i];
        if (!rank)
            return k3_set_fail_rank(check->set, verify->ranks[i], err);
        parts += rank->part_count;
    }
    check->parts = calloc((size_t)parts + 1, sizeof *check->parts);
    check->digests = calloc((size_t)wanted + 1, sizeof *check->digests);
    if (!check->parts || !check->digests)
        return k3_fail(err, K3_ENOMEM, "no memory for the state of %llu parts",
                       (unsigned long long)parts);
    for (uint32_t i = 0; i < wanted; i++) {
        int rc = add_rank(check,
                          verify->rank_count ? k3_set_rank(check->set, verify->ranks[i])
                                             : &manifest->ranks[i],
                          err);
        if (rc)
            return rc;
    }
    return 0;
}

static int open_workers(struct k3_set_check *check, struct k3_err *err)
{
    check->worker_count = check->verify->job_count;
    check->workers = calloc(check->worker_count, sizeof *check->workers);
    if (!check->workers)
        return k3_fail(err, K3_ENOMEM, "no memory for %u workers", check->worker_count);
    for (uint32_t w = 0; w < check->worker_count; w++) {
        void *buffer = NULL;
        int rc = k3_mem_alloc(READ_UNITS * K3_UNIT_BYTES, &buffer, err);
        check->workers[w].buffer = buffer;
        if (!rc)
            rc = k3_sha256_open(&check->workers[w].sha, err);
        if (rc)
            return rc;
    }
    return 0;
}

static void close_check(struct k3_set_check *check)
{
    for (uint32_t w = 0; check->workers && w < check->worker_count; w++) {
        k3_mem_free(check->workers[w].buffer, READ_UNITS * K3_UNIT_BYTES);
        k3_sha256_close(check->workers[w].sha);
    }
    free(check->workers);
    for (uint32_t p = 0; p < check->part_count; p++)
        k3_part_check_fini(&check->parts[p]);
    free(check->parts);
    for (uint32_t r = 0; r < check->rank_count; r++)
        free(check->digests[r]);
    free(check->digests);
    k3_ckpt_close(check->ckpt);
}

/* Headers of all parts, then (unless quick) all their other units. */
static int check_parts(struct k3_set_check *check, struct k3_err *err)
{
    uint64_t total_bytes = 0, task_count = 0;
    for (uint32_t p = 0; p < check->part_count; p++)
        total_bytes += check->verify->quick ? check->parts[p].entry->data_offset
                                            : check->parts[p].entry->bytes;
    k3_progress_begin(&check->progress, "verify", total_bytes, check->verify->quiet);
    int rc = run_tasks(check, header_task, check->part_count, err);
    if (!rc && !check->verify->quick) {
        for (uint32_t p = 0; p < check->part_count; p++) {
            check->parts[p].first_task = task_count;
            task_count += k3_div_up(check->parts[p].present_count, TASK_UNITS);
        }
        rc = run_tasks(check, unit_task, task_count, err);
    }
    check->verify->spent_ns += k3_progress_end(&check->progress);
    return rc;
}

/* The plan of the set, made again from its source headers: what every part header must agree with.
 */
static int rebuild_plan(struct k3_set_check *check, struct k3_err *err)
{
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = k3_ckpt_open_set(check->set, &check->ckpt, &inner);
    if (!rc)
        k3_verify_checked(check->verify, "plan");
    return k3_verify_judge(&check->verify->problems, rc, &inner, err);
}

/* The report of the casts tells of all that the policy casts. */
static int check_report(struct k3_set_check *check, struct k3_err *err)
{
    struct k3_verify *verify = check->verify;
    const struct k3_set *set = check->set;
    struct k3_cast_summary casts;
    struct k3_err inner;
    bool found = false;
    if (k3_policy_is_verbatim(&set->plan->policy) || verify->quick)
        return 0;
    k3_err_init(&inner);
    int rc = k3_set_check_report(set, check->ckpt->plan, &found, &casts, &inner);
    if (!rc && found)
        k3_verify_checked(verify, "report of %s casts", k3_count_text(casts.tensor_count).s);
    else if (!rc)
        k3_problems_add(&verify->notices, "the set has no report of its casts: nothing tells how "
                                          "well its values were kept");
    return k3_verify_judge(&verify->problems, rc, &inner, err);
}

static int check_set(struct k3_verify *verify, const struct k3_set *set, struct k3_err *err)
{
    struct k3_set_check *check = calloc(1, sizeof *check); /* holds a progress: not for the stack */
    if (!check)
        return k3_fail(err, K3_ENOMEM, "no memory to verify");
    check->verify = verify;
    check->set = set;
    uint64_t before = verify->problems.count;
    int rc = check_files(check, err);
    if (!rc && verify->problems.count == before)
        rc = rebuild_plan(check, err);
    if (!rc && verify->problems.count == before)
        rc = check_report(check, err);
    if (!rc)
        rc = add_ranks(check, err);
    if (!rc)
        rc = open_workers(check, err);
    if (!rc)
        rc = check_parts(check, err);
    if (!rc)
        rc = k3_part_checks_report(check, err);
    close_check(check);
    free(check);
    return rc;
}

static void describe(struct k3_verify *verify, const struct k3_set *set)
{
    char layout[256], shown[K3_RANKS_SHOWN_BYTES];
    k3_layout_describe(&set->layout, layout, sizeof layout);
    k3_text_putf(&verify->subject, "shard set %s", set->dirs[set->manifest_dir].path);
    if (set->dir_count > 1)
        k3_text_putf(&verify->subject, " and %u more", set->dir_count - 1);
    k3_text_putf(&verify->subject, ": %s", layout);
    if (!k3_policy_is_verbatim(&set->plan->policy)) {
        char policy[K3_POLICY_TEXT_BYTES];
        k3_policy_short_text(&set->plan->policy, policy);
        k3_text_putf(&verify->subject, ", cast %s", policy);
    }
    if (k3_set_is_partial(set))
        k3_text_putf(&verify->subject, "; rank%s %s of %u", set->ranks.count == 1 ? "" : "s",
                     k3_ranks_shown(&set->ranks, shown), k3_layout_world(&set->layout));
    k3_verify_checked(verify, "manifest");
}

/* The options that give the plan of a set again. */
static void put_options(const struct k3_set *set, struct k3_text *line)
{
    k3_layout_put_options(&set->layout, line);
    if (!k3_policy_is_verbatim(&set->plan->policy)) {
        char policy[K3_POLICY_TEXT_BYTES];
        k3_policy_short_text(&set->plan->policy, policy);
        k3_text_puts(line, " --quant ");
        k3_text_put_in_quotes(line, policy);
    }
    if (set->plan->revision[0]) {
        k3_text_puts(line, " --revision ");
        k3_text_put_in_quotes(line, set->plan->revision);
    }
}

/* The next step where something is wrong: the commands that make the set again, as far as the set
 * itself knows them.  Where only some of its ranks are hurt, these can be made alone: parts of a
 * rank have the same bytes whatever other ranks there are. */
static void say_next(struct k3_verify *verify, const struct k3_set *set)
{
    struct k3_text line, some;
    k3_text_init(&line);
    k3_text_init(&some);
    if (verify->bad_ranks.count && verify->bad_ranks.count < set->ranks.count) {
        char shown[K3_RANKS_SHOWN_BYTES];
        k3_text_putf(&some,
                     ", or make rank%s %s again alone and copy these files from NEW: k3-shard "
                     "convert CKPT --out NEW",
                     verify->bad_ranks.count == 1 ? "" : "s",
                     k3_ranks_shown(&verify->bad_ranks, shown));
        put_options(set, &some);
        k3_text_puts(&some, " --ranks ");
        k3_ranks_put(&verify->bad_ranks, &some);
    }
    for (uint32_t place = 0; place < set->dir_count; place++) {
        k3_text_puts(&line, " --out ");
        k3_text_put_quoted(&line, set->dirs[set->dir_of_place[place]].path);
    }
    put_options(set, &line);
    if (k3_set_is_partial(set)) {
        k3_text_puts(&line, " --ranks ");
        k3_ranks_put(&set->ranks, &line);
    }
    verify->next.failed = verify->next.failed || line.failed || some.failed;
    k3_verify_say(&verify->next,
                  "give all directories of the set, remove files that it does not list, and "
                  "restore those named above from a copy of it%s; or convert again: k3-shard "
                  "convert CKPT%s --force",
                  some.bytes ? some.data : "", line.bytes ? line.data : "");
    k3_text_fini(&line);
    k3_text_fini(&some);
}

/* The same where the set is sound and the checkpoint is not its own: nothing is made again from one
 * that may be the damaged side. */
static void say_next_against(struct k3_verify *verify)
{
    k3_verify_say(&verify->next,
                  "the set itself is as it was made: look whether %s is the checkpoint it was made "
                  "from, and download again what is damaged there",
                  verify->against);
}

/* The same for directories that do not make a set. */
static void say_next_unopened(struct k3_verify *verify)
{
    k3_verify_say(
        &verify->next,
        "give all directories of one set, end an unfinished conversion by its own command, "
        "restore " K3_MANIFEST_NAME " from a copy, or convert again with --force and the same "
        "--out directories");
}

/* Of directories without a manifest: is one of them in the middle of a conversion?  By the records
 * in it: how many items there will be, the checkpoint knows. */
static bool find_unfinished(const char *const *paths, uint32_t count, uint32_t *item_count)
{
    bool is_unfinished = false;
    for (uint32_t i = 0; i < count; i++) {
        struct k3_dir dir, partial;
        char **names = NULL;
        uint32_t name_count = 0;
        if (k3_dir_open(paths[i], false, &dir, NULL))
            continue;
        bool is_set = k3_file_exists(&dir, K3_MANIFEST_NAME);
        bool is_partial = k3_file_exists(&dir, K3_PARTIAL_NAME) &&
                          !k3_dir_open_at(&dir, K3_PARTIAL_NAME, false, &partial, NULL);
        k3_dir_close(&dir);
        if (is_partial && !k3_dir_list(&partial, &names, &name_count, NULL))
            for (uint32_t n = 0; n < name_count; n++)
                *item_count += names[n][0] != '.' && k3_name_ends(names[n], ".record");
        if (is_partial)
            k3_dir_close(&partial);
        k3_names_free(names, name_count);
        if (is_set)
            return false;
        is_unfinished = is_unfinished || is_partial;
    }
    return is_unfinished;
}

/* Directories that could not be opened as a set. */
static void describe_unopened(struct k3_verify *verify, const char *const *paths, uint32_t count)
{
    uint32_t item_count = 0;
    verify->is_unfinished = find_unfinished(paths, count, &item_count);
    if (!verify->is_unfinished) {
        k3_text_putf(&verify->subject, "shard set %s", paths[0]);
        say_next_unopened(verify);
        return;
    }
    k3_text_putf(&verify->subject, "unfinished conversion %s: %u item%s of it %s finished",
                 paths[0], item_count, item_count == 1 ? "" : "s", item_count == 1 ? "is" : "are");
    k3_verify_say(&verify->next, "run the same convert command again, or, where all of its workers "
                                 "are done, k3-shard seal with its --out directories");
}

/* What --against cannot be is said before a set of terabytes is read. */
static int judge_against(const struct k3_verify *verify, const char *set_path, struct k3_err *err)
{
    struct k3_dir dir;
    bool is_set = false;
    int rc = k3_dir_open(verify->against, false, &dir, err);
    if (rc)
        return rc;
    const bool has_config = k3_file_exists(&dir, K3_CONFIG_NAME);
    rc = k3_is_set_dir(verify->against, &is_set, err);
    if (!rc && is_set)
        rc = k3_fail(err, K3_EUSAGE,
                     "--against %s: a shard set; wanted the checkpoint that %s was made from "
                     "(without --against, verify proves a set by its own digests)",
                     verify->against, set_path);
    else if (!rc && !has_config)
        rc = k3_fail(err, K3_EUSAGE,
                     "--against %s: no " K3_CONFIG_NAME " is there; wanted the checkpoint that %s "
                     "was made from: give %s",
                     verify->against, set_path, k3_ckpt_where(&dir));
    k3_dir_close(&dir);
    return rc;
}

int k3_verify_set(struct k3_verify *verify, const char *const *paths, uint32_t count,
                  struct k3_err *err)
{
    struct k3_set *set = NULL;
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = verify->against ? judge_against(verify, paths[0], err) : 0;
    if (rc)
        return rc;
    rc = k3_set_open(paths, count, &set, &inner);
    if (rc) {
        describe_unopened(verify, paths, count);
        return k3_verify_judge(&verify->problems, rc, &inner, err);
    }
    describe(verify, set);
    verify->checked_files++;
    rc = verify->against ? k3_verify_against_can(set, err) : 0;
    if (!rc)
        rc = check_set(verify, set, err);
    const bool is_sound = verify->problems.count == 0;
    if (!is_sound)
        say_next(verify, set);
    if (!rc && verify->against)
        rc = k3_verify_against(verify, set, err);
    if (is_sound && verify->problems.count)
        say_next_against(verify);
    k3_set_close(set);
    return rc;
}
