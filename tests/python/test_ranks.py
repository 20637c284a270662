"""Partial sets: what convert --ranks makes is what the set of all ranks has of those ranks.

Usage: test_ranks.py (K3 and K3_BUILD in the environment).  Every file against the full set and
against k3ref.py; which sources are read; verify, load, inspect, seal and export of a partial set;
kills and workers; every refusal; manifests that list the wrong sources.
"""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k3ref  # noqa: E402  the format, read and written without k3-shard
from k3test import MANIFEST, PARTIAL, Suite, difference, end_of, files_of, mini_ckpt  # noqa: E402
from k3test import parser, scratch, tool_of  # noqa: E402

PP = ["--tp", "2", "--pp", "2"]  # ranks 0, 1: part 0 and layers 0 to 2; ranks 2, 3: the rest
EP = ["--tp", "2", "--dp", "2", "--experts", "ep", "--vision", "first"]
# layout, list, source files (1-based) that hold bytes of these ranks
CASES = [(PP, "0", [1, 2, 3, 6, 7, 8]), (PP, "2-3", [4, 5, 6]), (PP, "1,3", [1, 2, 3, 4, 5, 6, 7, 8]),
         (EP, "1,3", [1, 2, 3, 4, 5, 6]), (EP, "0", [1, 2, 3, 4, 5, 6, 7, 8])]


def layout_of(args):
    return k3ref.layout_of(k3ref.parse_arguments(["plan", "-", *args]))


def manifest_of(directory):
    with open(os.path.join(directory, MANIFEST), "rb") as f:
        return k3ref.check_sealed_json(f.read())


def source_name(number):
    return f"model-{number:05d}-of-000008.safetensors"


def empty_others(ckpt, copy, numbers):
    """A copy of the checkpoint whose other source files have their headers before zeros."""
    shutil.copytree(ckpt, copy, symlinks=True)
    for number in set(range(1, 9)) - set(numbers):
        path = os.path.join(copy, source_name(number))
        size = os.path.getsize(path)
        with open(path, "r+b") as f:
            header = 8 + int.from_bytes(f.read(8), "little")
            f.truncate(header)
            f.truncate(size)
    return copy


def bytes_read(ckpt, numbers):
    """What a conversion must read: whole needed files, copied files, and for the source headers
    configuration, index and all headers."""
    total = 0
    for name in os.listdir(ckpt):
        path = os.path.join(ckpt, name)
        if name.startswith(".") or not os.path.isfile(path):
            continue
        if not name.endswith((".safetensors", ".index.json")):
            total += os.path.getsize(path)
        if name in ("config.json", "model.safetensors.index.json"):
            total += os.path.getsize(path)
        if name.endswith(".safetensors"):
            with open(path, "rb") as f:
                total += 8 + int.from_bytes(f.read(8), "little")
    return total + sum(os.path.getsize(os.path.join(ckpt, source_name(n))) for n in numbers)


def check_case(tool, suite, room, ckpt, case):
    layout, ranks, numbers = case
    name = " ".join(layout) + " --ranks " + ranks
    full, out, poor = (os.path.join(room, n) for n in ("full", "out", "poor"))
    result = tool.run("convert", ckpt, "--out", full, *layout, "--quiet")
    suite.check(result.code == 0, name + ": the set of all ranks", result)
    empty_others(ckpt, poor, numbers)
    result = tool.run("convert", poor, "--out", out, *layout, "--ranks", ranks, "--json", "--quiet")
    suite.check(result.code == 0, name, result)
    said = json.loads(result.out)
    suite.check(said["read_bytes"] == bytes_read(ckpt, numbers),
                name + ": only the files that hold bytes of these ranks are read", said)
    wanted, found, have = k3ref.rank_list(ranks), manifest_of(out), files_of(out)
    whole = files_of(full)
    theirs = {n: d for n, d in whole.items() if not n.startswith("model-rank-") or
              int(n.split("-")[2].split(".")[0]) in wanted}
    del have[MANIFEST], theirs[MANIFEST]
    suite.check(not difference(have, theirs), name + ": every file is the full set's",
                difference(have, theirs))
    golden = manifest_of(full)
    golden["ranks"] = [r for r in golden["ranks"] if r["rank"] in wanted]
    golden["sources"] = [golden["sources"][n - 1] for n in numbers]
    parts = [p for r in golden["ranks"] for p in r["parts"]]
    golden["totals"] = {"image_bytes": sum(r["image_bytes"] for r in golden["ranks"]),
                        "part_bytes": sum(p["bytes"] for p in parts), "parts": len(parts),
                        "ranks": len(wanted)}
    suite.check(found == golden, name + ": the manifest is the full one's, of these ranks", found)
    problems, _ = k3ref.compare_set(ckpt, out, layout_of(layout), wanted)
    suite.check(not problems, name + ": k3ref.py makes the same bytes", "\n".join(problems))
    check_readers(tool, suite, name, ckpt, out, (wanted, golden["totals"]))
    for path in (full, out, poor):
        shutil.rmtree(path)


def check_readers(tool, suite, name, ckpt, out, case):
    wanted, totals = case
    missing = min(set(range(4)) - set(wanted))
    for args in (["verify", out], ["verify", out, "--quick"], ["verify", out, "--against", ckpt],
                 ["verify", out, "--against", ckpt, "--ranks", str(wanted[-1])],
                 ["load", out], ["load", out, "--ranks", str(wanted[-1])], ["inspect", out],
                 ["seal", "--out", out]):
        result = tool.run(*args, "--quiet")
        suite.check(result.code == 0, f"{name}: " + " ".join(a for a in args if "/" not in a),
                    result)
    said = json.loads(tool.run("load", out, "--json", "--quiet").out)
    suite.check(said["verified_bytes"] >= totals["image_bytes"] == said["bytes"] and
                [r["rank"] for r in said["ranks"]] == wanted, name + ": load: all that are there",
                said)
    for command in ("verify", "load"):
        result = tool.run(command, out, "--ranks", str(missing))
        suite.check(result.code == 4 and f"rank {missing} is not in this set: it holds rank"
                    in result.err, f"{name}: {command} of a rank that is not listed", result)
    to = out + ".export"
    result = tool.run("export", out, "--to", to)
    suite.check(result.code == 4 and str(missing) in result.err.split("missing (")[-1] and
                not os.path.exists(to), name + ": export says which ranks are missing", result)


def check_refusals(tool, suite, room, ckpt):
    out, full = os.path.join(room, "out"), os.path.join(room, "full")
    for ranks, code in (("4", 4), ("0-4", 4), ("4095", 4), ("4096", 2), ("1-0", 2), ("", 2)):
        result = tool.run("convert", ckpt, "--out", out, *PP, "--ranks", ranks)
        suite.check(result.code == code and not os.path.exists(out),
                    f"--ranks '{ranks}': exit {code}, nothing is made", result)
    tool.run("convert", ckpt, "--out", full, *PP, "--quiet")
    tool.run("convert", ckpt, "--out", out, *PP, "--ranks", "2,3", "--quiet")
    for where, ranks, text in ((out, ["--ranks", "3"], "a finished set of ranks 2-3 alone"),
                               (out, [], "a finished set of ranks 2-3 alone"),
                               (full, ["--ranks", "3"], "a finished set of all 4 ranks")):
        before = files_of(where)
        result = tool.run("convert", ckpt, "--out", where, *PP, *ranks)
        suite.check(result.code == 4 and text in result.err and files_of(where) == before,
                    "onto a finished set of other ranks: exit 4: " + text, result)
    for args in (["--ranks", "3,2"], ["--ranks", "2-3"]):
        result = tool.run("convert", ckpt, "--out", out, *PP, *args)
        suite.check(result.code == 0 and "finished already" in result.out,
                    "the same ranks in any order: finished already", result)
    result = tool.run("convert", ckpt, "--out", full, *PP, "--ranks", "0-3")
    suite.check(result.code == 0 and "finished already" in result.out,
                "all ranks named are all ranks", result)
    result = tool.run("convert", ckpt, "--out", out, *PP, "--ranks", "0", "--force", "--quiet")
    names = [n for n in files_of(out) if n.startswith("model-rank-")]
    suite.check(result.code == 0 and all(n.startswith("model-rank-0") for n in names),
                "--force replaces it by a set of other ranks", f"{result}\n{names}")


def check_unfinished(tool, suite, room, ckpt):
    """What a run left belongs to its ranks."""
    out, other = os.path.join(room, "begun"), os.path.join(room, "other")
    worker = ["--worker", "0", "--workers", "2"]
    convert = ["convert", ckpt, "--out", out, *PP, "--quiet"]
    result = tool.run(*convert, "--ranks", "2-3", *worker)
    begun = files_of(out)
    suite.check(result.code == 0 and begun[PARTIAL + "/ranks"] == b"k3-ranks 0\n2-3\n",
                "a worker leaves the list of ranks", result)
    result = tool.run("seal", "--out", out)
    suite.check(result.code == 4 and "rank 2 part" in result.err and "rank 0" not in result.err,
                "seal of an unfinished one lists what these ranks miss", result)
    for args in (["--ranks", "2"], [], ["--ranks", "0-1", "--worker", "1", "--workers", "2"]):
        result = tool.run(*convert, *args)
        suite.check(result.code == 4 and "an unfinished conversion of ranks 2-3 alone" in result.err
                    and files_of(out) == begun, f"resumed with {args}: exit 4", result)
    # Runs that began in the same moment with other ranks: only the records can tell.
    result = tool.run("convert", ckpt, "--out", other, *PP, "--ranks", "2", *worker, "--quiet")
    suite.check(result.code == 0, "a worker for rank 2 alone", result)
    for text, holder in ((b"k3-ranks 0\n2\n", out), (b"k3-ranks 0\n2-3\n", other)):
        path = os.path.join(holder, PARTIAL, "ranks")
        with open(path, "rb") as f:
            kept = f.read()
        with open(path, "wb") as f:
            f.write(text)
        ranks = text.split(b"\n")[1].decode()
        result = tool.run("convert", ckpt, "--out", holder, *PP, "--quiet", "--ranks", ranks)
        suite.check(result.code == 4 and "another run was for other ranks" in result.err,
                    f"records of other ranks than {ranks} are refused", result)
        with open(path, "wb") as f:
            f.write(kept)
    for text in (b"", b"k3-ranks 0\n", b"k3-ranks 0\n2-3", b"k3-ranks 1\n2-3\n",
                 b"k3-ranks 0\n2,3\n", b"k3-ranks 0\n2-9\n"):
        with open(os.path.join(out, PARTIAL, "ranks"), "wb") as f:
            f.write(text)
        result = tool.run("seal", "--out", out)
        suite.check(result.code == 3 and "ranks" in result.err, f"a list {text}: exit 3", result)
    with open(os.path.join(out, PARTIAL, "ranks"), "wb") as f:
        f.write(begun[PARTIAL + "/ranks"])
    suite.check(files_of(out) == begun, "none of this changed a file")
    result = tool.run(*convert, "--ranks", "2-3", "--worker", "1", "--workers", "2")
    sealed = tool.run("seal", "--out", out)
    suite.check(result.code == 0 and sealed.code == 0 and not os.path.exists(
        os.path.join(out, PARTIAL)), "the other worker, then seal", f"{result}\n{sealed}")
    return files_of(out)


def check_kills(tool, suite, room, ckpt, golden):
    """Killed at every seventh call that changes a file, and resumed: the same set."""
    problems, cases, at = [], 0, 1
    while True:
        out = os.path.join(room, "killed")
        args = ["convert", ckpt, "--out", out, *PP, "--ranks", "2-3", "--jobs", "1", "--quiet"]
        killed = tool.run(*args, shim={"KILL_AT": at})
        result = tool.run(*args)
        found = difference(files_of(out), golden)
        if result.code or found:
            problems.append((f"call {at}", f"{result}\n{found}"))
        shutil.rmtree(out)
        cases += 1
        at += 7
        if killed.code == 0:
            break
    suite.group("killed and resumed", cases, problems)
    suite.check(cases > 9, f"there were {cases} places to be killed at")


def check_directories(tool, suite, room, ckpt):
    outs = [os.path.join(room, n) for n in ("a", "b", "c")]
    args = [a for o in outs for a in ("--out", o)]
    children = [tool.start("convert", ckpt, *args, *PP, "--ranks", "1,3", "--quiet", "--worker", n,
                           "--workers", "2") for n in ("0", "1")]
    for child in children:
        result = end_of(child)
        suite.check(result.code == 0, "workers on a partial set in three directories", result)
    for command in (["seal", *args], ["verify", *outs, "--against", ckpt], ["load", *outs]):
        result = tool.run(*command, "--quiet")
        suite.check(result.code == 0, "three directories: " + command[0], result)
    problems, _ = k3ref.compare_set(ckpt, outs, layout_of(PP), [1, 3])
    suite.check(not problems, "three directories: k3ref.py makes the same", "\n".join(problems))


def check_copies(tool, suite, room, ckpt):
    """Layer 0 is dense, so where it is a stage of its own its second replica is a copy."""
    out, back = os.path.join(room, "copies"), os.path.join(room, "back")
    layout = ["--tp", "2", "--pp", "2", "--dp", "2", "--pp-layers", "1,4"]
    result = tool.run("convert", ckpt, "--out", out, *layout, "--ranks", "0-3,6-7", "--quiet")
    suite.check(result.code == 0, "all but a replica", result)
    result = tool.run("export", out, "--to", back, "--quiet")
    wanted = {n: d for n, d in files_of(ckpt).items() if "/" not in n and not n.startswith(".")}
    with open(os.path.join(ckpt, "tiktoken.model"), "rb") as f:
        wanted["tiktoken.model"] = f.read()
    suite.check(result.code == 0 and not difference(files_of(back), wanted),
                "a partial set that holds every byte gives the checkpoint back", result)


def check_forged(tool, suite, room, ckpt):
    """Manifests whose digests are right and whose lists are not."""
    out, full = os.path.join(room, "forged"), os.path.join(room, "whole")
    tool.run("convert", ckpt, "--out", out, *PP, "--ranks", "2-3", "--quiet")
    tool.run("convert", ckpt, "--out", full, *PP, "--quiet")
    good, whole = manifest_of(out), manifest_of(full)

    def forge(text, **members):
        with open(os.path.join(out, MANIFEST), "wb") as f:
            f.write(k3ref.seal_json({**good, **members}))
        for command in (["verify", out], ["export", out, "--to", out + ".to"]):
            result = tool.run(*command)
            suite.check(result.code == 3 and text in result.out + result.err,
                        f"{command[0]}: {text}", result)

    forge("model-00001-of-000008.safetensors is in its sources, its ranks hold no byte of it",
          sources=whole["sources"][:1] + good["sources"])
    forge("model-00006-of-000008.safetensors is not in its sources, its ranks hold bytes of it",
          sources=good["sources"][:-1])
    other = dict(good["sources"][0], name="model-00009-of-000008.safetensors")
    forge("its sources are not the files of its plan", sources=good["sources"] + [other])
    other = dict(good["sources"][-1], bytes=good["sources"][-1]["bytes"] + 1)
    forge("its sources are not the files of its plan", sources=good["sources"][:-1] + [other])
    last = good["ranks"][-1]
    beyond = json.loads(json.dumps(last).replace("model-rank-3", "model-rank-4"))
    forge("rank 4, but its layout has 4 ranks",
          ranks=good["ranks"][:-1] + [dict(beyond, rank=4)])


def main():
    tool, suite = tool_of(parser("partial sets").parse_args()), Suite()
    with scratch() as room:
        ckpt = mini_ckpt(os.path.join(room, "ckpt"))
        for case in CASES:
            check_case(tool, suite, room, ckpt, case)
        check_refusals(tool, suite, room, ckpt)
        golden = check_unfinished(tool, suite, room, ckpt)
        check_kills(tool, suite, room, ckpt, golden)
        check_directories(tool, suite, room, ckpt)
        check_copies(tool, suite, room, ckpt)
        check_forged(tool, suite, room, ckpt)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
