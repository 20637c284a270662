/* Purpose: prove the option tables and the parser over them.
 * Owns: nothing.
 * Threads: one.
 * Errors: none.
 * Invariant: every row of the tables is visited; wrong command lines are in cli/usage_errors.sh. */
#include "opts.h"

#include "nearest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORDS_MAX 32

/* Parse a line of words parted by blanks. */
static int parse(const char *line, struct k3_opts *opts, struct k3_err *err)
{
    /* Strings are borrowed from argv, so it outlives the call. */
    static char text[512];
    static char *argv[WORDS_MAX + 1];
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *p = text; *p && argc < WORDS_MAX; p++) {
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (!*p)
            break;
        *p = '\0';
    }
    argv[argc] = NULL;
    memset(opts, 0xa5, sizeof *opts);
    k3_err_init(err);
    return k3_opts_parse(argc, argv, opts, err);
}

static void parse_well(const char *line, struct k3_opts *opts)
{
    struct k3_err err;
    if (parse(line, opts, &err))
        fail_msg("%s: %s", line, err.text);
}

static void rows_are_at_their_ids(void **state)
{
    (void)state;
    for (int i = 0; i < K3_ID_COUNT; i++) {
        const struct k3_opt_row *row = &k3_opt_table[i];
        assert_int_equal(row->id, i);
        assert_true(row->name && row->help && row->group && row->commands);
        assert_int_equal(row->kind != K3_OPT_NONE, row->value != NULL);
        assert_int_equal(row->kind == K3_OPT_CHOICE, row->choices != NULL);
        assert_int_equal(row->required & ~row->commands, 0);
        assert_true(row->help[strlen(row->help) - 1] != '.');
        assert_true(row->kind != K3_OPT_UINT || row->max);
    }
    for (int i = 0; i < K3_CMD_COUNT; i++) {
        const struct k3_command *command = &k3_command_table[i];
        assert_int_equal(command->id, i);
        assert_true(command->run && command->text && command->example && command->summary);
        assert_ptr_equal(k3_command_find(command->name), command);
    }
    assert_null(k3_command_find("pla"));
}

/* A name may have two rows only where no command has both. */
static void names_are_unique_in_a_command(void **state)
{
    (void)state;
    for (int i = 0; i < K3_ID_COUNT; i++)
        for (int j = i + 1; j < K3_ID_COUNT; j++)
            if (strcmp(k3_opt_table[i].name, k3_opt_table[j].name) == 0 &&
                (k3_opt_table[i].commands & k3_opt_table[j].commands))
                fail_msg("--%s is there twice", k3_opt_table[i].name);
}

/* No row writes the field of another. */
static void fields_are_disjoint(void **state)
{
    (void)state;
    for (int i = 0; i < K3_ID_COUNT; i++)
        for (int j = i + 1; j < K3_ID_COUNT; j++)
            assert_true(k3_opt_table[i].field != k3_opt_table[j].field);
}

static void defaults_hold(void **state)
{
    (void)state;
    struct k3_opts o;
    parse_well("k3-shard convert ckpt --out d", &o);
    assert_int_equal(o.tp, 8);
    assert_int_equal(o.dp, 1);
    assert_int_equal(o.pp, 1);
    assert_int_equal(o.experts, K3_OPT_EXPERTS_TP);
    assert_int_equal(o.shared, K3_OPT_SHARED_TP);
    assert_int_equal(o.vision, K3_OPT_VISION_REPLICATE);
    assert_int_equal(o.budget_bytes, UINT64_C(209379655680));
    assert_int_equal(o.pp_layers.count, 0);
    assert_int_equal(o.jobs, 0);
    assert_int_equal(o.memory_bytes, 268435456);
    assert_null(o.revision);
    assert_false(o.force || o.json || o.quiet);
    assert_int_equal(o.set, UINT64_C(1) << K3_ID_OUT);
    k3_opts_fini(&o);
    parse_well("k3-shard load d", &o);
    assert_int_equal(o.staging_bytes, 67108864);
    assert_int_equal(o.io, K3_OPT_IO_AUTO);
    assert_string_equal(o.device, "host");
    assert_int_equal(o.ranks.count, 0);
    k3_opts_fini(&o);
}

static void layout_is_read(void **state)
{
    (void)state;
    struct k3_opts o;
    parse_well("k3-shard plan --tp=4 --dp 2 ckpt --pp=4 --pp-layers 23,23,24,23 --experts ep "
               "--shared=replicate --vision drop --budget 1.5GiB --rate 12.5",
               &o);
    assert_int_equal(o.command->id, K3_CMD_PLAN);
    assert_int_equal(o.args.count, 1);
    assert_string_equal(o.args.item[0], "ckpt");
    assert_int_equal(o.tp, 4);
    assert_int_equal(o.dp, 2);
    assert_int_equal(o.pp, 4);
    assert_int_equal(o.pp_layers.count, 4);
    assert_int_equal(o.pp_layers.item[2], 24);
    assert_int_equal(o.experts, K3_OPT_EXPERTS_EP);
    assert_int_equal(o.shared, K3_OPT_SHARED_REPLICATE);
    assert_int_equal(o.vision, K3_OPT_VISION_DROP);
    assert_int_equal(o.budget_bytes, 1610612736);
    assert_int_equal(o.rate_bytes_per_second, UINT64_C(12500000000));
    assert_true(k3_opt_is_set(&o, K3_ID_BUDGET));
    assert_false(k3_opt_is_set(&o, K3_ID_JOBS));
    k3_opts_fini(&o);
}

static void out_may_be_repeated(void **state)
{
    (void)state;
    struct k3_opts o;
    parse_well("k3-shard --quiet seal --out a --out=b=c --out d --json", &o);
    assert_int_equal(o.out.count, 3);
    assert_string_equal(o.out.item[0], "a");
    assert_string_equal(o.out.item[1], "b=c");
    assert_string_equal(o.out.item[2], "d");
    assert_true(o.json && o.quiet);
    k3_opts_fini(&o);
}

static void ranks_keep_their_order(void **state)
{
    (void)state;
    struct k3_opts o;
    static const uint32_t want[] = {7, 2, 3, 4, 0};
    parse_well("k3-shard load a b --ranks 7,2-4,0", &o);
    assert_int_equal(o.args.count, 2);
    assert_int_equal(o.ranks.count, 5);
    assert_memory_equal(o.ranks.item, want, sizeof want);
    k3_opts_fini(&o);
    parse_well("k3-shard load a --ranks 0-4095", &o);
    assert_int_equal(o.ranks.count, 4096);
    k3_opts_fini(&o);
}

/* A huge range is refused before it is walked, not after filling memory. */
static void ranks_have_a_limit(void **state)
{
    (void)state;
    struct k3_opts o;
    struct k3_err err;
    assert_int_equal(parse("k3-shard load a --ranks 0-18446744073709551615", &o, &err), K3_EUSAGE);
    assert_int_equal(o.ranks.count, 0);
    k3_opts_fini(&o);
}

/* The same word means other things to plan and to synth. */
static void one_name_has_a_row_for_each_command(void **state)
{
    (void)state;
    struct k3_opts o;
    parse_well("k3-shard synth d --preset layer --experts 16 --seed 18446744073709551615 --sparse",
               &o);
    assert_int_equal(o.expert_count, 16);
    assert_int_equal(o.experts, K3_OPT_EXPERTS_TP);
    assert_int_equal(o.preset, K3_OPT_PRESET_LAYER);
    assert_true(o.seed == UINT64_MAX);
    assert_true(o.sparse);
    k3_opts_fini(&o);
}

static void words_behind_two_dashes_are_arguments(void **state)
{
    (void)state;
    struct k3_opts o;
    parse_well("k3-shard verify --quick -- --json -x -", &o);
    assert_true(o.check_quick);
    assert_false(o.json);
    assert_int_equal(o.args.count, 3);
    assert_string_equal(o.args.item[0], "--json");
    assert_string_equal(o.args.item[2], "-");
    k3_opts_fini(&o);
}

static void help_and_version_win(void **state)
{
    (void)state;
    struct k3_opts o;
    parse_well("k3-shard convert --help", &o);
    assert_int_equal(o.command->id, K3_CMD_HELP);
    assert_string_equal(o.args.item[0], "convert");
    k3_opts_fini(&o);
    parse_well("k3-shard -h", &o);
    assert_int_equal(o.command->id, K3_CMD_HELP);
    assert_int_equal(o.args.count, 0);
    k3_opts_fini(&o);
    parse_well("k3-shard --json --version", &o);
    assert_int_equal(o.command->id, K3_CMD_VERSION);
    assert_true(o.json);
    k3_opts_fini(&o);
}

/* The form of the error is known even where --json stands behind the mistake. */
static void json_is_seen_behind_a_mistake(void **state)
{
    (void)state;
    struct k3_opts o;
    struct k3_err err;
    assert_int_equal(parse("k3-shard plan --nope ckpt --json", &o, &err), K3_EUSAGE);
    assert_true(o.json);
    assert_int_equal(o.command->id, K3_CMD_PLAN);
    k3_opts_fini(&o);
}

static void choices_have_names(void **state)
{
    (void)state;
    assert_string_equal(k3_opt_choice_name(K3_ID_EXPERTS, K3_OPT_EXPERTS_EP), "ep");
    assert_string_equal(k3_opt_choice_name(K3_ID_VISION, K3_OPT_VISION_FIRST), "first");
    assert_string_equal(k3_opt_choice_name(K3_ID_PRESET, K3_OPT_PRESET_FULL), "full");
    assert_string_equal(k3_opt_choice_name(K3_ID_IO, K3_OPT_IO_PREAD), "pread");
    assert_string_equal(k3_opt_choice_name(K3_ID_IO, 99), "?");
    assert_string_equal(k3_opt_choice_name(K3_ID_TP, 0), "?");
}

static void nearest_word_is_near(void **state)
{
    (void)state;
    static const char *const name[] = {"tp", "pp", "budget", "experts", "pp-layers"};
    assert_string_equal(k3_nearest("budjet", name, 5), "budget");
    assert_string_equal(k3_nearest("expert", name, 5), "experts");
    assert_string_equal(k3_nearest("pp-", name, 5), "pp");
    assert_string_equal(k3_nearest("bud", name, 5), "budget");
    assert_null(k3_nearest("colour", name, 5));
    assert_null(k3_nearest("", name, 5));
    assert_null(k3_nearest("a-word-that-is-far-longer-than-any-option-name-can-be", name, 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_at_their_ids),
        cmocka_unit_test(names_are_unique_in_a_command),
        cmocka_unit_test(fields_are_disjoint),
        cmocka_unit_test(defaults_hold),
        cmocka_unit_test(layout_is_read),
        cmocka_unit_test(out_may_be_repeated),
        cmocka_unit_test(ranks_keep_their_order),
        cmocka_unit_test(ranks_have_a_limit),
        cmocka_unit_test(one_name_has_a_row_for_each_command),
        cmocka_unit_test(words_behind_two_dashes_are_arguments),
        cmocka_unit_test(help_and_version_win),
        cmocka_unit_test(json_is_seen_behind_a_mistake),
        cmocka_unit_test(choices_have_names),
        cmocka_unit_test(nearest_word_is_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
