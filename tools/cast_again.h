/* What the casts of a finished set did, from its report. */
#ifndef K3_CAST_AGAIN_H
#define K3_CAST_AGAIN_H

#include "cast_report.h"
#include "fs.h"

/* Sums and low tensors as seal left them in dir; empty where the plan casts nothing.
 * Fails: K3_ECORRUPT, K3_EIO, K3_ENOMEM. */
int k3_casts_of_set(const struct k3_dir *dir, const struct k3_plan *plan,
                    struct k3_cast_summary *casts, struct k3_err *err);

#endif
