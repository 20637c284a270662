#!/usr/bin/env bash
# Run every script of a folder (tests/real, tests/fault): exit 0 passed, 77 skipped, else failed.
#   run_scripts.sh FOLDER
# Their output is shown as it comes, since they take long.  Last line: "N passed, N failed".
set -uo pipefail

cd "$K3_SOURCE" || exit 1
passed=0 failed=0
scratch=$(mktemp -d "${TMPDIR:-/tmp}/k3-test.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

for script in "$1"/*.sh; do
    [ -e "$script" ] || { echo "$1 has no scripts"; continue; }
    echo "== $script"
    bash "$script" </dev/null
    case $? in
    0) passed=$((passed + 1)) ;;
    77) echo "skipped: $script" ;;
    *) failed=$((failed + 1)); echo "FAILED: $script" ;;
    esac
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
