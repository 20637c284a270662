"""Room on the disk: judged before anything is written, and of --force before anything is removed.

Usage: test_room.py (K3 and K3_BUILD in the environment).  tests/shim_fault.so says how much is free.
"""
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from k3test import PARTIAL, Suite, Tool, difference, files_of, mini_ckpt  # noqa: E402
from k3test import parser, scratch, tool_of  # noqa: E402

NEEDED = re.compile(r"are needed, .* are free")


def room_of(directory, *begins):
    """Bytes on the disk of the files below it whose names begin so."""
    return sum(os.lstat(os.path.join(at, name)).st_blocks * 512
               for at, _, names in os.walk(directory) for name in names
               if name.startswith(begins or ""))


def need_of(tool, ckpt, *args):
    """The least that may be free for a conversion, found as a user would: by trying."""
    low, high = 0, 1 << 30
    while high - low > 4096:
        middle = (low + high) // 2 // 4096 * 4096
        out = f"{ckpt}.{middle}"
        done = tool.run("convert", ckpt, "--out", out, "--quiet", *args, shim={"fault_free": middle})
        shutil.rmtree(out, ignore_errors=True)
        low, high = (middle, high) if done.code else (low, middle)
    return high


def check_force(tool, suite, room, ckpt):
    args = ["--tp", "2", "--quiet"]
    need = need_of(tool, ckpt, *args)
    out = os.path.join(room, "set")
    done = tool.run("convert", ckpt, "--out", out, *args)
    suite.check(done.code == 0, "a set to be replaced", done)
    kept, freed = files_of(out), room_of(out, "model-rank-", "source-headers.zst")
    again = ["convert", ckpt, "--out", out, "--force", *args]
    short = tool.run(*again, shim={"fault_free": max(need - freed - 8192, 0)})
    suite.check(short.code == 4 and NEEDED.search(short.err) and "nothing was removed" in short.err,
                "--force with too little room is refused", short)
    suite.check(not difference(files_of(out), kept), "and leaves the old set as it was")
    suite.check(not os.path.exists(os.path.join(out, PARTIAL)), "and nothing beside it")
    # names that lead to the same bytes elsewhere: removing them makes no room
    linked = os.path.join(room, "linked")
    shutil.copytree(out, linked, copy_function=os.link)
    short = tool.run(*again, shim={"fault_free": need - (1 << 20)})
    suite.check(short.code == 4 and "gives 0 B" in short.err, "links elsewhere give no room", short)
    suite.check(not difference(files_of(out), kept), "and the old set is as it was")
    shutil.rmtree(linked)
    # free room that the shim does not let grow: the first look passes, the one after removal not
    short = tool.run(*again, shim={"fault_free": max(need - freed + 8192, 0)})
    suite.check(short.code == 4 and NEEDED.search(short.err) and "removed" not in short.err,
                "what --force frees is counted", short)
    short = tool.run(*again, shim={"fault_free": need})
    suite.check(short.code == 0, "with room for all of it --force goes on", short)
    verified = tool.run("verify", out, "--against", ckpt, "--quiet")
    suite.check(verified.code == 0, "and the new set is good", verified)


def check_unfinished(tool, suite, room, ckpt):
    """What an unfinished conversion holds counts too."""
    out = os.path.join(room, "begun")
    tool.run("convert", ckpt, "--out", out, "--tp", "2", "--worker", "0", "--workers", "2", "--quiet")
    before, freed = files_of(out), room_of(os.path.join(out, PARTIAL))
    short = tool.run("convert", ckpt, "--out", out, "--tp", "4", "--force", "--quiet",
                     shim={"fault_free": 0})
    said = re.search(r"what --force removes gives ([0-9.]+) MB", short.err)
    suite.check(short.code == 4 and said and abs(float(said[1]) * 1e6 - freed) < 0.02e6,
                "an unfinished conversion is counted, and refused with its room", (short, freed))
    suite.check(not difference(files_of(out), before), "and stays as it was")


def main():
    options = parser("room on the disk").parse_args()
    tool, suite = tool_of(options), Suite()
    tool = Tool(tool.k3, os.path.join(os.path.dirname(tool.shim), "shim_fault.so"))
    with scratch() as room:
        ckpt = mini_ckpt(os.path.join(room, "ckpt"))
        check_force(tool, suite, room, ckpt)
        check_unfinished(tool, suite, room, ckpt)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
