/* What the io engines share: opening a file past the page cache, and the steps of one read. */
#ifndef K3_IO_DIRECT_H
#define K3_IO_DIRECT_H

#include "io.h"

#include <sys/types.h>

/* The largest alignment any file system was seen to ask for (64 KiB pages and blocks). */
#define K3_DIRECT_ALIGN_MAX 65536u

struct k3_io_file {
    int fd;         /* borrowed, through the page cache */
    int direct_fd;  /* owned; -1: this file is not read direct */
    uint32_t align; /* of offset, length and memory of direct reads; a power of two */
};

/* Open fd's file once more with O_DIRECT, find its alignment and try one read.  is_direct false:
 * only take fd over.  Fails: K3_EUNSUPPORTED (direct reads are refused: says by what), K3_EIO,
 * K3_ENOMEM; *file holds nothing then. */
int k3_io_file_open(int fd, bool is_direct, struct k3_io_file *file, struct k3_err *err);
void k3_io_file_close(struct k3_io_file *file);

/* A growing table of them, for engines. */
struct k3_io_files {
    struct k3_io_file *file; /* owned */
    uint32_t count, cap;
};
/* engine: its name, for the message.  *index: of the new file. */
int k3_io_files_add(struct k3_io_files *files, const struct k3_io_file *file, const char *engine,
                    struct k3_err *err);
void k3_io_files_fini(struct k3_io_files *files);
/* Is this read one that can be asked for?  K3_EUSAGE. */
int k3_io_files_check(const struct k3_io_files *files, const struct k3_io_read *read,
                      const char *engine, struct k3_err *err);

/* One read on its way: a chain of system calls until all bytes came, the file ended or the system
 * refused. */
struct k3_io_way {
    struct k3_io_read read;
    struct k3_io_file file;
    size_t done_bytes;
    uint32_t retry_count; /* "try again" in a row */
    int sys_errno;
    bool is_buffered; /* direct reads bring no whole block any more: the rest goes buffered */
};

/* The next system call of it. */
struct k3_io_step {
    void *target;
    uint64_t offset;
    size_t bytes; /* 0: nothing is left to do */
    int fd;
    bool is_direct;
};

void k3_io_way_begin(struct k3_io_way *way, const struct k3_io_read *read,
                     const struct k3_io_file *file);
struct k3_io_step k3_io_way_next(const struct k3_io_way *way);
/* result: bytes, or a negative errno.  True: the way ends here. */
bool k3_io_way_take(struct k3_io_way *way, const struct k3_io_step *step, ssize_t result);

#endif
