/* Purpose: the error value and the list of problems.
 * Owns: the texts of a problem list.
 * Threads: a value belongs to one thread at a time.
 * Errors: none of its own.
 * Invariant: the first failure is kept; no path can turn a failure into success or change its
 * text. */
#include "k3_err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void k3_err_init(struct k3_err *err)
{
    memset(err, 0, sizeof *err);
    err->offset = -1;
}

void k3_make_printable(char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
        else if ((unsigned char)p[0] == 0xc2 && (unsigned char)p[1] >= 0x80 &&
                 (unsigned char)p[1] < 0xa0) /* U+0080 to U+009F */
            p[0] = p[1] = '?';
}

static int record(struct k3_err *err, int rc, int sys_errno, const char *format, va_list args)
{
    if (!err || err->rc)
        return rc;
    err->rc = rc;
    err->sys_errno = sys_errno;
    err->offset = -1;
    int n = vsnprintf(err->text, sizeof err->text, format, args);
    if (sys_errno && n >= 0 && (size_t)n < sizeof err->text) {
        char room[128];
        const char *reason = strerror_r(sys_errno, room, sizeof room); /* the GNU form */
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", reason);
    }
    k3_make_printable(err->text);
    return rc;
}

int k3_fail(struct k3_err *err, int rc, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    record(err, rc, 0, format, args);
    va_end(args);
    return rc;
}

int k3_fail_sys(struct k3_err *err, int sys_errno, const char *format, ...)
{
    int rc = sys_errno == ENOMEM ? K3_ENOMEM : K3_EIO;
    va_list args;
    va_start(args, format);
    record(err, rc, sys_errno, format, args);
    va_end(args);
    return rc;
}

int k3_fail_at(struct k3_err *err, int rc, const char *file, int64_t offset, const char *format,
               ...)
{
    if (!err || err->rc)
        return rc;
    va_list args;
    va_start(args, format);
    record(err, rc, 0, format, args);
    va_end(args);
    const char *slash = strrchr(file, '/');
    snprintf(err->file, sizeof err->file, "%.*s", (int)sizeof err->file - 1,
             slash ? slash + 1 : file);
    err->offset = offset;
    return rc;
}

int k3_fail_as(struct k3_err *err, const struct k3_err *other)
{
    if (err && !err->rc)
        *err = *other;
    return other->rc;
}

int k3_exit_code(int rc)
{
    switch (rc) {
    case K3_OK:
        return 0;
    case K3_EUSAGE:
        return 2;
    case K3_EFORMAT:
    case K3_ECORRUPT:
    case K3_EVERSION:
    case K3_ELIMIT:
        return 3;
    case K3_EUNSUPPORTED:
        return 4;
    default:
        return 1;
    }
}

const char *k3_rc_name(int rc)
{
    static const char *const name[] = {"ok",          "usage",   "no-memory", "io",
                                       "format",      "corrupt", "version",   "limit",
                                       "unsupported", "device",  "canceled"};
    return rc <= 0 && rc >= K3_ECANCELED ? name[-rc] : "unknown";
}

void k3_problems_init(struct k3_problems *problems)
{
    memset(problems, 0, sizeof *problems);
}

void k3_problems_fini(struct k3_problems *problems)
{
    for (uint32_t i = 0; i < problems->kept_count; i++)
        free(problems->text[i]);
    free(problems->text);
    memset(problems, 0, sizeof *problems);
}

void k3_problems_add(struct k3_problems *problems, const char *format, ...)
{
    problems->count++;
    if (problems->kept_count >= K3_PROBLEMS_KEPT_MAX)
        return;
    if (problems->kept_count == problems->kept_cap) {
        uint32_t cap = problems->kept_cap ? problems->kept_cap * 2 : 16;
        char **text = realloc(problems->text, cap * sizeof *text);
        if (!text)
            return;
        problems->text = text;
        problems->kept_cap = cap;
    }
    char line[K3_ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    k3_make_printable(line);
    char *copy = strdup(line);
    if (copy)
        problems->text[problems->kept_count++] = copy;
}
