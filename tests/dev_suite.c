/* Purpose: the conformance suite that every device passes.
 * Owns: one open device for each test.
 * Threads: one drives the device.
 * Errors: a failed assertion ends the test.
 * Invariant: the suite touches device memory by copies only, so it fits devices the host cannot
 * address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dev_suite.h"
#include "fault_dev.h"
#include "tree.h"

#include <stdlib.h>
#include <string.h>

#define LANE_COUNT 3u
#define UNITS      6u

static const struct k3_dev_ops *ops;   /* the device under test */
static const struct k3_dev_ops *inner; /* of the decorator */
static struct k3_dev *dev;

static int open_dev(void)
{
    struct k3_dev_options options = {.index = 0, .lane_count = LANE_COUNT};
    struct k3_err err;
    k3_err_init(&err);
    int rc = ops->probe(0, &err);
    if (!rc)
        rc = ops->open(&options, &dev, &err);
    if (rc)
        print_message("%s\n", err.text);
    return rc;
}

static int open_for(void **state)
{
    (void)state;
    return open_dev();
}

/* The decorator, with no rule yet, around the device under test. */
static int open_fault(void **state)
{
    (void)state;
    ops = fault_dev(inner, NULL);
    return open_dev();
}

static int close_dev(void **state)
{
    (void)state;
    ops->close(dev);
    return 0;
}

static void *host_memory(size_t bytes, int fill)
{
    void *data = malloc(bytes);
    assert_non_null(data);
    memset(data, fill, bytes);
    return data;
}

static void begin(uint32_t lane, void *target, const void *source, size_t bytes,
                  enum k3_copy_kind kind)
{
    struct k3_dev_copy copy = {target, source, bytes, kind};
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(ops->copy_begin(dev, lane, &copy, &err), 0);
}

static void wait_for(uint32_t lane)
{
    assert_int_equal(ops->copy_wait(dev, lane, K3_DEV_WAIT_ALL, NULL), 0);
}

static void test_alloc(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4096, 524288, 5u << 20, (5u << 20) + 1};
    void *data[5];
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ops->alloc(dev, sizes[i], &data[i], NULL), 0);
        assert_int_equal((uintptr_t)data[i] % 4096, 0);
    }
    for (int i = 0; i < 5; i++)
        ops->release(dev, data[i], sizes[i]);
    uint8_t *slots = host_memory(65536, 0);
    assert_int_equal(ops->pin(dev, slots, 65536, NULL), 0);
    ops->unpin(dev, slots, 65536);
    free(slots);
}

/* Host -> device -> device -> host brings the same bytes; nothing beside them changes. */
static void test_copies(void **state)
{
    (void)state;
    enum { BYTES = 1000003 };
    uint8_t *source = host_memory(BYTES, 0);
    uint8_t *target = host_memory(BYTES + 64, 0xA5);
    void *a, *b;
    for (size_t i = 0; i < BYTES; i++)
        source[i] = (uint8_t)(i * 7 + i / 256);
    assert_int_equal(ops->alloc(dev, BYTES, &a, NULL), 0);
    assert_int_equal(ops->alloc(dev, BYTES, &b, NULL), 0);
    for (uint32_t lane = 0; lane < LANE_COUNT; lane++) {
        memset(target, 0xA5, BYTES + 64);
        begin(lane, a, source, BYTES, K3_COPY_HOST_TO_DEV);
        begin(lane, b, a, BYTES, K3_COPY_DEV_TO_DEV);
        begin(lane, target, b, BYTES, K3_COPY_DEV_TO_HOST);
        wait_for(lane);
        assert_memory_equal(target, source, BYTES);
        for (size_t i = BYTES; i < BYTES + 64; i++)
            assert_int_equal(target[i], 0xA5);
    }
    ops->release(dev, a, BYTES);
    ops->release(dev, b, BYTES);
    free(source);
    free(target);
}

/* More operations than any queue holds, each overwriting the one before: the last one wins. */
static void test_order(void **state)
{
    (void)state;
    enum { TURNS = 500, BYTES = 4096 };
    uint8_t *sources = host_memory((size_t)TURNS * BYTES, 0);
    uint8_t target[BYTES];
    void *data;
    for (int i = 0; i < TURNS; i++)
        memset(sources + (size_t)i * BYTES, i % 251, BYTES);
    assert_int_equal(ops->alloc(dev, BYTES, &data, NULL), 0);
    for (int i = 0; i < TURNS; i++)
        begin(1, data, sources + (size_t)i * BYTES, BYTES, K3_COPY_HOST_TO_DEV);
    begin(1, target, data, BYTES, K3_COPY_DEV_TO_HOST);
    wait_for(1);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(target[i], (TURNS - 1) % 251);
    wait_for(0); /* an idle lane */
    ops->release(dev, data, BYTES);
    free(sources);
}

struct checked {
    uint8_t *host; /* UNITS units */
    void *data;    /* the same on the device */
    uint8_t wanted[UNITS * K3_DIGEST_BYTES];
    uint8_t result[UNITS];
};

static void make_checked(struct checked *checked)
{
    struct k3_sha256 *sha;
    checked->host = host_memory(UNITS * K3_UNIT_BYTES, 0);
    for (size_t i = 0; i < UNITS * K3_UNIT_BYTES; i++)
        checked->host[i] = (uint8_t)((i * 2654435761u) >> 13);
    assert_int_equal(ops->alloc(dev, UNITS * K3_UNIT_BYTES, &checked->data, NULL), 0);
    assert_int_equal(k3_sha256_open(&sha, NULL), 0);
    for (size_t i = 0; i < UNITS; i++)
        k3_unit_digest(sha, checked->host + i * K3_UNIT_BYTES, K3_UNIT_BYTES,
                       checked->wanted + i * K3_DIGEST_BYTES);
    k3_sha256_close(sha);
}

static void free_checked(struct checked *checked)
{
    ops->release(dev, checked->data, UNITS * K3_UNIT_BYTES);
    free(checked->host);
}

static void verify(struct checked *checked, uint32_t lane, uint32_t first, uint32_t count)
{
    struct k3_dev_check check = {
        .data = (uint8_t *)checked->data + (size_t)first * K3_UNIT_BYTES,
        .wanted = checked->wanted + first * K3_DIGEST_BYTES,
        .result = checked->result + first,
        .unit_count = count,
    };
    assert_int_equal(ops->verify_units(dev, lane, &check, 1, NULL), 0);
}

static void upload_and_verify(struct checked *checked, uint32_t lane)
{
    memset(checked->result, K3_UNIT_UNKNOWN, sizeof checked->result);
    begin(lane, checked->data, checked->host, UNITS * K3_UNIT_BYTES, K3_COPY_HOST_TO_DEV);
    verify(checked, lane, 0, UNITS);
    wait_for(lane);
}

static void test_right(void **state)
{
    (void)state;
    struct checked checked;
    make_checked(&checked);
    for (uint32_t lane = 0; lane < LANE_COUNT; lane++) {
        upload_and_verify(&checked, lane);
        for (uint32_t i = 0; i < UNITS; i++)
            assert_int_equal(checked.result[i], K3_UNIT_RIGHT);
    }
    /* Only what was asked is answered. */
    memset(checked.result, K3_UNIT_UNKNOWN, sizeof checked.result);
    verify(&checked, 0, 1, 1);
    verify(&checked, 2, 3, 2);
    wait_for(0);
    wait_for(2);
    static const uint8_t expect[UNITS] = {0, 1, 0, 1, 1, 0};
    assert_memory_equal(checked.result, expect, UNITS);
    free_checked(&checked);
}

/* One bit, at the ends and anywhere, of the data or of a digest: that unit is wrong, only it. */
static void test_single_bits(void **state)
{
    (void)state;
    static const size_t places[] = {0, 1, 4095, 4096, 262144, 524287};
    struct checked checked;
    make_checked(&checked);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        uint32_t unit = (uint32_t)p % UNITS;
        uint8_t *byte = checked.host + unit * K3_UNIT_BYTES + places[p];
        *byte ^= (uint8_t)(1u << p);
        upload_and_verify(&checked, 0);
        *byte ^= (uint8_t)(1u << p);
        for (uint32_t i = 0; i < UNITS; i++)
            assert_int_equal(checked.result[i], i == unit ? K3_UNIT_WRONG : K3_UNIT_RIGHT);
    }
    for (size_t b = 0; b < K3_DIGEST_BYTES; b += 31) {
        checked.wanted[2 * K3_DIGEST_BYTES + b] ^= 0x80;
        upload_and_verify(&checked, 1);
        checked.wanted[2 * K3_DIGEST_BYTES + b] ^= 0x80;
        for (uint32_t i = 0; i < UNITS; i++)
            assert_int_equal(checked.result[i], i == 2 ? K3_UNIT_WRONG : K3_UNIT_RIGHT);
    }
    free_checked(&checked);
}

/* More checks of one lane than it has tables for, none waited for: each answers for its own unit.
 */
static void test_many_checks(void **state)
{
    (void)state;
    struct checked checked;
    make_checked(&checked);
    for (uint32_t i = 0; i < UNITS; i += 2)
        checked.wanted[i * K3_DIGEST_BYTES] ^= 1;
    begin(0, checked.data, checked.host, UNITS * K3_UNIT_BYTES, K3_COPY_HOST_TO_DEV);
    wait_for(0);
    memset(checked.result, K3_UNIT_UNKNOWN, sizeof checked.result);
    for (uint32_t i = 0; i < UNITS; i++)
        verify(&checked, 1, i, 1);
    wait_for(1);
    for (uint32_t i = 0; i < UNITS; i++)
        assert_int_equal(checked.result[i], i % 2 ? K3_UNIT_RIGHT : K3_UNIT_WRONG);
    free_checked(&checked);
}

/* Close without waiting: what was begun is run to its end first.  The memory is that of another
 * open device of the same number, since what is copied to must outlive the one that is closed. */
static void test_close_drains(void **state)
{
    (void)state;
    enum { TURNS = 40, BYTES = 1 << 20 };
    struct k3_dev_options options = {.index = 0, .lane_count = LANE_COUNT};
    struct k3_dev *closed;
    uint8_t *source = host_memory(BYTES, 0x5a);
    uint8_t *target = host_memory(BYTES, 0xA5);
    void *data;
    assert_int_equal(ops->alloc(dev, BYTES, &data, NULL), 0);
    begin(0, data, source, BYTES, K3_COPY_HOST_TO_DEV);
    wait_for(0);
    assert_int_equal(ops->open(&options, &closed, NULL), 0);
    struct k3_dev_copy copy = {target, data, BYTES, K3_COPY_DEV_TO_HOST};
    for (int i = 0; i < TURNS; i++)
        assert_int_equal(ops->copy_begin(closed, 1, &copy, NULL), 0);
    ops->close(closed);
    assert_memory_equal(target, source, BYTES);
    memset(target, 0xA5, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(target[i], 0xA5);
    ops->release(dev, data, BYTES);
    free(source);
    free(target);
}

enum { TURNS = 20, TURN_BYTES = 1 << 18 };

static void wait_count(uint32_t lane, uint64_t op_count)
{
    assert_int_equal(ops->copy_wait(dev, lane, op_count, NULL), 0);
}

static void ask_count(uint32_t lane, uint64_t op_count)
{
    bool is_done = false;
    while (!is_done)
        assert_int_equal(ops->copy_done(dev, lane, op_count, &is_done, NULL), 0);
}

/* Pairs of copies on each lane, there and back again: once the first so many are done, their
 * effects are there. */
static void check_counts(void (*until_done)(uint32_t lane, uint64_t op_count))
{
    uint8_t *source = host_memory((size_t)TURNS * TURN_BYTES, 0);
    uint8_t *target = host_memory((size_t)TURNS * TURN_BYTES, 0xA5);
    void *data;
    for (int i = 0; i < TURNS; i++)
        memset(source + (size_t)i * TURN_BYTES, i + 1, TURN_BYTES);
    assert_int_equal(ops->alloc(dev, TURN_BYTES, &data, NULL), 0);
    for (uint32_t lane = 0; lane < LANE_COUNT; lane++) {
        memset(target, 0xA5, (size_t)TURNS * TURN_BYTES);
        until_done(lane, K3_DEV_WAIT_ALL);
        for (size_t at = 0; at < (size_t)TURNS * TURN_BYTES; at += TURN_BYTES) {
            begin(lane, data, source + at, TURN_BYTES, K3_COPY_HOST_TO_DEV);
            begin(lane, target + at, data, TURN_BYTES, K3_COPY_DEV_TO_HOST);
        }
        for (uint64_t i = 0; i < TURNS; i++) {
            until_done(lane, 2 * i + 2);
            assert_memory_equal(target + i * TURN_BYTES, source + i * TURN_BYTES, TURN_BYTES);
        }
        until_done(lane, K3_DEV_WAIT_ALL);
    }
    ops->release(dev, data, TURN_BYTES);
    free(source);
    free(target);
}

/* Waiting for the first operations of a lane brings their effects. */
static void test_wait_counts(void **state)
{
    (void)state;
    check_counts(wait_count);
}

/* Asking is waiting without the wait: once it says done, the effects are there; and it does say so.
 */
static void test_ask_counts(void **state)
{
    (void)state;
    check_counts(ask_count);
}

static void test_misuse(void **state)
{
    (void)state;
    struct k3_dev *other;
    struct k3_dev_copy copy = {NULL, NULL, 0, K3_COPY_HOST_TO_DEV};
    struct k3_dev_check check = {NULL, NULL, NULL, 0};
    static const struct k3_dev_options bad[] = {{.lane_count = 0},
                                                {.lane_count = K3_LANE_COUNT_MAX + 1}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ops->open(&bad[i], &other, NULL), K3_EUSAGE);
        assert_null(other);
    }
    assert_int_equal(ops->copy_begin(dev, LANE_COUNT, &copy, NULL), K3_EUSAGE);
    assert_int_equal(ops->verify_units(dev, LANE_COUNT, &check, 1, NULL), K3_EUSAGE);
    assert_int_equal(ops->copy_wait(dev, LANE_COUNT, K3_DEV_WAIT_ALL, NULL), K3_EUSAGE);
    bool is_done = true;
    assert_int_equal(ops->copy_done(dev, LANE_COUNT, 1, &is_done, NULL), K3_EUSAGE);
    assert_false(is_done);
    assert_int_equal(ops->verify_units(dev, 0, &check, 1, NULL), 0); /* no units */
    wait_for(0);
    ops->close(NULL);
}

/* The decorator does what its rules say: the tests of the loader rely on it. */
static void test_fault_rules(void **state)
{
    (void)state;
    static const struct fault_dev_rule flip = {FAULT_DEV_FLIP, 2, 1};
    static const struct fault_dev_rule skip = {FAULT_DEV_SKIP_COPY, 1, 1};
    struct checked checked;
    make_checked(&checked);
    fault_dev(inner, &flip);
    upload_and_verify(&checked, 0);
    verify(&checked, 0, 3, 2);
    wait_for(0);
    assert_int_equal(fault_dev_hit_count(), 1);
    assert_int_equal(checked.result[3], K3_UNIT_WRONG);
    assert_int_equal(checked.result[4], K3_UNIT_RIGHT);
    free_checked(&checked);
    assert_int_equal(close_dev(state) || open_dev(), 0);
    fault_dev(inner, &skip);
    make_checked(&checked);
    upload_and_verify(&checked, 0); /* the memory is poison still: every unit is wrong */
    for (uint32_t i = 0; i < UNITS; i++)
        assert_int_equal(checked.result[i], K3_UNIT_WRONG);
    free_checked(&checked);
}

#define ONE(f, open) cmocka_unit_test_setup_teardown(f, open, close_dev)
#define SUITE(open)                                                                                \
    ONE(test_alloc, open), ONE(test_copies, open), ONE(test_order, open), ONE(test_right, open),   \
        ONE(test_single_bits, open), ONE(test_close_drains, open), ONE(test_misuse, open),         \
        ONE(test_wait_counts, open), ONE(test_ask_counts, open), ONE(test_many_checks, open)

int dev_suite_run(const struct k3_dev_ops *device)
{
    const struct CMUnitTest plain[] = {SUITE(open_for)};
    const struct CMUnitTest faulty[] = {SUITE(open_fault), ONE(test_fault_rules, open_fault)};
    ops = inner = device;
    int failed = cmocka_run_group_tests_name(device->name, plain, NULL, NULL);
    return failed + cmocka_run_group_tests_name("fault device", faulty, NULL, NULL);
}
