/* Purpose: find a tensor or view by name wherever it lies; take digests of a file.
 * Owns: nothing between calls.
 * Threads: the caller's.
 * Errors: K3_EUSAGE for a name that is nowhere, K3_EIO, K3_ENOMEM, those of the decoders.
 * Invariant: every place is shown: a tensor of a set lies in as many parts as ranks hold it. */
#include "inspect.h"

#include "cast_report.h"
#include "ckpt.h"
#include "inspect_casts.h"
#include "nearest.h"
#include "stop.h"
#include "text.h"
#include "tree.h"
#include "units.h"
#include "verify.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STREAM_BYTES (1u << 20) /* two units: the tree is made of whole ones */

bool k3_inspect_add_shape(struct k3_doc *row, const uint64_t *shape, unsigned dim_count)
{
    struct k3_doc *array = k3_doc_add_array(row, "shape");
    bool added = array != NULL;
    for (unsigned d = 0; d < dim_count && added; d++)
        added = k3_doc_add_integer(array, NULL, shape[d]);
    return added;
}

/* ---- digests ---- */

static int stream_digests(int fd, const char *name, uint64_t total, struct k3_file_digests *out,
                          struct k3_err *err)
{
    struct k3_sha256 *sha = NULL;
    struct k3_tree *tree = NULL;
    uint8_t digest[K3_DIGEST_BYTES];
    uint8_t *data = malloc(STREAM_BYTES);
    int rc = data ? 0 : k3_fail(err, K3_ENOMEM, "no memory to read %s", name);
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (!rc)
        rc = k3_tree_open(&tree, err);
    if (rc)
        goto out;
    k3_sha256_begin(sha);
    k3_tree_begin(tree);
    for (uint64_t at = 0; at < total && !rc; at += STREAM_BYTES) {
        size_t n = total - at < STREAM_BYTES ? (size_t)(total - at) : STREAM_BYTES;
        if (k3_stop_requested())
            rc = k3_fail(err, K3_ECANCELED, "stopped on request in %s", name);
        else
            rc = k3_file_read(fd, name, data, n, at, err);
        if (rc)
            goto out;
        k3_sha256_update(sha, data, n);
        rc = k3_tree_update(tree, data, n, err);
    }
    if (rc)
        goto out;
    out->bytes = total;
    k3_sha256_final(sha, digest);
    k3_hex_encode(digest, sizeof digest, out->sha256);
    k3_tree_final(tree, digest);
    k3_hex_encode(digest, sizeof digest, out->verity);
out:
    k3_sha256_close(sha);
    k3_tree_close(tree);
    free(data);
    return rc;
}

int k3_inspect_digests(const char *path, struct k3_file_digests *out, struct k3_err *err)
{
    struct k3_dir dir = {.fd = -1};
    struct stat stat;
    const char *name;
    int fd = -1;
    int rc = k3_verify_open_parent(path, &dir, &name, err);
    if (!rc)
        rc = k3_file_open(&dir, name, true, &fd, &stat, err);
    if (!rc)
        rc = stream_digests(fd, path, (uint64_t)stat.st_size, out, err);
    if (fd >= 0)
        close(fd);
    k3_dir_close(&dir);
    return rc;
}

/* ---- one tensor ---- */

struct search {
    const char *wanted;
    struct k3_doc *places; /* the array "places" */
    struct k3_hists hists; /* of all places together */
    struct k3_inspect_place first;
    const char *plan; /* of the part that is looked at, or "" */
    uint32_t found_count;
    unsigned nearest; /* of the names that are not the wanted one; for a message */
    char near[K3_ST_NAME_BYTES_MAX + 1];
    bool stats;
};

/* A tensor or a view as one shape. */
struct found {
    const char *kind;
    const uint64_t *shape;
    uint64_t begin_offset, end_offset;
    uint8_t dtype, dim_count;
    bool is_view;
};

static int add_place(struct search *search, const char *file, int fd, uint64_t data_offset,
                     const struct found *found, struct k3_err *err)
{
    uint64_t bytes = found->end_offset - found->begin_offset;
    struct k3_doc *row = k3_doc_add_object(search->places, NULL);
    bool added = row && k3_doc_add_string(row, "file", file) &&
                 k3_doc_add_string(row, "kind", found->kind) &&
                 k3_doc_add_string(row, "dtype", k3_dtype_name(found->dtype)) &&
                 k3_inspect_add_shape(row, found->shape, found->dim_count) &&
                 k3_doc_add_integer(row, "bytes", bytes) &&
                 k3_doc_add_integer(row, "begin", found->begin_offset) &&
                 k3_doc_add_integer(row, "end", found->end_offset) &&
                 k3_doc_add_integer(row, "file_offset", data_offset + found->begin_offset);
    if (!added)
        return k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
    if (!search->found_count++) {
        snprintf(search->first.file, sizeof search->first.file, "%s", file);
        snprintf(search->first.plan, sizeof search->first.plan, "%s", search->plan);
        search->first.begin_offset = found->begin_offset;
        search->first.end_offset = found->end_offset;
    }
    if (!search->stats)
        return 0;
    struct k3_stats_range range = {.name = file,
                                   .offset = data_offset + found->begin_offset,
                                   .bytes = bytes,
                                   .fd = fd,
                                   .dtype = found->dtype};
    struct k3_hist *hist = NULL;
    const enum k3_hist_kind kind = k3_hist_kind_of(search->wanted, found->is_view, found->dtype);
    int rc = kind ? k3_hists_open(&search->hists, kind, found->dtype, &hist, err) : 0;
    return rc ? rc : k3_inspect_stats(&range, hist, row, err);
}

/* The scales of what was found, where it has any: they are part of what its codes mean. */
static int add_scales(struct search *search, const char *file, int fd, uint64_t data_offset,
                      const struct found *scales, struct k3_err *err)
{
    struct k3_hist *hist = NULL;
    const struct k3_stats_range range = {.name = file,
                                         .offset = data_offset + scales->begin_offset,
                                         .bytes = scales->end_offset - scales->begin_offset,
                                         .fd = fd,
                                         .dtype = scales->dtype};
    const enum k3_hist_kind kind = k3_hist_kind_of("_scale", scales->is_view, scales->dtype);
    int rc = k3_hists_open(&search->hists, kind, scales->dtype, &hist, err);
    return rc ? rc : k3_inspect_hist(&range, hist, NULL, err);
}

/* "X.weight_scale" for "X.weight" and "X.weight_packed"; false for other names. */
static bool name_scales(const char *name, char *scales, size_t bytes)
{
    const char *dot = strrchr(name, '.');
    if (!dot || (strcmp(dot, ".weight") && strcmp(dot, ".weight_packed")))
        return false;
    int n = snprintf(scales, bytes, "%.*s.weight_scale", (int)(dot - name), name);
    return n > 0 && (size_t)n < bytes;
}

static struct found of_tensor(const struct k3_st_tensor *tensor)
{
    return (struct found){.kind = "tensor",
                          .shape = tensor->shape,
                          .begin_offset = tensor->begin_offset,
                          .end_offset = tensor->end_offset,
                          .dtype = tensor->dtype,
                          .dim_count = tensor->dim_count};
}

/* The view `name` of a part into *view and *found; found->kind is NULL where it has none. */
static int find_view(const char *file, const struct k3_st *st, const char *name,
                     struct k3_view *view, struct found *found, struct k3_err *err)
{
    char key[16 + K3_VIEW_NAME_BYTES];
    int n = snprintf(key, sizeof key, "k3.view.%s", name);
    const char *value = n > 0 && (size_t)n < sizeof key ? k3_st_meta_find(st, key) : NULL;
    found->kind = NULL;
    if (!value)
        return 0;
    int rc = k3_view_decode(key, value, view, err);
    if (!rc && view->end_offset > st->data_bytes)
        rc = k3_fail(err, K3_EFORMAT, "%s: view %s ends behind the data", file, name);
    *found = (struct found){.kind = rc ? NULL : "view",
                            .is_view = true,
                            .shape = view->shape,
                            .begin_offset = view->begin_offset,
                            .end_offset = view->end_offset,
                            .dtype = view->dtype,
                            .dim_count = view->dim_count};
    return rc;
}

/* A tensor of the wanted name, and its scales. */
static int search_tensor(struct search *search, const char *file, int fd, const struct k3_st *st,
                         struct k3_err *err)
{
    const struct k3_st_tensor *tensor = k3_st_find(st, search->wanted);
    char name[K3_ST_NAME_BYTES_MAX + 16];
    if (!tensor)
        return 0;
    struct found found = of_tensor(tensor);
    int rc = add_place(search, file, fd, st->data_offset, &found, err);
    const struct k3_st_tensor *scales = search->stats &&
                                                name_scales(search->wanted, name, sizeof name)
                                            ? k3_st_find(st, name)
                                            : NULL;
    if (rc || !scales)
        return rc;
    found = of_tensor(scales);
    return add_scales(search, file, fd, st->data_offset, &found, err);
}

/* A view of the wanted name, and that of its scales. */
static int search_view(struct search *search, const char *file, int fd, const struct k3_st *st,
                       struct k3_err *err)
{
    char name[K3_VIEW_NAME_BYTES + 8];
    struct k3_view view;
    struct found found;
    int rc = find_view(file, st, search->wanted, &view, &found, err);
    if (rc || !found.kind)
        return rc;
    rc = add_place(search, file, fd, st->data_offset, &found, err);
    snprintf(name, sizeof name, "%s_scale", search->wanted);
    if (!rc && search->stats)
        rc = find_view(file, st, name, &view, &found, err);
    return rc || !search->stats || !found.kind
               ? rc
               : add_scales(search, file, fd, st->data_offset, &found, err);
}

static void keep_near(struct search *search, const char *name)
{
    if (k3_nearer(search->wanted, name, &search->nearest))
        snprintf(search->near, sizeof search->near, "%s", name);
}

/* The name that may have been meant, among those of a part. */
static void look_near(struct search *search, const struct k3_st *st)
{
    for (uint32_t t = 0; t < st->tensor_count; t++)
        if (!k3_verify_is_pad(&st->tensors[t]))
            keep_near(search, st->tensors[t].name);
    for (uint32_t m = 0; m < st->meta_count; m++)
        if (!strncmp(st->meta[m].key, "k3.view.", 8))
            keep_near(search, st->meta[m].key + 8);
}

static int search_header(struct search *search, const char *file, int fd, const struct k3_st *st,
                         struct k3_err *err)
{
    const char *plan = k3_st_meta_find(st, "k3.plan");
    search->plan = plan ? plan : "";
    int rc = search_tensor(search, file, fd, st, err);
    if (!rc)
        rc = search_view(search, file, fd, st, err);
    if (!rc && !search->found_count)
        look_near(search, st);
    return rc;
}

static int search_file(struct search *search, const struct k3_dir *dir, const char *name,
                       struct k3_err *err)
{
    struct k3_st *st = NULL;
    struct stat stat;
    int fd = -1;
    int rc = k3_file_open(dir, name, true, &fd, &stat, err);
    if (!rc)
        rc = k3_verify_header(name, fd, (uint64_t)stat.st_size, &st, err);
    if (!rc)
        rc = search_header(search, name, fd, st, err);
    k3_st_free(st);
    if (fd >= 0)
        close(fd);
    return rc;
}

static int search_dir(struct search *search, const char *path, struct k3_err *err)
{
    struct k3_dir dir;
    char **names = NULL;
    uint32_t count = 0;
    int rc = k3_dir_open(path, false, &dir, err);
    if (rc)
        return rc;
    rc = k3_dir_list(&dir, &names, &count, err);
    for (uint32_t i = 0; i < count && !rc; i++)
        if (names[i][0] != '.' && k3_name_ends(names[i], ".safetensors"))
            rc = search_file(search, &dir, names[i], err);
    k3_names_free(names, count);
    k3_dir_close(&dir);
    return rc;
}

/* One directory or file, and what its set says of how the tensor was cast. */
static int search_path(struct search *search, const char *path, bool is_dir, struct k3_doc *root,
                       struct k3_err *err)
{
    struct k3_dir dir = {.fd = -1};
    const char *last;
    int rc;
    if (is_dir) {
        rc = search_dir(search, path, err);
        return rc || !search->found_count ? rc : k3_inspect_cast(path, &search->first, root, err);
    }
    rc = k3_verify_open_parent(path, &dir, &last, err);
    if (!rc)
        rc = search_file(search, &dir, last, err);
    if (!rc && search->found_count)
        rc = k3_inspect_cast(dir.path, &search->first, root, err);
    k3_dir_close(&dir);
    return rc;
}

/* A cast to or from a packed format gives a matrix another name: the source, reports and engines
 * know it by either.  False for other names. */
static bool name_renamed(const char *name, char *renamed, size_t bytes)
{
    const char *dot = strrchr(name, '.');
    const bool is_packed = dot && !strcmp(dot, ".weight_packed");
    if (!dot || (!is_packed && strcmp(dot, ".weight") != 0))
        return false;
    int n = snprintf(renamed, bytes, "%.*s.weight%s", (int)(dot - name), name,
                     is_packed ? "" : "_packed");
    return n > 0 && (size_t)n < bytes;
}

static int fail_unknown(const struct search *search, const char *path, const char *name,
                        bool is_dir, struct k3_err *err)
{
    if (search->near[0])
        return k3_fail(err, K3_EUSAGE, "%s: no tensor or view is named %s; did you mean '%s'?",
                       path, name, search->near);
    return k3_fail(err, K3_EUSAGE,
                   "%s: no tensor or view is named %s; `k3-shard inspect %s%s` lists those of %s",
                   path, name, k3_quoted(path).s, is_dir ? "/FILE.safetensors" : "",
                   is_dir ? "a file" : "this file");
}

/* Files that stand beside the tensors of a set and hold none: their directory is meant. */
static int check_file(const char *path, const char *name, struct k3_err *err)
{
    const char *slash = strrchr(path, '/'), *what = NULL;
    const char *last = slash ? slash + 1 : path;
    uint32_t rank;
    if (!strcmp(last, K3_CAST_REPORT_NAME))
        what = "the report of a set's casts";
    else if (!strcmp(last, K3_MANIFEST_NAME))
        what = "the manifest of a set";
    else if (!strcmp(last, K3_HEADERS_NAME))
        what = "the headers of a checkpoint, kept in its set";
    else if (k3_units_name_decode(last, &rank))
        what = "the unit digests of a rank";
    if (!what)
        return 0;
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!folder)
        return k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
    int rc = k3_fail(err, K3_EUSAGE,
                     "%s: %s, no tensors are in it: `k3-shard inspect %s --tensor %s` says what "
                     "became of one",
                     path, what, k3_quoted(folder).s, k3_quoted(name).s);
    free(folder);
    return rc;
}

int k3_inspect_tensor(const char *path, const char *name, bool stats, struct k3_doc *root,
                      struct k3_err *err)
{
    struct search search = {.wanted = name, .stats = stats, .nearest = K3_NEAREST_NONE};
    char renamed[K3_ST_NAME_BYTES_MAX + 16];
    struct stat stat_;
    int rc = 0;
    if (stat(path, &stat_))
        return k3_fail_path(err, errno, path, "be found");
    if (!S_ISDIR(stat_.st_mode) && (rc = check_file(path, name, err)) != 0)
        return rc;
    if (!k3_doc_add_string(root, "tensor", name))
        return k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
    search.places = k3_doc_add_array(root, "places");
    if (!search.places)
        return k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
    rc = search_path(&search, path, S_ISDIR(stat_.st_mode), root, err);
    if (!rc && !search.found_count && name_renamed(name, renamed, sizeof renamed)) {
        search.wanted = renamed;
        rc = search_path(&search, path, S_ISDIR(stat_.st_mode), root, err);
        if (!rc && search.found_count && !k3_doc_add_string(root, "stored_as", renamed))
            rc = k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
    }
    if (!rc && !search.found_count)
        rc = fail_unknown(&search, path, name, S_ISDIR(stat_.st_mode), err);
    if (!rc && stats && !k3_hists_show(&search.hists, root))
        rc = k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
    k3_hists_close(&search.hists);
    return rc;
}
