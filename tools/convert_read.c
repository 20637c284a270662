/* Purpose: read a file in its order through an io engine, slots ahead of the worker.
 * Owns: the engine of the file that is read; slots and file descriptor are borrowed.
 * Threads: a reader belongs to one worker; the route is shared, its text under a lock.
 * Errors: K3_EIO, K3_ECORRUPT (the file ends early), K3_ENOMEM.  What a machine refuses is no
 * error: it is said once, and the next way is taken.
 * Invariants: piece k of a file lies in slot k mod count and is asked for once; a slot is asked to
 * be filled again only after the caller gave it back. */
#include "convert_read.h"

#include "fs.h"
#include "io_direct.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void k3_read_route_init(struct k3_read_route *route)
{
    struct k3_err why;
    k3_err_init(&why);
    pthread_mutex_init(&route->lock, NULL);
    k3_text_init(&route->fallbacks);
    route->has_ring = k3_io_uring.probe(NULL, &why) == 0;
    if (!route->has_ring)
        k3_text_putf(&route->fallbacks, "io uring is not used: %s\n", why.text);
}

char *k3_read_route_fini(struct k3_read_route *route)
{
    char *lines = route->fallbacks.data;
    pthread_mutex_destroy(&route->lock);
    k3_text_init(&route->fallbacks);
    return lines;
}

void k3_read_route_note(struct k3_read_route *route, const char *what, const struct k3_err *why)
{
    char line[K3_ERR_TEXT_BYTES + 128];
    snprintf(line, sizeof line, "%s: %s\n", what, why->text);
    pthread_mutex_lock(&route->lock);
    if (!route->fallbacks.data || !strstr(route->fallbacks.data, line))
        k3_text_puts(&route->fallbacks, line);
    pthread_mutex_unlock(&route->lock);
}

static int open_engine(struct k3_reader *reader, const struct k3_io_ops *ops, bool is_direct,
                       struct k3_err *err)
{
    const struct k3_io_region region = {reader->slots, reader->slot_count * reader->slot_bytes};
    struct k3_err slower;
    k3_err_init(&slower);
    struct k3_io_options options = {.depth = reader->slot_count,
                                    .is_direct = is_direct,
                                    .region_count = 1,
                                    .regions = &region,
                                    .note = &slower};
    reader->ops = ops;
    reader->is_direct = is_direct;
    int rc = ops->open(&options, &reader->io, err);
    if (!rc)
        rc = ops->add_file(reader->io, reader->fd, &reader->file, err);
    if (rc && reader->io) {
        ops->close(reader->io);
        reader->io = NULL;
    }
    if (!rc && slower.rc)
        k3_read_route_note(reader->route, "io uring", &slower);
    return rc;
}

static void note(struct k3_reader *reader, const char *what, const struct k3_err *why)
{
    char line[64];
    snprintf(line, sizeof line, "%s %s", reader->whose, what);
    k3_read_route_note(reader->route, line, why);
}

/* The best way that this file allows. */
static int choose_engine(struct k3_reader *reader, struct k3_err *err)
{
    struct k3_err why;
    k3_err_init(&why);
    int rc = K3_EUNSUPPORTED;
    if (reader->route->has_ring) {
        rc = open_engine(reader, &k3_io_uring, true, &why);
        if (rc == K3_EUNSUPPORTED)
            note(reader, "are read without io uring", &why);
    }
    if (rc == K3_EUNSUPPORTED) {
        k3_err_init(&why);
        rc = open_engine(reader, &k3_io_pread, true, &why);
        if (rc == K3_EUNSUPPORTED)
            note(reader, "are read through the page cache", &why);
    }
    if (rc == K3_EUNSUPPORTED) {
        k3_err_init(&why);
        rc = open_engine(reader, &k3_io_pread, false, &why);
    }
    return rc ? k3_fail_at(err, rc, reader->name, -1, "%s: cannot read: %s", reader->name, why.text)
              : 0;
}

/* Ask for the next piece of the file. */
static int ask(struct k3_reader *reader, struct k3_err *err)
{
    uint64_t left = reader->bytes - reader->asked_offset;
    uint64_t number = reader->asked_offset / reader->slot_bytes;
    uint32_t slot = (uint32_t)(number % reader->slot_count);
    struct k3_io_read read = {.target = reader->slots + slot * reader->slot_bytes,
                              .offset = reader->asked_offset,
                              .bytes = left < reader->slot_bytes ? (size_t)left
                                                                 : reader->slot_bytes,
                              .tag = number,
                              .file = reader->file};
    reader->arrived[slot] = false;
    reader->asked_offset += read.bytes;
    return reader->ops->submit(reader->io, &read, 1, err);
}

int k3_reader_begin(struct k3_reader *reader, int fd, const char *name, uint64_t bytes,
                    const char *whose, struct k3_err *err)
{
    assert(!reader->io && reader->slot_count > 0 && reader->slot_count <= K3_READER_SLOT_COUNT_MAX);
    reader->fd = fd;
    reader->name = name;
    reader->whose = whose;
    reader->bytes = bytes;
    reader->asked_offset = reader->given_offset = 0;
    reader->has_given = false;
    int rc = choose_engine(reader, err);
    for (uint32_t s = 0; s < reader->slot_count && !rc && reader->asked_offset < bytes; s++)
        rc = ask(reader, err);
    return rc;
}

/* Bytes of the piece that begins at offset. */
static size_t piece_bytes(const struct k3_reader *reader, uint64_t offset)
{
    uint64_t left = reader->bytes - offset;
    return left < reader->slot_bytes ? (size_t)left : reader->slot_bytes;
}

/* Pieces are judged in their order, so a file has the same error in each run. */
static int judge(const struct k3_reader *reader, const struct k3_io_done *done, struct k3_err *err)
{
    uint64_t offset = done->tag * reader->slot_bytes, at = offset + done->bytes;
    if (done->sys_errno) {
        struct k3_err why;
        k3_err_init(&why);
        int rc = k3_fail_sys(&why, done->sys_errno, "%s: cannot read", reader->name);
        return k3_fail_at(err, rc, reader->name, (int64_t)at, "%s", why.text);
    }
    if (done->bytes < piece_bytes(reader, offset))
        return k3_fail_at(err, K3_ECORRUPT, reader->name, (int64_t)at,
                          "%s: ends at byte %" PRIu64 " where %" PRIu64
                          " bytes were expected: it shrank or was cut off",
                          reader->name, at, reader->bytes);
    return 0;
}

/* The caller is through with the piece before given_offset: its slot takes the next one. */
static int give_back(struct k3_reader *reader, struct k3_err *err)
{
    if (!reader->has_given)
        return 0;
    reader->has_given = false;
    if (!reader->is_direct) { /* the page cache is left as it was found */
        uint64_t begin = (reader->given_offset - 1) / reader->slot_bytes * reader->slot_bytes;
        k3_file_drop(reader->fd, begin, reader->given_offset - begin);
    }
    return reader->asked_offset < reader->bytes ? ask(reader, err) : 0;
}

int k3_reader_next(struct k3_reader *reader, const uint8_t **data, size_t *bytes,
                   struct k3_err *err)
{
    assert(reader->io && reader->given_offset < reader->bytes);
    int rc = give_back(reader, err);
    uint32_t slot = (uint32_t)(reader->given_offset / reader->slot_bytes % reader->slot_count);
    while (!rc && !reader->arrived[slot]) {
        struct k3_io_done done[K3_READER_SLOT_COUNT_MAX];
        uint32_t count = 0;
        rc = reader->ops->reap(reader->io, done, reader->slot_count, &count, err);
        for (uint32_t i = 0; i < count; i++) {
            reader->done[done[i].tag % reader->slot_count] = done[i];
            reader->arrived[done[i].tag % reader->slot_count] = true;
        }
    }
    if (!rc)
        rc = judge(reader, &reader->done[slot], err);
    if (rc)
        return rc;
    *data = reader->slots + slot * reader->slot_bytes;
    *bytes = piece_bytes(reader, reader->given_offset);
    reader->given_offset += *bytes;
    reader->has_given = true;
    return 0;
}

void k3_reader_end(struct k3_reader *reader)
{
    if (!reader->io)
        return;
    reader->ops->close(reader->io);
    reader->io = NULL;
    if (reader->has_given && !reader->is_direct)
        k3_file_drop(reader->fd, 0, reader->given_offset);
    /* A last block that is not whole came through the page cache. */
    uint64_t tail = reader->bytes % K3_DIRECT_ALIGN_MAX;
    if (reader->is_direct && tail)
        k3_file_drop(reader->fd, reader->bytes - tail, tail);
}
