#!/usr/bin/env bash
# Command-line tests: every tests/cli/NAME.sh is run in a fresh folder with K3 set to the binary
# and compared with the files beside it:
#   NAME.sh.stdout.exact, NAME.sh.stderr.exact   the whole output; no file: not looked at
#   NAME.sh.exit                                 the exit code; no file: 0
#   run.sh [--set-exact-output] [NAME...]        the option rewrites those files that exist, and
#                                                makes those of a new test
# $K3 is shown as k3-shard, the folder as TEST, in what is compared.  TAP lines on stdout.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
K3=${K3:?set K3 to the k3-shard binary}
K3=$(cd "$(dirname "$K3")" && pwd)/${K3##*/}
export K3 K3_SOURCE=${K3_SOURCE:-$(cd "$here/../.." && pwd)}
export LC_ALL=C NO_COLOR=1 TERM=dumb

refresh=0
if [ "${1:-}" = --set-exact-output ]; then
    refresh=1
    shift
fi
if [ $# = 0 ]; then
    for test in "$here"/*.sh; do
        [ "${test##*/}" = run.sh ] || set -- "$@" "$test"
    done
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/k3-cli.XXXXXX") || exit 1
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
failed=0

# same NAME STREAM: compare or refresh one stream
same() {
    local want=$here/$1.$2.exact have=$work/$1.$2
    sed -i -e "s|$K3|k3-shard|g" -e "s|$work/$1.dir|TEST|g" "$have"
    [ -e "$want" ] || return 0
    if [ $refresh = 1 ]; then
        cp "$have" "$want"
    else
        diff -u --label "$2 wanted" --label "$2 found" "$want" "$have"
    fi
}

run_one() {
    local name=$1 rc want=0
    mkdir "$work/$name.dir"
    (cd "$work/$name.dir" && exec timeout -k 10 "${K3_TEST_SECONDS:-300}" bash "$here/$name") \
        >"$work/$name.stdout" 2>"$work/$name.stderr" </dev/null
    rc=$?
    if [ $refresh = 1 ] && ! ls "$here/$name".*.exact "$here/$name.exit" >/dev/null 2>&1; then
        : >"$here/$name.stdout.exact"
        : >"$here/$name.stderr.exact"
        [ $rc = 0 ] || echo $rc >"$here/$name.exit"
    fi
    [ -e "$here/$name.exit" ] && [ $refresh = 1 ] && echo $rc >"$here/$name.exit"
    [ ! -e "$here/$name.exit" ] || want=$(cat "$here/$name.exit")
    local ok=1
    same "$name" stdout || ok=0
    same "$name" stderr || ok=0
    if [ "$rc" != "$want" ]; then
        ok=0
        echo "exit code: wanted $want, found $rc"
        tail -n 40 "$work/$name.stdout" "$work/$name.stderr"
    fi
    if [ $ok = 1 ]; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        failed=1
    fi
}

for test in "$@"; do
    run_one "${test##*/}"
done
exit $failed
