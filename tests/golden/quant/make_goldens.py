#!/usr/bin/env python3
"""make_goldens.py: casts as the packages that engines use make them, for tests/test_quant_golden.c.

    make_goldens.py OUT           writes OUT
    make_goldens.py --check FILE  makes them anew and compares with FILE; exit 1 where they differ.
                                  Of packages that are not installed the records are left out.

Needs numpy and ml_dtypes; torch (CPU), torchao, compressed-tensors, nvidia-modelopt and requests for
all of them, each from a package registry.  Versions: docs/QUANTIZATION.md, 7.

The file is a sequence of records: a line of words, then as many bytes as the line says.
    matrix NAME bf16 ROWS COLS BYTES            BF16 values, little-endian
    matrix NAME mxfp4 ROWS COLS BYTES           codes, then scales
    cast PACKAGE MATRIX FORMAT RULE CONVENTION POW2 GLOBAL WEIGHT_BYTES SCALE_BYTES
                                                weight, then scales; GLOBAL is FP32 bits in hex
    element FORMAT SHA256                       codes of the finite BF16 values in order of their code
What is left out here is a deliberate difference, listed in docs/QUANTIZATION.md."""

import functools
import hashlib
import struct
import sys
import warnings

warnings.filterwarnings("ignore")

import ml_dtypes
import numpy as np

missing = set()  # packages that are not installed
try:
    import torch
except ImportError:
    missing.add("torch")
try:
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.compressors.mx_utils import compress_mx_scale
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
except ImportError:
    missing.add("compressed-tensors")
try:
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
    from modelopt.torch.quantization.utils.numeric_utils import (
        mxfp4_to_nvfp4_global_amax, mxfp4_to_nvfp4_per_block_amax)
except ImportError:
    missing.add("modelopt")
try:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx
except ImportError:
    missing.add("torchao")

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])
records = []


def of(package):
    """The records of a function are made by this package: none where it is not installed."""
    def wrap(function):
        @functools.wraps(function)
        def made(*args):
            if package not in missing:
                function(*args)
        return made
    return wrap


class Random:
    """Integers and sums of them: the same on every machine."""

    def __init__(self, seed):
        self.state = seed

    def bits(self, count):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> (64 - count)

    def normal(self):
        return (sum(self.bits(16) for _ in range(12)) - 6 * 65535) / 65536


def bf16(values):
    return np.asarray(values, np.float64).astype(np.float32).astype(ml_dtypes.bfloat16)


def tensor(codes):
    """BF16 codes to a torch tensor."""
    return torch.from_numpy(codes.view(np.int16).copy()).view(torch.bfloat16)


def normal_matrix(rows, cols, seed):
    random = Random(seed)
    values = [[random.normal() * 0.02 for _ in range(cols)] for _ in range(rows)]
    return bf16(values).view(np.uint16)


def group_of(random, amax_code, sign):
    """32 BF16 codes, none larger than amax_code, which is among them."""
    codes = [(random.bits(16) % (amax_code + 1)) | random.bits(1) << 15 for _ in range(32)]
    codes[random.bits(5)] = amax_code | sign << 15
    return codes


def amax_matrix(exponents, seed):
    """Groups whose amax lies at, one below and one above each threshold of a scale rule."""
    random, rows = Random(seed), []
    fractions = [0x00, 0x01, 0x3f, 0x40, 0x41, 0x5f, 0x60, 0x61, 0x77, 0x78, 0x79, 0x7f, 0x20, 0x50,
                 0x70, 0x7c]
    for exponent in exponents:
        for half in range(2):
            row = []
            for fraction in fractions[half * 8:half * 8 + 8]:
                row += group_of(random, exponent << 7 | fraction, random.bits(1))
            rows.append(row)
    return np.array(rows, np.uint16)


def ties_matrix():
    """Midpoints of E2M1, E4M3 and integers by powers of two, with neighbours; zeros of both signs."""
    ties = [.25, .75, 1.25, 1.75, 2.5, 3.5, 5]
    rows = []
    for exponent in (-6, 0):
        row = []
        for group in range(8):
            top = [6, 4, 6, 7, 5, 3.5, 7.5, 1][group]
            values = [t + d for t in ties for d in (0, 2**-8, -2**-8)]
            values = [v for v in values if v <= top] + [top]
            values = (values + [-v for v in values] + [0.5, 1.5, 4.5, 6.5, 0.0, -0.5] * 6)[:31]
            row += [v if abs(v) <= top else 0.0 for v in values] + [-top]
        rows.append(np.ldexp(row, exponent))
    return bf16(rows).view(np.uint16)


def zeros_matrix(has_minus):
    """Groups of zeros, of tiny values beside a large one, of one value."""
    random = Random(77)
    row = np.zeros(256, np.uint16)
    for i in range(64, 256):
        row[i] = (0x3c00 if i % 32 == 0 else 0x3400) | random.bits(7)
    row[128:160] = 0
    row[130] = 0x3d80
    if has_minus:
        row[3] = row[40] = row[140] = 0x8000
    return row.reshape(1, 256)


def add_matrix(name, codes):
    records.append((f"matrix {name} bf16 {codes.shape[0]} {codes.shape[1]} {codes.nbytes}",
                    codes.tobytes()))


def add_cast(package, matrix, fmt, weight, scale=b"", rule="even", conv="ct", pow2=0, scalar=0.0):
    weight, scale = bytes(weight), bytes(scale)
    bits = struct.unpack("<I", struct.pack("<f", scalar))[0]
    records.append((f"cast {package} {matrix} {fmt} {rule} {conv} {pow2} {bits:08x} "
                    f"{len(weight)} {len(scale)}", weight + scale))


def raw(value):
    return value.contiguous().view(torch.uint8).numpy().tobytes()


# ---- element codes, of every finite BF16 value ----

def elements():
    codes = np.arange(65536, dtype=np.uint16)
    values = codes.view(ml_dtypes.bfloat16).astype(np.float32)
    finite = np.isfinite(values)
    values = values[finite]
    for name, dtype, top in (("e2m1", ml_dtypes.float4_e2m1fn, 6), ("e4m3", ml_dtypes.float8_e4m3fn, 448),
                             ("e5m2", ml_dtypes.float8_e5m2, 57344), ("fp16", np.float16, None)):
        with np.errstate(over="ignore"):
            cast = (values if top is None else np.clip(values, -top, top)).astype(dtype)
        width = np.uint16 if name == "fp16" else np.uint8
        records.append((f"element {name} {hashlib.sha256(cast.view(width).tobytes()).hexdigest()}", b""))


# ---- torchao ----

@of("torchao")
def torchao(name, codes):
    modes = {"floor": ScaleCalculationMode.FLOOR, "rceil": ScaleCalculationMode.RCEIL,
             "even": ScaleCalculationMode.EVEN, "ceil": ScaleCalculationMode.CEIL}
    for fmt, dtype in (("mxfp4", torch.float4_e2m1fn_x2), ("mxfp8", torch.float8_e4m3fn)):
        for rule, mode in modes.items():
            scale, data = to_mx(tensor(codes), dtype, 32, mode)
            add_cast("torchao", name, fmt, raw(data), raw(scale), rule=rule)


# ---- the rule of microxcaling (OCP 6.3), in numpy, over ml_dtypes' elements ----

def microxcaling(name, codes):
    values = codes.view(ml_dtypes.bfloat16).astype(np.float64)
    groups = values.reshape(values.shape[0], -1, 32)
    amax = np.abs(groups).max(axis=2)
    for fmt, top_exponent, dtype, top in (("mxfp4", 2, ml_dtypes.float4_e2m1fn, 6),
                                          ("mxfp8", 8, ml_dtypes.float8_e4m3fn, 448)):
        exponent = np.floor(np.log2(np.where(amax > 0, amax, 2.0**-200))) - top_exponent
        exponent = np.maximum(exponent, -127)
        scaled = np.ldexp(groups, -exponent.astype(int)[:, :, None])
        cast = np.clip(scaled, -top, top).astype(np.float32).astype(dtype).view(np.uint8)
        cast = cast.reshape(values.shape)
        if fmt == "mxfp4":
            cast = cast[:, 0::2] | cast[:, 1::2] << 4
        add_cast("microxcaling-rule", name, fmt, cast.tobytes(),
                 (exponent + 127).astype(np.uint8).tobytes(), rule="floor")


# ---- compressed-tensors ----

def ranges(x, shape):
    """Least and largest of the last dimension of x as this shape."""
    x = x.reshape(shape)
    return x.amin(dim=-1), x.amax(dim=-1)


@of("compressed-tensors")
def ct_fp4(name, codes):
    x = tensor(codes).float()
    args = QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=32,
                            symmetric=True, scale_dtype=torch.uint8)
    low, high = ranges(x, (x.shape[0], -1, 32))
    scale, _ = calculate_qparams(low, high, args)
    packed = pack_fp4_to_uint8(quantize(x, scale, torch.zeros_like(scale), args))
    add_cast("compressed-tensors", name, "mxfp4", raw(packed),
             raw(compress_mx_scale(scale, torch.uint8)))
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16,
                            symmetric=True, scale_dtype=torch.float8_e4m3fn)
    low, high = ranges(x, (x.shape[0], -1, 16))
    scalar = generate_gparam(x.min(), x.max())
    scale, _ = calculate_qparams(low, high, args, scalar)
    packed = pack_fp4_to_uint8(quantize(x, scale, torch.zeros_like(scale), args,
                                        global_scale=scalar))
    add_cast("compressed-tensors", name, "nvfp4", raw(packed), raw(scale.to(torch.float8_e4m3fn)),
             scalar=float(scalar))


@of("compressed-tensors")
def ct_mxfp8(name, codes):
    x = tensor(codes).float()
    args = QuantizationArgs(num_bits=8, type="float", strategy="group", group_size=32,
                            symmetric=True, scale_dtype=torch.uint8)
    low, high = ranges(x, (x.shape[0], -1, 32))
    scale, _ = calculate_qparams(low, high, args)
    cast = quantize(x, scale, torch.zeros_like(scale), args).to(torch.float8_e4m3fn)
    add_cast("compressed-tensors", name, "mxfp8", raw(cast),
             raw(compress_mx_scale(scale, torch.uint8)), rule="rceil")


@of("compressed-tensors")
def ct_int(name, codes):
    x = tensor(codes)
    for fmt, bits, group in (("int4-g32", 4, 32), ("int4-g128", 4, 128), ("int8-g32", 8, 32)):
        args = QuantizationArgs(num_bits=bits, type="int", strategy="group", group_size=group,
                                symmetric=True)
        low, high = ranges(x, (x.shape[0], -1, group))
        scale, _ = calculate_qparams(low, high, args)
        cast = quantize(x.float(), scale.float(), None, args).to(torch.int8)
        if bits == 4:
            cast = pack_to_int32(cast, 4)
        add_cast("compressed-tensors", name, fmt, raw(cast), raw(scale.to(torch.bfloat16)))


@of("compressed-tensors")
def ct_fp8(name, codes):
    x = tensor(codes).float()
    args = {fmt: QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True,
                                  block_structure=structure)
            for fmt, strategy, structure in (("fp8-tensor", "tensor", None),
                                             ("fp8-channel", "channel", None),
                                             ("fp8-block", "block", [128, 128]))}
    scale, zero = calculate_qparams(x.min(), x.max(), args["fp8-tensor"])
    cast = quantize(x, scale, None, args["fp8-tensor"])
    add_cast("compressed-tensors", name, "fp8-tensor", raw(cast.to(torch.float8_e4m3fn)),
             scalar=float(scale))
    scale, zero = calculate_qparams(x.amin(1, keepdim=True), x.amax(1, keepdim=True),
                                    args["fp8-channel"])
    cast = quantize(x, scale, None, args["fp8-channel"])
    add_cast("compressed-tensors", name, "fp8-channel", raw(cast.to(torch.float8_e4m3fn)), raw(scale))
    rows, cols = -(-x.shape[0] // 128), -(-x.shape[1] // 128)
    padded = torch.zeros(rows * 128, cols * 128)
    padded[:x.shape[0], :x.shape[1]] = x
    tiles = padded.reshape(rows, 128, cols, 128)
    scale, zero = calculate_qparams(tiles.amin((1, 3)), tiles.amax((1, 3)), args["fp8-block"])
    cast = quantize(x, scale, None, args["fp8-block"])
    add_cast("compressed-tensors", name, "fp8-block", raw(cast.to(torch.float8_e4m3fn)), raw(scale))


# ---- ModelOpt ----

@of("modelopt")
def modelopt_fp4(name, codes):
    x = tensor(codes)
    scale2 = NVFP4QTensor.get_weights_scaling_factor_2(x)
    data, scale, _ = NVFP4QTensor.quantize(x.clone(), 16, None, scale2)
    add_cast("modelopt", name, "nvfp4", raw(data._quantized_data), raw(scale), conv="modelopt",
             scalar=float(scale2))


@of("modelopt")
def modelopt_mxfp8(name, codes):
    data, scale = MXFP8QTensor.quantize(tensor(codes))
    add_cast("modelopt", name, "mxfp8", raw(data._quantized_data), raw(scale), rule="rceil")


@of("modelopt")
def modelopt_fp8(name, codes):
    x = tensor(codes)
    data, scale = FP8QTensor.quantize(x)
    add_cast("modelopt", name, "fp8-tensor", raw(data._quantized_data), conv="modelopt",
             scalar=float(scale.float()))
    data, scale = FP8QTensor.quantize(x, axis=0)
    add_cast("modelopt", name, "fp8-channel", raw(data._quantized_data), raw(scale.float()),
             conv="modelopt")
    data, scale = FP8QTensor.quantize(x, block_sizes={-2: 128, -1: 128})
    add_cast("modelopt", name, "fp8-block", raw(data._quantized_data), raw(scale.float()),
             conv="modelopt")


# ---- powers of two as scales: DeepSeek's ue8m0 rule, 2^ceil(log2(amax / 448)), in exact arithmetic ----

def pow2_fp8(name, codes):
    values = codes.view(ml_dtypes.bfloat16).astype(np.float64)
    rows, cols = -(-values.shape[0] // 128), -(-values.shape[1] // 128)
    padded = np.zeros((rows * 128, cols * 128))
    padded[:values.shape[0], :values.shape[1]] = values
    amax = np.abs(padded).reshape(rows, 128, cols, 128).max(axis=(1, 3))
    exponent = np.array([[next(k for k in range(-140, 140) if a <= 448 * 2.0**k) for a in row]
                         for row in amax])
    scale = np.ldexp(1.0, exponent)
    spread = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:values.shape[0], :values.shape[1]]
    cast = (values / spread).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    add_cast("ue8m0-rule", name, "fp8-block", cast.tobytes(), scale.astype(np.float32).tobytes(), pow2=1)


# ---- MXFP4 to NVFP4 as ModelOpt has it ----

@of("modelopt")
def mx_to_nvfp4(name, rows, cols, low, high, seed):
    random = Random(seed)
    nibbles = np.array([[random.bits(4) for _ in range(cols)] for _ in range(rows)], np.uint8)
    nibbles[nibbles == 8] = 0  # ModelOpt goes through floats and loses the sign of zero
    packed = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    scales = np.array([[low + random.bits(16) % (high - low + 1) for _ in range(cols // 32)]
                       for _ in range(rows)], np.uint8)
    scales[0, 0], scales[0, 1] = low, high
    records.append((f"matrix {name} mxfp4 {rows} {cols} {packed.nbytes + scales.nbytes}",
                    packed.tobytes() + scales.tobytes()))
    e8m0, blocks = torch.from_numpy(scales), torch.from_numpy(packed).reshape(rows, -1, 16)
    amax, info = mxfp4_to_nvfp4_global_amax(e8m0)
    scale2 = torch.tensor(amax / (6 * 448), dtype=torch.float32)
    block_amax = mxfp4_to_nvfp4_per_block_amax(blocks, e8m0).reshape(rows, -1)
    scale = (block_amax / (6 * scale2)).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    values = E2M1[nibbles & 7] * np.where(nibbles & 8, -1, 1)
    values = values * np.repeat(np.ldexp(1.0, scales.astype(int) - 127), 32, axis=1)
    data, _, _ = NVFP4QTensor.quantize(torch.from_numpy(values.astype(np.float32)), 16, scale, scale2)
    cast = data._quantized_data.clone()
    if info["pct_lossless"] < 100:  # values that round to zero: ModelOpt keeps their sign, as we do
        assert high - low > 17
    add_cast("modelopt", name, "nvfp4", raw(cast), raw(scale), conv="modelopt", scalar=float(scale2))
    add_cast("modelopt", name, "nvfp4", raw(cast), raw(scale), conv="ct", scalar=float(1 / scale2))


def make():
    elements()
    plain = normal_matrix(4, 256, 1)
    edges = amax_matrix([0x3c0 >> 3, 0x7f, 0x85], 2)
    small = np.concatenate([plain, ties_matrix(), edges])
    add_matrix("plain", plain)
    add_matrix("small", small)
    torchao("small", small)
    microxcaling("small", small)
    ct_fp4("small", small)
    ct_mxfp8("plain", plain)
    ct_int("small", small)
    modelopt_fp4("small", small)
    modelopt_mxfp8("small", small)
    signs = zeros_matrix(True)
    add_matrix("signs", signs)
    torchao("signs", signs)
    microxcaling("signs", signs)
    zeros = np.concatenate([zeros_matrix(False), plain[:1]])
    add_matrix("zeros", zeros)
    ct_fp4("zeros", zeros)
    ct_int("zeros", zeros)
    modelopt_fp4("zeros", zeros)
    # both ends of E8M0; torchao has 2^-126 where the byte says 2^-127, so only the rule in numpy
    ends = amax_matrix([0, 1, 2, 8, 9, 0xfd, 0xfe], 3)
    add_matrix("ends", ends)
    microxcaling("ends", ends)
    blocks = normal_matrix(130, 136, 4)
    blocks[:, 128:] = amax_matrix([0x70, 0x74, 0x78], 5).reshape(-1)[:130 * 8].reshape(130, 8)
    add_matrix("blocks", blocks)
    ct_fp8("blocks", blocks)
    modelopt_fp8("blocks", blocks)
    pow2_fp8("blocks", blocks)
    mx_to_nvfp4("inside", 4, 128, 110, 127, 6)
    mx_to_nvfp4("outside", 4, 128, 100, 127, 7)


def read(path):
    """Records of a file."""
    with open(path, "rb") as file:
        data = file.read()
    found, at = [], 0
    while at < len(data):
        end = data.index(b"\n", at)
        line = data[at:end].decode()
        words = line.split()
        size = {"matrix": lambda: int(words[-1]), "element": lambda: 0,
                "cast": lambda: int(words[-2]) + int(words[-1])}[words[0]]()
        found.append((line, data[end + 1 : end + 1 + size]))
        at = end + 1 + size
    return found


def is_of_missing(line):
    """Is this a record of a package that is not installed?"""
    words = line.split()
    maker = "modelopt" if words[:2] in (["matrix", "inside"], ["matrix", "outside"]) else words[1]
    return words[0] != "element" and maker in missing


def check(path):
    wanted = read(path)
    left_out = [line for line, _ in wanted if is_of_missing(line)]
    same = [record for record in wanted if not is_of_missing(record[0])] == records
    print(f"{len(records)} records, {'the same' if same else 'DIFFERENT'}")
    if left_out:
        print(f"{len(left_out)} records left out, not installed: {', '.join(sorted(missing))}")
    return 0 if same and records else 1


def main():
    if sys.argv[1] == "--check":
        make()
        return check(sys.argv[2])
    if missing:
        sys.exit(f"not installed: {', '.join(sorted(missing))}")
    make()
    with open(sys.argv[1], "wb") as file:
        for line, data in records:
            file.write(line.encode() + b"\n" + data)
    print(f"{len(records)} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
