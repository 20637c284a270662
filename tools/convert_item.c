/* Purpose: convert one item: stream its source files in file order, scatter to the parts, sync,
 * read back, record.
 * Owns: the part files while they are written, the write sums.
 * Threads: one worker each item; workers share only counters.
 * Errors: K3_EIO, K3_ECORRUPT (source changed under the run or not what its download record says,
 * A_log tail), K3_ECANCELED, K3_ENOMEM.
 * Invariants: each byte of a source that is needed is read once; each byte of a part is written
 * once or is a pad (a hole reads as zero); a record is published only after its files are durable
 * and were read back equal to what was written. */
#include "convert.h"

#include "scatter.h"
#include "sha256.h"
#include "stop.h"
#include "tree.h"
#include "wsum.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One part being written. */
struct output {
    int fd;
    uint32_t dir;
    char name[K3_NAME_BYTES_MAX + 1];
    char staged[K3_STAGED_NAME_BYTES];
    uint64_t *sums; /* write sum of each unit; owned */
    uint64_t written_bytes;
    struct k3_write_file file;
};

struct item_run {
    struct k3_convert *convert;
    struct k3_convert_worker *worker;
    struct k3_scatter *scatter;
    struct k3_caster caster;
    struct output *outputs; /* by target */
    struct k3_record record;
    const struct k3_item *item;
    uint32_t worker_index;
};

static int no_memory(const struct item_run *run, struct k3_err *err)
{
    return k3_fail(err, K3_ENOMEM, "no memory for item %u", run->scatter ? run->scatter->item : 0);
}

static int stopped(struct k3_err *err)
{
    return k3_fail(err, K3_ECANCELED, "stopped on request");
}

static void count(struct item_run *run, struct output *output, const uint8_t *data, uint64_t bytes,
                  uint64_t offset)
{
    k3_wsum_add(output->sums, data, (size_t)bytes, offset);
    output->written_bytes += bytes;
    atomic_fetch_add_explicit(&run->convert->written_bytes, bytes, memory_order_relaxed);
}

/* Write to a part and remember what was written. */
static int put(struct item_run *run, uint32_t target, const uint8_t *data, uint64_t bytes,
               uint64_t offset, struct k3_err *err)
{
    struct output *output = &run->outputs[target];
    int rc = k3_writer_put(&run->worker->writer, &output->file, data, (size_t)bytes, offset, err);
    if (!rc)
        count(run, output, data, bytes, offset);
    return rc;
}

/* Where space cannot be reserved the file is still empty, and pads at its end are not written. */
static int set_size(const struct output *output, uint64_t bytes, struct k3_err *err)
{
    int rc;
    do
        rc = ftruncate(output->fd, (off_t)bytes);
    while (rc && errno == EINTR);
    return rc ? k3_fail_sys(err, errno, "%s: cannot set its size", output->name) : 0;
}

static int create_output(struct item_run *run, uint32_t target, struct k3_err *err)
{
    struct output *output = &run->outputs[target];
    struct k3_target *t = &run->scatter->targets[target];
    struct k3_job *job = run->convert->job;
    k3_part_name(t->part.rank, t->part.part, output->name);
    k3_staged_name(output->name, run->record.token, output->staged);
    output->dir = k3_job_dir_of(job, t->part.rank, t->part.part);
    output->sums = calloc(t->file_bytes / K3_UNIT_BYTES, sizeof *output->sums);
    if (!output->sums)
        return no_memory(run, err);
    int rc = k3_file_create(&job->partials[output->dir], output->staged, &output->fd, err);
    if (!rc)
        rc = k3_file_reserve(output->fd, output->name, t->file_bytes, err);
    if (!rc)
        rc = set_size(output, t->file_bytes, err);
    if (!rc)
        rc = k3_writer_begin(&run->worker->writer, &output->file, output->fd, output->name, err);
    /* By this thread: calls that change files come in the same order in each run. */
    struct k3_text *header = &run->scatter->headers[target];
    if (!rc)
        rc = k3_file_write(output->fd, output->name, header->data, header->bytes, 0, err);
    if (!rc)
        count(run, output, (const uint8_t *)header->data, header->bytes, 0);
    k3_text_fini(header);
    return rc;
}

static int put_cast(void *context, uint32_t target, const uint8_t *data, uint64_t bytes,
                    uint64_t offset, struct k3_err *err)
{
    return put(context, target, data, bytes, offset, err);
}

/* Send one run of source bytes to every part that holds a slice of it. */
static int deliver(struct item_run *run, const struct k3_run *piece, const uint8_t *data,
                   const char *file, struct k3_err *err)
{
    const struct k3_scatter *scatter = run->scatter;
    if (k3_cast_fmt(scatter->ckpt->plan, piece->slot) != K3_Q_VERBATIM)
        return k3_caster_run(&run->caster, piece, data, err);
    uint64_t tail = k3_scatter_tail(scatter, piece->slot);
    if (piece->end > tail) {
        uint64_t from = piece->begin > tail ? piece->begin : tail;
        if (!k3_is_zero(data + (from - piece->begin), (size_t)(piece->end - from))) {
            char name[K3_ST_NAME_BYTES_MAX + 1];
            k3_plan_slot_name(scatter->ckpt->plan, piece->slot, name, sizeof name);
            return k3_fail_at(err, K3_ECORRUPT, file, -1,
                              "%s: %s: the bytes behind its last head (from byte %" PRIu64
                              " of %" PRIu64
                              ") must be zero and are not: another model, or a damaged file",
                              file, name, tail, piece->tensor_bytes);
        }
    }
    for (uint32_t t = 0; t < scatter->target_count; t++) {
        struct k3_place_run place;
        k3_scatter_place(scatter, piece, t, &place);
        if (!place.bytes)
            continue;
        const uint8_t *from = data + place.first;
        if (!place.is_straight) {
            k3_gather_columns(piece, place.slice, data, run->worker->packed);
            from = run->worker->packed;
        }
        int rc = put(run, t, from, place.bytes, place.file_offset, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* One source file, whole, in file order. */
static int stream_file(struct item_run *run, uint32_t file, struct k3_file_entry *entry,
                       struct k3_err *err)
{
    struct k3_convert *convert = run->convert;
    const struct k3_source *source = &convert->ckpt->plan->sources[file];
    struct k3_sha256 *sha = run->worker->sha;
    struct k3_reader *reader = &run->worker->reader;
    struct k3_range range = {.file = file};
    int fd = -1;
    int rc = k3_ckpt_file_open(convert->ckpt, file, &fd, err);
    if (rc)
        return rc;
    k3_sha256_begin(sha);
    rc = k3_reader_begin(reader, fd, source->name, source->bytes, "source files", err);
    size_t bytes = 0;
    for (uint64_t offset = 0; offset < source->bytes && !rc; offset += bytes) {
        const uint8_t *data;
        rc = k3_stop_requested() ? stopped(err) : 0;
        if (!rc)
            rc = k3_reader_next(reader, &data, &bytes, err);
        if (rc)
            break;
        k3_sha256_update(sha, data, bytes);
        struct k3_run piece;
        uint64_t at;
        range.offset = offset;
        range.bytes = bytes;
        while (!rc && k3_scatter_next(run->scatter, &range, &piece, &at))
            rc = deliver(run, &piece, data + at, source->name, err);
        atomic_fetch_add_explicit(&convert->read_bytes, bytes, memory_order_relaxed);
        k3_progress_add(&convert->progress, bytes);
    }
    k3_reader_end(reader);
    if (!rc)
        rc = k3_ckpt_file_check(convert->ckpt, file, fd, err);
    close(fd);
    k3_sha256_final(sha, entry->sha256);
    if (!rc)
        rc = k3_hf_digest_check(&convert->ckpt->dir, source->name, entry->sha256, &convert->hf,
                                err);
    entry->bytes = source->bytes;
    entry->name = strdup(source->name);
    if (!rc && !entry->name)
        rc = no_memory(run, err);
    return rc;
}

/* The sources are through: all that was handed to the writer reaches the files. */
static int end_outputs(struct item_run *run, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t t = 0; t < run->scatter->target_count && !rc; t++)
        rc = k3_writer_end(&run->worker->writer, &run->outputs[t].file, err);
    return rc ? rc : k3_writer_wait(&run->worker->writer, err);
}

/* The sum of the bytes a part must have got: all but its pads. */
static uint64_t wanted_bytes(const struct k3_target *target)
{
    uint64_t bytes = target->header_bytes;
    for (uint32_t e = 0; e < target->part.entry_count; e++)
        if (target->part.entries[e].slot != K3_SLOT_NONE)
            bytes += target->part.entries[e].bytes;
    return bytes;
}

/* Whole units, read back: are they what was written?  Unit by unit, so that the digests find in the
 * cache what the sum was made of. */
static int take_back(const struct k3_convert_worker *worker, const struct output *output,
                     const uint8_t *data, size_t bytes, uint64_t offset, struct k3_err *err)
{
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc; at += K3_UNIT_BYTES) {
        uint64_t unit = (offset + at) / K3_UNIT_BYTES;
        if (k3_wsum(data + at, K3_UNIT_BYTES, offset + at) != output->sums[unit])
            return k3_fail_at(err, K3_EIO, output->name, (int64_t)(offset + at),
                              "%s: unit %" PRIu64
                              ": what was read back is not what was written: check this "
                              "disk and this machine's memory, then run again",
                              output->name, unit);
        rc = k3_tree_update_sha(worker->tree, worker->sha, data + at, K3_UNIT_BYTES, err);
    }
    return rc;
}

/* Sync a part, read it back, compare with what was written, take its digests. */
static int prove(struct item_run *run, uint32_t target, uint8_t *units, struct k3_err *err)
{
    struct output *output = &run->outputs[target];
    const struct k3_target *t = &run->scatter->targets[target];
    struct k3_part_entry *entry = &run->record.parts[target];
    struct k3_convert_worker *worker = run->worker;
    struct k3_reader *reader = &worker->reader;
    if (output->written_bytes != wanted_bytes(t))
        return k3_fail(err, K3_ECORRUPT,
                       "%s: %" PRIu64 " bytes were written, the plan has %" PRIu64, output->name,
                       output->written_bytes, wanted_bytes(t));
    int rc = k3_file_sync(output->fd, output->name, err);
    if (rc)
        return rc;
    k3_file_drop(output->fd, 0, t->file_bytes); /* what is read back must come from the disk */
    k3_sha256_begin(worker->sha);
    k3_tree_begin(worker->tree);
    rc = k3_reader_begin(reader, output->fd, output->name, t->file_bytes, "parts", err);
    size_t bytes = 0;
    for (uint64_t offset = 0; offset < t->file_bytes && !rc; offset += bytes) {
        const uint8_t *data;
        rc = k3_stop_requested() ? stopped(err) : 0;
        if (!rc)
            rc = k3_reader_next(reader, &data, &bytes, err);
        if (!rc)
            rc = take_back(worker, output, data, bytes, offset, err);
        if (!rc)
            k3_progress_add(&run->convert->progress, bytes);
    }
    k3_reader_end(reader);
    uint64_t count;
    k3_sha256_final(worker->sha, entry->sha256);
    k3_tree_final(worker->tree, entry->tree);
    if (!rc)
        memcpy(units, k3_tree_units(worker->tree, &count),
               t->file_bytes / K3_UNIT_BYTES * K3_DIGEST_BYTES);
    entry->rank = t->part.rank;
    entry->part = t->part.part;
    entry->bytes = t->file_bytes;
    entry->data_offset = t->header_bytes;
    int closed = k3_file_close(output->fd, output->name, err);
    output->fd = -1;
    return rc ? rc : closed;
}

static int prove_all(struct item_run *run, struct k3_err *err)
{
    uint32_t count = run->scatter->target_count;
    uint64_t units = 0;
    for (uint32_t t = 0; t < count; t++)
        units += run->scatter->targets[t].file_bytes / K3_UNIT_BYTES;
    run->record.parts = calloc(count ? count : 1, sizeof *run->record.parts);
    run->record.unit_digests = malloc(units ? units * K3_DIGEST_BYTES : 1);
    if (!run->record.parts || !run->record.unit_digests)
        return no_memory(run, err);
    run->record.part_count = count;
    run->record.unit_count = units;
    uint8_t *at = run->record.unit_digests;
    int rc = 0;
    for (uint32_t t = 0; t < count && !rc; t++) {
        rc = prove(run, t, at, err);
        at += run->scatter->targets[t].file_bytes / K3_UNIT_BYTES * K3_DIGEST_BYTES;
    }
    return rc;
}

static int publish_record(struct item_run *run, struct k3_err *err)
{
    struct k3_job *job = run->convert->job;
    char name[K3_STAGED_NAME_BYTES], temporary[2 * K3_STAGED_NAME_BYTES];
    struct k3_text text;
    k3_text_init(&text);
    int rc = 0;
    for (uint32_t d = 0; d < job->dir_count && !rc; d++)
        rc = k3_dir_sync(&job->partials[d],
                         err); /* the staged names are durable before the record is */
    if (!rc)
        rc = k3_record_encode(&run->record, &text, err);
    k3_record_name(run->record.item, name);
    /* A leading dot: no copied file is staged under such a name, whatever it is called. */
    snprintf(temporary, sizeof temporary, ".%s.%s", name, run->record.token);
    if (!rc)
        rc = k3_file_publish(&job->partials[0], temporary, name, text.data, text.bytes, err);
    k3_text_fini(&text);
    return rc;
}

/* After a failure: nothing of this attempt stays.  Best effort: what stays is never looked at. */
static void discard(struct item_run *run)
{
    struct k3_job *job = run->convert->job;
    char staged[K3_STAGED_NAME_BYTES];
    struct k3_err ignored;
    k3_err_init(&ignored);
    for (uint32_t t = 0; run->outputs && t < run->scatter->target_count; t++)
        if (run->outputs[t].staged[0])
            k3_file_remove(&job->partials[run->outputs[t].dir], run->outputs[t].staged, &ignored);
    for (uint32_t f = 0; f < run->record.file_count; f++) {
        if (!run->record.files[f].name)
            continue;
        k3_staged_name(run->record.files[f].name, run->record.token, staged);
        k3_file_remove(&job->partials[0], staged, &ignored);
    }
}

static int run_item(struct item_run *run, uint32_t item, struct k3_err *err)
{
    struct k3_convert *convert = run->convert;
    run->item = &convert->ckpt->plan->items[item];
    run->record.item = item;
    memcpy(run->record.plan_digest, convert->ckpt->plan->digest, K3_DIGEST_BYTES);
    run->record.tool = strdup(convert->job->tool);
    run->record.sources = calloc(run->item->file_count ? run->item->file_count : 1,
                                 sizeof *run->record.sources);
    if (!run->record.tool || !run->record.sources)
        return no_memory(run, err);
    int rc = k3_random_hex(run->record.token, K3_TOKEN_BYTES, err);
    if (!rc)
        rc = k3_scatter_open(convert->ckpt, item, &run->scatter, err);
    if (rc)
        return rc;
    run->outputs = calloc(run->scatter->target_count + 1, sizeof *run->outputs);
    if (!run->outputs)
        return no_memory(run, err);
    for (uint32_t t = 0; t < run->scatter->target_count; t++)
        run->outputs[t].fd = run->outputs[t].file.direct_fd = -1;
    for (uint32_t t = 0; t < run->scatter->target_count && !rc; t++)
        rc = create_output(run, t, err);
    if (!rc)
        rc = k3_caster_open(run->scatter, &convert->survey, &run->caster, err);
    run->caster.put = put_cast;
    run->caster.context = run;
    run->caster.lane = run->worker->lane;
    for (uint32_t f = 0; f < run->item->file_count && !rc; f++)
        if (k3_ckpt_needs_file(convert->ckpt, run->item->files[f]))
            rc = stream_file(run, run->item->files[f],
                             &run->record.sources[run->record.source_count++], err);
    if (!rc)
        rc = end_outputs(run, err);
    run->record.casts = k3_caster_rows(&run->caster, &run->record.cast_count);
    if (!rc)
        rc = prove_all(run, err);
    if (!rc && run->item->part_count && run->item->parts[0] == 0)
        rc = k3_convert_files(convert, run->worker_index, &run->record, err);
    if (!rc)
        rc = publish_record(run, err);
    return rc;
}

int k3_convert_item(struct k3_convert *convert, uint32_t worker, uint32_t item, struct k3_err *err)
{
    struct item_run run;
    memset(&run, 0, sizeof run);
    run.convert = convert;
    run.worker = &convert->workers[worker];
    run.worker_index = worker;
    int rc = run_item(&run, item, err);
    k3_writer_drop(&run.worker->writer);
    if (rc && run.scatter)
        discard(&run);
    for (uint32_t t = 0; run.scatter && run.outputs && t < run.scatter->target_count; t++) {
        k3_writer_forget(&run.outputs[t].file);
        if (run.outputs[t].fd >= 0)
            close(run.outputs[t].fd);
        free(run.outputs[t].sums);
    }
    free(run.outputs);
    atomic_fetch_add_explicit(&convert->read_bytes, run.caster.read_bytes, memory_order_relaxed);
    k3_caster_close(&run.caster);
    k3_scatter_close(run.scatter);
    k3_record_fini(&run.record);
    return rc;
}
