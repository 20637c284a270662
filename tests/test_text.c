/* Purpose: the growing text, UTF-8, and foreign strings in messages.
 * Owns: nothing.
 * Threads: one.
 * Errors: a failed assertion.
 * Invariants: none beyond the tests. */
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void growing(void **state)
{
    (void)state;
    struct k3_text text;
    k3_text_init(&text);
    assert_int_equal(text.bytes, 0);
    k3_text_put(&text, "", 0);
    assert_string_equal(text.data, "");
    char *copy = calloc(1, 100001);
    assert_non_null(copy);
    for (size_t i = 0; i < 100000; i++) {
        char c = (char)('a' + i % 26);
        copy[i] = c;
        k3_text_put(&text, &c, 1);
        assert_int_equal(text.data[text.bytes], 0);
    }
    assert_int_equal(text.bytes, 100000);
    assert_string_equal(text.data, copy);
    assert_int_equal(k3_text_check(&text, NULL), 0);
    k3_text_fini(&text);
    assert_null(text.data);
    free(copy);
}

static void zeros_inside(void **state)
{
    (void)state;
    struct k3_text text;
    k3_text_init(&text);
    k3_text_put(&text, "a\0b", 3);
    k3_text_puts(&text, "cd");
    assert_int_equal(text.bytes, 5);
    assert_memory_equal(text.data, "a\0bcd", 6);
    k3_text_fini(&text);
}

static void numbers(void **state)
{
    (void)state;
    static const uint64_t value[] = {0,         1, 9, 10, 99, 100, 12345678901u, UINT64_MAX - 1,
                                     UINT64_MAX};
    for (size_t i = 0; i < sizeof value / sizeof *value; i++) {
        struct k3_text text;
        char want[32];
        k3_text_init(&text);
        k3_text_putu(&text, value[i]);
        snprintf(want, sizeof want, "%llu", (unsigned long long)value[i]);
        assert_string_equal(text.data, want);
        k3_text_fini(&text);
    }
}

static void formatted(void **state)
{
    (void)state;
    struct k3_text text;
    k3_text_init(&text);
    k3_text_putf(&text, "%s-%d;", "x", -5);
    k3_text_putf(&text, "%0300d", 7);
    k3_text_putf(&text, "%s", "");
    assert_int_equal(text.bytes, 305);
    assert_memory_equal(text.data, "x--5;000", 8);
    assert_string_equal(text.data + 300, "00007");
    k3_text_fini(&text);
}

static void json(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } row[] = {
        {"", "\"\""},
        {"plain/.~ \x7f", "\"plain/.~ \x7f\""},
        {"\"\\", "\"\\\"\\\\\""},
        {"a\nb\x01\x1f", "\"a\\u000ab\\u0001\\u001f\""},
        {"\xc3\xa4\xf0\x9f\x98\x80", "\"\xc3\xa4\xf0\x9f\x98\x80\""},
        {"a\xff"
         "b\xc3",
         "\"a\\ufffdb\\ufffd\""},
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct k3_text text;
        k3_text_init(&text);
        k3_text_put_json(&text, row[i].in);
        assert_string_equal(text.data, row[i].out);
        k3_text_fini(&text);
    }
}

/* A size that no memory has: the failure stays and nothing of the text changes any more. */
static void sticky(void **state)
{
    (void)state;
    struct k3_text text;
    struct k3_err err;
    k3_text_init(&text);
    k3_err_init(&err);
    k3_text_puts(&text, "kept");
    k3_text_put(&text, "x", SIZE_MAX - 2);
    assert_true(text.failed);
    k3_text_puts(&text, "more");
    k3_text_putf(&text, "%d", 1);
    k3_text_putu(&text, 1);
    k3_text_put_json(&text, "x");
    assert_string_equal(text.data, "kept");
    assert_int_equal(k3_text_check(&text, &err), K3_ENOMEM);
    assert_int_equal(err.rc, K3_ENOMEM);
    k3_text_fini(&text);
    assert_false(text.failed);
}

/* Every code point, against the definition; surrogates are none. */
static void utf8_all(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char b[4];
        size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const unsigned lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
        uint32_t rest = c;
        for (size_t i = bytes - 1; i > 0; i--, rest >>= 6)
            b[i] = (char)(0x80 | (rest & 0x3f));
        b[0] = (char)(lead[bytes] | rest);
        bool is_surrogate = c >= 0xd800 && c <= 0xdfff;
        if (k3_utf8_bytes(b, bytes) != (is_surrogate ? 0 : bytes))
            fail_msg("U+%04x", c);
        if (bytes > 1 && k3_utf8_bytes(b, bytes - 1))
            fail_msg("U+%04x cut", c);
    }
}

/* Of all pairs of bytes exactly the two-byte characters and the ASCII ones are right. */
static void utf8_pairs(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 65536; i++) {
        char b[2] = {(char)(i >> 8), (char)i};
        unsigned first = i >> 8, second = i & 0xff;
        size_t want = first < 0x80 ? 1 : 0;
        if (first >= 0xc2 && first <= 0xdf && second >= 0x80 && second <= 0xbf)
            want = 2;
        assert_int_equal(k3_utf8_bytes(b, 2), want);
    }
    assert_int_equal(k3_utf8_bytes("", 0), 0);
    assert_int_equal(k3_utf8_bytes("\xc0\xaf", 2), 0);
    assert_int_equal(k3_utf8_bytes("\xe0\x9f\xbf", 3), 0);
    assert_int_equal(k3_utf8_bytes("\xf0\x8f\xbf\xbf", 4), 0);
    assert_int_equal(k3_utf8_bytes("\xf4\x90\x80\x80", 4), 0);
    assert_int_equal(k3_utf8_bytes("\xf8\x88\x80\x80\x80", 5), 0);
}

static void shown(void **state)
{
    (void)state;
    char out[K3_SHOWN_BYTES];
    assert_string_equal(k3_shown("", 0, out), "");
    assert_string_equal(k3_shown("model.a", 7, out), "model.a");
    assert_string_equal(k3_shown("a\0\n\x1b[31m\x7f\xff", 10, out),
                        "a\\x00\\x0a\\x1b[31m\\x7f\\xff");
    char in[200];
    memset(in, 'a', 100);
    memset(in + 100, 'z', 100);
    assert_int_equal(strlen(k3_shown(in, 64, out)), 64);
    assert_string_equal(k3_shown(in, 200, out),
                        "aaaaaaaaaaaaaaaaaaaaaaaa...zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz");
    memset(in, '\n', 200);
    assert_int_equal(strlen(k3_shown(in, 200, out)), K3_SHOWN_BYTES - 1); /* the longest result */
}

/* What a shell makes of `printf %s WORD`. */
static void run_shell(const char *shell, const char *command, char *out, size_t out_bytes)
{
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execlp(shell, shell, "-c", command, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    size_t at = 0;
    for (ssize_t n; at + 1 < out_bytes && (n = read(ends[0], out + at, out_bytes - 1 - at)) > 0;)
        at += (size_t)n;
    out[at] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void quoted_words(void **state)
{
    (void)state;
    static const char *const words[] = {"",
                                        "/models/Kimi-K3_1.0+x@y%z=1:2,3",
                                        "-rf",
                                        "=ls",
                                        "~",
                                        "a b",
                                        "r'; echo PWNED; '",
                                        "'",
                                        "''",
                                        "\\'",
                                        "a\\",
                                        "$(echo PWNED)",
                                        "`echo PWNED`",
                                        "$HOME",
                                        "a;b",
                                        "a&b",
                                        "a|b",
                                        "*",
                                        "{a,b}",
                                        "#x",
                                        "!!",
                                        "!echo",
                                        "\"",
                                        "x\ny",
                                        "\t",
                                        "\x1b[31mred\x1b[0m",
                                        "\x1b'; echo PWNED; '",
                                        "\x1b\\'; echo PWNED; #",
                                        "\x1b!x\\",
                                        "\0337f",
                                        "\x7f",
                                        "\xff\xfe",
                                        "\xc2\23331m",
                                        "caf\xc3\xa9",
                                        "\xe2\x82\xac'\x01",
                                        "\x1b$(echo PWNED)`echo PWNED`"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int always = 0; always < 2; always++) {
            char found[256];
            struct k3_text text;
            k3_text_init(&text);
            k3_text_puts(&text, "printf %s ");
            (always ? k3_text_put_in_quotes : k3_text_put_quoted)(&text, words[i]);
            assert_int_equal(k3_text_check(&text, NULL), 0);
            const char *word = text.data + strlen("printf %s ");
            for (const char *c = word; *c; c++)
                assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
            assert_null(strstr(word, "\xc2\x9b"));
            run_shell("bash", text.data, found, sizeof found);
            assert_string_equal(found, words[i]);
            run_shell("sh", text.data, found, sizeof found); /* may know no $'...' */
            if (strcmp(found, words[i]) != 0) {
                assert_int_equal(word[0], '$');
                assert_int_equal(found[0], '$');
                assert_int_equal(strlen(found), strlen(word) - 2); /* the word without quotes */
            }
            if (!always)
                assert_string_equal(k3_quoted(words[i]).s, word);
            k3_text_fini(&text);
        }
}

/* Bare and quoted are what people see in every message: neither more nor fewer quotes. */
static void quoted_forms(void **state)
{
    (void)state;
    static char path[3 * K3_QUOTED_BYTES];
    assert_string_equal(k3_quoted("/a/b-c_1.safetensors").s, "/a/b-c_1.safetensors");
    assert_string_equal(k3_quoted("").s, "''");
    assert_string_equal(k3_quoted("it's").s, "'it'\\''s'");
    assert_string_equal(k3_quoted("\x1b[m'").s, "$'\\033[m\\047'");
    assert_string_equal(k3_quoted("caf\xc3\xa9").s, "'caf\xc3\xa9'");
    memset(path, 'a', sizeof path - 1);
    assert_string_equal(k3_quoted(path).s, "...");
    path[K3_QUOTED_BYTES - 1] = 0;
    assert_string_equal(k3_quoted(path).s, path);
    assert_string_equal(k3_printable("a\x1b[m\xc2\x9b caf\xc3\xa9\n").s, "a?[m?? caf\xc3\xa9?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growing),      cmocka_unit_test(zeros_inside), cmocka_unit_test(numbers),
        cmocka_unit_test(formatted),    cmocka_unit_test(json),         cmocka_unit_test(sticky),
        cmocka_unit_test(utf8_all),     cmocka_unit_test(utf8_pairs),   cmocka_unit_test(shown),
        cmocka_unit_test(quoted_words), cmocka_unit_test(quoted_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
