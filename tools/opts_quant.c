/* Purpose: print the topic `quant` of help and man: policies, roles and formats of --quant.
 * Owns: nothing.
 * Threads: any.
 * Errors: none.
 * Invariant: every name comes out of the tables that the parser uses; there is no second list. */
#include "opts.h"
#include "policy.h"

#include <stdio.h>
#include <string.h>

#define INDENT     2
#define NAME_WIDTH 14
#define LIST_BYTES 512
/* Large enough for all groups to divide, and for a global scale not to count. */
#define SIDE 8192u

static void put_heading(FILE *out, bool is_man, const char *man, const char *help)
{
    if (is_man)
        fprintf(out, ".SH %s\n", man);
    else
        fprintf(out, "\n%s:\n", help);
}

static void put_paragraph(FILE *out, bool is_man, const char *text)
{
    if (!is_man) {
        k3_help_put_filled(out, text, 0, 0);
        return;
    }
    k3_man_put(out, text);
    fputc('\n', out);
}

static void put_row(FILE *out, bool is_man, const char *name, const char *text)
{
    if (is_man) {
        fputs(".TP\n.B ", out);
        k3_man_put(out, name);
        fputc('\n', out);
        k3_man_put(out, text);
        fputc('\n', out);
        return;
    }
    fprintf(out, "%*s%-*s", INDENT, "", NAME_WIDTH, name);
    k3_help_put_filled(out, text, INDENT + NAME_WIDTH, INDENT + NAME_WIDTH);
}

static void add_word(char list[LIST_BYTES], const char *word)
{
    size_t used = strlen(list);
    snprintf(list + used, LIST_BYTES - used, "%s%s", used ? ", " : "", word);
}

/* Entries as words, so that they can be filled. */
static void put_policies(FILE *out, bool is_man)
{
    const char *entries, *name;
    put_heading(out, is_man, "POLICIES", "Policies, and the entries that they stand for");
    for (uint32_t i = 0; (name = k3_policy_name(i, &entries)) != NULL; i++) {
        char list[LIST_BYTES] = "";
        for (const char *at = entries; *at;) {
            size_t bytes = strcspn(at, ",");
            char word[64];
            snprintf(word, sizeof word, "%.*s", (int)bytes, at);
            add_word(list, word);
            at += bytes + (at[bytes] == ',');
        }
        put_row(out, is_man, name, *list ? list : "all as it is in the checkpoint");
    }
}

/* Formats that are reached from a format by this kind of way. */
static void list_formats(enum k3_qfmt from, bool is_direct, char list[LIST_BYTES])
{
    *list = 0;
    for (unsigned f = 0; f < K3_QFMT_COUNT; f++) {
        enum k3_qroute route = k3_quant_route(from, (enum k3_qfmt)f);
        if (route == K3_QROUTE_NONE || route == K3_QROUTE_COPY)
            continue;
        if ((route == K3_QROUTE_MX) == is_direct)
            add_word(list, k3_qfmt_name((enum k3_qfmt)f));
    }
}

static void put_roles_of(FILE *out, bool is_man, enum k3_qfmt from)
{
    char roles[LIST_BYTES] = "", list[LIST_BYTES], text[2 * LIST_BYTES + 128];
    for (unsigned r = 0; r < K3_ROLE_COUNT; r++)
        if (k3_role_is_castable((enum k3_role)r) && k3_role_source_fmt((enum k3_role)r) == from)
            add_word(roles, k3_role_name((enum k3_role)r));
    snprintf(text, sizeof text, "%s: %s in the checkpoint, can become", roles, k3_qfmt_name(from));
    put_paragraph(out, is_man, text);
    list_formats(from, true, list);
    if (*list)
        put_row(out, is_man, "exactly", list);
    list_formats(from, false, list);
    if (*list)
        put_row(out, is_man, "rounded", list);
}

static void put_roles(FILE *out, bool is_man)
{
    put_heading(out, is_man, "ROLES", "Roles, and the formats that each takes");
    put_roles_of(out, is_man, K3_Q_BF16);
    if (is_man)
        fputs(".PP\n", out);
    put_roles_of(out, is_man, K3_Q_MXFP4);
    if (is_man)
        fputs(".PP\n", out);
    char roles[LIST_BYTES] = "", text[LIST_BYTES + 128];
    for (unsigned r = 0; r < K3_ROLE_COUNT; r++)
        if (k3_role_stays((enum k3_role)r))
            add_word(roles, k3_role_name((enum k3_role)r));
    put_paragraph(out, is_man,
                  "Exactly: every value comes back equal, as far as the window of the format "
                  "reaches; --oow says what becomes of the rest.");
    snprintf(text, sizeof text,
             "Engines expect these in BF16, no policy with a name casts them: %s.", roles);
    put_paragraph(out, is_man, text);
}

static void put_formats(FILE *out, bool is_man)
{
    put_heading(out, is_man, "FORMATS",
                "Formats: bits a value, scales counted, and what shares a scale");
    put_row(out, is_man, k3_qfmt_name(K3_Q_VERBATIM), "as it is in the checkpoint");
    for (unsigned f = K3_Q_VERBATIM + 1; f < K3_QFMT_COUNT; f++) {
        struct k3_qgeom geom;
        struct k3_err ignored;
        char text[128];
        k3_err_init(&ignored);
        if (k3_qfmt_geometry((enum k3_qfmt)f, SIDE, SIDE, &geom, &ignored))
            continue;
        double bits = (double)(geom.weight_bytes + geom.scale_bytes) * 8 / SIDE / SIDE;
        int n = snprintf(text, sizeof text, "%.4g bits", bits);
        if (!geom.scale_suffix && !geom.global_suffix)
            snprintf(text + n, sizeof text - (size_t)n, ", no scales");
        else if (!geom.group_rows)
            snprintf(text + n, sizeof text - (size_t)n, ", the whole matrix");
        else if (!geom.group_cols)
            snprintf(text + n, sizeof text - (size_t)n, ", a row");
        else if (geom.group_rows == 1)
            snprintf(text + n, sizeof text - (size_t)n, ", %u values of a row", geom.group_cols);
        else
            snprintf(text + n, sizeof text - (size_t)n, ", a block of %u x %u", geom.group_rows,
                     geom.group_cols);
        put_row(out, is_man, k3_qfmt_name((enum k3_qfmt)f), text);
    }
}

void k3_quant_topic_print(FILE *out, bool is_man)
{
    static const char text[] =
        "Changes the precision of matrices while they are cut.  POLICY is a name of those below; "
        "or entries ROLE=FORMAT and PATTERN=FORMAT, joined by commas; or a name and entries that "
        "change what it says, like nvfp4,head=mxfp8; or a file whose name ends in .json that holds "
        "one object of such entries, like {\"attention\": \"fp8-block\"}.  A pattern is the name "
        "of a matrix with * for any characters, like *.layers.2.*=verbatim; {e} stands for all "
        "experts of a layer.";
    if (is_man)
        k3_man_put_title(out, K3_QUANT_TOPIC);
    if (is_man)
        fputs(".SH NAME\nk3\\-shard\\-" K3_QUANT_TOPIC " \\- what \\-\\-quant of plan and convert "
              "takes\n.SH SYNOPSIS\n.B k3\\-shard plan\n\\fB\\-\\-quant\\fR \\fIPOLICY\\fR CKPT\n"
              ".SH DESCRIPTION\n",
              out);
    else
        fputs("Usage: k3-shard plan|convert --quant POLICY ...\n\n", out);
    put_paragraph(out, is_man, text);
    put_policies(out, is_man);
    put_roles(out, is_man);
    put_formats(out, is_man);
    put_heading(out, is_man, "EXAMPLES", "Example");
    fputs(is_man ? ".nf\n" : "  ", out);
    put_paragraph(out, is_man, "k3-shard plan /models/Kimi-K3 --quant fp8-attn,head=fp8-block");
    if (is_man)
        fputs(".fi\n.SH SEE ALSO\n.BR k3\\-shard\\-plan (1),\n.BR k3\\-shard\\-convert (1)\n", out);
}
