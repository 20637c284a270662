#!/usr/bin/env bash
# Wrong bits and wrong files of a shard set are found and named (tests/python/test_flips.py), with
# fewer flips of each class than a run by hand makes.  TAP lines on stdout.
set -uo pipefail
log=$("${PYTHON:-python3}" "$K3_SOURCE/tests/python/test_flips.py" --quick "${K3_FLIPS:-15}" "$K3" 2>&1)
rc=$?
echo "$log"
if [ $rc = 0 ]; then
    echo "ok - single bits and whole files that are wrong"
else
    echo "not ok - single bits and whole files that are wrong"
fi
exit $rc
