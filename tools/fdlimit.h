/* How many files may be open at once. */
#ifndef K3_FDLIMIT_H
#define K3_FDLIMIT_H

#include "k3_err.h"

/* Raise the soft limit to the hard one: an item keeps a file open for each of its parts, for each
 * worker.  Where that is refused, opening a file says so later.  Once, before threads start. */
void k3_raise_file_limit(void);

/* The next step, behind the text of a failure that met the limit; others are left alone. */
void k3_advise_file_limit(struct k3_err *err);

#endif
