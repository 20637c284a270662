/* Purpose: judge what lies in the directories of a conversion before it is touched: foreign files,
 * a finished set that is not whole, or that another run replaces, a checkpoint that is not the one
 * the conversion began with.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: K3_EUNSUPPORTED (in the way, other sources), K3_ECORRUPT (a finished set with gaps),
 * K3_EIO, K3_ENOMEM.
 * Invariant: nothing here changes a file but .k3-partial/sources, which is written before the first
 * item and is never changed under a worker. */
#include "job.h"
#include "part.h"
#include "quant_config.h"
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The same where a part or units file is not of this conversion: what it is decides what to do. */
static const char *foreign_part(const struct k3_job *job, uint32_t dir, const char *name)
{
    bool is_ours = true;
    if (!k3_job_is_of_set(&job->outs[dir], name, &is_ours, NULL) && !is_ours)
        return "has the name of a file of a shard set and is none, or is damaged: give an empty "
               "--out, or move it away";
    if (!k3_file_exists(&job->outs[0], K3_MANIFEST_NAME) &&
        !k3_file_exists(&job->outs[0], K3_PARTIAL_NAME))
        return "belongs to another conversion, or to a set of several directories of which this is "
               "not the first: give all of them in their order, or an empty --out; --force "
               "replaces what is there";
    return "belongs to another conversion: give an empty --out, or replace what is there with "
           "--force";
}

/* Why a name is in the way, as the end of a sentence; NULL: it is not. */
static const char *in_the_way(const struct k3_job *job, uint32_t dir, const char *name,
                              const struct k3_config *config, const struct k3_layout *layout,
                              enum k3_job_foreign mode)
{
    uint32_t rank, part, world = k3_layout_world(layout), home = 0;
    bool is_part = k3_part_name_decode(name, &rank, &part);
    if (!is_part && !k3_units_name_decode(name, &rank)) {
        if (k3_name_ends(name, ".safetensors") || k3_name_ends(name, ".units"))
            return "not a file of a shard set (is this a checkpoint?): give an empty --out, or "
                   "move it away";
        return NULL;
    }
    if (mode == K3_FOREIGN_FORCE)
        return NULL; /* k3_job_survey_removal judges it */
    bool ours = rank < world && k3_ranks_has(&job->ranks, rank);
    if (ours && is_part) {
        ours = part < k3_config_part_count(config) &&
               k3_layout_has_part(config, layout, rank, part);
        home = k3_job_dir_of(job, rank, part);
    }
    if (ours && mode == K3_FOREIGN_RESUME)
        return home == dir ? NULL
                           : "lies in another directory than it should: give the --out directories "
                             "in the order of the first run";
    return foreign_part(job, dir, name);
}

int k3_job_check_foreign(const struct k3_job *job, const struct k3_config *config,
                         const struct k3_layout *layout, enum k3_job_foreign mode,
                         struct k3_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < job->dir_count && !rc; i++) {
        char **names = NULL;
        uint32_t count = 0;
        rc = k3_dir_list(&job->outs[i], &names, &count, err);
        for (uint32_t n = 0; n < count && !rc; n++) {
            const char *why = in_the_way(job, i, names[n], config, layout, mode);
            if (why)
                rc = k3_fail_at(err, K3_EUNSUPPORTED, names[n], -1, "%s/%s: %s", job->outs[i].path,
                                names[n], why);
        }
        k3_names_free(names, count);
    }
    return rc;
}

static int check_no_file(const struct k3_job *job, const char *name, struct k3_err *err)
{
    bool found = false;
    int rc = k3_file_find(&job->outs[0], name, &found, err);
    if (rc || !found)
        return rc;
    return k3_fail_at(err, K3_EUNSUPPORTED, name, -1,
                      "%s/%s: is there already, and the set has a file of that name: give "
                      "an empty --out, or remove it",
                      job->outs[0].path, name);
}

/* A name of the checkpoint that is copied, or that is written in such a set, and is there already
 * although nothing of ours is. */
int k3_job_check_copied(const struct k3_job *job, const struct k3_ckpt *ckpt, struct k3_err *err)
{
    const struct k3_policy *policy = &ckpt->plan->policy;
    int rc = 0;
    for (uint32_t i = 0; i < ckpt->copied_count && !rc; i++)
        rc = check_no_file(job, ckpt->copied[i], err);
    if (!rc && !k3_policy_is_verbatim(policy))
        rc = check_no_file(job, K3_CAST_REPORT_NAME, err);
    if (!rc && policy->is_modelopt)
        rc = check_no_file(job, K3_HF_QUANT_NAME, err);
    return rc;
}

static int check_entry(const struct k3_dir *dir, const char *name, uint64_t bytes,
                       struct k3_err *err)
{
    struct stat stat;
    int missing = fstatat(dir->fd, name, &stat, AT_SYMLINK_NOFOLLOW);
    if (missing && errno != ENOENT)
        return k3_fail_sys(err, errno, "%s/%s: stat", dir->path, name);
    if (!missing && S_ISREG(stat.st_mode) && (uint64_t)stat.st_size == bytes)
        return 0;
    return k3_fail_at(err, K3_ECORRUPT, name, -1,
                      "%s/%s: missing or of another size, though the set is finished: give all its "
                      "--out directories in their order, restore the file, or convert again with "
                      "--force",
                      dir->path, name);
}

int k3_job_check_finished(struct k3_job *job, struct k3_err *err)
{
    struct k3_manifest manifest;
    char name[K3_NAME_BYTES_MAX + 1];
    int rc = k3_job_manifest(job, &manifest, err);
    for (uint32_t r = 0; !rc && r < manifest.rank_count; r++) {
        const struct k3_manifest_rank *rank = &manifest.ranks[r];
        for (uint32_t p = 0; p < rank->part_count && !rc; p++) {
            k3_part_name(rank->rank, rank->parts[p].part, name);
            uint32_t dir = k3_job_dir_of(job, rank->rank, rank->parts[p].part);
            rc = check_entry(&job->outs[dir], name, rank->parts[p].bytes, err);
        }
        if (!rc)
            rc = check_entry(&job->outs[0], rank->units.name, rank->units.bytes, err);
    }
    for (uint32_t f = 0; !rc && f < manifest.file_count; f++)
        rc = check_entry(&job->outs[0], manifest.files[f].name, manifest.files[f].bytes, err);
    if (!rc)
        rc = check_entry(&job->outs[0], manifest.headers.name, manifest.headers.bytes, err);
    k3_manifest_fini(&manifest);
    return rc;
}

int k3_job_find_set(const struct k3_job *job, bool *found, struct stat *seen, struct k3_err *err)
{
    memset(seen, 0, sizeof *seen);
    int rc = k3_file_find(&job->outs[0], K3_MANIFEST_NAME, found, err);
    if (!rc && *found) /* gone since: *seen is that of no file, which the end of judging says */
        (void)fstatat(job->outs[0].fd, K3_MANIFEST_NAME, seen, AT_SYMLINK_NOFOLLOW);
    return rc;
}

int k3_job_end_judging(const struct k3_job *job, const struct stat *seen,
                       const struct k3_err *judged, struct k3_err *err)
{
    const struct k3_dir *dir = &job->outs[0];
    struct stat now = {0};
    if (judged->rc == K3_ENOMEM || judged->rc == K3_ECANCELED)
        return k3_fail_as(err, judged);
    if (fstatat(dir->fd, K3_MANIFEST_NAME, &now, AT_SYMLINK_NOFOLLOW) && errno != ENOENT)
        return judged->rc ? k3_fail_as(err, judged)
                          : k3_fail_sys(err, errno, "%s/%s: stat", dir->path, K3_MANIFEST_NAME);
    /* A file that is made anew may get the number of the one that was removed. */
    if (now.st_nlink && now.st_dev == seen->st_dev && now.st_ino == seen->st_ino &&
        k3_time_ns(&now.st_mtim) == k3_time_ns(&seen->st_mtim))
        return k3_fail_as(err, judged);
    return k3_fail_at(err, K3_EUNSUPPORTED, K3_MANIFEST_NAME, -1,
                      "%s: another run has begun to replace this set (its %s was removed or "
                      "replaced meanwhile): wait until that run is done, then run the same command "
                      "again",
                      dir->path, K3_MANIFEST_NAME);
}

const char *k3_job_newer_source(const struct k3_job *job, const struct k3_ckpt *ckpt)
{
    struct stat stat;
    if (fstatat(job->outs[0].fd, K3_MANIFEST_NAME, &stat, 0))
        return NULL;
    int64_t made_ns = k3_time_ns(&stat.st_mtim);
    for (uint32_t i = 0; i < ckpt->plan->source_count; i++)
        if (k3_ckpt_needs_file(ckpt, i) && ckpt->files[i].mtime_ns > made_ns)
            return ckpt->plan->sources[i].name;
    return NULL;
}

int k3_job_fail_nothing(const struct k3_job *job, struct k3_err *err)
{
    const struct k3_dir *dir = &job->outs[0];
    uint32_t rank, part, count = 0;
    bool has_part = false;
    char **names = NULL;
    if (k3_dir_is_checkpoint(dir))
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s: a checkpoint, no conversion of one: give the --out directories of "
                       "`k3-shard convert %s --out DIR`",
                       dir->path, k3_quoted(dir->path).s);
    int rc = k3_dir_list(dir, &names, &count, err);
    for (uint32_t n = 0; n < count && !has_part; n++)
        has_part = k3_part_name_decode(names[n], &rank, &part);
    k3_names_free(names, count);
    if (rc)
        return rc;
    return k3_fail(err, K3_EUNSUPPORTED, "%s: no unfinished conversion is here: %s", dir->path,
                   has_part ? "where this is one of several directories of a set, give all of them "
                              "in their order"
                            : "run convert first");
}

/* ---- which files a conversion began with: .k3-partial/sources (FORMAT.md 9) ---- */

#define SOURCES_HEAD "k3-sources 0\n"

static bool is_list(const char *text, size_t bytes)
{
    const size_t head_bytes = sizeof SOURCES_HEAD - 1;
    return bytes > head_bytes && !memcmp(text, SOURCES_HEAD, head_bytes) && text[bytes - 1] == '\n';
}

static int list_sources(const struct k3_ckpt *ckpt, struct k3_text *text, struct k3_err *err)
{
    k3_text_puts(text, SOURCES_HEAD);
    for (uint32_t i = 0; i < ckpt->plan->source_count; i++)
        k3_text_putf(text, "%s %" PRIu64 " %" PRId64 "\n", ckpt->plan->sources[i].name,
                     ckpt->files[i].bytes, ckpt->files[i].mtime_ns);
    for (uint32_t i = 0; i < ckpt->copied_count; i++) {
        struct stat stat;
        if (fstatat(ckpt->dir.fd, ckpt->copied[i], &stat, 0))
            return k3_fail_sys(err, errno, "%s/%s: stat", ckpt->dir.path, ckpt->copied[i]);
        k3_text_putf(text, "%s %lld %lld\n", ckpt->copied[i], (long long)stat.st_size,
                     (long long)k3_time_ns(&stat.st_mtim));
    }
    return k3_text_check(text, err);
}

/* The line of a name in a list, with its LF; NULL where it has none. */
static const char *find_line(const char *list, const char *name, size_t *bytes)
{
    size_t n = strlen(name);
    for (const char *line = list; *line;) {
        const char *end = strchr(line, '\n');
        if (!end)
            return NULL;
        *bytes = (size_t)(end + 1 - line);
        if (!strncmp(line, name, n) && line[n] == ' ')
            return line;
        line = end + 1;
    }
    return NULL;
}

/* A name in neither list is of a file that the conversion itself made (headers, what describes
 * casts). */
static bool is_same_line(const char *before, const char *now, const char *name)
{
    size_t a_bytes = 0, b_bytes = 0;
    const char *a = find_line(before, name, &a_bytes), *b = find_line(now, name, &b_bytes);
    if (!a && !b)
        return true;
    return a && b && a_bytes == b_bytes && !memcmp(a, b, a_bytes);
}

/* Size and time of a name in a list; false where it has none. */
struct listed {
    uint64_t bytes;
    char time[64]; /* as touch -d takes it */
};

static bool read_line(const char *list, const char *name, struct listed *out)
{
    size_t bytes = 0;
    char *end;
    struct tm tm;
    const char *line = find_line(list, name, &bytes);
    if (!line)
        return false;
    out->bytes = strtoull(line + strlen(name), &end, 10);
    if (*end != ' ')
        return false;
    const int64_t time_ns = strtoll(end, &end, 10);
    if (*end != '\n')
        return false;
    const int64_t ns = (time_ns % 1000000000 + 1000000000) % 1000000000;
    const time_t seconds = (time_t)((time_ns - ns) / 1000000000);
    char day[40];
    if (!gmtime_r(&seconds, &tm) || !strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &tm))
        return false;
    snprintf(out->time, sizeof out->time, "%s.%09d UTC", day, (int)ns);
    return true;
}

/* What finished items were made from and is not the same now. */
struct changed {
    char name[K3_NAME_BYTES_MAX + 1]; /* the first */
    uint32_t count;
    bool is_resized; /* some have another size, or are new or gone */
};

static void look_at(struct changed *changed, const char *before, const char *now, const char *name)
{
    struct listed then, found;
    if (is_same_line(before, now, name))
        return;
    if (changed->count++ == 0)
        snprintf(changed->name, sizeof changed->name, "%s", name);
    if (!read_line(before, name, &then) || !read_line(now, name, &found) ||
        then.bytes != found.bytes)
        changed->is_resized = true;
}

static int find_changed(struct k3_job *job, const struct k3_ckpt *ckpt, const char *before,
                        const char *now, struct changed *changed, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t item = 0; item < ckpt->plan->item_count && !rc; item++) {
        struct k3_record record;
        bool found;
        rc = k3_job_record(job, item, &record, &found, err);
        if (rc || !found)
            continue;
        for (uint32_t s = 0; s < record.source_count; s++)
            look_at(changed, before, now, record.sources[s].name);
        for (uint32_t f = 0; f < record.file_count; f++)
            look_at(changed, before, now, record.files[f].name);
        k3_record_fini(&record);
    }
    return rc;
}

/* "512 bytes, written TIME, but WHO 512 bytes, written TIME"; a name that only one list has: "not
 * the file that WHO". */
static void put_difference(struct k3_text *out, const char *before, const char *now,
                           const char *name, const char *who)
{
    struct listed then, found;
    if (read_line(before, name, &then) && read_line(now, name, &found))
        k3_text_putf(out, "%" PRIu64 " bytes, written %s, but %s %" PRIu64 " bytes, written %s",
                     found.bytes, found.time, who, then.bytes, then.time);
    else
        k3_text_putf(out, "not the file that %s", who);
}

/* The path of a name in a folder, as a word of a command. */
static struct k3_quoted quoted_in(const char *folder, const char *name)
{
    char path[K3_QUOTED_BYTES + K3_NAME_BYTES_MAX + 2]; /* cut, it is too long for a word too */
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return k3_quoted(path);
}

/* A copy or a touch changes times alone: then the finished items need not be lost, where the user
 * knows that the bytes are the same. */
static int fail_changed(const struct k3_job *job, const struct k3_ckpt *ckpt, const char *before,
                        const char *now, const struct changed *changed, struct k3_err *err)
{
    const char *const out = job->outs[0].path, *const dir = ckpt->dir.path;
    struct listed then = {0};
    struct k3_text text, who;
    k3_text_init(&text);
    k3_text_init(&who);
    k3_text_putf(&who, "finished parts in %s were made from", out);
    k3_text_putf(&text, "%s/%s: ", dir, changed->name);
    put_difference(&text, before, now, changed->name, who.bytes ? who.data : "");
    if (changed->count > 1)
        k3_text_putf(&text, "; so with %u more", changed->count - 1);
    if (changed->is_resized || !read_line(before, changed->name, &then))
        k3_text_puts(&text, ": resume from that checkpoint, or begin again with --force");
    else if (changed->count == 1)
        k3_text_putf(&text, ": where only its time was changed, give that back (touch -d '%s' %s)",
                     then.time, quoted_in(dir, changed->name).s);
    else
        k3_text_putf(&text, ": where only their times were changed, rm %s",
                     quoted_in(job->partials[0].path, K3_SOURCES_NAME).s);
    if (!changed->is_resized) {
        k3_text_puts(&text, " and run the same command again");
        if (k3_policy_is_verbatim(&ckpt->plan->policy)) /* else verify has nothing to compare */
            k3_text_putf(&text, " (k3-shard verify %s --against %s proves it then)",
                         k3_quoted(out).s, k3_quoted(dir).s);
        k3_text_puts(&text, "; else begin again with --force");
    }
    int rc = k3_text_check(&who, err);
    if (!rc)
        rc = k3_text_check(&text, err);
    if (!rc)
        rc = k3_fail_at(err, K3_EUNSUPPORTED, changed->name, -1, "%s", text.data);
    k3_text_fini(&who);
    k3_text_fini(&text);
    return rc;
}

static int publish_sources(struct k3_dir *dir, const struct k3_text *text, struct k3_err *err)
{
    char token[K3_TOKEN_BYTES + 1], temporary[K3_STAGED_NAME_BYTES];
    int rc = k3_random_hex(token, K3_TOKEN_BYTES, err);
    if (rc)
        return rc;
    k3_staged_name(K3_SOURCES_NAME, token, temporary);
    return k3_file_publish(dir, temporary, K3_SOURCES_NAME, text->data, text->bytes, err);
}

/* Nothing is finished yet, so the list may be that of another checkpoint: unless a worker is at
 * work with it. */
static int check_alone(struct k3_job *job, const struct k3_ckpt *ckpt, const char *before,
                       const char *now, struct k3_err *err)
{
    const char *name = K3_SOURCES_NAME;
    if (k3_job_is_alone(job))
        return 0;
    for (uint32_t i = 0; i < ckpt->copied_count; i++)
        if (!is_same_line(before, now, ckpt->copied[i]))
            name = ckpt->copied[i];
    for (uint32_t i = ckpt->plan->source_count; i-- > 0;)
        if (!is_same_line(before, now, ckpt->plan->sources[i].name))
            name = ckpt->plan->sources[i].name;
    struct k3_text text;
    k3_text_init(&text);
    put_difference(&text, before, now, name, "another worker is converting");
    int rc = k3_text_check(&text, err);
    if (!rc)
        rc = k3_fail_at(err, K3_EUNSUPPORTED, name, -1,
                        "%s/%s: %s: give all workers the same checkpoint (copies keep their times "
                        "with cp -p), or stop the others first",
                        ckpt->dir.path, name, text.data);
    k3_text_fini(&text);
    return rc;
}

int k3_job_check_sources(struct k3_job *job, const struct k3_ckpt *ckpt, bool shared,
                         struct k3_err *err)
{
    struct changed changed = {.count = 0};
    struct k3_dir *dir = &job->partials[0];
    struct k3_text now;
    char *before = NULL;
    size_t bytes = 0;
    k3_text_init(&now);
    int rc = list_sources(ckpt, &now, err);
    bool is_first = !rc && !k3_file_exists(dir, K3_SOURCES_NAME);
    if (!rc && !is_first)
        rc = k3_file_load(dir, K3_SOURCES_NAME, K3_MANIFEST_BYTES_MAX, &before, &bytes, err);
    if (!rc && before && !is_list(before, bytes))
        rc = k3_fail_at(err, K3_ECORRUPT, K3_SOURCES_NAME, -1,
                        "%s/" K3_SOURCES_NAME ": cut or damaged: where nobody changed %s since the "
                        "first run, remove this file and run the same command again; else begin "
                        "again with --force",
                        dir->path, ckpt->dir.path);
    bool is_same = before && bytes == now.bytes && !memcmp(before, now.data, bytes);
    if (!rc && before && !is_same)
        rc = find_changed(job, ckpt, before, now.data, &changed, err);
    if (!rc && changed.count)
        rc = fail_changed(job, ckpt, before, now.data, &changed, err);
    if (!rc && before && !is_same && shared)
        rc = check_alone(job, ckpt, before, now.data, err);
    if (!rc && !is_same)
        rc = publish_sources(dir, &now, err);
    free(before);
    k3_text_fini(&now);
    return rc;
}
