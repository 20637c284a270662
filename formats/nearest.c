/* Purpose: did you mean: the name that a misspelled word is nearest to.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: none.
 * Invariant: a name three edits away is another word, never an offer. */
#include "nearest.h"

#include <stdbool.h>
#include <string.h>

#define WORD_MAX 48 /* longest name that is looked at */

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Edit distance (insert, delete, replace), by rows. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[WORD_MAX + 1];
    unsigned b_length = (unsigned)strlen(b);
    if (strlen(a) > WORD_MAX || b_length > WORD_MAX)
        return WORD_MAX;
    for (unsigned j = 0; j <= b_length; j++)
        row[j] = j;
    for (unsigned i = 1; a[i - 1]; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= b_length; j++) {
            unsigned replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = least(replace, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_length];
}

const char *k3_nearest(const char *word, const char *const *name, size_t count)
{
    const char *best = NULL;
    unsigned best_distance = 3; /* three edits apart is another word */
    for (size_t i = 0; i < count; i++) {
        unsigned d = distance(word, name[i]);
        bool is_longer = strlen(word) >= 3 && strncmp(word, name[i], strlen(word)) == 0;
        if (is_longer && d >= best_distance)
            d = 2; /* a beginning of the name is near, however much is missing */
        if (d < best_distance && d < strlen(name[i])) {
            best = name[i];
            best_distance = d;
        }
    }
    return best;
}
