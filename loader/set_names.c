/* Purpose: names from outside against a set: lists of ranks, files in its directories.
 * Owns: nothing between calls.
 * Threads: any, on a constant set.
 * Errors: K3_EUSAGE for a list that is not one, K3_EUNSUPPORTED for a rank the set does not have,
 * K3_EIO, K3_ENOMEM; findings about files go to the problems.
 * Invariant: a list of ranks is ascending, without repeats, and not empty. */
#include "set.h"

#include <stdlib.h>
#include <string.h>

/* ---- lists of ranks ---- */

static bool digits(const char **at, uint32_t *value)
{
    uint32_t sum = 0;
    const char *begin = *at;
    /* Five digits hold any rank below 4096 and cannot overflow. */
    while (**at >= '0' && **at <= '9' && *at - begin < 5)
        sum = sum * 10 + (uint32_t)(*(*at)++ - '0');
    *value = sum;
    return *at > begin && (**at < '0' || **at > '9');
}

/* Mark one "N" or "N-M"; false where the form is wrong. */
static bool mark_range(const char **at, uint8_t *wanted, uint32_t *beyond)
{
    uint32_t first, last;
    if (!digits(at, &first))
        return false;
    last = first;
    if (**at == '-') {
        ++*at;
        if (!digits(at, &last) || last < first)
            return false;
    }
    for (uint32_t rank = first; rank <= last; rank++) {
        if (rank >= K3_RANK_COUNT_MAX) {
            *beyond = rank;
            break;
        }
        wanted[rank] = 1;
    }
    return true;
}

static int mark_list(const char *list, uint8_t *wanted, struct k3_err *err)
{
    uint32_t beyond = 0;
    const char *at = list;
    for (;;) {
        if (!mark_range(&at, wanted, &beyond) || (*at && *at != ','))
            return k3_fail(err, K3_EUSAGE, "ranks \"%.200s\": not a list like 0,3,8-15", list);
        if (beyond)
            return k3_fail(err, K3_EUNSUPPORTED, "rank %u is not in this set", beyond);
        if (!*at)
            return 0;
        at++;
    }
}

int k3_set_ranks(const struct k3_set *set, const char *list, uint32_t **ranks, uint32_t *count,
                 struct k3_err *err)
{
    *ranks = NULL;
    *count = 0;
    uint32_t *found = NULL;
    uint32_t found_count = 0;
    uint8_t *wanted = calloc(K3_RANK_COUNT_MAX, 1);
    int rc = wanted ? mark_list(list, wanted, err)
                    : k3_fail(err, K3_ENOMEM, "no memory for a list of ranks");
    if (rc)
        goto out;
    found = malloc(K3_RANK_COUNT_MAX * sizeof *found);
    if (!found) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for a list of ranks");
        goto out;
    }
    for (uint32_t rank = 0; rank < K3_RANK_COUNT_MAX; rank++) {
        if (!wanted[rank])
            continue;
        if (!k3_set_rank(set, rank)) {
            rc = k3_set_fail_rank(set, rank, err);
            goto out;
        }
        found[found_count++] = rank;
    }
    *ranks = found;
    *count = found_count;
    found = NULL;
out:
    free(found);
    free(wanted);
    return rc;
}

/* ---- files in the directories ---- */

static bool ends_with(const char *name, const char *end)
{
    size_t name_bytes = strlen(name);
    size_t end_bytes = strlen(end);
    return name_bytes >= end_bytes && strcmp(name + name_bytes - end_bytes, end) == 0;
}

/* A part that the manifest lists for this very directory, or a units file of it. */
static bool listed_part(const struct k3_set *set, uint32_t dir, const char *name)
{
    uint32_t rank, part;
    if (k3_units_name_decode(name, &rank))
        return dir == set->manifest_dir && k3_set_rank(set, rank);
    if (!k3_part_name_decode(name, &rank, &part))
        return false;
    const struct k3_manifest_rank *row = k3_set_rank(set, rank);
    if (!row || k3_set_part_dir(set, rank, part) != &set->dirs[dir])
        return false;
    for (uint32_t i = 0; i < row->part_count; i++)
        if (row->parts[i].part == part)
            return true;
    return false;
}

/* A file that belongs to a set but is no part: manifest, headers, copied files, signature. */
static bool listed_file(const struct k3_set *set, uint32_t dir, const char *name)
{
    if (dir != set->manifest_dir)
        return false;
    if (strcmp(name, K3_MANIFEST_NAME) == 0 || strcmp(name, K3_HEADERS_NAME) == 0 ||
        strcmp(name, "model.sig") == 0 || strcmp(name, "SHA256SUMS") == 0)
        return true;
    for (uint32_t i = 0; i < set->manifest.file_count; i++)
        if (strcmp(set->manifest.files[i].name, name) == 0)
            return true;
    return false;
}

int k3_set_check_names(const struct k3_set *set, struct k3_problems *problems,
                       uint32_t *notice_count, struct k3_err *err)
{
    *notice_count = 0;
    for (uint32_t i = 0; i < set->dir_count; i++) {
        char **names;
        uint32_t count;
        int rc = k3_dir_list(&set->dirs[i], &names, &count, err);
        if (rc)
            return rc;
        for (uint32_t j = 0; j < count; j++) {
            if (listed_part(set, i, names[j]) || listed_file(set, i, names[j]))
                continue;
            if (ends_with(names[j], ".safetensors") || ends_with(names[j], ".units"))
                k3_problems_add(problems,
                                "%s/%s: not listed in the manifest (for this directory): move it "
                                "away",
                                set->dirs[i].path, names[j]);
            else
                ++*notice_count;
        }
        k3_names_free(names, count);
    }
    return 0;
}
