/* Commands and their options.  One table of each drives parsing, help, man pages and completion. */
#ifndef K3_OPTS_H
#define K3_OPTS_H

#include "k3_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define K3_WORLD_MAX        4096u /* ranks: what the format has room for (K3_RANK_COUNT_MAX) */
#define K3_OPT_LIST_MAX     4096u /* numbers in one list: a list of all ranks is the longest */
#define K3_JOBS_MAX         1024u /* threads: more than the cores of any node */
#define K3_BENCH_ROUNDS_MAX 99u   /* each takes seconds to minutes */
#define K3_OPT_ROWS_MAX     64    /* one bit each in k3_opts.set */

enum k3_opt_kind {
    K3_OPT_NONE,    /* bool */
    K3_OPT_STRING,  /* const char *, borrowed from argv */
    K3_OPT_STRINGS, /* struct k3_strings; the option may be repeated */
    K3_OPT_SIZE,    /* uint64_t bytes */
    K3_OPT_RATE,    /* uint64_t bytes per second */
    K3_OPT_UINT,    /* uint32_t within min..max */
    K3_OPT_UINT64,  /* uint64_t */
    K3_OPT_UINTS,   /* struct k3_uints: a,b,c */
    K3_OPT_RANKS,   /* struct k3_uints: a,b-c in the order given, no number twice */
    K3_OPT_CHOICE   /* uint32_t: index into the row's choices */
};

/* One for each row of the option table; the bit number in k3_opts.set. */
enum k3_opt_id {
    K3_ID_TP,
    K3_ID_DP,
    K3_ID_PP,
    K3_ID_PP_LAYERS,
    K3_ID_EXPERTS,
    K3_ID_SHARED,
    K3_ID_VISION,
    K3_ID_BUDGET,
    K3_ID_QUANT,
    K3_ID_OOW,
    K3_ID_CONFIG,
    K3_ID_RATE,
    K3_ID_OUT,
    K3_ID_JOBS,
    K3_ID_MEMORY,
    K3_ID_REVISION,
    K3_ID_FORCE,
    K3_ID_CAST_DEVICE,
    K3_ID_WORKER,
    K3_ID_WORKERS,
    K3_ID_RANKS,
    K3_ID_CHECK_QUICK,
    K3_ID_AGAINST,
    K3_ID_TENSOR,
    K3_ID_STATS,
    K3_ID_DIGEST,
    K3_ID_TO,
    K3_ID_DEVICE,
    K3_ID_IO,
    K3_ID_STAGING,
    K3_ID_MAX_BANDWIDTH,
    K3_ID_TRACE,
    K3_ID_NO_VERIFY,
    K3_ID_ROUNDS,
    K3_ID_SIZE,
    K3_ID_SCRATCH,
    K3_ID_PRESET,
    K3_ID_LAYERS,
    K3_ID_EXPERT_COUNT,
    K3_ID_SEED,
    K3_ID_SPARSE,
    K3_ID_JSON,
    K3_ID_QUIET,
    K3_ID_HELP,
    K3_ID_VERSION,
    K3_ID_COUNT
};
_Static_assert(K3_ID_COUNT <= K3_OPT_ROWS_MAX, "k3_opts.set has one bit for each option");

/* Values of the choices, in the order of their rows. */
enum { K3_OPT_EXPERTS_TP, K3_OPT_EXPERTS_EP };
enum { K3_OPT_SHARED_TP, K3_OPT_SHARED_REPLICATE };
enum { K3_OPT_VISION_REPLICATE, K3_OPT_VISION_FIRST, K3_OPT_VISION_DROP };
enum { K3_OPT_OOW_FAIL, K3_OPT_OOW_REQUANT, K3_OPT_OOW_SNAP };
enum { K3_OPT_CONFIG_COMPRESSED_TENSORS, K3_OPT_CONFIG_MODELOPT };
enum { K3_OPT_IO_AUTO, K3_OPT_IO_URING, K3_OPT_IO_PREAD, K3_OPT_IO_CUFILE, K3_OPT_IO_HIPFILE };
enum { K3_OPT_PRESET_TINY, K3_OPT_PRESET_LAYER, K3_OPT_PRESET_FULL };

struct k3_strings {
    const char **item; /* owned array of borrowed strings */
    uint32_t count;
};

struct k3_uints {
    uint32_t *item; /* owned */
    uint32_t count;
};

/* Everything a command line can say.  Fields hold the default where their option was not given:
 * the table's default, else 0, NULL or an empty list. */
struct k3_opts {
    const struct k3_command *command;
    struct k3_strings args; /* positional */
    uint64_t set;           /* bit enum k3_opt_id: given on the command line */

    uint32_t tp;
    uint32_t dp;
    uint32_t pp;
    struct k3_uints pp_layers;
    uint32_t experts; /* K3_OPT_EXPERTS_* */
    uint32_t shared;  /* K3_OPT_SHARED_* */
    uint32_t vision;  /* K3_OPT_VISION_* */
    uint64_t budget_bytes;
    const char *quant;              /* NULL: verbatim */
    uint64_t rate_bytes_per_second; /* 0: no time is estimated */

    struct k3_strings out;
    uint32_t jobs; /* 0: one for each core */
    uint64_t memory_bytes;
    const char *revision;
    bool force;
    uint32_t oow;            /* K3_OPT_OOW_* */
    const char *cast_device; /* host, cuda:N, hip:N */
    uint32_t config;         /* K3_OPT_CONFIG_* */
    uint32_t worker;         /* this one of ... */
    uint32_t workers;        /* ... so many; 0: not spread, the run seals */

    struct k3_uints ranks; /* empty: all */
    bool check_quick;      /* verify --quick (the common --quiet is another) */
    const char *against;
    const char *tensor;
    bool stats;
    bool digest;
    const char *to;

    const char *device; /* host, cuda:LIST, hip:LIST */
    uint32_t io;        /* K3_OPT_IO_* */
    uint64_t staging_bytes;
    uint64_t max_bytes_per_second; /* 0: no limit */
    const char *trace;
    bool no_verify;

    uint32_t rounds;
    uint64_t size_bytes;
    const char *scratch; /* NULL: no conversion is measured */

    uint32_t preset;       /* K3_OPT_PRESET_* */
    uint32_t layers;       /* 0: as the preset has */
    uint32_t expert_count; /* 0: as the preset has */
    uint64_t seed;
    bool sparse;

    bool json;
    bool quiet;
    bool help;
    bool version;
};

struct k3_opt_row {
    enum k3_opt_id id;
    enum k3_opt_kind kind;
    const char *name;         /* without the dashes */
    const char *value;        /* name or unit of its argument; NULL for K3_OPT_NONE */
    const char *default_text; /* parsed like an argument; NULL: zero */
    const char *choices;      /* K3_OPT_CHOICE: "a|b|c" */
    const char *help;         /* a phrase, no full stop */
    const char *group;        /* heading in the help */
    uint64_t min;             /* of numbers, sizes and rates, and of each number of a list */
    uint64_t max;             /* the same; of a size 0: none */
    size_t field;             /* offset in struct k3_opts */
    uint32_t commands;        /* bit enum k3_command_id */
    uint32_t required;        /* of those, where it must be given */
};

enum k3_command_id {
    K3_CMD_PLAN,
    K3_CMD_CONVERT,
    K3_CMD_SEAL,
    K3_CMD_VERIFY,
    K3_CMD_INSPECT,
    K3_CMD_EXPORT,
    K3_CMD_LOAD,
    K3_CMD_BENCH,
    K3_CMD_DOCTOR,
    K3_CMD_SYNTH,
    K3_CMD_HELP,
    K3_CMD_MAN,
    K3_CMD_COMPLETION,
    K3_CMD_VERSION,
    K3_CMD_COUNT
};

struct k3_command {
    enum k3_command_id id;
    const char *name;
    const char *args;    /* as in the usage line, without options */
    const char *summary; /* one line */
    const char *group;   /* heading in the list of commands */
    const char *text;    /* paragraphs for help and man page */
    const char *example;
    uint32_t args_min;
    uint32_t args_max;
    int (*run)(const struct k3_opts *opts, struct k3_err *err);
};

/* ---- the tables ---- */
extern const struct k3_opt_row k3_opt_table[K3_ID_COUNT];
#define K3_EXIT_COUNT 5
extern const char *const k3_exit_text[K3_EXIT_COUNT]; /* what each exit code says */
extern const char k3_size_help[], k3_rate_help[];     /* what a number without a unit is */
extern const struct k3_command k3_command_table[K3_CMD_COUNT];

const struct k3_command *k3_command_find(const char *name);
/* Does this command take this option? */
bool k3_opt_belongs(const struct k3_opt_row *row, const struct k3_command *command);

/* ---- parsing ---- */
/* Fill *opts from argv; strings are borrowed from it.  Call k3_opts_fini() whatever is returned.
 * On failure opts->json and opts->command hold what was understood, for the message.
 * --help and --version turn into the commands of those names.  Fails: K3_EUSAGE, K3_ENOMEM. */
int k3_opts_parse(int argc, char **argv, struct k3_opts *opts, struct k3_err *err);
void k3_opts_fini(struct k3_opts *opts);

/* Was the option given, rather than defaulted? */
bool k3_opt_is_set(const struct k3_opts *opts, enum k3_opt_id id);
/* The word of a choice, for messages and documents. */
const char *k3_opt_choice_name(enum k3_opt_id id, uint32_t value);
/* Copy choice number `index` of "a|b|c"; false when there is none. */
bool k3_opt_choice(const char *choices, uint32_t index, char *out, size_t cap);

/* ---- documents made of the tables ---- */
void k3_help_print(FILE *out, const struct k3_command *command); /* NULL: the whole tool */
void k3_man_print(FILE *out, const struct k3_command *command);
/* What --quant takes: the topic `quant` of help and man. */
#define K3_QUANT_TOPIC "quant"
void k3_quant_topic_print(FILE *out, bool is_man);
/* For man pages: the first line (NULL: of the tool), and a text without what roff would read. */
void k3_man_put_title(FILE *out, const char *name);
void k3_man_put(FILE *out, const char *text);
/* Words filled to the width of the help; the first line begins at column `at`, others at `indent`.
 */
void k3_help_put_filled(FILE *out, const char *text, int at, int indent);
/* shell: bash, zsh or fish; false for another. */
bool k3_completion_print(FILE *out, const char *shell);

#endif
