/* What the tests of cufile and hipfile share (cmocka): the engine and device under test, the fake
 * library's control.  Devices, drivers and running again are those of gpu_use.h. */
#ifndef GPUFILE_USE_H
#define GPUFILE_USE_H

#include "fake_cufile.h"
#include "gpu_use.h"
#include "io.h"

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

extern const struct k3_io_ops *io_ops; /* the engine under test */
extern struct fake_cufile *fake;       /* NULL: a real library */
extern struct k3_dev *dev;             /* number 0, one lane */

/* "cuda" or "hip"; 0: it is one. */
int choose_engine(const char *name);
/* Library, driver and kernel; false: they are not there, and a line says so. */
bool has_engine(void);
/* The control of the fake library that LD_LIBRARY_PATH names; false: it is none. */
bool find_fake(void);
/* From here on this fault; counts from 0 again.  Nothing for a real library. */
void set_fault(enum fake_cufile_fault fault, uint64_t first, uint64_t count, int code);
/* No fault, and a library that brings the bytes through host memory. */
void begin_faultless(void);
/* All that was registered is given back, and the library's driver closed in good order. */
void assert_files_closed(void);
/* By the device under test. */
void copy_all(void *target, const void *source_data, size_t bytes, enum k3_copy_kind copy_kind);
/* Run again with the fakes: "fake cuda", then "fake hip"; how many failed. */
int run_fakes(void);

#endif
