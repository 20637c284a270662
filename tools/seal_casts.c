/* Purpose: write the report of a set's casts from the records of its items (FORMAT.md 4.9).
 * Owns: the file while it is written.
 * Threads: one.
 * Errors: K3_EIO, K3_ECORRUPT, K3_ENOMEM.
 * Invariants: items ascending, casts of an item by slot, so the bytes do not depend on workers or
 * on what was resumed; the file appears whole or not at all, and only where it was read back. */
#include "seal_casts.h"

#include "cast_held.h"
#include "cast_report_read.h"
#include "sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (1u << 20) /* written at once */

/* The file while it is written. */
struct report_out {
    struct k3_text text; /* not yet written */
    struct k3_sha256 *sha;
    uint64_t bytes;
    int fd;
};

static int flush(struct report_out *out, struct k3_err *err)
{
    int rc = k3_text_check(&out->text, err);
    if (!rc)
        rc = k3_file_write(out->fd, K3_CAST_REPORT_NAME, out->text.data, out->text.bytes,
                           out->bytes, err);
    if (rc)
        return rc;
    k3_sha256_update(out->sha, out->text.data, out->text.bytes);
    out->bytes += out->text.bytes;
    out->text.bytes = 0;
    return 0;
}

static int misfit(const struct k3_job *job, uint32_t item, const char *wanted, struct k3_err *err)
{
    char name[K3_STAGED_NAME_BYTES];
    k3_record_name(item, name);
    return k3_fail_at(err, K3_ECORRUPT, name, -1,
                      "%s/%s: a cast: wanted %s, found others: begin again with convert --force",
                      job->partials[0].path, name, wanted);
}

/* The lines of one item. */
static int put_item(const struct k3_casts_seal *seal, const struct k3_cast_range *range,
                    struct report_out *out, struct k3_err *err)
{
    char name[K3_STAGED_NAME_BYTES];
    struct stat stat;
    int fd = -1;
    k3_record_name(range->item, name);
    struct k3_disk_cast_row *rows = malloc((range->count + 1) * sizeof *rows);
    int rc = rows ? 0 : k3_fail(err, K3_ENOMEM, "no memory for %u casts", range->count);
    if (!rc)
        rc = k3_file_open(&seal->job->partials[0], name, false, &fd, &stat, err);
    if (!rc)
        rc = k3_file_read(fd, name, rows, range->count * sizeof *rows, range->offset, err);
    for (uint32_t i = 0; i < range->count && !rc; i++) {
        struct k3_cast_row row;
        const char *wanted = k3_cast_row_decode(&rows[i], &row);
        wanted = wanted ? wanted : k3_cast_row_misfit(seal->plan, &row);
        if (wanted) {
            rc = misfit(seal->job, range->item, wanted, err);
            break;
        }
        k3_cast_report_row(seal->plan, &row, !seal->summary->tensor_count, &out->text);
        k3_cast_summary_add(seal->summary, seal->plan, &row);
        if (out->text.bytes >= PIECE_BYTES)
            rc = flush(out, err);
    }
    if (fd >= 0)
        close(fd);
    free(rows);
    return rc;
}

static int by_item(const void *a, const void *b)
{
    const uint32_t x = ((const struct k3_cast_range *)a)->item;
    const uint32_t y = ((const struct k3_cast_range *)b)->item;
    return (x > y) - (x < y);
}

static int write_report(const struct k3_casts_seal *seal, struct report_out *out,
                        struct k3_err *err)
{
    int rc = 0;
    qsort(seal->ranges, seal->range_count, sizeof *seal->ranges, by_item);
    k3_cast_summary_init(seal->summary);
    k3_sha256_begin(out->sha);
    k3_cast_report_begin(seal->plan, &seal->job->ranks, &out->text);
    for (uint32_t i = 0; i < seal->range_count && !rc; i++)
        rc = put_item(seal, &seal->ranges[i], out, err);
    if (rc)
        return rc;
    k3_cast_report_end(seal->summary, &out->text);
    rc = flush(out, err);
    return rc ? rc : k3_file_sync(out->fd, K3_CAST_REPORT_NAME, err);
}

static int misread(const struct k3_casts_seal *seal, int64_t offset, const char *what,
                   struct k3_err *err)
{
    return k3_fail_at(err, K3_EIO, K3_CAST_REPORT_NAME, offset,
                      "%s/" K3_CAST_REPORT_NAME
                      ": what was read back of it is not what was written (%s): nothing is "
                      "published; check this disk and this machine's memory, then run again; if it "
                      "fails at the same place, it is a bug of the program: report it",
                      seal->job->outs[0].path, what);
}

/* What no reader would take must not get into a manifest. */
static int read_back(const struct k3_casts_seal *seal, const char *temporary,
                     const struct k3_file_entry *entry, struct report_out *out, struct k3_err *err)
{
    struct k3_cast_report report = {.plan = seal->plan,
                                    .ranks = &seal->job->ranks,
                                    .items = seal->items,
                                    .file = K3_CAST_REPORT_NAME};
    struct k3_cast_summary summary;
    struct k3_cast_row *rows = NULL;
    uint8_t digest[K3_DIGEST_BYTES];
    uint32_t count = 0;
    struct k3_err inner;
    char *text = NULL;
    k3_err_init(&inner);
    int rc = k3_file_load(&seal->job->partials[0], temporary, K3_CAST_REPORT_BYTES_MAX, &text,
                          &report.bytes, err);
    if (rc)
        return rc;
    report.text = text;
    rc = k3_cast_report_decode(&report, &summary, &rows, &count, &inner);
    k3_sha256_of(out->sha, text, report.bytes, digest);
    if (rc == K3_ENOMEM)
        rc = k3_fail_as(err, &inner);
    else if (rc)
        rc = misread(seal, inner.offset, inner.text, err);
    else if (memcmp(digest, entry->sha256, sizeof digest))
        rc = misread(seal, -1, "its SHA-256 is another", err);
    free(rows);
    free(text);
    return rc;
}

int k3_casts_publish(const struct k3_casts_seal *seal, struct k3_file_entry *entry,
                     struct k3_err *err)
{
    struct k3_dir *partial = &seal->job->partials[0], *dir = &seal->job->outs[0];
    struct report_out out = {.fd = -1};
    char temporary[K3_STAGED_NAME_BYTES];
    k3_text_init(&out.text);
    k3_staged_name(K3_CAST_REPORT_NAME, seal->token, temporary);
    int rc = k3_file_remove(partial, temporary, err); /* of a seal that was cut short */
    if (!rc)
        rc = k3_sha256_open(&out.sha, err);
    if (!rc)
        rc = k3_file_create(partial, temporary, &out.fd, err);
    if (!rc)
        rc = write_report(seal, &out, err);
    if (out.fd >= 0) {
        int closed = k3_file_close(out.fd, K3_CAST_REPORT_NAME, err);
        rc = rc ? rc : closed;
    }
    if (!rc) {
        entry->bytes = out.bytes;
        k3_sha256_final(out.sha, entry->sha256);
        rc = read_back(seal, temporary, entry, &out, err);
    }
    if (!rc)
        rc = k3_file_rename(partial, temporary, dir, K3_CAST_REPORT_NAME, err);
    if (!rc)
        rc = k3_dir_sync(dir, err);
    if (!rc) {
        entry->name = strdup(K3_CAST_REPORT_NAME);
        rc = entry->name ? 0 : k3_fail(err, K3_ENOMEM, "no memory to seal the set");
    }
    k3_sha256_close(out.sha);
    k3_text_fini(&out.text);
    return rc;
}

int k3_job_check_casts(const struct k3_job *job, const struct k3_plan *plan,
                       const struct k3_record *record, struct k3_err *err)
{
    char name[K3_STAGED_NAME_BYTES], path[K3_ERR_TEXT_BYTES / 2];
    const struct k3_cast_parts parts = {plan, record->parts, record->part_count};
    const struct k3_cast_list list = {
        record->casts, record->cast_count, path,
        "the record was changed: remove it and run convert again, which repeats the item"};
    k3_record_name(record->item, name);
    snprintf(path, sizeof path, "%s/%s", job->partials[0].path, name);
    return k3_cast_check(&parts, &list, err);
}

int k3_casts_of_worker(struct k3_job *job, const struct k3_plan *plan, uint32_t worker,
                       uint32_t workers, struct k3_cast_summary *casts, struct k3_err *err)
{
    int rc = 0;
    k3_cast_summary_init(casts);
    if (k3_policy_is_verbatim(&plan->policy))
        return 0;
    for (uint32_t item = worker; item < plan->item_count && !rc; item += workers) {
        struct k3_record record;
        bool found;
        rc = k3_job_record(job, item, &record, &found, err);
        if (rc || !found)
            continue;
        rc = k3_job_check_casts(job, plan, &record, err);
        for (uint32_t i = 0; i < record.cast_count && !rc; i++)
            k3_cast_summary_add(casts, plan, &record.casts[i]);
        k3_record_fini(&record);
    }
    return rc;
}
