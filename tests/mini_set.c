/* Purpose: make a small shard set for tests of the loader.
 * Owns: the directories it made and all memory of a struct mini_set, until mini_set_remove.
 * Threads: one.
 * Errors: any failure prints a line and aborts: the test cannot go on.
 * Invariant: the bytes depend on nothing but the slot number, so every run makes the same set. */
#include "mini_set.h"

#include "doc.h"
#include "fs.h"
#include "tree.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* vocab_size makes the embedding slice of a rank 4.5 MiB: more than one chunk of reads. */
static const char plan_config[] =
    "{\"text_config.first_k_dense_replace\":1,\"text_config.hidden_size\":64,"
    "\"text_config.intermediate_size\":96,\"text_config.kv_lora_rank\":16,"
    "\"text_config.linear_attn_config.full_attn_layers\":[3],"
    "\"text_config.linear_attn_config.head_dim\":8,"
    "\"text_config.linear_attn_config.kda_layers\":[1,2],"
    "\"text_config.linear_attn_config.num_heads\":4,"
    "\"text_config.linear_attn_config.short_conv_kernel_size\":4,"
    "\"text_config.moe_intermediate_size\":128,\"text_config.num_attention_heads\":4,"
    "\"text_config.num_experts\":12,\"text_config.num_hidden_layers\":3,"
    "\"text_config.num_shared_experts\":2,\"text_config.q_lora_rank\":24,"
    "\"text_config.qk_nope_head_dim\":8,\"text_config.qk_rope_head_dim\":4,"
    "\"text_config.routed_expert_hidden_size\":32,\"text_config.v_head_dim\":8,"
    "\"text_config.vocab_size\":73728,\"vision_config.init_pos_emb_height\":4,"
    "\"vision_config.init_pos_emb_width\":6,\"vision_config.merge_kernel_size\":[2,2],"
    "\"vision_config.mm_hidden_size\":16,\"vision_config.patch_size\":2,"
    "\"vision_config.qkv_hidden_size\":24,\"vision_config.text_hidden_size\":64,"
    "\"vision_config.vt_hidden_size\":16,\"vision_config.vt_intermediate_size\":32,"
    "\"vision_config.vt_num_hidden_layers\":2}";

static void must(int failed, const char *what, const struct k3_err *err)
{
    if (!failed)
        return;
    fprintf(stderr, "mini_set: %s: %s\n", what, err ? err->text : "failed");
    abort();
}

static void *must_alloc(size_t bytes)
{
    void *data = calloc(bytes ? bytes : 1, 1);
    must(!data, "memory", NULL);
    return data;
}

/* ---- plan and sources ---- */

static uint64_t slot_bytes(const struct k3_config *config, const struct k3_rule *rule,
                           uint64_t shape[4])
{
    uint64_t bytes = k3_dtype_bits(rule->dtype) / 8;
    for (uint32_t d = 0; d < 4; d++) {
        shape[d] = d < rule->dim_count ? config->value[rule->dim[d]] : 1;
        bytes *= shape[d];
    }
    return bytes;
}

static void fill_source(uint8_t *data, uint64_t bytes, uint64_t seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (uint64_t i = 0; i < bytes; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data[i] = (uint8_t)(state >> 32);
    }
}

/* One source file with every tensor of the model. */
static void add_source(struct mini_set *mini, struct k3_err *err)
{
    struct k3_plan *plan = mini->plan;
    struct k3_text text;
    struct k3_st_out out;
    uint64_t end_offset = 0;
    k3_text_init(&text);
    k3_st_out_begin(&out, &text);
    mini->sources = must_alloc(plan->slot_count * sizeof *mini->sources);
    for (uint32_t slot = 0; slot < plan->slot_count; slot++) {
        uint32_t rule, layer, index;
        char name[K3_ST_NAME_BYTES_MAX + 1];
        if (!k3_plan_slot(plan, slot, &rule, &layer, &index))
            continue;
        const struct k3_rule *row = &plan->config.model->rules[rule];
        struct k3_st_tensor tensor = {.name = name,
                                      .begin_offset = end_offset,
                                      .dtype = row->dtype,
                                      .dim_count = row->dim_count};
        uint64_t bytes = slot_bytes(&plan->config, row, tensor.shape);
        k3_plan_slot_name(plan, slot, name, sizeof name);
        end_offset += bytes;
        tensor.end_offset = end_offset;
        tensor.name_bytes = (uint32_t)strlen(name);
        k3_st_out_tensor(&out, &tensor);
        mini->sources[slot] = must_alloc(bytes);
        fill_source(mini->sources[slot], bytes, slot + 1);
    }
    must(k3_st_out_end(&out, 8, err), "source header", err);
    char file[] = "model-00001-of-000001.safetensors";
    struct k3_st *st;
    struct k3_problems problems;
    k3_problems_init(&problems);
    struct k3_source source = {
        .name = file, .bytes = text.bytes + end_offset, .header_bytes = text.bytes};
    must(k3_st_decode(file, text.data, text.bytes, source.bytes, &st, err), "source header", err);
    must(k3_plan_add_file(plan, &source, st, &problems, err), "source", err);
    must(problems.count != 0, problems.kept_count ? problems.text[0] : "problems", NULL);
    k3_problems_fini(&problems);
    k3_st_free(st);
    k3_text_fini(&text);
}

static void make_plan(struct mini_set *mini, struct k3_err *err)
{
    struct k3_doc *root;
    struct k3_layout layout;
    struct k3_config *config = must_alloc(sizeof *config);
    must(k3_doc_decode("config", plan_config, sizeof plan_config - 1, &root, err), "config", err);
    must(k3_config_decode_plan(root, &k3_model_k3, config, err), "config", err);
    k3_layout_init(&layout);
    layout.tp = MINI_RANK_COUNT;
    must(k3_layout_resolve(&layout, config, err), "layout", err);
    must(k3_plan_open(config, &layout, NULL, &mini->plan, err), "plan", err);
    add_source(mini, err);
    must(k3_plan_finish(mini->plan, err), "plan", err);
    k3_doc_free(root);
    free(config);
}

/* ---- cutting ---- */

static void cut(const uint8_t *source, const struct k3_slice *slice, uint8_t *target)
{
    for (uint64_t row = 0; row < slice->row_count; row++)
        memcpy(target + row * slice->column_bytes,
               source + (slice->row_begin + row) * slice->row_bytes + slice->column_begin,
               slice->column_bytes);
}

uint8_t *mini_set_slice(const struct mini_set *mini, uint32_t rank, const char *name,
                        uint64_t *bytes)
{
    const struct k3_plan *plan = mini->plan;
    uint32_t rule, layer, index;
    uint32_t slot = k3_plan_find(plan, name, strlen(name));
    must(slot == K3_SLOT_NONE, name, NULL);
    must(!k3_plan_slot(plan, slot, &rule, &layer, &index), name, NULL);
    struct k3_place place;
    struct k3_slice slice;
    k3_layout_place(&plan->layout, rank, &place);
    must(!k3_layout_slice(&plan->layout, &plan->config, &plan->config.model->rules[rule], index,
                          &place, &slice),
         name, NULL);
    *bytes = slice.row_count * slice.column_bytes;
    uint8_t *data = must_alloc(*bytes);
    cut(mini->sources[slot], &slice, data);
    return data;
}

/* ---- files ---- */

static void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    must(!file, path, NULL);
    must(bytes && fwrite(data, 1, bytes, file) != bytes, path, NULL);
    must(fclose(file), path, NULL);
}

static void sha_of(const void *data, size_t bytes, uint8_t digest[K3_DIGEST_BYTES])
{
    struct k3_sha256 *sha;
    must(k3_sha256_open(&sha, NULL), "sha256", NULL);
    k3_sha256_of(sha, data, bytes, digest);
    k3_sha256_close(sha);
}

/* Bytes of a part and its digests; appends its units to *units and its data to the image. */
static void make_part(struct mini_set *mini, struct k3_part_entry *entry, struct k3_text *units,
                      struct k3_text *image, struct k3_err *err)
{
    struct k3_part part;
    struct k3_text file;
    struct k3_tree *tree;
    uint64_t unit_count;
    char path[256];
    k3_text_init(&file);
    must(k3_part_build(mini->plan, entry->rank, entry->part, &part, err), "part", err);
    must(k3_part_header(mini->plan, &part, &file, err), "part header", err);
    entry->data_offset = file.bytes;
    entry->bytes = file.bytes + part.data_bytes;
    uint8_t *data = must_alloc(part.data_bytes);
    for (uint32_t i = 0; i < part.entry_count; i++)
        if (part.entries[i].slot != K3_SLOT_NONE)
            cut(mini->sources[part.entries[i].slot], &part.entries[i].slice,
                data + part.entries[i].begin_offset);
    k3_text_put(&file, (const char *)data, part.data_bytes);
    k3_text_put(image, (const char *)data, part.data_bytes);
    free(data);
    must(k3_tree_open(&tree, err), "tree", err);
    k3_tree_begin(tree);
    must(k3_tree_update(tree, file.data, file.bytes, err), "tree", err);
    k3_tree_final(tree, entry->tree);
    const uint8_t *digests = k3_tree_units(tree, &unit_count);
    k3_text_put(units, (const char *)digests, unit_count * K3_DIGEST_BYTES);
    k3_tree_close(tree);
    sha_of(file.data, file.bytes, entry->sha256);
    mini_set_part_path(mini, entry->rank, entry->part, path);
    write_file(path, file.data, file.bytes);
    k3_text_fini(&file);
    k3_part_fini(&part);
}

static void make_rank(struct mini_set *mini, uint32_t rank, struct k3_err *err)
{
    struct k3_manifest_rank *row = &mini->manifest.ranks[rank];
    struct k3_text units, image;
    struct k3_disk_units disk;
    char name[K3_NAME_BYTES_MAX + 1], path[256];
    k3_text_init(&units);
    k3_text_init(&image);
    row->rank = rank;
    row->part_count = k3_config_part_count(&mini->plan->config);
    row->parts = must_alloc(row->part_count * sizeof *row->parts);
    /* Room for the header, which is filled when the digests are counted. */
    memset(&disk, 0, sizeof disk);
    k3_text_put(&units, (const char *)&disk, sizeof disk);
    for (uint32_t part = 0; part < row->part_count; part++) {
        row->parts[part].rank = rank;
        row->parts[part].part = part;
        make_part(mini, &row->parts[part], &units, &image, err);
    }
    struct k3_units head = {.rank = rank,
                            .part_count = row->part_count,
                            .digest_count = (units.bytes - sizeof disk) / K3_DIGEST_BYTES};
    memcpy(head.plan_digest, mini->plan->digest, K3_DIGEST_BYTES);
    k3_units_encode(&head, &disk);
    memcpy(units.data, &disk, sizeof disk);
    k3_units_name(rank, name);
    mini_set_file_path(mini, name, path);
    write_file(path, units.data, units.bytes);
    row->units.name = strdup(name);
    row->units.bytes = units.bytes;
    sha_of(units.data, units.bytes, row->units.sha256);
    row->image_bytes = image.bytes;
    mini->image_bytes[rank] = image.bytes;
    mini->images[rank] = must_alloc(image.bytes);
    memcpy(mini->images[rank], image.data, image.bytes);
    k3_text_fini(&units);
    k3_text_fini(&image);
}

static void make_manifest(struct mini_set *mini, struct k3_err *err)
{
    struct k3_manifest *manifest = &mini->manifest;
    static const char headers[] = "not read by the loader";
    struct k3_text text;
    char path[256];
    mini_set_file_path(mini, K3_HEADERS_NAME, path);
    write_file(path, headers, sizeof headers - 1);
    manifest->headers.name = strdup(K3_HEADERS_NAME);
    manifest->headers.bytes = sizeof headers - 1;
    sha_of(headers, sizeof headers - 1, manifest->headers.sha256);
    manifest->source_count = 1;
    manifest->sources = must_alloc(sizeof *manifest->sources);
    manifest->sources[0].name = strdup(mini->plan->sources[0].name);
    manifest->sources[0].bytes = mini->plan->sources[0].bytes;
    manifest->plan_bytes = mini->plan->text_bytes;
    manifest->plan_text = must_alloc(mini->plan->text_bytes + 1);
    memcpy(manifest->plan_text, mini->plan->text, mini->plan->text_bytes);
    memcpy(manifest->plan_digest, mini->plan->digest, K3_DIGEST_BYTES);
    manifest->tool = strdup("k3-shard 0");
    k3_text_init(&text);
    must(k3_manifest_encode(manifest, &text, err), "manifest", err);
    mini_set_file_path(mini, K3_MANIFEST_NAME, path);
    write_file(path, text.data, text.bytes);
    k3_text_fini(&text);
}

void mini_set_make(struct mini_set *mini, uint32_t dir_count)
{
    struct k3_err err;
    k3_err_init(&err);
    memset(mini, 0, sizeof *mini);
    snprintf(mini->root, sizeof mini->root, "/tmp/k3-mini-XXXXXX");
    must(!mkdtemp(mini->root), mini->root, NULL);
    mini->dir_count = dir_count;
    for (uint32_t i = 0; i < dir_count; i++) {
        snprintf(mini->dirs[i], sizeof mini->dirs[i], "%s/d%u", mini->root, i);
        must(mkdir(mini->dirs[i], 0777), mini->dirs[i], NULL);
        mini->dir_list[i] = mini->dirs[i];
    }
    make_plan(mini, &err);
    mini->manifest.rank_count = MINI_RANK_COUNT;
    mini->manifest.ranks = must_alloc(MINI_RANK_COUNT * sizeof *mini->manifest.ranks);
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++)
        make_rank(mini, rank, &err);
    make_manifest(mini, &err);
}

void mini_set_remove(struct mini_set *mini)
{
    for (uint32_t i = 0; i < mini->dir_count; i++) {
        struct k3_dir dir;
        char **names;
        uint32_t count;
        must(k3_dir_open(mini->dirs[i], false, &dir, NULL), mini->dirs[i], NULL);
        must(k3_dir_list(&dir, &names, &count, NULL), mini->dirs[i], NULL);
        for (uint32_t j = 0; j < count; j++)
            k3_file_remove(&dir, names[j], NULL);
        k3_names_free(names, count);
        k3_dir_close(&dir);
        rmdir(mini->dirs[i]);
    }
    rmdir(mini->root);
    for (uint32_t slot = 0; slot < mini->plan->slot_count; slot++)
        free(mini->sources[slot]);
    free(mini->sources);
    for (uint32_t rank = 0; rank < MINI_RANK_COUNT; rank++)
        free(mini->images[rank]);
    k3_manifest_fini(&mini->manifest);
    k3_plan_close(mini->plan);
}

/* ---- paths and damage ---- */

void mini_set_part_path(const struct mini_set *mini, uint32_t rank, uint32_t part, char path[256])
{
    char name[K3_NAME_BYTES_MAX + 1];
    k3_part_name(rank, part, name);
    snprintf(path, 256, "%s/%.100s", mini->dirs[(rank + part) % mini->dir_count], name);
}

void mini_set_file_path(const struct mini_set *mini, const char *name, char path[256])
{
    snprintf(path, 256, "%s/%.100s", mini->dirs[0], name);
}

const struct k3_part_entry *mini_set_part(const struct mini_set *mini, uint32_t rank, uint32_t part)
{
    return &mini->manifest.ranks[rank].parts[part];
}

void mini_set_flip(const char *path, uint64_t offset)
{
    FILE *file = fopen(path, "r+b");
    must(!file || fseek(file, (long)offset, SEEK_SET), path, NULL);
    int c = fgetc(file);
    must(c == EOF || fseek(file, (long)offset, SEEK_SET), path, NULL);
    fputc(c ^ 1, file);
    must(fclose(file), path, NULL);
}
