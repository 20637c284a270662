# verify: a good set, a bad unit, missing and extra files, a checkpoint, a lone file, wrong paths.
times() { sed -E -e 's/: errno 2$/: No such file or directory/' -e 's/ in [0-9].*$/ in TIME/; s/"seconds":[0-9.e+-]+/"seconds":0/'; }
"$K3" synth ckpt --preset tiny --quiet >/dev/null
"$K3" convert ckpt --out set --tp 2 --quiet >/dev/null
run() {
    echo "\$ verify $*"
    "$K3" verify "$@" --quiet 2>&1 | times
    echo "exit ${PIPESTATUS[0]}"
}
run set
run set --quick
run set --ranks 1
run set --against ckpt
run ckpt
run set/model-rank-0-part-1.safetensors
run set/model-rank-0.units
run set/k3-shards.json
run set --ranks 5
run ckpt --against ckpt
run nowhere
# what --against cannot be is said before the set is read
mkdir empty
run set --against set
run set --against set/../set --quick
run set --against empty
# one bad unit: its rank is made again alone, and the file copied
cp -r set one
printf 'X' | dd of=one/model-rank-1-part-3.safetensors bs=1 seek=600000 conv=notrunc status=none
run one
"$K3" convert ckpt --out new --tp 2 --ranks 1 --quiet >/dev/null
cp new/model-rank-1-part-3.safetensors one/
run one
# what was not read is not counted as checked
rm one/model-rank-1-part-*.safetensors one/model-rank-0.units one/source-headers.zst one/LICENSE
run one
printf 'X' | dd of=set/model-rank-0-part-1.safetensors bs=1 seek=600000 conv=notrunc status=none
printf 'X' | dd of=set/model-rank-1-part-6.safetensors bs=1 seek=9 conv=notrunc status=none
mv set/README.md set/model-rank-0-part-7.safetensors
mv set/model-rank-1-part-2.safetensors set/other.safetensors
run set
run set --json
rm set/k3-shards.json
run set
# A checkpoint that is not the set's: nothing is to be made again from it.
"$K3" synth other --preset tiny --seed 9 --quiet >/dev/null
"$K3" convert other --out sound --tp 2 --quiet 2>/dev/null >/dev/null
"$K3" verify sound --against ckpt --quiet 2>/dev/null | tail -n 1
# One of other sizes: said, not refused for a layout that was not asked for.
"$K3" synth short --preset tiny --layers 3 --quiet >/dev/null
"$K3" synth few --preset tiny --experts 32 --quiet >/dev/null
run sound --against short
run sound --against few
# Not a set yet, and not bad.
"$K3" convert ckpt --out begun --tp 2 --worker 0 --workers 3 --quiet >/dev/null
run begun
run begun sound
