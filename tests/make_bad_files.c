/* Purpose: write every bad safetensors file for the command-line tests: make_bad_files DIR.
 * Owns: DIR/NAME.safetensors and DIR/EXPECT, whose lines are "NAME RC-NAME PART OF THE MESSAGE".
 * Threads: one.
 * Errors: a sentence on standard error and exit 1; a wrong call is exit 2.
 * Invariants: existing files are replaced; EXPECT is complete when the exit code is 0. */
#include "st_bad.h"

#include <stdbool.h>
#include <stdio.h>

#define PATH_BYTES 4096 /* PATH_MAX of Linux */

static bool write_file(const char *dir, const char *name, const char *suffix,
                       const struct k3_text *text)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s%s", dir, name, suffix);
    if (length < 0 || (size_t)length >= sizeof path || text->failed)
        return false;
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool done = fwrite(text->data, 1, text->bytes, file) == text->bytes;
    return fclose(file) == 0 && done;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_bad_files DIR\n");
        return 2;
    }
    struct k3_text expect;
    k3_text_init(&expect);
    bool done = true;
    for (size_t i = 0; i < k3_bad_st_count && done; i++) {
        const struct k3_bad_st *row = &k3_bad_st_table[i];
        struct k3_text file;
        k3_text_init(&file);
        row->build(row, &file);
        done = write_file(argv[1], row->name, ".safetensors", &file);
        k3_text_fini(&file);
        k3_text_putf(&expect, "%s %s %s\n", row->name, k3_rc_name(row->rc), row->text);
    }
    done = done && write_file(argv[1], "EXPECT", "", &expect);
    k3_text_fini(&expect);
    if (!done)
        fprintf(stderr, "make_bad_files: the files in %s could not be written\n", argv[1]);
    return done ? 0 : 1;
}
