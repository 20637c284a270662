# load --trace: never in the place of a file that is needed, told before the load.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
"$K3" convert ckpt --out set --tp 2 --quiet >/dev/null
part=$(cd set && ls *.safetensors | head -n 1)
units=$(cd set && ls *.units | head -n 1)
try() {
    echo "\$ load set --trace $*"
    timeout 60 "$K3" load set --quiet --trace "$@" 2>&1 >out
    echo "exit $?"
}
sums() { find ckpt set -type f | sort | xargs sha256sum; }
sums >before
ln -s "set/$units" link
ln "set/$part" hard
try "set/$part"
try "set/$units"
try set/k3-shards.json
try link
try hard
try "$PWD/set/../set/trace.json"
try ckpt/model-00001-of-000008.safetensors
try ckpt/trace.json
(cd set && "$K3" load . --quiet --trace trace.json 2>&1)
sums | cmp - before && echo unchanged
# a FIFO without a reader; one with a reader
mkfifo fifo
try fifo
exec 3<>fifo 4<fifo # the reader is there before the load
cat <&4 >taken 3>&- &
try fifo
exec 3>&- 4<&-
wait
python3 -m json.tool <taken >/dev/null && echo whole
# what is no file; a directory; a file that cannot be written whole
try /dev/null
try /dev/full
try .
ln -s nowhere lost
try lost
[ -L lost ] && [ ! -e nowhere ] && echo "the link stays"
try /dev/fd/0 <link
try /dev/fd/0 <before
# an older trace is replaced; nothing is left beside it
mkdir t
echo old >t/trace.json
try t/trace.json
python3 -m json.tool <t/trace.json >/dev/null && ls -A t
# stdout: behind the trace comes the report, but no second document
try /dev/stdout
sed -n -e '1p' -e '/^loaded/s/ .*//p' out
try /dev/stdout --json
try /dev/fd/1 --json
"$K3" load set --quiet --json --trace /dev/null >/dev/null && echo both
