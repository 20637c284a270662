/* What the casts of a finished set did, from its report. */
#ifndef K3_CAST_AGAIN_H
#define K3_CAST_AGAIN_H

#include "cast_report.h"
#include "job.h"

/* Sums and low tensors as seal left them in the finished set of a job; empty where its plan casts
 * nothing, or it has no report.  Fails: K3_ECORRUPT, K3_EIO, K3_ENOMEM. */
int k3_casts_of_set(const struct k3_job *job, const struct k3_plan *plan,
                    struct k3_cast_summary *casts, struct k3_err *err);

#endif
