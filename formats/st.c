/* Purpose: strict decode of safetensors headers.
 * Owns: what a decoded header holds: tensors, metadata, names, the order by name.
 * Threads: any; a decoded header never changes and may be shared.
 * Errors: K3_EFORMAT, K3_ELIMIT, K3_ECORRUPT (sizes), K3_ENOMEM; with file and, but for the last,
 * byte.
 * Invariants: tensors of a decoded header are sorted and tile [0, data_bytes) without hole or
 * overlap; the size of each is that of its shape and dtype; 8 + N + data_bytes is the size of the
 * file; names are legal and unique.  Memory is in proportion to the header that was given,
 * whatever numbers stand in it. */
#include "st.h"

#include "bytes.h"
#include "json_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEPTH_MAX     4u             /* FORMAT.md 1; header, tensor and shape make 3 */
#define FIRST_TENSORS 64u            /* first room; it doubles */
#define FIRST_META    16u            /* a part of K3 has about 30 views */
#define PLACE_BYTES   sizeof(void *) /* an element of by_name */
#define HEADER_MIN    2u             /* {} */
#define LFS_TAG       "version https://git-lfs.github.com/spec/"
#define LFS_TEXT_MAX  256u /* a pointer has about 130 bytes */
#define NUMBER_MAX    20   /* digits of a size in an LFS pointer that are shown: 64 bits */

#define ADVICE "download it again"

/* What k3_st_decode really returns: the public part first. */
struct whole {
    struct k3_st st;
    const struct k3_st_tensor **by_name;
    struct k3_text names;     /* tensor names, each with its NUL, in the order of the text */
    struct k3_text meta_text; /* key, NUL, value, NUL, ... */
    uint32_t tensor_cap;
    uint32_t meta_cap;
};

struct decode {
    struct whole *whole;
    struct k3_json *json;
    struct k3_err *err;
    const char *file;
    uint64_t file_bytes;
};

/* ---- what a file is that is no safetensors file ---- */

static const struct {
    const char *magic;
    size_t bytes;
    const char *what;
} kind[] = {
    {"PK\x03\x04", 4, "a ZIP file (perhaps a PyTorch checkpoint)"},
    {"\x80\x02", 2, "a pickle (perhaps a PyTorch checkpoint)"},
    {"\x80\x03", 2, "a pickle"},
    {"\x80\x04", 2, "a pickle"},
    {"\x80\x05", 2, "a pickle"},
    {"GGUF", 4, "a GGUF file"},
    {"\x1f\x8b", 2, "a gzip file"},
    {"\x28\xb5\x2f\xfd", 4, "a zstd file"},
    {"\x89HDF", 4, "an HDF5 file"},
    {"{", 1, "JSON text, perhaps the error message of a server"},
};

/* Start of an HTML or XML page, such as servers send instead of a file. */
static bool is_page(const char *text, size_t bytes)
{
    static const char *const start[] = {"<!doctype html", "<html", "<?xml", "<error>"};
    size_t at = 0;
    while (at < bytes &&
           (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t'))
        at++;
    for (size_t i = 0; i < sizeof start / sizeof *start; i++) {
        size_t length = strlen(start[i]);
        if (bytes - at >= length && !strncasecmp(text + at, start[i], length))
            return true;
    }
    return false;
}

static int fail_lfs(const char *file, const char *prefix, size_t bytes, struct k3_err *err)
{
    char text[LFS_TEXT_MAX + 1];
    char shown[2][K3_SHOWN_BYTES];
    size_t length = bytes < LFS_TEXT_MAX ? bytes : LFS_TEXT_MAX;
    memcpy(text, prefix, length);
    text[length] = 0;
    const char *oid = strstr(text, "\noid sha256:");
    const char *size = strstr(text, "\nsize ");
    oid = oid ? oid + strlen("\noid sha256:") : "unknown";
    size = size ? size + strlen("\nsize ") : "unknown";
    size_t oid_bytes = strcspn(oid, "\r\n");
    size_t size_bytes = strcspn(size, "\r\n");
    if (oid_bytes > K3_HEX_BYTES - 1)
        oid_bytes = K3_HEX_BYTES - 1;
    if (size_bytes > NUMBER_MAX)
        size_bytes = NUMBER_MAX;
    return k3_fail_at(err, K3_EFORMAT, file, 0,
                      "%s: a Git LFS pointer, not the file itself: expected is SHA-256 %s, size %s "
                      "bytes; fetch the file (git lfs pull)",
                      file, k3_shown(oid, oid_bytes, shown[0]),
                      k3_shown(size, size_bytes, shown[1]));
}

/* Fails by name where the bytes are of a known other kind; else 0. */
static int name_kind(const char *file, const char *prefix, size_t bytes, struct k3_err *err)
{
    if (bytes >= strlen(LFS_TAG) && !memcmp(prefix, LFS_TAG, strlen(LFS_TAG)))
        return fail_lfs(file, prefix, bytes, err);
    const char *what = is_page(prefix, bytes)
                           ? "an HTML or XML page, perhaps the answer of a server"
                           : NULL;
    for (size_t i = 0; i < sizeof kind / sizeof *kind && !what; i++)
        if (bytes >= kind[i].bytes && !memcmp(prefix, kind[i].magic, kind[i].bytes))
            what = kind[i].what;
    if (!what)
        return 0;
    return k3_fail_at(err, K3_EFORMAT, file, 0, "%s: not a safetensors file but %s; " ADVICE, file,
                      what);
}

static int judge_length(const char *file, uint64_t length, uint64_t file_bytes, struct k3_err *err)
{
    if (length > K3_ST_HEADER_BYTES_MAX)
        return k3_fail_at(err, K3_ELIMIT, file, 0,
                          "%s: the header length is %" PRIu64
                          ", at most %u is allowed, so this is no "
                          "safetensors file or a damaged one; " ADVICE,
                          file, length, K3_ST_HEADER_BYTES_MAX);
    if (length > file_bytes - K3_ST_PREFIX_BYTES)
        return k3_fail_at(err, K3_EFORMAT, file, 0,
                          "%s: a header of %" PRIu64 " bytes is announced, %" PRIu64
                          " bytes follow: cut "
                          "off or damaged; " ADVICE,
                          file, length, file_bytes - K3_ST_PREFIX_BYTES);
    if (length < HEADER_MIN)
        return k3_fail_at(err, K3_EFORMAT, file, 0,
                          "%s: the header length is %" PRIu64
                          ", the shortest header has 2 bytes; " ADVICE,
                          file, length);
    return 0;
}

int k3_st_header_bytes(const char *file, const void *prefix, size_t bytes, uint64_t file_bytes,
                       uint64_t *header_bytes, struct k3_err *err)
{
    *header_bytes = 0;
    if (bytes > file_bytes)
        bytes = (size_t)file_bytes;
    if (bytes < K3_ST_PREFIX_BYTES)
        return k3_fail_at(err, K3_EFORMAT, file, 0,
                          "%s: only %zu bytes, the shortest safetensors file has 10; " ADVICE, file,
                          bytes);
    uint64_t length = k3_load_le64(prefix);
    const char *text = prefix;
    if (!length && k3_is_zero(prefix, bytes))
        return k3_fail_at(err, K3_EFORMAT, file, 0,
                          "%s: the file begins with zeros: lost writes or a failed upload; " ADVICE,
                          file);
    bool is_legal = length >= HEADER_MIN && length <= K3_ST_HEADER_BYTES_MAX &&
                    length <= file_bytes - K3_ST_PREFIX_BYTES;
    bool has_brace = bytes <= K3_ST_PREFIX_BYTES || text[K3_ST_PREFIX_BYTES] == '{';
    int rc = 0;
    if (!is_legal || !has_brace)
        rc = name_kind(file, text, bytes, err);
    if (!rc)
        rc = judge_length(file, length, file_bytes, err);
    if (!rc && !has_brace) {
        char shown[K3_SHOWN_BYTES];
        rc = k3_fail_at(err, K3_EFORMAT, file, K3_ST_PREFIX_BYTES,
                        "%s: byte 8: the header must begin with '{', found '%s'; " ADVICE, file,
                        k3_shown(text + K3_ST_PREFIX_BYTES, 1, shown));
    }
    if (!rc)
        *header_bytes = K3_ST_PREFIX_BYTES + length;
    return rc;
}

/* ---- tokens ---- */

/* Members of a tensor, in the order of the reference library. */
enum field { FIELD_DTYPE, FIELD_SHAPE, FIELD_OFFSETS, FIELD_COUNT };
static const char *const field_name[FIELD_COUNT] = {"dtype", "shape", "data_offsets"};

static int fail_tensor(const struct decode *decode, size_t offset, const char *name,
                       const char *what)
{
    return k3_fail_at(decode->err, K3_EFORMAT, decode->file, (int64_t)offset,
                      "%s: byte %zu: tensor \"%s\": %s; " ADVICE, decode->file, offset, name, what);
}

/* The next token, which must be of `type`; `where` and `what` name the place in a message. */
static int want(const struct decode *decode, enum k3_json_type type, const char *where,
                const char *what, struct k3_json_token *token)
{
    int rc = k3_json_next(decode->json, token, decode->err);
    if (rc || token->type == type)
        return rc;
    return k3_fail_at(decode->err, K3_EFORMAT, decode->file, (int64_t)token->offset,
                      "%s: byte %zu: %s: %s: wanted %s, found %s; " ADVICE, decode->file,
                      token->offset, where, what, k3_json_type_name(type),
                      k3_json_type_name(token->type));
}

static bool is_text(const struct k3_json_token *token, const char *text)
{
    return token->bytes == strlen(text) && !memcmp(token->text, text, token->bytes);
}

/* Grow an array of `size`-byte elements so that one more fits. */
static bool grow(void **array, uint32_t count, uint32_t *cap, uint32_t first_cap, size_t size)
{
    if (count < *cap)
        return true;
    uint32_t wanted = *cap ? *cap * 2 : first_cap; /* counts are limited far below 2^31 */
    void *grown = realloc(*array, wanted * size);
    if (!grown)
        return false;
    *array = grown;
    *cap = wanted;
    return true;
}

static int fail_memory(const struct decode *decode)
{
    return k3_fail(decode->err, K3_ENOMEM,
                   "%s: no memory for the header; free some memory and run again", decode->file);
}

/* ---- the members of the header ---- */

static int read_dtype(const struct decode *decode, struct k3_st_tensor *tensor, const char *name)
{
    struct k3_json_token token;
    enum k3_dtype dtype;
    int rc = want(decode, K3_JSON_STRING, name, "dtype", &token);
    if (rc)
        return rc;
    if (!k3_dtype_find(token.text, token.bytes, &dtype)) {
        char shown[K3_SHOWN_BYTES];
        return k3_fail_at(decode->err, K3_EFORMAT, decode->file, (int64_t)token.offset,
                          "%s: byte %zu: tensor \"%s\": the dtype \"%s\" is not known; " ADVICE,
                          decode->file, token.offset, name,
                          k3_shown(token.text, token.bytes, shown));
    }
    tensor->dtype = (uint8_t)dtype;
    return 0;
}

static int read_shape(const struct decode *decode, struct k3_st_tensor *tensor, const char *name)
{
    struct k3_json_token token;
    int rc = want(decode, K3_JSON_ARRAY_BEGIN, name, "shape", &token);
    while (!rc) {
        rc = k3_json_next(decode->json, &token, decode->err);
        if (rc || token.type == K3_JSON_ARRAY_END)
            return rc;
        if (token.type != K3_JSON_INTEGER)
            return fail_tensor(
                decode, token.offset, name,
                "each item of shape must be an integer from 0 to 2^64-1, as plain digits");
        if (tensor->dim_count == K3_ST_DIM_COUNT_MAX)
            return k3_fail_at(decode->err, K3_ELIMIT, decode->file, (int64_t)token.offset,
                              "%s: byte %zu: tensor \"%s\": more than %u dimensions; " ADVICE,
                              decode->file, token.offset, name, K3_ST_DIM_COUNT_MAX);
        tensor->shape[tensor->dim_count++] = token.integer;
    }
    return rc;
}

static int read_offsets(const struct decode *decode, struct k3_st_tensor *tensor, const char *name)
{
    static const char two[] = "data_offsets must be two integers from 0 to 2^64-1, as plain digits";
    struct k3_json_token token;
    uint64_t *const place[2] = {&tensor->begin_offset, &tensor->end_offset};
    int rc = want(decode, K3_JSON_ARRAY_BEGIN, name, "data_offsets", &token);
    for (size_t i = 0; i < 2 && !rc; i++) {
        rc = k3_json_next(decode->json, &token, decode->err);
        if (!rc && token.type != K3_JSON_INTEGER)
            rc = fail_tensor(decode, token.offset, name, two);
        *place[i] = token.integer;
    }
    if (!rc)
        rc = k3_json_next(decode->json, &token, decode->err);
    if (!rc && token.type != K3_JSON_ARRAY_END)
        rc = fail_tensor(decode, token.offset, name, two);
    if (!rc && tensor->end_offset < tensor->begin_offset)
        rc = fail_tensor(decode, token.offset, name, "data_offsets end before they begin");
    return rc;
}

/* Bytes of shape and dtype; false where they do not fit 64 bits or are no whole number.  Dimensions
 * of 0 count as 1 in the product, so a wrap cannot hide behind a zero in any order. */
static bool shape_bytes(const struct k3_st_tensor *tensor, uint64_t *bytes)
{
    uint64_t count = 1;
    bool is_empty = false;
    for (unsigned i = 0; i < tensor->dim_count; i++) {
        uint64_t dim = tensor->shape[i];
        is_empty = is_empty || !dim;
        if (!k3_mul_fits(count, dim ? dim : 1, &count))
            return false;
    }
    uint64_t bits;
    if (!k3_mul_fits(count, k3_dtype_bits((enum k3_dtype)tensor->dtype), &bits))
        return false;
    *bytes = is_empty ? 0 : bits / 8;
    return is_empty || bits % 8 == 0;
}

static int judge_size(const struct decode *decode, const struct k3_st_tensor *tensor,
                      const char *name, size_t offset)
{
    uint64_t bytes;
    if (!shape_bytes(tensor, &bytes))
        return fail_tensor(
            decode, offset, name,
            "shape and dtype give a size beyond 2^64 bits or no whole number of bytes");
    uint64_t held_bytes = tensor->end_offset - tensor->begin_offset;
    if (bytes == held_bytes)
        return 0;
    return k3_fail_at(decode->err, K3_EFORMAT, decode->file, (int64_t)offset,
                      "%s: byte %zu: tensor \"%s\": shape and dtype give %" PRIu64
                      " bytes, data_offsets %" PRIu64 "; " ADVICE,
                      decode->file, offset, name, bytes, held_bytes);
}

/* The members of a tensor behind its '{', and their sum: the size. */
static int read_fields(const struct decode *decode, struct k3_st_tensor *tensor, const char *name,
                       size_t offset)
{
    static int (*const read[FIELD_COUNT])(const struct decode *, struct k3_st_tensor *,
                                          const char *) = {read_dtype, read_shape, read_offsets};
    struct k3_json_token token;
    bool seen[FIELD_COUNT] = {false};
    for (;;) {
        int rc = k3_json_next(decode->json, &token, decode->err);
        if (rc)
            return rc;
        if (token.type == K3_JSON_OBJECT_END)
            break;
        unsigned i = 0;
        while (i < FIELD_COUNT && !is_text(&token, field_name[i]))
            i++;
        if (i == FIELD_COUNT)
            return fail_tensor(decode, token.offset, name,
                               "a member that is not dtype, shape or data_offsets");
        seen[i] = true;
        rc = read[i](decode, tensor, name);
        if (rc)
            return rc;
    }
    if (!seen[FIELD_DTYPE])
        return fail_tensor(decode, offset, name, "dtype is missing");
    if (!seen[FIELD_SHAPE])
        return fail_tensor(decode, offset, name, "shape is missing");
    if (!seen[FIELD_OFFSETS])
        return fail_tensor(decode, offset, name, "data_offsets are missing");
    return judge_size(decode, tensor, name, offset);
}

/* 1 for the characters of FORMAT.md 1.  A table, since an index is 50 MB of names. */
static const uint8_t name_class[256] = {
    ['-'] = 1, ['.'] = 1, ['/'] = 1, ['0'] = 1, ['1'] = 1, ['2'] = 1, ['3'] = 1, ['4'] = 1,
    ['5'] = 1, ['6'] = 1, ['7'] = 1, ['8'] = 1, ['9'] = 1, ['A'] = 1, ['B'] = 1, ['C'] = 1,
    ['D'] = 1, ['E'] = 1, ['F'] = 1, ['G'] = 1, ['H'] = 1, ['I'] = 1, ['J'] = 1, ['K'] = 1,
    ['L'] = 1, ['M'] = 1, ['N'] = 1, ['O'] = 1, ['P'] = 1, ['Q'] = 1, ['R'] = 1, ['S'] = 1,
    ['T'] = 1, ['U'] = 1, ['V'] = 1, ['W'] = 1, ['X'] = 1, ['Y'] = 1, ['Z'] = 1, ['_'] = 1,
    ['a'] = 1, ['b'] = 1, ['c'] = 1, ['d'] = 1, ['e'] = 1, ['f'] = 1, ['g'] = 1, ['h'] = 1,
    ['i'] = 1, ['j'] = 1, ['k'] = 1, ['l'] = 1, ['m'] = 1, ['n'] = 1, ['o'] = 1, ['p'] = 1,
    ['q'] = 1, ['r'] = 1, ['s'] = 1, ['t'] = 1, ['u'] = 1, ['v'] = 1, ['w'] = 1, ['x'] = 1,
    ['y'] = 1, ['z'] = 1,
};

bool k3_st_is_name(const char *name, size_t bytes)
{
    uint8_t all = 1;
    if (bytes < 1 || bytes > K3_ST_NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < bytes; i++)
        all &= name_class[(uint8_t)name[i]];
    return all;
}

/* One tensor; key is its name. */
static int read_tensor(const struct decode *decode, const struct k3_json_token *key)
{
    struct whole *whole = decode->whole;
    struct k3_st *st = &whole->st;
    if (!k3_st_is_name(key->text, key->bytes)) {
        char shown[K3_SHOWN_BYTES];
        return k3_fail_at(
            decode->err, K3_EFORMAT, decode->file, (int64_t)key->offset,
            "%s: byte %zu: the tensor name \"%s\" is refused: wanted 1 to %u characters of "
            "A-Z a-z 0-9 _ . - /; " ADVICE,
            decode->file, key->offset, k3_shown(key->text, key->bytes, shown),
            K3_ST_NAME_BYTES_MAX);
    }
    if (st->tensor_count == K3_ST_TENSOR_COUNT_MAX)
        return k3_fail_at(decode->err, K3_ELIMIT, decode->file, (int64_t)key->offset,
                          "%s: byte %zu: more than %u tensors; " ADVICE, decode->file, key->offset,
                          K3_ST_TENSOR_COUNT_MAX);
    void *tensors = st->tensors;
    bool fits = grow(&tensors, st->tensor_count, &whole->tensor_cap, FIRST_TENSORS,
                     sizeof *st->tensors);
    st->tensors = tensors;
    size_t name_at = whole->names.bytes;
    k3_text_put(&whole->names, key->text, key->bytes);
    k3_text_put(&whole->names, "", 1);
    if (!fits || whole->names.failed)
        return fail_memory(decode);
    struct k3_st_tensor *tensor = &st->tensors[st->tensor_count];
    *tensor = (struct k3_st_tensor){.name_bytes = (uint32_t)key->bytes};
    const char *name = whole->names.data + name_at; /* moves with the next name: see set_names */
    struct k3_json_token token;
    size_t offset = key->offset;
    int rc = want(decode, K3_JSON_OBJECT_BEGIN, name, "a tensor", &token);
    if (!rc)
        rc = read_fields(decode, tensor, name, offset);
    if (!rc)
        st->tensor_count++;
    return rc;
}

static int read_meta(const struct decode *decode)
{
    struct whole *whole = decode->whole;
    struct k3_json_token token;
    int rc = want(decode, K3_JSON_OBJECT_BEGIN, "__metadata__", "the map", &token);
    while (!rc) {
        rc = k3_json_next(decode->json, &token, decode->err);
        if (rc || token.type == K3_JSON_OBJECT_END)
            return rc;
        void *meta = whole->st.meta;
        bool fits = grow(&meta, whole->st.meta_count, &whole->meta_cap, FIRST_META,
                         sizeof *whole->st.meta);
        whole->st.meta = meta;
        k3_text_put(&whole->meta_text, token.text, token.bytes);
        k3_text_put(&whole->meta_text, "", 1);
        rc = want(decode, K3_JSON_STRING, "__metadata__", "a value", &token);
        if (rc)
            return rc;
        k3_text_put(&whole->meta_text, token.text, token.bytes);
        k3_text_put(&whole->meta_text, "", 1);
        if (!fits || whole->meta_text.failed)
            return fail_memory(decode);
        whole->st.meta_count++;
    }
    return rc;
}

static int read_header(const struct decode *decode)
{
    struct k3_json_token token;
    int rc = want(decode, K3_JSON_OBJECT_BEGIN, "the header", "the document", &token);
    while (!rc) {
        rc = k3_json_next(decode->json, &token, decode->err);
        if (rc || token.type == K3_JSON_OBJECT_END)
            break;
        rc = is_text(&token, "__metadata__") ? read_meta(decode) : read_tensor(decode, &token);
    }
    return rc ? rc : want(decode, K3_JSON_END, "the header", "behind the document", &token);
}

/* ---- the whole ---- */

/* The arenas rest now: point at the strings in them, which lie in the order of the text. */
static void set_names(struct whole *whole)
{
    const char *at = whole->names.data;
    for (uint32_t i = 0; i < whole->st.tensor_count; i++) {
        whole->st.tensors[i].name = at;
        at += whole->st.tensors[i].name_bytes + 1;
    }
    at = whole->meta_text.data;
    for (uint32_t i = 0; i < whole->st.meta_count; i++) {
        whole->st.meta[i].key = at;
        at += strlen(at) + 1;
        whole->st.meta[i].value = at;
        at += strlen(at) + 1;
    }
}

static int compare_places(const void *a, const void *b)
{
    const struct k3_st_tensor *left = a, *right = b;
    if (left->begin_offset != right->begin_offset)
        return left->begin_offset < right->begin_offset ? -1 : 1;
    if (left->end_offset != right->end_offset)
        return left->end_offset < right->end_offset ? -1 : 1;
    return strcmp(left->name, right->name);
}

static int compare_names(const void *a, const void *b)
{
    const struct k3_st_tensor *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

/* qsort, spared where the elements are in order already, as writers leave them. */
static void sort(void *array, size_t count, size_t size, int (*compare)(const void *, const void *))
{
    const char *at = array;
    for (size_t i = 1; i < count; i++) {
        if (compare(at + (i - 1) * size, at + i * size) > 0) {
            qsort(array, count, size, compare);
            return;
        }
    }
}

static int sort_tensors(const struct decode *decode)
{
    struct whole *whole = decode->whole;
    struct k3_st *st = &whole->st;
    sort(st->tensors, st->tensor_count, sizeof *st->tensors, compare_places);
    whole->by_name = malloc(st->tensor_count * PLACE_BYTES);
    if (!whole->by_name)
        return fail_memory(decode);
    for (uint32_t i = 0; i < st->tensor_count; i++)
        whole->by_name[i] = &st->tensors[i];
    sort(whole->by_name, st->tensor_count, PLACE_BYTES, compare_names);
    return 0;
}

/* Tensors must tile the data section: no hole, no overlap. */
static int judge_tiling(const struct decode *decode)
{
    struct k3_st *st = &decode->whole->st;
    for (uint32_t i = 0; i < st->tensor_count; i++) {
        const struct k3_st_tensor *tensor = &st->tensors[i];
        if (tensor->begin_offset == st->data_bytes) {
            st->data_bytes = tensor->end_offset;
            continue;
        }
        bool is_hole = tensor->begin_offset > st->data_bytes;
        uint64_t place = is_hole ? st->data_bytes : tensor->begin_offset;
        uint64_t file_place;
        int64_t offset = -1;
        if (k3_add_fits(st->data_offset, place, &file_place) && file_place <= INT64_MAX)
            offset = (int64_t)file_place;
        return k3_fail_at(decode->err, K3_EFORMAT, decode->file, offset,
                          "%s: tensor \"%s\": its data begin at %" PRIu64
                          ", the tensors before it end at %" PRIu64 ": %s; " ADVICE,
                          decode->file, tensor->name, tensor->begin_offset, st->data_bytes,
                          is_hole ? "bytes of no tensor lie between" : "the two overlap");
    }
    return 0;
}

static int judge_file_size(const struct decode *decode)
{
    const struct k3_st *st = &decode->whole->st;
    uint64_t held_bytes = decode->file_bytes - st->data_offset; /* header_bytes checked the order */
    if (held_bytes < st->data_bytes)
        return k3_fail_at(decode->err, K3_ECORRUPT, decode->file, (int64_t)decode->file_bytes,
                          "%s: %" PRIu64 " bytes are missing: the header describes %" PRIu64
                          " bytes of data, the file holds %" PRIu64 "; " ADVICE,
                          decode->file, st->data_bytes - held_bytes, st->data_bytes, held_bytes);
    if (held_bytes > st->data_bytes)
        return k3_fail_at(
            decode->err, K3_ECORRUPT, decode->file, (int64_t)(st->data_offset + st->data_bytes),
            "%s: %" PRIu64 " bytes follow the last tensor: the header describes %" PRIu64
            " bytes of data, the file holds %" PRIu64 "; " ADVICE,
            decode->file, held_bytes - st->data_bytes, st->data_bytes, held_bytes);
    return 0;
}

/* The JSON text of a header without the spaces behind it. */
static int trim(const struct decode *decode, const char *header, size_t bytes, size_t *text_bytes)
{
    size_t end = bytes;
    while (end > K3_ST_PREFIX_BYTES && header[end - 1] == ' ' &&
           bytes - end <= K3_ST_PADDING_BYTES_MAX)
        end--;
    if (bytes - end > K3_ST_PADDING_BYTES_MAX)
        return k3_fail_at(decode->err, K3_ELIMIT, decode->file, (int64_t)end,
                          "%s: more than %u spaces behind the header's text; " ADVICE, decode->file,
                          K3_ST_PADDING_BYTES_MAX);
    *text_bytes = end - K3_ST_PREFIX_BYTES;
    char last = header[end - 1];
    if (last == '\n' || last == '\r' || last == '\t')
        return k3_fail_at(decode->err, K3_EFORMAT, decode->file, (int64_t)end - 1,
                          "%s: byte %zu: only spaces may follow the header's text; " ADVICE,
                          decode->file, end - 1);
    return 0;
}

static int decode_text(struct decode *decode, const char *header, size_t bytes)
{
    struct k3_st *st = &decode->whole->st;
    size_t text_bytes = 0;
    int rc = trim(decode, header, bytes, &text_bytes);
    if (!rc)
        rc = k3_json_open(decode->file, header + K3_ST_PREFIX_BYTES, text_bytes, DEPTH_MAX,
                          &decode->json, decode->err);
    if (rc)
        return rc;
    k3_json_set_base(decode->json, K3_ST_PREFIX_BYTES);
    rc = read_header(decode);
    k3_json_close(decode->json);
    if (!rc && !st->tensor_count)
        rc = k3_fail_at(decode->err, K3_EFORMAT, decode->file, K3_ST_PREFIX_BYTES,
                        "%s: the header names no tensor; " ADVICE, decode->file);
    if (rc)
        return rc;
    set_names(decode->whole);
    rc = sort_tensors(decode);
    if (!rc)
        rc = judge_tiling(decode);
    return rc ? rc : judge_file_size(decode);
}

int k3_st_decode(const char *file, const void *header, size_t bytes, uint64_t file_bytes,
                 struct k3_st **out, struct k3_err *err)
{
    *out = NULL;
    uint64_t header_bytes;
    int rc = k3_st_header_bytes(file, header, bytes, file_bytes, &header_bytes, err);
    if (rc)
        return rc;
    if (header_bytes != bytes)
        return k3_fail_at(err, K3_EFORMAT, file, 0,
                          "%s: a header of %" PRIu64
                          " bytes is announced, %zu were read: the file changed "
                          "meanwhile; run again",
                          file, header_bytes, bytes);
    struct decode decode = {.file = file, .file_bytes = file_bytes, .err = err};
    decode.whole = calloc(1, sizeof *decode.whole);
    if (!decode.whole)
        return fail_memory(&decode);
    decode.whole->st.data_offset = header_bytes;
    rc = decode_text(&decode, header, bytes);
    if (rc)
        k3_st_free(&decode.whole->st);
    else
        *out = &decode.whole->st;
    return rc;
}

void k3_st_free(struct k3_st *st)
{
    if (!st)
        return;
    struct whole *whole = (struct whole *)st; /* st is its first member */
    free(st->tensors);
    free(st->meta);
    free(whole->by_name);
    k3_text_fini(&whole->names);
    k3_text_fini(&whole->meta_text);
    free(whole);
}

const struct k3_st_tensor *k3_st_find(const struct k3_st *st, const char *name)
{
    const struct whole *whole = (const struct whole *)st;
    uint32_t low = 0, high = st->tensor_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, whole->by_name[middle]->name);
        if (!order)
            return whole->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *k3_st_meta_find(const struct k3_st *st, const char *key)
{
    for (uint32_t i = 0; i < st->meta_count; i++)
        if (!strcmp(st->meta[i].key, key))
            return st->meta[i].value;
    return NULL;
}
