#!/usr/bin/env bash
# Plant one breach of each house rule in a small tree and see that tidy catches it by name;
# the clean tree passes.  TAP lines on stdout.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tidy=$here/../../tools/scripts/tidy.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/k3-tidy.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
unset CI # a tool that is not here is no failure of this test
export BUILD=$work/marks
failed=0

head_text='/* Purpose: none.
 * Owns: nothing.
 * Threads: any.
 * Errors: none.
 * Invariant: none. */
'

# A clean tree of two layers.
make_tree() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/formats" "$work/tree/runtime" "$work/tree/loader" "$work/tree/tools" \
             "$work/tree/tests"
    cp "$here/../../.clang-format" "$work/tree/"
    printf '%s#include "leaf.h"\n\nint k3_leaf(int rc)\n{\n    return rc;\n}\n' "$head_text" \
        >"$work/tree/formats/leaf.c"
    printf '/* A leaf. */\nint k3_leaf(int rc);\n' >"$work/tree/formats/leaf.h"
    printf '/* Outer. */\nint k3_outer(void);\n' >"$work/tree/runtime/outer.h"
}

# verdict NAME WANTED-TEXT: run tidy; the text must be in what it prints, and it must fail.
verdict() {
    local out rc
    out=$("$tidy" --quick "$work/tree" 2>&1)
    rc=$?
    if [ $rc != 0 ] && [[ $out == *"$2"* ]]; then
        echo "ok - $1"
    else
        echo "not ok - $1: exit $rc"
        echo "$out" | sed 's/^/# /'
        failed=1
    fi
}

# body NAME WANTED STATEMENTS [LAYER]: a function with these statements.
body() {
    make_tree
    printf '%s#include "leaf.h"\n\nint k3_planted(int rc);\nint k3_planted(int rc)\n{\n%s\n    return rc;\n}\n' \
        "$head_text" "$3" >"$work/tree/${4:-formats}/planted.c"
    verdict "$1" "$2"
}

# file NAME WANTED PATH TEXT
file() {
    make_tree
    printf '%s' "$4" >"$work/tree/$3"
    verdict "$1" "$2"
}

repeat() { for ((i = 0; i < $1; i++)); do printf '%s\n' "$2"; done; }

make_tree
if out=$("$tidy" --quick "$work/tree" 2>&1); then
    echo "ok - a clean tree passes"
else
    echo "not ok - a clean tree passes"
    echo "$out" | sed 's/^/# /'
    failed=1
fi

body "function of 71 lines" ": function: k3_planted has 71 lines" "$(repeat 67 '    rc++;')"
file "file of 801 lines" "leaf.c:801: file: 801 lines" formats/leaf.c "$head_text$(repeat 796 'extern int a;')"
file "header of 251 lines" "leaf.h:251: header: 251 lines" formats/leaf.h "$(repeat 251 'int k3_leaf(int rc);')"
file "line of 101 columns" ": line: 101 columns" formats/leaf.h "/* $(printf 'x%.0s' {1..95}) */
int k3_leaf(int rc);
"
file "7 parameters" ": parameters: k3_leaf has 7" formats/leaf.h \
    'int k3_leaf(int a, int b, int c, int d, int e, int f, int g);
'
file "7 parameters, one a function" ": parameters: k3_leaf has 7" formats/leaf.h \
    'int k3_leaf(int (*a)(int, int), int b, int c, int d, int e, int f, int g);
'

for call in strcpy strcat sprintf vsprintf atoi atol alloca gets strtok; do
    body "banned $call" ": banned: $call" "    $call(rc);" tools
done
for call in getenv printf fprintf exit abort signal; do
    body "banned $call in a library" ": banned: $call" "    $call(rc);" loader
done
make_tree
printf '%s#include <stdlib.h>\n\nvoid k3_planted(void);\nvoid k3_planted(void)\n{\n    abort(); /* k3: abort allowed, a test of this rule */\n}\n' \
    "$head_text" >"$work/tree/formats/planted.c"
if "$tidy" --quick "$work/tree" >/dev/null 2>&1; then
    echo "ok - abort with its comment passes"
else
    echo "not ok - abort with its comment passes"
    failed=1
fi

body "variable length array" "vla" '    int a[rc];
    a[0] = rc;'
body "leftover mark" ": leftover: FIX""ME" "    /* FIX""ME later */"
body "another leftover" ": leftover: TO""DO" "    /* TO""DO later */"
body "third leftover" ": leftover: X""XX" "    /* X""XX */"
file "no file head" ": head: the file head lacks Purpose: Owns:" formats/leaf.c 'int k3_leaf(int rc);
'
file "file head without invariant" ": head: the file head lacks Invariant" formats/leaf.c \
    '/* Purpose: a. Owns: b. Threads: c. Errors: d. */
'
file "wrong-way include" ": layer: formats must not include outer.h" formats/leaf.c \
    "$head_text#include \"outer.h\"
"
file "include from tests" ": layer: tools must not include probe.h" tools/planted.c \
    "$head_text#include \"probe.h\"
"
file "third-party header in a header" ": third-party: zstd.h in a header" formats/leaf.h \
    '#include <zstd.h>
int k3_leaf(int rc);
'
file "third-party header in the wrong layer" ": third-party: cjson/cJSON.h belongs to formats" \
    loader/planted.c "$head_text#include <cjson/cJSON.h>
"
make_tree
for name in one two; do
    printf '%s#include <openssl/evp.h>\n' "$head_text" >"$work/tree/formats/$name.c"
done
verdict "third-party header in two files" ": third-party: libcrypto is used by formats/one.c already"
file "one file name twice" ": unique: there is formats/leaf.c too" tools/leaf.c "$head_text"
file "empty word in a function name" ": name: k3_process_leaf: 'process'" formats/leaf.h \
    'int k3_process_leaf(int rc);
'

goto_text="goto out without an assignment"
body "goto out behind a log line" "$goto_text" '    if (k3_leaf(2)) {
        k3_leaf(1);
        goto out;
    }
out:'
body "goto out behind another test" "$goto_text" '    rc = k3_leaf(1);
    if (rc)
        goto out;
    if (k3_leaf(2))
        goto out;
out:'
make_tree
printf '%s#include "leaf.h"\n\nint k3_planted(int a);\nint k3_planted(int a)\n{\n%s\nout:\n    return rc;\n}\n' \
    "$head_text" '    int rc = k3_leaf(a);
    if (rc)
        goto out;
    if (a > 3) {
        rc = k3_leaf(1);
        goto out;
    }
    if ((rc = k3_leaf(2)))
        goto out;
    rc = -1;
    if (!a)
        goto out;
    rc = k3_leaf(a);
    if (rc < 0) {
        k3_leaf(3);
        goto out;
    }' >"$work/tree/formats/planted.c"
if out=$("$tidy" --quick "$work/tree" 2>&1); then
    echo "ok - good uses of goto out pass"
else
    echo "not ok - good uses of goto out pass"
    echo "$out" | sed 's/^/# /'
    failed=1
fi

if command -v clang-format >/dev/null; then
    file "format" "planted.c:7:" formats/planted.c "$head_text
int   k3_x ( void ) ;
"
else
    echo "ok - format # SKIP clang-format is not here"
fi
exit $failed
