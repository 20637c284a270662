/* Bad and odd safetensors files by name: one for each rule.  Used by test_st.c and by
 * make_bad_files.c. */
#ifndef K3_ST_BAD_H
#define K3_ST_BAD_H

#include "k3_err.h"
#include "text.h"

#include <stddef.h>
#include <stdint.h>

#define K3_BAD_ANY_OFFSET (-2) /* the place is not part of the promise */

struct k3_bad_st {
    const char *name; /* rule of reference/integrity.md 2.3 and what is wrong: "A2-zero-header" */
    /* Appends the whole file to *out. */
    void (*build)(const struct k3_bad_st *row, struct k3_text *out);
    const char *json;    /* for build = by JSON: text of the header */
    uint32_t data_bytes; /* ... and bytes of data behind it */
    int rc;              /* K3_OK in the good table */
    int64_t offset;      /* -1: none; K3_BAD_ANY_OFFSET */
    const char *text;    /* part of the message */
};

extern const struct k3_bad_st k3_bad_st_table[];
extern const size_t k3_bad_st_count;

/* Files that look odd and are legal in a checkpoint. */
extern const struct k3_bad_st k3_good_st_table[];
extern const size_t k3_good_st_count;

#endif
