#!/usr/bin/env bash
# The commands on a tiny model, and the unit tests, under Valgrind's memcheck: no bad access, no use
# of what was never written, no leak of any kind.  Minutes.  TAP lines; exit 77 without Valgrind.
#
# Not run here: io uring.  Valgrind (3.19) lets one thread run at a time and holds on to that right
# inside io_uring_enter, so that the thread which is to hand over reads never does.  `make sanitize`
# and tsan.sh run that engine.
# Valgrind knows no AVX-512: of the hash kernels it sees the others.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed"; exit 77; }
case ${K3_BUILD##*/} in
release) ;;
*) echo "skipped: a sanitizer build does not run under valgrind"; exit 77 ;;
esac
REPORT_CODE=98 # no exit code of k3-shard
memcheck=(valgrind -q --error-exitcode=$REPORT_CODE --leak-check=full --show-leak-kinds=all
          --errors-for-leak-kinds=all --track-origins=no --child-silent-after-fork=yes)

# check CODE NAME COMMAND...
check() {
    local code=$1 name=$2
    shift 2
    run "$code" "valgrind: $name" "${memcheck[@]}" "$@"
}

cd "$room" || exit 1
check 0 "synth" "$K3" synth ckpt --preset tiny --layers 3 --quiet
check 0 "plan" "$K3" plan ckpt --tp 2
check 4 "plan of what does not fit" "$K3" plan ckpt --tp 2 --budget 1MiB
check 0 "convert --jobs 1" "$K3" convert ckpt --out set --tp 2 --jobs 1 --quiet
check 0 "convert --jobs 4" "$K3" convert ckpt --out four --tp 2 --jobs 4 --quiet
check 0 "convert of a finished set" "$K3" convert ckpt --out four --tp 2 --quiet
check 4 "convert of another plan" "$K3" convert ckpt --out four --tp 1 --quiet
check 0 "convert --worker" "$K3" convert ckpt --out spread --tp 2 --worker 0 --workers 1 --quiet
check 0 "seal" "$K3" seal --out spread
check 0 "verify" "$K3" verify set --quiet
check 0 "verify --quick" "$K3" verify set --quick --quiet
check 0 "verify --against" "$K3" verify set --against ckpt --quiet
check 0 "verify of a checkpoint" "$K3" verify ckpt --quiet
check 0 "inspect" "$K3" inspect set
check 0 "export" "$K3" export set --to again --quiet
check 0 "load --io pread" "$K3" load set --io pread --quiet
check 0 "load through the page cache" "$K3_BUILD/tests/make_loaded" set buffered
check 0 "load, not verified" "$K3_BUILD/tests/make_loaded" set buffered no-verify
for file in set/*; do dd if="$file" of=/dev/null iflag=nocache count=0 2>/dev/null; done
check 0 "load --io pread, cold" "$K3" load set --io pread --quiet
printf 'x' | dd of=four/model-rank-0-part-1.safetensors bs=1 seek=700000 conv=notrunc 2>/dev/null
check 3 "verify of a bad set" "$K3" verify four --quiet
check 3 "load of a bad set" "$K3" load four --io pread --quiet
check 3 "plan of what is no checkpoint" "$K3" plan four

# Unit tests; those that open rings, fork or take minutes are left to the sanitizers.
for test in "$K3_BUILD"/tests/test_*; do
    name=${test##*/}
    case $name in
    test_io | test_load | test_load_route | test_sha256* | test_tree | test_synth) continue ;;
    esac
    check 0 "$name" "$test"
done
result
