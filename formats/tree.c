/* Purpose: the fs-verity digest of a file (FORMAT.md 6), from its bytes or from its unit digests.
 * Owns: the growing list of unit digests of one stream.
 * Threads: a stream belongs to one thread at a time.
 * Errors: K3_ENOMEM.
 * Invariants: a unit digest is a node of the tree, so both ways give the same file digest; between
 * two calls of update fewer than a block of bytes and fewer than a hash block of digests are
 * pending, and the list of unit digests has room for one more, so final cannot fail. */
#include "tree.h"

#include "sha256_blocks.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(K3_UNIT_BYTES == K3_BLOCK_BYTES * K3_UNIT_BLOCK_COUNT,
               "a unit is one hash block of blocks");
_Static_assert(K3_BLOCK_BYTES == K3_UNIT_BLOCK_COUNT * K3_DIGEST_BYTES,
               "a hash block is a block of digests");

/* 2^64 bytes are 2^45 units; each level has one node for 128 of the one below: 1 + ceil(45 / 7)
 * levels. */
#define LEVEL_COUNT_MAX 8
#define FIRST_UNIT_CAP  64 /* a typical part of K3 has thousands; doubling is soon there */

#define BATCH_COUNT 16 /* hash blocks at once: what the widest form of k3_sha256_blocks takes */

/* The fs-verity descriptor, FORMAT.md 6. */
#define DESCRIPTOR_BYTES       256
#define DESCRIPTOR_SIZE_OFFSET 8
#define DESCRIPTOR_ROOT_OFFSET 16

/* The digests that will be one hash block. */
struct node {
    uint8_t digests[K3_BLOCK_BYTES];
    uint32_t count;
};

struct k3_tree {
    struct k3_sha256 *sha;
    uint8_t *units; /* unit_count digests, room for unit_cap */
    uint64_t unit_count, unit_cap;
    uint64_t file_bytes;
    struct node node;                           /* block digests of the unit that is being read */
    uint8_t batch[BATCH_COUNT][K3_BLOCK_BYTES]; /* hash blocks of whole units, scratch */
    uint8_t block[K3_BLOCK_BYTES];
    uint32_t block_bytes; /* pending in block, < K3_BLOCK_BYTES */
    bool finished;
};

/* Room for one more digest in a node; it must not be full. */
static uint8_t *node_slot(struct node *node)
{
    return node->digests + (size_t)K3_DIGEST_BYTES * node->count;
}

/* The digests of whole blocks; the node must have room for them. */
static void node_add_blocks(struct k3_sha256 *sha, struct node *node, const uint8_t *blocks,
                            size_t block_count)
{
    assert(block_count <= K3_UNIT_BLOCK_COUNT - node->count);
    k3_sha256_blocks(sha, blocks, block_count, node_slot(node));
    node->count += (uint32_t)block_count;
}

/* Digest of the hash block, the rest of it filled with zeros; empties the node. */
static void node_close(struct k3_sha256 *sha, struct node *node, uint8_t digest[K3_DIGEST_BYTES])
{
    size_t used_bytes = (size_t)K3_DIGEST_BYTES * node->count;
    memset(node->digests + used_bytes, 0, sizeof node->digests - used_bytes);
    k3_sha256_blocks(sha, node->digests, 1, digest);
    node->count = 0;
}

/* Digest of a block of which only the first `bytes` exist. */
static void short_block_digest(struct k3_sha256 *sha, const void *data, size_t bytes,
                               uint8_t digest[K3_DIGEST_BYTES])
{
    uint8_t block[K3_BLOCK_BYTES];
    memcpy(block, data, bytes);
    memset(block + bytes, 0, sizeof block - bytes);
    k3_sha256_blocks(sha, block, 1, digest);
}

static void descriptor_digest(struct k3_sha256 *sha, const uint8_t root[K3_DIGEST_BYTES],
                              uint64_t file_bytes, uint8_t digest[K3_DIGEST_BYTES])
{
    uint8_t descriptor[DESCRIPTOR_BYTES] = {1, 1, 12,
                                            0}; /* version, SHA-256, log2 of a block, no salt */
    k3_store_le64(descriptor + DESCRIPTOR_SIZE_OFFSET, file_bytes);
    memcpy(descriptor + DESCRIPTOR_ROOT_OFFSET, root, K3_DIGEST_BYTES);
    k3_sha256_of(sha, descriptor, sizeof descriptor, digest);
}

void k3_unit_digest(struct k3_sha256 *sha, const void *data, size_t bytes,
                    uint8_t digest[K3_DIGEST_BYTES])
{
    assert(bytes > 0 && bytes <= K3_UNIT_BYTES);
    struct node node;
    node.count = 0;
    const uint8_t *at = data;
    size_t whole_bytes = bytes - bytes % K3_BLOCK_BYTES;
    node_add_blocks(sha, &node, at, whole_bytes / K3_BLOCK_BYTES);
    if (bytes > whole_bytes) {
        short_block_digest(sha, at + whole_bytes, bytes - whole_bytes, node_slot(&node));
        node.count++;
    }
    node_close(sha, &node, digest);
}

/* Add a digest at a level; whatever becomes full moves up. */
static void levels_add(struct k3_sha256 *sha, struct node *levels, int level, const uint8_t *digest)
{
    memcpy(node_slot(&levels[level]), digest, K3_DIGEST_BYTES);
    levels[level].count++;
    for (int l = level; levels[l].count == K3_UNIT_BLOCK_COUNT; l++) {
        assert(l + 1 < LEVEL_COUNT_MAX);
        uint8_t
            up[K3_DIGEST_BYTES]; /* closing empties the node before its digest is stored above */
        node_close(sha, &levels[l], up);
        memcpy(node_slot(&levels[l + 1]), up, K3_DIGEST_BYTES);
        levels[l + 1].count++;
    }
}

/* Close the levels from below until one digest is left: the root. */
static void levels_root(struct k3_sha256 *sha, struct node *levels, uint8_t root[K3_DIGEST_BYTES])
{
    int top = LEVEL_COUNT_MAX - 1;
    while (levels[top].count == 0)
        top--;
    for (int l = 0; l < top; l++) {
        if (levels[l].count == 0)
            continue;
        uint8_t up[K3_DIGEST_BYTES];
        node_close(sha, &levels[l], up);
        memcpy(node_slot(&levels[l + 1]), up, K3_DIGEST_BYTES);
        levels[l + 1].count++;
    }
    /* The top level was never full, since levels_add empties full ones; one more digest may fill
     * it, no more. */
    if (levels[top].count == 1)
        memcpy(root, levels[top].digests, K3_DIGEST_BYTES);
    else
        node_close(sha, &levels[top], root);
}

void k3_tree_of_units(struct k3_sha256 *sha, const uint8_t *unit_digests, uint64_t unit_count,
                      uint64_t file_bytes, uint8_t digest[K3_DIGEST_BYTES])
{
    assert(file_bytes > K3_BLOCK_BYTES && unit_count == k3_div_up(file_bytes, K3_UNIT_BYTES));
    struct node levels[LEVEL_COUNT_MAX]; /* 32 KiB of stack; no heap, so this cannot fail */
    for (int l = 0; l < LEVEL_COUNT_MAX; l++)
        levels[l].count = 0;
    /* Unit digests that fill hash blocks are hashed where they lie, several hash blocks at once. */
    uint64_t done_count = 0;
    for (uint64_t full = unit_count / K3_UNIT_BLOCK_COUNT; full > 0;) {
        uint8_t up[BATCH_COUNT][K3_DIGEST_BYTES];
        size_t batch_count = full < BATCH_COUNT ? (size_t)full : BATCH_COUNT;
        k3_sha256_blocks(sha, unit_digests + done_count * K3_DIGEST_BYTES, batch_count, *up);
        for (size_t i = 0; i < batch_count; i++)
            levels_add(sha, levels, 1, up[i]);
        done_count += batch_count * K3_UNIT_BLOCK_COUNT;
        full -= batch_count;
    }
    for (; done_count < unit_count; done_count++)
        levels_add(sha, levels, 0, unit_digests + done_count * K3_DIGEST_BYTES);
    uint8_t root[K3_DIGEST_BYTES];
    levels_root(sha, levels, root);
    descriptor_digest(sha, root, file_bytes, digest);
}

int k3_tree_open(struct k3_tree **out, struct k3_err *err)
{
    *out = NULL;
    struct k3_tree *tree = calloc(1, sizeof *tree);
    if (!tree)
        return k3_fail(err, K3_ENOMEM, "no memory for a tree digest");
    int rc = k3_sha256_open(&tree->sha, err);
    if (rc) {
        free(tree);
        return rc;
    }
    *out = tree;
    return 0;
}

void k3_tree_close(struct k3_tree *tree)
{
    if (!tree)
        return;
    k3_sha256_close(tree->sha);
    free(tree->units);
    free(tree);
}

void k3_tree_begin(struct k3_tree *tree)
{
    tree->unit_count = 0;
    tree->file_bytes = 0;
    tree->node.count = 0;
    tree->block_bytes = 0;
    tree->finished = false;
}

/* Room for every unit that the file has after `bytes` more. */
static int reserve_units(struct k3_tree *tree, size_t bytes, struct k3_err *err)
{
    uint64_t wanted_count = k3_div_up(tree->file_bytes + bytes, K3_UNIT_BYTES);
    if (wanted_count <= tree->unit_cap)
        return 0;
    uint64_t cap = tree->unit_cap ? tree->unit_cap * 2 : FIRST_UNIT_CAP;
    if (cap < wanted_count)
        cap = wanted_count;
    uint64_t cap_bytes;
    uint8_t *units = NULL;
    if (k3_mul_fits(cap, K3_DIGEST_BYTES, &cap_bytes) && cap_bytes <= SIZE_MAX)
        units = realloc(tree->units, (size_t)cap_bytes);
    if (!units)
        return k3_fail(err, K3_ENOMEM, "no memory for %llu unit digests", (unsigned long long)cap);
    tree->units = units;
    tree->unit_cap = cap;
    return 0;
}

static uint8_t *next_unit(struct k3_tree *tree)
{
    assert(tree->unit_count < tree->unit_cap);
    return tree->units + K3_DIGEST_BYTES * tree->unit_count++;
}

/* Blocks of the file; flat, when there is one, takes them too. */
static void hash_blocks(struct k3_tree *tree, struct k3_sha256 *flat, const uint8_t *blocks,
                        size_t block_count, uint8_t *digests)
{
    if (flat)
        k3_sha256_blocks_and_stream(tree->sha, flat, blocks, block_count, digests);
    else
        k3_sha256_blocks(tree->sha, blocks, block_count, digests);
}

/* Whole blocks, no more than the unit that is being read has left. */
static void add_blocks(struct k3_tree *tree, struct k3_sha256 *flat, const uint8_t *blocks,
                       size_t block_count)
{
    struct node *node = &tree->node;
    assert(block_count <= K3_UNIT_BLOCK_COUNT - node->count);
    hash_blocks(tree, flat, blocks, block_count, node_slot(node));
    node->count += (uint32_t)block_count;
    if (node->count == K3_UNIT_BLOCK_COUNT)
        node_close(tree->sha, node, next_unit(tree));
}

/* Up to BATCH_COUNT whole units at once, their hash blocks too; how many it were. */
static size_t add_units(struct k3_tree *tree, struct k3_sha256 *flat, const uint8_t *units,
                        size_t unit_count)
{
    size_t count = unit_count < BATCH_COUNT ? unit_count : BATCH_COUNT;
    assert(count <= tree->unit_cap - tree->unit_count);
    hash_blocks(tree, flat, units, count * K3_UNIT_BLOCK_COUNT, *tree->batch);
    k3_sha256_blocks(tree->sha, *tree->batch, count,
                     tree->units + K3_DIGEST_BYTES * tree->unit_count);
    tree->unit_count += count;
    return count;
}

/* Bytes that begin, fill or end in the pending block; how many it were. */
static size_t add_pending(struct k3_tree *tree, struct k3_sha256 *flat, const uint8_t *data,
                          size_t bytes)
{
    size_t room_bytes = K3_BLOCK_BYTES - tree->block_bytes;
    size_t count = bytes < room_bytes ? bytes : room_bytes;
    if (flat)
        k3_sha256_update(flat, data, count);
    memcpy(tree->block + tree->block_bytes, data, count);
    tree->block_bytes += (uint32_t)count;
    if (tree->block_bytes == K3_BLOCK_BYTES) {
        add_blocks(tree, NULL, tree->block, 1);
        tree->block_bytes = 0;
    }
    return count;
}

int k3_tree_update_sha(struct k3_tree *tree, struct k3_sha256 *sha, const void *data, size_t bytes,
                       struct k3_err *err)
{
    assert(!tree->finished);
    int rc = reserve_units(tree, bytes, err);
    if (rc)
        return rc;
    tree->file_bytes += bytes;
    const uint8_t *at = data;
    while (bytes > 0) {
        size_t piece_bytes;
        if (tree->block_bytes > 0 || bytes < K3_BLOCK_BYTES) {
            piece_bytes = add_pending(tree, sha, at, bytes);
        } else if (tree->node.count == 0 && bytes >= K3_UNIT_BYTES) {
            piece_bytes = add_units(tree, sha, at, bytes / K3_UNIT_BYTES) * K3_UNIT_BYTES;
        } else {
            size_t room_count = K3_UNIT_BLOCK_COUNT - tree->node.count;
            size_t whole_count = bytes / K3_BLOCK_BYTES;
            size_t count = whole_count < room_count ? whole_count : room_count;
            piece_bytes = count * K3_BLOCK_BYTES;
            add_blocks(tree, sha, at, count);
        }
        at += piece_bytes;
        bytes -= piece_bytes;
    }
    return 0;
}

int k3_tree_update(struct k3_tree *tree, const void *data, size_t bytes, struct k3_err *err)
{
    return k3_tree_update_sha(tree, NULL, data, bytes, err);
}

void k3_tree_final(struct k3_tree *tree, uint8_t digest[K3_DIGEST_BYTES])
{
    assert(!tree->finished);
    tree->finished = true;
    if (tree->block_bytes > 0) {
        memset(tree->block + tree->block_bytes, 0, K3_BLOCK_BYTES - tree->block_bytes);
        node_add_blocks(tree->sha, &tree->node, tree->block, 1);
    }
    /* Up to one block there is no hash block in the tree: the root is the block's digest, or zeros.
     */
    uint8_t root[K3_DIGEST_BYTES] = {0};
    if (tree->file_bytes > 0 && tree->file_bytes <= K3_BLOCK_BYTES)
        memcpy(root, tree->node.digests, sizeof root);
    if (tree->node.count > 0)
        node_close(tree->sha, &tree->node, next_unit(tree));
    if (tree->file_bytes <= K3_BLOCK_BYTES)
        descriptor_digest(tree->sha, root, tree->file_bytes, digest);
    else
        k3_tree_of_units(tree->sha, tree->units, tree->unit_count, tree->file_bytes, digest);
}

const uint8_t *k3_tree_units(const struct k3_tree *tree, uint64_t *unit_count)
{
    *unit_count = tree->unit_count;
    return tree->units;
}
