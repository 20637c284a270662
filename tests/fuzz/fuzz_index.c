/* Purpose: fuzz target: the index of a checkpoint.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: entries have legal names and stand in the text; a success had one entry at
 * least; what the receiver of entries returns ends the decode and comes out of it. */
#include "fuzz.h"

#include "hf_index.h"
#include "st.h"

#include <string.h>

struct seen {
    uint64_t entry_count;
    uint64_t stop_at; /* refuse this entry */
};

static int entry(void *context, const char *tensor, size_t tensor_bytes, const char *file,
                 struct k3_err *err)
{
    struct seen *seen = context;
    FUZZ_CHECK(strlen(tensor) == tensor_bytes && k3_st_is_name(tensor, tensor_bytes));
    FUZZ_CHECK(k3_is_plain_name(file) && strlen(file) <= 255);
    if (seen->entry_count++ == seen->stop_at)
        return k3_fail(err, K3_ECANCELED, "enough");
    return 0;
}

static int decode(const uint8_t *data, size_t bytes, struct seen *seen, uint64_t *total_size)
{
    struct k3_index_sink sink = {.entry = entry, .context = seen};
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_index_decode("fuzz", (const char *)data, bytes, &sink, &err);
    fuzz_check_err(rc, &err, bytes);
    *total_size = sink.total_size;
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct seen seen = {.stop_at = UINT64_MAX};
    uint64_t total_size, total_again;
    int rc = decode(data, bytes, &seen, &total_size);
    FUZZ_CHECK(rc != K3_ECANCELED);
    FUZZ_CHECK(rc || seen.entry_count > 0);
    if (seen.entry_count > 0) {
        struct seen stopped = {.stop_at = seen.entry_count / 2};
        FUZZ_CHECK(decode(data, bytes, &stopped, &total_again) == K3_ECANCELED);
        FUZZ_CHECK(stopped.entry_count == stopped.stop_at + 1);
    }
    return 0;
}
