/* Purpose: slots of loads that share them between reads: how many copies there are, and what
 * happens where some of the reads fail. Owns: one set. Threads: one drives each load. Errors: a
 * failed assertion ends the test. Invariant: image memory is poisoned (fault_dev), so what is not
 * copied is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fault_dev.h"
#include "fault_io.h"
#include "load_internal.h"
#include "mini_set.h"

#include <stdlib.h>

static struct mini_set one;
static struct k3_err err;
static struct k3_load *load;

static int end_test(void **state)
{
    (void)state;
    k3_load_close(load);
    load = NULL;
    return 0;
}

/* The host as a device whose memory reads cannot land in. */
static void open_load(const struct fault_io_rule *rule, uint64_t staging_bytes, bool is_hot,
                      bool verify)
{
    struct k3_load_options options = {.struct_bytes = sizeof options,
                                      .io = is_hot ? "pread" : NULL,
                                      .dirs = one.dir_list,
                                      .dir_count = one.dir_count,
                                      .staging_bytes = staging_bytes,
                                      .no_verify = !verify};
    const struct k3_dev_ops *dev_ops = fault_dev(&k3_dev_host, NULL);
    k3_load_close(load);
    load = NULL;
    k3_err_init(&err);
    fault_dev_is_host_memory(false);
    assert_int_equal(
        k3_load_open_with(&options, fault_io(&k3_io_pread, rule), dev_ops, &load, &err), 0);
}

static void run_and_check(void)
{
    assert_int_equal(k3_load_run(load, &err), 0);
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        const void *data;
        uint64_t bytes;
        assert_int_equal(k3_load_image(load, rank, &data, &bytes, &err), 0);
        assert_int_equal(bytes, one.image_bytes[rank]);
        assert_memory_equal(data, one.images[rank], bytes);
    }
}

/* A pool is never larger than asked for, two slots at least, and has slots enough. */
static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        uint64_t staging_bytes;
        uint32_t count, units, each;
    } rows[] = {
        {1, 2, 1, 1},
        {8u << 20, 8, 2, 1},
        {15u << 20, 15, 2, 1},
        {31u << 20, 15, 4, 1},
        {32u << 20, 8, 8, 1},
        {60u << 20, 15, 8, 1},
        {64u << 20, 8, 16, 2},
        {127u << 20, 15, 16, 2},
        {128u << 20, 16, 16, 2},
        {UINT64_C(1) << 33, K3_LOAD_SLOT_COUNT_MAX, 16, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct k3_load_slots slots = {0};
        k3_load_slots_choose(&slots, rows[i].staging_bytes);
        assert_int_equal(slots.count, rows[i].count);
        assert_int_equal(slots.units, rows[i].units);
        assert_int_equal(slots.each, rows[i].each);
        assert_int_equal(slots.chunk_units * slots.each, slots.units);
        assert_true(slots.count == 2 || k3_load_slots_bytes(&slots) <= rows[i].staging_bytes);
        const size_t bytes = k3_load_slots_bytes(&slots);
        k3_load_slots_shape(&slots, K3_LOAD_SLOT_UNITS, K3_LOAD_MANY_UNITS);
        assert_int_equal(slots.count, rows[i].count);
        assert_true(slots.chunk_units <= K3_LOAD_MANY_UNITS);
        assert_int_equal(slots.chunk_units * slots.each, slots.units);
        k3_load_slots_shape(&slots, K3_LOAD_FEW_UNITS, K3_LOAD_FEW_UNITS);
        assert_int_equal(slots.count, rows[i].count * rows[i].units);
        assert_int_equal(slots.units, 1);
        assert_int_equal(slots.each, 1);
        k3_load_slots_shape(&slots, K3_LOAD_SLOT_UNITS, K3_LOAD_SLOT_UNITS);
        assert_int_equal(slots.count, rows[i].count);
        assert_int_equal(slots.each, 1);
        assert_int_equal(slots.chunk_units, slots.units);
        assert_int_equal(k3_load_slots_bytes(&slots), bytes);
    }
}

static void check_slot(const struct k3_load_chunk *chunk)
{
    const struct k3_load_slots *slots = &load->legs[0].slots;
    assert_true(chunk->slot_at < chunk->slot_chunks);
    assert_true(chunk->slot_chunks <= slots->each);
    assert_true(chunk->unit_count >= 1 && chunk->unit_count <= slots->chunk_units);
    if (chunk->slot_at == 0)
        return;
    assert_int_equal(chunk->part, chunk[-1].part);
    assert_int_equal(chunk->unit_begin, chunk[-1].unit_begin + slots->chunk_units);
    assert_int_equal(chunk->slot_at, chunk[-1].slot_at + 1);
}

/* A slot goes on in one copy, and no slot holds reads of two parts or gaps between them; what is in
 * memory comes by one read for each slot. */
static void test_copies(void **state)
{
    (void)state;
    static const uint64_t stagings[] = {16u << 20, 64u << 20};
    for (size_t i = 0; i < 4; i++) {
        const bool is_hot = i >= 2;
        uint64_t slot_count = 0, shared_count = 0, copy_count = 0;
        open_load(NULL, stagings[i % 2], is_hot, false);
        assert_int_equal(load->is_hot, is_hot);
        for (uint64_t c = 0; c < load->chunk_count; c++) {
            check_slot(&load->chunks[c]);
            slot_count += load->chunks[c].slot_at == 0;
            shared_count += load->chunks[c].slot_at > 0;
        }
        assert_true((shared_count > 0) == (load->legs[0].slots.each > 1));
        assert_true(!is_hot || shared_count == 0);
        run_and_check();
        for (uint32_t lane = 0; lane < load->legs[0].lane_count; lane++)
            copy_count += load->legs[0].lane_ops[lane];
        assert_int_equal(copy_count, slot_count);
    }
}

/* What is asked of drives at once follows their number, and legs share them. */
static void test_drives(void **state)
{
    (void)state;
    static const struct {
        uint32_t drive_count, leg_count, slot_units, chunk_units, depth, stream_count;
    } rows[] = {{0, 1, 16, K3_LOAD_CHUNK_UNITS, 12, 1},
                {1, 1, 1, 1, 16, 16},
                {2, 1, 1, 1, 32, 16},
                {3, 1, 16, 2, 48, 1},
                {9, 1, 16, 2, 48, 1},
                {8, 8, 1, 1, 16, 16},
                {1, 8, 1, 1, 2, 16},
                {3, 40, 1, 1, 2, 16},
                {1, 3, 1, 1, 6, 16}};
    open_load(NULL, 64u << 20, false, true);
    struct k3_load_leg *leg = &load->legs[0];
    const uint32_t drive_count = load->drive_count;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        load->drive_count = rows[i].drive_count;
        load->leg_count = rows[i].leg_count;
        k3_load_leg_shape(leg);
        assert_int_equal(leg->slots.units, rows[i].slot_units);
        assert_int_equal(leg->chunk_units, rows[i].chunk_units);
        assert_int_equal(leg->depth, rows[i].depth);
        assert_int_equal(leg->stream_count, rows[i].stream_count);
    }
    load->drive_count = drive_count;
    load->leg_count = 1;
    k3_load_leg_shape(leg);
    run_and_check();
}

/* The table of a leg as other drives would have it. */
static void order_as(struct k3_load_leg *leg, struct k3_load_chunk *chunks, uint32_t drive_count)
{
    load->drive_count = drive_count;
    k3_load_leg_shape(leg);
    leg->chunks = chunks;
    leg->chunk_count = 0;
    k3_load_leg_chunks(leg);
    assert_int_equal(leg->chunk_count, k3_load_leg_chunk_count(leg));
}

static void check_tiles(const struct k3_load_leg *leg)
{
    uint64_t unit_count = 0;
    uint8_t *seen = calloc(load->unit_count, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < leg->chunk_count; i++) {
        const struct k3_load_chunk *chunk = &leg->chunks[i];
        const struct k3_load_part *part = &load->parts[chunk->part];
        check_slot(chunk);
        assert_true(chunk->unit_begin + chunk->unit_count <= part->unit_count);
        for (uint32_t u = 0; u < chunk->unit_count; u++) {
            uint8_t *one_seen = &seen[part->results - load->results + chunk->unit_begin + u];
            assert_int_equal(*one_seen, 0);
            *one_seen = 1;
            unit_count++;
        }
    }
    assert_int_equal(unit_count, load->unit_count);
    free(seen);
}

/* Does a read lie behind one of those just before it in the table, so that the kernel could make
 * one of both? */
static bool lies_behind(const struct k3_load_leg *leg, uint64_t number, uint64_t before)
{
    const struct k3_load_chunk *chunk = &leg->chunks[number];
    for (uint64_t i = number < before ? 0 : number - before; i < number; i++) {
        const struct k3_load_chunk *other = &leg->chunks[i];
        if (other->part == chunk->part &&
            other->unit_begin + other->unit_count == chunk->unit_begin)
            return true;
    }
    return false;
}

/* Whatever the drives, every unit is read once.  Of one drive what is in flight together lies
 * apart, but for the rest that is too little for all streams. */
static void test_order(void **state)
{
    (void)state;
    open_load(NULL, 64u << 20, false, true);
    struct k3_load_leg *leg = &load->legs[0];
    struct k3_load_chunk *chunks = calloc(load->unit_count, sizeof *chunks), *own = leg->chunks;
    const uint32_t drive_count = load->drive_count;
    uint64_t side_by_side = 0;
    assert_non_null(chunks);
    order_as(leg, chunks, 9);
    check_tiles(leg);
    order_as(leg, chunks, 0);
    check_tiles(leg);
    order_as(leg, chunks, 1);
    check_tiles(leg);
    assert_true(leg->chunk_count >= 2 * K3_LOAD_STREAM_COUNT);
    for (uint64_t i = 1; i < leg->chunk_count; i++)
        side_by_side += lies_behind(leg, i, 1);
    assert_true(side_by_side * 4 < leg->chunk_count);
    order_as(leg, own, drive_count);
    run_and_check();
    free(chunks);
}

/* Units of `count` chunks from the nth on, in the order in which they are asked for. */
static uint64_t units_from(uint64_t nth, uint64_t count)
{
    uint64_t units = 0;
    for (uint64_t i = nth - 1; i < nth - 1 + count && i < load->chunk_count; i++)
        units += load->chunks[i].unit_count;
    return units;
}

/* What fails is read again, and nothing else is: each read, and up to all of a slot. */
static void test_failed_reads(void **state)
{
    (void)state;
    for (int is_hot = 0; is_hot < 2; is_hot++) {
        uint64_t chunk_count = 1;
        open_load(NULL, 64u << 20, is_hot, true);
        const uint32_t each = load->legs[0].slots.each; /* by what the set lies on */
        for (uint64_t i = 0; i < chunk_count * each; i++) {
            struct k3_load_report report;
            const struct fault_io_rule rule = {i % 3 ? FAULT_IO_FAILING : FAULT_IO_PARTIAL,
                                               i / each + 1, i % each + 1};
            open_load(&rule, 64u << 20, is_hot, true);
            chunk_count = load->chunk_count;
            run_and_check();
            assert_true(fault_io_hit_count());
            k3_load_get_report(load, &report);
            assert_int_equal(report.reread_units, units_from(rule.nth, rule.count));
        }
        assert_true(chunk_count > each);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test_teardown(test_copies, end_test),
        cmocka_unit_test_teardown(test_drives, end_test),
        cmocka_unit_test_teardown(test_order, end_test),
        cmocka_unit_test_teardown(test_failed_reads, end_test),
    };
    mini_set_make(&one, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mini_set_remove(&one);
    return failed;
}
