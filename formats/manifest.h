/* The manifest and the record of an item: structs, canonical encode, strict decode (FORMAT.md 2, 8,
 * 9). */
#ifndef K3_MANIFEST_H
#define K3_MANIFEST_H

#include "bytes.h"
#include "k3_err.h"
#include "text.h"

#define K3_MANIFEST_NAME      "k3-shards.json"
#define K3_HEADERS_NAME       "source-headers.zst"
#define K3_PARTIAL_NAME       ".k3-partial"
#define K3_PLAN_NAME          "plan.json" /* inside K3_PARTIAL_NAME */
#define K3_MANIFEST_BYTES_MAX (64u << 20) /* FORMAT.md 1 */
#define K3_RANK_COUNT_MAX     4096u
#define K3_PART_COUNT_MAX     4096u
#define K3_FILE_COUNT_MAX     4096u
#define K3_TOKEN_BYTES        16u /* hex digits of an attempt */
#define K3_NAME_BYTES_MAX     255u

struct k3_file_entry {
    char *name; /* owned */
    uint64_t bytes;
    uint8_t sha256[K3_DIGEST_BYTES];
};

struct k3_part_entry {
    uint32_t rank, part;
    uint64_t bytes;       /* whole file */
    uint64_t data_offset; /* where its data section begins */
    uint8_t sha256[K3_DIGEST_BYTES];
    uint8_t tree[K3_DIGEST_BYTES];
};

struct k3_manifest_rank {
    uint32_t rank;
    uint32_t part_count;
    uint64_t image_bytes;
    struct k3_part_entry *parts; /* owned, in part order */
    struct k3_file_entry units;
};

struct k3_manifest {
    struct k3_file_entry *files; /* copied files, sorted by name; owned */
    struct k3_file_entry headers;
    struct k3_file_entry *sources;  /* sorted by name; owned */
    struct k3_manifest_rank *ranks; /* ascending; owned */
    char *plan_text;                /* the plan as canonical JSON; owned */
    size_t plan_bytes;
    char *tool;
    uint32_t file_count, source_count, rank_count;
    uint8_t plan_digest[K3_DIGEST_BYTES];
};

struct k3_cast_row;

struct k3_record {
    struct k3_cast_row *casts;     /* what was cast, by slot; owned */
    struct k3_file_entry *files;   /* staged files that are not parts; owned */
    struct k3_part_entry *parts;   /* by (rank, part); owned */
    struct k3_file_entry *sources; /* owned */
    uint8_t *unit_digests;         /* all units of parts[0], of parts[1], ...; owned */
    uint64_t unit_count;
    char *tool;
    uint32_t cast_count, file_count, part_count, source_count, item;
    char token[K3_TOKEN_BYTES + 1];
    uint8_t plan_digest[K3_DIGEST_BYTES];
};

/* model-rank-R-part-P.safetensors and model-rank-R.units; name has K3_NAME_BYTES_MAX + 1 bytes. */
void k3_part_name(uint32_t rank, uint32_t part, char *name);
void k3_units_name(uint32_t rank, char *name);
/* The other way round, strict (no leading zeros); 1 where it is such a name, else 0. */
int k3_part_name_decode(const char *name, uint32_t *rank, uint32_t *part);
int k3_units_name_decode(const char *name, uint32_t *rank);

/* Encode; plan_digest and totals are computed here from plan_text and ranks.  Fails: K3_ENOMEM,
 * K3_EFORMAT. */
int k3_manifest_encode(const struct k3_manifest *manifest, struct k3_text *out, struct k3_err *err);

/* Decode, check every rule of FORMAT.md 8 that the manifest alone can break (self digest first,
 * then form, order, names, limits, plan digest, totals, bytes multiples of UNIT), re-encode and
 * compare.  file names it in messages. Fails: K3_ECORRUPT, K3_EFORMAT, K3_EVERSION, K3_ELIMIT,
 * K3_ENOMEM. */
int k3_manifest_decode(const char *file, const char *text, size_t bytes, struct k3_manifest *out,
                       struct k3_err *err);
void k3_manifest_fini(struct k3_manifest *manifest); /* safe on a zeroed struct */

/* The same for a record: head, raw unit digests, casts. */
int k3_record_encode(const struct k3_record *record, struct k3_text *out, struct k3_err *err);
int k3_record_decode(const char *file, const char *text, size_t bytes, struct k3_record *out,
                     struct k3_err *err);
void k3_record_fini(struct k3_record *record);

#endif
