#!/usr/bin/env bash
# The io engine cufile over NVIDIA's own library: its tests, a load that asks for it, one that is left
# to choose, and the rate of each way.  No GPU or no libcufile.so.0 (LD_LIBRARY_PATH may name its
# folder; PyPI's nvidia-cufile has it): skipped.
# Environment: those of common.bash; TMPDIR: on a file system with direct reads, 14 GB free there;
#   K3_SET: a finished set whose rank 0 is loaded, only read; without it one of 2.3 GB is made;
#   ROUNDS (5): loads by each way in turn for the rates, which are shown and not judged.
set -uo pipefail
. "$(dirname "$0")/common.bash"
device=cuda:0
cd "$room" || exit 1 # the library leaves its log where it is started

# load NAME ARGUMENT...: JSON in NAME.json, talk in NAME.talk.  No page of the set is in memory.
load() {
    local name=$1 file
    shift
    for file in "$set"/*.safetensors; do
        dd if="$file" of=/dev/null iflag=nocache count=0 status=none
    done
    "$K3" load "$set" --ranks 0 --json --quiet "$@" >"$name.json" 2>"$name.talk"
}
# field NAME KEY: a number or a word of the JSON, the last of that name: there is one rank, and what it has
# is the same as what all have
field() { sed -n 's/.*[{,]"'"$2"'":"\{0,1\}\([^",}]*\).*/\1/p' "$1.json"; }
fallbacks() { sed -n 's/.*"fallbacks":\[\([^]]*\)\].*/\1/p' "$1.json"; }
# check TEXT COMMAND...
check() {
    local text=$1
    shift
    if "$@"; then good "$text"; else wrong "$text"; fi
}
is_right() { [ "$(field "$1" io)" = "$2" ] && [ "$(field "$1" verify)" = true ] && [ "$(field "$1" reread_units)" = 0 ]; }

# What is here?
set=${K3_SET:-}
if [ -z "$set" ]; then
    "$K3" synth probe --preset tiny --quiet >/dev/null &&
        "$K3" convert probe --out probe-set --tp 1 --quiet >/dev/null || exit 1
    set=$room/probe-set
fi
load probe --device $device --io cufile
code=$?
cat probe.json probe.talk
[ $code = 0 ] || [ ! -s cufile.log ] || tail -n 30 cufile.log
[ $code = 4 ] && skip "cufile cannot run here"
check "a load by --io cufile: exit $code" [ $code = 0 ]

for test in test_io_gpufile test_load_gpufile; do
    "$K3_BUILD/tests/$test" real cuda >"$test.out" 2>&1
    code=$?
    cat "$test.out"
    check "$test real cuda: exit $code" [ $code = 0 ]
done

if [ -z "${K3_SET:-}" ]; then
    need_room 14000000000
    "$K3" synth ckpt --preset layer --layers 3 --experts 16 --quiet >/dev/null &&
        "$K3" convert ckpt --out set --tp 8 --ranks 0 --quiet >/dev/null || exit 1
    rm -rf ckpt
    set=$room/set
fi

# Asked for: it runs, whichever way the library goes, and says so unless that is the direct one.
load forced --device $device --io cufile
code=$?
cat forced.json forced.talk
check "--io cufile: exit $code" [ $code = 0 ]
check "--io cufile: read by $(field forced io), verified, nothing twice" is_right forced cufile
check "--io cufile: $(field forced verified_bytes) of $(field forced bytes) bytes verified" \
    [ "$(field forced verified_bytes)" -ge "$(field forced bytes)" ]
check "--io cufile: no pinned memory of ours" [ "$(field forced pinned_bytes)" = 0 ]
way=direct
case $(fallbacks forced) in *"through host memory"*) way=compatibility ;; esac
say "the library goes $way; fallbacks: $(fallbacks forced)"

# Left to choose: never through host memory, and a sentence why.
load auto --device $device --io auto
code=$?
cat auto.json auto.talk
check "--io auto: exit $code" [ $code = 0 ]
check "--io auto: past the page cache" [ "$(field auto direct)" = true ]
if [ $way = compatibility ]; then
    check "--io auto: not by cufile, by $(field auto io)" [ "$(field auto io)" != cufile ]
    case $(fallbacks auto) in
    *"io cufile is not used: "*"through host memory"*) good "--io auto says why: $(fallbacks auto)" ;;
    *) wrong "--io auto does not say why: $(fallbacks auto)" ;;
    esac
else
    case $(fallbacks auto) in
    *"io cufile is "*"used: "*"GB/s"*) good "--io auto says why: $(fallbacks auto)" ;;
    *) wrong "--io auto does not say why: $(fallbacks auto)" ;;
    esac
fi

# Where it has no place it is refused, with what would do.
load host --device host --io cufile
code=$?
cat host.talk
check "--device host --io cufile: exit $code, 4 wanted" [ $code = 4 ]

# The rates, in turn; the file is read once before, so the first round is like the others.
engines="cufile uring pread"
for ((round = 1; round <= ${ROUNDS:-5}; round++)); do
    for engine in $engines; do
        load rate --device $device --io $engine || { cat rate.talk; wrong "--io $engine"; continue; }
        echo "$(field rate gb_per_s) $(sed -n 's/.*"open":\([0-9.e-]*\).*/\1/p' rate.json)" >>$engine.rates
    done
done
for engine in $engines; do
    say "$engine: GB/s of each round:$(awk '{ printf " %s", $1 }' $engine.rates), median $(
        sort -g $engine.rates | awk '{ r[NR] = $1 } END { print r[int((NR + 1) / 2)] }'
    ); seconds to open:$(awk '{ printf " %s", $2 }' $engine.rates)"
done
for log in *.log; do
    [ -e "$log" ] && say "the library left $log:" && tail -n 20 "$log"
done
result
