/* What was cast, for people and for --json: convert and seal say the same. */
#ifndef K3_CAST_PRINT_H
#define K3_CAST_PRINT_H

#include "cast_report.h"
#include "doc.h"

/* Add casts[] (by role), low_tensors, low[] (the first of them) and, where dir is not NULL and
 * something was cast, cast_report, the path of the file.  False: no memory. */
bool k3_casts_add(struct k3_doc *root, const struct k3_cast_summary *casts, const char *dir);

/* The same as text on stdout; nothing where nothing was cast. */
void k3_casts_print(const struct k3_cast_summary *casts, const char *dir);

#endif
