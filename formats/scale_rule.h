/* How the E8M0 scale of a group follows from its largest magnitude (docs/QUANTIZATION.md 3).  Pure,
 * by bits: with amax = m * 2^e, 1 <= m < 2, and E the exponent of the largest element. */
#ifndef K3_SCALE_RULE_H
#define K3_SCALE_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum k3_scale_rule {
    K3_SCALE_FLOOR, /* e - E: clips above 1.5 (E2M1) or 1.75 (E4M3) of the top binade */
    K3_SCALE_RCEIL, /* the smallest that never clips */
    K3_SCALE_EVEN,  /* amax rounded to the element's fraction bits first */
    K3_SCALE_CEIL,  /* e - E, one more unless m = 1 */
    K3_SCALE_MSE,   /* of five around e - E the one with the least squared error */
    K3_SCALE_RULE_COUNT
};

/* Elements below the scale. */
enum k3_scale_element { K3_SCALE_E2M1, K3_SCALE_E4M3 };

#define K3_SCALE_MSE_BELOW 2 /* the mse rule tries floor - 2 ... floor + 2, clamped to 0..254 */
#define K3_SCALE_MSE_ABOVE 2

/* The scale byte, 0..254, of a group whose largest magnitude has these FP32 bits (sign ignored,
 * finite); 0 for a group of zeros.  The mse rule needs the values: here it gives what floor does.
 */
uint8_t k3_scale_byte(enum k3_scale_rule rule, enum k3_scale_element element, uint32_t amax_bits);

/* Spelling "floor", "rceil", "even", "ceil", "mse". */
const char *k3_scale_rule_name(enum k3_scale_rule rule);
bool k3_scale_rule_find(const char *name, size_t bytes, enum k3_scale_rule *rule);

#endif
