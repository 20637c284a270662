/* Purpose: SHA-256 gives the digests of FIPS 180-4, however its input is cut.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: every digest buffer is poisoned before it is filled. */
#include "sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MILLION 1000000u

static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
static const char four_blocks[] = "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                                  "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";

static void assert_digest(const uint8_t digest[K3_DIGEST_BYTES], const char *wanted)
{
    char hex[K3_HEX_BYTES];
    k3_hex_encode(digest, K3_DIGEST_BYTES, hex);
    assert_string_equal(hex, wanted);
}

static struct k3_sha256 *open_stream(void)
{
    struct k3_err err;
    k3_err_init(&err);
    struct k3_sha256 *sha = NULL;
    assert_int_equal(k3_sha256_open(&sha, &err), 0);
    assert_non_null(sha);
    return sha;
}

static void test_vectors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
    } vector[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {two_blocks, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {four_blocks, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    struct k3_sha256 *sha = open_stream();
    for (size_t i = 0; i < sizeof vector / sizeof *vector; i++) {
        uint8_t digest[K3_DIGEST_BYTES];
        memset(digest, 0xa5, sizeof digest);
        k3_sha256_of(sha, vector[i].text, strlen(vector[i].text), digest);
        assert_digest(digest, vector[i].wanted);
    }
    k3_sha256_close(sha);
}

static void test_million(void **state)
{
    (void)state;
    char *text = malloc(MILLION);
    assert_non_null(text);
    memset(text, 'a', MILLION);
    struct k3_sha256 *sha = open_stream();
    for (size_t piece_bytes = 1; piece_bytes <= MILLION; piece_bytes = piece_bytes * 7 + 3) {
        uint8_t digest[K3_DIGEST_BYTES];
        memset(digest, 0xa5, sizeof digest);
        k3_sha256_begin(sha);
        for (size_t done = 0; done < MILLION;) {
            size_t bytes = MILLION - done < piece_bytes ? MILLION - done : piece_bytes;
            k3_sha256_update(sha, text + done, bytes);
            k3_sha256_update(sha, NULL, 0);
            done += bytes;
        }
        k3_sha256_final(sha, digest);
        assert_digest(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
    k3_sha256_close(sha);
    free(text);
}

static void test_begin_anew(void **state)
{
    (void)state;
    struct k3_sha256 *sha = open_stream();
    uint8_t digest[K3_DIGEST_BYTES];
    k3_sha256_update(sha, "dropped", 7);
    k3_sha256_begin(sha);
    k3_sha256_update(sha, "ab", 2);
    k3_sha256_update(sha, "c", 1);
    k3_sha256_final(sha, digest);
    assert_digest(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    k3_sha256_close(sha);
    k3_sha256_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_million),
        cmocka_unit_test(test_begin_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
