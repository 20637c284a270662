# Sourced by the scripts of this folder; not run by itself (run_scripts.sh takes *.sh only).
# Purpose: a checkpoint of layers of real size, room on the disk, a result that reads well.
# Environment: K3 (the tool), K3_BUILD, K3_SOURCE; TMPDIR (where everything big is made);
#   K3_REAL_CKPT: a checkpoint of `synth --preset layer` that is there already; it is only read.

: "${K3:?set K3 to the k3-shard binary}" "${K3_SOURCE:?set K3_SOURCE to the checkout}"
: "${K3_BUILD:?set K3_BUILD to a folder for what is built}"
export LC_ALL=C
script=${0##*/}
script=${script%.sh}
bad=0

# Scratch of this script, removed with all that is in it.
room=$(mktemp -d "${TMPDIR:-/tmp}/k3-real.XXXXXX") || exit 1
trap 'rm -rf "$room"' EXIT
trap 'exit 130' INT TERM

say() { echo "$script: $*"; }

# good TEXT, wrong TEXT: one result; `result` ends the script with what they said.
good() { echo "ok    $*"; }
wrong() {
    bad=$((bad + 1))
    echo "FAIL  $*"
}
result() {
    [ "$bad" = 0 ] || say "$bad wrong"
    exit $((bad > 0))
}

# same NAME WANTED FOUND
same() {
    if [ "$2" = "$3" ]; then
        good "$1: $3"
    else
        wrong "$1: wanted $2, found $3"
    fi
}

# skip TEXT: this machine cannot run it
skip() {
    say "SKIPPED, $*"
    exit 77
}

# gb BYTES: what is needed is rounded up, so that what is there may be rounded down.
gb() { echo "$((($1 + 999999999) / 1000000000)) GB"; }

# need_room BYTES: free space where scratch is, or skip
need_room() {
    local free
    free=$(($(df -Pk "$room" | awk 'NR == 2 { print $4 }') * 1024))
    [ "$free" -ge "$1" ] ||
        skip "needs $(gb "$1") under ${TMPDIR:-/tmp}, $((free / 1000000000)) GB are free (TMPDIR=DIR moves it)"
}

# What `synth --preset layer --layers 3 --experts 64` takes, rounded up.
LAYER_BYTES=12300000000

# layer_checkpoint BYTES: sets ckpt to a checkpoint of three layers of real size with 64 experts, and
# sees to it that BYTES are free for the test itself.
layer_checkpoint() {
    ckpt=${K3_REAL_CKPT:-}
    if [ -n "$ckpt" ]; then
        [ -f "$ckpt/config.json" ] || { wrong "K3_REAL_CKPT=$ckpt is not a checkpoint"; result; }
        need_room "$1"
        return
    fi
    # Under run_scripts.sh all scripts have one TMPDIR, which is removed at the end: made once.
    case ${TMPDIR:-} in
    */k3-test.*) ckpt=$TMPDIR/layer-checkpoint ;;
    *) ckpt=$room/layer-checkpoint ;;
    esac
    if [ -e "$ckpt.ready" ]; then
        need_room "$1"
        return
    fi
    need_room $((LAYER_BYTES + $1))
    rm -rf "$ckpt"
    say "makes a checkpoint of $(gb $LAYER_BYTES) (K3_REAL_CKPT=DIR reuses one)"
    "$K3" synth "$ckpt" --preset layer --layers 3 --experts 64 --quiet >/dev/null ||
        { wrong synth; result; }
    touch "$ckpt.ready"
}
