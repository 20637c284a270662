/* For the static analyzer only: what k3_fail*() return.  It looks at one source at a time, so it
 * would follow paths on which a failure returns 0.  No compiler sees this file. */
#include "k3_err.h"

int k3_model_use(struct k3_err *err, ...);

#define k3_fail(err, rc, ...) ((void)k3_model_use((err), __VA_ARGS__), (rc))
#define k3_fail_sys(err, number, ...)                                                              \
    ((void)k3_model_use((err), __VA_ARGS__), (number) == 12 ? K3_ENOMEM : K3_EIO)
#define k3_fail_at(err, rc, file, offset, ...)                                                     \
    ((void)k3_model_use((err), (file), (offset), __VA_ARGS__), (rc))
