/* Purpose: the header of a part: read, proved by its unit digests, decoded, and judged as a part
 * of this set (metadata, pads, views).
 * Owns: nothing between calls.
 * Threads: any, on a constant set.
 * Errors: K3_ECORRUPT for a header unit whose digest is wrong; K3_EFORMAT for a header that is
 * proved but not of the form of FORMAT.md 5 (a fault of its writer); K3_EIO, K3_ENOMEM.
 * Invariant: no field is judged before its unit was found right. */
#include "load_internal.h"
#include "set.h"
#include "tree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAD_PREFIX  "k3.pad."
#define VIEW_PREFIX "k3.view."

/* The header being judged. */
struct header {
    const struct k3_set *set;
    const struct k3_part_entry *part;
    const struct k3_st *st;
    const struct k3_view *views;
    uint32_t view_count;
    char path[K3_ERR_TEXT_BYTES / 2];
};

static int fail_form(const struct header *header, struct k3_err *err, const char *what)
{
    return k3_fail_at(err, K3_EFORMAT, header->path, -1,
                      "%s: not a part as FORMAT.md 5 says: %s; convert the set again", header->path,
                      what);
}

bool k3_load_is_pad(const struct k3_st_tensor *tensor)
{
    return strncmp(tensor->name, PAD_PREFIX, sizeof PAD_PREFIX - 1) == 0;
}

int k3_load_fail_unit(const struct k3_load_bad_unit *bad, struct k3_err *err)
{
    char wanted[K3_HEX_BYTES], found[K3_HEX_BYTES];
    k3_hex_encode(bad->wanted, K3_DIGEST_BYTES, wanted);
    k3_hex_encode(bad->found, K3_DIGEST_BYTES, found);
    return k3_fail_at(err, K3_ECORRUPT, bad->path, (int64_t)(bad->unit * K3_UNIT_BYTES),
                      "%s: unit %" PRIu64 " at byte %" PRIu64 " (%u bytes) is wrong: digest %s, "
                      "recorded was %s; it holds %s; restore the file, or convert again",
                      bad->path, bad->unit, bad->unit * K3_UNIT_BYTES, K3_UNIT_BYTES, found, wanted,
                      bad->holds);
}

/* ---- units of the header ---- */

static int check_units(const struct header *header, const uint8_t *data, const uint8_t *digests,
                       struct k3_err *err)
{
    struct k3_sha256 *sha;
    int rc = k3_sha256_open(&sha, err);
    if (rc)
        return rc;
    uint64_t unit_count = header->part->data_offset / K3_UNIT_BYTES;
    for (uint64_t i = 0; !rc && i < unit_count; i++) {
        struct k3_load_bad_unit bad = {.path = header->path,
                                       .holds = "the header",
                                       .unit = i,
                                       .wanted = digests + i * K3_DIGEST_BYTES};
        k3_unit_digest(sha, data + i * K3_UNIT_BYTES, K3_UNIT_BYTES, bad.found);
        if (memcmp(bad.found, bad.wanted, K3_DIGEST_BYTES) != 0)
            rc = k3_load_fail_unit(&bad, err);
    }
    k3_sha256_close(sha);
    return rc;
}

/* ---- metadata ---- */

static int check_member(const struct header *header, const char *key, const char *wanted,
                        struct k3_err *err)
{
    const char *found = k3_st_meta_find(header->st, key);
    if (found && strcmp(found, wanted) == 0)
        return 0;
    char what[256];
    snprintf(what, sizeof what, "metadata %s is %.80s, wanted %.80s", key,
             found ? found : "missing", wanted);
    return fail_form(header, err, what);
}

static int check_metadata(const struct header *header, struct k3_err *err)
{
    char text[K3_HEX_BYTES];
    int rc = check_member(header, "k3.format", "0", err);
    k3_hex_encode(header->set->manifest.plan_digest, K3_DIGEST_BYTES, text);
    if (!rc)
        rc = check_member(header, "k3.plan", text, err);
    snprintf(text, sizeof text, "%" PRIu32, header->part->rank);
    if (!rc)
        rc = check_member(header, "k3.rank", text, err);
    snprintf(text, sizeof text, "%" PRIu32, header->part->part);
    if (!rc)
        rc = check_member(header, "k3.part", text, err);
    /* Four members, then views: nothing else. */
    if (!rc && header->st->meta_count != header->view_count + 4)
        rc = fail_form(header, err, "unknown metadata");
    return rc;
}

static int decode_views(const struct k3_st *st, struct k3_view **views, uint32_t *count,
                        struct k3_err *err)
{
    *count = 0;
    *views = calloc(st->meta_count ? st->meta_count : 1, sizeof **views);
    if (!*views)
        return k3_fail(err, K3_ENOMEM, "no memory for %u views", st->meta_count);
    for (uint32_t i = 0; i < st->meta_count; i++) {
        const struct k3_st_meta *meta = &st->meta[i];
        if (strncmp(meta->key, VIEW_PREFIX, sizeof VIEW_PREFIX - 1) != 0)
            continue;
        int rc = k3_view_decode(meta->key, meta->value, &(*views)[*count], err);
        if (rc)
            return rc;
        ++*count;
    }
    return 0;
}

/* ---- tensors, pads and views ---- */

/* Pads are numbered in data order and are rows of bytes; a tensor has bytes and 1..4 dimensions. */
static int check_tensors(const struct header *header, struct k3_err *err)
{
    const struct k3_st *st = header->st;
    uint32_t pad_count = 0;
    uint64_t end_offset = 0;
    for (uint32_t i = 0; i < st->tensor_count; i++) {
        const struct k3_st_tensor *tensor = &st->tensors[i];
        if (tensor->begin_offset != end_offset || tensor->end_offset <= end_offset)
            return fail_form(header, err, "its tensors do not tile its data");
        end_offset = tensor->end_offset;
        if (!k3_load_is_pad(tensor)) {
            if (tensor->dim_count == 0 || tensor->dim_count > K3_LOAD_DIM_COUNT_MAX)
                return fail_form(header, err, "a tensor of no or more than four dimensions");
            continue;
        }
        char name[sizeof PAD_PREFIX + 10];
        snprintf(name, sizeof name, PAD_PREFIX "%" PRIu32, pad_count++);
        if (strcmp(tensor->name, name) != 0 || tensor->dtype != K3_U8 || tensor->dim_count != 1)
            return fail_form(header, err, "a pad that is not the next k3.pad.N, U8, one dimension");
    }
    if (end_offset != header->part->bytes - header->part->data_offset)
        return fail_form(header, err, "its tensors do not tile its data");
    return 0;
}

/* Views tile all that is not a pad: each begins with a tensor and ends with a tensor or a pad. */
static int check_views(const struct header *header, struct k3_err *err)
{
    const struct k3_st *st = header->st;
    uint32_t at = 0;         /* the view being filled */
    uint64_t end_offset = 0; /* end of the view before it */
    bool open = false;
    for (uint32_t i = 0; i < st->tensor_count; i++) {
        const struct k3_st_tensor *tensor = &st->tensors[i];
        bool pad = k3_load_is_pad(tensor);
        if (!open && pad)
            continue;
        if (!open && (at == header->view_count || header->views[at].begin_offset < end_offset ||
                      header->views[at].begin_offset != tensor->begin_offset))
            return fail_form(header, err, "a tensor that is in no view or in two");
        open = true;
        end_offset = header->views[at].end_offset;
        if (tensor->end_offset > end_offset)
            return fail_form(header, err, "a view that ends inside a tensor");
        if (tensor->end_offset == end_offset) {
            open = false;
            at++;
        }
    }
    if (open || at != header->view_count)
        return fail_form(header, err, "a view without tensors");
    return 0;
}

int k3_set_part_header(const struct k3_set *set, const struct k3_part_entry *part, int fd,
                       const uint8_t *unit_digests, struct k3_part_header *out, struct k3_err *err)
{
    struct header header = {.set = set, .part = part};
    char name[K3_NAME_BYTES_MAX + 1];
    uint8_t *data = NULL;
    int rc = 0;
    memset(out, 0, sizeof *out);
    k3_part_name(part->rank, part->part, name);
    snprintf(header.path, sizeof header.path, "%s/%s",
             k3_set_part_dir(set, part->rank, part->part)->path, name);
    if (part->data_offset > K3_ST_HEADER_BYTES_MAX + K3_UNIT_BYTES) {
        rc = fail_form(&header, err, "the header is too long");
        goto out;
    }
    data = malloc((size_t)part->data_offset);
    if (!data) {
        rc = k3_fail(err, K3_ENOMEM, "%s: no memory for its header", header.path);
        goto out;
    }
    rc = k3_file_read(fd, header.path, data, (size_t)part->data_offset, 0, err);
    if (!rc)
        rc = check_units(&header, data, unit_digests, err);
    if (!rc)
        rc = k3_st_decode(header.path, data, (size_t)part->data_offset, part->bytes, &out->st, err);
    if (rc)
        goto out;
    header.st = out->st;
    rc = decode_views(out->st, &out->views, &out->view_count, err);
    header.views = out->views;
    header.view_count = out->view_count;
    if (!rc)
        rc = check_metadata(&header, err);
    if (!rc)
        rc = check_tensors(&header, err);
    if (!rc)
        rc = check_views(&header, err);
out:
    if (rc)
        k3_part_header_fini(out);
    free(data);
    return rc;
}

int k3_set_check_header(const struct k3_set *set, const struct k3_part_entry *entry, int fd,
                        struct k3_err *err)
{
    struct k3_part wanted;
    struct k3_text text;
    char name[K3_NAME_BYTES_MAX + 1];
    char *found = NULL;
    size_t at = 0;
    memset(&wanted, 0, sizeof wanted);
    k3_text_init(&text);
    k3_part_name(entry->rank, entry->part, name);
    int rc = k3_part_build(set->plan, entry->rank, entry->part, &wanted, err);
    if (!rc)
        rc = k3_part_header(set->plan, &wanted, &text, err);
    if (rc)
        goto out;
    found = malloc(text.bytes);
    if (!found) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for the header of %s", name);
        goto out;
    }
    if (text.bytes == entry->data_offset) {
        rc = k3_fail_in(k3_set_part_dir(set, entry->rank, entry->part),
                        k3_file_read(fd, name, found, text.bytes, 0, err), err);
        while (!rc && at < text.bytes && found[at] == text.data[at])
            at++;
    }
    if (!rc && at < text.bytes)
        rc = k3_fail_at(err, K3_ECORRUPT, name, (int64_t)at,
                        "%s/%s: its header is not the one the plan makes (first difference at byte "
                        "%zu): the part was made by another build or was changed; convert it again",
                        k3_set_part_dir(set, entry->rank, entry->part)->path, name, at);
out:
    free(found);
    k3_part_fini(&wanted);
    k3_text_fini(&text);
    return rc;
}

void k3_part_header_fini(struct k3_part_header *header)
{
    k3_st_free(header->st);
    free(header->views);
    memset(header, 0, sizeof *header);
}

void k3_load_name_tensors(const struct k3_st *st, uint64_t begin_offset, uint64_t end_offset,
                          char *text, size_t bytes)
{
    uint32_t count = 0;
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < st->tensor_count; i++) {
        const struct k3_st_tensor *tensor = &st->tensors[i];
        if (tensor->end_offset <= begin_offset || tensor->begin_offset >= end_offset ||
            k3_load_is_pad(tensor))
            continue;
        if (count++ >= K3_LOAD_NAMED_COUNT || at >= bytes)
            continue;
        int n = snprintf(text + at, bytes - at, "%s%.*s", count > 1 ? ", " : "",
                         K3_LOAD_NAME_SHOWN_BYTES, tensor->name);
        at += n > 0 ? (size_t)n : 0;
    }
    if (count == 0)
        snprintf(text, bytes, "padding only");
    else if (count > K3_LOAD_NAMED_COUNT && at < bytes)
        snprintf(text + at, bytes - at, " and %" PRIu32 " more tensors",
                 count - K3_LOAD_NAMED_COUNT);
}
