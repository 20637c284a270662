/* Purpose: memory of a caller for the views of a mini set, and what a load put there.
 * Owns: the memory and one device for each rank, until bind_room_remove.
 * Threads: one.
 * Errors: a failed assertion ends the test.
 * Invariant: every byte that no view covers is a canary and is looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bind_use.h"

#include <stdlib.h>
#include <string.h>

static uint64_t place_bytes(const struct bind_place *place)
{
    return place->bytes + 2 * BIND_CANARY_BYTES;
}

static void copy(const struct bind_room *room, uint32_t rank, const struct k3_dev_copy *what)
{
    assert_int_equal(room->dev_ops->copy_begin(room->devs[rank], 0, what, NULL), 0);
    assert_int_equal(room->dev_ops->copy_wait(room->devs[rank], 0, K3_DEV_WAIT_ALL, NULL), 0);
}

static void add_place(struct bind_room *room, const struct k3_load_tensor *view,
                      const uint8_t *image)
{
    struct bind_place *place = &room->places[room->count];
    void *base = NULL;
    place->name = strdup(view->name);
    place->bytes = view->bytes;
    place->image_offset = (uint64_t)((const uint8_t *)view->data - image);
    place->rank = view->rank;
    if (room->dev_ops->is_host_memory)
        assert_int_equal(posix_memalign(&base, BIND_CANARY_BYTES, place_bytes(place)), 0);
    else
        assert_int_equal(
            room->dev_ops->alloc(room->devs[place->rank], place_bytes(place), &base, NULL), 0);
    place->base = base;
    room->binds[room->count++] = (struct k3_load_bind){
        .rank = place->rank,
        .view = place->name,
        .data = place->base + BIND_CANARY_BYTES,
        .bytes = place->bytes,
    };
}

static void add_rank(struct bind_room *room, const struct k3_load *load, uint32_t rank)
{
    uint32_t tensors, views;
    const void *image;
    uint64_t bytes;
    assert_int_equal(k3_load_tensor_count(load, rank, &tensors, &views, NULL), 0);
    assert_int_equal(k3_load_image(load, rank, &image, &bytes, NULL), 0);
    const size_t count = room->count + (size_t)views;
    room->places = realloc(room->places, count * sizeof *room->places);
    room->binds = realloc(room->binds, count * sizeof *room->binds);
    assert_true(room->places && room->binds);
    room->begin[rank] = room->count;
    for (uint32_t i = 0; i < views; i++) {
        struct k3_load_tensor view;
        assert_int_equal(k3_load_view(load, rank, i, &view, NULL), 0);
        add_place(room, &view, image);
    }
    room->begin[rank + 1] = room->count;
}

/* Names and sizes come from a plain load into host memory. */
void bind_room_make(struct bind_room *room, const struct mini_set *mini,
                    const struct k3_dev_ops *dev_ops, const uint32_t devices[MINI_RANK_COUNT])
{
    struct k3_load *load;
    struct k3_load_options options = {
        .struct_bytes = sizeof options, .dirs = mini->dir_list, .dir_count = mini->dir_count};
    memset(room, 0, sizeof *room);
    room->mini = mini;
    room->dev_ops = dev_ops;
    assert_int_equal(k3_load_open(&options, &load, NULL), 0);
    assert_int_equal(k3_load_run(load, NULL), 0);
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++) {
        struct k3_dev_options dev_options = {.index = devices[rank], .lane_count = 1};
        assert_int_equal(dev_ops->open(&dev_options, &room->devs[rank], NULL), 0);
        add_rank(room, load, rank);
    }
    k3_load_close(load);
    bind_room_poison(room);
}

void bind_room_remove(struct bind_room *room)
{
    for (uint32_t i = 0; i < room->count; i++) {
        struct bind_place *place = &room->places[i];
        if (room->dev_ops->is_host_memory)
            free(place->base);
        else
            room->dev_ops->release(room->devs[place->rank], place->base, place_bytes(place));
        free(place->name);
    }
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++)
        room->dev_ops->close(room->devs[rank]);
    free(room->places);
    free(room->binds);
}

static uint64_t largest(const struct bind_room *room)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < room->count; i++)
        if (place_bytes(&room->places[i]) > bytes)
            bytes = place_bytes(&room->places[i]);
    return bytes;
}

void bind_room_poison(struct bind_room *room)
{
    const uint64_t bytes = largest(room);
    uint8_t *poison = malloc(bytes);
    assert_non_null(poison);
    memset(poison, BIND_POISON, bytes);
    for (uint32_t i = 0; i < room->count; i++) {
        const struct bind_place *place = &room->places[i];
        const struct k3_dev_copy out = {place->base, poison, place_bytes(place),
                                        K3_COPY_HOST_TO_DEV};
        copy(room, place->rank, &out);
    }
    free(poison);
}

/* ---- looking ---- */

/* The first byte is, and each is like the one before it. */
static bool is_poison(const uint8_t *data, uint64_t bytes)
{
    return data[0] == BIND_POISON && memcmp(data, data + 1, bytes - 1) == 0;
}

/* What a place holds now (all of it), into `buffer`. */
static void fetch(const struct bind_room *room, const struct bind_place *place, uint8_t *buffer)
{
    const struct k3_dev_copy in = {buffer, place->base, place_bytes(place), K3_COPY_DEV_TO_HOST};
    copy(room, place->rank, &in);
}

void bind_room_check(const struct bind_room *room, uint32_t rank_begin, uint32_t rank_end)
{
    uint8_t *buffer = malloc(largest(room));
    assert_non_null(buffer);
    for (uint32_t i = room->begin[rank_begin]; i < room->begin[rank_end]; i++) {
        const struct bind_place *place = &room->places[i];
        fetch(room, place, buffer);
        assert_true(is_poison(buffer, BIND_CANARY_BYTES));
        assert_memory_equal(buffer + BIND_CANARY_BYTES,
                            room->mini->images[place->rank] + place->image_offset, place->bytes);
        assert_true(is_poison(buffer + BIND_CANARY_BYTES + place->bytes, BIND_CANARY_BYTES));
    }
    free(buffer);
}

void bind_room_check_untouched(const struct bind_room *room)
{
    uint8_t *buffer = malloc(largest(room));
    assert_non_null(buffer);
    for (uint32_t i = 0; i < room->count; i++) {
        fetch(room, &room->places[i], buffer);
        assert_true(is_poison(buffer, place_bytes(&room->places[i])));
    }
    free(buffer);
}

/* Where in the image of its rank something in bound memory lies. */
static uint64_t image_offset(const struct bind_room *room, const struct k3_load_tensor *tensor)
{
    const uintptr_t at = (uintptr_t)tensor->data;
    for (uint32_t i = room->begin[tensor->rank]; i < room->begin[tensor->rank + 1]; i++) {
        const struct bind_place *place = &room->places[i];
        const uintptr_t begin = (uintptr_t)place->base + BIND_CANARY_BYTES;
        if (at >= begin && at + tensor->bytes <= begin + place->bytes)
            return place->image_offset + (at - begin);
    }
    fail_msg("%s lies in no bound view", tensor->name);
    return 0;
}

static void check_rank_names(const struct bind_room *room, const struct k3_load *load,
                             uint32_t rank)
{
    const uint32_t begin = room->begin[rank];
    uint32_t tensors, views;
    struct k3_load_tensor found;
    assert_int_equal(k3_load_tensor_count(load, rank, &tensors, &views, NULL), 0);
    assert_int_equal(views, room->begin[rank + 1] - begin);
    for (uint32_t i = 0; i < views; i++) {
        const struct k3_load_bind *bind = &room->binds[begin + i];
        assert_int_equal(k3_load_view(load, rank, i, &found, NULL), 0);
        assert_string_equal(found.name, bind->view);
        assert_ptr_equal(found.data, bind->data);
        assert_int_equal(found.bytes, bind->bytes);
        assert_int_equal(k3_load_find_view(load, rank, bind->view, &found, NULL), 0);
        assert_ptr_equal(found.data, bind->data);
    }
    for (uint32_t i = 0; i < tensors; i++) {
        uint64_t bytes;
        assert_int_equal(k3_load_tensor(load, rank, i, &found, NULL), 0);
        uint8_t *slice = mini_set_slice(room->mini, rank, found.name, &bytes);
        assert_int_equal(found.bytes, bytes);
        assert_memory_equal(room->mini->images[rank] + image_offset(room, &found), slice, bytes);
        free(slice);
    }
}

void bind_room_check_names(const struct bind_room *room, const struct k3_load *load)
{
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++)
        check_rank_names(room, load, rank);
}
