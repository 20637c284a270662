/* Checkpoint names to rules: the inverse of k3_rule_name, for half a million names a second and
 * more. */
#ifndef K3_NAMES_H
#define K3_NAMES_H

#include "model.h"

struct k3_name_table;

/* Fails: K3_ENOMEM. */
int k3_names_open(const struct k3_model *model, struct k3_name_table **out, struct k3_err *err);
void k3_names_close(struct k3_name_table *table); /* NULL is fine */

/* Every rule whose pattern the name fits, in table order: calls begin at *rule = 0; true with
 * *rule, *layer and *index set (numbers in canonical decimal only; not checked against a
 * configuration).  Continue with *rule + 1: g_proj and o_proj stand in two kinds of attention under
 * one name. */
bool k3_names_find(const struct k3_name_table *table, const char *name, size_t name_bytes,
                   uint32_t *rule, uint32_t *layer, uint32_t *index);

#endif
