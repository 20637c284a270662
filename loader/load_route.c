/* Purpose: which io engine reads the parts of a load, and whether past the page cache.
 * Owns: the engine it opens (the load's), the sentences about what was not possible.
 * Threads: the thread that opens the load.
 * Errors: K3_EUSAGE for a name that is none; K3_EUNSUPPORTED for an engine that was asked for and
 * is refused here; K3_EIO, K3_ENOMEM. Invariants: an engine that was named is taken or the load
 * fails; with "auto" each refusal is a sentence of the report; a route counts only after a real
 * read of every part by it. */
#include "load_internal.h"

#include "io_direct.h"
#include "io_gpufile.h"
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Reads that tell memory from drives: 32 of 128 KiB see a set that is hot or cold for the most
 * part, and cost a few milliseconds at most. */
#define SAMPLE_COUNT 32u
#define SAMPLE_BYTES ((size_t)128 << 10)
/* Where only the clock can tell: faster than this it came from memory.  Page caches copy at 5 GB/s
 * and more, while one read alone (nothing else in flight) gets less than 2 from any drive. */
#define HOT_BYTES_PER_SECOND 3e9
/* Registering locks memory and faults it in before the first read: up to this it takes
 * milliseconds, beyond it the drives would wait for it. */
#define REGISTER_BYTES_MAX ((uint64_t)64 << 20)

static bool is_name(const char *name, const char *wanted)
{
    return wanted && strcmp(name ? name : "auto", wanted) == 0;
}

/* An engine that was named cannot be taken. */
static int fail_named(const char *name, int rc, const struct k3_err *own, struct k3_err *err)
{
    const char *others = is_name(name, k3_io_uring.name) ? "pread" : "uring, pread";
    return k3_fail(err, rc, "io %s: %s; or use io %s or auto", name, own->text, others);
}

/* Engines that read into the memory of a kind of device. */
static const struct {
    const struct k3_io_ops *io;
    const struct k3_dev_ops *dev;
    enum k3_gpu_kind kind;
} gpufiles[] = {{&k3_io_cufile, &k3_dev_cuda, K3_GPU_CUDA},
                {&k3_io_hipfile, &k3_dev_hip, K3_GPU_HIP}};
#define GPUFILE_COUNT (sizeof gpufiles / sizeof *gpufiles)

bool k3_load_route_reaches(const char *name)
{
    for (size_t i = 0; i < GPUFILE_COUNT; i++)
        if (is_name(name, gpufiles[i].io->name))
            return true;
    return false;
}

static const struct k3_io_ops *find_engine(const char *name)
{
    static const struct k3_io_ops *const engines[] = {&k3_io_pread, &k3_io_uring, &k3_io_cufile,
                                                      &k3_io_hipfile};
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
        if (is_name(name, engines[i]->name))
            return engines[i];
    return NULL;
}

/* Right engine, right device, and nothing bound. */
static int check_gpufile(const struct k3_load_options *options, const struct k3_dev_ops *dev_ops,
                         struct k3_err *err)
{
    for (size_t i = 0; i < GPUFILE_COUNT; i++)
        if (is_name(options->io, gpufiles[i].io->name) && dev_ops != gpufiles[i].dev)
            return k3_fail(err, K3_EUNSUPPORTED,
                           "io %s reads into the memory of a %s device, not of %s: name such a "
                           "device, or use io uring, pread or auto",
                           options->io, gpufiles[i].dev->name, dev_ops->name);
    if (options->bind_count)
        return k3_fail(err, K3_EUNSUPPORTED,
                       "io %s reads whole images, not bound views: use io uring, pread or auto, or "
                       "bind nothing",
                       options->io);
    return 0;
}

int k3_load_route_check(const struct k3_load_options *options, const struct k3_dev_ops *dev_ops,
                        struct k3_err *err)
{
    const char *name = options->io;
    const struct k3_io_ops *engine = find_engine(name);
    const bool reaches = k3_load_route_reaches(name);
    if (is_name(name, "auto"))
        return 0;
    if (!engine)
        return k3_fail(err, K3_EUSAGE,
                       "io %.100s is not known: use auto, uring, pread, cufile or hipfile", name);
    int rc = reaches ? check_gpufile(options, dev_ops, err) : 0;
    if (rc)
        return rc;
    struct k3_err own;
    k3_err_init(&own);
    rc = engine->probe(NULL, &own);
    return rc ? fail_named(name, rc, &own, err) : 0;
}

/* One line of the report. */
static void note(struct k3_load *load, const char *what, const struct k3_err *why)
{
    struct k3_text *lines = &load->fallbacks;
    k3_text_putf(lines, "%s%s: %s", lines->bytes ? "\n" : "", what, why->text);
}

static void note_slower(struct k3_load *load, const struct k3_io_ops *ops, const struct k3_err *why)
{
    char what[32];
    snprintf(what, sizeof what, "io %s", ops->name);
    note(load, what, why);
}

/* ---- hot or cold ---- */

/* Does a read get all its bytes at the speed of memory? */
static bool is_fast(const struct k3_load *load, int fd, uint64_t offset)
{
    double begin_seconds = k3_load_now();
    ssize_t n = pread(fd, load->legs[0].bounce, SAMPLE_BYTES, (off_t)offset);
    double seconds = k3_load_now() - begin_seconds;
    bool fast = seconds <= (double)SAMPLE_BYTES / HOT_BYTES_PER_SECOND;
    /* What came from the drive leaves the cache again: it is left as it was found. */
    if (!fast)
        k3_file_drop(fd, offset, SAMPLE_BYTES);
    return fast && n == (ssize_t)SAMPLE_BYTES;
}

/* Is a place, any of the whole load by its number, in memory?  A read that must not wait says so,
 * without a drive.  Of file systems that know no such read, tmpfs is memory, whatever a busy
 * machine makes of the time; the others are asked by the clock.  Parts were opened without
 * read-ahead. */
static bool is_hot_place(const struct k3_load *load, uint32_t number)
{
    /* Multiples of the golden ratio are spread evenly, and are the same in each run. */
    uint64_t spread = (uint64_t)(number + 1) * 0x9e3779b97f4a7c15u;
    uint64_t unit = (spread >> 32) * load->unit_count >> 32;
    uint64_t inside = (spread >> 8) % (K3_UNIT_BYTES / SAMPLE_BYTES) * SAMPLE_BYTES;
    const struct k3_load_part *part = load->parts;
    while (unit >= part->unit_count)
        unit -= part++->unit_count;
    uint64_t offset = part->entry->data_offset + unit * K3_UNIT_BYTES + inside;
    struct iovec target = {load->legs[0].bounce, SAMPLE_BYTES};
    ssize_t n = preadv2(part->fd, &target, 1, (off_t)offset, RWF_NOWAIT);
    if (n >= 0 || errno == EAGAIN)
        return n == (ssize_t)SAMPLE_BYTES;
    return k3_machine_is_in_memory(part->fd) || is_fast(load, part->fd, offset);
}

/* Are most of the samples in memory?  mincore(2) would not tell: it shows every page as there to
 * those who do not own the file. */
static bool is_hot(const struct k3_load *load)
{
    uint32_t hot_count = 0, cold_count = 0;
    if (load->unit_count == 0)
        return true;
    memset(load->legs[0].bounce, 0, SAMPLE_BYTES); /* not the page faults of the buffer */
    for (uint32_t i = 0; i < SAMPLE_COUNT; i++) {
        if (is_hot_place(load, i))
            hot_count++;
        else
            cold_count++;
        if (hot_count > SAMPLE_COUNT / 2 || cold_count > SAMPLE_COUNT / 2)
            break;
    }
    return hot_count > cold_count;
}

bool k3_load_route_is_hot(const struct k3_load *load, const char *name, bool is_given)
{
    const struct k3_io_ops *named = find_engine(name);
    if (is_given || load->part_count == 0)
        return named == &k3_io_pread;
    return (!named || named == &k3_io_pread) && is_hot(load);
}

/* File systems of one load: a directory for each drive of a node, and then some. */
#define PLACES_MAX 64u

uint32_t k3_load_route_drives(const struct k3_load *load)
{
    dev_t seen[PLACES_MAX];
    uint32_t seen_count = 0, drive_count = 0;
    for (uint32_t i = 0; i < load->part_count; i++) {
        struct stat about;
        struct k3_machine_mount mount;
        uint32_t at = 0;
        if (fstat(load->parts[i].fd, &about))
            return 0;
        while (at < seen_count && seen[at] != about.st_dev)
            at++;
        if (at < seen_count)
            continue;
        const uint32_t count = at < PLACES_MAX && k3_machine_mount(load->parts[i].fd, &mount)
                                   ? k3_machine_drive_count(mount.device)
                                   : 0;
        if (count == 0)
            return 0;
        seen[seen_count++] = about.st_dev;
        drive_count += count;
    }
    return drive_count;
}

/* ---- engines ---- */

/* Where reads land, for engines that register memory; none where that would take too long. */
static uint32_t list_regions(const struct k3_load_leg *leg, struct k3_io_region *regions,
                             struct k3_err *why)
{
    const struct k3_load *load = leg->load;
    if (leg->slots.count && !load->reaches_device) {
        regions[0] = (struct k3_io_region){leg->slots.data, k3_load_slots_bytes(&leg->slots)};
        return 1;
    }
    bool is_gpu = load->reaches_device;
    if (is_gpu && leg->rank_count > K3_IO_REGION_COUNT_MAX)
        return 0; /* a device has no place for so many images */
    if (!is_gpu &&
        (leg->image_bytes > REGISTER_BYTES_MAX || leg->rank_count > K3_IO_REGION_COUNT_MAX)) {
        k3_fail(why, K3_EUNSUPPORTED,
                "target memory is not registered: all %llu bytes would be locked before the first "
                "read",
                (unsigned long long)leg->image_bytes);
        return 0;
    }
    for (uint32_t i = 0; i < leg->rank_count; i++) {
        const struct k3_load_rank *rank = &load->ranks[leg->rank_begin + i];
        regions[i] = (struct k3_io_region){rank->image, rank->row->image_bytes};
    }
    return leg->rank_count;
}

static int add_files(struct k3_load_leg *leg, struct k3_err *err)
{
    struct k3_load *load = leg->load;
    int rc = 0;
    for (uint32_t r = 0; r < leg->rank_count && !rc; r++) {
        const struct k3_load_rank *rank = &load->ranks[leg->rank_begin + r];
        for (uint32_t i = 0; i < rank->row->part_count && !rc; i++) {
            struct k3_load_part *part = &load->parts[rank->part_begin + i];
            rc = leg->io_ops->add_file(leg->io, part->fd, &part->io_file, err);
        }
    }
    return rc;
}

/* Slower, and nothing else: a line of the report, once. */
static void note_place(struct k3_load_leg *leg)
{
    struct k3_err why;
    k3_err_init(&why);
    if (leg->place_errno == 0)
        return;
    k3_fail_sys(&why, leg->place_errno,
                "slots or threads are not placed on its memory node %d (a container needs the "
                "right CAP_SYS_NICE, or a seccomp profile with mbind)",
                leg->place.node);
    note(leg->load, leg->name, &why);
    leg->place_errno = 0;
}

/* Its threads inherit where this one runs. */
static int open_placed(struct k3_load_leg *leg, const struct k3_io_options *options,
                       struct k3_err *err)
{
    cpu_set_t saved;
    int sys_errno = k3_numa_enter(&leg->place, &saved);
    if (sys_errno)
        leg->place_errno = sys_errno;
    int rc = leg->io_ops->open(options, &leg->io, err);
    if (!rc)
        rc = add_files(leg, err);
    k3_numa_leave(&saved);
    return rc;
}

/* Open the engine of one leg and give it its parts.  tells: what is slower is noted. */
static int open_leg_engine(struct k3_load_leg *leg, bool tells, struct k3_err *err)
{
    struct k3_io_region regions[K3_IO_REGION_COUNT_MAX];
    struct k3_err slower;
    k3_err_init(&slower);
    const bool reaches = leg->load->reaches_device;
    struct k3_io_options options = {
        .depth = leg->depth,
        .thread_count = reaches ? 0 : k3_load_leg_threads(leg, leg->is_direct),
        .is_direct = leg->is_direct,
        .is_shared = leg->slots.count && leg->load->is_hot && !leg->is_direct,
        .regions = regions,
        .note = &slower};
    if (reaches || leg->io_ops == &k3_io_uring)
        options.region_count = list_regions(leg, regions, &slower);
    /* The device must be one of ours, not a table that wraps it. */
    if (reaches && (leg->dev_ops == &k3_dev_cuda || leg->dev_ops == &k3_dev_hip))
        options.gpu = k3_dev_gpu(leg->dev);
    int rc = open_placed(leg, &options, err);
    if (!rc)
        note_place(leg);
    if (!rc && slower.rc && tells)
        note_slower(leg->load, leg->io_ops, &slower);
    else if (!rc && !slower.rc && options.region_count && leg->slots.count == 0 && !reaches)
        leg->pinned_bytes = leg->image_bytes;
    return rc;
}

/* The same engine for every leg; on failure all are closed again. */
static int open_engine(struct k3_load *load, const struct k3_io_ops *ops, bool is_direct,
                       struct k3_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; !is_direct && i < load->part_count; i++)
        (void)posix_fadvise(load->parts[i].fd, 0, 0, POSIX_FADV_NORMAL); /* read-ahead again */
    for (uint32_t i = 0; i < load->leg_count && !rc; i++) {
        load->legs[i].io_ops = ops;
        load->legs[i].is_direct = is_direct;
        rc = open_leg_engine(&load->legs[i], i == 0, err);
    }
    for (uint32_t i = 0; rc && i < load->leg_count; i++) {
        if (load->legs[i].io)
            ops->close(load->legs[i].io);
        load->legs[i].io = NULL;
    }
    return rc;
}

/* The same for a route that need not be: its failure is a line of the report. */
static bool try_engine(struct k3_load *load, const struct k3_io_ops *ops, const char *what)
{
    struct k3_err why;
    k3_err_init(&why);
    if (open_engine(load, ops, true, &why) == 0)
        return true;
    note(load, what, &why);
    return false;
}

/* Past the page cache or through it?  Through it where the pages are there already, or where direct
 * reads are refused. */
static bool wants_direct(struct k3_load *load, bool is_auto)
{
    struct k3_err why;
    struct k3_io_file file;
    k3_err_init(&why);
    if (load->part_count == 0)
        return false;
    if (k3_io_file_open(load->parts[0].fd, true, &file, &why)) {
        note(load, "pread through the page cache is used", &why);
        return false;
    }
    k3_io_file_close(&file);
    if (!load->is_hot)
        return true;
    if (is_auto) {
        k3_fail(&why, K3_EUNSUPPORTED,
                "sample reads found the parts in memory, where direct reads are slower");
        note(load, "pread through the page cache is used", &why);
    }
    return false;
}

/* ---- into the memory of a GPU ---- */

/* Says how cufile and hipfile bring the bytes, unless it is the way they are for. */
static enum k3_gpufile_way note_way(struct k3_load *load, const char *what)
{
    struct k3_err why;
    k3_err_init(&why);
    enum k3_gpufile_way way = k3_gpufile_way(load->legs[0].io, &why);
    if (way != K3_GPUFILE_DIRECT)
        note(load, what, &why);
    return way;
}

/* Open it for the first leg alone and take a sample of it; 0: there is none, and *why says what
 * failed.  *way: how the library brings the bytes, with *why but for DIRECT. */
static double try_gpufile(struct k3_load *load, const struct k3_io_ops *ops,
                          enum k3_gpufile_way *way, struct k3_err *why)
{
    struct k3_load_leg *leg = &load->legs[0];
    struct k3_io *const own = leg->io;
    const struct k3_io_ops *own_ops = leg->io_ops;
    struct k3_err failure;
    double rate = 0;
    k3_err_init(&failure);
    *way = K3_GPUFILE_BOUNCE;
    leg->io = NULL;
    leg->io_ops = ops;
    load->reaches_device = true;
    int rc = open_leg_engine(leg, false, &failure);
    if (!rc) {
        *way = k3_gpufile_way(leg->io, why);
        rc = k3_load_sample(leg, true, &rate, &failure);
        if (!rc && rate == 0)
            rc = k3_fail(&failure, K3_EIO, "a sample of its reads failed");
    }
    if (leg->io)
        ops->close(leg->io);
    leg->io = own;
    leg->io_ops = own_ops;
    load->reaches_device = false;
    if (rc)
        *why = failure;
    return rc ? 0 : rate;
}

/* The engine that reads into the GPU, in place of the one that is open. */
static int change_to_gpufile(struct k3_load *load, const struct k3_io_ops *ops, struct k3_err *err)
{
    const struct k3_io_ops *before = load->legs[0].io_ops;
    struct k3_err why;
    k3_err_init(&why);
    for (uint32_t i = 0; i < load->leg_count; i++) {
        before->close(load->legs[i].io);
        load->legs[i].io = NULL;
    }
    load->reaches_device = true;
    if (open_engine(load, ops, true, &why) == 0) {
        for (uint32_t i = 0; i < load->leg_count; i++)
            k3_load_slots_drop(&load->legs[i]);
        return 0;
    }
    note_slower(load, ops, &why);
    load->reaches_device = false;
    return open_engine(load, before, true, err);
}

/* One line: the engine into the GPU or not, and both figures. */
static void note_choice(struct k3_load *load, const struct k3_io_ops *ops, bool is_taken,
                        const double rates[2], const struct k3_err *why)
{
    struct k3_text *lines = &load->fallbacks;
    k3_text_putf(lines, "%sio %s is %s: %s%sa sample came at %.2f GB/s, by %s at %.2f GB/s",
                 lines->bytes ? "\n" : "", ops->name, is_taken ? "used" : "not used", why->text,
                 why->rc ? "; " : "", rates[1] / 1e9, load->legs[0].io_ops->name, rates[0] / 1e9);
}

/* A direct engine is open.  Where the device has an engine of its own that may go without host
 * memory, both bring some chunks and the faster one is taken; one that goes through host memory all
 * the same never is: it does what we do, in a way that is not seen. */
static int prefer_gpufile(struct k3_load *load, struct k3_err *err)
{
    struct k3_err why;
    double rates[2] = {0, 0}; /* ours, and into the GPU */
    enum k3_gpufile_way way;
    size_t i = 0;
    k3_err_init(&why);
    while (i < GPUFILE_COUNT && gpufiles[i].dev != load->legs[0].dev_ops)
        i++;
    /* A library that is missing is for `doctor` to name: most machines have none. */
    if (i == GPUFILE_COUNT || load->bound_count || load->legs[0].chunk_count < 2 ||
        gpufiles[i].io->probe(NULL, &why))
        return 0;
    const struct k3_io_ops *ops = gpufiles[i].io;
    char what[32];
    snprintf(what, sizeof what, "io %s is not used", ops->name);
    k3_err_init(&why);
    if (!k3_gpufile_is_promising(gpufiles[i].kind, &why)) {
        note(load, what, &why);
        return 0;
    }
    int rc = k3_load_sample(&load->legs[0], false, &rates[0], err);
    if (rc)
        return rc;
    rates[1] = try_gpufile(load, ops, &way, &why);
    if (rates[1] == 0) {
        note(load, what, &why);
        return 0;
    }
    bool is_taken = way != K3_GPUFILE_BOUNCE && rates[1] > rates[0];
    note_choice(load, ops, is_taken, rates, &why);
    return is_taken ? change_to_gpufile(load, ops, err) : 0;
}

/* ---- the choice ---- */

static int open_named(struct k3_load *load, const struct k3_io_ops *ops, struct k3_err *err)
{
    struct k3_err why;
    k3_err_init(&why);
    int rc = open_engine(load, ops, true, &why);
    if (rc)
        return fail_named(ops->name, rc, &why, err);
    if (load->reaches_device) {
        char what[32];
        snprintf(what, sizeof what, "io %s", ops->name);
        (void)note_way(load, what);
    }
    return k3_text_check(&load->fallbacks, err);
}

/* Past the page cache by io_uring, else by threads; false: neither. */
static bool open_direct(struct k3_load *load, bool has_ring)
{
    if (has_ring && try_engine(load, &k3_io_uring, "io uring is not used"))
        return true;
    return try_engine(load, &k3_io_pread, "pread through the page cache is used");
}

int k3_load_route_open(struct k3_load *load, const char *name, struct k3_err *err)
{
    const struct k3_io_ops *named = find_engine(name);
    const bool is_auto = !named;
    struct k3_err why;
    k3_err_init(&why);
    if (named && named != &k3_io_pread)
        return open_named(load, named, err);
    bool has_ring = is_auto && k3_io_uring.probe(NULL, &why) == 0;
    if (is_auto && !has_ring)
        note(load, "io uring is not used", &why);
    int rc = 0;
    if (!wants_direct(load, is_auto) || !open_direct(load, has_ring))
        rc = open_engine(load, &k3_io_pread, false, err);
    else if (is_auto)
        rc = prefer_gpufile(load, err);
    return rc ? rc : k3_text_check(&load->fallbacks, err);
}

int k3_load_route_take(struct k3_load *load, const struct k3_io_ops *ops, const char *name,
                       struct k3_err *err)
{
    return open_engine(load, ops, is_name(name, k3_io_uring.name) || load->reaches_device, err);
}
