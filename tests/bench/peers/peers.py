#!/usr/bin/env python3
"""Ours and four other loaders bring the same files of a shard set onto one GPU.

Every run is a process of its own (loaders.py, or our tool), runs of a round follow each other in an
order that moves on, and each has a timeout; a run that failed is a row that says why.  The script
ends by itself within --seconds and prints what it has: a table, and JSON where --json says.

Hot: the files of --set, in memory (a tmpfs, or read once so that the page cache has them).
Cold: the files of --cold-dir (the same set on a disk), dropped from the page cache before each run
and looked at with mincore: a run with pages in memory is not counted as cold.

Run:   tests/bench/peers/peers.py --set DIR [--rank 0] [--files 12GB] [--cold-dir DIR]
       [--rounds 3] [--seconds 120] [--timeout 60] [--peers LIST] [--json FILE] [--table FILE]
Needs  a GPU, torch, and the loaders as Python packages.  Environment: K3, the tool; its
libk3load.so.0 lies beside it or where K3_LIB says.  README.md says what each number means.
"""
import argparse
import ctypes
import json
import mmap
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GB = 1e9
PEERS = ("safetensors", "fastsafetensors", "runai", "instanttensor")
MORE_PEERS = ("fastsafetensors-256m", "runai-auto")
OURS = ("ours", "ours-15m", "ours-noverify")
SMALL_POOL_MIB = 15  # less than any of the others that pin memory has
SAMPLE_SECONDS = 0.01
WARM_UP = ("import torch; torch.empty(1, device='cuda:0'); torch.cuda.synchronize()\n"
           "print(open('/proc/self/maps').read())")
PRINT_SECONDS = 2.0  # kept back for the table
RUN_MIN_SECONDS = 3.0  # less is not worth a start
NOT_RUN = "not run: the time was up"


# ---- files ----


def parts_of(directory, rank, limit):
    """The first parts of a rank with up to `limit` bytes (at least one), and whether it is all."""
    with open(os.path.join(directory, "k3-shards.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    entry = next((r for r in manifest["ranks"] if r["rank"] == rank), None)
    if entry is None:
        sys.exit(f"{directory} has no rank {rank}")
    taken, size = [], 0
    for part in entry["parts"]:
        if taken and size + part["bytes"] > limit:
            break
        taken.append((os.path.join(directory, part["name"]), part["bytes"] - part["data_offset"]))
        size += part["bytes"]
    return taken, len(taken) == len(entry["parts"])


def resident_bytes(path):
    """Bytes of a file that the page cache holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                          ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    size = os.path.getsize(path)
    fd = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap", path)
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        vector = ctypes.create_string_buffer(pages)
        rc = libc.mincore(address, size, vector)
        libc.munmap(address, size)
        if rc:
            raise OSError(ctypes.get_errno(), "mincore", path)
        return sum(byte & 1 for byte in vector.raw) * mmap.PAGESIZE
    finally:
        os.close(fd)


def drop(directory, paths):
    """Only this set leaves the cache: programs and libraries are not what is measured."""
    names = set(paths) | {os.path.join(directory, n) for n in os.listdir(directory)}
    for path in names:
        if os.path.isfile(path):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
    left = sum(resident_bytes(path) for path in paths)
    if left and os.access("/proc/sys/vm/drop_caches", os.W_OK):
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3\n")
        left = sum(resident_bytes(path) for path in paths)
    return left


def read_through(paths):
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(64 << 20):
                pass


def file_system(path):
    """Type of the file system that holds path, the longest mount point wins."""
    best, kind = "", "?"
    real = os.path.realpath(path)
    with open("/proc/mounts", encoding="utf-8") as file:
        for line in file:
            _, point, name = line.split()[:3]
            if (real + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                best, kind = point, name
    return kind


# ---- one process ----


class Watch(threading.Thread):
    """Looks at /proc/PID/status while a process runs: most threads, locked and pinned memory."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.path, self.most, self.over = f"/proc/{pid}/status", {}, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(SAMPLE_SECONDS):
            try:
                with open(self.path, encoding="ascii") as file:
                    text = file.read()
            except OSError:
                return
            for key, value in re.findall(r"^(Threads|VmLck|VmPin|VmHWM):\s+(\d+)", text, re.M):
                scale = 1 if key == "Threads" else 1024
                self.most[key] = max(self.most.get(key, 0), int(value) * scale)

    def end(self):
        self.over.set()
        self.join()
        return self.most


def tail(text, count=300):
    """The last lines that say something, in one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-count:]


def spawn(command, timeout, out_path, env=None):
    """(seconds, exit code or None for a timeout, rusage, what was watched, end of stderr)."""
    with open(out_path, "wb") as out, tempfile.TemporaryFile("w+b") as err:
        begin = time.monotonic()
        with subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                              env=env) as process:
            watch, timed_out = Watch(process.pid), threading.Event()

            def stop():
                timed_out.set()
                process.kill()

            timer = threading.Timer(max(timeout, 0.1), stop)
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - begin
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        text = err.read().decode(errors="replace")
    return seconds, None if timed_out.is_set() else process.returncode, usage, watch.end(), text


# ---- the benchmark ----


class Bench:
    """Places, jobs, the time that is left."""

    def __init__(self, options, work):
        self.options, self.work = options, work
        self.deadline = time.monotonic() + options.seconds - PRINT_SECONDS
        self.k3 = os.path.abspath(os.environ.get("K3", "build/release/k3-shard"))
        self.library = os.path.abspath(os.environ.get("K3_LIB") or os.path.join(
            os.path.dirname(self.k3), "libk3load.so.0"))
        self.places, self.runs, self.checked, self.notes = {}, [], {}, []
        self.took, self.hung, self.env = {}, set(), dict(os.environ)
        self.add_place("hot", options.set)
        if options.cold_dir:
            self.add_place("cold", options.cold_dir)

    def note(self, text):
        print(f"# {text}", file=sys.stderr)
        self.notes.append(text)

    def add_place(self, place, directory):
        parts, whole = parts_of(directory, self.options.rank, self.options.files)
        paths = [path for path, _ in parts]
        missing = [path for path in paths if not os.path.exists(path)]
        if missing:
            sys.exit(f"{missing[0]} is not there")
        self.places[place] = {"directory": directory, "files": paths, "whole": whole,
                              "bytes": sum(size for _, size in parts),
                              "file_system": file_system(directory)}
        if not whole:
            self.note(f"{place}: peers load {len(paths)} parts, ours can only load the whole rank: "
                      "compare rates, not seconds")

    def left(self):
        return self.deadline - time.monotonic()

    def prepare(self, place):
        """"" or why the run would not be what its name says."""
        info = self.places[place]
        if place == "cold":
            left = drop(info["directory"], info["files"])
            return f"{left} bytes stayed in the page cache" if left else ""
        if info["file_system"] not in ("tmpfs", "ramfs"):
            read_through(info["files"])
        return ""

    def touch(self):
        """Memory that a virtual machine gets from its host on first use is paid for here."""
        size = self.options.touch
        if size and self.left() > 20:
            code = ("import mmap,sys\nm=mmap.mmap(-1,int(sys.argv[1]))\n"
                    "for i in range(0,len(m),4096): m[i]=1")
            seconds = spawn([sys.executable, "-c", code, str(size)], self.left() / 4,
                            os.devnull)[0]
            self.note(f"{size / GB:.0f} GB of memory touched first, in {seconds:.1f} s")

    def warm_up(self):
        """Libraries come from the disk once, outside of every number."""
        out_path = os.path.join(self.work, "maps")
        seconds, exit_code, _, _, text = spawn([sys.executable, "-c", WARM_UP], self.left() / 3,
                                               out_path)
        with open(out_path, encoding="utf-8") as file:
            found = re.findall(r"\S*/libcudart\.so[.0-9]*$", file.read(), re.M)
        if found:
            self.link_runtime(found[0])
        self.note(f"torch and a CUDA context, once before all: {seconds:.1f} s"
                  + ("" if exit_code == 0 else f", FAILED: {tail(text)}"))

    def link_runtime(self, path):
        """fastsafetensors asks for libcudart.so, and the packages of torch bring libcudart.so.N: a
        link of that name to torch's own, behind what the search path already has."""
        links = os.path.join(self.work, "lib")
        os.makedirs(links)
        os.symlink(path, os.path.join(links, "libcudart.so"))
        before = os.environ.get("LD_LIBRARY_PATH")
        self.env["LD_LIBRARY_PATH"] = f"{before}:{links}" if before else links

    # ---- one run ----

    def run(self, job, place, number):
        row = {"peer": job, "place": place, "round": number}
        self.runs.append(row)
        if self.left() < max(RUN_MIN_SECONDS, 0.9 * self.took.get((job, place), 0)):
            row["error"] = NOT_RUN
            return
        try:
            error = "not run again: it was stopped before" if job in self.hung else \
                self.prepare(place)
            if error:
                row["error"] = error
            else:
                begin = time.monotonic()
                (self.run_ours if job in OURS else self.run_peer)(row, job, place)
                self.took[(job, place)] = time.monotonic() - begin
        except (OSError, ValueError, KeyError) as caught:
            row["error"] = f"{type(caught).__name__}: {caught}"
        rate = row.get("load_seconds") and row["bytes"] / row["load_seconds"] / GB
        print(f"# {place} {number} {job:16} " + (f"{rate:.2f} GB/s" if rate else row["error"]),
              file=sys.stderr, flush=True)

    def why(self, job, code, timeout, text):
        if code is None:
            self.hung.add(job)
            short = timeout < self.options.timeout
            return f"stopped after {timeout:.0f} s" + (": the time was up" if short else "")
        return f"exit {code}: {tail(text)}"

    def work_on(self, name, request):
        """Run loaders.py; its result, or {} and why."""
        request_path = os.path.join(self.work, "request.json")
        result_path = os.path.join(self.work, "result.json")
        if os.path.exists(result_path):
            os.remove(result_path)
        with open(request_path, "w", encoding="utf-8") as file:
            json.dump(dict(request, spawned=time.monotonic()), file)
        timeout = min(self.options.timeout, self.left())
        _, code, _, watched, text = spawn(
            [sys.executable, os.path.join(HERE, "loaders.py"), name, request_path, result_path],
            timeout, os.path.join(self.work, "out"), self.env)
        result = {}
        if os.path.exists(result_path):
            with open(result_path, encoding="utf-8") as file:
                result = json.load(file)
        result["watched"] = watched
        if code != 0:
            key = "error" if len(result) == 1 else "check_error"
            result[key] = self.why(name, code, timeout, text)
        return result

    def run_peer(self, row, job, place):
        info = self.places[place]
        check = job not in self.checked and self.left() > self.options.timeout / 3
        row.update(self.work_on(job, {"files": info["files"], "bytes": info["bytes"],
                                      "check": check}))
        row["threads"] = row["watched"].get("Threads")
        self.keep_verdict(job, row)

    def keep_verdict(self, job, row):
        if "equal_bytes" in row:
            self.checked[job] = f"equal ({row['equal_bytes'] / GB:.2f} GB)"
        elif "check_error" in row:
            self.checked[job] = f"FAILED: {row['check_error']}"

    def run_ours(self, row, job, place):
        out_path = os.path.join(self.work, "out")
        timeout = min(self.options.timeout, self.left())
        command = [self.k3, "load", self.places[place]["directory"], "--ranks",
                   str(self.options.rank), "--device", "cuda:0", "--json", "--quiet"]
        command += ["--no-verify"] if job == "ours-noverify" else []
        command += ["--staging", f"{SMALL_POOL_MIB}MiB"] if job == "ours-15m" else []
        seconds, code, usage, watched, text = spawn(command, timeout, out_path)
        row["watched"], row["threads"] = watched, watched.get("Threads")
        if code != 0:
            row["error"] = self.why(job, code, timeout, text)
            return
        with open(out_path, encoding="utf-8") as file:
            report = json.load(file)
        phases = report["phases"]
        verified = report["verified_bytes"]
        wanted = job != "ours-noverify"
        if report["verify"] != wanted or (wanted and verified < report["bytes"]):
            raise ValueError(f"only {verified} of {report['bytes']} bytes were verified")
        cpu = usage.ru_utime + usage.ru_stime
        row.update(
            bytes=report["bytes"], load_seconds=phases["open"] + phases["run"], context_seconds=0,
            open_seconds=phases["open"], run_seconds=phases["run"],
            start_seconds=seconds, cpu_load_seconds=cpu, cpu_process_seconds=cpu,
            peak_rss_bytes=report["peak_memory_bytes"], pinned_bytes=report["pinned_bytes"],
            pinned_by="its report", report=report, verified_bytes=verified,
            settings=f"{report['io']}{' direct' if report['direct'] else ' through the page cache'}"
                     f", {'every byte verified' if report['verify'] else 'NOT verified'}"
                     + "".join(f"; {line}" for line in report["fallbacks"]))

    def check_ours(self, job):
        if job in self.checked:
            return
        if self.left() < 2 * RUN_MIN_SECONDS:
            return
        info = self.places["hot"]
        files = [p for p, _ in parts_of(info["directory"], self.options.rank, float("inf"))[0]]
        row = self.work_on("check-ours", {
            "library": self.library, "set": info["directory"], "rank": self.options.rank,
            "no_verify": job == "ours-noverify", "files": files, "device": "cuda:0",
            "staging_bytes": SMALL_POOL_MIB << 20 if job == "ours-15m" else 0})
        if "error" in row:
            row["check_error"] = row["error"]
        self.keep_verdict(job, row)

    def go(self):
        jobs = self.options.peers
        self.touch()
        self.warm_up()
        for number in range(self.options.rounds):
            for place in self.places:
                if place == "hot" and self.options.no_hot:
                    continue
                for i in range(len(jobs)):
                    self.run(jobs[(i + number) % len(jobs)], place, number)
            if number == 0:
                for job in jobs:
                    if job in OURS:
                        self.check_ours(job)


# ---- the table ----


def spread(values, digits=2):
    if not values:
        return "–"
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else \
        f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def middle(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def mb(value):
    return "–" if value is None else f"{value / 1e6:.0f}"


HEAD = ("loader", "runs", "GB", "GB/s, open to last byte", "GB/s, with the CUDA context",
        "s from process start", "peak RSS, MB", "pinned, MB", "GPU beside tensors, MB",
        "CPU s/GB, load", "CPU s/GB, process", "threads", "bytes equal")


def table_row(job, rows, verdict):
    good = [row for row in rows if "load_seconds" in row]
    errors = [row["error"] for row in rows if "error" in row and row["error"] != NOT_RUN]
    if not good:
        why = errors[0] if errors else NOT_RUN
        return [job, "0", f"**{why}**"] + [""] * (len(HEAD) - 4) + [verdict]
    size = good[0]["bytes"]
    beside = [row["device_bytes"] - row["bytes"] for row in good if "device_bytes" in row]
    return [job, str(len(good)) + (f" of {len(good) + len(errors)}" if errors else ""),
            f"{size / GB:.2f}",
            spread([size / row["load_seconds"] / GB for row in good]),
            spread([size / (row["load_seconds"] + row["context_seconds"]) / GB for row in good]),
            spread([row["start_seconds"] for row in good]),
            mb(middle(good, "peak_rss_bytes")), mb(middle(good, "pinned_bytes")),
            mb(statistics.median(beside) if beside else None),
            "–" if job in OURS else spread([row["cpu_load_seconds"] * GB / size for row in good]),
            spread([row["cpu_process_seconds"] * GB / size for row in good]),
            str(int(middle(good, "threads") or 0)), verdict]


def make_table(bench):
    lines = []
    for place, info in bench.places.items():
        rows = [row for row in bench.runs if row["place"] == place]
        lines += ["", f"{place}: {len(info['files'])} parts, {info['bytes'] / GB:.2f} GB of "
                      f"tensors, {info['file_system']}; median (lowest–highest)", "",
                  "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        for job in bench.options.peers:
            mine = [row for row in rows if row["peer"] == job]
            cells = table_row(job, mine, bench.checked.get(job, "not compared"))
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        lines.append("")
        for job in bench.options.peers:
            mine = [row for row in rows if row["peer"] == job]
            lines += [f"- {job}: {text}" for text in job_notes(mine)]
    lines += [""] + [f"- {note}" for note in bench.notes]
    return "\n".join(lines) + "\n"


def job_notes(rows):
    """What the last good run said of itself, and every failure once."""
    good = [row for row in rows if "load_seconds" in row]
    if good:
        row = good[-1]
        version = f"{row['version']}, torch {row['torch']}; " if "version" in row else ""
        watched = row["watched"]
        yield (f"{version}{row['settings']}; pinned: {row['pinned_by']} (VmPin "
               f"{mb(watched.get('VmPin'))}, VmLck {mb(watched.get('VmLck'))} MB at most)")
        if "status_before" in row:
            before = row["status_before"]
            yield (f"before the clock: {row['import_seconds']:.2f} s of imports, "
                   f"{row['context_seconds']:.2f} s for the CUDA context, {mb(before['VmHWM'])} MB "
                   f"peak RSS, {before['Threads']} threads")
        else:
            rates = [r["bytes"] / r["run_seconds"] / GB for r in good]
            yield (f"its open makes the CUDA context, in both rates: open "
                   f"{row['open_seconds']:.2f} s, run {row['run_seconds']:.2f} s; run alone "
                   f"{spread(rates)} GB/s; seconds from process start include the process's end")
    for error in sorted({row["error"] for row in rows if "error" in row}):
        yield f"{sum(row.get('error') == error for row in rows)} runs: {error}"


# ---- options ----


def size_of(text):
    found = re.fullmatch(r"([0-9.]+) ?(GB|GiB|MB|MiB)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: a size is like 12GB or 500MiB")
    scale = {"GB": 1e9, "GiB": 1 << 30, "MB": 1e6, "MiB": 1 << 20}[found.group(2)]
    return int(float(found.group(1)) * scale)


def peer_list(text):
    names = text.split(",")
    for name in names:
        if name not in PEERS + MORE_PEERS + OURS:
            raise argparse.ArgumentTypeError(
                f"{name}: not one of {', '.join(PEERS + MORE_PEERS + OURS)}")
    return names


def take_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--set", required=True, metavar="DIR", help="shard set, on a tmpfs")
    parser.add_argument("--cold-dir", metavar="DIR", help="the same set on a disk")
    parser.add_argument("--no-hot", action="store_true", help="cold runs alone")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--files", type=size_of, default=size_of("12GB"), metavar="SIZE",
                        help="parts of the rank up to this many bytes (default 12GB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="for everything (default 120)")
    parser.add_argument("--timeout", type=float, default=60, help="for one run (default 60)")
    parser.add_argument("--peers", type=peer_list, default=list(PEERS + OURS), metavar="LIST")
    parser.add_argument("--touch", type=size_of, default=size_of("0GB"), metavar="SIZE",
                        help="memory to use once before all runs (virtual machines)")
    parser.add_argument("--json", metavar="FILE", help="every run, as JSON")
    parser.add_argument("--table", metavar="FILE", help="the table, which is printed too")
    return parser.parse_args()


def main():
    options = take_options()
    work = tempfile.mkdtemp(prefix="k3-peers-")
    try:
        bench = Bench(options, work)
        bench.go()
        text = make_table(bench)
        print(text)
        if options.table:
            with open(options.table, "w", encoding="utf-8") as file:
                file.write(text)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({"options": vars(options), "places": bench.places, "runs": bench.runs,
                           "checked": bench.checked, "notes": bench.notes}, file, indent=1)
    finally:
        shutil.rmtree(work)
    good = {row["peer"] for row in bench.runs if "load_seconds" in row}
    return 0 if good == set(options.peers) and not any(
        verdict.startswith("FAILED") for verdict in bench.checked.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
