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
# beside convert --force: its directories are made one after the other
"$K3" synth again --preset tiny --quiet >/dev/null
mkdir -p q1/.k3-partial q2
"$K3" seal --out q1 --out q2 2>&1
echo "exit $?"
rmdir q1/.k3-partial
"$K3" convert again --out q1 --tp 2 --worker 0 --workers 3 --quiet >/dev/null
flock q1/.k3-partial "$K3" seal --out q1 --out q2 2>&1
echo "exit $?"
"$K3" seal --out q1 --out q2 2>&1
echo "exit $?"
