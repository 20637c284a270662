/* Purpose: the command bench: what is read, the rounds, the report.
 * Owns: the set, the files, the buffers while it runs.
 * Threads: the main thread; measurements have their own.
 * Errors: those of k3_set_open (exit 3 for what is no set); K3_EUNSUPPORTED without memory for it.
 * Invariants: every row is measured once in every round, in the order of the table; a row that
 * cannot be measured here says why and ends nothing; no result is printed for an interrupted bench.
 */
#include "bench.h"
#include "cmds.h"
#include "doc.h"
#include "fdlimit.h"
#include "machine.h"
#include "mem.h"
#include "mem_room.h"
#include "progress.h"
#include "sha256_blocks.h"
#include "sizes.h"
#include "stop.h"
#include "workers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What one measurement reads lies in memory twice, as image and as page cache; the last third is
 * for everybody else. */
#define MEMORY_PARTS 3u
/* Beyond the caches of most machines; for small sets quick, and beyond those of one core. */
#define BUFFER_MAX   ((size_t)256 << 20)
#define BUFFER_MIN   ((size_t)8 << 20)
#define BUFFER_PARTS 16u                   /* of free memory, each of the two */
#define SMALL_BYTES  (UINT64_C(256) << 20) /* four times what is in flight at the most */

/* ---- what is read ---- */

/* Ranks as asked for; else from the first on as many as --size holds, at least one. */
static int choose_ranks(struct k3_bench *bench, uint64_t bytes_max, struct k3_err *err)
{
    const struct k3_uints *asked = &bench->opts->ranks;
    const struct k3_manifest *manifest = &bench->set->manifest;
    uint32_t count = asked->count ? asked->count : manifest->rank_count;
    bench->ranks = calloc((size_t)count + 1, sizeof *bench->ranks);
    if (!bench->ranks)
        return k3_fail(err, K3_ENOMEM, "no memory for a list of %u ranks", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = asked->count ? asked->item[i] : manifest->ranks[i].rank;
        const struct k3_manifest_rank *rank = k3_set_rank(bench->set, number);
        if (!rank)
            return k3_set_fail_rank(bench->set, number, err);
        if (!asked->count && i && bench->image_bytes + rank->image_bytes > bytes_max)
            break;
        bench->ranks[bench->rank_count++] = number;
        bench->image_bytes += rank->image_bytes;
        bench->fd_count += rank->part_count;
    }
    return 0;
}

/* The data section of a part of the chosen ranks, from where it is not in chunks yet. */
struct source {
    const struct k3_dir *dir;
    uint64_t at_offset, end_offset;
};

static int open_parts(struct k3_bench *bench, struct source *sources, struct k3_err *err)
{
    uint32_t at = 0;
    int rc = 0;
    for (uint32_t r = 0; r < bench->rank_count && !rc; r++) {
        const struct k3_manifest_rank *rank = k3_set_rank(bench->set, bench->ranks[r]);
        for (uint32_t p = 0; p < rank->part_count && !rc; p++, at++) {
            const struct k3_part_entry *entry = &rank->parts[p];
            sources[at] = (struct source){k3_set_part_dir(bench->set, entry->rank, entry->part),
                                          entry->data_offset, entry->bytes};
            rc = k3_set_part_open(bench->set, entry, &bench->fds[at], err);
        }
    }
    return rc;
}

/* The next chunk of the first part in this directory that has one left; false: none. */
static bool next_chunk(struct k3_bench *bench, struct source *sources, const struct k3_dir *dir,
                       uint32_t *from)
{
    while (*from < bench->fd_count &&
           (sources[*from].dir != dir || sources[*from].at_offset == sources[*from].end_offset))
        ++*from;
    if (*from == bench->fd_count)
        return false;
    struct source *source = &sources[*from];
    uint64_t left = source->end_offset - source->at_offset;
    uint32_t bytes = left < K3_BENCH_CHUNK_BYTES ? (uint32_t)left : K3_BENCH_CHUNK_BYTES;
    bench->chunks[bench->chunk_count++] = (struct k3_bench_chunk){source->at_offset, bytes, *from};
    source->at_offset += bytes;
    bench->round_bytes += bytes;
    return true;
}

/* One chunk of each directory in turn, as a load reads. */
static int make_chunks(struct k3_bench *bench, struct source *sources, uint64_t bytes_max,
                       struct k3_err *err)
{
    uint32_t from[K3_SET_DIR_COUNT_MAX] = {0};
    uint64_t count_max = bench->fd_count;
    for (uint32_t i = 0; i < bench->fd_count; i++)
        count_max += sources[i].end_offset / K3_BENCH_CHUNK_BYTES;
    bench->chunks = calloc(count_max + 1, sizeof *bench->chunks);
    if (!bench->chunks)
        return k3_fail(err, K3_ENOMEM, "no memory for %" PRIu64 " chunks", count_max);
    bool more = true;
    while (more && bench->round_bytes < bytes_max) {
        more = false;
        for (uint32_t d = 0; d < bench->set->dir_count && bench->round_bytes < bytes_max; d++)
            more = next_chunk(bench, sources, &bench->set->dirs[d], &from[d]) || more;
    }
    return 0;
}

static int choose(struct k3_bench *bench, struct k3_err *err)
{
    struct k3_mem_room memory;
    (void)k3_mem_room("", &memory);
    bench->memory_bytes = memory.bytes;
    uint64_t bytes_max = bench->memory_bytes / MEMORY_PARTS;
    if (bytes_max > bench->opts->size_bytes)
        bytes_max = bench->opts->size_bytes;
    int rc = k3_bench_device_take(bench, err);
    if (rc)
        return rc;
    /* Beside the images, what the rows of the device need of its memory. */
    if (bench->device_free_bytes && bytes_max > bench->device_free_bytes * 3 / 4)
        bytes_max = bench->device_free_bytes * 3 / 4;
    rc = k3_set_open(bench->opts->args.item, bench->opts->args.count, &bench->set, err);
    if (!rc)
        rc = choose_ranks(bench, bytes_max, err);
    if (rc)
        return rc;
    struct source *sources = calloc((size_t)bench->fd_count + 1, sizeof *sources);
    bench->fds = calloc((size_t)bench->fd_count + 1, sizeof *bench->fds);
    for (uint32_t i = 0; bench->fds && i < bench->fd_count; i++)
        bench->fds[i] = -1;
    if (!sources || !bench->fds) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for a list of %u parts", bench->fd_count);
        goto out;
    }
    rc = open_parts(bench, sources, err);
    if (!rc)
        rc = make_chunks(bench, sources, bytes_max, err);
    if (!rc && bench->round_bytes == 0)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "there is nothing to read: the ranks are empty, or no memory is free (%" PRIu64
                     " bytes)",
                     bench->memory_bytes);
out:
    free(sources);
    return rc;
}

static int open_buffers(struct k3_bench *bench, struct k3_err *err)
{
    void *data = NULL, *other = NULL;
    uint64_t bytes_max = bench->memory_bytes / BUFFER_PARTS;
    bytes_max = bytes_max < BUFFER_MAX ? bytes_max : BUFFER_MAX;
    size_t bytes = (size_t)(bench->round_bytes < bytes_max ? bench->round_bytes : bytes_max);
    bytes = bytes / K3_BENCH_CHUNK_BYTES * K3_BENCH_CHUNK_BYTES;
    bench->buffer_bytes = bytes < BUFFER_MIN ? BUFFER_MIN : bytes;
    bench->core_count = k3_cpu_count();
    bench->shas = calloc(bench->core_count, sizeof *bench->shas);
    int rc = bench->shas ? k3_mem_alloc(bench->buffer_bytes, &data, err)
                         : k3_fail(err, K3_ENOMEM, "no memory for %u cores", bench->core_count);
    bench->data = data;
    if (!rc)
        rc = k3_mem_alloc(bench->buffer_bytes, &other, err);
    bench->other = other;
    for (uint32_t i = 0; !rc && i < bench->core_count; i++)
        rc = k3_sha256_open(&bench->shas[i], err);
    if (rc)
        return rc;
    for (size_t i = 0; i < bench->buffer_bytes; i++)
        bench->data[i] = (uint8_t)(i * 2654435761u >> 13); /* no page of zeros is shared */
    memset(bench->other, 0, bench->buffer_bytes);
    return 0;
}

static void close_bench(struct k3_bench *bench)
{
    k3_bench_scratch_close(bench);
    for (uint32_t i = 0; bench->fds && i < bench->fd_count; i++)
        if (bench->fds[i] >= 0)
            close(bench->fds[i]);
    for (uint32_t i = 0; bench->shas && i < bench->core_count; i++)
        k3_sha256_close(bench->shas[i]);
    k3_mem_free(bench->data, bench->buffer_bytes);
    k3_mem_free(bench->other, bench->buffer_bytes);
    k3_set_close(bench->set);
    free(bench->shas);
    free(bench->chunks);
    free(bench->fds);
    free(bench->ranks);
    free(bench);
}

/* ---- the rounds ---- */

/* Opening and the first reads weigh more than the rest of so little. */
static void say_small(const struct k3_bench *bench)
{
    if (bench->round_bytes < SMALL_BYTES && !bench->opts->quiet)
        fprintf(stderr, "notice: only %s are read at a time: rates of so little say little\n",
                k3_size_text(bench->round_bytes).s);
}

static int measure(struct k3_bench *bench, uint32_t id, struct k3_err *err)
{
    const struct k3_bench_row *row = &k3_bench_rows[id];
    struct k3_bench_result *result = &bench->results[id];
    struct k3_err why;
    double gb_per_s = 0;
    k3_err_init(&why);
    if (result->why[0])
        return 0;
    int rc = row->measure(bench, row, &gb_per_s, &why);
    if (k3_stop_requested())
        return k3_fail(err, K3_ECANCELED, "stopped on request");
    if (rc == K3_EUNSUPPORTED) {
        snprintf(result->why, sizeof result->why, "%.*s", (int)sizeof result->why - 1, why.text);
        result->count = 0; /* a row has all rounds or none */
        return 0;
    }
    if (rc) {
        if (err && !err->rc)
            *err = why;
        return rc;
    }
    result->gb_per_s[result->count++] = gb_per_s;
    return 0;
}

static int run_rounds(struct k3_bench *bench, struct k3_err *err)
{
    say_small(bench);
    int rc = bench->opts->scratch ? k3_bench_scratch_open(bench, err) : 0;
    for (uint32_t round = 0; !rc && round < bench->opts->rounds; round++) {
        for (uint32_t id = 0; !rc && id < K3_ROW_COUNT; id++) {
            if (!bench->opts->quiet && isatty(STDERR_FILENO))
                fprintf(stderr, "\r\033[Kround %u of %u: %s", round + 1, bench->opts->rounds,
                        k3_bench_rows[id].text);
            rc = measure(bench, id, err);
        }
        if (!bench->opts->quiet)
            fprintf(stderr, "%sround %u of %u %s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "",
                    round + 1, bench->opts->rounds, rc ? "was not finished" : "done");
    }
    return rc;
}

/* ---- the report ---- */

static bool add_doubles(struct k3_doc *row, const char *name, const double *values, uint32_t count)
{
    struct k3_doc *array = k3_doc_add_array(row, name);
    bool added = array != NULL;
    for (uint32_t i = 0; i < count && added; i++)
        added = k3_doc_add_double(array, NULL, values[i]);
    return added;
}

static bool add_verdict(struct k3_doc *row, const struct k3_bench *bench, uint32_t id)
{
    const struct k3_bench_result *result = &bench->results[id];
    struct k3_bench_verdict verdict;
    k3_bench_judge(bench->results, (enum k3_bench_row_id)id, &verdict);
    bool added = !result->io[0] ||
                 (k3_doc_add_string(row, "io", result->io) &&
                  k3_doc_add_bool(row, "direct", result->is_direct) &&
                  k3_doc_add_bool(row, "partial", result->is_partial) &&
                  k3_doc_add_bool(row, "verified", k3_bench_rows[id].is_verified));
    if (!added || !verdict.limit)
        return added;
    return k3_doc_add_string(row, "limit", verdict.limit) &&
           k3_doc_add_double(row, "limit_gb_per_s", verdict.limit_gb_per_s) &&
           k3_doc_add_double(row, "percent_of_limit", verdict.percent_of_limit) &&
           add_doubles(row, "limit_gb_per_s_rounds", verdict.limit_rounds, verdict.count) &&
           add_doubles(row, "percent_rounds", verdict.percent_rounds, verdict.count);
}

static bool add_row(struct k3_doc *array, const struct k3_bench *bench, uint32_t id)
{
    const struct k3_bench_result *result = &bench->results[id];
    struct k3_doc *row = k3_doc_add_object(array, NULL);
    if (!row || !k3_doc_add_string(row, "name", k3_bench_rows[id].name))
        return false;
    if (result->count == 0)
        return k3_doc_add_string(row, "reason", result->why);
    return k3_doc_add_double(row, "gb_per_s", k3_bench_median(result->gb_per_s, result->count)) &&
           add_doubles(row, "gb_per_s_rounds", result->gb_per_s, result->count) &&
           (!k3_bench_rows[id].limits || add_verdict(row, bench, id));
}

static bool add_rows(struct k3_doc *root, const struct k3_bench *bench, bool jobs)
{
    struct k3_doc *array = k3_doc_add_array(root, jobs ? "jobs" : "ceilings");
    bool added = array != NULL;
    for (uint32_t id = 0; id < K3_ROW_COUNT && added; id++)
        if ((k3_bench_rows[id].limits != 0) == jobs)
            added = add_row(array, bench, id);
    return added;
}

static bool add_ranks(struct k3_doc *root, const struct k3_bench *bench)
{
    struct k3_doc *array = k3_doc_add_array(root, "ranks");
    bool added = array != NULL;
    for (uint32_t i = 0; i < bench->rank_count && added; i++)
        added = k3_doc_add_integer(array, NULL, bench->ranks[i]);
    return added;
}

static int print_json(const struct k3_bench *bench, const struct k3_machine_mount *mount,
                      struct k3_err *err)
{
    enum k3_bench_row_id best = k3_bench_best(bench->results, K3_LIMIT_STORAGE);
    struct k3_doc *root = k3_doc_new_object();
    bool added = root && k3_doc_add_integer(root, "round_count", bench->opts->rounds) &&
                 k3_doc_add_integer(root, "round_bytes", bench->round_bytes) &&
                 k3_doc_add_integer(root, "image_bytes", bench->image_bytes) &&
                 k3_doc_add_integer(root, "scratch_bytes", bench->copy_bytes) &&
                 k3_doc_add_integer(root, "buffer_bytes", bench->buffer_bytes) &&
                 k3_doc_add_integer(root, "core_count", bench->core_count) &&
                 k3_doc_add_string(root, "sha256_form", k3_sha256_form_name(k3_sha256_form())) &&
                 k3_doc_add_string(root, "file_system", mount->type) &&
                 k3_doc_add_string(root, "device", bench->opts->device) &&
                 k3_doc_add_string(root, "best_storage",
                                   best == K3_ROW_COUNT ? "" : k3_bench_rows[best].name) &&
                 add_ranks(root, bench) && add_rows(root, bench, false) &&
                 add_rows(root, bench, true);
    int rc = added ? k3_result_print(root, err)
                   : k3_fail(err, K3_ENOMEM, "no memory for the report");
    k3_doc_free(root);
    return rc;
}

static void print_job(const struct k3_bench *bench, uint32_t id)
{
    const struct k3_bench_result *result = &bench->results[id];
    struct k3_bench_verdict verdict;
    k3_bench_judge(bench->results, (enum k3_bench_row_id)id, &verdict);
    printf("%8.2f", verdict.gb_per_s);
    if (result->io[0])
        printf("  %s, %s the page cache%s", result->io, result->is_direct ? "past" : "through",
               result->is_partial ? ", in part" : "");
    if (verdict.limit)
        printf("; %.1f %% of %.2f (%s)", verdict.percent_of_limit, verdict.limit_gb_per_s,
               verdict.limit);
    putchar('\n');
}

static void print_rows(const struct k3_bench *bench, bool jobs)
{
    enum k3_bench_row_id best = k3_bench_best(bench->results, K3_LIMIT_STORAGE);
    printf("\n%-44s%8s\n", jobs ? "job" : "ceiling", "GB/s");
    for (uint32_t id = 0; id < K3_ROW_COUNT; id++) {
        const struct k3_bench_result *result = &bench->results[id];
        if ((k3_bench_rows[id].limits != 0) != jobs)
            continue;
        printf("%-44s", k3_bench_rows[id].text);
        if (result->count == 0)
            printf("%8s  %s\n", "-", result->why);
        else if (jobs)
            print_job(bench, id);
        else
            printf("%8.2f%s\n", k3_bench_median(result->gb_per_s, result->count),
                   id == (uint32_t)best ? "  the best of storage" : "");
    }
}

static void print_text(const struct k3_bench *bench, const struct k3_machine_mount *mount)
{
    printf("set       %u rank%s, %s of images; one measurement reads %s\n", bench->rank_count,
           bench->rank_count == 1 ? "" : "s", k3_size_text(bench->image_bytes).s,
           k3_size_text(bench->round_bytes).s);
    printf("lies on   %s of %s%s\n", mount->type, mount->source,
           mount->is_in_memory ? ": in memory, so what is called storage below is memory" : "");
    printf("machine   %u core%s, tree hash by %s\n", bench->core_count,
           bench->core_count == 1 ? "" : "s", k3_sha256_form_name(k3_sha256_form()));
    printf("measured  %u round%s, in turn; medians\n", bench->opts->rounds,
           bench->opts->rounds == 1 ? "" : "s");
    print_rows(bench, false);
    print_rows(bench, true);
}

int k3_cmd_bench(const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_machine_mount mount;
    struct k3_bench *bench = calloc(1, sizeof *bench);
    if (!bench)
        return k3_fail(err, K3_ENOMEM, "no memory to measure");
    bench->opts = opts;
    k3_raise_file_limit(); /* of every part: once here, twice in a load */
    int rc = choose(bench, err);
    if (!rc)
        rc = open_buffers(bench, err);
    if (!rc)
        rc = run_rounds(bench, err);
    if (rc)
        goto out;
    if (!k3_machine_mount(bench->set->dirs[bench->set->manifest_dir].fd, &mount))
        snprintf(mount.type, sizeof mount.type, "unknown");
    if (opts->json)
        rc = print_json(bench, &mount, err);
    else
        print_text(bench, &mount);
out:
    close_bench(bench);
    return rc;
}
