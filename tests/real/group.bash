# Sourced by the scripts of this folder that measure memory, behind common.bash.
# Purpose: conversions in a memory cgroup; how much they had resident at most.
# shellcheck disable=SC2034  # limits and results are used by those scripts

RESIDENT_MAX=$((512 << 20))
GROUP_BYTES=$((600 << 20))

# A memory cgroup of version 1 or 2; sets group, or says why there is none.
group='' limit_file='' peak_file='' kills_file='' why=''
make_group() {
    local top=/sys/fs/cgroup name=k3-test-$$
    if [ -d $top/memory ]; then
        top=$top/memory limit_file=memory.limit_in_bytes
        peak_file=memory.max_usage_in_bytes kills_file=memory.oom_control
    elif grep -qw memory $top/cgroup.controllers 2>/dev/null; then
        limit_file=memory.max peak_file=memory.peak kills_file=memory.events
        grep -qw memory $top/cgroup.subtree_control || echo +memory 2>/dev/null >$top/cgroup.subtree_control
    else
        why="no memory controller under $top"
        return 1
    fi
    if ! mkdir "$top/$name" 2>/dev/null; then
        why="no cgroup can be made in $top (root may)"
        return 1
    fi
    group=$top/$name
    trap 'rmdir "$group" 2>/dev/null; rm -rf "$room"' EXIT
    # Swap would hide what does not fit.
    [ ! -e "$group/memory.swappiness" ] || echo 0 2>/dev/null >"$group/memory.swappiness"
    [ ! -e "$group/memory.swap.max" ] || echo 0 2>/dev/null >"$group/memory.swap.max"
    if ! echo $GROUP_BYTES 2>/dev/null >"$group/$limit_file"; then
        why="$group/$limit_file cannot be set"
    elif ! sh -c 'echo $$ >"$1/cgroup.procs"' sh "$group" 2>/dev/null; then
        why="no process can be put into $group"
    else
        return 0
    fi
    return 1
}

# convert_in OUT GROUP [OPTION...]: runs convert, in the cgroup unless GROUP is empty.  Sets rc, peak
# (resident bytes, as the kernel gives them to the parent) and seconds.
convert_in() {
    local figures out=$1 into=$2
    shift 2
    figures=$(python3 - "$into" "$K3" convert "$ckpt" --out "$out" --quiet "$@" <<'PY'
import os, sys, time

def join():
    if sys.argv[1]:
        with open(sys.argv[1] + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

started = time.monotonic()
child = os.fork()
if child == 0:
    join()
    os.dup2(2, 1)
    os.execv(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024,
      round(time.monotonic() - started, 1))
PY
    ) || figures='1 0 0'
    read -r rc peak seconds <<<"$figures"
}
