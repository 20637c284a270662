#!/usr/bin/env bash
# Loads on the GPUs of this machine: the loader's tests over the real drivers, then the tool on a
# small set, on one GPU and on two.  No GPU: skipped.
set -uo pipefail
dir=$(mktemp -d "${TMPDIR:-/tmp}/k3-gpu-load.XXXXXX")
trap 'rm -rf "$dir"' EXIT
"$K3_BUILD/tests/test_load_gpu" real || exit 1
found=
"$K3" synth "$dir/ckpt" --preset tiny --quiet >/dev/null &&
    "$K3" convert "$dir/ckpt" --out "$dir/set" --tp 2 --quiet >/dev/null || exit 1
for kind in cuda hip; do
    "$K3" load "$dir/set" --device $kind:0 --quiet >"$dir/out" 2>"$dir/talk"
    case $? in
    0) found=1 ;;
    4) echo "$kind: $(cat "$dir/talk")"; continue ;;
    *) cat "$dir/talk"; exit 1 ;;
    esac
    cat "$dir/out"
    "$K3" load "$dir/set" --device $kind:0-1 --json --quiet >"$dir/out" 2>"$dir/talk"
    case $? in
    0) grep -q "\"device\":\"$kind:1\"" "$dir/out" || exit 1 ;;
    4) echo "$kind: $(cat "$dir/talk")" ;;
    *) cat "$dir/talk"; exit 1 ;;
    esac
done
[ -n "$found" ] || exit 77
