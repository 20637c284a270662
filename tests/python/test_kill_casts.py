"""test_kill_casts.py: conversions with casts, killed and spread, end as the undisturbed one.

Purpose   what test_kill.py shows of verbatim conversions, for those that read a matrix first (the
          survey) and write several tensors for one: rank 0 of 16, and samples of larger ones.
Groups    kill     SIGKILL before every call that changes files (the sample: every second one, and all
                   that end a conversion), and in the middle of writes
          threads  the same with eight workers over all ranks, a sample
          read     the Nth read fails, the survey's too
          same     any --jobs and --memory, workers and seal, --ranks: the same bytes
Oracle    an undisturbed run; every file is compared.
Usage     test_kill_casts.py --sample | --all [--only GROUP] [--seed N]   (--sample: half a minute)
Output    TAP lines, then `N passed, N failed`; exit 0 only when none failed.
"""

import os
import shutil
import sys

from k3test import MANIFEST, Suite, difference, files_of, mini_ckpt, parser, scratch, tool_of
from test_kill import TAIL_CALLS, Bench, kill_case, read_count, run_cases, spread

ONE_RANK = ("--tp", "16", "--experts", "ep", "--ranks", "0", "--quant", "nvfp4")
ALL_RANKS = ("--tp", "2", "--quant", "nvfp4")
POLICIES = ("nvfp4", "experts=fp8-block,head=nvfp4", "experts=int4-g32,shared=mxfp8")
TORN_EVERY = 6  # of the writes, which are most of the calls, in the sample
SAME = ((1, "1MiB"), (2, "256MiB"), (4, "8MiB"))  # --jobs, --memory


class CastBench(Bench):
    """A bench whose conversions cast."""

    def __init__(self, tool, room, seed, options):
        self.options = options
        super().__init__(tool, room, seed, mini_ckpt(os.path.join(room, "ckpt"), finite=True))

    def arguments(self, out, jobs=1, more=(), tp=None):
        return ["convert", self.ckpt, "--out", out, "--quiet", "--jobs", str(jobs), *self.options,
                *more]


def bench_of(tool, room, seed, name, options):
    place = os.path.join(room, name)
    os.mkdir(place)
    return CastBench(tool, place, seed, options)


def group_kill(suite, tool, room, seed, everything):
    bench = bench_of(tool, room, seed, "kill", ONE_RANK)
    if not suite.check(bench.result.code == 0 and bench.total > 300, "the undisturbed run",
                       bench.result):
        return
    print(f"# {bench.total} calls change files; {len(bench.golden)} files in the golden set")
    cases, writes = [], 0
    points = spread(bench.total, bench.total // 2, TAIL_CALLS)
    for n in range(1, bench.total + 1) if everything else points:
        cases.append((n, "before", 1, 0 if n % 9 else bench.random.randint(1, bench.total)))
        writes += bench.letters[n - 1] == "w"
        if bench.letters[n - 1] == "w" and (everything or writes % TORN_EVERY == 0):
            cases.append((n, "torn", 1, 0))
    run_cases(suite, "killed, then resumed (call, when, workers, second kill)",
              lambda *case: kill_case(bench, *case), cases)


def group_threads(suite, tool, room, seed, everything):
    bench = bench_of(tool, room, seed, "threads", ALL_RANKS)
    cases = [(bench.random.randint(1, bench.total), bench.random.choice(["before", "torn"]), 8,
              bench.random.choice([0, bench.random.randint(1, bench.total)])) for _ in range(100 if everything else 10)]
    run_cases(suite, "eight workers, killed, then resumed",
              lambda *case: kill_case(bench, *case), cases)


def group_read(suite, tool, room, seed, everything):
    bench = bench_of(tool, room, seed, "read", ONE_RANK)
    count, out = os.path.join(bench.room, "count"), bench.fresh()
    bench.convert(out, SET="read", COUNT_FILE=count)
    total = read_count(count)[0]

    def case(number, name):
        out = bench.fresh()
        result = bench.convert(out, SET="read", FAIL_AT=number, FAIL_ERRNO=name)
        bad = bench.finished(out, result) if result.code == 0 else bench.refused(out, result)
        if result.code and name == "EINTR":
            bad = f"must not be seen: {result}"
        bad = bad or bench.resumed(out)
        shutil.rmtree(out, ignore_errors=True)
        return bad
    points = range(1, total + 1) if everything else spread(total, 24)
    run_cases(suite, "read N fails", case,
              [(n, "EIO") for n in points] + [(n, "EINTR") for n in points[::4]])


def same_jobs(suite, tool, ckpt, room, policy, golden):
    def case(jobs, memory):
        out = os.path.join(room, f"{jobs}-{memory}")
        done = tool.run("convert", ckpt, "--out", out, "--quiet", "--tp", "2", "--quant", policy,
                        "--jobs", str(jobs), "--memory", memory)
        return str(done) if done.code else difference(files_of(out), golden)
    run_cases(suite, f"{policy}: same bytes whatever --jobs and --memory", case, SAME)


def same_workers(suite, tool, ckpt, room, policy, golden):
    out = os.path.join(room, "workers")
    base = ["convert", ckpt, "--out", out, "--quiet", "--tp", "2", "--quant", policy]
    killed = tool.run(*base, "--worker", "1", "--workers", "3", shim={"KILL_AT": 40})
    done = [tool.run(*base, "--worker", str(i), "--workers", "3") for i in (2, 0, 1)]
    done.append(tool.run("seal", "--out", out))
    suite.check(killed.code < 0 and all(d.code == 0 for d in done) and
                not difference(files_of(out), golden),
                f"{policy}: three workers, one of them killed and run again, then seal",
                "\n".join(map(str, [killed, *done])))


def same_ranks(suite, tool, ckpt, room, policy, golden):
    """What some ranks get does not depend on which others are made beside them (but the report,
    which is of these ranks: test_cast_report.py)."""
    own = (MANIFEST, "k3-cast-report.json")
    whole = {n: d for n, d in golden.items() if n not in own}
    for ranks in ("0", "1"):
        out = os.path.join(room, "ranks" + ranks)
        done = tool.run("convert", ckpt, "--out", out, "--quiet", "--tp", "2", "--quant", policy,
                        "--ranks", ranks)
        found = {n: d for n, d in files_of(out).items() if n not in own}
        wanted = {n: d for n, d in whole.items()
                  if not n.startswith("model-rank-") or n.startswith(f"model-rank-{ranks}")}
        suite.check(done.code == 0 and len(found) > 8 and not difference(found, wanted),
                    f"{policy}: --ranks {ranks}: the files that all ranks together have",
                    f"{done}\n{difference(found, wanted)}")


def group_same(suite, tool, room, _seed, _everything):
    ckpt = mini_ckpt(os.path.join(room, "same-ckpt"), finite=True)
    for number, policy in enumerate(POLICIES):
        place = os.path.join(room, f"same-{number}")
        os.mkdir(place)
        out = os.path.join(place, "golden")
        done = tool.run("convert", ckpt, "--out", out, "--quiet", "--tp", "2", "--quant", policy,
                        "--jobs", "1")
        if suite.check(done.code == 0, f"{policy}: the undisturbed run", done):
            golden = files_of(out)
            for check in (same_jobs, same_workers, same_ranks):
                check(suite, tool, ckpt, place, policy, golden)
        shutil.rmtree(place)


GROUPS = {"kill": group_kill, "threads": group_threads, "read": group_read, "same": group_same}


def main():
    options = parser("kill and spread conversions with casts")
    mode = options.add_mutually_exclusive_group()
    mode.add_argument("--sample", action="store_true", help="a sample, half a minute (default)")
    mode.add_argument("--all", action="store_true", help="every call: minutes")
    options.add_argument("--only", choices=GROUPS, help="one group")
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    suite, tool = Suite(), tool_of(options)
    with scratch() as room:
        for name, group in GROUPS.items():
            if options.only in (None, name):
                group(suite, tool, room, options.seed, options.all)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
