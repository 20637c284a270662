#!/usr/bin/env bash
# Make the committed corpus anew: first inputs (make_seeds.py), the corpus there is, and what runs
# have found, minimised.
#   make_corpus.sh [FOUND...]     FOUND has a folder for each target, as OUTDIR/new of run_many.sh
# Needs `make tests fuzz`.  Of each target the smallest inputs are kept, within a budget of bytes.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
budget_bytes=220000 # for each target: all of them stay below 1 MB
scratch=$(mktemp -d "${TMPDIR:-/tmp}/k3-corpus.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

python3 -B "$here/make_seeds.py" "$root/build/release/k3-shard" \
    "$root/build/release/tests/make_bad_files" "$scratch/seeds"
for program in "$root"/build/fuzz/fuzz/*; do
    t=${program##*/}
    from=("$scratch/seeds/$t")
    for found in "$here/corpus" "$@"; do
        [ ! -d "$found/$t" ] || from+=("$found/$t")
    done
    mkdir -p "$scratch/min/$t" "$scratch/corpus/$t"
    # Edges, not how often each is taken: a third of the files.
    "$program" -set_cover_merge=1 -use_counters=0 -timeout=20 -max_len=20000 \
        -artifact_prefix="$scratch/$t-broken-" "$scratch/min/$t" "${from[@]}" >"$scratch/log" 2>&1 ||
        { tail -n 20 "$scratch/log"; exit 1; }
    # A merge leaves out what ends the target, and goes on.
    ! compgen -G "$scratch/$t-broken-*" >/dev/null || { echo "$t breaks on an input" >&2; exit 1; }
    used=0
    while read -r bytes name; do
        used=$((used + bytes))
        [ $used -le $budget_bytes ] || break
        cp "$scratch/min/$t/$name" "$scratch/corpus/$t/"
    done < <(find "$scratch/min/$t" -type f -printf '%s %f\n' | sort -n)
done
rm -rf "$here/corpus.new"
cp -r "$scratch/corpus" "$here/corpus.new"
# Regressions are kept as they are.
find "$here/corpus" -name 'regression-*' | while read -r file; do
    cp "$file" "$here/corpus.new/$(basename "$(dirname "$file")")/"
done
rm -rf "$here/corpus"
mv "$here/corpus.new" "$here/corpus"
du -sb "$here/corpus"
find "$here/corpus" -type f | wc -l
