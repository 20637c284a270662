/* Purpose: one zstd frame, written as a stream and decoded strictly; the only user of zstd.h.
 * Owns: the compressor and its output buffer; the decoded content until it is given to the caller.
 * Threads: a frame being written belongs to one thread; decode may run on any.
 * Errors: K3_ENOMEM, K3_EFORMAT, K3_ECORRUPT, K3_ELIMIT.
 * Invariants: a written frame declares its content size and ends with a checksum of the content;
 * decode takes nothing but one whole frame: no skippable frame, no second one, no byte behind. */
#include "zst.h"

#include <zstd.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Measured on 135 MB of headers and index in the form of K3's, libzstd 1.5.4, one core: level 3
 * 0.07 s, 1.82 MB; level 6 0.38 s, 1.32 MB; level 9 0.71 s, 1.40 MB; level 15 1.3 s, 1.41 MB;
 * long-distance matching: larger.  Level 6 is the smallest, and needs 3 MiB of memory. */
#define ZST_LEVEL         6
#define ZST_MAGIC_BYTES   4u
#define ZST_CHECKSUM_FLAG 4u /* RFC 8878 3.1.1.1.1: bit 2 of the byte behind the magic */
#define ZST_BLOCK_MIN     4u /* RFC 8878 3.1.1.2: a header of 3 bytes, one of content at least */
#define ZST_BLOCK_CONTENT (UINT64_C(128) << 10) /* at most that from one block, by 3.1.1.2.4 */

struct k3_zst_out {
    ZSTD_CCtx *ctx;
    struct k3_text *out; /* borrowed */
    char *chunk;         /* chunk_bytes of room, what zstd recommends for its output */
    size_t chunk_bytes;
    uint64_t promised_bytes;
    uint64_t written_bytes;
};

/* A failure of libzstd while compressing: no memory, or our own misuse; never the data. */
static int fail_compress(size_t zstd_rc, struct k3_err *err)
{
    return k3_fail(err, K3_ENOMEM, "zstd cannot compress: %s", ZSTD_getErrorName(zstd_rc));
}

static int fail_size(const struct k3_zst_out *zst, uint64_t found_bytes, struct k3_err *err)
{
    return k3_fail(err, K3_EFORMAT,
                   "a zstd frame was promised %" PRIu64 " bytes of content, found %" PRIu64
                   "; the source changed while it was read, run again",
                   zst->promised_bytes, found_bytes);
}

int k3_zst_open(struct k3_text *out, uint64_t content_bytes, struct k3_zst_out **zst,
                struct k3_err *err)
{
    *zst = NULL;
    struct k3_zst_out *z = calloc(1, sizeof *z);
    if (!z)
        return k3_fail(err, K3_ENOMEM, "no memory for a zstd frame");
    int rc = 0;
    z->out = out;
    z->promised_bytes = content_bytes;
    z->chunk_bytes = ZSTD_CStreamOutSize();
    z->chunk = malloc(z->chunk_bytes);
    z->ctx = ZSTD_createCCtx();
    if (!z->chunk || !z->ctx) {
        rc = k3_fail(err, K3_ENOMEM, "no memory for a zstd frame");
        goto out;
    }
    size_t r = ZSTD_CCtx_setParameter(z->ctx, ZSTD_c_compressionLevel, ZST_LEVEL);
    if (!ZSTD_isError(r))
        r = ZSTD_CCtx_setParameter(z->ctx, ZSTD_c_checksumFlag, 1);
    if (!ZSTD_isError(r))
        r = ZSTD_CCtx_setPledgedSrcSize(z->ctx, content_bytes);
    if (ZSTD_isError(r))
        rc = fail_compress(r, err);
out:
    if (rc) {
        k3_zst_close(z);
        return rc;
    }
    *zst = z;
    return 0;
}

/* Give `input` to the compressor until it is taken, or with ZSTD_e_end until the frame is complete.
 */
static int feed(struct k3_zst_out *zst, ZSTD_inBuffer *input, ZSTD_EndDirective directive,
                struct k3_err *err)
{
    for (;;) {
        ZSTD_outBuffer output = {zst->chunk, zst->chunk_bytes, 0};
        size_t left = ZSTD_compressStream2(zst->ctx, &output, input, directive);
        if (ZSTD_isError(left))
            return fail_compress(left, err);
        k3_text_put(zst->out, zst->chunk, output.pos);
        int rc = k3_text_check(zst->out, err);
        if (rc)
            return rc;
        if (directive == ZSTD_e_end ? left == 0 : input->pos == input->size)
            return 0;
    }
}

int k3_zst_write(struct k3_zst_out *zst, const void *data, size_t bytes, struct k3_err *err)
{
    if (bytes > zst->promised_bytes - zst->written_bytes)
        return fail_size(zst, zst->written_bytes + bytes, err);
    zst->written_bytes += bytes;
    ZSTD_inBuffer input = {data, bytes, 0};
    return feed(zst, &input, ZSTD_e_continue, err);
}

int k3_zst_end(struct k3_zst_out *zst, struct k3_err *err)
{
    if (zst->written_bytes != zst->promised_bytes)
        return fail_size(zst, zst->written_bytes, err);
    ZSTD_inBuffer input = {NULL, 0, 0};
    return feed(zst, &input, ZSTD_e_end, err);
}

void k3_zst_close(struct k3_zst_out *zst)
{
    if (!zst)
        return;
    ZSTD_freeCCtx(zst->ctx);
    free(zst->chunk);
    free(zst);
}

/* Judge the frame without decoding it: what it is, how large its content is, where it ends. */
static int check_frame(const char *file, const void *frame, size_t bytes,
                       uint64_t content_bytes_max, uint64_t *content_bytes, struct k3_err *err)
{
    /* zstd's own look at the size takes a skippable frame for an empty one, hence the magic first.
     */
    static const uint8_t magic[ZST_MAGIC_BYTES] = {0x28, 0xb5, 0x2f, 0xfd};
    if (bytes < sizeof magic || memcmp(frame, magic, sizeof magic) != 0)
        return k3_fail_at(err, K3_EFORMAT, file, 0,
                          "%s: wanted a zstd frame, found other bytes; restore the file", file);
    if (bytes > ZST_MAGIC_BYTES && !(((const uint8_t *)frame)[ZST_MAGIC_BYTES] & ZST_CHECKSUM_FLAG))
        return k3_fail_at(
            err, K3_EFORMAT, file, ZST_MAGIC_BYTES,
            "%s: wanted a zstd frame that carries a checksum, found one that does not; "
            "compress it with its checksum",
            file);
    unsigned long long declared = ZSTD_getFrameContentSize(frame, bytes);
    if (declared == ZSTD_CONTENTSIZE_ERROR)
        return k3_fail_at(err, K3_ECORRUPT, file, 0,
                          "%s: wanted a whole zstd frame header, found %zu bytes that are none; "
                          "restore the file",
                          file, bytes);
    if (declared == ZSTD_CONTENTSIZE_UNKNOWN)
        return k3_fail_at(
            err, K3_EFORMAT, file, 0,
            "%s: wanted a zstd frame that declares its content size, found one that does "
            "not; compress it from a file, not from a pipe",
            file);
    if (declared > content_bytes_max)
        return k3_fail_at(err, K3_ELIMIT, file, 0,
                          "%s: wanted at most %" PRIu64
                          " bytes of content, found %llu declared; restore "
                          "the file",
                          file, content_bytes_max, declared);
    /* Before room is made for it: a few bytes may declare any size. */
    if (declared > bytes / ZST_BLOCK_MIN * ZST_BLOCK_CONTENT)
        return k3_fail_at(err, K3_ECORRUPT, file, 0,
                          "%s: wanted a frame that can hold the content it declares, found %zu "
                          "bytes for %llu; restore the file",
                          file, bytes, declared);
    size_t frame_bytes = ZSTD_findFrameCompressedSize(frame, bytes);
    if (ZSTD_isError(frame_bytes))
        return k3_fail_at(
            err, K3_ECORRUPT, file, 0,
            "%s: wanted a whole zstd frame, found %zu bytes of a damaged or cut one (%s); "
            "restore the file",
            file, bytes, ZSTD_getErrorName(frame_bytes));
    if (frame_bytes != bytes)
        return k3_fail_at(
            err, K3_EFORMAT, file, (int64_t)frame_bytes,
            "%s: wanted one zstd frame of %zu bytes and nothing behind, found %zu bytes; "
            "restore the file",
            file, frame_bytes, bytes);
    *content_bytes = declared;
    return 0;
}

int k3_zst_decode(const char *file, const void *frame, size_t bytes, uint64_t content_bytes_max,
                  struct k3_text *content, struct k3_err *err)
{
    k3_text_init(content);
    uint64_t declared = 0;
    int rc = check_frame(file, frame, bytes, content_bytes_max, &declared, err);
    if (rc)
        return rc;
    char *data = declared < SIZE_MAX ? malloc((size_t)declared + 1)
                                     : NULL; /* + 1: a NUL for readers */
    if (!data)
        return k3_fail(err, K3_ENOMEM, "%s: no memory for %" PRIu64 " bytes of content", file,
                       declared);
    ZSTD_DCtx *ctx = ZSTD_createDCtx();
    if (!ctx) {
        rc = k3_fail(err, K3_ENOMEM, "%s: no memory to decode a zstd frame", file);
        goto out;
    }
    size_t found = ZSTD_decompressDCtx(ctx, data, (size_t)declared, frame, bytes);
    if (ZSTD_isError(found)) {
        rc = k3_fail_at(err, K3_ECORRUPT, file, 0,
                        "%s: wanted a sound zstd frame, found a damaged one (%s); restore the file",
                        file, ZSTD_getErrorName(found));
        goto out;
    }
    if (found != declared) {
        rc = k3_fail_at(err, K3_ECORRUPT, file, 0,
                        "%s: wanted %" PRIu64
                        " bytes of content as declared, found %zu; restore the file",
                        file, declared, found);
        goto out;
    }
    data[found] = 0;
    content->data = data;
    content->bytes = found;
    content->cap = found + 1;
    data = NULL;
out:
    ZSTD_freeDCtx(ctx);
    free(data);
    return rc;
}
