/* Purpose: print --help, for the tool and for each command, from the tables.
 * Owns: nothing.
 * Threads: any.
 * Errors: K3_EUSAGE for an unknown command.
 * Invariant: 80 columns; the text depends on the tables alone, so that it can be a golden file. */
#include "cmds.h"
#include "nearest.h"
#include "opts.h"

#include <stdio.h>
#include <string.h>

#define COLUMNS     80
#define HELP_COLUMN 26 /* fits "--experts tp|ep" and most others beside their help */

void k3_help_put_filled(FILE *out, const char *text, int at, int indent)
{
    bool line_empty = true;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (!line_empty && at + 1 + length > COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            line_empty = true;
        }
        at += fprintf(out, "%s%.*s", line_empty ? "" : " ", length, text);
        line_empty = false;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void put_option(FILE *out, const struct k3_opt_row *row, const struct k3_command *command)
{
    const char *value = row->choices ? row->choices : row->value;
    int at = fprintf(out, "  --%s%s%s", row->name, value ? " " : "", value ? value : "");
    if (at > HELP_COLUMN - 2) {
        fputc('\n', out);
        at = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - at, "");
    char text[256];
    if (row->required >> command->id & 1)
        snprintf(text, sizeof text, "%s (required)", row->help);
    else if (row->default_text)
        snprintf(text, sizeof text, "%s (default: %s)", row->help, row->default_text);
    else
        snprintf(text, sizeof text, "%s", row->help);
    k3_help_put_filled(out, text, HELP_COLUMN, HELP_COLUMN);
}

static void put_options(FILE *out, const struct k3_command *command)
{
    bool has_size = false, has_rate = false;
    const char *group = NULL;
    /* Groups are contiguous in the table but for the command's own, which come first. */
    static const char *const order[] = {"Options", "Layout", "Common"};
    for (size_t g = 0; g < sizeof order / sizeof order[0]; g++) {
        for (int i = 0; i < K3_ID_COUNT; i++) {
            const struct k3_opt_row *row = &k3_opt_table[i];
            if (strcmp(row->group, order[g]) != 0 || !k3_opt_belongs(row, command))
                continue;
            if (group != order[g])
                fprintf(out, "\n%s:\n", order[g]);
            group = order[g];
            has_size = has_size || row->kind == K3_OPT_SIZE;
            has_rate = has_rate || row->kind == K3_OPT_RATE;
            put_option(out, row, command);
        }
    }
    if (has_size || has_rate)
        fputc('\n', out);
    if (has_size)
        k3_help_put_filled(out, k3_size_help, 0, 0);
    if (has_rate)
        k3_help_put_filled(out, k3_rate_help, 0, 0);
}

static void put_command_help(FILE *out, const struct k3_command *command)
{
    fprintf(out, "Usage: k3-shard %s [OPTIONS]%s%s\n\n", command->name, *command->args ? " " : "",
            command->args);
    k3_help_put_filled(out, command->text, 0, 0);
    put_options(out, command);
    fprintf(out, "\nExample:\n  %s\n", command->example);
}

static void put_exits(FILE *out)
{
    char text[512] = "Exit codes:";
    for (int i = 0; i < K3_EXIT_COUNT; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, " %d %s%s", i, k3_exit_text[i],
                 i + 1 < K3_EXIT_COUNT ? ";" : ".");
    }
    k3_help_put_filled(out, text, 0, 0);
}

static void put_tool_help(FILE *out)
{
    fputs("Usage: k3-shard COMMAND [OPTIONS] ARGS\n\n", out);
    k3_help_put_filled(
        out,
        "Cuts the Kimi K3 checkpoint into one verified image for each GPU, once and offline, "
        "and loads those images with every byte proved.",
        0, 0);
    const char *group = NULL;
    static const char *const order[] = {"Make shards", "Look and prove", "Use shards", "Help"};
    for (size_t g = 0; g < sizeof order / sizeof order[0]; g++) {
        for (int i = 0; i < K3_CMD_COUNT; i++) {
            const struct k3_command *command = &k3_command_table[i];
            if (strcmp(command->group, order[g]) != 0)
                continue;
            if (group != order[g])
                fprintf(out, "\n%s:\n", order[g]);
            group = order[g];
            fprintf(out, "  %-12s%s\n", command->name, command->summary);
        }
    }
    fputs("\nk3-shard help COMMAND shows its options, k3-shard help " K3_QUANT_TOPIC
          " what --quant takes.\n\n",
          out);
    k3_help_put_filled(
        out,
        "Without the model: k3-shard synth DIR --preset tiny makes a small one; then plan DIR "
        "--tp 2, convert DIR --out SET --tp 2, verify SET, load SET.",
        0, 0);
    fputc('\n', out);
    put_exits(out);
}

void k3_help_print(FILE *out, const struct k3_command *command)
{
    if (command)
        put_command_help(out, command);
    else
        put_tool_help(out);
}

/* The command that a word names; NULL in *out for no word, and for a topic. */
static int find_argument(const struct k3_opts *opts, const struct k3_command **out, bool *is_topic,
                         struct k3_err *err)
{
    const char *word = opts->args.count ? opts->args.item[0] : NULL;
    *is_topic = word && !strcmp(word, K3_QUANT_TOPIC);
    *out = word ? k3_command_find(word) : NULL;
    if (!word || *out || *is_topic)
        return 0;
    const char *name[K3_CMD_COUNT + 1] = {K3_QUANT_TOPIC};
    for (int i = 0; i < K3_CMD_COUNT; i++)
        name[i + 1] = k3_command_table[i].name;
    const char *near = k3_nearest(word, name, K3_CMD_COUNT + 1);
    if (near)
        return k3_fail(err, K3_EUSAGE, "there is no command '%s'; did you mean '%s'?", word, near);
    return k3_fail(err, K3_EUSAGE, "there is no command '%s'; see k3-shard --help", word);
}

int k3_cmd_help(const struct k3_opts *opts, struct k3_err *err)
{
    const struct k3_command *command;
    bool is_topic;
    int rc = find_argument(opts, &command, &is_topic, err);
    if (rc == 0 && is_topic)
        k3_quant_topic_print(stdout, false);
    else if (rc == 0)
        k3_help_print(stdout, command);
    return rc;
}

int k3_cmd_man(const struct k3_opts *opts, struct k3_err *err)
{
    const struct k3_command *command;
    bool is_topic;
    int rc = find_argument(opts, &command, &is_topic, err);
    if (rc == 0 && is_topic)
        k3_quant_topic_print(stdout, true);
    else if (rc == 0)
        k3_man_print(stdout, command);
    return rc;
}

int k3_cmd_completion(const struct k3_opts *opts, struct k3_err *err)
{
    if (!k3_completion_print(stdout, opts->args.item[0]))
        return k3_fail(err, K3_EUSAGE, "there is no completion for '%s'; bash, zsh or fish",
                       opts->args.item[0]);
    return 0;
}
