/* How convert writes: pieces in any order, whole blocks past the page cache on threads of their
 * own, what is no whole block through it. */
#ifndef K3_CONVERT_WRITE_H
#define K3_CONVERT_WRITE_H

#include "convert_read.h"

#include <stdatomic.h>

#define K3_WRITER_SLOT_COUNT_MAX   6u /* more wait for the disk no better */
#define K3_WRITER_THREAD_COUNT_MAX 4u /* writes under way: a disk is not busy with one */

/* A file that is written; zero it. */
struct k3_write_file {
    int fd;                /* through the page cache; borrowed */
    int direct_fd;         /* past it; owned; -1: this file is not written so */
    const char *name;      /* borrowed */
    uint8_t *tail;         /* one block: the last piece's end, until what follows it comes; owned */
    uint64_t tail_offset;  /* of it in the file */
    uint64_t cached_bytes; /* in the page cache, and the disk was not told yet */
    uint32_t align;        /* of a block */
    uint32_t tail_bytes;   /* 0: no tail */
    atomic_bool is_refused; /* direct writes turned out not to work */
};

/* A piece on its way. */
struct k3_write_job {
    struct k3_write_file *file;
    const uint8_t *data; /* in the slot */
    uint64_t offset;
    size_t bytes;
    uint32_t slot;
};

/* One worker's writer. */
struct k3_writer {
    struct k3_read_route *route; /* shared: where refusals are said */
    uint8_t *slots;              /* slot_count * slot_bytes; borrowed */
    size_t slot_bytes;           /* a multiple of K3_DIRECT_ALIGN_MAX, and more than that */
    uint32_t slot_count;         /* 0: everything goes through the page cache */
    uint32_t thread_count;
    pthread_t threads[K3_WRITER_THREAD_COUNT_MAX];
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t has_work, has_slot;
    struct k3_write_job jobs[K3_WRITER_SLOT_COUNT_MAX]; /* a ring of those that wait */
    uint32_t free_slots[K3_WRITER_SLOT_COUNT_MAX];      /* a stack */
    uint32_t job_begin, job_count, free_count;
    struct k3_err failure; /* the first; what waits behind it is not written */
    bool is_closing, is_open;
};

/* Memory and route are set before.  Fails: K3_EIO, K3_ENOMEM (no thread). */
int k3_writer_open(struct k3_writer *writer, struct k3_err *err);
void k3_writer_close(struct k3_writer *writer); /* fine on a zeroed one */

/* Begin a file; fd stays the caller's, and open until k3_writer_forget.  Fails: K3_EIO, K3_ENOMEM.
 */
int k3_writer_begin(struct k3_writer *writer, struct k3_write_file *file, int fd, const char *name,
                    struct k3_err *err);
/* Hand over a piece: data may be used again at once.  It lies in the file after k3_writer_end.
 * Fails: with what any earlier piece met. */
int k3_writer_put(struct k3_writer *writer, struct k3_write_file *file, const uint8_t *data,
                  size_t bytes, uint64_t offset, struct k3_err *err);
/* Hand over the rest of a file. */
int k3_writer_end(struct k3_writer *writer, struct k3_write_file *file, struct k3_err *err);
/* Wait until all that was handed over is written, or was given up after a failure. */
int k3_writer_wait(struct k3_writer *writer, struct k3_err *err);
/* Give up what waits, and forget failures: the worker's next item begins anew. */
void k3_writer_drop(struct k3_writer *writer);
void k3_writer_forget(struct k3_write_file *file); /* with nothing of it under way */

#endif
