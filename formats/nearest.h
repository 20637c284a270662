/* Did you mean: for messages about words that nobody knows. */
#ifndef K3_NEAREST_H
#define K3_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

/* The nearest of `count` names to a misspelled one; NULL when none is near. */
const char *k3_nearest(const char *word, const char *const *name, size_t count);

/* The same, name by name, where there are too many for a list: is this one nearer than the nearest
 * so far?  *nearest begins as K3_NEAREST_NONE and is made smaller by each that is. */
#define K3_NEAREST_NONE 3u /* three edits apart is another word */
bool k3_nearer(const char *word, const char *name, unsigned *nearest);

#endif
