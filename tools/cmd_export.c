/* Purpose: the command export: ask for the export, print what was written.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: those of k3_export.
 * Invariant: a result is printed only for an export that is complete and durable. */
#include "cmds.h"
#include "doc.h"
#include "export.h"
#include "sizes.h"
#include "text.h"
#include "workers.h"

#include <stdio.h>

static int print_json(const struct k3_opts *opts, const struct k3_export_report *report,
                      struct k3_err *err)
{
    struct k3_doc *root = k3_doc_new_object();
    bool added = root && k3_doc_add_string(root, "to", opts->to) &&
                 k3_doc_add_integer(root, "files", report->file_count) &&
                 k3_doc_add_integer(root, "bytes", report->bytes) &&
                 k3_doc_add_integer(root, "removed_leftovers", report->leftover_count) &&
                 k3_doc_add_double(root, "seconds", (double)report->spent_ns / 1e9);
    int rc = added ? k3_result_print(root, err)
                   : k3_fail(err, K3_ENOMEM, "no memory for the report");
    k3_doc_free(root);
    return rc;
}

int k3_cmd_export(const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_export_options options = {.dirs = opts->args.item,
                                        .to = opts->to,
                                        .dir_count = opts->args.count,
                                        .job_count = opts->jobs ? opts->jobs : k3_cpu_count(),
                                        .quiet = opts->quiet};
    struct k3_export_report report;
    int rc = k3_export(&options, &report, err);
    if (report.leftover_count && !opts->quiet)
        fprintf(stderr, "notice: removed %u unfinished file%s that an interrupted export left\n",
                report.leftover_count, report.leftover_count == 1 ? "" : "s");
    if (rc)
        return rc;
    if (opts->json)
        return print_json(opts, &report, err);
    printf("exported  %s: %s files, %s\n", k3_printable(opts->to).s,
           k3_count_text(report.file_count).s, k3_size_text(report.bytes).s);
    printf("time      %s, %s\n", k3_time_text(report.spent_ns).s,
           k3_rate_text(report.bytes, report.spent_ns).s);
    printf("proved    every file has the SHA-256 that the manifest records\n");
    return 0;
}
