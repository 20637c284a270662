/* What manifest.c and record.c share: the strict walk through a sealed canonical document
 * (FORMAT.md 2), the entries both have, and their rules.  Private to these files. */
#ifndef K3_MANIFEST_PARTS_H
#define K3_MANIFEST_PARTS_H

#include "json_read.h"
#include "manifest.h"
#include "sha256.h"

#define K3_CANON_INTEGER_MAX ((UINT64_C(1) << 53) - 1) /* FORMAT.md 2: exact in every reader */
#define K3_COPIED_BYTES_MAX  (UINT64_C(1) << 30)       /* FORMAT.md 1: a copied file */
#define K3_CANON_VERSION     0u                        /* FORMAT.md: the only version so far */

/* One document that is read, or written and judged before. */
struct k3_canon {
    const char *file;      /* for messages */
    const char *next_step; /* what the user can do about a bad one */
    struct k3_err *err;
    struct k3_json *json; /* while it is read */
};

/* Record "FILE: <format>; <next step>"; offset -1 where none applies.  Returns rc. */
int k3_canon_fail(const struct k3_canon *c, int rc, int64_t offset, const char *format, ...)
    K3_PRINTF(4, 5);

/* ---- the document as bytes ---- */
/* The text (its LF included) ends with its own digest, and that is right.  Fails: K3_ECORRUPT,
 * K3_ENOMEM. */
int k3_canon_check_seal(const struct k3_canon *c, const char *text, size_t bytes);
/* It is JSON, an object, and of this format and version; other members may be anything.
 * Fails: K3_EFORMAT, K3_EVERSION, K3_ENOMEM. */
int k3_canon_check_version(const struct k3_canon *c, const char *text, size_t bytes,
                           const char *format);
/* What was understood, written again, is what was read.  Fails: K3_EFORMAT. */
int k3_canon_compare(const struct k3_canon *c, const char *text, size_t bytes,
                     const struct k3_text *again);
/* Append version, seal and LF, and put the digest of the text from `start` on into it.  Fails:
 * K3_ENOMEM. */
int k3_canon_seal(const struct k3_canon *c, struct k3_text *out, size_t start);

/* ---- reading, in the order of the document; each fails with K3_EFORMAT, K3_ELIMIT or K3_ENOMEM
 * ---- */
/* The member `name` comes next, and its value begins with a token of `type`. */
int k3_canon_member(struct k3_canon *c, const char *name, enum k3_json_type type,
                    struct k3_json_token *token);
int k3_canon_object_end(struct k3_canon *c); /* no further member */
/* The next element of an array is an object (*more), or the array ends. */
int k3_canon_element(struct k3_canon *c, const char *array, bool *more);
int k3_canon_integer(struct k3_canon *c, const char *name, uint64_t max, uint64_t *value);
int k3_canon_u32(struct k3_canon *c, const char *name, uint32_t max, uint32_t *value);
/* A string of 0x20..0x7e, at most K3_NAME_BYTES_MAX of them; the caller owns it. */
int k3_canon_string(struct k3_canon *c, const char *name, char **value);
int k3_canon_digest(struct k3_canon *c, const char *name, uint8_t digest[K3_DIGEST_BYTES]);
/* Members format, version and ~sha256 were judged before. */
int k3_canon_skip(struct k3_canon *c, const char *name);
int k3_canon_file(struct k3_canon *c, const char *name, struct k3_file_entry *entry);
int k3_canon_files(struct k3_canon *c, const char *name, struct k3_file_entry **entries,
                   uint32_t *count);
int k3_canon_parts(struct k3_canon *c, const char *name, struct k3_part_entry **parts,
                   uint32_t *count);
/* Room for one more of `count` items; NULL (and *c->err) without memory.  The array stays valid. */
void *k3_canon_grow(struct k3_canon *c, void *array, uint32_t count, size_t item_bytes);

/* ---- rules of the entries; Fails: K3_EFORMAT, K3_ELIMIT ---- */
/* Plain names, sorted, each once, at most bytes_max each; at most K3_FILE_COUNT_MAX. */
int k3_canon_check_files(const struct k3_canon *c, const char *name,
                         const struct k3_file_entry *entries, uint32_t count, uint64_t bytes_max);
/* No copied file has the name of another file of a set. */
int k3_canon_check_copied(const struct k3_canon *c, const struct k3_file_entry *entry);
int k3_canon_check_part(const struct k3_canon *c, const struct k3_part_entry *part);
int k3_canon_check_tool(const struct k3_canon *c, const char *tool);

/* ---- writing ---- */
void k3_canon_put_digest(struct k3_text *out,
                         const uint8_t digest[K3_DIGEST_BYTES]); /* with quotes */
void k3_canon_put_file(struct k3_text *out, const struct k3_file_entry *entry);
void k3_canon_put_files(struct k3_text *out, const struct k3_file_entry *entries, uint32_t count);
void k3_canon_put_parts(struct k3_text *out, const struct k3_part_entry *parts, uint32_t count);

void k3_canon_free_files(struct k3_file_entry *entries, uint32_t count);

#endif
