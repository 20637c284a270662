#!/bin/sh
# Every single call to the system that a command makes, failed in turn.  TAP lines.
exec "${PYTHON:-python3}" -B "$K3_SOURCE/tests/python/test_fault_calls.py" --all
