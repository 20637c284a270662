/* A device around another one (whose memory the host can write) that poisons what it allocates and
 * spoils chosen operations.  One rule at a time. */
#ifndef FAULT_DEV_H
#define FAULT_DEV_H

#include "dev.h"

#include <stdbool.h>

#define FAULT_DEV_POISON 0xA5

enum fault_dev_kind {
    FAULT_DEV_NONE,      /* poison only */
    FAULT_DEV_SKIP_COPY, /* a copy is not done, and nothing is said */
    FAULT_DEV_MISPLACE,  /* a copy to the device goes to the target of an earlier one */
    FAULT_DEV_FLIP,      /* one bit of the data flips before a check */
    FAULT_DEV_WAIT,      /* copy_wait fails */
    FAULT_DEV_CHECK,     /* verify_units fails to begin */
    FAULT_DEV_ALLOC      /* alloc fails */
};

struct fault_dev_rule {
    enum fault_dev_kind kind;
    uint64_t nth;   /* first call it hits, from 1 */
    uint64_t count; /* how many in a row */
};

/* The table around `inner`, with a rule (NULL: none) that holds until the next call. */
const struct k3_dev_ops *fault_dev(const struct k3_dev_ops *inner,
                                   const struct fault_dev_rule *rule);
/* Say (the default is that of the inner device) that its memory is the host's; without it the
 * loader goes through slots. */
void fault_dev_is_host_memory(bool is_host_memory);
/* What was spoiled since. */
uint64_t fault_dev_hit_count(void);

#endif
