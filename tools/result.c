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

bool k3_result_is_printed(void)
{
    return printed;
}
