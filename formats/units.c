/* Purpose: the header of a units file, encode and strict decode (FORMAT.md 6).
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: K3_EFORMAT, K3_EVERSION, K3_ECORRUPT, each with file and byte offset.
 * Invariants: what decode accepts, encode writes back byte for byte; reserved bytes are zero. */
#include "units.h"

#include "manifest.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#define UNITS_VERSION      0u /* FORMAT.md: version 0 until engines have been compared */
#define UNITS_PER_PART_MIN 2u /* a part has a header and a data section, neither of them empty */

static const uint8_t units_magic[8] = {'K', '3', 'U', 'N', 'I', 'T', 'S', 0};

void k3_units_encode(const struct k3_units *units, struct k3_disk_units *disk)
{
    memset(disk, 0, sizeof *disk);
    memcpy(disk->magic, units_magic, sizeof units_magic);
    k3_store_le32(disk->version_le, UNITS_VERSION);
    k3_store_le32(disk->rank_le, units->rank);
    k3_store_le32(disk->part_count_le, units->part_count);
    k3_store_le32(disk->unit_bytes_le, K3_UNIT_BYTES);
    k3_store_le64(disk->digest_count_le, units->digest_count);
    memcpy(disk->plan_digest, units->plan_digest, K3_DIGEST_BYTES);
}

/* A wrong field: its place, what was wanted and found. */
static int wrong_field(const char *file, size_t offset, const char *wanted, uint64_t found,
                       struct k3_err *err)
{
    return k3_fail_at(err, K3_EFORMAT, file, (int64_t)offset,
                      "%s: byte %zu of the units header: wanted %s, found %" PRIu64
                      "; restore the file, or convert again",
                      file, offset, wanted, found);
}

/* The fields behind the version, which a header of this version must have in this form. */
static int check_fields(const char *file, const struct k3_disk_units *disk, struct k3_err *err)
{
    uint32_t rank = k3_load_le32(disk->rank_le);
    uint32_t part_count = k3_load_le32(disk->part_count_le);
    uint32_t unit_bytes = k3_load_le32(disk->unit_bytes_le);
    if (rank >= K3_RANK_COUNT_MAX)
        return wrong_field(file, offsetof(struct k3_disk_units, rank_le), "a rank below 4096", rank,
                           err);
    if (part_count == 0 || part_count > K3_PART_COUNT_MAX)
        return wrong_field(file, offsetof(struct k3_disk_units, part_count_le), "1 to 4096 parts",
                           part_count, err);
    if (unit_bytes != K3_UNIT_BYTES)
        return wrong_field(file, offsetof(struct k3_disk_units, unit_bytes_le),
                           "units of 524288 bytes", unit_bytes, err);
    uint64_t digest_count = k3_load_le64(disk->digest_count_le);
    if (digest_count / UNITS_PER_PART_MIN < part_count)
        return wrong_field(file, offsetof(struct k3_disk_units, digest_count_le),
                           "at least two digests for each part", digest_count, err);
    for (size_t i = 0; i < sizeof disk->reserved; i++)
        if (disk->reserved[i])
            return wrong_field(file, offsetof(struct k3_disk_units, reserved) + i,
                               "a reserved zero byte", disk->reserved[i], err);
    return 0;
}

int k3_units_decode(const char *file, const void *header, size_t bytes, uint64_t file_bytes,
                    struct k3_units *out, struct k3_err *err)
{
    struct k3_disk_units disk;
    memset(out, 0, sizeof *out);
    if (bytes < sizeof disk || file_bytes < sizeof disk)
        return k3_fail_at(err, K3_ECORRUPT, file, 0,
                          "%s: wanted a units header of %zu bytes, found a file of %" PRIu64
                          " bytes; restore the file, or convert again",
                          file, sizeof disk, file_bytes < bytes ? file_bytes : (uint64_t)bytes);
    memcpy(&disk, header, sizeof disk);
    if (memcmp(disk.magic, units_magic, sizeof units_magic) != 0)
        return k3_fail_at(
            err, K3_EFORMAT, file, 0,
            "%s: wanted a units file, found one that does not begin with \"K3UNITS\"; "
            "restore the file, or convert again",
            file);
    uint32_t version = k3_load_le32(disk.version_le);
    if (version != UNITS_VERSION)
        return k3_fail_at(err, K3_EVERSION, file,
                          (int64_t)offsetof(struct k3_disk_units, version_le),
                          "%s: this program reads units files of version 0, found version %" PRIu32
                          "; use a newer k3-shard",
                          file, version);
    int rc = check_fields(file, &disk, err);
    if (rc)
        return rc;
    uint64_t digest_count = k3_load_le64(disk.digest_count_le);
    uint64_t wanted_bytes = 0;
    bool fits = k3_mul_fits(digest_count, K3_DIGEST_BYTES, &wanted_bytes) &&
                k3_add_fits(wanted_bytes, sizeof disk, &wanted_bytes);
    if (!fits || wanted_bytes != file_bytes)
        return k3_fail_at(
            err, K3_ECORRUPT, file, (int64_t)offsetof(struct k3_disk_units, digest_count_le),
            "%s: its header counts %" PRIu64 " digests, but the file has %" PRIu64
            " bytes (wanted 128 and 32 for each digest); restore the file, or convert again",
            file, digest_count, file_bytes);
    out->rank = k3_load_le32(disk.rank_le);
    out->part_count = k3_load_le32(disk.part_count_le);
    out->digest_count = digest_count;
    memcpy(out->plan_digest, disk.plan_digest, K3_DIGEST_BYTES);
    return 0;
}
