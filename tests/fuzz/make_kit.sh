#!/usr/bin/env bash
# A folder that runs the fuzz targets on a machine with no compiler: programs, libraries, corpus,
# dictionaries, run_many.sh.
#   make_kit.sh DIR        after `make fuzz`
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=$1
rm -rf "$dir"
mkdir -p "$dir/bin" "$dir/lib"
cp -r "$here/corpus" "$here/dict" "$here/run_many.sh" "$dir/"
for program in "$root"/build/fuzz/fuzz/*; do
    strip -o "$dir/bin/${program##*/}" "$program"
done
# All but the C library goes along; the programs look in ../lib first.  The two of the compiler only
# stand in where the machine has none: a machine of another release has its own, made for its libc.
mkdir -p "$dir/lib/compiler"
ldd "$dir"/bin/* | awk '/=> \// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' | while read -r library; do
    case $library in
    */libstdc++.* | */libgcc_s.*) cp -L "$library" "$dir/lib/compiler/" ;;
    *) cp -L "$library" "$dir/lib/" ;;
    esac
done
du -sh "$dir"
