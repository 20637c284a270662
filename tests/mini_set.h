/* A small shard set made in process: the rules of K3 with tiny dimensions, random bytes, written to
 * a directory of its own.  It uses formats/ for layout and headers, but cuts tensors by itself. */
#ifndef MINI_SET_H
#define MINI_SET_H

#include "part.h"

#define MINI_RANK_COUNT    2u
#define MINI_DIR_COUNT_MAX 3u

struct mini_set {
    char root[64]; /* a temporary directory that holds all others */
    char dirs[MINI_DIR_COUNT_MAX][96];
    const char *dir_list[MINI_DIR_COUNT_MAX]; /* the same, for k3_set_open */
    uint32_t dir_count;
    struct k3_plan *plan;
    uint8_t **sources;                /* whole tensors by slot; NULL where the model has none */
    uint8_t *images[MINI_RANK_COUNT]; /* what a load must bring up */
    uint64_t image_bytes[MINI_RANK_COUNT];
    struct k3_manifest manifest;
};

/* Make a set of MINI_RANK_COUNT ranks in 1..MINI_DIR_COUNT_MAX directories.  Any failure aborts. */
void mini_set_make(struct mini_set *mini, uint32_t dir_count);
/* Remove the files and free. */
void mini_set_remove(struct mini_set *mini);

/* Path of a part, or of a file in the first directory. */
void mini_set_part_path(const struct mini_set *mini, uint32_t rank, uint32_t part, char path[256]);
void mini_set_file_path(const struct mini_set *mini, const char *name, char path[256]);
const struct k3_part_entry *mini_set_part(const struct mini_set *mini, uint32_t rank,
                                          uint32_t part);
/* Flip one bit of a file; twice restores it. */
void mini_set_flip(const char *path, uint64_t offset);

/* The slice of a tensor that a rank holds, cut from the source (malloc, caller owns). */
uint8_t *mini_set_slice(const struct mini_set *mini, uint32_t rank, const char *name,
                        uint64_t *bytes);

#endif
