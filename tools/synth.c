/* Purpose: write a synthetic checkpoint: tensors in published order, headers, data, index.
 * Owns: the directory while writing; the list of tensors of one file at a time (two while the
 * index is merged); one buffer for each worker.
 * Threads: a k3_synth belongs to one thread; chunks of data are made by workers.
 * Errors: K3_EUSAGE, K3_EUNSUPPORTED, K3_EIO, K3_ENOMEM, K3_ECANCELED.
 * Invariants: nothing that was there is overwritten or removed; a file appears under its name only
 * when it is whole; the index comes last; memory does not grow with the bytes of the checkpoint. */
#include "synth.h"

#include "bytes.h"
#include "doc.h"
#include "fs.h"
#include "mem.h"
#include "sizes.h"
#include "st.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_BYTES           128u /* K3 needs 80: an expert of layer 10 or more */
#define FILE_NAME_BYTES      64u  /* model-00001-of-000096.safetensors has 33 */
#define OTHER_FILE_COUNT     3u   /* behind the layers: top, projector, vision */
#define SMALL_FILE_COUNT_MAX 16u
#define CHUNK_BYTES          (1u << 20) /* stays in a core's cache between filling and writing */
#define WORKER_COUNT_MAX     64u        /* more than any disk needs; bounds the buffers to 64 MiB */
#define PUBLISHED_ALIGN      8u         /* the reference library pads 8 + N to this */
#define INDEX_FLUSH_BYTES    (1u << 20)

static const char temporary_name[] = ".k3-synth.tmp";
static const char index_name[] = "model.safetensors.index.json";

struct tensor {
    const struct k3_rule *rule;
    struct k3_st_tensor st;
    uint64_t live_bytes; /* without the zero tail of one that is stored longer */
    char name[NAME_BYTES];
};

struct file {
    char name[FILE_NAME_BYTES];
    struct tensor *tensors; /* in data order */
    uint32_t tensor_count;
    uint64_t data_bytes;
};

struct k3_synth {
    struct k3_synth_options options;
    struct k3_synth_totals totals;
    struct k3_text config_text;
    struct k3_config config;
    struct k3_synth_values *values;
    struct k3_dir dir;
    uint8_t *buffers;               /* worker_count chunks */
    char (*least_name)[NAME_BYTES]; /* by file: its first name in the order of the index */
    char (*made)[FILE_NAME_BYTES];  /* names in dir that are ours */
    uint32_t made_count;
    bool temporary_made;
};

/* ---- layout ---- */

static bool is_in_file(const struct k3_config *config, const struct k3_rule *rule, uint32_t file)
{
    const uint32_t layers = config->layer_count;
    if (rule->scope != K3_SCOPE_FIRST && rule->scope != K3_SCOPE_LAST)
        return file < layers && k3_rule_applies(config, rule, file);
    if (rule->role == K3_ROLE_PROJECTOR)
        return file == layers + 1;
    return file == layers + (rule->role == K3_ROLE_VISION ? 2 : 0);
}

/* Fill shape, dtype and sizes of a rule's tensors.  Returns the bytes of one. */
static uint64_t shape_tensor(const struct k3_config *config, const struct k3_rule *rule,
                             struct tensor *out)
{
    uint64_t rest = k3_dtype_bits((enum k3_dtype)rule->dtype) / 8;
    for (uint32_t i = 0; i < rule->dim_count; i++) {
        out->st.shape[i] = config->value[rule->dim[i]];
        if (i)
            rest *= out->st.shape[i];
    }
    out->live_bytes = out->st.shape[0] * rest;
    if (rule->flags & K3_RULE_STORED_LONGER) {
        /* 96 heads are published as 128 values: a third more, and never without a tail. */
        uint64_t heads = out->st.shape[0];
        uint64_t stored = k3_align_up(k3_div_up(heads * 4, 3), 8);
        out->st.shape[0] = stored > heads + 8 ? stored : heads + 8;
    }
    out->st.dtype = rule->dtype;
    out->st.dim_count = rule->dim_count;
    out->rule = rule;
    return out->st.shape[0] * rest;
}

/* The reference library's order: wider types first (enum k3_dtype ascends as its own), then names.
 */
static int compare_data_order(const void *a, const void *b)
{
    const struct tensor *x = a;
    const struct tensor *y = b;
    if (x->st.dtype != y->st.dtype)
        return x->st.dtype > y->st.dtype ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static void name_file(const struct k3_synth *synth, uint32_t file, char name[FILE_NAME_BYTES])
{
    snprintf(name, FILE_NAME_BYTES, "model-%05u-of-%06u.safetensors", file + 1,
             synth->totals.file_count);
}

static void file_fini(struct file *file)
{
    free(file->tensors);
    file->tensors = NULL;
}

/* List the tensors of file number `number`, in data order with their offsets.  Free with file_fini.
 */
static int file_init(const struct k3_synth *synth, uint32_t number, struct file *out,
                     struct k3_err *err)
{
    const struct k3_config *config = &synth->config;
    const struct k3_model *model = config->model;
    uint32_t count = 0;
    memset(out, 0, sizeof *out);
    name_file(synth, number, out->name);
    for (uint32_t i = 0; i < model->rule_count; i++)
        if (is_in_file(config, &model->rules[i], number))
            count += k3_rule_repeat_count(config, &model->rules[i]);
    out->tensors = calloc(count, sizeof *out->tensors);
    if (!out->tensors)
        return k3_fail_sys(err, ENOMEM, "%s: cannot list %u tensors", out->name, count);
    for (uint32_t i = 0; i < model->rule_count; i++) {
        const struct k3_rule *rule = &model->rules[i];
        uint32_t repeat_count = is_in_file(config, rule, number)
                                    ? k3_rule_repeat_count(config, rule)
                                    : 0;
        for (uint32_t repeat = 0; repeat < repeat_count; repeat++) {
            struct tensor *tensor = &out->tensors[out->tensor_count++];
            tensor->st.end_offset = shape_tensor(config, rule, tensor); /* its size, for now */
            k3_rule_name(rule->name, number, repeat, tensor->name, sizeof tensor->name);
        }
    }
    qsort(out->tensors, count, sizeof *out->tensors, compare_data_order);
    for (uint32_t i = 0; i < count; i++) {
        struct tensor *tensor = &out->tensors[i];
        tensor->st.name = tensor->name;
        tensor->st.name_bytes = (uint32_t)strlen(tensor->name);
        tensor->st.begin_offset = out->data_bytes;
        out->data_bytes += tensor->st.end_offset;
        tensor->st.end_offset = out->data_bytes;
    }
    return 0;
}

/* Sizes of the whole, without naming a tensor. */
static void count_totals(const struct k3_config *config, struct k3_synth_totals *totals)
{
    totals->file_count = config->layer_count + OTHER_FILE_COUNT;
    for (uint32_t file = 0; file < totals->file_count; file++) {
        for (uint32_t i = 0; i < config->model->rule_count; i++) {
            const struct k3_rule *rule = &config->model->rules[i];
            struct tensor tensor;
            if (!is_in_file(config, rule, file))
                continue;
            uint32_t repeat_count = k3_rule_repeat_count(config, rule);
            totals->tensor_count += repeat_count;
            totals->tensor_bytes += repeat_count * shape_tensor(config, rule, &tensor);
        }
    }
}

/* ---- opening ---- */

static int check_options(struct k3_synth_options *options, struct k3_err *err)
{
    static const uint32_t layer_count[] = {
        [K3_SYNTH_TINY] = K3_SYNTH_TINY_LAYERS,
        [K3_SYNTH_LAYER] = K3_SYNTH_LAYER_LAYERS,
        [K3_SYNTH_FULL] = K3_SYNTH_FULL_LAYERS,
    };
    static const uint32_t expert_count[] = {
        [K3_SYNTH_TINY] = K3_SYNTH_TINY_EXPERTS,
        [K3_SYNTH_LAYER] = K3_SYNTH_LAYER_EXPERTS,
        [K3_SYNTH_FULL] = K3_SYNTH_FULL_EXPERTS,
    };
    const uint32_t layers = options->layer_count ? options->layer_count
                                                 : layer_count[options->preset];
    const uint32_t experts = options->expert_count ? options->expert_count
                                                   : expert_count[options->preset];
    if (options->preset == K3_SYNTH_FULL &&
        (layers != K3_SYNTH_FULL_LAYERS || experts != K3_SYNTH_FULL_EXPERTS))
        return k3_fail(err, K3_EUSAGE,
                       "--preset full always has %u layers of %u experts; use --preset layer for "
                       "other numbers",
                       K3_SYNTH_FULL_LAYERS, K3_SYNTH_FULL_EXPERTS);
    if (layers < K3_SYNTH_LAYER_COUNT_MIN || layers > K3_SYNTH_LAYER_COUNT_MAX)
        return k3_fail(
            err, K3_EUSAGE,
            "--layers %u: at least %u are needed to have every kind, at most %u are possible",
            layers, K3_SYNTH_LAYER_COUNT_MIN, K3_SYNTH_LAYER_COUNT_MAX);
    if (experts % K3_SYNTH_EXPERT_STEP || experts > K3_SYNTH_EXPERT_COUNT_MAX)
        return k3_fail(err, K3_EUSAGE, "--experts %u: must be a multiple of %u up to %u", experts,
                       K3_SYNTH_EXPERT_STEP, K3_SYNTH_EXPERT_COUNT_MAX);
    options->layer_count = layers;
    options->expert_count = experts;
    if (!options->worker_count)
        options->worker_count = k3_cpu_count();
    if (options->worker_count > WORKER_COUNT_MAX)
        options->worker_count = WORKER_COUNT_MAX;
    return 0;
}

/* Read our own config.json back, as every reader of the checkpoint will. */
static int decode_config(struct k3_synth *synth, struct k3_err *err)
{
    struct k3_doc *root = NULL;
    struct k3_problems problems;
    k3_problems_init(&problems);
    k3_synth_config_encode(&synth->options, &synth->config_text);
    int rc = k3_text_check(&synth->config_text, err);
    if (!rc)
        rc = k3_doc_decode("config.json", synth->config_text.data, synth->config_text.bytes, &root,
                           err);
    if (!rc)
        rc = k3_config_decode(root, &synth->config, &problems, err);
    k3_doc_free(root);
    k3_problems_fini(&problems);
    return rc;
}

int k3_synth_open(const struct k3_synth_options *options, struct k3_synth **out, struct k3_err *err)
{
    int rc;
    *out = NULL;
    struct k3_synth *synth = calloc(1, sizeof *synth);
    if (!synth)
        return k3_fail_sys(err, ENOMEM, "cannot lay out a checkpoint");
    synth->options = *options;
    synth->dir.fd = -1;
    k3_text_init(&synth->config_text);
    rc = check_options(&synth->options, err);
    if (!rc)
        rc = decode_config(synth, err);
    if (rc)
        goto out;
    count_totals(&synth->config, &synth->totals);
    if (synth->totals.tensor_count > K3_SYNTH_TENSOR_COUNT_MAX) {
        rc = k3_fail(err, K3_EUSAGE,
                     "%u layers of %u experts have %" PRIu64 " tensors, at most %u are possible",
                     synth->options.layer_count, synth->options.expert_count,
                     synth->totals.tensor_count, K3_SYNTH_TENSOR_COUNT_MAX);
        goto out;
    }
    synth->least_name = calloc(synth->totals.file_count, sizeof *synth->least_name);
    synth->made = calloc(synth->totals.file_count + SMALL_FILE_COUNT_MAX, sizeof *synth->made);
    if (!synth->least_name || !synth->made) {
        rc = k3_fail_sys(err, ENOMEM, "cannot lay out %u files", synth->totals.file_count);
        goto out;
    }
    rc = k3_synth_values_open(&synth->values, err);
out:
    if (rc)
        k3_synth_close(synth);
    else
        *out = synth;
    return rc;
}

void k3_synth_close(struct k3_synth *synth)
{
    if (!synth)
        return;
    k3_text_fini(&synth->config_text);
    k3_synth_values_close(synth->values);
    free(synth->least_name);
    free(synth->made);
    free(synth);
}

const struct k3_synth_totals *k3_synth_totals(const struct k3_synth *synth)
{
    return &synth->totals;
}

/* ---- files that appear whole ---- */

static void note_made(struct k3_synth *synth, const char *name)
{
    snprintf(synth->made[synth->made_count++], FILE_NAME_BYTES, "%s", name);
}

static int begin_file(struct k3_synth *synth, int *fd, struct k3_err *err)
{
    int rc = k3_file_create(&synth->dir, temporary_name, fd, err);
    synth->temporary_made = !rc;
    return rc;
}

/* Close and, if all went well (rc 0), give the file its name.  It is not synced: a synthetic
 * checkpoint is made again, not repaired. */
static int end_file(struct k3_synth *synth, int fd, const char *name, int rc, struct k3_err *err)
{
    int close_rc = k3_file_close(fd, name, err);
    rc = rc ? rc : close_rc;
    if (!rc)
        rc = k3_file_rename(&synth->dir, temporary_name, &synth->dir, name, err);
    if (!rc) {
        synth->temporary_made = false;
        note_made(synth, name);
    }
    return rc;
}

static int write_small(struct k3_synth *synth, const char *name, const struct k3_text *text,
                       struct k3_err *err)
{
    int fd;
    int rc = k3_text_check(text, err);
    if (!rc)
        rc = begin_file(synth, &fd, err);
    if (rc)
        return rc;
    rc = k3_file_write(fd, name, text->data, text->bytes, 0, err);
    return end_file(synth, fd, name, rc, err);
}

static int write_extras(struct k3_synth *synth, struct k3_err *err)
{
    int rc = write_small(synth, "config.json", &synth->config_text, err);
    for (uint32_t i = 0; !rc; i++) {
        struct k3_text text;
        k3_text_init(&text);
        const char *name = k3_synth_extra_encode(&synth->options, i, &text);
        if (name)
            rc = write_small(synth, name, &text, err);
        k3_text_fini(&text);
        if (!name)
            break;
    }
    return rc;
}

/* ---- weights ---- */

struct job {
    struct k3_synth *synth;
    const struct file *file;
    uint64_t data_offset;
    int fd;
    /* Buffered writes to one file exclude each other in the kernel, which spins for its turn: half
     * of the system time of a run.  Waiting here sleeps. */
    pthread_mutex_t turn;
};

/* One chunk of the data section: whatever tensors lie there. */
static int write_chunk(void *context, uint32_t worker, uint64_t task, struct k3_err *err)
{
    struct job *job = context;
    const struct k3_synth *synth = job->synth;
    const struct file *file = job->file;
    uint8_t *buffer = synth->buffers + (size_t)worker * CHUNK_BYTES;
    const uint64_t begin = task * CHUNK_BYTES;
    const uint64_t end = file->data_bytes - begin < CHUNK_BYTES ? file->data_bytes
                                                                : begin + CHUNK_BYTES;
    uint32_t low = 0;
    for (uint32_t high = file->tensor_count; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        if (file->tensors[middle].st.end_offset > begin)
            high = middle;
        else
            low = middle + 1;
    }
    for (uint64_t at = begin; at < end; low++) {
        const struct tensor *tensor = &file->tensors[low];
        uint64_t until = tensor->st.end_offset < end ? tensor->st.end_offset : end;
        struct k3_synth_source source;
        k3_synth_source_init(&source, tensor->rule, tensor->name, synth->options.seed,
                             tensor->live_bytes);
        k3_synth_fill(synth->values, &source, at - tensor->st.begin_offset, buffer + (at - begin),
                      (size_t)(until - at));
        at = until;
    }
    pthread_mutex_lock(&job->turn);
    int rc = k3_file_write(job->fd, file->name, buffer, (size_t)(end - begin),
                           job->data_offset + begin, err);
    pthread_mutex_unlock(&job->turn);
    if (!rc && synth->options.progress)
        synth->options.progress(synth->options.progress_context, end - begin);
    return rc;
}

static int write_data(struct job *job, struct k3_err *err)
{
    const struct k3_synth_options *options = &job->synth->options;
    const struct k3_workers_options workers = {
        .worker_count = options->worker_count,
        .task_count = k3_div_up(job->file->data_bytes, CHUNK_BYTES),
        .task = write_chunk,
        .context = job,
        .stop = options->stop,
    };
    if (!options->sparse)
        return k3_workers_run(&workers, err);
    if (ftruncate(job->fd, (off_t)(job->data_offset + job->file->data_bytes)))
        return k3_fail_sys(err, errno, "%s: cannot make a hole of %" PRIu64 " bytes",
                           job->file->name, job->file->data_bytes);
    return 0;
}

static int encode_header(const struct file *file, struct k3_text *text, struct k3_err *err)
{
    struct k3_st_out out;
    k3_st_out_begin(&out, text);
    for (uint32_t i = 0; i < file->tensor_count; i++)
        k3_st_out_tensor(&out, &file->tensors[i].st);
    return k3_st_out_end(&out, PUBLISHED_ALIGN, err);
}

static void note_least_name(struct k3_synth *synth, uint32_t number, const struct file *file)
{
    const struct tensor *least = &file->tensors[0];
    for (uint32_t i = 1; i < file->tensor_count; i++)
        if (strcmp(file->tensors[i].name, least->name) < 0)
            least = &file->tensors[i];
    memcpy(synth->least_name[number], least->name, NAME_BYTES);
}

static int write_weights(struct k3_synth *synth, uint32_t number, struct k3_err *err)
{
    struct file file;
    struct k3_text header;
    struct job job = {.synth = synth, .file = &file};
    pthread_mutex_init(&job.turn, NULL);
    k3_text_init(&header);
    int rc = file_init(synth, number, &file, err);
    if (!rc)
        rc = encode_header(&file, &header, err);
    if (!rc)
        rc = begin_file(synth, &job.fd, err);
    if (rc)
        goto out;
    job.data_offset = header.bytes;
    rc = k3_file_write(job.fd, file.name, header.data, header.bytes, 0, err);
    if (!rc)
        rc = write_data(&job, err);
    rc = end_file(synth, job.fd, file.name, rc, err);
    note_least_name(synth, number, &file);
    synth->totals.file_bytes += header.bytes + file.data_bytes;
out:
    pthread_mutex_destroy(&job.turn);
    k3_text_fini(&header);
    file_fini(&file);
    return rc;
}

/* ---- index ---- */

/* A file as a sorted list of names; listed only while its names are being written.  The names of a
 * layer lie together in the order of the whole, so two lists are the most that exist at once. */
struct list {
    struct file file;
    uint32_t at;
    bool done;
};

struct index_out {
    struct k3_synth *synth;
    struct list *lists; /* by file */
    struct k3_text text;
    uint64_t offset;
    uint64_t entry_count;
    int fd;
};

static const char *next_name(const struct index_out *out, uint32_t file)
{
    const struct list *list = &out->lists[file];
    return list->file.tensors ? list->file.tensors[list->at].name : out->synth->least_name[file];
}

/* The two files whose next names come first; false when all are done.  *second may be UINT32_MAX.
 */
static bool find_next(const struct index_out *out, uint32_t *first, uint32_t *second)
{
    *first = UINT32_MAX;
    *second = UINT32_MAX;
    for (uint32_t file = 0; file < out->synth->totals.file_count; file++) {
        if (out->lists[file].done)
            continue;
        if (*first == UINT32_MAX || strcmp(next_name(out, file), next_name(out, *first)) < 0) {
            *second = *first;
            *first = file;
        } else if (*second == UINT32_MAX ||
                   strcmp(next_name(out, file), next_name(out, *second)) < 0) {
            *second = file;
        }
    }
    return *first != UINT32_MAX;
}

static int flush_index(struct index_out *out, struct k3_err *err)
{
    int rc = k3_text_check(&out->text, err);
    if (!rc)
        rc = k3_file_write(out->fd, index_name, out->text.data, out->text.bytes, out->offset, err);
    out->offset += out->text.bytes;
    out->text.bytes = 0;
    return rc;
}

/* Put the names of file `first` up to the next name of file `second`. */
static int put_entries(struct index_out *out, uint32_t first, uint32_t second, struct k3_err *err)
{
    struct list *list = &out->lists[first];
    int rc = 0;
    if (!list->file.tensors) {
        rc = file_init(out->synth, first, &list->file, err);
        if (rc)
            return rc;
        qsort(list->file.tensors, list->file.tensor_count, sizeof *list->file.tensors,
              compare_names);
    }
    const char *bound = second == UINT32_MAX ? NULL : next_name(out, second);
    while (!rc && !list->done) {
        const char *name = list->file.tensors[list->at].name;
        if (bound && strcmp(name, bound) > 0)
            break;
        k3_text_puts(&out->text, out->entry_count++ ? ",\n    \"" : "    \"");
        k3_text_puts(&out->text, name);
        k3_text_puts(&out->text, "\": \"");
        k3_text_puts(&out->text, list->file.name);
        k3_text_puts(&out->text, "\"");
        list->done = ++list->at == list->file.tensor_count;
        if (out->text.bytes >= INDEX_FLUSH_BYTES)
            rc = flush_index(out, err);
    }
    if (list->done)
        file_fini(&list->file);
    return rc;
}

/* In the form of huggingface_hub: json.dumps(indent=2, sort_keys=True) and a LF. */
static int write_index(struct k3_synth *synth, struct k3_err *err)
{
    struct index_out out = {.synth = synth};
    uint32_t first, second;
    int rc;
    k3_text_init(&out.text);
    out.lists = calloc(synth->totals.file_count, sizeof *out.lists);
    if (!out.lists) {
        rc = k3_fail_sys(err, ENOMEM, "cannot merge the names of %u files",
                         synth->totals.file_count);
        goto out;
    }
    rc = begin_file(synth, &out.fd, err);
    if (rc)
        goto out;
    k3_text_puts(&out.text, "{\n  \"metadata\": {\n    \"total_size\": ");
    k3_text_putu(&out.text, synth->totals.tensor_bytes);
    k3_text_puts(&out.text, "\n  },\n  \"weight_map\": {\n");
    while (!rc && find_next(&out, &first, &second))
        rc = put_entries(&out, first, second, err);
    k3_text_puts(&out.text, "\n  }\n}\n");
    if (!rc)
        rc = flush_index(&out, err);
    assert(rc || out.entry_count == synth->totals.tensor_count);
    rc = end_file(synth, out.fd, index_name, rc, err);
out:
    for (uint32_t file = 0; out.lists && file < synth->totals.file_count; file++)
        file_fini(&out.lists[file].file);
    free(out.lists);
    k3_text_fini(&out.text);
    return rc;
}

/* ---- the whole ---- */

static int check_dir(const struct k3_synth *synth, const char *path, struct k3_err *err)
{
    char **names;
    uint32_t count;
    int rc = k3_dir_list(&synth->dir, &names, &count, err);
    if (rc)
        return rc;
    if (count)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "%s: is not empty (it holds %.64s); synth writes into a new or empty "
                     "directory only; what an "
                     "interrupted synth left may be removed",
                     path, names[0]);
    k3_names_free(names, count);
    uint64_t free_bytes;
    if (rc || synth->options.sparse)
        return rc;
    rc = k3_dir_free_bytes(&synth->dir, &free_bytes, err);
    if (!rc && free_bytes < synth->totals.tensor_bytes)
        rc = k3_fail(err, K3_EUNSUPPORTED,
                     "%s: the weights take %s, %s are free: make room, give another DIR, or use "
                     "--sparse for headers alone",
                     path, k3_size_text(synth->totals.tensor_bytes).s, k3_size_text(free_bytes).s);
    return rc;
}

/* Take back what was written; what cannot be removed stays, the failure that led here is the one to
 * report. */
static void remove_made(struct k3_synth *synth)
{
    if (synth->temporary_made)
        k3_file_remove(&synth->dir, temporary_name, NULL);
    for (uint32_t i = 0; i < synth->made_count; i++)
        k3_file_remove(&synth->dir, synth->made[i], NULL);
}

int k3_synth_write(struct k3_synth *synth, const char *path, struct k3_err *err)
{
    const size_t buffer_bytes = (size_t)synth->options.worker_count * CHUNK_BYTES;
    const bool was_there = access(path, F_OK) == 0;
    void *buffers = NULL;
    int rc = k3_dir_open(path, true, &synth->dir, err);
    if (rc)
        return rc;
    rc = check_dir(synth, path, err);
    if (!rc)
        rc = k3_mem_alloc(buffer_bytes, &buffers, err);
    if (rc)
        goto out;
    synth->buffers = buffers;
    rc = write_extras(synth, err);
    for (uint32_t file = 0; !rc && file < synth->totals.file_count; file++) {
        if (synth->options.stop && synth->options.stop())
            rc = k3_fail(err, K3_ECANCELED, "stopped on request");
        if (!rc)
            rc = write_weights(synth, file, err);
    }
    if (!rc)
        rc = write_index(synth, err);
out:
    k3_fail_in(&synth->dir, rc, err);
    if (rc == K3_ECANCELED && err) {
        k3_err_init(err);
        k3_fail(err, rc, "%s: stopped on request; what was written is removed", path);
    }
    if (rc)
        remove_made(synth);
    if (rc && !was_there)
        rmdir(path);
    k3_mem_free(buffers, buffer_bytes);
    synth->buffers = NULL;
    k3_dir_close(&synth->dir);
    return rc;
}
