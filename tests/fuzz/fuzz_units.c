/* Purpose: fuzz target: the header of a units file.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: an accepted header, encoded, is what was read; its counts fit the file.  Each
 * input is judged as a file of its own size and of the size its header asks for. */
#include "fuzz.h"

#include "manifest.h"
#include "units.h"

#include <stddef.h>
#include <string.h>

static void decode(const uint8_t *data, size_t bytes, uint64_t file_bytes)
{
    struct k3_units units;
    struct k3_disk_units disk;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_units_decode("fuzz", data, bytes, file_bytes, &units, &err);
    fuzz_check_err(rc, &err, file_bytes > sizeof disk ? file_bytes : sizeof disk);
    if (rc)
        return;
    k3_units_encode(&units, &disk);
    FUZZ_CHECK(bytes >= sizeof disk && !memcmp(&disk, data, sizeof disk));
    FUZZ_CHECK(units.rank < K3_RANK_COUNT_MAX && units.part_count <= K3_PART_COUNT_MAX);
    FUZZ_CHECK(units.part_count > 0 && units.digest_count >= 2u * units.part_count);
    FUZZ_CHECK(file_bytes == sizeof disk + units.digest_count * K3_DIGEST_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t header_bytes = bytes < sizeof(struct k3_disk_units) ? bytes
                                                               : sizeof(struct k3_disk_units);
    decode(data, header_bytes, bytes);
    if (bytes >= sizeof(struct k3_disk_units)) {
        uint64_t count = k3_load_le64(data + offsetof(struct k3_disk_units, digest_count_le));
        decode(data, header_bytes, count * K3_DIGEST_BYTES + sizeof(struct k3_disk_units));
    }
    return 0;
}
