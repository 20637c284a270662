/* Purpose: the command verify: sort its PATHs, run the verification, print the verdict.
 * Owns: the findings of the run.
 * Threads: the main thread; workers end before it prints.
 * Errors: K3_ECORRUPT when there is a finding (after the report), K3_EUSAGE, K3_EIO.
 * Invariant: all findings of all PATHs are printed before the exit code says that there are
 * some. */
#include "cmds.h"
#include "doc.h"
#include "sizes.h"
#include "source_headers.h"
#include "text.h"
#include "verify.h"
#include "workers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int has_file(const char *path, const char *name, bool *found, struct k3_err *err)
{
    struct k3_dir dir;
    int rc = k3_dir_open(path, false, &dir, err);
    *found = !rc && k3_file_exists(&dir, name);
    k3_dir_close(&dir);
    return rc;
}

static int verify_path(struct k3_verify *verify, const char *path, struct k3_err *err)
{
    struct stat stat_;
    if (stat(path, &stat_))
        return k3_fail_path(err, errno, path, "be found");
    if (!S_ISDIR(stat_.st_mode))
        return k3_verify_file(verify, path, err);
    bool found = false;
    int rc = has_file(path, K3_CONFIG_NAME, &found, err);
    if (rc)
        return rc;
    if (found)
        return k3_verify_checkpoint(verify, path, err);
    return k3_verify_loose(verify, path, "there is no config.json", err);
}

static int verify_paths(struct k3_verify *verify, const struct k3_opts *opts, struct k3_err *err)
{
    bool is_set = false;
    int rc = 0;
    for (uint32_t i = 0; i < opts->args.count && !is_set && !rc; i++)
        rc = k3_is_set_dir(opts->args.item[i], &is_set, err);
    if (rc)
        return rc;
    if (is_set)
        return k3_verify_set(verify, opts->args.item, opts->args.count, err);
    if (opts->against)
        rc = k3_is_set_dir(opts->against, &is_set, err);
    if (rc)
        return rc;
    if (is_set)
        return k3_fail(err, K3_EUSAGE,
                       "%s is no shard set and --against %s is one: it goes the other way round: "
                       "k3-shard verify %s --against %s",
                       opts->args.item[0], opts->against, k3_quoted(opts->against).s,
                       k3_quoted(opts->args.item[0]).s);
    if (opts->against || opts->ranks.count)
        return k3_fail(err, K3_EUSAGE, "--%s is for shard sets, and %s is none",
                       opts->against ? "against" : "ranks", opts->args.item[0]);
    for (uint32_t i = 0; i < opts->args.count && !rc; i++)
        rc = verify_path(verify, opts->args.item[i], err);
    return rc;
}

/* ---- the report ---- */

static bool add_texts(struct k3_doc *root, const char *name, const struct k3_problems *problems)
{
    struct k3_doc *array = k3_doc_add_array(root, name);
    bool added = array != NULL;
    for (uint32_t i = 0; i < problems->kept_count && added; i++)
        added = k3_doc_add_string(array, NULL, problems->text[i]);
    return added;
}

static bool add_bad_units(struct k3_doc *root, const struct k3_verify *verify)
{
    struct k3_doc *array = k3_doc_add_array(root, "bad_units");
    bool added = array != NULL;
    for (uint32_t i = 0; i < verify->bad_kept && added; i++) {
        const struct k3_bad_unit *bad = &verify->bad[i];
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "file", bad->file) &&
                k3_doc_add_integer(row, "unit", bad->unit) &&
                k3_doc_add_integer(row, "offset", bad->offset) &&
                k3_doc_add_integer(row, "bytes", bad->bytes);
        struct k3_doc *tensors = added ? k3_doc_add_array(row, "tensors") : NULL;
        added = tensors != NULL;
        for (uint32_t t = 0; t < bad->tensor_count && added; t++)
            added = k3_doc_add_string(tensors, NULL, bad->tensors[t]);
    }
    return added;
}

static const char *text_of(const struct k3_text *text)
{
    return text->bytes ? text->data : "";
}

static int print_json(const struct k3_verify *verify, struct k3_err *err)
{
    struct k3_doc *root = k3_doc_new_object();
    bool added = root && k3_doc_add_bool(root, "ok", verify->problems.count == 0) &&
                 k3_doc_add_string(root, "subject", verify->subject.data) &&
                 k3_doc_add_string(root, "checked", text_of(&verify->checked)) &&
                 k3_doc_add_bool(root, "quick", verify->quick) &&
                 k3_doc_add_integer(root, "checked_bytes", verify->checked_bytes) &&
                 k3_doc_add_integer(root, "checked_files", verify->checked_files) &&
                 k3_doc_add_integer(root, "checked_units", verify->checked_units) &&
                 k3_doc_add_double(root, "seconds", (double)verify->spent_ns / 1e9) &&
                 k3_doc_add_integer(root, "bad_unit_count", verify->bad_count) &&
                 add_bad_units(root, verify) &&
                 k3_doc_add_integer(root, "problem_count", verify->problems.count) &&
                 add_texts(root, "problems", &verify->problems) &&
                 add_texts(root, "notices", &verify->notices) &&
                 k3_doc_add_string(root, "next_step",
                                   verify->problems.count ? text_of(&verify->next) : "") &&
                 k3_doc_add_string(root, "not_proved", text_of(&verify->unproved));
    int rc = added ? k3_result_print(root, err)
                   : k3_fail(err, K3_ENOMEM, "no memory for the report");
    k3_doc_free(root);
    return rc;
}

static void print_report(const struct k3_verify *verify)
{
    printf("%s\n", k3_printable(text_of(&verify->subject)).s);
    if (verify->checked.bytes)
        k3_make_printable(verify->checked.data);
    printf("checked   %s\n", verify->checked.bytes ? verify->checked.data : "nothing");
    printf("read      %s of %s file%s in %s, %s\n", k3_size_text(verify->checked_bytes).s,
           k3_count_text(verify->checked_files).s, verify->checked_files == 1 ? "" : "s",
           k3_time_text(verify->spent_ns).s,
           k3_rate_text(verify->checked_bytes, verify->spent_ns).s);
    for (uint32_t i = 0; i < verify->notices.kept_count; i++)
        printf("notice    %s\n", verify->notices.text[i]);
    for (uint32_t i = 0; i < verify->problems.kept_count; i++)
        printf("problem   %s\n", verify->problems.text[i]);
    if (verify->problems.count > verify->problems.kept_count)
        printf("problem   and %s more\n",
               k3_count_text(verify->problems.count - verify->problems.kept_count).s);
    if (verify->is_unfinished)
        printf("verdict   unfinished: there is no set yet to verify\n");
    else if (verify->problems.count)
        printf("verdict   BAD: %s problem%s\n", k3_count_text(verify->problems.count).s,
               verify->problems.count == 1 ? "" : "s");
    if (verify->problems.count) {
        if (verify->next.bytes)
            k3_make_printable(verify->next.data); /* k3_printable would cut its commands */
        printf("next      %s\n", text_of(&verify->next));
        return;
    }
    printf("verdict   good%s%s", verify->unproved.bytes ? ": " : "", text_of(&verify->unproved));
    printf("%s\n", !verify->quick    ? ""
                   : verify->against ? " (quick: digests of the data were not looked at)"
                                     : " (quick: data were not read)");
}

int k3_cmd_verify(const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_verify verify;
    k3_verify_init(&verify);
    verify.ranks = opts->ranks.item;
    verify.rank_count = opts->ranks.count;
    verify.job_count = opts->jobs ? opts->jobs : k3_cpu_count();
    verify.quick = opts->check_quick;
    verify.quiet = opts->quiet;
    verify.against = opts->against;
    int rc = verify_paths(&verify, opts, err);
    if (!rc)
        rc = k3_text_check(&verify.subject, err);
    if (!rc)
        rc = k3_text_check(&verify.checked, err);
    if (!rc)
        rc = k3_text_check(&verify.next, err);
    if (!rc)
        rc = k3_text_check(&verify.unproved, err);
    if (!rc && opts->json)
        rc = print_json(&verify, err);
    else if (!rc)
        print_report(&verify);
    /* The report on stdout names them; the same sentences on stderr would only be in its way. */
    if (!rc && verify.is_unfinished && verify.problems.count)
        rc = k3_fail(err, K3_ECORRUPT, "%s: no set yet: see the report", opts->args.item[0]);
    else if (!rc && verify.problems.count)
        rc = k3_fail(err, K3_ECORRUPT, "%s: %llu problem%s found: see the report",
                     opts->args.item[0], (unsigned long long)verify.problems.count,
                     verify.problems.count == 1 ? "" : "s");
    k3_verify_fini(&verify);
    return rc;
}
