/* What preloaded shims share; each is one file otherwise. */
#ifndef SHIM_USE_H
#define SHIM_USE_H

#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN_MODE_ARGUMENT (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))

/* The optional last argument of open(), into a variable of that name. */
#define TAKE_MODE(mode)                                                                            \
    mode_t mode = 0;                                                                               \
    if (flags & OPEN_MODE_ARGUMENT) {                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        (mode) = va_arg(args, mode_t);                                                             \
        va_end(args);                                                                              \
    }

/* Straight to the kernel: the report must not count itself. */
static inline void put_all(int fd, const char *data, size_t bytes)
{
    while (bytes) {
        long n = syscall(SYS_write, fd, data, bytes);
        if (n <= 0)
            return;
        data += n;
        bytes -= (size_t)n;
    }
}

#endif
