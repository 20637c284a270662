/* Sizes and rates as people write them.  Units are always spelled: GiB is not GB, and G is neither.
 */
#ifndef K3_SIZES_H
#define K3_SIZES_H

#include "k3_err.h"

#include <stdint.h>

/* "195GiB", "1.5 TB", "4096": a decimal number, then B, KB, MB, GB, TB, KiB, MiB, GiB, TiB or
 * nothing (bytes), in any case.  Exact: a fraction that is not a whole number of bytes is refused.
 * Fails: K3_EUSAGE. */
int k3_size_parse(const char *text, uint64_t *bytes, struct k3_err *err);

/* "12.5" (GB/s), "900MB/s" or "900MB".  Never 0.  Fails: K3_EUSAGE. */
int k3_rate_parse(const char *text, uint64_t *bytes_per_second, struct k3_err *err);

/* Texts by value, so that one call fits in a printf argument: k3_size_text(n).s */
struct k3_size_text {
    char s[56]; /* two sizes of at most 20 digits each, their units, and NUL */
};

/* "206.00 GB (191.85 GiB)"; "512 B" below 1000.  Rounded half up. */
struct k3_size_text k3_size_text(uint64_t bytes);

/* "206.00 GB": the decimal half alone. */
struct k3_size_text k3_size_short(uint64_t bytes);

/* "195GiB", "200GB", "4096": as an option takes it, exactly, in the unit with the fewest digits. */
struct k3_size_text k3_size_given(uint64_t bytes);

/* "16.70 GB/s" for bytes moved in a time; "- GB/s" when no time passed. */
struct k3_size_text k3_rate_text(uint64_t bytes, uint64_t nanoseconds);

/* "497,220" */
struct k3_size_text k3_count_text(uint64_t count);

/* "0.4 s", "12.3 s", "2 min 05 s", "1 h 02 min" */
struct k3_size_text k3_time_text(uint64_t nanoseconds);

#endif
