/* Purpose: fuzz target: the text of a view.  An input is its key, a line feed and its value.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: an accepted view, written again, is the text; its shape has its bytes. */
#include "fuzz.h"

#include "bytes.h"
#include "part.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void check_view(const struct k3_view *view, const char *key, const char *value)
{
    struct k3_text again;
    uint64_t bits = k3_dtype_bits((enum k3_dtype)view->dtype);
    k3_text_init(&again);
    k3_text_puts(&again, k3_dtype_name((enum k3_dtype)view->dtype));
    FUZZ_CHECK(view->dim_count >= 1 && view->dim_count <= 4);
    for (unsigned d = 0; d < view->dim_count; d++) {
        k3_text_putf(&again, "%s%" PRIu64, d ? "," : ";", view->shape[d]);
        FUZZ_CHECK(k3_mul_fits(bits, view->shape[d], &bits));
    }
    k3_text_putf(&again, ";%" PRIu64 ";%" PRIu64, view->begin_offset, view->end_offset);
    FUZZ_CHECK(!strcmp(again.data, value));
    FUZZ_CHECK(view->end_offset >= view->begin_offset);
    FUZZ_CHECK(bits % 8 == 0 && view->end_offset - view->begin_offset == bits / 8);
    FUZZ_CHECK(!strcmp(key + strlen("k3.view."), view->name));
    k3_text_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *key = fuzz_string(data, bytes);
    char *line_feed = strchr(key, '\n');
    struct k3_view view;
    struct k3_err err;
    k3_err_init(&err);
    if (line_feed) {
        *line_feed = 0;
        int rc = k3_view_decode(key, line_feed + 1, &view, &err);
        fuzz_check_err(rc, &err, 0);
        if (!rc)
            check_view(&view, key, line_feed + 1);
    }
    free(key);
    return 0;
}
