/* Purpose: a zstd frame comes back as it was, and nothing else is taken for one.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: outputs are poisoned before each decode, and empty after a refusal. */
#include "zst.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FILE_NAME   "/dir/source-headers.zst"
#define ABC_XXH64   "\x99\x09\x77\xad"
#define LARGE_BYTES ((size_t)3 << 20)

/* Text in the manner of a safetensors header. */
static char *make_content(size_t bytes)
{
    char *content = malloc(bytes + 128);
    assert_non_null(content);
    size_t at = 0;
    for (unsigned i = 0; at < bytes; i++)
        at += (size_t)snprintf(content + at, 128,
                               "\"layers.%u.w.weight\":{\"dtype\":\"U8\",\"data\":%u},", i % 93,
                               i * 2654435761u);
    return content;
}

/* Compress in pieces; returns the first failure. */
static int compress(struct k3_text *out, const char *content, size_t bytes, uint64_t promised,
                    size_t piece_bytes)
{
    struct k3_err err;
    struct k3_zst_out *zst = NULL;
    k3_err_init(&err);
    int rc = k3_zst_open(out, promised, &zst, &err);
    for (size_t done = 0; !rc && done < bytes;) {
        size_t n = bytes - done < piece_bytes ? bytes - done : piece_bytes;
        rc = k3_zst_write(zst, content + done, n, &err);
        done += n;
    }
    if (!rc)
        rc = k3_zst_end(zst, &err);
    k3_zst_close(zst);
    assert_int_equal(err.rc, rc);
    return rc;
}

static int decode(const void *frame, size_t bytes, uint64_t max, char **content,
                  size_t *content_bytes)
{
    struct k3_err err;
    k3_err_init(&err);
    *content = (char *)(uintptr_t)0xa5a5a5a5u;
    *content_bytes = 0xa5a5;
    /* In memory of its own size, so that ASan sees a read behind it. */
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    if (bytes > 0)
        memcpy(copy, frame, bytes);
    struct k3_text text;
    int rc = k3_zst_decode(FILE_NAME, copy, bytes, max, &text, &err);
    *content = text.data;
    *content_bytes = text.bytes;
    free(copy);
    assert_int_equal(err.rc, rc);
    if (rc) {
        assert_null(*content);
        assert_int_equal(*content_bytes, 0);
        assert_non_null(strstr(err.text, FILE_NAME));
        assert_string_equal(err.file, "source-headers.zst");
    }
    return rc;
}

static void assert_refused(const void *frame, size_t bytes, uint64_t max, int rc)
{
    char *content;
    size_t content_bytes;
    assert_int_equal(decode(frame, bytes, max, &content, &content_bytes), rc);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 255, 256, 65791, 131072, 131073, LARGE_BYTES};
    char *content = make_content(LARGE_BYTES);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t piece_bytes = 1000; piece_bytes < 10000000; piece_bytes *= 70) {
            struct k3_text out;
            char *found;
            size_t found_bytes;
            k3_text_init(&out);
            k3_text_puts(&out, "in front");
            assert_int_equal(compress(&out, content, sizes[i], sizes[i], piece_bytes), 0);
            assert_memory_equal(out.data, "in front", 8);
            assert_int_equal(decode(out.data + 8, out.bytes - 8, sizes[i], &found, &found_bytes),
                             0);
            assert_int_equal(found_bytes, sizes[i]);
            assert_memory_equal(found, content, found_bytes);
            assert_int_equal(found[found_bytes], 0);
            free(found);
            k3_text_fini(&out);
        }
    free(content);
}

static void test_promise(void **state)
{
    (void)state;
    struct k3_text out;
    k3_text_init(&out);
    assert_int_equal(compress(&out, "0123456789", 9, 10, 4), K3_EFORMAT);
    assert_int_equal(compress(&out, "0123456789", 10, 9, 4), K3_EFORMAT);
    assert_int_equal(compress(&out, "0123456789", 1, 0, 4), K3_EFORMAT);
    assert_int_equal(compress(&out, "", 0, 1, 4), K3_EFORMAT);
    k3_text_fini(&out);
    k3_zst_close(NULL);
}

static void make_frame(struct k3_text *out, size_t bytes)
{
    char *content = make_content(bytes);
    k3_text_init(out);
    assert_int_equal(compress(out, content, bytes, bytes, bytes), 0);
    free(content);
}

static void test_truncated(void **state)
{
    (void)state;
    struct k3_text frame;
    make_frame(&frame, 20000);
    for (size_t bytes = 0; bytes < frame.bytes; bytes++)
        assert_refused(frame.data, bytes, 20000, bytes < 4 ? K3_EFORMAT : K3_ECORRUPT);
    k3_text_fini(&frame);
}

static void test_behind(void **state)
{
    (void)state;
    static const char skippable[] = "\x50\x2a\x4d\x18\x04\0\0\0four";
    struct k3_text frame, second;
    make_frame(&frame, 5000);
    make_frame(&second, 5000);
    size_t whole = frame.bytes;
    k3_text_put(&frame, "\0", 1);
    assert_refused(frame.data, whole + 1, 20000, K3_EFORMAT);
    frame.bytes = whole;
    k3_text_put(&frame, second.data, second.bytes);
    assert_refused(frame.data, frame.bytes, 20000, K3_EFORMAT);
    frame.bytes = whole;
    k3_text_put(&frame, skippable, sizeof skippable - 1);
    assert_refused(frame.data, frame.bytes, 20000, K3_EFORMAT);
    /* A skippable frame alone, and one in front. */
    assert_refused(skippable, sizeof skippable - 1, 20000, K3_EFORMAT);
    frame.bytes = 0;
    k3_text_put(&frame, skippable, sizeof skippable - 1);
    k3_text_put(&frame, second.data, second.bytes);
    assert_refused(frame.data, frame.bytes, 20000, K3_EFORMAT);
    k3_text_fini(&frame);
    k3_text_fini(&second);
}

static void test_no_content_size(void **state)
{
    (void)state;
    /* Magic; a checksum and no other flag; window of 1 KiB; one last raw block of 3 bytes; the
     * checksum (the low half of XXH64). */
    static const char without[] = "\x28\xb5\x2f\xfd\x04\x00\x19\0\0abc" ABC_XXH64;
    /* The same with a single segment of declared size 3, 2 and 4. */
    static const char with[] = "\x28\xb5\x2f\xfd\x24\x03\x19\0\0abc" ABC_XXH64;
    static const char less[] = "\x28\xb5\x2f\xfd\x24\x02\x19\0\0abc" ABC_XXH64;
    static const char more[] = "\x28\xb5\x2f\xfd\x24\x04\x19\0\0abc" ABC_XXH64;
    /* Sound, but without a checksum; and with a wrong one. */
    static const char unchecked[] = "\x28\xb5\x2f\xfd\x20\x03\x19\0\0abc";
    static const char wrong[] = "\x28\xb5\x2f\xfd\x24\x03\x19\0\0abd" ABC_XXH64;
    assert_refused(without, sizeof without - 1, 100, K3_EFORMAT);
    assert_refused(less, sizeof less - 1, 100, K3_ECORRUPT);
    assert_refused(more, sizeof more - 1, 100, K3_ECORRUPT);
    assert_refused(unchecked, sizeof unchecked - 1, 100, K3_EFORMAT);
    assert_refused(wrong, sizeof wrong - 1, 100, K3_ECORRUPT);
    char *content;
    size_t content_bytes;
    assert_int_equal(decode(with, sizeof with - 1, 3, &content, &content_bytes), 0);
    assert_int_equal(content_bytes, 3);
    assert_string_equal(content, "abc");
    free(content);
}

static void test_limit(void **state)
{
    (void)state;
    struct k3_text frame;
    make_frame(&frame, 5000);
    assert_refused(frame.data, frame.bytes, 4999, K3_ELIMIT);
    assert_refused(frame.data, frame.bytes, 0, K3_ELIMIT);
    k3_text_fini(&frame);
    /* A few bytes that declare 2^62: refused before any memory is asked for. */
    static const char bomb[] = "\x28\xb5\x2f\xfd\xe4\0\0\0\0\0\0\0\x40\x19\0\0abc";
    assert_refused(bomb, sizeof bomb - 1, (uint64_t)4 << 30, K3_ELIMIT);
}

/* A flipped bit is refused, or changes nothing: the window size, an unused flag, or a match that
 * finds the same text elsewhere.  The checksum sees to the rest. */
static void test_bit_flips(void **state)
{
    (void)state;
    struct k3_text frame;
    const size_t bytes = 6000;
    char *wanted = make_content(bytes);
    make_frame(&frame, bytes);
    size_t accepted_count = 0;
    for (size_t i = 0; i < frame.bytes * 8; i++) {
        char *content;
        size_t content_bytes;
        frame.data[i / 8] = (char)(frame.data[i / 8] ^ 1 << i % 8);
        if (decode(frame.data, frame.bytes, 1 << 20, &content, &content_bytes) == 0) {
            assert_int_equal(content_bytes, bytes);
            assert_memory_equal(content, wanted, bytes);
            free(content);
            accepted_count++;
        }
        frame.data[i / 8] = (char)(frame.data[i / 8] ^ 1 << i % 8);
    }
    assert_true(accepted_count < frame.bytes * 8 / 50);
    print_message("%zu of %zu flipped bits changed nothing\n", accepted_count, frame.bytes * 8);
    free(wanted);
    k3_text_fini(&frame);
}

static void test_other_files(void **state)
{
    (void)state;
    assert_refused("", 0, 100, K3_EFORMAT);
    assert_refused("version https://git-lfs.github.com/spec/v1\n", 43, 100, K3_EFORMAT);
    assert_refused("\x1f\x8b\x08\0\0\0\0\0", 8, 100, K3_EFORMAT);
    assert_refused("\x28\xb5\x2f\xfd", 4, 100, K3_ECORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),      cmocka_unit_test(test_promise),
        cmocka_unit_test(test_truncated),       cmocka_unit_test(test_behind),
        cmocka_unit_test(test_no_content_size), cmocka_unit_test(test_limit),
        cmocka_unit_test(test_bit_flips),       cmocka_unit_test(test_other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
