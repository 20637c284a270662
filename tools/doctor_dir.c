/* Purpose: findings about a directory: file system, drive, direct reads and their rate.
 * Owns: files it opens, and a temporary file that has no name where that is possible.
 * Threads: the main thread.
 * Errors: none: what cannot be found out is a finding.
 * Invariants: nothing of the directory is changed but what a killed doctor left; the temporary file
 * is gone before the call returns; a rate is that of real reads, and holes are not taken for data.
 */
#include "bench_io.h"
#include "doctor.h"
#include "fs.h"
#include "io_direct.h"
#include "machine.h"
#include "manifest.h"
#include "sizes.h"
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fsverity.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define READ_FILE_COUNT   16u /* so many of the largest: more than one drive's worth */
#define READ_FILE_BYTES   (UINT64_C(16) << 20)  /* smaller ones say nothing about a rate */
#define READ_BYTES_MAX    (UINT64_C(8) << 30)   /* one second of a fast array */
#define RATE_BYTES_MIN    (UINT64_C(256) << 20) /* four times what is in flight, as bench says */
#define READ_NS           500000000u            /* a look, not a benchmark: that is `bench` */
#define READ_DEPTH        16u
#define TRIAL_BYTES       65536u        /* of the temporary file: one block of any file system */
#define TRIAL_PREFIX      ".k3-doctor-" /* of its name, where it needs one for a moment */
#define TRIAL_DIGITS      16u
#define FREE_BYTES_WANTED (UINT64_C(1) << 30)

/* The largest regular files of a directory. */
struct files {
    int fds[READ_FILE_COUNT];
    uint64_t bytes[READ_FILE_COUNT];
    char names[READ_FILE_COUNT][K3_NAME_BYTES_MAX + 1];
    uint32_t count;
    bool has_holes; /* the largest is stored in less than half of its size */
};

struct place {
    struct k3_dir dir;
    struct k3_machine_mount mount;
    struct k3_machine_drive drive;
    struct files files;
    bool has_mount, has_drive;
};

/* ---- which files ---- */

static void keep_file(struct files *files, const char *name, int fd, const struct stat *stat)
{
    uint64_t bytes = (uint64_t)stat->st_size;
    uint32_t at = files->count;
    while (at > 0 && files->bytes[at - 1] < bytes)
        at--;
    if (at == READ_FILE_COUNT) {
        close(fd);
        return;
    }
    if (files->count == READ_FILE_COUNT)
        close(files->fds[--files->count]);
    for (uint32_t i = files->count; i > at; i--) {
        files->fds[i] = files->fds[i - 1];
        files->bytes[i] = files->bytes[i - 1];
        memcpy(files->names[i], files->names[i - 1], sizeof files->names[i]);
    }
    files->fds[at] = fd;
    files->bytes[at] = bytes;
    snprintf(files->names[at], sizeof files->names[at], "%s", name);
    if (at == 0)
        files->has_holes = (uint64_t)stat->st_blocks * 512 < bytes / 2;
    files->count++;
}

/* Files that cannot be opened are counted. */
static uint32_t find_files(struct place *place)
{
    char **names = NULL;
    uint32_t count = 0, refused = 0;
    if (k3_dir_list(&place->dir, &names, &count, NULL))
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        struct stat stat;
        int fd;
        if (fstatat(place->dir.fd, names[i], &stat, 0) || !S_ISREG(stat.st_mode) ||
            stat.st_size == 0)
            continue;
        if (k3_file_open(&place->dir, names[i], true, &fd, &stat, NULL))
            refused++;
        else
            keep_file(&place->files, names[i], fd, &stat);
    }
    k3_names_free(names, count);
    return refused;
}

static void find_directory(struct k3_doctor *doctor, struct place *place)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "directory");
    finding->is_needed = true;
    uint32_t refused = find_files(place);
    const char *kind = k3_file_exists(&place->dir, K3_MANIFEST_NAME)  ? "a shard set"
                       : k3_file_exists(&place->dir, K3_PARTIAL_NAME) ? "an unfinished conversion"
                       : k3_file_exists(&place->dir, "model.safetensors.index.json")
                           ? "a checkpoint"
                           : "a directory";
    k3_finding_value(finding, "%s, %s", place->dir.path, kind);
    if (refused && place->files.count == 0) {
        k3_finding_missing(finding, "none of its files can be read");
        k3_finding_next(finding, "look at owner and mode: ls -l %s", k3_quoted(place->dir.path).s);
    } else if (refused) {
        k3_finding_slower(finding, "%u of its files cannot be read", refused);
        k3_finding_next(finding, "look at owner and mode: ls -l %s", k3_quoted(place->dir.path).s);
    }
}

/* ---- where it lies ---- */

static void advise_network(struct k3_finding *finding, const char *type)
{
    static const struct {
        const char *prefix, *advice;
    } words[] = {
        {"nfs", "mount with nconnect=8 (or more) and rsize=1048576; proto=rdma where there is one"},
        {"fuse", "ask whether it passes direct reads on (direct_io, max_read=1048576 or more); "
                 "copying the set to a local drive is the sure way"},
        {"ceph", "raise rasize for reads through the page cache; the kernel client is faster than "
                 "ceph-fuse"},
        {"lustre", "stripe the part files over several servers: lfs setstripe -c 4 -S 4M, before "
                   "they are written"},
        {"9p", "use virtiofs or a block device instead: 9p reads small pieces"},
    };
    k3_finding_slower(finding, "bytes come over a network or through another program");
    k3_finding_next(finding, "k3-shard bench measures what it gives");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(type, words[i].prefix, strlen(words[i].prefix)) == 0)
            k3_finding_next(finding, "%s", words[i].advice);
}

static void find_mount(struct k3_doctor *doctor, struct place *place)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "file_system");
    const struct k3_machine_mount *mount = &place->mount;
    place->has_mount = k3_machine_mount(place->dir.fd, &place->mount);
    if (!place->has_mount) {
        k3_finding_missing(finding, "the kernel does not tell: %s", strerror(errno));
        return;
    }
    k3_finding_value(
        finding, "%s of %s on %s%s", mount->type, mount->source[0] ? mount->source : "unknown",
        mount->place[0] ? mount->place : "unknown", mount->is_read_only ? ", read-only" : "");
    if (mount->is_network)
        advise_network(finding, mount->type);
    finding = k3_doctor_add(doctor, "free_space");
    k3_finding_value(finding, "%s of %s", k3_size_text(mount->free_bytes).s,
                     k3_size_text(mount->total_bytes).s);
    if (mount->is_read_only) {
        k3_finding_missing(finding, "the file system is read-only");
        k3_finding_next(finding, "load and verify need no more; convert elsewhere");
    } else if (mount->free_bytes < FREE_BYTES_WANTED) {
        k3_finding_slower(finding, "too little for any part of K3");
        k3_finding_next(finding, "k3-shard plan says what a conversion needs");
    }
}

static void find_drive(struct k3_doctor *doctor, struct place *place)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "drive");
    const struct k3_machine_drive *drive = &place->drive;
    place->has_drive = place->mount.device && k3_machine_drive(place->mount.device, &place->drive);
    if (!place->has_drive) {
        k3_finding_absent(finding, "%s",
                          place->mount.is_in_memory ? "the files lie in memory"
                                                    : "no block device is known behind it");
        return;
    }
    k3_finding_value(finding,
                     "%s, %s, scheduler %s, %" PRIu64
                     " requests, read-ahead %s, sectors of %" PRIu64 " (physical %" PRIu64 ")",
                     drive->name, drive->is_rotational ? "rotational" : "not rotational",
                     drive->scheduler[0] ? drive->scheduler : "unknown", drive->request_count,
                     k3_size_text(drive->read_ahead_bytes).s, drive->logical_bytes,
                     drive->physical_bytes);
    if (drive->is_rotational) {
        k3_finding_slower(finding, "it says that it turns: reads in several places at once seek");
        k3_finding_next(finding,
                        "a solid-state drive; or, where it is one: echo 0 > "
                        "/sys/block/%s/queue/rotational",
                        drive->name);
    } else if (strcmp(drive->scheduler, "bfq") == 0) {
        k3_finding_slower(finding, "the scheduler bfq holds reads back");
        k3_finding_next(finding, "echo none > /sys/block/%s/queue/scheduler", drive->name);
    }
    finding = k3_doctor_add(doctor, "raid");
    if (drive->stack[0] == 0) {
        k3_finding_value(finding, "none: a plain drive, as the kernel shows it");
        return;
    }
    if (drive->member_count)
        k3_finding_value(finding, "%s over %u device%s", drive->stack, drive->member_count,
                         drive->member_count == 1 ? "" : "s");
    else
        k3_finding_value(finding, "%s", drive->stack);
    if (strncmp(drive->stack, "RAID", 4) != 0) {
        k3_finding_slower(finding, "direct reads into a GPU want a plain drive, not %s",
                          drive->stack);
        k3_finding_next(finding, "other reads do not mind");
    } else {
        k3_finding_slower(finding, "direct reads into a GPU refuse RAID");
        k3_finding_next(finding, "no RAID is needed: convert --out DIR --out DIR ... spreads the "
                                 "parts over drives of their own");
    }
}

/* ---- direct reads ---- */

/* Remove what a doctor that was killed between two calls left.  One of another doctor may go too:
 * it holds the file open and unlinks it next. */
static void sweep_trials(const struct place *place)
{
    const size_t prefix = strlen(TRIAL_PREFIX);
    char **names = NULL;
    uint32_t count = 0;
    if (k3_dir_list(&place->dir, &names, &count, NULL))
        return;
    for (uint32_t i = 0; i < count; i++)
        if (strncmp(names[i], TRIAL_PREFIX, prefix) == 0 &&
            strlen(names[i]) == prefix + TRIAL_DIGITS &&
            strspn(names[i] + prefix, "0123456789abcdef") == TRIAL_DIGITS)
            (void)unlinkat(place->dir.fd, names[i], 0);
    k3_names_free(names, count);
}

/* A file of this directory that can be read: the largest there is, or a temporary one. */
static int trial_file(struct place *place, int *own_fd, struct k3_err *err)
{
    static const char zeros[TRIAL_BYTES];
    *own_fd = -1;
    if (place->files.count && place->files.bytes[0] >= K3_BLOCK_BYTES)
        return place->files.fds[0];
    int fd = openat(place->dir.fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        char name[32] = TRIAL_PREFIX;
        int rc = k3_random_hex(name + strlen(name), TRIAL_DIGITS, err);
        if (!rc)
            rc = k3_file_create(&place->dir, name, &fd, err);
        if (rc)
            return -1;
        (void)unlinkat(place->dir.fd, name, 0);
    }
    *own_fd = fd;
    if (k3_file_write(fd, "a temporary file", zeros, sizeof zeros, 0, err))
        return -1;
    return fd;
}

static bool find_direct(struct k3_doctor *doctor, struct place *place, int fd, const char *name)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "direct_io");
    struct k3_io_file file;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_io_file_open(fd, true, &file, &err);
    if (rc == 0) {
        k3_finding_value(finding, "a direct read of %s worked, alignment %u bytes", name,
                         file.align);
        k3_io_file_close(&file);
        return true;
    }
    k3_finding_slower(finding, "%s", err.text);
    if (place->mount.is_in_memory)
        k3_finding_next(finding, "none is needed: the files lie in memory");
    else
        k3_finding_next(finding, "load reads through the page cache; a local ext4 or xfs takes "
                                 "direct reads");
    return false;
}

static void find_verity(struct k3_doctor *doctor, const struct place *place, int fd,
                        const char *name)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "fs_verity");
    _Alignas(struct fsverity_digest) uint8_t found[sizeof(struct fsverity_digest) + 64] = {0};
    struct fsverity_digest *head = (struct fsverity_digest *)found;
    head->digest_size = 64;
    if (ioctl(fd, FS_IOC_MEASURE_VERITY, found) == 0) {
        k3_finding_value(finding, "on for %s", name);
        return;
    }
    if (errno == ENODATA) {
        k3_finding_value(finding, "known to the file system, not on for %s", name);
        k3_finding_next(finding, "fsverity enable FILE lets the kernel check each read by itself");
        return;
    }
    k3_finding_absent(finding, "the file system does not have it: %s", strerror(errno));
    k3_finding_next(finding, "%s",
                    strcmp(place->mount.type, "ext4") == 0
                        ? "tune2fs -O verity DEVICE; load checks every byte without "
                          "it"
                        : "none is needed: load checks every byte by itself");
}

/* ---- the rate ---- */

/* Chunks of all files that are large enough, one of each in turn. */
static struct k3_bench_chunk *make_chunks(const struct files *files, uint32_t *file_count,
                                          uint64_t *chunk_count)
{
    uint64_t total = 0;
    *file_count = 0;
    *chunk_count = 0;
    while (*file_count < files->count && files->bytes[*file_count] >= READ_FILE_BYTES)
        total += files->bytes[(*file_count)++] / K3_BENCH_CHUNK_BYTES;
    if (total > READ_BYTES_MAX / K3_BENCH_CHUNK_BYTES)
        total = READ_BYTES_MAX / K3_BENCH_CHUNK_BYTES;
    struct k3_bench_chunk *chunks = total ? calloc(total, sizeof *chunks) : NULL;
    for (uint64_t turn = 0; chunks && *chunk_count < total; turn++)
        for (uint32_t i = 0; i < *file_count && *chunk_count < total; i++)
            if ((turn + 1) * K3_BENCH_CHUNK_BYTES <= files->bytes[i])
                chunks[(*chunk_count)++] = (struct k3_bench_chunk){turn * K3_BENCH_CHUNK_BYTES,
                                                                   K3_BENCH_CHUNK_BYTES, i};
    return chunks;
}

/* The ways in which load reads, the first that is possible is taken. */
static const struct route {
    const char *name;
    const struct k3_io_ops *io;
    bool is_direct;
} routes[] = {
    {"route_uring", &k3_io_uring, true},
    {"route_pread", &k3_io_pread, true},
    {"route_page_cache", &k3_io_pread, false},
};
#define ROUTE_COUNT (sizeof routes / sizeof *routes)

static void find_rate(struct k3_finding *finding, const struct place *place,
                      const struct route *route)
{
    struct k3_bench_reads reads = {.io = route->io,
                                   .fds = place->files.fds,
                                   .depth = READ_DEPTH,
                                   .limit_ns = READ_NS,
                                   .is_direct = route->is_direct};
    struct k3_bench_chunk *chunks = make_chunks(&place->files, &reads.fd_count, &reads.chunk_count);
    const uint64_t all_bytes = reads.chunk_count * K3_BENCH_CHUNK_BYTES;
    struct k3_bench_rate rate;
    struct k3_err err;
    k3_err_init(&err);
    reads.chunks = chunks;
    int rc = route->io->probe(NULL, &err);
    if (!rc && !chunks) {
        k3_finding_absent(finding,
                          "not measured: no file here has %s, and of less a rate says "
                          "nothing",
                          k3_size_text(READ_FILE_BYTES).s);
        k3_finding_next(finding, "name a directory with larger files: a set or a checkpoint of "
                                 "real size");
        return;
    }
    if (!rc)
        rc = k3_bench_read(&reads, &rate, &err);
    free(chunks);
    if (rc) {
        k3_finding_missing(finding, "%s", err.text);
        k3_finding_next(finding, "%s",
                        rc == K3_EUNSUPPORTED ? "see io_uring and direct_io"
                                              : "k3-shard verify says which file is wrong");
        return;
    }
    k3_finding_value(finding, "%.2f GB/s: %s of %u file%s, 4 MiB, depth %u",
                     k3_bench_gb_per_s(&rate), k3_size_text(rate.bytes).s, reads.fd_count,
                     reads.fd_count == 1 ? "" : "s", READ_DEPTH);
    if (place->files.has_holes) {
        k3_finding_slower(finding, "%s is stored with holes, which are read without the drive",
                          place->files.names[0]);
        k3_finding_next(finding, "measure with a set or a checkpoint that is no sparse one");
    } else if (all_bytes < RATE_BYTES_MIN) {
        k3_finding_next(finding,
                        "no advice is drawn from it: below %s a rate says little; measure with a "
                        "set or a checkpoint of real size",
                        k3_size_text(RATE_BYTES_MIN).s);
    } else if (!route->is_direct) {
        k3_finding_next(finding, "pages that were in memory already are counted as read: bench "
                                 "tells hot from cold");
    }
}

/* Every way by itself, and the one that load takes for a set that is not in memory. */
static void find_routes(struct k3_doctor *doctor, const struct place *place, bool is_direct)
{
    for (size_t i = 0; i < ROUTE_COUNT; i++)
        find_rate(k3_doctor_add(doctor, routes[i].name), place, &routes[i]);
    struct k3_finding *finding = k3_doctor_add(doctor, "route");
    bool has_ring = k3_io_uring.probe(NULL, NULL) == 0;
    k3_finding_value(finding, "load takes %s, %s the page cache, unless the pages are hot",
                     is_direct && has_ring ? "io_uring" : "pread", is_direct ? "past" : "through");
    if (is_direct && has_ring)
        return;
    k3_finding_slower(finding, "%s",
                      is_direct ? "io_uring is refused" : "direct reads are refused");
    k3_finding_next(finding, "see %s", is_direct ? "io_uring" : "direct_io");
}

static void find_reads(struct k3_doctor *doctor, struct place *place)
{
    struct k3_err err;
    int own_fd = -1;
    k3_err_init(&err);
    int fd = trial_file(place, &own_fd, &err);
    const char *name = own_fd < 0 && place->files.count ? place->files.names[0]
                                                        : "a temporary file";
    if (fd < 0) {
        struct k3_finding *finding = k3_doctor_add(doctor, "direct_io");
        k3_finding_missing(finding, "not tried: there is no file to read, and none can be made: %s",
                           err.text);
        k3_finding_next(finding, "name a directory with files, or one that can be written to");
    } else {
        bool is_direct = find_direct(doctor, place, fd, name);
        find_verity(doctor, place, fd, name);
        find_routes(doctor, place, is_direct);
    }
    if (own_fd >= 0)
        close(own_fd);
}

void k3_doctor_dir(struct k3_doctor *doctor, const char *path)
{
    struct place *place = calloc(1, sizeof *place);
    struct k3_err err;
    k3_err_init(&err);
    int rc = place ? k3_dir_open(path, false, &place->dir, &err)
                   : k3_fail(&err, K3_ENOMEM, "no memory to look at it");
    if (rc) {
        struct k3_finding *finding = k3_doctor_add(doctor, "directory");
        finding->is_needed = true;
        k3_finding_missing(finding, "%s", err.text);
        k3_finding_next(finding, "name a directory that is there and can be read");
        free(place);
        return;
    }
    sweep_trials(place);
    find_directory(doctor, place);
    find_mount(doctor, place);
    find_drive(doctor, place);
    find_reads(doctor, place);
    for (uint32_t i = 0; i < place->files.count; i++)
        close(place->files.fds[i]);
    k3_dir_close(&place->dir);
    free(place);
}
