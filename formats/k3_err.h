/* The one error value, and the one way to make it.
 * Every fallible function returns 0 or a negative enum k3_rc and fills *err; the first message
 * wins. Text names the object and the place, what was wanted and found, and the next step; no
 * newline, no prefix. */
#ifndef K3_ERR_H
#define K3_ERR_H

#include <stdarg.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum k3_rc {
    K3_OK = 0,
    K3_EUSAGE = -1,   /* the caller asked in a wrong form (exit 2) */
    K3_ENOMEM = -2,   /* no memory (exit 1) */
    K3_EIO = -3,      /* a system call failed, a path is not there (exit 1) */
    K3_EFORMAT = -4,  /* bytes are not of the form they must have (exit 3) */
    K3_ECORRUPT = -5, /* bytes are not the ones that were recorded, or some are missing (exit 3) */
    K3_EVERSION = -6, /* a version this build does not know (exit 3) */
    K3_ELIMIT = -7,   /* a count or size beyond its named limit (exit 3) */
    K3_EUNSUPPORTED = -8, /* cannot be done as asked (exit 4) */
    K3_EDEVICE = -9,      /* a device or its driver failed (exit 1) */
    K3_ECANCELED = -10    /* stopped on request (exit 1) */
};

#define K3_ERR_TEXT_BYTES 1024 /* two full paths, two digests and a sentence */
#define K3_ERR_FILE_BYTES 256  /* one file name (NAME_MAX + 1) */

struct k3_err {
    int rc;         /* 0, or the first failure's enum k3_rc */
    int sys_errno;  /* errno behind it, or 0 */
    int64_t offset; /* byte offset in file, -1 where none applies */
    char file[K3_ERR_FILE_BYTES];
    char text[K3_ERR_TEXT_BYTES];
};

#if defined(__GNUC__)
#define K3_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define K3_PRINTF(f, a)
#endif

/* Make *err empty.  err is the caller's. */
void k3_err_init(struct k3_err *err);

/* Record a failure; returns rc.  Keeps an earlier one.  err may be NULL. */
int k3_fail(struct k3_err *err, int rc, const char *format, ...) K3_PRINTF(3, 4);

/* The same for a system call: code K3_ENOMEM for ENOMEM, else K3_EIO; ": strerror" is appended. */
int k3_fail_sys(struct k3_err *err, int sys_errno, const char *format, ...) K3_PRINTF(3, 4);

/* The same with a place for machines: file (its last path component is kept) and byte offset (-1:
 * none). */
int k3_fail_at(struct k3_err *err, int rc, const char *file, int64_t offset, const char *format,
               ...) K3_PRINTF(5, 6);

/* Record the failure that another thread met, place included; returns its rc. */
int k3_fail_as(struct k3_err *err, const struct k3_err *other);

/* Names come from outside: what a terminal would act on (control characters, of UTF-8 too) becomes
 * '?', in place.  Texts of failures and problems have been through it. */
void k3_make_printable(char *text);

/* Exit code of a command for an enum k3_rc: 0, 1, 2, 3 or 4 (see enum). */
int k3_exit_code(int rc);

/* Stable spelling of a code for --json: "corrupt", "io", ... */
const char *k3_rc_name(int rc);

/* ---- Problems: findings that are collected, not returned at the first one. ---- */

#define K3_PROBLEMS_KEPT_MAX 1000 /* texts kept; later ones are counted only */

struct k3_problems {
    char **text;
    uint64_t count;      /* all that were found */
    uint32_t kept_count; /* texts held, <= K3_PROBLEMS_KEPT_MAX */
    uint32_t kept_cap;
};

void k3_problems_init(struct k3_problems *problems);
void k3_problems_fini(struct k3_problems *problems);

/* Add one sentence.  Never fails: a text that finds no memory is only counted. */
void k3_problems_add(struct k3_problems *problems, const char *format, ...) K3_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif

#endif
