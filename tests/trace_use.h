/* The trace that a load wrote (cmocka). */
#ifndef TRACE_USE_H
#define TRACE_USE_H

#include "doc.h"
#include "load_internal.h"

/* The document; k3_doc_free. */
struct k3_doc *trace_read(const char *path);
/* Every unit of the load was read once, checked so many times, and copied at most once, with slots.
 */
void trace_check(const struct k3_load *load, const char *path, bool has_slots,
                 uint32_t check_count);

#endif
