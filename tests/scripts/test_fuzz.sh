#!/usr/bin/env bash
# Every input of the fuzz corpus through its target once: nothing breaks, whatever a fuzzer found
# before.  TAP lines.
set -uo pipefail
failed=0
corpus=$K3_SOURCE/tests/fuzz/corpus
log=$(mktemp "${TMPDIR:-/tmp}/k3-fuzz.XXXXXX")
trap 'rm -f "$log"' EXIT
for source in "$K3_SOURCE"/tests/fuzz/fuzz_*.c; do
    target=$(basename "$source" .c)
    target=${target#fuzz_}
    wanted=$(find "$corpus/$target" -type f | wc -l)
    if "$K3_BUILD/fuzz/$target" "$corpus/$target" >"$log" 2>&1 && [ "$wanted" -gt 0 ] &&
        grep -qx "$wanted inputs" "$log"; then
        echo "ok - $target: $wanted inputs"
    else
        echo "not ok - $target"
        tail -n 20 "$log"
        failed=1
    fi
done
exit $failed
