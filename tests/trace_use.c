/* Purpose: read the trace of a load back and hold it against the load.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: a failed assertion ends the test.
 * Invariant: every unit is read once and checked once, and copied once where there are slots. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trace_use.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct k3_doc *trace_read(const char *path)
{
    struct k3_err err;
    k3_err_init(&err);
    struct k3_doc *root = NULL;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    size_t bytes = fread(text, 1, 1 << 20, file);
    assert_true(bytes < 1 << 20);
    fclose(file);
    int rc = k3_doc_decode("trace", text, bytes, &root, &err);
    if (rc)
        print_message("%s\n", err.text);
    assert_int_equal(rc, 0);
    free(text);
    return root;
}

static uint32_t number_of(const struct k3_doc *object, const char *path)
{
    uint64_t value;
    assert_true(k3_doc_integer(k3_doc_find(object, path), &value));
    return (uint32_t)value;
}

/* Counts what an event says into the tables of units: reads, copies, checks. */
static void count_event(const struct k3_load *load, const struct k3_doc *event, uint8_t *seen[3])
{
    static const char *const names[] = {"read", "copy", "check"};
    const char *name = k3_doc_string(k3_doc_find(event, "name"));
    const char *phase = k3_doc_string(k3_doc_find(event, "ph"));
    assert_true(name && phase);
    if (!strcmp(phase, "M"))
        return;
    assert_string_equal(phase, "X");
    assert_true(k3_doc_find(event, "ts") && k3_doc_find(event, "dur"));
    const uint32_t rank = number_of(event, "args.rank"), part = number_of(event, "args.part");
    const uint32_t begin = number_of(event, "args.unit"), count = number_of(event, "args.units");
    size_t kind = 0;
    while (kind < 3 && strcmp(name, names[kind]))
        kind++;
    assert_true(kind < 3 && rank < load->rank_count);
    const struct k3_load_part *row = &load->parts[load->ranks[rank].part_begin + part];
    assert_int_equal(row->entry->part, part);
    assert_int_equal(row->entry->rank, rank);
    assert_true(begin + count <= row->unit_count);
    for (uint32_t u = begin; u < begin + count; u++)
        seen[kind][row->results - load->results + u]++;
}

void trace_check(const struct k3_load *load, const char *path, bool has_slots, uint32_t check_count)
{
    uint8_t *seen[3];
    uint64_t events = 0;
    for (int i = 0; i < 3; i++)
        assert_non_null(seen[i] = calloc(load->unit_count, 1));
    struct k3_doc *root = trace_read(path);
    const struct k3_doc *list = k3_doc_find(root, "traceEvents");
    assert_true(k3_doc_is_array(list));
    for (const struct k3_doc *at = k3_doc_first(list); at; at = k3_doc_next(at), events++)
        count_event(load, at, seen);
    for (uint64_t u = 0; u < load->unit_count; u++) {
        assert_int_equal(seen[0][u], 1);
        assert_true(seen[1][u] <= has_slots);
        assert_int_equal(seen[2][u], check_count);
    }
    assert_true(events > load->chunk_count * 2);
    for (uint64_t i = 0; i < load->trace.count; i++)
        assert_true(load->trace.events[i].end_seconds >= load->trace.events[i].begin_seconds);
    k3_doc_free(root);
    for (int i = 0; i < 3; i++)
        free(seen[i]);
}
