#!/usr/bin/env bash
# `convert --quant` of layers of real size in little memory: at most 512 MiB resident with 2 workers
# and with 16, and inside a memory cgroup of 600 MiB, page cache included.
# Needs 3 GB, and 12 GB more without K3_REAL_CKPT; the cgroup needs root, and is left out elsewhere.
# Environment: see common.bash.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"
# shellcheck source-path=SCRIPTDIR source=group.bash
. "$(dirname "$0")/group.bash"

layer_checkpoint 3000000000 # one rank of eight, its experts in twice their bytes
make_group || say "the limit of $((GROUP_BYTES >> 20)) MiB is not tried: $why"

# Lossless out of MXFP4 and with a global scale; blocks, where the codes of a cut are read at once;
# by way of BF16.
for policy in nvfp4 fp8-block int4-g32 shared=nvfp4,head=fp8-tensor; do
    for jobs in 2 16; do
        convert_in "$room/out" "$group" --ranks 0 --quant $policy --jobs $jobs
        same "$policy, $jobs workers: exit" 0 "$rc"
        say "$policy, $jobs workers: $((peak >> 20)) MiB resident at most, $seconds s"
        if [ "$peak" -gt 0 ] && [ "$peak" -le $RESIDENT_MAX ]; then
            good "$policy, $jobs workers: at most $((RESIDENT_MAX >> 20)) MiB resident"
        else
            wrong "$policy, $jobs workers: $peak bytes resident, wanted $RESIDENT_MAX at most"
        fi
        rm -rf "$room/out"
    done
done
if [ -n "$group" ]; then
    say "the group with its cache: $(($(cat "$group/$peak_file" 2>/dev/null || echo 0) >> 20)) MiB at most"
    same "processes killed for memory" 0 "$(awk '$1 == "oom_kill" { print $2 }' "$group/$kills_file")"
fi
result
