/* Purpose: digests that a download from the Hugging Face hub left behind, and their comparison.
 * Owns: nothing between calls.
 * Threads: any.
 * Errors: K3_ECORRUPT for a file that is not what its record says.
 * Invariant: only what is of the client's form is a record.  One that is older than its file, which
 * the client would not believe, is told apart: the file may have been changed on purpose. */
#include "hf_digest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORD_DIR       ".cache/huggingface/download"
#define RECORD_BYTES_MAX 4096u        /* a record is three short lines */
#define CLOCK_NS         1000000000ll /* the client allows this for coarse file times */
#define SECONDS_MAX      9000000000ll /* the year 2255: nanoseconds fit 64 bits up to 2262 */

/* ---- the cache of the hub: a link to blobs/SHA256 ---- */

static int find_blob(const struct k3_dir *dir, const char *name, struct k3_hf_digest *out,
                     bool *found, struct k3_err *err)
{
    struct stat link;
    char *path = NULL;
    if (fstatat(dir->fd, name, &link, AT_SYMLINK_NOFOLLOW))
        return k3_fail_sys(err, errno, "%s/%s", dir->path, name);
    if (!S_ISLNK(link.st_mode))
        return 0;
    if (asprintf(&path, "%s/%s", dir->path, name) < 0)
        return k3_fail(err, K3_ENOMEM, "no memory for the path of %s", name);
    char *real = realpath(path, NULL); /* a link to the link of a snapshot leads there too */
    int rc = real ? 0 : k3_fail_sys(err, errno, "%s: its link leads nowhere", path);
    char *blob = real ? strrchr(real, '/') : NULL;
    if (blob && blob - real >= 6 && !strncmp(blob - 6, "/blobs", 6) && strlen(blob + 1) == 64)
        *found = k3_hex_decode(blob + 1, K3_DIGEST_BYTES, out->sha256);
    if (*found)
        snprintf(out->where, sizeof out->where, "the name of the blob it links to");
    free(real);
    free(path);
    return rc;
}

/* ---- FILE.metadata: commit, etag, time, a line each ---- */

/* The next line of *at, without white space around it; false at the end. */
static bool next_line(const char **at, const char **line, size_t *bytes)
{
    const char *end = strchr(*at, '\n');
    if (!**at)
        return false;
    *line = *at;
    *at = end ? end + 1 : *at + strlen(*at);
    *bytes = (size_t)(*at - *line);
    while (*bytes && strchr(" \t\r\n", (*line)[*bytes - 1]))
        --*bytes;
    while (*bytes && strchr(" \t\r", **line)) {
        ++*line;
        --*bytes;
    }
    return true;
}

/* "1717171717.25" into nanoseconds. */
static bool read_time(const char *text, size_t bytes, int64_t *time_ns)
{
    int64_t seconds = 0, fraction_ns = 0, digit_ns = CLOCK_NS / 10;
    size_t at = 0;
    for (; at < bytes && text[at] >= '0' && text[at] <= '9'; at++) {
        seconds = seconds * 10 + (text[at] - '0');
        if (seconds > SECONDS_MAX)
            return false;
    }
    if (at == 0)
        return false;
    if (at < bytes && text[at] == '.')
        for (at++; at < bytes && text[at] >= '0' && text[at] <= '9'; at++) {
            fraction_ns += (text[at] - '0') * digit_ns;
            digit_ns /= 10;
        }
    *time_ns = seconds * 1000000000ll + fraction_ns;
    return at == bytes;
}

/* A SHA-256 in hex of either case, in quotes or not, as servers send it.  40 digits: a git blob,
 * not in LFS. */
static bool read_etag(const char *text, size_t bytes, uint8_t sha256[K3_DIGEST_BYTES])
{
    char hex[2 * K3_DIGEST_BYTES];
    if (bytes == sizeof hex + 2 && text[0] == '"' && text[bytes - 1] == '"') {
        text++;
        bytes -= 2;
    }
    if (bytes != sizeof hex)
        return false;
    for (size_t i = 0; i < sizeof hex; i++)
        hex[i] = text[i] >= 'A' && text[i] <= 'F' ? (char)(text[i] - 'A' + 'a') : text[i];
    return k3_hex_decode(hex, K3_DIGEST_BYTES, sha256);
}

static bool read_record(const char *text, struct k3_hf_digest *out, int64_t *time_ns)
{
    const char *at = text, *line;
    size_t bytes;
    return next_line(&at, &line, &bytes) && /* the commit */
           next_line(&at, &line, &bytes) && read_etag(line, bytes, out->sha256) &&
           next_line(&at, &line, &bytes) && read_time(line, bytes, time_ns);
}

/* No record, or one that cannot be read: only the latter is a failure. */
static int absent_or_fail(const struct k3_err *why, struct k3_err *err)
{
    bool is_failure = why->rc == K3_ENOMEM || why->rc == K3_ECORRUPT || /* it shrank meanwhile */
                      (why->rc == K3_EIO && why->sys_errno != ENOENT && why->sys_errno != ENOTDIR &&
                       why->sys_errno != ELOOP);
    return is_failure ? k3_fail_as(err, why) : 0;
}

static int find_record(const struct k3_dir *dir, const char *name, struct k3_hf_digest *out,
                       bool *found, struct k3_err *err)
{
    struct stat stat;
    struct k3_err why;
    char *text = NULL;
    size_t bytes = 0;
    int64_t time_ns = 0;
    k3_err_init(&why);
    snprintf(out->where, sizeof out->where, RECORD_DIR "/%s.metadata", name);
    if (k3_file_load(dir, out->where, RECORD_BYTES_MAX, &text, &bytes, &why))
        return absent_or_fail(&why, err);
    *found = strlen(text) == bytes && read_record(text, out, &time_ns);
    free(text);
    if (!*found)
        return 0;
    if (fstatat(dir->fd, name, &stat, 0))
        return k3_fail_sys(err, errno, "%s/%s", dir->path, name);
    /* A file of a later year than any record may have is newer than its record. */
    out->is_outdated = stat.st_mtim.tv_sec > SECONDS_MAX ||
                       k3_time_ns(&stat.st_mtim) - CLOCK_NS > time_ns;
    return 0;
}

int k3_hf_digest_find(const struct k3_dir *dir, const char *name, struct k3_hf_digest *out,
                      bool *found, struct k3_err *err)
{
    memset(out, 0, sizeof *out);
    *found = false;
    int rc = find_blob(dir, name, out, found, err);
    return rc || *found ? rc : find_record(dir, name, out, found, err);
}

/* ---- comparison ---- */

int k3_hf_digest_compare(const struct k3_dir *dir, const char *name,
                         const struct k3_hf_digest *recorded, const uint8_t digest[K3_DIGEST_BYTES],
                         struct k3_err *err)
{
    char found[K3_HEX_BYTES], wanted[K3_HEX_BYTES];
    if (memcmp(digest, recorded->sha256, K3_DIGEST_BYTES) == 0)
        return 0;
    k3_hex_encode(digest, K3_DIGEST_BYTES, found);
    k3_hex_encode(recorded->sha256, K3_DIGEST_BYTES, wanted);
    return k3_fail_at(
        err, K3_ECORRUPT, name, -1,
        "%s/%s: SHA-256 is %s, but %s (%s) says that %s was downloaded: %s", dir->path, name, found,
        recorded->where[0] == '.' ? "its download record" : "the hub's cache", recorded->where,
        wanted,
        recorded->is_outdated ? "it was written after the download: damaged, or changed on purpose"
                              : "the file is damaged; download it again");
}

int k3_hf_digest_check(const struct k3_dir *dir, const char *name,
                       const uint8_t digest[K3_DIGEST_BYTES], struct k3_hf_tally *tally,
                       struct k3_err *err)
{
    struct k3_hf_digest recorded;
    struct k3_err why;
    bool found;
    k3_err_init(&why);
    int rc = k3_hf_digest_find(dir, name, &recorded, &found, err);
    if (rc || !found)
        return rc;
    if (!k3_hf_digest_compare(dir, name, &recorded, digest, &why))
        atomic_fetch_add(&tally->same_count, 1);
    else if (!recorded.is_outdated)
        return k3_fail_as(err, &why);
    else if (atomic_fetch_add(&tally->outdated_count, 1) == 0)
        snprintf(tally->outdated, sizeof tally->outdated, "%s", name);
    return 0;
}
