/* Small pure leaves on bytes: little-endian, checked arithmetic, hex.  No state, any thread, cannot
 * fail except where a bool says so. */
#ifndef K3_BYTES_H
#define K3_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define K3_BLOCK_BYTES      4096u   /* fs-verity block, FORMAT.md 1 */
#define K3_UNIT_BYTES       524288u /* 128 blocks, FORMAT.md 1 */
#define K3_UNIT_BLOCK_COUNT 128u    /* blocks of a unit: one hash block of digests */
#define K3_DIGEST_BYTES     32u     /* SHA-256 */
#define K3_HEX_BYTES        65u     /* a digest in hex with its NUL */

static inline uint32_t k3_load_le32(const void *p)
{
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t k3_load_le64(const void *p)
{
    const uint8_t *b = p;
    return (uint64_t)k3_load_le32(b) | (uint64_t)k3_load_le32(b + 4) << 32;
}

static inline void k3_store_le32(void *p, uint32_t v)
{
    uint8_t *b = p;
    for (int i = 0; i < 4; i++)
        b[i] = (uint8_t)(v >> (8 * i));
}

static inline void k3_store_le64(void *p, uint64_t v)
{
    uint8_t *b = p;
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (8 * i));
}

/* a * b, a + b into *out; false where it does not fit. */
static inline bool k3_mul_fits(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool k3_add_fits(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* x rounded up to a multiple of align (a power of two); x must be below 2^63. */
static inline uint64_t k3_align_up(uint64_t x, uint64_t align)
{
    return (x + align - 1) & ~(align - 1);
}

static inline uint64_t k3_div_up(uint64_t x, uint64_t y)
{
    return x / y + (x % y != 0);
}

/* Fills hex[2 * count + 1] with lowercase digits. */
static inline void k3_hex_encode(const uint8_t *bytes, size_t count, char *hex)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        hex[2 * i] = digit[bytes[i] >> 4];
        hex[2 * i + 1] = digit[bytes[i] & 15];
    }
    hex[2 * count] = 0;
}

/* Exactly 2 * count lowercase hex digits at hex (need not end there) into bytes; false otherwise.
 */
static inline bool k3_hex_decode(const char *hex, size_t count, uint8_t *bytes)
{
    for (size_t i = 0; i < 2 * count; i++) {
        char c = hex[i];
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (v < 0)
            return false;
        bytes[i / 2] = (uint8_t)(i % 2 ? bytes[i / 2] | v : v << 4);
    }
    return true;
}

/* True when all count bytes at p are zero. */
static inline bool k3_is_zero(const void *p, size_t count)
{
    const uint8_t *b = p;
    uint8_t any = 0;
    for (size_t i = 0; i < count; i++)
        any |= b[i];
    return any == 0;
}

#endif
