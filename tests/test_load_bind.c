/* Purpose: loads into memory of the caller, view by view; loads in steps, their cancel and their
 * pace; on the host, by each route.
 * Owns: two sets and memory for their views, for the whole run.
 * Threads: one drives each load; a second one cancels.
 * Errors: a failed assertion ends the test.
 * Invariant: bound memory is poisoned before each load, so a skipped copy is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bind_use.h"
#include "fault_dev.h"
#include "fault_io.h"
#include "load_internal.h"
#include "trace_use.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT_OF(a)   (sizeof(a) / sizeof *(a))
#define STAGING_BYTES (16u << 20) /* slots are memory that each load touches first */
/* Of the reads and copies that are spoilt one by one. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CHUNK_STEP 7u /* these builds take ten times as long */
#define COPY_STEP  61u
#define HEALED_MIN 4u
#else
#define CHUNK_STEP 3u
#define COPY_STEP  11u
#define HEALED_MIN 20u
#endif

static struct mini_set one, three;
static struct bind_room room_one, room_three;
static struct k3_err err;
static struct k3_load *load;
static const struct k3_io_ops *engine = &k3_io_pread;
static bool engine_direct;

static int begin_test(void **state)
{
    (void)state;
    k3_err_init(&err);
    bind_room_poison(&room_one);
    return 0;
}

static int end_test(void **state)
{
    (void)state;
    k3_load_close(load);
    load = NULL;
    return 0;
}

static void close_load(void)
{
    k3_load_close(load);
    load = NULL;
}

/* All views of a room, or plain images where it is NULL. */
static struct k3_load_options options_for(const struct mini_set *mini, const struct bind_room *room)
{
    return (struct k3_load_options){.struct_bytes = sizeof(struct k3_load_options),
                                    .dirs = mini->dir_list,
                                    .dir_count = mini->dir_count,
                                    .staging_bytes = STAGING_BYTES,
                                    .binds = room ? room->binds : NULL,
                                    .bind_count = room ? room->count : 0};
}

static int open_load(const struct k3_load_options *options, const struct fault_io_rule *io_rule,
                     const struct fault_dev_rule *dev_rule)
{
    struct k3_load_options own = *options;
    own.io = engine_direct ? "uring" : NULL;
    k3_err_init(&err);
    return k3_load_open_with(&own, fault_io(engine, io_rule), fault_dev(&k3_dev_host, dev_rule),
                             &load, &err);
}

static uint64_t reread_units(void)
{
    struct k3_load_report report;
    k3_load_get_report(load, &report);
    return report.reread_units;
}

static void check_images(void)
{
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        const void *data;
        uint64_t bytes;
        assert_int_equal(k3_load_image(load, rank, &data, &bytes, &err), 0);
        assert_int_equal(bytes, one.image_bytes[rank]);
        assert_memory_equal(data, one.images[rank], bytes);
    }
}

static void check_refused(void)
{
    struct k3_load_tensor out;
    assert_int_equal(k3_load_view(load, 0, 0, &out, NULL), K3_EUSAGE);
    assert_int_equal(k3_load_tensor(load, 0, 0, &out, NULL), K3_EUSAGE);
    assert_int_equal(k3_load_find_view(load, 0, "head", &out, NULL), K3_EUSAGE);
}

/* ---- everything right ---- */

static void load_bound(const struct mini_set *mini, struct bind_room *room)
{
    struct k3_load_options options = options_for(mini, room);
    const void *data = &data;
    uint64_t bytes = 7;
    bind_room_poison(room);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    bind_room_check_untouched(room);
    check_refused();
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(k3_load_run(load, &err), 0);
        bind_room_check(room, 0, MINI_RANK_COUNT);
        bind_room_check_names(room, load);
        assert_int_equal(reread_units(), 0);
        bind_room_poison(room);
    }
    assert_int_equal(k3_load_image(load, 0, &data, &bytes, &err), K3_EUSAGE);
    assert_null(data);
    assert_int_equal(bytes, 0);
    assert_non_null(strstr(err.text, "view"));
    close_load();
    bind_room_check_untouched(room); /* a close takes nothing with it, and writes nothing */
}

static void test_bound(void **state)
{
    (void)state;
    load_bound(&one, &room_one);
    load_bound(&three, &room_three);
}

/* The same through the public call alone. */
static void test_bound_public(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, &room_one);
    static const uint64_t stagings[] = {1, 4 << 20, 0};
    for (size_t i = 0; i < COUNT_OF(stagings); i++) {
        bind_room_poison(&room_one);
        options.staging_bytes = stagings[i];
        assert_int_equal(k3_load_open(&options, &load, &err), 0);
        assert_int_equal(k3_load_run(load, &err), 0);
        bind_room_check(&room_one, 0, MINI_RANK_COUNT);
        close_load();
    }
}

/* Is this unit whole in one piece? */
static bool is_whole(const struct k3_load_part *part, uint32_t unit)
{
    const uint64_t begin = (uint64_t)unit * K3_UNIT_BYTES, end = begin + K3_UNIT_BYTES;
    for (uint32_t i = 0; i < part->piece_count; i++) {
        const struct k3_load_piece *piece = &part->pieces[i];
        if (piece->begin_offset <= begin && piece->end_offset >= end)
            return piece->data != NULL;
    }
    return false;
}

/* The set is a test of what it is meant for: pieces tile each part, some units are in one piece and
 * more than a scratch holds cross several, and there are pads. */
static void test_pieces(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, &room_one);
    uint32_t whole = 0, crossing = 0, pads = 0;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    for (uint32_t p = 0; p < load->part_count; p++) {
        const struct k3_load_part *part = &load->parts[p];
        uint64_t at = 0;
        for (uint32_t i = 0; i < part->piece_count; i++) {
            assert_int_equal(part->pieces[i].begin_offset, at);
            assert_true(part->pieces[i].end_offset > at);
            at = part->pieces[i].end_offset;
            pads += !part->pieces[i].data;
        }
        assert_int_equal(at, (uint64_t)part->unit_count * K3_UNIT_BYTES);
        for (uint32_t u = 0; u < part->unit_count; u++) {
            whole += is_whole(part, u);
            crossing += !is_whole(part, u);
        }
    }
    print_message("%u units in one view, %u across views or pads, %u pads\n", whole, crossing,
                  pads);
    assert_true(whole > 8 && crossing > 8 && pads > 8);
}

static void test_one_rank(void **state)
{
    (void)state;
    uint32_t ranks[] = {1};
    struct k3_load_options options = options_for(&one, &room_one);
    options.ranks = ranks;
    options.rank_count = 1;
    options.binds += room_one.begin[1];
    options.bind_count -= room_one.begin[1];
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    bind_room_check(&room_one, 1, 2);
}

/* ---- refused ---- */

/* Changes one row of a copy of the binds; says so if a row has to go. */
static struct k3_load_bind *changed_binds(uint32_t *count)
{
    *count = room_one.count;
    struct k3_load_bind *binds = calloc(room_one.count + 1, sizeof *binds);
    assert_non_null(binds);
    memcpy(binds, room_one.binds, room_one.count * sizeof *binds);
    return binds;
}

static void must_refuse(struct k3_load_bind *binds, uint32_t count, const char *text)
{
    static const struct fault_io_rule any_read = {FAULT_IO_FAILING, 1, UINT64_MAX};
    struct k3_load_options options = options_for(&one, &room_one);
    options.binds = binds;
    options.bind_count = count;
    assert_int_equal(open_load(&options, &any_read, NULL), K3_EUSAGE);
    assert_null(load);
    if (!strstr(err.text, text))
        print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, text));
    assert_int_equal(fault_io_hit_count(), 0);
    free(binds);
    bind_room_check_untouched(&room_one);
}

static void test_refused_binds(void **state)
{
    (void)state;
    const uint32_t places[] = {0, room_one.begin[1] - 1, room_one.begin[1], room_one.count - 1};
    uint32_t count;
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const uint32_t at = places[i];
        const char *name = room_one.binds[at].view;
        struct k3_load_bind *binds = changed_binds(&count);
        binds[at] = binds[--count];
        if (at != count) { /* the last one moved to its place */
            must_refuse(binds, count, "is not bound: bind every view");
            assert_non_null(strstr(err.text, name));
        } else {
            must_refuse(binds, count, name);
        }
        for (int more = -1; more <= 1; more += 2) {
            binds = changed_binds(&count);
            binds[at].bytes += (uint64_t)(int64_t)more;
            must_refuse(binds, count, name);
        }
        static const uintptr_t shifts[] = {1, 256, 2048};
        for (size_t s = 0; s < COUNT_OF(shifts); s++) {
            binds = changed_binds(&count);
            binds[at].data = (uint8_t *)binds[at].data + shifts[s];
            must_refuse(binds, count, "must be a multiple of 4096");
            assert_non_null(strstr(err.text, name));
        }
        binds = changed_binds(&count);
        binds[at].data = NULL;
        must_refuse(binds, count, name);
        binds = changed_binds(&count);
        binds[count++] = binds[at];
        must_refuse(binds, count, "is bound twice");
        assert_non_null(strstr(err.text, name));
    }
}

static void test_refused_others(void **state)
{
    (void)state;
    uint32_t ranks[] = {0}, count;
    struct k3_load_options options = options_for(&one, &room_one);
    struct k3_load_bind *binds = changed_binds(&count);
    binds[count] = binds[0];
    binds[count++].view = "layers.77.experts.w13";
    must_refuse(binds, count, "layers.77.experts.w13 of rank 0 is bound, but it is not in");
    binds = changed_binds(&count);
    binds[count] = binds[0];
    binds[count++].rank = 7;
    must_refuse(binds, count, "of rank 7 is bound, but it is not in this load");
    binds = changed_binds(&count);
    binds[3].view = NULL;
    must_refuse(binds, count, "(no name)");
    must_refuse(NULL, 5, "bind_count without binds");
    /* Views of a rank that is not loaded. */
    options.ranks = ranks;
    options.rank_count = 1;
    assert_int_equal(open_load(&options, NULL, NULL), K3_EUSAGE);
    assert_null(load);
    assert_non_null(strstr(err.text, "of rank 1 is bound, but it is not in this load"));
    bind_room_check_untouched(&room_one);
}

/* ---- faults ---- */

/* Every kind of read fault at each chunk: healed, and no byte of the wrong read stays. */
static void test_read_faults(void **state)
{
    (void)state;
    static const enum fault_io_kind kinds[] = {FAULT_IO_PARTIAL, FAULT_IO_STALE, FAULT_IO_WRONG,
                                               FAULT_IO_FAILING, FAULT_IO_LATE};
    struct k3_load_options options = options_for(&one, &room_one);
    uint64_t healed = 0;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        uint64_t chunk_count = 1;
        for (uint64_t nth = 1; nth <= chunk_count; nth += CHUNK_STEP) {
            struct fault_io_rule rule = {kinds[k], nth, 1};
            bind_room_poison(&room_one);
            assert_int_equal(open_load(&options, &rule, NULL), 0);
            chunk_count = load->chunk_count;
            assert_int_equal(k3_load_run(load, &err), 0);
            assert_int_equal(fault_io_hit_count(), 1);
            bind_room_check(&room_one, 0, MINI_RANK_COUNT);
            healed += reread_units();
            /* A flipped bit may lie in a pad, which goes nowhere. */
            if (kinds[k] != FAULT_IO_WRONG)
                assert_true((reread_units() > 0) == (kinds[k] != FAULT_IO_LATE));
            close_load();
        }
    }
    print_message("%llu units healed\n", (unsigned long long)healed);
    assert_true(healed > HEALED_MIN);
}

/* A copy that is not done, at each of its turns: to a view, or of a unit that is gathered. */
static void test_skipped_copies(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, &room_one);
    uint64_t healed = 0;
    for (uint64_t nth = 1;; nth += COPY_STEP) {
        /* The first copy of a device is that of the zeros for pads. */
        const struct fault_dev_rule rule = {FAULT_DEV_SKIP_COPY, nth, 1};
        bind_room_poison(&room_one);
        assert_int_equal(open_load(&options, NULL, &rule), 0);
        int rc = k3_load_run(load, &err);
        const bool was_hit = fault_dev_hit_count() == 1;
        if (!rc) {
            bind_room_check(&room_one, 0, MINI_RANK_COUNT);
            healed += reread_units();
        } else {
            assert_int_equal(rc, K3_EDEVICE); /* the zeros: no gathered pad is ever right */
            assert_int_equal(nth, 1);
            check_refused();
        }
        close_load();
        if (!was_hit)
            break;
    }
    print_message("%llu units healed\n", (unsigned long long)healed);
    assert_true(healed > HEALED_MIN);
}

static void test_flips(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, &room_one);
    static const struct fault_dev_rule once = {FAULT_DEV_FLIP, 1, 1};
    static const struct fault_dev_rule always = {FAULT_DEV_FLIP, 1, UINT64_MAX};
    assert_int_equal(open_load(&options, NULL, &once), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    assert_int_equal(fault_dev_hit_count(), 1);
    assert_int_equal(reread_units(), 1);
    bind_room_check(&room_one, 0, MINI_RANK_COUNT);
    close_load();
    bind_room_poison(&room_one);
    assert_int_equal(open_load(&options, NULL, &always), 0);
    assert_int_equal(k3_load_run(load, &err), K3_EDEVICE);
    assert_non_null(strstr(err.text, "right in the file but wrong in the memory of device"));
    /* Of all units, which are wrong, the one whose bytes came first. */
    assert_non_null(strstr(err.file, "model-rank-0-part-"));
    assert_true(err.offset > 0 && err.offset % K3_UNIT_BYTES == 0);
    check_refused();
}

/* Damage of the file inside a view, first and last byte of some: named, exit 3. */
static void test_flipped_files(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, &room_one);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    for (uint32_t p = 0; p < load->part_count; p++) {
        const struct k3_load_part *part = &load->parts[p];
        char path[256], unit[64];
        mini_set_part_path(&one, part->entry->rank, part->entry->part, path);
        for (uint32_t i = 0; i < part->piece_count;
             i += part->piece_count / 3 + 1 - part->piece_count / 3 % 2) {
            const struct k3_load_piece *piece = &part->pieces[i];
            const uint64_t at = part->entry->data_offset + piece->end_offset - 1;
            if (!piece->data)
                continue; /* a pad, which goes nowhere */
            mini_set_flip(path, at);
            int rc = k3_load_run(load, &err);
            mini_set_flip(path, at);
            assert_int_equal(rc, K3_ECORRUPT);
            snprintf(unit, sizeof unit, "unit %llu at byte ",
                     (unsigned long long)(at / K3_UNIT_BYTES));
            assert_non_null(strstr(err.text, unit));
            assert_string_equal(err.file, strrchr(path, '/') + 1);
            assert_int_equal(k3_exit_code(rc), 3);
            check_refused();
        }
    }
    bind_room_poison(&room_one);
    assert_int_equal(k3_load_run(load, &err), 0);
    bind_room_check(&room_one, 0, MINI_RANK_COUNT);
}

static void test_no_verify(void **state)
{
    (void)state;
    static const struct fault_io_rule rule = {FAULT_IO_FAILING, 2, 1};
    struct k3_load_options options = options_for(&one, &room_one);
    options.no_verify = 1;
    assert_int_equal(open_load(&options, &rule, NULL), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    bind_room_check(&room_one, 0, MINI_RANK_COUNT);
    assert_true(reread_units() >= 1);
}

/* ---- steps ---- */

struct seen {
    uint64_t calls, last_bytes, total_bytes;
    bool backwards;
};

static int watch(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct seen *seen = context;
    seen->backwards |= done_bytes < seen->last_bytes || done_bytes > total_bytes;
    seen->calls++;
    seen->last_bytes = done_bytes;
    seen->total_bytes = total_bytes;
    return 0;
}

/* The first step of a run, again until one is not over at once. */
static void first_step(void)
{
    for (int turn = 0; turn < 100; turn++) {
        int finished = 7;
        assert_int_equal(k3_load_step(load, 0, &finished, &err), 0);
        if (!finished)
            return;
        assert_int_equal(finished, 1);
    }
    fail_msg("no run took longer than its first step");
}

static int last_step(uint32_t milliseconds)
{
    int finished = 0, rc = 0;
    while (!finished) {
        assert_int_equal(rc, 0);
        rc = k3_load_step(load, milliseconds, &finished, &err);
    }
    return rc;
}

static void test_steps(void **state)
{
    (void)state;
    static const uint32_t waits[] = {0, 1, 7, 60000};
    struct seen seen = {.calls = 0};
    struct k3_load_options options = options_for(&one, NULL);
    options.progress = watch;
    options.progress_context = &seen;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    for (size_t i = 0; i < COUNT_OF(waits); i++) {
        seen = (struct seen){.calls = 0};
        for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++)
            memset(load->ranks[rank].image, BIND_POISON, one.image_bytes[rank]);
        assert_int_equal(last_step(waits[i]), 0);
        check_images();
        assert_true(seen.calls >= 1 && !seen.backwards);
        assert_int_equal(seen.last_bytes, seen.total_bytes);
    }
    /* A run in one call behind runs in steps. */
    memset(load->ranks[1].image, BIND_POISON, one.image_bytes[1]);
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images();
    int finished = 7;
    assert_int_equal(k3_load_step(NULL, 0, &finished, &err), K3_EUSAGE);
    assert_int_equal(finished, 1);
}

static void test_steps_bound(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, &room_one);
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(last_step(1), 0);
    bind_room_check(&room_one, 0, MINI_RANK_COUNT);
}

/* While a run is under way nothing is handed out, no other one begins, and close ends it. */
static void test_close_in_steps(void **state)
{
    (void)state;
    static const struct fault_io_rule slow = {FAULT_IO_SLOW, 2, 1};
    struct k3_load_options options = options_for(&one, &room_one);
    for (int bound = 0; bound < 2; bound++) {
        options.bind_count = bound ? room_one.count : 0;
        assert_int_equal(open_load(&options, &slow, NULL), 0);
        first_step();
        check_refused();
        assert_int_equal(k3_load_run(load, &err), K3_EUSAGE);
        assert_non_null(strstr(err.text, "under way"));
        close_load();
    }
}

/* A failure shows in the last step. */
static void test_steps_fail(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, NULL);
    static const struct fault_io_rule rule = {FAULT_IO_REAP, 2, 1};
    static const struct fault_dev_rule dev_rule = {FAULT_DEV_WAIT, 1, 1};
    assert_int_equal(open_load(&options, &rule, NULL), 0);
    assert_int_equal(last_step(1), K3_EIO);
    assert_non_null(strstr(err.text, "reap fails"));
    check_refused();
    assert_int_equal(last_step(0), K3_EUSAGE); /* the engine is gone */
    close_load();
    assert_int_equal(open_load(&options, NULL, &dev_rule), 0);
    assert_int_equal(last_step(3), K3_EDEVICE);
    check_refused();
    assert_int_equal(last_step(0), 0);
    check_images();
}

/* ---- cancel ---- */

struct canceller {
    sem_t asked, done;
    bool is_over;
};

static void *cancel(void *context)
{
    struct canceller *canceller = context;
    while (sem_wait(&canceller->asked))
        ;
    k3_load_cancel(load);
    sem_post(&canceller->done);
    return NULL;
}

/* Progress does not cancel; but the other thread does before it returns. */
static int let_cancel(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct canceller *canceller = context;
    (void)done_bytes;
    (void)total_bytes;
    if (!canceller->is_over) {
        sem_post(&canceller->asked);
        while (sem_wait(&canceller->done))
            ;
    }
    canceller->is_over = true;
    return 0;
}

static void cancel_once(bool in_steps, bool bound)
{
    static const struct fault_io_rule slow = {FAULT_IO_SLOW, 2, 1};
    struct canceller canceller = {.is_over = false};
    struct k3_load_options options = options_for(&one, bound ? &room_one : NULL);
    pthread_t thread;
    sem_init(&canceller.asked, 0, 0);
    sem_init(&canceller.done, 0, 0);
    options.progress = let_cancel;
    options.progress_context = &canceller;
    bind_room_poison(&room_one);
    assert_int_equal(open_load(&options, &slow, NULL), 0);
    k3_load_cancel(load); /* of no run: the next one is not touched by it */
    assert_int_equal(pthread_create(&thread, NULL, cancel, &canceller), 0);
    assert_int_equal(in_steps ? last_step(5) : k3_load_run(load, &err), K3_ECANCELED);
    assert_non_null(strstr(err.text, "stopped on request"));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(canceller.is_over);
    check_refused();
    bind_room_poison(&room_one);
    assert_int_equal(in_steps ? k3_load_run(load, &err) : last_step(5), 0);
    if (bound)
        bind_room_check(&room_one, 0, MINI_RANK_COUNT);
    else
        check_images();
    close_load();
    sem_destroy(&canceller.asked);
    sem_destroy(&canceller.done);
}

static void test_cancel(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        cancel_once(i & 1, i & 2);
}

/* A cancel between two steps: the next one or a later one ends the run. */
static void test_cancel_between_steps(void **state)
{
    (void)state;
    static const struct fault_io_rule slow = {FAULT_IO_SLOW, 1, 1};
    struct k3_load_options options = options_for(&one, NULL);
    assert_int_equal(open_load(&options, &slow, NULL), 0);
    first_step();
    k3_load_cancel(load);
    assert_int_equal(last_step(1), K3_ECANCELED);
    check_refused();
    assert_int_equal(last_step(1), 0);
    check_images();
}

/* ---- pace ---- */

/* No read is asked for before the bytes ahead of it were due; later is never wrong. */
static void check_pace(uint64_t bytes_per_second)
{
    uint64_t before = 0;
    for (uint64_t i = 0; i < load->chunk_count; i++) {
        const double seconds = load->trace.submit_seconds[i] - load->begin_seconds;
        assert_true(seconds * (double)bytes_per_second >= (double)before);
        before += load->chunks[i].unit_count * (uint64_t)K3_UNIT_BYTES;
    }
}

static void test_pace(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/trace.json", one.root);
    for (int bound = 0; bound < 2; bound++) {
        struct k3_load_options options = options_for(&one, bound ? &room_one : NULL);
        options.trace_path = path;
        options.bytes_per_second = 200000000;
        assert_int_equal(open_load(&options, NULL, NULL), 0);
        assert_int_equal(bound ? last_step(3) : k3_load_run(load, &err), 0);
        check_pace(options.bytes_per_second);
        trace_check(load, path, bound, 1);
        if (bound)
            bind_room_check(&room_one, 0, MINI_RANK_COUNT);
        else
            check_images();
        assert_int_equal(unlink(path), 0);
        close_load();
    }
    /* A pace that would take days is left by a cancel. */
    struct k3_load_options options = options_for(&one, NULL);
    struct canceller canceller = {.is_over = false};
    pthread_t thread;
    sem_init(&canceller.asked, 0, 0);
    sem_init(&canceller.done, 0, 0);
    options.bytes_per_second = 100;
    options.progress = let_cancel;
    options.progress_context = &canceller;
    assert_int_equal(open_load(&options, NULL, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, cancel, &canceller), 0);
    assert_int_equal(k3_load_run(load, &err), K3_ECANCELED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    sem_destroy(&canceller.asked);
    sem_destroy(&canceller.done);
}

/* ---- running ---- */

#define LOAD_TEST(f) cmocka_unit_test_setup_teardown(f, begin_test, end_test)

static bool runs(const char *name)
{
    struct k3_load_options options = options_for(&one, NULL);
    k3_err_init(&err);
    int rc = engine->probe(NULL, &err);
    if (!rc)
        rc = open_load(&options, NULL, NULL);
    if (rc)
        printf("[ RUN      ] %s\n[  SKIPPED ] %s: %s\n", name, name, err.text);
    close_load();
    return rc == 0;
}

static int make_all(void **state)
{
    (void)state;
    static const uint32_t devices[MINI_RANK_COUNT] = {0, 0};
    mini_set_make(&one, 1);
    mini_set_make(&three, 3);
    bind_room_make(&room_one, &one, &k3_dev_host, devices);
    bind_room_make(&room_three, &three, &k3_dev_host, devices);
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    bind_room_remove(&room_one);
    bind_room_remove(&room_three);
    mini_set_remove(&one);
    mini_set_remove(&three);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOAD_TEST(test_bound),         LOAD_TEST(test_bound_public),
        LOAD_TEST(test_pieces),        LOAD_TEST(test_one_rank),
        LOAD_TEST(test_refused_binds), LOAD_TEST(test_refused_others),
        LOAD_TEST(test_read_faults),   LOAD_TEST(test_skipped_copies),
        LOAD_TEST(test_flips),         LOAD_TEST(test_flipped_files),
        LOAD_TEST(test_no_verify),     LOAD_TEST(test_steps),
        LOAD_TEST(test_steps_bound),   LOAD_TEST(test_close_in_steps),
        LOAD_TEST(test_steps_fail),    LOAD_TEST(test_cancel),
        LOAD_TEST(test_pace),          LOAD_TEST(test_cancel_between_steps),
    };
    const struct CMUnitTest direct_tests[] = {
        LOAD_TEST(test_bound),       LOAD_TEST(test_read_faults), LOAD_TEST(test_flips),
        LOAD_TEST(test_steps_bound), LOAD_TEST(test_cancel),      LOAD_TEST(test_pace),
    };
    if (make_all(NULL))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    engine = &k3_io_uring;
    engine_direct = true;
    if (runs("uring into bound views"))
        failed += cmocka_run_group_tests(direct_tests, NULL, NULL);
    remove_all(NULL);
    return failed;
}
