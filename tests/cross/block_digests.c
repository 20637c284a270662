/* Purpose: prints the digests that k3_sha256_blocks makes of the blocks of a file, for a machine
 * whose libcrypto is not at hand: arm64.sh runs it under an emulator and judges it by sha256sum.
 * Owns: one buffer.
 * Threads: one.
 * Errors: exit 1; exit 2 when the form asked for does not run.
 * Invariants: libcrypto is not linked; a call that would need it ends the program. */
#include "sha256_blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_COUNT_MAX 64
#define OFFSET_MAX      64

static void needs_libcrypto(void)
{
    fputs("block_digests: a call of libcrypto\n", stderr);
    exit(1);
}

void k3_sha256_of(struct k3_sha256 *sha, const void *data, size_t bytes,
                  uint8_t digest[K3_DIGEST_BYTES])
{
    (void)sha, (void)data, (void)bytes, (void)digest;
    needs_libcrypto();
}

void k3_sha256_update(struct k3_sha256 *sha, const void *data, size_t bytes)
{
    (void)sha, (void)data, (void)bytes;
    needs_libcrypto();
}

/* block_digests FORM COUNT OFFSET < blocks: FORM by its name, the first byte at OFFSET of a line.
 */
int main(int argc, char **argv)
{
    static uint8_t data[BLOCK_COUNT_MAX * K3_BLOCK_BYTES + OFFSET_MAX] __attribute__((aligned(64)));
    static uint8_t digests[BLOCK_COUNT_MAX][K3_DIGEST_BYTES];
    int form = 0;
    if (argc != 4)
        return 1;
    while (form < K3_SHA256_FORM_COUNT &&
           strcmp(argv[1], k3_sha256_form_name((enum k3_sha256_form)form)) != 0)
        form++;
    if (!k3_sha256_form_runs((enum k3_sha256_form)form))
        return 2;
    if (k3_sha256_form() != (enum k3_sha256_form)form)
        return 1; /* it must be the one that is chosen */
    size_t count = strtoul(argv[2], NULL, 10), offset = strtoul(argv[3], NULL, 10);
    if (count > BLOCK_COUNT_MAX || offset > OFFSET_MAX ||
        fread(data + offset, K3_BLOCK_BYTES, count, stdin) != count)
        return 1;
    memset(digests, 0xa5, sizeof digests);
    k3_sha256_blocks(NULL, data + offset, count, *digests);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < K3_DIGEST_BYTES; j++)
            printf("%02x", digests[i][j]);
        putchar('\n');
    }
    return 0;
}
