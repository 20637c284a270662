/* Purpose: the table of rows, and what the figures of a bench say.
 * Owns: nothing.
 * Threads: any.
 * Errors: none.
 * Invariants: a job is compared with ceilings of the same round, so that a slow moment is no
 * verdict; which ceiling is the limit is decided by the medians, once for all rounds. */
#include "bench.h"
#include "sha256_blocks.h"

#include <stdlib.h>
#include <string.h>

#define BIT(limit) (1u << K3_LIMIT_##limit)
#define ALL_CORES  0u

const struct k3_bench_row k3_bench_rows[K3_ROW_COUNT] = {
    [K3_ROW_DIRECT_1] = {"storage_depth_1", "storage, direct reads of 4 MiB, depth 1",
                         k3_bench_direct, K3_LIMIT_STORAGE, .parameter = 1},
    [K3_ROW_DIRECT_4] = {"storage_depth_4", "storage, direct reads of 4 MiB, depth 4",
                         k3_bench_direct, K3_LIMIT_STORAGE, .parameter = 4},
    [K3_ROW_DIRECT_16] = {"storage_depth_16", "storage, direct reads of 4 MiB, depth 16",
                          k3_bench_direct, K3_LIMIT_STORAGE, .parameter = 16},
    [K3_ROW_DIRECT_64] = {"storage_depth_64", "storage, direct reads of 4 MiB, depth 64",
                          k3_bench_direct, K3_LIMIT_STORAGE, .parameter = 64},
    [K3_ROW_DIRECT_THREADS] = {"storage_threads_16", "storage, direct reads by 16 threads",
                               k3_bench_direct, K3_LIMIT_STORAGE, .parameter = 16},
    [K3_ROW_LOAD_COLD] = {"load_cold", "load, cold, verified", k3_bench_load,
                          .limits = BIT(STORAGE) | BIT(HASH), .is_verified = true},
    [K3_ROW_LOAD_COLD_UNVERIFIED] = {"load_cold_unverified", "load, cold, not verified",
                                     k3_bench_load, .limits = BIT(STORAGE)},
    [K3_ROW_BUS] = {"device_copy", "device, copies from pinned memory", k3_bench_bus, K3_LIMIT_BUS},
    [K3_ROW_DEVICE_COLD] = {"load_device_cold", "load to device, cold, verified", k3_bench_load,
                            .limits = BIT(STORAGE) | BIT(BUS), .is_verified = true,
                            .is_device = true},
    [K3_ROW_DEVICE_COLD_UNVERIFIED] = {"load_device_cold_unverified",
                                       "load to device, cold, not verified", k3_bench_load,
                                       .limits = BIT(STORAGE) | BIT(BUS), .is_device = true},
    [K3_ROW_PAGE_CACHE] = {"page_cache", "page cache, reads of hot pages, all cores",
                           k3_bench_page_cache, K3_LIMIT_MEMORY},
    [K3_ROW_LOAD_HOT] = {"load_hot", "load, hot, verified", k3_bench_load,
                         .limits = BIT(MEMORY) | BIT(HASH), .is_verified = true, .is_hot = true},
    [K3_ROW_LOAD_HOT_UNVERIFIED] = {"load_hot_unverified", "load, hot, not verified", k3_bench_load,
                                    .limits = BIT(MEMORY), .is_hot = true},
    [K3_ROW_DEVICE_HOT] = {"load_device_hot", "load to device, hot, verified", k3_bench_load,
                           .limits = BIT(MEMORY) | BIT(BUS), .is_verified = true, .is_hot = true,
                           .is_device = true},
    [K3_ROW_DEVICE_HOT_UNVERIFIED] = {"load_device_hot_unverified",
                                      "load to device, hot, not verified", k3_bench_load,
                                      .limits = BIT(MEMORY) | BIT(BUS), .is_hot = true,
                                      .is_device = true},
    [K3_ROW_DEVICE_HASH] = {"device_hash", "device, tree hash of units in its memory",
                            k3_bench_device_hash},
    [K3_ROW_MEMCPY] = {"memcpy_one_core", "memory, memcpy, one core", k3_bench_memcpy,
                       .parameter = 1},
    [K3_ROW_MEMCPY_ALL] = {"memcpy_all_cores", "memory, memcpy, all cores", k3_bench_memcpy,
                           .parameter = ALL_CORES},
    [K3_ROW_HASH] = {"hash_one_core", "tree hash, one core", k3_bench_hash,
                     .parameter = K3_SHA256_FORM_COUNT},
    [K3_ROW_HASH_LIBCRYPTO] = {"hash_one_core_libcrypto", "tree hash, one core, libcrypto",
                               k3_bench_hash, .parameter = K3_SHA256_LIBCRYPTO},
    [K3_ROW_HASH_ALL] = {"hash_all_cores", "tree hash, all cores", k3_bench_hash, K3_LIMIT_HASH,
                         .parameter = K3_SHA256_FORM_COUNT},
    [K3_ROW_STREAM] = {"sha256_stream", "SHA-256 of one stream (convert)", k3_bench_stream},
    [K3_ROW_COPY] = {"copy_sync_read", "copy files, sync, read the copy direct", k3_bench_copy,
                     K3_LIMIT_COPY},
    [K3_ROW_CONVERT] = {"convert", "convert, all read back and hashed", k3_bench_convert,
                        .limits = BIT(COPY)},
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double k3_bench_median(const double *values, uint32_t count)
{
    double sorted[K3_BENCH_ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, compare_doubles);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

enum k3_bench_row_id k3_bench_best(const struct k3_bench_result results[K3_ROW_COUNT],
                                   enum k3_bench_limit limit)
{
    enum k3_bench_row_id best = K3_ROW_COUNT;
    double best_gb_per_s = 0;
    for (uint32_t i = 0; i < K3_ROW_COUNT; i++) {
        if (k3_bench_rows[i].is_ceiling_of != limit || results[i].count == 0)
            continue;
        double gb_per_s = k3_bench_median(results[i].gb_per_s, results[i].count);
        if (gb_per_s <= best_gb_per_s)
            continue;
        best = (enum k3_bench_row_id)i;
        best_gb_per_s = gb_per_s;
    }
    return best;
}

/* What may limit the job as it ran: one that went through the page cache did not wait for the
 * storage. */
static uint32_t limits_of(const struct k3_bench_result *result, const struct k3_bench_row *row)
{
    if (row->limits & BIT(STORAGE) && !result->is_direct)
        return (row->limits & ~BIT(STORAGE)) | BIT(MEMORY);
    return row->limits;
}

static double median_of(const struct k3_bench_result *results, enum k3_bench_row_id id)
{
    return id == K3_ROW_COUNT ? 0 : k3_bench_median(results[id].gb_per_s, results[id].count);
}

/* The limit: a ceiling, or two that the same cores serve one after the other. */
struct limit {
    enum k3_bench_row_id row, second; /* K3_ROW_COUNT: none */
    const char *name;
};

static const char *const limit_names[K3_LIMIT_COUNT] = {
    [K3_LIMIT_STORAGE] = "storage", [K3_LIMIT_MEMORY] = "memory", [K3_LIMIT_HASH] = "hash",
    [K3_LIMIT_BUS] = "bus",         [K3_LIMIT_COPY] = "copy",
};

static struct limit find_limit(const struct k3_bench_result *results, uint32_t limits)
{
    enum k3_bench_row_id row[K3_LIMIT_COUNT];
    struct limit none = {K3_ROW_COUNT, K3_ROW_COUNT, NULL};
    for (uint32_t i = 0; i < K3_LIMIT_COUNT; i++) {
        row[i] = limits >> i & 1 ? k3_bench_best(results, (enum k3_bench_limit)i) : K3_ROW_COUNT;
        if (limits >> i & 1 && row[i] == K3_ROW_COUNT)
            return none; /* one that is not known may be the lowest */
    }
    /* The processors of a load to the host read and hash by turns. */
    if (limits & BIT(MEMORY) && limits & BIT(HASH))
        return (struct limit){row[K3_LIMIT_MEMORY], row[K3_LIMIT_HASH], "memory and hash"};
    struct limit lowest = none;
    for (uint32_t i = 0; i < K3_LIMIT_COUNT; i++)
        if (limits >> i & 1 &&
            (!lowest.name || median_of(results, row[i]) < median_of(results, lowest.row)))
            lowest = (struct limit){row[i], K3_ROW_COUNT, limit_names[i]};
    return lowest;
}

void k3_bench_judge(const struct k3_bench_result results[K3_ROW_COUNT], enum k3_bench_row_id id,
                    struct k3_bench_verdict *verdict)
{
    const struct k3_bench_result *result = &results[id];
    memset(verdict, 0, sizeof *verdict);
    if (result->count == 0)
        return;
    verdict->gb_per_s = k3_bench_median(result->gb_per_s, result->count);
    struct limit limit = find_limit(results, limits_of(result, &k3_bench_rows[id]));
    if (!limit.name)
        return;
    for (uint32_t i = 0; i < result->count && i < results[limit.row].count; i++) {
        double ceiling = results[limit.row].gb_per_s[i];
        if (limit.second != K3_ROW_COUNT && i < results[limit.second].count)
            ceiling = 1 / (1 / ceiling + 1 / results[limit.second].gb_per_s[i]);
        verdict->limit_rounds[i] = ceiling;
        verdict->percent_rounds[i] = 100 * result->gb_per_s[i] / ceiling;
        verdict->count = i + 1;
    }
    verdict->limit = limit.name;
    verdict->limit_gb_per_s = k3_bench_median(verdict->limit_rounds, verdict->count);
    verdict->percent_of_limit = k3_bench_median(verdict->percent_rounds, verdict->count);
}
