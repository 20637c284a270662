#!/bin/sh
# TAP lines of tests/python/test_room.py.
exec "${PYTHON:-python3}" -B "$K3_SOURCE/tests/python/test_room.py"
