/* The published K3 configuration as a struct, for tests that check numbers against the published
 * checkpoint. */
#ifndef K3_NUMBERS_H
#define K3_NUMBERS_H

#include "model.h"

/* Fill the configuration of the published K3 (93 layers, 896 experts), derived values included. */
void k3_test_config(struct k3_config *config);

#endif
