"""quantref.py: casts of matrices in numpy, a second implementation of docs/QUANTIZATION.md.

Purpose   what a cast must give, and what its bytes mean, by a program that shares no code with the
          tool: arithmetic of compressed-tensors (section 4), rules `even` and `rceil` (section 2),
          casts out of MXFP4 (section 5).
Gives     encode(), encode_mxfp4(): tensors of a cast; decode(): values of tensors; sqnr_db();
          Values: the casts of a checkpoint for k3ref.py.
Needs     numpy.
"""

import math

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1_MAX, E4M3_MAX = 6, 448
F32_MAX = np.finfo(np.float32).max
GROUP = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16, "int4-g32": 32, "int4-g128": 128, "int8-g32": 32}
INT_TOP = {"int4-g32": 7.5, "int4-g128": 7.5, "int8-g32": 127.5}
INT_RANGE = {"int4-g32": (-8, 7), "int4-g128": (-8, 7), "int8-g32": (-128, 127)}
TILE = 128
WINDOW = {"nvfp4": 17, "fp8-block": 14}  # kmax - k that is exact
NVFP4_KMAX_MIN = 8  # the divisor 2^(135 - kmax) is an FP32


class Refused(Exception):
    """A value that is no weight, or a group out of its window."""


# ---- elements ----


def floats_of_bf16(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def bf16_of_floats(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_bf16(x):
    return floats_of_bf16(bf16_of_floats(x))


def minifloat(x, exponent_min, fraction_bits, top):
    """|x| rounded to nearest even; exact, since all of it fits FP64."""
    size = np.minimum(np.abs(x.astype(np.float64)), 4.0 * top)
    exponent = np.maximum(np.frexp(size)[1] - 1, exponent_min)
    step = np.ldexp(1.0, exponent - fraction_bits)
    return np.minimum(np.rint(size / step) * step, top)


def e2m1_of(x):
    """Codes 0..15."""
    size = minifloat(x, 0, 1, E2M1_MAX)
    return (np.searchsorted(E2M1, size) | np.signbit(x).astype(np.int64) << 3).astype(np.uint8)


def floats_of_e2m1(codes):
    return np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7]).astype(np.float32)


def e4m3_table():
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = np.where(exponent == 0, fraction * 2.0**-9,
                    np.ldexp(1 + fraction / 8, exponent - 7)).astype(np.float32)
    return np.where(byte & 128, -size, size).astype(np.float32)


E4M3 = e4m3_table()


def e4m3_of(x):
    size = minifloat(x, -6, 3, E4M3_MAX).astype(np.float32)
    byte = np.searchsorted(E4M3[:127], size)
    return (byte | np.signbit(x).astype(np.int64) << 7).astype(np.uint8)


def pack_nibbles(codes):
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def unpack_nibbles(data):
    return np.stack([data & 15, data >> 4], 2).reshape(data.shape[0], -1)


def grouped(x, size):
    return x.reshape(x.shape[0], -1, size)


def spread(scale, size):
    return np.repeat(scale, size, 1)


# ---- from BF16 ----


def e8m0_of(amax, fmt):
    """Byte of a group by the default rule."""
    half, exponent = np.frexp(amax)
    m, e = 2 * half, exponent - 1
    up = m >= 1.75 if fmt == "mxfp4" else m > 1.75
    byte = 127 + e - (2 if fmt == "mxfp4" else 8) + up
    return np.where(amax == 0, 0, np.clip(byte, 0, 254)).astype(np.uint8)


def e8m0_value(byte):
    return np.ldexp(1.0, byte.astype(np.int64) - 127).astype(np.float32)


def nvfp4_global(amax):
    with np.errstate(over="ignore"):
        g = np.float32(2688) / np.float32(max(amax, 2.0**-126))
    return np.float32(1) if amax == 0 or np.isinf(g) else g


def tiles(x):
    """((slice of rows, slice of columns), row, column) of the tiles of 128 x 128."""
    for r in range(0, x.shape[0], TILE):
        for c in range(0, x.shape[1], TILE):
            yield (slice(r, r + TILE), slice(c, c + TILE)), r // TILE, c // TILE


def tile_grid(x):
    return -(-x.shape[0] // TILE), -(-x.shape[1] // TILE)


def fp8_scale(amax):
    scale = (np.asarray(amax, np.float32) / np.float32(E4M3_MAX)).astype(np.float32)
    return np.where(np.asarray(amax) == 0, np.float32(2.0**-23), scale).astype(np.float32)


def encode_fp8(fmt, x, amax):
    if fmt == "fp8-tensor":
        scale = fp8_scale(amax).reshape(1)
        return {"codes": e4m3_of(x / scale), "global": scale}
    if fmt == "fp8-channel":
        scale = fp8_scale(np.abs(x).max(1, keepdims=True))
        return {"codes": e4m3_of(x / scale), "scale": scale}
    scale = np.zeros(tile_grid(x), np.float32)
    codes = np.zeros(x.shape, np.uint8)
    for at, r, c in tiles(x):
        scale[r, c] = fp8_scale(np.abs(x[at]).max())
        codes[at] = e4m3_of(x[at] / scale[r, c])
    return {"codes": codes, "scale": scale}


def encode_int(fmt, x):
    top, (low, high) = np.float32(INT_TOP[fmt]), INT_RANGE[fmt]
    amax = np.abs(grouped(x, GROUP[fmt])).max(2)
    scale = to_bf16(amax / top)
    scale = np.where(scale == 0, np.float32(2.0**-7), scale).astype(np.float32)
    q = np.clip(np.rint(x / spread(scale, GROUP[fmt])), low, high).astype(np.int8)
    codes = q if fmt == "int8-g32" else pack_nibbles((q + 8).astype(np.uint8)).view(np.uint32)
    return {"codes": codes, "scale": bf16_of_floats(scale), "shape": np.array(x.shape, np.int64)}


def encode(fmt, x, amax=None):
    """Tensors of a cast of FP32 values that are BF16; amax: that of all that share a global."""
    if not np.isfinite(x).all():
        raise Refused("a value is not finite")
    amax = np.abs(x).max() if amax is None else amax
    if fmt == "bf16":
        return {"codes": bf16_of_floats(x)}
    if fmt.startswith("fp8"):
        return encode_fp8(fmt, x, amax)
    if fmt.startswith("int"):
        return encode_int(fmt, x)
    top = np.abs(grouped(x, GROUP[fmt])).max(2)
    if fmt == "nvfp4":
        g = nvfp4_global(amax)
        scale = e4m3_of(g * (top / np.float32(6)))
        scale = np.where(scale == 0, np.uint8(0x20), scale)  # 0.125
        divisor = spread(E4M3[scale] / g, GROUP[fmt])
        return {"codes": pack_nibbles(e2m1_of(x / divisor)), "scale": scale,
                "global": np.array([g], np.float32)}
    scale = e8m0_of(top, fmt)
    with np.errstate(over="ignore"):
        quotient = x / spread(e8m0_value(scale), GROUP[fmt])
    codes = pack_nibbles(e2m1_of(quotient)) if fmt == "mxfp4" else e4m3_of(quotient)
    return {"codes": codes, "scale": scale}


# ---- out of MXFP4 (section 5) ----


def mxfp4_values(codes, scale):
    """FP64 values of codes [R, C] and scale bytes [R, C/32]."""
    return floats_of_e2m1(codes) * spread(np.ldexp(1.0, scale.astype(np.int64) - 127), 32)


def live_kmax(codes, scale):
    """The largest scale of a group that has a code other than 0 and -0; None where none has."""
    live = (grouped(codes, 32) & 7).any(2)
    return int(scale[live].max()) if live.any() else None


def kmax_of(matrices, window):
    """kmax of matrices [(codes, scales)] that share it: by the scales where these fit alone."""
    low = min(int(s.min()) for _, s in matrices)
    high = max(int(s.max()) for _, s in matrices)
    if high - low <= window:
        return high
    found = [k for k in (live_kmax(c, s) for c, s in matrices) if k is not None]
    return max(found) if found else 0


def out_of_window(codes, scale, kmax, window):
    """Groups (with values) that the target cannot hold, by their scales."""
    return (grouped(codes, 32) & 7).any(2) & (kmax - scale.astype(int) > window)


def edge(fmt, codes, scale, kmax, oow):
    """(codes as values, scale) after what is out of the window was refused, or moved to its edge."""
    window = WINDOW[fmt]
    out = out_of_window(codes, scale, kmax, window)
    if out.any() and oow == "fail":
        raise Refused(f"{int(out.sum())} groups are out of the window")
    moved = np.where(out, kmax - window, scale.astype(int))
    value = floats_of_e2m1(codes)
    if oow == "requant":
        value = value * spread(np.ldexp(1.0, scale.astype(int) - moved), 32).astype(np.float32)
    return value.astype(np.float32), moved


def mxfp4_to_nvfp4(codes, scale, kmax, oow):
    kmax = max(kmax, NVFP4_KMAX_MIN)
    value, moved = edge("nvfp4", codes, scale, kmax, oow)
    power = np.clip(moved - kmax + 8, -9, 8)  # beyond only where all codes of a group are 0
    return {"codes": pack_nibbles(e2m1_of(value)),
            "scale": spread(e4m3_of(np.ldexp(1.0, power)), 2),
            "global": np.array([2.0 ** (135 - kmax)], np.float32)}


def mxfp4_to_fp8_block(codes, scale, oow):
    grid = np.zeros(tile_grid(codes), np.float32)
    result = np.zeros(codes.shape, np.uint8)
    for at, r, c in tiles(codes):
        columns = slice(at[1].start // 32, at[1].stop // 32)
        kmax = live_kmax(codes[at], scale[at[0], columns])
        grid[r, c] = 2.0**-23 if kmax is None else 2.0 ** (kmax - 133)
        value, moved = edge("fp8-block", codes[at], scale[at[0], columns], kmax or 0, oow)
        power = spread(np.ldexp(1.0, np.minimum(6 - (kmax or 0) + moved, 6)), 32)
        result[at] = e4m3_of(value * power)
    return {"codes": result, "scale": grid}


def encode_mxfp4(fmt, codes, scale, kmax=None, amax=None, oow="fail"):
    """Tensors of a cast of codes [R, C] and scale bytes; kmax, amax: of all that share a global."""
    if (scale == 255).any():
        raise Refused("a scale byte is 0xFF")
    if fmt == "mxfp8":
        return {"codes": e4m3_of(floats_of_e2m1(codes)), "scale": scale}
    if fmt == "int8-g32":
        power = np.ldexp(1.0, scale.astype(int) - 128).astype(np.float32)
        return {"codes": (2 * floats_of_e2m1(codes)).astype(np.int8),
                "scale": bf16_of_floats(power)}
    if fmt == "nvfp4":
        kmax = kmax_of([(codes, scale)], WINDOW[fmt]) if kmax is None else kmax
        return mxfp4_to_nvfp4(codes, scale, kmax, oow)
    if fmt == "fp8-block":
        return mxfp4_to_fp8_block(codes, scale, oow)
    return encode(fmt, mxfp4_values(codes, scale).astype(np.float32), amax)


# ---- back ----


def decode(fmt, made, shape):
    """FP32 values of the tensors of a cast: code times scale, at most what is finite."""
    codes, scale = made["codes"], made.get("scale")
    if fmt == "bf16":
        return floats_of_bf16(codes)
    if fmt == "nvfp4":
        scale = E4M3[scale] / made["global"].astype(np.float32)[0]
    elif fmt in ("mxfp4", "mxfp8"):
        scale = np.ldexp(1.0, scale.astype(np.int64) - 127)
    elif fmt.startswith("int"):
        scale = floats_of_bf16(scale)
    elif fmt == "fp8-tensor":
        scale = made["global"].reshape(1, 1)
    if fmt in ("mxfp4", "nvfp4"):
        value = floats_of_e2m1(unpack_nibbles(codes))
    elif fmt.startswith("int4"):
        value = unpack_nibbles(codes.view(np.uint8)).astype(np.float32) - 8
    else:
        value = codes.astype(np.float32) if fmt == "int8-g32" else E4M3[codes]
    if fmt == "fp8-block":
        scale = np.repeat(np.repeat(scale, TILE, 0), TILE, 1)[: shape[0], : shape[1]]
    elif fmt in GROUP:
        scale = spread(scale, GROUP[fmt])
    # Codes have few bits, so FP64 holds the product, and one rounding gives that of FP32.
    product = value.astype(np.float64) * scale.astype(np.float64)
    return np.clip(product, -float(F32_MAX), float(F32_MAX)).astype(np.float32)


def sqnr_db(x, y):
    """Of values and what they came back as; infinite where nothing was lost."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    error = float(((x - y) ** 2).sum())
    return math.inf if error == 0 else 10 * math.log10(float((x * x).sum()) / error)


# ---- the casts of a checkpoint (k3ref.py) ----


class Values:
    """Bytes of the pieces that casts make; the last matrix is kept, since its tensors are near."""

    def __init__(self, ckpt, oow):
        self.ckpt, self.oow = ckpt, oow
        self.last = (None, None)

    def matrix(self, stem, piece=None):
        """BF16: values; MXFP4: (codes, scales). Of the whole matrix, or of the slice of a piece."""
        if f"{stem}.weight_packed" in self.ckpt.tensors:
            halves = []
            for leaf, per_byte in (("weight_packed", 2), ("weight_scale", 32)):
                shape = list(self.ckpt.tensors[f"{stem}.{leaf}"].shape)
                axis, begin, end = (piece.axis, piece.begin, piece.end) if piece else (None, 0, 0)
                if axis == 1:  # counted in bytes of codes
                    begin, end = begin * 2 // per_byte, end * 2 // per_byte
                if axis is not None:
                    shape[axis] = end - begin
                data = self.ckpt.bytes_of(f"{stem}.{leaf}", axis, begin, end)
                halves.append(np.frombuffer(data, np.uint8).reshape(shape))
            return unpack_nibbles(halves[0]), halves[1]
        shape = self.ckpt.tensors[f"{stem}.weight"].shape
        if piece:
            shape = list(piece.source_shape)
            if piece.axis is not None:
                shape[piece.axis] = piece.end - piece.begin
            data = self.ckpt.bytes_of(f"{stem}.weight", piece.axis, piece.begin, piece.end)
        else:
            data = self.ckpt.bytes_of(f"{stem}.weight", None, 0, 0)
        return floats_of_bf16(np.frombuffer(data, "<u2").reshape(shape))

    def shared(self, cast):
        """(kmax, amax) of all matrices that share a global scale."""
        if cast.fmt not in ("nvfp4", "fp8-tensor"):
            return None, None
        whole = [self.matrix(stem) for stem in cast.members]
        if not isinstance(whole[0], tuple):
            return None, max(np.abs(w).max() for w in whole)
        if cast.fmt == "nvfp4":
            return kmax_of(whole, WINDOW["nvfp4"]), None
        return None, np.float32(max(np.abs(mxfp4_values(*w)).max() for w in whole))

    def made(self, cast):
        key = (cast.fmt, cast.stem, cast.of.axis, cast.of.begin, cast.of.end)
        if self.last[0] != key:
            matrix, (kmax, amax) = self.matrix(cast.stem, cast.of), self.shared(cast)
            made = (encode_mxfp4(cast.fmt, *matrix, kmax, amax, self.oow)
                    if isinstance(matrix, tuple) else encode(cast.fmt, matrix, amax))
            self.last = (key, made)
        return self.last[1]

    def bytes_of(self, piece):
        cast = piece.cast
        if cast.kind == "shape":
            rows, cols = cast.of.shape()
            packed = cast.of.dtype == "U8"
            return np.array([rows, cols * (2 if packed else 1)], "<i8").tobytes()
        return np.ascontiguousarray(self.made(cast)[cast.kind]).tobytes()
