"""What is said of casts: by inspect (a set, its report, a tensor), by load, and by the table.

Usage: test_inspect_casts.py (K3 and K3_BUILD in the environment).  What is shown is compared with
k3-cast-report.json, whose figures test_cast_report.py computes from the values.
"""
import collections
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from k3test import MANIFEST, PARTIAL, Suite, parser, scratch, tool_of  # noqa: E402
from test_cast_report import Folder, report_of, REPORT  # noqa: E402

QUANT = "experts=mxfp8,shared=nvfp4,latent=mxfp4,dense=fp8-block,*.layers.2.self_attn.o_proj=int4-g32"
QUANT += ",*.layers.3.self_attn.o_proj=int4-g32"
ALL_ZERO = "language_model.model.layers.0.mlp."  # the whole role `dense`
ONE_ZERO = "language_model.model.layers.1.block_sparse_moe.shared_experts.gate_proj.weight"
KEPT = "language_model.model.layers.0.self_attn.q_proj.weight"
LOW = "language_model.model.layers.2.self_attn.o_proj.weight"  # of QUANT's pattern
NORM = "language_model.model.layers.0.input_layernorm.weight"
EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.0.w1."
SHARED = "language_model.model.layers.2.block_sparse_moe.shared_experts.up_proj."


def make_zeros(ckpt):
    folder = Folder(ckpt)
    for name, row in folder.rows.items():
        if name.startswith(ALL_ZERO) or name == ONE_ZERO:
            folder.write(name, bytes(row[4]))
    # In each group of 32 one value of 1, and 31 of half a step of INT4: all of them are lost.
    size = folder.rows[LOW][4]
    folder.write(LOW, (b"\x80\x3f" + b"\x88\x3d" * 31) * (size // 64))


def shown(tool, *args):
    done = tool.run("inspect", *args, "--json")
    return done, json.loads(done.out) if done.code == 0 else {}


def check_table(suite, text, report):
    lines = text.splitlines()
    cells = {x.split()[0]: x for x in lines if x.startswith("  ") and len(x.split()) > 9}
    suite.check("all zero" in cells["dense"] and "exact" not in cells["dense"],
                "a role of zeros is not said to be exact", text)
    suite.check("exact" in cells["experts"], "a role that came back equal is", text)
    suite.check("  all zero: 1 of the 12 tensors of shared" in lines,
                "a matrix of zeros among others is counted", text)
    said = [x for x in lines if x.startswith("  saturated: ")]
    suite.check(len(said) == 1 and "27 % of groups in mxfp4, 50 % in nvfp4, 45 % in int4-g32" in
                said[0], "one line says why groups are saturated", text)
    wanted = {"shared": 0.50, "latent": 0.27, "attention": 0.45 / 2}  # of one of two
    wrong = []
    for total in report["totals"]:
        groups = total["groups"] - total.get("zero_groups", 0)
        share = total.get("saturated_groups", 0) / groups if groups else 0
        if abs(share - wanted.get(total["role"], 0)) > 0.08:
            wrong.append((total["role"], share))
    suite.group("the shares that are told are those of normal values", len(report["totals"]), wrong)


def check_set(suite, tool, out, report):
    done, tree = shown(tool, out)
    suite.check(tree.get("policy") == report["policy"], "inspect SET: the policy", done)
    count, values = collections.Counter(), collections.Counter()
    for line in report["tensors"]:
        key = (line["role"], line["from"], line["to"])
        count[key] += 1
        values[key] += line["values"]
    rows = {(x["role"], x["from"], x["to"]): (x["tensors"], x["values"]) for x in tree["formats"]}
    cast = {k: v for k, v in rows.items() if k[2] != "verbatim"}
    suite.check(cast == {k: (n, values[k]) for k, n in count.items()},
                "inspect SET: how many tensors in which formats", done)
    kept = sum(v[0] for k, v in rows.items() if k[2] == "verbatim")
    total = sum(count.values())
    suite.check(tree["casts"].startswith(f"{total} of {total + kept} matrices are cast: ") and kept > 0,
                "inspect SET: how many of the matrices", done)
    text = tool.run("inspect", out)
    suite.check(f"policy             {report['policy']}" in text.out and "formats (" in text.out,
                "inspect SET: as text", text)
    done = tool.run("load", out, "--json", "--quiet")
    loaded = json.loads(done.out)
    suite.check(loaded["policy"] == report["policy"] and loaded["formats"] == tree["formats"],
                "load says the same", done)
    done = tool.run("load", out, "--quiet")
    suite.check(f"policy    {report['policy']}: {tree['casts']}\n" in done.out,
                "load: as text", done)


def check_tensor(suite, tool, out, line):
    name = line["tensor"]
    stem = name.rsplit(".", 1)[0]
    packed = line["to"] in ("nvfp4", "mxfp4", "int4-g32")
    stored = stem + (".weight_packed" if packed else ".weight")
    done, tree = shown(tool, out, "--tensor", stored)
    zero = line["sum_x2"] == 0
    sqnr = "all zero" if zero else "exact" if line["lossless"] else f"{line['sqnr_db']:.2f} dB"
    suite.check(
        (tree.get("format"), tree.get("cast_from"), tree.get("cast_tensor"), tree.get("lossless"),
         tree.get("values"), tree.get("groups"), tree.get("saturated_groups"), tree.get("holds")) ==
        (line["to"], line["from"], name, line["lossless"], line["values"], line["groups"],
         line.get("saturated_groups", 0), "codes") and tree["sqnr"].startswith(sqnr) and
        ("sqnr_db" in tree) == (not line["lossless"]) and
        ("low: expected 20.5" in tree["sqnr"]) == (name == LOW) and
        ("expected of about" in tree.get("note", "")) == ("saturated_groups" in line),
        f"inspect SET --tensor: {line['to']}, {sqnr}", done)
    done, scales = shown(tool, out, "--tensor", stem + ".weight_scale")
    suite.check(scales.get("holds") == "scales" and scales.get("sqnr") == tree["sqnr"] and
                scales["cast_tensor"] == name, "its scales", done)


def check_tensors(suite, tool, out, report):
    seen = set()
    for line in report["tensors"]:
        kind = (line["to"], line["sum_x2"] == 0)
        if kind not in seen:
            seen.add(kind)
            check_tensor(suite, tool, out, line)
    suite.check(len(seen) == 6, "formats and zeros were looked at", seen)
    done, tree = shown(tool, out, "--tensor", SHARED + "weight_global_scale")
    suite.check(tree.get("format") == "nvfp4" and tree.get("holds") == "a global scale",
                "a global scale", done)
    for name in (KEPT, NORM):
        done, tree = shown(tool, out, "--tensor", name)
        suite.check(tree.get("format") == "verbatim" and tree["holds"] == "as in the checkpoint" and
                    "cast_from" not in tree and "sqnr" not in tree, f"kept: {name}", done)
    done, tree = shown(tool, out, "--tensor", "layers.1.experts.w13")
    suite.check(tree.get("format") == "mxfp8" and tree.get("cast_from") == "mxfp4" and
                tree.get("of_tensors", 0) > 1 and "sqnr" not in tree, "a view of many", done)
    part = os.path.join(out, "model-rank-0-part-2.safetensors")
    done, tree = shown(tool, part, "--tensor", EXPERT + "weight")
    suite.check(tree.get("format") == "mxfp8" and tree.get("sqnr") == "exact", "in one part", done)


def check_report(suite, tool, out, report):
    path = os.path.join(out, REPORT)
    done, tree = shown(tool, path)
    same = len(tree.get("totals", [])) == len(report["totals"]) and all(
        a["role"] == b["role"] and a["tensors"] == b["tensors"] and a["groups"] == b["groups"] and
        a["saturated_groups"] == b.get("saturated_groups", 0) and
        a["sqnr"] == ("all zero" if b["sum_x2"] == 0 else "exact" if b["lossless"] else
                      f"{b['sqnr_db']:.2f} dB") for a, b in zip(tree["totals"], report["totals"]))
    low = [x["tensor"] for x in report["tensors"] if x.get("low")]
    suite.check(low == [LOW], "one matrix is flagged", low)
    suite.check(same and tree["kind"] == "report of a set's casts" and
                tree["policy"] == report["policy"] and
                tree["tensors"] == len(report["tensors"]) and "grep" in tree["read_it_with"] and
                "expected of about" in tree["saturated_groups"] and
                [x["tensor"] for x in tree.get("low_list", [])] == low,
                "inspect k3-cast-report.json", done)
    with open(path, "rb") as f:
        text = f.read()
    elsewhere = os.path.join(os.path.dirname(out), REPORT)
    wrong = []
    cuts = [0, 1, 40, 200, 700, len(text) // 2, text.index(b'],"totals"') + 20, len(text) - 3]
    for cut in cuts:
        with open(elsewhere, "wb") as f:
            f.write(text[:cut])
        done = tool.run("inspect", elsewhere)
        if done.code != 3 or "no report of casts" not in done.err:
            wrong.append((cut, done))
    suite.group("a report that is cut is said to be", len(cuts), wrong)
    with open(elsewhere, "wb") as f:
        f.write(b'{"mine":1}')
    done = tool.run("inspect", elsewhere)
    suite.check(done.code == 3 and "another program's file of that name" in done.err,
                "a file of that name that is no report", done)
    done = tool.run("inspect", path, "--tensor", LOW)
    suite.check(done.code == 2 and f"`k3-shard inspect {out} --tensor {LOW}`" in done.err,
                "a tensor of a report: the command that shows it", done)
    os.remove(elsewhere)
    for command in ("inspect", "verify"):
        for name in ("config.json",) + (() if command == "inspect" else (REPORT,)):
            done = tool.run(command, os.path.join(out, name))
            suite.check(done.code == 2 and "a JSON file" in done.err and
                        "the directory it lies in" in done.err, f"{command} {name}", done)


def check_unsound(suite, tool, out, where):
    bad, other = (os.path.join(where, name) for name in ("bad", "other"))
    tool.run("convert", os.path.join(where, "ckpt"), "--out", other, "--tp", "2", "--quant",
             QUANT.replace("mxfp8", "nvfp4"), "--quiet")
    shutil.copytree(out, bad)
    path = os.path.join(bad, REPORT)
    with open(path, "r+b") as f:
        text = f.read()
        f.seek(0)
        f.write(text.replace(b'"lossless":true', b'"lossless":none'))
    name = EXPERT + "weight"
    done, tree = shown(tool, bad, "--tensor", name)
    suite.check(REPORT in tree.get("note", "") and "sqnr" not in tree and
                tree["format"] == "mxfp8", "a report that is not sound is not believed", done)
    os.remove(path)
    done, tree = shown(tool, bad, "--tensor", name)
    suite.check("missing, though the manifest lists it" in tree.get("note", ""),
                "a report that is missing is said to be", done)
    with open(os.path.join(bad, MANIFEST), "r+b") as f:
        f.write(b"[")
    done, tree = shown(tool, bad, "--tensor", name)
    suite.check(MANIFEST in tree.get("note", "") and "format" not in tree and tree["places"],
                "a manifest that is not sound is not believed", done)
    shutil.copy(os.path.join(where, "other", MANIFEST), bad)
    done, tree = shown(tool, bad, "--tensor", name)
    suite.check("are of two plans" in tree.get("note", "") and "format" not in tree and
                tree["places"], "a manifest of another policy is not believed", done)
    os.remove(os.path.join(bad, MANIFEST))
    done, tree = shown(tool, bad, "--tensor", name)
    suite.check("note" not in tree and "format" not in tree and tree["places"],
                "parts alone tell their places", done)


def check_unfinished(suite, tool, ckpt, where):
    out = os.path.join(where, "unfinished")
    tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quant", QUANT, "--ranks", "0",
             "--worker", "0", "--workers", "2", "--quiet")
    folder = os.path.join(out, PARTIAL)
    path = os.path.join(folder, "plan.json")
    done, tree = shown(tool, path)
    suite.check(tree.get("kind") == "plan of an unfinished conversion" and
                tree["policy"].startswith("experts=mxfp8,shared=nvfp4"), "inspect plan.json", done)
    done, tree = shown(tool, os.path.join(folder, "item-2.record"))
    suite.check(tree.get("casts", 0) > 0, "a record tells how many casts it has", done)
    for name in ("ranks", "sources"):
        done = tool.run("inspect", os.path.join(folder, name))
        suite.check(done.code == 2 and "read it as text" in done.err, f"inspect {name}", done)
    with open(path, "r+b") as f:
        f.truncate(100)
    done = tool.run("inspect", path)
    suite.check(done.code == 3 and "plan.json: not the plan of a conversion" in done.err,
                "a plan.json that is cut is said to be", done)


def check_policy_files(suite, tool, ckpt, where):
    """What --quant FILE.json must not wait for, or load."""
    paths = {n: os.path.join(where, n + ".json") for n in ("folder", "pipe", "large")}
    os.mkdir(paths["folder"])
    os.mkfifo(paths["pipe"])
    with open(paths["large"], "wb") as f:
        f.truncate((1 << 20) + 1)
    for name, path in paths.items():
        done = tool.run("plan", ckpt, "--tp", "2", "--quant", path)
        wanted = "a policy has at most 1048576" if name == "large" else "not a regular file"
        suite.check(done.code == 2 and f"--quant {path}: " in done.err and wanted in done.err,
                    f"--quant {name}", done)
    done = tool.run("plan", ckpt, "--tp", "2", "--quant", "/dev/null/.json")
    suite.check(done.code == 1 and "//" not in done.err, "no file", done)
    done = tool.run("plan", ckpt, "--tp", "2", "--quant", where + "//none.json")
    suite.check(done.code == 1 and f"{where}/none.json" in done.err, "two slashes", done)


def check_verbatim(suite, tool, ckpt, where):
    out = os.path.join(where, "verbatim")
    tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quiet")
    done, tree = shown(tool, out)
    suite.check(tree.get("policy") == "verbatim" and "formats" not in tree, "inspect: verbatim", done)
    done = tool.run("load", out, "--quiet")
    suite.check("policy    verbatim\n" in done.out, "load: verbatim", done)
    done, tree = shown(tool, out, "--tensor", KEPT)
    suite.check(tree.get("format") == "verbatim" and "note" not in tree, "its tensors", done)


def main():
    options = parser(__doc__).parse_args()
    suite = Suite()
    tool = tool_of(options)
    with scratch() as where:
        ckpt, out = os.path.join(where, "ckpt"), os.path.join(where, "set")
        done = tool.run("synth", ckpt, "--preset", "tiny", "--quiet")
        suite.check(done.code == 0, "synth", done)
        make_zeros(ckpt)
        done = tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quant", QUANT, "--quiet")
        suite.check(done.code == 0, "convert", done)
        report = report_of(out)
        check_table(suite, done.out, report)
        check_set(suite, tool, out, report)
        check_tensors(suite, tool, out, report)
        check_report(suite, tool, out, report)
        check_unsound(suite, tool, out, where)
        check_unfinished(suite, tool, ckpt, where)
        check_policy_files(suite, tool, ckpt, where)
        check_verbatim(suite, tool, ckpt, where)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
