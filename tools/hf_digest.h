/* The SHA-256 that a download from the Hugging Face hub left on record for a file: in its download
 * record (FILE.metadata) or as the name of the blob that it links to. */
#ifndef K3_HF_DIGEST_H
#define K3_HF_DIGEST_H

#include "bytes.h"
#include "fs.h"
#include "manifest.h"

#include <stdatomic.h>

#define K3_HF_WHERE_BYTES (K3_NAME_BYTES_MAX + 64u)

struct k3_hf_digest {
    uint8_t sha256[K3_DIGEST_BYTES];
    bool is_outdated;              /* the file was written after its record, maybe on purpose */
    char where[K3_HF_WHERE_BYTES]; /* what says so, for messages */
};

/* What is on record for dir/name.  *found false where nothing is, where it is not of the form that
 * the hub's client writes, and where it is a git blob SHA-1 (of a file that is not in LFS).  Fails:
 * K3_EIO, K3_ENOMEM: a record that is there and cannot be read. */
int k3_hf_digest_find(const struct k3_dir *dir, const char *name, struct k3_hf_digest *out,
                      bool *found, struct k3_err *err);

/* Compare a file's digest with its record.  Fails: K3_ECORRUPT where they differ, also where the
 * record is outdated; the text says which. */
int k3_hf_digest_compare(const struct k3_dir *dir, const char *name,
                         const struct k3_hf_digest *recorded, const uint8_t digest[K3_DIGEST_BYTES],
                         struct k3_err *err);

/* What the comparisons of a run came to; shared by its workers. */
struct k3_hf_tally {
    _Atomic uint32_t same_count, outdated_count;
    char outdated[K3_NAME_BYTES_MAX + 1]; /* the first; read after the workers ended */
};

/* Find, compare, count, as a conversion does: a file that differs from an outdated record may have
 * been changed on purpose, so it is counted and no failure.  Fails: K3_ECORRUPT; as
 * k3_hf_digest_find. */
int k3_hf_digest_check(const struct k3_dir *dir, const char *name,
                       const uint8_t digest[K3_DIGEST_BYTES], struct k3_hf_tally *tally,
                       struct k3_err *err);

#endif
