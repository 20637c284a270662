/* What the fuzz targets share.  A target is one .c file with LLVMFuzzerTestOneInput: bytes as they
 * come from outside go into one reader, and what comes out is held against what the reader
 * promises.  A broken promise ends the program with a line on stderr; libFuzzer, AFL++ and the
 * plain driver (replay.c) all take that for a crash. */
#ifndef K3_FUZZ_H
#define K3_FUZZ_H

#include "k3_err.h"
#include "text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define FUZZ_CHECK(condition) ((condition) ? (void)0 : fuzz_broken(#condition, __FILE__, __LINE__))

_Noreturn void fuzz_broken(const char *condition, const char *file, int line);

/* rc is 0 and err is empty, or rc is a code and err tells it: a text without control bytes, an
 * offset of -1..offset_max.  Never K3_ENOMEM: no input of a fuzzer is large enough for that. */
void fuzz_check_err(int rc, const struct k3_err *err, uint64_t offset_max);

/* The bytes with a NUL behind them, in a block of their own (owned by the caller). */
char *fuzz_string(const uint8_t *data, size_t bytes);

/* ---- documents that carry digests of themselves: a fuzzer cannot guess them ---- */

/* Put the right digest into the value of `name` (64 characters behind `"name":"`), if it is there:
 * that of count bytes at covered, which may hold the value itself.  The last such value counts. */
struct fuzz_span {
    char *data;
    size_t bytes;
};
void fuzz_fix_digest(struct fuzz_span document, const char *name, struct fuzz_span covered);
/* The digest of itself at the end of a sealed document (FORMAT.md 2). */
void fuzz_fix_seal(struct fuzz_span document);
/* The first place of `word`; NULL where there is none. */
char *fuzz_find(struct fuzz_span span, const char *word);

#endif
