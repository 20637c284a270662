# A conversion beside what an earlier one left: what differs is named, and what --force cannot reach.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
convert() {
    echo "\$ convert $*"
    "$K3" convert ckpt "$@" --quiet 2>&1 >/dev/null
    echo "exit $?"
}
loud() {
    echo "\$ convert $*"
    "$K3" convert ckpt "$@" 2>&1 >/dev/null | grep -v '^convert'
    echo "exit ${PIPESTATUS[0]}"
}
convert --out set --tp 2
convert --out set
convert --out set --tp 2 --experts ep --shared replicate --vision first
convert --out set --tp 2 --revision 4b1d
convert --out set --tp 2 --ranks 1
convert --out set --tp 2
convert --out part --tp 2 --pp 2 --worker 0 --workers 2
convert --out part --tp 1 --dp 2 --pp 2
convert --out part --tp 2 --pp 2 --pp-layers 1,4
cp -r ckpt other
sed -i 's/"hidden_act"/"hidden_ACT"/; s/$/ /' other/config.json
echo "\$ convert other --out part --tp 2 --pp 2"
"$K3" convert other --out part --tp 2 --pp 2 --quiet
echo "exit $?"
# an unfinished conversion without a finished item is no reason to refuse other options, unless a run
# uses it
convert --out idle --tp 2 --worker 6 --workers 7
ls -A idle/.k3-partial
flock -s idle/.k3-partial bash -c "'$K3' convert ckpt --out idle --tp 4 --quiet; echo exit \$?" 2>&1
ls -A idle
loud --out idle --tp 4 --experts ep
"$K3" verify idle --against ckpt --quiet | tail -n 1
convert --out idle2 --out idle3 --tp 2 --worker 6 --workers 7
convert --out idle2 --out idle3 --tp 1 --worker 6 --workers 7
convert --out idle2 --out idle3 --tp 1 --worker 0 --workers 7
convert --out idle2 --out idle3 --tp 2 --worker 0 --workers 7
# other files: what was recorded and what is there; where only times differ, the finished items can be
# kept, by the step that is named
touch -d @1700000000.25 ckpt/*
convert --out times --tp 2 --worker 0 --workers 2
touch -d @1700000001 ckpt/model-00004-of-000008.safetensors
convert --out times --tp 2
step=$("$K3" convert ckpt --out times --tp 2 2>&1 | sed -n 's/.*give that back (\(.*\)) and run .*/\1/p')
echo "\$ $step"
eval "$step"
"$K3" convert ckpt --out times --tp 2 --worker 0 --workers 2 --quiet | head -n 1
touch ckpt/*
convert --out times --tp 2 2>&1 | sed 's/written 20[^,]*,/written NOW,/'
rm times/.k3-partial/sources
"$K3" convert ckpt --out times --tp 2 --quiet | head -n 1
"$K3" verify times --against ckpt --quiet | tail -n 1
touch -d @1700000000.5 ckpt/*
convert --out sizes --tp 2 --worker 0 --workers 2
touch -d @1700000000 ckpt/README.md
convert --out sizes --tp 2 2>&1
echo more >>ckpt/README.md
touch -d @1700000000 ckpt/README.md
convert --out sizes --tp 2 2>&1
# --force with fewer directories than before
convert --out a --out b --tp 2
loud --out a --tp 2 --force
echo "$(ls b | wc -l) files are left in b"
loud --out b --tp 2 --force
"$K3" verify a --quick | tail -n 1
"$K3" verify b --quick | tail -n 1
convert --out c --out d --out e --tp 2 --worker 0 --workers 3
loud --out d --tp 2 --force
loud --out c --out d --out e --tp 2 --force
