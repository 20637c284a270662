#!/usr/bin/env bash
# Sets whose digests are all right but which break the format are refused (tests/python/test_forged.py).
# TAP lines on stdout.
set -uo pipefail
log=$("${PYTHON:-python3}" "$K3_SOURCE/tests/python/test_forged.py" "$K3" 2>&1)
rc=$?
echo "$log"
if [ $rc = 0 ]; then
    echo "ok - forged sets"
else
    echo "not ok - forged sets"
fi
exit $rc
