/* What a machine can do, as a list of findings: each is measured, or says why not and what would
 * help. */
#ifndef K3_DOCTOR_H
#define K3_DOCTOR_H

#include "k3_err.h"

#include <stdbool.h>
#include <stdint.h>

enum k3_finding_state {
    K3_FINDING_OK,
    K3_FINDING_SLOWER,  /* works, but not at its best: reason says why */
    K3_FINDING_MISSING, /* is not there: reason says why, next_step what would help */
    K3_FINDING_ABSENT   /* is not there, and a machine without it is as good: an extra */
};

#define K3_FINDING_COUNT_MAX  64u /* rows that are written in doctor_*.c; up to 32 are of GPUs */
#define K3_FINDING_NAME_BYTES 32
#define K3_FINDING_TEXT_BYTES K3_ERR_TEXT_BYTES

struct k3_finding {
    char name[K3_FINDING_NAME_BYTES]; /* stable: others read it in --json */
    enum k3_finding_state state;
    bool is_needed; /* missing: no load can run at all */
    char value[K3_FINDING_TEXT_BYTES];
    char reason[K3_FINDING_TEXT_BYTES];
    char next_step[K3_FINDING_TEXT_BYTES];
};

struct k3_doctor {
    struct k3_finding findings[K3_FINDING_COUNT_MAX];
    uint32_t count;
};

/* The next finding, ok so far. */
struct k3_finding *k3_doctor_add(struct k3_doctor *doctor, const char *name);
void k3_finding_value(struct k3_finding *finding, const char *format, ...) K3_PRINTF(2, 3);
/* Not at its best, or not there; and why. */
void k3_finding_slower(struct k3_finding *finding, const char *format, ...) K3_PRINTF(2, 3);
void k3_finding_missing(struct k3_finding *finding, const char *format, ...) K3_PRINTF(2, 3);
void k3_finding_absent(struct k3_finding *finding, const char *format, ...) K3_PRINTF(2, 3);
void k3_finding_next(struct k3_finding *finding, const char *format, ...) K3_PRINTF(2, 3);

/* Processors, memory, limits, kernel, io_uring.  Each adds its findings; none fails. */
void k3_doctor_machine(struct k3_doctor *doctor);
/* Drivers, each GPU with its rates, what reading straight into a GPU needs. */
void k3_doctor_gpu(struct k3_doctor *doctor);
/* Directory, file system, drive, direct reads and their rate. */
void k3_doctor_dir(struct k3_doctor *doctor, const char *path);

#endif
