/* Purpose: publish a set from the records of its items, without reading a part again (FORMAT.md 8,
 * 9).
 * Owns: the manifest it builds.
 * Threads: one.
 * Errors: K3_EUNSUPPORTED (incomplete: says what is missing), K3_ECORRUPT, K3_EIO, K3_ENOMEM.
 * Invariant: the manifest is the last file to appear; every step before may be cut short at any
 * byte and repeated. */
#include "job.h"
#include "part.h"
#include "seal_casts.h"
#include "sha256.h"
#include "units.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A record that is used: where its unit digests lie. */
struct used_record {
    char name[K3_STAGED_NAME_BYTES];
    char token[K3_TOKEN_BYTES + 1];
};

/* Where one part's unit digests lie. */
struct part_source {
    uint32_t record;
    uint64_t digest_offset; /* in the record file */
};

#define ITEM_NONE UINT32_MAX

struct seal {
    struct k3_job *job;
    struct k3_plan *plan; /* owned */
    struct k3_config config;
    struct k3_layout layout;
    struct k3_manifest manifest; /* filled as records are read; entries owned by it */
    struct used_record *records;
    struct k3_cast_range *casts; /* one for each of records */
    uint32_t *items;             /* of each part; ITEM_NONE: no record has it */
    struct k3_cast_summary *summary;
    struct part_source *sources_of; /* [rank * part_count + part] */
    uint8_t *have;                  /* the same index: 1 when a record has the part */
    struct k3_part_entry *parts;    /* the same index */
    char *file_token;               /* token of the record that holds the copied files */
    uint32_t record_count, part_count, world;
};

static int no_memory(struct k3_err *err)
{
    return k3_fail(err, K3_ENOMEM, "no memory to seal the set");
}

static int decode_plan(struct seal *seal, const char *text, size_t bytes, struct k3_err *err)
{
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = k3_plan_decode(text, bytes, &seal->plan, &inner);
    if (rc == K3_EFORMAT)
        return k3_fail_at(err, rc, K3_PLAN_NAME, -1,
                          "%s/" K3_PLAN_NAME ": cut or damaged: run the same convert command "
                          "again, which writes it anew and keeps what is finished",
                          seal->job->partials[0].path);
    if (rc)
        return k3_fail_as(err, &inner);
    seal->config = seal->plan->config;
    seal->layout = seal->plan->layout;
    seal->part_count = k3_config_part_count(&seal->config);
    seal->world = k3_layout_world(&seal->layout);
    if (seal->job->ranks.count == 0)
        k3_ranks_fill(&seal->job->ranks, seal->world);
    for (uint32_t rank = seal->world; rank < K3_RANK_COUNT_MAX; rank++)
        if (k3_ranks_has(&seal->job->ranks, rank))
            return k3_fail(err, K3_ECORRUPT,
                           "%s/" K3_RANKS_NAME ": rank %u, but the layout has %u: begin again with "
                           "convert --force",
                           seal->job->partials[0].path, rank, seal->world);
    uint64_t cells = (uint64_t)seal->part_count * seal->world;
    seal->sources_of = calloc(cells, sizeof *seal->sources_of);
    seal->have = calloc(cells, 1);
    seal->parts = calloc(cells, sizeof *seal->parts);
    seal->manifest.plan_text = malloc(bytes + 1);
    seal->items = malloc(seal->part_count * sizeof *seal->items);
    if (!seal->sources_of || !seal->have || !seal->parts || !seal->items ||
        !seal->manifest.plan_text)
        return no_memory(err);
    for (uint32_t part = 0; part < seal->part_count; part++)
        seal->items[part] = ITEM_NONE;
    memcpy(seal->manifest.plan_text, text, bytes);
    seal->manifest.plan_text[bytes] = 0;
    seal->manifest.plan_bytes = bytes;
    memcpy(seal->manifest.plan_digest, seal->job->plan_digest, K3_DIGEST_BYTES);
    seal->manifest.tool = strdup(seal->job->tool);
    return seal->manifest.tool ? 0 : no_memory(err);
}

static int fail_items(const struct seal *seal, uint32_t part, struct k3_err *err)
{
    char name[K3_STAGED_NAME_BYTES];
    k3_record_name(seal->items[part], name);
    return k3_fail_at(
        err, K3_ECORRUPT, name, -1,
        "%s/%s: part %u: wanted records that are numbered by their lowest parts, each "
        "part in one: begin again with convert --force",
        seal->job->partials[0].path, name, part);
}

/* The lines of the report are in the order of items, which are numbered by their lowest parts: in
 * the order of parts an item that is met first is beyond all before.  Of a partial set the lowest
 * part of an item may belong to a rank that is not there: then its parts tell nothing. */
static int check_items(const struct seal *seal, struct k3_err *err)
{
    uint32_t next = 0;
    for (uint32_t rank = 0; rank < seal->world; rank++)
        if (!k3_ranks_has(&seal->job->ranks, rank))
            return 0;
    for (uint32_t part = 0; part < seal->part_count; part++) {
        const uint32_t item = seal->items[part];
        bool is_known = item == ITEM_NONE;
        for (uint32_t p = 0; p < part && item < next && !is_known; p++)
            is_known = seal->items[p] == item;
        if (item < next && !is_known)
            return fail_items(seal, part, err);
        if (!is_known)
            next = item + 1;
    }
    return 0;
}

/* Take over the entries of a list: names move to the manifest. */
static int take_files(struct k3_file_entry **list, uint32_t *count, struct k3_file_entry *from,
                      uint32_t from_count, struct k3_err *err)
{
    struct k3_file_entry *grown = realloc(*list, (*count + from_count + 1) * sizeof *grown);
    if (!grown)
        return no_memory(err);
    *list = grown;
    for (uint32_t i = 0; i < from_count; i++) {
        grown[*count + i] = from[i];
        from[i].name = NULL;
    }
    *count += from_count;
    return 0;
}

static int take_record(struct seal *seal, struct k3_record *record, uint64_t head_bytes,
                       struct k3_err *err)
{
    uint32_t n = seal->record_count;
    struct used_record *grown = realloc(seal->records, (n + 1) * sizeof *grown);
    seal->records = grown ? grown : seal->records;
    struct k3_cast_range *casts = realloc(seal->casts, (n + 1) * sizeof *casts);
    seal->casts = casts ? casts : seal->casts;
    if (!grown || !casts)
        return no_memory(err);
    k3_record_name(record->item, grown[n].name);
    memcpy(grown[n].token, record->token, sizeof grown[n].token);
    seal->record_count++;
    uint64_t at = head_bytes;
    for (uint32_t p = 0; p < record->part_count; p++) {
        const struct k3_part_entry *part = &record->parts[p];
        bool known = part->rank < seal->world && part->part < seal->part_count &&
                     k3_layout_has_part(&seal->config, &seal->layout, part->rank, part->part);
        uint64_t cell = known ? (uint64_t)part->rank * seal->part_count + part->part : 0;
        if (!known || seal->have[cell])
            return k3_fail_at(err, K3_ECORRUPT, grown[n].name, -1,
                              "%s/%s: part %u of rank %u is not in the plan, or in two records: "
                              "begin again with convert --force",
                              seal->job->partials[0].path, grown[n].name, part->part, part->rank);
        if (seal->items[part->part] != ITEM_NONE && seal->items[part->part] != record->item)
            return fail_items(seal, part->part, err);
        seal->items[part->part] = record->item;
        seal->have[cell] = 1;
        seal->parts[cell] = *part;
        seal->sources_of[cell] = (struct part_source){n, at};
        at += part->bytes / K3_UNIT_BYTES * K3_DIGEST_BYTES;
    }
    casts[n] = (struct k3_cast_range){record->item, record->cast_count, at};
    int rc = k3_job_check_casts(seal->job, seal->plan, record, err);
    if (!rc)
        rc = take_files(&seal->manifest.sources, &seal->manifest.source_count, record->sources,
                        record->source_count, err);
    if (!rc && record->file_count) {
        free(seal->file_token);
        seal->file_token = strdup(record->token);
        rc = seal->file_token ? take_files(&seal->manifest.files, &seal->manifest.file_count,
                                           record->files, record->file_count, err)
                              : no_memory(err);
    }
    return rc;
}

/* Read every record there is.  Item numbers are those in the names. */
static int read_records(struct seal *seal, struct k3_err *err)
{
    char **names = NULL;
    uint32_t count = 0;
    int rc = k3_dir_list(&seal->job->partials[0], &names, &count, err);
    for (uint32_t i = 0; i < count && !rc; i++) {
        struct k3_record record;
        struct stat stat;
        char name[K3_STAGED_NAME_BYTES];
        bool found;
        if (strncmp(names[i], "item-", 5))
            continue;
        uint32_t item = (uint32_t)strtoul(names[i] + 5, NULL, 10);
        k3_record_name(item, name);
        if (strcmp(name, names[i]))
            continue; /* a temporary name */
        rc = k3_job_record(seal->job, item, &record, &found, err);
        if (rc || !found)
            continue;
        if (fstatat(seal->job->partials[0].fd, name, &stat, 0))
            rc = k3_fail_sys(err, errno, "%s/%s: stat", seal->job->partials[0].path, name);
        else
            rc = take_record(seal, &record,
                             (uint64_t)stat.st_size - record.unit_count * K3_DIGEST_BYTES -
                                 record.cast_count * sizeof(struct k3_disk_cast_row),
                             err);
        k3_record_fini(&record);
    }
    k3_names_free(names, count);
    return rc;
}

/* "parts 3, 7-9 of rank 0; ..." of what no record has; empty when nothing is missing. */
static uint64_t list_missing(const struct seal *seal, char *text, size_t bytes)
{
    uint64_t missing = 0;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t part = 0; part < seal->part_count; part++)
        for (uint32_t rank = 0; rank < seal->world; rank++) {
            if (!k3_ranks_has(&seal->job->ranks, rank) ||
                seal->have[(uint64_t)rank * seal->part_count + part] ||
                !k3_layout_has_part(&seal->config, &seal->layout, rank, part))
                continue;
            missing++;
            if (used + 40 < bytes) {
                int n = snprintf(text + used, bytes - used, "%srank %u part %u", used ? ", " : "",
                                 rank, part);
                used += n > 0 ? (size_t)n : 0;
            }
        }
    return missing;
}

static int check_complete(struct seal *seal, struct k3_err *err)
{
    char list[200]; /* enough to see where to look; the rest is counted */
    uint64_t missing = list_missing(seal, list, sizeof list);
    if (missing)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s: %llu part%s not converted yet: %s%s; run convert again to finish them",
                       seal->job->outs[0].path, (unsigned long long)missing,
                       missing == 1 ? " is" : "s are", list,
                       strlen(list) + 41 > sizeof list ? ", ..." : "");
    if (!seal->file_token)
        return k3_fail(err, K3_ECORRUPT,
                       "%s: no record holds " K3_HEADERS_NAME ": run convert again",
                       seal->job->outs[0].path);
    return 0;
}

/* Every part is one of this plan, by the first bytes of its header: records could be of another. */
static int check_heads(const struct seal *seal, struct k3_err *err)
{
    const struct k3_job *job = seal->job;
    char name[K3_NAME_BYTES_MAX + 1], staged[K3_STAGED_NAME_BYTES];
    int rc = 0;
    for (uint64_t cell = 0; cell < (uint64_t)seal->part_count * seal->world && !rc; cell++) {
        const struct k3_part_entry *part = &seal->parts[cell];
        if (!seal->have[cell])
            continue;
        const uint32_t dir = k3_job_dir_of(job, part->rank, part->part);
        k3_part_name(part->rank, part->part, name);
        k3_staged_name(name, seal->records[seal->sources_of[cell].record].token, staged);
        /* An interrupted seal may have moved it: k3_job_record saw it at its final place. */
        const bool is_staged = k3_file_exists(&job->partials[dir], staged);
        rc = k3_seal_check_head(is_staged ? &job->partials[dir] : &job->outs[dir],
                                is_staged ? staged : name, part, job->plan_digest, err);
    }
    return rc;
}

/* staged -> final, unless an interrupted seal did it already. */
static int move_in(struct k3_job *job, uint32_t dir, const char *name, const char *token,
                   struct k3_err *err)
{
    char staged[K3_STAGED_NAME_BYTES];
    k3_staged_name(name, token, staged);
    if (!k3_file_exists(&job->partials[dir], staged))
        return 0; /* k3_job_record saw it at its final place */
    return k3_file_rename(&job->partials[dir], staged, &job->outs[dir], name, err);
}

static int move_all(struct seal *seal, struct k3_err *err)
{
    struct k3_job *job = seal->job;
    char name[K3_NAME_BYTES_MAX + 1];
    int rc = 0;
    for (uint64_t cell = 0; cell < (uint64_t)seal->part_count * seal->world && !rc; cell++) {
        if (!seal->have[cell])
            continue;
        const struct k3_part_entry *part = &seal->parts[cell];
        k3_part_name(part->rank, part->part, name);
        rc = move_in(job, k3_job_dir_of(job, part->rank, part->part), name,
                     seal->records[seal->sources_of[cell].record].token, err);
    }
    for (uint32_t f = 0; f < seal->manifest.file_count && !rc; f++)
        rc = move_in(job, 0, seal->manifest.files[f].name, seal->file_token, err);
    for (uint32_t d = 0; d < job->dir_count && !rc; d++)
        rc = k3_dir_sync(&job->outs[d], err);
    return rc;
}

/* Read the unit digests of one part from its record. */
static int read_digests(const struct seal *seal, uint64_t cell, uint8_t *out, struct k3_err *err)
{
    const struct part_source *source = &seal->sources_of[cell];
    const char *name = seal->records[source->record].name;
    struct stat stat;
    int fd = -1;
    int rc = k3_file_open(&seal->job->partials[0], name, false, &fd, &stat, err);
    if (rc)
        return rc;
    size_t bytes = (size_t)(seal->parts[cell].bytes / K3_UNIT_BYTES * K3_DIGEST_BYTES);
    rc = k3_file_read(fd, name, out, bytes, source->digest_offset, err);
    close(fd);
    return k3_fail_in(&seal->job->partials[0], rc, err);
}

/* Written and synced inside .k3-partial, then renamed into the set: it appears whole or not at all.
 */
static int publish_file(struct k3_job *job, const char *temporary, const char *name,
                        const void *data, size_t bytes, struct k3_err *err)
{
    int fd = -1;
    int rc = k3_file_remove(&job->partials[0], temporary, err); /* of a seal that was cut short */
    if (!rc)
        rc = k3_file_create(&job->partials[0], temporary, &fd, err);
    if (!rc)
        rc = k3_file_write(fd, name, data, bytes, 0, err);
    if (!rc)
        rc = k3_file_sync(fd, name, err);
    if (fd >= 0) {
        int closed = k3_file_close(fd, name, err);
        rc = rc ? rc : closed;
    }
    if (!rc)
        rc = k3_file_rename(&job->partials[0], temporary, &job->outs[0], name, err);
    return rc ? k3_fail_in(&job->outs[0], rc, err) : k3_dir_sync(&job->outs[0], err);
}

/* Build and publish the units file of a rank; fill its manifest row. */
static int seal_rank(struct seal *seal, uint32_t rank, struct k3_sha256 *sha, struct k3_err *err)
{
    struct k3_manifest_rank *row = &seal->manifest.ranks[seal->manifest.rank_count++];
    struct k3_units units = {.rank = rank};
    char name[K3_NAME_BYTES_MAX + 1], temporary[K3_STAGED_NAME_BYTES];
    uint64_t first = (uint64_t)rank * seal->part_count;
    row->rank = rank;
    row->parts = calloc(seal->part_count, sizeof *row->parts);
    if (!row->parts)
        return no_memory(err);
    for (uint32_t p = 0; p < seal->part_count; p++) {
        if (!seal->have[first + p])
            continue;
        row->parts[row->part_count++] = seal->parts[first + p];
        row->image_bytes += seal->parts[first + p].bytes - seal->parts[first + p].data_offset;
        units.digest_count += seal->parts[first + p].bytes / K3_UNIT_BYTES;
    }
    units.part_count = row->part_count;
    memcpy(units.plan_digest, seal->job->plan_digest, K3_DIGEST_BYTES);
    size_t bytes = sizeof(struct k3_disk_units) + units.digest_count * K3_DIGEST_BYTES;
    uint8_t *data = malloc(bytes);
    k3_units_name(rank, name);
    row->units.name = strdup(name);
    if (!data || !row->units.name) {
        free(data);
        return no_memory(err);
    }
    struct k3_disk_units head;
    k3_units_encode(&units, &head);
    memcpy(data, &head, sizeof head);
    uint8_t *at = data + sizeof head;
    int rc = 0;
    for (uint32_t p = 0; p < seal->part_count && !rc; p++) {
        if (!seal->have[first + p])
            continue;
        rc = read_digests(seal, first + p, at, err);
        at += seal->parts[first + p].bytes / K3_UNIT_BYTES * K3_DIGEST_BYTES;
    }
    row->units.bytes = bytes;
    k3_sha256_of(sha, data, bytes, row->units.sha256);
    k3_staged_name(name, seal->file_token, temporary);
    if (!rc)
        rc = publish_file(seal->job, temporary, name, data, bytes, err);
    free(data);
    return rc;
}

/* The entry of source-headers.zst leaves the list of copied files: it has a member of its own. */
static int pick_headers(struct k3_manifest *manifest, struct k3_err *err)
{
    for (uint32_t i = 0; i < manifest->file_count; i++) {
        if (strcmp(manifest->files[i].name, K3_HEADERS_NAME))
            continue;
        manifest->headers = manifest->files[i];
        memmove(&manifest->files[i], &manifest->files[i + 1],
                (manifest->file_count - i - 1) * sizeof manifest->files[0]);
        manifest->file_count--;
        return 0;
    }
    return k3_fail(err, K3_ECORRUPT, "no record holds " K3_HEADERS_NAME ": run convert again");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct k3_file_entry *)a)->name, ((const struct k3_file_entry *)b)->name);
}

/* The records together name every source file of the plan, each once, and no other; those of a
 * partial set some of them. */
static int check_sources(struct seal *seal, struct k3_err *err)
{
    const struct k3_manifest *manifest = &seal->manifest;
    qsort(manifest->sources, manifest->source_count, sizeof manifest->sources[0], by_name);
    bool same = manifest->source_count == seal->plan->source_count ||
                seal->job->ranks.count < seal->world;
    for (uint32_t i = 0, f = 0; same && i < manifest->source_count; i++, f++) {
        const struct k3_source *sources = seal->plan->sources;
        while (f < seal->plan->source_count &&
               strcmp(sources[f].name, manifest->sources[i].name) < 0)
            f++;
        same = f < seal->plan->source_count &&
               !strcmp(manifest->sources[i].name, sources[f].name) &&
               manifest->sources[i].bytes == sources[f].bytes;
    }
    if (!same)
        return k3_fail(err, K3_ECORRUPT,
                       "%s: the records do not name the source files of the plan: begin again with "
                       "convert --force",
                       seal->job->outs[0].path);
    return 0;
}

/* The report of the casts becomes one of the set's files. */
static int publish_casts(struct seal *seal, struct k3_err *err)
{
    struct k3_file_entry entry = {0};
    const struct k3_casts_seal casts = {.job = seal->job,
                                        .plan = seal->plan,
                                        .ranges = seal->casts,
                                        .range_count = seal->record_count,
                                        .items = seal->items,
                                        .token = seal->file_token,
                                        .summary = seal->summary};
    if (k3_policy_is_verbatim(&seal->plan->policy))
        return 0;
    int rc = k3_casts_publish(&casts, &entry, err);
    if (!rc)
        rc = take_files(&seal->manifest.files, &seal->manifest.file_count, &entry, 1, err);
    free(entry.name);
    return rc;
}

static int publish(struct seal *seal, struct k3_err *err)
{
    struct k3_manifest *manifest = &seal->manifest;
    struct k3_sha256 *sha = NULL;
    struct k3_text text;
    char temporary[K3_STAGED_NAME_BYTES];
    k3_text_init(&text);
    manifest->ranks = calloc(seal->world, sizeof *manifest->ranks);
    if (!manifest->ranks)
        return no_memory(err);
    int rc = k3_sha256_open(&sha, err);
    for (uint32_t rank = 0; rank < seal->world && !rc; rank++)
        if (k3_ranks_has(&seal->job->ranks, rank))
            rc = seal_rank(seal, rank, sha, err);
    k3_staged_name(K3_MANIFEST_NAME, seal->file_token, temporary);
    if (!rc)
        rc = pick_headers(manifest, err);
    if (!rc)
        rc = publish_casts(seal, err);
    if (!rc) {
        qsort(manifest->files, manifest->file_count, sizeof manifest->files[0], by_name);
        rc = k3_manifest_encode(manifest, &text, err);
    }
    if (!rc)
        rc = k3_dir_sync(&seal->job->outs[0], err);
    if (!rc)
        rc = publish_file(seal->job, temporary, K3_MANIFEST_NAME, text.data, text.bytes, err);
    k3_text_fini(&text);
    k3_sha256_close(sha);
    return rc;
}

int k3_seal(struct k3_job *job, const char *plan_text, size_t plan_bytes,
            struct k3_cast_summary *casts, struct k3_err *err)
{
    struct seal seal;
    memset(&seal, 0, sizeof seal);
    seal.job = job;
    seal.summary = casts;
    k3_cast_summary_init(casts);
    int rc = decode_plan(&seal, plan_text, plan_bytes, err);
    if (!rc)
        rc = k3_job_check_foreign(job, &seal.config, &seal.layout, K3_FOREIGN_RESUME, err);
    if (!rc)
        rc = read_records(&seal, err);
    if (!rc)
        rc = check_complete(&seal, err);
    if (!rc)
        rc = check_sources(&seal, err); /* before anything is moved */
    if (!rc)
        rc = check_items(&seal, err);
    if (!rc)
        rc = check_heads(&seal, err);
    if (!rc)
        rc = k3_job_check_held(job, err);
    if (!rc)
        rc = move_all(&seal, err);
    if (!rc)
        rc = publish(&seal, err);
    if (!rc)
        rc = k3_job_clear_partial(job, err);
    k3_manifest_fini(&seal.manifest);
    k3_plan_close(seal.plan);
    free(seal.records);
    free(seal.casts);
    free(seal.items);
    free(seal.sources_of);
    free(seal.have);
    free(seal.parts);
    free(seal.file_token);
    return rc;
}
