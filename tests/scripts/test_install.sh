#!/usr/bin/env bash
# What `make install` puts in place is enough: a C and a C++ program find the library by pkg-config,
# load a set and see every view; the library exports what its version script lists and no more.
# TAP lines.
set -uo pipefail
failed=0
ok() {
    if [ "$1" = 0 ]; then echo "ok - $2"; else echo "not ok - $2"; failed=1; fi
}
dir=$(mktemp -d "${TMPDIR:-/tmp}/k3-install.XXXXXX")
trap 'rm -rf "$dir"' EXIT
build=$(dirname "$K3_BUILD")
case ${K3_BUILD##*/} in
release) ;;
*) echo "ok - install # SKIP only the release build is installed"; exit 0 ;;
esac
make -s -C "$K3_SOURCE" BUILD="$build" DESTDIR="$dir/root" PREFIX=/usr install >"$dir/log" 2>&1
ok $? "make install" || cat "$dir/log"
cat >"$dir/views.c" <<'EOF'
#include <k3_load.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    const char *dirs[1];
    struct k3_load_options options = {0};
    struct k3_load *load = NULL;
    struct k3_load_tensor view;
    struct k3_err err;
    uint32_t tensors, views, i;
    if (argc != 2)
        return 2;
    dirs[0] = argv[1];
    options.struct_bytes = sizeof options;
    options.dirs = dirs;
    options.dir_count = 1;
    k3_err_init(&err);
    if (k3_load_open(&options, &load, &err) || k3_load_run(load, &err) ||
        k3_load_tensor_count(load, 0, &tensors, &views, &err)) {
        fprintf(stderr, "%s\n", err.text);
        k3_load_close(load);
        return k3_exit_code(err.rc);
    }
    for (i = 0; i < views; i++)
        if (!k3_load_view(load, 0, i, &view, &err))
            printf("%s %s %llu\n", view.name, view.dtype, (unsigned long long)view.bytes);
    k3_load_close(load);
    return 0;
}
EOF
cp "$dir/views.c" "$dir/views.cpp"
lib=$dir/root/usr/lib
flags="-I$dir/root/usr/include -L$lib -lk3load"
grep -q -- '-lk3load' "$lib/pkgconfig/k3load.pc"; ok $? "k3load.pc names the library"
"$K3" synth "$dir/ckpt" --preset tiny --quiet >/dev/null &&
    "$K3" convert "$dir/ckpt" --out "$dir/set" --tp 2 --quiet >/dev/null
ok $? "a small set"
for source in views.c views.cpp; do
    case $source in *.c) cc=${CC:-cc} ;; *) cc=${CXX:-c++} ;; esac
    if ! command -v "$cc" >/dev/null; then echo "ok - $source # SKIP no $cc"; continue; fi
    # shellcheck disable=SC2086
    $cc "$dir/$source" $flags -o "$dir/prog" 2>"$dir/log" || cat "$dir/log"
    count=$(LD_LIBRARY_PATH=$lib "$dir/prog" "$dir/set" | grep -c .)
    [ "${count:-0}" -gt 50 ]; ok $? "$source: compiled against the installed files, $count views"
    LD_LIBRARY_PATH=$lib "$dir/prog" "$dir/ckpt" >/dev/null 2>"$dir/log"
    [ $? = 3 ] && grep -q k3-shards.json "$dir/log"; ok $? "$source: a folder without a set, exit 3"
done
# Under a prefix that no loader knows: what `make install` says is enough to start a program.
make -s -C "$K3_SOURCE" BUILD="$build" PREFIX="$dir/own" install >"$dir/log" 2>&1
ok $? "make install under a prefix of one's own" || cat "$dir/log"
rpath=$(grep -o -- '-Wl,-rpath,[^ ]*' "$dir/log")
[ -n "$rpath" ] && grep -q "PKG_CONFIG_PATH=$dir/own/lib/pkgconfig" "$dir/log"
ok $? "it says how programs find the library there"
${CC:-cc} "$dir/views.c" "-I$dir/own/include" "-L$dir/own/lib" -lk3load "$rpath" -o "$dir/prog" 2>"$dir/log" ||
    cat "$dir/log"
count=$("$dir/prog" "$dir/set" | grep -c .)
[ "${count:-0}" -gt 50 ]; ok $? "a program linked so starts, $count views"
exported=$(nm -D --defined-only "$lib/libk3load.so.0" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
listed=$(awk '/^ *k3_/ { sub(/;/, ""); print $1 }' "$K3_SOURCE/loader/k3_load.map" | sort)
[ "$exported" = "$listed" ]; ok $? "exported names are those of the version script"
! grep -q 'MX_KERNEL(k3_cast_mx_nvfp4' "$lib/libk3load.so.0" && grep -q 'MX_KERNEL(k3_cast_mx_nvfp4' "$K3"
ok $? "the GPU code of casts is in the tool, not in the library"
exit $failed
