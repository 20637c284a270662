/* Purpose: names and sizes of the element types.
 * Owns: nothing.
 * Threads: any; constant tables.
 * Errors: none; an unknown name is false.
 * Invariants: the table has one row for each enum k3_dtype, in its order. */
#include "dtype.h"

#include <assert.h>
#include <string.h>

/* Bits as in the reference library: F4 and F6 are packed, their shapes count elements. */
static const struct {
    const char *name;
    uint8_t bytes; /* of the name: it is compared once for each tensor */
    uint8_t bits;
} row[K3_DTYPE_COUNT] = {
    [K3_BOOL] = {"BOOL", 4, 8},
    [K3_F4] = {"F4", 2, 4},
    [K3_F6_E2M3] = {"F6_E2M3", 7, 6},
    [K3_F6_E3M2] = {"F6_E3M2", 7, 6},
    [K3_U8] = {"U8", 2, 8},
    [K3_I8] = {"I8", 2, 8},
    [K3_F8_E5M2] = {"F8_E5M2", 7, 8},
    [K3_F8_E4M3] = {"F8_E4M3", 7, 8},
    [K3_F8_E8M0] = {"F8_E8M0", 7, 8},
    [K3_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 11, 8},
    [K3_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 11, 8},
    [K3_I16] = {"I16", 3, 16},
    [K3_U16] = {"U16", 3, 16},
    [K3_F16] = {"F16", 3, 16},
    [K3_BF16] = {"BF16", 4, 16},
    [K3_I32] = {"I32", 3, 32},
    [K3_U32] = {"U32", 3, 32},
    [K3_F32] = {"F32", 3, 32},
    [K3_C64] = {"C64", 3, 64},
    [K3_F64] = {"F64", 3, 64},
    [K3_I64] = {"I64", 3, 64},
    [K3_U64] = {"U64", 3, 64},
};

const char *k3_dtype_name(enum k3_dtype dtype)
{
    assert((unsigned)dtype < K3_DTYPE_COUNT);
    return row[dtype].name;
}

unsigned k3_dtype_bits(enum k3_dtype dtype)
{
    assert((unsigned)dtype < K3_DTYPE_COUNT);
    return row[dtype].bits;
}

bool k3_dtype_find(const char *name, size_t bytes, enum k3_dtype *dtype)
{
    for (unsigned i = 0; i < K3_DTYPE_COUNT; i++) {
        if (row[i].bytes == bytes && !memcmp(row[i].name, name, bytes)) {
            *dtype = (enum k3_dtype)i;
            return true;
        }
    }
    return false;
}
