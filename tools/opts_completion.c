/* Purpose: print completion scripts for bash, zsh and fish, from the tables.
 * Owns: nothing.
 * Threads: any.
 * Errors: none; an unknown shell is false.
 * Invariant: the scripts are static: completing never runs the tool. */
#include "opts.h"

#include <stdio.h>
#include <string.h>

#define CHOICE_BYTES 48

static bool takes_path(const struct k3_opt_row *row)
{
    return row->value && (strcmp(row->value, "DIR") == 0 || strcmp(row->value, "CKPT") == 0);
}

static bool takes_paths(const struct k3_command *command)
{
    return strstr(command->args, "CKPT") || strstr(command->args, "DIR") ||
           strstr(command->args, "PATH");
}

/* Words of a positional argument that is no path: commands, shells. */
static void put_argument_words(FILE *out, const struct k3_command *command)
{
    char word[CHOICE_BYTES];
    if (strncmp(command->args, "[COMMAND|", 9) == 0) {
        for (int i = 0; i < K3_CMD_COUNT; i++)
            fprintf(out, "%s ", k3_command_table[i].name);
        fputs(K3_QUANT_TOPIC, out);
    } else if (strchr(command->args, '|')) {
        for (uint32_t i = 0; k3_opt_choice(command->args, i, word, sizeof word); i++)
            fprintf(out, "%s%s", i ? " " : "", word);
    }
}

static void put_choices(FILE *out, const char *choices)
{
    for (; *choices; choices++)
        fputc(*choices == '|' ? ' ' : *choices, out);
}

/* ---- bash ---- */

/* "seed) options=...": what one command takes. */
static void put_bash_command(FILE *out, const struct k3_command *command)
{
    fprintf(out, "    %s)\n        options='", command->name);
    for (int i = 0; i < K3_ID_COUNT; i++)
        if (k3_opt_belongs(&k3_opt_table[i], command))
            fprintf(out, "--%s ", k3_opt_table[i].name);
    fputs("'\n        words='", out);
    put_argument_words(out, command);
    fprintf(out, "'\n        paths=%d\n        case $prev in\n", takes_paths(command));
    for (int i = 0; i < K3_ID_COUNT; i++) {
        const struct k3_opt_row *row = &k3_opt_table[i];
        if (!k3_opt_belongs(row, command) || row->kind == K3_OPT_NONE)
            continue;
        fprintf(out, "        --%s) value=1 words='", row->name);
        if (row->choices)
            put_choices(out, row->choices);
        fprintf(out, "' paths=%d ;;\n", takes_path(row));
    }
    fputs("        *) ;;\n        esac\n        ;;\n", out);
}

static void put_bash(FILE *out)
{
    fputs("# bash completion for k3-shard\n"
          "_k3_shard() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local command='' options='' words='' paths=0 value=0 i\n"
          "    COMPREPLY=()\n"
          "    # --opt=value arrives as three words\n"
          "    if [[ $cur == '=' ]]; then\n"
          "        cur=''\n"
          "    elif [[ $prev == '=' ]]; then\n"
          "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
          "    fi\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        [[ ${COMP_WORDS[i]} == -* ]] || { command=${COMP_WORDS[i]}; break; }\n"
          "    done\n"
          "    case $command in\n"
          "    '')\n        words='",
          out);
    for (int i = 0; i < K3_CMD_COUNT; i++)
        fprintf(out, "%s ", k3_command_table[i].name);
    fputs("'\n        options='--help --version'\n        ;;\n", out);
    for (int i = 0; i < K3_CMD_COUNT; i++)
        put_bash_command(out, &k3_command_table[i]);
    fputs("    *) ;;\n"
          "    esac\n"
          "    if [[ $value == 0 && $cur == -* ]]; then\n"
          "        words=$options paths=0\n"
          "    fi\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
          "    if [[ $paths == 1 ]]; then\n"
          "        compopt -o filenames 2>/dev/null\n"
          "        mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -f -- \"$cur\")\n"
          "    fi\n"
          "}\n"
          "complete -F _k3_shard k3-shard\n",
          out);
}

/* ---- zsh ---- */

/* Within '…' of an _arguments spec: quotes end the string, brackets and colons the description. */
static void put_zsh_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\", *text))
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
    }
}

static void put_zsh_option(FILE *out, const struct k3_opt_row *row)
{
    bool takes_value = row->kind != K3_OPT_NONE;
    fprintf(out, " \\\n            '%s--%s%s[", row->kind == K3_OPT_STRINGS ? "*" : "", row->name,
            takes_value ? "=" : "");
    put_zsh_text(out, row->help);
    fputc(']', out);
    if (takes_value) {
        fputc(':', out);
        put_zsh_text(out, row->value);
        fputc(':', out);
    }
    if (row->choices) {
        fputc('(', out);
        put_choices(out, row->choices);
        fputc(')', out);
    } else if (takes_path(row)) {
        fputs("_files", out);
    }
    fputc('\'', out);
}

static void put_zsh(FILE *out)
{
    fputs("#compdef k3-shard\n"
          "_k3_shard() {\n"
          "    local -a commands\n"
          "    commands=(\n",
          out);
    for (int i = 0; i < K3_CMD_COUNT; i++) {
        fprintf(out, "        '%s:", k3_command_table[i].name);
        put_zsh_text(out, k3_command_table[i].summary);
        fputs("'\n", out);
    }
    fputs("    )\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    case $words[1] in\n",
          out);
    for (int i = 0; i < K3_CMD_COUNT; i++) {
        const struct k3_command *command = &k3_command_table[i];
        fprintf(out, "    %s)\n        _arguments", command->name);
        for (int j = 0; j < K3_ID_COUNT; j++)
            if (k3_opt_belongs(&k3_opt_table[j], command))
                put_zsh_option(out, &k3_opt_table[j]);
        if (takes_paths(command)) {
            fputs(" \\\n            '*:path:_files'", out);
        } else if (command->args_max) {
            fputs(" \\\n            '1:word:(", out);
            put_argument_words(out, command);
            fputs(")'", out);
        }
        fputs("\n        ;;\n", out);
    }
    fputs("    esac\n"
          "}\n"
          "if [ \"$funcstack[1]\" = _k3_shard ]; then\n"
          "    _k3_shard \"$@\"\n"
          "else\n"
          "    compdef _k3_shard k3-shard\n"
          "fi\n",
          out);
}

/* ---- fish ---- */

static void put_fish_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void put_fish_option(FILE *out, const struct k3_opt_row *row,
                            const struct k3_command *command)
{
    fprintf(out, "complete -c k3-shard -n '__fish_seen_subcommand_from %s' -l %s", command->name,
            row->name);
    if (row->kind != K3_OPT_NONE)
        fputs(takes_path(row) ? " -r -F" : " -x", out);
    if (row->choices) {
        fputs(" -a '", out);
        put_choices(out, row->choices);
        fputc('\'', out);
    }
    fputs(" -d '", out);
    put_fish_text(out, row->help);
    fputs("'\n", out);
}

static void put_fish(FILE *out)
{
    fputs("# fish completion for k3-shard\n", out);
    for (int i = 0; i < K3_CMD_COUNT; i++) {
        const struct k3_command *command = &k3_command_table[i];
        fprintf(out, "complete -c k3-shard -n __fish_use_subcommand -f -a %s -d '", command->name);
        put_fish_text(out, command->summary);
        fputs("'\n", out);
        if (!takes_paths(command)) {
            fprintf(out, "complete -c k3-shard -n '__fish_seen_subcommand_from %s' -f -a '",
                    command->name);
            put_argument_words(out, command);
            fputs("'\n", out);
        }
        for (int j = 0; j < K3_ID_COUNT; j++)
            if (k3_opt_belongs(&k3_opt_table[j], command))
                put_fish_option(out, &k3_opt_table[j], command);
    }
}

bool k3_completion_print(FILE *out, const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        put_bash(out);
    else if (strcmp(shell, "zsh") == 0)
        put_zsh(out);
    else if (strcmp(shell, "fish") == 0)
        put_fish(out);
    else
        return false;
    return true;
}
