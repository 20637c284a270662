/* Purpose: what all verifications share: findings, judged failures, headers, streaming digests;
 * and the lone file.
 * Owns: the findings of a run.
 * Threads: the findings belong to one thread; workers collect their own and hand them over.
 * Errors: K3_EIO, K3_ENOMEM; what is wrong with data is a finding, not an error.
 * Invariant: a failure is either returned or listed, never both and never neither. */
#include "verify.h"

#include "ckpt.h"
#include "manifest.h"
#include "sha256.h"
#include "source_headers.h"
#include "units.h"
#include "zst.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STREAM_BYTES   (1u << 20)  /* large enough to be free of call cost, small enough for L2 */
#define PREFIX_BYTES   512u        /* enough for k3_st_header_bytes to name what a file really is */
#define DROP_BYTES_MIN (64u << 20) /* smaller files crowd nobody out of the page cache */
#define PHRASE_BYTES   256u

void k3_verify_init(struct k3_verify *verify)
{
    memset(verify, 0, sizeof *verify);
    k3_problems_init(&verify->problems);
    k3_problems_init(&verify->notices);
    k3_text_init(&verify->subject);
    k3_text_init(&verify->checked);
    k3_text_init(&verify->unproved);
    k3_text_init(&verify->next);
}

void k3_verify_fini(struct k3_verify *verify)
{
    for (uint32_t i = 0; i < verify->bad_kept; i++) {
        struct k3_bad_unit *bad = &verify->bad[i];
        for (uint32_t t = 0; t < bad->tensor_count; t++)
            free(bad->tensors[t]);
        free(bad->tensors);
        free(bad->file);
    }
    free(verify->bad);
    k3_problems_fini(&verify->problems);
    k3_problems_fini(&verify->notices);
    k3_text_fini(&verify->subject);
    k3_text_fini(&verify->checked);
    k3_text_fini(&verify->unproved);
    k3_text_fini(&verify->next);
}

void k3_verify_say(struct k3_text *text, const char *format, ...)
{
    char *sentence = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&sentence, format, args);
    va_end(args);
    if (length < 0) {
        text->failed = true; /* k3_text_check says so */
        return;
    }
    if (!text->bytes || !strstr(text->data, sentence)) /* of several PATHs each says the same */
        k3_text_putf(text, "%s%s", text->bytes ? "; " : "", sentence);
    free(sentence);
}

void k3_verify_checked(struct k3_verify *verify, const char *format, ...)
{
    char phrase[PHRASE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(phrase, sizeof phrase, format, args);
    va_end(args);
    if (verify->checked.bytes)
        k3_text_puts(&verify->checked, ", ");
    k3_text_puts(&verify->checked, phrase);
}

int k3_verify_judge(struct k3_problems *problems, int rc, struct k3_err *inner, struct k3_err *err)
{
    if (rc == 0)
        return 0;
    /* A file that is not there is a finding: the set or checkpoint is incomplete. */
    bool is_gone = rc == K3_EIO && (inner->sys_errno == ENOENT || inner->sys_errno == ENOTDIR);
    if (k3_exit_code(rc) == 3 || is_gone) {
        k3_problems_add(problems, "%s", inner->text);
        k3_err_init(inner);
        return 0;
    }
    if (err && !err->rc)
        *err = *inner;
    k3_err_init(inner);
    return rc;
}

/* ---- bad units ---- */

bool k3_verify_is_pad(const struct k3_st_tensor *tensor)
{
    return !strncmp(tensor->name, "k3.pad.", 7);
}

/* Pads are no tensors: what touches them alone is said to be padding, as load says it. */
static bool touches(const struct k3_st_tensor *tensor, uint64_t begin, uint64_t end)
{
    return tensor->begin_offset < end && tensor->end_offset > begin && !k3_verify_is_pad(tensor);
}

static int add_name(struct k3_bad_unit *bad, const char *name, struct k3_err *err)
{
    bad->tensors[bad->tensor_count] = strdup(name);
    if (!bad->tensors[bad->tensor_count])
        return k3_fail(err, K3_ENOMEM, "no memory for the tensors of a bad unit");
    bad->tensor_count++;
    return 0;
}

/* Names of the tensors that touch [begin, end) of the data section. */
static int add_names(struct k3_bad_unit *bad, const struct k3_st *st, uint64_t begin, uint64_t end,
                     struct k3_err *err)
{
    uint32_t count = 0;
    int rc = 0;
    for (uint32_t t = 0; t < st->tensor_count; t++)
        count += touches(&st->tensors[t], begin, end);
    bad->tensors = calloc(count ? count : 1, sizeof *bad->tensors);
    if (!bad->tensors)
        return k3_fail(err, K3_ENOMEM, "no memory for the tensors of a bad unit");
    for (uint32_t t = 0; t < st->tensor_count && !rc; t++)
        if (touches(&st->tensors[t], begin, end))
            rc = add_name(bad, st->tensors[t].name, err);
    return rc || count ? rc : add_name(bad, "padding only", err);
}

static int add_header_name(struct k3_bad_unit *bad, struct k3_err *err)
{
    bad->tensors = calloc(1, sizeof *bad->tensors);
    return bad->tensors ? add_name(bad, "the header", err)
                        : k3_fail(err, K3_ENOMEM, "no memory for a bad unit");
}

int k3_verify_add_bad(struct k3_verify *verify, const struct k3_bad_place *place,
                      struct k3_err *err)
{
    verify->bad_count++;
    if (verify->bad_kept == K3_BAD_UNITS_KEPT_MAX)
        return 0;
    if (verify->bad_kept == verify->bad_cap) {
        uint32_t cap = verify->bad_cap ? verify->bad_cap * 2 : 16;
        struct k3_bad_unit *grown = realloc(verify->bad, cap * sizeof *grown);
        if (!grown)
            return k3_fail(err, K3_ENOMEM, "no memory for the list of bad units");
        verify->bad = grown;
        verify->bad_cap = cap;
    }
    struct k3_bad_unit *bad = &verify->bad[verify->bad_kept];
    memset(bad, 0, sizeof *bad);
    bad->file = strdup(place->file);
    if (!bad->file)
        return k3_fail(err, K3_ENOMEM, "no memory for the list of bad units");
    verify->bad_kept++; /* from here on k3_verify_fini frees it */
    bad->unit = place->unit;
    bad->offset = place->unit * K3_UNIT_BYTES;
    bad->bytes = place->bytes;
    if (bad->offset < place->data_offset)
        return add_header_name(bad, err);
    if (!place->st)
        return 0;
    uint64_t begin = bad->offset - place->data_offset;
    return add_names(bad, place->st, begin, begin + bad->bytes, err);
}

/* ---- files ---- */

/* The reader of headers knows published files, which are downloaded; a part of a set never was. */
static void fail_header(const char *name, const struct k3_err *why, struct k3_err *err)
{
    static const char download[] = "; download it again";
    uint32_t rank, part;
    const size_t bytes = strlen(why->text), tail = sizeof download - 1;
    struct k3_err own = *why;
    if (k3_part_name_decode(name, &rank, &part) && bytes > tail &&
        !strcmp(why->text + bytes - tail, download))
        snprintf(own.text + bytes - tail, sizeof own.text - (bytes - tail),
                 ": restore this part from a copy of its set, or make it again: k3-shard verify "
                 "of the set says how");
    k3_fail_as(err, &own);
}

int k3_verify_header(const char *name, int fd, uint64_t file_bytes, struct k3_st **st,
                     struct k3_err *err)
{
    uint8_t prefix[PREFIX_BYTES];
    uint8_t *header = NULL;
    uint64_t header_bytes = 0;
    size_t have = file_bytes < sizeof prefix ? (size_t)file_bytes : sizeof prefix;
    struct k3_err why;
    *st = NULL;
    k3_err_init(&why);
    int rc = k3_file_read(fd, name, prefix, have, 0, &why);
    if (!rc)
        rc = k3_st_header_bytes(name, prefix, have, file_bytes, &header_bytes, &why);
    if (rc) {
        fail_header(name, &why, err);
        return rc;
    }
    header = malloc((size_t)header_bytes);
    if (!header)
        return k3_fail(err, K3_ENOMEM, "no memory for the header of %s", name);
    rc = k3_file_read(fd, name, header, (size_t)header_bytes, 0, &why);
    if (!rc)
        rc = k3_st_decode(name, header, (size_t)header_bytes, file_bytes, st, &why);
    free(header);
    if (rc)
        fail_header(name, &why, err);
    return rc;
}

int k3_verify_sha256(const struct k3_dir *dir, const char *name, bool follow,
                     uint8_t digest[K3_DIGEST_BYTES], uint64_t *bytes, struct k3_err *err)
{
    struct k3_sha256 *sha = NULL;
    uint8_t *buffer = NULL;
    struct stat stat;
    int fd = -1;
    int rc = k3_file_open(dir, name, follow, &fd, &stat, err);
    if (!rc)
        rc = k3_sha256_open(&sha, err);
    if (rc)
        goto out;
    buffer = malloc(STREAM_BYTES);
    if (!buffer) {
        rc = k3_fail(err, K3_ENOMEM, "no memory to read %s", name);
        goto out;
    }
    *bytes = (uint64_t)stat.st_size;
    k3_sha256_begin(sha);
    for (uint64_t at = 0; at < *bytes; at += STREAM_BYTES) {
        size_t n = *bytes - at < STREAM_BYTES ? (size_t)(*bytes - at) : STREAM_BYTES;
        rc = k3_file_read(fd, name, buffer, n, at, err);
        if (rc)
            goto out;
        k3_sha256_update(sha, buffer, n);
        if (*bytes >= DROP_BYTES_MIN)
            k3_file_drop(fd, at, n);
    }
    k3_sha256_final(sha, digest);
out:
    free(buffer);
    k3_sha256_close(sha);
    if (fd >= 0)
        close(fd);
    return rc;
}

int k3_is_set_dir(const char *path, bool *found, struct k3_err *err)
{
    struct k3_err why;
    struct k3_dir dir;
    char **names = NULL;
    uint32_t count = 0, rank, part;
    *found = false;
    k3_err_init(&why);
    int rc = k3_dir_open(path, false, &dir, &why);
    if (rc && (why.sys_errno == ENOTDIR || why.sys_errno == ENOENT))
        return 0; /* a file; or who opens it says that it is not there */
    if (!rc)
        rc = k3_dir_list(&dir, &names, &count, &why);
    for (uint32_t i = 0; i < count && !*found; i++)
        *found = !strcmp(names[i], K3_MANIFEST_NAME) || !strcmp(names[i], K3_PARTIAL_NAME) ||
                 k3_part_name_decode(names[i], &rank, &part) ||
                 k3_units_name_decode(names[i], &rank);
    k3_names_free(names, count);
    k3_dir_close(&dir);
    return rc ? k3_fail(err, rc, "%s", why.text) : 0;
}

/* ---- a lone file ---- */

static int check_units_header(struct k3_verify *verify, const char *name, int fd,
                              uint64_t file_bytes, struct k3_err *err)
{
    struct k3_disk_units disk;
    struct k3_units units;
    size_t bytes = file_bytes < sizeof disk ? (size_t)file_bytes : sizeof disk;
    int rc = k3_file_read(fd, name, &disk, bytes, 0, err);
    if (!rc)
        rc = k3_units_decode(name, &disk, bytes, file_bytes, &units, err);
    if (!rc)
        k3_verify_checked(verify,
                          "form of its header and its size: digests of %llu units of %u "
                          "parts of rank %u (its own digest is in the manifest of its set)",
                          (unsigned long long)units.digest_count, units.part_count, units.rank);
    return rc;
}

static int check_document(struct k3_verify *verify, const struct k3_dir *dir, const char *name,
                          struct k3_err *err)
{
    struct k3_manifest manifest;
    struct k3_source_headers headers;
    struct k3_text content;
    char *data = NULL;
    size_t bytes = 0;
    k3_text_init(&content);
    memset(&manifest, 0, sizeof manifest);
    memset(&headers, 0, sizeof headers);
    bool is_manifest = !strcmp(name, K3_MANIFEST_NAME);
    uint64_t bytes_max = is_manifest ? K3_MANIFEST_BYTES_MAX : K3_HEADERS_CONTENT_BYTES_MAX;
    int rc = k3_file_load_linked(dir, name, bytes_max, &data, &bytes, err);
    if (rc)
        return rc;
    if (is_manifest) {
        rc = k3_manifest_decode(name, data, bytes, &manifest, err);
    } else {
        rc = k3_zst_decode(name, data, bytes, K3_HEADERS_CONTENT_BYTES_MAX, &content, err);
        if (!rc)
            rc = k3_source_headers_decode(name, content.data, content.bytes, &headers, err);
    }
    if (!rc)
        k3_verify_checked(verify, is_manifest
                                      ? "the manifest alone: its own digest and all its rules"
                                      : "its frame and its form");
    k3_manifest_fini(&manifest);
    k3_source_headers_fini(&headers);
    k3_text_fini(&content);
    free(data);
    return rc;
}

/* Split "a/b" into its directory and name; name points into path. */
int k3_verify_open_parent(const char *path, struct k3_dir *dir, const char **name,
                          struct k3_err *err)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (!slash)
        return k3_dir_open(".", false, dir, err);
    char *parent = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!parent)
        return k3_fail(err, K3_ENOMEM, "no memory to open %s", path);
    int rc = k3_dir_open(parent, false, dir, err);
    free(parent);
    return rc;
}

/* Any safetensors file: its structure, and what a download recorded of it. */
static int check_tensors(struct k3_verify *verify, const struct k3_dir *dir, const char *name,
                         int fd, bool *is_proved, struct k3_err *err)
{
    struct k3_st *st = NULL;
    struct stat stat;
    uint32_t count = 0;
    if (fstat(fd, &stat))
        return k3_fail_sys(err, errno, "%s: cannot stat", name);
    int rc = k3_verify_header(name, fd, (uint64_t)stat.st_size, &st, err);
    if (!rc)
        verify->checked_bytes += st->data_offset;
    k3_st_free(st);
    if (!rc && !verify->quick)
        rc = k3_verify_digest(verify, dir, name, &count, err);
    *is_proved = count != 0;
    k3_verify_checked(verify, count           ? "structure, and SHA-256 against its download record"
                              : verify->quick ? "structure only"
                                              : "structure only: no digests are recorded for a "
                                                "lone file");
    return rc;
}

int k3_verify_file(struct k3_verify *verify, const char *path, struct k3_err *err)
{
    struct k3_dir dir = {.fd = -1};
    struct k3_err inner;
    struct stat stat;
    const char *name;
    uint32_t rank;
    bool is_proved = false;
    const uint64_t before = verify->problems.count;
    int fd = -1;
    k3_err_init(&inner);
    int rc = k3_verify_open_parent(path, &dir, &name, err);
    if (!rc)
        rc = k3_file_open(&dir, name, true, &fd, &stat, err);
    if (rc)
        goto out;
    uint64_t bytes = (uint64_t)stat.st_size;
    if (strcmp(name, K3_MANIFEST_NAME) && k3_name_ends(name, ".json")) {
        rc = k3_fail_at(err, K3_EUSAGE, name, -1,
                        "%s: a JSON file, whose digest stands elsewhere: verify the directory it "
                        "lies in",
                        path);
        goto out;
    }
    k3_text_putf(&verify->subject, "%sfile %s", verify->subject.bytes ? "; " : "", path);
    if (!strcmp(name, K3_MANIFEST_NAME) || !strcmp(name, K3_HEADERS_NAME)) {
        rc = check_document(verify, &dir, name, &inner);
        verify->checked_bytes += bytes;
    } else if (k3_units_name_decode(name, &rank)) {
        rc = check_units_header(verify, name, fd, bytes, &inner);
        verify->checked_bytes += bytes < sizeof(struct k3_disk_units)
                                     ? bytes
                                     : sizeof(struct k3_disk_units);
    } else {
        rc = check_tensors(verify, &dir, name, fd, &is_proved, &inner);
    }
    verify->checked_files++;
    if (rc || verify->problems.count > before)
        k3_verify_say(&verify->next, "restore the file from a copy, download it again, or, where "
                                     "it is of a shard set, verify the directory of the set");
    rc = k3_verify_judge(&verify->problems, rc, &inner, err);
    if (!is_proved)
        k3_verify_say(
            &verify->unproved, "%s",
            strcmp(name, K3_MANIFEST_NAME)
                ? verify->quick
                      ? "form and sizes are right; contents were not judged"
                      : "form and sizes are right; contents were not judged, since no digest is "
                        "recorded beside a lone file: verify its whole directory"
                : "the manifest is as it was written; no part of its set was looked at: "
                  "verify its whole directory");
out:
    if (fd >= 0)
        close(fd);
    k3_dir_close(&dir);
    return rc;
}
