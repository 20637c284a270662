/* Purpose: say what to do where the system refused: libraries name the place and the reason, the
 * step is the same for all of them and stands here.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: none.
 * Invariant: a text that says its own step does not end with the system's reason, and is kept. */
#include "next_step.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What shells give by default; a conversion to tens of ranks with a few jobs stays below it. */
#define FILE_LIMIT_USUAL 1024u
#define STEP_BYTES       256u

static const struct {
    int sys_errno;
    const char *step;
} steps[] = {
    {ENOSPC, "make room on its file system, then run the same command again"},
    {EDQUOT, "free some of your quota or have it raised, then run the same command again"},
    {EROFS, "give a directory on another file system"},
    {ENOMEM, "ask for less (fewer --ranks, --jobs, --memory), or raise the limit of this shell or "
             "container"},
    {ENFILE, "this machine has no file handle left: raise fs.file-max, or ask for fewer --jobs"},
    {EFBIG, "a limit of this shell (ulimit -f) or the file system allows no larger file: raise it, "
            "or give a directory on another"},
    {EIO, "the drive or its file system failed: its log (dmesg) says how"},
    {EAGAIN, "a limit on threads is reached: raise it (ulimit -u, or the pids limit of the "
             "container), or ask for less (--jobs, --ranks)"},
    {ESTALE, "its server lost or replaced the file: mount it again, then run the same command "
             "again"},
};

/* A failure that was told within another one has lost its errno, and its reason stands last. */
static bool ends_with_reason(const struct k3_err *err, int sys_errno)
{
    const char *reason = strerror(sys_errno);
    size_t text_bytes = strlen(err->text), reason_bytes = strlen(reason);
    return text_bytes > reason_bytes && strcmp(err->text + text_bytes - reason_bytes, reason) == 0;
}

static void find_step(const struct k3_err *err, char step[STEP_BYTES])
{
    struct rlimit limit;
    step[0] = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (ends_with_reason(err, steps[i].sys_errno))
            snprintf(step, STEP_BYTES, "%s", steps[i].step);
    if (ends_with_reason(err, EACCES))
        snprintf(step, STEP_BYTES,
                 "user %u has no right to it: ls -ld shows whose it and its folders are",
                 (unsigned)geteuid());
    if (ends_with_reason(err, EMFILE) && !getrlimit(RLIMIT_NOFILE, &limit))
        snprintf(step, STEP_BYTES, "the limit is %llu files, raise it to %llu (ulimit -n)",
                 (unsigned long long)limit.rlim_cur,
                 limit.rlim_cur < FILE_LIMIT_USUAL ? (unsigned long long)FILE_LIMIT_USUAL
                                                   : (unsigned long long)limit.rlim_cur * 2);
}

/* What a command that was stopped leaves behind, and what to do then.  Those that are not here say
 * it themselves: they keep what is finished, or remove what they wrote. */
static const char *const stop_steps[K3_CMD_COUNT] = {
    [K3_CMD_VERIFY] = "there is no verdict and nothing is kept: run the same command again",
    [K3_CMD_LOAD] =
        "nothing is handed out, what was read is not proved: run the same command again",
    [K3_CMD_BENCH] = "no figures are kept: run the same command again (a smaller --size or fewer "
                     "--rounds take less time)",
    [K3_CMD_INSPECT] = "nothing was changed: run the same command again",
};

void k3_add_stop_step(const struct k3_opts *opts, struct k3_err *err)
{
    const char *step = opts->command ? stop_steps[opts->command->id] : NULL;
    if (err->rc != K3_ECANCELED || !step)
        return;
    const char *object = opts->args.count ? opts->args.item[0] : "";
    struct k3_err told = *err;
    told.rc = 0;
    k3_fail(&told, K3_ECANCELED, "%s%s%s: %s", object, *object ? ": " : "", err->text, step);
    *err = told;
}

void k3_add_next_step(struct k3_err *err)
{
    char step[STEP_BYTES];
    if (!err->rc)
        return;
    find_step(err, step);
    size_t used_bytes = strlen(err->text);
    if (step[0])
        snprintf(err->text + used_bytes, sizeof err->text - used_bytes, ": %s", step);
}
