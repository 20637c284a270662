/* Purpose: the loader on a small set: everything right, every way to be wrong; by each route.
 * Owns: one set in one directory and one in three, for the whole run.
 * Threads: one drives each load.
 * Errors: a failed assertion ends the test; damage is undone by the teardown of the test.
 * Invariant: image memory is poisoned (fault_dev) before each run, so a skipped read is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fault_dev.h"
#include "fault_io.h"
#include "load_internal.h"
#include "mini_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct mini_set one, three;
static struct k3_err err;
static struct k3_load *load;
static const struct k3_io_ops *engine = &k3_io_pread; /* the route under test */
static bool engine_direct;
static bool through_slots; /* reads land in a pool and are copied on, as for a GPU */

/* Damage to undo. */
static char flipped_path[256];
static uint64_t flipped_offset;

static void make_sets(void)
{
    mini_set_make(&one, 1);
    mini_set_make(&three, 3);
}

static void remove_sets(void)
{
    mini_set_remove(&one);
    mini_set_remove(&three);
}

static int begin_test(void **state)
{
    (void)state;
    k3_err_init(&err);
    flipped_path[0] = 0;
    return 0;
}

static int end_test(void **state)
{
    (void)state;
    k3_load_close(load);
    load = NULL;
    if (flipped_path[0])
        mini_set_flip(flipped_path, flipped_offset);
    return 0;
}

static void flip(const char *path, uint64_t offset)
{
    snprintf(flipped_path, sizeof flipped_path, "%s", path);
    flipped_offset = offset;
    mini_set_flip(path, offset);
}

static struct k3_load_options options_for(const struct mini_set *mini)
{
    return (struct k3_load_options){.struct_bytes = sizeof(struct k3_load_options),
                                    .dirs = mini->dir_list,
                                    .dir_count = mini->dir_count,
                                    .staging_bytes = 8 << 20};
}

/* Open with decorated tables; a NULL rule poisons and passes through. */
static int open_load(const struct k3_load_options *options, const struct fault_io_rule *io_rule,
                     const struct fault_dev_rule *dev_rule)
{
    struct k3_load_options own = *options;
    own.io = engine_direct ? "uring" : NULL;
    const struct k3_dev_ops *dev_ops = fault_dev(&k3_dev_host, dev_rule);
    fault_dev_is_host_memory(!through_slots);
    return k3_load_open_with(&own, fault_io(engine, io_rule), dev_ops, &load, &err);
}

static void check_images(const struct mini_set *mini)
{
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        const void *data;
        uint64_t bytes;
        assert_int_equal(k3_load_image(load, rank, &data, &bytes, &err), 0);
        assert_int_equal(bytes, mini->image_bytes[rank]);
        assert_int_equal((uintptr_t)data % 4096, 0);
        assert_memory_equal(data, mini->images[rank], bytes);
    }
}

/* Every way to look is refused, and gives nothing. */
static void check_refused(void)
{
    const void *data = &data;
    uint64_t bytes = 7;
    uint32_t tensors, views;
    struct k3_load_tensor out;
    struct k3_load_report report;
    assert_int_equal(k3_load_image(load, 0, &data, &bytes, NULL), K3_EUSAGE);
    assert_null(data);
    assert_int_equal(bytes, 0);
    assert_int_equal(k3_load_tensor_count(load, 0, &tensors, &views, NULL), K3_EUSAGE);
    assert_int_equal(k3_load_tensor(load, 0, 0, &out, NULL), K3_EUSAGE);
    assert_int_equal(k3_load_view(load, 0, 0, &out, NULL), K3_EUSAGE);
    assert_int_equal(k3_load_find_tensor(load, 0, "language_model.lm_head.weight", &out, NULL),
                     K3_EUSAGE);
    assert_int_equal(k3_load_find_view(load, 0, "head", &out, NULL), K3_EUSAGE);
    k3_load_get_report(load, &report);
    assert_int_equal(report.bytes, 0);
}

/* ---- everything right ---- */

static void check_tensors(const struct mini_set *mini, uint32_t rank)
{
    uint32_t tensors, views;
    struct k3_load_tensor tensor, found;
    uint64_t sum = 0;
    assert_int_equal(k3_load_tensor_count(load, rank, &tensors, &views, &err), 0);
    assert_true(tensors > 100);
    for (uint32_t i = 0; i < tensors; i++) {
        uint64_t bytes;
        assert_int_equal(k3_load_tensor(load, rank, i, &tensor, &err), 0);
        uint8_t *slice = mini_set_slice(mini, rank, tensor.name, &bytes);
        assert_int_equal(tensor.bytes, bytes);
        assert_memory_equal(tensor.data, slice, bytes);
        free(slice);
        assert_int_equal(k3_load_find_tensor(load, rank, tensor.name, &found, &err), 0);
        assert_ptr_equal(found.data, tensor.data);
        assert_int_equal(tensor.rank, rank);
        sum += bytes;
    }
    /* As many tensors of this rank as the rules make: nothing of it is left out. */
    struct k3_rank_sizes sizes;
    k3_rank_sizes(&mini->plan->config, &mini->plan->layout, NULL, rank, &sizes);
    assert_int_equal(sum, sizes.read_bytes);
    assert_int_equal(k3_load_tensor(load, rank, tensors, &tensor, NULL), K3_EUSAGE);
    assert_int_equal(k3_load_find_tensor(load, rank, "k3.pad.0", &tensor, NULL), K3_EUSAGE);
    assert_int_equal(k3_load_find_tensor(load, rank, "none", &tensor, NULL), K3_EUSAGE);
}

static void check_views(const struct mini_set *mini, uint32_t rank)
{
    uint32_t tensors, views;
    const void *image;
    uint64_t image_bytes;
    const uint8_t *end = NULL;
    struct k3_load_tensor view, found;
    assert_int_equal(k3_load_tensor_count(load, rank, &tensors, &views, &err), 0);
    assert_true(views > 20 && views < tensors);
    assert_int_equal(k3_load_image(load, rank, &image, &image_bytes, &err), 0);
    for (uint32_t i = 0; i < views; i++) {
        assert_int_equal(k3_load_view(load, rank, i, &view, &err), 0);
        uint64_t at = (uint64_t)((const uint8_t *)view.data - (const uint8_t *)image);
        assert_true(!end || (const uint8_t *)view.data >= end);
        assert_true(at + view.bytes <= image_bytes);
        assert_memory_equal(view.data, mini->images[rank] + at, view.bytes);
        end = (const uint8_t *)view.data + view.bytes;
        uint64_t count = 1;
        for (uint32_t d = 0; d < view.dim_count; d++)
            count *= view.shape[d];
        assert_int_equal(view.bytes % count, 0);
        assert_int_equal(k3_load_find_view(load, rank, view.name, &found, &err), 0);
        assert_ptr_equal(found.data, view.data);
        assert_string_equal(found.dtype, view.dtype);
    }
    assert_int_equal(k3_load_view(load, rank, views, &view, NULL), K3_EUSAGE);
    assert_int_equal(k3_load_find_view(load, rank, "none", &view, NULL), K3_EUSAGE);
    /* A fused view: expert rows of w1 and w3 one behind the other, as FORMAT.md 5.1 says. */
    assert_int_equal(k3_load_find_view(load, rank, "layers.1.experts.w13", &view, &err), 0);
    static const uint64_t shape[] = {12, 128, 16};
    assert_int_equal(view.dim_count, 3);
    assert_memory_equal(view.shape, shape, sizeof shape);
    const char *w3 = "language_model.model.layers.1.block_sparse_moe.experts.7.w3.weight_packed";
    assert_int_equal(k3_load_find_tensor(load, rank, w3, &found, &err), 0);
    assert_ptr_equal(found.data, (const uint8_t *)view.data + (7 * 128 + 64) * 16);
}

static void load_and_check(const struct mini_set *mini)
{
    struct k3_load_options options = options_for(mini);
    struct k3_load_report report;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    check_refused();
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(mini);
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        check_tensors(mini, rank);
        check_views(mini, rank);
        sum += mini->image_bytes[rank];
    }
    k3_load_get_report(load, &report);
    assert_int_equal(report.bytes, sum);
    assert_true(report.verified_bytes > sum);
    assert_int_equal(report.reread_units, 0);
    assert_true(report.seconds > 0 && report.open_seconds > 0);
    assert_string_equal(report.fallbacks, "");
}

static void test_whole(void **state)
{
    (void)state;
    load_and_check(&one);
    /* A run may be repeated. */
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(&one);
    const void *data;
    uint64_t bytes;
    assert_int_equal(k3_load_image(load, 5, &data, &bytes, NULL), K3_EUSAGE);
}

static void test_three_dirs(void **state)
{
    (void)state;
    load_and_check(&three);
    k3_load_close(load);
    load = NULL;
    /* In any order. */
    const char *dirs[] = {three.dirs[2], three.dirs[0], three.dirs[1]};
    struct k3_load_options options = options_for(&three);
    options.dirs = dirs;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(&three);
    /* Each drive has its turn. */
    for (uint64_t i = 0; i < 3; i++) {
        const struct k3_part_entry *part = load->parts[load->chunks[i].part].entry;
        assert_ptr_equal(k3_set_part_dir(load->set, part->rank, part->part), &load->set->dirs[i]);
    }
}

/* Chunks tile all data sections once, and none crosses a part. */
static void test_chunks(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&three);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    uint8_t *seen = calloc(load->unit_count, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < load->chunk_count; i++) {
        const struct k3_load_chunk *chunk = &load->chunks[i];
        const struct k3_load_part *part = &load->parts[chunk->part];
        assert_true(chunk->unit_count >= 1 && chunk->unit_count <= K3_LOAD_CHUNK_UNITS);
        assert_true(chunk->unit_begin + chunk->unit_count <= part->unit_count);
        for (uint32_t j = 0; j < chunk->unit_count; j++)
            seen[part->results - load->results + chunk->unit_begin + j]++;
    }
    for (uint64_t i = 0; i < load->unit_count; i++)
        assert_int_equal(seen[i], 1);
    free(seen);
}

static void test_one_rank(void **state)
{
    (void)state;
    uint32_t ranks[] = {1};
    struct k3_load_options options = options_for(&one);
    const void *data;
    uint64_t bytes;
    options.ranks = ranks;
    options.rank_count = 1;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    assert_int_equal(k3_load_image(load, 1, &data, &bytes, &err), 0);
    assert_memory_equal(data, one.images[1], bytes);
    assert_int_equal(k3_load_image(load, 0, &data, &bytes, NULL), K3_EUSAGE);
}

/* ---- damaged files ---- */

/* A run fails with the place of the damage, and nothing is handed out. */
static void run_must_name(const char *file, uint64_t offset)
{
    char unit[64];
    uint64_t number = offset / K3_UNIT_BYTES;
    uint64_t unit_offset = number * K3_UNIT_BYTES;
    k3_err_init(&err);
    assert_int_equal(k3_load_run(load, &err), K3_ECORRUPT);
    snprintf(unit, sizeof unit, "unit %llu at byte %llu ", (unsigned long long)number,
             (unsigned long long)unit_offset);
    assert_non_null(strstr(err.text, unit));
    assert_string_equal(err.file, strrchr(file, '/') + 1);
    assert_int_equal(err.offset, unit_offset);
    check_refused();
}

/* One bit in the data of any part, first and last byte and in between. */
static void test_flipped_data(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        for (uint32_t p = 0; p < one.manifest.ranks[rank].part_count; p++) {
            const struct k3_part_entry *part = mini_set_part(&one, rank, p);
            char path[256];
            uint64_t offsets[] = {part->data_offset, part->data_offset + 70000, part->bytes - 1};
            mini_set_part_path(&one, rank, p, path);
            for (int i = 0; i < 3; i++) {
                mini_set_flip(path, offsets[i]);
                run_must_name(path, offsets[i]);
                mini_set_flip(path, offsets[i]);
            }
        }
    }
    assert_int_equal(k3_load_run(load, NULL), 0);
    check_images(&one);
}

static void test_names_tensors(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one);
    const struct k3_part_entry *part = mini_set_part(&one, 1, 2);
    char path[256];
    mini_set_part_path(&one, 1, 2, path);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    flip(path, part->data_offset + 5);
    assert_int_equal(k3_load_run(load, &err), K3_ECORRUPT);
    assert_non_null(strstr(err.text, "layers.1.block_sparse_moe.experts.0.w1.weight_packed, "));
    assert_non_null(strstr(err.text, " more tensors"));
}

static void open_must_fail(int rc, const char *file)
{
    struct k3_load_options options = options_for(&one);
    k3_err_init(&err);
    assert_int_equal(open_load(&options, NULL, NULL), rc);
    assert_null(load);
    if (file)
        assert_string_equal(err.file, file);
}

static void test_flipped_header(void **state)
{
    (void)state;
    char path[256];
    static const uint64_t offsets[] = {0, 9, 300, K3_UNIT_BYTES - 1};
    mini_set_part_path(&one, 0, 3, path);
    for (int i = 0; i < 4; i++) {
        mini_set_flip(path, offsets[i]);
        open_must_fail(K3_ECORRUPT, "model-rank-0-part-3.safetensors");
        assert_non_null(strstr(err.text, "unit 0 at byte 0 "));
        mini_set_flip(path, offsets[i]);
    }
}

static void test_flipped_units(void **state)
{
    (void)state;
    char path[256];
    static const uint64_t offsets[] = {0, 12, 100, 128, 500};
    mini_set_file_path(&one, "model-rank-1.units", path);
    for (int i = 0; i < 5; i++) {
        mini_set_flip(path, offsets[i]);
        open_must_fail(K3_ECORRUPT, "model-rank-1.units");
        mini_set_flip(path, offsets[i]);
    }
}

static void test_flipped_manifest(void **state)
{
    (void)state;
    char path[256];
    mini_set_file_path(&one, K3_MANIFEST_NAME, path);
    for (uint64_t offset = 0; offset < 2000; offset += 97) {
        mini_set_flip(path, offset);
        k3_err_init(&err);
        struct k3_load_options options = options_for(&one);
        int rc = open_load(&options, NULL, NULL);
        mini_set_flip(path, offset);
        assert_int_equal(k3_exit_code(rc), 3);
    }
}

static void test_missing(void **state)
{
    (void)state;
    char path[256], away[300];
    static const char *const names[] = {"model-rank-0-part-1.safetensors", "model-rank-0.units",
                                        K3_MANIFEST_NAME};
    for (int i = 0; i < 3; i++) {
        mini_set_file_path(&one, names[i], path);
        snprintf(away, sizeof away, "%s.away", path);
        assert_int_equal(rename(path, away), 0);
        open_must_fail(K3_ECORRUPT, names[i]);
        assert_int_equal(symlink(away, path), 0);
        open_must_fail(K3_EFORMAT, names[i]); /* a link is not one of our files */
        unlink(path);
        assert_int_equal(rename(away, path), 0);
    }
    /* Shorter and longer. */
    mini_set_file_path(&one, names[0], path);
    const struct k3_part_entry *part = mini_set_part(&one, 0, 1);
    assert_int_equal(truncate(path, (off_t)part->bytes + 1), 0);
    open_must_fail(K3_ECORRUPT, names[0]);
    assert_int_equal(truncate(path, (off_t)part->bytes), 0);
    struct k3_load_options options = options_for(&one);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
}

/* A file that shrinks while its load is open. */
static void test_shrinks(void **state)
{
    (void)state;
    char path[256];
    struct k3_load_options options = options_for(&three);
    const struct k3_part_entry *part = mini_set_part(&three, 1, 4);
    mini_set_part_path(&three, 1, 4, path);
    for (int no_verify = 0; no_verify < 2; no_verify++) {
        options.no_verify = no_verify;
        k3_err_init(&err);
        assert_int_equal(open_load(&options, NULL, NULL), 0);
        /* The last unit is padding in part: what is cut off are zeros, to be restored as such. */
        assert_int_equal(truncate(path, (off_t)part->bytes - 4096), 0);
        assert_int_equal(k3_load_run(load, &err), K3_ECORRUPT);
        assert_string_equal(err.file, strrchr(path, '/') + 1);
        check_refused();
        assert_int_equal(truncate(path, (off_t)part->bytes), 0);
        assert_int_equal(k3_load_run(load, NULL), 0);
        check_images(&three);
        k3_load_close(load);
        load = NULL;
    }
}

/* ---- faulty engines and devices ---- */

static void test_healed(void **state)
{
    (void)state;
    static const enum fault_io_kind kinds[] = {FAULT_IO_PARTIAL, FAULT_IO_STALE, FAULT_IO_WRONG,
                                               FAULT_IO_FAILING};
    struct k3_load_options options = options_for(&one);
    for (size_t k = 0; k < 4; k++) {
        for (uint64_t nth = 1; nth <= 5; nth += 2) {
            struct fault_io_rule rule = {kinds[k], nth, 2};
            struct k3_load_report report;
            k3_err_init(&err);
            assert_int_equal(open_load(&options, &rule, NULL), 0);
            assert_int_equal(k3_load_run(load, &err), 0);
            assert_int_equal(fault_io_hit_count(), 2);
            check_images(&one);
            k3_load_get_report(load, &report);
            assert_true(report.reread_units >= 2);
            if (kinds[k] == FAULT_IO_WRONG)
                assert_int_equal(report.reread_units, 2);
            k3_load_close(load);
            load = NULL;
        }
    }
}

/* Every read is late: nothing is amiss.  Every read is stale: all of them are healed. */
static void test_all_reads(void **state)
{
    (void)state;
    static const enum fault_io_kind kinds[] = {FAULT_IO_LATE, FAULT_IO_STALE};
    struct k3_load_options options = options_for(&three);
    for (size_t k = 0; k < 2; k++) {
        struct fault_io_rule rule = {kinds[k], 1, UINT64_MAX};
        struct k3_load_report report;
        assert_int_equal(open_load(&options, &rule, NULL), 0);
        assert_int_equal(k3_load_run(load, &err), 0);
        check_images(&three);
        k3_load_get_report(load, &report);
        assert_int_equal(report.reread_units, k ? load->unit_count : 0);
        k3_load_close(load);
        load = NULL;
    }
}

/* What an earlier run found right counts for nothing in the next one. */
static void test_second_run(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one);
    struct k3_load_report report;
    struct fault_io_rule rule = {FAULT_IO_FAILING, 0, 1};
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    rule.nth = load->chunk_count + 2;
    fault_io(engine, &rule);
    assert_int_equal(k3_load_run(load, &err), 0);
    memset(load->ranks[0].image, FAULT_DEV_POISON, one.image_bytes[0]);
    assert_int_equal(k3_load_run(load, &err), 0);
    assert_int_equal(fault_io_hit_count(), 1);
    check_images(&one);
    k3_load_get_report(load, &report);
    assert_int_equal(report.reread_units, load->chunks[1].unit_count);
}

/* Damage on disk is not healed by an engine that fails on top of it. */
static void test_failing_and_flipped(void **state)
{
    (void)state;
    static const struct fault_io_rule rule = {FAULT_IO_FAILING, 1, UINT64_MAX};
    struct k3_load_options options = options_for(&one);
    char path[256];
    mini_set_part_path(&one, 0, 4, path);
    assert_int_equal(open_load(&options, &rule, NULL), 0);
    flip(path, mini_set_part(&one, 0, 4)->data_offset + 1000);
    run_must_name(path, flipped_offset);
}

static void test_engine_fails(void **state)
{
    (void)state;
    static const enum fault_io_kind kinds[] = {FAULT_IO_SUBMIT, FAULT_IO_REAP, FAULT_IO_FORGED};
    struct k3_load_options options = options_for(&one);
    for (size_t k = 0; k < 3; k++) {
        for (uint64_t nth = 1; nth <= 3; nth++) {
            struct fault_io_rule rule = {kinds[k], nth, 1};
            k3_err_init(&err);
            assert_int_equal(open_load(&options, &rule, NULL), 0);
            assert_int_equal(k3_load_run(load, &err), K3_EIO);
            check_refused();
            /* Where its reads are lost count of, the engine is not used again. */
            int again = kinds[k] == FAULT_IO_SUBMIT ? 0 : K3_EUSAGE;
            assert_int_equal(k3_load_run(load, NULL), again);
            k3_load_close(load);
            load = NULL;
        }
    }
}

static void test_device_fails(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one);
    /* Through slots one check covers the whole set. */
    const struct fault_dev_rule rules[] = {{FAULT_DEV_CHECK, 1, 1},
                                           {FAULT_DEV_CHECK, through_slots ? 1 : 3, 1},
                                           {FAULT_DEV_WAIT, 1, 1}};
    for (size_t r = 0; r < 3; r++) {
        k3_err_init(&err);
        assert_int_equal(open_load(&options, NULL, &rules[r]), 0);
        assert_int_equal(k3_load_run(load, &err), K3_EDEVICE);
        check_refused();
        k3_err_init(&err);
        assert_int_equal(k3_load_run(load, &err), 0);
        check_images(&one);
        k3_load_close(load);
        load = NULL;
    }
    static const struct fault_dev_rule no_memory = {FAULT_DEV_ALLOC, 2, 1};
    assert_int_equal(open_load(&options, NULL, &no_memory), K3_ENOMEM);
    assert_null(load);
}

/* Memory that goes wrong behind a read: seen, and healed when it happens once. */
static void test_memory_flips(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one);
    struct k3_load_report report;
    const struct fault_dev_rule once = {FAULT_DEV_FLIP, through_slots ? 1 : 2, 1};
    static const struct fault_dev_rule always = {FAULT_DEV_FLIP, 1, UINT64_MAX};
    assert_int_equal(open_load(&options, NULL, &once), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(&one);
    k3_load_get_report(load, &report);
    assert_int_equal(report.reread_units, 1);
    k3_load_close(load);
    load = NULL;
    assert_int_equal(open_load(&options, NULL, &always), 0);
    assert_int_equal(k3_load_run(load, &err), K3_EDEVICE);
    assert_non_null(strstr(err.text, "right in the file but wrong in the memory"));
    check_refused();
}

/* The copy of a second read that is silently not done is seen by the check behind it. */
static void test_copy_skipped(void **state)
{
    (void)state;
    static const struct fault_io_rule stale = {FAULT_IO_STALE, 2, 1};
    static const struct fault_dev_rule skip = {FAULT_DEV_SKIP_COPY, 1, UINT64_MAX};
    struct k3_load_options options = options_for(&one);
    assert_int_equal(open_load(&options, &stale, &skip), 0);
    assert_int_equal(k3_load_run(load, &err), K3_EDEVICE);
    check_refused();
}

static void test_no_verify(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one);
    struct k3_load_report report;
    char path[256];
    options.no_verify = 1;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(&one);
    k3_load_get_report(load, &report);
    assert_true(report.verified_bytes < report.bytes);
    /* It does what it says: a flipped bit is not seen. */
    mini_set_part_path(&one, 0, 0, path);
    flip(path, mini_set_part(&one, 0, 0)->data_offset);
    assert_int_equal(k3_load_run(load, &err), 0);
    k3_load_close(load);
    load = NULL;
    mini_set_flip(path, flipped_offset);
    flipped_path[0] = 0;
    /* But what did not arrive is never taken for whole. */
    static const enum fault_io_kind kinds[] = {FAULT_IO_PARTIAL, FAULT_IO_FAILING};
    for (size_t k = 0; k < 2; k++) {
        struct fault_io_rule rule = {kinds[k], 2, 1};
        assert_int_equal(open_load(&options, &rule, NULL), 0);
        assert_int_equal(k3_load_run(load, &err), 0);
        check_images(&one);
        k3_load_get_report(load, &report);
        assert_true(report.reread_units >= 1);
        k3_load_close(load);
        load = NULL;
    }
}

/* ---- progress ---- */

struct seen {
    uint64_t calls, last_bytes, total_bytes, cancel_at;
    int backwards;
    int early; /* an image was handed out while the load ran */
};

static int watch(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct seen *seen = context;
    const void *data;
    uint64_t bytes;
    seen->early |= k3_load_image(load, 0, &data, &bytes, NULL) != K3_EUSAGE;
    seen->backwards |= done_bytes < seen->last_bytes || done_bytes > total_bytes;
    seen->calls++;
    seen->last_bytes = done_bytes;
    seen->total_bytes = total_bytes;
    return seen->cancel_at && seen->calls >= seen->cancel_at;
}

static void test_progress(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one);
    struct seen seen = {.calls = 0};
    options.progress = watch;
    options.progress_context = &seen;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    assert_true(seen.calls >= 1 && !seen.backwards);
    assert_int_equal(seen.last_bytes, seen.total_bytes);
    assert_int_equal(seen.total_bytes, one.image_bytes[0] + one.image_bytes[1]);
    seen = (struct seen){.cancel_at = 1};
    assert_int_equal(k3_load_run(load, &err), K3_ECANCELED);
    check_refused();
    assert_int_equal(seen.calls, 1);
    /* A load that was stopped may be run again; one that runs again hands out nothing meanwhile. */
    for (int turn = 0; turn < 2; turn++) {
        seen = (struct seen){.calls = 0};
        assert_int_equal(k3_load_run(load, NULL), 0);
        assert_int_equal(seen.early, 0);
    }
    check_images(&one);
}

/* Stopped with reads in flight: all of them come back before the run does. */
static void test_cancel_midway(void **state)
{
    (void)state;
    static const struct fault_io_rule slow = {FAULT_IO_SLOW, 2, 1};
    struct k3_load_options options = options_for(&one);
    struct seen seen = {.cancel_at = 1};
    options.progress = watch;
    options.progress_context = &seen;
    assert_int_equal(open_load(&options, &slow, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), K3_ECANCELED);
    assert_int_equal(seen.calls, 1);
    assert_true(seen.last_bytes > 0 && seen.last_bytes < seen.total_bytes);
    check_refused();
    seen = (struct seen){.calls = 0};
    assert_int_equal(k3_load_run(load, NULL), 0);
    check_images(&one);
}

#define LOAD_TEST(f) cmocka_unit_test_setup_teardown(f, begin_test, end_test)

/* Can this route be taken here?  If not, its reason is printed. */
static bool runs(const char *name)
{
    struct k3_load_options options = options_for(&one);
    k3_err_init(&err);
    int rc = engine->probe(NULL, &err);
    if (!rc)
        rc = open_load(&options, NULL, NULL);
    if (rc)
        printf("[ RUN      ] %s\n[  SKIPPED ] %s: %s\n", name, name, err.text);
    k3_load_close(load);
    load = NULL;
    return rc == 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOAD_TEST(test_whole),
        LOAD_TEST(test_three_dirs),
        LOAD_TEST(test_chunks),
        LOAD_TEST(test_one_rank),
        LOAD_TEST(test_flipped_data),
        LOAD_TEST(test_names_tensors),
        LOAD_TEST(test_flipped_header),
        LOAD_TEST(test_flipped_units),
        LOAD_TEST(test_flipped_manifest),
        LOAD_TEST(test_missing),
        LOAD_TEST(test_shrinks),
        LOAD_TEST(test_healed),
        LOAD_TEST(test_all_reads),
        LOAD_TEST(test_second_run),
        LOAD_TEST(test_failing_and_flipped),
        LOAD_TEST(test_engine_fails),
        LOAD_TEST(test_device_fails),
        LOAD_TEST(test_memory_flips),
        LOAD_TEST(test_copy_skipped),
        LOAD_TEST(test_no_verify),
        LOAD_TEST(test_progress),
        LOAD_TEST(test_cancel_midway),
    };
    /* What depends on how bytes arrive. */
    const struct CMUnitTest route_tests[] = {
        LOAD_TEST(test_whole),        LOAD_TEST(test_three_dirs),
        LOAD_TEST(test_one_rank),     LOAD_TEST(test_flipped_data),
        LOAD_TEST(test_shrinks),      LOAD_TEST(test_healed),
        LOAD_TEST(test_all_reads),    LOAD_TEST(test_second_run),
        LOAD_TEST(test_engine_fails), LOAD_TEST(test_failing_and_flipped),
        LOAD_TEST(test_device_fails), LOAD_TEST(test_memory_flips),
        LOAD_TEST(test_no_verify),    LOAD_TEST(test_cancel_midway),
    };
    make_sets();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    engine_direct = true;
    if (runs("pread past the page cache"))
        failed += cmocka_run_group_tests(route_tests, NULL, NULL);
    engine = &k3_io_uring;
    if (runs("uring"))
        failed += cmocka_run_group_tests(route_tests, NULL, NULL);
    through_slots = true;
    if (runs("uring through slots"))
        failed += cmocka_run_group_tests(route_tests, NULL, NULL);
    engine = &k3_io_pread;
    engine_direct = false;
    if (runs("pread through slots"))
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    remove_sets();
    return failed;
}
