/* Purpose: fuzz target: plan texts, and the parts that a plan lays out.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: an accepted text is what the plan emits, byte for byte; the entries of every
 * part tile it; the parts of a rank sum to its image; a part's header reads as a header of exactly
 * that data, and its views lie in it. */
#include "fuzz.h"

#include "part.h"
#include "sha256.h"

#include <string.h>

/* A plan may describe millions of tensors by a few digits; laying them out takes their time. */
#define SLOTS_MAX 4000u
#define PARTS_MAX 12u

static void check_header(const struct k3_plan *plan, const struct k3_part *part)
{
    struct k3_text text;
    struct k3_st *st;
    struct k3_err err;
    uint32_t view_count = 0;
    k3_text_init(&text);
    k3_err_init(&err);
    int rc = k3_part_header(plan, part, &text, &err);
    fuzz_check_err(rc, &err, 0);
    FUZZ_CHECK(rc == 0 && text.bytes % K3_UNIT_BYTES == 0);
    rc = k3_st_decode("part", text.data, text.bytes, text.bytes + part->data_bytes, &st, &err);
    fuzz_check_err(rc, &err, text.bytes + part->data_bytes);
    FUZZ_CHECK(rc == 0 && st->tensor_count == part->entry_count);
    for (uint32_t i = 0; i < st->meta_count; i++) {
        struct k3_view view;
        if (strncmp(st->meta[i].key, "k3.view.", 8) != 0)
            continue;
        FUZZ_CHECK(k3_view_decode(st->meta[i].key, st->meta[i].value, &view, &err) == 0);
        FUZZ_CHECK(view.begin_offset < view.end_offset && view.end_offset <= part->data_bytes);
        view_count++;
    }
    FUZZ_CHECK(view_count == part->view_count);
    k3_st_free(st);
    k3_text_fini(&text);
}

static uint64_t check_part(const struct k3_plan *plan, uint32_t rank, uint32_t number)
{
    uint32_t with_header = (uint32_t)plan->text_bytes % k3_config_part_count(&plan->config);
    struct k3_part part;
    struct k3_err err;
    memset(&part, 0, sizeof part);
    k3_err_init(&err);
    int rc = k3_part_build(plan, rank, number, &part, &err);
    fuzz_check_err(rc, &err, 0);
    FUZZ_CHECK(rc == 0);
    FUZZ_CHECK((part.data_bytes > 0) ==
               k3_layout_has_part(&plan->config, &plan->layout, rank, number));
    uint64_t end_offset = 0;
    for (uint32_t i = 0; i < part.entry_count; i++) {
        FUZZ_CHECK(part.entries[i].begin_offset == end_offset && part.entries[i].bytes > 0);
        end_offset += part.entries[i].bytes;
    }
    FUZZ_CHECK(end_offset == part.data_bytes && end_offset % K3_UNIT_BYTES == 0);
    if (part.data_bytes > 0 && number == with_header) /* one of them: half a megabyte each */
        check_header(plan, &part);
    k3_part_fini(&part);
    return end_offset;
}

static void check_rank(const struct k3_plan *plan, uint32_t rank)
{
    struct k3_rank_sizes sizes;
    uint64_t image_bytes = 0;
    k3_rank_sizes(&plan->config, &plan->layout, &plan->policy, rank, &sizes);
    uint32_t count = k3_config_part_count(&plan->config);
    for (uint32_t part = 0; part < count; part++)
        image_bytes += check_part(plan, rank, part);
    FUZZ_CHECK(image_bytes == sizes.image_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct k3_plan *plan;
    struct k3_sha256 *sha;
    struct k3_err err;
    uint8_t digest[K3_DIGEST_BYTES];
    k3_err_init(&err);
    int rc = k3_plan_decode((const char *)data, bytes, &plan, &err);
    fuzz_check_err(rc, &err, bytes);
    FUZZ_CHECK((rc == 0) == (plan != NULL));
    if (rc)
        return 0;
    FUZZ_CHECK(plan->text_bytes == bytes && !memcmp(plan->text, data, bytes));
    FUZZ_CHECK(k3_sha256_open(&sha, &err) == 0);
    k3_sha256_of(sha, data, bytes, digest);
    k3_sha256_close(sha);
    FUZZ_CHECK(!memcmp(digest, plan->digest, sizeof digest));
    if (plan->slot_count <= SLOTS_MAX && k3_config_part_count(&plan->config) <= PARTS_MAX) {
        uint32_t world = k3_layout_world(&plan->layout);
        check_rank(plan, 0);
        if (world > 1)
            check_rank(plan, world - 1);
    }
    k3_plan_close(plan);
    return 0;
}
