/* Purpose: the units header: what is written is read back, and everything else is refused.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: a refusal names the file and a byte offset. */
#include "units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define FILE_NAME    "/dir/model-rank-3.units"
#define DIGEST_COUNT 400u
#define FILE_BYTES   (128u + 32u * DIGEST_COUNT)

static struct k3_units good_units(void)
{
    struct k3_units units = {3, 94, DIGEST_COUNT, {0}};
    for (uint8_t i = 0; i < K3_DIGEST_BYTES; i++)
        units.plan_digest[i] = (uint8_t)(200 - i);
    return units;
}

static int decode(const struct k3_disk_units *disk, size_t bytes, uint64_t file_bytes,
                  struct k3_err *err)
{
    struct k3_units units;
    memset(&units, 0xa5, sizeof units);
    k3_err_init(err);
    return k3_units_decode(FILE_NAME, disk, bytes, file_bytes, &units, err);
}

static void assert_refused(const struct k3_disk_units *disk, int rc, int64_t offset)
{
    struct k3_err err;
    assert_int_equal(decode(disk, sizeof *disk, FILE_BYTES, &err), rc);
    assert_int_equal(err.rc, rc);
    assert_int_equal(err.offset, offset);
    assert_string_equal(err.file, "model-rank-3.units");
    assert_non_null(strstr(err.text, FILE_NAME));
    assert_null(strchr(err.text, '\n'));
}

static void test_round_trip(void **state)
{
    (void)state;
    struct k3_units units = good_units(), found;
    struct k3_disk_units disk;
    struct k3_err err;
    memset(&disk, 0xa5, sizeof disk);
    memset(&found, 0xa5, sizeof found);
    k3_units_encode(&units, &disk);
    k3_err_init(&err);
    assert_int_equal(k3_units_decode(FILE_NAME, &disk, sizeof disk, FILE_BYTES, &found, &err), 0);
    assert_int_equal(found.rank, 3);
    assert_int_equal(found.part_count, 94);
    assert_int_equal(found.digest_count, DIGEST_COUNT);
    assert_memory_equal(found.plan_digest, units.plan_digest, K3_DIGEST_BYTES);
}

/* The bytes of FORMAT.md 6, independent of the struct. */
static void test_bytes(void **state)
{
    (void)state;
    struct k3_units units = good_units();
    struct k3_disk_units disk;
    uint8_t wanted[128] = {'K', '3', 'U', 'N', 'I', 'T', 'S', 0, 0, 0, 0, 0,    3,
                           0,   0,   0,   94,  0,   0,   0,   0, 0, 8, 0, 0x90, 0x1};
    memcpy(wanted + 32, units.plan_digest, 32);
    k3_units_encode(&units, &disk);
    assert_memory_equal(&disk, wanted, sizeof wanted);
}

/* A flipped bit in any field but rank, part count (within limits) and plan digest cannot be a legal
 * header of this file; those are compared with the manifest. */
static void test_every_byte(void **state)
{
    (void)state;
    struct k3_units units = good_units();
    struct k3_disk_units good;
    k3_units_encode(&units, &good);
    for (size_t i = 0; i < sizeof good; i++) {
        if ((i >= 12 && i < 14) || (i >= 16 && i < 18) || (i >= 32 && i < 64))
            continue;
        for (int bit = 0; bit < 8; bit++) {
            struct k3_disk_units bad = good;
            ((uint8_t *)&bad)[i] ^= (uint8_t)(1 << bit);
            struct k3_err err;
            assert_int_not_equal(decode(&bad, sizeof bad, FILE_BYTES, &err), 0);
        }
    }
}

static void test_fields(void **state)
{
    (void)state;
    struct k3_units units = good_units();
    struct k3_disk_units good, bad;
    k3_units_encode(&units, &good);
    for (size_t i = 0; i < sizeof good.reserved; i++)
        for (int bit = 0; bit < 8; bit++) {
            bad = good;
            bad.reserved[i] = (uint8_t)(1 << bit);
            assert_refused(&bad, K3_EFORMAT, 64 + (int64_t)i);
        }
    bad = good;
    bad.magic[0] = 'k';
    assert_refused(&bad, K3_EFORMAT, 0);
    bad = good;
    bad.version_le[0] = 1;
    assert_refused(&bad, K3_EVERSION, 8);
    bad = good;
    k3_store_le32(bad.rank_le, 4096);
    assert_refused(&bad, K3_EFORMAT, 12);
    bad = good;
    k3_store_le32(bad.part_count_le, 0);
    assert_refused(&bad, K3_EFORMAT, 16);
    k3_store_le32(bad.part_count_le, 4097);
    assert_refused(&bad, K3_EFORMAT, 16);
    k3_store_le32(bad.part_count_le, DIGEST_COUNT / 2 + 1);
    assert_refused(&bad, K3_EFORMAT, 24);
    bad = good;
    k3_store_le32(bad.unit_bytes_le, 1u << 20);
    assert_refused(&bad, K3_EFORMAT, 20);
    bad = good;
    k3_store_le64(bad.digest_count_le, DIGEST_COUNT + 1);
    assert_refused(&bad, K3_ECORRUPT, 24);
    /* 32 * count wraps around to the right size */
    k3_store_le64(bad.digest_count_le, DIGEST_COUNT + ((uint64_t)1 << 59));
    assert_refused(&bad, K3_ECORRUPT, 24);
}

static void test_truncated(void **state)
{
    (void)state;
    struct k3_units units = good_units();
    struct k3_disk_units disk;
    struct k3_err err;
    k3_units_encode(&units, &disk);
    for (size_t bytes = 0; bytes < sizeof disk; bytes++) {
        assert_int_equal(decode(&disk, bytes, bytes, &err), K3_ECORRUPT);
        assert_int_equal(decode(&disk, sizeof disk, bytes, &err), K3_ECORRUPT);
    }
    for (uint64_t bytes = 128; bytes < FILE_BYTES + 100; bytes++)
        assert_int_equal(decode(&disk, sizeof disk, bytes, &err),
                         bytes == FILE_BYTES ? 0 : K3_ECORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_every_byte), cmocka_unit_test(test_fields),
        cmocka_unit_test(test_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
