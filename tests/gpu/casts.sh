#!/usr/bin/env bash
# Casts on the GPUs of this machine: rows by the kernels against the CPU, then conversions with casts
# on the GPU and on the CPU, whose files must be the same.  No GPU: skipped.  common.bash says where
# programs are looked for; K3_REAL_CKPT: a checkpoint that is converted as well (room for two sets).
set -uo pipefail
. "$(dirname "$0")/common.bash"
"$K3_BUILD/tests/test_cast_gpu" real || exit 1
found=
"$K3" synth "$room/ckpt" --preset tiny --quiet >/dev/null || exit 1

# convert CKPT SET POLICY ARGUMENT...: seconds in the line that it prints
convert() {
    local ckpt=$1 set=$2 policy=$3
    shift 3
    "$K3" convert "$ckpt" --out "$set" --tp 2 --budget 1TiB --quant "$policy" --quiet "$@" >"$room/out" 2>"$room/talk"
}
took() { sed -n 's/^read .*, in \(.*\)$/\1/p' "$room/out"; }

# compare CKPT POLICY KIND: both sets, made one behind the other
compare() {
    local cpu
    rm -rf "$room/cpu" "$room/gpu"
    convert "$1" "$room/cpu" "$2" || { wrong "$2 on the CPU: $(cat "$room/talk")"; return; }
    cpu=$(took)
    convert "$1" "$room/gpu" "$2" --device "$3:0" || { wrong "$2 on $3: $(cat "$room/talk")"; return; }
    if diff -r "$room/cpu" "$room/gpu" >"$room/differences" 2>&1; then
        good "${1##*/}, $2: $3 gives the files of the CPU; $(took), CPU $cpu"
    else
        wrong "${1##*/}, $2: $3 gives other files: $(head -n 3 "$room/differences")"
    fi
}
for kind in cuda hip; do
    convert "$room/ckpt" "$room/first" nvfp4 --device $kind:0
    case $? in
    0) found=1 ;;
    4) echo "$kind: $(cat "$room/talk")"; continue ;;
    *) cat "$room/talk"; exit 1 ;;
    esac
    rm -rf "$room/first"
    for policy in nvfp4 fp8-block int4-g32 bf16 experts=mxfp8,head=nvfp4 experts=int8-g32,head=fp8-channel; do
        compare "$room/ckpt" "$policy" $kind
    done
    [ -z "${K3_REAL_CKPT:-}" ] || for policy in nvfp4 fp8-block; do compare "$K3_REAL_CKPT" "$policy" $kind; done
done
[ -n "$found" ] || exit 77
result
