"""test_cast_refusals.py: checkpoints that a cast must not take as they are, and what --oow makes.

Purpose   one byte of a checkpoint makes an exact cast impossible, a scale NaN or a weight infinite:
          convert must say where, in the tensor of the checkpoint, whatever the rank that met it, and
          leave nothing that looks finished; mended, the same command ends as it should, and with the
          --quant that the refusal offers the checkpoint converts as it is.
          --oow requant and snap: counted, and the values of docs/QUANTIZATION.md 5.
          Global scales: w1 and w3 of an expert, and matrices of one view, share theirs.
Oracle    the bytes of checkpoint and set, read here; k3ref.py, which computes all of it where numpy
          is there.
Usage     test_cast_refusals.py (K3 and K3_BUILD in the environment)
"""

import json
import os
import re
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k3ref  # noqa: E402
from k3test import MANIFEST, Suite, difference, files_of, mini_ckpt, parser  # noqa: E402
from k3test import scratch, tool_of  # noqa: E402

LAYER = "language_model.model.layers.2."
EXPERT = LAYER + "block_sparse_moe.experts.11."
ROW, GROUP = 9, 13  # of w2 [32, 512]: in the columns of the second of two ranks
W2_GROUPS = 16
GROUP_BYTES = 16
# Code of a quarter of a value, to nearest even: what requant makes two steps beyond the window.
QUARTER = (0, 0, 0, 1, 1, 2, 2, 3)
# Twice a value, as E4M3 in units of 2^-9: what snap makes of it in a block, and half of it (nearest
# even): what requant makes two steps beyond the window.
TWICE, HALF = (0, 1, 2, 3, 4, 6, 8, 12), (0, 0, 0, 1, 1, 2, 2, 3)


class Tensors:
    """Tensors of safetensors files in a folder: bytes by name, and one byte changed."""

    def __init__(self, directory, prefix=""):
        self.places = {}
        for name in sorted(os.listdir(directory)):
            if not name.endswith(".safetensors") or not name.startswith(prefix):
                continue
            path = os.path.join(directory, name)
            with open(path, "rb") as f:
                length = int.from_bytes(f.read(8), "little")
                header = json.loads(f.read(length))
            for tensor, entry in header.items():
                if tensor != "__metadata__":
                    begin, end = entry["data_offsets"]
                    self.places[tensor] = (path, 8 + length + begin, end - begin)

    def read(self, name, at=0, size=None):
        path, begin, whole = self.places[name]
        with open(path, "rb") as f:
            f.seek(begin + at)
            return f.read(whole - at if size is None else size)

    def poke(self, name, at, data):
        """What was there."""
        path, begin, _ = self.places[name]
        with open(path, "r+b") as f:
            f.seek(begin + at)
            was = f.read(len(data))
            f.seek(begin + at)
            f.write(data)
        return was


class Bench:
    def __init__(self, suite, tool, room):
        self.suite, self.tool, self.room, self.count = suite, tool, room, 0
        self.ckpt = mini_ckpt(os.path.join(room, "ckpt"), finite=True)
        self.source = Tensors(self.ckpt)

    def fresh(self):
        self.count += 1
        return os.path.join(self.room, f"out-{self.count}")

    def convert(self, out, policy, *more, tp=2):
        return self.tool.run("convert", self.ckpt, "--out", out, "--tp", str(tp), "--quant", policy,
                             "--quiet", "--json", *more)

    def kmax(self, *matrices):
        """The largest scale of a group that is not zero."""
        found = 0
        for matrix in matrices:
            codes = self.source.read(matrix + ".weight_packed")
            for g, scale in enumerate(self.source.read(matrix + ".weight_scale")):
                group = codes[g * GROUP_BYTES : (g + 1) * GROUP_BYTES]
                if any(byte & 0x77 for byte in group):
                    found = max(found, scale)
        return found

    def refused(self, out, result, code, says):
        """Why this is no refusal with that exit code and those words, or ""."""
        message = json.loads(result.out)["message"] if result.out else ""
        if result.code != code or any(word not in message for word in says):
            return f"wanted exit {code} and {says}: {result}"
        found = files_of(out) if os.path.isdir(out) else {}
        visible = [n for n in found if not n.startswith(".k3-partial")]
        if visible:
            return f"these look finished: {visible}"
        if found and self.tool.run("verify", "--quick", out).code != 3:
            return "verify takes it for a set"
        return ""


def offer_of(result):
    """(policy, options) that a refusal offers to be given instead."""
    message = json.loads(result.out)["message"] if result.out else ""
    found = re.search(r", like( --force)? --quant '([^']+)'", message)
    return (found.group(2), ["--force"] if found.group(1) else []) if found else (None, [])


def check_offer(bench, policy):
    """Why what a refusal offers does not convert into the same place, or ""."""
    out = bench.fresh()
    refused = bench.convert(out, policy)
    offer, more = offer_of(refused)
    if refused.code not in (3, 4) or not offer:
        return f"refused without an offer: {refused}"
    done = bench.convert(out, offer, *more)
    good = done.code == 0 and bench.tool.run("verify", out).code == 0
    shutil.rmtree(out, ignore_errors=True)
    return "" if good else f"{offer}: {done}"


def codes_of(data):
    return [nibble for byte in data for nibble in (byte & 15, byte >> 4)]


def window_of(bench, policy):
    """(window, kmax) of expert 11's w2 in a policy; a block is the second rank's only one there."""
    if policy == "experts=nvfp4":
        return 17, bench.kmax(EXPERT + "w2")
    scales = bench.source.read(EXPERT + "w2.weight_scale")
    codes = bench.source.read(EXPERT + "w2.weight_packed")
    first = GROUP // 4 * 4
    block = [r * W2_GROUPS + g for r in range(32) for g in range(first, first + 4)]
    return 14, max(scales[g] for g in block
                   if any(b & 0x77 for b in codes[g * GROUP_BYTES : (g + 1) * GROUP_BYTES]))


def group_of(tensors, policy):
    """(codes, their scale) of the group in the second rank's w2 [32, 256], as numbers."""
    index = ROW * W2_GROUPS // 2 + GROUP - W2_GROUPS // 2
    if policy == "experts=nvfp4":
        codes = tensors.read(EXPERT + "w2.weight_packed", index * GROUP_BYTES, GROUP_BYTES)
        return codes_of(codes), list(tensors.read(EXPERT + "w2.weight_scale", index * 2, 2))
    codes = tensors.read(EXPERT + "w2.weight", index * 32, 32)
    block = GROUP // 4 - 2
    return list(codes), list(struct.unpack("<f", tensors.read(EXPERT + "w2.weight_scale",
                                                              block * 4, 4)))


def wanted_group(policy, how, kmax, codes):
    sign = 8 if policy == "experts=nvfp4" else 128
    table = {("experts=nvfp4", "requant"): QUARTER, ("experts=nvfp4", "snap"): range(8),
             ("experts=fp8-block", "requant"): HALF, ("experts=fp8-block", "snap"): TWICE}
    made = [table[policy, how][c & 7] | (sign if c & 8 else 0) for c in codes]
    return made, [1, 1] if policy == "experts=nvfp4" else [2.0 ** (kmax - 133)]


def check_window(bench, policy):
    """One group of w2 two steps beyond the window."""
    suite, name = bench.suite, EXPERT + "w2.weight_scale"
    window, kmax = window_of(bench, policy)
    index = ROW * W2_GROUPS + GROUP
    was = bench.source.poke(name, index, bytes([kmax - window - 2]))
    codes = codes_of(bench.source.read(EXPERT + "w2.weight_packed", index * GROUP_BYTES,
                                       GROUP_BYTES))
    out = bench.fresh()
    said = (EXPERT + "w2.weight_packed", f"index {index} (row {ROW}, group {GROUP})", "--oow")
    for more in ((), ("--oow", "fail"), ("--jobs", "1")):
        bad = bench.refused(out, bench.convert(out, policy, *more), 4, said)
        suite.check(not bad and not files_of(out), f"{policy} {' '.join(more)}: a group out of the "
                    "window is named, nothing is written", bad or files_of(out).keys())
    bad = check_offer(bench, policy)
    suite.check(not bad, f"{policy}: what the refusal offers converts", bad)
    for how in ("requant", "snap"):
        out = bench.fresh()
        done = bench.convert(out, policy, "--oow", how)
        if not suite.check(done.code == 0, f"{policy} --oow {how}", done):
            continue
        cast = json.loads(done.out)["casts"][0]
        suite.check(cast["role"] == "experts" and cast["out_of_window_groups"] == 1 and
                    not cast["lossless"] and cast["sqnr_db"] > 60,
                    f"{policy} --oow {how}: one group is counted", cast)
        found = group_of(Tensors(out, "model-rank-1-"), policy)
        wanted = wanted_group(policy, how, kmax, codes)
        suite.check(found == wanted, f"{policy} --oow {how}: its codes and scales",
                    f"{found}\n{wanted}")
        problems, _ = k3ref.compare_set(bench.ckpt, out, k3ref.Layout(tp=2),
                                        policy=f"{policy},oow={how}")
        suite.check(not problems, f"{policy} --oow {how}: as k3ref.py has it",
                    "\n".join(problems[:4]))
        shutil.rmtree(out)
    bench.source.poke(name, index, was)


def check_mended(bench, policy, name, at, data, said):
    """A byte that no cast takes: refused; put right, the same command ends as if it never was."""
    was = bench.source.poke(name, at, data)
    out = bench.fresh()
    bad = bench.refused(out, bench.convert(out, policy), 3, said) or check_offer(bench, policy)
    bench.source.poke(name, at, was)
    again, golden = bench.convert(out, policy), bench.fresh()
    bench.convert(golden, policy)
    if not bad and (again.code or difference(files_of(out), files_of(golden))):
        bad = f"mended: {again}\n{difference(files_of(out), files_of(golden))}"
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(golden, ignore_errors=True)
    return bad


def check_not_a_number(bench):
    cases, problems = 0, []
    index = ROW * W2_GROUPS + GROUP
    for fmt in ("mxfp8", "nvfp4", "bf16", "fp8-block", "int8-g32", "int4-g32", "fp8-tensor"):
        said = (EXPERT + "w2.weight_packed", f"index {index} (row {ROW}, group {GROUP})", "NaN")
        bad = check_mended(bench, "experts=" + fmt, EXPERT + "w2.weight_scale", index, b"\xff", said)
        cases += 1
        if bad:
            problems.append((fmt, bad))
    bench.suite.group("a scale of experts that is NaN", cases, problems)
    cases, problems = 0, []
    o_proj, head = LAYER + "self_attn.o_proj", "language_model.lm_head"  # [64, 128], [64, 64]
    for number, fmt in enumerate(("fp8-block", "nvfp4", "fp8-tensor", "fp8-channel", "mxfp8",
                                  "mxfp4", "int8-g32", "int4-g32")):
        for stem, policy, row, col, cols in ((o_proj, f"*.2.*.o_proj={fmt}", 16, 100, 128),
                                             (head, f"head={fmt}", 40, 3, 64)):
            word = (0x7F80, 0xFF80, 0x7FC1)[number % 3]
            said = (stem + ".weight", f"0x{word:04x}", f"index {row * cols + col} (row {row}, "
                    f"column {col})")
            bad = check_mended(bench, policy, stem + ".weight", 2 * (row * cols + col),
                               struct.pack("<H", word), said)
            cases += 1
            if bad:
                problems.append((policy, bad))
    bench.suite.group("a weight that is not finite", cases, problems)
    was = bench.source.poke(o_proj + ".weight", 0, b"\x80\x7f")
    out = bench.fresh()
    done = bench.convert(out, "experts=nvfp4")
    bench.suite.check(done.code == 0, "what is not cast may hold anything", done)
    bench.source.poke(o_proj + ".weight", 0, was)


def global_of(tensors, stem):
    return struct.unpack("<f", tensors.read(stem + ".weight_global_scale"))[0]


def check_globals(bench):
    """In the bytes of both ranks: one global for w1 and w3, made of the larger."""
    raised = EXPERT + "w3.weight_scale"
    was = bench.source.poke(raised, 5, bytes([bench.kmax(EXPERT + "w1") + 3]))
    out = bench.fresh()
    done = bench.convert(out, "experts=nvfp4,shared=nvfp4")
    if not bench.suite.check(done.code == 0, "convert with one larger scale", done):
        return
    cases, problems, different = 0, [], set()
    for rank in (0, 1):
        made = Tensors(out, f"model-rank-{rank}-")
        for layer in range(1, 5):
            moe = f"language_model.model.layers.{layer}.block_sparse_moe."
            for e in range(16):
                w1, w2, w3 = (f"{moe}experts.{e}.w{n}" for n in (1, 2, 3))
                both, alone = 2.0 ** (135 - bench.kmax(w1, w3)), 2.0 ** (135 - bench.kmax(w2))
                found = [global_of(made, w) for w in (w1, w3, w2)]
                different.add(both)
                cases += 1
                if found != [both, both, alone]:
                    problems.append((f"rank {rank} {w1}", f"{found}, wanted {both} and {alone}"))
            gate, up = (global_of(made, f"{moe}shared_experts.{x}_proj") for x in ("gate", "up"))
            words = b"".join(bench.source.read(f"{moe}shared_experts.{x}_proj.weight")
                             for x in ("gate", "up"))
            top = max(int.from_bytes(words[i : i + 2], "little") & 0x7FFF
                      for i in range(0, len(words), 2))
            amax = struct.unpack("<f", struct.pack("<I", top << 16))[0]
            wanted = struct.unpack("<f", struct.pack("<f", 2688 / amax))[0]
            cases += 1
            if [gate, up] != [wanted, wanted]:
                problems.append((f"rank {rank} {moe}shared_experts", f"{gate} {up}, not {wanted}"))
    bench.suite.group("global scales that matrices share", cases, problems)
    bench.suite.check(len(different) > 1, "experts have different global scales", different)
    bench.suite.check(os.path.exists(os.path.join(out, MANIFEST)), "that set is finished")
    bench.source.poke(raised, 5, was)


def check_ends(bench):
    """The largest values that MXFP4 has, and a matrix of zeros in a format of one scale."""
    large, zero = EXPERT + "w2", LAYER + "self_attn.o_proj.weight"
    was = {}
    for name, byte in ((large + ".weight_packed", b"\x77"), (large + ".weight_scale", b"\xfe"),
                       (zero, b"\0")):
        was[name] = bench.source.poke(name, 0, byte * bench.source.places[name][2])
    out = bench.fresh()
    done = bench.convert(out, "experts=mxfp8,attention=fp8-tensor")
    lines = {}
    if done.code == 0:
        with open(os.path.join(out, "k3-cast-report.json"), encoding="ascii") as f:
            lines = {line["tensor"]: line for line in json.load(f)["tensors"]}
    line = lines.get(large + ".weight_packed", {})
    bench.suite.check(line.get("lossless") and line["sum_x2"] == line["values"] * 36 * 2.0 ** 254 and
                      bench.tool.run("verify", out).code == 0, "experts of 6 * 2^127 alone", done)
    found = {t: (x.get("zero_groups", 0), x["groups"]) for t, x in lines.items() if "self_attn" in t}
    bench.suite.check(found.pop(zero, None) == (2, 2) and found and
                      not any(zeros for zeros, _ in found.values()),
                      "fp8-tensor: the group of each slice of a matrix of zeros is zero", found)
    for name, data in was.items():
        bench.source.poke(name, 0, data)


def main():
    options = parser(__doc__).parse_args()
    suite, tool = Suite(), tool_of(options)
    with scratch() as room:
        bench = Bench(suite, tool, room)
        for policy in ("experts=nvfp4", "experts=fp8-block"):
            check_window(bench, policy)
        check_not_a_number(bench)
        check_globals(bench)
        check_ends(bench)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
