/* Purpose: open a shard set: directories, manifest, plan, units files; find its parts.
 * Owns: the open directories and the decoded manifest, until k3_set_close.
 * Threads: an open set is constant; any thread may use it while nobody closes it.
 * Errors: K3_EIO for a path that is not there; K3_ECORRUPT for a set that is not whole or not what
 * its manifest says; those of the decoders.
 * Invariants: nothing of a file is believed before its digest was found right (the manifest: its
 * own digest); the ranks and parts of an open set are of its layout, each rank whole, its images
 * have the sizes that the rules give. */
#include "set.h"
#include "doc.h"
#include "plan.h"
#include "source_headers.h"
#include "text.h"
#include "tree.h"
#include "units.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACE_NONE UINT32_MAX

/* ---- directories ---- */

static int open_dirs(struct k3_set *set, const char *const *paths, uint32_t count,
                     struct k3_err *err)
{
    struct stat stat[K3_SET_DIR_COUNT_MAX];
    if (count == 0 || count > K3_SET_DIR_COUNT_MAX)
        return k3_fail(err, K3_EUSAGE, "%u directories: a set lies in 1..%u", count,
                       K3_SET_DIR_COUNT_MAX);
    set->dirs = calloc(count, sizeof *set->dirs);
    set->dir_of_place = calloc(count, sizeof *set->dir_of_place);
    if (!set->dirs || !set->dir_of_place)
        return k3_fail(err, K3_ENOMEM, "no memory for %u directories", count);
    for (uint32_t i = 0; i < count; i++) {
        int rc = k3_dir_open(paths[i], false, &set->dirs[i], err);
        if (rc)
            return rc;
        set->dir_count = i + 1;
        if (fstat(set->dirs[i].fd, &stat[i]))
            return k3_fail_sys(err, errno, "%s: cannot stat the directory", paths[i]);
        for (uint32_t j = 0; j < i; j++)
            if (stat[j].st_dev == stat[i].st_dev && stat[j].st_ino == stat[i].st_ino)
                return k3_fail(err, K3_EUSAGE, "%s and %s are the same directory: give it once",
                               paths[j], paths[i]);
    }
    return 0;
}

bool k3_dir_is_checkpoint(const struct k3_dir *dir)
{
    return k3_file_exists(dir, K3_INDEX_NAME);
}

static int fail_no_manifest(const struct k3_set *set, struct k3_err *err)
{
    for (uint32_t i = 0; i < set->dir_count; i++)
        if (k3_file_exists(&set->dirs[i], K3_PARTIAL_NAME))
            return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                              "%s: no %s: its conversion is unfinished (%s is there): run the same "
                              "convert command again, or seal where all of its workers are done",
                              set->dirs[i].path, K3_MANIFEST_NAME, K3_PARTIAL_NAME);
    for (uint32_t i = 0; i < set->dir_count; i++)
        if (k3_dir_is_checkpoint(&set->dirs[i]))
            return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                              "%s: no %s: a checkpoint, not a shard set: cut it with `k3-shard "
                              "convert %s --out DIR`, then give DIR",
                              set->dirs[i].path, K3_MANIFEST_NAME, k3_quoted(set->dirs[i].path).s);
    for (uint32_t i = 0; i < set->dir_count; i++)
        if (k3_file_exists(&set->dirs[i], K3_HEADERS_NAME))
            return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                              "%s: no %s, though other files of a shard set are there (%s): "
                              "restore it from a copy, or convert again with --force",
                              set->dirs[i].path, K3_MANIFEST_NAME, K3_HEADERS_NAME);
    return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                      "%s: no %s: not a shard set, or its first directory is missing: give all "
                      "directories it was written to",
                      set->dirs[0].path, K3_MANIFEST_NAME);
}

static int find_manifest(struct k3_set *set, struct k3_err *err)
{
    uint32_t found = PLACE_NONE;
    for (uint32_t i = 0; i < set->dir_count; i++) {
        if (!k3_file_exists(&set->dirs[i], K3_MANIFEST_NAME))
            continue;
        if (found != PLACE_NONE)
            return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                              "%s is in both %s and %s: these are two sets, give the directories "
                              "of one",
                              K3_MANIFEST_NAME, set->dirs[found].path, set->dirs[i].path);
        found = i;
    }
    if (found == PLACE_NONE)
        return fail_no_manifest(set, err);
    set->manifest_dir = found;
    for (uint32_t i = 0; i < set->dir_count; i++)
        if (i != found && k3_dir_is_checkpoint(&set->dirs[i]))
            return k3_fail(err, K3_EUSAGE,
                           "%s is a checkpoint, and %s holds a set: give directories of one set "
                           "alone (k3-shard verify %s --against %s compares the two)",
                           set->dirs[i].path, set->dirs[found].path,
                           k3_quoted(set->dirs[found].path).s, k3_quoted(set->dirs[i].path).s);
    return 0;
}

static int read_manifest(struct k3_set *set, struct k3_err *err)
{
    char path[K3_ERR_TEXT_BYTES / 2];
    char *text = NULL;
    size_t bytes;
    const struct k3_dir *dir = &set->dirs[set->manifest_dir];
    snprintf(path, sizeof path, "%s/%s", dir->path, K3_MANIFEST_NAME);
    int rc = k3_file_load(dir, K3_MANIFEST_NAME, K3_MANIFEST_BYTES_MAX, &text, &bytes, err);
    if (!rc)
        rc = k3_manifest_decode(path, text, bytes, &set->manifest, err);
    free(text);
    return rc;
}

/* ---- the plan in the manifest ---- */

/* Its sources are files of the plan, both sorted by name; a set of all ranks has all of them. */
static int check_sources(const struct k3_set *set, struct k3_err *err)
{
    const struct k3_manifest *manifest = &set->manifest;
    bool same = k3_set_is_partial(set) || manifest->source_count == set->plan->source_count;
    for (uint32_t i = 0, f = 0; same && i < manifest->source_count; i++, f++) {
        while (f < set->plan->source_count &&
               strcmp(set->plan->sources[f].name, manifest->sources[i].name) < 0)
            f++;
        same = f < set->plan->source_count &&
               !strcmp(set->plan->sources[f].name, manifest->sources[i].name) &&
               set->plan->sources[f].bytes == manifest->sources[i].bytes;
    }
    if (!same)
        return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                          "%s: its sources are not the files of its plan", K3_MANIFEST_NAME);
    return 0;
}

static int decode_plan(struct k3_set *set, struct k3_err *err)
{
    const struct k3_manifest *manifest = &set->manifest;
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = k3_plan_decode(manifest->plan_text, manifest->plan_bytes, &set->plan, &inner);
    if (rc)
        return k3_fail_at(err, rc, K3_MANIFEST_NAME, -1, "%s: %s", K3_MANIFEST_NAME, inner.text);
    set->config = set->plan->config;
    set->layout = set->plan->layout;
    for (uint32_t i = 0; i < manifest->rank_count; i++) /* below the limit: decoded */
        k3_ranks_add(&set->ranks, manifest->ranks[i].rank);
    return check_sources(set, err);
}

/* Part numbers and image size of a rank are those that layout and rules give. */
static int check_rank(const struct k3_set *set, const struct k3_manifest_rank *rank,
                      struct k3_err *err)
{
    uint32_t world = k3_layout_world(&set->layout);
    if (rank->rank >= world)
        return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                          "%s: rank %u, but its layout has %u ranks", K3_MANIFEST_NAME, rank->rank,
                          world);
    struct k3_place place;
    struct k3_rank_sizes sizes;
    k3_layout_place(&set->layout, rank->rank, &place);
    k3_rank_sizes(&set->config, &set->layout, &set->plan->policy, rank->rank, &sizes);
    /* Part i + 1 is layer i; the first part goes with the first stage, the last with the last. */
    uint32_t begin = place.p == 0 ? 0 : place.layer_begin + 1;
    uint32_t end = place.layer_end + (place.p + 1 == set->layout.pp ? 2u : 1u);
    bool agrees = rank->part_count == sizes.part_count && rank->part_count == end - begin;
    uint64_t image_bytes = 0;
    for (uint32_t i = 0; agrees && i < rank->part_count; i++) {
        const struct k3_part_entry *part = &rank->parts[i];
        agrees = part->rank == rank->rank && part->part == begin + i &&
                 part->data_offset <= part->bytes;
        image_bytes += part->bytes - part->data_offset;
    }
    if (!agrees)
        return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                          "%s: the parts of rank %u (%u of them) are not those of its layout "
                          "(parts %u to %u)",
                          K3_MANIFEST_NAME, rank->rank, rank->part_count, begin, end - 1);
    if (image_bytes != sizes.image_bytes || rank->image_bytes != sizes.image_bytes)
        return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                          "%s: image of rank %u has %llu bytes, its parts have %llu, the rules "
                          "give %llu",
                          K3_MANIFEST_NAME, rank->rank, (unsigned long long)rank->image_bytes,
                          (unsigned long long)image_bytes, (unsigned long long)sizes.image_bytes);
    return 0;
}

/* ---- which directory holds which parts ---- */

static const struct k3_part_entry *find_part(const struct k3_set *set, uint32_t rank, uint32_t part)
{
    const struct k3_manifest_rank *row = k3_set_rank(set, rank);
    if (!row || row->part_count == 0 || part < row->parts[0].part ||
        part - row->parts[0].part >= row->part_count)
        return NULL;
    return &row->parts[part - row->parts[0].part];
}

/* The one (P + R) mod count that the listed parts in a directory share, or PLACE_NONE. */
static int place_of_dir(const struct k3_set *set, uint32_t index, uint32_t *place,
                        struct k3_err *err)
{
    const struct k3_dir *dir = &set->dirs[index];
    const char *first = NULL;
    char **names;
    uint32_t count;
    *place = PLACE_NONE;
    int rc = k3_dir_list(dir, &names, &count, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; !rc && i < count; i++) {
        uint32_t rank, part;
        /* Files the manifest does not list are the business of k3_set_check_names. */
        if (!k3_part_name_decode(names[i], &rank, &part) || !find_part(set, rank, part))
            continue;
        uint32_t own = (uint32_t)(((uint64_t)part + rank) % set->dir_count);
        if (!first) {
            first = names[i];
            *place = own;
        } else if (own != *place) {
            rc = k3_fail_at(err, K3_ECORRUPT, names[i], -1,
                            "%s: %s and %s cannot lie in one directory of a set of %u: a part is "
                            "misplaced, or not all directories of the set were given",
                            dir->path, first, names[i], set->dir_count);
        }
    }
    k3_names_free(names, count);
    return rc;
}

static int assign_place(struct k3_set *set, uint32_t place, uint32_t dir, struct k3_err *err)
{
    uint32_t *holder = &set->dir_of_place[place];
    if (*holder != PLACE_NONE)
        return k3_fail(err, K3_ECORRUPT,
                       "%s and %s hold parts that belong into one directory of a set of %u: a part "
                       "is in two places, or a directory is of another set",
                       set->dirs[*holder].path, set->dirs[dir].path, set->dir_count);
    *holder = dir;
    return 0;
}

static int place_dirs(struct k3_set *set, struct k3_err *err)
{
    uint32_t place[K3_SET_DIR_COUNT_MAX] = {0};
    /* A set in one directory needs no look at it: its parts are found by name. */
    if (set->dir_count == 1) {
        set->dir_of_place[0] = 0;
        return 0;
    }
    for (uint32_t i = 0; i < set->dir_count; i++)
        set->dir_of_place[i] = PLACE_NONE;
    for (uint32_t i = 0; i < set->dir_count; i++) {
        int rc = place_of_dir(set, i, &place[i], err);
        if (rc)
            return rc;
        if (i == set->manifest_dir && place[i] == PLACE_NONE)
            place[i] = 0;
        if (place[i] != PLACE_NONE)
            rc = assign_place(set, place[i], i, err);
        if (rc)
            return rc;
    }
    if (place[set->manifest_dir] != 0)
        return k3_fail_at(err, K3_ECORRUPT, K3_MANIFEST_NAME, -1,
                          "%s: %s lies beside parts of another directory of the set",
                          set->dirs[set->manifest_dir].path, K3_MANIFEST_NAME);
    /* A directory without parts takes a place that is left: parts missing there are named later. */
    for (uint32_t i = 0, at = 0; i < set->dir_count; i++) {
        if (place[i] != PLACE_NONE)
            continue;
        while (set->dir_of_place[at] != PLACE_NONE)
            at++;
        set->dir_of_place[at] = i;
    }
    return 0;
}

/* ---- open and look up ---- */

int k3_set_open(const char *const *paths, uint32_t path_count, struct k3_set **out,
                struct k3_err *err)
{
    *out = NULL;
    struct k3_set *set = calloc(1, sizeof *set);
    if (!set)
        return k3_fail(err, K3_ENOMEM, "no memory for a shard set");
    int rc = open_dirs(set, paths, path_count, err);
    if (!rc)
        rc = find_manifest(set, err);
    if (!rc)
        rc = read_manifest(set, err);
    if (!rc)
        rc = decode_plan(set, err);
    for (uint32_t i = 0; !rc && i < set->manifest.rank_count; i++)
        rc = check_rank(set, &set->manifest.ranks[i], err);
    if (!rc)
        rc = place_dirs(set, err);
    if (rc && set->dir_count)
        k3_fail_in(&set->dirs[set->manifest_dir], rc, err);
    if (rc)
        k3_set_close(set);
    else
        *out = set;
    return rc;
}

void k3_set_close(struct k3_set *set)
{
    if (!set)
        return;
    k3_manifest_fini(&set->manifest);
    k3_plan_close(set->plan);
    for (uint32_t i = 0; i < set->dir_count; i++)
        k3_dir_close(&set->dirs[i]);
    free(set->dirs);
    free(set->dir_of_place);
    free(set);
}

const struct k3_manifest_rank *k3_set_rank(const struct k3_set *set, uint32_t rank)
{
    uint32_t low = 0;
    uint32_t high = set->manifest.rank_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (set->manifest.ranks[mid].rank == rank)
            return &set->manifest.ranks[mid];
        if (set->manifest.ranks[mid].rank < rank)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

bool k3_set_is_partial(const struct k3_set *set)
{
    return set->manifest.rank_count < k3_layout_world(&set->layout);
}

int k3_set_fail_rank(const struct k3_set *set, uint32_t rank, struct k3_err *err)
{
    char shown[K3_RANKS_SHOWN_BYTES];
    if (!k3_set_is_partial(set))
        return k3_fail(err, K3_EUNSUPPORTED,
                       "rank %u is not in this set: it has %u rank%s, 0 to %u", rank,
                       set->manifest.rank_count, set->manifest.rank_count == 1 ? "" : "s",
                       set->manifest.rank_count - 1);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "rank %u is not in this set: it holds rank%s %s of a layout of %u", rank,
                   set->ranks.count == 1 ? "" : "s", k3_ranks_shown(&set->ranks, shown),
                   k3_layout_world(&set->layout));
}

const struct k3_file_entry *k3_set_source(const struct k3_set *set, const char *name)
{
    const struct k3_manifest *manifest = &set->manifest;
    for (uint32_t i = 0; i < manifest->source_count; i++)
        if (!strcmp(manifest->sources[i].name, name))
            return &manifest->sources[i];
    return NULL;
}

const struct k3_dir *k3_set_part_dir(const struct k3_set *set, uint32_t rank, uint32_t part)
{
    uint32_t place = (uint32_t)(((uint64_t)part + rank) % set->dir_count);
    return &set->dirs[set->dir_of_place[place]];
}

/* Open a file that the manifest lists with a size. */
static int open_listed(const struct k3_dir *dir, const char *name, uint64_t bytes, int *fd,
                       struct k3_err *err)
{
    struct stat stat;
    *fd = -1;
    if (!k3_file_exists(dir, name))
        return k3_fail_at(err, K3_ECORRUPT, name, -1,
                          "%s/%s: missing, though the manifest lists it: give all directories of "
                          "the set (is each drive mounted?), or restore the file",
                          dir->path, name);
    int rc = k3_file_open(dir, name, false, fd, &stat, err);
    if (rc)
        return rc;
    if ((uint64_t)stat.st_size != bytes) {
        close(*fd);
        *fd = -1;
        return k3_fail_at(
            err, K3_ECORRUPT, name, -1,
            "%s/%s: %llu bytes, the manifest says %llu: restore the file, or convert again",
            dir->path, name, (unsigned long long)stat.st_size, (unsigned long long)bytes);
    }
    return 0;
}

int k3_set_part_open(const struct k3_set *set, const struct k3_part_entry *part, int *fd,
                     struct k3_err *err)
{
    char name[K3_NAME_BYTES_MAX + 1];
    k3_part_name(part->rank, part->part, name);
    return open_listed(k3_set_part_dir(set, part->rank, part->part), name, part->bytes, fd, err);
}

/* ---- units files ---- */

/* The file as a whole is the one that the manifest names. */
static int check_units_file(const struct k3_manifest_rank *rank, struct k3_sha256 *sha,
                            const uint8_t *data, struct k3_err *err)
{
    uint8_t digest[K3_DIGEST_BYTES];
    k3_sha256_of(sha, data, (size_t)rank->units.bytes, digest);
    if (memcmp(digest, rank->units.sha256, sizeof digest) == 0)
        return 0;
    char wanted[K3_HEX_BYTES], found[K3_HEX_BYTES];
    k3_hex_encode(rank->units.sha256, K3_DIGEST_BYTES, wanted);
    k3_hex_encode(digest, K3_DIGEST_BYTES, found);
    return k3_fail_at(err, K3_ECORRUPT, rank->units.name, -1,
                      "%s: SHA-256 is %s, the manifest says %s: restore the file, or convert again",
                      rank->units.name, found, wanted);
}

/* Its header is that of this rank and plan, and its digests give the tree digest of every part. */
static int check_units(const struct k3_set *set, const struct k3_manifest_rank *rank,
                       struct k3_sha256 *sha, const uint8_t *data, struct k3_err *err)
{
    struct k3_units units;
    const char *name = rank->units.name;
    int rc = k3_units_decode(name, data, sizeof(struct k3_disk_units), rank->units.bytes, &units,
                             err);
    if (rc)
        return rc;
    uint64_t count = 0;
    for (uint32_t i = 0; i < rank->part_count; i++)
        count += rank->parts[i].bytes / K3_UNIT_BYTES;
    if (memcmp(units.plan_digest, set->manifest.plan_digest, K3_DIGEST_BYTES) != 0) {
        char wanted[K3_HEX_BYTES], found[K3_HEX_BYTES];
        k3_hex_encode(set->manifest.plan_digest, K3_DIGEST_BYTES, wanted);
        k3_hex_encode(units.plan_digest, K3_DIGEST_BYTES, found);
        return k3_fail_at(err, K3_ECORRUPT, name, 0,
                          "%s: is of plan %s, the manifest is of plan %s: restore the file, or "
                          "convert again",
                          name, found, wanted);
    }
    if (units.rank != rank->rank || units.part_count != rank->part_count ||
        units.digest_count != count)
        return k3_fail_at(err, K3_ECORRUPT, name, 0,
                          "%s: its header (rank %u, %u parts, %llu digests) is not that of rank %u "
                          "(%u parts, %llu digests)",
                          name, units.rank, units.part_count,
                          (unsigned long long)units.digest_count, rank->rank, rank->part_count,
                          (unsigned long long)count);
    const uint8_t *digests = data + sizeof(struct k3_disk_units);
    for (uint32_t i = 0; i < rank->part_count; i++) {
        const struct k3_part_entry *part = &rank->parts[i];
        uint64_t part_units = part->bytes / K3_UNIT_BYTES;
        uint8_t tree[K3_DIGEST_BYTES];
        k3_tree_of_units(sha, digests, part_units, part->bytes, tree);
        if (memcmp(tree, part->tree, sizeof tree) != 0)
            return k3_fail_at(err, K3_ECORRUPT, name, (int64_t)(digests - data),
                              "%s: the digests of part %u do not give its tree digest", name,
                              part->part);
        digests += part_units * K3_DIGEST_BYTES;
    }
    return 0;
}

int k3_set_units(const struct k3_set *set, const struct k3_manifest_rank *rank, uint8_t **digests,
                 uint64_t *count, struct k3_err *err)
{
    const struct k3_file_entry *file = &rank->units;
    const size_t header_bytes = sizeof(struct k3_disk_units);
    struct k3_sha256 *sha = NULL;
    uint8_t *data = NULL;
    int fd;
    *digests = NULL;
    *count = 0;
    int rc = open_listed(&set->dirs[set->manifest_dir], file->name, file->bytes, &fd, err);
    if (rc)
        return rc;
    if (file->bytes <= header_bytes) {
        rc = k3_fail_at(err, K3_ECORRUPT, file->name, -1, "%s: %llu bytes hold no digest",
                        file->name, (unsigned long long)file->bytes);
        goto out;
    }
    data = malloc((size_t)file->bytes);
    if (!data) {
        rc = k3_fail(err, K3_ENOMEM, "%s: no memory for %llu bytes", file->name,
                     (unsigned long long)file->bytes);
        goto out;
    }
    rc = k3_sha256_open(&sha, err);
    if (!rc)
        rc = k3_file_read(fd, file->name, data, (size_t)file->bytes, 0, err);
    if (!rc)
        rc = check_units_file(rank, sha, data, err);
    if (!rc)
        rc = check_units(set, rank, sha, data, err);
    if (rc)
        goto out;
    *count = (file->bytes - header_bytes) / K3_DIGEST_BYTES;
    memmove(data, data + header_bytes, (size_t)file->bytes - header_bytes);
    *digests = data;
    data = NULL;
out:
    k3_sha256_close(sha);
    free(data);
    close(fd);
    return k3_fail_in(&set->dirs[set->manifest_dir], rc, err);
}
