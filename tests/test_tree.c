/* Purpose: the tree digest is what `fsverity digest` prints, and all ways to it agree.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: content comes from the generator below alone, so the recorded answers can be made
 * again by anyone with fsverity 1.5: write content(size) to a file, run `fsverity digest FILE`. */
#include "sha256_blocks.h"
#include "tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB               ((size_t)1 << 20)
#define CONTENT_BYTES_MAX (64 * MIB + 1)

static uint8_t *content; /* CONTENT_BYTES_MAX bytes; a file of a smaller size is a prefix */

static uint32_t lcg_next(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 24;
}

static int make_content(void **state)
{
    (void)state;
    content = malloc(CONTENT_BYTES_MAX);
    if (!content)
        return -1;
    uint32_t x = 2463534242u;
    for (size_t i = 0; i < CONTENT_BYTES_MAX; i++)
        content[i] = (uint8_t)lcg_next(&x);
    return 0;
}

static int drop_content(void **state)
{
    (void)state;
    free(content);
    return 0;
}

static const struct {
    size_t bytes;
    const char *wanted;
} known[] = {
    {0, "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95"},
    {1, "e63176af442ea79dc9ca70d0582b651569c940b9f4848179e5b185d4a98fdb83"},
    {4095, "86808d950400c5d1b9f88d92f8bee17070efb74fbb3e269ca50aaa831ba21809"},
    {4096, "76d712553e3dc9bf73f41e7db69ba2c09aa14b2a00b0f95a226e723ee74afe78"},
    {4097, "c28bb806ce8fe00a691044c1a38815fc7a18be8025323c0b794ad7c42fa0bad7"},
    {524287, "c643233ea83739e1065f028bf047469cb64c80617e5c8a7dd532930411e78f33"},
    {524288, "b9d00aa2ac84eeea6a19813cb4fa73ebbfb3aac2e96a0bfe638b38515b52bdf9"},
    {524289, "efd4499f9683c7b6c7fedf9c1966fb1c3a0ca62cb779b69c26f08aa25cc1873e"},
    {64 * MIB - 1, "31d5097a4ea2dc1cbe7c5a45904f0767336460f5d241a2845853cb10ee212528"},
    {64 * MIB, "be08d11d137dc5899a55bebbbc5584993e753a91e06ce76cc7bcedf2a804b043"},
    {64 * MIB + 1, "00f4c1a4199f6b65a9f3b280758709f2f4d4456087a274f6d6d5d4d3bb05e733"},
};
#define KNOWN_COUNT (sizeof known / sizeof *known)

static struct k3_tree *open_tree(void)
{
    struct k3_err err;
    k3_err_init(&err);
    struct k3_tree *tree = NULL;
    assert_int_equal(k3_tree_open(&tree, &err), 0);
    return tree;
}

static struct k3_sha256 *open_sha(void)
{
    struct k3_err err;
    k3_err_init(&err);
    struct k3_sha256 *sha = NULL;
    assert_int_equal(k3_sha256_open(&sha, &err), 0);
    return sha;
}

static void assert_digest(const uint8_t digest[K3_DIGEST_BYTES], const char *wanted)
{
    char hex[K3_HEX_BYTES];
    k3_hex_encode(digest, K3_DIGEST_BYTES, hex);
    assert_string_equal(hex, wanted);
}

static void add(struct k3_tree *tree, const uint8_t *data, size_t bytes)
{
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_tree_update(tree, data, bytes, &err), 0);
}

static void test_known_answers(void **state)
{
    (void)state;
    struct k3_tree *tree = open_tree();
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        uint8_t digest[K3_DIGEST_BYTES];
        memset(digest, 0xa5, sizeof digest);
        k3_tree_begin(tree);
        add(tree, content, known[i].bytes);
        k3_tree_final(tree, digest);
        assert_digest(digest, known[i].wanted);
    }
    k3_tree_close(tree);
    k3_tree_close(NULL);
}

/* Sizes of pieces on both sides of a block and of a unit, and some that are anything. */
static size_t random_piece(uint32_t *x)
{
    static const size_t edge[] = {0, 1, 4095, 4096, 4097, 524287, 524288, 524289, 1048576, 63};
    uint32_t r = lcg_next(x);
    if (r < 160)
        return edge[r % (sizeof edge / sizeof *edge)];
    return (size_t)lcg_next(x) << 12 | lcg_next(x) << 4 | lcg_next(x) >> 4;
}

static void test_pieces(void **state)
{
    (void)state;
    struct k3_tree *tree = open_tree();
    uint32_t x = 1;
    for (size_t round = 0; round < 3 * KNOWN_COUNT; round++) {
        size_t i = round % KNOWN_COUNT;
        uint8_t digest[K3_DIGEST_BYTES];
        memset(digest, 0xa5, sizeof digest);
        k3_tree_begin(tree);
        for (size_t done = 0; done < known[i].bytes;) {
            size_t bytes = random_piece(&x);
            if (bytes > known[i].bytes - done)
                bytes = known[i].bytes - done;
            add(tree, content + done, bytes);
            done += bytes;
        }
        k3_tree_final(tree, digest);
        assert_digest(digest, known[i].wanted);
    }
    k3_tree_close(tree);
}

static void test_units_agree(void **state)
{
    (void)state;
    struct k3_tree *tree = open_tree();
    struct k3_sha256 *sha = open_sha();
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        uint8_t digest[K3_DIGEST_BYTES];
        k3_tree_begin(tree);
        for (size_t done = 0; done < known[i].bytes; done += 10000)
            add(tree, content + done,
                known[i].bytes - done < 10000 ? known[i].bytes - done : 10000);
        k3_tree_final(tree, digest);
        uint64_t unit_count = 77;
        const uint8_t *units = k3_tree_units(tree, &unit_count);
        assert_int_equal(unit_count, k3_div_up(known[i].bytes, K3_UNIT_BYTES));
        for (uint64_t u = 0; u < unit_count; u++) {
            size_t offset = (size_t)u * K3_UNIT_BYTES;
            size_t bytes = known[i].bytes - offset;
            uint8_t unit[K3_DIGEST_BYTES];
            memset(unit, 0xa5, sizeof unit);
            k3_unit_digest(sha, content + offset, bytes < K3_UNIT_BYTES ? bytes : K3_UNIT_BYTES,
                           unit);
            assert_memory_equal(unit, units + u * K3_DIGEST_BYTES, sizeof unit);
        }
        if (known[i].bytes > K3_BLOCK_BYTES) {
            memset(digest, 0xa5, sizeof digest);
            k3_tree_of_units(sha, units, unit_count, known[i].bytes, digest);
            assert_digest(digest, known[i].wanted);
        }
    }
    k3_sha256_close(sha);
    k3_tree_close(tree);
}

/* The levels made one by one, as FORMAT.md 6 says it, for counts that a file would be too large
 * for. */
static void slow_tree(struct k3_sha256 *sha, uint8_t *nodes, uint64_t count, uint64_t file_bytes,
                      uint8_t digest[K3_DIGEST_BYTES])
{
    while (count > 1) {
        uint64_t above = 0;
        for (uint64_t i = 0; i < count; i += K3_UNIT_BLOCK_COUNT) {
            uint8_t block[K3_BLOCK_BYTES] = {0};
            uint64_t left = count - i < K3_UNIT_BLOCK_COUNT ? count - i : K3_UNIT_BLOCK_COUNT;
            memcpy(block, nodes + i * K3_DIGEST_BYTES, (size_t)left * K3_DIGEST_BYTES);
            k3_sha256_of(sha, block, sizeof block, nodes + above++ * K3_DIGEST_BYTES);
        }
        count = above;
    }
    uint8_t descriptor[256] = {1, 1, 12};
    k3_store_le64(descriptor + 8, file_bytes);
    memcpy(descriptor + 16, nodes, K3_DIGEST_BYTES);
    k3_sha256_of(sha, descriptor, sizeof descriptor, digest);
}

static void test_many_units(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1,     2,     127,   128,   129,         16383,
                                      16384, 16385, 16512, 40000, 2097152 - 1, 2097152};
    struct k3_sha256 *sha = open_sha();
    uint8_t *nodes = malloc(CONTENT_BYTES_MAX);
    assert_non_null(nodes);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint8_t wanted[K3_DIGEST_BYTES], found[K3_DIGEST_BYTES];
        uint64_t file_bytes = counts[i] * K3_UNIT_BYTES - 5;
        memcpy(nodes, content, CONTENT_BYTES_MAX);
        slow_tree(sha, nodes, counts[i], file_bytes, wanted);
        memset(found, 0xa5, sizeof found);
        k3_tree_of_units(sha, content, counts[i], file_bytes, found);
        assert_memory_equal(found, wanted, sizeof found);
    }
    free(nodes);
    k3_sha256_close(sha);
}

static void test_begin_anew(void **state)
{
    (void)state;
    struct k3_tree *tree = open_tree();
    uint8_t digest[K3_DIGEST_BYTES];
    add(tree, content, 3 * MIB + 17);
    k3_tree_begin(tree);
    add(tree, content, 4097);
    k3_tree_final(tree, digest);
    assert_digest(digest, known[4].wanted);
    k3_tree_close(tree);
}

/* ---- plain SHA-256 beside the tree ---- */

static int unforce(void **state)
{
    (void)state;
    k3_sha256_force(K3_SHA256_FORM_COUNT);
    return 0;
}

static void add_both(struct k3_tree *tree, struct k3_sha256 *sha, const uint8_t *data, size_t bytes)
{
    struct k3_err err;
    k3_err_init(&err);
    assert_int_equal(k3_tree_update_sha(tree, sha, data, bytes, &err), 0);
}

/* Content from `offset` on in random pieces, behind `before` bytes that the plain stream alone got;
 * what is wanted comes from k3_tree_update and k3_sha256_update in one piece. */
static void check_both(uint32_t *x, size_t before, size_t offset, size_t total)
{
    struct k3_tree *tree = open_tree();
    struct k3_sha256 *sha = open_sha();
    uint8_t wanted[2][K3_DIGEST_BYTES], found[2][K3_DIGEST_BYTES];
    memset(found, 0xa5, sizeof found);
    add(tree, content + offset, total);
    k3_tree_final(tree, wanted[0]);
    k3_sha256_update(sha, content, before);
    k3_sha256_update(sha, content + offset, total);
    k3_sha256_final(sha, wanted[1]);
    k3_tree_begin(tree);
    k3_sha256_begin(sha);
    k3_sha256_update(sha, content, before);
    for (size_t done = 0; done < total;) {
        size_t bytes = random_piece(x);
        if (bytes > total - done)
            bytes = total - done;
        add_both(tree, sha, content + offset + done, bytes);
        done += bytes;
        if (lcg_next(x) < 8) { /* some bytes by the two calls */
            bytes = total - done < 100 ? total - done : 100;
            add(tree, content + offset + done, bytes);
            k3_sha256_update(sha, content + offset + done, bytes);
            done += bytes;
        }
    }
    k3_tree_final(tree, found[0]);
    k3_sha256_final(sha, found[1]);
    assert_memory_equal(found, wanted, sizeof found);
    k3_sha256_close(sha);
    k3_tree_close(tree);
}

static void test_both_pieces(void **state)
{
    (void)state;
    static const size_t before[] = {0, 0, 64, 1, 63, 4096};
    for (int f = 0; f <= K3_SHA256_FORM_COUNT; f++) {
        enum k3_sha256_form form = (enum k3_sha256_form)f;
        if (form < K3_SHA256_FORM_COUNT && !k3_sha256_form_runs(form)) {
            print_message("%s does not run on this CPU\n", k3_sha256_form_name(form));
            continue;
        }
        k3_sha256_force(form);
        uint32_t x = 7;
        for (size_t round = 0; round < 36; round++) {
            size_t offset = round % 5 * 13;
            size_t total = round < KNOWN_COUNT - 3 ? known[round].bytes : random_piece(&x) * 3;
            check_both(&x, before[round % 6], offset, total);
        }
    }
}

/* Past 2^32 bits, where the length of the stream carries into its high half. */
static void test_both_long(void **state)
{
    (void)state;
    struct k3_tree *tree = open_tree();
    struct k3_sha256 *sha = open_sha();
    uint8_t wanted[K3_DIGEST_BYTES], found[K3_DIGEST_BYTES];
    memset(found, 0xa5, sizeof found);
    for (int i = 0; i < 9; i++)
        k3_sha256_update(sha, content, 64 * MIB);
    k3_sha256_final(sha, wanted);
    k3_sha256_begin(sha);
    for (int i = 0; i < 9; i++)
        add_both(tree, sha, content, 64 * MIB);
    k3_sha256_final(sha, found);
    assert_memory_equal(found, wanted, sizeof found);
    k3_sha256_close(sha);
    k3_tree_close(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_units_agree),   cmocka_unit_test(test_many_units),
        cmocka_unit_test(test_begin_anew),    cmocka_unit_test_teardown(test_both_pieces, unforce),
        cmocka_unit_test(test_both_long),
    };
    return cmocka_run_group_tests(tests, make_content, drop_content);
}
