/* Casts while an item is converted: first a survey of what must be known of whole matrices, then
 * the matrices, band by band, as their bytes come (FORMAT.md 4.7). */
#ifndef K3_CONVERT_CAST_H
#define K3_CONVERT_CAST_H

#include "cast_gpu.h"
#include "cast_row.h"
#include "scatter.h"

/* What was found out about whole matrices before anything is written. */
struct k3_survey {
    const struct k3_ckpt *ckpt;
    float *globals;              /* by slot: global scales; NULL: the policy needs none; owned */
    _Atomic uint64_t read_bytes; /* looked through so far */
};

/* True where the policy asks for a survey at all. */
bool k3_survey_is_needed(const struct k3_plan *plan);
int k3_survey_open(const struct k3_ckpt *ckpt, struct k3_survey *survey, struct k3_err *err);
void k3_survey_close(struct k3_survey *survey); /* safe on a zeroed struct */

/* Look at the matrices of one item; items may be looked at side by side.  Reads the scales of
 * MXFP4, and values only where these do not settle it or the format asks for their largest.
 * Fails: K3_EUNSUPPORTED (a group out of the window, with K3_OOW_FAIL), K3_EFORMAT (a value or a
 * scale that is not finite), K3_EIO, K3_ENOMEM. */
int k3_survey_item(struct k3_survey *survey, uint32_t item, struct k3_err *err);

/* Write bytes to a target, at an offset in its file. */
typedef int (*k3_cast_put_fn)(void *context, uint32_t target, const uint8_t *data, uint64_t bytes,
                              uint64_t offset, struct k3_err *err);

/* What one item's casts need; owned by one worker. */
struct k3_caster {
    const struct k3_scatter *scatter;
    const struct k3_survey *survey;
    k3_cast_put_fn put;
    void *context;
    struct k3_cast_lane *lane; /* of the GPU that casts; NULL: the CPU */
    struct k3_cast_row *casts; /* what was cast, in the order of the sources; owned */
    uint32_t cast_count, cast_cap;

    /* the matrix that is coming */
    struct k3_qstats stats; /* each slice counted once */
    struct k3_quant quant;
    struct k3_qgeom geom; /* of the slice of a target */
    enum k3_qfmt from;
    uint64_t rows, row_bytes, local_rows; /* of the source; of the cut by rows */
    uint64_t row_first, band_bytes;       /* band being gathered: its first row, bytes so far */
    uint32_t slot;
    char name[K3_ST_NAME_BYTES_MAX + 64];

    /* buffers, grown to what a matrix needs; owned */
    uint8_t *band, *cut, *cut_scale, *bf16, *weight, *scale;
    size_t band_cap, cut_cap, cut_scale_cap, bf16_cap, weight_cap, scale_cap;
    uint8_t *scales; /* of an MXFP4 matrix, whole */
    size_t scales_cap;
    uint64_t scales_bytes;
    uint32_t scales_slot; /* K3_SLOT_NONE: none */
    uint8_t *is_done;     /* by target */
    uint64_t read_bytes;  /* beside the stream: scales that are needed before it brings them */
};

int k3_caster_open(const struct k3_scatter *scatter, const struct k3_survey *survey,
                   struct k3_caster *caster, struct k3_err *err);
void k3_caster_close(struct k3_caster *caster); /* safe on a zeroed struct */

/* Format a tensor is cast to: K3_Q_VERBATIM where it is kept. */
enum k3_qfmt k3_cast_fmt(const struct k3_plan *plan, uint32_t slot);

/* The next run of a tensor that is cast, in the order of its bytes.  Fails: K3_EUNSUPPORTED,
 * K3_EFORMAT (as k3_quant_rows), K3_ECORRUPT (the source changed), K3_EIO, K3_ENOMEM. */
int k3_caster_run(struct k3_caster *caster, const struct k3_run *run, const uint8_t *data,
                  struct k3_err *err);

/* Hand over what was cast, by slot; caller frees. */
struct k3_cast_row *k3_caster_rows(struct k3_caster *caster, uint32_t *count);

/* ---- shared by both files ---- */
/* The bytes [begin, begin + bytes) of a tensor of the checkpoint. */
int k3_cast_read(const struct k3_ckpt *ckpt, uint32_t slot, uint64_t begin, void *data,
                 uint64_t bytes, struct k3_err *err);
/* Slot of the scales of an MXFP4 matrix. */
uint32_t k3_cast_scale_slot(const struct k3_plan *plan, uint32_t slot);
/* Parameters of a cast by the policy of a plan.  By way of BF16 a group that BF16 cannot hold is
 * refused whatever --oow says: the second step would not know what the first one lost. */
struct k3_qparams k3_cast_params(const struct k3_plan *plan, enum k3_qfmt from, enum k3_qfmt to);
/* A tensor was refused: add what to give to keep it as it is; lead: how that is introduced. */
void k3_cast_advise(const struct k3_plan *plan, uint32_t slot, const char *lead,
                    struct k3_err *err);
/* At least `bytes` at *data. */
int k3_cast_grow(uint8_t **data, size_t *cap, uint64_t bytes, struct k3_err *err);

#endif
