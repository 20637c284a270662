/* Talk that several commands share. */
#ifndef K3_TALK_H
#define K3_TALK_H

#include "k3_err.h"
#include "opts.h"

/* Print every problem on a line of its own, and how many were found beyond those kept. */
void k3_say_problems(const struct k3_problems *problems);

/* The --out directories on stdout: the first, and how many more. */
void k3_print_outs(const struct k3_opts *opts);

/* On stdout, behind "finished already": what was looked at, and what looks at the rest. */
void k3_say_finished(const struct k3_opts *opts);

#endif
