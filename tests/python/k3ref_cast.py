"""k3ref_cast.py: what a policy makes of the groups of a part; the part of k3ref.py for casts.

Purpose   section 4.7 of docs/FORMAT.md, written from that document alone: which matrices a policy
          reaches, and the tensors, places and views of a part that holds them in their formats.
          The values of casts are in quantref.py.
Needs     Python 3.11, nothing else.
"""

import re
from dataclasses import dataclass, replace

ROLES = "attention experts shared latent router dense embed head vision projector".split()
OPTIONS = ("config=modelopt", "oow=requant", "oow=snap")
PATTERN = re.compile(r"(?=.*[.*])[A-Za-z0-9_.\-{}*]{1,127}")
PATTERN_COUNT_MAX = 64
ITEM = {"U8": 1, "I8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4, "I32": 4, "I64": 8}


@dataclass(frozen=True)
class Format:
    """One row of the table of formats, for a matrix of R rows and C columns."""

    codes: tuple  # name, dtype, values in one element
    scale: tuple = None  # dtype, rows and columns that share one (None: a whole row)
    whole: str = None  # name of the scale that the whole matrix has
    has_shape: bool = False

    def columns(self, cols):
        return cols // self.codes[2]

    def scale_shape(self, rows, cols):
        _, high, wide = self.scale
        return [-(-rows // high), -(-cols // wide) if wide else 1]

    def divides(self, cols):
        """May a matrix (of one rank) have so many columns?"""
        grouped = self.scale and self.scale[1] == 1 and self.scale[2]
        return cols % (self.scale[2] if grouped else 1) == 0


FORMATS = {
    "bf16": Format(("weight", "BF16", 1)),
    "mxfp4": Format(("weight_packed", "U8", 2), ("U8", 1, 32)),
    "mxfp8": Format(("weight", "F8_E4M3", 1), ("U8", 1, 32)),
    "nvfp4": Format(("weight_packed", "U8", 2), ("F8_E4M3", 1, 16), "weight_global_scale"),
    "fp8-tensor": Format(("weight", "F8_E4M3", 1), None, "weight_scale"),
    "fp8-channel": Format(("weight", "F8_E4M3", 1), ("F32", 1, None)),
    "fp8-block": Format(("weight", "F8_E4M3", 1), ("F32", 128, 128)),
    "int4-g32": Format(("weight_packed", "I32", 8), ("BF16", 1, 32), None, True),
    "int4-g128": Format(("weight_packed", "I32", 8), ("BF16", 1, 128), None, True),
    "int8-g32": Format(("weight", "I8", 1), ("BF16", 1, 32)),
}
EXACT = {"bf16", "mxfp4", "mxfp8", "nvfp4", "fp8-block", "int8-g32"}  # of experts, in a window


@dataclass(frozen=True)
class Cast:
    """What a tensor is made of: the matrix STEM (name without its last component) in a format."""

    kind: str  # codes, scale, global, shape
    fmt: str
    stem: str
    of: object  # the piece that the matrix itself would be
    members: tuple  # stems of the matrices that share its global scale


def role_of(view):
    """Role of the matrix that a view of section 5.1 shows, None where that is no matrix."""
    name = re.sub(r"^layers\.\d+\.", "", view)
    head, _, leaf = name.partition(".")
    if name in ("embed", "head"):
        return name
    if view.startswith("layers.") and head in ("attn", "experts", "shared"):
        return {"attn": "attention"}.get(head, head)
    fixed = {"latent.down": "latent", "latent.up": "latent", "router.gate": "router",
             "mlp.gate_up": "dense", "mlp.down": "dense"}
    return fixed.get(name) or (head if head in ("vision", "projector") and leaf else None)


class Policy:
    """A canonical policy text."""

    def __init__(self, text, require):
        self.text, self.require = text, require
        self.roles, self.patterns, self.options = {}, [], []
        entries = [] if text == "verbatim" else text.split(",")
        place = -1
        for entry in entries:
            name, _, fmt = entry.partition("=")
            if entry in OPTIONS:
                self.options.append(entry)
                continue
            require(fmt in FORMATS or fmt == "verbatim", f"policy: no format: {entry!r}")
            require(not self.options, f"policy: {entry!r} behind an option")
            if name in ROLES:
                require(place < ROLES.index(name) and not self.patterns, f"policy order: {entry!r}")
                place = ROLES.index(name)
                require(fmt != ("mxfp4" if name == "experts" else "bf16"), f"no cast: {entry!r}")
                self.roles[name] = fmt
                continue
            require(PATTERN.fullmatch(name), f"policy: neither role nor pattern: {entry!r}")
            require(name not in dict(self.patterns), f"policy: twice: {entry!r}")
            self.patterns.append((name, fmt))
        require(len(self.patterns) <= PATTERN_COUNT_MAX, "policy: too many patterns")
        require(self.options == sorted(set(self.options)) and len(self.options) < 3,
                "policy: options")
        self.reached = set()

    @property
    def casts(self):
        return bool(self.roles or self.patterns)

    @property
    def oow(self):
        return next((o[4:] for o in self.options if o.startswith("oow=")), "fail")

    def passes_over(self, glob, fmt, role):
        """Does a pattern leave a role alone that its text does not name?"""
        if role == "experts" and fmt not in EXACT and fmt != "verbatim":
            return "moe.experts." not in glob
        named = {"router": ".gate", "embed": "embed_tokens", "vision": "vision_tower",
                 "projector": "mm_projector"}
        return role in named and named[role] not in glob

    def format_of(self, stem, role):
        """Format of a matrix, None where it stays as it is."""
        module = re.sub(r"\.(experts|blocks)\.\d+\.",
                        lambda m: f".{m[1]}.{'{e}' if m[1] == 'experts' else '{b}'}.", stem)
        source = "mxfp4" if role == "experts" else "bf16"
        found = self.roles.get(role)
        for glob, fmt in self.patterns:
            expression = ".*".join(map(re.escape, glob.split("*")))
            if re.fullmatch(expression, module) and not self.passes_over(glob, fmt, role):
                self.reached.add(glob)
                found = fmt
                break
        return None if found in (None, "verbatim", source) else found


def stem_of(name):
    return name.rpartition(".")[0]


def is_matrix(piece):
    return piece.dtype == "BF16" and len(piece.source_shape) == 2 and 1 not in piece.source_shape


def made(piece, name, dtype, shape, cast):
    """A piece that a cast makes in place of (or beside) a piece of the checkpoint."""
    return replace(piece, name=f"{cast.stem}.{name}", dtype=dtype, view=None, made=shape, cast=cast)


class PartCasts:
    """Rewrites the groups of one part."""

    def __init__(self, policy):
        self.policy, self.globals, self.shapes = policy, [], []

    def format_of_group(self, group):
        pieces = group.pieces
        role = role_of(group.view or pieces[0].view or "")
        if role is None or (role != "experts" and not all(map(is_matrix, pieces))):
            return None
        found = {self.policy.format_of(stem_of(p.name), role) for p in pieces}
        self.policy.require(len(found) == 1, f"{group.view}: one matrix, several formats")
        return found.pop()

    def rows_of(self, group, fmt, experts):
        """(piece, rows, columns, cast by kind) of the matrices of a group."""
        for at, piece in enumerate(group.pieces):
            rows, cols = piece.shape()
            cols *= 2 if experts else 1
            self.policy.require(FORMATS[fmt].divides(cols), f"{piece.name}: {cols} columns, {fmt}")
            members = group.pieces
            if experts:  # w1 and w3 of one expert, or w2 alone
                width = 2 if ".w13" in group.view else 1
                members = group.pieces[at - at % width : at - at % width + width]
            stems = tuple(stem_of(m.name) for m in members)
            yield piece, rows, cols, lambda kind, p=piece, s=stems: Cast(
                kind, fmt, stem_of(p.name), p, s)

    def whole_matrix(self, view, made_of, name, dtype, kind, shape):
        """The tensors that a view NAME_global or NAME_shape shows."""
        pieces = [made(piece, name, dtype, shape(rows, cols), cast(kind))
                  for piece, rows, cols, cast in made_of]
        local = []
        if ".experts." in view:
            width = 2 if view.endswith("w13") else 1
            local = [len(pieces) // width]
        members = len(pieces) // (local[0] if local else 1)
        tail = [2] if kind == "shape" else []
        return pieces, f"{view}_{kind}", local + [members] + tail

    def tails(self, group, view, fmt, made_of):
        row = FORMATS[fmt]
        for name, dtype, kind, shape, where in (
            (row.whole, "F32", "global", lambda r, c: [1], self.globals),
            (row.has_shape and "weight_shape", "I64", "shape", lambda r, c: [2], self.shapes),
        ):
            if name:
                pieces, view_name, view_shape = self.whole_matrix(
                    view, made_of, name, dtype, kind, shape)
                where.append(replace(group, pieces=pieces, view=view_name, view_shape=view_shape,
                                     zero_bytes=0, small=False, tail=True))

    def matrices(self, group, fmt, experts):
        """(codes, scales or None) of a group; globals and shapes are kept for the end of small."""
        row, view = FORMATS[fmt], group.view or group.pieces[0].view
        made_of = list(self.rows_of(group, fmt, experts))
        name, dtype, _ = row.codes
        codes = [made(p, name, dtype, [r, row.columns(c)], cast("codes"))
                 for p, r, c, cast in made_of]
        zero_rows = group.zero_bytes // (2 * made_of[0][2]) if group.zero_bytes else 0
        result = [replace(group, pieces=codes, view=view, view_shape=self.shape(
            group, experts, sum(p.made[0] for p in codes) + zero_rows, codes[0].made[1]),
            zero_bytes=zero_rows * codes[0].made[1] * ITEM[dtype])]
        self.tails(group, view, fmt, made_of)
        if row.scale is None:
            return result
        scales = [made(p, "weight_scale", row.scale[0], row.scale_shape(r, c), cast("scale"))
                  for p, r, c, cast in made_of]
        last_rows, cols = made_of[-1][1], made_of[-1][2]
        more = row.scale_shape(last_rows + zero_rows, cols)[0] - scales[-1].made[0]
        result.append(replace(group, pieces=scales, view=view + "_scale", view_shape=self.shape(
            group, experts, sum(p.made[0] for p in scales) + more, scales[0].made[1]),
            zero_bytes=more * scales[0].made[1] * ITEM[row.scale[0]]))
        return result

    @staticmethod
    def shape(group, experts, rows, cols):
        if not experts:
            return [rows, cols]
        local = group.view_shape[0]
        return [local, rows // local, cols]

    def groups(self, groups):
        """The groups of a part with casts, in their order."""
        skip, result, small = False, [], False
        for group in groups:
            if skip:  # the scales of the experts' own format
                skip = False
                continue
            small = small or group.small
            fmt = None if group.small else self.format_of_group(group)
            if fmt is None:
                result.append(group)
                continue
            experts = ".experts." in (group.view or "")
            result += self.matrices(group, fmt, experts)
            skip = experts
        tails = self.globals + self.shapes
        if tails and not small:
            tails[0] = replace(tails[0], tail=False)  # it begins the group `small`
        return result + tails
