# Sourced by valgrind.sh and tsan.sh; not run by itself (run_scripts.sh takes *.sh only).
# Purpose: run programs one by one, each with a limit of time, and count what went wrong.
# Environment: K3 (the tool), K3_BUILD, K3_SOURCE.

: "${K3:?set K3 to the k3-shard binary}" "${K3_SOURCE:?set K3_SOURCE to the checkout}"
export LC_ALL=C
RUN_SECONDS_MAX=900 # these tools make a program 50 times slower, and the machine may be busy
passed=0 bad=0

# Where routes past the page cache exist, if this system has such a place.
room=$(mktemp -d "${TMPDIR:-/tmp}/k3-checked.XXXXXX") || exit 1
trap 'rm -rf "$room"' EXIT
trap 'exit 130' INT TERM

# run CODE NAME COMMAND...: it must end with CODE and say nothing that matches $report.
report='==[0-9]+==|WARNING: ThreadSanitizer|ERROR: '
run() {
    local wanted=$1 name=$2 rc
    shift 2
    timeout -k 10 "$RUN_SECONDS_MAX" "$@" >"$room/log" 2>&1 </dev/null
    rc=$?
    if [ $rc = "$wanted" ] && ! grep -qE "$report" "$room/log"; then
        passed=$((passed + 1))
        echo "ok - $name"
        return 0
    fi
    bad=$((bad + 1))
    echo "not ok - $name: exit $rc"
    sed 's/^/  | /' "$room/log" | head -n 60
    return 1
}

result() {
    echo "$passed passed, $bad failed"
    exit $((bad > 0))
}
