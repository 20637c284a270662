#!/bin/sh
# The ARMv8 form of k3_sha256_blocks, built by a cross compiler, run by an emulator, judged by
# sha256sum.  Not part of `make test`.  Needs, on Debian: gcc-aarch64-linux-gnu
# libc6-dev-arm64-cross qemu-user; without them it says so and exits 0.
# Environment: CROSS_CC, QEMU.
set -eu

cd "$(dirname "$0")/../.."
cc=${CROSS_CC:-aarch64-linux-gnu-gcc}
qemu=${QEMU:-qemu-aarch64}
for tool in "$cc" "$qemu"; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "arm64: $tool is not installed, skipped"
        exit 0
    }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cc" -std=c11 -O2 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror \
    -static -Iformats -o "$work/block_digests" tests/cross/block_digests.c \
    formats/sha256_armv8.c formats/sha256_blocks.c
# Every file of formats/ at least compiles there, but for those that need headers of libraries.
for file in formats/*.c; do
    case $file in
    */doc.c | */zst.c | */sha256.c) continue ;;
    esac
    "$cc" -std=c11 -O2 -D_GNU_SOURCE -Wall -Wextra -Werror -Iformats -c -o "$work/object" "$file"
done

# Text, then bytes of all values; 64 blocks in all.
{
    seq 1 40000 | head -c 131072
    gzip -n -9 <formats/sha256_blocks.c
    seq 1000000 1200000 | gzip -n
} | head -c 262144 >"$work/data"
split -b 4096 --filter='sha256sum' "$work/data" | cut -d' ' -f1 >"$work/wanted"

checked=0
for count in 0 1 2 3 4 15 16 17 63 64; do
    for offset in 0 1 7 16 63; do
        head -n "$count" "$work/wanted" >"$work/some"
        "$qemu" "$work/block_digests" "ARMv8 SHA2" "$count" "$offset" <"$work/data" >"$work/found"
        cmp "$work/some" "$work/found"
        checked=$((checked + count))
    done
done
echo "arm64: $checked digests are those of sha256sum"
