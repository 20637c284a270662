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


def set_sum(rows, value):
    """In the first cast that has errors: of others a sum of 0 is that of a matrix of zeros."""
    at = next(i for i, row in enumerate(rows) if struct.unpack_from("<d", row, 16)[0])
    row = bytearray(rows[at])
    struct.pack_into("<d", row, 8, value)
    return rows[:at] + [bytes(row)] + rows[at + 1:]


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


def check_numbers(suite, tool, ckpt, where):
    """Records that tell each other's items: the lines of the report would change places."""
    out = os.path.join(where, "numbers")
    for worker in "01":
        tool.run("convert", ckpt, "--out", out, *QUANT, "--worker", worker, "--workers", "2", "--quiet")
    paths = [os.path.join(out, PARTIAL, f"item-{item}.record") for item in (1, 2)]
    records = [read_record(path) for path in paths]
    for path, (head, units, rows), item in zip(paths, records[::-1], (1, 2)):
        write_record(path, head | {"item": item}, units, rows)
        os.utime(path)  # a record is younger than its files
    before = files_of(out)
    done = tool.run("seal", "--out", out)
    suite.check(done.code == 3 and "item-1.record: part 2: wanted records that are numbered by their "
                "lowest parts" in done.err and files_of(out) == before,
                "seal: records that tell each other's items", done)


# ---- reports and manifests of finished sets ----

REPORT = "k3-cast-report.json"
MANIFEST = "k3-shards.json"


def change_manifest(out, change):
    path = os.path.join(out, MANIFEST)
    with open(path, encoding="ascii") as f:
        manifest = json.load(f)
    change(manifest)
    del manifest["~sha256"]
    with open(path, "wb") as f:
        f.write(k3ref.seal_json(manifest))


def put_report(out, text):
    """The report replaced, and listed with its size and digest."""
    def enter(manifest):
        for entry in manifest["files"]:
            if entry["name"] == REPORT:
                entry.update(bytes=len(text), sha256=k3ref.sha(text))

    with open(os.path.join(out, REPORT), "wb") as f:
        f.write(text)
    change_manifest(out, enter)


def drop_report(out):
    os.remove(os.path.join(out, REPORT))

    def leave(manifest):
        manifest["files"] = [e for e in manifest["files"] if e["name"] != REPORT]

    change_manifest(out, leave)


def set_policy(out, policy):
    """Another policy in the plan of the manifest."""
    def enter(manifest):
        manifest["plan"]["policy"] = policy
        manifest["plan_sha256"] = k3ref.sha(k3ref.canonical(manifest["plan"]).encode())

    change_manifest(out, enter)


def without_line(text, number):
    lines = text.split(b"\n")
    del lines[number]
    return b"\n".join(lines)


def once(text, a, b):
    assert a in text, a
    return text.replace(a, b, 1)


def lines_of(text):
    """Beginning, lines without commas, end."""
    rest, end = text.split(b"\n],", 1)
    begin, *lines = rest.split(b"\n")
    return begin + b"\n", [x.rstrip(b",") for x in lines], b"\n]," + end


def with_lines(text, lines):
    begin, _, end = lines_of(text)
    return begin + b",\n".join(lines) + end


def swapped(text, a, b):
    return text.replace(a, b"\0").replace(b, a).replace(b"\0", b)


def layer_of(line):
    return int(line.split(b".layers.")[1].split(b".")[0])


def turned_items(text):
    """An item is a layer here."""
    lines = lines_of(text)[1]
    return with_lines(text, [x for x in lines if layer_of(x) == 2] +
                      [x for x in lines if layer_of(x) != 2])


def by_slot(text):
    """As if all were one item: experts of all layers first."""
    return with_lines(text, sorted(lines_of(text)[1], key=lambda x: b".experts." not in x))


def check_reports(suite, tool, ckpt, where):
    """Reports that are listed as they are, and tell something else than the set holds."""
    good, other, third, bad = (os.path.join(where, n) for n in ("good", "other", "third", "bad"))
    tool.run("convert", ckpt, "--out", good, *QUANT, "--quiet")
    tool.run("convert", ckpt, "--out", other, "--tp", "2", "--quant", "fp8-attn", "--quiet")
    tool.run("convert", ckpt, "--out", third, *QUANT, "--ranks", "1", "--quiet")
    with open(os.path.join(good, REPORT), "rb") as f:
        text = f.read()
    with open(os.path.join(other, REPORT), "rb") as f:
        others = f.read()
    with open(os.path.join(third, REPORT), "rb") as f:
        thirds = f.read()
    head, rest = text.split(b"\n", 1)
    first, second = rest.split(b"\n")[:2]
    cases = [
        ("of another policy", others, "it names another plan"),
        ("of another plan's head", others.split(b"\n", 1)[0] + b"\n" + rest,
         "it names another plan"),
        ("of other ranks", thirds, "its policy or its ranks"),
        ("of another policy's name", once(text, b"experts=nvfp4", b"experts=mxfp8"),
         "its policy or its ranks"),
        ("without its first line", without_line(text, 1), "its totals are not the sums"),
        ("with a line twice", text.replace(first, first + b"\n" + first), "has two lines"),
        ("with two lines of an item in another order", swapped(text, first, second),
         "stands behind one that it should come before"),
        ("with two items in another order", turned_items(text),
         "stands behind one that it should come before"),
        ("with all lines by slot", by_slot(text), "stands behind one that it should come before"),
        ("with a decibel more", once(text, b'"sqnr_db":3', b'"sqnr_db":4'),
         "does not follow from its own figures"),
        ("with values that are not those of the matrix",
         once(text, b'"values":8192,"groups":2', b'"values":8191,"groups":2'), "its totals"),
        ("with a tensor that is none", once(text, b"self_attn.q_proj", b"self_attn.z_proj"),
         "wanted a tensor of the model"),
        ("with a tensor that is not cast", once(text, b"self_attn.q_proj.weight",
                                                b"input_layernorm.weight"),
         "it does not fit the policy"),
        ("with another format", once(text, b'"to":"fp8-block"', b'"to":"fp8-channel"'),
         "it does not fit the policy"),
        ("with a member more", once(text, b'"role"', b'"rule":1,"role"'),
         "does not follow from its own figures"),
        ("with a wrong total", text.replace(b'"totals":[\n{"role":"attention","to":"fp8-block",'
                                            b'"tensors":36', b'"totals":[\n{"role":"attention",'
                                            b'"to":"fp8-block","tensors":35'),
         "its totals are not the sums"),
        ("that is cut short", text[:len(text) // 2], "the file ends within a line"),
        ("that is cut behind a line", text[:len(head) + 1 + len(first)],
         "the file ends within a line"),
        ("that is empty", b"", "no report of casts"),
        ("that is something else", b"[1]\n", "no report of casts"),
        ("with something behind it", text + b"\n", "its totals are not the sums"),
    ]
    for name, forged, wanted in cases:
        suite.check(forged != text, f"a report {name} is another")
        shutil.copytree(good, bad)
        put_report(bad, forged)
        for command in (["verify", bad], ["seal", "--out", bad],
                        ["convert", ckpt, "--out", bad, *QUANT, "--quiet"]):
            done = tool.run(*command)
            said = done.out + done.err  # verify names problems in its report
            suite.check(done.code == 3 and wanted in said and REPORT in said and
                        "convert again with --force" in said,
                        f"{command[0]}: a report {name}", done)
        shutil.rmtree(bad)
    shutil.copytree(good, bad)
    drop_report(bad)
    done = tool.run("verify", bad)
    suite.check(done.code == 0 and "the set has no report of its casts" in done.out,
                "a set of a build before there were reports is good, and verify says so", done)


def check_sums(suite, tool, ckpt, where):
    """Finite sums of squares that make no finite decibels: no report is written of them."""
    out = os.path.join(where, "sums")
    for worker in "01":
        tool.run("convert", ckpt, "--out", out, *QUANT, "--worker", worker, "--workers", "2", "--quiet")
    path = os.path.join(out, PARTIAL, "item-2.record")
    head, units, rows = read_record(path)
    for value in (1e308, 0.0):
        write_record(path, dict(head), units, set_sum(rows, value))
        before = files_of(out)
        done = tool.run("seal", "--out", out)
        suite.check(done.code == 3 and "sums of squares that values" in done.err and
                    "item-2.record" in done.err and files_of(out) == before,
                    f"seal: a record whose sum of squares is {value}", done)


def check_missing(suite, tool, ckpt, where):
    """A report that is right in itself, without the one matrix of a role and without its totals."""
    out = os.path.join(where, "missing")
    tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quant", "nvfp4,head=fp8-block", "--quiet")
    with open(os.path.join(out, REPORT), "rb") as f:
        lines = f.read().split(b"\n")
    kept = [x for x in lines if b"lm_head" not in x]  # its totals name it too: the worst
    end = kept.index(b'],"totals":[')
    kept[end - 1] = kept[end - 1].rstrip(b",")
    kept[-3] = kept[-3].rstrip(b",")
    put_report(out, b"\n".join(kept))
    for command in (["verify", out], ["seal", "--out", out]):
        done = tool.run(*command)
        said = done.out + done.err
        suite.check(done.code == 3 and len(lines) == len(kept) + 2 and "is missing" in said and
                    "lm_head.weight is cast to fp8-block" in said,
                    f"{command[0]}: a report without the only matrix of a role", done)


def check_policies(suite, tool, ckpt, where):
    """A manifest whose policy the parts contradict."""
    out = os.path.join(where, "policy")
    for made, told in (("nvfp4", "attention=fp8-block"), ("fp8-attn", "verbatim"),
                       ("verbatim", "attention=fp8-block"),
                       ("nvfp4", "attention=fp8-block,experts=mxfp8"),
                       ("nvfp4", "attention=fp8-block,experts=nvfp4,oow=snap"),
                       ("nvfp4", "attention=fp8-block,experts=nvfp4,config=modelopt")):
        done = tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quant", made, "--quiet")
        suite.check(done.code == 0, f"{made}", done)
        set_policy(out, told)
        for command in (["seal", "--out", out], ["verify", out], ["load", out],
                        ["convert", ckpt, "--out", out, "--tp", "2", "--quant", made]):
            done = tool.run(*command)
            suite.check(done.code == (4 if command[0] == "convert" else 3),
                        f"{command[0]}: {made} that is said to be {told}", done)
        shutil.rmtree(out)


def check_plans(suite, tool, ckpt, where):
    """An unfinished conversion whose plan and records tell another policy than its parts."""
    out = os.path.join(where, "plans")
    for worker in "01":
        tool.run("convert", ckpt, "--out", out, *QUANT, "--worker", worker, "--workers", "2", "--quiet")
    folder = os.path.join(out, PARTIAL)
    path = os.path.join(folder, "plan.json")
    with open(path, encoding="ascii") as f:
        plan = json.load(f)
    plan["policy"] += ",oow=snap"
    text = k3ref.canonical(plan).encode()
    with open(path, "wb") as f:
        f.write(text)
    for name in os.listdir(folder):
        if name.startswith("item-") and name.endswith(".record"):
            head, units, rows = read_record(os.path.join(folder, name))
            head["plan_sha256"] = k3ref.sha(text)
            write_record(os.path.join(folder, name), head, units, rows)
    before = files_of(out)
    for command in (["seal", "--out", out],
                    ["convert", ckpt, "--out", out, *QUANT, "--oow", "snap", "--quiet"]):
        done = tool.run(*command)
        suite.check(done.code == 3 and "its header does not say part 0 of rank 0" in done.err and
                    "convert --force" in done.err,
                    f"{command[0]}: parts of another policy than plan and records tell", done)
        suite.check(files_of(out) == before, "nothing is moved")
    done = tool.run(*command, "--force")
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
        check_sums(suite, tool, ckpt, where)
        check_numbers(suite, tool, ckpt, where)
        check_reports(suite, tool, ckpt, where)
        check_missing(suite, tool, ckpt, where)
        check_plans(suite, tool, ckpt, where)
        check_policies(suite, tool, ckpt, where)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
