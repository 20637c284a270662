/* Purpose: fuzz target: command lines.  An input is the words behind the program's name, each
 * ended by a line feed.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: an accepted line has a command, as many arguments as it takes, and only
 * values that the table allows; the same line gives the same answer twice. */
#include "fuzz.h"

#include "opts.h"

#include <stdlib.h>
#include <string.h>

#define WORD_COUNT_MAX 64

static void check_list(const struct k3_opt_row *row, const struct k3_uints *list)
{
    FUZZ_CHECK(list->count <= K3_OPT_LIST_MAX);
    for (uint32_t i = 0; i < list->count; i++)
        FUZZ_CHECK(list->item[i] >= row->min && list->item[i] <= row->max);
}

static void check_opts(const struct k3_opts *opts)
{
    FUZZ_CHECK(opts->command != NULL);
    FUZZ_CHECK(opts->args.count >= opts->command->args_min &&
               opts->args.count <= opts->command->args_max);
    FUZZ_CHECK((uint64_t)opts->tp * opts->dp * opts->pp <= K3_WORLD_MAX);
    check_list(&k3_opt_table[K3_ID_PP_LAYERS], &opts->pp_layers);
    check_list(&k3_opt_table[K3_ID_RANKS], &opts->ranks);
    for (int i = 0; i < K3_ID_COUNT; i++) {
        const struct k3_opt_row *row = &k3_opt_table[i];
        const char *field = (const char *)opts + row->field;
        bool is_set = k3_opt_is_set(opts, row->id);
        uint32_t value;
        memcpy(&value, field, row->kind == K3_OPT_UINT || row->kind == K3_OPT_CHOICE ? 4 : 0);
        if (is_set && row->kind == K3_OPT_UINT)
            FUZZ_CHECK(value >= row->min && value <= row->max);
        if (row->kind == K3_OPT_CHOICE)
            FUZZ_CHECK(strcmp(k3_opt_choice_name(row->id, value), "?") != 0);
    }
}

static int parse(int argc, char **argv, struct k3_err *err)
{
    struct k3_opts opts;
    k3_err_init(err);
    int rc = k3_opts_parse(argc, argv, &opts, err);
    fuzz_check_err(rc, err, 0);
    FUZZ_CHECK(rc == 0 || rc == K3_EUSAGE);
    if (!rc)
        check_opts(&opts);
    k3_opts_fini(&opts);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *argv[WORD_COUNT_MAX + 1] = {(char[]){"k3-shard"}};
    char *text = fuzz_string(data, bytes);
    int argc = 1;
    struct k3_err first, second;
    for (char *at = text; *at && argc < WORD_COUNT_MAX;) {
        argv[argc++] = at;
        at += strcspn(at, "\n");
        if (*at)
            *at++ = 0;
    }
    int rc = parse(argc, argv, &first);
    FUZZ_CHECK(parse(argc, argv, &second) == rc && !strcmp(first.text, second.text));
    free(text);
    return 0;
}
