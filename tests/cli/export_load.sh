# export gives the checkpoint back; load brings ranks up; both refuse what they must.
times() {
    sed -E -e 's/ in [0-9].*$/ in TIME/; s/^(time|phases|memory|route) .*/\1/; /^fallback /d'
}
"$K3" synth ckpt --preset tiny --quiet >/dev/null
"$K3" convert ckpt --out set --out set2 --tp 2 --quiet >/dev/null
run() {
    echo "\$ $*"
    "$K3" "$@" --quiet 2>&1 | times
    echo "exit ${PIPESTATUS[0]}"
}
run export set2 set --to again
diff -r ckpt again && echo "the same files"
run export set set2 --to again
mkdir sixth seventh
touch sixth/.export-3.partial sixth/.export-c12.partial sixth/.export-index.partial
"$K3" export set set2 --to sixth 2>&1 | grep notice
diff -r ckpt sixth && echo "the same files, and no other"
touch seventh/.export-3.partial seventh/.export-x.partial
run export set set2 --to seventh
ls -A seventh
run load set set2
run load set2 set --ranks 1 --io pread --no-verify
run load set set2 --ranks 3
"$K3" load set set2 --json --quiet | python3 -c '
import json, sys
report = json.load(sys.stdin)
print(sorted(report), [sorted(rank) for rank in report["ranks"]], sorted(report["phases"]))
print(report["bytes"], report["verified_bytes"], report["io"] in ("uring", "pread"), report["device"])'
run load set
run export set --to fourth
printf 'X' | dd of=set2/model-rank-0-part-1.safetensors bs=1 seek=600000 conv=notrunc status=none
run export set set2 --to broken
ls broken | grep -c index.json
ls -a broken | grep -c partial
run load set set2
"$K3" convert ckpt --out dropped --tp 2 --vision drop --quiet >/dev/null
run export dropped --to fifth
ls fifth 2>&1
