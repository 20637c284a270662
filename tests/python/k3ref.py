#!/usr/bin/env python3
"""k3ref.py: a second, independent writer of the on-disk format, written from docs/FORMAT.md alone.

Purpose   Proves that FORMAT.md is complete: this program and k3-shard share no code, and a set made
          by one must be the set made by the other, byte for byte.
Does      reads a checkpoint, derives plan, parts, units files, source headers and manifest, and
          compares every byte of a directory with them (or writes the set itself).
Takes from the set under test only these, as the format says they are not derived: the
          compressed form of source-headers.zst (its content is compared) and the `tool` text of
          the manifest. Of a set with casts also what is said to engines in config.json (the rest of
          it is compared), what its report says of values (k3ref_report.py), and where numpy is not
          there the bytes of casts (their places are compared all the same).
Needs     Python 3.11 and its standard library; the `zstd` program for source-headers.zst; numpy to
          compute casts (quantref.py).
Memory    one part at a time; sources are mapped read-only.
Limits    written for clarity, not speed: meant for small checkpoints.
          Section numbers are those of FORMAT.md.

Usage     k3ref.py compare CKPT OUT [OUT…] [layout]   exit 0 equal, 1 different, 2 cannot
          k3ref.py build   CKPT OUT [OUT…] [layout]   writes a set (into empty or new directories)
          k3ref.py plan    CKPT [layout]              prints the plan text and its digest
          k3ref.py items   CKPT [layout]              prints files and parts of each item
          k3ref.py tree    FILE…                      prints fs-verity digests
          k3ref.py units   FILE                       prints the unit digests of a file
          layout: --tp N --dp N --pp N --pp-layers a,b,… --experts ep|tp --shared tp|replicate
                  --vision replicate|first|drop --repository S --revision S
                  --quant TEXT   the canonical text of a policy (k3ref_cast.py)
          compare, build: --ranks LIST  a set of these ranks alone (section 8.1)
"""

import argparse
import hashlib
import json
import math
import mmap
import os
import re
import stat
import struct
import subprocess
import sys
from dataclasses import dataclass, field

from k3ref_cast import ITEM, PartCasts, Policy
from k3ref_report import report_text

try:
    import quantref
except ImportError:
    quantref = None

BLOCK = 4096
UNIT = 524288
GROUP_ALIGN = 4096
SMALL_ALIGN = 256
KDA_ROW_ALIGN = 16
SCALE_GROUP = 32
DTYPE_BYTES = {"U8": 1, "BF16": 2, "F32": 4}
HEADER_LIMIT = 100_000_000
INTEGER_LIMIT = 1 << 53
TENSOR_NAME = re.compile(r"[A-Za-z0-9_.\-/]{1,512}")
FILE_NAME = re.compile(r"(?!\.)[!#-.0-\[\]-~]{1,255}")
ARCHITECTURE = "KimiK3ForConditionalGeneration"
INDEX_NAME = "model.safetensors.index.json"
HEADERS_NAME = "source-headers.zst"
MANIFEST_NAME = "k3-shards.json"
REPORT_NAME = "k3-cast-report.json"


class FormatError(Exception):
    """Bytes or parameters that the format does not allow."""


def require(condition, text):
    if not condition:
        raise FormatError(text)


def up(x, a):
    return -(-x // a) * a


def sha(data):
    return hashlib.sha256(data).hexdigest()


# ---- canonical JSON (section 2) ------------------------------------------------------------------


def canonical(value):
    """The canonical text (str) of a value made of dict, list, str and int."""
    if isinstance(value, dict):
        for name in value:
            require(isinstance(name, str), "a member name is not a string")
        members = sorted(value.items(), key=lambda kv: kv[0].encode())
        return "{" + ",".join(canonical(k) + ":" + canonical(v) for k, v in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(canonical(v) for v in value) + "]"
    if isinstance(value, str):
        require(
            all(0x20 <= ord(c) <= 0x7E for c in value), f"string not printable ASCII: {value!r}"
        )
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    require(type(value) is int and 0 <= value < INTEGER_LIMIT, f"not a canonical value: {value!r}")
    return str(value)


def no_duplicates(pairs):
    result = dict(pairs)
    require(len(result) == len(pairs), "duplicate member in a JSON object")
    return result


def refuse_number(text):
    raise FormatError(f"number not allowed: {text}")


def parse_canonical(data):
    """Parses canonical JSON (bytes, without any final LF); refuses every other form of it."""
    try:
        value = json.loads(
            data.decode("ascii"),
            object_pairs_hook=no_duplicates,
            parse_float=refuse_number,
            parse_constant=refuse_number,
        )
    except (ValueError, RecursionError) as e:
        raise FormatError(f"not JSON: {e}") from None
    require(isinstance(value, dict), "not one JSON object")
    require(canonical(value).encode() == data, "not the canonical form")
    return value


def seal_json(members):
    """Canonical text with `~sha256` and a final LF, as bytes."""
    zeros = canonical({**members, "~sha256": "0" * 64}) + "\n"
    return zeros.replace('"~sha256":"' + "0" * 64, '"~sha256":"' + sha(zeros.encode())).encode()


def check_sealed_json(data):
    """Parses what seal_json wrote and checks its digest; returns the members."""
    require(data.endswith(b"\n"), "no final LF")
    value = parse_canonical(data[:-1])
    found = value.pop("~sha256", None)
    require(isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found), "no ~sha256")
    require(seal_json(value) == data, "~sha256 is not the digest of the text")
    return value


# ---- digests (section 6) -------------------------------------------------------------------------


class Tree:
    """Feeds a file in any pieces; gives its plain SHA-256, unit digests and fs-verity digest."""

    def __init__(self):
        self.size = 0
        self.blocks = []
        self.rest = b""
        self.plain = hashlib.sha256()

    def feed(self, data):
        self.plain.update(data)
        self.size += len(data)
        data = self.rest + bytes(data) if self.rest else data
        whole = len(data) // BLOCK * BLOCK
        view = memoryview(data)
        for at in range(0, whole, BLOCK):
            self.blocks.append(hashlib.sha256(view[at : at + BLOCK]).digest())
        self.rest = bytes(view[whole:])

    def level0(self):
        if not self.rest:
            return self.blocks
        return self.blocks + [hashlib.sha256(self.rest.ljust(BLOCK, b"\0")).digest()]

    @staticmethod
    def next_level(digests):
        return [
            hashlib.sha256(b"".join(digests[i : i + 128]).ljust(BLOCK, b"\0")).digest()
            for i in range(0, len(digests), 128)
        ]

    def units(self):
        return self.next_level(self.level0())

    def digest(self):
        level = self.level0() or [bytes(32)]
        while len(level) > 1:
            level = self.next_level(level)
        descriptor = struct.pack("<BBBBIQ64s176x", 1, 1, 12, 0, 0, self.size, level[0])
        return sha(descriptor)

    def sha256(self):
        return self.plain.hexdigest()


def tree_of_file(path):
    tree = Tree()
    with open(path, "rb") as f:
        while piece := f.read(1 << 20):
            tree.feed(piece)
    return tree


def tree_of_bytes(data):
    tree = Tree()
    tree.feed(data)
    return tree


def file_entry(name, path):
    tree = tree_of_file(path)
    return {"bytes": tree.size, "name": name, "sha256": tree.sha256()}


# ---- checkpoint ----------------------------------------------------------------------------------


@dataclass
class SourceTensor:
    file: str
    dtype: str
    shape: list
    begin: int  # from the start of the file
    end: int


class Checkpoint:
    """config, index and headers of a published checkpoint; tensor bytes on demand."""

    def __init__(self, directory):
        self.directory = directory
        self.config_bytes = self.read("config.json")
        self.index_bytes = self.read(INDEX_NAME)
        self.config = json.loads(self.config_bytes, object_pairs_hook=no_duplicates)
        self.files = sorted(
            (
                n
                for n in os.listdir(directory)
                if n.endswith(".safetensors") and not n.startswith(".")
            ),
            key=str.encode,
        )
        require(self.files, f"{directory}: no safetensors files")
        self.maps, self.headers, self.sizes, self.tensors = {}, {}, {}, {}
        for name in self.files:
            require(FILE_NAME.fullmatch(name), f"file name not allowed: {name!r}")
            self.open_source(name)
        index = json.loads(self.index_bytes, object_pairs_hook=no_duplicates)
        found = {name: t.file for name, t in self.tensors.items()}
        require(index["weight_map"] == found, "the index does not list the tensors of the files")

    def read(self, name):
        with open(os.path.join(self.directory, name), "rb") as f:
            return f.read()

    def open_source(self, name):
        with open(os.path.join(self.directory, name), "rb") as f:
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        (length,) = struct.unpack_from("<Q", data)
        require(length <= HEADER_LIMIT and 8 + length <= len(data), f"{name}: header too long")
        header = data[: 8 + length]
        members = json.loads(header[8:], object_pairs_hook=no_duplicates)
        members.pop("__metadata__", None)
        at = 0
        for tensor, entry in sorted(members.items(), key=lambda kv: kv[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            require(TENSOR_NAME.fullmatch(tensor), f"{name}: tensor name not allowed: {tensor!r}")
            require(tensor not in self.tensors, f"{name}: {tensor} is also in another file")
            require(entry["dtype"] in DTYPE_BYTES, f"{name}: {tensor}: dtype {entry['dtype']}")
            size = math.prod(entry["shape"]) * DTYPE_BYTES[entry["dtype"]]
            require(begin == at and end == begin + size, f"{name}: {tensor}: wrong data_offsets")
            at = end
            self.tensors[tensor] = SourceTensor(
                name, entry["dtype"], entry["shape"], 8 + length + begin, 8 + length + end
            )
        require(8 + length + at == len(data), f"{name}: the data do not end with the file")
        self.maps[name], self.headers[name], self.sizes[name] = data, header, len(data)

    def bytes_of(self, name, axis, begin, end):
        """Bytes of a tensor; of axis 0 or 1 only the entries begin..end."""
        t = self.tensors[name]
        data = self.maps[t.file]
        if axis is None:
            return data[t.begin : t.end]
        item = DTYPE_BYTES[t.dtype] * math.prod(t.shape[axis + 1 :])
        if axis == 0:
            return data[t.begin + begin * item : t.begin + end * item]
        row = item * t.shape[1]
        return b"".join(
            data[t.begin + r * row + begin * item : t.begin + r * row + end * item]
            for r in range(t.shape[0])
        )

    def copied_files(self):
        """Names of the files that a set carries along (section 3)."""
        names = []
        for name in os.listdir(self.directory):
            if name.startswith(".") or name.endswith((".safetensors", ".index.json")):
                continue
            if not stat.S_ISREG(os.stat(os.path.join(self.directory, name)).st_mode):
                continue
            require(FILE_NAME.fullmatch(name), f"file name not allowed: {name!r}")
            names.append(name)
        return sorted(names, key=str.encode)

    def source_headers(self):
        """The content of source-headers.zst (section 7)."""
        entries = [("config.json", self.config_bytes), (INDEX_NAME, self.index_bytes)]
        entries += [(name, self.headers[name]) for name in self.files]
        out = [b"k3-source-headers 0\n"]
        for name, data in entries:
            out += [f"{name} {len(data)}\n".encode(), data, b"\n"]
        return b"".join(out)


# ---- configuration and layout (sections 4.1, 4.2) ------------------------------------------------

TEXT_MEMBERS = """first_k_dense_replace hidden_size intermediate_size kv_lora_rank
    linear_attn_config.full_attn_layers linear_attn_config.head_dim linear_attn_config.kda_layers
    linear_attn_config.num_heads linear_attn_config.short_conv_kernel_size moe_intermediate_size
    num_attention_heads num_experts num_hidden_layers num_shared_experts q_lora_rank
    qk_nope_head_dim qk_rope_head_dim routed_expert_hidden_size v_head_dim vocab_size""".split()
VISION_MEMBERS = """init_pos_emb_height init_pos_emb_width merge_kernel_size mm_hidden_size
    patch_size qkv_hidden_size text_hidden_size vt_hidden_size vt_intermediate_size
    vt_num_hidden_layers""".split()


def plan_config(config):
    """The `config` member of the plan: exactly these values of config.json, under dotted names."""
    names = ["text_config." + n for n in TEXT_MEMBERS] + [
        "vision_config." + n for n in VISION_MEMBERS
    ]
    result = {}
    for name in names:
        value = config
        for step in name.split("."):
            require(isinstance(value, dict) and step in value, f"config.json: no {name}")
            value = value[step]
        result[name] = value
    return result


class Model:
    """The letters of section 4.1."""

    def __init__(self, config):
        require(config.get("architectures") == [ARCHITECTURE], "config.json: unknown architecture")
        self.values = plan_config(config)
        t = {n: self.values["text_config." + n] for n in TEXT_MEMBERS}
        v = {n: self.values["vision_config." + n] for n in VISION_MEMBERS}
        self.H, self.V, self.L = t["hidden_size"], t["vocab_size"], t["num_hidden_layers"]
        self.NH, self.DI, self.MI = (
            t["num_attention_heads"],
            t["intermediate_size"],
            t["moe_intermediate_size"],
        )
        self.E, self.SI, self.LAT = (
            t["num_experts"],
            t["num_shared_experts"] * self.MI,
            t["routed_expert_hidden_size"],
        )
        self.QL, self.KVL, self.VD = t["q_lora_rank"], t["kv_lora_rank"], t["v_head_dim"]
        self.NOPE, self.ROPE = t["qk_nope_head_dim"], t["qk_rope_head_dim"]
        self.KH, self.KD = t["linear_attn_config.num_heads"], t["linear_attn_config.head_dim"]
        self.KK = t["linear_attn_config.short_conv_kernel_size"]
        self.P = self.KH * self.KD
        self.VH, self.VI, self.VQ = (
            v["vt_hidden_size"],
            v["vt_intermediate_size"],
            v["qkv_hidden_size"],
        )
        self.VB, self.PS = v["vt_num_hidden_layers"], v["patch_size"]
        self.PH, self.PW = v["init_pos_emb_height"], v["init_pos_emb_width"]
        self.MM = v["mm_hidden_size"] * math.prod(v["merge_kernel_size"])
        self.TH = v["text_hidden_size"]
        self.first_moe = t["first_k_dense_replace"]
        self.kda_layers = set(t["linear_attn_config.kda_layers"])
        mla = t["linear_attn_config.full_attn_layers"]
        both = sorted(mla + t["linear_attn_config.kda_layers"])
        require(
            both == list(range(1, self.L + 1)), "config.json: layer lists do not cover the layers"
        )
        require(
            config["text_config"].get("moe_layer_freq", 1) == 1,
            "config.json: moe_layer_freq is not 1",
        )
        require(
            self.LAT % SCALE_GROUP == 0 and self.MI % SCALE_GROUP == 0,
            "LAT or MI not a multiple of 32",
        )

    def is_kda(self, layer):
        return layer + 1 in self.kda_layers

    def is_moe(self, layer):
        return layer >= self.first_moe


@dataclass
class Layout:
    tp: int = 8
    dp: int = 1
    pp: int = 1
    experts: str = "tp"
    shared: str = "tp"
    vision: str = "replicate"
    pp_layers: list = None
    repository: str = ""
    revision: str = ""

    def resolve(self, m):
        """Fills pp_layers and refuses what does not divide."""
        require(min(self.tp, self.dp, self.pp) >= 1, "tp, dp and pp are at least 1")
        if self.pp_layers is None:
            self.pp_layers = [m.L // self.pp] * self.pp
            for k in range(2, m.L % self.pp + 2):
                self.pp_layers[-k] += 1
        require(
            len(self.pp_layers) == self.pp
            and min(self.pp_layers) >= 1
            and sum(self.pp_layers) == m.L,
            f"pp_layers {self.pp_layers} do not make {m.L} layers in {self.pp} stages",
        )
        self.world = self.tp * self.dp * self.pp
        self.G = self.tp * self.dp
        require(self.world <= 4096, "too many ranks")
        needs = [("KDA heads", m.KH), ("heads", m.NH), ("vocabulary", m.V)]
        if m.first_moe > 0:
            needs.append(("intermediate size", m.DI))
        if self.shared == "tp":
            needs.append(("shared intermediate size", m.SI))
        for what, n in needs:
            require(n % self.tp == 0, f"tp {self.tp} does not divide {what} {n}")
        if self.experts == "ep":
            require(m.E % self.G == 0, f"{self.G} does not divide {m.E} experts")
        else:
            require(m.MI % (SCALE_GROUP * self.G) == 0, f"32*{self.G} does not divide {m.MI}")
        return self

    def place(self, rank):
        """(d, p, t) of a rank."""
        return rank // (self.pp * self.tp), rank // self.tp % self.pp, rank % self.tp

    def parts(self, m, rank):
        """Part numbers of a rank, ascending."""
        _, p, _ = self.place(rank)
        first = sum(self.pp_layers[:p])
        parts = list(range(first + 1, first + self.pp_layers[p] + 1))
        return ([0] if p == 0 else []) + parts + ([m.L + 1] if p == self.pp - 1 else [])


# ---- groups of a part (section 4.4) --------------------------------------------------------------


@dataclass
class Piece:
    """One tensor of a part: what is taken of the source. axis None: all of it."""

    name: str
    dtype: str
    source_shape: list
    axis: int = None
    begin: int = 0
    end: int = 0
    view: str = None  # name of its own view, when the group has none
    open_ended: bool = False  # A_log: the stored length may be larger than source_shape
    made: list = None  # shape of what a cast makes
    cast: object = None  # how it is made (k3ref_cast.Cast)

    def shape(self):
        if self.made is not None:
            return list(self.made)
        shape = list(self.source_shape)
        if self.axis is not None:
            shape[self.axis] = self.end - self.begin
        return shape


@dataclass
class Group:
    pieces: list
    view: str = None  # one view over the whole group
    view_shape: list = None
    zero_bytes: int = 0  # KDA zero rows
    small: bool = False
    tail: bool = False  # at the end of `small`: global scales, shapes


class Rules:
    """The tables of section 4.4 for one rank."""

    def __init__(self, m, layout, rank):
        self.m, self.layout = m, layout
        self.d, self.p, self.t = layout.place(rank)
        self.g = self.d * layout.tp + self.t

    def cut(self, kind, shape):
        """(axis, begin, end) of a split kind."""
        if kind in ("Srows", "Scols"):
            kind = kind[1:] if self.layout.shared == "tp" else "R"
        if kind in ("R", "T"):
            return None, 0, 0
        count, index = self.layout.tp, self.t
        if kind[0] == "X":
            if self.layout.experts == "ep":
                return None, 0, 0
            count, index, kind = self.layout.G, self.g, kind[1:]
        axis = 0 if kind == "rows" else 1
        run = shape[axis] // count
        require(run * count == shape[axis], f"{count} does not divide {shape[axis]}")
        return axis, index * run, (index + 1) * run

    def piece(self, name, dtype, shape, kind, view=None):
        return Piece(name, dtype, shape, *self.cut(kind, shape), view)

    def single(self, name, shape, kind, view):
        return Group([self.piece(name, "BF16", shape, kind, view)])

    def fused(self, view, tensors, dtype="BF16", align=1):
        """Tensors (name, shape, kind) stacked along dimension 0, one view over all."""
        pieces = [self.piece(n, dtype, s, k) for n, s, k in tensors]
        rows = sum(p.shape()[0] for p in pieces)
        rest = pieces[0].shape()[1:]
        zero_rows = up(rows, align) - rows
        return Group(
            pieces,
            view,
            [rows + zero_rows] + rest,
            zero_rows * math.prod(rest) * DTYPE_BYTES[dtype],
        )

    def experts(self, prefix, view):
        m = self.m
        count = m.E // self.layout.G if self.layout.experts == "ep" else m.E
        first = self.g * count if self.layout.experts == "ep" else 0
        for leaf, per_byte, suffix in (
            ("weight_packed", 2, ""),
            ("weight_scale", SCALE_GROUP, "_scale"),
        ):
            pieces = [
                self.piece(
                    f"{prefix}experts.{e}.{w}.{leaf}", "U8", [m.MI, m.LAT // per_byte], "Xrows"
                )
                for e in range(first, first + count)
                for w in ("w1", "w3")
            ]
            rows, cols = pieces[0].shape()
            yield Group(pieces, f"{view}experts.w13{suffix}", [count, 2 * rows, cols])
        for leaf, per_byte, suffix in (
            ("weight_packed", 2, ""),
            ("weight_scale", SCALE_GROUP, "_scale"),
        ):
            pieces = [
                self.piece(
                    f"{prefix}experts.{e}.w2.{leaf}", "U8", [m.LAT, m.MI // per_byte], "Xcols"
                )
                for e in range(first, first + count)
            ]
            yield Group(pieces, f"{view}experts.w2{suffix}", [count] + pieces[0].shape())

    def kda(self, a, v):
        m = self.m
        rows = [(f"{a}{x}_proj.weight", [m.P, m.H], "rows") for x in "qkvg"]
        rows += [
            (a + "f_a_proj.weight", [m.KD, m.H], "R"),
            (a + "b_proj.weight", [m.KH, m.H], "rows"),
        ]
        yield self.fused(v + "attn.qkvgfab", rows, align=KDA_ROW_ALIGN)
        yield self.single(a + "f_b_proj.weight", [m.P, m.KD], "rows", v + "attn.f_b")
        yield self.single(a + "o_proj.weight", [m.H, m.P], "cols", v + "attn.o")
        yield self.fused(
            v + "attn.conv",
            [(f"{a}{x}_conv1d.weight", [m.P, 1, m.KK], "rows") for x in "qkv"],
            "F32",
        )

    def mla(self, a, v):
        m = self.m
        yield self.fused(
            v + "attn.qkv_a",
            [
                (a + "q_a_proj.weight", [m.QL, m.H], "R"),
                (a + "kv_a_proj_with_mqa.weight", [m.KVL + m.ROPE, m.H], "R"),
            ],
        )
        yield self.single(a + "g_proj.weight", [m.NH * m.VD, m.H], "rows", v + "attn.g")
        yield self.single(
            a + "q_b_proj.weight", [m.NH * (m.NOPE + m.ROPE), m.QL], "rows", v + "attn.q_b"
        )
        yield self.single(
            a + "kv_b_proj.weight", [m.NH * (m.NOPE + m.VD), m.KVL], "rows", v + "attn.kv_b"
        )
        yield self.single(a + "o_proj.weight", [m.H, m.NH * m.VD], "cols", v + "attn.o")

    def dense(self, n, v):
        m = self.m
        yield self.fused(
            v + "mlp.gate_up",
            [(f"{n}mlp.{x}_proj.weight", [m.DI, m.H], "rows") for x in ("gate", "up")],
        )
        yield self.single(n + "mlp.down_proj.weight", [m.H, m.DI], "cols", v + "mlp.down")

    def moe(self, b, v):
        m = self.m
        yield self.fused(
            v + "shared.gate_up",
            [(f"{b}shared_experts.{x}_proj.weight", [m.SI, m.H], "Srows") for x in ("gate", "up")],
        )
        yield self.single(b + "gate.weight", [m.E, m.H], "R", v + "router.gate")
        yield self.single(
            b + "routed_expert_down_proj.weight", [m.LAT, m.H], "R", v + "latent.down"
        )
        yield self.single(
            b + "shared_experts.down_proj.weight", [m.H, m.SI], "Scols", v + "shared.down"
        )
        yield self.single(b + "routed_expert_up_proj.weight", [m.H, m.LAT], "R", v + "latent.up")

    def layer_small(self, n, v, layer):
        m, kda, moe = self.m, self.m.is_kda(layer), self.m.is_moe(layer)
        rows = [
            (True, "input_layernorm.weight", "BF16", [m.H], "R", "input_norm"),
            (True, "post_attention_layernorm.weight", "BF16", [m.H], "R", "post_attn_norm"),
            (not kda, "self_attn.q_a_layernorm.weight", "BF16", [m.QL], "R", "attn.q_a_norm"),
            (not kda, "self_attn.kv_a_layernorm.weight", "BF16", [m.KVL], "R", "attn.kv_a_norm"),
            (
                moe,
                "block_sparse_moe.routed_expert_norm.weight",
                "BF16",
                [m.LAT],
                "R",
                "latent.norm",
            ),
            (
                moe,
                "block_sparse_moe.gate.e_score_correction_bias",
                "F32",
                [m.E],
                "R",
                "router.bias",
            ),
            (kda, "self_attn.A_log", "F32", [m.KH], "rows", "attn.A_log"),
            (kda, "self_attn.dt_bias", "F32", [m.P], "rows", "attn.dt_bias"),
            (kda, "self_attn.o_norm.weight", "F32", [m.KD], "R", "attn.o_norm"),
            (True, "self_attention_res_norm.weight", "BF16", [m.H], "R", "attn_res.norm"),
            (True, "self_attention_res_proj.weight", "BF16", [1, m.H], "R", "attn_res.proj"),
            (True, "mlp_res_norm.weight", "BF16", [m.H], "R", "mlp_res.norm"),
            (True, "mlp_res_proj.weight", "BF16", [1, m.H], "R", "mlp_res.proj"),
        ]
        pieces = [
            self.piece(n + name, dtype, shape, kind, v + view)
            for present, name, dtype, shape, kind, view in rows
            if present
        ]
        for piece in pieces:
            piece.open_ended = piece.name.endswith(".A_log")
        return Group(pieces, small=True)

    def layer(self, layer):
        n, v = f"language_model.model.layers.{layer}.", f"layers.{layer}."
        moe = self.m.is_moe(layer)
        if moe:
            yield from self.experts(n + "block_sparse_moe.", v)
        yield from (self.kda if self.m.is_kda(layer) else self.mla)(n + "self_attn.", v)
        yield from self.moe(n + "block_sparse_moe.", v) if moe else self.dense(n, v)
        yield self.layer_small(n, v, layer)

    def has_vision(self):
        return self.layout.vision == "replicate" or (self.layout.vision == "first" and self.t == 0)

    def first(self, vision):
        m = self.m
        yield self.single("language_model.model.embed_tokens.weight", [m.V, m.H], "rows", "embed")
        if not vision:
            return
        yield self.single(
            "vision_tower.patch_embed.proj.weight", [m.VH, 3, m.PS, m.PS], "T", "vision.patch_embed"
        )
        yield self.single(
            "vision_tower.patch_embed.pos_emb.weight", [m.PH, m.PW, m.VH], "T", "vision.pos_emb"
        )
        norms = []
        for b in range(m.VB):
            n, v = f"vision_tower.encoder.blocks.{b}.", f"vision.blocks.{b}."
            yield self.single(n + "wqkv.weight", [3 * m.VQ, m.VH], "T", v + "wqkv")
            yield self.single(n + "wo.weight", [m.VH, m.VQ], "T", v + "wo")
            yield self.single(n + "mlp.fc0.weight", [m.VI, m.VH], "T", v + "fc0")
            yield self.single(n + "mlp.fc1.weight", [m.VH, m.VI], "T", v + "fc1")
            norms += [(n + x + ".weight", m.VH, v + x) for x in ("norm0", "norm1")]
        yield self.single("mm_projector.proj.0.weight", [m.MM, m.MM], "T", "projector.0")
        yield self.single("mm_projector.proj.2.weight", [m.TH, m.MM], "T", "projector.2")
        norms.append(("vision_tower.encoder.final_layernorm.weight", m.VH, "vision.norm"))
        norms.append(("mm_projector.post_norm.weight", m.TH, "projector.norm"))
        yield Group([self.piece(n, "BF16", [size], "T", v) for n, size, v in norms], small=True)

    def last(self):
        m = self.m
        yield self.single("language_model.lm_head.weight", [m.V, m.H], "rows", "head")
        yield Group(
            [
                self.piece("language_model.model.norm.weight", "BF16", [m.H], "R", "norm"),
                self.piece(
                    "language_model.model.output_attn_res_norm.weight",
                    "BF16",
                    [m.H],
                    "R",
                    "output_res.norm",
                ),
                self.piece(
                    "language_model.model.output_attn_res_proj.weight",
                    "BF16",
                    [1, m.H],
                    "R",
                    "output_res.proj",
                ),
            ],
            small=True,
        )

    def groups(self, part):
        if part == 0:
            return self.first(self.has_vision())
        return self.last() if part == self.m.L + 1 else self.layer(part - 1)


# ---- part file (section 5) -----------------------------------------------------------------------


@dataclass
class Entry:
    """A tensor (piece set) or a pad (piece None) at its place in the data section."""

    name: str
    dtype: str
    shape: list
    begin: int
    end: int
    piece: Piece = None

    def text(self):
        shape = ",".join(map(str, self.shape))
        return (
            f'"{self.name}":{{"dtype":"{self.dtype}","shape":[{shape}],'
            f'"data_offsets":[{self.begin},{self.end}]}}'
        )


@dataclass
class PartLayout:
    entries: list = field(default_factory=list)
    views: list = field(default_factory=list)  # (name, dtype, shape, begin, end)
    at: int = 0
    pads: int = 0

    def pad(self, size):
        if size:
            self.entries.append(Entry(f"k3.pad.{self.pads}", "U8", [size], self.at, self.at + size))
            self.at += size
            self.pads += 1

    def align(self, a):
        self.pad(up(self.at, a) - self.at)

    def add_group(self, group):
        self.align(SMALL_ALIGN if group.tail else GROUP_ALIGN)
        start = self.at
        for piece in group.pieces:
            if group.small:
                self.align(SMALL_ALIGN)
            size = math.prod(piece.shape()) * ITEM[piece.dtype]
            entry = Entry(piece.name, piece.dtype, piece.shape(), self.at, self.at + size, piece)
            self.entries.append(entry)
            if group.view is None:
                self.views.append((piece.view, piece.dtype, piece.shape(), entry.begin, entry.end))
            self.at += size
        self.pad(group.zero_bytes)
        if group.view is not None:
            self.views.append((group.view, group.pieces[0].dtype, group.view_shape, start, self.at))


def lay_out(groups):
    part = PartLayout()
    for group in groups:
        part.add_group(group)
    part.align(UNIT)
    return part


def part_header(part, plan_digest, rank, number):
    meta = [
        ("k3.format", "0"),
        ("k3.part", str(number)),
        ("k3.plan", plan_digest),
        ("k3.rank", str(rank)),
    ]
    for name, dtype, shape, begin, end in part.views:
        meta.append((f"k3.view.{name}", f"{dtype};{','.join(map(str, shape))};{begin};{end}"))
    text = '{"__metadata__":{' + ",".join(f'"{k}":"{v}"' for k, v in meta) + "}"
    text += "".join("," + e.text() for e in part.entries) + "}"
    total = up(8 + len(text), UNIT)
    return struct.pack("<Q", total - 8) + text.encode().ljust(total - 8, b" ")


def part_name(rank, part):
    return f"model-rank-{rank}-part-{part}.safetensors"


def units_name(rank):
    return f"model-rank-{rank}.units"


# ---- the set -------------------------------------------------------------------------------------


class Set:
    """Everything of one set that follows from (checkpoint, layout, policy, repository, revision).

    `taken` gives the bytes of a file of the set under test: of those that the format does not fix.
    """

    def __init__(self, ckpt, layout, ranks=None, policy="verbatim", taken=None):
        self.ckpt = ckpt if isinstance(ckpt, Checkpoint) else Checkpoint(ckpt)
        self.model = Model(self.ckpt.config)
        self.layout = layout.resolve(self.model)
        self.ranks = sorted(ranks) if ranks else list(range(self.layout.world))
        require(self.ranks[-1] < self.layout.world, f"the layout has no rank {self.ranks[-1]}")
        self.policy, self.taken = Policy(policy, require), taken
        require(taken or not self.policy.casts, "a set with casts is only compared")
        self.values = quantref.Values(self.ckpt, self.policy.oow) if quantref else None
        self.check_sources()
        self.plan = self.make_plan()
        self.plan_text = canonical(self.plan)
        self.plan_digest = sha(self.plan_text.encode())

    def all_parts(self):
        return list(range(self.model.L + 2))

    def source_parts(self):
        """tensor name -> part, and the piece that describes it, over all parts (whole tensors)."""
        whole = Rules(self.model, Layout(tp=1, experts="ep").resolve(self.model), 0)
        return {
            piece.name: (part, piece)
            for part in self.all_parts()
            for group in whole.groups(part)
            for piece in group.pieces
        }

    def check_sources(self):
        """Every expected tensor is there with its dtype and shape, and no other."""
        expected = self.source_parts()
        missing = sorted(set(expected) - set(self.ckpt.tensors))
        extra = sorted(set(self.ckpt.tensors) - set(expected))
        require(not missing, f"{len(missing)} tensors are missing, first {missing[:1]}")
        require(not extra, f"{len(extra)} tensors are unknown, first {extra[:1]}")
        for name, (_, piece) in expected.items():
            t = self.ckpt.tensors[name]
            require(t.dtype == piece.dtype, f"{name}: dtype {t.dtype}, wanted {piece.dtype}")
            if not piece.open_ended:
                require(
                    t.shape == piece.source_shape,
                    f"{name}: shape {t.shape}, wanted {piece.source_shape}",
                )
                continue
            require(
                len(t.shape) == 1 and t.shape[0] >= piece.source_shape[0],
                f"{name}: shape {t.shape}",
            )
            tail = self.ckpt.bytes_of(name, 0, piece.source_shape[0], t.shape[0])
            require(not any(tail), f"{name}: the tail is not zero")

    def make_plan(self):
        lay, ckpt = self.layout, self.ckpt
        return {
            "architecture": ARCHITECTURE,
            "config": self.model.values,
            "config_sha256": sha(ckpt.config_bytes),
            "format": "k3-plan",
            "headers": [
                {
                    "bytes": ckpt.sizes[n],
                    "header_bytes": len(ckpt.headers[n]),
                    "name": n,
                    "sha256": sha(ckpt.headers[n]),
                }
                for n in ckpt.files
            ],
            "index_sha256": sha(ckpt.index_bytes),
            "layout": {
                "dp": lay.dp,
                "experts": lay.experts,
                "pp": lay.pp,
                "pp_layers": lay.pp_layers,
                "shared": lay.shared,
                "tp": lay.tp,
                "vision": lay.vision,
            },
            "policy": self.policy.text,
            "repository": lay.repository,
            "revision": lay.revision,
            "version": 0,
        }

    def sources(self):
        """Names of the source files that the manifest lists (section 8.1)."""
        if len(self.ranks) == self.layout.world:
            return self.ckpt.files
        held = {
            self.ckpt.tensors[piece.name].file
            for rank in self.ranks
            for part in self.layout.parts(self.model, rank)
            for group in Rules(self.model, self.layout, rank).groups(part)
            for piece in group.pieces
        }
        return [name for name in self.ckpt.files if name in held]

    def items(self):
        """Connected sets of (files, parts), by lowest part (section 4.6)."""
        groups = []
        for name, (part, _) in self.source_parts().items():
            file = self.ckpt.tensors[name].file
            touching = [g for g in groups if file in g[0] or part in g[1]]
            for g in touching:
                groups.remove(g)
            groups.append(
                (
                    set().union({file}, *(g[0] for g in touching)),
                    set().union({part}, *(g[1] for g in touching)),
                )
            )
        return sorted(groups, key=lambda g: min(g[1]))

    def lay_out_part(self, rank, part):
        groups = Rules(self.model, self.layout, rank).groups(part)
        return lay_out(PartCasts(self.policy).groups(groups) if self.policy.casts else groups)

    def cast_bytes(self, entry, rank, part, data_offset):
        """A tensor that a cast makes: computed, or what the part has there."""
        if self.values:
            return self.values.bytes_of(entry.piece)
        found = self.taken(part_name(rank, part)) or b""
        size = entry.end - entry.begin
        return found[data_offset + entry.begin :][:size].ljust(size, b"\0")

    def part_bytes(self, rank, part):
        """(whole file, data_offset, layout) of one part."""
        placed = self.lay_out_part(rank, part)
        header = part_header(placed, self.plan_digest, rank, part)
        out = [header]
        for e in placed.entries:
            if e.piece is None:
                out.append(bytes(e.end - e.begin))
                continue
            if e.piece.cast:
                out.append(self.cast_bytes(e, rank, part, len(header)))
                assert len(out[-1]) == e.end - e.begin, e.name
                continue
            data = self.ckpt.bytes_of(e.name, e.piece.axis, e.piece.begin, e.piece.end)
            assert len(data) == e.end - e.begin, e.name
            out.append(data)
        return b"".join(out), len(header), placed

    def copied_files(self):
        """(name, bytes) of the files that are copied, or written in their place (section 4.8)."""
        names = set(self.ckpt.copied_files())
        modelopt = "config=modelopt" in self.policy.options
        if modelopt:
            names.add("hf_quant_config.json")
        if self.policy.casts:
            names.add(REPORT_NAME)
        for name in sorted(names, key=str.encode):
            if self.policy.casts and name == "config.json":
                found = self.taken(name) or b""
                rest = without_quantization(found, modelopt)
                wanted = without_quantization(self.ckpt.config_bytes, False)
                same = json.loads(rest) == json.loads(wanted) if modelopt else rest == wanted
                require(same, "config.json: more than its description of casts was changed")
                yield name, found
            elif modelopt and name == "hf_quant_config.json":
                found = self.taken(name) or b""
                require(isinstance(json.loads(found), dict), f"{name}: no object")
                yield name, found
            elif self.policy.casts and name == REPORT_NAME:
                yield name, report_text(self, self.taken(name), require)
            else:
                yield name, self.ckpt.read(name)

    def files(self, tool, headers_zst):
        """Yields (name, (rank, part) or None, bytes) of every file, the manifest last."""
        copied = []
        for name, data in self.copied_files():
            copied.append({"bytes": len(data), "name": name, "sha256": sha(data)})
            yield name, None, data
        yield HEADERS_NAME, None, headers_zst
        ranks = []
        for rank in self.ranks:
            entry = {"image_bytes": 0, "parts": [], "rank": rank}
            units = []
            for part in self.layout.parts(self.model, rank):
                data, data_offset, _ = self.part_bytes(rank, part)
                tree = tree_of_bytes(data)
                units += tree.units()
                entry["image_bytes"] += len(data) - data_offset
                entry["parts"].append(
                    {
                        "bytes": len(data),
                        "data_offset": data_offset,
                        "name": part_name(rank, part),
                        "sha256": tree.sha256(),
                        "tree": tree.digest(),
                    }
                )
                yield part_name(rank, part), (rank, part), data
            data = self.units_file(rank, len(entry["parts"]), units)
            entry["units"] = {"bytes": len(data), "name": units_name(rank), "sha256": sha(data)}
            ranks.append(entry)
            yield units_name(rank), None, data
        missed = [glob for glob, _ in self.policy.patterns if glob not in self.policy.reached]
        require(not missed or len(self.ranks) < self.layout.world, f"{missed} reach no matrix")
        yield MANIFEST_NAME, None, self.manifest(tool, headers_zst, copied, ranks)

    def units_file(self, rank, part_count, units):
        header = struct.pack(
            "<8sIIIIQ32s64x",
            b"K3UNITS\0",
            0,
            rank,
            part_count,
            UNIT,
            len(units),
            bytes.fromhex(self.plan_digest),
        )
        return header + b"".join(units)

    def manifest(self, tool, headers_zst, copied, ranks):
        parts = [p for r in ranks for p in r["parts"]]
        return seal_json(
            {
                "files": copied,
                "format": "k3-shards",
                "headers": {
                    "bytes": len(headers_zst),
                    "name": HEADERS_NAME,
                    "sha256": sha(headers_zst),
                },
                "plan": self.plan,
                "plan_sha256": self.plan_digest,
                "ranks": ranks,
                "sources": [
                    file_entry(n, os.path.join(self.ckpt.directory, n)) for n in self.sources()
                ],
                "tool": tool,
                "totals": {
                    "image_bytes": sum(r["image_bytes"] for r in ranks),
                    "part_bytes": sum(p["bytes"] for p in parts),
                    "parts": len(parts),
                    "ranks": len(ranks),
                },
                "version": 0,
            }
        )


def without_quantization(text, modelopt):
    """config.json with 0 in place of text_config.quantization_config; with modelopt the document
    without its first member, which must be that of ModelOpt, and with such a 0."""
    text = text.decode()
    if modelopt:
        value = json.loads(text)
        first = next(iter(value))
        require(first == "quantization_config" and value[first]["quant_method"] == "modelopt_mixed",
                "config.json: its first member is not that of ModelOpt")
        del value[first]
        require("quantization_config" not in value["text_config"], "config.json: both are described")
        value["text_config"]["quantization_config"] = 0
        return json.dumps(value)
    inside = re.search(r'"text_config"\s*:\s*\{', text)
    require(inside, "config.json: no text_config")
    at = re.compile(r'"quantization_config"\s*:\s*').search(text, inside.end())
    require(at, "config.json: no quantization_config")
    value, end = json.JSONDecoder(object_pairs_hook=no_duplicates).raw_decode(text, at.end())
    require(isinstance(value, dict), "config.json: quantization_config is no object")
    return text[: at.end()] + "0" + text[end:]


def zstd(arguments, data):
    done = subprocess.run(
        ["zstd", "-q", *arguments],
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    require(
        done.returncode == 0,
        f"zstd {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}",
    )
    return done.stdout


def is_one_zstd_frame(data):
    """True when the bytes are exactly one zstd frame (RFC 8878, section 3.1.1)."""
    if len(data) < 6 or data[:4] != b"\x28\xb5\x2f\xfd":
        return False
    descriptor = data[4]
    single = descriptor >> 5 & 1
    size_field = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3] + size_field
    last = False
    while not last:
        if at + 3 > len(data):
            return False
        block = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        at += 3 + (1 if kind == 1 else size)
    return at + (4 if descriptor >> 2 & 1 else 0) == len(data)


def build_set(ckpt, layout, directories, tool="k3-shard 0", ranks=None):
    """Writes a whole set, the manifest last."""
    directories = [directories] if isinstance(directories, str) else list(directories)
    made = Set(ckpt, layout, ranks)
    for d in directories:
        os.makedirs(d, exist_ok=True)
        require(not os.listdir(d), f"{d} is not empty")
    headers_zst = zstd(["-c", "-3"], made.ckpt.source_headers())
    for name, place, data in made.files(tool, headers_zst):
        directory = directories[sum(place) % len(directories) if place else 0]
        with open(os.path.join(directory, name), "wb") as f:
            f.write(data)
    return made


# ---- comparison ----------------------------------------------------------------------------------


def first_difference(a, b):
    """Offset of the first byte that differs, or the shorter length."""
    at, step = 0, 1 << 16
    end = min(len(a), len(b))
    while at < end and a[at : at + step] == b[at : at + step]:
        at += step
    for i in range(at, min(at + step, end)):
        if a[i] != b[i]:
            return i
    return end


def show(data, at):
    piece = data[max(0, at - 24) : at + 40]
    if piece and all(0x20 <= c <= 0x7E or c == 10 for c in piece):
        return repr(piece.decode())
    return data[at : at + 16].hex(" ") or "(end of file)"


class Comparison:
    """Compares a set on disk with what Set derives; collects problems in words."""

    def __init__(self, made, directories):
        self.made, self.directories = made, directories
        self.problems = []
        self.equal_files = 0

    def problem(self, text):
        self.problems.append(text)

    def read(self, name, where=0):
        path = os.path.join(self.directories[where], name)
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as f:
            return f.read()

    def where(self, name, place, at):
        """What lies at an offset of a part."""
        if place is None:
            return ""
        data, data_offset, placed = self.made.part_bytes(*place)
        text = f", unit {at // UNIT}"
        if at < data_offset:
            return text + " (header)"
        for e in placed.entries:
            if e.begin <= at - data_offset < e.end:
                return text + f", {e.name} byte {at - data_offset - e.begin}"
        return text

    def compare_file(self, name, place, wanted):
        where = sum(place) % len(self.directories) if place else 0
        found = self.read(name, where)
        if found is None:
            return self.problem(f"{name}: missing")
        if found == wanted:
            self.equal_files += 1
            return None
        at = first_difference(found, wanted)
        return self.problem(
            f"{name}: {len(found)} bytes, wanted {len(wanted)}; first difference at offset {at}"
            f"{self.where(name, place, at)}\n    found  {show(found, at)}"
            f"\n    wanted {show(wanted, at)}"
        )

    def compare_plan(self, manifest):
        """Member by member, so that a wrong plan is named once, before all parts differ."""
        found = manifest.get("plan")
        if not isinstance(found, dict):
            return self.problem(f"{MANIFEST_NAME}: no plan")
        for name in sorted(set(found) | set(self.made.plan)):
            a, b = found.get(name), self.made.plan.get(name)
            if a != b:
                self.problem(f"plan: {name}: found {a!r:.300}, wanted {b!r:.300}")
        return None

    def tool(self):
        """The tool text of the manifest; also compares the plan."""
        data = self.read(MANIFEST_NAME)
        if data is None:
            return "k3-shard 0"
        try:
            manifest = check_sealed_json(data)
        except FormatError as e:
            self.problem(f"{MANIFEST_NAME}: {e}")
            try:
                manifest = json.loads(data)
            except ValueError:
                return "k3-shard 0"
        self.compare_plan(manifest)
        tool = manifest.get("tool")
        if not (isinstance(tool, str) and re.fullmatch(r"k3-shard [!-~]+", tool)):
            self.problem(f"{MANIFEST_NAME}: tool is {tool!r}")
            return "k3-shard 0"
        return tool

    def headers(self):
        """source-headers.zst as it is; its content must be what we make."""
        data = self.read(HEADERS_NAME)
        if data is None:
            return b""
        if not is_one_zstd_frame(data):
            self.problem(f"{HEADERS_NAME}: not exactly one zstd frame")
        try:
            found = zstd(["-dc"], data)
        except FormatError as e:
            self.problem(f"{HEADERS_NAME}: {e}")
            return data
        wanted = self.made.ckpt.source_headers()
        if found != wanted:
            at = first_difference(found, wanted)
            self.problem(
                f"{HEADERS_NAME}: content differs at offset {at}\n    found  {show(found, at)}"
                f"\n    wanted {show(wanted, at)}"
            )
        return data

    def run(self):
        names = [set() for _ in self.directories]
        for name, place, data in self.made.files(self.tool(), self.headers()):
            names[sum(place) % len(names) if place else 0].add(name)
            self.compare_file(name, place, data)
        for directory, wanted in zip(self.directories, names):
            for name in sorted(set(os.listdir(directory)) - wanted):
                self.problem(f"{name}: in {directory}, but not a file of the set")
        return not self.problems


def compare_set(ckpt, directories, layout, ranks=None, policy="verbatim"):
    """Returns (problems, count of equal files)."""
    directories = [directories] if isinstance(directories, str) else list(directories)

    def taken(name):
        paths = [os.path.join(d, name) for d in directories]
        path = next(filter(os.path.isfile, paths), None)
        if path is None:
            return None
        with open(path, "rb") as f:
            return f.read()

    comparison = Comparison(Set(ckpt, layout, ranks, policy, taken), directories)
    comparison.run()
    return comparison.problems, comparison.equal_files


# ---- command line --------------------------------------------------------------------------------


def add_layout(parser):
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--dp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--pp-layers", type=lambda s: [int(x) for x in s.split(",")])
    parser.add_argument("--experts", choices=("ep", "tp"), default="tp")
    parser.add_argument("--shared", choices=("tp", "replicate"), default="tp")
    parser.add_argument("--vision", choices=("replicate", "first", "drop"), default="replicate")
    parser.add_argument("--repository", default="")
    parser.add_argument("--revision", default="")


def rank_list(text):
    """0-3,8 -> [0, 1, 2, 3, 8]"""
    ranks = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def parse_arguments(argv):
    parser = argparse.ArgumentParser(
        description="independent reader and writer of the k3-shard format"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("compare", "build", "plan", "items"):
        sub = commands.add_parser(name)
        sub.add_argument("ckpt")
        if name in ("compare", "build"):
            sub.add_argument("out", nargs="+")
            sub.add_argument("--ranks", type=rank_list)
        if name == "compare":
            sub.add_argument("--quant", default="verbatim")
        add_layout(sub)
    for name in ("tree", "units"):
        commands.add_parser(name).add_argument("file", nargs="+")
    return parser.parse_args(argv)


def layout_of(args):
    return Layout(
        args.tp,
        args.dp,
        args.pp,
        args.experts,
        args.shared,
        args.vision,
        args.pp_layers,
        args.repository,
        args.revision,
    )


def main(argv=None):
    args = parse_arguments(argv)
    if args.command == "tree":
        for path in args.file:
            print(f"sha256:{tree_of_file(path).digest()} {path}")
        return 0
    if args.command == "units":
        for path in args.file:
            for n, digest in enumerate(tree_of_file(path).units()):
                print(n, digest.hex())
        return 0
    if args.command == "plan":
        made = Set(args.ckpt, layout_of(args))
        print(made.plan_text)
        print("sha256", made.plan_digest)
        return 0
    if args.command == "items":
        for n, (files, parts) in enumerate(Set(args.ckpt, layout_of(args)).items()):
            print(n, "parts", *sorted(parts), "files", *sorted(files))
        return 0
    if args.command == "build":
        made = build_set(args.ckpt, layout_of(args), args.out, ranks=args.ranks)
        print(f"wrote plan {made.plan_digest}")
        return 0
    problems, equal = compare_set(args.ckpt, args.out, layout_of(args), args.ranks, args.quant)
    for text in problems[:20]:
        print("DIFFERS", text)
    if len(problems) > 20:
        print(f"… and {len(problems) - 20} more")
    if args.quant != "verbatim" and not quantref:
        print("no numpy: the bytes of casts are those of the set")
    print(f"{equal} files equal, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FormatError, OSError) as error:
        print(f"k3ref: {error}", file=sys.stderr)
        sys.exit(2)
