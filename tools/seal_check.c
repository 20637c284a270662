/* Purpose: what seal looks at where a set is finished: do its parts and its report belong to the
 * plan that its manifest tells?
 * Owns: nothing between calls.
 * Threads: the main thread.
 * Errors: K3_ECORRUPT, K3_EFORMAT, K3_EIO, K3_ENOMEM.
 * Invariant: headers alone are read, no data: that the data are whole is for verify to say. */
#include "ckpt.h"
#include "job.h"
#include "set_casts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD_BYTES 256 /* the length, four members of the metadata */

static int check_part(const struct k3_set *set, const struct k3_part_entry *part,
                      const uint8_t *units, struct k3_err *err)
{
    struct k3_part_header header;
    int fd = -1;
    int rc = k3_set_part_open(set, part, &fd, err);
    if (rc)
        return rc;
    rc = k3_set_part_header(set, part, fd, units, &header, err);
    if (!rc) {
        rc = k3_set_check_header(set, part, fd, err);
        k3_part_header_fini(&header);
    }
    close(fd);
    return rc;
}

static int check_rank(const struct k3_set *set, const struct k3_manifest_rank *rank,
                      struct k3_err *err)
{
    uint8_t *digests = NULL;
    uint64_t count = 0;
    int rc = k3_set_units(set, rank, &digests, &count, err);
    const uint8_t *units = digests;
    for (uint32_t p = 0; p < rank->part_count && !rc; p++) {
        rc = check_part(set, &rank->parts[p], units, err);
        units += rank->parts[p].bytes / K3_UNIT_BYTES * K3_DIGEST_BYTES;
    }
    free(digests);
    return rc;
}

int k3_seal_check_head(const struct k3_dir *dir, const char *name, const struct k3_part_entry *part,
                       const uint8_t plan_digest[K3_DIGEST_BYTES], struct k3_err *err)
{
    char hex[K3_HEX_BYTES], wanted[HEAD_BYTES], found[HEAD_BYTES];
    int fd = -1;
    k3_hex_encode(plan_digest, K3_DIGEST_BYTES, hex);
    k3_store_le64((uint8_t *)wanted, part->data_offset - 8); /* of a record that was judged */
    const int n = snprintf(wanted + 8, sizeof wanted - 8,
                           "{\"__metadata__\":{\"k3.format\":\"0\",\"k3.part\":\"%u\","
                           "\"k3.plan\":\"%s\",\"k3.rank\":\"%u\"",
                           part->part, hex, part->rank);
    const size_t bytes = 8 + (size_t)n; /* far below a unit, and each part has one */
    int rc = k3_file_open(dir, name, false, &fd, NULL, err);
    if (rc)
        return k3_fail_in(dir, rc, err);
    rc = k3_fail_in(dir, k3_file_read(fd, name, found, bytes, 0, err), err);
    close(fd);
    if (!rc && memcmp(found, wanted, bytes))
        rc = k3_fail_at(err, K3_ECORRUPT, name, -1,
                        "%s/%s: its header does not say part %u of rank %u, plan %.12s, as the "
                        "conversion has it: a part of another conversion, or the plan was changed: "
                        "begin again with convert --force",
                        dir->path, name, part->part, part->rank, hex);
    return rc;
}

/* Its lines are in the order of items, which the source headers tell. */
static int check_report(const struct k3_set *set, struct k3_cast_summary *casts, struct k3_err *err)
{
    struct k3_ckpt *ckpt = NULL;
    bool found;
    if (k3_policy_is_verbatim(&set->plan->policy))
        return 0;
    int rc = k3_ckpt_open_set(set, &ckpt, err);
    if (!rc)
        rc = k3_set_check_report(set, ckpt->plan, &found, casts, err);
    k3_ckpt_close(ckpt);
    return rc;
}

int k3_seal_check(const char *const *dirs, uint32_t dir_count, struct k3_cast_summary *casts,
                  struct k3_err *err)
{
    struct k3_set *set = NULL;
    int rc = k3_set_open(dirs, dir_count, &set, err);
    if (rc)
        return rc;
    for (uint32_t r = 0; r < set->manifest.rank_count && !rc; r++)
        rc = check_rank(set, &set->manifest.ranks[r], err);
    if (!rc)
        rc = check_report(set, casts, err);
    k3_set_close(set);
    return rc;
}
