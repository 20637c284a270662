#!/usr/bin/env bash
# Lines and branches of each parser that the committed corpus reaches, by its target.
#   coverage.sh [--html DIR] [CORPUS]     builds what it needs; clang and llvm of one release
# For each parser the figures are those of the targets meant for it, run over their corpus alone.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
html=
if [ "${1:-}" = --html ]; then html=$2; shift 2; fi
corpus=${1:-$here/corpus}
release=$(clang -dumpversion | cut -d. -f1)
tool() { command -v "$1-$release" || command -v "$1"; }
profdata=$(tool llvm-profdata) cov=$(tool llvm-cov)
make -s -j"$(nproc)" CONFIG=coverage CC=clang fuzz-targets >/dev/null
scratch=$(mktemp -d "${TMPDIR:-/tmp}/k3-coverage.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# One parser: the file, then its targets.
parsers="formats/json_read.c json
formats/doc.c doc
formats/st.c st
formats/hf_index.c index
formats/config.c config plan
formats/layout.c config plan
formats/plan.c headers
formats/plan_text.c plan headers
formats/names.c names headers
formats/manifest.c manifest
formats/manifest_parts.c manifest record
formats/record.c record
formats/units.c units
formats/source_headers.c headers
formats/zst.c zst
formats/part.c plan view
loader/set_header.c part
loader/set_names.c sizes
tools/sizes.c sizes
tools/opts.c opts
formats/policy.c policy
formats/policy_rules.c policy
formats/text.c names json"

for program in build/coverage/fuzz/*; do
    t=${program##*/}
    LLVM_PROFILE_FILE="$scratch/$t.raw" "$program" "$corpus/$t" >/dev/null 2>&1
done
printf '%-26s %-18s %9s %9s %9s\n' parser targets functions lines branches
while read -r file targets; do
    objects=() raws=()
    for t in $targets; do
        [ ${#objects[@]} = 0 ] && objects=("build/coverage/fuzz/$t") || objects+=(-object "build/coverage/fuzz/$t")
        raws+=("$scratch/$t.raw")
    done
    "$profdata" merge -o "$scratch/data" "${raws[@]}"
    "$cov" export -summary-only -instr-profile "$scratch/data" "${objects[@]}" "$file" >"$scratch/json"
    python3 - "$file" "$targets" "$scratch/json" <<'PY'
import json, sys
total = json.load(open(sys.argv[3]))["data"][0]["totals"]
part = lambda name: "%.1f %%" % total[name]["percent"]
print("%-26s %-18s %9s %9s %9s" % (sys.argv[1], sys.argv[2], part("functions"), part("lines"), part("branches")))
PY
    if [ -n "$html" ]; then
        mkdir -p "$html"
        "$cov" show -show-branches=count -format=html -instr-profile "$scratch/data" "${objects[@]}" "$file" \
            >"$html/$(basename "$file").html"
        "$cov" show -instr-profile "$scratch/data" "${objects[@]}" "$file" >"$html/$(basename "$file").txt"
    fi
done <<<"$parsers"
