/* Purpose: say what to do where the system refused: libraries name the place and the reason, the
 * step is the same for all of them and stands here.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: none.
 * Invariant: a text that says its own step does not end with the system's reason, and is kept. */
#include "next_step.h"
#include "text.h"

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

static bool ends_with(const char *text, const char *end)
{
    size_t text_bytes = strlen(text), end_bytes = strlen(end);
    return text_bytes > end_bytes && strcmp(text + text_bytes - end_bytes, end) == 0;
}

/* A failure that was told within another one has lost its errno, and its reason stands last. */
static bool ends_with_reason(const struct k3_err *err, int sys_errno)
{
    return ends_with(err->text, strerror(sys_errno));
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

/* Of each command: what it takes, for a path that is not there, and what is left where a signal
 * stopped it.  Those without the latter say it themselves: they keep what is finished, or remove
 * what they wrote. */
static const struct {
    const char *takes, *left;
} commands[K3_CMD_COUNT] = {
    [K3_CMD_PLAN] = {"give the folder that holds config.json and the *.safetensors files", NULL},
    [K3_CMD_CONVERT] = {"give the folder that holds config.json and the *.safetensors files", NULL},
    [K3_CMD_SEAL] = {"give the --out directories that convert had", NULL},
    [K3_CMD_VERIFY] = {"give a checkpoint's folder, all directories of a shard set, or a file",
                       "there is no verdict and nothing is kept: run the same command again"},
    [K3_CMD_INSPECT] = {"give a checkpoint's folder, one of a shard set, or a file",
                        "nothing was changed: run the same command again"},
    [K3_CMD_EXPORT] = {"give all directories of a shard set, the --out of convert", NULL},
    [K3_CMD_LOAD] = {"give all directories of a shard set, the --out of convert",
                     "nothing is handed out, what was read is not proved: run the same command "
                     "again"},
    [K3_CMD_BENCH] = {"give all directories of a shard set, the --out of convert",
                      "no figures are kept: run the same command again (a smaller --size or fewer "
                      "--rounds take less time)"},
};

static void add_left(const struct k3_opts *opts, struct k3_err *err)
{
    const char *left = commands[opts->command->id].left;
    const char *object = opts->args.count ? opts->args.item[0] : "";
    if (!left)
        return;
    struct k3_err told = *err;
    told.rc = 0; /* k3_fail keeps the first text, and this one is told anew */
    k3_fail(&told, K3_ECANCELED, "%s%s%s: %s", object, *object ? ": " : "", err->text, left);
    *err = told;
}

/* Is a failure about one of these paths itself, as k3_fail_path tells it? */
static const char *find_path(const struct k3_strings *paths, const struct k3_err *err)
{
    for (uint32_t i = 0; i < paths->count; i++) {
        size_t bytes = strlen(paths->item[i]);
        if (!strncmp(err->text, paths->item[i], bytes) &&
            !strncmp(err->text + bytes, ": cannot ", 9))
            return paths->item[i];
    }
    return NULL;
}

static void add_path(const struct k3_opts *opts, struct k3_err *err)
{
    const enum k3_command_id id = opts->command->id;
    const bool is_gone = ends_with(err->text, " is not there");
    size_t used_bytes = strlen(err->text);
    char *end = err->text + used_bytes;
    const size_t room = sizeof err->text - used_bytes;
    const char *target = opts->to;
    const struct k3_strings to = {.item = &target, .count = target != NULL};
    const char *path = find_path(&opts->args, err);
    const bool is_wanted = path || id == K3_CMD_SEAL; /* and no place to write to */
    if (!path)
        path = find_path(&opts->out, err);
    if (!path)
        path = find_path(&to, err);
    if (!path || (!is_gone && !ends_with(err->text, " is a file, not a directory") &&
                  !ends_with_reason(err, ENOENT)))
        return;
    const char *slash = strrchr(path, '/');
    char folder[K3_ERR_TEXT_BYTES];
    if (strstr(err->text, ": cannot make the directory: ")) {
        if (is_gone && slash && (size_t)(slash - path) < sizeof folder) {
            snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
            snprintf(end, room, ": mkdir -p %s, then run the same command again",
                     k3_quoted(folder).s);
        }
    } else if (!is_wanted) {
        snprintf(end, room, ": give another path");
    } else if (commands[id].takes) {
        snprintf(end, room, ": %s", commands[id].takes);
    }
}

void k3_add_command_step(const struct k3_opts *opts, struct k3_err *err)
{
    if (!opts->command)
        return;
    if (err->rc == K3_ECANCELED)
        add_left(opts, err);
    else if (err->rc == K3_EIO)
        add_path(opts, err);
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
