#!/usr/bin/env bash
# The tests of threads, engines and loads, and the commands with several workers, under
# ThreadSanitizer: no data race, no lock misused.  Builds CONFIG=tsan first; ten minutes.  TAP lines;
# exit 77 where the compiler has no ThreadSanitizer.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

export TSAN_OPTIONS=exitcode=98:halt_on_error=0 # no exit code of k3-shard
echo 'int main(void) { return 0; }' >"$room/try.c"
"${CC:-cc}" -fsanitize=thread "$room/try.c" -o "$room/try" 2>/dev/null && "$room/try" 2>/dev/null ||
    { echo "skipped: no ThreadSanitizer here"; exit 77; }
build=$(dirname "$K3_BUILD")
if ! make -s -C "$K3_SOURCE" BUILD="$build" CONFIG=tsan tests >"$room/log" 2>&1; then
    echo "not ok - build"
    tail -n 20 "$room/log"
    exit 1
fi
export K3=$build/tsan/k3-shard K3_BUILD=$build/tsan

# check CODE NAME COMMAND...
check() {
    local code=$1 name=$2
    shift 2
    run "$code" "tsan: $name" "$@"
}

for test in test_io test_dev test_load test_load_route test_workers; do
    check 0 $test "$K3_BUILD/tests/$test"
done
cd "$room" || exit 1
check 0 "synth" "$K3" synth ckpt --preset tiny --quiet
check 0 "convert --jobs 4" "$K3" convert ckpt --out set --tp 2 --jobs 4 --quiet
check 0 "convert --jobs 8 --memory 8MiB" "$K3" convert ckpt --out other --tp 4 --jobs 8 \
    --memory 8MiB --quiet
check 0 "verify" "$K3" verify set --jobs 4 --quiet
check 0 "verify --against" "$K3" verify set --against ckpt --jobs 4 --quiet
check 0 "export" "$K3" export set --to again --jobs 4 --quiet
for io in auto uring pread; do
    check 0 "load --io $io" "$K3" load set --io $io --quiet
done
for route in direct buffered; do
    check 0 "load, $route" "$K3_BUILD/tests/make_loaded" set $route
done
result
