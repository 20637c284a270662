#!/usr/bin/env bash
# Fuzz all targets in parallel with libFuzzer, collect crashes and figures, minimise what is new.
#   run_many.sh OUTDIR SECONDS [CORES]
# SECONDS is wall time; CORES (default: all) are filled all of it: with fewer cores than targets each
# target gets its share of the time, with more the targets with most code get more than one core.
# Programs and corpus: bin/ and corpus/ beside this script (the kit), else those of the checkout.
# OUTDIR: corpus/TARGET (grows), new/TARGET (minimised, with the seeds), crashes/, log/, report.txt.
# Exit 1 when there was a crash, a leak, a timeout or too much memory.
set -uo pipefail

[ $# -ge 2 ] || { echo "usage: run_many.sh OUTDIR SECONDS [CORES]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
out=$1 seconds=$2 cores=${3:-$(nproc)}
bin=$here/bin corpus=$here/corpus dict=$here/dict
[ -d "$bin" ] || bin=$here/../../build/fuzz/fuzz
mkdir -p "$out/corpus" "$out/new" "$out/crashes" "$out/log"
out=$(cd "$out" && pwd)

# In the order in which spare cores are given away.
targets="st json headers plan manifest part record config policy doc index zst opts view names sizes units"
# A machine without these two takes those of the kit.
if ldd "$bin/st" 2>/dev/null | grep -qE '(libstdc\+\+|libgcc_s).*not found'; then
    export LD_LIBRARY_PATH=$here/lib/compiler
fi
for t in $targets; do [ -x "$bin/$t" ] || { echo "$bin/$t is missing" >&2; exit 2; }; done
count=$(echo $targets | wc -w)

# One line "TARGET NUMBER SECONDS" for each run.
plan_runs() {
    local i=0 t
    if [ "$cores" -lt "$count" ]; then
        for t in $targets; do echo "$t 0 $((seconds * cores / count))"; done
        return
    fi
    while [ $i -lt "$cores" ]; do
        for t in $targets; do
            [ $i -lt "$cores" ] || break
            echo "$t $((i / count)) $seconds"
            i=$((i + 1))
        done
    done
}

# One target until its time is over; what ends the fuzzer is kept and it begins again.
run_one() {
    local t=$1 number=$2 end now
    end=$(($(date +%s) + $3))
    mkdir -p "$out/corpus/$t"
    for try in 1 2 3 4 5; do
        now=$(date +%s)
        [ "$now" -lt "$end" ] || break
        # A parser that takes memory by a number it read is a bug: 512 MiB at once, 1 GiB in all.
        "$bin/$t" -max_total_time=$((end - now)) -max_len=20000 -timeout=20 -rss_limit_mb=1024 \
            -malloc_limit_mb=512 -print_final_stats=1 -dict="$dict/$t.dict" \
            -artifact_prefix="$out/crashes/$t-" "$out/corpus/$t" "$corpus/$t" \
            >"$out/log/$t-$number-$try.log" 2>&1 && break
    done
}

# Keep the inputs that cover something the smaller ones do not.
minimise() {
    local t=$1
    rm -rf "$out/new/$t"
    mkdir -p "$out/new/$t"
    "$bin/$t" -merge=1 -timeout=20 -rss_limit_mb=1024 -max_len=20000 \
        -artifact_prefix="$out/crashes/$t-" "$out/new/$t" "$corpus/$t" "$out/corpus/$t" >"$out/log/$t-merge.log" 2>&1 || echo "$t: merge failed" >&2
}
export -f run_one minimise
export out bin corpus dict

plan_runs | xargs -P "$cores" -L 1 bash -c 'run_one "$@"' run
printf '%s\n' $targets | xargs -P "$cores" -L 1 bash -c 'minimise "$@"' run

{
    printf '%-10s %13s %8s %6s %7s %7s %8s\n' target executions seconds cov ft corpus crashes
    for t in $targets; do
        execs=$(cat "$out/log/$t-"[0-9]*.log | awk '/stat::number_of_executed_units/ { n += $2 } END { print n + 0 }')
        spent=$(cat "$out/log/$t-"[0-9]*.log | awk '/^Done .* runs in/ { n += $5 } END { print n + 0 }')
        read -r cov ft <<<"$(cat "$out/log/$t-"[0-9]*.log | awk '/ cov: / { for (i = 1; i < NF; i++) {
            if ($i == "cov:" && $(i + 1) > c) c = $(i + 1)
            if ($i == "ft:" && $(i + 1) > f) f = $(i + 1) } } END { print c + 0, f + 0 }')"
        files=$(find "$out/new/$t" -type f | wc -l)
        crashes=$(find "$out/crashes" -type f -name "$t-*" | wc -l)
        printf '%-10s %13s %8s %6s %7s %7s %8s\n' "$t" "$execs" "$spent" "$cov" "$ft" "$files" "$crashes"
    done
} | tee "$out/report.txt"
[ -z "$(ls -A "$out/crashes")" ]
