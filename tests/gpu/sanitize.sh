#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over loads on a real GPU and over the tests of the device: memory, races
# in shared memory, memory that nobody wrote, barriers.  No GPU or no compute-sanitizer (it comes with
# CUDA; SANITIZER names it): skipped.
set -uo pipefail
. "$(dirname "$0")/common.bash"
sanitizer=${SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)}
[ -n "$sanitizer" ] || skip "compute-sanitizer is not here"

"$K3" synth "$room/ckpt" --preset tiny --quiet >/dev/null &&
    "$K3" convert "$room/ckpt" --out "$room/set" --tp 2 --quiet >/dev/null || exit 1
"$K3" load "$room/set" --device cuda:0 --quiet >/dev/null 2>"$room/talk"
code=$?
[ $code = 4 ] && skip "$(cat "$room/talk")"
[ $code = 0 ] || { cat "$room/talk"; exit 1; }

# under TOOL NAME COMMAND...: 99 is no exit code of ours.
under() {
    local tool=$1 name=$2
    shift 2
    # Errors of the interface are wanted in tests: too much memory is asked for on purpose.
    "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 99 --target-processes all \
        "$@" >"$room/out" 2>&1
    local code=$?
    if [ $code = 0 ] && grep -q 'SUMMARY: 0 ' "$room/out"; then
        good "$tool: $name: $(grep -o 'SUMMARY: .*' "$room/out" | sort -u | head -n 1)"
    else
        tail -n 40 "$room/out"
        wrong "$tool: $name: exit $code"
    fi
}

for tool in memcheck racecheck initcheck synccheck; do
    under $tool "load of two ranks" "$K3" load "$room/set" --device cuda:0 --quiet
done
under memcheck test_dev_gpu "$K3_BUILD/tests/test_dev_gpu" real cuda
under memcheck test_load_gpu "$K3_BUILD/tests/test_load_gpu" real
result
