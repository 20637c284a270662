/* How convert reads: a file in its order, read ahead past the page cache while the worker computes.
 */
#ifndef K3_CONVERT_READ_H
#define K3_CONVERT_READ_H

#include "io.h"
#include "text.h"

#include <pthread.h>

/* What all readers of a run share: which engines work here, and what was refused. */
struct k3_read_route {
    pthread_mutex_t lock;     /* guards fallbacks */
    struct k3_text fallbacks; /* sentences, one a line, each once */
    bool has_ring;
};

/* Find out whether io_uring works here. */
void k3_read_route_init(struct k3_read_route *route);
/* Returns the fallbacks, malloc, the caller's; NULL: none. */
char *k3_read_route_fini(struct k3_read_route *route);
/* Add a sentence, unless it is there. */
void k3_read_route_note(struct k3_read_route *route, const char *what, const struct k3_err *why);

#define K3_READER_SLOT_COUNT_MAX 8u /* 32 MiB read ahead: no disk tried gains from more */

/* One worker's reader: slots in one piece of memory, borrowed; one file at a time. */
struct k3_reader {
    struct k3_read_route *route; /* shared */
    uint8_t *slots;              /* slot_count * slot_bytes; borrowed */
    size_t slot_bytes;           /* a multiple of K3_DIRECT_ALIGN_MAX */
    uint32_t slot_count;         /* 1..K3_READER_SLOT_COUNT_MAX */
    /* The file that is being read. */
    const struct k3_io_ops *ops;
    struct k3_io *io;  /* NULL: no file */
    const char *name;  /* of the file, borrowed until end */
    const char *whose; /* "source files", "parts": for fallbacks */
    uint64_t bytes;    /* of the file */
    uint64_t asked_offset, given_offset;
    int fd; /* borrowed until end */
    uint32_t file;
    bool is_direct, has_given; /* has_given: the caller holds a slot */
    bool arrived[K3_READER_SLOT_COUNT_MAX];
    struct k3_io_done done[K3_READER_SLOT_COUNT_MAX]; /* of what arrived */
};

/* Begin to read a file of known bytes.  whose: "source files" or "parts", as fallbacks say it.
 * Fails: K3_EIO, K3_ENOMEM. */
int k3_reader_begin(struct k3_reader *reader, int fd, const char *name, uint64_t bytes,
                    const char *whose, struct k3_err *err);

/* The next piece: slot_bytes, or what is left.  It is the caller's until the next call.  Fails:
 * K3_EIO; K3_ECORRUPT where the file ends early. */
int k3_reader_next(struct k3_reader *reader, const uint8_t **data, size_t *bytes,
                   struct k3_err *err);

/* Stop reading, whatever is in flight; fine without a file. */
void k3_reader_end(struct k3_reader *reader);

#endif
