#!/usr/bin/env python3
"""quant_peers.py BENCH_QUANT: the same BF16 matrix cast by torchao, compressed-tensors, ModelOpt and
ml_dtypes on one core, beside ours, in one run.

    taskset -c 1 quant_peers.py build/release/bench/bench_quant [--rows N] [--cols N] [--rounds N]

Rounds are interleaved; seconds are CPU time of the thread that works, medians; a ratio is the
median of the ratios of the rounds.  Ours makes its statistics (SQNR) too, peers make none.  What a
peer is asked for is what docs/QUANTIZATION.md calls the same cast: codes and scales as they are
stored, packed.  The elements of ml_dtypes are given without scales: its part of such a cast.
A package that is not installed is left out and named."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np
import torch

torch.set_num_threads(1)


def torchao_casts():
    from torchao.prototype.mx_formats.config import ScaleCalculationMode as Mode
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    yield "mxfp4", lambda x: to_mx(x, torch.float4_e2m1fn_x2, 32, Mode.EVEN)
    yield "mxfp8", lambda x: to_mx(x, torch.float8_e4m3fn, 32, Mode.RCEIL)


def compressed_tensors_casts():
    from compressed_tensors.compressors.mx_utils import compress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

    def ranges(x, cols):
        groups = x.reshape(x.shape[0], -1, cols)
        return groups.amin(dim=-1), groups.amax(dim=-1)

    def args(bits, kind, strategy, **more):
        return QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, symmetric=True, **more)

    mx4 = args(4, "float", "group", group_size=32, scale_dtype=torch.uint8)
    mx8 = args(8, "float", "group", group_size=32, scale_dtype=torch.uint8)
    nv4 = args(4, "float", "tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn)
    channel = args(8, "float", "channel")
    block = args(8, "float", "block", block_structure=[128, 128])

    def mxfp4(x):
        scale, zero = calculate_qparams(*ranges(x, 32), mx4)
        packed = pack_fp4_to_uint8(quantize(x, scale, torch.zeros_like(scale), mx4))
        return packed, compress_mx_scale(scale, torch.uint8)

    def mxfp8(x):
        scale, zero = calculate_qparams(*ranges(x, 32), mx8)
        cast = quantize(x, scale, torch.zeros_like(scale), mx8).to(torch.float8_e4m3fn)
        return cast, compress_mx_scale(scale, torch.uint8)

    def nvfp4(x):
        scalar = generate_gparam(x.min(), x.max())
        scale, zero = calculate_qparams(*ranges(x, 16), nv4, scalar)
        cast = quantize(x, scale, torch.zeros_like(scale), nv4, global_scale=scalar)
        return pack_fp4_to_uint8(cast), scale.to(torch.float8_e4m3fn)

    def fp8_channel(x):
        scale, zero = calculate_qparams(x.amin(1, keepdim=True), x.amax(1, keepdim=True), channel)
        return quantize(x, scale, None, channel).to(torch.float8_e4m3fn), scale

    def fp8_block(x):
        tiles = x.reshape(x.shape[0] // 128, 128, x.shape[1] // 128, 128)
        scale, zero = calculate_qparams(tiles.amin((1, 3)), tiles.amax((1, 3)), block)
        return quantize(x, scale, None, block).to(torch.float8_e4m3fn), scale

    def integers(bits, cols):
        own = args(bits, "int", "group", group_size=cols)

        def cast(x):
            scale, zero = calculate_qparams(*ranges(x, cols), own)
            codes = quantize(x.float(), scale.float(), None, own).to(torch.int8)
            return pack_to_int32(codes, 4) if bits == 4 else codes, scale
        return cast

    for name, cast in (("mxfp4", mxfp4), ("mxfp8", mxfp8), ("nvfp4", nvfp4),
                       ("fp8-channel", fp8_channel), ("fp8-block", fp8_block)):
        yield name, lambda x, cast=cast: cast(x.float())  # arithmetic in FP32, as ours
    yield "int4-g32", integers(4, 32)
    yield "int8-g32", integers(8, 32)


def modelopt_casts():
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor

    def nvfp4(x):
        scalar = NVFP4QTensor.get_weights_scaling_factor_2(x)
        return NVFP4QTensor.quantize(x, 16, None, scalar)

    yield "nvfp4, modelopt", nvfp4
    yield "mxfp8", lambda x: MXFP8QTensor.quantize(x)
    yield "fp8-channel, modelopt", lambda x: FP8QTensor.quantize(x, axis=0)
    yield "fp8-block", lambda x: FP8QTensor.quantize(x, block_sizes={-2: 128, -1: 128})


def ml_dtypes_casts():
    import ml_dtypes

    def elements(dtype):
        return lambda x: x.view(torch.int16).numpy().view(ml_dtypes.bfloat16).astype(dtype)

    yield "mxfp8", elements(ml_dtypes.float8_e4m3fn)
    yield "mxfp4", elements(ml_dtypes.float4_e2m1fn)


def ours(bench, path, rows, cols):
    """Seconds by format, each a round over the whole matrix."""
    text = subprocess.run([bench, path, str(rows), str(cols)], check=True, capture_output=True,
                          text=True).stdout
    return {name: float(seconds) for name, seconds in
            (line.split("\t") for line in text.splitlines())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--rows", type=int, default=4608)
    parser.add_argument("--cols", type=int, default=7168)
    parser.add_argument("--rounds", type=int, default=3)
    own = parser.parse_args()
    if own.rows % 128 or own.cols % 128:
        sys.exit("quant_peers.py: rows and columns must be multiples of 128")
    casts = []
    for package, make in (("torchao", torchao_casts), ("compressed-tensors", compressed_tensors_casts),
                          ("modelopt", modelopt_casts), ("ml_dtypes (no scales)", ml_dtypes_casts)):
        try:
            casts += [(package, fmt, cast) for fmt, cast in make()]
        except ImportError as error:
            print(f"{package}: not here ({error})")
    torch.manual_seed(1)
    x = (torch.randn(own.rows, own.cols) * 0.02).to(torch.bfloat16)
    taken = {(package, fmt): [] for package, fmt, _ in casts}
    mine = []
    with tempfile.NamedTemporaryFile(suffix=".bf16") as file, torch.no_grad():
        file.write(x.view(torch.int16).numpy().tobytes())
        file.flush()
        for _ in range(own.rounds):
            mine.append(ours(own.bench, file.name, own.rows, own.cols))
            for package, fmt, cast in casts:
                begin = time.process_time()
                try:
                    cast(x)
                except Exception as error:  # a peer that cannot is a row of the table
                    taken[package, fmt] = str(error).splitlines()[0][:60]
                    continue
                taken[package, fmt].append(time.process_time() - begin)
    size = own.rows * own.cols * 2
    print(f"{own.rows} x {own.cols} BF16, {size / 2**20:.0f} MiB, {own.rounds} rounds; GB/s of input")
    for (package, fmt), seconds in sorted(taken.items(), key=lambda item: item[0][1]):
        if isinstance(seconds, str):
            print(f"{fmt:24} {package:24} fails: {seconds}")
            continue
        base = [one[fmt] for one in mine]
        ratio = statistics.median(s / b for s, b in zip(seconds, base))
        print(f"{fmt:24} {package:24} {size / statistics.median(seconds) * 1e-9:8.3f}   "
              f"ours {size / statistics.median(base) * 1e-9:6.2f}   {ratio:7.1f} x")


if __name__ == "__main__":
    main()
