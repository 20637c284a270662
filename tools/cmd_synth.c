/* Purpose: the command synth: options in, checkpoint out.
 * Owns: the checkpoint being written and its progress.
 * Threads: the main thread; progress is counted by workers.
 * Errors: those of k3_synth_open and k3_synth_write.
 * Invariant: stdout holds one line or one object, and only when the checkpoint is whole. */
#include "cmds.h"
#include "doc.h"
#include "progress.h"
#include "sizes.h"
#include "stop.h"
#include "synth.h"
#include "text.h"

#include <stdio.h>

_Static_assert((int)K3_OPT_PRESET_TINY == (int)K3_SYNTH_TINY &&
                   (int)K3_OPT_PRESET_LAYER == (int)K3_SYNTH_LAYER &&
                   (int)K3_OPT_PRESET_FULL == (int)K3_SYNTH_FULL,
               "the choices of --preset stand in the order of enum k3_synth_preset");

static void count_bytes(void *context, uint64_t bytes)
{
    k3_progress_add(context, bytes);
}

static int print_result(const struct k3_opts *opts, const struct k3_synth_totals *totals,
                        uint64_t spent_ns, struct k3_err *err)
{
    const char *dir = opts->args.item[0];
    if (!opts->json) {
        printf("%s: %s tensors, %s in %u files%s\n", k3_printable(dir).s,
               k3_count_text(totals->tensor_count).s, k3_size_text(totals->file_bytes).s,
               totals->file_count, opts->sparse ? ", headers only: the data are holes" : "");
        return 0;
    }
    struct k3_doc *root = k3_doc_new_object();
    int rc = 0;
    if (!root || !k3_doc_add_string(root, "path", dir) ||
        !k3_doc_add_integer(root, "files", totals->file_count) ||
        !k3_doc_add_integer(root, "tensor_count", totals->tensor_count) ||
        !k3_doc_add_integer(root, "checkpoint_bytes", totals->tensor_bytes) ||
        !k3_doc_add_integer(root, "file_bytes", totals->file_bytes) ||
        !k3_doc_add_bool(root, "sparse", opts->sparse) ||
        !k3_doc_add_double(root, "seconds", (double)spent_ns / 1e9))
        rc = k3_fail(err, K3_ENOMEM, "no memory for the result");
    if (!rc)
        rc = k3_result_print(root, err);
    k3_doc_free(root);
    return rc;
}

int k3_cmd_synth(const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_progress progress;
    struct k3_synth *synth;
    const struct k3_synth_options options = {
        .preset = (enum k3_synth_preset)opts->preset,
        .layer_count = opts->layers,
        .expert_count = opts->expert_count,
        .seed = opts->seed,
        .sparse = opts->sparse,
        .worker_count = opts->jobs,
        .stop = k3_stop_requested,
        .progress = count_bytes,
        .progress_context = &progress,
    };
    k3_stop_install();
    int rc = k3_synth_open(&options, &synth, err);
    if (rc)
        return rc;
    const struct k3_synth_totals *totals = k3_synth_totals(synth);
    /* Headers alone take seconds, and their bytes are not those of the total. */
    k3_progress_begin(&progress, "synth", totals->tensor_bytes, opts->quiet || opts->sparse);
    rc = k3_synth_write(synth, opts->args.item[0], err);
    uint64_t spent_ns = k3_progress_end(&progress);
    if (!rc)
        rc = print_result(opts, totals, spent_ns, err);
    k3_synth_close(synth);
    return rc;
}
