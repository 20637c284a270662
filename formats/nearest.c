/* Purpose: did you mean: the name that a misspelled word is nearest to.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: none.
 * Invariant: a name three edits away is another word, never an offer. */
#include "nearest.h"

#include <string.h>

#define WORD_MAX 48 /* longest difference that is looked at */

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Edit distance (insert, delete, replace), by rows, of what is left without the same beginning and
 * the same end: names of tensors are long and differ in little. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[WORD_MAX + 1];
    while (*a && *a == *b) {
        a++;
        b++;
    }
    size_t a_length = strlen(a), b_length = strlen(b);
    while (a_length && b_length && a[a_length - 1] == b[b_length - 1]) {
        a_length--;
        b_length--;
    }
    const size_t more = a_length > b_length ? a_length - b_length : b_length - a_length;
    if (more >= K3_NEAREST_NONE || a_length > WORD_MAX || b_length > WORD_MAX)
        return WORD_MAX; /* far: each length more is an edit */
    for (unsigned j = 0; j <= b_length; j++)
        row[j] = j;
    for (unsigned i = 1; i <= a_length; i++) {
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

/* Is the word what a name begins with, or its last components? */
static bool is_piece(const char *word, const char *name)
{
    const size_t word_bytes = strlen(word), name_bytes = strlen(name);
    if (word_bytes < 3 || word_bytes >= name_bytes)
        return false;
    return !strncmp(word, name, word_bytes) || (name[name_bytes - word_bytes - 1] == '.' &&
                                                !strcmp(word, name + name_bytes - word_bytes));
}

bool k3_nearer(const char *word, const char *name, unsigned *nearest)
{
    unsigned d = distance(word, name);
    if (d >= *nearest && is_piece(word, name))
        d = 2; /* near, however much is missing */
    if (d >= *nearest || d >= strlen(name))
        return false;
    *nearest = d;
    return true;
}

const char *k3_nearest(const char *word, const char *const *name, size_t count)
{
    const char *best = NULL;
    unsigned nearest = K3_NEAREST_NONE;
    for (size_t i = 0; i < count; i++)
        if (k3_nearer(word, name[i], &nearest))
            best = name[i];
    return best;
}
