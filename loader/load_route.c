/* Purpose: which io engine reads the parts of a load, and whether past the page cache.
 * Owns: the engine it opens (the load's), the sentences about what was not possible.
 * Threads: the thread that opens the load.
 * Errors: K3_EUSAGE for a name that is none; K3_EUNSUPPORTED for an engine that was asked for and
 * is refused here; K3_EIO, K3_ENOMEM. Invariants: an engine that was named is taken or the load
 * fails; with "auto" each refusal is a sentence of the report; a route counts only after a real
 * read of every part by it. */
#include "load_internal.h"

#include "io_direct.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
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
    return strcmp(name ? name : "auto", wanted) == 0;
}

int k3_load_route_check(const char *name, struct k3_err *err)
{
    static const char *const later[] = {"cufile", "hipfile"};
    if (is_name(name, "auto") || is_name(name, k3_io_pread.name))
        return 0;
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (is_name(name, later[i]))
            return k3_fail(err, K3_EUNSUPPORTED,
                           "io %s is not in this build: use uring, pread or auto", name);
    if (!is_name(name, k3_io_uring.name))
        return k3_fail(err, K3_EUSAGE, "io %.100s is not known: use uring, pread or auto", name);
    struct k3_err own;
    k3_err_init(&own);
    int rc = k3_io_uring.probe(NULL, &own);
    if (rc)
        return k3_fail(err, rc, "io uring: %s; or use io pread or auto", own.text);
    return 0;
}

/* One line of the report. */
static void note(struct k3_load *load, const char *what, const struct k3_err *why)
{
    struct k3_text *lines = &load->fallbacks;
    k3_text_putf(lines, "%s%s: %s", lines->bytes ? "\n" : "", what, why->text);
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
 * without a drive; file systems that know no such read are asked by the clock.  Parts were opened
 * without read-ahead. */
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
    return is_fast(load, part->fd, offset);
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

/* ---- engines ---- */

/* Where reads land, for engines that register memory; none where that would take too long. */
static uint32_t list_regions(const struct k3_load_leg *leg, struct k3_io_region *regions,
                             struct k3_err *why)
{
    const struct k3_load *load = leg->load;
    if (leg->slots.count) {
        regions[0] = (struct k3_io_region){leg->slots.data,
                                           (size_t)leg->slots.count * K3_LOAD_CHUNK_BYTES};
        return 1;
    }
    if (leg->image_bytes > REGISTER_BYTES_MAX || leg->rank_count > K3_IO_REGION_COUNT_MAX) {
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
    struct k3_io_options options = {.depth = leg->depth,
                                    .thread_count = k3_load_leg_threads(leg, leg->is_direct),
                                    .is_direct = leg->is_direct,
                                    .regions = regions,
                                    .note = &slower};
    if (leg->io_ops == &k3_io_uring)
        options.region_count = list_regions(leg, regions, &slower);
    int rc = open_placed(leg, &options, err);
    if (!rc)
        note_place(leg);
    if (!rc && slower.rc && tells)
        note(leg->load, "io uring", &slower);
    else if (!rc && !slower.rc && options.region_count && leg->slots.count == 0)
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
    if (!is_hot(load))
        return true;
    if (is_auto) {
        k3_fail(&why, K3_EUNSUPPORTED,
                "sample reads found the parts in memory, where direct reads are slower");
        note(load, "pread through the page cache is used", &why);
    }
    return false;
}

int k3_load_route_open(struct k3_load *load, const char *name, struct k3_err *err)
{
    bool is_auto = is_name(name, "auto");
    struct k3_err why;
    k3_err_init(&why);
    if (is_name(name, k3_io_uring.name)) {
        int rc = open_engine(load, &k3_io_uring, true, &why);
        if (rc)
            return k3_fail(err, rc, "io uring: %s; or use io pread or auto", why.text);
        return k3_text_check(&load->fallbacks, err);
    }
    bool has_ring = is_auto && k3_io_uring.probe(NULL, &why) == 0;
    if (is_auto && !has_ring)
        note(load, "io uring is not used", &why);
    bool is_direct = wants_direct(load, is_auto);
    if (is_direct && has_ring && try_engine(load, &k3_io_uring, "io uring is not used"))
        return k3_text_check(&load->fallbacks, err);
    if (is_direct && try_engine(load, &k3_io_pread, "pread through the page cache is used"))
        return k3_text_check(&load->fallbacks, err);
    int rc = open_engine(load, &k3_io_pread, false, err);
    return rc ? rc : k3_text_check(&load->fallbacks, err);
}

int k3_load_route_take(struct k3_load *load, const struct k3_io_ops *ops, const char *name,
                       struct k3_err *err)
{
    return open_engine(load, ops, is_name(name, k3_io_uring.name), err);
}
