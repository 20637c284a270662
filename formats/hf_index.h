/* model.safetensors.index.json: streamed, since K3's has 497,220 entries. */
#ifndef K3_HF_INDEX_H
#define K3_HF_INDEX_H

#include "k3_err.h"

#include <stddef.h>
#include <stdint.h>

/* One entry of weight_map; strings are valid during the call only, NUL-terminated.  Non-zero stops
 * the decode. */
typedef int (*k3_index_entry_fn)(void *context, const char *tensor, size_t tensor_bytes,
                                 const char *file, struct k3_err *err);

/* Where the entries of an index go, and what it says of itself. */
struct k3_index_sink {
    k3_index_entry_fn entry;
    void *context;
    uint64_t total_size; /* out: metadata.total_size, UINT64_MAX where it is absent */
};

/* Decode an index.  File names must be plain (k3_is_plain_name); entries come in file order.
 * Other members are legal and skipped.
 * Pure.  Fails: K3_EFORMAT, K3_ELIMIT, K3_ENOMEM, or what the callback returned. */
int k3_index_decode(const char *file, const char *text, size_t bytes, struct k3_index_sink *sink,
                    struct k3_err *err);

/* FORMAT.md 1: 1..255 characters 0x21..0x7e without '/', '"', '\\', not beginning with '.'. */
int k3_is_plain_name(const char *name);

#endif
