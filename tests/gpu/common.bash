# Sourced by the scripts of this folder; not run by itself (run_scripts.sh takes *.sh only).
# Purpose: where the programs are: in a checkout that was built, or in a kit (make_kit.bash), which has
#   the same folders; then what tests/real/common.bash gives.
# Environment, all optional: K3_SOURCE, K3_BUILD (a build folder), K3 (the tool); TMPDIR.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${K3_SOURCE:=$(cd "$here/../.." && pwd)}"
: "${K3_BUILD:=$K3_SOURCE/build/release}"
: "${K3:=$K3_BUILD/k3-shard}"
export K3 K3_BUILD K3_SOURCE
# shellcheck source=tests/real/common.bash
. "$K3_SOURCE/tests/real/common.bash"
