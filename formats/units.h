/* The units file: header encode and decode (FORMAT.md 6). */
#ifndef K3_UNITS_H
#define K3_UNITS_H

#include "bytes.h"
#include "k3_err.h"

struct k3_disk_units {
    uint8_t magic[8];
    uint8_t version_le[4];
    uint8_t rank_le[4];
    uint8_t part_count_le[4];
    uint8_t unit_bytes_le[4];
    uint8_t digest_count_le[8];
    uint8_t plan_digest[32];
    uint8_t reserved[64];
};
_Static_assert(sizeof(struct k3_disk_units) == 128, "FORMAT.md 6: the units header has 128 bytes");

struct k3_units {
    uint32_t rank;
    uint32_t part_count;
    uint64_t digest_count;
    uint8_t plan_digest[K3_DIGEST_BYTES];
};

void k3_units_encode(const struct k3_units *units, struct k3_disk_units *disk);

/* Judge a header of a file of file_bytes.  Fails: K3_EFORMAT, K3_EVERSION, K3_ECORRUPT (size), with
 * offset. */
int k3_units_decode(const char *file, const void *header, size_t bytes, uint64_t file_bytes,
                    struct k3_units *out, struct k3_err *err);

#endif
