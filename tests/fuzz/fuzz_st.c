/* Purpose: fuzz target: safetensors headers, from the first byte of a file on.
 * Owns: nothing beyond a call.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: a header lies in its file; tensors tile the data section, in order, each of
 * the size its dtype and shape say, each found by its name; what was read, written by the project's
 * writer, reads as the same.  A header without its data is judged as if the data were there. */
#include "fuzz.h"

#include "bytes.h"
#include "st.h"

#include <stdlib.h>
#include <string.h>

static void check_tensors(const struct k3_st *st)
{
    uint64_t end_offset = 0;
    for (uint32_t i = 0; i < st->tensor_count; i++) {
        const struct k3_st_tensor *tensor = &st->tensors[i];
        uint64_t bits = k3_dtype_bits((enum k3_dtype)tensor->dtype);
        FUZZ_CHECK(tensor->dtype < K3_DTYPE_COUNT && tensor->dim_count <= K3_ST_DIM_COUNT_MAX);
        FUZZ_CHECK(tensor->begin_offset == end_offset && tensor->end_offset >= end_offset);
        end_offset = tensor->end_offset;
        bool is_empty = false;
        for (unsigned d = 0; d < tensor->dim_count; d++)
            is_empty = is_empty || tensor->shape[d] == 0;
        for (unsigned d = 0; d < tensor->dim_count && !is_empty; d++)
            FUZZ_CHECK(k3_mul_fits(bits, tensor->shape[d], &bits));
        FUZZ_CHECK(tensor->end_offset - tensor->begin_offset == (is_empty ? 0 : bits / 8));
        FUZZ_CHECK(is_empty || bits % 8 == 0);
        FUZZ_CHECK(strlen(tensor->name) == tensor->name_bytes);
        FUZZ_CHECK(k3_st_is_name(tensor->name, tensor->name_bytes));
        FUZZ_CHECK(k3_st_find(st, tensor->name) == tensor);
    }
    FUZZ_CHECK(st->tensor_count > 0 && end_offset == st->data_bytes);
    FUZZ_CHECK(k3_st_find(st, "") == NULL && k3_st_find(st, "~") == NULL);
    for (uint32_t i = 0; i < st->meta_count; i++)
        FUZZ_CHECK(k3_st_meta_find(st, st->meta[i].key) == st->meta[i].value);
}

/* Write it and read that. */
static void check_again(const struct k3_st *st)
{
    struct k3_text text;
    struct k3_st_out out;
    struct k3_st *again;
    struct k3_err err;
    k3_text_init(&text);
    k3_err_init(&err);
    k3_st_out_begin(&out, &text);
    for (uint32_t i = 0; i < st->meta_count; i++)
        k3_st_out_meta(&out, st->meta[i].key, st->meta[i].value);
    for (uint32_t i = 0; i < st->tensor_count; i++)
        k3_st_out_tensor(&out, &st->tensors[i]);
    FUZZ_CHECK(k3_st_out_end(&out, 8, &err) == 0);
    FUZZ_CHECK(text.bytes % 8 == 0);
    int rc = k3_st_decode("again", text.data, text.bytes, text.bytes + st->data_bytes, &again,
                          &err);
    fuzz_check_err(rc, &err, text.bytes);
    FUZZ_CHECK(rc == 0 && again->data_offset == text.bytes);
    FUZZ_CHECK(again->tensor_count == st->tensor_count && again->meta_count == st->meta_count);
    for (uint32_t i = 0; i < st->tensor_count; i++) {
        const struct k3_st_tensor *a = &st->tensors[i], *b = &again->tensors[i];
        FUZZ_CHECK(!strcmp(a->name, b->name) && a->dtype == b->dtype);
        FUZZ_CHECK(a->begin_offset == b->begin_offset && a->end_offset == b->end_offset);
        FUZZ_CHECK(a->dim_count == b->dim_count && !memcmp(a->shape, b->shape, sizeof a->shape));
    }
    for (uint32_t i = 0; i < st->meta_count; i++)
        FUZZ_CHECK(!strcmp(st->meta[i].key, again->meta[i].key) &&
                   !strcmp(st->meta[i].value, again->meta[i].value));
    k3_st_free(again);
    k3_text_fini(&text);
}

/* Judge the first bytes as a reader does, then the header. */
static void read_file(const uint8_t *data, size_t bytes, uint64_t file_bytes)
{
    struct k3_st *st;
    struct k3_err err;
    uint64_t header_bytes = 0;
    k3_err_init(&err);
    int rc = k3_st_header_bytes("fuzz", data, bytes < 512 ? bytes : 512, file_bytes, &header_bytes,
                                &err);
    fuzz_check_err(rc, &err, file_bytes);
    if (rc)
        return;
    FUZZ_CHECK(header_bytes > K3_ST_PREFIX_BYTES && header_bytes <= file_bytes);
    FUZZ_CHECK(header_bytes <= K3_ST_PREFIX_BYTES + K3_ST_HEADER_BYTES_MAX);
    if (header_bytes > bytes)
        return; /* a reader would have read more */
    rc = k3_st_decode("fuzz", data, (size_t)header_bytes, file_bytes, &st, &err);
    fuzz_check_err(rc, &err,
                   INT64_MAX); /* a hole is where the header says, in a cut file as well */
    FUZZ_CHECK((rc == 0) == (st != NULL));
    if (rc)
        return;
    FUZZ_CHECK(st->data_offset == header_bytes);
    FUZZ_CHECK(file_bytes - header_bytes == st->data_bytes);
    check_tensors(st);
    check_again(st);
    k3_st_free(st);
}

/* The largest end in "data_offsets":[begin,end]. */
static uint64_t wanted_data_bytes(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_string(data, bytes);
    struct fuzz_span span = {text, bytes};
    uint64_t most = 0;
    for (char *at = fuzz_find(span, "data_offsets"); at; at = fuzz_find(span, "data_offsets")) {
        span.bytes -= (size_t)(at + 12 - span.data);
        span.data = at + 12;
        uint64_t end = 0;
        const char *comma = memchr(span.data, ',', span.bytes);
        for (const char *p = comma ? comma + 1 : ""; *p >= '0' && *p <= '9'; p++)
            end = end * 10 + (uint64_t)(*p - '0');
        most = end > most ? end : most;
    }
    free(text);
    return most;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint64_t header_bytes, file_bytes;
    read_file(data, bytes, bytes);
    if (bytes < K3_ST_PREFIX_BYTES)
        return 0;
    if (k3_add_fits(k3_load_le64(data), K3_ST_PREFIX_BYTES, &header_bytes) &&
        k3_add_fits(header_bytes, wanted_data_bytes(data, bytes), &file_bytes) &&
        file_bytes != bytes)
        read_file(data, bytes, file_bytes);
    return 0;
}
