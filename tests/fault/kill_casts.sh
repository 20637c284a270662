#!/bin/sh
# Every kill point of a conversion with casts: about 3 minutes.  TAP lines.
exec "${PYTHON:-python3}" -B "$K3_SOURCE/tests/python/test_kill_casts.py" --all
