/* Purpose: sums of the casts of a finished set, from its report (FORMAT.md 4.9), so that a command
 * that finds the set says the same as the one that made it.
 * Owns: nothing between calls.
 * Threads: one.
 * Errors: K3_ECORRUPT (a report that is not that of the set), K3_EIO, K3_ENOMEM.
 * Invariant: a report is believed where verify would believe it. */
#include "cast_again.h"

#include "set_casts.h"

#include <stdlib.h>

int k3_casts_of_set(const struct k3_job *job, const struct k3_plan *plan,
                    struct k3_cast_summary *casts, struct k3_err *err)
{
    struct k3_set *set = NULL;
    bool found;
    k3_cast_summary_init(casts);
    if (k3_policy_is_verbatim(&plan->policy))
        return 0;
    const char **paths = calloc(job->dir_count, sizeof *paths);
    if (!paths)
        return k3_fail(err, K3_ENOMEM, "no memory for a list of %u directories", job->dir_count);
    for (uint32_t d = 0; d < job->dir_count; d++)
        paths[d] = job->outs[d].path;
    int rc = k3_set_open(paths, job->dir_count, &set, err);
    if (!rc)
        rc = k3_set_check_report(set, plan, &found, casts, err);
    k3_set_close(set);
    free(paths);
    return rc;
}
