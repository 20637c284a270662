/* The content of source-headers.zst: the checkpoint's own config, index and headers (FORMAT.md 7).
 */
#ifndef K3_SOURCE_HEADERS_H
#define K3_SOURCE_HEADERS_H

#include "k3_err.h"
#include "text.h"

#include <stddef.h>
#include <stdint.h>

#define K3_HEADERS_CONTENT_BYTES_MAX (4ull << 30) /* FORMAT.md 1 */
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

/* Decode.  Borrows content until fini.  Checks form, names, order.  Fails: K3_EFORMAT with offset,
 * K3_ELIMIT, K3_ENOMEM. */
int k3_source_headers_decode(const char *file, const char *content, size_t bytes,
                             struct k3_source_headers *out, struct k3_err *err);
void k3_source_headers_fini(struct k3_source_headers *headers); /* safe on a zeroed struct */

#endif
