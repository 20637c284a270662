/* Purpose: which --out directory of a conversion is which: the place files, and the order that
 * directories already have.
 * Owns: nothing between calls.
 * Threads: the main thread.
 * Errors: K3_EUNSUPPORTED (other directories, another order), K3_ECORRUPT (a damaged place file),
 * K3_EIO, K3_ENOMEM.
 * Invariant: a refusal writes nothing. */
#include "job.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACE_BYTES_MAX 64u
#define ORDER_BYTES_MAX 600u /* a message has room for it; half a word would be another path */
#define PLACE_FORMAT    "k3-place 0\n%u of %u\n"

/* Place and count of a place file; false where its text is not one. */
static bool decode_place(const char *text, uint32_t *place, uint32_t *count)
{
    char again[PLACE_BYTES_MAX];
    char *end = NULL;
    const char *line = strchr(text, '\n');
    unsigned long i = line ? strtoul(line + 1, &end, 10) : 0;
    unsigned long n = line && !strncmp(end, " of ", 4) ? strtoul(end + 4, NULL, 10) : 0;
    if (i >= n || n > K3_SET_DIR_COUNT_MAX)
        return false;
    *place = (uint32_t)i;
    *count = (uint32_t)n;
    snprintf(again, sizeof again, PLACE_FORMAT, *place, *count);
    return !strcmp(text, again);
}

/* Read the place file of an open .k3-partial; *found false where there is none. */
static int read_place(const struct k3_dir *partial, bool *found, uint32_t *place, uint32_t *count,
                      struct k3_err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    int rc = k3_file_find(partial, K3_PLACE_NAME, found, err);
    if (rc || !*found)
        return rc;
    rc = k3_file_load(partial, K3_PLACE_NAME, PLACE_BYTES_MAX, &text, &bytes, err);
    if (!rc && (strlen(text) != bytes || !decode_place(text, place, count)))
        rc = k3_fail_at(err, K3_ECORRUPT, K3_PLACE_NAME, -1,
                        "%s/" K3_PLACE_NAME ": cut or damaged: restore it (\"k3-place 0\", then "
                        "\"0 of N\" for the first of N --out directories), or begin again with "
                        "convert --force",
                        partial->path);
    free(text);
    return rc;
}

/* Parts are staged by the number of their directory: resumed with other directories, or in another
 * order, their records would not find them, and finished work would be done again. */
static int check_place(struct k3_job *job, uint32_t dir, bool *found, struct k3_err *err)
{
    uint32_t place = 0, count = 0;
    int rc = read_place(&job->partials[dir], found, &place, &count, err);
    if (!rc && *found && (place != dir || count != job->dir_count))
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "%s: an unfinished conversion has it as directory %u of %u, not %u of %u: "
                     "give all its --out directories in the order of the first run",
                     job->outs[dir].path, place + 1, count, dir + 1, job->dir_count);
    return rc;
}

static int publish_place(struct k3_job *job, uint32_t dir, struct k3_err *err)
{
    char token[K3_TOKEN_BYTES + 1], temporary[K3_STAGED_NAME_BYTES], text[PLACE_BYTES_MAX];
    snprintf(text, sizeof text, PLACE_FORMAT, dir, job->dir_count);
    int rc = k3_random_hex(token, K3_TOKEN_BYTES, err);
    if (rc)
        return rc;
    k3_staged_name(K3_PLACE_NAME, token, temporary);
    return k3_file_publish(&job->partials[dir], temporary, K3_PLACE_NAME, text, strlen(text), err);
}

/* All places first, then what is missing.  A plan is published behind all places, so a directory
 * without one is not of this conversion. */
int k3_job_check_places(struct k3_job *job, bool publish, struct k3_err *err)
{
    bool has_plan = false;
    int rc = k3_file_find(&job->partials[0], K3_PLAN_NAME, &has_plan, err);
    has_plan = has_plan && !job->plan_is_lost;
    for (uint32_t d = 0; d < job->dir_count && !rc; d++) {
        bool found;
        rc = check_place(job, d, &found, err);
        if (!rc && !found && has_plan && d > 0)
            rc = k3_fail(err, K3_EUNSUPPORTED,
                         "%s: the unfinished conversion of %s does not have this directory: give "
                         "all its --out directories in the order of the first run",
                         job->outs[d].path, job->outs[0].path);
    }
    for (uint32_t d = 0; publish && d < job->dir_count && job->dir_count > 1 && !rc; d++)
        if (!k3_file_exists(&job->partials[d], K3_PLACE_NAME))
            rc = publish_place(job, d, err);
    return rc;
}

/* ---- the order that they have already ---- */

/* Of the directories of a finished set, by its parts. */
static bool order_of_set(const struct k3_job *job, uint32_t *dir_of_place)
{
    const char *paths[K3_SET_DIR_COUNT_MAX];
    struct k3_set *set = NULL;
    for (uint32_t d = 0; d < job->dir_count; d++)
        paths[d] = job->outs[d].path;
    if (k3_set_open(paths, job->dir_count, &set, NULL))
        return false;
    memcpy(dir_of_place, set->dir_of_place, job->dir_count * sizeof *dir_of_place);
    k3_set_close(set);
    return true;
}

uint32_t k3_job_place(const struct k3_job *job, uint32_t dir, uint32_t *count)
{
    struct k3_dir partial;
    uint32_t place = 0;
    bool found = false;
    *count = 0;
    if (k3_dir_open_at(&job->outs[dir], K3_PARTIAL_NAME, false, &partial, NULL))
        return 0;
    if (read_place(&partial, &found, &place, count, NULL) || !found)
        *count = 0;
    k3_dir_close(&partial);
    return place;
}

/* Of the directories of an unfinished conversion, by what each says. */
static bool order_of_partial(const struct k3_job *job, uint32_t *dir_of_place)
{
    uint64_t seen = 0;
    for (uint32_t d = 0; d < job->dir_count; d++) {
        uint32_t count = 0, place = k3_job_place(job, d, &count);
        if (count != job->dir_count)
            return false;
        dir_of_place[place] = d;
        seen |= UINT64_C(1) << place;
    }
    return seen == UINT64_MAX >> (64 - job->dir_count);
}

int k3_job_check_order(const struct k3_job *job, struct k3_err *err)
{
    uint32_t dir_of_place[K3_SET_DIR_COUNT_MAX];
    bool is_set = false;
    uint32_t wrong = 0;
    if (job->dir_count < 2 || job->dir_count > K3_SET_DIR_COUNT_MAX)
        return 0;
    for (uint32_t d = 0; d < job->dir_count && !is_set; d++)
        is_set = k3_file_exists(&job->outs[d], K3_MANIFEST_NAME);
    if (is_set ? !order_of_set(job, dir_of_place) : !order_of_partial(job, dir_of_place))
        return 0; /* not of one set: who looks further says what is wrong */
    while (wrong < job->dir_count && dir_of_place[wrong] == wrong)
        wrong++;
    if (wrong == job->dir_count)
        return 0;
    struct k3_text right;
    k3_text_init(&right);
    for (uint32_t place = 0; place < job->dir_count; place++)
        k3_text_putf(&right, " --out %s", k3_quoted(job->outs[dir_of_place[place]].path).s);
    int rc = k3_text_check(&right, err);
    if (!rc)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "%s is not directory %u of the %s that lies here: give all its --out "
                     "directories in the order of the first run:%s",
                     job->outs[wrong].path, wrong + 1,
                     is_set ? "finished set" : "unfinished conversion",
                     right.bytes <= ORDER_BYTES_MAX ? right.data : " ...");
    k3_text_fini(&right);
    return rc;
}
