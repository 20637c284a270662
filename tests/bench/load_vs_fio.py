#!/usr/bin/env python3
"""`load` to host memory beside what the machine can do: fio, tree hash of all cores, plain reads.

Cold rows: the same files, the page cache dropped before each run; in turn fio (io_uring, direct,
its best block size and depth of a first look), `load` by uring, pread and auto, all verified.
What a load is held against is the lower of fio and the tree hash, both of the same round.
Hot rows: the same files in the page cache; bench_read (threads that pread into fresh memory) beside
`load --no-verify`, and the same with hashing beside a verified load.

With --device cuda:N the loads go to a GPU: cold rows alone, held against fio alone (the GPU hashes),
and the time is that of the run, without the start of the GPU's context.

A load's time is all of it, opening and running.  CPU is user and system time of the whole process.
Before every run as much memory as the images take is written once and freed: a virtual machine that
gave free memory back to its host is paid for that outside of the times.

Run:   make && make build/release/bench/bench_read build/release/bench/bench_tree_cores
       tests/bench/load_vs_fio.py [--rounds 5] [--seconds 180] [--bytes 5GB] [--fio 4M:16]
                                  [--no-cold] [--no-hot] [--device cuda:0]
Needs  fio, the Python standard library, root (to drop the page cache; else cold rows are left out).
Environment: K3, K3_BUILD as in the tests; K3_BENCH_SET: directory of a set to load instead of one
made for the run; K3_BENCH_DIR: where that one is made (default TMPDIR or /var/tmp, on the disk to
be measured) and removed again.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS_MIN = 3
DEPTHS = (("512K", 32), ("1M", 16), ("4M", 4), ("4M", 8), ("4M", 16), ("4M", 32), ("8M", 8),
          ("8M", 16))
GB = 1e9


class Run:
    """What one program did."""

    def __init__(self, rate, cpu_seconds=0.0, size=0, note=""):
        self.rate, self.note = rate, note
        self.cpu_ns = cpu_seconds * 1e9 / size if size else 0.0


class Bench:
    """Programs, files, limits."""

    def __init__(self, options):
        build = os.environ.get("K3_BUILD", "build/release")
        self.options = options
        self.k3 = os.path.abspath(os.environ.get("K3", os.path.join(build, "k3-shard")))
        self.read = os.path.abspath(os.path.join(build, "bench", "bench_read"))
        self.tree = os.path.abspath(os.path.join(build, "bench", "bench_tree_cores"))
        self.deadline = time.monotonic() + options.seconds
        self.set, self.ranks, self.files, self.size = "", [], [], 0
        self.fio_shape = DEPTHS[1]
        for path in (self.k3, self.read, self.tree):
            if not os.path.exists(path):
                sys.exit(f"{path} is not there: make it first")

    def is_host(self):
        return self.options.device == "host"

    def left(self):
        return self.deadline - time.monotonic()

    def call(self, *command):
        """stdout and CPU seconds of a program that must succeed."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            with subprocess.Popen(command, stdout=out, stderr=err) as process:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            if process.returncode:
                sys.exit(f"{' '.join(command[:4])} ...: exit {process.returncode}\n{err.read()}")
            return out.read(), usage.ru_utime + usage.ru_stime

    # ---- the set ----

    def take_set(self, directory):
        """Ranks in order until they have the bytes asked for, or half of the memory."""
        with open(os.path.join(directory, "k3-shards.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        self.set = directory
        room = memory_available() / 2.5  # images, the same in the page cache, and some air
        for rank in sorted(manifest["ranks"], key=lambda r: r["rank"]):
            size = sum(part["bytes"] for part in rank["parts"])
            if self.ranks and (self.size >= self.options.bytes or self.size + size > room):
                break
            self.ranks.append(str(rank["rank"]))
            self.files += [os.path.join(directory, part["name"]) for part in rank["parts"]]
            self.size += size
        if self.size > room:
            sys.exit(f"one rank has {self.size / GB:.1f} GB, too much for this memory")

    def make_set(self, work):
        """Three layers of real width."""
        free = shutil.disk_usage(work).free
        if free < 30e9:
            sys.exit(f"{work}: {free / GB:.1f} GB are free, 30 GB are needed; or set K3_BENCH_SET")
        ckpt, out = os.path.join(work, "ckpt"), os.path.join(work, "set")
        self.call(self.k3, "synth", ckpt, "--preset", "layer", "--layers", "3", "--experts",
                  "16", "--quiet")
        self.call(self.k3, "convert", ckpt, "--out", out, "--tp", "4", "--budget", "1TB", "--quiet")
        shutil.rmtree(ckpt)
        self.take_set(out)

    # ---- one run each ----

    def prepare(self, cold):
        if cold:
            os.sync()
            with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
                file.write("3\n")
        self.call(self.read, "--touch", str(self.size + (512 << 20)))

    def run_load(self, cold, *args):
        self.prepare(cold)
        out, cpu_seconds = self.call(self.k3, "load", self.set, "--ranks", ",".join(self.ranks),
                                     "--device", self.options.device, "--json", "--quiet", *args)
        report = json.loads(out)
        seconds = report["phases"]["run"]
        seconds += report["phases"]["open"] if self.is_host() else 0
        route = report["io"] + (" direct" if report["direct"] else " buffered")
        return Run(report["bytes"] / seconds / GB, cpu_seconds, report["bytes"], route)

    def run_fio(self, shape):
        self.prepare(True)
        block, depth = shape
        names = ":".join(name.replace(":", "\\:") for name in self.files)
        out, cpu_seconds = self.call(
            "fio", "--name=read", "--rw=read", "--direct=1", f"--bs={block}", f"--iodepth={depth}",
            "--ioengine=io_uring", "--readonly", "--output-format=json", f"--filename={names}")
        read = json.loads(out[out.index("{"):])["jobs"][0]["read"]
        return Run(read["bw_bytes"] / GB, cpu_seconds, read["io_bytes"], f"{block}:{depth}")

    def run_tree(self):
        out, _ = self.call(self.tree)
        return Run(float(re.search(r"gb_per_s=([0-9.]+)", out).group(1)))

    def run_read(self, *args):
        self.prepare(False)
        out, cpu_seconds = self.call(self.read, *args, *self.files)
        size, seconds = (float(re.search(key + r"=([0-9.]+)", out).group(1))
                         for key in ("bytes", "seconds"))
        return Run(size / seconds / GB, cpu_seconds, size)

    # ---- rounds ----

    def rounds(self, jobs):
        """Each job once a round, in an order that moves on; {name: [Run]}."""
        names, results = list(jobs), {name: [] for name in jobs}
        for number in range(self.options.rounds):
            begin = time.monotonic()
            for i in range(len(names)):
                name = names[(i + number) % len(names)]
                results[name].append(jobs[name]())
            took = time.monotonic() - begin
            if ROUNDS_MIN <= number + 1 < self.options.rounds and self.left() < took:
                print(f"# stopped after {number + 1} rounds: the time is up")
                break
        return results

    def look_at_fio(self):
        """The block size and depth that are best here."""
        best, looks = 0.0, []
        for shape in DEPTHS:
            rate = self.run_fio(shape).rate
            looks.append(f"{shape[0]}:{shape[1]} {rate:.2f}")
            if rate > best:
                best, self.fio_shape = rate, shape
        print(f"first look at fio, GB/s: {', '.join(looks)}")

    def cold(self):
        if self.options.fio:
            block, depth = self.options.fio.split(":")
            self.fio_shape = (block, int(depth))
        else:
            self.look_at_fio()
        print("\ncold, GB/s")
        jobs = {"fio": lambda: self.run_fio(self.fio_shape)}
        if self.is_host():
            jobs["tree"] = self.run_tree
        for io in ("uring", "pread", "auto"):
            jobs[f"load {io}"] = lambda io=io: self.run_load(True, "--io", io)
        results = self.rounds(jobs)
        trees = results.get("tree", results["fio"])
        limits = [min(f.rate, t.rate) for f, t in zip(results["fio"], trees)]
        table(results, {name: limits for name in results if name.startswith("load")}, 0.97)

    def hot(self):
        for path in self.files:
            with open(path, "rb") as file:
                while file.read(64 << 20):
                    pass
        jobs = {"read": self.run_read,
                "load --no-verify": lambda: self.run_load(False, "--no-verify"),
                "read, hash": lambda: self.run_read("--hash"),
                "load": lambda: self.run_load(False)}
        print("\nhot, GB/s")
        results = self.rounds(jobs)
        table(results, {"load --no-verify": [r.rate for r in results["read"]],
                        "load": [r.rate for r in results["read, hash"]]}, 0.9)


def memory_available():
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(re.search(r"MemAvailable: +([0-9]+) kB", file.read()).group(1)) * 1024


def table(results, limits, wanted):
    """A row a job: each round, median, CPU, and the ratio to its limit."""
    median = statistics.median
    for name, runs in results.items():
        rates = [run.rate for run in runs]
        line = f"{name:18}" + "".join(f" {rate:6.2f}" for rate in rates)
        line += f"   median {median(rates):6.2f}"
        if runs[0].cpu_ns:
            line += f"   {median(run.cpu_ns for run in runs):.2f} ns CPU/byte"
        if name in limits:
            pairs = median(rate / limit for rate, limit in zip(rates, limits[name]))
            both = median(rates) / median(limits[name])
            line += f"   of its limit: {both:.3f} (medians), {pairs:.3f} (pairs), wanted {wanted}"
        notes = sorted({run.note for run in runs if run.note})
        print(line + (f"   [{'; '.join(notes)}]" if notes else ""))
    sys.stdout.flush()


def size_of(text):
    number, unit = re.fullmatch(r"([0-9.]+)(GB|GiB|MB|MiB)", text).groups()
    return int(float(number) * {"GB": 1e9, "GiB": 1 << 30, "MB": 1e6, "MiB": 1 << 20}[unit])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--bytes", type=size_of, default=size_of("5GB"))
    parser.add_argument("--fio", metavar="BLOCK:DEPTH", help="instead of a first look, e.g. 4M:16")
    parser.add_argument("--no-cold", action="store_true")
    parser.add_argument("--no-hot", action="store_true")
    parser.add_argument("--device", default="host")
    bench = Bench(parser.parse_args())
    base = os.environ.get("K3_BENCH_DIR") or os.environ.get("TMPDIR") or "/var/tmp"
    with tempfile.TemporaryDirectory(prefix="k3-bench-", dir=base) as work:
        if os.environ.get("K3_BENCH_SET"):
            bench.take_set(os.environ["K3_BENCH_SET"])
        else:
            bench.make_set(work)
        print(f"{bench.size / GB:.2f} GB in {len(bench.files)} parts of rank "
              f"{','.join(bench.ranks)}, {len(os.sched_getaffinity(0))} cores, {bench.left():.0f} s left")
        if not bench.options.no_cold:
            if os.geteuid() != 0 or not os.access("/proc/sys/vm/drop_caches", os.W_OK):
                print("# SKIP cold rows: the page cache cannot be dropped without root")
            elif not shutil.which("fio"):
                print("# SKIP cold rows: fio is not installed")
            else:
                bench.cold()
        if not bench.options.no_hot and bench.is_host():
            bench.hot()
    return 0


if __name__ == "__main__":
    sys.exit(main())
