#!/usr/bin/env bash
# Loads on the GPUs of this machine: the loader's tests over the real drivers, then the tool on a
# small set, on one GPU and on two.  No GPU: skipped.  common.bash says where programs are looked for.
set -uo pipefail
. "$(dirname "$0")/common.bash"
"$K3_BUILD/tests/test_load_gpu" real || exit 1
found=
"$K3" synth "$room/ckpt" --preset tiny --quiet >/dev/null &&
    "$K3" convert "$room/ckpt" --out "$room/set" --tp 2 --quiet >/dev/null || exit 1
for kind in cuda hip; do
    "$K3" load "$room/set" --device $kind:0 --quiet >"$room/out" 2>"$room/talk"
    case $? in
    0) found=1 ;;
    4) echo "$kind: $(cat "$room/talk")"; continue ;;
    *) cat "$room/talk"; exit 1 ;;
    esac
    cat "$room/out"
    "$K3" load "$room/set" --device $kind:0-1 --json --quiet >"$room/out" 2>"$room/talk"
    case $? in
    0) grep -q "\"device\":\"$kind:1\"" "$room/out" || exit 1 ;;
    4) echo "$kind: $(cat "$room/talk")" ;;
    *) cat "$room/talk"; exit 1 ;;
    esac
done
[ -n "$found" ] || exit 77
