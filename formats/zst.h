/* zstd frames.  The only user of libzstd. */
#ifndef K3_ZST_H
#define K3_ZST_H

#include "k3_err.h"
#include "text.h"

#include <stddef.h>
#include <stdint.h>

struct k3_zst_out; /* one frame being written; one thread */

/* Compress in one frame of known content size, appending to *out (owned by the caller).  Fails:
 * K3_ENOMEM. */
int k3_zst_open(struct k3_text *out, uint64_t content_bytes, struct k3_zst_out **zst,
                struct k3_err *err);
int k3_zst_write(struct k3_zst_out *zst, const void *data, size_t bytes, struct k3_err *err);
/* End the frame.  Fails: K3_ENOMEM; K3_EFORMAT when the content size was not as promised. */
int k3_zst_end(struct k3_zst_out *zst, struct k3_err *err);
void k3_zst_close(struct k3_zst_out *zst);

/* Decode exactly one frame with a declared content size <= content_bytes_max into *content, which
 * is made here and the caller's to fini (a NUL stands behind it).  On failure it is empty.
 * Fails: K3_EFORMAT, K3_ECORRUPT, K3_ELIMIT, K3_ENOMEM. */
int k3_zst_decode(const char *file, const void *frame, size_t bytes, uint64_t content_bytes_max,
                  struct k3_text *content, struct k3_err *err);

#endif
