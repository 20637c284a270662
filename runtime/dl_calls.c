/* Purpose: libraries that are opened at run time, and their calls.
 * Owns: nothing; what was opened is the caller's.
 * Threads: any.
 * Errors: none; the caller knows what a library is for, and says so.
 * Invariant: a pointer of a table is a call of the library or NULL. */
#include "dl_calls.h"

#include <dlfcn.h>
#include <string.h>

void *k3_dl_open(const char *const *names, const char **used)
{
    void *handle = NULL;
    for (size_t i = 0; names[i] && !handle; i++) {
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        *used = names[i];
    }
    return handle;
}

bool k3_dl_find(void *handle, const char *name, void *table, size_t offset)
{
    /* POSIX lets a void * be a function; ISO C has no cast for it. */
    void *call = dlsym(handle, name);
    memcpy((char *)table + offset, &call, sizeof call);
    return call;
}
