#!/usr/bin/env bash
# The whole way on a small synthetic model: make, plan, convert, verify, load, export, compare.
# Environment: K3 (the tool).  K3_DEMO_DIR: keep the files there, a folder that is empty or is not there
# yet (default: a folder that is removed).
set -euo pipefail

dir=${K3_DEMO_DIR:-}
if [ -z "$dir" ]; then
    dir=$(mktemp -d "${TMPDIR:-/tmp}/k3-demo.XXXXXX")
    trap 'rm -rf "$dir"' EXIT
fi
mkdir -p "$dir"
if [ -n "$(ls -A "$dir")" ]; then
    echo "demo: K3_DEMO_DIR=$dir is not empty: rm -r $dir, or give another" >&2
    exit 4
fi

step() {
    printf '\n$ k3-shard'
    printf ' %s' "$@"
    printf '\n'
    "$K3" "$@"
}

step synth "$dir/checkpoint" --preset tiny
step plan "$dir/checkpoint" --tp 2
step convert "$dir/checkpoint" --out "$dir/shards" --tp 2
step verify "$dir/shards"
step verify "$dir/shards" --against "$dir/checkpoint"
step load "$dir/shards"
step export "$dir/shards" --to "$dir/again"
printf '\n$ cmp, file by file\n'
for file in "$dir"/checkpoint/*.safetensors; do
    cmp "$file" "$dir/again/${file##*/}"
done
echo "The exported checkpoint is the one that went in, byte for byte."
