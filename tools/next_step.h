/* What to do about a failed system call. */
#ifndef K3_NEXT_STEP_H
#define K3_NEXT_STEP_H

#include "k3_err.h"
#include "opts.h"

/* Put the next step behind the text of a failure whose last word is the system's reason; others
 * are left alone. */
void k3_add_next_step(struct k3_err *err);

/* The same where the step depends on the command: a path that it was given and that is not there; a
 * signal that stopped it, with what it worked on and what is left of that. */
void k3_add_command_step(const struct k3_opts *opts, struct k3_err *err);

#endif
