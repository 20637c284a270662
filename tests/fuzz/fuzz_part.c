/* Purpose: fuzz target: the header of a part as the loader reads it.  An input is the JSON text of
 * a header; length, padding, unit digests, rank, part and plan digest are made to fit it.
 * Owns: a file in memory that every call writes anew.
 * Threads: one.
 * Errors: none; a broken promise aborts.
 * Invariants checked: accepted tensors and views tile the data of the part; pads are in no view but
 * at its end; names of tensors fit any room they are given. */
#include "fuzz.h"

#include "load_internal.h"
#include "set.h"
#include "sha256_blocks.h"
#include "tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNIT_COUNT_MAX 2u /* units of a header: one, and the step to more than one */

/* The text behind `word`; "" where there is none. */
static const char *behind(struct fuzz_span span, const char *word)
{
    const char *at = fuzz_find(span, word);
    return at ? at + strlen(word) : "";
}

static uint64_t number_at(const char *p)
{
    uint64_t value = 0;
    for (int i = 0; i < 18 && p[i] >= '0' && p[i] <= '9'; i++)
        value = value * 10 + (uint64_t)(p[i] - '0');
    return value;
}

/* End of the data: the last end in "data_offsets":[begin,end]. */
static uint64_t data_bytes_of(struct fuzz_span span)
{
    uint64_t most = 0;
    for (const char *at = behind(span, "data_offsets"); *at; at = behind(span, "data_offsets")) {
        span.bytes -= (size_t)(at - span.data);
        span.data += at - span.data;
        const char *comma = memchr(at, ',', span.bytes);
        uint64_t end = comma ? number_at(comma + 1) : 0;
        most = end > most ? end : most;
    }
    return most;
}

static void check_header(const struct k3_part_header *header, uint64_t data_bytes)
{
    const struct k3_st *st = header->st;
    uint64_t end_offset = 0, view_bytes = 0, tensor_bytes = 0;
    for (uint32_t i = 0; i < st->tensor_count; i++) {
        FUZZ_CHECK(st->tensors[i].begin_offset == end_offset);
        end_offset = st->tensors[i].end_offset;
        if (!k3_load_is_pad(&st->tensors[i]))
            tensor_bytes += end_offset - st->tensors[i].begin_offset;
    }
    FUZZ_CHECK(end_offset == data_bytes);
    end_offset = 0;
    for (uint32_t i = 0; i < header->view_count; i++) {
        FUZZ_CHECK(header->views[i].begin_offset >= end_offset);
        FUZZ_CHECK(header->views[i].end_offset > header->views[i].begin_offset);
        end_offset = header->views[i].end_offset;
        view_bytes += end_offset - header->views[i].begin_offset;
    }
    FUZZ_CHECK(end_offset <= data_bytes && view_bytes >= tensor_bytes);
    for (size_t room = 1; room < 400; room += 57) {
        char *text = malloc(room);
        FUZZ_CHECK(text != NULL);
        k3_load_name_tensors(st, data_bytes / room, data_bytes, text, room);
        FUZZ_CHECK(memchr(text, 0, room) != NULL);
        free(text);
    }
}

/* Put the header into the file and its unit digests beside it; false where it is too long. */
static bool make_file(int fd, struct fuzz_span json, struct k3_part_entry *part, uint8_t *digests)
{
    uint64_t header_bytes = k3_align_up(json.bytes + K3_ST_PREFIX_BYTES, K3_UNIT_BYTES);
    if (header_bytes > UNIT_COUNT_MAX * K3_UNIT_BYTES)
        return false;
    char *header = malloc(header_bytes);
    struct k3_sha256 *sha;
    FUZZ_CHECK(header != NULL && k3_sha256_open(&sha, NULL) == 0);
    memset(header, ' ', header_bytes);
    k3_store_le64(header, header_bytes - K3_ST_PREFIX_BYTES);
    memcpy(header + K3_ST_PREFIX_BYTES, json.data, json.bytes);
    for (uint64_t unit = 0; unit < header_bytes / K3_UNIT_BYTES; unit++)
        k3_unit_digest(sha, header + unit * K3_UNIT_BYTES, K3_UNIT_BYTES,
                       digests + unit * K3_DIGEST_BYTES);
    k3_sha256_close(sha);
    FUZZ_CHECK(pwrite(fd, header, header_bytes, 0) == (ssize_t)header_bytes);
    free(header);
    part->data_offset = header_bytes;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int fd = -1;
    uint32_t place = 0;
    struct k3_dir dir = {.fd = -1, .path = (char[]){"fuzz"}};
    struct k3_set set = {.dirs = &dir, .dir_count = 1, .dir_of_place = &place};
    uint8_t digests[UNIT_COUNT_MAX * K3_DIGEST_BYTES];
    struct k3_part_header header;
    struct k3_part_entry part = {0};
    struct k3_err err;
    if (fd < 0) {
        fd = memfd_create("fuzz_part", 0);
        k3_sha256_force(K3_SHA256_LIBCRYPTO); /* no sanitizer slows it down: 200 times the speed */
    }
    FUZZ_CHECK(fd >= 0);
    char *text = fuzz_string(data, bytes);
    struct fuzz_span json = {text, bytes};
    if (make_file(fd, json, &part, digests)) {
        uint64_t data_bytes = data_bytes_of(json);
        part.rank = (uint32_t)number_at(behind(json, "\"k3.rank\":\""));
        part.part = (uint32_t)number_at(behind(json, "\"k3.part\":\""));
        part.bytes = part.data_offset + data_bytes;
        const char *hex = behind(json, "\"k3.plan\":\"");
        if (strnlen(hex, 2 * K3_DIGEST_BYTES) == 2 * K3_DIGEST_BYTES)
            k3_hex_decode(hex, K3_DIGEST_BYTES, set.manifest.plan_digest);
        k3_err_init(&err);
        int rc = k3_set_part_header(&set, &part, fd, digests, &header, &err);
        fuzz_check_err(rc, &err, INT64_MAX); /* a hole is where the header says */
        if (rc)
            FUZZ_CHECK(header.st == NULL && header.views == NULL);
        else
            check_header(&header, data_bytes);
        k3_part_header_fini(&header);
        digests[bytes % K3_DIGEST_BYTES] ^= 1;
        k3_err_init(&err);
        rc = k3_set_part_header(&set, &part, fd, digests, &header, &err);
        FUZZ_CHECK(rc == K3_ECORRUPT && header.st == NULL);
    }
    free(text);
    return 0;
}
