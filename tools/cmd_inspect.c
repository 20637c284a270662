/* Purpose: the command inspect: what a path holds, one tensor of it, or digests of a file.
 * Owns: the tree that is shown.
 * Threads: the main thread.
 * Errors: those of the inspection; K3_EUSAGE for options that do not go together.
 * Invariant: text and --json come from one tree and cannot disagree. */
#include "cmds.h"
#include "doc.h"
#include "fs.h"
#include "inspect.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int inspect_digests(const struct k3_opts *opts, struct k3_err *err)
{
    const char *path = opts->args.item[0];
    struct k3_file_digests digests;
    int rc = k3_inspect_digests(path, &digests, err);
    if (rc)
        return rc;
    if (!opts->json) {
        /* The second line is what fsverity(1) prints for `fsverity digest FILE`. */
        printf("sha256  %s  %s\n", digests.sha256, k3_printable(path).s);
        printf("sha256:%s %s\n", digests.verity, k3_printable(path).s);
        return 0;
    }
    struct k3_doc *root = k3_doc_new_object();
    bool added = root && k3_doc_add_string(root, "path", path) &&
                 k3_doc_add_integer(root, "bytes", digests.bytes) &&
                 k3_doc_add_string(root, "sha256", digests.sha256) &&
                 k3_doc_add_string(root, "fs_verity", digests.verity);
    rc = added ? k3_result_print(root, err) : k3_fail(err, K3_ENOMEM, "no memory for the report");
    k3_doc_free(root);
    return rc;
}

static int check_options(const struct k3_opts *opts, bool is_dir, struct k3_err *err)
{
    const char *path = opts->args.item[0];
    if (opts->digest && (opts->tensor || opts->stats))
        return k3_fail(err, K3_EUSAGE,
                       "--digest is of a whole file: leave --tensor and --stats out");
    if (opts->digest && is_dir)
        return k3_fail(err, K3_EUSAGE, "%s is a directory: --digest is of one file", path);
    return 0;
}

int k3_cmd_inspect(const struct k3_opts *opts, struct k3_err *err)
{
    const char *path = opts->args.item[0];
    struct stat stat_;
    if (stat(path, &stat_))
        return k3_fail_path(err, errno, path, "be found");
    bool is_dir = S_ISDIR(stat_.st_mode);
    int rc = check_options(opts, is_dir, err);
    if (rc)
        return rc;
    if (opts->digest)
        return inspect_digests(opts, err);
    struct k3_doc *root = k3_doc_new_object();
    if (!root || !k3_doc_add_string(root, "path", path))
        rc = k3_fail(err, K3_ENOMEM, "no memory for the report");
    else if (opts->tensor)
        rc = k3_inspect_tensor(path, opts->tensor, opts->stats, root, err);
    else
        rc = is_dir ? k3_inspect_dir(path, root, err) : k3_inspect_file(path, root, err);
    if (!rc && opts->stats && !opts->tensor)
        rc = k3_inspect_histograms(path, opts->json || !isatty(STDERR_FILENO), root, err);
    if (!rc)
        rc = opts->json ? k3_result_print(root, err) : k3_inspect_print(root, err);
    k3_doc_free(root);
    return rc;
}
