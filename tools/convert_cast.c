/* Purpose: cast matrices while their source streams by: bands of rows, cut for each target, cast
 * once for each slice, written to every target that holds it.
 * Owns: the buffers of a caster.
 * Threads: one caster, one worker.
 * Errors: K3_EUNSUPPORTED, K3_EFORMAT, K3_ECORRUPT, K3_EIO, K3_ENOMEM.
 * Invariants: a band never crosses a tile of FP8 blocks or a cut by rows, so what is written does
 * not depend on how the source was read; the scales used are those that the stream brings. */
#include "convert_cast.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAND_ROWS 128u /* rows of an FP8 block: no format needs more rows at once */
#define NO_ENTRY  UINT32_MAX

enum { WEIGHT, SCALE, GLOBAL, SHAPE }; /* enum k3_row_what - K3_ROW_WEIGHT */

enum k3_qfmt k3_cast_fmt(const struct k3_plan *plan, uint32_t slot)
{
    uint32_t rule, layer, index;
    if (k3_policy_is_verbatim(&plan->policy) || !k3_plan_slot(plan, slot, &rule, &layer, &index))
        return K3_Q_VERBATIM;
    return k3_policy_fmt(&plan->policy, &plan->config, rule, layer);
}

struct k3_qparams k3_cast_params(const struct k3_plan *plan, enum k3_qfmt from, enum k3_qfmt to)
{
    struct k3_qparams params = k3_qparams_default(to);
    if (k3_quant_route(from, to) != K3_QROUTE_VIA_BF16)
        params.oow = (enum k3_oow)plan->policy.oow;
    return params;
}

int k3_cast_grow(uint8_t **data, size_t *cap, uint64_t bytes, struct k3_err *err)
{
    if (bytes <= *cap)
        return 0;
    uint8_t *grown = malloc((size_t)bytes);
    if (!grown)
        return k3_fail(err, K3_ENOMEM, "no memory for a cast: %" PRIu64 " bytes", bytes);
    free(*data);
    *data = grown;
    *cap = (size_t)bytes;
    return 0;
}

void k3_cast_advise(const struct k3_plan *plan, uint32_t slot, const char *lead, struct k3_err *err)
{
    struct k3_policy kept = plan->policy;
    struct k3_err ignored;
    uint32_t rule, layer, index;
    k3_err_init(&ignored);
    if ((err->rc != K3_EUNSUPPORTED && err->rc != K3_EFORMAT) ||
        !k3_plan_slot(plan, slot, &rule, &layer, &index))
        return;
    bool is_kept = k3_policy_set(&kept, &plan->config, rule, layer, K3_Q_VERBATIM);
    if (is_kept && !k3_policy_casts(&kept, &plan->config))
        k3_policy_init(&kept); /* nothing else is cast */
    if (is_kept && !k3_policy_check(&kept, &plan->config, &plan->layout, &ignored))
        k3_policy_advise(&kept, lead, err);
}

uint32_t k3_cast_scale_slot(const struct k3_plan *plan, uint32_t slot)
{
    const struct k3_model *model = plan->config.model;
    uint32_t rule, layer, index;
    k3_plan_slot(plan, slot, &rule, &layer, &index);
    for (uint32_t r = rule + 1; r < model->rule_count; r++)
        if ((model->rules[r].flags & K3_RULE_SCALE) && k3_rule_scaled(model, r) == rule)
            return plan->rule_slot[r] +
                   layer * k3_rule_repeat_count(&plan->config, &model->rules[r]) + index;
    return K3_SLOT_NONE;
}

int k3_cast_read(const struct k3_ckpt *ckpt, uint32_t slot, uint64_t begin, void *data,
                 uint64_t bytes, struct k3_err *err)
{
    const struct k3_tensor_place *place = &ckpt->plan->places[slot];
    const struct k3_source *source = &ckpt->plan->sources[place->file];
    uint64_t offset = source->header_bytes + place->begin_offset + begin;
    int fd = -1;
    int rc = k3_ckpt_file_open(ckpt, place->file, &fd, err);
    if (rc)
        return rc;
    rc = k3_file_read(fd, source->name, data, (size_t)bytes, offset, err);
    k3_file_drop(fd, offset, bytes);
    close(fd);
    return rc;
}

int k3_caster_open(const struct k3_scatter *scatter, const struct k3_survey *survey,
                   struct k3_caster *caster, struct k3_err *err)
{
    memset(caster, 0, sizeof *caster);
    caster->scatter = scatter;
    caster->survey = survey;
    caster->slot = caster->scales_slot = K3_SLOT_NONE;
    caster->is_done = malloc(scatter->target_count ? scatter->target_count : 1);
    return caster->is_done ? 0 : k3_fail(err, K3_ENOMEM, "no memory for a cast");
}

void k3_caster_close(struct k3_caster *caster)
{
    free(caster->band);
    free(caster->cut);
    free(caster->cut_scale);
    free(caster->bf16);
    free(caster->weight);
    free(caster->scale);
    free(caster->scales);
    free(caster->is_done);
    free(caster->casts);
    memset(caster, 0, sizeof *caster);
}

static int by_slot(const void *a, const void *b)
{
    const uint32_t x = ((const struct k3_cast_row *)a)->slot;
    const uint32_t y = ((const struct k3_cast_row *)b)->slot;
    return (x > y) - (x < y);
}

struct k3_cast_row *k3_caster_rows(struct k3_caster *caster, uint32_t *count)
{
    struct k3_cast_row *rows = caster->casts;
    *count = caster->cast_count;
    if (rows)
        qsort(rows, caster->cast_count, sizeof *rows, by_slot);
    caster->casts = NULL;
    caster->cast_count = caster->cast_cap = 0;
    return rows;
}

/* Entry of the coming matrix in a target; NULL: the target has none. */
static const struct k3_entry *entry_of(const struct k3_caster *caster, uint32_t target, int which)
{
    uint32_t e = k3_scatter_cast(caster->scatter, caster->slot, target)->entry[which];
    return e == NO_ENTRY ? NULL : &caster->scatter->targets[target].part.entries[e];
}

static int put(struct k3_caster *caster, uint32_t target, int which, const void *data,
               const uint64_t range[2], struct k3_err *err)
{
    const struct k3_entry *entry = entry_of(caster, target, which);
    if (!entry || !range[1])
        return 0;
    return caster->put(
        caster->context, target, data, range[1],
        caster->scatter->targets[target].header_bytes + entry->begin_offset + range[0], err);
}

static uint64_t values_of(const struct k3_caster *caster, uint64_t bytes)
{
    return caster->from == K3_Q_MXFP4 ? bytes * 2 : bytes / 2;
}

/* The numbers beside the matrix: global scale and shape, into every target. */
static int put_small(struct k3_caster *caster, uint32_t target, struct k3_err *err)
{
    const struct k3_entry *weight = entry_of(caster, target, WEIGHT);
    uint8_t number[16];
    uint32_t bits;
    memcpy(&bits, &caster->quant.global, sizeof bits);
    k3_store_le32(number, bits);
    int rc = put(caster, target, GLOBAL, number, (const uint64_t[2]){0, 4}, err);
    k3_store_le64(number, weight->slice.row_count);
    k3_store_le64(number + 8, values_of(caster, weight->slice.column_bytes));
    return rc ? rc : put(caster, target, SHAPE, number, (const uint64_t[2]){0, 16}, err);
}

static int load_scales(struct k3_caster *caster, struct k3_err *err)
{
    const struct k3_ckpt *ckpt = caster->scatter->ckpt;
    uint32_t slot = k3_cast_scale_slot(ckpt->plan, caster->slot);
    uint64_t bytes = ckpt->plan->places[slot].bytes;
    int rc = k3_cast_grow(&caster->scales, &caster->scales_cap, bytes, err);
    if (!rc)
        rc = k3_cast_read(ckpt, slot, 0, caster->scales, bytes, err);
    caster->read_bytes += bytes;
    caster->scales_bytes = bytes;
    caster->scales_slot = rc ? K3_SLOT_NONE : slot;
    return rc;
}

/* Buffers for one band: its bytes, its cut, and what that can become at most (BF16: 4 times). */
static int grow_buffers(struct k3_caster *caster, struct k3_err *err)
{
    uint64_t band = BAND_ROWS * caster->row_bytes, values = values_of(caster, band);
    int rc = k3_cast_grow(&caster->band, &caster->band_cap, band, err);
    if (!rc)
        rc = k3_cast_grow(&caster->cut, &caster->cut_cap, band, err);
    if (!rc)
        rc = k3_cast_grow(&caster->cut_scale, &caster->cut_scale_cap, values / K3_MX_GROUP + 1,
                          err);
    if (!rc)
        rc = k3_cast_grow(&caster->bf16, &caster->bf16_cap, values * 2, err);
    if (!rc)
        rc = k3_cast_grow(&caster->weight, &caster->weight_cap, values * 2, err);
    if (!rc) /* at most four bytes a row, or two for 16 values */
        rc = k3_cast_grow(&caster->scale, &caster->scale_cap, BAND_ROWS * 4 + values / 8 + 64, err);
    return rc;
}

/* The first run of a matrix. */
static int begin_matrix(struct k3_caster *caster, const struct k3_run *run, struct k3_err *err)
{
    const struct k3_scatter *scatter = caster->scatter;
    const struct k3_plan *plan = scatter->ckpt->plan;
    uint32_t rule, layer, index;
    k3_plan_slot(plan, run->slot, &rule, &layer, &index);
    const struct k3_rule *r = &plan->config.model->rules[rule];
    const struct k3_entry *any = NULL;
    caster->slot = run->slot;
    k3_qstats_init(&caster->stats);
    caster->from = k3_rule_source_fmt(r);
    caster->rows = plan->config.value[r->dim[0]];
    caster->row_bytes = run->tensor_bytes / caster->rows;
    caster->row_first = caster->band_bytes = 0;
    for (uint32_t t = 0; t < scatter->target_count && !any; t++)
        any = entry_of(caster, t, WEIGHT);
    caster->local_rows = any ? any->slice.row_count : 0;
    if (!any)
        return 0; /* none of the ranks holds it */
    uint64_t cols = values_of(caster, any->slice.column_bytes);
    enum k3_qfmt to = k3_cast_fmt(plan, run->slot);
    k3_plan_slot_name(plan, run->slot, caster->name, sizeof caster->name);
    caster->quant = (struct k3_quant){
        .name = caster->name,
        .params = k3_cast_params(plan, caster->from, to),
        .cols = cols,
        .global = caster->survey->globals ? caster->survey->globals[run->slot] : 0};
    int rc = k3_qfmt_geometry(to, any->slice.row_count, cols, &caster->geom, err);
    if (!rc)
        rc = grow_buffers(caster, err);
    if (!rc && caster->from == K3_Q_MXFP4)
        rc = load_scales(caster, err);
    for (uint32_t t = 0; t < scatter->target_count && !rc; t++)
        if (entry_of(caster, t, WEIGHT))
            rc = put_small(caster, t, err);
    return rc;
}

/* Columns [begin, begin + bytes) of each of the rows, dense. */
static void cut_columns(const uint8_t *rows, uint64_t count, uint64_t row_bytes,
                        const uint64_t column[2], uint8_t *out)
{
    for (uint64_t row = 0; row < count; row++)
        memcpy(out + row * column[1], rows + row * row_bytes + column[0], (size_t)column[1]);
}

/* Cast the slice's columns of a band into the buffers weight and scale. */
static int cast_band(struct k3_caster *caster, const struct k3_slice *slice, const uint8_t *band,
                     uint64_t count, struct k3_err *err)
{
    const uint64_t column[2] = {slice->column_begin, slice->column_bytes};
    struct k3_qrows rows = {.x = band,
                            .row_first = caster->row_first - slice->row_begin,
                            .row_count = count,
                            .weight = caster->weight,
                            .scale = caster->geom.scale_suffix ? caster->scale : NULL};
    struct k3_qstats *stats = &caster->stats;
    caster->quant.cut = (struct k3_qcut){.row = slice->row_begin,
                                         .col = values_of(caster, column[0]),
                                         .tensor_cols = values_of(caster, caster->row_bytes)};
    if (column[1] != caster->row_bytes) {
        cut_columns(band, count, caster->row_bytes, column, caster->cut);
        rows.x = caster->cut;
    }
    if (caster->from == K3_Q_BF16)
        return caster->lane
                   ? k3_cast_gpu_rows(caster->lane, &caster->quant, K3_Q_BF16, &rows, stats, err)
                   : k3_quant_rows(&caster->quant, &rows, stats, err);
    uint64_t scale_row = caster->scales_bytes / caster->rows;
    const uint64_t scale_column[2] = {column[0] * scale_row / caster->row_bytes,
                                      column[1] * scale_row / caster->row_bytes};
    cut_columns(caster->scales + caster->row_first * scale_row, count, scale_row, scale_column,
                caster->cut_scale);
    rows.x_scale = caster->cut_scale;
    if (caster->lane)
        return k3_cast_gpu_rows(caster->lane, &caster->quant, K3_Q_MXFP4, &rows, stats, err);
    if (k3_quant_route(K3_Q_MXFP4, caster->quant.params.to) == K3_QROUTE_MX)
        return k3_mx_rows(&caster->quant, &rows, stats, err);
    struct k3_quant to_bf16 = caster->quant;
    struct k3_qrows first = rows;
    struct k3_qstats ignored;
    to_bf16.params.to = K3_Q_BF16;
    first.weight = caster->bf16;
    first.scale = NULL;
    k3_qstats_init(&ignored);
    int rc = k3_mx_rows(&to_bf16, &first, &ignored, err);
    rows.x = caster->bf16;
    rows.x_scale = NULL;
    return rc ? rc : k3_quant_rows(&caster->quant, &rows, stats, err);
}

/* One band into a target: codes and scales lie at the band's place in the slice. */
static int put_band(struct k3_caster *caster, uint32_t target, uint64_t row, uint64_t count,
                    struct k3_err *err)
{
    const struct k3_qgeom *geom = &caster->geom;
    uint64_t per = geom->group_rows > 1 ? geom->group_rows : 1;
    const uint64_t weight[2] = {row * geom->weight_row_bytes, count * geom->weight_row_bytes};
    const uint64_t scale[2] = {row / per * geom->scale_row_bytes,
                               k3_div_up(count, per) * geom->scale_row_bytes};
    int rc = put(caster, target, WEIGHT, caster->weight, weight, err);
    if (!rc && geom->scale_suffix)
        rc = put(caster, target, SCALE, caster->scale, scale, err);
    return rc;
}

static bool same_slice(const struct k3_slice *a, const struct k3_slice *b)
{
    return a->row_begin == b->row_begin && a->column_begin == b->column_begin;
}

/* A whole band: cast once for each slice, written to all that hold it. */
static int end_band(struct k3_caster *caster, const uint8_t *band, uint64_t count,
                    struct k3_err *err)
{
    const uint32_t targets = caster->scatter->target_count;
    int rc = 0;
    memset(caster->is_done, 0, targets);
    for (uint32_t t = 0; t < targets && !rc; t++) {
        const struct k3_entry *entry = entry_of(caster, t, WEIGHT);
        if (!entry || caster->is_done[t] || caster->row_first < entry->slice.row_begin ||
            caster->row_first >= entry->slice.row_begin + entry->slice.row_count)
            continue;
        rc = cast_band(caster, &entry->slice, band, count, err);
        for (uint32_t u = t; u < targets && !rc; u++) {
            const struct k3_entry *other = entry_of(caster, u, WEIGHT);
            if (!other || !same_slice(&entry->slice, &other->slice))
                continue;
            rc = put_band(caster, u, caster->row_first - entry->slice.row_begin, count, err);
            caster->is_done[u] = 1;
        }
    }
    caster->row_first += count;
    return rc;
}

/* The last band is through: what the cast did to the matrix. */
static int end_matrix(struct k3_caster *caster, struct k3_err *err)
{
    if (caster->cast_count == caster->cast_cap) {
        uint32_t cap = caster->cast_cap ? 2 * caster->cast_cap : 64;
        struct k3_cast_row *grown = realloc(caster->casts, cap * sizeof *grown);
        if (!grown)
            return k3_fail(err, K3_ENOMEM, "no memory for what %" PRIu32 " casts did", cap);
        caster->casts = grown;
        caster->cast_cap = cap;
    }
    k3_cast_row_make(caster->slot, caster->from, caster->quant.params.to, &caster->stats,
                     &caster->casts[caster->cast_count++]);
    return 0;
}

/* Rows of the band that begins at row_first: up to a tile, and to the end of a cut by rows. */
static uint64_t band_rows(const struct k3_caster *caster)
{
    uint64_t in_cut = caster->local_rows - caster->row_first % caster->local_rows;
    return in_cut < BAND_ROWS ? in_cut : BAND_ROWS;
}

/* The scales that were used are those that the stream brings. */
static int check_scales(struct k3_caster *caster, const struct k3_run *run, const uint8_t *data,
                        struct k3_err *err)
{
    char name[K3_ST_NAME_BYTES_MAX + 1];
    if (run->slot != caster->scales_slot ||
        !memcmp(caster->scales + run->begin, data, (size_t)(run->end - run->begin)))
        return 0;
    k3_plan_slot_name(caster->scatter->ckpt->plan, run->slot, name, sizeof name);
    return k3_fail(err, K3_ECORRUPT, "%s: its bytes changed while they were used: run again", name);
}

static int take_run(struct k3_caster *caster, const struct k3_run *run, const uint8_t *data,
                    struct k3_err *err)
{
    const struct k3_plan *plan = caster->scatter->ckpt->plan;
    uint32_t rule, layer, index;
    k3_plan_slot(plan, run->slot, &rule, &layer, &index);
    if (plan->config.model->rules[rule].flags & K3_RULE_SCALE)
        return check_scales(caster, run, data, err);
    int rc = run->begin == 0 ? begin_matrix(caster, run, err) : 0;
    if (!caster->local_rows)
        return rc;
    for (uint64_t at = 0, bytes = run->end - run->begin; at < bytes && !rc;) {
        uint64_t count = band_rows(caster), wanted = count * caster->row_bytes;
        uint64_t more = wanted - caster->band_bytes;
        if (!caster->band_bytes && bytes - at >= wanted) { /* whole in the run: no copy */
            rc = end_band(caster, data + at, count, err);
            at += wanted;
            continue;
        }
        more = more < bytes - at ? more : bytes - at;
        memcpy(caster->band + caster->band_bytes, data + at, (size_t)more);
        at += more;
        caster->band_bytes += more;
        if (caster->band_bytes < wanted)
            break;
        caster->band_bytes = 0;
        rc = end_band(caster, caster->band, count, err);
    }
    return rc || run->end < run->tensor_bytes ? rc : end_matrix(caster, err);
}

int k3_caster_run(struct k3_caster *caster, const struct k3_run *run, const uint8_t *data,
                  struct k3_err *err)
{
    int rc = take_run(caster, run, data, err);
    if (rc) /* what was begun is of this policy: another begins anew */
        k3_cast_advise(caster->scatter->ckpt->plan, run->slot, ", like --force", err);
    return rc;
}
