/* Purpose: the seal command: publish a conversion whose items are all done.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: as k3_seal; an incomplete conversion is K3_EUNSUPPORTED.
 * Invariant: sealing a sealed set changes nothing but removes what an interrupted run left. */
#include "cast_print.h"
#include "cmds.h"
#include "doc.h"
#include "job.h"
#include "talk.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>

/* Sound, where the manifest is, its files are there and the parts are of its plan.  Until then what
 * was staged is kept. */
static int check_sealed(const struct k3_opts *opts, struct k3_job *job, const struct stat *seen,
                        struct k3_cast_summary *casts, struct k3_err *err)
{
    struct k3_err judged;
    k3_err_init(&judged);
    int rc = k3_job_check_finished(job, &judged);
    if (!rc)
        (void)k3_seal_check(opts->out.item, opts->out.count, casts, &judged);
    rc = k3_job_end_judging(job, seen, &judged, err);
    return rc ? rc : k3_job_clear_partial(job, err);
}

/* A directory with a manifest is sealed already. */
static int seal_dirs(const struct k3_opts *opts, struct k3_job *job, bool *already,
                     struct k3_cast_summary *casts, struct k3_err *err)
{
    char *plan = NULL;
    size_t plan_bytes = 0;
    struct stat seen;
    int rc = k3_job_check_order(job, err);
    if (!rc)
        rc = k3_job_find_set(job, already, &seen, err);
    if (rc)
        return rc;
    if (*already)
        return check_sealed(opts, job, &seen, casts, err);
    rc = k3_job_resume(job, &plan, &plan_bytes, err);
    if (!rc)
        rc = k3_seal(job, plan, plan_bytes, casts, err);
    free(plan);
    return rc;
}

static void say_finished(const struct k3_opts *opts)
{
    printf("looked at names, sizes and the headers of the parts, and at no data; `k3-shard verify");
    for (uint32_t i = 0; i < opts->out.count; i++)
        printf(" %s", k3_quoted(opts->out.item[i]).s);
    printf("` reads them\n");
}

int k3_cmd_seal(const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_cast_summary casts;
    struct k3_job job;
    bool already = false;
    k3_cast_summary_init(&casts);
    int rc = k3_job_open(opts->out.item, opts->out.count, false, &job, err);
    if (rc)
        return rc;
    rc = seal_dirs(opts, &job, &already, &casts, err);
    if (!rc && opts->json) {
        struct k3_doc *root = k3_doc_new_object();
        bool good = root && k3_doc_add_bool(root, "was_finished", already) &&
                    k3_casts_add(root, &casts, opts->out.item[0]);
        rc = good ? k3_result_print(root, err)
                  : k3_fail(err, K3_ENOMEM, "no memory for the report");
        k3_doc_free(root);
    } else if (!rc) {
        k3_print_outs(opts);
        printf(" is %s\n", already ? "finished already" : "sealed");
        if (already)
            say_finished(opts);
        k3_casts_print(&casts, opts->out.item[0]);
    }
    k3_job_close(&job);
    return rc;
}
