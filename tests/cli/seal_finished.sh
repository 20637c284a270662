# A set is finished for seal only where its manifest is sound and its files are there; until then
# what was staged is kept.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
"$K3" convert ckpt --out set --ranks 0 --quiet >/dev/null
"$K3" convert ckpt --out other --ranks 1 --worker 0 --workers 2 --quiet >/dev/null
run() {
    "$K3" "$@" 2>&1
    echo "exit $?"
}
run seal --out set
mv set/model-rank-0-part-1.safetensors part
run seal --out set
mv part set/model-rank-0-part-1.safetensors
: >other/k3-shards.json
run seal --out other
ls -d other/.k3-partial
rm -r other
# What would be copied, and is no file, is named.
rm ckpt/tokenizer_config.json
mkfifo ckpt/tokenizer_config.json
run convert ckpt --out third --quiet
