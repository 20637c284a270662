/* Purpose: fuzz target: manifests.  Each input is read as it is, with its seal put right and
 * with its plan digest put right as well, so that what lies behind them is reached.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: an accepted manifest, encoded, is the text; its lists are sorted and within
 * their limits; its plan is accepted or refused as a plan is. */
#include "fuzz.h"

#include "hf_index.h"
#include "manifest.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

static void check_files(const struct k3_file_entry *files, uint32_t count)
{
    FUZZ_CHECK(count <= K3_FILE_COUNT_MAX);
    for (uint32_t i = 0; i < count; i++) {
        FUZZ_CHECK(k3_is_plain_name(files[i].name));
        FUZZ_CHECK(i == 0 || strcmp(files[i - 1].name, files[i].name) < 0);
    }
}

static void check_ranks(const struct k3_manifest *manifest)
{
    FUZZ_CHECK(manifest->rank_count > 0 && manifest->rank_count <= K3_RANK_COUNT_MAX);
    for (uint32_t i = 0; i < manifest->rank_count; i++) {
        const struct k3_manifest_rank *rank = &manifest->ranks[i];
        uint64_t image_bytes = 0;
        FUZZ_CHECK(rank->rank < K3_RANK_COUNT_MAX && rank->part_count > 0);
        for (uint32_t p = 0; p < rank->part_count; p++) {
            const struct k3_part_entry *part = &rank->parts[p];
            FUZZ_CHECK(part->rank == rank->rank && part->part < K3_PART_COUNT_MAX);
            FUZZ_CHECK(part->data_offset > 0 && part->data_offset < part->bytes);
            FUZZ_CHECK(part->data_offset % K3_UNIT_BYTES == 0 && part->bytes % K3_UNIT_BYTES == 0);
            image_bytes += part->bytes - part->data_offset;
        }
        FUZZ_CHECK(image_bytes == rank->image_bytes);
    }
}

static void check_plan(const struct k3_manifest *manifest)
{
    struct k3_plan *plan;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_plan_decode(manifest->plan_text, manifest->plan_bytes, &plan, &err);
    fuzz_check_err(rc, &err, manifest->plan_bytes);
    if (rc)
        return;
    FUZZ_CHECK(!memcmp(plan->digest, manifest->plan_digest, sizeof plan->digest));
    k3_plan_close(plan);
}

static void decode(const char *text, size_t bytes)
{
    struct k3_manifest manifest;
    struct k3_text again;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_manifest_decode("fuzz", text, bytes, &manifest, &err);
    fuzz_check_err(rc, &err, bytes);
    if (rc) {
        FUZZ_CHECK(k3_is_zero(&manifest, sizeof manifest)); /* left empty */
        return;
    }
    k3_text_init(&again);
    FUZZ_CHECK(k3_manifest_encode(&manifest, &again, &err) == 0);
    FUZZ_CHECK(again.bytes == bytes && !memcmp(again.data, text, bytes));
    k3_text_fini(&again);
    check_files(manifest.files, manifest.file_count);
    check_files(manifest.sources, manifest.source_count);
    check_ranks(&manifest);
    check_plan(&manifest);
    k3_manifest_fini(&manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char plan_begin[] = "\"plan\":", plan_end[] = ",\"plan_sha256\":\"";
    decode((const char *)data, bytes);
    char *text = fuzz_string(data, bytes);
    struct fuzz_span document = {text, bytes};
    fuzz_fix_seal(document);
    decode(text, bytes);
    const char *end = fuzz_find(document, plan_end);
    char *begin = fuzz_find(document, plan_begin);
    if (begin && end && begin < end) {
        begin += sizeof plan_begin - 1;
        fuzz_fix_digest(document, "plan_sha256", (struct fuzz_span){begin, (size_t)(end - begin)});
    }
    fuzz_fix_seal(document);
    decode(text, bytes);
    free(text);
    return 0;
}
