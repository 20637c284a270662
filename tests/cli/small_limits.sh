# A small stack is no matter; a file too many says what to do.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
(
    ulimit -s 64
    "$K3" convert ckpt --out set --jobs 2 --quiet >/dev/null && "$K3" verify set --quiet &&
        "$K3" export set --to back --quiet && "$K3" load set --quiet >/dev/null
) 2>&1 | grep -e verdict -e proved
echo "exits ${PIPESTATUS[*]}"
(
    ulimit -f 900
    "$K3" convert ckpt --out third --out fourth --jobs 1 --quiet
    "$K3" export set --to once --jobs 1 --quiet
) 2>&1
ulimit -n 16
"$K3" convert ckpt --out other --quiet 2>&1 | grep -o ': Too many.*'
"$K3" export set --to again --quiet 2>&1 | grep -o ': Too many.*'
echo "exits ${PIPESTATUS[*]}"
