"""A conversion spread over workers: the same files as one run, whatever happens to the workers.

Usage: test_workers.py (K3 and K3_BUILD in the environment).  Five workers, one of them killed and
run again, one run twice at the same time, then seal; a seal that comes too early; workers of other
parameters, of another tool build; a plain run over what workers left; .k3-partial put away under a
run.
"""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k3ref  # noqa: E402  canonical JSON of a record
from k3test import Suite, Tool, difference, end_of, files_of, mini_ckpt  # noqa: E402
from k3test import PARTIAL, go_on, parser, scratch, tool_of, wait_stopped  # noqa: E402

LAYOUT = ["--tp", "2"]


def worker(tool, ckpt, out, number, count, **more):
    return tool.run("convert", ckpt, "--out", out, *LAYOUT, "--quiet", "--worker", str(number),
                    "--workers", str(count), **more)


def check_five(tool, suite, room, ckpt, golden):
    out = os.path.join(room, "five")
    early = worker(tool, ckpt, out, 0, 5)
    suite.check(early.code == 0 and "seal" in early.out, "a worker says what comes next", early)
    sealed = tool.run("seal", "--out", out)
    suite.check(sealed.code == 4 and "rank 0 part 1" in sealed.err,
                "a seal that comes too early lists what is missing, exit 4", sealed)
    killed = worker(tool, ckpt, out, 1, 5, shim={"KILL_AT": 12})
    suite.check(killed.code != 0, "worker 1 is killed", killed)
    twice = [tool.start("convert", ckpt, "--out", out, *LAYOUT, "--quiet", "--worker", "2",
                        "--workers", "5") for _ in range(2)]
    others = [tool.start("convert", ckpt, "--out", out, *LAYOUT, "--quiet", "--worker", n,
                         "--workers", "5") for n in ("3", "4")]
    for child in twice + others:
        result = end_of(child)
        suite.check(result.code == 0, "a worker beside others ends well", result)
    suite.check(not os.path.exists(os.path.join(out, "k3-shards.json")), "no worker seals")
    again = worker(tool, ckpt, out, 1, 5)
    suite.check(again.code == 0, "the killed worker, run again", again)
    sealed = tool.run("seal", "--out", out)
    suite.check(sealed.code == 0 and not difference(files_of(out), golden),
                "sealed: the files of a single run", sealed)
    sealed = tool.run("seal", "--out", out)
    suite.check(sealed.code == 0 and "already" in sealed.out, "sealing twice is fine", sealed)
    late = worker(tool, ckpt, out, 3, 5)
    suite.check(late.code == 0 and "finished already" in late.out, "a worker that comes late", late)


def check_refusals(tool, suite, room, ckpt, golden):
    out = os.path.join(room, "other")
    for args, code in ((["--worker", "1"], 2), (["--workers", "2"], 2),
                       (["--worker", "2", "--workers", "2"], 2),
                       (["--worker", "0", "--workers", "2", "--force"], 2)):
        result = tool.run("convert", ckpt, "--out", out, *LAYOUT, *args)
        suite.check(result.code == code, " ".join(args) + f": exit {code}", result)
    worker(tool, ckpt, out, 0, 2)
    result = tool.run("convert", ckpt, "--out", out, "--tp", "4", "--worker", "1", "--workers", "2")
    suite.check(result.code == 4, "a worker of another layout is refused", result)
    records = [n for n in os.listdir(os.path.join(out, ".k3-partial")) if n.endswith(".record")]
    suite.check(len(records) == 3, f"worker 0 of 2 left records of its items: {records}")
    path = os.path.join(out, ".k3-partial", records[0])
    with open(path, "rb") as f:
        data = f.read()
    end = data.index(b"\n") + 1
    head = k3ref.check_sealed_json(data[:end])
    head["tool"] += ".other"
    with open(path, "wb") as f:
        f.write(k3ref.seal_json(head) + data[end:])
    for command in (["convert", ckpt, "--out", out, *LAYOUT], ["seal", "--out", out]):
        result = tool.run(*command)
        suite.check(result.code == 4 and head["tool"] in result.err,
                    command[0] + ": a record of another build is refused, both named", result)
    with open(path, "wb") as f:
        f.write(data)
    result = tool.run("convert", ckpt, "--out", out, *LAYOUT)
    suite.check(result.code == 0 and not difference(files_of(out), golden),
                "a plain run finishes what workers began", result)


def check_put_away(tool, suite, room, ckpt, golden):
    """Its .k3-partial goes elsewhere under a run: it must not publish beside the next one."""
    out, away = (os.path.join(room, n) for n in ("away", "away.partial"))
    first = tool.start("convert", ckpt, "--out", out, *LAYOUT, "--quiet", "--jobs", "1",
                       shim={"KILL_AT": 40, "KILL_SIGNAL": "STOP"})
    suite.check(wait_stopped(first), "a run stopped in the middle")
    os.rename(os.path.join(out, PARTIAL), away)
    second = tool.run("convert", ckpt, "--out", out, *LAYOUT, "--quiet")
    suite.check(second.code == 0, "another run begins, and ends, where .k3-partial is gone", second)
    result = go_on(first)
    suite.check(result.code == 4 and "removed or replaced" in result.err and
                not difference(files_of(out), golden),
                "the first one publishes nothing over it, exit 4", result)


def check_mixed(tool, suite, room, ckpt, golden):
    """A worker that has not finished an item yet keeps those of another checkpoint out."""
    other, out = (os.path.join(room, n) for n in ("ckpt2", "mixed"))
    shutil.copytree(ckpt, other, symlinks=True)
    for name in os.listdir(other):
        os.utime(os.path.join(other, name), (1, 1))
    tried = 0
    for at in range(4, 60):
        shutil.rmtree(out, ignore_errors=True)
        first = tool.start("convert", ckpt, "--out", out, *LAYOUT, "--quiet", "--jobs", "1",
                           "--worker", "0", "--workers", "2",
                           shim={"KILL_AT": at, "KILL_SIGNAL": "STOP"})
        is_stopped = wait_stopped(first)
        names = os.listdir(os.path.join(out, PARTIAL)) if is_stopped else []
        if is_stopped and "sources" in names and not any(n.endswith(".record") for n in names):
            result = worker(tool, other, out, 1, 2)
            suite.check(result.code == 4 and ("another worker" in result.err or
                                              "does not get on" in result.err),
                        f"stopped at {at}: a worker with another checkpoint is refused", result)
            tried += "another worker" in result.err
        result = go_on(first) if is_stopped else end_of(first)
        suite.check(result.code == 0, f"stopped at {at}: the first one goes on", result)
        if tried == 2:
            break
    suite.check(tried == 2, "a worker was stopped before its first item was finished")
    result = worker(tool, ckpt, out, 1, 2)
    suite.check(result.code == 0, "a worker with the same checkpoint", result)
    sealed = tool.run("seal", "--out", out)
    suite.check(sealed.code == 0 and not difference(files_of(out), golden),
                "sealed: the files of a single run", sealed)


def check_started_together(tool, suite, room, ckpt):
    """Of two workers of two conversions that start at once in an empty folder one is refused."""
    for turn in range(6):
        out = os.path.join(room, f"together{turn}")
        other = ["--tp", "1"] if turn % 2 else ["--tp", "2", "--ranks", "0"]
        more = (LAYOUT, other)
        both = [tool.start("convert", ckpt, "--out", out, *args, "--quiet", "--worker", str(n),
                           "--workers", "2") for n, args in enumerate(more)]
        codes = sorted(end_of(child).code for child in both)
        suite.check(codes == [0, 4], f"two conversions at once: {codes}")


def check_places(tool, suite, room, ckpt):
    """Parts are staged by the number of their directory: other directories would lose them."""
    a, b, c = (os.path.join(room, name) for name in "abc")
    begun = tool.run("convert", ckpt, "--out", a, "--out", b, *LAYOUT, "--worker", "0",
                     "--workers", "2")
    suite.check(begun.code == 0 and f"seal --out {a} --out {b}" in begun.out,
                "a worker names all directories for seal", begun)
    for dirs in ((b, a), (a,), (b,), (a, b, c)):
        args = [x for d in dirs for x in ("--out", d)]
        for result in (tool.run("convert", ckpt, *args, *LAYOUT), tool.run("seal", *args)):
            suite.check(result.code == 4 and "order of the first run" in result.err or
                        (c in dirs and result.code in (1, 4)),
                        f"{result.args if hasattr(result, 'args') else dirs}: refused", result)
    result = tool.run("convert", ckpt, "--out", a, "--out", b, *LAYOUT, "--json")
    suite.check(result.code == 0 and '"resumed_items":0' not in result.out,
                "in the first order the finished items are kept", result)


def check_without_locks(tool, suite, room, ckpt):
    """Where the file system has no locks, nobody can say that what another run has just begun is
    not in use: it stays, and other options are refused.  With locks it makes way."""
    faulty = Tool(tool.k3, os.path.join(os.path.dirname(tool.shim), "shim_fault.so"))
    no_locks = {"fault_class": "lock", "fault_at": 1, "fault_from": 1, "fault_kind": "ENOLCK"}
    out = os.path.join(room, "idle")
    begun = tool.run("convert", ckpt, "--out", out, *LAYOUT, "--worker", "6", "--workers", "7")
    suite.check(begun.code == 0, "a worker that has nothing to do", begun)
    before = files_of(out)
    other = ["convert", ckpt, "--out", out, "--tp", "4", "--quiet"]
    refused = faulty.run(*other, shim=no_locks)
    suite.check(refused.code == 4 and "unfinished conversion" in refused.err,
                "without locks other options are refused, exit 4", refused)
    suite.check(not difference(files_of(out), before), "and what was begun stays")
    taken = faulty.run(*other)
    suite.check(taken.code == 0, "with locks they are not", taken)


def main():
    tool, suite = tool_of_args(), Suite()
    with scratch() as room:
        ckpt = mini_ckpt(os.path.join(room, "ckpt"))
        single = os.path.join(room, "single")
        result = tool.run("convert", ckpt, "--out", single, *LAYOUT)
        suite.check(result.code == 0, "a single run", result)
        golden = files_of(single)
        check_five(tool, suite, room, ckpt, golden)
        check_refusals(tool, suite, room, ckpt, golden)
        check_put_away(tool, suite, room, ckpt, golden)
        check_places(tool, suite, room, ckpt)
        check_mixed(tool, suite, room, ckpt, golden)
        check_started_together(tool, suite, room, ckpt)
        check_without_locks(tool, suite, room, ckpt)
    return suite.finish()


def tool_of_args():
    return tool_of(parser("a conversion spread over workers").parse_args())


if __name__ == "__main__":
    sys.exit(main())
