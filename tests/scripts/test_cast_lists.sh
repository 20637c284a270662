#!/bin/sh
# TAP lines of tests/python/test_cast_lists.py.
exec "${PYTHON:-python3}" -B "$K3_SOURCE/tests/python/test_cast_lists.py"
