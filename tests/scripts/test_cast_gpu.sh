#!/usr/bin/env bash
# k3-shard convert with casts on GPUs of fake drivers: the bytes of the CPU, its errors, its exit
# codes; resumed by the other.  TAP lines.
set -uo pipefail
failed=0
ok() {
    if [ "$1" = 0 ]; then echo "ok - $2"; else echo "not ok - $2"; failed=1; fi
}
dir=$(mktemp -d "${TMPDIR:-/tmp}/k3-cast-gpu.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
"$K3" synth ckpt --preset tiny --quiet >/dev/null
ok $? "a small checkpoint"

# convert OUT [NAME=VALUE...] ARGUMENT...: with the folder of fake drivers; output in out, talk.txt
convert() {
    local settings=() to=$1
    shift
    while [[ $1 == *=* && $1 != -* ]]; do settings+=("$1"); shift; done
    rm -f report
    env LD_LIBRARY_PATH="$K3_BUILD/${drivers:-fake}" FAKE_GPU_REPORT="$dir/report" \
        "${settings[@]}" "$K3" convert ckpt --out "$to" --tp 2 --quiet "$@" >out 2>talk.txt
}
nothing_left() { ! grep -q '^left [a-z_]* [1-9]' report && grep -q '^changed 0$' report; }
launches() { awk '/^calls (cuLaunchKernel|hipModuleLaunchKernel) / { print $3 }' report; }
same() { diff -r "$1" "$2" >differences 2>&1; }
refused() { # CODE TEXT ARGUMENT...
    local code=$1 text=$2
    shift 2
    convert no "$@"
    [ $? = "$code" ] && grep -q -- "$text" talk.txt && [ ! -s out ] && [ ! -e no ]
    ok $? "$*: exit $code, $text, nothing is written" || cat out talk.txt
    rm -rf no
}

casts_of() { "${PYTHON:-python3}" -c 'import json,sys; print(json.load(open(sys.argv[1]))["casts"])' "$1"; }
kinds=
for kind in cuda hip; do
    if convert first --quant fp8-attn --device "$kind"; then kinds="$kinds $kind"; rm -rf first; continue; fi
    if grep -q 'this build has no' talk.txt; then echo "ok - $kind # SKIP $(cat talk.txt)"; else ok 1 "$kind: $(cat talk.txt)"; fi
done
check() { # KIND POLICY JOBS: the files and the report are those of the CPU
    local cpu=cpu-$2
    [ -d "$cpu" ] || { convert "$cpu" --quant "$2" --json && mv out "casts-$2"; }
    convert gpu --quant "$2" --device "$1:1" --jobs "$3" --json && same gpu "$cpu" &&
        [ "$(casts_of out)" = "$(casts_of "casts-$2")" ] && [ "$(launches)" -gt 100 ] && nothing_left
    ok $? "$1, $2, --jobs $3: files and report of the CPU, $(launches) launches" || cat talk.txt report differences
    rm -rf gpu
}
for kind in $kinds; do
    check "$kind" nvfp4 3
done
# Of one kind the rest: kernels are the same for both.
one=${kinds# }
one=${one%% *}
for policy in fp8-block experts=mxfp8,head=fp8-channel int4-g32; do
    [ -z "$one" ] || check "$one" "$policy" 1
done

# A conversion is resumed with or without a GPU.
for kind in $one; do
    launch=$([ "$kind" = cuda ] && echo cuLaunchKernel || echo hipModuleLaunchKernel)
    convert part FAKE_GPU_FAULT=fail=$launch=719:300 --quant nvfp4 --device "$kind" --jobs 1
    [ $? = 1 ] && grep -q "device $kind:0: k3_cast_[a-z0-9_]*: " talk.txt && nothing_left
    ok $? "$kind: a launch that fails ends it: $(cat talk.txt)" || cat out report
    convert part --quant nvfp4 --json && grep -q '"resumed_items":[1-9]' out && same part cpu-nvfp4
    ok $? "$kind: resumed on the CPU: the same set" || cat out talk.txt differences
    rm -rf part
done

for kind in $kinds; do
    refused 4 'there are 2 here' --quant nvfp4 --device "$kind":2
    refused 1 'GPU and CPU disagree' FAKE_GPU_FAULT=no:3 --quant nvfp4 --device "$kind"
done
for kind in $one; do
    refused 2 'nothing is cast, so a GPU has nothing to do' --device "$kind"
    refused 2 'nothing is cast, so a GPU has nothing to do' --quant experts=mxfp4 --device "$kind"
    refused 2 'casts run on one GPU' --quant nvfp4 --device "$kind":0-1
    refused 4 'does not start' FAKE_GPU_COUNT=0 --quant nvfp4 --device "$kind"
    refused 4 'bytes of its memory are needed for a cast, .* are free' FAKE_GPU_MEMORY_BYTES=2000 \
        --quant nvfp4 --device "$kind"
    refused 1 'its cast of known values from bf16 to mxfp4 is not' FAKE_GPU_FAULT=flip:1 --quant nvfp4 --device "$kind"
    refused 4 'and 2 MiB for a GPU: give 3MiB or more' --quant nvfp4 --device "$kind" --memory 2MiB
done
refused 2 "device 'gpu:0': is not known" --quant nvfp4 --device gpu:0
drivers=fake_bad
refused 4 'device cuda: no libcuda.so.1 on this machine' --quant nvfp4 --device cuda:0
convert host --quant nvfp4 --device host && { [ ! -d cpu-nvfp4 ] || same host cpu-nvfp4; }
ok $? "host is the CPU" || cat talk.txt
exit $failed
