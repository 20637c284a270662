# A path that goes through a file, or through what is not there, names the component.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
"$K3" convert ckpt --out set --tp 2 --quiet >/dev/null
touch file
try() {
    "$K3" "$@" --quiet 2>&1 >/dev/null | sed -E 's/: errno 2$/: No such file or directory/'
    local rc=${PIPESTATUS[0]}
    [ "$rc" = 1 ] || echo "exit $rc from: $*"
}
try plan file
try plan file/ckpt
try plan ./file//ckpt
try plan no/ckpt
try convert ckpt --out file
try convert ckpt --out file/set
try convert ckpt --out no/where/set
try seal --out file/set
try verify file/set
try verify no/set
try verify no
try inspect file/set
try inspect no/set
try inspect file/set --tensor x
try export set --to file
try export set --to file/ckpt
try load file
try load set/config.json/more
try load set --ranks 0 --trace file/trace.json
try bench set --scratch file
try synth file/ckpt --preset tiny
"$K3" doctor file/set | grep ' directory '
