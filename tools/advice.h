/* Does a layout fit, and what would: the budget check that plan and convert share. */
#ifndef K3_ADVICE_H
#define K3_ADVICE_H

#include "opts.h"
#include "plan.h"

/* Layout of the command line (unresolved).  Fails: K3_EUSAGE. */
int k3_layout_from_opts(const struct k3_opts *opts, struct k3_layout *layout, struct k3_err *err);

/* Policy of the command line: --quant, --oow and --config, which may not contradict each other.  A
 * text that ends in .json is a file.  Fails: K3_EUSAGE, K3_EFORMAT, K3_EIO, K3_ENOMEM. */
int k3_policy_from_opts(const struct k3_opts *opts, struct k3_policy *policy, struct k3_err *err);

/* The other way round: " --tp 2 --experts ep", what is not the default; tp always. */
struct k3_text;
void k3_layout_put_options(const struct k3_layout *layout, struct k3_text *out);

/* A --quant that changes nothing is no error, but hardly meant, and one that casts what engines
 * read as BF16 only hardly serves: what to say of them on stderr. */
void k3_say_policy(const struct k3_opts *opts, const struct k3_plan *plan);

/* " --budget 250GiB" where it is not the default. */
void k3_budget_put_option(uint64_t budget_bytes, struct k3_text *out);

/* The largest image of all ranks, in bytes, and its rank. */
uint64_t k3_largest_image(const struct k3_config *config, const struct k3_layout *layout,
                          const struct k3_policy *policy, uint32_t *rank);

/* K3_EUNSUPPORTED when an image is beyond the budget, with layouts that would fit; else 0. */
int k3_check_budget(const struct k3_plan *plan, uint64_t budget_bytes, struct k3_err *err);

#endif
