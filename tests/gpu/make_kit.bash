#!/usr/bin/env bash
# A folder that runs the tests of tests/gpu on a machine with no compiler: programs, the libraries
# they need, fake libraries, scripts, in the places that a checkout has them.
#   make_kit.bash DIR [CUFILE]   after `make tests`; CUFILE: a folder with libcufile.so.0
# There: DIR/run.sh runs all, DIR/run.sh COMMAND… one of it with its libraries, such as
#   TMPDIR=/data DIR/run.sh tests/gpu/cufile.sh
# (No .sh here: run_scripts.sh takes every *.sh of this folder for a test.)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${K3_BUILD:-$root/build/release}
dir=${1:?make_kit.bash DIR [CUFILE]}
cufile=${2:-}
rm -rf "$dir"
mkdir -p "$dir/build/release/tests" "$dir/build/release/bench" "$dir/lib" "$dir/cufile" \
    "$dir/tests/scripts" "$dir/tests/gpu" "$dir/tests/real"
out=$dir/build/release
strip -o "$out/k3-shard" "$build/k3-shard"
for name in cast_gpu dev dev_gpu io io_gpufile load load_gpu load_gpufile load_route; do
    strip -o "$out/tests/test_$name" "$build/tests/test_$name"
done
for name in bench_gpu bench_cast_gpu; do
    [ ! -e "$build/bench/$name" ] || strip -o "$out/bench/$name" "$build/bench/$name"
done
for folder in "$build"/fake*; do
    cp -r "$folder" "$out/"
done
find "$out" -name '*.map' -delete
cp "$root"/tests/scripts/{run_scripts,run_gpu}.sh "$dir/tests/scripts/"
cp "$here"/*.sh "$here/common.bash" "$dir/tests/gpu/"
cp "$root/tests/real/common.bash" "$dir/tests/real/"
# All but the C library goes along.
find "$out" -type f -size +1k -exec ldd {} + 2>/dev/null | awk '/=> \// { print $3 }' | sort -u |
    { grep -vE '/(libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+|ld-linux[^/]*)\.so' || true; } |
    while read -r library; do cp -L "$library" "$dir/lib/"; done
# cuFile opens libudev.so and libmount.so by these names, which only packages for developers have, and
# without them knows no file (5027); libnuma too.
if [ -n "$cufile" ]; then
    cp -L "$cufile"/libcufile*.so* "$dir/cufile/"
    for name in libudev libmount libnuma libblkid libselinux libpcre2-8; do
        library=$(ldconfig -p | awk -v n="$name.so." 'index($1, n) == 1 { print $NF; exit }')
        [ -n "$library" ] || continue
        cp -L "$library" "$dir/cufile/"
        ln -sf "$(basename "$library")" "$dir/cufile/$name.so"
    done
fi
cat >"$dir/run.sh" <<'RUN'
#!/usr/bin/env bash
# run.sh: all tests of tests/gpu.  run.sh COMMAND…: one, such as tests/gpu/cufile.sh.
set -uo pipefail
K3_SOURCE=$(cd "$(dirname "$0")" && pwd)
export K3_SOURCE K3_BUILD=$K3_SOURCE/build/release K3=$K3_SOURCE/build/release/k3-shard
export LD_LIBRARY_PATH=$K3_SOURCE/lib:$K3_SOURCE/cufile${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
cd "$K3_SOURCE" || exit 1
[ $# -gt 0 ] || set -- tests/scripts/run_gpu.sh
exec "$@"
RUN
chmod +x "$dir/run.sh"
du -sh "$dir"
