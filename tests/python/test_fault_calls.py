#!/usr/bin/env python3
"""test_fault_calls.py: any single call that a command makes to the system may fail.

Purpose   files, memory, threads and io_uring say no at the worst moment.  Whatever fails, a command
          ends well with the right bytes, or refuses in one sentence; then, without the fault, the
          same command brings the golden bytes.  No crash, no hang, nothing half-written that looks
          finished, no memory error blamed on the data.
How       tests/shim_fault.c numbers the calls of each class and tells from where each one came.
          --all takes every call with every error of its class (and the first error from that call
          on); --sample takes one call of each place in the code, its error by turns.
Oracle    an undisturbed run of each command; files are compared byte by byte, images by SHA-256.
Usage     test_fault_calls.py --sample | --all [--only SCENE,…] [--class NAME,…]
Output    TAP lines; what was injected where; `N passed, N failed`; exit 0 only when none failed.
"""

import concurrent.futures
import hashlib
import itertools
import os
import random
import re
import resource
import shutil
import sys

import k3test
from k3test import MANIFEST, PARTIAL, Suite, Tool, difference, files_of, parser, scratch

k3test.RUN_SECONDS_MAX = 60  # more is a hang
THREADS = 2
CROWD_POINTS = 40  # of each class where several threads make the numbers wander

# Errors that each class of calls may meet.  "!": it must not be seen at all: the call is made again,
# goes on, or was a hint.
KINDS = {
    "open": ["EMFILE", "EIO", "ENOMEM", "EACCES", "!EINTR"],
    "create": ["ENOSPC", "EMFILE", "EIO", "EDQUOT", "!EINTR"],
    "read": ["EIO", "EOF", "!SHORT", "!EINTR"],
    "write": ["ENOSPC", "EIO", "EDQUOT", "!SHORT", "!EINTR"],
    "sync": ["EIO", "ENOSPC", "!EINTR"],
    "reserve": ["ENOSPC", "EIO", "!EOPNOTSUPP", "!ENOSYS", "!EINTR"],
    "size": ["EIO", "ENOSPC", "!EINTR"],
    "mkdir": ["ENOSPC", "EACCES", "EIO"],
    "rename": ["EIO", "ENOSPC", "EACCES"],
    "remove": ["EIO", "EACCES"],
    "close": ["EIO", "EDQUOT", "!EINTR"],
    "stat": ["EIO", "ENOMEM", "ESTALE"],
    "space": ["EIO"],
    "list": ["EIO", "ENOMEM"],
    "path": ["EIO", "EACCES", "ENOMEM"],
    "lock": ["!ENOLCK", "EIO"],
    "alloc": ["ENOMEM"],
    "map": ["ENOMEM", "EAGAIN"],
    "thread": ["EAGAIN"],
    "random": ["ENOSYS", "!EINTR"],
    "event": ["EMFILE"],
    "hint": ["!EPERM", "!EINVAL", "!ENOSYS"],
    "ring_setup": ["EPERM", "ENOSYS", "ENOMEM", "EMFILE", "EINVAL"],
    "ring_register": ["!ENOMEM", "!EPERM", "!EINVAL"],
    "ring_submit": ["EIO", "!EINTR", "EAGAIN", "EBUSY", "ENOMEM"],
    "ring_wait": ["EIO", "!EINTR"],
    "ring_read": ["!SHORT"],
    "ring_result": ["EIO", "EOF", "!EAGAIN", "!EINTR", "ECANCELED"],
}
FILE_CLASSES = {"open", "create", "read", "write", "sync", "reserve", "size", "mkdir", "rename",
                "remove", "close", "space", "list"}
# 1 is what a failing system is; 3 only where bytes are missing, 4 only where a route is not there.
# A unit that a drive cannot read is a bad unit for verify.
CODES_ALSO = {("read", "EOF"): {3}, ("read", "EIO"): {3}, ("ring_result", "EOF"): {3}, ("ring_setup", None): {4},
              ("ring_submit", None): {4}, ("ring_wait", None): {4}, ("ring_read", None): {4}}
OBJECT = re.compile(r"/|direct reads|\.(safetensors|units|json|record|zst|md|model)\b|LICENSE|plan|sources|files|tensors")
EMPTY_TALK = re.compile(r"without a reason|Success|\(null\)|task \d+ failed")
# What differs from run to run: times, and the route and memory of a load.
TIMES = re.compile(r" in [\d.]+ s.*|(read|route|phases|memory|fallback) .*")


class Case:
    """One fault: call `number` of a class, once or (onwards) all from there on."""

    def __init__(self, name, number, kind, onwards, site):
        self.name, self.number, self.site, self.onwards = name, number, site, onwards
        self.must_heal, self.kind = kind.startswith("!"), kind.lstrip("!")

    def shim(self):
        shim = {"FAULT_CLASS": self.name, "FAULT_AT": self.number, "FAULT_KIND": self.kind}
        if self.onwards:
            shim["FAULT_FROM"] = 1
        return shim

    def codes(self):
        """Exit codes that a refusal may have."""
        if self.must_heal and not self.onwards:
            return set()
        return {1} | CODES_ALSO.get((self.name, self.kind), set()) | CODES_ALSO.get(
            (self.name, None), set())

    def __str__(self):
        return f"{self.name} {self.number}{'+' if self.onwards else ''} {self.kind} at {self.site}"


class World:
    """Programs, the checkpoint and the golden results that scenes share."""

    def __init__(self, options, room):
        build = os.path.dirname(options.k3)
        shim = os.path.join(build, "tests", "shim_fault.so")
        loaded = os.path.join(build, "tests", "make_loaded")
        for path in (options.k3, shim, loaded):
            if not os.path.exists(path):
                sys.exit(f"{path} is not there: make tests")
        self.tool = Tool(os.path.abspath(options.k3), os.path.abspath(shim))
        self.loaded = Tool(os.path.abspath(loaded), os.path.abspath(shim))
        self.room, self.numbers = room, itertools.count()
        # As in the cache of the hub, so that its path says repository and revision.
        self.ckpt = os.path.join(room, "models--org--name", "snapshots", "0123abcd")
        os.makedirs(os.path.dirname(self.ckpt))
        self.set, self.begun = os.path.join(room, "set"), os.path.join(room, "begun")
        for args in (("synth", self.ckpt, "--preset", "tiny", "--layers", "3", "--quiet"),
                     ("convert", self.ckpt, "--out", self.set, "--tp", "2", "--quiet"),
                     ("convert", self.ckpt, "--out", self.begun, "--tp", "2", "--quiet",
                      "--worker", "0", "--workers", "1")):
            done = self.tool.run(*args)
            if done.code:
                sys.exit(f"{args[0]}: {done}")
        self.ckpt_files, self.set_files = files_of(self.ckpt), files_of(self.set)
        self.put_records()
        self.stats = self.look()

    def put_records(self):
        """Download records with the right digests, for `verify CKPT`."""
        place = os.path.join(self.ckpt, ".cache", "huggingface", "download")
        os.makedirs(place)
        for name, data in self.ckpt_files.items():
            if name.endswith(".safetensors"):
                with open(os.path.join(place, name + ".metadata"), "w", encoding="ascii") as file:
                    file.write(f"0123abcd\n{hashlib.sha256(data).hexdigest()}\n1.0\n")

    def look(self):
        """Size and time of all inputs: no command may touch them."""
        found = {}
        for place in (self.ckpt, self.set, self.begun):
            for at, _, names in os.walk(place):
                for name in names:
                    stat = os.stat(os.path.join(at, name))
                    found[os.path.join(at, name)] = (stat.st_size, stat.st_mtime_ns)
        return found

    def fresh(self):
        return os.path.join(self.room, f"out-{next(self.numbers)}")


def refusal(case, result):
    """Why an end that is not exit 0 is no clean refusal, or ""."""
    lines = [line for line in result.err.splitlines()
             if line.strip() and not line.startswith("problem: ")]
    if result.code not in case.codes():
        return f"exit code not in {sorted(case.codes())}: {result}"
    if len(lines) != 1 or not lines[0].startswith("k3-shard: "):
        return f"not one sentence: {result}"
    if EMPTY_TALK.search(lines[0]):
        return f"says nothing: {result}"
    if case.name in FILE_CLASSES and not OBJECT.search(lines[0].split(": ", 1)[1]):
        return f"names no object: {result}"
    if case.name in ("alloc", "map") and not re.search("memory|room|thread", lines[0]):
        return f"does not speak of memory: {result}"
    return ""


class Reads:
    """A command that only reads: its result is what it prints."""

    places = 1
    jobs = 1

    def __init__(self, world, name, args, program=None, jobs=1):
        self.world, self.name, self.args, self.jobs = world, name, args, jobs
        self.program = program or world.tool
        golden = self.run(None, None)
        if golden.code:
            sys.exit(f"{name}: the undisturbed run: {golden}")
        self.golden = self.said(golden)

    @staticmethod
    def said(result):
        """What must be the same: not that a read was made once more, nor by which route."""
        kept = [line for line in result.out.splitlines()
                if line.split() and line.split()[0] not in ("reread", "route", "fallback")]
        return "\n".join(line for line in TIMES.sub("", "\n".join(kept)).splitlines() if line)

    def run(self, _out, shim):
        return self.program.run(*self.args, shim=shim)

    def good(self, _out, result):
        return "" if self.said(result) == self.golden else f"other results: {result}"

    def judge(self, case):
        if case.name == "ring_result" and not case.onwards:
            case.must_heal = True  # a load reads once more by another route
        result = self.run(None, case.shim())
        return self.good(None, result) if result.code == 0 else refusal(case, result)


class Writes:
    """A command that fills a directory: `golden` is what it must hold."""

    def __init__(self, world, name, golden, args, jobs=1):
        self.world, self.name, self.golden, self.args, self.jobs = world, name, golden, args, jobs

    def prepare(self, _out):
        """What is there before the command."""

    def run(self, out, shim):
        return self.world.tool.run(*[out if a == "OUT" else a for a in self.args], shim=shim)

    def good(self, out, _result):
        return difference(files_of(out), self.golden)

    @staticmethod
    def hidden(name):
        return name.startswith(PARTIAL)

    last = MANIFEST  # the file that says that all is there

    def unfinished(self, out):
        """Nothing in there may look finished unless it is."""
        found = files_of(out) if os.path.isdir(out) else {}
        visible = {n: d for n, d in found.items() if not self.hidden(n)}
        if self.last in visible:
            return difference(visible, self.golden)
        bad = [n for n, d in visible.items() if self.golden.get(n) != d]
        return f"visible and not whole: {bad}" if bad else ""

    def again(self, out):
        result = self.run(out, None)
        return f"then, undisturbed: {result}" if result.code else self.good(out, result)

    def judge(self, case):
        out = self.world.fresh()
        self.prepare(out)
        result = self.run(out, case.shim())
        if result.code == 0:
            bad = self.good(out, result)
        else:
            bad = refusal(case, result) or self.unfinished(out) or self.again(out)
        shutil.rmtree(out, ignore_errors=True)
        return bad


class Worker(Writes):
    """One of two workers: no manifest of its own, then the other one and seal."""

    def good(self, out, _result):
        if MANIFEST in files_of(out):
            return "a worker has sealed"
        other = [a.replace("0", "1") if a == "0" else a for a in self.args]
        for args in (other, ["seal", "--out", "OUT"]):
            result = self.world.tool.run(*[out if a == "OUT" else a for a in args])
            if result.code:
                return f"then {args[0]}: {result}"
        return difference(files_of(out), self.golden)


class Seal(Writes):
    def prepare(self, out):
        shutil.copytree(self.world.begun, out, symlinks=True)


class Whole(Writes):
    """synth and export write into an empty directory; what an interrupted one left is removed."""

    last = "model.safetensors.index.json"

    @staticmethod
    def hidden(name):
        return name.startswith(".")

    def again(self, out):
        shutil.rmtree(out, ignore_errors=True)
        return super().again(out)


def scenes(world):
    tool, ckpt, made = world.tool, world.ckpt, world.set
    tp = ["--tp", "2"]
    yield Reads(world, "plan", ["plan", ckpt, *tp])
    yield Reads(world, "inspect", ["inspect", made])
    yield Reads(world, "verify", ["verify", made, "--jobs", "1", "--quiet"])
    yield Reads(world, "verify --jobs 3", ["verify", made, "--jobs", "3", "--quiet"], jobs=3)
    yield Reads(world, "verify --quick", ["verify", made, "--quick", "--jobs", "1", "--quiet"])
    yield Reads(world, "verify --against", ["verify", made, "--against", ckpt, "--jobs", "1",
                                            "--quiet"])
    yield Reads(world, "verify CKPT", ["verify", ckpt, "--jobs", "1", "--quiet"])
    for route in ("uring", "direct", "buffered", "auto"):
        # The engines have threads of their own, so their calls come in any order.
        yield Reads(world, f"load {route}", [made, route], world.loaded, jobs=2)
        yield Reads(world, f"load {route}, not verified", [made, route, "no-verify"],
                    world.loaded, jobs=2)
    yield Reads(world, "load command", ["load", made, "--io", "pread", "--ranks", "1", "--quiet"],
                tool, jobs=2)
    yield Seal(world, "seal", world.set_files, ["seal", "--out", "OUT"])
    yield Whole(world, "synth", world.ckpt_files,
                ["synth", "OUT", "--preset", "tiny", "--layers", "3", "--quiet"])
    yield Whole(world, "export", world.ckpt_files,
                ["export", made, "--to", "OUT", "--jobs", "1", "--quiet"])
    yield Whole(world, "export --jobs 3", world.ckpt_files,
                ["export", made, "--to", "OUT", "--jobs", "3", "--quiet"], jobs=3)
    convert = ["convert", ckpt, "--out", "OUT", *tp, "--quiet"]
    yield Writes(world, "convert", world.set_files, [*convert, "--jobs", "1"])
    yield Writes(world, "convert --jobs 4", world.set_files, [*convert, "--jobs", "4"], jobs=4)
    yield Worker(world, "convert --worker", world.set_files,
                 [*convert, "--jobs", "1", "--worker", "0", "--workers", "2"])


def calls_of(scene):
    """The calls of an undisturbed run: class -> list of the places they came from."""
    out, path = scene.world.fresh(), scene.world.fresh()
    if isinstance(scene, Writes):
        scene.prepare(out)
    result = scene.run(out, {"FAULT_COUNT": path})
    if result.code:
        sys.exit(f"{scene.name}: the counted run: {result}")
    found = {}
    with open(path, encoding="ascii") as file:
        for line in file:
            name, site = line.split()
            found.setdefault(name, []).append(site)
    shutil.rmtree(out, ignore_errors=True)
    os.unlink(path)
    return found


def all_cases(scene, calls, draw, every):
    for name, sites in calls.items():
        numbers = range(draw.randint(1, min(every, len(sites))), len(sites) + 1, every)
        if scene.jobs > 1 and len(numbers) > CROWD_POINTS:
            numbers = sorted(draw.sample(numbers, CROWD_POINTS))
        for n in numbers:
            for kind in KINDS[name]:
                yield Case(name, n, kind, False, sites[n - 1])
            if not KINDS[name][0].startswith("!"):
                yield Case(name, n, KINDS[name][0], True, sites[n - 1])


def sample_cases(calls, seen):
    """A call of each place that no scene before had; its error by turns, sometimes for ever."""
    for name, sites in calls.items():
        first = {}
        for n, site in enumerate(sites, 1):
            first.setdefault(site, []).append(n)
        for site, numbers in first.items():
            kinds = KINDS[name]
            # All errors of a place in few calls; else one.
            turns = len(kinds) if len(first) == 1 else 1
            for turn in range(turns):
                if (name, site, turn) in seen:
                    continue
                seen.add((name, site, turn))
                pick = numbers[len(seen) % len(numbers)]
                kind = kinds[(turn + len(seen)) % len(kinds)]
                # "Again" for ever is no end that a program could wait for.
                onwards = len(seen) % 5 == 0 and not kind.startswith("!")
                yield Case(name, pick, kind, onwards, site)


def guard(scene, case):
    try:
        return scene.judge(case)
    except Exception as e:  # a test that dies is a failed case, the others go on
        return f"{type(e).__name__}: {e}"


def run_cases(suite, scene, cases):
    problems, codes = [], {}
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for case, problem in zip(cases, pool.map(lambda case: guard(scene, case), cases)):
            codes[case.name] = codes.get(case.name, 0) + 1
            if problem:
                problems.append((str(case), problem))
    suite.group(f"{scene.name}: a call fails", len(cases), problems)
    return codes


def main():
    options = parser("fail calls to the system everywhere")
    mode = options.add_mutually_exclusive_group()
    mode.add_argument("--sample", action="store_true", help="a sample, seconds (default)")
    mode.add_argument("--all", action="store_true", help="every call: minutes")
    options.add_argument("--only", type=lambda s: s.split(","), help="scenes whose name has one")
    options.add_argument("--class", dest="classes", type=lambda s: s.split(","))
    options.add_argument("--every", type=int, default=1, help="of --all, one call in N")
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    suite, draw, seen = Suite(), random.Random(options.seed), set()
    call_count, places, injected = 0, set(), {}
    with scratch() as room:
        world = World(options, room)
        for scene in scenes(world):
            if options.only and not any(word in scene.name for word in options.only):
                continue
            calls = calls_of(scene)
            calls = {n: s for n, s in calls.items() if not options.classes or n in options.classes}
            call_count += sum(map(len, calls.values()))
            places.update((n, site) for n, sites in calls.items() for site in sites)
            cases = list(all_cases(scene, calls, draw, options.every) if options.all
                         else sample_cases(calls, seen))
            if cases:
                for name, count in run_cases(suite, scene, cases).items():
                    injected[name] = injected.get(name, 0) + count
        suite.check(world.look() == world.stats, "no input was touched")
    print(f"# {call_count} calls of {len({n for n, _ in places})} classes from {len(places)} places "
          f"in the code; {sum(injected.values())} faults injected")
    print("# " + ", ".join(f"{n} {c}" for n, c in sorted(injected.items())))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"# {used.ru_utime + used.ru_stime:.1f} s of CPU in the programs")
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
