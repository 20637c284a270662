/* safetensors headers: strict decode and encode.  Rules: FORMAT.md 1 and 5, and every rule of the
 * reference library made stricter where its own README is (first byte '{', no duplicate names, no
 * unknown members). */
#ifndef K3_ST_H
#define K3_ST_H

#include "dtype.h"
#include "k3_err.h"
#include "text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define K3_ST_PREFIX_BYTES      8u         /* the header length, u64 little-endian */
#define K3_ST_HEADER_BYTES_MAX  100000000u /* N of the reference library */
#define K3_ST_PADDING_BYTES_MAX 1048576u   /* spaces behind the JSON text; ours are < 512 KiB */
#define K3_ST_TENSOR_COUNT_MAX  1000000u   /* K3 has 5,404 in its largest file */
#define K3_ST_NAME_BYTES_MAX    512u
#define K3_ST_DIM_COUNT_MAX     8u

struct k3_st_tensor {
    const char *name; /* NUL-terminated, owned by the header */
    uint64_t shape[K3_ST_DIM_COUNT_MAX];
    uint64_t begin_offset; /* from the start of the data section */
    uint64_t end_offset;
    uint32_t name_bytes;
    uint8_t dtype; /* enum k3_dtype */
    uint8_t dim_count;
};

struct k3_st_meta {
    const char *key, *value; /* owned by the header */
};

struct k3_st {
    struct k3_st_tensor *tensors; /* by begin, end, name; zero-size ones included */
    struct k3_st_meta *meta;      /* as written */
    uint32_t tensor_count;
    uint32_t meta_count;
    uint64_t data_offset; /* 8 + N */
    uint64_t data_bytes;  /* end of the last tensor */
};

/* Judge the first bytes of a file (`bytes` of them, 8 or more where the file has them; up to 512
 * help to name what the file really is: LFS pointer with its oid and size, HTML, ZIP, pickle, GGUF,
 * zeros).  Gives the header's whole length 8 + N.  Pure.  Fails: K3_EFORMAT, K3_ELIMIT with offset.
 */
int k3_st_header_bytes(const char *file, const void *prefix, size_t bytes, uint64_t file_bytes,
                       uint64_t *header_bytes, struct k3_err *err);

/* Decode a whole header (8 + N bytes).  Borrows nothing afterwards.  Free with k3_st_free.
 * Checks all of: JSON, names, dtypes, shapes, sizes, no hole, no overlap, exact file size
 * (file_bytes). A file of no tensors is refused.  Any thread.  Fails: K3_EFORMAT, K3_ELIMIT,
 * K3_ECORRUPT (size), K3_ENOMEM; each with file and byte offset (in the header, or in the file for
 * sizes). */
int k3_st_decode(const char *file, const void *header, size_t bytes, uint64_t file_bytes,
                 struct k3_st **out, struct k3_err *err);
void k3_st_free(struct k3_st *st);

/* FORMAT.md 1: 1..K3_ST_NAME_BYTES_MAX characters of A-Z a-z 0-9 _ . - / */
bool k3_st_is_name(const char *name, size_t bytes);

/* Tensor of that name or NULL.  O(log n) after decode. */
const struct k3_st_tensor *k3_st_find(const struct k3_st *st, const char *name);
const char *k3_st_meta_find(const struct k3_st *st, const char *key);

/* ---- writing, in the byte form of FORMAT.md 5; sticky failure in text ---- */
struct k3_st_out {
    struct k3_text *text; /* begins with 8 bytes of room for N; empty before k3_st_out_begin */
    uint32_t entry_count;
    bool in_meta; /* the object __metadata__ is still open */
};
void k3_st_out_begin(struct k3_st_out *out, struct k3_text *text);
/* One member of __metadata__; all of them before the first tensor. */
void k3_st_out_meta(struct k3_st_out *out, const char *key, const char *value);
void k3_st_out_tensor(struct k3_st_out *out, const struct k3_st_tensor *tensor);
/* Close the JSON, pad with spaces so that 8 + N is a multiple of `align` (8: published form,
 * K3_UNIT_BYTES: parts), store N.  Fails: K3_ENOMEM, K3_ELIMIT. */
int k3_st_out_end(struct k3_st_out *out, uint32_t align, struct k3_err *err);

#endif
