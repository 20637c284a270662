/* Memory for data: page-aligned anonymous mappings, huge pages asked for where they help. */
#ifndef K3_MEM_H
#define K3_MEM_H

#include "k3_err.h"

#include <stddef.h>

/* Zeroed, aligned to 4096 (2 MiB for sizes from 2 MiB on).  Fails: K3_ENOMEM.  Owned by the caller.
 */
int k3_mem_alloc(size_t bytes, void **out, struct k3_err *err);
void k3_mem_free(void *data, size_t bytes); /* NULL is fine */

#endif
