/* Purpose: open a checkpoint, judge all of it, make the plan; or rebuild the plan from a set.
 * Owns: the plan, the identity of each source file, the list of copied files.
 * Threads: one opens; afterwards it is constant and read by any.
 * Errors: K3_EIO, K3_EFORMAT with all problems listed, K3_EUNSUPPORTED (layout, architecture),
 * K3_ECORRUPT, K3_ENOMEM.
 * Invariant: sources are only ever opened for reading, and each is known by size, times and inode
 * from here on. */
#include "ckpt.h"

#include "cast_report.h"
#include "doc.h"
#include "hf_index.h"
#include "sha256.h"
#include "text.h"
#include "zst.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX_BYTES          512u /* enough to name what a wrong file really is */
#define COPIED_NAME_BYTES_MAX (K3_NAME_BYTES_MAX - 1u - K3_TOKEN_BYTES) /* staged with a token */
#define COPIED_BYTES_MAX      (1ull << 30)                              /* FORMAT.md 1 */

bool k3_name_ends(const char *name, const char *suffix)
{
    size_t n = strlen(name), s = strlen(suffix);
    return n >= s && !strcmp(name + n - s, suffix);
}

static void keep_identity(struct k3_ckpt_file *file, const struct stat *stat)
{
    file->bytes = (uint64_t)stat->st_size;
    file->mtime_ns = k3_time_ns(&stat->st_mtim);
    file->ctime_ns = k3_time_ns(&stat->st_ctim);
    file->inode = stat->st_ino;
}

static bool is_same(const struct k3_ckpt_file *a, const struct k3_ckpt_file *b)
{
    return a->bytes == b->bytes && a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns &&
           a->inode == b->inode;
}

/* ---- one source file ---- */

/* Read and decode the header of an open file; *header is malloc, caller owns. */
static int read_header(const char *name, int fd, uint64_t file_bytes, uint8_t **header,
                       uint64_t *bytes, struct k3_err *err)
{
    uint8_t prefix[PREFIX_BYTES];
    size_t have = file_bytes < sizeof prefix ? (size_t)file_bytes : sizeof prefix;
    int rc = k3_file_read(fd, name, prefix, have, 0, err);
    if (!rc)
        rc = k3_st_header_bytes(name, prefix, have, file_bytes, bytes, err);
    if (rc)
        return rc;
    *header = malloc((size_t)*bytes);
    if (!*header)
        return k3_fail(err, K3_ENOMEM, "no memory for the header of %s", name);
    return k3_file_read(fd, name, *header, (size_t)*bytes, 0, err);
}

/* Add one source file to the plan.  What is wrong with its bytes is a problem. */
static int add_source(struct k3_ckpt *ckpt, const char *name, struct k3_sha256 *sha,
                      struct k3_problems *problems, struct k3_err *err)
{
    struct k3_source source = {.name = (char *)(uintptr_t)name};
    struct k3_st *st = NULL;
    struct stat stat;
    uint8_t *header = NULL;
    int fd = -1;
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = k3_file_open(&ckpt->dir, name, true, &fd, &stat, &inner);
    if (!rc) {
        source.bytes = (uint64_t)stat.st_size;
        rc = read_header(name, fd, source.bytes, &header, &source.header_bytes, &inner);
    }
    if (!rc)
        rc = k3_st_decode(name, header, (size_t)source.header_bytes, source.bytes, &st, &inner);
    /* A read that failed tells nothing about the bytes; a link that leads nowhere does. */
    bool is_lost = fd < 0 && (inner.sys_errno == ENOENT || inner.sys_errno == ELOOP);
    if (rc == K3_ENOMEM || (rc == K3_EIO && !is_lost)) {
        *err = inner;
        goto out;
    }
    if (rc) {
        k3_problems_add(problems, "%s", inner.text);
        rc = k3_plan_add_file(ckpt->plan, &source, NULL, problems, err);
        goto out;
    }
    k3_sha256_of(sha, header, (size_t)source.header_bytes, source.header_sha256);
    uint32_t before = ckpt->plan->source_count;
    rc = k3_plan_add_file(ckpt->plan, &source, st, problems, err);
    if (!rc && ckpt->plan->source_count > before)
        keep_identity(&ckpt->files[before], &stat);
out:
    if (fd >= 0)
        close(fd);
    free(header);
    k3_st_free(st);
    return rc;
}

/* Is this name one that is copied into the set?  Its kind is judged by the caller. */
static bool is_copied_name(const char *name)
{
    return name[0] != '.' && !k3_name_ends(name, ".safetensors") &&
           !k3_name_ends(name, ".index.json");
}

static int add_copied(struct k3_ckpt *ckpt, const char *name, struct k3_problems *problems,
                      struct k3_err *err)
{
    struct stat stat;
    if (fstatat(ckpt->dir.fd, name, &stat, 0)) {
        if (errno != ENOENT && errno != ELOOP && errno != ENOTDIR)
            return k3_fail_sys(err, errno, "%s/%s: stat", ckpt->dir.path, name);
        k3_problems_add(
            problems,
            "%.255s: a link that leads nowhere (a cache copied without its blobs?): restore "
            "or remove it",
            name);
        return 0;
    }
    if (S_ISDIR(stat.st_mode))
        return 0; /* not part of a checkpoint */
    if (!S_ISREG(stat.st_mode)) {
        k3_problems_add(problems,
                        "%.255s: a pipe, socket or device where a file would be copied into the "
                        "set: restore or remove it",
                        name);
        return 0;
    }
    if (!k3_is_plain_name(name)) {
        k3_problems_add(
            problems,
            "a file has a name that cannot be carried into a set (plain ASCII of at most 255 "
            "characters, without space, quote or backslash): rename or remove it");
        return 0;
    }
    if (strlen(name) > COPIED_NAME_BYTES_MAX) {
        k3_problems_add(problems, "%s: a name of more than %u characters: shorten it", name,
                        COPIED_NAME_BYTES_MAX);
        return 0;
    }
    if (faccessat(ckpt->dir.fd, name, R_OK, 0))
        return k3_fail_sys(err, errno, "%s/%s: cannot be read", ckpt->dir.path, name);
    if (!strcmp(name, K3_MANIFEST_NAME) || !strcmp(name, K3_HEADERS_NAME) ||
        k3_name_ends(name, ".units")) {
        k3_problems_add(problems,
                        "%s: this name belongs to a shard set: is this really a checkpoint?", name);
        return 0;
    }
    if ((uint64_t)stat.st_size > COPIED_BYTES_MAX || ckpt->copied_count >= K3_FILE_COUNT_MAX)
        return k3_fail(err, K3_ELIMIT,
                       "%s: more than %u files beside the weights, or one above 1 GiB: move "
                       "what does not belong to the checkpoint away",
                       name, K3_FILE_COUNT_MAX);
    char **grown = realloc(ckpt->copied, (ckpt->copied_count + 1) * sizeof *grown);
    char *copy = strdup(name);
    if (grown)
        ckpt->copied = grown;
    if (!grown || !copy) {
        free(copy);
        return k3_fail(err, K3_ENOMEM, "no memory for the list of files");
    }
    ckpt->copied[ckpt->copied_count++] = copy;
    return 0;
}

static int add_files(struct k3_ckpt *ckpt, struct k3_sha256 *sha, struct k3_problems *problems,
                     struct k3_err *err)
{
    char **names = NULL;
    uint32_t count = 0;
    int rc = k3_dir_list(&ckpt->dir, &names, &count, err);
    if (rc)
        return rc;
    ckpt->files = calloc(count ? count : 1, sizeof *ckpt->files);
    if (!ckpt->files)
        rc = k3_fail(err, K3_ENOMEM, "no memory for the list of files");
    for (uint32_t i = 0; i < count && !rc; i++) {
        const char *name = names[i];
        if (is_copied_name(name))
            rc = add_copied(ckpt, name, problems, err);
        else if (name[0] != '.' && k3_name_ends(name, ".safetensors")) {
            if (k3_is_plain_name(name))
                rc = add_source(ckpt, name, sha, problems, err);
            else
                k3_problems_add(
                    problems, "a *.safetensors file has a name that is not plain ASCII: rename it");
        }
    }
    k3_names_free(names, count);
    return rc;
}

/* ---- whole checkpoint ---- */

static int read_config(const char *text, size_t bytes, struct k3_config *config,
                       struct k3_problems *problems, struct k3_err *err)
{
    struct k3_doc *root = NULL;
    int rc = k3_doc_decode(K3_CONFIG_NAME, text, bytes, &root, err);
    if (!rc)
        rc = k3_config_decode(root, config, problems, err);
    k3_doc_free(root);
    return rc;
}

/* A layout of a model of other sizes would be judged on this one, and refused for what nobody asked
 * for. */
static int check_sizes_of_set(const char *path, const struct k3_config *config,
                              const struct k3_set *set, struct k3_err *err)
{
    const struct k3_config *made = &set->plan->config;
    const char *name = "text_config.num_hidden_layers";
    uint64_t found = config->layer_count, wanted = made->layer_count;
    if (config->model != made->model)
        return k3_fail_at(err, K3_ECORRUPT, K3_CONFIG_NAME, -1,
                          "%s: not the checkpoint of this set: its architecture is %s, the set was "
                          "made of %s",
                          path, config->model->architecture, made->model->architecture);
    for (uint32_t i = 0; i < made->model->field_count && found == wanted; i++) {
        name = made->model->fields[i].path;
        found = config->value[made->model->fields[i].value];
        wanted = made->value[made->model->fields[i].value];
    }
    if (found == wanted)
        return 0;
    return k3_fail_at(err, K3_ECORRUPT, K3_CONFIG_NAME, -1,
                      "%s: not the checkpoint of this set: its config.json says %s %llu, that "
                      "of the set said %llu",
                      path, name, (unsigned long long)found, (unsigned long long)wanted);
}

/* Repository and revision as a set records them. */
static int take_origin(struct k3_plan *plan, const struct k3_set *set, struct k3_err *err)
{
    free(plan->repository);
    free(plan->revision);
    plan->repository = strdup(set->plan->repository);
    plan->revision = strdup(set->plan->revision);
    return plan->repository && plan->revision ? 0
                                              : k3_fail(err, K3_ENOMEM, "no memory for the plan");
}

/* "…/models--ORG--NAME/snapshots/REVISION" is a snapshot of the hub's cache: it knows where it came
 * from. */
static int read_origin(const struct k3_ckpt_options *options, struct k3_plan *plan,
                       struct k3_err *err)
{
    if (options->of_set)
        return take_origin(plan, options->of_set, err);
    char *real = realpath(options->path, NULL);
    if (!real) /* a guess would change the plan */
        return k3_fail_sys(err, errno, "%s: cannot be reached", options->path);
    char *snapshots = strstr(real, "/snapshots/");
    char *models = NULL;
    if (snapshots) {
        *snapshots = 0;
        models = strrchr(real, '/');
        models = models && !strncmp(models, "/models--", 9) ? models + 9 : NULL;
    }
    const char *revision = options->revision;
    if (models && !revision && !strchr(snapshots + 11, '/'))
        revision = snapshots + 11;
    char *dashes = models ? strstr(models, "--") : NULL;
    if (dashes) {
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    }
    free(plan->repository);
    free(plan->revision);
    plan->repository = strdup(models ? models : "");
    plan->revision = strdup(revision ? revision : "");
    free(real);
    return plan->repository && plan->revision ? 0
                                              : k3_fail(err, K3_ENOMEM, "no memory for the plan");
}

static int by_offset(const void *a, const void *b, void *context)
{
    const struct k3_tensor_place *places = context;
    const struct k3_tensor_place *x = &places[*(const uint32_t *)a],
                                 *y = &places[*(const uint32_t *)b];
    return x->begin_offset < y->begin_offset ? -1 : x->begin_offset > y->begin_offset;
}

/* Sort all tensors by (file, offset): counting by file, then by offset within. */
static int sort_slots(struct k3_ckpt *ckpt, struct k3_err *err)
{
    const struct k3_plan *plan = ckpt->plan;
    uint32_t files = plan->source_count;
    ckpt->slots = malloc((plan->tensor_count ? plan->tensor_count : 1) * sizeof *ckpt->slots);
    ckpt->file_slot_begin = calloc(files + 2, sizeof *ckpt->file_slot_begin);
    if (!ckpt->slots || !ckpt->file_slot_begin)
        return k3_fail(err, K3_ENOMEM, "no memory for the order of the tensors");
    uint32_t *begin = ckpt->file_slot_begin;
    for (uint32_t slot = 0; slot < plan->slot_count; slot++)
        if (plan->places[slot].file != K3_FILE_NONE)
            begin[plan->places[slot].file + 2]++;
    for (uint32_t f = 0; f < files; f++)
        begin[f + 2] += begin[f + 1];
    for (uint32_t slot = 0; slot < plan->slot_count; slot++)
        if (plan->places[slot].file != K3_FILE_NONE)
            ckpt->slots[begin[plan->places[slot].file + 1]++] = slot;
    for (uint32_t f = 0; f < files; f++)
        qsort_r(ckpt->slots + begin[f], begin[f + 1] - begin[f], sizeof *ckpt->slots, by_offset,
                plan->places);
    return 0;
}

/* The limit that a reader of source-headers.zst relies on. */
static void judge_index_bytes(const struct k3_plan *plan, uint64_t bytes,
                              struct k3_problems *problems)
{
    uint64_t header_bytes = 0;
    for (uint32_t f = 0; f < plan->source_count; f++)
        header_bytes += plan->sources[f].header_bytes;
    uint64_t max = k3_source_headers_index_max(header_bytes);
    if (bytes > max)
        k3_problems_add(problems,
                        K3_INDEX_NAME ": %llu bytes, %llu are the most for headers of %llu: write "
                                      "it with less white space",
                        (unsigned long long)bytes, (unsigned long long)max,
                        (unsigned long long)header_bytes);
}

static int judge_index(struct k3_ckpt *ckpt, struct k3_sha256 *sha, struct k3_problems *problems,
                       struct k3_err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    struct k3_err inner;
    k3_err_init(&inner);
    if (!k3_file_exists(&ckpt->dir, K3_INDEX_NAME)) {
        k3_problems_add(problems, K3_INDEX_NAME " is missing: download the checkpoint again");
        return 0;
    }
    int rc = k3_file_load_linked(&ckpt->dir, K3_INDEX_NAME, K3_INDEX_BYTES_MAX, &text, &bytes, err);
    if (rc)
        return rc;
    rc = k3_plan_add_index(ckpt->plan, K3_INDEX_NAME, text, bytes, problems, &inner);
    if (rc == K3_ENOMEM) {
        *err = inner;
    } else {
        k3_sha256_of(sha, text, bytes, ckpt->plan->index_sha256);
        if (!rc)
            judge_index_bytes(ckpt->plan, bytes, problems);
        if (rc)
            k3_problems_add(problems, "%s", inner.text);
        else
            k3_plan_check(ckpt->plan, problems);
        rc = 0;
    }
    free(text);
    return rc;
}

const char *k3_ckpt_where(const struct k3_dir *dir)
{
    if (k3_file_exists(dir, "snapshots") && k3_file_exists(dir, "blobs"))
        return "a folder below its snapshots/ (it is the hub's cache of a model)";
    return "the folder that holds config.json and the *.safetensors files";
}

static int open_plan(struct k3_ckpt *ckpt, const struct k3_ckpt_options *options,
                     struct k3_sha256 *sha, struct k3_problems *problems, struct k3_err *err)
{
    struct k3_config config;
    struct k3_layout layout;
    char *text = NULL;
    size_t bytes = 0;
    bool is_set = false;
    int rc = k3_file_find(&ckpt->dir, K3_MANIFEST_NAME, &is_set, err);
    if (rc)
        return rc;
    if (is_set && k3_file_exists(&ckpt->dir, K3_CAST_REPORT_NAME))
        return k3_fail_at(err, K3_EFORMAT, K3_MANIFEST_NAME, -1,
                          "%s: holds " K3_MANIFEST_NAME ": a shard set with casts, which no export "
                          "makes a checkpoint again: give the folder of the published files that "
                          "it was made of (`k3-shard inspect %s` shows the set)",
                          options->path, k3_quoted(options->path).s);
    if (is_set)
        return k3_fail_at(err, K3_EFORMAT, K3_MANIFEST_NAME, -1,
                          "%s: holds " K3_MANIFEST_NAME ": a shard set, not a checkpoint: give the "
                          "folder of the published files (`k3-shard export %s --to DIR` makes it "
                          "again; `k3-shard inspect %s` shows the set)",
                          options->path, k3_quoted(options->path).s, k3_quoted(options->path).s);
    if (!k3_file_exists(&ckpt->dir, K3_CONFIG_NAME))
        return k3_fail_at(err, K3_EFORMAT, K3_CONFIG_NAME, -1,
                          "%s: no config.json: not a checkpoint: give %s", options->path,
                          k3_ckpt_where(&ckpt->dir));
    rc = k3_file_load_linked(&ckpt->dir, K3_CONFIG_NAME, K3_CONFIG_BYTES_MAX, &text, &bytes, err);
    if (!rc)
        rc = read_config(text, bytes, &config, problems, err);
    if (!rc && options->of_set)
        rc = check_sizes_of_set(options->path, &config, options->of_set, err);
    if (!rc && options->layout) {
        layout = *options->layout;
    } else if (!rc) {
        k3_layout_init(&layout);
        layout.tp = 1;
    }
    if (!rc)
        rc = k3_layout_resolve(&layout, &config, err);
    if (!rc)
        rc = k3_plan_open(&config, &layout, options->policy, &ckpt->plan, err);
    if (!rc)
        k3_sha256_of(sha, text, bytes, ckpt->plan->config_sha256);
    free(text);
    return rc;
}

int k3_ckpt_open(const struct k3_ckpt_options *options, struct k3_ckpt **out,
                 struct k3_problems *problems, struct k3_err *err)
{
    struct k3_sha256 *sha = NULL;
    uint64_t before = problems->count;
    *out = NULL;
    struct k3_ckpt *ckpt = calloc(1, sizeof *ckpt);
    if (!ckpt)
        return k3_fail(err, K3_ENOMEM, "no memory to open %s", options->path);
    ckpt->dir.fd = -1;
    int rc = k3_dir_open(options->path, false, &ckpt->dir, err);
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (!rc)
        rc = open_plan(ckpt, options, sha, problems, err);
    if (!rc)
        rc = add_files(ckpt, sha, problems, err);
    if (!rc)
        rc = judge_index(ckpt, sha, problems, err);
    if (!rc)
        rc = read_origin(options, ckpt->plan, err);
    if (!rc && problems->count > before)
        rc = k3_fail(err, K3_EFORMAT, "%s: %llu problem%s: not a complete checkpoint of %s",
                     options->path, (unsigned long long)(problems->count - before),
                     problems->count - before == 1 ? "" : "s",
                     ckpt->plan->config.model->architecture);
    if (!rc)
        rc = k3_plan_finish(ckpt->plan, err);
    if (!rc)
        rc = sort_slots(ckpt, err);
    if (!rc)
        rc = k3_ckpt_keep_ranks(ckpt, options->ranks, err);
    k3_fail_in(&ckpt->dir, rc, err);
    k3_sha256_close(sha);
    if (rc)
        k3_ckpt_close(ckpt);
    else
        *out = ckpt;
    return rc;
}

/* ---- from a set ---- */

/* What the content can have at most, from the sizes in the manifest: a frame that declares more is
 * refused before it is decoded. */
static int content_bytes_max(const struct k3_set *set, uint64_t *max, struct k3_err *err)
{
    uint64_t config_bytes = K3_CONFIG_BYTES_MAX, header_bytes = 0;
    /* The config.json of a set with casts is another than the checkpoint's. */
    bool is_own = k3_policy_is_verbatim(&set->plan->policy);
    for (uint32_t i = 0; i < set->manifest.file_count && is_own; i++)
        if (!strcmp(set->manifest.files[i].name, K3_CONFIG_NAME))
            config_bytes = set->manifest.files[i].bytes;
    for (uint32_t f = 0; f < set->plan->source_count; f++)
        header_bytes += set->plan->sources[f].header_bytes;
    int rc = k3_source_headers_bytes(set->plan, config_bytes,
                                     k3_source_headers_index_max(header_bytes), max, err);
    if (*max > K3_HEADERS_CONTENT_BYTES_MAX)
        *max = K3_HEADERS_CONTENT_BYTES_MAX;
    return rc;
}

static int load_headers(const struct k3_set *set, struct k3_sha256 *sha, struct k3_ckpt *ckpt,
                        struct k3_err *err)
{
    const struct k3_file_entry *entry = &set->manifest.headers;
    const struct k3_dir *dir = &set->dirs[set->manifest_dir];
    uint8_t digest[K3_DIGEST_BYTES];
    char *frame = NULL;
    size_t bytes = 0;
    uint64_t content_max = 0;
    int rc = content_bytes_max(set, &content_max, err);
    if (!rc)
        rc = k3_file_load(dir, K3_HEADERS_NAME, K3_HEADERS_CONTENT_BYTES_MAX, &frame, &bytes, err);
    if (rc)
        return rc;
    k3_sha256_of(sha, frame, bytes, digest);
    if (bytes != entry->bytes || memcmp(digest, entry->sha256, sizeof digest))
        rc = k3_fail_at(err, K3_ECORRUPT, K3_HEADERS_NAME, -1,
                        "%s/%s: its bytes are not the ones the manifest records: restore the file",
                        dir->path, K3_HEADERS_NAME);
    if (!rc)
        rc = k3_zst_decode(K3_HEADERS_NAME, frame, bytes, content_max, &ckpt->content, err);
    free(frame);
    if (!rc)
        rc = k3_source_headers_decode(K3_HEADERS_NAME, ckpt->content.data, ckpt->content.bytes,
                                      &ckpt->headers, err);
    return rc;
}

/* Add entry i (a source header) to the plan; its file size comes from the plan of the manifest. */
static int add_entry(struct k3_ckpt *ckpt, const struct k3_set *set, uint32_t i,
                     struct k3_sha256 *sha, struct k3_problems *problems, struct k3_err *err)
{
    const struct k3_header_entry *entry = &ckpt->headers.entries[i];
    const struct k3_source *listed = i - 2 < set->plan->source_count ? &set->plan->sources[i - 2]
                                                                     : NULL;
    if (!listed || strcmp(listed->name, entry->name))
        return k3_fail_at(err, K3_ECORRUPT, K3_HEADERS_NAME, -1,
                          K3_HEADERS_NAME ": entry %s is not a source file of the plan",
                          entry->name);
    struct k3_source source = {
        .name = entry->name, .bytes = listed->bytes, .header_bytes = entry->bytes};
    struct k3_st *st = NULL;
    int rc = k3_st_decode(entry->name, entry->data, entry->bytes, listed->bytes, &st, err);
    if (rc)
        return rc;
    k3_sha256_of(sha, entry->data, entry->bytes, source.header_sha256);
    rc = k3_plan_add_file(ckpt->plan, &source, st, problems, err);
    k3_st_free(st);
    return rc;
}

static int rebuild_plan(struct k3_ckpt *ckpt, const struct k3_set *set, struct k3_sha256 *sha,
                        struct k3_problems *problems, struct k3_err *err)
{
    const struct k3_header_entry *entry = ckpt->headers.entries;
    int rc = k3_plan_open(&set->config, &set->layout, &set->plan->policy, &ckpt->plan, err);
    if (rc)
        return rc;
    struct k3_plan *plan = ckpt->plan;
    k3_sha256_of(sha, entry[0].data, entry[0].bytes, plan->config_sha256);
    k3_sha256_of(sha, entry[1].data, entry[1].bytes, plan->index_sha256);
    for (uint32_t i = 2; i < ckpt->headers.count && !rc; i++)
        rc = add_entry(ckpt, set, i, sha, problems, err);
    if (!rc)
        rc = k3_plan_add_index(plan, K3_INDEX_NAME, entry[1].data, entry[1].bytes, problems, err);
    if (rc)
        return rc;
    k3_plan_check(plan, problems);
    rc = take_origin(plan, set, err);
    if (rc)
        return rc;
    return k3_plan_finish(plan, err);
}

/* The manifest lists the digests of the files that its ranks hold bytes of, and of no other. */
static int check_sources(const struct k3_ckpt *ckpt, const struct k3_set *set, struct k3_err *err)
{
    for (uint32_t f = 0; f < ckpt->plan->source_count; f++) {
        const char *name = ckpt->plan->sources[f].name;
        bool is_needed = k3_ckpt_needs_file(ckpt, f);
        if (is_needed != (k3_set_source(set, name) != NULL))
            return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                              K3_MANIFEST_NAME ": %s is %s its sources, its ranks hold %s of it",
                              name, is_needed ? "not in" : "in", is_needed ? "bytes" : "no byte");
    }
    return 0;
}

int k3_ckpt_open_set(const struct k3_set *set, struct k3_ckpt **out, struct k3_err *err)
{
    struct k3_sha256 *sha = NULL;
    struct k3_problems problems;
    k3_problems_init(&problems);
    *out = NULL;
    struct k3_ckpt *ckpt = calloc(1, sizeof *ckpt);
    if (!ckpt)
        return k3_fail(err, K3_ENOMEM, "no memory to read the headers of the set");
    ckpt->dir.fd = -1;
    int rc = k3_sha256_open(&sha, err);
    if (!rc)
        rc = load_headers(set, sha, ckpt, err);
    if (!rc)
        rc = rebuild_plan(ckpt, set, sha, &problems, err);
    if (!rc && problems.count)
        rc = k3_fail_at(err, K3_ECORRUPT, K3_HEADERS_NAME, -1, K3_HEADERS_NAME ": %s",
                        problems.kept_count ? problems.text[0] : "does not fit the model rules");
    if (!rc && memcmp(ckpt->plan->digest, set->manifest.plan_digest, K3_DIGEST_BYTES))
        rc = k3_fail_at(err, K3_ECORRUPT, K3_HEADERS_NAME, -1,
                        K3_HEADERS_NAME
                        ": the plan made from it is not the plan of the manifest: the set was "
                        "put together from different conversions");
    if (!rc)
        rc = sort_slots(ckpt, err);
    if (!rc)
        rc = k3_ckpt_keep_ranks(ckpt, &set->ranks, err);
    if (!rc)
        rc = check_sources(ckpt, set, err);
    k3_problems_fini(&problems);
    k3_sha256_close(sha);
    if (rc)
        k3_ckpt_close(ckpt);
    else
        *out = ckpt;
    return rc;
}

void k3_ckpt_close(struct k3_ckpt *ckpt)
{
    if (!ckpt)
        return;
    if (ckpt->dir.fd >= 0)
        k3_dir_close(&ckpt->dir);
    k3_plan_close(ckpt->plan);
    for (uint32_t i = 0; i < ckpt->copied_count; i++)
        free(ckpt->copied[i]);
    free(ckpt->copied);
    free(ckpt->files);
    free(ckpt->slots);
    free(ckpt->file_slot_begin);
    free(ckpt->is_needed);
    k3_source_headers_fini(&ckpt->headers);
    k3_text_fini(&ckpt->content);
    free(ckpt);
}

int k3_ckpt_file_open(const struct k3_ckpt *ckpt, uint32_t file, int *fd, struct k3_err *err)
{
    struct stat stat;
    int rc = k3_file_open(&ckpt->dir, ckpt->plan->sources[file].name, true, fd, &stat, err);
    if (rc)
        return rc;
    rc = k3_ckpt_file_check(ckpt, file, *fd, err);
    if (rc) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

int k3_ckpt_file_check(const struct k3_ckpt *ckpt, uint32_t file, int fd, struct k3_err *err)
{
    const char *name = ckpt->plan->sources[file].name;
    struct stat stat;
    struct k3_ckpt_file now;
    if (fstat(fd, &stat))
        return k3_fail_sys(err, errno, "%s/%s: fstat", ckpt->dir.path, name);
    keep_identity(&now, &stat);
    if (!is_same(&now, &ckpt->files[file]))
        return k3_fail_at(
            err, K3_ECORRUPT, name, -1,
            "%s/%s: the file changed while it was used (size, time or inode differ): leave the "
            "checkpoint alone and run again",
            ckpt->dir.path, name);
    return 0;
}
