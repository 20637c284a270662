/* Purpose: conversions with casts: every value of every part is that of its source, exactly where
 * that is promised, and as the codec casts the slice alone where it is not.
 * Owns: one folder in TMPDIR with a tiny checkpoint and one set at a time.
 * Threads: those of the conversions.
 * Errors: a failed assertion.
 * Invariants: the slices are cut here anew, from the source files; nothing is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "convert.h"
#include "stop.h"
#include "synth.h"

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[256], ckpt_path[300], set_path[300];

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *ftw)
{
    (void)stat;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void no_error(int rc, const struct k3_err *err)
{
    if (rc)
        fail_msg("%s", err->text);
}

static int set_up(void **state)
{
    (void)state;
    const char *place = getenv("TMPDIR");
    struct k3_synth_options options = {.preset = K3_SYNTH_TINY, .worker_count = 1};
    struct k3_synth *synth = NULL;
    struct k3_err err;
    k3_err_init(&err);
    snprintf(root, sizeof root, "%s/k3-cast-XXXXXX", place ? place : "/tmp");
    if (!mkdtemp(root))
        return -1;
    snprintf(ckpt_path, sizeof ckpt_path, "%s/ckpt", root);
    snprintf(set_path, sizeof set_path, "%s/set", root);
    int rc = k3_synth_open(&options, &synth, &err);
    if (!rc)
        rc = k3_synth_write(synth, ckpt_path, &err);
    k3_synth_close(synth);
    return rc;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(root);
    return 0;
}

struct ask {
    const char *policy;
    uint32_t tp, dp, jobs;
    bool experts_ep;
    uint64_t memory_bytes;
    bool force; /* over the set that is there */
};

static void ask_layout(const struct ask *ask, struct k3_layout *layout, struct k3_policy *policy)
{
    struct k3_err err;
    k3_err_init(&err);
    k3_layout_init(layout);
    layout->tp = ask->tp;
    layout->dp = ask->dp ? ask->dp : 1;
    layout->experts_ep = ask->experts_ep;
    k3_policy_init(policy);
    no_error(k3_policy_parse(ask->policy, policy, &err), &err);
}

static int convert(const struct ask *ask, struct k3_convert_report *report, struct k3_err *err)
{
    struct k3_layout layout;
    struct k3_policy policy;
    struct k3_problems problems;
    const char *out = set_path;
    ask_layout(ask, &layout, &policy);
    struct k3_convert_options options = {.ckpt_path = ckpt_path,
                                         .layout = &layout,
                                         .policy = &policy,
                                         .outs = &out,
                                         .out_count = 1,
                                         .budget_bytes = UINT64_MAX,
                                         .memory_bytes = ask->memory_bytes,
                                         .jobs = ask->jobs,
                                         .force = ask->force,
                                         .quiet = true};
    if (!ask->force)
        remove_tree(set_path);
    k3_problems_init(&problems);
    k3_err_init(err);
    int rc = k3_convert(&options, report, &problems, err);
    free(report->fallbacks);
    k3_problems_fini(&problems);
    return rc;
}

static void open_ckpt(const struct ask *ask, struct k3_ckpt **ckpt)
{
    struct k3_layout layout;
    struct k3_policy policy;
    struct k3_problems problems;
    struct k3_err err;
    ask_layout(ask, &layout, &policy);
    struct k3_ckpt_options options = {.path = ckpt_path, .layout = &layout, .policy = &policy};
    k3_problems_init(&problems);
    k3_err_init(&err);
    no_error(k3_ckpt_open(&options, ckpt, &problems, &err), &err);
    k3_problems_fini(&problems);
}

/* ---- the source, cut anew ---- */

static uint8_t *read_file(const char *folder, const char *name, uint64_t offset, uint64_t bytes)
{
    char path[600];
    uint8_t *data = malloc(bytes ? bytes : 1);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    assert_non_null(data);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, data, bytes, (off_t)offset), bytes);
    close(fd);
    return data;
}

/* The slice of a tensor, dense; columns by the share of a row that the slice has. */
static uint8_t *source_slice(const struct k3_plan *plan, uint32_t slot, uint64_t rows,
                             const struct k3_slice *slice)
{
    const struct k3_tensor_place *place = &plan->places[slot];
    const struct k3_source *source = &plan->sources[place->file];
    uint8_t *all = read_file(ckpt_path, source->name, source->header_bytes + place->begin_offset,
                             place->bytes);
    uint64_t row_bytes = place->bytes / rows;
    uint64_t begin = slice->column_begin * row_bytes / slice->row_bytes;
    uint64_t bytes = slice->column_bytes * row_bytes / slice->row_bytes;
    uint8_t *cut = malloc(slice->row_count * bytes);
    assert_non_null(cut);
    for (uint64_t row = 0; row < slice->row_count; row++)
        memcpy(cut + row * bytes, all + (slice->row_begin + row) * row_bytes + begin, bytes);
    free(all);
    return cut;
}

static uint32_t scale_slot(const struct k3_plan *plan, uint32_t slot)
{
    char name[K3_ST_NAME_BYTES_MAX + 1];
    k3_plan_slot_name(plan, slot, name, sizeof name);
    memcpy(strstr(name, "weight_packed"), "weight_scale", sizeof "weight_scale");
    return k3_plan_find(plan, name, strlen(name));
}

/* ---- one matrix ---- */

/* The tensors that a part holds of a matrix, by enum k3_row_what. */
static const struct k3_entry *find(const struct k3_part *part, const struct k3_entry *weight,
                                   uint8_t what)
{
    for (uint32_t e = 0; e < part->entry_count; e++)
        if (part->entries[e].slot == weight->slot && part->entries[e].row.what == what)
            return &part->entries[e];
    return NULL;
}

struct matrix {
    const struct k3_plan *plan;
    const struct k3_entry *weight;
    enum k3_qfmt from, to;
    uint64_t rows, cols;           /* of the slice */
    const uint8_t *codes, *scales; /* of the part */
    uint8_t *x, *x_scale;          /* of the source */
    struct k3_quant quant;
};

/* Every value is the source's, to the bit; integers have no negative zero. */
static void check_exact(const struct matrix *m)
{
    struct k3_err err;
    uint64_t count = m->rows * m->cols;
    float *was = malloc(count * sizeof *was), *is = malloc(count * sizeof *is);
    struct k3_quant source = m->quant;
    struct k3_qrows rows = {.x = m->x, .x_scale = m->x_scale, .row_count = m->rows};
    k3_err_init(&err);
    source.params.to = m->from;
    no_error(k3_quant_decode(&source, &rows, was, &err), &err);
    rows.x = m->codes;
    rows.x_scale = m->scales;
    no_error(k3_quant_decode(&m->quant, &rows, is, &err), &err);
    for (uint64_t i = 0; i < count && m->to == K3_Q_INT8_G32; i++)
        was[i] += 0.0f; /* -0 becomes 0 */
    assert_memory_equal(was, is, count * sizeof *is);
    free(was);
    free(is);
}

/* The bytes are those of casting the slice at once. */
static void check_cast(const struct matrix *m)
{
    struct k3_err err;
    struct k3_qgeom geom;
    struct k3_qstats stats;
    k3_err_init(&err);
    k3_qstats_init(&stats);
    no_error(k3_qfmt_geometry(m->to, m->rows, m->cols, &geom, &err), &err);
    uint8_t *bf16 = malloc(m->rows * m->cols * 2), *weight = malloc(geom.weight_bytes),
            *scale = malloc(geom.scale_bytes + 1);
    struct k3_qrows rows = {.x = m->x, .x_scale = m->x_scale, .row_count = m->rows, .weight = bf16};
    if (m->from == K3_Q_MXFP4) {
        struct k3_quant to_bf16 = m->quant;
        to_bf16.params.to = K3_Q_BF16;
        no_error(k3_mx_rows(&to_bf16, &rows, &stats, &err), &err);
        rows.x = bf16;
    }
    rows.weight = weight;
    rows.scale = geom.scale_suffix ? scale : NULL;
    no_error(k3_quant_rows(&m->quant, &rows, &stats, &err), &err);
    assert_memory_equal(m->codes, weight, geom.weight_bytes);
    if (m->scales)
        assert_memory_equal(m->scales, scale, geom.scale_bytes);
    free(bf16);
    free(weight);
    free(scale);
}

static void check_matrix(const struct k3_plan *plan, const struct k3_part *part,
                         const struct k3_entry *weight, const uint8_t *data)
{
    const struct k3_rule *rule = &plan->config.model->rules[weight->row.rule];
    const struct k3_entry *scale = find(part, weight, K3_ROW_SCALE),
                          *global = find(part, weight, K3_ROW_GLOBAL),
                          *shape = find(part, weight, K3_ROW_SHAPE);
    uint64_t stored_rows = plan->config.value[rule->dim[0]];
    struct matrix m = {.plan = plan,
                       .weight = weight,
                       .from = rule->flags & K3_RULE_PACKED ? K3_Q_MXFP4 : K3_Q_BF16,
                       .to = (enum k3_qfmt)weight->row.fmt,
                       .rows = weight->slice.row_count,
                       .codes = data + weight->begin_offset,
                       .scales = scale ? data + scale->begin_offset : NULL};
    m.cols = m.from == K3_Q_MXFP4 ? weight->slice.column_bytes * 2 : weight->slice.column_bytes / 2;
    m.quant = (struct k3_quant){.name = "m", .params = k3_qparams_default(m.to), .cols = m.cols};
    if (global)
        memcpy(&m.quant.global, data + global->begin_offset, 4);
    if (shape) {
        assert_int_equal(k3_load_le64(data + shape->begin_offset), m.rows);
        assert_int_equal(k3_load_le64(data + shape->begin_offset + 8), m.cols);
    }
    m.x = source_slice(plan, weight->slot, stored_rows, &weight->slice);
    if (m.from == K3_Q_MXFP4)
        m.x_scale = source_slice(plan, scale_slot(plan, weight->slot), stored_rows, &weight->slice);
    if (m.from == K3_Q_MXFP4 && k3_quant_route(m.from, m.to) == K3_QROUTE_MX)
        check_exact(&m);
    else
        check_cast(&m);
    free(m.x);
    free(m.x_scale);
}

/* All matrices of a set; how many there were. */
static uint32_t check_set(const struct ask *ask)
{
    struct k3_ckpt *ckpt = NULL;
    struct k3_err err;
    uint32_t count = 0;
    k3_err_init(&err);
    open_ckpt(ask, &ckpt);
    const struct k3_plan *plan = ckpt->plan;
    for (uint32_t rank = 0; rank < k3_layout_world(&plan->layout); rank++)
        for (uint32_t p = 0; p < k3_config_part_count(&plan->config); p++) {
            struct k3_part part;
            struct k3_text header;
            char name[K3_NAME_BYTES_MAX + 1];
            k3_text_init(&header);
            no_error(k3_part_build(plan, rank, p, &part, &err), &err);
            no_error(k3_part_header(plan, &part, &header, &err), &err);
            k3_part_name(rank, p, name);
            uint8_t *data = read_file(set_path, name, header.bytes, part.data_bytes);
            for (uint32_t e = 0; e < part.entry_count; e++)
                if (part.entries[e].slot != K3_SLOT_NONE &&
                    part.entries[e].row.what == K3_ROW_WEIGHT) {
                    check_matrix(plan, &part, &part.entries[e], data);
                    count++;
                }
            free(data);
            k3_text_fini(&header);
            k3_part_fini(&part);
        }
    k3_ckpt_close(ckpt);
    return count;
}

static void test_values(void **state)
{
    (void)state;
    static const struct ask asks[] = {
        {.policy = "nvfp4", .tp = 2},
        {.policy = "experts=mxfp8,shared=mxfp8", .tp = 2},
        {.policy = "bf16", .tp = 2, .dp = 2, .experts_ep = true},
        {.policy = "fp8-block", .tp = 4},
        {.policy = "experts=int8-g32,head=nvfp4,dense=int4-g32", .tp = 1, .dp = 2},
        {.policy = "experts=int4-g32,attention=fp8-channel,embed=mxfp4", .tp = 2},
        {.policy = "experts=fp8-tensor,dense=fp8-tensor,shared=nvfp4", .tp = 1}};
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        struct k3_convert_report report;
        struct k3_err err;
        no_error(convert(&asks[i], &report, &err), &err);
        assert_true(check_set(&asks[i]) > 16);
    }
}

/* The same bytes however the source is cut into reads and by however many workers. */
static void test_same_bytes(void **state)
{
    (void)state;
    static const char policy[] = "experts=nvfp4,attention=fp8-block,head=int4-g32,dense=nvfp4";
    const struct ask asks[] = {{.policy = policy, .tp = 2, .jobs = 1},
                               {.policy = policy, .tp = 2, .jobs = 3, .memory_bytes = 3u << 20}};
    char *first = NULL;
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        struct k3_convert_report report;
        struct k3_err err;
        struct k3_dir dir;
        char *text = NULL;
        size_t bytes = 0;
        no_error(convert(&asks[i], &report, &err), &err);
        no_error(k3_dir_open(set_path, false, &dir, &err), &err);
        no_error(k3_file_load(&dir, K3_MANIFEST_NAME, K3_MANIFEST_BYTES_MAX, &text, &bytes, &err),
                 &err);
        k3_dir_close(&dir);
        if (first)
            assert_string_equal(first, text);
        else
            first = text;
        if (text != first)
            free(text);
    }
    free(first);
}

/* Write one byte of a tensor of the checkpoint; what was there. */
static uint8_t poke(const char *name, uint64_t at, uint8_t value)
{
    const struct ask ask = {.policy = "verbatim", .tp = 1};
    struct k3_ckpt *ckpt = NULL;
    char path[700];
    uint8_t was;
    open_ckpt(&ask, &ckpt);
    const struct k3_plan *plan = ckpt->plan;
    uint32_t slot = k3_plan_find(plan, name, strlen(name));
    assert_true(slot != K3_SLOT_NONE);
    const struct k3_source *source = &plan->sources[plan->places[slot].file];
    off_t offset = (off_t)(source->header_bytes + plan->places[slot].begin_offset + at);
    snprintf(path, sizeof path, "%s/%s", ckpt_path, source->name);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &was, 1, offset), 1);
    assert_int_equal(pwrite(fd, &value, 1, offset), 1);
    close(fd);
    k3_ckpt_close(ckpt);
    return was;
}

#define EXPERT "language_model.model.layers.2.block_sparse_moe.experts.11."

/* One scale far from the others: refused before anything is written, or done as asked and counted;
 * where only zeros have it, it does not matter. */
static void test_window(void **state)
{
    (void)state;
    static const char *const policies[] = {"experts=nvfp4", "experts=fp8-block"};
    uint8_t was = poke(EXPERT "w3.weight_scale", 3, 60);
    struct k3_convert_report report;
    struct k3_err err;
    for (size_t i = 0; i < 2; i++) {
        char text[64];
        struct ask ask = {.policy = policies[i], .tp = 2};
        assert_int_equal(convert(&ask, &report, &err), K3_EUNSUPPORTED);
        assert_non_null(strstr(err.text, "experts.11."));
        assert_non_null(strstr(err.text, "--oow"));
        assert_int_equal(rmdir(set_path), 0); /* nothing is in it */
        snprintf(text, sizeof text, "%s,oow=snap", policies[i]);
        ask.policy = text;
        no_error(convert(&ask, &report, &err), &err);
        assert_int_equal(report.casts.roles[K3_ROLE_EXPERTS].stats.breach_groups, 1);
    }
    uint8_t codes[16];
    for (unsigned b = 0; b < 16; b++)
        codes[b] = poke(EXPERT "w3.weight_packed", 3 * 16 + b, 0x80);
    for (size_t i = 0; i < 2; i++) {
        struct ask ask = {.policy = policies[i], .tp = 2};
        no_error(convert(&ask, &report, &err), &err);
        assert_int_equal(report.casts.roles[K3_ROLE_EXPERTS].stats.breach_groups, 0);
        assert_true(check_set(&ask) > 16);
    }
    for (unsigned b = 0; b < 16; b++)
        poke(EXPERT "w3.weight_packed", 3 * 16 + b, codes[b]);
    poke(EXPERT "w3.weight_scale", 3, was);
}

/* --force gives a finished set up only for one that can be made. */
static void test_force_keeps(void **state)
{
    (void)state;
    struct k3_convert_report report;
    struct k3_err err;
    struct ask ask = {.policy = "experts=mxfp8", .tp = 2};
    uint8_t was = poke(EXPERT "w3.weight_scale", 3, 60);
    no_error(convert(&ask, &report, &err), &err);
    struct ask other = {.policy = "experts=fp8-block", .tp = 2, .force = true};
    assert_int_equal(convert(&other, &report, &err), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "--oow"));
    assert_true(check_set(&ask) > 16); /* as it was */
    poke(EXPERT "w3.weight_scale", 3, was);
    no_error(convert(&other, &report, &err), &err);
    assert_true(report.survey_bytes > 0);
    assert_int_equal(report.resumed_count, 0);
    assert_true(check_set(&other) > 16);
}

/* Stopped, what --force began is resumed by the command without it: with it, it would be lost. */
static void test_force_stopped(void **state)
{
    (void)state;
    for (int force = 0; force <= 1; force++) {
        const struct ask ask = {.policy = "verbatim", .tp = 2, .force = force};
        pid_t child = fork(); /* a stop is for good */
        assert_true(child >= 0);
        if (child == 0) {
            struct k3_convert_report report;
            struct k3_err err;
            k3_stop_install();
            raise(SIGTERM);
            int rc = convert(&ask, &report, &err);
            _exit(rc != K3_ECANCELED                                                         ? 1
                  : !strstr(err.text, " items are finished and kept: run the same command ") ? 2
                  : (strstr(err.text, "without --force to resume") != NULL) != force         ? 3
                                                                                             : 0);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* A scale that is NaN, a weight that is not finite: named, nothing published. */
static void test_not_finite(void **state)
{
    (void)state;
    struct k3_convert_report report;
    struct k3_err err;
    struct ask ask = {.policy = "mxfp8", .tp = 2};
    uint8_t was = poke(EXPERT "w1.weight_scale", 5, 0xff);
    ask.policy = "experts=mxfp8";
    assert_int_equal(convert(&ask, &report, &err), K3_EFORMAT);
    assert_non_null(strstr(err.text, EXPERT "w1"));
    poke(EXPERT "w1.weight_scale", 5, was);
    was = poke("language_model.lm_head.weight", 1, 0x7f);
    uint8_t low = poke("language_model.lm_head.weight", 0, 0x80);
    ask.policy = "head=fp8-block";
    assert_int_equal(convert(&ask, &report, &err), K3_EFORMAT);
    assert_non_null(strstr(err.text, "lm_head"));
    poke("language_model.lm_head.weight", 0, low);
    poke("language_model.lm_head.weight", 1, was);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_window),        cmocka_unit_test(test_force_keeps),
        cmocka_unit_test(test_force_stopped), cmocka_unit_test(test_not_finite)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
