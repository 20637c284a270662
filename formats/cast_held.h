/* Which matrices the parts of a set hold, what the policy makes of them, and whether a list of
 * casts is that of the parts (FORMAT.md 4.9, 9).  Pure; any thread. */
#ifndef K3_CAST_HELD_H
#define K3_CAST_HELD_H

#include "cast_row.h"
#include "plan.h"

/* One matrix of which the parts hold a slice. */
struct k3_cast_held {
    uint32_t slot, part;
    enum k3_qfmt from, to; /* to: K3_Q_VERBATIM where it is kept */
    uint64_t value_count;  /* of all slices, each once, on however many ranks it is */
    uint64_t group_count;  /* the same, as struct k3_qstats counts them; 0 where it is kept */
};

/* Parts of a plan: of one item, or of a whole set. */
struct k3_cast_parts {
    const struct k3_plan *plan;
    const struct k3_part_entry *parts; /* each once; borrowed */
    uint32_t part_count;
};

/* Calls fn for each matrix, by slot, as long as it returns true. */
typedef bool (*k3_cast_held_fn)(void *context, const struct k3_cast_held *held);
void k3_cast_walk(const struct k3_cast_parts *parts, k3_cast_held_fn fn, void *context);

/* Casts that are said to be those of the parts. */
struct k3_cast_list {
    const struct k3_cast_row *rows; /* by slot, each once, each as k3_cast_row_check wants it */
    uint32_t count;
    const char *file, *next; /* for the message: whose list it is, and what to do about it */
};

/* Every matrix that the policy casts has its row, of all its values and groups, and there is none
 * more.  K3_ECORRUPT that names part, tensor and what is missing. */
int k3_cast_check(const struct k3_cast_parts *parts, const struct k3_cast_list *list,
                  struct k3_err *err);

#endif
