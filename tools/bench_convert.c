/* Purpose: how fast convert is on a disk, beside copying the same files there.
 * Owns: a directory below --scratch: a synthetic checkpoint, its copy, the shard set.
 * Threads: the main thread; convert has its workers.
 * Errors: those of synth and convert; K3_EUNSUPPORTED where there is not enough room.
 * Invariants: both jobs begin with a source that is not in the page cache and end when what they
 * wrote is on the disk and was read from there; the directory is removed, whatever happened, and
 * where we are killed by the next bench. */
#include "advice.h"
#include "bench.h"
#include "convert.h"
#include "fs.h"
#include "mem.h"
#include "progress.h"
#include "stop.h"
#include "synth.h"
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define SOURCE_NAME  "checkpoint"
#define COPY_NAME    "copy"
#define SHARDS_NAME  "shards"
#define STAGED_NAME  "shards/.k3-partial"
#define COPY_DEPTH   16u
#define NAME_BYTES   64 /* of the directory below --scratch */
#define NAME_PREFIX  "k3-bench-"
#define TOKEN_DIGITS 16u /* behind it */
/* The checkpoint, and its copy or the set: TP8 writes 1.65 times what it reads. */
#define ROOM_TIMES 3u
#define TP         8u /* as convert cuts by default */

_Static_assert(sizeof STAGED_NAME == sizeof SHARDS_NAME + sizeof K3_PARTIAL_NAME,
               "SHARDS_NAME/K3_PARTIAL_NAME");

/* In the order of removal. */
static const char *const folder[] = {STAGED_NAME, SHARDS_NAME, COPY_NAME, SOURCE_NAME, ""};

/* "SCRATCH/name" as malloc; NULL without memory. */
static char *path_of(const struct k3_bench *bench, const char *name)
{
    size_t bytes = strlen(bench->scratch) + strlen(name) + 2;
    char *path = malloc(bytes);
    if (path)
        snprintf(path, bytes, "%s/%s", bench->scratch, name);
    return path;
}

static int open_dir(const struct k3_bench *bench, const char *name, bool create, struct k3_dir *dir,
                    struct k3_err *err)
{
    char *path = path_of(bench, name);
    int rc = path ? k3_dir_open(path, create, dir, err)
                  : k3_fail(err, K3_ENOMEM, "no memory for a path");
    free(path);
    return rc;
}

/* The files of one folder, and the folder. */
static void remove_folder(const struct k3_bench *bench, const char *name)
{
    struct k3_dir dir;
    char **names = NULL;
    uint32_t count = 0;
    if (open_dir(bench, name, false, &dir, NULL))
        return;
    if (k3_dir_list(&dir, &names, &count, NULL) == 0)
        for (uint32_t i = 0; i < count; i++)
            (void)unlinkat(dir.fd, names[i], 0);
    k3_names_free(names, count);
    char *path = path_of(bench, name);
    if (path)
        (void)rmdir(path);
    free(path);
    k3_dir_close(&dir);
}

/* All of the scratch directory; false, with a notice, where something of it stays. */
static bool remove_scratch(const struct k3_bench *bench)
{
    for (size_t i = 0; i < sizeof folder / sizeof *folder; i++)
        remove_folder(bench, folder[i]);
    if (access(bench->scratch, F_OK))
        return true;
    fprintf(stderr, "notice: %s could not be removed whole: remove it\n",
            k3_printable(bench->scratch).s);
    return false;
}

void k3_bench_scratch_close(struct k3_bench *bench)
{
    if (!bench->scratch)
        return;
    (void)remove_scratch(bench);
    close(bench->scratch_fd); /* the lock goes last: nobody else removes what we do */
    free(bench->scratch);
    bench->scratch = NULL;
}

/* ---- what a killed bench left ---- */

static bool is_scratch_name(const char *name)
{
    size_t prefix = strlen(NAME_PREFIX);
    return strncmp(name, NAME_PREFIX, prefix) == 0 && strlen(name) == prefix + TOKEN_DIGITS &&
           strspn(name + prefix, "0123456789abcdef") == TOKEN_DIGITS;
}

/* Another user may have put a link there, or a directory with links in it, to have us remove what
 * they lead to. */
static bool is_own(const struct k3_dir *parent, const char *name)
{
    struct stat stat;
    return fstatat(parent->fd, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(stat.st_mode) &&
           stat.st_uid == geteuid();
}

/* Who makes a scratch directory holds its lock: one that can be locked is of nobody. */
static void sweep(const struct k3_bench *bench, const struct k3_dir *parent, const char *name)
{
    struct k3_bench left = {.opts = bench->opts};
    struct k3_dir dir;
    bool is_free = false;
    int sys_errno = 0;
    if (!is_own(parent, name) || k3_dir_open_at(parent, name, false, &dir, NULL))
        return;
    is_free = flock(dir.fd, LOCK_EX | LOCK_NB) == 0;
    sys_errno = is_free ? 0 : errno;
    left.scratch = dir.path;
    if (is_free && remove_scratch(&left) && !bench->opts->quiet)
        fprintf(stderr, "notice: removed %s, which a bench that was killed had left\n",
                k3_printable(dir.path).s);
    else if (!is_free && sys_errno != EWOULDBLOCK) /* no locks here: it may be at work */
        fprintf(stderr, "notice: %s is of another bench: remove it where none runs\n",
                k3_printable(dir.path).s);
    k3_dir_close(&dir);
}

static void sweep_all(const struct k3_bench *bench, const struct k3_dir *parent)
{
    char **names = NULL;
    uint32_t count = 0;
    if (k3_dir_list(parent, &names, &count, NULL))
        return;
    for (uint32_t i = 0; i < count; i++)
        if (is_scratch_name(names[i]))
            sweep(bench, parent, names[i]);
    k3_names_free(names, count);
}

/* Layers of real size where --size holds them, else the tiny model. */
static int write_checkpoint(struct k3_bench *bench, struct k3_err *err)
{
    struct k3_synth *synth = NULL;
    struct k3_synth_options options = {.preset = K3_SYNTH_LAYER,
                                       .layer_count = K3_SYNTH_LAYER_COUNT_MIN,
                                       .expert_count = K3_SYNTH_EXPERT_STEP,
                                       .stop = k3_stop_requested};
    uint64_t room = 0;
    int rc = k3_synth_open(&options, &synth, err);
    if (!rc && k3_synth_totals(synth)->tensor_bytes > bench->opts->size_bytes) {
        k3_synth_close(synth);
        options = (struct k3_synth_options){.preset = K3_SYNTH_TINY, .stop = k3_stop_requested};
        if (!bench->opts->quiet)
            fprintf(stderr, "notice: --size holds no layers of real size: convert and copy are "
                            "measured on the tiny model, and say little\n");
        rc = k3_synth_open(&options, &synth, err);
    }
    if (rc)
        return rc;
    struct k3_dir dir;
    char *path = path_of(bench, SOURCE_NAME);
    uint64_t bytes = k3_synth_totals(synth)->tensor_bytes;
    rc = path ? open_dir(bench, "", false, &dir, err)
              : k3_fail(err, K3_ENOMEM, "no memory for a path");
    if (rc)
        goto out;
    rc = k3_dir_free_bytes(&dir, &room, err);
    if (!rc && room / ROOM_TIMES < bytes)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "--scratch %s: %" PRIu64 " bytes are needed there, %" PRIu64
                     " are free: a smaller --size makes a smaller checkpoint",
                     bench->opts->scratch, bytes * ROOM_TIMES, room);
    if (!rc)
        rc = k3_synth_write(synth, path, err);
    bench->copy_bytes = bytes;
    k3_dir_close(&dir);
out:
    free(path);
    k3_synth_close(synth);
    return rc;
}

/* A directory of its own, locked, so that another bench does not take it for a left one. */
static int make_scratch(struct k3_bench *bench, const struct k3_dir *parent, struct k3_err *err)
{
    struct k3_dir made;
    char name[NAME_BYTES] = NAME_PREFIX;
    int rc = k3_random_hex(name + strlen(name), TOKEN_DIGITS, err);
    if (!rc)
        rc = k3_dir_open_at(parent, name, true, &made, err);
    if (rc)
        return rc;
    /* A file system without locks is no reason to stop: its sweep removes nothing. */
    if (flock(made.fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        rc = k3_fail(err, K3_EUNSUPPORTED, "%s: another bench took it: run bench again", made.path);
        k3_dir_close(&made);
        return rc;
    }
    bench->scratch = made.path; /* both are the bench's now */
    bench->scratch_fd = made.fd;
    return 0;
}

int k3_bench_scratch_open(struct k3_bench *bench, struct k3_err *err)
{
    struct k3_dir parent;
    int rc = k3_dir_open(bench->opts->scratch, false, &parent, err);
    if (rc)
        return rc;
    sweep_all(bench, &parent);
    rc = make_scratch(bench, &parent, err);
    k3_dir_close(&parent);
    return rc ? rc : write_checkpoint(bench, err);
}

/* ---- files of a folder ---- */

struct files {
    struct k3_dir dir;
    char **names;
    int *fds;
    uint64_t *bytes;
    uint32_t name_count, count; /* listed; opened */
};

static void close_files(struct files *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        close(files->fds[i]);
    free(files->fds);
    free(files->bytes);
    k3_names_free(files->names, files->name_count);
    k3_dir_close(&files->dir);
}

static int open_files(const struct k3_bench *bench, const char *name, struct files *files,
                      struct k3_err *err)
{
    memset(files, 0, sizeof *files);
    int rc = open_dir(bench, name, false, &files->dir, err);
    if (rc)
        return rc;
    rc = k3_dir_list(&files->dir, &files->names, &files->name_count, err);
    files->fds = calloc((size_t)files->name_count + 1, sizeof *files->fds);
    files->bytes = calloc((size_t)files->name_count + 1, sizeof *files->bytes);
    if (!rc && (!files->fds || !files->bytes))
        rc = k3_fail(err, K3_ENOMEM, "no memory for a list of files");
    while (!rc && files->count < files->name_count) {
        struct stat stat;
        rc = k3_file_open(&files->dir, files->names[files->count], false, &files->fds[files->count],
                          &stat, err);
        if (!rc)
            files->bytes[files->count++] = (uint64_t)stat.st_size;
    }
    if (rc)
        close_files(files);
    return rc;
}

/* Out of the page cache: synth and copies have synced them, so clean pages go. */
static int cool_source(const struct k3_bench *bench, struct k3_err *err)
{
    struct files files;
    int rc = open_files(bench, SOURCE_NAME, &files, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < files.count; i++) {
        (void)k3_file_sync(files.fds[i], files.names[i], NULL);
        k3_file_drop(files.fds[i], 0, files.bytes[i]);
    }
    close_files(&files);
    return 0;
}

/* ---- copy, sync, read back ---- */

static int copy_file(const struct files *from, uint32_t index, const struct k3_dir *to,
                     void *buffer, struct k3_err *err)
{
    int fd;
    const char *name = from->names[index];
    int rc = k3_file_create(to, name, &fd, err);
    if (rc)
        return rc;
    for (uint64_t at = 0; !rc && at < from->bytes[index]; at += K3_BENCH_CHUNK_BYTES) {
        uint64_t left = from->bytes[index] - at;
        size_t bytes = left < K3_BENCH_CHUNK_BYTES ? (size_t)left : K3_BENCH_CHUNK_BYTES;
        rc = k3_file_read(from->fds[index], name, buffer, bytes, at, err);
        if (!rc)
            rc = k3_file_write(fd, name, buffer, bytes, at, err);
        if (!rc && k3_stop_requested())
            rc = k3_fail(err, K3_ECANCELED, "stopped on request");
    }
    if (!rc)
        rc = k3_file_sync(fd, name, err);
    close(fd);
    return rc;
}

static int copy_all(const struct k3_bench *bench, uint64_t *bytes, struct k3_err *err)
{
    struct files from;
    struct k3_dir to;
    void *buffer = NULL;
    int rc = open_files(bench, SOURCE_NAME, &from, err);
    if (rc)
        return rc;
    *bytes = 0;
    rc = k3_mem_alloc(K3_BENCH_CHUNK_BYTES, &buffer, err);
    if (!rc)
        rc = open_dir(bench, COPY_NAME, true, &to, err);
    if (rc)
        goto out;
    for (uint32_t i = 0; !rc && i < from.count; i++) {
        rc = copy_file(&from, i, &to, buffer, err);
        *bytes += from.bytes[i];
    }
    k3_dir_close(&to);
out:
    k3_mem_free(buffer, K3_BENCH_CHUNK_BYTES);
    close_files(&from);
    return rc;
}

static int read_copy(const struct k3_bench *bench, struct k3_err *err)
{
    struct files files;
    struct k3_bench_rate rate;
    uint64_t count = 0;
    int rc = open_files(bench, COPY_NAME, &files, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < files.count; i++)
        count += k3_div_up(files.bytes[i], K3_BENCH_CHUNK_BYTES);
    struct k3_bench_chunk *chunks = calloc(count + 1, sizeof *chunks);
    if (!chunks) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for %" PRIu64 " chunks", count);
        goto out;
    }
    count = 0;
    for (uint32_t i = 0; i < files.count; i++)
        for (uint64_t at = 0; at < files.bytes[i]; at += K3_BENCH_CHUNK_BYTES) {
            uint64_t left = files.bytes[i] - at;
            uint32_t bytes = left < K3_BENCH_CHUNK_BYTES ? (uint32_t)left : K3_BENCH_CHUNK_BYTES;
            chunks[count++] = (struct k3_bench_chunk){at, bytes, i};
        }
    struct k3_bench_reads reads = {.io = &k3_io_pread,
                                   .fds = files.fds,
                                   .chunks = chunks,
                                   .chunk_count = count,
                                   .fd_count = files.count,
                                   .depth = COPY_DEPTH,
                                   .is_direct = true};
    rc = k3_bench_read(&reads, &rate, err);
out:
    free(chunks);
    close_files(&files);
    return rc;
}

int k3_bench_copy(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                  struct k3_err *err)
{
    uint64_t bytes = 0;
    (void)row;
    if (!bench->scratch)
        return k3_fail(err, K3_EUNSUPPORTED, "needs --scratch DIR");
    int rc = cool_source(bench, err);
    uint64_t begin_ns = k3_now_ns();
    if (!rc)
        rc = copy_all(bench, &bytes, err);
    if (!rc)
        rc = read_copy(bench, err);
    double seconds = (double)(k3_now_ns() - begin_ns) / 1e9;
    *gb_per_s = seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
    remove_folder(bench, COPY_NAME);
    return rc;
}

/* ---- convert ---- */

static int convert(struct k3_bench *bench, struct k3_convert_report *report, struct k3_err *err)
{
    struct k3_problems problems;
    struct k3_opts layout_opts = {.tp = TP, .dp = 1, .pp = 1};
    struct k3_layout layout;
    char *source = path_of(bench, SOURCE_NAME), *shards = path_of(bench, SHARDS_NAME);
    k3_problems_init(&problems);
    int rc = source && shards ? k3_layout_from_opts(&layout_opts, &layout, err)
                              : k3_fail(err, K3_ENOMEM, "no memory for a path");
    if (rc)
        goto out;
    const char *outs[] = {shards};
    struct k3_convert_options options = {.ckpt_path = source,
                                         .layout = &layout,
                                         .outs = outs,
                                         .out_count = 1,
                                         .budget_bytes = UINT64_MAX,
                                         .quiet = true};
    rc = k3_convert(&options, report, &problems, err);
out:
    k3_problems_fini(&problems);
    free(source);
    free(shards);
    return rc;
}

/* TP8 writes more than it reads; so a rate is that of a third of what is read, written and read
 * back: for a copy the same as its bytes. */
int k3_bench_convert(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                     struct k3_err *err)
{
    struct k3_convert_report report = {0};
    (void)row;
    if (!bench->scratch)
        return k3_fail(err, K3_EUNSUPPORTED, "needs --scratch DIR");
    int rc = cool_source(bench, err);
    if (!rc)
        rc = convert(bench, &report, err);
    if (!rc && report.seconds_ns)
        *gb_per_s = ((double)report.read_bytes + 2 * (double)report.written_bytes) / 3 /
                    (double)report.seconds_ns;
    remove_folder(bench, STAGED_NAME);
    remove_folder(bench, SHARDS_NAME);
    return rc;
}
