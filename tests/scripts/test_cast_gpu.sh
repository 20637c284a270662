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

policies='nvfp4 fp8-block experts=mxfp8 int4-g32 bf16'
for policy in $policies experts=int8-g32,head=fp8-channel; do
    convert "cpu-$policy" --quant "$policy" --json && mv out "casts-$policy"
    ok $? "$policy: on the CPU"
done
kinds=
for kind in cuda hip; do
    if convert first --quant nvfp4 --device "$kind"; then kinds="$kinds $kind"; rm -rf first; continue; fi
    if grep -q 'this build has no' talk.txt; then echo "ok - $kind # SKIP $(cat talk.txt)"; else ok 1 "$kind: $(cat talk.txt)"; fi
done
casts_of() { "${PYTHON:-python3}" -c 'import json,sys; print(json.load(open(sys.argv[1]))["casts"])' "$1"; }
for kind in $kinds; do
    for policy in $policies experts=int8-g32,head=fp8-channel; do
        for jobs in 1 3; do
            convert gpu --quant "$policy" --device "$kind:1" --jobs $jobs --json &&
                same gpu "cpu-$policy" && [ "$(casts_of out)" = "$(casts_of "casts-$policy")" ]
            ok $? "$kind, $policy, --jobs $jobs: files and report of the CPU" || cat talk.txt differences
            [ "$(launches)" -gt 30 ]; ok $? "$kind: kernels ran: $(launches)"
            nothing_left; ok $? "$kind: nothing is left in the driver" || cat report
            rm -rf gpu
        done
    done
done
exit $failed
