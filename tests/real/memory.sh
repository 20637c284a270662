#!/usr/bin/env bash
# `convert` of layers of real size in little memory: at most 512 MiB resident, and inside a memory
# cgroup of 600 MiB, page cache included; the limited run makes the same files as an unlimited one.
# Needs 21 GB, and 12 GB more without K3_REAL_CKPT; the cgroup needs root, and is left out elsewhere.
# Environment: see common.bash.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"
# shellcheck source-path=SCRIPTDIR source=group.bash
. "$(dirname "$0")/group.bash"

layer_checkpoint 20500000000 # a TP8 set; the first is removed before the second is made

convert_in "$room/free" ''
same "convert: exit" 0 "$rc"
say "unlimited: $((peak >> 20)) MiB resident at most, $seconds s"
if [ "$peak" -gt 0 ] && [ "$peak" -le $RESIDENT_MAX ]; then
    good "convert: at most $((RESIDENT_MAX >> 20)) MiB resident"
else
    wrong "convert: $peak bytes resident, wanted $RESIDENT_MAX at most"
fi
# What is kept of this run is its record of every file: names, sizes, digests.
mv "$room/free/k3-shards.json" "$room/free.json" || { wrong "no manifest"; result; }
rm -rf "$room/free"

if ! make_group; then
    [ "$bad" = 0 ] || result
    skip "the limit of $((GROUP_BYTES >> 20)) MiB was not tried: $why; the rest is good"
fi
convert_in "$room/limited" "$group"
same "convert in a cgroup of $((GROUP_BYTES >> 20)) MiB: exit" 0 "$rc"
say "limited: $((peak >> 20)) MiB resident at most, $seconds s," \
    "$(($(cat "$group/$peak_file" 2>/dev/null || echo 0) >> 20)) MiB of the group with its cache"
same "processes killed for memory" 0 "$(awk '$1 == "oom_kill" { print $2 }' "$group/$kills_file")"
[ "$rc" = 0 ] || result

# Equal manifests: the same names, sizes and digests, each taken from what was read back.
python3 - "$room/free.json" "$room/limited/k3-shards.json" "$room/limited" <<'PY' || bad=$((bad + 1))
import json, os, sys

def files_of(value, into):
    """Every object with a digest, wherever it stands, by its name."""
    if isinstance(value, dict):
        if "sha256" in value and "name" in value:
            into[value["name"]] = value
        for inner in value.values():
            files_of(inner, into)
    elif isinstance(value, list):
        for inner in value:
            files_of(inner, into)
    return into

free, limited = (json.load(open(path)) for path in sys.argv[1:3])
a, b = files_of(free, {}), files_of(limited, {})
wrong = [name for name in sorted(set(a) | set(b)) if a.get(name) != b.get(name)]
missing = [name for name in b if not os.path.exists(os.path.join(sys.argv[3], name))]
if wrong or len(a) < 8 or free != limited:
    print(f"FAIL  the same files: {len(a)} and {len(b)}, of which differ {wrong[:5]}, missing {missing[:5]}")
    sys.exit(1)
print(f"ok    the same {len(a)} files, by the digests in both manifests")
PY
result
