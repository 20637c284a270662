/* Plug table 2: where bytes land.
 *
 * A device has lanes: ordered queues.  What is begun on one lane runs in order; lanes run beside
 * each other.  Each copy_begin and each verify_units is one operation of its lane, counted from
 * open; copy_wait waits for the first so many of them.  Memory of a device is released before
 * close; close() drains.  One thread drives an open device. */
#ifndef K3_DEV_H
#define K3_DEV_H

#include "bytes.h"
#include "k3_err.h"

#include <stdbool.h>

struct k3_dev;

struct k3_dev_options {
    uint32_t index;      /* of the device, e.g. 0 of cuda:0; host: 0 */
    uint32_t lane_count; /* 1..K3_LANE_COUNT_MAX */
    void *after_event;   /* of the driver: every lane begins behind it; NULL: at once */
};

#define K3_LANE_COUNT_MAX 64u

enum k3_copy_kind { K3_COPY_HOST_TO_DEV, K3_COPY_DEV_TO_HOST, K3_COPY_DEV_TO_DEV };

struct k3_dev_copy {
    void *target;
    const void *source;
    size_t bytes;
    enum k3_copy_kind kind;
};

/* Whole units that lie one behind the other at data (device memory): unit i is right when its
 * digest equals wanted[32 * i] (host memory); result[i] (host memory) becomes K3_UNIT_RIGHT or
 * K3_UNIT_WRONG, at the latest when a copy_wait that covers the operation returns. */
struct k3_dev_check {
    const void *data;
    const uint8_t *wanted;
    uint8_t *result;
    uint32_t unit_count;
};

/* Units of one verify_units: 512 MiB, beyond what makes any launch long enough to pay. */
#define K3_DEV_CHECK_UNITS_MAX 1024u
#define K3_DEV_WAIT_ALL        UINT64_MAX

enum k3_unit_result { K3_UNIT_UNKNOWN = 0, K3_UNIT_RIGHT = 1, K3_UNIT_WRONG = 2 };

struct k3_dev_ops {
    const char *name;
    bool is_host_memory; /* what alloc gives is memory of this process: reads may land in it */
    int (*probe)(uint32_t index, struct k3_err *err);
    int (*open)(const struct k3_dev_options *options, struct k3_dev **out, struct k3_err *err);
    /* Device memory, aligned to 4096; its content is undefined. */
    int (*alloc)(struct k3_dev *dev, uint64_t bytes, void **out, struct k3_err *err);
    void (*release)(struct k3_dev *dev, void *data, uint64_t bytes);
    /* Make host memory fit for fast copies (register it); unpin before it is freed. */
    int (*pin)(struct k3_dev *dev, void *data, size_t bytes, struct k3_err *err);
    void (*unpin)(struct k3_dev *dev, void *data, size_t bytes);
    int (*copy_begin)(struct k3_dev *dev, uint32_t lane, const struct k3_dev_copy *copy,
                      struct k3_err *err);
    /* Wait for the first op_count operations of a lane (K3_DEV_WAIT_ALL: for all begun).  A device
     * that failed says so here: K3_EDEVICE, and nothing of the lane is to be trusted. */
    int (*copy_wait)(struct k3_dev *dev, uint32_t lane, uint64_t op_count, struct k3_err *err);
    /* Are the first op_count operations of a lane done?  Never waits; else as copy_wait. */
    int (*copy_done)(struct k3_dev *dev, uint32_t lane, uint64_t op_count, bool *is_done,
                     struct k3_err *err);
    /* Begin one operation that does all these checks, at most K3_DEV_CHECK_UNITS_MAX units, behind
     * what was begun on the lane before.  The array is read at once; the memory that it names is
     * borrowed until waited for. */
    int (*verify_units)(struct k3_dev *dev, uint32_t lane, const struct k3_dev_check *checks,
                        uint32_t check_count, struct k3_err *err);
    void (*close)(struct k3_dev *dev);
};

/* The GPU of an open device of cuda or hip; borrowed until close. */
struct k3_gpu;
const struct k3_gpu *k3_dev_gpu(const struct k3_dev *dev);

extern const struct k3_dev_ops k3_dev_host;
extern const struct k3_dev_ops k3_dev_cuda; /* NVIDIA, through the driver's own library */
extern const struct k3_dev_ops k3_dev_hip;  /* AMD, through libamdhip64 */

#endif
