#!/usr/bin/env bash
# Conversions of layers of real width (1.9 GB, made by itself), killed 200 times at random moments of
# their whole duration and resumed; every file is then what an undisturbed run makes (kill_layer.py).
# Needs 5 GB; half an hour on a busy machine.  Environment: see common.bash; K3_KILLS: another number.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

need_room 5000000000
"${PYTHON:-python3}" -B "$K3_SOURCE/tests/real/kill_layer.py" --kills "${K3_KILLS:-200}" --room "$room"
