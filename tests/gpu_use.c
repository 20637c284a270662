/* Purpose: what the tests of GPU devices share: the fake driver's report, one use of a device.
 * Owns: the bytes that go to devices, and their digests.
 * Threads: one; gpu_use_open and what takes its struct from any.
 * Errors: codes of the device; a failed assertion ends the test.
 * Invariant: a use can be closed whatever failed in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu_use.h"
#include "tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const struct k3_dev_ops *ops;
const struct k3_gpu_api *api;
enum k3_gpu_kind kind;
char report_path[PATH_BYTES];
uint8_t *source;
uint8_t wanted[UNITS * K3_DIGEST_BYTES];

#define REPORT_BYTES 16384

/* ---- the fake driver ---- */

const char *named(const char *cuda, const char *hip)
{
    return kind == K3_GPU_CUDA ? cuda : hip;
}

/* From here on this fault; gives back what the driver reports of the time before. */
const char *control(const char *fault)
{
    static char text[REPORT_BYTES];
    int version;
    if (fault)
        assert_int_equal(setenv("FAKE_GPU_FAULT", fault, 1), 0);
    else
        unsetenv("FAKE_GPU_FAULT");
    assert_int_equal(api->driver_version(&version), 0);
    FILE *file = fopen(report_path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

long reported(const char *report, const char *what)
{
    char line[128];
    snprintf(line, sizeof line, "%s ", what);
    const char *at = strstr(report, line);
    return at ? strtol(at + strlen(line), NULL, 10) : -1;
}

/* All that is still allocated. */
long left(const char *report)
{
    long sum = 0;
    for (const char *at = report; (at = strstr(at, "left ")); at++)
        sum += strtol(strchr(at + 5, ' '), NULL, 10);
    return sum;
}

void assert_nothing_left(void)
{
    const char *report = control(NULL);
    if (left(report) != 0)
        print_message("%s", report);
    assert_int_equal(left(report), 0);
    assert_int_equal(reported(report, "changed"), 0);
}

/* ---- one use of a device ---- */

int open_use(struct use *use, uint32_t index, struct k3_err *err)
{
    struct k3_dev_options options = {.index = index, .lane_count = 1};
    memset(use, 0, sizeof *use);
    use->back = malloc(DATA_BYTES);
    assert_non_null(use->back);
    memset(use->back, 0xA5, DATA_BYTES);
    int rc = ops->probe(index, err);
    return rc ? rc : ops->open(&options, &use->dev, err);
}

int copy_unit(struct use *use, uint32_t unit, struct k3_err *err)
{
    struct k3_dev_copy copy = {(uint8_t *)use->data + (size_t)unit * K3_UNIT_BYTES,
                               source + (size_t)unit * K3_UNIT_BYTES, K3_UNIT_BYTES,
                               K3_COPY_HOST_TO_DEV};
    return ops->copy_begin(use->dev, 0, &copy, err);
}

int work(struct use *use, struct k3_err *err)
{
    struct k3_dev_check check = {use->data, wanted, use->results, UNITS};
    struct k3_dev_copy back = {use->back, use->data, DATA_BYTES, K3_COPY_DEV_TO_HOST};
    int rc = 0;
    for (uint32_t u = 0; u < UNITS && !rc; u++)
        rc = copy_unit(use, u, err);
    if (!rc)
        rc = ops->verify_units(use->dev, 0, &check, 1, err);
    if (!rc)
        rc = ops->copy_wait(use->dev, 0, UNITS + 1, err);
    memcpy(use->waited, use->results, UNITS); /* what the wait has brought */
    if (!rc)
        rc = ops->copy_begin(use->dev, 0, &back, err);
    return rc ? rc : ops->copy_wait(use->dev, 0, K3_DEV_WAIT_ALL, err);
}

int prepare(struct use *use, struct k3_err *err)
{
    int rc = ops->alloc(use->dev, DATA_BYTES, &use->data, err);
    if (!rc)
        rc = ops->pin(use->dev, source, DATA_BYTES, err);
    use->is_pinned = !rc;
    return rc;
}

void close_use(struct use *use)
{
    if (use->is_pinned)
        ops->unpin(use->dev, source, DATA_BYTES);
    if (use->data)
        ops->release(use->dev, use->data, DATA_BYTES);
    ops->close(use->dev);
    free(use->back);
}

/* All of it.  What was not proved is not called right. */
int use_once(uint8_t results[UNITS], struct k3_err *err)
{
    struct use use;
    int rc = open_use(&use, 0, err);
    if (!rc)
        rc = prepare(&use, err);
    if (!rc)
        rc = work(&use, err);
    if (!rc)
        assert_memory_equal(use.back, source, DATA_BYTES);
    memcpy(results, use.results, UNITS);
    close_use(&use);
    return rc;
}

void assert_right(const uint8_t results[UNITS])
{
    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(results[u], K3_UNIT_RIGHT);
}

void make_source(void)
{
    struct k3_sha256 *sha;
    source = malloc(DATA_BYTES);
    assert_non_null(source);
    for (size_t i = 0; i < DATA_BYTES; i++)
        source[i] = (uint8_t)((i * 2654435761u) >> 17);
    assert_int_equal(k3_sha256_open(&sha, NULL), 0);
    for (uint32_t u = 0; u < UNITS; u++)
        k3_unit_digest(sha, source + (size_t)u * K3_UNIT_BYTES, K3_UNIT_BYTES,
                       wanted + (size_t)u * K3_DIGEST_BYTES);
    k3_sha256_close(sha);
}

int choose(const char *name)
{
    kind = !strcmp(name, "hip") ? K3_GPU_HIP : K3_GPU_CUDA;
    ops = kind == K3_GPU_HIP ? &k3_dev_hip : &k3_dev_cuda;
    return 0;
}

/* ---- this program again, with a folder of drivers ---- */

static char program[PATH_BYTES], folder[PATH_BYTES];

/* Where this program is, and a file for reports. */
int again_begin(void)
{
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes <= 0)
        return 1;
    snprintf(folder, sizeof folder, "%.*s", (int)bytes, program);
    for (int up = 0; up < 2; up++) /* OUT/tests/test_dev_gpu */
        *strrchr(folder, '/') = 0;
    snprintf(report_path, sizeof report_path, "%s/k3-gpu.XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    int file = mkstemp(report_path);
    if (file < 0)
        return 1;
    close(file);
    return 0;
}

int run_again(const char *drivers, const char *setting, const char *const arguments[3])
{
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char path[3 * PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s:%s/fake", folder, drivers, folder);
        setenv("LD_LIBRARY_PATH", path, 1);
        setenv("FAKE_GPU_REPORT", report_path, 1);
        if (setting)
            putenv((char *)(uintptr_t)setting);
        char *argv[] = {program, NULL, NULL, NULL, NULL};
        for (int i = 0; i < 3; i++)
            argv[i + 1] = (char *)(uintptr_t)arguments[i];
        execv(program, argv);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int open_fake(void)
{
    struct k3_err err;
    k3_err_init(&err);
    if (k3_gpu_kernels_probe(kind, &err)) {
        printf("[  SKIPPED ] %s: %s\n", ops->name, err.text);
        return 0;
    }
    if (k3_gpu_api_open(kind, &api, &err) == 0)
        return 1;
    printf("%s\n", err.text);
    return -1;
}

int run_real(int (*run_any)(void), int required_count, char **required)
{
    static const char *const names[] = {"cuda", "hip"};
    int failed = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct k3_err err;
        k3_err_init(&err);
        choose(names[i]);
        if (ops->probe(0, &err)) {
            printf("SKIP %s no GPU: %s\n", names[i], err.text);
            for (int r = 0; r < required_count; r++)
                failed += !strcmp(required[r], names[i]);
        } else {
            failed += run_any();
        }
        fflush(stdout);
    }
    return failed;
}
