/* Purpose: turn a command line into struct k3_opts, by the tables.
 * Owns: the arrays of lists in *opts until k3_opts_fini(); strings are argv's.
 * Threads: one value, one thread.
 * Errors: K3_EUSAGE, K3_ENOMEM.
 * Invariant: a command line is accepted whole or refused; no option is ignored, guessed or
 * overridden by a later one. */
#include "opts.h"

#include "nearest.h"
#include "sizes.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WORD_MAX 48 /* longest word of a choice */

static void *field_of(struct k3_opts *opts, const struct k3_opt_row *row)
{
    return (char *)opts + row->field;
}

bool k3_opt_belongs(const struct k3_opt_row *row, const struct k3_command *command)
{
    return command && (row->commands >> command->id & 1);
}

bool k3_opt_is_set(const struct k3_opts *opts, enum k3_opt_id id)
{
    return opts->set >> id & 1;
}

const struct k3_command *k3_command_find(const char *name)
{
    for (int i = 0; i < K3_CMD_COUNT; i++)
        if (strcmp(k3_command_table[i].name, name) == 0)
            return &k3_command_table[i];
    return NULL;
}

/* ---- unknown words ---- */

static int fail_command(const char *word, struct k3_err *err)
{
    const char *name[K3_CMD_COUNT];
    for (int i = 0; i < K3_CMD_COUNT; i++)
        name[i] = k3_command_table[i].name;
    const char *near = k3_nearest(word, name, K3_CMD_COUNT);
    if (!strncmp(word, K3_QUANT_TOPIC, sizeof K3_QUANT_TOPIC - 1)) /* quantize, what others have */
        return k3_fail(err, K3_EUSAGE,
                       "unknown command '%s'; convert casts, see k3-shard help " K3_QUANT_TOPIC,
                       word);
    if (near)
        return k3_fail(err, K3_EUSAGE, "unknown command '%s'; did you mean '%s'?", word, near);
    return k3_fail(err, K3_EUSAGE, "unknown command '%s'; see k3-shard --help", word);
}

/* An option of the command that has this word as one of its values: --ep for --experts ep. */
static const struct k3_opt_row *find_choice(const struct k3_command *command, const char *word)
{
    char choice[WORD_MAX];
    for (int i = 0; i < K3_ID_COUNT; i++) {
        const struct k3_opt_row *row = &k3_opt_table[i];
        if (!row->choices || !k3_opt_belongs(row, command))
            continue;
        for (uint32_t c = 0; k3_opt_choice(row->choices, c, choice, sizeof choice); c++)
            if (!strcmp(choice, word))
                return row;
    }
    return NULL;
}

static int fail_option(const struct k3_opts *opts, const char *word, struct k3_err *err)
{
    const char *name[K3_ID_COUNT];
    size_t count = 0;
    if (!opts->command)
        return k3_fail(err, K3_EUSAGE,
                       "unknown option --%s before the command; "
                       "options stand behind it, see k3-shard --help",
                       word);
    const struct k3_opt_row *other = NULL;
    for (int i = 0; i < K3_ID_COUNT; i++) {
        if (k3_opt_belongs(&k3_opt_table[i], opts->command))
            name[count++] = k3_opt_table[i].name;
        else if (strcmp(k3_opt_table[i].name, word) == 0)
            other = &k3_opt_table[i];
    }
    const char *command = opts->command->name;
    const char *near = k3_nearest(word, name, count);
    if (other)
        return k3_fail(err, K3_EUSAGE, "--%s is not an option of %s; see k3-shard help %s", word,
                       command, command);
    const struct k3_opt_row *has_choice = find_choice(opts->command, word);
    if (has_choice)
        return k3_fail(err, K3_EUSAGE, "unknown option --%s; did you mean --%s %s?", word,
                       has_choice->name, word);
    if (near)
        return k3_fail(err, K3_EUSAGE, "unknown option --%s; did you mean --%s?", word, near);
    return k3_fail(err, K3_EUSAGE, "unknown option --%s; see k3-shard help %s", word, command);
}

/* ---- values ---- */

static int add_string(struct k3_strings *list, const char *string, struct k3_err *err)
{
    const char **item = realloc(list->item, (list->count + 1) * sizeof *item);
    if (!item)
        return k3_fail(err, K3_ENOMEM, "no memory for the command line");
    list->item = item;
    list->item[list->count++] = string;
    return 0;
}

/* Digits alone: strtoull would take signs, blanks and 0x.  A number beyond 64 bits is read as
 * the largest there is. */
static const char *read_digits(const char *p, uint64_t *out, bool *is_beyond)
{
    const char *begin = p;
    *out = 0;
    *is_beyond = false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(*out, UINT64_C(10), out) ||
            __builtin_add_overflow(*out, (uint64_t)(*p - '0'), out))
            *is_beyond = true;
    if (*is_beyond)
        *out = UINT64_MAX;
    return p == begin ? NULL : p;
}

static int parse_number(const struct k3_opt_row *row, const char *text, uint64_t *out,
                        struct k3_err *err)
{
    bool is_beyond;
    const char *end = read_digits(text, out, &is_beyond);
    if (!end || *end || is_beyond || *out < row->min || *out > row->max)
        return k3_fail(err, K3_EUSAGE, "--%s: '%s' is not a number from %" PRIu64 " to %" PRIu64,
                       row->name, text, row->min, row->max);
    return 0;
}

/* One end of a range, before it is walked; told as it is written. */
static int check_range(const struct k3_opt_row *row, const char *digits, uint64_t value,
                       struct k3_err *err)
{
    if (value >= row->min && value <= row->max)
        return 0;
    return k3_fail(err, K3_EUSAGE, "--%s: %.*s is not from %" PRIu64 " to %" PRIu64, row->name,
                   (int)strspn(digits, "0123456789"), digits, row->min, row->max);
}

static int add_number(const struct k3_opt_row *row, uint64_t value, struct k3_uints *list,
                      struct k3_err *err)
{
    if (list->count == K3_OPT_LIST_MAX)
        return k3_fail(err, K3_EUSAGE, "--%s: more than %u numbers", row->name, K3_OPT_LIST_MAX);
    for (uint32_t i = 0; row->kind == K3_OPT_RANKS && i < list->count; i++)
        if (list->item[i] == value)
            return k3_fail(err, K3_EUSAGE, "--%s: %" PRIu64 " is there twice: name each once",
                           row->name, value);
    list->item[list->count++] = (uint32_t)value;
    return 0;
}

static int parse_list(const struct k3_opt_row *row, const char *text, struct k3_uints *list,
                      struct k3_err *err)
{
    list->item = calloc(K3_OPT_LIST_MAX, sizeof *list->item);
    if (!list->item)
        return k3_fail(err, K3_ENOMEM, "no memory for the command line");
    for (const char *p = text;; p++) {
        const char *first_digits = p, *last_digits = p;
        uint64_t first = 0;
        bool is_beyond; /* then it is the largest there is, and out of the range of any list */
        p = read_digits(p, &first, &is_beyond);
        uint64_t last = first;
        if (p && *p == '-' && row->kind == K3_OPT_RANKS) {
            last_digits = p + 1;
            p = read_digits(last_digits, &last, &is_beyond);
        }
        if (p && last < first)
            return k3_fail(err, K3_EUSAGE,
                           "--%s: '%s': a range goes from a smaller number to a larger one, like "
                           "2-5",
                           row->name, text);
        if (!p || (*p && *p != ','))
            return k3_fail(err, K3_EUSAGE, "--%s: '%s' is not a list like %s", row->name, text,
                           row->kind == K3_OPT_RANKS ? "0,2-5" : "23,23,24,23");
        int rc = check_range(row, first_digits, first, err);
        if (!rc)
            rc = check_range(row, last_digits, last, err);
        for (uint64_t value = first; value <= last && !rc; value++) /* both are small */
            rc = add_number(row, value, list, err);
        if (rc)
            return rc;
        if (!*p)
            return 0;
    }
}

bool k3_opt_choice(const char *choices, uint32_t index, char *out, size_t cap)
{
    for (; index; index--) {
        choices = strchr(choices, '|');
        if (!choices)
            return false;
        choices++;
    }
    size_t length = strcspn(choices, "|");
    if (length >= cap)
        return false;
    memcpy(out, choices, length);
    out[length] = '\0';
    return true;
}

static int parse_choice(const struct k3_opt_row *row, const char *text, uint32_t *out,
                        struct k3_err *err)
{
    char word[WORD_MAX];
    for (uint32_t i = 0; k3_opt_choice(row->choices, i, word, sizeof word); i++) {
        if (strcmp(word, text) == 0) {
            *out = i;
            return 0;
        }
    }
    return k3_fail(err, K3_EUSAGE, "--%s: '%s' is not one of %s", row->name, text, row->choices);
}

const char *k3_opt_choice_name(enum k3_opt_id id, uint32_t value)
{
    /* One buffer for each option, so that two names may stand in one printf. */
    static char word[K3_ID_COUNT][WORD_MAX];
    const char *choices = k3_opt_table[id].choices;
    if (!choices || !k3_opt_choice(choices, value, word[id], sizeof word[id]))
        return "?";
    return word[id];
}

static int parse_size(const struct k3_opt_row *row, const char *text, uint64_t *out,
                      struct k3_err *err)
{
    struct k3_err inner;
    k3_err_init(&inner);
    int rc = row->kind == K3_OPT_RATE ? k3_rate_parse(text, out, &inner)
                                      : k3_size_parse(text, out, &inner);
    if (rc)
        return k3_fail(err, rc, "--%s: %s", row->name, inner.text);
    if (*out < row->min)
        return k3_fail(err, K3_EUSAGE, "--%s: '%s' is too small: give %s or more, like %s",
                       row->name, text, k3_size_text(row->min).s,
                       row->default_text ? row->default_text : "1GiB");
    if (row->max && *out > row->max)
        return k3_fail(err, K3_EUSAGE, "--%s: '%s' is too much: give %s or less, like %s",
                       row->name, text, k3_size_text(row->max).s,
                       row->default_text ? row->default_text : "1GiB");
    return 0;
}

static int parse_value(const struct k3_opt_row *row, const char *text, struct k3_opts *opts,
                       struct k3_err *err)
{
    void *field = field_of(opts, row);
    uint64_t number = 0;
    int rc = 0;
    switch (row->kind) {
    case K3_OPT_NONE:
        *(bool *)field = true;
        break;
    case K3_OPT_STRING:
        *(const char **)field = text;
        break;
    case K3_OPT_STRINGS:
        return add_string(field, text, err);
    case K3_OPT_SIZE:
    case K3_OPT_RATE:
        return parse_size(row, text, field, err);
    case K3_OPT_UINT:
        rc = parse_number(row, text, &number, err);
        *(uint32_t *)field = (uint32_t)number;
        break;
    case K3_OPT_UINT64:
        return parse_number(row, text, field, err);
    case K3_OPT_UINTS:
    case K3_OPT_RANKS:
        return parse_list(row, text, field, err);
    case K3_OPT_CHOICE:
        return parse_choice(row, text, field, err);
    }
    return rc;
}

/* ---- words ---- */

/* The row of --NAME; before the command is known only common options count. */
static const struct k3_opt_row *find_row(const struct k3_opts *opts, const char *name,
                                         size_t length)
{
    for (int i = 0; i < K3_ID_COUNT; i++) {
        const struct k3_opt_row *row = &k3_opt_table[i];
        if (strlen(row->name) != length || memcmp(row->name, name, length) != 0)
            continue;
        if (opts->command ? k3_opt_belongs(row, opts->command) : i >= K3_ID_JSON)
            return row;
    }
    return NULL;
}

/* One option; *index moves over its value. */
static int parse_option(int argc, char **argv, int *index, struct k3_opts *opts, struct k3_err *err)
{
    const char *name = argv[*index] + 2;
    size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    const struct k3_opt_row *row = find_row(opts, name, length);
    if (!row) {
        char word[WORD_MAX + 1] = "";
        memcpy(word, name, length < WORD_MAX ? length : WORD_MAX);
        return fail_option(opts, word, err);
    }
    if (row->kind == K3_OPT_NONE && value)
        return k3_fail(err, K3_EUSAGE, "--%s takes no value", row->name);
    if (row->kind != K3_OPT_NONE && !value) {
        value = *index + 1 < argc ? argv[++*index] : NULL;
        if (value && strncmp(value, "--", 2) == 0)
            return k3_fail(err, K3_EUSAGE, "--%s needs %s, found %s; write --%s=%s if it is meant",
                           row->name, row->value, value, row->name, value);
    }
    if (row->kind != K3_OPT_NONE && (!value || !*value))
        return k3_fail(err, K3_EUSAGE, "--%s needs %s%s", row->name, row->value,
                       row->id == K3_ID_QUANT ? "; see k3-shard help " K3_QUANT_TOPIC : "");
    if (k3_opt_is_set(opts, row->id) && row->kind != K3_OPT_NONE && row->kind != K3_OPT_STRINGS)
        return k3_fail(err, K3_EUSAGE, "--%s is given twice", row->name);
    opts->set |= UINT64_C(1) << row->id;
    return parse_value(row, value, opts, err);
}

static int parse_word(const char *word, struct k3_opts *opts, struct k3_err *err)
{
    if (!*word)
        return k3_fail(err, K3_EUSAGE, "an argument is empty; is a shell variable unset?");
    if (opts->command)
        return add_string(&opts->args, word, err);
    opts->command = k3_command_find(word);
    return opts->command ? 0 : fail_command(word, err);
}

static int parse_words(int argc, char **argv, struct k3_opts *opts, struct k3_err *err)
{
    bool options_ended = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        int rc;
        if (options_ended || word[0] != '-' || word[1] == '\0') {
            rc = parse_word(word, opts, err);
        } else if (strcmp(word, "--") == 0) {
            options_ended = true;
            rc = 0;
        } else if (strcmp(word, "-h") == 0) {
            opts->help = true;
            rc = 0;
        } else if (word[1] != '-') {
            rc = k3_fail(err, K3_EUSAGE, "unknown option %s; options are long, like --help", word);
        } else {
            rc = parse_option(argc, argv, &i, opts, err);
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- the whole line ---- */

static int set_defaults(struct k3_opts *opts, struct k3_err *err)
{
    for (int i = 0; i < K3_ID_COUNT; i++) {
        const struct k3_opt_row *row = &k3_opt_table[i];
        int rc = row->default_text ? parse_value(row, row->default_text, opts, err) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

static int fail_argument(const struct k3_opts *opts, struct k3_err *err)
{
    const char *word = opts->args.item[opts->command->args_max];
    const char *name = opts->command->name;
    if (k3_opt_belongs(&k3_opt_table[K3_ID_OUT], opts->command))
        return k3_fail(err, K3_EUSAGE,
                       "one argument too many: '%s'; where it is the directory of the set, write "
                       "--out %s; see k3-shard help %s",
                       word, k3_quoted(word).s, name);
    return k3_fail(err, K3_EUSAGE, "one argument too many: '%s'; see k3-shard help %s", word, name);
}

static int check_complete(const struct k3_opts *opts, struct k3_err *err)
{
    const struct k3_command *command = opts->command;
    if (!command)
        return k3_fail(err, K3_EUSAGE, "which command? See k3-shard --help");
    if (opts->args.count < command->args_min)
        return k3_fail(err, K3_EUSAGE, "%s is missing; see k3-shard help %s", command->args,
                       command->name);
    if (opts->args.count > command->args_max)
        return fail_argument(opts, err);
    /* Each is at most 4096, so 64 bits hold the product. */
    uint64_t world = (uint64_t)opts->tp * opts->dp * opts->pp;
    if (world > K3_WORLD_MAX)
        return k3_fail(err, K3_EUSAGE,
                       "--tp %u x --dp %u x --pp %u is %" PRIu64 " ranks; at most %u are possible",
                       opts->tp, opts->dp, opts->pp, world, K3_WORLD_MAX);
    for (int i = 0; i < K3_ID_COUNT; i++) {
        const struct k3_opt_row *row = &k3_opt_table[i];
        if ((row->required >> command->id & 1) && !k3_opt_is_set(opts, row->id))
            return k3_fail(err, K3_EUSAGE, "--%s %s is missing; see k3-shard help %s", row->name,
                           row->choices ? row->choices : row->value, command->name);
    }
    return 0;
}

/* --help and --version win over what is missing: "k3-shard plan --help" is the help of plan. */
static int turn_into_command(struct k3_opts *opts, struct k3_err *err)
{
    const struct k3_command *asked = opts->command;
    opts->args.count = 0;
    opts->command = &k3_command_table[opts->help ? K3_CMD_HELP : K3_CMD_VERSION];
    if (opts->help && asked)
        return add_string(&opts->args, asked->name, err);
    return 0;
}

int k3_opts_parse(int argc, char **argv, struct k3_opts *opts, struct k3_err *err)
{
    memset(opts, 0, sizeof *opts);
    int rc = set_defaults(opts, err);
    /* Known before anything can fail, so that every error takes the form that was asked for. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            opts->json = true;
    if (rc == 0)
        rc = parse_words(argc, argv, opts, err);
    if (rc == 0)
        rc = opts->help || opts->version ? turn_into_command(opts, err) : check_complete(opts, err);
    return rc;
}

void k3_opts_fini(struct k3_opts *opts)
{
    free(opts->args.item);
    free(opts->out.item);
    free(opts->pp_layers.item);
    free(opts->ranks.item);
    memset(opts, 0, sizeof *opts);
}
