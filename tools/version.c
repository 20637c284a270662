/* Purpose: say which version this is and what the build can do.
 * Owns: nothing.
 * Threads: any.
 * Errors: K3_ENOMEM (--json).
 * Invariant: states what was compiled in; what this machine offers is another question. */
#include "cmds.h"
#include "doc.h"

#include <stdio.h>

#ifndef K3_VERSION
#define K3_VERSION "unversioned"
#endif
#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif
#if defined(__x86_64__)
#define ARCH "x86_64"
#elif defined(__aarch64__)
#define ARCH "aarch64"
#else
#define ARCH "other"
#endif

static const char *const libraries[] = {"cjson", "zstd", "libcrypto"};

const char *k3_tool_version(void)
{
    return K3_VERSION;
}

/* Whether this build has code for a GPU, and whether there is one, `doctor` tells. */
static const char *const devices[] = {"host", "cuda", "hip"};

/* Every word of a choice option: the io engines. */
static void put_words(const char *title, enum k3_opt_id id)
{
    char word[48];
    printf("%s:", title);
    for (uint32_t i = 0; k3_opt_choice(k3_opt_table[id].choices, i, word, sizeof word); i++)
        printf(" %s", word);
    putchar('\n');
}

static bool add_words(struct k3_doc *root, const char *name, enum k3_opt_id id)
{
    char word[48];
    struct k3_doc *array = k3_doc_add_array(root, name);
    bool ok = array;
    for (uint32_t i = 0; ok && k3_opt_choice(k3_opt_table[id].choices, i, word, sizeof word); i++)
        ok = k3_doc_add_string(array, NULL, word);
    return ok;
}

static int print_json(struct k3_err *err)
{
    struct k3_doc *root = k3_doc_new_object();
    bool ok = root && k3_doc_add_string(root, "version", K3_VERSION) &&
              k3_doc_add_string(root, "arch", ARCH) &&
              k3_doc_add_string(root, "compiler", COMPILER);
    struct k3_doc *array = ok ? k3_doc_add_array(root, "libraries") : NULL;
    ok = array;
    for (size_t i = 0; ok && i < sizeof libraries / sizeof libraries[0]; i++)
        ok = k3_doc_add_string(array, NULL, libraries[i]);
    ok = ok && add_words(root, "io", K3_ID_IO);
    array = ok ? k3_doc_add_array(root, "devices") : NULL;
    ok = array;
    for (size_t i = 0; ok && i < sizeof devices / sizeof devices[0]; i++)
        ok = k3_doc_add_string(array, NULL, devices[i]);
    int rc = ok ? k3_result_print(root, err)
                : k3_fail(err, K3_ENOMEM, "no memory for the version object");
    k3_doc_free(root);
    return rc;
}

int k3_cmd_version(const struct k3_opts *opts, struct k3_err *err)
{
    if (opts->json)
        return print_json(err);
    printf("k3-shard %s\n", K3_VERSION);
    printf("build: linux %s, %s\n", ARCH, COMPILER);
    printf("libraries:");
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++)
        printf(" %s", libraries[i]);
    putchar('\n');
    put_words("io", K3_ID_IO);
    printf("devices:");
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        printf(" %s", devices[i]);
    putchar('\n');
    return 0;
}
