/* Purpose: rows of a matrix to a GPU, through a kernel of casts, and back.
 * Owns: the code on the GPU; of each lane a stream, events, pinned pieces and device memory.
 * Threads: a GPU is shared, a lane is used by one thread at a time; the thread keeps the GPU
 * context it had before. Errors: those of the CPU's functions, asked when a row was marked bad;
 * K3_EUNSUPPORTED, K3_EDEVICE, K3_ENOMEM. Invariants: no call returns before the GPU is done with
 * its memory; a lane that failed is used no more; a GPU casts for nobody before it cast the
 * self-test as the CPU does. */
#include "cast_gpu.h"

#include "bytes.h"
#include "cast_call.h"
#include "gpu_kernels.h"
#include "num.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(K3_CAST_KERNEL_MAX <= K3_GPU_FUNCTION_COUNT_MAX, "room for what is looked up");

/* Bytes go through pinned pieces in turn: while one is copied the next is filled. */
#define PIECE_COUNT 8u
#define PIECE_BYTES (K3_CAST_LANE_BYTES / PIECE_COUNT)
/* Rows of one launch: enough for a GPU to be busy, bounded so that its memory is. */
#define BATCH_BYTES ((uint64_t)64 << 20)
#define BATCH_ROWS  128u /* and whole tiles of FP8 blocks */
/* By way of BF16. */
#define STEP_COUNT_MAX 2u
/* Flag of both drivers: pinned for all contexts. */
#define HOST_PORTABLE 1u

/* Memory of a lane on the device. */
enum { X, X_SCALE, BF16, WEIGHT, SCALE, RESULTS, BUFFER_COUNT };

struct buffer {
    void *data;
    uint64_t bytes;
};

struct k3_cast_gpu {
    struct k3_gpu gpu;
    struct k3_gpu_code code;
    bool has_context;
};

struct piece {
    uint8_t *data;              /* pinned */
    struct k3_gpu_event *event; /* behind its last copy */
    void *target; /* where the bytes go that this copy brings; NULL: it took them there */
    size_t bytes;
    bool is_busy; /* the copy may not be over */
};

struct k3_cast_lane {
    const struct k3_cast_gpu *owner;
    struct k3_gpu_stream *stream;
    struct piece pieces[PIECE_COUNT];
    uint32_t next; /* piece */
    struct buffer buffers[BUFFER_COUNT];
    uint64_t batch_bytes; /* of the rows of one launch */
    bool has_failed;
};

static int judge(const struct k3_cast_lane *lane, int code, const char *what, struct k3_err *err)
{
    return k3_gpu_judge(&lane->owner->gpu, code, what, err);
}

static const struct k3_gpu_api *api_of(const struct k3_cast_lane *lane)
{
    return lane->owner->gpu.api;
}

/* ---- bytes to the device and back ---- */

/* Its last copy is over, and what it brought lies where it was wanted. */
static int settle_piece(struct k3_cast_lane *lane, struct piece *piece, struct k3_err *err)
{
    if (!piece->is_busy)
        return 0;
    piece->is_busy = false;
    int rc = judge(lane, api_of(lane)->event_synchronize(piece->event), "waiting for a copy", err);
    if (!rc && piece->target)
        memcpy(piece->target, piece->data, piece->bytes);
    return rc;
}

/* The piece that has been copied longest, free. */
static int take_piece(struct k3_cast_lane *lane, struct piece **piece, struct k3_err *err)
{
    *piece = &lane->pieces[lane->next];
    lane->next = (lane->next + 1) % PIECE_COUNT;
    return settle_piece(lane, *piece, err);
}

/* A copy of the piece was put on the stream. */
static int mark_piece(struct k3_cast_lane *lane, struct piece *piece, int code, void *target,
                      struct k3_err *err)
{
    int rc = judge(lane, code, target ? "a copy back" : "a copy", err);
    if (!rc)
        rc = judge(lane, api_of(lane)->event_record(piece->event, lane->stream), "an event", err);
    piece->target = target;
    piece->is_busy = !rc;
    return rc;
}

static size_t piece_bytes(uint64_t bytes, uint64_t at)
{
    return bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
}

/* The source may change when this is back; the bytes are on their way. */
static int put(struct k3_cast_lane *lane, int buffer, const void *source, uint64_t bytes,
               struct k3_err *err)
{
    uint8_t *to = lane->buffers[buffer].data;
    struct piece *piece;
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc; at += PIECE_BYTES) {
        rc = take_piece(lane, &piece, err);
        if (rc)
            break;
        piece->bytes = piece_bytes(bytes, at);
        memcpy(piece->data, (const uint8_t *)source + at, piece->bytes);
        int code = api_of(lane)->copy_to_device(to + at, piece->data, piece->bytes, lane->stream);
        rc = mark_piece(lane, piece, code, NULL, err);
    }
    return rc;
}

/* The target is filled by the time of `finish`. */
static int get(struct k3_cast_lane *lane, void *target, int buffer, uint64_t bytes,
               struct k3_err *err)
{
    const uint8_t *from = lane->buffers[buffer].data;
    struct piece *piece;
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc; at += PIECE_BYTES) {
        rc = take_piece(lane, &piece, err);
        if (rc)
            break;
        piece->bytes = piece_bytes(bytes, at);
        int code = api_of(lane)->copy_to_host(piece->data, from + at, piece->bytes, lane->stream);
        rc = mark_piece(lane, piece, code, (uint8_t *)target + at, err);
    }
    return rc;
}

static int finish(struct k3_cast_lane *lane, struct k3_err *err)
{
    int rc = 0;
    for (uint32_t n = 0; n < PIECE_COUNT && !rc; n++)
        rc = settle_piece(lane, &lane->pieces[(lane->next + n) % PIECE_COUNT], err);
    return rc;
}

static int fail_memory(const struct k3_cast_lane *lane, uint64_t bytes, struct k3_err *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    (void)api_of(lane)->memory_info(&free_bytes, &total_bytes);
    return k3_fail(err, K3_EUNSUPPORTED,
                   "device %s:%u: %" PRIu64
                   " bytes of its memory are needed for a cast, %zu of %zu "
                   "are free: free some, use fewer --jobs, or cast on the CPU",
                   api_of(lane)->name, lane->owner->gpu.index, bytes, free_bytes, total_bytes);
}

/* At least `bytes` in a buffer; nothing of the lane runs now. */
static int grow(struct k3_cast_lane *lane, int buffer, uint64_t bytes, struct k3_err *err)
{
    struct buffer *b = &lane->buffers[buffer];
    void *data = NULL;
    if (bytes <= b->bytes)
        return 0;
    if (b->data)
        (void)api_of(lane)->mem_free(b->data);
    *b = (struct buffer){.data = NULL};
    int code = api_of(lane)->mem_alloc(&data, (size_t)bytes);
    if (code == K3_GPU_OUT_OF_MEMORY)
        return fail_memory(lane, bytes, err);
    int rc = judge(lane, code, "memory of a cast", err);
    if (!rc)
        *b = (struct buffer){.data = data, .bytes = bytes};
    return rc;
}

/* ---- a batch of rows ---- */

/* What one call casts. */
struct cast {
    const struct k3_quant *quant;
    const struct k3_qrows *rows;
    struct k3_qstats *stats;
    struct k3_qgeom geom; /* of what the rows become */
    uint64_t x_row_bytes, x_scale_row_bytes;
    enum k3_qfmt from;
    uint32_t step_count; /* launches of a batch */
    bool is_refused;     /* the cast does not take them, says the GPU */
};

/* One launch; where there are two, the second reads what the first wrote. */
struct step {
    enum k3_qfmt from;
    struct k3_quant quant;
    struct k3_qrows rows; /* on the device */
};

struct batch {
    struct k3_qrows rows; /* of the host */
    struct k3_qgeom geom;
    struct step steps[STEP_COUNT_MAX];
    struct k3_cast_result results[STEP_COUNT_MAX];
};

/* The first step out of MXFP4 where there are two. */
static struct k3_quant to_bf16(const struct k3_quant *quant)
{
    struct k3_quant first = *quant;
    first.params.to = K3_Q_BF16;
    return first;
}

static void *on_device(const struct k3_cast_lane *lane, int buffer)
{
    return lane->buffers[buffer].data;
}

/* Memory for all that the batch reads and makes. */
static int grow_all(struct k3_cast_lane *lane, const struct cast *cast, const struct batch *batch,
                    struct k3_err *err)
{
    const uint64_t rows = batch->rows.row_count;
    int rc = grow(lane, X, rows * cast->x_row_bytes, err);
    if (!rc)
        rc = grow(lane, X_SCALE, rows * cast->x_scale_row_bytes, err);
    if (!rc && cast->step_count > 1)
        rc = grow(lane, BF16, rows * cast->quant->cols * 2, err);
    if (!rc)
        rc = grow(lane, WEIGHT, batch->geom.weight_bytes, err);
    if (!rc)
        rc = grow(lane, SCALE, batch->geom.scale_bytes, err);
    return rc ? rc : grow(lane, RESULTS, sizeof batch->results, err);
}

/* What the launches are asked, in addresses of the device. */
static void set_steps(const struct k3_cast_lane *lane, const struct cast *cast, struct batch *batch)
{
    struct step *first = &batch->steps[0], *last = &batch->steps[cast->step_count - 1];
    *last = (struct step){.from = cast->from, .quant = *cast->quant, .rows = batch->rows};
    if (first != last) {
        *first = *last;
        first->quant = to_bf16(cast->quant);
        first->rows.weight = on_device(lane, BF16);
        first->rows.scale = NULL;
        last->from = K3_Q_BF16;
        last->rows.x = on_device(lane, BF16);
        last->rows.x_scale = NULL;
    }
    first->rows.x = on_device(lane, X);
    first->rows.x_scale = cast->x_scale_row_bytes ? on_device(lane, X_SCALE) : NULL;
    last->rows.weight = on_device(lane, WEIGHT);
    last->rows.scale = batch->geom.scale_bytes ? on_device(lane, SCALE) : NULL;
}

static int launch(struct k3_cast_lane *lane, const struct step *step, uint32_t number,
                  struct k3_err *err)
{
    struct k3_cast_call call;
    uint32_t f = 0;
    k3_cast_call_make(step->from, &step->quant, &step->rows,
                      (uintptr_t)on_device(lane, RESULTS) + number * sizeof(struct k3_cast_result),
                      &call);
    while (k3_cast_kernels[f] != call.kernel)
        f++;
    void *arguments[] = {&call.ask};
    int code = api_of(lane)->launch(lane->owner->code.functions[f], call.grid, 1, 1, call.block, 1,
                                    1, 0, lane->stream, arguments, NULL);
    return judge(lane, code, call.kernel, err);
}

/* What the GPU said of each step; the statistics are those of the last. */
static void take_results(struct cast *cast, const struct batch *batch)
{
    for (uint32_t s = 0; s < cast->step_count && !cast->is_refused; s++) {
        const struct step *step = &batch->steps[s];
        struct k3_qstats ignored;
        k3_qstats_init(&ignored);
        cast->is_refused = !k3_cast_call_take(step->from, &step->quant, &step->rows,
                                              &batch->results[s],
                                              s + 1 < cast->step_count ? &ignored : cast->stats);
    }
}

/* Rows there, cast, and back. */
static int cast_batch(struct k3_cast_lane *lane, struct cast *cast, struct batch *batch,
                      struct k3_err *err)
{
    const uint64_t rows = batch->rows.row_count;
    int rc = grow_all(lane, cast, batch, err);
    if (rc)
        return rc;
    set_steps(lane, cast, batch);
    rc = put(lane, X, batch->rows.x, rows * cast->x_row_bytes, err);
    if (!rc)
        rc = put(lane, X_SCALE, batch->rows.x_scale, rows * cast->x_scale_row_bytes, err);
    if (!rc)
        rc = put(lane, RESULTS, batch->results, sizeof batch->results, err);
    for (uint32_t s = 0; s < cast->step_count && !rc; s++)
        rc = launch(lane, &batch->steps[s], s, err);
    if (!rc)
        rc = get(lane, batch->results, RESULTS, sizeof batch->results, err);
    if (!rc)
        rc = get(lane, batch->rows.weight, WEIGHT, batch->geom.weight_bytes, err);
    if (!rc)
        rc = get(lane, batch->rows.scale, SCALE, batch->geom.scale_bytes, err);
    if (!rc)
        rc = finish(lane, err);
    if (!rc)
        take_results(cast, batch);
    return rc;
}

/* Rows of one launch: whole tiles of FP8 blocks. */
static uint64_t batch_rows(const struct k3_cast_lane *lane, uint64_t row_bytes)
{
    uint64_t rows = lane->batch_bytes / row_bytes / BATCH_ROWS * BATCH_ROWS;
    return rows ? rows : BATCH_ROWS;
}

static int cast_entered(struct k3_cast_lane *lane, struct cast *cast, struct k3_err *err)
{
    const struct k3_qrows *rows = cast->rows;
    const uint64_t step = batch_rows(lane, cast->x_row_bytes);
    const uint64_t scale_rows = cast->geom.group_rows ? cast->geom.group_rows : 1;
    int rc = 0;
    for (uint64_t at = 0; at < rows->row_count && !rc && !cast->is_refused; at += step) {
        const uint64_t left = rows->row_count - at;
        struct batch batch = {.rows = *rows};
        batch.rows.row_first += at;
        batch.rows.row_count = left < step ? left : step;
        batch.rows.x = (const uint8_t *)rows->x + at * cast->x_row_bytes;
        if (rows->x_scale)
            batch.rows.x_scale = (const uint8_t *)rows->x_scale + at * cast->x_scale_row_bytes;
        batch.rows.weight = (uint8_t *)rows->weight + at * cast->geom.weight_row_bytes;
        if (rows->scale)
            batch.rows.scale = (uint8_t *)rows->scale +
                               at / scale_rows * cast->geom.scale_row_bytes;
        rc = k3_qfmt_geometry(cast->quant->params.to, batch.rows.row_count, cast->quant->cols,
                              &batch.geom, err);
        if (!rc)
            rc = cast_batch(lane, cast, &batch, err);
    }
    return rc;
}

/* ---- the call ---- */

static int cpu_rows(const struct k3_quant *quant, enum k3_qfmt from, const struct k3_qrows *rows,
                    struct k3_qstats *stats, struct k3_err *err)
{
    const enum k3_qroute route = k3_quant_route(from, quant->params.to);
    if (route == K3_QROUTE_QUANT)
        return k3_quant_rows(quant, rows, stats, err);
    if (route == K3_QROUTE_MX)
        return k3_mx_rows(quant, rows, stats, err);
    const struct k3_quant quant_first = to_bf16(quant);
    struct k3_qrows first = *rows, second = *rows;
    struct k3_qstats ignored;
    k3_qstats_init(&ignored);
    first.weight = malloc((size_t)(rows->row_count * quant->cols * 2));
    if (!first.weight)
        return k3_fail(err, K3_ENOMEM, "no memory for a cast by way of BF16");
    first.scale = NULL;
    second.x = first.weight;
    second.x_scale = NULL;
    int rc = k3_mx_rows(&quant_first, &first, &ignored, err);
    if (!rc)
        rc = k3_quant_rows(quant, &second, stats, err);
    free(first.weight);
    return rc;
}

/* The CPU says what is wrong with rows that the GPU refused. */
static int ask_cpu(struct k3_cast_lane *lane, const struct k3_quant *quant, enum k3_qfmt from,
                   const struct k3_qrows *rows, struct k3_err *err)
{
    struct k3_qstats ignored;
    k3_qstats_init(&ignored);
    int rc = cpu_rows(quant, from, rows, &ignored, err);
    if (rc)
        return rc;
    lane->has_failed = true;
    return k3_fail(err, K3_EDEVICE,
                   "device %s:%u: it does not cast rows %" PRIu64 " to %" PRIu64
                   " of tensor %s, which the "
                   "CPU casts: GPU and CPU disagree; test this GPU, or cast on the CPU",
                   api_of(lane)->name, lane->owner->gpu.index, rows->row_first,
                   rows->row_first + rows->row_count - 1, quant->name);
}

/* Sizes, refused in the CPU's words. */
static int begin_cast(struct cast *cast, struct k3_err *err)
{
    const uint64_t cols = cast->quant->cols;
    const enum k3_qroute route = k3_quant_route(cast->from, cast->quant->params.to);
    const bool is_mx = cast->from == K3_Q_MXFP4;
    assert(route > K3_QROUTE_COPY);
    cast->x_row_bytes = is_mx ? cols / 2 : cols * 2;
    cast->x_scale_row_bytes = is_mx ? cols / K3_MX_GROUP : 0;
    cast->step_count = route == K3_QROUTE_VIA_BF16 ? 2 : 1;
    int rc = is_mx ? k3_qfmt_geometry(K3_Q_MXFP4, 1, cols, &cast->geom, err) : 0;
    return rc ? rc
              : k3_qfmt_geometry(cast->quant->params.to, cast->rows->row_count, cols, &cast->geom,
                                 err);
}

int k3_cast_gpu_rows(struct k3_cast_lane *lane, const struct k3_quant *quant, enum k3_qfmt from,
                     const struct k3_qrows *rows, struct k3_qstats *stats, struct k3_err *err)
{
    struct cast cast = {.quant = quant, .rows = rows, .stats = stats, .from = from};
    int saved;
    if (rows->row_count == 0)
        return 0;
    if (lane->has_failed)
        return k3_fail(err, K3_EDEVICE, "device %s:%u: a cast on it has failed before",
                       api_of(lane)->name, lane->owner->gpu.index);
    int rc = begin_cast(&cast, err);
    if (!rc)
        rc = k3_gpu_enter(&lane->owner->gpu, &saved, err);
    if (rc)
        return rc;
    rc = cast_entered(lane, &cast, err);
    if (rc) { /* what still runs must not outlive the call */
        (void)api_of(lane)->stream_synchronize(lane->stream);
        lane->has_failed = true;
    }
    k3_gpu_leave(&lane->owner->gpu, saved);
    return cast.is_refused ? ask_cpu(lane, quant, from, rows, err) : rc;
}

/* ---- lanes ---- */

static int open_lane(struct k3_cast_lane *lane, struct k3_err *err)
{
    void *data = NULL;
    int rc = judge(lane, api_of(lane)->stream_create(&lane->stream, K3_GPU_STREAM_PARALLEL),
                   "a stream", err);
    if (!rc)
        rc = judge(lane, api_of(lane)->host_alloc(&data, K3_CAST_LANE_BYTES, HOST_PORTABLE),
                   "pinned memory", err);
    for (uint32_t p = 0; p < PIECE_COUNT && !rc; p++) {
        struct piece *piece = &lane->pieces[p];
        piece->data = (uint8_t *)data + p * PIECE_BYTES;
        rc = judge(lane, api_of(lane)->event_create(&piece->event, K3_GPU_EVENT_PLAIN), "an event",
                   err);
    }
    return rc;
}

int k3_cast_lane_open(struct k3_cast_gpu *gpu, struct k3_cast_lane **out, struct k3_err *err)
{
    int saved;
    *out = NULL;
    struct k3_cast_lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return k3_fail(err, K3_ENOMEM, "no memory for a lane of casts");
    lane->owner = gpu;
    lane->batch_bytes = BATCH_BYTES;
    int rc = k3_gpu_enter(&gpu->gpu, &saved, err);
    if (!rc) {
        rc = open_lane(lane, err);
        k3_gpu_leave(&gpu->gpu, saved);
    }
    if (rc)
        k3_cast_lane_close(lane);
    else
        *out = lane;
    return rc;
}

void k3_cast_lane_limit(struct k3_cast_lane *lane, uint64_t bytes)
{
    lane->batch_bytes = bytes;
}

void k3_cast_lane_close(struct k3_cast_lane *lane)
{
    int saved;
    if (!lane)
        return;
    const struct k3_gpu_api *api = api_of(lane);
    if (k3_gpu_enter(&lane->owner->gpu, &saved, NULL) == 0) {
        if (lane->stream)
            (void)api->stream_synchronize(lane->stream);
        for (int b = 0; b < BUFFER_COUNT; b++)
            if (lane->buffers[b].data)
                (void)api->mem_free(lane->buffers[b].data);
        if (lane->pieces[0].data) /* of all of them */
            (void)api->host_free(lane->pieces[0].data);
        for (uint32_t p = 0; p < PIECE_COUNT; p++)
            if (lane->pieces[p].event)
                (void)api->event_destroy(lane->pieces[p].event);
        if (lane->stream)
            (void)api->stream_destroy(lane->stream);
        k3_gpu_leave(&lane->owner->gpu, saved);
    }
    free(lane);
}

/* ---- the self-test ---- */

#define TEST_ROWS   3u
#define TEST_COLS   256u /* of every format whole groups, and two blocks */
#define TEST_VALUES (TEST_ROWS * TEST_COLS)

struct self_test {
    uint8_t bf16[TEST_VALUES * 2], codes[TEST_VALUES / 2], code_scales[TEST_VALUES / K3_MX_GROUP];
    uint8_t weight[2][TEST_VALUES * 2], scale[2][TEST_VALUES / 8]; /* of the CPU, of the GPU */
};

/* Values of all signs and some sizes, the third row half zeros; scales within every window. */
static void fill_self_test(struct self_test *test)
{
    memset(test, 0, sizeof *test);
    for (uint32_t i = 0; i < TEST_VALUES; i++) {
        const uint32_t mixed = i * 2654435761u >> 13;
        const bool is_zero = i / TEST_COLS == 2 && i % TEST_COLS < TEST_COLS / 2;
        const uint32_t exponent = 118 + mixed % 9;
        k3_bf16_put(test->bf16, i, is_zero ? 0 : (uint16_t)((mixed & 0x807f) | exponent << 7));
        if (i % 2 == 0)
            test->codes[i / 2] = (uint8_t)(is_zero ? 0 : mixed >> 4);
        if (i % K3_MX_GROUP == 0)
            test->code_scales[i / K3_MX_GROUP] = (uint8_t)(116 + mixed % 8);
    }
}

static int global_of(const struct self_test *test, enum k3_qfmt from, struct k3_quant *quant,
                     struct k3_err *err)
{
    struct k3_qrows rows = {.x = test->bf16, .row_count = TEST_ROWS};
    struct k3_mx_window window;
    uint16_t amax = 0;
    int rc;
    if (!k3_quant_needs_amax(quant->params.to))
        return 0;
    if (k3_quant_route(from, quant->params.to) != K3_QROUTE_MX) {
        rc = k3_quant_amax(quant, &rows, &amax, err);
        quant->global = k3_quant_global(&quant->params, amax);
        return rc;
    }
    rows.x = test->codes;
    rows.x_scale = test->code_scales;
    k3_mx_window_init(&window, false);
    rc = k3_mx_scan(quant, &rows, &window, err);
    quant->global = k3_mx_global(&quant->params, &window);
    return rc;
}

/* One cast by the CPU and by the GPU. */
static int self_test_cast(struct k3_cast_lane *lane, struct self_test *test, enum k3_qfmt from,
                          enum k3_qfmt to, struct k3_err *err)
{
    const bool is_mx = from == K3_Q_MXFP4;
    struct k3_quant quant = {
        .name = "of the self-test", .params = k3_qparams_default(to), .cols = TEST_COLS};
    struct k3_qstats stats[2];
    int rc = global_of(test, from, &quant, err);
    memset(test->weight, 0, sizeof test->weight);
    memset(test->scale, 0, sizeof test->scale);
    for (int gpu = 0; gpu < 2 && !rc; gpu++) {
        struct k3_qrows rows = {.x = is_mx ? test->codes : test->bf16,
                                .x_scale = is_mx ? test->code_scales : NULL,
                                .row_count = TEST_ROWS,
                                .weight = test->weight[gpu],
                                .scale = test->scale[gpu]};
        k3_qstats_init(&stats[gpu]);
        rc = gpu ? k3_cast_gpu_rows(lane, &quant, from, &rows, &stats[gpu], err)
                 : cpu_rows(&quant, from, &rows, &stats[gpu], err);
    }
    if (rc || (!memcmp(test->weight[0], test->weight[1], sizeof test->weight[0]) &&
               !memcmp(test->scale[0], test->scale[1], sizeof test->scale[0]) &&
               k3_qstats_equal(&stats[0], &stats[1])))
        return rc;
    return k3_fail(err, K3_EDEVICE,
                   "device %s:%u: its cast of known values from %s to %s is not the CPU's: nothing "
                   "can be cast on it; test this GPU, or cast on the CPU",
                   api_of(lane)->name, lane->owner->gpu.index, k3_qfmt_name(from),
                   k3_qfmt_name(to));
}

static int self_test(struct k3_cast_gpu *gpu, struct k3_err *err)
{
    static const enum k3_qfmt sources[] = {K3_Q_BF16, K3_Q_MXFP4};
    struct k3_cast_lane *lane = NULL;
    struct self_test *test = malloc(sizeof *test);
    if (!test)
        return k3_fail(err, K3_ENOMEM, "no memory for the self-test of a GPU");
    fill_self_test(test);
    int rc = k3_cast_lane_open(gpu, &lane, err);
    for (size_t s = 0; s < sizeof sources / sizeof *sources; s++)
        for (int to = K3_Q_BF16; to < K3_QFMT_COUNT && !rc; to++)
            if (k3_quant_route(sources[s], (enum k3_qfmt)to) > K3_QROUTE_COPY)
                rc = self_test_cast(lane, test, sources[s], (enum k3_qfmt)to, err);
    k3_cast_lane_close(lane);
    free(test);
    return rc;
}

/* ---- the GPU ---- */

static int open_gpu(struct k3_cast_gpu *gpu, const struct k3_cast_place *place, struct k3_err *err)
{
    int saved;
    int rc = k3_gpu_find(place->kind, place->index, &gpu->gpu, err);
    if (!rc && place->kind == K3_GPU_CUDA)
        rc = k3_gpu_judge(&gpu->gpu,
                          gpu->gpu.api->cuda_context_retain(&gpu->gpu.context, gpu->gpu.device),
                          "its context", err);
    gpu->has_context = !rc;
    if (!rc)
        rc = k3_gpu_enter(&gpu->gpu, &saved, err);
    if (rc)
        return rc;
    rc = k3_gpu_kernels_load(&gpu->gpu, &k3_cast_program, &gpu->code, err);
    k3_gpu_leave(&gpu->gpu, saved);
    return rc;
}

int k3_cast_gpu_open(const struct k3_cast_place *place, struct k3_cast_gpu **out,
                     struct k3_err *err)
{
    *out = NULL;
    struct k3_cast_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return k3_fail(err, K3_ENOMEM, "no memory for a GPU");
    int rc = open_gpu(gpu, place, err);
    if (!rc)
        rc = self_test(gpu, err);
    if (rc)
        k3_cast_gpu_close(gpu);
    else
        *out = gpu;
    return rc;
}

void k3_cast_gpu_close(struct k3_cast_gpu *gpu)
{
    int saved;
    if (!gpu)
        return;
    if (gpu->code.module && k3_gpu_enter(&gpu->gpu, &saved, NULL) == 0) {
        (void)gpu->gpu.api->module_unload(gpu->code.module);
        k3_gpu_leave(&gpu->gpu, saved);
    }
    if (gpu->has_context && gpu->gpu.api->kind == K3_GPU_CUDA)
        (void)gpu->gpu.api->cuda_context_release(gpu->gpu.device);
    free(gpu);
}
