#!/usr/bin/env bash
# k3-shard load on GPUs of fake drivers: what it prints, its JSON, its exit codes.  TAP lines.
set -uo pipefail
failed=0
ok() {
    if [ "$1" = 0 ]; then echo "ok - $2"; else echo "not ok - $2"; failed=1; fi
}
dir=$(mktemp -d "${TMPDIR:-/tmp}/k3-load-gpu.XXXXXX")
trap 'rm -rf "$dir"' EXIT
"$K3" synth "$dir/ckpt" --preset tiny --quiet >/dev/null &&
    "$K3" convert "$dir/ckpt" --out "$dir/set" --tp 2 --quiet >/dev/null
ok $? "a small set"
cd "$dir" || exit 1
export FAKE_GPU_REPORT=$dir/report

# load [NAME=VALUE...] ARGUMENT...: in the folder of fake drivers; output in out, talk.txt
load() {
    local settings=()
    while [[ $1 == *=* ]]; do settings+=("$1"); shift; done
    rm -f report
    env LD_LIBRARY_PATH="$K3_BUILD/${drivers:-fake}" "${settings[@]}" \
        "$K3" load set --quiet "$@" >out 2>talk.txt
}
nothing_left() { ! grep -q '^left [a-z_]* [1-9]' report && grep -q '^changed 0$' report; }
refused() { # CODE TEXT ARGUMENT...
    local code=$1 text=$2
    shift 2
    load "$@"
    [ $? = "$code" ] && grep -q -- "$text" talk.txt && [ ! -s out ]
    ok $? "$*: exit $code, $text" || cat out talk.txt
}

kinds=
for kind in cuda hip; do
    if load --device "$kind"; then kinds="$kinds $kind"; continue; fi
    if grep -q 'this build has no' talk.txt; then echo "ok - $kind # SKIP $(cat talk.txt)"; else ok 1 "$kind: $(cat talk.txt)"; fi
done
for kind in $kinds; do
    load --device "$kind":0 && grep -q ", to $kind$" out && grep -q '^verified .*where it is served' out
    ok $? "$kind:0: $(head -n 1 out)"
    nothing_left; ok $? "$kind:0: nothing is left in the driver"
    load --device "$kind":0-1 && grep -q "^rank 0 .* to $kind:0," out && grep -q "^rank 1 .* to $kind:1," out
    ok $? "$kind:0-1: a rank on each" || cat out talk.txt
    nothing_left; ok $? "$kind:0-1: nothing is left in the drivers"
    for list in 0 0-1 1,0; do
        load --device "$kind":$list --json --trace trace.json && "${PYTHON:-python3}" - "$kind" $list <<'PY'
import json, sys
kind, text = sys.argv[1:]
report = json.load(open("out"))
devices = {"0": [0, 0], "0-1": [0, 1], "1,0": [1, 0]}[text]
assert [row["rank"] for row in report["ranks"]] == [0, 1]
assert [row["device"] for row in report["ranks"]] == ["%s:%d" % (kind, n) for n in devices]
assert sum(row["bytes"] for row in report["ranks"]) == report["bytes"] > 0
assert all(row["seconds"] > 0 and row["gb_per_s"] > 0 for row in report["ranks"])
assert sorted(report["phases"]) == ["check_wait", "copy_wait", "open", "read_wait", "reread", "run"]
assert report["verify"] is True and report["verified_bytes"] > report["bytes"]
assert report["reread_units"] == 0 and report["pinned_bytes"] >= 1 << 23
events = json.load(open("trace.json"))["traceEvents"]
names = [row["args"]["name"] for row in events if row["name"] == "process_name"]
assert names == list(dict.fromkeys("%s:%d" % (kind, n) for n in devices)), names
for what in "read", "check":
    seen = {(row["args"]["rank"], row["args"]["part"], row["args"]["unit"] + n)
            for row in events if row["name"] == what for n in range(row["args"]["units"])}
    assert len(seen) * (1 << 19) == report["bytes"], (what, len(seen))
PY
        ok $? "$kind:$list: --json and --trace" || cat out talk.txt
    done
    load FAKE_GPU_FAULT=flip:3 --device "$kind":0 && grep -q '^reread    1 units' out
    ok $? "$kind: a flipped bit is healed" || cat out talk.txt
    nothing_left; ok $? "$kind: and nothing is left"
    refused 1 'right in the file but wrong in the memory' FAKE_GPU_FAULT=flip:3:9999 --device "$kind":0
    nothing_left; ok $? "$kind: nothing is left behind a failure"
    refused 1 'its check of known bytes is wrong' FAKE_GPU_FAULT=flip:1:9999 --device "$kind":0
    refused 1 "device $kind:0: " FAKE_GPU_FAULT=break:2 --device "$kind":0
    refused 4 'there are 2 here' --device "$kind":2
    refused 4 'there are 2 here' --device "$kind":1-2
    refused 2 'devices for 2 ranks' FAKE_GPU_COUNT=4 --device "$kind":0-2
    refused 4 'bytes of its memory are needed, .* are free' FAKE_GPU_MEMORY_BYTES=3000000 --device "$kind":0
    nothing_left; ok $? "$kind: nothing is left where it did not fit"
    refused 4 'does not start' FAKE_GPU_COUNT=0 --device "$kind":0
done
drivers=fake_bad
refused 4 'device cuda: no libcuda.so.1 on this machine' --device cuda:0
refused 4 'device hip: no libamdhip64' --device hip
refused 2 'device' --device gpu:0
exit $failed
