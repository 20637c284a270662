/* Purpose: the container inside source-headers.zst: encode lines, decode all (FORMAT.md 7).
 * Owns: the names of the entries.
 * Threads: any; pure.
 * Errors: K3_EFORMAT with offset, K3_ELIMIT, K3_ENOMEM.
 * Invariant: entries are config.json, the index, then source files in strictly ascending order of
 * name. */
#include "source_headers.h"

#include "hf_index.h"
#include "manifest.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* An entry of a header has some 60 bytes beside the name, one of the index at most 300 with its
 * white space: 8 times is beyond any writer, and the floor leaves room for small ones. */
#define INDEX_PER_HEADER 8u
#define INDEX_FLOOR      (16ull << 20)

static const char first_line[] = "k3-source-headers 0\n";

void k3_source_headers_begin(struct k3_text *out)
{
    k3_text_puts(out, first_line);
}

void k3_source_headers_line(const char *name, uint64_t bytes, struct k3_text *out)
{
    k3_text_putf(out, "%s %llu\n", name, (unsigned long long)bytes);
}

uint64_t k3_source_headers_index_max(uint64_t header_bytes)
{
    if (header_bytes >= (K3_INDEX_BYTES_MAX - INDEX_FLOOR) / INDEX_PER_HEADER)
        return K3_INDEX_BYTES_MAX;
    return INDEX_FLOOR + header_bytes * INDEX_PER_HEADER;
}

int k3_source_headers_bytes(const struct k3_plan *plan, uint64_t config_bytes, uint64_t index_bytes,
                            uint64_t *total, struct k3_err *err)
{
    struct k3_text lines;
    k3_text_init(&lines);
    k3_source_headers_begin(&lines);
    k3_source_headers_line(K3_CONFIG_NAME, config_bytes, &lines);
    k3_source_headers_line(K3_INDEX_NAME, index_bytes, &lines);
    uint64_t sum = config_bytes + index_bytes + 2;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        k3_source_headers_line(plan->sources[i].name, plan->sources[i].header_bytes, &lines);
        sum += plan->sources[i].header_bytes + 1;
    }
    int rc = k3_text_check(&lines, err);
    *total = sum + lines.bytes;
    k3_text_fini(&lines);
    return rc;
}

/* Parse "NAME BYTES\n" at *at; the name is copied. */
static int read_line(const char *file, const char *content, size_t bytes, size_t *at,
                     struct k3_header_entry *entry, struct k3_err *err)
{
    const char *line = content + *at;
    const char *end = memchr(line, '\n', bytes - *at);
    const char *space = end ? memchr(line, ' ', (size_t)(end - line)) : NULL;
    /* A name is what stands before the blank, whole: a NUL in it would hide the rest. */
    if (!space || memchr(line, 0, (size_t)(end - line)) ||
        (size_t)(space - line) > K3_NAME_BYTES_MAX || end - space < 2 || end - space > 16)
        return k3_fail_at(err, K3_EFORMAT, file, (int64_t)*at,
                          "%s: content at byte %zu: a line NAME BYTES was expected", file, *at);
    uint64_t value = 0;
    for (const char *p = space + 1; p < end; p++) {
        if (*p < '0' || *p > '9' || (*p == '0' && p == space + 1))
            return k3_fail_at(err, K3_EFORMAT, file, (int64_t)*at,
                              "%s: content at byte %zu: the size is no decimal number", file, *at);
        value = value * 10 + (uint64_t)(*p - '0'); /* 15 digits at most: no overflow */
    }
    const size_t name_bytes = (size_t)(space - line);
    entry->name = calloc(name_bytes + 1, 1);
    if (!entry->name)
        return k3_fail(err, K3_ENOMEM, "no memory for the headers of %s", file);
    memcpy(entry->name, line, name_bytes);
    *at = (size_t)(end + 1 - content);
    if (value >= bytes - *at || content[*at + value] != '\n')
        return k3_fail_at(err, K3_EFORMAT, file, (int64_t)*at,
                          "%s: content at byte %zu: entry %s does not have the %llu bytes it says",
                          file, *at, entry->name, (unsigned long long)value);
    entry->data = content + *at;
    entry->bytes = (size_t)value;
    *at += (size_t)value + 1;
    return 0;
}

static int check_name(const char *file, const struct k3_source_headers *headers, struct k3_err *err)
{
    uint32_t last = headers->count - 1;
    const char *name = headers->entries[last].name;
    bool good = k3_is_plain_name(name);
    if (last == 0)
        good = !strcmp(name, K3_CONFIG_NAME);
    else if (last == 1)
        good = !strcmp(name, K3_INDEX_NAME);
    else if (last > 2)
        good = good && strcmp(headers->entries[last - 1].name, name) < 0;
    if (!good)
        return k3_fail_at(err, K3_EFORMAT, file, -1,
                          "%s: entry %u is in the wrong order or has a name that is not plain",
                          file, last);
    return 0;
}

int k3_source_headers_decode(const char *file, const char *content, size_t bytes,
                             struct k3_source_headers *out, struct k3_err *err)
{
    int rc = 0;
    size_t at = sizeof first_line - 1;
    memset(out, 0, sizeof *out);
    if (bytes < at || memcmp(content, first_line, at))
        return k3_fail_at(err, K3_EFORMAT, file, 0,
                          "%s: content does not begin with 'k3-source-headers 0'", file);
    while (at < bytes && !rc) {
        if (out->count >= K3_FILE_COUNT_MAX + 2) {
            rc = k3_fail(err, K3_ELIMIT, "%s: more than %u entries", file, K3_FILE_COUNT_MAX + 2);
            break;
        }
        struct k3_header_entry *grown = realloc(out->entries, (out->count + 1) * sizeof *grown);
        if (!grown) {
            rc = k3_fail(err, K3_ENOMEM, "no memory for the headers of %s", file);
            break;
        }
        out->entries = grown;
        grown[out->count] = (struct k3_header_entry){0};
        out->count++;
        rc = read_line(file, content, bytes, &at, &grown[out->count - 1], err);
        if (!rc)
            rc = check_name(file, out, err);
    }
    if (!rc && out->count < 3)
        rc = k3_fail_at(err, K3_EFORMAT, file, -1, "%s: config, index or headers are missing",
                        file);
    if (rc)
        k3_source_headers_fini(out);
    return rc;
}

void k3_source_headers_fini(struct k3_source_headers *headers)
{
    for (uint32_t i = 0; i < headers->count; i++)
        free(headers->entries[i].name);
    free(headers->entries);
    memset(headers, 0, sizeof *headers);
}
