/* Purpose: the k3-shard program: parse, dispatch, report, exit.
 * Owns: the process: standard streams, signals, exit code.
 * Threads: the main thread; where its stack is too small, the command has one of its own.
 * Errors: prints the one it is given; its own is a failed write to standard output.
 * Invariant: exit 0 means that the command succeeded and that its whole result reached stdout. */
#include "cmds.h"
#include "next_step.h"
#include "stop.h"
#include "text.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A closed standard stream would give its number to the next file opened, and our talk would land
 * in a shard.  Opened the wrong way round, so that using it still fails. */
static void fill_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0)
                _exit(1);
}

static void ignore_write_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL); /* a closed pipe is a write error, told like any other */
    sigaction(SIGXFSZ, &action, NULL); /* so is a file beyond ulimit -f */
}

static void put_error_object(const struct k3_err *err)
{
    struct k3_text text;
    k3_text_init(&text);
    k3_text_puts(&text, "{\"error\":");
    k3_text_put_json(&text, k3_rc_name(err->rc));
    k3_text_putf(&text, ",\"code\":%d,\"message\":", k3_exit_code(err->rc));
    k3_text_put_json(&text, err->text);
    k3_text_puts(&text, ",\"file\":");
    if (err->file[0])
        k3_text_put_json(&text, err->file);
    else
        k3_text_puts(&text, "null");
    if (err->offset >= 0)
        k3_text_putf(&text, ",\"offset\":%lld}", (long long)err->offset);
    else
        k3_text_puts(&text, ",\"offset\":null}");
    if (!text.failed)
        puts(text.data);
    k3_text_fini(&text);
}

/* Flush and close stdout; a result that was not written whole is a failure. */
static int close_stdout(struct k3_err *err)
{
    bool failed = ferror(stdout);
    errno = 0;
    if (fflush(stdout) || failed || (fclose(stdout) && errno != EBADF))
        return k3_fail_sys(err, errno ? errno : EIO, "cannot write the result to standard output");
    return 0;
}

static void put_error(const struct k3_opts *opts, const struct k3_err *err)
{
    const char *command = opts->command ? opts->command->name : NULL;
    fprintf(stderr, "k3-shard: %s%s%s\n", command ? command : "", command ? ": " : "", err->text);
}

/* ---- the command ---- */

/* The deepest calls of a conversion take a little more than 64 KiB. */
#define COMMAND_STACK_BYTES_MIN ((rlim_t)1 << 20)

struct call {
    const struct k3_opts *opts;
    struct k3_err *err;
    sigset_t signals; /* blocked while the command runs */
    int rc;
};

static void *run_call(void *context)
{
    struct call *call = context;
    pthread_sigmask(SIG_SETMASK, &call->signals, NULL);
    call->rc = call->opts->command->run(call->opts, call->err);
    return NULL;
}

/* The stack of the main thread ends where ulimit -s says: a command that could meet that end runs
 * on a thread, and signals go there. */
static int run_command(const struct k3_opts *opts, struct k3_err *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= COMMAND_STACK_BYTES_MIN)
        return opts->command->run(opts, err);
    struct call call = {.opts = opts, .err = err};
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &call.signals);
    pthread_t thread;
    int sys_errno = k3_thread_start(&thread, run_call, &call);
    if (!sys_errno)
        pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, &call.signals, NULL);
    if (sys_errno)
        return k3_fail_sys(err, sys_errno, "cannot make a thread for the command");
    return call.rc;
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    ignore_write_signals();
    k3_stop_install();

    struct k3_opts opts;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_opts_parse(argc, argv, &opts, &err);
    if (rc == 0)
        rc = run_command(&opts, &err);
    if (rc && !err.rc)
        k3_fail(&err, rc, "failed without a reason given");
    k3_add_next_step(&err);
    k3_add_command_step(&opts, &err);
    if (rc) {
        put_error(&opts, &err);
        if (opts.json && !k3_result_is_printed())
            put_error_object(&err);
    }

    struct k3_err output_err;
    k3_err_init(&output_err);
    if (close_stdout(&output_err)) {
        k3_add_next_step(&output_err);
        put_error(&opts, &output_err);
        rc = rc ? rc : output_err.rc;
    }
    k3_opts_fini(&opts);
    return k3_exit_code(rc);
}
