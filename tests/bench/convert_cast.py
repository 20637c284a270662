#!/usr/bin/env python3
"""What a cast adds to `convert`: conversions with and without, in turn, on one disk, caches dropped.

Run:   K3=build/release/k3-shard tests/bench/convert_cast.py CKPT OUT [--quant nvfp4 ...] [--rounds 5]
       [--arguments "--tp 1 --budget 1TB"]
CKPT is only read; OUT is made and removed each time.  Dropping caches needs root.
Prints each run, the median seconds of each policy, the ratio of each to `verbatim` in its own round
(median, all of them), CPU seconds and the most memory.  Fails where a conversion took more than
512 MiB; judges no time.
Environment: K3, the tool.
"""
import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time

RESIDENT_MAX = 512 << 20
told = []


def cold():
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
    except OSError as e:
        if not told:
            print(f"convert_cast: caches are not dropped: {e}", file=sys.stderr)
        told.append(e)


def convert(k3, options, policy):
    """Seconds, CPU seconds, bytes resident at most, the report of one conversion."""
    shutil.rmtree(options.out, ignore_errors=True)
    cold()
    begin = time.monotonic()
    command = [k3, "convert", options.ckpt, "--out", options.out, *shlex.split(options.arguments),
               "--quant", policy, "--json", "--quiet"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"convert_cast: exit {child.returncode}: {shlex.join(command)}")
    seconds = time.monotonic() - begin
    shutil.rmtree(options.out)
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, json.loads(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("ckpt")
    parser.add_argument("out")
    parser.add_argument("--quant", nargs="+", default=["nvfp4", "fp8-block"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arguments", default="--tp 1 --budget 1TB")
    options = parser.parse_args()
    k3 = os.environ.get("K3", "build/release/k3-shard")
    policies = ["verbatim", *options.quant]
    runs = {policy: [] for policy in policies}
    for number in range(options.rounds):
        for policy in policies if number % 2 == 0 else policies[::-1]:
            runs[policy].append(convert(k3, options, policy))
        print(f"round {number + 1}: " +
              ", ".join(f"{policy} {runs[policy][-1][0]:.2f} s" for policy in policies), flush=True)
    for policy in policies:
        seconds, cpu, resident, reports = zip(*runs[policy])
        ratios = [a / b[0] for a, b in zip(seconds, runs["verbatim"])]
        print(f"{policy:12} {statistics.median(seconds):6.2f} s, {statistics.median(cpu):6.2f} CPU s, "
              f"{max(resident) >> 20} MiB at most, read {reports[0]['read_bytes']}, wrote "
              f"{reports[0]['written_bytes']}; to verbatim {statistics.median(ratios):.3f} "
              f"({' '.join(f'{r:.3f}' for r in sorted(ratios))})")
    most = max(resident for rows in runs.values() for _, _, resident, _ in rows)
    if most > RESIDENT_MAX:
        print(f"FAIL    {most} bytes resident, wanted {RESIDENT_MAX} at most")
    return most > RESIDENT_MAX


if __name__ == "__main__":
    sys.exit(main())
