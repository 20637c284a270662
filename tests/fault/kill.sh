#!/bin/sh
# Every kill and fault point of a conversion: about 15 minutes.  TAP lines.
exec "${PYTHON:-python3}" -B "$K3_SOURCE/tests/python/test_kill.py" --all
