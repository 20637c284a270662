# A folder of another kind than the command wants: it says what the folder is and what to give.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
"$K3" convert ckpt --out set --tp 2 --quiet >/dev/null
mkdir empty cache cache/blobs cache/snapshots
run() {
    echo "\$ $*"
    "$K3" "$@" --quiet 2>&1
    echo "exit $?"
}
# a checkpoint for a set
run load ckpt
run bench ckpt
run export ckpt --to back
run seal --out ckpt
run load set ckpt
run verify ckpt --against set
# a set for a checkpoint
run plan set
run convert set --out other
run synth set --preset tiny
# a folder that is neither
run load empty
run bench empty
run export empty --to back
run seal --out empty
run plan empty
run convert empty --out other
run verify empty
run inspect empty
run plan cache
run verify cache
ls -d other back 2>&1
# its manifest is lost
mv set/k3-shards.json .
run load set
mv k3-shards.json set/
# a directory where an option belongs
run seal set
run convert ckpt set
