#!/usr/bin/env python3
"""Dry run of the plumbing of peers.py, without a GPU.  EVERYTHING IT LOADS WITH IS A STAND-IN.

A stand-in torch of bytes in host memory; a stand-in safetensors that loads rightly, instanttensor
that spoils a byte, runai_model_streamer that hangs, and no fastsafetensors at all; our tool with
host memory in place of the GPU.  What is tested is that peers.py tells these apart, keeps to its
time and prints a whole table.  No number of it means anything.

Run:   K3=build/release/k3-shard tests/bench/peers/dry_run.py
Needs  the Python standard library; disk for a small set in TMPDIR.  No part of make test.
"""
import json
import os
import stat
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))

TORCH = '''
# STAND-IN for torch: bytes in host memory that say they are on a GPU.
uint8 = "u1"
__version__ = "0.stand-in"


class Device:
    type = "cuda"


class Flags(list):
    def all(self):
        return all(self)

    def tolist(self):
        return [bool(v) for v in self]


class Tensor:
    device = Device()

    def __init__(self, data):
        self.data = memoryview(data)

    def copy_(self, other):
        self.data[:] = other.data

    def numpy(self):
        return self.data

    def contiguous(self):
        return self

    def reshape(self, _shape):
        return self

    def view(self, _dtype):
        return self

    def numel(self):
        return len(self.data)

    def __getitem__(self, piece):
        return Tensor(self.data[piece])

    def __eq__(self, other):
        return Flags([bytes(self.data) == bytes(other.data)])


def as_tensor(memory, device=None):
    import ctypes
    address, size = memory.__cuda_array_interface__["data"][0], \
        memory.__cuda_array_interface__["shape"][0]
    tensor = Tensor(ctypes.string_at(address, size))
    tensor.data_ptr = lambda: address
    return tensor


def empty(size, dtype=None, device=None, pin_memory=False):
    return Tensor(bytearray(size))


def stack(values):
    return Flags(values)


class cuda:
    @staticmethod
    def synchronize():
        pass

    @staticmethod
    def mem_get_info(_device):
        return 1 << 30, 2 << 30
'''

LOAD = '''
# STAND-IN: reads tensors of a safetensors file into host memory.
import json, struct
from torch import Tensor


def load_file(path, device="cpu"):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    return {name: Tensor(data[e["data_offsets"][0]:e["data_offsets"][1]])
            for name, e in header.items()}
'''

SPOILS = '''
# STAND-IN: flips a byte of the last tensor.
from safetensors.torch import load_file


class Backend:
    name = "STAND-IN"


class safe_open:
    chunk_size, io_depth, concurrency, buffer_size, backend = 1 << 20, 4, 0, 1 << 22, Backend()

    def __init__(self, files, framework, device):
        self.files = files

    def __enter__(self):
        return self

    def tensors(self):
        pairs = [pair for path in self.files for pair in load_file(path).items()]
        name, tensor = [p for p in pairs if not p[0].startswith("k3.pad.")][-1]
        tensor.data[0] ^= 1
        return pairs
'''

HANGS = '''
# STAND-IN: never ends.
import time


class SafetensorsStreamer:
    def __enter__(self):
        return self

    def stream_files(self, paths, device):
        time.sleep(1000)
'''


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def make_stand_ins(site, k3):
    put(os.path.join(site, "torch.py"), TORCH)
    put(os.path.join(site, "safetensors", "__init__.py"), "")
    put(os.path.join(site, "safetensors", "torch.py"), LOAD)
    put(os.path.join(site, "instanttensor.py"), SPOILS)
    put(os.path.join(site, "runai_model_streamer.py"), HANGS)
    for name in ("safetensors", "instanttensor", "runai_model_streamer"):
        put(os.path.join(site, f"{name}-0.0.dist-info", "METADATA"),
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0\n")
    tool = os.path.join(site, "k3-on-host")
    put(tool, "#!/bin/sh\n# STAND-IN: host memory in place of the GPU.\n"
              'for a; do shift; [ "$a" = cuda:0 ] && a=host; set -- "$@" "$a"; done\n'
              f"exec '{k3}' \"$@\"\n")
    os.chmod(tool, os.stat(tool).st_mode | stat.S_IXUSR)
    return tool


def want(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")
    print(f"ok {what}")


def main():
    k3 = os.path.abspath(os.environ.get("K3", "build/release/k3-shard"))
    with tempfile.TemporaryDirectory(prefix="k3-peers-dry-") as work:
        site, ckpt, out = (os.path.join(work, name) for name in ("site", "ckpt", "set"))
        tool = make_stand_ins(site, k3)
        for command in ([k3, "synth", ckpt, "--preset", "tiny", "--quiet"],
                        [k3, "convert", ckpt, "--out", out, "--tp", "2", "--quiet"]):
            subprocess.run(command, check=True)
        table, runs = os.path.join(work, "table.md"), os.path.join(work, "runs.json")
        env = dict(os.environ, PYTHONPATH=site, K3=tool, K3_LIB=os.path.join(work, "no-library"))
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "peers.py"), "--set", out, "--cold-dir", out,
             "--rounds", "2", "--timeout", "6", "--seconds", "40", "--json", runs,
             "--table", table],
            env=env, stdout=subprocess.PIPE, text=True, check=False)
        took = time.monotonic() - begin
        print(done.stdout)
        with open(runs, encoding="utf-8") as file:
            data = json.load(file)
        rows, checked = data["runs"], data["checked"]

        def of(peer):
            return [row for row in rows if row["peer"] == peer]

        def every(peer, text):
            return all(text in row.get("error", "") or "not run" in row.get("error", "")
                       for row in of(peer))

        want(took < 41, "it keeps to its time")
        want(done.returncode == 1, "a failure is its exit code")
        want(checked["safetensors"].startswith("equal"), "equal bytes are found equal")
        want("differs" in checked["instanttensor"], "a spoilt byte is found")
        want("runai" not in checked and of("runai")[0]["error"].startswith("stopped after")
             and every("runai", "stopped"), "what hangs is stopped, once")
        want(every("fastsafetensors", "No module named"), "what is not installed says so")
        want(all("load_seconds" in row for row in of("safetensors")[:1] + of("ours")[:1]),
             "what works has numbers")
        want("FAILED" in checked["ours"], "a comparison without its library fails loudly")
        want(done.stdout.count("| ours |") == 2 and done.stdout.count("| fastsafetensors |") == 2,
             "every loader has its row, hot and cold")
        check_library(work, site, k3, out)
    return 0


def check_library(work, site, k3, out):
    """The comparison of ours through the C interface, with host memory."""
    library = os.path.join(os.path.dirname(k3), "libk3load.so.0")
    names = [os.path.join(out, f"model-rank-1-part-{part}.safetensors") for part in range(7)]
    request, result = os.path.join(work, "request.json"), os.path.join(work, "result.json")

    def compare(files):
        put(request, json.dumps({"library": library, "set": out, "rank": 1, "no_verify": False,
                                 "files": files, "device": "host"}))
        subprocess.run([sys.executable, os.path.join(HERE, "loaders.py"), "check-ours", request,
                        result], env=dict(os.environ, PYTHONPATH=site), check=True)
        with open(result, encoding="utf-8") as file:
            return json.load(file)

    want(compare(names).get("equal_bytes", 0) > 0, "ours is compared through its library")
    want("differs" in compare(names[1:] + names[:1]).get("check_error", ""),
         "parts in another order are found")


if __name__ == "__main__":
    sys.exit(main())
