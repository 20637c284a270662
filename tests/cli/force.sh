# What --force removes is said; a file that only has the name of a part is never removed.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
run() {
    echo "\$ $*"
    "$K3" "$@" 2>&1 | grep -v -e '^convert' -e '^read '
    echo "exit ${PIPESTATUS[0]}"
}
"$K3" convert ckpt --out set --tp 2 --quiet >/dev/null
# a part that the manifest does not list, and a damaged one that it lists
cp set/model-rank-1-part-2.safetensors set/model-rank-7-part-2.safetensors
: >set/model-rank-0-part-0.safetensors
: >set/notes
run convert ckpt --out set --tp 4 --force
ls set | grep -e notes -e rank-7
# other programs give such names too
cp ckpt/model-00001-of-000008.safetensors set/model-rank-7-part-2.safetensors
run convert ckpt --out set --tp 2 --force
cp ckpt/README.md set/model-rank-7-part-2.safetensors
run convert ckpt --out set --tp 2 --force
mv set/model-rank-7-part-2.safetensors model-rank-7.units
mv model-rank-7.units set/
run convert ckpt --out set --tp 2 --force
rm set/model-rank-7.units
run verify set --quick --quiet
mkdir theirs
cp ckpt/model-00001-of-000008.safetensors theirs/model-rank-0-part-0.safetensors
run convert ckpt --out theirs --tp 2
run convert ckpt --out theirs --tp 2 --force
ls theirs
# parts without a manifest
rm set/k3-shards.json
run convert ckpt --out set --tp 2
run convert ckpt --out set --tp 2 --force
run verify set --against ckpt --quiet
# an unfinished conversion is said too, with the items that are lost
"$K3" convert ckpt --out begun --tp 2 --worker 0 --workers 3 --quiet >/dev/null
run convert ckpt --out begun --tp 2 --force
