"""Lists of casts whose digests are right and whose content is not: records of items (FORMAT.md 9)
and k3-cast-report.json (FORMAT.md 4.9) are held against what the plan says.

Usage: test_cast_lists.py (K3 and K3_BUILD in the environment).
"""
import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k3ref  # noqa: E402  the independent writer: digests and canonical JSON
from k3test import PARTIAL, Suite, files_of, parser, scratch, tool_of  # noqa: E402

ROW_BYTES = 72
QUANT = ["--tp", "2", "--quant", "nvfp4"]


# ---- records ----


def read_record(path):
    """Head, unit digests, casts."""
    with open(path, "rb") as f:
        head, _, raw = f.read().partition(b"\n")
    head = json.loads(head)
    at = len(raw) - head["cast_count"] * ROW_BYTES
    rows = [raw[i:i + ROW_BYTES] for i in range(at, len(raw), ROW_BYTES)]
    return head, raw[:at], rows


def write_record(path, head, units, rows):
    """The same with digests made anew, and its time kept: files are not to look newer than it."""
    times = os.stat(path)
    del head["~sha256"]
    head.update(cast_count=len(rows), casts_sha256=k3ref.sha(b"".join(rows)))
    with open(path, "wb") as f:
        f.write(k3ref.seal_json(head) + units + b"".join(rows))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def set_count(rows, offset, value):
    row = bytearray(rows[0])
    struct.pack_into("<Q", row, offset, value)
    return [bytes(row)] + rows[1:]


def set_formats(rows, source, target):
    return [rows[0][:4] + bytes([source, target]) + rows[0][6:]] + rows[1:]


def count_of(rows, offset):
    return struct.unpack_from("<Q", rows[0], offset)[0]


def another_slot(rows):
    """The last row twice, of the next slot."""
    slot = struct.unpack_from("<I", rows[-1])[0]
    return rows + [struct.pack("<I", slot + 1000) + rows[-1][4:]]


RECORDS = [
    ("all casts removed", lambda rows: [], "is missing"),
    ("the first cast removed", lambda rows: rows[1:], "is missing"),
    ("the last cast removed", lambda rows: rows[:-1], "is missing"),
    ("a value less", lambda rows: set_count(rows, 32, count_of(rows, 32) - 1), "values in"),
    ("twice the groups", lambda rows: set_count(rows, 40, count_of(rows, 40) * 2), "values in"),
    ("another format", lambda rows: set_formats(rows, 1, 3), "found bf16 to mxfp8"),
    ("a cast more", another_slot, "which is not in these parts"),
]


def check_records(suite, tool, ckpt, where):
    out = os.path.join(where, "unfinished")
    done = tool.run("convert", ckpt, "--out", out, *QUANT, "--worker", "0", "--workers", "2", "--quiet")
    suite.check(done.code == 0, "one of two workers", done)
    item = "item-2.record"
    path = os.path.join(out, PARTIAL, item)
    with open(path, "rb") as f:
        good = f.read()
    times = os.stat(path)
    part = read_record(path)[0]["parts"][0]["name"].split("-part-")[1].split(".")[0]
    commands = (["convert", ckpt, "--out", out, *QUANT, "--quiet"],
                ["convert", ckpt, "--out", out, *QUANT, "--worker", "0", "--workers", "2", "--quiet"],
                ["seal", "--out", out])
    for name, change, wanted in RECORDS:
        head, units, rows = read_record(path)
        write_record(path, head, units, change(rows))
        before = files_of(out)
        for command in commands:
            done = tool.run(*command)
            suite.check(done.code == 3 and wanted in done.err and item in done.err and
                        (f"part {part}: tensor language_model." in done.err or "more" in name) and
                        "remove it and run convert again" in done.err,
                        f"{command[0]}: a record with {name}", done)
        suite.check(files_of(out) == before, f"nothing is changed: {name}")
        with open(path, "wb") as f:
            f.write(good)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    head, units, rows = read_record(path)
    write_record(path, head, units, rows[1:])
    os.remove(path)  # what the messages advise
    done = tool.run("convert", ckpt, "--out", out, *QUANT, "--quiet")
    suite.check(done.code == 0 and tool.run("verify", out).code == 0, "the advice works", done)


def main():
    options = parser(__doc__).parse_args()
    suite = Suite()
    tool = tool_of(options)
    with scratch() as where:
        ckpt = os.path.join(where, "ckpt")
        done = tool.run("synth", ckpt, "--preset", "tiny", "--quiet")
        suite.check(done.code == 0, "synth", done)
        check_records(suite, tool, ckpt, where)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
