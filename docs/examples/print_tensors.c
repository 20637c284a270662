/* Load one rank of a shard set and print what it has: the smallest whole program over libk3load.
 *
 *   cc print_tensors.c $(pkg-config --cflags --libs k3load) -o print_tensors
 *   ./print_tensors DIR RANK DEVICE        e.g. /models/Kimi-K3-tp8 0 cuda:0
 *
 * When it prints anything, every byte of the rank was read, copied and proved where it lies; `data`
 * is what a kernel of yours would be given.  Exit codes are those of the tool. */
#include <k3_load.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void print_one(const char *what, const struct k3_load_tensor *tensor)
{
    printf("%s %s %s", what, tensor->name, tensor->dtype);
    for (uint32_t d = 0; d < tensor->dim_count; d++)
        printf("%c%" PRIu64, d ? 'x' : ' ', tensor->shape[d]);
    printf(" %" PRIu64 " bytes at %p\n", tensor->bytes, tensor->data);
}

static int print_rank(const struct k3_load *load, uint32_t rank, struct k3_err *err)
{
    uint32_t tensor_count, view_count;
    struct k3_load_tensor tensor;
    int rc = k3_load_tensor_count(load, rank, &tensor_count, &view_count, err);
    for (uint32_t i = 0; i < tensor_count && !rc; i++) {
        rc = k3_load_tensor(load, rank, i, &tensor, err);
        if (!rc)
            print_one("tensor", &tensor);
    }
    /* Views name the same bytes as engines want them: fused, without a copy. */
    for (uint32_t i = 0; i < view_count && !rc; i++) {
        rc = k3_load_view(load, rank, i, &tensor, err);
        if (!rc)
            print_one("view", &tensor);
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct k3_load *load = NULL;
    struct k3_load_report report;
    struct k3_err err;
    char *end = NULL;
    if (argc == 4)
        (void)strtoul(argv[2], &end, 10);
    if (!end || end == argv[2] || *end) {
        fprintf(stderr, "usage: print_tensors DIR RANK DEVICE\n");
        return 2;
    }
    const char *dirs[] = {argv[1]};
    const uint32_t ranks[] = {(uint32_t)strtoul(argv[2], NULL, 10)};
    const struct k3_load_options options = {
        .struct_bytes = sizeof options,
        .dirs = dirs,
        .dir_count = 1,
        .ranks = ranks,
        .rank_count = 1,
        .device = argv[3],
    };
    k3_err_init(&err);
    int rc = k3_load_open(&options, &load, &err);
    if (!rc)
        rc = k3_load_run(load, &err);
    if (!rc)
        rc = print_rank(load, ranks[0], &err);
    if (rc) {
        fprintf(stderr, "%s\n", err.text);
    } else {
        k3_load_get_report(load, &report);
        printf("%" PRIu64 " bytes on %s, %" PRIu64 " verified\n", report.bytes, report.device,
               report.verified_bytes);
    }
    k3_load_close(load); /* the memory goes with it */
    return k3_exit_code(rc);
}
