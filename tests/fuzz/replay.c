/* Purpose: a plain driver for a fuzz target: runs it over files and folders, or over standard
 * input; with afl-clang-fast it is the loop of AFL++. TARGET FILE-OR-FOLDER...      each file once;
 * the last line is "N inputs" TARGET                        standard input, once Owns: one input at
 * a time, in a block of exactly its size, so that a sanitizer sees a read behind it. Threads: one.
 * Errors: exit 1 and a line on stderr for a file that cannot be read; exit 2 for no input at all.
 * Invariant: names are taken in sorted order, so two runs do the same. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_BYTES_MAX (16u << 20) /* the largest seed is far below; stdin must end somewhere */
#define PATH_ROOM       4096

#ifdef __AFL_FUZZ_TESTCASE_LEN
__AFL_FUZZ_INIT();
#endif

/* Run the target on a copy of its own. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    FUZZ_CHECK(copy != NULL);
    if (bytes)
        memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static int run_stream(FILE *file, const char *path)
{
    uint8_t *data = malloc(INPUT_BYTES_MAX);
    FUZZ_CHECK(data != NULL);
    size_t bytes = fread(data, 1, INPUT_BYTES_MAX, file);
    int failed = ferror(file);
    if (failed)
        fprintf(stderr, "%s: cannot be read\n", path);
    else
        run(data, bytes);
    free(data);
    return failed ? -1 : 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return -1;
    }
    /* Where a target ends the program, the last line says on which input. */
    fprintf(stderr, "%s\n", path);
    int rc = run_stream(file, path);
    fclose(file);
    return rc;
}

/* A file, or the files of a folder; *count grows by those that were run. */
static int run_path(const char *path, unsigned *count)
{
    struct stat stat_buf;
    struct dirent **entry = NULL;
    if (stat(path, &stat_buf) == 0 && !S_ISDIR(stat_buf.st_mode)) {
        ++*count;
        return run_file(path);
    }
    int entry_count = scandir(path, &entry, NULL, by_name);
    int rc = entry_count < 0 ? -1 : 0;
    if (rc)
        perror(path);
    for (int i = 0; i < entry_count; i++) {
        char name[PATH_ROOM];
        snprintf(name, sizeof name, "%s/%s", path, entry[i]->d_name);
        if (!rc && entry[i]->d_name[0] != '.' && stat(name, &stat_buf) == 0 &&
            S_ISREG(stat_buf.st_mode)) {
            ++*count;
            rc = run_file(name);
        }
        free(entry[i]);
    }
    free(entry);
    return rc;
}

int main(int argc, char **argv)
{
    unsigned count = 0;
    int rc = 0;
#ifdef __AFL_LOOP
    __AFL_INIT();
    const uint8_t *shared = __AFL_FUZZ_TESTCASE_BUF;
    while (argc == 1 && __AFL_LOOP(100000))
        run(shared, (size_t)__AFL_FUZZ_TESTCASE_LEN);
    if (argc == 1)
        return 0;
#endif
    if (argc == 1)
        return run_stream(stdin, "standard input") ? 1 : 0;
    for (int i = 1; i < argc && !rc; i++)
        rc = run_path(argv[i], &count);
    if (rc)
        return 1;
    printf("%u inputs\n", count);
    return count ? 0 : 2;
}
