/* Purpose: rebuild the published checkpoint from the parts of a set.
 * Owns: two buffers for each worker, the temporary files while they are written.
 * Threads: one item is one task; a worker has its own buffers.
 * Errors: K3_EUNSUPPORTED, K3_ECORRUPT, K3_EIO, K3_ENOMEM, K3_ECANCELED; the first one ends the
 * run.
 * Invariants: a file gets its name only after its SHA-256 was that of the manifest and its bytes
 * are durable; every tensor byte comes from exactly one place; the index comes last, so a
 * directory without it is visibly unfinished. */
#include "export.h"

#include "ckpt.h"
#include "fdlimit.h"
#include "mem.h"
#include "progress.h"
#include "scatter.h"
#include "sha256.h"
#include "sizes.h"
#include "stop.h"
#include "workers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define CHUNK_BYTES     (8u << 20) /* rows of a K3 matrix by the hundred: reads stay long */
#define TEMPORARY_BYTES 32u        /* ".export-4294967295.partial" and NUL */
#define INDEX_TEMPORARY ".export-index.partial"

struct worker {
    uint8_t *data, *packed; /* CHUNK_BYTES each */
    struct k3_sha256 *sha;
};

struct exporter {
    const struct k3_set *set;
    const struct k3_ckpt *ckpt;
    struct k3_dir to;
    struct worker *workers;
    uint32_t worker_count;
    struct k3_progress progress;
};

/* One source file while it is rebuilt. */
struct rebuild {
    struct exporter *exporter;
    struct k3_scatter *scatter;
    struct worker *worker;
    const int *fds; /* by target */
    uint32_t file;
};

static const struct k3_part_entry *find_entry(const struct k3_set *set, const struct k3_part *part)
{
    const struct k3_manifest_rank *rank = k3_set_rank(set, part->rank);
    for (uint32_t i = 0; rank && i < rank->part_count; i++)
        if (rank->parts[i].part == part->part)
            return &rank->parts[i];
    return NULL;
}

/* ---- one run of bytes ---- */

/* Fill one run of a tensor from the parts that hold its slices. */
static int fill_run(struct rebuild *rebuild, const struct k3_run *run, uint8_t *data,
                    struct k3_err *err)
{
    struct k3_scatter *scatter = rebuild->scatter;
    char name[K3_NAME_BYTES_MAX + 1];
    uint64_t tail = k3_scatter_tail(scatter, run->slot), filled = 0;
    for (uint32_t t = 0; t < scatter->target_count; t++) {
        struct k3_place_run place;
        if (!k3_scatter_is_first(scatter, run->slot, t))
            continue;
        k3_scatter_place(scatter, run, t, &place);
        if (place.bytes == 0)
            continue;
        k3_part_name(scatter->targets[t].part.rank, scatter->targets[t].part.part, name);
        uint8_t *target = place.is_straight ? data + place.first : rebuild->worker->packed;
        int rc = k3_file_read(rebuild->fds[t], name, target, (size_t)place.bytes, place.file_offset,
                              err);
        if (rc)
            return k3_fail_in(k3_set_part_dir(rebuild->exporter->set, scatter->targets[t].part.rank,
                                              scatter->targets[t].part.part),
                              rc, err);
        if (!place.is_straight)
            k3_spread_columns(run, place.slice, target, data);
        filled += place.bytes;
    }
    uint64_t begin = tail > run->begin ? tail : run->begin;
    if (begin < run->end) {
        memset(data + (begin - run->begin), 0, (size_t)(run->end - begin));
        filled += run->end - begin;
    }
    if (filled == run->end - run->begin)
        return 0;
    char tensor[K3_ST_NAME_BYTES_MAX + 1];
    k3_plan_slot_name(scatter->ckpt->plan, run->slot, tensor, sizeof tensor);
    return k3_fail(err, K3_ECORRUPT,
                   "%s: the parts give %llu of the %llu bytes at %llu: not every byte once", tensor,
                   (unsigned long long)filled, (unsigned long long)(run->end - run->begin),
                   (unsigned long long)run->begin);
}

/* Fill the buffer with the bytes of a range of the file. */
static int fill_chunk(struct rebuild *rebuild, struct k3_range *range, struct k3_err *err)
{
    const struct k3_ckpt *ckpt = rebuild->exporter->ckpt;
    const struct k3_source *source = &ckpt->plan->sources[rebuild->file];
    const struct k3_header_entry *header = &ckpt->headers.entries[rebuild->file + 2];
    uint8_t *data = rebuild->worker->data;
    struct k3_run run;
    uint64_t data_at, filled = 0;
    if (range->offset < header->bytes) {
        filled = header->bytes - range->offset;
        filled = filled < range->bytes ? filled : range->bytes;
        memcpy(data, header->data + range->offset, (size_t)filled);
    }
    while (k3_scatter_next(rebuild->scatter, range, &run, &data_at)) {
        int rc = fill_run(rebuild, &run, data + data_at, err);
        if (rc)
            return rc;
        filled += run.end - run.begin;
    }
    if (filled != range->bytes)
        return k3_fail_at(err, K3_ECORRUPT, source->name, (int64_t)range->offset,
                          "%s: header and tensors give %llu of the %llu bytes at %llu",
                          source->name, (unsigned long long)filled,
                          (unsigned long long)range->bytes, (unsigned long long)range->offset);
    return 0;
}

/* ---- files ---- */

/* Give a temporary file its name, when its digest is the one on record. */
static int finish_file(struct exporter *exporter, int fd, const char *temporary,
                       const struct k3_file_entry *entry, const uint8_t *digest, struct k3_err *err)
{
    if (memcmp(digest, entry->sha256, K3_DIGEST_BYTES)) {
        char found[K3_HEX_BYTES], wanted[K3_HEX_BYTES];
        k3_hex_encode(digest, K3_DIGEST_BYTES, found);
        k3_hex_encode(entry->sha256, K3_DIGEST_BYTES, wanted);
        return k3_fail_at(err, K3_ECORRUPT, entry->name, -1,
                          "%s: what the set gives has SHA-256 %s, the manifest records %s: run "
                          "k3-shard verify on the set",
                          entry->name, found, wanted);
    }
    int rc = k3_file_sync(fd, entry->name, err);
    if (!rc)
        rc = k3_file_rename(&exporter->to, temporary, &exporter->to, entry->name, err);
    if (!rc)
        k3_file_drop(fd, 0, entry->bytes);
    return rc;
}

static int write_chunks(struct rebuild *rebuild, int fd, const char *name, uint64_t total,
                        struct k3_err *err)
{
    struct exporter *exporter = rebuild->exporter;
    struct k3_range range = {.file = rebuild->file};
    for (uint64_t at = 0; at < total; at += CHUNK_BYTES) {
        size_t n = total - at < CHUNK_BYTES ? (size_t)(total - at) : CHUNK_BYTES;
        if (k3_stop_requested())
            return k3_fail(err, K3_ECANCELED, "stopped on request while %s was written", name);
        range.offset = at;
        range.bytes = n;
        int rc = fill_chunk(rebuild, &range, err);
        if (!rc)
            rc = k3_file_write(fd, name, rebuild->worker->data, n, at, err);
        if (rc)
            return rc;
        k3_sha256_update(rebuild->worker->sha, rebuild->worker->data, n);
        k3_progress_add(&exporter->progress, n);
    }
    return 0;
}

static int rebuild_file(struct rebuild *rebuild, struct k3_err *err)
{
    struct exporter *exporter = rebuild->exporter;
    const char *name = exporter->ckpt->plan->sources[rebuild->file].name;
    const struct k3_file_entry *entry = k3_set_source(exporter->set, name);
    char temporary[TEMPORARY_BYTES];
    uint8_t digest[K3_DIGEST_BYTES];
    int fd = -1;
    if (!entry) /* a set that holds all bytes lists all sources: checked when it was opened */
        return k3_fail(err, K3_ECORRUPT, "%s: the manifest does not list this source", name);
    snprintf(temporary, sizeof temporary, ".export-%u.partial", rebuild->file);
    int rc = k3_file_create(&exporter->to, temporary, &fd, err);
    if (rc)
        return rc;
    rc = k3_file_reserve(fd, entry->name, entry->bytes, err);
    k3_sha256_begin(rebuild->worker->sha);
    if (!rc)
        rc = write_chunks(rebuild, fd, entry->name, entry->bytes, err);
    k3_sha256_final(rebuild->worker->sha, digest);
    if (!rc)
        rc = finish_file(exporter, fd, temporary, entry, digest, err);
    int close_rc = k3_file_close(fd, entry->name, err);
    if (rc)
        k3_file_remove(&exporter->to, temporary, NULL);
    return k3_fail_in(&exporter->to, rc ? rc : close_rc, err);
}

static int open_targets(const struct exporter *exporter, const struct k3_scatter *scatter, int *fds,
                        struct k3_err *err)
{
    for (uint32_t t = 0; t < scatter->target_count; t++) {
        const struct k3_target *target = &scatter->targets[t];
        const struct k3_part_entry *entry = find_entry(exporter->set, &target->part);
        if (!entry || entry->bytes != target->file_bytes)
            return k3_fail(err, K3_ECORRUPT,
                           "part %u of rank %u is not in the manifest with the size of the plan",
                           target->part.part, target->part.rank);
        int rc = k3_set_part_open(exporter->set, entry, &fds[t], err);
        if (rc)
            return rc;
    }
    return 0;
}

static int export_item(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct exporter *exporter = context;
    const struct k3_item *item = &exporter->ckpt->plan->items[task];
    struct rebuild rebuild = {.exporter = exporter, .worker = &exporter->workers[worker]};
    int rc = k3_scatter_open(exporter->ckpt, (uint32_t)task, &rebuild.scatter, err);
    if (rc)
        return rc;
    uint32_t targets = rebuild.scatter->target_count;
    int *fds = malloc((targets + 1) * sizeof *fds);
    if (!fds) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for item %llu", (unsigned long long)task);
        goto out;
    }
    for (uint32_t t = 0; t < targets; t++)
        fds[t] = -1;
    rebuild.fds = fds;
    rc = open_targets(exporter, rebuild.scatter, fds, err);
    for (uint32_t f = 0; f < item->file_count && !rc; f++) {
        rebuild.file = item->files[f];
        rc = rebuild_file(&rebuild, err);
    }
    for (uint32_t t = 0; t < targets; t++) {
        if (fds[t] < 0)
            continue;
        k3_file_drop(fds[t], 0, rebuild.scatter->targets[t].file_bytes);
        close(fds[t]);
    }
out:
    free(fds);
    k3_scatter_close(rebuild.scatter);
    return rc;
}

/* Copy a file that the set carries beside its parts. */
static int copy_file(struct exporter *exporter, uint32_t number, struct k3_err *err)
{
    const struct k3_file_entry *entry = &exporter->set->manifest.files[number];
    const struct k3_dir *from = &exporter->set->dirs[exporter->set->manifest_dir];
    struct worker *worker = &exporter->workers[0];
    char temporary[TEMPORARY_BYTES];
    uint8_t digest[K3_DIGEST_BYTES];
    int source = -1, fd = -1;
    struct stat stat;
    snprintf(temporary, sizeof temporary, ".export-c%u.partial", number);
    int rc = k3_file_open(from, entry->name, false, &source, &stat, err);
    if (!rc && (uint64_t)stat.st_size != entry->bytes)
        rc = k3_fail_at(err, K3_ECORRUPT, entry->name, -1,
                        "%s/%s: %llu bytes, the manifest records %llu", from->path, entry->name,
                        (unsigned long long)stat.st_size, (unsigned long long)entry->bytes);
    if (!rc)
        rc = k3_file_create(&exporter->to, temporary, &fd, err);
    if (rc)
        goto out;
    k3_sha256_begin(worker->sha);
    for (uint64_t at = 0; at < entry->bytes && !rc; at += CHUNK_BYTES) {
        size_t n = entry->bytes - at < CHUNK_BYTES ? (size_t)(entry->bytes - at) : CHUNK_BYTES;
        rc = k3_fail_in(from, k3_file_read(source, entry->name, worker->data, n, at, err), err);
        if (!rc)
            rc = k3_file_write(fd, entry->name, worker->data, n, at, err);
        k3_sha256_update(worker->sha, worker->data, n);
    }
    k3_sha256_final(worker->sha, digest);
    if (!rc)
        rc = finish_file(exporter, fd, temporary, entry, digest, err);
out:
    if (source >= 0)
        close(source);
    if (fd >= 0) {
        int close_rc = k3_file_close(fd, entry->name, err);
        rc = rc ? rc : close_rc;
        if (rc)
            k3_file_remove(&exporter->to, temporary, NULL);
    }
    return k3_fail_in(&exporter->to, rc, err);
}

/* ---- the run ---- */

/* A partial set may still hold every byte, where the ranks that it lacks are copies. */
static int check_whole(const struct k3_set *set, const struct k3_ckpt *ckpt, struct k3_err *err)
{
    bool is_whole = true;
    int rc = 0;
    if (!k3_set_is_partial(set))
        return 0;
    for (uint32_t item = 0; item < ckpt->plan->item_count && is_whole && !rc; item++) {
        struct k3_scatter *scatter = NULL;
        rc = k3_scatter_open(ckpt, item, &scatter, err);
        is_whole = !rc && k3_scatter_is_whole(scatter);
        k3_scatter_close(scatter);
    }
    if (rc || is_whole)
        return rc;
    char held_shown[K3_RANKS_SHOWN_BYTES], missing_shown[K3_RANKS_SHOWN_BYTES];
    struct k3_ranks missing;
    k3_ranks_clear(&missing);
    for (uint32_t rank = 0; rank < k3_layout_world(&set->layout); rank++)
        if (!k3_ranks_has(&set->ranks, rank))
            k3_ranks_add(&missing, rank);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "this set holds rank%s %s of %u; bytes of the checkpoint are only in those that "
                   "are missing (%s), so it cannot be rebuilt: export from a set of all ranks",
                   set->ranks.count == 1 ? "" : "s", k3_ranks_shown(&set->ranks, held_shown),
                   k3_layout_world(&set->layout), k3_ranks_shown(&missing, missing_shown));
}

/* ".export-N.partial", ".export-cN.partial", ".export-index.partial": names that only an export
 * gives, to files that are not finished. */
static bool is_leftover(const char *name)
{
    static const char head[] = ".export-", tail[] = ".partial";
    if (!strcmp(name, INDEX_TEMPORARY))
        return true;
    if (strncmp(name, head, sizeof head - 1))
        return false;
    const char *digits = name + sizeof head - 1;
    digits += *digits == 'c';
    size_t count = strspn(digits, "0123456789");
    return count > 0 && count <= 10 && !strcmp(digits + count, tail);
}

/* The directory must hold nothing but what an interrupted export left unfinished; that goes. */
static int clear_leftovers(struct exporter *exporter, uint32_t *removed, struct k3_err *err)
{
    const struct k3_dir *to = &exporter->to;
    char **names = NULL;
    uint32_t count = 0;
    /* A lock the file system does not have is no reason to stop. */
    if (flock(to->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "%s: another export is writing here: wait for it, or stop it", to->path);
    int rc = k3_dir_list(to, &names, &count, err);
    for (uint32_t i = 0; i < count && !rc; i++)
        if (!is_leftover(names[i]))
            rc = k3_fail(err, K3_EUNSUPPORTED,
                         "%s is not empty (%u names, one is %s): an export needs an empty "
                         "directory; what an interrupted export left may be removed",
                         to->path, count, names[i]);
    for (uint32_t i = 0; i < count && !rc; i++) {
        rc = k3_file_remove(to, names[i], err);
        *removed += !rc;
    }
    k3_names_free(names, count);
    return rc;
}

/* The directory must be free, and the files must fit. */
static int open_target(struct exporter *exporter, const char *to, struct k3_export_report *report,
                       struct k3_err *err)
{
    const uint64_t bytes = report->bytes;
    uint64_t free_bytes = 0;
    int rc = k3_dir_open(to, true, &exporter->to, err);
    if (!rc)
        rc = clear_leftovers(exporter, &report->leftover_count, err);
    if (!rc)
        rc = k3_dir_free_bytes(&exporter->to, &free_bytes, err);
    if (!rc && free_bytes < bytes)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "%s: the checkpoint needs %s, %s are free: make room or give another --to", to,
                     k3_size_text(bytes).s, k3_size_text(free_bytes).s);
    return rc;
}

static int open_workers(struct exporter *exporter, uint32_t jobs, struct k3_err *err)
{
    uint32_t items = exporter->ckpt->plan->item_count;
    uint32_t count = jobs < items ? jobs : items;
    exporter->worker_count = count ? count : 1;
    exporter->workers = calloc(exporter->worker_count, sizeof *exporter->workers);
    if (!exporter->workers)
        return k3_fail(err, K3_ENOMEM, "no memory for %u workers", exporter->worker_count);
    for (uint32_t w = 0; w < exporter->worker_count; w++) {
        void *memory = NULL;
        int rc = k3_mem_alloc(2 * (size_t)CHUNK_BYTES, &memory, err);
        exporter->workers[w].data = memory;
        if (!rc)
            rc = k3_sha256_open(&exporter->workers[w].sha, err);
        if (rc)
            return rc;
        exporter->workers[w].packed = exporter->workers[w].data + CHUNK_BYTES;
    }
    return 0;
}

static void close_workers(struct exporter *exporter)
{
    for (uint32_t w = 0; exporter->workers && w < exporter->worker_count; w++) {
        k3_mem_free(exporter->workers[w].data, 2 * (size_t)CHUNK_BYTES);
        k3_sha256_close(exporter->workers[w].sha);
    }
    free(exporter->workers);
}

static int write_all(struct exporter *exporter, struct k3_err *err)
{
    const struct k3_header_entry *index = &exporter->ckpt->headers.entries[1];
    struct k3_workers_options options = {.worker_count = exporter->worker_count,
                                         .task_count = exporter->ckpt->plan->item_count,
                                         .task = export_item,
                                         .context = exporter,
                                         .stop = k3_stop_requested};
    int rc = k3_workers_run(&options, err);
    for (uint32_t i = 0; i < exporter->set->manifest.file_count && !rc; i++)
        rc = copy_file(exporter, i, err);
    if (!rc)
        rc = k3_dir_sync(&exporter->to, err);
    if (!rc)
        rc = k3_file_publish(&exporter->to, INDEX_TEMPORARY, K3_INDEX_NAME, index->data,
                             index->bytes, err);
    return rc;
}

static uint64_t count_bytes(const struct exporter *exporter, uint64_t *files)
{
    const struct k3_manifest *manifest = &exporter->set->manifest;
    uint64_t bytes = exporter->ckpt->headers.entries[1].bytes;
    for (uint32_t i = 0; i < manifest->source_count; i++)
        bytes += manifest->sources[i].bytes;
    for (uint32_t i = 0; i < manifest->file_count; i++)
        bytes += manifest->files[i].bytes;
    *files = (uint64_t)manifest->source_count + manifest->file_count + 1;
    return bytes;
}

static int run(const struct k3_export_options *options, struct exporter *exporter,
               struct k3_export_report *report, struct k3_err *err)
{
    uint64_t source_bytes = 0;
    report->bytes = count_bytes(exporter, &report->file_count);
    for (uint32_t i = 0; i < exporter->set->manifest.source_count; i++)
        source_bytes += exporter->set->manifest.sources[i].bytes;
    int rc = open_target(exporter, options->to, report, err);
    if (!rc)
        rc = open_workers(exporter, options->job_count, err);
    if (rc)
        return rc;
    k3_raise_file_limit();
    k3_progress_begin(&exporter->progress, "export", source_bytes, options->quiet);
    rc = write_all(exporter, err);
    if (rc == K3_ECANCELED && err) {
        k3_err_init(err);
        k3_fail(err, rc,
                "stopped on request: %s holds no whole checkpoint: remove what is in it, then "
                "export again",
                options->to);
    }
    report->spent_ns = k3_progress_end(&exporter->progress);
    return rc;
}

int k3_export(const struct k3_export_options *options, struct k3_export_report *report,
              struct k3_err *err)
{
    struct k3_set *set = NULL;
    struct k3_ckpt *ckpt = NULL;
    memset(report, 0, sizeof *report);
    struct exporter *exporter = calloc(1, sizeof *exporter);
    if (!exporter)
        return k3_fail(err, K3_ENOMEM, "no memory to export");
    exporter->to.fd = -1;
    int rc = k3_set_open(options->dirs, options->dir_count, &set, err);
    if (!rc && set->layout.vision == K3_VISION_DROP)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "this set was made with --vision drop: the vision tensors are not in it, so "
                     "the checkpoint cannot be rebuilt from it");
    if (!rc && !k3_policy_is_verbatim(&set->plan->policy)) {
        char text[K3_POLICY_TEXT_BYTES];
        k3_policy_short_text(&set->plan->policy, text);
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "this set was made with casts (--quant %.200s): the published bytes are not "
                     "in it, so the checkpoint cannot be rebuilt from it: use the published files "
                     "that it was made of",
                     text);
    }
    if (!rc)
        rc = k3_ckpt_open_set(set, &ckpt, err);
    if (!rc)
        rc = check_whole(set, ckpt, err);
    exporter->set = set;
    exporter->ckpt = ckpt;
    if (!rc)
        rc = run(options, exporter, report, err);
    close_workers(exporter);
    k3_dir_close(&exporter->to);
    free(exporter);
    k3_ckpt_close(ckpt);
    k3_set_close(set);
    return rc;
}
