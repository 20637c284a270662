/* Purpose: write safetensors headers in the byte form of FORMAT.md 5.
 * Owns: nothing; the text is the caller's.
 * Threads: one writer at a time.
 * Errors: sticky in the text; k3_st_out_end reports K3_ENOMEM and K3_ELIMIT.
 * Invariants: what is written decodes again where names, order and offsets of the caller are
 * legal; the bytes follow from the calls alone. */
#include "st.h"

#include "bytes.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

void k3_st_out_begin(struct k3_st_out *out, struct k3_text *text)
{
    assert(text->bytes == 0);
    *out = (struct k3_st_out){.text = text};
    static const char room[K3_ST_PREFIX_BYTES]; /* for N, known at the end */
    k3_text_put(text, room, sizeof room);
    k3_text_put(text, "{", 1);
}

void k3_st_out_meta(struct k3_st_out *out, const char *key, const char *value)
{
    assert(out->in_meta || out->entry_count == 0);
    k3_text_puts(out->text, out->in_meta ? "," : "\"__metadata__\":{");
    out->in_meta = true;
    out->entry_count++;
    k3_text_put_json(out->text, key);
    k3_text_put(out->text, ":", 1);
    k3_text_put_json(out->text, value);
}

void k3_st_out_tensor(struct k3_st_out *out, const struct k3_st_tensor *tensor)
{
    struct k3_text *text = out->text;
    if (out->in_meta)
        k3_text_put(text, "}", 1);
    out->in_meta = false;
    if (out->entry_count++)
        k3_text_put(text, ",", 1);
    k3_text_put(text, "\"", 1);
    k3_text_put(text, tensor->name, tensor->name_bytes); /* legal names need no escapes */
    k3_text_puts(text, "\":{\"dtype\":\"");
    k3_text_puts(text, k3_dtype_name((enum k3_dtype)tensor->dtype));
    k3_text_puts(text, "\",\"shape\":[");
    for (unsigned i = 0; i < tensor->dim_count; i++) {
        if (i)
            k3_text_put(text, ",", 1);
        k3_text_putu(text, tensor->shape[i]);
    }
    k3_text_puts(text, "],\"data_offsets\":[");
    k3_text_putu(text, tensor->begin_offset);
    k3_text_put(text, ",", 1);
    k3_text_putu(text, tensor->end_offset);
    k3_text_puts(text, "]}");
}

int k3_st_out_end(struct k3_st_out *out, uint32_t align, struct k3_err *err)
{
    assert(align && !(align & (align - 1)) && align <= K3_ST_PADDING_BYTES_MAX);
    static const char spaces[] = "                                                                ";
    struct k3_text *text = out->text;
    k3_text_puts(text, out->in_meta ? "}}" : "}");
    out->in_meta = false;
    size_t end = (size_t)k3_align_up(text->bytes, align);
    while (text->bytes < end && !text->failed) {
        size_t left = end - text->bytes;
        k3_text_put(text, spaces, left < sizeof spaces - 1 ? left : sizeof spaces - 1);
    }
    if (text->failed)
        return k3_text_check(text, err);
    uint64_t length = text->bytes - K3_ST_PREFIX_BYTES;
    if (length > K3_ST_HEADER_BYTES_MAX)
        return k3_fail(err, K3_ELIMIT,
                       "a header of %" PRIu64
                       " bytes would be written, at most %u are allowed; use a "
                       "layout that makes smaller parts",
                       length, K3_ST_HEADER_BYTES_MAX);
    k3_store_le64(text->data, length);
    return 0;
}
