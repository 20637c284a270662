/* Purpose: casts give the bytes that the packages of engines give.
 * Owns: the file of records that make_goldens.py makes, and one cast.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: every record of the file is compared; each form of the inner loops gives its bytes.
 */
#include "cast_mxfp4.h"
#include "num.h"
#include "quant_ops.h"
#include "sha256.h"

#include "bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FILE_BYTES_MAX   (1u << 20)
#define MATRIX_COUNT_MAX 32
#define WEIGHT_BYTES_MAX (1u << 16)
#define WORD_BYTES       65 /* a digest in hex is the longest */

static uint8_t *file;
static size_t file_bytes;

struct matrix {
    char name[WORD_BYTES], dtype[WORD_BYTES];
    uint64_t rows, cols, bytes;
    const uint8_t *data;
};

static struct matrix matrix[MATRIX_COUNT_MAX];
static unsigned matrix_count;

static int set_up(void **state)
{
    char path[4096];
    const char *source = getenv("K3_SOURCE");
    (void)state;
    snprintf(path, sizeof path, "%s/tests/golden/quant/goldens.bin", source ? source : ".");
    FILE *f = fopen(path, "rb");
    file = malloc(FILE_BYTES_MAX);
    if (!f || !file)
        return -1;
    file_bytes = fread(file, 1, FILE_BYTES_MAX, f);
    fclose(f);
    return file_bytes == 0 || file_bytes == FILE_BYTES_MAX;
}

static int tear_down(void **state)
{
    (void)state;
    free(file);
    return 0;
}

static int unforce(void **state)
{
    (void)state;
    k3_quant_force(K3_QUANT_FORM_COUNT);
    return 0;
}

static void check_elements(const char *name, const char *sha256)
{
    static uint8_t codes[2 * 65536];
    struct k3_sha256 *sha;
    uint8_t digest[K3_DIGEST_BYTES];
    char hex[K3_HEX_BYTES];
    size_t n = 0;
    for (uint32_t code = 0; code < 0x10000; code++) {
        float x = k3_bf16_value((uint16_t)code);
        if ((code & 0x7fff) >= K3_BF16_INF)
            continue;
        if (!strcmp(name, "fp16")) {
            k3_bf16_put(codes, n++, k3_fp16_code(x));
            continue;
        }
        codes[n++] = !strcmp(name, "e2m1")   ? k3_e2m1_code(x)
                     : !strcmp(name, "e4m3") ? k3_e4m3_code(x)
                                             : k3_e5m2_code(x);
    }
    assert_int_equal(k3_sha256_open(&sha, NULL), 0);
    k3_sha256_of(sha, codes, n * (strcmp(name, "fp16") ? 1 : 2), digest);
    k3_sha256_close(sha);
    k3_hex_encode(digest, sizeof digest, hex);
    assert_string_equal(hex, sha256);
}

struct cast {
    char package[WORD_BYTES], matrix[WORD_BYTES], fmt[WORD_BYTES], rule[WORD_BYTES],
        conv[WORD_BYTES];
    unsigned pow2, global_bits;
    uint64_t weight_bytes, scale_bytes;
    const uint8_t *weight, *scale;
};

static const struct matrix *find(const char *name)
{
    for (unsigned i = 0; i < matrix_count; i++)
        if (!strcmp(matrix[i].name, name))
            return &matrix[i];
    fail_msg("no matrix %s", name);
    return NULL;
}

static void same(const struct cast *cast, const char *what, const uint8_t *got, const uint8_t *want,
                 size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            fail_msg("%s %s %s %s: byte %zu of %s is 0x%02x, wanted 0x%02x", cast->package,
                     cast->matrix, cast->fmt, cast->rule, i, what, got[i], want[i]);
}

/* The global of a matrix, as this code makes it. */
static float global_of(const struct k3_quant *quant, const struct k3_qrows *rows, bool is_mx)
{
    if (is_mx) {
        struct k3_mx_window window;
        k3_mx_window_init(&window, false);
        assert_int_equal(k3_mx_scan(quant, rows, &window, NULL), 0);
        return k3_mx_global(&quant->params, &window);
    }
    uint16_t amax = 0;
    assert_int_equal(k3_quant_amax(quant, rows, &amax, NULL), 0);
    return k3_quant_needs_amax(quant->params.to) ? k3_quant_global(&quant->params, amax) : 0;
}

static void check_cast(const struct cast *cast)
{
    static uint8_t weight[WEIGHT_BYTES_MAX], scale[WEIGHT_BYTES_MAX];
    const struct matrix *m = find(cast->matrix);
    struct k3_quant quant = {.name = m->name, .cols = m->cols};
    struct k3_qrows rows = {.x = m->data, .row_count = m->rows, .weight = weight, .scale = scale};
    struct k3_qstats stats;
    struct k3_qgeom geom;
    bool is_mx = !strcmp(m->dtype, "mxfp4");
    if (is_mx)
        rows.x_scale = m->data + m->rows * m->cols / 2;
    assert_true(k3_qfmt_find(cast->fmt, strlen(cast->fmt), &quant.params.to));
    assert_true(k3_scale_rule_find(cast->rule, strlen(cast->rule), &quant.params.rule));
    quant.params.conv = strcmp(cast->conv, "ct") ? K3_QCONV_MODELOPT : K3_QCONV_COMPRESSED_TENSORS;
    quant.params.oow = K3_OOW_REQUANT;
    quant.params.pow2_scales = cast->pow2;
    assert_int_equal(k3_qfmt_geometry(quant.params.to, m->rows, m->cols, &geom, NULL), 0);
    assert_int_equal(geom.weight_bytes, cast->weight_bytes);
    assert_int_equal(geom.scale_bytes, cast->scale_bytes);
    quant.global = global_of(&quant, &rows, is_mx);
    assert_int_equal(k3_f32_bits(quant.global), cast->global_bits);
    memset(weight, 0xa5, sizeof weight);
    memset(scale, 0xa5, sizeof scale);
    k3_qstats_init(&stats);
    assert_int_equal(is_mx ? k3_mx_rows(&quant, &rows, &stats, NULL)
                           : k3_quant_rows(&quant, &rows, &stats, NULL),
                     0);
    same(cast, "scales", scale, cast->scale, cast->scale_bytes);
    same(cast, "weights", weight, cast->weight, cast->weight_bytes);
}

/* A word of a record's line; it is there, and short. */
static void word(char **rest, char out[WORD_BYTES])
{
    const char *at = strsep(rest, " ");
    assert_non_null(at);
    assert_true(strlen(at) < WORD_BYTES);
    memcpy(out, at, strlen(at) + 1);
}

static uint64_t number(char **rest, int base)
{
    char text[WORD_BYTES], *end;
    word(rest, text);
    uint64_t value = strtoul(text, &end, base);
    assert_true(*text && !*end);
    return value;
}

static size_t matrix_record(char *rest, size_t next)
{
    struct matrix *m = &matrix[matrix_count++];
    assert_true(matrix_count <= MATRIX_COUNT_MAX);
    word(&rest, m->name);
    word(&rest, m->dtype);
    m->rows = number(&rest, 10);
    m->cols = number(&rest, 10);
    m->bytes = number(&rest, 10);
    m->data = file + next;
    return next + m->bytes;
}

static size_t cast_record(char *rest, size_t next)
{
    struct cast c;
    word(&rest, c.package);
    word(&rest, c.matrix);
    word(&rest, c.fmt);
    word(&rest, c.rule);
    word(&rest, c.conv);
    c.pow2 = (unsigned)number(&rest, 10);
    c.global_bits = (unsigned)number(&rest, 16);
    c.weight_bytes = number(&rest, 10);
    c.scale_bytes = number(&rest, 10);
    assert_true(next + c.weight_bytes + c.scale_bytes <= file_bytes);
    c.weight = file + next;
    c.scale = c.weight + c.weight_bytes;
    check_cast(&c);
    return next + c.weight_bytes + c.scale_bytes;
}

/* The record at `at`; where the next one begins. */
static size_t check_record(size_t at)
{
    char line[256], kind[WORD_BYTES], name[WORD_BYTES], hex[WORD_BYTES], *rest = line;
    const uint8_t *end = memchr(file + at, '\n', file_bytes - at);
    assert_non_null(end);
    size_t line_bytes = (size_t)(end - (file + at)), next = at + line_bytes + 1;
    assert_true(line_bytes < sizeof line);
    memcpy(line, file + at, line_bytes);
    line[line_bytes] = 0;
    word(&rest, kind);
    if (!strcmp(kind, "matrix"))
        return matrix_record(rest, next);
    if (!strcmp(kind, "cast"))
        return cast_record(rest, next);
    assert_string_equal(kind, "element");
    word(&rest, name);
    word(&rest, hex);
    check_elements(name, hex);
    return next;
}

static void check_all(enum k3_quant_form form)
{
    if (!k3_quant_form_runs(form))
        skip();
    k3_quant_force(form);
    unsigned count = 0;
    matrix_count = 0;
    for (size_t at = 0; at < file_bytes; count++)
        at = check_record(at);
    assert_true(count > 50); /* a file cut short is no pass */
}

static void goldens_scalar(void **state)
{
    (void)state;
    check_all(K3_QUANT_SCALAR);
}

static void goldens_avx2(void **state)
{
    (void)state;
    check_all(K3_QUANT_AVX2);
}

static void goldens_avx512(void **state)
{
    (void)state;
    check_all(K3_QUANT_AVX512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(goldens_scalar, unforce),
        cmocka_unit_test_teardown(goldens_avx2, unforce),
        cmocka_unit_test_teardown(goldens_avx512, unforce),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
