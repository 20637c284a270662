#!/bin/sh
# House rules, format and static analysis.  Prints each breach; exit 1 when there is any.
#   tidy.sh [--quick] [ROOT]     --quick leaves out clang-tidy and cppcheck
# Tools that are not installed are named and left out, except with CI set: then that is a failure.
# Environment: CC, BUILD (folder for marks of files that passed; default build).
# Lists of files and flags are split into words on purpose; names have no blanks.
# shellcheck disable=SC2086,SC2046,SC2016,SC2116
set -u

quick=0
if [ "${1:-}" = --quick ]; then
    quick=1
    shift
fi
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-$here/../..}
cd "$root" || exit 1

CC=${CC:-cc}
marks=${BUILD:-build}/tidy
failed=0
layers=
for layer in formats runtime loader tools tests; do
    [ ! -d "$layer" ] || layers="$layers $layer"
done
includes="-Iformats -Iruntime -Iloader -Itools -Itests"
flags="-std=c11 -D_GNU_SOURCE $includes"
c_files=$(find $layers -name '*.c' | sort)
h_files=$(find $layers -name '*.h' | sort)

fail() {
    echo "tidy: $1 failed"
    failed=1
}

# have TOOL: is it here?  In CI it must be.
have() {
    command -v "$1" >/dev/null 2>&1 && return 0
    echo "tidy: $1 is not installed, left out"
    [ -z "${CI:-}" ] || failed=1
    return 1
}

python3 "$here/tidy_source.py" . || fail "house rules"

# Variable length arrays, by the compiler, which knows what is constant.
for f in $c_files; do echo "$f"; done |
    xargs -r -P2 -n8 "$CC" $flags -fsyntax-only -Werror=vla || fail "vla"

if [ -e .clang-format ] && have clang-format; then
        clang-format --dry-run -Werror $c_files $h_files 2>&1 | grep -E 'error:|warning:' && fail "format"
fi

# clang-tidy: a file is looked at again when it, a header or the rules are newer than its mark.
one_clang_tidy='
    mark=$0/$(echo "$1" | tr / _).ok
    newest=$(ls -t "$1" .clang-tidy '"$(echo $h_files)"' | head -n 1)
    [ ! -e "$mark" ] || [ "$newest" -nt "$mark" ] || exit 0
    rm -f "$mark"
    touch "$mark.new"
    file=$1
    shift
    checks=
    case $file in
    formats/k3_err.c) ;; # defines what the model replaces
    tests/*) checks=-clang-analyzer-* ;; # it does not know that a failed assertion ends a test
    *) set -- "$@" -include "$MODEL" ;;
    esac
    # A fifth of the default: functions that need more steps are cut short, the run takes a minute.
    clang-tidy --quiet --checks="$checks" "$file" -- "$@" \
        -Xclang -analyzer-config -Xclang max-nodes=50000 2>/dev/null && mv "$mark.new" "$mark"'
if [ $quick = 0 ] && [ -e .clang-tidy ] && have clang-tidy; then
    mkdir -p "$marks"
    export MODEL="$here/tidy_model.h"
    for f in $c_files; do echo "$f"; done |
        xargs -r -P2 -I{} sh -c "$one_clang_tidy" "$marks" {} $flags || fail "clang-tidy"
fi

if [ $quick = 0 ] && have cppcheck; then
    mkdir -p "$marks/cppcheck"
        cppcheck --quiet --std=c11 -j2 --cppcheck-build-dir="$marks/cppcheck" --error-exitcode=1 \
        --enable=warning,performance,portability --inline-suppr --suppress=missingIncludeSystem \
        --suppress=unknownMacro:tests/* -D_GNU_SOURCE -D__GNUC__ -D__linux__ -D__x86_64__ \
        $includes $(for f in $c_files; do case $f in tests/*) ;; *) echo "$f" ;; esac; done) ||
        fail "cppcheck"
fi

[ $failed = 1 ] || echo "tidy: clean"
exit $failed
