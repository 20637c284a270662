/* Documents as a tree, for small ones whose shape is not known in advance (config.json, canonical
 * JSON), and for building the output of --json.  The only user of cJSON.  Everything passes the
 * strict reader first. */
#ifndef K3_DOC_H
#define K3_DOC_H

#include "k3_err.h"
#include "text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct k3_doc; /* a value of the tree; the root owns all */

/* Decode a document.  The root must be an object.  Free with k3_doc_free(root).
 * Fails: K3_EFORMAT, K3_ELIMIT, K3_ENOMEM. */
int k3_doc_decode(const char *file, const char *text, size_t bytes, struct k3_doc **root,
                  struct k3_err *err);
void k3_doc_free(struct k3_doc *root);

/* Member `path` ("a.b.c", dots descend) of an object; NULL where it is missing. */
const struct k3_doc *k3_doc_find(const struct k3_doc *object, const char *path);
bool k3_doc_is_object(const struct k3_doc *value);
bool k3_doc_is_array(const struct k3_doc *value);
/* Elements of an array or members of an object. */
uint32_t k3_doc_count(const struct k3_doc *value);
/* First element or member / the one behind `value`; NULL at the end.  (Lists are walked, never
 * indexed.) */
const struct k3_doc *k3_doc_first(const struct k3_doc *value);
const struct k3_doc *k3_doc_next(const struct k3_doc *value);
/* Name of a member. */
const char *k3_doc_name(const struct k3_doc *member);
/* Exact integer 0 <= x < 2^53; false for anything else (1.0, 1e3, "1" and -0 are not integers). */
bool k3_doc_integer(const struct k3_doc *value, uint64_t *out);
bool k3_doc_bool(const struct k3_doc *value, bool *out);
bool k3_doc_double(const struct k3_doc *value, double *out); /* any number, the nearest FP64 */
/* String, borrowed from the tree; NULL for anything else. */
const char *k3_doc_string(const struct k3_doc *value);

/* Emit canonical JSON (FORMAT.md 2) of a tree: sorted members, no white space.
 * Fails: K3_EFORMAT for values canonical JSON does not have (null, booleans, fractions, other
 * characters). */
int k3_doc_encode_canonical(const struct k3_doc *root, struct k3_text *out, struct k3_err *err);

/* ---- building (the output of --json); each returns the new value or NULL without memory ---- */
struct k3_doc *k3_doc_new_object(void);
struct k3_doc *k3_doc_add_object(struct k3_doc *object,
                                 const char *name); /* name NULL: append to an array */
struct k3_doc *k3_doc_add_array(struct k3_doc *object, const char *name);
bool k3_doc_add_string(struct k3_doc *object, const char *name, const char *string);
bool k3_doc_add_integer(struct k3_doc *object, const char *name, uint64_t value);
bool k3_doc_add_double(struct k3_doc *object, const char *name,
                       double value); /* %.6g; never NaN or Inf */
bool k3_doc_add_bool(struct k3_doc *object, const char *name, bool value);
/* Emit in the order of building, one line, no LF. */
int k3_doc_encode(const struct k3_doc *root, struct k3_text *out, struct k3_err *err);

#endif
