/* Purpose: policies of casts: their text and JSON, and which format a matrix gets by them.
 * Owns: nothing.
 * Threads: any; pure.
 * Errors: K3_EUSAGE (text), K3_EFORMAT, K3_ELIMIT, K3_ENOMEM (JSON).
 * Invariant: two texts that mean the same have one canonical text, so one plan digest. */
#include "policy.h"

#include "doc.h"
#include "json_read.h"
#include "nearest.h"

#include <stdio.h>
#include <string.h>

/* What can be asked for in a word.  Experts lose nothing by any of these but int4-g32, which says
 * so.  Everything: all matrices of the language model but those that are never touched unnamed.
 * The rest: everything but the experts, which are small already; what makes an image smallest. */
static const struct {
    const char *name, *entries;
} named[] = {
    {"verbatim", ""},
    {"nvfp4", "attention=fp8-block,experts=nvfp4"},
    {"fp8-attn", "attention=fp8-block"},
    {"fp8-rest", "attention=fp8-block,shared=fp8-block,latent=fp8-block,dense=fp8-block,"
                 "head=fp8-block"},
    {"fp8-block", "attention=fp8-block,experts=fp8-block,shared=fp8-block,latent=fp8-block,"
                  "dense=fp8-block,head=fp8-block"},
    {"mxfp8", "attention=mxfp8,experts=mxfp8,shared=mxfp8,latent=mxfp8,dense=mxfp8,head=mxfp8"},
    {"bf16", "experts=bf16"},
    {"int4-g32", "experts=int4-g32"},
};

#define NAMED_COUNT (sizeof named / sizeof named[0])
#define ENTRY_BYTES (K3_POLICY_PATTERN_BYTES + 32u) /* a pattern, '=', a format */

const char *k3_policy_name(uint32_t i, const char **entries)
{
    if (i >= NAMED_COUNT)
        return NULL;
    if (entries)
        *entries = named[i].entries;
    return named[i].name;
}

void k3_policy_init(struct k3_policy *policy)
{
    memset(policy, 0, sizeof *policy); /* K3_Q_VERBATIM and K3_OOW_FAIL are 0 */
}

_Static_assert(K3_Q_VERBATIM == 0 && K3_OOW_FAIL == 0, "k3_policy_init");

/* ---- text ---- */

static int find_role(const char *name, size_t bytes)
{
    for (int r = 0; r < K3_ROLE_COUNT; r++) {
        const char *role = k3_role_name((enum k3_role)r);
        if (strlen(role) == bytes && !memcmp(role, name, bytes))
            return r;
    }
    return -1;
}

static bool is_pattern(const char *name, size_t bytes)
{
    return memchr(name, '.', bytes) || memchr(name, '*', bytes);
}

/* ---- words that nobody knows ---- */

#define WORD_COUNT 16u /* roles, formats or policies: no list has more */
_Static_assert(K3_ROLE_COUNT <= WORD_COUNT && K3_QFMT_COUNT <= WORD_COUNT &&
                   NAMED_COUNT <= WORD_COUNT,
               "lists of words");

struct words {
    const char *one, *many, *more; /* what they are called; what there is besides */
    const char *name[WORD_COUNT];
    size_t count;
};

bool k3_role_is_castable(enum k3_role role)
{
    return role != K3_ROLE_NORM && role != K3_ROLE_ATTNRES; /* vectors */
}

bool k3_role_stays(enum k3_role role)
{
    return role == K3_ROLE_ROUTER || role == K3_ROLE_EMBED || role == K3_ROLE_VISION ||
           role == K3_ROLE_PROJECTOR;
}

/* The family of a format: by letters alone another one may be nearer. */
static const char *usual_of(const char *given, const struct words *words)
{
    static const char *const usual[][2] = {
        {"fp8", "fp8-block"}, {"int4", "int4-g32"}, {"int8", "int8-g32"}};
    for (size_t u = 0; u < sizeof usual / sizeof usual[0]; u++)
        for (size_t i = 0; i < words->count && !strcmp(given, usual[u][0]); i++)
            if (!strcmp(words->name[i], usual[u][1]))
                return words->name[i];
    return NULL;
}

/* A word that is none of them, which may have no NUL behind it. */
static int fail_word(const char *word, size_t bytes, const struct words *words, struct k3_err *err)
{
    char list[256], shown[K3_SHOWN_BYTES], given[K3_POLICY_PATTERN_BYTES], near_text[64] = "";
    size_t used = 0;
    snprintf(given, sizeof given, "%.*s", (int)bytes, word);
    for (char *c = given; *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    const char *near = usual_of(given, words);
    if (!near)
        near = k3_nearest(given, words->name, words->count);
    if (near)
        snprintf(near_text, sizeof near_text, "did you mean '%s'? ", near);
    for (size_t i = 0; i < words->count; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? " " : "",
                                 words->name[i]);
    return k3_fail(err, K3_EUSAGE, "--quant: '%s' is no %s; %s%s are: %s%s",
                   k3_shown(word, bytes, shown), words->one, near_text, words->many, list,
                   words->more);
}

static int fail_role(const char *word, size_t bytes, struct k3_err *err)
{
    struct words words = {.one = "role", .many = "roles", .more = "; a pattern has a '.' or a '*'"};
    for (int r = 0; r < K3_ROLE_COUNT; r++)
        if (k3_role_is_castable((enum k3_role)r))
            words.name[words.count++] = k3_role_name((enum k3_role)r);
    return fail_word(word, bytes, &words, err);
}

static int fail_format(const char *word, struct k3_err *err)
{
    struct words words = {.one = "format", .many = "formats", .more = "", .count = K3_QFMT_COUNT};
    for (int f = 0; f < K3_QFMT_COUNT; f++)
        words.name[f] = k3_qfmt_name((enum k3_qfmt)f);
    return fail_word(word, strlen(word), &words, err);
}

static int fail_policy(const char *word, struct k3_err *err)
{
    struct words words = {.one = "policy",
                          .many = "policies",
                          .more = ", ROLE=FORMAT[,...] or a JSON file",
                          .count = NAMED_COUNT};
    enum k3_qfmt fmt;
    if (k3_qfmt_find(word, strlen(word), &fmt))
        return k3_fail(err, K3_EUSAGE,
                       "--quant: '%s' is a format and no policy: write ROLE=%s, like attention=%s",
                       word, word, word);
    for (size_t i = 0; i < NAMED_COUNT; i++)
        words.name[i] = named[i].name;
    return fail_word(word, strlen(word), &words, err);
}

static int add_pattern(struct k3_policy *policy, const char *glob, size_t bytes, enum k3_qfmt fmt,
                       struct k3_err *err)
{
    char shown[K3_SHOWN_BYTES];
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-*{}";
    if (bytes >= K3_POLICY_PATTERN_BYTES)
        return k3_fail(err, K3_EUSAGE, "--quant: pattern '%s' has more than %u characters",
                       k3_shown(glob, bytes, shown), K3_POLICY_PATTERN_BYTES - 1);
    for (size_t i = 0; i < bytes; i++)
        if (!glob[i] || !strchr(allowed, glob[i]))
            return k3_fail(err, K3_EUSAGE,
                           "--quant: pattern '%s' has a character that no tensor name has",
                           k3_shown(glob, bytes, shown));
    for (uint32_t i = 0; i < policy->pattern_count; i++)
        if (strlen(policy->patterns[i].glob) == bytes &&
            !memcmp(policy->patterns[i].glob, glob, bytes))
            return k3_fail(err, K3_EUSAGE, "--quant: pattern '%s' is given twice",
                           policy->patterns[i].glob);
    if (policy->pattern_count == K3_POLICY_PATTERN_COUNT_MAX)
        return k3_fail(err, K3_EUSAGE, "--quant: more than %u patterns",
                       K3_POLICY_PATTERN_COUNT_MAX);
    struct k3_policy_pattern *pattern = &policy->patterns[policy->pattern_count++];
    memcpy(pattern->glob, glob, bytes);
    pattern->glob[bytes] = 0;
    pattern->fmt = (uint8_t)fmt;
    return 0;
}

/* oow=HOW and config=HOW, as a canonical text has them; -1: the entry is neither. */
static int add_option(struct k3_policy *policy, const char *name, size_t bytes, const char *value,
                      struct k3_err *err)
{
    const bool is_oow = bytes == 3 && !memcmp(name, "oow", 3);
    if (!is_oow && (bytes != 6 || memcmp(name, "config", 6)))
        return -1;
    if (is_oow ? policy->oow != K3_OOW_FAIL : policy->is_modelopt)
        return k3_fail(err, K3_EUSAGE, "--quant: %s is given twice", is_oow ? "oow" : "config");
    if (is_oow && !strcmp(value, "requant"))
        policy->oow = K3_OOW_REQUANT;
    else if (is_oow && !strcmp(value, "snap"))
        policy->oow = K3_OOW_SNAP;
    else if (!is_oow && !strcmp(value, "modelopt"))
        policy->is_modelopt = true;
    else
        return k3_fail(err, K3_EUSAGE, "--quant: %s",
                       is_oow ? "oow is requant or snap, or left out"
                              : "config is modelopt, or left out");
    return 0;
}

enum k3_qfmt k3_role_source_fmt(enum k3_role role)
{
    return role == K3_ROLE_EXPERTS ? K3_Q_MXFP4 : K3_Q_BF16;
}

/* Bits of the roles that entries have named. */
static int add_entry(struct k3_policy *policy, const char *name, size_t bytes, const char *value,
                     uint32_t *seen, struct k3_err *err)
{
    enum k3_qfmt fmt;
    int option = add_option(policy, name, bytes, value, err);
    if (option >= 0)
        return option;
    int role = find_role(name, bytes);
    if (role < 0 && !is_pattern(name, bytes))
        return fail_role(name, bytes, err);
    if (!k3_qfmt_find(value, strlen(value), &fmt))
        return fail_format(value, err);
    if (role < 0)
        return add_pattern(policy, name, bytes, fmt, err);
    if (!k3_role_is_castable((enum k3_role)role))
        return k3_fail(err, K3_EUSAGE, "--quant: role %s has no matrix that could be cast",
                       k3_role_name((enum k3_role)role));
    if (*seen & 1u << role)
        return k3_fail(err, K3_EUSAGE, "--quant: role %s is given twice",
                       k3_role_name((enum k3_role)role));
    *seen |= 1u << role;
    policy->asked_roles |= (uint16_t)(1u << role);
    /* Asking for what is there already is asking for nothing. */
    policy->role_fmt[role] = (uint8_t)(fmt == k3_role_source_fmt((enum k3_role)role) ? K3_Q_VERBATIM
                                                                                     : fmt);
    return 0;
}

static int parse_entries(const char *text, struct k3_policy *policy, struct k3_err *err);

/* A name means what of it there is to cast. */
static int parse_named(size_t i, struct k3_policy *policy, struct k3_err *err)
{
    int rc = parse_entries(named[i].entries, policy, err);
    policy->asked_roles = 0;
    return rc;
}

/* Entries behind the name of a policy change what that says; NULL: the text begins with no name. */
static const char *after_name(const char *text, struct k3_policy *policy, struct k3_err *err)
{
    size_t bytes = strcspn(text, ",");
    for (size_t i = 0; i < NAMED_COUNT; i++)
        if (text[bytes] == ',' && text[bytes + 1] && strlen(named[i].name) == bytes &&
            !memcmp(named[i].name, text, bytes))
            return parse_named(i, policy, err) ? NULL : text + bytes + 1;
    return NULL;
}

static int parse_entries(const char *text, struct k3_policy *policy, struct k3_err *err)
{
    uint32_t seen = 0;
    char shown[K3_SHOWN_BYTES];
    const char *rest = after_name(text, policy, err);
    for (const char *at = rest ? rest : text; *at;) {
        size_t bytes = strcspn(at, ",");
        char entry[ENTRY_BYTES];
        const char *equals = memchr(at, '=', bytes);
        if (!equals || equals == at || equals + 1 == at + bytes || bytes >= sizeof entry)
            return k3_fail(err, K3_EUSAGE,
                           "--quant: '%s' is not of the form ROLE=FORMAT or PATTERN=FORMAT",
                           k3_shown(at, bytes, shown));
        if (at[bytes] && !at[bytes + 1])
            return k3_fail(err, K3_EUSAGE,
                           "--quant: no entry follows the last ',': take it away, or give one");
        memcpy(entry, at, bytes);
        entry[bytes] = 0;
        size_t name = (size_t)(equals - at);
        int rc = add_entry(policy, entry, name, entry + name + 1, &seen, err);
        if (rc)
            return rc;
        at += bytes + (at[bytes] == ',');
    }
    return 0;
}

int k3_policy_parse(const char *text, struct k3_policy *policy, struct k3_err *err)
{
    if (strchr(text, '='))
        return parse_entries(text, policy, err);
    for (size_t i = 0; i < NAMED_COUNT; i++)
        if (!strcmp(named[i].name, text))
            return parse_named(i, policy, err);
    return fail_policy(text, err);
}

/* Copy a string token, which need not end where it ends. */
static int copy_token(const char *file, const struct k3_json_token *token, char out[ENTRY_BYTES],
                      struct k3_err *err)
{
    char shown[K3_SHOWN_BYTES];
    if (token->bytes >= ENTRY_BYTES)
        return k3_fail_at(err, K3_EUSAGE, file, (int64_t)token->offset,
                          "%s: '%s' is longer than any name of a policy", file,
                          k3_shown(token->text, token->bytes, shown));
    memcpy(out, token->text, token->bytes);
    out[token->bytes] = 0;
    return 0;
}

/* An entry of a file is refused as one of the option is, and by the name of the file. */
static int add_entry_of(const char *file, struct k3_policy *policy, const char *name,
                        const char *value, uint32_t *seen, struct k3_err *err)
{
    static const char option[] = "--quant: ";
    struct k3_err why;
    k3_err_init(&why);
    int rc = add_entry(policy, name, strlen(name), value, seen, &why);
    const bool is_named = !strncmp(why.text, option, sizeof option - 1);
    return rc ? k3_fail_at(err, rc, file, -1, "%s: %s", file,
                           why.text + (is_named ? sizeof option - 1 : 0))
              : 0;
}

int k3_policy_parse_json(const char *file, const char *text, size_t bytes, struct k3_policy *policy,
                         struct k3_err *err)
{
    struct k3_json *json = NULL;
    struct k3_json_token token;
    uint32_t seen = 0;
    int rc = k3_json_open(file, text, bytes, 2, &json, err);
    if (!rc)
        rc = k3_json_expect(json, K3_JSON_OBJECT_BEGIN, "a policy", &token, err);
    while (!rc) {
        char name[ENTRY_BYTES], value[ENTRY_BYTES];
        rc = k3_json_next(json, &token, err);
        if (rc || token.type == K3_JSON_OBJECT_END)
            break;
        rc = copy_token(file, &token, name, err);
        if (!rc)
            rc = k3_json_expect(json, K3_JSON_STRING, "a format", &token, err);
        if (!rc)
            rc = copy_token(file, &token, value, err);
        if (!rc)
            rc = add_entry_of(file, policy, name, value, &seen, err);
    }
    if (!rc)
        rc = k3_json_expect(json, K3_JSON_END, "the end", &token, err);
    k3_json_close(json);
    return rc;
}

static void put(char *text, size_t *used, const char *name, const char *value)
{
    *used += (size_t)snprintf(text + *used, K3_POLICY_TEXT_BYTES - *used, "%s%s=%s",
                              *used ? "," : "", name, value);
}

/* All of it fits: 12 roles and two options of below 32 characters, 64 patterns of below 160. */
_Static_assert(14 * 32 + K3_POLICY_PATTERN_COUNT_MAX * ENTRY_BYTES < K3_POLICY_TEXT_BYTES,
               "the longest policy text");

/* Entries of the roles that another policy gives another format, then patterns and options. */
static void put_entries(const struct k3_policy *policy, const struct k3_policy *base, char *text,
                        size_t *used)
{
    static const char *const oow[] = {"fail", "requant", "snap"};
    for (int r = 0; r < K3_ROLE_COUNT; r++)
        if (policy->role_fmt[r] != base->role_fmt[r])
            put(text, used, k3_role_name((enum k3_role)r),
                k3_qfmt_name((enum k3_qfmt)policy->role_fmt[r]));
    for (uint32_t i = 0; i < policy->pattern_count; i++)
        put(text, used, policy->patterns[i].glob,
            k3_qfmt_name((enum k3_qfmt)policy->patterns[i].fmt));
    if (policy->is_modelopt)
        put(text, used, "config", "modelopt");
    if (policy->oow != K3_OOW_FAIL)
        put(text, used, "oow", oow[policy->oow]);
}

void k3_policy_text(const struct k3_policy *policy, char *text)
{
    struct k3_policy verbatim;
    size_t used = 0;
    text[0] = 0;
    k3_policy_init(&verbatim);
    put_entries(policy, &verbatim, text, &used);
    if (!used)
        snprintf(text, K3_POLICY_TEXT_BYTES, "verbatim");
}

void k3_policy_short_text(const struct k3_policy *policy, char *text)
{
    char other[K3_POLICY_TEXT_BYTES];
    struct k3_err ignored;
    k3_err_init(&ignored);
    k3_policy_text(policy, text);
    for (size_t i = 0; i < NAMED_COUNT; i++) {
        struct k3_policy base;
        size_t used = strlen(named[i].name);
        k3_policy_init(&base);
        if (parse_named(i, &base, &ignored))
            continue;
        memcpy(other, named[i].name, used + 1);
        put_entries(policy, &base, other, &used);
        if (used < strlen(text))
            memcpy(text, other, used + 1);
    }
}

bool k3_policy_is_verbatim(const struct k3_policy *policy)
{
    for (int r = 0; r < K3_ROLE_COUNT; r++)
        if (policy->role_fmt[r] != K3_Q_VERBATIM)
            return false;
    return policy->pattern_count == 0;
}
