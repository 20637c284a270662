#!/usr/bin/env python3
"""test_cut.py: does every rank hold exactly the bytes that a serving engine would cut for it?

Purpose   Cuts the checkpoint itself, from the way engines partition Kimi K3 (fused w13,
          in_proj_qkvgfab, fused_qkv_a_proj, gate_up_proj, packed conv, …), and compares every
          rank tensor and every view of every part with it. Shares no code with k3-shard or
          k3ref.py and does not use the manifest.
Proves    each part opens in the safetensors library with the key set, shapes and dtypes expected;
          every tensor and every view is byte-equal to the cut; the views lie in the documented
          order and tile all bytes that are not pads exactly once; pads are zero, shortest and in
          order; nothing is missing and nothing is extra, in any rank.
Needs     numpy, safetensors.
Memory    files are mapped, compared in pieces of 8 MiB; parts of several GB are fine.

Usage     test_cut.py CKPT OUT [--tp N --dp N --pp N --pp-layers a,b,…] [--experts ep|tp]
                      [--shared tp|replicate] [--vision replicate|first|drop] [--jobs N]
          exit 0 all equal, 1 something differs, 2 cannot run
"""

import argparse
import concurrent.futures
import json
import os
import sys

import numpy as np
from safetensors import safe_open

PIECE = 8 << 20
UNIT = 512 * 1024
ITEM = {"U8": 1, "BF16": 2, "F32": 4}


# ---- files ---------------------------------------------------------------------------------------


def read_header(path):
    """(members, offset of the data, mapped file) of a safetensors file."""
    data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))  # a plain array: slices are cheap
    length = int.from_bytes(data[:8].tobytes(), "little")
    return json.loads(data[8 : 8 + length].tobytes()), 8 + length, data


class Array:
    """A source tensor or a slice of one; `rows` are its bytes as [shape[0], bytes of a row]."""

    def __init__(self, dtype, shape, rows):
        self.dtype, self.shape, self.rows = dtype, list(shape), rows

    def take_rows(self, begin, end):
        return Array(self.dtype, [end - begin] + self.shape[1:], self.rows[begin:end])

    def take_columns(self, begin, end):
        item = self.rows.shape[1] // self.shape[1]
        return Array(
            self.dtype,
            [self.shape[0], end - begin] + self.shape[2:],
            self.rows[:, begin * item : end * item],
        )

    def row_run(self, index, count):
        n = self.shape[0] // count
        assert n * count == self.shape[0], (self.shape, count)
        return self.take_rows(index * n, (index + 1) * n)

    def column_run(self, index, count):
        n = self.shape[1] // count
        assert n * count == self.shape[1], (self.shape, count)
        return self.take_columns(index * n, (index + 1) * n)


class Source:
    """All tensors of a checkpoint by name."""

    def __init__(self, directory):
        self.where = {}
        self.maps = {}
        for file in sorted(os.listdir(directory)):
            if not file.endswith(".safetensors"):
                continue
            members, start, data = read_header(os.path.join(directory, file))
            self.maps[file] = data
            for name, e in members.items():
                if name != "__metadata__":
                    assert name not in self.where, f"{name} is stored twice"
                    begin, end = e["data_offsets"]
                    self.where[name] = (file, e["dtype"], e["shape"], start + begin, start + end)
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)

    def get(self, name):
        file, dtype, shape, begin, end = self.where[name]
        return Array(dtype, shape, self.maps[file][begin:end].reshape(shape[0], -1))


# ---- what an engine's rank holds -----------------------------------------------------------------


class RankPart:
    """Tensors and views of one part of one rank, in the order of the image."""

    def __init__(self):
        self.tensors = {}  # name -> Array
        self.views = {}  # name -> (dtype, shape, [Array], zero bytes behind them)

    def own(self, view, name, array):
        """A tensor that is a view by itself."""
        self.tensors[name] = array
        self.views[view] = (array.dtype, array.shape, [array], 0)

    def stack(self, view, named, shape=None, rows_to=1):
        """Tensors stacked by rows into one view; zero rows up to a multiple of rows_to."""
        self.tensors.update(named)
        arrays = list(named.values())
        rows = sum(a.shape[0] for a in arrays)
        zero_rows = -rows % rows_to
        shape = shape or [rows + zero_rows] + arrays[0].shape[1:]
        self.views[view] = (arrays[0].dtype, shape, arrays, zero_rows * arrays[0].rows.shape[1])


class Engine:
    """Cuts the model for one rank."""

    def __init__(self, source, args, d, t):
        self.source, self.args, self.t = source, args, t
        self.tp = args.tp
        self.moe_ranks, self.moe_rank = args.tp * args.dp, d * args.tp + t
        self.text = source.config["text_config"]
        self.full_attention = {n - 1 for n in self.text["linear_attn_config"]["full_attn_layers"]}

    def whole(self, name):
        return self.source.get(name)

    def row_parallel_out(self, name):
        """Output features (rows) of this tensor-parallel rank."""
        return self.source.get(name).row_run(self.t, self.tp)

    def row_parallel_in(self, name):
        """Input features (columns) of this tensor-parallel rank."""
        return self.source.get(name).column_run(self.t, self.tp)

    def routed_experts(self, part, moe, view):
        n_experts = self.text["num_experts"]
        local = range(n_experts)
        if self.args.experts == "ep":
            n = n_experts // self.moe_ranks
            local = range(self.moe_rank * n, (self.moe_rank + 1) * n)

        def cut(name, columns):
            a = self.source.get(name)
            if self.args.experts == "ep":
                return a
            return (a.column_run if columns else a.row_run)(self.moe_rank, self.moe_ranks)

        for leaf, suffix in (("weight_packed", ""), ("weight_scale", "_scale")):
            w13 = {}
            for e in local:
                for w in ("w1", "w3"):  # gate half first, then up
                    name = f"{moe}experts.{e}.{w}.{leaf}"
                    w13[name] = cut(name, False)
            one = next(iter(w13.values())).shape
            part.stack(f"{view}experts.w13{suffix}", w13, [len(local), 2 * one[0], one[1]])
        for leaf, suffix in (("weight_packed", ""), ("weight_scale", "_scale")):
            w2 = {
                f"{moe}experts.{e}.w2.{leaf}": cut(f"{moe}experts.{e}.w2.{leaf}", True)
                for e in local
            }
            one = next(iter(w2.values())).shape
            part.stack(f"{view}experts.w2{suffix}", w2, [len(local), *one])

    def linear_attention(self, part, attn, view):
        in_proj = {
            f"{attn}{x}_proj.weight": self.row_parallel_out(f"{attn}{x}_proj.weight")
            for x in "qkvg"
        }
        in_proj[attn + "f_a_proj.weight"] = self.whole(attn + "f_a_proj.weight")
        in_proj[attn + "b_proj.weight"] = self.row_parallel_out(attn + "b_proj.weight")
        part.stack(view + "attn.qkvgfab", in_proj, rows_to=16)
        part.own(
            view + "attn.f_b",
            attn + "f_b_proj.weight",
            self.row_parallel_out(attn + "f_b_proj.weight"),
        )
        part.own(
            view + "attn.o", attn + "o_proj.weight", self.row_parallel_in(attn + "o_proj.weight")
        )
        part.stack(
            view + "attn.conv",
            {
                f"{attn}{x}_conv1d.weight": self.row_parallel_out(f"{attn}{x}_conv1d.weight")
                for x in "qkv"
            },
        )

    def latent_attention(self, part, attn, view):
        part.stack(
            view + "attn.qkv_a",
            {
                n: self.whole(n)
                for n in (attn + "q_a_proj.weight", attn + "kv_a_proj_with_mqa.weight")
            },
        )
        for short, name in (("g", "g_proj"), ("q_b", "q_b_proj"), ("kv_b", "kv_b_proj")):
            part.own(
                f"{view}attn.{short}",
                f"{attn}{name}.weight",
                self.row_parallel_out(f"{attn}{name}.weight"),
            )
        part.own(
            view + "attn.o", attn + "o_proj.weight", self.row_parallel_in(attn + "o_proj.weight")
        )

    def mlp(self, part, prefix, view, split):
        """(gate_up, down) of a gated MLP; returns the call that adds down, which may come later."""
        out = self.row_parallel_out if split else self.whole
        part.stack(
            view + "gate_up",
            {f"{prefix}{x}_proj.weight": out(f"{prefix}{x}_proj.weight") for x in ("gate", "up")},
        )
        name = prefix + "down_proj.weight"
        array = self.row_parallel_in(name) if split else self.whole(name)
        return lambda: part.own(view + "down", name, array)

    def small(self, part, layer, name, view, kda, moe):
        attn, mlp = name + "self_attn.", name + "block_sparse_moe."

        def keep(short, tensor):
            part.own(view + short, tensor, self.whole(tensor))

        keep("input_norm", name + "input_layernorm.weight")
        keep("post_attn_norm", name + "post_attention_layernorm.weight")
        if not kda:
            keep("attn.q_a_norm", attn + "q_a_layernorm.weight")
            keep("attn.kv_a_norm", attn + "kv_a_layernorm.weight")
        if moe:
            keep("latent.norm", mlp + "routed_expert_norm.weight")
            keep("router.bias", mlp + "gate.e_score_correction_bias")
        if kda:
            heads = self.text["linear_attn_config"]["num_heads"]
            stored = self.whole(attn + "A_log")
            assert not stored.rows[heads:].any(), f"layer {layer}: A_log tail is not zero"
            part.own(
                view + "attn.A_log",
                attn + "A_log",
                stored.take_rows(0, heads).row_run(self.t, self.tp),
            )
            part.own(
                view + "attn.dt_bias", attn + "dt_bias", self.row_parallel_out(attn + "dt_bias")
            )
            keep("attn.o_norm", attn + "o_norm.weight")
        for half, short in (("self_attention", "attn_res"), ("mlp", "mlp_res")):
            keep(short + ".norm", f"{name}{half}_res_norm.weight")
            keep(short + ".proj", f"{name}{half}_res_proj.weight")

    def decoder_layer(self, layer):
        part = RankPart()
        name, view = f"language_model.model.layers.{layer}.", f"layers.{layer}."
        kda = layer not in self.full_attention
        moe = layer >= self.text["first_k_dense_replace"]
        if moe:
            self.routed_experts(part, name + "block_sparse_moe.", view)
        (self.linear_attention if kda else self.latent_attention)(part, name + "self_attn.", view)
        if moe:
            prefix = name + "block_sparse_moe."
            down = self.mlp(
                part, prefix + "shared_experts.", view + "shared.", self.args.shared == "tp"
            )
            part.own(
                view + "router.gate", prefix + "gate.weight", self.whole(prefix + "gate.weight")
            )
            n = prefix + "routed_expert_down_proj.weight"
            part.own(view + "latent.down", n, self.whole(n))
            down()
            n = prefix + "routed_expert_up_proj.weight"
            part.own(view + "latent.up", n, self.whole(n))
        else:
            self.mlp(part, name + "mlp.", view + "mlp.", True)()
        self.small(part, layer, name, view, kda, moe)
        return part

    def embedding_and_vision(self):
        part = RankPart()
        name = "language_model.model.embed_tokens.weight"
        part.own("embed", name, self.row_parallel_out(name))
        if self.args.vision == "drop" or (self.args.vision == "first" and self.t != 0):
            return part
        blocks = range(self.source.config["vision_config"]["vt_num_hidden_layers"])
        tower = "vision_tower."
        order = [
            ("vision.patch_embed", tower + "patch_embed.proj.weight"),
            ("vision.pos_emb", tower + "patch_embed.pos_emb.weight"),
        ]
        order += [
            (f"vision.blocks.{b}.{short}", f"{tower}encoder.blocks.{b}.{leaf}.weight")
            for b in blocks
            for short, leaf in (
                ("wqkv", "wqkv"),
                ("wo", "wo"),
                ("fc0", "mlp.fc0"),
                ("fc1", "mlp.fc1"),
            )
        ]
        order += [(f"projector.{k}", f"mm_projector.proj.{k}.weight") for k in (0, 2)]
        order += [
            (f"vision.blocks.{b}.{x}", f"{tower}encoder.blocks.{b}.{x}.weight")
            for b in blocks
            for x in ("norm0", "norm1")
        ]
        order += [
            ("vision.norm", tower + "encoder.final_layernorm.weight"),
            ("projector.norm", "mm_projector.post_norm.weight"),
        ]
        for view, name in order:
            part.own(view, name, self.whole(name))
        return part

    def head(self):
        part = RankPart()
        part.own(
            "head",
            "language_model.lm_head.weight",
            self.row_parallel_out("language_model.lm_head.weight"),
        )
        for view, leaf in (
            ("norm", "norm"),
            ("output_res.norm", "output_attn_res_norm"),
            ("output_res.proj", "output_attn_res_proj"),
        ):
            name = f"language_model.model.{leaf}.weight"
            part.own(view, name, self.whole(name))
        return part

    def part(self, number):
        if number == 0:
            return self.embedding_and_vision()
        layers = self.text["num_hidden_layers"]
        return self.head() if number == layers + 1 else self.decoder_layer(number - 1)


# ---- comparison of one part ----------------------------------------------------------------------


def equal_rows(flat, rows):
    """Compares flat bytes with a matrix of bytes, in bounded pieces."""
    if flat.size != rows.size:
        return False
    width = rows.shape[1]
    step = max(1, PIECE // max(1, width))
    for r in range(0, rows.shape[0], step):
        piece = rows[r : r + step]
        if not np.array_equal(
            flat[r * width : (r + piece.shape[0]) * width].reshape(piece.shape), piece
        ):
            return False
    return True


def all_zero(flat):
    return not any(flat[i : i + PIECE].any() for i in range(0, flat.size, PIECE))


class PartCheck:
    """Checks one part file; `problems` tells what is wrong, the counts what was compared."""

    def __init__(self, path, rank, number, wanted):
        self.path, self.wanted = path, wanted
        self.problems, self.checks, self.counts = (
            [],
            0,
            {"tensors": 0, "views": 0, "pads": 0, "bytes": 0},
        )
        self.members, self.start, mapped = read_header(path)
        self.data = mapped[self.start :]
        self.meta = self.members.pop("__metadata__", {})
        self.pads = {n: e for n, e in self.members.items() if n.startswith("k3.pad.")}
        self.rank, self.number = rank, number

    def check(self, good, text):
        self.checks += 1
        if not good:
            self.problems.append(f"{os.path.basename(self.path)}: {text}")
        return good

    def frame(self):
        size = self.start + self.data.size
        self.check(
            self.start % UNIT == 0 and size % UNIT == 0,
            f"data at {self.start}, size {size}: not units",
        )
        fixed = {k: v for k, v in self.meta.items() if not k.startswith("k3.view.")}
        plan = fixed.pop("k3.plan", "")
        self.check(len(plan) == 64, "no plan digest")
        self.check(
            fixed == {"k3.format": "0", "k3.part": str(self.number), "k3.rank": str(self.rank)},
            f"metadata {fixed}",
        )

    def library(self):
        """The safetensors library opens it and sees the same."""
        with safe_open(self.path, framework="numpy") as f:
            keys = set(f.keys())
            self.check(
                keys == set(self.wanted.tensors) | set(self.pads),
                f"keys: missing {sorted(set(self.wanted.tensors) - keys)[:3]}, "
                f"extra {sorted(keys - set(self.wanted.tensors) - set(self.pads))[:3]}",
            )
            for name in sorted(keys & set(self.wanted.tensors)):
                got, want = f.get_slice(name), self.wanted.tensors[name]
                self.check(
                    (got.get_dtype(), list(got.get_shape())) == (want.dtype, want.shape),
                    f"{name}: {got.get_dtype()} {list(got.get_shape())}, "
                    f"wanted {want.dtype} {want.shape}",
                )

    def tensors(self):
        for name, want in self.wanted.tensors.items():
            entry = self.members.get(name)
            if entry is None:
                continue  # named by library()
            begin, end = entry["data_offsets"]
            self.check(
                equal_rows(self.data[begin:end], want.rows), f"{name}: bytes differ from the cut"
            )
            self.counts["tensors"] += 1
            self.counts["bytes"] += end - begin

    def views(self):
        """Bytes, form and order of the views; returns their intervals."""
        found = {}
        for key, value in self.meta.items():
            if key.startswith("k3.view."):
                dtype, shape, begin, end = value.split(";")
                found[key[8:]] = (dtype, [int(x) for x in shape.split(",")], int(begin), int(end))
        by_place = sorted(found, key=lambda n: found[n][2])
        self.check(list(found) == by_place, "views in the header are not in data order")
        self.check(
            by_place == list(self.wanted.views),
            f"views: missing {sorted(set(self.wanted.views) - set(found))[:3]}, "
            f"extra {sorted(set(found) - set(self.wanted.views))[:3]}, or another order",
        )
        spans = []
        for name in by_place:
            if name in self.wanted.views:
                self.view(name, found[name], self.wanted.views[name])
            spans.append((found[name][2], found[name][3], name))
        return spans

    def view(self, name, found, wanted):
        dtype, shape, begin, end = found
        want_dtype, want_shape, arrays, zero_bytes = wanted
        self.counts["views"] += 1
        self.check(
            (dtype, shape) == (want_dtype, want_shape),
            f"view {name}: {dtype} {shape}, wanted {want_dtype} {want_shape}",
        )
        size = ITEM[want_dtype] * int(np.prod(want_shape, dtype=np.int64))
        if not self.check(end - begin == size, f"view {name}: {end - begin} bytes, wanted {size}"):
            return
        group = len(arrays) > 1 or len(want_shape) > 1 and want_shape[0] > 1
        self.check(begin % (4096 if group else 256) == 0, f"view {name}: begins at {begin}")
        at = begin
        good = True
        for array in arrays:
            good = good and equal_rows(self.data[at : at + array.rows.size], array.rows)
            at += array.rows.size
        self.check(good, f"view {name}: bytes differ from the fused cut")
        self.check(
            all_zero(self.data[at:end]) and end - at == zero_bytes, f"view {name}: zero rows"
        )
        if zero_bytes:
            self.check(
                [at, end] in [e["data_offsets"] for e in self.pads.values()],
                f"view {name}: its zero rows are not a pad of their own",
            )

    def tiling(self, spans):
        """Views and the pads outside them tile the section; pads are zero, numbered, shortest."""
        pads = sorted(self.pads.items(), key=lambda kv: kv[1]["data_offsets"])
        self.check(
            [n for n, _ in pads] == [f"k3.pad.{k}" for k in range(len(pads))],
            "pads are not numbered in order",
        )
        ends = {e for _, e, _ in spans}
        begins = {b for b, _, _ in spans}
        for name, entry in pads:
            begin, end = entry["data_offsets"]
            self.counts["pads"] += 1
            self.check(
                entry["dtype"] == "U8" and entry["shape"] == [end - begin] and end > begin,
                f"{name}: {entry}",
            )
            self.check(all_zero(self.data[begin:end]), f"{name}: not zero")
            if end in ends:
                continue  # KDA zero rows, compared with their view
            spans.append((begin, end, name))
            to = UNIT if end == self.data.size else 4096 if end % 4096 == 0 else 256
            self.check(
                end % to == 0 and end - begin < to and (end in begins or end == self.data.size),
                f"{name}: {begin}..{end} is not the shortest",
            )
        at = 0
        for begin, end, name in sorted(spans):
            if not self.check(begin == at, f"{name} begins at {begin}, wanted {at}"):
                return
            at = end
        self.check(
            at == self.data.size, f"views and pads end at {at}, the data at {self.data.size}"
        )

    def run(self):
        self.frame()
        self.library()
        self.tensors()
        self.tiling(self.views())
        return self.checks, self.problems, self.counts, self.meta.get("k3.plan")


# ---- all parts -----------------------------------------------------------------------------------


def stages(args, layers):
    """[(first, end)] layers of each stage: the remainder goes to the stages before the last."""
    if args.pp_layers:
        counts = [int(x) for x in args.pp_layers.split(",")]
    else:
        counts = [layers // args.pp] * args.pp
        for k in range(layers % args.pp):
            counts[args.pp - 2 - k] += 1
    assert len(counts) == args.pp and sum(counts) == layers and min(counts) > 0, counts
    ends = np.cumsum(counts).tolist()
    return list(zip([0] + ends[:-1], ends))


def expected_files(args, layers):
    """{file name: (rank, part, d, t)}; ordered by part, so that source pages are read once."""
    files = []
    for d in range(args.dp):
        for p, (first, end) in enumerate(stages(args, layers)):
            for t in range(args.tp):
                rank = (d * args.pp + p) * args.tp + t
                parts = [layer + 1 for layer in range(first, end)]
                parts += [0] if p == 0 else []
                parts += [layers + 1] if p == args.pp - 1 else []
                files += [(part, rank, d, t) for part in parts]
    return {
        f"model-rank-{r}-part-{part}.safetensors": (r, part, d, t)
        for part, r, d, t in sorted(files)
    }


STATE = {}


def worker_start(args):
    STATE["source"], STATE["args"] = Source(args.ckpt), args


def worker_check(job):
    name, (rank, number, d, t) = job
    try:
        wanted = Engine(STATE["source"], STATE["args"], d, t).part(number)
        return PartCheck(os.path.join(STATE["args"].out, name), rank, number, wanted).run()
    except Exception as e:  # one broken part must not hide the others
        return 1, [f"{name}: {type(e).__name__}: {e}"], {}, None


def unused_source_tensors(args, source, files):
    """Names of source tensors that no rank's cut mentions."""
    used = set()
    for _, number, d, t in files.values():
        if args.experts == "tp" and (d, t) != (0, 0):
            continue  # every rank names the same tensors as the first
        used.update(Engine(source, args, d, t).part(number).tensors)
    left = set(source.where) - used
    if args.vision == "drop":
        left = {n for n in left if not n.startswith(("vision_tower.", "mm_projector."))}
    return sorted(left)


def run(args):
    source = Source(args.ckpt)
    files = expected_files(args, source.config["text_config"]["num_hidden_layers"])
    on_disk = {n for n in os.listdir(args.out) if n.endswith(".safetensors")}
    checks, problems, totals, plans = 2, [], {}, set()
    problems += [f"{n}: missing" for n in sorted(set(files) - on_disk)]
    problems += [f"{n}: not expected" for n in sorted(on_disk - set(files))]
    problems += [
        f"source tensor in no rank: {n}" for n in unused_source_tensors(args, source, files)
    ]
    jobs = [(n, place) for n, place in files.items() if n in on_disk]
    with concurrent.futures.ProcessPoolExecutor(
        args.jobs, initializer=worker_start, initargs=(args,)
    ) as pool:
        for count, bad, counts, plan in pool.map(worker_check, jobs):
            checks += count
            problems += bad
            plans.add(plan)
            for k, v in counts.items():
                totals[k] = totals.get(k, 0) + v
    checks += 1
    if len(plans) != 1:
        problems.append(f"parts name {len(plans)} different plans")
    return checks, problems, totals, len(jobs)


def main():
    parser = argparse.ArgumentParser(
        description="compare a shard set with an independent cut of its checkpoint"
    )
    parser.add_argument("ckpt")
    parser.add_argument("out")
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--dp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--pp-layers")
    parser.add_argument("--experts", choices=("ep", "tp"), default="tp")
    parser.add_argument("--shared", choices=("tp", "replicate"), default="tp")
    parser.add_argument("--vision", choices=("replicate", "first", "drop"), default="replicate")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    try:
        checks, problems, totals, parts = run(args)
    except (OSError, AssertionError, KeyError, ValueError) as e:
        print(f"test_cut: {type(e).__name__}: {e}", file=sys.stderr)
        return 2
    for text in problems[:20]:
        print("FAILED", text)
    if len(problems) > 20:
        print(f"… and {len(problems) - 20} more")
    print(
        f"{parts} parts, {totals.get('tensors', 0)} tensors and "
        f"{totals.get('views', 0)} views compared, "
        f"{totals.get('pads', 0)} pads, {totals.get('bytes', 0)} bytes of tensors"
    )
    print(f"{max(0, checks - len(problems))} checks passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
