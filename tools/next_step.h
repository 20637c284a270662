/* What to do about a failed system call. */
#ifndef K3_NEXT_STEP_H
#define K3_NEXT_STEP_H

#include "k3_err.h"
#include "opts.h"

/* Put the next step behind the text of a failure whose last word is the system's reason; others
 * are left alone. */
void k3_add_next_step(struct k3_err *err);

/* A command that a signal stopped: name what it worked on, what is left of it, and the next step.
 */
void k3_add_stop_step(const struct k3_opts *opts, struct k3_err *err);

#endif
