/* Synthetic checkpoints: the exact names, shapes, dtypes, file order and header bytes of Kimi K3,
 * filled with numbers that look like weights.  Configuration text (synth_config.c), numbers
 * (synth_values.c), files (synth.c). */
#ifndef K3_SYNTH_H
#define K3_SYNTH_H

#include "k3_err.h"
#include "model.h"
#include "text.h"
#include "workers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum k3_synth_preset {
    K3_SYNTH_TINY,  /* every kind of layer, dimensions cut but legal for tp 1, 2, 4, 8 and 16 */
    K3_SYNTH_LAYER, /* real dimensions, few layers, few experts */
    K3_SYNTH_FULL   /* 93 layers, 896 experts */
};

/* Plain numbers, since the help prints them. */
#define K3_SYNTH_TINY_LAYERS      5
#define K3_SYNTH_TINY_EXPERTS     16
#define K3_SYNTH_LAYER_LAYERS     3
#define K3_SYNTH_LAYER_EXPERTS    64
#define K3_SYNTH_FULL_LAYERS      93
#define K3_SYNTH_FULL_EXPERTS     896
#define K3_SYNTH_LAYER_COUNT_MIN  3    /* KDA + dense, KDA + MoE, MLA + MoE */
#define K3_SYNTH_LAYER_COUNT_MAX  4093 /* with the three other files 4096, FORMAT.md 1 */
#define K3_SYNTH_EXPERT_STEP      16 /* tp 16 as whole experts; ten and more: string order shows */
#define K3_SYNTH_EXPERT_COUNT_MAX 4096
#define K3_SYNTH_TENSOR_COUNT_MAX                                                                  \
    8000000u /* 130 bytes of index each: stays below 1 GiB, FORMAT.md 1 */

struct k3_synth_options {
    enum k3_synth_preset preset;
    uint32_t layer_count;  /* 0: as the preset has */
    uint32_t expert_count; /* 0: as the preset has */
    uint64_t seed;
    bool sparse;                                     /* headers only; the data are a hole */
    uint32_t worker_count;                           /* 0: one for each core */
    k3_stop_fn stop;                                 /* may be NULL */
    void (*progress)(void *context, uint64_t bytes); /* may be NULL; called from any worker */
    void *progress_context;
};

struct k3_synth_totals {
    uint32_t file_count;
    uint64_t tensor_count;
    uint64_t tensor_bytes; /* metadata.total_size of the index */
    uint64_t file_bytes;   /* of the safetensors files, headers included; known after writing */
};

struct k3_synth; /* one checkpoint to be written; owned by one thread */

/* Check the options and lay the checkpoint out.  Copies the options.  Free with k3_synth_close.
 * Fails: K3_EUSAGE (layers, experts), K3_ENOMEM. */
int k3_synth_open(const struct k3_synth_options *options, struct k3_synth **out,
                  struct k3_err *err);
void k3_synth_close(struct k3_synth *synth); /* NULL is fine */
const struct k3_synth_totals *k3_synth_totals(const struct k3_synth *synth);

/* Write it into directory `path`, which must be empty or not be there (its parent must).  The index
 * comes last.  What was written is removed again on failure.  Once for each k3_synth. Fails:
 * K3_EUNSUPPORTED (not empty, too little space), K3_EIO, K3_ENOMEM, K3_ECANCELED. */
int k3_synth_write(struct k3_synth *synth, const char *path, struct k3_err *err);

/* ---- configuration texts (synth_config.c); counts are the checked ones, never 0 ---- */

/* Emit config.json. */
void k3_synth_config_encode(const struct k3_synth_options *options, struct k3_text *out);

/* Emit file number `index` of those that are only copied: tokenizer, licence and the like.
 * Returns its name, or NULL when there is none of that number. */
const char *k3_synth_extra_encode(const struct k3_synth_options *options, uint32_t index,
                                  struct k3_text *out);

/* ---- numbers (synth_values.c) ---- */

struct k3_synth_values; /* tables; constant once open, shared by all threads */

/* Fails: K3_ENOMEM. */
int k3_synth_values_open(struct k3_synth_values **out, struct k3_err *err);
void k3_synth_values_close(struct k3_synth_values *values); /* NULL is fine */

/* Where the bytes of one tensor come from. */
struct k3_synth_source {
    uint64_t key;        /* of seed and name; the two tensors of an MXFP4 matrix share it */
    uint64_t live_bytes; /* zero from here on: the tail of a tensor that is stored longer */
    float center, spread;
    uint8_t kind;
    uint8_t halvings; /* the spread is divided by 2 this often */
};

/* Choose the source of tensor `name` of `rule`; live_bytes: of its values, without a tail.  Pure.
 */
void k3_synth_source_init(struct k3_synth_source *source, const struct k3_rule *rule,
                          const char *name, uint64_t seed, uint64_t live_bytes);

/* Fill out[bytes] with the tensor's bytes from `offset` on.  Any slice gives what the whole would
 * hold there. Any thread. */
void k3_synth_fill(const struct k3_synth_values *values, const struct k3_synth_source *source,
                   uint64_t offset, void *out, size_t bytes);

#endif
