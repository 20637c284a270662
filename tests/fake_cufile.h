/* libcufile or libhipfile made of pread(2) and the copies of whatever driver of a GPU is loaded, so
 * it runs on a fake driver and on a real one.  Tests control it through fake_cufile_state, which
 * each of the two libraries exports. */
#ifndef FAKE_CUFILE_H
#define FAKE_CUFILE_H

#include <stdatomic.h>
#include <stdint.h>

/* What it says of itself; hipFile says nothing. */
enum fake_cufile_mode {
    FAKE_CUFILE_COMPAT,
    FAKE_CUFILE_NVFS,
    FAKE_CUFILE_P2P,
    FAKE_CUFILE_FORCED /* nvidia-fs is there, and the configuration does not let it be used */
};

enum fake_cufile_fault {
    FAKE_CUFILE_NONE,
    FAKE_CUFILE_OPEN,   /* opening the driver gives `code` */
    FAKE_CUFILE_FILE,   /* registering a file gives `code` */
    FAKE_CUFILE_MEMORY, /* registering memory gives `code` */
    /* Reads first..first+count-1, from 0: */
    FAKE_CUFILE_ERRNO, /* -1, and errno is `code` */
    FAKE_CUFILE_CODE,  /* -`code` */
    FAKE_CUFILE_SHORT, /* bring `code` bytes at most */
    FAKE_CUFILE_EMPTY, /* bring nothing and say that they brought all */
    FAKE_CUFILE_LONG,  /* say that they brought one byte more than was asked for */
    FAKE_CUFILE_FLIP,  /* bring one bit wrong */
    FAKE_CUFILE_SLOW   /* sleep `code` milliseconds first */
};

/* Set while nothing runs. */
struct fake_cufile {
    enum fake_cufile_mode mode;
    enum fake_cufile_fault fault;
    uint64_t first, count;
    int code;
    _Atomic uint64_t read_count, hit_count;
    _Atomic uint64_t registered_count;   /* reads into registered memory */
    atomic_int bad_closes;               /* with something registered, or without a context */
    atomic_int drivers, files, memories; /* open or registered now */
};

struct fake_cufile *fake_cufile_state(void);

#endif
