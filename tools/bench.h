/* The ceilings of a machine and what the jobs make of them: one table of rows, each measured once
 * in every round, so that a slow moment meets all of them.  A new device adds rows, not code here.
 */
#ifndef K3_BENCH_H
#define K3_BENCH_H

#include "bench_dev.h"
#include "bench_io.h"
#include "opts.h"
#include "set.h"

#define K3_BENCH_WHY_BYTES 512

/* What a job may be limited by.  The ceiling of a limit is the best row that measures it. */
enum k3_bench_limit {
    K3_LIMIT_NONE,
    K3_LIMIT_STORAGE, /* direct reads */
    K3_LIMIT_MEMORY,  /* reads from the page cache */
    K3_LIMIT_HASH,    /* the tree hash on all cores */
    K3_LIMIT_BUS,     /* copies from pinned memory to the device */
    K3_LIMIT_COPY,    /* copying files, sync, direct read of the copy */
    K3_LIMIT_COUNT
};

enum k3_bench_row_id {
    K3_ROW_DIRECT_1,
    K3_ROW_DIRECT_4,
    K3_ROW_DIRECT_16,
    K3_ROW_DIRECT_64,
    K3_ROW_DIRECT_THREADS,
    K3_ROW_LOAD_COLD,
    K3_ROW_LOAD_COLD_UNVERIFIED,
    K3_ROW_BUS,
    K3_ROW_DEVICE_COLD,
    K3_ROW_DEVICE_COLD_UNVERIFIED,
    K3_ROW_PAGE_CACHE,
    K3_ROW_LOAD_HOT,
    K3_ROW_LOAD_HOT_UNVERIFIED,
    K3_ROW_DEVICE_HOT,
    K3_ROW_DEVICE_HOT_UNVERIFIED,
    K3_ROW_DEVICE_HASH,
    K3_ROW_MEMCPY,
    K3_ROW_MEMCPY_ALL,
    K3_ROW_HASH,
    K3_ROW_HASH_LIBCRYPTO,
    K3_ROW_HASH_ALL,
    K3_ROW_STREAM,
    K3_ROW_COPY,
    K3_ROW_CONVERT,
    K3_ROW_COUNT
};

struct k3_bench;
struct k3_bench_row;

/* One measurement.  K3_EUNSUPPORTED: cannot be measured here; the text is shown beside the row. */
typedef int (*k3_bench_fn)(struct k3_bench *bench, const struct k3_bench_row *row, double *gb_per_s,
                           struct k3_err *err);

struct k3_bench_row {
    const char *name; /* in --json: stable */
    const char *text; /* on the screen */
    k3_bench_fn measure;
    enum k3_bench_limit is_ceiling_of; /* NONE: a yardstick only */
    uint32_t limits;    /* a job: bit enum k3_bench_limit of what may limit it; 0: a ceiling */
    uint32_t parameter; /* depth, threads or enum k3_sha256_form */
    bool is_verified;   /* a load: every unit is checked */
    bool is_hot;        /* a load: through the page cache, filled before */
    bool is_device;     /* a load: to --device, not to the host */
};

extern const struct k3_bench_row k3_bench_rows[K3_ROW_COUNT];

/* What was measured of a row. */
struct k3_bench_result {
    double gb_per_s[K3_BENCH_ROUNDS_MAX];
    uint32_t count; /* rounds so far; 0: not measured, `why` says why not */
    char why[K3_BENCH_WHY_BYTES];
    char io[16];     /* a load: the engine that ran; "": none did */
    bool is_direct;  /* a load: past the page cache */
    bool is_partial; /* a load: stopped when its bytes were there */
};

struct k3_bench {
    const struct k3_opts *opts;
    struct k3_set *set;            /* owned */
    uint32_t *ranks;               /* owned */
    int *fds;                      /* of all parts of those ranks; owned */
    struct k3_bench_chunk *chunks; /* what one measurement reads, in the order of a load; owned */
    uint8_t *data, *other;         /* buffer_bytes each, owned */
    struct k3_sha256 **shas;       /* one for each core; owned */
    char *scratch;                 /* path of the temporary directory; owned; NULL: none */
    int scratch_fd;                /* of it, with its lock; where scratch is not NULL */
    uint64_t image_bytes;          /* of all ranks */
    uint64_t round_bytes;          /* of the chunks */
    uint64_t chunk_count;
    uint64_t memory_bytes; /* free when it began */
    uint64_t copy_bytes;   /* of the scratch checkpoint */
    size_t buffer_bytes;
    uint32_t rank_count, fd_count, core_count;
    const struct k3_dev_ops *device_ops; /* of --device; NULL: none was named */
    uint32_t device_index;
    uint64_t device_free_bytes; /* when it began; 0: not known */
    struct k3_bench_dev device; /* open for a measurement */
    struct k3_bench_result results[K3_ROW_COUNT];
};

/* ---- measurements ---- */
int k3_bench_direct(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_page_cache(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_load(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_memcpy(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_hash(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_stream(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_bus(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_device_hash(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_copy(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);
int k3_bench_convert(struct k3_bench *, const struct k3_bench_row *, double *, struct k3_err *);

/* Take --device: one GPU or the host.  K3_EUSAGE for what is no such text. */
int k3_bench_device_take(struct k3_bench *bench, struct k3_err *err);

/* K3_EUNSUPPORTED where none was named. */
int k3_bench_device_named(const struct k3_bench *bench, struct k3_err *err);

/* Make the checkpoint that k3_bench_copy and k3_bench_convert work on; remove all of it. */
int k3_bench_scratch_open(struct k3_bench *bench, struct k3_err *err);
void k3_bench_scratch_close(struct k3_bench *bench);

/* ---- what the figures say ---- */

/* The middle value of count (at least 1); the mean of the middle two where it is even. */
double k3_bench_median(const double *values, uint32_t count);

struct k3_bench_verdict {
    double gb_per_s;         /* median */
    double limit_gb_per_s;   /* median; 0: no limit was measured */
    double percent_of_limit; /* median of the rounds' own ratios */
    double limit_rounds[K3_BENCH_ROUNDS_MAX];
    double percent_rounds[K3_BENCH_ROUNDS_MAX];
    const char *limit; /* "storage", "hash", "memory", "memory and hash", "bus", "copy"; or NULL */
    uint32_t count;
};
/* Judge a job that was measured in every round.  Pure. */
void k3_bench_judge(const struct k3_bench_result results[K3_ROW_COUNT], enum k3_bench_row_id id,
                    struct k3_bench_verdict *verdict);
/* The row with the highest median of those that are the ceiling of a limit; K3_ROW_COUNT: none was
 * measured.  Pure. */
enum k3_bench_row_id k3_bench_best(const struct k3_bench_result results[K3_ROW_COUNT],
                                   enum k3_bench_limit limit);

#endif
