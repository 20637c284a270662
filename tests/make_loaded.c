/* Purpose: load a set by one route and print the SHA-256 of every image: what a test under failing
 * system calls compares, since `k3-shard load` shows no bytes.
 *   make_loaded DIR uring|direct|buffered|auto [no-verify]
 * Owns: the load.  Threads: one, and those of the load.
 * Errors: those of the load on stderr, with the exit codes of k3-shard; 2: usage.
 * Invariant: prints digests only of a load that succeeded. */
#include "io.h"
#include "load_internal.h"
#include "sha256.h"

#include <stdio.h>
#include <string.h>

static int load_by(const char *route, const struct k3_load_options *given, struct k3_load **load,
                   struct k3_err *err)
{
    struct k3_load_options options = *given;
    /* An engine that is given reads direct under the name of one that always does. */
    if (strcmp(route, "direct") == 0) {
        options.io = k3_io_uring.name;
        return k3_load_open_with(&options, &k3_io_pread, NULL, load, err);
    }
    if (strcmp(route, "buffered") == 0) {
        options.io = k3_io_pread.name;
        return k3_load_open_with(&options, &k3_io_pread, NULL, load, err);
    }
    options.io = route;
    return k3_load_open(&options, load, err);
}

/* One line for each rank; `text` has room for all, so that printing is a single write. */
static int put_digests(const struct k3_load *load, char *text, size_t bytes, struct k3_err *err)
{
    struct k3_sha256 *sha = NULL;
    size_t used = 0;
    int rc = k3_sha256_open(&sha, err);
    for (uint32_t i = 0; !rc && i < load->rank_count; i++) {
        const void *data;
        uint64_t image_bytes;
        uint8_t digest[K3_DIGEST_BYTES];
        char hex[K3_HEX_BYTES];
        uint32_t rank = load->ranks[i].row->rank;
        rc = k3_load_image(load, rank, &data, &image_bytes, err);
        if (rc)
            break;
        k3_sha256_of(sha, data, (size_t)image_bytes, digest);
        k3_hex_encode(digest, K3_DIGEST_BYTES, hex);
        int n = snprintf(text + used, bytes - used, "rank %u %s\n", rank, hex);
        used += n > 0 && (size_t)n < bytes - used ? (size_t)n : 0;
    }
    k3_sha256_close(sha);
    return rc;
}

int main(int argc, char **argv)
{
    static char text[65536];
    const char *const *dirs = (const char *const *)argv + 1;
    struct k3_load_options options = {.struct_bytes = sizeof options, .dir_count = 1};
    struct k3_load *load = NULL;
    struct k3_err err;
    if (argc < 3)
        return 2;
    options.dirs = dirs;
    options.no_verify = argc > 3;
    k3_err_init(&err);
    int rc = load_by(argv[2], &options, &load, &err);
    if (!rc)
        rc = k3_load_run(load, &err);
    if (!rc)
        rc = put_digests(load, text, sizeof text, &err);
    k3_load_close(load);
    if (rc)
        fprintf(stderr, "k3-shard: load: %s\n", err.text);
    else
        fputs(text, stdout);
    return k3_exit_code(rc);
}
