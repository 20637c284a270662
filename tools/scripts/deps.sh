#!/bin/sh
# Install the Debian or Ubuntu packages that are missing; or print the command that would.
#   deps.sh [--ci]     --ci adds what static analysis and sanitizers need
# Silent and quick when nothing is missing.  Exit 1 when something is, and may not be installed.
set -eu

# build, then tests
packages="gcc make libc6-dev libcjson-dev libzstd-dev libssl-dev liburing-dev libcmocka-dev
          zstd fsverity python3"
if [ "${1:-}" = --ci ]; then
    packages="$packages clang clang-format clang-tidy cppcheck libclang-rt-dev hipcc libamdhip64-dev
              python3-venv python3-pip"
fi

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "deps: no dpkg here, so packages are not checked; needed: $(echo $packages)" >&2
    exit 0
fi

# Virtual and renamed packages are not in dpkg's list by that name: what is missing is asked of it.
missing=
for p in $packages; do
    state=$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null || true)
    case $state in installed*) ;; *) missing="$missing $p" ;; esac
done
[ -n "$missing" ] || exit 0

# Debian 12 has libclang-rt-dev, Ubuntu 24.04 too; older ones have it with clang itself.
sudo=
if [ "$(id -u)" != 0 ]; then
    sudo=sudo
    if ! command -v sudo >/dev/null 2>&1 || ! sudo -n true 2>/dev/null; then
        # Without a password at hand only a person at a terminal can go on.
        if ! command -v sudo >/dev/null 2>&1 || [ ! -t 0 ]; then
            echo "deps: packages are missing; run this as root:" >&2
            echo "    apt-get update && apt-get install -y --no-install-recommends$missing" >&2
            exit 1
        fi
    fi
fi

echo "deps: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
if ! { $sudo apt-get update -qq </dev/null &&
       $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
           $missing </dev/null; } >&2; then
    echo "deps: could not install; run this as root:" >&2
    echo "    apt-get update && apt-get install -y --no-install-recommends$missing" >&2
    exit 1
fi
