/* Purpose: the state of a conversion on disk.
 * Owns: the open directories and the lock.
 * Threads: one, but for k3_job_record and the name functions (any).
 * Errors: K3_EIO, K3_EUNSUPPORTED (other plan, other tool, running already), K3_ECORRUPT (damaged
 * record), K3_ENOMEM.
 * Invariant: plan.json is published last, so that what lies beside it is complete where it is. */
#include "job.h"

#include "cmds.h"
#include "part.h"
#include "sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define RECORD_BYTES_MAX (1ull << 30) /* 32 million unit digests: 16 TB in one item */
#define RANKS_BYTES_MAX  (32u << 10)  /* every second of 4096 ranks is a list of 10 KB */
#define RANKS_HEAD       "k3-ranks 0\n"

int k3_job_open(const char *const *paths, uint32_t count, bool create, struct k3_job *job,
                struct k3_err *err)
{
    int rc = 0;
    memset(job, 0, sizeof *job);
    snprintf(job->tool, sizeof job->tool, "k3-shard %s", k3_tool_version());
    job->outs = calloc(count ? count : 1, sizeof *job->outs);
    job->partials = calloc(count ? count : 1, sizeof *job->partials);
    if (!job->outs || !job->partials) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for the directories");
        goto out;
    }
    for (uint32_t i = 0; i < count; i++)
        job->outs[i].fd = job->partials[i].fd = -1;
    for (uint32_t i = 0; i < count && !rc; i++) {
        rc = k3_dir_open(paths[i], create, &job->outs[i], err);
        job->dir_count += !rc;
    }
    for (uint32_t i = 0; i < count && !rc; i++)
        for (uint32_t k = 0; k < i && !rc; k++) {
            struct stat a, b;
            if (fstat(job->outs[i].fd, &a) || fstat(job->outs[k].fd, &b))
                rc = k3_fail_sys(err, errno, "%s: fstat", paths[i]);
            else if (a.st_dev == b.st_dev && a.st_ino == b.st_ino)
                rc = k3_fail(err, K3_EUSAGE, "--out %s and --out %s are the same directory",
                             paths[k], paths[i]);
        }
out:
    if (rc)
        k3_job_close(job);
    return rc;
}

void k3_job_close(struct k3_job *job)
{
    for (uint32_t i = 0; job->outs && job->partials && i < job->dir_count; i++) {
        if (job->partials[i].fd >= 0)
            k3_dir_close(&job->partials[i]);
        k3_dir_close(&job->outs[i]);
    }
    free(job->outs);
    free(job->partials);
    memset(job, 0, sizeof *job);
}

uint32_t k3_job_dir_of(const struct k3_job *job, uint32_t rank, uint32_t part)
{
    return (rank + part) % job->dir_count;
}

void k3_record_name(uint32_t item, char *name)
{
    snprintf(name, K3_STAGED_NAME_BYTES, "item-%u.record", item);
}

void k3_staged_name(const char *name, const char *token, char *staged)
{
    snprintf(staged, K3_STAGED_NAME_BYTES, "%s.%s", name, token);
}

/* The ranks of an unfinished conversion; a list without ranks where the file is not there: all of
 * the layout. */
static int read_ranks(const struct k3_dir *partial, struct k3_ranks *ranks, struct k3_err *err)
{
    static const char head[] = RANKS_HEAD;
    const size_t head_bytes = sizeof head - 1;
    char *text = NULL;
    size_t bytes = 0;
    k3_ranks_clear(ranks);
    if (!k3_file_exists(partial, K3_RANKS_NAME))
        return 0;
    int rc = k3_file_load(partial, K3_RANKS_NAME, RANKS_BYTES_MAX, &text, &bytes, err);
    if (!rc && (bytes <= head_bytes || memcmp(text, head, head_bytes) || text[bytes - 1] != '\n' ||
                !k3_ranks_decode(text + head_bytes, bytes - head_bytes - 1, ranks)))
        rc = k3_fail_at(err, K3_ECORRUPT, K3_RANKS_NAME, -1,
                        "%s/%s: not a list of ranks: begin again with convert --force",
                        partial->path, K3_RANKS_NAME);
    free(text);
    return rc;
}

/* Say whose ranks these are; before plan.json, without which they mean nothing. */
static int publish_ranks(struct k3_job *job, const struct k3_plan *plan, struct k3_err *err)
{
    char token[K3_TOKEN_BYTES + 1], temporary[K3_STAGED_NAME_BYTES];
    struct k3_text text;
    if (job->ranks.count == k3_layout_world(&plan->layout))
        return k3_file_remove(&job->partials[0], K3_RANKS_NAME, err);
    int rc = k3_random_hex(token, K3_TOKEN_BYTES, err);
    if (rc)
        return rc;
    k3_staged_name(K3_RANKS_NAME, token, temporary);
    k3_text_init(&text);
    k3_text_puts(&text, RANKS_HEAD);
    k3_ranks_put(&job->ranks, &text);
    k3_text_puts(&text, "\n");
    rc = k3_text_check(&text, err);
    if (!rc)
        rc = k3_file_publish(&job->partials[0], temporary, K3_RANKS_NAME, text.data, text.bytes,
                             err);
    k3_text_fini(&text);
    return rc;
}

/* What is there. */
struct found_plan {
    const char *what; /* "a finished set" */
    char *text;       /* of its plan; borrowed of a manifest, owned of a .k3-partial */
    size_t bytes;
    uint8_t digest[K3_DIGEST_BYTES];
    struct k3_ranks ranks;
    bool is_lost; /* the text is no plan */
};

/* Plan text of an open .k3-partial and its digest.  A text that was cut or changed is no reason to
 * lose what is finished: records say of which plan they are. */
static int read_plan(const struct k3_dir *partial, struct found_plan *plan, struct k3_err *err)
{
    struct k3_sha256 *sha = NULL;
    struct k3_plan *decoded = NULL;
    int rc = k3_file_load(partial, K3_PLAN_NAME, K3_MANIFEST_BYTES_MAX, &plan->text, &plan->bytes,
                          err);
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (rc)
        return rc;
    k3_sha256_of(sha, plan->text, plan->bytes, plan->digest);
    k3_sha256_close(sha);
    rc = k3_plan_decode(plan->text, plan->bytes, &decoded, NULL);
    k3_plan_close(decoded);
    if (rc == K3_ENOMEM)
        return k3_fail(err, rc, "no memory for the plan of %s", partial->path);
    plan->is_lost = rc != 0;
    return 0;
}

/* How many items are recorded, and the first whose plan is not `digest` (none: empty). */
static int read_records(const struct k3_dir *partial, const uint8_t *digest, uint32_t *item_count,
                        char other[K3_STAGED_NAME_BYTES], struct k3_err *err)
{
    char **names = NULL;
    uint32_t count = 0;
    *item_count = 0;
    other[0] = 0;
    int rc = k3_dir_list(partial, &names, &count, err);
    for (uint32_t i = 0; i < count && !rc; i++) {
        struct k3_record record = {0};
        char *text = NULL;
        size_t bytes = 0;
        if (names[i][0] == '.' || !k3_name_ends(names[i], ".record"))
            continue;
        rc = k3_file_load(partial, names[i], RECORD_BYTES_MAX, &text, &bytes, err);
        if (!rc)
            rc = k3_fail_in(partial, k3_record_decode(names[i], text, bytes, &record, err), err);
        if (!rc && !other[0] && memcmp(record.plan_digest, digest, K3_DIGEST_BYTES))
            snprintf(other, K3_STAGED_NAME_BYTES, "%s", names[i]);
        *item_count += !rc;
        k3_record_fini(&record);
        free(text);
    }
    k3_names_free(names, count);
    return rc;
}

/* Plan text, its digest and the ranks in .k3-partial of the first directory; *found false where
 * there is none, or none that anything depends on. */
static int partial_plan(struct k3_job *job, const struct k3_plan *plan, struct found_plan *there,
                        bool *found, struct k3_err *err)
{
    struct k3_dir partial = {-1, NULL};
    char other[K3_STAGED_NAME_BYTES];
    uint32_t item_count = 0;
    *found = false;
    if (!k3_file_exists(&job->outs[0], K3_PARTIAL_NAME))
        return 0;
    int rc = k3_dir_open_at(&job->outs[0], K3_PARTIAL_NAME, false, &partial, err);
    if (!rc && k3_file_exists(&partial, K3_PLAN_NAME)) {
        rc = read_plan(&partial, there, err);
        *found = !rc;
        if (!rc && there->is_lost)
            rc = read_records(&partial, plan->digest, &item_count, other, err);
        job->plan_is_lost = !rc && there->is_lost;
        if (job->plan_is_lost && item_count == 0)
            *found = false;
        else if (job->plan_is_lost && !other[0])
            memcpy(there->digest, plan->digest, K3_DIGEST_BYTES);
        if (!rc && *found)
            rc = read_ranks(&partial, &there->ranks, err);
    }
    if (partial.fd >= 0)
        k3_dir_close(&partial);
    return rc;
}

int k3_job_manifest(struct k3_job *job, struct k3_manifest *manifest, struct k3_err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    memset(manifest, 0, sizeof *manifest);
    int rc = k3_file_load(&job->outs[0], K3_MANIFEST_NAME, K3_MANIFEST_BYTES_MAX, &text, &bytes,
                          err);
    if (!rc)
        rc = k3_fail_in(&job->outs[0],
                        k3_manifest_decode(K3_MANIFEST_NAME, text, bytes, manifest, err), err);
    free(text);
    return rc;
}

/* Is what is there of this plan and of the job's ranks?  Else *found says what it is. */
static bool is_ours(const struct k3_job *job, const struct k3_plan *plan,
                    const struct found_plan *there, char found[K3_JOB_FOUND_BYTES])
{
    const struct k3_ranks *ranks = &there->ranks;
    const char *what = there->what;
    char differs[K3_JOB_FOUND_BYTES];
    char shown[K3_RANKS_SHOWN_BYTES];
    struct k3_ranks all;
    k3_ranks_fill(&all, k3_layout_world(&plan->layout));
    if (ranks->count == 0) /* the list was left out */
        ranks = &all;
    if (memcmp(there->digest, plan->digest, K3_DIGEST_BYTES) && there->is_lost)
        snprintf(found, K3_JOB_FOUND_BYTES,
                 "%s made from another checkpoint or with other options (which cannot be said: "
                 "its " K3_PARTIAL_NAME "/" K3_PLAN_NAME " is cut or damaged)",
                 what);
    else if (memcmp(there->digest, plan->digest, K3_DIGEST_BYTES)) {
        k3_job_differs(there->text, there->bytes, plan, differs);
        snprintf(found, K3_JOB_FOUND_BYTES, "%s made with %.*s", what, (int)K3_JOB_FOUND_BYTES - 64,
                 differs);
    } else if (k3_ranks_equal(ranks, &all) && !k3_ranks_equal(ranks, &job->ranks))
        snprintf(found, K3_JOB_FOUND_BYTES, "%s of all %u ranks", what, all.count);
    else if (!k3_ranks_equal(ranks, &job->ranks))
        snprintf(found, K3_JOB_FOUND_BYTES, "%s of rank%s %s alone", what,
                 ranks->count == 1 ? "" : "s", k3_ranks_shown(ranks, shown));
    else
        return true;
    return false;
}

int k3_job_state(struct k3_job *job, const struct k3_plan *plan, enum k3_job_state *state,
                 char *found, struct k3_err *err)
{
    struct found_plan there = {.what = "a finished set"};
    bool has_plan = false;
    found[0] = 0;
    *state = K3_JOB_NEW;
    job->plan_is_lost = false;
    k3_ranks_clear(&there.ranks);
    bool has_manifest = false;
    int rc = k3_file_find(&job->outs[0], K3_MANIFEST_NAME, &has_manifest, err);
    if (rc)
        return rc;
    if (has_manifest) {
        struct k3_manifest manifest;
        rc = k3_job_manifest(job, &manifest, err);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < manifest.rank_count; i++)
            k3_ranks_add(&there.ranks, manifest.ranks[i].rank);
        memcpy(there.digest, manifest.plan_digest, sizeof there.digest);
        there.text = manifest.plan_text;
        there.bytes = manifest.plan_bytes;
        *state = is_ours(job, plan, &there, found) ? K3_JOB_FINISHED : K3_JOB_OTHER;
        k3_manifest_fini(&manifest);
        return 0;
    }
    there.what = "an unfinished conversion";
    rc = partial_plan(job, plan, &there, &has_plan, err);
    if (!rc && has_plan)
        *state = is_ours(job, plan, &there, found) ? K3_JOB_PARTIAL : K3_JOB_OTHER;
    free(there.text);
    return rc;
}

static int open_partials(struct k3_job *job, bool create, struct k3_err *err)
{
    for (uint32_t i = 0; i < job->dir_count; i++) {
        if (job->partials[i].fd >= 0)
            continue;
        int rc = k3_dir_open_at(&job->outs[i], K3_PARTIAL_NAME, create, &job->partials[i], err);
        if (!rc && create)
            rc = k3_dir_sync(&job->outs[i], err);
        if (rc)
            return rc;
    }
    return 0;
}

/* A run that began or ended while this one started, or someone's hand, put our .k3-partial away: a
 * lock on it keeps nobody out, and two runs would publish into one directory. */
static int check_held(const struct k3_job *job, uint32_t dir, struct k3_err *err)
{
    struct stat ours, there;
    if (fstat(job->partials[dir].fd, &ours))
        return k3_fail_sys(err, errno, "%s: stat", job->partials[dir].path);
    if (!fstatat(job->outs[dir].fd, K3_PARTIAL_NAME, &there, AT_SYMLINK_NOFOLLOW)) {
        if (ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
            return 0;
    } else if (errno != ENOENT) {
        return k3_fail_sys(err, errno, "%s: stat", job->partials[dir].path);
    }
    return k3_fail(err, K3_EUNSUPPORTED,
                   "%s: was removed or replaced while this run used it: see that no other "
                   "conversion runs here, then run the same command again",
                   job->partials[dir].path);
}

int k3_job_check_held(const struct k3_job *job, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < job->dir_count && !rc; i++)
        rc = check_held(job, i, err);
    return rc;
}

/* One conversion at a time in a directory, or any number of its workers.  Again on a lock we have:
 * it is changed. */
static int lock(struct k3_job *job, uint32_t dir, bool shared, struct k3_err *err)
{
    /* A lock the file system does not have is no reason to stop: unique names keep two runs apart.
     */
    if (flock(job->partials[dir].fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) &&
        errno == EWOULDBLOCK)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s: another conversion is running here: wait for it, or stop it",
                       job->outs[dir].path);
    return check_held(job, dir, err);
}

static int lock_all(struct k3_job *job, bool shared, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < job->dir_count && !rc; i++)
        rc = lock(job, i, shared, err);
    return rc;
}

#define TURN_TRIES  1000
#define TURN_NAP_NS 10000000

int k3_job_turn_begin(struct k3_job *job, struct k3_err *err)
{
    const struct timespec nap = {0, TURN_NAP_NS};
    for (int i = 0; i < TURN_TRIES; i++) {
        /* As for the lock of a conversion: without locks there are no turns. */
        if (!flock(job->outs[0].fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
            return 0;
        nanosleep(&nap, NULL);
    }
    return k3_fail(err, K3_EUNSUPPORTED,
                   "%s: another conversion has been beginning here for %d s and does not get on: "
                   "see whether it is stopped",
                   job->outs[0].path, TURN_TRIES / 100);
}

void k3_job_turn_end(struct k3_job *job)
{
    flock(job->outs[0].fd, LOCK_UN);
}

bool k3_job_is_alone(struct k3_job *job)
{
    bool is_alone = !flock(job->partials[0].fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK;
    flock(job->partials[0].fd, LOCK_SH | LOCK_NB);
    return is_alone;
}

/* With the lock: is all as it was judged, or did another run begin or end in between? */
static int check_unchanged(struct k3_job *job, const struct k3_plan *plan, struct k3_err *err)
{
    enum k3_job_state state;
    char found[K3_JOB_FOUND_BYTES];
    int rc = k3_job_state(job, plan, &state, found, err);
    if (rc || state == K3_JOB_NEW || state == K3_JOB_PARTIAL)
        return rc;
    for (uint32_t i = 0; i < job->dir_count; i++) /* if we made it, it is empty; else it stays */
        unlinkat(job->outs[i].fd, K3_PARTIAL_NAME, AT_REMOVEDIR);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "%s: another run began or finished a set here while this one started: "
                   "run the same command again to see what is there",
                   job->outs[0].path);
}

int k3_job_begin(struct k3_job *job, const struct k3_plan *plan, bool shared, struct k3_err *err)
{
    char token[K3_TOKEN_BYTES + 1], temporary[K3_STAGED_NAME_BYTES];
    memcpy(job->plan_digest, plan->digest, K3_DIGEST_BYTES);
    int rc = open_partials(job, true, err);
    if (!rc)
        rc = lock_all(job, shared, err);
    if (!rc)
        rc = check_unchanged(job, plan, err);
    if (!rc)
        rc = k3_job_check_places(job, true, err);
    if (rc || (!job->plan_is_lost && k3_file_exists(&job->partials[0], K3_PLAN_NAME)))
        return rc;
    rc = publish_ranks(job, plan, err);
    if (!rc)
        rc = k3_random_hex(token, K3_TOKEN_BYTES, err);
    if (rc)
        return rc;
    k3_staged_name(K3_PLAN_NAME, token, temporary);
    return k3_file_publish(&job->partials[0], temporary, K3_PLAN_NAME, plan->text, plan->text_bytes,
                           err);
}

/* The first directory was seen to have a .k3-partial, and one of them has none: their plan is whole
 * and nobody is at work with it, or a run that replaces the set removes and makes them now. */
static int fail_partials(const struct k3_job *job, struct k3_err *err)
{
    const int first = job->partials[0].fd;
    uint32_t dir = 0;
    while (dir + 1 < job->dir_count && job->partials[dir].fd >= 0)
        dir++;
    const bool is_free = first >= 0 && !flock(first, LOCK_EX | LOCK_NB);
    if (is_free && k3_file_exists(&job->partials[0], K3_PLAN_NAME))
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s: the unfinished conversion of %s does not have this directory: give "
                       "all its --out directories in the order of the first run",
                       job->outs[dir].path, job->outs[0].path);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "%s: another run has begun to replace this set (no " K3_PARTIAL_NAME
                   " is in %s yet): wait until that run is done, then run the same command again; "
                   "where it was stopped, run convert again",
                   job->outs[0].path, job->outs[dir].path);
}

int k3_job_resume(struct k3_job *job, char **plan_text, size_t *plan_bytes, struct k3_err *err)
{
    struct k3_sha256 *sha = NULL;
    if (!k3_file_exists(&job->outs[0], K3_PARTIAL_NAME))
        return k3_job_fail_nothing(job, err);
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = open_partials(job, false, &inner);
    if (rc)
        return inner.sys_errno == ENOENT ? fail_partials(job, err) : k3_fail_as(err, &inner);
    rc = lock_all(job, false, err);
    if (!rc)
        rc = k3_job_check_places(job, false, err);
    if (!rc && !k3_file_exists(&job->partials[0], K3_PLAN_NAME))
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "%s: the unfinished conversion has no plan yet: run convert",
                     job->outs[0].path);
    if (!rc)
        rc = k3_file_load(&job->partials[0], K3_PLAN_NAME, K3_MANIFEST_BYTES_MAX, plan_text,
                          plan_bytes, err);
    if (!rc)
        rc = read_ranks(&job->partials[0], &job->ranks, err);
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (!rc)
        k3_sha256_of(sha, *plan_text, *plan_bytes, job->plan_digest);
    k3_sha256_close(sha);
    return rc;
}

static int clear_dir(struct k3_dir *dir, struct k3_err *err)
{
    char **names = NULL;
    uint32_t count = 0;
    int rc = k3_dir_list(dir, &names, &count, err);
    /* Records go first: an item without its record is done again, one without its files would be an
     * error. */
    for (uint32_t i = 0; i < count && !rc; i++)
        if (k3_name_ends(names[i], ".record"))
            rc = k3_file_remove(dir, names[i], err);
    for (uint32_t i = 0; i < count && !rc; i++)
        if (strcmp(names[i], K3_PLAN_NAME) && strcmp(names[i], K3_RANKS_NAME))
            rc = k3_file_remove(dir, names[i], err);
    if (!rc)
        rc = k3_file_remove(dir, K3_PLAN_NAME, err); /* behind the rest: it says whose that is */
    if (!rc)
        rc = k3_file_remove(dir, K3_RANKS_NAME, err); /* not before: the plan is of these ranks */
    k3_names_free(names, count);
    return rc;
}

int k3_job_clear_partial(struct k3_job *job, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < job->dir_count && !rc; i++) {
        if (!k3_file_exists(&job->outs[i], K3_PARTIAL_NAME))
            continue;
        if (job->partials[i].fd < 0)
            rc = k3_dir_open_at(&job->outs[i], K3_PARTIAL_NAME, false, &job->partials[i], err);
        if (!rc)
            rc = lock(job, i, false, err);
        if (!rc)
            rc = clear_dir(&job->partials[i], err);
        if (rc)
            return rc;
        k3_dir_close(&job->partials[i]);
        job->partials[i].fd = -1;
        if (unlinkat(job->outs[i].fd, K3_PARTIAL_NAME, AT_REMOVEDIR) && errno != ENOENT)
            return k3_fail_sys(err, errno, "%s/%s: rmdir", job->outs[i].path, K3_PARTIAL_NAME);
        rc = k3_dir_sync(&job->outs[i], err);
    }
    return rc;
}

/* A staged file or, when a seal was interrupted, the final one: there with the right size, and not
 * written after its record?  1, 0, or -errno where the system does not say. */
static int is_there(const struct k3_job *job, uint32_t dir, const char *name,
                    const struct k3_record *record, uint64_t bytes, int64_t recorded_ns)
{
    char staged[K3_STAGED_NAME_BYTES];
    struct stat stat;
    k3_staged_name(name, record->token, staged);
    if (fstatat(job->partials[dir].fd, staged, &stat, AT_SYMLINK_NOFOLLOW) &&
        (errno != ENOENT || fstatat(job->outs[dir].fd, name, &stat, AT_SYMLINK_NOFOLLOW)))
        return errno == ENOENT ? 0 : -errno;
    return S_ISREG(stat.st_mode) && (uint64_t)stat.st_size == bytes &&
           k3_time_ns(&stat.st_mtim) <= recorded_ns;
}

static int all_there(const struct k3_job *job, const struct k3_record *record)
{
    char record_name[K3_STAGED_NAME_BYTES];
    struct stat stat;
    k3_record_name(record->item, record_name);
    if (fstatat(job->partials[0].fd, record_name, &stat, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? 0 : -errno;
    int64_t recorded_ns = k3_time_ns(&stat.st_mtim);
    char name[K3_NAME_BYTES_MAX + 1];
    int good = 1;
    for (uint32_t p = 0; p < record->part_count && good == 1; p++) {
        const struct k3_part_entry *part = &record->parts[p];
        k3_part_name(part->rank, part->part, name);
        good = is_there(job, k3_job_dir_of(job, part->rank, part->part), name, record, part->bytes,
                        recorded_ns);
    }
    for (uint32_t f = 0; f < record->file_count && good == 1; f++)
        good = is_there(job, 0, record->files[f].name, record, record->files[f].bytes, recorded_ns);
    return good;
}

/* Two runs that began at the same moment may have been for other ranks: the records tell. */
static int fail_ranks(const struct k3_job *job, const char *name, struct k3_err *err)
{
    char shown[K3_RANKS_SHOWN_BYTES];
    return k3_fail_at(err, K3_EUNSUPPORTED, name, -1,
                      "%s/%s: is not of rank%s %s: another run was for other ranks: remove it, or "
                      "begin again with --force",
                      job->partials[0].path, name, job->ranks.count == 1 ? "" : "s",
                      k3_ranks_shown(&job->ranks, shown));
}

int k3_job_done(struct k3_job *job, const struct k3_plan *plan, uint32_t item,
                struct k3_record *record, bool *found, struct k3_err *err)
{
    const struct k3_item *it = &plan->items[item];
    char name[K3_STAGED_NAME_BYTES];
    uint32_t wanted = 0;
    int rc = k3_job_record(job, item, record, found, err);
    if (rc || !*found)
        return rc;
    for (uint32_t rank = 0; rank < k3_layout_world(&plan->layout); rank++)
        for (uint32_t p = 0; p < it->part_count; p++)
            wanted += k3_ranks_has(&job->ranks, rank) &&
                      k3_layout_has_part(&plan->config, &plan->layout, rank, it->parts[p]);
    k3_record_name(item, name);
    rc = record->part_count == wanted /* each once, and of the ranks */
             ? k3_job_check_casts(job, plan, record, err)
             : fail_ranks(job, name, err);
    if (!rc)
        return 0;
    k3_record_fini(record);
    *found = false;
    return rc;
}

int k3_job_record(struct k3_job *job, uint32_t item, struct k3_record *record, bool *found,
                  struct k3_err *err)
{
    char name[K3_STAGED_NAME_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    memset(record, 0, sizeof *record);
    *found = false;
    k3_record_name(item, name);
    if (!k3_file_exists(&job->partials[0], name))
        return 0;
    int rc = k3_file_load(&job->partials[0], name, RECORD_BYTES_MAX, &text, &bytes, err);
    if (!rc)
        rc = k3_fail_in(&job->partials[0], k3_record_decode(name, text, bytes, record, err), err);
    free(text);
    if (!rc && record->item != item)
        rc = k3_fail_at(err, K3_ECORRUPT, name, -1,
                        "%s/%s: is the record of item %u: remove it and run convert again",
                        job->partials[0].path, name, record->item);
    if (!rc && memcmp(record->plan_digest, job->plan_digest, K3_DIGEST_BYTES))
        rc = k3_fail_at(err, K3_EUNSUPPORTED, name, -1,
                        "%s/%s: is the record of another conversion: remove it and run convert "
                        "again, which keeps the other items; or begin again with convert --force",
                        job->partials[0].path, name);
    for (uint32_t p = 0; !rc && p < record->part_count; p++)
        if (!k3_ranks_has(&job->ranks, record->parts[p].rank))
            rc = fail_ranks(job, name, err);
    if (!rc && strcmp(record->tool, job->tool))
        rc = k3_fail_at(err, K3_EUNSUPPORTED, name, -1,
                        "%s/%s: was made by %s, this is %s: finish with that build, or begin again "
                        "with --force",
                        job->partials[0].path, name, record->tool, job->tool);
    int there = rc ? 0 : all_there(job, record);
    *found = there == 1;
    if (there < 0)
        rc = k3_fail_sys(err, -there, "%s/%s: stat of its files", job->partials[0].path, name);
    if (rc || !*found)
        k3_record_fini(record);
    return rc;
}
