/* Purpose: the loader on the devices "cuda" and "hip", over fake drivers (fake_gpu.h): whole loads,
 * ranks on several devices, memory of the caller, and one fault after the other.
 *   test_load_gpu            all of it; runs itself again with the folder of each fake driver
 *   test_load_gpu real [KIND...]   what any driver must pass, over those of this machine; one line
 *                            where there is none, which is a failure for a KIND that is named
 *   test_load_gpu fake KIND  over what LD_LIBRARY_PATH names
 *   test_load_gpu refused KIND TEXT   a load cannot be opened, exit code 4, and says TEXT
 *   test_load_gpu slow KIND DIR   a load that takes days; writes a byte when it runs
 * K3_FAULTS=N injects N faults for each kind of driver in place of the sample.
 * Owns: two sets, a report in a temporary file.
 * Threads: one drives each load.
 * Errors: a failed assertion ends the test.
 * Invariants: whatever is spoilt, a load hands out right bytes or none, and nothing is left in a
 * driver behind its close. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bind_use.h"
#include "fault_dev.h"
#include "fault_io.h"
#include "gpu_use.h"
#include "load_internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT_OF(a)        (sizeof(a) / sizeof *(a))
#define STAGING_BYTES      (16u << 20)  /* slots are memory that each load touches first */
#define WIDE_STAGING_BYTES (128u << 20) /* slots of several reads */
#ifdef __SANITIZE_THREAD__
#define SAMPLE_COUNT 24u /* a load takes a second */
#else
#define SAMPLE_COUNT 84u /* faults of each kind of driver in a plain run of the tests */
#endif
#define FETCH_BYTES_MAX   (16u << 20) /* an image of the mini set has 12 MB */
#define ALWAYS            1000000u
#define SLOW_BYTES_SECOND 1000u

static struct mini_set one, three;
static struct k3_err err;
static struct k3_load *load;

/* ---- one load ---- */

/* "cuda:" and what follows. */
static const char *device(const char *list)
{
    static char text[2][64];
    static int turn;
    turn = !turn;
    snprintf(text[turn], sizeof text[turn], "%s%s", ops->name, list);
    return text[turn];
}

static struct k3_load_options options_for(const struct mini_set *mini, const char *list)
{
    return (struct k3_load_options){.struct_bytes = sizeof(struct k3_load_options),
                                    .dirs = mini->dir_list,
                                    .dir_count = mini->dir_count,
                                    .staging_bytes = STAGING_BYTES,
                                    .device = device(list)};
}

static void close_load(void)
{
    k3_load_close(load);
    load = NULL;
}

static int begin_test(void **state)
{
    (void)state;
    k3_err_init(&err);
    return 0;
}

static int end_test(void **state)
{
    (void)state;
    close_load();
    return 0;
}

static int open_load(const struct k3_load_options *options)
{
    k3_err_init(&err);
    return k3_load_open(options, &load, &err);
}

static struct k3_load_leg *leg_of(uint32_t rank_at)
{
    uint32_t i = 0;
    while (load->legs[i].rank_begin + load->legs[i].rank_count <= rank_at)
        i++;
    return &load->legs[i];
}

/* What the device holds at an address of a load; until the next call. */
static const uint8_t *fetch(struct k3_load_leg *leg, const void *data, uint64_t bytes)
{
    static uint8_t buffer[FETCH_BYTES_MAX];
    assert_true(bytes <= sizeof buffer);
    memset(buffer, 0x5A, bytes);
    const struct k3_dev_copy in = {buffer, data, bytes, K3_COPY_DEV_TO_HOST};
    assert_int_equal(k3_load_leg_copy(leg, 0, &in, NULL), 0);
    assert_int_equal(leg->dev_ops->copy_wait(leg->dev, 0, K3_DEV_WAIT_ALL, NULL), 0);
    return buffer;
}

static void check_images(const struct mini_set *mini)
{
    for (uint32_t r = 0; r < load->rank_count; r++) {
        const uint32_t rank = load->ranks[r].row->rank;
        const void *data;
        uint64_t bytes;
        assert_int_equal(k3_load_image(load, rank, &data, &bytes, &err), 0);
        assert_int_equal(bytes, mini->image_bytes[rank]);
        assert_int_equal((uintptr_t)data % 4096, 0);
        const uint8_t *found = fetch(leg_of(r), data, bytes);
        assert_memory_equal(found, mini->images[rank], bytes);
    }
}

static void check_refused(void)
{
    for (uint32_t r = 0; r < load->rank_count; r++) {
        struct k3_load_tensor out;
        const void *data;
        uint64_t bytes;
        const uint32_t rank = load->ranks[r].row->rank;
        assert_int_equal(k3_load_image(load, rank, &data, &bytes, NULL), K3_EUSAGE);
        assert_int_equal(k3_load_view(load, rank, 0, &out, NULL), K3_EUSAGE);
        assert_int_equal(k3_load_tensor(load, rank, 0, &out, NULL), K3_EUSAGE);
    }
}

static uint64_t reread_units(void)
{
    struct k3_load_report report;
    k3_load_get_report(load, &report);
    return report.reread_units;
}

static void assert_rank_device(uint32_t rank, const char *list)
{
    struct k3_load_rank_report report;
    assert_int_equal(k3_load_get_rank_report(load, rank, &report, &err), 0);
    assert_string_equal(report.device, device(list));
    assert_int_equal(report.bytes, load->set->manifest.ranks[rank].image_bytes);
}

/* ---- what any driver must pass ---- */

/* Tensors and views by the public calls alone. */
static void check_some_tensors(uint32_t rank)
{
    uint32_t tensors, views;
    assert_int_equal(k3_load_tensor_count(load, rank, &tensors, &views, &err), 0);
    assert_true(tensors > 100 && views > 20);
    for (uint32_t i = 0; i < tensors; i += 7) {
        struct k3_load_tensor tensor;
        uint64_t bytes;
        assert_int_equal(k3_load_tensor(load, rank, i, &tensor, &err), 0);
        uint8_t *slice = mini_set_slice(&one, rank, tensor.name, &bytes);
        assert_int_equal(tensor.bytes, bytes);
        const uint8_t *found = fetch(&load->legs[0], tensor.data, bytes);
        assert_memory_equal(found, slice, bytes);
        free(slice);
    }
}

static void test_whole(void **state)
{
    (void)state;
    static const uint64_t stagings[] = {1, 12 << 20, 0};
    static const char *const engines[] = {"pread", "auto"};
    for (size_t i = 0; i < COUNT_OF(stagings) * 2; i++) {
        const struct mini_set *mini = i % 2 ? &three : &one;
        struct k3_load_options options = options_for(mini, i < 2 ? "" : ":0");
        struct k3_load_report report;
        options.staging_bytes = stagings[i / 2];
        options.io = engines[i % 2];
        assert_int_equal(open_load(&options), 0);
        check_refused();
        for (int turn = 0; turn < 2; turn++) {
            assert_int_equal(k3_load_run(load, &err), 0);
            check_images(mini);
        }
        if (i == 0)
            check_some_tensors(1);
        k3_load_get_report(load, &report);
        assert_int_equal(report.bytes, mini->image_bytes[0] + mini->image_bytes[1]);
        assert_true(report.verified_bytes > report.bytes);
        assert_int_equal(report.reread_units, 0);
        assert_true(report.pinned_bytes >= 2 * (uint64_t)K3_UNIT_BYTES);
        assert_rank_device(0, ":0");
        assert_rank_device(1, ":0");
        close_load();
    }
}

static void test_one_rank(void **state)
{
    (void)state;
    uint32_t ranks[] = {1};
    struct k3_load_options options = options_for(&one, ":0");
    struct k3_load_rank_report report;
    options.ranks = ranks;
    options.rank_count = 1;
    assert_int_equal(open_load(&options), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(&one);
    assert_int_equal(k3_load_get_rank_report(load, 0, &report, NULL), K3_EUSAGE);
}

static void test_bound(void **state)
{
    (void)state;
    static const uint32_t devices[MINI_RANK_COUNT] = {0, 0};
    struct bind_room room;
    const void *data;
    uint64_t bytes;
    bind_room_make(&room, &one, ops, devices);
    struct k3_load_options options = options_for(&one, ":0");
    options.binds = room.binds;
    options.bind_count = room.count;
    assert_int_equal(open_load(&options), 0);
    bind_room_check_untouched(&room);
    for (int turn = 0; turn < 2; turn++) {
        bind_room_poison(&room);
        assert_int_equal(k3_load_run(load, &err), 0);
        bind_room_check(&room, 0, MINI_RANK_COUNT);
        bind_room_check_names(&room, load);
        assert_int_equal(reread_units(), 0);
    }
    assert_int_equal(k3_load_image(load, 0, &data, &bytes, &err), K3_EUSAGE);
    close_load();
    bind_room_check(&room, 0, MINI_RANK_COUNT); /* it is the caller's, and stays */
    room.binds[2].bytes--;
    assert_int_equal(open_load(&options), K3_EUSAGE);
    bind_room_remove(&room);
}

static int cancel_at_once(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)done_bytes;
    (void)total_bytes;
    return *(const int *)context;
}

static void test_cancel(void **state)
{
    (void)state;
    int stops = 1;
    struct k3_load_options options = options_for(&one, ":0");
    options.progress = cancel_at_once;
    options.progress_context = &stops;
    options.bytes_per_second = 50000000; /* reads are in flight when it is first told */
    assert_int_equal(open_load(&options), 0);
    assert_int_equal(k3_load_run(load, &err), K3_ECANCELED);
    check_refused();
    stops = 0;
    load->bytes_per_second = 0;
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(&one);
}

static void test_steps(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, ":0");
    int finished = 0, rc = 0;
    assert_int_equal(open_load(&options), 0);
    while (!finished && !rc)
        rc = k3_load_step(load, 1, &finished, &err);
    assert_int_equal(rc, 0);
    check_images(&one);
    options.bytes_per_second = SLOW_BYTES_SECOND; /* closed in the middle */
    close_load();
    assert_int_equal(open_load(&options), 0);
    assert_int_equal(k3_load_step(load, 1, &finished, &err), 0);
    assert_int_equal(finished, 0);
    check_refused();
}

static void test_index(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, ":200");
    assert_int_equal(open_load(&options), K3_EUNSUPPORTED);
    assert_null(load);
    assert_int_equal(k3_exit_code(err.rc), 4);
    assert_non_null(strstr(err.text, device(":200: there are ")));
}

/* A file with a flipped bit is named; the device is not blamed. */
static void test_flipped_file(void **state)
{
    (void)state;
    struct k3_load_options options = options_for(&one, ":0");
    char path[256];
    const struct k3_part_entry *part = mini_set_part(&one, 1, 2);
    mini_set_part_path(&one, 1, 2, path);
    assert_int_equal(open_load(&options), 0);
    mini_set_flip(path, part->data_offset + 77);
    int rc = k3_load_run(load, &err);
    mini_set_flip(path, part->data_offset + 77);
    assert_int_equal(rc, K3_ECORRUPT);
    assert_string_equal(err.file, "model-rank-1-part-2.safetensors");
    assert_int_equal(err.offset, part->data_offset);
    check_refused();
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(&one);
}

/* ---- several devices ---- */

static void load_on(const char *list, const char *first, const char *second)
{
    struct k3_load_options options = options_for(&three, list);
    assert_int_equal(open_load(&options), 0);
    assert_int_equal(load->leg_count, 2);
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(k3_load_run(load, &err), 0);
        check_images(&three);
    }
    assert_rank_device(0, first);
    assert_rank_device(1, second);
    close_load();
}

static void test_two_devices(void **state)
{
    (void)state;
    load_on(":0-1", ":0", ":1");
    load_on(":1,0", ":1", ":0");
    static const uint32_t devices[MINI_RANK_COUNT] = {1, 0};
    struct bind_room room;
    bind_room_make(&room, &one, ops, devices);
    struct k3_load_options options = options_for(&one, ":1,0");
    options.binds = room.binds;
    options.bind_count = room.count;
    assert_int_equal(open_load(&options), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    bind_room_check(&room, 0, MINI_RANK_COUNT);
    bind_room_check_names(&room, load);
    close_load();
    bind_room_remove(&room);
}

/* Settings of the fake from here on; NULL: its default. */
static void set_fake(const char *name, const char *value)
{
    if (value)
        assert_int_equal(setenv(name, value, 1), 0);
    else
        unsetenv(name);
    control(NULL);
}

static void test_four_devices(void **state)
{
    (void)state;
    set_fake("FAKE_GPU_COUNT", "4");
    load_on(":3,1", ":3", ":1");
    struct k3_load_options options = options_for(&one, ":0-2");
    assert_int_equal(open_load(&options), K3_EUSAGE);
    assert_non_null(strstr(err.text, "3 devices for 2 ranks"));
    options.device = device(":3,4");
    assert_int_equal(open_load(&options), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, device(":4: there are 4 here")));
    assert_nothing_left();
    set_fake("FAKE_GPU_COUNT", NULL);
}

/* What is needed and what is free, in the text; two devices take what one cannot. */
static void test_no_memory(void **state)
{
    (void)state;
    char bytes[64];
    struct k3_load_options options = options_for(&three, ":0");
    /* Room for the image of one rank and for small things beside it. */
    const uint64_t room = three.image_bytes[0] + three.image_bytes[1] / 2;
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)room);
    set_fake("FAKE_GPU_MEMORY_BYTES", bytes);
    assert_int_equal(open_load(&options), K3_EUNSUPPORTED);
    assert_null(load);
    assert_int_equal(k3_exit_code(err.rc), 4);
    snprintf(bytes, sizeof bytes, "%llu bytes of its memory are needed",
             (unsigned long long)three.image_bytes[1]);
    assert_non_null(strstr(err.text, bytes));
    snprintf(bytes, sizeof bytes, " of %llu are free", (unsigned long long)room);
    assert_non_null(strstr(err.text, bytes));
    assert_nothing_left();
    load_on(":0-1", ":0", ":1");
    assert_nothing_left();
    set_fake("FAKE_GPU_MEMORY_BYTES", NULL);
}

/* Killed in the middle: it ends, and the next load is as good as any. */
static void test_killed(void **state)
{
    (void)state;
    int ends[2], status;
    char byte;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (dup2(ends[1], STDOUT_FILENO) < 0)
            _exit(126);
        unsetenv("FAKE_GPU_REPORT");
        execl("/proc/self/exe", "test_load_gpu", "slow", ops->name, one.dirs[0], (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(ends[0]);
    struct k3_load_options options = options_for(&one, ":0");
    assert_int_equal(open_load(&options), 0);
    assert_int_equal(k3_load_run(load, &err), 0);
    check_images(&one);
}

/* ---- one fault after the other ---- */

enum outcome { HEALED, HARMLESS_OR_HEALED, HEALED_OR_NAMED, NAMED };

static const struct fault_row {
    const char *what;
    const char *cuda, *hip; /* of the fake, before ":N"; NULL: one of those below */
    enum fault_io_kind io;
    enum fault_dev_kind dev;
    enum outcome outcome;
    uint32_t count;
} rows[] = {
    {"bit flips in a slot", NULL, NULL, FAULT_IO_WRONG, 0, HEALED, 1},
    {"stale slot", NULL, NULL, FAULT_IO_STALE, 0, HEALED, 1},
    {"short read", NULL, NULL, FAULT_IO_PARTIAL, 0, HEALED, 1},
    {"EIO", NULL, NULL, FAULT_IO_FAILING, 0, HEALED, 1},
    {"late read", NULL, NULL, FAULT_IO_LATE, 0, HARMLESS_OR_HEALED, 1},
    /* Its place may be that of the zeros for pads: then no second read helps. */
    {"copy to a wrong place", NULL, NULL, 0, FAULT_DEV_MISPLACE, HEALED_OR_NAMED, 1},
    {"bit flips in device memory", "flip", "flip", 0, 0, HEALED, 1},
    {"two bits flip", "flip", "flip", 0, 0, HEALED_OR_NAMED, 2},
    {"copy skipped", "skip", "skip", 0, 0, HEALED, 1},
    {"slots swapped", "swap", "swap", 0, 0, HARMLESS_OR_HEALED, 1},
    {"late event", "late", "late", 0, 0, HARMLESS_OR_HEALED, 1},
    {"launch does nothing", "idle", "idle", 0, 0, HEALED, 1},
    {"answers of neighbours", "other", "other", 0, 0, HARMLESS_OR_HEALED, 1},
    {"launch says wrong", "no", "no", 0, 0, HEALED, 1},
    {"device breaks", "break", "break", 0, 0, NAMED, 1},
    {"memory is bad", "flip", "flip", 0, 0, NAMED, ALWAYS},
    {"no launch runs", "idle", "idle", 0, 0, NAMED, ALWAYS},
    {"copy refused", "fail=cuMemcpyHtoDAsync_v2=700", "fail=hipMemcpyHtoDAsync=700", 0, 0, NAMED,
     1},
    {"launch refused", "fail=cuLaunchKernel=719", "fail=hipModuleLaunchKernel=719", 0, 0, NAMED, 1},
    {"event refused", "fail=cuEventRecord=700", "fail=hipEventRecord=700", 0, 0, NAMED, 1},
    {"wait fails", "fail=cuEventSynchronize=700", "fail=hipEventSynchronize=700", 0, 0, NAMED, 1},
};

/* Where it is spoilt: on one device, one rank; two ranks with slots of several reads and a check
 * for each slot, lane by lane; into memory of the caller; on two devices. */
enum mode { ON_ONE, BY_CHUNK, INTO_VIEWS, ON_TWO, MODE_COUNT };

static struct bind_room fault_room;
static struct {
    uint64_t turn; /* the next one to be spoilt */
    uint64_t hit_count, healed_count, harmless_count, named_count;
} tallies[COUNT_OF(rows)][MODE_COUNT];

/* Faults that the fake cannot make are made by tables around ours, which serve one device.  Two
 * copies to one place are a race by intent, and no test for ThreadSanitizer. */
static bool is_possible(const struct fault_row *row, enum mode mode)
{
#ifdef __SANITIZE_THREAD__
    if (row->dev == FAULT_DEV_MISPLACE || (row->cuda && !strcmp(row->cuda, "swap")))
        return false;
#endif
    return row->cuda || mode != ON_TWO;
}

static void open_for_fault(const struct fault_row *row, enum mode mode, uint64_t turn)
{
    static const uint32_t last_rank[] = {MINI_RANK_COUNT - 1};
    const struct fault_io_rule io_rule = {row->io, turn, row->count};
    const struct fault_dev_rule dev_rule = {row->dev, turn, row->count};
    struct k3_load_options options = options_for(&one, mode == ON_TWO ? ":0-1" : ":0");
    if (mode == ON_ONE) { /* the fewest slots */
        options.staging_bytes = 1;
        options.ranks = last_rank;
        options.rank_count = 1;
    }
    if (mode == BY_CHUNK)
        options.staging_bytes = WIDE_STAGING_BYTES;
    if (mode == INTO_VIEWS) {
        bind_room_poison(&fault_room);
        options.binds = fault_room.binds;
        options.bind_count = fault_room.count;
    }
    k3_err_init(&err);
    const struct k3_io_ops *io_ops = fault_io(&k3_io_pread, row->io ? &io_rule : NULL);
    const struct k3_dev_ops *dev_ops = row->dev ? fault_dev(ops, &dev_rule) : NULL;
    int rc = k3_load_open_with(&options, mode == ON_TWO ? NULL : io_ops, dev_ops, &load, &err);
    if (rc)
        print_message("%s: %s\n", row->what, err.text);
    assert_int_equal(rc, 0);
    for (uint32_t i = 0; mode == BY_CHUNK && i < load->leg_count; i++)
        load->legs[i].batch_units = 1;
}

/* A load that failed says whose fault it is, and where the bytes are wrong. */
static void assert_named(const struct fault_row *row, int rc)
{
    char unit[64];
    const bool has_place = strstr(err.text, "right in the file but wrong") != NULL;
    bool is_good = rc == K3_EDEVICE && k3_exit_code(rc) == 1 && strstr(err.text, "device ") &&
                   strstr(err.text, row->dev ? "fault:0" : ops->name);
    if (has_place) {
        snprintf(unit, sizeof unit, "unit %lld is right", (long long)(err.offset / K3_UNIT_BYTES));
        is_good = is_good && strstr(err.text, unit) && strstr(err.text, err.file) &&
                  !strncmp(err.file, "model-rank-", 11);
    }
    if (!is_good || (row->count == ALWAYS && !has_place))
        print_message("%s: %d %s\n", row->what, rc, err.text);
    assert_true(is_good);
    assert_true(row->count != ALWAYS || has_place);
    check_refused();
}

static void check_bytes(enum mode mode)
{
    if (mode == INTO_VIEWS)
        bind_room_check(&fault_room, 0, MINI_RANK_COUNT);
    else
        check_images(&one);
}

/* One load with one fault.  False: the turn lies behind the last one, nothing was spoilt. */
static bool inject(size_t at, enum mode mode, uint64_t turn)
{
    const struct fault_row *row = &rows[at];
    char fault[96];
    open_for_fault(row, mode, turn);
    if (row->cuda)
        snprintf(fault, sizeof fault, "%s:%llu:%u", named(row->cuda, row->hip),
                 (unsigned long long)turn, row->count);
    control(row->cuda ? fault : NULL);
    const int rc = k3_load_run(load, &err);
    const char *report = control(NULL);
    const uint64_t hits = row->io    ? fault_io_hit_count()
                          : row->dev ? fault_dev_hit_count()
                                     : (uint64_t)reported(report, "faults");
    /* (Two copies to one place change under each other.) */
    const bool is_changed = !row->dev && reported(report, "changed") != 0;
    const uint64_t healed = rc ? 0 : reread_units();
    if (rc)
        assert_named(row, rc);
    else
        check_bytes(mode);
    /* A bit of a slot that belongs in a pad goes nowhere. */
    const bool may_be_pad = mode == INTO_VIEWS && row->io == FAULT_IO_WRONG;
    bool is_good = !is_changed && (hits || !(rc || healed));
    if (hits && row->outcome == NAMED)
        is_good = is_good && rc;
    if (hits && row->outcome == HEALED)
        is_good = is_good && (healed || may_be_pad);
    if (hits && row->outcome == HEALED_OR_NAMED)
        is_good = is_good && (healed || rc);
    if (row->outcome == HEALED || row->outcome == HARMLESS_OR_HEALED)
        is_good = is_good && !rc;
    close_load();
    report = control(NULL);
    /* The room has a device for each rank, with a context, a stream, events and memory. */
    if (mode != INTO_VIEWS)
        is_good = is_good && left(report) == 0;
    if (!is_good)
        print_message("%s, mode %d, turn %llu: %d %s; %llu spoilt, %llu healed\n%s", row->what,
                      (int)mode, (unsigned long long)turn, rc, err.text, (unsigned long long)hits,
                      (unsigned long long)healed, report);
    assert_true(is_good);
    tallies[at][mode].hit_count += hits > 0;
    tallies[at][mode].healed_count += hits && healed;
    tallies[at][mode].harmless_count += hits && !healed && !rc;
    tallies[at][mode].named_count += hits && rc;
    return hits > 0;
}

static void print_tallies(void)
{
    uint64_t sums[4] = {0};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint64_t row[4] = {0};
        for (int mode = 0; mode < MODE_COUNT; mode++) {
            row[0] += tallies[i][mode].hit_count;
            row[1] += tallies[i][mode].healed_count;
            row[2] += tallies[i][mode].harmless_count;
            row[3] += tallies[i][mode].named_count;
        }
        print_message("%-28s %4llu: %4llu healed, %4llu harmless, %4llu named\n", rows[i].what,
                      (unsigned long long)row[0], (unsigned long long)row[1],
                      (unsigned long long)row[2], (unsigned long long)row[3]);
        for (int k = 0; k < 4; k++)
            sums[k] += row[k];
    }
    print_message("%s: %llu faults: %llu healed, %llu harmless, %llu named, no wrong byte\n",
                  ops->name, (unsigned long long)sums[0], (unsigned long long)sums[1],
                  (unsigned long long)sums[2], (unsigned long long)sums[3]);
}

static void inject_in(enum mode mode, uint32_t wanted_count)
{
    uint32_t count = 0;
    for (uint32_t i = 0; count < wanted_count; i++) {
        const size_t at = (i + 6u * mode) % COUNT_OF(rows); /* few are not always the first */
        char seed[16];
        if (!is_possible(&rows[at], mode))
            continue;
        snprintf(seed, sizeof seed, "%u", i + 1);
        assert_int_equal(setenv("FAKE_GPU_SEED", seed, 1), 0);
        uint64_t *turn = &tallies[at][mode].turn;
        bool was_hit = inject(at, mode, ++*turn);
        assert_true(was_hit || *turn > 1); /* each fault has a first turn */
        count += was_hit;
        *turn = was_hit ? *turn + *turn * 5 % 7 : 0;
    }
    unsetenv("FAKE_GPU_SEED");
}

static void test_faults(void **state)
{
    (void)state;
    static const uint32_t devices[MINI_RANK_COUNT] = {0, 0};
    const char *text = getenv("K3_FAULTS");
    const uint32_t count = text ? (uint32_t)strtoul(text, NULL, 10) : SAMPLE_COUNT;
    memset(tallies, 0, sizeof tallies);
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        if (mode == INTO_VIEWS)
            bind_room_make(&fault_room, &one, ops, devices);
        inject_in((enum mode)mode, count / MODE_COUNT);
        if (mode == INTO_VIEWS) {
            bind_room_remove(&fault_room);
            memset(&fault_room, 0, sizeof fault_room);
            assert_nothing_left();
        }
    }
    print_tallies();
}

/* ---- running ---- */

#define LOAD_TEST(f) cmocka_unit_test_setup_teardown(f, begin_test, end_test)

static int run_any(void)
{
    const struct CMUnitTest tests[] = {
        LOAD_TEST(test_whole),        LOAD_TEST(test_one_rank), LOAD_TEST(test_bound),
        LOAD_TEST(test_cancel),       LOAD_TEST(test_steps),    LOAD_TEST(test_index),
        LOAD_TEST(test_flipped_file),
    };
    const struct CMUnitTest two_tests[] = {LOAD_TEST(test_two_devices)};
    int failed = cmocka_run_group_tests_name("load on any driver", tests, NULL, NULL);
    if (ops->probe(1, NULL) == 0)
        failed += cmocka_run_group_tests_name("load on two devices", two_tests, NULL, NULL);
    return failed;
}

static int run_fake(void)
{
    const struct CMUnitTest tests[] = {LOAD_TEST(test_four_devices), LOAD_TEST(test_no_memory),
                                       LOAD_TEST(test_killed), LOAD_TEST(test_faults)};
    const int opened = open_fake();
    if (opened <= 0)
        return opened < 0;
    int failed = run_any();
    assert_nothing_left();
    return failed + cmocka_run_group_tests_name("load on a fake driver", tests, NULL, NULL);
}

static int run_refused(const char *text)
{
    struct k3_load_options options = options_for(&one, ":0");
    int rc = open_load(&options);
    if (rc == K3_EUNSUPPORTED && k3_exit_code(rc) == 4 && !load && strstr(err.text, text))
        return 0;
    printf("%d %s\n", rc, err.text);
    return 1;
}

static int tell_parent(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)context;
    (void)done_bytes;
    (void)total_bytes;
    return write(STDOUT_FILENO, "r", 1) != 1;
}

static int run_slow(const char *dir)
{
    const char *dirs[] = {dir};
    struct k3_load_options options = {.struct_bytes = sizeof options,
                                      .dirs = dirs,
                                      .dir_count = 1,
                                      .device = device(":0"),
                                      .bytes_per_second = SLOW_BYTES_SECOND,
                                      .progress = tell_parent};
    return open_load(&options) || k3_load_run(load, &err);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *drivers, *setting, *kind, *text;
    } cases[] = {
        {"fake_bad", NULL, "cuda", "device cuda: no libcuda.so.1 on this machine"},
        {"fake_bad", NULL, "hip", "device hip: no libamdhip64.so."},
        {"fake_old", NULL, "cuda", "a newer driver is needed"},
        {"fake", "FAKE_GPU_COUNT=0", "cuda", "does not start: CUDA_ERROR_NO_DEVICE"},
        {"fake", "FAKE_GPU_MEMORY_BYTES=3000000", "hip", "bytes of its memory are needed, "},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_int_equal(run_again(cases[i].drivers, cases[i].setting,
                                   (const char *[]){"refused", cases[i].kind, cases[i].text}),
                         0);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused)};
    if (again_begin())
        return 1;
    int failed = cmocka_run_group_tests_name("loads without a driver", tests, NULL, NULL);
    failed += run_again("fake", NULL, (const char *[]){"fake", "cuda", NULL}) != 0;
    failed += run_again("fake", NULL, (const char *[]){"fake", "hip", NULL}) != 0;
    unlink(report_path);
    return failed;
}

/* What needs sets. */
static int run_with_sets(int argc, char **argv)
{
    int failed = 1;
    mini_set_make(&one, 1);
    mini_set_make(&three, 3);
    if (!strcmp(argv[1], "real"))
        failed = run_real(run_any, argc - 2, argv + 2);
    else if (!strcmp(argv[1], "refused") && argc == 4 && !choose(argv[2]))
        failed = run_refused(argv[3]);
    else if (!strcmp(argv[1], "fake") && argc == 3 && !choose(argv[2]))
        failed = run_fake();
    mini_set_remove(&one);
    mini_set_remove(&three);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return run_all() != 0;
    if (argc == 4 && !strcmp(argv[1], "slow") && !choose(argv[2]))
        return run_slow(argv[3]);
    snprintf(report_path, sizeof report_path, "%s",
             getenv("FAKE_GPU_REPORT") ? getenv("FAKE_GPU_REPORT") : "");
    return run_with_sets(argc, argv) != 0;
}
