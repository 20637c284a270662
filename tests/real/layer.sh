#!/usr/bin/env bash
# Six layouts of a checkpoint whose layers have the real size (three layers, 64 experts, 12 GB):
# convert, every rank compared with what an engine cuts from the checkpoint (test_cut.py), export,
# cmp with the checkpoint.  Needs 42 GB, and 12 GB more without K3_REAL_CKPT; half an hour.
# Environment: see common.bash; PYTHON: one with numpy and safetensors, else a venv is made in the
# build folder by pip.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

has_modules() { "$1" -c 'import numpy, safetensors' 2>/dev/null; }

python=${PYTHON:-python3}
if ! has_modules "$python"; then
    python=$K3_BUILD/venv/bin/python
    if ! has_modules "$python"; then
        rm -rf "$K3_BUILD/venv"
        say "installs numpy and safetensors into $K3_BUILD/venv"
        if ! python3 -m venv "$K3_BUILD/venv" ||
            ! "$python" -m pip install -q --disable-pip-version-check numpy safetensors; then
            rm -rf "$K3_BUILD/venv"
            skip "no numpy and safetensors: set PYTHON to an interpreter that has them"
        fi
    fi
fi

# The largest set, TP16, lies beside the checkpoint exported from it (`plan` says disk_bytes).
layer_checkpoint $((29400000000 + LAYER_BYTES))
K3=$K3 PYTHON=$python TMPDIR=$room \
    bash "$K3_SOURCE/tests/python/run_interop.sh" real "$ckpt"
