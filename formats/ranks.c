/* Purpose: lists of ranks: a set of bits, and its one text form.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: none; a text that is not the form is told by false.
 * Invariant: equal lists have equal texts, and a text that decodes is the one that is made of its
 * list. */
#include "ranks.h"

#include "text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define RUN_BYTES 12u /* ",4095-4095" and NUL */

void k3_ranks_clear(struct k3_ranks *ranks)
{
    memset(ranks, 0, sizeof *ranks);
}

void k3_ranks_fill(struct k3_ranks *ranks, uint32_t world)
{
    k3_ranks_clear(ranks);
    for (uint32_t rank = 0; rank < world; rank++)
        k3_ranks_add(ranks, rank);
}

void k3_ranks_add(struct k3_ranks *ranks, uint32_t rank)
{
    assert(rank < K3_RANK_COUNT_MAX);
    ranks->count += !k3_ranks_has(ranks, rank);
    ranks->bits[rank / 8] |= (uint8_t)(1u << rank % 8);
}

bool k3_ranks_has(const struct k3_ranks *ranks, uint32_t rank)
{
    return rank < K3_RANK_COUNT_MAX && ((uint32_t)ranks->bits[rank / 8] >> rank % 8 & 1u) != 0;
}

bool k3_ranks_equal(const struct k3_ranks *a, const struct k3_ranks *b)
{
    return memcmp(a->bits, b->bits, sizeof a->bits) == 0;
}

/* The next run of ranks from *at on; false where there is no more. */
static bool next_run(const struct k3_ranks *ranks, uint32_t *at, uint32_t *first, uint32_t *last)
{
    while (*at < K3_RANK_COUNT_MAX && !k3_ranks_has(ranks, *at))
        ++*at;
    if (*at == K3_RANK_COUNT_MAX)
        return false;
    *first = *at;
    while (k3_ranks_has(ranks, *at))
        ++*at;
    *last = *at - 1;
    return true;
}

static void run_text(bool is_first, uint32_t first, uint32_t last, char text[RUN_BYTES])
{
    const char *comma = is_first ? "" : ",";
    if (first == last)
        snprintf(text, RUN_BYTES, "%s%" PRIu32, comma, first);
    else
        snprintf(text, RUN_BYTES, "%s%" PRIu32 "-%" PRIu32, comma, first, last);
}

void k3_ranks_put(const struct k3_ranks *ranks, struct k3_text *out)
{
    char text[RUN_BYTES];
    uint32_t first, last;
    for (uint32_t at = 0, n = 0; next_run(ranks, &at, &first, &last); n++) {
        run_text(n == 0, first, last, text);
        k3_text_puts(out, text);
    }
}

const char *k3_ranks_shown(const struct k3_ranks *ranks, char shown[K3_RANKS_SHOWN_BYTES])
{
    static const char more[] = ",...";
    char text[RUN_BYTES];
    size_t used = 0;
    uint32_t first, last;
    shown[0] = 0;
    for (uint32_t at = 0; next_run(ranks, &at, &first, &last);) {
        run_text(used == 0, first, last, text);
        size_t bytes = strlen(text);
        if (used + bytes + sizeof more > K3_RANKS_SHOWN_BYTES) {
            memcpy(shown + used, more, sizeof more);
            break;
        }
        memcpy(shown + used, text, bytes + 1);
        used += bytes;
    }
    return shown;
}

/* Take a number below the limit off the front. */
static bool take_rank(const char **at, const char *end, uint32_t *rank)
{
    const char *begin = *at;
    uint32_t value = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        value = value * 10 + (uint32_t)(**at - '0');
        if (value >= K3_RANK_COUNT_MAX)
            return false;
    }
    *rank = value;
    return *at > begin && (*begin != '0' || *at == begin + 1);
}

bool k3_ranks_decode(const char *text, size_t bytes, struct k3_ranks *out)
{
    const char *at = text, *end = text + bytes;
    uint32_t first, last, next = 0; /* a run that touches the one before it would be one with it */
    k3_ranks_clear(out);
    for (;;) {
        if (!take_rank(&at, end, &first) || first < next)
            return false;
        last = first;
        if (at < end && *at == '-') {
            at++;
            if (!take_rank(&at, end, &last) || last <= first)
                return false;
        }
        for (uint32_t rank = first; rank <= last; rank++)
            k3_ranks_add(out, rank);
        next = last + 2;
        if (at == end)
            return true;
        if (*at++ != ',')
            return false;
    }
}
