/* Purpose: stage what is not weights: the copied files and source-headers.zst (FORMAT.md 3, 7).
 * Owns: nothing between calls.
 * Threads: the worker of the first item.
 * Errors: K3_EIO, K3_ECORRUPT (a header changed under the run, a file is not what its download
 * record says), K3_ENOMEM.
 * Invariant: the headers stored are the ones the plan was made from: each is compared by its
 * digest. */
#include "convert.h"

#include "quant_config.h"

#include "sha256.h"
#include "source_headers.h"
#include "zst.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Stage a file of known bytes under the record's token and append its entry. */
static int add_entry(struct k3_record *record, const char *name, struct k3_file_entry **entry,
                     struct k3_err *err)
{
    struct k3_file_entry *grown = realloc(record->files, (record->file_count + 1) * sizeof *grown);
    if (!grown)
        return k3_fail(err, K3_ENOMEM, "no memory for the list of files");
    record->files = grown;
    memset(&grown[record->file_count], 0, sizeof *grown);
    grown[record->file_count].name = strdup(name);
    if (!grown[record->file_count].name)
        return k3_fail(err, K3_ENOMEM, "no memory for the list of files");
    *entry = &grown[record->file_count++];
    return 0;
}

/* The file that was copied is the one that was opened, and has not changed since. */
static int check_still(int fd, const char *name, const struct stat *before, struct k3_err *err)
{
    struct stat now;
    if (fstat(fd, &now))
        return k3_fail_sys(err, errno, "%s: stat", name);
    if (now.st_size != before->st_size || now.st_mtim.tv_sec != before->st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != before->st_mtim.tv_nsec ||
        now.st_ctim.tv_sec != before->st_ctim.tv_sec ||
        now.st_ctim.tv_nsec != before->st_ctim.tv_nsec)
        return k3_fail_at(err, K3_ECORRUPT, name, -1,
                          "%s: the file changed while it was used: run again", name);
    return 0;
}

/* Read a staged copy back from the disk and compare. */
static int prove_copy(struct k3_convert *convert, struct k3_convert_worker *worker, int fd,
                      const struct k3_file_entry *entry, struct k3_err *err)
{
    uint8_t digest[K3_DIGEST_BYTES];
    int rc = 0;
    k3_file_drop(fd, 0, entry->bytes);
    k3_sha256_begin(worker->sha);
    for (uint64_t offset = 0, n; offset < entry->bytes && !rc; offset += n) {
        n = entry->bytes - offset;
        n = n < convert->chunk_bytes ? n : convert->chunk_bytes;
        rc = k3_file_read(fd, entry->name, worker->source, (size_t)n, offset, err);
        k3_sha256_update(worker->sha, worker->source, (size_t)n);
    }
    k3_sha256_final(worker->sha, digest);
    if (!rc && memcmp(digest, entry->sha256, sizeof digest))
        rc = k3_fail_at(err, K3_EIO, entry->name, -1,
                        "%s: what was read back is not what was written: check this disk and this "
                        "machine's memory, then run again",
                        entry->name);
    return rc;
}

/* Copy one file of the checkpoint, hashing what is written. */
static int copy_file(struct k3_convert *convert, struct k3_convert_worker *worker,
                     struct k3_record *record, const char *name, struct k3_err *err)
{
    char staged[K3_STAGED_NAME_BYTES];
    const struct k3_dir *to = &convert->job->outs[0];
    struct k3_file_entry *entry;
    struct stat stat;
    int in = -1, out = -1;
    k3_staged_name(name, record->token, staged);
    int rc = add_entry(record, name, &entry, err);
    if (!rc)
        rc = k3_file_open(&convert->ckpt->dir, name, true, &in, &stat, err);
    if (!rc)
        rc = k3_file_create(&convert->job->partials[0], staged, &out, err);
    if (rc)
        goto out;
    entry->bytes = (uint64_t)stat.st_size;
    k3_sha256_begin(worker->sha);
    for (uint64_t offset = 0, bytes; offset < entry->bytes; offset += bytes) {
        bytes = entry->bytes - offset < convert->chunk_bytes ? entry->bytes - offset
                                                             : convert->chunk_bytes;
        rc = k3_file_read(in, name, worker->source, (size_t)bytes, offset, err);
        if (!rc)
            rc = k3_fail_in(
                to, k3_file_write(out, name, worker->source, (size_t)bytes, offset, err), err);
        if (rc)
            goto out;
        k3_sha256_update(worker->sha, worker->source, (size_t)bytes);
        atomic_fetch_add_explicit(&convert->read_bytes, bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&convert->written_bytes, bytes, memory_order_relaxed);
    }
    k3_sha256_final(worker->sha, entry->sha256);
    /* What describes the model must be what the plan was made from. */
    if (!strcmp(name, K3_CONFIG_NAME) &&
        memcmp(entry->sha256, convert->ckpt->plan->config_sha256, K3_DIGEST_BYTES))
        rc = k3_fail_at(err, K3_ECORRUPT, name, -1,
                        "%s: the file changed while it was used: run again", name);
    if (!rc)
        rc = check_still(in, name, &stat, err);
    if (!rc)
        rc = k3_hf_digest_check(&convert->ckpt->dir, name, entry->sha256, &convert->hf, err);
    if (!rc)
        rc = k3_fail_in(to, k3_file_sync(out, name, err), err);
    if (!rc)
        rc = k3_fail_in(to, prove_copy(convert, worker, out, entry, err), err);
out:
    if (in >= 0)
        close(in);
    if (out >= 0) {
        int closed = k3_file_close(out, name, err);
        rc = rc ? rc : k3_fail_in(to, closed, err);
    }
    return rc;
}

/* The first bytes of a file, as the plan saw them. */
struct seen {
    const char *name;
    uint64_t bytes;
    const uint8_t *digest;
};

/* Append one entry (line, bytes, LF) to the frame, compared by its digest. */
static int put_entry(struct k3_convert *convert, struct k3_convert_worker *worker,
                     struct k3_zst_out *zst, const struct seen *seen, struct k3_err *err)
{
    const char *name = seen->name;
    const uint64_t bytes = seen->bytes;
    struct k3_text line;
    uint8_t found[K3_DIGEST_BYTES];
    struct stat stat;
    int fd = -1;
    k3_text_init(&line);
    k3_source_headers_line(name, bytes, &line);
    int rc = k3_text_check(&line, err);
    if (!rc)
        rc = k3_zst_write(zst, line.data, line.bytes, err);
    if (!rc)
        rc = k3_file_open(&convert->ckpt->dir, name, true, &fd, &stat, err);
    k3_sha256_begin(worker->sha);
    for (uint64_t offset = 0, n; offset < bytes && !rc; offset += n) {
        n = bytes - offset < convert->chunk_bytes ? bytes - offset : convert->chunk_bytes;
        rc = k3_file_read(fd, name, worker->source, (size_t)n, offset, err);
        if (!rc)
            rc = k3_zst_write(zst, worker->source, (size_t)n, err);
        k3_sha256_update(worker->sha, worker->source, (size_t)n);
        atomic_fetch_add_explicit(&convert->read_bytes, n, memory_order_relaxed);
    }
    k3_sha256_final(worker->sha, found);
    if (!rc && memcmp(found, seen->digest, sizeof found))
        rc = k3_fail_at(err, K3_ECORRUPT, name, -1,
                        "%s: the file changed while it was used: run again", name);
    if (!rc)
        rc = k3_zst_write(zst, "\n", 1, err);
    if (fd >= 0)
        close(fd);
    k3_text_fini(&line);
    return rc;
}

static int file_bytes(const struct k3_dir *dir, const char *name, uint64_t *bytes,
                      struct k3_err *err)
{
    struct stat stat;
    if (fstatat(dir->fd, name, &stat, 0))
        return k3_fail_sys(err, errno, "%s/%s: stat", dir->path, name);
    *bytes = (uint64_t)stat.st_size;
    return 0;
}

static int compress(struct k3_convert *convert, struct k3_convert_worker *worker,
                    struct k3_text *frame, struct k3_err *err)
{
    const struct k3_plan *plan = convert->ckpt->plan;
    const struct k3_dir *dir = &convert->ckpt->dir;
    struct k3_zst_out *zst = NULL;
    struct k3_text first;
    uint64_t config_bytes = 0, index_bytes = 0, total = 0;
    k3_text_init(&first);
    k3_source_headers_begin(&first);
    int rc = file_bytes(dir, K3_CONFIG_NAME, &config_bytes, err);
    if (!rc)
        rc = file_bytes(dir, K3_INDEX_NAME, &index_bytes, err);
    if (!rc)
        rc = k3_source_headers_bytes(plan, config_bytes, index_bytes, &total, err);
    if (!rc)
        rc = k3_text_check(&first, err);
    if (!rc)
        rc = k3_zst_open(frame, total, &zst, err);
    if (!rc)
        rc = k3_zst_write(zst, first.data, first.bytes, err);
    struct seen seen = {K3_CONFIG_NAME, config_bytes, plan->config_sha256};
    if (!rc)
        rc = put_entry(convert, worker, zst, &seen, err);
    seen = (struct seen){K3_INDEX_NAME, index_bytes, plan->index_sha256};
    if (!rc)
        rc = put_entry(convert, worker, zst, &seen, err);
    for (uint32_t i = 0; i < plan->source_count && !rc; i++) {
        const struct k3_source *source = &plan->sources[i];
        seen = (struct seen){source->name, source->header_bytes, source->header_sha256};
        rc = put_entry(convert, worker, zst, &seen, err);
    }
    if (!rc)
        rc = k3_zst_end(zst, err);
    k3_zst_close(zst);
    k3_text_fini(&first);
    return rc;
}

/* Stage a file whose bytes are in memory. */
static int stage_bytes(struct k3_convert *convert, struct k3_convert_worker *worker,
                       struct k3_record *record, const char *name, const struct k3_text *content,
                       struct k3_err *err)
{
    char staged[K3_STAGED_NAME_BYTES];
    struct k3_file_entry *entry;
    int fd = -1;
    k3_staged_name(name, record->token, staged);
    int rc = add_entry(record, name, &entry, err);
    if (!rc)
        rc = k3_file_create(&convert->job->partials[0], staged, &fd, err);
    if (!rc)
        rc = k3_file_write(fd, name, content->data, content->bytes, 0, err);
    if (!rc)
        rc = k3_file_sync(fd, name, err);
    if (!rc) {
        entry->bytes = content->bytes;
        k3_sha256_of(worker->sha, content->data, content->bytes, entry->sha256);
        rc = prove_copy(convert, worker, fd, entry, err);
    }
    if (fd >= 0) {
        int closed = k3_file_close(fd, name, err);
        rc = rc ? rc : closed;
    }
    k3_fail_in(&convert->job->outs[0], rc, err);
    if (!rc)
        atomic_fetch_add_explicit(&convert->written_bytes, content->bytes, memory_order_relaxed);
    return rc;
}

static int stage_headers(struct k3_convert *convert, struct k3_convert_worker *worker,
                         struct k3_record *record, struct k3_err *err)
{
    struct k3_text frame;
    k3_text_init(&frame);
    int rc = compress(convert, worker, &frame, err);
    if (!rc)
        rc = stage_bytes(convert, worker, record, K3_HEADERS_NAME, &frame, err);
    k3_text_fini(&frame);
    return rc;
}

/* config.json of a set with casts says what they are (FORMAT.md 4.8). */
static int stage_config(struct k3_convert *convert, struct k3_convert_worker *worker,
                        struct k3_record *record, struct k3_err *err)
{
    const struct k3_plan *plan = convert->ckpt->plan;
    uint8_t digest[K3_DIGEST_BYTES];
    struct k3_text written;
    char *text = NULL;
    size_t bytes = 0;
    k3_text_init(&written);
    int rc = k3_file_load_linked(&convert->ckpt->dir, K3_CONFIG_NAME, K3_CONFIG_BYTES_MAX, &text,
                                 &bytes, err);
    if (!rc)
        k3_sha256_of(worker->sha, text, bytes, digest);
    if (!rc && memcmp(digest, plan->config_sha256, K3_DIGEST_BYTES))
        rc = k3_fail_at(err, K3_ECORRUPT, K3_CONFIG_NAME, -1,
                        K3_CONFIG_NAME ": the file changed while it was used: run again");
    if (!rc)
        rc = k3_quant_config_rewrite(plan, text, bytes, &written, err);
    if (!rc)
        rc = stage_bytes(convert, worker, record, K3_CONFIG_NAME, &written, err);
    free(text);
    k3_text_fini(&written);
    k3_text_init(&written);
    if (!rc && plan->policy.is_modelopt) {
        k3_quant_config_modelopt(plan, &written);
        rc = k3_text_check(&written, err);
        if (!rc)
            rc = stage_bytes(convert, worker, record, K3_HF_QUANT_NAME, &written, err);
    }
    k3_text_fini(&written);
    return rc;
}

/* Is this file of the checkpoint replaced by one that describes the casts?  The report is written
 * when the set is sealed. */
static bool is_replaced(const struct k3_plan *plan, const char *name)
{
    return !k3_policy_is_verbatim(&plan->policy) &&
           (!strcmp(name, K3_CONFIG_NAME) || !strcmp(name, K3_CAST_REPORT_NAME) ||
            (plan->policy.is_modelopt && !strcmp(name, K3_HF_QUANT_NAME)));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct k3_file_entry *)a)->name, ((const struct k3_file_entry *)b)->name);
}

int k3_convert_files(struct k3_convert *convert, uint32_t worker, struct k3_record *record,
                     struct k3_err *err)
{
    struct k3_convert_worker *own = &convert->workers[worker];
    int rc = 0;
    for (uint32_t i = 0; i < convert->ckpt->copied_count && !rc; i++)
        if (!is_replaced(convert->ckpt->plan, convert->ckpt->copied[i]))
            rc = copy_file(convert, own, record, convert->ckpt->copied[i], err);
    if (!rc && !k3_policy_is_verbatim(&convert->ckpt->plan->policy))
        rc = stage_config(convert, own, record, err);
    if (!rc)
        rc = stage_headers(convert, own, record, err);
    if (!rc)
        qsort(record->files, record->file_count, sizeof record->files[0], by_name);
    return rc;
}
