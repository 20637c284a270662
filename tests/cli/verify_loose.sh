# verify: checkpoints and directories that are not as they should be; all problems at once.
times() { sed -E -e 's/ in [0-9].*$/ in TIME/'; }
run() {
    echo "\$ verify $*"
    "$K3" verify "$@" --quiet 2>&1 | times
    echo "exit ${PIPESTATUS[0]}"
}
python3 - <<'PY'
import json, os, struct

def write(path, tensors):
    at, header = 0, {}
    for name, count in tensors:
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(at))

os.mkdir("other")
write("other/model-1.safetensors", [("a", 3), ("b", 2)])
write("other/model-2.safetensors", [("c", 1), ("stale", 1)])
names = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors",
         "d": "model-1.safetensors"}
with open("other/model.safetensors.index.json", "w") as file:
    json.dump({"metadata": {"total_size": 28}, "weight_map": names}, file)
with open("other/config.json", "w") as file:
    json.dump({"architectures": ["SomeoneElse"], "model_type": "else"}, file)
os.mkdir("plain")
write("plain/one.safetensors", [("x", 1)])
with open("plain/two.safetensors", "wb") as file:
    file.write(b"version https://git-lfs.github.com/spec/v1\n")
PY
run other
run plain
# without rules the digests of a download are judged as well, of a lone file too
rm plain/two.safetensors
mkdir -p plain/.cache/huggingface/download
record() { # FILE ETAG
    printf 'commit\n%s\n%s.5\n' "$2" "$(date +%s)" >"plain/.cache/huggingface/download/$1.metadata"
}
record one.safetensors "$(sha256sum plain/one.safetensors | cut -d' ' -f1)"
run plain
run plain/one.safetensors
echo '{"architectures": ["SomeoneElse"], "model_type": "else"}' >plain/config.json
run plain
run plain --quick
printf 'X' | dd of=plain/one.safetensors bs=1 seek=66 conv=notrunc status=none
touch -d @1700000000 plain/one.safetensors # not after its record
run plain
run plain --quick
run plain/one.safetensors
run plain/one.safetensors --quick
rm plain/config.json
run plain
rm -r plain/.cache
run plain/one.safetensors
rm plain/*
run plain
"$K3" synth rest --preset tiny --quiet >/dev/null
rm rest/config.json
run rest
"$K3" synth ckpt --preset tiny --quiet >/dev/null
digest=$(sha256sum ckpt/model-00001-of-000008.safetensors | cut -d' ' -f1)
mkdir -p ckpt/.cache/huggingface/download
for file in 1 2; do # the record of file 2 is wrong
    printf 'commit\n%s\n%s.5\n' "$digest" "$(date +%s)" \
        >ckpt/.cache/huggingface/download/model-0000$file-of-000008.safetensors.metadata
done
run ckpt
# a record that is older than its file: damaged, or changed on purpose; convert leaves that open
rm ckpt/.cache/huggingface/download/model-00002-of-000008.safetensors.metadata
printf 'commit\n%s\n7\n' "$digest" \
    >ckpt/.cache/huggingface/download/model-00003-of-000008.safetensors.metadata
run ckpt
"$K3" convert ckpt --out changed --tp 2 2>&1 | grep '^notice'
rm -r ckpt/.cache changed
# the last byte of an A_log: behind the heads of the model
offset=$("$K3" inspect ckpt --json --tensor language_model.model.layers.0.self_attn.A_log |
    python3 -c 'import json, sys
place = json.load(sys.stdin)["places"][0]
print(place["file_offset"] + place["bytes"] - 1)')
printf 'X' | dd of=ckpt/model-00001-of-000008.safetensors bs=1 seek="$offset" conv=notrunc status=none
run ckpt
truncate -s -1 ckpt/model-00002-of-000008.safetensors
rm ckpt/model-00003-of-000008.safetensors
run ckpt --quick
