/* Purpose: prove that the parts of a set hold exactly the bytes of a checkpoint.
 * Owns: buffers for each worker and the findings of each item, until the run ends.
 * Threads: one item is one task; a worker has its own buffers, an item its own findings.
 * Errors: K3_EIO, K3_ENOMEM, K3_ECANCELED; a difference is a finding.
 * Invariant: of every source file that the ranks asked for hold bytes of, all bytes are read once,
 * in order; of every part asked for all tensor bytes are compared, and it is counted that they
 * were. */
#include "ckpt.h"
#include "doc.h"
#include "fdlimit.h"
#include "mem.h"
#include "scatter.h"
#include "sha256.h"
#include "stop.h"
#include "verify.h"
#include "workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_BYTES                                                                                \
    (4u << 20) /* of a source file: three such buffers a worker stay below 16 MiB                  \
                */
#define DROP_BYTES_MIN       (64u << 20) /* smaller files crowd nobody out of the page cache */
#define DIFFERENCES_TOLD_MAX 16u         /* of one item; the rest is counted */

struct buffers {
    uint8_t *source, *packed, *part; /* CHUNK_BYTES each */
    struct k3_sha256 *sha;
};

struct against {
    struct k3_verify *verify;
    const struct k3_set *set;
    const struct k3_ckpt *ckpt;
    struct buffers *buffers;      /* by worker */
    struct k3_problems *problems; /* by item */
    _Atomic uint64_t compared_bytes, source_bytes;
    uint32_t worker_count;
    struct k3_progress progress;
};

/* One item while it is compared. */
struct item_run {
    struct against *against;
    struct k3_scatter *scatter;
    struct buffers *buffers;
    struct k3_problems *problems;
    int *fds;           /* by target; -1: not asked for, or not there */
    uint64_t *compared; /* by target */
    uint64_t told;
};

static const char *part_name(const struct item_run *run, uint32_t target, char *name)
{
    const struct k3_part *part = &run->scatter->targets[target].part;
    k3_part_name(part->rank, part->part, name);
    return name;
}

/* ---- differences ---- */

/* Offset in the tensor of byte x of its slice (rows packed). */
static uint64_t tensor_offset(const struct k3_slice *slice, uint64_t x)
{
    uint64_t row = slice->row_begin + x / slice->column_bytes;
    return row * slice->row_bytes + slice->column_begin + x % slice->column_bytes;
}

static void tell_difference(struct item_run *run, const struct k3_run *tensor, uint32_t target,
                            const struct k3_place_run *place, uint64_t first)
{
    if (run->told++ >= DIFFERENCES_TOLD_MAX) {
        run->problems->count++;
        return;
    }
    const struct k3_plan *plan = run->against->ckpt->plan;
    const struct k3_tensor_place *at = &plan->places[tensor->slot];
    const struct k3_source *source = &plan->sources[at->file];
    char tensor_name[K3_ST_NAME_BYTES_MAX + 1], file_name[K3_NAME_BYTES_MAX + 1];
    struct k3_run whole = {.slot = tensor->slot, .end = at->bytes, .tensor_bytes = at->bytes};
    struct k3_place_run start; /* where the slice begins in the part */
    k3_scatter_place(run->scatter, &whole, target, &start);
    uint64_t in_slice = place->file_offset + first - start.file_offset;
    uint64_t source_offset = source->header_bytes + at->begin_offset +
                             tensor_offset(place->slice, in_slice);
    uint64_t part_offset = place->file_offset + first;
    k3_plan_slot_name(plan, tensor->slot, tensor_name, sizeof tensor_name);
    k3_problems_add(run->problems,
                    "%s differs: %s at offset %llu, %s at offset %llu are not the same byte",
                    tensor_name, source->name, (unsigned long long)source_offset,
                    part_name(run, target, file_name), (unsigned long long)part_offset);
}

/* Compare one run of a tensor with one part. */
static int compare_run(struct item_run *run, const struct k3_run *tensor, const uint8_t *data,
                       uint32_t target, struct k3_err *err)
{
    struct k3_place_run place;
    char name[K3_NAME_BYTES_MAX + 1];
    k3_scatter_place(run->scatter, tensor, target, &place);
    if (place.bytes == 0 || run->fds[target] < 0)
        return 0;
    const uint8_t *wanted = data + place.first;
    if (!place.is_straight) {
        k3_gather_columns(tensor, place.slice, data, run->buffers->packed);
        wanted = run->buffers->packed;
    }
    int rc = k3_file_read(run->fds[target], part_name(run, target, name), run->buffers->part,
                          (size_t)place.bytes, place.file_offset, err);
    if (rc)
        return rc;
    run->compared[target] += place.bytes;
    if (memcmp(wanted, run->buffers->part, (size_t)place.bytes) == 0)
        return 0;
    uint64_t first = 0;
    while (wanted[first] == run->buffers->part[first])
        first++;
    tell_difference(run, tensor, target, &place, first);
    return 0;
}

/* What lies behind the rows that the model uses is in no part: it must be zero. */
static void compare_tail(struct item_run *run, const struct k3_run *tensor, const uint8_t *data)
{
    uint64_t tail = k3_scatter_tail(run->scatter, tensor->slot);
    uint64_t begin = tail > tensor->begin ? tail : tensor->begin;
    if (begin >= tensor->end ||
        k3_is_zero(data + (begin - tensor->begin), (size_t)(tensor->end - begin)))
        return;
    char name[K3_ST_NAME_BYTES_MAX + 1];
    k3_plan_slot_name(run->against->ckpt->plan, tensor->slot, name, sizeof name);
    k3_problems_add(run->problems, "%s: bytes behind its heads are not zero: no part can hold them",
                    name);
}

/* ---- files of an item ---- */

static int compare_chunk(struct item_run *run, struct k3_range *range, struct k3_err *err)
{
    struct k3_run tensor;
    uint64_t data_at;
    while (k3_scatter_next(run->scatter, range, &tensor, &data_at)) {
        const uint8_t *data = run->buffers->source + data_at;
        compare_tail(run, &tensor, data);
        for (uint32_t t = 0; t < run->scatter->target_count; t++) {
            int rc = compare_run(run, &tensor, data, t, err);
            if (rc)
                return rc;
        }
    }
    return 0;
}

static int compare_file(struct item_run *run, uint32_t file, struct k3_err *err)
{
    struct against *against = run->against;
    const struct k3_source *source = &against->ckpt->plan->sources[file];
    struct k3_sha256 *sha = run->buffers->sha;
    uint8_t digest[K3_DIGEST_BYTES];
    struct k3_range range = {.file = file};
    int fd = -1;
    int rc = k3_ckpt_file_open(against->ckpt, file, &fd, err);
    if (rc)
        return rc;
    k3_sha256_begin(sha);
    for (uint64_t at = 0; at < source->bytes; at += CHUNK_BYTES) {
        size_t n = source->bytes - at < CHUNK_BYTES ? (size_t)(source->bytes - at) : CHUNK_BYTES;
        if (k3_stop_requested())
            rc = k3_fail(err, K3_ECANCELED, "stopped on request in %s", source->name);
        else
            rc = k3_file_read(fd, source->name, run->buffers->source, n, at, err);
        if (!rc) {
            k3_sha256_update(sha, run->buffers->source, n);
            range.offset = at;
            range.bytes = n;
            rc = compare_chunk(run, &range, err);
        }
        if (rc)
            goto out;
        if (source->bytes >= DROP_BYTES_MIN)
            k3_file_drop(fd, at, n);
        k3_progress_add(&against->progress, n);
    }
    against->source_bytes += source->bytes;
    k3_sha256_final(sha, digest);
    rc = k3_ckpt_file_check(against->ckpt, file, fd, err);
    const struct k3_file_entry *entry = k3_set_source(against->set, source->name);
    if (!rc && !entry)
        k3_problems_add(run->problems,
                        "%s: a source of these ranks that the manifest does not list",
                        source->name);
    else if (!rc && memcmp(digest, entry->sha256, sizeof digest))
        k3_problems_add(run->problems,
                        "%s: its SHA-256 is not the one the manifest records for this source",
                        source->name);
out:
    close(fd);
    return rc;
}

/* The manifest's entry of a target; NULL where it lists none. */
static const struct k3_part_entry *find_entry(const struct k3_set *set, const struct k3_part *part)
{
    const struct k3_manifest_rank *rank = k3_set_rank(set, part->rank);
    for (uint32_t i = 0; rank && i < rank->part_count; i++)
        if (rank->parts[i].part == part->part)
            return &rank->parts[i];
    return NULL;
}

/* Open the parts asked for and compare their headers; one that is not there was listed before. */
static int open_targets(struct item_run *run, struct k3_err *err)
{
    const struct k3_set *set = run->against->set;
    char name[K3_NAME_BYTES_MAX + 1];
    for (uint32_t t = 0; t < run->scatter->target_count; t++) {
        const struct k3_target *target = &run->scatter->targets[t];
        const struct k3_part_entry *entry = find_entry(set, &target->part);
        if (!entry || entry->bytes != target->file_bytes) {
            k3_problems_add(run->problems,
                            "%s: not listed in the manifest with the size of the plan",
                            part_name(run, t, name));
            continue;
        }
        struct k3_err inner;
        k3_err_init(&inner);
        int open_rc = k3_set_part_open(set, entry, &run->fds[t], &inner);
        if (open_rc && k3_exit_code(open_rc) != 3)
            return k3_fail(err, open_rc, "%s", inner.text);
        if (open_rc)
            continue; /* a finding, and named already by the look at the set */
        const struct k3_text *header = &run->scatter->headers[t];
        for (size_t at = 0; at < header->bytes; at += CHUNK_BYTES) {
            size_t n = header->bytes - at < CHUNK_BYTES ? header->bytes - at : CHUNK_BYTES;
            int rc = k3_file_read(run->fds[t], part_name(run, t, name), run->buffers->part, n, at,
                                  err);
            if (rc)
                return rc;
            if (memcmp(header->data + at, run->buffers->part, n))
                k3_problems_add(run->problems, "%s: its header is not the one the plan gives",
                                part_name(run, t, name));
        }
    }
    return 0;
}

/* Every tensor byte of each part must have met its source byte. */
static void count_compared(struct item_run *run)
{
    char name[K3_NAME_BYTES_MAX + 1];
    for (uint32_t t = 0; t < run->scatter->target_count; t++) {
        const struct k3_part *part = &run->scatter->targets[t].part;
        uint64_t wanted = 0;
        for (uint32_t e = 0; e < part->entry_count; e++)
            if (part->entries[e].slot != K3_SLOT_NONE)
                wanted += part->entries[e].bytes;
        if (run->fds[t] < 0)
            continue;
        if (run->compared[t] != wanted)
            k3_problems_add(run->problems, "%s: %llu of its %llu tensor bytes were compared",
                            part_name(run, t, name), (unsigned long long)run->compared[t],
                            (unsigned long long)wanted);
        run->against->compared_bytes += run->compared[t];
    }
}

static int compare_item(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct against *against = context;
    struct item_run run = {.against = against,
                           .buffers = &against->buffers[worker],
                           .problems = &against->problems[task]};
    const struct k3_item *item = &against->ckpt->plan->items[task];
    int rc = k3_scatter_open(against->ckpt, (uint32_t)task, &run.scatter, err);
    if (rc)
        return rc;
    uint32_t targets = run.scatter->target_count;
    run.fds = malloc((targets + 1) * sizeof *run.fds);
    run.compared = calloc(targets + 1, sizeof *run.compared);
    if (!run.fds || !run.compared) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for item %llu", (unsigned long long)task);
        goto out;
    }
    for (uint32_t t = 0; t < targets; t++)
        run.fds[t] = -1;
    rc = open_targets(&run, err);
    for (uint32_t f = 0; f < item->file_count && !rc; f++)
        if (k3_ckpt_needs_file(against->ckpt, item->files[f]))
            rc = compare_file(&run, item->files[f], err);
    if (!rc)
        count_compared(&run);
    for (uint32_t t = 0; t < targets; t++)
        if (run.fds[t] >= 0)
            close(run.fds[t]);
out:
    free(run.fds);
    free(run.compared);
    k3_scatter_close(run.scatter);
    return rc;
}

/* ---- the plan ---- */

/* A plan text up to where it says whence the checkpoint came: a copy in another place has the same
 * bytes.  Quotes inside strings are escaped, so these characters occur nowhere else. */
static size_t plan_body_bytes(const char *text, size_t bytes)
{
    const char *at = strstr(text, ",\"repository\":\"");
    return at ? (size_t)(at - text) : bytes;
}

static void tell_headers(struct against *against, const struct k3_doc *recorded)
{
    const struct k3_plan *plan = against->ckpt->plan;
    struct k3_problems *problems = &against->verify->problems;
    uint32_t f = 0;
    for (const struct k3_doc *h = k3_doc_first(k3_doc_find(recorded, "headers")); h;
         h = k3_doc_next(h), f++) {
        const char *name = k3_doc_string(k3_doc_find(h, "name"));
        const char *sha256 = k3_doc_string(k3_doc_find(h, "sha256"));
        uint64_t bytes = 0;
        char hex[K3_HEX_BYTES];
        (void)k3_doc_integer(k3_doc_find(h, "bytes"), &bytes);
        if (!name || !sha256 || f >= plan->source_count)
            break;
        const struct k3_source *source = &plan->sources[f];
        k3_hex_encode(source->header_sha256, K3_DIGEST_BYTES, hex);
        if (strcmp(name, source->name))
            k3_problems_add(problems, "source file %u is %s, the set was made of %s", f,
                            source->name, name);
        else if (bytes != source->bytes || strcmp(sha256, hex))
            k3_problems_add(problems, "%s: its size or header is not that of the set's source",
                            name);
    }
    if (f != plan->source_count)
        k3_problems_add(problems,
                        "the checkpoint has %u source files, the set was made of another "
                        "number",
                        plan->source_count);
}

/* The checkpoint must give the very plan of the set.  *same false: it does not, said why. */
static int compare_plans(struct against *against, bool *same, struct k3_err *err)
{
    const struct k3_plan *plan = against->ckpt->plan;
    const struct k3_manifest *manifest = &against->set->manifest;
    struct k3_problems *problems = &against->verify->problems;
    struct k3_doc *recorded = NULL;
    char hex[K3_HEX_BYTES];
    size_t own = plan_body_bytes(plan->text, plan->text_bytes);
    size_t other = plan_body_bytes(manifest->plan_text, manifest->plan_bytes);
    *same = own == other && !memcmp(plan->text, manifest->plan_text, own);
    if (*same)
        return 0;
    int rc = k3_doc_decode(K3_MANIFEST_NAME, manifest->plan_text, manifest->plan_bytes, &recorded,
                           err);
    if (rc)
        return rc;
    k3_problems_add(problems, "%s: not the checkpoint of this set: its plan is another",
                    against->ckpt->dir.path);
    const char *config = k3_doc_string(k3_doc_find(recorded, "config_sha256"));
    const char *index = k3_doc_string(k3_doc_find(recorded, "index_sha256"));
    k3_hex_encode(plan->config_sha256, K3_DIGEST_BYTES, hex);
    if (config && strcmp(config, hex))
        k3_problems_add(problems, "config.json is not the one the set was made with");
    k3_hex_encode(plan->index_sha256, K3_DIGEST_BYTES, hex);
    if (index && strcmp(index, hex))
        k3_problems_add(problems, K3_INDEX_NAME " is not the one the set was made with");
    tell_headers(against, recorded);
    k3_doc_free(recorded);
    return 0;
}

/* ---- the files beside the weights ---- */

static const struct k3_file_entry *find_copied(const struct k3_manifest *manifest, const char *name)
{
    for (uint32_t i = 0; i < manifest->file_count; i++)
        if (!strcmp(manifest->files[i].name, name))
            return &manifest->files[i];
    return NULL;
}

/* The copied files of the set are those of the checkpoint, by name and by the manifest's digests.
 */
static int compare_copied(struct against *against, struct k3_err *err)
{
    const struct k3_ckpt *ckpt = against->ckpt;
    const struct k3_manifest *manifest = &against->set->manifest;
    struct k3_problems *problems = &against->verify->problems;
    for (uint32_t i = 0; i < ckpt->copied_count; i++) {
        const char *name = ckpt->copied[i];
        const struct k3_file_entry *entry = find_copied(manifest, name);
        uint8_t digest[K3_DIGEST_BYTES];
        uint64_t bytes = 0;
        int rc = k3_verify_sha256(&ckpt->dir, name, true, digest, &bytes, err);
        if (rc)
            return rc;
        if (!entry)
            k3_problems_add(problems, "%s/%s: the set does not have this file", ckpt->dir.path,
                            name);
        else if (bytes != entry->bytes || memcmp(digest, entry->sha256, sizeof digest))
            k3_problems_add(problems, "%s/%s: not the file that the set has", ckpt->dir.path, name);
    }
    for (uint32_t f = 0; f < manifest->file_count; f++) {
        bool known = false;
        for (uint32_t i = 0; i < ckpt->copied_count && !known; i++)
            known = !strcmp(ckpt->copied[i], manifest->files[f].name);
        if (!known)
            k3_problems_add(problems, "%s: in the set, but not in %s", manifest->files[f].name,
                            ckpt->dir.path);
    }
    return 0;
}

/* ---- the run ---- */

static int open_buffers(struct against *against, struct k3_err *err)
{
    uint32_t items = against->ckpt->plan->item_count;
    against->buffers = calloc(against->worker_count, sizeof *against->buffers);
    against->problems = calloc((size_t)items + 1, sizeof *against->problems);
    if (!against->buffers || !against->problems)
        return k3_fail(err, K3_ENOMEM, "no memory to compare %u items", items);
    for (uint32_t w = 0; w < against->worker_count; w++) {
        void *memory = NULL;
        int rc = k3_mem_alloc(3 * (size_t)CHUNK_BYTES, &memory, err);
        if (!rc)
            rc = k3_sha256_open(&against->buffers[w].sha, err);
        against->buffers[w].source = memory;
        if (rc)
            return rc;
        against->buffers[w].packed = against->buffers[w].source + CHUNK_BYTES;
        against->buffers[w].part = against->buffers[w].packed + CHUNK_BYTES;
    }
    return 0;
}

static void close_buffers(struct against *against)
{
    for (uint32_t w = 0; against->buffers && w < against->worker_count; w++) {
        k3_mem_free(against->buffers[w].source, 3 * (size_t)CHUNK_BYTES);
        k3_sha256_close(against->buffers[w].sha);
    }
    for (uint32_t i = 0; against->problems && i < against->ckpt->plan->item_count; i++)
        k3_problems_fini(&against->problems[i]);
    free(against->buffers);
    free(against->problems);
}

static int compare_all(struct against *against, struct k3_err *err)
{
    struct k3_verify *verify = against->verify;
    const struct k3_plan *plan = against->ckpt->plan;
    uint64_t total = 0;
    int rc = open_buffers(against, err);
    if (rc)
        goto out;
    for (uint32_t f = 0; f < plan->source_count; f++)
        if (k3_ckpt_needs_file(against->ckpt, f))
            total += plan->sources[f].bytes;
    struct k3_workers_options options = {.worker_count = against->worker_count,
                                         .task_count = plan->item_count,
                                         .task = compare_item,
                                         .context = against,
                                         .stop = k3_stop_requested};
    k3_raise_file_limit();
    k3_progress_begin(&against->progress, "compare", total, verify->quiet);
    rc = k3_workers_run(&options, err);
    verify->spent_ns += k3_progress_end(&against->progress);
    for (uint32_t i = 0; i < plan->item_count; i++) {
        for (uint32_t k = 0; k < against->problems[i].kept_count; k++)
            k3_problems_add(&verify->problems, "%s", against->problems[i].text[k]);
        verify->problems.count += against->problems[i].count - against->problems[i].kept_count;
    }
    verify->checked_bytes += against->source_bytes;
    if (verify->quick) /* else the same bytes were counted as units */
        verify->checked_bytes += against->compared_bytes;
    k3_verify_checked(verify, "%llu tensor bytes of the parts against %llu bytes of %s",
                      (unsigned long long)against->compared_bytes,
                      (unsigned long long)against->source_bytes, verify->against);
out:
    close_buffers(against);
    return rc;
}

int k3_verify_against_can(const struct k3_set *set, struct k3_err *err)
{
    char text[K3_POLICY_TEXT_BYTES];
    if (k3_policy_is_verbatim(&set->plan->policy))
        return 0;
    k3_policy_short_text(&set->plan->policy, text);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "this set was made with casts (--quant %.200s): it does not hold the bytes of a "
                   "checkpoint; convert again and compare the manifests",
                   text);
}

int k3_verify_against(struct k3_verify *verify, const struct k3_set *set, struct k3_err *err)
{
    struct k3_ranks ranks = set->ranks;
    if (verify->rank_count)
        k3_ranks_clear(&ranks);
    for (uint32_t i = 0; i < verify->rank_count; i++) /* of the set: looked up before */
        k3_ranks_add(&ranks, verify->ranks[i]);
    struct k3_ckpt_options options = {
        .path = verify->against, .layout = &set->layout, .of_set = set, .ranks = &ranks};
    struct k3_ckpt *ckpt = NULL;
    struct k3_err inner;
    bool same = false;
    k3_err_init(&inner);
    struct against *against = calloc(1, sizeof *against);
    if (!against)
        return k3_fail(err, K3_ENOMEM, "no memory to compare with %s", verify->against);
    uint64_t before = verify->problems.count;
    int rc = k3_ckpt_open(&options, &ckpt, &verify->problems, &inner);
    if (rc) {
        /* Its problems are listed one by one; the error only counts them. */
        bool is_listed = verify->problems.count > before && k3_exit_code(rc) == 3;
        rc = is_listed ? 0 : k3_verify_judge(&verify->problems, rc, &inner, err);
        goto out;
    }
    against->verify = verify;
    against->set = set;
    against->ckpt = ckpt;
    against->worker_count = verify->job_count;
    rc = compare_plans(against, &same, err);
    if (!rc && same)
        rc = compare_copied(against, err);
    if (!rc && same)
        rc = compare_all(against, err);
out:
    k3_ckpt_close(ckpt);
    free(against);
    return rc;
}
