/* Purpose: histograms of all that a safetensors file, or those of a directory, hold.
 * Owns: nothing between calls.
 * Threads: the caller's; one for the progress.
 * Errors: K3_EUSAGE for a file without tensors, K3_EIO, K3_ENOMEM, K3_ECANCELED, those of the
 * decoders.
 * Invariants: one buffer and one table for each kind of numbers, whatever is read; a tensor counts
 * as often as it lies there; pads do not. */
#include "inspect.h"

#include "ckpt.h"
#include "progress.h"
#include "verify.h"

#include <string.h>
#include <unistd.h>

struct whole {
    struct k3_hists hists;
    struct k3_progress progress;
};

static int add_tensor(struct whole *whole, const char *name, int fd, const struct k3_st *st,
                      const struct k3_st_tensor *tensor, struct k3_err *err)
{
    const enum k3_hist_kind kind = k3_hist_kind_of(tensor->name, false, tensor->dtype);
    const struct k3_stats_range range = {.name = name,
                                         .offset = st->data_offset + tensor->begin_offset,
                                         .bytes = tensor->end_offset - tensor->begin_offset,
                                         .fd = fd,
                                         .dtype = tensor->dtype};
    struct k3_hist *hist = NULL;
    if (kind == K3_HIST_NONE || !strncmp(tensor->name, "k3.pad.", 7))
        return 0;
    int rc = k3_hists_open(&whole->hists, kind, tensor->dtype, &hist, err);
    return rc ? rc : k3_inspect_hist(&range, hist, &whole->progress, err);
}

static int add_file(struct whole *whole, const struct k3_dir *dir, const char *name,
                    struct k3_err *err)
{
    struct k3_st *st = NULL;
    struct stat stat;
    int fd = -1;
    int rc = k3_file_open(dir, name, true, &fd, &stat, err);
    if (!rc)
        rc = k3_verify_header(name, fd, (uint64_t)stat.st_size, &st, err);
    for (uint32_t t = 0; !rc && t < st->tensor_count; t++)
        rc = add_tensor(whole, name, fd, st, &st->tensors[t], err);
    k3_st_free(st);
    if (fd >= 0)
        close(fd);
    return rc;
}

static bool is_wanted(const char *name)
{
    return name[0] != '.' && k3_name_ends(name, ".safetensors");
}

static int add_dir(struct whole *whole, const char *path, bool quiet, struct k3_err *err)
{
    struct k3_dir dir;
    struct stat stat;
    char **names = NULL;
    uint32_t count = 0;
    uint64_t bytes = 0;
    int rc = k3_dir_open(path, false, &dir, err);
    if (rc)
        return rc;
    rc = k3_dir_list(&dir, &names, &count, err);
    for (uint32_t i = 0; i < count; i++)
        if (is_wanted(names[i]) && !fstatat(dir.fd, names[i], &stat, 0))
            bytes += (uint64_t)stat.st_size;
    k3_progress_begin(&whole->progress, "inspect", bytes, quiet);
    for (uint32_t i = 0; i < count && !rc; i++)
        if (is_wanted(names[i]))
            rc = add_file(whole, &dir, names[i], err);
    k3_progress_end(&whole->progress);
    k3_names_free(names, count);
    k3_dir_close(&dir);
    return rc;
}

static int add_path(struct whole *whole, const char *path, bool quiet, struct k3_err *err)
{
    struct k3_dir dir = {.fd = -1};
    struct stat stat;
    const char *name;
    int rc = k3_verify_open_parent(path, &dir, &name, err);
    if (!rc) {
        uint64_t bytes = fstatat(dir.fd, name, &stat, 0) ? 0 : (uint64_t)stat.st_size;
        k3_progress_begin(&whole->progress, "inspect", bytes, quiet);
        rc = add_file(whole, &dir, name, err);
        k3_progress_end(&whole->progress);
    }
    k3_dir_close(&dir);
    return rc;
}

int k3_inspect_histograms(const char *path, bool quiet, struct k3_doc *root, struct k3_err *err)
{
    struct whole whole;
    struct stat path_stat;
    memset(&whole, 0, sizeof whole);
    bool is_dir = !stat(path, &path_stat) && S_ISDIR(path_stat.st_mode);
    if (!is_dir && !k3_doc_find(root, "tensor_list")) /* what was shown of it before */
        return k3_fail(err, K3_EUSAGE,
                       "%s: --stats is of tensors: give a safetensors file or a directory of them",
                       path);
    int rc = is_dir ? add_dir(&whole, path, quiet, err) : add_path(&whole, path, quiet, err);
    if (!rc && !k3_hists_show(&whole.hists, root))
        rc = k3_fail(err, K3_ENOMEM, "no memory for what is to be shown");
    k3_hists_close(&whole.hists);
    return rc;
}
