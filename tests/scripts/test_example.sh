#!/usr/bin/env bash
# docs/examples/print_tensors.c, built as a program outside of the tree would be (pkg-config on
# installed files), names each tensor and view that the reader of safetensors files names.  TAP lines.
set -uo pipefail
failed=0
ok() {
    if [ "$1" = 0 ]; then echo "ok - $2"; else echo "not ok - $2"; failed=1; fi
}
dir=$(mktemp -d "${TMPDIR:-/tmp}/k3-example.XXXXXX")
trap 'rm -rf "$dir"' EXIT
case ${K3_BUILD##*/} in
release) ;;
*) echo "ok - example # SKIP only the release build is installed"; exit 0 ;;
esac
make -s -C "$K3_SOURCE" BUILD="$(dirname "$K3_BUILD")" PREFIX="$dir/usr" install >"$dir/log" 2>&1
ok $? "make install" || cat "$dir/log"
lib=$dir/usr/lib
flags="-I$dir/usr/include -L$lib -lk3load"
if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --cflags --libs k3load)
fi
# shellcheck disable=SC2086
${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Werror "$K3_SOURCE/docs/examples/print_tensors.c" \
    $flags -o "$dir/print_tensors"
ok $? "print_tensors.c: compiled against the installed files"
export LD_LIBRARY_PATH=$lib
"$K3" synth "$dir/ckpt" --preset tiny --quiet >/dev/null &&
    "$K3" convert "$dir/ckpt" --out "$dir/set" --tp 2 --quiet >/dev/null
ok $? "a small set"
"$dir/print_tensors" "$dir/set" 1 host >"$dir/out"
ok $? "print_tensors SET 1 host"
# What the headers of the files say, read by a few lines that share nothing with the library.
"${PYTHON:-python3}" - "$dir/set" >"$dir/wanted" <<'PY'
import glob, json, struct, sys
for path in glob.glob(sys.argv[1] + "/model-rank-1-part-*.safetensors"):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    for name, row in header.items():
        if name == "__metadata__":
            for key, value in row.items():
                if key.startswith("k3.view."):
                    dtype, dims, begin, end = value.split(";")
                    shape = dims.replace(",", "x")
                    print("view", key[8:], dtype, shape, int(end) - int(begin), "bytes")
        elif not name.startswith("k3.pad."):
            begin, end = row["data_offsets"]
            print("tensor", name, row["dtype"], "x".join(map(str, row["shape"])), end - begin, "bytes")
PY
count=$(grep -c . "$dir/wanted")
sed -n '/^[tv]/s/ at 0x.*//p' "$dir/out" | sort | diff - <(sort "$dir/wanted") >"$dir/log"
same=$?
[ $same = 0 ] || head -5 "$dir/log"
[ "$count" -gt 100 ] && [ $same = 0 ]; ok $? "$count tensors and views, as the files' headers have them"
bytes=$("$K3" load "$dir/set" --ranks 1 --json --quiet | "${PYTHON:-python3}" -c '
import json, sys
print(json.load(sys.stdin)["bytes"])')
tail -n 1 "$dir/out" | grep -q "^$bytes bytes on host, [1-9][0-9]* verified$"
ok $? "its last line: $(tail -n 1 "$dir/out")"
expect() { # CODE TEXT ARGUMENT...
    local code=$1 text=$2
    shift 2
    "$dir/print_tensors" "$@" >/dev/null 2>"$dir/log"
    [ $? = "$code" ] && grep -q -- "$text" "$dir/log"; ok $? "print_tensors $* : exit $code"
}
cd "$dir" || exit 1
expect 2 "usage: " set 1
expect 2 "usage: " set one host
expect 2 "device 'plane'" set 1 plane
expect 3 "k3-shards.json" ckpt 1 host
LD_LIBRARY_PATH=$lib:$K3_BUILD/fake_bad expect 4 "device cuda: no libcuda.so.1" set 1 cuda:0
printf X | dd of=set/model-rank-1-part-1.safetensors bs=1 seek=600000 conv=notrunc status=none
expect 3 "model-rank-1-part-1.safetensors" set 1 host
exit $failed
