/* The commands, one function each; the command table points at them. */
#ifndef K3_CMDS_H
#define K3_CMDS_H

#include "k3_err.h"
#include "opts.h"

/* Each prints its result on stdout and its talk on stderr, and returns 0 or a negative enum k3_rc
 * with *err filled; main() prints the error and turns the code into the exit code.
 * Each may be called once in a process, from the main thread. */
int k3_cmd_plan(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_convert(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_seal(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_verify(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_inspect(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_export(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_load(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_bench(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_doctor(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_synth(const struct k3_opts *opts, struct k3_err *err);

int k3_cmd_help(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_man(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_completion(const struct k3_opts *opts, struct k3_err *err);
int k3_cmd_version(const struct k3_opts *opts, struct k3_err *err);

/* "0.1.0": what manifests record. */
const char *k3_tool_version(void);

struct k3_doc;

/* Print the one JSON object of --json and its LF.  A command that fails after it (a plan that does
 * not fit, a set that is bad) returns its code as usual: main() then adds no error object.
 * Fails: K3_ENOMEM. */
int k3_result_print(const struct k3_doc *root, struct k3_err *err);
/* Has k3_result_print() been called? */
bool k3_result_is_printed(void);

#endif
