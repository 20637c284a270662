/* Element types: every dtype of the safetensors reference library. */
#ifndef K3_DTYPE_H
#define K3_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum k3_dtype {
    K3_BOOL,
    K3_F4,
    K3_F6_E2M3,
    K3_F6_E3M2,
    K3_U8,
    K3_I8,
    K3_F8_E5M2,
    K3_F8_E4M3,
    K3_F8_E8M0,
    K3_F8_E4M3FNUZ,
    K3_F8_E5M2FNUZ,
    K3_I16,
    K3_U16,
    K3_F16,
    K3_BF16,
    K3_I32,
    K3_U32,
    K3_F32,
    K3_C64,
    K3_F64,
    K3_I64,
    K3_U64,
    K3_DTYPE_COUNT
};

/* Spelling as in safetensors, e.g. "F8_E4M3". */
const char *k3_dtype_name(enum k3_dtype dtype);
/* Bits of one element (4, 6, 8, 16, 32, 64). */
unsigned k3_dtype_bits(enum k3_dtype dtype);
/* The dtype spelled by the `bytes` characters at name; false where there is none. */
bool k3_dtype_find(const char *name, size_t bytes, enum k3_dtype *dtype);

#endif
