#!/usr/bin/env bash
# What `make test-gpu` runs, in a checkout that was built or in a kit (tests/gpu/make_kit.bash): the
# devices over the drivers of this machine, then every script of tests/gpu.
# Environment: that of tests/gpu/common.bash.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
export K3_SOURCE=${K3_SOURCE:-$root}
export K3_BUILD=${K3_BUILD:-$K3_SOURCE/build/release}
export K3=${K3:-$K3_BUILD/k3-shard}
"$K3_BUILD/tests/test_dev_gpu" real || exit 1
exec "$root/tests/scripts/run_scripts.sh" tests/gpu
