/* What the tests of GPU devices share (cmocka): control of the fake driver, and one use of a device
 * from open to close. */
#ifndef GPU_USE_H
#define GPU_USE_H

#include "dev.h"
#include "gpu_kernels.h"

#include <stdbool.h>

#define PATH_BYTES 4096
#define UNITS      3u
#define DATA_BYTES (UNITS * (size_t)K3_UNIT_BYTES)

/* The device under test. */
extern const struct k3_dev_ops *ops;
extern const struct k3_gpu_api *api; /* its driver; fakes only */
extern enum k3_gpu_kind kind;
extern char report_path[PATH_BYTES]; /* of the fake driver */
/* What goes to devices: UNITS different units and their digests. */
extern uint8_t *source;
extern uint8_t wanted[UNITS * K3_DIGEST_BYTES];

struct use {
    struct k3_dev *dev;
    void *data; /* DATA_BYTES on the device */
    bool is_pinned;
    uint8_t results[UNITS], waited[UNITS]; /* at the end; when the wait for the check was over */
    uint8_t *back;                         /* what the device gave back */
};

int choose(const char *name); /* "cuda" or "hip" is under test */
/* This program again, as a child with the drivers of a folder beside it ("fake") and a setting of
 * the environment; again_begin first, which makes report_path.  Gives back the exit code. */
int again_begin(void);
int run_again(const char *drivers, const char *setting, const char *const arguments[3]);

/* The fake driver of `ops` for the tests: 1: it is open; 0: skipped, with a line why; -1: failed.
 */
int open_fake(void);
/* run_any for each kind of GPU that is here; the others are skipped with a line, and count as
 * failed where they are required.  Gives back the number of failures. */
int run_real(int (*run_any)(void), int required_count, char **required);

void make_source(void);
const char *named(const char *cuda, const char *hip);

/* From here on this fault (NULL: none); gives back what the driver reports of the time before. */
const char *control(const char *fault);
/* A number of a report; -1: not in it. */
long reported(const char *report, const char *what);
long left(const char *report); /* all that is still allocated */
void assert_nothing_left(void);

int open_use(struct use *use, uint32_t index, struct k3_err *err);
int prepare(struct use *use, struct k3_err *err); /* memory, and `source` pinned */
int copy_unit(struct use *use, uint32_t unit, struct k3_err *err);
int work(struct use *use, struct k3_err *err); /* all units there, checked, and back */
void close_use(struct use *use);
/* All of it.  What was not proved is not called right. */
int use_once(uint8_t results[UNITS], struct k3_err *err);
void assert_right(const uint8_t results[UNITS]);

#endif
