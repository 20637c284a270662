/* Purpose: global scales and shapes of casts, held against the plan and against each other.
 * Owns: the global scales met so far, until k3_cast_numbers_close.
 * Threads: one at a time for a struct k3_cast_numbers; else pure.
 * Errors: K3_ENOMEM; a number that is wrong is a problem that names tensor and index.
 * Invariant: what is right in its form only is compared, so no number is told of twice for one
 * fault. */
#include "cast_numbers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_BYTES 32u /* a FP32 number in decimal */

struct k3_cast_global {
    float value; /* 0, which no global scale is: none was met */
    uint32_t rank;
};

/* A part being judged. */
struct judge {
    struct k3_cast_numbers *numbers;
    const struct k3_part *part;
    const char *file;
    struct k3_problems *problems;
    const struct k3_entry *first; /* of the global scales that are one number; NULL: none yet */
    float first_value;
};

static bool is_number(const struct k3_entry *entry)
{
    return entry->slot != K3_SLOT_NONE && entry->row.what >= K3_ROW_GLOBAL;
}

bool k3_cast_numbers_range(const struct k3_part *part, uint64_t *begin_offset, uint64_t *end_offset)
{
    bool found = false;
    for (uint32_t e = 0; e < part->entry_count; e++) {
        const struct k3_entry *entry = &part->entries[e];
        if (!is_number(entry))
            continue;
        if (!found)
            *begin_offset = entry->begin_offset;
        *end_offset = entry->begin_offset + entry->bytes;
        found = true;
    }
    return found;
}

int k3_cast_numbers_open(const struct k3_plan *plan, struct k3_cast_numbers *numbers,
                         struct k3_err *err)
{
    *numbers = (struct k3_cast_numbers){.plan = plan};
    numbers->globals = calloc((size_t)plan->slot_count + 1, sizeof *numbers->globals);
    return numbers->globals ? 0 : k3_fail(err, K3_ENOMEM, "no memory for the global scales");
}

void k3_cast_numbers_close(struct k3_cast_numbers *numbers)
{
    free(numbers->globals);
    memset(numbers, 0, sizeof *numbers);
}

/* ---- shapes ---- */

static void judge_shape(struct judge *judge, const struct k3_entry *entry, const uint8_t *data)
{
    const struct k3_plan *plan = judge->numbers->plan;
    const struct k3_rule *rule = &plan->config.model->rules[entry->row.rule];
    const uint64_t wanted[2] = {entry->slice.row_count, k3_slice_columns(rule, &entry->slice)};
    char name[K3_ST_NAME_BYTES_MAX + 1];
    judge->numbers->shape_count++;
    for (unsigned i = 0; i < 2; i++) {
        const int64_t found = (int64_t)k3_load_le64(data + 8u * i);
        if (found == (int64_t)wanted[i])
            continue;
        k3_entry_name(plan, judge->part, entry, name, sizeof name);
        k3_problems_add(judge->problems,
                        "%s: tensor %s[%u] is %" PRId64 ", wanted %" PRIu64
                        ": the matrix has [%" PRIu64 ", %" PRIu64 "] values on this rank",
                        judge->file, name, i, found, wanted[i], wanted[0], wanted[1]);
    }
}

/* ---- global scales ---- */

static const char *value_text(float value, char text[VALUE_BYTES])
{
    if (isnan(value))
        return "NaN";
    snprintf(text, VALUE_BYTES, "%.9g", (double)value); /* nine digits tell any two apart */
    return text;
}

/* Do two global scales belong to matrices that are one to an engine? */
static bool is_shared(const struct judge *judge, const struct k3_entry *a, const struct k3_entry *b)
{
    return a && a->index == b->index &&
           k3_row_same_view(&judge->numbers->plan->config, &a->row, &b->row);
}

static void judge_value(struct judge *judge, const struct k3_entry *entry, float value)
{
    struct k3_cast_global *global = &judge->numbers->globals[entry->slot];
    char name[K3_ST_NAME_BYTES_MAX + 1], first[K3_ST_NAME_BYTES_MAX + 1];
    char found[VALUE_BYTES], wanted[VALUE_BYTES];
    const struct k3_plan *plan = judge->numbers->plan;
    k3_entry_name(plan, judge->part, entry, name, sizeof name);
    if (!isfinite(value) || !(value > 0)) {
        k3_problems_add(judge->problems,
                        "%s: tensor %s[0] is %s, wanted a finite number above 0: all values of the "
                        "matrix are scaled by it",
                        judge->file, name, value_text(value, found));
        return;
    }
    if (!is_shared(judge, judge->first, entry)) {
        judge->first = entry;
        judge->first_value = value;
    } else if (value != judge->first_value) {
        k3_entry_name(plan, judge->part, judge->first, first, sizeof first);
        k3_problems_add(judge->problems,
                        "%s: tensor %s[0] is %s, wanted %s as %s[0] is: to engines they are one "
                        "matrix, which has one global scale",
                        judge->file, name, value_text(value, found),
                        value_text(judge->first_value, wanted), first);
    }
    if (global->value == 0)
        *global = (struct k3_cast_global){.value = value, .rank = judge->part->rank};
    else if (value != global->value)
        k3_problems_add(judge->problems,
                        "%s: tensor %s[0] is %s, wanted %s as on rank %" PRIu32
                        ": a global scale is that of the whole matrix",
                        judge->file, name, value_text(value, found),
                        value_text(global->value, wanted), global->rank);
}

static void judge_global(struct judge *judge, const struct k3_entry *entry, const uint8_t *data)
{
    const uint32_t bits = k3_load_le32(data);
    float value;
    memcpy(&value, &bits, sizeof value);
    judge->numbers->global_count++;
    judge_value(judge, entry, value);
}

void k3_cast_numbers_judge(struct k3_cast_numbers *numbers, const struct k3_part *part,
                           const uint8_t *data, const char *file, struct k3_problems *problems)
{
    struct judge judge = {.numbers = numbers, .part = part, .file = file, .problems = problems};
    uint64_t begin, end;
    if (!k3_cast_numbers_range(part, &begin, &end))
        return;
    for (uint32_t e = 0; e < part->entry_count; e++) {
        const struct k3_entry *entry = &part->entries[e];
        if (!is_number(entry))
            continue;
        const uint8_t *at = data + (entry->begin_offset - begin);
        if (entry->row.what == K3_ROW_SHAPE)
            judge_shape(&judge, entry, at);
        else
            judge_global(&judge, entry, at);
    }
}
