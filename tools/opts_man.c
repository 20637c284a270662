/* Purpose: print man pages in roff, from the tables.
 * Owns: nothing.
 * Threads: any.
 * Errors: none.
 * Invariant: no date and no path in the text: the same build gives the same pages. */
#include "cmds.h"
#include "opts.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Escape what roff would read: backslash, hyphens (else typeset as dashes), a dot or quote that
 * begins a line. */
void k3_man_put(FILE *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
    }
}

void k3_man_put_title(FILE *out, const char *name)
{
    fputs(".TH K3\\-SHARD", out);
    if (name)
        fputs("\\-", out);
    for (const char *p = name ? name : ""; *p; p++)
        fputc(toupper((unsigned char)*p), out);
    fprintf(out, " 1 \"\" \"k3\\-shard %s\" \"User Commands\"\n", k3_tool_version());
}

static void put_option(FILE *out, const struct k3_opt_row *row, const struct k3_command *command)
{
    fputs(".TP\n\\fB\\-\\-", out);
    k3_man_put(out, row->name);
    fputs("\\fR", out);
    if (row->value) {
        fputs(row->choices ? " \\fB" : " \\fI", out);
        k3_man_put(out, row->choices ? row->choices : row->value);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    k3_man_put(out, row->help);
    if (row->required >> command->id & 1) {
        fputs(" (required)", out);
    } else if (row->default_text) {
        fputs(" (default: ", out);
        k3_man_put(out, row->default_text);
        fputc(')', out);
    }
    fputs(".\n", out);
}

static void put_exits(FILE *out)
{
    fputs(".SH EXIT STATUS\n", out);
    for (int i = 0; i < K3_EXIT_COUNT; i++) {
        fprintf(out, ".TP\n.B %d\n", i);
        k3_man_put(out, k3_exit_text[i]);
        fputs(".\n", out);
    }
}

static void put_command_page(FILE *out, const struct k3_command *command)
{
    fputs(".SH NAME\nk3\\-shard\\-", out);
    k3_man_put(out, command->name);
    fputs(" \\- ", out);
    k3_man_put(out, command->summary);
    fputs("\n.SH SYNOPSIS\n.B k3\\-shard ", out);
    k3_man_put(out, command->name);
    fputs("\n[\\fIOPTIONS\\fR] ", out);
    k3_man_put(out, command->args);
    fputs("\n.SH DESCRIPTION\n", out);
    k3_man_put(out, command->text);
    fputs("\n.SH OPTIONS\n", out);
    bool has_size = false, has_rate = false;
    for (int i = 0; i < K3_ID_COUNT; i++) {
        const struct k3_opt_row *row = &k3_opt_table[i];
        if (!k3_opt_belongs(row, command))
            continue;
        has_size = has_size || row->kind == K3_OPT_SIZE;
        has_rate = has_rate || row->kind == K3_OPT_RATE;
        put_option(out, row, command);
    }
    if (has_size || has_rate)
        fprintf(out, ".PP\n%s%s%s\n", has_size ? k3_size_help : "",
                has_size && has_rate ? "\n" : "", has_rate ? k3_rate_help : "");
    put_exits(out);
    fputs(".SH EXAMPLES\n.nf\n", out);
    k3_man_put(out, command->example);
    fputs("\n.fi\n.SH SEE ALSO\n.BR k3\\-shard (1)", out);
    if (k3_opt_belongs(&k3_opt_table[K3_ID_QUANT], command))
        fputs(",\n.BR k3\\-shard\\-" K3_QUANT_TOPIC " (1)", out);
    fputc('\n', out);
}

static void put_tool_page(FILE *out)
{
    fputs(".SH NAME\nk3\\-shard \\- cut the Kimi K3 checkpoint into verified images, one for each "
          "GPU\n.SH SYNOPSIS\n.B k3\\-shard\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR] \\fIARGS\\fR\n"
          ".SH DESCRIPTION\nCuts the checkpoint once, offline and without a GPU, and loads the "
          "images with every byte proved.\nResults go to standard output, talk to standard "
          "error.\n.SH COMMANDS\n",
          out);
    for (int i = 0; i < K3_CMD_COUNT; i++) {
        fprintf(out, ".TP\n.B %s\n", k3_command_table[i].name);
        k3_man_put(out, k3_command_table[i].summary);
        fputs(".\n", out);
    }
    put_exits(out);
    fputs(".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nWhen set, the progress bar has no color.\n"
          ".SH SEE ALSO\n",
          out);
    for (int i = 0; i < K3_CMD_COUNT; i++)
        fprintf(out, ".BR k3\\-shard\\-%s (1),\n", k3_command_table[i].name);
    fputs(".BR k3\\-shard\\-" K3_QUANT_TOPIC " (1)\n", out);
}

void k3_man_print(FILE *out, const struct k3_command *command)
{
    k3_man_put_title(out, command ? command->name : NULL);
    if (command)
        put_command_page(out, command);
    else
        put_tool_page(out);
}
