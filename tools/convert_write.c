/* Purpose: write pieces of files: whole blocks direct from slots, by threads; the rest through the
 * page cache.
 * Owns: its threads, the direct file descriptors, the unfinished last blocks.
 * Threads: one worker drives a writer; its own threads touch the queue (under the lock), the slots
 * of their jobs, and files.
 * Errors: K3_EIO, K3_ENOMEM; the first failure ends what waits.  Refused direct writes are no
 * error: they are said once, and the page cache is used.
 * Invariants: a block is written direct only when all of it is known; a block of which parts come
 * at different times is written through the page cache each time; a run makes the same number of
 * calls that change files whenever it is repeated, and between begin and wait they are writes. */
#include "convert_write.h"

#include "fs.h"
#include "io_direct.h"
#include "thread.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The disk is told of pages behind so many bytes: long writes, and little is left for the sync. */
#define FLUSH_BYTES (16u << 20)

/* ---- one write ---- */

static int write_cached(const struct k3_write_file *file, const uint8_t *data, size_t bytes,
                        uint64_t offset, struct k3_err *err)
{
    return k3_file_write(file->fd, file->name, data, bytes, offset, err);
}

static void refuse_direct(struct k3_read_route *route, struct k3_write_file *file, int sys_errno)
{
    struct k3_err why;
    k3_err_init(&why);
    k3_fail_sys(&why, sys_errno, "direct writes (O_DIRECT) are refused here");
    atomic_store(&file->is_refused, true);
    k3_read_route_note(route, "parts are written through the page cache", &why);
}

/* Whole blocks past the page cache; what the system does not take so goes through it. */
static int write_direct(struct k3_read_route *route, struct k3_write_file *file,
                        const struct k3_write_job *job, struct k3_err *err)
{
    size_t put_bytes = 0;
    while (put_bytes < job->bytes && !atomic_load(&file->is_refused)) {
        ssize_t n = pwrite(file->direct_fd, job->data + put_bytes, job->bytes - put_bytes,
                           (off_t)(job->offset + put_bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
            refuse_direct(route, file, errno);
            break;
        }
        if (n < 0) {
            struct k3_err why;
            k3_err_init(&why);
            int rc = k3_fail_sys(&why, errno, "%s: cannot write", file->name);
            return k3_fail_at(err, rc, file->name, (int64_t)(job->offset + put_bytes), "%s",
                              why.text);
        }
        if (n == 0) /* the page cache tells why */
            break;
        put_bytes += (size_t)n;
        if (put_bytes % file->align)
            break; /* a torn block */
    }
    return put_bytes < job->bytes
               ? write_cached(file, job->data + put_bytes, job->bytes - put_bytes,
                              job->offset + put_bytes, err)
               : 0;
}

/* A job is whole blocks, or lies inside one or two blocks that are not. */
static int write_job(struct k3_read_route *route, const struct k3_write_job *job,
                     struct k3_err *err)
{
    struct k3_write_file *file = job->file;
    const uint32_t mask = file->align - 1;
    struct k3_write_job middle = *job;
    size_t head = (size_t)(-job->offset & mask);
    head = head < job->bytes ? head : job->bytes;
    int rc = head ? write_cached(file, job->data, head, job->offset, err) : 0;
    middle.data += head;
    middle.offset += head;
    middle.bytes = (job->bytes - head) & ~(size_t)mask;
    if (!rc && middle.bytes)
        rc = write_direct(route, file, &middle, err);
    size_t done = head + middle.bytes;
    if (!rc && done < job->bytes)
        rc = write_cached(file, job->data + done, job->bytes - done, job->offset + done, err);
    return rc;
}

/* ---- threads ---- */

static void *serve(void *context)
{
    struct k3_writer *writer = context;
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        while (!writer->is_closing && writer->job_count == 0)
            pthread_cond_wait(&writer->has_work, &writer->lock);
        if (writer->job_count == 0)
            break;
        struct k3_write_job job = writer->jobs[writer->job_begin];
        struct k3_err own;
        k3_err_init(&own);
        writer->job_begin = (writer->job_begin + 1) % K3_WRITER_SLOT_COUNT_MAX;
        writer->job_count--;
        bool is_given_up = writer->failure.rc != 0;
        pthread_mutex_unlock(&writer->lock);
        int rc = is_given_up ? 0 : write_job(writer->route, &job, &own);
        pthread_mutex_lock(&writer->lock);
        if (rc && !writer->failure.rc)
            writer->failure = own;
        writer->free_slots[writer->free_count++] = job.slot;
        pthread_cond_signal(&writer->has_slot);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

int k3_writer_open(struct k3_writer *writer, struct k3_err *err)
{
    assert(writer->slot_count <= K3_WRITER_SLOT_COUNT_MAX);
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->has_work, NULL);
    pthread_cond_init(&writer->has_slot, NULL);
    k3_err_init(&writer->failure);
    writer->is_open = true;
    for (uint32_t s = 0; s < writer->slot_count; s++)
        writer->free_slots[writer->free_count++] = s;
    uint32_t count = writer->slot_count < K3_WRITER_THREAD_COUNT_MAX ? writer->slot_count
                                                                     : K3_WRITER_THREAD_COUNT_MAX;
    int sys_errno = 0;
    while (!sys_errno && writer->thread_count < count) {
        sys_errno = k3_thread_start(&writer->threads[writer->thread_count], serve, writer);
        writer->thread_count += !sys_errno;
    }
    return sys_errno ? k3_fail_sys(err, sys_errno, "cannot make a thread that writes") : 0;
}

void k3_writer_close(struct k3_writer *writer)
{
    if (!writer->is_open)
        return;
    pthread_mutex_lock(&writer->lock);
    writer->is_closing = true;
    pthread_cond_broadcast(&writer->has_work);
    pthread_mutex_unlock(&writer->lock);
    for (uint32_t t = 0; t < writer->thread_count; t++)
        pthread_join(writer->threads[t], NULL);
    pthread_cond_destroy(&writer->has_slot);
    pthread_cond_destroy(&writer->has_work);
    pthread_mutex_destroy(&writer->lock);
    writer->is_open = false;
}

/* ---- the worker's side ---- */

static int failure_of(const struct k3_writer *writer, struct k3_err *err)
{
    if (writer->failure.rc && !err->rc)
        *err = writer->failure;
    return writer->failure.rc;
}

/* Wait for a free slot. */
static int take_slot(struct k3_writer *writer, uint32_t *slot, struct k3_err *err)
{
    pthread_mutex_lock(&writer->lock);
    while (!writer->failure.rc && writer->free_count == 0)
        pthread_cond_wait(&writer->has_slot, &writer->lock);
    int rc = failure_of(writer, err);
    if (!rc)
        *slot = writer->free_slots[--writer->free_count];
    pthread_mutex_unlock(&writer->lock);
    return rc;
}

static void submit(struct k3_writer *writer, const struct k3_write_job *job)
{
    pthread_mutex_lock(&writer->lock);
    writer->jobs[(writer->job_begin + writer->job_count) % K3_WRITER_SLOT_COUNT_MAX] = *job;
    writer->job_count++;
    pthread_cond_signal(&writer->has_work);
    pthread_mutex_unlock(&writer->lock);
}

int k3_writer_begin(struct k3_writer *writer, struct k3_write_file *file, int fd, const char *name,
                    struct k3_err *err)
{
    char path[64];
    struct k3_io_file look;
    struct k3_err why;
    k3_err_init(&why);
    *file = (struct k3_write_file){.fd = fd, .direct_fd = -1, .name = name};
    if (writer->slot_count == 0)
        return 0;
    int rc = k3_io_file_open(fd, true, &look, &why);
    if (rc == K3_EUNSUPPORTED) {
        k3_read_route_note(writer->route, "parts are written through the page cache", &why);
        return 0;
    }
    if (rc)
        return k3_fail_at(err, rc, name, -1, "%s: %s", name, why.text);
    file->align = look.align;
    k3_io_file_close(&look);
    file->tail = malloc(file->align);
    if (!file->tail)
        return k3_fail(err, K3_ENOMEM, "%s: no memory to write it", name);
    /* By way of /proc the same file is opened, whatever happened to its name. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    file->direct_fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    if (file->direct_fd < 0)
        refuse_direct(writer->route, file, errno);
    return 0;
}

void k3_writer_forget(struct k3_write_file *file)
{
    if (file->direct_fd >= 0)
        close(file->direct_fd);
    free(file->tail);
    file->direct_fd = -1;
    file->tail = NULL;
}

/* Without slots, or without direct writes. */
static int put_cached(struct k3_write_file *file, const uint8_t *data, size_t bytes,
                      uint64_t offset, struct k3_err *err)
{
    int rc = write_cached(file, data, bytes, offset, err);
    file->cached_bytes += bytes;
    if (rc || file->cached_bytes < FLUSH_BYTES)
        return rc;
    /* A hint: the sync at the end is what counts, and tells of every failure. */
    (void)sync_file_range(file->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    file->cached_bytes = 0;
    return 0;
}

/* Send the tail, and behind it what is left of a piece up to its last whole block; the rest becomes
 * the tail.  All of it fits into a slot. */
static int send_piece(struct k3_writer *writer, struct k3_write_file *file, const uint8_t *data,
                      size_t bytes, uint64_t offset, struct k3_err *err)
{
    const uint32_t mask = file->align - 1;
    uint64_t begin = file->tail_bytes ? file->tail_offset : offset, end = offset + bytes;
    uint64_t whole = end & ~(uint64_t)mask; /* where the last block that is not whole begins */
    if (whole > begin) {
        struct k3_write_job job = {.file = file, .offset = begin, .bytes = whole - begin};
        int rc = take_slot(writer, &job.slot, err);
        if (rc)
            return rc;
        uint8_t *to = writer->slots + job.slot * writer->slot_bytes + (begin & mask);
        job.data = to;
        memcpy(to, file->tail, file->tail_bytes);
        size_t from_piece = job.bytes - file->tail_bytes;
        memcpy(to + file->tail_bytes, data, from_piece);
        file->tail_bytes = 0;
        submit(writer, &job);
        data += from_piece;
        bytes -= from_piece;
        offset += from_piece;
    }
    if (!bytes)
        return 0;
    if (!file->tail_bytes)
        file->tail_offset = offset;
    memcpy(file->tail + file->tail_bytes, data, bytes);
    file->tail_bytes += (uint32_t)bytes;
    return 0;
}

int k3_writer_end(struct k3_writer *writer, struct k3_write_file *file, struct k3_err *err)
{
    if (!file->tail_bytes)
        return 0;
    struct k3_write_job job = {
        .file = file, .offset = file->tail_offset, .bytes = file->tail_bytes};
    int rc = take_slot(writer, &job.slot, err);
    if (rc)
        return rc;
    uint8_t *to = writer->slots + job.slot * writer->slot_bytes;
    job.data = to;
    memcpy(to, file->tail, file->tail_bytes);
    file->tail_bytes = 0;
    submit(writer, &job);
    return 0;
}

int k3_writer_put(struct k3_writer *writer, struct k3_write_file *file, const uint8_t *data,
                  size_t bytes, uint64_t offset, struct k3_err *err)
{
    if (file->direct_fd < 0)
        return put_cached(file, data, bytes, offset, err);
    int rc = 0;
    if (file->tail_bytes && file->tail_offset + file->tail_bytes != offset)
        rc = k3_writer_end(writer, file, err);
    const size_t most = writer->slot_bytes - file->align; /* a tail lies in front of it */
    for (size_t n; bytes && !rc; data += n, offset += n, bytes -= n) {
        n = bytes < most ? bytes : most;
        rc = send_piece(writer, file, data, n, offset, err);
    }
    return rc;
}

int k3_writer_wait(struct k3_writer *writer, struct k3_err *err)
{
    pthread_mutex_lock(&writer->lock);
    while (writer->free_count < writer->slot_count)
        pthread_cond_wait(&writer->has_slot, &writer->lock);
    int rc = failure_of(writer, err);
    pthread_mutex_unlock(&writer->lock);
    return rc;
}

void k3_writer_drop(struct k3_writer *writer)
{
    struct k3_err ignored;
    pthread_mutex_lock(&writer->lock);
    if (!writer->failure.rc)
        k3_fail(&writer->failure, K3_ECANCELED, "given up");
    pthread_mutex_unlock(&writer->lock);
    k3_err_init(&ignored);
    (void)k3_writer_wait(writer, &ignored);
    k3_err_init(&writer->failure);
}
