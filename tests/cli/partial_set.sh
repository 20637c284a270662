# convert --ranks: a set of some ranks; who is asked for another one says which there are.
times() {
    sed -E -e 's/ in [0-9].*$/ in TIME/; s/^(time|phases|memory|route) .*/\1/; /^fallback /d'
}
run() {
    echo "\$ $*"
    "$K3" "$@" --quiet 2>&1 | times
    echo "exit ${PIPESTATUS[0]}"
}
"$K3" synth ckpt --preset tiny --quiet >/dev/null
run convert ckpt --out set --tp 2 --pp 2 --ranks 3
run convert ckpt --out set --tp 2 --pp 2 --ranks 3
run convert ckpt --out set --tp 2 --pp 2 --ranks 2-3
run convert ckpt --out set --tp 2 --pp 2
run convert ckpt --out more --tp 2 --pp 2 --ranks 1,4
run convert ckpt --out more --tp 2 --pp 2 --ranks 2-
ls more 2>&1
run verify set --against ckpt
run verify set --ranks 2
run load set
run load set --ranks 2-3
run export set --to again
run inspect set | grep -v '^tool\|sha256' | head -n 16
run convert ckpt --out begun --tp 2 --pp 2 --ranks 0,2 --worker 0 --workers 9
run convert ckpt --out begun --tp 2 --pp 2 --ranks 0
run seal --out begun
cat begun/.k3-partial/ranks
