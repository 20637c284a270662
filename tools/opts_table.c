/* Purpose: the table of commands and the table of options.
 * Owns: nothing; both are constant.
 * Threads: any.
 * Errors: none.
 * Invariant: nothing else in the tool knows an option's spelling, default or help.  A row stands
 * at the index of its id, so that k3_opt_table[id] is its row. */
#include "cmds.h"
#include "layout.h"
#include "manifest.h"
#include "opts.h"
#include "synth.h"

_Static_assert(K3_WORLD_MAX == K3_RANK_COUNT_MAX, "the parser accepts what the format holds");

#define ON(name) (UINT32_C(1) << K3_CMD_##name)
#define LAYOUT   (ON(PLAN) | ON(CONVERT))
#define ON_SETS  (ON(SEAL) | ON(VERIFY) | ON(INSPECT) | ON(EXPORT) | ON(LOAD))
#define ON_HOST  (ON(BENCH) | ON(DOCTOR))
#define WORK     (LAYOUT | ON_SETS | ON_HOST | ON(SYNTH))
#define EVERY    ((UINT32_C(1) << K3_CMD_COUNT) - 1)
/* Two buffers of 512 KiB are the least a worker of convert works with. */
#define MEMORY_MIN (UINT64_C(1) << 20)
/* Of load: two chunks of 4 MiB, one arrives while the other is checked; 1024 of them at the most.
 */
#define STAGING_MIN (UINT64_C(8) << 20)
#define STAGING_MAX (UINT64_C(4) << 30)
/* Numbers in texts; of the presets of synth. */
#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)
#define COUNTS(preset)                                                                             \
    TEXT(K3_SYNTH_##preset##_LAYERS) " layers of " TEXT(K3_SYNTH_##preset##_EXPERTS) " experts"
#define FIELD(name) .field = offsetof(struct k3_opts, name)

static const char layout_group[] = "Layout";
static const char own_group[] = "Options";
static const char common_group[] = "Common";

/* What synth can make, by its own numbers. */
#define TINY_SIZE   COUNTS(TINY)
#define LAYER_SIZE  COUNTS(LAYER)
#define FULL_SIZE   COUNTS(FULL)
#define LAYERS_MIN  TEXT(K3_SYNTH_LAYER_COUNT_MIN)
#define LAYERS_MAX  TEXT(K3_SYNTH_LAYER_COUNT_MAX)
#define EXPERT_STEP TEXT(K3_SYNTH_EXPERT_STEP)
#define EXPERTS_MAX TEXT(K3_SYNTH_EXPERT_COUNT_MAX)
static const char preset_help[] = "tiny: every kind of tensor, small (" TINY_SIZE "); "
                                  "layer: layers of real size (" LAYER_SIZE "); "
                                  "full: the whole model (" FULL_SIZE ", always)";
static const char layers_help[] = "decoder layers, " LAYERS_MIN " to " LAYERS_MAX
                                  " (default: as the preset has)";
static const char expert_count_help[] = "experts of each layer, a multiple of " EXPERT_STEP
                                        " up to " EXPERTS_MAX " (default: as the preset has)";

const struct k3_opt_row k3_opt_table[K3_ID_COUNT] = {
    [K3_ID_TP] = {K3_ID_TP, K3_OPT_UINT, "tp", "N", "8", NULL,
                  "ranks that share each matrix (tensor parallel)", layout_group, .min = 1,
                  .max = K3_WORLD_MAX, FIELD(tp), .commands = LAYOUT},
    [K3_ID_DP] = {K3_ID_DP, K3_OPT_UINT, "dp", "N", "1", NULL,
                  "copies of the attention (data parallel); experts are spread over tp x dp",
                  layout_group, .min = 1, .max = K3_WORLD_MAX, FIELD(dp), .commands = LAYOUT},
    [K3_ID_PP] = {K3_ID_PP, K3_OPT_UINT, "pp", "N", "1", NULL,
                  "stages of consecutive layers (pipeline parallel)", layout_group, .min = 1,
                  .max = K3_STAGE_COUNT_MAX, FIELD(pp), .commands = LAYOUT},
    [K3_ID_PP_LAYERS] = {K3_ID_PP_LAYERS, K3_OPT_UINTS, "pp-layers", "N,N,...", NULL, NULL,
                         "layers of each stage (default: as vLLM divides them)", layout_group,
                         .min = 1, .max = 4096, FIELD(pp_layers), .commands = LAYOUT},
    [K3_ID_EXPERTS] = {K3_ID_EXPERTS, K3_OPT_CHOICE, "experts", "HOW", "tp", "tp|ep",
                       "tp: cut every expert over all ranks; ep: give each rank whole experts",
                       layout_group, FIELD(experts), .commands = LAYOUT},
    [K3_ID_SHARED] = {K3_ID_SHARED, K3_OPT_CHOICE, "shared", "HOW", "tp", "tp|replicate",
                      "shared experts: cut over tp, or whole on every rank", layout_group,
                      FIELD(shared), .commands = LAYOUT},
    [K3_ID_VISION] =
        {K3_ID_VISION, K3_OPT_CHOICE, "vision", "HOW", "replicate", "replicate|first|drop",
         "vision tower: on every rank of the first stage, on its first rank, or nowhere",
         layout_group, FIELD(vision), .commands = LAYOUT},
    [K3_ID_BUDGET] = {K3_ID_BUDGET, K3_OPT_SIZE, "budget", "SIZE", "195GiB", NULL,
                      "device memory one image may take; a larger one is refused", layout_group,
                      FIELD(budget_bytes), .commands = LAYOUT},
    [K3_ID_QUANT] = {K3_ID_QUANT, K3_OPT_STRING, "quant", "POLICY", "verbatim", NULL,
                     "cast while cutting: the name of a policy, ROLE=FORMAT[,...] or a .json file; "
                     "k3-shard help " K3_QUANT_TOPIC " lists them",
                     layout_group, FIELD(quant), .commands = LAYOUT},
    [K3_ID_OOW] = {K3_ID_OOW, K3_OPT_CHOICE, "oow", "HOW", "fail", "fail|requant|snap",
                   "experts out of the window in which their cast is exact: stop before anything "
                   "is written, round them, or move their scale",
                   layout_group, FIELD(oow), .commands = LAYOUT},
    [K3_ID_CONFIG] = {K3_ID_CONFIG, K3_OPT_CHOICE, "config", "KIND", "compressed-tensors",
                      "compressed-tensors|modelopt",
                      "for which readers a cast is described; modelopt adds hf_quant_config.json",
                      layout_group, FIELD(config), .commands = LAYOUT},

    [K3_ID_RATE] = {K3_ID_RATE, K3_OPT_RATE, "rate", "GB/s", NULL, NULL,
                    "storage rate, to state the expected time", own_group,
                    FIELD(rate_bytes_per_second), .commands = ON(PLAN)},
    [K3_ID_OUT] = {K3_ID_OUT, K3_OPT_STRINGS, "out", "DIR", NULL, NULL,
                   "directory of the shard set; repeat it to spread the parts over several drives",
                   own_group, FIELD(out), .commands = ON(CONVERT) | ON(SEAL),
                   .required = ON(CONVERT) | ON(SEAL)},
    [K3_ID_JOBS] = {K3_ID_JOBS, K3_OPT_UINT, "jobs", "N", NULL, NULL,
                    "threads (default: one for each core)", own_group, .min = 1, .max = K3_JOBS_MAX,
                    FIELD(jobs), .commands = ON(CONVERT) | ON(VERIFY) | ON(EXPORT)},
    [K3_ID_MEMORY] = {K3_ID_MEMORY, K3_OPT_SIZE, "memory", "SIZE", "256MiB", NULL,
                      "memory for buffers, all threads together", own_group, .min = MEMORY_MIN,
                      FIELD(memory_bytes), .commands = ON(CONVERT)},
    [K3_ID_REVISION] = {K3_ID_REVISION, K3_OPT_STRING, "revision", "STR", NULL, NULL,
                        "revision of the checkpoint, recorded in the manifest", own_group,
                        FIELD(revision), .commands = ON(CONVERT)},
    [K3_ID_FORCE] = {K3_ID_FORCE, K3_OPT_NONE, "force", NULL, NULL, NULL,
                     "begin anew: remove the set or the unfinished conversion that is there",
                     own_group, FIELD(force), .commands = ON(CONVERT)},
    [K3_ID_CAST_DEVICE] = {K3_ID_CAST_DEVICE, K3_OPT_STRING, "device", "DEVICE", "host", NULL,
                           "where casts are computed: host, cuda:N or hip:N; the bytes are the "
                           "same",
                           own_group, FIELD(cast_device), .commands = ON(CONVERT)},
    [K3_ID_WORKER] = {K3_ID_WORKER, K3_OPT_UINT, "worker", "I", NULL, NULL,
                      "do only the items k with k mod N = I, and do not seal", own_group,
                      .max = K3_JOBS_MAX - 1, FIELD(worker), .commands = ON(CONVERT)},
    [K3_ID_WORKERS] = {K3_ID_WORKERS, K3_OPT_UINT, "workers", "N", NULL, NULL,
                       "number of workers that share the conversion (on any machines)", own_group,
                       .min = 1, .max = K3_JOBS_MAX, FIELD(workers), .commands = ON(CONVERT)},
    [K3_ID_RANKS] = {K3_ID_RANKS, K3_OPT_RANKS, "ranks", "LIST", NULL, NULL,
                     "only these ranks, like 0,2-5 (default: all)", own_group,
                     .max = K3_WORLD_MAX - 1, FIELD(ranks),
                     .commands = ON(CONVERT) | ON(VERIFY) | ON(LOAD) | ON(BENCH)},
    [K3_ID_CHECK_QUICK] = {K3_ID_CHECK_QUICK, K3_OPT_NONE, "quick", NULL, NULL, NULL,
                           "manifest, sizes, headers and units files only", own_group,
                           FIELD(check_quick), .commands = ON(VERIFY)},
    [K3_ID_AGAINST] = {K3_ID_AGAINST, K3_OPT_STRING, "against", "CKPT", NULL, NULL,
                       "prove that the shards hold exactly the bytes of this checkpoint", own_group,
                       FIELD(against), .commands = ON(VERIFY)},
    [K3_ID_TENSOR] = {K3_ID_TENSOR, K3_OPT_STRING, "tensor", "NAME", NULL, NULL,
                      "show this tensor or view only", own_group, FIELD(tensor),
                      .commands = ON(INSPECT)},
    [K3_ID_STATS] = {K3_ID_STATS, K3_OPT_NONE, "stats", NULL, NULL, NULL,
                     "read the values: histograms of values, codes and scales; of --tensor also "
                     "minimum, maximum, mean, zeros, NaN",
                     own_group, FIELD(stats), .commands = ON(INSPECT)},
    [K3_ID_DIGEST] = {K3_ID_DIGEST, K3_OPT_NONE, "digest", NULL, NULL, NULL,
                      "read the file: SHA-256 and fs-verity digest", own_group, FIELD(digest),
                      .commands = ON(INSPECT)},
    [K3_ID_TO] = {K3_ID_TO, K3_OPT_STRING, "to", "CKPT", NULL, NULL, "directory for the checkpoint",
                  own_group, FIELD(to), .commands = ON(EXPORT), .required = ON(EXPORT)},
    [K3_ID_DEVICE] = {K3_ID_DEVICE, K3_OPT_STRING, "device", "DEVICE", "host", NULL,
                      "where the images go: host, cuda:LIST or hip:LIST; one device for all ranks, "
                      "or one for each in order",
                      own_group, FIELD(device), .commands = ON(LOAD) | ON(BENCH)},
    [K3_ID_IO] = {K3_ID_IO, K3_OPT_CHOICE, "io", "ENGINE", "auto",
                  "auto|uring|pread|cufile|hipfile",
                  "how bytes are read; a named engine never falls back to another", own_group,
                  FIELD(io), .commands = ON(LOAD) | ON(BENCH)},
    [K3_ID_STAGING] = {K3_ID_STAGING, K3_OPT_SIZE, "staging", "SIZE", "64MiB", NULL,
                       "memory for the slots that reads land in", own_group, .min = STAGING_MIN,
                       .max = STAGING_MAX, FIELD(staging_bytes), .commands = ON(LOAD) | ON(BENCH)},
    [K3_ID_MAX_BANDWIDTH] =
        {K3_ID_MAX_BANDWIDTH, K3_OPT_RATE, "max-bandwidth", "RATE", NULL, NULL,
         "read no faster than this, e.g. 2GB/s: leave some to what runs already", own_group,
         FIELD(max_bytes_per_second), .commands = ON(LOAD)},
    [K3_ID_TRACE] = {K3_ID_TRACE, K3_OPT_STRING, "trace", "FILE", NULL, NULL,
                     "write every read, copy and check for chrome://tracing or ui.perfetto.dev",
                     own_group, FIELD(trace), .commands = ON(LOAD)},
    [K3_ID_NO_VERIFY] = {K3_ID_NO_VERIFY, K3_OPT_NONE, "no-verify", NULL, NULL, NULL,
                         "do not prove the bytes; the report says so", own_group, FIELD(no_verify),
                         .commands = ON(LOAD)},
    [K3_ID_ROUNDS] = {K3_ID_ROUNDS, K3_OPT_UINT, "rounds", "N", "3", NULL,
                      "times that everything is measured, in turn; medians are shown", own_group,
                      .min = 1, .max = K3_BENCH_ROUNDS_MAX, FIELD(rounds), .commands = ON(BENCH)},
    [K3_ID_SIZE] = {K3_ID_SIZE, K3_OPT_SIZE, "size", "SIZE", "10GiB", NULL,
                    "bytes of the set that one measurement reads at most", own_group, .min = 1,
                    FIELD(size_bytes), .commands = ON(BENCH)},
    [K3_ID_SCRATCH] = {K3_ID_SCRATCH, K3_OPT_STRING, "scratch", "DIR", NULL, NULL,
                       "also measure convert, on a synthetic checkpoint made and removed in DIR",
                       own_group, FIELD(scratch), .commands = ON(BENCH)},
    [K3_ID_PRESET] = {K3_ID_PRESET, K3_OPT_CHOICE, "preset", "NAME", NULL, "tiny|layer|full",
                      preset_help, own_group, FIELD(preset), .commands = ON(SYNTH),
                      .required = ON(SYNTH)},
    [K3_ID_LAYERS] = {K3_ID_LAYERS, K3_OPT_UINT, "layers", "N", NULL, NULL, layers_help, own_group,
                      .min = K3_SYNTH_LAYER_COUNT_MIN, .max = K3_SYNTH_LAYER_COUNT_MAX,
                      FIELD(layers), .commands = ON(SYNTH)},
    [K3_ID_EXPERT_COUNT] = {K3_ID_EXPERT_COUNT, K3_OPT_UINT, "experts", "N", NULL, NULL,
                            expert_count_help, own_group, .min = K3_SYNTH_EXPERT_STEP,
                            .max = K3_SYNTH_EXPERT_COUNT_MAX, FIELD(expert_count),
                            .commands = ON(SYNTH)},
    [K3_ID_SEED] = {K3_ID_SEED, K3_OPT_UINT64, "seed", "S", "0", NULL,
                    "seed of the contents; the same seed gives the same bytes", own_group,
                    .max = UINT64_MAX, FIELD(seed), .commands = ON(SYNTH)},
    [K3_ID_SPARSE] = {K3_ID_SPARSE, K3_OPT_NONE, "sparse", NULL, NULL, NULL,
                      "real headers over holes: takes hardly any disk", own_group, FIELD(sparse),
                      .commands = ON(SYNTH)},

    [K3_ID_JSON] = {K3_ID_JSON, K3_OPT_NONE, "json", NULL, NULL, NULL,
                    "print the result as one JSON object", common_group, FIELD(json),
                    .commands = WORK | ON(VERSION)},
    [K3_ID_QUIET] = {K3_ID_QUIET, K3_OPT_NONE, "quiet", NULL, NULL, NULL,
                     "no progress and no notices", common_group, FIELD(quiet), .commands = WORK},
    [K3_ID_HELP] = {K3_ID_HELP, K3_OPT_NONE, "help", NULL, NULL, NULL, "show this help",
                    common_group, FIELD(help), .commands = EVERY},
    [K3_ID_VERSION] = {K3_ID_VERSION, K3_OPT_NONE, "version", NULL, NULL, NULL,
                       "show the version and what this build can do", common_group, FIELD(version),
                       .commands = EVERY},
};

const char *const k3_exit_text[K3_EXIT_COUNT] = {
    "done", "failed (I/O, memory, path not found, stopped by a signal)", "usage",
    "the data are wrong or incomplete (also: no manifest)",
    "not possible as asked (does not divide or fit, in the way, not available, not all converted)"};

const char k3_size_help[] =
    "A SIZE takes KiB MiB GiB TiB (1GiB is 1073741824 bytes) or KB MB GB TB "
    "(1GB is 1000000000); without a unit it is in bytes.";
const char k3_rate_help[] =
    "A rate without a unit is in GB/s; it takes the units of sizes, with or "
    "without /s.";

#define MANY UINT32_MAX

static const char shard_group[] = "Make shards";
static const char proof_group[] = "Look and prove";
static const char use_group[] = "Use shards";
static const char help_group[] = "Help";

const struct k3_command k3_command_table[K3_CMD_COUNT] = {
    [K3_CMD_PLAN] =
        {K3_CMD_PLAN, "plan", "CKPT", "say what a layout would give, from headers alone",
         shard_group,
         "Reads config.json, the index and the headers of the checkpoint CKPT and derives every "
         "size "
         "and offset: image, replicated and padded bytes of each rank against the budget; disk and "
         "memory needed; which layouts divide.  A plan that does not fit is printed and exits 4.",
         "k3-shard plan /models/Kimi-K3 --tp 8", 1, 1, k3_cmd_plan},
    [K3_CMD_CONVERT] =
        {K3_CMD_CONVERT, "convert", "CKPT", "cut a checkpoint into a shard set", shard_group,
         "Cuts the checkpoint CKPT into one image for each rank, reads back and records the digest "
         "of "
         "every byte, and writes the manifest last.  Interrupted at any point, the same command "
         "resumes.  Files that the Hugging Face client downloaded are compared with the SHA-256 "
         "that it left (.cache/huggingface/download/*.metadata, or the name of the blob in its "
         "cache): another digest ends it, but for a file that is newer than its record, which may "
         "have been changed on purpose and is converted with a notice.  The checkpoint is only "
         "read; with --ranks only those of its files are read "
         "that hold bytes of these ranks.",
         "k3-shard convert /models/Kimi-K3 --out /nvme/k3-tp8", 1, 1, k3_cmd_convert},
    [K3_CMD_SEAL] = {K3_CMD_SEAL, "seal", "", "publish a conversion whose items are all done",
                     shard_group,
                     "Builds the units files and the manifest from the records of finished items, "
                     "moves the parts "
                     "into place and publishes the set.  Exits 4 when items are missing.",
                     "k3-shard seal --out /nvme/k3-tp8", 0, 0, k3_cmd_seal},
    [K3_CMD_SYNTH] =
        {K3_CMD_SYNTH, "synth", "DIR", "make a synthetic checkpoint", shard_group,
         "Writes a checkpoint with the exact names, shapes, types, file order and header bytes of "
         "Kimi K3, at a size of your choice, for trials without the real one.",
         "k3-shard synth /tmp/k3-tiny --preset tiny", 1, 1, k3_cmd_synth},
    [K3_CMD_VERIFY] =
        {K3_CMD_VERIFY, "verify", "PATH...", "prove a shard set or a checkpoint", proof_group,
         "Proves every byte of a shard set (all its directories are given together), or the "
         "structure "
         "and digests of a checkpoint or a single safetensors file.  Names each bad file, unit, "
         "offset and the tensors it touches; exits 3 if there is one.  Files of a checkpoint are "
         "compared with the SHA-256 that the Hugging Face client left of its download "
         "(.cache/huggingface/download/*.metadata, or the name of the blob in its cache): one that "
         "differs is bad, also where it was changed after its download.",
         "k3-shard verify /nvme/k3-tp8", 1, MANY, k3_cmd_verify},
    [K3_CMD_INSPECT] = {K3_CMD_INSPECT, "inspect", "PATH", "show what a file or directory holds",
                        proof_group,
                        "Shows what is in a checkpoint, a shard set (its first directory), a part, "
                        "a manifest, the "
                        "report of its casts, any other safetensors file, or one tensor.",
                        "k3-shard inspect /nvme/k3-tp8/model-rank-0-part-1.safetensors", 1, 1,
                        k3_cmd_inspect},
    [K3_CMD_EXPORT] = {K3_CMD_EXPORT, "export", "DIR...", "give back the published checkpoint",
                       use_group,
                       "Rebuilds the files of the checkpoint, byte for byte, from all directories "
                       "of a shard set.  "
                       "Refused (exit 4) for a set with casts or without some of the tensors.",
                       "k3-shard export /nvme/k3-tp8 --to /models/Kimi-K3-again", 1, MANY,
                       k3_cmd_export},
    [K3_CMD_LOAD] =
        {K3_CMD_LOAD, "load", "DIR...", "bring ranks into memory, every byte proved", use_group,
         "Loads the images of a shard set, proves every unit where it landed, and reports rate, "
         "route and memory.  All directories of the set are given together.",
         "k3-shard load /nvme/k3-tp8 --ranks 0", 1, MANY, k3_cmd_load},
    [K3_CMD_BENCH] =
        {K3_CMD_BENCH, "bench", "DIR...", "measure this machine, and what load makes of it",
         use_group,
         "Measures the ceilings of this machine on the files of a shard set (direct reads, page "
         "cache, memory, hashing), then load in the same rounds, and says in percent how near it "
         "comes to what limits it; with --device one GPU as well.  Without --ranks it takes as "
         "many "
         "as --size holds.  Only reads, unless --scratch is given; the set's pages leave the page "
         "cache.",
         "k3-shard bench /nvme/k3-tp8 --ranks 0", 1, MANY, k3_cmd_bench},
    [K3_CMD_DOCTOR] =
        {K3_CMD_DOCTOR, "doctor", "[DIR]", "say what this machine can do, and why not", use_group,
         "Looks at processors, memory, limits, io_uring, GPUs and, where it is given, at the file "
         "system and drive of DIR (a shard set, a checkpoint or any directory).  Each finding is "
         "ok; slower: it works, not at its best; missing; or absent: an extra, a machine is as "
         "good "
         "without it.  Its value stands beside it ('not known' where it cannot be read), or the "
         "reason and the next step.  Exits 0 whatever is missing.",
         "k3-shard doctor /nvme/k3-tp8", 0, 1, k3_cmd_doctor},
    [K3_CMD_HELP] = {K3_CMD_HELP, "help", "[COMMAND|" K3_QUANT_TOPIC "]",
                     "show this help or that of a command", help_group,
                     "Shows what a command does and takes; " K3_QUANT_TOPIC ": what --quant takes.",
                     "k3-shard help convert", 0, 1, k3_cmd_help},
    [K3_CMD_MAN] = {K3_CMD_MAN, "man", "[COMMAND|" K3_QUANT_TOPIC "]", "print a man page (roff)",
                    help_group,
                    "Prints the man page of the tool or of a command, to be read with man -l -.",
                    "k3-shard man convert | man -l -", 0, 1, k3_cmd_man},
    [K3_CMD_COMPLETION] = {K3_CMD_COMPLETION, "completion", "bash|zsh|fish",
                           "print shell completion", help_group,
                           "Prints a completion script for the shell.",
                           "source <(k3-shard completion bash)", 1, 1, k3_cmd_completion},
    [K3_CMD_VERSION] = {K3_CMD_VERSION, "version", "",
                        "show the version and what this build can do", help_group,
                        "Shows the version, the libraries, io engines and devices of this build.",
                        "k3-shard version --json", 0, 0, k3_cmd_version},
};
