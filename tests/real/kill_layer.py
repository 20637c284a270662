"""kill_layer.py: conversions of layers of real width, killed 200 times at random moments.

Purpose   tests/python/test_kill.py kills a tiny conversion at each of its calls; here items take
          seconds, so that a kill meets long reads, gathers, writes, syncs and read-backs in the
          middle, and the page cache behind them.
How       one undisturbed conversion gives the golden digests and the duration.  Then conversions
          with varied --jobs and --memory are killed (SIGKILL) after a random part of that duration,
          again and again, until they end; each end is compared: every file by SHA-256.
Usage     kill_layer.py [--kills N] [--seed S] [--ckpt DIR] [--room DIR]     (K3 in the environment)
          Without --ckpt it makes one of 1.9 GB: rows, heads and experts of K3's width, fewer of them.
          Needs twice the checkpoint's size on disk, and four times without --ckpt.
Output    `ok` and `FAIL` lines as the scripts of this folder; exit 1 when one failed.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))
import mini_ckpt  # pylint: disable=wrong-import-position
from k3test import MANIFEST, PARTIAL  # pylint: disable=wrong-import-position

# Widths as published; heads, experts, layers, words and the dense layer as small as the rules let.
REAL_WIDTHS = {"H": 7168, "KD": 128, "MI": 3072, "LAT": 3584, "QL": 1536, "KVL": 512, "NOPE": 128,
               "ROPE": 64, "VD": 128, "V": 2048, "DI": 3584, "SHARED": 1, "LAYERS": 3,
               "FULL_ATTN": [3], "KDA": [1, 2]}
GAP_PARTS = 5  # the mean time between kills is this part of the whole: about one item
STUCK_KILLS = 6  # kills without a finished item: the machine is slower now than when measured
RUN_SECONDS_MAX = 3600
TP = ["--tp", "2", "--quiet"]


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(directory):
    """Every file below the directory: name -> size and SHA-256."""
    found = {}
    for at, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(at, name)
            found[os.path.relpath(path, directory)] = (os.path.getsize(path), sha256_of(path))
    return found


class Bench:
    def __init__(self, k3, ckpt, room, seed):
        self.k3, self.ckpt, self.room = k3, ckpt, room
        self.draw = random.Random(seed)
        self.kills = self.bad = self.sets = 0
        self.moments = {}  # records that were there at a kill -> kills
        out = self.place("golden")
        begin = time.monotonic()
        done = subprocess.run(self.command(out, "2", "64MiB"), capture_output=True, text=True,
                              check=False, timeout=RUN_SECONDS_MAX)
        self.seconds = time.monotonic() - begin
        if done.returncode:
            sys.exit(f"the undisturbed run: {done.stderr}")
        self.golden = digests_of(out)
        shutil.rmtree(out)

    def place(self, name):
        return os.path.join(self.room, name)

    def command(self, out, jobs, memory):
        return [self.k3, "convert", self.ckpt, "--out", out, *TP, "--jobs", jobs, "--memory",
                memory]

    def check(self, good, text):
        self.bad += not good
        print(("ok    " if good else "FAIL  ") + text, flush=True)

    def records(self, out):
        try:
            return sum(n.endswith(".record") for n in os.listdir(os.path.join(out, PARTIAL)))
        except FileNotFoundError:
            return -1  # not begun, or sealed

    def between(self, out):
        """After a kill: no manifest, or the whole set; what is visible is whole."""
        if not os.path.isdir(out):
            return ""
        names = [n for n in os.listdir(out) if n != PARTIAL]
        if MANIFEST in names:
            names = list(self.golden)
        for name in names:
            path = os.path.join(out, name)
            if name not in self.golden or not os.path.exists(path):
                return f"{name} should not be there, or is missing"
            if (os.path.getsize(path), sha256_of(path)) != self.golden[name]:
                return f"{name} is visible and not whole"
        return ""

    def attempt(self, command, seconds):
        """Run for that long; the exit code, or None where it was killed."""
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as child:
            try:
                err = child.communicate(timeout=seconds)[1]
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                return None, ""
            return child.returncode, err

    def conversion(self, kills_left, jobs, memory):
        """Killed until it ends (or kills_left are used up, then it may end)."""
        out, kills, stuck, gap = self.place("out"), 0, 0, self.seconds / GAP_PARTS
        command, code, err = self.command(out, jobs, memory), None, ""
        while code is None and kills < kills_left:
            before, begin = self.records(out), time.monotonic()
            code, err = self.attempt(command, self.draw.uniform(0, 2 * gap))
            if code is None:
                kills += 1
                after = self.records(out)
                self.moments[after] = self.moments.get(after, 0) + 1
                stuck = stuck + 1 if after == before else 0
                if stuck == STUCK_KILLS:
                    gap, stuck = gap * 1.5, 0
                bad = self.between(out)
                if bad:
                    self.check(False, f"after kill {kills}: {bad}")
        if kills == 0:  # the machine is faster now than when measured
            self.seconds = min(self.seconds, time.monotonic() - begin)
        if code is None:
            code, err = self.attempt(command, RUN_SECONDS_MAX)
        found = digests_of(out) if code == 0 else {}
        self.check(code == 0 and found == self.golden,
                   f"--jobs {jobs} --memory {memory}, killed {kills} times: "
                   + (f"{len(found)} files as without" if found == self.golden
                      else f"exit {code} {err.strip()} differs: "
                      f"{sorted(set(found.items()) ^ set(self.golden.items()))[:3]}"))
        shutil.rmtree(out, ignore_errors=True)
        self.kills += kills
        self.sets += 1


def make_checkpoint(place):
    for name, value in REAL_WIDTHS.items():
        setattr(mini_ckpt, name, value)
    mini_ckpt.write_checkpoint(place)
    return place


def main():
    options = argparse.ArgumentParser(description="kill conversions of layers of real width")
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--ckpt", default="")
    options.add_argument("--room", default=os.environ.get("TMPDIR", "/tmp"))
    options = options.parse_args()
    if not os.environ.get("K3"):
        sys.exit("set K3 to the k3-shard binary")
    room = os.path.join(options.room, "kill-layer")
    os.makedirs(room)
    try:
        ckpt = options.ckpt or make_checkpoint(os.path.join(room, "ckpt"))
        bench = Bench(os.path.abspath(os.environ["K3"]), ckpt, room, options.seed)
        print(f"kill_layer: {sum(size for size, _ in bench.golden.values())} bytes in "
              f"{len(bench.golden)} files, {bench.seconds:.1f} s undisturbed", flush=True)
        turns = [("1", "2MiB"), ("2", "64MiB"), ("2", "256MiB"), ("4", "32MiB")]
        while bench.kills < options.kills:
            bench.conversion(options.kills - bench.kills, *turns[bench.sets % len(turns)])
        print(f"kill_layer: {bench.kills} kills of {bench.sets} conversions; kills by finished "
              f"items (-1: before the first file or behind the last): "
              f"{dict(sorted(bench.moments.items()))}")
        bench.check(bench.kills >= options.kills, f"{bench.kills} kills")
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return bench.bad > 0


if __name__ == "__main__":
    sys.exit(main())
