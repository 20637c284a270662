/* Which ranks of a layout a set holds, and the text of such a list: 0-3,8 (FORMAT.md 8.1, 9). */
#ifndef K3_RANKS_H
#define K3_RANKS_H

#include "manifest.h"

struct k3_text;

struct k3_ranks {
    uint32_t count;
    uint8_t bits[K3_RANK_COUNT_MAX / 8];
};

#define K3_RANKS_SHOWN_BYTES 80u /* room for a list in a message; a longer one is cut short */

void k3_ranks_clear(struct k3_ranks *ranks);
/* Ranks 0..world-1. */
void k3_ranks_fill(struct k3_ranks *ranks, uint32_t world);
/* rank < K3_RANK_COUNT_MAX; one that is there already is fine. */
void k3_ranks_add(struct k3_ranks *ranks, uint32_t rank);
bool k3_ranks_has(const struct k3_ranks *ranks, uint32_t rank);
bool k3_ranks_equal(const struct k3_ranks *a, const struct k3_ranks *b);

/* Append the list: ascending, runs of two or more as FIRST-LAST, joined by commas. */
void k3_ranks_put(const struct k3_ranks *ranks, struct k3_text *out);
/* Decode what k3_ranks_put makes, and no other spelling of it; false where it is not. */
bool k3_ranks_decode(const char *text, size_t bytes, struct k3_ranks *out);
/* The list for a message; returns shown. */
const char *k3_ranks_shown(const struct k3_ranks *ranks, char shown[K3_RANKS_SHOWN_BYTES]);

#endif
