#!/usr/bin/env bash
# Run test programs, script tests and CLI tests; count what passed and what failed.
#   run_tests.sh PROGRAM...
# Environment: K3 (the tool), K3_BUILD (folder for logs), K3_SOURCE (the checkout);
#   K3_TEST_SECONDS: limit of one program (default 300).
# Output: one line for each program, the log of each that failed, and as last line
# "N passed, N failed".  Exit 0 only when nothing failed.
set -uo pipefail

cd "$K3_SOURCE" || exit 1
logs=$K3_BUILD/logs
rm -rf "$logs"
mkdir -p "$logs"
limit=${K3_TEST_SECONDS:-300}
passed=0 failed=0 skipped=0

# Temporary files of all tests go to one place that is removed.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/k3-test.XXXXXX") || exit 1
chmod 711 "$scratch" # some tests run the tool as another user
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

count() { grep -cE "$1" "$2"; }

# report NAME PASSED FAILED SKIPPED LOG
report() {
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
    local note=
    [ "$4" = 0 ] || note=", $4 skipped"
    printf '  %-28s %4d passed, %d failed%s\n' "$1" "$2" "$3" "$note"
    [ "$3" = 0 ] || sed 's/^/    | /' "$5" | tail -n 200
}

# A test that began and did not end OK has failed, also when the program died in it.
run_program() {
    local program=$1 name log rc run ok skip bad
    name=${program##*/}
    log=$logs/$name.log
    timeout -k 10 "$limit" "$program" >"$log" 2>&1 </dev/null
    rc=$?
    [ $rc != 124 ] || echo "stopped after $limit s" >>"$log"
    run=$(count '^\[ RUN  ' "$log")
    ok=$(count '^\[ +OK \]' "$log")
    # cmocka lists what was skipped once more at the end.
    skip=$(grep -E '^\[ +SKIPPED \] [A-Za-z_]' "$log" | sort -u | wc -l)
    bad=$((run - ok - skip))
    if [ "$run" = 0 ] && [ $rc = 77 ]; then
        skip=1
    elif [ "$run" = 0 ] && [ $rc = 0 ]; then
        ok=1 # a plain program: its exit code is its result
    elif [ $rc != 0 ] && [ $bad -le 0 ]; then
        bad=1 # failed outside of a test: fixture, crash at exit, leak
        echo "exit code $rc" >>"$log"
    fi
    report "$name" "$ok" "$bad" "$skip" "$log"
}

# Scripts that print TAP lines: "ok - text", "not ok - text", "ok - text # SKIP why".
run_tap() {
    local name=$1 log=$logs/$1.log rc ok bad skip
    shift
    "$@" >"$log" 2>&1 </dev/null
    rc=$?
    skip=$(count '^ok .*# SKIP' "$log")
    ok=$(($(count '^ok ' "$log") - skip))
    bad=$(count '^not ok ' "$log")
    if [ $bad = 0 ] && { [ $rc != 0 ] || [ $((ok + skip)) = 0 ]; }; then
        bad=1
        echo "exit code $rc, $ok passed" >>"$log"
    fi
    report "$name" "$ok" "$bad" "$skip" "$log"
}

for program in "$@"; do
    run_program "$program"
done
for script in tests/scripts/test_*.sh; do
    [ -e "$script" ] && run_tap "${script##*/}" "$script"
done
run_tap cli tests/cli/run.sh

[ $skipped = 0 ] || echo "  ($skipped skipped; the logs in $logs say why)"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
