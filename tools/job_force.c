/* Purpose: what --force replaces: name it, refuse what is no file of a set, remove the rest.
 * Owns: nothing between calls.
 * Threads: the main thread.
 * Errors: K3_EUNSUPPORTED (a file with the name of a part that is none), K3_EIO, K3_ENOMEM.
 * Invariant: removal begins with the manifest, so that at no moment a damaged set has one; a file
 * that no manifest lists is removed only where it says itself that it is of a shard set. */
#include "job.h"
#include "part.h"
#include "st.h"
#include "units.h"
#include "verify.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* ---- what it cannot reach ---- */

static void find_stray_parts(struct k3_job *job, struct k3_job_strays *strays)
{
    struct k3_manifest manifest;
    char name[K3_NAME_BYTES_MAX + 1];
    if (k3_job_manifest(job, &manifest, NULL))
        return;
    for (uint32_t r = 0; r < manifest.rank_count; r++)
        for (uint32_t p = 0; p < manifest.ranks[r].part_count; p++) {
            bool found = false;
            k3_part_name(manifest.ranks[r].rank, manifest.ranks[r].parts[p].part, name);
            for (uint32_t d = 0; d < job->dir_count && !found; d++)
                found = k3_file_exists(&job->outs[d], name);
            if (!found && strays->part_count++ == 0)
                snprintf(strays->part, sizeof strays->part, "%s", name);
        }
    k3_manifest_fini(&manifest);
}

void k3_job_find_strays(struct k3_job *job, struct k3_job_strays *strays)
{
    memset(strays, 0, sizeof *strays);
    find_stray_parts(job, strays);
    for (uint32_t d = 0; d < job->dir_count; d++) {
        uint32_t count = 0;
        (void)k3_job_place(job, d, &count);
        if (count > job->dir_count)
            strays->dir_count = count - job->dir_count;
    }
}

/* ---- what it may remove ---- */

/* Is it in the manifest?  NULL: there is none that can be read. */
static bool is_listed(const struct k3_manifest *manifest, const char *name)
{
    uint32_t rank, part = 0;
    bool is_part = k3_part_name_decode(name, &rank, &part);
    if (!manifest || (!is_part && !k3_units_name_decode(name, &rank)))
        return false;
    for (uint32_t r = 0; r < manifest->rank_count; r++) {
        const struct k3_manifest_rank *row = &manifest->ranks[r];
        if (row->rank != rank)
            continue;
        for (uint32_t p = 0; is_part && p < row->part_count; p++)
            if (row->parts[p].part == part)
                return true;
        return !is_part;
    }
    return false;
}

/* Engines have sharded checkpoints of their own whose files are named like our parts: only what
 * the file itself says tells them apart. */
int k3_job_is_of_set(const struct k3_dir *dir, const char *name, bool *is_ours, struct k3_err *err)
{
    static const uint8_t magic[8] = "K3UNITS";
    struct k3_err inner;
    struct k3_st *st = NULL;
    struct stat stat;
    uint32_t rank;
    int fd = -1;
    *is_ours = false;
    k3_err_init(&inner);
    int rc = k3_file_open(dir, name, false, &fd, &stat, &inner);
    if (!rc && k3_units_name_decode(name, &rank)) {
        uint8_t found[sizeof magic];
        rc = k3_file_read(fd, name, found, sizeof found, 0, &inner);
        *is_ours = !rc && !memcmp(found, magic, sizeof magic);
    } else if (!rc) {
        rc = k3_verify_header(name, fd, (uint64_t)stat.st_size, &st, &inner);
        *is_ours = !rc && k3_st_meta_find(st, "k3.format") && k3_st_meta_find(st, "k3.plan");
    }
    k3_st_free(st);
    if (fd >= 0)
        close(fd);
    /* What is wrong with its bytes is an answer; a read that failed is none. */
    return k3_exit_code(rc) == 1 ? k3_fail_as(err, &inner) : 0;
}

static void count_freed(const struct k3_dir *dir, const char *name, uint64_t *bytes)
{
    struct stat stat;
    if (!fstatat(dir->fd, name, &stat, AT_SYMLINK_NOFOLLOW) && S_ISREG(stat.st_mode) &&
        stat.st_nlink == 1)
        *bytes += (uint64_t)stat.st_blocks * 512; /* POSIX leaves the unit open, Linux does not */
}

static int survey_dir(const struct k3_job *job, uint32_t dir, const struct k3_manifest *manifest,
                      struct k3_job_removal *removal, struct k3_err *err)
{
    char **names = NULL;
    uint32_t count = 0, rank, part;
    int rc = k3_dir_list(&job->outs[dir], &names, &count, err);
    for (uint32_t n = 0; n < count && !rc; n++) {
        bool is_part = k3_part_name_decode(names[n], &rank, &part), is_ours = true;
        bool is_units = !is_part && k3_units_name_decode(names[n], &rank);
        if (is_part || is_units || !strcmp(names[n], K3_HEADERS_NAME))
            count_freed(&job->outs[dir], names[n], &removal->freed_bytes[dir]);
        if (!is_part && !is_units)
            continue;
        bool listed = is_listed(manifest, names[n]);
        if (!listed)
            rc = k3_job_is_of_set(&job->outs[dir], names[n], &is_ours, err);
        if (!rc && !is_ours)
            rc = k3_fail_at(err, K3_EUNSUPPORTED, names[n], -1,
                            "%s/%s: has the name of a file of a shard set and is none, or is "
                            "damaged, and no manifest lists it: --force does not remove it: move "
                            "it away, or give another --out",
                            job->outs[dir].path, names[n]);
        removal->part_count += is_part;
        if (!rc && !listed && manifest && removal->unlisted_count++ == 0)
            snprintf(removal->unlisted, sizeof removal->unlisted, "%s", names[n]);
    }
    k3_names_free(names, count);
    return rc;
}

/* Items by their records alone: nothing of them is kept, so nothing is read. */
static int survey_partial(const struct k3_job *job, uint32_t dir, struct k3_job_removal *removal,
                          struct k3_err *err)
{
    struct k3_dir partial;
    char **names = NULL;
    uint32_t count = 0;
    if (!k3_file_exists(&job->outs[dir], K3_PARTIAL_NAME))
        return 0;
    int rc = k3_dir_open_at(&job->outs[dir], K3_PARTIAL_NAME, false, &partial, err);
    if (rc)
        return rc;
    rc = k3_dir_list(&partial, &names, &count, err);
    for (uint32_t n = 0; n < count; n++) {
        count_freed(&partial, names[n], &removal->freed_bytes[dir]);
        removal->item_count += dir == 0 && names[n][0] != '.' && k3_name_ends(names[n], ".record");
    }
    k3_names_free(names, count);
    k3_dir_close(&partial);
    return rc;
}

int k3_job_survey_removal(struct k3_job *job, struct k3_job_removal *removal, struct k3_err *err)
{
    struct k3_manifest manifest;
    memset(removal, 0, sizeof *removal);
    bool readable = !k3_job_manifest(job, &manifest, NULL);
    int rc = 0;
    for (uint32_t d = 0; d < job->dir_count && !rc; d++)
        rc = survey_dir(job, d, readable ? &manifest : NULL, removal, err);
    if (readable)
        k3_manifest_fini(&manifest);
    for (uint32_t d = 0; d < job->dir_count && !rc; d++)
        rc = survey_partial(job, d, removal, err);
    return rc;
}

int k3_job_drop_idle(struct k3_job *job, const struct k3_plan *plan, enum k3_job_state *state,
                     char *found, struct k3_err *err)
{
    struct k3_job_removal removal = {.item_count = 0};
    bool has_manifest = false;
    int rc = k3_job_turn_begin(job, err); /* no run begins while this one judges */
    if (rc)
        return rc;
    rc = k3_job_state(job, plan, state, found, err);
    if (!rc && *state == K3_JOB_OTHER)
        rc = k3_file_find(&job->outs[0], K3_MANIFEST_NAME, &has_manifest, err);
    /* The turn is this run's.  Without locks nobody has turns, and none can say that no other run
     * uses it: then it stays, and is refused. */
    const bool has_locks = flock(job->outs[0].fd, LOCK_EX | LOCK_NB) == 0;
    if (!rc && *state == K3_JOB_OTHER && !has_manifest && has_locks) {
        rc = survey_partial(job, 0, &removal, err);
        if (!rc && removal.item_count == 0) {
            rc = k3_job_clear_partial(job, err);
            *state = K3_JOB_NEW;
        }
    }
    k3_job_turn_end(job);
    return rc;
}

/* ---- the removal ---- */

/* Names of the copied files of the set that is there, so that none of them outlives it. */
static int clear_copied(struct k3_job *job, const struct k3_manifest *manifest, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < manifest->file_count && !rc; i++)
        rc = k3_file_remove(&job->outs[0], manifest->files[i].name, err);
    return rc;
}

int k3_job_clear_set(struct k3_job *job, struct k3_err *err)
{
    struct k3_manifest manifest;
    bool readable = !k3_job_manifest(job, &manifest, NULL); /* a damaged one names nothing */
    int rc = k3_file_remove(&job->outs[0], K3_MANIFEST_NAME, err);
    if (!rc && readable)
        rc = clear_copied(job, &manifest, err);
    if (readable)
        k3_manifest_fini(&manifest);
    if (!rc)
        rc = k3_dir_sync(&job->outs[0], err);
    for (uint32_t i = 0; i < job->dir_count && !rc; i++) {
        char **names = NULL;
        uint32_t count = 0, rank, part;
        rc = k3_dir_list(&job->outs[i], &names, &count, err);
        for (uint32_t n = 0; n < count && !rc; n++)
            if (k3_part_name_decode(names[n], &rank, &part) ||
                k3_units_name_decode(names[n], &rank) || !strcmp(names[n], K3_HEADERS_NAME))
                rc = k3_file_remove(&job->outs[i], names[n], err);
        k3_names_free(names, count);
        if (!rc)
            rc = k3_dir_sync(&job->outs[i], err);
    }
    return rc;
}
