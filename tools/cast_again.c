/* Purpose: sums of the casts of a finished set, from its report (FORMAT.md 4.9), so that a command
 * that finds the set says the same as the one that made it.
 * Owns: the file and a window of it while it is read.
 * Threads: one.
 * Errors: K3_ECORRUPT (a line that no cast of this plan wrote), K3_EIO, K3_ENOMEM.
 * Invariant: lines are summed in the order of the file, as seal did. */
#include "cast_again.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (16u << 10) /* read at once: many lines */
#define VALUE_BYTES 32u         /* of a member that is a word */

/* What stands behind `"name":` in a line; NULL: no such member. */
static const char *member(const char *line, const char *name)
{
    char key[VALUE_BYTES];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(line, key);
    return at ? at + strlen(key) : NULL;
}

static uint64_t integer(const char *line, const char *name)
{
    const char *at = member(line, name);
    return at ? strtoull(at, NULL, 10) : 0;
}

/* Written with 17 digits, so it is the number that was written. */
static double number(const char *line, const char *name)
{
    const char *at = member(line, name);
    return at ? strtod(at, NULL) : 0;
}

static bool format(const char *line, const char *name, uint8_t *fmt)
{
    const char *at = member(line, name);
    enum k3_qfmt found;
    if (!at || *at != '"' || !k3_qfmt_find(at + 1, strcspn(at + 1, "\""), &found))
        return false;
    *fmt = (uint8_t)found;
    return true;
}

static bool decode(const char *line, const struct k3_plan *plan, struct k3_cast_row *row)
{
    const char *name = member(line, "tensor");
    *row = (struct k3_cast_row){.x2 = number(line, "sum_x2"),
                                .err2 = number(line, "sum_error2"),
                                .max_abs_error = number(line, "max_abs_error"),
                                .value_count = integer(line, "values"),
                                .group_count = integer(line, "groups"),
                                .zero_groups = integer(line, "zero_groups"),
                                .saturated_groups = integer(line, "saturated_groups"),
                                .breach_groups = integer(line, "out_of_window_groups")};
    if (!member(line, "sum_x2") || !member(line, "values") || !member(line, "groups"))
        return false; /* what no line lacks */
    if (!name || *name != '"' || !format(line, "from", &row->from) || !format(line, "to", &row->to))
        return false;
    row->slot = k3_plan_find(plan, name + 1, strcspn(name + 1, "\""));
    return row->slot != K3_SLOT_NONE && !k3_cast_row_check(row) && !k3_cast_row_misfit(plan, row);
}

struct lines {
    const struct k3_plan *plan;
    struct k3_cast_summary *casts;
    uint64_t count; /* lines that were seen */
    bool has_end;   /* the totals were */
};

/* False: a line that is none of this report. */
static bool take_line(struct lines *lines, const char *line)
{
    struct k3_cast_row row;
    lines->count++;
    if (strstr(line, "\"totals\":"))
        lines->has_end = true;
    if (lines->has_end || lines->count == 1)
        return true; /* seal's own sums, and what the report is of */
    if (!decode(line, lines->plan, &row))
        return false;
    k3_cast_summary_add(lines->casts, lines->plan, &row);
    return true;
}

/* The whole lines of data[bytes], which has room for a NUL; bytes used, or SIZE_MAX. */
static size_t take_lines(struct lines *lines, char *data, size_t bytes)
{
    size_t used = 0;
    for (char *end; (end = memchr(data + used, '\n', bytes - used));) {
        *end = 0;
        if (!take_line(lines, data + used))
            return SIZE_MAX;
        used = (size_t)(end - data) + 1;
    }
    return used;
}

static int read_lines(const struct k3_dir *dir, int fd, uint64_t file_bytes, struct lines *lines,
                      struct k3_err *err)
{
    char *data = malloc(PIECE_BYTES);
    size_t have = 0, used = 0;
    int rc = data ? 0 : k3_fail(err, K3_ENOMEM, "no memory for " K3_CAST_REPORT_NAME);
    for (uint64_t at = 0; !rc && at < file_bytes && used != SIZE_MAX;) {
        size_t more = PIECE_BYTES - have;
        more = more < file_bytes - at ? more : (size_t)(file_bytes - at);
        if (!more)
            break; /* a line as long as that: none of ours */
        rc = k3_file_read(fd, K3_CAST_REPORT_NAME, data + have, more, at, err);
        if (rc)
            break;
        at += more;
        have += more;
        used = take_lines(lines, data, have);
        if (used != SIZE_MAX) {
            have -= used;
            memmove(data, data + used, have);
        }
    }
    free(data);
    if (!rc && (used == SIZE_MAX || !lines->has_end))
        rc = k3_fail_at(
            err, K3_ECORRUPT, K3_CAST_REPORT_NAME, -1,
            "%s/" K3_CAST_REPORT_NAME ": line %" PRIu64
            ": wanted a cast of this set, or the totals: `k3-shard verify %s` says what "
            "is damaged",
            dir->path, lines->count, dir->path);
    return rc;
}

int k3_casts_of_set(const struct k3_dir *dir, const struct k3_plan *plan,
                    struct k3_cast_summary *casts, struct k3_err *err)
{
    struct lines lines = {.plan = plan, .casts = casts};
    struct stat stat;
    int fd = -1;
    k3_cast_summary_init(casts);
    if (!k3_policy_casts(&plan->policy, &plan->config))
        return 0;
    int rc = k3_file_open(dir, K3_CAST_REPORT_NAME, false, &fd, &stat, err);
    if (!rc)
        rc = read_lines(dir, fd, (uint64_t)stat.st_size, &lines, err);
    if (fd >= 0)
        close(fd);
    return rc;
}
