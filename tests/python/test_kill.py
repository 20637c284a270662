#!/usr/bin/env python3
"""test_kill.py: a conversion killed, stopped or failed anywhere ends as the golden set or as none.

Purpose   convert and seal promise: whatever call is the last one that happened, nothing in OUT
          looks finished unless it is, and the same command resumes to the same bytes.
          tests/shim_kill.c numbers every system call that changes files; here each number (or a
          sample) is taken.
Groups    kill      SIGKILL before, after and in the middle of call N; some resumed runs too
          threads   the same with eight workers
          fault     call N fails (once, or all from N on) with EIO, ENOSPC, EDQUOT; EINTR, a short
                    write and a file system without fallocate must not be seen at all
          read      the Nth read fails
          signal    SIGTERM and SIGINT at call N
          seal      a finished but unsealed conversion; `seal` is killed at each of its calls
          race      two programs on one OUT, one of them stopped at a given call
Oracle    an undisturbed run; every file is compared, also k3-shards.json and source-headers.zst.
Usage     test_kill.py --sample | --all [--only GROUP] [--seed N]     (--sample: below a minute)
Output    TAP lines, then `N passed, N failed` (every case counts); exit 0 only when none failed.
"""

import concurrent.futures
import fcntl
import itertools
import os
import random
import shutil
import signal
import sys
import time

from k3test import (MANIFEST, PARTIAL, Suite, difference, end_of, files_of, go_on, mini_ckpt,
                    parser, scratch, tool_of, wait_stopped)

TAIL_CALLS = 80  # seal and what leads to it: sampled without gaps
SAMPLE_POINTS = 60
THREADS = 2


class Bench:
    """The checkpoint, the golden set, and how to run and judge one case."""

    def __init__(self, tool, room, seed, ckpt=None):
        self.tool, self.room = tool, room
        self.ckpt = ckpt or mini_ckpt(os.path.join(room, "ckpt"))
        self.numbers = itertools.count()
        self.random = random.Random(seed)
        out = self.fresh()
        count = os.path.join(room, "count")
        self.result = self.convert(out, COUNT_FILE=count)
        self.golden = files_of(out)
        self.total, self.letters = read_count(count)
        shutil.rmtree(out)

    def fresh(self):
        return os.path.join(self.room, f"out-{next(self.numbers)}")

    def arguments(self, out, jobs=1, more=(), tp=2):
        return ["convert", self.ckpt, "--out", out, "--quiet", "--jobs", str(jobs), "--tp", str(tp),
                *more]

    def convert(self, out, jobs=1, more=(), **shim):
        return self.tool.run(*self.arguments(out, jobs, more), shim=shim)

    # ---- judgements: each gives the reason why a case is bad, or "" ----

    def between(self, out):
        """No run has finished: what is in OUT must not look like a set, or be the golden one."""
        found = files_of(out) if os.path.isdir(out) else {}
        visible = {n: d for n, d in found.items() if not n.startswith(PARTIAL)}
        if MANIFEST in visible:
            return difference(visible, self.golden) and "a manifest over: " + difference(
                visible, self.golden)
        for name, data in visible.items():
            if self.golden.get(name) != data:
                return f"{name} is visible and not whole"
        return ""

    def unloadable(self, out):
        """What verify says of it: exit 3, unless the manifest is there."""
        if not os.path.isdir(out) or os.path.exists(os.path.join(out, MANIFEST)):
            return ""
        result = self.tool.run("verify", "--quick", out)
        return "" if result.code == 3 else f"verify of an unfinished set: {result}"

    def finished(self, out, result):
        if result.code != 0:
            return f"not finished: {result}"
        return difference(files_of(out), self.golden)

    def resumed(self, out, jobs=1):
        return self.finished(out, self.convert(out, jobs))

    def refused(self, out, result):
        """A failure is one sentence, exit 1, 3 or 4, and nothing that looks finished."""
        lines = [line for line in result.err.splitlines() if line.strip()]
        if result.code not in (1, 3, 4):
            return f"neither healed nor refused: {result}"
        if len(lines) != 1 or not lines[0].startswith("k3-shard: "):
            return f"not one sentence: {result}"
        return self.between(out)


def read_count(path):
    with open(path, encoding="ascii") as f:
        return int(f.readline()), f.readline().strip()


def spread(total, count, tail=0):
    """`count` numbers of 1..total, evenly spread, and all of the last `tail`."""
    points = {1 + i * (total - 1) // max(1, count - 1) for i in range(count)}
    return sorted(points | set(range(max(1, total - tail + 1), total + 1)))


def run_cases(suite, name, judge, cases):
    """Judge all cases on a few threads; each has a directory of its own, removed behind it."""
    problems = []
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for case, problem in zip(cases, pool.map(lambda case: guard(judge, case), cases)):
            if problem:
                problems.append((" ".join(map(str, case)), problem))
    suite.group(name, len(cases), problems)


def guard(judge, case):
    try:
        return judge(*case)
    except Exception as e:  # a test that dies is a failed case, the others go on
        return f"{type(e).__name__}: {e}"


# ---- groups ----


def kill_case(bench, number, when, jobs, again):
    out = bench.fresh()
    result = bench.convert(out, jobs, KILL_AT=number, KILL_WHEN=when)
    bad = "" if result.code == -signal.SIGKILL else f"was not killed: {result}"
    bad = bad or bench.between(out) or (bench.unloadable(out) if again else "")
    if again and not bad:
        result = bench.convert(out, jobs, KILL_AT=again, KILL_WHEN=when)
        if result.code not in (0, -signal.SIGKILL):
            bad = f"the resumed run: {result}"
        bad = bad or bench.between(out)
    bad = bad or bench.resumed(out, jobs)
    shutil.rmtree(out, ignore_errors=True)
    return bad


def group_kill(bench, suite, everything):
    total = bench.total
    points = range(1, total + 1) if everything else spread(total, SAMPLE_POINTS, TAIL_CALLS)
    cases = []
    for n in points:
        cases.append((n, "before"))
        # With one worker "after N" leaves the disk as "before N + 1" does: the sample takes one.
        if everything or n + 1 not in points:
            cases.append((n, "after"))
        if bench.letters[n - 1] == "w":
            cases.append((n, "torn"))
    every = 5 if everything else 7
    cases = [(n, when, 1, 0 if i % every else bench.random.randint(1, total))
             for i, (n, when) in enumerate(cases)]
    run_cases(suite, "killed, then resumed (call, when, workers, second kill)",
              lambda *case: kill_case(bench, *case), cases)


def group_threads(bench, suite, everything):
    count = 200 if everything else 16
    whens = ["before", "after", "torn"]
    cases = [(bench.random.randint(1, bench.total), bench.random.choice(whens), 8,
              bench.random.choice([0, bench.random.randint(1, bench.total)]))
             for _ in range(count)]
    # With several workers a call has another number in each run, and a resumed one has fewer.
    run_cases(suite, "eight workers, killed, then resumed",
              lambda *case: kill_case(bench, *case), cases)

    def same(jobs, memory):
        out = bench.fresh()
        bad = bench.finished(out, bench.convert(out, jobs, ["--memory", memory]))
        shutil.rmtree(out, ignore_errors=True)
        return bad
    run_cases(suite, "same bytes whatever the workers and the memory", same,
              [(1, "1MiB"), (2, "2MiB"), (3, "64MiB"), (8, "192MiB"), (8, "8MiB"), (64, "1GiB")])


def fault_case(bench, number, name, onwards, jobs=1):
    out = bench.fresh()
    result = bench.convert(out, jobs, FAIL_AT=number, FAIL_ERRNO=name, FAIL_FROM=int(onwards))
    heals = name in ("EINTR", "SHORT", "EOPNOTSUPP")
    if result.code == 0:
        bad = bench.finished(out, result)
    else:
        bad = f"must not be seen: {result}" if heals else bench.refused(out, result)
    bad = bad or bench.resumed(out)
    shutil.rmtree(out, ignore_errors=True)
    return bad


def group_fault(bench, suite, everything):
    total = bench.total
    points = range(1, total + 1) if everything else spread(total, 16, 48)
    cases = []
    for n in points:
        if everything:
            cases += [(n, name, onwards) for name in ("EIO", "ENOSPC") for onwards in (False, True)]
        else:
            name = ("EIO", "ENOSPC", "EDQUOT")[n % 3]
            cases.append((n, name, n % 2 == 0))
    run_cases(suite, "call N fails (errno, and all behind it)",
              lambda *case: fault_case(bench, *case), cases)
    points = range(1, total + 1) if everything else spread(total, 14, 14)
    cases = [(n, "EINTR", False) for n in points if bench.letters[n - 1] in "owtas"]
    cases += [(1, "SHORT", True), (1, "EOPNOTSUPP", True)]
    cases += [(n, "SHORT", False) for n in points if bench.letters[n - 1] == "w"]
    run_cases(suite, "interrupted calls, short writes, no fallocate",
              lambda *case: fault_case(bench, *case), cases)
    cases = [(bench.random.randint(1, total), name, True, 8)
             for name in ("EIO", "ENOSPC", "EDQUOT") for _ in range(60 if everything else 3)]
    run_cases(suite, "call N and all behind it fail, eight workers",
              lambda *case: fault_case(bench, *case), cases)


def read_case(bench, number, name):
    out = bench.fresh()
    result = bench.convert(out, SET="read", FAIL_AT=number, FAIL_ERRNO=name)
    bad = bench.finished(out, result) if result.code == 0 else bench.refused(out, result)
    if name == "EINTR" and result.code:
        bad = f"must not be seen: {result}"
    bad = bad or bench.resumed(out)
    shutil.rmtree(out, ignore_errors=True)
    return bad


def group_read(bench, suite, everything):
    count, out = os.path.join(bench.room, "count"), bench.fresh()
    bench.convert(out, SET="read", COUNT_FILE=count)
    total = read_count(count)[0]
    points = range(1, total + 1) if everything else spread(total, 24)
    cases = [(n, "EIO") for n in points] + [(n, "EINTR") for n in points]
    run_cases(suite, "read N fails", lambda *case: read_case(bench, *case), cases)


def signal_case(bench, number, name, jobs):
    out = bench.fresh()
    result = bench.convert(out, jobs, KILL_AT=number, KILL_SIGNAL=name)
    if result.code == 0:  # too late to stop: it was sealing
        bad = bench.finished(out, result)
    else:
        bad = bench.refused(out, result)
        if not bad and (result.code != 1 or "run the same command again" not in result.err):
            bad = f"does not say how to resume: {result}"
        left = [n for n in files_of(out) if ".safetensors." in n]
        records = [n for n in files_of(out) if n.endswith(".record")]
        if not bad and left and not records:
            bad = f"staged files of unfinished items stayed: {left}"
    bad = bad or bench.resumed(out)
    shutil.rmtree(out, ignore_errors=True)
    return bad


def group_signal(bench, suite, everything):
    points = spread(bench.total, 200 if everything else 6, 3)
    cases = [(n, name, jobs) for n in points for name, jobs in (("TERM", 1), ("INT", 8))]
    run_cases(suite, "SIGTERM and SIGINT at call N (signal, workers)",
              lambda *case: signal_case(bench, *case), cases)


def unsealed(bench):
    """A conversion whose items are all recorded and none published: the first seal call is next."""
    out = bench.fresh()
    first = bench.letters.rindex("w", 0, bench.letters.rindex("rrrrr"))
    while bench.letters[first] != "r":
        first += 1
    # Behind the last record come its rename and the sync of its directory.
    bench.convert(out, KILL_AT=first + 2, KILL_WHEN="after")
    return out


def seal_case(bench, start, number, when, finisher):
    out = bench.fresh()
    shutil.copytree(start, out, symlinks=True)
    result = bench.tool.run("seal", "--out", out, shim={"KILL_AT": number, "KILL_WHEN": when})
    bad = "" if result.code == -signal.SIGKILL else f"was not killed: {result}"
    bad = bad or bench.between(out) or bench.unloadable(out)
    if finisher == "seal":
        bad = bad or bench.finished(out, bench.tool.run("seal", "--out", out))
    bad = bad or bench.resumed(out)
    shutil.rmtree(out, ignore_errors=True)
    return bad


def group_seal(bench, suite, everything):
    start, count = unsealed(bench), os.path.join(bench.room, "count")
    out = bench.fresh()
    shutil.copytree(start, out, symlinks=True)
    result = bench.tool.run("seal", "--out", out, shim={"COUNT_FILE": count})
    suite.check(not bench.finished(out, result), "seal finishes what convert left",
                bench.finished(out, result))
    again = bench.tool.run("seal", "--out", out)
    suite.check(again.code == 0 and "finished already" in again.out, "seal of a sealed set", again)
    total, letters = read_count(count)
    cases = []
    for n in range(1, total + 1):
        finisher = ("seal", "convert")[n % 2]
        cases.append((n, "before", finisher))
        if everything:
            cases += [(n, "before", ("convert", "seal")[n % 2]), (n, "after", "seal")]
        if letters[n - 1] == "w":
            cases.append((n, "torn", finisher))
    run_cases(suite, "seal killed, then finished by seal or convert",
              lambda *case: seal_case(bench, start, *case), cases)
    half = bench.fresh()
    bench.convert(half, KILL_AT=bench.total // 2)
    refusal = bench.tool.run("seal", "--out", half)
    suite.check(refusal.code == 4 and "not converted yet" in refusal.err,
                "seal of an incomplete conversion: exit 4", refusal)
    suite.check(not bench.resumed(half), "convert finishes it after that refusal")


# ---- races ----


def stopped_convert(bench, out, number, more=()):
    child = bench.tool.start(*bench.arguments(out, 1, more),
                             shim={"KILL_AT": number, "KILL_SIGNAL": "STOP"})
    if not wait_stopped(child):
        raise RuntimeError(f"did not stop at call {number}: {end_of(child)}")
    return child


def race(bench, suite, name, number):
    """One conversion stands still at a call; nobody else may touch its OUT."""
    out = bench.fresh()
    child = stopped_convert(bench, out, number)
    before = files_of(out)
    attempts = [("the same plan", bench.arguments(out)),
                ("another plan", bench.arguments(out, tp=1)),
                ("--force", bench.arguments(out, more=["--force"])),
                ("seal", ["seal", "--out", out])]
    for what, arguments in attempts:
        result = bench.tool.run(*arguments)
        suite.check(result.code == 4 and len(result.err.splitlines()) == 1,
                    f"{name}: {what} is refused with exit 4", result)
        suite.check(not difference(files_of(out), before), f"{name}: {what} changes nothing",
                    difference(files_of(out), before))
    bad = bench.finished(out, go_on(child))
    suite.check(not bad, f"{name}: the first one finishes", bad)
    shutil.rmtree(out)


def begin_beside(bench, made):
    """A conversion into an empty folder that waits for its turn while what is in `made` gets there:
    how it ends, and the folder."""
    out = bench.fresh()
    os.mkdir(out)
    turn = os.open(out, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    child = bench.tool.start(*bench.arguments(out))
    time.sleep(0.5)  # it has judged the folder; where it has not, it sees what is there at once
    for name in os.listdir(made):
        os.rename(os.path.join(made, name), os.path.join(out, name))
    os.close(turn)
    return end_of(child), out


def race_start(bench, suite):
    """A second program runs from start to end while the first is about to begin."""
    for tp, wanted, kill in ((1, "another plan was finished", {}),
                             (2, "the same plan was finished", {}),
                             (1, "another plan was begun and killed", {"KILL_AT": 600})):
        made = bench.fresh()
        bench.tool.run(*bench.arguments(made, tp=tp), shim=kill or None)
        before = files_of(made)
        result, out = begin_beside(bench, made)
        suite.check(before and result.code in ((0, 4) if tp == 2 else (4,)),
                    f"{wanted} between judging and locking: exit code", result)
        suite.check(not difference(files_of(out), before),
                    f"{wanted} between judging and locking: it is unharmed",
                    difference(files_of(out), before))
        shutil.rmtree(out)
        shutil.rmtree(made)
    out = bench.fresh()
    child = stopped_convert(bench, out, 2)  # it has its turn; .k3-partial is next
    before = files_of(out)
    other = bench.tool.run(*bench.arguments(out, tp=1))
    suite.check(other.code == 4 and "does not get on" in other.err and
                not difference(files_of(out), before),
                "one that is stopped as it begins keeps others out", other)
    bad = bench.finished(out, go_on(child))
    suite.check(not bad, "and finishes when it goes on", bad)
    shutil.rmtree(out)


def race_end(bench, suite):
    """The set is published, .k3-partial is being removed; a second program comes."""
    for number in (bench.total - 12, bench.total - 1, bench.total):
        for what in ("convert", "seal"):
            out = bench.fresh()
            child = stopped_convert(bench, out, number)
            arguments = ["seal", "--out", out] if what == "seal" else bench.arguments(out)
            second = bench.tool.run(*arguments)
            first = go_on(child)
            bad = difference(files_of(out), bench.golden)
            suite.check(first.code == 0 and second.code in (0, 4) and not bad,
                        f"{what} while the first cleans up (call {number})",
                        f"{bad}\nfirst {first}\nsecond {second}")
            shutil.rmtree(out)


def race_replace(bench, suite):
    """A program judges a finished set; meanwhile another run replaces it."""
    out = bench.fresh()
    bench.convert(out)
    for what, arguments in (("seal", ["seal", "--out", out]), ("convert", bench.arguments(out, 1))):
        count = os.path.join(bench.room, "count")
        bench.tool.run(*arguments, shim={"SET": "read", "COUNT_FILE": count})
        total = read_count(count)[0]
        for number in spread(total, 3) if what == "seal" else (total,):
            child = bench.tool.start(*arguments, shim={"SET": "read", "KILL_AT": number,
                                                       "KILL_SIGNAL": "STOP"})
            stopped = wait_stopped(child)
            # It has removed the set, and stands still before it makes the new one.
            other = bench.tool.start(*bench.arguments(out, 1, ["--force"]),
                                     shim={"KILL_AT": len(bench.golden) + 4, "KILL_SIGNAL": "STOP"})
            removed = wait_stopped(other) and "k3-shards.json" not in files_of(out)
            result = go_on(child)
            suite.check(stopped and removed and result.code == 4 and
                        result.err.count("\n") == 1,
                        f"{what} stopped at read {number}, and the set goes: exit 4", result)
            bad = bench.finished(out, go_on(other))
            suite.check(not bad, f"{what} stopped at read {number}: the other run finishes", bad)
    shutil.rmtree(out)


def group_race(bench, suite, _everything):
    first_rename = bench.letters.rindex("rrrrr") + 1
    race(bench, suite, "in the middle of an item", bench.total // 2)
    race(bench, suite, "before the first record", 20)
    race(bench, suite, "in the middle of seal", first_rename)
    race_start(bench, suite)
    race_end(bench, suite)
    race_replace(bench, suite)
    out = bench.fresh()
    children = [bench.tool.start(*bench.arguments(out, 2)) for _ in range(4)]
    results = [end_of(child) for child in children]
    bad = difference(files_of(out), bench.golden)
    suite.check(not bad and all(r.code in (0, 4) for r in results)
                and any(r.code == 0 for r in results), "four at once: one converts, none harms",
                bad + "\n" + "\n".join(map(str, results)))


GROUPS = {"kill": group_kill, "threads": group_threads, "fault": group_fault, "read": group_read,
          "signal": group_signal, "seal": group_seal, "race": group_race}


def main():
    options = parser("kill, stop and fail conversions everywhere")
    mode = options.add_mutually_exclusive_group()
    mode.add_argument("--sample", action="store_true", help="a sample, below a minute (default)")
    mode.add_argument("--all", action="store_true", help="every call: minutes")
    options.add_argument("--only", choices=GROUPS, help="one group")
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    suite = Suite()
    with scratch() as room:
        bench = Bench(tool_of(options), room, options.seed)
        if bench.result.code or not bench.total:
            print(f"not ok - the undisturbed run\n{bench.result}")
            return 1
        print(f"# {bench.total} calls change files; {len(bench.golden)} files in the golden set")
        for name, group in GROUPS.items():
            if options.only in (None, name):
                group(bench, suite, options.all)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
