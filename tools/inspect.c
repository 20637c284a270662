/* Purpose: say what is in a checkpoint, a set, a safetensors file, a units file, a record, or the
 * source headers.
 * Owns: nothing between calls.
 * Threads: the caller's.
 * Errors: K3_EIO, K3_ENOMEM, those of the decoders.
 * Invariant: what is shown was decoded by the same strict readers that every command uses. */
#include "inspect.h"

#include "cast_report.h"
#include "ckpt.h"
#include "inspect_casts.h"
#include "job.h"
#include "manifest.h"
#include "source_headers.h"
#include "tree.h"
#include "units.h"
#include "verify.h"
#include "zst.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORD_BYTES_MAX                                                                           \
    (1ull << 30) /* head and unit digests of one item: K3's have below 10 MB                       \
                  */

static int no_memory(struct k3_err *err)
{
    return k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
}

static bool add_hex(struct k3_doc *object, const char *name, const uint8_t *digest)
{
    char hex[K3_HEX_BYTES];
    k3_hex_encode(digest, K3_DIGEST_BYTES, hex);
    return k3_doc_add_string(object, name, hex);
}

/* ---- safetensors ---- */

struct dtype_sum {
    uint64_t bytes, count;
};

static bool add_dtypes(struct k3_doc *root, const struct dtype_sum *sums)
{
    struct k3_doc *array = k3_doc_add_array(root, "dtypes");
    bool added = array != NULL;
    for (int d = 0; d < K3_DTYPE_COUNT && added; d++) {
        if (!sums[d].count)
            continue;
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "dtype", k3_dtype_name((enum k3_dtype)d)) &&
                k3_doc_add_integer(row, "tensors", sums[d].count) &&
                k3_doc_add_integer(row, "bytes", sums[d].bytes);
    }
    return added;
}

static bool add_tensors(struct k3_doc *root, const struct k3_st *st)
{
    struct k3_doc *array = k3_doc_add_array(root, "tensor_list");
    bool added = array != NULL;
    for (uint32_t t = 0; t < st->tensor_count && added; t++) {
        const struct k3_st_tensor *tensor = &st->tensors[t];
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "name", tensor->name) &&
                k3_doc_add_string(row, "dtype", k3_dtype_name(tensor->dtype)) &&
                k3_inspect_add_shape(row, tensor->shape, tensor->dim_count) &&
                k3_doc_add_integer(row, "bytes", tensor->end_offset - tensor->begin_offset) &&
                k3_doc_add_integer(row, "offset", st->data_offset + tensor->begin_offset);
    }
    return added;
}

static bool add_views(struct k3_doc *root, const struct k3_st *st)
{
    struct k3_doc *array = NULL;
    bool added = true;
    for (uint32_t m = 0; m < st->meta_count && added; m++) {
        struct k3_view view;
        if (strncmp(st->meta[m].key, "k3.view.", 8) ||
            k3_view_decode(st->meta[m].key, st->meta[m].value, &view, NULL))
            continue;
        if (!array)
            array = k3_doc_add_array(root, "view_list");
        struct k3_doc *row = array ? k3_doc_add_object(array, NULL) : NULL;
        added = row && k3_doc_add_string(row, "name", view.name) &&
                k3_doc_add_string(row, "dtype", k3_dtype_name(view.dtype)) &&
                k3_inspect_add_shape(row, view.shape, view.dim_count) &&
                k3_doc_add_integer(row, "bytes", view.end_offset - view.begin_offset) &&
                k3_doc_add_integer(row, "offset", st->data_offset + view.begin_offset);
    }
    return added;
}

static bool add_metadata(struct k3_doc *root, const struct k3_st *st)
{
    struct k3_doc *object = k3_doc_add_object(root, "metadata");
    bool added = object != NULL;
    for (uint32_t m = 0; m < st->meta_count && added; m++)
        if (strncmp(st->meta[m].key, "k3.view.", 8))
            added = k3_doc_add_string(object, st->meta[m].key, st->meta[m].value);
    return added;
}

static int show_safetensors(const struct k3_st *st, struct k3_doc *root, struct k3_err *err)
{
    struct dtype_sum sums[K3_DTYPE_COUNT];
    uint64_t pads = 0, pad_bytes = 0;
    memset(sums, 0, sizeof sums);
    for (uint32_t t = 0; t < st->tensor_count; t++) {
        const struct k3_st_tensor *tensor = &st->tensors[t];
        uint64_t bytes = tensor->end_offset - tensor->begin_offset;
        if (k3_verify_is_pad(tensor)) {
            pads++;
            pad_bytes += bytes;
            continue;
        }
        sums[tensor->dtype].count++;
        sums[tensor->dtype].bytes += bytes;
    }
    bool is_part = k3_st_meta_find(st, "k3.plan") != NULL;
    bool added = k3_doc_add_string(root, "kind", is_part ? "part of a shard set" : "safetensors") &&
                 k3_doc_add_integer(root, "file_bytes", st->data_offset + st->data_bytes) &&
                 k3_doc_add_integer(root, "header_bytes", st->data_offset) &&
                 k3_doc_add_integer(root, "tensors", st->tensor_count - pads);
    if (added && is_part)
        added = k3_doc_add_integer(root, "pads", pads) &&
                k3_doc_add_integer(root, "pad_bytes", pad_bytes);
    added = added && add_metadata(root, st) && add_dtypes(root, sums) && add_views(root, st) &&
            add_tensors(root, st);
    return added ? 0 : no_memory(err);
}

/* ---- documents and digests of a set ---- */

static bool add_entries(struct k3_doc *root, const char *name, const struct k3_file_entry *entries,
                        uint32_t count)
{
    struct k3_doc *array = k3_doc_add_array(root, name);
    bool added = array != NULL;
    for (uint32_t i = 0; i < count && added; i++) {
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "name", entries[i].name) &&
                k3_doc_add_integer(row, "bytes", entries[i].bytes) &&
                add_hex(row, "sha256", entries[i].sha256);
    }
    return added;
}

static bool add_rank_rows(struct k3_doc *root, const struct k3_manifest *manifest)
{
    struct k3_doc *array = k3_doc_add_array(root, "rank_list");
    bool added = array != NULL;
    for (uint32_t r = 0; r < manifest->rank_count && added; r++) {
        const struct k3_manifest_rank *rank = &manifest->ranks[r];
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_integer(row, "rank", rank->rank) &&
                k3_doc_add_integer(row, "parts", rank->part_count) &&
                k3_doc_add_integer(row, "image_bytes", rank->image_bytes) &&
                k3_doc_add_integer(row, "units_bytes", rank->units.bytes);
    }
    return added;
}

static int show_set(const char *const *paths, uint32_t count, struct k3_doc *root,
                    struct k3_err *err)
{
    struct k3_set *set = NULL;
    struct k3_doc *plan = NULL;
    char layout[256], shown[K3_RANKS_SHOWN_BYTES], partial[K3_RANKS_SHOWN_BYTES + 32];
    uint64_t image_bytes = 0, part_bytes = 0, parts = 0, source_bytes = 0;
    int rc = k3_set_open(paths, count, &set, err);
    if (rc)
        return rc;
    const struct k3_manifest *m = &set->manifest;
    for (uint32_t r = 0; r < m->rank_count; r++) {
        image_bytes += m->ranks[r].image_bytes;
        parts += m->ranks[r].part_count;
        for (uint32_t p = 0; p < m->ranks[r].part_count; p++)
            part_bytes += m->ranks[r].parts[p].bytes;
    }
    for (uint32_t s = 0; s < m->source_count; s++)
        source_bytes += m->sources[s].bytes;
    k3_layout_describe(&set->layout, layout, sizeof layout);
    snprintf(partial, sizeof partial, "rank%s %s of %u", m->rank_count == 1 ? "" : "s",
             k3_ranks_shown(&set->ranks, shown), k3_layout_world(&set->layout));
    rc = k3_doc_decode(K3_MANIFEST_NAME, m->plan_text, m->plan_bytes, &plan, err);
    if (rc)
        goto out;
    const char *repository = k3_doc_string(k3_doc_find(plan, "repository"));
    const char *revision = k3_doc_string(k3_doc_find(plan, "revision"));
    bool added = k3_doc_add_string(root, "kind", "shard set") &&
                 k3_doc_add_string(root, "architecture", set->config.model->architecture) &&
                 k3_doc_add_integer(root, "layers", set->config.layer_count) &&
                 k3_doc_add_string(root, "layout", layout) &&
                 (!k3_set_is_partial(set) || k3_doc_add_string(root, "partial_set", partial)) &&
                 k3_doc_add_integer(root, "ranks", m->rank_count) &&
                 k3_doc_add_integer(root, "parts", parts) &&
                 k3_doc_add_integer(root, "image_bytes", image_bytes) &&
                 k3_doc_add_integer(root, "part_bytes", part_bytes) &&
                 add_hex(root, "plan_sha256", m->plan_digest) &&
                 k3_doc_add_string(root, "repository", repository ? repository : "") &&
                 k3_doc_add_string(root, "revision", revision ? revision : "") &&
                 k3_doc_add_string(root, "tool", m->tool) &&
                 k3_doc_add_integer(root, "sources", m->source_count) &&
                 k3_doc_add_integer(root, "source_bytes", source_bytes);
    rc = added ? k3_inspect_policy(set, root, err) : 0;
    added = added && add_rank_rows(root, m) &&
            add_entries(root, "copied_files", m->files, m->file_count) &&
            add_entries(root, "source_files", m->sources, m->source_count);
    rc = rc ? rc : added ? 0 : no_memory(err);
out:
    k3_doc_free(plan);
    k3_set_close(set);
    return rc;
}

/* What an unfinished conversion will be. */
static int show_plan(const struct k3_dir *dir, const char *name, struct k3_doc *root,
                     struct k3_err *err)
{
    char layout[256], policy[K3_POLICY_TEXT_BYTES];
    struct k3_plan *plan = NULL;
    char *text = NULL;
    size_t bytes = 0;
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = k3_file_load_linked(dir, name, K3_MANIFEST_BYTES_MAX, &text, &bytes, err);
    if (rc)
        return rc;
    rc = k3_plan_decode(text, bytes, &plan, &inner);
    free(text);
    if (rc == K3_EFORMAT)
        return k3_fail_at(err, rc, name, -1,
                          "%s: not the plan of a conversion, or cut or damaged: the same convert "
                          "command writes it anew",
                          name);
    if (rc)
        return k3_fail_as(err, &inner);
    k3_layout_describe(&plan->layout, layout, sizeof layout);
    k3_policy_text(&plan->policy, policy);
    bool added = k3_doc_add_string(root, "kind", "plan of an unfinished conversion") &&
                 k3_doc_add_string(root, "architecture", plan->config.model->architecture) &&
                 k3_doc_add_integer(root, "layers", plan->config.layer_count) &&
                 k3_doc_add_string(root, "layout", layout) &&
                 k3_doc_add_string(root, "policy", policy) &&
                 add_hex(root, "plan_sha256", plan->digest) &&
                 k3_doc_add_string(root, "repository", plan->repository) &&
                 k3_doc_add_string(root, "revision", plan->revision) &&
                 k3_doc_add_integer(root, "sources", plan->source_count);
    k3_plan_close(plan);
    return added ? 0 : no_memory(err);
}

static int show_units(const char *name, int fd, uint64_t file_bytes, struct k3_doc *root,
                      struct k3_err *err)
{
    struct k3_disk_units disk;
    struct k3_units units;
    size_t bytes = file_bytes < sizeof disk ? (size_t)file_bytes : sizeof disk;
    int rc = k3_file_read(fd, name, &disk, bytes, 0, err);
    if (!rc)
        rc = k3_units_decode(name, &disk, bytes, file_bytes, &units, err);
    if (rc)
        return rc;
    bool added = k3_doc_add_string(root, "kind", "units file") &&
                 k3_doc_add_integer(root, "rank", units.rank) &&
                 k3_doc_add_integer(root, "parts", units.part_count) &&
                 k3_doc_add_integer(root, "digests", units.digest_count) &&
                 k3_doc_add_integer(root, "covered_bytes", units.digest_count * K3_UNIT_BYTES) &&
                 add_hex(root, "plan_sha256", units.plan_digest);
    return added ? 0 : no_memory(err);
}

static int show_record(const struct k3_dir *dir, const char *name, struct k3_doc *root,
                       struct k3_err *err)
{
    struct k3_record record;
    char *data = NULL;
    size_t bytes = 0;
    memset(&record, 0, sizeof record);
    int rc = k3_file_load_linked(dir, name, RECORD_BYTES_MAX, &data, &bytes, err);
    if (!rc)
        rc = k3_record_decode(name, data, bytes, &record, err);
    free(data);
    if (rc)
        return rc;
    bool added = k3_doc_add_string(root, "kind", "record of a finished item") &&
                 k3_doc_add_integer(root, "item", record.item) &&
                 k3_doc_add_string(root, "token", record.token) &&
                 k3_doc_add_string(root, "tool", record.tool) &&
                 add_hex(root, "plan_sha256", record.plan_digest) &&
                 k3_doc_add_integer(root, "parts", record.part_count) &&
                 k3_doc_add_integer(root, "units", record.unit_count) &&
                 k3_doc_add_integer(root, "casts", record.cast_count) &&
                 add_entries(root, "source_files", record.sources, record.source_count) &&
                 add_entries(root, "other_files", record.files, record.file_count);
    struct k3_doc *array = added ? k3_doc_add_array(root, "part_list") : NULL;
    added = array != NULL;
    for (uint32_t p = 0; p < record.part_count && added; p++) {
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_integer(row, "rank", record.parts[p].rank) &&
                k3_doc_add_integer(row, "part", record.parts[p].part) &&
                k3_doc_add_integer(row, "bytes", record.parts[p].bytes) &&
                add_hex(row, "tree", record.parts[p].tree);
    }
    k3_record_fini(&record);
    return added ? 0 : no_memory(err);
}

static int show_source_headers(const struct k3_dir *dir, const char *name, struct k3_doc *root,
                               struct k3_err *err)
{
    struct k3_source_headers headers;
    struct k3_text content;
    char *frame = NULL;
    size_t bytes = 0;
    k3_text_init(&content);
    memset(&headers, 0, sizeof headers);
    int rc = k3_file_load_linked(dir, name, K3_HEADERS_CONTENT_BYTES_MAX, &frame, &bytes, err);
    if (!rc)
        rc = k3_zst_decode(name, frame, bytes, K3_HEADERS_CONTENT_BYTES_MAX, &content, err);
    if (!rc)
        rc = k3_source_headers_decode(name, content.data, content.bytes, &headers, err);
    if (rc)
        goto out;
    bool added = k3_doc_add_string(root, "kind", "source headers of a checkpoint") &&
                 k3_doc_add_integer(root, "stored_bytes", bytes) &&
                 k3_doc_add_integer(root, "content_bytes", content.bytes) &&
                 k3_doc_add_integer(root, "entries", headers.count);
    struct k3_doc *array = added ? k3_doc_add_array(root, "entry_list") : NULL;
    added = array != NULL;
    for (uint32_t e = 0; e < headers.count && added; e++) {
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "name", headers.entries[e].name) &&
                k3_doc_add_integer(row, "bytes", headers.entries[e].bytes);
    }
    rc = added ? 0 : no_memory(err);
out:
    k3_source_headers_fini(&headers);
    k3_text_fini(&content);
    free(frame);
    return rc;
}

/* ---- checkpoints ---- */

static bool add_ckpt_sums(struct k3_doc *root, const struct k3_plan *plan)
{
    struct dtype_sum dtypes[K3_DTYPE_COUNT], roles[K3_ROLE_COUNT];
    memset(dtypes, 0, sizeof dtypes);
    memset(roles, 0, sizeof roles);
    for (uint32_t slot = 0; slot < plan->slot_count; slot++) {
        uint32_t rule, layer, index;
        if (!k3_plan_slot(plan, slot, &rule, &layer, &index))
            continue;
        const struct k3_rule *row = &plan->config.model->rules[rule];
        dtypes[row->dtype].count++;
        dtypes[row->dtype].bytes += plan->places[slot].bytes;
        roles[row->role].count++;
        roles[row->role].bytes += plan->places[slot].bytes;
    }
    struct k3_doc *array = k3_doc_add_array(root, "roles");
    bool added = array != NULL;
    for (int r = 0; r < K3_ROLE_COUNT && added; r++) {
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "role", k3_role_name((enum k3_role)r)) &&
                k3_doc_add_integer(row, "tensors", roles[r].count) &&
                k3_doc_add_integer(row, "bytes", roles[r].bytes);
    }
    return added && add_dtypes(root, dtypes);
}

static bool add_sources(struct k3_doc *root, const struct k3_plan *plan)
{
    struct k3_doc *array = k3_doc_add_array(root, "file_list");
    bool added = array != NULL;
    for (uint32_t f = 0; f < plan->source_count && added; f++) {
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "name", plan->sources[f].name) &&
                k3_doc_add_integer(row, "tensors", plan->sources[f].tensor_count) &&
                k3_doc_add_integer(row, "bytes", plan->sources[f].bytes) &&
                k3_doc_add_integer(row, "header_bytes", plan->sources[f].header_bytes);
    }
    return added;
}

static int show_ckpt(const struct k3_ckpt *ckpt, struct k3_doc *root, struct k3_err *err)
{
    const struct k3_plan *plan = ckpt->plan;
    uint64_t file_bytes = 0, mla = 0, dense = plan->config.value[K3_V_FIRST_DENSE];
    for (uint32_t f = 0; f < plan->source_count; f++)
        file_bytes += plan->sources[f].bytes;
    for (uint32_t i = 0; i < plan->config.layer_count; i++)
        mla += plan->config.is_mla[i];
    bool added = k3_doc_add_string(root, "kind", "checkpoint") &&
                 k3_doc_add_string(root, "architecture", plan->config.model->architecture) &&
                 k3_doc_add_integer(root, "layers", plan->config.layer_count) &&
                 k3_doc_add_integer(root, "kda_layers", plan->config.layer_count - mla) &&
                 k3_doc_add_integer(root, "mla_layers", mla) &&
                 k3_doc_add_integer(root, "dense_layers", dense) &&
                 k3_doc_add_integer(root, "experts", plan->config.value[K3_V_EXPERTS]) &&
                 k3_doc_add_integer(root, "tensors", plan->tensor_count) &&
                 k3_doc_add_integer(root, "tensor_bytes", plan->tensor_bytes) &&
                 k3_doc_add_integer(root, "files", plan->source_count) &&
                 k3_doc_add_integer(root, "file_bytes", file_bytes) &&
                 k3_doc_add_integer(root, "other_files", ckpt->copied_count) &&
                 k3_doc_add_string(root, "repository", plan->repository) &&
                 k3_doc_add_string(root, "revision", plan->revision) && add_ckpt_sums(root, plan) &&
                 add_sources(root, plan);
    return added ? 0 : no_memory(err);
}

static uint64_t count_tensors(const struct k3_st *st)
{
    uint64_t count = 0;
    for (uint32_t t = 0; t < st->tensor_count; t++)
        count += !k3_verify_is_pad(&st->tensors[t]);
    return count;
}

/* Headers alone, where there are no rules or the rules are broken. */
static int show_loose(const char *path, const char *why, struct k3_doc *root, struct k3_err *err)
{
    struct k3_dir dir;
    char **names = NULL;
    uint32_t count = 0, files = 0;
    int rc = k3_dir_open(path, false, &dir, err);
    if (rc)
        return rc;
    rc = k3_dir_list(&dir, &names, &count, err);
    bool added = k3_doc_add_string(root, "kind", "directory of safetensors files") &&
                 k3_doc_add_string(root, "note", why);
    struct k3_doc *array = added ? k3_doc_add_array(root, "file_list") : NULL;
    added = array != NULL;
    for (uint32_t i = 0; i < count && !rc && added; i++) {
        struct k3_st *st = NULL;
        struct k3_err inner;
        struct stat stat;
        int fd = -1;
        if (names[i][0] == '.' || !k3_name_ends(names[i], ".safetensors"))
            continue;
        files++;
        k3_err_init(&inner);
        int header_rc = k3_file_open(&dir, names[i], true, &fd, &stat, &inner);
        if (!header_rc)
            header_rc = k3_verify_header(names[i], fd, (uint64_t)stat.st_size, &st, &inner);
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "name", names[i]) &&
                k3_doc_add_integer(row, "tensors", st ? count_tensors(st) : 0) &&
                k3_doc_add_integer(row, "bytes",
                                   header_rc && fd < 0 ? 0 : (uint64_t)stat.st_size) &&
                k3_doc_add_string(row, "problem", header_rc ? inner.text : "");
        k3_st_free(st);
        if (fd >= 0)
            close(fd);
    }
    const char *where = k3_ckpt_where(&dir);
    k3_names_free(names, count);
    k3_dir_close(&dir);
    if (!rc && added && !files)
        rc = k3_fail(err, K3_EFORMAT,
                     "%s: no *.safetensors file: neither a checkpoint nor a shard set: give %s",
                     path, where);
    return rc ? rc : added ? 0 : no_memory(err);
}

int k3_inspect_dir(const char *path, struct k3_doc *root, struct k3_err *err)
{
    struct k3_ckpt_options options = {.path = path};
    struct k3_ckpt *ckpt = NULL;
    struct k3_problems problems;
    struct k3_err inner;
    bool is_set = false;
    int rc = k3_is_set_dir(path, &is_set, err);
    if (rc || is_set)
        return rc ? rc : show_set(&path, 1, root, err);
    k3_problems_init(&problems);
    k3_err_init(&inner);
    rc = k3_ckpt_open(&options, &ckpt, &problems, &inner);
    if (!rc)
        rc = show_ckpt(ckpt, root, err);
    else if (k3_exit_code(rc) >= 3)
        rc = show_loose(path, inner.text, root, err);
    else if (err && !err->rc)
        *err = inner;
    k3_problems_fini(&problems);
    k3_ckpt_close(ckpt);
    return rc;
}

int k3_inspect_file(const char *path, struct k3_doc *root, struct k3_err *err)
{
    struct k3_dir dir = {.fd = -1};
    struct k3_st *st = NULL;
    struct stat stat;
    const char *name;
    uint32_t rank;
    int fd = -1;
    int rc = k3_verify_open_parent(path, &dir, &name, err);
    if (!rc)
        rc = k3_file_open(&dir, name, true, &fd, &stat, err);
    if (rc)
        goto out;
    if (!strcmp(name, K3_MANIFEST_NAME)) {
        const char *parent = dir.path;
        rc = show_set(&parent, 1, root, err);
    } else if (!strcmp(name, K3_CAST_REPORT_NAME)) {
        rc = k3_inspect_report(&dir, name, root, err);
    } else if (!strcmp(name, K3_PLAN_NAME)) {
        rc = show_plan(&dir, name, root, err);
    } else if (!strcmp(name, K3_SOURCES_NAME) || !strcmp(name, K3_RANKS_NAME) ||
               !strcmp(name, K3_PLACE_NAME)) {
        rc = k3_fail_at(err, K3_EUSAGE, name, -1,
                        "%s: a list of an unfinished conversion, no tensors are in it: read it as "
                        "text",
                        name);
    } else if (k3_name_ends(name, ".json")) {
        rc = k3_fail_at(err, K3_EUSAGE, name, -1,
                        "%s: a JSON file, no tensors are in it: read it with any JSON reader, or "
                        "inspect the directory it lies in",
                        name);
    } else if (!strcmp(name, K3_HEADERS_NAME)) {
        rc = show_source_headers(&dir, name, root, err);
    } else if (k3_name_ends(name, ".record")) {
        rc = show_record(&dir, name, root, err);
    } else if (k3_units_name_decode(name, &rank)) {
        rc = show_units(name, fd, (uint64_t)stat.st_size, root, err);
    } else {
        rc = k3_verify_header(name, fd, (uint64_t)stat.st_size, &st, err);
        if (!rc)
            rc = show_safetensors(st, root, err);
    }
    k3_fail_in(&dir, rc, err);
out:
    k3_st_free(st);
    if (fd >= 0)
        close(fd);
    k3_dir_close(&dir);
    return rc;
}
