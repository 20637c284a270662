#!/usr/bin/env bash
# `convert` beside the least that any copy which is proved must do on the same disk: `cp` of the
# sources, `sync`, a direct read of the copy.  Pairs take turns, caches are dropped before each;
# prints every run, medians, the ratio (over 1: convert is faster), CPU of both, bytes moved.
# Judges bytes and memory, never time.
# Usage: tests/bench/convert_vs_cp.sh      (bash, coreutils, python3; dropping caches needs root)
# Environment:
#   K3              the program                            (default build/release/k3-shard)
#   K3_BENCH_CKPT   a checkpoint on the disk to measure; it is only read.  Without: one is made by
#                   `synth --preset layer --layers 3 --experts 16` (10.6 GB)
#   K3_BENCH_DIR    where copies and sets are made, and removed (default TMPDIR or /tmp)
#   K3_BENCH_PAIRS  how often                                            (default 5)
#   K3_BENCH_ARGS   of convert           (default "--tp 1 --budget 1TB": written is read)
set -uo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")/../.." && pwd)
K3=${K3:-$here/build/release/k3-shard}
pairs=${K3_BENCH_PAIRS:-5}
args=${K3_BENCH_ARGS:---tp 1 --budget 1TB}
[ -x "$K3" ] || { echo "convert_vs_cp: $K3 is not there: make" >&2; exit 1; }
room=$(mktemp -d "${K3_BENCH_DIR:-${TMPDIR:-/tmp}}/k3-bench.XXXXXX") || exit 1
trap 'rm -rf "$room"' EXIT
trap 'exit 130' INT TERM

ckpt=${K3_BENCH_CKPT:-}
if [ -z "$ckpt" ]; then
    ckpt=$room/ckpt
    echo "convert_vs_cp: makes a checkpoint"
    "$K3" synth "$ckpt" --preset layer --layers 3 --experts 16 --quiet >/dev/null || exit 1
fi

K3_BENCH_COPY="$room/copy" K3_BENCH_OUT="$room/set" exec_k3=$K3 \
    python3 - "$ckpt" "$pairs" "$args" <<'PY'
import json, os, shlex, shutil, statistics, subprocess, sys, time

ckpt, pairs, args = sys.argv[1], int(sys.argv[2]), shlex.split(sys.argv[3])
k3, copy, out = (os.environ[n] for n in ("exec_k3", "K3_BENCH_COPY", "K3_BENCH_OUT"))
RESIDENT_MAX = 512 << 20
sources = sorted(n for n in os.listdir(ckpt) if n.endswith(".safetensors"))
source_bytes = sum(os.path.getsize(os.path.join(ckpt, n)) for n in sources)
bad = []


def run(*command, stdout=None):
    """Runs it; returns what it used, of which CPU is user and system time."""
    child = subprocess.Popen(command, stdout=stdout)
    text = child.stdout.read() if stdout else b""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"convert_vs_cp: exit {child.returncode}: {shlex.join(command)}")
    return usage, text


def cold():
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
    except OSError as e:
        if not getattr(cold, "told", False):
            print(f"convert_vs_cp: caches are not dropped: {e}", file=sys.stderr)
            cold.told = True


def reference():
    """cp, sync, direct read.  The copy is read with 8 MiB reads of dd, one file after the other."""
    shutil.rmtree(copy, ignore_errors=True)
    os.mkdir(copy)
    cold()
    cpu, parts, begin = 0.0, [], time.monotonic()
    steps = [["cp", *(os.path.join(ckpt, n) for n in sources), copy], ["sync"]]
    steps += [["dd", f"if={os.path.join(copy, n)}", "of=/dev/null", "iflag=direct", "bs=8M",
               "status=none"] for n in sources]
    for step in steps:
        before = time.monotonic()
        usage, _ = run(*step)
        cpu += usage.ru_utime + usage.ru_stime
        parts.append(time.monotonic() - before)
    seconds = time.monotonic() - begin
    shutil.rmtree(copy)
    return seconds, cpu, (parts[0], parts[1], sum(parts[2:]))


def convert():
    shutil.rmtree(out, ignore_errors=True)
    cold()
    begin = time.monotonic()
    usage, text = run(k3, "convert", ckpt, "--out", out, *args, "--json", "--quiet",
                      stdout=subprocess.PIPE)
    seconds = time.monotonic() - begin
    report = json.loads(text)
    resident = usage.ru_maxrss << 10
    # 512-byte blocks that reached or left the disk, whoever of its threads asked.
    moved = usage.ru_inblock * 512, usage.ru_oublock * 512
    shutil.rmtree(out)
    if resident > RESIDENT_MAX:
        bad.append(f"{resident} bytes resident, wanted {RESIDENT_MAX} at most")
    return seconds, usage.ru_utime + usage.ru_stime, report, resident, moved


rows = []
for i in range(pairs):
    ref = reference()
    got = convert()
    rows.append((ref, got))
    print(f"pair {i + 1}: cp {ref[2][0]:.2f} + sync {ref[2][1]:.2f} + direct read {ref[2][2]:.2f} = "
          f"{ref[0]:.2f} s; convert {got[0]:.2f} s; ratio {ref[0] / got[0]:.3f}", flush=True)

ref_s = statistics.median(r[0] for r, _ in rows)
got_s = statistics.median(g[0] for _, g in rows)
ref_cpu = statistics.median(r[1] for r, _ in rows)
got_cpu = statistics.median(g[1] for _, g in rows)
report, moved = rows[0][1][2], rows[0][1][4]
read, written = report["read_bytes"], report["written_bytes"]
print(f"sources {source_bytes} bytes in {len(sources)} files; convert {' '.join(args)}: "
      f"read {read}, wrote {written} and read that back; fallbacks {report['fallbacks']}")
print(f"disk    of convert: {moved[0]} bytes in (the plan: {read + written}), {moved[1]} out "
      f"(the plan: {written})")
print(f"median  of {pairs}: reference {ref_s:.2f} s ({source_bytes / ref_s / 1e9:.2f} GB/s of "
      f"sources), convert {got_s:.2f} s ({source_bytes / got_s / 1e9:.2f} GB/s)")
print(f"ratio   of the medians {ref_s / got_s:.3f}, median of the ratios "
      f"{statistics.median(r[0] / g[0] for r, g in rows):.3f} (wanted 0.85)")
print(f"CPU     convert {got_cpu / read * 1e9:.2f} ns a source byte, "
      f"{got_cpu / written * 1e9:.2f} a written byte, {got_cpu / (read + written) * 1e9:.2f} of both "
      f"(wanted 2.2); reference {ref_cpu / source_bytes * 1e9:.2f} a source byte, without what "
      "the kernel's own threads write for cp")
print(f"memory  {max(g[3] for _, g in rows) >> 20} MiB resident at most (wanted 512)")
# What the disk moved may be more by blocks of the file system, never by a second reading.
for what, found, wanted in (("read", moved[0], read + written), ("written", moved[1], written)):
    if found and not wanted <= found + (1 << 20) or found > wanted * 1.01 + (64 << 20):
        bad.append(f"{found} bytes {what}, the plan has {wanted}")
for line in bad:
    print("FAIL   ", line)
sys.exit(bool(bad))
PY
