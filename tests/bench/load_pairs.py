#!/usr/bin/env python3
"""The price of verification: loads with and without it, in turn, each a process of its own.

Run:   K3=build/release/k3-shard tests/bench/load_pairs.py SET [--device cuda:0] [--ranks 0-3]
       [--rounds 14] [--seconds 60]
Prints the rate of each (GB/s of the run, median and extremes), CPU seconds a GB of the process, peak
memory, units read again; and over all pairs the time with verification over the time without:
median, mean, all of them in order.  Judges nothing.
Environment: K3, the tool.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

GB = 1e9
MODES = {"verified": [], "--no-verify": ["--no-verify"]}


class Mode:
    def __init__(self):
        self.rates, self.cpu, self.reread = [], [], 0


def load(k3, args, mode):
    """Seconds of the run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([k3, "load", "--json", "--quiet", *args], capture_output=True, text=True,
                          check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"exit {done.returncode}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    mode.rates.append(report["gb_per_s"])
    mode.cpu.append(spent / report["bytes"] * GB)
    mode.reread += report["reread_units"]
    return report["phases"]["run"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("set")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--ranks")
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    k3 = os.environ.get("K3", "build/release/k3-shard")
    args = [options.set, "--device", options.device]
    args += ["--ranks", options.ranks] if options.ranks else []
    modes = {name: Mode() for name in MODES}
    ratios, end = [], time.monotonic() + options.seconds
    load(k3, args, Mode())  # the first of a machine pays for its pages
    for number in range(options.rounds):
        if time.monotonic() > end:
            break
        names = list(MODES) if number % 2 == 0 else list(MODES)[::-1]
        seconds = {name: load(k3, args + MODES[name], modes[name]) for name in names}
        ratios.append(seconds["verified"] / seconds["--no-verify"])
    for name, mode in modes.items():
        print(f"{name:12} {len(mode.rates)} runs  {statistics.median(mode.rates):6.2f} GB/s "
              f"({min(mode.rates):.2f} to {max(mode.rates):.2f})  "
              f"{statistics.median(mode.cpu):.3f} CPU s/GB  {mode.reread} units read again")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    print(f"peak memory of a process {peak:.0f} MB")
    print(f"time with / without: median {statistics.median(ratios):.4f}, mean "
          f"{statistics.mean(ratios):.4f}: {' '.join(f'{r:.4f}' for r in sorted(ratios))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
