/* Stopping on request: SIGINT and SIGTERM set a flag that long work looks at between steps. */
#ifndef K3_STOP_H
#define K3_STOP_H

#include <stdbool.h>

/* Catch SIGINT and SIGTERM: the first of either sets the flag, the next one kills as usual.
 * Once, before other threads start. */
void k3_stop_install(void);

/* True from the first signal on.  Any thread; as cheap as a load. */
bool k3_stop_requested(void);

#endif
