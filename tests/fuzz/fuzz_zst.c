/* Purpose: fuzz target: zstd frames.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: content is at most what was allowed, with a NUL behind it; content, written
 * as a frame, decodes to itself; a changed byte of a frame is noticed, or changes no content. */
#include "fuzz.h"

#include "zst.h"

#include <stdlib.h>
#include <string.h>

#define CONTENT_MAX (1u << 20) /* small, so that limits are met */
#define FRAME_MAX   4096u      /* of 128 MiB of content at most: what a fuzzer has memory for */

/* One frame of the content, written in two pieces. */
static void encode(const char *content, size_t bytes, struct k3_text *frame)
{
    struct k3_zst_out *zst;
    struct k3_err err;
    k3_err_init(&err);
    k3_text_init(frame);
    FUZZ_CHECK(k3_zst_open(frame, bytes, &zst, &err) == 0);
    FUZZ_CHECK(k3_zst_write(zst, content, bytes / 3, &err) == 0);
    FUZZ_CHECK(k3_zst_write(zst, content + bytes / 3, bytes - bytes / 3, &err) == 0);
    FUZZ_CHECK(k3_zst_end(zst, &err) == 0);
    k3_zst_close(zst);
}

/* A frame takes no more and no less than it was promised. */
static void check_promise(const char *content, size_t bytes)
{
    struct k3_zst_out *zst;
    struct k3_text frame;
    for (size_t promised = bytes - 1; promised <= bytes + 1; promised += 2) {
        struct k3_err err;
        k3_err_init(&err);
        k3_text_init(&frame);
        FUZZ_CHECK(k3_zst_open(&frame, promised, &zst, &err) == 0);
        int rc = k3_zst_write(zst, content, bytes, &err);
        FUZZ_CHECK(rc == (promised < bytes ? K3_EFORMAT : 0));
        bool is_whole = promised == 0; /* nothing was promised, and nothing was taken */
        FUZZ_CHECK(k3_zst_end(zst, &err) == (is_whole ? 0 : K3_EFORMAT));
        k3_zst_close(zst);
        k3_text_fini(&frame);
    }
}

static int decode(const void *frame, size_t bytes, uint64_t bytes_max, struct k3_text *content)
{
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_zst_decode("fuzz", frame, bytes, bytes_max, content, &err);
    fuzz_check_err(rc, &err, bytes);
    if (rc)
        FUZZ_CHECK(content->data == NULL && content->bytes == 0);
    else
        FUZZ_CHECK(content->bytes <= bytes_max && content->data[content->bytes] == 0);
    return rc;
}

static void check_content(const char *content, size_t bytes, size_t at)
{
    struct k3_text frame, again;
    encode(content, bytes, &frame);
    FUZZ_CHECK(decode(frame.data, frame.bytes, bytes, &again) == 0);
    FUZZ_CHECK(again.bytes == bytes && (!bytes || !memcmp(again.data, content, bytes)));
    k3_text_fini(&again);
    if (bytes > 0)
        FUZZ_CHECK(decode(frame.data, frame.bytes, bytes - 1, &again) == K3_ELIMIT);
    frame.data[at % frame.bytes] ^= (char)(1u << at % 8);
    if (decode(frame.data, frame.bytes, bytes, &again) == 0)
        FUZZ_CHECK(again.bytes == bytes && (!bytes || !memcmp(again.data, content, bytes)));
    k3_text_fini(&again);
    k3_text_fini(&frame);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct k3_text content;
    size_t at = bytes;
    for (size_t i = 0; i < bytes && i < 8; i++)
        at = at * 31 + data[i];
    if (decode(data, bytes, CONTENT_MAX, &content) == 0)
        check_content(content.data, content.bytes, at);
    k3_text_fini(&content);
    /* As large as a reader of source headers allows: nothing is set aside by a mere number. */
    if (bytes <= FRAME_MAX && decode(data, bytes, UINT64_C(4) << 30, &content) == 0)
        FUZZ_CHECK(content.bytes <= bytes / 4 << 17);
    k3_text_fini(&content);
    check_content((const char *)data, bytes, at);
    if (bytes > 0)
        check_promise((const char *)data, bytes);
    return 0;
}
