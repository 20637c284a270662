"""One load by one loader, in a process of its own: the worker side of peers.py.

Usage: loaders.py NAME REQUEST RESULT, files of JSON.  The result is written when the clock has
stopped, and once more after the comparison, so a comparison that dies costs no measured number.

The clock of a peer runs from the moment before its first call to the return of a device-wide
synchronize, with every tensor owned by the caller.  Before it: imports, and the CUDA context.
"""
import ctypes
import json
import os
import resource
import struct
import sys
import time

PAD_PREFIX = "k3.pad."  # gaps of a part as tensors; their names repeat from part to part
MIB = 1 << 20
COPY_BLOCK_BYTES = 256 * MIB  # fastsafetensors: its default of 16 GiB is one thread a file
UPLOAD_BYTES = 64 * MIB  # at a time, of a file that is compared
BOUNCE_KIB = 16 * 1024
THREADS = 16


def is_pad(name):
    return name.startswith(PAD_PREFIX)


# ---- the loaders: a function that prepares (imports) and returns one that loads ----
# load(files, device) -> (tensors as pairs of name and tensor, what must live on, facts)


def prepare_safetensors():
    from safetensors.torch import load_file

    def load(files, device):
        pairs = []
        for path in files:
            pairs += load_file(path, device=device).items()
        return pairs, None, {"settings": "load_file (mmap), one file after the other, defaults",
                             "pinned_bytes": 0, "pinned_by": "documented: no pool of its own"}
    return load


def prepare_fastsafetensors(bounce_kib=BOUNCE_KIB):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup, cpp

    def load(files, device):
        loader = SafeTensorsFileLoader(SingleGroup(), device=device, nogds=True,
                                       bbuf_size_kb=bounce_kib, max_threads=THREADS)
        loader.add_filenames({0: list(files)})
        # It wants names that differ between files.  Only the names go: it reads whole files.
        for metadata, _ in loader.meta.values():
            for name in [n for n in metadata.tensors if is_pad(n)]:
                del metadata.tensors[name]
                loader.frames.pop(name, None)
        buffers = loader.copy_files_to_device(max_copy_block_size=COPY_BLOCK_BYTES)
        pairs = [(name, buffers.get_tensor(name)) for name in loader.get_keys()]
        return pairs, (loader, buffers), {
            "settings": f"nogds, {THREADS} threads, {bounce_kib >> 10} MiB of bounce buffers, "
                        f"blocks of {COPY_BLOCK_BYTES // MIB} MiB (default 16 GiB: one thread a "
                        "file); names of pads dropped, their bytes read",
            "pinned_bytes": cpp.get_cpp_metrics().bounce_buffer_bytes, "pinned_by": "its metrics"}
    return load


def promote_cuda():
    """Make what torch loaded visible to dlsym: InstantTensor looks for CUDA in the process."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split()[-1] for line in file
                 if "/libcudart.so" in line or "/libnccl.so" in line}
    for path in sorted(paths) + ["libcuda.so.1"]:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass  # it says itself what it misses


def prepare_runai(strategy=None):
    os.environ.setdefault("RUNAI_STREAMER_CONCURRENCY", str(THREADS))
    if strategy:
        os.environ["RUNAI_STREAMER_FS_STRATEGY"] = strategy
    from runai_model_streamer import SafetensorsStreamer

    def load(files, device):
        streamer = SafetensorsStreamer()
        streamer.__enter__()  # left open: its end is no part of the load
        streamer.stream_files(list(files), device=device)
        pairs = list(streamer.get_tensors())
        limit = os.environ.get("RUNAI_STREAMER_MEMORY_LIMIT", "default (40 GB)")
        facts = {"settings": f"concurrency {os.environ['RUNAI_STREAMER_CONCURRENCY']}, memory "
                             f"limit {limit}, strategy {strategy or 'default'}, device {device}",
                 "pinned_bytes": 0, "pinned_by": "its source: the ring is pageable"}
        ring = streamer.file_streamer.ring_info()
        if ring:
            facts["settings"] += f", host ring {ring[1]} x {ring[2] / 1e6:.0f} MB"
            facts["host_ring_bytes"] = ring[1] * ring[2]
        return pairs, streamer, facts
    return load


def prepare_instanttensor():
    promote_cuda()
    import instanttensor

    def load(files, device):
        # copy=True is its default: each tensor is a clone that outlives the ring.
        handle = instanttensor.safe_open(list(files), framework="pt", device=device)
        handle.__enter__()  # left open: its end is no part of the load
        pairs = list(handle.tensors())
        pinned = handle.chunk_size * handle.io_depth
        return pairs, handle, {
            "settings": f"defaults: {handle.backend.name}, chunks of "
                        f"{handle.chunk_size / MIB:.0f} MiB, depth {handle.io_depth}, "
                        f"{handle.concurrency} threads, copy=True, device ring "
                        f"{handle.buffer_size / 1e6:.0f} MB",
            "pinned_bytes": pinned, "pinned_by": "its settings: chunk x depth"}
    return load


PEERS = {
    "safetensors": ("safetensors", prepare_safetensors),
    "fastsafetensors": ("fastsafetensors", prepare_fastsafetensors),
    "fastsafetensors-256m": ("fastsafetensors", lambda: prepare_fastsafetensors(16 * BOUNCE_KIB)),
    "runai": ("runai-model-streamer", prepare_runai),
    "runai-auto": ("runai-model-streamer", lambda: prepare_runai("auto")),
    "instanttensor": ("instanttensor", prepare_instanttensor),
}


# ---- measuring ----


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def own_status():
    """Numbers of /proc/self/status: bytes, and a count of threads."""
    found = {}
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key in ("VmHWM", "VmLck", "VmPin", "RssAnon", "RssFile", "RssShmem"):
                found[key] = int(value.split()[0]) * 1024
            elif key == "Threads":
                found[key] = int(value)
    return found


def used_on_device(torch):
    free, total = torch.cuda.mem_get_info(0)  # of the whole device
    return total - free


# ---- the comparison: the file, read independently, against what is on the GPU ----


def read_header(path):
    """Tensors of a safetensors file as {name: (begin, end)}, and where its data begin."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: entry["data_offsets"] for name, entry in header.items()}, 8 + length


def upload(torch, path, offset):
    """The data section as one tensor of bytes on the GPU, by plain reads and copies."""
    size = os.path.getsize(path) - offset
    wanted = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    host = torch.empty(UPLOAD_BYTES, dtype=torch.uint8, pin_memory=True)
    view = memoryview(host.numpy())
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        done = 0
        while done < size:
            got = file.readinto(view[:min(UPLOAD_BYTES, size - done)])
            if not got:
                raise EOFError(f"{path} ends at {offset + done}")
            wanted[done:done + got].copy_(host[:got])
            done += got
    torch.cuda.synchronize()
    return wanted


def compare_tensors(torch, files, pairs):
    """Bytes found equal; raises on the first tensor that differs, is missing or has no file."""
    by_name = {name: tensor for name, tensor in pairs if not is_pad(name)}
    equal_bytes = 0
    for path in files:
        tensors, offset = read_header(path)
        wanted = upload(torch, path, offset)
        verdicts, names = [], []
        for name, (begin, end) in tensors.items():
            if is_pad(name):
                continue
            tensor = by_name.pop(name, None)
            if tensor is None:
                raise ValueError(f"{name} of {os.path.basename(path)} was not loaded")
            if tensor.device.type != "cuda":
                raise ValueError(f"{name} is on {tensor.device}")
            got = tensor.contiguous().reshape(-1).view(torch.uint8)
            if got.numel() != end - begin:
                raise ValueError(f"{name} has {got.numel()} bytes, the file {end - begin}")
            if end == begin:
                continue
            verdicts.append((got == wanted[begin:end]).all())
            names.append(name)
            equal_bytes += end - begin
        if verdicts:
            same = torch.stack(verdicts).tolist()
            if not all(same):
                raise ValueError(f"{names[same.index(False)]} differs from its file")
    if by_name:
        raise ValueError(f"{len(by_name)} tensors that no file has, {next(iter(by_name))} first")
    return equal_bytes


def run_peer(name, request, write):
    result = {"process_start": request["spawned"]}
    distribution, prepare = PEERS[name]
    begin = time.monotonic()
    import torch
    load = prepare()
    result["import_seconds"] = time.monotonic() - begin
    begin = time.monotonic()
    torch.empty(1, device="cuda:0")
    torch.cuda.synchronize()
    result["context_seconds"] = time.monotonic() - begin
    result["version"] = version_of(distribution)
    result["torch"] = torch.__version__
    before, device_before = own_status(), used_on_device(torch)
    cpu_before, begin = cpu_seconds(), time.monotonic()
    pairs, alive, facts = load(request["files"], "cuda:0")
    torch.cuda.synchronize()
    end = time.monotonic()
    status = own_status()
    result.update(facts)
    result.update(
        load_seconds=end - begin, start_seconds=end - request["spawned"],
        cpu_load_seconds=cpu_seconds() - cpu_before, cpu_process_seconds=cpu_seconds(),
        status_before=before, status_after=status, peak_rss_bytes=status["VmHWM"],
        device_bytes=used_on_device(torch) - device_before, bytes=request["bytes"],
        tensors=len(pairs))
    write(result)
    if request["check"]:
        try:
            result["equal_bytes"] = compare_tensors(torch, request["files"], pairs)
        except Exception as error:  # any failure is the verdict
            result["check_error"] = f"{type(error).__name__}: {error}"
        write(result)
    del alive


def version_of(distribution):
    from importlib.metadata import version
    return version(distribution)


# ---- ours, compared through the C interface ----


class Options(ctypes.Structure):
    """struct k3_load_options of k3_load.h."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("dirs", ctypes.POINTER(ctypes.c_char_p)),
                ("dir_count", ctypes.c_uint32), ("ranks", ctypes.POINTER(ctypes.c_uint32)),
                ("rank_count", ctypes.c_uint32), ("device", ctypes.c_char_p),
                ("io", ctypes.c_char_p), ("staging_bytes", ctypes.c_uint64),
                ("no_verify", ctypes.c_int), ("progress", ctypes.c_void_p),
                ("progress_context", ctypes.c_void_p), ("binds", ctypes.c_void_p),
                ("bind_count", ctypes.c_uint32), ("bytes_per_second", ctypes.c_uint64),
                ("trace_path", ctypes.c_char_p), ("after_event", ctypes.c_void_p)]


class DeviceBytes:
    """Memory of ours as torch may look at it."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "version": 3,
                                         "data": (address, False)}


def check_ours(request, write):
    """Load through the library, then compare the whole image, pads too, with the files."""
    import torch
    torch.empty(1, device="cuda:0")
    library = ctypes.CDLL(request["library"])
    for function in (library.k3_load_open, library.k3_load_run, library.k3_load_image):
        function.restype = ctypes.c_int
    error = ctypes.create_string_buffer(64 << 10)  # more than struct k3_err has
    library.k3_err_init(error)

    def must(code, what):
        if code:
            text = " ".join(part.decode(errors="replace")
                            for part in error.raw[16:].split(b"\0") if part)
            raise OSError(f"{what}: {code}: {text}")

    options = Options(struct_bytes=ctypes.sizeof(Options), dir_count=1, rank_count=1,
                      dirs=(ctypes.c_char_p * 1)(os.fsencode(request["set"])),
                      ranks=(ctypes.c_uint32 * 1)(request["rank"]),
                      device=os.fsencode(request["device"]), no_verify=int(request["no_verify"]),
                      staging_bytes=request.get("staging_bytes", 0))
    load, data, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    result = {}
    try:
        must(library.k3_load_open(ctypes.byref(options), ctypes.byref(load), error), "open")
        must(library.k3_load_run(load, error), "run")
        must(library.k3_load_image(load, ctypes.c_uint32(request["rank"]), ctypes.byref(data),
                                   ctypes.byref(size), error), "image")
        image = torch.as_tensor(DeviceBytes(data.value, size.value), device="cuda:0")
        if image.data_ptr() != data.value:
            raise ValueError("torch copied the image, which would prove nothing")
        done = 0
        for path in request["files"]:
            wanted = upload(torch, path, read_header(path)[1])
            if not bool((image[done:done + wanted.numel()] == wanted).all()):
                raise ValueError(f"{os.path.basename(path)} differs")
            done += wanted.numel()
        if done != size.value:
            raise ValueError(f"the image has {size.value} bytes, the files {done}")
        result["equal_bytes"] = done
    except Exception as caught:  # any failure is the verdict
        result["check_error"] = f"{type(caught).__name__}: {caught}"
    write(result)


def main():
    name, request_path, result_path = sys.argv[1:]
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)

    def write(result):
        with open(result_path + ".new", "w", encoding="utf-8") as file:
            json.dump(result, file)
        os.replace(result_path + ".new", result_path)

    if name == "check-ours":
        check_ours(request, write)
    else:
        run_peer(name, request, write)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the end of an interpreter with gigabytes on a GPU is no part of any number


if __name__ == "__main__":
    main()
