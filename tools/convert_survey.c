/* Purpose: what must be known of whole matrices before the first is cast: global scales, and
 * whether casts that must be exact can be.
 * Owns: the table of globals; buffers for one matrix while it is looked at.
 * Threads: items side by side; each fills the slots of its own matrices.
 * Errors: K3_EUNSUPPORTED, K3_EFORMAT, K3_EIO, K3_ENOMEM.
 * Invariant: nothing here depends on which ranks are made, so partial sets have the same bytes. */
#include "convert_cast.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BAND_BYTES (4u << 20) /* read at once; rows of any matrix fit many times */

/* One matrix, or its scales, read piece by piece. */
struct look {
    struct k3_survey *survey;
    const struct k3_plan *plan;
    uint8_t *x, *scale, *bf16;
    size_t x_cap, scale_cap, bf16_cap;
};

/* The matrix being looked at, or a cut of it. */
struct matrix {
    struct k3_quant quant;
    enum k3_qfmt from;
    uint32_t slot, scale_slot;
    uint64_t rows, row_bytes, scale_row_bytes;
    char name[K3_ST_NAME_BYTES_MAX + 1];
};

static bool needs_look(enum k3_qfmt from, enum k3_qfmt to)
{
    if (to == K3_Q_VERBATIM)
        return false;
    if (k3_quant_needs_amax(to))
        return true; /* NVFP4 has a global whatever it comes from */
    return from == K3_Q_MXFP4 && to != K3_Q_MXFP8 && to != K3_Q_INT8_G32;
}

bool k3_survey_is_needed(const struct k3_plan *plan)
{
    const struct k3_config *config = &plan->config;
    if (k3_policy_is_verbatim(&plan->policy))
        return false;
    for (uint32_t r = 0; r < config->model->rule_count; r++)
        for (uint32_t layer = 0; layer < config->layer_count; layer++)
            if (needs_look(k3_rule_source_fmt(&config->model->rules[r]),
                           k3_policy_fmt(&plan->policy, config, r, layer)))
                return true;
    return false;
}

int k3_survey_open(const struct k3_ckpt *ckpt, struct k3_survey *survey, struct k3_err *err)
{
    *survey = (struct k3_survey){.ckpt = ckpt};
    survey->globals = calloc(ckpt->plan->slot_count, sizeof *survey->globals);
    return survey->globals ? 0 : k3_fail(err, K3_ENOMEM, "no memory for the global scales");
}

void k3_survey_close(struct k3_survey *survey)
{
    free(survey->globals);
    survey->globals = NULL;
}

static void matrix_of(const struct look *look, uint32_t slot, struct matrix *matrix)
{
    const struct k3_plan *plan = look->plan;
    uint32_t rule, layer, index;
    k3_plan_slot(plan, slot, &rule, &layer, &index);
    const struct k3_rule *r = &plan->config.model->rules[rule];
    memset(matrix, 0, sizeof *matrix);
    k3_plan_slot_name(plan, slot, matrix->name, sizeof matrix->name);
    matrix->slot = slot;
    matrix->from = k3_rule_source_fmt(r);
    matrix->rows = plan->config.value[r->dim[0]];
    matrix->row_bytes = plan->places[slot].bytes / matrix->rows;
    if (matrix->from == K3_Q_MXFP4) {
        matrix->scale_slot = k3_cast_scale_slot(plan, slot);
        matrix->scale_row_bytes = plan->places[matrix->scale_slot].bytes / matrix->rows;
    }
    matrix->quant = (struct k3_quant){
        .name = matrix->name,
        .params = k3_cast_params(plan, matrix->from,
                                 k3_policy_fmt(&plan->policy, &plan->config, rule, layer)),
        .cols = matrix->from == K3_Q_MXFP4 ? matrix->row_bytes * 2 : matrix->row_bytes / 2};
}

static int read_counted(struct look *look, uint32_t slot, uint64_t begin, void *data,
                        uint64_t bytes, struct k3_err *err)
{
    atomic_fetch_add_explicit(&look->survey->read_bytes, bytes, memory_order_relaxed);
    return k3_cast_read(look->survey->ckpt, slot, begin, data, bytes, err);
}

/* Read rows [first, first + count): values too, where asked, and the scales of MXFP4. */
static int read_rows(struct look *look, const struct matrix *matrix, bool with_x,
                     struct k3_qrows *rows, struct k3_err *err)
{
    uint64_t bytes = rows->row_count * matrix->row_bytes;
    int rc = 0;
    rows->x = NULL;
    rows->x_scale = NULL;
    if (with_x) {
        rc = k3_cast_grow(&look->x, &look->x_cap, bytes, err);
        if (!rc)
            rc = read_counted(look, matrix->slot, rows->row_first * matrix->row_bytes, look->x,
                              bytes, err);
        rows->x = look->x;
    }
    if (rc || matrix->from != K3_Q_MXFP4)
        return rc;
    bytes = rows->row_count * matrix->scale_row_bytes;
    rc = k3_cast_grow(&look->scale, &look->scale_cap, bytes, err);
    if (!rc)
        rc = read_counted(look, matrix->scale_slot, rows->row_first * matrix->scale_row_bytes,
                          look->scale, bytes, err);
    rows->x_scale = look->scale;
    return rc;
}

/* The next rows, as many as one read takes; false behind the last. */
static bool next_rows(const struct matrix *matrix, uint64_t row_bytes, struct k3_qrows *rows)
{
    uint64_t count = BAND_BYTES / row_bytes, left;
    rows->row_first += rows->row_count;
    left = matrix->rows - rows->row_first;
    count = count ? count : 1;
    rows->row_count = count < left ? count : left;
    return left > 0;
}

static int scan(struct look *look, const struct matrix *matrix, struct k3_mx_window *window,
                struct k3_err *err)
{
    struct k3_qrows rows = {0};
    bool with_x = window->is_of_nonzero;
    int rc = 0;
    while (!rc && next_rows(matrix, with_x ? matrix->row_bytes : matrix->scale_row_bytes, &rows)) {
        rc = read_rows(look, matrix, with_x, &rows, err);
        if (!rc)
            rc = k3_mx_scan(&matrix->quant, &rows, window, err);
    }
    return rc;
}

/* Largest magnitude of a matrix, out of MXFP4 by way of BF16. */
static int find_amax(struct look *look, const struct matrix *matrix, uint16_t *amax,
                     struct k3_err *err)
{
    struct k3_qrows rows = {0};
    struct k3_quant to_bf16 = matrix->quant;
    struct k3_qstats ignored;
    int rc = 0;
    to_bf16.params.to = K3_Q_BF16;
    k3_qstats_init(&ignored);
    while (!rc && next_rows(matrix, matrix->row_bytes, &rows)) {
        rc = read_rows(look, matrix, true, &rows, err);
        if (!rc && matrix->from == K3_Q_MXFP4) {
            rc = k3_cast_grow(&look->bf16, &look->bf16_cap, rows.row_count * matrix->row_bytes * 4,
                              err);
            rows.weight = look->bf16;
            if (!rc)
                rc = k3_mx_rows(&to_bf16, &rows, &ignored, err);
            rows.x = look->bf16;
            rows.x_scale = NULL;
        }
        if (!rc)
            rc = k3_quant_amax(&matrix->quant, &rows, amax, err);
    }
    return rc;
}

/* Matrices that share a view and an index share their global: slots of all members. */
static uint32_t members_of(const struct k3_plan *plan, uint32_t slot, uint32_t members[])
{
    const struct k3_model *model = plan->config.model;
    uint32_t rule, layer, index, count = 0;
    k3_plan_slot(plan, slot, &rule, &layer, &index);
    for (uint32_t r = 0; r < model->rule_count; r++)
        if (model->rules[r].scope == model->rules[rule].scope &&
            !strcmp(model->rules[r].view, model->rules[rule].view))
            members[count++] = plan->rule_slot[r] +
                               layer * k3_rule_repeat_count(&plan->config, &model->rules[r]) +
                               index;
    return count;
}

/* The members together are out of the window below this global: name the first group that is. */
static int fail_window(struct look *look, const uint32_t *members, uint32_t count, float global,
                       struct k3_err *err)
{
    struct matrix matrix = {0};
    int rc = 0;
    for (uint32_t m = 0; m < count && !rc; m++) {
        struct k3_qrows rows = {0};
        matrix_of(look, members[m], &matrix);
        matrix.quant.global = global;
        while (!rc && next_rows(&matrix, matrix.row_bytes, &rows)) {
            rc = read_rows(look, &matrix, true, &rows, err);
            if (!rc)
                rc = k3_mx_breaches(&matrix.quant, &rows, NULL, err);
        }
    }
    return rc ? rc
              : k3_fail(err, K3_ECORRUPT, "%s: its bytes changed while they were used: run again",
                        matrix.name);
}

/* NVFP4 out of MXFP4: one window for all members, and the global that follows. */
static int look_window(struct look *look, const uint32_t *members, uint32_t count,
                       struct k3_err *err)
{
    struct matrix matrix = {0};
    enum k3_mx_fit fit = K3_MX_UNKNOWN;
    struct k3_mx_window window;
    int rc = 0;
    for (int closer = 0; closer <= 1 && fit == K3_MX_UNKNOWN && !rc; closer++) {
        k3_mx_window_init(&window, closer);
        for (uint32_t m = 0; m < count && !rc; m++) {
            matrix_of(look, members[m], &matrix);
            rc = scan(look, &matrix, &window, err);
        }
        fit = rc ? K3_MX_UNKNOWN : k3_mx_fit(K3_Q_NVFP4, &window);
    }
    if (!rc && fit != K3_MX_FITS && matrix.quant.params.oow == K3_OOW_FAIL)
        rc = fail_window(look, members, count, k3_mx_global(&matrix.quant.params, &window), err);
    for (uint32_t m = 0; m < count && !rc; m++)
        look->survey->globals[members[m]] = k3_mx_global(&matrix.quant.params, &window);
    return rc;
}

static int look_amax(struct look *look, const uint32_t *members, uint32_t count, struct k3_err *err)
{
    struct matrix matrix = {0};
    uint16_t amax = 0;
    int rc = 0;
    for (uint32_t m = 0; m < count && !rc; m++) {
        matrix_of(look, members[m], &matrix);
        rc = find_amax(look, &matrix, &amax, err);
    }
    for (uint32_t m = 0; m < count && !rc; m++)
        look->survey->globals[members[m]] = k3_quant_global(&matrix.quant.params, amax);
    return rc;
}

/* All groups of one cut of the matrix can be cast exactly. */
static int check_cut(struct look *look, const struct matrix *matrix, const struct k3_slice *slice,
                     struct k3_err *err)
{
    struct matrix cut = *matrix;
    struct k3_qrows rows = {.row_first = slice->row_begin, .row_count = slice->row_count};
    uint64_t scale_begin = slice->column_begin * matrix->scale_row_bytes / matrix->row_bytes;
    cut.quant.cols = slice->column_bytes * 2;
    cut.quant.cut = (struct k3_qcut){
        .row = slice->row_begin, .col = slice->column_begin * 2, .tensor_cols = matrix->quant.cols};
    uint64_t scale_bytes = cut.quant.cols / K3_MX_GROUP;
    int rc = read_rows(look, matrix, true, &rows, err); /* some 5 MB; rare */
    for (uint64_t row = 0; row < rows.row_count && !rc; row++) {
        memmove(look->x + row * slice->column_bytes,
                look->x + row * matrix->row_bytes + slice->column_begin,
                (size_t)slice->column_bytes);
        memmove(look->scale + row * scale_bytes,
                look->scale + row * matrix->scale_row_bytes + scale_begin, (size_t)scale_bytes);
    }
    rows.row_first = 0; /* tiles are counted from the first row of the cut */
    return rc ? rc : k3_mx_breaches(&cut.quant, &rows, NULL, err);
}

/* FP8 blocks and BF16: the scales of the matrix settle it, or each cut is looked at whole. */
static int look_breaches(struct look *look, uint32_t slot, struct k3_err *err)
{
    const struct k3_plan *plan = look->plan;
    struct matrix matrix;
    struct k3_mx_window window;
    uint32_t rule, layer, index;
    uint64_t row_seen = UINT64_MAX, column_seen = UINT64_MAX;
    matrix_of(look, slot, &matrix);
    if (k3_quant_route(K3_Q_MXFP4, matrix.quant.params.to) == K3_QROUTE_VIA_BF16)
        matrix.quant.params.to = K3_Q_BF16;
    k3_mx_window_init(&window, false);
    int rc = scan(look, &matrix, &window, err);
    if (rc || matrix.quant.params.oow != K3_OOW_FAIL ||
        k3_mx_fit(matrix.quant.params.to, &window) == K3_MX_FITS)
        return rc;
    k3_plan_slot(plan, slot, &rule, &layer, &index);
    for (uint32_t rank = 0; rank < k3_layout_world(&plan->layout) && !rc; rank++) {
        struct k3_place place;
        struct k3_slice slice;
        k3_layout_place(&plan->layout, rank, &place);
        if (!k3_layout_slice(&plan->layout, &plan->config, &plan->config.model->rules[rule], index,
                             &place, &slice) ||
            (slice.row_begin == row_seen && slice.column_begin == column_seen))
            continue;
        row_seen = slice.row_begin;
        column_seen = slice.column_begin;
        rc = check_cut(look, &matrix, &slice, err);
    }
    return rc;
}

static int look_at(struct look *look, uint32_t slot, struct k3_err *err)
{
    const struct k3_plan *plan = look->plan;
    uint32_t rule, layer, index, members[K3_RULE_COUNT_MAX] = {0};
    if (!k3_plan_slot(plan, slot, &rule, &layer, &index))
        return 0;
    const struct k3_rule *r = &plan->config.model->rules[rule];
    enum k3_qfmt from = k3_rule_source_fmt(r);
    enum k3_qfmt to = k3_policy_fmt(&plan->policy, &plan->config, rule, layer);
    if ((r->flags & K3_RULE_SCALE) || !needs_look(from, to))
        return 0;
    if (!k3_quant_needs_amax(to))
        return look_breaches(look, slot, err);
    uint32_t count = members_of(plan, slot, members);
    if (members[0] != slot)
        return 0; /* looked at with the first of them */
    return k3_quant_route(from, to) == K3_QROUTE_MX ? look_window(look, members, count, err)
                                                    : look_amax(look, members, count, err);
}

int k3_survey_item(struct k3_survey *survey, uint32_t item, struct k3_err *err)
{
    const struct k3_ckpt *ckpt = survey->ckpt;
    const struct k3_item *it = &ckpt->plan->items[item];
    struct look look = {.survey = survey, .plan = ckpt->plan};
    int rc = 0;
    for (uint32_t f = 0; f < it->file_count && !rc; f++) {
        if (!k3_ckpt_needs_file(ckpt, it->files[f]))
            continue;
        const uint32_t *begin = &ckpt->file_slot_begin[it->files[f]];
        for (uint32_t s = begin[0]; s < begin[1] && !rc; s++) {
            rc = look_at(&look, ckpt->slots[s], err);
            if (rc)
                k3_cast_advise(ckpt->plan, ckpt->slots[s], ", like", err);
        }
    }
    free(look.x);
    free(look.scale);
    free(look.bf16);
    return rc;
}
