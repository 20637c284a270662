/* Purpose: synthetic checkpoints: published layout, values, refusals.
 * Owns: one temporary directory for each test.
 * Threads: one, and workers below k3_synth_write.
 * Errors: a failed assertion names the file or tensor.
 * Invariant: nothing is left in /tmp. */
#include "synth.h"

#include "bytes.h"
#include "doc.h"
#include "fs.h"
#include "hf_index.h"
#include "k3_numbers.h"
#include "sha256.h"
#include "st.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define INDEX_NAME "model.safetensors.index.json"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/k3-synth-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

/* Everything lies one or two levels below root. */
static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static const char *path_of(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", root, name);
    return path;
}

/* Write a checkpoint and return what it says it is. */
static struct k3_synth_totals synth(const char *name, const struct k3_synth_options *options)
{
    char path[128];
    struct k3_err err;
    struct k3_synth *synth;
    k3_err_init(&err);
    if (k3_synth_open(options, &synth, &err) || k3_synth_write(synth, path_of(name, path), &err))
        fail_msg("%s: %s", name, err.text);
    struct k3_synth_totals totals = *k3_synth_totals(synth);
    k3_synth_close(synth);
    return totals;
}

static struct k3_dir open_dir(const char *name)
{
    char path[128];
    struct k3_dir dir;
    assert_int_equal(k3_dir_open(path_of(name, path), false, &dir, NULL), 0);
    return dir;
}

/* ---- layout of the published checkpoint ---- */

struct row {
    uint32_t tensor_count;
    uint64_t file_bytes, data_offset;
};

/* What the published file `number` (from 0) is like. */
static struct row published(uint32_t number)
{
    static const struct row layer_0 = {23, 2341216112, 2928};
    static const struct row kda[] = {{5404, 16990911504, 818704}, {5404, 16990916912, 824112}};
    static const struct row mla[] = {{5398, 16567501776, 817616}, {5398, 16567507176, 823016}};
    static const struct row other[] = {
        {5, 4697664072, 584}, {3, 92289328, 304}, {165, 802448352, 19424}};
    if (number == 0)
        return layer_0;
    if (number > 92)
        return other[number - 93];
    return number % 4 == 3 || number == 92 ? mla[number >= 10] : kda[number >= 10];
}

struct tally {
    uint32_t tensor_count[96]; /* by file */
    uint64_t count;
    char last[K3_ST_NAME_BYTES_MAX];
};

static int count_entry(void *context, const char *tensor, size_t tensor_bytes, const char *file,
                       struct k3_err *err)
{
    struct tally *tally = context;
    (void)err;
    assert_true(tensor_bytes < sizeof tally->last);
    if (strcmp(tally->last, tensor) >= 0)
        fail_msg("%s stands behind %s", tensor, tally->last);
    memcpy(tally->last, tensor, tensor_bytes + 1);
    char wanted[64];
    unsigned long number = strtoul(file + strlen("model-"), NULL, 10);
    snprintf(wanted, sizeof wanted, "model-%05lu-of-000096.safetensors", number);
    assert_string_equal(file, wanted);
    assert_in_range(number, 1, 96);
    tally->tensor_count[number - 1]++;
    tally->count++;
    return 0;
}

static void full_is_the_published_layout(void **state)
{
    (void)state;
    const struct k3_synth_options options = {.preset = K3_SYNTH_FULL, .sparse = true};
    struct k3_synth_totals totals = synth("full", &options);
    assert_int_equal(totals.file_count, 96);
    assert_int_equal(totals.tensor_count, 497220);
    assert_int_equal(totals.tensor_bytes, 1560860324864);
    assert_int_equal(totals.file_bytes, 1560936091448);

    static const char head[] = "{\n  \"metadata\": {\n    \"total_size\": 1560860324864\n  },\n";
    struct k3_dir dir = open_dir("full");
    static struct tally tally;
    char *text;
    size_t bytes;
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_file_load(&dir, INDEX_NAME, 1 << 30, &text, &bytes, NULL), 0);
    assert_memory_equal(text, head, sizeof head - 1);
    struct k3_index_sink sink = {.entry = count_entry, .context = &tally};
    if (k3_index_decode(INDEX_NAME, text, bytes, &sink, &err))
        fail_msg("%s", err.text);
    free(text);
    assert_int_equal(sink.total_size, 1560860324864);
    assert_int_equal(tally.count, 497220);

    uint64_t sum = 0;
    for (uint32_t i = 0; i < 96; i++) {
        const struct row row = published(i);
        char name[64];
        uint8_t prefix[8];
        struct stat stat;
        int fd;
        snprintf(name, sizeof name, "model-%05u-of-000096.safetensors", i + 1);
        assert_int_equal(k3_file_open(&dir, name, false, &fd, &stat, NULL), 0);
        assert_int_equal(k3_file_read(fd, name, prefix, sizeof prefix, 0, NULL), 0);
        close(fd);
        if ((uint64_t)stat.st_size != row.file_bytes ||
            k3_load_le64(prefix) + 8 != row.data_offset ||
            tally.tensor_count[i] != row.tensor_count)
            fail_msg("%s: %lld bytes, data at %llu, %u tensors", name, (long long)stat.st_size,
                     (unsigned long long)k3_load_le64(prefix) + 8, tally.tensor_count[i]);
        sum += row.file_bytes;
    }
    assert_int_equal(sum, 1560936091448);
    k3_dir_close(&dir);
}

static void full_config_is_the_published_one(void **state)
{
    (void)state;
    const struct k3_synth_options options = {
        .preset = K3_SYNTH_FULL, .layer_count = 93, .expert_count = 896};
    static struct k3_config own, wanted;
    struct k3_problems problems;
    struct k3_doc *doc;
    struct k3_text text;
    k3_text_init(&text);
    k3_problems_init(&problems);
    k3_synth_config_encode(&options, &text);
    assert_int_equal(k3_doc_decode("config.json", text.data, text.bytes, &doc, NULL), 0);
    assert_int_equal(k3_config_decode(doc, &own, &problems, NULL), 0);
    k3_test_config(&wanted);
    assert_memory_equal(own.value, wanted.value, sizeof own.value);
    assert_memory_equal(own.is_mla, wanted.is_mla, sizeof own.is_mla);
    /* Members, the outer ones and the two big inner ones. */
    assert_int_equal(k3_doc_count(doc), 13);
    assert_int_equal(k3_doc_count(k3_doc_find(doc, "text_config")), 47);
    assert_int_equal(k3_doc_count(k3_doc_find(doc, "vision_config")), 25);
    k3_doc_free(doc);
    k3_problems_fini(&problems);
    k3_text_fini(&text);
}

static void projector_header_is_the_published_form(void **state)
{
    (void)state;
    static const char wanted[] =
        "{\"mm_projector.post_norm.weight\":{\"dtype\":\"BF16\",\"shape\":[7168],"
        "\"data_offsets\":[0,14336]},"
        "\"mm_projector.proj.0.weight\":{\"dtype\":\"BF16\",\"shape\":[4096,4096],"
        "\"data_offsets\":[14336,33568768]},"
        "\"mm_projector.proj.2.weight\":{\"dtype\":\"BF16\",\"shape\":[7168,4096],"
        "\"data_offsets\":[33568768,92289024]}}";
    const struct k3_synth_options options = {.preset = K3_SYNTH_LAYER, .sparse = true};
    synth("layer", &options);
    struct k3_dir dir = open_dir("layer");
    const char *name = "model-00005-of-000006.safetensors";
    char header[304];
    int fd;
    assert_int_equal(k3_file_open(&dir, name, false, &fd, NULL, NULL), 0);
    assert_int_equal(k3_file_read(fd, name, header, sizeof header, 0, NULL), 0);
    close(fd);
    assert_int_equal(k3_load_le64(header), sizeof header - 8);
    assert_memory_equal(header + 8, wanted, sizeof wanted - 1);
    for (size_t i = 8 + sizeof wanted - 1; i < sizeof header; i++)
        assert_int_equal(header[i], ' ');
    k3_dir_close(&dir);
}

/* ---- contents ---- */

/* Digest of all safetensors files of a directory, in order of their names. */
static void digest_weights(const char *name, char hex[K3_HEX_BYTES])
{
    struct k3_dir dir = open_dir(name);
    struct k3_sha256 *sha;
    uint8_t digest[K3_DIGEST_BYTES];
    char **names;
    uint32_t count;
    assert_int_equal(k3_sha256_open(&sha, NULL), 0);
    k3_sha256_begin(sha);
    assert_int_equal(k3_dir_list(&dir, &names, &count, NULL), 0);
    for (uint32_t i = 0; i < count; i++) {
        char *data;
        size_t bytes;
        if (!strstr(names[i], ".safetensors") || !strcmp(names[i], INDEX_NAME))
            continue;
        assert_int_equal(k3_file_load(&dir, names[i], 1 << 30, &data, &bytes, NULL), 0);
        k3_sha256_update(sha, data, bytes);
        free(data);
    }
    k3_sha256_final(sha, digest);
    k3_hex_encode(digest, sizeof digest, hex);
    k3_names_free(names, count);
    k3_sha256_close(sha);
    k3_dir_close(&dir);
}

static void same_seed_same_bytes(void **state)
{
    (void)state;
    /* Fixed, so that another compiler, machine or version cannot make other bytes unnoticed. */
    static const char wanted[] = "c8c84f4201d877bebe1bb99cc914405de4f7b3bf3c040355c59d09e65669922f";
    char one[K3_HEX_BYTES], three[K3_HEX_BYTES], other[K3_HEX_BYTES];
    struct k3_synth_options options = {.preset = K3_SYNTH_TINY, .worker_count = 1};
    synth("one", &options);
    options.worker_count = 3;
    synth("three", &options);
    options.seed = 1;
    synth("other", &options);
    digest_weights("one", one);
    digest_weights("three", three);
    digest_weights("other", other);
    assert_string_equal(one, three);
    assert_string_not_equal(one, other);
    assert_string_equal(one, wanted);
}

struct sums {
    double sum, square;
    uint64_t count;
};

static void add(struct sums *sums, double x)
{
    sums->sum += x;
    sums->square += x * x;
    sums->count++;
}

/* |std / wanted - 1| and |mean| / wanted stay below `limit`. */
static void check_sums(const char *name, const struct sums *sums, double wanted, double limit)
{
    double mean = sums->sum / (double)sums->count;
    double variance = sums->square / (double)sums->count - mean * mean;
    double low = wanted * (1 - limit);
    double high = wanted * (1 + limit);
    if (variance < low * low || variance > high * high || mean > wanted * limit ||
        mean < -wanted * limit)
        fail_msg("%s: mean %g, variance %g, wanted std %g", name, mean, variance, wanted);
}

static double float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

static void check_finite(const struct k3_st_tensor *tensor, const uint8_t *data)
{
    uint64_t bytes = tensor->end_offset - tensor->begin_offset;
    for (uint64_t i = 0; tensor->dtype == K3_F32 && i < bytes; i += 4)
        if ((k3_load_le32(data + i) & 0x7f800000u) == 0x7f800000u)
            fail_msg("%s: not finite at %llu", tensor->name, (unsigned long long)i);
    for (uint64_t i = 0; tensor->dtype == K3_BF16 && i < bytes; i += 2)
        if ((data[i + 1] & 0x7f) == 0x7f && data[i] & 0x80)
            fail_msg("%s: not finite at %llu", tensor->name, (unsigned long long)i);
}

static void check_a_log(const struct k3_st_tensor *tensor, const uint8_t *data)
{
    assert_int_equal(tensor->shape[0], 24); /* 16 heads */
    for (uint32_t i = 0; i < 24; i++) {
        double x = float_of(k3_load_le32(data + 4 * i));
        if (i < 16 ? x <= 0 || x > 2.7726 : k3_load_le32(data + 4 * i) != 0)
            fail_msg("%s[%u] is %g", tensor->name, i, x);
    }
}

/* A packed matrix with the scales that follow it: every group obeys the OCP rule, as far as its
 * codes can tell. */
static void check_mx(const struct k3_st_tensor *tensor, const uint8_t *data, struct sums *sums)
{
    static const double magnitude[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    const uint64_t groups = (tensor->end_offset - tensor->begin_offset) / 16;
    const uint8_t *scales = data + groups * 16;
    for (uint64_t g = 0; g < groups; g++) {
        double scale = 1;
        double largest = 0;
        assert_in_range(scales[g], 100, 127);
        for (int e = scales[g]; e < 127; e++)
            scale /= 2;
        for (uint32_t i = 0; i < 32; i++) {
            uint8_t code = data[g * 16 + i / 2] >> (i % 2 ? 4 : 0) & 15;
            double x = magnitude[code & 7];
            largest = x > largest ? x : largest;
            add(sums, (code & 8 ? -x : x) * scale);
        }
        if (largest < 4)
            fail_msg("%s: group %llu uses only %g of its range", tensor->name,
                     (unsigned long long)g, largest);
    }
}

static void tiny_looks_like_weights(void **state)
{
    (void)state;
    const struct k3_synth_options options = {.preset = K3_SYNTH_TINY, .seed = 5};
    struct k3_synth_totals totals = synth("tiny", &options);
    struct k3_dir dir = open_dir("tiny");
    struct sums gate = {0}, w1 = {0}, w2 = {0}, tails = {0};
    assert_int_equal(totals.file_count, 8);
    for (uint32_t f = 1; f <= 8; f++) {
        char name[64];
        char *file;
        size_t bytes;
        struct k3_st *st;
        struct k3_err err;
        k3_err_init(&err);
        snprintf(name, sizeof name, "model-%05u-of-000008.safetensors", f);
        assert_int_equal(k3_file_load(&dir, name, 1 << 30, &file, &bytes, NULL), 0);
        uint64_t header_bytes = 8 + k3_load_le64(file);
        if (k3_st_decode(name, file, (size_t)header_bytes, bytes, &st, &err))
            fail_msg("%s", err.text);
        for (uint32_t i = 0; i < st->tensor_count; i++) {
            const struct k3_st_tensor *tensor = &st->tensors[i];
            const uint8_t *data = (uint8_t *)file + header_bytes + tensor->begin_offset;
            check_finite(tensor, data);
            if (strstr(tensor->name, ".A_log")) {
                check_a_log(tensor, data);
                tails.count++;
            } else if (strstr(tensor->name, "w2.weight_packed")) {
                check_mx(tensor, data, &w2);
            } else if (strstr(tensor->name, ".weight_packed")) {
                check_mx(tensor, data, &w1);
            } else if (strstr(tensor->name, "shared_experts.gate_proj")) {
                for (uint64_t at = 0; at < tensor->end_offset - tensor->begin_offset; at += 2)
                    add(&gate, float_of((uint32_t)data[at] << 16 | (uint32_t)data[at + 1] << 24));
            }
        }
        k3_st_free(st);
        free(file);
    }
    assert_int_equal(tails.count, 3);
    check_sums("w1, w3", &w1, 0.015625, 0.03);
    check_sums("w2", &w2, 0.0078125, 0.03);
    check_sums("gate_proj", &gate, 0.02, 0.01);
    k3_dir_close(&dir);
}

static void experts_stand_in_string_order(void **state)
{
    (void)state;
    static const char *const part[] = {"w1.weight_packed", "w1.weight_scale",  "w2.weight_packed",
                                       "w2.weight_scale",  "w3.weight_packed", "w3.weight_scale"};
    static const int expert[] = {0, 1, 10, 11, 12, 13, 14, 15, 2, 3, 4, 5, 6, 7, 8, 9};
    const struct k3_synth_options options = {.preset = K3_SYNTH_TINY, .sparse = true};
    synth("sparse", &options);
    struct k3_dir dir = open_dir("sparse");
    const char *name = "model-00004-of-000008.safetensors";
    char *file;
    size_t bytes;
    struct k3_st *st;
    assert_int_equal(k3_file_load(&dir, name, 1 << 30, &file, &bytes, NULL), 0);
    uint64_t header_bytes = 8 + k3_load_le64(file);
    assert_int_equal(k3_st_decode(name, file, (size_t)header_bytes, bytes, &st, NULL), 0);
    assert_true(k3_is_zero(file + header_bytes, bytes - (size_t)header_bytes));
    uint32_t first = st->tensor_count - 96;
    for (uint32_t i = 0; i < 96; i++) {
        char wanted[128];
        snprintf(wanted, sizeof wanted,
                 "language_model.model.layers.3.block_sparse_moe.experts.%d.%s", expert[i / 6],
                 part[i % 6]);
        assert_string_equal(st->tensors[first + i].name, wanted);
    }
    k3_st_free(st);
    free(file);
    k3_dir_close(&dir);
}

static void any_slice_is_the_same(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint8_t dtype;
    } kind[] = {{"x.q_proj.weight", K3_BF16},          {"x.o_proj.weight", K3_BF16},
                {"x.input_layernorm.weight", K3_BF16}, {"x.A_log", K3_F32},
                {"x.q_conv1d.weight", K3_F32},         {"x.w1.weight_packed", K3_U8},
                {"x.w1.weight_scale", K3_U8}};
    struct k3_synth_values *values;
    static uint8_t whole[4096], slice[4096];
    assert_int_equal(k3_synth_values_open(&values, NULL), 0);
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        const struct k3_rule rule = {.name = kind[k].name, .dtype = kind[k].dtype};
        struct k3_synth_source source;
        k3_synth_source_init(&source, &rule, kind[k].name, 3, 4000);
        memset(whole, 0xa5, sizeof whole);
        k3_synth_fill(values, &source, 0, whole, sizeof whole);
        assert_true(k3_is_zero(whole + 4000, 96));
        assert_false(k3_is_zero(whole + 3984, 16));
        for (uint32_t i = 0; i < 2000; i++) {
            uint32_t begin = i * 2654435761u >> 20; /* below 4096, spread */
            uint32_t bytes = (i * 40503u >> 4) % (4097 - begin);
            memset(slice, 0xa5, sizeof slice);
            k3_synth_fill(values, &source, begin, slice, bytes);
            if (memcmp(slice, whole + begin, bytes) || (bytes < 4096 && slice[bytes] != 0xa5))
                fail_msg("%s: %u bytes at %u", kind[k].name, bytes, begin);
        }
    }
    k3_synth_values_close(values);
}

/* ---- refusals ---- */

static void options_are_checked(void **state)
{
    (void)state;
    static const struct {
        struct k3_synth_options options;
        const char *part;
    } row[] = {
        {{.preset = K3_SYNTH_FULL, .layer_count = 4}, "always has 93 layers"},
        {{.preset = K3_SYNTH_FULL, .expert_count = 16}, "always has 93 layers"},
        {{.preset = K3_SYNTH_LAYER, .layer_count = 2}, "--layers 2: at least 3"},
        {{.preset = K3_SYNTH_TINY, .layer_count = 4094}, "--layers 4094"},
        {{.preset = K3_SYNTH_TINY, .expert_count = 24}, "--experts 24: must be a multiple of 16"},
        {{.preset = K3_SYNTH_TINY, .expert_count = 4112}, "up to 4096"},
        {{.preset = K3_SYNTH_TINY, .layer_count = 2000, .expert_count = 4096}, "at most 8000000"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_synth *synth;
        struct k3_err err;
        k3_err_init(&err);
        int rc = k3_synth_open(&row[i].options, &synth, &err);
        if (rc != K3_EUSAGE || !strstr(err.text, row[i].part))
            fail_msg("row %zu: %d %s", i, rc, err.text);
        assert_null(synth);
    }
}

static void only_an_empty_directory(void **state)
{
    (void)state;
    const struct k3_synth_options options = {.preset = K3_SYNTH_TINY};
    struct k3_dir dir;
    struct k3_synth *synth;
    struct k3_err err;
    char path[128];
    char **names;
    uint32_t count;
    k3_err_init(&err);
    assert_int_equal(k3_dir_open(path_of("used", path), true, &dir, NULL), 0);
    assert_int_equal(k3_file_publish(&dir, "t", "config.json", "mine", 4, NULL), 0);
    assert_int_equal(k3_synth_open(&options, &synth, NULL), 0);
    assert_int_equal(k3_synth_write(synth, path, &err), K3_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "is not empty (it holds config.json)"));
    k3_synth_close(synth);
    assert_int_equal(k3_dir_list(&dir, &names, &count, NULL), 0);
    assert_int_equal(count, 1);
    k3_names_free(names, count);
    k3_dir_close(&dir);
}

static uint32_t asked_count;

static bool stop_later(void)
{
    return ++asked_count > 5; /* in the second or third file */
}

static void a_stopped_run_leaves_nothing(void **state)
{
    (void)state;
    const struct k3_synth_options options = {
        .preset = K3_SYNTH_TINY, .worker_count = 1, .stop = stop_later};
    struct k3_synth *synth;
    struct k3_err err;
    char path[128];
    k3_err_init(&err);
    assert_int_equal(k3_synth_open(&options, &synth, NULL), 0);
    assert_int_equal(k3_synth_write(synth, path_of("stopped", path), &err), K3_ECANCELED);
    k3_synth_close(synth);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        TEST(full_is_the_published_layout),
        TEST(full_config_is_the_published_one),
        TEST(projector_header_is_the_published_form),
        TEST(same_seed_same_bytes),
        TEST(tiny_looks_like_weights),
        TEST(experts_stand_in_string_order),
        TEST(any_slice_is_the_same),
        TEST(options_are_checked),
        TEST(only_an_empty_directory),
        TEST(a_stopped_run_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
