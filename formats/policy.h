/* Policies: which matrices of a model change their precision while they are cut (FORMAT.md 4.7).
 * A policy names roles, then patterns of matrix names; what neither names stays as it is.  A value
 * without pointers: copied freely, constant once made; pure, any thread. */
#ifndef K3_POLICY_H
#define K3_POLICY_H

#include "layout.h"
#include "quant.h"

#define K3_POLICY_PATTERN_COUNT_MAX 64u    /* exceptions are few; one pattern covers a kind */
#define K3_POLICY_PATTERN_BYTES     128u   /* the longest matrix name has 73 characters */
#define K3_POLICY_TEXT_BYTES        16384u /* all roles, all patterns, both options */

struct k3_policy_pattern {
    char glob[K3_POLICY_PATTERN_BYTES]; /* `*` stands for any characters */
    uint8_t fmt;                        /* enum k3_qfmt */
};

struct k3_policy {
    uint8_t role_fmt[K3_ROLE_COUNT]; /* enum k3_qfmt; K3_Q_VERBATIM: not named */
    struct k3_policy_pattern patterns[K3_POLICY_PATTERN_COUNT_MAX]; /* the first that fits wins */
    uint32_t pattern_count;
    uint16_t asked_roles; /* bits of enum k3_role: entries of the user's own, not of a name */
    uint8_t oow;          /* enum k3_oow */
    bool is_modelopt;     /* configuration for ModelOpt readers is written too */
};

/* The policy that changes nothing. */
void k3_policy_init(struct k3_policy *policy);

/* Add the text of --quant: a name of k3_policy_name, or ENTRY[,ENTRY...], or a name and entries
 * that change what it says, with ENTRY = ROLE=FORMAT or PATTERN=FORMAT (a pattern has a `.` or a
 * `*`), and, as canonical texts have them, config=modelopt and oow=requant or oow=snap.  K3_EUSAGE
 * with one sentence. */
int k3_policy_parse(const char *text, struct k3_policy *policy, struct k3_err *err);

/* The same from a JSON document: one object whose members are such entries, in their order. */
int k3_policy_parse_json(const char *file, const char *text, size_t bytes, struct k3_policy *policy,
                         struct k3_err *err);

/* Canonical text: "verbatim", or roles in the order of enum k3_role, patterns in theirs, options;
 * joined by commas.  text has K3_POLICY_TEXT_BYTES. */
void k3_policy_text(const struct k3_policy *policy, char *text);

/* The shortest text for a command line that means the same: "fp8-rest,experts=nvfp4", where a name
 * helps.  text has K3_POLICY_TEXT_BYTES. */
void k3_policy_short_text(const struct k3_policy *policy, char *text);

/* Name number i of the policies with a name and, if entries is not NULL, what it stands for; NULL
 * behind the last. */
const char *k3_policy_name(uint32_t i, const char **entries);

bool k3_policy_is_verbatim(const struct k3_policy *policy);

/* False for norms and the vectors of AttnRes: no matrices, no entries. */
bool k3_role_is_castable(enum k3_role role);
/* Format that the matrices of a role have in the checkpoint. */
enum k3_qfmt k3_role_source_fmt(enum k3_role role);
/* True for roles that engines read as BF16 only, so that no name casts them and patterns must spell
 * them out: router, embed, vision, projector. */
bool k3_role_stays(enum k3_role role);
/* True where a cast of this policy can be out of its window (k3_quant_has_window). */
bool k3_policy_has_window(const struct k3_policy *policy, const struct k3_config *config);
/* Bits of the roles of which the policy casts a matrix that an image of this layout has. */
uint32_t k3_policy_cast_roles(const struct k3_policy *policy, const struct k3_config *config,
                              const struct k3_layout *layout);

#define K3_LAYER_ALL UINT32_MAX

/* True for a matrix that can be cast: BF16, or packed with a rule for its scales. */
bool k3_rule_is_matrix(const struct k3_rule *rule);
/* Format the matrix has in the checkpoint. */
enum k3_qfmt k3_rule_source_fmt(const struct k3_rule *rule);
/* The rule of the packed codes that a K3_RULE_SCALE rule scales. */
uint32_t k3_rule_scaled(const struct k3_model *model, uint32_t rule);

/* Format that rule `rule` gets in a layer (ignored in the first and last part): K3_Q_VERBATIM where
 * it keeps its own, so for all that is no matrix.  Scales follow their codes. */
enum k3_qfmt k3_policy_fmt(const struct k3_policy *policy, const struct k3_config *config,
                           uint32_t rule, uint32_t layer);

/* Name of a matrix as engines know their modules, `{e}` and `{b}` left as they are:
 * "language_model.model.layers.3.block_sparse_moe.experts.{e}.w1" into name[bytes]. */
void k3_rule_module(const struct k3_rule *rule, uint32_t layer, char *name, size_t bytes);

/* True where the policy changes a matrix of this model. */
bool k3_policy_casts(const struct k3_policy *policy, const struct k3_config *config);

/* Can the policy be carried out on this model in this (resolved) layout?  K3_EUSAGE: an entry that
 * fits no matrix; K3_EUNSUPPORTED: a cast that does not exist, matrices of one fused matrix in
 * different formats, a cut through a group of scales, with the --tp sizes and the entries that
 * work. */
int k3_policy_check(const struct k3_policy *policy, const struct k3_config *config,
                    const struct k3_layout *layout, struct k3_err *err);

/* A kind of matrix whose cut goes through what shares a scale: each rank's piece is cast as a
 * matrix of its own, so blocks are counted from its first row and column (FORMAT.md 4.7). */
struct k3_policy_split {
    char glob[K3_POLICY_PATTERN_BYTES]; /* a pattern that names it in all layers */
    enum k3_qfmt fmt;
    uint64_t rows, cols; /* of a rank */
    bool is_small;       /* the whole matrix is no wider than a block, so any cut splits it */
};
/* Looks at rules from *rule on; false: none is left.  *rule is behind the one that was found.
 * Matrices of one name, like o_proj of both attentions, are told once where they are cut alike. */
bool k3_policy_next_split(const struct k3_policy *policy, const struct k3_config *config,
                          const struct k3_layout *layout, uint32_t *rule,
                          struct k3_policy_split *split);

/* ---- what to give instead ---- */

/* The first matrix for which k3_policy_check refuses. */
struct k3_policy_misfit {
    enum { K3_MISFIT_OTHER, K3_MISFIT_WIDTH, K3_MISFIT_FUSED } kind;
    enum k3_qfmt fmt; /* WIDTH: that does not divide; FUSED: that its fellows should have */
    uint32_t rule, layer;
};

/* As k3_policy_check, without advice. */
int k3_policy_find_misfit(const struct k3_policy *policy, const struct k3_config *config,
                          const struct k3_layout *layout, struct k3_policy_misfit *misfit,
                          struct k3_err *err);

/* True where rule r continues the matrix of rule r - 1, as engines see it. */
bool k3_rule_is_fused(const struct k3_model *model, uint32_t rule);

/* The shortest pattern that names the matrix in this layer, or in K3_LAYER_ALL of them. */
void k3_rule_glob(const struct k3_rule *rule, uint32_t layer, char glob[K3_POLICY_PATTERN_BYTES]);

/* Entries in front of all others that give a matrix, and all that are one with it, this format in a
 * layer (or in K3_LAYER_ALL of them); false: no room. */
bool k3_policy_set(struct k3_policy *policy, const struct k3_config *config, uint32_t rule,
                   uint32_t layer, enum k3_qfmt fmt);

/* The policy with entries that make k3_policy_check pass; false where none do. */
bool k3_policy_mend(const struct k3_policy *policy, const struct k3_config *config,
                    const struct k3_layout *layout, struct k3_policy *mended);

/* Add "LEAD --quant 'TEXT'" to a message, where all of it finds room. */
void k3_policy_advise(const struct k3_policy *mended, const char *lead, struct k3_err *err);

#endif
