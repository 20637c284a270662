/* The plan: every size and offset, derived from (headers, config, layout, policy, revision) alone.
 *
 * Built in this order: k3_plan_open (config, layout) -> k3_plan_add_file for each source header ->
 * k3_plan_add_index (streaming) -> k3_plan_check (problems) -> k3_plan_finish (items, text,
 * digest).  Then it is constant and may be read by any thread.  Pure: no I/O.  Every tensor has a
 * slot number, derived from the rules; names are not kept. */
#ifndef K3_PLAN_H
#define K3_PLAN_H

#include "bytes.h"
#include "layout.h"
#include "manifest.h"
#include "policy.h"
#include "st.h"

#define K3_SLOT_NONE UINT32_MAX
#define K3_FILE_NONE UINT32_MAX

/* Where a tensor lies in the checkpoint. */
struct k3_tensor_place {
    uint64_t begin_offset; /* in the data section of its file */
    uint64_t bytes;
    uint32_t file;     /* index in files, K3_FILE_NONE: not seen in a header */
    uint32_t named_in; /* file the index names, K3_FILE_NONE: not named */
};

struct k3_source {
    char *name; /* owned */
    uint64_t bytes;
    uint64_t header_bytes; /* 8 + N: where data begin */
    uint32_t tensor_count;
    bool is_broken; /* its header could not be read: its tensors are not judged */
    uint8_t header_sha256[K3_DIGEST_BYTES];
};

struct k3_item {
    uint32_t *files; /* indices, ascending; owned */
    uint32_t *parts; /* part numbers, ascending; owned */
    uint32_t file_count, part_count;
};

struct k3_plan {
    struct k3_config config;
    struct k3_layout layout;
    struct k3_policy policy;
    struct k3_source *sources;      /* sorted by name */
    struct k3_tensor_place *places; /* by slot */
    struct k3_item *items;
    char *text; /* canonical plan text */
    char *repository, *revision;
    size_t text_bytes;
    uint64_t tensor_bytes; /* sum of source tensor bytes */
    uint64_t tensor_count;
    uint64_t named_count; /* entries of the index */
    uint64_t total_size;  /* metadata.total_size of the index, UINT64_MAX: none */
    uint32_t source_count, item_count, slot_count;
    uint32_t rule_slot[K3_RULE_COUNT_MAX]; /* first slot of each rule */
    struct k3_name_table *names;           /* name -> rule, owned */
    uint8_t config_sha256[K3_DIGEST_BYTES], index_sha256[K3_DIGEST_BYTES];
    uint8_t digest[K3_DIGEST_BYTES];
};

/* Begin a plan with a resolved layout and a policy (NULL: verbatim).  Fails: K3_ENOMEM, K3_ELIMIT;
 * as k3_policy_check. */
int k3_plan_open(const struct k3_config *config, const struct k3_layout *layout,
                 const struct k3_policy *policy, struct k3_plan **out, struct k3_err *err);
void k3_plan_close(struct k3_plan *plan); /* NULL is fine */

/* Slot of a tensor name, K3_SLOT_NONE where the rules know none. */
uint32_t k3_plan_find(const struct k3_plan *plan, const char *name, size_t name_bytes);

/* What a slot is: rule, layer, expert or block; false for a slot the model does not have. */
bool k3_plan_slot(const struct k3_plan *plan, uint32_t slot, uint32_t *rule, uint32_t *layer,
                  uint32_t *index);
void k3_plan_slot_name(const struct k3_plan *plan, uint32_t slot, char *name, size_t bytes);

/* Add a source file (files must come sorted by name) with its decoded header.  What does not fit
 * the rules goes to problems: unknown tensor, twice, dtype, shape.  st NULL: a broken file that was
 * reported already. Fails: K3_ENOMEM, K3_ELIMIT. */
int k3_plan_add_file(struct k3_plan *plan, const struct k3_source *source, const struct k3_st *st,
                     struct k3_problems *problems, struct k3_err *err);

/* Add the index text: unknown tensors, files that are not there.  Fails: as k3_index_decode. */
int k3_plan_add_index(struct k3_plan *plan, const char *file, const char *text, size_t bytes,
                      struct k3_problems *problems, struct k3_err *err);

/* Everything that only the whole can show: tensors missing, in another file than the index names,
 * not in the index; total_size. */
void k3_plan_check(struct k3_plan *plan, struct k3_problems *problems);

/* Items, plan text and digest.  Fails: K3_ENOMEM. */
int k3_plan_finish(struct k3_plan *plan, struct k3_err *err);

/* The item of each part of a finished plan into *items (malloc, caller frees).  Fails: K3_ENOMEM.
 */
int k3_plan_part_items(const struct k3_plan *plan, uint32_t **items, struct k3_err *err);

/* A plan from its text alone, strict: what it re-emits must be the text.  It knows configuration,
 * layout, source files and digest, which is all that parts and their headers need, but of no tensor
 * where it lies in the checkpoint.  Fails: K3_EFORMAT, K3_EUNSUPPORTED (architecture), K3_ENOMEM.
 */
int k3_plan_decode(const char *text, size_t bytes, struct k3_plan **out, struct k3_err *err);

/* ---- sizes of a rank, from the rules alone (no tensor is walked) ---- */
struct k3_rank_sizes {
    uint64_t image_bytes;      /* data sections with all pads */
    uint64_t read_bytes;       /* image - pads */
    uint64_t replicated_bytes; /* of those, held by another rank too */
    uint64_t role_bytes[K3_ROLE_COUNT];
    uint32_t part_count;
};
/* policy NULL: verbatim; else checked against model and layout. */
void k3_rank_sizes(const struct k3_config *config, const struct k3_layout *layout,
                   const struct k3_policy *policy, uint32_t rank, struct k3_rank_sizes *sizes);

#endif
