#!/usr/bin/env python3
"""Every single wrong bit of a shard set is found and named.

Makes a tiny synthetic checkpoint, converts it, flips random single bits in each class of bytes (part
data, pads, part headers, units files, manifest, copied files, source-headers.zst) and demands that
`verify` exits 3 and names the file, and for parts the unit, its offset and the tensor.  Then whole
files go wrong: missing, extra, truncated, swapped, renamed, stale.  `load` must refuse as well.

Run:   K3=build/release/k3-shard tests/python/test_flips.py [--quick N] [--seed S] [--keep]
Needs  the Python standard library; about 40 MB below TMPDIR.
Last line: N passed, N failed.
"""
import argparse
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

UNIT = 524288
HEADERS = "source-headers.zst"
MANIFEST = "k3-shards.json"


class Part:
    """What the header of a part or source says: where data begin, and the entries in data order."""

    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path)
        with open(path, "rb") as file:
            (count,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(count))
        self.data_offset = 8 + count
        header.pop("__metadata__", None)
        self.entries = [(name, *entry["data_offsets"]) for name, entry in header.items()]
        self.tensors = [e for e in self.entries if not e[0].startswith("k3.pad.")]
        self.pads = [e for e in self.entries if e[0].startswith("k3.pad.")]


class Suite:
    def __init__(self, binary, work, rng):
        self.binary, self.work, self.rng = binary, work, rng
        self.passed = self.failed = 0
        self.set = os.path.join(work, "set")

    def run(self, *args):
        command = [self.binary, *args]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def must(self, *args):
        done = self.run(*args)
        if done.returncode:
            sys.exit(f"{' '.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}")

    def judge(self, what, problem):
        """Count a check; problem is None where it passed."""
        if problem is None:
            self.passed += 1
            return
        self.failed += 1
        if self.failed <= 20:
            print(f"FAIL  {what}: {problem}")

    def verify(self, *args):
        done = self.run("verify", *(args or (self.set,)), "--json", "--quiet", "--jobs", "1")
        try:
            return done, json.loads(done.stdout)
        except ValueError:
            return done, {}

    def find(self, done, report, *names):
        """None when verify failed with exit 3 and some problem holds each name."""
        if done.returncode != 3:
            return f"exit {done.returncode}, wanted 3: {done.stderr.strip()}"
        if report.get("ok") is not False or not report.get("problems"):
            return "the report has no problem in it"
        for name in names:
            if not any(name in text for text in report["problems"]):
                return f"no problem names {name}: {report['problems'][:3]}"
        return None

    # ---- single bits ----

    def flip(self, path, offset, bit):
        with open(path, "r+b") as file:
            file.seek(offset)
            old = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([old ^ (1 << bit)]))

    def flipped(self, path, offset, look):
        """Flip one random bit of a byte, look, flip it back."""
        bit = self.rng.randrange(8)
        self.flip(path, offset, bit)
        try:
            problem = look()
        finally:
            self.flip(path, offset, bit)
        self.judge(f"bit {bit} of byte {offset} of {os.path.basename(path)}", problem)

    def look_unit(self, part, offset, tensor):
        done, report = self.verify()
        problem = self.find(done, report, part.name)
        if problem:
            return problem
        unit = offset // UNIT
        if len(report["bad_units"]) != 1:
            return f"{len(report['bad_units'])} bad units, wanted 1"
        bad = report["bad_units"][0]
        found = (bad["file"], bad["unit"], bad["offset"], bad["bytes"])
        wanted = (part.name, unit, unit * UNIT, UNIT)
        if found != wanted:
            return f"bad unit {found}, wanted {wanted}"
        if tensor not in bad["tensors"] and not tensor.startswith("k3.pad."):
            return f"{tensor} is not among {bad['tensors'][:5]}"
        start = unit * UNIT - part.data_offset
        touched = [n for n, b, e in part.tensors if b < start + UNIT and e > start]
        if start >= 0 and bad["tensors"] != (touched or ["padding only"]):
            return "the tensors named are not those that the unit touches"
        return None

    def look_load(self, name):
        done = self.run("load", self.set, "--json", "--quiet")
        if done.returncode != 3:
            return f"load: exit {done.returncode}, wanted 3"
        try:
            error = json.loads(done.stdout)
        except ValueError:
            return "load: no error object"
        if error.get("code") != 3 or name not in (error.get("file") or "") + error["message"]:
            return f"load: {error} does not name {name}"
        return None

    def flip_part(self, parts, kind):
        part = self.rng.choice(parts)
        if kind == "header":
            offset = self.rng.randrange(part.data_offset)
            tensor = "the header"
        else:
            tensor, begin, end = self.rng.choice(part.tensors if kind == "data" else part.pads)
            offset = part.data_offset + self.rng.randrange(begin, end)
        self.flipped(part.path, offset, lambda: self.look_unit(part, offset, tensor))
        return part, offset

    def flip_file(self, names):
        name = self.rng.choice(names)
        path = os.path.join(self.set, name)
        offset = self.rng.randrange(os.path.getsize(path))

        def look():
            done, report = self.verify()
            return self.find(done, report, name)

        self.flipped(path, offset, look)

    # ---- against the checkpoint ----

    def look_against(self, checkpoint, source, offset, tensor, old):
        done, report = self.verify(self.set, "--quick", "--against", checkpoint)
        problem = self.find(done, report, source, tensor)
        if problem:
            return problem
        texts = [text for text in report["problems"] if tensor in text]
        if "behind its heads" in texts[0]:
            return None if "A_log" in tensor else texts[0]
        pattern = re.escape(f"{tensor} differs: {source} at offset {offset}, ")
        for text in texts:
            found = re.match(pattern + r"(\S+) at offset (\d+) are not the same byte", text)
            if not found:
                return f"{text}: wanted offset {offset} of {source}"
            with open(os.path.join(self.set, found[1]), "rb") as file:
                file.seek(int(found[2]))
                if file.read(1)[0] != old:
                    return f"{text}: the part has another byte there"
        return None

    def flip_source(self, checkpoint, sources):
        source = self.rng.choice(sources)
        tensor, begin, end = self.rng.choice(source.tensors)
        offset = source.data_offset + self.rng.randrange(begin, end)
        with open(source.path, "rb") as file:
            file.seek(offset)
            old = file.read(1)[0]
        self.flipped(source.path, offset,
                     lambda: self.look_against(checkpoint, source.name, offset, tensor, old))

    # ---- whole files ----

    def changed(self, what, change, undo, names, load=3):
        """verify must name it; load exits 0 where what is wrong does no harm there."""
        change()
        try:
            self.judge(what, self.find(*self.verify(), *names))
            done = self.run("load", self.set, "--json", "--quiet")
            wrong = done.returncode != load
            self.judge(f"{what}: load", f"exit {done.returncode}, wanted {load}" if wrong else None)
        finally:
            undo()

    def whole_files(self, parts, other_parts, foreign_parts):
        aside = os.path.join(self.work, "aside")
        one, two = parts[1], parts[2]
        far = parts[-2]

        def move(source, target):
            return lambda: os.rename(source, target)

        def swap(a, b):
            def run():
                os.rename(a, aside)
                os.rename(b, a)
                os.rename(aside, b)
            return run

        def put(source, target):
            def run():
                os.rename(target, aside)
                shutil.copyfile(source, target)
            return run

        def back(target):
            return lambda: os.replace(aside, target)

        def resize(path, size):
            def run():
                shutil.copyfile(path, aside)
                os.truncate(path, size)
            return run

        self.changed("missing part", move(one.path, aside), move(aside, one.path),
                     [one.name, "missing"])
        units = os.path.join(self.set, "model-rank-1.units")
        self.changed("missing units file", move(units, aside), move(aside, units),
                     ["model-rank-1.units", "missing"])
        for name in ("README.md", HEADERS, MANIFEST):
            path = os.path.join(self.set, name)
            self.changed(f"missing {name}", move(path, aside), move(aside, path), [name],
                         load=3 if name == MANIFEST else 0)
        for name in ("model-rank-7-part-1.safetensors", "stray.safetensors", "model-rank-9.units"):
            path = os.path.join(self.set, name)
            self.changed(f"extra {name}", lambda p=path: shutil.copyfile(one.path, p),
                         lambda p=path: os.remove(p), [name], load=0)
        size = os.path.getsize(one.path)
        for cut in (0, 7, 4096, UNIT, size - 1):
            self.changed(f"truncated to {cut}", resize(one.path, cut), back(one.path),
                         [one.name, "truncated"])
        self.changed("too long", resize(one.path, size + UNIT), back(one.path),
                     [one.name, "too long"])
        self.changed("swapped parts of a rank", swap(one.path, two.path), swap(one.path, two.path),
                     [one.name, two.name, "swapped"])
        self.changed("swapped parts of two ranks", swap(one.path, far.path),
                     swap(one.path, far.path), [one.name, far.name, "swapped"])
        renamed = os.path.join(self.set, "renamed.safetensors")
        self.changed("renamed part", move(one.path, renamed), move(renamed, one.path),
                     [one.name, "renamed.safetensors", "renamed or misplaced"])
        self.changed("stale part: same plan, other weights", put(other_parts[1], one.path),
                     back(one.path), [one.name])
        self.changed("stale part: other plan", put(foreign_parts[1], one.path), back(one.path),
                     [one.name, "stale"])

    def two_dirs(self, checkpoint):
        a, b = os.path.join(self.work, "a"), os.path.join(self.work, "b")
        self.must("convert", checkpoint, "--out", a, "--out", b, "--tp", "2", "--quiet")
        done, _ = self.verify(b, a)
        self.judge("two directories", None if done.returncode == 0 else done.stderr)
        name = sorted(n for n in os.listdir(b) if n.endswith(".safetensors"))[0]
        os.rename(os.path.join(b, name), os.path.join(a, name))
        self.judge("part in the wrong directory", self.find(*self.verify(a, b), name))
        shutil.copyfile(os.path.join(a, name), os.path.join(b, name))
        self.judge("part in two places", self.find(*self.verify(a, b), name))
        os.remove(os.path.join(a, name))
        done, _ = self.verify(a, b)
        self.judge("two directories again", None if done.returncode == 0 else done.stderr)
        self.judge("one directory missing", self.find(*self.verify(a)))


def list_parts(directory):
    names = [n for n in os.listdir(directory) if n.endswith(".safetensors")]
    return [os.path.join(directory, n) for n in sorted(names)]


def make(suite, name, *synth):
    checkpoint = os.path.join(suite.work, f"ckpt-{name}")
    out = os.path.join(suite.work, name)
    suite.must("synth", checkpoint, "--preset", "tiny", "--quiet", *synth)
    suite.must("convert", checkpoint, "--out", out, "--tp", "2", "--quiet")
    return checkpoint, out


def run(suite, count):
    checkpoint, _ = make(suite, "set", "--seed", "1")
    _, other = make(suite, "other", "--seed", "2")
    _, foreign = make(suite, "foreign", "--seed", "1", "--experts", "32")
    done, _ = suite.verify()
    suite.judge("the set before", None if done.returncode == 0 else done.stderr)
    parts = [Part(path) for path in list_parts(suite.set)]
    sources = [Part(path) for path in list_parts(checkpoint)]
    padded = [part for part in parts if part.pads]
    units = sorted(n for n in os.listdir(suite.set) if n.endswith(".units"))
    special = set(units) | {MANIFEST, HEADERS} | {part.name for part in parts}
    copied = sorted(set(os.listdir(suite.set)) - special)
    classes = {
        "part data": lambda: suite.flip_part(parts, "data"),
        "pads": lambda: suite.flip_part(padded, "pad"),
        "part headers": lambda: suite.flip_part(parts, "header"),
        "units files": lambda: suite.flip_file(units),
        "manifest": lambda: suite.flip_file([MANIFEST]),
        "copied files": lambda: suite.flip_file(copied),
        HEADERS: lambda: suite.flip_file([HEADERS]),
        "checkpoint, by --against": lambda: suite.flip_source(checkpoint, sources),
    }
    for name, flip in classes.items():
        before = suite.failed
        for _ in range(count):
            flip()
        print(f"{name}: {count} single bits flipped, {count - suite.failed + before} found and named")
    for kind in ("data", "pad", "header"):
        for _ in range(max(count // 10, 1)):
            part = suite.rng.choice(padded)
            begin, end = part.data_offset, os.path.getsize(part.path)
            if kind == "header":
                begin, end = 0, part.data_offset
            elif kind == "pad":
                begin, end = (part.data_offset + x for x in suite.rng.choice(part.pads)[1:])
            suite.flipped(part.path, suite.rng.randrange(begin, end),
                          lambda p=part: suite.look_load(p.name))
    suite.whole_files(parts, list_parts(other), list_parts(foreign))
    suite.two_dirs(checkpoint)
    done, _ = suite.verify(suite.set, "--against", checkpoint)
    suite.judge("the set after", None if done.returncode == 0 else done.stderr)
    done, report = suite.verify(suite.set, "--against", os.path.join(suite.work, "ckpt-other"))
    suite.judge("--against other weights", suite.find(done, report, "differs", "SHA-256"))
    done, report = suite.verify(suite.set, "--against", os.path.join(suite.work, "ckpt-foreign"))
    suite.judge("--against another model", suite.find(done, report, "not the checkpoint of"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("binary", nargs="?", default=os.environ.get("K3"))
    parser.add_argument("--quick", type=int, default=100, metavar="N", help="flips of each class")
    parser.add_argument("--seed", type=int, help="of the choice of bits")
    parser.add_argument("--keep", action="store_true", help="leave the work directory")
    args = parser.parse_args()
    if not args.binary:
        parser.error("set K3, or give the path of k3-shard")
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    work = tempfile.mkdtemp(prefix="k3-flips.")
    suite = Suite(os.path.abspath(args.binary), work, random.Random(seed))
    try:
        run(suite, args.quick)
    finally:
        if args.keep:
            print(f"kept {work}")
        else:
            shutil.rmtree(work)
    print(f"{suite.passed} passed, {suite.failed} failed")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    sys.exit(main())
