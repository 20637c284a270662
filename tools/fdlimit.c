/* Purpose: the limit of open files: raise it, and say how where that was not enough.
 * Owns: that limit of this process.
 * Threads: the main thread, before others start.
 * Errors: none.
 * Invariant: the limit never goes down. */
#include "fdlimit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

void k3_raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* What shells give by default; a conversion to tens of ranks with a few jobs stays below it. */
#define FILE_LIMIT_USUAL 1024u

/* A failure that was told within another one has lost its errno, and its reason stands last. */
static bool is_file_limit(const struct k3_err *err)
{
    const char *reason = strerror(EMFILE);
    size_t text_bytes = strlen(err->text), reason_bytes = strlen(reason);
    return err->rc && text_bytes > reason_bytes &&
           strcmp(err->text + text_bytes - reason_bytes, reason) == 0;
}

void k3_advise_file_limit(struct k3_err *err)
{
    struct rlimit limit;
    if (!is_file_limit(err) || getrlimit(RLIMIT_NOFILE, &limit))
        return;
    size_t used_bytes = strlen(err->text);
    unsigned long long now = limit.rlim_cur;
    snprintf(err->text + used_bytes, sizeof err->text - used_bytes,
             ": the limit is %llu files, raise it to %llu (ulimit -n)", now,
             now < FILE_LIMIT_USUAL ? FILE_LIMIT_USUAL : now * 2);
}
