/* Libraries that are opened at run time, and their calls, filled into a table of pointers: so one
 * build starts with and without them. */
#ifndef K3_DL_CALLS_H
#define K3_DL_CALLS_H

#include <stdbool.h>
#include <stddef.h>

/* The first of the names (ended by NULL) that opens; *used: that name, or the last one tried. NULL:
 * none does. */
void *k3_dl_open(const char *const *names, const char **used);

/* The call of that name becomes the pointer at `offset` of a table; false, and NULL there: the
 * library has none. */
bool k3_dl_find(void *handle, const char *name, void *table, size_t offset);

#endif
