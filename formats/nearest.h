/* Did you mean: for messages about words that nobody knows. */
#ifndef K3_NEAREST_H
#define K3_NEAREST_H

#include <stddef.h>

/* The nearest of `count` names to a misspelled one; NULL when none is near. */
const char *k3_nearest(const char *word, const char *const *name, size_t count);

#endif
