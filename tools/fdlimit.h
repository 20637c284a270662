/* How many files may be open at once. */
#ifndef K3_FDLIMIT_H
#define K3_FDLIMIT_H

/* Raise the soft limit to the hard one: an item keeps a file open for each of its parts, for each
 * worker.  Where that is refused, opening a file says so later.  Once, before threads start. */
void k3_raise_file_limit(void);

#endif
