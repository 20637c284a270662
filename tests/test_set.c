/* Purpose: loader/set*.c: finding and judging a set, its directories, names and part headers.
 * Owns: one set in one directory and one in three, for the whole run.
 * Threads: one.
 * Errors: a failed assertion ends the test.
 * Invariant: each test leaves the sets as it found them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "mini_set.h"
#include "set.h"
#include "tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct mini_set one, three;
static struct k3_err err;

static int make_sets(void **state)
{
    (void)state;
    mini_set_make(&one, 1);
    mini_set_make(&three, 3);
    return 0;
}

static int remove_sets(void **state)
{
    (void)state;
    mini_set_remove(&one);
    mini_set_remove(&three);
    return 0;
}

static void refuse(const char *const *dirs, uint32_t count, int rc, const char *text)
{
    struct k3_set *set = (struct k3_set *)&err;
    k3_err_init(&err);
    assert_int_equal(k3_set_open(dirs, count, &set, &err), rc);
    assert_null(set);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" is not in: %s", text, err.text);
}

static void move(const char *from, const char *to)
{
    assert_int_equal(rename(from, to), 0);
}

static void test_no_manifest(void **state)
{
    (void)state;
    char path[256], away[300], partial[256];
    mini_set_file_path(&one, K3_MANIFEST_NAME, path);
    snprintf(away, sizeof away, "%s.away", path);
    move(path, away);
    refuse(one.dir_list, 1, K3_ECORRUPT,
           "no k3-shards.json, though other files of a shard set are there");
    mini_set_file_path(&one, K3_PARTIAL_NAME, partial);
    assert_int_equal(mkdir(partial, 0700), 0);
    refuse(one.dir_list, 1, K3_ECORRUPT, "run the same convert command again");
    move(away, path);
    /* A conversion that was killed between its manifest and the end has both: it is a set. */
    struct k3_set *set;
    assert_int_equal(k3_set_open(one.dir_list, 1, &set, NULL), 0);
    k3_set_close(set);
    rmdir(partial);
}

static void write_manifest(void)
{
    char path[256];
    struct k3_text text;
    k3_text_init(&text);
    assert_int_equal(k3_manifest_encode(&one.manifest, &text, &err), 0);
    mini_set_file_path(&one, K3_MANIFEST_NAME, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text.data, 1, text.bytes, file), text.bytes);
    fclose(file);
    k3_text_fini(&text);
}

/* Manifests that agree with themselves, but not with the layout and the rules in their plan. */
static void test_other_plan(void **state)
{
    (void)state;
    struct k3_manifest_rank *row = &one.manifest.ranks[1];
    k3_err_init(&err);
    row->image_bytes += K3_UNIT_BYTES;
    row->parts[2].bytes += K3_UNIT_BYTES;
    row->units.bytes += K3_DIGEST_BYTES;
    write_manifest();
    refuse(one.dir_list, 1, K3_ECORRUPT, "the rules give");
    row->image_bytes -= K3_UNIT_BYTES;
    row->parts[2].bytes -= K3_UNIT_BYTES;
    row->units.bytes -= K3_DIGEST_BYTES;
    /* Its last part is left out. */
    const struct k3_part_entry *last = &row->parts[--row->part_count];
    uint64_t unit_count = last->bytes / K3_UNIT_BYTES;
    row->image_bytes -= last->bytes - last->data_offset;
    row->units.bytes -= unit_count * K3_DIGEST_BYTES;
    k3_err_init(&err);
    write_manifest();
    refuse(one.dir_list, 1, K3_ECORRUPT, "are not those of its layout");
    row->image_bytes += last->bytes - last->data_offset;
    row->units.bytes += unit_count * K3_DIGEST_BYTES;
    row->part_count++;
    write_manifest();
}

/* A set of one of the two ranks; its sources are files of the plan. */
static void test_partial_set(void **state)
{
    (void)state;
    struct k3_manifest *manifest = &one.manifest;
    const struct k3_manifest_rank first = manifest->ranks[0], second = manifest->ranks[1];
    struct k3_set *set;
    uint32_t *ranks, count;
    k3_err_init(&err);
    assert_int_equal(k3_set_open(one.dir_list, 1, &set, &err), 0);
    assert_false(k3_set_is_partial(set));
    assert_int_equal(k3_set_fail_rank(set, 2, &err), K3_EUNSUPPORTED);
    assert_string_equal(err.text, "rank 2 is not in this set: it has 2 ranks, 0 to 1");
    assert_non_null(k3_set_source(set, manifest->sources[0].name));
    assert_null(k3_set_source(set, "other.safetensors"));
    k3_set_close(set);
    manifest->ranks[0] = second;
    manifest->rank_count = 1;
    k3_err_init(&err);
    write_manifest();
    assert_int_equal(k3_set_open(one.dir_list, 1, &set, &err), 0);
    assert_true(k3_set_is_partial(set));
    assert_null(k3_set_rank(set, 0));
    assert_non_null(k3_set_rank(set, 1));
    assert_int_equal(set->ranks.count, 1);
    assert_int_equal(k3_set_ranks(set, "0", &ranks, &count, &err), K3_EUNSUPPORTED);
    assert_string_equal(err.text, "rank 0 is not in this set: it holds rank 1 of a layout of 2");
    k3_set_close(set);
    /* Not a file of the plan, or not of its size. */
    char *name = manifest->sources[0].name, other[] = "other.safetensors";
    manifest->sources[0].name = other;
    k3_err_init(&err);
    write_manifest();
    refuse(one.dir_list, 1, K3_ECORRUPT, "its sources are not the files of its plan");
    manifest->sources[0].name = name;
    manifest->sources[0].bytes++;
    k3_err_init(&err);
    write_manifest();
    refuse(one.dir_list, 1, K3_ECORRUPT, "its sources are not the files of its plan");
    manifest->sources[0].bytes--;
    manifest->ranks[0] = first;
    manifest->rank_count = MINI_RANK_COUNT;
    k3_err_init(&err);
    write_manifest();
}

static void test_wrong_dirs(void **state)
{
    (void)state;
    const char *const absent[] = {"/tmp/k3-none-here"};
    const char *const twice[] = {one.dirs[0], one.dirs[0]};
    const char *const mixed[] = {one.dirs[0], three.dirs[0]};
    const char *const less[] = {three.dirs[0], three.dirs[1]};
    const char *const rest[] = {three.dirs[1], three.dirs[2]};
    const char *const foreign[] = {three.dirs[0], three.dirs[1], three.dirs[2], one.dirs[0]};
    refuse(absent, 1, K3_EIO, absent[0]);
    refuse(absent, 0, K3_EUSAGE, "0 directories");
    refuse(twice, 2, K3_EUSAGE, "are the same directory");
    refuse(mixed, 2, K3_ECORRUPT, "is in both");
    refuse(less, 2, K3_ECORRUPT, "not all directories");
    refuse(rest, 2, K3_ECORRUPT, "no k3-shards.json");
    refuse(foreign, 4, K3_ECORRUPT, "is in both");
}

static void test_misplaced_part(void **state)
{
    (void)state;
    char path[256], wrong[256];
    mini_set_part_path(&three, 1, 1, path);
    snprintf(wrong, sizeof wrong, "%s/model-rank-1-part-1.safetensors", three.dirs[0]);
    assert_string_not_equal(path, wrong);
    move(path, wrong);
    refuse(three.dir_list, 3, K3_ECORRUPT, "cannot lie in one directory");
    move(wrong, path);
    /* In two places. */
    assert_int_equal(link(path, wrong), 0);
    refuse(three.dir_list, 3, K3_ECORRUPT, "cannot lie in one directory");
    unlink(wrong);
    /* The manifest beside parts that are not of the first directory. */
    char manifest[256];
    mini_set_file_path(&three, K3_MANIFEST_NAME, manifest);
    snprintf(wrong, sizeof wrong, "%s/%s", three.dirs[1], K3_MANIFEST_NAME);
    move(manifest, wrong);
    refuse(three.dir_list, 3, K3_ECORRUPT, "beside parts of another directory");
    move(wrong, manifest);
}

static void test_look_up(void **state)
{
    (void)state;
    const char *const dirs[] = {three.dirs[1], three.dirs[2], three.dirs[0]};
    struct k3_set *set;
    assert_int_equal(k3_set_open(dirs, 3, &set, &err), 0);
    assert_int_equal(set->manifest_dir, 2);
    assert_int_equal(set->layout.tp, MINI_RANK_COUNT);
    assert_null(k3_set_rank(set, 2));
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        const struct k3_manifest_rank *row = k3_set_rank(set, rank);
        uint8_t *digests;
        uint64_t count;
        assert_int_equal(row->rank, rank);
        for (uint32_t i = 0; i < row->part_count; i++) {
            int fd;
            assert_string_equal(k3_set_part_dir(set, rank, i)->path, three.dirs[(rank + i) % 3]);
            assert_int_equal(k3_set_part_open(set, &row->parts[i], &fd, &err), 0);
            close(fd);
        }
        assert_int_equal(k3_set_units(set, row, &digests, &count, &err), 0);
        assert_int_equal(count * K3_DIGEST_BYTES + 128, row->units.bytes);
        free(digests);
    }
    k3_set_close(set);
    k3_set_close(NULL);
}

/* Digests that are whole by themselves but not those of the manifest's parts or plan. */
static void test_foreign_units(void **state)
{
    (void)state;
    struct k3_set *set;
    uint8_t *digests;
    uint64_t count;
    assert_int_equal(k3_set_open(one.dir_list, 1, &set, &err), 0);
    struct k3_manifest_rank *row = &set->manifest.ranks[0];
    uint8_t *const spoiled[] = {row->parts[1].tree, set->manifest.plan_digest, row->units.sha256};
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        spoiled[i][7] ^= 1;
        k3_err_init(&err);
        assert_int_equal(k3_set_units(set, row, &digests, &count, &err), K3_ECORRUPT);
        assert_null(digests);
        assert_string_equal(err.file, "model-rank-0.units");
        spoiled[i][7] ^= 1;
    }
    assert_int_equal(k3_set_units(set, row, &digests, &count, NULL), 0);
    free(digests);
    k3_set_close(set);
}

static void test_ranks(void **state)
{
    (void)state;
    static const char *const bad[] = {"",   ",",  "0,",   ",0", "a",   "0-",      "-1",   "1-0",
                                      "0 ", " 0", "0,,1", "+1", "0x1", "1234567", "0-1-1"};
    static const char *const absent[] = {"2", "0-2", "4095", "4096", "99999", "0-9999"};
    struct k3_set *set;
    uint32_t *ranks, count;
    assert_int_equal(k3_set_open(one.dir_list, 1, &set, &err), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(k3_set_ranks(set, bad[i], &ranks, &count, NULL), K3_EUSAGE);
        assert_null(ranks);
    }
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_int_equal(k3_set_ranks(set, absent[i], &ranks, &count, NULL), K3_EUNSUPPORTED);
    static const char *const good[] = {"0,1", "1,0", "0-1", "0,0-1,1", "00,1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(k3_set_ranks(set, good[i], &ranks, &count, NULL), 0);
        assert_int_equal(count, 2);
        assert_true(ranks[0] == 0 && ranks[1] == 1);
        free(ranks);
    }
    assert_int_equal(k3_set_ranks(set, "1", &ranks, &count, NULL), 0);
    assert_true(count == 1 && ranks[0] == 1);
    free(ranks);
    k3_set_close(set);
}

static void touch(const struct mini_set *mini, uint32_t dir, const char *name, bool there)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", mini->dirs[dir], name);
    FILE *file = there ? fopen(path, "w") : NULL;
    if (file)
        fclose(file);
    if (!there)
        unlink(path);
}

static void test_check_names(void **state)
{
    (void)state;
    static const char *const errors[] = {"x.safetensors",
                                         "model-rank-7-part-0.safetensors",
                                         "model-rank-0-part-99.safetensors",
                                         "x.units",
                                         "model-rank-00.units",
                                         "model-rank-01-part-1.safetensors"};
    struct k3_problems problems;
    struct k3_set *set;
    uint32_t notices;
    assert_int_equal(k3_set_open(three.dir_list, 3, &set, &err), 0);
    k3_problems_init(&problems);
    assert_int_equal(k3_set_check_names(set, &problems, &notices, &err), 0);
    assert_int_equal(problems.count, 0);
    assert_int_equal(notices, 0);
    for (uint32_t i = 0; i < 6; i++)
        touch(&three, i % 3, errors[i], true);
    touch(&three, 1, "model-rank-0.units", true); /* units belong into the first directory */
    touch(&three, 2, "notes.txt", true);
    touch(&three, 0, "model.sig", true);
    assert_int_equal(k3_set_check_names(set, &problems, &notices, &err), 0);
    assert_int_equal(problems.count, 7);
    assert_int_equal(notices, 1);
    for (uint32_t i = 0; i < 6; i++)
        touch(&three, i % 3, errors[i], false);
    touch(&three, 1, "model-rank-0.units", false);
    touch(&three, 2, "notes.txt", false);
    touch(&three, 0, "model.sig", false);
    k3_problems_fini(&problems);
    k3_set_close(set);
}

/* ---- headers that are proved but wrong: a fault of the writer ---- */

struct piece {
    const char *name; /* tensor; NULL: the end */
    uint64_t bytes;
    const char *dtype;
};

struct header_case {
    const char *what; /* must be in the message; NULL: the header is good */
    const char *format, *rank;
    struct piece pieces[6];
    const char *views[3][2]; /* key, value */
    uint32_t dim_count;      /* 0: 1 */
};

#define A                                                                                          \
    {                                                                                              \
        "a", 524000, "U8"                                                                          \
    }
#define B                                                                                          \
    {                                                                                              \
        "b", 524288, "U8"                                                                          \
    }
#define PAD(n, bytes)                                                                              \
    {                                                                                              \
        "k3.pad." n, bytes, "U8"                                                                   \
    }
#define VIEW_A                                                                                     \
    {                                                                                              \
        "k3.view.a", "U8;524000;0;524000"                                                          \
    }
#define VIEW_B                                                                                     \
    {                                                                                              \
        "k3.view.b", "U8;524288;524288;1048576"                                                    \
    }
#define FUSED                                                                                      \
    {                                                                                              \
        "k3.view.a", "U8;1048576;0;1048576"                                                        \
    }

static const struct header_case cases[] = {
    {NULL, "0", "1", {A, PAD("0", 288), B}, {VIEW_A, VIEW_B}, 0},
    {NULL, "0", "1", {A, PAD("0", 288), B}, {FUSED}, 0},
    {NULL,
     "0",
     "1",
     {A, PAD("0", 200), PAD("1", 88), B},
     {{"k3.view.a", "U8;524200;0;524200"}, VIEW_B},
     0},
    {"k3.format is 1", "1", "1", {A, PAD("0", 288), B}, {VIEW_A, VIEW_B}, 0},
    {"k3.rank is 0", "0", "0", {A, PAD("0", 288), B}, {VIEW_A, VIEW_B}, 0},
    {"unknown metadata", "0", "1", {A, PAD("0", 288), B}, {VIEW_A, VIEW_B, {"k3.x", "1"}}, 0},
    {"next k3.pad.N", "0", "1", {A, PAD("1", 288), B}, {VIEW_A, VIEW_B}, 0},
    {"next k3.pad.N", "0", "1", {A, {"k3.pad.0", 288, "I8"}, B}, {VIEW_A, VIEW_B}, 0},
    {"next k3.pad.N", "0", "1", {A, PAD("00", 288), B}, {VIEW_A, VIEW_B}, 0},
    {"more than four dimensions", "0", "1", {A, PAD("0", 288), B}, {VIEW_A, VIEW_B}, 5},
    {"in no view", "0", "1", {A, PAD("0", 288), B}, {VIEW_A}, 0},
    {"in no view", "0", "1", {A, PAD("0", 288), B}, {VIEW_B}, 0},
    {"in no view", "0", "1", {A, PAD("0", 288), B}, {VIEW_B, VIEW_A}, 0},
    {"ends inside a tensor",
     "0",
     "1",
     {A, PAD("0", 288), B},
     {{"k3.view.a", "U8;523999;0;523999"}, VIEW_B},
     0},
    {"view without tensors",
     "0",
     "1",
     {A, PAD("0", 288), B},
     {VIEW_A, VIEW_B, {"k3.view.c", "U8;1;0;1"}},
     0},
    {"view without tensors",
     "0",
     "1",
     {A, PAD("0", 288), B},
     {VIEW_A, {"k3.view.b", "U8;1048576;524288;1572864"}},
     0},
    {"numbers do not describe",
     "0",
     "1",
     {A, PAD("0", 288), B},
     {{"k3.view.a", "U8;3;0;524000"}, VIEW_B},
     0},
    {"do not tile", "0", "1", {A, PAD("0", 288), B, {"z", 0, "U8"}}, {VIEW_A, VIEW_B}, 0},
};

static void build_header(const struct header_case *test, struct k3_text *text)
{
    struct k3_st_out out;
    char plan[K3_HEX_BYTES];
    uint64_t end_offset = 0;
    k3_hex_encode(one.manifest.plan_digest, K3_DIGEST_BYTES, plan);
    k3_st_out_begin(&out, text);
    k3_st_out_meta(&out, "k3.format", test->format);
    k3_st_out_meta(&out, "k3.part", "2");
    k3_st_out_meta(&out, "k3.plan", plan);
    k3_st_out_meta(&out, "k3.rank", test->rank);
    for (int i = 0; i < 3 && test->views[i][0]; i++)
        k3_st_out_meta(&out, test->views[i][0], test->views[i][1]);
    for (int i = 0; i < 6 && test->pieces[i].name; i++) {
        const struct piece *piece = &test->pieces[i];
        enum k3_dtype dtype = K3_U8;
        assert_true(k3_dtype_find(piece->dtype, strlen(piece->dtype), &dtype));
        bool pad = strncmp(piece->name, "k3.pad.", 7) == 0;
        struct k3_st_tensor tensor = {.name = piece->name,
                                      .begin_offset = end_offset,
                                      .shape = {piece->bytes, 1, 1, 1, 1},
                                      .name_bytes = (uint32_t)strlen(piece->name),
                                      .dtype = (uint8_t)dtype,
                                      .dim_count = 1};
        if (test->dim_count && !pad)
            tensor.dim_count = (uint8_t)test->dim_count;
        end_offset += piece->bytes;
        tensor.end_offset = end_offset;
        k3_st_out_tensor(&out, &tensor);
    }
    assert_int_equal(k3_st_out_end(&out, K3_UNIT_BYTES, &err), 0);
    assert_int_equal(text->bytes, K3_UNIT_BYTES);
}

static void test_headers(void **state)
{
    (void)state;
    struct k3_set *set;
    struct k3_sha256 *sha;
    assert_int_equal(k3_set_open(one.dir_list, 1, &set, &err), 0);
    assert_int_equal(k3_sha256_open(&sha, &err), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct k3_text text;
        struct k3_part_header header;
        uint8_t digest[K3_DIGEST_BYTES];
        FILE *file = tmpfile();
        k3_text_init(&text);
        k3_err_init(&err);
        build_header(&cases[i], &text);
        fwrite(text.data, 1, text.bytes, file);
        fflush(file);
        struct k3_part_entry part = {
            .rank = 1, .part = 2, .data_offset = text.bytes, .bytes = text.bytes + 1048576};
        k3_unit_digest(sha, text.data, text.bytes, digest);
        int rc = k3_set_part_header(set, &part, fileno(file), digest, &header, &err);
        if (rc != (cases[i].what ? K3_EFORMAT : 0) ||
            (cases[i].what && !strstr(err.text, cases[i].what)))
            fail_msg("case %zu (%s): %d, %s", i, cases[i].what ? cases[i].what : "good", rc,
                     err.text);
        k3_part_header_fini(&header);
        k3_text_fini(&text);
        fclose(file);
    }
    k3_sha256_close(sha);
    k3_set_close(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_manifest),    cmocka_unit_test(test_other_plan),
        cmocka_unit_test(test_partial_set),    cmocka_unit_test(test_wrong_dirs),
        cmocka_unit_test(test_misplaced_part), cmocka_unit_test(test_look_up),
        cmocka_unit_test(test_foreign_units),  cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_check_names),    cmocka_unit_test(test_headers),
    };
    return cmocka_run_group_tests(tests, make_sets, remove_sets);
}
