/* Purpose: what a run did and when: every read, copy and check as one line of a Chrome trace, that
 * chrome://tracing and ui.perfetto.dev show; and the pace of a run that must leave bandwidth.
 * Owns: the table of events, made at open.
 * Threads: legs add events beside each other; the caller's thread writes the file.
 * Errors: K3_ENOMEM, K3_EIO naming the file.
 * Invariants: a run allocates nothing here, and there is room for all it can do; the end of a copy
 * or check is when the loader saw that it was done, which is late by at most the time until it
 * needed to know. */
#include "load_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

/* Of a unit at most: its first check, and in each round of second reads one by itself and one of
 * all.  A check is of one unit or more. */
#define CHECKS_PER_UNIT (1u + 2u * K3_LOAD_ROUND_COUNT)
#define FLUSH_BYTES     ((size_t)1 << 20)

static uint64_t unit_count_of(const struct k3_load_leg *leg)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < leg->chunk_count; i++)
        count += leg->chunks[i].unit_count;
    return count;
}

int k3_load_trace_open(struct k3_load *load, struct k3_err *err)
{
    struct k3_load_trace *trace = &load->trace;
    if (!trace->file.path)
        return 0;
    /* A read and a copy of each chunk.  The system gives memory only to what is written. */
    trace->cap = load->chunk_count * 2;
    for (uint32_t i = 0; i < load->leg_count; i++)
        trace->cap += unit_count_of(&load->legs[i]) * CHECKS_PER_UNIT;
    trace->events = calloc(trace->cap, sizeof *trace->events);
    trace->submit_seconds = calloc(load->chunk_count + 1, sizeof *trace->submit_seconds);
    if (!trace->events || !trace->submit_seconds)
        return k3_fail(err, K3_ENOMEM, "no memory for a trace of %" PRIu64 " reads",
                       load->chunk_count);
    for (uint32_t i = 0; i < load->leg_count; i++) {
        struct k3_load_leg *leg = &load->legs[i];
        leg->open_check_cap = unit_count_of(leg); /* each is checked once until lanes are empty */
        leg->open_checks = calloc(leg->open_check_cap + 1, sizeof *leg->open_checks);
        if (!leg->open_checks)
            return k3_fail(err, K3_ENOMEM, "no memory for a trace");
    }
    return 0;
}

void k3_load_trace_close(struct k3_load *load)
{
    k3_load_trace_file_close(&load->trace.file);
    free(load->trace.events);
    free(load->trace.submit_seconds);
    for (uint32_t i = 0; load->legs && i < load->leg_count; i++)
        free(load->legs[i].open_checks);
}

void k3_load_trace_begin(struct k3_load *load)
{
    atomic_store(&load->trace.count, 0);
    load->trace.begin_seconds = k3_load_now();
}

void k3_load_trace_add(struct k3_load *load, const struct k3_load_event *event)
{
    struct k3_load_trace *trace = &load->trace;
    if (!trace->events)
        return;
    uint64_t n = atomic_fetch_add_explicit(&trace->count, 1, memory_order_relaxed);
    assert(n < trace->cap);
    trace->events[n] = *event;
}

void k3_load_trace_units(struct k3_load_leg *leg, enum k3_load_event_kind kind,
                         const struct k3_load_units *units, uint32_t lane, double begin_seconds)
{
    struct k3_load *load = leg->load;
    if (!load->trace.events)
        return;
    const struct k3_load_event event = {
        .begin_seconds = begin_seconds,
        .end_seconds = k3_load_now(),
        .leg = (uint32_t)(leg - load->legs),
        .lane = lane,
        .part = (uint32_t)(units->part - load->parts),
        .unit_begin = units->unit_begin,
        .unit_count = units->unit_count,
        .kind = kind,
    };
    k3_load_trace_add(load, &event);
}

/* Which part a table of results belongs to: parts lie in order. */
static uint32_t part_of_result(const struct k3_load *load, const uint8_t *result)
{
    uint32_t low = 0, high = load->part_count;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (load->parts[mid].results <= result)
            low = mid;
        else
            high = mid;
    }
    return low;
}

void k3_load_trace_checks(struct k3_load_leg *leg, uint32_t lane)
{
    struct k3_load *load = leg->load;
    for (uint32_t i = 0; leg->open_checks && i < leg->batches[lane].check_count; i++) {
        const struct k3_dev_check *check = &leg->batches[lane].checks[i];
        const uint32_t part = part_of_result(load, check->result);
        assert(leg->open_check_count < leg->open_check_cap);
        const uint64_t at = (leg->open_check_begin + leg->open_check_count++) % leg->open_check_cap;
        leg->open_checks[at] = (struct k3_load_open_check){
            .event = {.begin_seconds = k3_load_now(),
                      .leg = (uint32_t)(leg - load->legs),
                      .lane = lane,
                      .part = part,
                      .unit_begin = (uint32_t)(check->result - load->parts[part].results),
                      .unit_count = check->unit_count,
                      .kind = K3_TRACE_CHECK},
            .last_result = check->result + check->unit_count - 1,
        };
    }
}

void k3_load_trace_checks_done(struct k3_load_leg *leg)
{
    while (leg->open_check_count) {
        struct k3_load_open_check *open = &leg->open_checks[leg->open_check_begin];
        if (__atomic_load_n(open->last_result, __ATOMIC_ACQUIRE) == K3_UNIT_UNKNOWN)
            return;
        open->event.end_seconds = k3_load_now();
        k3_load_trace_add(leg->load, &open->event);
        leg->open_check_begin = (leg->open_check_begin + 1) % leg->open_check_cap;
        leg->open_check_count--;
    }
}

/* ---- the file ---- */

static int write_all(int fd, const char *path, struct k3_text *text, struct k3_err *err)
{
    for (size_t at = 0; at < text->bytes;) {
        ssize_t n = write(fd, text->data + at, text->bytes - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return k3_fail_sys(err, n ? errno : EIO, "%s: cannot write the trace", path);
        at += (size_t)n;
    }
    text->bytes = 0;
    return 0;
}

static void put_event(const struct k3_load *load, const struct k3_load_event *event,
                      struct k3_text *text)
{
    static const char *const names[] = {"read", "copy", "check"};
    const struct k3_part_entry *entry = load->parts[event->part].entry;
    const double begin_us = (event->begin_seconds - load->trace.begin_seconds) * 1e6;
    /* One row for the reads of a leg, one for each of its lanes. */
    const uint32_t row = event->kind == K3_TRACE_READ ? 0 : event->lane + 1;
    k3_text_putf(text,
                 ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
                 "\"args\":{\"rank\":%u,\"part\":%u,\"unit\":%u,\"units\":%u}}",
                 names[event->kind], event->leg, row, begin_us,
                 (event->end_seconds - event->begin_seconds) * 1e6, entry->rank, entry->part,
                 event->unit_begin, event->unit_count);
}

static void put_names(const struct k3_load *load, struct k3_text *text)
{
    for (uint32_t i = 0; i < load->leg_count; i++) {
        const struct k3_load_leg *leg = &load->legs[i];
        k3_text_putf(
            text,
            "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":\"%s\"}}"
            ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":0,\"args\":"
            "{\"name\":\"reads, %s\"}}",
            i ? ",\n" : "", i, leg->name, i, leg->io_ops->name);
        for (uint32_t lane = 0; lane < leg->lane_count; lane++)
            k3_text_putf(text,
                         ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":"
                         "{\"name\":\"lane %u\"}}",
                         i, lane + 1, lane);
    }
}

int k3_load_trace_write(struct k3_load *load, struct k3_err *err)
{
    struct k3_load_trace *trace = &load->trace;
    struct k3_text text;
    if (!trace->events)
        return 0;
    int rc = k3_load_trace_file_begin(&trace->file, err);
    if (rc)
        return rc;
    const int fd = trace->file.fd;
    const char *path = trace->file.path;
    uint64_t count = atomic_load(&trace->count);
    k3_text_init(&text);
    k3_text_putf(&text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    put_names(load, &text);
    for (uint64_t i = 0; i < count && !rc; i++) {
        put_event(load, &trace->events[i], &text);
        if (text.bytes >= FLUSH_BYTES)
            rc = write_all(fd, path, &text, err);
    }
    k3_text_putf(&text, "\n]}\n");
    if (!rc)
        rc = k3_text_check(&text, err);
    if (!rc)
        rc = write_all(fd, path, &text, err);
    k3_text_fini(&text);
    return k3_load_trace_file_end(&trace->file, rc, err);
}

/* ---- pace ---- */

bool k3_load_pace_takes(struct k3_load *load, uint64_t bytes)
{
    if (load->bytes_per_second == 0)
        return true;
    double allowed = (k3_load_now() - load->begin_seconds) * (double)load->bytes_per_second;
    uint64_t before = atomic_fetch_add_explicit(&load->paced_bytes, bytes, memory_order_relaxed);
    if ((double)before <= allowed)
        return true;
    atomic_fetch_sub_explicit(&load->paced_bytes, bytes, memory_order_relaxed);
    return false;
}

void k3_load_pace_gives(struct k3_load *load, uint64_t bytes)
{
    if (load->bytes_per_second)
        atomic_fetch_sub_explicit(&load->paced_bytes, bytes, memory_order_relaxed);
}
