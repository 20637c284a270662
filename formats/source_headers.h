/* The content of source-headers.zst: the checkpoint's own config, index and headers (FORMAT.md 7).
 */
#ifndef K3_SOURCE_HEADERS_H
#define K3_SOURCE_HEADERS_H

#include "k3_err.h"
#include "text.h"

#include <stddef.h>
#include <stdint.h>

#define K3_HEADERS_CONTENT_BYTES_MAX (4ull << 30) /* FORMAT.md 1 */
#define K3_CONFIG_BYTES_MAX          (16u << 20)  /* FORMAT.md 1; K3's has 7,006 bytes */
#define K3_INDEX_BYTES_MAX           (1ull << 30) /* FORMAT.md 1 */
#define K3_CONFIG_NAME               "config.json"
#define K3_INDEX_NAME                "model.safetensors.index.json"

struct k3_header_entry {
    char *name;       /* owned */
    const char *data; /* borrowed from the content */
    size_t bytes;
};

struct k3_source_headers {
    struct k3_header_entry
        *entries; /* config.json, the index, then the source files by name; owned */
    uint32_t count;
};

/* First line of the content, and the line before an entry (line has 300 bytes). */
void k3_source_headers_begin(struct k3_text *out);
void k3_source_headers_line(const char *name, uint64_t bytes, struct k3_text *out);

/* Bytes that the index of a checkpoint may have, by those of all its source headers: both name
 * every tensor once.  What is much longer is no index, and a frame that claims to hold one is not
 * decoded.
 */
uint64_t k3_source_headers_index_max(uint64_t header_bytes);

/* Bytes of the whole content for the files of a plan.  Fails: K3_ENOMEM. */
struct k3_plan;
int k3_source_headers_bytes(const struct k3_plan *plan, uint64_t config_bytes, uint64_t index_bytes,
                            uint64_t *total, struct k3_err *err);

/* Decode.  Borrows content until fini.  Checks form, names, order.  Fails: K3_EFORMAT with offset,
 * K3_ELIMIT, K3_ENOMEM. */
int k3_source_headers_decode(const char *file, const char *content, size_t bytes,
                             struct k3_source_headers *out, struct k3_err *err);
void k3_source_headers_fini(struct k3_source_headers *headers); /* safe on a zeroed struct */

#endif
