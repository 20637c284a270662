/* Purpose: judge a checkpoint as far as it can be judged alone, and directories without model
 * rules.
 * Owns: nothing between calls.
 * Threads: the caller's.
 * Errors: K3_EIO, K3_ENOMEM, K3_ECANCELED; what is wrong with the data is a finding.
 * Invariant: the report says what was judged and what could not be: nothing passes unseen. */
#include "ckpt.h"
#include "hf_digest.h"
#include "hf_index.h"
#include "stop.h"
#include "verify.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_BYTES_MAX (1ull << 30) /* FORMAT.md 1 */
#define TAIL_BYTES_MAX  65536u       /* pieces of a tail; K3's have 128 bytes */

/* ---- A_log: what no rank loads must be zero ---- */

static int check_tail(struct k3_verify *verify, const struct k3_ckpt *ckpt, uint32_t slot,
                      uint64_t tail_offset, struct k3_err *err)
{
    const struct k3_tensor_place *place = &ckpt->plan->places[slot];
    const struct k3_source *source = &ckpt->plan->sources[place->file];
    uint8_t *data = malloc(TAIL_BYTES_MAX);
    int fd = -1;
    int rc = data ? 0 : k3_fail(err, K3_ENOMEM, "no memory to read %s", source->name);
    if (!rc)
        rc = k3_ckpt_file_open(ckpt, place->file, &fd, err);
    if (rc)
        goto out;
    uint64_t base = source->header_bytes + place->begin_offset;
    for (uint64_t at = tail_offset; at < place->bytes; at += TAIL_BYTES_MAX) {
        size_t n = place->bytes - at < TAIL_BYTES_MAX ? (size_t)(place->bytes - at)
                                                      : TAIL_BYTES_MAX;
        rc = k3_file_read(fd, source->name, data, n, base + at, err);
        if (rc)
            goto out;
        verify->checked_bytes += n;
        if (k3_is_zero(data, n))
            continue;
        uint64_t first_offset = base + at;
        for (const uint8_t *byte = data; *byte == 0; byte++)
            first_offset++;
        char name[K3_ST_NAME_BYTES_MAX + 1];
        k3_plan_slot_name(ckpt->plan, slot, name, sizeof name);
        k3_problems_add(&verify->problems,
                        "%s: %s: byte %llu of the file is not zero: what lies behind the heads of "
                        "the model must be zero",
                        source->name, name, (unsigned long long)first_offset);
        break;
    }
out:
    if (fd >= 0)
        close(fd);
    free(data);
    return rc;
}

static int check_tails(struct k3_verify *verify, const struct k3_ckpt *ckpt, struct k3_err *err)
{
    const struct k3_plan *plan = ckpt->plan;
    uint32_t count = 0;
    int rc = 0;
    for (uint32_t slot = 0; slot < plan->slot_count && !rc; slot++) {
        uint32_t rule, layer, index;
        if (!k3_plan_slot(plan, slot, &rule, &layer, &index))
            continue;
        const struct k3_rule *row = &plan->config.model->rules[rule];
        uint64_t used = plan->config.value[row->dim[0]] * k3_dtype_bits(row->dtype) / 8;
        if (!(row->flags & K3_RULE_STORED_LONGER) || plan->places[slot].bytes <= used)
            continue;
        rc = check_tail(verify, ckpt, slot, used, err);
        count++;
    }
    if (!rc && count)
        k3_verify_checked(verify, "zero tails of %u A_log", count);
    return rc;
}

/* ---- digests that a download left behind ---- */

/* A file that was changed after its download is no longer what was downloaded either: whether that
 * was meant, only the user knows. */
int k3_verify_digest(struct k3_verify *verify, const struct k3_dir *dir, const char *name,
                     uint32_t *count, struct k3_err *err)
{
    struct k3_hf_digest recorded;
    uint8_t digest[K3_DIGEST_BYTES];
    uint64_t bytes = 0;
    struct k3_err inner;
    bool is_recorded;
    int find_rc = k3_hf_digest_find(dir, name, &recorded, &is_recorded, err);
    if (find_rc || !is_recorded)
        return find_rc;
    if (k3_stop_requested())
        return k3_fail(err, K3_ECANCELED, "stopped on request before %s", name);
    int rc = k3_verify_sha256(dir, name, true, digest, &bytes, err);
    if (rc)
        return rc;
    verify->checked_bytes += bytes;
    k3_err_init(&inner);
    ++*count;
    rc = k3_hf_digest_compare(dir, name, &recorded, digest, &inner);
    if (rc && recorded.is_outdated)
        k3_verify_say(&verify->next,
                      "where a file was changed on purpose, remove the record named beside it, "
                      "which is of another file (convert takes such a file as it is and says so)");
    return k3_verify_judge(&verify->problems, rc, &inner, err);
}

static int check_digests(struct k3_verify *verify, const struct k3_ckpt *ckpt, struct k3_err *err)
{
    uint32_t count = 0;
    int rc = 0;
    const uint32_t file_count = ckpt->plan->source_count + ckpt->copied_count;
    if (verify->quick)
        return 0;
    for (uint32_t f = 0; f < ckpt->plan->source_count && !rc; f++)
        rc = k3_verify_digest(verify, &ckpt->dir, ckpt->plan->sources[f].name, &count, err);
    for (uint32_t f = 0; f < ckpt->copied_count && !rc; f++)
        rc = k3_verify_digest(verify, &ckpt->dir, ckpt->copied[f], &count, err);
    if (rc)
        return rc;
    if (count)
        k3_verify_checked(verify, "SHA-256 of %u of %u files against download records", count,
                          file_count);
    else
        k3_verify_checked(verify, "no SHA-256: none is recorded here");
    if (count == 0)
        k3_verify_say(&verify->unproved,
                      "names, shapes and sizes are right; contents were not judged, since no "
                      "digest is recorded beside them (a download by the Hugging Face client "
                      "records them)");
    else if (count < file_count)
        k3_verify_say(&verify->unproved,
                      "contents of %u of %u files were not judged: no SHA-256 is recorded for "
                      "them",
                      file_count - count, file_count);
    return 0;
}

int k3_verify_checkpoint(struct k3_verify *verify, const char *path, struct k3_err *err)
{
    struct k3_ckpt_options options = {.path = path};
    struct k3_ckpt *ckpt = NULL;
    struct k3_err inner;
    uint64_t begin_ns = k3_now_ns(), before = verify->problems.count;
    k3_err_init(&inner);
    int rc = k3_ckpt_open(&options, &ckpt, &verify->problems, &inner);
    if (rc == K3_EUNSUPPORTED)
        return k3_verify_loose(verify, path, inner.text, err);
    k3_verify_say(&verify->next, "download the files named above again, then verify again");
    k3_text_putf(&verify->subject, "%scheckpoint %s", verify->subject.bytes ? "; " : "", path);
    if (rc && k3_exit_code(rc) == 3 && verify->problems.count > before) {
        rc = 0; /* inner counts what is listed already */
        k3_verify_checked(verify, "config.json, index and headers, as far as they can be read");
        goto out;
    }
    if (rc) {
        rc = k3_verify_judge(&verify->problems, rc, &inner, err);
        goto out;
    }
    k3_text_putf(&verify->subject, ": %s", ckpt->plan->config.model->architecture);
    for (uint32_t f = 0; f < ckpt->plan->source_count; f++)
        verify->checked_bytes += ckpt->plan->sources[f].header_bytes;
    verify->checked_files += ckpt->plan->source_count + 2;
    k3_verify_checked(verify,
                      "config.json, index, %u headers, %llu tensors against the model rules",
                      ckpt->plan->source_count, (unsigned long long)ckpt->plan->tensor_count);
    rc = check_tails(verify, ckpt, &inner);
    if (!rc)
        rc = check_digests(verify, ckpt, &inner);
    rc = k3_verify_judge(&verify->problems, rc, &inner, err);
out:
    k3_ckpt_close(ckpt);
    verify->spent_ns += k3_now_ns() - begin_ns;
    return rc;
}

/* ---- directories without model rules ---- */

struct found_tensor {
    char *name; /* owned */
    uint32_t file;
    bool is_named;
};

struct loose {
    struct k3_verify *verify;
    char **names; /* of the directory */
    struct found_tensor *tensors;
    uint64_t tensor_count, tensor_cap;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct found_tensor *)a)->name, ((const struct found_tensor *)b)->name);
}

static int keep_tensors(struct loose *loose, const struct k3_st *st, uint32_t file,
                        struct k3_err *err)
{
    if (loose->tensor_count + st->tensor_count > loose->tensor_cap) {
        uint64_t cap = loose->tensor_count + st->tensor_count;
        cap += cap / 2;
        struct found_tensor *grown = realloc(loose->tensors, (size_t)cap * sizeof *grown);
        if (!grown)
            return k3_fail(err, K3_ENOMEM, "no memory for the names of the tensors");
        loose->tensors = grown;
        loose->tensor_cap = cap;
    }
    for (uint32_t t = 0; t < st->tensor_count; t++) {
        if (k3_verify_is_pad(&st->tensors[t])) /* of a part under another name */
            continue;
        struct found_tensor *tensor = &loose->tensors[loose->tensor_count];
        tensor->name = strdup(st->tensors[t].name);
        if (!tensor->name)
            return k3_fail(err, K3_ENOMEM, "no memory for the names of the tensors");
        tensor->file = file;
        tensor->is_named = false;
        loose->tensor_count++;
    }
    return 0;
}

static int loose_file(struct loose *loose, const struct k3_dir *dir, uint32_t file,
                      struct k3_err *err)
{
    const char *name = loose->names[file];
    struct k3_verify *verify = loose->verify;
    struct k3_st *st = NULL;
    struct k3_err inner;
    struct stat stat;
    int fd = -1;
    k3_err_init(&inner);
    int rc = k3_file_open(dir, name, true, &fd, &stat, &inner);
    if (!rc)
        rc = k3_verify_header(name, fd, (uint64_t)stat.st_size, &st, &inner);
    rc = k3_verify_judge(&verify->problems, rc, &inner, err);
    verify->checked_files++;
    if (st) {
        verify->checked_bytes += st->data_offset;
        rc = keep_tensors(loose, st, file, err);
    }
    k3_st_free(st);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* One entry of the index against the headers. */
static int loose_entry(void *context, const char *tensor, size_t tensor_bytes, const char *file,
                       struct k3_err *err)
{
    struct loose *loose = context;
    struct found_tensor key = {.name = (char *)(uintptr_t)tensor};
    (void)tensor_bytes;
    (void)err;
    struct found_tensor *found = loose->tensor_count
                                     ? bsearch(&key, loose->tensors, (size_t)loose->tensor_count,
                                               sizeof key, by_name)
                                     : NULL;
    if (!found) {
        k3_problems_add(&loose->verify->problems, "%s: %s is missing: the index says it is there",
                        file, tensor);
        return 0;
    }
    found->is_named = true;
    if (strcmp(loose->names[found->file], file))
        k3_problems_add(&loose->verify->problems, "%s: %s is here, the index says it is in %s",
                        loose->names[found->file], tensor, file);
    return 0;
}

static int loose_index(struct loose *loose, const struct k3_dir *dir, struct k3_err *err)
{
    struct k3_problems *problems = &loose->verify->problems;
    struct k3_err inner;
    char *text = NULL;
    size_t bytes = 0;
    struct k3_index_sink sink = {.entry = loose_entry, .context = loose};
    k3_err_init(&inner);
    if (!k3_file_exists(dir, K3_INDEX_NAME)) {
        k3_verify_checked(loose->verify, "no index to compare with");
        return 0;
    }
    for (uint64_t t = 1; t < loose->tensor_count; t++)
        if (!strcmp(loose->tensors[t - 1].name, loose->tensors[t].name))
            k3_problems_add(problems, "%s is in both %s and %s", loose->tensors[t].name,
                            loose->names[loose->tensors[t - 1].file],
                            loose->names[loose->tensors[t].file]);
    int rc = k3_file_load_linked(dir, K3_INDEX_NAME, INDEX_BYTES_MAX, &text, &bytes, &inner);
    if (!rc)
        rc = k3_index_decode(K3_INDEX_NAME, text, bytes, &sink, &inner);
    free(text);
    if (rc)
        return k3_verify_judge(problems, rc, &inner, err);
    for (uint64_t t = 0; t < loose->tensor_count; t++)
        if (!loose->tensors[t].is_named)
            k3_problems_add(problems, "%s: %s is not named by the index",
                            loose->names[loose->tensors[t].file], loose->tensors[t].name);
    loose->verify->checked_bytes += bytes;
    k3_verify_checked(loose->verify, "the index against the headers");
    return 0;
}

/* Every file here, of whatever kind: rules that would tell which ones matter are not there. */
static int loose_digests(struct loose *loose, const struct k3_dir *dir, uint32_t name_count,
                         struct k3_err *err)
{
    struct k3_verify *verify = loose->verify;
    uint32_t count = 0, file_count = 0;
    struct k3_err inner;
    struct stat stat;
    int rc = 0;
    k3_err_init(&inner);
    for (uint32_t i = 0; i < name_count && !rc && !verify->quick; i++) {
        if (loose->names[i][0] == '.' || fstatat(dir->fd, loose->names[i], &stat, 0) ||
            !S_ISREG(stat.st_mode))
            continue;
        file_count++;
        rc = k3_verify_digest(verify, dir, loose->names[i], &count, &inner);
        rc = k3_verify_judge(&verify->problems, rc, &inner, err);
    }
    if (rc)
        return rc;
    if (count == 0) {
        k3_verify_checked(verify, "no digests");
        k3_verify_say(&verify->unproved,
                      verify->quick ? "names, shapes and sizes agree with each other; there are no "
                                      "rules, and contents were not judged"
                                    : "names, shapes and sizes agree with each other; contents "
                                      "were not judged, since there are neither rules nor "
                                      "digests");
        return 0;
    }
    k3_verify_checked(verify, "SHA-256 of %u of %u files against download records", count,
                      file_count);
    k3_verify_say(&verify->unproved,
                  "without model rules nobody knows whether it is a whole model");
    if (count < file_count)
        k3_verify_say(&verify->unproved,
                      "contents of %u of %u files were not judged: no SHA-256 is recorded for "
                      "them",
                      file_count - count, file_count);
    return 0;
}

int k3_verify_loose(struct k3_verify *verify, const char *path, const char *reason,
                    struct k3_err *err)
{
    struct loose loose = {.verify = verify};
    struct k3_dir dir = {.fd = -1};
    uint32_t name_count = 0, files = 0;
    uint64_t begin_ns = k3_now_ns();
    int rc = k3_dir_open(path, false, &dir, err);
    if (!rc)
        rc = k3_dir_list(&dir, &loose.names, &name_count, err);
    for (uint32_t i = 0; i < name_count && !rc; i++) {
        if (loose.names[i][0] == '.' || !k3_name_ends(loose.names[i], ".safetensors"))
            continue;
        files++;
        rc = loose_file(&loose, &dir, i, err);
    }
    if (!rc && !files)
        rc = k3_fail(err, K3_EFORMAT,
                     "%s: no *.safetensors file: neither a checkpoint nor a shard set: give %s",
                     path, k3_ckpt_where(&dir));
    if (rc)
        goto out;
    k3_text_putf(&verify->subject, "%sdirectory %s", verify->subject.bytes ? "; " : "", path);
    k3_verify_say(&verify->next, "download the files named above again, then verify again");
    k3_problems_add(&verify->notices, "without model rules: %s", reason);
    if (k3_file_exists(&dir, K3_INDEX_NAME) && !k3_file_exists(&dir, K3_CONFIG_NAME))
        k3_problems_add(&verify->problems,
                        "%s/" K3_CONFIG_NAME ": missing, though " K3_INDEX_NAME " is there: not a "
                        "whole checkpoint",
                        path);
    k3_verify_checked(verify, "structure of %u safetensors file%s (%llu tensors)", files,
                      files == 1 ? "" : "s", (unsigned long long)loose.tensor_count);
    rc = loose_digests(&loose, &dir, name_count, err);
    if (rc)
        goto out;
    if (loose.tensor_count)
        qsort(loose.tensors, (size_t)loose.tensor_count, sizeof *loose.tensors, by_name);
    rc = loose_index(&loose, &dir, err);
out:
    for (uint64_t t = 0; t < loose.tensor_count; t++)
        free(loose.tensors[t].name);
    free(loose.tensors);
    k3_names_free(loose.names, name_count);
    k3_dir_close(&dir);
    verify->spent_ns += k3_now_ns() - begin_ns;
    return rc;
}
