/* Purpose: find the rule a tensor name belongs to.
 * Owns: a small hash table of name shapes.
 * Threads: constant after open; any.
 * Errors: K3_ENOMEM.
 * Invariant: a name is hashed with its whole-number components replaced by '#', so all names of a
 * rule meet in one bucket; the pattern then decides, so a hash never does. */
#include "names.h"

#include <stdlib.h>
#include <string.h>

#define BUCKET_COUNT                                                                               \
    256u                  /* power of two, a few times the number of rules: chains of one or two   \
                           */
#define NUMBER_MAX 99999u /* five digits: more layers, experts or blocks than any limit allows */

struct k3_name_table {
    const struct k3_model *model;
    int16_t head[BUCKET_COUNT]; /* first rule of a bucket, -1: none */
    int16_t next[K3_RULE_COUNT_MAX];
    uint64_t hash[K3_RULE_COUNT_MAX];
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* FNV-1a over the name; a component made of digits only, or a mark like {i}, counts as '#'. */
static uint64_t shape_hash(const char *name, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a offset basis and prime */
    size_t i = 0;
    while (i < bytes) {
        size_t end = i;
        if (name[i] == '{')
            end = i + 3;
        else
            while (end < bytes && is_digit(name[end]))
                end++;
        bool whole = end > i && end <= bytes && (end == bytes || name[end] == '.');
        if (whole) {
            hash = (hash ^ '#') * 0x100000001b3u;
            i = end;
        }
        while (i < bytes) {
            char c = name[i++];
            hash = (hash ^ (uint8_t)c) * 0x100000001b3u;
            if (c == '.')
                break;
        }
    }
    return hash;
}

/* Canonical decimal at name[*at]; advances. */
static bool read_number(const char *name, size_t bytes, size_t *at, uint32_t *out)
{
    size_t i = *at;
    uint32_t value = 0;
    if (i >= bytes || !is_digit(name[i]) ||
        (name[i] == '0' && i + 1 < bytes && is_digit(name[i + 1])))
        return false;
    for (; i < bytes && is_digit(name[i]); i++) {
        value = value * 10 + (uint32_t)(name[i] - '0');
        if (value > NUMBER_MAX)
            return false;
    }
    *at = i;
    *out = value;
    return true;
}

static bool fits(const char *pattern, const char *name, size_t bytes, uint32_t *layer,
                 uint32_t *index)
{
    size_t at = 0;
    *layer = 0;
    *index = 0;
    for (const char *p = pattern; *p;) {
        if (*p == '{') {
            if (!read_number(name, bytes, &at, p[1] == 'i' ? layer : index))
                return false;
            p += 3;
            continue;
        }
        if (at >= bytes || name[at++] != *p++)
            return false;
    }
    return at == bytes;
}

int k3_names_open(const struct k3_model *model, struct k3_name_table **out, struct k3_err *err)
{
    struct k3_name_table *table = calloc(1, sizeof *table);
    if (!table)
        return k3_fail(err, K3_ENOMEM, "no memory for the name table");
    table->model = model;
    for (uint32_t b = 0; b < BUCKET_COUNT; b++)
        table->head[b] = -1;
    for (uint32_t r = model->rule_count; r-- > 0;) { /* backwards: chains come out in table order */
        table->hash[r] = shape_hash(model->rules[r].name, strlen(model->rules[r].name));
        uint32_t bucket = table->hash[r] & (BUCKET_COUNT - 1);
        table->next[r] = table->head[bucket];
        table->head[bucket] = (int16_t)r;
    }
    *out = table;
    return 0;
}

void k3_names_close(struct k3_name_table *table)
{
    free(table);
}

bool k3_names_find(const struct k3_name_table *table, const char *name, size_t name_bytes,
                   uint32_t *rule, uint32_t *layer, uint32_t *index)
{
    uint64_t hash = shape_hash(name, name_bytes);
    for (int16_t r = table->head[hash & (BUCKET_COUNT - 1)]; r >= 0; r = table->next[r]) {
        if ((uint32_t)r < *rule || table->hash[r] != hash)
            continue;
        if (!fits(table->model->rules[r].name, name, name_bytes, layer, index))
            continue;
        *rule = (uint32_t)r;
        return true;
    }
    return false;
}
