/* Purpose: fuzz target: names of tensors and files, and foreign bytes in messages.
 * Owns: the name table of the model, for the life of the program.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: a name that a rule fits is the name that the rule makes of its numbers; a
 * file name that is decoded is the one that is encoded; what is shown is short and printable; UTF-8
 * is cut at characters. */
#include "fuzz.h"

#include "hf_index.h"
#include "manifest.h"
#include "names.h"
#include "st.h"

#include <stdlib.h>
#include <string.h>

static void check_rules(const char *name, size_t bytes)
{
    static struct k3_name_table *table;
    uint32_t rule = 0, layer, index, last = 0;
    bool any = false;
    if (!table)
        FUZZ_CHECK(k3_names_open(&k3_model_k3, &table, NULL) == 0);
    for (; k3_names_find(table, name, bytes, &rule, &layer, &index); rule++) {
        char made[K3_ST_NAME_BYTES_MAX + 1];
        FUZZ_CHECK(rule < k3_model_k3.rule_count && (!any || rule > last));
        k3_rule_name(k3_model_k3.rules[rule].name, layer, index, made, sizeof made);
        FUZZ_CHECK(strlen(made) == bytes && !memcmp(made, name, bytes));
        any = true;
        last = rule;
    }
}

static void check_files(const char *name)
{
    char made[K3_NAME_BYTES_MAX + 1];
    uint32_t rank, part;
    if (k3_part_name_decode(name, &rank, &part)) {
        k3_part_name(rank, part, made);
        FUZZ_CHECK(!strcmp(made, name) && rank < K3_RANK_COUNT_MAX && part < K3_PART_COUNT_MAX);
    }
    if (k3_units_name_decode(name, &rank)) {
        k3_units_name(rank, made);
        FUZZ_CHECK(!strcmp(made, name) && rank < K3_RANK_COUNT_MAX);
    }
    bool plain = name[0] != '.' && name[0] && strlen(name) <= 255;
    for (const char *p = name; *p; p++)
        plain = plain && *p > 0x20 && *p < 0x7f && !strchr("/\"\\", *p);
    FUZZ_CHECK(plain == (k3_is_plain_name(name) != 0));
}

static void check_bytes(const char *data, size_t bytes)
{
    char shown[K3_SHOWN_BYTES];
    struct k3_text json;
    FUZZ_CHECK(k3_shown(data, bytes, shown) == shown);
    FUZZ_CHECK(memchr(shown, 0, sizeof shown) != NULL);
    for (const char *p = shown; *p; p++)
        FUZZ_CHECK(*p >= 0x20 && *p <= 0x7e);
    k3_text_init(&json);
    k3_text_put_json(&json, data); /* to its NUL */
    FUZZ_CHECK(!json.failed && json.bytes >= 2);
    /* Whatever went in, a JSON string is UTF-8. */
    for (size_t at = 0; at < json.bytes;) {
        size_t length = k3_utf8_bytes(json.data + at, json.bytes - at);
        FUZZ_CHECK(length >= 1 && length <= 4 && at + length <= json.bytes);
        at += length;
    }
    k3_text_fini(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *string = fuzz_string(data, bytes);
    enum k3_dtype dtype;
    check_rules((const char *)data, bytes);
    check_files(string);
    check_bytes(string, bytes);
    if (k3_dtype_find((const char *)data, bytes, &dtype))
        FUZZ_CHECK(!strcmp(k3_dtype_name(dtype), string));
    if (k3_st_is_name((const char *)data, bytes))
        FUZZ_CHECK(strlen(string) == bytes && bytes > 0 && bytes <= K3_ST_NAME_BYTES_MAX);
    free(string);
    return 0;
}
