/* Purpose: the table of chunks of a leg: what is read, in which order.
 * Owns: nothing; fills the leg's share of the load's table.
 * Threads: the caller's, before a run.
 * Errors: none.
 * Invariants: chunks tile the data sections of the leg's parts exactly once; those of one slot are
 * next to each other in the table and in the part. */
#include "load_internal.h"

/* Units that a stream reads one behind the other.  Odd: streams that begin at multiples of a power
 * of two would all stand on the same member of a striped array. */
#define STRETCH_UNITS 511u /* 255.5 MiB */

/* From where on a directory is not given to streams yet; part_end: nothing is left. */
struct dir_place {
    uint32_t part, unit;
};

/* What a stream has before it, of one part. */
struct stretch {
    uint32_t part, unit, unit_end;
};

struct table {
    struct k3_load_leg *leg;
    uint32_t part_end; /* behind the last part of the leg */
    uint32_t stretch_units;
    struct dir_place places[K3_SET_DIR_COUNT_MAX];
    struct stretch streams[K3_LOAD_STREAM_COUNT][K3_SET_DIR_COUNT_MAX];
};

static uint32_t part_begin(const struct k3_load_leg *leg)
{
    return leg->load->ranks[leg->rank_begin].part_begin;
}

static uint32_t part_end(const struct k3_load_leg *leg)
{
    const struct k3_load_rank *last = &leg->load->ranks[leg->rank_begin + leg->rank_count - 1];
    return last->part_begin + last->row->part_count;
}

/* First part of the leg from `index` on that lies in a directory; the end: none. */
static uint32_t part_in_dir(const struct table *table, uint32_t dir, uint32_t index)
{
    const struct k3_load *load = table->leg->load;
    while (index < table->part_end) {
        const struct k3_part_entry *entry = load->parts[index].entry;
        if (k3_set_part_dir(load->set, entry->rank, entry->part) == &load->set->dirs[dir])
            break;
        index++;
    }
    return index;
}

/* So that a small load is cut among all streams too. */
static void choose_stretch(struct table *table)
{
    const struct k3_load_leg *leg = table->leg;
    const uint64_t streams = (uint64_t)leg->stream_count * leg->load->set->dir_count;
    uint64_t units = 0;
    for (uint32_t i = part_begin(leg); i < table->part_end; i++)
        units += leg->load->parts[i].unit_count;
    units = units / streams | 1;
    table->stretch_units = units < STRETCH_UNITS ? (uint32_t)units : STRETCH_UNITS;
    if (leg->stream_count == 1)
        table->stretch_units = UINT32_MAX; /* parts as a whole */
}

/* The next stretch of a directory; false: none is left. */
static bool take_stretch(struct table *table, uint32_t dir, struct stretch *stretch)
{
    struct dir_place *place = &table->places[dir];
    if (place->part == table->part_end)
        return false;
    const uint32_t unit_count = table->leg->load->parts[place->part].unit_count;
    const uint32_t left = unit_count - place->unit;
    const uint32_t taken = left < table->stretch_units ? left : table->stretch_units;
    *stretch = (struct stretch){place->part, place->unit, place->unit + taken};
    place->unit += taken;
    if (place->unit == unit_count)
        *place = (struct dir_place){part_in_dir(table, dir, place->part + 1), 0};
    return true;
}

/* The next chunks of a stream: as many as share a slot. */
static void add_chunks(struct k3_load_leg *leg, struct stretch *stretch)
{
    const uint32_t left = stretch->unit_end - stretch->unit;
    const uint32_t each = leg->chunk_units, wide = leg->slots.count ? leg->slots.units : each;
    const uint32_t count = left < wide ? left : wide;
    for (uint32_t at = 0; at < count; at += each)
        leg->chunks[leg->chunk_count++] = (struct k3_load_chunk){
            .part = stretch->part,
            .unit_begin = stretch->unit + at,
            .unit_count = (uint8_t)(count - at < each ? count - at : each),
            .slot_at = (uint8_t)(at / each),
            .slot_chunks = (uint8_t)k3_div_up(count, each),
        };
    stretch->unit += count;
}

uint64_t k3_load_leg_chunk_count(const struct k3_load_leg *leg)
{
    uint64_t count = 0;
    for (uint32_t i = part_begin(leg); i < part_end(leg); i++)
        count += k3_div_up(leg->load->parts[i].unit_count, leg->chunk_units);
    return count;
}

/* One slot of each stream of each directory in turn: every drive has its share of the reads in
 * flight, and reads that are handed over together do not lie side by side, where the kernel would
 * make larger ones of them. */
void k3_load_leg_chunks(struct k3_load_leg *leg)
{
    const uint32_t dir_count = leg->load->set->dir_count;
    const uint64_t chunk_count = k3_load_leg_chunk_count(leg);
    struct table table = {.leg = leg, .part_end = part_end(leg)};
    choose_stretch(&table);
    for (uint32_t d = 0; d < dir_count; d++)
        table.places[d].part = part_in_dir(&table, d, part_begin(leg));
    while (leg->chunk_count < chunk_count)
        for (uint32_t s = 0; s < leg->stream_count; s++)
            for (uint32_t d = 0; d < dir_count; d++) {
                struct stretch *stretch = &table.streams[s][d];
                if (stretch->unit < stretch->unit_end || take_stretch(&table, d, stretch))
                    add_chunks(leg, stretch);
            }
}
