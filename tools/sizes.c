/* Purpose: parse and print sizes, rates, counts and times.
 * Owns: nothing.
 * Threads: any.
 * Errors: K3_EUSAGE for a text that is not a size.
 * Invariant: integer arithmetic only; a size is never rounded when parsed and never wraps
 * around. */
#include "sizes.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Products of a 64-bit value and a unit; both compilers have it on every 64-bit target. */
__extension__ typedef unsigned __int128 u128;

struct unit {
    const char *name;
    uint64_t bytes;
};

static const struct unit unit[] = {
    {"", 1},
    {"B", 1},
    {"KB", UINT64_C(1000)},
    {"MB", UINT64_C(1000000)},
    {"GB", UINT64_C(1000000000)},
    {"TB", UINT64_C(1000000000000)},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
};

#define UNIT_COUNT          (sizeof unit / sizeof unit[0])
#define FRACTION_DIGITS_MAX 12 /* TB needs no more; 10^12 x any remainder below it stays exact */

struct number {
    uint64_t whole;
    uint64_t fraction; /* over scale */
    uint64_t scale;    /* a power of ten */
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Read digits, then "." and digits.  Returns the first character behind, or NULL. */
static const char *read_number(const char *p, struct number *out)
{
    *out = (struct number){0, 0, 1};
    if (!is_digit(*p))
        return NULL;
    for (; is_digit(*p); p++) {
        if (__builtin_mul_overflow(out->whole, UINT64_C(10), &out->whole) ||
            __builtin_add_overflow(out->whole, (uint64_t)(*p - '0'), &out->whole))
            return NULL;
    }
    if (*p != '.')
        return p;
    int digits = 0;
    for (p++; is_digit(*p); p++) {
        if (++digits > FRACTION_DIGITS_MAX)
            return NULL;
        out->fraction = out->fraction * 10 + (uint64_t)(*p - '0');
        out->scale *= 10;
    }
    return digits ? p : NULL;
}

/* number x factor, when that is whole and fits. */
static bool multiply(const struct number *n, uint64_t factor, uint64_t *out)
{
    /* fraction < scale <= 10^12 and factor <= 2^40 < 1.1 x 10^12, so 128 bits hold the product. */
    u128 part = (u128)n->fraction * factor;
    if (part % n->scale)
        return false;
    uint64_t whole = 0;
    if (__builtin_mul_overflow(n->whole, factor, &whole))
        return false;
    return !__builtin_add_overflow(whole, (uint64_t)(part / n->scale), out);
}

static const struct unit *find_unit(const char *name)
{
    for (size_t i = 0; i < UNIT_COUNT; i++)
        if (strcasecmp(name, unit[i].name) == 0)
            return &unit[i];
    return NULL;
}

int k3_size_parse(const char *text, uint64_t *bytes, struct k3_err *err)
{
    struct number number;
    const char *p = read_number(text, &number);
    if (!p)
        return k3_fail(err, K3_EUSAGE, "'%s' is not a size; write one like 195GiB, 1.5TB or 4096",
                       text);
    if (*p == ' ')
        p++;
    const struct unit *found = find_unit(p);
    if (!found && strlen(p) == 1 && strchr("kKmMgGtT", *p))
        return k3_fail(err, K3_EUSAGE, "'%s': write %ciB or %cB, they differ", text, *p & ~0x20,
                       *p & ~0x20);
    if (!found)
        return k3_fail(err, K3_EUSAGE,
                       "'%s': unknown unit '%s'; units are KiB MiB GiB TiB KB MB GB TB", text, p);
    if (!multiply(&number, found->bytes, bytes))
        return k3_fail(err, K3_EUSAGE, "'%s' is not a whole number of bytes below 16 EiB", text);
    return 0;
}

int k3_rate_parse(const char *text, uint64_t *bytes_per_second, struct k3_err *err)
{
    struct number number;
    const char *p = read_number(text, &number);
    uint64_t factor = 0;
    if (p && *p == ' ')
        p++;
    if (p && *p == '\0') {
        factor = UINT64_C(1000000000);
    } else if (p) {
        char name[8] = "";
        size_t length = strlen(p);
        if (length > 2 && strcmp(p + length - 2, "/s") == 0)
            length -= 2;
        if (length < sizeof name) {
            snprintf(name, sizeof name, "%.*s", (int)length, p);
            const struct unit *found = find_unit(name);
            factor = found ? found->bytes : 0;
        }
    }
    if (!factor || !multiply(&number, factor, bytes_per_second) || *bytes_per_second == 0)
        return k3_fail(err, K3_EUSAGE,
                       "'%s' is not a rate above 0; write one like 12.5 (GB/s) or 900MB/s", text);
    return 0;
}

/* Print with two decimals in the largest unit of which there is one, after rounding. */
static void put_scaled(char *out, size_t cap, uint64_t bytes, uint64_t base,
                       const char *const name[5])
{
    if (bytes < base) {
        snprintf(out, cap, "%" PRIu64 " B", bytes);
        return;
    }
    uint64_t factor = base;
    int i = 1;
    u128 hundredths = ((u128)bytes * 100 + factor / 2) / factor;
    while (i < 4 && hundredths >= (u128)base * 100) {
        factor *= base;
        i++;
        hundredths = ((u128)bytes * 100 + factor / 2) / factor;
    }
    uint64_t value = (uint64_t)hundredths; /* at most 2^64 x 100 / 10^12 */
    snprintf(out, cap, "%" PRIu64 ".%02" PRIu64 " %s", value / 100, value % 100, name[i]);
}

static const char *const decimal_name[5] = {"B", "KB", "MB", "GB", "TB"};
static const char *const binary_name[5] = {"B", "KiB", "MiB", "GiB", "TiB"};

struct k3_size_text k3_size_short(uint64_t bytes)
{
    struct k3_size_text text = {""};
    put_scaled(text.s, sizeof text.s, bytes, 1000, decimal_name);
    return text;
}

struct k3_size_text k3_size_text(uint64_t bytes)
{
    struct k3_size_text text = {""};
    char decimal[24];
    char binary[24];
    put_scaled(decimal, sizeof decimal, bytes, 1000, decimal_name);
    put_scaled(binary, sizeof binary, bytes, 1024, binary_name);
    if (bytes < 1000)
        snprintf(text.s, sizeof text.s, "%s", decimal);
    else
        snprintf(text.s, sizeof text.s, "%s (%s)", decimal, binary);
    return text;
}

struct k3_size_text k3_size_given(uint64_t bytes)
{
    struct k3_size_text text = {""};
    const struct unit *best = &unit[0];
    for (size_t i = 0; i < UNIT_COUNT && bytes; i++)
        if (bytes % unit[i].bytes == 0 && unit[i].bytes > best->bytes)
            best = &unit[i];
    snprintf(text.s, sizeof text.s, "%" PRIu64 "%s", bytes / best->bytes, best->name);
    return text;
}

struct k3_size_text k3_rate_text(uint64_t bytes, uint64_t nanoseconds)
{
    struct k3_size_text text = {""};
    if (nanoseconds == 0) {
        snprintf(text.s, sizeof text.s, "- GB/s");
        return text;
    }
    u128 rate = (u128)bytes * 1000000000 / nanoseconds;
    uint64_t capped = rate > UINT64_MAX ? UINT64_MAX : (uint64_t)rate;
    char size[24];
    put_scaled(size, sizeof size, capped, 1000, decimal_name);
    snprintf(text.s, sizeof text.s, "%s/s", size);
    return text;
}

struct k3_size_text k3_count_text(uint64_t count)
{
    struct k3_size_text text = {""};
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count);
    size_t n = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            text.s[n++] = ',';
        text.s[n++] = digits[i];
    }
    text.s[n] = '\0';
    return text;
}

struct k3_size_text k3_time_text(uint64_t nanoseconds)
{
    struct k3_size_text text = {""};
    uint64_t tenths = nanoseconds / 100000000;
    uint64_t seconds = tenths / 10;
    if (seconds < 100)
        snprintf(text.s, sizeof text.s, "%" PRIu64 ".%" PRIu64 " s", seconds, tenths % 10);
    else if (seconds < 3600)
        snprintf(text.s, sizeof text.s, "%" PRIu64 " min %02" PRIu64 " s", seconds / 60,
                 seconds % 60);
    else
        snprintf(text.s, sizeof text.s, "%" PRIu64 " h %02" PRIu64 " min", seconds / 3600,
                 seconds / 60 % 60);
    return text;
}
