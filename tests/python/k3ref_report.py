"""k3ref_report.py: the report of the casts of a set (docs/FORMAT.md 4.9); the part of k3ref.py for it.

Purpose   which lines there are, in which order, and all of each line that follows from plan and ranks
          or from its own sums: the text is written again and must be the one that is there.
Takes     of each line what only the values tell: sums, largest error, groups of zeros, saturated, out
          of the window.  tests/python/test_cast_report.py computes these.
Limits    items of one layer, as all published checkpoints have.
Needs     Python 3.11, nothing else.
"""

import json
import math
import re

from k3ref_cast import FORMATS, ROLES

# Matrices in the order of section 4.4; those of an item are of one kind of layer each.
ORDER = ["experts.{}.w1", "experts.{}.w3", "experts.{}.w2", "q_proj", "k_proj", "v_proj", "q_a_proj",
         "kv_a_proj_with_mqa", "g_proj", "f_a_proj", "b_proj", "f_b_proj", "q_b_proj", "kv_b_proj",
         "o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "shared_experts.gate_proj",
         "shared_experts.up_proj", "block_sparse_moe.gate", "routed_expert_down_proj",
         "shared_experts.down_proj", "routed_expert_up_proj", "embed_tokens", "wqkv", "wo", "mlp.fc0",
         "mlp.fc1", "proj.0", "proj.2", "lm_head"]
EXPECTED = {  # docs/QUANTIZATION.md 7: out of BF16, out of MXFP4; None: exact
    "bf16": (0, None), "mxfp4": (19.0, 0), "mxfp8": (31.51, None), "nvfp4": (20.43, 24.2),
    "fp8-tensor": (31.53, 30.0), "fp8-channel": (31.55, 30.0), "fp8-block": (31.54, 31.2),
    "int4-g32": (20.48, 21.1), "int4-g128": (19.13, 19.7), "int8-g32": (45.3, None)}
ON_BYTES = ("bf16", "mxfp8", "nvfp4", "fp8-block", "int8-g32")  # out of MXFP4
LOW = 1.5
KINDS = ("zero_groups", "saturated_groups", "out_of_window_groups")


def rank_text(ranks):
    runs = []
    for rank in ranks:
        if runs and runs[-1][1] + 1 == rank:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def place_of(tensor):
    """(rule, layer, expert or block)"""
    stem = tensor.rpartition(".")[0]
    index = re.search(r"\.(?:experts|blocks)\.(\d+)\.", stem)
    layer = re.search(r"\.layers\.(\d+)\.", stem)
    kind = re.sub(r"experts\.\d+\.", "experts.{}.", stem)
    rule = next(i for i, end in enumerate(ORDER) if kind.endswith("." + end) or kind == end)
    return rule, int(layer[1]) if layer else 0, int(index[1]) if index else 0


def role_of(tensor):
    """Role of a matrix by its name (section 4.7)."""
    for role, mark in (("experts", ".experts."), ("shared", ".shared_experts."),
                       ("latent", ".routed_expert_"), ("router", "block_sparse_moe.gate."),
                       ("vision", "vision_tower."), ("projector", "mm_projector."),
                       ("attention", ".self_attn."), ("dense", ".mlp."), ("embed", "embed_tokens"),
                       ("head", "lm_head")):
        if mark in tensor:
            return role
    raise AssertionError(tensor)


def groups_of(source, to, rows, cols):
    if source == "mxfp4" and to in ON_BYTES:
        return rows * cols // 32
    if to == "fp8-tensor":
        return 1
    shape = FORMATS[to].scale_shape(rows, cols)
    return shape[0] * shape[1]


def matrices(made):
    """Tensor -> {role, from, to, values, groups} of all that the ranks hold, each slice once."""
    found, seen = {}, set()
    for rank in made.ranks:
        for part in made.layout.parts(made.model, rank):
            for entry in made.lay_out_part(rank, part).entries:
                cast = entry.piece and entry.piece.cast
                if not cast or cast.kind != "codes":
                    continue
                piece, source = cast.of, "mxfp4" if ".experts." in cast.stem else "bf16"
                key = (piece.name, piece.axis, piece.begin, piece.end)
                if key in seen:
                    continue
                seen.add(key)
                rows, cols = piece.shape()
                cols *= 2 if source == "mxfp4" else 1
                line = found.setdefault(piece.name, {
                    "role": role_of(piece.name), "from": source, "to": cast.fmt, "values": 0,
                    "groups": 0, "part": part})
                line["values"] += rows * cols
                line["groups"] += groups_of(source, cast.fmt, rows, cols)
    return found


def numbers(value, require):
    """The members from `groups` to `sum_x2`."""
    x2, e2 = value["sum_x2"], value.get("sum_error2", 0)
    text = f',"groups":{value["groups"]}'
    text += "".join(f',"{k}":{value[k]}' for k in KINDS if value.get(k))
    if not e2:
        text += ',"lossless":true,"sqnr_db":null'
    else:
        db = 10 * math.log10(x2 / e2)
        require(abs(db - value["sqnr_db"]) <= 1e-9 * abs(db), f"report: {value}")
        text += (f',"lossless":false,"sqnr_db":{value["sqnr_db"]:.10f},"rel_rmse":'
                 f'{math.sqrt(e2 / x2):.12g},"max_abs_error":{value["max_abs_error"]:.17g},'
                 f'"sum_error2":{e2:.17g}')
    return text + f',"sum_x2":{x2:.17g}'


def is_low(line):
    if line["lossless"]:
        return False
    expected = EXPECTED[line["to"]][line["from"] == "mxfp4"]
    return expected is None or line["sqnr_db"] < expected - LOW


def line_text(tensor, wanted, line, require):
    for member in ("values", "groups"):
        require(line[member] == wanted[member], f"report: {tensor}: {member}, {line[member]}, "
                f"wanted {wanted[member]}")
    text = (f'\n{{"tensor":"{tensor}","role":"{wanted["role"]}","from":"{wanted["from"]}","to":'
            f'"{wanted["to"]}","values":{wanted["values"]}' + numbers(line, require))
    if is_low(line):
        expected = EXPECTED[wanted["to"]][wanted["from"] == "mxfp4"]
        text += ',"low":true,"expected_db":' + ("null" if expected is None else f"{expected:.2f}")
    return text + "}"


def total_text(role, lines, found, require):
    formats = ",".join(f for f in FORMATS if any(line["to"] == f for line in lines))
    total = {k: sum(line.get(k, 0) for line in lines) for k in ("groups", *KINDS)}
    for member in ("sum_x2", "sum_error2"):
        total[member] = math.fsum(line.get(member, 0) for line in lines)
        require(abs(total[member] - found.get(member, 0)) <= 1e-15 * total[member],
                f"report: {role}: {member}")
        total[member] = found.get(member, 0)
    total["max_abs_error"] = max(line.get("max_abs_error", 0) for line in lines)
    total["sqnr_db"] = found["sqnr_db"]
    lossy = [line for line in lines if not line["lossless"]]
    worst = min(lossy, key=lambda line: line["sqnr_db"], default=None)
    return (f'\n{{"role":"{role}","to":"{formats}","tensors":{len(lines)},"values":'
            f'{sum(line["values"] for line in lines)}' + numbers(total, require) +
            f',"lossless_tensors":{len(lines) - len(lossy)},"low_tensors":{sum(map(is_low, lines))}'
            f',"worst":' + (f'"{worst["tensor"]}"' if worst else "null") + "}")


def report_text(made, found, require):
    """The text that the report must have, by what it says itself of the values."""
    require(found, "the set has no report of its casts")
    report = json.loads(found)
    wanted = matrices(made)
    items = [min(parts) for _, parts in made.items()]
    of_part = {part: min(parts) for _, parts in made.items() for part in parts}
    order = sorted(wanted, key=lambda t: (items.index(of_part[wanted[t]["part"]]), *place_of(t)))
    names = [line["tensor"] for line in report["tensors"]]
    require(names == order, "report: tensors: " + ", ".join(
        str(pair) for pair in zip(names, order) if pair[0] != pair[1])[:300])
    text = ('{"format":"k3-cast-report","plan_sha256":"' + made.plan_digest + '","policy":"' +
            made.policy.text + '","ranks":"' + rank_text(made.ranks) + '","tensors":[')
    text += ",".join(line_text(line["tensor"], wanted[line["tensor"]], line, require)
                     for line in report["tensors"])
    roles = [r for r in ROLES if any(line["role"] == r for line in report["tensors"])]
    require([t["role"] for t in report["totals"]] == roles, "report: roles")
    text += '\n],"totals":[' + ",".join(
        total_text(t["role"], [x for x in report["tensors"] if x["role"] == t["role"]], t, require)
        for t in report["totals"])
    return (text + '\n],"version":0}\n').encode()
