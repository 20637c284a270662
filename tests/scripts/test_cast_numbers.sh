#!/bin/sh
# TAP lines of tests/python/test_cast_numbers.py.
exec "${PYTHON:-python3}" -B "$K3_SOURCE/tests/python/test_cast_numbers.py"
