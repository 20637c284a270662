# Files of .k3-partial that were cut: what is finished is kept where that can be proved.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
run() {
    echo "\$ $*"
    "$K3" "$@" 2>&1 | grep -v -e '^convert' -e '^read ' -e '^this was'
    echo "exit ${PIPESTATUS[0]}"
}
begin() {
    rm -rf a b
    "$K3" convert ckpt --out a --out b --tp 2 --worker 0 --workers 2 --quiet >/dev/null
}
again() { run convert ckpt --out a --out b --tp 2; }
for bytes in 0 100; do
    begin
    echo "# plan.json of $bytes bytes"
    truncate -s $bytes a/.k3-partial/plan.json
    run seal --out a --out b
    run convert ckpt --out a --out b --tp 4
    again
    run verify a b --against ckpt --quiet
done
begin
echo "# plan.json, and nothing is finished"
rm a/.k3-partial/item-*.record
: >a/.k3-partial/plan.json
run convert ckpt --out a --out b --tp 4
run verify a b --against ckpt --quiet
for file in sources place ranks item-0.record; do
    begin
    echo "# $file"
    : >a/.k3-partial/$file
    again
done
begin
rm a/.k3-partial/item-0.record a/.k3-partial/sources
again
run verify a b --against ckpt --quiet
