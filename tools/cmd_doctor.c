/* Purpose: the command doctor: what this machine can do, route by route, and why not.
 * Owns: the list of findings.
 * Threads: the main thread.
 * Errors: K3_ENOMEM alone: what is missing is a finding, not a failure.
 * Invariant: one line for each finding, in the order of looking. */
#include "cmds.h"
#include "doc.h"
#include "doctor.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const state_word[] = {
    [K3_FINDING_OK] = "ok",
    [K3_FINDING_SLOWER] = "slower",
    [K3_FINDING_MISSING] = "missing",
    [K3_FINDING_ABSENT] = "absent",
};

/* ---- the list ---- */

struct k3_finding *k3_doctor_add(struct k3_doctor *doctor, const char *name)
{
    assert(doctor->count < K3_FINDING_COUNT_MAX);
    struct k3_finding *finding = &doctor->findings[doctor->count++];
    snprintf(finding->name, sizeof finding->name, "%s", name);
    return finding;
}

/* Names of files and mounts are in it: none of them may break a line. */
static void put(char *text, const char *format, va_list list)
{
    (void)vsnprintf(text, K3_FINDING_TEXT_BYTES, format, list);
    k3_make_printable(text);
}

#define PUT(field)                                                                                 \
    do {                                                                                           \
        va_list list;                                                                              \
        va_start(list, format);                                                                    \
        put(finding->field, format, list);                                                         \
        va_end(list);                                                                              \
    } while (0)

void k3_finding_value(struct k3_finding *finding, const char *format, ...)
{
    PUT(value);
}

void k3_finding_slower(struct k3_finding *finding, const char *format, ...)
{
    PUT(reason);
    finding->state = K3_FINDING_SLOWER;
}

void k3_finding_missing(struct k3_finding *finding, const char *format, ...)
{
    PUT(reason);
    finding->state = K3_FINDING_MISSING;
}

void k3_finding_absent(struct k3_finding *finding, const char *format, ...)
{
    PUT(reason);
    finding->state = K3_FINDING_ABSENT;
}

void k3_finding_next(struct k3_finding *finding, const char *format, ...)
{
    PUT(next_step);
}

/* ---- the report ---- */

static bool is_ok(const struct k3_doctor *doctor)
{
    for (uint32_t i = 0; i < doctor->count; i++)
        if (doctor->findings[i].is_needed && doctor->findings[i].state == K3_FINDING_MISSING)
            return false;
    return true;
}

static int print_json(const struct k3_doctor *doctor, struct k3_err *err)
{
    struct k3_doc *root = k3_doc_new_object();
    bool added = root && k3_doc_add_bool(root, "ok", is_ok(doctor));
    struct k3_doc *array = added ? k3_doc_add_array(root, "findings") : NULL;
    added = array != NULL;
    for (uint32_t i = 0; i < doctor->count && added; i++) {
        const struct k3_finding *finding = &doctor->findings[i];
        struct k3_doc *row = k3_doc_add_object(array, NULL);
        added = row && k3_doc_add_string(row, "name", finding->name) &&
                k3_doc_add_string(row, "state", state_word[finding->state]) &&
                k3_doc_add_string(row, "value", finding->value) &&
                k3_doc_add_string(row, "reason", finding->reason) &&
                k3_doc_add_string(row, "next_step", finding->next_step);
    }
    int rc = added ? k3_result_print(root, err)
                   : k3_fail(err, K3_ENOMEM, "no memory for the report");
    k3_doc_free(root);
    return rc;
}

static void print_text(const struct k3_doctor *doctor)
{
    for (uint32_t i = 0; i < doctor->count; i++) {
        const struct k3_finding *finding = &doctor->findings[i];
        printf("%-8s%-20s%s", state_word[finding->state], finding->name, finding->value);
        if (finding->reason[0])
            printf("%s%s", finding->value[0] ? "; " : "", finding->reason);
        if (finding->next_step[0])
            printf("; next: %s", finding->next_step);
        putchar('\n');
    }
}

int k3_cmd_doctor(const struct k3_opts *opts, struct k3_err *err)
{
    struct k3_doctor *doctor = calloc(1, sizeof *doctor);
    if (!doctor)
        return k3_fail(err, K3_ENOMEM, "no memory for a list of findings");
    k3_doctor_machine(doctor);
    k3_doctor_gpu(doctor);
    if (opts->args.count)
        k3_doctor_dir(doctor, opts->args.item[0]);
    int rc = 0;
    if (opts->json)
        rc = print_json(doctor, err);
    else
        print_text(doctor);
    free(doctor);
    return rc;
}
