# Several --out in another order than the first run had: the right one is given, nothing is touched.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
run() {
    echo "\$ $*"
    "$K3" "$@" --quiet 2>&1 | grep -v -e '^read '
    echo "exit ${PIPESTATUS[0]}"
}
run convert ckpt --out a --out b --out c --tp 2 --worker 0 --workers 2
run convert ckpt --out c --out a --out b --tp 2
run seal --out b --out a --out c
run convert ckpt --out a --out b --tp 2
run convert ckpt --out a --out b --out c --tp 2
run convert ckpt --out a --out c --out b --tp 2
run seal --out c --out b --out a
run seal --out a --out b --out c
run verify c b a --against ckpt
# one of them alone
run convert ckpt --out b --tp 2
run seal --out b
run convert ckpt --out a --tp 2
