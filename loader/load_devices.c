/* Purpose: the text that names the devices of a load: "host", "cuda", "cuda:0-3,6", "hip:1".
 * Owns: nothing.
 * Threads: pure, any thread.
 * Errors: K3_EUSAGE quoting the text.
 * Invariants: no device is named twice; the order is that of the text. */
#include "load_internal.h"

#include <string.h>

#define INDEX_MAX 255u

static int fail_text(const char *text, const char *why, struct k3_err *err)
{
    return k3_fail(err, K3_EUSAGE, "device '%.100s': %s: write host, cuda:0, cuda:0-7 or hip:0,2",
                   text, why);
}

/* The same of one entry of a list, as it was written. */
static int fail_entry(const char *text, const char *entry, const char *why, struct k3_err *err)
{
    return k3_fail(
        err, K3_EUSAGE, "device '%.100s': '%.*s' %s: write host, cuda:0, cuda:0-7 or hip:0,2", text,
        (int)strnlen(entry, strcspn(entry, ",") < 40 ? strcspn(entry, ",") : 40), entry, why);
}

/* Decimal digits at *at, beyond INDEX_MAX one more than it; false where there are none. */
static bool take_number(const char **at, uint32_t *number)
{
    const char *begin = *at;
    *number = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        if (*number <= INDEX_MAX)
            *number = *number * 10 + (uint32_t)(**at - '0');
    if (*number > INDEX_MAX)
        *number = INDEX_MAX + 1;
    return *at != begin;
}

static int add_range(struct k3_load_devices *out, uint32_t first, uint32_t last, const char *text,
                     struct k3_err *err)
{
    for (uint32_t index = first; index <= last; index++) {
        for (uint32_t i = 0; i < out->count; i++)
            if (out->indices[i] == index)
                return fail_text(text, "a device is named twice", err);
        if (out->count == K3_LOAD_LEG_COUNT_MAX)
            return fail_text(text, "too many devices", err);
        out->indices[out->count++] = index;
    }
    return 0;
}

static int take_list(const char *list, const char *text, struct k3_load_devices *out,
                     struct k3_err *err)
{
    int rc = 0;
    for (const char *at = list; !rc; at++) {
        const char *const entry = at;
        uint32_t first, last;
        if (!take_number(&at, &first))
            return fail_text(
                text, "numbers from 0 to 255 stand behind the colon, with one comma between two",
                err);
        last = first;
        if (*at == '-' && (at++, !take_number(&at, &last)))
            return fail_entry(text, entry, "is a range without its last number", err);
        if (first > INDEX_MAX || last > INDEX_MAX)
            return fail_entry(text, entry, "goes beyond 255", err);
        if (last < first)
            return fail_entry(text, entry, "goes from a larger number to a smaller one", err);
        rc = add_range(out, first, last, text, err);
        if (!rc && *at == 0)
            return 0;
        if (!rc && *at != ',')
            rc = fail_entry(text, entry, "is neither a number nor a range", err);
    }
    return rc;
}

int k3_load_devices_parse(const char *text, struct k3_load_devices *out, struct k3_err *err)
{
    static const struct k3_dev_ops *const gpus[] = {&k3_dev_cuda, &k3_dev_hip};
    memset(out, 0, sizeof *out);
    if (!text || strcmp(text, k3_dev_host.name) == 0) {
        out->ops = &k3_dev_host;
        out->count = 1;
        return 0;
    }
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        size_t n = strlen(gpus[i]->name);
        if (strncmp(text, gpus[i]->name, n) != 0 || (text[n] && text[n] != ':'))
            continue;
        out->ops = gpus[i];
        if (text[n])
            return take_list(text + n + 1, text, out, err);
        out->count = 1;
        return 0;
    }
    return fail_text(text, "is not known", err);
}
