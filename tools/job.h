/* A conversion on disk: its directories, what is finished, what is staged (FORMAT.md 9).  Shared by
 * convert and seal. */
#ifndef K3_JOB_H
#define K3_JOB_H

#include "cast_report.h"
#include "ckpt.h"
#include "manifest.h"
#include "ranks.h"
#include "set.h"

#include <stdatomic.h>

/* Inside K3_PARTIAL_NAME. */
#define K3_SOURCES_NAME "sources"
#define K3_PLACE_NAME   "place" /* the same, where there are several directories */
#define K3_RANKS_NAME   "ranks"

struct k3_progress;

struct k3_job {
    struct k3_dir *outs;     /* --out, in order; owned */
    struct k3_dir *partials; /* .k3-partial of each; owned */
    uint32_t dir_count;
    struct k3_ranks
        ranks;     /* the set's; convert sets it before k3_job_state, k3_job_resume reads it */
    char tool[64]; /* "k3-shard VERSION" */
    uint8_t plan_digest[K3_DIGEST_BYTES];
    bool plan_is_lost; /* k3_job_state found a plan.json that cannot be read and that nothing
                          contradicts: k3_job_begin writes it anew */
};

/* How a directory stands. */
enum k3_job_state {
    K3_JOB_NEW,      /* nothing of ours there */
    K3_JOB_PARTIAL,  /* .k3-partial of the same plan and ranks */
    K3_JOB_FINISHED, /* a manifest of the same plan and ranks */
    K3_JOB_OTHER     /* a manifest or a .k3-partial of others; *found says which */
};

#define K3_JOB_FOUND_BYTES 1024u /* every option of a layout, then and now */

/* Name what an earlier plan has otherwise than this one: "--tp 2 (now 4)".  Never fails. */
void k3_job_differs(const char *plan_text, size_t bytes, const struct k3_plan *now,
                    char found[K3_JOB_FOUND_BYTES]);

/* Open the directories (create: make missing ones).  Fails: K3_EIO, K3_ENOMEM, K3_EUSAGE (one named
 * twice). */
int k3_job_open(const char *const *paths, uint32_t count, bool create, struct k3_job *job,
                struct k3_err *err);
void k3_job_close(struct k3_job *job); /* safe on a zeroed struct */

/* Compare with a plan and job->ranks.  found: K3_JOB_FOUND_BYTES for a phrase
 * that names what is there and in what it differs. */
int k3_job_state(struct k3_job *job, const struct k3_plan *plan, enum k3_job_state *state,
                 char *found, struct k3_err *err);

/* Manifest of the set in the first directory; caller fini's.  Fails: as k3_manifest_decode. */
int k3_job_manifest(struct k3_job *job, struct k3_manifest *manifest, struct k3_err *err);

/* Is a finished set whole, by names and sizes?  K3_ECORRUPT naming what is not there. */
int k3_job_check_finished(struct k3_job *job, struct k3_err *err);

/* Is the first directory's manifest there, and which is it?  Before a finished set is judged. */
int k3_job_find_set(const struct k3_job *job, bool *found, struct stat *seen, struct k3_err *err);
/* Behind that: what the judges found (`judged`, its rc 0: nothing) counts where the manifest is
 * still the one that was seen.  Else K3_EUNSUPPORTED: a run that replaces a set removes its
 * manifest first, and what the judges met was that run. */
int k3_job_end_judging(const struct k3_job *job, const struct stat *seen,
                       const struct k3_err *judged, struct k3_err *err);

/* A source file newer than the finished set, or NULL: worth a word, since a plan knows headers
 * only. */
const char *k3_job_newer_source(const struct k3_job *job, const struct k3_ckpt *ckpt);

/* Nothing of ours is there, but a file that would be overwritten is: K3_EUNSUPPORTED naming it. */
int k3_job_check_copied(const struct k3_job *job, const struct k3_ckpt *ckpt, struct k3_err *err);

/* After k3_job_begin, in the same turn: are the checkpoint's files the ones this conversion began
 * with (names, sizes, times)?  The plan knows only their headers.  shared: as for begin.
 * K3_EUNSUPPORTED naming the first that is not. */
int k3_job_check_sources(struct k3_job *job, const struct k3_ckpt *ckpt, bool shared,
                         struct k3_err *err);

/* Runs begin one after the other: what one judges to be there, and writes where nothing is, no
 * other changes meanwhile.  Waits some seconds for its turn; K3_EUNSUPPORTED when none comes. */
int k3_job_turn_begin(struct k3_job *job, struct k3_err *err);
void k3_job_turn_end(struct k3_job *job);
/* Does no other worker hold a lock here?  In a turn, with a shared lock, which is kept. */
bool k3_job_is_alone(struct k3_job *job);

/* Open .k3-partial of each directory (create), take their locks (shared: beside other workers),
 * write ranks and plan.json where they are missing.  K3_EUNSUPPORTED when another conversion runs
 * here. */
int k3_job_begin(struct k3_job *job, const struct k3_plan *plan, bool shared, struct k3_err *err);

/* There is nothing to resume or to seal: K3_EUNSUPPORTED that says what is there instead. */
int k3_job_fail_nothing(const struct k3_job *job, struct k3_err *err);

/* Open existing .k3-partial directories, read ranks and plan.json (malloc). */
int k3_job_resume(struct k3_job *job, char **plan_text, size_t *plan_bytes, struct k3_err *err);

/* What of the set or conversion that --force replaces lies in none of the directories: parts that
 * its manifest lists, and directories that its .k3-partial counts.  Before anything is removed.
 * What cannot be read is not counted. */
struct k3_job_strays {
    uint32_t part_count, dir_count;
    char part[K3_NAME_BYTES_MAX + 1]; /* the first of them */
};
void k3_job_find_strays(struct k3_job *job, struct k3_job_strays *strays);

/* What --force would remove: part files, those (units files too) that the manifest does not list,
 * finished items of an unfinished conversion, and the room that this makes in each directory (files
 * that have another name as well make none).  Fails: K3_EUNSUPPORTED naming a file of such a
 * name that is not of a shard set; K3_EIO, K3_ENOMEM. */
struct k3_job_removal {
    uint64_t freed_bytes[K3_SET_DIR_COUNT_MAX];
    uint32_t part_count, unlisted_count, item_count;
    char unlisted[K3_NAME_BYTES_MAX + 1]; /* the first of them */
};
int k3_job_survey_removal(struct k3_job *job, struct k3_job_removal *removal, struct k3_err *err);
/* An unfinished conversion with other options, none of whose items is finished, holds nothing that
 * is worth a refusal: *state K3_JOB_OTHER becomes K3_JOB_NEW, and it is removed, where no run uses
 * it.  *state and found are judged again, as by k3_job_state.  K3_EUNSUPPORTED: a run does. */
int k3_job_drop_idle(struct k3_job *job, const struct k3_plan *plan, enum k3_job_state *state,
                     char *found, struct k3_err *err);
/* Does a file with the name of a part or of a units file say itself that it is one?  K3_EIO,
 * K3_ENOMEM. */
int k3_job_is_of_set(const struct k3_dir *dir, const char *name, bool *is_ours, struct k3_err *err);

/* Several directories that are, all together, a finished set or an unfinished conversion, but in
 * another order: K3_EUNSUPPORTED with the right one. */
int k3_job_check_order(const struct k3_job *job, struct k3_err *err);
/* What the .k3-partial of a directory says: it is number k of *count; *count 0: nothing. */
uint32_t k3_job_place(const struct k3_job *job, uint32_t dir, uint32_t *count);
/* With .k3-partial open: is each directory the one it was in the first run?  publish: write what is
 * missing.  K3_EUNSUPPORTED, K3_ECORRUPT, K3_EIO, K3_ENOMEM. */
int k3_job_check_places(struct k3_job *job, bool publish, struct k3_err *err);

/* Are the open .k3-partial directories still those that the directories hold?  K3_EUNSUPPORTED. */
int k3_job_check_held(const struct k3_job *job, struct k3_err *err);

/* Remove .k3-partial and what is in it. */
int k3_job_clear_partial(struct k3_job *job, struct k3_err *err);
/* Remove a finished or foreign set: the manifest first, then parts, units and source headers. */
int k3_job_clear_set(struct k3_job *job, struct k3_err *err);

/* Directory number of a part. */
uint32_t k3_job_dir_of(const struct k3_job *job, uint32_t rank, uint32_t part);

/* Name of a record and of a staged file; name has K3_STAGED_NAME_BYTES. */
#define K3_STAGED_NAME_BYTES (K3_NAME_BYTES_MAX + 1 + K3_TOKEN_BYTES + 1)
void k3_record_name(uint32_t item, char *name);
void k3_staged_name(const char *name, const char *token, char *staged);

/* Read the record of an item.  *found false: there is none, or its staged files are gone (then it
 * must be done again). A record of another plan, other ranks or tool build: K3_EUNSUPPORTED. */
int k3_job_record(struct k3_job *job, uint32_t item, struct k3_record *record, bool *found,
                  struct k3_err *err);
/* The same, with a look at the plan: does the record hold every part of its item that the ranks
 * have?  What seal would miss is said before the item passes for done. */
int k3_job_done(struct k3_job *job, const struct k3_plan *plan, uint32_t item,
                struct k3_record *record, bool *found, struct k3_err *err);

/* Files of the directories that are in the way of this plan: K3_EUNSUPPORTED naming the first. */
enum k3_job_foreign {
    K3_FOREIGN_NEW,    /* nothing of this plan is there yet: no part or units file may be */
    K3_FOREIGN_RESUME, /* parts of this plan may be, where they belong */
    K3_FOREIGN_FORCE   /* parts and units files of any set will be removed */
};
int k3_job_check_foreign(const struct k3_job *job, const struct k3_config *config,
                         const struct k3_layout *layout, enum k3_job_foreign mode,
                         struct k3_err *err);

/* Publish the set from its records; the parts it must have follow from plan text and ranks.  Where
 * the policy casts, the report too, and *casts is its sums (else none).
 * Fails: K3_EUNSUPPORTED listing what is missing (exit 4); K3_ECORRUPT, K3_EIO, K3_ENOMEM. */
int k3_seal(struct k3_job *job, const char *plan_text, size_t plan_bytes,
            struct k3_cast_summary *casts, struct k3_err *err);

/* The first bytes of a part's header say that it is this part, of this plan.  K3_ECORRUPT, K3_EIO.
 */
int k3_seal_check_head(const struct k3_dir *dir, const char *name, const struct k3_part_entry *part,
                       const uint8_t plan_digest[K3_DIGEST_BYTES], struct k3_err *err);

/* A finished set: the parts are, by their headers, those of the plan in the manifest, and so is the
 * report of its casts, whose sums *casts gets (none where there is no report).  Fails as
 * k3_set_open, k3_set_part_header, k3_set_check_header. */
int k3_seal_check(const char *const *dirs, uint32_t dir_count, struct k3_cast_summary *casts,
                  struct k3_err *err);

/* The record holds what the casts did to every matrix of its parts that the policy casts, and no
 * more.  K3_ECORRUPT that names record, part and tensor. */
int k3_job_check_casts(const struct k3_job *job, const struct k3_plan *plan,
                       const struct k3_record *record, struct k3_err *err);

/* The sums of the items of one worker, from their records. */
int k3_casts_of_worker(struct k3_job *job, const struct k3_plan *plan, uint32_t worker,
                       uint32_t workers, struct k3_cast_summary *casts, struct k3_err *err);

#endif
