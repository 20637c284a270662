/* Purpose: fuzz target: sizes, rates and lists of ranks as people write them.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: plain digits are their value; a rate is never 0; a size as printed in bytes
 * parses to itself; a list of ranks is ascending and of the set. */
#include "fuzz.h"

#include "set.h"
#include "sizes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SET_RANK_COUNT 8u

static void check_size(const char *text)
{
    struct k3_err err;
    uint64_t value = 0, again = 0;
    char digits[24];
    k3_err_init(&err);
    int rc = k3_size_parse(text, &value, &err);
    fuzz_check_err(rc, &err, 0);
    FUZZ_CHECK(rc == 0 || rc == K3_EUSAGE);
    if (!rc) {
        snprintf(digits, sizeof digits, "%" PRIu64, value);
        FUZZ_CHECK(k3_size_parse(digits, &again, &err) == 0 && again == value);
        FUZZ_CHECK(strlen(k3_size_text(value).s) > 0 && strlen(k3_count_text(value).s) > 0);
        FUZZ_CHECK(strlen(k3_time_text(value).s) > 0 && strlen(k3_rate_text(value, 1).s) > 0);
    }
    k3_err_init(&err);
    rc = k3_rate_parse(text, &value, &err);
    fuzz_check_err(rc, &err, 0);
    FUZZ_CHECK(rc == K3_EUSAGE || (rc == 0 && value > 0));
}

static void check_ranks(const char *list)
{
    struct k3_manifest_rank row[SET_RANK_COUNT];
    struct k3_set set = {.manifest.ranks = row, .manifest.rank_count = SET_RANK_COUNT};
    struct k3_err err;
    uint32_t *ranks, count;
    memset(row, 0, sizeof row);
    for (uint32_t i = 0; i < SET_RANK_COUNT; i++)
        row[i].rank = i;
    k3_err_init(&err);
    int rc = k3_set_ranks(&set, list, &ranks, &count, &err);
    fuzz_check_err(rc, &err, 0);
    FUZZ_CHECK(rc == 0 || rc == K3_EUSAGE || rc == K3_EUNSUPPORTED);
    FUZZ_CHECK((rc == 0) == (count > 0) && count <= SET_RANK_COUNT);
    for (uint32_t i = 0; i < count; i++)
        FUZZ_CHECK(ranks[i] < SET_RANK_COUNT && (i == 0 || ranks[i - 1] < ranks[i]));
    free(ranks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_string(data, bytes);
    check_size(text);
    check_ranks(text);
    free(text);
    return 0;
}
