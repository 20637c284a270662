/* An io engine around another one that spoils chosen reads: one rule, one engine at a time. */
#ifndef FAULT_IO_H
#define FAULT_IO_H

#include "io.h"

enum fault_io_kind {
    FAULT_IO_NONE,    /* passes everything through */
    FAULT_IO_LATE,    /* held back until nothing else is in flight */
    FAULT_IO_PARTIAL, /* half of the bytes arrive, and it says so */
    FAULT_IO_STALE,   /* nothing arrives, and it says that all did */
    FAULT_IO_WRONG,   /* all arrives, with one bit flipped */
    FAULT_IO_FAILING, /* EIO */
    FAULT_IO_SUBMIT,  /* the call of submit fails */
    FAULT_IO_REAP,    /* the call of reap fails */
    FAULT_IO_FORGED,  /* the completion has a tag that was never submitted */
    FAULT_IO_SLOW     /* the call of reap takes 120 ms longer */
};

struct fault_io_rule {
    enum fault_io_kind kind;
    uint64_t nth;   /* first read (or call) it hits, from 1 */
    uint64_t count; /* how many in a row */
};

/* The table around `inner`, with a rule (NULL: none) that holds until the next call. */
const struct k3_io_ops *fault_io(const struct k3_io_ops *inner, const struct fault_io_rule *rule);
/* What was spoiled since. */
uint64_t fault_io_hit_count(void);

#endif
