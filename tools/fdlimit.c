/* Purpose: raise the limit of open files.
 * Owns: that limit of this process.
 * Threads: the main thread, before others start.
 * Errors: none.
 * Invariant: the limit never goes down. */
#include "fdlimit.h"

#include <sys/resource.h>

void k3_raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}
