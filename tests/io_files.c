/* Purpose: what the tests of io engines read.
 * Owns: the files between make and remove.
 * Threads: one.
 * Errors: false from make; compare fails the test.
 * Invariant: content is a function of file and offset alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

uint32_t random_state;

uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)random_state * limit) >> 32);
}

uint8_t io_content(uint32_t file, uint64_t offset)
{
    uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15u + file;
    return (uint8_t)(x >> (8 * (offset % 8)));
}

static bool make_one(struct io_files *files, uint32_t f, uint8_t *data)
{
    const char *place = getenv("TMPDIR");
    for (uint64_t i = 0; i < files->bytes; i++)
        data[i] = io_content(f, i);
    snprintf(files->paths[f], sizeof files->paths[f], "%s/k3-io-XXXXXX", place ? place : "/tmp");
    files->fds[f] = mkstemp(files->paths[f]);
    files->count += files->fds[f] >= 0;
    return files->fds[f] >= 0 &&
           write(files->fds[f], data, files->bytes) == (ssize_t)files->bytes &&
           fsync(files->fds[f]) == 0;
}

bool io_files_make(struct io_files *files, uint32_t count, uint64_t bytes)
{
    uint8_t *data = malloc(bytes);
    bool is_good = data != NULL;
    *files = (struct io_files){.bytes = bytes};
    for (uint32_t f = 0; f < count && is_good; f++)
        is_good = make_one(files, f, data);
    free(data);
    return is_good;
}

void io_files_remove(struct io_files *files)
{
    for (uint32_t f = 0; f < files->count; f++) {
        close(files->fds[f]);
        unlink(files->paths[f]);
    }
}

size_t io_files_expect(const struct io_files *files, const struct k3_io_read *read)
{
    if (read->offset >= files->bytes)
        return 0;
    uint64_t left = files->bytes - read->offset;
    return left < read->bytes ? (size_t)left : read->bytes;
}

void io_files_compare(const struct k3_io_read *read, const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != io_content(read->file, read->offset + i))
            fail_msg("file %u, byte %zu of the read at %llu", read->file, i,
                     (unsigned long long)read->offset);
}
