/* Purpose: judge the parts of a set as files, and tell in words what is wrong with each.
 * Owns: the state of a part, until k3_part_check_fini.
 * Threads: open, header and stranger touch only their part; the report belongs to one thread.
 * Errors: K3_EIO, K3_ENOMEM; what is wrong with a part is a finding.
 * Invariant: every part with a unit that is not right has at least one sentence that names it. */
#include "verify_parts.h"

#include "sizes.h"
#include "tree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNITS_TOLD_MAX    16u /* sentences about single units of one part; the rest is counted */
#define NAMES_TOLD_MAX    4u  /* tensors named in one sentence */
#define PLAN_SHOWN_DIGITS 12  /* enough to tell two plans apart by eye */

void k3_part_check_fini(struct k3_part_check *part)
{
    free(part->found);
    free(part->state);
    free(part->pads);
    free(part->numbers);
    free(part->scales);
    free(part->has_bad_scale);
    k3_problems_fini(&part->problems);
}

/* ---- one part ---- */

int k3_part_check_open(struct k3_set_check *check, struct k3_part_check *part, int *fd,
                       struct k3_err *err)
{
    struct k3_err inner;
    struct stat stat;
    (void)check;
    *fd = -1;
    k3_err_init(&inner);
    if (!k3_file_exists(part->dir, part->name)) {
        part->is_missing = true;
        return 0;
    }
    int rc = k3_file_open(part->dir, part->name, false, fd, &stat, &inner);
    if (rc)
        return k3_verify_judge(&part->problems, rc, &inner, err);
    uint64_t bytes = (uint64_t)stat.st_size;
    part->present_count = bytes / K3_UNIT_BYTES;
    if (part->present_count > part->unit_count)
        part->present_count = part->unit_count;
    if (bytes < part->entry->bytes)
        k3_problems_add(&part->problems,
                        "%s/%s: truncated or another file: %llu bytes, the manifest records %llu",
                        part->dir->path, part->name, (unsigned long long)bytes,
                        (unsigned long long)part->entry->bytes);
    else if (bytes > part->entry->bytes)
        k3_problems_add(&part->problems,
                        "%s/%s: too long or another file: %llu bytes, the manifest records %llu",
                        part->dir->path, part->name, (unsigned long long)bytes,
                        (unsigned long long)part->entry->bytes);
    return 0;
}

int k3_part_check_header(const struct k3_set_check *check, struct k3_part_check *part, int fd,
                         struct k3_err *err)
{
    struct k3_part_header header;
    int rc = k3_set_part_header(check->set, part->entry, fd, part->wanted, &header, err);
    if (rc)
        return rc;
    const struct k3_st *st = header.st;
    part->pads = calloc((size_t)st->tensor_count + 1, sizeof *part->pads);
    if (!part->pads)
        rc = k3_fail(err, K3_ENOMEM, "no memory for the pads of %s", part->name);
    for (uint32_t t = 0; t < st->tensor_count && !rc; t++) {
        const struct k3_st_tensor *tensor = &st->tensors[t];
        if (!k3_verify_is_pad(tensor))
            continue;
        part->pads[part->pad_count].begin_offset = st->data_offset + tensor->begin_offset;
        part->pads[part->pad_count++].end_offset = st->data_offset + tensor->end_offset;
    }
    /* There are few pads beside thousands of tensors: give the rest back. */
    struct k3_file_range *smaller = rc ? NULL
                                       : realloc(part->pads,
                                                 (part->pad_count + 1) * sizeof *part->pads);
    if (smaller)
        part->pads = smaller;
    k3_part_header_fini(&header);
    return rc;
}

int k3_part_check_numbers(const struct k3_set_check *check, struct k3_part_check *part,
                          struct k3_err *err)
{
    struct k3_part layout;
    uint64_t begin, end;
    if (k3_policy_is_verbatim(&check->set->plan->policy))
        return 0;
    int rc = k3_part_build(check->set->plan, part->entry->rank, part->entry->part, &layout, err);
    if (!rc && k3_cast_numbers_range(&layout, &begin, &end)) {
        part->numbers = calloc((size_t)(end - begin), 1);
        if (!part->numbers)
            rc = k3_fail(err, K3_ENOMEM, "no memory for the numbers of %s", part->name);
        else
            part->numbers_at = (struct k3_file_range){part->entry->data_offset + begin,
                                                      part->entry->data_offset + end};
    }
    if (!rc)
        rc = k3_cast_scales_find(check->set->plan, &layout, &part->scales, &part->scale_range_count,
                                 err);
    if (!rc && part->scales) {
        part->has_bad_scale = calloc((size_t)part->unit_count, 1);
        if (!part->has_bad_scale)
            rc = k3_fail(err, K3_ENOMEM, "no memory for the scales of %s", part->name);
    }
    k3_part_fini(&layout);
    return rc;
}

/* What a part says of itself; false where it is no part at all. */
struct identity {
    const char *plan;
    uint32_t rank, part;
};

static bool read_identity(const struct k3_st *st, struct identity *identity)
{
    char name[K3_NAME_BYTES_MAX + 1];
    const char *rank = k3_st_meta_find(st, "k3.rank"), *part = k3_st_meta_find(st, "k3.part");
    identity->plan = k3_st_meta_find(st, "k3.plan");
    if (!identity->plan || !rank || !part)
        return false;
    /* The strict reader of names is the reader of these two numbers as well. */
    int n = snprintf(name, sizeof name, "model-rank-%s-part-%s.safetensors", rank, part);
    return n > 0 && (size_t)n < sizeof name &&
           k3_part_name_decode(name, &identity->rank, &identity->part);
}

int k3_part_check_stranger(const struct k3_set_check *check, struct k3_part_check *part, int fd,
                           struct k3_err *err)
{
    struct k3_err inner;
    struct identity identity;
    struct k3_st *st = NULL;
    struct stat stat;
    char plan[K3_HEX_BYTES];
    k3_err_init(&inner);
    if (fstat(fd, &stat))
        return k3_fail_sys(err, errno, "%s: cannot stat", part->name);
    int rc = k3_verify_header(part->name, fd, (uint64_t)stat.st_size, &st, &inner);
    if (rc == K3_ENOMEM)
        return k3_fail(err, rc, "%s", inner.text);
    if (rc)
        return 0; /* its header unit is listed as wrong; there is no more to learn from it */
    k3_hex_encode(check->set->manifest.plan_digest, K3_DIGEST_BYTES, plan);
    if (!read_identity(st, &identity))
        k3_problems_add(&part->problems, "%s/%s: a safetensors file that is no part of a shard set",
                        part->dir->path, part->name);
    else if (strcmp(identity.plan, plan))
        k3_problems_add(&part->problems,
                        "%s/%s: stale: its header says plan %.*s, this set has plan %.*s: a part "
                        "of another conversion",
                        part->dir->path, part->name, PLAN_SHOWN_DIGITS, identity.plan,
                        PLAN_SHOWN_DIGITS, plan);
    else if (identity.rank != part->entry->rank || identity.part != part->entry->part)
        k3_problems_add(&part->problems,
                        "%s/%s: swapped or renamed: its header says part %u of rank %u, the name "
                        "says part %u of rank %u",
                        part->dir->path, part->name, identity.part, identity.rank,
                        part->entry->part, part->entry->rank);
    k3_st_free(st);
    return 0;
}

/* ---- missing parts ---- */

static struct k3_part_check *find_missing(struct k3_set_check *check,
                                          const struct identity *identity)
{
    for (uint32_t p = 0; p < check->part_count; p++)
        if (check->parts[p].is_missing && check->parts[p].entry->rank == identity->rank &&
            check->parts[p].entry->part == identity->part)
            return &check->parts[p];
    return NULL;
}

/* A file that is not where the manifest wants it may be a missing part under another name. */
static int try_candidate(struct k3_set_check *check, const struct k3_dir *dir, const char *name,
                         struct k3_err *err)
{
    struct k3_err inner;
    struct identity identity;
    struct k3_st *st = NULL;
    struct stat stat;
    char plan[K3_HEX_BYTES];
    int fd = -1;
    k3_err_init(&inner);
    int rc = k3_file_open(dir, name, false, &fd, &stat, &inner);
    if (!rc)
        rc = k3_verify_header(name, fd, (uint64_t)stat.st_size, &st, &inner);
    if (fd >= 0)
        close(fd);
    if (rc)
        return rc == K3_ENOMEM ? k3_fail(err, rc, "%s", inner.text) : 0;
    k3_hex_encode(check->set->manifest.plan_digest, K3_DIGEST_BYTES, plan);
    struct k3_part_check *part = NULL;
    if (read_identity(st, &identity) && !strcmp(identity.plan, plan))
        part = find_missing(check, &identity);
    if (part)
        k3_problems_add(&part->problems,
                        "%s/%s: renamed or misplaced: its header says part %u of rank %u: it "
                        "belongs to %s/%s",
                        dir->path, name, identity.part, identity.rank, part->dir->path, part->name);
    k3_st_free(st);
    return 0;
}

static int seek_missing(struct k3_set_check *check, struct k3_err *err)
{
    static const char suffix[] = ".safetensors";
    int rc = 0;
    for (uint32_t d = 0; d < check->set->dir_count && !rc; d++) {
        const struct k3_dir *dir = &check->set->dirs[d];
        char **names = NULL;
        uint32_t count = 0, rank, part;
        rc = k3_dir_list(dir, &names, &count, err);
        for (uint32_t i = 0; i < count && !rc; i++) {
            size_t n = strlen(names[i]);
            bool is_part = k3_part_name_decode(names[i], &rank, &part) &&
                           k3_set_rank(check->set, rank) &&
                           k3_set_part_dir(check->set, rank, part) == dir;
            if (!is_part && n >= sizeof suffix && !strcmp(names[i] + n + 1 - sizeof suffix, suffix))
                rc = try_candidate(check, dir, names[i], err);
        }
        k3_names_free(names, count);
    }
    return rc;
}

/* Name the missing parts of a rank, [begin, end) of the list; a rank without any part in one
 * sentence. */
static uint32_t tell_missing(struct k3_set_check *check, uint32_t begin, uint32_t end)
{
    uint32_t missing = 0;
    for (uint32_t p = begin; p < end; p++)
        missing += check->parts[p].is_missing;
    if (missing == end - begin && missing > 1) {
        k3_problems_add(&check->verify->problems,
                        "%s: none of the %u parts of rank %u is here (model-rank-%u-part-*): give "
                        "all directories of the set, or --ranks where this machine holds only some",
                        check->parts[begin].dir->path, missing, check->parts[begin].entry->rank,
                        check->parts[begin].entry->rank);
        return missing;
    }
    for (uint32_t p = begin; p < end; p++)
        if (check->parts[p].is_missing)
            k3_problems_add(&check->parts[p].problems,
                            "%s/%s: missing, though the manifest lists it",
                            check->parts[p].dir->path, check->parts[p].name);
    return missing;
}

/* ---- telling ---- */

static const char *state_phrase(uint8_t state)
{
    return state == K3_UNIT_UNREADABLE ? "cannot be read"
           : state == K3_UNIT_PAD_NOT_ZERO
               ? "is as recorded, but a pad in it is not zero (a fault of its writer)"
               : "is wrong";
}

/* "touches A, B and 3 more" */
static void put_names(const struct k3_bad_unit *bad, char *out, size_t bytes)
{
    size_t at = 0;
    out[0] = 0;
    for (uint32_t t = 0; t < bad->tensor_count && t < NAMES_TOLD_MAX && at < bytes; t++) {
        int n = snprintf(out + at, bytes - at, "%s%.120s", t ? ", " : ": touches ",
                         bad->tensors[t]);
        at += n > 0 ? (size_t)n : 0;
    }
    if (bad->tensor_count > NAMES_TOLD_MAX && at < bytes)
        snprintf(out + at, bytes - at, " and %u more", bad->tensor_count - NAMES_TOLD_MAX);
}

static int tell_unit(struct k3_set_check *check, struct k3_part_check *part, uint64_t unit,
                     const struct k3_st *st, struct k3_err *err)
{
    struct k3_verify *verify = check->verify;
    char names[NAMES_TOLD_MAX * 128];
    struct k3_bad_place place = {.file = part->name,
                                 .unit = unit,
                                 .bytes = K3_UNIT_BYTES,
                                 .data_offset = part->entry->data_offset,
                                 .st = st};
    uint32_t kept = verify->bad_kept;
    uint64_t offset = unit * K3_UNIT_BYTES;
    int rc = k3_verify_add_bad(verify, &place, err);
    if (rc)
        return rc;
    names[0] = 0;
    if (verify->bad_kept > kept)
        put_names(&verify->bad[kept], names, sizeof names);
    k3_problems_add(&part->problems, "%s/%s: unit %llu at offset %llu (%u bytes) %s%s",
                    part->dir->path, part->name, (unsigned long long)unit,
                    (unsigned long long)offset, K3_UNIT_BYTES, state_phrase(part->state[unit]),
                    names);
    return 0;
}

/* Names of a part with bad units: its header is read once more, as far as it can be. */
static int tell_units(struct k3_set_check *check, struct k3_part_check *part, uint64_t bad_count,
                      struct k3_err *err)
{
    struct k3_st *st = NULL;
    struct stat stat;
    int fd = -1;
    if (k3_file_open(part->dir, part->name, false, &fd, &stat, NULL) == 0) {
        (void)k3_verify_header(part->name, fd, (uint64_t)stat.st_size, &st, NULL);
        close(fd);
    }
    if (st && st->data_offset != part->entry->data_offset) {
        k3_st_free(st); /* the header of another file would give wrong names */
        st = NULL;
    }
    uint64_t told = 0;
    int rc = 0;
    for (uint64_t u = 0; u < part->present_count && !rc; u++) {
        if (part->state[u] == K3_UNIT_IS_RIGHT || part->state[u] == K3_UNIT_NOT_READ)
            continue;
        if (told++ < UNITS_TOLD_MAX) {
            rc = tell_unit(check, part, u, st, err);
            continue;
        }
        struct k3_bad_place place = {.file = part->name,
                                     .unit = u,
                                     .bytes = K3_UNIT_BYTES,
                                     .data_offset = part->entry->data_offset,
                                     .st = st};
        rc = k3_verify_add_bad(check->verify, &place, err);
    }
    if (bad_count > UNITS_TOLD_MAX)
        k3_problems_add(&part->problems, "%s/%s: %llu more units are wrong", part->dir->path,
                        part->name, (unsigned long long)(bad_count - UNITS_TOLD_MAX));
    k3_st_free(st);
    return rc;
}

/* Without unit digests only the whole can be judged, by the tree digest in the manifest. */
static int judge_whole(struct k3_part_check *part, struct k3_err *err)
{
    uint8_t tree[K3_DIGEST_BYTES];
    struct k3_sha256 *sha = NULL;
    for (uint64_t u = 0; u < part->unit_count; u++)
        if (part->state[u] != K3_UNIT_IS_RIGHT)
            return 0; /* not all units were read: said already, or --quick */
    int rc = k3_sha256_open(&sha, err);
    if (rc)
        return rc;
    k3_tree_of_units(sha, part->found, part->unit_count, part->entry->bytes, tree);
    k3_sha256_close(sha);
    if (memcmp(tree, part->entry->tree, sizeof tree))
        k3_problems_add(&part->problems,
                        "%s/%s: its tree digest is not the one the manifest records; the units "
                        "file is bad as well, so the unit cannot be named",
                        part->dir->path, part->name);
    return 0;
}

static bool is_as_recorded(const struct k3_part_check *part, uint64_t unit)
{
    return part->state[unit] == K3_UNIT_IS_RIGHT || part->state[unit] == K3_UNIT_PAD_NOT_ZERO;
}

/* The numbers beside casts, where the units that hold them are as recorded. */
static int tell_numbers(struct k3_set_check *check, struct k3_part_check *part, struct k3_err *err)
{
    char file[K3_ERR_TEXT_BYTES / 2];
    struct k3_part layout;
    const uint64_t end = k3_div_up(part->numbers_at.end_offset, K3_UNIT_BYTES);
    if (!part->numbers || end > part->present_count)
        return 0;
    for (uint64_t u = part->numbers_at.begin_offset / K3_UNIT_BYTES; u < end; u++)
        if (!is_as_recorded(part, u))
            return 0;
    snprintf(file, sizeof file, "%s/%s", part->dir->path, part->name);
    int rc = k3_part_build(check->set->plan, part->entry->rank, part->entry->part, &layout, err);
    if (!rc)
        k3_cast_numbers_judge(&check->numbers, &layout, part->numbers, file, &part->problems);
    k3_part_fini(&layout);
    return rc;
}

/* Scales of the units that are as recorded. */
static uint64_t count_scales(const struct k3_part_check *part)
{
    const uint64_t data_at = part->entry->data_offset;
    uint64_t count = 0;
    for (uint32_t r = 0; r < part->scale_range_count; r++) {
        const struct k3_scale_range *range = &part->scales[r];
        const unsigned one = k3_dtype_bits(range->dtype) / 8;
        for (uint64_t at = range->begin_offset, next; at < range->end_offset; at = next) {
            next = (at / K3_UNIT_BYTES + 1) * K3_UNIT_BYTES;
            next = next > range->end_offset ? range->end_offset : next;
            const uint64_t unit = (data_at + at) / K3_UNIT_BYTES;
            if (unit < part->present_count && is_as_recorded(part, unit))
                count += (next - at) / one;
        }
    }
    return count;
}

/* Name the scales of one unit that can be none: it is read once more. */
static void tell_unit_scales(const struct k3_set_check *check, struct k3_part_check *part,
                             const struct k3_part *layout, uint64_t unit)
{
    char file[K3_ERR_TEXT_BYTES / 2];
    const uint64_t before = part->problems.count;
    struct k3_scale_piece piece = {.data = check->workers[0].buffer,
                                   .offset = unit * K3_UNIT_BYTES - part->entry->data_offset,
                                   .bytes = K3_UNIT_BYTES};
    int fd = -1;
    snprintf(file, sizeof file, "%s/%s", part->dir->path, part->name);
    int rc = k3_file_open(part->dir, part->name, false, &fd, NULL, NULL);
    if (!rc)
        rc = k3_file_read(fd, part->name, check->workers[0].buffer, piece.bytes,
                          unit * K3_UNIT_BYTES, NULL);
    if (fd >= 0)
        close(fd);
    if (!rc)
        k3_cast_scales_judge(check->set->plan, layout, &piece, file, &part->problems);
    if (part->problems.count == before)
        k3_problems_add(&part->problems,
                        "%s: unit %llu held scales that can be none, and a second read does not "
                        "show them: verify again",
                        file, (unsigned long long)unit);
}

/* Scales that can be none, in units that are as recorded. */
static int tell_scales(struct k3_set_check *check, struct k3_part_check *part, struct k3_err *err)
{
    struct k3_part layout = {0};
    bool is_built = false;
    int rc = 0;
    check->scale_count += count_scales(part);
    for (uint64_t u = 0; part->has_bad_scale && u < part->present_count && !rc; u++) {
        if (!part->has_bad_scale[u])
            continue;
        if (!is_built)
            rc = k3_part_build(check->set->plan, part->entry->rank, part->entry->part, &layout,
                               err);
        is_built = true;
        if (!rc)
            tell_unit_scales(check, part, &layout, u);
    }
    k3_part_fini(&layout);
    return rc;
}

static int tell_part(struct k3_set_check *check, struct k3_part_check *part, struct k3_err *err)
{
    uint64_t bad = 0, bad_data = 0, read = 0;
    uint64_t header_units = part->entry->data_offset / K3_UNIT_BYTES;
    bool is_hurt = part->problems.count || part->is_missing; /* not as it was recorded */
    for (uint64_t u = 0; u < part->present_count; u++) {
        bool is_bad = part->state[u] > K3_UNIT_IS_RIGHT;
        is_hurt = is_hurt || (is_bad && part->state[u] != K3_UNIT_PAD_NOT_ZERO);
        read += part->state[u] != K3_UNIT_NOT_READ;
        bad += is_bad;
        bad_data += is_bad && u >= header_units;
    }
    if (is_hurt)
        k3_ranks_add(&check->verify->bad_ranks, part->entry->rank);
    check->verify->checked_units += read;
    check->verify->checked_bytes += read * K3_UNIT_BYTES;
    check->verify->checked_files += !part->is_missing;
    if (bad == bad_data && bad_data > 1 && bad_data == part->unit_count - header_units)
        k3_problems_add(&part->problems,
                        "%s/%s: stale: all its data are wrong though its header is right: the same "
                        "part of other weights",
                        part->dir->path, part->name);
    int rc = bad ? tell_units(check, part, bad, err) : 0;
    if (!rc && part->found)
        rc = judge_whole(part, err);
    if (!rc)
        rc = tell_numbers(check, part, err);
    if (!rc && !check->verify->quick)
        rc = tell_scales(check, part, err);
    for (uint32_t i = 0; i < part->problems.kept_count; i++)
        k3_problems_add(&check->verify->problems, "%s", part->problems.text[i]);
    check->verify->problems.count += part->problems.count - part->problems.kept_count;
    return rc;
}

/* "7 of 14", or "14" where that is all. */
static void put_share(struct k3_text *out, uint32_t count, uint32_t all)
{
    if (count == all)
        k3_text_putf(out, "%u", count);
    else
        k3_text_putf(out, "%u of %u", count, all);
}

/* What was looked at: each thing is counted where it was read, not where it should have been. */
static int say_checked(struct k3_set_check *check, uint64_t unit_count, struct k3_err *err)
{
    uint32_t ranks = 0, headers = 0;
    struct k3_text text;
    k3_text_init(&text);
    for (uint32_t r = 0; r < check->rank_count; r++)
        ranks += check->digests[r] != NULL;
    for (uint32_t p = 0; p < check->part_count; p++)
        headers += check->parts[p].is_header_judged;
    k3_text_puts(&text, "names and sizes, unit digests of ");
    put_share(&text, ranks, check->rank_count);
    k3_text_putf(&text, " rank%s, ", check->rank_count == 1 ? "" : "s");
    put_share(&text, headers, check->part_count);
    k3_text_puts(&text, " part headers");
    if (!check->verify->quick) {
        k3_text_putf(&text, ", %llu units with their pads, ", (unsigned long long)unit_count);
        put_share(&text, check->copied_count, check->set->manifest.file_count);
        k3_text_puts(&text, " copied files");
        if (check->headers_count)
            k3_text_puts(&text, ", source headers");
    }
    int rc = k3_text_check(&text, err);
    if (!rc)
        k3_verify_checked(check->verify, "%s", text.data);
    k3_text_fini(&text);
    return rc;
}

int k3_part_checks_report(struct k3_set_check *check, struct k3_err *err)
{
    uint32_t missing = 0, end;
    int rc = 0;
    for (uint32_t p = 0; p < check->part_count; p = end) {
        for (end = p + 1; end < check->part_count; end++)
            if (check->parts[end].entry->rank != check->parts[p].entry->rank)
                break;
        missing += tell_missing(check, p, end);
    }
    if (missing)
        rc = seek_missing(check, err);
    uint64_t before = check->verify->checked_units;
    if (!rc)
        rc = k3_cast_numbers_open(check->set->plan, &check->numbers, err);
    for (uint32_t p = 0; p < check->part_count && !rc; p++)
        rc = tell_part(check, &check->parts[p], err);
    const uint64_t globals = check->numbers.global_count, shapes = check->numbers.shape_count;
    k3_cast_numbers_close(&check->numbers);
    if (!rc)
        rc = say_checked(check, check->verify->checked_units - before, err);
    if (globals)
        k3_verify_checked(check->verify, "%s global scales", k3_count_text(globals).s);
    if (check->scale_count)
        k3_verify_checked(check->verify, "%s scales of casts", k3_count_text(check->scale_count).s);
    if (shapes)
        k3_verify_checked(check->verify, "%s shapes of casts", k3_count_text(shapes).s);
    return rc;
}
