#!/usr/bin/env bash
# The whole model as headers over holes (130 MB of disk): every file against the published sizes, and
# plans of it against numbers that were worked out from the published inventory, not by k3-shard.
# Prints the time of a plan and does not judge it; judges its memory: 400 MiB at most.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

need_room 500000000
ckpt=$room/checkpoint
"$K3" synth "$ckpt" --preset full --sparse --quiet >/dev/null || { wrong "synth --preset full --sparse"; result; }
say "the sparse checkpoint takes $(du -sm "$ckpt" | cut -f1) MiB of disk"

python3 - "$K3" "$ckpt" <<'PY' || bad=1
import json
import os
import statistics
import subprocess
import sys
import time

k3, ckpt = sys.argv[1:]
RSS_MAX = 400 << 20
TENSORS, TOTAL, FILES_TOTAL, HEADERS = 497220, 1560860324864, 1560936091448, 75766584
# Of the published files: tensors, bytes, bytes of data, offset of the data.
FIRST = (23, 2341216112, 2341213184, 2928)
KDA = {False: (5404, 16990911504, 16990092800, 818704),  # a layer number of one digit
       True: (5404, 16990916912, 16990092800, 824112)}
MLA = {False: (5398, 16567501776, 16566684160, 817616),
       True: (5398, 16567507176, 16566684160, 823016)}
REST = {94: (5, 4697664072, 4697663488, 584), 95: (3, 92289328, 92289024, 304),
        96: (165, 802448352, 802428928, 19424)}
RANK = {"image_bytes": 205997998080, "read_bytes": 205951299312, "pad_bytes": 46698768}
STAGES = {2: "47/46", 4: "23/23/24/23", 8: "11/11/12/12/12/12/12/11"}
failed = 0


def same(name, wanted, found):
    global failed
    if wanted == found:
        print(f"ok    {name}: {found}")
    else:
        failed += 1
        print(f"FAIL  {name}: wanted {wanted}, found {found}")


def true(name, good, detail):
    same(name, True, good)
    if not good:
        print(f"      | {detail}")


def published(number):
    layer = number - 1
    if number in REST:
        return REST[number]
    if layer == 0:
        return FIRST
    return (MLA if layer % 4 == 3 or layer == 92 else KDA)[layer >= 10]


def look(path):
    """(tensors, bytes, bytes of data, offset of the data) of a safetensors file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    end = max(entry["data_offsets"][1] for entry in header.values())
    return len(header), size, end, 8 + length


def plan(*options):
    """(exit code, JSON or None, text and messages, seconds, peak memory) of `plan`, run twice."""
    started = time.monotonic()
    process = subprocess.Popen([k3, "plan", ckpt, "--json", *options], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    text = subprocess.run([k3, "plan", ckpt, *options], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True).stdout
    return (process.returncode, json.loads(out) if out else None, text, seconds,
            usage.ru_maxrss * 1024)


def sums(result):
    return {key: sum(rank[key] for rank in result["ranks"]) for key in RANK}


with open(f"{ckpt}/model.safetensors.index.json") as file:
    index = json.load(file)
same("index total_size", TOTAL, index["metadata"]["total_size"])
same("tensors in the index", TENSORS, len(index["weight_map"]))
names = sorted(name for name in os.listdir(ckpt) if name.endswith(".safetensors"))
same("files", [f"model-{k:05d}-of-000096.safetensors" for k in range(1, 97)] == names, True)
found = [look(f"{ckpt}/{name}") for name in names]
wrong = [(name, published(k), have) for k, (name, have) in enumerate(zip(names, found), 1)
         if have != published(k)]
true("tensors, bytes, data and data start of 96 files", not wrong, wrong[:3])
same("tensors in the files", TENSORS, sum(have[0] for have in found))
same("bytes of the files", FILES_TOTAL, sum(have[1] for have in found))
same("bytes of data", TOTAL, sum(have[2] for have in found))
same("bytes of headers", HEADERS, sum(have[3] for have in found))

code, one, text, seconds, memory = plan()
same("plan --tp 8: exit", 0, code)
same("plan --tp 8: tensors, bytes, files, fits", (TENSORS, TOTAL, FILES_TOTAL, True),
     tuple(one[key] for key in ("tensor_count", "checkpoint_bytes", "file_bytes", "fits")))
same("plan --tp 8: ranks", 8, len(one["ranks"]))
ranks = {tuple(rank[key] for key in RANK) for rank in one["ranks"]}
same("plan --tp 8: image, read, pads of every rank", {tuple(RANK.values())}, ranks)
times, peaks = [seconds], [memory]
for _ in range(4):
    seconds, memory = plan()[3:]
    times.append(seconds)
    peaks.append(memory)
print(f"plan --tp 8: {statistics.median(times):.2f} s (median of 5: "
      f"{' '.join(f'{t:.2f}' for t in sorted(times))}), {max(peaks) / (1 << 20):.1f} MiB at most")
true(f"plan takes at most {RSS_MAX >> 20} MiB", max(peaks) <= RSS_MAX, max(peaks))

for stages, layers in STAGES.items():
    code, result, text, _, _ = plan("--pp", str(stages))
    same(f"plan --pp {stages}: exit and ranks", (0, 8 * stages), (code, len(result["ranks"])))
    true(f"plan --pp {stages}: stages of {layers} layers", f"pp {stages} ({layers})" in text, text)
    same(f"plan --pp {stages}: sums as of one stage", sums(one), sums(result))

code, result, text, _, _ = plan("--tp", "1", "--dp", "8", "--experts", "ep", "--shared", "replicate")
same("plan of 8 attention copies: exit and fits", (4, False), (code, result["fits"]))
true("plan of 8 attention copies says what fits", "would fit: --tp 8" in text, text)
# what a policy that does not fit is refused with can be given instead; README, "Which --quant"
prices = {row["policy"]: round(row["largest_image_bytes"] / 1e9, 1) for row in one["policies"]}
same("prices of the README", {"verbatim": 206.0, "fp8-attn": 201.1, "fp8-rest": 194.6, "nvfp4": 211.7,
     "int4-g32": 216.6, "fp8-block": 354.2, "mxfp8": 365.1, "bf16": 705.9}, prices)
for policy, offered in (("nvfp4", 2), ("int4-g32", 2), ("bf16", 3), ("mxfp8,head=bf16", 3)):
    code, _, text, _, _ = plan("--quant", policy)
    offers = text.split("--quant that would fit: ")[-1].split("; ")[0].split("'")[1::2]
    same(f"plan --quant {policy}: exit, offers", (4, offered), (code, len(offers)))
    same("what it offers fits", [0] * offered, [plan("--quant", offer)[0] for offer in offers])
    true("the first keeps the experts that were asked for", offered == 3 or
         f"experts={policy}" in offers[0], text)
code, _, text, _, _ = plan("--tp", "6")
same("plan --tp 6: exit", 4, code)
true("plan --tp 6 says which sizes divide", "1, 2, 4, 8, 16, 32" in text, text)
sys.exit(1 if failed else 0)
PY
result
