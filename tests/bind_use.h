/* Memory of a caller for every view of a mini set (cmocka): one allocation for each view, between
 * canaries, on the host or on devices; and what a load put there. */
#ifndef BIND_USE_H
#define BIND_USE_H

#include "dev.h"
#include "k3_load.h"
#include "mini_set.h"

#define BIND_CANARY_BYTES 4096u /* before and behind each view */
#define BIND_POISON       0xA5

struct bind_place {
    char *name;    /* of the view */
    uint8_t *base; /* a canary, the view, a canary */
    uint64_t bytes, image_offset;
    uint32_t rank;
};

struct bind_room {
    const struct mini_set *mini; /* borrowed */
    const struct k3_dev_ops *dev_ops;
    struct k3_dev *devs[MINI_RANK_COUNT];
    struct bind_place *places;
    struct k3_load_bind *binds; /* in the order of places: rank by rank, in image order */
    uint32_t count;
    uint32_t begin[MINI_RANK_COUNT + 1]; /* of each rank in places */
};

/* Room for all ranks, each on the device of its number.  Filled with poison. */
void bind_room_make(struct bind_room *room, const struct mini_set *mini,
                    const struct k3_dev_ops *dev_ops, const uint32_t devices[MINI_RANK_COUNT]);
void bind_room_remove(struct bind_room *room);
void bind_room_poison(struct bind_room *room);
/* The views of these ranks are those of the images, and the canaries live. */
void bind_room_check(const struct bind_room *room, uint32_t rank_begin, uint32_t rank_end);
/* All of it is poison: nothing was written. */
void bind_room_check_untouched(const struct bind_room *room);
/* Views and tensors of the load lie where they were bound, each with its bytes. */
void bind_room_check_names(const struct bind_room *room, const struct k3_load *load);

#endif
