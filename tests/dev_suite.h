/* The conformance suite of devices (cmocka), as it is and with the fault decorator around it. */
#ifndef DEV_SUITE_H
#define DEV_SUITE_H

#include "dev.h"

/* Run it over device 0 of this kind.  Gives back how many tests failed. */
int dev_suite_run(const struct k3_dev_ops *device);

#endif
