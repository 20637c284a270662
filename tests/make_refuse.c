/* Purpose: run a program on a machine that refuses something.
 *   make_refuse RULE... -- PROGRAM ARGS...
 *   ring          io_uring_setup is refused (EPERM) by a seccomp filter
 *   direct        openat with O_DIRECT is refused (EINVAL) by a seccomp filter
 *   memlock       64 KiB of locked memory, no CAP_IPC_LOCK
 *   sysctl=FILE   FILE is read in the place of /proc/sys/kernel/io_uring_disabled (needs root)
 * Owns: nothing; it becomes the program.
 * Threads: one.
 * Errors: exit 77 and a line on stderr when a rule cannot be made here, or the use is wrong.
 * Invariant: the program starts only under all of its rules. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CANNOT        77
#define MEMLOCK_BYTES 65536
/* Low half of the third argument: what runs these tests is little-endian. */
#define FLAGS_OFFSET ((uint32_t)(offsetof(struct seccomp_data, args) + 2 * sizeof(uint64_t)))

static int cannot(const char *what)
{
    fprintf(stderr, "make_refuse: %s: %s\n", what, strerror(errno));
    return CANNOT;
}

static int set_filter(struct sock_filter *code, unsigned short count)
{
    struct sock_fprog program = {count, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0))
        return cannot("seccomp");
    return 0;
}

static int refuse_ring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return set_filter(code, sizeof code / sizeof *code);
}

static int refuse_direct(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FLAGS_OFFSET),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return set_filter(code, sizeof code / sizeof *code);
}

static int limit_memlock(void)
{
    const struct rlimit limit = {MEMLOCK_BYTES, MEMLOCK_BYTES};
    if (setrlimit(RLIMIT_MEMLOCK, &limit))
        return cannot("RLIMIT_MEMLOCK");
    /* Who has no right to drop it does not have it either. */
    if (prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) && errno != EPERM)
        return cannot("CAP_IPC_LOCK");
    return 0;
}

static int replace_sysctl(const char *path)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return cannot("mount namespace");
    if (mount(path, "/proc/sys/kernel/io_uring_disabled", NULL, MS_BIND, NULL))
        return cannot(path);
    return 0;
}

static int apply(const char *rule)
{
    if (strcmp(rule, "ring") == 0)
        return refuse_ring();
    if (strcmp(rule, "direct") == 0)
        return refuse_direct();
    if (strcmp(rule, "memlock") == 0)
        return limit_memlock();
    if (strncmp(rule, "sysctl=", 7) == 0)
        return replace_sysctl(rule + 7);
    errno = EINVAL;
    return cannot(rule);
}

int main(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        int rc = apply(argv[i]);
        if (rc)
            return rc;
    }
    if (i + 1 >= argc) {
        fprintf(stderr, "usage: make_refuse RULE... -- PROGRAM ARGS...\n");
        return CANNOT;
    }
    execv(argv[i + 1], argv + i + 1);
    return cannot(argv[i + 1]);
}
