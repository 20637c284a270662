"""k3-cast-report.json, from outside: its figures computed again, its bytes whatever made them; and
the histograms of inspect.

Usage: test_cast_report.py (K3 and K3_BUILD in the environment).  Values of source and set are decoded
here by the formats alone (docs/QUANTIZATION.md 1) and compared; no code of the program is used.
"""
import array
import json
import math
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from k3test import Suite, Tool, difference, files_of, parser, scratch, tool_of  # noqa: E402

REPORT = "k3-cast-report.json"
LAYER = "language_model.model.layers."
CLOSE = 1e-9
GROUP = 32  # of MXFP4, MXFP8 and INT4 here
PACKED = ("mxfp4", "int4-g32")
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M1 += [-x for x in E2M1]
KILL_POINTS, KILL_TAIL = 8, 24


def e4m3(byte):
    exponent, fraction = byte >> 3 & 15, byte & 7
    value = math.ldexp(8 + fraction, exponent - 10) if exponent else math.ldexp(fraction, -9)
    return -value if byte >> 7 else value


E4M3 = [e4m3(b) for b in range(256)]


def bf16(data):
    words = array.array("H", data)
    return [struct.unpack("<f", struct.pack("<I", w << 16))[0] for w in words]


def rounded(values):
    """To FP32, as the format's own arithmetic has it."""
    return list(array.array("f", values))


# ---- files ----


class Folder:
    """Tensors of all safetensors files of a directory that are named by `wanted`."""

    def __init__(self, directory, wanted=lambda name: True):
        self.rows = {}
        for name in sorted(os.listdir(directory)):
            if not name.endswith(".safetensors") or not wanted(name):
                continue
            path = os.path.join(directory, name)
            with open(path, "rb") as f:
                size = int.from_bytes(f.read(8), "little")
                header = json.loads(f.read(size))
            for tensor, row in header.items():
                if tensor != "__metadata__":
                    begin, end = row["data_offsets"]
                    self.rows[tensor] = (row["dtype"], row["shape"], path, 8 + size + begin,
                                         end - begin)

    def read(self, tensor):
        dtype, shape, path, at, size = self.rows[tensor]
        with open(path, "rb") as f:
            f.seek(at)
            return dtype, shape, f.read(size)

    def write(self, tensor, data):
        _, _, path, at, size = self.rows[tensor]
        assert len(data) == size
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(data)

    def matrices(self):
        return {t: r for t, r in self.rows.items() if r[0] == "BF16" and len(r[1]) == 2 and
                1 not in r[1] or t.endswith("weight_packed")}


def scales_of(folder, stem, to):
    """A function of (row, column): the scale there, in format `to`."""
    dtype, shape, data = folder.read(stem + ".weight_scale")
    if to == "fp8-block":
        values = array.array("f", data)
        return lambda r, c: values[r // 128 * shape[1] + c // 128]
    if to == "fp8-channel":
        values = array.array("f", data)
        return lambda r, c: values[r]
    values = bf16(data) if dtype == "BF16" else [math.ldexp(1, b - 127) for b in data]
    return lambda r, c: values[r * shape[1] + c // GROUP]


def values_of(folder, tensor, to):
    """Values of a matrix, row by row, that is in format `to` here."""
    stem = tensor.rsplit(".", 1)[0]
    dtype, shape, data = folder.read(stem + (".weight_packed" if to in PACKED else ".weight"))
    if to == "bf16":
        assert dtype == "BF16"
        return bf16(data)
    if dtype == "F8_E4M3":
        columns, codes = shape[1], [E4M3[b] for b in data]
    else:
        columns = shape[1] * (8 if dtype == "I32" else 2)
        nibbles = [n for b in data for n in (b & 15, b >> 4)]
        codes = [n - 8 for n in nibbles] if dtype == "I32" else [E2M1[n] for n in nibbles]
    scale = scales_of(folder, stem, to)
    return rounded(x * scale(i // columns, i % columns) for i, x in enumerate(codes))


def report_of(directory):
    with open(os.path.join(directory, REPORT), encoding="utf-8") as f:
        return json.load(f)


def near(a, b):
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


# ---- figures ----


def judge_line(line, before, after):
    """What is wrong with a line, by the values before and after; "" where nothing is."""
    errors = [x - y for x, y in zip(before, after)]
    x2, e2 = math.fsum(x * x for x in before), math.fsum(e * e for e in errors)
    if len(before) != line["values"] or len(after) != line["values"]:
        return f"{len(before)} values"
    if not near(line["sum_x2"], x2) or line["lossless"] != (e2 == 0):
        return f"sum of squares {x2}, of errors {e2}"
    if e2 == 0:
        return "" if line["sqnr_db"] is None and "sum_error2" not in line else "it is exact"
    good = near(line["sum_error2"], e2) and near(line["sqnr_db"], 10 * math.log10(x2 / e2)) and \
        near(line["rel_rmse"], math.sqrt(e2 / x2)) and \
        near(line["max_abs_error"], max(abs(e) for e in errors))
    return "" if good else f"wanted {10 * math.log10(x2 / e2)} dB, {max(map(abs, errors))}"


def check_figures(suite, tool, ckpt, where):
    """Each format, out of both sources: lines of some matrices against their values."""
    out = os.path.join(where, "figures")
    policy = ("attention=fp8-block,experts=int4-g32,shared=mxfp8,latent=fp8-channel,head=mxfp4,"
              "dense=int4-g32,*.layers.2.*.experts.*=mxfp8")
    done = tool.run("convert", ckpt, "--out", out, "--tp", "1", "--quant", policy, "--quiet")
    if not suite.check(done.code == 0, "a set with seven casts", done):
        return
    source, made, report = Folder(ckpt), Folder(out), report_of(out)
    lines = {line["tensor"]: line for line in report["tensors"]}
    wanted = {t for t in source.matrices() if lines.get(t) or "experts" in t}
    suite.check(wanted == set(lines) and len(lines) == len(report["tensors"]),
                "each matrix that is cast has one line, and nothing else has")
    wrong, seen, kinds = [], 0, {}
    for tensor, line in lines.items():
        kind = line["role"], line["to"], source.rows[tensor][1][0] > source.rows[tensor][1][1]
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] > 2 or line["values"] > 70000:
            continue
        seen += 1
        bad = judge_line(line, values_of(source, tensor, line["from"]),
                         values_of(made, tensor, line["to"]))
        if bad:
            wrong.append((tensor, f"{bad}\n{line}"))
    suite.group("SQNR, RMSE, largest error of a matrix, computed from its values", seen, wrong)
    found = {(line["from"], line["to"]) for line in lines.values()}
    suite.check(found == {("bf16", "fp8-block"), ("mxfp4", "int4-g32"), ("bf16", "mxfp8"),
                          ("bf16", "fp8-channel"), ("bf16", "mxfp4"), ("bf16", "int4-g32"),
                          ("mxfp4", "mxfp8")}, f"all casts are there: {found}")
    suite.check(seen >= 14, f"{seen} matrices were looked at")
    wrong = []
    for total in report["totals"]:
        own = [line for line in report["tensors"] if line["role"] == total["role"]]
        x2 = math.fsum(line["sum_x2"] for line in own)
        e2 = math.fsum(line.get("sum_error2", 0) for line in own)
        if (total["tensors"] != len(own) or total["values"] != sum(x["values"] for x in own) or
                total["groups"] != sum(x["groups"] for x in own) or not near(total["sum_x2"], x2) or
                not near(total["sqnr_db"], 10 * math.log10(x2 / e2)) or total["worst"] !=
                min(own, key=lambda x: x["sqnr_db"] or math.inf)["tensor"]):
            wrong.append((total["role"], total))
    suite.group("totals by role are the sums of their lines", len(report["totals"]), wrong)


def check_histograms(suite, tool, ckpt):
    """inspect --stats of a whole checkpoint: the codes and scales of MXFP4 counted here."""
    folder, codes, scales = Folder(ckpt), [0] * 16, [0] * 256
    for tensor in folder.rows:
        data = folder.read(tensor)[2] if "weight_" in tensor else b""
        for byte in range(256):
            count = data.count(byte)
            if tensor.endswith("_scale"):
                scales[byte] += count
            else:
                codes[byte & 15] += count
                codes[byte >> 4] += count
    done = tool.run("inspect", ckpt, "--stats", "--json")
    hists = {h["of"]: h for h in json.loads(done.out)["histograms"]}
    found = {b["bin"]: (b["positive"], b["negative"]) for b in hists["E2M1 codes"]["bins"]}
    suite.check(found == {f"{E2M1[c]:g}": (codes[c], codes[c + 8]) for c in range(8)},
                "inspect --stats: codes", done)
    found = {b["bin"]: (b["positive"], b["negative"]) for b in hists["E8M0 scales"]["bins"]}
    suite.check(found == {f"2^{b - 127}": (n, 0) for b, n in enumerate(scales) if n},
                "inspect --stats: scales", done)
    shapes = [row[1] for row in folder.rows.values() if row[0] == "BF16"]
    suite.check(hists["BF16 values"]["count"] == sum(math.prod(shape) for shape in shapes) and
                all(h["count"] == sum(b["positive"] + b["negative"] for b in h["bins"])
                    for h in hists.values()), "inspect --stats: every value is in one bin")


# ---- flags ----


def off_grid(shape):
    """A matrix that FP8 in blocks hits badly: 0.875 here and there makes the scale 2^-9, and all
    else lies in the middle between two codes."""
    peak, middle = struct.pack("<H", 0x3F60), struct.pack("<H", 0x3D88)  # 0.875, 17/16 * 2^-4
    return b"".join(peak if r % 16 == 0 and c % 16 == 0 else middle
                    for r in range(shape[0]) for c in range(shape[1]))


def check_flags(suite, tool, ckpt, where):
    own = os.path.join(where, "flags-ckpt")
    shutil.copytree(ckpt, own)
    folder = Folder(own)
    names = [t for t in folder.matrices() if ".self_attn." in t]
    zero = LAYER + "1.self_attn.o_proj.weight"
    for tensor in names:
        shape = folder.rows[tensor][1]
        folder.write(tensor, bytes(2 * shape[0] * shape[1]) if tensor == zero else off_grid(shape))
    out = os.path.join(where, "flags")
    args = ["convert", own, "--out", out, "--tp", "1", "--quant", "attention=fp8-block"]
    text = tool.run(*args)
    said = json.loads(tool.run(*args, "--force", "--json", "--quiet").out)
    lines = {line["tensor"]: line for line in report_of(out)["tensors"]}
    low = [t for t, line in lines.items() if line.get("low")]
    count = len(names) - 1
    suite.check(count > 22 and sorted(low) == sorted(set(names) - {zero}) and
                all(lines[t]["expected_db"] == 31.54 and lines[t]["sqnr_db"] < 30.04 for t in low),
                "matrices more than 1.5 dB below what their format should reach are flagged")
    line = lines[zero]
    suite.check(line["lossless"] and line["sqnr_db"] is None and line["sum_x2"] == 0 and
                line["zero_groups"] == line["groups"] and "low" not in line,
                "a matrix of zeros is exact, and not flagged", line)
    suite.check(said["low_tensors"] == count and len(said["low"]) == 20 and
                [x["tensor"] for x in said["low"]] == low[:20] and
                said["cast_report"] == os.path.join(out, REPORT) and
                said["casts"][0]["low_tensors"] == count, "--json names the first 20 of them", said)
    suite.check(f"and {count - 20} more: see {out}/{REPORT}" in text.out and
                text.out.count("expected 31.5, fp8-block") == 20, "so does the text", text)


# ---- bytes ----


def convert(tool, ckpt, out, *more, **shim):
    return tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quant", "nvfp4", "--quiet", *more,
                    **({"shim": shim} if shim else {}))


def check_same(suite, tool, ckpt, where):
    """The same file whatever the workers, whoever seals, and after a kill anywhere."""
    count = os.path.join(where, "count")
    single = os.path.join(where, "single")
    done = convert(tool, ckpt, single, "--jobs", "1", COUNT_FILE=count)
    if not suite.check(done.code == 0, "a single run", done):
        return None
    golden = files_of(single)
    manifest = json.loads(golden["k3-shards.json"])
    entry = [f for f in manifest["files"] if f["name"] == REPORT]
    suite.check(len(entry) == 1 and entry[0]["bytes"] == len(golden[REPORT]),
                "the manifest lists the report")
    out = os.path.join(where, "jobs")
    convert(tool, ckpt, out, "--jobs", "4")
    suite.check(not difference(files_of(out), golden), "four workers: the same set",
                difference(files_of(out), golden))
    out = os.path.join(where, "workers")
    for number in ("2", "0", "1"):
        convert(tool, ckpt, out, "--worker", number, "--workers", "3")
    suite.check(not os.path.exists(os.path.join(out, REPORT)), "no worker writes a report")
    sealed = tool.run("seal", "--out", out, "--json")
    said = json.loads(sealed.out)
    suite.check(not difference(files_of(out), golden) and
                {c["role"] for c in said["casts"]} == {"attention", "experts"},
                "three processes and seal: the same set", sealed)
    with open(count, encoding="ascii") as f:
        total = int(f.readline())
    points = {1 + i * total // KILL_POINTS for i in range(KILL_POINTS)}
    wrong = []
    for number in sorted(points | set(range(total - KILL_TAIL, total + 1))):
        out = os.path.join(where, "killed")
        killed = convert(tool, ckpt, out, "--jobs", "1", KILL_AT=number)
        again = convert(tool, ckpt, out, "--jobs", "1")
        bad = difference(files_of(out), golden)
        if killed.code == 0 or again.code or bad:
            wrong.append((f"call {number}", f"{killed}\n{again}\n{bad}"))
        shutil.rmtree(out)
    suite.group("killed at call N, then resumed: the same set", len(points) + KILL_TAIL + 1, wrong)
    return single


def check_read_back(suite, tool, ckpt, where):
    """A bit of what seal writes turns over: it publishes no report that readers would refuse."""
    whole, out, trace = (os.path.join(where, n) for n in ("staged", "flipped", "trace"))
    tool = Tool(tool.k3, os.path.join(os.path.dirname(tool.shim), "shim_fault.so"))
    convert(tool, ckpt, whole, "--worker", "0", "--workers", "1")
    shutil.copytree(whole, out)
    tool.run("seal", "--out", out, shim={"FAULT_COUNT": trace})
    with open(trace, encoding="ascii") as f:
        count = sum(line.startswith("write ") for line in f)
    refused, wrong = 0, []
    for number in range(1, count + 1):
        shutil.rmtree(out)
        shutil.copytree(whole, out)
        fault = {"FAULT_CLASS": "write", "FAULT_AT": number, "FAULT_KIND": "FLIP"}
        done = tool.run("seal", "--out", out, shim=fault)
        verified = tool.run("verify", out, "--quiet") if done.code == 0 else None
        if verified and REPORT not in verified.out + verified.err:
            continue  # in another file
        refused += 1
        if (done.code != 1 or f"{out}/{REPORT}: what was read back of it is not what was written" not in
                done.err or {REPORT, "k3-shards.json"} & set(os.listdir(out)) or
                tool.run("seal", "--out", out).code or tool.run("verify", out, "--quiet").code):
            wrong.append((f"write {number} of {count}", done))
    suite.check(refused > 0, f"{refused} of {count} writes are of the report")
    suite.group("a flipped bit of the report, then seal again", refused, wrong)


def check_resumed(suite, tool, ckpt, where):
    """What a resumed run says is of the whole set, not of what was left to do."""
    out = os.path.join(where, "resumed")
    convert(tool, ckpt, out, "--worker", "0", "--workers", "2")
    done = json.loads(convert(tool, ckpt, out, "--json").out)
    whole = json.loads(convert(tool, ckpt, os.path.join(where, "whole"), "--json").out)
    suite.check(done["resumed_items"] and done["casts"] == whole["casts"],
                "a resumed run sums up the whole set", done)


def check_touched(suite, tool, ckpt, where):
    """A source of an item that is not done may change before a resume; one of a finished item not."""
    own, out = os.path.join(where, "touched-ckpt"), os.path.join(where, "touched")
    shutil.copytree(ckpt, own)
    files = sorted(n for n in os.listdir(own) if n.endswith(".safetensors"))
    more = ("--config", "modelopt")  # one more file that no checkpoint has
    convert(tool, own, out, "--worker", "0", "--workers", "2", *more)
    made = set()
    for name in os.listdir(os.path.join(out, ".k3-partial")):
        if name.endswith(".record"):
            with open(os.path.join(out, ".k3-partial", name), "rb") as f:
                made |= {s["name"] for s in json.loads(f.readline())["sources"]}
    later = next(n for n in files if n not in made)
    os.utime(os.path.join(own, sorted(made)[0]), (1, 1))
    done = convert(tool, own, out, *more)
    suite.check(done.code == 4 and sorted(made)[0] in done.err,
                "a source of a finished item changed: refused, and it is named", done)
    shutil.copystat(os.path.join(ckpt, sorted(made)[0]), os.path.join(own, sorted(made)[0]))
    os.utime(os.path.join(own, later), (1, 1))
    done = convert(tool, own, out, *more)
    suite.check(done.code == 0 and tool.run("verify", out).code == 0,
                "a source of another item changed: resumed", done)


def check_ranks(suite, tool, ckpt, where, single):
    """Of a set of some ranks the report has the slices of these."""
    lines = {x["tensor"]: x for x in report_of(single)["tensors"]}
    halves = []
    for rank in ("0", "1"):
        out = os.path.join(where, "rank-" + rank)
        done = convert(tool, ckpt, out, "--ranks", rank)
        suite.check(done.code == 0 and tool.run("verify", out, "--quiet").code == 0,
                    f"rank {rank} alone", done)
        report = report_of(out)
        suite.check(report["ranks"] == rank, f"the report of rank {rank} names it")
        halves.append({x["tensor"]: x for x in report["tensors"]})
    wrong = []
    for tensor, line in lines.items():
        parts = [half[tensor] for half in halves if tensor in half]
        values, x2 = sum(p["values"] for p in parts), math.fsum(p["sum_x2"] for p in parts)
        whole = values == line["values"] and near(x2, line["sum_x2"])
        twice = all(p["values"] == line["values"] and p["sum_x2"] == line["sum_x2"] for p in parts)
        if not whole and not twice:  # cut between the ranks, or on both
            wrong.append((tensor, f"{line}\n{parts}"))
    suite.group("two ranks apart add up to the two together", len(lines), wrong)


def check_guards(suite, tool, ckpt, where, single):
    done = tool.run("load", single, "--device", "host", "--json")
    suite.check(done.code == 0 and json.loads(done.out)["verified_bytes"] > 0,
                "the set loads", done)
    path = os.path.join(single, REPORT)
    with open(path, "r+b") as f:
        f.seek(500)
        byte = f.read(1)
        f.seek(500)
        f.write(bytes([byte[0] ^ 1]))
    done = tool.run("verify", single)
    suite.check(done.code == 3 and REPORT in done.out, "verify finds a flipped bit in the report", done)
    done = convert(tool, ckpt, single, "--force")
    suite.check(done.code == 0 and tool.run("verify", single).code == 0, "--force makes it anew", done)
    done = tool.run("convert", ckpt, "--out", single, "--tp", "2", "--force", "--json", "--quiet")
    suite.check(done.code == 0 and not os.path.exists(path) and json.loads(done.out)["casts"] == [] and
                "cast_report" not in done.out, "a set without casts has none", done)
    out = os.path.join(where, "taken")
    os.mkdir(out)
    with open(os.path.join(out, REPORT), "w", encoding="ascii") as f:
        f.write("mine\n")
    done = convert(tool, ckpt, out)
    suite.check(done.code == 4 and REPORT in done.err and os.listdir(out) == [REPORT],
                "a file of that name in --out is not overwritten", done)
    shutil.copy(os.path.join(out, REPORT), ckpt)
    out = os.path.join(where, "replaced")
    done = convert(tool, ckpt, out)
    suite.check(done.code == 0 and report_of(out)["version"] == 0,
                "a report that lies in the checkpoint is not copied", done)
    os.remove(os.path.join(ckpt, REPORT))


def main():
    options = parser(__doc__).parse_args()
    suite = Suite()
    tool = tool_of(options)
    with scratch() as where:
        ckpt = os.path.join(where, "ckpt")
        done = tool.run("synth", ckpt, "--preset", "tiny", "--quiet")
        suite.check(done.code == 0, "synth", done)
        check_histograms(suite, tool, ckpt)
        check_figures(suite, tool, ckpt, where)
        check_flags(suite, tool, ckpt, where)
        single = check_same(suite, tool, ckpt, where)
        check_read_back(suite, tool, ckpt, where)
        check_resumed(suite, tool, ckpt, where)
        check_touched(suite, tool, ckpt, where)
        if single:
            check_ranks(suite, tool, ckpt, where, single)
            check_guards(suite, tool, ckpt, where, single)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
