/* What the tests of io engines read: files of known bytes in TMPDIR, and reads drawn over them. */
#ifndef IO_FILES_H
#define IO_FILES_H

#include "io.h"

#include <stdbool.h>

#define IO_FILE_COUNT_MAX 3u

struct io_files {
    int fds[IO_FILE_COUNT_MAX];
    char paths[IO_FILE_COUNT_MAX][256];
    uint32_t count;
    uint64_t bytes; /* of each */
};

/* The byte at an offset of a file. */
uint8_t io_content(uint32_t file, uint64_t offset);
/* False: the disk refused.  remove follows in any case. */
bool io_files_make(struct io_files *files, uint32_t count, uint64_t bytes);
void io_files_remove(struct io_files *files);
/* What a read can bring: up to the end of its file. */
size_t io_files_expect(const struct io_files *files, const struct k3_io_read *read);
/* Every byte that arrived at data is the file's; a failed assertion (cmocka) names the first. */
void io_files_compare(const struct k3_io_read *read, const uint8_t *data, size_t bytes);

/* Numbers that are the same in each run. */
extern uint32_t random_state;
uint32_t random_below(uint32_t limit);

#endif
