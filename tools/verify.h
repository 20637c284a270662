/* Verification: one run collects everything it finds.  A set, a checkpoint, a loose directory or a
 * lone file each add what they checked and what is wrong; the command prints it. */
#ifndef K3_VERIFY_H
#define K3_VERIFY_H

#include "bytes.h"
#include "k3_err.h"
#include "progress.h"
#include "ranks.h"
#include "set.h"
#include "text.h"

#include <pthread.h>

#define K3_BAD_UNITS_KEPT_MAX                                                                      \
    10000u /* of a swapped rank every unit is bad; later ones are counted */

/* A unit (or the rest of a part) whose bytes are not the recorded ones. */
struct k3_bad_unit {
    char *file;     /* owned */
    char **tensors; /* owned; names that the unit touches; "the header", "padding only" */
    uint64_t unit, offset, bytes;
    uint32_t tensor_count;
};

struct k3_verify {
    /* what is asked for */
    const uint32_t *ranks; /* borrowed; none: all of the set */
    uint32_t rank_count;
    uint32_t job_count;
    bool quick, quiet;
    const char *against; /* borrowed; NULL: none */
    /* what is found */
    struct k3_problems problems, notices;
    struct k3_bad_unit *bad;
    uint64_t bad_count; /* all that were found */
    uint32_t bad_kept, bad_cap;
    struct k3_ranks bad_ranks; /* of a set: their parts or units files are not as recorded */
    bool is_unfinished;      /* no set yet: there is a conversion to go on with, and nothing bad */
    struct k3_text subject;  /* "set DIR: ..." */
    struct k3_text unproved; /* what a good verdict leaves open, joined by "; "; empty: nothing */
    struct k3_text next;     /* the next step where there are problems, joined by "; " */
    struct k3_text checked;  /* what was looked at, phrases joined by ", " */
    uint64_t checked_bytes, checked_files, checked_units;
    uint64_t spent_ns;
};

void k3_verify_init(struct k3_verify *verify);
void k3_verify_fini(struct k3_verify *verify);

/* Add a phrase to what was checked. */
void k3_verify_checked(struct k3_verify *verify, const char *format, ...) K3_PRINTF(2, 3);

/* Add a sentence to unproved or next, once. */
void k3_verify_say(struct k3_text *text, const char *format, ...) K3_PRINTF(2, 3);

/* Turn a failure into a problem where it says that the data are wrong (exit 3): returns 0 then, and
 * *inner is empty again.  Anything else goes to *err and its code is returned. */
int k3_verify_judge(struct k3_problems *problems, int rc, struct k3_err *inner, struct k3_err *err);

/* Is an entry of a part's header padding and no tensor? */
bool k3_verify_is_pad(const struct k3_st_tensor *tensor);

/* Append a bad unit; names are copied from st (NULL: not known) and from unit (below data_offset:
 * the header).  Fails: K3_ENOMEM. */
struct k3_bad_place {
    const char *file;
    uint64_t unit, bytes;
    uint64_t data_offset; /* of the part */
    const struct k3_st *st;
};
int k3_verify_add_bad(struct k3_verify *verify, const struct k3_bad_place *place,
                      struct k3_err *err);

/* Read and decode the header of an open safetensors file.  Fails: as k3_st_decode, K3_EIO. */
int k3_verify_header(const char *name, int fd, uint64_t file_bytes, struct k3_st **st,
                     struct k3_err *err);

/* SHA-256 of a file by streaming reads; *bytes = its size. */
int k3_verify_sha256(const struct k3_dir *dir, const char *name, bool follow,
                     uint8_t digest[K3_DIGEST_BYTES], uint64_t *bytes, struct k3_err *err);

/* Hash a file that a download left a digest of, and compare; *count grows where there is one.
 * Fails: K3_EIO, K3_ENOMEM, K3_ECANCELED. */
int k3_verify_digest(struct k3_verify *verify, const struct k3_dir *dir, const char *name,
                     uint32_t *count, struct k3_err *err);

/* Open the directory of a path; *name points at its last component. */
int k3_verify_open_parent(const char *path, struct k3_dir *dir, const char **name,
                          struct k3_err *err);

/* Each looks at one thing whole; only what keeps it from looking is returned (K3_EIO, K3_ENOMEM,
 * K3_EUSAGE, K3_EUNSUPPORTED, K3_ECANCELED); what is wrong with the data goes to verify. */
int k3_verify_set(struct k3_verify *verify, const char *const *paths, uint32_t count,
                  struct k3_err *err);
int k3_verify_checkpoint(struct k3_verify *verify, const char *path, struct k3_err *err);
int k3_verify_loose(struct k3_verify *verify, const char *path, const char *reason,
                    struct k3_err *err);
int k3_verify_file(struct k3_verify *verify, const char *path, struct k3_err *err);

/* Can a set be compared with a checkpoint at all?  K3_EUNSUPPORTED: not with casts. */
int k3_verify_against_can(const struct k3_set *set, struct k3_err *err);

/* The parts of the set hold exactly the bytes of verify->against. */
int k3_verify_against(struct k3_verify *verify, const struct k3_set *set, struct k3_err *err);

/* Is path a directory of a set: a manifest, parts, units files or an unfinished conversion?  Fails
 * where it is a directory that cannot be read. */
int k3_is_set_dir(const char *path, bool *found, struct k3_err *err);

#endif
