"""Scales, global scales and shapes of casts (FORMAT.md 4.7) that were changed, with every digest
above them made anew: only what the plan fixes, and what must be one number, can tell.

Usage: test_cast_numbers.py (K3 and K3_BUILD in the environment).
"""
import json
import os
import re
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from k3test import Suite, parser, scratch, tool_of  # noqa: E402
from test_forged import reseal  # noqa: E402

LAYER = "language_model.model.layers.1."
EXPERT = LAYER + "block_sparse_moe.experts.3."
PART = "model-rank-{}-part-2.safetensors"


def place_of(path, tensor):
    """Offset in the file, and shape."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        entry = json.loads(f.read(size))[tensor]
    return 8 + size + entry["data_offsets"][0], entry["shape"]


def put(out, rank, tensor, offset, data):
    path = os.path.join(out, PART.format(rank))
    at, _ = place_of(path, tensor)
    with open(path, "r+b") as f:
        f.seek(at + offset)
        f.write(data)


def get(out, rank, tensor, count):
    path = os.path.join(out, PART.format(rank))
    at, _ = place_of(path, tensor)
    with open(path, "rb") as f:
        f.seek(at)
        return f.read(count)


def f32(value):
    return struct.pack("<f", value)


class Case:
    """Bytes put into one tensor of some ranks, and what verify says of it."""

    def __init__(self, name, tensor, data, wanted, ranks=(0,), offset=0):
        self.name, self.tensor, self.data, self.wanted = name, tensor, data, wanted
        self.ranks, self.offset = ranks, offset


def check_set(suite, tool, ckpt, where, policy, cases, options=("--tp", "2")):
    good, bad = os.path.join(where, "good"), os.path.join(where, "bad")
    done = tool.run("convert", ckpt, "--out", good, "--quant", policy, *options, "--quiet")
    suite.check(done.code == 0, f"convert {policy}", done)
    shutil.copytree(good, bad)
    reseal(bad)
    done = tool.run("verify", bad)
    suite.check(done.code == 0, f"{policy}: a set that is only resealed is good", done)
    for case in cases(good):
        shutil.rmtree(bad)
        shutil.copytree(good, bad)
        for rank in case.ranks:
            put(bad, rank, case.tensor, case.offset, case.data)
        reseal(bad)
        done = tool.run("verify", bad)
        suite.check(done.code == 3 and
                    f"{PART.format(case.ranks[0])}: tensor {case.tensor}[{case.wanted}" in done.out
                    and "convert again" in done.out, f"{policy}: {case.name}", done)
        quick = tool.run("verify", bad, "--quick")
        suite.check(quick.code == 0, f"{policy}: {case.name}: --quick does not read data", quick)
    if policy == "nvfp4":
        check_damage(suite, tool, bad)
    shutil.rmtree(good)
    shutil.rmtree(bad)


def check_damage(suite, tool, bad):
    """A unit that is wrong is told as a unit alone: its numbers are not judged."""
    put(bad, 0, EXPERT + "w1.weight_global_scale", 0, f32(float("inf")))
    done = tool.run("verify", bad)
    suite.check(done.code == 3 and "is wrong" in done.out and "[0] is inf" not in done.out,
                "numbers of a wrong unit are not judged", done)


def globals_of(tensor, other, rank_count=2):
    """Every way in which a global scale can be none; both: ranks whose members differ."""
    def cases(good):
        value = struct.unpack("<f", get(good, 0, EXPERT + tensor, 4))[0]
        name, ranks = EXPERT + tensor, tuple(range(rank_count))
        for text, data in (("NaN", f32(float("nan"))), ("inf", f32(float("inf"))),
                           ("-inf", f32(-float("inf"))), ("0", f32(0)), ("-0", f32(-0.0)),
                           (f"{-value:.9g}", f32(-value))):
            yield Case(f"a global scale of {text}", name, data,
                       f"0] is {text}, wanted a finite number above 0")
        if other:
            yield Case("w1 and w3 differ on all ranks", name, f32(2 * value),
                       f"0] is {2 * value:.9g}, wanted {value:.9g} as {EXPERT}{other}[0] is", ranks)
    return cases


def ranks_of(tensor):
    """A matrix of its own: only the other rank can tell."""
    def cases(good):
        value = struct.unpack("<f", get(good, 0, EXPERT + tensor, 4))[0]
        yield Case("a global scale that is another on rank 1", EXPERT + tensor, f32(2 * value),
                   f"0] is {2 * value:.9g}, wanted {value:.9g} as on rank 0", (1,))
    return cases


def fused(good):
    """Matrices of one view beside the experts: q and k."""
    q, k = (LAYER + f"self_attn.{m}_proj.weight_scale" for m in "qk")
    value = struct.unpack("<f", get(good, 0, q, 4))[0]
    yield Case("q and k differ", k, f32(value / 2),
               f"0] is {value / 2:.9g}, wanted {value:.9g} as {q}[0] is", (0, 1))


def shapes(good):
    name = EXPERT + "w2.weight_shape"
    rows, columns = struct.unpack("<2q", get(good, 0, name, 16))
    seen = f"the matrix has [{rows}, {columns}] values on this rank"
    yield Case("a row more", name, struct.pack("<q", rows + 1),
               f"0] is {rows + 1}, wanted {rows}: {seen}")
    yield Case("columns of the whole", name, struct.pack("<q", 2 * columns),
               f"1] is {2 * columns}, wanted {columns}: {seen}", (1,), 8)
    yield Case("fewer than none", name, struct.pack("<q", -columns),
               f"1] is {-columns}, wanted {columns}: {seen}", (0,), 8)
    yield Case("rows and columns swapped", name, struct.pack("<2q", columns, rows),
               f"0] is {columns}, wanted {rows}: {seen}", (0,))


def scales(tensor, values, wanted):
    """Scales that no cast writes, at the ends of a tensor and in the middle, on either rank."""
    def cases(good):
        _, (rows, columns) = place_of(os.path.join(good, PART.format(0)), tensor)
        places = [(0, 0), (rows - 1, columns - 1), (rows // 2, columns // 2)]
        for i, (said, data) in enumerate(values):
            row, column = places[i % len(places)]
            bits = int.from_bytes(data, "little")
            told = f"{said} (0x{bits:0{2 * len(data)}X}), wanted {wanted}: "
            yield Case(f"a scale {tensor} of {said}", tensor, data, f"{row}, {column}] is {told}",
                       (i % 2,), (row * columns + column) * len(data))
    return cases


def check_many(suite, tool, ckpt, where):
    """All scales of a matrix at once: each that is kept has its sentence, the rest is counted."""
    good, tensor = os.path.join(where, "good"), EXPERT + "w1.weight_scale"
    tool.run("convert", ckpt, "--out", good, "--quant", "nvfp4", "--tp", "2", "--quiet")
    _, (rows, columns) = place_of(os.path.join(good, PART.format(0)), tensor)
    done = tool.run("verify", good)
    found = re.search(r"([0-9,]+) scales of casts", done.out)
    wanted = sum(rows * columns for rows, columns in scale_shapes(good))
    suite.check(done.code == 0 and found and int(found[1].replace(",", "")) == wanted,
                f"verify of a good set counts its {wanted} scales", done)
    put(good, 0, tensor, 0, b"\x7f" * (rows * columns))
    reseal(good)
    done = tool.run("verify", good, "--json")
    problems = json.loads(done.out)["problems"]
    named = [f"tensor {tensor}[{r}, {c}] is NaN" for r in range(rows) for c in range(columns)]
    suite.check(done.code == 3 and all(name in text for name, text in zip(named, problems)),
                "every scale of a matrix", done)
    shutil.rmtree(good)


def scale_shapes(out):
    for name in sorted(os.listdir(out)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(out, name), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        for tensor, entry in header.items():
            if tensor.endswith(".weight_scale"):
                yield entry["shape"]


BAD_E4M3 = [("NaN", b"\x7f"), ("NaN", b"\xff"), ("0", b"\x00"), ("-0", b"\x80"), ("-1", b"\xb8")]
BAD_BF16 = [("NaN", b"\xc0\x7f"), ("inf", b"\x80\x7f"), ("0", b"\0\0"), ("-1", b"\x80\xbf")]
BAD_F32 = [("NaN", f32(float("nan"))), ("inf", f32(float("inf"))), ("0", f32(0)),
           ("-2.5", f32(-2.5)), ("-0", f32(-0.0)), ("-inf", f32(-float("inf")))]


def check_scales(suite, tool, ckpt, where):
    expert, query = EXPERT + "w2.weight_scale", LAYER + "self_attn.q_proj.weight_scale"
    shared = LAYER + "block_sparse_moe.shared_experts.down_proj.weight_scale"
    number, power = "a finite number above 0", "a power of two"
    for policy, tensor, values, wanted in (
            ("nvfp4", expert, BAD_E4M3, number), ("nvfp4", query, BAD_F32, number),
            ("experts=mxfp8", expert, [("NaN", b"\xff")] * 3, power),
            ("shared=mxfp4", shared, [("NaN", b"\xff")] * 3, power),
            ("experts=fp8-block", expert, BAD_F32, number),
            ("attention=fp8-channel", query, BAD_F32, number),
            ("int4-g32", expert, BAD_BF16, number),
            ("*.shared_experts.down_proj=int4-g128", shared, BAD_BF16, number),
            ("experts=int8-g32,oow=requant", expert, BAD_BF16, number)):
        check_set(suite, tool, ckpt, where, policy, scales(tensor, values, wanted))


def main():
    options = parser(__doc__).parse_args()
    suite = Suite()
    tool = tool_of(options)
    with scratch() as where:
        ckpt = os.path.join(where, "ckpt")
        done = tool.run("synth", ckpt, "--preset", "tiny", "--quiet")
        suite.check(done.code == 0, "synth", done)
        scale = "weight_global_scale"
        check_set(suite, tool, ckpt, where, "nvfp4", globals_of("w3." + scale, "w1." + scale))
        check_set(suite, tool, ckpt, where, "nvfp4", ranks_of("w2." + scale))
        check_set(suite, tool, ckpt, where, "experts=fp8-tensor",
                  globals_of("w3.weight_scale", "w1.weight_scale"))
        check_set(suite, tool, ckpt, where, "attention=fp8-tensor", fused)
        check_set(suite, tool, ckpt, where, "int4-g32", shapes)
        check_scales(suite, tool, ckpt, where)
        check_many(suite, tool, ckpt, where)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
