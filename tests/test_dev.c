/* Purpose: the host device passes the conformance suite, alone and inside the fault decorator.
 * Owns: nothing.
 * Threads: one drives the device.
 * Errors: a failed assertion ends the test.
 * Invariant: the tests themselves are in dev_suite.c, shared with the devices of GPUs. */
#include "dev_suite.h"

int main(void)
{
    return dev_suite_run(&k3_dev_host);
}
