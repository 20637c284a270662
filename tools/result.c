/* Purpose: print the one object of --json.
 * Owns: the mark that it was printed.
 * Threads: the main thread.
 * Errors: K3_ENOMEM.
 * Invariant: one process prints at most one object: the command's, or main()'s error object. */
#include "cmds.h"
#include "doc.h"
#include "text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool printed;

int k3_result_print(const struct k3_doc *root, struct k3_err *err)
{
    assert(!printed);
    struct k3_text text;
    k3_text_init(&text);
    int rc = k3_doc_encode(root, &text, err);
    if (rc == 0) {
        /* A failed write is found by main() when it closes stdout. */
        fwrite(text.data, 1, text.bytes, stdout);
        fputc('\n', stdout);
        printed = true;
    }
    k3_text_fini(&text);
    return rc;
}

bool k3_result_add_lines(struct k3_doc *root, const char *name, const char *lines)
{
    struct k3_doc *array = k3_doc_add_array(root, name);
    bool added = array != NULL;
    while (added && *lines) {
        size_t n = strcspn(lines, "\n");
        char *line = strndup(lines, n);
        added = line && (n == 0 || k3_doc_add_string(array, NULL, line));
        free(line);
        lines += n + (lines[n] == '\n');
    }
    return added;
}

bool k3_result_is_printed(void)
{
    return printed;
}
