/* Purpose: what the tests of cufile and hipfile share: the engine under test, its fake library.
 * Owns: nothing; the fake library stays open.
 * Threads: one.
 * Errors: a failed assertion ends the test.
 * Invariant: a fault is set while no read runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpufile_use.h"
#include "io_gpufile.h"

#include <dlfcn.h>
#include <stdio.h>

const struct k3_io_ops *io_ops;
struct fake_cufile *fake;
struct k3_dev *dev;

int choose_engine(const char *name)
{
    int rc = choose(name);
    io_ops = kind == K3_GPU_HIP ? &k3_io_hipfile : &k3_io_cufile;
    return rc;
}

bool has_engine(void)
{
    struct k3_err err;
    k3_err_init(&err);
    if (ops->probe(0, &err) == 0 && io_ops->probe(NULL, &err) == 0)
        return true;
    printf("SKIP %s: %s\n", io_ops->name, err.text);
    return false;
}

bool find_fake(void)
{
    void *library = dlopen(kind == K3_GPU_CUDA ? "libcufile.so.0" : "libhipfile.so.0", RTLD_NOW);
    struct fake_cufile *(*find)(void) = NULL;
    if (library)
        *(void **)&find = dlsym(library, "fake_cufile_state");
    if (find)
        fake = find();
    return find;
}

void set_fault(enum fake_cufile_fault fault, uint64_t first, uint64_t count, int code)
{
    if (!fake)
        return;
    fake->fault = fault;
    fake->first = first;
    fake->count = count;
    fake->code = code;
    atomic_store(&fake->read_count, 0);
    atomic_store(&fake->hit_count, 0);
    atomic_store(&fake->registered_count, 0);
}

void begin_faultless(void)
{
    set_fault(FAKE_CUFILE_NONE, 0, 0, 0);
    if (fake)
        fake->mode = FAKE_CUFILE_COMPAT;
}

void assert_files_closed(void)
{
    if (!fake)
        return;
    assert_int_equal(atomic_load(&fake->files), 0);
    assert_int_equal(atomic_load(&fake->memories), 0);
    assert_int_equal(atomic_load(&fake->drivers), 0);
    assert_int_equal(atomic_load(&fake->bad_closes), 0);
}

void copy_all(void *target, const void *source_data, size_t bytes, enum k3_copy_kind copy_kind)
{
    struct k3_dev_copy copy = {target, source_data, bytes, copy_kind};
    assert_int_equal(ops->copy_begin(dev, 0, &copy, NULL), 0);
    assert_int_equal(ops->copy_wait(dev, 0, K3_DEV_WAIT_ALL, NULL), 0);
}

int run_fakes(void)
{
    int failed = 0;
    failed += run_again("fake_file", NULL, (const char *[]){"fake", "cuda", NULL}) != 0;
    failed += run_again("fake_file", NULL, (const char *[]){"fake", "hip", NULL}) != 0;
    return failed;
}
